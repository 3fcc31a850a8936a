/* Request slots and row lists on the device: the integer state machines of a step, with the same
 * rules as the CPU device's. Small kernels; what the CPU device treats as a broken
 * invariant is left out of the rows here (the planner's bounds make it impossible). */
#include "kernels/cuda/common.cuh"

static __device__ __forceinline__ int seen_words(const struct slot_arrays &s)
{
    return (s.vocab + 31) / 32;
}

/* Adds one to a saturating 16-bit count; rows of one slot may meet at a token. */
static __device__ void count_up(uint16_t *p)
{
    unsigned int *word = (unsigned int *)((uintptr_t)p & ~(uintptr_t)3);
    int shift = ((uintptr_t)p & 2) ? 16 : 0;
    unsigned int old = *word, seen;
    do {
        seen = old;
        if ((seen >> shift & 0xffffu) == 0xffffu)
            return;
        old = atomicCAS(word, seen, seen + (1u << shift));
    } while (old != seen);
}

static __device__ void note_token(const struct slot_arrays &s, int slot, int pos, int32_t tok,
                                  bool output)
{
    if (pos < 0 || pos >= s.len_max)
        return;
    s.hist[(int64_t)slot * s.len_max + pos] = tok;
    if (tok < 0 || tok >= s.vocab)
        return;
    atomicOr(&s.seen[(int64_t)slot * seen_words(s) + tok / 32], 1u << (tok & 31));
    if (output)
        count_up(&s.count[(int64_t)slot * s.vocab + tok]);
}

/* Block 0: stops, then starts, then page-table entries. The others: parameters of the starting
 * slots, and what they had seen and counted is cleared. */
__global__ void slot_update_kernel(struct op_slot_update a)
{
    cuda_trigger();
    cuda_wait();
    int n_start = *a.n_start;
    if (blockIdx.x == 0) {
        int n_stop = *a.n_stop, n_set = *a.n_set;
        for (int i = threadIdx.x; i < n_stop; i += blockDim.x)
            a.s.live[a.stop[i]] = 0;
        __syncthreads(); /* a slot may change hands in one step */
        for (int i = threadIdx.x; i < n_start; i += blockDim.x) {
            const struct slot_start *b = &a.start[i];
            int32_t slot = b->slot;
            a.s.gen[slot] = b->gen;
            a.s.live[slot] = 1;
            a.s.len[slot] = 0;
            a.s.root[slot] = -1;
            a.s.n_rows[slot] = 1;
            a.s.drf_first[slot] = a.s.drf_next[slot] = a.drf_begin;
            a.s.n_out[slot] = b->params.n_out;
        }
        for (int i = threadIdx.x; i < n_set; i += blockDim.x) {
            const struct page_set p = a.set[i];
            a.table[p.group][(int64_t)p.slot * a.pages_max[p.group] + p.index] = p.page;
        }
        return;
    }
    const int words = seen_words(a.s), more = (int)(sizeof(struct slot_params) / 4);
    int at = (int)((blockIdx.x - 1) * blockDim.x + threadIdx.x);
    int step = (int)((gridDim.x - 1) * blockDim.x);
    static_assert(sizeof(struct slot_params) % 4 == 0, "copied by words");
    for (int i = 0; i < n_start; i++) {
        int64_t slot = a.start[i].slot;
        const uint32_t *from = (const uint32_t *)&a.start[i].params;
        uint32_t *to = (uint32_t *)&a.s.params[slot];
        for (int j = at; j < more; j += step)
            to[j] = from[j];
        for (int j = at; j < words; j += step)
            a.s.seen[slot * words + j] = 0;
        for (int j = at; j < a.s.vocab; j += step)
            a.s.count[slot * a.s.vocab + j] = 0;
    }
}

extern "C" int cuda_do_slot_update(struct dev *d, const struct op_slot_update *a)
{
    return cuda_launch(d, slot_update_kernel, 65, 256, 0, *a);
}

/* Row `r` of the call: request i's j-th. */
static __device__ void build_row(const struct op_rows_build &a, int r, int i, int slot, int j)
{
    const struct slot_arrays &s = a.s;
    int64_t node = (int64_t)slot * LIM_ROWS_PER_REQ + j - 1;
    int len = s.len[slot];
    uint64_t anc = j ? s.anc[node] : 1;
    a.out.tok[r] = j ? s.draft[node] : s.root[slot];
    a.out.slot[r] = slot;
    a.out.req[r] = i;
    a.out.at[r] = len + j;
    a.out.parent[r] = j ? r - j + s.parent[node] : -1;
    a.out.anc[r] = anc;
    a.out.row0[r] = len;
    a.out.pos[r] = len + __popcll(anc) - 1;
}

