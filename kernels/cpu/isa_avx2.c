/* AVX2 + FMA + F16C forms; see isa_scalar.c for what they compute. Pure functions. */
#include "kernels/cpu/isa_x86.h"

#if defined(__x86_64__)
#include <cpuid.h>

#include "kernels/cpu/fmath.h"

#define FN AVX2_FN
/* Products of eight 32-bit numbers with m: high and low halves. */
FN static inline void mul_hilo(__m256i x, __m256i m, __m256i *hi, __m256i *lo)
{
    __m256i e = _mm256_mul_epu32(x, m), o = _mm256_mul_epu32(_mm256_srli_epi64(x, 32), m);
    *hi = _mm256_blend_epi32(_mm256_srli_epi64(e, 32), o, 0xaa);
    *lo = _mm256_blend_epi32(e, _mm256_slli_epi64(o, 32), 0xaa);
}

FN void avx2_philox(uint32_t *out, uint32_t pos, uint32_t id, uint32_t k0, uint32_t k1)
{
    const __m256i m0 = _mm256_set1_epi32((int)0xd2511f53u),
                  m1 = _mm256_set1_epi32((int)0xcd9e8d57u);
    for (int i = 0; i < 64; i += 8) {
        __m256i c0 = _mm256_set1_epi32((int)pos), c2 = _mm256_setzero_si256(), c3 = c2;
        __m256i c1 = _mm256_add_epi32(_mm256_set1_epi32((int)(id + (uint32_t)i)),
                                      _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
        uint32_t a = k0, b = k1;
        for (int r = 0; r < 10; r++, a += 0x9e3779b9u, b += 0xbb67ae85u) {
            __m256i h0, l0, h1, l1;
            mul_hilo(c0, m0, &h0, &l0);
            mul_hilo(c2, m1, &h1, &l1);
            c0 = _mm256_xor_si256(_mm256_xor_si256(h1, c1), _mm256_set1_epi32((int)a));
            c2 = _mm256_xor_si256(_mm256_xor_si256(h0, c3), _mm256_set1_epi32((int)b));
            c1 = l1;
            c3 = l0;
        }
        _mm256_storeu_si256((__m256i *)(void *)(out + i), c0);
    }
}

#define VEC(name) avx2_##name
#define VEC_FN FN
#include "kernels/cpu/vec.inc"

static bool usable(void)
{
    unsigned a, b, c, d; /* clang 14 has no name for f16c */
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

/* maxps gives its second operand when one is NaN, so NaN never enters `m`. */
FN float avx2_max(const float *x, int n, int *nan)
{
    __m256 m[4], bad = _mm256_setzero_ps();
    for (int k = 0; k < 4; k++)
        m[k] = _mm256_set1_ps(-INFINITY);
    int i = 0;
    for (; i + 32 <= n; i += 32)
        for (int k = 0; k < 4; k++) {
            __m256 v = _mm256_loadu_ps(x + i + 8 * k);
            bad = _mm256_or_ps(bad, _mm256_cmp_ps(v, v, _CMP_UNORD_Q));
            m[k] = _mm256_max_ps(v, m[k]);
        }
    float t[8], max = -INFINITY;
    _mm256_storeu_ps(t, _mm256_max_ps(_mm256_max_ps(m[0], m[1]), _mm256_max_ps(m[2], m[3])));
    int any = _mm256_movemask_ps(bad) != 0;
    for (int k = 0; k < 8; k++)
        max = t[k] > max ? t[k] : max;
    for (; i < n; i++) {
        max = x[i] > max ? x[i] : max;
        any |= x[i] != x[i];
    }
    if (nan)
        *nan = any;
    return max;
}

FN float avx2_scale_max(float *s, int n, float scale)
{
    __m256 a = _mm256_set1_ps(-INFINITY), b = a, f = _mm256_set1_ps(scale);
    for (int i = 0; i < n; i += 16) {
        __m256 u = _mm256_mul_ps(_mm256_loadu_ps(s + i), f);
        __m256 v = _mm256_mul_ps(_mm256_loadu_ps(s + i + 8), f);
        _mm256_storeu_ps(s + i, u);
        _mm256_storeu_ps(s + i + 8, v);
        a = _mm256_max_ps(u, a);
        b = _mm256_max_ps(v, b);
    }
    float t[8], max = -INFINITY;
    _mm256_storeu_ps(t, _mm256_max_ps(a, b));
    for (int k = 0; k < 8; k++)
        max = t[k] > max ? t[k] : max;
    return max;
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

FN void avx2_cvt_f16(float *dst, const uint16_t *src, int n)
{
    int i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(dst + i, _mm256_cvtph_ps(_mm_loadu_si128((const void *)(src + i))));
    for (; i < n; i++)
        dst[i] = dtype_f16_to_f32(src[i]);
}

/* Panel order: lanes 0–7 of all steps, then lanes 8–15, so that one half of a tile is a contiguous
 * read and its accumulators leave room for operands in 16 registers. */
FN static void avx2_pack(float *dst, const float *src, int k)
{
    int kp = cpu_pad(k), i = 0;
    float *lo = dst, *hi = dst + kp / 2;
    for (; i + 16 <= k; i += 16, lo += 8, hi += 8) {
        _mm256_storeu_ps(lo, _mm256_loadu_ps(src + i));
        _mm256_storeu_ps(hi, _mm256_loadu_ps(src + i + 8));
    }
    if (i < k) {
        float t[16] = {0};
        memcpy(t, src + i, (size_t)(k - i) * sizeof *t);
        memcpy(lo, t, 8 * sizeof *t);
        memcpy(hi, t + 8, 8 * sizeof *t);
    }
}

FN static inline __m256 load_bf16(const uint16_t *p)
{
    return _mm256_castsi256_ps(
        _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)p)), 16));
}

