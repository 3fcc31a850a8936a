/* Expert choice. Up to 8 rows and 128 experts without groups: one cluster of blocks. Up to 16 rows:
 * one kernel, a block an expert for the logits, whose last block chooses. In both every block sums
 * the rows' squares beside its product, so the norm costs nothing. More: norm, logits by a kernel
 * that reads 64 experts at once, then a warp a row. Logits keep fp32's precision (2^-17) where the
 * router is bf16. */
#include "kernels/cuda/experts.cuh"
#include "kernels/cuda/team.cuh"

enum { ROUTE_FEW = 16, ROUTE_LOADS = 4, GROUPS_MAX = 64 };
enum { TEAM_EACH = 8, TEAM_EXPERTS = 128, TEAM_ROWS = 8, TEAM_THREADS = 512 };

/* Order-preserving key of a choice; not a number counts as -inf, and 0 is below every choice. */
static __device__ __forceinline__ uint32_t key_of(float v)
{
    uint32_t u = v == v ? __float_as_uint(v) : 0xff800000u;
    return u >> 31 ? ~u : u | 0x80000000u;
}

/* The index of the largest of n keys, the lowest of equals, by a warp. */
static __device__ int pick(const uint32_t *c, int n, int lane)
{
    uint32_t best = 0;
    int at = lane;
#pragma unroll 4
    for (int i = lane; i < n; i += 32) {
        if (c[i] > best) {
            best = c[i];
            at = i;
        }
    }
    uint32_t most = __reduce_max_sync(0xffffffffu, at < n ? best : 0);
    return (int)__reduce_min_sync(0xffffffffu,
                                  at < n && best == most ? (unsigned)at : (unsigned)(n - 1));
}

/* Leaves only the experts of the best groups; the others count as -inf. */
static __device__ void limit_groups(const struct op_moe_route &a, float *c, uint32_t *score,
                                    int lane)
{
    int size = a.experts / a.n_group;
#pragma unroll 1
    for (int g = lane; g < a.n_group; g += 32) {
        float best = -INFINITY, second = -INFINITY;
#pragma unroll 1
        for (int i = g * size; i < (g + 1) * size; i++) {
            if (c[i] > best) {
                second = best;
                best = c[i];
            } else if (c[i] > second) {
                second = c[i];
            }
        }
        score[g] = key_of(a.group == MOE_GROUP_MAX ? best : best + second);
    }
    __syncwarp();
    uint64_t keep = 0;
#pragma unroll 1
    for (int k = 0; k < a.topk_group; k++) {
        int g = pick(score, a.n_group, lane);
        keep |= 1ull << g;
        __syncwarp();
        if (lane == 0)
            score[g] = 0;
        __syncwarp();
    }
#pragma unroll 1
    for (int i = lane; i < a.experts; i += 32)
        if (!(keep >> (i / size) & 1))
            c[i] = -INFINITY;
    __syncwarp();
}

/* One row by one warp; s has 2 * experts + GROUPS_MAX floats of shared memory. */
static __device__ void route_row(const struct op_moe_route &a, int r, float *s)
{
    int lane = threadIdx.x & 31;
    float *c = s + a.experts;
    const float *l = a.logits + (int64_t)r * a.experts;
    float max = -INFINITY, sum = 0;
    for (int i = lane; i < a.experts; i += 32) {
        s[i] = __ldcg(l + i);
        max = fmaxf(max, s[i]);
    }
    max = cuda_warp_max(max);
#pragma unroll 1
    for (int i = lane; i < a.experts; i += 32) {
        s[i] = a.score == MOE_SIGMOID ? 1.0f / (1.0f + expf(-s[i])) : expf(s[i] - max);
        sum += s[i];
    }
    sum = cuda_warp_sum(sum);
#pragma unroll 1
    for (int i = lane; i < a.experts; i += 32) {
        if (a.score == MOE_SOFTMAX)
            s[i] /= sum;
        c[i] = s[i] + (a.bias ? a.bias[i] : 0.0f);
    }
    __syncwarp();
    if (a.group != MOE_GROUP_NONE && a.n_group > 1)
        limit_groups(a, c, (uint32_t *)(c + a.experts), lane);
    uint32_t *key = (uint32_t *)c;
#pragma unroll 1
    for (int i = lane; i < a.experts; i += 32)
        key[i] = key_of(c[i]);
    __syncwarp();
    float total = 0, mine = 0; /* the weight of pick `lane` */
#pragma unroll 1
    for (int k = 0; k < a.topk; k++) {
        int e = pick(key, a.experts, lane);
        float w = s[e];
        total += w;
        if (lane == k % 32)
            mine = w;
        if (lane == 0) {
            a.ids[(int64_t)r * a.topk + k] = e;
            key[e] = 0;
        }
        __syncwarp();
    }
    float f = a.normalize ? a.scale / (total + a.norm_eps) : a.scale;
    if (lane < a.topk)
        a.weights[(int64_t)r * a.topk + lane] = mine * f;
    __syncwarp();
}

