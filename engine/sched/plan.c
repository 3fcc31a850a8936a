/* Fills one step: decodes of everything that is ready, then prefill chunks within the row budget.
 *
 * Decodes are planned oldest first, each with pages for the upper bound of its length; who cannot
 * get them, even by taking from the younger, sits the step out. A request taken from may already
 * stand in this very step: the stop that goes with it is applied before the step's rows, so its
 * row comes out empty and its pages are free to give. */
#include <string.h>

#include "engine/base/check.h"
#include "engine/sched/sched_int.h"

static int int_min(int a, int b)
{
    return a < b ? a : b;
}

/* Pages for positions [0, len), from the pool or from victims. */
static bool reserve(struct sched *s, struct step *st, struct sreq *r, int len)
{
    struct kv_seq *kv = &s->slot[r->slot].kv;
    for (;;) {
        int n = kv_grow(s->kv, kv, r->slot, len, st->set + st->n_set, st->set_max - st->n_set);
        if (n >= 0) {
            st->n_set += n;
            return true;
        }
        if (kv_reach(s->kv, kv, len, INT32_MAX) >= len)
            return false; /* the entry list is full: next step */
        struct sreq *v = policy_victim(s, r);
        if (!v)
            return false;
        req_preempt(s, v);
    }
}

/* Candidates in state `want`, oldest first, in s->scratch: preemption edits the lists. */
static int collect(struct sched *s, enum req_state want)
{
    int n = 0;
    for (int i = 0; i < s->running.n; i++) {
        struct sreq *r = s->running.v[i];
        if (r->state == want && !r->paused && !(want == RQ_READY && policy_over(r)))
            s->scratch[n++] = r;
    }
    return n;
}

static bool drafts(const struct sched *s, const struct sreq *r)
{
    return s->spec.round > 0 && r->g->p.spec_mode == SPEC_MODEL && (s->spec.all || !r->lost);
}

/* Positions past the committed length that a step of r may write. */
static int ahead_of(const struct sched *s, const struct sreq *r, int cap)
{
    return drafts(s, r) ? s->c.ahead : cap;
}

/* One request's rows: at the front of the list if the model drafter is to follow. */
static void add_rows(struct sched *s, struct step *st, struct sreq *r, int cap)
{
    int i = st->n_req++;
    if (drafts(s, r)) { /* swap it with the first that needs no round */
        int j = st->n_draft++;
        st->req_slot[i] = st->req_slot[j];
        st->req_gen[i] = st->req_gen[j];
        st->req_cap[i] = st->req_cap[j];
        i = j;
    }
    st->req_slot[i] = r->slot;
    st->req_gen[i] = s->slot[r->slot].gen;
    st->req_cap[i] = cap;
    st->lookup |= r->g->p.spec_mode == SPEC_NGRAM;
    r->round = drafts(s, r) ? s->spec.round : 0;
    r->lost |= r->round == 0;
    st->rows_max += cap;
    r->pending += int_min(cap, s->c.emit);
    r->sure++;
}

static void plan_decode(struct sched *s, struct step *st)
{
    int n = collect(s, RQ_READY);
    s->spec = policy_spec(s, s->scratch, n);
    for (int i = 0; i < n && st->n_req < s->c.reqs_max; i++) {
        struct sreq *r = s->scratch[i];
        if (r->state != RQ_READY)
            continue; /* preempted meanwhile */
        int cap = policy_rows(s, r);
        /* Committed are n_tok - 1 at least: the last token is the root, without KV. */
        kv_pass(s->kv, &s->slot[r->slot].kv, r->n_tok - 1);
        int len = r->n_tok - 1 + r->pending + ahead_of(s, r, cap);
        if (!reserve(s, st, r, int_min(len, s->len_max + s->c.ahead - 1))) {
            s->st.n_stalled++;
            continue;
        }
        add_rows(s, st, r, cap);
    }
}

static void count_rows(struct sched *s, struct sreq *r, int n)
{
    int again = int_min(n, r->seen - r->fill);
    again = again > 0 ? again : 0;
    int fresh = int_min(r->fill + n, r->n_prompt) - (r->fill + again);
    s->st.recomputed_tokens += again;
    s->st.prompt_tokens += fresh > 0 ? fresh : 0;
}

