/* Goal: the rules of the scheduler one by one: bounds, ends, trimming, order, shares, failure.
 * Method: small hand-driven runs on the fake device (sched_fake.h); every turn is explicit. */
#include <check.h>
#include <stdio.h>

#include "engine/base/thread.h"
#include "test/unit/sched_rig.h"

START_TEST(one_request)
{
    struct rig *m = rig_open(small());
    struct gen_req *g = req(1, 10, 20);
    int32_t want[32];
    int fin, n = reference(m, g, want, &fin);
    must(m, g);
    finish_all(m);
    struct got *o = &m->got[1];
    ck_assert(n == 20 && fin == FIN_LENGTH && o->n_tok == 20 && o->n_done == 1 &&
              o->n_started == 1);
    ck_assert_mem_eq(o->tok, want, sizeof *want * 20);
    ck_assert(o->finish == FINISH_LENGTH && o->stats.n_output == 20 && o->stats.n_prompt == 10);
    ck_assert(o->stats.first_us >= o->stats.start_us && o->stats.last_us >= o->stats.first_us);
    ck_assert_uint_eq(o->text.len, 20 * SCHED_TEXT_LEN);
    ck_assert_int_eq((int)m->f.n_dead, 0); /* the end by length was foreseen */
    ck_assert_int_eq((int)sched_stats(m->f.s)->n_step, 20);
    rig_close(m);
}
END_TEST

START_TEST(two_in_flight)
{
    struct rig *m = rig_open(small());
    must(m, req(1, 10, 20));
    sched_turn(m->f.s);
    ck_assert_int_eq(m->f.n_queue, 2); /* prefill, and the decode that follows it */
    ck_assert(m->f.queue[0]->n_chunk == 1 && m->f.queue[0]->chunk[0].last);
    ck_assert(m->f.queue[1]->n_req == 1 && m->f.queue[1]->n_chunk == 0);
    ck_assert(!sched_turn(m->f.s)); /* nothing to do until one returns */
    finish_all(m);
    rig_close(m);
    struct sched_conf c = small();
    c.steps = 1;
    m = rig_open(c);
    must(m, req(1, 10, 20));
    sched_turn(m->f.s);
    ck_assert_int_eq(m->f.n_queue, 1);
    finish_all(m);
    ck_assert_int_eq(m->got[1].n_tok, 20);
    rig_close(m);
}
END_TEST

START_TEST(max_tokens_one)
{
    struct rig *m = rig_open(small());
    must(m, req(1, 10, 1));
    must(m, req(2, 70, 1));
    finish_all(m);
    ck_assert(m->got[1].n_tok == 1 && m->got[1].finish == FINISH_LENGTH);
    ck_assert(m->got[2].n_tok == 1 && m->got[2].finish == FINISH_LENGTH);
    ck_assert_int_eq((int)sched_stats(m->f.s)->n_decode, 0);
    rig_close(m);
}
END_TEST

START_TEST(stop_id)
{
    struct rig *m = rig_open(small());
    struct gen_req *g = req(1, 10, 80);
    g->p.ignore_eos = false;
    int32_t want[100];
    int fin, n = reference(m, g, want, &fin);
    ck_assert(n > 1 && n < 80 && fin == FIN_STOP); /* the seed gives an early end */
    must(m, g);
    finish_all(m);
    while (fake_run_one(&m->f) || sched_turn(m->f.s))
        continue;
    struct got *o = &m->got[1];
    ck_assert(o->finish == FINISH_STOP && o->stop_id == FAKE_EOS && o->n_tok == n);
    ck_assert_uint_eq(o->text.len, (size_t)(n - 1) * SCHED_TEXT_LEN);
    ck_assert_int_eq((int)m->f.n_dead, 1); /* its row in the step that was planned meanwhile */
    const struct sched_stats *st = sched_stats(m->f.s);
    ck_assert(st->n_stale == 1 && st->n_late == 0);
    rig_close(m);
}
END_TEST

