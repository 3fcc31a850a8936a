/* What kernels over rows of logits share. A row belongs to a cluster of up to 16 blocks of T
 * threads (one block where there are no clusters); each takes a slice of the vocabulary, whose
 * values it may keep in shared memory, and blocks read each other's results there. Files that
 * include this are compiled without contraction, so that the noise (kernels/cpu/fmath.h) has the
 * CPU device's bits.
 *
 * Sums of probabilities are integers (multiples of 2^-44), so a cut does not depend on how a row
 * was split, nor on the order of atomics. */
#ifndef SPECD_CUDA_RANK_CUH
#define SPECD_CUDA_RANK_CUH

#include "kernels/cpu/fmath.h"
#include "kernels/cuda/common.cuh"

enum {
    T = 512,
    WARPS = T / 32,
    BINS = 2048, /* of a cut's histogram: 1/64 below the largest value each, the last the rest */
    LIST = 1024, /* candidates that are ranked at once */
    SUMS = 8,
    ROOM_MAX = 32 * 1024, /* values that a block keeps in shared memory */
};

/* Order-preserving map of floats to unsigned; -0 is 0. */
static __device__ __forceinline__ uint32_t key_of(float f)
{
    uint32_t u = __float_as_uint(f + 0.0f);
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

static __device__ __forceinline__ float key_value(uint32_t k)
{
    return __uint_as_float(k & 0x80000000u ? k & 0x7fffffffu : ~k);
}

/* A value and an id in one word: larger is a larger value, then a lower id; 0 is none. */
static __device__ __forceinline__ uint64_t pack_best(float v, int id)
{
    return (uint64_t)key_of(v) << 32 | (0xffffffffu - (uint32_t)id);
}

static __device__ __forceinline__ int best_id(uint64_t b)
{
    return (int)(0xffffffffu - (uint32_t)b);
}

static __device__ __forceinline__ float best_value(uint64_t b)
{
    return b ? key_value((uint32_t)(b >> 32)) : -INFINITY;
}

static __device__ __forceinline__ float clean(float x)
{
    return x == x ? x : -INFINITY;
}

/* What a pass over a row finds: the best of two rankings, sum exp(x - best_value(arg)), flags. */
struct stat {
    uint64_t arg, draw;
    double sum;
    int bad;
};

struct cut { /* kept: above v, or equal to v with an id <= id */
    float v;
    int32_t id;
};

struct shared {
    struct stat part[2][WARPS], all[2];
    uint64_t sum_part[2][WARPS], sum_all[2];
    uint64_t sums_part[2][SUMS][WARPS], sums_all[2][SUMS];
    uint64_t hist[BINS]; /* then candidates and their weights */
    uint64_t list[LIST];
    uint64_t group[32], top[32], floor, run;
    int32_t path[LIM_ROWS_PER_REQ];
    struct cut cut;
    int n_list, bin;
};

/* A block's part of a row: elements [lo, hi) of it, in z (by the row's index) when it keeps them;
 * lo is a multiple of 4 and z + lo is aligned to 16 bytes. */
struct part {
    struct shared *s;
    float *z;
    int rank, size, lo, hi;
    unsigned turn;
};

/* ---- clusters ---- */

static __device__ __forceinline__ int cluster_rank(void)
{
    uint32_t r = 0;
#if __CUDA_ARCH__ >= 900
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
#endif
    return (int)r;
}

static __device__ __forceinline__ int cluster_size(void)
{
    uint32_t r = 1;
#if __CUDA_ARCH__ >= 900
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(r));
#endif
    return (int)r;
}

/* All threads of the cluster; what they wrote to shared memory is seen by all. */
static __device__ __forceinline__ void cluster_sync(const struct part *c)
{
#if __CUDA_ARCH__ >= 900
    if (c->size > 1) {
        asm volatile("barrier.cluster.arrive.release;\n\tbarrier.cluster.wait.acquire;" ::
                         : "memory");
        return;
    }
#endif
    __syncthreads();
}

/* Where block `rank` of the cluster has what *p is here. */
template <class V> static __device__ __forceinline__ const V *peer(const V *p, int rank)
{
#if __CUDA_ARCH__ >= 900
    uint64_t at;
    asm("mapa.u64 %0, %1, %2;" : "=l"(at) : "l"((uint64_t)p), "r"(rank));
    return (const V *)at;
#else
    return p;
#endif
}

/* The part of this block in a row of n; `room` floats of `smem` are there for its values, else
 * they go to `work` (n floats and up to 3 more). */
