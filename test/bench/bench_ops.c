/* Goal: time of the CPU device's operations at the shapes of a small real model (SmolLM2-135M),
 * as JSON lines. Method: best of several runs each, weights large enough to leave the caches where
 * the model's would; the memory bandwidth that shares refer to is measured first, in this run.
 * Usage: bench_ops [threads] [name filter]. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attention/attn.h"
#include "engine/base/check.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/rng.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/internal.h"

static struct dev *g_dev;
static double g_gbs; /* measured read bandwidth, GB/s */
static const char *g_filter = "";
static struct rng g_rng = {1};

static float *randf(size_t n, float scale)
{
    float *p = mem_aligned(64, n * sizeof *p);
    for (size_t i = 0; i < n; i++)
        p[i] = ((float)rng_unit(&g_rng) - 0.5f) * scale;
    return p;
}

static void *rand_weight(size_t n, enum dtype dt)
{
    if (dt == DT_F32)
        return randf(n, 0.1f);
    uint16_t *p = mem_aligned(64, n * sizeof *p);
    for (size_t i = 0; i < n; i++) /* bf16 of either sign near 0.02; fp8 bytes below NaN */
        p[i] = dt == DT_BF16 ? (uint16_t)(0x3c00u | (rng_u64(&g_rng) & 0x80ffu))
                             : (uint16_t)(rng_u64(&g_rng) & 0xb7b7u);
    return p;
}

/* Best time of fn(ud) in ms: at least `reps` runs and 0.2 s. */
static double best_ms(void (*fn)(void *ud), void *ud, int reps)
{
    double best = 1e30;
    int64_t end = clock_us() + 200000;
    for (int i = 0; i < reps || clock_us() < end; i++) {
        int64_t t = clock_us();
        fn(ud);
        double ms = (double)(clock_us() - t) / 1e3;
        best = ms < best ? ms : best;
    }
    return best;
}

static void report(const char *op, const char *shape, double ms, double bytes, double flops)
{
    printf("{\"op\":\"%s\",\"shape\":\"%s\",\"threads\":%d,\"ms\":%.4f", op, shape,
           cpu_threads(g_dev), ms);
    if (bytes > 0)
        printf(",\"gb_s\":%.2f,\"share_of_bandwidth\":%.3f", bytes / ms / 1e6,
               bytes / ms / 1e6 / g_gbs);
    if (flops > 0)
        printf(",\"gflop_s\":%.1f", flops / ms / 1e6);
    printf("}\n");
    fflush(stdout);
}

static bool wanted(const char *op)
{
    return strstr(op, g_filter) != NULL;
}

/* ---- memory bandwidth ---- */

enum { BW_BYTES = 256 << 20, BW_PART = 1 << 20 };
static char *g_bw;

static void bw_part(void *ud, int i)
{
    const uint64_t *p = (const uint64_t *)(g_bw + (size_t)i * BW_PART);
    uint64_t s[8] = {0};
    for (size_t k = 0; k < BW_PART / 8; k += 8)
        for (int l = 0; l < 8; l++)
            s[l] += p[k + (size_t)l];
    for (int l = 0; l < 8; l++)
        atomic_fetch_add_explicit((_Atomic uint64_t *)ud, s[l], memory_order_relaxed);
}

static void bw_run(void *ud)
{
    cpu_parallel(g_dev, BW_BYTES / BW_PART, bw_part, ud);
}

static void bench_bandwidth(void)
{
    static _Atomic uint64_t sink;
    g_bw = mem_aligned(64, BW_BYTES);
    memset(g_bw, 1, BW_BYTES);
    double ms = best_ms(bw_run, &sink, 8);
    g_gbs = BW_BYTES / ms / 1e6;
    printf("{\"op\":\"read_bandwidth\",\"threads\":%d,\"ms\":%.4f,\"gb_s\":%.2f}\n",
           cpu_threads(g_dev), ms, g_gbs);
    mem_free(g_bw);
}

/* ---- products ---- */

struct mm {
    struct op_matmul a;
    int copies, at; /* the weight is repeated so that a small one comes from memory too */
    size_t bytes;
    const char *base;
};

static void mm_run(void *ud)
{
    struct mm *m = ud;
    m->a.w.p = m->base + m->bytes * (size_t)m->at;
    m->at = (m->at + 1) % m->copies;
    CHECK(dev_cpu.ops->matmul(g_dev, &m->a) == OK);
}

