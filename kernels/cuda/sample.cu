/* The device sampler: one block a row, the CPU device's noise bits (kernels/fmath.h, compiled
 * without contraction), the same order of processing. Top-k and top-p are found by bisection on the
 * ordered bit patterns of the values instead of a sort: a kept set is a prefix of (value
 * descending, id ascending), so a value and an id describe it. */
#include "kernels/cuda/rank.cuh"

static __device__ __forceinline__ float logprob(const struct lse &e, float l)
{
    return (float)((double)l - (double)e.max - e.log_sum);
}

/* The n best tokens by raw logit: repeated argmax below the last pick. */
static __device__ void top_n(struct sample_out *out, const float *l, int vocab, int n,
                             const struct lse &e)
{
    n = min(min(n, (int)LIM_LOGPROBS), vocab);
    uint64_t last = ~0ull;
    for (int k = 0; k < n; k++) {
        uint64_t b = 0;
        for (int i = threadIdx.x; i < vocab; i += T) {
            uint64_t w = pack_best(l[i] == l[i] ? l[i] : -INFINITY, i);
            b = w < last && w > b ? w : b;
        }
        last = block_best(b);
        if (threadIdx.x == 0) {
            out->top_id[k] = best_id(last);
            out->top_logprob[k] = logprob(e, key_value((uint32_t)(last >> 32)));
        }
    }
    if (threadIdx.x == 0)
        out->n_top = n;
}

static __device__ int in_list(const int32_t *p, int n, int32_t v)
{
    int k = 0;
    for (int i = 0; i < n; i++)
        k += p[i] == v;
    return k;
}

static __device__ void penalise(float *z, int32_t id, const struct slot_params *p, int count)
{
    float v = z[id];
    v = v > 0 ? v / p->repetition : v * p->repetition;
    if (count > 0)
        v = v - p->presence - (float)count * p->frequency;
    z[id] = v;
}

/* Penalties, bias and the min_out mask on z (a copy of the raw row). */
static __device__ void process(const struct op_sample &a, int row, float *z)
{
    int slot = a.rows.slot[row], pos = a.rows.pos[row];
    const struct slot_params *p = &a.s.params[slot];
    int words = (a.s.vocab + 31) / 32;
    const uint32_t *seen = a.s.seen + (int64_t)slot * words;
    const uint16_t *count = a.s.count + (int64_t)slot * a.s.vocab;
    if (p->repetition != 1.0f || p->presence != 0.0f || p->frequency != 0.0f) {
        /* drafted tokens on the path to this row are not in seen and count yet */
        __shared__ int32_t path[LIM_ROWS_PER_REQ];
        int n_path = min(max(pos - (p->n_prompt + a.s.n_out[slot]) + 1, 0), LIM_ROWS_PER_REQ - 1);
        if (threadIdx.x == 0)
            for (int i = 0, r = row; i < n_path; i++, r = r < 0 ? r : a.rows.parent[r])
                path[i] = r < 0 ? -1 : a.rows.tok[r];
        __syncthreads();
        for (int i = threadIdx.x; i < a.vocab; i += T) {
            int drafted = n_path ? in_list(path, n_path, i) : 0;
            if (drafted || seen[i / 32] >> (i & 31) & 1)
                penalise(z, i, p, count[i] + drafted);
        }
        __syncthreads();
    }
    for (int i = threadIdx.x; i < p->n_bias; i += T)
        if (p->bias_id[i] >= 0 && p->bias_id[i] < a.vocab)
            atomicAdd(&z[p->bias_id[i]], p->bias[i]);
    __syncthreads();
    if (pos + 1 - p->n_prompt < p->min_out)
        for (int i = threadIdx.x; i < p->n_stop; i += T)
            if (p->stop[i] >= 0 && p->stop[i] < a.vocab)
                z[p->stop[i]] = -INFINITY;
    __syncthreads();
}

struct cut { /* kept: above v, or equal to v with an id <= id */
    float v;
    int32_t id;
};

/* Id of the n-th (1-based) token equal to v. */
static __device__ int nth_equal(const float *z, int n_vocab, float v, int n)
{
    int lo = 0, hi = n_vocab - 1; /* smallest id with at least n equals up to it */
    while (lo < hi) {
        int mid = (lo + hi) / 2, c = 0;
        for (int i = threadIdx.x; i <= mid; i += T)
            c += z[i] == v;
        if (block_count(c) >= n)
            hi = mid;
        else
            lo = mid + 1;
    }
    return lo;
}

static __device__ __forceinline__ bool kept(const float *z, int i, const struct cut &c)
{
    return z[i] > c.v || (z[i] == c.v && i <= c.id);
}

