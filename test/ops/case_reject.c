/* Contract case of ratio rejection, and the suite "lossless": whole decode loops over a small
 * Markov "model" with a drafter that is another Markov model, ratio rejection and coupled drafting;
 * every emitted token must have the target's distribution given the token before it, by chi-square
 * over more than a million draws each. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "kernels/cpu/fmath.h"
#include "test/ops/world.h"
#include "test/sanitize.h"

/* ---- the rule, row by row ---- */

enum { NV = 24, STEPS = 6, CHAINS = 5 };

struct ent {
    double v;
    int id;
};

static int by_rank(const void *pa, const void *pb)
{
    const struct ent *a = pa, *b = pb;
    return a->v > b->v ? -1 : a->v < b->v ? 1 : a->id - b->id;
}

/* p of a row in double: frequency penalty over the path, temperature, top-k, top-p. */
static void oracle_p(const struct world *w, int row, const float *l, double *p)
{
    int s = w->slot[row];
    const struct slot_params *sp = &w->params[s];
    struct ent e[NV];
    double sum = 0, all = 0, run = 0;
    for (int i = 0; i < NV; i++) {
        int count = w->count[s][i];
        for (int x = row; w->row_parent[x] >= 0; x = w->row_parent[x])
            count += w->tok[x] == i;
        float z = isnan(l[i]) ? -INFINITY : l[i] - (float)count * sp->frequency;
        e[i] = (struct ent){(double)(z / sp->temperature), i};
        p[i] = 0;
    }
    qsort(e, NV, sizeof *e, by_rank);
    int n = sp->top_k > 0 ? sp->top_k : NV, keep = 0;
    for (int i = 0; i < n; i++)
        all += exp(e[i].v - e[0].v);
    while (keep < n) {
        run += exp(e[keep++].v - e[0].v);
        if (run >= (double)sp->top_p * all && sp->top_p < 1)
            break;
    }
    for (int i = 0; i < keep; i++)
        sum += exp(e[i].v - e[0].v);
    for (int i = 0; i < keep; i++)
        p[e[i].id] = exp(e[i].v - e[0].v) / sum;
}

/* The token of a residual draw; -1 when two are too near to tell. */
static int oracle_residual(const double *p, const float *q, uint64_t seed, int pos)
{
    double top = -INFINITY, second = -INFINITY;
    int best = -1;
    for (int i = 0; i < NV; i++) {
        double r = p[i] - (double)q[i];
        double v =
            r > 1e-7 ? log(r) + (double)fm_gumbel(fm_random(seed, pos, i, FM_RESIDUAL)) : -INFINITY;
        if (v > top) {
            second = top;
            top = v;
            best = i;
        } else if (v > second) {
            second = v;
        }
    }
    return top - second < 1e-4 ? -1 : best;
}

struct counts {
    int accepted, rejected, left;
};

/* What the samples of request i must be; `was` holds op_sample's. */
static void check_chain(const struct world *w, const struct sample_out *was, int i,
                        const float *logits, const float *q, struct counts *n)
{
    int s = w->req_slot[i], row0 = w->req_row0[i], last = w->req_n[i] - 1, j = 0;
    const struct slot_params *sp = &w->params[s];
    bool on = i < CHAINS && sp->temperature > 0 && sp->spec_ratio && sp->spec_mode == SPEC_MODEL;
    for (; on && j < last; j++) {
        int row = row0 + j, x = w->tok[row + 1], pos = w->pos[row] + 1;
        const float *qr = q + (s * STEPS + j) * V;
        double p[NV], u = fm_coin(sp->seed, pos);
        bool finite = isfinite(logits[row * NV + 3]);
        if (!finite || !(qr[x] > 0 && qr[x] <= 1.001f))
            break;
        oracle_p(w, row, logits + row * NV, p);
        if (fabs(u * (double)qr[x] - p[x]) < 1e-6)
            return; /* within rounding: either is right */
        if (u * (double)qr[x] < p[x]) {
            ck_assert_int_eq(w->sample[row].token, x);
            n->accepted++;
            continue;
        }
        int y = oracle_residual(p, qr, sp->seed, pos);
        ck_assert_msg(y < 0 || w->sample[row].token == y, "request %d row %d: %d, want %d", i, j,
                      w->sample[row].token, y);
        ck_assert(y < 0 || p[y] > (double)qr[y]);
        n->rejected++;
        j++;
        break;
    }
    for (; j <= last; j++, n->left++)
        ck_assert_int_eq(w->sample[row0 + j].token, was[row0 + j].token);
}

