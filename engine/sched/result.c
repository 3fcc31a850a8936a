/* Reads a step that came back: tokens to text, ends, prompt log probabilities, events.
 *
 * A record is believed when its slot still belongs to the request (same generation) that the plan
 * had put there; otherwise that request ended or lost its slot meanwhile and the record is dropped.
 */
#include <math.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/sched/sched_int.h"

static struct sreq *owner(struct sched *s, int slot, int gen, const struct ring_rec *rec)
{
    CHECK(slot >= 1 && slot <= s->c.slots_max);
    struct slot *sl = &s->slot[slot];
    if (sl->r && sl->gen == gen)
        return sl->r;
    s->st.n_stale++;
    s->st.n_late += rec && rec->n > 0;
    return NULL;
}

static void broken(struct sched *s, struct sreq *r, const char *what)
{
    struct err e;
    FAIL(&e, E_DEVICE, "request %llu: %s", (unsigned long long)r->g->id, what);
    LOG(LOG_ERROR, "sched", "%s", e.text);
    req_finish(s, r, NULL, FINISH_ERROR, &e);
}

static void copy_tok(struct gen_tok *t, int32_t id, const struct sample_out *o, int n_top)
{
    n_top = o->n_top < n_top ? o->n_top : n_top;
    t->id = id;
    t->logprob = o->logprob;
    t->n_top = n_top > 0 ? n_top : 0;
    if (t->n_top) { /* the arrays lie in the event's block and are ours until it leaves */
        memcpy((int32_t *)t->top_id, o->top_id, sizeof(int32_t) * (size_t)t->n_top);
        memcpy((float *)t->top_logprob, o->top_logprob, sizeof(float) * (size_t)t->n_top);
    }
}

struct end {
    enum finish why;
    int stop_string;
    int32_t stop_id;
    bool nan;
};

/* Takes the k-th token of a record; says whether and why the request ends with it. */
static struct end take(struct sched *s, struct sreq *r, const struct ring_rec *rec, int k)
{
    struct end end = {.why = FINISH_NONE, .stop_string = -1, .stop_id = -1};
    const struct sample_out *o = &rec->tok[k];
    if (o->bad) {
        end.why = FINISH_ERROR;
        end.nan = true;
        return end;
    }
    CHECK(o->token >= 0 && o->token < s->c.vocab);
    MEM_GROW(r->tok, r->cap_tok, r->n_tok + 1);
    r->tok[r->n_tok++] = o->token;
    int fin = k == rec->n - 1 ? rec->fin : FIN_NONE;
    if (fin == FIN_STOP) { /* counted, but its text stays away */
        end.why = FINISH_STOP;
        end.stop_id = o->token;
    } else if (r->has_text && text_stream_push(&r->text, o->token, &s->text)) {
        end.why = FINISH_STOP; /* beats length at the same token */
        end.stop_string = r->text.stopped;
        return end;
    } else if (fin == FIN_LENGTH || r->n_tok >= r->limit) {
        end.why = FINISH_LENGTH;
    }
    if (end.why != FINISH_NONE && r->has_text)
        text_stream_flush(&r->text, &s->text);
    return end;
}

static bool is_eos(const struct sched *s, int32_t id)
{
    for (int i = 0; i < s->c.n_eos; i++)
        if (s->c.eos[i] == id)
            return true;
    return false;
}

/* The tokens of one record: one event. May free r. */
static void tokens(struct sched *s, struct sreq *r, const struct ring_rec *rec)
{
    CHECK(rec->n <= LIM_EMIT);
    struct end end = {.why = FINISH_NONE, .stop_string = -1, .stop_id = -1};
    int n = 0;
    buf_reset(&s->text);
    while (n < rec->n && end.why == FINISH_NONE) {
        end = take(s, r, rec, n);
        n += !end.nan;
    }
    s->st.n_trimmed += end.nan ? 0 : rec->n - n;
    r->dev_ended = rec->fin != FIN_NONE;
    r->stats.last_us = s->c.clock_us(s->c.ud);
    if (r->stats.first_us == 0 && n > 0)
        r->stats.first_us = r->stats.last_us;
    int want = r->g->p.n_logprobs;
    struct gen_evt *e = gen_evt_new(r->g->id, EVT_TOKENS, n, want > 0 ? want : 0, s->text.len);
    if (s->text.len)
        memcpy(e->text, s->text.p, s->text.len);
    for (int k = 0; k < n; k++) {
        copy_tok(&e->tok[k], rec->tok[k].token, &rec->tok[k], want);
        if (want < 0)
            e->tok[k].logprob = NAN;
    }
    e->stop_string = end.stop_string;
    e->stop_id = end.stop_id;
    e->stop_is_eos = end.stop_id >= 0 && !r->g->p.ignore_eos && is_eos(s, end.stop_id);
    struct err err = {0};
    if (end.nan) {
        s->st.n_nan++;
        FAIL(&err, E_DEVICE, "the model produced a logit that is not a number");
        LOG(LOG_ERROR, "sched", "request %llu: NaN logit after %d tokens",
            (unsigned long long)r->g->id, r->n_tok);
    }
    if (end.why != FINISH_NONE)
        req_finish(s, r, e, end.why, &err);
    else
        evt_push(s, e);
}

