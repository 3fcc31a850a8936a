/* Goal: what caches of other types do to a model: the scales of a checkpoint reach the cache and
 * what reads it, bad ones are refused, and rounding keys and values costs as little as stated.
 * Method: pools of two runs element by element (keys and values of the first layer do not depend on
 * a cache); the trained models over their own greedy text, fp32 caches against bf16 and fp8. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/base/rng.h"
#include "test/model/gen.h"
#include "test/model/runner.h"

enum { LEN = 60, TEXTS = 4, PROMPT = 24, TEXT = 320 };

static void open_run(struct mrun *r, const char *dir, enum dtype kv, int len)
{
    struct err e = {0};
    struct mrun_conf c = {.rows_max = 512, .len_max = len, .threads = 2, .kv_dtype = kv};
    c.n_slot = TEXTS + 1;
    ck_assert_msg(mrun_open(r, dir, &c, &e) == OK, "%s", e.text);
}

static void prefill(struct mrun *r, int slot, const int32_t *tok, int from, int to, float *logits)
{
    struct err e = {0};
    ck_assert_msg(mrun_prefill(r, slot, tok, from, to, 512, logits, &e) == OK, "%s", e.text);
}

/* ---- scales ---- */

static void add_scales(struct gen *g, const char *form, const char *type, double k, double v)
{
    for (int i = 0; i < 3; i++)
        for (int which = 0; which < 2; which++) {
            char name[96];
            snprintf(name, sizeof name, "model.layers.%d.self_attn.%s%c_scale", i,
                     !*form  ? ""
                     : which ? "v_proj."
                             : "k_proj.",
                     which ? 'v' : 'k');
            gen_add(g, name, type, 0, 1, which ? v : k, 0);
        }
}

/* Layer 0 of a plane of `b` is that of `a` (fp32), divided and rounded. */
static void same_plane(const struct mrun *a, const struct mrun *b, const void *x, const void *y,
                       int width, float scale)
{
    const struct kv_view *v = &a->kv.view[0];
    enum dtype dt = b->kv.view[0].dt;
    int written = 0, wrong = 0;
    for (int p = 0; p < LEN; p++) {
        int64_t row = (int64_t)a->table[0][v->pages_max + p / v->page] * v->page + p % v->page;
        for (int i = 0; i < width; i++) {
            float f = dtype_load(x, DT_F32, row * width + i);
            uint8_t want[4] = {0};
            dtype_store(want, dt, 0, dt == DT_F8E4M3 ? f * (1 / scale) : f);
            size_t at = (size_t)(row * width + i) * dtype_size(dt);
            wrong += memcmp(want, (const char *)y + at, dtype_size(dt)) != 0;
            written++;
        }
    }
    ck_assert_msg(wrong == 0 && written == LEN * width, "%d of %d", wrong, written);
}

static double apart(const float *a, const float *b, size_t n)
{
    double worst = 0;
    for (size_t i = 0; i < n; i++) {
        double d = fabs((double)a[i] - (double)b[i]);
        worst = d > worst || d != d ? d : worst;
    }
    return worst;
}

static const struct {
    const char *name, *form, *type;
    double k, v; /* 0: the checkpoint has none */
    bool mla;
} scaled[] = {{"llama3", "", "F32", 0.11, 0.04, false},
              {"qwen3", "proj", "BF16", 0.0625, 0.03125, false},
              {"qwen2-window", "", "F32", 0, 0, false},
              {"ds-v2-lite", "", "F32", 0.3, 0.3, true},
              {"ds-v2-lite", "", "F32", 0, 0, true}};