static __device__ struct part part_of(struct shared *s, int n, float *smem, int room, float *work)
{
    struct part c = {s, NULL, cluster_rank(), cluster_size(), 0, 0, 0};
    int per = ((n + c.size - 1) / c.size + 3) / 4 * 4;
    c.lo = min(c.rank * per, n);
    c.hi = min(c.lo + per, n);
    c.z = per <= room ? smem - c.lo : work;
    return c;
}

/* f(i, x) for groups of four elements i … i + 3 of v in the block's part; elements behind its end
 * are -infinity. Every thread gets the same groups in each pass, and all lanes of a warp take part
 * in every call. U groups are loaded at once: many for global memory. */
template <int U, class F>
static __device__ __forceinline__ void each4(const struct part *c, const float *v, F f)
{
    bool wide = ((uintptr_t)(v + c->lo) & 15) == 0;
    for (int g = c->lo + 4 * (int)threadIdx.x; g - 4 * ((int)threadIdx.x & 31) < c->hi;
         g += 4 * T * U) {
        float x[U][4];
#pragma unroll
        for (int u = 0; u < U; u++) {
            int i = g + 4 * T * u;
            if (wide && i + 4 <= c->hi) {
                float4 w = *(const float4 *)(v + i);
                x[u][0] = w.x;
                x[u][1] = w.y;
                x[u][2] = w.z;
                x[u][3] = w.w;
            } else {
#pragma unroll
                for (int j = 0; j < 4; j++)
                    x[u][j] = i + j < c->hi ? v[i + j] : -INFINITY;
            }
        }
#pragma unroll
        for (int u = 0; u < U; u++)
            if (g - 4 * ((int)threadIdx.x & 31) + 4 * T * u < c->hi)
                f(g + 4 * T * u, x[u]);
    }
}

static __device__ __forceinline__ void put4(const struct part *c, int i, const float *x)
{
    if (i < c->hi)
        *(float4 *)(c->z + i) = make_float4(x[0], x[1], x[2], x[3]);
}

/* ---- reductions; every thread of the cluster gets the result ---- */

static __device__ double moved(double sum, uint64_t from, uint64_t to)
{
    float a = best_value(from), b = best_value(to);
    return a == b ? sum : sum * (double)fm_exp(a - b);
}

static __device__ __forceinline__ uint64_t warp_best(uint64_t v)
{
    uint32_t high = (uint32_t)(v >> 32), top = __reduce_max_sync(0xffffffffu, high);
    uint32_t low = __reduce_max_sync(0xffffffffu, high == top ? (uint32_t)v : 0);
    return (uint64_t)top << 32 | low;
}

/* `sums`: the sum counts too. */
static __device__ struct stat warp_stat(struct stat v, bool sums)
{
    uint64_t arg = warp_best(v.arg);
    v.draw = warp_best(v.draw);
    v.bad = __any_sync(0xffffffffu, v.bad);
    if (sums) {
        v.sum = moved(v.sum, v.arg, arg);
        for (int o = 16; o > 0; o >>= 1)
            v.sum += __shfl_xor_sync(0xffffffffu, v.sum, o);
    }
    v.arg = arg;
    return v;
}

static __device__ struct stat cluster_stat(struct part *c, struct stat v, bool sums)
{
    const struct stat none = {0, 0, 0, 0};
    struct shared *s = c->s;
    int lane = threadIdx.x & 31, t = (int)(c->turn++ & 1);
    v = warp_stat(v, sums);
    if (lane == 0)
        s->part[t][threadIdx.x >> 5] = v;
    __syncthreads();
    v = warp_stat(lane < WARPS ? s->part[t][lane] : none, sums);
    if (c->size == 1)
        return v;
    if (threadIdx.x == 0)
        s->all[t] = v;
    cluster_sync(c);
    return warp_stat(lane < c->size ? *peer(&s->all[t], lane) : none, sums);
}

static __device__ uint64_t cluster_best(struct part *c, uint64_t v)
{
    struct stat s = {0, v, 0, 0};
    return cluster_stat(c, s, false).draw;
}

static __device__ __forceinline__ uint64_t warp_sum(uint64_t v)
{
    for (int o = 16; o > 0; o >>= 1)
        v += __shfl_xor_sync(0xffffffffu, v, o);
    return v;
}

