/* Goal: products of 9 to 112 rows compute what the CPU device computes, for every width of the
 * kernel's tile of rows, bf16 and fp8 weights, with and without bias and addition; a row's bits do
 * not depend on the rows beside it as long as the kernel divides the work the same way. Method:
 * rows that are bf16 already, so that only the order of sums differs; outputs start as NaN. The
 * kernel takes bf16 weights from 24 Mi elements a launch on (16 Mi above 16 rows): shapes of fp8
 * are small and odd, those of bf16 just large enough. */
#include <stdio.h>
#include <stdlib.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "test/gpu/twin.h"

struct shape {
    int n, k;
};

static const int row_counts[] = {9, 16, 17, 31, 33, 64, 65, 80, 96, 97, 112};
enum { FP8_COUNTS = 6 }; /* fp8 up to 64 rows */
static const int few_counts[] = {9, 17, 33, 64, 65, 96, 97, 112};
static const enum dtype dts[] = {DT_BF16, DT_F8E4M3};

static struct twin *rounded(struct twins *t, size_t n)
{
    struct twin *w = twin_rand(t, n, 1);
    float *f = w->p[SIDE_CPU];
    for (size_t i = 0; i < n; i++)
        f[i] = dtype_bf16_to_f32(dtype_f32_to_bf16(f[i]));
    twin_push(t, w);
    return w;
}

/* Every `step`-th number of rows from `first` on. */
static void one(enum dtype dt, int n, int k, size_t first, size_t step)
{
    float worst = 0;
    struct twins t;
    twins_open(&t);
    struct weight w = twin_weight(&t, dt, n, k, 1.0f / sqrtf((float)k));
    struct weight b = twin_weight(&t, DT_BF16, 1, n, 1), none = {0};
    int keep = t.n;
    for (size_t i = first; i < (dt == DT_F8E4M3 ? FP8_COUNTS : ARRAY_LEN(row_counts)); i += step) {
        int r = row_counts[i], ldo = n + (int)(i % 3);
        struct twin *x = rounded(&t, (size_t)r * (size_t)k);
        struct twin *out = twin_nans(&t, (size_t)r * (size_t)ldo);
        for (int acc = 0; acc < 2; acc++) {
            BOTH(&t, matmul,
                 SET({.out = P(out),
                      .x = P(x),
                      .w = w,
                      .bias = (i + (size_t)acc) % 2 ? none : b,
                      .rows = r,
                      .ldx = k,
                      .ldo = ldo,
                      .accumulate = acc == 1}));
            char what[64];
            snprintf(what, sizeof what, "%d x %d x %d, form %d", r, n, k, acc);
            float d = twin_near(&t, out, (size_t)r * (size_t)ldo, 1e-3f, 1e-4f, what);
            worst = d > worst ? d : worst;
        }
        twins_drop(&t, keep);
    }
    twins_close(&t);
    printf("wide %s n %d k %d: largest difference %.2g\n", dtype_name(dt), n, k, (double)worst);
}

START_TEST(wide_bf16)
{
    static const struct shape shapes[] = {
        {6144, 4096}, {4096, 4096}, {1764, 14336}, {20182, 1248}, {98310, 256}};
    for (size_t s = 0; s < (twin_small() ? 1 : ARRAY_LEN(shapes)); s++)
        one(DT_BF16, shapes[s].n, shapes[s].k, s, s ? 3 : 1);
}
END_TEST

START_TEST(wide_fp8)
{
    static const struct shape shapes[] = {{100, 512},  {320, 14336}, {777, 2048}, {96, 4096},
                                          {4096, 512}, {514, 576},   {64, 128},   {7168, 1088}};
    for (size_t s = 0; s < ARRAY_LEN(shapes) - twin_small(); s++)
        one(DT_F8E4M3, shapes[s].n, shapes[s].k, 0, 1);
}
END_TEST

START_TEST(wide_three)
{
    static const struct {
        int k, n[3];
    } shapes[][2] = {{{4096, {4096, 1024, 1024}}, {1024, {23000, 130, 1500}}},
                     {{1024, {777, 130, 64}}, {1024, {64, 96, 0}}}};
    for (size_t s = 0; s < 2; s++)
        for (size_t i = 0; i < ARRAY_LEN(few_counts); i++) {
            struct twins t;
            int r = few_counts[i], k = shapes[_i][s].k, m = 0;
            const int *n = shapes[_i][s].n;
            if ((twin_small() && _i == 0 && s + i != 1) || (dts[_i] == DT_F8E4M3 && r > 64))
                continue;
            twins_open(&t);
            struct weight w[3] = {{0}}, b[3] = {{0}}, norm = {0};
            struct twin *x = rounded(&t, (size_t)r * (size_t)k);
            struct twin *y = twin_nans(&t, (size_t)r * (size_t)k), *out[3] = {0};
            if (i % 2)
                norm = twin_weight(&t, DT_BF16, 1, k, 1);
            for (; m < 3 && n[m]; m++) {
                w[m] = twin_weight(&t, dts[_i], n[m], k, 1.0f / sqrtf((float)k));
                if (i % 3)
                    b[m] = twin_weight(&t, DT_BF16, 1, n[m], 1);
                out[m] = twin_nans(&t, (size_t)r * (size_t)n[m]);
            }
            BOTH(&t, proj,
                 SET({.x = P(x),
                      .norm = norm,
                      .y = P(y),
                      .rows = r,
                      .n = m,
                      .ldx = k,
                      .eps = 1e-5f,
                      .w = {w[0], w[1], w[2]},
                      .bias = {b[0], b[1], b[2]},
                      .out = {P(out[0]), P(out[1]), m > 2 ? P(out[2]) : NULL},
                      .ldo = {n[0], n[1], n[2]}}));
            for (int p = 0; p < m; p++) {
                char what[64];
                snprintf(what, sizeof what, "%d rows of weights %zu: product %d", r, s, p);
                twin_near(&t, out[p], (size_t)r * (size_t)n[p], norm.p ? 0.03f : 1e-3f,
                          norm.p ? 0.02f : 1e-4f, what);
            }
            twins_close(&t);
        }
}
END_TEST

