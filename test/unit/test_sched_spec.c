/* Goal: the scheduler's part in speculation: how deep rounds are, who drafts, what is counted.
 * Method: as in test_sched.c; the fake device's times make drafts cheap or dear, and it accepts no
 * draft of a request that the drafter has lost. */
#include <check.h>

#include "test/unit/sched_rig.h"

/* A request may fix the depth of the rounds of its steps, whatever has been learnt. */
START_TEST(fixed_depth)
{
    struct sched_conf c = small();
    c.rows = c.emit = 4;
    c.ahead = 8;
    c.depth = 3;
    c.adapt = true;
    c.kv.group[0].pages_max = 27;
    struct rig *m = rig_open(c);
    for (uint64_t id = 1; id <= 2; id++) {
        struct gen_req *g = req(id, 10, 12);
        g->p.spec_mode = SPEC_MODEL;
        g->p.spec_max = 9;
        g->p.spec_fixed = id == 1;
        must(m, g);
        int seen = 0;
        while (m->got[id].finish == FINISH_NONE) {
            sched_turn(m->f.s);
            for (int i = 0; i < m->f.n_queue; i++)
                if (m->f.queue[i]->n_req && m->got[id].n_tok < 8) {
                    ck_assert_int_eq(m->f.queue[i]->depth, id == 1 ? 0 : 3);
                    seen++;
                }
            fake_run_one(&m->f);
        }
        ck_assert_int_gt(seen, 0);
        while (fake_run_one(&m->f) || sched_turn(m->f.s))
            continue;
    }
    rig_close(m);
}
END_TEST

/* Modes beside each other: what a request was counted adds up to the server's sums of its mode, and
 * a wish for more than there is becomes what there is. */
START_TEST(counts_of_drafts)
{
    static const struct {
        enum spec_mode mode, as;
        int max, drafts; /* wished; most a verify may bring */
    } wish[] = {{SPEC_OFF, SPEC_OFF, 9, 0},     {SPEC_NGRAM, SPEC_NGRAM, 1, 1},
                {SPEC_NGRAM, SPEC_NGRAM, 9, 3}, {SPEC_MODEL, SPEC_OFF, 9, 0},
                {SPEC_NGRAM, SPEC_OFF, 0, 0},   {SPEC_NGRAM, SPEC_OFF, -3, 0}};
    struct sched_conf c = small();
    c.rows = c.emit = c.ahead = 4;
    c.ngram = c.emit - 1; /* and no drafter with a network */
    c.kv.group[0].pages_max = 27;
    struct rig *m = rig_open(c);
    int64_t verify[SPEC_MODEL + 1] = {0}, took[SPEC_MODEL + 1] = {0}, rows[SPEC_MODEL + 1] = {0};
    for (uint64_t id = 1; id <= ARRAY_LEN(wish); id++) {
        struct gen_req *g = req(id, 10, 40);
        g->p.spec_mode = wish[id - 1].mode;
        g->p.spec_max = wish[id - 1].max;
        must(m, g);
    }
    finish_all(m);
    for (uint64_t id = 1; id <= ARRAY_LEN(wish); id++) {
        const struct gen_stats *s = &m->got[id].stats;
        int as = (int)wish[id - 1].as, drafts = wish[id - 1].drafts;
        ck_assert_int_eq(s->n_output, 40);
        ck_assert_int_eq(s->n_output, 1 + s->n_verify + s->n_accepted);
        ck_assert_int_eq(s->n_draft, s->n_verify * drafts);
        ck_assert(drafts ? s->n_accepted > 0 : s->n_verify == 39);
        verify[as] += s->n_verify;
        took[as] += s->n_accepted;
        rows[as] += s->n_verify + s->n_draft;
    }
    for (int as = SPEC_OFF; as <= SPEC_MODEL; as++) {
        const struct spec_sums *t = &sched_stats(m->f.s)->spec[as];
        int64_t deep = 0, by_took = 0, n = 0;
        for (int p = 0; p < LIM_EMIT; p++) {
            n += t->took[p];
            by_took += p * t->took[p];
            deep += p * t->deep[p];
        }
        ck_assert(t->n_verify == verify[as] && n == verify[as]);
        ck_assert(t->accepted == took[as] && by_took == took[as]);
        ck_assert(t->rows == rows[as] && t->drafted == rows[as] - verify[as]);
        ck_assert(deep == t->drafted); /* chains */
    }
    rig_close(m);
}
END_TEST

/* The depth of rounds follows a step's time from its begin, verify included: rows that cost little
 * are drafted although the rounds take long beside what follows the verify, dear ones are not. */
START_TEST(depth_follows_times)
{
    struct sched_conf c = small();
    c.rows = c.emit = 4;
    c.ahead = 7;
    c.depth = 3;
    c.adapt = true;
    c.len_max = 2000;
    c.kv.group[0].n_page = 1600;
    c.kv.group[0].pages_max = 502;
    struct rig *m = rig_open(c);
    m->f.ns_step = _i ? 100000 : 900000;
    m->f.ns_row = _i ? 100000 : 1000;
    m->f.ns_draft = 20000;
    struct gen_req *g = req(1, 10, 1900);
    must(m, g);
    finish_all(m);
    ck_assert_int_eq(m->got[1].stats.n_output, 1900);
    const struct spec_sums *t = &sched_stats(m->f.s)->spec[SPEC_MODEL];
    ck_assert_msg(t->deep[_i ? 0 : 3] * 10 > t->n_verify * 7, "%lld of %lld at 0, %lld at 3",
                  (long long)t->deep[0], (long long)t->n_verify, (long long)t->deep[3]);
    rig_close(m);
}
END_TEST

/* Rows were dear, then get cheap: drafts come back, though the drafter has lost all that run. It is
 * requests that begin meanwhile which show what it is worth. */
START_TEST(drafts_come_back)
{
    enum { DEAR = 4, ALL = 12, TOKENS = 600 };
    struct sched_conf c = small();
    c.rows = c.emit = 4;
    c.ahead = 7;
    c.depth = 3;
    c.adapt = true;
    c.len_max = 700;
    c.kv.group[0].n_page = 600;
    c.kv.group[0].pages_max = 177;
    struct rig *m = rig_open(c);
    m->f.ns_step = 900000;
    m->f.ns_draft = 20000;
    int64_t deep[2] = {0}, all[2] = {0};
    const struct spec_sums *t = &sched_stats(m->f.s)->spec[SPEC_MODEL];
    for (uint64_t id = 1; id <= ALL; id++) {
        m->f.ns_row = id <= DEAR ? 900000 : 1000;
        int64_t before = t->deep[3], n = t->n_verify;
        must(m, req(id, 10, TOKENS));
        finish_all(m);
        if (id == DEAR || id == ALL) {
            deep[id == ALL] = t->deep[3] - before;
            all[id == ALL] = t->n_verify - n;
        }
    }
    ck_assert_msg(deep[0] * 10 < all[0], "dear: %d of %d", (int)deep[0], (int)all[0]);
    ck_assert_msg(deep[1] * 10 > 9 * all[1], "cheap: %d of %d", (int)deep[1], (int)all[1]);
    rig_close(m);
}
END_TEST

Suite *suite_sched_spec(void);
Suite *suite_sched_spec(void)
{
    Suite *s = suite_create("sched_spec");
    TCase *c = tcase_create("spec");
    tcase_add_test(c, fixed_depth);
    tcase_add_test(c, counts_of_drafts);
    tcase_add_loop_test(c, depth_follows_times, 0, 2);
    tcase_add_test(c, drafts_come_back);
    suite_add_tcase(s, c);
    return s;
}
