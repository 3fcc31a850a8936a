/* Goal: the whole engine on ranks: greedy text is that of one rank, a request's bits do not depend
 * on its company, drafts change nothing, and when any rank fails every request ends with an error
 * and nothing hangs. Method: the shipped models through the scheduler and the ranks' threads. */
#include <check.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/buf.h"
#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/base/rng.h"
#include "engine/base/thread.h"
#include "engine/engine.h"
#include "engine/worker/runner.h"
#include "kernels/cpu/cpu.h"
#include "speculative/algos.h"
#include "test/model/gen.h"

enum { REQS = SANITIZED ? 3 : 6, OUT = SANITIZED ? 10 : 32 };

static const char *const models[] = {"configs/models/demo", "configs/models/demo-qwen3"};

struct got {
    int n_tok, n_done, n_accepted;
    int32_t tok[OUT];
    float lp[OUT];
    enum finish finish;
    struct err err;
};

struct rig {
    struct engine *g;
    struct got got[REQS + 1]; /* by id, from 1 */
    pthread_mutex_t lock;     /* guards `woken` */
    pthread_cond_t more;
    bool woken;
};

static void on_wake(void *ud)
{
    struct rig *m = ud;
    mutex_lock(&m->lock);
    m->woken = true;
    cond_signal(&m->more);
    mutex_unlock(&m->lock);
}

static struct rig *rig_open(const char *model, struct engine_conf c)
{
    struct rig *m = MEM_NEW(struct rig);
    struct err e = {0};
    mutex_init(&m->lock);
    cond_init(&m->more);
    c.model = model;
    c.device = "cpu";
    c.threads = 2;
    c.max_model_len = 256;
    c.max_num_batched_tokens = 48;
    c.kv_cache_tokens = 2048;
    ck_assert_msg(engine_open(&m->g, &c, on_wake, m, &e) == OK, "%s", e.text);
    return m;
}

static void rig_close(struct rig *m)
{
    engine_close(m->g);
    mutex_done(&m->lock);
    cond_done(&m->more);
    mem_free(m);
}

static void take(struct rig *m, const struct gen_evt *e)
{
    struct got *o = &m->got[e->id];
    for (int i = 0; i < e->n_tok && o->n_tok < OUT; i++) {
        o->lp[o->n_tok] = e->tok[i].logprob;
        o->tok[o->n_tok++] = e->tok[i].id;
    }
    if (e->kind == EVT_DONE) {
        o->n_done++;
        o->finish = e->finish;
        o->n_accepted = e->stats.n_accepted;
        o->err = e->err;
    }
}

static void finish_all(struct rig *m)
{
    bool over;
    do {
        over = !engine_active(m->g);
        for (struct gen_evt *e = engine_poll(m->g), *next; e; e = next) {
            next = e->next;
            take(m, e);
            gen_evt_free(e);
        }
        mutex_lock(&m->lock);
        if (!over && !m->woken)
            ck_assert(cond_wait_us(&m->more, &m->lock, 60000000) || m->woken);
        m->woken = false;
        mutex_unlock(&m->lock);
    } while (!over);
}

static int submit(struct rig *m, int i, float temperature, struct err *e)
{
    const char *const say[] = {"The shell reads a line", "What is 12 + 30?", "A process is"};
    struct gen_req *g = gen_req_new();
    engine_default_params(m->g, &g->p);
    ck_assert_int_eq(engine_encode(m->g, say[i % 3], strlen(say[i % 3]), true, false, NULL, 0, 0,
                                   &g->prompt, &g->n_prompt, e),
                     OK);
    g->id = (uint64_t)i + 1;
    g->p.max_tokens = OUT - i;
    g->p.temperature = i < 3 ? 0 : temperature;
    g->p.top_k = 0;
    g->p.top_p = 1;
    g->p.seed = (uint64_t)i;
    g->p.has_seed = true;
    g->p.ignore_eos = true;
    g->p.n_logprobs = 0;
    int ret = engine_submit(m->g, &g, 1, e);
    if (ret < 0)
        gen_req_free(g);
    return ret;
}

