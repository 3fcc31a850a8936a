/* Goal: settings of speculation that contradict each other, the model or the drafter are refused
 * before anything is loaded, and every refusal names both sides; those that fit give the rows and
 * positions that the contracts promise. Method: tables; drafters from the tree and generated ones;
 * what `specd plan` says is what a start would say (test_plan.c compares the two). */
#include <check.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/buf.h"
#include "engine/base/check.h"
#include "engine/engine.h"
#include "speculative/algos.h"
#include "test/model/gen.h"
#include "test/model/heads.h"
#include "test/unit/sched_text.h"

static void names(const struct err *e, const char *const word[2])
{
    for (int k = 0; k < 2; k++)
        ck_assert_msg(strstr(e->text, word[k]) != NULL, "'%s' is not in: %s", word[k], e->text);
}

/* ---- shapes alone ---- */

static const struct {
    int steps, topk, tokens; /* as set */
    struct spec_shape want;
} good[] = {
    /* a round begins after up to S + 1 accepted tokens and writes S - 1 rows past the root */
    {0, 0, 0, {.steps = 3, .topk = 1, .rows = 4, .ahead = 7}},
    {1, 1, 0, {.steps = 1, .topk = 1, .rows = 2, .ahead = 3}},
    {15, 1, 16, {.steps = 15, .topk = 1, .rows = 16, .ahead = 31}},
    {0, 1, 6, {.steps = 5, .topk = 1, .rows = 6, .ahead = 11}},
    {3, 3, 12, {.steps = 3, .topk = 3, .rows = 12, .ahead = 12}},
    {3, 3, 0, {.steps = 3, .topk = 3, .rows = 10, .ahead = 11}},
    {2, 2, 7, {.steps = 2, .topk = 2, .rows = 7, .ahead = 7}}, /* all candidates and the root */
    {2, 2, 2, {.steps = 2, .topk = 2, .rows = 2, .ahead = 6}},
    {4, 16, 64, {.steps = 4, .topk = 16, .rows = 64, .ahead = 64}},
    {1, 16, 0, {.steps = 1, .topk = 16, .rows = 17, .ahead = 17}},
    {0, 2, 0, {.steps = 3, .topk = 2, .rows = 7, .ahead = 9}},
};

static int shape_of(struct spec_shape *out, const char *method, int steps, int topk, int tokens,
                    struct err *e)
{
    struct spec_conf c = {.method = method, .steps = steps, .topk = topk, .tokens = tokens};
    struct model_info t = {.arch = "Target"};
    const struct spec_algo *a = spec_find(method);
    ck_assert_ptr_nonnull(a);
    return a->shape(out, &c, &t, NULL, e);
}

START_TEST(shapes_given)
{
    struct err e = {0};
    struct spec_shape s = {0};
    const struct spec_shape *w = &good[_i].want;
    int r = shape_of(&s, "mtp", good[_i].steps, good[_i].topk, good[_i].tokens, &e);
    ck_assert_msg(r == OK, "%s", e.text);
    ck_assert_int_eq(s.steps, w->steps);
    ck_assert_int_eq(s.topk, w->topk);
    ck_assert_int_eq(s.rows, w->rows);
    ck_assert_int_eq(s.ahead, w->ahead);
    ck_assert(s.ngram_min == 2 && s.ngram_max == 5);
}
END_TEST

/* Prompt lookup: one long chain and shorter ones beside it. */
static const struct {
    int steps, topk, tokens;
    struct spec_shape want;
} lookup[] = {
    {0, 0, 0, {.steps = 7, .topk = 1, .rows = 8, .ahead = 15}},
    {0, 3, 0, {.steps = 7, .topk = 3, .rows = 16, .ahead = 16, .ngram_more = 2, .ngram_each = 4}},
    {3, 3, 9, {.steps = 3, .topk = 3, .rows = 8, .ahead = 8, .ngram_more = 2, .ngram_each = 2}},
    {4, 2, 9, {.steps = 4, .topk = 2, .rows = 9, .ahead = 9, .ngram_more = 1, .ngram_each = 4}},
    {1,
     16,
     0,
     {.steps = 1, .topk = 16, .rows = 17, .ahead = 17, .ngram_more = 15, .ngram_each = 1}},
};

