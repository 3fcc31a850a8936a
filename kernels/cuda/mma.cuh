/* Tensor-core pieces of the product kernels: bf16 packing, splitting and the m16n8k16 product. */
#ifndef SPECD_CUDA_MMA_CUH
#define SPECD_CUDA_MMA_CUH

#include <cuda_bf16.h>
#include <stdint.h>

static __device__ __forceinline__ uint32_t pack_bf16(float a, float b)
{
    __nv_bfloat162 v = __floats2bfloat162_rn(a, b);
    return *(uint32_t *)&v;
}

static __device__ __forceinline__ void mma(float *c, const uint32_t *a, uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Two activations as bf16 pairs hi and lo with hi + lo equal to them within 2^-17. */
static __device__ __forceinline__ void split_pair(uint32_t *hi, uint32_t *lo, float a, float b)
{
    uint32_t h = pack_bf16(a, b);
    *hi = h;
    *lo = pack_bf16(a - __uint_as_float(h << 16), b - __uint_as_float(h & 0xffff0000u));
}

/* Four fp8 values (e4m3) as bf16 pairs (0, 2) and (1, 3), exactly: their bits, moved to bf16's
 * places, are the value times 2^-120. NaN does not survive. */
static __device__ __forceinline__ void fp8_pairs(uint32_t w, uint32_t *even, uint32_t *odd)
{
    const uint32_t up = 0x7b807b80u, zero = 0x80008000u; /* 2^120, -0 */
    uint32_t o = (w & 0x80008000u) | ((w & 0x7f007f00u) >> 4), v = w << 8;
    uint32_t e = (v & 0x80008000u) | ((v & 0x7f007f00u) >> 4);
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(*odd) : "r"(o), "r"(up), "r"(zero));
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(*even) : "r"(e), "r"(up), "r"(zero));
}

/* Four bf16 values at j (a multiple of 4) of a row. `pairs`: in the order that products with fp8
 * weights want, elements 0, 2, 4, ... of 16 ahead of 1, 3, 5, ... */
static __device__ __forceinline__ void put_bf16(__nv_bfloat16 *row, int64_t j, bool pairs, float a,
                                                float b, float c, float d)
{
    if (pairs) {
        row += j / 16 * 16 + j % 16 / 2;
        *(uint32_t *)row = pack_bf16(a, c);
        *(uint32_t *)(row + 8) = pack_bf16(b, d);
    } else {
        *(uint2 *)(row + j) = make_uint2(pack_bf16(a, b), pack_bf16(c, d));
    }
}

#endif