/* Elements k … k + 8 of the norm's weight, which is aligned, or ones. */
static __device__ __forceinline__ void norm8(const struct weight &norm, int k, float *to)
{
    float4 u = make_float4(1, 1, 1, 1), v = u;
    if (norm.p && norm.dt == DT_BF16) {
        uint4 b = *(const uint4 *)((const __nv_bfloat16 *)norm.p + k);
        u = make_float4(__uint_as_float(b.x << 16), __uint_as_float(b.x & 0xffff0000u),
                        __uint_as_float(b.y << 16), __uint_as_float(b.y & 0xffff0000u));
        v = make_float4(__uint_as_float(b.z << 16), __uint_as_float(b.z & 0xffff0000u),
                        __uint_as_float(b.w << 16), __uint_as_float(b.w & 0xffff0000u));
    } else if (norm.p && norm.dt == DT_F32) {
        u = *(const float4 *)((const float *)norm.p + k);
        v = *(const float4 *)((const float *)norm.p + k + 4);
    }
    *(float4 *)to = u;
    *(float4 *)(to + 4) = v;
    if (norm.p && norm.dt != DT_BF16 && norm.dt != DT_F32)
#pragma unroll 1
        for (int i = 0; i < 8; i++)
            to[i] = cuda_load(norm.p, norm.dt, k + i);
}

/* Grid: experts. `done` counts blocks and is 0 between calls. Shared: the norm's weight, or, in the
 * end, a part for each warp's row. */
