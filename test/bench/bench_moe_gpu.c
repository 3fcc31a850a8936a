/* Goal: time of one mixture-of-experts layer (routing, experts, shared expert) on the CUDA device
 * at the shapes of DeepSeek-V2-Lite and Qwen3-30B-A3B. Method: random bf16 weights of several
 * layers (more than the L2 cache holds), a graph of that many layers with inputs of their own,
 * replayed; median of several timings. Bytes are those of the distinct experts picked, each read
 * once, and of the shared expert. Usage: bench_moe_gpu [most rows]. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/rng.h"
#include "engine/model/layer.h"
#include "kernels/ops.h"

enum { LAYERS = 2, STEPS = 8, TIMES = 5 }; /* a graph: STEPS layers, weights of LAYERS in turn */
enum { POOL = 16 << 20 };                  /* random bf16 values the weights are cut from */

#define MUST(call)                                                                                 \
    do {                                                                                           \
        if ((call) < 0) {                                                                          \
            printf("%s: %s\n", #call, g_err.text);                                                 \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static struct err g_err;
static const struct dev_ops *g_ops;
static struct dev *g_dev;
static uint16_t *g_pool;
static struct rng g_rng = {7};

struct shape {
    const char *name;
    int hidden, shared;
    struct moe_conf c;
};

static void *dev_mem(size_t bytes)
{
    void *p;
    MUST(g_ops->alloc(g_dev, &p, bytes, DEV_MEM_DEVICE, &g_err));
    return p;
}

/* `count` weights [n, k] in device memory, described in host memory. */
static void weights(struct weight *w, int count, int64_t n, int64_t k)
{
    size_t one = (size_t)(n * k), at = 0;
    uint16_t *p = dev_mem(one * 2 * (size_t)count);
    for (size_t left = one * (size_t)count; left > 0;) {
        size_t from = rng_below(&g_rng, POOL / 2) & ~7u, m = POOL - from;
        m = m < left ? m : left;
        MUST(g_ops->copy_in(g_dev, p + at, g_pool + from, m * 2, &g_err));
        at += m;
        left -= m;
    }
    for (int i = 0; i < count; i++)
        w[i] = (struct weight){.p = p + (size_t)i * one, .dt = DT_BF16, .n = n, .k = k};
}

static const void *copied(const void *src, size_t bytes)
{
    void *p = dev_mem(bytes);
    MUST(g_ops->copy_in(g_dev, p, src, bytes, &g_err));
    MUST(g_ops->sync(g_dev, &g_err));
    return p;
}

/* A weight that operations take by host address. */
static struct weight mirrored(int64_t n, int64_t k)
{
    uint16_t *p = mem_alloc((size_t)(n * k) * 2);
    memcpy(p, g_pool + (rng_below(&g_rng, 1000) & ~7u), (size_t)(n * k) * 2);
    MUST(g_ops->mirror(g_dev, p, (size_t)(n * k) * 2, &g_err));
    return (struct weight){.p = p, .dt = DT_BF16, .n = n, .k = k};
}

static double median_us(struct dev_graph *g, int steps)
{
    double us[TIMES];
    for (int i = -1; i < TIMES; i++) {
        int reps = 3;
        int64_t t = clock_us();
        for (int k = 0; k < reps; k++)
            MUST(g_ops->replay(g_dev, g, &g_err));
        MUST(g_ops->sync(g_dev, &g_err));
        double v = (double)(clock_us() - t) / reps / steps;
        int j = i;
        for (; j > 0 && us[j - 1] > v; j--)
            us[j] = us[j - 1];
        if (i >= 0)
            us[j] = v;
    }
    return us[TIMES / 2];
}

static void run_shape(const struct shape *s, int rows_max)
{
    const struct moe_conf *c = &s->c;
    struct moe m[LAYERS] = {0};
    struct moe_dev dev[LAYERS] = {0};
    struct weight norm[LAYERS];
    for (int l = 0; l < LAYERS; l++) {
        struct weight *w = MEM_ARRAY(struct weight, c->experts);
        size_t bytes = (size_t)c->experts * sizeof *w;
        weights(w, c->experts, c->inter, s->hidden);
        dev[l].gate = copied(w, bytes);
        weights(w, c->experts, c->inter, s->hidden);
        dev[l].up = copied(w, bytes);
        weights(w, c->experts, s->hidden, c->inter);
        dev[l].down = copied(w, bytes);
        mem_free(w);
        dev[l].dt = DT_BF16;
        norm[l] = mirrored(1, s->hidden);
        m[l].router = mirrored(c->experts, s->hidden);
        if (c->shared_inter)
            m[l].shared = (struct mlp){.inter = c->shared_inter,
                                       .gate = mirrored(c->shared_inter, s->hidden),
                                       .up = mirrored(c->shared_inter, s->hidden),
                                       .down = mirrored(s->hidden, c->shared_inter)};
    }
    int inter = c->shared_inter > c->inter ? c->shared_inter : c->inter;
    size_t n = (size_t)rows_max * (size_t)s->hidden;
    struct placed pl = {.ops = g_ops, .d = g_dev};
    struct mlp_ws ws;
    MUST(mlp_ws_place(&pl, rows_max, s->hidden, inter, c, &ws, &g_err));
    float *hx = mem_alloc(n * STEPS * sizeof *hx), *y = dev_mem(n * STEPS * sizeof *y);
    for (size_t i = 0; i < n * STEPS; i++)
        hx[i] = 2 * dtype_bf16_to_f32(g_pool[rng_below(&g_rng, POOL)]) / 0.02f;
    MUST(g_ops->copy_in(g_dev, y, hx, n * STEPS * sizeof *y, &g_err));
    float *x = dev_mem(n * sizeof *x), *normed = dev_mem(n * sizeof *x);
    static const int rows[] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 2048, 8192};
    for (size_t i = 0; i < sizeof rows / sizeof *rows && rows[i] <= rows_max; i++) {
        int R = rows[i];
        struct on o = {.op = g_ops->ops, .d = g_dev, .rows = R};
        struct dev_graph *g;
        int distinct = 0;
        int32_t *ids = mem_alloc((size_t)(R * c->topk) * sizeof *ids);
        for (int k = 0; k < STEPS; k++) { /* eagerly once: warm, and the experts picked */
            struct rows_in in = {y + n * (size_t)k, &norm[k % LAYERS], 1e-6f, normed};
            char *seen = mem_calloc((size_t)c->experts, 1);
            MUST(run_moe(&o, &m[k % LAYERS], &dev[k % LAYERS], c, &ws, s->hidden, &in, x));
            MUST(g_ops->copy_out(g_dev, ids, ws.ids, (size_t)(R * c->topk) * sizeof *ids, &g_err));
            for (int p = 0; p < R * c->topk; p++)
                seen[ids[p]] = 1;
            for (int e = 0; e < c->experts; e++)
                distinct += seen[e];
            mem_free(seen);
        }
        MUST(g_ops->record_begin(g_dev, &g_err));
        for (int k = 0; k < STEPS; k++) {
            struct rows_in in = {y + n * (size_t)k, &norm[k % LAYERS], 1e-6f, normed};
            MUST(run_moe(&o, &m[k % LAYERS], &dev[k % LAYERS], c, &ws, s->hidden, &in, x));
        }
        MUST(g_ops->record_end(g_dev, &g, &g_err));
        double us = median_us(g, STEPS), one = 3.0 * s->hidden * c->inter,
               sh = 3.0 * s->hidden * c->shared_inter;
        double bytes = 2 * (distinct / (double)STEPS * one + sh + (double)c->experts * s->hidden);
        double flop = 2.0 * R * (c->topk * one + sh);
        printf("%-10s rows %5d: %8.1f us, %5.1f experts, %6.1f MB, %5.0f GB/s, %6.1f TFLOP/s\n",
               s->name, R, us, distinct / (double)STEPS, bytes / 1e6, bytes / us / 1e3,
               flop / us / 1e6);
        fflush(stdout);
        g_ops->graph_free(g_dev, g);
        mem_free(ids);
    }
    mem_free(hx);
}

/* The absorbed projections of DeepSeek-V2-Lite: 16 heads, 128 of query and of value, 512 of latent.
 */
static void run_heads(void)
{
    enum { HEADS = 16, N = 128, K = 512, COUNT = 24, ROWS = 2048 };
    static const int rows[] = {1, 2, 8, 16, 64, 256, ROWS};
    struct weight w[COUNT];
    for (int i = 0; i < COUNT; i++)
        w[i] = mirrored(HEADS * 2 * N, K);
    float *q = dev_mem((size_t)ROWS * HEADS * N * 4), *l = dev_mem((size_t)ROWS * HEADS * K * 4);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct dev_graph *g;
        struct op_matmul_heads a = {.out = l,
                                    .x = q,
                                    .rows = rows[i],
                                    .heads = HEADS,
                                    .w_head_stride = 2 * N,
                                    .n_rows = N,
                                    .ldx = HEADS * N,
                                    .x_stride = N,
                                    .ldo = HEADS * K,
                                    .out_stride = K,
                                    .transposed = true};
        struct op_matmul_heads b = a;
        b = (struct op_matmul_heads){.out = q,
                                     .x = l,
                                     .rows = rows[i],
                                     .heads = HEADS,
                                     .w_head_stride = 2 * N,
                                     .w_row0 = N,
                                     .n_rows = N,
                                     .ldx = HEADS * K,
                                     .x_stride = K,
                                     .ldo = HEADS * N,
                                     .out_stride = N};
        double us[2];
        for (int k = 0; k < 2; k++) {
            MUST(g_ops->record_begin(g_dev, &g_err));
            for (int n = 0; n < COUNT; n++) {
                struct op_matmul_heads c = k ? b : a;
                c.w = w[n];
                MUST(g_ops->ops->matmul_heads(g_dev, &c));
            }
            MUST(g_ops->record_end(g_dev, &g, &g_err));
            us[k] = median_us(g, COUNT);
            g_ops->graph_free(g_dev, g);
        }
        printf(
            "heads      rows %5d: %8.2f us transposed, %8.2f us, of 2.1 MB and %.2f GFLOP each\n",
            rows[i], us[0], us[1], 2e-9 * rows[i] * HEADS * N * K);
        fflush(stdout);
    }
}

int main(int argc, char **argv)
{
    static const struct shape shapes[] = {
        {"v2-lite",
         2048,
         2816,
         {.experts = 64,
          .topk = 6,
          .inter = 1408,
          .shared_inter = 2816,
          .n_group = 1,
          .topk_group = 1,
          .score = MOE_SOFTMAX,
          .group = MOE_GROUP_NONE,
          .scale = 1}},
        {"qwen3-30b",
         2048,
         0,
         {.experts = 128,
          .topk = 8,
          .inter = 768,
          .n_group = 1,
          .topk_group = 1,
          .score = MOE_SOFTMAX,
          .group = MOE_GROUP_NONE,
          .normalize = true,
          .scale = 1}},
    };
    struct dev_conf conf = {.threads = 1};
    g_ops = dev_find("cuda");
    if (!g_ops || g_ops->open(&g_dev, &conf, &g_err) < 0) {
        printf("no CUDA device: %s\n", g_ops ? g_err.text : "not in this build");
        return 0;
    }
    g_pool = mem_alloc(POOL * sizeof *g_pool);
    for (int i = 0; i < POOL; i++) {
        uint64_t v = rng_u64(&g_rng); /* sum of uniforms: near normal, deviation 0.02 */
        float f =
            (float)((v & 0xffff) + (v >> 16 & 0xffff) + (v >> 32 & 0xffff) + (v >> 48)) / 65536 - 2;
        g_pool[i] = dtype_f32_to_bf16(f * 0.0346f);
    }
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        run_shape(&shapes[i], argc > 1 ? (int)strtol(argv[1], NULL, 10) : 2048);
    run_heads();
    return 0; /* the process ends: device memory goes with it */
}