FN static void avx2_pack_bf16(float *dst, const uint16_t *src, int k)
{
    int kp = cpu_pad(k), i = 0;
    float *lo = dst, *hi = dst + kp / 2;
    for (; i + 16 <= k; i += 16, lo += 8, hi += 8) {
        _mm256_storeu_ps(lo, load_bf16(src + i));
        _mm256_storeu_ps(hi, load_bf16(src + i + 8));
    }
    if (i < k) {
        uint16_t t[16] = {0};
        memcpy(t, src + i, (size_t)(k - i) * sizeof *t);
        _mm256_storeu_ps(lo, load_bf16(t));
        _mm256_storeu_ps(hi, load_bf16(t + 8));
    }
}

enum { TR = 3, TC = 4, GROUP = 4 }; /* tile of 3 rows x 4 columns, 4 tiles share a weight half */

/* acc[r][c] = sum over steps of eight lanes; row strides xs and ws, step strides xd and wd. */
FN static inline __attribute__((always_inline)) void tile_half(__m256 (*acc)[TC], const float *x,
                                                               int64_t xs, const float *const *w,
                                                               int steps, int rows, int xd, int wd)
{
    __m256 a[TR][TC];
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < TC; c++)
            a[r][c] = _mm256_setzero_ps();
    const float *w0 = w[0], *w1 = w[1], *w2 = w[2], *w3 = w[3];
    for (int s = 0; s < steps; s++) {
        __m256 v[TR];
        for (int r = 0; r < rows; r++)
            v[r] = _mm256_loadu_ps(x + r * xs + (int64_t)s * xd);
        __m256 u = _mm256_loadu_ps(w0 + (int64_t)s * wd);
        for (int r = 0; r < rows; r++)
            a[r][0] = _mm256_fmadd_ps(v[r], u, a[r][0]);
        u = _mm256_loadu_ps(w1 + (int64_t)s * wd);
        for (int r = 0; r < rows; r++)
            a[r][1] = _mm256_fmadd_ps(v[r], u, a[r][1]);
        u = _mm256_loadu_ps(w2 + (int64_t)s * wd);
        for (int r = 0; r < rows; r++)
            a[r][2] = _mm256_fmadd_ps(v[r], u, a[r][2]);
        u = _mm256_loadu_ps(w3 + (int64_t)s * wd);
        for (int r = 0; r < rows; r++)
            a[r][3] = _mm256_fmadd_ps(v[r], u, a[r][3]);
    }
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < TC; c++)
            acc[r][c] = a[r][c];
}

