/* Goal: the trained drafters are worth having. On continuations of text that no model was trained
 * on (test/data/heldout), greedy, three drafts a path: at least two tokens a verify, and a tree
 * gives no fewer than a chain; chunks and pages change not one accepted draft; after a time without
 * rounds the drafter, whose cache now begins behind the hole, is nearly as good as before.
 * Method: two places of each text, 64 tokens of prompt, 88 of output, through the runner by hand;
 * the outputs of all runs of a model must be the same. */
#include <check.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/text/tokenizer.h"
#include "test/unit/spec_driver.h"
#include "test/sanitize.h"

static const char *const files[] = {"affcase1",         "devil",  "dgram", "expatreader",
                                    "functions-window", "jargon", "job41", "searcher",
                                    "tracemalloc",      "wordnet"};
enum {
    N_TEXTS = 2 * sizeof files / sizeof *files,
    PROMPT = 64,
    OUT = 88,
    APART = 200,
    HOLE = 8,
    LATE = 44
};
/* Under a sanitizer a few texts show that the code is sound; figures are not looked at. */
enum { TEXTS = TSAN ? 1 : SANITIZED ? 4 : N_TEXTS };

static const struct {
    const char *target, *method, *draft;
} pair[] = {
    {"configs/models/demo", "mtp", NULL},
    {"configs/models/demo-qwen3", "eagle3", "configs/models/demo-qwen3-eagle3"},
};

static int32_t prompts[N_TEXTS][PROMPT];

static void read_prompts(const char *dir)
{
    struct err e = {0};
    struct tokenizer *t;
    ck_assert_msg(tok_open(&t, dir, &e) == OK, "%s", e.text);
    for (int i = 0; i < N_TEXTS; i++) {
        char path[96];
        struct ids ids = {0};
        char *text;
        size_t len, from = i % 2 ? APART : 0;
        snprintf(path, sizeof path, "test/data/heldout/%s.txt", files[i / 2]);
        ck_assert_msg(file_read(&text, &len, path, 1 << 16, &e) == OK, "%s", e.text);
        ck_assert_int_eq(tok_encode(t, text, len, 0, NULL, 0, 0, &ids, &e), OK);
        ck_assert_uint_ge(ids.n, from + PROMPT);
        memcpy(prompts[i], ids.v + from, sizeof prompts[i]);
        ids_done(&ids);
        mem_free(text);
    }
    tok_close(t);
}

struct run {
    int32_t out[N_TEXTS][OUT];
    int drafted, accepted, verifies;
    int late_accepted, late_verifies; /* from output token LATE on */
};

static double per_verify(int accepted, int verifies)
{
    return (double)(accepted + verifies) / verifies;
}

/* Six texts at a time. `hole`: no rounds in 12 steps from output token HOLE on. */
static void run_texts(struct run *r, const struct drv_conf *c, int chunk, bool hole)
{
    struct drv v;
    *r = (struct run){0};
    drv_open(&v, c);
    for (int first = 0; first < TEXTS; first += DRV_REQS) {
        int n = TEXTS - first < DRV_REQS ? TEXTS - first : DRV_REQS, ended = 0, n_off = 0;
        bool late = false;
        for (int s = 1; s <= n; s++) {
            struct slot_params p = drv_params(1, 0, SPEC_MODEL);
            p.max_out = OUT;
            drv_prefill(&v, s, prompts[first + s - 1], PROMPT, p, chunk);
        }
        v.n_draft = v.n_accepted = v.n_verify = 0;
        while (ended < n) {
            bool off = hole && v.n_out[1] >= HOLE && n_off++ < 12;
            v.depth = off ? 0 : c->steps;
            if (!late && v.n_out[1] >= LATE) {
                late = true;
                r->late_accepted -= v.n_accepted;
                r->late_verifies -= v.n_verify;
            }
            drv_decode_mask(&v, (2u << n) - 2);
            ended = 0;
            for (int s = 1; s <= n; s++)
                ended += v.ended[s];
        }
        for (int s = 1; s <= n; s++) {
            ck_assert_int_eq(v.n_out[s], OUT);
            memcpy(r->out[first + s - 1], v.out[s], sizeof r->out[0]);
        }
        r->drafted += v.n_draft;
        r->accepted += v.n_accepted;
        r->verifies += v.n_verify;
        r->late_accepted += v.n_accepted;
        r->late_verifies += v.n_verify;
    }
    drv_close(&v);
}

START_TEST(held_out)
{
    struct drv_conf c = {.target = pair[_i].target,
                         .method = pair[_i].method,
                         .draft = pair[_i].draft,
                         .steps = 3,
                         .chunk = 256,
                         .len_max = 256,
                         .threads = 2,
                         .unwatched = true};
    static struct run chain, other, tree, hole;
    read_prompts(c.target);
    run_texts(&chain, &c, PROMPT, false);
    c.page = 1;
    run_texts(&other, &c, 7, false);
    ck_assert(!memcmp(&chain, &other, sizeof chain)); /* outputs and counts */
    c.page = 16;
    run_texts(&hole, &c, PROMPT, true);
    c.topk = 3;
    c.tokens = 12;
    run_texts(&tree, &c, PROMPT, false);
    ck_assert(!memcmp(chain.out, hole.out, sizeof chain.out));
    ck_assert(!memcmp(chain.out, tree.out, sizeof chain.out));
    double a = per_verify(chain.accepted, chain.verifies),
           b = per_verify(tree.accepted, tree.verifies);
    double before = per_verify(chain.late_accepted, chain.late_verifies);
    double after = per_verify(hole.late_accepted, hole.late_verifies);
    printf("accept: %s: %.3f tokens a verify as a chain, %.3f as a tree; %.3f after a hole, %.3f "
           "there without one\n",
           c.method, a, b, after, before);
    if (SANITIZED)
        return;
    ck_assert_double_ge(a, 2.0);
    ck_assert_double_ge(b, a);
    ck_assert_double_ge(after, 0.85 * before);
    ck_assert_int_gt(hole.verifies, chain.verifies); /* it was there */
}
END_TEST

Suite *suite_spec_accept(void)
{
    Suite *s = suite_create("spec_accept");
    TCase *t = tcase_create("held-out text");
    tcase_set_timeout(t, 300);
    tcase_add_loop_test(t, held_out, 0, (int)ARRAY_LEN(pair));
    suite_add_tcase(s, t);
    return s;
}
