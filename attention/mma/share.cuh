/* Equal shares of all work for kernels of few query lines, whatever the lengths: what a worker (a
 * block) does, and the end of a piece of work: sums of the workers that share a tile, in a fixed
 * order, and where they go. C has M (lines of a tile), DV (values) and T (threads). */
#ifndef SPECD_ATTN_SHARE_CUH
#define SPECD_ATTN_SHARE_CUH

#include "attention/mma/rows.cuh"

/* ---- equal shares of all work ---- */

enum { UNIT = 64 }; /* keys of a unit */

/* Where a worker is in its share. The work is a row of units: UNIT keys of a tile of rows and one
 * of `heads` (KV head x head tile). Units lie in the order of tiles, heads, keys, and every worker
 * takes an equal run of them. A tile that sees nothing is one unit a head. */
struct share {
    int heads;
    int size, more;  /* units of a worker, one more for the first `more` workers */
    int at, end;     /* the next unit, the end of the run */
    int r0, n, slot; /* the tile of rows, their slot */
    int units;       /* of the tile for one head */
    int skip;        /* units of the tile, all heads, before `at` */
};

/* Rows of the tile that begins at r0. */
static __device__ __forceinline__ int share_rows(const struct mma_args &a, int r0)
{
    int e = r0 + 1, end = min(a.c.rows, r0 + a.tile_rows);
    while (e < end && a.c.slot[e] == a.c.slot[r0])
        e++;
    return e - r0;
}

/* Units of a tile. */
static __device__ __forceinline__ int share_units(const struct mma_args &a, int r0, int n)
{
    int lo = INT_MAX, hi = 0;
    for (int i = r0; i < r0 + n; i++) {
        int f = a.c.first[i], l = a.c.last[i];
        if (f >= l)
            continue;
        lo = min(lo, a.c.ancestors ? min(f, a.c.row0[i]) : f);
        hi = max(hi, l);
    }
    return lo < hi ? (hi - 1) / UNIT + 1 - lo / UNIT : 1;
}

/* The first unit of a worker. */
static __device__ __forceinline__ int share_begin(const struct share &s, int worker)
{
    return worker * s.size + min(worker, s.more);
}

/* The worker that has a unit. */
static __device__ __forceinline__ int share_owner(const struct share &s, int unit)
{
    int bound = s.more * (s.size + 1);
    return unit < bound ? unit / (s.size + 1) : s.more + (unit - bound) / s.size;
}

/* The share of `worker` of `workers`; at >= end when there is none. Needs all T threads. */
template <int T, int N>
static __device__ __forceinline__ struct share share_find(const struct mma_args &a, int worker,
                                                          int workers, tile_rows<N> &s)
{
    const int32_t *slot = a.c.slot;
    int tid = threadIdx.x, warp = tid >> 5, lane = tid & 31, rows = a.c.rows, rb = a.tile_rows;
    int per = (rows + T - 1) / T, lo = min(tid * per, rows), hi = min(lo + per, rows), start = -1;
    int slot_lo = lo < hi ? slot[lo] : 0; /* beside the loads below, not after them */
    if (rb > 1) { /* greatest beginning of a run before this thread's rows */
        for (int i = lo; i < hi; i++)
            if (i == 0 || slot[i] != slot[i - 1])
                start = i;
        for (int o = 1; o < 32; o <<= 1) {
            int x = __shfl_up_sync(0xffffffffu, start, o);
            if (lane >= o)
                start = max(start, x);
        }
        if (lane == 31)
            s.warp_a[warp] = start;
        start = __shfl_up_sync(0xffffffffu, start, 1);
        if (lane == 0)
            start = -1;
        __syncthreads();
        for (int w = 0; w < warp; w++)
            start = max(start, s.warp_a[w]);
    }
    int run = start, sum = 0;
    for (int i = lo; i < hi; i++) {
        if (rb > 1 && (i == 0 || slot[i] != slot[i - 1]))
            run = i;
        if (rb == 1 || (i - run) % rb == 0)
            sum += share_units(a, i, share_rows(a, i));
    }
    int all = sum;
    for (int o = 1; o < 32; o <<= 1) {
        int x = __shfl_up_sync(0xffffffffu, all, o);
        if (lane >= o)
            all += x;
    }
    if (lane == 31)
        s.warp_b[warp] = all;
    __syncthreads();
    int before = all - sum, total = 0;
    for (int w = 0; w < T / 32; w++) {
        before += w < warp ? s.warp_b[w] : 0;
        total += s.warp_b[w];
    }
    struct share r = {};
    r.heads = a.c.n_kv * a.head_tiles;
    total *= r.heads;
    r.size = total / workers;
    r.more = total - r.size * workers;
    r.at = share_begin(r, worker);
    r.end = min(share_begin(r, worker + 1), total);
    if (r.at >= r.end)
        return r;
    if (before * r.heads <= r.at && r.at < (before + sum) * r.heads) {
        run = start;
        for (int i = lo; i < hi; i++) {
            if (rb > 1 && (i == 0 || slot[i] != slot[i - 1]))
                run = i;
            if (rb > 1 && (i - run) % rb != 0)
                continue;
            int n = share_rows(a, i), u = share_units(a, i, n);
            if (r.at < (before + u) * r.heads) {
                s.pick[0] = i;
                s.pick[1] = n;
                s.pick[2] = u;
                s.pick[3] = r.at - before * r.heads;
                s.pick[4] = i == lo ? slot_lo : slot[i];
                break;
            }
            before += u;
        }
    }
    __syncthreads();
    r.r0 = s.pick[0];
    r.n = s.pick[1];
    r.units = s.pick[2];
    r.skip = s.pick[3];
    r.slot = s.pick[4];
    return r;
}

