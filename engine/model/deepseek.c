/* DeepSeek-V2-Lite, V2, V3, R1 and Kimi-K2: latent attention (MLA, DeepSeek-V2 paper) and a
 * mixture of experts with shared experts.
 *
 * A pool row is [normalised latent | rotated k_pe]. Absorbed form: q_lat_h = q_nope_h W_UK_h,
 * scores over pool rows, o_h = W_UV_h o_lat_h, where W_UK_h and W_UV_h are row blocks of kv_b.
 * Decompressed form: keys and values are expanded from pool rows inside the attention backend;
 * both read and write the same cache. Next-token (MTP) layers are checked and kept aside: this
 * file does not run them. Worker thread; configuration and tensors are read at start. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/model/family.h"
#include "engine/model/layer.h"

/* The norms inside MLA have this epsilon whatever rms_norm_eps says. */
static const float latent_eps = 1e-6f;

struct ds_layer {
    struct weight in_norm, post_norm;
    struct weight q; /* q_lora 0: from x; else q_b, from the normalised q_a */
    struct weight q_a, q_a_b, q_a_norm;
    struct weight kv_a, kv_a_b, kv_a_norm, kv_b, o, o_b;
    bool sparse;
    struct mlp mlp;
    struct moe moe;
};

struct ds_mtp {
    struct ds_layer layer;
    struct weight enorm, hnorm, eh_proj, norm;
    struct weight embed, head; /* p NULL: the target's */
};

struct ds_ws {
    struct placed mem;
    struct rope_dev rope;
    float *x, *y, *q_a, *q; /* q: [R, nH, nope] absorbed, [R, nH, nope + rope] decompressed */
    float *kv, *q_lat, *o_lat, *att;
    struct mlp_ws mlp;
    struct moe_dev *moe; /* [n_layer] */
    int rows_max;
};

struct deepseek {
    int hidden, n_layer, n_head, inter, vocab, dense_layers;
    int q_lora, kv_lora, nope, rope_dim, v_dim;
    float eps, scale;
    bool v3, attn_bias, interleaved;
    struct rope rope;
    struct moe_conf moe;
    struct weight embed, norm, head;
    struct ds_layer *layer;
    struct ds_mtp *mtp;
    int n_mtp;
    struct ds_ws ws;
};

static void ds_close(void *priv)
{
    struct deepseek *m = priv;
    if (!m)
        return;
    for (int i = 0; m->layer && i < m->n_layer; i++)
        moe_done(&m->layer[i].moe);
    for (int i = 0; m->mtp && i < m->n_mtp; i++)
        moe_done(&m->mtp[i].layer.moe);
    mem_free(m->layer);
    mem_free(m->mtp);
    mem_free(m);
}

/* ---- configuration ---- */

/* V2: softmax scores, picks among all or among the groups with the largest maximum, weights not
 * renormalised. V3 and Kimi-K2: sigmoid, a bias that only selects, groups by the sum of their two
 * best, weights renormalised. What the two architectures' own code does not do is refused. */
