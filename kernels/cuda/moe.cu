/* The experts' feed-forward products.
 *  - Few picks (and fp8 at any number): weight-streaming kernels (experts.cuh), the weights of an
 *    expert read once for up to 8 or 16 of its picks. The shared MLP takes part as slices of the
 *    experts' width that every row picks; their first weights are loaded before the rows are there.
 *    Up to 4 rows each block finds its expert and picks in the ids itself, and the last block of a
 *    range of columns adds the picks: two launches. More rows: a list made by moe_group_kernel.
 *  - Many rows, bf16: grouped tensor-core products (moe_many.cu); the shared MLP as op_mlp.
 *  - Anything else: a warp an output, for odd shapes and types.
 * Picks of a row are added in stored order; no sum depends on the order of blocks. */
#include "kernels/cuda/experts.cuh"

enum { SELF_ROWS = 4, SELF_PICKS = 128, LIST_ROWS = 64, TABLE = 256 };

/* ---- which picks a block works on ---- */

struct block_picks {
    int e;        /* < 0: nothing; >= experts: slice e - experts of the shared MLP */
    int n;        /* vectors */
    int pick[16]; /* the picks, or rows of a slice */
};

static __host__ __device__ __forceinline__ int shared_tiles(const struct moe_args &m)
{
    return m.slices * m.groups;
}

/* p / topk, below 2^31 / topk picks. */
static __device__ __forceinline__ int pick_row(const struct moe_args &m, int p)
{
    return (int)((uint64_t)(unsigned)p * m.per_pick >> 31);
}

/* Tile t of the picks of a call with few of them: experts in the order of their first pick, each
 * `tile` picks one. All threads; `b` in shared memory is complete afterwards. */
static __device__ void find_picks(const struct op_moe_ffn &a, int t, int tile, block_picks *b)
{
    __shared__ int ids[SELF_PICKS], first[FEW_THREADS / 32];
    int p = threadIdx.x, n = a.rows * a.topk, rank = 0;
    if (p < n)
        ids[p] = a.ids[p];
    if (p == 0)
        b->e = -1;
    __syncthreads();
    int e = p < n ? ids[p] : -1;
    bool on = e >= 0 && e < a.experts;
    if (p / 32 * 32 < n) /* warps with picks */
#pragma unroll 1
        for (int i = 0; i < n; i++)
            rank += i < p && ids[i] == e;
    unsigned lead = __ballot_sync(0xffffffffu, on && rank % tile == 0);
    if (p % 32 == 0)
        first[p / 32] = __popc(lead);
    __syncthreads();
    int at = __popc(lead & ((1u << p % 32) - 1));
#pragma unroll 1
    for (int i = 0; i < p / 32; i++)
        at += first[i];
    if (on && rank % tile == 0 && at == t) {
        b->e = e;
        b->n = rank;
    }
    __syncthreads();
    int from = b->n;
    bool mine = b->e >= 0 && on && e == b->e && rank >= from && rank < from + tile;
    if (mine)
        b->pick[rank - from] = p;
    int count = __syncthreads_count(mine);
    if (p == 0)
        b->n = count;
    __syncthreads();
}

/* Tile t of the shared MLP's; with pick_find, what a block works on. */
template <int NT>
static __device__ __forceinline__ void slice_find(const struct moe_args &m, int t, block_picks *b)
{
    enum { TILE = NT * 8 };
    int slice = t / m.groups, r0 = (t - slice * m.groups) * TILE, n = min((int)TILE, m.a.rows - r0);
    if (threadIdx.x == 0) {
        b->e = m.a.experts + slice;
        b->n = n;
    }
    if ((int)threadIdx.x < n)
        b->pick[threadIdx.x] = r0 + threadIdx.x;
    __syncthreads();
}

