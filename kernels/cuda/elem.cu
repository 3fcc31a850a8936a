/* Element-wise and row-wise operations. Bandwidth-bound at large R, launch-bound at small R; one
 * block a row (and head), no shared state between rows. */
#include "kernels/cuda/common.cuh"

enum { T = 256 };

__global__ void embed_kernel(struct op_embed a)
{
    int r = blockIdx.x;
    int32_t t = a.tok[r];
    for (int64_t j = threadIdx.x; j < a.e.k; j += blockDim.x)
        a.out[r * a.e.k + j] = t < 0 || t >= a.e.n ? 0.0f : cuda_weight(a.e, t, j);
}

extern "C" int cuda_do_embed(struct dev *d, const struct op_embed *a)
{
    struct op_embed b = *a;
    b.e = cuda_weight_dev(d, a->e);
    embed_kernel<<<a->rows, T, 0, d->stream>>>(b);
    return cuda_launched(d);
}

/* grid (R, groups) */
__global__ void rmsnorm_kernel(struct op_rmsnorm a)
{
    const float *x = a.x + blockIdx.x * a.ldx + blockIdx.y * a.group_stride;
    float *out = a.out + blockIdx.x * a.ldo + blockIdx.y * a.group_stride_out;
    float s = 0;
    for (int j = threadIdx.x; j < a.dim; j += blockDim.x)
        s += x[j] * x[j];
    s = rsqrtf(cuda_block_sum(s) / (float)a.dim + a.eps);
    for (int j = threadIdx.x; j < a.dim; j += blockDim.x)
        out[j] = x[j] * s * cuda_load(a.w.p, a.w.dt, j);
}

extern "C" int cuda_do_rmsnorm(struct dev *d, const struct op_rmsnorm *a)
{
    int t = a->dim >= 1024 ? 512 : a->dim >= 256 ? 128 : 32;
    struct op_rmsnorm b = *a;
    b.w = cuda_weight_dev(d, a->w);
    rmsnorm_kernel<<<dim3(a->rows, a->n_group), t, 0, d->stream>>>(b);
    return cuda_launched(d);
}

/* grid (R, heads), threads over dim / 2 */
__global__ void rope_kernel(struct op_rope a)
{
    int half = a.dim / 2;
    int32_t pos = a.pos[blockIdx.x];
    if (pos < 0 || pos >= a.pos_max)
        return;
    float *x = a.x + blockIdx.x * a.ldx + blockIdx.y * a.stride;
    for (int i = threadIdx.x; i < half; i += blockDim.x) {
        int p = a.interleaved ? 2 * i : i, q = a.interleaved ? 2 * i + 1 : i + half;
        float c = a.cos[(int64_t)pos * half + i], s = a.sin[(int64_t)pos * half + i];
        float u = x[p], v = x[q];
        x[p] = u * c - v * s;
        x[q] = v * c + u * s;
    }
}

extern "C" int cuda_do_rope(struct dev *d, const struct op_rope *a)
{
    rope_kernel<<<dim3(a->rows, a->heads), 64, 0, d->stream>>>(*a);
    return cuda_launched(d);
}

__global__ void kv_write_kernel(struct op_kv_write a)
{
    int64_t w = a.wslot[blockIdx.x];
    if (w < 0)
        return;
    for (int j = threadIdx.x; j < a.width; j += blockDim.x) {
        float v = a.x[blockIdx.x * a.ldx + j];
        if (a.dt == DT_BF16)
            ((__nv_bfloat16 *)a.cache)[w * a.width + j] = __float2bfloat16_rn(v);
        else
            ((float *)a.cache)[w * a.width + j] = v;
    }
}

extern "C" int cuda_do_kv_write(struct dev *d, const struct op_kv_write *a)
{
    kv_write_kernel<<<a->rows, T, 0, d->stream>>>(*a);
    return cuda_launched(d);
}

/* grid (R, blocks of the width) */
__global__ void silu_mul_kernel(struct op_silu_mul a)
{
    int i = blockIdx.y * blockDim.x + threadIdx.x;
    if (i >= a.dim)
        return;
    float g = a.gate[blockIdx.x * a.ldg + i];
    a.out[blockIdx.x * a.ldo + i] = g / (1.0f + __expf(-g)) * a.up[blockIdx.x * a.ldu + i];
}

extern "C" int cuda_do_silu_mul(struct dev *d, const struct op_silu_mul *a)
{
    dim3 grid(a->rows, (unsigned)cuda_div_up(a->dim, T));
    silu_mul_kernel<<<grid, T, 0, d->stream>>>(*a);
    return cuda_launched(d);
}

__global__ void add_kernel(float *x, const float *y, int64_t n)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        x[i] += y[i];
}

extern "C" int cuda_do_add(struct dev *d, const struct op_add *a)
{
    int64_t n = (int64_t)a->rows * a->dim;
    add_kernel<<<(unsigned)cuda_div_up(n, T), T, 0, d->stream>>>(a->x, a->y, n);
    return cuda_launched(d);
}

__global__ void gather_kernel(struct op_gather a)
{
    int64_t m = blockIdx.x, r = a.idx ? a.idx[m] : m;
    int64_t ldx = a.ldx ? a.ldx : a.dim, ldo = a.ldo ? a.ldo : a.dim;
    for (int j = threadIdx.x; j < a.dim; j += blockDim.x)
        a.out[m * ldo + j] = r < 0 ? 0.0f : a.x[r * ldx + j];
}

extern "C" int cuda_do_gather(struct dev *d, const struct op_gather *a)
{
    gather_kernel<<<a->rows, T, 0, d->stream>>>(*a);
    return cuda_launched(d);
}
