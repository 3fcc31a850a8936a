/* Row-wise operations. One block a row (and head), four elements a thread and load where the widths
 * allow; launch-bound at few rows, bandwidth-bound at many. */
#include "kernels/cuda/vec.cuh"

enum { T = 256 };

/* Elements j … j + V of token t's row. */
template <int V>
static __device__ __forceinline__ vec<V> embed_load(const struct weight &e, int32_t t, int64_t j)
{
    vec<V> x = {};
    if (t < 0 || t >= e.n)
        return x;
    if (e.dt != DT_F8E4M3)
        return vec_load_any<V>(e.p, e.dt, t * e.k + j);
#pragma unroll
    for (int i = 0; i < V; i++)
        x.v[i] = cuda_weight(e, t, j + i);
    return x;
}

template <int V> __global__ void __launch_bounds__(T) embed_kernel(struct op_embed a)
{
    int64_t r = blockIdx.x, j = ((int64_t)blockIdx.y * T + threadIdx.x) * V;
    cuda_trigger();
    cuda_wait();
    if (j < a.e.k)
        vec_store<V>(a.out + r * a.ldo + j, embed_load<V>(a.e, a.tok[r], j));
}

extern "C" int cuda_do_embed(struct dev *d, const struct op_embed *a)
{
    struct op_embed b = *a;
    b.e = cuda_weight_dev(d, a->e);
    b.ldo = a->ldo ? a->ldo : a->e.k;
    bool wide = cuda_width(a->e.k | b.ldo) == 4 && cuda_aligned(b.e.p) && cuda_aligned(a->out);
    dim3 grid((unsigned)a->rows, (unsigned)cuda_div_up(a->e.k, T * (wide ? 4 : 1)));
    return wide ? cuda_launch(d, embed_kernel<4>, grid, T, 0, b)
                : cuda_launch(d, embed_kernel<1>, grid, T, 0, b);
}

/* The norm of a row by a block: a thread keeps its first NORM_KEEP vectors between the two passes,
 * and their weights, which need not wait for the kernel ahead. */
enum { NORM_KEEP = 2 };

template <int V> struct norm_weights {
    vec<V> v[NORM_KEEP];
};

template <int V>
static __device__ __forceinline__ norm_weights<V> norm_begin(const struct weight &w, int dim)
{
    norm_weights<V> r;
    int step = (int)blockDim.x * V, first = (int)threadIdx.x * V;
#pragma unroll
    for (int k = 0; k < NORM_KEEP; k++)
        if (first + k * step < dim)
            r.v[k] = vec_load_any<V>(w.p, w.dt, first + k * step);
    return r;
}

/* load(j) gives elements j … j + V, put(j, x, normed) takes them. */
template <int V, class Load, class Put>
static __device__ __forceinline__ void norm_row(const norm_weights<V> &begun,
                                                const struct weight &w, int dim, float eps,
                                                const Load &load, const Put &put)
{
    int step = (int)blockDim.x * V, first = (int)threadIdx.x * V;
    vec<V> keep[NORM_KEEP];
    float s = 0;
    auto scaled = [&](vec<V> x, const vec<V> &u) {
#pragma unroll
        for (int i = 0; i < V; i++)
            x.v[i] *= s * u.v[i];
        return x;
    };
#pragma unroll
    for (int k = 0; k < NORM_KEEP; k++)
        if (first + k * step < dim) {
            keep[k] = load(first + k * step);
            s += vec_sumsq<V>(keep[k]);
        }
    for (int j = first + NORM_KEEP * step; j < dim; j += step)
        s += vec_sumsq<V>(load(j));
    s = blockDim.x == 32 ? cuda_warp_sum(s) : cuda_block_sum(s);
    s = rsqrtf(s / (float)dim + eps);
#pragma unroll
    for (int k = 0; k < NORM_KEEP; k++)
        if (first + k * step < dim)
            put(first + k * step, keep[k], scaled(keep[k], begun.v[k]));
    for (int j = first + NORM_KEEP * step; j < dim; j += step) {
        vec<V> x = load(j);
        put(j, x, scaled(x, vec_load_any<V>(w.p, w.dt, j)));
    }
}

