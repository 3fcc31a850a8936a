/* Goal: the whole engine, scheduler and worker threads included, on tiny generated models: the
 * tokens of a request do not depend on what runs beside it, on the page pool, on chunking or on the
 * number of steps in flight; whatever is canceled leaves nothing in use.
 * Method: the reference is each request run alone in a roomy engine; the others must give the same
 * ids and the same text, byte for byte. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/buf.h"
#include "engine/base/check.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/rng.h"
#include "engine/base/thread.h"
#include "engine/engine.h"
#include "test/unit/engine_rig.h"

enum { REQS = SANITIZED ? 16 : 64, FAMILIES = TSAN ? 1 : 3, ROUNDS = TSAN ? 2 : SANITIZED ? 4 : 8 };
enum { OUT_MAX = 70 };

struct got {
    int n_tok, n_done, n_started, n_prompt;
    int32_t tok[OUT_MAX];
    float lp[OUT_MAX];
    struct buf text;
    enum finish finish;
    int n_preempted;
    uint64_t seed;
    struct err err;
};

struct rig {
    struct engine *g;
    struct got got[REQS + 1]; /* by id, from 1 */
    struct waker waker;
};

static struct gen model;
static const char *kv_type; /* of every engine of a test; NULL: auto */

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
    c.kv_cache_dtype = kv_type;
    if (!c.threads)
        c.threads = 1;
    ck_assert_msg(engine_open(&m->g, &c, waker_wake, &m->waker, &e) == OK, "%s", e.text);
    return m;
}

static void rig_close(struct rig *m)
{
    engine_close(m->g);
    for (int i = 0; i <= REQS; i++)
        buf_done(&m->got[i].text);
    waker_done(&m->waker);
    mem_free(m);
}

