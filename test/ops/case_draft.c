/* Contract cases of the draft operations: cache moves against a copy by position, the drafter's
 * rows against the positions they must have, choice against a sort in double, prompt lookup against
 * a search over all suffixes. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "kernels/cpu/fmath.h"
#include "test/ops/world.h"

/* ---- kv_move ---- */

enum { LAYERS = 3, WIDTH = 6, POS = 128 };

/* The entry of a position, in elements of the plane. */
static int64_t entry(const int32_t *table, int slot, int page, int pos)
{
    int pages = POS / page;
    return (int64_t)table[slot * pages + pos / page] * page + pos % page;
}

static void kv_move_one(const struct t_devs *t, struct rng *r, int page, enum dtype dt)
{
    enum { REQ = 3 };
    int pages = POS / page, layer_rows = SLOTS * POS;
    size_t bytes = WIDTH * dtype_size(dt), all = (size_t)(LAYERS * layer_rows) * bytes;
    unsigned char *cache = mem_alloc(all);
    for (size_t i = 0; i < all; i++)
        cache[i] = (unsigned char)rng_u64(r);
    int32_t *table = MEM_ARRAY(int32_t, SLOTS * pages);
    for (int i = 0; i < SLOTS * pages; i++)
        table[i] = i;
    for (int i = SLOTS * pages - 1; i > 0; i--) {
        int j = (int)rng_below(r, (uint64_t)i + 1);
        int32_t x = table[i];
        table[i] = table[j];
        table[j] = x;
    }
    int32_t req_slot[REQ + 1] = {2, 0, 5, 1}, row0[REQ + 1] = {7, 0, 30, 0};
    int32_t n[REQ + 1], len[REQ + 1], row[REQ + 1][LIM_EMIT], tok[REQ + 1][LIM_EMIT];
    unsigned char *want = mem_dup(cache, all);
    for (int i = 0; i <= REQ; i++) {
        n[i] = req_slot[i] ? 1 + (int)rng_below(r, LIM_EMIT) : 0;
        len[i] = (int)rng_below(r, POS - LIM_ROWS_PER_REQ);
        for (int j = 0, at = 0; j < n[i]; j++) { /* a path: the root, then ever later rows */
            row[i][j] = row0[i] + at;
            for (int l = 0; l < LAYERS; l++)
                memcpy(want +
                           (size_t)(l * layer_rows + entry(table, req_slot[i], page, len[i] + j)) *
                               bytes,
                       cache +
                           (size_t)(l * layer_rows + entry(table, req_slot[i], page, len[i] + at)) *
                               bytes,
                       bytes);
            at += 1 + (int)rng_below(r, i == 3 ? 1 : 4); /* request 3: a chain */
        }
    }
    struct op_kv_move a = {.cache = cache,
                           .dt = dt,
                           .width = WIDTH,
                           .n_layer = LAYERS,
                           .layer_rows = layer_rows,
                           .table = table,
                           .pages_max = pages,
                           .page = page,
                           .req_slot = req_slot,
                           .req_row0 = row0,
                           .acc = {n, row[0], tok[0], len},
                           .reqs = REQ + 1};
    struct t_out o = {cache, all};
    t_everywhere(t, "kv_move", t_call_kv_move, &a, &o, 1);
    t_same_bits("kv_move", want, cache, all);
    mem_free(cache);
    mem_free(want);
    mem_free(table);
}

void case_kv_move(const struct t_devs *t, struct rng *r)
{
    static const int pages[] = {1, 16, 64};
    for (int k = 0; k < 3; k++)
        for (int round = 0; round < 5; round++) {
            kv_move_one(t, r, pages[k], DT_F32);
            kv_move_one(t, r, pages[k], DT_BF16);
            kv_move_one(t, r, pages[k], DT_F8E4M3);
        }
}

/* ---- a draft round: the world and what a drafter owns ---- */

struct round {
    struct world w;
    int32_t tok[REQS][LIM_DRAFT_NODES], parent[REQS][LIM_DRAFT_NODES];
    float score[REQS][LIM_DRAFT_NODES];
    int32_t beam[REQS][LIM_SPEC_TOPK];
    uint64_t beam_anc[REQS][LIM_SPEC_TOPK];
    int32_t src[ROWS], tail[REQS], keep_row[REQS], keep_slot[REQS];
};

