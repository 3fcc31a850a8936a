/* Goal: two KV groups of different head dims and page life live side by side: each has its pool,
 * its table and its window, and attention over either sees exactly the keys it should.
 * Method: the allocator (pages.h) drives the CPU device as the engine does: page-table entries by
 * slot_update, places by rows_place, rows by kv_write, then attention by the selected backend. Keys
 * and values are a function of (sequence, position), so the expected output is summed directly in
 * double. The window group's pool is too small for all positions: pages must change hands, and
 * every page that is given back is filled with NaN. */
#include <check.h>
#include <math.h>
#include <string.h>

#include "attention/attn.h"
#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/base/rng.h"
#include "engine/kv/pages.h"
#include "engine/kv/pool.h"

enum { SEQS = 3, LEN = 120, PAGE = 16, LAYERS = 2, HEADS = 4, ROWS = 8, WINDOW = 20 };

static const struct kv_group groups[2] = {
    {.kind = ATTN_GQA,
     .n_layer = LAYERS,
     .n_kv = 2,
     .qk_dim = 16,
     .v_dim = 8,
     .k_width = 32,
     .v_width = 16,
     .dt = DT_F32},
    {.kind = ATTN_GQA,
     .n_layer = LAYERS,
     .n_kv = 1,
     .qk_dim = 24,
     .v_dim = 24,
     .k_width = 24,
     .v_width = 24,
     .window = WINDOW,
     .dt = DT_F32},
};

struct rig {
    const struct dev_ops *ops;
    struct dev *d;
    struct kv_pool pool;
    struct attn *attn[2];
    const struct attn_backend *b[2];
    struct slot_arrays slots;
    struct kv *kv;
    struct kv_seq seq[SEQS];
    int len[SEQS];
    struct page_set set[64];
    int32_t n_set, zero;
    /* rows of a step */
    int32_t slot[ROWS], pos[ROWS], tok[ROWS], first[2][ROWS], last[2][ROWS], wslot[2][ROWS];
};

/* Element i of what position `pos` of a sequence holds in a layer: kind 0 key, 1 value, 2 query. */
static float value(int seq, int pos, int g, int layer, int kind, int i)
{
    struct rng r = {(uint64_t)((((seq * 1000 + pos) * 2 + g) * LAYERS + layer) * 3 + kind) * 4096 +
                    (uint64_t)i};
    return (float)(rng_unit(&r) * 2 - 1);
}

static void open_group(struct rig *m, int g)
{
    const struct kv_group *k = &groups[g];
    struct attn_need need = {.role = TGT_PREFILL,
                             .kind = k->kind,
                             .mask = MASK_RANGE,
                             .graph = GRAPH_NEVER,
                             .kv_type = DT_F32,
                             .page = PAGE,
                             .n_head = HEADS,
                             .n_kv = k->n_kv,
                             .dims = {(int16_t)k->qk_dim, (int16_t)k->v_dim},
                             .window = k->window,
                             .cp = 1};
    struct graph_dims dims = {.reqs = SEQS,
                              .seqs = SEQS,
                              .rows = ROWS,
                              .qlen = ROWS,
                              .pages = kv_pages(LEN, PAGE),
                              .role = TGT_PREFILL};
    struct err e = {0};
    ck_assert_msg(attn_select(&m->b[g], "cpu", &need, NULL, &e) == OK, "%s", e.text);
    ck_assert_msg(m->b[g]->open(&m->attn[g], m->d, &need, &dims, &e) == OK, "%s", e.text);
}

static void rig_open(struct rig *m)
{
    memset(m, 0, sizeof *m);
    struct err e = {0};
    struct dev_conf dc = {.threads = 1};
    m->ops = &dev_cpu;
    ck_assert_int_eq(m->ops->open(&m->d, &dc, &e), OK);
    int n_page[2] = {SEQS * kv_pages(LEN, PAGE), SEQS * 3 + 1};
    ck_assert_int_eq(
        kv_pool_open(&m->pool, groups, 2, n_page, PAGE, LEN, SEQS + 1, m->ops, m->d, &e), OK);
    struct kv_conf c = {.page = PAGE, .n_group = 2};
    for (int g = 0; g < 2; g++) {
        const struct kv_view *v = &m->pool.view[g];
        size_t cells = (size_t)LAYERS * (size_t)(n_page[g] * PAGE);
        float *k = v->k, *val = v->v;
        for (size_t i = 0; i < cells * (size_t)groups[g].k_width; i++)
            k[i] = NAN;
        for (size_t i = 0; i < cells * (size_t)groups[g].v_width; i++)
            val[i] = NAN;
        c.group[g].n_page = n_page[g];
        c.group[g].pages_max = v->pages_max;
        c.group[g].window = groups[g].window;
        open_group(m, g);
    }
    ck_assert_int_eq(kv_open(&m->kv, &c, &e), OK);
    m->slots.n_slot = SEQS + 1;
}

