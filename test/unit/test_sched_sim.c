/* Goal: whatever happens to a request among others, its tokens are those it would get alone, it
 * gets exactly one final event, nothing leaks and nothing starves.
 * Method: thousands of seeded steps on the fake device (sched_fake.h), which checks every KV read
 * itself; random submissions, cancels, pauses and delays of up to two steps; books are balanced
 * after every turn. Rare situations are counted, and the test fails if one never came up.
 * SEED=n repeats one run. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>

#include "engine/sched/sched_int.h"
#include "engine/text/tokenizer.h"
#include "test/unit/sched_fake.h"
#include "test/unit/sched_text.h"
#include "test/sanitize.h"

enum { REQS_ALL = 1 << 15 };

struct track {
    struct slot_params p; /* what the device is told, for the reference */
    int32_t *prompt, *ref;
    int n_prompt, n_ref, fin, n_got, n_done, stop_at;
    int max_tokens, n_logprobs, n_score;
    bool started, scored, canceled, paused;
    struct buf text;
};

struct sim {
    struct fake f; /* first: the scheduler's ud */
    struct rng rng;
    struct tokenizer *tok;
    struct track *t; /* by id; 0 unused */
    int n, n_final;
    /* the oldest request that may run, and since when it stands still */
    uint64_t old_age;
    int64_t old_sum, old_since;
    int old_slot;
    int n_busy, n_ended[5];
};

static const char STOP[] = "aaaaaaaaaa";

static int below(struct sim *m, int n)
{
    return (int)rng_below(&m->rng, (uint64_t)n);
}

/* Index of the token that completes the stop string in the text of ref, or -1. */
static int stop_token(const struct track *t)
{
    struct buf b;
    buf_init(&b, 0);
    int at = -1;
    for (int i = 0; i < t->n_ref - (t->fin == FIN_STOP) && at < 0; i++) {
        char s[SCHED_TEXT_LEN + 1];
        sched_text_token(t->ref[i], s);
        size_t from = b.len > sizeof STOP - 2 ? b.len - (sizeof STOP - 2) : 0;
        buf_str(&b, s);
        if (strstr(b.p + from, STOP) && i + 1 >= t->p.min_out)
            at = i;
    }
    buf_done(&b);
    return at;
}

static void check_tokens(struct track *t, const struct gen_evt *e)
{
    for (int i = 0; i < e->n_tok; i++, t->n_got++) {
        ck_assert_int_lt(t->n_got, t->n_ref);
        ck_assert_int_eq(e->tok[i].id, t->ref[t->n_got]);
        ck_assert_int_eq(e->tok[i].n_top, t->n_logprobs > 0 ? t->n_logprobs : 0);
        ck_assert(isnan(e->tok[i].logprob) == (t->n_logprobs < 0));
    }
    ck_assert_int_eq(buf_push(&t->text, e->text, e->n_text), OK);
}

static void check_score(struct track *t, const struct gen_evt *e)
{
    ck_assert(t->n_score >= 0 && !t->scored && t->n_got == 0);
    t->scored = true;
    ck_assert_int_eq(e->n_tok, t->n_prompt);
    uint64_t h = 1;
    for (int i = 0; i < t->n_prompt; i++) {
        ck_assert_int_eq(e->tok[i].id, t->prompt[i]);
        if (i == 0)
            ck_assert(isnan(e->tok[i].logprob));
        else
            ck_assert(e->tok[i].logprob == fake_score(h, t->prompt[i]));
        h = fake_mix(h, (uint64_t)t->prompt[i]);
    }
}

/* The text of n tokens (the last hidden when it stopped by id), cut before the stop string. */
static void check_text(const struct track *t, bool cut)
{
    struct buf b;
    buf_init(&b, 0);
    for (int i = 0; i < t->n_got - (t->fin == FIN_STOP && t->n_got == t->n_ref && !cut); i++) {
        char s[SCHED_TEXT_LEN + 1];
        sched_text_token(t->ref[i], s);
        buf_str(&b, s);
    }
    if (cut) /* min_tokens may have let earlier ones pass: the cut is the last completed one */
        ck_assert(t->text.len < b.len);
    else
        ck_assert_uint_eq(t->text.len, b.len);
    if (t->text.len)
        ck_assert_mem_eq(t->text.p, b.p, t->text.len);
    buf_done(&b);
}

/* Every token comes from the prefill (again after a preemption) or from a verify, which yields what
 * it accepts and one more; only a stop string hides some of them. */
static void check_counts(const struct track *t, const struct gen_evt *e)
{
    const struct gen_stats *s = &e->stats;
    int most = s->n_verify + s->n_accepted + 1 + s->n_preempted;
    ck_assert(s->n_accepted <= s->n_draft && (s->n_verify || !s->n_draft));
    ck_assert_int_le(t->n_got, most);
    if (e->stop_string < 0 && t->max_tokens)
        ck_assert_int_ge(t->n_got, most - s->n_preempted);
}