static struct round *round_new(void)
{
    struct world *w = world_new();
    struct round *b = MEM_NEW(struct round);
    memset(b, 0x5a, sizeof *b);
    b->w = *w;
    mem_free(w);
    return b;
}

static struct draft_tree tree_of(struct round *b)
{
    return (struct draft_tree){.tok = b->tok[0],
                               .parent = b->parent[0],
                               .score = b->score[0],
                               .beam = b->beam[0],
                               .beam_anc = b->beam_anc[0]};
}

static bool is_padding(const struct round *b, int row)
{
    const struct world *w = &b->w;
    return w->tok[row] == -1 && w->slot[row] == 0 && w->req[row] == -1 && b->src[row] == -1;
}

/* Six requests: model drafts, model drafts, prompt lookup, stale, dead, model drafts. */
static void six_requests(struct world *w, struct rng *r)
{
    for (int s = 1; s < SLOTS; s++) {
        world_slot(w, s, s, 6, 3 + (int)rng_below(r, 9));
        w->params[s].spec_mode = s == 3 ? SPEC_NGRAM : SPEC_MODEL;
        w->params[s].spec_max = 63;
        w->drf_first[s] = 1;
    }
    w->live[5] = 0;
    world_reqs(w, (int[]){1, 2, 3, 4, 5, 6}, (int[]){1, 2, 3, 99, 5, 6}, 6);
}

static bool drafts(int i)
{
    return i == 0 || i == 1 || i == 5;
}

static void begin_one(const struct t_devs *t, struct rng *r, bool prefill)
{
    struct round *b = round_new();
    struct world *w = &b->w;
    int shift = (int)rng_below(r, 2), each = prefill ? 1 : 8;
    six_requests(w, r);
    for (int i = 0; i < REQS; i++) {
        w->acc_n[i] = i < 6 && !(prefill && i == 1) ? 1 + (prefill ? 0 : (int)rng_below(r, 6)) : 0;
        w->acc_len[i] = w->len[i < 6 ? i + 1 : 0] - w->acc_n[i];
        for (int j = 0; j < LIM_EMIT; j++) {
            w->acc_row[i][j] = i * 8 + j + (j ? (int)rng_below(r, 2) : 0);
            w->acc_tok[i][j] = (int32_t)rng_below(r, V);
        }
    }
    w->drf_next[1] = w->acc_len[0] + 1;
    w->drf_next[2] = w->acc_len[1] - 1; /* drafting had paused: a hole */
    w->drf_next[6] = 5;
    w->drf_next[3] = w->drf_next[4] = w->drf_next[5] = 2;
    struct op_draft_begin a = {.s = world_slots(w),
                               .out = world_rows(w),
                               .req_slot = w->req_slot,
                               .req_gen = w->req_gen,
                               .acc = world_acc(w),
                               .src = b->src,
                               .tail = b->tail,
                               .reqs = REQS,
                               .each = each,
                               .shift = shift};
    struct t_out o = {b, sizeof *b};
    int32_t next6 = w->acc_len[5] + 1;
    t_everywhere(t, "draft_begin", t_call_draft_begin, &a, &o, 1);
    int used = 0;
    for (int i = 0; i < REQS; i++) {
        int n = drafts(i) ? w->acc_n[i] : 0, row0 = i * each, at = w->acc_len[i] + 1;
        ck_assert_int_eq(b->tail[i], n ? row0 + n - 1 : -1);
        for (int j = 0; j < n; j++, used++) {
            int row = row0 + j;
            ck_assert_int_eq(w->tok[row], w->acc_tok[i][j]);
            ck_assert(w->slot[row] == i + 1 && w->req[row] == i && w->row0[row] == at);
            ck_assert(w->at[row] == at + j && w->pos[row] == at + j - shift);
            ck_assert_int_eq(w->row_parent[row], j ? row - 1 : -1);
            ck_assert_uint_eq(w->row_anc[row], ((uint64_t)1 << (j + 1)) - 1);
            ck_assert_int_eq(b->src[row], w->acc_row[i][j]);
        }
        if (n)
            ck_assert_int_eq(w->drf_next[i + 1], at + n);
    }
    for (int row = 0; row < REQS * each; row++)
        used -= !is_padding(b, row);
    ck_assert_int_eq(used, 0);
    ck_assert_int_eq(w->drf_first[1], 1); /* no hole */
    if (!prefill)
        ck_assert_int_eq(w->drf_first[2], w->acc_len[1] + 1);
    ck_assert_int_eq(w->drf_first[6], next6 > 5 ? next6 : 1);
    for (int s = 3; s <= 5; s++)
        ck_assert(w->drf_first[s] == 1 && w->drf_next[s] == 2);
    mem_free(b);
}

