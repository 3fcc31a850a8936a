/* Absorbed latent attention on tensor cores: every query head of a row against the one latent row
 * of a key, whose first DV elements are its value too.
 *
 * A block of 8 warps takes a tile of M = rows x heads lines and a share of its keys, BN at a time,
 * each latent row in shared memory once for scores and values. Scores: a warp takes 8 keys (and
 * half the lines when there are four such groups). Weights are exchanged through shared memory;
 * values: a warp takes 64 of the 512 columns. Splits are merged by a kernel of its own: a line's
 * partial sums are 2 KiB, too many for the last block of a tile alone.
 *
 * grid (head tiles, tiles, splits). Bytes: the visible latent rows of each tile. */
#ifndef SPECD_ATTN_MLA_CUH
#define SPECD_ATTN_MLA_CUH

#include "attention/mma/fp8.cuh"
#include "attention/mma/rows.cuh"
#include "kernels/cuda/launch.cuh"

/* F8: the cache is fp8 (fp8.cuh). */
template <int MT_, int BN_, bool HL_, bool WIN_, bool F8_ = false> struct mla_conf {
    static constexpr int DQ = 576, DV = 512, MT = MT_, BN = BN_, ST = 2, T = 256;
    static constexpr bool HL = HL_, WIN = WIN_, F8 = F8_;
    static constexpr int M = 16 * MT;
    static constexpr int NG = BN / 8, RG = 8 / NG, MQ = MT / RG; /* groups of keys, of lines */
    static constexpr int q_bytes = M * rows_of<DQ>::bytes;
    static constexpr int k_bytes = BN * (F8 ? rows8_of<DQ>::bytes : rows_of<DQ>::bytes);
    static constexpr int p_bytes = M * rows_of<BN>::bytes;
    static constexpr int p_at = q_bytes * (HL ? 2 : 1), kv_at = p_at + p_bytes * (HL ? 2 : 1);
    static constexpr int smem = kv_at + ST * k_bytes;
    static_assert(BN == 64 || BN == 32, "keys of a step");
    static_assert(MT % RG == 0, "lines of a warp");
};

template <class C> struct mla_shared {
    tile_rows<C::M> rows;
    int idx[C::ST][C::BN];
    float top[C::NG][C::M]; /* maxima of a step, at the end sums */
};