static int parse_routing(struct deepseek *m, struct cfg *c, struct err *e)
{
    struct moe_conf *x = &m->moe;
    const char *score, *method;
    bool norm;
    double scale;
    TRY(cfg_str_or(c, "scoring_func", m->v3 ? "sigmoid" : "softmax", &score, e));
    TRY(cfg_str_or(c, "topk_method", m->v3 ? "noaux_tc" : "greedy", &method, e));
    TRY(cfg_bool_or(c, "norm_topk_prob", m->v3, &norm, e));
    TRY(cfg_num_or(c, "routed_scaling_factor", 0, 1e6, m->v3 ? 2.5 : 1, &scale, e));
    if (strcmp(score, m->v3 ? "sigmoid" : "softmax") != 0)
        return FAIL(e, E_UNSUPPORTED, "'scoring_func' '%s' is not what this architecture computes",
                    score);
    bool grouped = !strcmp(method, "group_limited_greedy");
    if (m->v3 ? strcmp(method, "noaux_tc") != 0 : !grouped && strcmp(method, "greedy") != 0)
        return FAIL(e, E_UNSUPPORTED, "'topk_method' '%s' is not supported for this architecture",
                    method);
    if (!m->v3 && norm)
        return FAIL(e, E_UNSUPPORTED,
                    "'norm_topk_prob' true: implementations of this architecture disagree");
    x->score = m->v3 ? MOE_SIGMOID : MOE_SOFTMAX;
    x->bias = m->v3;
    x->normalize = norm;
    x->norm_eps = 1e-20f;
    x->scale = (float)scale;
    TRY(cfg_int_or(c, "n_group", 1, 4096, 1, &x->n_group, e));
    TRY(cfg_int_or(c, "topk_group", 1, 4096, 1, &x->topk_group, e));
    bool want = m->v3 || grouped;
    if (want && (!cfg_has(c, "n_group") || !cfg_has(c, "topk_group")))
        return FAIL(e, E_INVAL, "'%s' is missing",
                    cfg_has(c, "n_group") ? "topk_group" : "n_group");
    x->group = !want || x->n_group == 1 ? MOE_GROUP_NONE
               : m->v3                  ? MOE_GROUP_TOP2_SUM
                                        : MOE_GROUP_MAX;
    return OK;
}

static int parse_moe(struct deepseek *m, struct cfg *c, struct err *e)
{
    struct moe_conf *x = &m->moe;
    int freq, shared;
    TRY(cfg_int(c, "n_routed_experts", 1, 65536, &x->experts, e));
    TRY(cfg_int(c, "num_experts_per_tok", 1, LIM_EXPERTS_PER_TOK, &x->topk, e));
    TRY(cfg_int(c, "moe_intermediate_size", 1, 1 << 20, &x->inter, e));
    TRY(cfg_int_or(c, "n_shared_experts", 0, 64, 0, &shared, e));
    x->shared_inter = shared * x->inter;
    TRY(cfg_int(c, "first_k_dense_replace", 0, 4096, &m->dense_layers, e));
    TRY(cfg_int_or(c, "moe_layer_freq", 1, 4096, 1, &freq, e));
    if (freq != 1)
        return FAIL(e, E_UNSUPPORTED, "'moe_layer_freq' %d is not supported (only 1 is)", freq);
    TRY(parse_routing(m, c, e));
    if (x->group == MOE_GROUP_NONE)
        x->n_group = x->topk_group = 1;
    if (x->experts % x->n_group)
        return FAIL(e, E_INVAL, "'n_routed_experts' %d is not a multiple of 'n_group' %d",
                    x->experts, x->n_group);
    if (x->topk_group > x->n_group)
        return FAIL(e, E_INVAL, "'topk_group' %d is over 'n_group' %d", x->topk_group, x->n_group);
    if (x->group == MOE_GROUP_TOP2_SUM && x->experts / x->n_group < 2)
        return FAIL(e, E_INVAL, "'n_group' %d leaves fewer than two of %d experts in a group",
                    x->n_group, x->experts);
    if (x->topk > x->experts / x->n_group * x->topk_group)
        return FAIL(e, E_INVAL, "'num_experts_per_tok' %d is over the %d experts to choose from",
                    x->topk, x->experts / x->n_group * x->topk_group);
    return OK;
}

