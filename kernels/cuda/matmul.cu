/* Products. Three paths, chosen by the number of rows and the weight's type:
 *  - up to 64 rows, bf16 or fp8: weight-streaming tensor-core kernels; the weight is read once with
 *    16-byte loads, bound by memory bandwidth (bytes = N * K * size);
 *  - more rows, bf16 or fp8: activations rounded to bf16 (fp8 weights expanded) into the device's
 *    scratch, then cuBLASLt with fp32 output; bound by the tensor cores;
 *  - anything else (fp32, f16, odd K): one warp a column, for small router and test shapes.
 * Sums are fp32 throughout. */
#include "kernels/cuda/common.cuh"

extern "C" {
#include "engine/base/check.h"
}

static __device__ __forceinline__ uint32_t pack_bf16(float a, float b)
{
    __nv_bfloat162 v = __floats2bfloat162_rn(a, b);
    return *(uint32_t *)&v;
}

static __device__ __forceinline__ void mma(float *c, const uint32_t *a, uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

static __device__ __forceinline__ uint4 load_stream(const void *p)
{
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}

/* Two activations as bf16 pairs hi and lo with hi + lo equal to them within 2^-17: the tensor cores
 * run both, so decoding keeps almost all of fp32 and stays bound by the weight's bytes. */
static __device__ __forceinline__ void split_pair(uint32_t *hi, uint32_t *lo, float a, float b)
{
    __nv_bfloat162 h = __floats2bfloat162_rn(a, b);
    float2 f = __bfloat1622float2(h);
    *hi = *(uint32_t *)&h;
    *lo = pack_bf16(a - f.x, b - f.y);
}

/* Eight consecutive activations of a row; rows past the end are zero. */
static __device__ __forceinline__ void load_x8(uint32_t *hi, uint32_t *lo, const float *x, bool on)
{
    float4 u = make_float4(0, 0, 0, 0), v = u;
    if (on) {
        u = *(const float4 *)x;
        v = *(const float4 *)(x + 4);
    }
    split_pair(&hi[0], &lo[0], u.x, u.y);
    split_pair(&hi[1], &lo[1], u.z, u.w);
    split_pair(&hi[2], &lo[2], v.x, v.y);
    split_pair(&hi[3], &lo[3], v.z, v.w);
}

/* Four fp8 values to two bf16 pairs; every e4m3 value is a bf16 value. */
static __device__ __forceinline__ void expand_fp8(uint32_t w, uint32_t *out)
{
    float f[4];
    for (int i = 0; i < 4; i++) {
        __nv_fp8_e4m3 v;
        v.__x = (__nv_fp8_storage_t)(w >> (8 * i));
        f[i] = float(v);
    }
    out[0] = pack_bf16(f[0], f[1]);
    out[1] = pack_bf16(f[2], f[3]);
}

enum { WARPS = 8 };

/* Adds the warps' partial tiles and writes rows x columns of the block. */
template <int MT, int NT>
static __device__ void finish_tile(const struct op_matmul &a, float (&acc)[MT][NT][4], float *part)
{
    enum { COLS = NT * 8, TILE = MT * 16 * COLS };
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, q = lane & 3;
    for (int t = 0; t < MT; t++)
        for (int u = 0; u < NT; u++)
            for (int i = 0; i < 4; i++)
                part[warp * TILE + (t * 16 + g + (i >> 1) * 8) * COLS + u * 8 + q * 2 + (i & 1)] =
                    acc[t][u][i];
    __syncthreads();
    for (int i = threadIdx.x; i < TILE; i += WARPS * 32) {
        int r = i / COLS;
        int64_t n = (int64_t)blockIdx.x * COLS + i % COLS;
        if (r >= a.rows || n >= a.w.n)
            continue;
        float s = 0;
        for (int w = 0; w < WARPS; w++)
            s += part[w * TILE + i];
        float *out = a.out + r * a.ldo + n;
        if (a.accumulate)
            s = *out + s;
        if (a.bias.p)
            s += cuda_load(a.bias.p, a.bias.dt, n);
        *out = s;
    }
}

/* grid: ceil(N / (8 NT)); 8 warps share the block's columns and split K in chunks of 32. The order
 * of k within a chunk is permuted the same way for both operands, so that a lane's share of a
 * weight row is 16 consecutive bytes. */
template <int MT, int NT>
__global__ void __launch_bounds__(WARPS * 32) stream_bf16_kernel(struct op_matmul a)
{
    extern __shared__ float part[];
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, q = lane & 3;
    int64_t K = a.w.k, n0 = (int64_t)blockIdx.x * (NT * 8) + g;
    const __nv_bfloat16 *W = (const __nv_bfloat16 *)a.w.p;
    float acc[MT][NT][4] = {};
#pragma unroll 2
    for (int64_t k = warp * 32 + q * 8; k < K; k += WARPS * 32) {
        uint4 b[NT];
#pragma unroll
        for (int u = 0; u < NT; u++) {
            int64_t n = n0 + u * 8;
            b[u] = n < a.w.n ? load_stream(W + n * K + k) : make_uint4(0, 0, 0, 0);
        }
#pragma unroll
        for (int t = 0; t < MT; t++) {
            int r = t * 16 + g;
            uint32_t x[2][4], y[2][4]; /* rows g and g + 8, high and low parts */
            load_x8(x[0], x[1], a.x + r * a.ldx + k, r < a.rows);
            load_x8(y[0], y[1], a.x + (r + 8) * a.ldx + k, r + 8 < a.rows);
#pragma unroll
            for (int p = 1; p >= 0; p--) {
                uint32_t a0[4] = {x[p][0], y[p][0], x[p][1], y[p][1]};
                uint32_t a1[4] = {x[p][2], y[p][2], x[p][3], y[p][3]};
#pragma unroll
                for (int u = 0; u < NT; u++) {
                    mma(acc[t][u], a0, b[u].x, b[u].y);
                    mma(acc[t][u], a1, b[u].z, b[u].w);
                }
            }
        }
    }
    finish_tile<MT, NT>(a, acc, part);
}

/* The same for fp8 with 128 x 128 block scales: chunks of 64, scaled when they are added. */
template <int MT, int NT>
__global__ void __launch_bounds__(WARPS * 32) stream_fp8_kernel(struct op_matmul a)
{
    extern __shared__ float part[];
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, q = lane & 3;
    int64_t K = a.w.k, n0 = (int64_t)blockIdx.x * (NT * 8), k_blocks = (K + 127) / 128;
    const uint8_t *W = (const uint8_t *)a.w.p;
    float acc[MT][NT][4] = {};
    for (int64_t k = warp * 64 + q * 16; k < K; k += WARPS * 64) {
        uint4 b[NT];
        float scale[NT];
#pragma unroll
        for (int u = 0; u < NT; u++) {
            int64_t n = n0 + u * 8 + g;
            b[u] = n < a.w.n ? load_stream(W + n * K + k) : make_uint4(0, 0, 0, 0);
            int64_t row = min(n0 + u * 8, a.w.n - 1) / 128; /* 8 columns never cross a block */
            scale[u] = cuda_load(a.w.scale, a.w.scale_dt, row * k_blocks + k / 128);
        }
#pragma unroll
        for (int t = 0; t < MT; t++) {
            int r = t * 16 + g;
            uint32_t x[2][8], y[2][8]; /* rows g and g + 8, high and low parts */
            const float *xr = a.x + r * a.ldx + k, *yr = xr + 8 * a.ldx;
            load_x8(x[0], x[1], xr, r < a.rows);
            load_x8(x[0] + 4, x[1] + 4, xr + 8, r < a.rows);
            load_x8(y[0], y[1], yr, r + 8 < a.rows);
            load_x8(y[0] + 4, y[1] + 4, yr + 8, r + 8 < a.rows);
#pragma unroll
            for (int u = 0; u < NT; u++) {
                uint32_t w[8];
                expand_fp8(b[u].x, w);
                expand_fp8(b[u].y, w + 2);
                expand_fp8(b[u].z, w + 4);
                expand_fp8(b[u].w, w + 6);
                float c[4] = {};
#pragma unroll
                for (int p = 1; p >= 0; p--) {
#pragma unroll
                    for (int i = 0; i < 8; i += 2) {
                        uint32_t av[4] = {x[p][i], y[p][i], x[p][i + 1], y[p][i + 1]};
                        mma(c, av, w[i], w[i + 1]);
                    }
                }
                for (int i = 0; i < 4; i++)
                    acc[t][u][i] += c[i] * scale[u];
            }
        }
    }
    finish_tile<MT, NT>(a, acc, part);
}

/* Any type and any K: a warp a column and row. grid (ceil(N / 8), R) */
__global__ void plain_kernel(struct op_matmul a)
{
    int64_t n = (int64_t)blockIdx.x * 8 + (threadIdx.x >> 5);
    int lane = threadIdx.x & 31;
    const float *x = a.x + blockIdx.y * a.ldx;
    if (n >= a.w.n)
        return;
    float s = 0;
    for (int64_t j = lane; j < a.w.k; j += 32)
        s += x[j] * cuda_weight(a.w, n, j);
    s = cuda_warp_sum(s);
    if (lane)
        return;
    float *out = a.out + blockIdx.y * a.ldo + n;
    if (a.accumulate)
        s = *out + s;
    if (a.bias.p)
        s += cuda_load(a.bias.p, a.bias.dt, n);
    *out = s;
}

template <int MT, int NT> static int launch_stream(struct dev *d, const struct op_matmul *a)
{
    size_t smem = (size_t)WARPS * MT * 16 * NT * 8 * sizeof(float);
    unsigned grid = (unsigned)cuda_div_up(a->w.n, NT * 8);
    if (a->w.dt == DT_BF16) {
        if (smem > 48 * 1024)
            cudaFuncSetAttribute(stream_bf16_kernel<MT, NT>,
                                 cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem);
        stream_bf16_kernel<MT, NT><<<grid, WARPS * 32, smem, d->stream>>>(*a);
    } else {
        if (smem > 48 * 1024)
            cudaFuncSetAttribute(stream_fp8_kernel<MT, NT>,
                                 cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem);
        stream_fp8_kernel<MT, NT><<<grid, WARPS * 32, smem, d->stream>>>(*a);
    }
    return cuda_launched(d);
}

/* Fewer columns a block when the grid would not fill the device twice. */
template <int MT> static int launch_rows(struct dev *d, const struct op_matmul *a)
{
    int64_t fill = 2 * (int64_t)d->n_sm;
    if (cuda_div_up(a->w.n, 32) >= fill)
        return launch_stream<MT, 4>(d, a);
    if (cuda_div_up(a->w.n, 16) >= fill)
        return launch_stream<MT, 2>(d, a);
    return launch_stream<MT, 1>(d, a);
}

/* ---- many rows: cuBLASLt ---- */

__global__ void to_bf16_kernel(__nv_bfloat16 *out, const float *x, int64_t ldx, int64_t k)
{
    int64_t j = ((int64_t)blockIdx.y * blockDim.x + threadIdx.x) * 4;
    if (j >= k)
        return;
    float4 v = *(const float4 *)(x + blockIdx.x * ldx + j);
    uint2 p = make_uint2(pack_bf16(v.x, v.y), pack_bf16(v.z, v.w));
    *(uint2 *)(out + blockIdx.x * k + j) = p;
}

__global__ void expand_kernel(__nv_bfloat16 *out, struct weight w, int64_t row0)
{
    for (int64_t j = threadIdx.x; j < w.k; j += blockDim.x)
        out[blockIdx.x * w.k + j] = __float2bfloat16_rn(cuda_weight(w, row0 + blockIdx.x, j));
}

__global__ void bias_kernel(float *out, int64_t ldo, struct weight bias, int64_t n0, int64_t n)
{
    int64_t j = (int64_t)blockIdx.y * blockDim.x + threadIdx.x;
    if (j < n)
        out[blockIdx.x * ldo + j] += cuda_load(bias.p, bias.dt, n0 + j);
}

struct lt_shape {
    cublasLtMatmulDesc_t op;
    cublasLtMatrixLayout_t a, b, c;
};

static bool lt_shape_open(struct lt_shape *s, int m, int64_t n, int64_t k, int64_t ldo)
{
    *s = {};
    cublasOperation_t t = CUBLAS_OP_T, no = CUBLAS_OP_N;
    return cublasLtMatmulDescCreate(&s->op, CUBLAS_COMPUTE_32F, CUDA_R_32F) ==
               CUBLAS_STATUS_SUCCESS &&
           cublasLtMatmulDescSetAttribute(s->op, CUBLASLT_MATMUL_DESC_TRANSA, &t, sizeof t) ==
               CUBLAS_STATUS_SUCCESS &&
           cublasLtMatmulDescSetAttribute(s->op, CUBLASLT_MATMUL_DESC_TRANSB, &no, sizeof no) ==
               CUBLAS_STATUS_SUCCESS &&
           cublasLtMatrixLayoutCreate(&s->a, CUDA_R_16BF, (uint64_t)k, (uint64_t)n, k) ==
               CUBLAS_STATUS_SUCCESS &&
           cublasLtMatrixLayoutCreate(&s->b, CUDA_R_16BF, (uint64_t)k, (uint64_t)m, k) ==
               CUBLAS_STATUS_SUCCESS &&
           cublasLtMatrixLayoutCreate(&s->c, CUDA_R_32F, (uint64_t)n, (uint64_t)m, ldo) ==
               CUBLAS_STATUS_SUCCESS;
}

static void lt_shape_close(struct lt_shape *s)
{
    if (s->a)
        cublasLtMatrixLayoutDestroy(s->a);
    if (s->b)
        cublasLtMatrixLayoutDestroy(s->b);
    if (s->c)
        cublasLtMatrixLayoutDestroy(s->c);
    if (s->op)
        cublasLtMatmulDescDestroy(s->op);
}

/* The algorithm of a shape is chosen once (by the library's heuristic) and kept. */
static const cublasLtMatmulAlgo_t *lt_plan(struct dev *d, const struct lt_shape *s, int m,
                                           int64_t n, int64_t k)
{
    for (int i = 0; i < d->n_plan; i++)
        if (d->plan[i].m == m && d->plan[i].n == n && d->plan[i].k == k)
            return &d->plan[i].algo;
    cublasLtMatmulPreference_t pref;
    if (cublasLtMatmulPreferenceCreate(&pref) != CUBLAS_STATUS_SUCCESS)
        return NULL;
    size_t ws = CUDA_LT_BYTES;
    cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &ws,
                                         sizeof ws);
    cublasLtMatmulHeuristicResult_t h;
    int got = 0;
    cublasStatus_t st =
        cublasLtMatmulAlgoGetHeuristic(d->lt, s->op, s->a, s->b, s->c, s->c, pref, 1, &h, &got);
    cublasLtMatmulPreferenceDestroy(pref);
    if (st != CUBLAS_STATUS_SUCCESS || got < 1)
        return NULL;
    struct cuda_plan *p = &d->plan[d->n_plan < CUDA_PLANS_MAX ? d->n_plan++ : CUDA_PLANS_MAX - 1];
    p->m = m;
    p->n = n;
    p->k = k;
    p->algo = h.algo;
    return &p->algo;
}

