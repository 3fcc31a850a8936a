/* Shared by the AVX2 and AVX-512 forms: inline pieces of 256 bits, and AVX2 functions that the
 * wider set uses as they are. Only on x86-64. */
#ifndef SPECD_CPU_ISA_X86_H
#define SPECD_CPU_ISA_X86_H

#include "kernels/cpu/internal.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define AVX2_FN __attribute__((target("avx2,fma,f16c")))

void avx2_philox(uint32_t *out, uint32_t pos, uint32_t id, uint32_t k0, uint32_t k1);
float avx2_max(const float *x, int n, int *nan);
float avx2_scale_max(float *s, int n, float scale);
void avx2_cvt_f16(float *dst, const uint16_t *src, int n);

/* Adds (i, i+4), (i, i+2), (i, i+1) of four vectors of eight lanes at once. */
AVX2_FN static inline __m128 reduce4(__m256 a, __m256 b, __m256 c, __m256 d)
{
    __m256 ab =
        _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
    __m256 cd =
        _mm256_add_ps(_mm256_permute2f128_ps(c, d, 0x20), _mm256_permute2f128_ps(c, d, 0x31));
    __m256 s = _mm256_add_ps(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xee));
    __m128 lo = _mm256_castps256_ps128(s), hi = _mm256_extractf128_ps(s, 1); /* a c, b d */
    __m128 r = _mm_add_ps(_mm_shuffle_ps(lo, hi, 0x88), _mm_shuffle_ps(lo, hi, 0xdd));
    return _mm_shuffle_ps(r, r, 0xd8);
}

AVX2_FN static inline void put4(const struct cpu_out *o, int r, int c, int n, __m128 v)
{
    float *p = o->out + r * o->ldo + c;
    if (n == 4) {
        if (o->add)
            v = _mm_add_ps(_mm_loadu_ps(p), v);
        if (o->bias)
            v = _mm_add_ps(v, _mm_loadu_ps(o->bias + c));
        _mm_storeu_ps(p, v);
        return;
    }
    float t[4];
    _mm_storeu_ps(t, v);
    for (int i = 0; i < n; i++)
        cpu_out_put(o, r, c + i, t[i]);
}

#endif
#endif
