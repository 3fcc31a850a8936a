/* Goal: every shape of configs/shapes opens as the model it names, and generated weights are what
 * dummy.h promises: the same for any number of threads, of the stated spread, routing near balance.
 * Method: parameter counts as the models' cards and indexes state them; statistics of generated
 * tensors; a small model run on them. No weights of the large shapes are made. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/model/model.h"
#include "engine/model/safetensors.h"
#include "engine/worker/runner.h"

static const struct shape {
    const char *file, *family;
    int64_t n_param; /* without next-token layers and scales */
    int n_layer, n_mtp, kv_width;
    bool fp8;
} shapes[] = {
    {"llama-3.1-8b", "llama", 8030261248, 32, 0, 2048, false},
    {"qwen3-8b", "qwen3", 8190735360, 36, 0, 2048, false},
    {"qwen3-30b-a3b", "qwen3_moe", 30532122624, 48, 0, 1024, false},
    {"qwen3-2layer", "qwen3", 82250496, 2, 0, 256, false},
    {"deepseek-v2-lite", "deepseek", 15706484224, 27, 0, 576, false},
    {"deepseek-v3", "deepseek", 671026419200, 61, 1, 576, true},
    {"kimi-k2", "deepseek", 1026408232448, 61, 0, 576, true},
};

static int open_shape(struct model **m, const char *name, int n_layer, struct err *e)
{
    char path[128];
    snprintf(path, sizeof path, "configs/shapes/%s.json", name);
    return model_open_conf(m, &(struct model_conf){.path = path, .dummy = true, .n_layer = n_layer},
                           e);
}

START_TEST(counts)
{
    const struct shape *s = &shapes[_i];
    struct model *m;
    struct err e = {0};
    ck_assert_msg(open_shape(&m, s->file, 0, &e) == OK, "%s: %s", s->file, e.text);
    const struct model_info *i = model_info(m);
    ck_assert_str_eq(i->family, s->family);
    ck_assert_int_eq(i->n_param, s->n_param);
    ck_assert_int_eq(i->n_layer, s->n_layer);
    ck_assert_int_eq(i->n_mtp, s->n_mtp);
    ck_assert_int_eq(i->n_group, 1);
    ck_assert_int_eq(i->group[0].k_width + i->group[0].v_width, s->kv_width);
    double bytes = (double)i->weight_bytes / (double)i->n_param;
    ck_assert_msg(s->fp8 ? bytes > 1 && bytes < 1.01 : bytes == 2, "%g bytes each", bytes);
    ck_assert_int_ge(i->n_eos, 1);
    model_close(m);
}
END_TEST

START_TEST(cut)
{
    struct model *m;
    struct err e = {0};
    ck_assert_msg(open_shape(&m, "deepseek-v3", 4, &e) == OK, "%s", e.text);
    ck_assert_int_eq(model_info(m)->n_layer, 4);
    ck_assert_int_eq(model_info(m)->n_mtp, 1);
    ck_assert_int_eq(model_info(m)->group[0].n_layer, 4);
    ck_assert_int_lt(model_info(m)->n_param, 20000000000);
    model_close(m);
    ck_assert_int_eq(open_shape(&m, "qwen3-8b", 37, &e), E_INVAL);
    ck_assert_msg(strstr(e.text, "37") && strstr(e.text, "36"), "%s", e.text);
    struct model_conf c = {.path = "configs/models/demo", .n_layer = 2};
    ck_assert_int_eq(model_open_conf(&m, &c, &e), E_INVAL);
    c = (struct model_conf){.path = "configs/shapes/none.json", .dummy = true};
    ck_assert_int_eq(model_open_conf(&m, &c, &e), E_IO);
    c.path = "configs/shapes/qwen3-8b.json"; /* a shape is no checkpoint */
    c.dummy = false;
    ck_assert_int_eq(model_open_conf(&m, &c, &e), E_IO);
}
END_TEST

/* ---- values ---- */

enum { K = 256, N = 3000, EXPERTS = 64, TOPK = 6 };

static struct weight take1(struct tensors *t, const char *name, int64_t n, int64_t k, unsigned fl)
{
    struct weight w;
    struct err e = {0};
    ck_assert_msg(tensors_take(t, name, n, k, fl, &w, &e) == 1, "%s", e.text);
    return w;
}

struct set {
    struct tensors *t;
    struct weight embed, q, o, norm, bias, router;
};

