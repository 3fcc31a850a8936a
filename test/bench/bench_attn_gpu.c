/* Goal: time of the CUDA attention backends at shapes of served models, JSON lines, and their
 * distance from the plain kernels in the same run. Method: a graph of calls over caches that rotate
 * past the second-level cache, replayed; the median replay divided by its calls. Random values.
 * usage: bench_attn_gpu [part of a case's name] [backend] [fp8]; fp8: over such caches */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attention/attn.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/rng.h"
#include "kernels/ops.h"

struct shape {
    const char *name;
    enum attn_kind kind;
    enum role role;
    int heads, kv, qk, v, page, reqs, rows, keys; /* rows of each request, keys its last row sees */
};

static const struct shape g_shapes[] = {
    {"llama8b b1 k1024", ATTN_GQA, TGT_VERIFY, 32, 8, 128, 128, 16, 1, 1, 1024},
    {"llama8b b1 k4096", ATTN_GQA, TGT_VERIFY, 32, 8, 128, 128, 16, 1, 1, 4096},
    {"llama8b b1 k32768", ATTN_GQA, TGT_VERIFY, 32, 8, 128, 128, 16, 1, 1, 32768},
    {"llama8b b4 k1024", ATTN_GQA, TGT_VERIFY, 32, 8, 128, 128, 16, 4, 1, 1024},
    {"llama8b b16 k1024", ATTN_GQA, TGT_VERIFY, 32, 8, 128, 128, 16, 16, 1, 1024},
    {"llama8b b64 k1024", ATTN_GQA, TGT_VERIFY, 32, 8, 128, 128, 16, 64, 1, 1024},
    {"llama8b b256 k1024", ATTN_GQA, TGT_VERIFY, 32, 8, 128, 128, 16, 256, 1, 1024},
    {"llama8b b1x6 k1024", ATTN_GQA, TGT_VERIFY, 32, 8, 128, 128, 16, 1, 6, 1024},
    {"llama8b b16x4 k1024", ATTN_GQA, TGT_VERIFY, 32, 8, 128, 128, 16, 16, 4, 1024},
    {"llama8b b16x6 k1024", ATTN_GQA, TGT_VERIFY, 32, 8, 128, 128, 16, 16, 6, 1024},
    {"llama8b b32x6 k1024", ATTN_GQA, TGT_VERIFY, 32, 8, 128, 128, 16, 32, 6, 1024},
    {"llama8b b64x4 k1024", ATTN_GQA, TGT_VERIFY, 32, 8, 128, 128, 16, 64, 4, 1024},
    {"llama8b b64x6 k1024", ATTN_GQA, TGT_VERIFY, 32, 8, 128, 128, 16, 64, 6, 1024},
    {"llama8b b64x8 k1024", ATTN_GQA, TGT_VERIFY, 32, 8, 128, 128, 16, 64, 8, 1024},
    {"llama8b b64x16 k1024", ATTN_GQA, TGT_VERIFY, 32, 8, 128, 128, 16, 64, 16, 1024},
    {"qwen30b b1 k1024", ATTN_GQA, TGT_VERIFY, 32, 4, 128, 128, 16, 1, 1, 1024},
    {"d64 b64 k1024", ATTN_GQA, TGT_VERIFY, 8, 2, 64, 64, 16, 64, 1, 1024},
    {"d256 b32 k4096", ATTN_GQA, TGT_VERIFY, 16, 8, 256, 256, 16, 32, 1, 4096},
    {"v2lite b1 k1024", ATTN_MLA_ABSORBED, TGT_VERIFY, 16, 1, 576, 512, 16, 1, 1, 1024},
    {"v2lite b64 k1024", ATTN_MLA_ABSORBED, TGT_VERIFY, 16, 1, 576, 512, 16, 64, 1, 1024},
    {"v2lite b64x4 k1024", ATTN_MLA_ABSORBED, TGT_VERIFY, 16, 1, 576, 512, 16, 64, 4, 1024},
    {"v3 128 heads b16 k1024", ATTN_MLA_ABSORBED, TGT_VERIFY, 128, 1, 576, 512, 16, 16, 1, 1024},
    {"prefill llama8b 8192", ATTN_GQA, TGT_PREFILL, 32, 8, 128, 128, 16, 1, 8192, 8192},
    {"prefill llama8b 4x2048", ATTN_GQA, TGT_PREFILL, 32, 8, 128, 128, 16, 4, 2048, 2048},
    {"prefill llama8b 512 of 8192", ATTN_GQA, TGT_PREFILL, 32, 8, 128, 128, 16, 1, 512, 8192},
    {"prefill v2lite 2048", ATTN_MLA_ABSORBED, TGT_PREFILL, 16, 1, 576, 512, 16, 1, 2048, 2048},
};

