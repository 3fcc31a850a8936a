/* Attention of grouped query heads on tensor cores, decode, verify and prefill in one form.
 *
 * A block takes a tile: up to M = rows x heads lines of one run of rows and one KV head, and a
 * share of its keys, BN at a time. Keys and values go through shared memory once for all lines.
 * Warps share the lines (MW x 16 MT) and, when lines are few, the keys of a step (TW). Scores and
 * sums are fp32; with HL queries and weights are split into two bf16 parts, so that only the
 * cache's own rounding is left: decode and short verifies are bound by the cache's bytes, not by
 * products. F8: the cache is fp8 (fp8.cuh).
 *
 * grid (KV heads x head tiles, tiles, splits). Bytes: the visible keys and values of each tile. */
#ifndef SPECD_ATTN_GQA_CUH
#define SPECD_ATTN_GQA_CUH

#include "attention/mma/fp8.cuh"
#include "attention/mma/rows.cuh"
#include "kernels/cuda/launch.cuh"

/* WIN: tiles are windows of rows at fixed places, worked off run by run (long runs, no splits). */
template <int DQ_, int DV_, int MT_, int MW_, int TW_, int BN_, int ST_, bool HL_, bool WIN_,
          int BLOCKS_, bool F8_ = false>
struct gqa_conf {
    static constexpr int DQ = DQ_, DV = DV_, MT = MT_, MW = MW_, TW = TW_, BN = BN_, ST = ST_;
    static constexpr bool HL = HL_, WIN = WIN_, F8 = F8_;
    static constexpr int M = 16 * MT * MW, T = 32 * MW * TW, NT = BN / TW / 8, BLOCKS = BLOCKS_;
    static constexpr int q_bytes = M * rows_of<DQ>::bytes;
    static constexpr int k_bytes = BN * (F8 ? rows8_of<DQ>::bytes : rows_of<DQ>::bytes);
    static constexpr int v_bytes = BN * (F8 ? rows8_of<DV>::bytes : rows_of<DV>::bytes);
    static constexpr int kv_at = q_bytes * (HL ? 2 : 1);
    static constexpr int smem = kv_at + ST * (k_bytes + v_bytes);
    static_assert(BN <= T && BN % (16 * TW) == 0 && DQ % 16 == 0 && DV % 16 == 0, "tile");
    static_assert(TW == 1 || ST * (k_bytes + v_bytes) >= TW * M * (DV + 10) * 4, "merge of warps");
};

/* ---- one step of keys ---- */

template <class C>
static __device__ __forceinline__ void gqa_scores(float (&s)[C::MT][C::NT][4], uint32_t q,
                                                  uint32_t k, int line0, int key0)
{
    int lane = threadIdx.x & 31;
#pragma unroll
    for (int mt = 0; mt < C::MT; mt++)
#pragma unroll
        for (int nt = 0; nt < C::NT; nt++)
            s[mt][nt][0] = s[mt][nt][1] = s[mt][nt][2] = s[mt][nt][3] = 0;
#pragma unroll
    for (int kk = 0; kk < C::DQ / 16; kk++) {
        uint32_t hi[C::MT][4], lo[C::MT][4];
#pragma unroll
        for (int mt = 0; mt < C::MT; mt++) {
            uint32_t at = rows_of<C::DQ>::at(line0 + mt * 16 + (lane & 15), kk * 2 + (lane >> 4));
            ldsm4(hi[mt], q + at);
            if (C::HL)
                ldsm4(lo[mt], q + C::q_bytes + at);
        }
#pragma unroll
        for (int np = 0; np < C::NT / 2; np++) {
            uint32_t b[4];
            ldsm4(b, k + rows_of<C::DQ>::at(key0 + np * 16 + (lane & 7) + (lane >> 4) * 8,
                                            kk * 2 + (lane >> 3 & 1)));
#pragma unroll
            for (int mt = 0; mt < C::MT; mt++) {
                mma_bf16(s[mt][np * 2], hi[mt], b[0], b[1]);
                mma_bf16(s[mt][np * 2 + 1], hi[mt], b[2], b[3]);
                if (C::HL) {
                    mma_bf16(s[mt][np * 2], lo[mt], b[0], b[1]);
                    mma_bf16(s[mt][np * 2 + 1], lo[mt], b[2], b[3]);
                }
            }
        }
    }
}