static int parse_dims(struct deepseek *m, struct cfg *c, struct err *e)
{
    int kv, hd, qk;
    double eps;
    TRY(cfg_int(c, "vocab_size", 1, 1 << 24, &m->vocab, e));
    TRY(cfg_int(c, "hidden_size", 1, 1 << 20, &m->hidden, e));
    TRY(cfg_int(c, "num_hidden_layers", 1, 4096, &m->n_layer, e));
    TRY(cfg_int(c, "num_attention_heads", 1, 4096, &m->n_head, e));
    TRY(cfg_int_or(c, "num_key_value_heads", 1, 4096, m->n_head, &kv, e));
    if (kv != m->n_head)
        return FAIL(e, E_UNSUPPORTED, "'num_key_value_heads' %d must equal the %d heads here", kv,
                    m->n_head);
    TRY(cfg_int(c, "intermediate_size", 1, 1 << 22, &m->inter, e));
    TRY(cfg_num(c, "rms_norm_eps", 0, 1, &eps, e));
    m->eps = (float)eps;
    TRY(cfg_int_or(c, "q_lora_rank", 1, 1 << 16, 0, &m->q_lora, e));
    TRY(cfg_int(c, "kv_lora_rank", 1, 1 << 14, &m->kv_lora, e));
    TRY(cfg_int(c, "qk_nope_head_dim", 1, 1024, &m->nope, e));
    TRY(cfg_int(c, "qk_rope_head_dim", 2, 1024, &m->rope_dim, e));
    TRY(cfg_int(c, "v_head_dim", 1, 1024, &m->v_dim, e));
    if (m->rope_dim % 2)
        return FAIL(e, E_INVAL, "'qk_rope_head_dim' %d must be even", m->rope_dim);
    if (m->kv_lora + m->rope_dim > INT16_MAX)
        return FAIL(e, E_INVAL, "'kv_lora_rank' %d is too large", m->kv_lora);
    TRY(cfg_int_or(c, "head_dim", 1, 1 << 16, m->rope_dim, &hd, e));
    TRY(cfg_int_or(c, "qk_head_dim", 1, 1 << 16, m->nope + m->rope_dim, &qk, e));
    if (hd != m->rope_dim && hd != m->nope + m->rope_dim)
        return FAIL(e, E_INVAL, "'head_dim' %d is neither 'qk_rope_head_dim' nor the whole head",
                    hd);
    if (qk != m->nope + m->rope_dim)
        return FAIL(e, E_INVAL, "'qk_head_dim' %d is not %d + %d", qk, m->nope, m->rope_dim);
    return OK;
}

static int parse(struct deepseek *m, struct cfg *c, const char *arch, bool *tied, struct tensors *t,
                 struct err *e)
{
    bool mlp_bias;
    const char *type;
    m->v3 = strcmp(arch, "DeepseekV2ForCausalLM") && strcmp(arch, "deepseek_v2");
    TRY(cfg_str_or(c, "model_type", m->v3 ? "deepseek_v3" : "deepseek_v2", &type, e));
    if (m->v3 != (strcmp(type, "deepseek_v2") != 0))
        return FAIL(e, E_UNSUPPORTED, "'model_type' '%s' does not belong to architecture %s", type,
                    arch);
    TRY(cfg_common(c, t, e));
    TRY(parse_dims(m, c, e));
    TRY(parse_moe(m, c, e));
    TRY(rope_parse(&m->rope, c, true, e));
    m->scale = (float)(1 / sqrt((double)(m->nope + m->rope_dim)) * rope_softmax_factor(&m->rope));
    TRY(cfg_bool_or(c, "rope_interleave", true, &m->interleaved, e));
    if (!m->v3 && !m->interleaved)
        return FAIL(e, E_UNSUPPORTED, "'rope_interleave' false is not known for this architecture");
    TRY(cfg_bool_or(c, "tie_word_embeddings", false, tied, e));
    TRY(cfg_bool_or(c, "attention_bias", false, &m->attn_bias, e));
    TRY(cfg_bool_or(c, "mlp_bias", false, &mlp_bias, e));
    if (mlp_bias)
        return FAIL(e, E_UNSUPPORTED, "'mlp_bias' is not supported for this family");
    const char *mtp = cfg_has(c, "num_mtp_layers") ? "num_mtp_layers" : "num_nextn_predict_layers";
    TRY(cfg_int_or(c, mtp, 0, 16, 0, &m->n_mtp, e));
    return cfg_finish(c, e);
}

/* ---- tensors ---- */

