/* Grouped-query attention of a layer; see the header. Does not know any family. */
#include "engine/model/gqa.h"

#include <math.h>

int gqa_parse(struct gqa_conf *g, struct cfg *c, int hidden, bool need_kv_heads, bool need_head_dim,
              struct err *e)
{
    TRY(cfg_int(c, "num_attention_heads", 1, 4096, &g->n_head, e));
    if (need_kv_heads)
        TRY(cfg_int(c, "num_key_value_heads", 1, 4096, &g->n_kv, e));
    else
        TRY(cfg_int_or(c, "num_key_value_heads", 1, 4096, g->n_head, &g->n_kv, e));
    if (g->n_head % g->n_kv)
        return FAIL(e, E_INVAL,
                    "'num_attention_heads' %d is not a multiple of "
                    "'num_key_value_heads' %d",
                    g->n_head, g->n_kv);
    if (need_head_dim)
        TRY(cfg_int(c, "head_dim", 2, 1024, &g->hd, e));
    else
        TRY(cfg_int_or(c, "head_dim", 2, 1024, hidden / g->n_head, &g->hd, e));
    if (!cfg_has(c, "head_dim") && hidden % g->n_head)
        return FAIL(e, E_INVAL, "'hidden_size' %d is not a multiple of 'num_attention_heads' %d",
                    hidden, g->n_head);
    if (g->hd < 2 || g->hd % 2)
        return FAIL(e, E_INVAL, "'head_dim' %d must be even for the rotation", g->hd);
    return OK;
}

int gqa_take(struct tensors *t, const char *prefix, const struct gqa_conf *g, int in, int hidden,
             unsigned parts, struct gqa *out, struct err *e)
{
    int nq = g->n_head * g->hd, nk = g->n_kv * g->hd;
    *out = (struct gqa){0};
    unsigned heads = TAKE_FP8 | TAKE_ROWS, bias = TAKE_VECTOR | TAKE_ROWS;
    TRY(take(t, prefix, "q_proj.weight", nq, in, heads, &out->q, e));
    TRY(take(t, prefix, "k_proj.weight", nk, in, heads, &out->k, e));
    TRY(take(t, prefix, "v_proj.weight", nk, in, heads, &out->v, e));
    TRY(take(t, prefix, "o_proj.weight", hidden, nq, TAKE_FP8 | TAKE_COLS, &out->o, e));
    TRY(kv_scale_take(t, prefix, "k_proj", "k_scale", &out->k_scale, e));
    TRY(kv_scale_take(t, prefix, "v_proj", "v_scale", &out->v_scale, e));
    if (parts & GQA_QKV_BIAS) {
        TRY(take(t, prefix, "q_proj.bias", 1, nq, bias, &out->qb, e));
        TRY(take(t, prefix, "k_proj.bias", 1, nk, bias, &out->kb, e));
        TRY(take(t, prefix, "v_proj.bias", 1, nk, bias, &out->vb, e));
    }
    if (parts & GQA_O_BIAS)
        TRY(take(t, prefix, "o_proj.bias", 1, hidden, TAKE_VECTOR | TAKE_RANK0, &out->ob, e));
    if (parts & GQA_QK_NORM) {
        TRY(take(t, prefix, "q_norm.weight", 1, g->hd, TAKE_VECTOR, &out->q_norm, e));
        TRY(take(t, prefix, "k_norm.weight", 1, g->hd, TAKE_VECTOR, &out->k_norm, e));
    }
    return OK;
}

int gqa_split_check(const struct gqa_conf *g, const struct tensors *t, struct err *e)
{
    TRY(split_check(t, "num_attention_heads", g->n_head, e));
    return split_check(t, "num_key_value_heads", g->n_kv, e);
}

void gqa_split(struct gqa_conf *g, const struct tensors *t)
{
    g->n_head /= comm_world(tensors_comm(t));
    g->n_kv /= comm_world(tensors_comm(t));
}

