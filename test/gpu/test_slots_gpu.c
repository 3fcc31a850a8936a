/* Goal: slots, rows, sampling, acceptance and drafting on the CUDA device are the CPU device's.
 * Method: one small world on both sides goes through whole rounds; integers must be equal after
 * every operation, log probabilities and scores within a stated bound. */
#include <stdio.h>
#include <stdlib.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "test/gpu/twin.h"

/* V: several blocks of the sampler share a row, and rows begin at any alignment. DV: a drafter's.
 */
enum { S = 9, LEN = 64, V = 40003, DV = 9001, ROWS = 30, REQS = 10 };

struct world {
    struct twins t;
    struct twin *gen, *live, *len, *root, *n_rows, *draft, *n_out, *hist, *seen, *count, *params;
    struct twin *parent, *anc, *drf_first, *drf_next;
    struct twin *tok, *slot, *pos, *req, *first, *last, *wslot, *table;
    struct twin *at, *row_parent, *row_anc, *row0;
    struct twin *req_slot, *req_gen, *req_row0, *req_n, *req_cap;
    struct twin *acc_n, *acc_row, *acc_tok, *acc_len;
    struct twin *sample, *work, *ring, *step;
};

static struct slot_arrays slots_of(const struct world *w, int side)
{
    return (struct slot_arrays){
        .gen = P(w->gen),
        .live = P(w->live),
        .len = P(w->len),
        .root = P(w->root),
        .n_rows = P(w->n_rows),
        .draft = P(w->draft),
        .parent = P(w->parent),
        .anc = P(w->anc),
        .drf_first = P(w->drf_first),
        .drf_next = P(w->drf_next),
        .n_out = P(w->n_out),
        .hist = P(w->hist),
        .seen = P(w->seen),
        .count = P(w->count),
        .params = P(w->params),
        .n_slot = S,
        .len_max = LEN,
        .vocab = V,
    };
}

static struct row_arrays rows_of(const struct world *w, int side)
{
    return (struct row_arrays){
        .tok = P(w->tok),
        .slot = P(w->slot),
        .pos = P(w->pos),
        .req = P(w->req),
        .at = P(w->at),
        .parent = P(w->row_parent),
        .anc = P(w->row_anc),
        .row0 = P(w->row0),
        .first = {P(w->first)},
        .last = {P(w->last)},
        .wslot = {P(w->wslot)},
    };
}

static struct accept_out acc_of(const struct world *w, int side)
{
    return (struct accept_out){
        .n = P(w->acc_n), .row = P(w->acc_row), .tok = P(w->acc_tok), .len = P(w->acc_len)};
}

static void world_open(struct world *w)
{
    struct twins *t = &w->t;
    twins_open(t);
    struct twin **per_slot[] = {&w->gen,    &w->live,  &w->len,       &w->root,
                                &w->n_rows, &w->n_out, &w->drf_first, &w->drf_next};
    for (size_t i = 0; i < ARRAY_LEN(per_slot); i++)
        *per_slot[i] = twin_new(t, S * sizeof(int32_t));
    w->draft = twin_new(t, S * LIM_ROWS_PER_REQ * sizeof(int32_t));
    w->parent = twin_new(t, S * LIM_ROWS_PER_REQ * sizeof(int32_t));
    w->anc = twin_new(t, S * LIM_ROWS_PER_REQ * sizeof(uint64_t));
    w->hist = twin_new(t, S * LEN * sizeof(int32_t));
    w->seen = twin_new(t, S * ((V + 31) / 32) * sizeof(uint32_t));
    w->count = twin_new(t, S * V * sizeof(uint16_t));
    w->params = twin_new(t, S * sizeof(struct slot_params));
    w->row_anc = twin_new(t, ROWS * sizeof(uint64_t));
    struct twin **per_row[] = {&w->tok,  &w->slot,  &w->pos, &w->req,        &w->first,
                               &w->last, &w->wslot, &w->at,  &w->row_parent, &w->row0};
    for (size_t i = 0; i < ARRAY_LEN(per_row); i++)
        *per_row[i] = twin_new(t, ROWS * sizeof(int32_t));
    w->table = twin_new(t, S * 4 * sizeof(int32_t));
    w->acc_row = twin_new(t, REQS * LIM_EMIT * sizeof(int32_t));
    w->acc_tok = twin_new(t, REQS * LIM_EMIT * sizeof(int32_t));
    struct twin **per_req[] = {&w->req_slot, &w->req_gen, &w->req_row0, &w->req_n,
                               &w->req_cap,  &w->acc_n,   &w->acc_len};
    for (size_t i = 0; i < ARRAY_LEN(per_req); i++)
        *per_req[i] = twin_new(t, REQS * sizeof(int32_t));
    w->sample = twin_new(t, ROWS * sizeof(struct sample_out));
    w->work = twin_nans(t, (size_t)ROWS * 4 * V);
    w->ring = twin_new(t, 3 * REQS * sizeof(struct ring_rec));
    w->step = twin_new(t, sizeof(int64_t));
    *(int64_t *)w->step->p[0] = 4;
    twin_push(t, w->step);
}

