/* Goal: products of small weights keep fp32's precision at any number of rows, and a row's bits do
 * not depend on how many rows there are: the kernels for up to 8 rows and for more add in one
 * order. Method: the largest pass against the CPU device, shorter passes over the first rows
 * against it bit for bit. K with one chunk and with many, with a last chunk that is not full, and
 * odd; widths that leave tiles of weight rows part empty; norm, bias, SiLU and addition. */
#include <stdio.h>
#include <stdlib.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "test/gpu/twin.h"

static const int row_counts[] = {1, 2, 7, 8, 9, 16, 17, 33, 64, 65, 128, 500};
enum { R = 1100, N_ROWS = sizeof row_counts / sizeof *row_counts };

static float *out_of(struct twins *t, const struct twin *w, size_t n)
{
    struct err e = {0};
    float *v = mem_alloc(n * sizeof *v);
    ck_assert_int_eq(dev_cuda.copy_out(t->gpu, v, w->p[SIDE_GPU], n * sizeof *v, &e), OK);
    return v;
}

/* The GPU's first n floats of w are those of `all`. */
static void same_rows(struct twins *t, const struct twin *w, const float *all, size_t n,
                      const char *what, int rows)
{
    float *v = out_of(t, w, n);
    size_t i = 0;
    while (i < n && !memcmp(v + i, all + i, sizeof *v))
        i++;
    ck_assert_msg(i == n, "%s, %d rows [%zu]: %.9g, with more rows %.9g", what, rows, i,
                  (double)v[i < n ? i : 0], (double)all[i < n ? i : 0]);
    mem_free(v);
}