static void rig_close(struct rig *m)
{
    for (int i = 0; i < SEQS; i++)
        kv_seq_done(m->kv, &m->seq[i]);
    kv_check(m->kv);
    kv_close(m->kv);
    for (int g = 0; g < 2; g++)
        m->b[g]->close(m->attn[g]);
    kv_pool_close(&m->pool, m->ops, m->d);
    m->ops->close(m->d);
}

static void write_rows(struct rig *m, int g, int layer, int n)
{
    const struct kv_group *k = &groups[g];
    const struct kv_view *v = &m->pool.view[g];
    float x[ROWS * 32];
    for (int kind = 0; kind < 2; kind++) {
        int width = kind ? k->v_width : k->k_width;
        for (int r = 0; r < n; r++)
            for (int i = 0; i < width; i++)
                x[r * width + i] = value(m->slot[r] - 1, m->pos[r], g, layer, kind, i);
        struct op_kv_write a = {.cache = (float *)(kind ? v->v : v->k) +
                                         (size_t)layer * (size_t)(v->n_page * PAGE * width),
                                .dt = DT_F32,
                                .x = x,
                                .wslot = m->wslot[g],
                                .rows = n,
                                .width = width,
                                .ldx = width};
        ck_assert_int_eq(m->ops->ops->kv_write(m->d, &a), OK);
    }
}

/* What row r, head h should see: softmax over keys [first, pos], summed in double. */
static void expect(const struct rig *m, int g, int layer, int r, int h, double *out)
{
    const struct kv_group *k = &groups[g];
    int seq = m->slot[r] - 1, pos = m->pos[r], kh = h / (HEADS / k->n_kv);
    int from = k->window && pos + 1 > k->window ? pos + 1 - k->window : 0;
    double den = 0;
    memset(out, 0, sizeof *out * (size_t)k->v_dim);
    for (int q = from; q <= pos; q++) {
        double s = 0;
        for (int i = 0; i < k->qk_dim; i++)
            s += (double)value(seq, pos, g, layer, 2, h * k->qk_dim + i) *
                 (double)value(seq, q, g, layer, 0, kh * k->qk_dim + i);
        double w = exp(s);
        den += w;
        for (int i = 0; i < k->v_dim; i++)
            out[i] += w * (double)value(seq, q, g, layer, 1, kh * k->v_dim + i);
    }
    for (int i = 0; i < k->v_dim; i++)
        out[i] /= den;
}

static void attend(struct rig *m, int g, int layer, int n)
{
    const struct kv_group *k = &groups[g];
    const struct kv_view *v = &m->pool.view[g];
    size_t plane = (size_t)layer * (size_t)(v->n_page * PAGE);
    float q[ROWS * HEADS * 24], out[ROWS * HEADS * 24];
    for (int r = 0; r < n; r++)
        for (int i = 0; i < HEADS * k->qk_dim; i++)
            q[r * HEADS * k->qk_dim + i] = value(m->slot[r] - 1, m->pos[r], g, layer, 2, i);
    struct graph_dims dims = {.reqs = SEQS,
                              .seqs = SEQS,
                              .rows = n,
                              .qlen = n,
                              .pages = v->pages_max,
                              .role = TGT_PREFILL};
    struct attn_call c = {.role = TGT_PREFILL,
                          .kind = k->kind,
                          .mask = MASK_RANGE,
                          .rows = n,
                          .n_head = HEADS,
                          .n_kv = k->n_kv,
                          .dims = {(int16_t)k->qk_dim, (int16_t)k->v_dim},
                          .q = q,
                          .ldq = HEADS * k->qk_dim,
                          .out = out,
                          .ldo = HEADS * k->v_dim,
                          .k = (float *)v->k + plane * (size_t)k->k_width,
                          .v = (float *)v->v + plane * (size_t)k->v_width,
                          .kv_type = DT_F32,
                          .slot = m->slot,
                          .first = m->first[g],
                          .last = m->last[g],
                          .table = v->table,
                          .pages_max = v->pages_max,
                          .page = PAGE,
                          .scale = 1,
                          .cp_world = 1};
    struct err e = {0};
    ck_assert_msg(m->b[g]->plan(m->attn[g], &dims, &e) == OK, "%s", e.text);
    ck_assert_msg(m->b[g]->run(m->attn[g], &c, &e) == OK, "%s", e.text);
    for (int r = 0; r < n; r++)
        for (int h = 0; h < HEADS; h++) {
            double want[24];
            expect(m, g, layer, r, h, want);
            for (int i = 0; i < k->v_dim; i++) {
                double have = (double)out[(r * HEADS + h) * k->v_dim + i];
                ck_assert_msg(fabs(have - want[i]) < 1e-5, "group %d, position %d: %g, not %g", g,
                              m->pos[r], have, want[i]);
            }
        }
}