__global__ void __launch_bounds__(FEW_THREADS)
    route_few_kernel(struct op_moe_route a, int32_t *done)
{
    extern __shared__ __align__(16) float shared[];
    __shared__ float part[2][FEW_WARPS][ROUTE_FEW], rstd[ROUTE_FEW];
    __shared__ bool last;
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, e = blockIdx.x;
    int K = (int)a.router.k;
    bool fast = a.router.dt == DT_BF16 && K % 8 == 0 && K <= ROUTE_LOADS * FEW_THREADS * 8;
    const __nv_bfloat16 *W = (const __nv_bfloat16 *)a.router.p + (int64_t)e * K;
    uint4 w[ROUTE_LOADS] = {};
    if (fast) {
#pragma unroll
        for (int j = 0; j < ROUTE_LOADS; j++)
            if ((j * FEW_THREADS + (int)threadIdx.x) * 8 < K)
                w[j] = few_load(W + (j * FEW_THREADS + threadIdx.x) * 8);
    }
    if (K % 8 == 0)
#pragma unroll 1
        for (int k = threadIdx.x * 8; k < K; k += FEW_THREADS * 8)
            norm8(a.norm, k, shared + k);
    else
#pragma unroll 1
        for (int k = threadIdx.x; k < K; k += FEW_THREADS)
            shared[k] = a.norm.p ? cuda_load(a.norm.p, a.norm.dt, k) : 1.0f;
    __syncthreads();
    cuda_trigger();
    cuda_wait();
#pragma unroll 2
    for (int r = 0; fast && r < a.rows; r++) {
        const float *x = a.x + (int64_t)r * K;
        float s = 0, squares = 0;
#pragma unroll
        for (int j = 0; j < ROUTE_LOADS; j++) {
            int k = (j * FEW_THREADS + (int)threadIdx.x) * 8;
            if (k >= K)
                continue;
            float4 u = *(const float4 *)(x + k), v = *(const float4 *)(x + k + 4);
            float4 nu = *(const float4 *)(shared + k), nv = *(const float4 *)(shared + k + 4);
            const __nv_bfloat162 *b = (const __nv_bfloat162 *)&w[j];
            float2 f0 = __bfloat1622float2(b[0]), f1 = __bfloat1622float2(b[1]);
            float2 f2 = __bfloat1622float2(b[2]), f3 = __bfloat1622float2(b[3]);
            squares += u.x * u.x + u.y * u.y + u.z * u.z + u.w * u.w;
            squares += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
            s += u.x * nu.x * f0.x + u.y * nu.y * f0.y + u.z * nu.z * f1.x + u.w * nu.w * f1.y;
            s += v.x * nv.x * f2.x + v.y * nv.y * f2.y + v.z * nv.z * f3.x + v.w * nv.w * f3.y;
        }
        s = cuda_warp_sum(s);
        squares = cuda_warp_sum(squares);
        if (lane == 0) {
            part[0][warp][r] = s;
            part[1][warp][r] = squares;
        }
    }
#pragma unroll 1
    for (int r = 0; !fast && r < a.rows; r++) {
        const float *x = a.x + (int64_t)r * K;
        float s = 0, squares = 0;
#pragma unroll 1
        for (int k = threadIdx.x; k < K; k += FEW_THREADS) {
            s += x[k] * shared[k] * cuda_weight(a.router, e, k);
            squares += x[k] * x[k];
        }
        s = cuda_warp_sum(s);
        squares = cuda_warp_sum(squares);
        if (lane == 0) {
            part[0][warp][r] = s;
            part[1][warp][r] = squares;
        }
    }
    __syncthreads();
    if ((int)threadIdx.x < a.rows) {
        float s = 0, squares = 0;
        for (int i = 0; i < FEW_WARPS; i++) {
            s += part[0][i][threadIdx.x];
            squares += part[1][i][threadIdx.x];
        }
        float f = a.norm.p ? 1.0f / sqrtf(squares / (float)K + a.eps) : 1.0f;
        rstd[threadIdx.x] = f;
        __stcg(a.logits + (int64_t)threadIdx.x * a.experts + e, s * f);
        __threadfence();
    }
    __syncthreads();
    if (threadIdx.x == 0)
        last = atomicAdd(done, 1) == (int)gridDim.x - 1;
    if (a.norm.p)
#pragma unroll 1
        for (int r = e; r < a.rows; r += gridDim.x)
#pragma unroll 4
            for (int k = threadIdx.x; k < K; k += FEW_THREADS)
                a.y[(int64_t)r * K + k] = a.x[(int64_t)r * K + k] * rstd[r] * shared[k];
    __syncthreads();
    if (!last)
        return;
    __threadfence();
    if (threadIdx.x == 0)
        *done = 0;
#pragma unroll 1
    for (int r = warp; r < a.rows; r += FEW_WARPS)
        route_row(a, r, shared + warp * (2 * a.experts + GROUPS_MAX));
}

/* ---- a small router and few rows: one cluster ---- */

/* The choice of row r among at most TEAM_EXPERTS without groups, by a warp; l: logits in shared
 * memory. */
static __device__ void team_choose(const struct op_moe_route &a, int r, const float *l)
{
    enum { EACH = TEAM_EXPERTS / 32 };
    int lane = threadIdx.x & 31;
    float s[EACH], max = -INFINITY, sum = 0, mine = 0;
    uint32_t key[EACH];
    int my = 0;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        s[i] = i * 32 + lane < a.experts ? l[i * 32 + lane] : -INFINITY;
        max = fmaxf(max, s[i]);
    }
    if (a.score != MOE_SIGMOID)
        max = cuda_warp_max(max);
    if (a.score == MOE_SIGMOID) {
#pragma unroll
        for (int i = 0; i < EACH; i++)
            s[i] = 1.0f / (1.0f + expf(-s[i]));
    } else {
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            s[i] = expf(s[i] - max);
            sum += i * 32 + lane < a.experts ? s[i] : 0;
        }
    }
    if (a.score == MOE_SOFTMAX)
        sum = cuda_warp_sum(sum);
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        int e = i * 32 + lane;
        if (a.score == MOE_SOFTMAX)
            s[i] /= sum;
        key[i] = e < a.experts ? key_of(s[i] + (a.bias ? a.bias[e] : 0.0f)) : 0;
    }