template <class C>
static __device__ __forceinline__ void gqa_values(float (&o)[C::MT][C::DV / 8][4],
                                                  float (&s)[C::MT][C::NT][4], uint32_t v, int key0)
{
    int lane = threadIdx.x & 31;
#pragma unroll
    for (int kk = 0; kk < C::NT / 2; kk++) {
        uint32_t hi[C::MT][4], lo[C::MT][4];
#pragma unroll
        for (int mt = 0; mt < C::MT; mt++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float *p = &s[mt][kk * 2 + (i >> 1)][(i & 1) * 2];
                hi[mt][i] = pack_bf16(p[0], p[1]);
                if (C::HL)
                    lo[mt][i] = pack_rest(p[0], p[1], hi[mt][i]);
            }
#pragma unroll
        for (int np = 0; np < C::DV / 16; np++) {
            uint32_t b[4];
            ldsm4_t(b, v + rows_of<C::DV>::at(key0 + kk * 16 + (lane & 15), np * 2 + (lane >> 4)));
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

/* Scores beyond what a line sees become -inf; with a cap scores become base-2 exponents. */
template <class C>
static __device__ __forceinline__ void gqa_cap(float (&s)[C::MT][C::NT][4], float in, float out)
{
#pragma unroll
    for (int mt = 0; mt < C::MT; mt++)
#pragma unroll
        for (int nt = 0; nt < C::NT; nt++)
#pragma unroll
            for (int i = 0; i < 4; i++) /* tanh x = 1 - 2 / (e^2x + 1) */
                s[mt][nt][i] = out * (1.0f - __fdividef(2.0f, ex2(s[mt][nt][i] * in) + 1.0f));
}

template <class C>
static __device__ __forceinline__ void gqa_mask(const struct mma_args &a,
                                                float (&s)[C::MT][C::NT][4],
                                                const tile_rows<C::M> &rows, int line0, int p0)
{
    static_assert(C::NT <= 8, "bits of a word");
    constexpr bool FEW = C::M <= 32 && C::NT <= 4; /* a row a lane, bits of half a word */
    int lane = threadIdx.x & 31;
    uint32_t sees = FEW && lane < C::M ? (uint32_t)tile_bits(rows, lane, p0) : 0;
#pragma unroll
    for (int mt = 0; mt < C::MT; mt++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int i = tile_row(a, line0 + mt * 16 + h * 8 + (lane >> 2));
            uint64_t on = FEW ? __shfl_sync(0xffffffffu, sees, i) : tile_bits(rows, i, p0);
            on >>= (lane & 3) * 2;
#pragma unroll
            for (int nt = 0; nt < C::NT; nt++)
#pragma unroll
                for (int e = 0; e < 2; e++)
                    if (!(on >> (nt * 8 + e) & 1))
                        s[mt][nt][h * 2 + e] = -INFINITY;
        }
}

/* Running maximum, weights in place of scores, sums so far brought to the new maximum. The sums of
 * weights stay a lane's own until the end. */
template <class C>
static __device__ __forceinline__ void
gqa_softmax(float (&s)[C::MT][C::NT][4], float (&o)[C::MT][C::DV / 8][4], float (&mx)[C::MT][2],
            float (&sum)[C::MT][2], float scale)
{
#pragma unroll
    for (int mt = 0; mt < C::MT; mt++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float m = mx[mt][h];
#pragma unroll
            for (int nt = 0; nt < C::NT; nt++)
                m = fmaxf(m, fmaxf(s[mt][nt][h * 2], s[mt][nt][h * 2 + 1]));
            m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 1));
            m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 2));
            float base = m == -INFINITY ? 0.0f : m * scale;
            float old = mx[mt][h], f = ex2(old * scale - base), t = 0;
            mx[mt][h] = m;
#pragma unroll
            for (int nt = 0; nt < C::NT; nt++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    float p = ex2(fmaf(s[mt][nt][h * 2 + e], scale, -base));
                    s[mt][nt][h * 2 + e] = p;
                    t += p;
                }
            sum[mt][h] = sum[mt][h] * f + t;
            if (!__any_sync(0xffffffffu, old != -INFINITY && f != 1.0f))
                continue; /* no sums yet, or none to bring to another maximum */
#pragma unroll
            for (int nt = 0; nt < C::DV / 8; nt++) {
                o[mt][nt][h * 2] *= f;
                o[mt][nt][h * 2 + 1] *= f;
            }
        }
}