/* Before anything is trimmed: emitted = 1 (prefill) + the sum over verifies of accepted + 1. */
static void count_verify(struct sched *s, struct sreq *r, const struct ring_rec *rec)
{
    CHECK(rec->n_draft >= 0 && rec->n_draft < LIM_ROWS_PER_REQ);
    CHECK(rec->n_deep >= 0 && rec->n_deep < LIM_EMIT && rec->n_deep <= rec->n_draft);
    CHECK(rec->n_accepted >= 0 && rec->n_accepted <= rec->n_deep);
    struct spec_sums *t = &s->st.spec[r->g->p.spec_mode];
    t->n_verify++;
    t->rows += 1 + rec->n_draft;
    t->drafted += rec->n_draft;
    t->accepted += rec->n_accepted;
    t->deep[rec->n_deep]++;
    t->took[rec->n_accepted]++;
    if (s->c.adapt && r->g->p.spec_mode == SPEC_MODEL && !r->lost)
        adapt_accept(&s->adapt, rec->n_deep, rec->n_accepted);
    r->found = rec->n_next;
    r->stats.n_verify++;
    r->stats.n_draft += rec->n_draft;
    r->stats.n_accepted += rec->n_accepted;
    r->stats.n_drafted += rec->n_draft > 0;
    r->stats.n_first += rec->n_accepted > 0;
}

/* Log probabilities of the prompt tokens after each row. False: r has ended (NaN). */
static bool scores(struct sched *s, struct sreq *r, const struct step *st,
                   const struct prefill_chunk *c)
{
    if (!r->score)
        return true;
    for (int i = 0; i < c->n && c->n_score >= 0; i++) {
        int32_t id = st->score_tok[c->row0 + i];
        if (id < 0)
            continue;
        const struct sample_out *o = &st->score[c->row0 + i];
        if (o->bad) {
            s->st.n_nan++;
            broken(s, r, "the model produced a logit that is not a number");
            return false;
        }
        copy_tok(&r->score->tok[c->pos0 + i + 1], id, o, c->n_score);
        r->scored = c->pos0 + i + 2;
    }
    if (c->pos0 + c->n >= r->n_prompt) {
        evt_push(s, r->score);
        r->score = NULL;
    }
    return true;
}

static void chunk_result(struct sched *s, struct step *st, const struct prefill_chunk *c,
                         const struct ring_rec *rec)
{
    struct sreq *r = owner(s, c->slot, c->gen, c->last ? rec : NULL);
    if (!r || !scores(s, r, st, c))
        return;
    if (c->last) {
        r->pending--;
        r->sure--;
        if (rec->n < 1)
            broken(s, r, "the last chunk of its prompt gave no token");
        else
            tokens(s, r, rec);
    } else if (c->pos0 + c->n == r->fill_to) { /* max_tokens 0: only the scores were wanted */
        req_finish(s, r, NULL, FINISH_LENGTH, NULL);
    }
}

static void device_failed(struct sched *s, const struct err *err)
{
    if (!s->failed)
        LOG(LOG_ERROR, "sched", "the device failed, every request ends: %s", err->text);
    __atomic_store_n(&s->failed, true, __ATOMIC_RELEASE);
    while (s->running.n)
        req_finish(s, s->running.v[s->running.n - 1], NULL, FINISH_ERROR, err);
    while (s->waiting.n)
        req_finish(s, s->waiting.v[s->waiting.n - 1], NULL, FINISH_ERROR, err);
}

/* Device time of the decode part: its sums, and for the choice of depth. */
static void time_result(struct sched *s, const struct flight *f, const struct step *st)
{
    if (!f->n_req || !st->stamps)
        return;
    for (int i = STAMP_BEGIN + 1; i < N_STAMPS; i++)
        if (st->stamps[i] && st->stamps[i - 1])
            s->st.part_us[i - 1] += (double)(st->stamps[i] - st->stamps[i - 1]) * 1e-3;
    if (!s->c.adapt)
        return;
    int last = f->depth && f->n_may ? STAMP_DRAFT : STAMP_ACCEPT;
    int64_t ns = st->stamps[last] - st->stamps[STAMP_BEGIN];
    if (st->stamps[last] && st->stamps[STAMP_BEGIN])
        adapt_time(&s->adapt, f->n_may, f->depth, f->steady, (double)ns * 1e-3);
}

void step_result(struct sched *s, struct step *st)
{
    struct flight *f = s->flight;
    while (f < s->flight + STEPS_MAX && f->st != st)
        f++;
    CHECK(s->in_flight > 0 && f < s->flight + STEPS_MAX);
    f->st = NULL;
    s->in_flight--;
    s->st.n_result++;
    if (st->err.code) {
        device_failed(s, &st->err);
    } else {
        time_result(s, f, st);
        for (int i = 0; i < f->n_req; i++) {
            const struct ring_rec *rec = &st->decode_rec[i];
            CHECK(rec->n == 0 || (rec->slot == f->slot[i] && rec->gen == f->gen[i]));
            struct sreq *r = owner(s, f->slot[i], f->gen[i], rec);
            if (!r)
                continue;
            r->pending -= f->add[i];
            r->sure--;
            CHECK(r->pending >= 0);
            if (rec->n < 1) {
                broken(s, r, "its decode step gave no token");
                continue;
            }
            count_verify(s, r, rec);
            tokens(s, r, rec);
        }
        for (int i = 0; i < f->n_chunk; i++)
            chunk_result(s, st, &f->chunk[i], &st->prefill_rec[i]);
    }
    s->c.ops->release(s->c.worker, st);
}