#pragma unroll 1
    for (int k = 0; k < a.topk; k++) {
        uint32_t best = key[0];
        float score = s[0];
        int e = lane;
#pragma unroll
        for (int i = 1; i < EACH; i++)
            if (key[i] > best) {
                best = key[i];
                score = s[i];
                e = i * 32 + lane;
            }
        uint32_t most = __reduce_max_sync(0xffffffffu, best);
        int won = (int)__reduce_min_sync(0xffffffffu, best == most ? (unsigned)e : 0xffffu);
        score = __shfl_sync(0xffffffffu, score, won & 31);
        if (lane == k) {
            my = won;
            mine = score;
        }
#pragma unroll
        for (int i = 0; i < EACH; i++)
            if (i * 32 + lane == won)
                key[i] = 0;
    }
    float f = a.scale;
    if (a.normalize)
        f /= cuda_warp_sum(mine) + a.norm_eps;
    if (lane < a.topk) {
        a.ids[(int64_t)r * a.topk + lane] = my;
        a.weights[(int64_t)r * a.topk + lane] = mine * f;
    }
}

/* A block of the cluster has TEAM_EACH experts, a thread 8 columns of them all; the first block
 * gets the logits and chooses. */
__global__ void __launch_bounds__(TEAM_THREADS, 2) route_team_kernel(struct op_moe_route a)
{
    __shared__ float part[TEAM_THREADS / 32][TEAM_ROWS][TEAM_EACH + 1], rstd[TEAM_ROWS];
    __shared__ float logits[TEAM_ROWS][TEAM_EXPERTS], sums[TEAM_ROWS][TEAM_EACH];
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, e0 = blockIdx.x * TEAM_EACH;
    int K = (int)a.router.k, k = threadIdx.x * 8, warps = (int)blockDim.x >> 5;
    bool on = k < K;
    uint4 w[TEAM_EACH];
    __shared__ __align__(16) float norms[TEAM_THREADS * 8]; /* a thread's own */
    float *norm = norms + k;
    team_here();
    cuda_trigger();
    const __nv_bfloat16 *W = (const __nv_bfloat16 *)a.router.p + (int64_t)e0 * K + k;
#pragma unroll
    for (int i = 0; i < TEAM_EACH; i++)
        w[i] = on ? few_load(W + (int64_t)i * K) : make_uint4(0, 0, 0, 0);
    if (on)
        norm8(a.norm, k, norm);
    cuda_wait();
#pragma unroll 1
    for (int r = 0; r < a.rows; r++) {
        const float4 *from = (const float4 *)(a.x + (int64_t)r * K + k);
        float4 u = on ? from[0] : make_float4(0, 0, 0, 0), v = on ? from[1] : u;
        float4 nu = *(const float4 *)norm, nv = *(const float4 *)(norm + 4);
        float squares = u.x * u.x + u.y * u.y + u.z * u.z + u.w * u.w;
        squares += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
        float x[8] = {u.x * nu.x, u.y * nu.y, u.z * nu.z, u.w * nu.w,
                      v.x * nv.x, v.y * nv.y, v.z * nv.z, v.w * nv.w};
        float s[TEAM_EACH];
#pragma unroll
        for (int i = 0; i < TEAM_EACH; i++) {
            uint32_t b[4] = {w[i].x, w[i].y, w[i].z, w[i].w};
            s[i] = 0;
#pragma unroll
            for (int j = 0; j < 4; j++) {
                asm volatile("" : "+r"(b[j])); /* no wide copies of all weights for all rows */
                s[i] += x[2 * j] * __uint_as_float(b[j] << 16);
                s[i] += x[2 * j + 1] * __uint_as_float(b[j] & 0xffff0000u);
            }
        }
        squares = cuda_warp_sum(squares);
        /* halves of the sums to halves of the lanes, until each lane has one */
        static_assert(TEAM_EACH == 8, "three halvings");
#pragma unroll
        for (int h = 4; h > 0; h >>= 1) {
            bool up = lane & h;
#pragma unroll
            for (int i = 0; i < h; i++) {
                float give = up ? s[i] : s[i + h];
                s[i] = (up ? s[i + h] : s[i]) + __shfl_xor_sync(0xffffffffu, give, h);
            }
        }
        s[0] += __shfl_xor_sync(0xffffffffu, s[0], 8);
        s[0] += __shfl_xor_sync(0xffffffffu, s[0], 16);
        if (lane < TEAM_EACH)
            part[warp][r][lane] = s[0];
        if (lane == 0)
            part[warp][r][TEAM_EACH] = squares;
    }
    __syncthreads();
#pragma unroll 1
    for (int p = threadIdx.x; p < a.rows * TEAM_EACH; p += blockDim.x) {
        int r = p / TEAM_EACH, i = p % TEAM_EACH;
        float s = 0, squares = 0;
#pragma unroll 4
        for (int j = 0; j < warps; j++) {
            s += part[j][r][i];
            squares += part[j][r][TEAM_EACH];
        }
        float f = a.norm.p ? 1.0f / sqrtf(squares / (float)K + a.eps) : 1.0f;
        if (p == threadIdx.x)
            team_wait(); /* the first block is there */
        team_put(&logits[r][e0 + i], 0, s * f);
        sums[r][i] = s * f;
        if (i == 0)
            rstd[r] = f;
    }
    if (threadIdx.x >= a.rows * TEAM_EACH)
        team_wait();
    team_arrive();
    __syncthreads();
#pragma unroll 1
    for (int p = threadIdx.x; p < a.rows * TEAM_EACH; p += blockDim.x)
        a.logits[p / TEAM_EACH * a.experts + e0 + p % TEAM_EACH] =
            sums[p / TEAM_EACH][p % TEAM_EACH];
    int size = (int)gridDim.x, r0 = (int)blockIdx.x - 1; /* row 0 is not the first block's */
    if (a.norm.p && on)
#pragma unroll 1
        for (int r = r0 < 0 ? size - 1 : r0; r < a.rows; r += size) {
            const float4 *x = (const float4 *)(a.x + (int64_t)r * K + k);
            float4 *y = (float4 *)(a.y + (int64_t)r * K + k), u = x[0], v = x[1];
            float4 nu = *(const float4 *)norm, nv = *(const float4 *)(norm + 4);
            float f = rstd[r];
            y[0] = make_float4(u.x * f * nu.x, u.y * f * nu.y, u.z * f * nu.z, u.w * f * nu.w);
            y[1] = make_float4(v.x * f * nv.x, v.y * f * nv.y, v.z * f * nv.z, v.w * f * nv.w);
        }
    team_wait();
#pragma unroll 1
    for (int r = warp; blockIdx.x == 0 && r < a.rows; r += warps)
        team_choose(a, r, logits[r]);
}