/* On to the next tile of rows. */
static __device__ __forceinline__ void share_next(const struct mma_args &a, struct share &s)
{
    s.r0 += s.n;
    s.n = share_rows(a, s.r0);
    s.slot = a.c.slot[s.r0];
    s.units = share_units(a, s.r0, s.n);
    s.skip = 0;
}

/* A run of one tile's units for one head, and who shares that tile. */
struct piece {
    int head, begin, end; /* units of the tile */
    int parts, first;     /* workers that have a piece of the tile, the first of them */
    int slot;             /* for partial sums; that of worker `first` is slot0 */
    int slot0;
};

static __device__ __forceinline__ piece share_piece(const struct share &s, int worker)
{
    piece p = {};
    p.head = s.skip / s.units;
    p.begin = s.skip - p.head * s.units;
    p.end = min(s.units, p.begin + s.end - s.at);
    p.parts = 1;
    if (p.end - p.begin == s.units)
        return p;
    int tile = s.at - p.begin; /* its first unit */
    p.first = share_owner(s, tile);
    p.parts = share_owner(s, tile + s.units - 1) - p.first + 1;
    /* a worker's first piece goes to its slot 0, its last to slot 1 */
    p.slot = 2 * worker + (s.at != share_begin(s, worker));
    p.slot0 = 2 * p.first + (tile != share_begin(s, p.first));
    return p;
}

/* Slot of the piece of worker first + i. */
static __device__ __forceinline__ int piece_slot(const piece &p, int i)
{
    return i == 0 ? p.slot0 : 2 * (p.first + i);
}

/* ---- sums of lines ---- */

/* Sums of a line's quarter columns over sources i < N (values at v(i), maximum and sum of weights
 * at ml(i)), in order. */
struct line_sum {
    float4 v;
    float m, l;
};

template <class V, class ML>
static __device__ __forceinline__ line_sum line_merge(int n, V v, ML ml)
{
    line_sum r = {{0, 0, 0, 0}, -INFINITY, 0};
#pragma unroll 8
    for (int i = 0; i < n; i++)
        r.m = fmaxf(r.m, ml(i).x);
    float base = r.m == -INFINITY ? 0.0f : r.m;
#pragma unroll 8
    for (int i = 0; i < n; i++) {
        float2 x = ml(i);
        float4 y = v(i);
        float f = ex2(x.x - base);
        r.l = fmaf(x.y, f, r.l);
        r.v.x = fmaf(y.x, f, r.v.x), r.v.y = fmaf(y.y, f, r.v.y);
        r.v.z = fmaf(y.z, f, r.v.z), r.v.w = fmaf(y.w, f, r.v.w);
    }
    return r;
}

/* To the output, or to the worker's partial sums. */
template <class C>
static __device__ __forceinline__ void piece_put(const struct mma_args &a, const piece &p,
                                                 const tile_line &l, int m, int col,
                                                 const line_sum &x)
{
    if (p.parts > 1) {
        int64_t at = (int64_t)p.slot * C::M + m;
        *(float4 *)(a.part + at * C::DV + col) = x.v;
        if (col == 0)
            ((float2 *)a.part_ml)[at] = {x.m, x.l};
    } else if (l.on) {
        float f = line_end(a, l, x.m, x.l, false, 0, col == 0);
        line_put(a, l, C::DV, col, x.v, f, false, 0);
    }
}

/* The last block to arrive at a tile merges its pieces, in the order of workers. */
template <class C>
static __device__ __forceinline__ void piece_merge(const struct mma_args &a, int *last,
                                                   const piece &p, int r0, int n, int kvh, int ht)
{
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        int32_t *at = a.count + ((int64_t)r0 * a.c.n_kv + kvh) * a.head_tiles + ht;
        *last = atomicAdd(at, 1) == p.parts - 1;
        if (*last)
            *at = 0; /* for the next launch */
        __threadfence();
    }
    __syncthreads();
    if (!*last)
        return;
    for (int i = threadIdx.x; i < n * a.tile_heads * (C::DV / 4); i += C::T) {
        int m = i / (C::DV / 4), col = i % (C::DV / 4) * 4;
        tile_line l = line_of(a, r0, n, kvh, ht, m);
        line_sum x = line_merge(
            p.parts,
            [&](int j) {
                return __ldcg((
                    const float4 *)(a.part + ((int64_t)piece_slot(p, j) * C::M + m) * C::DV + col));
            },
            [&](int j) {
                return __ldcg((const float2 *)a.part_ml + (int64_t)piece_slot(p, j) * C::M + m);
            });
        if (!l.on)
            continue;
        float f = line_end(a, l, x.m, x.l, false, 0, col == 0);
        line_put(a, l, C::DV, col, x.v, f, false, 0);
    }
}

/* Lines of the tile that see nothing at all. */
template <class C>
static __device__ void piece_nothing(const struct mma_args &a, int r0, int n, int kvh, int ht)
{
    for (int i = threadIdx.x; i < n * a.tile_heads * (C::DV / 4); i += C::T) {
        tile_line l = line_of(a, r0, n, kvh, ht, i / (C::DV / 4));
        int col = i % (C::DV / 4) * 4;
        if (!l.on)
            continue;
        line_put(a, l, C::DV, col, make_float4(0, 0, 0, 0), 0, false, 0);
        if (col == 0 && a.c.lse)
            a.c.lse[(int64_t)l.row * a.c.n_head + l.head] = -INFINITY;
    }
}

#endif
