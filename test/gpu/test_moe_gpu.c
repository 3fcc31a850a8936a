/* Goal: routing, experts and per-head products of the CUDA device at the sizes that choose between
 * its kernels. Method: as in test_ops_gpu.c; the work area starts as NaN, one pick is none, and the
 * operation runs again, recorded, which must give the same bits. */
#include <stdio.h>
#include <stdlib.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "test/gpu/twin.h"

/* Descriptions of `count` weights [n, k] that lie one behind the other. */
static struct twin *stack(struct twins *t, enum dtype dt, int count, int64_t n, int64_t k)
{
    struct weight all = twin_weight(t, dt, count * n, k, 1 / sqrtf((float)k));
    struct twin *w = twin_new(t, (size_t)count * sizeof(struct weight));
    struct weight *host = w->p[0], *dev = MEM_ARRAY(struct weight, count);
    struct err e = {0};
    for (int i = 0; i < count; i++) {
        host[i] = all;
        host[i].n = n;
        host[i].p = (const char *)all.p + (size_t)(i * n * k) * dtype_size(dt);
        if (all.scale)
            host[i].scale = (const float *)all.scale + i * (n / 128) * ((k + 127) / 128);
        dev[i] = host[i];
        dev[i].p = dev_cuda.resolve(t->gpu, host[i].p);
        if (all.scale)
            dev[i].scale = dev_cuda.resolve(t->gpu, host[i].scale);
    }
    ck_assert_int_eq(dev_cuda.copy_in(t->gpu, w->p[1], dev, (size_t)count * sizeof *dev, &e), OK);
    ck_assert_int_eq(dev_cuda.sync(t->gpu, &e), OK);
    mem_free(dev);
    return w;
}

struct size {
    enum dtype dt;
    int hidden, inter, shared, experts, topk;
    int rows[8]; /* ascending, 0 ends */
};

static void one_call(struct twins *t, const struct size *z, struct twin *const *desc,
                     const struct weight *sh, struct weight router, struct weight norm, int rows)
{
    size_t R = (size_t)rows, K = (size_t)z->topk, H = (size_t)z->hidden;
    int first = t->n;
    struct twin *x = twin_rand(t, R * H, 1), *out = twin_rand(t, R * H, 1);
    struct twin *y = twin_nans(t, R * H);
    struct twin *logits = twin_nans(t, R * (size_t)z->experts), *wt = twin_nans(t, R * K);
    struct twin *ids = twin_new(t, R * K * sizeof(int32_t));
    struct twin *work = twin_nans(t, moe_ffn_work(R, K, (size_t)z->inter, (size_t)z->shared, H));
    struct twin *again = twin_new(t, R * H * sizeof(float));
    memcpy(again->p[0], out->p[0], R * H * sizeof(float));
    twin_push(t, again);
    BOTH(t, moe_route,
         SET({.ids = P(ids),
              .weights = P(wt),
              .logits = P(logits),
              .router = router,
              .x = P(x),
              .norm = norm,
              .y = P(y),
              .eps = 1e-6f,
              .rows = rows,
              .experts = z->experts,
              .topk = z->topk,
              .n_group = 1,
              .topk_group = 1,
              .score = MOE_SOFTMAX,
              .group = MOE_GROUP_NONE,
              .normalize = true,
              .scale = 1.5f}));
    twin_near(t, logits, R * (size_t)z->experts, 2e-4f, 1e-4f, "router");
    twin_same(t, ids, R * K * sizeof(int32_t), "router ids");
    twin_near(t, wt, R * K, 2e-4f, 2e-4f, "router weights");
    if (norm.p) {
        twin_near(t, y, R * H, 1e-5f, 1e-5f, "router rows");
        twin_push(t, y);
        x = y;
    }
    ((int32_t *)ids->p[0])[R * K / 2] = -1;
    if (R > 2) /* a busy expert */
        for (size_t i = 0; i < R * K; i += K + 1)
            ((int32_t *)ids->p[0])[i] = 1;
    twin_push(t, ids);
    twin_push(t, wt);
#define FFN(result)                                                                                \
    SET({.out = P(result),                                                                         \
         .x = P(x),                                                                                \
         .ids = P(ids),                                                                            \
         .weights = P(wt),                                                                         \
         .gate = P(desc[0]),                                                                       \
         .up = P(desc[1]),                                                                         \
         .down = P(desc[2]),                                                                       \
         .dt = z->dt,                                                                              \
         .sh_gate = sh[0],                                                                         \
         .sh_up = sh[1],                                                                           \
         .sh_down = sh[2],                                                                         \
         .work = P(work),                                                                          \
         .rows = rows,                                                                             \
         .hidden = z->hidden,                                                                      \
         .inter = z->inter,                                                                        \
         .experts = z->experts,                                                                    \
         .topk = z->topk})
    BOTH(t, moe_ffn, FFN(out));
    bool rounded = z->dt != DT_F32 && rows > 64; /* activations to bf16 */
    float worst = twin_near(t, out, R * H, rounded ? 2e-2f : 2e-4f, 2e-4f, "moe_ffn");
    printf("moe_ffn type %d H %d I %d rows %d: %.2g\n", z->dt, z->hidden, z->inter, rows,
           (double)worst);
    struct dev_graph *g;
    struct err e = {0};
    int side = 1;
    ck_assert_int_eq(dev_cuda.record_begin(t->gpu, &e), OK);
    struct op_moe_ffn a = FFN(again);
    ck_assert_int_eq(dev_cuda.ops->moe_ffn(t->gpu, &a), OK);
    ck_assert_int_eq(dev_cuda.record_end(t->gpu, &g, &e), OK);
    ck_assert_int_eq(dev_cuda.replay(t->gpu, g, &e), OK);
    ck_assert_int_eq(dev_cuda.copy_out(t->gpu, again->p[0], out->p[1], R * H * sizeof(float), &e),
                     OK);
    twin_same(t, again, R * H * sizeof(float), "moe_ffn replayed");
    dev_cuda.graph_free(t->gpu, g);
    twins_drop(t, first);
}

