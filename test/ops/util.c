/* See the header. */
#include "test/ops/util.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "test/sanitize.h"

#define T_CALL(name)                                                                               \
    int t_call_##name(struct dev *d, const void *args)                                             \
    {                                                                                              \
        return dev_cpu.ops->name(d, args);                                                         \
    }
OP_LIST(T_CALL)
#undef T_CALL

void t_open(struct t_devs *t)
{
    t->n = 0;
    int n_isa = 0;
    while (cpu_isa_list[n_isa])
        n_isa++;
    for (int i = n_isa - 1; i >= 0; i--) {
        if (!cpu_isa_list[i]->usable || !cpu_isa_list[i]->usable())
            continue;
        for (int threads = 1; threads <= 2; threads++) {
            if (TSAN ? threads == 1 || i > 0 : SANITIZED && (threads == 1) != (i == 0))
                continue; /* every instruction set once, threads where they matter */
            struct dev_conf c = {0, threads};
            struct err e = {0};
            ck_assert_int_eq(dev_cpu.open(&t->d[t->n], &c, &e), OK);
            t->d[t->n]->isa = cpu_isa_list[i];
            snprintf(t->name[t->n], sizeof t->name[0], "%s, %d threads", cpu_isa_list[i]->name,
                     threads);
            t->n++;
        }
    }
    ck_assert(TSAN || strcmp(t->d[0]->isa->name, "scalar") == 0);
}

void t_close(struct t_devs *t)
{
    for (int i = 0; i < t->n; i++)
        dev_cpu.close(t->d[i]);
}

void t_same_bits(const char *what, const void *a, const void *b, size_t bytes)
{
    if (memcmp(a, b, bytes) == 0)
        return;
    const unsigned char *x = a, *y = b;
    size_t i = 0;
    while (x[i] == y[i])
        i++;
    float fx = 0, fy = 0;
    size_t at = i / 4 * 4;
    memcpy(&fx, x + at, bytes - at < 4 ? bytes - at : 4);
    memcpy(&fy, y + at, bytes - at < 4 ? bytes - at : 4);
    ck_abort_msg("%s: bits differ at byte %zu of %zu: as floats %.9g and %.9g", what, i, bytes,
                 (double)fx, (double)fy);
}

static void restore(const struct t_out *out, int n, void *const *from)
{
    for (int i = 0; i < n; i++)
        memcpy(out[i].p, from[i], out[i].bytes);
}

static void one_device(struct dev *d, const char *name, const char *what, t_call *call,
                       const void *args, const struct t_out *out, int n, void *const *start,
                       void **want)
{
    char msg[160];
    struct err e = {0};
    restore(out, n, start);
    ck_assert_int_eq(call(d, args), OK);
    for (int i = 0; i < n; i++) {
        if (!want[i])
            want[i] = mem_dup(out[i].p, out[i].bytes);
        snprintf(msg, sizeof msg, "%s, output %d, %s", what, i, name);
        t_same_bits(msg, want[i], out[i].p, out[i].bytes);
    }
    struct dev_graph *g;
    ck_assert_int_eq(dev_cpu.record_begin(d, &e), OK);
    ck_assert_int_eq(call(d, args), OK);
    ck_assert_int_eq(dev_cpu.record_end(d, &g, &e), OK);
    for (int k = 0; k < 2; k++) {
        restore(out, n, start);
        ck_assert_int_eq(dev_cpu.replay(d, g, &e), OK);
        for (int i = 0; i < n; i++) {
            snprintf(msg, sizeof msg, "%s, output %d, %s, replay %d", what, i, name, k);
            t_same_bits(msg, want[i], out[i].p, out[i].bytes);
        }
    }
    dev_cpu.graph_free(d, g);
}

void t_everywhere(const struct t_devs *t, const char *what, t_call *call, const void *args,
                  const struct t_out *out, int n)
{
    void *start[8], *want[8] = {0};
    ck_assert_int_le(n, 8);
    for (int i = 0; i < n; i++)
        start[i] = mem_dup(out[i].p, out[i].bytes);
    for (int i = 0; i < t->n; i++)
        one_device(t->d[i], t->name[i], what, call, args, out, n, start, want);
    for (int i = 0; i < n; i++) {
        mem_free(start[i]);
        mem_free(want[i]);
    }
}

float *t_randf(struct rng *r, size_t n, double scale)
{
    float *p = mem_aligned(64, n * sizeof *p);
    for (size_t i = 0; i < n; i++)
        p[i] = (float)(rng_normal(r) * scale);
    return p;
}

struct weight t_weight(struct rng *r, enum dtype dt, int n, int k, double scale, double **val)
{
    size_t count = (size_t)n * (size_t)k;
    int sk = (k + 127) / 128, sn = (n + 127) / 128;
    struct weight w = {NULL, dt, n, k, NULL, DT_NONE};
    unsigned char *p = mem_aligned(64, count * dtype_size(dt));
    float *s = NULL;
    if (dt == DT_F8E4M3) {
        s = t_randf(r, (size_t)sn * (size_t)sk, 1);
        for (int i = 0; i < sn * sk; i++)
            s[i] = (float)scale * (0.005f + 0.01f * fabsf(s[i]));
        w.scale = s;
        w.scale_dt = DT_F32;
    }
    double *v = mem_alloc(count * sizeof *v);
    for (size_t i = 0; i < count; i++) {
        float f = (float)(rng_normal(r) * scale);
        uint64_t bits = rng_u64(r);
        if (dt == DT_F32) {
            memcpy(p + i * 4, &f, 4);
        } else if (dt == DT_BF16) {
            uint16_t h = dtype_f32_to_bf16(f);
            memcpy(p + i * 2, &h, 2);
        } else if (dt == DT_F16) { /* exponents 0 (subnormal) to 15: at most 2 */
            uint16_t h = (uint16_t)(bits & 0xbfffu);
            memcpy(p + i * 2, &h, 2);
        } else {
            uint8_t b = (uint8_t)bits;
            p[i] = (b & 0x7f) == 0x7f ? 0x7e : b;
        }
        size_t row = i / (size_t)k, col = i % (size_t)k;
        v[i] = dt == DT_F8E4M3 ? (double)dtype_load(p, dt, (int64_t)i) *
                                     (double)s[row / 128 * (size_t)sk + col / 128]
                               : (double)dtype_load(p, dt, (int64_t)i);
    }
    w.p = p;
    *val = v;
    return w;
}

void t_weight_free(struct weight *w)
{
    mem_free((void *)w->p);
    mem_free((void *)w->scale);
}

void t_close_to(const char *what, const float *got, const double *want, size_t n, struct tol tol)
{
    double err = 0, ref = 0;
    for (size_t i = 0; i < n; i++) {
        double g = (double)got[i], w = want[i];
        if (g != g || w != w || isinf(g) || isinf(w)) {
            if ((g != g && w != w) || g == w)
                continue;
            ck_abort_msg("%s: element %zu is %.9g, want %.9g", what, i, g, w);
        }
        double diff = fabs(g - w);
        if (diff > tol.abs && diff > tol.rel * fabs(w))
            ck_abort_msg("%s: element %zu is %.9g, want %.9g: off by %.3g, allowed %.3g or %.3g "
                         "relative",
                         what, i, g, w, diff, tol.abs, tol.rel);
        err += diff * diff;
        ref += w * w;
    }
    if (ref > 0 && err / ref > tol.nmse)
        ck_abort_msg("%s: normalised mean square error %.3g, allowed %.3g", what, err / ref,
                     tol.nmse);
}
