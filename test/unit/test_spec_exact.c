/* Goal: speculation changes no output. Whatever a drafter proposes, on chains and trees, at any
 * page size, alone and in company, with preemption, with one step in flight or two: tokens, log
 * probabilities, text, ends and counts are those of a server without speculation, bit for bit.
 * Method: a set of requests that covers every sampling feature, stop strings and token limits at
 * every index of a block, is run once without speculation; every other engine must give the same.
 * What a drafter does wrong shows as a difference; that drafts are used at all is checked by
 * counts: the oracle's must all be accepted, the adversary's last never. A diagonal of the cases
 * has fp8 or bf16 caches. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/buf.h"
#include "engine/base/check.h"
#include "engine/base/file.h"
#include "engine/base/js.h"
#include "engine/base/mem.h"
#include "engine/base/rng.h"
#include "engine/base/thread.h"
#include "engine/engine.h"
#include "test/model/heads.h"
#include "test/unit/engine_rig.h"
#include "test/unit/spec_drafters.h"

enum { REQS = SANITIZED ? 14 : 56, ROUNDS_PART = TSAN ? 8 : SANITIZED ? 4 : 1 };
enum { OUT_MAX = 40, FEATURES = 14 };

struct got {
    int n_tok, n_done;
    int32_t tok[OUT_MAX];
    float lp[OUT_MAX], top[OUT_MAX][2];
    struct buf text;
    enum finish finish;
    struct gen_stats stats;
    struct err err;
};

struct rig {
    struct engine *g;
    struct got got[REQS];
    struct waker waker;
};

static struct gen model;
static const char *kv_type; /* of every engine of a test; NULL: auto */
static int32_t truth[REQS][OUT_MAX];
static struct buf truth_text[REQS];

static void model_make(const char *name)
{
    rig_model(&model, name);
}

static struct rig *rig_open(struct engine_conf c)
{
    struct rig *m = MEM_NEW(struct rig);
    struct err e = {0};
    waker_init(&m->waker);
    c.model = model.dir;
    c.device = "cpu";
    c.kv_cache_dtype = kv_type;
    c.spec_check_off = true; /* the drafters here are bad on purpose */
    c.threads = c.threads ? c.threads : 1;
    c.max_model_len = c.max_model_len ? c.max_model_len : 128;
    ck_assert_msg(engine_open(&m->g, &c, waker_wake, &m->waker, &e) == OK, "%s", e.text);
    return m;
}

static void rig_close(struct rig *m)
{
    struct engine_usage u;
    engine_usage(m->g, &u);
    ck_assert_msg(u.active == 0 && u.slots == 0 && u.pages == 0, "%d active, %d slots, %lld pages",
                  u.active, u.slots, (long long)u.pages);
    engine_close(m->g);
    for (int i = 0; i < REQS; i++)
        buf_done(&m->got[i].text);
    waker_done(&m->waker);
    mem_free(m);
}

static void take(struct rig *m, const struct gen_evt *e)
{
    struct got *o = &m->got[e->id - 1];
    ck_assert_int_eq(o->n_done, 0);
    for (int i = 0; i < e->n_tok && e->kind != EVT_PROMPT; i++) {
        ck_assert_int_lt(o->n_tok, OUT_MAX);
        for (int k = 0; k < e->tok[i].n_top && k < 2; k++)
            o->top[o->n_tok][k] = e->tok[i].top_logprob[k];
        o->lp[o->n_tok] = e->tok[i].logprob;
        o->tok[o->n_tok++] = e->tok[i].id;
    }
    if (e->n_text)
        buf_push(&o->text, e->text, e->n_text);
    if (e->kind == EVT_DONE) {
        o->n_done++;
        o->finish = e->finish;
        o->stats = e->stats;
        o->err = e->err;
    }
}

static void poll(struct rig *m)
{
    for (struct gen_evt *e = engine_poll(m->g), *next; e; e = next) {
        next = e->next;
        take(m, e);
        gen_evt_free(e);
    }
}

static void finish_all(struct rig *m)
{
    while (engine_active(m->g)) {
        waker_wait(&m->waker);
        poll(m);
    }
    poll(m);
}