static void reject_one(const struct t_devs *t, struct rng *r, struct counts *n)
{
    struct world *w = world_new();
    float *logits = t_randf(r, ROWS * NV, 1.5), *work = t_randf(r, ROWS * NV * 4, 1);
    float *q = MEM_ARRAY(float, SLOTS *STEPS *V);
    int slots[REQS], gens[REQS];
    for (int i = 0; i < 6; i++) {
        int s = slots[i] = i + 1;
        gens[i] = i == 5 ? 9 : 1; /* the last is stale */
        world_slot(w, s, 1, 3, 4);
        struct slot_params *p = &w->params[s];
        p->seed = rng_u64(r);
        p->temperature = i == 3 ? 0 : 0.6f + (float)rng_unit(r);
        p->top_k = i == 1 ? 9 : 0;
        p->top_p = i == 2 ? 0.8f : 1;
        p->frequency = i == 0 ? 0.7f : 0;
        p->spec_mode = SPEC_MODEL;
        p->spec_ratio = i != 4 || rng_below(r, 2);
        p->n_logprobs = i == 1 ? 2 : -1;
        w->n_rows[s] = 1 + (int)rng_below(r, STEPS + 1);
        for (int j = 0; j < STEPS; j++) {
            double sum = 0, v[NV];
            for (int x = 0; x < NV; x++)
                sum += v[x] = exp(rng_normal(r) * 1.2);
            for (int x = 0; x < NV; x++)
                q[(s * STEPS + j) * V + x] = (float)(v[x] / sum);
            w->draft[s][j] = (int32_t)rng_below(r, NV);
            if (rng_below(r, 12) == 0) /* no probability at all */
                q[(s * STEPS + j) * V + w->draft[s][j]] = rng_below(r, 2) ? 0 : NAN;
        }
    }
    world_reqs(w, slots, gens, 6);
    struct op_rows_build b = {.s = world_slots(w),
                              .out = world_rows(w),
                              .req_slot = w->req_slot,
                              .req_gen = w->req_gen,
                              .req_row0 = w->req_row0,
                              .req_n = w->req_n,
                              .reqs = REQS,
                              .rows = ROWS};
    ck_assert_int_eq(dev_cpu.ops->rows_build(t->d[0], &b), OK);
    for (int row = 0; row < ROWS; row++)
        if (rng_below(r, 15) == 0)
            logits[row * NV + 3] = INFINITY;
    struct op_sample sa = {.s = world_slots(w),
                           .rows = world_rows(w),
                           .logits = logits,
                           .ldl = NV,
                           .out = w->sample,
                           .work = work,
                           .m = ROWS,
                           .vocab = NV};
    ck_assert_int_eq(dev_cpu.ops->sample(t->d[0], &sa), OK);
    struct sample_out *was = mem_dup(w->sample, sizeof w->sample);
    struct op_reject a = {.s = world_slots(w),
                          .rows = world_rows(w),
                          .logits = logits,
                          .ldl = NV,
                          .q = q,
                          .req_slot = w->req_slot,
                          .req_gen = w->req_gen,
                          .req_row0 = w->req_row0,
                          .req_n = w->req_n,
                          .sample = w->sample,
                          .work = work,
                          .reqs = REQS,
                          .vocab = NV,
                          .q_steps = STEPS};
    struct t_out o = {w, sizeof *w};
    t_everywhere(t, "reject", t_call_reject, &a, &o, 1);
    for (int i = 0; i < 6; i++)
        check_chain(w, was, i, logits, q, n);
    for (int row = w->req_row0[1]; row < w->req_row0[1] + w->req_n[1]; row++) {
        const float *l = logits + row * NV;
        double sum = 0, want;
        for (int x = 0; x < NV; x++)
            sum += exp((double)l[x]);
        want = (double)l[w->sample[row].token] - log(sum);
        if (isfinite(l[3]))
            t_close_to("logprob of the sample", &w->sample[row].logprob, &want, 1, TOL_LOGPROB);
    }
    mem_free(was);
    mem_free(w);
    mem_free(logits);
    mem_free(work);
    mem_free(q);
}

