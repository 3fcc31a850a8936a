/* Row-wise operations. One block a row (and head), four elements a thread and load where the widths
 * allow; launch-bound at few rows, bandwidth-bound at many. */
#include "kernels/cuda/vec.cuh"

enum { T = 256 };

template <int V> __global__ void __launch_bounds__(T) embed_kernel(struct op_embed a)
{
    int64_t r = blockIdx.x, j = ((int64_t)blockIdx.y * T + threadIdx.x) * V;
    cuda_trigger();
    cuda_wait();
    if (j >= a.e.k)
        return;
    int32_t t = a.tok[r];
    vec<V> x = {};
    if (t >= 0 && t < a.e.n) {
        if (a.e.dt == DT_F8E4M3) {
#pragma unroll
            for (int i = 0; i < V; i++)
                x.v[i] = cuda_weight(a.e, t, j + i);
        } else {
            x = vec_load_any<V>(a.e.p, a.e.dt, t * a.e.k + j);
        }
    }
    vec_store<V>(a.out + r * a.e.k + j, x);
}

extern "C" int cuda_do_embed(struct dev *d, const struct op_embed *a)
{
    struct op_embed b = *a;
    b.e = cuda_weight_dev(d, a->e);
    bool wide = a->e.k % 4 == 0 && cuda_aligned(b.e.p) && cuda_aligned(a->out);
    dim3 grid((unsigned)a->rows, (unsigned)cuda_div_up(a->e.k, T * (wide ? 4 : 1)));
    return wide ? cuda_launch(d, embed_kernel<4>, grid, T, 0, b)
                : cuda_launch(d, embed_kernel<1>, grid, T, 0, b);
}

/* grid (R, groups); a thread keeps its first NORM_KEEP vectors between the two passes */
enum { NORM_KEEP = 2 };

template <int V> __global__ void rmsnorm_kernel(struct op_rmsnorm a)
{
    const float *x = a.x + blockIdx.x * a.ldx + blockIdx.y * a.group_stride;
    float *out = a.out + blockIdx.x * a.ldo + blockIdx.y * a.group_stride_out;
    int step = (int)blockDim.x * V, first = (int)threadIdx.x * V;
    vec<V> keep[NORM_KEEP], w[NORM_KEEP];
    cuda_trigger();
#pragma unroll
    for (int k = 0; k < NORM_KEEP; k++)
        if (first + k * step < a.dim)
            w[k] = vec_load_any<V>(a.w.p, a.w.dt, first + k * step);
    cuda_wait();
    float s = 0;
#pragma unroll
    for (int k = 0; k < NORM_KEEP; k++)
        if (first + k * step < a.dim) {
            keep[k] = vec_load<V>(x + first + k * step);
            s += vec_sumsq<V>(keep[k]);
        }
    for (int j = first + NORM_KEEP * step; j < a.dim; j += step)
        s += vec_sumsq<V>(vec_load<V>(x + j));
    s = blockDim.x == 32 ? cuda_warp_sum(s) : cuda_block_sum(s);
    s = rsqrtf(s / (float)a.dim + a.eps);
#pragma unroll
    for (int k = 0; k < NORM_KEEP; k++)
        if (first + k * step < a.dim) {
#pragma unroll
            for (int i = 0; i < V; i++)
                keep[k].v[i] *= s * w[k].v[i];
            vec_store<V>(out + first + k * step, keep[k]);
        }
    for (int j = first + NORM_KEEP * step; j < a.dim; j += step) {
        vec<V> v = vec_load<V>(x + j), u = vec_load_any<V>(a.w.p, a.w.dt, j);
#pragma unroll
        for (int i = 0; i < V; i++)
            v.v[i] *= s * u.v[i];
        vec_store<V>(out + j, v);
    }
}

extern "C" int cuda_do_rmsnorm(struct dev *d, const struct op_rmsnorm *a)
{
    struct op_rmsnorm b = *a;
    b.w = cuda_weight_dev(d, a->w);
    int64_t strides =
        a->ldx | a->ldo | (a->n_group > 1 ? a->group_stride | a->group_stride_out : 0);
    bool wide = cuda_width(a->dim | strides) == 4 && cuda_aligned(a->x) && cuda_aligned(a->out) &&
                cuda_aligned(b.w.p);
    int64_t t = cuda_div_up(a->dim, (wide ? 4 : 1) * NORM_KEEP);
    t = t > 1024 ? 1024 : cuda_div_up(t, 32) * 32;
    dim3 grid((unsigned)a->rows, (unsigned)a->n_group);
    return wide ? cuda_launch(d, rmsnorm_kernel<4>, grid, (unsigned)t, 0, b)
                : cuda_launch(d, rmsnorm_kernel<1>, grid, (unsigned)t, 0, b);
}

