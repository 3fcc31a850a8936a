/* The merge of splits as a kernel of its own: small batches, whose tiles are too few to merge
 * beside other work, and latent attention, whose lines are long. */
#include "attention/mma/rows.cuh"
#include "kernels/cuda/launch.cuh"

/* grid (rows, heads), a thread 4 columns. Reads each split's sums of the line once. */
static __global__ void __launch_bounds__(128) merge_kernel(struct mma_args a)
{
    __shared__ float w[64];
    __shared__ float scale;
    cuda_wait();
    cuda_trigger();
    tile_line l = {(int)blockIdx.x, (int)blockIdx.y, true};
    int splits = a.active[l.row], tid = threadIdx.x, dv = a.c.dims.v;
    if (splits <= 1) /* written where it belongs */
        return;
    int64_t step = (int64_t)a.c.rows * a.c.n_head, at = (int64_t)l.row * a.c.n_head + l.head;
    if (tid < 32) {
        const float2 *ml = (const float2 *)a.part_ml + at;
        float2 x = {-INFINITY, 0}, y = x;
        if (tid < splits)
            x = ml[tid * step];
        if (tid + 32 < splits)
            y = ml[(tid + 32) * step];
        float top = fmaxf(x.x, y.x);
        for (int o = 16; o > 0; o >>= 1)
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, o));
        float base = top == -INFINITY ? 0.0f : top, fx = ex2(x.x - base), fy = ex2(y.x - base);
        float sum = x.y * fx + y.y * fy;
        for (int o = 16; o > 0; o >>= 1)
            sum += __shfl_xor_sync(0xffffffffu, sum, o);
        w[tid] = fx;
        w[tid + 32] = fy;
        if (tid == 0)
            scale = line_end(a, l, top, sum, false, 0, true);
    }
    __syncthreads();
    if (tid * 4 >= dv)
        return;
    const float *p = a.part + at * dv + tid * 4;
    float4 t = {0, 0, 0, 0};
#pragma unroll 16
    for (int s = 0; s < splits; s++) {
        float4 x = *(const float4 *)(p + s * step * dv);
        float f = w[s];
        t.x = fmaf(x.x, f, t.x), t.y = fmaf(x.y, f, t.y);
        t.z = fmaf(x.z, f, t.z), t.w = fmaf(x.w, f, t.w);
    }
    line_put(a, l, dv, tid * 4, t, scale, false, 0);
}

extern "C" int mma_merge(struct dev *d, const struct mma_args *a)
{
    dim3 grid((unsigned)a->c.rows, (unsigned)a->c.n_head);
    unsigned threads = (unsigned)(a->c.dims.v / 4 + 31) / 32 * 32;
    return cuda_launch(d, merge_kernel, grid, threads, 0, *a);
}