/* The host finds a stop string one step late: the late token is in no event, no count, no text. */
START_TEST(stop_string_across_steps)
{
    struct rig *m = rig_open(small());
    struct gen_req *g = req(1, 10, 40);
    int32_t want[64];
    int fin, n = reference(m, g, want, &fin);
    ck_assert_int_eq(n, 40);
    char a[SCHED_TEXT_LEN + 1], b[SCHED_TEXT_LEN + 1], stop[8 + 1];
    sched_text_token(want[11], a); /* last four letters of token 11, first four of token 12 */
    sched_text_token(want[12], b);
    snprintf(stop, sizeof stop, "%.4s%.4s", a + 4, b);
    g->n_stop = 2;
    g->stop = MEM_ARRAY(char *, 2);
    g->stop[0] = mem_strdup("nothing of the kind");
    g->stop[1] = mem_strdup(stop);
    must(m, g);
    finish_all(m);
    struct got *o = &m->got[1];
    ck_assert(o->finish == FINISH_STOP && o->stop_string == 1 && o->stop_id == -1);
    ck_assert_int_le(o->n_tok, 13);
    ck_assert_int_eq(o->stats.n_output, o->n_tok);
    ck_assert(!strstr(buf_cstr(&o->text), stop));
    ck_assert_int_eq((int)sched_stats(m->f.s)->generated, o->n_tok);
    ck_assert_int_eq(sched_stats(m->f.s)->slots_used,
                     0); /* at once, not when the late row is back */
    ck_assert_int_eq(m->f.n_queue, 1);
    struct gen_req *next = req(2, 5, 3);
    must(m, next);
    sched_turn(m->f.s); /* the next plan may use its slot: the start replaces the stop */
    ck_assert_int_eq(m->f.queue[1]->n_start, 1);
    ck_assert_int_eq(m->f.queue[1]->start[0].gen, 2);
    finish_all(m);
    const struct sched_stats *st = sched_stats(m->f.s);
    ck_assert(st->n_stale == 1 && st->n_late == 1 && st->n_reused == 1);
    ck_assert(m->got[2].n_tok == 3 && o->n_done == 1 && m->got[2].n_done == 1);
    rig_close(m);
}
END_TEST

START_TEST(stop_is_sent_to_the_device)
{
    struct rig *m = rig_open(small());
    must(m, req(1, 10, 40));
    must(m, req(2, 10, 40));
    for (int i = 0; i < 6; i++)
        turn(m);
    sched_cancel(m->f.s, 1);
    turn(m);
    ck_assert_int_eq(m->f.queue[1]->n_stop, 1);
    finish_all(m);
    ck_assert(m->got[1].finish == FINISH_CANCELED && m->got[2].n_tok == 40);
    rig_close(m);
}
END_TEST

/* Several tokens in one record, as with drafts: what lies behind the stop string is dropped. */
START_TEST(trimmed_inside_a_record)
{
    struct sched_conf c = small();
    c.rows = c.emit = 4;
    c.ahead = 7;
    c.depth = 3;
    c.kv.group[0].pages_max = 27;
    struct rig *m = rig_open(c);
    int64_t trimmed = 0;
    for (uint64_t id = 1; id <= 20; id++) {
        struct gen_req *g = req(id, 10, 40);
        int32_t want[64];
        char s[SCHED_TEXT_LEN + 1];
        int fin;
        reference(m, g, want, &fin);
        sched_text_token(want[9], s);
        g->n_stop = 1;
        g->stop = MEM_ARRAY(char *, 1);
        g->stop[0] = mem_strdup(s);
        must(m, g);
        finish_all(m);
        ck_assert_int_le(m->got[id].n_tok, 10);
        ck_assert(m->got[id].finish == FINISH_STOP);
        ck_assert_mem_eq(m->got[id].tok, want, sizeof *want * (size_t)m->got[id].n_tok);
        trimmed = sched_stats(m->f.s)->n_trimmed;
    }
    ck_assert_int_gt((int)trimmed, 0);
    rig_close(m);
}
END_TEST