static void take(struct rig *m, const struct gen_evt *e)
{
    struct got *o = &m->got[e->id];
    ck_assert_int_eq(o->n_done, 0);
    o->n_started += e->kind == EVT_STARTED;
    o->n_prompt += e->kind == EVT_PROMPT ? e->n_tok : 0;
    for (int i = 0; i < e->n_tok && e->kind != EVT_PROMPT; i++) {
        ck_assert_int_lt(o->n_tok, OUT_MAX);
        o->lp[o->n_tok] = e->tok[i].logprob;
        o->tok[o->n_tok++] = e->tok[i].id;
    }
    if (e->n_text)
        buf_push(&o->text, e->text, e->n_text);
    if (e->kind == EVT_DONE) {
        o->n_done++;
        o->finish = e->finish;
        o->n_preempted = e->stats.n_preempted;
        o->seed = e->stats.seed;
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

/* Waits for a wake-up, then polls. */
static void wait_poll(struct rig *m)
{
    waker_wait(&m->waker);
    poll(m);
}

static void finish_all(struct rig *m)
{
    while (engine_active(m->g))
        wait_poll(m);
    poll(m);
}

/* Request i: greedy, sampled, penalised and with a stop string in turn. */
static struct gen_req *request(const struct rig *m, int i)
{
    struct gen_req *g = gen_req_new();
    engine_default_params(m->g, &g->p);
    struct rng r = {(uint64_t)i * 77};
    g->id = (uint64_t)i + 1;
    g->n_prompt = 1 + rng_below(&r, 60);
    g->prompt = MEM_ARRAY(int32_t, g->n_prompt);
    for (size_t k = 0; k < g->n_prompt; k++)
        g->prompt[k] = (int32_t)rng_below(&r, 131);
    g->p.max_tokens = 10 + (int)rng_below(&r, OUT_MAX - 10);
    g->p.temperature = i % 3 ? 1 : 0;
    g->p.top_p = i % 4 == 1 ? 0.9f : 1;
    g->p.top_k = i % 5 == 1 ? 20 : 0;
    g->p.repetition = i % 6 == 1 ? 1.3f : 1;
    g->p.frequency = i % 7 == 1 ? 0.5f : 0;
    g->p.seed = (uint64_t)i;
    g->p.has_seed = true;
    g->p.n_logprobs = 0;
    if (i % 3 == 1) {
        g->n_stop = 1;
        g->stop = MEM_ARRAY(char *, 1);
        g->stop[0] = mem_strdup("aaaaaaa");
    }
    return g;
}

static void submit(struct rig *m, int i)
{
    struct gen_req *g = request(m, i);
    struct err e = {0};
    ck_assert_msg(engine_submit(m->g, &g, 1, &e) == OK, "%s", e.text);
}

static void nothing_in_use(struct rig *m)
{
    struct engine_usage u;
    engine_usage(m->g, &u);
    ck_assert_msg(u.active == 0 && u.slots == 0 && u.pages == 0, "%d active, %d slots, %lld pages",
                  u.active, u.slots, (long long)u.pages);
}

static struct rig *alone(void)
{
    struct rig *m = rig_open((struct engine_conf){.max_num_seqs = 1});
    for (int i = 0; i < REQS; i++) {
        submit(m, i);
        finish_all(m);
    }
    nothing_in_use(m);
    return m;
}

static void compare(const struct rig *want, const struct rig *have, const char *what)
{
    for (int i = 1; i <= REQS; i++) {
        const struct got *a = &want->got[i], *b = &have->got[i];
        ck_assert_msg(b->n_done == 1 && a->finish == b->finish && a->n_tok == b->n_tok,
                      "%s, request %d: %d and %d tokens, ends %d and %d: %s", what, i, a->n_tok,
                      b->n_tok, a->finish, b->finish, b->err.text);
        ck_assert_msg(!memcmp(a->tok, b->tok, sizeof *a->tok * (size_t)a->n_tok), "%s, request %d",
                      what, i);
        ck_assert_msg(!memcmp(a->lp, b->lp, sizeof *a->lp * (size_t)a->n_tok),
                      "%s, request %d: log probabilities", what, i);
        ck_assert_msg(a->text.len == b->text.len &&
                          !memcmp(buf_cstr(&a->text), buf_cstr(&b->text), a->text.len),
                      "%s, request %d: text", what, i);
    }
}

static int together(const struct rig *want, struct engine_conf c, int at_once, const char *what)
{
    struct rig *m = rig_open(c);
    for (int i = 0, done = 0; i < REQS;) {
        for (; i < REQS && i - done < at_once; i++)
            submit(m, i);
        wait_poll(m);
        for (done = 0; done < REQS && m->got[done + 1].n_done; done++)
            continue;
    }
    finish_all(m);
    compare(want, m, what);
    nothing_in_use(m);
    int preempted = 0;
    for (int i = 1; i <= REQS; i++)
        preempted += m->got[i].n_preempted;
    printf("engine: %s, %s: %d preemptions\n", engine_info(m->g)->family, what, preempted);
    rig_close(m);
    return preempted;
}

static const char *const families[] = {"qwen3-window", "ds-v3", "llama3"};

START_TEST(same_text_in_any_company)
{
    model_make(families[_i]);
    kv_type = _i == 1 ? "fp8" : NULL;
    struct rig *want = alone();
    int stops = 0;
    for (int i = 1; i <= REQS; i++)
        stops += want->got[i].finish == FINISH_STOP;
    ck_assert(stops > 0 && stops < REQS); /* both kinds of end */
    struct engine_conf roomy = {.max_num_seqs = 8}, tiny = {.max_num_seqs = 64};
    tiny.kv_cache_tokens = 200; /* of some 4,000 that they need together */
    tiny.max_num_batched_tokens = 200;
    ck_assert_int_eq(together(want, roomy, 8, "8 at once"), 0);
    tiny.block_size = 1;
    ck_assert_int_gt(together(want, tiny, 64, "64 at once, pages of 1"), 0);
    tiny.block_size = 16;
    tiny.threads = 2;
    ck_assert_int_gt(together(want, tiny, 64, "64 at once, pages of 16"), 0);
    tiny.overlap_off = true;
    tiny.max_num_batched_tokens = 7;
    together(want, tiny, 64, "one step in flight, 7 rows");
    rig_close(want);
    gen_close(&model);
}
END_TEST

START_TEST(cancel_storm)
{
    model_make("qwen3-window");
    struct rng r = {5};
    struct rig *m =
        rig_open((struct engine_conf){.max_num_seqs = 16, .kv_cache_tokens = 200, .block_size = 1});
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i <= REQS; i++) {
            buf_done(&m->got[i].text);
            m->got[i] = (struct got){0};
        }
        for (int i = 0; i < REQS; i++) {
            submit(m, i);
            if (rng_below(&r, 3) == 0)
                engine_pause(m->g, 1 + rng_below(&r, (uint64_t)i + 1), rng_below(&r, 2));
            if (rng_below(&r, 2))
                engine_cancel(m->g, 1 + rng_below(&r, (uint64_t)i + 1));
            if (rng_below(&r, 4) == 0)
                wait_poll(m);
        }
        if (round % 2) {
            engine_cancel_all(m->g);
        } else {
            for (uint64_t id = 1; id <= REQS; id++)
                engine_pause(m->g, id, false);
        }
        finish_all(m);
        nothing_in_use(m);
        for (int i = 1; i <= REQS; i++)
            ck_assert_int_eq(m->got[i].n_done, 1);
    }
    ck_assert(engine_healthy(m->g, 2000000));
    rig_close(m);
    gen_close(&model);
}
END_TEST

