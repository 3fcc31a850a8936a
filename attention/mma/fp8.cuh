/* Keys and values of an fp8 (e4m3) cache as operands of f16 products, which hold e4m3 exactly, NaN
 * too. Rows lie in shared memory as in the cache; a warp turns what it loads into fragments in
 * registers, so the bytes that move are the cache's.
 *
 * ldmatrix moves units of 16 bits, here two elements. Of a key's row a lane gets elements 4j … 4j +
 * 3 of 16 (j = lane % 4): as columns (2j, 2j + 1) and (2j + 8, 2j + 9) of the product they are in
 * another order than in memory, and so queries are stored in that order. Of two keys' values
 * (transposed) a lane gets two columns: even and odd columns of 16 go to two products, after which
 * a lane holds the sums of columns 4j … 4j + 3. */
#ifndef SPECD_ATTN_FP8_CUH
#define SPECD_ATTN_FP8_CUH

#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "attention/mma/frag.cuh"

/* rows_of for D elements of one byte. */
template <int D> struct rows8_of {
    static constexpr bool swizzle = D % 128 == 0;
    static constexpr int bytes = swizzle || D / 16 % 2 ? D : D + 16;
    static __device__ __forceinline__ uint32_t at(int row, int chunk)
    {
        return (uint32_t)(row * bytes + ((swizzle ? chunk ^ (row & 7) : chunk) << 4));
    }
};

static __device__ __forceinline__ void mma_f16(float d[4], const uint32_t a[4], uint32_t b0,
                                               uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, "
                 "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

static __device__ __forceinline__ void ldsm2(uint32_t r[2], uint32_t addr)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(addr)
                 : "memory");
}

static __device__ __forceinline__ void ldsm2_t(uint32_t r[2], uint32_t addr)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(addr)
                 : "memory");
}

static __device__ __forceinline__ uint32_t pack_f16(float lo, float hi)
{
    __half2 v = __floats2half2_rn(lo, hi);
    return *(uint32_t *)&v;
}

/* What two floats lose in pack_f16. */
static __device__ __forceinline__ uint32_t pack_rest_f16(float lo, float hi, uint32_t packed)
{
    __half2 v = *(__half2 *)&packed;
    return pack_f16(lo - __low2float(v), hi - __high2float(v));
}

/* The two elements in the low half of x as f16. */
static __device__ __forceinline__ uint32_t f16_pair(uint32_t x)
{
    __half2_raw h = __nv_cvt_fp8x2_to_halfraw2((__nv_fp8x2_storage_t)x, __NV_E4M3);
    return (uint32_t)h.x | (uint32_t)h.y << 16;
}

/* From a register of ldsm2_t: the even or odd column's elements of its two keys. */
static __device__ __forceinline__ uint32_t f16_column(uint32_t x, int odd)
{
    return f16_pair(__byte_perm(x, 0, odd ? 0x4431 : 0x4420));
}

/* gqa_scores over fp8 keys. */
template <class C>
static __device__ __forceinline__ void fp8_scores(float (&s)[C::MT][C::NT][4], uint32_t q,
                                                  uint32_t k, int line0, int key0)
{
    int lane = threadIdx.x & 31;
#pragma unroll
    for (int mt = 0; mt < C::MT; mt++)
#pragma unroll
        for (int nt = 0; nt < C::NT; nt++)
            s[mt][nt][0] = s[mt][nt][1] = s[mt][nt][2] = s[mt][nt][3] = 0;
#pragma unroll
    for (int kk = 0; kk < C::DQ / 16; kk++) {
        uint32_t hi[C::MT][4], lo[C::MT][4];
#pragma unroll
        for (int mt = 0; mt < C::MT; mt++) {
            uint32_t at = rows_of<C::DQ>::at(line0 + mt * 16 + (lane & 15), kk * 2 + (lane >> 4));
            ldsm4(hi[mt], q + at);
            if (C::HL)
                ldsm4(lo[mt], q + C::q_bytes + at);
        }
#pragma unroll
        for (int np = 0; np < C::NT / 2; np++) {
            uint32_t r[2];
            ldsm2(r, k + rows8_of<C::DQ>::at(key0 + np * 16 + (lane & 15), kk));
#pragma unroll
            for (int half = 0; half < 2; half++) { /* 8 keys each */
                uint32_t b0 = f16_pair(r[half]), b1 = f16_pair(r[half] >> 16);
#pragma unroll
                for (int mt = 0; mt < C::MT; mt++) {
                    mma_f16(s[mt][np * 2 + half], hi[mt], b0, b1);
                    if (C::HL)
                        mma_f16(s[mt][np * 2 + half], lo[mt], b0, b1);
                }
            }
        }
    }
}

