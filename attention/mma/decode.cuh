/* Attention of few query lines: decode and short verifies of grouped query heads, where plan_shares
 * (backend.cu) finds equal shares faster than the splits of gqa.cuh.
 *
 * A worker (a block) takes an equal share of all work (share.cuh), so that every length keeps all
 * of the GPU busy to the end. A tile has up to M = 8 NL lines (rows x heads). In a product the keys
 * are its 16 rows and the lines its 8 columns: scores = K Q^T, sums = V^T weights^T. Each warp
 * takes 16 keys at a time into a ring of its own (keys and values in turn, asynchronous copies, no
 * barrier between warps) and keeps sums of all lines; warps, then workers that share a tile are
 * merged in a fixed order. Queries and weights are split into two bf16 parts, so that only the
 * cache's own rounding is left: these tiles are bound by the cache's bytes, not by products.
 *
 * grid (workers). Bytes: the visible keys and values of each tile. */
#ifndef SPECD_ATTN_DECODE_CUH
#define SPECD_ATTN_DECODE_CUH

#include "attention/mma/share.cuh"
#include "kernels/cuda/launch.cuh"

/* D: of queries, keys and values; NL: groups of 8 lines; W: warps; ST: slots of a warp's ring. */
template <int D_, int NL_, int W_, int ST_, int BLOCKS_> struct dec_conf {
    static constexpr int DQ = D_, DV = D_, NL = NL_, W = W_, ST = ST_, BLOCKS = BLOCKS_;
    static constexpr int M = 8 * NL, T = 32 * W, KEYS = 16;
    static constexpr bool QR = NL == 1; /* queries in registers */
    static constexpr int LINE = DV + 4; /* lines start in other banks */
    static constexpr int q_bytes = QR ? 0 : M * rows_of<DQ>::bytes;
    static constexpr int slot_bytes = KEYS * rows_of<DQ>::bytes, ring_bytes = ST * slot_bytes;
    static constexpr int ring_at = 2 * q_bytes;
    static constexpr int merge_bytes = W * M * (LINE + 2) * 4; /* over queries and rings */
    static constexpr int loop_bytes = ring_at + W * ring_bytes;
    static constexpr int smem = loop_bytes > merge_bytes ? loop_bytes : merge_bytes;
    static_assert(DQ % 64 == 0 && UNIT % KEYS == 0, "dims");
};

template <class C> struct dec_shared {
    tile_rows<C::M> rows;
    int last;
};

/* ---- queries ---- */

/* As operands of products: registers, or shared memory. */
template <class C> struct dec_query {
    uint32_t hi[C::QR ? C::DQ / 16 : 1][2], lo[C::QR ? C::DQ / 16 : 1][2];
};

template <class C>
static __device__ __forceinline__ void dec_load_q(const struct mma_args &a, char *smem,
                                                  dec_query<C> &q, int r0, int n, int kvh, int ht)
{
    if constexpr (C::QR) {
        int lane = threadIdx.x & 31;
        tile_line l = line_of(a, r0, n, kvh, ht, lane >> 2);
        const float *p = a.c.q + l.row * a.c.ldq + (int64_t)l.head * C::DQ + (lane & 3) * 2;
#pragma unroll
        for (int kk = 0; kk < C::DQ / 16; kk++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                float2 x = {0, 0};
                if (l.on)
                    x = *(const float2 *)(p + kk * 16 + i * 8);
                q.hi[kk][i] = pack_bf16(x.x, x.y);
                q.lo[kk][i] = pack_rest(x.x, x.y, q.hi[kk][i]);
            }
    } else {
        constexpr int V = C::DQ / 8;
#pragma unroll 2
        for (int j = 0; j < (C::M * V + C::T - 1) / C::T; j++) {
            int i = j * C::T + (int)threadIdx.x;
            if (i >= C::M * V)
                break;
            int m = i / V, chunk = i % V;
            tile_line l = line_of(a, r0, n, kvh, ht, m);
            float4 x = {0, 0, 0, 0}, y = x;
            if (l.on) {
                const float4 *p =
                    (const float4 *)(a.c.q + l.row * a.c.ldq + (int64_t)l.head * C::DQ + chunk * 8);
                x = p[0];
                y = p[1];
            }
            uint4 w = {pack_bf16(x.x, x.y), pack_bf16(x.z, x.w), pack_bf16(y.x, y.y),
                       pack_bf16(y.z, y.w)};
            uint4 r = {pack_rest(x.x, x.y, w.x), pack_rest(x.z, x.w, w.y), pack_rest(y.x, y.y, w.z),
                       pack_rest(y.z, y.w, w.w)};
            uint32_t at = rows_of<C::DQ>::at(m, chunk);
            *(uint4 *)(smem + at) = w;
            *(uint4 *)(smem + C::q_bytes + at) = r;
        }
    }
}