/* `parts`, when given: where each block left its own sum, until the next call but one. */
static __device__ uint64_t cluster_sum(struct part *c, uint64_t v, const uint64_t **parts)
{
    struct shared *s = c->s;
    int lane = threadIdx.x & 31, t = (int)(c->turn++ & 1);
    v = warp_sum(v);
    if (lane == 0)
        s->sum_part[t][threadIdx.x >> 5] = v;
    __syncthreads();
    v = warp_sum(lane < WARPS ? s->sum_part[t][lane] : 0);
    if (threadIdx.x == 0)
        s->sum_all[t] = v;
    cluster_sync(c);
    if (parts)
        *parts = &s->sum_all[t];
    return warp_sum(lane < c->size ? *peer(&s->sum_all[t], lane) : 0);
}

/* N sums at once. */
template <int N> static __device__ void cluster_sums(struct part *c, uint64_t (&v)[N])
{
    struct shared *s = c->s;
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, t = (int)(c->turn++ & 1);
    static_assert(N <= SUMS && N <= WARPS, "a warp a sum");
#pragma unroll
    for (int j = 0; j < N; j++) {
        uint64_t w = warp_sum(v[j]);
        if (lane == 0)
            s->sums_part[t][j][warp] = w;
    }
    __syncthreads();
    if (warp < N) {
        uint64_t w = warp_sum(lane < WARPS ? s->sums_part[t][warp][lane] : 0);
        if (lane == 0)
            s->sums_all[t][warp] = w;
    }
    cluster_sync(c);
    uint64_t w = 0;
    for (int r0 = 0; r0 < c->size; r0 += 8)
#pragma unroll
        for (int r = r0; r < r0 + 8; r++)
            w += r < c->size && lane < N ? *peer(&s->sums_all[t][lane], r) : 0;
#pragma unroll
    for (int j = 0; j < N; j++)
        v[j] = __shfl_sync(0xffffffffu, w, j);
}

/* ---- a thread's view of its elements ---- */

/* The largest of a thread's elements (its first when all are -infinity), the sum of exp below it.
 */
struct scan {
    float max;
    int at;
    double sum;
    int bad;
};

static __device__ __forceinline__ struct scan scan_begin(void)
{
    struct scan r = {-INFINITY, -1, 0, 0};
    return r;
}

/* Makes NaN -infinity. */
static __device__ __forceinline__ void scan4(struct scan *r, int i, float *x, bool exps)
{
    float was = r->max;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        r->bad |= x[j] != x[j];
        x[j] = clean(x[j]);
        if (x[j] > r->max) {
            r->max = x[j];
            r->at = i + j;
        }
    }
    if (!exps || r->max == -INFINITY)
        return;
    if (r->max > was)
        r->sum *= (double)__expf(was - r->max);
    r->sum += (double)((__expf(x[0] - r->max) + __expf(x[1] - r->max)) +
                       (__expf(x[2] - r->max) + __expf(x[3] - r->max)));
}

static __device__ __forceinline__ struct stat scan_stat(const struct part *c, const struct scan *r)
{
    int first = c->lo + 4 * (int)threadIdx.x;
    int at = r->at >= 0 ? r->at : first;
    struct stat s = {at < c->hi ? pack_best(r->max, at) : 0, 0, r->sum, r->bad};
    return s;
}

struct lse {
    float max;
    double log_sum;
};

static __device__ __forceinline__ struct lse lse_of(const struct stat *s)
{
    struct lse r = {best_value(s->arg), log(s->sum)};
    return r;
}

/* ---- the n best ---- */

/* Copies what all blocks have listed to `to`; returns how many there are, more than LIST when they
 * do not fit (nothing is copied then). */
static __device__ int gather_lists(const struct part *c, uint64_t *to)
{
    int lane = threadIdx.x & 31;
    int n = lane < c->size ? min(*peer(&c->s->n_list, lane), LIST + 1) : 0, upto = n;
    for (int o = 1; o < 32; o <<= 1) {
        int t = __shfl_up_sync(0xffffffffu, upto, o);
        upto += lane >= o ? t : 0;
    }
    int total = __shfl_sync(0xffffffffu, upto, 31);
    if (total > LIST)
        return LIST + 1;
    for (int r = (int)threadIdx.x >> 5; r < c->size; r += WARPS) {
        int many = __shfl_sync(0xffffffffu, n, r), at = __shfl_sync(0xffffffffu, upto, r) - many;
        const uint64_t *from = peer(c->s->list, r);
        for (int k = lane; k < many; k += 32)
            to[at + k] = from[k];
    }
    return total;
}

