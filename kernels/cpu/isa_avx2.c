/* AVX2 + FMA + F16C forms; see isa_scalar.c for what they compute. Pure functions. */
#include "kernels/cpu/internal.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include "kernels/cpu/fmath.h"

#define FN __attribute__((target("avx2,fma,f16c")))
#define VEC(name) avx2_##name
#define VEC_FN FN
#include "kernels/cpu/vec.inc"

static bool usable(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __builtin_cpu_supports("f16c");
}

FN static inline float avx2_reduce(__m256 a, __m256 b)
{
    __m256 s = _mm256_add_ps(a, b);
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}

FN static float avx2_dot(const float *x, const float *w, int k)
{
    __m256 a = _mm256_setzero_ps(), b = a;
    int i = 0;
    for (; i + 16 <= k; i += 16) {
        a = _mm256_fmadd_ps(_mm256_loadu_ps(x + i), _mm256_loadu_ps(w + i), a);
        b = _mm256_fmadd_ps(_mm256_loadu_ps(x + i + 8), _mm256_loadu_ps(w + i + 8), b);
    }
    if (i < k) {
        float tx[16] = {0}, tw[16] = {0};
        memcpy(tx, x + i, (size_t)(k - i) * 4);
        memcpy(tw, w + i, (size_t)(k - i) * 4);
        a = _mm256_fmadd_ps(_mm256_loadu_ps(tx), _mm256_loadu_ps(tw), a);
        b = _mm256_fmadd_ps(_mm256_loadu_ps(tx + 8), _mm256_loadu_ps(tw + 8), b);
    }
    return avx2_reduce(a, b);
}

FN static void avx2_cvt_f16(float *dst, const uint16_t *src, int n)
{
    int i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(dst + i, _mm256_cvtph_ps(_mm_loadu_si128((const void *)(src + i))));
    for (; i < n; i++)
        dst[i] = dtype_f16_to_f32(src[i]);
}

const struct cpu_isa cpu_isa_avx2 = {
    .name = "avx2",
    .usable = usable,
    .dot = avx2_dot,
    .cvt_bf16 = avx2_cvt_bf16,
    .cvt_f16 = avx2_cvt_f16,
    .cvt_f8 = avx2_cvt_f8,
    .silu_mul = avx2_silu_mul,
    .rms_scale = avx2_rms_scale,
    .sumsq = avx2_sumsq,
};
#else
const struct cpu_isa cpu_isa_avx2 = {.name = "avx2"};
#endif