#define TILE_FN(n)                                                                                 \
    FN static __attribute__((noinline)) void tile_packed_##n(                                      \
        __m256(*acc)[TC], const float *x, int64_t xs, const float *const *w, int steps)            \
    {                                                                                              \
        tile_half(acc, x, xs, w, steps, n, 8, 8);                                                  \
    }
TILE_FN(1)
TILE_FN(2)
TILE_FN(3)
#undef TILE_FN

FN static inline void tile_packed(__m256 (*acc)[TC], const float *x, int64_t xs,
                                  const float *const *w, int steps, int rows)
{
    if (rows == 3)
        tile_packed_3(acc, x, xs, w, steps);
    else if (rows == 2)
        tile_packed_2(acc, x, xs, w, steps);
    else
        tile_packed_1(acc, x, xs, w, steps);
}

FN static void avx2_panel(const struct cpu_out *o, const float *x, int rows, const float *w,
                          int cols, int kp)
{
    __m256 acc[2][GROUP][TR][TC];
    int steps = kp / 16, half = kp / 2;
    for (int r0 = 0; r0 < rows; r0 += GROUP * TR) {
        int n = rows - r0 < GROUP * TR ? rows - r0 : GROUP * TR;
        for (int c = 0; c < cols; c += TC) {
            int nc = cols - c < TC ? cols - c : TC;
            for (int h = 0; h < 2; h++) {
                const float *wp[TC];
                for (int i = 0; i < TC; i++) /* past the last column: any row, not stored */
                    wp[i] = w + (int64_t)(i < nc ? c + i : c) * kp + h * half;
                for (int t = 0; t * TR < n; t++)
                    tile_packed(acc[h][t], x + (int64_t)(r0 + t * TR) * kp + h * half, kp, wp,
                                steps, n - t * TR < TR ? n - t * TR : TR);
            }
            for (int r = 0; r < n; r++) {
                __m256 *lo = acc[0][r / TR][r % TR], *hi = acc[1][r / TR][r % TR];
                put4(o, r0 + r, c, nc,
                     reduce4(_mm256_add_ps(lo[0], hi[0]), _mm256_add_ps(lo[1], hi[1]),
                             _mm256_add_ps(lo[2], hi[2]), _mm256_add_ps(lo[3], hi[3])));
            }
        }
    }
}

enum { FR = 6, FC = 2 }; /* a few rows: tiles of 6 x 2, so that a weight is converted once */

/* acc[r][c]: eight lanes of every step; x in panel order, w plain with `tail` elements of a last,
 * partial step. */
FN static inline __attribute__((always_inline)) void few_half(__m256 (*acc)[FC], const float *x,
                                                              int64_t xs, const uint16_t *const *w,
                                                              const uint16_t (*tail)[16], int h,
                                                              int steps, int rows)
{
    __m256 a[FR][FC];
    for (int r = 0; r < rows; r++)
        a[r][0] = a[r][1] = _mm256_setzero_ps();
    const uint16_t *w0 = w[0] + 8 * h, *w1 = w[1] + 8 * h;
    for (int s = 0; s < steps; s++) {
        __m256 u0 = load_bf16(w0 + 16 * (int64_t)s), u1 = load_bf16(w1 + 16 * (int64_t)s);
        for (int r = 0; r < rows; r++) {
            __m256 v = _mm256_loadu_ps(x + r * xs + 8 * (int64_t)s);
            a[r][0] = _mm256_fmadd_ps(v, u0, a[r][0]);
            a[r][1] = _mm256_fmadd_ps(v, u1, a[r][1]);
        }
    }
    for (int r = 0; r < rows && tail; r++) {
        __m256 v = _mm256_loadu_ps(x + r * xs + 8 * (int64_t)steps);
        a[r][0] = _mm256_fmadd_ps(v, load_bf16(tail[0] + 8 * h), a[r][0]);
        a[r][1] = _mm256_fmadd_ps(v, load_bf16(tail[1] + 8 * h), a[r][1]);
    }
    for (int r = 0; r < rows; r++) {
        acc[r][0] = a[r][0];
        acc[r][1] = a[r][1];
    }
}

