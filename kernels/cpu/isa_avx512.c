/* AVX-512 (F, BW, VL) forms; see isa_scalar.c for what they compute. One vector is the 16 lanes of
 * the fixed order, so panels keep their rows in plain order. Pure functions. */
#include "kernels/cpu/isa_x86.h"

#if defined(__x86_64__)
#include "kernels/cpu/fmath.h"

#define FN __attribute__((target("avx512f,avx512bw,avx512vl,avx2,fma,f16c")))
#define VEC(name) avx512_##name
#define VEC_FN FN
#define avx512_philox avx2_philox
#include "kernels/cpu/vec.inc"

static bool usable(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && cpu_isa_avx2.usable();
}

/* Adds (i, i+8). */
FN static inline __m256 fold(__m512 a)
{
    return _mm256_add_ps(_mm512_castps512_ps256(a),
                         _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(a), 1)));
}

FN static inline __mmask16 tail_mask(int n)
{
    return (__mmask16)((1u << n) - 1);
}

FN static float avx512_dot(const float *x, const float *w, int k)
{
    __m512 a = _mm512_setzero_ps();
    int i = 0;
    for (; i + 16 <= k; i += 16)
        a = _mm512_fmadd_ps(_mm512_loadu_ps(x + i), _mm512_loadu_ps(w + i), a);
    if (i < k) {
        __mmask16 m = tail_mask(k - i);
        a = _mm512_fmadd_ps(_mm512_maskz_loadu_ps(m, x + i), _mm512_maskz_loadu_ps(m, w + i), a);
    }
    __m256 s = fold(a);
    return _mm_cvtss_f32(reduce4(s, s, s, s));
}

FN static void avx512_pack(float *dst, const float *src, int k)
{
    memcpy(dst, src, (size_t)k * sizeof *dst);
    memset(dst + k, 0, (size_t)(cpu_pad(k) - k) * sizeof *dst);
}

FN static inline __m512 load_bf16(const uint16_t *p)
{
    return _mm512_castsi512_ps(
        _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)p)), 16));
}

FN static void avx512_pack_bf16(float *dst, const uint16_t *src, int k)
{
    int i = 0;
    for (; i + 16 <= k; i += 16)
        _mm512_storeu_ps(dst + i, load_bf16(src + i));
    if (i < k) {
        uint16_t t[16] = {0};
        memcpy(t, src + i, (size_t)(k - i) * sizeof *t);
        _mm512_storeu_ps(dst + i, load_bf16(t));
    }
}

enum { TR = 6, TC = 4 }; /* 24 accumulators, 4 rows of weights, 1 of x */

/* Tile of `rows` (a constant after inlining) x 4; wp holds rows of weights. */
FN static inline __attribute__((always_inline)) void tile(const struct cpu_out *o, int r0, int c0,
                                                          int nc, const float *x, int64_t xs,
                                                          const float *const *wp, int kp, int rows)
{
    __m512 a[TR][TC];
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < TC; c++)
            a[r][c] = _mm512_setzero_ps();
    const float *w0 = wp[0], *w1 = wp[1], *w2 = wp[2], *w3 = wp[3];
    for (int k = 0; k < kp; k += 16) {
        __m512 u0 = _mm512_loadu_ps(w0 + k), u1 = _mm512_loadu_ps(w1 + k);
        __m512 u2 = _mm512_loadu_ps(w2 + k), u3 = _mm512_loadu_ps(w3 + k);
        for (int r = 0; r < rows; r++) {
            __m512 v = _mm512_loadu_ps(x + r * xs + k);
            a[r][0] = _mm512_fmadd_ps(v, u0, a[r][0]);
            a[r][1] = _mm512_fmadd_ps(v, u1, a[r][1]);
            a[r][2] = _mm512_fmadd_ps(v, u2, a[r][2]);
            a[r][3] = _mm512_fmadd_ps(v, u3, a[r][3]);
        }
    }
    for (int r = 0; r < rows; r++)
        put4(o, r0 + r, c0, nc,
             reduce4(fold(a[r][0]), fold(a[r][1]), fold(a[r][2]), fold(a[r][3])));
}

#define TILE_FN(n)                                                                                 \
    FN static __attribute__((noinline)) void tile_##n(const struct cpu_out *o, int r0, int c0,     \
                                                      int nc, const float *x, int64_t xs,          \
                                                      const float *const *wp, int kp)              \
    {                                                                                              \
        tile(o, r0, c0, nc, x, xs, wp, kp, n);                                                     \
    }
TILE_FN(1)
TILE_FN(2)
TILE_FN(3)
TILE_FN(6)
#undef TILE_FN

