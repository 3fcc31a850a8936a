/* Prefill of grouped query heads with warpgroup products (sm_90a).
 *
 * A block takes a window of M = 128 lines (rows x heads of one KV head), works off its runs of rows
 * one after the other, and goes over a run's keys BN at a time: one warpgroup brings keys and
 * values into a ring in shared memory, two multiply 64 lines each. While a warpgroup weighs the
 * scores of a step, the products of the step before with its values run. Scores and sums are fp32,
 * queries and weights are rounded to bf16 once.
 *
 * Matrices in shared memory are columns of 64 values: rows of 128 bytes whose 16-byte chunks change
 * places by the row's low bits, as warpgroup products read them.
 *
 * grid (KV heads x head tiles, windows); 384 threads. */
#ifndef SPECD_ATTN_WIDE_CUH
#define SPECD_ATTN_WIDE_CUH

#include "attention/mma/gqa.cuh"
#include "kernels/cuda/warpgroup.cuh"

template <int DQ_, int DV_, int BN_> struct wide_conf {
    static constexpr int DQ = DQ_, DV = DV_, BN = BN_, ST = 2, MT = 1, NT = BN / 8;
    static constexpr int M = 128, T = 384, LOADERS = 128, FILL = 256;
    static constexpr int q_bytes = M * DQ * 2, k_bytes = BN * DQ * 2, v_bytes = BN * DV * 2;
    static constexpr int smem = 1024 + q_bytes + ST * (k_bytes + v_bytes);
    static_assert(BN <= LOADERS && BN % 16 == 0 && DQ % 64 == 0 && DV % 64 == 0, "tile");
};

template <class C> struct wide_shared {
    tile_rows<C::M> rows;
    int idx[2][C::BN]; /* pool rows of a step's keys */
    uint64_t k_full[C::ST], v_full[C::ST], k_free[C::ST], v_free[C::ST];
};

/* Chunk `c` of row `r` of a matrix of R rows. */
template <int R> static __device__ __forceinline__ uint32_t wide_at(int r, int c)
{
    return (uint32_t)(c / 8 * (R * 128) + r * 128 + (((c & 7) ^ (r & 7)) << 4));
}

/* What a window does in turn: [r0, r0 + n) is a run of it. */
struct wide_run {
    int r0, n;
    tile_span w;
    int begin, end; /* steps of keys */
};

/* Every thread of the block. False: the window is done. */
template <class C>
static __device__ __forceinline__ bool wide_next(const struct mma_args &a, wide_shared<C> &s,
                                                 wide_run *run, int last)
{
    int r0 = run->r0 + run->n, e = r0 + 1;
    __syncthreads(); /* the run before is worked off */
    if (r0 >= last)
        return false;
    while (e < last && a.c.slot[e] == a.c.slot[r0])
        e++;
    run->r0 = r0;
    run->n = e - r0;
    tile_load<C::T>(a.c, r0, run->n, s.rows);
    __syncthreads();
    run->w = tile_measure(s.rows, run->n, a.c.ancestors != NULL);
    bool live = run->w.lo < run->w.hi;
    run->begin = live ? run->w.lo / C::BN : 0;
    run->end = live ? (run->w.hi + C::BN - 1) / C::BN : 0;
    return true;
}

/* ---- the warpgroup that loads ---- */

/* Rows idx[] of a pool with D values a head go to `to`; a thread has one chunk of every 16th row.
 */
template <int D, int BN>
static __device__ __forceinline__ void wide_fetch(uint32_t to, const char *from, uint32_t row_bytes,
                                                  const int *idx, int tid)
{
    int r0 = tid / 8, c = tid % 8;
    to += (uint32_t)(r0 * 128 + ((c ^ (r0 & 7)) << 4));
    from += c * 16;
#pragma unroll
    for (int i = 0; i < BN / 16; i++) {
        int p = idx[r0 + i * 16];
        const char *x = from + (uint64_t)max(p, 0) * row_bytes;
#pragma unroll
        for (int j = 0; j < D / 64; j++)
            cp16(to + i * 2048 + j * (BN * 128), x + j * 128, p >= 0);
    }
}

