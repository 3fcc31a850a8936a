/* Warp-level pieces of the tensor-core attention kernels: bf16 matrix products of 16x8x16, the
 * loads that bring their operands from shared memory, asynchronous copies into it, and rows of
 * 16-byte chunks laid out so that neither meets bank conflicts. Everything here exists from sm_80
 * on. */
#ifndef SPECD_ATTN_FRAG_CUH
#define SPECD_ATTN_FRAG_CUH

#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <stdint.h>

#include "kernels/cuda/async.cuh"

#define MMA_LOG2E 1.4426950408889634f
#define MMA_LN2 0.6931471805599453f

/* d += a b: a 16x16 (rows of queries), b 16x8, fp32 sums. Lane l holds of d the rows l / 4 (0, 1)
 * and l / 4 + 8 (2, 3), columns 2 (l % 4) and the next. */
static __device__ __forceinline__ void mma_bf16(float d[4], const uint32_t a[4], uint32_t b0,
                                                uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, "
                 "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

static __device__ __forceinline__ void ldsm4(uint32_t r[4], uint32_t addr)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(addr)
                 : "memory");
}

static __device__ __forceinline__ void ldsm4_t(uint32_t r[4], uint32_t addr)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(addr)
                 : "memory");
}

/* An 8x8 matrix of bf16, a lane's pair of a row in, its pair of a column out. */
static __device__ __forceinline__ uint32_t turn8(uint32_t x)
{
    uint32_t y;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

static __device__ __forceinline__ float ex2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

static __device__ __forceinline__ uint32_t pack_bf16(float lo, float hi)
{
    __nv_bfloat162 v = __floats2bfloat162_rn(lo, hi);
    return *(uint32_t *)&v;
}

/* What two floats lose in pack_bf16. */
static __device__ __forceinline__ uint32_t pack_rest(float lo, float hi, uint32_t packed)
{
    __nv_bfloat162 v = *(__nv_bfloat162 *)&packed;
    return pack_bf16(lo - __low2float(v), hi - __high2float(v));
}

static __device__ __forceinline__ uint32_t smem_addr(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* A matrix of D bf16 columns in shared memory. Chunk c of row r: rows of a multiple of 128 bytes
 * exchange chunks by the row's low bits, others are padded to an odd number of chunks. */
template <int D> struct rows_of {
    static constexpr bool swizzle = D % 64 == 0;
    static constexpr int bytes = swizzle ? D * 2 : D * 2 + 16;
    static __device__ __forceinline__ uint32_t at(int row, int chunk)
    {
        return (uint32_t)(row * bytes + ((swizzle ? chunk ^ (row & 7) : chunk) << 4));
    }
};

/* Eight queries (columns 8 * chunk …) of a line to their places, what bf16 leaves of them to those
 * of `rest` unless that is NULL. */
template <int D>
static __device__ __forceinline__ void bf16_put_q(char *q, char *rest, int m, int chunk, float4 x,
                                                  float4 y)
{
    uint4 w = {pack_bf16(x.x, x.y), pack_bf16(x.z, x.w), pack_bf16(y.x, y.y), pack_bf16(y.z, y.w)};
    uint32_t at = rows_of<D>::at(m, chunk);
    *(uint4 *)(q + at) = w;
    if (rest) {
        uint4 r = {pack_rest(x.x, x.y, w.x), pack_rest(x.z, x.w, w.y), pack_rest(y.x, y.y, w.z),
                   pack_rest(y.z, y.w, w.w)};
        *(uint4 *)(rest + at) = r;
    }
}

#endif
