/* Contract cases of the slot and row operations, and a simulation of whole requests through them
 * with drafts of every quality. All state lies in one block, so that bits are compared as a whole.
 */
#include <string.h>

#include "engine/base/mem.h"
#include "test/ops/world.h"

void case_slot_update(const struct t_devs *t, struct rng *r)
{
    (void)r;
    struct world *w = world_new();
    w->live[3] = w->live[4] = 1;
    w->seen[2][1] = 5;
    w->count[2][60] = 9;
    struct slot_start st[2] = {{2, 77, {.n_prompt = 4, .n_out = 3, .seed = 9}},
                               {3, 78, {.n_prompt = 1, .temperature = 0.5f}}};
    int32_t n_start = 2, stop[2] = {3, 4}, n_stop = 2, n_set = 3;
    struct page_set set[3] = {{0, 2, 0, 31}, {1, 6, PAGES - 1, 5}, {0, 2, 0, 32}};
    struct op_slot_update a = {.s = world_slots(w),
                               .start = st,
                               .n_start = &n_start,
                               .stop = stop,
                               .n_stop = &n_stop,
                               .set = set,
                               .n_set = &n_set,
                               .table = {w->table[0], w->table[1]},
                               .pages_max = {PAGES, PAGES},
                               .n_group = 2,
                               .drf_begin = 1};
    struct t_out o = {w, sizeof *w};
    t_everywhere(t, "slot_update", t_call_slot_update, &a, &o, 1);
    ck_assert_int_eq(w->live[2], 1);
    ck_assert_int_eq(w->live[3], 1); /* stopped, then given away in the same step */
    ck_assert_int_eq(w->live[4], 0);
    ck_assert_int_eq(w->gen[2], 77);
    ck_assert_int_eq(w->len[2], 0);
    ck_assert_int_eq(w->n_out[2], 3);
    ck_assert_int_eq(w->n_rows[2], 1);
    ck_assert(w->drf_first[2] == 1 && w->drf_next[2] == 1);
    ck_assert_uint_eq(w->params[2].seed, 9);
    ck_assert(!world_seen(w, 2, 32) && !world_seen(w, 2, 34) && w->count[2][60] == 0);
    ck_assert_int_eq(w->table[0][2 * PAGES], 32); /* in order: the last wins */
    ck_assert_int_eq(w->table[1][6 * PAGES + PAGES - 1], 5);
    n_start = n_stop = n_set = 0; /* a replay reads what the staging block holds then */
    struct world *before = mem_dup(w, sizeof *w);
    t_everywhere(t, "slot_update, nothing", t_call_slot_update, &a, &o, 1);
    t_same_bits("slot_update, nothing", before, w, sizeof *w);
    mem_free(before);
    mem_free(w);
}

static struct op_rows_build build_args(struct world *w, int rows)
{
    return (struct op_rows_build){.s = world_slots(w),
                                  .out = world_rows(w),
                                  .req_slot = w->req_slot,
                                  .req_gen = w->req_gen,
                                  .req_row0 = w->req_row0,
                                  .req_n = w->req_n,
                                  .reqs = REQS,
                                  .rows = rows};
}

/* Every row of request i against the slot, links by the parents alone. */
static void check_rows(const struct world *w, int i)
{
    int s = w->req_slot[i], row0 = w->req_row0[i];
    for (int j = 0; j < w->req_n[i]; j++) {
        int row = row0 + j, depth = world_depth(w, s, j);
        uint64_t anc = 1;
        for (int x = j; x > 0; x = w->parent[s][x - 1])
            anc |= (uint64_t)1 << x;
        ck_assert_int_eq(w->slot[row], s);
        ck_assert_int_eq(w->req[row], i);
        ck_assert_int_eq(w->at[row], w->len[s] + j);
        ck_assert_int_eq(w->pos[row], w->len[s] + depth);
        ck_assert_int_eq(w->tok[row], j ? w->draft[s][j - 1] : w->root[s]);
        ck_assert_int_eq(w->row_parent[row], j ? row0 + w->parent[s][j - 1] : -1);
        ck_assert_uint_eq(w->row_anc[row], anc);
        ck_assert_int_eq(w->row0[row], w->len[s]);
    }
}

