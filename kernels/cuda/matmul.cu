/* Products: which kernel for which type and number of rows.
 *  - small bf16 weights (small.cu says which): stream.cuh up to 8 rows, small.cu above; activations
 *    keep fp32's precision (2^-17) at any number of rows;
 *  - 9 to 112 rows on sm_90a, fp8 (up to 64) or a large bf16 weight: wide.cu, activations rounded
 *    to bf16;
 *  - up to 16 rows, bf16 or fp8: stream.cuh, bound by the weight's bytes; activations keep fp32's
 *    precision up to 8 rows, above they are rounded to bf16 once (their traffic would bound it);
 *  - more rows, or a GPU without the shared memory to stream: activations rounded to bf16 (fp8
 *    weights expanded) into the device's scratch, then cuBLASLt (gemm.cu) with fp32 output, bound
 *    by the weight's bytes, then by the tensor cores;
 *  - anything else (fp32, f16, odd K): a warp a column, for small router and test shapes.
 * Sums are fp32 throughout. */
#include "kernels/cuda/product.cuh"

extern "C" {
#include "engine/base/check.h"
}

enum product { SMALL, PLAIN, WIDE, FEW, MANY };

/* Any type and any K: a warp a column and R rows. grid (ceil(N / 8), ceil(rows / R)) */
template <int R> __global__ void __launch_bounds__(256) plain_kernel(struct op_matmul a)
{
    int64_t n = (int64_t)blockIdx.x * 8 + (threadIdx.x >> 5);
    int lane = threadIdx.x & 31, r0 = blockIdx.y * R, rows = min(R, a.rows - r0);
    cuda_trigger();
    cuda_wait();
    if (n >= a.w.n)
        return;
    const float *x = a.x + r0 * a.ldx;
    float s[R] = {};
    if (a.w.dt == DT_F32 && a.w.k % 4 == 0 && a.ldx % 4 == 0 &&
        (((uintptr_t)a.w.p | (uintptr_t)a.x) & 15) == 0) {
        const float *w = (const float *)a.w.p + n * a.w.k;
#pragma unroll 4
        for (int64_t j = lane * 4; j < a.w.k; j += 128) {
            float4 u = *(const float4 *)(w + j);
#pragma unroll
            for (int r = 0; r < R; r++) {
                float4 v =
                    r < rows ? *(const float4 *)(x + r * a.ldx + j) : make_float4(0, 0, 0, 0);
                s[r] += u.x * v.x + u.y * v.y + u.z * v.z + u.w * v.w;
            }
        }
    } else {
        for (int64_t j = lane; j < a.w.k; j += 32) {
            float u = cuda_weight(a.w, n, j);
#pragma unroll
            for (int r = 0; r < R; r++)
                s[r] += r < rows ? u * x[r * a.ldx + j] : 0;
        }
    }
#pragma unroll
    for (int r = 0; r < R; r++) {
        float v = cuda_warp_sum(s[r]);
        if (lane || r >= rows)
            continue;
        float *out = a.out + (r0 + r) * a.ldo + n;
        if (a.accumulate)
            v = *out + v;
        if (a.bias.p)
            v += cuda_load(a.bias.p, a.bias.dt, n);
        *out = v;
    }
}

static int plain_run(struct dev *d, const struct op_matmul *a)
{
    unsigned cols = (unsigned)cuda_div_up(a->w.n, 8);
    CHECK(a->rows <= 65535);
    if (a->rows < 16)
        return cuda_launch(d, plain_kernel<1>, dim3(cols, (unsigned)a->rows), 256, 0, *a);
    dim3 grid(cols, (unsigned)cuda_div_up(a->rows, 4));
    return cuda_launch(d, plain_kernel<4>, grid, 256, 0, *a);
}

enum { PER_BLOCK = 4096 }; /* columns: few blocks start at once, those of the product behind too */