static int take_attention(const struct deepseek *m, struct ds_layer *l, const char *p,
                          struct tensors *t, struct err *e)
{
    int64_t nq = (int64_t)m->n_head * (m->nope + m->rope_dim), kv = m->kv_lora + m->rope_dim;
    if (m->q_lora) {
        TRY(take(t, p, "q_a_proj.weight", m->q_lora, m->hidden, TAKE_FP8, &l->q_a, e));
        TRY(take(t, p, "q_a_layernorm.weight", 1, m->q_lora, TAKE_VECTOR, &l->q_a_norm, e));
        TRY(take(t, p, "q_b_proj.weight", nq, m->q_lora, TAKE_FP8, &l->q, e));
    } else {
        TRY(take(t, p, "q_proj.weight", nq, m->hidden, TAKE_FP8, &l->q, e));
    }
    TRY(take(t, p, "kv_a_proj_with_mqa.weight", kv, m->hidden, TAKE_FP8, &l->kv_a, e));
    TRY(take(t, p, "kv_a_layernorm.weight", 1, m->kv_lora, TAKE_VECTOR, &l->kv_a_norm, e));
    TRY(take(t, p, "kv_b_proj.weight", (int64_t)m->n_head * (m->nope + m->v_dim), m->kv_lora,
             TAKE_FP8, &l->kv_b, e));
    TRY(take(t, p, "o_proj.weight", m->hidden, (int64_t)m->n_head * m->v_dim, TAKE_FP8, &l->o, e));
    if (!m->attn_bias)
        return OK;
    if (m->q_lora)
        TRY(take(t, p, "q_a_proj.bias", 1, m->q_lora, TAKE_VECTOR, &l->q_a_b, e));
    TRY(take(t, p, "kv_a_proj_with_mqa.bias", 1, kv, TAKE_VECTOR, &l->kv_a_b, e));
    TRY(take(t, p, "o_proj.bias", 1, m->hidden, TAKE_VECTOR, &l->o_b, e));
    return OK;
}

static int take_layer(struct deepseek *m, struct ds_layer *l, int i, struct tensors *t,
                      struct err *e)
{
    char p[64], at[96];
    snprintf(p, sizeof p, "model.layers.%d.", i);
    TRY(take(t, p, "input_layernorm.weight", 1, m->hidden, TAKE_VECTOR, &l->in_norm, e));
    TRY(take(t, p, "post_attention_layernorm.weight", 1, m->hidden, TAKE_VECTOR, &l->post_norm, e));
    snprintf(at, sizeof at, "%sself_attn.", p);
    TRY(take_attention(m, l, at, t, e));
    l->sparse = i >= m->dense_layers;
    snprintf(at, sizeof at, "%smlp.", p);
    if (l->sparse)
        return moe_take(t, at, m->hidden, &m->moe, &l->moe, e);
    return mlp_take(t, at, m->hidden, m->inter, false, &l->mlp, e);
}

/* A checkpoint whose configuration announces next-token layers may have dropped them all; the
 * embedding and head copies inside one may be left out. */
static int take_mtp(struct deepseek *m, struct tensors *t, struct err *e)
{
    char p[64];
    int want = m->n_mtp;
    snprintf(p, sizeof p, "model.layers.%d.", m->n_layer);
    m->n_mtp = 0;
    if (!want || !tensors_any(t, p))
        return OK;
    m->mtp = MEM_ARRAY(struct ds_mtp, want);
    tensors_aside(t, true);
    for (int i = 0; i < want; i++) {
        struct ds_mtp *x = &m->mtp[i];
        m->n_mtp = i + 1;
        snprintf(p, sizeof p, "model.layers.%d.", m->n_layer + i);
        TRY(take_layer(m, &x->layer, m->n_layer + i, t, e));
        TRY(take(t, p, "enorm.weight", 1, m->hidden, TAKE_VECTOR, &x->enorm, e));
        TRY(take(t, p, "hnorm.weight", 1, m->hidden, TAKE_VECTOR, &x->hnorm, e));
        TRY(take(t, p, "eh_proj.weight", m->hidden, 2 * (int64_t)m->hidden, TAKE_FP8, &x->eh_proj,
                 e));
        TRY(take(t, p, "shared_head.norm.weight", 1, m->hidden, TAKE_VECTOR, &x->norm, e));
        TRY(take(t, p, "shared_head.head.weight", m->vocab, m->hidden, TAKE_OPTIONAL, &x->head, e));
        TRY(take(t, p, "embed_tokens.weight", m->vocab, m->hidden, TAKE_OPTIONAL, &x->embed, e));
    }
    tensors_aside(t, false);
    return OK;
}