static void bench_matmul(int rows, int n, int k, enum dtype dt)
{
    if (!wanted("matmul"))
        return;
    struct mm m = {0};
    m.bytes = (size_t)n * (size_t)k * dtype_size(dt);
    m.copies = (int)((64u << 20) / m.bytes) + 1;
    m.base = rand_weight((size_t)n * (size_t)k * (size_t)m.copies, dt);
    float *scale = randf((size_t)(n + 127) / 128 * (size_t)((k + 127) / 128), 1);
    m.a = (struct op_matmul){.out = randf((size_t)rows * (size_t)n, 1),
                             .x = randf((size_t)rows * (size_t)k, 1),
                             .w = {NULL, dt, n, k, scale, DT_F32},
                             .rows = rows,
                             .ldx = k,
                             .ldo = n};
    double ms = best_ms(mm_run, &m, 5);
    char shape[96];
    snprintf(shape, sizeof shape, "M%d N%d K%d %s", rows, n, k, dtype_name(dt));
    report("matmul", shape, ms, rows <= 4 ? (double)m.bytes : 0,
           2.0 * rows * (double)n * (double)k);
    mem_free(m.a.out);
    mem_free((void *)m.a.x);
    mem_free(scale);
    mem_free((void *)m.base);
}

/* All products of one token batch of SmolLM2-135M: 30 layers and the tied head. */
struct model {
    int rows, head_rows;
    uint16_t *w;
    float *x, *y;
};

static const int g_layer[][2] = {{576, 576},  {192, 576},  {192, 576}, {576, 576},
                                 {1536, 576}, {1536, 576}, {576, 1536}};

static void model_run(void *ud)
{
    struct model *m = ud;
    const uint16_t *w = m->w;
    for (int l = 0; l < 30; l++)
        for (size_t i = 0; i < sizeof g_layer / sizeof g_layer[0]; i++) {
            int n = g_layer[i][0], k = g_layer[i][1];
            struct op_matmul a = {.out = m->y,
                                  .x = m->x,
                                  .w = {w, DT_BF16, n, k, NULL, DT_NONE},
                                  .rows = m->rows,
                                  .ldx = k,
                                  .ldo = n};
            dev_cpu.ops->matmul(g_dev, &a);
            w += (size_t)n * (size_t)k;
        }
    struct op_matmul a = {.out = m->y,
                          .x = m->x,
                          .w = {w, DT_BF16, 49152, 576, NULL, DT_NONE},
                          .rows = m->head_rows,
                          .ldx = 576,
                          .ldo = 49152};
    dev_cpu.ops->matmul(g_dev, &a);
}

static void bench_model(int rows, int head_rows)
{
    if (!wanted("model_products"))
        return;
    size_t n = 49152 * 576;
    for (size_t i = 0; i < sizeof g_layer / sizeof g_layer[0]; i++)
        n += 30 * (size_t)g_layer[i][0] * (size_t)g_layer[i][1];
    struct model m = {rows, head_rows, rand_weight(n, DT_BF16), randf((size_t)rows * 1536, 1),
                      randf((size_t)(rows > head_rows ? rows : head_rows) * 49152, 1)};
    double ms = best_ms(model_run, &m, 3);
    double flops = 2.0 * ((double)(n - 49152 * 576) * rows + 49152.0 * 576 * head_rows);
    char shape[96];
    snprintf(shape, sizeof shape, "SmolLM2-135M %d rows, %d to the head: %.1f rows/s", rows,
             head_rows, rows / ms * 1e3);
    report("model_products", shape, ms, rows <= 4 ? 2.0 * (double)n : 0, flops);
    mem_free(m.w);
    mem_free(m.x);
    mem_free(m.y);
}

static void bench_more(void)
{
}

int main(int argc, char **argv)
{
    struct dev_conf c = {0, argc > 1 ? (int)strtol(argv[1], NULL, 10) : 2};
    struct err e = {0};
    if (argc > 2)
        g_filter = argv[2];
    if (dev_cpu.open(&g_dev, &c, &e) < 0) {
        fprintf(stderr, "%s\n", e.text);
        return 1;
    }
    bench_bandwidth();
    static const int rows[] = {1, 2, 4, 8, 32, 512};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        bench_matmul(rows[i], 576, 576, DT_BF16);
        bench_matmul(rows[i], 192, 576, DT_BF16);
        bench_matmul(rows[i], 1536, 576, DT_BF16);
        bench_matmul(rows[i], 576, 1536, DT_BF16);
        if (rows[i] <= 32)
            bench_matmul(rows[i], 49152, 576, DT_BF16);
    }
    bench_matmul(1, 4096, 4096, DT_F32);
    bench_matmul(1, 4096, 4096, DT_F8E4M3);
    bench_matmul(32, 4096, 4096, DT_F8E4M3);
    bench_matmul(32, 4096, 4096, DT_F32);
    bench_model(1, 1);
    bench_model(8, 8);
    bench_model(32, 32);
    bench_model(512, 1);
    bench_more();
    dev_cpu.close(g_dev);
    return 0;
}