/* All rows against four weight rows: tiles of 6, then 3, 2, 1. */
FN static void all_rows(const struct cpu_out *o, int c, int nc, const float *x, int rows,
                        const float *const *wp, int kp)
{
    int r = 0;
    for (; r + 6 <= rows; r += 6)
        tile_6(o, r, c, nc, x + (int64_t)r * kp, kp, wp, kp);
    for (; r + 3 <= rows; r += 3)
        tile_3(o, r, c, nc, x + (int64_t)r * kp, kp, wp, kp);
    if (r + 2 == rows)
        tile_2(o, r, c, nc, x + (int64_t)r * kp, kp, wp, kp);
    else if (r + 1 == rows)
        tile_1(o, r, c, nc, x + (int64_t)r * kp, kp, wp, kp);
}

FN static void avx512_panel(const struct cpu_out *o, const float *x, int rows, const float *w,
                            int cols, int kp)
{
    enum { GROUP = 12 }; /* rows that share a read of the weights from the second-level cache */
    for (int r0 = 0; r0 < rows; r0 += GROUP) {
        int n = rows - r0 < GROUP ? rows - r0 : GROUP;
        struct cpu_out part = *o;
        part.out += r0 * o->ldo;
        for (int c = 0; c < cols; c += TC) {
            int nc = cols - c < TC ? cols - c : TC;
            const float *wp[TC];
            for (int i = 0; i < TC; i++) /* past the last column: any row, not stored */
                wp[i] = w + (int64_t)(i < nc ? c + i : c) * kp;
            all_rows(&part, c, nc, x + (int64_t)r0 * kp, n, wp, kp);
        }
    }
}

FN static void avx512_gemv_bf16(float *out, const float *x, const uint16_t *w, int cols, int k)
{
    int body = k / 16 * 16;
    for (int c = 0; c < cols; c += 4) {
        const uint16_t *p[4];
        __m512 a[4];
        for (int i = 0; i < 4; i++) {
            p[i] = w + (int64_t)(c + i < cols ? c + i : c) * k;
            a[i] = _mm512_setzero_ps();
        }
        for (int s = 0; s < body; s += 16) {
            __m512 v = _mm512_loadu_ps(x + s);
            for (int i = 0; i < 4; i++) {
                _mm_prefetch((const char *)(p[i] + s + 4 * (int64_t)k), _MM_HINT_T0);
                a[i] = _mm512_fmadd_ps(v, load_bf16(p[i] + s), a[i]);
            }
        }
        if (body < k) {
            __m512 v = _mm512_maskz_loadu_ps(tail_mask(k - body), x + body);
            for (int i = 0; i < 4; i++) {
                uint16_t t[16] = {0};
                memcpy(t, p[i] + body, (size_t)(k - body) * sizeof *t);
                a[i] = _mm512_fmadd_ps(v, load_bf16(t), a[i]);
            }
        }
        float t[4];
        _mm_storeu_ps(t, reduce4(fold(a[0]), fold(a[1]), fold(a[2]), fold(a[3])));
        for (int i = 0; i < 4 && c + i < cols; i++)
            out[c + i] = t[i];
    }
}

/* `rows` (a constant after inlining) rows of x against four rows of weights. */
FN static inline __attribute__((always_inline)) void few_tile(const struct cpu_out *o, int r0,
                                                              int c0, int nc, const float *x,
                                                              int64_t xs, const uint16_t *const *wp,
                                                              int k, int rows)
{
    __m512 a[TR][TC];
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < TC; c++)
            a[r][c] = _mm512_setzero_ps();
    int body = k / 16 * 16;
    for (int s = 0; s < body; s += 16) {
        __m512 u[TC];
        for (int c = 0; c < TC; c++) {
            _mm_prefetch((const char *)(wp[c] + s + TC * (int64_t)k), _MM_HINT_T0);
            u[c] = load_bf16(wp[c] + s);
        }
        for (int r = 0; r < rows; r++) {
            __m512 v = _mm512_loadu_ps(x + r * xs + s);
            for (int c = 0; c < TC; c++)
                a[r][c] = _mm512_fmadd_ps(v, u[c], a[r][c]);
        }
    }
    for (int c = 0; c < TC && body < k; c++) { /* rows of x are padded with zeros */
        uint16_t t[16] = {0};
        memcpy(t, wp[c] + body, (size_t)(k - body) * sizeof *t);
        for (int r = 0; r < rows; r++)
            a[r][c] = _mm512_fmadd_ps(_mm512_loadu_ps(x + r * xs + body), load_bf16(t), a[r][c]);
    }
    for (int r = 0; r < rows; r++)
        put4(o, r0 + r, c0, nc,
             reduce4(fold(a[r][0]), fold(a[r][1]), fold(a[r][2]), fold(a[r][3])));
}

#define FEW_FN(n)                                                                                  \
    FN static __attribute__((noinline)) void few_##n(const struct cpu_out *o, int r0, int c0,      \
                                                     int nc, const float *x, int64_t xs,           \
                                                     const uint16_t *const *wp, int k)             \
    {                                                                                              \
        few_tile(o, r0, c0, nc, x, xs, wp, k, n);                                                  \
    }
