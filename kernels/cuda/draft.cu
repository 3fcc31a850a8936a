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
    cuda_trigger();
    cuda_wait();
    if (bytes % 16 == 0)
        move_entries<uint4>(a, bytes / 16);
    else if (bytes % 4 == 0)
        move_entries<uint32_t>(a, bytes / 4);
    else
        move_entries<uint8_t>(a, bytes);
}

extern "C" int cuda_do_kv_move(struct dev *d, const struct op_kv_move *a)
{
    dim3 grid((unsigned)a->reqs, (unsigned)a->n_layer);
    return cuda_launch(d, kv_move_kernel, grid, 128, 0, *a, a->width * (int)dtype_size(a->dt));
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

/* A thread a request and token. */
__global__ void draft_begin_kernel(struct op_draft_begin a)
{
    const struct row_arrays &o = a.out;
    cuda_trigger();
    cuda_wait();
    cuda_stamp(a.stamp);
    pad_rows(o, a.src, a.reqs * a.each);
    for (int k = threadIdx.x; k < a.reqs * LIM_EMIT; k += blockDim.x) {
        int i = k / LIM_EMIT, j = k % LIM_EMIT, slot = a.req_slot[i], n = a.acc.n[i];
        int row0 = i * a.each, at = a.acc.len[i] + 1, r = row0 + j;
        bool ok = n > 0 && n <= a.each && drafts(a.s, slot, a.req_gen[i], SPEC_MODEL);
        if (j == 0) {
            a.tail[i] = ok ? row0 + n - 1 : -1;
            if (ok)
                filled(a.s, slot, at, at + n);
        }
        if (!ok || j >= n)
            continue;
        o.tok[r] = a.acc.tok[k];
        o.slot[r] = slot;
        o.req[r] = i;
        o.at[r] = at + j;
        o.pos[r] = at + j - a.shift;
        o.parent[r] = j ? r - 1 : -1;
        o.anc[r] = ((uint64_t)2 << j) - 1;
        o.row0[r] = at;
        a.src[r] = a.acc.row[k];
    }
}

extern "C" int cuda_do_draft_begin(struct dev *d, const struct op_draft_begin *a)
{
    return cuda_launch(d, draft_begin_kernel, 1, 1024, 0, *a);
}

/* One block; a warp a request, a lane a row. */
__global__ void draft_fill_kernel(struct op_draft_fill a)
{
    const struct row_arrays &o = a.out;
    int lane = threadIdx.x & 31;
    cuda_trigger();
    cuda_wait();
    pad_rows(o, a.src, a.rows);
    for (int i = threadIdx.x >> 5; i < a.reqs; i += blockDim.x >> 5) {
        int slot = a.req_slot[i], row0 = a.req_row0[i], n = a.req_n[i];
        bool ok = n > 0 && row0 + n <= a.rows && drafts(a.s, slot, a.req_gen[i], SPEC_MODEL);
        int first = ok ? max(a.in.at[row0], a.shift) : 0, end = ok ? a.in.at[row0] + n : 0;
        if (lane == 0) {
            a.keep_row[i] = ok ? row0 + n - 1 : -1;
            a.keep_slot[i] = ok ? slot : -1;
            if (ok && end > first)
                filled(a.s, slot, first, end);
        }
        for (int r = row0 + lane; ok && r < row0 + n; r += 32) {
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
    }
}

extern "C" int cuda_do_draft_fill(struct dev *d, const struct op_draft_fill *a)
{
    return cuda_launch(d, draft_fill_kernel, 1, 1024, 0, *a);
}

/* ---- choice ---- */

/* Nodes among [from, to) that rank before node x: by score, ties by the lower node. */
static __device__ int rank_of(const float *score, const int32_t *tok, int from, int to, int x)
{
    int n = 0;
    for (int y = from; y < to; y++)
        n += tok[y] >= 0 && (score[y] > score[x] || (score[y] == score[x] && y < x));
    return n;
}

/* The beams of request i and their rows; a block of at least topk^2 threads. */
static __device__ void next_beams(const struct op_draft_pick &a, int i)
{
    __shared__ uint64_t was[LIM_SPEC_TOPK];
    int t = (int)threadIdx.x, k = a.topk, x0 = draft_level(k, a.level);
    int x = x0 + t, end = draft_level(k, a.level + 1);
    const float *score = a.t.score + (int64_t)i * LIM_DRAFT_NODES;
    const int32_t *tok = a.t.tok + (int64_t)i * LIM_DRAFT_NODES;
    int32_t *beam = a.t.beam + i * LIM_SPEC_TOPK;
    uint64_t *anc = a.t.beam_anc + i * LIM_SPEC_TOPK;
    const struct row_arrays &o = a.out;
    if (t < k) {
        cuda_row_pad(o, i * k + t);
        a.src[i * k + t] = -1;
    }
    if (a.tail[i] < 0)
        return;
    int slot = a.req_slot[i], at0 = a.s.len[slot] + 1, bit0 = a.level * k;
    if (t < k) {
        was[t] = anc[t];
        beam[t] = -1;
        anc[t] = 0;
    }
    __syncthreads();
    if (x >= end || tok[x] < 0)
        return;
    int b = rank_of(score, tok, x0, end, x), up = a.level ? (x - x0) / k : 0, r = i * k + b;
    if (b >= k)
        return;
    uint64_t path = (a.level ? was[up] : 0) | (uint64_t)1 << (bit0 + b);
    beam[b] = x;
    anc[b] = path;
    if (at0 + a.level >= a.s.len_max)
        return;
    o.tok[r] = tok[x];
    o.slot[r] = slot;
    o.req[r] = i;
    o.at[r] = at0 + bit0 + b;
    o.pos[r] = at0 + a.level - a.shift;
    o.anc[r] = path;
    o.row0[r] = at0;
    a.src[r] = a.level ? i * k + up : a.tail[i];
}

/* The distribution that the values draw from, by target id. */
static __device__ void keep_q(const struct op_draft_pick &a, int slot, struct part *c,
                              const struct lse &e)
{
    float *q = a.q + ((int64_t)slot * a.q_steps + a.level) * a.s.vocab;
    double sum = exp(e.log_sum);
    for (int x = c->rank * T + (int)threadIdx.x; x < a.s.vocab; x += c->size * T)
        q[x] = 0;
    cluster_sync(c);
    each4<1>(c, c->z, [&](int i, float *v) {
        for (int j = 0; j < 4 && i + j < c->hi; j++) {
            int id = a.d2t ? a.d2t[i + j] : i + j;
            if (id < a.s.vocab)
                q[id] = (float)((double)fm_exp(v[j] - e.max) / sum);
        }
    });
}

/* The values of a logit row, what tokens are ranked by, into the parts' z. Returns their statistics
 * and, in `mine`, the best of the thread's own. */
static __device__ struct stat row_values(const struct op_draft_pick &a, int slot, int pos,
                                         const float *l, struct part *c, uint64_t *mine)
{
    const struct slot_params *p = &a.s.params[slot];
    bool greedy = p->temperature < 1e-5f, own = a.q && p->spec_ratio && !greedy;
    struct scan r = scan_begin();
    auto add_noise = [&](int i, float *x) {
        for (int j = 0; j < 4; j++) {
            int id = a.d2t && i + j < c->hi ? a.d2t[i + j] : i + j;
            x[j] += fm_gumbel(fm_random(p->seed, pos, id, own ? FM_DRAFT : FM_TARGET));
        }
    };
    each4<2>(c, l, [&](int i, float *x) {
        for (int j = 0; j < 4 && !greedy; j++)
            x[j] = clean(x[j]) / p->temperature;
        if (!greedy && !own)
            add_noise(i, x);
        scan4(&r, i, x, true);
        put4(c, i, x);
    });
    struct stat s = scan_stat(c, &r);
    *mine = s.arg;
    s = cluster_stat(c, s, true);
    if (!own)
        return s;
    keep_q(a, slot, c, lse_of(&s));
    r = scan_begin();
    each4<1>(c, c->z, [&](int i, float *x) {
        add_noise(i, x);
        scan4(&r, i, x, true);
        put4(c, i, x);
    });
    s = scan_stat(c, &r);
    *mine = s.arg;
    return cluster_stat(c, s, true);
}

/* A cluster a logit row: values, their log-sum-exp, the topk best. `alone`: the row's children are
 * all of the request's level, and the next beams are chosen here. */
__global__ void __launch_bounds__(T, 2)
    draft_pick_kernel(struct op_draft_pick a, int room, bool alone)
{
    extern __shared__ float4 smem4[];
    __shared__ struct shared s;
    cuda_trigger();
    cuda_wait();
    cuda_stamp(a.stamp);
    int m = (int)blockIdx.x / cluster_size(), k = a.topk, n = a.vocab;
    int i = a.level ? m / k : m, b = a.level ? m % k : 0;
    struct part c = part_of(&s, n, (float *)smem4, room, a.work + (int64_t)m * 4 * n);
    if (a.tail[i] < 0) {
        if (alone && c.rank == 0)
            next_beams(a, i);
        return;
    }
    int slot = a.req_slot[i], pos = a.s.len[slot] + 1 + a.level;
    int parent = a.level ? a.t.beam[i * LIM_SPEC_TOPK + b] : -1, got = 0;
    double base = parent >= 0 ? (double)a.t.score[(int64_t)i * LIM_DRAFT_NODES + parent] : 0;
    struct lse e = {0, 0};
    if (a.level == 0 || (parent >= 0 && pos - 1 < a.s.len_max)) {
        uint64_t mine;
        struct stat st = row_values(a, slot, pos, a.logits + m * a.ldl, &c, &mine);
        e = lse_of(&st);
        got = min(k, n);
        if (k > 1)
            top_n(&c, c.z, mine, got);
        else if (threadIdx.x == 0)
            s.top[0] = st.arg;
    }
    cluster_sync(&c); /* all have read the beams; nobody reads another's memory from here on */
    if (c.rank)
        return;
    int x = (int)threadIdx.x;
    if (x < k) {
        int64_t at = (int64_t)i * LIM_DRAFT_NODES + draft_level(k, a.level) + b * k + x;
        uint64_t top = x < got ? s.top[x] : 0;
        int id = best_id(top);
        double score = base + ((double)best_value(top) - (double)e.max - e.log_sum);
        bool real = top && fabsf((float)score) < INFINITY;
        a.t.tok[at] = !real ? -1 : a.d2t ? a.d2t[id] : id;
        a.t.parent[at] = parent;
        a.t.score[at] = real ? (float)score : -INFINITY;
    }
    __syncthreads();
    if (alone)
        next_beams(a, i);
}

__global__ void draft_beams_kernel(struct op_draft_pick a)
{
    cuda_trigger();
    cuda_wait();
    next_beams(a, (int)blockIdx.x);
}

extern "C" int cuda_do_draft_pick(struct dev *d, const struct op_draft_pick *a)
{
    static_assert((int)T >= (int)LIM_SPEC_TOPK * (int)LIM_SPEC_TOPK, "a thread for every child");
    int k = a->topk, rows = a->level ? a->reqs * k : a->reqs;
    if (k > LIM_SPEC_TOPK || draft_level(k, a->level + 1) > LIM_DRAFT_NODES ||
        (!a->last && (a->level + 1) * k > 64) || (a->q && (k > 1 || a->level >= a->q_steps)))
        return E_UNSUPPORTED;
    bool alone = k == 1 || a->level == 0;
    struct row_fit f = row_fit(d, rows, a->vocab, true);
    int r = row_launch(d, draft_pick_kernel, f, rows, *a, f.room, alone && !a->last);
    if (r < 0 || a->last || alone)
        return r;
    return cuda_launch(d, draft_beams_kernel, (unsigned)a->reqs,
                       (unsigned)cuda_div_up(k * k, 32) * 32, 0, *a);
}

/* ---- the nodes of the next verify: one block a request, a thread a candidate ---- */

__global__ void __launch_bounds__(LIM_DRAFT_NODES) draft_build_kernel(struct op_draft_build a)
{
    __shared__ float score[LIM_DRAFT_NODES];
    __shared__ int32_t tok[LIM_DRAFT_NODES], row_of[LIM_DRAFT_NODES];
    __shared__ int32_t up_of[LIM_ROWS_PER_REQ];
    int i = blockIdx.x, n = draft_level(a.topk, a.levels), x = threadIdx.x;
    cuda_trigger();
    cuda_wait();
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
    int n = draft_level(a->topk, a->levels);
    if (a->rows > LIM_ROWS_PER_REQ || n > LIM_DRAFT_NODES)
        return E_UNSUPPORTED;
    return cuda_launch(d, draft_build_kernel, (unsigned)a->reqs, (unsigned)cuda_div_up(n, 32) * 32,
                       0, *a);
}

/* ---- prompt lookup: one block a request ---- */

/* The best match that goes on with none of the taken tokens: its length, then where it ends, in one
 * word, so that the longest and of those the latest is the largest; 0: there is none. */
static __device__ uint64_t best_match(const struct op_draft_ngram &a, const int32_t *h, int last,
                                      const int32_t *taken, int n_taken, uint64_t *part)
{
    int t = (int)threadIdx.x;
    int32_t tail = h[last];
    uint64_t best = 0;
    for (int e = t; e < last; e += T) {
        if (h[e] != tail)
            continue;
        bool is_taken = false;
        for (int c = 0; c < n_taken; c++)
            is_taken |= taken[c] == h[e + 1];
        int n = 1;
        while (n < a.n_max && n <= e && h[e - n] == h[last - n])
            n++;
        uint64_t w = (uint64_t)n << 32 | (uint32_t)e;
        best = n >= a.n_min && !is_taken && w > best ? w : best;
    }
    for (int o = 16; o > 0; o >>= 1) {
        uint64_t w = __shfl_xor_sync(0xffffffffu, best, o);
        best = w > best ? w : best;
    }
    __syncthreads(); /* the words of the chain before have been read */
    if ((t & 31) == 0)
        part[t >> 5] = best;
    __syncthreads();
    for (int w = 0; w < WARPS; w++)
        best = part[w] > best ? part[w] : best;
    return best;
}

__global__ void __launch_bounds__(T) draft_ngram_kernel(struct op_draft_ngram a)
{
    __shared__ uint64_t part[WARPS];
    cuda_trigger();
    cuda_wait();
    int i = blockIdx.x, slot = a.req_slot[i], t = (int)threadIdx.x;
    const struct slot_arrays &s = a.s;
    if (!drafts(s, slot, a.req_gen[i], SPEC_NGRAM))
        return;
    const int32_t *h = s.hist + (int64_t)slot * s.len_max;
    int last = s.len[slot], left = s.params[slot].spec_max, rows = 1;
    int32_t taken[LIM_SPEC_TOPK];
    for (int c = 0; c <= a.more; c++) {
        uint64_t best = best_match(a, h, last, taken, c, part);
        int n = min(c ? a.each : a.steps, left), from = (int)(uint32_t)best + 1;
        if (!best || n <= 0)
            break;
        taken[c] = h[from];
        if (t < n) { /* past the root the chain goes on with itself */
            int64_t at = (int64_t)slot * LIM_ROWS_PER_REQ + rows - 1 + t;
            s.draft[at] = h[from + t % (last + 1 - from)];
            s.parent[at] = t ? rows + t - 1 : 0;
            s.anc[at] = ((((uint64_t)2 << t) - 1) << rows) | 1;
        }
        rows += n;
        left -= n;
    }
    if (t == 0)
        s.n_rows[slot] = rows;
}

extern "C" int cuda_do_draft_ngram(struct dev *d, const struct op_draft_ngram *a)
{
    if (draft_ngram_nodes(a) >= LIM_ROWS_PER_REQ || a->n_min < 1 || a->more >= LIM_SPEC_TOPK)
        return E_UNSUPPORTED;
    return cuda_launch(d, draft_ngram_kernel, (unsigned)a->reqs, T, 0, *a);
}

/* ---- notes for the host ---- */

__global__ void spec_note_kernel(struct op_spec_note a)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    cuda_trigger();
    cuda_wait();
    cuda_stamp(a.stamp);
    if (i >= a.reqs)
        return;
    int slot = a.req_slot[i];
    a.ring[*a.step % a.ring_depth * a.ring_stride + i].n_next =
        cuda_slot_ok(a.s, slot, a.req_gen[i]) ? a.s.n_rows[slot] : 0;
}

extern "C" int cuda_do_spec_note(struct dev *d, const struct op_spec_note *a)
{
    return cuda_launch(d, spec_note_kernel, (unsigned)cuda_div_up(a->reqs, 128), 128, 0, *a);
}

__global__ void stamp_kernel(struct op_stamp a)
{
    cuda_trigger();
    cuda_wait();
    cuda_stamp(a);
}

extern "C" int cuda_do_stamp(struct dev *d, const struct op_stamp *a)
{
    return cuda_launch(d, stamp_kernel, 1, 1, 0, *a);
}
