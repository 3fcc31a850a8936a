/* Test harness around a model; see the header. */
#include "test/model/runner.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/base/rng.h"

enum { PREFILL, VERIFY, TREE };

static enum role role_of(const struct mrun *r, int which)
{
    static const enum role target[] = {TGT_PREFILL, TGT_VERIFY, TGT_VERIFY},
                           drafter[] = {DRF_PREFILL, DRF_EXTEND, DRF_DECODE};
    return r->c.target ? drafter[which] : target[which];
}

static int dev_array(struct mrun *r, void *out, size_t bytes, struct err *e)
{
    void *p;
    TRY(r->ops->alloc(r->d, &p, bytes, DEV_MEM_DEVICE, e));
    memcpy(out, &p, sizeof p);
    return OK;
}

static int open_attention(struct mrun *r, struct err *e)
{
    for (int i = 0; i < 3; i++) {
        for (int g = 0; g < r->info->n_group; g++) {
            struct attn_use *u = &r->use[i][g];
            struct attn_need need;
            struct graph_dims max = {.reqs = r->c.rows_max,
                                     .seqs = r->c.rows_max,
                                     .rows = r->c.rows_max,
                                     .qlen = r->c.rows_max,
                                     .pages = r->kv.view[g].pages_max,
                                     .role = role_of(r, i)};
            model_attn_need(r->m, g, max.role, r->c.mla_form, i ? LIM_ROWS_PER_REQ : 0, &need);
            need.page = r->c.page;
            if (i == TREE)
                need.mask = MASK_TREE;
            if (i)
                max.qlen = LIM_ROWS_PER_REQ;
            TRY(attn_select(&u->b, r->ops->name, &need, NULL, e));
            TRY(u->b->open(&u->a, r->d, &need, &max, e));
            u->kind = need.kind;
        }
    }
    return OK;
}

static int open_rows(struct mrun *r, struct err *e)
{
    size_t n = (size_t)r->c.rows_max * sizeof(int32_t);
    TRY(dev_array(r, &r->row.at, n, e));
    TRY(dev_array(r, &r->row.row0, n, e));
    TRY(dev_array(r, &r->from, (size_t)r->c.n_slot * sizeof(int32_t), e));
    int32_t first[64];
    CHECK(r->c.n_slot <= 64);
    for (int i = 0; i < r->c.n_slot; i++)
        first[i] = r->info->shift;
    TRY(r->ops->copy_in(r->d, r->from, first, (size_t)r->c.n_slot * sizeof first[0], e));
    TRY(dev_array(r, &r->row.anc, 2 * n, e));
    TRY(dev_array(r, &r->row.tok, n, e));
    TRY(dev_array(r, &r->row.slot, n, e));
    TRY(dev_array(r, &r->row.pos, n, e));
    TRY(dev_array(r, &r->row.req, n, e));
    for (int g = 0; g < r->info->n_group; g++) {
        TRY(dev_array(r, &r->row.first[g], n, e));
        TRY(dev_array(r, &r->row.last[g], n, e));
        TRY(dev_array(r, &r->row.wslot[g], n, e));
    }
    size_t f = (size_t)r->c.rows_max * sizeof(float), wide = f * (size_t)r->info->feat;
    int taps =
        r->info->n_tap ? r->info->n_tap * r->c.target->info->hidden : r->c.n_tap * r->info->hidden;
    if (taps)
        TRY(dev_array(r, &r->taps, f * (size_t)taps, e));
    if (wide)
        TRY(dev_array(r, &r->feat, wide, e));
    TRY(dev_array(r, &r->src, n, e));
    TRY(dev_array(r, &r->hidden, f * (size_t)r->info->hidden, e));
    return dev_array(r, &r->logits, f * (size_t)r->info->vocab, e);
}