enum { BLOCK = 1 << 22, RUNS = 15, REST = 16384 };

static const struct dev_ops *g_dev;
static struct dev *g_d;
static enum dtype g_kv = DT_BF16;
static struct err g_err;

#define MUST(call)                                                                                 \
    do {                                                                                           \
        if ((call) < 0) {                                                                          \
            fprintf(stderr, "bench_attn_gpu: %s\n", g_err.text);                                   \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static void *room(size_t bytes)
{
    void *p;
    MUST(g_dev->alloc(g_d, &p, bytes, DEV_MEM_DEVICE, &g_err));
    return p;
}

static void *ints(const int32_t *v, size_t n)
{
    void *p = room(n * sizeof *v);
    MUST(g_dev->copy_in(g_d, p, v, n * sizeof *v, &g_err));
    MUST(g_dev->sync(g_d, &g_err));
    return p;
}

/* `bytes` of device memory filled with copies of a block. */
static void *filled(const void *block, size_t block_bytes, size_t bytes)
{
    char *p = room(bytes);
    for (size_t at = 0; at < bytes; at += block_bytes)
        MUST(g_dev->copy_in(g_d, p + at, block, bytes - at < block_bytes ? bytes - at : block_bytes,
                            &g_err));
    MUST(g_dev->sync(g_d, &g_err));
    return p;
}

struct work {
    const struct shape *s;
    int rows, pages_max, layers, calls; /* layers: caches; calls: of a replay */
    size_t k_bytes, v_bytes;            /* of a layer */
    char *k, *v;
    void *q, *slot, *first, *last, *table;
};

static struct work setup(const struct shape *s, const void *cache, const float *full)
{
    struct work w = {
        .s = s, .rows = s->reqs * s->rows, .pages_max = (s->keys + s->page - 1) / s->page};
    size_t keys = (size_t)s->reqs * (size_t)w.pages_max * (size_t)s->page, size = dtype_size(g_kv);
    w.k_bytes = keys * (size_t)(s->kv * s->qk) * size;
    w.v_bytes = s->kind == ATTN_GQA ? keys * (size_t)(s->kv * s->v) * size : 0;
    size_t layers = ((size_t)192 << 20) / (w.k_bytes + w.v_bytes);
    w.layers = s->rows > 64 ? 1 : layers < 2 ? 2 : layers > 40 ? 40 : (int)layers;
    w.calls = s->rows > 64 || w.layers > 16 ? w.layers : 16;
    w.k = filled(cache, BLOCK * size, w.k_bytes * (size_t)w.layers);
    w.v = w.v_bytes ? filled(cache, BLOCK * size, w.v_bytes * (size_t)w.layers) : NULL;
    w.q = filled(full, BLOCK * 4, (size_t)w.rows * (size_t)(s->heads * s->qk) * 4);
    size_t n = (size_t)w.rows, np = (size_t)(s->reqs + 1) * (size_t)w.pages_max;
    int32_t *a = mem_alloc((3 * n + np) * sizeof *a), *f = a + n, *l = f + n, *t = l + n;
    for (int r = 0; r < w.rows; r++) {
        a[r] = 1 + r / s->rows;
        f[r] = 0;
        l[r] = s->keys - s->rows + r % s->rows + 1;
    }
    size_t used = np - (size_t)w.pages_max;
    for (size_t i = 0; i < np; i++) /* pages in an order of their own */
        t[i] = i < (size_t)w.pages_max ? -1 : (int32_t)((i * 7919 + 13) % used);
    for (size_t i = 0; used % 7919 == 0 && i < used; i++)
        t[i + (size_t)w.pages_max] = (int32_t)i;
    w.slot = ints(a, n);
    w.first = ints(f, n);
    w.last = ints(l, n);
    w.table = ints(t, np);
    mem_free(a);
    return w;
}

static struct attn_call call_of(const struct work *w, int layer, float *out, float *lse)
{
    const struct shape *s = w->s;
    bool mla = s->kind != ATTN_GQA;
    return (struct attn_call){
        .role = s->role,
        .kind = s->kind,
        .mask = MASK_RANGE,
        .rows = w->rows,
        .n_head = s->heads,
        .n_kv = s->kv,
        .dims = {(int16_t)s->qk, (int16_t)s->v},
        .q = w->q,
        .ldq = s->heads * s->qk,
        .out = out,
        .ldo = s->heads * s->v,
        .lse = lse,
        .k = w->k + (size_t)layer * w->k_bytes,
        .v = mla ? NULL : w->v + (size_t)layer * w->v_bytes,
        .kv_type = g_kv,
        .k_scale = 1,
        .v_scale = 1,
        .slot = w->slot,
        .first = w->first,
        .last = w->last,
        .table = w->table,
        .pages_max = w->pages_max,
        .page = s->page,
        .scale = 1 / sqrtf((float)s->qk),
        .kv_lora = mla ? s->v : 0,
        .rope = mla ? s->qk - s->v : 0,
        .cp_world = 1,
    };
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Seconds of a call of the backend; its results of layer 0 go to host memory. */
static double time_backend(const struct work *w, const char *name, int runs, float *out, float *lse)
{
    const struct shape *s = w->s;
    struct attn_need need = {.role = s->role,
                             .kind = s->kind,
                             .mask = MASK_RANGE,
                             .graph = GRAPH_ANY,
                             .kv_type = g_kv,
                             .page = s->page,
                             .n_head = s->heads,
                             .n_kv = s->kv,
                             .dims = {(int16_t)s->qk, (int16_t)s->v},
                             .q_len_max = s->role == TGT_PREFILL ? 0 : s->rows,
                             .cp = 1,
                             .sm = g_dev->sm(g_d),
                             .lse_out = true};
    struct graph_dims dims = {s->reqs, s->reqs, w->rows, s->rows, w->pages_max, s->role};
    const struct attn_backend *b;
    struct attn *a;
    if (attn_select(&b, g_dev->name, &need, name, &g_err) < 0)
        return -1;
    size_t no = (size_t)w->rows * (size_t)(s->heads * s->v),
           nl = (size_t)w->rows * (size_t)s->heads;
    for (size_t i = 0; i < no; i++)
        out[i] = NAN;
    for (size_t i = 0; i < nl; i++)
        lse[i] = NAN;
    float *dout = room(no * 4), *dlse = room(nl * 4);
    MUST(g_dev->copy_in(g_d, dout, out, no * 4, &g_err));
    MUST(g_dev->copy_in(g_d, dlse, lse, nl * 4, &g_err));
    MUST(b->open(&a, g_d, &need, &dims, &g_err));
    MUST(b->plan(a, &dims, &g_err));
    struct dev_graph *g;
    MUST(g_dev->record_begin(g_d, &g_err));
    for (int i = w->calls - 1; i >= 0; i--) {
        struct attn_call c = call_of(w, i % w->layers, dout, dlse);
        MUST(b->run(a, &c, &g_err));
    }
    MUST(g_dev->record_end(g_d, &g, &g_err));
    double t[RUNS];
    for (int i = 0; i < runs; i++) {
        double t0 = (double)clock_ns();
        MUST(g_dev->replay(g_d, g, &g_err));
        MUST(g_dev->sync(g_d, &g_err));
        t[i] = ((double)clock_ns() - t0) * 1e-9;
    }
    qsort(t, (size_t)runs, sizeof *t, by_value);
    MUST(g_dev->copy_out(g_d, out, dout, no * 4, &g_err));
    MUST(g_dev->copy_out(g_d, lse, dlse, nl * 4, &g_err));
    g_dev->graph_free(g_d, g);
    b->close(a);
    g_dev->free(g_d, dout);
    g_dev->free(g_d, dlse);
    return t[runs / 2] / w->calls;
}

static void report(const struct work *w, const char *backend, double t, const char *more)
{
    const struct shape *s = w->s;
    double bytes = (double)(w->k_bytes + w->v_bytes), pairs = 0;
    for (int r = 0; r < w->rows; r++)
        pairs += s->keys - s->rows + r % s->rows + 1;
    printf("{\"case\": \"%s\", \"backend\": \"%s\", \"kv\": \"%s\", \"us\": %.2f, \"GB/s\": %.0f, "
           "\"TFLOP/s\": "
           "%.1f%s}\n",
           s->name, backend, dtype_name(g_kv), t * 1e6, bytes / t * 1e-9,
           2 * pairs * s->heads * (s->qk + s->v) / t * 1e-12, more);
    fflush(stdout);
}

static void bench(const struct shape *s, const void *cache, const float *full, const char *only)
{
    struct work w = setup(s, cache, full);
    size_t no = (size_t)w.rows * (size_t)(s->heads * s->v), nl = (size_t)w.rows * (size_t)s->heads;
    float *a = mem_alloc((no + nl) * 2 * sizeof *a), *b = a + no + nl;
    bool mla = s->kind != ATTN_GQA;
    double plain =
        time_backend(&w, mla ? "portable-mla" : "portable", s->rows > 64 ? 1 : 3, b, b + no);
    double t = time_backend(&w, only ? only : mla ? "mma-mla" : "mma", RUNS, a, a + no);
    if (plain >= 0)
        report(&w, mla ? "portable-mla" : "portable", plain, "");
    if (t >= 0) {
        double worst = 0, dl = 0, sq = 0, all = 0;
        for (size_t i = 0; i < no; i++) {
            double d = fabs((double)a[i] - (double)b[i]);
            worst = d <= worst ? worst : d; /* NaN counts */
            sq += d * d;
            all += (double)b[i] * (double)b[i];
        }
        for (size_t i = 0; i < nl; i++) {
            double d = fabs((double)a[no + i] - (double)b[no + i]);
            dl = d <= dl ? dl : d;
        }
        char more[160];
        snprintf(more, sizeof more,
                 ", \"times\": %.1f, \"max_abs\": %.2g, \"rel_l2\": %.2g, \"lse_abs\": %.2g",
                 plain / t, worst, sqrt(sq / all), dl);
        report(&w, mla ? "mma-mla" : "mma", t, more);
    }
    mem_free(a);
    void *all[] = {w.k, w.v, w.q, w.slot, w.first, w.last, w.table};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (all[i])
            g_dev->free(g_d, all[i]);
}

int main(int argc, char **argv)
{
    struct dev_conf conf = {.threads = 1};
    g_dev = dev_find("cuda");
    if (!g_dev) {
        printf("bench_attn_gpu: built without CUDA, nothing to measure\n");
        return 0;
    }
    MUST(g_dev->open(&g_d, &conf, &g_err));
    struct rng rng = {7};
    float *full = mem_alloc(BLOCK * sizeof *full);
    if (argc > 3 && !strcmp(argv[3], "fp8"))
        g_kv = DT_F8E4M3;
    void *cache = mem_alloc(BLOCK * dtype_size(g_kv));
    for (size_t i = 0; i < BLOCK; i++) {
        full[i] = (float)(rng_unit(&rng) * 3.4641 - 1.73205); /* unit variance */
        dtype_store(cache, g_kv, (int64_t)i, (float)(rng_unit(&rng) * 3.4641 - 1.73205));
    }
    for (size_t i = 0; i < sizeof g_shapes / sizeof g_shapes[0]; i++)
        if (argc < 2 || strstr(g_shapes[i].name, argv[1]))
            bench(&g_shapes[i], cache, full, argc > 2 && *argv[2] ? argv[2] : NULL);
    mem_free(full);
    mem_free(cache);
    g_dev->close(g_d);
    return 0;
}