START_TEST(queue_bounds)
{
    struct rig *m = rig_open(small()); /* 4 at once and 4 waiting */
    struct gen_req *g[9];
    struct err e = {0};
    for (uint64_t i = 0; i < 9; i++)
        g[i] = req(i + 1, 10, 20);
    ck_assert_int_eq(sched_submit(m->f.s, g, 9, &e), E_BUSY);
    ck_assert_int_eq(sched_live(m->f.s), 0); /* a list is taken as a whole or not at all */
    ck_assert_int_eq(sched_submit(m->f.s, g, 6, &e), OK);
    ck_assert_int_eq(sched_submit(m->f.s, g + 6, 3, &e), E_BUSY);
    ck_assert_int_eq(sched_submit(m->f.s, g + 6, 2, &e), OK);
    ck_assert_int_eq(sched_submit(m->f.s, g + 8, 1, &e), E_BUSY);
    ck_assert(strstr(e.text, "queue is full"));
    sched_turn(m->f.s);
    ck_assert(sched_stats(m->f.s)->running == 4 && sched_stats(m->f.s)->waiting == 4);
    ck_assert_int_eq((int)sched_stats(m->f.s)->queue_tokens, 40);
    sched_cancel(m->f.s, 8); /* a place is free at once */
    sched_turn(m->f.s);
    ck_assert(m->got[8].finish == FINISH_CANCELED && m->got[8].n_started == 0);
    ck_assert_int_eq(sched_submit(m->f.s, g + 8, 1, &e), OK);
    finish_all(m);
    for (int i = 1; i <= 9; i++)
        ck_assert_int_eq(m->got[i].n_done, 1);
    rig_close(m);
}
END_TEST

START_TEST(context_bounds)
{
    struct rig *m = rig_open(small());
    struct err e = {0};
    ck_assert_int_eq(give(m, req(1, 100, 1), &e), E_RANGE);
    ck_assert(strstr(e.text, "100") && strstr(e.text, "99"));
    must(m, req(2, 99, 50)); /* room for one */
    must(m, req(3, 90, 50));
    struct gen_req *g = req(4, 100, 0); /* scores alone may fill it */
    g->p.n_prompt_logprobs = 0;
    must(m, g);
    finish_all(m);
    ck_assert(m->got[2].n_tok == 1 && m->got[2].finish == FINISH_LENGTH);
    ck_assert(m->got[3].n_tok == 10 && m->got[3].finish == FINISH_LENGTH);
    ck_assert(m->got[4].n_tok == 0 && m->got[4].n_prompt == 1);
    ck_assert(m->got[4].finish == FINISH_LENGTH && m->got[4].n_done == 1);
    rig_close(m);
}
END_TEST

START_TEST(kv_bounds_the_context)
{
    struct sched_conf c = small();
    c.kv.group[0].n_page = 10;
    struct rig *m = rig_open(c);
    struct err e = {0};
    ck_assert_int_eq(sched_len_max(m->f.s), 40);
    ck_assert_int_eq(give(m, req(1, 40, 1), &e), E_RANGE);
    ck_assert(strstr(e.text, "KV"));
    must(m, req(2, 39, 30));
    must(m, req(3, 20, 30));
    finish_all(m);
    ck_assert(m->got[2].n_tok == 1 && m->got[3].n_tok == 20);
    rig_close(m);
}
END_TEST