/* Request i: one feature each, in turn; every other one greedy where the feature allows. */
static struct gen_req *request(const struct rig *m, int i)
{
    struct gen_req *g = gen_req_new();
    struct gen_params *p = &g->p;
    struct rng r = {(uint64_t)i * 77 + 5};
    engine_default_params(m->g, p);
    g->id = (uint64_t)i + 1;
    g->n_prompt = 1 + rng_below(&r, 40);
    g->prompt = MEM_ARRAY(int32_t, g->n_prompt);
    for (size_t k = 0; k < g->n_prompt; k++)
        g->prompt[k] = 3 + (int32_t)rng_below(&r, 120);
    *p = (struct gen_params){.temperature = i / FEATURES % 2 ? 1.0f : 0.0f,
                             .top_p = 1,
                             .repetition = 1,
                             .seed = (uint64_t)i,
                             .has_seed = true,
                             .max_tokens = 20 + i % 12,
                             .n_logprobs = 0,
                             .n_prompt_logprobs = -1,
                             .spec_mode = p->spec_mode,
                             .spec_max = p->spec_max};
    switch (i % FEATURES) {
    case 0: /* plain */
        break;
    case 1:
        p->temperature = 1;
        break;
    case 2:
        p->temperature = 1.3f;
        p->top_p = 0.8f;
        break;
    case 3:
        p->temperature = 1;
        p->min_p = 0.1f;
        break;
    case 4:
        p->temperature = 0.8f;
        p->top_k = 5;
        break;
    case 5:
        p->repetition = 1.3f;
        break;
    case 6:
        p->presence = 0.7f;
        p->frequency = 0.4f;
        break;
    case 7:
        p->n_bias = 3;
        for (int k = 0; k < 3; k++) {
            p->bias_id[k] = 10 + 7 * k + i;
            p->bias[k] = k == 1 ? -5.0f : 2.5f;
        }
        break;
    case 8: /* ids that stop, but not before 12 tokens */
        p->n_stop_ids = 20;
        for (int k = 0; k < 20; k++)
            p->stop_ids[k] = 20 + 5 * k;
        p->min_tokens = 12;
        break;
    case 9:
        p->n_logprobs = 2;
        break;
    case 10: /* the limit at every index of a block */
    case 11:
        p->max_tokens = 1 + i / FEATURES * 2 + i % FEATURES - 10;
        break;
    case 12: /* stop ids without a minimum */
        p->n_stop_ids = 10;
        for (int k = 0; k < 10; k++)
            p->stop_ids[k] = 11 + 9 * k;
        break;
    case 13: /* a stop string that the second pass of the reference fills in */
        if (truth_text[i].len > 30) {
            size_t at = 4 + rng_below(&r, truth_text[i].len - 20), n = 3 + rng_below(&r, 12);
            g->n_stop = 1;
            g->stop = MEM_ARRAY(char *, 1);
            g->stop[0] = MEM_ARRAY(char, n + 1);
            memcpy(g->stop[0], truth_text[i].p + at, n);
        }
        break;
    default:
        break;
    }
    return g;
}

static void submit(struct rig *m, int i)
{
    struct gen_req *g = request(m, i);
    struct err e = {0};
    ck_assert_msg(engine_submit(m->g, &g, 1, &e) == OK, "request %d: %s", i, e.text);
}

/* ---- the reference ---- */

static struct rig *reference(void)
{
    struct rig *m = NULL;
    for (int i = 0; i < REQS; i++)
        buf_init(&truth_text[i], 0);
    for (int pass = 0; pass < 2; pass++) { /* the first one gives text to cut stop strings from */
        if (m)
            rig_close(m);
        m = rig_open((struct engine_conf){.max_num_seqs = 8});
        for (int i = 0; i < REQS; i++)
            submit(m, i);
        finish_all(m);
        for (int i = 0; i < REQS && !pass; i++)
            buf_push(&truth_text[i], m->got[i].text.p, m->got[i].text.len);
    }
    memset(truth, 0xff, sizeof truth);
    int ends[2] = {0};
    for (int i = 0; i < REQS; i++) {
        memcpy(truth[i], m->got[i].tok, sizeof *truth[i] * (size_t)m->got[i].n_tok);
        ends[0] += m->got[i].finish == FINISH_STOP;
        ends[1] += m->got[i].finish == FINISH_LENGTH;
    }
    ck_assert(ends[0] > 0 && ends[1] > 0);
    test_truth = (struct truth){&truth[0][0], REQS, OUT_MAX};
    return m;
}

static void reference_done(struct rig *m)
{
    rig_close(m);
    for (int i = 0; i < REQS; i++)
        buf_done(&truth_text[i]);
    gen_close(&model);
}

/* ---- comparing ---- */

struct sums {
    int64_t verifies, drafted, accepted, preempted;
};