/* grid (R, heads), threads over dim / 2 */
__global__ void rope_kernel(struct op_rope a)
{
    int half = a.dim / 2;
    cuda_trigger();
    cuda_wait();
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
    return cuda_launch(d, rope_kernel, dim3((unsigned)a->rows, (unsigned)a->heads), 64, 0, *a);
}

__global__ void __launch_bounds__(T) kv_write_kernel(struct op_kv_write a)
{
    cuda_trigger();
    cuda_wait();
    int64_t w = a.wslot[blockIdx.x];
    if (w < 0)
        return;
    float inv = 1 / a.scale; /* fp8 only */
    for (int j = threadIdx.x; j < a.width; j += blockDim.x)
        vec_put<1>(a.cache, a.dt, w * a.width + j, vec_load<1>(a.x + blockIdx.x * a.ldx + j), inv);
}

extern "C" int cuda_do_kv_write(struct dev *d, const struct op_kv_write *a)
{
    return cuda_launch(d, kv_write_kernel, dim3((unsigned)a->rows), T, 0, *a);
}

/* grid (R, blocks of the width) */
template <int V> __global__ void __launch_bounds__(T) silu_mul_kernel(struct op_silu_mul a)
{
    int64_t i = ((int64_t)blockIdx.y * T + threadIdx.x) * V, r = blockIdx.x;
    cuda_trigger();
    cuda_wait();
    if (i >= a.dim)
        return;
    vec<V> g = vec_load<V>(a.gate + r * a.ldg + i), u = vec_load<V>(a.up + r * a.ldu + i);
#pragma unroll
    for (int k = 0; k < V; k++)
        g.v[k] = g.v[k] / (1.0f + __expf(-g.v[k])) * u.v[k];
    vec_store<V>(a.out + r * a.ldo + i, g);
}

extern "C" int cuda_do_silu_mul(struct dev *d, const struct op_silu_mul *a)
{
    bool wide = cuda_width(a->dim | a->ldg | a->ldu | a->ldo) == 4 && cuda_aligned(a->gate) &&
                cuda_aligned(a->up) && cuda_aligned(a->out);
    dim3 grid((unsigned)a->rows, (unsigned)cuda_div_up(a->dim, T * (wide ? 4 : 1)));
    return wide ? cuda_launch(d, silu_mul_kernel<4>, grid, T, 0, *a)
                : cuda_launch(d, silu_mul_kernel<1>, grid, T, 0, *a);
}

template <int V>
__global__ void __launch_bounds__(T) add_kernel(float *x, const float *y, int64_t n)
{
    int64_t i = ((int64_t)blockIdx.x * T + threadIdx.x) * V;
    cuda_trigger();
    cuda_wait();
    if (i >= n)
        return;
    vec<V> a = vec_load<V>(x + i), b = vec_load<V>(y + i);
#pragma unroll
    for (int k = 0; k < V; k++)
        a.v[k] += b.v[k];
    vec_store<V>(x + i, a);
}

extern "C" int cuda_do_add(struct dev *d, const struct op_add *a)
{
    int64_t n = (int64_t)a->rows * a->dim;
    bool wide = n % 4 == 0 && cuda_aligned(a->x) && cuda_aligned(a->y);
    dim3 grid((unsigned)cuda_div_up(n, T * (wide ? 4 : 1)));
    return wide ? cuda_launch(d, add_kernel<4>, grid, T, 0, a->x, a->y, n)
                : cuda_launch(d, add_kernel<1>, grid, T, 0, a->x, a->y, n);
}

/* grid (rows, blocks of the width) */
template <int V> __global__ void __launch_bounds__(T) gather_kernel(struct op_gather a)
{
    int64_t m = blockIdx.x, j = ((int64_t)blockIdx.y * T + threadIdx.x) * V;
    cuda_trigger();
    cuda_wait();
    if (j >= a.dim)
        return;
    int64_t r = a.idx ? a.idx[m] : m;
    vec<V> x = {};
    if (r >= 0)
        x = vec_load<V>(a.x + r * a.ldx + j);
    vec_store<V>(a.out + m * a.ldo + j, x);
}

extern "C" int cuda_do_gather(struct dev *d, const struct op_gather *op)
{
    struct op_gather a = *op;
    a.ldx = a.ldx ? a.ldx : a.dim;
    a.ldo = a.ldo ? a.ldo : a.dim;
    bool wide = cuda_width(a.dim | a.ldx | a.ldo) == 4 && cuda_aligned(a.x) && cuda_aligned(a.out);
    dim3 grid((unsigned)a.rows, (unsigned)cuda_div_up(a.dim, T * (wide ? 4 : 1)));
    return wide ? cuda_launch(d, gather_kernel<4>, grid, T, 0, a)
                : cuda_launch(d, gather_kernel<1>, grid, T, 0, a);
}
