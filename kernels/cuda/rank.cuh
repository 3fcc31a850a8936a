/* What the kernels over a row of logits share: order-preserving keys, block-wide best and sums,
 * log-sum-exp. Blocks have T threads. Files that include this are compiled without contraction, so
 * that the noise (kernels/cpu/fmath.h) has the CPU device's bits. */
#ifndef SPECD_CUDA_RANK_CUH
#define SPECD_CUDA_RANK_CUH

#include "kernels/cpu/fmath.h"
#include "kernels/cuda/common.cuh"

enum { T = 1024 };

/* Order-preserving map of floats to unsigned. */
static __device__ __forceinline__ uint32_t key_of(float f)
{
    uint32_t u = __float_as_uint(f);
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

static __device__ __forceinline__ float key_value(uint32_t k)
{
    return __uint_as_float(k & 0x80000000u ? k & 0x7fffffffu : ~k);
}

/* Best (largest value, then lowest id) of the block; every thread gets it. */
static __device__ uint64_t block_best(uint64_t v)
{
    __shared__ uint64_t part[32];
    for (int o = 16; o > 0; o >>= 1) {
        uint64_t w = __shfl_xor_sync(0xffffffffu, v, o);
        v = w > v ? w : v;
    }
    __syncthreads();
    if ((threadIdx.x & 31) == 0)
        part[threadIdx.x >> 5] = v;
    __syncthreads();
    v = part[threadIdx.x & 31];
    for (int o = 16; o > 0; o >>= 1) {
        uint64_t w = __shfl_xor_sync(0xffffffffu, v, o);
        v = w > v ? w : v;
    }
    return v;
}

static __device__ __forceinline__ uint64_t pack_best(float v, int id)
{
    return (uint64_t)key_of(v) << 32 | (0xffffffffu - (uint32_t)id);
}

static __device__ __forceinline__ int best_id(uint64_t b)
{
    return (int)(0xffffffffu - (uint32_t)b);
}

static __device__ double block_sum(double v)
{
    __shared__ double part[32];
    for (int o = 16; o > 0; o >>= 1)
        v += __shfl_xor_sync(0xffffffffu, v, o);
    __syncthreads();
    if ((threadIdx.x & 31) == 0)
        part[threadIdx.x >> 5] = v;
    __syncthreads();
    v = part[threadIdx.x & 31];
    for (int o = 16; o > 0; o >>= 1)
        v += __shfl_xor_sync(0xffffffffu, v, o);
    return v;
}

static __device__ int block_count(int v)
{
    return (int)block_sum((double)v);
}

static __device__ uint64_t row_argmax(const float *z, int n)
{
    uint64_t b = 0;
    for (int i = threadIdx.x; i < n; i += T) {
        uint64_t w = pack_best(z[i], i);
        b = w > b ? w : b;
    }
    return block_best(b);
}

struct lse {
    float max;
    double log_sum;
};

static __device__ struct lse row_lse(const float *l, int n)
{
    uint64_t b = 0;
    for (int i = threadIdx.x; i < n; i += T) {
        uint64_t w = pack_best(l[i] == l[i] ? l[i] : -INFINITY, i);
        b = w > b ? w : b;
    }
    struct lse r;
    r.max = key_value((uint32_t)(block_best(b) >> 32));
    double s = 0;
    for (int i = threadIdx.x; i < n; i += T)
        if (l[i] == l[i])
            s += (double)fm_exp(l[i] - r.max);
    r.log_sum = log(block_sum(s));
    return r;
}

#endif