/* ---- a tile ---- */

/* Lines behind the last stay what they were. */
template <class C>
static __device__ __forceinline__ void gqa_load_q(const struct mma_args &a, char *q, int r0, int n,
                                                  int kvh, int ht)
{
    constexpr int V = C::DQ / 8; /* chunks of a line */
#pragma unroll 2
    for (int i = threadIdx.x; i < C::M * V; i += C::T) {
        int m = i / V, chunk = i % V;
        tile_line l = line_of(a, r0, n, kvh, ht, m);
        if (!l.on)
            continue;
        const float4 *p = (const float4 *)(a.c.q + l.row * a.c.ldq + l.head * C::DQ + chunk * 8);
        tile_put_q<C>(q, m, chunk, p[0], p[1]);
    }
}

/* One step's keys and values on their way to shared memory. */
template <class C>
static __device__ __forceinline__ void gqa_fetch(const struct mma_args &a, uint32_t kv,
                                                 const int *idx, int kvh)
{
    constexpr int E = C::F8 ? 1 : 2, KC = C::DQ * E / 16, VC = C::DV * E / 16; /* bytes, chunks */
    const char *K = (const char *)a.c.k + kvh * C::DQ * E;
    const char *V = (const char *)a.c.v + kvh * C::DV * E;
    if constexpr (KC == VC && C::T % KC == 0) { /* a thread keeps its column: addresses are sums */
        constexpr int STEP = C::T / KC;
        int t0 = threadIdx.x / KC, c = threadIdx.x % KC, ld = a.c.n_kv * C::DQ * E;
        K += c * 16;
        V += c * 16;
#pragma unroll 4
        for (int j = 0; j < C::BN / STEP; j++) {
            int t = t0 + j * STEP, at = idx[t];
            int64_t from = (int64_t)at * ld;
            uint32_t to = kv + (C::F8 ? rows8_of<C::DQ>::at(t, c) : rows_of<C::DQ>::at(t, c));
            cp16(to, K + from, at >= 0);
            cp16(to + C::k_bytes, V + from, at >= 0);
        }
    } else {
#pragma unroll
        for (int i = threadIdx.x; i < C::BN * KC; i += C::T) {
            int t = i / KC, c = i % KC, at = idx[t];
            cp16(kv + (C::F8 ? rows8_of<C::DQ>::at(t, c) : rows_of<C::DQ>::at(t, c)),
                 K + (int64_t)at * (a.c.n_kv * C::DQ * E) + c * 16, at >= 0);
        }
#pragma unroll
        for (int i = threadIdx.x; i < C::BN * VC; i += C::T) {
            int t = i / VC, c = i % VC, at = idx[t];
            cp16(kv + C::k_bytes + (C::F8 ? rows8_of<C::DV>::at(t, c) : rows_of<C::DV>::at(t, c)),
                 V + (int64_t)at * (a.c.n_kv * C::DV * E) + c * 16, at >= 0);
        }
    }
}

/* The last block of a tile to arrive merges all splits, in their order. */
template <class C>
static __device__ __forceinline__ void gqa_merge(const struct mma_args &a, int r0, int n, int kvh,
                                                 int ht, int splits)
{
    __shared__ int last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        int32_t *at = a.count + ((int64_t)r0 * a.c.n_kv + kvh) * a.head_tiles + ht;
        last = atomicAdd(at, 1) == splits - 1;
        if (last)
            *at = 0; /* for the next launch */
    }
    __syncthreads();
    if (!last)
        return;
    __threadfence();
    int step = a.c.rows * a.c.n_head;
