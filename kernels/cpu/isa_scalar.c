/* The scalar forms: what every other instruction set must reproduce bit for bit. Pure functions. */
#include "kernels/cpu/internal.h"

#include "kernels/cpu/fmath.h"

static void scalar_philox(uint32_t *out, uint32_t pos, uint32_t id, uint32_t k0, uint32_t k1)
{
    for (uint32_t i = 0; i < 64; i++)
        out[i] = fm_philox(pos, id + i, 0, k0, k1);
}

#define VEC(name) scalar_##name
#define VEC_FN
#include "kernels/cpu/vec.inc"

static bool usable(void)
{
    return true;
}

static float scalar_reduce(float *a)
{
    for (int w = CPU_LANES / 2; w >= 1; w /= 2)
        for (int i = 0; i < w; i++)
            a[i] += a[i + w];
    return a[0];
}

static float scalar_dot(const float *x, const float *w, int k)
{
    float a[CPU_LANES] = {0};
    int i = 0;
    for (; i + CPU_LANES <= k; i += CPU_LANES)
        for (int l = 0; l < CPU_LANES; l++)
            a[l] = fmaf(x[i + l], w[i + l], a[l]);
    if (i < k) /* the tail is padded with zeros, which turns a lane of -0 into +0 */
        for (int l = 0; l < CPU_LANES; l++)
            a[l] = i + l < k ? fmaf(x[i + l], w[i + l], a[l]) : fmaf(0.0f, 0.0f, a[l]);
    return scalar_reduce(a);
}

static void scalar_cvt_f16(float *dst, const uint16_t *src, int n)
{
    for (int i = 0; i < n; i++)
        dst[i] = dtype_f16_to_f32(src[i]);
}

/* Largest of x, NaN left out; *nan (may be NULL) becomes 1 when there was one. The sign of a zero
 * may differ between instruction sets here and in scale_max: nothing may depend on it. */
static float scalar_max(const float *x, int n, int *nan)
{
    float max = -INFINITY;
    int any = 0;
    for (int i = 0; i < n; i++) {
        max = x[i] > max ? x[i] : max;
        any |= x[i] != x[i];
    }
    if (nan)
        *nan = any;
    return max;
}

static float scalar_scale_max(float *s, int n, float scale)
{
    for (int i = 0; i < n; i++)
        s[i] = s[i] * scale;
    return scalar_max(s, n, NULL);
}

static void scalar_pack(float *dst, const float *src, int k)
{
    memcpy(dst, src, (size_t)k * sizeof *dst);
    memset(dst + k, 0, (size_t)(cpu_pad(k) - k) * sizeof *dst);
}

static void scalar_pack_bf16(float *dst, const uint16_t *src, int k)
{
    scalar_cvt_bf16(dst, src, k);
    memset(dst + k, 0, (size_t)(cpu_pad(k) - k) * sizeof *dst);
}

static void scalar_panel(const struct cpu_out *o, const float *x, int rows, const float *w,
                         int cols, int kp)
{
    for (int c = 0; c < cols; c++)
        for (int r = 0; r < rows; r++)
            cpu_out_put(o, r, c, scalar_dot(x + (int64_t)r * kp, w + (int64_t)c * kp, kp));
}

static void scalar_gemv_bf16(float *out, const float *x, const uint16_t *w, int cols, int k)
{
    for (int c = 0; c < cols; c++, w += k) {
        float a[CPU_LANES] = {0};
        for (int i = 0; i < k; i += CPU_LANES)
            for (int l = 0; l < CPU_LANES; l++) {
                bool in = i + l < k;
                a[l] = fmaf(in ? x[i + l] : 0.0f, in ? dtype_bf16_to_f32(w[i + l]) : 0.0f, a[l]);
            }
        out[c] = scalar_reduce(a);
    }
}

static void scalar_scores(float *s, int64_t lds, const float *q, int rows, const float *const *k,
                          int n, int kp)
{
    for (int r = 0; r < rows; r++)
        for (int j = 0; j < n; j++)
            s[r * lds + j] = scalar_dot(q + (int64_t)r * kp, k[j], kp);
}

static void scalar_pv(float *out, const float *p, int64_t ldp, int rows, const float *const *v,
                      int n, int dv)
{
    for (int r = 0; r < rows; r++)
        for (int j = 0; j < n; j++)
            for (int i = 0; i < dv; i++)
                out[(int64_t)r * dv + i] = fmaf(p[r * ldp + j], v[j][i], out[(int64_t)r * dv + i]);
}

const struct cpu_isa cpu_isa_scalar = {
    .name = "scalar",
    .usable = usable,
    .dot = scalar_dot,
    .cvt_bf16 = scalar_cvt_bf16,
    .cvt_f16 = scalar_cvt_f16,
    .cvt_f8 = scalar_cvt_f8,
    .pack = scalar_pack,
    .pack_bf16 = scalar_pack_bf16,
    .panel = scalar_panel,
    .gemv_bf16 = scalar_gemv_bf16,
    .scores = scalar_scores,
    .pv = scalar_pv,
    .scale_max = scalar_scale_max,
    .exp_sum = scalar_exp_sum,
    .max = scalar_max,
    .find = scalar_find,
    .clean = scalar_clean,
    .div = scalar_div,
    .noise = scalar_noise,
    .silu_mul = scalar_silu_mul,
    .rms_scale = scalar_rms_scale,
    .sumsq = scalar_sumsq,
};