template <class C>
static __device__ __forceinline__ void wide_loads(const struct mma_args &a, wide_shared<C> &s,
                                                  uint32_t kv, wide_run run, int last, int kvh)
{
    const char *K = (const char *)a.c.k + kvh * (C::DQ * 2),
               *V = (const char *)a.c.v + kvh * (C::DV * 2);
    uint32_t k_row = (uint32_t)a.c.n_kv * (C::DQ * 2), v_row = (uint32_t)a.c.n_kv * (C::DV * 2);
    int tid = threadIdx.x - C::FILL, step = 0; /* steps so far, of all runs */
    while (wide_next(a, s, &run, last)) {
        const int32_t *table = a.c.table + (int64_t)a.c.slot[run.r0] * a.c.pages_max;
        auto key_of = [&](int t) {
            return tid < C::BN && t < run.end
                       ? tile_key(a, s.rows, run.n, run.w, table, t * C::BN + tid)
                       : -1;
        };
        int key = key_of(run.begin);
        for (int t = run.begin; t < run.end; t++, step++) {
            int at = step % C::ST, parity = (step / C::ST + 1) & 1;
            int *idx = s.idx[step & 1];
            uint32_t k = kv + (uint32_t)at * (C::k_bytes + C::v_bytes);
            if (tid < C::BN)
                idx[tid] = key;
            bar_group(1, C::LOADERS);
            key = key_of(t + 1);
            bar_wait(&s.k_free[at], parity);
            wide_fetch<C::DQ, C::BN>(k, K, k_row, idx, tid);
            bar_arrive_copies(&s.k_full[at]);
            bar_wait(&s.v_free[at], parity);
            wide_fetch<C::DV, C::BN>(k + C::k_bytes, V, v_row, idx, tid);
            bar_arrive_copies(&s.v_full[at]);
        }
    }
}

/* ---- the warpgroups that multiply ---- */

template <class C>
static __device__ __forceinline__ void wide_load_q(const struct mma_args &a, char *q,
                                                   const wide_run &run, int kvh, int ht)
{
    constexpr int V = C::DQ / 8;
    for (int i = threadIdx.x; i < C::M * V; i += C::FILL) {
        int m = i / V, c = i % V;
        tile_line l = line_of(a, run.r0, run.n, kvh, ht, m);
        float4 x = {0, 0, 0, 0}, y = x;
        if (l.on) {
            const float4 *p =
                (const float4 *)(a.c.q + l.row * a.c.ldq + (int64_t)l.head * C::DQ + c * 8);
            x = p[0];
            y = p[1];
        }
        *(uint4 *)(q + wide_at<C::M>(m, c)) = {pack_bf16(x.x, x.y), pack_bf16(x.z, x.w),
                                               pack_bf16(y.x, y.y), pack_bf16(y.z, y.w)};
    }
    wg_written();
    bar_group(2, C::FILL);
}

/* Weights in place of scores, the new maximum; *f brings earlier sums to it. */
template <class C>
static __device__ __forceinline__ void wide_weigh(float (&s)[1][C::NT][4], float (&mx)[2],
                                                  float (&sum)[2], float (&f)[2], float scale)
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float m = mx[h];
#pragma unroll
        for (int nt = 0; nt < C::NT; nt++)
            m = fmaxf(m, fmaxf(s[0][nt][h * 2], s[0][nt][h * 2 + 1]));
        m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 1));
        m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 2));
        float base = m == -INFINITY ? 0.0f : m * scale, t = 0;
        f[h] = ex2(mx[h] * scale - base);
        mx[h] = m;
#pragma unroll
        for (int nt = 0; nt < C::NT; nt++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                float p = ex2(fmaf(s[0][nt][h * 2 + e], scale, -base));
                s[0][nt][h * 2 + e] = p;
                t += p;
            }
        sum[h] = sum[h] * f[h] + t;
    }
}