static void rows_build_trees(const struct t_devs *t, struct rng *r)
{
    for (int round = 0; round < 40; round++) {
        struct world *w = world_new();
        int slots[REQS], gens[REQS], sum = 0;
        for (int i = 0; i < 5; i++) {
            int s = slots[i] = 1 + i,
                n = round == 0 ? (i ? 1 : LIM_ROWS_PER_REQ) : 1 + (int)rng_below(r, 13);
            gens[i] = 9 + i;
            world_slot(w, s, 9 + i, 2, 1 + (int)rng_below(r, LEN - 2));
            world_tree(w, r, s, n, V);
            if (round == 0)
                w->len[s] = 0;
            w->req_cap[i] = round == 0 ? 60 : 1 + (int)rng_below(r, 13);
        }
        world_reqs(w, slots, gens, 5);
        struct op_rows_build a = build_args(w, ROWS);
        a.req_cap = round % 2 ? w->req_cap : NULL;
        if (round == 0)
            a.s.len_max = a.rows = 64;
        struct t_out o = {w, sizeof *w};
        if (round == 0)
            w->live[2] = w->live[3] = w->live[4] = w->live[5] = 0;
        t_everywhere(t, "rows_build, trees", t_call_rows_build, &a, &o, 1);
        for (int i = 0; i < 5; i++) {
            int s = slots[i], want = w->n_rows[s], room = a.s.len_max - w->len[s];
            want = a.req_cap && w->req_cap[i] < want ? w->req_cap[i] : want;
            want = w->live[s] ? (want < room ? want : room) : 0;
            ck_assert_int_eq(w->req_n[i], want);
            ck_assert_int_eq(w->req_row0[i], sum);
            check_rows(w, i);
            sum += want;
        }
        for (; sum < ROWS; sum++)
            ck_assert(w->tok[sum] == -1 && w->row_parent[sum] == -1 && w->slot[sum] == 0);
        mem_free(w);
    }
}

void case_rows_build(const struct t_devs *t, struct rng *r)
{
    struct world *w = world_new();
    world_slot(w, 1, 5, 10, 2);
    world_slot(w, 2, 6, 4, 1);
    world_slot(w, 3, 7, 20, 9);
    world_slot(w, 4, 8, 3, 3);
    world_slot(w, 5, 9, LEN - 3, 2); /* len LEN - 2: two positions left */
    w->n_rows[2] = LEN - 10;
    w->n_rows[5] = 7;
    w->live[4] = 0;
    for (int j = 0; j < LIM_ROWS_PER_REQ; j++)
        w->draft[2][j] = 40 + j;
    world_reqs(w, (int[]){2, 3, 1, 0, 4, 5}, (int[]){6, 8, 5, 0, 8, 9}, 6);
    struct op_rows_build a = build_args(w, ROWS);
    struct t_out o = {w, sizeof *w};
    t_everywhere(t, "rows_build", t_call_rows_build, &a, &o, 1);
    static const int n[REQS] = {LEN - 10, 0 /* stale */, 1, 0, 0 /* dead */, 2, 0, 0};
    int row = 0;
    for (int i = 0; i < REQS; i++) {
        ck_assert_int_eq(w->req_n[i], n[i]);
        ck_assert_int_eq(w->req_row0[i], row);
        check_rows(w, i);
        row += n[i];
    }
    for (; row < ROWS; row++) {
        ck_assert_int_eq(w->tok[row], -1);
        ck_assert_int_eq(w->slot[row], 0);
        ck_assert_int_eq(w->req[row], -1);
        ck_assert_int_eq(w->pos[row], 0);
        ck_assert(w->at[row] == 0 && w->row_parent[row] == -1 && w->row_anc[row] == 0);
    }
    mem_free(w);
    rows_build_trees(t, r);
}