#pragma unroll 1
    for (int i = threadIdx.x; i < n * a.tile_heads * (C::DV / 4); i += C::T) {
        int m = i / (C::DV / 4), col = i % (C::DV / 4) * 4;
        tile_line l = line_of(a, r0, n, kvh, ht, m);
        if (!l.on)
            continue;
        int at = l.row * a.c.n_head + l.head;
        float4 x[SPLITS_LONG], t = {0, 0, 0, 0};
        float2 ml[SPLITS_LONG];
        float top = -INFINITY, sum = 0;
#pragma unroll
        for (int s = 0; s < SPLITS_LONG; s++) {
            ml[s] = {-INFINITY, 0};
            x[s] = t;
            if (s < splits) {
                ml[s] = __ldcg((const float2 *)a.part_ml + s * step + at);
                x[s] = __ldcg((const float4 *)(a.part + (int64_t)(s * step + at) * C::DV + col));
            }
            top = fmaxf(top, ml[s].x);
        }
        float base = top == -INFINITY ? 0.0f : top;
#pragma unroll
        for (int s = 0; s < SPLITS_LONG; s++) {
            float f = ex2(ml[s].x - base);
            sum += ml[s].y * f;
            t.x = fmaf(x[s].x, f, t.x), t.y = fmaf(x[s].y, f, t.y);
            t.z = fmaf(x[s].z, f, t.z), t.w = fmaf(x[s].w, f, t.w);
        }
        float f = line_end(a, l, top, sum, false, 0, col == 0);
        line_put(line_to(a, l, C::DV, false, 0), col, t, f);
    }
}

/* Lines of warps that shared keys are added up in shared memory. */
template <class C, bool F8 = false>
static __device__ __forceinline__ void
gqa_finish_shared(const struct mma_args &a, char *kv, float (&o)[C::MT][C::DV / 8][4],
                  float (&mx)[C::MT][2], float (&sum)[C::MT][2], float scale, int r0, int n,
                  int kvh, int ht, bool part, int split)
{
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, line0 = warp % C::MW * 16 * C::MT;
    int wt = warp / C::MW;
    constexpr int LINE = C::DV + 8;                                /* lines start in other banks */
    float *so = (float *)kv;                                       /* [TW][M][LINE] */
    float *sm = so + C::TW * C::M * LINE, *sl = sm + C::TW * C::M; /* [TW][M] */
#pragma unroll
    for (int mt = 0; mt < C::MT; mt++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int m = wt * C::M + line0 + mt * 16 + h * 8 + (lane >> 2);
            if ((lane & 3) == 0) {
                sm[m] = mx[mt][h] * scale;
                sl[m] = sum[mt][h];
            }
#pragma unroll
            for (int nt = 0; nt < C::DV / 8; nt++) {
                const float *x = o[mt][nt] + h * 2;
                if constexpr (!F8) {
                    *(float2 *)(so + m * LINE + nt * 8 + (lane & 3) * 2) = {x[0], x[1]};
                } else if (nt % 2 == 0) {
                    const float *y = o[mt][nt + 1] + h * 2;
                    *(float4 *)(so + m * LINE + nt * 8 + (lane & 3) * 4) = {x[0], y[0], x[1], y[1]};
                }
            }
        }
    __syncthreads();
#pragma unroll 1
    for (int i = threadIdx.x; i < n * a.tile_heads * (C::DV / 4); i += C::T) {
        int m = i / (C::DV / 4), col = i % (C::DV / 4) * 4;
        tile_line l = line_of(a, r0, n, kvh, ht, m);
        if (!l.on)
            continue;
        float top = -INFINITY, total = 0;
#pragma unroll
        for (int t = 0; t < C::TW; t++)
            top = fmaxf(top, sm[t * C::M + m]);
        float base = top == -INFINITY ? 0.0f : top;
        float4 x = {0, 0, 0, 0};
#pragma unroll
        for (int t = 0; t < C::TW; t++) {
            float f = ex2(sm[t * C::M + m] - base);
            float4 y = *(float4 *)(so + (t * C::M + m) * LINE + col);
            total += sl[t * C::M + m] * f;
            x.x = fmaf(y.x, f, x.x), x.y = fmaf(y.y, f, x.y);
            x.z = fmaf(y.z, f, x.z), x.w = fmaf(y.w, f, x.w);
        }
        float f = line_end(a, l, top, total, part, split, col == 0);
        line_put(line_to(a, l, C::DV, part, split), col, x, f);
    }
}

