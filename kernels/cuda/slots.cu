/* Request slots and row lists on the device: the integer state machines of a step, with the same
 * rules as the CPU device's. Small kernels of one block; what the CPU device treats as a broken
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

/* One block: stops, then starts, then page-table entries. */
__global__ void slot_update_kernel(struct op_slot_update a)
{
    int n_stop = *a.n_stop, n_start = *a.n_start, n_set = *a.n_set;
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
        a.s.params[slot] = b->params;
    }
    for (int i = threadIdx.x; i < n_set; i += blockDim.x) {
        const struct page_set p = a.set[i];
        a.table[p.group][(int64_t)p.slot * a.pages_max[p.group] + p.index] = p.page;
    }
}

/* Clears what the starting slots had seen and counted; grid-stride over the vocabulary. */
__global__ void slot_clear_kernel(struct op_slot_update a)
{
    int words = seen_words(a.s), n = *a.n_start;
    int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int i = 0; i < n; i++) {
        int64_t slot = a.start[i].slot;
        for (int64_t j = at; j < words; j += step)
            a.s.seen[slot * words + j] = 0;
        for (int64_t j = at; j < a.s.vocab; j += step)
            a.s.count[slot * a.s.vocab + j] = 0;
    }
}

extern "C" int cuda_do_slot_update(struct dev *d, const struct op_slot_update *a)
{
    slot_update_kernel<<<1, 256, 0, d->stream>>>(*a);
    slot_clear_kernel<<<64, 256, 0, d->stream>>>(*a);
    return cuda_launched(d);
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

/* One block of 1,024 threads: a prefix sum of the rows of up to 1,024 requests. */
__global__ void rows_build_kernel(struct op_rows_build a)
{
    __shared__ int sum[1024];
    int i = threadIdx.x, n = 0, slot = 0;
    if (i < a.reqs) {
        slot = a.req_slot[i];
        if (cuda_slot_ok(a.s, slot, a.req_gen[i])) {
            n = min(a.s.n_rows[slot], a.s.len_max - a.s.len[slot]);
            if (a.req_cap)
                n = min(n, a.req_cap[i]);
        }
    }
    sum[i] = n;
    __syncthreads();
    for (int o = 1; o < 1024; o <<= 1) {
        int v = i >= o ? sum[i - o] : 0;
        __syncthreads();
        sum[i] += v;
        __syncthreads();
    }
    int row = sum[i] - n, total = min(sum[1023], a.rows);
    if (row + n > a.rows)
        n = 0;
    if (i < a.reqs) {
        a.req_row0[i] = row;
        a.req_n[i] = n;
    }
    for (int j = 0; j < n; j++)
        build_row(a, row + j, i, slot, j);
    for (int r = total + i; r < a.rows; r += blockDim.x)
        cuda_row_pad(a.out, r);
}

extern "C" int cuda_do_rows_build(struct dev *d, const struct op_rows_build *a)
{
    if (a->reqs > 1024)
        return E_UNSUPPORTED;
    rows_build_kernel<<<1, 1024, 0, d->stream>>>(*a);
    return cuda_launched(d);
}

__global__ void rows_note_kernel(struct op_rows_note a)
{
    int r = blockIdx.x * blockDim.x + threadIdx.x;
    if (r >= a.rows || a.slot[r] <= 0 || a.tok[r] < 0)
        return;
    int32_t slot = a.slot[r];
    note_token(a.s, slot, a.pos[r], a.tok[r], a.pos[r] >= a.s.params[slot].n_prompt);
}

extern "C" int cuda_do_rows_note(struct dev *d, const struct op_rows_note *a)
{
    rows_note_kernel<<<(unsigned)cuda_div_up(a->rows, 128), 128, 0, d->stream>>>(*a);
    return cuda_launched(d);
}

__global__ void rows_place_kernel(struct op_rows_place a)
{
    int r = blockIdx.x * blockDim.x + threadIdx.x;
    if (r >= a.rows)
        return;
    int first = 0, last = 0, wslot = -1;
    if (a.slot[r] > 0 && a.tok[r] >= 0 && a.at[r] / a.page < a.pages_max) {
        int at = a.at[r], from = a.from ? a.from[a.slot[r]] : 0;
        last = at + 1;
        first = max(from, a.window > 0 ? a.pos[r] + 1 - a.window : 0);
        wslot = a.table[(int64_t)a.slot[r] * a.pages_max + at / a.page] * a.page + at % a.page;
    }
    a.first[r] = first;
    a.last[r] = last;
    a.wslot[r] = wslot;
}

extern "C" int cuda_do_rows_place(struct dev *d, const struct op_rows_place *a)
{
    rows_place_kernel<<<(unsigned)cuda_div_up(a->rows, 128), 128, 0, d->stream>>>(*a);
    return cuda_launched(d);
}

/* ---- acceptance: one thread a request ---- */

static __device__ enum fin emit(const struct slot_arrays &s, int slot, int pos,
                                const struct sample_out *t, struct ring_rec *rec, int at)
{
    const struct slot_params *p = &s.params[slot];
    rec->tok[at] = *t;
    int before = s.n_out[slot]++;
    note_token(s, slot, pos, t->token, true);
    if (before >= p->min_out)
        for (int i = 0; i < p->n_stop; i++)
            if (p->stop[i] == t->token)
                return FIN_STOP;
    if (before + 1 >= p->max_out || p->n_prompt + before + 1 >= p->len_max)
        return FIN_LENGTH;
    return FIN_NONE;
}

/* Emits the sample of row r of request i and notes it for the work after this. */
static __device__ enum fin emit_row(const struct op_accept &a, int i, int r,
                                    const struct sample_out *t, struct ring_rec *rec, int at)
{
    int64_t k = (int64_t)i * LIM_EMIT + at;
    a.out.row[k] = r;
    a.out.tok[k] = t->token;
    return emit(a.s, a.req_slot[i], a.out.len[i] + 1 + at, t, rec, at);
}

/* The path through the drafted rows; returns the tokens emitted. */
static __device__ int accept_verify(const struct op_accept &a, int i, struct ring_rec *rec,
                                    enum fin *fin)
{
    int slot = a.req_slot[i], row0 = a.req_row0[i], end = row0 + a.req_n[i], got = 0, deep = 0;
    int32_t tok = -1;
    a.out.len[i] = a.s.len[slot];
    for (int r = row0; r >= 0 && *fin == FIN_NONE && got < LIM_EMIT;) {
        int at = r;
        tok = a.sample[r].token;
        *fin = emit_row(a, i, r, &a.sample[r], rec, got++);
        r = -1;
        for (int c = at + 1; c < end && r < 0; c++)
            if (a.rows.parent[c] == at && a.rows.tok[c] == tok)
                r = c;
    }
    for (int r = row0; r < end; r++)
        deep = max(deep, __popcll(a.rows.anc[r]) - 1);
    rec->n_draft = end - row0 - 1;
    rec->n_accepted = got - 1;
    rec->n_deep = deep;
    a.s.len[slot] += got;
    a.s.root[slot] = tok;
    return got;
}

static __device__ int accept_prefill(const struct op_accept &a, int i, struct ring_rec *rec,
                                     enum fin *fin)
{
    int slot = a.req_slot[i], len = a.s.len[slot] + a.req_n[i];
    a.s.len[slot] = len;
    a.out.len[i] = len - 1;
    if (a.last_sample[i] < 0)
        return 0;
    const struct sample_out *t = &a.sample[a.last_sample[i]];
    *fin = emit_row(a, i, a.req_row0[i] + a.req_n[i] - 1, t, rec, 0);
    a.s.root[slot] = t->token;
    return 1;
}

__global__ void accept_kernel(struct op_accept a)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= a.reqs)
        return;
    int64_t step = *a.step;
    struct ring_rec *rec = a.ring + step % a.ring_depth * a.ring_stride + i;
    int slot = a.req_slot[i], got = 0;
    enum fin fin = FIN_NONE;
    rec->slot = slot;
    rec->gen = a.req_gen[i];
    rec->n_draft = rec->n_accepted = rec->n_deep = rec->n_next = 0;
    a.out.len[i] = 0;
    if (cuda_slot_ok(a.s, slot, a.req_gen[i]) && a.req_n[i] > 0) {
        got = a.prefill ? accept_prefill(a, i, rec, &fin) : accept_verify(a, i, rec, &fin);
        a.s.n_rows[slot] = 1;
        if (fin != FIN_NONE)
            a.s.live[slot] = 0;
    }
    a.out.n[i] = got;
    rec->fin = fin;
    rec->n = got;
    rec->step = step;
}

extern "C" int cuda_do_accept(struct dev *d, const struct op_accept *a)
{
    accept_kernel<<<(unsigned)cuda_div_up(a->reqs, 32), 32, 0, d->stream>>>(*a);
    return cuda_launched(d);
}