void case_draft_begin(const struct t_devs *t, struct rng *r)
{
    for (int i = 0; i < 20; i++)
        begin_one(t, r, i % 2);
}

static void fill_one(const struct t_devs *t, struct rng *r, int shift)
{
    struct round *b = round_new();
    struct world *w = &b->w;
    struct {
        int32_t tok[ROWS], slot[ROWS], pos[ROWS], req[ROWS], at[ROWS];
    } in;
    enum { SAVED0 = 1000 };
    int from[6], n[6];
    six_requests(w, r);
    for (int i = 0; i < ROWS; i++) {
        in.tok[i] = in.req[i] = -1;
        in.slot[i] = in.pos[i] = in.at[i] = 0;
    }
    for (int i = 0; i < REQS; i++) {
        w->req_row0[i] = i * 8;
        w->req_n[i] = 0;
        if (i > 5)
            continue;
        n[i] = w->req_n[i] = i == 1 ? 1 : 1 + (int)rng_below(r, 7);
        from[i] = i < 2 ? 0 : 4 + (int)rng_below(r, 5);
        w->drf_next[i + 1] = shift;
        w->drf_first[i + 1] = shift;
        for (int j = 0; j < n[i]; j++) {
            int row = i * 8 + j;
            in.tok[row] = (int32_t)rng_below(r, V);
            in.slot[row] = i + 1;
            in.req[row] = i;
            in.pos[row] = in.at[row] = from[i] + j;
        }
    }
    bool hole = rng_below(r, 2);
    if (!hole)
        w->drf_next[6] = from[5];
    struct op_draft_fill a = {
        .s = world_slots(w),
        .in = {.tok = in.tok, .slot = in.slot, .pos = in.pos, .req = in.req, .at = in.at},
        .out = world_rows(w),
        .req_slot = w->req_slot,
        .req_gen = w->req_gen,
        .req_row0 = w->req_row0,
        .req_n = w->req_n,
        .src = b->src,
        .keep_row = b->keep_row,
        .keep_slot = b->keep_slot,
        .reqs = REQS,
        .rows = ROWS,
        .shift = shift,
        .saved0 = SAVED0};
    struct t_out o = {b, sizeof *b};
    t_everywhere(t, "draft_fill", t_call_draft_fill, &a, &o, 1);
    int used = 0;
    for (int i = 0; i < REQS; i++) {
        ck_assert_int_eq(b->keep_row[i], drafts(i) ? i * 8 + n[i] - 1 : -1);
        ck_assert_int_eq(b->keep_slot[i], drafts(i) ? i + 1 : -1);
        for (int j = 0; drafts(i) && j < n[i]; j++) {
            int row = i * 8 + j, p = from[i] + j;
            if (p < shift)
                continue;
            used++;
            ck_assert(w->tok[row] == in.tok[row] && w->slot[row] == i + 1 && w->req[row] == i);
            ck_assert(w->at[row] == p && w->pos[row] == p - shift);
            ck_assert_int_eq(b->src[row], j ? row - 1 : SAVED0 + i + 1);
        }
        if (i < 6 && !drafts(i))
            ck_assert(w->drf_first[i + 1] == shift && w->drf_next[i + 1] == shift);
    }
    for (int row = 0; row < ROWS; row++)
        used -= !is_padding(b, row);
    ck_assert_int_eq(used, 0);
    ck_assert(w->drf_first[1] == shift && w->drf_next[1] == (n[0] > shift ? n[0] : shift));
    ck_assert(w->drf_first[2] == shift && w->drf_next[2] == 1);
    ck_assert_int_eq(w->drf_first[6], hole ? from[5] : shift);
    ck_assert_int_eq(w->drf_next[6], from[5] + n[5]);
    mem_free(b);
}