static void compare(const struct rig *want, struct rig *have, const char *what, struct sums *sum)
{
    *sum = (struct sums){0};
    for (int i = 0; i < REQS; i++) {
        const struct got *a = &want->got[i], *b = &have->got[i];
        ck_assert_msg(b->n_done == 1 && a->finish == b->finish && a->n_tok == b->n_tok,
                      "%s, request %d: %d and %d tokens, ends %d and %d: %s", what, i, a->n_tok,
                      b->n_tok, a->finish, b->finish, b->err.text);
        ck_assert_msg(!memcmp(a->tok, b->tok, sizeof *a->tok * (size_t)a->n_tok), "%s, request %d",
                      what, i);
        ck_assert_msg(!memcmp(a->lp, b->lp, sizeof *a->lp * (size_t)a->n_tok) &&
                          !memcmp(a->top, b->top, sizeof *a->top * (size_t)a->n_tok),
                      "%s, request %d: log probabilities", what, i);
        ck_assert_msg(a->text.len == b->text.len &&
                          (!a->text.len || !memcmp(a->text.p, b->text.p, a->text.len)),
                      "%s, request %d: text", what, i);
        const struct gen_stats *s = &b->stats;
        ck_assert_int_eq(s->n_output, a->stats.n_output);
        ck_assert_int_eq(s->n_prompt, a->stats.n_prompt);
        /* emitted before trimming: one a prefill, then each verify's accepted and one more */
        ck_assert_msg(s->n_output <= 1 + s->n_preempted + s->n_verify + s->n_accepted,
                      "%s, request %d: %d tokens of %d verifies, %d accepted", what, i, s->n_output,
                      s->n_verify, s->n_accepted);
        sum->verifies += s->n_verify;
        sum->drafted += s->n_draft;
        sum->accepted += s->n_accepted;
        sum->preempted += s->n_preempted;
    }
}

static struct sums run(const struct rig *want, struct engine_conf c, bool alone, const char *what)
{
    struct sums sum;
    struct rig *m = rig_open(c);
    for (int i = 0; i < REQS; i++) {
        submit(m, i);
        if (alone)
            finish_all(m);
    }
    finish_all(m);
    compare(want, m, what, &sum);
    rig_close(m);
    printf("exact: %s: %lld verifies, %lld drafted, %lld accepted, %lld preemptions\n", what,
           (long long)sum.verifies, (long long)sum.drafted, (long long)sum.accepted,
           (long long)sum.preempted);
    return sum;
}

/* Ratio rejection: the greedy requests must come out as ever, the others only finish. */
static void run_greedy(const struct rig *want, struct engine_conf c, const char *what)
{
    struct rig *m = rig_open(c);
    for (int i = 0; i < REQS; i++)
        submit(m, i);
    finish_all(m);
    for (int i = 0; i < REQS; i++) {
        const struct got *a = &want->got[i], *b = &m->got[i];
        struct gen_req *g = request(m, i);
        bool greedy = g->p.temperature == 0;
        gen_req_free(g);
        ck_assert_msg(b->n_done == 1 && b->finish != FINISH_ERROR, "%s by ratio, request %d: %s",
                      what, i, b->err.text);
        ck_assert_msg(!greedy || (a->n_tok == b->n_tok &&
                                  !memcmp(a->tok, b->tok, sizeof *a->tok * (size_t)a->n_tok)),
                      "%s by ratio, request %d", what, i);
    }
    rig_close(m);
}

struct shape {
    int steps, topk, tokens;
};
static const struct shape shapes[] = {{1, 1, 0}, {3, 1, 0},  {5, 1, 0},
                                      {3, 3, 0}, {4, 3, 20}, {2, 8, 12}};

static struct engine_conf conf_of(const struct shape *s)
{
    return (struct engine_conf){.max_num_seqs = 8,
                                .speculative = "auto",
                                .spec_steps = s->steps,
                                .spec_topk = s->topk,
                                .spec_tokens = s->tokens};
}

/* Caches that are not the device's own, on a diagonal of families, shapes and drafters. */
static const char *type_of(int i)
{
    return i % 4 == 1 ? "fp8" : i % 8 == 3 ? "bf16" : NULL;
}