START_TEST(experts)
{
    static const struct size sizes[] = {
        {DT_BF16, 256, 128, 256, 12, 3, {1, 2, 5, 16, 17, 64, 65, 300}},
        {DT_BF16, 128, 96, 96, 12, 3, {1, 9, 40, 100}},
        {DT_BF16, 2048, 768, 0, 16, 8, {1, 8}},
        {DT_BF16, 2048, 1408, 2816, 4, 3, {1, 70}},
        {DT_BF16, 256, 192, 384, 4, 2, {700, 900}},
        {DT_F8E4M3, 256, 128, 256, 12, 3, {1, 5, 17, 64, 100}},
        {DT_F32, 100, 40, 60, 6, 2, {1, 20}},
        {DT_BF16, 256, 32, 64, 64, 6, {1, 3}},
        {DT_BF16, 256, 32, 32, 128, 8, {1, 3, 8, 9}},
    };
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        const struct size *z = &sizes[i];
        if (twin_small() && z->hidden > 1000)
            continue;
        struct twins t;
        twins_open(&t);
        struct twin *desc[3];
        for (int m = 0; m < 3; m++)
            desc[m] = stack(&t, z->dt, z->experts, m == 2 ? z->hidden : z->inter,
                            m == 2 ? z->inter : z->hidden);
        struct weight sh[3] = {{0}};
        for (int m = 0; m < 3 && z->shared; m++) {
            int64_t n = m == 2 ? z->hidden : z->shared, k = m == 2 ? z->shared : z->hidden;
            sh[m] = twin_weight(&t, z->dt, n, k, 1 / sqrtf((float)k));
        }
        struct weight router = twin_weight(&t, i % 2 ? DT_F32 : DT_BF16, z->experts, z->hidden,
                                           2 / sqrtf((float)z->hidden));
        struct weight norm = {0}; /* every other size */
        if (i % 2 == 0)
            norm = twin_weight(&t, DT_BF16, 1, z->hidden, 1);
        for (int k = 0; k < 8 && z->rows[k]; k++)
            one_call(&t, z, desc, sh, router, norm, z->rows[k]);
        twins_close(&t);
    }
}
END_TEST

/* Few rows, split and rounded tiles of many rows, and a shape that has none of them. */
START_TEST(head_products)
{
    static const int rows[] = {1, 7, 16, 17, 64, 100};
    static const int widths[] = {512, 160};
    enum { H = 3, N = 128, B = 2 * N };
    for (size_t k = 0; k < ARRAY_LEN(widths); k++) {
        struct twins t;
        twins_open(&t);
        int K = widths[k];
        struct weight w = twin_weight(&t, DT_BF16, H * B, K, 0.1f);
        for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
            int R = rows[i], first = t.n;
            struct twin *q = twin_rand(&t, (size_t)(R * H * N), 1);
            struct twin *lat = twin_nans(&t, (size_t)(R * H * (K + 64)));
            struct twin *l = twin_rand(&t, (size_t)(R * H * K), 1);
            struct twin *out = twin_nans(&t, (size_t)(R * H * N));
            BOTH(&t, matmul_heads,
                 SET({.out = P(lat),
                      .x = P(q),
                      .w = w,
                      .rows = R,
                      .heads = H,
                      .w_head_stride = B,
                      .n_rows = N,
                      .ldx = H * N,
                      .x_stride = N,
                      .ldo = H * (K + 64),
                      .out_stride = K + 64,
                      .transposed = true}));
            BOTH(&t, matmul_heads,
                 SET({.out = P(out),
                      .x = P(l),
                      .w = w,
                      .rows = R,
                      .heads = H,
                      .w_head_stride = B,
                      .w_row0 = N,
                      .n_rows = N,
                      .ldx = H * K,
                      .x_stride = K,
                      .ldo = H * N,
                      .out_stride = N}));
            float abs = R > 64 && K % 128 == 0 ? 2e-2f : 1e-4f;
            float a = twin_near(&t, lat, (size_t)(R * H * (K + 64)), abs, 1e-4f, "transposed");
            float b = twin_near(&t, out, (size_t)(R * H * N), abs, 1e-4f, "heads");
            printf("heads K %d rows %d: %.2g %.2g\n", K, R, (double)a, (double)b);
            twins_drop(&t, first);
        }
        twins_close(&t);
    }
}
END_TEST

Suite *suite_gpu_moe(void);
Suite *suite_gpu_moe(void)
{
    Suite *s = suite_create("gpu_moe");
    TWIN_CASE(s, experts, 1);
    TWIN_CASE(s, head_products, 1);
    return s;
}
