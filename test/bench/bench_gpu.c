/* Goal: time of the CUDA device's products at the shapes of real models, and of the products of a
 * whole Llama-3.1-8B layer in a row. Method: back-to-back calls recorded into one graph, each with
 * the next of several weights that do not fit the second-level cache together, so boundaries
 * between kernels and reads from memory count; random data; median of replays by the device's
 * clock. Usage: bench_gpu [shape filter] [rows,rows,...]. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/base/rng.h"
#include "kernels/ops.h"

enum { ROWS_MAX = 8192, WIDTH_MAX = 14336, REPLAYS = 7, CALLS_MAX = 64 };
static const size_t POOL_BYTES = (size_t)1100 << 20; /* weights are views of one random block */
static const size_t X_FLOATS = (size_t)ROWS_MAX * WIDTH_MAX;

/* clang-format off */
static const struct shape {
    const char *name;
    int64_t n, k;
    enum dtype dt;
} shapes[] = {
    {"llama8b.qkv", 6144, 4096, DT_BF16},  {"llama8b.o", 4096, 4096, DT_BF16},
    {"llama8b.gate_up", 28672, 4096, DT_BF16}, {"llama8b.down", 4096, 14336, DT_BF16},
    {"llama8b.head", 128256, 4096, DT_BF16}, {"qwen3-8b.gate_up", 24576, 4096, DT_BF16},
    {"qwen3-8b.down", 4096, 12288, DT_BF16}, {"qwen3-30b.qkv", 5120, 2048, DT_BF16},
    {"qwen3-30b.o", 2048, 4096, DT_BF16}, {"qwen3-30b.router", 128, 2048, DT_BF16},
    {"v2lite.q", 3072, 2048, DT_BF16}, {"v2lite.kv_a", 576, 2048, DT_BF16},
    {"v2lite.o", 2048, 2048, DT_BF16}, {"v2lite.shared_down", 2048, 2816, DT_BF16},
    {"fp8.o", 7168, 16384, DT_F8E4M3}, {"fp8.q_b", 24576, 1536, DT_F8E4M3},
};
/* clang-format on */

static struct bench {
    const struct dev_ops *ops;
    struct dev *d;
    char *pool; /* host; mirrored */
    float *x, *out, *g, *u, *y;
    int64_t *clock, *step; /* pinned, device */
} b;

