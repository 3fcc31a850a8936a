/* The product kernel of 9 to 112 rows on sm_90a (wide.cu): out = x W^T for up to three weights of
 * the same rows, bf16 or fp8 with 128 x 128 block scales, bound by the weights' bytes.
 *
 * Weight rows are the m64 operand of wgmma, the N rows of x (a multiple of 16, zeros past the last)
 * its n operand; both come through a ring of stages in shared memory, swizzled by the copy engine;
 * fp8 values are expanded to bf16 in registers, and a stage, which is one block of k, is scaled
 * when it is added. A block has `tile` units of 32 weight rows and one of `parts` equal ranges of
 * K; the blocks of a tile are a cluster, which adds their sums in the order of K through each
 * other's shared memory, a share of the tile each. The ring is asked for its weights before the
 * kernel waits for the one ahead of it.
 *
 * Two warpgroups multiply 64 weight rows each; one thread of the warp behind them asks. */
#ifndef SPECD_CUDA_WIDE_CUH
#define SPECD_CUDA_WIDE_CUH

#include <cuda.h>

#include "kernels/cuda/common.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/place.cuh"
#include "kernels/cuda/warpgroup.cuh"
#include "kernels/cuda/wide.h"

enum {
    WIDE_ROW = 128, /* bytes of a weight row in a stage: 64 k in bf16, 128 in fp8 */
    WIDE_UNIT = 32,
    WIDE_GROUPS = 2,
    WIDE_THREADS = WIDE_GROUPS * 128 + 32,
    WIDE_SMEM = 115072, /* of a block: two fit, beside them a small kernel's */
    WIDE_STAGES_MAX = 12,
    WIDE_CLUSTER_MAX = 8,
    WIDE_UNITS_MAX = 4 /* of a tile */
};

struct wide_weight {   /* one weight [n, k] */
    CUtensorMap map;   /* boxes of a unit by WIDE_ROW bytes */
    const void *scale; /* fp8: of 128 x 128 blocks */
    enum dtype scale_dt;
    void *out;
    const void *bias; /* NULL: none */
    enum dtype bias_dt;
    int n, unit0; /* its units are [unit0, unit0 + ceil(n / WIDE_UNIT)) */
    int64_t ldo;
    bool vec; /* four columns at a time */
};

struct wide_args {
    CUtensorMap x; /* boxes of N rows by 64 k */
    struct wide_weight w[WIDE_PARTS];
    int n_w, units, tile;
    int rows, chunks, parts, stages;
    int ring; /* bytes: the stages, or the sums that take their place */
    bool accumulate;
    bool silu;  /* w[0] gate, w[1] up, units in turn: w[0].out = bf16(silu(gate) * up) */
    bool pairs; /* and that in pairs (put_bf16) */
    /* w are q, k and v, which go to their places (op_qkv_place). Units of q and k come in twos: 32
     * elements of a head and their partners half a head on. With norms a head is a tile. */
    bool placed;
    struct op_qkv_place place;
};

struct wide_tail { /* behind the ring; fp8: then scales [unit][chunk] */
    uint64_t full[WIDE_STAGES_MAX], empty[WIDE_STAGES_MAX];
    int2 unit[WIDE_UNITS_MAX];
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/* ---- copy engine: the box at (k, row) of a map ---- */

static __device__ __forceinline__ void wide_copy(uint32_t dst, const CUtensorMap *map, int k,
                                                 int row, uint64_t *bar, uint64_t policy)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(dst),
                 "l"(map), "r"(k), "r"(row), "r"(bar_at(bar)), "l"(policy)
                 : "memory");
}

static __device__ __forceinline__ uint64_t wide_policy(bool keep)
{
    uint64_t p;
    if (keep)
        asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(p));
    else
        asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(p));
    return p;
}

/* ---- the cluster's shared memory ---- */

static __device__ __forceinline__ void wide_cluster_sync(void)
{
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

static __device__ __forceinline__ uint32_t wide_at(uint32_t at, int rank)
{
    uint32_t p;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(p) : "r"(at), "r"(rank));
    return p;
}