void case_rows_note(const struct t_devs *t, struct rng *r)
{
    (void)r;
    struct world *w = world_new();
    world_slot(w, 1, 1, 3, 2); /* resumed: positions 3 and 4 are outputs */
    world_slot(w, 2, 1, 9, 0);
    static const int tok[] = {4, 5, 4, 69, 4, -1, 7, 7}, slot[] = {1, 1, 1, 1, 1, 1, 0, 2},
                     pos[] = {0, 1, 2, 3, 4, 5, 0, 8};
    for (int i = 0; i < ROWS; i++) {
        w->tok[i] = i < 8 ? tok[i] : -1;
        w->slot[i] = i < 8 ? slot[i] : 0;
        w->pos[i] = i < 8 ? pos[i] : 0;
    }
    w->count[1][69] = UINT16_MAX;
    struct op_rows_note a = {world_slots(w), w->tok, w->slot, w->pos, ROWS};
    struct t_out o = {w, sizeof *w};
    t_everywhere(t, "rows_note", t_call_rows_note, &a, &o, 1);
    for (int i = 0; i < 5; i++)
        ck_assert_int_eq(w->hist[1][i], tok[i]);
    ck_assert(world_seen(w, 1, 4) && world_seen(w, 1, 5) && world_seen(w, 1, 69) &&
              !world_seen(w, 1, 7));
    ck_assert_int_eq(w->count[1][4], 1); /* the one at position 4; prompt tokens do not count */
    ck_assert_int_eq(w->count[1][5], 0);
    ck_assert_int_eq(w->count[1][69], UINT16_MAX); /* saturates */
    ck_assert(world_seen(w, 2, 7) && !world_seen(w, 0, 7));
    ck_assert_int_eq(w->hist[2][8], 7);
    mem_free(w);
}

void case_rows_place(const struct t_devs *t, struct rng *r)
{
    static const int pages[] = {1, 4, 16};
    for (int k = 0; k < 3; k++)
        for (int window = 0; window < 10; window += 3) {
            struct world *w = world_new();
            int page = pages[k];
            for (int i = 0; i < SLOTS; i++)
                w->drf_first[i] = i * 3;
            for (int i = 0; i < SLOTS * PAGES; i++)
                w->table[0][i] = (int32_t)rng_below(r, 1000);
            for (int i = 0; i < ROWS; i++) {
                w->slot[i] = (int32_t)rng_below(r, SLOTS);
                w->tok[i] = rng_below(r, 5) ? (int32_t)rng_below(r, V) : -1;
                w->at[i] =
                    (int32_t)rng_below(r, (uint64_t)(PAGES * page < LEN ? PAGES * page : LEN));
                w->pos[i] = (int32_t)rng_below(r, (uint64_t)w->at[i] + 1); /* a tree's row */
            }
            struct op_rows_place a = {.slot = w->slot,
                                      .pos = w->pos,
                                      .tok = w->tok,
                                      .at = w->at,
                                      .from = window % 2 ? NULL : w->drf_first,
                                      .first = w->first,
                                      .last = w->last,
                                      .wslot = w->wslot,
                                      .table = w->table[0],
                                      .rows = ROWS,
                                      .pages_max = PAGES,
                                      .page = page,
                                      .window = window};
            struct t_out o = {w, sizeof *w};
            t_everywhere(t, "rows_place", t_call_rows_place, &a, &o, 1);
            for (int i = 0; i < ROWS; i++) {
                int p = w->at[i], low = a.from ? w->slot[i] * 3 : 0;
                if (w->slot[i] == 0 || w->tok[i] < 0) {
                    ck_assert(w->first[i] == 0 && w->last[i] == 0 && w->wslot[i] == -1);
                    continue;
                }
                ck_assert_int_eq(w->last[i], p + 1);
                if (window && w->pos[i] + 1 - window > low)
                    low = w->pos[i] + 1 - window;
                ck_assert_int_eq(w->first[i], low);
                ck_assert_int_eq(w->wslot[i],
                                 w->table[0][w->slot[i] * PAGES + p / page] * page + p % page);
            }
            mem_free(w);
        }
}

/* ---- accept ---- */

static struct op_accept accept_args(struct world *w, bool prefill)
{
    return (struct op_accept){.s = world_slots(w),
                              .rows = world_rows(w),
                              .sample = w->sample,
                              .req_slot = w->req_slot,
                              .req_gen = w->req_gen,
                              .req_row0 = w->req_row0,
                              .req_n = w->req_n,
                              .last_sample = w->last_sample,
                              .ring = w->ring,
                              .step = &w->step,
                              .ring_depth = DEPTH,
                              .ring_stride = REQS,
                              .out = world_acc(w),
                              .reqs = REQS,
                              .prefill = prefill};
}