static unsigned norm_threads(int dim, bool wide)
{
    int64_t t = cuda_div_up(dim, (wide ? 4 : 1) * NORM_KEEP);
    return (unsigned)(t > 1024 ? 1024 : cuda_div_up(t, 32) * 32);
}

/* grid (R, groups) */
template <int V> __global__ void rmsnorm_kernel(struct op_rmsnorm a)
{
    const float *x = a.x + blockIdx.x * a.ldx + blockIdx.y * a.group_stride;
    float *out = a.out + blockIdx.x * a.ldo + blockIdx.y * a.group_stride_out;
    cuda_trigger();
    norm_weights<V> w = norm_begin<V>(a.w, a.dim);
    cuda_wait();
    norm_row<V>(
        w, a.w, a.dim, a.eps, [&](int j) { return vec_load<V>(x + j); },
        [&](int j, const vec<V> &, const vec<V> &y) { vec_store<V>(out + j, y); });
}

extern "C" int cuda_do_rmsnorm(struct dev *d, const struct op_rmsnorm *a)
{
    struct op_rmsnorm b = *a;
    b.w = cuda_weight_dev(d, a->w);
    int64_t strides =
        a->ldx | a->ldo | (a->n_group > 1 ? a->group_stride | a->group_stride_out : 0);
    bool wide = cuda_width(a->dim | strides) == 4 && cuda_aligned(a->x) && cuda_aligned(a->out) &&
                cuda_aligned(b.w.p);
    unsigned t = norm_threads(a->dim, wide);
    dim3 grid((unsigned)a->rows, (unsigned)a->n_group);
    return wide ? cuda_launch(d, rmsnorm_kernel<4>, grid, t, 0, b)
                : cuda_launch(d, rmsnorm_kernel<1>, grid, t, 0, b);
}

/* Grid (R, 2 or 3): a row's embedding, its feature; the first blocks of the third kind place rows,
 * a thread each. */
template <int V> __global__ void draft_pair_kernel(struct op_draft_pair a)
{
    int64_t r = blockIdx.x, h = a.e.k;
    bool is_feat = blockIdx.y == 1;
    const struct weight &norm = is_feat ? a.feat_norm : a.tok_norm;
    float *out = a.pair + 2 * h * r;
    cuda_trigger();
    if (blockIdx.y == 2) {
        cuda_wait();
        int64_t i = r * blockDim.x + threadIdx.x;
        if (i < a.place.rows)
            cuda_row_place(a.place, (int)i);
        return;
    }
    norm_weights<V> w = norm_begin<V>(norm, (int)h);
    cuda_wait();
    if (!is_feat) {
        int32_t tok = a.tok[r];
        norm_row<V>(
            w, norm, (int)h, a.eps, [&](int j) { return embed_load<V>(a.e, tok, j); },
            [&](int j, const vec<V> &, const vec<V> &y) { vec_store<V>(out + j, y); });
        return;
    }
    int64_t from = a.src ? a.src[r] : r;
    norm_row<V>(
        w, norm, (int)h, a.eps,
        [&](int j) { return from < 0 ? vec<V>{} : vec_load<V>(a.feat + from * h + j); },
        [&](int j, const vec<V> &x, const vec<V> &y) {
            vec_store<V>(out + h + j, y);
            if (a.x)
                vec_store<V>(a.x + r * h + j, a.x_normed ? y : x);
        });
}

extern "C" int cuda_do_draft_pair(struct dev *d, const struct op_draft_pair *op)
{
    struct op_draft_pair a = *op;
    a.e = cuda_weight_dev(d, op->e);
    a.tok_norm = cuda_weight_dev(d, op->tok_norm);
    a.feat_norm = cuda_weight_dev(d, op->feat_norm);
    bool wide = a.e.k % 4 == 0 && cuda_aligned(a.e.p) && cuda_aligned(a.tok_norm.p) &&
                cuda_aligned(a.feat_norm.p) && cuda_aligned(a.feat) && cuda_aligned(a.pair) &&
                cuda_aligned(a.x);
    unsigned t = norm_threads((int)a.e.k, wide);
    dim3 grid((unsigned)a.rows, a.place.rows ? 3 : 2);
    return wide ? cuda_launch(d, draft_pair_kernel<4>, grid, t, 0, a)
                : cuda_launch(d, draft_pair_kernel<1>, grid, t, 0, a);
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
