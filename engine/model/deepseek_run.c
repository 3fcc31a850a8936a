/* The program of the `deepseek` family: latent attention (MLA, DeepSeek-V2 paper) and a mixture of
 * experts with shared experts.
 *
 * A pool row is [normalised latent | rotated k_pe]. Absorbed form: q_lat_h = q_nope_h W_UK_h,
 * scores over pool rows, o_h = W_UV_h o_lat_h, where W_UK_h and W_UV_h are row blocks of kv_b.
 * Decompressed form: keys and values are expanded from pool rows inside the attention backend;
 * both read and write the same cache. Worker thread. */
#include "engine/model/deepseek.h"

#include "engine/base/check.h"
#include "engine/base/mem.h"

/* The norms inside MLA have this epsilon whatever rms_norm_eps says. */
static const float latent_eps = 1e-6f;

/* ---- placement ---- */

static int layout(const struct deepseek *m, int rows, int len, struct ds_ws *ws, struct err *e)
{
    struct placed *pl = &ws->mem;
    int64_t r = rows, h = m->n_head, width = m->kv_lora + m->rope_dim;
    int inter = m->inter > m->moe.shared_inter ? m->inter : m->moe.shared_inter;
    ws->rows_max = rows;
    ws->moe = MEM_ARRAY(struct moe_dev, m->n_layer);
    TRY(rope_place(pl, &m->rope, m->rope_dim, len, &ws->rope, e));
    TRY(placed_floats(pl, &ws->x, r * m->hidden, e));
    TRY(placed_floats(pl, &ws->y, r * m->hidden, e));
    TRY(placed_floats(pl, &ws->q_a, r * m->q_lora, e));
    TRY(placed_floats(pl, &ws->q_y, r * m->q_lora, e));
    TRY(placed_floats(pl, &ws->q, r * h * (m->nope + m->rope_dim), e));
    TRY(placed_floats(pl, &ws->kv, r * width, e));
    TRY(placed_floats(pl, &ws->q_lat, r * h * width, e));
    TRY(placed_floats(pl, &ws->o_lat, r * h * m->kv_lora, e));
    TRY(placed_floats(pl, &ws->att, r * h * m->v_dim, e));
    TRY(placed_floats(pl, &ws->pair, m->draft ? 2 * r * m->hidden : 0, e));
    TRY(mlp_ws_place(pl, rows, m->hidden, inter, &m->moe, &ws->mlp, e));
    for (int i = 0; i < m->n_layer; i++)
        if (m->layer[i].sparse)
            TRY(moe_place(pl, &m->layer[i].moe, &m->moe, &ws->moe[i], e));
    return OK;
}

static void ws_done(struct ds_ws *ws)
{
    placed_free(&ws->mem);
    mem_free(ws->moe);
    *ws = (struct ds_ws){0};
}

size_t ds_bytes(const void *priv, int rows_max, int len_max)
{
    struct ds_ws ws = {0};
    CHECK(layout(priv, rows_max, len_max, &ws, NULL) == OK);
    size_t n = ws.mem.bytes;
    ws_done(&ws);
    return n;
}

void ds_unplace(void *priv)
{
    ws_done(&((struct deepseek *)priv)->ws);
}

int ds_place(void *priv, const struct dev_ops *ops, struct dev *d, int rows_max, int len_max,
             struct err *e)
{
    struct deepseek *m = priv;
    m->ws.mem = (struct placed){.ops = ops, .d = d};
    int r = layout(m, rows_max, len_max, &m->ws, e);
    if (r < 0)
        ds_unplace(m);
    return r;
}

static struct attn_dims dims_of(const struct deepseek *m, enum attn_kind form)
{
    return form == ATTN_MLA_DECOMPRESSED
               ? (struct attn_dims){(int16_t)(m->nope + m->rope_dim), (int16_t)m->v_dim}
               : (struct attn_dims){(int16_t)(m->kv_lora + m->rope_dim), (int16_t)m->kv_lora};
}

struct kv_group ds_group(const struct deepseek *m)
{
    int width = m->kv_lora + m->rope_dim;
    return (struct kv_group){.kind = ATTN_MLA_ABSORBED,
                             .n_layer = m->n_layer,
                             .n_kv = 1,
                             .qk_dim = width,
                             .v_dim = m->kv_lora,
                             .k_width = width,
                             .dt = DT_F32};
}

