/* Sampling and log probabilities of logit rows (order of processing: ops.h, op_sample). Rows are
 * independent and run on the pool.
 *
 * Top-k, top-p and min-p each keep a prefix of the tokens ordered by (value descending, id
 * ascending), so what is kept is described by one cut: a value and the highest id kept at it. */
#include <math.h>
#include <string.h>

#include "engine/base/check.h"
#include "kernels/cpu/fmath.h"
#include "kernels/cpu/logits.h"

struct cut {
    float v; /* kept: above v, or equal to v with an id <= id */
    int32_t id;
};

struct cand {
    float v;
    int32_t id;
};

static bool ranks_before(struct cand a, struct cand b)
{
    return a.v > b.v || (a.v == b.v && a.id < b.id);
}

/* A heap with the first-ranking candidate on top. */
static void sift(struct cand *c, int n, int i)
{
    struct cand x = c[i];
    for (int k; (k = 2 * i + 1) < n; i = k) {
        if (k + 1 < n && ranks_before(c[k + 1], c[k]))
            k++;
        if (!ranks_before(c[k], x))
            break;
        c[i] = c[k];
    }
    c[i] = x;
}

static void heapify(struct cand *c, int n)
{
    for (int i = n / 2 - 1; i >= 0; i--)
        sift(c, n, i);
}

static struct cand pop(struct cand *c, int *n)
{
    struct cand top = c[0];
    c[0] = c[--*n];
    sift(c, *n, 0);
    return top;
}

/* ---- log probabilities ---- */

static float logprob(const struct cpu_lse *e, float l)
{
    return (float)cpu_log_prob(e, l == l ? l : -INFINITY);
}

/* The n best tokens by raw logit, into out. */
static void top_n(const struct cpu_isa *isa, struct sample_out *out, const float *l, int vocab,
                  int n, const struct cpu_lse *e)
{
    float val[LIM_LOGPROBS];
    n = n < LIM_LOGPROBS ? n : LIM_LOGPROBS;
    out->n_top = cpu_top_k(isa, l, vocab, n, val, out->top_id);
    for (int j = 0; j < out->n_top; j++)
        out->top_logprob[j] = logprob(e, val[j]);
}

/* ---- processing ---- */

static int in_list(const int32_t *p, int n, int32_t v)
{
    int k = 0;
    for (int i = 0; i < n; i++)
        k += p[i] == v;
    return k;
}

/* Drafted tokens on the path to the row: not in seen and count yet, known from their positions.
 * Returns how many it wrote to path. */
static int draft_path(const struct op_sample *a, int row, int32_t *path)
{
    int slot = a->rows.slot[row];
    int n = a->rows.pos[row] - (a->s.params[slot].n_prompt + a->s.n_out[slot]) + 1;
    CHECK(n < LIM_ROWS_PER_REQ);
    for (int i = 0; i < n; i++, row = a->rows.parent[row]) {
        CHECK(row >= 0);
        path[i] = a->rows.tok[row];
    }
    return n > 0 ? n : 0;
}

static void penalise(float *z, int32_t id, const struct slot_params *p, int count)
{
    float v = z[id];
    v = v > 0 ? v / p->repetition : v * p->repetition;
    if (count > 0)
        v = v - p->presence - (float)count * p->frequency;
    z[id] = v;
}

static void penalties(const struct op_sample *a, int row, float *z)
{
    int slot = a->rows.slot[row];
    const struct slot_params *p = &a->s.params[slot];
    if (p->repetition == 1.0f && p->presence == 0.0f && p->frequency == 0.0f)
        return;
    int32_t path[LIM_ROWS_PER_REQ];
    int n_path = draft_path(a, row, path);
    int words = (a->s.vocab + 31) / 32;
    const uint32_t *seen = a->s.seen + (int64_t)slot * words;
    const uint16_t *count = a->s.count + (int64_t)slot * a->s.vocab;
    for (int w = 0; w < words; w++)
        for (uint32_t m = seen[w]; m; m &= m - 1) {
            int32_t id = w * 32 + __builtin_ctz(m);
            if (id < a->vocab)
                penalise(z, id, p, count[id] + in_list(path, n_path, id));
        }
    for (int i = 0; i < n_path; i++) {
        int32_t id = path[i];
        if (id < 0 || id >= a->vocab || seen[id / 32] >> (id & 31) & 1 || in_list(path, i, id))
            continue;
        penalise(z, id, p, in_list(path, n_path, id));
    }
}