void case_draft_fill(const struct t_devs *t, struct rng *r)
{
    for (int i = 0; i < 20; i++)
        fill_one(t, r, i % 2);
}

/* ---- pick ---- */

struct ent {
    double v;
    int id;
};

static int by_rank(const void *pa, const void *pb)
{
    const struct ent *a = pa, *b = pb;
    return a->v > b->v ? -1 : a->v < b->v ? 1 : a->id - b->id;
}

/* The values of a row sorted, and their log-sum-exp. */
static double ranked(const struct op_draft_pick *a, int slot, int pos, const float *l,
                     struct ent *e)
{
    const struct slot_params *p = &a->s.params[slot];
    double sum = 0;
    for (int i = 0; i < a->vocab; i++) {
        float v = isnan(l[i]) ? -INFINITY : l[i];
        if (p->temperature >= 1e-5f)
            v = v / p->temperature + fm_noise(p->seed, pos, a->d2t ? a->d2t[i] : i);
        e[i] = (struct ent){(double)v, i};
    }
    qsort(e, (size_t)a->vocab, sizeof *e, by_rank);
    for (int i = 0; i < a->vocab; i++)
        sum += exp(e[i].v - e[0].v);
    return e[0].v + log(sum);
}

/* The children of one row as they must be; `was` is the state before the call. */
static void check_children(const struct op_draft_pick *a, const struct round *was,
                           const struct round *b, int i, int beam, struct ent *e)
{
    int k = a->topk, slot = a->req_slot[i], pos = a->s.len[slot] + 1 + a->level;
    int node = draft_level(k, a->level) + beam * k, m = a->level ? i * k + beam : i;
    int parent = a->level ? was->beam[i][beam] : -1;
    bool row = a->level == 0 || (parent >= 0 && pos - 1 < a->s.len_max);
    double lse = row ? ranked(a, slot, pos, a->logits + m * a->ldl, e) : 0;
    for (int c = 0; c < k; c++) {
        double want = row && c < a->vocab ? e[c].v - lse : NAN;
        if (!isfinite(want)) {
            ck_assert_int_eq(b->tok[i][node + c], -1);
            continue;
        }
        want += parent >= 0 ? (double)was->score[i][parent] : 0;
        ck_assert_msg(b->tok[i][node + c] == (a->d2t ? a->d2t[e[c].id] : e[c].id),
                      "level %d request %d beam %d child %d: token %d", a->level, i, beam, c,
                      b->tok[i][node + c]);
        ck_assert_int_eq(b->parent[i][node + c], parent);
        ck_assert(fabs((double)b->score[i][node + c] - want) < 1e-5 * (1 + fabs(want)));
    }
}

static void check_beams(const struct op_draft_pick *a, const struct round *was,
                        const struct round *b, int i)
{
    int k = a->topk, first = draft_level(k, a->level), end = draft_level(k, a->level + 1), n = 0;
    struct ent e[LIM_SPEC_TOPK * LIM_SPEC_TOPK];
    const struct world *w = &b->w;
    int at0 = w->len[a->req_slot[i]] + 1;
    for (int x = first; x < end; x++)
        if (b->tok[i][x] >= 0)
            e[n++] = (struct ent){(double)b->score[i][x], x};
    qsort(e, (size_t)n, sizeof *e, by_rank);
    for (int j = 0; j < k; j++) {
        int row = i * k + j, bit = a->level * k + j;
        ck_assert_int_eq(b->beam[i][j], j < n ? e[j].id : -1);
        if (j >= n || at0 + a->level >= w->req_cap[0] /* len_max */) {
            ck_assert(is_padding(b, row));
            continue;
        }
        int up = a->level ? (e[j].id - first) / k : 0;
        uint64_t anc = (uint64_t)1 << bit;
        if (a->level)
            anc |= was->beam_anc[i][up];
        ck_assert_int_eq(w->tok[row], b->tok[i][e[j].id]);
        ck_assert(w->slot[row] == a->req_slot[i] && w->req[row] == i && w->row0[row] == at0);
        ck_assert(w->at[row] == at0 + bit && w->pos[row] == at0 + a->level - a->shift);
        ck_assert_uint_eq(w->row_anc[row], anc);
        ck_assert_int_eq(b->src[row], a->level ? i * k + up : was->tail[i]);
    }
}