void ds_need(const void *priv, int group, enum role role, enum attn_kind mla_form, int q_len_max,
             struct attn_need *out)
{
    const struct deepseek *m = priv;
    (void)group;
    CHECK(mla_form == ATTN_MLA_ABSORBED || mla_form == ATTN_MLA_DECOMPRESSED);
    *out = (struct attn_need){.role = role,
                              .kind = mla_form,
                              .mask = MASK_RANGE,
                              .graph = q_len_max ? GRAPH_ANY : GRAPH_NEVER,
                              .kv_type = DT_F32,
                              .n_head = m->n_head,
                              .n_kv = 1,
                              .dims = dims_of(m, mla_form),
                              .q_len_max = q_len_max,
                              .cp = 1};
}

/* ---- the program ---- */

/* From the rows' products to their cache entries; the rotated parts of q go to `q_out`. */
static int place(struct deepseek *m, const struct on *o, const struct ds_layer *l, void *pool,
                 float *q_out, int64_t ldo, int64_t out_stride, const struct fwd *f)
{
    struct ds_ws *ws = &m->ws;
    int64_t qk = m->nope + m->rope_dim;
    return o->op->mla_place(o->d, &(struct op_mla_place){.kv = ws->kv,
                                                         .norm = l->kv_a_norm,
                                                         .q = ws->q + m->nope,
                                                         .q_out = q_out,
                                                         .pos = f->row->pos,
                                                         .wslot = f->row->wslot[0],
                                                         .cos = ws->rope.cos,
                                                         .sin = ws->rope.sin,
                                                         .cache = pool,
                                                         .dt = f->kv[0].dt,
                                                         .rows = o->rows,
                                                         .heads = m->n_head,
                                                         .lora = m->kv_lora,
                                                         .rope = m->rope_dim,
                                                         .pos_max = ws->rope.len,
                                                         .ldkv = m->kv_lora + m->rope_dim,
                                                         .ldq = m->n_head * qk,
                                                         .q_stride = qk,
                                                         .ldo = ldo,
                                                         .out_stride = out_stride,
                                                         .eps = latent_eps,
                                                         .scale = l->kv_scale,
                                                         .interleaved = m->interleaved});
}

/* Leaves att [R, nH, v]. */
static int attend_absorbed(struct deepseek *m, const struct on *o, const struct ds_layer *l,
                           void *pool, struct attn_call *c, const struct fwd *f, struct err *e)
{
    struct ds_ws *ws = &m->ws;
    int64_t h = m->n_head, width = m->kv_lora + m->rope_dim, qk = m->nope + m->rope_dim;
    TRY(place(m, o, l, pool, ws->q_lat + m->kv_lora, h * width, width, f));
    struct op_matmul_heads a = {.out = ws->q_lat,
                                .x = ws->q,
                                .w = l->kv_b,
                                .rows = o->rows,
                                .heads = m->n_head,
                                .w_head_stride = m->nope + m->v_dim,
                                .n_rows = m->nope,
                                .ldx = h * qk,
                                .x_stride = qk,
                                .ldo = h * width,
                                .out_stride = width,
                                .transposed = true};
    TRY(o->op->matmul_heads(o->d, &a));
    c->q = ws->q_lat;
    c->ldq = h * width;
    c->out = ws->o_lat;
    c->ldo = h * m->kv_lora;
    TRY(run_attention(o, &f->attn[0], c, e));
    a = (struct op_matmul_heads){.out = ws->att,
                                 .x = ws->o_lat,
                                 .w = l->kv_b,
                                 .rows = o->rows,
                                 .heads = m->n_head,
                                 .w_head_stride = m->nope + m->v_dim,
                                 .w_row0 = m->nope,
                                 .n_rows = m->v_dim,
                                 .ldx = h * m->kv_lora,
                                 .x_stride = m->kv_lora,
                                 .ldo = h * m->v_dim,
                                 .out_stride = m->v_dim};
    return o->op->matmul_heads(o->d, &a);
}

static int attend_decompressed(struct deepseek *m, const struct on *o, const struct ds_layer *l,
                               void *pool, struct attn_call *c, const struct fwd *f, struct err *e)
{
    struct ds_ws *ws = &m->ws;
    int64_t h = m->n_head, qk = m->nope + m->rope_dim;
    TRY(place(m, o, l, pool, ws->q + m->nope, h * qk, qk, f));
    c->q = ws->q;
    c->ldq = h * qk;
    c->out = ws->att;
    c->ldo = h * m->v_dim;
    c->kv_b = l->kv_b;
    return run_attention(o, &f->attn[0], c, e);
}