static struct rig *all(const char *model, struct engine_conf c, float temperature)
{
    struct rig *m = rig_open(model, c);
    struct err e = {0};
    for (int i = 0; i < REQS; i++)
        ck_assert_msg(submit(m, i, temperature, &e) == OK, "%s", e.text);
    finish_all(m);
    for (int i = 1; i <= REQS; i++)
        ck_assert_msg(m->got[i].n_done == 1 && m->got[i].n_tok == OUT - (i - 1), "request %d: %s",
                      i, m->got[i].err.text);
    struct engine_usage u;
    engine_usage(m->g, &u);
    ck_assert(u.active == 0 && u.slots == 0 && u.pages == 0);
    return m;
}

static void same_tokens(const struct rig *a, const struct rig *b, const char *what)
{
    for (int i = 1; i <= REQS; i++)
        ck_assert_msg(!memcmp(a->got[i].tok, b->got[i].tok, sizeof a->got[i].tok), "%s: request %d",
                      what, i);
}

static void same_bits(const struct rig *a, const struct rig *b, const char *what)
{
    same_tokens(a, b, what);
    for (int i = 1; i <= REQS; i++)
        ck_assert_msg(!memcmp(a->got[i].lp, b->got[i].lp, sizeof a->got[i].lp),
                      "%s: log probabilities of request %d", what, i);
}

START_TEST(text_of_one_rank)
{
    struct engine_conf one = {.max_num_seqs = 4}, two = one;
    two.tensor_parallel_size = 2;
    struct rig *a = all(models[_i], one, 0), *b = all(models[_i], two, 0);
    const struct engine_info *ia = engine_info(a->g), *ib = engine_info(b->g);
    ck_assert_int_eq(ib->world, 2);
    ck_assert_int_eq(ia->n_param, ib->n_param);
    ck_assert_int_eq(ia->weight_bytes, ib->weight_bytes);
    /* keys and values by heads: no more together; a latent cache is whole on both */
    ck_assert_int_eq(ib->kv_bytes, _i ? ia->kv_bytes : 2 * ia->kv_bytes);
    same_tokens(a, b, models[_i]);
    rig_close(a);
    rig_close(b);
}
END_TEST

START_TEST(bits_of_any_company)
{
    struct engine_conf c = {.max_num_seqs = 4, .tensor_parallel_size = 2};
    struct rig *a = all(models[_i], c, 0.8f);
    c.max_num_seqs = 1;
    c.overlap_off = true;
    struct rig *b = all(models[_i], c, 0.8f);
    same_bits(a, b, "one at a time");
    rig_close(b);
    c.max_num_seqs = 4;
    c.overlap_off = false;
    c.speculative = "ngram";
    b = all(models[_i], c, 0.8f);
    same_bits(a, b, "prompt lookup");
    rig_close(b);
    rig_close(a);
}
END_TEST

/* Drafters are whole on every rank (next-token layers are divided like the rest of their
 * checkpoint): they accept what they accept beside one rank. */
START_TEST(drafts_change_nothing)
{
    static const struct {
        int model, topk;
        const char *method, *draft;
    } kinds[] = {
        {0, 0, "mtp", NULL},
        {1, 2, "eagle3", "configs/models/demo-qwen3-eagle3"},
        {1, 1, "draft-model", "configs/models/demo-qwen3"},
    };
    const char *model = models[kinds[_i].model];
    struct engine_conf c = {.max_num_seqs = 4, .tensor_parallel_size = 2};
    struct rig *off = all(model, c, 0.8f);
    c.speculative = kinds[_i].method;
    c.draft = kinds[_i].draft;
    c.spec_topk = kinds[_i].topk;
    struct rig *two = all(model, c, 0.8f);
    c.tensor_parallel_size = 1;
    struct rig *one = all(model, c, 0.8f);
    same_bits(off, two, kinds[_i].method);
    int n_one = 0, n_two = 0;
    for (int i = 1; i <= REQS; i++) {
        n_one += one->got[i].n_accepted;
        n_two += two->got[i].n_accepted;
    }
    printf("  %s: %d drafts accepted by one rank, %d by two\n", kinds[_i].method, n_one, n_two);
    ck_assert_int_gt(n_one, REQS);
    ck_assert_msg(10 * abs(n_one - n_two) <= n_one, "%d and %d", n_one, n_two);
    rig_close(off);
    rig_close(one);
    rig_close(two);
}
END_TEST

