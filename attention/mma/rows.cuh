/* What every tensor-core attention kernel does before and after its products: find the rows of its
 * tile, what they see, which keys they share out to splits, and the merge of splits. */
#ifndef SPECD_ATTN_ROWS_CUH
#define SPECD_ATTN_ROWS_CUH

#include "attention/mma/frag.cuh"

extern "C" {
#include "attention/mma/args.h"
}

/* Rows of a tile. Dead rows and those behind the last have first = last = row0 = 0. */
template <int N> struct tile_rows {
    uint64_t anc[N];                /* of the row's window and not behind the row */
    int first[N], last[N], row0[N]; /* row0: from here on bits decide; = last without a tree */
    int pick[6];                    /* what one thread found for all */
    int warp_a[32], warp_b[32];
};

/* What holds for all keys and live rows of a tile. */
struct tile_span {
    int lo, hi;         /* keys that some row may see lie in [lo, hi); none when lo >= hi */
    int all_lo, all_hi; /* every live row sees all of [all_lo, all_hi) */
    bool whole;         /* every key of [lo, hi) is seen by some row */
    bool dead;          /* some row of the tile sees nothing */
};

/* x / y for 0 <= x < 2^24, 0 < y: a third of what the compiler's division takes. */
static __device__ __forceinline__ int tile_div(int x, int y)
{
    int q = (int)__fdividef((float)x, (float)y), r = x - q * y;
    return q + (r >= y) - (r < 0);
}

/* Whether a tile begins x rows behind the beginning of a run; of tiles of 2 rows or more. */
static __device__ __forceinline__ bool tile_begins(const struct mma_args &a, int x)
{
    return __umulhi((uint32_t)x, a.row_inv) * (uint32_t)a.tile_rows == (uint32_t)x;
}

/* Whether a run of rows of one slot begins at row i. */
static __device__ __forceinline__ bool run_begins(const int32_t *slot, int i)
{
    return i == 0 || slot[i] != slot[i - 1];
}

/* The last beginning of a run before row lo, -1 when there is none; each thread has rows [lo, hi).
 * Needs all threads. */
template <int N>
static __device__ __forceinline__ int run_start(const int32_t *slot, int lo, int hi,
                                                tile_rows<N> &s)
{
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, start = -1;
#pragma unroll 1
    for (int i = lo; i < hi; i++)
        if (run_begins(slot, i))
            start = i;
    uint32_t some = __ballot_sync(0xffffffffu, start >= 0), below = some & ((1u << lane) - 1);
    int top = __shfl_sync(0xffffffffu, start, some ? 31 - __clz(some) : 0);
    start = __shfl_sync(0xffffffffu, start, below ? 31 - __clz(below) : 0);
    if (lane == 0)
        s.warp_a[warp] = top;
    __syncthreads();
    if (!below) {
        start = -1;
#pragma unroll 1
        for (int w = 0; w < warp; w++)
            start = max(start, s.warp_a[w]);
    }
    return start;
}

/* Finds tile `t`, counting those of earlier runs: rows of one slot, cut every tile_rows rows. Needs
 * all threads; false when there are fewer tiles. */
template <int T, int N>
static __device__ __forceinline__ bool tile_find(const struct mma_args &a, int t, tile_rows<N> &s)
{
    const int32_t *slot = a.c.slot;
    int tid = threadIdx.x, warp = tid >> 5, lane = tid & 31, rows = a.c.rows;
    int per = (rows + T - 1) / T, lo = min(tid * per, rows), hi = min(lo + per, rows);
    int start = run_start(slot, lo, hi, s), run = start, n = 0;
#pragma unroll 1
    for (int i = lo; i < hi; i++) {
        if (run_begins(slot, i))
            run = i;
        n += tile_begins(a, i - run);
    }
    int sum = n;
    for (int o = 1; o < 32; o <<= 1) {
        int x = __shfl_up_sync(0xffffffffu, sum, o);
        if (lane >= o)
            sum += x;
    }
    if (lane == 31)
        s.warp_b[warp] = sum;
    if (tid == 0)
        s.pick[1] = 0;
    __syncthreads();
    int before = sum - n;
#pragma unroll 1
    for (int w = 0; w < warp; w++)
        before += s.warp_b[w];
    if (before <= t && t < before + n) {
        run = start;
#pragma unroll 1
        for (int i = lo; i < hi; i++) {
            if (run_begins(slot, i))
                run = i;
            if (tile_begins(a, i - run) && before++ == t) {
                int e = i + 1;
#pragma unroll 1
                while (e < rows && e < i + a.tile_rows && slot[e] == slot[i])
                    e++;
                s.pick[0] = i;
                s.pick[1] = e - i;
                break;
            }
        }
    }
    __syncthreads();
    return s.pick[1] > 0;
}

