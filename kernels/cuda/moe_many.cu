/* Experts of many rows: picks grouped by expert on the device, then grouped tensor-core products of
 * tiles of gathered rows. Rows and activations are rounded to bf16, sums are fp32. Grids cover the
 * most tiles there can be; blocks past the list end at once, so a recorded graph serves any choice
 * of experts.
 *
 * The order of picks within an expert depends on the run; a pick's result does not, because every
 * row of a tile is summed alone, and rows add their picks in stored order. */
#include "kernels/cuda/experts.cuh"
#include "kernels/cuda/warpgroup.cuh"

enum { GROUP_THREADS = 1024, STAGE_K = 64, N_TILE = 128, GEMM_THREADS = 256 };

/* ---- lists ---- */

/* At the end of the work area. */
struct moe_lists moe_lists_at(float *work, const struct op_moe_ffn *a)
{
    size_t picks = (size_t)a->rows * (size_t)a->topk;
    size_t all = moe_ffn_work((size_t)a->rows, (size_t)a->topk, (size_t)a->inter,
                              (size_t)a->sh_gate.n, (size_t)a->hidden);
    int32_t *end = (int32_t *)(work + all / 4 * 4);
    struct moe_lists l;
    l.tile = (struct moe_tile *)end - (EXPERTS_MAX + picks / 8 + 1);
    l.n_tile = (int32_t *)l.tile - 4;
    l.perm = l.n_tile - picks;
    l.rank = l.perm - picks;
    return l;
}

/* Exclusive sum over the block's 1024 threads of two values. */
static __device__ int2 block_scan(int2 v)
{
    __shared__ int2 warp_sum[32];
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    int2 s = v;
    for (int o = 1; o < 32; o <<= 1) {
        int x = __shfl_up_sync(0xffffffffu, s.x, o), y = __shfl_up_sync(0xffffffffu, s.y, o);
        if (lane >= o) {
            s.x += x;
            s.y += y;
        }
    }
    if (lane == 31)
        warp_sum[warp] = s;
    __syncthreads();
    int2 base = make_int2(0, 0);
    for (int i = 0; i < warp; i++) {
        base.x += warp_sum[i].x;
        base.y += warp_sum[i].y;
    }
    return make_int2(base.x + s.x - v.x, base.y + s.y - v.y);
}

/* Block 0: counts the picks of each expert, lists tiles of at most `tile` picks and the picks in
 * the order of their experts. The other blocks round x to bf16, 8192 values each, when there are
 * any. */
__global__ void __launch_bounds__(GROUP_THREADS)
    moe_group_kernel(struct op_moe_ffn a, struct moe_lists l, int tile, __nv_bfloat16 *xb)
{
    __shared__ int count[EXPERTS_MAX], offset[EXPERTS_MAX];
    int picks = a.rows * a.topk, e = threadIdx.x;
    count[e] = 0;
    cuda_trigger();
    cuda_wait();
    if (blockIdx.x > 0) {
        int64_t i = ((int64_t)(blockIdx.x - 1) * GROUP_THREADS + threadIdx.x) * 8;
        if (i < (int64_t)a.rows * a.hidden) {
            float4 u = *(const float4 *)(a.x + i), v = *(const float4 *)(a.x + i + 4);
            *(uint4 *)(xb + i) = make_uint4(pack_bf16(u.x, u.y), pack_bf16(u.z, u.w),
                                            pack_bf16(v.x, v.y), pack_bf16(v.z, v.w));
        }
        return;
    }
    __syncthreads();
    for (int p = threadIdx.x; p < picks; p += GROUP_THREADS) {
        int id = a.ids[p];
        if (id >= 0 && id < a.experts)
            l.rank[p] = atomicAdd(&count[id], 1);
    }
    __syncthreads();
    int n = count[e], tiles = (n + tile - 1) / tile;
    int2 at = block_scan(make_int2(n, tiles));
    offset[e] = at.x;
    for (int i = 0; i < tiles; i++)
        l.tile[at.y + i] = {e, at.x + i * tile, min(tile, n - i * tile), 0};
    if (e == GROUP_THREADS - 1)
        *l.n_tile = at.y + tiles;
    __syncthreads();
    for (int p = threadIdx.x; p < picks; p += GROUP_THREADS) {
        int id = a.ids[p];
        if (id >= 0 && id < a.experts)
            l.perm[offset[id] + l.rank[p]] = p;
    }
}

