/* The device sampler: the CPU device's noise bits and order of processing, a cluster of blocks a
 * row (rank.cuh). Rows without processing or cuts are one pass over the logits. Otherwise the
 * values stay in shared memory; a kept set is a prefix of (value descending, id ascending), so a
 * value and an id describe it: a histogram names the bin of the cut, and only that bin is ranked.
 */
#include "kernels/cuda/rank.cuh"

static __device__ __forceinline__ float logprob(const struct lse &e, float l)
{
    return (float)((double)l - (double)e.max - e.log_sum);
}

/* The n best tokens by raw logit. */
static __device__ void put_top(struct part *c, struct sample_out *out, const float *l, int vocab,
                               uint64_t mine, int n, const struct lse &e)
{
    n = min(min(n, (int)LIM_LOGPROBS), vocab);
    if (n > 0)
        top_n(c, l, mine, n);
    if (c->rank)
        return;
    int k = (int)threadIdx.x;
    if (k < n) {
        out->top_id[k] = best_id(c->s->top[k]);
        out->top_logprob[k] = logprob(e, best_value(c->s->top[k]));
    }
    if (k == 0)
        out->n_top = max(n, 0);
}

/* ---- processing ---- */

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

static __device__ bool penalised(const struct slot_params *p)
{
    return p->repetition != 1.0f || p->presence != 0.0f || p->frequency != 0.0f;
}

/* Whether anything can differ from the raw logits. */
static __device__ bool processed(const struct slot_params *p, int out_index)
{
    return penalised(p) || p->n_bias > 0 || (out_index < p->min_out && p->n_stop > 0);
}

/* Penalties, bias and the min_out mask on the block's part of z. */
static __device__ void process(const struct op_sample &a, int row, struct part *c)
{
    int slot = a.rows.slot[row], pos = a.rows.pos[row];
    const struct slot_params *p = &a.s.params[slot];
    int words = (a.s.vocab + 31) / 32;
    const uint32_t *seen = a.s.seen + (int64_t)slot * words;
    const uint16_t *count = a.s.count + (int64_t)slot * a.s.vocab;
    float *z = c->z;
    __syncthreads();
    if (penalised(p)) {
        /* drafted tokens on the path to this row are not in seen and count yet */
        int32_t *path = c->s->path;
        int n_path = min(max(pos - (p->n_prompt + a.s.n_out[slot]) + 1, 0), LIM_ROWS_PER_REQ - 1);
        if (threadIdx.x == 0)
            for (int i = 0, r = row; i < n_path; i++, r = r < 0 ? r : a.rows.parent[r])
                path[i] = r < 0 ? -1 : a.rows.tok[r];
        __syncthreads();
        for (int i = c->lo + (int)threadIdx.x; i < c->hi; i += T) {
            int drafted = n_path ? in_list(path, n_path, i) : 0;
            if (drafted || seen[i / 32] >> (i & 31) & 1)
                penalise(z, i, p, count[i] + drafted);
        }
        __syncthreads();
    }
    for (int i = (int)threadIdx.x; i < p->n_bias; i += T)
        if (p->bias_id[i] >= c->lo && p->bias_id[i] < c->hi)
            atomicAdd(&z[p->bias_id[i]], p->bias[i]);
    __syncthreads();
    if (pos + 1 - p->n_prompt < p->min_out)
        for (int i = (int)threadIdx.x; i < p->n_stop; i += T)
            if (p->stop[i] >= c->lo && p->stop[i] < c->hi)
                z[p->stop[i]] = -INFINITY;
    __syncthreads();
}

/* ---- cuts ---- */

static __device__ __forceinline__ bool kept(float v, int i, const struct cut &c)
{
    return v > c.v || (v == c.v && i <= c.id);
}

static __device__ __forceinline__ int bin_of(float v, float max)
{
    float t = (max - v) * 64.0f;
    return t < (float)(BINS - 1) ? (int)t : BINS - 1;
}

/* What is summed up to a cut: probability (unnormalised, in units of 2^-44) or tokens. */
struct measure {
    bool mass;
    float max;
    struct cut in; /* mass: of these only */
};