/* Poisons the pages that a group gives back, as their next user would overwrite them. */
static void pass(struct rig *m, int i)
{
    struct kv_table old[2];
    int32_t page[2][LEN];
    for (int g = 0; g < 2; g++) {
        old[g] = m->seq[i].t[g];
        if (old[g].end)
            memcpy(page[g], old[g].page, sizeof(int32_t) * (size_t)old[g].end);
    }
    kv_pass(m->kv, &m->seq[i], m->len[i]);
    ck_assert_int_eq(m->seq[i].t[0].first, 0); /* full attention keeps everything */
    for (int j = old[1].first; j < m->seq[i].t[1].first; j++)
        for (int l = 0; l < LAYERS; l++) {
            const struct kv_view *v = &m->pool.view[1];
            float *k = v->k, *val = v->v;
            size_t at = ((size_t)l * (size_t)v->n_page + (size_t)page[1][j]) * PAGE;
            for (int x = 0; x < PAGE * 24; x++)
                k[at * 24 + (size_t)x] = val[at * 24 + (size_t)x] = NAN;
        }
}

static void step(struct rig *m, int i, int n)
{
    pass(m, i);
    m->n_set = kv_grow(m->kv, &m->seq[i], i + 1, m->len[i] + n, m->set, 64);
    ck_assert_int_ge(m->n_set, 0);
    struct op_slot_update u = {
        .s = m->slots, .n_start = &m->zero, .n_stop = &m->zero, .n_set = &m->n_set, .set = m->set};
    u.n_group = 2;
    for (int g = 0; g < 2; g++) {
        u.table[g] = m->pool.table[g];
        u.pages_max[g] = m->pool.view[g].pages_max;
    }
    ck_assert_int_eq(m->ops->ops->slot_update(m->d, &u), OK);
    for (int r = 0; r < n; r++) {
        m->slot[r] = i + 1;
        m->pos[r] = m->len[i] + r;
        m->tok[r] = 1;
    }
    for (int g = 0; g < 2; g++) {
        struct op_rows_place p = {.slot = m->slot,
                                  .pos = m->pos,
                                  .tok = m->tok,
                                  .at = m->pos,
                                  .first = m->first[g],
                                  .last = m->last[g],
                                  .wslot = m->wslot[g],
                                  .table = m->pool.table[g],
                                  .rows = n,
                                  .pages_max = m->pool.view[g].pages_max,
                                  .page = PAGE,
                                  .window = groups[g].window};
        ck_assert_int_eq(m->ops->ops->rows_place(m->d, &p), OK);
        for (int l = 0; l < LAYERS; l++) {
            write_rows(m, g, l, n);
            attend(m, g, l, n);
        }
    }
    m->len[i] += n;
}

START_TEST(side_by_side)
{
    struct rig m;
    struct rng r = {11};
    rig_open(&m);
    for (int left = SEQS * LEN; left > 0;) { /* chunks and single rows, sequences in turn */
        int i = (int)rng_below(&r, SEQS), n = rng_below(&r, 2) ? 1 : 1 + (int)rng_below(&r, ROWS);
        n = n < LEN - m.len[i] ? n : LEN - m.len[i];
        if (n)
            step(&m, i, n);
        left -= n;
        kv_check(m.kv);
        ck_assert_int_le(kv_held(&m.seq[i], 1), kv_need(m.kv, 1, LEN, ROWS));
    }
    for (int i = 0; i < SEQS; i++) {
        ck_assert_int_eq(kv_held(&m.seq[i], 0), kv_pages(LEN, PAGE));
        ck_assert_int_le(kv_held(&m.seq[i], 1), 3);
    }
    rig_close(&m);
}
END_TEST

Suite *suite_kv_groups(void);
Suite *suite_kv_groups(void)
{
    Suite *s = suite_create("kv_groups");
    TCase *c = tcase_create("contract");
    tcase_add_test(c, side_by_side);
    suite_add_tcase(s, c);
    return s;
}