/* One block of 1,024 threads: a prefix sum of the rows of up to 1,024 requests, then a thread a
 * row, which finds its request by bisection. */
__global__ void __launch_bounds__(1024) rows_build_kernel(struct op_rows_build a)
{
    __shared__ int upto[1024], part[32];
    int i = threadIdx.x, lane = i & 31, n = 0;
    cuda_trigger();
    cuda_wait();
    cuda_stamp(a.stamp);
    if (i < a.reqs) {
        int slot = a.req_slot[i];
        if (cuda_slot_ok(a.s, slot, a.req_gen[i])) {
            n = min(a.s.n_rows[slot], a.s.len_max - a.s.len[slot]);
            if (a.req_cap)
                n = min(n, a.req_cap[i]);
            n = max(n, 0);
        }
    }
    int sum = n;
    for (int o = 1; o < 32; o <<= 1) {
        int v = __shfl_up_sync(0xffffffffu, sum, o);
        sum += lane >= o ? v : 0;
    }
    if (lane == 31)
        part[i >> 5] = sum;
    __syncthreads();
    int before = __reduce_add_sync(0xffffffffu, lane < (i >> 5) ? part[lane] : 0);
    sum += before;
    upto[i] = sum;
    __syncthreads();
    int total = upto[1023];
    if (i < a.reqs) {
        a.req_row0[i] = sum - n;
        a.req_n[i] = sum > a.rows ? 0 : n;
    }
    for (int r = i; r < a.rows; r += 1024) {
        int lo = 0, hi = 1023; /* the first request whose rows end behind r */
        while (lo < hi) {
            int mid = (lo + hi) / 2;
            if (upto[mid] > r)
                hi = mid;
            else
                lo = mid + 1;
        }
        int row0 = lo ? upto[lo - 1] : 0;
        if (r >= total || upto[lo] > a.rows)
            cuda_row_pad(a.out, r);
        else
            build_row(a, r, lo, a.req_slot[lo], r - row0);
    }
}

extern "C" int cuda_do_rows_build(struct dev *d, const struct op_rows_build *a)
{
    if (a->reqs > 1024)
        return E_UNSUPPORTED;
    return cuda_launch(d, rows_build_kernel, 1, 1024, 0, *a);
}

__global__ void rows_note_kernel(struct op_rows_note a)
{
    int r = blockIdx.x * blockDim.x + threadIdx.x;
    cuda_trigger();
    cuda_wait();
    if (r >= a.rows || a.slot[r] <= 0 || a.tok[r] < 0)
        return;
    int32_t slot = a.slot[r];
    note_token(a.s, slot, a.pos[r], a.tok[r], a.pos[r] >= a.s.params[slot].n_prompt);
}

extern "C" int cuda_do_rows_note(struct dev *d, const struct op_rows_note *a)
{
    return cuda_launch(d, rows_note_kernel, (unsigned)cuda_div_up(a->rows, 128), 128, 0, *a);
}

__global__ void rows_place_kernel(struct op_rows_place a)
{
    int r = blockIdx.x * blockDim.x + threadIdx.x;
    cuda_trigger();
    cuda_wait();
    if (r < a.rows)
        cuda_row_place(a, r);
}

extern "C" int cuda_do_rows_place(struct dev *d, const struct op_rows_place *a)
{
    return cuda_launch(d, rows_place_kernel, (unsigned)cuda_div_up(a->rows, 128), 128, 0, *a);
}

/* ---- acceptance: a warp a request ---- */

static __device__ void copy_sample(struct sample_out *to, const struct sample_out *from)
{
    const int words = (int)(sizeof *to / 4);
    static_assert(sizeof *to % 4 == 0, "copied by words");
    for (int w = threadIdx.x & 31; w < words; w += 32)
        ((uint32_t *)to)[w] = ((const uint32_t *)from)[w];
}

/* How a request ends with its token `tok`, the (before + 1)-th of its output. */
static __device__ enum fin fin_of(const struct slot_params *p, int32_t tok, int before)
{
    static_assert((int)LIM_STOP_IDS <= 32, "a lane a stop id");
    int lane = threadIdx.x & 31;
    bool stop = lane < p->n_stop && p->stop[lane] == tok;
    if (__any_sync(0xffffffffu, stop) && before >= p->min_out)
        return FIN_STOP;
    if (before + 1 >= p->max_out || p->n_prompt + before + 1 >= p->len_max)
        return FIN_LENGTH;
    return FIN_NONE;
}