static __device__ __forceinline__ uint64_t weight_of(const struct measure &m, float v)
{
    return m.mass ? (uint64_t)(fm_exp(v - m.max) * 0x1p44f) : 1;
}

static __device__ __forceinline__ uint64_t weight_at(const struct measure &m, float v, int i)
{
    return m.mass && !kept(v, i, m.in) ? 0 : weight_of(m, v);
}

/* Sum over the elements from key `least` on that are equal to or above it; `equal`: equal ones up
 * to id `to` are counted instead. */
static __device__ uint64_t sum_over(struct part *c, const struct measure &m, uint32_t least,
                                    bool equal, int to)
{
    uint64_t sum = 0;
    each4<1>(c, c->z, [&](int i, float *x) {
        for (int j = 0; j < 4; j++) {
            if (i + j >= c->hi)
                continue;
            uint32_t k = key_of(x[j]);
            if (equal)
                sum += k == least && i + j <= to && (!m.mass || kept(x[j], i + j, m.in));
            else if (k >= least)
                sum += weight_at(m, x[j], i + j);
        }
    });
    return cluster_sum(c, sum, NULL);
}

/* The cut by bisection, for when very many values fall into the cut's bin. */
static __device__ struct cut bisect(struct part *c, const struct measure &m, uint64_t want, int n)
{
    uint32_t lo = 0, hi = 0xffffffffu; /* largest key with at least `want` from it on */
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2 + 1;
        if (sum_over(c, m, mid, false, 0) >= want)
            lo = mid;
        else
            hi = mid - 1;
    }
    struct cut r = {key_value(lo), 0};
    uint64_t above = lo == 0xffffffffu ? 0 : sum_over(c, m, lo + 1, false, 0);
    uint64_t each = weight_of(m, r.v), equal = sum_over(c, m, lo, true, n);
    uint64_t need = each ? (want - above + each - 1) / each : equal;
    need = need < 1 ? 1 : need > equal ? equal : need;
    int from = 0, to = n - 1; /* smallest id with `need` equals up to it */
    while (from < to) {
        int mid = (from + to) / 2;
        if (sum_over(c, m, lo, true, mid) >= need)
            to = mid;
        else
            from = mid + 1;
    }
    r.id = from;
    return r;
}

/* The bin in which the running sum over all bins reaches `want`, into s->bin, and the sum before it
 * into s->run. Every block has added up its share of the bins; `parts`: the shares' sums. */
static __device__ void find_bin(struct part *c, const uint64_t *parts, uint64_t want)
{
    struct shared *s = c->s;
    int share = BINS / c->size, lane = threadIdx.x & 31, q = share / 32; /* q % 4 == 0 */
    uint64_t mine = 0;
    if (threadIdx.x >= 32)
        return;
    uint64_t t = lane < c->size ? *peer(parts, lane) : 0, upto = t;
    for (int o = 1; o < 32; o <<= 1) {
        uint64_t u = __shfl_up_sync(0xffffffffu, upto, o);
        upto += lane >= o ? u : 0;
    }
    unsigned there = __ballot_sync(0xffffffffu, lane == c->size - 1 || upto >= want);
    int owner = __ffs(there) - 1;
    uint64_t run = __shfl_sync(0xffffffffu, upto - t, owner);
    const uint64_t *h = peer(s->hist, owner) + owner * share + lane * q;
#pragma unroll 4
    for (int b = 0; b < q; b++)
        mine += h[b];
    upto = mine;
    for (int o = 1; o < 32; o <<= 1) {
        uint64_t u = __shfl_up_sync(0xffffffffu, upto, o);
        upto += lane >= o ? u : 0;
    }
    uint64_t before = run + upto - mine;
    if (before >= want || before + mine < want)
        return;
    int b = 0;
    for (bool found = false; !found && b < q;) {
        uint64_t u[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            u[i] = h[b + i];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            found |= before + u[i] >= want;
            if (!found) {
                before += u[i];
                b++;
            }
        }
    }
    s->bin = owner * share + lane * q + b;
    s->run = before;
}

/* *sum += w in shared memory, as 32-bit atomics with a carry: there are no wider ones that add. */
static __device__ __forceinline__ void hist_add(uint64_t *sum, uint64_t w)
{
    uint32_t *half = (uint32_t *)sum, low = (uint32_t)w, high = (uint32_t)(w >> 32);
    uint32_t old = atomicAdd(&half[0], low);
    high += old + low < old;
    if (high)
        atomicAdd(&half[1], high);
}

