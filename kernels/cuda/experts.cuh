/* The product of 64 weight rows with a few vectors, bound by the bytes of the weights: what routing
 * and the experts' kernels share.
 *
 * Eight warps split K in chunks; each lane reads 16 consecutive bytes of eight weight rows a chunk
 * and holds two chunks, so that a multiprocessor has 64 to 128 KB of loads in flight. Weight rows
 * are the tensor cores' rows, vectors their columns (NT tiles of eight); the order of k within a
 * chunk is permuted the same way for both. Vectors are fp32 and split into two bf16 parts, which
 * keeps their precision within 2^-17. Sums depend on K alone. */
#ifndef SPECD_CUDA_EXPERTS_CUH
#define SPECD_CUDA_EXPERTS_CUH

#include "kernels/cuda/async.cuh"
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/mma.cuh"

enum { EXPERTS_MAX = 1024, FEW_WARPS = 8, FEW_THREADS = 32 * FEW_WARPS, FEW_ROWS = 64 };

/* What a lane reads: weight row g of two blocks of 32 rows (g = lane / 4) and their scales. */
struct few_weight {
    const char *p[2];
    int64_t ld; /* bytes */
    const void *scale[2];
    enum dtype scale_dt;
};

template <int NT, bool FP8> struct few_chunk {
    uint4 w[8];
    float4 x[NT][FP8 ? 4 : 2];
    float scale[2];
};

/* k of the lane in its warp's first chunk, and the distance to its next. */
template <bool FP8> static __device__ __forceinline__ int few_k0(void)
{
    int warp = threadIdx.x >> 5, q = threadIdx.x & 3;
    return FP8 ? warp * 64 + q * 16 : warp * 32 + q * 8;
}

static __device__ __forceinline__ uint4 few_load(const void *p)
{
    uint4 v;
    asm volatile(
        "ld.global.nc.L1::no_allocate.L2::cache_hint.L2::256B.v4.u32 {%0,%1,%2,%3}, [%4], %5;"
        : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
        : "l"(p), "l"(l2_once()));
    return v;
}

/* The lane's part of rows [row0, row0 + 32) and [row1, row1 + 32) of two weights, from column
 * `col` on. */
template <bool FP8>
static __device__ __forceinline__ few_weight few_rows(const struct weight &w0, unsigned row0,
                                                      const struct weight &w1, unsigned row1,
                                                      unsigned col)
{
    int g = (threadIdx.x & 31) >> 2;
    few_weight f;
    f.ld = w0.k * (FP8 ? 1 : 2);
    f.p[0] = (const char *)w0.p + (row0 + g) * f.ld + col * (FP8 ? 1 : 2);
    f.p[1] = (const char *)w1.p + (row1 + g) * f.ld + col * (FP8 ? 1 : 2);
    if (FP8) {
        unsigned blocks = ((unsigned)w0.k + 127) / 128, size = w0.scale_dt == DT_F32 ? 4 : 2;
        f.scale_dt = w0.scale_dt;
        f.scale[0] = (const char *)w0.scale + (row0 / 128 * blocks + col / 128) * size;
        f.scale[1] = (const char *)w1.scale + (row1 / 128 * blocks + col / 128) * size;
    }
    return f;
}

/* cuda_load of a scale, in few instructions. */
static __device__ __forceinline__ float few_scale(const void *p, enum dtype dt, unsigned i)
{
    if (dt == DT_F32)
        return ((const float *)p)[i];
    uint16_t u = ((const uint16_t *)p)[i];
    return dt == DT_BF16 ? __uint_as_float((uint32_t)u << 16) : __half2float(__ushort_as_half(u));
}

template <int NT, bool FP8>
static __device__ __forceinline__ void few_load_w(few_chunk<NT, FP8> &c, const few_weight &f, int k)
{
#pragma unroll
    for (int i = 0; i < 8; i++)
        c.w[i] = few_load(f.p[i >> 2] + (i & 3) * 8 * f.ld + (unsigned)k * (FP8 ? 1u : 2u));
    if (FP8)
#pragma unroll
        for (int i = 0; i < 2; i++)
            c.scale[i] = few_scale(f.scale[i], f.scale_dt, (unsigned)k / 128);
}

/* x[t]: the lane's vector of tile t (column g), or NULL. */
template <int NT, bool FP8>
static __device__ __forceinline__ void few_load_x(few_chunk<NT, FP8> &c,
                                                  const float *const (&x)[NT], int k)
{
#pragma unroll
    for (int t = 0; t < NT; t++)
#pragma unroll
        for (int i = 0; i < (FP8 ? 4 : 2); i++)
            c.x[t][i] = x[t] ? *(const float4 *)(x[t] + k + 4 * i) : make_float4(0, 0, 0, 0);
}

template <int NT>
static __device__ __forceinline__ void few_mul(float (&acc)[4][NT][4],
                                               const few_chunk<NT, false> &c)
{
#pragma unroll
    for (int t = 0; t < NT; t++) {
        uint32_t hi[4], lo[4];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            split_pair(&hi[2 * i], &lo[2 * i], c.x[t][i].x, c.x[t][i].y);
            split_pair(&hi[2 * i + 1], &lo[2 * i + 1], c.x[t][i].z, c.x[t][i].w);
        }
#pragma unroll
        for (int m = 0; m < 4; m++) {
            const uint4 &u = c.w[2 * m], &v = c.w[2 * m + 1]; /* rows g and g + 8 */
            uint32_t a0[4] = {u.x, v.x, u.y, v.y}, a1[4] = {u.z, v.z, u.w, v.w};
            mma(acc[m][t], a0, lo[0], lo[1]);
            mma(acc[m][t], a1, lo[2], lo[3]);
            mma(acc[m][t], a0, hi[0], hi[1]);
            mma(acc[m][t], a1, hi[2], hi[3]);
        }
    }
}