int moe_group(struct dev *d, const struct op_moe_ffn *a, const struct moe_lists *l, int tile)
{
    return cuda_launch(d, moe_group_kernel, dim3(1), GROUP_THREADS, 0, *a, *l, tile,
                       (__nv_bfloat16 *)NULL);
}

/* ---- grouped products ---- */

struct grouped {
    struct op_moe_ffn a;
    struct moe_lists list;
    const __nv_bfloat16 *xb; /* [R, H] */
    __nv_bfloat16 *act;      /* [picks in the order of the list, I] */
    float *y;                /* [picks, H] times the pick's weight */
};

static __device__ __forceinline__ uint32_t shared_at(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

static __device__ __forceinline__ void copy16(uint32_t to, const void *from)
{
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from));
}

/* What a thread copies of each stage: 16 bytes of rows `row`, + 32, ... of both operands. The
 * tile's weight rows are 64 of gate and 64 of up in turns of eight, or 128 of down. */
template <int BM, bool UP> struct tile_rows {
    const __nv_bfloat16 *a[BM / 32], *b[4];
    uint32_t to; /* place in a stage */
};

template <int BM, bool UP>
static __device__ __forceinline__ void tile_find(tile_rows<BM, UP> *t, const struct grouped &v,
                                                 const struct moe_tile &tile, int n_block)
{
    const struct op_moe_ffn &a = v.a;
    int part = threadIdx.x & 7, row = threadIdx.x >> 3, K = UP ? a.hidden : a.inter;
#pragma unroll
    for (int i = 0; i < BM / 32; i++) {
        int r = tile.at + min(row + 32 * i, tile.n - 1);
        t->a[i] = (UP ? v.xb + (int64_t)(v.list.perm[r] / a.topk) * K : v.act + (int64_t)r * K) +
                  part * 8;
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int b = row + 32 * i, j = b >> 3;
        const struct weight *w = UP ? ((j & 1) ? a.up : a.gate) : a.down;
        int64_t n = UP ? n_block * 64 + (j >> 1) * 8 + (b & 7) : n_block * N_TILE + b;
        t->b[i] = (const __nv_bfloat16 *)w[tile.e].p + n * K + part * 8;
    }
    t->to = row * 128 + ((part ^ (row & 7)) << 4);
}

template <int BM, bool UP>
static __device__ __forceinline__ void tile_load(const tile_rows<BM, UP> &t, uint32_t stage, int k)
{
#pragma unroll
    for (int i = 0; i < BM / 32; i++)
        copy16(stage + t.to + i * 32 * 128, t.a[i] + k);
#pragma unroll
    for (int i = 0; i < 4; i++)
        copy16(stage + BM * 128 + t.to + i * 32 * 128, t.b[i] + k);
}

/* Two columns of a pick's activations from those of gate and up. */
static __device__ __forceinline__ void put_act(const struct grouped &v, int64_t at, int col,
                                               const float *gate, const float *up)
{
    float o[2];
    for (int c = 0; c < 2; c++)
        o[c] = gate[c] / (1.0f + __expf(-gate[c])) * up[c];
    *(uint32_t *)(v.act + at * v.a.inter + col) = pack_bf16(o[0], o[1]);
}

/* Starts the copies of the first stages. */
template <int BM, int STAGES, bool UP>
static __device__ __forceinline__ void tile_start(const tile_rows<BM, UP> &rows, uint32_t base,
                                                  int steps)
{
    for (int i = 0; i < STAGES - 1; i++) {
        if (i < steps)
            tile_load(rows, base + i * (BM + N_TILE) * 128, i * STAGE_K);
        asm volatile("cp.async.commit_group;");
    }
}

#if !defined(__CUDA_ARCH_FEAT_SM90_ALL)

static __device__ __forceinline__ void ldmatrix(uint32_t *r, uint32_t at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at));
}