/* The processed logits before the temperature; true when anything can differ from the raw ones. */
static bool processed(const struct slot_params *p, int out_index)
{
    return p->repetition != 1.0f || p->presence != 0.0f || p->frequency != 0.0f || p->n_bias > 0 ||
           (out_index < p->min_out && p->n_stop > 0);
}

static void process(const struct op_sample *a, int row, float *z, int out_index)
{
    const struct slot_params *p = &a->s.params[a->rows.slot[row]];
    penalties(a, row, z);
    for (int i = 0; i < p->n_bias; i++)
        if (p->bias_id[i] >= 0 && p->bias_id[i] < a->vocab)
            z[p->bias_id[i]] += p->bias[i];
    if (out_index < p->min_out)
        for (int i = 0; i < p->n_stop; i++)
            if (p->stop[i] >= 0 && p->stop[i] < a->vocab)
                z[p->stop[i]] = -INFINITY;
}

/* ---- cuts ---- */

/* Bins of 1/64 below the largest value; the last takes the rest. A cut is looked for bin by bin,
 * and only the candidates of its bin are ranked. */
enum { BINS = 4096, BINS_PER_UNIT = 64 };

static int bin_of(float z, float max)
{
    float t = (max - z) * (float)BINS_PER_UNIT;
    return t < (float)(BINS - 1) ? (int)t : BINS - 1;
}

static int collect(struct cand *c, const float *z, int n, float max, int bin)
{
    int m = 0;
    for (int i = 0; i < n; i++)
        if (bin_of(z[i], max) == bin)
            c[m++] = (struct cand){z[i], i};
    heapify(c, m);
    return m;
}

/* The k-th token by rank, 1 <= k <= n. */
static struct cut cut_k(const float *z, int n, float max, int k, struct cand *c)
{
    int count[BINS] = {0}, b = 0;
    for (int i = 0; i < n; i++)
        count[bin_of(z[i], max)]++;
    for (; count[b] < k; b++)
        k -= count[b];
    int m = collect(c, z, n, max, b);
    struct cand x = {0};
    while (k-- > 0)
        x = pop(c, &m);
    return (struct cut){x.v, x.id};
}

static bool kept(struct cut cut, float v, int32_t id)
{
    return v > cut.v || (v == cut.v && id <= cut.id);
}

/* The first token by rank at which the mass of those kept by `in` reaches p of its whole. e holds
 * exp(z - max). */
static struct cut cut_p(const float *z, const float *e, int n, float max, double p, struct cut in,
                        struct cand *c)
{
    double mass[BINS] = {0}, sum = 0, run = 0;
    for (int i = 0; i < n; i++)
        if (kept(in, z[i], i))
            mass[bin_of(z[i], max)] += (double)e[i];
    for (int b = 0; b < BINS; b++)
        sum += mass[b];
    for (int b = 0; b < BINS; b++) {
        if (run + mass[b] < p * sum) {
            run += mass[b];
            continue;
        }
        int m = collect(c, z, n, max, b);
        while (m > 0) {
            struct cand x = pop(c, &m);
            if (!kept(in, x.v, x.id))
                return in;
            run += (double)e[x.id];
            if (run >= p * sum)
                return (struct cut){x.v, x.id};
        }
    }
    return in; /* rounding: the mass never quite reached p */
}

/* The last token by rank whose probability is at least min_p times the largest. */
static struct cut cut_min(const float *z, const float *e, int n, float min_p, struct cut in)
{
    struct cut cut = in;
    bool any = false;
    for (int i = 0; i < n; i++)
        if (e[i] >= min_p && kept(in, z[i], i) &&
            (!any || z[i] < cut.v || (z[i] == cut.v && i > cut.id))) {
            cut = (struct cut){z[i], i};
            any = true;
        }
    return cut;
}

/* The cut after top-k, top-p and min-p over values z whose largest is max; `work` has room for
 * cpu_pad(n) floats and n candidates. */
static struct cut find_cut(const struct cpu_isa *isa, const struct slot_params *p, const float *z,
                           int n, float max, float *work)
{
    struct cut cut = {-INFINITY, n};
    struct cand *c = (struct cand *)(work + cpu_pad(n));
    if (p->top_k > 0 && p->top_k < n)
        cut = cut_k(z, n, max, p->top_k, c);
    if (p->top_p < 1.0f || p->min_p > 0)
        cpu_exp_row(isa, work, z, n, max);
    if (p->top_p < 1.0f)
        cut = cut_p(z, work, n, max, (double)p->top_p, cut, c);
    if (p->min_p > 0)
        cut = cut_min(z, work, n, p->min_p, cut);
    return cut;
}