#define FEW_FN(n)                                                                                  \
    FN static __attribute__((noinline)) void few_##n(__m256(*acc)[FC], const float *x, int64_t xs, \
                                                     const uint16_t *const *w,                     \
                                                     const uint16_t(*tail)[16], int h, int steps)  \
    {                                                                                              \
        few_half(acc, x, xs, w, tail, h, steps, n);                                                \
    }
FEW_FN(1)
FEW_FN(2)
FEW_FN(3)
FEW_FN(4)
FEW_FN(5)
FEW_FN(6)
#undef FEW_FN

/* Rows [r0, r0 + n) against the four weight rows of wp, columns c … of o. */
FN static void few_rows(const struct cpu_out *o, int r0, int n, int c, int nc, const float *x,
                        const uint16_t *const *wp, int k)
{
    typedef void few_fn(__m256(*)[FC], const float *, int64_t, const uint16_t *const *,
                        const uint16_t(*)[16], int, int);
    static few_fn *const fn[FR + 1] = {NULL, few_1, few_2, few_3, few_4, few_5, few_6};
    int kp = cpu_pad(k), steps = k / 16, rest = k % 16;
    uint16_t tail[4][16] = {{0}};
    for (int i = 0; i < 4 && rest; i++)
        memcpy(tail[i], wp[i] + 16 * (int64_t)steps, (size_t)rest * sizeof **tail);
    __m256 acc[2][2][FR][FC]; /* half, pair of columns */
    for (int h = 0; h < 2; h++)
        for (int p = 0; p < 2; p++)
            fn[n](acc[h][p], x + h * (kp / 2), kp, wp + 2 * p,
                  rest ? (const uint16_t(*)[16])tail + 2 * p : NULL, h, steps);
    for (int r = 0; r < n; r++)
        put4(o, r0 + r, c, nc,
             reduce4(_mm256_add_ps(acc[0][0][r][0], acc[1][0][r][0]),
                     _mm256_add_ps(acc[0][0][r][1], acc[1][0][r][1]),
                     _mm256_add_ps(acc[0][1][r][0], acc[1][1][r][0]),
                     _mm256_add_ps(acc[0][1][r][1], acc[1][1][r][1])));
}

FN static void avx2_few_bf16(const struct cpu_out *o, const float *x, int rows, const uint16_t *w,
                             int cols, int k)
{
    int parts = (rows + FR - 1) / FR;
    for (int c = 0; c < cols; c += 4) {
        int nc = cols - c < 4 ? cols - c : 4;
        const uint16_t *wp[4];
        for (int i = 0; i < 4; i++) /* past the last column: any row, not stored */
            wp[i] = w + (int64_t)(i < nc ? c + i : c) * k;
        for (int r = 0, left = parts; left > 0; left--) { /* in equal tiles */
            int n = (rows - r) / left;
            few_rows(o, r, n, c, nc, x + (int64_t)r * cpu_pad(k), wp, k);
            r += n;
        }
    }
}