/* The first token by rank up to which the measure reaches k tokens, or the share p of the whole. It
 * is not below `floor`; `total`: the whole, 0: what is not below floor. */
static __device__ struct cut find_cut(struct part *c, const struct measure &m, int n, int k,
                                      float p, float floor, uint64_t total)
{
    struct shared *s = c->s;
    for (int b = (int)threadIdx.x; b < BINS; b += T)
        s->hist[b] = 0;
    if (threadIdx.x == 0)
        s->n_list = 0;
    __syncthreads();
    each4<1>(c, c->z, [&](int i, float *x) {
        for (int j = 0; j < 4; j++) {
            if (!(x[j] >= floor && i + j < c->hi))
                continue;
            uint64_t *sum = &s->hist[bin_of(x[j], m.max)];
            if (!m.mass)
                atomicAdd((uint32_t *)sum, 1u);
            else if (kept(x[j], i + j, m.in))
                hist_add(sum, weight_of(m, x[j]));
        }
    });
    cluster_sync(c);
    uint64_t sum = 0;
    int share = BINS / c->size;
    for (int b = c->rank * share + (int)threadIdx.x; b < (c->rank + 1) * share; b += T) {
        uint64_t t = 0;
        for (int r0 = 0; r0 < c->size; r0 += 8)
#pragma unroll
            for (int r = r0; r < r0 + 8; r++)
                t += r < c->size ? *peer(&s->hist[b], r) : 0;
        s->hist[b] = t; /* nobody else reads this share of this block before the next barrier */
        sum += t;
    }
    const uint64_t *parts;
    sum = cluster_sum(c, sum, &parts);
    total = total ? total : sum;
    double part = ceil((double)p * (double)total);
    uint64_t want = m.mass ? (part < 1 ? 1 : (uint64_t)part) : (uint64_t)k;
    want = want < total ? want : total;
    find_bin(c, parts, want);
    __syncthreads();
    int bin = s->bin;
    each4<1>(c, c->z, [&](int i, float *x) {
        for (int j = 0; j < 4; j++)
            if (x[j] >= floor && i + j < c->hi && bin_of(x[j], m.max) == bin &&
                weight_at(m, x[j], i + j))
                list_add(s, pack_best(x[j], i + j));
    });
    cluster_sync(c);
    uint64_t *cand = s->hist, *weight = s->hist + LIST;
    int got = gather_lists(c, cand);
    cluster_sync(c); /* the lists may be used again */
    if (got > LIST)
        return bisect(c, m, want, n);
    for (int x = (int)threadIdx.x; x < got; x += T)
        weight[x] = weight_of(m, best_value(cand[x]));
    __syncthreads();
    for (int x = (int)threadIdx.x; x < got; x += T) {
        uint64_t before = s->run, me = cand[x];
        for (int y = 0; y < got; y++)
            before += cand[y] > me ? weight[y] : 0;
        if (before < want && before + weight[x] >= want) {
            s->cut.v = best_value(me);
            s->cut.id = best_id(me);
        }
    }
    __syncthreads();
    return s->cut;
}

/* Depths below the largest value at which the mass above is known before a cut is looked for. */
enum { N_DEPTH = 6 };
static __device__ __forceinline__ float depth(int i)
{
    return i < 4 ? 3.0f + 2.0f * (float)i : 4.0f * (float)i - 4.0f;
}

/* mass[0] += all of four elements (-infinity has none), mass[1 + i] += those down to depth(i). */
static __device__ __forceinline__ void add_mass(const struct measure &m, const float *x,
                                                uint64_t (&mass)[1 + N_DEPTH])
{
#pragma unroll
    for (int j = 0; j < 4; j++) {
        uint64_t w = weight_of(m, x[j]);
        mass[0] += w;
#pragma unroll
        for (int i = 0; i < N_DEPTH; i++)
            mass[1 + i] += x[j] >= m.max - depth(i) ? w : 0;
    }
}

/* At least k elements of the cluster are not below it; `max`: the largest of the thread's own. Of
 * as many groups of threads, each has its largest. */