/* grid (rows, ceil(k / PER_BLOCK)) */
__global__ void __launch_bounds__(256, 6)
    rows_to_bf16_kernel(__nv_bfloat16 *out, const float *x, int64_t ldx, int64_t k, bool pairs)
{
    int64_t j0 = (int64_t)blockIdx.y * PER_BLOCK + threadIdx.x * 4;
    float4 v[PER_BLOCK / 1024];
    x += blockIdx.x * ldx;
    cuda_trigger();
    cuda_wait();
#pragma unroll
    for (int i = 0; i < PER_BLOCK / 1024; i++)
        v[i] = j0 + i * 1024 < k ? *(const float4 *)(x + j0 + i * 1024) : make_float4(0, 0, 0, 0);
#pragma unroll
    for (int i = 0; i < PER_BLOCK / 1024; i++)
        if (j0 + i * 1024 < k)
            put_bf16(out + blockIdx.x * k, j0 + i * 1024, pairs, v[i].x, v[i].y, v[i].z, v[i].w);
}

int rows_to_bf16(struct dev *d, __nv_bfloat16 *out, const float *x, int64_t ldx, int rows,
                 int64_t k, bool pairs)
{
    dim3 grid((unsigned)rows, (unsigned)cuda_div_up(k, PER_BLOCK));
    return cuda_launch(d, rows_to_bf16_kernel, grid, 256, 0, out, x, ldx, k, pairs);
}

/* Weight rows row0 … as bf16; grid: rows */
__global__ void expand_kernel(__nv_bfloat16 *out, struct weight w, int64_t row0)
{
    cuda_trigger();
    cuda_wait();
    for (int64_t j = threadIdx.x; j < w.k; j += blockDim.x)
        out[blockIdx.x * w.k + j] = __float2bfloat16_rn(cuda_weight(w, row0 + blockIdx.x, j));
}

/* grid (rows, ceil(n / 256)) */
__global__ void bias_kernel(float *out, int64_t ldo, struct weight bias, int64_t n0, int64_t n)
{
    int64_t j = (int64_t)blockIdx.y * blockDim.x + threadIdx.x;
    cuda_trigger();
    cuda_wait();
    if (j < n)
        out[blockIdx.x * ldo + j] += cuda_load(bias.p, bias.dt, n0 + j);
}

int add_bias(struct dev *d, float *out, int64_t ldo, int rows, const struct weight *bias,
             int64_t n0, int64_t n)
{
    dim3 grid((unsigned)rows, (unsigned)cuda_div_up(n, 256));
    return bias->p ? cuda_launch(d, bias_kernel, grid, 256, 0, out, ldo, *bias, n0, n) : OK;
}

/* Row and column blocks that fit the two halves of the scratch. */
static int many_rows(struct dev *d, const struct op_matmul *a)
{
    int64_t k = a->w.k, half = (int64_t)(CUDA_SCRATCH_BYTES / 2) / (k * 2);
    __nv_bfloat16 *xb = (__nv_bfloat16 *)d->scratch;
    __nv_bfloat16 *wb = (__nv_bfloat16 *)(d->scratch + CUDA_SCRATCH_BYTES / 2);
    bool expand = a->w.dt != DT_BF16;
    int64_t cols = expand ? cuda_min(half / 4 * 4, a->w.n) : a->w.n;
    for (int64_t r0 = 0; r0 < a->rows; r0 += half) {
        int m = (int)cuda_min(a->rows - r0, half);
        const __nv_bfloat16 *x = (const __nv_bfloat16 *)a->x + r0 * k;
        if (!a->narrow) {
            TRY(rows_to_bf16(d, xb, a->x + r0 * a->ldx, a->ldx, m, k, false));
            x = xb;
        }
        for (int64_t n0 = 0; n0 < a->w.n; n0 += cols) {
            struct gemm g = {};
            g.out = a->out + r0 * a->ldo + n0;
            g.ldo = a->ldo;
            g.x = x;
            g.w = (const __nv_bfloat16 *)a->w.p + n0 * k;
            g.m = m;
            g.n = cuda_min(a->w.n - n0, cols);
            g.k = k;
            g.accumulate = a->accumulate;
            if (expand) {
                TRY(cuda_launch(d, expand_kernel, dim3((unsigned)g.n), 256, 0, wb, a->w, n0));
                g.w = wb;
            }
            TRY(gemm_run(d, &g));
            TRY(add_bias(d, (float *)g.out, a->ldo, m, &a->bias, n0, g.n));
        }
    }
    return OK;
}