static bool aligned(const void *p)
{
    return ((uintptr_t)p & 15) == 0;
}

static bool route_team_fits(const struct dev *d, const struct op_moe_route *a)
{
    return cuda_dev_early(d) && a->rows <= TEAM_ROWS && a->experts <= TEAM_EXPERTS &&
           a->experts % TEAM_EACH == 0 && a->router.dt == DT_BF16 && a->router.k % 8 == 0 &&
           a->router.k <= TEAM_THREADS * 8 && aligned(a->y) &&
           (a->group == MOE_GROUP_NONE || a->n_group <= 1);
}

/* Logits of many rows: grid (experts / 64, ceil(R / 16)). */
__global__ void __launch_bounds__(FEW_THREADS) route_logits_kernel(struct op_moe_route a)
{
    __shared__ few_part<2> part;
    int g = (threadIdx.x & 31) >> 2, K = (int)a.router.k, e0 = blockIdx.x * FEW_ROWS;
    int r0 = blockIdx.y * 16, n = min(16, a.rows - r0);
    few_weight f = few_rows<false>(a.router, e0, a.router, e0 + 32, 0);
    few_chunk<2, false> c[2];
    cuda_trigger();
    few_start(c, f, K);
    cuda_wait();
    const float *x[2];
    for (int t = 0; t < 2; t++)
        x[t] = t * 8 + g < n ? a.x + (int64_t)(r0 + t * 8 + g) * K : NULL;
    float acc[4][2][4] = {};
    few_run(acc, f, x, K, c);
    few_store(&part, acc);
    for (int i = threadIdx.x; i < 16 * FEW_ROWS; i += FEW_THREADS)
        if (i / FEW_ROWS < n)
            a.logits[(int64_t)(r0 + i / FEW_ROWS) * a.experts + e0 + i % FEW_ROWS] =
                few_sum(&part, i % FEW_ROWS, i / FEW_ROWS);
}