/* Ratio rejection changes sampled text, on ranks as on one. */
START_TEST(ratio_of_one_rank)
{
    struct engine_conf c = {.max_num_seqs = 4, .speculative = "mtp", .spec_ratio = true};
    struct rig *one = all(models[0], c, 0.8f);
    c.tensor_parallel_size = 2;
    struct rig *two = all(models[0], c, 0.8f);
    same_tokens(one, two, "ratio");
    rig_close(one);
    rig_close(two);
}
END_TEST

/* ---- a rank that fails ---- */

struct spec {
    struct dev *d;
    bool fails;
    int calls;
};

static atomic_int n_opened; /* ranks so far; the one numbered fail_at fails */
static int fail_at;

static int fail_call(struct dev *d, const void *args)
{
    struct spec *s = *(struct spec *const *)args;
    (void)d;
    return s->fails && ++s->calls > 3 ? E_DEVICE : OK;
}

static int fail_propose(struct spec *s, const struct spec_step *st, int depth, struct err *e)
{
    (void)st;
    (void)depth;
    (void)e;
    return cpu_call(s->d, fail_call, &s, sizeof s);
}

static int fail_open(struct spec **out, const struct spec_env *env, struct err *e)
{
    (void)e;
    *out = MEM_NEW(struct spec);
    **out = (struct spec){.d = env->d, .fails = atomic_fetch_add(&n_opened, 1) == fail_at};
    return OK;
}

static void fail_close(struct spec *s)
{
    mem_free(s);
}

static int fail_shape(struct spec_shape *out, const struct spec_conf *c,
                      const struct model_info *target, const struct model_info *drafter,
                      struct err *e)
{
    (void)c;
    (void)target;
    (void)drafter;
    return spec_chain_shape(out, 1, 0, e);
}

static const struct spec_algo breaks = {.name = "breaks",
                                        .shape = fail_shape,
                                        .open = fail_open,
                                        .propose = fail_propose,
                                        .close = fail_close};

START_TEST(a_failed_rank_fails_all)
{
    atomic_store(&n_opened, 0);
    fail_at = _i;
    struct rig *m = rig_open(
        models[1],
        (struct engine_conf){.max_num_seqs = 4, .tensor_parallel_size = 2, .spec_algo = &breaks});
    struct err e = {0};
    for (int i = 0; i < REQS; i++)
        ck_assert_msg(submit(m, i, 0, &e) == OK, "%s", e.text);
    finish_all(m);
    for (int i = 1; i <= REQS; i++) {
        const struct got *o = &m->got[i];
        ck_assert_msg(o->n_done == 1 && o->finish == FINISH_ERROR && o->err.code == E_DEVICE,
                      "request %d ends %d, code %d: %s", i, o->finish, o->err.code, o->err.text);
        ck_assert_int_lt(o->n_tok, OUT - REQS);
    }
    ck_assert(!engine_healthy(m->g, 60000000));
    ck_assert_int_eq(submit(m, 0, 0, &e), E_DEVICE);
    rig_close(m);
}
END_TEST

/* ---- ranks with different steps ---- */

struct side {
    struct thread t;
    struct comm *comm;
    int64_t no;
    int ret;
    struct err err;
};