START_TEST(refused)
{
    struct rig *m = rig_open(small());
    struct err e = {0};
    struct gen_req *g = req(1, 5, 5);
    g->prompt[3] = FAKE_VOCAB;
    ck_assert_int_eq(give(m, g, &e), E_INVAL);
    ck_assert(strstr(e.text, "token 3 is 256"));
    g = req(1, 5, 0);
    ck_assert_int_eq(give(m, g, &e), E_INVAL);
    g = req(1, 5, 5);
    g->p.temperature = NAN;
    ck_assert_int_eq(give(m, g, &e), E_INVAL);
    g = req(1, 5, 5);
    g->p.top_p = 0;
    ck_assert_int_eq(give(m, g, &e), E_INVAL);
    g = req(1, 5, 5);
    g->p.n_bias = 1;
    g->p.bias_id[0] = -1;
    ck_assert_int_eq(give(m, g, &e), E_INVAL);
    g = req(1, 5, 5);
    g->p.n_stop_ids = 1;
    g->p.stop_ids[0] = FAKE_VOCAB;
    ck_assert_int_eq(give(m, g, &e), E_INVAL);
    g = req(1, 5, 5);
    g->n_stop = 1;
    g->stop = MEM_ARRAY(char *, 1);
    g->stop[0] = mem_strdup("");
    ck_assert_int_eq(give(m, g, &e), E_INVAL);
    g = req(0, 5, 5);
    ck_assert_int_eq(give(m, g, &e), E_INVAL);
    struct gen_req *two[] = {req(1, 5, 5), req(2, 100, 5)}; /* one bad: none is taken */
    ck_assert_int_eq(sched_submit(m->f.s, two, 2, &e), E_RANGE);
    ck_assert_int_eq(sched_live(m->f.s), 0);
    gen_req_free(two[0]);
    gen_req_free(two[1]);
    rig_close(m);
}
END_TEST

START_TEST(youngest_yields)
{
    struct sched_conf c = small();
    c.kv.group[0].n_page = 14; /* three of them need 24 in the end */
    struct rig *m = rig_open(c);
    struct gen_req *g[3];
    int32_t want[3][64];
    int fin;
    for (int i = 0; i < 3; i++) {
        g[i] = req((uint64_t)i + 1, 10, 21);
        reference(m, g[i], want[i], &fin);
        must(m, g[i]);
    }
    finish_all(m);
    ck_assert_int_eq(m->got[1].stats.n_preempted, 0);
    ck_assert_int_gt(m->got[3].stats.n_preempted, 0);
    ck_assert_int_ge(m->got[3].stats.n_preempted, m->got[2].stats.n_preempted);
    for (int i = 0; i < 3; i++) {
        ck_assert(m->got[i + 1].n_tok == 21 && m->got[i + 1].n_started == 1);
        ck_assert_mem_eq(m->got[i + 1].tok, want[i], sizeof(int32_t) * 21);
    }
    ck_assert_int_gt((int)sched_stats(m->f.s)->recomputed_tokens, 0);
    ck_assert_int_eq((int)sched_stats(m->f.s)->prompt_tokens, 30); /* counted once */
    rig_close(m);
}
END_TEST

START_TEST(paused)
{
    struct sched_conf c = small();
    c.kv.group[0].n_page = 14;
    struct rig *m = rig_open(c);
    must(m, req(1, 10, 30));
    must(m, req(2, 10, 30));
    for (int i = 0; i < 8; i++)
        turn(m);
    sched_pause(m->f.s, 1, true);
    for (int i = 0; i < 3; i++)
        turn(m);
    int n = m->got[1].n_tok;
    ck_assert_int_gt(n, 0);
    for (int i = 0; i < 10; i++)
        turn(m);
    ck_assert(m->got[1].n_tok == n && m->got[1].n_done == 0);
    must(m, req(3, 30, 10)); /* the older one's pages go to those that can use them */
    for (int i = 0; i < 40; i++)
        turn(m);
    ck_assert(m->got[2].n_done == 1 && m->got[3].n_done == 1 && m->got[1].n_done == 0);
    ck_assert_int_eq(sched_stats(m->f.s)->paused, 1);
    ck_assert_int_eq((int)sched_silence_us(m->f.s), 0); /* nothing is expected of it */
    sched_pause(m->f.s, 1, false);
    finish_all(m);
    ck_assert(m->got[1].n_tok == 30 && m->got[1].stats.n_preempted == 1);
    rig_close(m);
}
END_TEST