/* gqa_values over fp8 values: o[mt][2 i] gets the even columns of the i-th 16, o[mt][2 i + 1] the
 * odd ones. */
template <class C>
static __device__ __forceinline__ void fp8_values(float (&o)[C::MT][C::DV / 8][4],
                                                  float (&s)[C::MT][C::NT][4], uint32_t v, int key0)
{
    int lane = threadIdx.x & 31;
#pragma unroll
    for (int kk = 0; kk < C::NT / 2; kk++) {
        uint32_t hi[C::MT][4], lo[C::MT][4];
#pragma unroll
        for (int mt = 0; mt < C::MT; mt++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float *p = &s[mt][kk * 2 + (i >> 1)][(i & 1) * 2];
                hi[mt][i] = pack_f16(p[0], p[1]);
                if (C::HL)
                    lo[mt][i] = pack_rest_f16(p[0], p[1], hi[mt][i]);
            }
#pragma unroll
        for (int np = 0; np < C::DV / 16; np++) {
            uint32_t r[2];
            ldsm2_t(r, v + rows8_of<C::DV>::at(key0 + kk * 16 + (lane & 15), np));
#pragma unroll
            for (int odd = 0; odd < 2; odd++) {
                uint32_t b0 = f16_column(r[0], odd), b1 = f16_column(r[1], odd);
#pragma unroll
                for (int mt = 0; mt < C::MT; mt++) {
                    mma_f16(o[mt][np * 2 + odd], hi[mt], b0, b1);
                    if (C::HL)
                        mma_f16(o[mt][np * 2 + odd], lo[mt], b0, b1);
                }
            }
        }
    }
}

/* Eight queries (columns 8 * chunk …) of a line to their places; beyond 65504 they saturate. */
template <int D>
static __device__ __forceinline__ void fp8_put_q(char *q, char *rest, int m, int chunk, float4 x,
                                                 float4 y)
{
    float v[8] = {x.x, x.y, x.z, x.w, y.x, y.y, y.z, y.w};
    uint32_t w[4], r[4];
#pragma unroll
    for (int i = 0; i < 8; i++) /* a NaN stays */
        v[i] = v[i] > 65504.0f ? 65504.0f : v[i] < -65504.0f ? -65504.0f : v[i];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        w[i] = pack_f16(v[2 * i], v[2 * i + 1]);
        r[i] = pack_rest_f16(v[2 * i], v[2 * i + 1], w[i]);
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        uint32_t at = rows_of<D>::at(m, (chunk & ~1) + h) + (chunk & 1) * 8;
        *(uint2 *)(q + at) = {w[h], w[h + 2]};
        if (rest)
            *(uint2 *)(rest + at) = {r[h], r[h + 2]};
    }
}

/* The same for what C's caches hold, in two parts where C says so. */
template <class C>
static __device__ __forceinline__ void tile_put_q(char *q, int m, int chunk, float4 x, float4 y)
{
    char *rest = C::HL ? q + C::q_bytes : NULL;
    if constexpr (C::F8)
        fp8_put_q<C::DQ>(q, rest, m, chunk, x, y);
    else
        bf16_put_q<C::DQ>(q, rest, m, chunk, x, y);
}

#endif