/* For any GPU from sm_80 on: eight warps of BM / 2 by 32. */
template <int BM, int STAGES, bool UP>
static __device__ __forceinline__ void
tile_run(const struct grouped &v, const struct moe_tile &tile, int n_block, uint32_t base)
{
    enum { A_BYTES = BM * 128, BYTES = A_BYTES + N_TILE * 128, MI = BM / 32 };
    const struct op_moe_ffn &a = v.a;
    int tid = threadIdx.x, warp = tid >> 5, lane = tid & 31;
    int steps = (UP ? a.hidden : a.inter) / STAGE_K;
    tile_rows<BM, UP> rows;
    tile_find(&rows, v, tile, n_block);
    tile_start<BM, STAGES, UP>(rows, base, steps);
    int wm = warp >> 2, wn = warp & 3;
    float acc[MI][4][4] = {};
    int a_row = wm * (BM / 2) + (lane & 15), a_half = lane >> 4;
    int b_row = wn * 32 + (lane & 7) + (lane >> 4 << 3), b_half = lane >> 3 & 1;
    for (int step = 0; step < steps; step++) {
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2));
        __syncthreads();
        int next = step + STAGES - 1;
        if (next < steps)
            tile_load(rows, base + next % STAGES * BYTES, next * STAGE_K);
        asm volatile("cp.async.commit_group;");
        uint32_t s = base + step % STAGES * BYTES;
#pragma unroll
        for (int kk = 0; kk < STAGE_K / 16; kk++) {
            uint32_t fa[MI][4], fb[2][4];
#pragma unroll
            for (int i = 0; i < MI; i++)
                ldmatrix(fa[i],
                         s + (a_row + i * 16) * 128 + (((kk * 2 + a_half) ^ (a_row & 7)) << 4));
#pragma unroll
            for (int j = 0; j < 2; j++)
                ldmatrix(fb[j], s + A_BYTES + (b_row + j * 16) * 128 +
                                    (((kk * 2 + b_half) ^ (b_row & 7)) << 4));
#pragma unroll
            for (int i = 0; i < MI; i++)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    mma(acc[i][j], fa[i], fb[j >> 1][(j & 1) * 2], fb[j >> 1][(j & 1) * 2 + 1]);
        }
    }
    int g = lane >> 2, q = lane & 3;
#pragma unroll
    for (int i = 0; i < 2 * MI; i++) {
        int r = wm * (BM / 2) + i * 8 + g, h = 2 * (i & 1);
        float(*c)[4] = acc[i >> 1];
        if (r >= tile.n)
            continue;
        int64_t at = tile.at + r;
        if (UP) {
#pragma unroll
            for (int j = 0; j < 2; j++)
                put_act(v, at, n_block * 64 + (wn * 2 + j) * 8 + q * 2, &c[2 * j][h],
                        &c[2 * j + 1][h]);
            continue;
        }
        int p = v.list.perm[at];
        float w = a.weights[p], *y = v.y + (int64_t)p * a.hidden + n_block * N_TILE + wn * 32;
#pragma unroll
        for (int j = 0; j < 4; j++)
            *(float2 *)(y + j * 8 + q * 2) = make_float2(w * c[j][h], w * c[j][h + 1]);
    }
}

#else /* warpgroup products */

/* Two warpgroups of 64 picks by 128 weight rows (BM 128) or by 64 (BM 64). The copies of a stage
 * run beside the products of the one before. */