/* Grid: ceil(R / warps of a block). */
__global__ void route_kernel(struct op_moe_route a)
{
    extern __shared__ float rows[];
    int warp = threadIdx.x >> 5, r = blockIdx.x * (blockDim.x >> 5) + warp;
    cuda_trigger();
    cuda_wait();
    if (r < a.rows)
        route_row(a, r, rows + warp * (2 * a.experts + GROUPS_MAX));
}

/* Norm and logits of many rows; leaves the rows they are of in a->x. */
static int route_logits(struct dev *d, struct op_moe_route *a, const struct op_moe_route *op)
{
    struct op_rmsnorm n = {};
    n.out = a->y;
    n.x = a->x;
    n.w = op->norm;
    n.rows = a->rows;
    n.dim = (int)a->router.k;
    n.ldx = n.ldo = a->router.k;
    n.n_group = 1;
    n.eps = a->eps;
    if (n.w.p) {
        TRY(cuda_do_rmsnorm(d, &n));
        a->x = a->y;
    }
    if (a->router.dt == DT_BF16 && aligned(a->x) && aligned(a->router.p) &&
        a->experts % FEW_ROWS == 0 && a->router.k % 32 == 0)
        return cuda_launch(
            d, route_logits_kernel,
            dim3((unsigned)(a->experts / FEW_ROWS), (unsigned)cuda_div_up(a->rows, 16)),
            FEW_THREADS, 0, *a);
    for (int r0 = 0; r0 < a->rows; r0 += 8) { /* more rows may be rounded to bf16 */
        struct op_matmul m = {};
        m.out = a->logits + (int64_t)r0 * a->experts;
        m.x = a->x + r0 * a->router.k;
        m.w = op->router;
        m.rows = a->rows - r0 < 8 ? a->rows - r0 : 8;
        m.ldx = a->router.k;
        m.ldo = a->experts;
        TRY(cuda_do_matmul(d, &m));
    }
    return OK;
}

extern "C" int cuda_do_moe_route(struct dev *d, const struct op_moe_route *op)
{
    struct op_moe_route b = *op, *a = &b;
    if (a->experts > EXPERTS_MAX || a->n_group > GROUPS_MAX || a->topk > 32)
        return E_UNSUPPORTED;
    b.router = cuda_weight_dev(d, op->router);
    b.norm = cuda_weight_dev(d, op->norm);
    if (a->router.p && aligned(a->x) && aligned(a->router.p) && aligned(a->norm.p) &&
        route_team_fits(d, a)) {
        unsigned size = (unsigned)a->experts / TEAM_EACH;
        if (size > 8 && cudaFuncSetAttribute(route_team_kernel,
                                             cudaFuncAttributeNonPortableClusterSizeAllowed, 1))
            return E_DEVICE;
        return cuda_launch_cluster(d, route_team_kernel, dim3(size),
                                   (unsigned)cuda_div_up(a->router.k, 256) * 32, 0, size, *a);
    }
    size_t row = (size_t)(2 * a->experts + GROUPS_MAX) * sizeof(float);
    size_t smem = (size_t)a->router.k * sizeof(float);
    smem = smem > row * FEW_WARPS ? smem : row * FEW_WARPS;
    if (a->router.p && aligned(a->x) && aligned(a->router.p) && aligned(a->norm.p) &&
        a->rows <= ROUTE_FEW && smem <= 40 * 1024)
        return cuda_launch(d, route_few_kernel, dim3((unsigned)a->experts), FEW_THREADS, smem, *a,
                           d->flags);
    if (a->router.p)
        TRY(route_logits(d, a, op));
    unsigned warps = a->experts <= 384 ? 8 : 4;
    return cuda_launch(d, route_kernel, dim3((unsigned)cuda_div_up(a->rows, warps)), warps * 32,
                       row * warps, *a);
}