/* ---- 16 keys ---- */

enum { LAG = 6 }; /* log2 of the greatest weight before sums are brought to a new maximum */

/* Lane l holds of s[g] the keys l / 4 (0, 1) and l / 4 + 8 (2, 3), lines 8 g + 2 (l % 4) and the
 * next. */
template <class C>
static __device__ __forceinline__ void dec_scores(float (&s)[C::NL][4], const dec_query<C> &q,
                                                  uint32_t qs, uint32_t k)
{
    int lane = threadIdx.x & 31;
    float rest[C::NL][4] = {}; /* chains apart: one alone waits for itself */
#pragma unroll
    for (int g = 0; g < C::NL; g++)
        s[g][0] = s[g][1] = s[g][2] = s[g][3] = 0;
#pragma unroll
    for (int kk = 0; kk < C::DQ / 16; kk++) {
        uint32_t x[4];
        ldsm4(x, k + rows_of<C::DQ>::at(lane & 15, kk * 2 + (lane >> 4)));
#pragma unroll
        for (int g = 0; g < C::NL; g++) {
            if constexpr (C::QR) {
                mma_bf16(s[g], x, q.hi[kk][0], q.hi[kk][1]);
                mma_bf16(rest[g], x, q.lo[kk][0], q.lo[kk][1]);
            } else {
                uint32_t b[4];
                ldsm4(b, qs + (lane >> 4) * C::q_bytes +
                             rows_of<C::DQ>::at(g * 8 + (lane & 7), kk * 2 + (lane >> 3 & 1)));
                mma_bf16(s[g], x, b[0], b[1]);
                mma_bf16(rest[g], x, b[2], b[3]);
            }
        }
    }
#pragma unroll
    for (int g = 0; g < C::NL; g++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            s[g][e] += rest[g][e];
}

/* The warp's sums: o[i][g] of values 16 i + l / 4 (0, 1) and + 8 (2, 3), lines as in scores;
 * relative to the maximum mx, which may lag behind (see dec_weights). Sums of weights are a lane's
 * own until the end. */
template <class C> struct dec_sums {
    float o[C::DV / 16][C::NL][4], mx[C::NL][2], sum[C::NL][2];
};

/* Scores become weights. */
template <class C>
static __device__ __forceinline__ void dec_weights(float (&s)[C::NL][4], dec_sums<C> &w,
                                                   float scale)
{
    bool more = false;
#pragma unroll
    for (int g = 0; g < C::NL; g++)
#pragma unroll
        for (int e = 0; e < 2; e++)
            more |= fmaxf(s[g][e], s[g][e + 2]) * scale > w.mx[g][e] + LAG;
    if (__any_sync(0xffffffffu, more)) {
        float f[C::NL][2];
        bool any = false; /* sums there are */
#pragma unroll
        for (int g = 0; g < C::NL; g++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                float m = fmaxf(s[g][e], s[g][e + 2]);
                for (int o = 4; o < 32; o <<= 1)
                    m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, o));
                m = fmaxf(w.mx[g][e], m * scale);
                f[g][e] = m == -INFINITY ? 1.0f : ex2(w.mx[g][e] - m);
                any |= w.mx[g][e] != -INFINITY;
                w.mx[g][e] = m;
            }
        if (__any_sync(0xffffffffu, any))
#pragma unroll
            for (int g = 0; g < C::NL; g++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    w.sum[g][e] *= f[g][e];
#pragma unroll
                    for (int i = 0; i < C::DV / 16; i++) {
                        w.o[i][g][e] *= f[g][e];
                        w.o[i][g][e + 2] *= f[g][e];
                    }
                }
    }
#pragma unroll
    for (int g = 0; g < C::NL; g++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            float base = w.mx[g][e] == -INFINITY ? 0.0f : w.mx[g][e];
            s[g][e] = ex2(fmaf(s[g][e], scale, -base));
            s[g][e + 2] = ex2(fmaf(s[g][e + 2], scale, -base));
            w.sum[g][e] += s[g][e] + s[g][e + 2];
        }
}