START_TEST(scales)
{
    struct gen g;
    struct mrun plain, fp8;
    int32_t tok[LEN];
    struct rng r = {9};
    gen_open(&g, scaled[_i].name);
    float k = 1, v = 1;
    if (scaled[_i].k > 0) {
        add_scales(&g, scaled[_i].form, scaled[_i].type, scaled[_i].k, scaled[_i].v);
        k = (float)scaled[_i].k;
        v = (float)scaled[_i].v;
    }
    gen_write(&g, 1);
    open_run(&plain, g.dir, DT_F32, LEN);
    open_run(&fp8, g.dir, DT_F8E4M3, LEN);
    size_t n = (size_t)LEN * (size_t)plain.info->vocab;
    float *a = MEM_ARRAY(float, n), *b = MEM_ARRAY(float, n), top = 0;
    for (int i = 0; i < LEN; i++)
        tok[i] = (int32_t)rng_below(&r, (uint64_t)plain.info->vocab);
    prefill(&plain, 1, tok, 0, LEN, a);
    prefill(&fp8, 1, tok, 0, LEN, b);
    const struct kv_group *kg = &plain.info->group[0];
    same_plane(&plain, &fp8, plain.kv.view[0].k, fp8.kv.view[0].k, kg->k_width, k);
    if (kg->v_width)
        same_plane(&plain, &fp8, plain.kv.view[0].v, fp8.kv.view[0].v, kg->v_width, v);
    for (size_t i = 0; i < n; i++)
        top = fabsf(a[i]) > top ? fabsf(a[i]) : top;
    double off = apart(a, b, n);
    printf("kv types: %s, fp8 at scales %g, %g: logits within %.2f are off by %.3f\n",
           scaled[_i].name, (double)k, (double)v, (double)top, off);
    /* nets of random weights amplify; a scale that does not arrive is off by all of it */
    ck_assert_msg(off > 0 && off < 0.2 * (double)top, "%g of %g", off, (double)top);
    mem_free(a);
    mem_free(b);
    mrun_close(&plain);
    mrun_close(&fp8);
    gen_close(&g);
}
END_TEST

/* A cache of fp32 takes no notice of scales. */
START_TEST(scales_unused)
{
    struct gen g[2];
    struct mrun r[2];
    float *out[2];
    int32_t tok[LEN];
    for (int i = 0; i < LEN; i++)
        tok[i] = 3 + i;
    for (int i = 0; i < 2; i++) {
        gen_open(&g[i], "llama3");
        if (i)
            add_scales(&g[i], "", "F32", 0.5, 3);
        gen_write(&g[i], 1);
        open_run(&r[i], g[i].dir, DT_F32, LEN);
        out[i] = MEM_ARRAY(float, LEN *r[i].info->vocab);
        prefill(&r[i], 1, tok, 0, LEN, out[i]);
    }
    ck_assert_int_eq(r[0].info->n_param, r[1].info->n_param);
    ck_assert_mem_eq(out[0], out[1], (size_t)(LEN * r[0].info->vocab) * sizeof(float));
    for (int i = 0; i < 2; i++) {
        mem_free(out[i]);
        mrun_close(&r[i]);
        gen_close(&g[i]);
    }
}
END_TEST

static const struct {
    const char *model, *name, *type;
    int cols;
    double value;
    const char *more; /* a second tensor, of 0.5 */
    const char *want;
} refused[] = {
    {"llama3", "k_scale", "F32", 1, 0, NULL, "no scale"},
    {"llama3", "v_scale", "F32", 1, -1, NULL, "no scale"},
    {"llama3", "k_scale", "F32", 2, 1, NULL, "not one scale"},
    {"llama3", "k_scale", "I64", 1, 1, NULL, "I64"},
    {"llama3", "k_scale", "F32", 1, 0.25, "k_proj.k_scale", "by its other name"},
    {"llama3", "q_scale", "F32", 1, 1, NULL, "not part"},
    {"ds-v3", "k_scale", "F32", 1, 0.25, "v_scale", "latent cache has one scale"},
};

START_TEST(scales_refused)
{
    struct gen g;
    struct model *m;
    struct err e = {0};
    char name[96];
    gen_open(&g, refused[_i].model);
    snprintf(name, sizeof name, "model.layers.1.self_attn.%s", refused[_i].name);
    if (!strcmp(refused[_i].type, "I64"))
        gen_add_list(&g, name, "I64", json_pack("[i]", 1));
    else
        gen_add(&g, name, refused[_i].type, 0, refused[_i].cols, refused[_i].value, 0);
    if (refused[_i].more) {
        snprintf(name, sizeof name, "model.layers.1.self_attn.%s", refused[_i].more);
        gen_add(&g, name, "F32", 0, 1, 0.5, 0);
    }
    gen_write(&g, 1);
    ck_assert_int_lt(model_open(&m, g.dir, &e), 0);
    ck_assert_msg(strstr(e.text, refused[_i].want) && strstr(e.text, "_scale"), "%s", e.text);
    gen_close(&g);
}
END_TEST

/* ---- what rounding costs ---- */

static int best(const float *v, int n)
{
    int k = 0;
    for (int i = 1; i < n; i++)
        k = v[i] > v[k] ? i : k;
    return k;
}

static double logprob(const float *v, int n, int k)
{
    double top = (double)v[best(v, n)], sum = 0;
    for (int i = 0; i < n; i++)
        sum += exp((double)v[i] - top);
    return (double)v[k] - top - log(sum);
}

