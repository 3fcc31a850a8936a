/* Drafter `eagle3`: an EAGLE-3 head (Li et al. 2025), one decoder layer over a feature made of the
 * residual stream before a few layers of the target.
 *
 * Feature f = fc([tap ; …]). A row takes the token t_i and the feature of row i - 1, at RoPE
 * position i - 1: pair = [input_layernorm(E[t_i]) ; hidden_norm(f)]; x = f + attention(pair);
 * x += mlp(norm(x)); logits = head(norm(x)) over a vocabulary of its own, mapped by d2t. A
 * recurrent step takes x in place of f. Switches of later heads: `norm_before_residual` (the
 * residual starts at hidden_norm(f)), `norm_output` (the recurrent feature is norm(x)), `fc_norm`
 * (every tap is normalised), `norm_before_fc` (the taps together are). Embedding and head are the
 * target's where the files have none. Worker thread, but for opening. */
#include <stdio.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/model/family.h"
#include "engine/model/gqa.h"

struct eagle3_ws {
    struct placed mem;
    float *x, *y, *pair; /* [R, H], [R, H], [R, 2 H] */
    float *taps;         /* [R, n_tap * target's hidden], normalised */
    struct gqa_ws at;
    struct mlp_ws mlp;
    const int32_t *d2t;
    int rows_max;
};

struct eagle3 {
    int hidden, hidden_target, inter, vocab, vocab_target;
    int n_tap, tap[LIM_TAPS];
    struct gqa_conf at;
    struct rope rope;
    float eps;
    bool attn_bias, mlp_bias, norm_residual, norm_output, norm_taps, norm_fc;
    struct weight fc, input_norm, fc_norm[LIM_TAPS];
    struct weight in_norm, hidden_norm, post_norm, norm, embed, head;
    struct gqa attn;
    struct mlp mlp;
    int32_t *d2t; /* [vocab] target ids; NULL: the same */
    struct eagle3_ws ws;
};

static void eagle3_close(void *priv)
{
    struct eagle3 *m = priv;
    if (!m)
        return;
    mem_free(m->d2t);
    mem_free(m);
}

/* ---- configuration ---- */

/* An id names the state before that layer, as an index into transformers' hidden_states. */
static int parse_taps(struct eagle3 *m, const json_t *ids, const struct draft_target *target,
                      struct err *e)
{
    int n = target->info->n_layer;
    const int def[3] = {2, n / 2, n - 3};
    m->n_tap = ids ? (int)json_array_size(ids) : 3;
    if (m->n_tap < 1 || m->n_tap > LIM_TAPS)
        return FAIL(e, E_UNSUPPORTED,
                    "'eagle_aux_hidden_state_layer_ids' has %d entries, 1 to %d are possible",
                    m->n_tap, (int)LIM_TAPS);
    for (int i = 0; i < m->n_tap; i++) {
        int64_t id = i < 3 ? def[i] : 0;
        if (ids && !js_is_int(json_array_get(ids, (size_t)i), &id))
            return FAIL(e, E_INVAL, "'eagle_aux_hidden_state_layer_ids' has an entry that is %s",
                        js_type_name(json_array_get(ids, (size_t)i)));
        if (id < 0 || id > n)
            return FAIL(e, E_INVAL,
                        "'eagle_aux_hidden_state_layer_ids': %lld is not one of the %d layers of "
                        "the target %s",
                        (long long)id, n, target->info->arch);
        m->tap[i] = (int)id;
        if (i && id <= m->tap[i - 1])
            return FAIL(e, E_UNSUPPORTED,
                        ids ? "'eagle_aux_hidden_state_layer_ids' must ascend: %d before %d"
                            : "'eagle_aux_hidden_state_layer_ids' is missing, and the target's "
                              "layers %d and %d are no default",
                        m->tap[i - 1], m->tap[i]);
    }
    return OK;
}