template <class C>
static __device__ __forceinline__ void dec_values(const float (&s)[C::NL][4], dec_sums<C> &w,
                                                  uint32_t v)
{
    int lane = threadIdx.x & 31;
    uint32_t hi[C::NL][2], lo[C::NL][2];
#pragma unroll
    for (int g = 0; g < C::NL; g++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            uint32_t x = pack_bf16(s[g][i * 2], s[g][i * 2 + 1]);
            lo[g][i] = turn8(pack_rest(s[g][i * 2], s[g][i * 2 + 1], x));
            hi[g][i] = turn8(x);
        }
    constexpr int STEP = C::DV % 32 == 0 ? 2 : 1;
#pragma unroll
    for (int i = 0; i < C::DV / 16; i += STEP) {
        uint32_t x[STEP][4];
#pragma unroll
        for (int j = 0; j < STEP; j++)
            ldsm4_t(x[j], v + rows_of<C::DV>::at((lane & 7) + (lane >> 4) * 8,
                                                 (i + j) * 2 + (lane >> 3 & 1)));
#pragma unroll
        for (int g = 0; g < C::NL; g++)
#pragma unroll
            for (int j = 0; j < STEP; j++)
                mma_bf16(w.o[i + j][g], x[j], hi[g][0], hi[g][1]);
#pragma unroll
        for (int g = 0; g < C::NL; g++)
#pragma unroll
            for (int j = 0; j < STEP; j++)
                mma_bf16(w.o[i + j][g], x[j], lo[g][0], lo[g][1]);
    }
}

/* ---- a warp's ring ---- */

/* What the warp fetches next: groups of 16 keys, whose pages lanes look up 32 groups ahead. */
struct dec_feed {
    int c, end;            /* groups; each W-th is the warp's */
    int pages, pages_next; /* the lane's group of this 32 and the next */
    int step;              /* group of the 32 */
    int row;               /* pool row of the first key */
    uint32_t seen;         /* bit i: some row sees the i-th key */
    bool values;           /* of the keys that were last */
    int slot;
};

/* Page of the lane's group, counted from group c. */
template <class C>
static __device__ __forceinline__ int dec_pages(const struct mma_args &a, const int32_t *table,
                                                const dec_feed &f, int c)
{
    c += (int)(threadIdx.x & 31) * C::W;
    return c < f.end ? table[c >> (a.page_shift - 4)] : 0;
}

template <class C>
static __device__ __forceinline__ uint32_t dec_seen(const tile_rows<C::M> &s, int n,
                                                    const tile_span &w, int p0)
{
    if (p0 >= w.all_lo && p0 + C::KEYS <= w.all_hi)
        return 0xffff;
    int p = p0 + (int)(threadIdx.x & 15);
    bool on = p >= w.lo && p < w.hi;
    if (on && !w.whole && (p < w.all_lo || p >= w.all_hi)) {
        on = false;
#pragma unroll 1
        for (int i = 0; i < n && !on; i++)
            on = tile_sees(s, i, p);
    }
    return __ballot_sync(0xffffffffu, on) & 0xffff;
}

/* The next part of the feed: keys, then values of the same. */
template <class C>
static __device__ __forceinline__ void dec_fetch(const struct mma_args &a, const tile_rows<C::M> &s,
                                                 int n, const tile_span &w, const int32_t *table,
                                                 dec_feed &f, uint32_t ring, int kvh)
{
    if (f.c < f.end) {
        constexpr int V = C::DQ / 8, STEP = 32 / V > 0 ? 32 / V : 1; /* chunks; rows at a time */
        if (!f.values) {
            int p0 = f.c * C::KEYS, page = __shfl_sync(0xffffffffu, f.pages, f.step);
            f.row = (page << a.page_shift) + (p0 & (a.c.page - 1));
            f.seen = dec_seen<C>(s, n, w, p0);
        }
        int ld = a.c.n_kv * C::DQ, t0 = (threadIdx.x & 31) / V, c = (threadIdx.x & 31) % V;
        const __nv_bfloat16 *p = (const __nv_bfloat16 *)(f.values ? a.c.v : a.c.k) +
                                 (int64_t)(f.row + t0) * ld + kvh * C::DQ + c * 8;
        uint32_t to = ring + (uint32_t)(f.slot * C::slot_bytes);
#pragma unroll 4
        for (int j = 0; j < C::KEYS / STEP; j++, p += (int64_t)STEP * ld) {
            int t = j * STEP + t0;
            cp16(to + rows_of<C::DQ>::at(t, c), p, f.seen >> t & 1);
        }
        if (f.values) {
            f.c += C::W;
            if (++f.step == 32) {
                f.step = 0;
                f.pages = f.pages_next;
                f.pages_next = dec_pages<C>(a, table, f, f.c + 32 * C::W);
            }
        }
        f.values = !f.values;
    }
    cp_commit();
    f.slot = f.slot == C::ST - 1 ? 0 : f.slot + 1;
}

