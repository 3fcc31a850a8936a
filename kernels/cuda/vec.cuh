/* Vectors of V (1, 2 or 4) consecutive elements: a thread's share of a row in one load or store.
 * Addresses are aligned to the vector; cuda_width tells what a set of rows allows. */
#ifndef SPECD_CUDA_VEC_CUH
#define SPECD_CUDA_VEC_CUH

#include "kernels/cuda/common.cuh"

template <int V> struct alignas(4 * V) vec {
    float v[V];
};

template <int V> static __device__ __forceinline__ vec<V> vec_load(const float *p)
{
    vec<V> r;
    if constexpr (V == 4)
        *(float4 *)r.v = *(const float4 *)p;
    else if constexpr (V == 2)
        *(float2 *)r.v = *(const float2 *)p;
    else
        r.v[0] = *p;
    return r;
}

template <int V> static __device__ __forceinline__ void vec_store(float *p, const vec<V> &x)
{
    if constexpr (V == 4)
        *(float4 *)p = *(const float4 *)x.v;
    else if constexpr (V == 2)
        *(float2 *)p = *(const float2 *)x.v;
    else
        *p = x.v[0];
}

template <int V> static __device__ __forceinline__ void vec_store(__nv_bfloat16 *p, const vec<V> &x)
{
    if constexpr (V == 1) {
        *p = __float2bfloat16_rn(x.v[0]);
    } else {
        alignas(2 * V) __nv_bfloat162 b[V / 2];
#pragma unroll
        for (int i = 0; i < V / 2; i++)
            b[i] = __floats2bfloat162_rn(x.v[2 * i], x.v[2 * i + 1]);
        if constexpr (V == 4)
            *(uint2 *)p = *(const uint2 *)b;
        else
            *(uint32_t *)p = *(const uint32_t *)b;
    }
}

/* As dtype_f32_to_f8e4m3 converts. */
template <int V> static __device__ __forceinline__ void vec_store(__nv_fp8_e4m3 *p, const vec<V> &x)
{
    if constexpr (V == 1) {
        *(uint8_t *)p = __nv_cvt_float_to_fp8(x.v[0], __NV_SATFINITE, __NV_E4M3);
    } else {
        alignas(V) uint16_t b[V / 2];
#pragma unroll
        for (int i = 0; i < V / 2; i++)
            b[i] = __nv_cvt_float2_to_fp8x2(make_float2(x.v[2 * i], x.v[2 * i + 1]), __NV_SATFINITE,
                                            __NV_E4M3);
        if constexpr (V == 4)
            *(uint32_t *)p = *(const uint32_t *)b;
        else
            *(uint16_t *)p = b[0];
    }
}

/* Elements i … i + V of a cache; fp8 ones are x * inv. */
template <int V>
static __device__ __forceinline__ void vec_put(void *cache, enum dtype dt, int64_t i, vec<V> x,
                                               float inv)
{
    if (dt == DT_F8E4M3) {
#pragma unroll
        for (int k = 0; k < V; k++)
            x.v[k] *= inv;
        vec_store<V>((__nv_fp8_e4m3 *)cache + i, x);
    } else if (dt == DT_BF16) {
        vec_store<V>((__nv_bfloat16 *)cache + i, x);
    } else {
        vec_store<V>((float *)cache + i, x);
    }
}

/* Elements i … i + V of an array of any type; bf16 and fp32 in one load. */
template <int V>
static __device__ __forceinline__ vec<V> vec_load_any(const void *p, enum dtype dt, int64_t i)
{
    vec<V> r;
    if (dt == DT_F32)
        return vec_load<V>((const float *)p + i);
    if (V > 1 && dt == DT_BF16) {
        alignas(V > 1 ? 2 * V : 4) __nv_bfloat162 b[V > 1 ? V / 2 : 1];
        if constexpr (V == 4)
            *(uint2 *)b = *(const uint2 *)((const __nv_bfloat16 *)p + i);
        else
            *(uint32_t *)b = *(const uint32_t *)((const __nv_bfloat16 *)p + i);
#pragma unroll
        for (int k = 0; k < V / 2; k++) {
            float2 f = __bfloat1622float2(b[k]);
            r.v[2 * k] = f.x;
            r.v[2 * k + 1] = f.y;
        }
        return r;
    }
#pragma unroll
    for (int k = 0; k < V; k++)
        r.v[k] = cuda_load(p, dt, i + k);
    return r;
}

template <int V> static __device__ __forceinline__ float vec_sumsq(const vec<V> &x)
{
    float s = 0;
#pragma unroll
    for (int i = 0; i < V; i++)
        s = __fmaf_rn(x.v[i], x.v[i], s);
    return s;
}

/* Host: 16-byte aligned memory, for vectors of four. */
static inline bool cuda_aligned(const void *p)
{
    return ((uintptr_t)p & 15) == 0;
}

/* Host: the widest vector whose multiple the or of all widths, strides and offsets (`n`) is. */
static inline int cuda_width(int64_t n)
{
    return n % 4 == 0 ? 4 : n % 2 == 0 ? 2 : 1;
}

#endif