static void check_done(struct sim *m, struct track *t, const struct gen_evt *e)
{
    ck_assert_int_eq(t->n_done++, 0);
    m->n_final++;
    m->n_ended[e->finish]++;
    ck_assert_int_eq(e->stats.n_output, t->n_got);
    ck_assert_int_eq(e->stats.n_prompt, t->n_prompt);
    int want = t->stop_at >= 0 ? t->stop_at + 1 : t->n_ref;
    switch (e->finish) {
    case FINISH_CANCELED:
        ck_assert(t->canceled);
        return;
    case FINISH_ERROR:
        ck_assert_int_eq(t->fin, -1);
        ck_assert_int_eq(t->n_got, t->n_ref);
        ck_assert(t->stop_at < 0 && e->err.code == E_DEVICE);
        return;
    case FINISH_STOP:
        ck_assert_int_eq(t->n_got, want);
        if (t->stop_at >= 0)
            ck_assert(e->stop_string == 0 && e->stop_id == -1);
        else
            ck_assert(t->fin == FIN_STOP && e->stop_id == t->ref[want - 1] && e->stop_string == -1);
        ck_assert(e->stop_is_eos == (e->stop_id == FAKE_EOS || e->stop_id == FAKE_EOS2));
        break;
    case FINISH_LENGTH:
        ck_assert(t->stop_at < 0);
        ck_assert_int_eq(t->n_got, want);
        ck_assert(t->max_tokens == 0 || t->fin == FIN_LENGTH);
        break;
    case FINISH_NONE:
        ck_abort_msg("a final event without a reason");
    }
    ck_assert(t->n_score < 0 || t->scored);
    check_counts(t, e);
    check_text(t, e->stop_string >= 0);
}

static void on_events(void *ud, struct gen_evt *first, struct gen_evt *last, int n_done)
{
    struct sim *m = ud;
    int done = 0;
    for (struct gen_evt *e = first, *next; e; e = next) {
        next = e->next;
        ck_assert(next || e == last);
        ck_assert(e->id >= 1 && e->id <= (uint64_t)m->n);
        struct track *t = &m->t[e->id];
        ck_assert_int_eq(t->n_done, 0);
        ck_assert(e->kind != EVT_STARTED || !t->started);
        ck_assert(e->kind == EVT_STARTED || t->started || e->finish == FINISH_CANCELED);
        t->started |= e->kind == EVT_STARTED;
        if (e->kind == EVT_PROMPT)
            check_score(t, e);
        else
            check_tokens(t, e);
        if (e->kind == EVT_DONE) {
            check_done(m, t, e);
            done++;
        }
        gen_evt_free(e);
    }
    ck_assert_int_eq(done, n_done);
}

static struct gen_req *new_req(struct sim *m)
{
    struct gen_req *g = gen_req_new();
    int id = ++m->n, most = sched_len_max(m->f.s) - 1;
    ck_assert_int_lt(id, REQS_ALL);
    struct track *t = &m->t[id];
    int n = 1 + below(m, below(m, 4) ? 30 : most);
    n = n > most ? most : n;
    g->id = (uint64_t)id;
    g->n_prompt = (size_t)n;
    g->prompt = MEM_ARRAY(int32_t, n);
    for (int i = 0; i < n; i++)
        g->prompt[i] = below(m, FAKE_VOCAB);
    g->p.spec_mode = (enum spec_mode)below(m, 3);
    g->p.spec_max = below(m, 6);
    g->p.seed = rng_u64(&m->rng);
    g->p.has_seed = true;
    g->p.max_tokens = below(m, 10) ? 1 + below(m, 60) : 1;
    g->p.min_tokens = below(m, 4) ? 0 : below(m, g->p.max_tokens + 1);
    g->p.ignore_eos = below(m, 5) == 0;
    g->p.n_logprobs = below(m, 4) ? -1 : below(m, 4);
    g->p.n_prompt_logprobs = below(m, 6) ? -1 : below(m, 3);
    if (g->p.n_prompt_logprobs >= 0 && below(m, 3) == 0)
        g->p.max_tokens = g->p.min_tokens = 0;
    if (below(m, 8) == 0) {
        g->p.n_stop_ids = 1;
        g->p.stop_ids[0] = 100;
    }
    if (below(m, 40) == 0) { /* see fake_sample */
        g->p.n_bias = 1;
        g->p.bias_id[0] = 7;
    }
    if (below(m, 3) == 0) {
        g->n_stop = 1;
        g->stop = MEM_ARRAY(char *, 1);
        g->stop[0] = mem_strdup(STOP);
    }
    g->arrival_us = m->f.now;
    t->n_prompt = n;
    t->prompt = mem_dup(g->prompt, sizeof(int32_t) * (size_t)n);
    t->max_tokens = g->p.max_tokens;
    t->n_logprobs = g->p.n_logprobs;
    t->n_score = g->p.n_prompt_logprobs;
    struct sreq r = {.g = g, .n_prompt = n, .n_tok = n};
    req_slot_params(m->f.s, &r, &t->p);
    t->ref = MEM_ARRAY(int32_t, g->p.max_tokens + 1);
    t->n_ref = fake_reference(t->prompt, n, &t->p, t->ref, &t->fin);
    t->stop_at = g->n_stop ? stop_token(t) : -1;
    buf_init(&t->text, 0);
    return g;
}