/* The kept token with the largest z + noise. `first` is a token with the largest z: its sum is a
 * floor below which the largest possible noise cannot lift others (rounded addition is monotonic,
 * so leaving them out cannot change the result). */
static int32_t draw(const struct cpu_isa *isa, const struct slot_params *p, const float *z, int n,
                    struct cut cut, int32_t first, int32_t pos)
{
    enum { BLOCK = 64 };
    int32_t best = first;
    float top = z[first] + fm_noise(p->seed, pos, first), v[BLOCK];
    for (int b = 0; b < n; b += BLOCK) {
        int m = n - b < BLOCK ? n - b : BLOCK;
        float high = isa->max(z + b, m, NULL);
        if (high < cut.v || high + FM_GUMBEL_MAX < top)
            continue;
        isa->noise(v, z + b, m, p->seed, pos, b);
        if (isa->max(v, m, NULL) < top)
            continue;
        for (int i = 0; i < m; i++)
            if (kept(cut, z[b + i], b + i) && (v[i] > top || (v[i] == top && b + i < best))) {
                best = b + i;
                top = v[i];
            }
    }
    return best;
}

struct job {
    struct dev *d;
    const void *a;
};

/* A thread's scratch for one row: three times the vocabulary and some padding. */
static float *row_work(struct dev *d, float *given, int n)
{
    return 4 * (int64_t)n + 64 <= CPU_PANEL_FLOATS ? cpu_panel(d) : given;
}

/* A row's processed values and what of them is kept; `point`: `first` has all of the mass. */
struct target {
    const float *z; /* in the row's scratch, or the logits */
    float max;
    int32_t first;
    struct cut cut;
    bool point, bad;
};

static struct target target_of(const struct cpu_isa *isa, const struct op_sample *a, int m, int row,
                               float *work)
{
    const struct slot_params *p = &a->s.params[a->rows.slot[row]];
    const float *l = a->logits + m * a->ldl;
    int n = a->vocab, bad, out_index = a->rows.pos[row] + 1 - p->n_prompt;
    bool greedy = p->temperature < 1e-5f, change = processed(p, out_index);
    struct target t = {.z = l, .max = isa->max(l, n, &bad), .point = true};
    t.bad = bad;
    if (change || bad || !greedy) {
        isa->clean(work, l, n);
        t.z = work;
    }
    if (change) {
        process(a, row, work, out_index);
        t.max = isa->max(work, n, &bad); /* penalties of infinite logits make NaN too */
        if (bad)
            isa->clean(work, work, n);
    }
    t.first = isa->find(t.z, n, t.max);
    t.first = t.first < n ? t.first : 0;
    if (greedy || !(fabsf(t.max) < INFINITY))
        return t;
    isa->div(work, n, p->temperature);
    t.max = work[t.first];
    if (!(fabsf(t.max) < INFINITY))
        return t;
    t.cut = find_cut(isa, p, work, n, t.max, work + cpu_pad(n));
    t.first = isa->find(work, n, t.max);
    t.point = false;
    return t;
}

static void sample_row(void *ud, int m)
{
    const struct job *job = ud;
    const struct op_sample *a = job->a;
    struct sample_out *out = &a->out[m];
    int row = a->idx ? a->idx[m] : m, n = a->vocab;
    out->token = -1;
    out->logprob = NAN;
    out->n_top = out->bad = 0;
    if (row < 0 || a->rows.slot[row] <= 0 || a->rows.tok[row] < 0)
        return;
    const struct slot_params *p = &a->s.params[a->rows.slot[row]];
    float *work = row_work(job->d, a->work + (int64_t)m * 4 * n, n);
    struct target t = target_of(job->d->isa, a, m, row, work);
    out->bad = t.bad;
    out->token = t.first;
    if (!t.point)
        out->token = draw(job->d->isa, p, t.z, n, t.cut, t.first, a->rows.pos[row] + 1);
    if (p->n_logprobs >= 0) {
        const float *l = a->logits + m * a->ldl;
        struct cpu_lse e = cpu_row_lse(job->d->isa, l, n, work);
        out->logprob = logprob(&e, l[out->token]);
        top_n(job->d->isa, out, l, n, p->n_logprobs, &e);
    }
}

int cpu_do_sample(struct dev *d, const struct op_sample *a)
{
    CHECK(a->vocab <= a->s.vocab);
    struct job j = {d, a};
    cpu_parallel_if(d, (int64_t)a->m * a->vocab, a->m, sample_row, &j);
    return OK;
}

/* ---- ratio rejection ---- */