static void world_same(struct world *w, const char *at)
{
    struct twin *all[] = {
        w->gen,   w->live,    w->len,        w->root,     w->n_rows, w->n_out,     w->hist,
        w->seen,  w->count,   w->tok,        w->slot,     w->pos,    w->req,       w->first,
        w->last,  w->wslot,   w->table,      w->req_row0, w->req_n,  w->draft,     w->parent,
        w->anc,   w->at,      w->row_parent, w->row_anc,  w->row0,   w->drf_first, w->drf_next,
        w->acc_n, w->acc_row, w->acc_tok,    w->acc_len};
    char name[64];
    for (size_t i = 0; i < ARRAY_LEN(all); i++) {
        snprintf(name, sizeof name, "%s, array %zu", at, i);
        twin_same(&w->t, all[i], all[i]->bytes, name);
    }
}

/* Random links for the slot's next n rows; the tokens are the caller's. */
static void world_tree(struct world *w, int s, int n)
{
    int32_t *parent = (int32_t *)w->parent->p[0] + s * LIM_ROWS_PER_REQ;
    uint64_t *anc = (uint64_t *)w->anc->p[0] + s * LIM_ROWS_PER_REQ;
    ((int32_t *)w->n_rows->p[0])[s] = n;
    for (int j = 1; j < n; j++) {
        int up = (int)rng_below(&w->t.rng, (uint64_t)j);
        parent[j - 1] = up;
        anc[j - 1] = (up ? anc[up - 1] : 1) | (uint64_t)1 << j;
    }
}

static void world_push_trees(struct world *w)
{
    twin_push(&w->t, w->n_rows);
    twin_push(&w->t, w->draft);
    twin_push(&w->t, w->parent);
    twin_push(&w->t, w->anc);
}