/* NaN in every type of cache. */
static int poison(struct mrun *r, void *pool, size_t bytes, struct err *e)
{
    void *nan = mem_alloc(bytes);
    memset(nan, 0xff, bytes);
    int ret = r->ops->copy_in(r->d, pool, nan, bytes, e);
    mem_free(nan);
    return ret;
}

static int open_pool(struct mrun *r, struct err *e)
{
    int per_slot = kv_pages(r->c.len_max, r->c.page), n_page[LIM_KV_GROUPS];
    struct rng rng = {r->c.seed + 1};
    r->n_order = per_slot * (r->c.n_slot - 1);
    for (int g = 0; g < r->info->n_group; g++)
        n_page[g] = r->n_order + 1;
    TRY(kv_pool_open(&r->kv, r->info->group, r->info->n_group, n_page, r->c.page, r->c.len_max,
                     r->c.n_slot, r->ops, r->d, e));
    r->order = MEM_ARRAY(int, r->n_order);
    for (int i = 0; i < r->n_order; i++) {
        int j = (int)rng_below(&rng, (uint64_t)i + 1);
        r->order[i] = r->order[j];
        r->order[j] = i + 1;
    }
    for (int g = 0; g < r->info->n_group; g++) {
        const struct kv_group *k = &r->info->group[g];
        struct kv_view *v = &r->kv.view[g];
        size_t rows = (size_t)k->n_layer * (size_t)v->n_page * (size_t)v->page;
        size_t size = dtype_size(k->dt);
        int n = r->c.n_slot * v->pages_max;
        r->table[g] = MEM_ARRAY(int32_t, n);
        for (int i = 0; i < n; i++)
            r->table[g][i] = INT32_MAX;
        TRY(poison(r, v->k, rows * (size_t)k->k_width * size, e));
        if (v->v)
            TRY(poison(r, v->v, rows * (size_t)k->v_width * size, e));
    }
    return OK;
}

int mrun_open(struct mrun *r, const char *dir, const struct mrun_conf *c, struct err *e)
{
    int ret;
    *r = (struct mrun){.c = *c, .ops = &dev_cpu};
    r->c.threads = c->threads ? c->threads : 1;
    r->c.page = c->page ? c->page : 16;
    r->c.n_slot = c->n_slot ? c->n_slot : 4;
    r->c.mla_form = c->mla_form ? c->mla_form : ATTN_MLA_ABSORBED;
    r->c.model.path = dir;
    if (!c->target)
        TRY_OUT(model_open_conf(&r->m, &r->c.model, e));
    else if (dir)
        TRY_OUT(model_open_draft(&r->m, &r->c.model, c->target->m, e));
    else
        TRY_OUT(model_open_mtp(&r->m, c->target->m, e));
    model_kv_dtype(r->m, c->kv_dtype ? c->kv_dtype : r->ops->kv_dtype);
    r->info = model_info(r->m);
    TRY_OUT(r->ops->open(&r->d, &(struct dev_conf){.threads = r->c.threads}, e));
    TRY_OUT(model_place(r->m, r->ops, r->d, r->c.rows_max, r->c.len_max, e));
    TRY_OUT(open_pool(r, e));
    TRY_OUT(open_rows(r, e));
    TRY_OUT(open_attention(r, e));
    return OK;
out:
    mrun_close(r);
    return ret;
}

void mrun_close(struct mrun *r)
{
    for (int i = 0; i < 3; i++)
        for (int g = 0; g < LIM_KV_GROUPS; g++)
            if (r->use[i][g].a)
                r->use[i][g].b->close(r->use[i][g].a);
    if (r->d) {
        void *p[] = {r->row.tok,  r->row.slot, r->row.pos, r->row.req, r->row.at,
                     r->row.row0, r->row.anc,  r->from,    r->hidden,  r->logits,
                     r->taps,     r->feat,     r->src};
        for (size_t i = 0; i < ARRAY_LEN(p); i++)
            if (p[i])
                r->ops->free(r->d, p[i]);
        for (int g = 0; g < LIM_KV_GROUPS; g++) {
            void *q[] = {r->row.first[g], r->row.last[g], r->row.wslot[g]};
            for (size_t i = 0; i < ARRAY_LEN(q); i++)
                if (q[i])
                    r->ops->free(r->d, q[i]);
        }
        kv_pool_close(&r->kv, r->ops, r->d);
        model_unplace(r->m);
        r->ops->close(r->d);
    }
    for (int g = 0; g < LIM_KV_GROUPS; g++)
        mem_free(r->table[g]);
    mem_free(r->order);
    model_close(r->m);
    *r = (struct mrun){0};
}