static void set_make(struct set *s, int layers, bool fp8, int threads)
{
    s->t = tensors_generate(false, layers);
    if (fp8)
        tensors_allow_fp8(s->t);
    s->embed = take1(s->t, "model.embed_tokens.weight", N, K, 0);
    s->q = take1(s->t, "model.layers.0.self_attn.q_proj.weight", 2 * N, K, TAKE_FP8);
    s->o = take1(s->t, "model.layers.0.self_attn.o_proj.weight", N, K, TAKE_FP8);
    s->norm = take1(s->t, "model.norm.weight", 1, K, TAKE_VECTOR);
    s->bias = take1(s->t, "model.layers.0.self_attn.q_proj.bias", 1, K, TAKE_VECTOR);
    s->router = take1(s->t, "model.layers.0.mlp.gate.weight", EXPERTS, K, 0);
    struct weight none;
    ck_assert_int_eq(tensors_take(s->t, "x", 2, 2, TAKE_OPTIONAL, &none, NULL), 0);
    ck_assert_int_eq(tensors_all_taken(s->t, NULL), OK);
    tensors_fill(s->t, threads);
}

static double at(const struct weight *w, int64_t i, int64_t j)
{
    double v = (double)dtype_load(w->p, w->dt, i * w->k + j);
    int64_t cols = (w->k + 127) / 128;
    return w->scale ? v * (double)dtype_load(w->scale, w->scale_dt, i / 128 * cols + j / 128) : v;
}

static void expect_spread(const struct weight *w, double mean, double dev)
{
    double s = 0, q = 0, n = (double)(w->n * w->k);
    for (int64_t i = 0; i < w->n; i++)
        for (int64_t j = 0; j < w->k; j++) {
            double v = at(w, i, j);
            s += v;
            q += v * v;
        }
    double m = s / n, d = sqrt(fmax(q / n - m * m, 0));
    ck_assert_msg(fabs(m - mean) <= 0.01 * dev, "mean %g, not %g", m, mean);
    ck_assert_msg(fabs(d - dev) <= 0.02 * dev, "deviation %g, not %g", d, dev);
}

START_TEST(spreads)
{
    struct set s;
    double dev = 1.2 / sqrt(K);
    set_make(&s, 8, _i, 2);
    ck_assert_int_eq(s.q.dt, _i ? DT_F8E4M3 : DT_BF16);
    expect_spread(&s.embed, 0, 1);
    expect_spread(&s.q, 0, dev);
    expect_spread(&s.o, 0, dev / 4); /* over the root of twice 8 layers */
    expect_spread(&s.norm, 1, 0);
    expect_spread(&s.bias, 0, 0);
    tensors_close(s.t);
}
END_TEST

START_TEST(any_threads)
{
    struct set a, b;
    set_make(&a, 8, false, 1);
    set_make(&b, 8, false, 3);
    ck_assert_mem_eq(a.q.p, b.q.p, (size_t)(2 * N * K) * 2);
    ck_assert_mem_eq(a.embed.p, b.embed.p, (size_t)(N * K) * 2);
    ck_assert_int_ne(memcmp(a.q.p, a.o.p, (size_t)K), 0); /* names differ, so do values */
    /* and so do parts of one tensor, blocks of 2^20 elements included */
    ck_assert_int_ne(memcmp(a.q.p, (const char *)a.q.p + (2 << 20), 256), 0);
    tensors_close(a.t);
    tensors_close(b.t);
}
END_TEST

/* Values made a part at a time, wherever the cuts are, are those made at once: what a device gets
 * is what the CPU device reads. */
START_TEST(any_parts)
{
    static const size_t part[] = {64, 4096, (1 << 20) + 64, 3 << 20};
    struct set s;
    set_make(&s, 8, _i, 1);
    for (size_t i = 0; i < tensors_count(s.t); i++) {
        const struct tensor *x = tensors_at(s.t, i);
        char *got = mem_alloc(x->bytes);
        for (size_t c = x->bytes > 1 << 20 ? 2 : 0; c < ARRAY_LEN(part); c++) {
            memset(got, 0x5a, x->bytes);
            for (size_t at = 0; at < x->bytes; at += part[c])
                tensors_make(s.t, i, at, x->bytes - at < part[c] ? x->bytes - at : part[c],
                             got + at);
            ck_assert_msg(memcmp(got, x->p, x->bytes) == 0, "%s in parts of %zu", x->name, part[c]);
        }
        mem_free(got);
    }
    tensors_close(s.t);
}
END_TEST

