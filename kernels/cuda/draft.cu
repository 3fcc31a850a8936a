/* Speculation on the device, with the CPU device's rules (kernels/cpu/draft.c): cache moves, the
 * drafter's rows, choice among its logits, the next verify's nodes, prompt lookup. Choices are made
 * by counting who ranks before whom, in parallel, so that no thread walks a list of candidates. */
#include "kernels/cuda/rank.cuh"

/* ---- caches after a tree ---- */

/* One block a request and layer. Every thread moves the same words of all entries in their order,
 * so an entry is read before it is written. */
template <class W> static __device__ void move_entries(const struct op_kv_move &a, int words)
{
    int i = blockIdx.x;
    W *plane = (W *)a.cache + (int64_t)blockIdx.y * a.layer_rows * words;
    const int32_t *table = a.table + (int64_t)a.req_slot[i] * a.pages_max;
    for (int j = 0; j < a.acc.n[i]; j++) {
        int to = a.acc.len[i] + j;
        int from = a.acc.len[i] + a.acc.row[(int64_t)i * LIM_EMIT + j] - a.req_row0[i];
        if (from == to || from / a.page >= a.pages_max)
            continue;
        const W *src = plane + ((int64_t)table[from / a.page] * a.page + from % a.page) * words;
        W *dst = plane + ((int64_t)table[to / a.page] * a.page + to % a.page) * words;
        for (int w = threadIdx.x; w < words; w += blockDim.x)
            dst[w] = src[w];
    }
}

__global__ void kv_move_kernel(struct op_kv_move a, int bytes)
{
    if (bytes % 4 == 0)
        move_entries<uint32_t>(a, bytes / 4);
    else
        move_entries<uint8_t>(a, bytes);
}

extern "C" int cuda_do_kv_move(struct dev *d, const struct op_kv_move *a)
{
    dim3 grid((unsigned)a->reqs, (unsigned)a->n_layer);
    kv_move_kernel<<<grid, 256, 0, d->stream>>>(*a, a->width * (int)dtype_size(a->dt));
    return cuda_launched(d);
}

/* ---- rows of the drafter: one block ---- */

static __device__ bool drafts(const struct slot_arrays &s, int32_t slot, int32_t gen,
                              enum spec_mode mode)
{
    return cuda_slot_ok(s, slot, gen) && s.params[slot].spec_mode == (int32_t)mode;
}

/* Positions [from, to) of the slot are filled; what lay before a gap is lost. */
static __device__ void filled(const struct slot_arrays &s, int slot, int from, int to)
{
    if (from > s.drf_next[slot])
        s.drf_first[slot] = from;
    s.drf_next[slot] = to;
}

static __device__ void pad_rows(const struct row_arrays &o, int32_t *src, int rows)
{
    for (int r = threadIdx.x; r < rows; r += blockDim.x) {
        cuda_row_pad(o, r);
        src[r] = -1;
    }
    __syncthreads();
}

__global__ void draft_begin_kernel(struct op_draft_begin a)
{
    const struct row_arrays &o = a.out;
    pad_rows(o, a.src, a.rows);
    for (int i = threadIdx.x; i < a.reqs; i += blockDim.x) {
        int slot = a.req_slot[i], n = a.acc.n[i];
        int row0 = a.req_row0 ? a.req_row0[i] : i, at = a.acc.len[i] + 1;
        a.tail[i] = -1;
        if (n <= 0 || row0 + n > a.rows || !drafts(a.s, slot, a.req_gen[i], SPEC_MODEL))
            continue;
        for (int j = 0; j < n; j++) {
            int r = row0 + j;
            o.tok[r] = a.acc.tok[(int64_t)i * LIM_EMIT + j];
            o.slot[r] = slot;
            o.req[r] = i;
            o.at[r] = at + j;
            o.pos[r] = at + j - a.shift;
            o.parent[r] = j ? r - 1 : -1;
            o.anc[r] = ((uint64_t)2 << j) - 1;
            o.row0[r] = at;
            a.src[r] = a.acc.row[(int64_t)i * LIM_EMIT + j];
        }
        a.tail[i] = row0 + n - 1;
        filled(a.s, slot, at, at + n);
    }
}

extern "C" int cuda_do_draft_begin(struct dev *d, const struct op_draft_begin *a)
{
    draft_begin_kernel<<<1, 256, 0, d->stream>>>(*a);
    return cuda_launched(d);
}