/* Starts slots 1 … 8 with differing parameters and 12-token prompts, and gives them pages. */
static void world_start(struct world *w)
{
    struct twins *t = &w->t;
    struct twin *start = twin_new(t, S * sizeof(struct slot_start));
    struct twin *stop = twin_new(t, S * sizeof(int32_t)),
                *set = twin_new(t, 64 * sizeof(struct page_set));
    int32_t counts[3] = {S - 1, 1, (S - 1) * 4};
    struct twin *n = twin_ints(t, counts, 3);
    struct slot_start *b = start->p[0];
    for (int i = 0; i < S - 1; i++) {
        struct slot_params p = {
            .seed = 77 + (uint64_t)i * 0x123456789ull,
            .temperature = i % 4 == 0 ? 0 : 0.5f + 0.2f * (float)i,
            .top_p = i == 2 || i == 5 ? 0.7f : 1,
            .min_p = i == 3 || i == 5 ? 0.02f : 0,
            .repetition = i == 4 ? 1.3f : 1,
            .presence = i == 6 ? 0.5f : 0,
            .frequency = i == 6 ? 0.3f : 0,
            .top_k = i == 1 || i == 5 ? 40 : 0,
            .n_prompt = 12,
            .min_out = i == 7 ? 5 : 0,
            .max_out = 6,
            .len_max = LEN,
            .n_logprobs = i % 2 ? 5 : -1,
            .spec_mode = i % 3 == 2 ? SPEC_NGRAM : SPEC_MODEL,
            .spec_max = 63,
            .spec_ratio = i % 2,
            .n_stop = 2,
            .stop = {7, 11},
            .n_bias = i == 0 ? 2 : 0,
            .bias_id = {5, 4000},
            .bias = {3, 9},
        };
        b[i] = (struct slot_start){i + 1, 100 + i, p};
        for (int j = 0; j < 4; j++)
            ((struct page_set *)set->p[0])[i * 4 + j] =
                (struct page_set){0, i + 1, j, 3 + i * 4 + j};
    }
    ((int32_t *)stop->p[0])[0] = 3;
    twin_push(t, start);
    twin_push(t, stop);
    twin_push(t, set);
    BOTH(t, slot_update,
         SET({.s = slots_of(w, side),
              .start = P(start),
              .n_start = P(n),
              .stop = P(stop),
              .n_stop = (int32_t *)P(n) + 1,
              .set = P(set),
              .n_set = (int32_t *)P(n) + 2,
              .table = {P(w->table)},
              .pages_max = {4},
              .n_group = 1,
              .drf_begin = 1}));
    world_same(w, "slot_update");
}

/* ---- the same steps of several tests ---- */

static void do_rows_build(struct world *w, bool cap)
{
    BOTH(&w->t, rows_build,
         SET({.s = slots_of(w, side),
              .out = rows_of(w, side),
              .req_slot = P(w->req_slot),
              .req_gen = P(w->req_gen),
              .req_cap = cap ? P(w->req_cap) : NULL,
              .req_row0 = P(w->req_row0),
              .req_n = P(w->req_n),
              .reqs = REQS,
              .rows = ROWS}));
    world_same(w, "rows_build");
}

static void do_rows_place(struct world *w, struct twin *from, int window)
{
    BOTH(&w->t, rows_place,
         SET({.slot = P(w->slot),
              .pos = P(w->pos),
              .tok = P(w->tok),
              .at = P(w->at),
              .from = from ? P(from) : NULL,
              .first = P(w->first),
              .last = P(w->last),
              .wslot = P(w->wslot),
              .table = P(w->table),
              .rows = ROWS,
              .pages_max = 4,
              .page = 16,
              .window = window}));
    world_same(w, "rows_place");
}

/* Samples of m logit rows, of the rows idx (NULL: the same). */
static void do_sample(struct world *w, struct twin *logits, struct twin *idx, int m)
{
    BOTH(&w->t, sample,
         SET({.s = slots_of(w, side),
              .rows = rows_of(w, side),
              .logits = P(logits),
              .ldl = V,
              .idx = idx ? P(idx) : NULL,
              .out = P(w->sample),
              .work = P(w->work),
              .m = m,
              .vocab = V}));
}

/* Equal choices, log probabilities within rounding, of the first m samples. Returns the tokens. */
static int samples_same(struct world *w, int m, const char *at)
{
    struct sample_out *g = mem_alloc(w->sample->bytes), *c = w->sample->p[0];
    struct err e = {0};
    int tokens = 0;
    ck_assert_int_eq(dev_cuda.copy_out(w->t.gpu, g, w->sample->p[1], w->sample->bytes, &e), OK);
    for (int i = 0; i < m; i++) {
        ck_assert_msg(g[i].token == c[i].token, "%s, row %d: token %d, want %d", at, i, g[i].token,
                      c[i].token);
        ck_assert_msg(g[i].n_top == c[i].n_top && g[i].bad == c[i].bad, "%s, row %d", at, i);
        ck_assert_msg(isnan(c[i].logprob) ? isnan(g[i].logprob)
                                          : fabsf(g[i].logprob - c[i].logprob) < 2e-6f,
                      "%s, row %d: %g, want %g", at, i, (double)g[i].logprob, (double)c[i].logprob);
        for (int k = 0; k < c[i].n_top; k++)
            ck_assert_msg(g[i].top_id[k] == c[i].top_id[k] &&
                              fabsf(g[i].top_logprob[k] - c[i].top_logprob[k]) < 2e-6f,
                          "%s, row %d, best %d: %d %g, want %d %g", at, i, k, g[i].top_id[k],
                          (double)g[i].top_logprob[k], c[i].top_id[k], (double)c[i].top_logprob[k]);
        tokens += c[i].token >= 0;
    }
    mem_free(g);
    return tokens;
}