void case_reject(const struct t_devs *t, struct rng *r)
{
    struct counts n = {0};
    for (int i = 0; i < 100; i++)
        reject_one(t, r, &n);
    ck_assert_msg(n.accepted > 100 && n.rejected > 100 && n.left > 300, "%d %d %d", n.accepted,
                  n.rejected, n.left);
}

/* ---- decode loops ---- */

enum { MV = 12, MS = 64, DRAFTS = 3, MLEN = 2048, MROWS = MS * (1 + DRAFTS) };
enum { MILLION = SANITIZED ? 52500 : 1050000 }; /* figures are checked in release */

/* Logits given the token before: the target's and the drafter's. */
struct chain {
    float target[MV][MV], draft[MV][MV];
};

struct loop {
    struct dev *d;
    const struct chain *c;
    struct slot_params params;
    struct slot_arrays s;
    struct row_arrays rows, next;
    struct draft_tree tree;
    struct accept_out acc;
    int32_t *req_slot, *req_gen, *req_row0, *req_n, *src, *tail;
    float *logits, *work, *q;
    struct sample_out *sample;
    struct ring_rec *ring;
    int64_t step;
    struct rng rng;
    long seen[MV][MV], drafted, accepted;
};

static struct row_arrays rows_new(int n)
{
    return (struct row_arrays){.tok = MEM_ARRAY(int32_t, n),
                               .slot = MEM_ARRAY(int32_t, n),
                               .pos = MEM_ARRAY(int32_t, n),
                               .req = MEM_ARRAY(int32_t, n),
                               .at = MEM_ARRAY(int32_t, n),
                               .parent = MEM_ARRAY(int32_t, n),
                               .anc = MEM_ARRAY(uint64_t, n),
                               .row0 = MEM_ARRAY(int32_t, n)};
}

static void rows_free(struct row_arrays *r)
{
    mem_free(r->tok);
    mem_free(r->slot);
    mem_free(r->pos);
    mem_free(r->req);
    mem_free(r->at);
    mem_free(r->parent);
    mem_free(r->anc);
    mem_free(r->row0);
}

static void loop_start(struct loop *p, int s)
{
    p->s.gen[s] = 1;
    p->s.live[s] = 1;
    p->s.len[s] = 0;
    p->s.root[s] = (int32_t)rng_below(&p->rng, MV);
    p->s.n_rows[s] = 1;
    p->s.n_out[s] = 1;
    p->s.params[s] = p->params;
    p->s.params[s].seed = rng_u64(&p->rng);
}

