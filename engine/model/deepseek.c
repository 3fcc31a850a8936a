/* DeepSeek-V2-Lite, V2, V3, R1 and Kimi-K2: configuration and tensors. The program is in
 * deepseek_run.c; next-token (MTP) layers are checked and kept aside here, deepseek_mtp.c runs one
 * as a drafter. Start-up only. */
#include "engine/model/deepseek.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"

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
    TRY(split_check(t, "num_attention_heads", m->n_head, e));
    TRY(split_check(t, "moe_intermediate_size", m->moe.inter, e));
    if (m->dense_layers)
        TRY(split_check(t, "intermediate_size", m->inter, e));
    return cfg_finish(c, e);
}

/* From the model's numbers to this rank's, which the program means. The latent cache and what makes
 * it are whole on every rank. */
static void split(struct deepseek *m, const struct tensors *t)
{
    m->comm = tensors_comm(t);
    int world = comm_world(m->comm);
    m->n_head /= world;
    m->inter /= world;
    m->moe.inter /= world;
    m->moe.shared_inter /= world;
}

/* ---- tensors ---- */

static int take_attention(const struct deepseek *m, struct ds_layer *l, const char *p,
                          struct tensors *t, struct err *e)
{
    int64_t nq = (int64_t)m->n_head * (m->nope + m->rope_dim), kv = m->kv_lora + m->rope_dim;
    if (m->q_lora) {
        TRY(take(t, p, "q_a_proj.weight", m->q_lora, m->hidden, TAKE_FP8, &l->q_a, e));
        TRY(take(t, p, "q_a_layernorm.weight", 1, m->q_lora, TAKE_VECTOR, &l->q_a_norm, e));
        TRY(take(t, p, "q_b_proj.weight", nq, m->q_lora, TAKE_FP8 | TAKE_ROWS, &l->q, e));
    } else {
        TRY(take(t, p, "q_proj.weight", nq, m->hidden, TAKE_FP8 | TAKE_ROWS, &l->q, e));
    }
    TRY(take(t, p, "kv_a_proj_with_mqa.weight", kv, m->hidden, TAKE_FP8, &l->kv_a, e));
    TRY(take(t, p, "kv_a_layernorm.weight", 1, m->kv_lora, TAKE_VECTOR, &l->kv_a_norm, e));
    TRY(take(t, p, "kv_b_proj.weight", (int64_t)m->n_head * (m->nope + m->v_dim), m->kv_lora,
             TAKE_FP8 | TAKE_ROWS, &l->kv_b, e));
    TRY(take(t, p, "o_proj.weight", m->hidden, (int64_t)m->n_head * m->v_dim, TAKE_FP8 | TAKE_COLS,
             &l->o, e));
    float values;
    TRY(kv_scale_take(t, p, "kv_a_proj_with_mqa", "k_scale", &l->kv_scale, e));
    TRY(kv_scale_take(t, p, "kv_b_proj", "v_scale", &values, e));
    if (values != 1 && values != l->kv_scale)
        return FAIL(e, E_UNSUPPORTED,
                    "'%sv_scale' is %g and k_scale %g, but a latent cache has one scale", p,
                    (double)values, (double)l->kv_scale);
    if (!m->attn_bias)
        return OK;
    if (m->q_lora)
        TRY(take(t, p, "q_a_proj.bias", 1, m->q_lora, TAKE_VECTOR, &l->q_a_b, e));
    TRY(take(t, p, "kv_a_proj_with_mqa.bias", 1, kv, TAKE_VECTOR, &l->kv_a_b, e));
    TRY(take(t, p, "o_proj.bias", 1, m->hidden, TAKE_VECTOR | TAKE_RANK0, &l->o_b, e));
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
    info->vocab = m->vocab;
    info->hidden = m->hidden;
    info->n_layer = m->n_layer;
    info->n_head = m->n_head;
    split(m, t);
    info->pos_max = m->rope.pos_max;
    info->n_mtp = m->n_mtp;
    info->n_expert = m->moe.experts;
    info->topk = m->moe.topk;
    info->n_group = 1;
    info->group[0] = ds_group(m);
    *priv = m;
    m = NULL;
    ret = OK;
out:
    ds_close(m);
    return ret;
}

static void ds_shared(const void *priv, struct weight *embed, struct weight *head)
{
    const struct deepseek *m = priv;
    *embed = m->embed;
    *head = m->head;
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
    .shared = ds_shared,
    .mtp = &family_deepseek_mtp,
};
