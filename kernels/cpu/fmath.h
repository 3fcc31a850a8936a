/* exp, log, Gumbel noise and Philox in fixed fp32 operations.
 *
 * Every step is one IEEE operation (fused multiply-adds are written out, contraction is off), so
 * all instruction sets, and later the GPU, give the same bits. Written without branches so that
 * loops over them vectorise. Errors against exact values are below 2 ulp (test/ops/test_fmath.c).
 */
#ifndef SPECD_FMATH_H
#define SPECD_FMATH_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define FM_INLINE static __host__ __device__ __forceinline__
#else
#define FM_INLINE static inline __attribute__((always_inline))
#endif

FM_INLINE uint32_t fm_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

FM_INLINE float fm_float(uint32_t u)
{
    float f;
    memcpy(&f, &u, 4);
    return f;
}

/* c ? a : b by masks: between floats, compilers that honour floating-point traps make it a branch.
 */
FM_INLINE uint32_t fm_sel(int c, uint32_t a, uint32_t b)
{
    uint32_t m = -(uint32_t)c;
    return (a & m) | (b & ~m);
}

/* e^x; results below the smallest normal number are 0, above the largest +inf. */
FM_INLINE float fm_exp(float x)
{
    const float magic = 0x1.8p23f; /* adding it rounds to an integer held in the low bits */
    float t = fmaf(x, 0x1.715476p+0f, magic);
    float n = t - magic;
    float r = fmaf(n, -0x1.62e400p-1f, x); /* ln 2 in two parts */
    r = fmaf(n, -0x1.7f7d1cp-20f, r);
    float p = 0x1.a01a02p-13f; /* 1/5040: Taylor series on |r| <= ln(2)/2 */
    p = fmaf(p, r, 0x1.6c16c2p-10f);
    p = fmaf(p, r, 0x1.111112p-7f);
    p = fmaf(p, r, 0x1.555556p-5f);
    p = fmaf(p, r, 0x1.555556p-3f);
    p = fmaf(p, r, 0.5f);
    p = fmaf(p, r, 1.0f);
    p = fmaf(p, r, 1.0f);
    /* p * 2^n by adding to the exponent; p in [0.7, 1.42), so 2^127 needs no second step */
    uint32_t y = fm_bits(p) + (fm_bits(t) << 23);
    y = fm_sel(x < -87.33654f, 0, y);
    y = fm_sel(x > 88.72283f, 0x7f800000u, y);
    y = fm_sel(x != x, 0x7fc00000u, y);
    return fm_float(y);
}

/* 2 atanh(s) for |s| <= 1/3, the series in s^2. */
FM_INLINE float fm_atanh2(float s)
{
    float t = s * s;
    float p = 0x1.111112p-3f; /* 2/15 */
    p = fmaf(p, t, 0x1.3b13b2p-3f);
    p = fmaf(p, t, 0x1.745d18p-3f);
    p = fmaf(p, t, 0x1.c71c72p-3f);
    p = fmaf(p, t, 0x1.24924ap-2f);
    p = fmaf(p, t, 0x1.99999ap-2f);
    p = fmaf(p, t, 0x1.555556p-1f);
    return fmaf(s * t, p, s + s);
}

/* Natural logarithm of a positive normal number. */
FM_INLINE float fm_log(float x)
{
    uint32_t u = fm_bits(x);
    int32_t e = (int32_t)(u - 0x3f3504f3u) >> 23; /* mantissa in [sqrt(1/2), sqrt(2)) */
    float m = fm_float(u - ((uint32_t)e << 23));
    float f = m - 1.0f;
    float l = fm_atanh2(f / (2.0f + f));
    float n = (float)e;
    return fmaf(n, 0x1.62e400p-1f, fmaf(n, 0x1.7f7d1cp-20f, l));
}

/* Standard Gumbel noise from 32 random bits: -log(E) with E = -log(u) exponential. Above one half,
 * u is kept as 1 - q so that small E keeps its relative precision: no bits give 0 or infinity. */
FM_INLINE float fm_gumbel(uint32_t bits)
{
    int low = bits < 0x80000000u;
    uint32_t k = fm_sel(low, bits, ~bits);
    /* (k + 1/2) * 2^-32: u itself when low, else q = 1 - u; k < 2^31, so the conversion is exact
     * enough and signed conversion is allowed */
    float v = fmaf((float)(int32_t)k, 0x1p-32f, 0x1p-33f);
    uint32_t b = fm_bits(v);
    int32_t e = (int32_t)(b - 0x3f3504f3u) >> 23;
    float f = fm_float(b - ((uint32_t)e << 23)) - 1.0f;
    float num = fm_float(fm_sel(low, fm_bits(f), fm_bits(-v)));
    float den = 2.0f + num; /* 2 + f, 2 - q */
    float n = fm_float(fm_sel(low, fm_bits((float)e), 0));
    float l = fm_atanh2(num / den);
    float log_u = fmaf(n, 0x1.62e400p-1f, fmaf(n, 0x1.7f7d1cp-20f, l));
    return -fm_log(-log_u);
}
/* No noise is larger: bits 0xffffffff give -log(2^-33), about 22.87. */
#define FM_GUMBEL_MAX 22.9f

/* First word of Philox4x32-10 (Salmon et al. 2011) at counter (c0, c1, c2, 0). */
FM_INLINE uint32_t fm_philox(uint32_t c0, uint32_t c1, uint32_t c2, uint32_t k0, uint32_t k1)
{
    uint32_t c3 = 0;
    for (int i = 0; i < 10; i++) {
        uint64_t a = (uint64_t)c0 * 0xd2511f53u, b = (uint64_t)c2 * 0xcd9e8d57u;
        uint32_t n0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
        uint32_t n2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)b;
        c3 = (uint32_t)a;
        c0 = n0;
        c2 = n2;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    return c0;
}

/* Independent random streams of a request, the third word of the counter. */
enum fm_stream { FM_TARGET, FM_COIN, FM_RESIDUAL, FM_DRAFT };

FM_INLINE uint32_t fm_random(uint64_t seed, int32_t pos, int32_t id, enum fm_stream s)
{
    return fm_philox((uint32_t)pos, (uint32_t)id, (uint32_t)s, (uint32_t)seed,
                     (uint32_t)(seed >> 32));
}

/* The project's sampling noise of a token (ops.h, op_sample). */
FM_INLINE float fm_noise(uint64_t seed, int32_t pos, int32_t id)
{
    return fm_gumbel(fm_random(seed, pos, id, FM_TARGET));
}

/* Less than this of a residual p - q is rounding. */
#define FM_RESIDUAL_MIN 0x1p-30f

/* A uniform number that is neither 0 nor 1. */
FM_INLINE double fm_coin(uint64_t seed, int32_t pos)
{
    return ((double)fm_random(seed, pos, 0, FM_COIN) + 0.5) * 0x1p-32;
}

#endif