static __device__ float not_above_kth(struct part *c, float max, int k)
{
    int width = 32;
    while (width > 1 && k > T / width * c->size)
        width >>= 1;
    if (k > T / width * c->size)
        return -INFINITY;
    uint32_t v = key_of(max);
    for (int o = width / 2; o > 0; o >>= 1)
        v = umax(v, __shfl_xor_sync(0xffffffffu, v, o));
    v = __reduce_min_sync(0xffffffffu, v);
    return key_value(~(uint32_t)cluster_best(c, (uint64_t)~v));
}

/* ---- what a row draws from ---- */

/* A row's processed values, in the parts' z, and what of them is kept; `point`: `best` has all of
 * the mass, and z may be anything. */
struct target {
    float max, min_p;
    int best, bad;
    struct cut cut;
    bool point;
};

/* The raw row, for log probabilities. */
struct raw {
    bool want;
    struct lse lse;
    uint64_t mine; /* the best of the thread's elements */
};

static __device__ struct target target_of(const struct op_sample &a, const float *l, int row,
                                          struct part *c, struct raw *raw)
{
    const struct slot_params *p = &a.s.params[a.rows.slot[row]];
    bool change = processed(p, a.rows.pos[row] + 1 - p->n_prompt);
    struct scan r = scan_begin();
    each4<4>(c, l, [&](int i, float *x) {
        scan4(&r, i, x, raw->want);
        put4(c, i, x);
    });
    struct stat s = scan_stat(c, &r);
    raw->mine = s.arg;
    s = cluster_stat(c, s, raw->want);
    if (raw->want)
        raw->lse = lse_of(&s);
    int bad = s.bad;
    if (change) {
        process(a, row, c);
        r = scan_begin();
        each4<1>(c, c->z, [&](int i, float *x) { /* penalties of infinite logits make NaN too */
                                                 scan4(&r, i, x, false);
                                                 put4(c, i, x);
        });
        s = cluster_stat(c, scan_stat(c, &r), false);
    }
    struct target t = {best_value(s.arg),    p->min_p, best_id(s.arg), bad,
                       {-INFINITY, a.vocab}, true};
    if (p->temperature < 1e-5f || !(fabsf(t.max) < INFINITY))
        return t;
    t.max = t.max / p->temperature;
    if (!(fabsf(t.max) < INFINITY))
        return t;
    t.point = false;
    float heat = p->temperature, floor = -INFINITY;
    bool top_k = p->top_k > 0 && p->top_k < a.vocab, top_p = p->top_p < 1.0f;
    struct measure m = {true, t.max, t.cut};
    uint64_t mass[1 + N_DEPTH] = {};
    each4<1>(c, c->z, [&](int i, float *x) {
        for (int j = 0; j < 4; j++)
            x[j] = x[j] / heat;
        put4(c, i, x);
        if (top_p && !top_k)
            add_mass(m, x, mass);
    });
    if (top_k) {
        floor = not_above_kth(c, r.max, p->top_k) / heat;
        m.mass = false;
        t.cut = find_cut(c, m, a.vocab, p->top_k, 0, floor, 0);
        m.mass = true;
        m.in = t.cut;
        floor = t.cut.v;
    } else if (top_p) {
        cluster_sums(c, mass);
        double want = ceil((double)p->top_p * (double)mass[0]);
        for (int i = N_DEPTH - 1; i >= 0; i--)
            if ((double)mass[1 + i] >= want)
                floor = t.max - depth(i);
    }
    if (top_p)
        t.cut = find_cut(c, m, a.vocab, 0, p->top_p, floor, mass[0]);
    return t;
}

static __device__ __forceinline__ bool in_target(const struct target &t, float v, int i)
{
    return kept(v, i, t.cut) && (i == t.best || !(fm_exp(v - t.max) < t.min_p));
}

/* ---- draws ---- */

struct draw {
    uint64_t seed, best;
    int pos;
    float heat, scale; /* the values are x / heat, about x * scale */
    float top;         /* some value plus its noise, here or in another lane */
};