/* Memory-bound: four weight rows at once, the next four fetched ahead. */
FN static void avx2_gemv_bf16(float *out, const float *x, const uint16_t *w, int cols, int k)
{
    int body = k / 16 * 16;
    for (int c = 0; c < cols; c += 4) {
        const uint16_t *p[4];
        __m256 a[4][2];
        for (int i = 0; i < 4; i++) {
            p[i] = w + (int64_t)(c + i < cols ? c + i : c) * k;
            a[i][0] = a[i][1] = _mm256_setzero_ps();
        }
        for (int s = 0; s < body; s += 16) {
            __m256 x0 = _mm256_loadu_ps(x + s), x1 = _mm256_loadu_ps(x + s + 8);
            for (int i = 0; i < 4; i++) {
                _mm_prefetch((const char *)(p[i] + s + 4 * (int64_t)k), _MM_HINT_T0);
                a[i][0] = _mm256_fmadd_ps(x0, load_bf16(p[i] + s), a[i][0]);
                a[i][1] = _mm256_fmadd_ps(x1, load_bf16(p[i] + s + 8), a[i][1]);
            }
        }
        if (body < k) {
            float tx[16] = {0};
            memcpy(tx, x + body, (size_t)(k - body) * sizeof *tx);
            for (int i = 0; i < 4; i++) {
                uint16_t t[16] = {0};
                memcpy(t, p[i] + body, (size_t)(k - body) * sizeof *t);
                a[i][0] = _mm256_fmadd_ps(_mm256_loadu_ps(tx), load_bf16(t), a[i][0]);
                a[i][1] = _mm256_fmadd_ps(_mm256_loadu_ps(tx + 8), load_bf16(t + 8), a[i][1]);
            }
        }
        float t[4];
        _mm_storeu_ps(t, reduce4(_mm256_add_ps(a[0][0], a[0][1]), _mm256_add_ps(a[1][0], a[1][1]),
                                 _mm256_add_ps(a[2][0], a[2][1]), _mm256_add_ps(a[3][0], a[3][1])));
        for (int i = 0; i < 4 && c + i < cols; i++)
            out[c + i] = t[i];
    }
}

#define TILE_FN(n)                                                                                 \
    FN static __attribute__((noinline)) void tile_plain_##n(                                       \
        __m256(*acc)[TC], const float *x, int64_t xs, const float *const *w, int steps)            \
    {                                                                                              \
        tile_half(acc, x, xs, w, steps, n, 16, 16);                                                \
    }
TILE_FN(1)
TILE_FN(2)
TILE_FN(3)
#undef TILE_FN

FN static inline void tile_plain(__m256 (*acc)[TC], const float *x, int64_t xs,
                                 const float *const *w, int steps, int rows)
{
    if (rows == 3)
        tile_plain_3(acc, x, xs, w, steps);
    else if (rows == 2)
        tile_plain_2(acc, x, xs, w, steps);
    else
        tile_plain_1(acc, x, xs, w, steps);
}

FN static void avx2_scores(float *s, int64_t lds, const float *q, int rows, const float *const *k,
                           int n, int kp)
{
    __m256 lo[TR][TC], hi[TR][TC];
    for (int j = 0; j < n; j += TC) {
        int nc = n - j < TC ? n - j : TC;
        const float *k0[TC], *k1[TC];
        for (int i = 0; i < TC; i++) {
            k0[i] = k[i < nc ? j + i : j];
            k1[i] = k0[i] + 8;
        }
        for (int r0 = 0; r0 < rows; r0 += TR) {
            int nr = rows - r0 < TR ? rows - r0 : TR;
            tile_plain(lo, q + (int64_t)r0 * kp, kp, k0, kp / 16, nr);
            tile_plain(hi, q + (int64_t)r0 * kp + 8, kp, k1, kp / 16, nr);
            for (int r = 0; r < nr; r++) {
                struct cpu_out o = {s + j, lds, false, NULL};
                put4(&o, r0 + r, 0, nc,
                     reduce4(_mm256_add_ps(lo[r][0], hi[r][0]), _mm256_add_ps(lo[r][1], hi[r][1]),
                             _mm256_add_ps(lo[r][2], hi[r][2]), _mm256_add_ps(lo[r][3], hi[r][3])));
            }
        }
    }
}