START_TEST(closed_at_work)
{
    model_make("llama3");
    struct rig *m = rig_open((struct engine_conf){.max_num_seqs = 8});
    for (int i = 0; i < REQS; i++)
        submit(m, i);
    wait_poll(m);
    rig_close(m); /* ends what runs; the sanitizers see what it forgets */
    gen_close(&model);
}
END_TEST

START_TEST(bounds_and_drain)
{
    model_make("llama3");
    struct err e = {0};
    struct engine *none = NULL;
    struct engine_conf bad = {.model = model.dir, .max_model_len = 257, .threads = 1};
    ck_assert_int_eq(engine_open(&none, &bad, NULL, NULL, &e), E_INVAL);
    ck_assert(strstr(e.text, "max_model_len") && strstr(e.text, "256") && !none);
    struct engine_conf gone = {.model = "/nowhere"};
    ck_assert_int_lt(engine_open(&none, &gone, NULL, NULL, &e), 0);
    struct rig *m = rig_open((struct engine_conf){
        .max_num_seqs = 2, .max_queued_requests = 2, .max_model_len = 64, .seed = 9});
    ck_assert_int_eq(engine_info(m->g)->max_model_len, 64);
    struct gen_req *g = request(m, 0);
    mem_free(g->prompt);
    g->n_prompt = 64;
    g->prompt = MEM_ARRAY(int32_t, 64);
    ck_assert_int_eq(engine_submit(m->g, &g, 1, &e), E_RANGE);
    g->n_prompt = 63;
    g->p.n_prompt_logprobs = 2;
    ck_assert_int_eq(engine_submit(m->g, &g, 1, &e), OK);
    finish_all(m);
    ck_assert(m->got[1].n_tok == 1 && m->got[1].n_prompt == 63);
    struct gen_req *many[5];
    for (int i = 0; i < 5; i++)
        many[i] = request(m, i + 1);
    ck_assert_int_eq(engine_submit(m->g, many, 5, &e), E_BUSY);
    ck_assert_int_eq(engine_submit(m->g, many, 4, &e), OK);
    engine_drain(m->g);
    ck_assert_int_eq(engine_submit(m->g, many + 4, 1, &e), E_CANCELED);
    gen_req_free(many[4]);
    finish_all(m);
    nothing_in_use(m);
    ck_assert(engine_healthy(m->g, 2000000));
    rig_close(m);
    gen_close(&model);
}
END_TEST

/* Requests without a seed: their own each, the same for the same base. */
START_TEST(seeds)
{
    model_make("llama3");
    uint64_t seed[2][3];
    for (int k = 0; k < 2; k++) {
        struct rig *m = rig_open((struct engine_conf){.max_num_seqs = 2, .seed = 9});
        for (int i = 0; i < 3; i++) {
            struct gen_req *g = request(m, i);
            g->p.has_seed = false;
            ck_assert_int_eq(engine_submit(m->g, &g, 1, NULL), OK);
        }
        finish_all(m);
        for (int i = 0; i < 3; i++)
            seed[k][i] = m->got[i + 1].seed;
        rig_close(m);
    }
    ck_assert_mem_eq(seed[0], seed[1], sizeof seed[0]);
    ck_assert(seed[0][0] != seed[0][1] && seed[0][1] != seed[0][2]);
    gen_close(&model);
}
END_TEST

Suite *suite_engine(void);
Suite *suite_engine(void)
{
    Suite *s = suite_create("engine");
    TCase *c = tcase_create("tiny models");
    tcase_set_timeout(c, 300);
    tcase_add_loop_test(c, same_text_in_any_company, 0, FAMILIES);
    tcase_add_test(c, cancel_storm);
    tcase_add_test(c, closed_at_work);
    tcase_add_test(c, bounds_and_drain);
    tcase_add_test(c, seeds);
    suite_add_tcase(s, c);
    return s;
}