/* The largest noise that these bits can be, and a little: -log(-log u) <= -log(1 - u). */
static __device__ __forceinline__ float noise_bound(uint32_t bits)
{
    float q = fmaf((float)~bits, 0x1p-32f, 0x1p-33f);
    return fmaf(-0.6931472f, __log2f(q), 3e-4f);
}

/* Ranks four elements by value plus noise. The noise is computed where it may win: rounded addition
 * is monotonic, so leaving out what a bound above it cannot lift to `top` changes nothing. `may` is
 * asked first, `keep` at last. */
template <class M, class K>
static __device__ __forceinline__ void draw4(struct draw *d, int i, const float *x, M may, K keep)
{
    float had = d->top;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        if (!may(x[j], i + j))
            continue;
        float v = x[j] * d->scale, slack = fabsf(v) * 1e-6f;
        if (!(v + slack + FM_GUMBEL_MAX >= d->top))
            continue;
        uint32_t bits = fm_random(d->seed, d->pos, i + j, FM_TARGET);
        if (!(v + slack + noise_bound(bits) >= d->top))
            continue;
        v = x[j] / d->heat;
        if (!keep(v, i + j))
            continue;
        v = v + fm_gumbel(bits);
        uint64_t w = pack_best(v, i + j);
        d->best = w > d->best ? w : d->best;
        d->top = v > d->top ? v : d->top;
    }
    if (__any_sync(0xffffffffu, d->top > had))
        d->top = key_value(__reduce_max_sync(0xffffffffu, key_of(d->top)));
}

/* One pass over the logits: no processing, no cuts. */
static __device__ struct target plain_row(const struct slot_params *p, const float *l, int pos,
                                          int n, struct part *c, struct raw *raw)
{
    bool greedy = p->temperature < 1e-5f;
    struct draw d = {p->seed, 0, pos, p->temperature, 1 / p->temperature, -INFINITY};
    struct scan r = scan_begin();
    if (greedy)
        each4<4>(c, l, [&](int i, float *x) { scan4(&r, i, x, raw->want); });
    else
        each4<2>(c, l, [&](int i, float *x) {
            scan4(&r, i, x, raw->want);
            draw4(
                &d, i, x, [](float, int) { return true; }, [](float, int) { return true; });
        });
    struct stat s = scan_stat(c, &r);
    raw->mine = s.arg;
    s.draw = d.best;
    s = cluster_stat(c, s, raw->want);
    if (raw->want)
        raw->lse = lse_of(&s);
    struct target t = {best_value(s.arg), 0, best_id(s.arg), s.bad, {-INFINITY, n}, true};
    if (!greedy && fabsf(t.max) < INFINITY && fabsf(t.max / p->temperature) < INFINITY)
        t.best = best_id(s.draw);
    return t;
}

/* The kept value that is largest with its noise. */
static __device__ int draw_kept(const struct target &t, const struct slot_params *p, int pos,
                                struct part *c)
{
    float top = t.max + fm_noise(p->seed, pos, t.best);
    struct draw d = {p->seed, 0, pos, 1, 1, top};
    each4<1>(c, c->z, [&](int i, float *x) {
        draw4(
            &d, i, x, [&](float v, int id) { return kept(v, id, t.cut); },
            [&](float v, int id) { return in_target(t, v, id); });
    });
    uint64_t best = cluster_best(c, d.best);
    return best ? best_id(best) : t.best;
}

static __device__ __forceinline__ int row_of(const struct op_sample &a, int m)
{
    int row = a.idx ? a.idx[m] : m;
    return row < 0 || a.rows.slot[row] <= 0 || a.rows.tok[row] < 0 ? -1 : row;
}

/* One pass over the logits is not enough for the row. */
static __device__ bool is_hard(const struct op_sample &a, int row)
{
    const struct slot_params *p = &a.s.params[a.rows.slot[row]];
    return processed(p, a.rows.pos[row] + 1 - p->n_prompt) ||
           (p->temperature >= 1e-5f &&
            ((p->top_k > 0 && p->top_k < a.vocab) || p->top_p < 1.0f || p->min_p > 0));
}

