/* Pieces that the product files share (matmul.cu, proj.cu). Weights have device addresses. */
#ifndef SPECD_CUDA_PRODUCT_CUH
#define SPECD_CUDA_PRODUCT_CUH

#include "kernels/cuda/gemm.cuh"
#include "kernels/cuda/stream.cuh"
#include "kernels/cuda/wide.h"

/* Rows up to which the streaming kernel keeps activations' fp32 precision (two bf16 parts). */
enum { STREAM_SPLIT_MAX = 8 };

static inline int64_t cuda_min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* small.cu: n weights of one launch, all of the same K, are small. */
bool small_fits(const struct weight *w, int n, const float *x, int64_t ldx);
/* What small_run does with stream.cuh. */
bool small_streams(const struct dev *d, const struct stream_args *a);
/* The product by stream.cuh up to STREAM_SPLIT_MAX rows where it can, else by small.cu. */
int small_run(struct dev *d, const struct stream_args *a);

/* out [rows, k] dense bf16. k % 4 == 0, rows of x 16-byte aligned. `pairs`: see put_bf16. */
int rows_to_bf16(struct dev *d, __nv_bfloat16 *out, const float *x, int64_t ldx, int rows,
                 int64_t k, bool pairs);
/* out[:,j] += bias[n0 + j], j < n, if there is a bias. */
int add_bias(struct dev *d, float *out, int64_t ldo, int rows, const struct weight *bias,
             int64_t n0, int64_t n);
/* One product of any kind. */
int product_run(struct dev *d, const struct op_matmul *a);

#endif