/* The ids and the switch of `eagle_config`, or the ids at the top. */
static int parse_aux(struct eagle3 *m, struct cfg *c, const struct draft_target *target,
                     struct err *e)
{
    static const char key[] = "eagle_aux_hidden_state_layer_ids";
    json_t *sub = NULL, *ids = NULL;
    bool use = true;
    cfg_seen(c, key);
    cfg_seen(c, "eagle_config");
    TRY(js_get_arr(c->o, key, &ids, e));
    TRY(js_get_obj(c->o, "eagle_config", &sub, e));
    if (sub) {
        struct cfg s = {.o = sub};
        cfg_seen(&s, key);
        TRY(js_get_arr(sub, key, &ids, e));
        TRY(cfg_bool_or(&s, "use_aux_hidden_state", true, &use, e));
        TRY(cfg_finish(&s, e));
    }
    if (!use)
        return FAIL(e, E_UNSUPPORTED,
                    "'use_aux_hidden_state' false: a head without states of the target's layers "
                    "is not supported");
    return parse_taps(m, ids, target, e);
}

static int parse_switches(struct eagle3 *m, struct cfg *c, struct err *e)
{
    bool off;
    TRY(cfg_bool_or(c, "norm_before_residual", false, &m->norm_residual, e));
    TRY(cfg_bool_or(c, "norm_output", false, &m->norm_output, e));
    TRY(cfg_bool_or(c, "fc_norm", false, &m->norm_taps, e));
    TRY(cfg_bool_or(c, "norm_before_fc", false, &m->norm_fc, e));
    if (m->norm_taps && m->norm_fc)
        return FAIL(e, E_UNSUPPORTED, "'fc_norm' and 'norm_before_fc' exclude each other");
    TRY(cfg_bool_or(c, "attention_bias", false, &m->attn_bias, e));
    TRY(cfg_bool_or(c, "mlp_bias", false, &m->mlp_bias, e));
    TRY(cfg_bool_or(c, "rope_interleaved", false, &off, e));
    if (off)
        return FAIL(e, E_UNSUPPORTED, "'rope_interleaved' is not supported for this family");
    /* head and embedding are in the files or the target's, whatever this says */
    cfg_seen(c, "tie_word_embeddings");
    bool window = cfg_has(c, "sliding_window");
    cfg_seen(c, "sliding_window");
    cfg_seen(c, "max_window_layers");
    TRY(cfg_bool_or(c, "use_sliding_window", window, &window, e));
    if (window)
        return FAIL(e, E_UNSUPPORTED, "'sliding_window' is not supported for this family");
    return OK;
}

static int parse(struct eagle3 *m, struct cfg *c, const struct draft_target *target,
                 struct tensors *t, struct err *e)
{
    int layers;
    double eps;
    TRY(cfg_common(c, t, e));
    TRY(cfg_int(c, "vocab_size", 1, 1 << 24, &m->vocab_target, e));
    if (m->vocab_target != target->info->vocab)
        return FAIL(e, E_INVAL, "'vocab_size' is %d, the target %s has a vocabulary of %d",
                    m->vocab_target, target->info->arch, target->info->vocab);
    TRY(cfg_int_or(c, "draft_vocab_size", 1, m->vocab_target, m->vocab_target, &m->vocab, e));
    TRY(cfg_int(c, "hidden_size", 1, 1 << 20, &m->hidden, e));
    TRY(cfg_int_or(c, "target_hidden_size", 1, 1 << 20, m->hidden, &m->hidden_target, e));
    if (m->hidden_target != target->info->hidden)
        return FAIL(e, E_INVAL, "'%s' is %d, the target %s has a hidden size of %d",
                    cfg_has(c, "target_hidden_size") ? "target_hidden_size" : "hidden_size",
                    m->hidden_target, target->info->arch, target->info->hidden);
    TRY(cfg_int_or(c, "num_hidden_layers", 1, 4096, 1, &layers, e));
    if (layers != 1)
        return FAIL(e, E_UNSUPPORTED, "'num_hidden_layers' %d is not supported (only 1 is)",
                    layers);
    TRY(cfg_int(c, "intermediate_size", 1, 1 << 22, &m->inter, e));
    TRY(cfg_num(c, "rms_norm_eps", 0, 1, &eps, e));
    m->eps = m->at.eps = (float)eps;
    TRY(gqa_parse(&m->at, c, m->hidden, false, false, e));
    TRY(rope_parse(&m->rope, c, false, e));
    TRY(parse_switches(m, c, e));
    TRY(parse_aux(m, c, target, e));
    return cfg_finish(c, e);
}