/* Brings what rows [r0, r0 + n) see into shared memory; the caller waits for all threads. */
template <int T, int N>
static __device__ __forceinline__ void tile_load(const struct attn_call &c, int r0, int n,
                                                 tile_rows<N> &s)
{
    static_assert(N <= T, "a row a thread");
    int i = threadIdx.x, f = 0, l = 0, x = 0;
    uint64_t bits = 0;
    if (i >= N)
        return;
    if (i < n) {
        f = c.first[r0 + i];
        l = c.last[r0 + i];
        if (f >= l)
            f = l = 0;
        x = l;
        if (c.ancestors && f < l) {
            x = min(c.row0[r0 + i], l);
            bits = c.ancestors[r0 + i];
            if (l - x < 64)
                bits &= (1ull << (l - x)) - 1;
#pragma unroll 1
            for (int k = f - x; k > 0; k--) /* those that lie before the row's window */
                bits &= bits - 1;
        }
    }
    s.first[i] = f;
    s.last[i] = l;
    s.row0[i] = x;
    s.anc[i] = bits;
}

/* Whether row i of the tile sees position p. */
template <int N>
static __device__ __forceinline__ bool tile_sees(const tile_rows<N> &s, int i, int p)
{
    int j = p - s.row0[i];
    return j < 0 ? p >= s.first[i] : j < 64 && s.anc[i] >> j & 1;
}

/* Bit j: row i of the tile sees position p + j. */
template <int N>
static __device__ __forceinline__ uint64_t tile_bits(const tile_rows<N> &s, int i, int p)
{
    int x = s.row0[i] - p, f = max(s.first[i] - p, 0);
    uint64_t tree = s.anc[i], all = ~0ull;
    tree = x >= 64 || x <= -64 ? 0 : x >= 0 ? tree << x : tree >> -x;
    if (f < x && f < 64)
        tree |= all << f & all >> (64 - min(x, 64));
    return tree;
}

/* Every warp works it out for itself. */
template <int N>
static __device__ __forceinline__ tile_span tile_measure(const tile_rows<N> &s, int n, bool tree)
{
    int lane = threadIdx.x & 31;
    int lo = INT_MAX, hi = 0, all_lo = 0, all_hi = INT_MAX, dead = 0;
    if (n == 1 && s.first[0] < s.last[0]) {
        tile_span r = {min(s.first[0], s.row0[0]), s.last[0], s.first[0], s.row0[0], false, false};
        r.whole = !tree && r.all_lo <= r.all_hi;
        return r;
    }
#pragma unroll 1
    for (int i = lane; i < n; i += 32) {
        if (s.first[i] >= s.last[i]) {
            dead = 1;
            continue;
        }
        lo = min(lo, min(s.first[i], s.row0[i]));
        hi = max(hi, s.last[i]);
        all_lo = max(all_lo, s.first[i]);
        all_hi = min(all_hi, s.row0[i]);
    }
    lo = __reduce_min_sync(0xffffffffu, lo);
    hi = __reduce_max_sync(0xffffffffu, hi);
    all_lo = __reduce_max_sync(0xffffffffu, all_lo);
    all_hi = __reduce_min_sync(0xffffffffu, all_hi);
    dead = __any_sync(0xffffffffu, dead);
    tile_span r = {lo, hi, all_lo, all_hi, !tree && all_lo <= all_hi, dead != 0};
    return r;
}

/* Pool row of position p, -1 when no row of the tile sees it: then it is not read. */
template <int N>
static __device__ __forceinline__ int tile_key(const struct mma_args &a, const tile_rows<N> &s,
                                               int n, const tile_span &w, const int32_t *table,
                                               int p)
{
    bool seen = p >= w.lo && p < w.hi;
    if (seen && !w.whole && (p < w.all_lo || p >= w.all_hi)) {
        seen = false;
#pragma unroll 1
        for (int i = 0; i < n && !seen; i++)
            seen = tile_sees(s, i, p);
    }
    return seen ? (table[p >> a.page_shift] << a.page_shift) + (p & (a.c.page - 1)) : -1;
}

enum { SPLIT_LONG = 2048 }; /* keys from which on a tile is split even when the GPU is full */

/* Key tiles [begin, end) of split `split` of a tile, in tiles of BN keys; returns how many splits
 * work. Every block of the tile comes to the same numbers. */
template <int BN>
static __device__ __forceinline__ int tile_share(const struct mma_args &a, const tile_span &w,
                                                 int split, int *begin, int *end)
{
    int t0 = w.lo / BN, nt = (w.hi + BN - 1) / BN - t0;
    int n = max(min(a.fill, nt), min(a.splits, nt / (SPLIT_LONG / BN)));
    int per = tile_div(nt + n - 1, n);
    *begin = t0 + split * per;
    *end = min(*begin + per, t0 + nt);
    return tile_div(nt + per - 1, per);
}