/* Tile t of the picks. */
template <int NT>
static __device__ __forceinline__ void pick_find(const struct moe_args &m, int t, block_picks *b)
{
    if (m.a.rows == 1) {
        if (threadIdx.x == 0) {
            int e = m.a.ids[t];
            b->e = e >= 0 && e < m.a.experts ? e : -1;
            b->n = 1;
            b->pick[0] = t;
        }
        __syncthreads();
    } else if (m.list.n_tile) {
        bool on = t < *m.list.n_tile;
        struct moe_tile l = {-1, 0, 0, 0};
        if (on)
            l = m.list.tile[t];
        if (threadIdx.x == 0) {
            b->e = l.e;
            b->n = l.n;
        }
        if ((int)threadIdx.x < l.n)
            b->pick[threadIdx.x] = m.list.perm[l.at + threadIdx.x];
        __syncthreads();
    } else {
        find_picks(m.a, t, NT * 8, b);
    }
}

/* The activations of vector i of the block. */
static __device__ __forceinline__ float *block_act(const struct moe_args &m, const block_picks *b,
                                                   int i)
{
    const struct op_moe_ffn &a = m.a;
    if (b->e < a.experts)
        return m.act + (int64_t)b->pick[i] * a.inter;
    return m.act + (int64_t)a.rows * a.topk * a.inter +
           ((int64_t)b->pick[i] * m.slices + b->e - a.experts) * m.width;
}

/* ---- streaming kernels ---- */

/* act = silu(gate x) * up x, 32 columns a block; grid (widest / 32, tiles) */
template <int NT, bool FP8>
__global__ void __launch_bounds__(FEW_THREADS, NT == 1 && !FP8 ? 2 : 1)
    moe_gate_up_kernel(struct moe_args m)
{
    __shared__ few_part<NT> part;
    __shared__ block_picks b;
    __shared__ const void *table[2][FP8 ? 1 : TABLE]; /* known before the experts are */
    const struct op_moe_ffn &a = m.a;
    int n0 = blockIdx.x * 32, t = blockIdx.y, g = (threadIdx.x & 31) >> 2, K = a.hidden;
    int sh = shared_tiles(m);
    bool early = t < sh;
    few_weight f;
    few_chunk<NT, FP8> c[2];
    if (early) {
        if (n0 < m.width) {
            unsigned row = (unsigned)(t / m.groups * m.width + n0);
            f = few_rows<FP8>(a.sh_gate, row, a.sh_up, row, 0);
        }
    } else {
        bool listed = !FP8 && a.experts <= TABLE;
        if (listed && (int)threadIdx.x < a.experts) {
            table[0][threadIdx.x] = a.gate[threadIdx.x].p;
            table[1][threadIdx.x] = a.up[threadIdx.x].p;
        }
        cuda_wait();
        cuda_trigger(); /* not before: moe_down_kernel relies on it */
        pick_find<NT>(m, t - sh, &b);
        if (b.e < 0 || n0 >= a.inter)
            return;
        if (listed) {
            struct weight gate = {}, up = {};
            gate.p = table[0][b.e];
            up.p = table[1][b.e];
            gate.k = K;
            f = few_rows<false>(gate, n0, up, n0, 0);
        } else {
            f = few_rows<FP8>(a.gate[b.e], n0, a.up[b.e], n0, 0);
        }
    }
    if (!early || n0 < m.width)
        few_start(c, f, K);
    if (early) {
        cuda_wait();
        cuda_trigger();
        if (n0 >= m.width)
            return;
        slice_find<NT>(m, t, &b);
    }
    const float *x[NT];
#pragma unroll
    for (int i = 0; i < NT; i++) {
        int v = i * 8 + g;
        x[i] = NULL;
        if (v < b.n)
            x[i] = a.x + (int64_t)(early ? b.pick[v] : pick_row(m, b.pick[v])) * K;
    }
    float acc[4][NT][4] = {};
    few_run(acc, f, x, K, c);
    few_store(&part, acc);
#pragma unroll 1
    for (int i = threadIdx.x; i < 32 * b.n; i += FEW_THREADS) {
        float gate = few_sum(&part, i % 32, i / 32), up = few_sum(&part, 32 + i % 32, i / 32);
        block_act(m, &b, i / 32)[n0 + i % 32] = gate / (1.0f + __expf(-gate)) * up;
    }
}