static int ds_open(void **priv, const json_t *config, struct tensors *t, struct model_info *info,
                   struct err *e)
{
    struct deepseek *m = MEM_NEW(struct deepseek);
    struct cfg c = {.o = config};
    bool tied;
    int ret = parse(m, &c, info->arch, &tied, t, e);
    int want_mtp = m->n_mtp;
    m->n_mtp = 0;
    if (ret < 0) {
        err_prefix(e, "config.json");
        goto out;
    }
    m->layer = MEM_ARRAY(struct ds_layer, m->n_layer);
    TRY_OUT(tensors_take(t, "model.embed_tokens.weight", m->vocab, m->hidden, 0, &m->embed, e));
    TRY_OUT(tensors_take(t, "model.norm.weight", 1, m->hidden, TAKE_VECTOR, &m->norm, e));
    TRY_OUT(head_take(t, tied, m->vocab, m->hidden, &m->embed, &m->head, e));
    for (int i = 0; i < m->n_layer; i++)
        TRY_OUT(take_layer(m, &m->layer[i], i, t, e));
    m->n_mtp = want_mtp;
    TRY_OUT(take_mtp(m, t, e));
    int width = m->kv_lora + m->rope_dim;
    info->vocab = m->vocab;
    info->hidden = m->hidden;
    info->n_layer = m->n_layer;
    info->n_head = m->n_head;
    info->pos_max = m->rope.pos_max;
    info->n_mtp = m->n_mtp;
    info->n_group = 1;
    info->group[0] = (struct kv_group){.kind = ATTN_MLA_ABSORBED,
                                       .n_layer = m->n_layer,
                                       .n_kv = 1,
                                       .qk_dim = width,
                                       .v_dim = m->kv_lora,
                                       .k_width = width,
                                       .dt = DT_F32};
    *priv = m;
    m = NULL;
    ret = OK;
out:
    ds_close(m);
    return ret;
}

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
    TRY(placed_floats(pl, &ws->q, r * h * (m->nope + m->rope_dim), e));
    TRY(placed_floats(pl, &ws->kv, r * width, e));
    TRY(placed_floats(pl, &ws->q_lat, r * h * width, e));
    TRY(placed_floats(pl, &ws->o_lat, r * h * m->kv_lora, e));
    TRY(placed_floats(pl, &ws->att, r * h * m->v_dim, e));
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

static size_t ds_bytes(const void *priv, int rows_max, int len_max)
{
    struct ds_ws ws = {0};
    CHECK(layout(priv, rows_max, len_max, &ws, NULL) == OK);
    size_t n = ws.mem.bytes;
    ws_done(&ws);
    return n;
}

static void ds_unplace(void *priv)
{
    ws_done(&((struct deepseek *)priv)->ws);
}