/* One request (slot 1, 10 prompt tokens) with drafts and samples; what comes of it. */
struct accept_case {
    const char *what;
    int n_out, drafts, draft[4], sample[5];
    int stop, min_out, max_out, len_max; /* 0: none / neutral */
    int want_n, want_fin, want_accepted;
};

static const struct accept_case g_accept[] = {
    {"plain", 1, 0, {0}, {20}, 0, 0, 0, 0, 1, FIN_NONE, 0},
    {"all accepted", 1, 4, {20, 21, 22, 23}, {20, 21, 22, 23, 24}, 0, 0, 0, 0, 5, FIN_NONE, 4},
    {"first wrong", 1, 4, {30, 21, 22, 23}, {20, 21, 22, 23, 24}, 0, 0, 0, 0, 1, FIN_NONE, 0},
    {"third wrong", 1, 4, {20, 21, 30, 23}, {20, 21, 22, 23, 24}, 0, 0, 0, 0, 3, FIN_NONE, 2},
    {"stop at the root's sample", 1, 2, {20, 21}, {20, 21, 22}, 20, 0, 0, 0, 1, FIN_STOP, 0},
    {"stop inside", 1, 3, {20, 21, 22}, {20, 21, 22, 23}, 21, 0, 0, 0, 2, FIN_STOP, 1},
    {"stop at the mismatch", 1, 2, {20, 30}, {20, 21, 22}, 21, 0, 0, 0, 2, FIN_STOP, 1},
    {"stop beats length", 2, 1, {20}, {20, 21}, 21, 0, 4, 0, 2, FIN_STOP, 1},
    {"length by max_out", 2, 3, {20, 21, 22}, {20, 21, 22, 23}, 0, 0, 4, 0, 2, FIN_LENGTH, 1},
    {"length before a later stop",
     2,
     3,
     {20, 21, 22},
     {20, 21, 22, 23},
     22,
     0,
     4,
     0,
     2,
     FIN_LENGTH,
     1},
    {"length by context", 2, 3, {20, 21, 22}, {20, 21, 22, 23}, 0, 0, 0, 15, 3, FIN_LENGTH, 2},
    {"stop id before min_out goes on", 1, 2, {20, 21}, {20, 21, 22}, 20, 3, 0, 0, 3, FIN_NONE, 2},
    {"stop id at min_out", 1, 2, {20, 21}, {20, 21, 22}, 22, 3, 0, 0, 3, FIN_STOP, 2},
    {"stop id one early", 1, 2, {20, 21}, {20, 21, 22}, 22, 4, 0, 0, 3, FIN_NONE, 2},
    {"max_out of one more", 5, 0, {0}, {20}, 0, 0, 6, 0, 1, FIN_LENGTH, 0},
};

