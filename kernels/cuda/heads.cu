/* Per-head products with blocks of one weight (the absorbed projections of latent attention). Sums
 * are fp32. */
#include "kernels/cuda/common.cuh"

enum { HEAD_ROWS = 8 };

/* out_h[i] = sum_j x_h[j] w[row][j]; grid (heads, ceil(R / 8)), a warp an output. */
__global__ void heads_kernel(struct op_matmul_heads a)
{
    int h = blockIdx.x, r0 = blockIdx.y * HEAD_ROWS, lane = threadIdx.x & 31;
    int rows = min((int)HEAD_ROWS, a.rows - r0);
    int64_t row0 = h * a.w_head_stride + a.w_row0;
    const float *x = a.x + r0 * a.ldx + h * a.x_stride;
    for (int i = threadIdx.x >> 5; i < a.n_rows; i += blockDim.x >> 5) {
        float s[HEAD_ROWS] = {};
        for (int64_t j = lane; j < a.w.k; j += 32) {
            float w = cuda_weight(a.w, row0 + i, j);
            for (int r = 0; r < rows; r++)
                s[r] += w * x[r * a.ldx + j];
        }
        for (int r = 0; r < rows; r++) {
            float v = cuda_warp_sum(s[r]);
            if (lane == 0)
                a.out[(r0 + r) * a.ldo + h * a.out_stride + i] = v;
        }
    }
}

/* out_h[j] = sum_i x_h[i] w[row][j]; a thread an output. */
__global__ void heads_t_kernel(struct op_matmul_heads a)
{
    int h = blockIdx.x, r0 = blockIdx.y * HEAD_ROWS;
    int rows = min((int)HEAD_ROWS, a.rows - r0);
    int64_t row0 = h * a.w_head_stride + a.w_row0;
    const float *x = a.x + r0 * a.ldx + h * a.x_stride;
    for (int64_t j = threadIdx.x; j < a.w.k; j += blockDim.x) {
        float s[HEAD_ROWS] = {};
        for (int i = 0; i < a.n_rows; i++) {
            float w = cuda_weight(a.w, row0 + i, j);
            for (int r = 0; r < rows; r++)
                s[r] += w * x[r * a.ldx + i];
        }
        for (int r = 0; r < rows; r++)
            a.out[(r0 + r) * a.ldo + h * a.out_stride + j] = s[r];
    }
}

extern "C" int cuda_do_matmul_heads(struct dev *d, const struct op_matmul_heads *op)
{
    struct op_matmul_heads b = *op, *a = &b;
    b.w = cuda_weight_dev(d, op->w);
    dim3 grid((unsigned)a->heads, (unsigned)cuda_div_up(a->rows, HEAD_ROWS));
    if (a->transposed)
        heads_t_kernel<<<grid, 256, 0, d->stream>>>(*a);
    else
        heads_kernel<<<grid, 256, 0, d->stream>>>(*a);
    return cuda_launched(d);
}
