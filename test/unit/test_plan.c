/* Goal: `specd plan` says what a start would do: its numbers are those of an opened engine, its
 * refusals those of engine_open, and generated weights serve token ids without a tokenizer.
 * Method: plan and open the same settings; forced backends and page sizes that do not fit. */
#include <check.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/buf.h"
#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/base/clock.h"
#include "engine/base/thread.h"
#include "engine/engine.h"

static const struct engine_conf small = {
    .model = "configs/models/demo",
    .device = "cpu",
    .threads = 2,
    .max_model_len = 256,
    .max_num_seqs = 4,
    .max_num_batched_tokens = 32,
};

static void has(const struct buf *b, const char *want)
{
    ck_assert_msg(strstr(buf_cstr(b), want) != NULL, "'%s' is not in:\n%s", want, buf_cstr(b));
}

static void lacks(const struct buf *b, const char *what)
{
    ck_assert_msg(strstr(buf_cstr(b), what) == NULL, "'%s' is in:\n%s", what, buf_cstr(b));
}

static double mib(const struct buf *b, const char *row)
{
    const char *at = strstr(buf_cstr(b), row);
    double v = -1;
    ck_assert_msg(at && sscanf(at + strlen(row), "%lf MiB", &v) == 1, "no row '%s'", row);
    return v;
}

START_TEST(as_opened)
{
    struct buf b = {0};
    struct err e = {0};
    struct engine *g;
    struct engine_conf c = small;
    c.model = _i == 1 ? "configs/models/demo-qwen3" : "configs/models/demo";
    c.speculative = _i == 2 ? "mtp" : "off";
    ck_assert_msg(engine_plan(&c, &b, &e) == OK, "%s", e.text);
    ck_assert_msg(engine_open(&g, &c, NULL, NULL, &e) == OK, "%s", e.text);
    const struct engine_info *i = engine_info(g);
    char want[96];
    snprintf(want, sizeof want, "parameters %lld ", (long long)i->n_param);
    has(&b, want);
    double weights = mib(&b, "  weights   ") + (_i == 2 ? mib(&b, "drafter weights") : 0);
    ck_assert_double_eq_tol(weights, (double)i->weight_bytes / (1 << 20), 0.02);
    snprintf(want, sizeof want, "%lld pages of %d", (long long)i->kv_pages, i->page);
    has(&b, want);
    snprintf(want, sizeof want, "chosen         %d ", i->page);
    has(&b, want);
    double work = mib(&b, "model workspace") + mib(&b, "attention workspace") +
                  mib(&b, "slots, batch, logits") + (_i == 2 ? mib(&b, "drafter workspace") : 0);
    ck_assert_double_eq_tol(work, (double)i->workspace_bytes / (1 << 20), 0.02);
    double kv = mib(&b, "  kv group 0   ") + (_i == 2 ? mib(&b, "drafter kv   ") : 0);
    ck_assert_double_eq_tol(kv, (double)i->kv_bytes / (1 << 20), 0.02);
    ck_assert_double_eq_tol(
        mib(&b, "total"), (double)(i->workspace_bytes + i->kv_bytes + i->weight_bytes) / (1 << 20),
        0.02);
    has(&b, "      256 tokens x 4 sequences");
    engine_close(g);
    buf_done(&b);
}
END_TEST