static void fill_chunk(struct sched *s, struct step *st, struct sreq *r, int n)
{
    bool last = r->fill + n == r->fill_to && r->n_tok < r->limit;
    bool score = r->score && r->fill + n > r->scored - 1;
    struct prefill_chunk *c = &st->chunk[st->n_chunk++];
    *c = (struct prefill_chunk){.slot = r->slot,
                                .gen = s->slot[r->slot].gen,
                                .row0 = st->n_row,
                                .n = n,
                                .pos0 = r->fill,
                                .last = last,
                                .draft = drafts(s, r),
                                .n_score = score ? r->g->p.n_prompt_logprobs : -1};
    for (int i = 0; i < n; i++) {
        int next = r->fill + i + 1; /* the token that this row predicts */
        bool want = score && next >= r->scored && next < r->n_prompt;
        st->tok[st->n_row + i] = r->tok[r->fill + i];
        st->score_tok[st->n_row + i] = want ? r->tok[next] : -1;
    }
    count_rows(s, r, n);
    r->chunk_step = s->step_no + 1;
    st->n_row += n;
    r->fill += n;
    r->lost |= !drafts(s, r);
    if (r->fill == r->fill_to) {
        r->state = RQ_READY;
        r->pending += last;
        r->sure += last;
        r->round = last && drafts(s, r) ? s->spec.round : 0;
    }
}

/* The next rows of its prefill, as many as budget and pages allow. */
static bool plan_chunk(struct sched *s, struct step *st, struct sreq *r, int budget)
{
    struct kv_seq *kv = &s->slot[r->slot].kv;
    kv_pass(s->kv, kv, r->fill);
    int to = r->fill + int_min(r->fill_to - r->fill, budget);
    /* the last chunk is followed by a round of drafts, which write past it */
    int more = drafts(s, r) ? s->c.ahead : 0, want = to + (to == r->fill_to ? more : 0);
    struct sreq *v;
    while (kv_reach(s->kv, kv, want, INT32_MAX) < want && (v = policy_victim(s, r)))
        req_preempt(s, v);
    int room = st->set_max - st->n_set;
    int reach = kv_reach(s->kv, kv, want, room);
    if (to == r->fill_to && reach < want)
        to = want = int_min(reach, r->fill_to - 1);
    else if (reach < want)
        to = want = reach;
    if (to <= r->fill)
        return false;
    int n_set = kv_grow(s->kv, kv, r->slot, want, st->set + st->n_set, room);
    CHECK(n_set >= 0);
    st->n_set += n_set;
    fill_chunk(s, st, r, to - r->fill);
    return true;
}

static int unpaused_running(const struct sched *s)
{
    int n = 0;
    for (int i = 0; i < s->running.n; i++)
        n += !s->running.v[i]->paused;
    return n;
}

static void take_slot(struct sched *s, struct sreq *r)
{
    r->slot = s->free_slot[--s->n_free_slot];
    struct slot *sl = &s->slot[r->slot];
    CHECK(!sl->r);
    sl->r = r;
    sl->gen = sl->gen == INT32_MAX ? 1 : sl->gen + 1;
    req_list_del(&s->waiting, r);
    req_list_add(&s->running, r);
    s->st.queue_tokens -= r->n_prompt;
    r->state = RQ_PREFILL;
    r->fill = r->pending = r->sure = r->round = 0;
    r->lost = false;
    r->found = s->c.emit;
    r->fill_to = r->n_tok;
}

/* Gives a waiting request a slot and its first chunk. */
static bool start(struct sched *s, struct step *st, struct sreq *r, int budget)
{
    take_slot(s, r);
    struct slot *sl = &s->slot[r->slot];
    struct slot_start *b = &st->start[st->n_start];
    b->slot = r->slot;
    b->gen = sl->gen;
    req_slot_params(s, r, &b->params);
    bool reused = sl->left == s->step_no && sl->gen > 1;
    if (!plan_chunk(s, st, r, budget)) { /* it waits on */
        req_unslot(s, r, false);
        r->state = RQ_WAITING;
        req_list_add(&s->waiting, r);
        s->st.queue_tokens += r->n_prompt;
        return false;
    }
    st->n_start++;
    sl->stop = false; /* starting it anew says the same */
    s->st.n_reused += reused;
    if (!r->told) {
        r->told = true;
        r->stats.start_us = s->c.clock_us(s->c.ud);
        evt_push(s, gen_evt_new(r->g->id, EVT_STARTED, 0, 0, 0));
    }
    return true;
}