template <class C>
static __device__ __forceinline__ void wide_scores(float (&s)[1][C::NT][4], uint32_t q, uint32_t k)
{
    wg_hold(s[0]);
    wg_fence();
#pragma unroll
    for (int kk = 0; kk < C::DQ / 16; kk++)
        wg_mul<C::BN>(s[0], wg_rows(q + kk / 4 * (C::M * 128) + kk % 4 * 32),
                      wg_rows(k + kk / 4 * (C::BN * 128) + kk % 4 * 32), kk > 0);
    wg_commit();
}

template <class C>
static __device__ __forceinline__ void wide_values(float (&o)[1][C::DV / 8][4],
                                                   uint32_t (&p)[C::BN / 16][4], uint32_t v)
{
    wg_hold(o[0]);
    wg_fence();
#pragma unroll
    for (int kk = 0; kk < C::BN / 16; kk++)
        wg_mul_cols<C::DV>(o[0], p[kk], wg_cols(v + kk * 2048, C::BN * 128));
    wg_commit();
}

template <class C>
static __device__ __forceinline__ void wide_pack(uint32_t (&p)[C::BN / 16][4],
                                                 float (&s)[1][C::NT][4])
{
#pragma unroll
    for (int kk = 0; kk < C::BN / 16; kk++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float *x = &s[0][kk * 2 + (i >> 1)][(i & 1) * 2];
            p[kk][i] = pack_bf16(x[0], x[1]);
        }
}

/* A step's scores, as base-2 exponents or to be scaled, hidden keys -inf. Prefill knows ranges
 * only. */
template <class C>
static __device__ __forceinline__ void wide_mask(const struct mma_args &a, const wide_shared<C> &sh,
                                                 const wide_run &run, float (&s)[1][C::NT][4],
                                                 int line0, int t)
{
    if (a.c.soft_cap > 0)
        gqa_cap<C>(s, 2.0f * MMA_LOG2E * a.c.scale / a.c.soft_cap, a.c.soft_cap * MMA_LOG2E);
    if (t * C::BN >= run.w.all_lo && (t + 1) * C::BN <= run.w.all_hi && !run.w.dead)
        return;
    int lane = threadIdx.x & 31;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int i = tile_row(a, line0 + h * 8 + (lane >> 2)), p0 = t * C::BN + (lane & 3) * 2;
        int first = sh.rows.first[i] - p0, last = sh.rows.last[i] - p0;
#pragma unroll
        for (int nt = 0; nt < C::NT; nt++)
#pragma unroll
            for (int e = 0; e < 2; e++)
                if (nt * 8 + e < first || nt * 8 + e >= last)
                    s[0][nt][h * 2 + e] = -INFINITY;
    }
}