__global__ void draft_fill_kernel(struct op_draft_fill a)
{
    const struct row_arrays &o = a.out;
    pad_rows(o, a.src, a.rows);
    for (int i = threadIdx.x; i < a.reqs; i += blockDim.x) {
        int slot = a.req_slot[i], row0 = a.req_row0[i], n = a.req_n[i];
        a.keep_row[i] = a.keep_slot[i] = -1;
        if (n <= 0 || row0 + n > a.rows || !drafts(a.s, slot, a.req_gen[i], SPEC_MODEL))
            continue;
        int first = max(a.in.at[row0], a.shift), end = a.in.at[row0] + n;
        for (int r = row0; r < row0 + n; r++) {
            int at = a.in.at[r];
            if (at < a.shift)
                continue;
            o.tok[r] = a.in.tok[r];
            o.slot[r] = slot;
            o.req[r] = i;
            o.at[r] = o.row0[r] = at;
            o.pos[r] = at - a.shift;
            o.parent[r] = r > row0 && at > first ? r - 1 : -1;
            o.anc[r] = 1;
            a.src[r] = r > row0 ? r - 1 : a.saved0 + slot;
        }
        a.keep_row[i] = row0 + n - 1;
        a.keep_slot[i] = slot;
        if (end > first)
            filled(a.s, slot, first, end);
    }
}

extern "C" int cuda_do_draft_fill(struct dev *d, const struct op_draft_fill *a)
{
    draft_fill_kernel<<<1, 256, 0, d->stream>>>(*a);
    return cuda_launched(d);
}

/* ---- choice ---- */

/* The distribution that values v draw from, by target id. */
static __device__ void keep_q(const struct op_draft_pick &a, int slot, const float *v)
{
    float *q = a.q + ((int64_t)slot * a.q_steps + a.level) * a.s.vocab;
    struct lse e = row_lse(v, a.vocab);
    double sum = exp(e.log_sum);
    for (int x = threadIdx.x; x < a.s.vocab; x += T)
        q[x] = 0;
    __syncthreads();
    for (int x = threadIdx.x; x < a.vocab; x += T) {
        int id = a.d2t ? a.d2t[x] : x;
        if (id < a.s.vocab)
            q[id] = (float)((double)fm_exp(v[x] - e.max) / sum);
    }
    __syncthreads();
}

/* The values of a logit row: what tokens are ranked by. */
static __device__ void row_values(const struct op_draft_pick &a, int slot, int pos, const float *l,
                                  float *v)
{
    const struct slot_params *p = &a.s.params[slot];
    bool greedy = p->temperature < 1e-5f, own = a.q && p->spec_ratio && !greedy;
    for (int x = threadIdx.x; x < a.vocab; x += T) {
        float z = l[x] == l[x] ? l[x] : -INFINITY;
        v[x] = greedy ? z : z / p->temperature;
    }
    __syncthreads();
    if (own)
        keep_q(a, slot, v);
    if (!greedy)
        for (int x = threadIdx.x; x < a.vocab; x += T)
            v[x] += fm_gumbel(
                fm_random(p->seed, pos, a.d2t ? a.d2t[x] : x, own ? FM_DRAFT : FM_TARGET));
    __syncthreads();
}

/* One block a logit row: values, their log-sum-exp, the topk best by repeated best-below-the-last.
 */
__global__ void __launch_bounds__(T) draft_pick_kernel(struct op_draft_pick a)
{
    int m = blockIdx.x, k = a.topk, n = a.vocab;
    int i = a.level ? m / k : m, b = a.level ? m % k : 0;
    if (a.tail[i] < 0)
        return;
    int slot = a.req_slot[i], pos = a.s.len[slot] + 1 + a.level;
    int parent = a.level ? a.t.beam[i * LIM_SPEC_TOPK + b] : -1, got = 0;
    int64_t at = (int64_t)i * LIM_DRAFT_NODES + draft_level(k, a.level) + b * k;
    double base = parent >= 0 ? (double)a.t.score[(int64_t)i * LIM_DRAFT_NODES + parent] : 0;
    struct lse e = {0, 0};
    float *v = a.work + (int64_t)m * 4 * n;
    if (a.level == 0 || (parent >= 0 && pos - 1 < a.s.len_max)) {
        row_values(a, slot, pos, a.logits + m * a.ldl, v);
        e = row_lse(v, n);
        got = min(k, n);
    }
    uint64_t last = ~0ull;
    for (int c = 0; c < k; c++) {
        uint64_t best = 0;
        if (c < got) {
            for (int x = threadIdx.x; x < n; x += T) {
                uint64_t w = pack_best(v[x], x);
                best = w < last && w > best ? w : best;
            }
            last = block_best(best);
        }
        if (threadIdx.x)
            continue;
        int id = best_id(last);
        float top = key_value((uint32_t)(last >> 32));
        float score = c < got ? (float)(base + ((double)top - (double)e.max - e.log_sum)) : NAN;
        bool real = fabsf(score) < INFINITY;
        a.t.tok[at + c] = !real ? -1 : a.d2t ? a.d2t[id] : id;
        a.t.parent[at + c] = parent;
        a.t.score[at + c] = real ? score : -INFINITY;
    }
}