static int ds_place(void *priv, const struct dev_ops *ops, struct dev *d, int rows_max, int len_max,
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

static void ds_need(const void *priv, int group, enum role role, enum attn_kind mla_form,
                    int q_len_max, struct attn_need *out)
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

static int rotate(const struct deepseek *m, const struct on *o, float *x, int heads, int64_t ldx,
                  int64_t stride, const int32_t *pos)
{
    const struct rope_dev *r = &m->ws.rope;
    return o->op->rope(o->d, &(struct op_rope){.x = x,
                                               .pos = pos,
                                               .cos = r->cos,
                                               .sin = r->sin,
                                               .rows = o->rows,
                                               .heads = heads,
                                               .dim = m->rope_dim,
                                               .pos_max = r->len,
                                               .ldx = ldx,
                                               .stride = stride,
                                               .interleaved = m->interleaved});
}

/* Rows [row0, row0 + n) of every head's block of the query projection, each head's result at
 * out + h * out_stride: the absorbed form wants the two parts of q in different places. */
static int query_part(const struct deepseek *m, const struct on *o, const struct weight *w,
                      const float *src, int row0, int n, float *out, int64_t ldo, int64_t stride)
{
    return o->op->matmul_heads(o->d,
                               &(struct op_matmul_heads){.out = out,
                                                         .x = src,
                                                         .w = *w,
                                                         .rows = o->rows,
                                                         .heads = m->n_head,
                                                         .w_head_stride = m->nope + m->rope_dim,
                                                         .w_row0 = row0,
                                                         .n_rows = n,
                                                         .ldx = w->k,
                                                         .x_stride = 0,
                                                         .ldo = ldo,
                                                         .out_stride = stride});
}

/* Leaves att [R, nH, v]. */
static int attend_absorbed(struct deepseek *m, const struct on *o, const struct ds_layer *l,
                           const float *src, struct attn_call *c, const struct fwd *f,
                           struct err *e)
{
    struct ds_ws *ws = &m->ws;
    int64_t h = m->n_head, width = m->kv_lora + m->rope_dim;
    TRY(query_part(m, o, &l->q, src, 0, m->nope, ws->q, h * m->nope, m->nope));
    TRY(query_part(m, o, &l->q, src, m->nope, m->rope_dim, ws->q_lat + m->kv_lora, h * width,
                   width));
    TRY(rotate(m, o, ws->q_lat + m->kv_lora, m->n_head, h * width, width, f->row->pos));
    struct op_matmul_heads a = {.out = ws->q_lat,
                                .x = ws->q,
                                .w = l->kv_b,
                                .rows = o->rows,
                                .heads = m->n_head,
                                .w_head_stride = m->nope + m->v_dim,
                                .n_rows = m->nope,
                                .ldx = h * m->nope,
                                .x_stride = m->nope,
                                .ldo = h * width,
                                .out_stride = width,
                                .transposed = true};
    TRY(o->op->matmul_heads(o->d, &a));
    c->q = ws->q_lat;
    c->ldq = h * width;
    c->out = ws->o_lat;
    c->ldo = h * m->kv_lora;
    TRY(f->attn[0].b->run(f->attn[0].a, c, e));
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
                               const float *src, struct attn_call *c, const struct fwd *f,
                               struct err *e)
{
    struct ds_ws *ws = &m->ws;
    int64_t h = m->n_head, qk = m->nope + m->rope_dim;
    TRY(run_matmul(o, ws->q, src, &l->q, NULL, false));
    TRY(rotate(m, o, ws->q + m->nope, m->n_head, h * qk, qk, f->row->pos));
    c->q = ws->q;
    c->ldq = h * qk;
    c->out = ws->att;
    c->ldo = h * m->v_dim;
    c->kv_b = l->kv_b;
    return f->attn[0].b->run(f->attn[0].a, c, e);
}

static int attend(struct deepseek *m, const struct on *o, int i, const struct fwd *f, struct err *e)
{
    struct ds_ws *ws = &m->ws;
    const struct ds_layer *l = &m->layer[i];
    const struct kv_view *kv = &f->kv[0];
    int width = m->kv_lora + m->rope_dim;
    void *pool = kv_layer(kv, kv->k, i, width);
    const float *src = ws->y;
    if (m->q_lora) {
        TRY(run_matmul(o, ws->q_a, ws->y, &l->q_a, &l->q_a_b, false));
        TRY(run_norm(o, ws->q_a, ws->q_a, &l->q_a_norm, m->q_lora, latent_eps));
        src = ws->q_a;
    }
    TRY(run_matmul(o, ws->kv, ws->y, &l->kv_a, &l->kv_a_b, false));
    TRY(o->op->rmsnorm(o->d, &(struct op_rmsnorm){.out = ws->kv,
                                                  .x = ws->kv,
                                                  .w = l->kv_a_norm,
                                                  .rows = o->rows,
                                                  .dim = m->kv_lora,
                                                  .ldx = width,
                                                  .ldo = width,
                                                  .n_group = 1,
                                                  .eps = latent_eps}));
    TRY(rotate(m, o, ws->kv + m->kv_lora, 1, width, m->rope_dim, f->row->pos));
    TRY(o->op->kv_write(o->d, &(struct op_kv_write){.cache = pool,
                                                    .dt = kv->dt,
                                                    .x = ws->kv,
                                                    .wslot = f->row->wslot[0],
                                                    .rows = o->rows,
                                                    .width = width,
                                                    .ldx = width}));
    enum attn_kind form = f->attn[0].kind;
    struct attn_call c = {.role = f->role,
                          .kind = form,
                          .mask = MASK_RANGE,
                          .rows = o->rows,
                          .n_head = m->n_head,
                          .n_kv = 1,
                          .dims = dims_of(m, form),
                          .k = pool,
                          .kv_type = kv->dt,
                          .slot = f->row->slot,
                          .first = f->row->first[0],
                          .last = f->row->last[0],
                          .table = kv->table,
                          .pages_max = kv->pages_max,
                          .page = kv->page,
                          .scale = m->scale,
                          .kv_lora = m->kv_lora,
                          .rope = m->rope_dim,
                          .nope = m->nope,
                          .cp_world = 1};
    if (form == ATTN_MLA_DECOMPRESSED)
        TRY(attend_decompressed(m, o, l, src, &c, f, e));
    else
        TRY(attend_absorbed(m, o, l, src, &c, f, e));
    return run_matmul(o, ws->x, ws->att, &l->o, &l->o_b, true);
}

static int ds_forward(void *priv, const struct fwd *f, struct err *e)
{
    struct deepseek *m = priv;
    struct ds_ws *ws = &m->ws;
    struct on o = {.op = ws->mem.ops->ops, .d = ws->mem.d, .rows = f->rows};
    CHECK(f->rows <= ws->rows_max);
    TRY(o.op->embed(
        o.d, &(struct op_embed){.out = ws->x, .tok = f->row->tok, .e = m->embed, .rows = f->rows}));
    for (int i = 0; i < m->n_layer; i++) {
        const struct ds_layer *l = &m->layer[i];
        TRY(run_norm(&o, ws->y, ws->x, &l->in_norm, m->hidden, m->eps));
        TRY(attend(m, &o, i, f, e));
        TRY(run_norm(&o, ws->y, ws->x, &l->post_norm, m->hidden, m->eps));
        if (l->sparse)
            TRY(run_moe(&o, &l->moe, &ws->moe[i], &m->moe, &ws->mlp, m->hidden, ws->y, ws->x));
        else
            TRY(run_mlp(&o, &l->mlp, &ws->mlp, ws->y, ws->x));
    }
    return run_norm(&o, f->hidden, ws->x, &m->norm, m->hidden, m->eps);
}

static int ds_logits(void *priv, const float *hidden, int rows, float *logits, struct err *e)
{
    struct deepseek *m = priv;
    struct on o = {.op = m->ws.mem.ops->ops, .d = m->ws.mem.d, .rows = rows};
    (void)e;
    return run_matmul(&o, logits, hidden, &m->head, NULL, false);
}

const struct family family_deepseek = {
    .name = "deepseek",
    .archs = (const char *const[]){"DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM", NULL},
    .model_types = (const char *const[]){"deepseek_v2", "deepseek_v3", "kimi_k2", NULL},
    .open = ds_open,
    .close = ds_close,
    .device_bytes = ds_bytes,
    .place = ds_place,
    .unplace = ds_unplace,
    .attn_need = ds_need,
    .forward = ds_forward,
    .logits = ds_logits,
};