static void loop_open(struct loop *p, struct dev *d, const struct chain *c,
                      const struct slot_params *params)
{
    int n = MS + 1;
    *p = (struct loop){.d = d, .c = c, .params = *params, .rng = {99}};
    p->s = (struct slot_arrays){.gen = MEM_ARRAY(int32_t, n),
                                .live = MEM_ARRAY(int32_t, n),
                                .len = MEM_ARRAY(int32_t, n),
                                .root = MEM_ARRAY(int32_t, n),
                                .n_rows = MEM_ARRAY(int32_t, n),
                                .draft = MEM_ARRAY(int32_t, n * LIM_ROWS_PER_REQ),
                                .parent = MEM_ARRAY(int32_t, n * LIM_ROWS_PER_REQ),
                                .anc = MEM_ARRAY(uint64_t, n * LIM_ROWS_PER_REQ),
                                .n_out = MEM_ARRAY(int32_t, n),
                                .hist = MEM_ARRAY(int32_t, n * MLEN),
                                .seen = MEM_ARRAY(uint32_t, n),
                                .count = MEM_ARRAY(uint16_t, n * MV),
                                .params = MEM_ARRAY(struct slot_params, n),
                                .n_slot = n,
                                .len_max = MLEN,
                                .vocab = MV};
    p->rows = rows_new(MROWS);
    p->next = rows_new(MS);
    p->tree = (struct draft_tree){.tok = MEM_ARRAY(int32_t, MS * LIM_DRAFT_NODES),
                                  .parent = MEM_ARRAY(int32_t, MS * LIM_DRAFT_NODES),
                                  .score = MEM_ARRAY(float, MS *LIM_DRAFT_NODES),
                                  .beam = MEM_ARRAY(int32_t, MS * LIM_SPEC_TOPK),
                                  .beam_anc = MEM_ARRAY(uint64_t, MS * LIM_SPEC_TOPK)};
    p->acc = (struct accept_out){.n = MEM_ARRAY(int32_t, MS),
                                 .row = MEM_ARRAY(int32_t, MS * LIM_EMIT),
                                 .tok = MEM_ARRAY(int32_t, MS * LIM_EMIT),
                                 .len = MEM_ARRAY(int32_t, MS)};
    int32_t **per_req[] = {&p->req_slot, &p->req_gen, &p->req_row0, &p->req_n, &p->src, &p->tail};
    for (int i = 0; i < 6; i++)
        *per_req[i] = MEM_ARRAY(int32_t, MS);
    p->logits = MEM_ARRAY(float, MROWS *MV);
    p->work = MEM_ARRAY(float, MROWS *MV * 4);
    p->q = MEM_ARRAY(float, n *DRAFTS *MV);
    p->sample = MEM_ARRAY(struct sample_out, MROWS);
    p->ring = MEM_ARRAY(struct ring_rec, MS);
    for (int i = 0; i < MS; i++) {
        p->req_slot[i] = i + 1;
        p->req_gen[i] = 1;
        loop_start(p, i + 1);
    }
}

static void loop_close(struct loop *p)
{
    void *all[] = {p->s.gen,      p->s.live,    p->s.len,         p->s.root,   p->s.n_rows,
                   p->s.draft,    p->s.parent,  p->s.anc,         p->s.n_out,  p->s.hist,
                   p->s.seen,     p->s.count,   p->s.params,      p->tree.tok, p->tree.parent,
                   p->tree.score, p->tree.beam, p->tree.beam_anc, p->acc.n,    p->acc.row,
                   p->acc.tok,    p->acc.len,   p->req_slot,      p->req_gen,  p->req_row0,
                   p->req_n,      p->src,       p->tail,          p->logits,   p->work,
                   p->q,          p->sample,    p->ring};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        mem_free(all[i]);
    rows_free(&p->rows);
    rows_free(&p->next);
}