/* Weight of the keys' sums in the output of a head whose maximum is m (base 2) and whose sum of
 * weights is l. v_scale: of an fp8 cache, else 1. */
static __device__ __forceinline__ float head_scale(const struct mma_args &a, int head, float m,
                                                   float l)
{
    float f = 1;
    if (a.c.sinks && l > 0) {
        float k = a.c.sinks[head] * MMA_LOG2E, top = fmaxf(m, k);
        f = ex2(m - top);
        l = l * f + ex2(k - top);
    }
    return l > 0 ? __fdividef(a.c.v_scale * f, l) : 0.0f;
}

/* Where line m of a tile belongs. */
struct tile_line {
    int row, head;
    bool on;
};

/* Row of the tile that line m belongs to. */
static __device__ __forceinline__ int tile_row(const struct mma_args &a, int m)
{
    return (int)((uint32_t)m * a.head_inv >> 16);
}

static __device__ __forceinline__ tile_line line_of(const struct mma_args &a, int r0, int n,
                                                    int kvh, int ht, int m)
{
    int i = tile_row(a, m), h = m - i * a.tile_heads + ht * a.tile_heads;
    tile_line l = {r0 + i, kvh * a.group + h, i < n && h < a.group};
    return l;
}

/* Where a line's values go: to the output, or to the split's partial sums. */
struct line_place {
    char *p;
    int narrow; /* as bf16 */
};

static __device__ __forceinline__ line_place line_to(const struct mma_args &a, const tile_line &l,
                                                     int dv, bool part, int split)
{
    line_place t = {NULL, a.c.narrow && !part};
    /* not known to be the same for all lines: else the code around becomes two forms of it */
    asm volatile("" : "+r"(t.narrow));
    t.p = part ? (char *)(a.part + (int64_t)((split * a.c.rows + l.row) * a.c.n_head + l.head) * dv)
               : (char *)a.c.out + (l.row * a.c.ldo + l.head * dv) * (t.narrow ? 2 : 4);
    return t;
}

/* Four neighbouring values of a line. */
static __device__ __forceinline__ void line_put(const line_place &t, int col, float4 x, float f)
{
    x.x *= f, x.y *= f, x.z *= f, x.w *= f;
    if (t.narrow)
        *(uint2 *)(t.p + col * 2) = {pack_bf16(x.x, x.y), pack_bf16(x.z, x.w)};
    else
        *(float4 *)(t.p + col * 4) = x;
}

/* Maximum and sum of a line: to the partial sums, or the factor of its values. */
static __device__ __forceinline__ float line_end(const struct mma_args &a, const tile_line &l,
                                                 float m, float sum, bool part, int split,
                                                 bool write)
{
    int at = l.row * a.c.n_head + l.head;
    if (part) {
        if (write)
            ((float2 *)a.part_ml)[split * a.c.rows * a.c.n_head + at] = {m, sum};
        return 1.0f;
    }
    if (write && a.c.lse)
        a.c.lse[at] = sum > 0 ? (m + __log2f(sum)) * MMA_LN2 : -INFINITY;
    return head_scale(a, l.head, m, sum);
}

/* Lines of a tile that see nothing at all. */
template <int DV, int T>
static __device__ __forceinline__ void tile_nothing(const struct mma_args &a, int r0, int n,
                                                    int kvh, int ht)
{
#pragma unroll 1
    for (int i = threadIdx.x; i < n * a.tile_heads * (DV / 4); i += T) {
        tile_line l = line_of(a, r0, n, kvh, ht, i / (DV / 4));
        int col = i % (DV / 4) * 4;
        if (!l.on)
            continue;
        line_put(line_to(a, l, DV, false, 0), col, make_float4(0, 0, 0, 0), 0);
        if (col == 0 && a.c.lse)
            a.c.lse[l.row * a.c.n_head + l.head] = -INFINITY;
    }
}

/* A line's values of two neighbouring groups of 8 columns, as a product leaves them (a lane holds
 * two columns of each): pairs of lanes exchange halves and write 16 bytes each. Needs whole warps.
 */
static __device__ __forceinline__ void line_pair(const line_place &t, bool on, int col,
                                                 const float *x, const float *y, float f)
{
    int lane = threadIdx.x & 31;
    bool odd = lane & 1;
    float s0 = __shfl_xor_sync(0xffffffffu, odd ? x[0] : y[0], 1);
    float s1 = __shfl_xor_sync(0xffffffffu, odd ? x[1] : y[1], 1);
    float4 v = odd ? make_float4(s0, s1, y[0], y[1]) : make_float4(x[0], x[1], s0, s1);
    if (on)
        line_put(t, col + (odd ? 8 : 0) + (lane >> 1 & 1) * 4, v, f);
}

#endif