START_TEST(lookup_shapes)
{
    struct err e = {0};
    struct spec_shape s = {0}, w = lookup[_i].want;
    int r = shape_of(&s, "ngram", lookup[_i].steps, lookup[_i].topk, lookup[_i].tokens, &e);
    ck_assert_msg(r == OK, "%s", e.text);
    w.ngram_min = 2;
    w.ngram_max = 5;
    ck_assert(!memcmp(&s, &w, sizeof s));
}
END_TEST

static const struct {
    const char *method;
    int steps, topk, tokens;
    const char *word[2];
} bad[] = {
    {"mtp", 3, 1, 5, {"spec_tokens is 5", "spec_steps 3 has 4 rows"}},
    {"mtp", 3, 1, 3, {"spec_tokens is 3", "spec_steps 3 has 4 rows"}},
    {"mtp", 3, 0, 12, {"spec_tokens is 12", "spec_steps 3 has 4 rows"}},
    {"mtp", 0, 1, 1, {"spec_tokens is 1,", "2 to 16 rows"}},
    {"mtp", 0, 1, 17, {"spec_tokens is 17", "2 to 16 rows"}},
    {"mtp", 16, 1, 0, {"spec_steps is 16", "1 to 15"}},
    {"mtp", -1, 1, 0, {"spec_steps is -1", "1 to 15"}},
    {"mtp", 16, 2, 0, {"spec_steps is 16", "1 to 15"}},
    {"mtp", 3, 17, 0, {"spec_topk is 17", "1 to 16"}},
    {"mtp", 3, -2, 0, {"spec_topk is -2", "1 to 16"}},
    {"mtp", 5, 13, 0, {"spec_steps 5", "spec_topk 13 is over the 64"}},
    {"mtp", 15, 5, 0, {"spec_steps 15", "spec_topk 5 is over the 64"}},
    {"mtp", 2, 2, 8, {"spec_tokens is 8", "spec_steps 2 and spec_topk 2 has 2 to 7 rows"}},
    {"mtp", 1, 3, 5, {"spec_tokens is 5", "spec_steps 1 and spec_topk 3 has 2 to 4 rows"}},
    {"mtp", 4, 16, 65, {"spec_tokens is 65", "2 to 64 rows"}},
    {"mtp", 2, 2, 1, {"spec_tokens is 1,", "2 to 7 rows"}},
    {"ngram", 3, 1, 5, {"spec_tokens is 5", "spec_steps 3 has 4 rows"}},
    {"ngram", 0, 0, 1, {"spec_tokens is 1,", "2 to 16 rows"}},
    {"ngram", 0, 0, 20, {"spec_tokens is 20", "2 to 16 rows"}},
    {"ngram", 4, 3, 6, {"spec_tokens is 6", "spec_steps 4 in spec_topk 3 chains has 7 to 13 rows"}},
    {"ngram", 4, 3, 14, {"spec_tokens is 14", "spec_steps 4 in spec_topk 3 chains"}},
    {"ngram", 15, 16, 65, {"spec_tokens is 65", "31 to 64 rows"}},
    {"ngram", 16, 2, 0, {"spec_steps is 16", "1 to 15"}},
    {"ngram", 3, 17, 0, {"spec_topk 17", "1 to 16"}},
    {"off", 3, 0, 0, {"spec_steps", "speculation is off"}},
    {"off", 0, 2, 0, {"spec_topk", "speculation is off"}},
    {"off", 0, 0, 4, {"spec_tokens", "speculation is off"}},
};

START_TEST(shapes_refused)
{
    struct err e = {0};
    struct spec_shape s = {.rows = 77};
    int r = shape_of(&s, bad[_i].method, bad[_i].steps, bad[_i].topk, bad[_i].tokens, &e);
    ck_assert_int_eq(r, E_INVAL);
    names(&e, bad[_i].word);
    ck_assert_int_eq(s.rows, 77); /* outputs are untouched on failure */
}
END_TEST

/* ---- with models ---- */

#define DEMO "configs/models/demo"
#define QWEN "configs/models/demo-qwen3"
#define HEAD "configs/models/demo-qwen3-eagle3"

