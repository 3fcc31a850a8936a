/* Llama 2/3, Qwen2/2.5, Qwen3 and Qwen3-MoE: one pre-norm decoder with grouped-query attention.
 *
 * x = E[t]; a layer does y = norm(x), q, k, v of y (+ bias), per-head norms of q and k (Qwen3),
 * half-split rotation, causal attention with scale hd^-0.5 (windowed layers form their own KV
 * group), x += o(att), then x += mlp(norm(x)) or x += experts(norm(x)); logits = head(norm(x)).
 * Worker thread; configuration and tensors are read at start. Does not know DeepSeek's attention.
 */
#include <stdio.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/model/family.h"
#include "engine/model/gqa.h"

struct dense_kind {      /* what sets the families apart */
    bool qkv_bias;       /* always there, whatever the keys say */
    bool attn_bias_key;  /* 'attention_bias': q, k, v and o */
    bool mlp_bias_key;   /* 'mlp_bias' */
    bool qk_norm;        /* per head, before the rotation */
    bool window_keys;    /* use_sliding_window and its company */
    bool window_refused; /* the keys exist, implementations do not agree on the layers */
    bool moe;
    bool need_head_dim; /* no default that everybody shares */
    bool need_kv_heads;
};

struct dense_layer {
    struct weight in_norm, post_norm;
    struct gqa at;
    bool sparse;
    struct mlp mlp;
    struct moe moe;
    int group, index; /* KV group, and which of its layers */
};

struct dense_ws {
    struct placed mem;
    float *x, *y;
    struct gqa_ws at;
    struct mlp_ws mlp;
    struct moe_dev *moe; /* [n_layer] */
    int rows_max;
};

struct dense {
    int hidden, n_layer, inter, vocab;
    struct gqa_conf at;
    float eps;
    bool attn_bias, mlp_bias, has_moe;
    struct rope rope;
    struct moe_conf moe;
    struct weight embed, norm, head;
    struct dense_layer *layer;
    bool *windowed; /* [n_layer] */
    int window;
    int n_group;
    struct kv_group group[2];
    struct dense_ws ws;
    struct comm *comm; /* NULL: alone */
};

static void dense_close(void *priv)
{
    struct dense *m = priv;
    if (!m)
        return;
    for (int i = 0; m->layer && i < m->n_layer; i++)
        moe_done(&m->layer[i].moe);
    mem_free(m->layer);
    mem_free(m->windowed);
    mem_free(m);
}

/* ---- configuration ---- */

/* Which layers see only `window` keys: layer_types when given, else index >= max_window_layers. */
static int parse_windows(struct dense *m, struct cfg *c, const struct dense_kind *k, struct err *e)
{
    bool use = false;
    int first;
    json_t *types = NULL;
    m->windowed = MEM_ARRAY(bool, m->n_layer);
    if (!k->window_keys) {
        cfg_seen(c, "sliding_window");
        if (cfg_has(c, "sliding_window"))
            return FAIL(e, E_UNSUPPORTED, "'sliding_window' is not supported for this family");
        return OK;
    }
    TRY(cfg_bool_or(c, "use_sliding_window", false, &use, e));
    TRY(cfg_int_or(c, "max_window_layers", 0, INT32_MAX, 0, &first, e));
    cfg_seen(c, "layer_types");
    TRY(js_get_arr(c->o, "layer_types", &types, e));
    if (use && k->window_refused)
        return FAIL(e, E_UNSUPPORTED, "'use_sliding_window' is not supported for this family");
    if (types && (int)json_array_size(types) != m->n_layer)
        return FAIL(e, E_INVAL, "'layer_types' has %zu entries for %d layers",
                    json_array_size(types), m->n_layer);
    for (int i = 0; i < m->n_layer; i++) {
        const char *s = types ? json_string_value(json_array_get(types, (size_t)i)) : NULL;
        if (types && (!s || (strcmp(s, "full_attention") && strcmp(s, "sliding_attention"))))
            return FAIL(e, E_UNSUPPORTED, "'layer_types': '%s' is not supported", s ? s : "");
        m->windowed[i] = types ? !strcmp(s, "sliding_attention") : use && i >= first;
        if (m->windowed[i] && !use)
            return FAIL(e, E_INVAL,
                        "'layer_types' names sliding layers but 'use_sliding_window' is false");
    }
    if (!use) {
        cfg_seen(c, "sliding_window");
        return OK;
    }
    if (!types && !cfg_has(c, "max_window_layers"))
        return FAIL(e, E_INVAL, "'max_window_layers' is missing");
    return cfg_int(c, "sliding_window", 1, 1 << 30, &m->window, e);
}