/* Every drafter on one shape: roomy, alone, in a tiny pool, with one step in flight. */
static void all_drafters(const struct rig *want, const struct shape *sh)
{
    static const int pages[] = {1, 16, 64};
    for (int d = 0; d < N_DRAFTERS; d++) {
        char what[96];
        struct engine_conf c = conf_of(sh);
        c.spec_algo = &test_drafters[d];
        for (int p = 0; p < 3; p++) {
            if ((d + p + sh->topk) % ROUNDS_PART)
                continue;
            c.block_size = pages[p];
            snprintf(what, sizeof what, "%s S=%d K=%d N=%d page %d", test_drafters[d].name,
                     sh->steps, sh->topk, sh->tokens, pages[p]);
            struct sums s = run(want, c, false, what);
            ck_assert(d == DRAFT_EMPTY ? s.drafted == 0 : s.drafted > 0);
            if (d == DRAFT_ORACLE && sh->topk == 1) /* but for what lies behind the end */
                ck_assert_int_gt((int)(s.accepted * 10), (int)(s.drafted * 6));
            if (d == DRAFT_LASTBAD)
                ck_assert_int_lt((int)s.accepted, (int)s.drafted);
        }
        if (d % 3 != sh->topk % 3)
            continue;
        c.block_size = 1;
        run(want, c, true, "alone");
        c.overlap_off = true;
        run(want, c, false, "one step in flight");
        c.overlap_off = false;
        c.max_num_seqs = 64;
        c.kv_cache_tokens = 220;
        c.max_num_batched_tokens = 24;
        ck_assert_int_gt((int)run(want, c, false, "tiny pool").preempted, 0);
    }
}

static const char *const families[] = {"llama3", "ds-v3", "qwen3-window"};

START_TEST(any_drafter)
{
    int n = (int)(sizeof shapes / sizeof *shapes), k = _i % n;
    if (_i % ROUNDS_PART)
        return;
    model_make(families[_i / n]);
    kv_type = type_of(_i + _i / n);
    struct rig *want = reference();
    all_drafters(want, &shapes[k]);
    reference_done(want);
}
END_TEST

/* ---- drafters with a network, and prompt lookup ---- */

struct real {
    const char *target, *method;
    const char *draft; /* "self": the target again; "head": a generated EAGLE-3 head */
};
static const struct real reals[] = {
    {"ds-v3", "mtp", NULL},
    {"qwen3", "eagle3", "head"},
    {"llama3", "draft-model", "self"},
    {"llama3", "ngram", NULL},
    {"qwen3-window", "draft-model", "self"},
};

static struct gen head;

static void conf_real(struct engine_conf *c, const struct real *r)
{
    c->speculative = r->method;
    c->draft = !r->draft ? NULL : !strcmp(r->draft, "self") ? model.dir : head.dir;
    if (!strcmp(r->method, "ngram")) {
        c->spec_tokens = 0;
        c->spec_ngram_min = 1;
    }
}

START_TEST(real_drafters)
{
    const struct real *r = &reals[_i];
    bool lookup = !strcmp(r->method, "ngram"), self = r->draft && !strcmp(r->draft, "self");
    model_make(r->target);
    kv_type = _i < 2 ? "fp8" : NULL;
    if (r->draft && !self) {
        head_make(&head, &heads[0]);
        gen_write(&head, 1);
    }
    struct rig *want = reference();
    int64_t preempted = 0;
    for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k += TSAN                  ? 4
                                                                : lookup || SANITIZED ? 2
                                                                                      : 1) {
        char what[96];
        struct engine_conf c = conf_of(&shapes[k]);
        conf_real(&c, r);
        c.block_size = k % 3 == 0 ? 16 : k % 3 == 1 ? 1 : 64;
        snprintf(what, sizeof what, "%s on %s S=%d K=%d N=%d page %d", r->method, r->target,
                 c.spec_steps, c.spec_topk, c.spec_tokens, c.block_size);
        struct sums s = run(want, c, k == 1, what);
        ck_assert_int_gt((int)s.drafted, 0);
        if (self && c.spec_topk == 1) /* greedy or coupled noise: right but for sampling features */
            ck_assert_int_gt((int)(s.accepted * 10), (int)(s.drafted * 4));
        c.max_num_seqs = 64;
        c.kv_cache_tokens = 220;
        c.max_num_batched_tokens = 24;
        c.overlap_off = k % 2;
        if (c.spec_topk == 1 &&
            !lookup) { /* greedy requests are matched under ratio rejection too */
            struct engine_conf ratio = c;
            ratio.spec_ratio = true;
            run_greedy(want, ratio, what);
        }
        preempted += run(want, c, false, "the same in a tiny pool").preempted;
    }
    ck_assert(TSAN || preempted > 0); /* there, requests may come too slowly for it */
    if (head.dir[0])
        gen_close(&head);
    reference_done(want);
}
END_TEST