/* q and kv of the rows x. */
static int project(struct deepseek *m, const struct on *o, const struct ds_layer *l)
{
    struct ds_ws *ws = &m->ws;
    const struct rows_in in = {ws->x, &l->in_norm, m->eps, ws->y};
    const struct rows_in low = {ws->q_a, &l->q_a_norm, latent_eps, ws->q_y};
    const struct proj_out kv = {ws->kv, &l->kv_a, &l->kv_a_b}, q = {ws->q, &l->q, NULL};
    if (!m->q_lora)
        return run_proj(o, &in, (const struct proj_out[]){q, kv}, 2);
    const struct proj_out q_a = {ws->q_a, &l->q_a, &l->q_a_b};
    TRY(run_proj(o, &in, (const struct proj_out[]){q_a, kv}, 2));
    return run_proj(o, &low, &q, 1);
}

static int attend(struct deepseek *m, const struct on *o, int i, const struct fwd *f, struct err *e)
{
    struct ds_ws *ws = &m->ws;
    const struct ds_layer *l = &m->layer[i];
    const struct kv_view *kv = &f->kv[0];
    void *pool = kv_layer(kv, kv->k, i, m->kv_lora + m->rope_dim);
    TRY(project(m, o, l));
    enum attn_kind form = f->attn[0].kind;
    struct attn_call c = {.role = f->role,
                          .kind = form,
                          .mask = f->mask,
                          .rows = o->rows,
                          .n_head = m->n_head,
                          .n_kv = 1,
                          .dims = dims_of(m, form),
                          .k = pool,
                          .kv_type = kv->dt,
                          .k_scale = l->kv_scale,
                          .slot = f->row->slot,
                          .first = f->row->first[0],
                          .last = f->row->last[0],
                          .table = kv->table,
                          .pages_max = kv->pages_max,
                          .page = kv->page,
                          .scale = m->scale,
                          .ancestors = f->row->anc,
                          .row0 = f->row->row0,
                          .kv_lora = m->kv_lora,
                          .rope = m->rope_dim,
                          .nope = m->nope,
                          .cp_world = 1};
    if (form == ATTN_MLA_DECOMPRESSED)
        TRY(attend_decompressed(m, o, l, pool, &c, f, e));
    else
        TRY(attend_absorbed(m, o, l, pool, &c, f, e));
    TRY(run_part(o, ws->x, m->hidden));
    TRY(run_matmul(o, ws->x, ws->att, &l->o, &l->o_b, true));
    return run_join(o, ws->x, m->hidden);
}

struct on ds_on(const struct deepseek *m, int rows)
{
    CHECK(rows <= m->ws.rows_max);
    return (struct on){.op = m->ws.mem.ops->ops, .d = m->ws.mem.d, .rows = rows, .comm = m->comm};
}

int ds_run_layer(struct deepseek *m, const struct on *o, int i, const struct fwd *f, struct err *e)
{
    struct ds_ws *ws = &m->ws;
    const struct ds_layer *l = &m->layer[i];
    TRY(attend(m, o, i, f, e));
    const struct rows_in in = {ws->x, &l->post_norm, m->eps, ws->y};
    if (!l->sparse)
        return run_mlp(o, &l->mlp, &ws->mlp, m->hidden, &in, ws->x);
    return run_moe(o, &l->moe, &ws->moe[i], &m->moe, &ws->mlp, m->hidden, &in, ws->x);
}

int ds_forward(void *priv, const struct fwd *f, struct err *e)
{
    struct deepseek *m = priv;
    struct ds_ws *ws = &m->ws;
    struct on o = ds_on(m, f->rows);
    TRY(o.op->embed(
        o.d, &(struct op_embed){.out = ws->x, .tok = f->row->tok, .e = m->embed, .rows = f->rows}));
    for (int i = 0; i < m->n_layer; i++) {
        TRY(run_tap(&o, f, i, ws->x, m->hidden));
        TRY(ds_run_layer(m, &o, i, f, e));
    }
    TRY(run_tap(&o, f, m->n_layer, ws->x, m->hidden));
    return run_norm(&o, f->hidden, ws->x, &m->norm, m->hidden, m->eps);
}

int ds_logits(void *priv, const float *hidden, int rows, float *logits, struct err *e)
{
    struct deepseek *m = priv;
    struct on o = {.op = m->ws.mem.ops->ops, .d = m->ws.mem.d, .rows = rows, .comm = m->comm};
    (void)e;
    return run_head(&o, logits, hidden, &m->head);
}
