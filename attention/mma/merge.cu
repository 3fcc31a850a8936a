/* The merge of splits as a kernel of its own: small batches, whose tiles are too few to merge
 * beside other work, and latent attention, whose lines are long. */
#include "attention/mma/rows.cuh"
#include "kernels/cuda/launch.cuh"

/* grid (rows, heads), a thread 4 columns. Reads each split's sums of the line once. */
static __global__ void __launch_bounds__(128) merge_kernel(struct mma_args a)
{
    constexpr int STEP = 16; /* splits at a time */
    cuda_wait();
    cuda_trigger();
    tile_line l = {(int)blockIdx.x, (int)blockIdx.y, true};
    int lane = threadIdx.x & 31, col = threadIdx.x * 4, dv = a.c.dims.v;
    int step = a.c.rows * a.c.n_head, at = l.row * a.c.n_head + l.head;
    int n = a.active[l.row];
    /* beside the look at n: what splits behind it left is not used */
    const float2 *ml = (const float2 *)a.part_ml + at;
    const float *p = a.part + (int64_t)at * dv + (col < dv ? col : 0);
    int64_t far = (int64_t)step * dv;
    float2 x = {-INFINITY, 0}, y = x;
    if (lane < a.splits)
        x = ml[lane * step];
    if (lane + 32 < a.splits)
        y = ml[(lane + 32) * step];
    float4 t = {0, 0, 0, 0};
    float top = 0, base = 0, sum = 0;
#pragma unroll 1
    for (int s0 = 0; s0 == 0 || s0 < n; s0 += STEP) {
        float4 v[STEP];
#pragma unroll
        for (int i = 0; i < STEP; i++, p += far)
            if (s0 + i < a.splits)
                v[i] = *(const float4 *)p;
        if (s0 == 0) { /* each warp works out the weights for itself */
            if (n <= 1)
                return; /* written where it belongs */
            x.x = lane < n ? x.x : -INFINITY;
            y.x = lane + 32 < n ? y.x : -INFINITY;
            top = fmaxf(x.x, y.x);
#pragma unroll
            for (int o = 16; o > 0; o >>= 1)
                top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, o));
            base = top == -INFINITY ? 0.0f : top;
            x.x = ex2(x.x - base);
            y.x = ex2(y.x - base);
            sum = (lane < n ? x.y * x.x : 0.0f) + (lane + 32 < n ? y.y * y.x : 0.0f);
#pragma unroll
            for (int o = 16; o > 0; o >>= 1)
                sum += __shfl_xor_sync(0xffffffffu, sum, o);
        }
#pragma unroll
        for (int i = 0; i < STEP; i++) {
            float f = __shfl_sync(0xffffffffu, s0 < 32 ? x.x : y.x, s0 + i);
            if (s0 + i < n) {
                t.x = fmaf(v[i].x, f, t.x), t.y = fmaf(v[i].y, f, t.y);
                t.z = fmaf(v[i].z, f, t.z), t.w = fmaf(v[i].w, f, t.w);
            }
        }
    }
    if (col < dv)
        line_put(line_to(a, l, dv, false, 0), col, t, line_end(a, l, top, sum, false, 0, col == 0));
}

extern "C" int mma_merge(struct dev *d, const struct mma_args *a)
{
    dim3 grid((unsigned)a->c.rows, (unsigned)a->c.n_head);
    unsigned threads = (unsigned)(a->c.dims.v / 4 + 31) / 32 * 32;
    return cuda_launch(d, merge_kernel, grid, threads, 0, *a);
}
