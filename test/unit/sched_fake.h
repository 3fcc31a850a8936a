/* A device that is not there: executes steps with the semantics of kernels/ops.h (slot updates,
 * rows, acceptance) on a toy model, and checks everything a plan could get wrong.
 *
 * The toy model's KV entry of a position is a hash of the token prefix. A row recomputes nothing:
 * it reads its whole visible range through the page tables, so a page that was given out twice,
 * freed too early or never set shows as a wrong hash at once. The next token is a function of the
 * prefix hash and the seed, so fake_reference() knows every request's output without any batch.
 *
 * Results are held back until the test asks for them (fake_run_one): up to two steps are in
 * flight. Used by the scheduler tests and the fuzz target; everything is static on purpose. */
#ifndef SPECD_TEST_SCHED_FAKE_H
#define SPECD_TEST_SCHED_FAKE_H

#include <math.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/base/rng.h"
#include "engine/sched/sched.h"

enum { FAKE_VOCAB = 256, FAKE_EOS = 0, FAKE_EOS2 = 1 };

struct fake_slot {
    int gen, live, len, root, n_out;
    bool lost; /* the drafter has not followed it from its first token on */
    struct slot_params p;
    uint64_t *hash; /* [len_max] of the prefix that ends at each position */
};

struct fake {
    struct sched_conf c;
    struct sched *s; /* set after sched_open */
    struct fake_slot *slot;
    int32_t *table[LIM_KV_GROUPS]; /* [slots_max + 1][pages_max] */
    uint64_t *kv[LIM_KV_GROUPS];   /* [n_page * page] */
    struct step step[STEPS_MAX];
    struct ring_rec *rec[STEPS_MAX];
    int owner[STEPS_MAX]; /* 0 free, 1 scheduler, 2 queued, 3 done */
    struct step *queue[STEPS_MAX];
    int n_queue;
    int64_t n_run, fail_at; /* steps executed; this one fails (0: none) */
    int64_t n_dead;         /* decode rows planned for slots that were dead by then */
    int64_t last_no;
    int set_max;
    /* device times of a decode: fixed, a row, a draft of the rounds */
    int64_t ns_step, ns_row, ns_draft, stamps[STEPS_MAX][N_STAMPS];
    int64_t now; /* the clock, advanced by the test */
    struct rng rng;
};

static inline uint64_t fake_mix(uint64_t a, uint64_t b)
{
    struct rng r = {a * 0x9e3779b97f4a7c15ull + b};
    return rng_u64(&r);
}

/* The model: the sample after a prefix. bias_id[0] = 7 makes a request's logits NaN now and then.
 */
static inline struct sample_out fake_sample(const struct slot_params *p, int n_out, uint64_t hash)
{
    uint64_t x = fake_mix(hash, p->seed);
    struct sample_out o = {.token = 2 + (int)(x % (FAKE_VOCAB - 2)), .logprob = NAN};
    bool stops = p->n_stop > 0 && (x >> 32) % 24 == 0 && n_out >= p->min_out;
    if (stops)
        o.token = p->stop[(x >> 40) % (uint64_t)p->n_stop];
    else
        for (int i = 0; i < p->n_stop; i++) /* not by chance: stop ids come by the rule above */
            if (o.token == p->stop[i] && n_out < p->min_out)
                o.token = FAKE_VOCAB - 1;
    o.bad = p->n_bias > 0 && p->bias_id[0] == 7 && (x >> 20) % 16 == 0;
    if (p->n_logprobs >= 0) {
        o.logprob = -(float)(x % 1000) / 100;
        o.n_top = p->n_logprobs;
        for (int i = 0; i < o.n_top; i++) {
            o.top_id[i] = i;
            o.top_logprob[i] = o.logprob - (float)i;
        }
    }
    return o;
}

static inline float fake_score(uint64_t hash, int32_t tok)
{
    return -(float)(fake_mix(hash, (uint64_t)tok) % 4096) / 64;
}

static inline int fake_fin(const struct slot_params *p, int n_out, int32_t tok)
{
    for (int i = 0; i < p->n_stop; i++)
        if (tok == p->stop[i] && n_out > p->min_out)
            return FIN_STOP;
    return n_out >= p->max_out || p->n_prompt + n_out >= p->len_max ? FIN_LENGTH : FIN_NONE;
}

/* Output of a request when it is alone in the world. Returns the number of tokens; *fin is the
 * reason of the last, -1 for NaN. */