/* Copies the trained head with the rows of its output layer in reverse, as if it had been made for
 * another vocabulary. */
static void wrong_head(const char *from, const char *to)
{
    char path[300];
    struct file_map m;
    struct err e = {0};
    snprintf(path, sizeof path, "%s/model.safetensors", from);
    ck_assert_msg(file_map_open(&m, path, &e) == OK, "%s", e.text);
    unsigned char *p = mem_dup(m.p, m.len);
    uint64_t head_len = 0;
    memcpy(&head_len, p, 8);
    json_t *h = json_loadb((char *)p + 8, head_len, 0, NULL);
    json_t *at = json_object_get(json_object_get(h, "lm_head.weight"), "data_offsets");
    size_t lo = (size_t)json_integer_value(json_array_get(at, 0));
    size_t hi = (size_t)json_integer_value(json_array_get(at, 1));
    ck_assert(hi > lo && 8 + head_len + hi <= m.len);
    uint16_t *w = (uint16_t *)(void *)(p + 8 + head_len + lo);
    for (size_t i = 0, n = (hi - lo) / 2; i < n / 2; i++) {
        uint16_t t = w[i];
        w[i] = w[n - 1 - i];
        w[n - 1 - i] = t;
    }
    snprintf(path, sizeof path, "%s/model.safetensors", to);
    FILE *f = fopen(path, "wb");
    ck_assert(f && fwrite(p, 1, m.len, f) == m.len && fclose(f) == 0);
    json_decref(h);
    mem_free(p);
    file_map_close(&m);
}

/* A drafter that does not fit its target is refused by name when it was asked for; when it was
 * found, it is left alone and the server serves. */
START_TEST(self_check)
{
    static const char dir[] = "configs/models/demo-qwen3-eagle3";
    struct engine_conf c = {.model = "configs/models/demo-qwen3", .threads = 1, .max_num_seqs = 4};
    struct engine *g = NULL;
    struct err e = {0};
    char wrong[] = "/tmp/specd-head-XXXXXX", path[300];
    json_t *conf = NULL;
    snprintf(path, sizeof path, "%s/config.json", dir);
    ck_assert(mkdtemp(wrong) && js_load(&conf, path, &e) == OK);
    snprintf(path, sizeof path, "%s/config.json", wrong);
    ck_assert_int_eq(json_dump_file(conf, path, 0), 0);
    json_decref(conf);
    wrong_head(dir, wrong);
    c.draft = wrong;
    c.speculative = "eagle3";
    ck_assert_int_eq(engine_open(&g, &c, NULL, NULL, &e), E_INVAL);
    ck_assert_msg(strstr(e.text, "does not fit") && strstr(e.text, "Eagle3") &&
                      strstr(e.text, "Qwen3ForCausalLM") && strstr(e.text, "spec_check"),
                  "%s", e.text);
    c.spec_check_off = true;
    ck_assert_msg(engine_open(&g, &c, NULL, NULL, &e) == OK, "%s", e.text);
    ck_assert(engine_info(g)->spec_model);
    engine_close(g);
    c.spec_check_off = false;
    c.speculative = "auto";
    ck_assert_msg(engine_open(&g, &c, NULL, NULL, &e) == OK, "%s", e.text);
    ck_assert(!engine_info(g)->spec_model && engine_info(g)->defaults.spec_mode == SPEC_NGRAM);
    engine_close(g);
    c.draft = dir;
    ck_assert_msg(engine_open(&g, &c, NULL, NULL, &e) == OK, "%s", e.text);
    ck_assert(engine_info(g)->spec_model);
    ck_assert(!engine_poll(g)); /* the check's events are nobody's */
    engine_close(g);
    unlink(path);
    snprintf(path, sizeof path, "%s/model.safetensors", wrong);
    unlink(path);
    rmdir(wrong);
}
END_TEST

Suite *suite_spec_exact(void);
Suite *suite_spec_exact(void)
{
    Suite *s = suite_create("spec_exact");
    TCase *c = tcase_create("any drafter");
    tcase_set_timeout(c, 300);
    tcase_add_loop_test(
        c, any_drafter, 0,
        (int)(sizeof families / sizeof *families * (sizeof shapes / sizeof *shapes)));
    tcase_add_test(c, self_check);
    tcase_add_loop_test(c, real_drafters, 0, (int)(sizeof reals / sizeof *reals));
    suite_add_tcase(s, c);
    return s;
}