static __device__ void put_row(const struct op_sample &a, int m, struct part *c,
                               const struct target &t, const struct raw &raw, int n_logprobs)
{
    struct sample_out *out = &a.out[m];
    const float *l = a.logits + m * a.ldl;
    if (c->rank == 0 && threadIdx.x == 0) {
        out->token = t.best;
        out->bad = t.bad;
        if (raw.want)
            out->logprob = logprob(raw.lse, clean(l[t.best]));
    }
    if (raw.want)
        put_top(c, out, l, a.vocab, raw.mine, n_logprobs, raw.lse);
    cluster_sync(c); /* nobody goes on while others read its shared memory */
}

/* A cluster a row; leaves the hard ones. */
__global__ void __launch_bounds__(T, 3) sample_plain_kernel(struct op_sample a)
{
    __shared__ struct shared s;
    cuda_trigger();
    cuda_wait();
    int m = (int)blockIdx.x / cluster_size(), row = row_of(a, m);
    struct part c = part_of(&s, a.vocab, NULL, 0, NULL);
    if (c.rank == 0 && threadIdx.x == 0) {
        a.out[m].token = -1;
        a.out[m].logprob = NAN;
        a.out[m].n_top = a.out[m].bad = 0;
    }
    if (row < 0 || is_hard(a, row))
        return;
    const struct slot_params *p = &a.s.params[a.rows.slot[row]];
    struct raw raw = {p->n_logprobs >= 0, {0, 0}, 0};
    struct target t = plain_row(p, a.logits + m * a.ldl, a.rows.pos[row] + 1, a.vocab, &c, &raw);
    put_row(a, m, &c, t, raw, p->n_logprobs);
}

/* A cluster a row, those of the hard ones. */
__global__ void __launch_bounds__(T, 2) sample_hard_kernel(struct op_sample a, int room)
{
    extern __shared__ float4 smem4[];
    __shared__ struct shared s;
    cuda_trigger();
    cuda_wait();
    int m = (int)blockIdx.x / cluster_size(), row = row_of(a, m);
    if (row < 0 || !is_hard(a, row))
        return;
    const struct slot_params *p = &a.s.params[a.rows.slot[row]];
    struct part c = part_of(&s, a.vocab, (float *)smem4, room, a.work + (int64_t)m * 4 * a.vocab);
    struct raw raw = {p->n_logprobs >= 0, {0, 0}, 0};
    struct target t = target_of(a, a.logits + m * a.ldl, row, &c, &raw);
    if (!t.point)
        t.best = draw_kept(t, p, a.rows.pos[row] + 1, &c);
    put_row(a, m, &c, t, raw, p->n_logprobs);
}

extern "C" int cuda_do_sample(struct dev *d, const struct op_sample *a)
{
    struct row_fit plain = row_fit(d, a->m, a->vocab, false);
    struct row_fit hard = row_fit(d, a->m, a->vocab, true);
    TRY(row_launch(d, sample_plain_kernel, plain, a->m, *a));
    return row_launch(d, sample_hard_kernel, hard, a->m, *a, hard.room);
}

/* ---- ratio rejection: a cluster a request, its rows in order ---- */

static __device__ void put_sample(const struct op_reject &a, const struct part *c, int row,
                                  int32_t tok, const struct raw &raw)
{
    if (c->rank || threadIdx.x)
        return;
    a.sample[row].token = tok;
    if (raw.want)
        a.sample[row].logprob = logprob(raw.lse, clean(a.logits[row * a.ldl + tok]));
}

/* A draw from what p exceeds q by, -1 when that is nothing; p(i) of the kept set is exp / sum. */
static __device__ int draw_residual(const struct target &t, struct part *c, const float *q,
                                    double sum, uint64_t seed, int pos)
{
    uint64_t b = 0;
    each4<1>(c, c->z, [&](int i, float *x) {
        for (int j = 0; j < 4; j++) {
            if (i + j >= c->hi)
                continue;
            bool in = in_target(t, x[j], i + j);
            float p = in ? (float)((double)fm_exp(x[j] - t.max) / sum) : 0;
            float r = p - q[i + j];
            if (!(r >= FM_RESIDUAL_MIN))
                continue;
            float v = fm_log(r) + fm_gumbel(fm_random(seed, pos, i + j, FM_RESIDUAL));
            uint64_t w = pack_best(v, i + j);
            b = w > b ? w : b;
        }
    });
    b = cluster_best(c, b);
    return b ? best_id(b) : -1;
}