static void do_accept(struct world *w, struct twin *last, bool prefill)
{
    BOTH(&w->t, accept,
         SET({.s = slots_of(w, side),
              .rows = rows_of(w, side),
              .sample = P(w->sample),
              .req_slot = P(w->req_slot),
              .req_gen = P(w->req_gen),
              .req_row0 = P(w->req_row0),
              .req_n = P(w->req_n),
              .last_sample = last ? P(last) : NULL,
              .ring = P(w->ring),
              .step = P(w->step),
              .ring_depth = 3,
              .ring_stride = REQS,
              .out = acc_of(w, side),
              .reqs = REQS,
              .prefill = prefill}));
    world_same(w, "accept");
}

START_TEST(slots_and_sampling)
{
    struct world w = {0};
    world_open(&w);
    struct twins *t = &w.t;
    world_start(&w);
    /* two prompt rows a slot, then a sample each */
    int32_t slot[ROWS] = {0}, pos[ROWS] = {0}, tok[ROWS], req[ROWS], rs[REQS] = {0}, rg[REQS] = {0};
    int32_t row0[REQS] = {0}, cnt[REQS] = {0}, last[REQS], idx[S - 1];
    for (int i = 0; i < ROWS; i++)
        tok[i] = req[i] = -1;
    for (int i = 0; i < S - 1; i++) {
        for (int j = 0; j < 2; j++) {
            slot[i * 2 + j] = i + 1;
            pos[i * 2 + j] = 10 + j;
            tok[i * 2 + j] = 20 + i * 3 + j;
            req[i * 2 + j] = i;
        }
        rs[i] = i + 1;
        rg[i] = 100 + i - (i == 4); /* slot 5: stale */
        row0[i] = i * 2;
        cnt[i] = 2;
        last[i] = i;
        idx[i] = i * 2 + 1;
    }
    last[8] = last[9] = -1;
    for (int s = 0; s < S; s++)
        ((int32_t *)w.len->p[0])[s] = s ? 10 : 0;
    twin_push(t, w.len);
    const int32_t *from[] = {tok, slot, pos, req, pos};
    struct twin *to[] = {w.tok, w.slot, w.pos, w.req, w.at};
    for (int i = 0; i < 5; i++) {
        memcpy(to[i]->p[0], from[i], sizeof tok);
        twin_push(t, to[i]);
    }
    const int32_t *from_req[] = {rs, rg, row0, cnt};
    struct twin *to_req[] = {w.req_slot, w.req_gen, w.req_row0, w.req_n};
    for (int i = 0; i < 4; i++) {
        memcpy(to_req[i]->p[0], from_req[i], sizeof rs);
        twin_push(t, to_req[i]);
    }
    struct twin *lastw = twin_ints(t, last, REQS), *ix = twin_ints(t, idx, S - 1);
    BOTH(t, rows_note,
         SET({.s = slots_of(&w, side),
              .tok = P(w.tok),
              .slot = P(w.slot),
              .pos = P(w.pos),
              .rows = ROWS}));
    world_same(&w, "rows_note");
    do_rows_place(&w, NULL, 8);
    struct twin *logits = twin_rand(t, (size_t)ROWS * V, 3);
    /* rows of few different values, whose cuts lie among thousands of equals; one of a single
     * value; NaN and infinity */
    for (int m = 0; m < ROWS; m++) {
        float *l = (float *)logits->p[0] + (int64_t)m * V;
        for (int i = 0; i < V; i++)
            l[i] = m % 3 == 1 ? rintf(l[i]) : m == 5 ? 1 : l[i];
        if (m % 4 == 3) {
            l[17] = NAN;
            l[V - 1] = -INFINITY;
        }
    }
    twin_push(t, logits);
    char name[32];
    int checked = 0;
    const struct sample_out *c = w.sample->p[0];
    for (int round = 0; round < (twin_small() ? 2 : 8); round++) {
        bool prefill = round == 0;
        int m = prefill ? S - 1 : ROWS;
        if (!prefill) {
            /* drafts: what will be sampled is unknown, so some match by construction below */
            for (int s = 1; s < S; s++)
                world_tree(&w, s, 1 + (s + round) % 3);
            world_push_trees(&w);
            do_rows_build(&w, false);
        }
        do_sample(&w, logits, prefill ? ix : NULL, m);
        snprintf(name, sizeof name, "round %d", round);
        checked += samples_same(&w, m, name);
        do_accept(&w, lastw, prefill);
        /* the next drafts are this round's samples: right at the same logits for greedy slots */
        for (int s = 1; s < S; s++)
            for (int j = 0; j < 3; j++)
                ((int32_t *)w.draft->p[0])[s * LIM_ROWS_PER_REQ + j] = c[(s + j) % m].token;
        twin_push(t, w.draft);
    }
    ck_assert_int_gt(checked, twin_small() ? 8 : 40);
    struct twin *ntop = twin_ints(t, (int32_t[]){3, 0, 20}, 3),
                *st = twin_ints(t, (int32_t[]){9, -1, 4999}, 3);
    BOTH(t, score,
         SET({.logits = P(logits),
              .ldl = V,
              .tok = P(st),
              .n_top = P(ntop),
              .out = P(w.sample),
              .m = 3,
              .vocab = V}));
    samples_same(&w, 3, "score");
    twins_close(t);
}
END_TEST