#define MUST(call)                                                                                 \
    do {                                                                                           \
        struct err e = {0};                                                                        \
        if ((call) != OK) {                                                                        \
            fprintf(stderr, "bench_gpu: %s: %s\n", #call, e.text);                                 \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static void *device_bytes(size_t bytes, enum dev_mem kind)
{
    void *p = NULL;
    MUST(b.ops->alloc(b.d, &p, bytes, kind, &e));
    return p;
}

static void fill_pool(void)
{
    struct rng r = {7};
    uint64_t *p = mem_alloc(POOL_BYTES);
    for (size_t i = 0; i < POOL_BYTES / 8; i++) /* bf16 of either sign from 2^-7 to 2^-5 */
        p[i] = (rng_u64(&r) & 0x807f80ff807f80ffull) | 0x3c003c003c003c00ull;
    b.pool = (char *)p;
    MUST(b.ops->mirror(b.d, p, POOL_BYTES, &e));
}

static void fill_x(float *x)
{
    enum { N = 1 << 20 };
    struct rng r = {9};
    float *p = MEM_ARRAY(float, N);
    for (int i = 0; i < N; i++)
        p[i] = (float)rng_normal(&r);
    for (size_t o = 0; o < X_FLOATS; o += N) {
        size_t n = X_FLOATS - o < N ? X_FLOATS - o : N;
        MUST(b.ops->copy_in(b.d, x + o, p, n * sizeof *p, &e));
    }
    MUST(b.ops->sync(b.d, &e));
    mem_free(p);
}

static int by_value(const void *p, const void *q)
{
    int64_t x = *(const int64_t *)p, y = *(const int64_t *)q;
    return (x > y) - (x < y);
}

static void stamp(int index)
{
    struct op_stamp s = {b.clock, b.step, 1, 2, index};
    CHECK(b.ops->ops->stamp(b.d, &s) == OK);
}

/* Microseconds of what `body` issues. */
static double graph_us(void (*body)(void *ud), void *ud)
{
    struct dev_graph *g;
    int64_t t[REPLAYS];
    MUST(b.ops->record_begin(b.d, &e));
    stamp(0);
    body(ud);
    stamp(1);
    MUST(b.ops->record_end(b.d, &g, &e));
    for (int i = -1; i < REPLAYS; i++) {
        MUST(b.ops->replay(b.d, g, &e));
        MUST(b.ops->sync(b.d, &e));
        t[i < 0 ? 0 : i] = b.clock[1] - b.clock[0];
    }
    b.ops->graph_free(b.d, g);
    qsort(t, REPLAYS, sizeof *t, by_value);
    return (double)t[REPLAYS / 2] / 1e3;
}

/* The i-th weight of a shape; consecutive ones do not overlap while the pool lasts. */
static struct weight view(int64_t n, int64_t k, enum dtype dt, size_t *at)
{
    size_t bytes = (size_t)(n * k) * dtype_size(dt);
    if (*at + bytes > POOL_BYTES)
        *at = 0;
    struct weight w = {.p = b.pool + *at, .dt = dt, .n = n, .k = k};
    if (dt == DT_F8E4M3) {
        w.scale = b.pool;
        w.scale_dt = DT_BF16;
    }
    *at += (bytes + 255) & ~(size_t)255;
    return w;
}

struct product {
    const struct shape *s;
    int rows, calls;
};

static void issue_product(void *ud)
{
    const struct product *p = ud;
    size_t at = 0;
    for (int i = 0; i < p->calls; i++) {
        struct op_matmul a = {.out = b.out,
                              .x = b.x,
                              .w = view(p->s->n, p->s->k, p->s->dt, &at),
                              .rows = p->rows,
                              .ldx = p->s->k,
                              .ldo = p->s->n};
        CHECK(b.ops->ops->matmul(b.d, &a) == OK);
    }
}

static void bench_product(const struct shape *s, const int *rows, int n_rows)
{
    printf("%-20s", s->name);
    for (int i = 0; i < n_rows; i++) {
        if (rows[i] > 256 && s->n > 100000) {
            printf(" %6s      ", "");
            continue;
        }
        double bytes = (double)(s->n * s->k) * (double)dtype_size(s->dt);
        int calls = (int)(400e6 / bytes) + 2;
        calls = rows[i] >= 1024 ? 4 : calls > CALLS_MAX ? CALLS_MAX : calls;
        struct product p = {s, rows[i], calls};
        double us = graph_us(issue_product, &p) / calls;
        double tflops = 2.0 * rows[i] * (double)(s->n * s->k) / us * 1e-6;
        if (rows[i] <= 64)
            printf(" %6.1f %5.0f", us, bytes / us * 1e-3);
        else
            printf(" %6.1f %4.0fT", us, tflops);
    }
    printf("\n");
    fflush(stdout);
}

enum { LAYERS = 5 };

/* Norm, q, k, v; output projection added; norm, gated MLP added. */
static void issue_layers(void *ud)
{
    const struct op_table *o = b.ops->ops;
    int rows = *(const int *)ud;
    size_t at = 0;
    struct weight norm = {.p = b.pool, .dt = DT_BF16, .n = 1, .k = 4096};
    for (int l = 0; l < LAYERS; l++) {
        int64_t n[3] = {4096, 1024, 1024};
        float *q = b.g, *k = q + (size_t)rows * 4096, *v = k + (size_t)rows * 1024;
        struct op_proj p = {.x = b.out,
                            .norm = norm,
                            .y = b.y,
                            .rows = rows,
                            .n = 3,
                            .ldx = 4096,
                            .eps = 1e-5f,
                            .out = {q, k, v},
                            .ldo = {4096, 1024, 1024}};
        for (int i = 0; i < 3; i++)
            p.w[i] = view(n[i], 4096, DT_BF16, &at);
        CHECK(o->proj(b.d, &p) == OK);
        struct op_matmul a = {.out = b.out,
                              .x = q,
                              .w = view(4096, 4096, DT_BF16, &at),
                              .rows = rows,
                              .ldx = 4096,
                              .ldo = 4096,
                              .accumulate = true};
        CHECK(o->matmul(b.d, &a) == OK);
        struct op_mlp m = {.out = b.out,
                           .x = b.out,
                           .norm = norm,
                           .y = b.y,
                           .gate = view(14336, 4096, DT_BF16, &at),
                           .up = view(14336, 4096, DT_BF16, &at),
                           .down = view(4096, 14336, DT_BF16, &at),
                           .g = b.g,
                           .u = b.u,
                           .rows = rows,
                           .ldx = 4096,
                           .ldo = 4096,
                           .eps = 1e-5f};
        CHECK(o->mlp(b.d, &m) == OK);
    }
}

static void bench_layers(const int *rows, int n_rows)
{
    printf("%-20s", "llama8b.layer");
    for (int i = 0; i < n_rows; i++) {
        int r = rows[i];
        MUST(b.ops->copy_in(b.d, b.out, b.pool, (size_t)r * 4096 * 4, &e)); /* finite rows */
        double us = graph_us(issue_layers, &r) / LAYERS;
        if (r <= 64)
            printf(" %6.1f %5.0f", us, 436.2e6 / us * 1e-3);
        else
            printf(" %6.1f %4.0fT", us, 436.2e6 * r / us * 1e-6);
    }
    printf("\n");
    fflush(stdout);
}

int main(int argc, char **argv)
{
    int rows[32] = {1, 2, 4, 6, 8, 16, 24, 32, 64, 96, 128, 256, 384, 1024, 8192}, n_rows = 15;
    const char *filter = argc > 1 ? argv[1] : "";
    if (argc > 2) {
        n_rows = 0;
        for (char *s = argv[2], *end; n_rows < 32; s = end + 1) {
            rows[n_rows] = (int)strtol(s, &end, 10);
            CHECK(rows[n_rows] >= 1 && rows[n_rows] <= ROWS_MAX);
            n_rows++;
            if (*end != ',')
                break;
        }
    }
    struct err e = {0};
    struct dev_conf c = {.threads = 1};
    b.ops = dev_find("cuda");
    if (!b.ops || b.ops->open(&b.d, &c, &e) != OK) {
        fprintf(stderr, "bench_gpu: %s\n", b.ops ? e.text : "this build has no CUDA device");
        return 2;
    }
    fill_pool();
    b.x = device_bytes(X_FLOATS * sizeof(float), DEV_MEM_DEVICE);
    b.out = device_bytes((size_t)ROWS_MAX * 28672 * sizeof(float), DEV_MEM_DEVICE);
    b.g = device_bytes(X_FLOATS * sizeof(float), DEV_MEM_DEVICE);
    b.u = device_bytes(X_FLOATS * sizeof(float), DEV_MEM_DEVICE);
    b.y = device_bytes((size_t)ROWS_MAX * 4096 * sizeof(float), DEV_MEM_DEVICE);
    b.clock = device_bytes(2 * sizeof *b.clock, DEV_MEM_PINNED);
    b.step = device_bytes(sizeof *b.step, DEV_MEM_DEVICE);
    fill_x(b.x);
    printf("%-20s", "us, GB/s or TFLOP/s");
    for (int i = 0; i < n_rows; i++)
        printf(" %8s%-4d", "M ", rows[i]);
    printf("\n");
    for (size_t i = 0; i < ARRAY_LEN(shapes); i++)
        if (strstr(shapes[i].name, filter))
            bench_product(&shapes[i], rows, n_rows);
    if (strstr("llama8b.layer", filter))
        bench_layers(rows, n_rows);
    void *all[] = {b.x, b.out, b.g, b.u, b.y, b.clock, b.step};
    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        b.ops->free(b.d, all[i]);
    b.ops->close(b.d);
    mem_free(b.pool);
    return 0;
}