/* What drafts, in what shape, and that every role of the drafter has its rows in the matrix. */
START_TEST(speculation)
{
    struct buf b = {0};
    struct err e = {0};
    struct engine_conf c = small;
    ck_assert_int_eq(engine_plan(&c, &b, &e), OK);
    has(&b, "speculation off\n");
    has(&b, "next-token 1 layer(s), kept aside");
    lacks(&b, "drf_");
    lacks(&b, "drafter");
    buf_reset(&b);
    c.speculative = "auto";
    c.spec_steps = 2;
    c.spec_topk = 3;
    c.spec_tokens = 6;
    ck_assert_msg(engine_plan(&c, &b, &e) == OK, "%s", e.text);
    has(&b, "speculation mtp (chosen by auto)\n");
    has(&b, "next-token 1 layer(s), the first one drafts");
    has(&b, "shape      S 2 drafts on a path, K 3, N 6 rows of a request in a verify\n");
    has(&b, "the target's own layer");
    has(&b, "drafter kv 0 1 layers, mla, rows of 80 + 0 f32");
    static const char *const roles[] = {"drf_prefill", "drf_extend ", "drf_decode "};
    for (size_t i = 0; i < ARRAY_LEN(roles); i++) {
        char want[96];
        snprintf(want, sizeof want, "%s 0  mla absorbed      ref-mla       ok, chosen", roles[i]);
        has(&b, want);
        snprintf(want, sizeof want, "%s 0  mla decompressed  ref-mla-full  ok\n", roles[i]);
        has(&b, want);
        snprintf(want, sizeof want, "%s 0  mla absorbed      ref-gqa       does not", roles[i]);
        has(&b, want);
    }
    has(&b, "in the pages of kv group 0\n");
    buf_reset(&b);
    c = small;
    c.speculative = "ngram";
    c.spec_ngram_max = 4;
    c.spec_topk = 3;
    ck_assert_msg(engine_plan(&c, &b, &e) == OK, "%s", e.text);
    has(&b, "speculation ngram\n");
    has(&b, "to 4 tokens, for all requests\n");
    has(&b, "chains of 7 drafts for the best match, 4 for each of 2 others\n");
    lacks(&b, "drf_");
    buf_reset(&b);
    c = small;
    c.model = "configs/models/demo-qwen3";
    c.draft = "configs/models/demo-qwen3-eagle3";
    c.speculative = "auto";
    ck_assert_msg(engine_plan(&c, &b, &e) == OK, "%s", e.text);
    has(&b, "speculation eagle3 (chosen by auto)\n");
    has(&b, "reads what enters the target's layers ");
    has(&b, "drafter kv 0 1 layers, gqa");
    has(&b, "drf_extend  0  gqa               ref-gqa       ok, chosen");
    buf_done(&b);
}
END_TEST

/* Settings of speculation that contradict the model, each other, or nothing being drafted: plan and
 * open refuse them with one sentence that names both sides. */
static const struct {
    const char *model, *method, *draft, *backend;
    int steps, topk, tokens, lo, hi;
    const char *word[2];
} bad_spec[] = {
    {"demo", "off", "configs/models/demo-qwen3", NULL, 0, 0, 0, 0, 0, {"draft", "off"}},
    {"demo", "off", NULL, NULL, 3, 0, 0, 0, 0, {"spec_steps", "off"}},
    {"demo", "off", NULL, "ref-mla", 0, 0, 0, 0, 0, {"draft_attention_backend", "off"}},
    {"demo", "ngram", NULL, "ref-mla", 0, 0, 0, 0, 0, {"draft_attention_backend", "ngram"}},
    {"demo", "ngram", "configs/models/demo-qwen3", NULL, 0, 0, 0, 0, 0, {"draft", "lookup"}},
    {"demo", "ngram", NULL, NULL, 0, 17, 0, 0, 0, {"spec_topk", "lookup"}},
    {"demo", "ngram", NULL, NULL, 0, 0, 0, 5, 3, {"spec_ngram_min is 5", "spec_ngram_max 3"}},
    {"demo", "mtp", NULL, NULL, 16, 0, 0, 0, 0, {"spec_steps is 16", "15"}},
    {"demo", "mtp", NULL, NULL, 3, 1, 5, 0, 0, {"spec_tokens is 5", "spec_steps 3"}},
    {"demo", "mtp", NULL, NULL, 2, 2, 64, 0, 0, {"spec_tokens is 64", "spec_topk 2"}},
    {"demo", "mtp", NULL, "ref-gqa", 0, 0, 0, 0, 0, {"ref-gqa", "mla"}},
    {"demo", "mtp", "configs/models/demo-qwen3", NULL, 0, 0, 0, 0, 0, {"draft", "mtp"}},
    {"demo", "eagle3", NULL, NULL, 0, 0, 0, 0, 0, {"eagle3", "draft"}},
    {"demo", "eagle3", "configs/models/none", NULL, 0, 0, 0, 0, 0, {"none", ""}},
    {"demo", "dspark", NULL, NULL, 0, 0, 0, 0, 0, {"dspark", "not an algorithm"}},
    {"demo", "eagle3", "configs/models/demo-qwen3", NULL, 0, 0, 0, 0, 0, {"EAGLE-3", "draft"}},
    {"demo-qwen3",
     "draft-model",
     "configs/models/demo-qwen3-eagle3",
     NULL,
     0,
     0,
     0,
     0,
     0,
     {"draft-model", "language model"}},
    {"demo-qwen3", "mtp", NULL, NULL, 0, 0, 0, 0, 0, {"next-token", ""}},
};