/* Decodes keep their place: beside them prefill has a quarter of the rows, alone all of them, and
 * several chunks share a pass. */
START_TEST(prefill_share)
{
    struct rig *m = rig_open(small()); /* 64 rows */
    must(m, req(1, 10, 40));
    for (int i = 0; i < 4; i++)
        turn(m);
    must(m, req(2, 50, 5));
    must(m, req(3, 20, 5));
    turn(m);
    const struct step *st = m->f.queue[1];
    ck_assert(st->n_req == 1 && st->n_chunk == 1 && st->n_row == 16 && st->chunk[0].n == 16);
    ck_assert(!st->chunk[0].last);
    turn(m);
    turn(m);
    turn(m);
    st = m->f.queue[1]; /* the last two rows of one, the first of the other */
    ck_assert(st->n_chunk == 2 && st->n_row == 16 && st->chunk[0].last && st->chunk[0].n == 2);
    ck_assert(st->chunk[1].row0 == 2 && st->chunk[1].n == 14 && st->chunk[1].pos0 == 0);
    finish_all(m);
    must(m, req(4, 90, 5));
    sched_turn(m->f.s);
    ck_assert_int_eq(m->f.queue[0]->n_row, 64);
    finish_all(m);
    rig_close(m);
}
END_TEST

/* Offline: what has its prompt waits until all prompts are through. */
START_TEST(prefill_before_decode)
{
    struct sched_conf c = small();
    c.prefill_first = true;
    struct rig *m = rig_open(c);
    for (int i = 1; i <= 3; i++)
        must(m, req((uint64_t)i, 60, 5));
    int n_prefill = 0, n_decode = 0;
    for (sched_turn(m->f.s); m->f.n_queue; sched_turn(m->f.s)) {
        const struct step *st = m->f.queue[0];
        ck_assert(st->n_req == 0 || st->n_chunk == 0);
        ck_assert(st->n_req == 0 || st->n_req == 3);
        ck_assert(st->n_chunk == 0 || n_decode == 0);
        n_prefill += st->n_chunk > 0;
        n_decode += st->n_req > 0;
        fake_run_one(&m->f);
    }
    ck_assert(n_prefill == 3 && n_decode >= 4);
    rig_close(m);
}
END_TEST

START_TEST(cancel_in_every_state)
{
    struct rig *m = rig_open(small());
    sched_cancel(m->f.s, 77); /* nobody */
    must(m, req(1, 99, 1));
    sched_cancel(m->f.s, 1); /* before the scheduler saw it */
    sched_turn(m->f.s);
    ck_assert(m->got[1].n_done == 1 && m->got[1].n_started == 0);
    must(m, req(2, 99, 1));
    sched_turn(m->f.s); /* its first chunk is in flight */
    sched_cancel(m->f.s, 2);
    sched_cancel(m->f.s, 2);
    sched_turn(m->f.s);
    ck_assert(m->got[2].n_done == 1 && sched_stats(m->f.s)->pages_used == 0);
    must(m, req(3, 10, 40));
    for (int i = 0; i < 8; i++)
        turn(m);
    ck_assert_int_gt(m->got[3].n_tok, 0);
    sched_cancel(m->f.s, 3);
    turn(m);
    ck_assert(m->got[3].n_done == 1 && m->got[3].finish == FINISH_CANCELED);
    ck_assert_int_eq(sched_live(m->f.s), 0);
    sched_cancel(m->f.s, 3); /* after its end */
    must(m, req(4, 10, 3));
    must(m, req(5, 10, 3));
    sched_cancel_all(m->f.s);
    sched_turn(m->f.s);
    ck_assert(m->got[4].n_done == 1 && m->got[5].n_done == 1 && sched_live(m->f.s) == 0);
    rig_close(m);
}
END_TEST

