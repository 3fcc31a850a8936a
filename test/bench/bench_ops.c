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

static double
    g_cpu_ms; /* least processor time of a run, all threads: less noisy on a busy machine */

/* Best time of fn(ud) in ms: at least `reps` runs and 0.2 s. */
static double best_ms(void (*fn)(void *ud), void *ud, int reps)
{
    double best = 1e30;
    g_cpu_ms = 1e30;
    int64_t end = clock_us() + 200000;
    for (int i = 0; i < reps || clock_us() < end; i++) {
        int64_t t = clock_us(), cpu = clock_process_cpu_us();
        fn(ud);
        double ms = (double)(clock_us() - t) / 1e3;
        double cpu_ms = (double)(clock_process_cpu_us() - cpu) / 1e3;
        best = ms < best ? ms : best;
        g_cpu_ms = cpu_ms < g_cpu_ms ? cpu_ms : g_cpu_ms;
    }
    return best;
}

static void report(const char *op, const char *shape, double ms, double bytes, double flops)
{
    printf("{\"op\":\"%s\",\"shape\":\"%s\",\"threads\":%d,\"ms\":%.4f,\"cpu_ms\":%.4f", op, shape,
           cpu_threads(g_dev), ms, g_cpu_ms);
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
    m.copies = (int)((192u << 20) / m.bytes) + 1;
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

static void heads_run(void *ud)
{
    CHECK(dev_cpu.ops->matmul_heads(g_dev, ud) == OK);
}

static void bench_heads(int rows, bool transposed)
{
    if (!wanted("matmul_heads"))
        return;
    enum { HEADS = 16, NOPE = 128, LORA = 512 };
    int in = transposed ? NOPE : LORA, out = transposed ? LORA : NOPE;
    struct op_matmul_heads a = {.out = randf((size_t)rows * HEADS * (size_t)out, 1),
                                .x = randf((size_t)rows * HEADS * (size_t)in, 1),
                                .w = {rand_weight(HEADS * NOPE * 2 * LORA, DT_BF16), DT_BF16,
                                      HEADS * NOPE * 2, LORA, NULL, DT_NONE},
                                .rows = rows,
                                .heads = HEADS,
                                .w_head_stride = NOPE * 2,
                                .w_row0 = transposed ? 0 : NOPE,
                                .n_rows = NOPE,
                                .ldx = HEADS * in,
                                .x_stride = in,
                                .ldo = HEADS * out,
                                .out_stride = out,
                                .transposed = transposed};
    char shape[64];
    snprintf(shape, sizeof shape, "M%d 16 x 128 x 512 bf16%s", rows,
             transposed ? ", transposed" : "");
    double ms = best_ms(heads_run, &a, 5);
    report("matmul_heads", shape, ms, 0, 2.0 * rows * HEADS * NOPE * LORA);
    mem_free(a.out);
    mem_free((void *)a.x);
    mem_free((void *)a.w.p);
}

/* ---- attention ---- */

struct at {
    const struct attn_backend *b;
    struct attn *a;
    struct attn_call c;
};

static void at_run(void *ud)
{
    struct at *t = ud;
    CHECK(t->b->run(t->a, &t->c, NULL) == OK);
}

/* `reqs` requests of `ctx` positions; the last rows / reqs of each are the call's. topk > 0: they
 * are a tree in which every row has up to topk children. */
static void bench_attn(const char *shape, enum attn_kind kind, int n_head, int n_kv, int qk, int v,
                       int reqs, int rows, int ctx, int topk)
{
    if (!wanted("attention"))
        return;
    enum { PAGE = 16 };
    int pages = (ctx + PAGE - 1) / PAGE, width = n_kv * qk;
    enum role role = rows > reqs && !topk ? TGT_PREFILL : TGT_VERIFY;
    enum attn_mask mask = topk ? MASK_TREE : MASK_RANGE;
    struct attn_need need = {.role = role,
                             .kind = kind,
                             .mask = mask,
                             .graph = GRAPH_ANY,
                             .kv_type = DT_F32,
                             .page = PAGE,
                             .n_head = n_head,
                             .n_kv = n_kv,
                             .dims = {(int16_t)qk, (int16_t)v},
                             .cp = 1};
    struct graph_dims dims = {reqs, reqs, rows, rows, pages, role};
    struct at t = {0};
    struct err e = {0};
    CHECK(attn_select(&t.b, "cpu", &need, NULL, &e) == OK);
    CHECK(t.b->open(&t.a, g_dev, &need, &dims, &e) == OK && t.b->plan(t.a, &dims, &e) == OK);
    size_t pool = (size_t)reqs * (size_t)pages * PAGE;
    float *k = randf(pool * (size_t)width, 1), *vv = randf(pool * (size_t)(n_kv * v), 1);
    int32_t *table = MEM_ARRAY(int32_t, reqs * pages), *ints = MEM_ARRAY(int32_t, 4 * rows);
    uint64_t *anc = MEM_ARRAY(uint64_t, rows);
    for (int i = 0; i < reqs * pages; i++)
        table[i] = i * 7919 % (reqs * pages);
    double keys = 0;
    for (int r = 0; r < rows; r++) {
        int per = rows / reqs;
        ints[r] = r / per;
        ints[2 * rows + r] = ctx - per + r % per + 1;
        keys += ints[2 * rows + r];
        if (topk) {
            int j = r % per;
            anc[r] = 1ull << j | (j ? anc[r - j + (j - 1) / topk] : 0);
            ints[3 * rows + r] = ctx - per;
            keys -= j + 1 - __builtin_popcountll(anc[r]);
        }
    }
    t.c = (struct attn_call){.role = role,
                             .kind = kind,
                             .mask = mask,
                             .rows = rows,
                             .n_head = n_head,
                             .n_kv = n_kv,
                             .dims = need.dims,
                             .q = randf((size_t)rows * (size_t)(n_head * qk), 1),
                             .ldq = n_head * qk,
                             .out = randf((size_t)rows * (size_t)(n_head * v), 1),
                             .ldo = n_head * v,
                             .k = k,
                             .v = kind == ATTN_GQA ? vv : NULL,
                             .kv_type = DT_F32,
                             .slot = ints,
                             .first = ints + rows,
                             .last = ints + 2 * rows,
                             .table = table,
                             .pages_max = pages,
                             .page = PAGE,
                             .scale = 0.125f,
                             .ancestors = anc,
                             .row0 = ints + 3 * rows,
                             .kv_lora = v,
                             .rope = qk - v};
    double ms = best_ms(at_run, &t, 3);
    report("attention", shape, ms, 0, 2.0 * keys * n_head * (qk + v));
    t.b->close(t.a);
    mem_free(k);
    mem_free(vv);
    mem_free(table);
    mem_free(ints);
    mem_free(anc);
    mem_free((void *)t.c.q);
    mem_free(t.c.out);
}

/* ---- sampling ---- */

static void sample_run(void *ud)
{
    CHECK(dev_cpu.ops->sample(g_dev, ud) == OK);
}

static void bench_sample(const char *shape, int rows, struct slot_params sp)
{
    if (!wanted("sample"))
        return;
    enum { V = 49152 };
    struct op_sample a = {.m = rows, .vocab = V, .ldl = V};
    int32_t *ints = MEM_ARRAY(int32_t, 8 * (rows + 1));
    struct slot_params *params = MEM_ARRAY(struct slot_params, rows + 1);
    uint32_t *seen = MEM_ARRAY(uint32_t, (rows + 1) * (V / 32));
    for (int i = 0; i < (rows + 1) * (V / 32); i += 5)
        seen[i] = 1u << (i % 32); /* 308 tokens a slot */
    for (int r = 0; r < rows; r++) {
        ints[r] = r + 1;              /* slot */
        ints[rows + r] = 5;           /* tok */
        ints[2 * rows + r] = 100 + r; /* pos */
        params[r + 1] = sp;
        params[r + 1].seed = (uint64_t)r;
        params[r + 1].n_prompt = 1000;
    }
    float *logits = randf((size_t)rows * V, 1);
    for (size_t i = 0; i < (size_t)rows * V; i++)
        logits[i] = (float)rng_normal(&g_rng) * 4;
    a.logits = logits;
    a.out = MEM_ARRAY(struct sample_out, rows);
    a.work = randf((size_t)rows * V * 4, 1);
    a.rows.slot = ints;
    a.rows.tok = ints + rows;
    a.rows.pos = ints + 2 * rows;
    a.rows.req = ints;
    a.s = (struct slot_arrays){.n_slot = rows + 1,
                               .len_max = 4096,
                               .vocab = V,
                               .params = params,
                               .n_out = ints + 3 * rows,
                               .seen = seen,
                               .count = MEM_ARRAY(uint16_t, (rows + 1) * V)};
    char text[96];
    double ms = best_ms(sample_run, &a, 5);
    snprintf(text, sizeof text, "V49152 %d rows, %s: %.3f ms a row", rows, shape, ms / rows);
    report("sample", text, ms, 0, 0);
    mem_free(ints);
    mem_free(params);
    mem_free(seen);
    mem_free(logits);
    mem_free(a.out);
    mem_free(a.work);
    mem_free(a.s.count);
}

/* ---- drafting ---- */

static void pick_run(void *ud)
{
    CHECK(dev_cpu.ops->draft_pick(g_dev, ud) == OK);
}

static void ngram_run(void *ud)
{
    CHECK(dev_cpu.ops->draft_ngram(g_dev, ud) == OK);
}

/* One level of one request over a large vocabulary, and a lookup in a text without a match. */
static void bench_draft(float temperature)
{
    if (!wanted("draft"))
        return;
    enum { V = 151936, LEN = 100000, K = 4 };
    int32_t *ints = MEM_ARRAY(int32_t, 64 + 2 * LIM_DRAFT_NODES + 8 * K);
    int32_t *hist = MEM_ARRAY(int32_t, 2 * LEN);
    struct slot_params *params = MEM_ARRAY(struct slot_params, 2);
    for (int i = 0; i < LEN; i++)
        hist[LEN + i] = (int32_t)rng_below(&g_rng, 1000);
    hist[2 * LEN - 1] = hist[2 * LEN - 2] = 1000;
    params[1] = (struct slot_params){.temperature = temperature, .spec_mode = SPEC_NGRAM};
    int32_t *one = ints, *len = ints + 2, *n_rows = ints + 4, *tree = ints + 64;
    one[0] = one[1] = 1;
    len[1] = LEN - 1;
    struct slot_arrays s = {.gen = one,
                            .live = one,
                            .len = len,
                            .n_rows = n_rows,
                            .hist = hist,
                            .params = params,
                            .n_slot = 2,
                            .len_max = LEN,
                            .vocab = V};
    struct op_draft_pick a = {
        .s = s,
        .t = {.tok = tree, .parent = tree + LIM_DRAFT_NODES, .score = randf(LIM_DRAFT_NODES, 1)},
        .req_slot = one,
        .tail = one,
        .logits = randf(V, 8),
        .ldl = V,
        .work = randf((size_t)V * 4, 1),
        .reqs = 1,
        .topk = K,
        .vocab = V,
        .last = true};
    struct op_draft_ngram b = {
        .s = s, .req_slot = one, .req_gen = one, .reqs = 1, .n_min = 2, .n_max = 5, .steps = 7};
    char text[64];
    snprintf(text, sizeof text, "pick V151936 top 4, temperature %g", (double)temperature);
    report("draft", text, best_ms(pick_run, &a, 5), 0, 0);
    report("draft", "ngram 100000 tokens", best_ms(ngram_run, &b, 5), 0, 0);
    mem_free(ints);
    mem_free(hist);
    mem_free(params);
    mem_free(a.t.score);
    mem_free((void *)a.logits);
    mem_free(a.work);
}

/* ---- the small ones ---- */

static struct {
    struct op_rmsnorm norm;
    struct op_rope rope;
    struct op_silu_mul silu;
    struct op_add add;
} g_small;

static void norm_run(void *ud)
{
    (void)ud;
    dev_cpu.ops->rmsnorm(g_dev, &g_small.norm);
}

static void rope_run(void *ud)
{
    (void)ud;
    dev_cpu.ops->rope(g_dev, &g_small.rope);
}

static void silu_run(void *ud)
{
    (void)ud;
    dev_cpu.ops->silu_mul(g_dev, &g_small.silu);
}

static void add_run(void *ud)
{
    (void)ud;
    dev_cpu.ops->add(g_dev, &g_small.add);
}

static void bench_small(int rows)
{
    if (!wanted("small"))
        return;
    float *x = randf((size_t)rows * 1536, 1), *y = randf((size_t)rows * 1536, 1);
    int32_t *pos = MEM_ARRAY(int32_t, rows);
    void *w = rand_weight(1536, DT_BF16);
    g_small.norm = (struct op_rmsnorm){.out = y,
                                       .x = x,
                                       .w = {w, DT_BF16, 1, 576, NULL, DT_NONE},
                                       .rows = rows,
                                       .dim = 576,
                                       .ldx = 576,
                                       .ldo = 576,
                                       .n_group = 1,
                                       .eps = 1e-5f};
    g_small.rope = (struct op_rope){.x = x,
                                    .pos = pos,
                                    .cos = y,
                                    .sin = y,
                                    .rows = rows,
                                    .heads = 9,
                                    .dim = 64,
                                    .pos_max = 8,
                                    .ldx = 576,
                                    .stride = 64};
    g_small.silu = (struct op_silu_mul){.out = x,
                                        .gate = x,
                                        .up = y,
                                        .rows = rows,
                                        .dim = 1536,
                                        .ldg = 1536,
                                        .ldu = 1536,
                                        .ldo = 1536};
    g_small.add = (struct op_add){.x = x, .y = y, .rows = rows, .dim = 576};
    char shape[64];
    snprintf(shape, sizeof shape, "rmsnorm R%d 576", rows);
    report("small", shape, best_ms(norm_run, NULL, 9), 0, 0);
    snprintf(shape, sizeof shape, "rope R%d 9 x 64", rows);
    report("small", shape, best_ms(rope_run, NULL, 9), 0, 0);
    snprintf(shape, sizeof shape, "silu_mul R%d 1536", rows);
    report("small", shape, best_ms(silu_run, NULL, 9), 0, 0);
    snprintf(shape, sizeof shape, "add R%d 576", rows);
    report("small", shape, best_ms(add_run, NULL, 9), 0, 0);
    mem_free(x);
    mem_free(y);
    mem_free(pos);
    mem_free(w);
}

static void bench_more(void)
{
    for (int rows = 1; rows <= 256; rows *= 16) {
        bench_heads(rows, false);
        bench_heads(rows, true);
    }
    bench_attn("GQA 9/3 x 64, decode 1 x 2048", ATTN_GQA, 9, 3, 64, 64, 1, 1, 2048, 0);
    bench_attn("GQA 9/3 x 64, decode 32 x 512", ATTN_GQA, 9, 3, 64, 64, 32, 32, 512, 0);
    bench_attn("GQA 9/3 x 64, prefill 512 of 512", ATTN_GQA, 9, 3, 64, 64, 1, 512, 512, 0);
    bench_attn("GQA 9/3 x 64, prefill 512 of 4096", ATTN_GQA, 9, 3, 64, 64, 1, 512, 4096, 0);
    bench_attn("GQA 9/3 x 64, chain of 16 x 8, 512", ATTN_GQA, 9, 3, 64, 64, 8, 128, 512, 1);
    bench_attn("GQA 9/3 x 64, tree of 16 x 8, 512", ATTN_GQA, 9, 3, 64, 64, 8, 128, 512, 3);
    bench_attn("MLA 16 x 576/512, decode 1 x 2048", ATTN_MLA_ABSORBED, 16, 1, 576, 512, 1, 1, 2048,
               0);
    bench_attn("MLA 16 x 576/512, prefill 128 of 1024", ATTN_MLA_ABSORBED, 16, 1, 576, 512, 1, 128,
               1024, 0);
    struct slot_params p = {.top_p = 1, .repetition = 1, .n_logprobs = -1};
    bench_sample("greedy", 1, p);
    bench_sample("greedy", 32, p);
    p.temperature = 0.8f;
    bench_sample("temperature", 8, p);
    p.top_k = 50;
    bench_sample("temperature, top-k 50", 8, p);
    p.top_p = 0.95f;
    bench_sample("temperature, top-k 50, top-p 0.95", 8, p);
    p.top_k = 0;
    bench_sample("temperature, top-p 0.95", 8, p);
    p.repetition = 1.1f;
    p.presence = 0.5f;
    p.min_p = 0.05f;
    bench_sample("temperature, top-p, min-p, penalties", 8, p);
    p.n_logprobs = 20;
    bench_sample("all of it, 20 logprobs", 8, p);
    bench_draft(0);
    bench_draft(0.8f);
    bench_small(1);
    bench_small(32);
    bench_small(512);
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