template <class C, bool F8 = false>
static __device__ __forceinline__ void
gqa_finish_own(const struct mma_args &a, float (&o)[C::MT][C::DV / 8][4], float (&mx)[C::MT][2],
               float (&sum)[C::MT][2], float scale, int r0, int n, int kvh, int ht, bool part,
               int split)
{
    int lane = threadIdx.x & 31, line0 = (threadIdx.x >> 5) * 16 * C::MT;
#pragma unroll
    for (int mt = 0; mt < C::MT; mt++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            tile_line l = line_of(a, r0, n, kvh, ht, line0 + mt * 16 + h * 8 + (lane >> 2));
            line_place to = line_to(a, l, C::DV, part, split);
            float f = 0;
            if (l.on)
                f = line_end(a, l, mx[mt][h] * scale, sum[mt][h], part, split, (lane & 3) == 0);
#pragma unroll
            for (int nt = 0; nt < C::DV / 8; nt += 2) {
                const float *x = o[mt][nt] + h * 2, *y = o[mt][nt + 1] + h * 2;
                if constexpr (!F8)
                    line_pair(to, l.on, nt * 8, x, y, f);
                else if (l.on)
                    line_put(to, nt * 8 + (lane & 3) * 4, make_float4(x[0], y[0], x[1], y[1]), f);
            }
        }
}

/* The tile of rows [r0, r0 + n). */
template <class C>
static __device__ __forceinline__ void gqa_tile(const struct mma_args &a, char *smem,
                                                tile_rows<C::M> &rows, int (*idx)[C::BN], int r0,
                                                int n, int kvh, int ht, int split)
{
    const struct attn_call &c = a.c;
    int tid = threadIdx.x, warp = tid >> 5;
    bool tree = c.ancestors != NULL;
    const int32_t *table = c.table + (int64_t)c.slot[r0] * c.pages_max;
    tile_load<C::T>(c, r0, n, rows);
    __syncthreads();
    tile_span w = tile_measure(rows, n, tree);
    bool live = w.lo < w.hi;
    int begin = w.lo / C::BN, end = (w.hi + C::BN - 1) / C::BN, active = live;
    if (!C::WIN && live)
        active = tile_share<C::BN>(a, w, split, &begin, &end);
    if (!C::WIN && a.merge_apart && blockIdx.x == 0 && split == 0 && tid < n)
        a.active[r0 + tid] = active;
    if (!live) {
        if (split == 0)
            tile_nothing<C::DV, C::T>(a, r0, n, kvh, ht);
        return;
    }
    if (split >= active)
        return;
    uint32_t q = smem_addr(smem), kv = q + C::kv_at;
    constexpr uint32_t step = C::k_bytes + C::v_bytes;
    float o[C::MT][C::DV / 8][4] = {}, s[C::MT][C::NT][4], mx[C::MT][2], sum[C::MT][2];
#pragma unroll
    for (int mt = 0; mt < C::MT; mt++) {
        mx[mt][0] = mx[mt][1] = -INFINITY;
        sum[mt][0] = sum[mt][1] = 0;
    }
    bool cap = c.soft_cap > 0;
    float scale = cap ? 1.0f : c.scale * MMA_LOG2E;
    float cap_in = cap ? 2.0f * MMA_LOG2E * c.scale / c.soft_cap : 0.0f;
    int line0 = warp % C::MW * 16 * C::MT, key0 = warp / C::MW * (C::BN / C::TW);
    int slot = C::ST - 1, next = -1;
    /* Step t is weighed, t + ST - 1 fetched, the one behind it looked up; the first ST steps only
     * fill the stages. The body exists once: what a short piece of work waits for is its code. */
#pragma unroll 1
    for (int t = begin - C::ST; t < end; t++) {
        int far = t + C::ST - 1, *x = idx[slot]; /* its stage */
        uint32_t into = kv + (uint32_t)slot * step;
        slot = slot == C::ST - 1 ? 0 : slot + 1; /* the stage of t */
        cp_wait<C::ST - 2>();
        if (tid < C::BN)
            x[tid] = next;
        __syncthreads(); /* the step has arrived, the one before is used up */
        if (far >= begin && far < end)
            gqa_fetch<C>(a, into, x, kvh);
        cp_commit();
        if (tid < C::BN && far + 1 < end)
            next = tile_key(a, rows, n, w, table, (far + 1) * C::BN + tid);
        if (t < begin) {
            if (t == begin - 1) {
                gqa_load_q<C>(a, smem, r0, n, kvh, ht);
                cuda_trigger();
            }
            continue;
        }
        uint32_t k = kv + (uint32_t)slot * step;
        if constexpr (C::F8)
            fp8_scores<C>(s, q, k, line0, key0);
        else
            gqa_scores<C>(s, q, k, line0, key0);
        if (cap)
            gqa_cap<C>(s, cap_in, c.soft_cap * MMA_LOG2E);
        if (t * C::BN < w.all_lo || (t + 1) * C::BN > w.all_hi || w.dead)
            gqa_mask<C>(a, s, rows, line0, t * C::BN + key0);
        gqa_softmax<C>(s, o, mx, sum, scale);
        if constexpr (C::F8)
            fp8_values<C>(o, s, k + C::k_bytes, key0);
        else
            gqa_values<C>(o, s, k + C::k_bytes, key0);
    }
#pragma unroll
    for (int mt = 0; mt < C::MT; mt++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            sum[mt][h] += __shfl_xor_sync(0xffffffffu, sum[mt][h], 1);
            sum[mt][h] += __shfl_xor_sync(0xffffffffu, sum[mt][h], 2);
        }
    cp_wait<0>();
    bool part = active > 1;
    if (C::TW > 1) {
        __syncthreads();
        gqa_finish_shared<C, C::F8>(a, smem + C::kv_at, o, mx, sum, scale, r0, n, kvh, ht, part,
                                    split);
    } else {
        gqa_finish_own<C, C::F8>(a, o, mx, sum, scale, r0, n, kvh, ht, part, split);
    }
    if (!C::WIN && part && !a.merge_apart)
        gqa_merge<C>(a, r0, n, kvh, ht, active);
}

