/* Products through cuBLASLt: bf16 operands, fp32 sums, fp32 or bf16 results (gemm.cu). */
#ifndef SPECD_CUDA_GEMM_CUH
#define SPECD_CUDA_GEMM_CUH

#include "kernels/cuda/common.cuh"

/* out[m,n] (+)= x[m,k] w[n,k]^T; x and w dense bf16; out fp32, or bf16 when `narrow`. */
struct gemm {
    void *out;
    int64_t ldo;
    const void *x, *w;
    int m;
    int64_t n, k;
    bool accumulate, narrow;
    /* `batch` (0: 1) such products of the same x at once: weights w_step elements apart, results
     * out_step elements of theirs. */
    int batch;
    int64_t w_step, out_step;
};

/* cuBLASLt wants 16-byte aligned operands and leading dimensions. */
static inline bool gemm_fits(const struct gemm *g)
{
    int64_t out_step = g->narrow ? 8 : 4;
    return g->k % 8 == 0 && g->n % out_step == 0 && g->ldo % out_step == 0 &&
           (((uintptr_t)g->out | (uintptr_t)g->x | (uintptr_t)g->w) & 15) == 0;
}

int gemm_run(struct dev *d, const struct gemm *g);

#endif