/* ---- tensors ---- */

/* d2t[i] is target id - i. The mark of every target id (t2d) must say the same. Generated weights
 * draft the first ids. */
static int take_ids(struct eagle3 *m, struct tensors *t, struct err *e)
{
    const void *d2t, *t2d;
    TRY(tensors_take_raw(t, "d2t", "I64", m->vocab, &d2t, e));
    TRY(tensors_take_raw(t, "t2d", "BOOL", m->vocab_target, &t2d, e));
    if (!d2t && m->vocab == m->vocab_target)
        return OK;
    if (!d2t && !tensors_generated(t))
        return FAIL(e, E_FORMAT,
                    "tensor 'd2t' is missing, and 'draft_vocab_size' %d is not 'vocab_size' %d",
                    m->vocab, m->vocab_target);
    m->d2t = MEM_ARRAY(int32_t, m->vocab);
    bool *drafted = MEM_ARRAY(bool, m->vocab_target);
    int ret = OK;
    for (int i = 0; ret == OK && i < m->vocab; i++) {
        int64_t off = 0;
        if (d2t)
            memcpy(&off, (const char *)d2t + (size_t)i * sizeof off, sizeof off);
        if (off < -i || off >= m->vocab_target - i)
            ret = FAIL(e, E_FORMAT, "tensor 'd2t': entry %d leads to no id of the vocabulary of %d",
                       i, m->vocab_target);
        else if (drafted[i + off])
            ret = FAIL(e, E_FORMAT, "tensor 'd2t': two entries lead to id %lld",
                       (long long)(i + off));
        else
            drafted[m->d2t[i] = (int32_t)(i + off)] = true;
    }
    for (int i = 0; ret == OK && t2d && i < m->vocab_target; i++)
        if ((((const char *)t2d)[i] != 0) != drafted[i])
            ret = FAIL(e, E_FORMAT, "tensor 't2d': the mark of id %d contradicts 'd2t'", i);
    mem_free(drafted);
    return ret;
}

/* The embedding or the head: the files' own, or the target's when that fits. */
static int take_or_borrow(const struct eagle3 *m, struct tensors *t, const char *name, int n,
                          const struct weight *target, struct weight *out, struct err *e)
{
    TRY(take(t, name, "", n, m->hidden, TAKE_OPTIONAL, out, e));
    if (out->p)
        return OK;
    if (tensors_generated(t) && (target->n != n || target->k != m->hidden)) {
        TRY(tensors_take(t, name, n, m->hidden, 0, out, e));
        return OK;
    }
    if (target->n != n || target->k != m->hidden)
        return FAIL(e, E_FORMAT,
                    "tensor '%s' [%d, %d] is missing, and the target's is [%lld, %lld]", name, n,
                    m->hidden, (long long)target->n, (long long)target->k);
    *out = *target;
    return OK;
}