template <class C> __global__ void __launch_bounds__(C::T, C::BLOCKS) gqa_kernel(struct mma_args a)
{
    extern __shared__ __align__(128) char gqa_smem[];
    __shared__ tile_rows<C::M> rows;
    __shared__ int idx[C::ST][C::BN];
    cuda_wait();
    int kvh = tile_div((int)blockIdx.x, a.head_tiles), ht = (int)blockIdx.x - kvh * a.head_tiles;
    if constexpr (C::WIN) { /* the last rows see most: first */
        int r0 = (gridDim.y - 1 - blockIdx.y) * a.tile_rows, end = min(a.c.rows, r0 + a.tile_rows);
        while (r0 < end) {
            int e = r0 + 1;
            while (e < end && a.c.slot[e] == a.c.slot[r0])
                e++;
            gqa_tile<C>(a, gqa_smem, rows, idx, r0, e - r0, kvh, ht, 0);
            r0 = e;
            __syncthreads();
        }
    } else {
        for (int t = blockIdx.y; t < a.c.rows; t += gridDim.y) { /* no more tiles than rows */
            int r0 = t, n = 1;
            if (a.tile_rows > 1) {
                if (!tile_find<C::T>(a, t, rows))
                    break;
                r0 = rows.pick[0];
                n = rows.pick[1];
            }
            gqa_tile<C>(a, gqa_smem, rows, idx, r0, n, kvh, ht, blockIdx.z);
            __syncthreads();
        }
    }
}

template <class C> static struct mma_kernel gqa_entry(void)
{
    struct mma_kernel k = {C::M, C::BN, C::T, (unsigned)C::smem, gqa_kernel<C>};
    return k;
}

#endif