START_TEST(nan_ends_one)
{
    struct rig *m = rig_open(small());
    struct gen_req *g = req(1, 10, 80);
    g->p.n_bias = 1;
    g->p.bias_id[0] = 7; /* see fake_sample */
    must(m, g);
    must(m, req(2, 10, 80));
    finish_all(m);
    ck_assert(m->got[1].finish == FINISH_ERROR && m->got[1].err.code == E_DEVICE);
    ck_assert(m->got[2].finish == FINISH_LENGTH && m->got[2].n_tok == 80);
    ck_assert(!sched_failed(m->f.s) && sched_stats(m->f.s)->n_nan == 1);
    rig_close(m);
}
END_TEST

START_TEST(device_fails)
{
    struct rig *m = rig_open(small());
    m->f.fail_at = 5;
    for (uint64_t id = 1; id <= 7; id++)
        must(m, req(id, 10, 40));
    for (int i = 0; i < 6; i++)
        turn(m);
    for (int id = 1; id <= 7; id++)
        ck_assert(m->got[id].finish == FINISH_ERROR && m->got[id].n_done == 1 &&
                  strstr(m->got[id].err.text, "injected"));
    ck_assert(sched_failed(m->f.s) && sched_live(m->f.s) == 0);
    struct err e = {0};
    ck_assert_int_eq(give(m, req(8, 10, 40), &e), E_DEVICE);
    rig_close(m);
}
END_TEST

/* A window group holds few pages however long the text gets; the other holds them all. */
START_TEST(two_groups)
{
    struct sched_conf c = small();
    c.kv.n_group = 2;
    c.kv.group[1].n_page = 12;
    c.kv.group[1].pages_max = 25;
    c.kv.group[1].window = 10;
    struct rig *m = rig_open(c);
    ck_assert_int_eq(sched_len_max(m->f.s), 100);
    must(m, req(1, 40, 55));
    int most = 0;
    for (int i = 0; sched_live(m->f.s); i++) {
        turn(m);
        int used = kv_used_pages(m->f.s->kv, 1);
        most = used > most && m->got[1].n_tok ? used : most;
        ck_assert_int_lt(i, 300);
    }
    ck_assert(m->got[1].n_tok == 55 && most >= 3 && most <= 5);
    rig_close(m);
}
END_TEST

START_TEST(silence)
{
    struct rig *m = rig_open(small());
    ck_assert_int_eq((int)sched_silence_us(m->f.s), 0);
    must(m, req(1, 10, 10));
    m->f.now += 500;
    ck_assert_int_eq((int)sched_silence_us(m->f.s), 500); /* even if no thread takes it */
    turn(m);
    turn(m);
    ck_assert_int_eq((int)sched_silence_us(m->f.s), 0);
    m->f.now += 700;
    ck_assert_int_eq((int)sched_silence_us(m->f.s), 700);
    finish_all(m);
    turn(m);
    m->f.now += 700;
    ck_assert_int_eq((int)sched_silence_us(m->f.s), 0);
    rig_close(m);
}
END_TEST

START_TEST(seeds)
{
    struct rig *m = rig_open(small());
    for (uint64_t id = 1; id <= 3; id++) {
        struct gen_req *g = req(id, 10, 5);
        g->p.has_seed = id == 3;
        g->p.seed = 42;
        must(m, g);
    }
    finish_all(m);
    ck_assert(m->got[1].stats.seed != m->got[2].stats.seed && m->got[1].stats.seed != 42);
    ck_assert_uint_eq(m->got[3].stats.seed, 42);
    rig_close(m);
}
END_TEST

/* ---- with threads ---- */

struct threaded {
    struct rig *m;
    pthread_mutex_t lock; /* the fake is not thread-safe: guards it whole */
    pthread_cond_t more;
    bool quit;
    struct thread dev;
    int64_t n_wait;
};
static struct threaded T;

static struct step *t_get(void *w)
{
    mutex_lock(&T.lock);
    struct step *s = fake_get(w);
    mutex_unlock(&T.lock);
    return s;
}

static void t_put(void *w, struct step *s)
{
    mutex_lock(&T.lock);
    fake_put(w, s);
    cond_signal(&T.more);
    mutex_unlock(&T.lock);
}