static void accept_one(const struct t_devs *t, const struct accept_case *c)
{
    struct world *w = world_new();
    world_slot(w, 1, 4, 10, c->n_out);
    struct slot_params *p = &w->params[1];
    p->n_stop = c->stop ? 2 : 0;
    p->stop[0] = 69;
    p->stop[1] = c->stop;
    p->min_out = c->min_out;
    p->max_out = c->max_out ? c->max_out : 1000;
    p->len_max = c->len_max ? c->len_max : LEN;
    w->n_rows[1] = 1 + c->drafts;
    for (int j = 0; j < c->drafts; j++)
        w->draft[1][j] = c->draft[j];
    world_reqs(w, (int[]){0, 1}, (int[]){0, 4}, 2);
    struct op_rows_build b = build_args(w, ROWS);
    ck_assert_int_eq(dev_cpu.ops->rows_build(t->d[0], &b), OK);
    for (int i = 0; i < ROWS; i++)
        w->sample[i] = (struct sample_out){.token = i <= c->drafts ? c->sample[i] : -1};
    w->step = 6;
    int len = w->len[1];
    struct op_accept a = accept_args(w, false);
    struct t_out o = {w, sizeof *w};
    t_everywhere(t, c->what, t_call_accept, &a, &o, 1);
    const struct ring_rec *rec = &w->ring[6 % DEPTH * REQS + 1];
    ck_assert_msg(rec->n == c->want_n && rec->fin == c->want_fin &&
                      rec->n_accepted == c->want_accepted && rec->n_draft == c->drafts,
                  "%s: n %d fin %d accepted %d of %d", c->what, rec->n, rec->fin, rec->n_accepted,
                  rec->n_draft);
    ck_assert(rec->slot == 1 && rec->gen == 4 && rec->step == 6);
    ck_assert_int_eq(w->len[1], len + rec->n);
    ck_assert_int_eq(w->n_out[1], c->n_out + rec->n);
    ck_assert_int_eq(w->root[1], c->sample[rec->n - 1]);
    ck_assert_int_eq(w->live[1], c->want_fin == FIN_NONE);
    ck_assert_int_eq(w->n_rows[1], 1);
    for (int j = 0; j < rec->n; j++) {
        ck_assert_int_eq(rec->tok[j].token, c->sample[j]);
        ck_assert_int_eq(w->hist[1][len + 1 + j], c->sample[j]);
        ck_assert(world_seen(w, 1, c->sample[j]) && w->count[1][c->sample[j]] == 1);
    }
    for (int j = rec->n; j <= c->drafts; j++) /* what was not emitted left no trace */
        ck_assert(!world_seen(w, 1, c->sample[j]));
    ck_assert_int_eq(w->ring[6 % DEPTH * REQS].n, 0); /* the padding request */
    mem_free(w);
}

/* Stale generation, dead slot, a chunk in the middle, the last chunk, in one prefill step. */
static void accept_prefill(const struct t_devs *t)
{
    struct world *w = world_new();
    for (int s = 1; s <= 5; s++) {
        world_slot(w, s, s, 20, 0);
        w->len[s] = 4;
        w->params[s].max_out = s == 5 ? 1 : 100;
    }
    w->live[2] = 0;
    world_reqs(w, (int[]){1, 2, 3, 4, 5}, (int[]){1, 2, 99, 4, 5}, 5);
    for (int i = 0; i < REQS; i++) {
        w->req_n[i] = i < 5 ? 3 + i : 0;
        w->req_row0[i] = 0;
        w->last_sample[i] = i == 3 ? 1 : i == 4 ? 0 : -1;
    }
    w->sample[0] = (struct sample_out){.token = 33, .bad = 1};
    w->sample[1] = (struct sample_out){.token = 34};
    w->step = 1;
    struct op_accept a = accept_args(w, true);
    struct t_out o = {w, sizeof *w};
    t_everywhere(t, "accept, prefill", t_call_accept, &a, &o, 1);
    const struct ring_rec *rec = &w->ring[REQS];
    ck_assert(w->len[1] == 7 && rec[0].n == 0 && w->live[1] && rec[0].gen == 1);
    ck_assert(w->len[2] == 4 && rec[1].n == 0);
    ck_assert(w->len[3] == 4 && rec[2].n == 0 && rec[2].gen == 99);
    ck_assert(w->len[4] == 10 && rec[3].n == 1 && rec[3].tok[0].token == 34);
    ck_assert(w->root[4] == 34 && w->n_out[4] == 1 && w->hist[4][10] == 34 && w->live[4]);
    ck_assert(w->acc_n[0] == 0 && w->acc_n[1] == 0 && w->acc_n[2] == 0 && w->acc_n[5] == 0);
    ck_assert(w->acc_n[3] == 1 && w->acc_tok[3][0] == 34 && w->acc_len[3] == 9);
    ck_assert(w->acc_row[3][0] == w->req_row0[3] + 5 && w->acc_row[4][0] == 6);
    ck_assert(w->len[5] == 11 && rec[4].fin == FIN_LENGTH && !w->live[5] && rec[4].tok[0].bad);
    mem_free(w);
}

