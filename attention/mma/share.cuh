/* Equal shares of all work for kernels of few query lines, whatever the lengths: what a worker (a
 * block) does, and the end of a piece of work: sums of the workers that share a tile, in a fixed
 * order, and where they go. C has M (lines of a tile), DV (values) and T (threads). */
#ifndef SPECD_ATTN_SHARE_CUH
#define SPECD_ATTN_SHARE_CUH

#include "attention/mma/rows.cuh"

/* ---- equal shares of all work ---- */

enum {
    UNIT = 64, /* keys of a unit */
    SLACK = 6, /* units that whole tiles may take longer: what a merge costs */
};

/* Where a worker is in its share. The work is a row of units: UNIT keys of a tile of rows and one
 * of `heads` (KV head x head tile). Units lie in the order of tiles, heads, keys, and every worker
 * takes an equal run of them, or, where that takes hardly longer, as many whole tiles as the
 * others: then nobody has anything to merge. A tile that sees nothing is one unit a head. */
struct share {
    int heads;
    bool whole;      /* at, end count tiles, not units */
    int size, more;  /* units of a worker, one more for the first `more` workers */
    int at, end;     /* the next unit, the end of the run */
    int r0, n, slot; /* the tile of rows, their slot */
    int lo, hi;      /* keys that some row of it may see, none when lo >= hi */
    int units;       /* of the tile for one head */
    int skip;        /* units of the tile, all heads, before `at` */
};

/* Rows of a tile that begins at some row, and keys that they see. */
struct share_tile {
    int n, slot, lo, hi;
};

/* No load waits for what another says. */
static __device__ __forceinline__ share_tile share_look(const struct mma_args &a, int r0)
{
    int most = min(a.tile_rows, a.c.rows - r0);
    const int32_t *begin = a.c.ancestors ? a.c.row0 : a.c.first;
    share_tile t = {0, a.c.slot[r0], INT_MAX, 0};
    bool same = true;
#pragma unroll 1
    for (int i = r0; i < r0 + most; i++) {
        int f = a.c.first[i], l = a.c.last[i], x = begin[i];
        same &= a.c.slot[i] == t.slot;
        t.n += same;
        if (same && f < l) {
            t.lo = min(t.lo, min(f, x));
            t.hi = max(t.hi, l);
        }
    }
    return t;
}

static __device__ __forceinline__ int share_units(const share_tile &t)
{
    return t.lo < t.hi ? (t.hi - 1) / UNIT + 1 - t.lo / UNIT : 1;
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
    bool low = unit < bound;
    return (low ? 0 : s.more) +
           (int)((uint32_t)(low ? unit : unit - bound) / (uint32_t)(low ? s.size + 1 : s.size));
}

static __device__ __forceinline__ void share_set(struct share &s, int r0, const share_tile &t)
{
    s.r0 = r0;
    s.n = t.n;
    s.slot = t.slot;
    s.lo = t.lo;
    s.hi = t.hi;
    s.units = share_units(t);
}