/* Pages for every row's position, and the tables on the device. */
static int back_rows(struct mrun *r, int n, const struct mrow *rows, bool tree, struct err *e)
{
    for (int i = 0; i < n; i++) {
        if (rows[i].tok < 0)
            continue;
        int pos = tree ? rows[i].at : rows[i].pos;
        CHECK(rows[i].slot > 0 && rows[i].slot < r->c.n_slot && pos < r->c.len_max);
        int at = rows[i].slot * r->kv.view[0].pages_max + pos / r->c.page;
        if (r->table[0][at] != INT32_MAX)
            continue;
        CHECK(r->n_order > 0);
        int page = r->order[--r->n_order];
        for (int g = 0; g < r->info->n_group; g++)
            r->table[g][at] = page;
    }
    for (int g = 0; g < r->info->n_group; g++) {
        size_t bytes = (size_t)(r->c.n_slot * r->kv.view[g].pages_max) * sizeof(int32_t);
        TRY(r->ops->copy_in(r->d, r->kv.table[g], r->table[g], bytes, e));
    }
    return OK;
}

static int put_rows(struct mrun *r, int n, const struct mrow *rows, bool tree, struct err *e)
{
    enum { COLS = 6 };
    int32_t *v = MEM_ARRAY(int32_t, COLS * n);
    uint64_t *anc = MEM_ARRAY(uint64_t, n);
    for (int i = 0; i < n; i++) {
        bool pad = rows[i].tok < 0;
        v[i] = rows[i].tok;
        v[n + i] = pad ? 0 : rows[i].slot;
        v[2 * n + i] = pad ? 0 : rows[i].pos - r->info->shift;
        v[3 * n + i] = pad ? -1 : rows[i].slot - 1;
        v[4 * n + i] = pad ? 0 : tree ? rows[i].at : rows[i].pos;
        v[5 * n + i] = pad ? 0 : rows[i].row0;
        anc[i] = rows[i].anc;
    }
    size_t bytes = (size_t)n * sizeof(int32_t);
    int32_t *to[COLS] = {r->row.tok, r->row.slot, r->row.pos, r->row.req, r->row.at, r->row.row0};
    int ret = r->ops->copy_in(r->d, r->row.anc, anc, 2 * bytes, e);
    if (ret < 0)
        goto out;
    for (int i = 0; i < COLS; i++)
        TRY_OUT(r->ops->copy_in(r->d, to[i], v + i * n, bytes, e));
    for (int g = 0; g < r->info->n_group; g++) {
        struct op_rows_place a = {.slot = r->row.slot,
                                  .pos = r->row.pos,
                                  .tok = r->row.tok,
                                  .at = r->row.at,
                                  .from = r->from,
                                  .first = r->row.first[g],
                                  .last = r->row.last[g],
                                  .wslot = r->row.wslot[g],
                                  .table = r->kv.view[g].table,
                                  .rows = n,
                                  .pages_max = r->kv.view[g].pages_max,
                                  .page = r->c.page,
                                  .window = r->info->group[g].window};
        TRY_OUT(r->ops->ops->rows_place(r->d, &a));
    }
out:
    mem_free(v);
    mem_free(anc);
    return ret;
}