/* The model's own greedy continuation of a random prompt. */
static void make_text(struct mrun *r, int slot, int32_t *tok)
{
    int vocab = r->info->vocab;
    struct rng g = {(uint64_t)slot * 991};
    float *logits = MEM_ARRAY(float, TEXT *vocab);
    for (int i = 0; i < PROMPT; i++)
        tok[i] = (int32_t)(300 + rng_below(&g, (uint64_t)(vocab - 300)));
    prefill(r, slot, tok, 0, PROMPT, logits);
    for (int at = PROMPT; at < TEXT; at++) {
        struct mrow row = {.slot = slot, .pos = at};
        struct err e = {0};
        row.tok = tok[at] = best(logits + (at - 1) * vocab, vocab);
        ck_assert_msg(mrun_rows(r, TGT_VERIFY, 1, &row, logits + at * vocab, &e) == OK, "%s",
                      e.text);
    }
    mem_free(logits);
}

struct cost {
    int n, differ;   /* positions; where the best token is another */
    double gap;      /* the largest gap of the first's two best where it is */
    double off, sum; /* of log probabilities of the text's tokens: largest, sum */
};

static void compare(const float *a, const float *b, int vocab, const int32_t *tok, struct cost *c)
{
    for (int p = PROMPT; p < TEXT - 1; p++) {
        const float *x = a + p * vocab, *y = b + p * vocab;
        double d = fabs(logprob(x, vocab, tok[p + 1]) - logprob(y, vocab, tok[p + 1]));
        int i = best(x, vocab), j = best(y, vocab);
        c->off = d > c->off ? d : c->off;
        c->sum += d;
        c->n++;
        if (i == j)
            continue;
        double gap = (double)x[i] - (double)x[j];
        c->differ++;
        c->gap = gap > c->gap ? gap : c->gap;
    }
}

/* Limits: mean difference of log probabilities, share of other best tokens. */
static const struct {
    const char *model;
    enum dtype kv;
    double mean, share;
} costs[] = {
    {"configs/models/demo", DT_BF16, 0.01, 0.005},
    {"configs/models/demo-qwen3", DT_BF16, 0.01, 0.005},
    {"configs/models/demo", DT_F8E4M3, 0.1, 0.05},
    {"configs/models/demo-qwen3", DT_F8E4M3, 0.1, 0.05},
};

START_TEST(cost)
{
    struct mrun r, o;
    struct cost c = {0};
    int32_t tok[TEXT];
    if (SANITIZED && _i % 2)
        return;
    open_run(&r, costs[_i].model, DT_F32, TEXT);
    open_run(&o, costs[_i].model, costs[_i].kv, TEXT);
    size_t n = (size_t)TEXT * (size_t)r.info->vocab;
    float *a = MEM_ARRAY(float, n), *b = MEM_ARRAY(float, n);
    for (int s = 1; s <= (SANITIZED ? 1 : TEXTS / 2); s++) {
        make_text(&r, s, tok);
        prefill(&r, s + TEXTS / 2, tok, 0, TEXT, a);
        prefill(&o, s, tok, 0, TEXT, b);
        compare(a, b, r.info->vocab, tok, &c);
    }
    printf("kv types: %s, %s against f32: %d of %d best tokens differ (gaps up to %.3f), log "
           "probabilities off by %.4f on average, %.3f at most\n",
           costs[_i].model, dtype_name(costs[_i].kv), c.differ, c.n, c.gap, c.sum / c.n, c.off);
    ck_assert_msg(c.sum / c.n < costs[_i].mean, "%g", c.sum / c.n);
    ck_assert_msg(c.differ <= costs[_i].share * c.n, "%d of %d", c.differ, c.n);
    mem_free(a);
    mem_free(b);
    mrun_close(&r);
    mrun_close(&o);
}
END_TEST

Suite *suite_kv_types(void);
Suite *suite_kv_types(void)
{
    Suite *s = suite_create("kv_types");
    TCase *t = tcase_create("kv_types");
    tcase_set_timeout(t, 120);
    tcase_add_loop_test(t, scales, 0, (int)ARRAY_LEN(scaled));
    tcase_add_test(t, scales_unused);
    tcase_add_loop_test(t, scales_refused, 0, (int)ARRAY_LEN(refused));
    tcase_add_loop_test(t, cost, 0, (int)ARRAY_LEN(costs));
    suite_add_tcase(s, t);
    return s;
}