/* ---- speculation: a verify of trees, then a draft round, on both sides ---- */

struct draft_twin {
    struct twin *tok, *parent, *score, *beam, *beam_anc, *src, *tail, *keep_row, *keep_slot;
    struct twin *logits, *work, *d2t, *q;
};

static void draft_round(struct world *w, struct draft_twin *d, int topk, int levels, bool map)
{
    struct twins *t = &w->t;
    int reqs = ROWS / topk < REQS ? ROWS / topk : REQS;
    for (int level = 0; level < levels; level++) {
        float *l = d->logits->p[0];
        for (int i = 0; i < ROWS * DV; i++)
            l[i] = rng_below(&t->rng, 500) ? (float)rng_normal(&t->rng) * 3 : NAN;
        twin_push(t, d->logits);
        BOTH(t, draft_pick,
             SET({.s = slots_of(w, side),
                  .t = {.tok = P(d->tok),
                        .parent = P(d->parent),
                        .score = P(d->score),
                        .beam = P(d->beam),
                        .beam_anc = P(d->beam_anc)},
                  .out = rows_of(w, side),
                  .src = P(d->src),
                  .req_slot = P(w->req_slot),
                  .tail = P(d->tail),
                  .logits = P(d->logits),
                  .ldl = DV,
                  .d2t = map ? P(d->d2t) : NULL,
                  .work = P(d->work),
                  .q = topk == 1 ? P(d->q) : NULL,
                  .q_steps = 5,
                  .reqs = reqs,
                  .topk = topk,
                  .level = level,
                  .vocab = DV,
                  .shift = map,
                  .last = level == levels - 1}));
        twin_near(t, d->score, REQS * LIM_DRAFT_NODES, 1e-5f, 1e-6f, "draft_pick scores");
        twin_near(t, d->q, S * 5 * V, 1e-9f, 1e-6f, "draft_pick q");
        struct twin *same[] = {d->tok, d->parent, d->beam, d->beam_anc, d->src};
        for (size_t i = 0; i < ARRAY_LEN(same); i++)
            twin_same(t, same[i], same[i]->bytes, "draft_pick");
        world_same(w, "draft_pick");
    }
    BOTH(t, draft_build,
         SET({.s = slots_of(w, side),
              .t = {.tok = P(d->tok), .parent = P(d->parent), .score = P(d->score)},
              .req_slot = P(w->req_slot),
              .tail = P(d->tail),
              .reqs = reqs,
              .topk = topk,
              .levels = levels,
              .rows = 20}));
    world_same(w, "draft_build");
}