static int lt_run(struct dev *d, float *out, int64_t ldo, const void *x, int m, const void *w,
                  int64_t n, int64_t k, bool accumulate)
{
    struct lt_shape s;
    float one = 1, beta = accumulate ? 1 : 0;
    int r = E_DEVICE;
    if (lt_shape_open(&s, m, n, k, ldo)) {
        const cublasLtMatmulAlgo_t *algo = lt_plan(d, &s, m, n, k);
        if (algo &&
            cublasLtMatmul(d->lt, s.op, &one, w, s.a, x, s.b, &beta, out, s.c, out, s.c, algo,
                           d->lt_ws, CUDA_LT_BYTES, d->stream) == CUBLAS_STATUS_SUCCESS)
            r = OK;
    }
    lt_shape_close(&s);
    return r;
}

/* Row and column blocks that fit the two halves of the scratch. */
static int matmul_lt(struct dev *d, const struct op_matmul *a)
{
    int64_t k = a->w.k, half = (int64_t)(CUDA_SCRATCH_BYTES / 2) / (k * 2);
    __nv_bfloat16 *xb = (__nv_bfloat16 *)d->scratch;
    __nv_bfloat16 *wb = (__nv_bfloat16 *)(d->scratch + CUDA_SCRATCH_BYTES / 2);
    bool expand = a->w.dt != DT_BF16;
    int64_t cols = expand ? (half < a->w.n ? half : a->w.n) : a->w.n;
    for (int64_t r0 = 0; r0 < a->rows; r0 += half) {
        int m = (int)(a->rows - r0 < half ? a->rows - r0 : half);
        dim3 grid((unsigned)m, (unsigned)cuda_div_up(k, 1024));
        to_bf16_kernel<<<grid, 256, 0, d->stream>>>(xb, a->x + r0 * a->ldx, a->ldx, k);
        for (int64_t n0 = 0; n0 < a->w.n; n0 += cols) {
            int64_t n = a->w.n - n0 < cols ? a->w.n - n0 : cols;
            const void *w = (const __nv_bfloat16 *)a->w.p + n0 * k;
            if (expand) {
                expand_kernel<<<(unsigned)n, 256, 0, d->stream>>>(wb, a->w, n0);
                w = wb;
            }
            float *out = a->out + r0 * a->ldo + n0;
            TRY(lt_run(d, out, a->ldo, xb, m, w, n, k, a->accumulate));
            if (a->bias.p) {
                dim3 bg((unsigned)m, (unsigned)cuda_div_up(n, 256));
                bias_kernel<<<bg, 256, 0, d->stream>>>(out, a->ldo, a->bias, n0, n);
            }
        }
    }
    return cuda_launched(d);
}