/* Nodes among [from, to) that rank before node x: by score, ties by the lower node. */
static __device__ int rank_of(const float *score, const int32_t *tok, int from, int to, int x)
{
    int n = 0;
    for (int y = from; y < to; y++)
        n += tok[y] >= 0 && (score[y] > score[x] || (score[y] == score[x] && y < x));
    return n;
}

/* One block of topk^2 (at most 256) threads a request. */
__global__ void draft_beams_kernel(struct op_draft_pick a)
{
    __shared__ uint64_t was[LIM_SPEC_TOPK];
    int i = blockIdx.x, k = a.topk, x0 = draft_level(k, a.level);
    int x = x0 + threadIdx.x, end = draft_level(k, a.level + 1);
    const float *score = a.t.score + (int64_t)i * LIM_DRAFT_NODES;
    const int32_t *tok = a.t.tok + (int64_t)i * LIM_DRAFT_NODES;
    int32_t *beam = a.t.beam + i * LIM_SPEC_TOPK;
    uint64_t *anc = a.t.beam_anc + i * LIM_SPEC_TOPK;
    const struct row_arrays &o = a.out;
    if (threadIdx.x < k) {
        cuda_row_pad(o, i * k + threadIdx.x);
        a.src[i * k + threadIdx.x] = -1;
    }
    if (a.tail[i] < 0)
        return;
    int slot = a.req_slot[i], at0 = a.s.len[slot] + 1, bit0 = a.level * k;
    if (threadIdx.x < k) {
        was[threadIdx.x] = anc[threadIdx.x];
        beam[threadIdx.x] = -1;
        anc[threadIdx.x] = 0;
    }
    __syncthreads();
    if (x >= end || tok[x] < 0)
        return;
    int b = rank_of(score, tok, x0, end, x), up = a.level ? (x - x0) / k : 0, r = i * k + b;
    if (b >= k)
        return;
    beam[b] = x;
    anc[b] = (a.level ? was[up] : 0) | (uint64_t)1 << (bit0 + b);
    if (at0 + a.level >= a.s.len_max)
        return;
    o.tok[r] = tok[x];
    o.slot[r] = slot;
    o.req[r] = i;
    o.at[r] = at0 + bit0 + b;
    o.pos[r] = at0 + a.level - a.shift;
    o.anc[r] = anc[b];
    o.row0[r] = at0;
    a.src[r] = a.level ? i * k + up : a.tail[i];
}

extern "C" int cuda_do_draft_pick(struct dev *d, const struct op_draft_pick *a)
{
    int k = a->topk, rows = a->level ? a->reqs * k : a->reqs;
    if (k > LIM_SPEC_TOPK || draft_level(k, a->level + 1) > LIM_DRAFT_NODES ||
        (!a->last && (a->level + 1) * k > 64) || (a->q && (k > 1 || a->level >= a->q_steps)))
        return E_UNSUPPORTED;
    draft_pick_kernel<<<(unsigned)rows, T, 0, d->stream>>>(*a);
    if (!a->last)
        draft_beams_kernel<<<(unsigned)a->reqs, (unsigned)(k * k), 0, d->stream>>>(*a);
    return cuda_launched(d);
}

/* ---- the nodes of the next verify: one block a request ---- */