__global__ void __launch_bounds__(T, 2) reject_kernel(struct op_reject a, int room)
{
    extern __shared__ float4 smem4[];
    __shared__ struct shared s;
    cuda_trigger();
    cuda_wait();
    int i = (int)blockIdx.x / cluster_size(), slot = a.req_slot[i], row0 = a.req_row0[i];
    int n = a.vocab;
    if (!cuda_slot_ok(a.s, slot, a.req_gen[i]))
        return;
    const struct slot_params *p = &a.s.params[slot];
    if (p->spec_mode != SPEC_MODEL || !p->spec_ratio || p->temperature < 1e-5f)
        return;
    struct part c = part_of(&s, n, (float *)smem4, room, a.work + (int64_t)row0 * 4 * n);
    struct op_sample view = {};
    view.s = a.s;
    view.rows = a.rows;
    view.vocab = n;
    int most = min(a.req_n[i] - 1, a.q_steps);
    for (int j = 0; j < most; j++) {
        int row = row0 + j, x = a.rows.tok[row + 1], pos = a.rows.pos[row] + 1;
        const float *q = a.q + ((int64_t)slot * a.q_steps + j) * a.s.vocab;
        struct raw raw = {p->n_logprobs >= 0, {0, 0}, 0};
        struct target t = target_of(view, a.logits + row * a.ldl, row, &c, &raw);
        if (t.point || x < 0 || x >= n || !(q[x] > 0 && q[x] <= 1.001f))
            break;
        struct stat st = {0, 0, 0, 0}; /* the kept mass, and the value of x */
        each4<1>(&c, c.z, [&](int k, float *v) {
            for (int u = 0; u < 4; u++) {
                if (k + u < c.hi && in_target(t, v[u], k + u))
                    st.sum += (double)fm_exp(v[u] - t.max);
                if (k + u == x)
                    st.draw = pack_best(v[u], x);
            }
        });
        st = cluster_stat(&c, st, true);
        float vx = best_value(st.draw);
        float px = in_target(t, vx, x) ? (float)((double)fm_exp(vx - t.max) / st.sum) : 0;
        if (fm_coin(p->seed, pos) * (double)q[x] < (double)px) {
            put_sample(a, &c, row, x, raw);
            continue;
        }
        x = draw_residual(t, &c, q, st.sum, p->seed, pos);
        if (x >= 0)
            put_sample(a, &c, row, x, raw);
        break;
    }
    cluster_sync(&c);
}

extern "C" int cuda_do_reject(struct dev *d, const struct op_reject *a)
{
    struct row_fit f = row_fit(d, a->reqs, a->vocab, true);
    return row_launch(d, reject_kernel, f, a->reqs, *a, f.room);
}

__global__ void __launch_bounds__(T, 2) score_kernel(struct op_score a)
{
    __shared__ struct shared s;
    cuda_trigger();
    cuda_wait();
    int m = (int)blockIdx.x / cluster_size();
    struct part c = part_of(&s, a.vocab, NULL, 0, NULL);
    struct sample_out *out = &a.out[m];
    const float *l = a.logits + m * a.ldl;
    int32_t tok = a.tok[m];
    bool first = c.rank == 0 && threadIdx.x == 0;
    if (first) {
        out->token = tok;
        out->logprob = NAN;
        out->n_top = out->bad = 0;
    }
    if (tok < 0 || tok >= a.vocab)
        return;
    struct scan r = scan_begin();
    each4<4>(&c, l, [&](int i, float *x) { scan4(&r, i, x, true); });
    struct stat st = scan_stat(&c, &r);
    uint64_t mine = st.arg;
    st = cluster_stat(&c, st, true);
    struct lse e = lse_of(&st);
    if (first) {
        out->bad = st.bad;
        out->logprob = logprob(e, clean(l[tok]));
    }
    put_top(&c, out, l, a.vocab, mine, a.n_top[m], e);
    cluster_sync(&c);
}

extern "C" int cuda_do_score(struct dev *d, const struct op_score *a)
{
    struct row_fit f = row_fit(d, a->m, a->vocab, false);
    return row_launch(d, score_kernel, f, a->m, *a);
}