static int parse_moe(struct dense *m, struct cfg *c, struct err *e)
{
    int step;
    json_t *only = NULL;
    struct moe_conf *x = &m->moe;
    *x = (struct moe_conf){
        .score = MOE_SOFTMAX, .group = MOE_GROUP_NONE, .n_group = 1, .topk_group = 1, .scale = 1};
    const char *key = cfg_has(c, "num_experts") ? "num_experts" : "num_local_experts";
    TRY(cfg_int(c, key, 1, 65536, &x->experts, e));
    TRY(cfg_int(c, "num_experts_per_tok", 1, LIM_EXPERTS_PER_TOK, &x->topk, e));
    TRY(cfg_int(c, "moe_intermediate_size", 1, 1 << 20, &x->inter, e));
    TRY(cfg_bool_or(c, "norm_topk_prob", false, &x->normalize, e));
    TRY(cfg_int_or(c, "decoder_sparse_step", 1, 1 << 20, 1, &step, e));
    if (x->topk > x->experts)
        return FAIL(e, E_INVAL, "'num_experts_per_tok' %d is over 'num_experts' %d", x->topk,
                    x->experts);
    cfg_seen(c, "mlp_only_layers");
    TRY(js_get_arr(c->o, "mlp_only_layers", &only, e));
    for (int i = 0; i < m->n_layer; i++) {
        m->layer[i].sparse = (i + 1) % step == 0;
        m->has_moe |= m->layer[i].sparse;
    }
    for (size_t j = 0; only && j < json_array_size(only); j++) {
        int64_t i;
        if (!js_is_int(json_array_get(only, j), &i) || i < 0 || i >= m->n_layer)
            return FAIL(e, E_INVAL, "'mlp_only_layers' has an entry that is not one of %d layers",
                        m->n_layer);
        m->layer[i].sparse = false;
    }
    return OK;
}

static int parse_dims(struct dense *m, struct cfg *c, const struct dense_kind *k, struct err *e)
{
    double eps;
    TRY(cfg_int(c, "vocab_size", 1, 1 << 24, &m->vocab, e));
    TRY(cfg_int(c, "hidden_size", 1, 1 << 20, &m->hidden, e));
    TRY(cfg_int(c, "num_hidden_layers", 1, 4096, &m->n_layer, e));
    TRY(cfg_int(c, "intermediate_size", 1, 1 << 22, &m->inter, e));
    TRY(cfg_num(c, "rms_norm_eps", 0, 1, &eps, e));
    m->eps = (float)eps;
    m->at.eps = m->eps;
    return gqa_parse(&m->at, c, m->hidden, k->need_kv_heads, k->need_head_dim, e);
}

static int can_split(const struct dense *m, const struct tensors *t, struct err *e)
{
    TRY(gqa_split_check(&m->at, t, e));
    for (int i = 0; i < m->n_layer; i++)
        TRY(m->layer[i].sparse ? split_check(t, "moe_intermediate_size", m->moe.inter, e)
                               : split_check(t, "intermediate_size", m->inter, e));
    return OK;
}