static inline int fake_reference(const int32_t *prompt, int n, const struct slot_params *p,
                                 int32_t *out, int *fin)
{
    uint64_t h = 1;
    for (int i = 0; i < n; i++)
        h = fake_mix(h, (uint64_t)prompt[i]);
    *fin = FIN_NONE;
    int k = 0;
    while (*fin == FIN_NONE && k < p->max_out) {
        struct sample_out o = fake_sample(p, k, h);
        if (o.bad) {
            *fin = -1;
            break;
        }
        out[k++] = o.token;
        h = fake_mix(h, (uint64_t)o.token);
        *fin = fake_fin(p, k, o.token);
    }
    return k;
}

/* ---- the device ---- */

static inline uint64_t *fake_cell(struct fake *f, int g, int slot, int pos)
{
    const struct kv_conf *k = &f->c.kv;
    CHECK(pos / k->page < k->group[g].pages_max);
    int32_t page = f->table[g][slot * k->group[g].pages_max + pos / k->page];
    CHECK(page >= 0 && page < k->group[g].n_page);
    return &f->kv[g][(int64_t)page * k->page + pos % k->page];
}

/* One row: writes its KV, reads all that it sees, leaves the prefix hash. */
static inline uint64_t fake_row(struct fake *f, int slot, int pos, int32_t tok)
{
    struct fake_slot *s = &f->slot[slot];
    CHECK(pos < f->c.len_max && pos == s->len);
    CHECK(tok >= 0 && tok < FAKE_VOCAB);
    uint64_t h = fake_mix(pos ? s->hash[pos - 1] : 1, (uint64_t)tok);
    s->hash[pos] = h;
    for (int g = 0; g < f->c.kv.n_group; g++) {
        *fake_cell(f, g, slot, pos) = h + (uint64_t)g;
        int w = f->c.kv.group[g].window;
        for (int q = w > 0 && pos + 1 > w ? pos + 1 - w : 0; q <= pos; q++)
            CHECK(*fake_cell(f, g, slot, q) == s->hash[q] + (uint64_t)g);
    }
    s->len = pos + 1;
    return h;
}

static inline void fake_emit(struct fake *f, struct ring_rec *r, int slot, uint64_t h)
{
    struct fake_slot *s = &f->slot[slot];
    (void)f;
    r->tok[r->n] = fake_sample(&s->p, s->n_out, h);
    s->root = r->tok[r->n].token;
    r->n++;
    s->n_out++;
    r->fin = fake_fin(&s->p, s->n_out, s->root);
    s->live = r->fin == FIN_NONE;
}

static inline void fake_updates(struct fake *f, struct step *st)
{
    CHECK(st->n_stop <= f->c.slots_max && st->n_start <= f->c.slots_max);
    CHECK(st->n_set <= st->set_max);
    for (int i = 0; i < st->n_stop; i++) {
        CHECK(st->stop[i] >= 1 && st->stop[i] <= f->c.slots_max);
        f->slot[st->stop[i]].live = 0;
    }
    for (int i = 0; i < st->n_start; i++) {
        const struct slot_start *b = &st->start[i];
        struct fake_slot *s = &f->slot[b->slot];
        CHECK(b->slot >= 1 && b->slot <= f->c.slots_max && b->gen == s->gen % INT32_MAX + 1);
        uint64_t *hash = s->hash;
        *s = (struct fake_slot){.gen = b->gen, .live = 1, .hash = hash, .p = b->params};
        s->n_out = b->params.n_out;
    }
    for (int i = 0; i < st->n_set; i++) {
        const struct page_set *p = &st->set[i];
        CHECK(p->group >= 0 && p->group < f->c.kv.n_group);
        CHECK(p->index >= 0 && p->index < f->c.kv.group[p->group].pages_max);
        CHECK(p->page >= 0 && p->page < f->c.kv.group[p->group].n_page);
        f->table[p->group][p->slot * f->c.kv.group[p->group].pages_max + p->index] = p->page;
    }
}

/* Whether a request has a round, as planned: the model drafter's only, and one without is lost to
 * it. Others may be left out only if they were lost. */
static inline void fake_round(const struct fake *f, const struct step *st, struct fake_slot *s,
                              bool planned)
{
    CHECK(st->depth >= 0 && st->depth <= f->c.depth);
    bool may = st->depth > 0 && s->p.spec_mode == SPEC_MODEL;
    CHECK(planned ? may : !may || s->lost);
    s->lost |= !planned;
}

/* Positions from the committed length up to `to` are written with what nobody may read. */
static inline void fake_waste(struct fake *f, int slot, int to)
{
    for (int p = f->slot[slot].len; p < to; p++)
        for (int g = 0; g < f->c.kv.n_group; g++)
            *fake_cell(f, g, slot, p) = 0xdead;
}