/* Scores of the warp's 8 keys (from key0) and lines (from line0). */
template <class C>
static __device__ __forceinline__ void mla_scores(float (&s)[C::MQ][4], uint32_t q, uint32_t k,
                                                  int line0, int key0)
{
    int lane = threadIdx.x & 31;
    float part[C::MQ][C::HL ? 3 : 1][4] = {}; /* chains apart: one alone waits for itself */
#pragma unroll
    for (int i = 0; i < C::MQ; i++)
        s[i][0] = s[i][1] = s[i][2] = s[i][3] = 0;
#pragma unroll 6
    for (int kk = 0; kk < C::DQ / 32; kk++) {
        uint32_t b[4];
        ldsm4(b, k + rows_of<C::DQ>::at(key0 + (lane & 7), kk * 4 + (lane >> 3)));
#pragma unroll
        for (int i = 0; i < C::MQ; i++) {
            uint32_t x[4], y[4];
            int m = line0 + i * 16 + (lane & 15);
            uint32_t at0 = rows_of<C::DQ>::at(m, kk * 4 + (lane >> 4));
            uint32_t at1 = rows_of<C::DQ>::at(m, kk * 4 + 2 + (lane >> 4));
            ldsm4(x, q + at0);
            ldsm4(y, q + at1);
            mma_bf16(s[i], x, b[0], b[1]);
            mma_bf16(part[i][0], y, b[2], b[3]);
            if constexpr (C::HL) {
                ldsm4(x, q + C::q_bytes + at0);
                ldsm4(y, q + C::q_bytes + at1);
                mma_bf16(part[i][1], x, b[0], b[1]);
                mma_bf16(part[i][2], y, b[2], b[3]);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < C::MQ; i++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            s[i][e] += part[i][0][e];
            if constexpr (C::HL)
                s[i][e] += part[i][1][e] + part[i][2][e];
        }
}

/* The same over fp8 keys. */
template <class C>
static __device__ __forceinline__ void mla_scores8(float (&s)[C::MQ][4], uint32_t q, uint32_t k,
                                                   int line0, int key0)
{
    int lane = threadIdx.x & 31;
    float part[C::MQ][C::HL ? 3 : 1][4] = {};
#pragma unroll
    for (int i = 0; i < C::MQ; i++)
        s[i][0] = s[i][1] = s[i][2] = s[i][3] = 0;
#pragma unroll 3
    for (int kk = 0; kk < C::DQ / 64; kk++) {
        uint32_t r[4];
        ldsm4(r, k + rows8_of<C::DQ>::at(key0 + (lane & 7), kk * 4 + (lane >> 3)));
#pragma unroll
        for (int j = 0; j < 4; j++) { /* 16 columns each */
            uint32_t b0 = f16_pair(r[j]), b1 = f16_pair(r[j] >> 16);
#pragma unroll
            for (int i = 0; i < C::MQ; i++) {
                uint32_t x[4];
                uint32_t at = rows_of<C::DQ>::at(line0 + i * 16 + (lane & 15),
                                                 (kk * 4 + j) * 2 + (lane >> 4));
                ldsm4(x, q + at);
                mma_f16(j & 1 ? part[i][0] : s[i], x, b0, b1);
                if constexpr (C::HL) {
                    ldsm4(x, q + C::q_bytes + at);
                    mma_f16(part[i][1 + (j & 1)], x, b0, b1);
                }
            }
        }
    }
#pragma unroll
    for (int i = 0; i < C::MQ; i++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            s[i][e] += part[i][0][e];
            if constexpr (C::HL)
                s[i][e] += part[i][1][e] + part[i][2][e];
        }
}

/* The weights of all keys times the warp's 64 columns. */
template <class C>
static __device__ __forceinline__ void mla_values(float (&o)[C::MT][8][4], uint32_t p, uint32_t k,
                                                  int chunk0)
{
    int lane = threadIdx.x & 31;
#pragma unroll
    for (int kk = 0; kk < C::BN / 16; kk++) {
        uint32_t hi[C::MT][4], lo[C::MT][4];
#pragma unroll
        for (int mt = 0; mt < C::MT; mt++) {
            uint32_t at = rows_of<C::BN>::at(mt * 16 + (lane & 15), kk * 2 + (lane >> 4));
            ldsm4(hi[mt], p + at);
            if (C::HL)
                ldsm4(lo[mt], p + C::p_bytes + at);
        }
#pragma unroll
        for (int np = 0; np < 4; np++) {
            uint32_t b[4];
            ldsm4_t(b,
                    k + rows_of<C::DQ>::at(kk * 16 + (lane & 15), chunk0 + np * 2 + (lane >> 4)));
#pragma unroll
            for (int mt = 0; mt < C::MT; mt++) {
                mma_bf16(o[mt][np * 2], hi[mt], b[0], b[1]);
                mma_bf16(o[mt][np * 2 + 1], hi[mt], b[2], b[3]);
                if (C::HL) {
                    mma_bf16(o[mt][np * 2], lo[mt], b[0], b[1]);
                    mma_bf16(o[mt][np * 2 + 1], lo[mt], b[2], b[3]);
                }
            }
        }
    }
}

/* The same over fp8 values; even and odd columns of 16 as in fp8_values. */
template <class C>
static __device__ __forceinline__ void mla_values8(float (&o)[C::MT][8][4], uint32_t p, uint32_t k,
                                                   int chunk0)
{
    int lane = threadIdx.x & 31;
#pragma unroll
    for (int kk = 0; kk < C::BN / 16; kk++) {
        uint32_t hi[C::MT][4], lo[C::MT][4];
#pragma unroll
        for (int mt = 0; mt < C::MT; mt++) {
            uint32_t at = rows_of<C::BN>::at(mt * 16 + (lane & 15), kk * 2 + (lane >> 4));
            ldsm4(hi[mt], p + at);
            if (C::HL)
                ldsm4(lo[mt], p + C::p_bytes + at);
        }
#pragma unroll
        for (int np = 0; np < 4; np++) {
            uint32_t r[2];
            ldsm2_t(r, k + rows8_of<C::DQ>::at(kk * 16 + (lane & 15), chunk0 + np));
#pragma unroll
            for (int odd = 0; odd < 2; odd++) {
                uint32_t b0 = f16_column(r[0], odd), b1 = f16_column(r[1], odd);
#pragma unroll
                for (int mt = 0; mt < C::MT; mt++) {
                    mma_f16(o[mt][np * 2 + odd], hi[mt], b0, b1);
                    if (C::HL)
                        mma_f16(o[mt][np * 2 + odd], lo[mt], b0, b1);
                }
            }
        }
    }
}

template <class C>
static __device__ __forceinline__ void mla_load_q(const struct mma_args &a, char *q, int r0, int n,
                                                  int ht)
{
    constexpr int V = C::DQ / 8, LINE = C::T / C::M, AT_ONCE = 3; /* chunks, threads of a line */
    int m = threadIdx.x / LINE;
    tile_line l = line_of(a, r0, n, 0, ht, m);
    const float *p = a.c.q + l.row * a.c.ldq + l.head * C::DQ;
    if (!l.on)
        return; /* lines behind the last stay what they were */
#pragma unroll 1
    for (int c0 = threadIdx.x % LINE; c0 < V; c0 += AT_ONCE * LINE) {
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            int chunk = c0 + i * LINE;
            if (chunk >= V)
                continue;
            const float4 *from = (const float4 *)(p + chunk * 8);
            tile_put_q<C>(q, m, chunk, from[0], from[1]);
        }
    }
}

/* A few lanes take a row: its addresses differ by constants. */
template <class C>
static __device__ __forceinline__ void mla_fetch(const struct mma_args &a, uint32_t k,
                                                 const int *idx)
{
    constexpr int ROW = C::DQ * (C::F8 ? 1 : 2), LANES = C::F8 ? 4 : 8; /* bytes */
    static_assert(ROW % (16 * LANES) == 0, "chunks of a lane");
    int c = threadIdx.x % LANES;
    const char *K = (const char *)a.c.k + c * 16;
#pragma unroll 1
    for (int t = threadIdx.x / LANES; t < C::BN; t += C::T / LANES) {
        int at = idx[t];
        const char *from = K + (int64_t)at * ROW;
        uint32_t to = k + (C::F8 ? rows8_of<C::DQ>::at(t, c) : rows_of<C::DQ>::at(t, c));
#pragma unroll
        for (int i = 0; i < ROW / (16 * LANES); i++)
            cp16(to + (uint32_t)(i * 16 * LANES), from + i * 16 * LANES, at >= 0);
    }
}

template <class C>
static __device__ __forceinline__ void mla_tile(const struct mma_args &a, char *smem,
                                                mla_shared<C> &sh, int r0, int n, int ht, int split)
{
    const struct attn_call &c = a.c;
    int tid = threadIdx.x, warp = tid >> 5, lane = tid & 31;
    bool tree = c.ancestors != NULL;
    const int32_t *table = c.table + (int64_t)c.slot[r0] * c.pages_max;
    tile_load<C::T>(c, r0, n, sh.rows);
    __syncthreads();
    tile_span w = tile_measure(sh.rows, n, tree);
    int begin = 0, end = 0, active = 0;
    if (w.lo < w.hi) {
        begin = w.lo / C::BN;
        end = (w.hi + C::BN - 1) / C::BN;
        active = 1;
        if (!C::WIN)
            active = tile_share<C::BN>(a, w, split, &begin, &end);
    }
    if (!C::WIN && split == 0 && ht == 0 && tid < n)
        a.active[r0 + tid] = active;
    if (active == 0 && split == 0)
        tile_nothing<C::DV, C::T>(a, r0, n, 0, ht);
    if (split >= active)
        return;
    uint32_t q = smem_addr(smem), p = q + C::p_at, kv = q + C::kv_at;
    int kg = warp % C::NG, rg = warp / C::NG, line0 = rg * C::MQ * 16;
    float o[C::MT][8][4] = {}, mx[C::MT][2], mq[C::MQ][2], sum[C::MQ][2];
#pragma unroll
    for (int i = 0; i < C::MT; i++)
        mx[i][0] = mx[i][1] = -INFINITY;
#pragma unroll
    for (int i = 0; i < C::MQ; i++) {
        mq[i][0] = mq[i][1] = -INFINITY;
        sum[i][0] = sum[i][1] = 0;
    }
    bool cap = c.soft_cap > 0;
    float scale = cap ? 1.0f : c.scale * MMA_LOG2E;
    float cap_in = cap ? 2.0f * MMA_LOG2E * c.scale / c.soft_cap : 0.0f;
    int stage = 0, next = -1;
    /* Step t is weighed, t + 1 fetched, the one behind it looked up; the first two steps only fill
     * the stages. The body exists once: what a short piece of work waits for is its code. */
#pragma unroll 1
    for (int t = begin - 2; t < end; t++) {
        int *x = sh.idx[stage ^= 1]; /* of step t + 1 */
        cp_wait<0>();
        if (tid < C::BN)
            x[tid] = next;
        __syncthreads(); /* the step has arrived, the one before is used up */
        if (t + 1 >= begin && t + 1 < end)
            mla_fetch<C>(a, kv + (uint32_t)(stage * C::k_bytes), x);
        cp_commit();
        if (tid < C::BN && t + 2 < end)
            next = tile_key(a, sh.rows, n, w, table, (t + 2) * C::BN + tid);
        if (t < begin) {
            if (t == begin - 1) {
                mla_load_q<C>(a, smem, r0, n, ht);
                cuda_trigger();
            }
            continue;
        }
        uint32_t k = kv + (uint32_t)((stage ^ 1) * C::k_bytes);
        float s[C::MQ][4];
        if constexpr (C::F8)
            mla_scores8<C>(s, q, k, line0, kg * 8);
        else
            mla_scores<C>(s, q, k, line0, kg * 8);
        bool mask = t * C::BN < w.all_lo || (t + 1) * C::BN > w.all_hi || w.dead;
#pragma unroll
        for (int i = 0; i < C::MQ; i++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                int m = line0 + i * 16 + h * 8 + (lane >> 2);
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    float &v = s[i][h * 2 + e];
                    if (cap)
                        v = c.soft_cap * MMA_LOG2E *
                            (1.0f - __fdividef(2.0f, ex2(v * cap_in) + 1.0f));
                    if (mask && !tile_sees(sh.rows, tile_row(a, m),
                                           t * C::BN + kg * 8 + (lane & 3) * 2 + e))
                        v = -INFINITY;
                }
                float top = fmaxf(s[i][h * 2], s[i][h * 2 + 1]);
                top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
                top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
                if ((lane & 3) == 0)
                    sh.top[kg][m] = top;
            }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < C::MQ; i++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                int m = line0 + i * 16 + h * 8 + (lane >> 2);
                float top = mq[i][h];
#pragma unroll
                for (int g = 0; g < C::NG; g++)
                    top = fmaxf(top, sh.top[g][m]);
                float base = top == -INFINITY ? 0.0f : top * scale;
                float f = ex2(mq[i][h] * scale - base);
                float x0 = ex2(fmaf(s[i][h * 2], scale, -base));
                float x1 = ex2(fmaf(s[i][h * 2 + 1], scale, -base));
                mq[i][h] = top;
                sum[i][h] = sum[i][h] * f + x0 + x1;
                uint32_t v = C::F8 ? pack_f16(x0, x1) : pack_bf16(x0, x1);
                uint32_t at = rows_of<C::BN>::at(m, kg) + (lane & 3) * 4;
                *(uint32_t *)(smem + C::p_at + at) = v;
                if (C::HL)
                    *(uint32_t *)(smem + C::p_at + C::p_bytes + at) =
                        C::F8 ? pack_rest_f16(x0, x1, v) : pack_rest(x0, x1, v);
            }
#pragma unroll
        for (int mt = 0; mt < C::MT; mt++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                int m = mt * 16 + h * 8 + (lane >> 2);
                float top = mx[mt][h];
#pragma unroll
                for (int g = 0; g < C::NG; g++)
                    top = fmaxf(top, sh.top[g][m]);
                float base = top == -INFINITY ? 0.0f : top * scale;
                float old = mx[mt][h], f = ex2(old * scale - base);
                mx[mt][h] = top;
                if (!__any_sync(0xffffffffu, old != -INFINITY && f != 1.0f))
                    continue; /* no sums yet, or none to bring to another maximum */
#pragma unroll
                for (int nt = 0; nt < 8; nt++) {
                    o[mt][nt][h * 2] *= f;
                    o[mt][nt][h * 2 + 1] *= f;
                }
            }
        __syncthreads(); /* the weights are there */
        if constexpr (C::F8)
            mla_values8<C>(o, p, k, warp * 4);
        else
            mla_values<C>(o, p, k, warp * 8);
    }
    cp_wait<0>();