static int parse(struct dense *m, struct cfg *c, const struct dense_kind *k, bool *tied,
                 struct tensors *t, struct err *e)
{
    bool off;
    TRY(cfg_common(c, t, e));
    TRY(parse_dims(m, c, k, e));
    m->layer = MEM_ARRAY(struct dense_layer, m->n_layer);
    TRY(rope_parse(&m->rope, c, false, e));
    TRY(cfg_bool_or(c, "tie_word_embeddings", false, tied, e));
    TRY(cfg_bool_or(c, "attention_bias", k->qkv_bias, &m->attn_bias, e));
    if (k->qkv_bias && !m->attn_bias)
        return FAIL(e, E_UNSUPPORTED, "'attention_bias' false: this family always has the biases");
    if (k->qkv_bias || !k->attn_bias_key)
        m->attn_bias = false;
    TRY(cfg_bool_or(c, "mlp_bias", false, &m->mlp_bias, e));
    if (m->mlp_bias && !k->mlp_bias_key)
        return FAIL(e, E_UNSUPPORTED, "'mlp_bias' is not supported for this family");
    TRY(cfg_bool_or(c, "rope_interleaved", false, &off, e));
    if (off)
        return FAIL(e, E_UNSUPPORTED, "'rope_interleaved' is not supported for this family");
    TRY(parse_windows(m, c, k, e));
    if (k->moe)
        TRY(parse_moe(m, c, e));
    TRY(can_split(m, t, e));
    return cfg_finish(c, e);
}

/* ---- tensors ---- */

static int take_layer(struct dense *m, const struct dense_kind *k, int i, struct tensors *t,
                      struct err *e)
{
    struct dense_layer *l = &m->layer[i];
    char p[64], at[96];
    unsigned parts = (k->qkv_bias || m->attn_bias ? GQA_QKV_BIAS : 0) |
                     (m->attn_bias ? GQA_O_BIAS : 0) | (k->qk_norm ? GQA_QK_NORM : 0);
    snprintf(p, sizeof p, "model.layers.%d.", i);
    TRY(take(t, p, "input_layernorm.weight", 1, m->hidden, TAKE_VECTOR, &l->in_norm, e));
    TRY(take(t, p, "post_attention_layernorm.weight", 1, m->hidden, TAKE_VECTOR, &l->post_norm, e));
    snprintf(at, sizeof at, "%sself_attn.", p);
    TRY(gqa_take(t, at, &m->at, m->hidden, m->hidden, parts, &l->at, e));
    snprintf(at, sizeof at, "%smlp.", p);
    if (l->sparse)
        return moe_take(t, at, m->hidden, &m->moe, &l->moe, e);
    return mlp_take(t, at, m->hidden, m->inter, m->mlp_bias, &l->mlp, e);
}

/* From the model's numbers to this rank's, which the program means. */
static void split(struct dense *m, const struct tensors *t)
{
    m->comm = tensors_comm(t);
    m->inter /= comm_world(m->comm);
    m->moe.inter /= comm_world(m->comm);
    gqa_split(&m->at, t);
}

static void make_groups(struct dense *m)
{
    for (int w = 0; w < 2; w++) {
        int n = 0;
        for (int i = 0; i < m->n_layer; i++) {
            if (m->windowed[i] != w)
                continue;
            m->layer[i].group = m->n_group;
            m->layer[i].index = n++;
        }
        if (n)
            m->group[m->n_group++] = gqa_group(&m->at, n, w ? m->window : 0);
    }
}