static void run_empty(void *ud)
{
    struct side *s = ud;
    struct runner r;
    struct step st;
    struct worker_conf c = {.model_dir = models[1],
                            .device = "cpu",
                            .threads = 1,
                            .comm = s->comm,
                            .reqs_max = 1,
                            .slots_max = 1,
                            .prefill_rows_max = 8,
                            .len_max = 32,
                            .kv_tokens = 32};
    CHECK(runner_open(&r, &c, &s->err) == OK);
    CHECK(runner_step_init(&r, &st, &s->err) == OK);
    st.no = 1;
    CHECK(runner_step(&r, &st) == OK);
    st.no = s->no;
    s->ret = runner_step(&r, &st);
    s->err = st.err;
    runner_step_done(&r, &st);
    runner_close(&r);
}

START_TEST(different_steps_show)
{
    struct comm *c[LIM_RANKS];
    struct side s[2] = {{.no = 2}, {.no = 3}};
    ck_assert_int_eq(comm_shm_open(c, 2, NULL), OK);
    for (int i = 0; i < 2; i++) {
        s[i].comm = c[i];
        thread_start(&s[i].t, "rank", run_empty, &s[i]);
    }
    for (int i = 0; i < 2; i++)
        thread_join(&s[i].t);
    comm_shm_close(c);
    ck_assert_int_eq(s[0].ret, OK);
    ck_assert_int_eq(s[1].ret, E_DEVICE);
    ck_assert_msg(strstr(s[1].err.text, "rank 1 was given another step") != NULL, "%s",
                  s[1].err.text);
}
END_TEST

/* ---- refusals and the plan ---- */

START_TEST(refused)
{
    static const struct {
        const char *model;
        int world, code;
        const char *word[2];
    } bad[] = {
        {"configs/models/demo", 3, E_UNSUPPORTED, {"'num_attention_heads' 8", "3 ranks"}},
        {"configs/models/demo-qwen3", 4, E_UNSUPPORTED, {"'num_key_value_heads' 2", "4"}},
        {"configs/models/demo", 17, E_INVAL, {"tensor_parallel_size is 17", "16"}},
    };
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct engine *g = NULL;
        struct err e = {0}, f = {0};
        struct buf b = {0};
        struct engine_conf c = {.model = bad[i].model,
                                .device = "cpu",
                                .threads = 1,
                                .max_model_len = 64,
                                .tensor_parallel_size = bad[i].world};
        ck_assert_int_eq(engine_open(&g, &c, NULL, NULL, &e), bad[i].code);
        for (int k = 0; k < 2; k++)
            ck_assert_msg(strstr(e.text, bad[i].word[k]) != NULL, "%s", e.text);
        ck_assert_int_eq(engine_plan(&c, &b, &f), bad[i].code);
        ck_assert_str_eq(e.text, f.text);
        buf_done(&b);
    }
}
END_TEST

START_TEST(planned)
{
    struct buf b = {0};
    struct err e = {0};
    struct engine_conf c = {.model = models[_i], .device = "cpu", .threads = 1};
    c.tensor_parallel_size = 2;
    ck_assert_msg(engine_plan(&c, &b, &e) == OK, "%s", e.text);
    ck_assert(strstr(buf_cstr(&b), "ranks      2") && strstr(buf_cstr(&b), "weight copies"));
    /* keys of one head a rank instead of two; a whole latent row */
    ck_assert(strstr(buf_cstr(&b), _i ? "rows of 32 + 32" : "rows of 80 + 0"));
    buf_done(&b);
}
END_TEST

Suite *suite_tp_engine(void)
{
    Suite *s = suite_create("tp_engine");
    TCase *c = tcase_create("engine");
    tcase_set_timeout(c, 60);
    tcase_add_loop_test(c, text_of_one_rank, 0, 2);
    tcase_add_loop_test(c, bits_of_any_company, 0, 2);
    tcase_add_loop_test(c, drafts_change_nothing, 0, SANITIZED ? 1 : 3);
    tcase_add_test(c, ratio_of_one_rank);
    tcase_add_loop_test(c, a_failed_rank_fails_all, 0, 2);
    tcase_add_test(c, different_steps_show);
    tcase_add_test(c, refused);
    tcase_add_loop_test(c, planned, 0, 2);
    suite_add_tcase(s, c);
    return s;
}