template <class C>
static __device__ __forceinline__ void wide_products(const struct mma_args &a, wide_shared<C> &sh,
                                                     char *smem, uint32_t q, uint32_t kv,
                                                     wide_run run, int last, int kvh, int ht)
{
    int line0 = (threadIdx.x >> 5) * 16, step = 0;
    bool first_lane = (threadIdx.x & 31) == 0;
    float scale = a.c.soft_cap > 0 ? 1.0f : a.c.scale * MMA_LOG2E;
    q += threadIdx.x / 128 * (64 * 128);
    while (wide_next(a, sh, &run, last)) {
        if (run.begin == run.end) {
            for (int i = threadIdx.x; i < C::M * (C::DV / 4); i += C::FILL) {
                tile_line l = line_of(a, run.r0, run.n, kvh, ht, i / (C::DV / 4));
                int col = i % (C::DV / 4) * 4;
                if (l.on)
                    line_put(line_to(a, l, C::DV, false, 0), col, make_float4(0, 0, 0, 0), 0);
                if (l.on && col == 0 && a.c.lse)
                    a.c.lse[(int64_t)l.row * a.c.n_head + l.head] = -INFINITY;
            }
            continue;
        }
        wide_load_q<C>(a, smem, run, kvh, ht);
        float o[1][C::DV / 8][4] = {}, s[1][C::NT][4] = {}, f[2];
        float mx[1][2] = {{-INFINITY, -INFINITY}}, sum[1][2] = {};
        uint32_t p[C::BN / 16][4];
        uint32_t k = kv + (uint32_t)(step % C::ST) * (C::k_bytes + C::v_bytes), v = k + C::k_bytes;
        bar_wait(&sh.k_full[step % C::ST], step / C::ST & 1);
        wg_written();
        wide_scores<C>(s, q, k);
        wg_wait<0>();
        wg_hold(s[0]);
        if (first_lane)
            bar_arrive(&sh.k_free[step % C::ST]);
        wide_mask<C>(a, sh, run, s, line0, run.begin);
        wide_weigh<C>(s, mx[0], sum[0], f, scale);
        wide_pack<C>(p, s);
        for (int t = run.begin + 1; t < run.end; t++) {
            int at = (step + 1) % C::ST, before = step % C::ST;
            k = kv + (uint32_t)at * (C::k_bytes + C::v_bytes);
            bar_wait(&sh.k_full[at], (step + 1) / C::ST & 1);
            wg_written();
            wide_scores<C>(s, q, k);
            bar_wait(&sh.v_full[before], step / C::ST & 1);
            wg_written();
            wide_values<C>(o, p, v);
            wg_wait<1>();
            wg_hold(s[0]);
            if (first_lane)
                bar_arrive(&sh.k_free[at]);
            wide_mask<C>(a, sh, run, s, line0, t);
            wide_weigh<C>(s, mx[0], sum[0], f, scale);
            wg_wait<0>();
            wg_hold(o[0]);
            if (first_lane)
                bar_arrive(&sh.v_free[before]);
#pragma unroll
            for (int nt = 0; nt < C::DV / 8; nt++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    o[0][nt][i] *= f[i >> 1];
            wide_pack<C>(p, s);
            v = k + C::k_bytes;
            step++;
        }
        bar_wait(&sh.v_full[step % C::ST], step / C::ST & 1);
        wg_written();
        wide_values<C>(o, p, v);
        wg_wait<0>();
        wg_hold(o[0]);
        if (first_lane)
            bar_arrive(&sh.v_free[step % C::ST]);
        step++;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            sum[0][h] += __shfl_xor_sync(0xffffffffu, sum[0][h], 1);
            sum[0][h] += __shfl_xor_sync(0xffffffffu, sum[0][h], 2);
        }
        gqa_finish_own<C>(a, o, mx, sum, scale, run.r0, run.n, kvh, ht, false, 0);
    }
}

template <class C> __global__ void __launch_bounds__(C::T, 1) wide_kernel(struct mma_args a)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ char wide_smem[];
    __shared__ wide_shared<C> sh;
    char *smem = wide_smem + (-(int)smem_addr(wide_smem) & 1023);
    uint32_t q = smem_addr(smem), kv = q + C::q_bytes;
    if (threadIdx.x == 0) {
        for (int i = 0; i < C::ST; i++) {
            bar_init(&sh.k_full[i], C::LOADERS);
            bar_init(&sh.v_full[i], C::LOADERS);
            bar_init(&sh.k_free[i], C::FILL / 32);
            bar_init(&sh.v_free[i], C::FILL / 32);
        }
    }
    __syncthreads();
    cuda_trigger();
    cuda_wait();
    int kvh = blockIdx.x / a.head_tiles, ht = blockIdx.x % a.head_tiles;
    int r0 = (gridDim.y - 1 - blockIdx.y) * a.tile_rows; /* the last rows see most: first */
    int last = min(a.c.rows, r0 + a.tile_rows);
    wide_run run = {r0, 0};
    if (threadIdx.x >= C::FILL) {
        wg_regs_less<56>();
        wide_loads<C>(a, sh, kv, run, last, kvh);
    } else {
        wg_regs_more<224>();
        wide_products<C>(a, sh, smem, q, kv, run, last, kvh, ht);
    }
#endif
}

template <class C> static struct mma_kernel wide_entry(void)
{
    struct mma_kernel k = {C::M, C::BN, C::T, (unsigned)C::smem, wide_kernel<C>};
    return k;
}

#endif