static void submit(struct sim *m)
{
    struct gen_req *g[4];
    int n = 1 + below(m, 4), first = m->n;
    for (int i = 0; i < n; i++)
        g[i] = new_req(m);
    struct err e = {0};
    int ret = sched_submit(m->f.s, g, (size_t)n, &e);
    if (ret == OK)
        return;
    ck_assert_msg(ret == E_BUSY, "%s", e.text);
    m->n_busy++;
    m->n_final += n;
    for (int i = 0; i < n; i++) { /* nothing of the list was taken */
        gen_req_free(g[i]);
        m->t[first + 1 + i].n_done = 1;
    }
}

static void meddle(struct sim *m)
{
    if (m->n == 0)
        return;
    if (below(m, 60) == 0) /* the paused do not stay so for good */
        for (int i = 1; i <= m->n; i++)
            if (m->t[i].paused)
                sched_pause(m->f.s, (uint64_t)i, m->t[i].paused = false);
    int back = m->n < 40 ? m->n : 40, id = m->n - below(m, back);
    struct track *t = &m->t[id];
    if (below(m, 12) == 0) {
        t->canceled = true;
        sched_cancel(m->f.s, (uint64_t)id);
        if (below(m, 4) == 0)
            sched_cancel(m->f.s, (uint64_t)id);
    }
    if (below(m, 8) == 0) {
        t->paused = !t->paused && below(m, 2);
        sched_pause(m->f.s, (uint64_t)id, t->paused);
    }
}

/* The oldest that is not paused moves with every few steps once it has a slot, and waits for one
 * no longer than those before it can take. */
static void check_progress(struct sim *m)
{
    const struct sched *s = m->f.s;
    const struct sreq *old = NULL;
    for (int k = 0; k < 2; k++) {
        const struct req_list *l = k ? &s->running : &s->waiting;
        for (int i = 0; i < l->n; i++)
            if (!l->v[i]->paused && (!old || l->v[i]->age < old->age))
                old = l->v[i];
    }
    if (!old) {
        m->old_slot = 0;
        return;
    }
    /* nobody takes from the oldest */
    ck_assert(old->age != m->old_age || !m->old_slot || old->slot == m->old_slot);
    m->old_slot = old->slot;
    int64_t sum = old->n_tok + old->fill + old->slot * 4096;
    if (old->age != m->old_age || sum != m->old_sum) {
        m->old_age = old->age;
        m->old_sum = sum;
        m->old_since = m->f.n_run;
    }
    int64_t still = m->f.n_run - m->old_since;
    ck_assert_msg(still <= (old->slot ? 6 : 1500), "request %llu stands still for %lld steps",
                  (unsigned long long)old->g->id, (long long)still);
}

static void turn(struct sim *m)
{
    for (int k = below(m, 3); k > 0; k--)
        fake_run_one(&m->f);
    m->f.now += 100;
    sched_turn(m->f.s);
    sched_check(m->f.s);
    check_progress(m);
}

static struct sched_conf conf_of(struct sim *m, int seed)
{
    static const int pages[] = {1, 4, 16};
    struct sched_conf c = {.reqs_max = 1 + below(m, 8),
                           .rows_max = 1 + below(m, below(m, 2) ? 8 : 64),
                           .len_max = 150,
                           .queue_max = below(m, 12),
                           .steps = 1 + (seed % 4 != 0),
                           .rows = seed % 5 < 3 ? 1 : seed % 5,
                           .n_eos = 2,
                           .eos = {FAKE_EOS, FAKE_EOS2},
                           .tok = m->tok,
                           .events = on_events};
    c.emit = 1 + below(m, c.rows);
    c.ahead = c.rows + (c.rows > 1 ? below(m, 6) : 0);
    c.depth = c.rows > 1 ? 1 : 0;
    c.ngram = c.rows > 1 ? c.emit - 1 : 0;
    c.slots_max = c.reqs_max + below(m, 4);
    c.kv.page = pages[seed % 3];
    c.kv.n_group = 1 + (seed / 3) % 2;
    for (int g = 0; g < c.kv.n_group; g++) {
        c.kv.group[g].pages_max = (c.len_max + c.ahead + c.kv.page - 2) / c.kv.page;
        c.kv.group[g].n_page = (100 + below(m, 200)) / c.kv.page + 1;
    }
    if (c.kv.n_group == 2)
        c.kv.group[1].window = 5 + below(m, 30);
    return c;
}