enum { PV_ROWS = 3 };

/* Columns [0, 8 * vecs) of `rows` rows; constants after inlining. */
FN static inline __attribute__((always_inline)) void pv_tile(float *out, const float *p,
                                                             int64_t ldp, int rows,
                                                             const float *const *v, int n, int dv,
                                                             int at, int vecs)
{
    __m256 a[PV_ROWS][4];
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < vecs; c++)
            a[r][c] = _mm256_loadu_ps(out + (int64_t)r * dv + at + 8 * c);
    for (int j = 0; j < n; j++) {
        const float *vj = v[j] + at;
        __m256 w[PV_ROWS];
        for (int r = 0; r < rows; r++)
            w[r] = _mm256_broadcast_ss(p + r * ldp + j);
        for (int c = 0; c < vecs; c++) {
            __m256 u = _mm256_loadu_ps(vj + 8 * c);
            for (int r = 0; r < rows; r++)
                a[r][c] = _mm256_fmadd_ps(w[r], u, a[r][c]);
        }
    }
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < vecs; c++)
            _mm256_storeu_ps(out + (int64_t)r * dv + at + 8 * c, a[r][c]);
}

#define PV_FN(n)                                                                                   \
    FN static __attribute__((noinline)) void pv_##n(float *out, const float *p, int64_t ldp,       \
                                                    const float *const *v, int keys, int dv)       \
    {                                                                                              \
        int at = 0;                                                                                \
        for (; at + 32 <= dv; at += 32)                                                            \
            pv_tile(out, p, ldp, n, v, keys, dv, at, 4);                                           \
        for (; at + 8 <= dv; at += 8)                                                              \
            pv_tile(out, p, ldp, n, v, keys, dv, at, 1);                                           \
        for (int r = 0; r < n && at < dv; r++)                                                     \
            for (int j = 0; j < keys; j++)                                                         \
                for (int i = at; i < dv; i++)                                                      \
                    out[(int64_t)r * dv + i] =                                                     \
                        fmaf(p[r * ldp + j], v[j][i], out[(int64_t)r * dv + i]);                   \
    }
PV_FN(1)
PV_FN(2)
PV_FN(3)
#undef PV_FN

FN static void avx2_pv(float *out, const float *p, int64_t ldp, int rows, const float *const *v,
                       int n, int dv)
{
    for (; rows >= 3; rows -= 3, out += (int64_t)3 * dv, p += 3 * ldp)
        pv_3(out, p, ldp, v, n, dv);
    if (rows == 2)
        pv_2(out, p, ldp, v, n, dv);
    else if (rows == 1)
        pv_1(out, p, ldp, v, n, dv);
}

const struct cpu_isa cpu_isa_avx2 = {
    .name = "avx2",
    .usable = usable,
    .dot = avx2_dot,
    .cvt_bf16 = avx2_cvt_bf16,
    .cvt_f16 = avx2_cvt_f16,
    .cvt_f8 = avx2_cvt_f8,
    .pack = avx2_pack,
    .pack_bf16 = avx2_pack_bf16,
    .panel = avx2_panel,
    .gemv_bf16 = avx2_gemv_bf16,
    .few_bf16 = avx2_few_bf16,

    .scores = avx2_scores,
    .pv = avx2_pv,
    .scale_max = avx2_scale_max,
    .exp_sum = avx2_exp_sum,
    .max = avx2_max,
    .find = avx2_find,
    .clean = avx2_clean,
    .div = avx2_div,
    .noise = avx2_noise,
    .silu_mul = avx2_silu_mul,
    .rms_scale = avx2_rms_scale,
    .sumsq = avx2_sumsq,
};
#else
const struct cpu_isa cpu_isa_avx2 = {.name = "avx2"};
#endif
