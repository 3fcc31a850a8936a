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

static __device__ bool slot_ok(const struct slot_arrays &s, int32_t slot, int32_t gen)
{
    return slot > 0 && slot < s.n_slot && s.live[slot] && s.gen[slot] == gen;
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

/* One block of 1,024 threads: a prefix sum of the rows of up to 1,024 requests. */
__global__ void rows_build_kernel(struct op_rows_build a)
{
    __shared__ int sum[1024];
    int i = threadIdx.x, n = 0, slot = 0;
    if (i < a.reqs) {
        slot = a.req_slot[i];
        if (slot_ok(a.s, slot, a.req_gen[i]))
            n = min(a.s.n_rows[slot], a.s.len_max - a.s.len[slot]);
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
    for (int j = 0; j < n; j++) {
        int r = row + j;
        a.out.tok[r] = j ? a.s.draft[(int64_t)slot * LIM_ROWS_PER_REQ + j - 1] : a.s.root[slot];
        a.out.slot[r] = slot;
        a.out.pos[r] = a.s.len[slot] + j;
        a.out.req[r] = i;
    }
    for (int r = total + i; r < a.rows; r += blockDim.x) {
        a.out.tok[r] = -1;
        a.out.slot[r] = 0;
        a.out.pos[r] = 0;
        a.out.req[r] = -1;
    }
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
    if (a.slot[r] > 0 && a.tok[r] >= 0 && a.pos[r] / a.page < a.pages_max) {
        int pos = a.pos[r];
        last = pos + 1;
        first = a.window > 0 && last > a.window ? last - a.window : 0;
        wslot = a.table[(int64_t)a.slot[r] * a.pages_max + pos / a.page] * a.page + pos % a.page;
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

__global__ void accept_kernel(struct op_accept a)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= a.reqs)
        return;
    const struct slot_arrays &s = a.s;
    int64_t step = *a.step;
    struct ring_rec *rec = a.ring + step % a.ring_depth * a.ring_stride + i;
    int slot = a.req_slot[i], n = a.req_n[i], row0 = a.req_row0[i], got = 0;
    enum fin fin = FIN_NONE;
    rec->slot = slot;
    rec->gen = a.req_gen[i];
    rec->n_draft = rec->n_accepted = 0;
    if (slot_ok(s, slot, a.req_gen[i]) && n > 0) {
        int len = s.len[slot];
        if (a.prefill) {
            s.len[slot] = len + n;
            if (a.last_sample[i] >= 0) {
                const struct sample_out *t = &a.sample[a.last_sample[i]];
                fin = emit(s, slot, len + n, t, rec, got++);
                s.root[slot] = t->token;
            }
        } else {
            int32_t tok = -1;
            for (int j = 0; j < n && fin == FIN_NONE; j++) {
                tok = a.sample[row0 + j].token;
                fin = emit(s, slot, len + j + 1, &a.sample[row0 + j], rec, got++);
                if (j + 1 == n || a.rows.tok[row0 + j + 1] != tok)
                    break;
            }
            rec->n_draft = n - 1;
            rec->n_accepted = got - 1;
            s.len[slot] = len + got;
            s.root[slot] = tok;
        }
        s.n_rows[slot] = 1;
        if (fin != FIN_NONE)
            s.live[slot] = 0;
    }
    rec->fin = fin;
    rec->n = got;
    rec->step = step;
}

extern "C" int cuda_do_accept(struct dev *d, const struct op_accept *a)
{
    accept_kernel<<<(unsigned)cuda_div_up(a->reqs, 32), 32, 0, d->stream>>>(*a);
    return cuda_launched(d);
}