static __device__ __forceinline__ float4 wide_peer(uint32_t at, int rank)
{
    float4 v;
    asm volatile("ld.shared::cluster.v4.f32 {%0,%1,%2,%3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(wide_at(at, rank))
                 : "memory");
    return v;
}

static __device__ __forceinline__ void wide_unit(const struct wide_args &a, int u, int *w, int *row)
{
    int i = 0;
    if (a.silu) {
        *w = u & 1;
        *row = (u >> 1) * WIDE_UNIT;
        return;
    }
    while (i + 1 < a.n_w && u >= a.w[i + 1].unit0)
        i++;
    *w = i;
    *row = (u - a.w[i].unit0) * WIDE_UNIT;
    if (a.placed && i < 2) {
        int in = *row % a.place.hd / WIDE_UNIT; /* even: in the lower half */
        *row += (in / 2 - in) * WIDE_UNIT + in % 2 * (a.place.hd / 2);
    }
}

static __device__ __forceinline__ void wide_add(float4 *s, float4 v)
{
    s->x += v.x, s->y += v.y, s->z += v.z, s->w += v.w;
}

/* The four values of the tile's sums at `at`, added in the order of K. */
static __device__ __forceinline__ float4 wide_sum(uint32_t at, int parts)
{
    float4 s;
    if (parts == 1) {
        asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3}, [%4];"
                     : "=f"(s.x), "=f"(s.y), "=f"(s.z), "=f"(s.w)
                     : "r"(at)
                     : "memory");
        return s;
    }
    s = wide_peer(at, 0);
#pragma unroll 1
    for (int i = 1; i < parts; i += 3) {
        float4 v[3];
#pragma unroll
        for (int j = 0; j < 3; j++)
            v[j] = wide_peer(at, min(i + j, parts - 1));
#pragma unroll
        for (int j = 0; j < 3; j++)
            if (i + j < parts)
                wide_add(&s, v[j]);
    }
    return s;
}

/* Where the tile's four columns from `col` on go: row r of weight w, first column n. */
static __device__ __forceinline__ const struct wide_weight &
wide_place(const struct wide_args &a, const int2 *unit, int col, int *n)
{
    int2 u = unit[col / WIDE_UNIT];
    *n = u.y + col % WIDE_UNIT;
    return a.w[u.x];
}

static __device__ __forceinline__ float4 wide_before(const struct wide_weight &w, int r, int n)
{
    const float *out = (const float *)w.out + r * w.ldo + n;
    if (w.vec)
        return n < w.n ? *(const float4 *)out : make_float4(0, 0, 0, 0);
    return make_float4(n < w.n ? out[0] : 0, n + 1 < w.n ? out[1] : 0, n + 2 < w.n ? out[2] : 0,
                       n + 3 < w.n ? out[3] : 0);
}

static __device__ __forceinline__ void wide_bias(float4 *s, const struct wide_weight &w, int n)
{
    float *v = &s->x;
    if (w.bias)
        for (int i = 0; i < 4 && n + i < w.n; i++)
            v[i] += cuda_load(w.bias, w.bias_dt, n + i);
}

/* A warp's 16 rows of fp8 values at `at` as operands of MUL products from the k0-th on; k in pairs.
 */
template <int MUL>
static __device__ __forceinline__ void wide_expand(uint32_t (&f)[MUL][4], uint32_t at, int k0)
{
    int lane = threadIdx.x & 31, r = lane & 7;
    at += ((lane & 8) + r) * WIDE_ROW;
#pragma unroll
    for (int i = 0; i < MUL / 2; i++) {
        uint32_t v[4];
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                     : "r"(at + (((k0 + i * 2 + (lane >> 4)) ^ r) << 4))
                     : "memory");
#pragma unroll
        for (int h = 0; h < 2; h++) {
            fp8_pairs(v[h * 2], &f[i * 2 + h][0], &f[i * 2 + h][2]);
            fp8_pairs(v[h * 2 + 1], &f[i * 2 + h][1], &f[i * 2 + h][3]);
        }
    }
}

