/* A scheduler on the fake device (sched_fake.h), driven turn by turn, and what its requests got. */
#ifndef SPECD_TEST_SCHED_RIG_H
#define SPECD_TEST_SCHED_RIG_H

#include <check.h>

#include "engine/sched/sched_int.h"
#include "engine/text/tokenizer.h"
#include "test/unit/sched_fake.h"
#include "test/unit/sched_text.h"

struct got { /* of one request */
    int n_tok, n_done, n_started, n_prompt;
    int32_t tok[2048];
    struct buf text;
    enum finish finish;
    int stop_string;
    int32_t stop_id;
    struct err err;
    struct gen_stats stats;
};

struct rig {
    struct fake f; /* first: the scheduler's ud */
    struct tokenizer *tok;
    struct got got[64]; /* by id */
};

static inline void on_events(void *ud, struct gen_evt *first, struct gen_evt *last, int n_done)
{
    struct rig *m = ud;
    (void)last;
    for (struct gen_evt *e = first, *next; e; e = next) {
        next = e->next;
        struct got *o = &m->got[e->id];
        o->n_started += e->kind == EVT_STARTED;
        o->n_prompt += e->kind == EVT_PROMPT;
        for (int i = 0; i < e->n_tok && e->kind != EVT_PROMPT; i++)
            o->tok[o->n_tok++] = e->tok[i].id;
        if (e->n_text)
            buf_push(&o->text, e->text, e->n_text);
        if (e->kind == EVT_DONE) {
            o->n_done++;
            n_done--;
            o->finish = e->finish;
            o->stop_string = e->stop_string;
            o->stop_id = e->stop_id;
            o->err = e->err;
            o->stats = e->stats;
        }
        gen_evt_free(e);
    }
    ck_assert_int_eq(n_done, 0);
}

static inline struct sched_conf small(void)
{
    struct sched_conf c = {.reqs_max = 4,
                           .slots_max = 6,
                           .rows_max = 64,
                           .len_max = 100,
                           .queue_max = 4,
                           .steps = 2,
                           .rows = 1,
                           .emit = 1,
                           .ahead = 1,
                           .n_eos = 1,
                           .eos = {FAKE_EOS},
                           .events = on_events};
    c.kv = (struct kv_conf){.page = 4, .n_group = 1, .group = {{.n_page = 100, .pages_max = 25}}};
    return c;
}

static inline struct rig *rig_open(struct sched_conf c)
{
    struct rig *m = MEM_NEW(struct rig);
    struct err e = {0};
    m->tok = sched_text_open();
    c.tok = m->tok;
    ck_assert_msg(fake_open(&m->f, &c, 1, &e) == OK, "%s", e.text);
    return m;
}

static inline void rig_close(struct rig *m)
{
    while (fake_run_one(&m->f) || sched_turn(m->f.s))
        continue;
    fake_close(&m->f);
    for (size_t i = 0; i < ARRAY_LEN(m->got); i++)
        buf_done(&m->got[i].text);
    tok_close(m->tok);
    mem_free(m);
}

/* A request that only length ends, unless the caller changes that. */
static inline struct gen_req *req(uint64_t id, int n_prompt, int max_tokens)
{
    struct gen_req *g = gen_req_new();
    g->id = id;
    g->n_prompt = (size_t)n_prompt;
    g->prompt = MEM_ARRAY(int32_t, n_prompt);
    for (int i = 0; i < n_prompt; i++)
        g->prompt[i] = (int32_t)(i + 3 + (int)id) % FAKE_VOCAB;
    g->p.max_tokens = max_tokens;
    g->p.ignore_eos = true;
    g->p.spec_mode = SPEC_MODEL;
    g->p.spec_max = LIM_ROWS_PER_REQ;
    g->p.seed = id;
    g->p.has_seed = true;
    return g;
}

static inline int give(struct rig *m, struct gen_req *g, struct err *e)
{
    int ret = sched_submit(m->f.s, &g, 1, e);
    if (ret < 0)
        gen_req_free(g);
    return ret;
}

static inline void must(struct rig *m, struct gen_req *g)
{
    struct err e = {0};
    ck_assert_msg(give(m, g, &e) == OK, "%s", e.text);
}

static inline void
turn(struct rig *m) /* the device does one step, then the scheduler has its turn */
{
    fake_run_one(&m->f);
    sched_turn(m->f.s);
    sched_check(m->f.s);
}

static inline void finish_all(struct rig *m)
{
    for (int i = 0; sched_live(m->f.s); i++) {
        ck_assert_int_lt(i, 5000);
        turn(m);
    }
}

static inline int reference(struct rig *m, const struct gen_req *g, int32_t *out, int *fin)
{
    struct slot_params p;
    struct sreq r = {.g = (struct gen_req *)g, .n_prompt = (int)g->n_prompt};
    r.n_tok = r.n_prompt;
    req_slot_params(m->f.s, &r, &p);
    return fake_reference(g->prompt, (int)g->n_prompt, &p, out, fin);
}

#endif