static void loop_draft(struct loop *p, bool ratio)
{
    const struct op_table *op = dev_cpu.ops;
    for (int level = 0; level < DRAFTS; level++) {
        for (int i = 0; i < MS; i++) {
            p->tail[i] = i;
            int tok = level ? p->next.tok[i] : p->s.root[i + 1];
            memcpy(p->logits + i * MV, p->c->draft[tok < 0 ? 0 : tok], MV * sizeof(float));
        }
        struct op_draft_pick a = {.s = p->s,
                                  .t = p->tree,
                                  .out = p->next,
                                  .src = p->src,
                                  .req_slot = p->req_slot,
                                  .tail = p->tail,
                                  .logits = p->logits,
                                  .ldl = MV,
                                  .work = p->work,
                                  .q = ratio ? p->q : NULL,
                                  .q_steps = DRAFTS,
                                  .reqs = MS,
                                  .topk = 1,
                                  .level = level,
                                  .vocab = MV,
                                  .last = level == DRAFTS - 1};
        ck_assert_int_eq(op->draft_pick(p->d, &a), OK);
    }
    struct op_draft_build b = {.s = p->s,
                               .t = p->tree,
                               .req_slot = p->req_slot,
                               .tail = p->tail,
                               .reqs = MS,
                               .topk = 1,
                               .levels = DRAFTS,
                               .rows = 1 + DRAFTS};
    ck_assert_int_eq(op->draft_build(p->d, &b), OK);
}

static void loop_verify(struct loop *p, bool ratio)
{
    const struct op_table *op = dev_cpu.ops;
    struct op_rows_build rb = {.s = p->s,
                               .out = p->rows,
                               .req_slot = p->req_slot,
                               .req_gen = p->req_gen,
                               .req_row0 = p->req_row0,
                               .req_n = p->req_n,
                               .reqs = MS,
                               .rows = MROWS};
    ck_assert_int_eq(op->rows_build(p->d, &rb), OK);
    for (int row = 0; row < MROWS; row++)
        if (p->rows.tok[row] >= 0)
            memcpy(p->logits + row * MV, p->c->target[p->rows.tok[row]], MV * sizeof(float));
    struct op_sample sa = {.s = p->s,
                           .rows = p->rows,
                           .logits = p->logits,
                           .ldl = MV,
                           .out = p->sample,
                           .work = p->work,
                           .m = MROWS,
                           .vocab = MV};
    ck_assert_int_eq(op->sample(p->d, &sa), OK);
    struct op_reject re = {.s = p->s,
                           .rows = p->rows,
                           .logits = p->logits,
                           .ldl = MV,
                           .q = p->q,
                           .req_slot = p->req_slot,
                           .req_gen = p->req_gen,
                           .req_row0 = p->req_row0,
                           .req_n = p->req_n,
                           .sample = p->sample,
                           .work = p->work,
                           .reqs = MS,
                           .vocab = MV,
                           .q_steps = DRAFTS};
    if (ratio)
        ck_assert_int_eq(op->reject(p->d, &re), OK);
    struct op_accept ac = {.s = p->s,
                           .rows = p->rows,
                           .sample = p->sample,
                           .req_slot = p->req_slot,
                           .req_gen = p->req_gen,
                           .req_row0 = p->req_row0,
                           .req_n = p->req_n,
                           .ring = p->ring,
                           .step = &p->step,
                           .ring_depth = 1,
                           .ring_stride = MS,
                           .out = p->acc,
                           .reqs = MS};
    ck_assert_int_eq(op->accept(p->d, &ac), OK);
}

/* Chi-square of every token given the one before it, rows with enough of both. */
static void check_counts(const struct loop *p, double x2_room)
{
    double x = 0, df = 0;
    for (int a = 0; a < MV; a++) {
        struct ent e[MV];
        double total = 0, sum = 0, all = 0, run = 0;
        for (int b = 0; b < MV; b++) {
            total += (double)p->seen[a][b];
            e[b] = (struct ent){(double)(p->c->target[a][b] / p->params.temperature), b};
        }
        qsort(e, MV, sizeof *e, by_rank);
        int keep = 0;
        for (int b = 0; b < MV; b++)
            all += exp(e[b].v);
        while (keep < MV) {
            run += exp(e[keep++].v);
            if (p->params.top_p < 1 && run >= (double)p->params.top_p * all)
                break;
        }
        for (int b = 0; b < keep; b++)
            sum += exp(e[b].v);
        for (int b = 0; b < MV; b++) {
            double want = b < keep ? total * exp(e[b].v) / sum : 0;
            double got = (double)p->seen[a][e[b].id];
            if (b >= keep) {
                ck_assert(got == 0); /* what top-p took away never comes */
            } else if (total > 1000) {
                x += (got - want) * (got - want) / want;
                df += 1;
            }
        }
        df -= total > 1000;
    }
    ck_assert_msg(x < df + x2_room * sqrt(2 * df), "chi-square %g with %g degrees of freedom", x,
                  df);
    ck_assert(df > MV * 3);
}