static inline void fake_decode(struct fake *f, struct step *st, struct ring_rec *rec)
{
    CHECK(st->n_req <= f->c.reqs_max && st->rows_max >= st->n_req);
    for (int i = 0; i < st->n_req; i++) {
        int slot = st->req_slot[i];
        struct fake_slot *s = &f->slot[slot];
        for (int j = 0; j < i; j++)
            CHECK(st->req_slot[j] != slot);
        rec[i].slot = slot;
        rec[i].gen = st->req_gen[i];
        rec[i].step = st->no;
        rec[i].n = rec[i].fin = 0;
        rec[i].n_next = f->c.rows;
        rec[i].n_draft = rec[i].n_accepted = rec[i].n_deep = 0;
        if (!s->live || s->gen != st->req_gen[i]) {
            f->n_dead++;
            continue;
        }
        /* Drafts, so to say: a part of the rows is accepted (none of a lost request's), the others
         * are written in vain, and so is what a round of new drafts writes. */
        int cap = st->req_cap[i], w = cap < f->c.emit ? cap : f->c.emit;
        CHECK(cap >= 1 && cap <= f->c.rows && (cap == 1 || s->p.spec_mode != SPEC_OFF));
        int n = 1 + (int)(fake_mix(s->hash[s->len - 1], 5) % (uint64_t)w), from = s->len;
        bool round = i < st->n_draft;
        n = s->lost && s->p.spec_mode == SPEC_MODEL ? 1 : n;
        fake_round(f, st, s, round);
        for (int j = 0; j < n && s->live; j++)
            fake_emit(f, &rec[i], slot, fake_row(f, slot, s->len, s->root));
        fake_waste(f, slot, from + (round ? f->c.ahead : cap));
        rec[i].n_draft = cap - 1;
        rec[i].n_deep = w - 1;
        rec[i].n_accepted = rec[i].n - 1;
    }
}

static inline void fake_prefill(struct fake *f, struct step *st, struct ring_rec *rec)
{
    CHECK(st->n_chunk <= f->c.reqs_max && st->n_row <= f->c.rows_max);
    int row = 0;
    for (int i = 0; i < st->n_chunk; i++) {
        const struct prefill_chunk *c = &st->chunk[i];
        struct fake_slot *s = &f->slot[c->slot];
        CHECK(c->row0 == row && c->n > 0 && c->pos0 == s->len);
        CHECK(s->live && s->gen == c->gen); /* eager rows are not guarded on the device */
        rec[i].slot = c->slot;
        rec[i].gen = c->gen;
        rec[i].step = st->no;
        rec[i].n = rec[i].fin = 0;
        uint64_t h = 0;
        for (int k = 0; k < c->n; k++, row++) {
            h = fake_row(f, c->slot, c->pos0 + k, st->tok[row]);
            int32_t want = st->score_tok[row];
            CHECK(want < 0 || c->n_score >= 0);
            st->score[row] = (struct sample_out){.token = want, .logprob = NAN};
            if (want >= 0)
                st->score[row].logprob = fake_score(h, want);
        }
        fake_round(f, st, s, c->draft);
        if (!c->last)
            continue;
        fake_emit(f, &rec[i], c->slot, h);
        if (c->draft)
            fake_waste(f, c->slot, s->len + f->c.ahead);
    }
    CHECK(row == st->n_row);
}

static inline void fake_stamps(struct fake *f, struct step *st, int64_t *t)
{
    memset(t, 0, sizeof *t * N_STAMPS);
    st->stamps = t;
    if (!st->n_req)
        return;
    t[STAMP_BEGIN] = 1000000 * st->no;
    t[STAMP_VERIFY] = t[STAMP_BEGIN] + f->ns_step + f->ns_row * st->rows_max;
    t[STAMP_ACCEPT] = t[STAMP_VERIFY] + 1;
    if (st->depth && st->n_draft)
        t[STAMP_EXTEND] = t[STAMP_DRAFT] = t[STAMP_ACCEPT] + f->ns_draft * st->depth;
}

/* Executes the oldest queued step and returns it to the scheduler. False: none is queued. */
static inline bool fake_run_one(struct fake *f)
{
    if (!f->n_queue)
        return false;
    struct step *st = f->queue[0];
    f->queue[0] = f->queue[1];
    f->n_queue--;
    int i = (int)(st - f->step);
    CHECK(st->no == f->last_no + 1);
    f->last_no = st->no;
    struct ring_rec *d = f->rec[i], *p = d + f->c.reqs_max;
    memset(d, 0xee, sizeof *d * 2 * (size_t)f->c.reqs_max);
    memset(&st->err, 0, sizeof st->err);
    fake_updates(f, st);
    fake_decode(f, st, d);
    fake_prefill(f, st, p);
    fake_stamps(f, st, f->stamps[i]);
    st->decode_rec = d;
    st->prefill_rec = p;
    memset(st->req_slot, 0xee, sizeof(int32_t) * (size_t)f->c.reqs_max); /* it may do that */
    if (++f->n_run == f->fail_at)
        FAIL(&st->err, E_DEVICE, "injected fault");
    f->owner[i] = 3;
    sched_step_done(f->s, st);
    return true;
}