static int take_all(struct eagle3 *m, struct tensors *t, const struct draft_target *target,
                    struct err *e)
{
    const char *p = tensors_any(t, "midlayer.") ? "midlayer." : "layers.0.";
    char at[64];
    int h = m->hidden, wide = m->n_tap * m->hidden_target;
    unsigned parts = m->attn_bias ? GQA_QKV_BIAS | GQA_O_BIAS : 0;
    TRY(take(t, "fc.weight", "", h, wide, TAKE_FP8, &m->fc, e));
    if (m->norm_fc)
        TRY(take(t, "input_norm.weight", "", 1, wide, TAKE_VECTOR, &m->input_norm, e));
    for (int k = 0; m->norm_taps && k < m->n_tap; k++) {
        snprintf(at, sizeof at, "fc_norm.%d.", k);
        TRY(take(t, at, "weight", 1, m->hidden_target, TAKE_VECTOR, &m->fc_norm[k], e));
    }
    TRY(take(t, p, "input_layernorm.weight", 1, h, TAKE_VECTOR, &m->in_norm, e));
    TRY(take(t, p, "hidden_norm.weight", 1, h, TAKE_VECTOR, &m->hidden_norm, e));
    TRY(take(t, p, "post_attention_layernorm.weight", 1, h, TAKE_VECTOR, &m->post_norm, e));
    snprintf(at, sizeof at, "%sself_attn.", p);
    TRY(gqa_take(t, at, &m->at, 2 * h, h, parts, &m->attn, e));
    snprintf(at, sizeof at, "%smlp.", p);
    TRY(mlp_take(t, at, h, m->inter, m->mlp_bias, &m->mlp, e));
    TRY(take(t, "norm.weight", "", 1, h, TAKE_VECTOR, &m->norm, e));
    TRY(take_or_borrow(m, t, "embed_tokens.weight", m->vocab_target, &target->embed, &m->embed, e));
    TRY(take_or_borrow(m, t, "lm_head.weight", m->vocab, &target->head, &m->head, e));
    return take_ids(m, t, e);
}

static int eagle3_open(void **priv, const struct draft_target *target, const json_t *config,
                       struct tensors *t, struct model_info *info, struct err *e)
{
    struct eagle3 *m = MEM_NEW(struct eagle3);
    struct cfg c = {.o = config};
    int ret = parse(m, &c, target, t, e);
    if (ret < 0) {
        err_prefix(e, "config.json");
        goto out;
    }
    TRY_OUT(take_all(m, t, target, e));
    info->vocab = m->vocab;
    info->vocab_target = m->vocab_target;
    info->hidden = info->feat = m->hidden;
    info->shift = 1;
    info->n_tap = m->n_tap;
    memcpy(info->tap, m->tap, sizeof m->tap);
    info->n_layer = 1;
    info->n_head = m->at.n_head;
    info->pos_max = m->rope.pos_max;
    info->n_group = 1;
    info->group[0] = gqa_group(&m->at, 1, 0);
    *priv = m;
    m = NULL;
    ret = OK;
out:
    eagle3_close(m);
    return ret;
}

/* ---- placement ---- */

static int layout(const struct eagle3 *m, int rows, int len, struct eagle3_ws *ws, struct err *e)
{
    struct placed *pl = &ws->mem;
    int64_t r = rows, h = m->hidden, wide = (int64_t)m->n_tap * m->hidden_target;
    const void *ids = NULL;
    ws->rows_max = rows;
    TRY(placed_floats(pl, &ws->x, r * h, e));
    TRY(placed_floats(pl, &ws->y, r * h, e));
    TRY(placed_floats(pl, &ws->pair, 2 * r * h, e));
    TRY(placed_floats(pl, &ws->taps, m->norm_fc || m->norm_taps ? r * wide : 0, e));
    TRY(gqa_ws_place(pl, &m->at, &m->rope, rows, len, &ws->at, e));
    TRY(mlp_ws_place(pl, rows, m->hidden, m->inter, NULL, &ws->mlp, e));
    if (m->d2t)
        TRY(placed_copy(pl, &ids, m->d2t, (size_t)m->vocab * sizeof *m->d2t, e));
    ws->d2t = ids;
    return OK;
}

static void ws_done(struct eagle3_ws *ws)
{
    placed_free(&ws->mem);
    *ws = (struct eagle3_ws){0};
}

static size_t eagle3_bytes(const void *priv, int rows_max, int len_max)
{
    struct eagle3_ws ws = {0};
    CHECK(layout(priv, rows_max, len_max, &ws, NULL) == OK);
    size_t n = ws.mem.bytes;
    ws_done(&ws);
    return n;
}

static void eagle3_unplace(void *priv)
{
    ws_done(&((struct eagle3 *)priv)->ws);
}