/* Chosen nodes against a sort over all levels. */
static void check_build(const struct op_draft_build *a, const struct round *b, int i)
{
    int slot = a->req_slot[i], n = 0, total = draft_level(a->topk, a->levels);
    struct ent e[LIM_DRAFT_NODES];
    int row_of[LIM_DRAFT_NODES];
    for (int x = 0; x < total; x++) {
        row_of[x] = 0;
        if (b->tok[i][x] >= 0)
            e[n++] = (struct ent){(double)b->score[i][x], x};
    }
    qsort(e, (size_t)n, sizeof *e, by_rank);
    int max = a->rows - 1 < a->s.params[slot].spec_max ? a->rows - 1 : a->s.params[slot].spec_max;
    n = n < max ? n : max;
    for (int j = 0; j < n; j++)
        row_of[e[j].id] = -1;
    ck_assert_int_eq(b->w.n_rows[slot], 1 + n);
    for (int x = 0, row = 1; x < total; x++) {
        if (row_of[x] == 0)
            continue;
        int p = b->parent[i][x], up = p >= 0 && p < x ? row_of[p] : 0;
        ck_assert_int_eq(b->w.draft[slot][row - 1], b->tok[i][x]);
        ck_assert_int_eq(b->w.parent[slot][row - 1], up);
        ck_assert(up < row);
        uint64_t anc = 1;
        for (int y = row; y > 0; y = b->w.parent[slot][y - 1])
            anc |= (uint64_t)1 << y;
        ck_assert_uint_eq(b->w.anc[slot][row - 1], anc);
        row_of[x] = row++;
    }
}

struct pick_case {
    int topk, steps, reqs, vocab, rows;
    bool grid, d2t;
};

static void broken_rows(float *l, int rows, int vocab)
{
    for (int m = 0; m < rows; m++)
        for (int i = 0; i < vocab; i++) {
            if (m % 7 == 3)
                l[m * vocab + i] = NAN;
            else if (m % 7 == 4 && i > 1)
                l[m * vocab + i] = i % 2 ? -INFINITY : NAN;
            else if (m % 7 == 5 && i == vocab / 2)
                l[m * vocab + i] = NAN;
            else if (m % 14 == 6 && i == 0)
                l[m * vocab + i] = INFINITY;
        }
}

static void pick_round(const struct t_devs *t, struct rng *r, const struct pick_case *c,
                       bool broken)
{
    struct round *b = round_new();
    struct world *w = &b->w;
    int k = c->topk, rows = c->reqs * k;
    six_requests(w, r);
    int32_t *d2t = MEM_ARRAY(int32_t, c->vocab);
    for (int i = 0; i < c->vocab; i++)
        d2t[i] = 3 * i + 1;
    for (int i = 0; i < c->reqs; i++) {
        int s = 1 + i;
        w->req_slot[i] = s;
        b->tail[i] = i == 1 ? -1 : 40 + i;
        w->params[s].temperature = i % 3 ? 0.4f + (float)rng_unit(r) : 0;
        w->params[s].seed = rng_u64(r);
        w->params[s].spec_max = i == 2 ? 3 : 63;
    }
    w->req_cap[0] = LEN;
    w->len[w->req_slot[c->reqs - 1]] = LEN - 3; /* two more tokens fit */
    float *logits = MEM_ARRAY(float, rows * c->vocab),
          *work = MEM_ARRAY(float, rows * 4 * c->vocab);
    struct ent *e = MEM_ARRAY(struct ent, c->vocab);
    for (int level = 0; level < c->steps; level++) {
        for (int i = 0; i < rows * c->vocab; i++) {
            float x = (float)rng_normal(r) * 2;
            logits[i] = c->grid ? roundf(x) : x;
        }
        if (broken)
            broken_rows(logits, rows, c->vocab);
        struct op_draft_pick a = {.s = world_slots(w),
                                  .t = tree_of(b),
                                  .out = world_rows(w),
                                  .src = b->src,
                                  .req_slot = w->req_slot,
                                  .tail = b->tail,
                                  .logits = logits,
                                  .ldl = c->vocab,
                                  .d2t = c->d2t ? d2t : NULL,
                                  .work = work,
                                  .reqs = c->reqs,
                                  .topk = k,
                                  .level = level,
                                  .vocab = c->vocab,
                                  .shift = c->d2t,
                                  .last = level == c->steps - 1};
        struct round *was = mem_dup(b, sizeof *b);
        struct t_out o = {b, sizeof *b};
        t_everywhere(t, "draft_pick", t_call_draft_pick, &a, &o, 1);
        for (int i = 0; i < c->reqs; i++) {
            if (b->tail[i] < 0) {
                for (int j = 0; j < k && !a.last; j++)
                    ck_assert(is_padding(b, i * k + j));
                continue;
            }
            for (int j = 0; j < (level ? k : 1); j++)
                check_children(&a, was, b, i, j, e);
            if (!a.last)
                check_beams(&a, was, b, i);
        }
        mem_free(was);
    }
    struct op_draft_build bu = {.s = world_slots(w),
                                .t = tree_of(b),
                                .req_slot = w->req_slot,
                                .tail = b->tail,
                                .reqs = c->reqs,
                                .topk = k,
                                .levels = c->steps,
                                .rows = c->rows};
    ck_assert_int_eq(dev_cpu.ops->draft_build(t->d[0], &bu), OK);
    for (int i = 0; i < c->reqs; i++)
        if (b->tail[i] >= 0)
            check_build(&bu, b, i);
    mem_free(b);
    mem_free(d2t);
    mem_free(logits);
    mem_free(work);
    mem_free(e);
}