extern "C" int cuda_do_matmul(struct dev *d, const struct op_matmul *op)
{
    struct op_matmul b = *op, *a = &b;
    b.w = cuda_weight_dev(d, op->w);
    b.bias = cuda_weight_dev(d, op->bias);
    bool fp8 = a->w.dt == DT_F8E4M3, bf16 = a->w.dt == DT_BF16;
    int64_t chunk = fp8 ? 64 : 32;
    bool aligned = a->w.k % chunk == 0 && a->ldx % 4 == 0 && ((uintptr_t)a->x & 15) == 0 &&
                   ((uintptr_t)a->w.p & 15) == 0;
    if ((bf16 || fp8) && aligned && a->rows <= 64) {
        if (a->rows <= 16)
            return launch_rows<1>(d, a);
        if (a->rows <= 32)
            return launch_rows<2>(d, a);
        return launch_rows<4>(d, a);
    }
    if ((bf16 || fp8) && aligned && a->w.n % 4 == 0 && a->ldo % 4 == 0)
        return matmul_lt(d, a);
    CHECK(a->rows <= 65535);
    dim3 grid((unsigned)cuda_div_up(a->w.n, 8), (unsigned)a->rows);
    plain_kernel<<<grid, 256, 0, d->stream>>>(*a);
    return cuda_launched(d);
}