START_TEST(refused_speculation)
{
    struct buf b = {0};
    struct err e = {0}, f = {0};
    struct engine *g;
    struct engine_conf c = small;
    char path[64];
    snprintf(path, sizeof path, "configs/models/%s", bad_spec[_i].model);
    c.model = path;
    c.speculative = bad_spec[_i].method;
    c.draft = bad_spec[_i].draft;
    c.draft_attention_backend = bad_spec[_i].backend;
    c.spec_steps = bad_spec[_i].steps;
    c.spec_topk = bad_spec[_i].topk;
    c.spec_tokens = bad_spec[_i].tokens;
    c.spec_ngram_min = bad_spec[_i].lo;
    c.spec_ngram_max = bad_spec[_i].hi;
    ck_assert_int_lt(engine_plan(&c, &b, &e), 0);
    for (int k = 0; k < 2; k++)
        ck_assert_msg(strstr(e.text, bad_spec[_i].word[k]) != NULL, "%s", e.text);
    ck_assert_int_lt(engine_open(&g, &c, NULL, NULL, &f), 0);
    ck_assert_str_eq(e.text, f.text);
    buf_done(&b);
}
END_TEST

START_TEST(matrix)
{
    struct buf b = {0};
    struct err e = {0};
    ck_assert_int_eq(engine_plan(&small, &b, &e), OK);
    has(&b, "tgt_prefill 0  mla absorbed      ref-mla       ok, chosen");
    has(&b, "tgt_verify  0  mla absorbed      ref-mla       ok, chosen");
    has(&b, "ref-gqa       does not do mla absorbed attention");
    has(&b, "tgt_verify  0  mla decompressed  ref-mla-full  ok\n");
    buf_reset(&b);
    struct engine_conf c = small;
    c.attention_backend = "ref-mla-full";
    ck_assert_int_eq(engine_plan(&c, &b, &e), OK);
    has(&b, "tgt_verify  0  mla decompressed  ref-mla-full  ok, chosen");
    lacks(&b, "ref-mla       ok, chosen");
    buf_done(&b);
}
END_TEST

/* The memory plan follows the type of the cache, the drafter's too; backends that do not read it
 * say so. */