static int dense_open(void **priv, const json_t *config, struct tensors *t, struct model_info *info,
                      const struct dense_kind *k, struct err *e)
{
    struct dense *m = MEM_NEW(struct dense);
    struct cfg c = {.o = config};
    bool tied;
    int ret = parse(m, &c, k, &tied, t, e);
    if (ret < 0) {
        err_prefix(e, "config.json");
        goto out;
    }
    TRY_OUT(tensors_take(t, "model.embed_tokens.weight", m->vocab, m->hidden, 0, &m->embed, e));
    TRY_OUT(tensors_take(t, "model.norm.weight", 1, m->hidden, TAKE_VECTOR, &m->norm, e));
    TRY_OUT(head_take(t, tied, m->vocab, m->hidden, &m->embed, &m->head, e));
    for (int i = 0; i < m->n_layer; i++)
        TRY_OUT(take_layer(m, k, i, t, e));
    info->n_head = m->at.n_head;
    split(m, t);
    make_groups(m);
    info->vocab = m->vocab;
    info->hidden = m->hidden;
    info->n_layer = m->n_layer;
    info->pos_max = m->rope.pos_max;
    info->n_expert = m->has_moe ? m->moe.experts : 0;
    info->topk = m->has_moe ? m->moe.topk : 0;
    info->n_group = m->n_group;
    memcpy(info->group, m->group, sizeof m->group);
    *priv = m;
    m = NULL;
    ret = OK;
out:
    dense_close(m);
    return ret;
}

/* ---- placement ---- */

static int layout(const struct dense *m, int rows, int len, struct dense_ws *ws, struct err *e)
{
    struct placed *pl = &ws->mem;
    int64_t r = rows;
    ws->rows_max = rows;
    ws->moe = MEM_ARRAY(struct moe_dev, m->n_layer);
    TRY(placed_floats(pl, &ws->x, r * m->hidden, e));
    TRY(placed_floats(pl, &ws->y, r * m->hidden, e));
    TRY(gqa_ws_place(pl, &m->at, &m->rope, rows, len, &ws->at, e));
    TRY(mlp_ws_place(pl, rows, m->hidden, m->inter, m->has_moe ? &m->moe : NULL, &ws->mlp, e));
    for (int i = 0; i < m->n_layer; i++)
        if (m->layer[i].sparse)
            TRY(moe_place(pl, &m->layer[i].moe, &m->moe, &ws->moe[i], e));
    return OK;
}

static void ws_done(struct dense_ws *ws)
{
    placed_free(&ws->mem);
    mem_free(ws->moe);
    *ws = (struct dense_ws){0};
}

static size_t dense_bytes(const void *priv, int rows_max, int len_max)
{
    struct dense_ws ws = {0};
    CHECK(layout(priv, rows_max, len_max, &ws, NULL) == OK);
    size_t n = ws.mem.bytes;
    ws_done(&ws);
    return n;
}

static void dense_unplace(void *priv)
{
    ws_done(&((struct dense *)priv)->ws);
}

static int dense_place(void *priv, const struct dev_ops *ops, struct dev *d, int rows_max,
                       int len_max, struct err *e)
{
    struct dense *m = priv;
    m->ws.mem = (struct placed){.ops = ops, .d = d};
    int r = layout(m, rows_max, len_max, &m->ws, e);
    if (r < 0)
        dense_unplace(m);
    return r;
}

static void dense_need(const void *priv, int group, enum role role, enum attn_kind mla_form,
                       int q_len_max, struct attn_need *out)
{
    const struct dense *m = priv;
    (void)mla_form;
    gqa_need(&m->at, role, m->group[group].window, q_len_max, out);
}

/* ---- the program ---- */

static int dense_forward(void *priv, const struct fwd *f, struct err *e)
{
    struct dense *m = priv;
    struct dense_ws *ws = &m->ws;
    struct on o = {.op = ws->mem.ops->ops, .d = ws->mem.d, .rows = f->rows, .comm = m->comm};
    CHECK(f->rows <= ws->rows_max);
    TRY(o.op->embed(
        o.d, &(struct op_embed){.out = ws->x, .tok = f->row->tok, .e = m->embed, .rows = f->rows}));
    for (int i = 0; i < m->n_layer; i++) {
        const struct dense_layer *l = &m->layer[i];
        TRY(run_tap(&o, f, i, ws->x, m->hidden));
        struct rows_in in = {ws->x, &l->in_norm, m->eps, ws->y};
        TRY(run_gqa(&o, &m->at, &l->at, &ws->at, &in, ws->x, f, l->group, l->index, e));
        in.norm = &l->post_norm;
        if (!l->sparse)
            TRY(run_mlp(&o, &l->mlp, &ws->mlp, m->hidden, &in, ws->x));
        else
            TRY(run_moe(&o, &l->moe, &ws->moe[i], &m->moe, &ws->mlp, m->hidden, &in, ws->x));
    }
    TRY(run_tap(&o, f, m->n_layer, ws->x, m->hidden));
    return run_norm(&o, f->hidden, ws->x, &m->norm, m->hidden, m->eps);
}