static inline struct step *fake_get(void *w)
{
    struct fake *f = w;
    for (int i = 0; i < STEPS_MAX; i++)
        if (f->owner[i] == 0) {
            f->owner[i] = 1;
            return &f->step[i];
        }
    return NULL;
}

static inline void fake_put(void *w, struct step *st)
{
    struct fake *f = w;
    int i = (int)(st - f->step);
    CHECK(f->owner[i] == 1 && f->n_queue < STEPS_MAX && st->n_req + st->n_chunk > 0);
    f->owner[i] = 2;
    f->queue[f->n_queue++] = st;
}

static inline void fake_release(void *w, struct step *st)
{
    struct fake *f = w;
    int i = (int)(st - f->step);
    CHECK(f->owner[i] == 3);
    f->owner[i] = 0;
}

static const struct worker_ops fake_ops = {
    .get = fake_get, .put = fake_put, .release = fake_release};

static inline int64_t fake_clock(void *ud)
{
    return ((struct fake *)ud)->now;
}

static inline uint64_t fake_rand(void *ud)
{
    return rng_u64(&((struct fake *)ud)->rng);
}

/* c: sizes and the event function are set; the rest is filled in here. */
static inline int fake_open(struct fake *f, const struct sched_conf *c, uint64_t seed,
                            struct err *e)
{
    memset(f, 0, sizeof *f);
    f->c = *c;
    f->rng.s = seed;
    f->now = 1000000;
    f->c.ops = &fake_ops;
    f->c.worker = f;
    f->c.vocab = FAKE_VOCAB;
    f->c.clock_us = fake_clock;
    f->c.rand = fake_rand;
    f->c.ud = f;
    int slots = f->c.slots_max + 1;
    f->slot = MEM_ARRAY(struct fake_slot, slots);
    for (int i = 0; i < slots; i++)
        f->slot[i].hash = MEM_ARRAY(uint64_t, f->c.len_max);
    for (int g = 0; g < f->c.kv.n_group; g++) {
        size_t n = (size_t)slots * (size_t)f->c.kv.group[g].pages_max;
        f->table[g] = MEM_ARRAY(int32_t, n);
        memset(f->table[g], 0xff, n * sizeof(int32_t)); /* a page never set is a fault */
        f->kv[g] = MEM_ARRAY(uint64_t, (int64_t)f->c.kv.group[g].n_page * f->c.kv.page);
    }
    f->set_max = f->c.kv.n_group * (f->c.rows_max + (f->c.ahead + 1) * f->c.reqs_max);
    for (int i = 0; i < STEPS_MAX; i++) {
        struct step *st = &f->step[i];
        size_t reqs = (size_t)f->c.reqs_max, rows = (size_t)f->c.rows_max;
        st->stop = MEM_ARRAY(int32_t, slots);
        st->start = MEM_ARRAY(struct slot_start, slots);
        st->set = MEM_ARRAY(struct page_set, f->set_max);
        st->set_max = f->set_max;
        st->req_slot = MEM_ARRAY(int32_t, reqs);
        st->req_gen = MEM_ARRAY(int32_t, reqs);
        st->req_cap = MEM_ARRAY(int32_t, reqs);
        st->chunk = MEM_ARRAY(struct prefill_chunk, reqs);
        st->tok = MEM_ARRAY(int32_t, rows);
        st->score_tok = MEM_ARRAY(int32_t, rows);
        st->score = MEM_ARRAY(struct sample_out, rows);
        f->rec[i] = MEM_ARRAY(struct ring_rec, 2 * reqs);
    }
    return sched_open(&f->s, &f->c, e);
}

static inline void fake_close(struct fake *f)
{
    sched_close(f->s);
    for (int i = 0; i <= f->c.slots_max; i++)
        mem_free(f->slot[i].hash);
    mem_free(f->slot);
    for (int g = 0; g < f->c.kv.n_group; g++) {
        mem_free(f->table[g]);
        mem_free(f->kv[g]);
    }
    for (int i = 0; i < STEPS_MAX; i++) {
        struct step *st = &f->step[i];
        mem_free(st->stop);
        mem_free(st->start);
        mem_free(st->set);
        mem_free(st->req_slot);
        mem_free(st->req_gen);
        mem_free(st->req_cap);
        mem_free(st->chunk);
        mem_free(st->tok);
        mem_free(st->score_tok);
        mem_free(st->score);
        mem_free(f->rec[i]);
    }
}

#endif