static __device__ struct cut cut_top_k(const float *z, int n, int k)
{
    uint32_t lo = 0, hi = 0xffffffffu; /* largest key with at least k values >= it */
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2 + 1;
        int c = 0;
        for (int i = threadIdx.x; i < n; i += T)
            c += key_of(z[i]) >= mid;
        if (block_count(c) >= k)
            lo = mid;
        else
            hi = mid - 1;
    }
    float v = key_value(lo);
    int above = 0;
    for (int i = threadIdx.x; i < n; i += T)
        above += z[i] > v;
    struct cut r = {v, nth_equal(z, n, v, k - block_count(above))};
    return r;
}

/* Smallest prefix (within `c`) whose probability reaches p: the crossing token is kept. */
static __device__ struct cut cut_top_p(const float *z, int n, float max, struct cut c, float p)
{
    double sum = 0;
    for (int i = threadIdx.x; i < n; i += T)
        if (kept(z, i, c))
            sum += (double)fm_exp(z[i] - max);
    double want = (double)p * block_sum(sum);
    uint32_t lo = key_of(c.v), hi = key_of(max); /* largest key with mass(>= key) >= want */
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2 + 1;
        double m = 0;
        for (int i = threadIdx.x; i < n; i += T)
            if (key_of(z[i]) >= mid && kept(z, i, c))
                m += (double)fm_exp(z[i] - max);
        if (block_sum(m) >= want)
            lo = mid;
        else
            hi = mid - 1;
    }
    float v = key_value(lo);
    double above = 0;
    int equal = 0;
    for (int i = threadIdx.x; i < n; i += T) {
        if (z[i] > v)
            above += (double)fm_exp(z[i] - max);
        equal += z[i] == v && kept(z, i, c);
    }
    above = block_sum(above);
    equal = block_count(equal);
    double each = (double)fm_exp(v - max);
    int need = each > 0 ? (int)ceil((want - above) / each) : equal;
    need = need < 1 ? 1 : need > equal ? equal : need;
    struct cut r = {v, nth_equal(z, n, v, need)};
    return r;
}

/* A row's processed values z and what of them is kept; `point`: `best` has all of the mass. */
struct target {
    float max, min_p;
    int best, bad;
    struct cut cut;
    bool point;
};

static __device__ struct target target_of(const struct op_sample &a, int m, int row, float *z)
{
    const struct slot_params *p = &a.s.params[a.rows.slot[row]];
    const float *l = a.logits + m * a.ldl;
    int n = a.vocab, bad = 0;
    for (int i = threadIdx.x; i < n; i += T) {
        bad |= l[i] != l[i];
        z[i] = l[i] == l[i] ? l[i] : -INFINITY;
    }
    bad = __syncthreads_or(bad);
    process(a, row, z);
    uint64_t top = row_argmax(z, n);
    struct cut all = {-INFINITY, n};
    struct target t = {key_value((uint32_t)(top >> 32)), p->min_p, best_id(top), bad, all, true};
    if (p->temperature < 1e-5f || !(fabsf(t.max) < INFINITY))
        return t;
    for (int i = threadIdx.x; i < n; i += T)
        z[i] = z[i] / p->temperature;
    t.max = t.max / p->temperature;
    t.point = false;
    __syncthreads();
    if (p->top_k > 0 && p->top_k < n)
        t.cut = cut_top_k(z, n, p->top_k);
    if (p->top_p < 1.0f)
        t.cut = cut_top_p(z, n, t.max, t.cut, p->top_p);
    return t;
}

static __device__ __forceinline__ bool in_target(const struct target &t, const float *z, int i)
{
    return kept(z, i, t.cut) && (i == t.best || !(fm_exp(z[i] - t.max) < t.min_p));
}

__global__ void __launch_bounds__(T) sample_kernel(struct op_sample a)
{
    int m = blockIdx.x, n = a.vocab;
    int row = a.idx ? a.idx[m] : m;
    struct sample_out *out = &a.out[m];
    if (threadIdx.x == 0) {
        out->token = -1;
        out->logprob = NAN;
        out->n_top = out->bad = 0;
    }
    if (row < 0 || a.rows.slot[row] <= 0 || a.rows.tok[row] < 0)
        return;
    const struct slot_params *p = &a.s.params[a.rows.slot[row]];
    const float *l = a.logits + m * a.ldl;
    float *z = a.work + (int64_t)m * 4 * n;
    struct target t = target_of(a, m, row, z);
    int best = t.best;
    if (!t.point) {
        uint64_t b = 0;
        for (int i = threadIdx.x; i < n; i += T) {
            if (!in_target(t, z, i))
                continue;
            uint64_t w = pack_best(z[i] + fm_noise(p->seed, a.rows.pos[row] + 1, i), i);
            b = w > b ? w : b;
        }
        best = best_id(block_best(b));
    }
    if (threadIdx.x == 0) {
        out->token = best;
        out->bad = t.bad;
    }
    if (p->n_logprobs >= 0) {
        struct lse e = row_lse(l, n);
        if (threadIdx.x == 0)
            out->logprob = logprob(e, l[best] == l[best] ? l[best] : -INFINITY);
        top_n(out, l, n, p->n_logprobs, e);
    }
}