START_TEST(products)
{
    static const struct {
        int k, n[3];
    } cases[] = {{192, {256, 64, 64}},  {48, {192, 0, 0}},   {400, {192, 0, 0}},
                 {8, {33, 1, 0}},       {1000, {250, 0, 0}}, {576, {320, 64, 64}},
                 {1024, {200, 40, 16}}, {896, {192, 0, 0}},  {192, {4096, 0, 0}}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        for (int form = 0; form < 4; form++) {
            struct twins t;
            twins_open(&t);
            int k = cases[i].k, ldx = k + 4, n = 0, rows = twin_small() ? 70 : R;
            float s = 1.0f / sqrtf((float)k), *all[3];
            struct weight w[3] = {{0}}, b[3] = {{0}}, norm = {0};
            struct twin *x = twin_rand(&t, (size_t)(rows * ldx), 1), *out[3] = {0};
            struct twin *y = twin_nans(&t, (size_t)(rows * k));
            if (form & 1)
                norm = twin_weight(&t, form == 3 ? DT_F32 : DT_BF16, 1, k, 1);
            for (; n < 3 && cases[i].n[n]; n++) {
                w[n] = twin_weight(&t, DT_BF16, cases[i].n[n], k, s);
                if (form & 2)
                    b[n] = twin_weight(&t, n ? DT_BF16 : DT_F32, 1, cases[i].n[n], 1);
                out[n] = twin_nans(&t, (size_t)(rows * (cases[i].n[n] + n)));
            }
            char what[64];
            snprintf(what, sizeof what, "products case %zu form %d", i, form);
            for (int j = -1; j < N_ROWS; j++) {
                int r = j < 0 ? rows : row_counts[j];
                struct op_proj a[2];
                for (int side = 0; side < 2; side++)
                    a[side] = (struct op_proj){
                        .x = P(x),
                        .norm = norm,
                        .y = P(y),
                        .rows = r,
                        .n = n,
                        .ldx = ldx,
                        .eps = 1e-5f,
                        .w = {w[0], w[1], w[2]},
                        .bias = {b[0], b[1], b[2]},
                        .out = {P(out[0]), n > 1 ? P(out[1]) : NULL, n > 2 ? P(out[2]) : NULL},
                        .ldo = {cases[i].n[0], cases[i].n[1] + 1, cases[i].n[2] + 2}};
                if (r > rows)
                    continue;
                if (j < 0)
                    ck_assert_int_eq(dev_cpu.ops->proj(t.cpu, &a[0]), OK);
                for (int p = 0; p < n; p++)
                    if (j >= 0) /* NaN again on the GPU */
                        twin_push(&t, out[p]);
                ck_assert_int_eq(dev_cuda.ops->proj(t.gpu, &a[1]), OK);
                for (int p = 0; p < n; p++) {
                    size_t ld = (size_t)(cases[i].n[p] + p);
                    if (j >= 0) {
                        same_rows(&t, out[p], all[p], (size_t)(r - 1) * ld + ld - (size_t)p, what,
                                  r);
                        continue;
                    }
                    float d = twin_near(&t, out[p], (size_t)rows * ld, 1e-4f, 1e-4f, what);
                    if (form == 1 && p == 0)
                        printf("%d x %d x %d: largest difference %.2g\n", rows, cases[i].n[0], k,
                               (double)d);
                    all[p] = out_of(&t, out[p], (size_t)rows * ld);
                    for (size_t e = 0; e < (size_t)rows * ld; e++)
                        ((float *)out[p]->p[0])[e] = NAN;
                }
            }
            for (int p = 0; p < n; p++)
                mem_free(all[p]);
            twins_close(&t);
        }
}
END_TEST

START_TEST(mlp)
{
    static const struct {
        int h, inter;
    } cases[] = {{192, 400}, {192, 896}, {192, 48}, {256, 1000}, {40, 24}, {1016, 120}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        for (int form = 0; form < 4; form++) {
            struct twins t;
            twins_open(&t);
            int h = cases[i].h, n = cases[i].inter, rows = twin_small() ? 70 : R;
            float s = 1.0f / sqrtf((float)h), z = 1.0f / sqrtf((float)n), *all = NULL;
            struct weight none = {0}, norm = twin_weight(&t, DT_BF16, 1, h, 1);
            struct weight gate = twin_weight(&t, DT_BF16, n, h, s),
                          up = twin_weight(&t, DT_BF16, n, h, s),
                          down = twin_weight(&t, DT_BF16, h, n, z);
            struct weight gb = twin_weight(&t, DT_BF16, 1, n, 1),
                          db = twin_weight(&t, DT_BF16, 1, h, 1);
            size_t nh = (size_t)(rows * h), ni = (size_t)(rows * n);
            struct twin *x = twin_rand(&t, nh, 1), *y = twin_nans(&t, nh), *g = twin_nans(&t, ni),
                        *u = twin_nans(&t, ni), *out = twin_rand(&t, nh, 1);
            float *before = mem_alloc(nh * sizeof *before);
            memcpy(before, out->p[0], nh * sizeof *before);
            char what[64];
            snprintf(what, sizeof what, "mlp case %zu form %d", i, form);
            for (int j = -1; j < N_ROWS; j++) {
                int r = j < 0 ? rows : row_counts[j];
                if (r > rows)
                    continue;
                for (int side = j < 0 ? 0 : 1; side < 2; side++) {
                    struct op_mlp a = {.out = P(out),
                                       .x = P(x),
                                       .norm = form & 1 ? norm : none,
                                       .y = P(y),
                                       .gate = gate,
                                       .up = up,
                                       .down = down,
                                       .gate_b = form & 2 ? gb : none,
                                       .up_b = form & 2 ? gb : none,
                                       .down_b = form & 2 ? db : none,
                                       .g = P(g),
                                       .u = P(u),
                                       .rows = r,
                                       .ldx = h,
                                       .ldo = h,
                                       .eps = 1e-5f};
                    const struct dev_ops *o = side ? &dev_cuda : &dev_cpu;
                    ck_assert_int_eq(o->ops->mlp(side ? t.gpu : t.cpu, &a), OK);
                }
                if (j < 0) {
                    float d = twin_near(&t, out, nh, 3e-4f, 1e-4f, what);
                    printf("%s: largest difference %.2g\n", what, (double)d);
                    all = out_of(&t, out, nh);
                    memcpy(out->p[0], before, nh * sizeof *before);
                } else {
                    same_rows(&t, out, all, (size_t)(r * h), what, r);
                }
                twin_push(&t, out); /* what the next starts from */
            }
            mem_free(before);
            mem_free(all);
            twins_close(&t);
        }
}
END_TEST

Suite *suite_gpu_small(void);
Suite *suite_gpu_small(void)
{
    Suite *s = suite_create("gpu_small");
    TWIN_CASE(s, products, 1);
    TWIN_CASE(s, mlp, 1);
    return s;
}