/* ---- the end of a piece ---- */

/* Sums of the warps, then of the workers. */
template <class C>
static __device__ __forceinline__ void dec_finish(const struct mma_args &a, char *smem,
                                                  dec_shared<C> &sh, dec_sums<C> &w, const piece &p,
                                                  int r0, int n, int kvh, int ht)
{
    int tid = threadIdx.x, warp = tid >> 5, lane = tid & 31, lines = n * a.tile_heads;
    float *so = (float *)smem;                           /* [W][M][LINE] */
    float2 *sm = (float2 *)(so + C::W * C::M * C::LINE); /* [W][M] */
    __syncthreads();                                     /* rings and queries are used up */
#pragma unroll
    for (int g = 0; g < C::NL; g++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            int m = g * 8 + (lane & 3) * 2 + e;
            float t = w.sum[g][e];
            for (int o = 4; o < 32; o <<= 1)
                t += __shfl_xor_sync(0xffffffffu, t, o);
            if (m >= lines)
                continue;
            if (lane < 4)
                sm[warp * C::M + m] = {w.mx[g][e], t};
            float *to = so + (warp * C::M + m) * C::LINE + (lane >> 2);
#pragma unroll
            for (int i = 0; i < C::DV / 16; i++) {
                to[i * 16] = w.o[i][g][e];
                to[i * 16 + 8] = w.o[i][g][e + 2];
            }
        }
    __syncthreads();
#pragma unroll 1
    for (int i = tid; i < lines * (C::DV / 4); i += C::T) {
        int m = i / (C::DV / 4), col = i % (C::DV / 4) * 4;
        line_sum x = line_merge(
            C::W, [&](int j) { return *(float4 *)(so + (j * C::M + m) * C::LINE + col); },
            [&](int j) { return sm[j * C::M + m]; });
        piece_put<C>(a, p, line_of(a, r0, n, kvh, ht, m), m, col, x);
    }
    if (p.parts > 1)
        piece_merge<C>(a, &sh.last, p, r0, n, kvh, ht);
    __syncthreads();
}

/* ---- a piece ---- */

/* Scores of keys that a line does not see become -inf. */
template <class C>
static __device__ __forceinline__ void dec_mask(const struct mma_args &a, float (&s)[C::NL][4],
                                                const tile_rows<C::M> &rows, int p0)
{
    static_assert(C::M <= 32, "a row a lane");
    int lane = threadIdx.x & 31;
    uint32_t sees = lane < C::M ? (uint32_t)tile_bits(rows, lane, p0) : 0;
#pragma unroll
    for (int g = 0; g < C::NL; g++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            int i = tile_row(a, g * 8 + (lane & 3) * 2 + e);
            uint32_t on = __shfl_sync(0xffffffffu, sees, i) >> (lane >> 2);
#pragma unroll
            for (int h = 0; h < 2; h++)
                if (!(on >> h * 8 & 1))
                    s[g][h * 2 + e] = -INFINITY;
        }
}

/* Asks for the first pages of the warp's part of a piece. */
template <class C>
static __device__ __forceinline__ dec_feed dec_start(const struct mma_args &a,
                                                     const struct share &own, const piece &p)
{
    constexpr int GROUPS = UNIT / C::KEYS;
    const int32_t *table = a.c.table + (int64_t)own.slot * a.c.pages_max;
    int unit0 = own.lo / UNIT;
    dec_feed f = {};
    f.c = (unit0 + p.begin) * GROUPS + (int)(threadIdx.x >> 5);
    f.end = min((unit0 + p.end) * GROUPS, (own.hi + C::KEYS - 1) / C::KEYS);
    f.pages = dec_pages<C>(a, table, f, f.c);
    f.pages_next = dec_pages<C>(a, table, f, f.c + 32 * C::W);
    return f;
}

