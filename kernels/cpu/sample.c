/* Sampling and log probabilities of logit rows (order of processing: ops.h, op_sample). Rows are
 * independent and run on the pool.
 *
 * Top-k, top-p and min-p each keep a prefix of the tokens ordered by (value descending, id
 * ascending), so what is kept is described by one cut: a value and the highest id kept at it. */
#include "kernels/cpu/internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/check.h"
#include "kernels/cpu/fmath.h"

struct cut {
    float v; /* kept: above v, or equal to v with an id <= id */
    int32_t id;
};

struct cand {
    float v;
    int32_t id;
};

static int by_rank(const void *pa, const void *pb)
{
    const struct cand *a = pa, *b = pb;
    if (a->v != b->v)
        return a->v > b->v ? -1 : 1;
    return a->id < b->id ? -1 : a->id > b->id;
}

/* Log softmax parts of a row: largest value and log of the sum, NaN counted as -inf. */
struct lse {
    float max;
    double log_sum;
};

static struct lse row_lse(const float *l, int n)
{
    struct lse r = {-INFINITY, 0};
    for (int i = 0; i < n; i++)
        r.max = l[i] > r.max ? l[i] : r.max;
    double acc[8] = {0};
    for (int i = 0; i < n; i++)
        if (l[i] == l[i])
            acc[i & 7] += (double)fm_exp(l[i] - r.max);
    double s = ((acc[0] + acc[4]) + (acc[2] + acc[6])) + ((acc[1] + acc[5]) + (acc[3] + acc[7]));
    r.log_sum = log(s);
    return r;
}

static float logprob(const struct lse *e, float l)
{
    return (float)((double)l - (double)e->max - e->log_sum);
}

/* The n best tokens by raw logit, into out. */
static void top_n(struct sample_out *out, const float *l, int vocab, int n, const struct lse *e)
{
    n = n < LIM_LOGPROBS ? n : LIM_LOGPROBS;
    n = n < vocab ? n : vocab;
    int k = 0;
    float val[LIM_LOGPROBS];
    for (int i = 0; i < vocab && n > 0; i++) {
        float v = l[i] == l[i] ? l[i] : -INFINITY;
        if (k == n && !(v > val[n - 1]))
            continue;
        int j = k < n ? k++ : n - 1;
        for (; j > 0 && v > val[j - 1]; j--) {
            val[j] = val[j - 1];
            out->top_id[j] = out->top_id[j - 1];
        }
        val[j] = v;
        out->top_id[j] = i;
    }
    out->n_top = k;
    for (int j = 0; j < k; j++)
        out->top_logprob[j] = logprob(e, val[j]);
}

static int32_t argmax(const float *z, int n)
{
    int32_t best = 0;
    for (int i = 1; i < n; i++)
        if (z[i] > z[best] || z[best] != z[best])
            best = i;
    return best;
}

static int in_list(const int32_t *p, int n, int32_t v)
{
    int k = 0;
    for (int i = 0; i < n; i++)
        k += p[i] == v;
    return k;
}