static const struct {
    const char *model, *method, *draft;
    int len;
    const char *word[2];
} pair[] = {
    {DEMO, "eagle3", NULL, 0, {"speculative is eagle3", "draft"}},
    {DEMO, "draft-model", NULL, 0, {"speculative is draft-model", "draft"}},
    {QWEN, "mtp", NULL, 0, {"speculative is mtp", "qwen3 models have no next-token"}},
    {QWEN, "mtp", HEAD, 0, {"speculative is mtp", "qwen3 models have no next-token"}},
    {DEMO, "mtp", QWEN, 0, {"draft is " QWEN, "mtp drafts with DeepseekV3ForCausalLM's own"}},
    {QWEN, "draft-model", HEAD, 0, {HEAD ", a LlamaForCausalLMEagle3", "draft-model needs"}},
    {QWEN, "eagle3", DEMO, 0, {DEMO ", a DeepseekV3ForCausalLM", "eagle3 needs an EAGLE-3 head"}},
    {QWEN, "eagle3", "configs/models/none", 0, {"configs/models/none", "config.json"}},
    {QWEN, "ngram", HEAD, 0, {"draft names a drafter", "prompt lookup has no network"}},
    {QWEN, "off", HEAD, 0, {"draft", "speculation is off"}},
    /* generated: target and head of 131 ids, the head's 128 positions */
    {"qwen3", "eagle3", "head", 129, {"max_model_len", "over the 128 positions of the drafter Ll"}},
    {"qwen3", "auto", "head", 0, {"max_model_len", "over the 128 positions of the drafter Ll"}},
    {DEMO, "draft-model", "qwen3", 0, {"a vocabulary of 131", "one of 4096"}},
    {QWEN, "auto", "qwen3", 0, {"a vocabulary of 131", "one of 4096"}},
    {QWEN, "eagle3", "head", 0, {"131", "4096"}},
    {"qwen3", "eagle3", HEAD, 0, {"4096", "131"}},
};

static struct gen made[2]; /* "qwen3", "head" */

static void made_open(void)
{
    gen_open(&made[0], "qwen3");
    json_object_set_new(made[0].config, "max_position_embeddings", json_integer(512));
    gen_write(&made[0], 1);
    struct buf b;
    buf_init(&b, 0);
    sched_text_json(&b);
    gen_put(&made[0], "tokenizer.json", b.p, b.len);
    buf_done(&b);
    head_make(&made[1], &heads[0]);
    gen_write(&made[1], 1);
}

static const char *where(const char *name)
{
    return !name                    ? NULL
           : !strcmp(name, "qwen3") ? made[0].dir
           : !strcmp(name, "head")  ? made[1].dir
                                    : name;
}

static void made_close(void)
{
    gen_close(&made[0]);
    gen_close(&made[1]);
}

START_TEST(pairs_refused)
{
    struct buf b = {0};
    struct err e = {0}, f = {0};
    struct engine *g;
    made_open();
    struct engine_conf c = {.model = where(pair[_i].model),
                            .device = "cpu",
                            .threads = 1,
                            .max_num_seqs = 2,
                            .max_model_len = pair[_i].len,
                            .speculative = pair[_i].method,
                            .draft = where(pair[_i].draft)};
    ck_assert_int_lt(engine_plan(&c, &b, &e), 0);
    names(&e, pair[_i].word);
    ck_assert_int_lt(engine_open(&g, &c, NULL, NULL, &f), 0);
    ck_assert_str_eq(e.text, f.text);
    buf_done(&b);
    made_close();
}
END_TEST

/* The context as long as the drafter reaches is served, and plan says how far that is. */
START_TEST(positions_fit)
{
    struct buf b = {0};
    struct err e = {0};
    made_open();
    struct engine_conf c = {.model = made[0].dir,
                            .device = "cpu",
                            .threads = 1,
                            .max_num_seqs = 2,
                            .max_model_len = 128,
                            .speculative = "auto",
                            .draft = made[1].dir};
    ck_assert_msg(engine_plan(&c, &b, &e) == OK, "%s", e.text);
    ck_assert_ptr_nonnull(strstr(buf_cstr(&b), "speculation eagle3 (chosen by auto)"));
    ck_assert_ptr_nonnull(strstr(buf_cstr(&b), "vocabulary 50, positions 128\n"));
    buf_done(&b);
    made_close();
}
END_TEST

Suite *suite_spec_shape(void)
{
    Suite *s = suite_create("spec_shape");
    TCase *t = tcase_create("shapes");
    tcase_add_loop_test(t, shapes_given, 0, (int)ARRAY_LEN(good));
    tcase_add_loop_test(t, lookup_shapes, 0, (int)ARRAY_LEN(lookup));
    tcase_add_loop_test(t, shapes_refused, 0, (int)ARRAY_LEN(bad));
    tcase_add_loop_test(t, pairs_refused, 0, (int)ARRAY_LEN(pair));
    tcase_add_test(t, positions_fit);
    suite_add_tcase(s, t);
    return s;
}