static void draft_rows(struct world *w, struct draft_twin *d)
{
    struct twins *t = &w->t;
    BOTH(t, draft_begin,
         SET({.s = slots_of(w, side),
              .out = rows_of(w, side),
              .req_slot = P(w->req_slot),
              .req_gen = P(w->req_gen),
              .acc = acc_of(w, side),
              .src = P(d->src),
              .tail = P(d->tail),
              .reqs = REQS,
              .each = 3,
              .shift = 1}));
    world_same(w, "draft_begin");
    twin_same(t, d->src, d->src->bytes, "draft_begin src");
    twin_same(t, d->tail, d->tail->bytes, "draft_begin tail");
    static const struct {
        int topk, levels;
    } shapes[] = {{1, 5}, {2, 4}, {4, 3}, {12, 2}};
    for (size_t i = 0; i < ARRAY_LEN(shapes); i++)
        draft_round(w, d, shapes[i].topk, shapes[i].levels, i % 2);
}

START_TEST(speculation)
{
    struct world w = {0};
    struct draft_twin d = {0};
    world_open(&w);
    struct twins *t = &w.t;
    world_start(&w);
    struct twin **ints_of[] = {&d.tok, &d.parent, &d.score};
    for (int i = 0; i < 3; i++)
        *ints_of[i] = twin_new(t, REQS * LIM_DRAFT_NODES * sizeof(int32_t));
    d.beam = twin_new(t, REQS * LIM_SPEC_TOPK * sizeof(int32_t));
    d.beam_anc = twin_new(t, REQS * LIM_SPEC_TOPK * sizeof(uint64_t));
    d.src = twin_new(t, ROWS * sizeof(int32_t));
    struct twin **per_req[] = {&d.tail, &d.keep_row, &d.keep_slot};
    for (int i = 0; i < 3; i++)
        *per_req[i] = twin_new(t, REQS * sizeof(int32_t));
    d.logits = twin_new(t, (size_t)ROWS * DV * sizeof(float));
    d.work = twin_nans(t, (size_t)ROWS * DV * 4);
    d.q = twin_new(t, S * 5 * V * sizeof(float));
    d.d2t = twin_new(t, DV * sizeof(int32_t));
    for (int i = 0; i < DV; i++)
        ((int32_t *)d.d2t->p[0])[i] = 3 * i + 2;
    twin_push(t, d.d2t);
    for (int i = 0; i < S - 1; i++) {
        ((int32_t *)w.req_slot->p[0])[i] = i + 1;
        ((int32_t *)w.req_gen->p[0])[i] = 100 + i - (i == 4);
        ((int32_t *)w.req_cap->p[0])[i] = 1 + i % 3;
        for (int j = 0; j < LEN; j++)
            ((int32_t *)w.hist->p[0])[(i + 1) * LEN + j] = (int32_t)rng_below(&t->rng, 3);
    }
    struct twin *push[] = {w.req_slot, w.req_gen, w.req_cap, w.hist};
    for (size_t i = 0; i < ARRAY_LEN(push); i++)
        twin_push(t, push[i]);
    struct twin *cache = twin_rand(t, (size_t)3 * 48 * 16 * 20, 1);
    struct twin *stamps = twin_new(t, 3 * 4 * sizeof(int64_t));
    for (int round = 0; round < (twin_small() ? 2 : 6); round++) {
        for (int s = 1; s < S; s++) {
            ((int32_t *)w.live->p[0])[s] = s != 3;
            ((int32_t *)w.len->p[0])[s] = 20 + s + 3 * round;
            ((int32_t *)w.n_out->p[0])[s] = 1;
            world_tree(&w, s, 1 + (s + round) % 7);
            for (int j = 0; j < 7; j++)
                ((int32_t *)w.draft->p[0])[s * LIM_ROWS_PER_REQ + j] =
                    (int32_t)rng_below(&t->rng, 2);
        }
        world_push_trees(&w);
        twin_push(t, w.live);
        twin_push(t, w.len);
        twin_push(t, w.n_out);
        for (int i = 0; i < ROWS; i++)
            ((struct sample_out *)w.sample->p[0])[i].token = (int32_t)rng_below(&t->rng, 2);
        twin_push(t, w.sample);
        do_rows_build(&w, true);
        do_rows_place(&w, w.drf_first, 0);
        do_accept(&w, NULL, false);
        BOTH(t, kv_move,
             SET({.cache = P(cache),
                  .dt = DT_F32,
                  .width = 20,
                  .n_layer = 3,
                  .layer_rows = 48 * 16,
                  .table = P(w.table),
                  .pages_max = 4,
                  .page = 16,
                  .req_slot = P(w.req_slot),
                  .req_row0 = P(w.req_row0),
                  .acc = acc_of(&w, side),
                  .reqs = REQS}));
        twin_same(t, cache, cache->bytes, "kv_move");
        BOTH(t, kv_move,
             SET({.cache = P(cache),
                  .dt = DT_F8E4M3,
                  .width = 20,
                  .n_layer = 3,
                  .layer_rows = 48 * 16,
                  .table = P(w.table),
                  .pages_max = 4,
                  .page = 16,
                  .req_slot = P(w.req_slot),
                  .req_row0 = P(w.req_row0),
                  .acc = acc_of(&w, side),
                  .reqs = REQS}));
        twin_same(t, cache, cache->bytes, "kv_move fp8");
        BOTH(t, draft_ngram,
             SET({.s = slots_of(&w, side),
                  .req_slot = P(w.req_slot),
                  .req_gen = P(w.req_gen),
                  .reqs = REQS,
                  .n_min = 2,
                  .n_max = 4,
                  .steps = 5,
                  .more = round % 3,
                  .each = 2}));
        world_same(&w, "draft_ngram");
        BOTH(t, draft_fill,
             SET({.s = slots_of(&w, side),
                  .in = rows_of(&w, side),
                  .out = {.tok = P(w.first),
                          .slot = P(w.last),
                          .pos = P(w.wslot),
                          .req = P(d.logits),
                          .at = (int32_t *)P(d.logits) + ROWS,
                          .parent = (int32_t *)P(d.logits) + 2 * ROWS,
                          .anc = (uint64_t *)P(d.logits) + 2 * ROWS,
                          .row0 = (int32_t *)P(d.logits) + 6 * ROWS},
                  .req_slot = P(w.req_slot),
                  .req_gen = P(w.req_gen),
                  .req_row0 = P(w.req_row0),
                  .req_n = P(w.req_n),
                  .src = P(d.src),
                  .keep_row = P(d.keep_row),
                  .keep_slot = P(d.keep_slot),
                  .reqs = REQS,
                  .rows = ROWS,
                  .shift = 1,
                  .saved0 = 500}));
        world_same(&w, "draft_fill");
        twin_same(t, d.logits, 7 * ROWS * sizeof(int32_t), "draft_fill rows");
        twin_same(t, d.src, d.src->bytes, "draft_fill src");
        twin_same(t, d.keep_row, d.keep_row->bytes, "draft_fill keep");
        twin_same(t, d.keep_slot, d.keep_slot->bytes, "draft_fill keep");
        draft_rows(&w, &d);
        BOTH(t, spec_note,
             SET({.s = slots_of(&w, side),
                  .req_slot = P(w.req_slot),
                  .req_gen = P(w.req_gen),
                  .ring = P(w.ring),
                  .step = P(w.step),
                  .ring_depth = 3,
                  .ring_stride = REQS,
                  .reqs = REQS}));
        twin_same(t, w.ring, w.ring->bytes, "records");
        BOTH(t, stamp,
             SET({.out = P(stamps),
                  .step = P(w.step),
                  .depth = 3,
                  .stride = 4,
                  .index = round % 2}));
    }
    int64_t got[12];
    struct err e = {0};
    ck_assert_int_eq(dev_cuda.copy_out(t->gpu, got, stamps->p[1], sizeof got, &e), OK);
    for (int i = 0; i < 12; i++)
        ck_assert(i == 4 || i == 5 ? got[i] > 0 : got[i] == 0);
    ck_assert(got[5] > got[4]); /* the later round's */
    twins_close(t);
}
END_TEST