extern "C" int cuda_do_sample(struct dev *d, const struct op_sample *a)
{
    sample_kernel<<<a->m, T, 0, d->stream>>>(*a);
    return cuda_launched(d);
}

/* ---- ratio rejection: one block a request, its rows in order ---- */

static __device__ void put_sample(const struct op_reject &a, int row, int32_t tok)
{
    const float *l = a.logits + row * a.ldl;
    bool ask = a.s.params[a.rows.slot[row]].n_logprobs >= 0;
    struct lse e = {0, 0};
    if (ask)
        e = row_lse(l, a.vocab);
    if (threadIdx.x)
        return;
    a.sample[row].token = tok;
    if (ask)
        a.sample[row].logprob = logprob(e, l[tok] == l[tok] ? l[tok] : -INFINITY);
}

/* A draw from what p exceeds q by, -1 when that is nothing; p(i) of the kept set is exp / sum. */
static __device__ int draw_residual(const struct target &t, const float *z, const float *q, int n,
                                    double sum, uint64_t seed, int pos)
{
    uint64_t b = 0;
    for (int i = threadIdx.x; i < n; i += T) {
        float p = in_target(t, z, i) ? (float)((double)fm_exp(z[i] - t.max) / sum) : 0;
        float r = p - q[i];
        if (!(r >= FM_RESIDUAL_MIN))
            continue;
        float v = fm_log(r) + fm_gumbel(fm_random(seed, pos, i, FM_RESIDUAL));
        uint64_t w = pack_best(v, i);
        b = w > b ? w : b;
    }
    b = block_best(b);
    return b ? best_id(b) : -1;
}

__global__ void __launch_bounds__(T) reject_kernel(struct op_reject a)
{
    int i = blockIdx.x, slot = a.req_slot[i], row0 = a.req_row0[i], n = a.vocab;
    if (!cuda_slot_ok(a.s, slot, a.req_gen[i]))
        return;
    const struct slot_params *p = &a.s.params[slot];
    if (p->spec_mode != SPEC_MODEL || !p->spec_ratio || p->temperature < 1e-5f)
        return;
    struct op_sample view = {};
    view.s = a.s;
    view.rows = a.rows;
    view.logits = a.logits;
    view.ldl = a.ldl;
    view.vocab = n;
    float *z = a.work + (int64_t)row0 * 4 * n;
    int most = min(a.req_n[i] - 1, a.q_steps);
    for (int j = 0; j < most; j++) {
        int row = row0 + j, x = a.rows.tok[row + 1], pos = a.rows.pos[row] + 1;
        const float *q = a.q + ((int64_t)slot * a.q_steps + j) * a.s.vocab;
        struct target t = target_of(view, row, row, z);
        if (t.point || x < 0 || x >= n || !(q[x] > 0 && q[x] <= 1.001f))
            return;
        double sum = 0;
        for (int v = threadIdx.x; v < n; v += T)
            if (in_target(t, z, v))
                sum += (double)fm_exp(z[v] - t.max);
        sum = block_sum(sum);
        float px = in_target(t, z, x) ? (float)((double)fm_exp(z[x] - t.max) / sum) : 0;
        if (fm_coin(p->seed, pos) * (double)q[x] < (double)px) {
            put_sample(a, row, x);
            __syncthreads(); /* z is the next row's */
            continue;
        }
        x = draw_residual(t, z, q, n, sum, p->seed, pos);
        if (x >= 0)
            put_sample(a, row, x);
        return;
    }
}

extern "C" int cuda_do_reject(struct dev *d, const struct op_reject *a)
{
    reject_kernel<<<(unsigned)a->reqs, T, 0, d->stream>>>(*a);
    return cuda_launched(d);
}

__global__ void __launch_bounds__(T) score_kernel(struct op_score a)
{
    int m = blockIdx.x;
    struct sample_out *out = &a.out[m];
    const float *l = a.logits + m * a.ldl;
    int32_t tok = a.tok[m];
    int bad = 0;
    if (threadIdx.x == 0) {
        out->token = tok;
        out->logprob = NAN;
        out->n_top = out->bad = 0;
    }
    if (tok < 0 || tok >= a.vocab)
        return;
    for (int i = threadIdx.x; i < a.vocab; i += T)
        bad |= l[i] != l[i];
    bad = __syncthreads_or(bad);
    struct lse e = row_lse(l, a.vocab);
    if (threadIdx.x == 0) {
        out->bad = bad;
        out->logprob = logprob(e, l[tok] == l[tok] ? l[tok] : -INFINITY);
    }
    top_n(out, l, a.vocab, a.n_top[m], e);
}

extern "C" int cuda_do_score(struct dev *d, const struct op_score *a)
{
    score_kernel<<<a->m, T, 0, d->stream>>>(*a);
    return cuda_launched(d);
}