/* One run; adds what came up to `sum`. */
static void run_seed(int seed, int steps, struct sched_stats *sum, int ended[5], int *busy,
                     int64_t *dead)
{
    struct sim *m = MEM_NEW(struct sim);
    struct err e = {0};
    m->rng.s = (uint64_t)seed * 1000003 + 1;
    m->t = MEM_ARRAY(struct track, REQS_ALL);
    m->tok = sched_text_open();
    struct sched_conf c = conf_of(m, seed);
    ck_assert_msg(fake_open(&m->f, &c, (uint64_t)seed, &e) == OK, "%s", e.text);
    while (m->f.n_run < steps) {
        if (below(m, 4) == 0)
            submit(m);
        meddle(m);
        turn(m);
    }
    for (int id = 1; id <= m->n; id++)
        sched_pause(m->f.s, (uint64_t)id, false);
    for (int i = 0; sched_live(m->f.s); i++) {
        ck_assert_int_lt(i, 100000);
        turn(m);
    }
    while (fake_run_one(&m->f) || sched_turn(m->f.s))
        continue;
    ck_assert_int_eq(m->n_final, m->n);
    for (int id = 1; id <= m->n; id++)
        ck_assert_int_eq(m->t[id].n_done, 1);
    const struct sched_stats *st = sched_stats(m->f.s);
    ck_assert(st->pages_used == 0 && st->slots_used == 0 && st->queue_tokens == 0);
    ck_assert(st->running + st->waiting + st->paused + st->in_flight == 0);
    int64_t *a = &sum->n_step;
    const int64_t *b = &st->n_step;
    for (int i = 0; b + i <= &st->n_reused; i++)
        a[i] += b[i];
    for (int i = 0; i < 5; i++)
        ended[i] += m->n_ended[i];
    *busy += m->n_busy;
    *dead += m->f.n_dead;
    fake_close(&m->f);
    for (int id = 1; id <= m->n; id++) {
        mem_free(m->t[id].prompt);
        mem_free(m->t[id].ref);
        buf_done(&m->t[id].text);
    }
    mem_free(m->t);
    tok_close(m->tok);
    mem_free(m);
}

START_TEST(simulation)
{
    struct sched_stats sum = {0};
    int ended[5] = {0}, busy = 0;
    int64_t dead = 0;
    const char *only = getenv("SEED");
    long live = mem_live();
    for (int seed = only ? (int)strtol(only, NULL, 10) : 1; seed <= 48; seed++) {
        run_seed(seed, 300, &sum, ended, &busy, &dead);
        if (only)
            return;
    }
    ck_assert_int_eq(mem_live(), live);
    printf("sched: %lld steps, %lld requests, %lld preempted, %lld stale records (%lld with "
           "tokens), %lld empty rows, %lld overshoot pages, %lld stalls, %lld trimmed, %d busy\n",
           (long long)sum.n_step, (long long)sum.n_submitted, (long long)sum.n_preempted,
           (long long)sum.n_stale, (long long)sum.n_late, (long long)dead,
           (long long)sum.n_overshoot, (long long)sum.n_stalled, (long long)sum.n_trimmed, busy);
    ck_assert_int_ge(sum.n_step, 10000);
    ck_assert_int_eq(sum.n_submitted, sum.n_finished);
    ck_assert(sum.n_preempted > 0 && sum.n_stale > 0 && sum.n_late > 0 && dead > 0);
    ck_assert_int_gt(sum.n_trimmed, 0);
    ck_assert(sum.n_overshoot > 0 && sum.n_stalled > 0 && sum.n_reused > 0 && sum.n_nan > 0);
    ck_assert(sum.recomputed_tokens > 0 && sum.prompt_tokens > 0 && busy > 0);
    for (int i = FINISH_STOP; i <= FINISH_ERROR; i++)
        ck_assert_int_gt(ended[i], 0);
}
END_TEST

Suite *suite_sched_sim(void);
Suite *suite_sched_sim(void)
{
    Suite *s = suite_create("sched_sim");
    TCase *c = tcase_create("simulation");
    one_thread(c);
    tcase_set_timeout(c, 240);
    tcase_add_test(c, simulation);
    suite_add_tcase(s, c);
    return s;
}