/* fp8 values come apart as pairs (0, 2) and (1, 3) of each word, and so do the vectors. */
template <int NT>
static __device__ __forceinline__ void few_mul(float (&acc)[4][NT][4], const few_chunk<NT, true> &c)
{
#pragma unroll
    for (int t = 0; t < NT; t++) {
        uint32_t hi[8], lo[8];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            split_pair(&hi[2 * i], &lo[2 * i], c.x[t][i].x, c.x[t][i].z);
            split_pair(&hi[2 * i + 1], &lo[2 * i + 1], c.x[t][i].y, c.x[t][i].w);
        }
#pragma unroll
        for (int m = 0; m < 4; m++) {
            const uint32_t u[4] = {c.w[2 * m].x, c.w[2 * m].y, c.w[2 * m].z, c.w[2 * m].w};
            const uint32_t v[4] = {c.w[2 * m + 1].x, c.w[2 * m + 1].y, c.w[2 * m + 1].z,
                                   c.w[2 * m + 1].w};
            float s[4] = {};
#pragma unroll
            for (int i = 0; i < 4; i++) {
                uint32_t a[4];
                fp8_pairs(u[i], &a[0], &a[2]);
                fp8_pairs(v[i], &a[1], &a[3]);
                mma(s, a, lo[2 * i], lo[2 * i + 1]);
                mma(s, a, hi[2 * i], hi[2 * i + 1]);
            }
#pragma unroll
            for (int i = 0; i < 4; i++)
                acc[m][t][i] += s[i] * c.scale[m >> 1];
        }
    }
}

/* Loads the weights of the warp's first two chunks. */
template <int NT, bool FP8>
static __device__ __forceinline__ void few_start(few_chunk<NT, FP8> (&c)[2], const few_weight &f,
                                                 int K)
{
    const int step = FEW_WARPS * (FP8 ? 64 : 32);
    int k = few_k0<FP8>();
    if (k < K)
        few_load_w(c[0], f, k);
    if (k + step < K)
        few_load_w(c[1], f, k + step);
}

/* acc = weights times vectors over the warp's chunks of [0, K), after few_start. */
template <int NT, bool FP8>
static __device__ __forceinline__ void few_run(float (&acc)[4][NT][4], const few_weight &f,
                                               const float *const (&x)[NT], int K,
                                               few_chunk<NT, FP8> (&c)[2])
{
    const int step = FEW_WARPS * (FP8 ? 64 : 32);
    int k = few_k0<FP8>();
    if (k < K)
        few_load_x(c[0], x, k);
    if (k + step < K)
        few_load_x(c[1], x, k + step);
#pragma unroll 1
    while (k < K) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            if (k < K)
                few_mul<NT>(acc, c[i]);
            if (k + 2 * step < K) {
                few_load_w(c[i], f, k + 2 * step);
                few_load_x(c[i], x, k + 2 * step);
            }
            k += step;
        }
    }
}

template <int NT> struct few_part { /* of each warp, in shared memory */
    float v[FEW_WARPS][FEW_ROWS][NT * 8];
};

template <int NT>
static __device__ __forceinline__ void few_store(few_part<NT> *part, const float (&acc)[4][NT][4])
{
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, q = lane & 3;
    for (int m = 0; m < 4; m++)
        for (int t = 0; t < NT; t++)
            for (int i = 0; i < 2; i++)
                *(float2 *)&part->v[warp][m * 16 + i * 8 + g][t * 8 + q * 2] =
                    make_float2(acc[m][t][2 * i], acc[m][t][2 * i + 1]);
    __syncthreads();
}

template <int NT>
static __device__ __forceinline__ float few_sum(const few_part<NT> *part, int row, int col)
{
    float s = 0;
    for (int w = 0; w < FEW_WARPS; w++)
        s += part->v[w][row][col];
    return s;
}

/* Experts and vectors of a call with many picks, found by moe_group_kernel. */
struct moe_tile {
    int32_t e, at, n, unused; /* picks perm[at, at + n) of expert e */
};
struct moe_lists {
    int32_t *n_tile; /* [1] */
    struct moe_tile *tile;
    int32_t *perm, *rank; /* [picks] */
};

/* Device addresses are resolved; `act` and `y` lie in the work area. */
struct moe_args {
    struct op_moe_ffn a;
    struct moe_lists list;
    int slices, width; /* the shared MLP as experts of this width */
    int groups;        /* tiles of a slice */
    unsigned per_pick; /* pick_row: 2^31 / topk, rounded up */
    float *act;        /* [picks, inter] and then [R * slices, width] */
    float *y;          /* [R, topk + slices, H] times its weight */
    int32_t *done;     /* [H / 64] blocks that are done, 0 between calls; NULL: moe_finish_kernel */
};

int moe_grouped(struct dev *d, const struct op_moe_ffn *a);
int moe_group(struct dev *d, const struct op_moe_ffn *a, const struct moe_lists *l, int tile);
struct moe_lists moe_lists_at(float *work, const struct op_moe_ffn *a);
int moe_finish(struct dev *d, const struct op_moe_ffn *a, const float *y, int slices);

#endif