#pragma unroll
    for (int i = 0; i < C::MQ; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            sum[i][h] += __shfl_xor_sync(0xffffffffu, sum[i][h], 1);
            sum[i][h] += __shfl_xor_sync(0xffffffffu, sum[i][h], 2);
            if ((lane & 3) == 0)
                sh.top[kg][line0 + i * 16 + h * 8 + (lane >> 2)] = sum[i][h];
        }
    __syncthreads();
#pragma unroll
    for (int mt = 0; mt < C::MT; mt++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int m = mt * 16 + h * 8 + (lane >> 2);
            tile_line l = line_of(a, r0, n, 0, ht, m);
            line_place to = line_to(a, l, C::DV, active > 1, split);
            float total = 0, f = 0;
#pragma unroll
            for (int g = 0; g < C::NG; g++)
                total += sh.top[g][m];
            if (l.on)
                f = line_end(a, l, mx[mt][h] * scale, total, active > 1, split,
                             warp == 0 && (lane & 3) == 0);
#pragma unroll
            for (int nt = 0; nt < 8; nt += 2) {
                const float *x = o[mt][nt] + h * 2, *y = o[mt][nt + 1] + h * 2;
                int col = warp * 64 + nt * 8;
                if constexpr (!C::F8)
                    line_pair(to, l.on, col, x, y, f);
                else if (l.on)
                    line_put(to, col + (lane & 3) * 4, make_float4(x[0], y[0], x[1], y[1]), f);
            }
        }
}