/* Sixteen rows at a time: also what cuBLASLt does not take. */
static int few_rows(struct dev *d, const struct op_matmul *a)
{
    for (int r0 = 0; r0 < a->rows; r0 += CUDA_STREAM_ROWS) {
        struct stream_args s = {};
        s.rows = (int)cuda_min(a->rows - r0, CUDA_STREAM_ROWS);
        s.x = a->x + r0 * a->ldx;
        s.ldx = a->ldx;
        s.accumulate = a->accumulate;
        if (a->narrow) {
            s.narrow = (const __nv_bfloat16 *)a->x;
        } else if (s.rows > STREAM_SPLIT_MAX) {
            s.narrow = (const __nv_bfloat16 *)d->scratch;
            TRY(rows_to_bf16(d, (__nv_bfloat16 *)d->scratch, s.x, s.ldx, s.rows, a->w.k, false));
        }
        stream_add(&s, &a->w, &a->bias, a->out + r0 * a->ldo, a->ldo);
        TRY(stream_run(d, &s, a->w.dt));
    }
    return OK;
}

static int small_rows(struct dev *d, const struct op_matmul *a)
{
    struct stream_args s = {};
    s.rows = a->rows;
    s.x = a->x;
    s.ldx = a->ldx;
    s.accumulate = a->accumulate;
    stream_add(&s, &a->w, &a->bias, a->out, a->ldo);
    return small_run(d, &s);
}

static int wide_rows(struct dev *d, const struct op_matmul *a)
{
    struct wide p = {};
    p.x = a->narrow ? (const void *)a->x : d->scratch;
    if (!a->narrow)
        TRY(rows_to_bf16(d, (__nv_bfloat16 *)d->scratch, a->x, a->ldx, a->rows, a->w.k,
                         a->w.dt == DT_F8E4M3));
    p.rows = a->rows;
    p.n = 1;
    p.w[0] = a->w;
    p.bias[0] = a->bias;
    p.out[0] = a->out;
    p.ldo[0] = a->ldo;
    p.accumulate = a->accumulate;
    return wide_run(d, &p);
}

static enum product product_of(struct dev *d, const struct op_matmul *a)
{
    if (small_fits(&a->w, 1, a->x, a->ldx))
        return SMALL;
    if (!stream_fits(&a->w, a->x, a->ldx))
        return PLAIN;
    if (wide_fits(d, &a->w, 1, a->rows))
        return WIDE;
    if (a->rows <= d->stream_rows)
        return FEW;
    bool lt = a->w.n % 4 == 0 && a->ldo % 4 == 0 && ((uintptr_t)a->out & 15) == 0;
    return lt ? MANY : d->stream_rows ? FEW : PLAIN;
}

int product_run(struct dev *d, const struct op_matmul *a)
{
    switch (product_of(d, a)) {
    case SMALL:
        return small_rows(d, a);
    case WIDE:
        return wide_rows(d, a);
    case FEW:
        return few_rows(d, a);
    case MANY:
        return many_rows(d, a);
    case PLAIN:
        return plain_run(d, a);
    }
    return E_DEVICE;
}

/* Dense rows as every kernel takes them; wide.cu has its own order of them for fp8. */
extern "C" bool cuda_narrow(struct dev *d, const struct op_matmul *op)
{
    struct op_matmul a = *op;
    a.w = cuda_weight_dev(d, op->w);
    enum product p = product_of(d, &a);
    return a.ldx == a.w.k &&
           (p == MANY || (p == WIDE && a.w.dt == DT_BF16) ||
            (p == FEW && a.rows > STREAM_SPLIT_MAX && a.rows <= CUDA_STREAM_ROWS));
}

extern "C" int cuda_do_matmul(struct dev *d, const struct op_matmul *op)
{
    struct op_matmul a = *op;
    CHECK(!a.narrow || cuda_narrow(d, op));
    a.w = cuda_weight_dev(d, op->w);
    a.bias = cuda_weight_dev(d, op->bias);
    return product_run(d, &a);
}