/* out += the picks of y in stored order, then the slices; `cols` columns from h0. */
static __device__ __forceinline__ float row_sum(const struct op_moe_ffn &a, const float *y,
                                                int slices, int64_t r, int h)
{
    enum { AT_ONCE = 8 }; /* loads of so many */
    float s = 0;
    int n = a.topk + slices;
    const float *v = y + r * n * a.hidden + h;
    const int32_t *id = a.ids + r * a.topk;
#pragma unroll 1
    for (int k0 = 0; k0 < n; k0 += AT_ONCE, id += AT_ONCE) {
        float u[AT_ONCE];
        bool on[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            int k = k0 + i;
            on[i] = k < n && (k >= a.topk || (unsigned)id[i] < (unsigned)a.experts);
            u[i] = k < n ? __ldcg(v) : 0;
            v += a.hidden;
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
            if (on[i])
                s += u[i];
    }
    return s;
}

/* y = weight * down act, 64 columns a block; grid (H / 64, tiles). This kernel starts when every
 * block of moe_gate_up_kernel has passed its wait, so what came before that one, the choice of
 * experts among it, is complete: weights are loaded while the activations are still computed. */
template <int NT, bool FP8>
__global__ void __launch_bounds__(FEW_THREADS, NT == 1 && !FP8 ? 2 : 1)
    moe_down_kernel(struct moe_args m)
{
    __shared__ few_part<NT> part;
    __shared__ block_picks b;
    __shared__ bool last;
    const struct op_moe_ffn &a = m.a;
    int h0 = blockIdx.x * 64, t = blockIdx.y, g = (threadIdx.x & 31) >> 2;
    int sh = shared_tiles(m);
    bool early = t < sh;
    int K = early ? m.width : a.inter;
    few_weight f;
    few_chunk<NT, FP8> c[2];
    if (early)
        slice_find<NT>(m, t, &b);
    else
        pick_find<NT>(m, t - sh, &b);
    if (b.e >= 0) {
        const struct weight &w = early ? a.sh_down : a.down[b.e];
        f = few_rows<FP8>(w, h0, w, h0 + 32, early ? (unsigned)((b.e - a.experts) * m.width) : 0);
        few_start(c, f, K);
    }
    cuda_trigger();
    cuda_wait();
    if (b.e >= 0) {
        const float *x[NT];
#pragma unroll
        for (int i = 0; i < NT; i++)
            x[i] = i * 8 + g < b.n ? block_act(m, &b, i * 8 + g) : NULL;
        float acc[4][NT][4] = {};
        few_run(acc, f, x, K, c);
        few_store(&part, acc);
#pragma unroll 1
        for (int i = threadIdx.x; i < 64 * b.n; i += FEW_THREADS) {
            int p = b.pick[i / 64];
            int at = early ? p * (a.topk + m.slices) + a.topk + b.e - a.experts
                           : p + pick_row(m, p) * m.slices;
            float w = early ? 1.0f : a.weights[p];
            __stcg(m.y + (int64_t)at * a.hidden + h0 + i % 64, w * few_sum(&part, i % 64, i / 64));
        }
    }
    if (!m.done)
        return;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0)
        last = atomicAdd(&m.done[blockIdx.x], 1) == (int)gridDim.y - 1;
    __syncthreads();
    if (!last)
        return;
    __threadfence();
    if (threadIdx.x == 0)
        m.done[blockIdx.x] = 0;
#pragma unroll 1
    for (int i = threadIdx.x; i < 64 * a.rows; i += FEW_THREADS) {
        int64_t r = i / 64;
        int h = h0 + i % 64;
        a.out[r * a.hidden + h] += row_sum(a, m.y, m.slices, r, h);
    }
}