static void accept_dead(const struct t_devs *t)
{
    struct world *w = world_new();
    world_slot(w, 1, 4, 10, 1);
    world_slot(w, 2, 4, 10, 1);
    w->live[1] = 0;
    world_reqs(w, (int[]){1, 2, 3}, (int[]){4, 3, 1}, 3);
    struct op_rows_build b = build_args(w, ROWS);
    ck_assert_int_eq(dev_cpu.ops->rows_build(t->d[0], &b), OK);
    w->step = 3;
    struct world *before = mem_dup(w, sizeof *w);
    struct op_accept a = accept_args(w, false);
    struct t_out o = {w, sizeof *w};
    t_everywhere(t, "accept, nothing alive", t_call_accept, &a, &o, 1);
    for (int i = 0; i < REQS; i++)
        ck_assert(w->ring[3 * REQS + i].n == 0 && w->ring[3 * REQS + i].fin == FIN_NONE);
    memcpy(before->ring, w->ring, sizeof w->ring);
    for (int i = 0; i < REQS; i++)
        ck_assert_int_eq(w->acc_n[i], 0);
    memcpy(before->acc_n, w->acc_n, sizeof w->acc_n);
    memcpy(before->acc_len, w->acc_len, sizeof w->acc_len);
    t_same_bits("accept, nothing alive", before, w, sizeof *w);
    mem_free(before);
    mem_free(w);
}

/* A "model" whose token at position p is a function of p alone: whatever is drafted, the emitted
 * stream must be that function, cut by the finish rules. */
static int32_t model(int p)
{
    return (int32_t)(((uint32_t)p * 2654435761u >> 8) % 60u);
}

/* Trees against a walk over the slot's own links: which node is next is asked of all nodes. */
static int walk(const struct world *w, int s, int n, int row0, int *path)
{
    int cur = 0, len = 0;
    for (bool on = true; on && len < LIM_EMIT;) {
        path[len++] = cur;
        on = false;
        for (int c = 1; c < n && !on; c++)
            if (w->parent[s][c - 1] == cur && w->draft[s][c - 1] == w->sample[row0 + cur].token) {
                cur = c;
                on = true;
            }
    }
    return len;
}

static void accept_trees(const struct t_devs *t, struct rng *r)
{
    int deep = 0, capped = 0;
    for (int round = 0; round < 300; round++) {
        struct world *w = world_new();
        bool chain = round % 8 == 0; /* right all the way: the emission bound */
        int n = chain ? 2 + (int)rng_below(r, 24) : 1 + (int)rng_below(r, LIM_ROWS_PER_REQ);
        int vocab = 1 + round % 4, s = 1 + round % 5;
        world_slot(w, s, 4, 5, 1);
        w->len[s] = 2; /* room for many rows */
        w->params[s].n_prompt = 2;
        if (chain)
            for (int i = 0; i < n; i++)
                w->draft[s][i] = i % 50;
        else
            world_tree(w, r, s, n, vocab);
        w->n_rows[s] = n;
        if (round % 3 == 1) { /* a finish rule somewhere */
            w->params[s].n_stop = 1;
            w->params[s].stop[0] = 0;
            w->params[s].min_out = (int)rng_below(r, 6);
        }
        world_reqs(w, (int[]){0, s}, (int[]){0, 4}, 2);
        struct op_rows_build b = build_args(w, ROWS);
        ck_assert_int_eq(dev_cpu.ops->rows_build(t->d[0], &b), OK);
        n = w->req_n[1];
        int row0 = w->req_row0[1], len = w->len[s], path[LIM_EMIT], most = 0;
        for (int i = 0; i < ROWS; i++)
            w->sample[i] = (struct sample_out){.token = (int32_t)rng_below(r, (uint64_t)vocab)};
        if (chain)
            for (int i = 0; i + 1 < n; i++)
                w->sample[row0 + i].token = w->draft[s][i];
        int want = walk(w, s, n, row0, path), fin = FIN_NONE;
        for (int k = 0; k < want; k++)
            if (fin == FIN_NONE && w->n_out[s] + k >= w->params[s].min_out && w->params[s].n_stop &&
                w->sample[row0 + path[k]].token == 0) {
                want = k + 1;
                fin = FIN_STOP;
            }
        for (int j = 0; j < n; j++)
            most = world_depth(w, s, j) > most ? world_depth(w, s, j) : most;
        w->step = 2;
        struct op_accept a = accept_args(w, false);
        struct t_out o = {w, sizeof *w};
        t_everywhere(t, "accept, trees", t_call_accept, &a, &o, 1);
        const struct ring_rec *rec = &w->ring[2 * REQS + 1];
        ck_assert_msg(rec->n == want && rec->fin == fin, "round %d: n %d fin %d, want %d %d", round,
                      rec->n, rec->fin, want, fin);
        ck_assert(rec->n_draft == n - 1 && rec->n_accepted == want - 1 && rec->n_deep == most);
        ck_assert(w->acc_n[1] == want && w->acc_len[1] == len && w->acc_n[0] == 0);
        ck_assert(w->len[s] == len + want && w->live[s] == (fin == FIN_NONE));
        for (int k = 0; k < want; k++) {
            int32_t tok = w->sample[row0 + path[k]].token;
            ck_assert_int_eq(w->acc_row[1][k], row0 + path[k]);
            ck_assert(w->acc_tok[1][k] == tok && rec->tok[k].token == tok);
            ck_assert_int_eq(w->hist[s][len + 1 + k], tok);
        }
        deep += want > 3;
        capped += want == LIM_EMIT;
        mem_free(w);
    }
    ck_assert(deep > 20 && capped > 5);
}