static __device__ __forceinline__ void list_add(struct shared *s, uint64_t w)
{
    int k = atomicAdd(&s->n_list, 1);
    if (k < LIST)
        s->list[k] = w;
}

/* The n <= 32 best of v into s->top of the cluster's first block, in order (0: fewer elements).
 * `mine`: the best of the thread's own elements. The n-th of the maxima of 32 groups of threads is
 * not above the n-th best of the block, and little is above it. NaN ranks as -infinity. */
static __device__ void top_n(struct part *c, const float *v, uint64_t mine, int n)
{
    struct shared *s = c->s;
    int lane = threadIdx.x & 31;
    uint64_t w = mine;
    for (int o = 8; o > 0; o >>= 1) {
        uint64_t x = __shfl_xor_sync(0xffffffffu, w, o);
        w = x > w ? x : w;
    }
    if ((lane & 15) == 0)
        s->group[threadIdx.x >> 4] = w;
    if (threadIdx.x == 0)
        s->n_list = 0;
    __syncthreads();
    if (threadIdx.x < 32) {
        uint64_t x = s->group[lane];
        int before = 0;
        for (int o = 0; o < 32; o++) {
            uint64_t y = __shfl_sync(0xffffffffu, x, o);
            before += y > x || (y == x && o < lane);
        }
        if (before == n - 1)
            s->floor = x;
    }
    __syncthreads();
    uint64_t least = s->floor;
    for (int i = c->lo + 4 * (int)threadIdx.x; mine && mine >= least && i < c->hi; i += 4 * T)
        for (int j = i; j < min(i + 4, c->hi); j++) {
            uint64_t x = pack_best(clean(v[j]), j);
            if (x >= least)
                list_add(s, x);
        }
    cluster_sync(c);
    int total = gather_lists(c, s->hist);
    __syncthreads();
    if (total <= LIST) {
        if (threadIdx.x < 32)
            s->top[threadIdx.x] = 0;
        __syncthreads();
        for (int x = (int)threadIdx.x; x < total && c->rank == 0; x += T) {
            int before = 0;
            for (int y = 0; y < total; y++)
                before += s->hist[y] > s->hist[x];
            if (before < n)
                s->top[before] = s->hist[x];
        }
    } else { /* very many near the top: one at a time */
        uint64_t last = ~0ull;
        for (int k = 0; k < n; k++) {
            uint64_t b = 0;
            for (int i = c->lo + 4 * (int)threadIdx.x; i < c->hi; i += 4 * T)
                for (int j = i; j < min(i + 4, c->hi); j++) {
                    uint64_t x = pack_best(clean(v[j]), j);
                    b = x < last && x > b ? x : b;
                }
            last = cluster_best(c, b);
            if (threadIdx.x == 0)
                s->top[k] = last;
        }
    }
    __syncthreads();
}

/* ---- launching ---- */

struct row_fit {
    unsigned size; /* blocks of a row */
    int room;      /* floats of shared memory for a block's values */
};

/* For rows of n: enough blocks to fill the device; `keep`: the blocks keep the values, so many that
 * a slice fits shared memory. */
static inline struct row_fit row_fit(const struct dev *d, int rows, int n, bool keep)
{
    struct row_fit f = {1, 0};
    unsigned most = rows <= 8 ? 16 : 8;
    if (cuda_dev_early(d)) {
        while (f.size < most && n >= 4096 * (int)f.size && rows * (int)f.size < 2 * d->n_sm)
            f.size *= 2;
        while (keep && f.size < 8 && n > 18 * 1024 * (int)f.size)
            f.size *= 2;
    }
    int per = (int)cuda_div_up(cuda_div_up(n, f.size), 4) * 4;
    f.room = keep && per <= ROOM_MAX && d->sm >= 90 ? per : 0;
    return f;
}

template <typename... P, typename... A>
static int row_launch(struct dev *d, void (*kernel)(P...), struct row_fit f, int rows,
                      const A &...args)
{
    size_t bytes = (size_t)f.room * sizeof(float);
    /* the most that any call takes: recorded launches stay valid */
    const int most = ROOM_MAX * (int)sizeof(float);
    if (d->sm >= 90 &&
        (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most) ||
         (f.size > 8 &&
          cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1))))
        return E_DEVICE;
    return cuda_launch_cluster(d, kernel, dim3((unsigned)rows * f.size), T, bytes, f.size, args...);
}

#endif