FEW_FN(1)
FEW_FN(2)
FEW_FN(3)
FEW_FN(4)
FEW_FN(5)
FEW_FN(6)
#undef FEW_FN

FN static void avx512_few_bf16(const struct cpu_out *o, const float *x, int rows, const uint16_t *w,
                               int cols, int k)
{
    typedef void few_fn(const struct cpu_out *, int, int, int, const float *, int64_t,
                        const uint16_t *const *, int);
    static few_fn *const fn[TR + 1] = {NULL, few_1, few_2, few_3, few_4, few_5, few_6};
    int64_t kp = cpu_pad(k);
    int parts = (rows + TR - 1) / TR;
    for (int c = 0; c < cols; c += TC) {
        int nc = cols - c < TC ? cols - c : TC;
        const uint16_t *wp[TC];
        for (int i = 0; i < TC; i++) /* past the last column: any row, not stored */
            wp[i] = w + (int64_t)(i < nc ? c + i : c) * k;
        for (int r = 0, left = parts; left > 0; left--) { /* in equal tiles */
            int n = (rows - r) / left;
            fn[n](o, r, c, nc, x + r * kp, kp, wp, k);
            r += n;
        }
    }
}

FN static void avx512_scores(float *s, int64_t lds, const float *q, int rows, const float *const *k,
                             int n, int kp)
{
    struct cpu_out o = {s, lds, false, NULL};
    for (int j = 0; j < n; j += TC) {
        int nc = n - j < TC ? n - j : TC;
        const float *wp[TC];
        for (int i = 0; i < TC; i++)
            wp[i] = k[i < nc ? j + i : j];
        all_rows(&o, j, nc, q, rows, wp, kp);
    }
}

enum { PV_ROWS = 3 };

FN static inline __attribute__((always_inline)) void pv_tile(float *out, const float *p,
                                                             int64_t ldp, int rows,
                                                             const float *const *v, int n, int dv,
                                                             int at, int vecs)
{
    __m512 a[PV_ROWS][4];
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < vecs; c++)
            a[r][c] = _mm512_loadu_ps(out + (int64_t)r * dv + at + 16 * c);
    for (int j = 0; j < n; j++) {
        const float *vj = v[j] + at;
        for (int c = 0; c < vecs; c++) {
            __m512 u = _mm512_loadu_ps(vj + 16 * c);
            for (int r = 0; r < rows; r++)
                a[r][c] = _mm512_fmadd_ps(_mm512_set1_ps(p[r * ldp + j]), u, a[r][c]);
        }
    }
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < vecs; c++)
            _mm512_storeu_ps(out + (int64_t)r * dv + at + 16 * c, a[r][c]);
}

#define PV_FN(n)                                                                                   \
    FN static __attribute__((noinline)) void pv_##n(float *out, const float *p, int64_t ldp,       \
                                                    const float *const *v, int keys, int dv)       \
    {                                                                                              \
        int at = 0;                                                                                \
        for (; at + 64 <= dv; at += 64)                                                            \
            pv_tile(out, p, ldp, n, v, keys, dv, at, 4);                                           \
        for (; at + 16 <= dv; at += 16)                                                            \
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

FN static void avx512_pv(float *out, const float *p, int64_t ldp, int rows, const float *const *v,
                         int n, int dv)
{
    for (; rows >= 3; rows -= 3, out += (int64_t)3 * dv, p += 3 * ldp)
        pv_3(out, p, ldp, v, n, dv);
    if (rows == 2)
        pv_2(out, p, ldp, v, n, dv);
    else if (rows == 1)
        pv_1(out, p, ldp, v, n, dv);
}

const struct cpu_isa cpu_isa_avx512 = {
    .name = "avx512",
    .usable = usable,
    .dot = avx512_dot,
    .cvt_bf16 = avx512_cvt_bf16,
    .cvt_f16 = avx2_cvt_f16,
    .cvt_f8 = avx512_cvt_f8,
    .pack = avx512_pack,
    .pack_bf16 = avx512_pack_bf16,
    .panel = avx512_panel,
    .gemv_bf16 = avx512_gemv_bf16,
    .few_bf16 = avx512_few_bf16,
    .scores = avx512_scores,
    .pv = avx512_pv,
    .scale_max = avx2_scale_max,
    .exp_sum = avx512_exp_sum,
    .max = avx2_max,
    .find = avx512_find,
    .clean = avx512_clean,
    .div = avx512_div,
    .noise = avx512_noise,
    .silu_mul = avx512_silu_mul,
    .rms_scale = avx512_rms_scale,
    .sumsq = avx512_sumsq,
};
#else
const struct cpu_isa cpu_isa_avx512 = {.name = "avx512"};
#endif