static void mlp(enum dtype dt, enum dtype dt_down, int h, int n, size_t i)
{
    struct twins t;
    int r = row_counts[i];
    twins_open(&t);
    float z = 1.0f / sqrtf((float)h);
    struct weight none = {0}, norm = twin_weight(&t, DT_BF16, 1, h, 1);
    struct weight gate = twin_weight(&t, dt, n, h, z), up = twin_weight(&t, dt, n, h, z),
                  down = twin_weight(&t, dt_down, h, n, 1.0f / sqrtf((float)n)),
                  gb = twin_weight(&t, DT_BF16, 1, n, 1), ub = twin_weight(&t, DT_BF16, 1, n, 1),
                  db = twin_weight(&t, DT_BF16, 1, h, 1);
    size_t nh = (size_t)r * (size_t)h, ni = (size_t)r * (size_t)n;
    struct twin *x = rounded(&t, nh), *y = twin_nans(&t, nh), *g = twin_nans(&t, ni),
                *u = twin_nans(&t, ni), *out = i % 2 ? x : twin_rand(&t, nh, 1);
    BOTH(&t, mlp,
         SET({.out = P(out),
              .x = P(x),
              .norm = i % 2 ? norm : none,
              .y = P(y),
              .gate = gate,
              .up = up,
              .down = down,
              .gate_b = i % 3 ? gb : none,
              .up_b = i % 4 > 1 ? ub : none,
              .down_b = i % 3 == 1 ? db : none,
              .g = P(g),
              .u = P(u),
              .rows = r,
              .ldx = h,
              .ldo = h,
              .eps = 1e-5f}));
    char what[64];
    snprintf(what, sizeof what, "mlp %d x %d, %d rows", h, n, r);
    twin_near(&t, out, nh, 0.06f, 0.02f, what);
    twins_close(&t);
}

START_TEST(wide_mlp)
{
    /* fp8, types mixed, bf16 */
    static const struct shape small[] = {{512, 1408}, {4096, 320}, {576, 1344}},
                              large[] = {{4096, 6208}, {1056, 23840}};
    enum dtype dt = dts[_i & 1], dt_down = dts[_i >> 1];
    bool fp8 = dt == DT_F8E4M3 && dt_down == DT_F8E4M3, bf16 = dt == DT_BF16 && dt == dt_down;
    const struct shape *shapes = fp8 ? small : large;
    for (size_t s = 0; s < (fp8 ? ARRAY_LEN(small) : bf16 ? 2 : 1); s++)
        for (size_t i = 0; i < ARRAY_LEN(row_counts); i++)
            if (fp8 || (i % 2 == s && (!twin_small() || i / 2 == s)))
                mlp(dt, dt_down, shapes[s].n, shapes[s].k, i);
}
END_TEST

START_TEST(wide_bits)
{
    enum { N = 6144, K = 4096, R = 112 };
    struct err e = {0};
    struct twins t;
    twins_open(&t);
    struct weight w = twin_weight(&t, DT_BF16, N, K, 1);
    struct twin *x = twin_rand(&t, (size_t)R * K, 1), *out = twin_nans(&t, (size_t)R * N);
    size_t bytes = (size_t)9 * N * sizeof(float);
    char *first = mem_alloc(bytes), *now = mem_alloc(bytes);
    for (size_t i = 0; i < 2 * ARRAY_LEN(row_counts); i++) {
        struct op_matmul a = {.out = out->p[SIDE_GPU],
                              .x = x->p[SIDE_GPU],
                              .w = w,
                              .rows = row_counts[i / 2],
                              .ldx = K,
                              .ldo = N};
        ck_assert_int_eq(dev_cuda.ops->matmul(t.gpu, &a), OK);
        ck_assert_int_eq(dev_cuda.copy_out(t.gpu, i ? now : first, a.out, bytes, &e), OK);
        ck_assert_msg(i == 0 || !memcmp(now, first, bytes), "%d rows: other bits", a.rows);
    }
    mem_free(first);
    mem_free(now);
    twins_close(&t);
}
END_TEST

Suite *suite_gpu_wide(void);
Suite *suite_gpu_wide(void)
{
    Suite *s = suite_create("gpu_wide");
    TWIN_CASE(s, wide_bf16, 1);
    TWIN_CASE(s, wide_fp8, 1);
    TWIN_CASE(s, wide_three, 2);
    TWIN_CASE(s, wide_mlp, 4);
    TWIN_CASE(s, wide_bits, 1);
    return s;
}