template <class C> __global__ void __launch_bounds__(C::T, 1) mla_kernel(struct mma_args a)
{
    extern __shared__ __align__(128) char mla_smem[];
    __shared__ mla_shared<C> sh;
    cuda_wait();
    int ht = blockIdx.x;
    if constexpr (C::WIN) { /* the last rows see most: first */
        int r0 = (gridDim.y - 1 - blockIdx.y) * a.tile_rows, end = min(a.c.rows, r0 + a.tile_rows);
        while (r0 < end) {
            int e = r0 + 1;
            while (e < end && a.c.slot[e] == a.c.slot[r0])
                e++;
            mla_tile<C>(a, mla_smem, sh, r0, e - r0, ht, 0);
            r0 = e;
            __syncthreads();
        }
    } else {
        for (int t = blockIdx.y; t < a.c.rows; t += gridDim.y) { /* no more tiles than rows */
            int r0 = t, n = 1;
            if (a.tile_rows > 1) {
                if (!tile_find<C::T>(a, t, sh.rows))
                    break;
                r0 = sh.rows.pick[0];
                n = sh.rows.pick[1];
            }
            mla_tile<C>(a, mla_smem, sh, r0, n, ht, blockIdx.z);
            __syncthreads();
        }
    }
}

template <class C> static struct mma_kernel mla_entry(void)
{
    struct mma_kernel k = {C::M, C::BN, C::T, (unsigned)C::smem, mla_kernel<C>};
    return k;
}

#endif