START_TEST(kv_types)
{
    static const struct {
        const char *name, *word;
        double share;
    } types[] = {{"auto", "f32", 1},
                 {"f32", "f32", 1},
                 {"bf16", "bf16", 0.5},
                 {"fp8", "f8e4m3", 0.25},
                 {"fp8_e4m3", "f8e4m3", 0.25}};
    struct buf b = {0};
    struct err e = {0};
    struct engine_conf c = small;
    double kv = 0, drafter = 0;
    c.speculative = "mtp";
    for (size_t i = 0; i < ARRAY_LEN(types); i++) {
        char want[96];
        c.kv_cache_dtype = types[i].name;
        buf_reset(&b);
        ck_assert_msg(engine_plan(&c, &b, &e) == OK, "%s", e.text);
        kv = i ? kv : mib(&b, "  kv group 0");
        drafter = i ? drafter : mib(&b, "  drafter kv ");
        snprintf(want, sizeof want, " %s\n", types[i].word);
        has(&b, want);
        ck_assert_double_eq_tol(mib(&b, "  kv group 0"), kv * types[i].share, 0.01);
        ck_assert_double_eq_tol(mib(&b, "  drafter kv "), drafter * types[i].share, 0.01);
        lacks(&b, i > 1 ? " f32\n" : " bf16\n");
        if (types[i].share < 1) {
            snprintf(want, sizeof want, "ref-mla-full  kv cache of type %s is not offered",
                     types[i].word);
            has(&b, want);
        }
    }
    c.attention_backend = "ref-mla-full";
    buf_reset(&b);
    ck_assert_int_eq(engine_plan(&c, &b, &e), E_UNSUPPORTED);
    ck_assert_msg(strstr(e.text, "kv cache of type f8e4m3") != NULL, "%s", e.text);
    c.kv_cache_dtype = "fp8_e5m2";
    ck_assert_int_eq(engine_plan(&c, &b, &e), E_INVAL);
    ck_assert_msg(strstr(e.text, "fp8_e5m2") != NULL, "%s", e.text);
    /* fewer bytes a token: more of them in the same memory */
    struct engine *g;
    c = small;
    c.model = "configs/models/demo-qwen3";
    c.kv_cache_dtype = "fp8";
    ck_assert_msg(engine_open(&g, &c, NULL, NULL, &e) == OK, "%s", e.text);
    ck_assert_str_eq(engine_info(g)->kv_dtype, "f8e4m3");
    int64_t each = engine_info(g)->kv_token_bytes;
    engine_close(g);
    c.kv_cache_dtype = NULL;
    ck_assert_msg(engine_open(&g, &c, NULL, NULL, &e) == OK, "%s", e.text);
    ck_assert_str_eq(engine_info(g)->kv_dtype, "f32");
    ck_assert_int_eq(engine_info(g)->kv_token_bytes, 4 * each);
    engine_close(g);
    buf_done(&b);
}
END_TEST

enum { N_BAD = 8 };

/* What engine_open refuses, plan refuses with the same words. */
START_TEST(refusals)
{
    static const struct {
        const char *model, *device, *backend;
        int block, layers;
        bool dummy;
        const char *word;
    } bad[N_BAD] = {
        {"configs/models/demo", "cpu", "ref-gqa", 0, 0, false, "does not do mla"},
        {"configs/models/demo", "cpu", "none", 0, 0, false, "does not exist"},
        {"configs/models/demo", "cpu", NULL, 32, 0, false, "pages of 32"},
        {"configs/models/demo", "tpu", NULL, 0, 0, false, "tpu"},
        {"configs/models/demo", "cpu", NULL, 0, 2, false, "num_layers"},
        {"configs/models/demo", "cpu", NULL, 0, 6, true, "num_layers is 6"},
        {"configs/models/none", "cpu", NULL, 0, 0, false, "none"},
        {"configs/shapes/qwen3-8b.json", "cpu", NULL, 0, 0, false, "qwen3-8b.json"},
    };
    struct buf b = {0};
    struct err e = {0}, f = {0};
    struct engine *g;
    struct engine_conf c = small;
    c.model = bad[_i].model;
    c.device = bad[_i].device;
    c.attention_backend = bad[_i].backend;
    c.block_size = bad[_i].block;
    c.num_layers = bad[_i].layers;
    c.dummy = bad[_i].dummy;
    int r = engine_plan(&c, &b, &e);
    ck_assert_int_lt(r, 0);
    ck_assert_msg(strstr(e.text, bad[_i].word) != NULL, "%s", e.text);
    lacks(&b, ", chosen");
    if (bad[_i].backend) /* the matrix is shown all the same */
        has(&b, "ref-mla       ok");
    ck_assert_int_eq(engine_open(&g, &c, NULL, NULL, &f), r);
    ck_assert_str_eq(e.text, f.text);
    buf_done(&b);
}
END_TEST