template <class C>
static __device__ __forceinline__ void
dec_piece(const struct mma_args &a, char *smem, dec_shared<C> &sh, const tile_span &span,
          const struct share &own, const piece &p, dec_feed f, int kvh, int ht)
{
    const struct attn_call &c = a.c;
    int r0 = own.r0, n = own.n, warp = threadIdx.x >> 5;
    const int32_t *table = c.table + (int64_t)own.slot * c.pages_max;
    uint32_t qs = smem_addr(smem), ring = qs + C::ring_at + (uint32_t)(warp * C::ring_bytes);
    int at = f.c;
    dec_query<C> q;
    dec_sums<C> w = {};
#pragma unroll
    for (int g = 0; g < C::NL; g++)
        w.mx[g][0] = w.mx[g][1] = -INFINITY;
    bool cap = c.soft_cap > 0;
    float scale = cap ? 1.0f : c.scale * MMA_LOG2E;
    float cap_in = cap ? 2.0f * MMA_LOG2E * c.scale / c.soft_cap : 0.0f;
    float cap_out = c.soft_cap * MMA_LOG2E;
    float s[C::NL][4];
    int slot = 0, ahead = C::ST - 1; /* parts to fetch before the first is used */
    /* One fetch in the code, and with it one turn for keys and one for values: what a short piece
     * of work waits for is its code. */
#pragma unroll 1
    for (bool values = false; at < f.end || ahead > 0;) {
        if (ahead == 0) {
            cp_wait<C::ST - 2>();
            __syncwarp(); /* the part is there, the one before it used up */
        }
        dec_fetch<C>(a, sh.rows, n, span, table, f, ring, kvh);
        if (ahead > 0) {
            if (--ahead == 0) {
                dec_load_q<C>(a, smem, q, r0, n, kvh, ht);
                if (!C::QR)
                    __syncthreads();
            }
            continue;
        }
        uint32_t part = ring + (uint32_t)(slot * C::slot_bytes);
        slot = slot == C::ST - 1 ? 0 : slot + 1;
        if (values) {
            dec_values<C>(s, w, part);
            at += C::W;
            values = false;
            continue;
        }
        values = true;
        dec_scores<C>(s, q, qs, part);
        if (cap)
#pragma unroll
            for (int g = 0; g < C::NL; g++)
#pragma unroll
                for (int e = 0; e < 4; e++) /* tanh x = 1 - 2 / (e^2x + 1) */
                    s[g][e] = cap_out * (1.0f - __fdividef(2.0f, ex2(s[g][e] * cap_in) + 1.0f));
        int p0 = at * C::KEYS;
        if (p0 < span.all_lo || p0 + C::KEYS > span.all_hi || span.dead)
            dec_mask<C>(a, s, sh.rows, p0);
        dec_weights<C>(s, w, scale);
    }
    cp_wait<0>();
    dec_finish<C>(a, smem, sh, w, p, r0, n, kvh, ht);
}

template <class C> __global__ void __launch_bounds__(C::T, C::BLOCKS) dec_kernel(struct mma_args a)
{
    extern __shared__ __align__(128) char dec_smem[];
    __shared__ dec_shared<C> sh;
    int worker = (int)blockIdx.x;
    cuda_trigger(); /* the next kernel's weights may come in beside this one */
    cuda_wait();
    struct share s = share_find<C::T>(a, worker, (int)gridDim.x, sh.rows);
    tile_span span = {};
    for (bool fresh = true; s.at < s.end;) {
        piece p = share_piece(s, worker);
        dec_feed f = dec_start<C>(a, s, p);
        if (fresh) {
            tile_load<C::T>(a.c, s.r0, s.n, sh.rows);
            __syncthreads();
            span = tile_measure(sh.rows, s.n, a.c.ancestors != NULL);
        }
        int kvh = tile_div(p.head, a.head_tiles), ht = p.head - kvh * a.head_tiles;
        if (s.lo < s.hi)
            dec_piece<C>(a, dec_smem, sh, span, s, p, f, kvh, ht);
        else
            tile_nothing<C::DV, C::T>(a, s.r0, s.n, kvh, ht);
        s.at += s.whole ? 1 : p.end - p.begin;
        s.skip += p.end - p.begin;
        fresh = s.skip >= s.heads * s.units;
        if (fresh && s.at < s.end) {
            __syncthreads();
            share_next(a, s);
        }
    }
}

template <class C> static struct mma_kernel dec_entry(void)
{
    struct mma_kernel k = {C::M, UNIT, C::T, (unsigned)C::smem, dec_kernel<C>};
    return k;
}

#endif