int gqa_ws_place(struct placed *pl, const struct gqa_conf *g, const struct rope *rope, int rows_max,
                 int len_max, struct gqa_ws *out, struct err *e)
{
    int64_t r = rows_max, nq = (int64_t)g->n_head * g->hd, nk = (int64_t)g->n_kv * g->hd;
    TRY(rope_place(pl, rope, g->hd, len_max, &out->rope, e));
    TRY(placed_floats(pl, &out->q, r * nq, e));
    TRY(placed_floats(pl, &out->k, r * nk, e));
    TRY(placed_floats(pl, &out->v, r * nk, e));
    return placed_floats(pl, &out->att, r * nq, e);
}

struct kv_group gqa_group(const struct gqa_conf *g, int n_layer, int window)
{
    return (struct kv_group){.kind = ATTN_GQA,
                             .n_layer = n_layer,
                             .n_kv = g->n_kv,
                             .qk_dim = g->hd,
                             .v_dim = g->hd,
                             .k_width = g->n_kv * g->hd,
                             .v_width = g->n_kv * g->hd,
                             .window = window,
                             .dt = DT_F32};
}

void gqa_need(const struct gqa_conf *g, enum role role, int window, int q_len_max,
              struct attn_need *out)
{
    *out = (struct attn_need){.role = role,
                              .kind = ATTN_GQA,
                              .mask = MASK_RANGE,
                              .graph = q_len_max ? GRAPH_ANY : GRAPH_NEVER,
                              .kv_type = DT_F32,
                              .n_head = g->n_head,
                              .n_kv = g->n_kv,
                              .dims = {(int16_t)g->hd, (int16_t)g->hd},
                              .q_len_max = q_len_max,
                              .window = window,
                              .cp = 1};
}

/* ---- the program ---- */

int run_gqa(const struct on *o, const struct gqa_conf *g, const struct gqa *l,
            const struct gqa_ws *ws, const struct rows_in *in, float *x, const struct fwd *f,
            int group, int index, struct err *e)
{
    const struct kv_view *kv = &f->kv[group];
    int nk = g->n_kv * g->hd;
    void *keys = kv_layer(kv, kv->k, index, nk), *values = kv_layer(kv, kv->v, index, nk);
    const struct proj_out qkv[3] = {
        {ws->q, &l->q, &l->qb}, {ws->k, &l->k, &l->kb}, {ws->v, &l->v, &l->vb}};
    struct op_qkv a = {.proj = proj_op(o, in, qkv, 3),
                       .place = {.q = ws->q,
                                 .k = ws->k,
                                 .v = ws->v,
                                 .q_norm = l->q_norm,
                                 .k_norm = l->k_norm,
                                 .pos = f->row->pos,
                                 .wslot = f->row->wslot[group],
                                 .cos = ws->rope.cos,
                                 .sin = ws->rope.sin,
                                 .k_cache = keys,
                                 .v_cache = values,
                                 .dt = kv->dt,
                                 .rows = o->rows,
                                 .n_head = g->n_head,
                                 .n_kv = g->n_kv,
                                 .hd = g->hd,
                                 .pos_max = ws->rope.len,
                                 .ldq = (int64_t)g->n_head * g->hd,
                                 .ldk = nk,
                                 .ldv = nk,
                                 .eps = g->eps,
                                 .k_scale = l->k_scale,
                                 .v_scale = l->v_scale}};
    TRY(o->op->qkv(o->d, &a));
    struct attn_call c = {.role = f->role,
                          .kind = ATTN_GQA,
                          .mask = f->mask,
                          .rows = o->rows,
                          .n_head = g->n_head,
                          .n_kv = g->n_kv,
                          .dims = {(int16_t)g->hd, (int16_t)g->hd},
                          .q = ws->q,
                          .ldq = (int64_t)g->n_head * g->hd,
                          .out = ws->att,
                          .ldo = (int64_t)g->n_head * g->hd,
                          .k = keys,
                          .v = values,
                          .kv_type = kv->dt,
                          .k_scale = l->k_scale,
                          .v_scale = l->v_scale,
                          .slot = f->row->slot,
                          .first = f->row->first[group],
                          .last = f->row->last[group],
                          .table = kv->table,
                          .pages_max = kv->pages_max,
                          .page = kv->page,
                          .scale = (float)(1 / sqrt((double)g->hd)),
                          .ancestors = f->row->anc,
                          .row0 = f->row->row0,
                          .cp_world = 1};
    return run_attention_o(o, &f->attn[group], &c, x, &l->o, &l->ob, e);
}