static int dense_logits(void *priv, const float *hidden, int rows, float *logits, struct err *e)
{
    struct dense *m = priv;
    struct on o = {.op = m->ws.mem.ops->ops, .d = m->ws.mem.d, .rows = rows, .comm = m->comm};
    (void)e;
    return run_head(&o, logits, hidden, &m->head);
}

static void dense_shared(const void *priv, struct weight *embed, struct weight *head)
{
    const struct dense *m = priv;
    *embed = m->embed;
    *head = m->head;
}

/* ---- the families ---- */

static int llama_open(void **priv, const json_t *config, struct tensors *t, struct model_info *info,
                      struct err *e)
{
    static const struct dense_kind k = {.attn_bias_key = true, .mlp_bias_key = true};
    return dense_open(priv, config, t, info, &k, e);
}

static int qwen2_open(void **priv, const json_t *config, struct tensors *t, struct model_info *info,
                      struct err *e)
{
    static const struct dense_kind k = {
        .qkv_bias = true, .window_keys = true, .need_kv_heads = true};
    return dense_open(priv, config, t, info, &k, e);
}

static int qwen3_open(void **priv, const json_t *config, struct tensors *t, struct model_info *info,
                      struct err *e)
{
    static const struct dense_kind k = {.attn_bias_key = true,
                                        .qk_norm = true,
                                        .window_keys = true,
                                        .need_head_dim = true,
                                        .need_kv_heads = true};
    return dense_open(priv, config, t, info, &k, e);
}

static int qwen3_moe_open(void **priv, const json_t *config, struct tensors *t,
                          struct model_info *info, struct err *e)
{
    static const struct dense_kind k = {.attn_bias_key = true,
                                        .qk_norm = true,
                                        .window_keys = true,
                                        .window_refused = true,
                                        .moe = true,
                                        .need_head_dim = true,
                                        .need_kv_heads = true};
    return dense_open(priv, config, t, info, &k, e);
}

#define DENSE(open_)                                                                               \
    .open = open_, .close = dense_close, .device_bytes = dense_bytes, .place = dense_place,        \
    .unplace = dense_unplace, .attn_need = dense_need, .forward = dense_forward,                   \
    .logits = dense_logits, .shared = dense_shared

const struct family family_llama = {
    .name = "llama",
    .archs = (const char *const[]){"LlamaForCausalLM", NULL},
    .model_types = (const char *const[]){"llama", NULL},
    DENSE(llama_open),
};
const struct family family_qwen2 = {
    .name = "qwen2",
    .archs = (const char *const[]){"Qwen2ForCausalLM", NULL},
    .model_types = (const char *const[]){"qwen2", NULL},
    DENSE(qwen2_open),
};
const struct family family_qwen3 = {
    .name = "qwen3",
    .archs = (const char *const[]){"Qwen3ForCausalLM", NULL},
    .model_types = (const char *const[]){"qwen3", NULL},
    DENSE(qwen3_open),
};
const struct family family_qwen3_moe = {
    .name = "qwen3_moe",
    .archs = (const char *const[]){"Qwen3MoeForCausalLM", NULL},
    .model_types = (const char *const[]){"qwen3_moe", NULL},
    DENSE(qwen3_moe_open),
};
