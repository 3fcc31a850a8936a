/* One step on the device: updates, then the decode graphs, then the prefill pass. The decode part
 * is a replay of recorded operations on fixed addresses; the host hands over slot numbers and a
 * bucket and reads nothing back but the pinned records.
 *
 * Graphs: a verify (up to acceptance and prompt lookup) for every bucket of rows, and for every
 * bucket of requests with equally many rows; a round of drafts for every bucket of requests and
 * depth; and, for up to COMBINED_REQS requests with all their rows, both in one. */
#include "engine/worker/runner.h"

#include <string.h>

#include "engine/base/check.h"
#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"

enum { BUCKETS_MAX = 48, COMBINED_REQS = 16 };

#define RUN(r, op, args)                                                                           \
    do {                                                                                           \
        int run_r_ = (r)->ops->ops->op((r)->d, (args));                                            \
        if (run_r_ < 0)                                                                            \
            return FAIL(e, run_r_, "operation " #op " failed on device %s", (r)->ops->name);       \
    } while (0)

/* ---- the two passes ---- */

static int place_rows(struct runner *r, int rows, struct err *e)
{
    for (int g = 0; g < r->kv.n_group; g++) {
        struct op_rows_place a = {
            .slot = r->b.rows.slot,
            .pos = r->b.rows.pos,
            .tok = r->b.rows.tok,
            .at = r->b.rows.at,
            .first = r->b.rows.first[g],
            .last = r->b.rows.last[g],
            .wslot = r->b.rows.wslot[g],
            .table = r->kv.view[g].table,
            .rows = rows,
            .pages_max = r->kv.view[g].pages_max,
            .page = r->kv.view[g].page,
            .window = r->info.model.group[g].window,
        };
        RUN(r, rows_place, &a);
    }
    return OK;
}

static int forward(struct runner *r, enum role role, int rows, struct err *e)
{
    struct fwd f = {
        .role = role,
        .mask = r->need[role][0].mask,
        .rows = rows,
        .row = &r->b.rows,
        .kv = r->kv.view,
        .attn = r->attn[role],
        .hidden = r->b.hidden,
        .tap = r->info.draft.tap,
        .n_tap = r->info.draft.n_tap,
        .taps = r->taps,
    };
    return model_forward(r->model, &f, e);
}

static int plan_attention(struct runner *r, enum role role, int reqs, int rows, int qlen,
                          struct err *e)
{
    for (int g = 0; g < r->kv.n_group; g++) {
        struct graph_dims dims = {
            .reqs = reqs,
            .seqs = reqs,
            .rows = rows,
            .qlen = qlen,
            .pages = r->kv.view[g].pages_max,
            .role = role,
        };
        TRY(r->attn[role][g].b->plan(r->attn[role][g].a, &dims, e));
    }
    return OK;
}

static struct spec_step spec_step(struct runner *r, int reqs, int rows, int qlen, bool prefill)
{
    return (struct spec_step){
        .rows = r->b.rows,
        .sample = r->b.sample,
        .req_slot = prefill ? r->b.req_slot : r->b.in.req_slot,
        .req_gen = prefill ? r->b.req_gen : r->b.in.req_gen,
        .req_row0 = r->b.req_row0,
        .req_n = r->b.req_n,
        .last_sample = r->b.last_sample,
        .ring = prefill ? r->b.ring_prefill : r->b.ring_decode,
        .step = r->b.in.step,
        .acc = r->b.acc,
        .hidden = r->b.hidden,
        .taps = r->taps,
        .stamps = r->stamps,
        .ring_depth = RING_DEPTH,
        .ring_stride = r->b.c.reqs_max,
        .reqs = reqs,
        .n_row = rows,
        .qlen = qlen,
        .prefill = prefill,
    };
}

static int sample_rows(struct runner *r, const int32_t *idx, int m, struct err *e)
{
    struct op_sample a = {
        .s = r->b.slots,
        .rows = r->b.rows,
        .logits = r->b.logits,
        .ldl = r->b.c.vocab,
        .idx = idx,
        .out = r->b.sample,
        .work = r->b.sample_work,
        .m = m,
        .vocab = r->b.c.vocab,
    };
    RUN(r, sample, &a);
    return OK;
}

/* What is accepted, and so every rank's state, is decided by rank 0's samples. */
static int agree(struct runner *r, int m, struct err *e)
{
    if (comm_bcast(r->conf.comm, r->d, r->b.sample, (size_t)m * sizeof *r->b.sample) < 0)
        return FAIL(e, E_CANCELED, "another rank failed");
    return OK;
}

/* Times of the parts of a step, for speculation: what it costs and how deep it pays. */
static struct op_stamp stamp(const struct runner *r, enum stamp which)
{
    if (r->spec_env.shape.rows == 1)
        return (struct op_stamp){0};
    return (struct op_stamp){r->stamps, r->b.in.step, RING_DEPTH, N_STAMPS, which};
}

/* The cache entries of an accepted path become consecutive. */
static int move_paths(struct runner *r, int reqs, struct err *e)
{
    for (int g = 0; g < r->kv.n_group; g++) {
        const struct kv_view *v = &r->kv.view[g];
        const struct kv_group *kg = &r->info.model.group[g];
        struct op_kv_move a = {.cache = v->k,
                               .dt = v->dt,
                               .width = kg->k_width,
                               .n_layer = kg->n_layer,
                               .layer_rows = (int64_t)v->n_page * v->page,
                               .table = v->table,
                               .pages_max = v->pages_max,
                               .page = v->page,
                               .req_slot = r->b.in.req_slot,
                               .req_row0 = r->b.req_row0,
                               .acc = r->b.acc,
                               .reqs = reqs};
        RUN(r, kv_move, &a);
        if (!v->v)
            continue;
        a.cache = v->v;
        a.width = kg->v_width;
        RUN(r, kv_move, &a);
    }
    return OK;
}

static int reject(struct runner *r, int reqs, struct err *e)
{
    struct op_reject a = {.s = r->b.slots,
                          .rows = r->b.rows,
                          .logits = r->b.logits,
                          .ldl = r->b.c.vocab,
                          .q = r->draft_q,
                          .req_slot = r->b.in.req_slot,
                          .req_gen = r->b.in.req_gen,
                          .req_row0 = r->b.req_row0,
                          .req_n = r->b.req_n,
                          .sample = r->b.sample,
                          .work = r->b.sample_work,
                          .reqs = reqs,
                          .vocab = r->b.c.vocab,
                          .q_steps = r->spec_env.shape.steps};
    RUN(r, reject, &a);
    return OK;
}

/* Prompt lookup of the requests that asked for it. */
static int look_up(struct runner *r, int reqs, struct err *e)
{
    const struct spec_shape *shape = &r->spec_env.shape;
    struct op_draft_ngram a = {.s = r->b.slots,
                               .req_slot = r->b.in.req_slot,
                               .req_gen = r->b.in.req_gen,
                               .reqs = reqs,
                               .n_min = shape->ngram_min,
                               .n_max = shape->ngram_max,
                               .steps = shape->steps,
                               .more = shape->ngram_more,
                               .each = shape->ngram_each};
    RUN(r, draft_ngram, &a);
    return OK;
}

/* Every verify of a server whose algorithm it is looks up. Where a drafter is, few requests ask for
 * it: then it is not recorded but follows the step, when one of them has such a request. */
static bool looks_up_always(const struct runner *r)
{
    return r->spec_env.shape.ngram_max && !r->algo->propose;
}

/* From slots to ring records. */
static int verify(struct runner *r, const struct graph_key *k, struct err *e)
{
    const struct spec_shape *shape = &r->spec_env.shape;
    struct op_rows_build rb = {
        .s = r->b.slots,
        .out = r->b.rows,
        .req_slot = r->b.in.req_slot,
        .req_gen = r->b.in.req_gen,
        .req_cap = r->b.in.req_cap,
        .req_row0 = r->b.req_row0,
        .req_n = r->b.req_n,
        .reqs = k->reqs,
        .rows = k->rows,
        .stamp = stamp(r, STAMP_BEGIN),
    };
    TRY(plan_attention(r, TGT_VERIFY, k->reqs, k->rows, k->qlen, e));
    RUN(r, rows_build, &rb);
    TRY(place_rows(r, k->rows, e));
    TRY(forward(r, TGT_VERIFY, k->rows, e));
    TRY(model_logits(r->model, r->b.hidden, k->rows, r->b.logits, e));
    TRY(sample_rows(r, NULL, k->rows, e));
    if (shape->ratio)
        TRY(reject(r, k->reqs, e));
    TRY(agree(r, k->rows, e));
    struct spec_step st = spec_step(r, k->reqs, k->rows, shape->rows, false);
    TRY(spec_accept(&r->spec_env, &st, e));
    if (shape->topk > 1)
        TRY(move_paths(r, k->reqs, e));
    return looks_up_always(r) ? look_up(r, k->reqs, e) : OK;
}

static int draft(struct runner *r, const struct graph_key *k, enum spec_part part, struct err *e)
{
    struct spec_step st = spec_step(r, k->reqs, k->rows, r->spec_env.shape.rows, false);
    st.part = part;
    if (r->algo->plan)
        TRY(r->algo->plan(r->spec, k->reqs, k->variant, e));
    return r->algo->propose(r->spec, &st, k->variant, e);
}

/* Tells the host how many rows wait: the last work of a decode step that speculates. */
static int note_rows(struct runner *r, int reqs, struct op_stamp last, struct err *e)
{
    if (r->spec_env.shape.rows == 1)
        return OK;
    struct op_spec_note a = {.s = r->b.slots,
                             .req_slot = r->b.in.req_slot,
                             .req_gen = r->b.in.req_gen,
                             .ring = r->b.ring_decode,
                             .step = r->b.in.step,
                             .ring_depth = RING_DEPTH,
                             .ring_stride = r->b.c.reqs_max,
                             .reqs = reqs,
                             .stamp = last};
    RUN(r, spec_note, &a);
    return OK;
}

/* The body of a decode graph. */
static int graph_body_of(void *ud, const struct graph_key *k, struct err *e)
{
    struct runner *r = ud;
    if (k->role == TGT_VERIFY)
        TRY(verify(r, k, e));
    if (k->variant)
        TRY(draft(r, k, k->role == DRF_DECODE ? SPEC_ROUND_LOOP : SPEC_ROUND, e));
    return note_rows(r, k->reqs, stamp(r, k->variant ? STAMP_DRAFT : STAMP_ACCEPT), e);
}

static int copy_in(struct runner *r, void *dst, const void *src, size_t n, size_t size,
                   struct err *e)
{
    return n ? r->ops->copy_in(r->d, dst, src, n * size, e) : OK;
}

/* What the scheduler said: one copy, and one more when requests start. */
static int bring_in(struct runner *r, struct step *s, int reqs, struct err *e)
{
    struct batch *b = &r->b;
    struct batch_in in;
    CHECK(s->n_stop <= b->c.slots_max && s->n_start <= b->c.slots_max && s->n_set <= s->set_max);
    batch_in(&in, &b->c, s->in);
    *in.step = s->no;
    *in.n_start = s->n_start;
    *in.n_stop = s->n_stop;
    *in.n_set = s->n_set;
    const void *end = reqs ? (void *)(in.req_cap + reqs) : in.n_set + 1;
    if (s->n_stop)
        end = in.stop + s->n_stop;
    if (s->n_set)
        end = in.set + s->n_set;
    TRY(copy_in(r, b->in_mem, s->in, (size_t)((const char *)end - (char *)s->in), 1, e));
    return copy_in(r, b->in.start, s->start, (size_t)s->n_start, sizeof *s->start, e);
}

static int apply_updates(struct runner *r, const struct step *s, struct err *e)
{
    if (!s->n_stop && !s->n_start && !s->n_set)
        return OK;
    struct op_slot_update a = {
        .s = r->b.slots,
        .start = r->b.in.start,
        .n_start = r->b.in.n_start,
        .stop = r->b.in.stop,
        .n_stop = r->b.in.n_stop,
        .set = r->b.in.set,
        .n_set = r->b.in.n_set,
        .n_group = r->kv.n_group,
        .drf_begin = r->info.draft.shift,
    };
    for (int g = 0; g < r->kv.n_group; g++) {
        a.table[g] = r->kv.table[g];
        a.pages_max[g] = r->kv.view[g].pages_max;
    }
    RUN(r, slot_update, &a);
    return OK;
}

static int run_graph(struct runner *r, const struct graph_key *k, struct err *e)
{
    if (r->eager || r->timing)
        return graph_pool_eager(r->graphs, k, e);
    if (k->role == TGT_VERIFY)
        TRY(plan_attention(r, TGT_VERIFY, k->reqs, k->rows, k->qlen, e));
    if (k->variant && r->algo->plan)
        TRY(r->algo->plan(r->spec, k->reqs, k->variant, e));
    return graph_pool_replay(r->graphs, k, e);
}

/* A round whose loop alone is a graph. */
static int run_parts(struct runner *r, const struct graph_key *round, struct err *e)
{
    struct graph_key want = *round;
    want.role = DRF_DECODE;
    const struct graph_key *k = graph_pool_fit(r->graphs, &want);
    CHECK(k);
    TRY(r->algo->plan(r->spec, round->reqs, round->variant, e));
    TRY(draft(r, round, SPEC_ROUND_EXTEND, e));
    return graph_pool_replay(r->graphs, k, e);
}

/* The graphs of a decode. */
struct launch {
    const struct graph_key *verify, *both, *round; /* both: one launch; else verify, then round */
    int reqs;                                      /* entries of the lists that they read */
};

/* One launch when there is a combined graph no larger than the verify alone, else two. */
static void choose_graphs(struct runner *r, const struct step *s, struct launch *l)
{
    struct graph_key want = {.role = TGT_VERIFY, .reqs = s->n_req, .rows = s->rows_max};
    for (int i = 0; i < s->n_req; i++)
        want.qlen = s->req_cap[i] > want.qlen ? s->req_cap[i] : want.qlen;
    *l = (struct launch){.verify = graph_pool_fit(r->graphs, &want)};
    CHECK(l->verify); /* the planner's bounds are the pool's */
    l->reqs = l->verify->reqs;
    if (!s->depth || !s->n_draft)
        return;
    want.variant = s->depth;
    if (s->n_draft == s->n_req && !r->apart && !r->parts)
        l->both = graph_pool_fit(r->graphs, &want);
    if (l->both && l->both->rows > l->verify->rows)
        l->both = NULL;
    want.role = DRF_EXTEND;
    want.qlen = 0;
    want.reqs = s->n_draft;
    want.rows = s->n_draft * spec_extend_rows(&r->spec_env.shape);
    l->round = graph_pool_fit(r->graphs, &want);
    CHECK(l->round);
    l->reqs = l->round->reqs > l->reqs ? l->round->reqs : l->reqs;
    l->reqs = l->both && l->both->reqs > l->reqs ? l->both->reqs : l->reqs;
}

static int decode(struct runner *r, struct step *s, const struct launch *l, struct err *e)
{
    s->decode_rec = r->b.ring_decode + (s->no % RING_DEPTH) * r->b.c.reqs_max;
    TRY(run_graph(r, l->both ? l->both : l->verify, e));
    if (l->round && !l->both)
        TRY(r->parts ? run_parts(r, l->round, e) : run_graph(r, l->round, e));
    if (!s->lookup || looks_up_always(r))
        return OK;
    TRY(look_up(r, s->n_req, e));
    return note_rows(r, s->n_req, (struct op_stamp){0}, e);
}

/* Log probabilities of the prompt's own tokens, logits_max rows at a time. This path waits for the
 * device; it exists for echo and evaluation only. */
static int score_prompt(struct runner *r, struct step *s, struct err *e)
{
    struct batch *b = &r->b;
    int32_t *row = s->host, *tok = row + b->c.rows_max, *top = tok + b->c.rows_max;
    for (int c = 0, i = 0; c < s->n_chunk;) {
        int m = 0;
        for (; c < s->n_chunk && m < b->c.logits_max;) {
            const struct prefill_chunk *ch = &s->chunk[c];
            if (ch->n_score < 0 || i >= ch->n) {
                c++;
                i = 0;
                continue;
            }
            if (s->score_tok[ch->row0 + i] >= 0) {
                row[m] = ch->row0 + i;
                tok[m] = s->score_tok[ch->row0 + i];
                top[m++] = ch->n_score;
            }
            i++;
        }
        if (!m)
            break;
        TRY(copy_in(r, b->gather, row, (size_t)m, sizeof *row, e));
        TRY(copy_in(r, b->score_tok, tok, (size_t)m, sizeof *tok, e));
        TRY(copy_in(r, b->score_top, top, (size_t)m, sizeof *top, e));
        struct op_gather ga = {
            .out = b->hidden_out, .x = b->hidden, .idx = b->gather, .rows = m, .dim = b->c.hidden};
        RUN(r, gather, &ga);
        TRY(model_logits(r->model, b->hidden_out, m, b->logits, e));
        struct op_score sc = {b->logits, b->c.vocab, b->score_tok, b->score_top,
                              b->score,  m,          b->c.vocab};
        RUN(r, score, &sc);
        TRY(r->ops->sync(r->d, e));
        for (int j = 0; j < m; j++)
            s->score[row[j]] = b->score[j];
    }
    return OK;
}

static int prefill(struct runner *r, struct step *s, struct err *e)
{
    struct batch *b = &r->b;
    size_t rows_max = (size_t)b->c.rows_max;
    int32_t *slot = s->host, *pos = slot + rows_max, *req = pos + rows_max;
    /* reqs_max each; not the decode's lists, whose copy may still be on its way */
    size_t reqs = (size_t)b->c.reqs_max;
    int32_t *rs = req + rows_max, *rg = rs + reqs;
    int32_t *row0 = rg + reqs, *n = row0 + reqs, *last = n + reqs, *gather = last + reqs;
    int m = 0, longest = 0;
    bool scored = false, drafted = false;
    CHECK(s->n_chunk <= b->c.reqs_max && s->n_row <= r->dims[TGT_PREFILL].rows);
    for (int c = 0; c < s->n_chunk; c++) {
        const struct prefill_chunk *ch = &s->chunk[c];
        CHECK(ch->row0 >= 0 && ch->n > 0 && ch->row0 + ch->n <= s->n_row);
        for (int i = 0; i < ch->n; i++) {
            slot[ch->row0 + i] = ch->slot;
            pos[ch->row0 + i] = ch->pos0 + i;
            req[ch->row0 + i] = c;
        }
        rs[c] = ch->slot;
        rg[c] = ch->gen;
        row0[c] = ch->row0;
        n[c] = ch->n;
        last[c] = ch->last ? m : -1;
        if (ch->last)
            gather[m++] = ch->row0 + ch->n - 1;
        scored |= ch->n_score >= 0;
        drafted |= ch->draft;
        longest = ch->n > longest ? ch->n : longest;
    }
    size_t nr = (size_t)s->n_row, nc = (size_t)s->n_chunk;
    TRY(copy_in(r, b->rows.tok, s->tok, nr, sizeof *slot, e));
    TRY(copy_in(r, b->rows.slot, slot, nr, sizeof *slot, e));
    TRY(copy_in(r, b->rows.pos, pos, nr, sizeof *slot, e));
    TRY(copy_in(r, b->rows.at, pos, nr, sizeof *slot, e));
    TRY(copy_in(r, b->rows.req, req, nr, sizeof *slot, e));
    TRY(copy_in(r, b->req_slot, rs, nc, sizeof *slot, e));
    TRY(copy_in(r, b->req_gen, rg, nc, sizeof *slot, e));
    TRY(copy_in(r, b->req_row0, row0, nc, sizeof *slot, e));
    TRY(copy_in(r, b->req_n, n, nc, sizeof *slot, e));
    TRY(copy_in(r, b->last_sample, last, nc, sizeof *slot, e));
    TRY(copy_in(r, b->gather, gather, (size_t)m, sizeof *slot, e));
    s->prefill_rec = b->ring_prefill + (s->no % RING_DEPTH) * b->c.reqs_max;

    struct op_rows_note note = {b->slots, b->rows.tok, b->rows.slot, b->rows.pos, s->n_row};
    TRY(plan_attention(r, TGT_PREFILL, s->n_chunk, s->n_row, longest, e));
    RUN(r, rows_note, &note);
    TRY(place_rows(r, s->n_row, e));
    TRY(forward(r, TGT_PREFILL, s->n_row, e));
    if (m) {
        struct op_gather ga = {
            .out = b->hidden_out, .x = b->hidden, .idx = b->gather, .rows = m, .dim = b->c.hidden};
        RUN(r, gather, &ga);
        TRY(model_logits(r->model, b->hidden_out, m, b->logits, e));
        TRY(sample_rows(r, b->gather, m, e));
        TRY(agree(r, m, e));
    }
    struct spec_step st = spec_step(r, s->n_chunk, s->n_row, longest, true);
    TRY(spec_accept(&r->spec_env, &st, e));
    if (drafted && r->algo->prefill)
        TRY(r->algo->prefill(r->spec, &st, s->depth, e));
    return scored ? score_prompt(r, s, e) : OK;
}

static int part_begin(struct runner *r, struct err *e)
{
    return r->timing ? timed_begin(r->d, e) : OK;
}

static int part_end(struct runner *r, enum step_part p, struct err *e)
{
    return r->timing ? timed_end(r->d, &r->op_times[p], e) : OK;
}

int runner_submit(struct runner *r, struct step *s)
{
    struct err *e = &s->err;
    *e = (struct err){0};
    s->decode_rec = s->prefill_rec = NULL;
    int64_t *stamps = r->stamps + s->no % RING_DEPTH * N_STAMPS;
    memset(stamps, 0, N_STAMPS * sizeof *stamps);
    s->stamps = stamps;
    s->submit_us = clock_us();
    r->timing = __atomic_load_n(&r->time_ops, __ATOMIC_RELAXED);
    struct launch l = {0};
    int ret = OK;
    TRY_OUT(runner_step_same(r, s, e));
    if (s->n_req)
        choose_graphs(r, s, &l);
    for (int i = s->n_req; i < l.reqs; i++) { /* every replay rewrites all inputs */
        s->req_slot[i] = 0;
        s->req_gen[i] = 0;
        s->req_cap[i] = 1;
    }
    TRY_OUT(bring_in(r, s, l.reqs, e));
    TRY_OUT(apply_updates(r, s, e));
    if (s->n_req) {
        TRY_OUT(part_begin(r, e));
        TRY_OUT(decode(r, s, &l, e));
        TRY_OUT(part_end(r, PART_DECODE, e));
    }
    if (s->n_chunk) {
        TRY_OUT(part_begin(r, e));
        TRY_OUT(prefill(r, s, e));
        TRY_OUT(part_end(r, PART_PREFILL, e));
    }
    TRY_OUT(r->ops->mark(r->d, s->head, s->no, e));
out:
    if (ret < 0 && e->code == 0)
        FAIL(e, ret, "the device failed");
    if (ret < 0)
        comm_poison(r->conf.comm); /* the others must not wait for us */
    return ret;
}

int runner_poll(struct runner *r, struct step *s)
{
    bool done = __atomic_load_n(s->head, __ATOMIC_ACQUIRE) == s->no;
    if (!done && s->err.code == 0)
        done = r->ops->query(r->d, &s->err) < 0;
    if (!done && s->err.code == 0)
        return 0;
    s->device_us = clock_us() - s->submit_us;
    return 1;
}

int runner_step(struct runner *r, struct step *s)
{
    int ret = runner_submit(r, s);
    while (!runner_poll(r, s))
        ;
    return ret < 0 ? ret : s->err.code;
}

/* ---- opening ---- */

static int open_attention(struct runner *r, struct err *e)
{
    for (int i = 0; i < N_ROLES; i++)
        for (int g = 0; g < LIM_KV_GROUPS; g++) {
            struct attn_use *u = &r->attn[i][g];
            if (u->b)
                TRY(u->b->open(&u->a, r->d, &r->need[i][g], &r->dims[i], e));
        }
    return OK;
}

static int place(struct runner *r, struct err *e)
{
    const struct model_info *mi = &r->info.model, *di = &r->info.draft;
    const struct worker_conf *c = &r->conf;
    int len = c->len_max + r->spec_env.shape.ahead - 1;
    void *mem = NULL;
    TRY(model_place(r->model, r->ops, r->d, r->sizes.rows_max, c->len_max, e));
    TRY(batch_open(&r->b, &r->sizes, r->ops, r->d, e));
    TRY(kv_pool_open(&r->kv, mi->group, mi->n_group, r->info.n_page, r->info.page, len,
                     c->slots_max + 1, r->ops, r->d, e));
    TRY(r->ops->alloc(r->d, &mem, sizeof *r->stamps * RING_DEPTH * N_STAMPS, DEV_MEM_PINNED, e));
    r->stamps = mem;
    if (!r->drafter)
        return OK;
    TRY(model_place(r->drafter, r->ops, r->d, spec_drafter_rows(&r->spec_env), c->len_max, e));
    if (di->n_tap) {
        TRY(r->ops->alloc(r->d, &mem, runner_tap_bytes(r), DEV_MEM_DEVICE, e));
        r->taps = mem;
    }
    if (r->spec_env.shape.ratio) {
        TRY(r->ops->alloc(r->d, &mem, runner_q_bytes(r), DEV_MEM_DEVICE, e));
        r->draft_q = r->spec_env.q = mem;
    }
    return kv_pool_open_shared(&r->drf_kv, di->group, di->n_group, &r->kv.view[r->share], r->ops,
                               r->d, e);
}

/* Appends a verify without a round unless it is there. */
static int add_verify(struct graph_key *out, int n, int reqs, int rows, int qlen)
{
    for (int i = 0; i < n; i++)
        if (out[i].reqs == reqs && out[i].rows == rows && out[i].qlen == qlen)
            return n;
    out[n] = (struct graph_key){.role = TGT_VERIFY, .reqs = reqs, .rows = rows, .qlen = qlen};
    return n + 1;
}

/* Every bucket of rows, small numbers exactly, of as many requests as can have them; and every
 * bucket of requests with equally many rows, those of each depth and one: these are not padded, and
 * attention cuts its work by the requests and their rows. */
static int verify_keys(struct graph_key *out, const struct spec_shape *s, int reqs)
{
    enum { EXACT = 8 };
    int buckets[BUCKETS_MAX], n = 0, all = reqs * s->rows;
    int m = graph_buckets(all, buckets, BUCKETS_MAX);
    for (int v = 1; v <= EXACT && v < all && s->rows > 1; v++)
        n = add_verify(out, n, v < reqs ? v : reqs, v, s->rows);
    for (int i = 0; i < m; i++)
        n = add_verify(out, n, buckets[i] < reqs ? buckets[i] : reqs, buckets[i], s->rows);
    m = graph_buckets(reqs, buckets, BUCKETS_MAX);
    for (int i = 0; i < m && s->rows > 1; i++) {
        n = add_verify(out, n, buckets[i], buckets[i] * s->rows, s->rows);
        for (int d = s->steps / 2; d >= 1 && s->topk == 1; d /= 2)
            n = add_verify(out, n, buckets[i], buckets[i] * (d + 1), d + 1);
        n = add_verify(out, n, buckets[i], buckets[i], 1);
    }
    return n;
}

/* Depths that rounds are recorded for: all of it, a half, a quarter … one. */
int runner_depth(const struct spec_shape *s, int want)
{
    int d = s->steps;
    while (d > 1 && d / 2 >= want)
        d /= 2;
    return d;
}

int runner_keys(const struct runner *r, struct graph_key *out)
{
    const struct spec_shape *s = &r->spec_env.shape;
    int buckets[BUCKETS_MAX], reqs = r->sizes.reqs_max, n = verify_keys(out, s, reqs);
    if (!r->algo->propose)
        return n;
    int m = graph_buckets(reqs, buckets, BUCKETS_MAX);
    for (int depth = s->steps; depth >= 1; depth /= 2)
        for (int i = 0; i < m; i++) {
            struct graph_key k = {.role = DRF_EXTEND,
                                  .variant = depth,
                                  .reqs = buckets[i],
                                  .rows = buckets[i] * spec_extend_rows(s)};
            out[n++] = k;
            if (r->conf.parts && depth == s->steps) {
                k.role = DRF_DECODE;
                out[n++] = k;
            }
            k.role = TGT_VERIFY;
            k.qlen = s->rows;
            k.rows = buckets[i] * s->rows;
            if (buckets[i] <= COMBINED_REQS)
                out[n++] = k;
        }
    return n;
}

static int record_graphs(struct runner *r, struct err *e)
{
    struct graph_key keys[KEYS_MAX];
    int n = runner_keys(r, keys);
    CHECK(n <= KEYS_MAX);
    int64_t t0 = clock_us();
    TRY(graph_pool_open(&r->graphs, r->ops, r->d, keys, n, r->conf.eager, graph_body_of, r, e));
    r->info.n_graph = 0;
    for (int i = 0; i < N_ROLES; i++) {
        const struct graph_report *t = graph_pool_report(r->graphs, (enum role)i);
        r->info.n_graph += t->n;
        r->info.graph_bytes += t->bytes;
        if (t->eager)
            LOG(LOG_WARN, "worker", "%s runs without graphs: %s", graph_role_name((enum role)i),
                t->why.text);
        else if (t->n)
            LOG(LOG_INFO, "worker", "%d graphs of %s in %.3f s, %.1f MiB", t->n,
                graph_role_name((enum role)i), t->seconds, (double)t->bytes / (1 << 20));
    }
    r->info.record_s = (double)(clock_us() - t0) * 1e-6;
    int64_t left, total;
    r->ops->memory(r->d, &left, &total);
    if (total)
        LOG(LOG_INFO, "worker", "%.2f of %.2f GiB of device memory are left",
            (double)left / (1 << 30), (double)total / (1 << 30));
    return OK;
}

int runner_open(struct runner *r, const struct worker_conf *c, struct err *e)
{
    int ret = OK;
    int64_t t0 = clock_us();
    TRY_OUT(runner_begin(r, c, e));
    TRY_OUT(runner_choose(r, c, e));
    TRY_OUT(runner_probe(r, e));
    r->info.open_s = (double)(clock_us() - t0) * 1e-6;
    t0 = clock_us();
    TRY_OUT(open_attention(r, e));
    TRY_OUT(place(r, e));
    r->spec_env.slots = r->b.slots;
    r->spec_env.kv = r->drf_kv.view;
    r->spec_env.logits = r->b.logits;
    r->spec_env.sample_work = r->b.sample_work;
    if (r->algo->open)
        TRY_OUT(r->algo->open(&r->spec, &r->spec_env, e));
    r->info.load_s = (double)(clock_us() - t0) * 1e-6;
    TRY_OUT(record_graphs(r, e));
    return OK;
out:
    runner_close(r);
    return ret;
}

void runner_close(struct runner *r)
{
    if (!r->ops)
        return;
    graph_pool_close(r->graphs);
    if (r->spec && r->algo->close)
        r->algo->close(r->spec);
    for (int role = 0; role < N_ROLES; role++)
        for (int g = 0; g < LIM_KV_GROUPS; g++)
            if (r->attn[role][g].a)
                r->attn[role][g].b->close(r->attn[role][g].a);
    if (r->d) {
        if (r->taps)
            r->ops->free(r->d, r->taps);
        if (r->draft_q)
            r->ops->free(r->d, r->draft_q);
        if (r->stamps)
            r->ops->free(r->d, r->stamps);
        kv_pool_close(&r->drf_kv, r->ops, r->d);
        kv_pool_close(&r->kv, r->ops, r->d);
        batch_close(&r->b, r->ops, r->d);
        if (r->drafter)
            model_unplace(r->drafter);
        if (r->model)
            model_unplace(r->model);
    }
    model_close(r->drafter);
    model_close(r->model);
    if (r->d && r->conf.time_ops)
        timed_close(r->d);
    if (r->d)
        r->ops->close(r->d);
    *r = (struct runner){0};
}