/* grid (R, ceil(H / 256)) */
__global__ void moe_finish_kernel(struct op_moe_ffn a, const float *y, int slices)
{
    int h = blockIdx.y * 256 + threadIdx.x;
    int64_t r = blockIdx.x;
    cuda_trigger();
    cuda_wait();
    if (h < a.hidden)
        a.out[r * a.hidden + h] += row_sum(a, y, slices, r, h);
}

int moe_finish(struct dev *d, const struct op_moe_ffn *a, const float *y, int slices)
{
    return cuda_launch(d, moe_finish_kernel,
                       dim3((unsigned)a->rows, (unsigned)cuda_div_up(a->hidden, 256)), 256, 0, *a,
                       y, slices);
}

template <int NT, bool FP8> static int launch_few(struct dev *d, struct moe_args *m)
{
    const struct op_moe_ffn *a = &m->a;
    m->groups = (a->rows + NT * 8 - 1) / (NT * 8);
    m->per_pick = (unsigned)((((uint64_t)1 << 31) + (unsigned)a->topk - 1) / (unsigned)a->topk);
    int64_t picks = (int64_t)a->rows * a->topk, tiles = picks;
    if (m->list.n_tile && a->experts + picks / (NT * 8) < tiles)
        tiles = a->experts + picks / (NT * 8);
    unsigned grid = (unsigned)(tiles + shared_tiles(*m));
    int widest = m->width > a->inter ? m->width : a->inter;
    TRY(cuda_launch(d, moe_gate_up_kernel<NT, FP8>, dim3((unsigned)widest / 32, grid), FEW_THREADS,
                    0, *m));
    TRY(cuda_launch(d, moe_down_kernel<NT, FP8>, dim3((unsigned)a->hidden / 64, grid), FEW_THREADS,
                    0, *m));
    return m->done ? OK : moe_finish(d, a, m->y, m->slices);
}

/* ---- any shape and type ---- */

/* Dot product of a weight row with x by one warp. */
static __device__ float dot_row(const struct weight &w, int64_t n, const float *x, int lane)
{
    float s = 0;
    for (int64_t j = lane; j < w.k; j += 32)
        s += x[j] * cuda_weight(w, n, j);
    return cuda_warp_sum(s);
}

/* grid (ceil(I / 8), picks) */
__global__ void plain_gate_up_kernel(struct op_moe_ffn a)
{
    int i = blockIdx.x * 8 + (threadIdx.x >> 5), lane = threadIdx.x & 31;
    int64_t p = blockIdx.y;
    cuda_trigger();
    cuda_wait();
    int e = a.ids[p];
    if (i >= a.inter || e < 0 || e >= a.experts)
        return;
    const float *x = a.x + p / a.topk * a.hidden;
    float g = dot_row(a.gate[e], i, x, lane), u = dot_row(a.up[e], i, x, lane);
    if (lane == 0)
        a.work[p * a.inter + i] = g / (1.0f + __expf(-g)) * u;
}

/* grid (ceil(H / 8), R) */
__global__ void plain_down_kernel(struct op_moe_ffn a)
{
    int h = blockIdx.x * 8 + (threadIdx.x >> 5), lane = threadIdx.x & 31;
    int64_t r = blockIdx.y;
    cuda_trigger();
    cuda_wait();
    if (h >= a.hidden)
        return;
    float s = 0;
    for (int k = 0; k < a.topk; k++) {
        int64_t p = r * a.topk + k;
        int e = a.ids[p];
        if (e >= 0 && e < a.experts)
            s += a.weights[p] * dot_row(a.down[e], h, a.work + p * a.inter, lane);
    }
    if (lane == 0)
        a.out[r * a.hidden + h] += s;
}