template <int BM, int STAGES, bool UP>
static __device__ __forceinline__ void
tile_run(const struct grouped &v, const struct moe_tile &tile, int n_block, uint32_t base)
{
    enum { A_BYTES = BM * 128, BYTES = A_BYTES + N_TILE * 128, COLS = BM == 128 ? 128 : 64 };
    const struct op_moe_ffn &a = v.a;
    int lane = threadIdx.x & 31, group = threadIdx.x >> 7;
    int steps = (UP ? a.hidden : a.inter) / STAGE_K;
    tile_rows<BM, UP> rows;
    tile_find(&rows, v, tile, n_block);
    tile_start<BM, STAGES, UP>(rows, base, steps);
    int row0 = BM == 128 ? group * 64 : 0, col0 = BM == 128 ? 0 : group * 64;
    float acc[COLS / 8][4] = {};
    for (int step = 0; step < steps; step++) {
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
        wg_written();
        __syncthreads();
        uint32_t s = base + step % STAGES * BYTES;
        uint64_t da = wg_rows(s + row0 * 128), db = wg_rows(s + A_BYTES + col0 * 128);
        wg_fence();
#pragma unroll
        for (int kk = 0; kk < STAGE_K / 16; kk++)
            wg_mul<COLS>(acc, da + kk * 2, db + kk * 2, 1);
        wg_commit();
        int next = step + STAGES - 1;
        if (next < steps)
            tile_load(rows, base + next % STAGES * BYTES, next * STAGE_K);
        asm volatile("cp.async.commit_group;");
        wg_wait<0>();
    }
    int g = lane >> 2, q = lane & 3, warp = threadIdx.x >> 5 & 3;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int r = row0 + warp * 16 + h * 8 + g;
        if (r >= tile.n)
            continue;
        int64_t at = tile.at + r;
        if (UP) {
#pragma unroll
            for (int j = 0; j < COLS / 16; j++)
                put_act(v, at, n_block * 64 + col0 / 2 + j * 8 + q * 2, acc[2 * j] + 2 * h,
                        acc[2 * j + 1] + 2 * h);
            continue;
        }
        int p = v.list.perm[at];
        float w = a.weights[p], *y = v.y + (int64_t)p * a.hidden + n_block * N_TILE + col0;
#pragma unroll
        for (int j = 0; j < COLS / 8; j++)
            *(float2 *)(y + j * 8 + q * 2) = make_float2(w * acc[j][2 * h], w * acc[j][2 * h + 1]);
    }
}

#endif

/* A tile of BM picks by 128 weight rows, in stages of 64 k: rows of 128 bytes whose 16-byte parts
 * are swizzled by the row. Grid (I / 64 or H / 128, most tiles). */
template <int BM, int STAGES, bool UP>
__global__ void __launch_bounds__(GEMM_THREADS, 2) grouped_kernel(struct grouped v)
{
    extern __shared__ __align__(1024) char smem[];
    cuda_trigger();
    cuda_wait();
    if ((int)blockIdx.y < *v.list.n_tile)
        tile_run<BM, STAGES, UP>(v, v.list.tile[blockIdx.y], blockIdx.x,
                                 (shared_at(smem) + 1023) & ~1023u);
}

template <int BM, int STAGES> static int launch_grouped(struct dev *d, const struct grouped *v)
{
    const struct op_moe_ffn *a = &v->a;
    int smem = STAGES * (BM + N_TILE) * 128 + 1024;
    int64_t picks = (int64_t)a->rows * a->topk, tiles = a->experts + picks / BM;
    tiles = tiles < picks ? tiles : picks;
    cudaFuncSetAttribute(grouped_kernel<BM, STAGES, true>,
                         cudaFuncAttributeMaxDynamicSharedMemorySize, smem);
    cudaFuncSetAttribute(grouped_kernel<BM, STAGES, false>,
                         cudaFuncAttributeMaxDynamicSharedMemorySize, smem);
    TRY(cuda_launch(d, grouped_kernel<BM, STAGES, true>,
                    dim3((unsigned)a->inter / 64, (unsigned)tiles), GEMM_THREADS, smem, *v));
    return cuda_launch(d, grouped_kernel<BM, STAGES, false>,
                       dim3((unsigned)a->hidden / N_TILE, (unsigned)tiles), GEMM_THREADS, smem, *v);
}

/* out += the picked experts' results; bf16, I a multiple of 64, H of 128. */
int moe_grouped(struct dev *d, const struct op_moe_ffn *a)
{
    struct grouped v = {};
    size_t picks = (size_t)a->rows * (size_t)a->topk;
    v.a = *a;
    v.list = moe_lists_at(a->work, a);
    v.y = a->work;
    v.act = (__nv_bfloat16 *)(v.y + picks * (size_t)a->hidden);
    v.xb = v.act + picks * (size_t)a->inter;
    bool large = picks >= (size_t)a->experts * 300;
    unsigned blocks = (unsigned)cuda_div_up((int64_t)a->rows * a->hidden, GROUP_THREADS * 8);
    TRY(cuda_launch(d, moe_group_kernel, dim3(1 + blocks), GROUP_THREADS, 0, *a, v.list,
                    large ? 128 : 64, (__nv_bfloat16 *)v.xb));
    TRY((large ? launch_grouped<128, 3>(d, &v) : launch_grouped<64, 4>(d, &v)));
    return moe_finish(d, a, v.y, 0);
}