/* The share of `worker` of `workers`; at >= end when there is none. Needs all T threads. */
template <int T, int N>
static __device__ __forceinline__ struct share share_find(const struct mma_args &a, int worker,
                                                          int workers, tile_rows<N> &s)
{
    constexpr int WARPS = T / 32;
    static_assert(3 * WARPS <= 32, "room for what warps found");
    const int32_t *slot = a.c.slot;
    int tid = threadIdx.x, warp = tid >> 5, lane = tid & 31, rows = a.c.rows, rb = a.tile_rows;
    int per = (rows + T - 1) / T, lo = min(tid * per, rows), hi = min(lo + per, rows), start = -1;
    share_tile own = {};
    if (lo < hi) /* beside the search for beginnings, not behind it */
        own = share_look(a, lo);
    if (rb > 1)
        start = run_start(slot, lo, hi, s);
    /* tiles that begin in this thread's rows: f(row, tile) until it is true */
    auto tiles = [&](auto f) {
        int run = start;
#pragma unroll 1
        for (int i = lo; i < hi; i++) {
            if (rb > 1 && run_begins(slot, i))
                run = i;
            if (rb > 1 && !tile_begins(a, i - run))
                continue;
            if (f(i, i == lo ? own : share_look(a, i)))
                return;
        }
    };
    int units = 0, count = 0, most = 0;
    tiles([&](int, const share_tile &t) {
        int u = share_units(t);
        units += u;
        most = max(most, u);
        count++;
        return false;
    });
    int units_to = units, count_to = count;
    for (int o = 1; o < 32; o <<= 1) {
        int x = __shfl_up_sync(0xffffffffu, units_to, o);
        int y = __shfl_up_sync(0xffffffffu, count_to, o);
        if (lane >= o) {
            units_to += x;
            count_to += y;
        }
    }
    most = __reduce_max_sync(0xffffffffu, most);
    if (lane == 31) {
        s.warp_b[warp] = units_to;
        s.warp_b[WARPS + warp] = count_to;
        s.warp_b[2 * WARPS + warp] = most;
    }
    __syncthreads();
    int units_at = units_to - units, count_at = count_to - count, all = 0, all_tiles = 0;
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
        units_at += w < warp ? s.warp_b[w] : 0;
        count_at += w < warp ? s.warp_b[WARPS + w] : 0;
        all += s.warp_b[w];
        all_tiles += s.warp_b[WARPS + w];
        most = max(most, s.warp_b[2 * WARPS + w]);
    }
    struct share r = {};
    r.heads = a.c.n_kv * a.head_tiles;
    all *= r.heads;
    all_tiles *= r.heads;
    r.size = (int)((uint32_t)all / (uint32_t)workers);
    r.more = all - r.size * workers;
    int each = tile_div(all_tiles + workers - 1, workers);
    r.whole = each * most <= r.size + SLACK;
    r.at = r.whole ? worker * each : share_begin(r, worker);
    r.end = r.whole ? min(r.at + each, all_tiles) : min(share_begin(r, worker + 1), all);
    if (r.at >= r.end)
        return r;
    int at = (r.whole ? count_at : units_at) * r.heads;
    if (at <= r.at && r.at < at + (r.whole ? count : units) * r.heads)
        tiles([&](int i, const share_tile &t) {
            int u = share_units(t), next = at + (r.whole ? 1 : u) * r.heads;
            if (r.at >= next) {
                at = next;
                return false;
            }
            s.pick[0] = i;
            s.pick[1] = t.n;
            s.pick[2] = t.slot;
            s.pick[3] = t.lo;
            s.pick[4] = t.hi;
            s.pick[5] = (r.at - at) * (r.whole ? u : 1);
            return true;
        });
    __syncthreads();
    share_set(r, s.pick[0], {s.pick[1], s.pick[2], s.pick[3], s.pick[4]});
    r.skip = s.pick[5];
    return r;
}

/* On to the next tile of rows. */
static __device__ __forceinline__ void share_next(const struct mma_args &a, struct share &s)
{
    int r0 = s.r0 + s.n;
    share_set(s, r0, share_look(a, r0));
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
    p.head = tile_div(s.skip, s.units);
    p.begin = s.skip - p.head * s.units;
    p.end = s.whole ? s.units : min(s.units, p.begin + s.end - s.at);
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
    constexpr int STEP = 4;
    line_sum r = {{0, 0, 0, 0}, -INFINITY, 0};
#pragma unroll 1
    for (int i = 0; i < n; i += STEP) {
        float2 x[STEP];
        float4 y[STEP];
        float m = r.m;
#pragma unroll
        for (int j = 0; j < STEP; j++) {
            x[j] = {-INFINITY, 0};
            y[j] = {0, 0, 0, 0};
            if (i + j < n) {
                x[j] = ml(i + j);
                y[j] = v(i + j);
            }
            m = fmaxf(m, x[j].x);
        }
        float base = m == -INFINITY ? 0.0f : m, f = ex2(r.m - base);
        r.m = m;
        r.l *= f;
        r.v.x *= f, r.v.y *= f, r.v.z *= f, r.v.w *= f;
#pragma unroll
        for (int j = 0; j < STEP; j++) {
            f = ex2(x[j].x - base);
            r.l = fmaf(x[j].y, f, r.l);
            r.v.x = fmaf(y[j].x, f, r.v.x), r.v.y = fmaf(y[j].y, f, r.v.y);
            r.v.z = fmaf(y[j].z, f, r.v.z), r.v.w = fmaf(y[j].w, f, r.v.w);
        }
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
        line_put(line_to(a, l, C::DV, false, 0), col, x.v, f);
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
#pragma unroll 1
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
        line_put(line_to(a, l, C::DV, false, 0), col, x.v, f);
    }
}

#endif