static void simulate(const struct t_devs *t, struct rng *r, int quality, int stop, int max_out)
{
    struct world *w = world_new();
    enum { PROMPT = 5 };
    world_slot(w, 1, 1, PROMPT, 1);
    w->root[1] = model(PROMPT);
    w->params[1].max_out = max_out;
    w->params[1].n_stop = 1;
    w->params[1].stop[0] = stop;
    int out = 1, fin = FIN_NONE, steps = 0;
    while (w->live[1]) {
        int n = (int)rng_below(r, LIM_EMIT);
        w->n_rows[1] = 1 + n;
        for (int j = 0; j < n; j++) { /* quality 0: wrong, 1: mixed, 2: oracle */
            bool right = quality == 2 || (quality == 1 && rng_below(r, 4));
            w->draft[1][j] = right ? model(w->len[1] + 1 + j) : 61;
        }
        world_reqs(w, (int[]){1}, (int[]){1}, 1);
        struct op_rows_build b = build_args(w, ROWS);
        ck_assert_int_eq(dev_cpu.ops->rows_build(t->d[0], &b), OK);
        for (int i = 0; i < w->req_n[0]; i++)
            w->sample[i] = (struct sample_out){.token = model(w->pos[i] + 1)};
        w->step = steps++;
        struct op_accept a = accept_args(w, false);
        ck_assert_int_eq(dev_cpu.ops->accept(t->d[0], &a), OK);
        const struct ring_rec *rec = &w->ring[w->step % DEPTH * REQS];
        ck_assert_int_ge(rec->n, 1);
        for (int j = 0; j < rec->n; j++, out++) {
            ck_assert_int_eq(fin, FIN_NONE); /* nothing after the end */
            ck_assert_int_eq(rec->tok[j].token, model(PROMPT + out));
            if (model(PROMPT + out) == stop)
                fin = FIN_STOP;
            else if (out + 1 >= max_out || PROMPT + out + 1 >= LEN)
                fin = FIN_LENGTH;
        }
        ck_assert_int_eq(rec->fin, fin);
        if (quality == 2 && fin == FIN_NONE)
            ck_assert_int_eq(rec->n_accepted, rec->n_draft);
        if (quality == 0)
            ck_assert_int_eq(rec->n, 1);
    }
    ck_assert_int_ne(fin, FIN_NONE);
    mem_free(w);
}

void case_accept(const struct t_devs *t, struct rng *r)
{
    for (size_t i = 0; i < sizeof g_accept / sizeof g_accept[0]; i++)
        accept_one(t, &g_accept[i]);
    accept_prefill(t);
    accept_dead(t);
    accept_trees(t, r);
    for (int quality = 0; quality < 3; quality++)
        for (int i = 0; i < 20; i++)
            simulate(t, r, quality, i % 2 ? model(12 + i) : 65, 1 + (int)rng_below(r, 60));
}