static int launch_plain(struct dev *d, const struct op_moe_ffn *a)
{
    int64_t rows_max = 65535 / a->topk; /* of a grid's second dimension */
    for (int64_t r0 = 0; r0 < a->rows; r0 += rows_max) {
        struct op_moe_ffn b = *a;
        b.rows = (int)(a->rows - r0 < rows_max ? a->rows - r0 : rows_max);
        b.out += r0 * a->hidden;
        b.x += r0 * a->hidden;
        b.ids += r0 * a->topk;
        b.weights += r0 * a->topk;
        dim3 gu((unsigned)cuda_div_up(a->inter, 8), (unsigned)(b.rows * a->topk));
        dim3 dn((unsigned)cuda_div_up(a->hidden, 8), (unsigned)b.rows);
        TRY(cuda_launch(d, plain_gate_up_kernel, gu, 256, 0, b));
        TRY(cuda_launch(d, plain_down_kernel, dn, 256, 0, b));
    }
    return OK;
}

/* ---- choice ---- */

static int shared_mlp(struct dev *d, const struct op_moe_ffn *a)
{
    if (!a->sh_gate.p)
        return OK;
    struct op_mlp s = {};
    s.out = a->out;
    s.x = a->x;
    s.gate = a->sh_gate;
    s.up = a->sh_up;
    s.down = a->sh_down;
    s.g = moe_ffn_shared(a);
    s.u = s.g + (int64_t)a->rows * a->sh_gate.n;
    s.rows = a->rows;
    s.ldx = s.ldo = a->hidden;
    return cuda_do_mlp(d, &s);
}

static bool aligned(const void *p)
{
    return ((uintptr_t)p & 15) == 0;
}

/* The shared MLP can take part in the streaming kernels. */
static bool sliced(const struct op_moe_ffn *a, int64_t chunk)
{
    const struct weight *g = &a->sh_gate;
    return g->dt == a->dt && a->sh_up.dt == a->dt && a->sh_down.dt == a->dt && g->n % chunk == 0 &&
           aligned(g->p) && aligned(a->sh_up.p) && aligned(a->sh_down.p);
}

extern "C" int cuda_do_moe_ffn(struct dev *d, const struct op_moe_ffn *op)
{
    struct moe_args m = {};
    struct op_moe_ffn *a = &m.a;
    *a = *op;
    a->sh_gate = cuda_weight_dev(d, op->sh_gate);
    a->sh_up = cuda_weight_dev(d, op->sh_up);
    a->sh_down = cuda_weight_dev(d, op->sh_down);
    bool fp8 = a->dt == DT_F8E4M3, bf16 = a->dt == DT_BF16;
    int64_t chunk = fp8 ? 64 : 32;
    bool fast = (fp8 || bf16) && a->hidden % 64 == 0 && a->inter % chunk == 0 &&
                a->experts <= EXPERTS_MAX && aligned(a->x) && aligned(a->work);
    if (!fast) {
        TRY(launch_plain(d, a));
        return shared_mlp(d, op);
    }
    if (bf16 && a->rows > LIST_ROWS && a->inter % 64 == 0 && a->hidden % 128 == 0) {
        TRY(moe_grouped(d, a));
        return shared_mlp(d, op);
    }
    bool slices = a->sh_gate.p && a->rows <= LIST_ROWS && sliced(a, chunk);
    if (slices) {
        m.slices = moe_slices(a->inter, (int)a->sh_gate.n);
        m.width = (int)a->sh_gate.n / m.slices;
    }
    m.act = a->work;
    m.y = m.act + (int64_t)a->rows * (a->topk * a->inter + m.slices * m.width);
    int r;
    if (a->rows <= SELF_ROWS && a->rows * a->topk <= SELF_PICKS &&
        a->hidden / 64 <= CUDA_FLAGS - 64) {
        m.done = d->flags + 64;
        r = fp8 ? launch_few<1, true>(d, &m) : launch_few<1, false>(d, &m);
    } else {
        int tile = a->rows <= LIST_ROWS ? 8 : 16;
        m.list = moe_lists_at(a->work, op);
        TRY(moe_group(d, a, &m.list, tile));
        if (tile == 8)
            r = fp8 ? launch_few<1, true>(d, &m) : launch_few<1, false>(d, &m);
        else
            r = fp8 ? launch_few<2, true>(d, &m) : launch_few<2, false>(d, &m);
    }
    if (r < 0 || slices)
        return r;
    return shared_mlp(d, op);
}