/* Drafted tokens on the path to the row: not in seen and count yet, known from their positions. */
static int draft_path(const struct op_sample *a, int row, const int32_t **path)
{
    int slot = a->rows.slot[row], pos = a->rows.pos[row];
    int known = a->s.params[slot].n_prompt + a->s.n_out[slot];
    int n = pos - known + 1;
    n = n > 0 ? n : 0;
    CHECK(n < LIM_ROWS_PER_REQ && n <= row);
    *path = a->rows.tok + row + 1 - n;
    return n;
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
    const int32_t *path;
    int n_path = draft_path(a, row, &path);
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

/* The cut after top-k, top-p and min-p over values z whose largest is max. */
static struct cut find_cut(const struct slot_params *p, const float *z, int n, float max,
                           struct cand *c)
{
    struct cut cut = {-INFINITY, n};
    bool k_on = p->top_k > 0 && p->top_k < n, p_on = p->top_p < 1.0f;
    if (!k_on && !p_on && !(p->min_p > 0))
        return cut;
    for (int i = 0; i < n; i++)
        c[i] = (struct cand){z[i], i};
    qsort(c, (size_t)n, sizeof *c, by_rank);
    int keep = k_on ? p->top_k : n;
    if (p_on) {
        double sum = 0, run = 0;
        for (int i = 0; i < keep; i++)
            sum += (double)fm_exp(c[i].v - max);
        for (int i = 0; i < keep; i++) {
            run += (double)fm_exp(c[i].v - max);
            if (run >= (double)p->top_p * sum) {
                keep = i + 1;
                break;
            }
        }
    }
    while (keep > 1 && fm_exp(c[keep - 1].v - max) < p->min_p)
        keep--;
    return (struct cut){c[keep - 1].v, c[keep - 1].id};
}

static int32_t draw(const struct slot_params *p, const float *z, int n, struct cut cut, int32_t pos)
{
    int32_t best = -1;
    float top = -INFINITY;
    for (int i = 0; i < n; i++) {
        if (!(z[i] > cut.v || (z[i] == cut.v && i <= cut.id)))
            continue;
        float v = z[i] + fm_noise(p->seed, pos, i);
        if (best < 0 || v > top) {
            best = i;
            top = v;
        }
    }
    return best < 0 ? 0 : best;
}

struct job {
    struct dev *d;
    const void *a;
};

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
    const float *l = a->logits + m * a->ldl;
    float *z = a->work + (int64_t)m * 4 * n;
    int32_t pos = a->rows.pos[row] + 1;
    int out_index = pos - p->n_prompt;
    for (int i = 0; i < n; i++) {
        out->bad |= l[i] != l[i];
        z[i] = l[i] == l[i] ? l[i] : -INFINITY;
    }
    if (processed(p, out_index))
        process(a, row, z, out_index);
    int32_t best = argmax(z, n);
    if (p->temperature < 1e-5f || !(fabsf(z[best]) < INFINITY)) {
        out->token = best;
    } else {
        for (int i = 0; i < n; i++)
            z[i] = z[i] / p->temperature;
        struct cut cut = find_cut(p, z, n, z[best], (struct cand *)(z + n));
        out->token = draw(p, z, n, cut, pos);
    }
    if (p->n_logprobs >= 0) {
        struct lse e = row_lse(l, n);
        out->logprob = logprob(&e, l[out->token] == l[out->token] ? l[out->token] : -INFINITY);
        top_n(out, l, n, p->n_logprobs, &e);
    }
}

int cpu_do_sample(struct dev *d, const struct op_sample *a)
{
    CHECK(a->vocab <= a->s.vocab);
    struct job j = {d, a};
    cpu_parallel_if(d, (int64_t)a->m * a->vocab, a->m, sample_row, &j);
    return OK;
}

static void score_row(void *ud, int m)
{
    const struct job *job = ud;
    const struct op_score *a = job->a;
    struct sample_out *out = &a->out[m];
    const float *l = a->logits + m * a->ldl;
    out->token = a->tok[m];
    out->logprob = NAN;
    out->n_top = out->bad = 0;
    if (a->tok[m] < 0)
        return;
    CHECK(a->tok[m] < a->vocab);
    struct lse e = row_lse(l, a->vocab);
    for (int i = 0; i < a->vocab; i++)
        out->bad |= l[i] != l[i];
    float v = l[a->tok[m]];
    out->logprob = logprob(&e, v == v ? v : -INFINITY);
    top_n(out, l, a->vocab, a->n_top[m], &e);
}

int cpu_do_score(struct dev *d, const struct op_score *a)
{
    struct job j = {d, a};
    cpu_parallel_if(d, (int64_t)a->m * a->vocab, a->m, score_row, &j);
    return OK;
}