/* p(v) of the kept set into e, which has room for cpu_pad(n). */
static void probabilities(const struct cpu_isa *isa, const struct target *t, int n, float *e)
{
    double sum = 0;
    cpu_exp_row(isa, e, t->z, n, t->max);
    for (int i = 0; i < n; i++) {
        e[i] = kept(t->cut, t->z[i], i) ? e[i] : 0;
        sum += (double)e[i];
    }
    for (int i = 0; i < n; i++)
        e[i] = (float)((double)e[i] / sum);
}

/* A draw from what p exceeds q by, -1 when that is nothing. */
static int32_t draw_residual(const float *p, const float *q, int n, uint64_t seed, int32_t pos)
{
    int32_t best = -1;
    float top = 0;
    for (int i = 0; i < n; i++) {
        float r = p[i] - q[i];
        if (!(r >= FM_RESIDUAL_MIN))
            continue;
        float v = fm_log(r) + fm_gumbel(fm_random(seed, pos, i, FM_RESIDUAL));
        if (best < 0 || v > top) {
            best = i;
            top = v;
        }
    }
    return best;
}

static void put_sample(const struct op_reject *a, const struct cpu_isa *isa, int row, int32_t tok,
                       float *work)
{
    struct sample_out *out = &a->sample[row];
    out->token = tok;
    if (a->s.params[a->rows.slot[row]].n_logprobs < 0)
        return;
    const float *l = a->logits + row * a->ldl;
    struct cpu_lse e = cpu_row_lse(isa, l, a->vocab, work);
    out->logprob = logprob(&e, l[tok]);
}

static void reject_req(void *ud, int i)
{
    const struct job *job = ud;
    const struct op_reject *a = job->a;
    const struct cpu_isa *isa = job->d->isa;
    int slot = a->req_slot[i], row0 = a->req_row0[i], n = a->vocab;
    if (!cpu_slot_ok(&a->s, slot, a->req_gen[i]))
        return;
    const struct slot_params *p = &a->s.params[slot];
    if (p->spec_mode != SPEC_MODEL || !p->spec_ratio || p->temperature < 1e-5f)
        return;
    const struct op_sample view = {
        .s = a->s, .rows = a->rows, .logits = a->logits, .ldl = a->ldl, .vocab = n};
    float *work = row_work(job->d, a->work + (int64_t)row0 * 4 * n, n), *e = work + cpu_pad(n);
    CHECK(a->req_n[i] - 1 <= a->q_steps);
    for (int j = 0; j + 1 < a->req_n[i]; j++) {
        int row = row0 + j;
        int32_t x = a->rows.tok[row + 1], pos = a->rows.pos[row] + 1;
        const float *q = a->q + ((int64_t)slot * a->q_steps + j) * a->s.vocab;
        struct target t = target_of(isa, &view, row, row, work);
        CHECK(a->rows.parent[row + 1] == row && x >= 0 && x < n);
        if (t.point || !(q[x] > 0 && q[x] <= 1.001f))
            return;
        probabilities(isa, &t, n, e);
        if (fm_coin(p->seed, pos) * (double)q[x] < (double)e[x]) {
            put_sample(a, isa, row, x, work);
            continue;
        }
        x = draw_residual(e, q, n, p->seed, pos);
        if (x >= 0)
            put_sample(a, isa, row, x, work);
        return;
    }
}

int cpu_do_reject(struct dev *d, const struct op_reject *a)
{
    struct job j = {d, a};
    cpu_parallel_if(d, (int64_t)a->reqs * a->vocab, a->reqs, reject_req, &j);
    return OK;
}

static void score_row(void *ud, int m)
{
    const struct job *job = ud;
    const struct op_score *a = job->a;
    const struct cpu_isa *isa = job->d->isa;
    struct sample_out *out = &a->out[m];
    const float *l = a->logits + m * a->ldl;
    out->token = a->tok[m];
    out->logprob = NAN;
    out->n_top = out->bad = 0;
    if (a->tok[m] < 0)
        return;
    CHECK(a->tok[m] < a->vocab);
    isa->max(l, a->vocab, &out->bad);
    struct cpu_lse e = cpu_row_lse(isa, l, a->vocab, cpu_panel(job->d));
    out->logprob = logprob(&e, l[a->tok[m]]);
    top_n(isa, out, l, a->vocab, a->n_top[m], &e);
}

int cpu_do_score(struct dev *d, const struct op_score *a)
{
    CHECK(cpu_pad(a->vocab) <= CPU_PANEL_FLOATS);
    struct job j = {d, a};
    cpu_parallel_if(d, (int64_t)a->m * a->vocab, a->m, score_row, &j);
    return OK;
}