/* Chains of three rows, drafts that are often right, distributions of any kind. */
START_TEST(ratio_rejection)
{
    struct world w = {0};
    world_open(&w);
    struct twins *t = &w.t;
    world_start(&w);
    struct twin *q = twin_new(t, S * 2 * V * sizeof(float));
    struct twin *logits = twin_rand(t, (size_t)ROWS * V, 3);
    int changed = 0;
    for (int round = 0; round < (twin_small() ? 2 : 8); round++) {
        for (int s = 1; s < S; s++) {
            int32_t *draft = (int32_t *)w.draft->p[0] + s * LIM_ROWS_PER_REQ;
            ((int32_t *)w.req_slot->p[0])[s - 1] = s;
            ((int32_t *)w.req_gen->p[0])[s - 1] = 99 + s;
            ((int32_t *)w.len->p[0])[s] = 14 + round;
            ((int32_t *)w.n_out->p[0])[s] = 3 + round;
            do
                world_tree(&w, s, 3);
            while (((int32_t *)w.parent->p[0])[s * LIM_ROWS_PER_REQ + 1] != 1);
            for (int j = 0; j < 2; j++) {
                float *row = (float *)q->p[0] + (s * 2 + j) * V;
                draft[j] = (int32_t)rng_below(&t->rng, V);
                for (int x = 0; x < V; x++)
                    row[x] = (float)rng_unit(&t->rng) * 2 / V;
                row[draft[j]] = (float)rng_unit(&t->rng) * (rng_below(&t->rng, 2) ? 1e-5f : 0.9f);
            }
        }
        world_push_trees(&w);
        struct twin *push[] = {w.req_slot, w.req_gen, w.len, w.n_out, q};
        for (size_t i = 0; i < ARRAY_LEN(push); i++)
            twin_push(t, push[i]);
        do_rows_build(&w, false);
        do_sample(&w, logits, NULL, ROWS);
        struct sample_out *was = mem_dup(w.sample->p[0], w.sample->bytes), *c = w.sample->p[0];
        BOTH(t, reject,
             SET({.s = slots_of(&w, side),
                  .rows = rows_of(&w, side),
                  .logits = P(logits),
                  .ldl = V,
                  .q = P(q),
                  .req_slot = P(w.req_slot),
                  .req_gen = P(w.req_gen),
                  .req_row0 = P(w.req_row0),
                  .req_n = P(w.req_n),
                  .sample = P(w.sample),
                  .work = P(w.work),
                  .reqs = REQS,
                  .vocab = V,
                  .q_steps = 2}));
        samples_same(&w, ROWS, "reject");
        for (int i = 0; i < ROWS; i++)
            changed += c[i].token != was[i].token;
        mem_free(was);
    }
    ck_assert_int_gt(changed, twin_small() ? 0 : 10);
    twins_close(t);
}
END_TEST

Suite *suite_gpu_slots(void);
Suite *suite_gpu_slots(void)
{
    Suite *s = suite_create("gpu_slots");
    TWIN_CASE(s, slots_and_sampling, 1);
    TWIN_CASE(s, speculation, 1);
    TWIN_CASE(s, ratio_rejection, 1);
    return s;
}