/* What an item of q or k needs beside its sums: angles, and weights of the head's norm. */
struct wide_near {
    vec<4> c, s, wl, wh;
};

static __device__ __forceinline__ void wide_fetch(const struct wide_args &a,
                                                  const struct wide_weight &w, int n,
                                                  const struct place_row &row, struct wide_near &m)
{
    if (&w == a.w + 2)
        return;
    n %= a.place.hd;
    if (row.at >= 0) {
        m.c = vec_load<4>(a.place.cos + row.at + n);
        m.s = vec_load<4>(a.place.sin + row.at + n);
    }
    const struct weight &norm = &w == a.w ? a.place.q_norm : a.place.k_norm;
    if (norm.p) {
        m.wl = vec_load_any<4>(norm.p, norm.dt, n);
        m.wh = vec_load_any<4>(norm.p, norm.dt, n + a.place.hd / 2);
    }
}

/* Row r's four columns from n on of q, k or v, and those from n2 on, which are their partners in q
 * and k. */
static __device__ __forceinline__ void wide_put(const struct wide_args &a,
                                                const struct wide_weight &w, int r, int n, int n2,
                                                const struct place_row &row, const float4 &lo4,
                                                const float4 &hi4, const struct wide_near &m)
{
    vec<4> lo = {lo4.x, lo4.y, lo4.z, lo4.w}, hi = {hi4.x, hi4.y, hi4.z, hi4.w};
    bool is_v = &w == a.w + 2;
    if (!is_v && a.place.q_norm.p) { /* by the lanes of the row, in the order of place.cu */
        float sum = __fadd_rn(vec_sumsq<4>(lo), vec_sumsq<4>(hi));
#pragma unroll
        for (int o = 8; o > 0; o >>= 1)
            sum = __fadd_rn(sum, __shfl_xor_sync(0xffffu << (threadIdx.x & 16), sum, o));
        place_norm<4>(a.place, lo, hi, sum, m.wl, m.wh);
    }
    if (!is_v && row.at >= 0)
        place_turn<4>(lo, hi, m.c, m.s);
    if (&w == a.w) {
        float *out = (float *)w.out + r * w.ldo;
        vec_store<4>(out + n, lo);
        vec_store<4>(out + n2, hi);
    } else {
        place_put<4>(a.place, is_v, row.slot, n, lo);
        place_put<4>(a.place, is_v, row.slot, n2, hi);
    }
}

static __device__ __forceinline__ float wide_silu(float g, float u)
{
    return g / (1 + __expf(-g)) * u;
}

#endif