static void t_release(void *w, struct step *s)
{
    mutex_lock(&T.lock);
    fake_release(w, s);
    mutex_unlock(&T.lock);
}

static const struct worker_ops threaded_ops = {.get = t_get, .put = t_put, .release = t_release};

static void t_run(void *ud)
{
    (void)ud;
    mutex_lock(&T.lock);
    for (;;) {
        while (!T.m->f.n_queue && !T.quit)
            cond_wait(&T.more, &T.lock);
        if (!T.m->f.n_queue)
            break;
        fake_run_one(&T.m->f); /* it calls sched_step_done, which takes the scheduler's lock */
    }
    mutex_unlock(&T.lock);
}

START_TEST(threads)
{
    struct sched_conf c = small();
    c.kv.group[0].n_page = 20;
    c.queue_max = 60;
    struct rig *m = T.m = rig_open(c);
    mutex_init(&T.lock);
    cond_init(&T.more);
    m->f.s->c.ops = &threaded_ops;
    thread_start(&T.dev, "fake", t_run, NULL);
    sched_start(m->f.s);
    for (uint64_t id = 1; id <= 60; id++) {
        must(m, req(id, 5 + (int)id % 30, 1 + (int)id % 40));
        if (id % 7 == 0)
            sched_cancel(m->f.s, id - 3);
        if (id % 9 == 0)
            sched_pause(m->f.s, id, true);
        if (id % 11 == 0)
            sched_silence_us(m->f.s);
    }
    sched_pause(m->f.s, 9, false);
    for (int i = 0; i < 20000 && sched_live(m->f.s) > 5; i++) { /* six are paused, one came back */
        struct timespec t = {.tv_nsec = 1000000};
        nanosleep(&t, NULL);
    }
    ck_assert_int_le(sched_live(m->f.s), 5);
    sched_stop(m->f.s); /* ends those */
    mutex_lock(&T.lock);
    T.quit = true;
    cond_signal(&T.more);
    mutex_unlock(&T.lock);
    thread_join(&T.dev);
    ck_assert_int_eq(sched_live(m->f.s), 0);
    for (int id = 1; id <= 60; id++)
        ck_assert_int_eq(m->got[id].n_done, 1);
    struct err e = {0};
    ck_assert_int_eq(give(m, req(61, 5, 5), &e), E_CANCELED);
    sched_check(m->f.s);
    ck_assert(sched_stats(m->f.s)->pages_used == 0 && sched_stats(m->f.s)->slots_used == 0);
    rig_close(m);
    mutex_done(&T.lock);
    cond_done(&T.more);
}
END_TEST

Suite *suite_sched(void);
Suite *suite_sched(void)
{
    Suite *s = suite_create("sched");
    TCase *c = tcase_create("rules");
    tcase_add_test(c, one_request);
    tcase_add_test(c, two_in_flight);
    tcase_add_test(c, max_tokens_one);
    tcase_add_test(c, stop_id);
    tcase_add_test(c, stop_string_across_steps);
    tcase_add_test(c, stop_is_sent_to_the_device);
    tcase_add_test(c, trimmed_inside_a_record);
    tcase_add_test(c, queue_bounds);
    tcase_add_test(c, context_bounds);
    tcase_add_test(c, kv_bounds_the_context);
    tcase_add_test(c, refused);
    tcase_add_test(c, youngest_yields);
    tcase_add_test(c, paused);
    tcase_add_test(c, prefill_share);
    tcase_add_test(c, prefill_before_decode);
    tcase_add_test(c, cancel_in_every_state);
    tcase_add_test(c, nan_ends_one);
    tcase_add_test(c, device_fails);
    tcase_add_test(c, two_groups);
    tcase_add_test(c, silence);
    tcase_add_test(c, seeds);
    suite_add_tcase(s, c);
    TCase *t = tcase_create("threads");
    tcase_add_test(t, threads);
    suite_add_tcase(s, t);
    return s;
}