/* Rows [n][width] of the device, when they are wanted. */
static int give(struct mrun *r, float *to, const float *from, int n, int width, struct err *e)
{
    size_t bytes = (size_t)n * (size_t)width * sizeof(float);
    return to ? r->ops->copy_out(r->d, to, from, bytes, e) : OK;
}

int mrun_pass(struct mrun *r, enum role role, int n, const struct mrow *rows, const struct mio *io,
              struct err *e)
{
    int which = role == TGT_PREFILL ? PREFILL : io->tree ? TREE : VERIFY;
    const struct model_info *in = r->info;
    CHECK(n > 0 && n <= r->c.rows_max && (!in->feat || io->feat));
    TRY(back_rows(r, n, rows, io->tree, e));
    TRY(put_rows(r, n, rows, io->tree, e));
    for (int g = 0; g < in->n_group; g++) {
        struct graph_dims dims = {.reqs = n,
                                  .seqs = n,
                                  .rows = n,
                                  .qlen = which && n > LIM_ROWS_PER_REQ ? LIM_ROWS_PER_REQ : n,
                                  .pages = r->kv.view[g].pages_max,
                                  .role = role_of(r, which)};
        TRY(r->use[which][g].b->plan(r->use[which][g].a, &dims, e));
    }
    if (in->feat)
        TRY(r->ops->copy_in(r->d, r->feat, io->feat, (size_t)n * (size_t)in->feat * sizeof(float),
                            e));
    if (io->src)
        TRY(r->ops->copy_in(r->d, r->src, io->src, (size_t)n * sizeof *io->src, e));
    struct fwd f = {.role = role_of(r, which),
                    .mask = io->tree ? MASK_TREE : MASK_RANGE,
                    .rows = n,
                    .row = &r->row,
                    .kv = r->kv.view,
                    .attn = r->use[which],
                    .hidden = r->hidden,
                    .tap = r->c.tap,
                    .n_tap = r->c.n_tap,
                    .taps = r->taps,
                    .feat = r->feat,
                    .src = io->src ? r->src : NULL};
    TRY(model_forward(r->m, &f, e));
    TRY(give(r, io->hidden, r->hidden, n, in->hidden, e));
    TRY(give(r, io->taps, r->taps, n, r->c.n_tap * in->hidden, e));
    if (!io->logits)
        return OK;
    TRY(model_logits(r->m, r->hidden, n, r->logits, e));
    return give(r, io->logits, r->logits, n, in->vocab, e);
}

int mrun_rows(struct mrun *r, enum role role, int n, const struct mrow *rows, float *logits,
              struct err *e)
{
    return mrun_pass(r, role, n, rows, &(struct mio){.logits = logits}, e);
}

int mrun_feature(struct mrun *r, int n, const float *taps, float *feat, struct err *e)
{
    CHECK(n > 0 && n <= r->c.rows_max);
    size_t row = (size_t)(r->info->n_tap * r->c.target->info->hidden) * sizeof(float);
    TRY(r->ops->copy_in(r->d, r->taps, taps, (size_t)n * row, e));
    TRY(model_feature(r->m, r->taps, n, r->feat, e));
    return give(r, feat, r->feat, n, r->info->feat, e);
}

int mrun_prefill(struct mrun *r, int slot, const int32_t *tok, int from, int to, int chunk,
                 float *logits, struct err *e)
{
    struct mrow *rows = MEM_ARRAY(struct mrow, chunk);
    int ret = OK;
    for (int at = from; at < to; at += chunk) {
        int n = to - at < chunk ? to - at : chunk;
        for (int i = 0; i < n; i++)
            rows[i] = (struct mrow){.slot = slot, .pos = at + i, .tok = tok[at + i]};
        float *out = logits ? logits + (size_t)at * (size_t)r->info->vocab : NULL;
        TRY_OUT(mrun_rows(r, TGT_PREFILL, n, rows, out, e));
    }
out:
    mem_free(rows);
    return ret;
}