START_TEST(large_shape)
{
    struct buf b = {0};
    struct err e = {0};
    struct engine_conf c = small;
    int64_t t0 = clock_process_cpu_us();
    c.model = "configs/shapes/deepseek-v3.json";
    c.dummy = true;
    c.max_model_len = 0;
    c.kv_cache_tokens = 400000;
    ck_assert_msg(engine_plan(&c, &b, &e) == OK, "%s", e.text);
    has(&b, "671026419200 (671.03 B)");
    has(&b, "next-token 1 layer(s), kept aside");
    has(&b, "140544 bytes a token, 25000 pages of 16");
    has(&b, "163840 tokens x 2 sequences");
    ck_assert_int_lt(clock_process_cpu_us() - t0, 30000000); /* made no weights */
    buf_done(&b);
}
END_TEST

/* ---- generated weights in the engine ---- */

struct box {
    pthread_mutex_t lock;
    pthread_cond_t cond;
    bool woken;
};

static void on_wake(void *ud)
{
    struct box *x = ud;
    mutex_lock(&x->lock);
    x->woken = true;
    cond_signal(&x->cond);
    mutex_unlock(&x->lock);
}

static void wait_events(struct box *x)
{
    mutex_lock(&x->lock);
    while (!x->woken)
        cond_wait(&x->cond, &x->lock);
    x->woken = false;
    mutex_unlock(&x->lock);
}

START_TEST(ids_only)
{
    struct box x = {0};
    struct err e = {0};
    struct engine *g;
    struct engine_conf c = small;
    mutex_init(&x.lock);
    cond_init(&x.cond);
    c.model = "configs/models/demo/config.json";
    c.dummy = true;
    c.num_layers = 2;
    ck_assert_msg(engine_open(&g, &c, on_wake, &x, &e) == OK, "%s", e.text);
    ck_assert(!engine_info(g)->has_text);
    int32_t *ids;
    size_t n;
    ck_assert_int_eq(engine_encode(g, "a", 1, true, true, NULL, 0, 0, &ids, &n, &e), E_UNSUPPORTED);
    ck_assert_msg(strstr(e.text, "tokenizer.json") != NULL, "%s", e.text);
    ck_assert_str_eq(engine_token_bytes(g, 5, &n), "");
    ck_assert_uint_eq(n, 0);
    ck_assert_ptr_null(engine_token_piece(g, 5));
    struct gen_req *r = gen_req_new();
    engine_default_params(g, &r->p);
    r->id = 1;
    r->n_prompt = 40;
    r->prompt = MEM_ARRAY(int32_t, 40);
    for (int i = 0; i < 40; i++)
        r->prompt[i] = 11 * i;
    r->p.max_tokens = 9;
    r->p.ignore_eos = true;
    ck_assert_msg(engine_submit(g, &r, 1, &e) == OK, "%s", e.text);
    int tokens = 0;
    for (bool done = false; !done;) {
        wait_events(&x);
        for (struct gen_evt *v = engine_poll(g), *next; v; v = next) {
            next = v->next;
            ck_assert_uint_eq(v->n_text, 0);
            done |= v->kind == EVT_DONE;
            if (v->kind == EVT_DONE) {
                ck_assert_int_eq(v->finish, FINISH_LENGTH);
                tokens = v->stats.n_output;
            }
            gen_evt_free(v);
        }
    }
    ck_assert_int_eq(tokens, 9);
    engine_close(g);
    cond_done(&x.cond);
    mutex_done(&x.lock);
}
END_TEST

Suite *suite_plan(void);
Suite *suite_plan(void)
{
    Suite *s = suite_create("plan");
    TCase *t = tcase_create("plan");
    tcase_add_loop_test(t, as_opened, 0, 3);
    tcase_add_test(t, speculation);
    tcase_add_loop_test(t, refused_speculation, 0, (int)ARRAY_LEN(bad_spec));
    tcase_add_test(t, matrix);
    tcase_add_test(t, kv_types);
    tcase_add_loop_test(t, refusals, 0, N_BAD);
    tcase_add_test(t, large_shape);
    tcase_add_test(t, ids_only);
    suite_add_tcase(s, t);
    return s;
}