/* Emits sample t of row r as the at-th token. */
static __device__ void emit_row(const struct op_accept &a, int i, int slot, int len, int r,
                                const struct sample_out *t, int32_t tok, struct ring_rec *rec,
                                int at)
{
    copy_sample(&rec->tok[at], t);
    if (threadIdx.x & 31)
        return;
    a.out.row[(int64_t)i * LIM_EMIT + at] = r;
    a.out.tok[(int64_t)i * LIM_EMIT + at] = tok;
    note_token(a.s, slot, len + 1 + at, tok, true);
}

/* The path through the drafted rows, of which a lane holds two; returns the tokens emitted. */
static __device__ int accept_verify(const struct op_accept &a, int i, int slot, int len, int n_out,
                                    struct ring_rec *rec, enum fin *fin, int32_t *root)
{
    const struct slot_params *p = &a.s.params[slot];
    int row0 = a.req_row0[i], n = a.req_n[i], lane = threadIdx.x & 31, got = 0, deep = 0;
    int parent[2], sampled[2];
    int32_t tok[2];
    for (int h = 0; h < 2; h++) {
        int j = lane + 32 * h, r = row0 + j;
        bool in = j < n;
        parent[h] = in ? a.rows.parent[r] - row0 : -2;
        tok[h] = in ? a.rows.tok[r] : -1;
        sampled[h] = in ? a.sample[r].token : -1;
        deep = max(deep, in ? __popcll(a.rows.anc[r]) - 1 : 0);
    }
    for (int j = 0; j >= 0 && *fin == FIN_NONE && got < LIM_EMIT;) {
        int32_t t = __shfl_sync(0xffffffffu, j < 32 ? sampled[0] : sampled[1], j & 31);
        *fin = fin_of(p, t, n_out + got);
        emit_row(a, i, slot, len, row0 + j, &a.sample[row0 + j], t, rec, got++);
        *root = t;
        uint32_t low = __ballot_sync(0xffffffffu, lane > j && parent[0] == j && tok[0] == t);
        uint32_t high = __ballot_sync(0xffffffffu, lane + 32 > j && parent[1] == j && tok[1] == t);
        j = low ? __ffs(low) - 1 : high ? __ffs(high) + 31 : -1;
    }
    deep = __reduce_max_sync(0xffffffffu, deep);
    if (lane == 0) {
        rec->n_draft = n - 1;
        rec->n_accepted = got - 1;
        rec->n_deep = deep;
    }
    return got;
}

__global__ void accept_kernel(struct op_accept a)
{
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x) >> 5, lane = threadIdx.x & 31;
    cuda_trigger();
    cuda_wait();
    cuda_stamp(a.stamp);
    if (i >= a.reqs)
        return;
    int64_t step = *a.step;
    struct ring_rec *rec = a.ring + step % a.ring_depth * a.ring_stride + i;
    int slot = a.req_slot[i], gen = a.req_gen[i], n = a.req_n[i], got = 0, at = 0;
    enum fin fin = FIN_NONE;
    if (lane == 0) {
        rec->slot = slot;
        rec->gen = gen;
        rec->n_draft = rec->n_accepted = rec->n_deep = rec->n_next = 0;
    }
    __syncwarp();
    if (cuda_slot_ok(a.s, slot, gen) && n > 0) {
        int len = a.s.len[slot], n_out = a.s.n_out[slot];
        int32_t root = a.s.root[slot];
        __syncwarp(); /* all lanes have read the slot */
        if (!a.prefill) {
            at = len;
            got = accept_verify(a, i, slot, len, n_out, rec, &fin, &root);
            len += got;
        } else {
            len += n;
            at = len - 1;
            if (a.last_sample[i] >= 0) {
                const struct sample_out *t = &a.sample[a.last_sample[i]];
                root = t->token;
                fin = fin_of(&a.s.params[slot], root, n_out);
                emit_row(a, i, slot, at, a.req_row0[i] + n - 1, t, root, rec, 0);
                got = 1;
            }
        }
        if (lane == 0) {
            a.s.len[slot] = len;
            a.s.root[slot] = root;
            a.s.n_out[slot] = n_out + got;
            a.s.n_rows[slot] = 1;
            if (fin != FIN_NONE)
                a.s.live[slot] = 0;
        }
    }
    if (lane)
        return;
    a.out.n[i] = got;
    a.out.len[i] = at;
    rec->fin = fin;
    rec->n = got;
    rec->step = step;
}

extern "C" int cuda_do_accept(struct dev *d, const struct op_accept *a)
{
    return cuda_launch(d, accept_kernel, (unsigned)cuda_div_up(a->reqs, 4), 128, 0, *a);
}