/* grid: tiles * parts in clusters of `parts`. */
template <int N, bool FP8>
__global__ void __launch_bounds__(WIDE_THREADS, 2)
    wide_kernel(const __grid_constant__ struct wide_args a)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    enum { K = FP8 ? 128 : 64, X_BYTES = N * 128, X_BOXES = K / 64 };
    extern __shared__ __align__(1024) char smem[];
    struct wide_tail &tail = *(struct wide_tail *)(smem + a.ring);
    int2 *unit = tail.unit;
    uint64_t *full = tail.full, *empty = tail.empty;
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, group = warp >> 2;
    int rank = blockIdx.x % a.parts, u0 = blockIdx.x / a.parts * a.tile;
    int n_unit = min(a.tile, a.units - u0), pieces = (n_unit * WIDE_UNIT + 63) / 64;
    int c0 = a.chunks * rank / a.parts, nc = a.chunks * (rank + 1) / a.parts - c0;
    int x_at = a.tile * WIDE_UNIT * WIDE_ROW, stage = x_at + X_BOXES * X_BYTES;
    uint32_t base = (uint32_t)__cvta_generic_to_shared(smem);
    cuda_trigger();
    if (threadIdx.x < n_unit)
        wide_unit(a, u0 + threadIdx.x, &unit[threadIdx.x].x, &unit[threadIdx.x].y);
    if (threadIdx.x == 0) {
        for (int i = 0; i < a.stages; i++) {
            bar_init(&full[i], 1);
            bar_init(&empty[i], 4 * pieces);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    int width = a.tile * WIDE_UNIT, pitch = width + 4;
    bool twos = a.silu || a.placed;
    int columns = twos ? n_unit / 2 * WIDE_UNIT : n_unit * WIDE_UNIT, quads = columns / 4;
    int all = a.rows * quads, step = a.parts * WIDE_THREADS, i = rank * WIDE_THREADS + threadIdx.x;
    struct place_row row = {};
    auto waited = [&] {
        cuda_wait();
        if (a.placed && i < all)
            row = place_row(a.place, i / quads);
    };
    if (warp == WIDE_GROUPS * 4) {
        if (lane == 0) {
            uint64_t once = wide_policy(false), keep = wide_policy(true);
            int bytes = n_unit * WIDE_UNIT * WIDE_ROW + X_BOXES * X_BYTES;
            int first = min(nc, a.stages);
            auto ask_w = [&](int c, int slot) {
                bar_expect(&full[slot], bytes);
                for (int u = 0; u < n_unit; u++)
                    wide_copy(base + slot * stage + u * WIDE_UNIT * WIDE_ROW, &a.w[unit[u].x].map,
                              (c0 + c) * K, unit[u].y, &full[slot], once);
            };
            auto ask_x = [&](int c, int slot) {
                for (int i = 0; i < X_BOXES; i++)
                    wide_copy(base + slot * stage + x_at + i * X_BYTES, &a.x, (c0 + c) * K + i * 64,
                              0, &full[slot], keep);
            };
            for (int c = 0; c < first; c++)
                ask_w(c, c);
            waited();
            for (int c = 0; c < first; c++)
                ask_x(c, c);
            for (int c = first, slot = 0, parity = 0; c < nc; c++) {
                bar_wait(&empty[slot], parity);
                ask_w(c, slot);
                ask_x(c, slot);
                if (++slot == a.stages) {
                    slot = 0;
                    parity ^= 1;
                }
            }
        } else {
            waited();
        }
        __syncwarp();
    } else {
        float acc[N / 8][4] = {}, block[FP8 ? N / 8 : 1][4] = {};
        float *scale = (float *)(&tail + 1); /* fp8: [unit][chunk] */
        if (FP8) {
            for (int i = threadIdx.x; i < n_unit * nc; i += WIDE_GROUPS * 128) {
                const struct wide_weight &w = a.w[unit[i / nc].x];
                int64_t at = unit[i / nc].y / 128 * (int64_t)a.chunks + c0 + i % nc;
                scale[i] = cuda_load(w.scale, w.scale_dt, at);
            }
            bar_group(1, WIDE_GROUPS * 128);
            scale += min(group * 2 + (warp >> 1 & 1), n_unit - 1) * nc; /* of the warp's rows */
        }
        auto release = [&](int slot) {
            if (lane == 0)
                bar_arrive(&empty[slot]);
        };
        waited();
        if (group < pieces) {
            for (int c = 0, slot = 0, parity = 0, last = 0; c < nc; c++) {
                bar_wait(&full[slot], parity);
                uint32_t s = base + slot * stage;
                uint64_t dx = wg_rows(s + x_at);
                if constexpr (FP8) {
                    enum { MUL = N == 64 ? 4 : 8 }; /* at a time: what registers hold */
#pragma unroll
                    for (int k0 = 0; k0 < 8; k0 += MUL) {
                        uint32_t f[MUL][4];
                        wide_expand<MUL>(f, s + (group * 4 + (warp & 3)) * 16 * WIDE_ROW, k0);
                        wg_fence();
#pragma unroll
                        for (int i = 0; i < MUL; i++)
                            wg_mul_regs<N>(block, f[i],
                                           dx + (k0 + i) / 4 * (X_BYTES / 16) + (k0 + i) % 4 * 2,
                                           k0 + i);
                        wg_commit();
                        wg_wait<0>();
                        wg_hold<N / 8>(block);
                    }
                    float z = scale[c];
#pragma unroll
                    for (int j = 0; j < N / 8; j++)
#pragma unroll
                        for (int e = 0; e < 4; e++)
                            acc[j][e] += block[j][e] * z;
                    release(slot);
                } else {
                    uint64_t dw = wg_rows(s + group * 8192);
                    wg_fence();
#pragma unroll
                    for (int kk = 0; kk < 4; kk++)
                        wg_mul<N>(acc, dw + kk * 2, dx + kk * 2, 1);
                    wg_commit();
                    wg_wait<1>(); /* the stage before */
                    if (c)
                        release(last);
                    last = slot;
                }
                if (++slot == a.stages) {
                    slot = 0;
                    parity ^= 1;
                }
            }
            if (!FP8) {
                wg_wait<0>();
                wg_hold<N / 8>(acc);
            }
        }
        /* Every stage that was asked for has been used: sums take the ring's place, [row][column].
         */
        bar_group(1, WIDE_GROUPS * 128);
        float *to = (float *)smem;
        int g = lane >> 2, q = lane & 3;
        int m = group * 64 + (warp & 3) * 16 + g;
        if (m - g < width)
#pragma unroll
            for (int j = 0; j < N / 8; j++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    to[(j * 8 + q * 2 + (e & 1)) * pitch + m + (e >> 1) * 8] = acc[j][e];
    }
    float4 before = make_float4(0, 0, 0, 0);
    if (a.accumulate && i < all) {
        int n;
        const struct wide_weight &w = wide_place(a, unit, i % quads * 4, &n);
        before = wide_before(w, i / quads, n);
    }
    struct wide_near near = {};
    if (a.placed && i < all) {
        int n, col = i % quads * 4;
        const struct wide_weight &w = wide_place(a, unit, col + col / WIDE_UNIT * WIDE_UNIT, &n);
        wide_fetch(a, w, n, row, near);
    }
    __syncwarp();
    if (a.parts > 1)
        wide_cluster_sync();
    else
        __syncthreads();
    for (bool next = false; i < all; i += step, next = true) {
        int r = i / quads, col = i % quads * 4, n;
        if (twos)
            col += col / WIDE_UNIT * WIDE_UNIT;
        const struct wide_weight &w = wide_place(a, unit, col, &n);
        uint32_t at = base + (r * pitch + col) * 4;
        if (a.accumulate && next)
            before = wide_before(w, r, n);
        float4 s = wide_sum(at, a.parts);
        wide_bias(&s, w, n);
        if (a.placed) {
            int n2;
            wide_place(a, unit, col + WIDE_UNIT, &n2);
            float4 hi = wide_sum(at + WIDE_UNIT * 4, a.parts);
            wide_bias(&hi, w, n2);
            if (next) {
                row = place_row(a.place, r);
                wide_fetch(a, w, n, row, near);
            }
            wide_put(a, w, r, n, n2, row, s, hi, near);
            continue;
        }
        if (a.silu) {
            float4 up = wide_sum(at + WIDE_UNIT * 4, a.parts);
            wide_bias(&up, a.w[1], n);
            if (n < w.n)
                put_bf16((__nv_bfloat16 *)w.out + r * w.ldo, n, a.pairs, wide_silu(s.x, up.x),
                         wide_silu(s.y, up.y), wide_silu(s.z, up.z), wide_silu(s.w, up.w));
            continue;
        }
        if (a.accumulate)
            wide_add(&s, before);
        float *out = (float *)w.out + r * w.ldo + n;
        if (w.vec) {
            if (n < w.n)
                *(float4 *)out = s;
            continue;
        }
        const float v[4] = {s.x, s.y, s.z, s.w};
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (n + j < w.n)
                out[j] = v[j];
    }
    if (a.parts > 1)
        wide_cluster_sync(); /* the others have read this block's sums */
#endif
}

#endif