/* Returns the share of drafted rows that were accepted at the first place. */
static double lossless(long draws, uint64_t seed, bool ratio, float temperature, float top_p)
{
    struct dev_conf dc = {0, 1};
    struct err e = {0};
    struct dev *d;
    struct chain *c = MEM_NEW(struct chain);
    struct loop *p = MEM_NEW(struct loop);
    struct rng r = {seed};
    struct slot_params sp = {.temperature = temperature,
                             .top_p = top_p,
                             .repetition = 1,
                             .max_out = 1 << 30,
                             .len_max = 1 << 30,
                             .n_logprobs = -1,
                             .spec_mode = SPEC_MODEL,
                             .spec_max = DRAFTS,
                             .spec_ratio = ratio};
    for (int a = 0; a < MV; a++)
        for (int b = 0; b < MV; b++) {
            c->target[a][b] = (float)rng_normal(&r) * 1.2f;
            c->draft[a][b] = c->target[a][b] + (float)rng_normal(&r);
        }
    ck_assert_int_eq(dev_cpu.open(&d, &dc, &e), OK);
    loop_open(p, d, c, &sp);
    long total = 0;
    while (total < draws) {
        loop_draft(p, ratio);
        loop_verify(p, ratio);
        for (int i = 0; i < MS; i++) {
            const struct ring_rec *rec = &p->ring[i];
            int from = p->rows.tok[p->req_row0[i]];
            for (int j = 0; j < rec->n; j++, total++) {
                p->seen[from][rec->tok[j].token]++;
                from = rec->tok[j].token;
            }
            p->drafted++;
            p->accepted += rec->n_accepted > 0;
            if (p->s.len[i + 1] + 2 * (DRAFTS + 1) >= MLEN)
                loop_start(p, i + 1);
        }
    }
    check_counts(p, 5);
    double rate = (double)p->accepted / (double)p->drafted;
    loop_close(p);
    dev_cpu.close(d);
    mem_free(p);
    mem_free(c);
    return rate;
}

START_TEST(ratio)
{
    double rate = lossless(MILLION, 5, true, 0.9f, 1);
    ck_assert_msg(rate > 0.5 && rate < 0.95, "accepted %g", rate);
}
END_TEST

/* The target keeps a part only, the draft draws from everything. */
START_TEST(ratio_of_a_kept_set)
{
    double rate = lossless(MILLION / 4, 6, true, 1.1f, 0.8f);
    ck_assert_msg(rate > 0.3 && rate < 0.95, "accepted %g", rate);
}
END_TEST

START_TEST(coupled)
{
    double rate = lossless(MILLION, 5, false, 0.9f, 1);
    ck_assert_msg(rate > 0.3 && rate < 0.95, "accepted %g", rate);
}
END_TEST

Suite *suite_lossless(void);
Suite *suite_lossless(void)
{
    Suite *s = suite_create("lossless");
    TCase *t = tcase_create("chains");
    one_thread(t);
    tcase_set_timeout(t, 120);
    tcase_add_test(t, ratio);
    tcase_add_test(t, ratio_of_a_kept_set);
    tcase_add_test(t, coupled);
    suite_add_tcase(s, t);
    return s;
}