static int eagle3_place(void *priv, const struct dev_ops *ops, struct dev *d, int rows_max,
                        int len_max, struct err *e)
{
    struct eagle3 *m = priv;
    m->ws.mem = (struct placed){.ops = ops, .d = d};
    int r = layout(m, rows_max, len_max, &m->ws, e);
    if (r < 0)
        eagle3_unplace(m);
    return r;
}

static void eagle3_need(const void *priv, int group, enum role role, enum attn_kind mla_form,
                        int q_len_max, struct attn_need *out)
{
    const struct eagle3 *m = priv;
    (void)group;
    (void)mla_form;
    gqa_need(&m->at, role, 0, q_len_max, out);
}

/* ---- the program ---- */

static struct on on_device(const struct eagle3 *m, int rows)
{
    CHECK(rows <= m->ws.rows_max);
    return (struct on){.op = m->ws.mem.ops->ops, .d = m->ws.mem.d, .rows = rows};
}

static int eagle3_feature(void *priv, const float *taps, int rows, float *feat, struct err *e)
{
    struct eagle3 *m = priv;
    struct on o = on_device(m, rows);
    int ht = m->hidden_target, wide = m->n_tap * ht;
    (void)e;
    for (int k = 0; m->norm_taps && k < m->n_tap; k++)
        TRY(run_norm_ld(&o, m->ws.taps + k * ht, wide, taps + k * ht, wide, &m->fc_norm[k], ht,
                        m->eps));
    if (m->norm_fc)
        TRY(run_norm(&o, m->ws.taps, taps, &m->input_norm, wide, m->eps));
    return run_matmul(&o, feat, m->norm_taps || m->norm_fc ? m->ws.taps : taps, &m->fc, NULL,
                      false);
}

static int eagle3_forward(void *priv, const struct fwd *f, struct err *e)
{
    struct eagle3 *m = priv;
    struct eagle3_ws *ws = &m->ws;
    struct on o = on_device(m, f->rows);
    int h = m->hidden;
    float *x = m->norm_output ? ws->x : f->hidden; /* the recurrent feature is x or norm(x) */
    const struct pair_in pair = {&m->embed, &m->in_norm, &m->hidden_norm, m->eps, m->norm_residual};
    TRY(run_pair(&o, f, &pair, ws->pair, x));
    TRY(run_gqa(&o, &m->at, &m->attn, &ws->at, &(struct rows_in){.x = ws->pair}, x, f, 0, 0, e));
    const struct rows_in in = {x, &m->post_norm, m->eps, ws->y};
    TRY(run_mlp(&o, &m->mlp, &ws->mlp, h, &in, x));
    return m->norm_output ? run_norm(&o, f->hidden, x, &m->norm, h, m->eps) : OK;
}

static int eagle3_logits(void *priv, const float *hidden, int rows, float *logits, struct err *e)
{
    struct eagle3 *m = priv;
    struct on o = on_device(m, rows);
    const struct rows_in in = {hidden, m->norm_output ? NULL : &m->norm, m->eps, m->ws.y};
    (void)e;
    return run_proj(&o, &in, &(const struct proj_out){logits, &m->head, NULL}, 1);
}

static const int32_t *eagle3_d2t(const void *priv)
{
    return ((const struct eagle3 *)priv)->ws.d2t;
}

const struct family family_eagle3 = {
    .name = "eagle3",
    /* The first heads carry the architecture of their layer; `draft_vocab_size` tells them. */
    .archs = (const char *const[]){"LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM",
                                   "LlamaForCausalLM", NULL},
    .model_types = (const char *const[]){"llama", NULL},
    .open_draft = eagle3_open,
    .close = eagle3_close,
    .device_bytes = eagle3_bytes,
    .place = eagle3_place,
    .unplace = eagle3_unplace,
    .attn_need = eagle3_need,
    .forward = eagle3_forward,
    .logits = eagle3_logits,
    .feature = eagle3_feature,
    .d2t = eagle3_d2t,
};
