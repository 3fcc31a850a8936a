/* Generated EAGLE-3 heads; see the header. */
#include "test/model/heads.h"

#include <math.h>
#include <stdio.h>

#include "engine/base/check.h"

enum { TARGET_HIDDEN = 72, TARGET_VOCAB = 131, HEADS = 6, KV = 2, HD = 16, INTER = 90, TAPS = 3 };

const struct head heads[] = {
    {.name = "eagle3", .hidden = 72},
    {.name = "norm_before_residual", .hidden = 72, .norm_residual = true},
    {.name = "norm_output, fc_norm", .hidden = 72, .norm_output = true, .fc_norm = true},
    {.name = "norm_before_fc", .hidden = 72, .norm_fc = true, .layers_0 = true},
    {.name = "full vocabulary", .hidden = 72, .full_vocab = true},
    {.name = "another width", .hidden = 56, .own_embed = true, .bias = true},
};
const int n_heads = (int)ARRAY_LEN(heads);

int head_target_id(int id)
{
    return 2 * id + 3 + (id > 30);
}

static void product(struct gen *g, const char *prefix, const char *name, int n, int k)
{
    char full[96];
    snprintf(full, sizeof full, "%s%s", prefix, name);
    gen_add(g, full, "BF16", n, k, 0, 2 / sqrt(k));
}

static void norm(struct gen *g, const char *prefix, const char *name, int n)
{
    char full[96];
    snprintf(full, sizeof full, "%s%s", prefix, name);
    gen_add(g, full, "BF16", 0, n, 1, 0.4);
}

static void layer(struct gen *g, const struct head *h)
{
    const char *p = h->layers_0 ? "layers.0." : "midlayer.";
    static const char *const biased[] = {"self_attn.q_proj.bias", "self_attn.k_proj.bias",
                                         "self_attn.v_proj.bias", "self_attn.o_proj.bias"};
    const int wide[] = {HEADS * HD, KV * HD, KV * HD, h->hidden};
    norm(g, p, "input_layernorm.weight", h->hidden);
    norm(g, p, "hidden_norm.weight", h->hidden);
    norm(g, p, "post_attention_layernorm.weight", h->hidden);
    product(g, p, "self_attn.q_proj.weight", HEADS * HD, 2 * h->hidden);
    product(g, p, "self_attn.k_proj.weight", KV * HD, 2 * h->hidden);
    product(g, p, "self_attn.v_proj.weight", KV * HD, 2 * h->hidden);
    product(g, p, "self_attn.o_proj.weight", h->hidden, HEADS * HD);
    for (int i = 0; h->bias && i < 4; i++)
        norm(g, p, biased[i], wide[i]);
    product(g, p, "mlp.gate_proj.weight", INTER, h->hidden);
    product(g, p, "mlp.up_proj.weight", INTER, h->hidden);
    product(g, p, "mlp.down_proj.weight", h->hidden, INTER);
}

static void ids(struct gen *g)
{
    json_t *d2t = json_array(), *t2d = json_array();
    for (int i = 0; i < TARGET_VOCAB; i++)
        json_array_append_new(t2d, json_integer(0));
    for (int i = 0; i < HEAD_VOCAB; i++) {
        json_array_append_new(d2t, json_integer(head_target_id(i) - i));
        json_array_set_new(t2d, (size_t)head_target_id(i), json_integer(1));
    }
    gen_add_list(g, "d2t", "I64", d2t);
    gen_add_list(g, "t2d", "BOOL", t2d);
}

void head_make(struct gen *g, const struct head *h)
{
    json_t *c = json_pack(
        "{s:[s],s:s,s:s,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:f,s:f,s:i,s:b,s:b,s:b,s:b,s:b,s:s}",
        "architectures", "LlamaForCausalLMEagle3", "model_type", "llama", "hidden_act", "silu",
        "hidden_size", h->hidden, "target_hidden_size", TARGET_HIDDEN, "intermediate_size", INTER,
        "num_hidden_layers", 1, "num_attention_heads", HEADS, "num_key_value_heads", KV, "head_dim",
        HD, "max_position_embeddings", 128, "rms_norm_eps", 1e-5, "rope_theta", 20000.0,
        "vocab_size", TARGET_VOCAB, "norm_before_residual", h->norm_residual, "norm_output",
        h->norm_output, "fc_norm", h->fc_norm, "norm_before_fc", h->norm_fc, "attention_bias",
        h->bias, "torch_dtype", "bfloat16");
    CHECK(c);
    json_object_set_new(c, "eagle_config",
                        json_pack("{s:[i,i,i],s:b}", "eagle_aux_hidden_state_layer_ids", 1, 2, 3,
                                  "use_aux_hidden_state", 1));
    if (!h->full_vocab)
        json_object_set_new(c, "draft_vocab_size", json_integer(HEAD_VOCAB));
    gen_new(g, c);
    product(g, "", "fc.weight", h->hidden, TAPS * TARGET_HIDDEN);
    if (h->norm_fc)
        norm(g, "", "input_norm.weight", TAPS * TARGET_HIDDEN);
    for (int k = 0; h->fc_norm && k < TAPS; k++) {
        char name[32];
        snprintf(name, sizeof name, "fc_norm.%d.weight", k);
        norm(g, "", name, TARGET_HIDDEN);
    }
    layer(g, h);
    norm(g, "", "norm.weight", h->hidden);
    if (h->own_embed)
        gen_add(g, "embed_tokens.weight", "BF16", TARGET_VOCAB, h->hidden, 0, 1.5);
    if (h->full_vocab)
        return;
    product(g, "", "lm_head.weight", HEAD_VOCAB, h->hidden);
    ids(g);
}