/* Normalised embedding rows against the router: the busiest expert gets at most half as many again
 * as the mean, the idlest at least half. */
START_TEST(balance)
{
    struct set s;
    int load[EXPERTS] = {0};
    set_make(&s, 8, false, 1);
    for (int64_t i = 0; i < N; i++) {
        double z[EXPERTS];
        for (int64_t x = 0; x < EXPERTS; x++) {
            z[x] = 0;
            for (int64_t j = 0; j < K; j++)
                z[x] += at(&s.embed, i, j) * at(&s.router, x, j);
        }
        for (int k = 0; k < TOPK; k++) {
            int best = 0;
            for (int x = 1; x < EXPERTS; x++)
                best = z[x] > z[best] ? x : best;
            z[best] = -INFINITY;
            load[best]++;
        }
    }
    double mean = (double)N * TOPK / EXPERTS;
    for (int x = 0; x < EXPERTS; x++)
        ck_assert_msg(load[x] < 1.5 * mean && load[x] > 0.5 * mean, "expert %d: %d of mean %g", x,
                      load[x], mean);
    tensors_close(s.t);
}
END_TEST

/* Both demo shapes on generated weights: the logits of a prefill are finite and of the spread a
 * head over normalised rows gives. The shapes tie the head to the embedding: deviation root H. */
START_TEST(runs)
{
    static const char *const shape[] = {"configs/models/demo/config.json",
                                        "configs/models/demo-qwen3"};
    struct worker_conf c = {
        .model_dir = shape[_i],
        .dummy = true,
        .n_layer = 3,
        .device = "cpu",
        .threads = 2,
        .reqs_max = 2,
        .slots_max = 2,
        .prefill_rows_max = 16,
        .len_max = 64,
        .kv_tokens = 128,
    };
    struct runner r;
    struct step s;
    struct err e = {0};
    ck_assert_msg(runner_open(&r, &c, &e) == OK, "%s", e.text);
    ck_assert_int_eq(r.info.model.n_layer, 3);
    ck_assert_int_eq(runner_step_init(&r, &s, &e), OK);
    s.no = 1;
    s.n_start = 1;
    s.start[0] = (struct slot_start){1,
                                     1,
                                     {.n_prompt = 16,
                                      .len_max = 64,
                                      .max_out = 8,
                                      .top_p = 1,
                                      .repetition = 1,
                                      .n_logprobs = 2}};
    for (int g = 0; g < r.kv.n_group; g++)
        s.set[s.n_set++] = (struct page_set){g, 1, 0, 1};
    s.n_chunk = 1;
    s.chunk[0] = (struct prefill_chunk){1, 1, 0, 16, 0, true, -1, false};
    s.n_row = 16;
    for (int i = 0; i < 16; i++)
        s.tok[i] = 100 + 7 * i;
    ck_assert_msg(runner_step(&r, &s) == OK, "%s", s.err.text);
    ck_assert_int_eq(s.prefill_rec[0].n, 1);
    ck_assert_int_eq(s.prefill_rec[0].tok[0].bad, 0);
    int n = r.info.model.vocab;
    double q = 0, h = sqrt((double)r.info.model.hidden);
    for (int i = 0; i < n; i++)
        q += (double)r.b.logits[i] * (double)r.b.logits[i];
    q = sqrt(q / n);
    ck_assert_msg(q > 0.9 * h && q < 1.2 * h, "logits of deviation %g, root of hidden %g", q, h);
    runner_step_done(&r, &s);
    runner_close(&r);
}
END_TEST

Suite *suite_shapes(void);
Suite *suite_shapes(void)
{
    Suite *s = suite_create("shapes");
    TCase *t = tcase_create("shapes");
    tcase_add_loop_test(t, counts, 0, (int)ARRAY_LEN(shapes));
    tcase_add_test(t, cut);
    tcase_add_loop_test(t, spreads, 0, 2);
    tcase_add_test(t, any_threads);
    tcase_add_loop_test(t, any_parts, 0, 2);
    tcase_add_test(t, balance);
    tcase_add_loop_test(t, runs, 0, 2);
    suite_add_tcase(s, t);
    return s;
}