void case_draft_pick(const struct t_devs *t, struct rng *r)
{
    static const struct pick_case cases[] = {
        {1, 6, 6, 33, 7, false, false},   {1, 4, 6, 300, 4, true, true},
        {2, 4, 6, 100, 9, true, false},   {4, 3, 6, 3, 30, false, false}, /* few tokens */
        {4, 3, 6, 1000, 64, false, true}, {8, 2, 6, 257, 64, true, true},
        {16, 4, 4, 515, 64, false, false}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (int round = 0; round < 4; round++)
            pick_round(t, r, &cases[i], round % 2);
    struct pick_case wide = {3, 2, 3, 200000, 8, false, false};
    pick_round(t, r, &wide, false);
}

/* Trees as no drafter makes them: parents that are absent, later or unchosen; ties. */
void case_draft_build(const struct t_devs *t, struct rng *r)
{
    for (int round = 0; round < 60; round++) {
        struct round *b = round_new();
        struct world *w = &b->w;
        six_requests(w, r);
        int k = 1 + (int)rng_below(r, 6), levels = 1 + (int)rng_below(r, 5);
        int total = draft_level(k, levels);
        for (int i = 0; i < REQS; i++) {
            b->tail[i] = drafts(i) ? i : -1;
            for (int x = 0; x < total; x++) {
                b->tok[i][x] = rng_below(r, 6) ? (int32_t)rng_below(r, V) : -1;
                b->parent[i][x] = (int32_t)rng_below(r, (uint64_t)x + 4) - 1;
                b->score[i][x] = -(float)rng_below(r, 20);
            }
        }
        w->params[2].spec_max = (int)rng_below(r, 5);
        struct op_draft_build a = {.s = world_slots(w),
                                   .t = tree_of(b),
                                   .req_slot = w->req_slot,
                                   .tail = b->tail,
                                   .reqs = REQS,
                                   .topk = k,
                                   .levels = levels,
                                   .rows = 1 + (int)rng_below(r, LIM_ROWS_PER_REQ)};
        struct round *was = mem_dup(b, sizeof *b);
        struct t_out o = {b, sizeof *b};
        t_everywhere(t, "draft_build", t_call_draft_build, &a, &o, 1);
        for (int i = 0; i < 6; i++) {
            if (drafts(i)) {
                check_build(&a, b, i);
                continue;
            }
            ck_assert_int_eq(w->n_rows[i + 1], 1);
            t_same_bits("left alone", was->w.draft[i + 1], w->draft[i + 1], sizeof w->draft[0]);
        }
        mem_free(was);
        mem_free(b);
    }
}

/* ---- prompt lookup ---- */

/* By length from the longest, by end from the latest; `not`: next tokens that will not do. */
static int naive_lookup(const int32_t *h, int last, int n_min, int n_max, const int32_t * not,
                        int n_not)
{
    for (int n = n_max; n >= n_min; n--)
        for (int e = last - 1; e - n + 1 >= 0; e--) {
            bool same = true;
            for (int i = 0; i < n; i++)
                same &= h[e - i] == h[last - i];
            for (int i = 0; i < n_not; i++)
                same &= h[e + 1] != not [i];
            if (same)
                return e + 1;
        }
    return -1;
}

/* What the slot should draft: chain after chain on the root. */
static int check_lookup(const struct world *w, int s, const struct op_draft_ngram *a)
{
    int last = w->len[s], left = w->params[s].spec_max, row = 1, c = 0;
    int32_t taken[LIM_SPEC_TOPK], text[LEN + 16];
    for (; c <= a->more; c++) {
        int from = naive_lookup(w->hist[s], last, a->n_min, a->n_max, taken, c);
        int n = c ? a->each : a->steps;
        n = from < 0 ? 0 : n < left ? n : left;
        if (!n)
            break;
        taken[c] = w->hist[s][from];
        memcpy(text, w->hist[s], sizeof w->hist[0]); /* with the chain behind it */
        uint64_t anc = 1;
        for (int k = 0; k < n; k++, row++) {
            text[last + 1 + k] = text[from + k];
            anc |= (uint64_t)1 << row;
            ck_assert_int_eq(w->draft[s][row - 1], text[from + k]);
            ck_assert_int_eq(w->parent[s][row - 1], k ? row - 1 : 0);
            ck_assert_uint_eq(w->anc[s][row - 1], anc);
        }
        left -= n;
    }
    ck_assert_int_eq(w->n_rows[s], row);
    return c;
}

static void ngram_one(const struct t_devs *t, struct rng *r, int found[3])
{
    struct world *w = world_new();
    for (int s = 1; s < SLOTS; s++) {
        int vocab = 1 + (int)rng_below(r, 5) * (int)rng_below(r, 4);
        world_slot(w, s, s, 1, (int)rng_below(r, LEN - 1));
        w->params[s].spec_mode = s == 5 ? SPEC_MODEL : s == 6 ? SPEC_OFF : SPEC_NGRAM;
        w->params[s].spec_max = s == 2 ? (int)rng_below(r, 3) : 63;
        for (int i = 0; i < LEN; i++)
            w->hist[s][i] = (int32_t)rng_below(r, (uint64_t)vocab);
    }
    w->live[4] = 0;
    world_reqs(w, (int[]){1, 2, 3, 4, 5, 6, 0}, (int[]){1, 2, 99, 4, 5, 6, 0}, 7);
    int n_min = 1 + (int)rng_below(r, 3), n_max = n_min + (int)rng_below(r, 4);
    struct op_draft_ngram a = {.s = world_slots(w),
                               .req_slot = w->req_slot,
                               .req_gen = w->req_gen,
                               .reqs = REQS,
                               .n_min = n_min,
                               .n_max = n_max,
                               .steps = (int)rng_below(r, 9),
                               .more = (int)rng_below(r, 4),
                               .each = (int)rng_below(r, 5)};
    struct world *was = mem_dup(w, sizeof *w);
    struct t_out o = {w, sizeof *w};
    t_everywhere(t, "draft_ngram", t_call_draft_ngram, &a, &o, 1);
    for (int s = 1; s < SLOTS; s++) {
        if (s <= 2) {
            int chains = check_lookup(w, s, &a);
            found[0] += chains > 0;
            found[1] += chains > 1;
            found[2] += chains > 2;
            continue;
        }
        ck_assert_int_eq(w->n_rows[s], 1);
        t_same_bits("left alone", was->draft[s], w->draft[s], sizeof w->draft[0]);
    }
    mem_free(was);
    mem_free(w);
}

/* A long text of one token but for its start: every place matches nearly as far as it may. */
static void ngram_long(const struct t_devs *t)
{
    enum { N = 100000 };
    struct world *w = world_new();
    int32_t *hist = MEM_ARRAY(int32_t, 2 * N);
    world_slot(w, 1, 1, 1, 1);
    w->params[1].spec_mode = SPEC_NGRAM;
    w->params[1].spec_max = 63;
    w->len[1] = N - 1;
    for (int i = 0; i < N; i++)
        hist[N + i] = i % 8 == 0;
    hist[N + 5] = hist[2 * N - 3] = 7; /* the suffix 7 x y is there at the start alone */
    world_reqs(w, (int[]){1}, (int[]){1}, 1);
    struct op_draft_ngram a = {.s = world_slots(w),
                               .req_slot = w->req_slot,
                               .req_gen = w->req_gen,
                               .reqs = 1,
                               .n_min = 2,
                               .n_max = 32,
                               .steps = 5};
    a.s.hist = hist;
    a.s.len_max = N;
    int64_t t0 = clock_us();
    ck_assert_int_eq(dev_cpu.ops->draft_ngram(t->d[0], &a), OK);
    int64_t us = clock_us() - t0;
    ck_assert_int_eq(w->n_rows[1], 6);
    int from = naive_lookup(hist + N, N - 1, 2, 32, NULL, 0);
    for (int k = 0; k < 5; k++)
        ck_assert_int_eq(w->draft[1][k], hist[N + from + k]);
    ck_assert_msg(us < 500000, "a search over %d tokens took %lld us", N, (long long)us);
    mem_free(hist);
    mem_free(w);
}

void case_draft_ngram(const struct t_devs *t, struct rng *r)
{
    int found[3] = {0};
    for (int i = 0; i < 200; i++)
        ngram_one(t, r, found);
    ck_assert_msg(found[0] > 80 && found[1] > 20 && found[2] > 2, "%d, %d, %d", found[0], found[1],
                  found[2]);
    ngram_long(t);
}

/* ---- notes ---- */

void case_spec_note(const struct t_devs *t, struct rng *r)
{
    struct world *w = world_new();
    six_requests(w, r);
    for (int s = 1; s < SLOTS; s++)
        w->n_rows[s] = s + 1;
    w->step = 9;
    struct op_spec_note a = {.s = world_slots(w),
                             .req_slot = w->req_slot,
                             .req_gen = w->req_gen,
                             .ring = w->ring,
                             .step = &w->step,
                             .ring_depth = DEPTH,
                             .ring_stride = REQS,
                             .reqs = REQS};
    struct world *want = mem_dup(w, sizeof *w);
    static const int next[REQS] = {2, 3, 4, 0 /* stale */, 0 /* dead */, 7, 0, 0};
    for (int i = 0; i < REQS; i++)
        want->ring[9 % DEPTH * REQS + i].n_next = next[i];
    struct t_out o = {w, sizeof *w};
    t_everywhere(t, "spec_note", t_call_spec_note, &a, &o, 1);
    t_same_bits("spec_note", want, w, sizeof *w);
    mem_free(want);
    mem_free(w);
}

void case_stamp(const struct t_devs *t, struct rng *r)
{
    (void)r;
    for (int i = 0; i < t->n; i++) {
        int64_t out[3 * 4] = {0}, step = 7; /* 7 % 3 = 1 */
        struct op_stamp a = {.out = out, .step = &step, .depth = 3, .stride = 4, .index = 2};
        struct dev_graph *g;
        int64_t t0 = clock_ns();
        ck_assert_int_eq(dev_cpu.ops->stamp(t->d[i], &a), OK);
        int64_t t1 = clock_ns();
        ck_assert(out[1 * 4 + 2] >= t0 && out[1 * 4 + 2] <= t1);
        ck_assert_int_eq(dev_cpu.record_begin(t->d[i], NULL), OK);
        ck_assert_int_eq(dev_cpu.ops->stamp(t->d[i], &a), OK);
        ck_assert_int_eq(dev_cpu.record_end(t->d[i], &g, NULL), OK);
        step = 8;
        ck_assert_int_eq(dev_cpu.replay(t->d[i], g, NULL), OK);
        ck_assert(out[2 * 4 + 2] >= t1 && out[2 * 4 + 2] <= clock_ns());
        for (int k = 0; k < 12; k++)
            ck_assert(k == 6 || k == 10 || out[k] == 0);
        dev_cpu.graph_free(t->d[i], g);
    }
}