/* A slot and pages for it, if need be from the paused, whose clients are behind anyway. */
static bool make_room(struct sched *s, const struct sreq *r)
{
    if (unpaused_running(s) >= s->c.reqs_max)
        return false;
    while (s->n_free_slot == 0 || !policy_may_start(s, r)) {
        struct sreq *v = policy_victim(s, NULL);
        if (!v)
            return false;
        req_preempt(s, v);
    }
    return true;
}

static void plan_prefill(struct sched *s, struct step *st)
{
    int rows = policy_prefill_rows(s, st->n_req), n = collect(s, RQ_PREFILL);
    for (int i = 0; i < n && st->n_row < rows && st->n_chunk < s->c.reqs_max; i++)
        if (s->scratch[i]->state == RQ_PREFILL)
            plan_chunk(s, st, s->scratch[i], rows - st->n_row);
    while (st->n_row < rows && st->n_chunk < s->c.reqs_max && st->n_start < s->c.slots_max) {
        struct sreq *r = policy_next(s);
        if (!r || !make_room(s, r) || !start(s, st, r, rows - st->n_row))
            break;
    }
}

static void add_stops(struct sched *s, struct step *st)
{
    for (int i = 0; i < s->n_stop_slot; i++) {
        struct slot *sl = &s->slot[s->stop_slot[i]];
        if (sl->stop)
            st->stop[st->n_stop++] = s->stop_slot[i];
        sl->stop = false;
    }
    s->n_stop_slot = 0;
}

static void remember(struct sched *s, struct step *st)
{
    struct flight *f = s->flight;
    while (f->st)
        f++;
    CHECK(f < s->flight + STEPS_MAX);
    f->st = st;
    f->n_req = st->n_req;
    f->n_chunk = st->n_chunk;
    memcpy(f->slot, st->req_slot, sizeof *f->slot * (size_t)st->n_req);
    memcpy(f->gen, st->req_gen, sizeof *f->gen * (size_t)st->n_req);
    f->n_may = 0;
    f->depth = st->n_draft ? s->spec.use : 0;
    f->steady = true;
    int full = !f->depth ? 0 : s->c.rows == s->c.emit ? f->depth : s->c.rows - 1;
    for (int i = 0; i < st->n_req; i++) {
        const struct sreq *r = s->slot[st->req_slot[i]].r;
        f->add[i] = int_min(st->req_cap[i], s->c.emit);
        f->n_may += r && r->g->p.spec_mode == SPEC_MODEL;
        f->steady &= st->req_cap[i] == 1 + full && !(r && r->g->p.spec_least > st->n_req);
    }
    f->steady &= f->n_may == st->n_req;
    memcpy(f->chunk, st->chunk, sizeof *f->chunk * (size_t)st->n_chunk);
}

/* Plans and hands over one step. False: no free block, or nothing to do in it. */
bool plan_step(struct sched *s)
{
    if (s->failed || s->running.n + s->waiting.n == s->n_paused)
        return false;
    if (!s->spare)
        s->spare = s->c.ops->get(s->c.worker);
    struct step *st = s->spare;
    if (!st)
        return false;
    st->n_stop = st->n_start = st->n_set = st->n_req = st->n_chunk = st->n_row = st->rows_max = 0;
    st->n_draft = 0;
    st->lookup = false;
    memset(&st->err, 0, sizeof st->err);
    if (s->c.prefill_first)
        plan_prefill(s, st);
    if (st->n_chunk == 0)
        plan_decode(s, st);
    if (!s->c.prefill_first)
        plan_prefill(s, st);
    if (st->n_req == 0 && st->n_chunk == 0) {
        CHECK(st->n_start == 0 && st->n_set == 0);
        return false;
    }
    add_stops(s, st);
    st->depth = s->spec.round;
    st->no = ++s->step_no;
    s->spare = NULL;
    remember(s, st);
    s->in_flight++;
    s->st.n_step++;
    s->st.n_decode += st->n_req > 0;
    s->st.n_prefill += st->n_chunk > 0;
    s->c.ops->put(s->c.worker, st);
    return true;
}