__global__ void __launch_bounds__(T) draft_build_kernel(struct op_draft_build a)
{
    __shared__ float score[LIM_DRAFT_NODES];
    __shared__ int32_t tok[LIM_DRAFT_NODES], row_of[LIM_DRAFT_NODES];
    __shared__ int32_t up_of[LIM_ROWS_PER_REQ];
    int i = blockIdx.x, n = draft_level(a.topk, a.levels), x = threadIdx.x;
    if (a.tail[i] < 0)
        return;
    int slot = a.req_slot[i], most = min(a.rows - 1, max(a.s.params[slot].spec_max, 0));
    int64_t node = (int64_t)i * LIM_DRAFT_NODES + x;
    bool chosen = false;
    if (x < n) {
        score[x] = a.t.score[node];
        tok[x] = a.t.tok[node];
    }
    __syncthreads();
    if (x < n && tok[x] >= 0)
        chosen = rank_of(score, tok, 0, n, x) < most;
    row_of[x] = chosen;
    __syncthreads();
    int row = 1; /* in node order */
    for (int y = 0; y < x; y++)
        row += row_of[y] != 0;
    int total = __syncthreads_count(chosen);
    row_of[x] = chosen ? row : 0;
    __syncthreads();
    int up = 0;
    if (chosen) {
        int parent = a.t.parent[node];
        up = parent >= 0 && parent < x ? row_of[parent] : 0;
        up_of[row] = up;
    }
    __syncthreads();
    if (chosen) {
        uint64_t anc = 1;
        for (int r = row; r > 0; r = up_of[r])
            anc |= (uint64_t)1 << r;
        int64_t to = (int64_t)slot * LIM_ROWS_PER_REQ + row - 1;
        a.s.draft[to] = tok[x];
        a.s.parent[to] = up;
        a.s.anc[to] = anc;
    }
    if (x == 0)
        a.s.n_rows[slot] = 1 + total;
}

extern "C" int cuda_do_draft_build(struct dev *d, const struct op_draft_build *a)
{
    static_assert((int)T == (int)LIM_DRAFT_NODES, "a thread for every node");
    if (a->rows > LIM_ROWS_PER_REQ || draft_level(a->topk, a->levels) > LIM_DRAFT_NODES)
        return E_UNSUPPORTED;
    draft_build_kernel<<<(unsigned)a->reqs, T, 0, d->stream>>>(*a);
    return cuda_launched(d);
}

/* ---- prompt lookup: one block a request ---- */

__global__ void __launch_bounds__(T) draft_ngram_kernel(struct op_draft_ngram a)
{
    int i = blockIdx.x, slot = a.req_slot[i];
    const struct slot_arrays &s = a.s;
    if (!drafts(s, slot, a.req_gen[i], SPEC_NGRAM))
        return;
    const int32_t *h = s.hist + (int64_t)slot * s.len_max;
    int last = s.len[slot];
    uint64_t best = 0; /* match length, then where it ends: the longest, then the latest */
    for (int e = threadIdx.x; e < last; e += T) {
        int n = 0;
        while (n < a.n_max && n <= e && h[e - n] == h[last - n])
            n++;
        uint64_t w = (uint64_t)n << 32 | (uint32_t)e;
        best = n >= a.n_min && w > best ? w : best;
    }
    best = block_best(best);
    if (threadIdx.x)
        return;
    int n = best ? max(min(a.steps, s.params[slot].spec_max), 0) : 0;
    int from = (int)(uint32_t)best + 1;
    int32_t *draft = s.draft + (int64_t)slot * LIM_ROWS_PER_REQ;
    for (int k = 0; k < n; k++) {
        int64_t at = (int64_t)slot * LIM_ROWS_PER_REQ + k;
        draft[k] = from + k <= last ? h[from + k] : draft[from + k - last - 1];
        s.parent[at] = k;
        s.anc[at] = ((uint64_t)4 << k) - 1;
    }
    s.n_rows[slot] = 1 + n;
}

extern "C" int cuda_do_draft_ngram(struct dev *d, const struct op_draft_ngram *a)
{
    if (a->steps >= LIM_ROWS_PER_REQ || a->n_min < 1)
        return E_UNSUPPORTED;
    draft_ngram_kernel<<<(unsigned)a->reqs, T, 0, d->stream>>>(*a);
    return cuda_launched(d);
}

/* ---- notes for the host ---- */

__global__ void spec_note_kernel(struct op_spec_note a)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= a.reqs)
        return;
    int slot = a.req_slot[i];
    a.ring[*a.step % a.ring_depth * a.ring_stride + i].n_next =
        cuda_slot_ok(a.s, slot, a.req_gen[i]) ? a.s.n_rows[slot] : 0;
}

extern "C" int cuda_do_spec_note(struct dev *d, const struct op_spec_note *a)
{
    spec_note_kernel<<<(unsigned)cuda_div_up(a->reqs, 128), 128, 0, d->stream>>>(*a);
    return cuda_launched(d);
}

__global__ void stamp_kernel(struct op_stamp a)
{
    int64_t now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    a.out[*a.step % a.depth * a.stride + a.index] = now;
}

extern "C" int cuda_do_stamp(struct dev *d, const struct op_stamp *a)
{
    stamp_kernel<<<1, 1, 0, d->stream>>>(*a);
    return cuda_launched(d);
}
