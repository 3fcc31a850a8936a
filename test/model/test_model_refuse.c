/* Goal: what cannot be honoured is refused, and the reason names the key, tensor or file. Method: a
 * table of single changes to checkpoints that load, each with the words the error must contain;
 * before it, the same checkpoints unchanged (otherwise every row could pass for one reason). The
 * second half: what must be accepted, and generation_config.json. */
#include <check.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "test/model/gen.h"
#include "test/model/runner.h"

static void set_path(json_t *o, const char *path, const char *json)
{
    char key[64];
    const char *dot = strchr(path, '.');
    while (dot) {
        snprintf(key, sizeof key, "%.*s", (int)(dot - path), path);
        o = json_object_get(o, key);
        CHECK(json_is_object(o));
        path = dot + 1;
        dot = strchr(path, '.');
    }
    if (!json) {
        CHECK(json_object_del(o, path) == 0);
        return;
    }
    json_t *v = json_loads(json, JSON_DECODE_ANY, NULL);
    CHECK(v && json_object_set_new(o, path, v) == 0);
}

/* json NULL: the key is removed. `want` and `want2` must be in the error. */
struct key_case {
    const char *variant, *key, *json, *want, *want2;
};

static const struct key_case keys[] = {
    {"llama2", "architectures", NULL, "architectures", "missing"},
    {"llama2", "architectures", "[\"MambaForCausalLM\"]", "MambaForCausalLM", "architectures"},
    {"llama2", "architectures", "\"LlamaForCausalLM\"", "architectures", "an array"},
    {"llama2", "model_type", "\"gemma2\"", "model_type", "gemma2"},
    {"llama2", "hidden_act", "\"gelu\"", "hidden_act", "gelu"},
    {"llama2", "hidden_size", NULL, "hidden_size", "missing"},
    {"llama2", "hidden_size", "\"72\"", "hidden_size", "a string"},
    {"llama2", "hidden_size", "72.5", "hidden_size", "an integer"},
    {"llama2", "hidden_size", "0", "hidden_size", "0"},
    {"llama2", "hidden_size", "73", "hidden_size", "num_attention_heads"},
    {"llama2", "hidden_size", "84", "model.embed_tokens.weight", "[131, 84]"},
    {"llama2", "vocab_size", "132", "model.embed_tokens.weight", "[132, 72]"},
    {"llama2", "intermediate_size", "101", "gate_proj.weight", "[101, 72]"},
    {"llama2", "num_hidden_layers", "4", "model.layers.3.", "missing"},
    {"llama2", "num_hidden_layers", "2", "model.layers.2.", "not part"},
    {"llama2", "num_hidden_layers", "-1", "num_hidden_layers", "-1"},
    {"llama2", "num_key_value_heads", "4", "num_key_value_heads", "multiple"},
    {"llama2", "num_key_value_heads", "3", "k_proj.weight", "[36, 72]"},
    {"llama2", "head_dim", "13", "head_dim", "even"},
    {"llama2", "head_dim", "2048", "head_dim", "2048"},
    {"llama2", "rms_norm_eps", NULL, "rms_norm_eps", "missing"},
    {"llama2", "rms_norm_eps", "true", "rms_norm_eps", "a boolean"},
    {"llama2", "rms_norm_eps", "-1", "rms_norm_eps", "-1"},
    {"llama2", "max_position_embeddings", NULL, "max_position_embeddings", "missing"},
    {"llama2", "tie_word_embeddings", "true", "lm_head.weight", "tie_word_embeddings"},
    {"llama2", "tie_word_embeddings", "1", "tie_word_embeddings", "an integer"},
    {"llama2", "attention_bias", "true", "q_proj.bias", "missing"},
    {"llama2", "mlp_bias", "true", "gate_proj.bias", "missing"},
    {"llama2", "sliding_window", "64", "sliding_window", "not supported"},
    {"llama2", "rope_interleaved", "true", "rope_interleaved", "not supported"},
    {"llama2", "partial_rotary_factor", "0.5", "partial_rotary_factor", "0.5"},
    {"llama2", "rope_theta", "\"big\"", "rope_theta", "a string"},
    {"llama2", "rope_theta", "0", "rope_theta", "0"},
    {"llama2", "rope_scaling", "{\"type\":\"dynamic\",\"factor\":2}", "dynamic", "rope_scaling"},
    {"llama2", "rope_scaling", "{\"rope_type\":\"longrope\"}", "longrope", "rope_scaling"},
    {"llama2", "rope_scaling", "{\"type\":\"linear\"}", "factor", "missing"},
    {"llama2", "rope_scaling", "{\"type\":\"linear\",\"rope_type\":\"yarn\",\"factor\":2}",
     "rope_type", "yarn"},
    {"llama2", "rope_scaling", "{\"type\":\"linear\",\"factor\":2,\"beta_fast\":32}", "beta_fast",
     "linear"},
    {"llama2", "rope_scaling", "{\"type\":\"default\",\"mrope_section\":[2,2,2]}", "mrope_section",
     "default"},
    {"llama2", "rope_scaling", "[1]", "rope_scaling", "an object"},
    {"llama2", "rope_parameters", "{\"full_attention\":{\"rope_theta\":1}}", "full_attention",
     "layer type"},
    {"llama2", "rope_parameters", "{\"rope_theta\":5000}", "rope_theta", "5000"},
    {"llama3", "rope_scaling.high_freq_factor", "1", "high_freq_factor", "low_freq_factor"},
    {"llama3", "rope_scaling.low_freq_factor", NULL, "low_freq_factor", "missing"},
    {"llama3", "rope_scaling.factor", "0.5", "factor", "0.5"},
    {"llama3", "rope_parameters", "{\"rope_type\":\"default\"}", "rope_parameters", "rope_scaling"},
    {"llama-yarn", "rope_scaling.truncate", "3", "truncate", "an integer"},
    {"llama-yarn", "original_max_position_embeddings", "128", "original_max_position_embeddings",
     "128"},
    {"llama2", "attn_logit_softcapping", "50.0", "attn_logit_softcapping", "computation"},
    {"llama2", "residual_multiplier", "0.2", "residual_multiplier", "computation"},
    {"llama2", "use_qk_norm", "true", "use_qk_norm", "computation"},
    {"llama2", "num_experts", "4", "num_experts", "computation"},
    {"llama2", "torch_dtype", "\"int8\"", "torch_dtype", "int8"},
    {"llama2", "quantization_config", "{\"quant_method\":\"gptq\",\"bits\":4}",
     "quantization_config", "gptq"},
    {"llama2", "quantization_config", "{\"quant_method\":\"fp8\",\"fmt\":\"e4m3\"}",
     "weight_block_size", "quantization_config"},
    {"qwen3-fp8", "quantization_config", NULL, "F8_E4M3", "quantization_config"},
    {"qwen3-fp8", "quantization_config.weight_block_size", "[64, 128]", "weight_block_size", "128"},
    {"qwen3-fp8", "quantization_config.activation_scheme", "\"static\"", "activation_scheme",
     "static"},
    {"qwen3-fp8", "quantization_config.fmt", "\"e5m2\"", "fmt", "e5m2"},
    {"qwen3-fp8", "quantization_config.kv_cache_scheme", "{\"num_bits\":8}", "kv_cache_scheme",
     "not supported"},
    {"qwen2", "attention_bias", "false", "attention_bias", "always"},
    {"qwen2", "num_key_value_heads", NULL, "num_key_value_heads", "missing"},
    {"qwen2", "layer_types", "[\"full_attention\"]", "layer_types", "3 layers"},
    {"qwen2", "layer_types", "[\"full_attention\",\"sliding_attention\",\"full_attention\"]",
     "layer_types", "use_sliding_window"},
    {"qwen2", "layer_types", "[\"full_attention\",\"linear_attention\",\"full_attention\"]",
     "layer_types", "linear_attention"},
    {"qwen2-window", "sliding_window", NULL, "sliding_window", "missing"},
    {"qwen2-window", "sliding_window", "0", "sliding_window", "0"},
    {"qwen3", "head_dim", NULL, "head_dim", "missing"},
    {"qwen3-moe", "use_sliding_window", "true", "use_sliding_window", "not supported"},
    {"qwen3-moe", "num_experts_per_tok", "13", "num_experts_per_tok", "12"},
    {"qwen3-moe", "num_experts", "11", "mlp.gate.weight", "[11, 72]"},
    {"qwen3-moe", "mlp_only_layers", "[3]", "mlp_only_layers", "3 layers"},
    {"qwen3-moe", "mlp_only_layers", "[1]", "model.layers.1.mlp.gate_proj.weight", "missing"},
    {"qwen3-moe", "decoder_sparse_step", "0", "decoder_sparse_step", "0"},
    {"ds-v3", "scoring_func", "\"softmax\"", "scoring_func", "softmax"},
    {"ds-v3", "topk_method", "\"greedy\"", "topk_method", "greedy"},
    {"ds-v3", "n_group", "3", "n_group", "16"},
    {"ds-v3", "n_group", NULL, "n_group", "missing"},
    {"ds-v3", "topk_group", "5", "topk_group", "5"},
    {"ds-v3", "n_group", "16", "n_group", "two"},
    {"ds-v3", "num_experts_per_tok", "9", "num_experts_per_tok", "8"},
    {"ds-v3", "num_experts_per_tok", "40", "num_experts_per_tok", "40"},
    {"ds-v3", "moe_layer_freq", "2", "moe_layer_freq", "2"},
    {"ds-v3", "first_k_dense_replace", "0", "model.layers.0.mlp.gate.weight", "missing"},
    {"ds-v3", "kv_lora_rank", "41", "kv_a_proj_with_mqa.weight", "[49, 72]"},
    {"ds-v3", "q_lora_rank", "null", "self_attn.q_proj.weight", "missing"},
    {"ds-v3", "num_key_value_heads", "2", "num_key_value_heads", "2"},
    {"ds-v3", "head_dim", "31", "head_dim", "31"},
    {"ds-v3", "qk_rope_head_dim", "7", "qk_rope_head_dim", "even"},
    {"ds-v3", "mlp_bias", "true", "mlp_bias", "not supported"},
    {"ds-v3", "n_shared_experts", "2", "shared_experts.gate_proj.weight", "[56, 72]"},
    {"ds-v3", "num_nextn_predict_layers", "0", "model.layers.3.", "not part"},
    {"ds-v3", "num_nextn_predict_layers", "2", "model.layers.4.", "missing"},
    {"ds-v3", "rope_scaling.mscale", NULL, "mscale", "disagree"},
    {"ds-v3", "index_topk", "2048", "index_topk", "computation"},
    {"ds-v3", "model_type", "\"deepseek_v2\"", "model_type", "deepseek_v2"},
    {"ds-v2", "norm_topk_prob", "true", "norm_topk_prob", "disagree"},
    {"ds-v2", "topk_method", "\"noaux_tc\"", "topk_method", "noaux_tc"},
    {"ds-v2", "rope_interleave", "false", "rope_interleave", "not known"},
    {"llama2", "eos_token_id", "131", "eos_token_id", "131"},
    {"llama2", "eos_token_id", "[1, \"x\"]", "eos_token_id", "a string"},
    {"llama2", "bos_token_id", "-4", "bos_token_id", "131"},
};

static void must_fail(const struct gen *g, const char *what, const char *want, const char *want2)
{
    struct model *m = NULL;
    struct err e = {0};
    int ret = model_open(&m, g->dir, &e);
    ck_assert_msg(ret < 0, "%s: accepted", what);
    ck_assert_int_eq(ret, e.code);
    ck_assert_msg(strstr(e.text, want) && strstr(e.text, want2), "%s: the error is: %s", what,
                  e.text);
}

START_TEST(key_refused)
{
    const struct key_case *k = &keys[_i];
    char what[160];
    struct gen g;
    gen_open(&g, k->variant);
    set_path(g.config, k->key, k->json);
    gen_write(&g, 1);
    snprintf(what, sizeof what, "%s, %s: %.60s", k->variant, k->key, k->json ? k->json : "(gone)");
    must_fail(&g, what, k->want, k->want2);
    gen_close(&g);
}
END_TEST

/* ---- tensors and files ---- */

static void t_missing(struct gen *g)
{
    ck_assert_int_eq(gen_remove(g, "model.layers.1.self_attn.o_proj.weight"), 1);
}
static void t_extra(struct gen *g)
{
    json_array_append_new(
        g->tensors, json_pack("[s,s,[i],i,i]", "model.layers.0.self_attn.sinks", "BF16", 6, 0, 1));
}
static void t_type(struct gen *g)
{
    json_array_set_new(gen_tensor(g, "model.norm.weight"), 1, json_string("F8_E4M3"));
}
static void t_rank(struct gen *g)
{
    json_array_set_new(gen_tensor(g, "model.norm.weight"), 2, json_pack("[i,i]", 1, 72));
}
static void t_transposed(struct gen *g)
{
    json_array_set_new(gen_tensor(g, "model.layers.0.mlp.down_proj.weight"), 2,
                       json_pack("[i,i]", 100, 72));
}
static void t_q_norm(struct gen *g)
{
    json_array_append_new(
        g->tensors,
        json_pack("[s,s,[i],i,i]", "model.layers.0.self_attn.q_norm.weight", "BF16", 12, 1, 0));
}
static void t_scale_missing(struct gen *g)
{
    gen_remove(g, "model.layers.0.mlp.up_proj.weight_scale_inv");
}
static void t_scale_shape(struct gen *g)
{
    json_array_set_new(gen_tensor(g, "model.layers.0.mlp.up_proj.weight_scale_inv"), 2,
                       json_pack("[i,i]", 3, 1));
}
static void t_scale_extra(struct gen *g)
{
    json_array_append_new(
        g->tensors, json_pack("[s,s,[i,i],i,i]", "lm_head.weight_scale_inv", "F32", 2, 2, 1, 0));
}
static void t_expert(struct gen *g)
{
    gen_remove(g, "model.layers.1.mlp.experts.7.up_proj.weight");
}
static void t_expert_extra(struct gen *g)
{
    json_array_append_new(g->tensors, json_pack("[s,s,[i,i],i,i]",
                                                "model.layers.1.mlp.experts.16.up_proj.weight",
                                                "BF16", 28, 72, 0, 1));
}
static void t_bias(struct gen *g)
{
    gen_remove(g, "model.layers.2.mlp.gate.e_score_correction_bias");
}
static void t_mtp(struct gen *g)
{
    gen_remove(g, "model.layers.3.eh_proj.weight");
}
static void t_mtp_shape(struct gen *g)
{
    json_array_set_new(gen_tensor(g, "model.layers.3.hnorm.weight"), 2, json_pack("[i]", 71));
}

static const struct {
    const char *variant;
    void (*edit)(struct gen *g);
    const char *want, *want2;
} tensor_cases[] = {
    {"llama2", t_missing, "model.layers.1.self_attn.o_proj.weight", "missing"},
    {"llama2", t_extra, "model.layers.0.self_attn.sinks", "not part"},
    {"llama2", t_type, "model.norm.weight", "F8_E4M3"},
    {"llama2", t_rank, "model.norm.weight", "[1, 72]"},
    {"llama2", t_transposed, "model.layers.0.mlp.down_proj.weight", "[72, 100]"},
    {"llama2", t_q_norm, "q_norm.weight", "not part"},
    {"qwen3-fp8", t_scale_missing, "up_proj.weight_scale_inv", "missing"},
    {"qwen3-fp8", t_scale_shape, "up_proj.weight_scale_inv", "[3, 2]"},
    {"qwen3-fp8", t_scale_extra, "lm_head.weight_scale_inv", "not part"},
    {"ds-v3", t_expert, "model.layers.1.mlp.experts.7.up_proj.weight", "missing"},
    {"ds-v3", t_expert_extra, "experts.16.up_proj.weight", "not part"},
    {"ds-v3", t_bias, "model.layers.2.mlp.gate.e_score_correction_bias", "missing"},
    {"ds-v3", t_mtp, "model.layers.3.eh_proj.weight", "missing"},
    {"ds-v3", t_mtp_shape, "model.layers.3.hnorm.weight", "[71]"},
};

START_TEST(tensor_refused)
{
    struct gen g;
    gen_open(&g, tensor_cases[_i].variant);
    tensor_cases[_i].edit(&g);
    gen_write(&g, 1);
    must_fail(&g, tensor_cases[_i].variant, tensor_cases[_i].want, tensor_cases[_i].want2);
    gen_close(&g);
}
END_TEST

static const struct {
    const char *file, *text, *want, *want2;
    int shards;
} file_cases[] = {
    {"config.json", "{", "config.json", "not valid JSON", 1},
    {"config.json", "[]", "config.json", "an array", 1},
    {"config.json", "{\"architectures\":[],\"architectures\":[]}", "config.json", "duplicate", 1},
    {"generation_config.json", "{\"temperature\": \"hot\"}", "generation_config.json",
     "temperature", 1},
    {"generation_config.json", "{\"num_beams\": 4}", "generation_config.json", "num_beams", 1},
    {"generation_config.json", "{\"suppress_tokens\": [5]}", "generation_config.json",
     "suppress_tokens", 1},
    {"generation_config.json", "{\"top_p\": 1.5}", "generation_config.json", "top_p", 1},
    {"generation_config.json", "{\"eos_token_id\": [500]}", "generation_config.json",
     "eos_token_id", 1},
    {"generation_config.json", "7", "generation_config.json", "not an object", 1},
    {"model.safetensors", "", "model.safetensors", "too few", 1},
    {"model.safetensors", "GGUF0123456789", "model.safetensors", "header length", 1},
    {"model-00002-of-00002.safetensors", "\2\0\0\0\0\0\0\0{}", "model-00002-of-00002.safetensors",
     "is not in", 2},
    {"model.safetensors.index.json", "{}", "index.json", "weight_map", 2},
    {"model.safetensors.index.json", "{\"weight_map\":{\"x\":\"../x\"}}", "index.json", "'x'", 2},
    {"model.safetensors.index.json", "{\"weight_map\":{\"x\":\"gone.safetensors\"}}",
     "gone.safetensors", "index.json", 2},
    {"model.safetensors.index.json",
     "{\"weight_map\":{\"model.norm.weight\":\"model-00001-of-00002.safetensors\"}}", "index.json",
     "tensor", 2},
};

START_TEST(file_refused)
{
    struct gen g;
    gen_open(&g, "llama2");
    gen_write(&g, file_cases[_i].shards);
    const char *text = file_cases[_i].text;
    gen_put(&g, file_cases[_i].file, text, *text == '\2' ? 10 : strlen(text));
    must_fail(&g, file_cases[_i].file, file_cases[_i].want, file_cases[_i].want2);
    gen_close(&g);
}
END_TEST

START_TEST(no_files)
{
    struct gen g;
    struct model *m;
    struct err e = {0};
    gen_open(&g, "llama2");
    gen_write(&g, 1);
    char *path = mem_printf("%s/model.safetensors", g.dir);
    ck_assert_int_eq(remove(path), 0);
    mem_free(path);
    must_fail(&g, "no weights", "model.safetensors.index.json", g.dir);
    ck_assert_int_eq(model_open(&m, "/nonexistent", &e), E_IO);
    ck_assert_ptr_nonnull(strstr(e.text, "config.json"));
    gen_close(&g);
}
END_TEST

/* ---- what must be accepted ---- */

START_TEST(unchanged_accepted)
{
    struct gen g;
    struct model *m;
    struct err e = {0};
    gen_open(&g, gen_names()[_i]);
    if (g.config)
        gen_write(&g, 1);
    long live = mem_live();
    ck_assert_msg(model_open(&m, g.dir, &e) == OK, "%s", e.text);
    const struct model_info *in = model_info(m);
    ck_assert_int_gt(in->n_param, 1000);
    ck_assert_uint_ge(in->weight_bytes, (size_t)in->n_param);
    ck_assert_int_ge(in->n_group, 1);
    model_close(m);
    ck_assert_int_eq(mem_live(), live);
    gen_close(&g);
}
END_TEST

static const struct {
    const char *variant, *key, *json;
} fine[] = {
    {"llama2", "hidden_act", "\"swish\""},
    {"llama2", "attention_dropout", "0.1"},
    {"llama2", "pretraining_tp", "2"},
    {"llama2", "rope_interleaved", "false"},
    {"llama2", "attn_logit_softcapping", "null"},
    {"llama2", "some_new_note", "\"written by a tool\""},
    {"llama2", "dtype", "\"float32\""},
    {"llama2", "keys_to_ignore_at_inference", "[\"past_key_values\"]"},
    {"llama2", "rope_scaling", "{\"type\":\"default\"}"},
    {"llama2", "rope_parameters", "{\"rope_type\":\"default\",\"rope_theta\":10000}"},
    {"llama2", "vocab_size", "131.0"},
    {"qwen2", "sliding_window", "null"},
    {"qwen2", "layer_types", "[\"full_attention\",\"full_attention\",\"full_attention\"]"},
    {"ds-v3", "head_dim", "8"},
    {"ds-v3", "ep_size", "8"},
    {"ds-v3", "rope_scaling.factor", "4.0"},
};

START_TEST(neutral_accepted)
{
    struct gen g;
    struct model *m;
    struct err e = {0};
    gen_open(&g, fine[_i].variant);
    set_path(g.config, fine[_i].key, fine[_i].json);
    gen_write(&g, 1);
    ck_assert_msg(model_open(&m, g.dir, &e) == OK, "%s %s: %s", fine[_i].key, fine[_i].json,
                  e.text);
    model_close(m);
    gen_close(&g);
}
END_TEST

START_TEST(tied_copy)
{
    struct gen g;
    struct model *m;
    struct err e = {0};
    gen_open(&g, "llama-tied");
    json_t *e0 = gen_tensor(&g, "model.embed_tokens.weight"), *copy = json_deep_copy(e0);
    json_array_set_new(copy, 0, json_string("lm_head.weight"));
    json_array_append_new(copy, json_string("model.embed_tokens.weight")); /* same values */
    json_array_append_new(g.tensors, copy);
    json_array_append_new(
        g.tensors,
        json_pack("[s,s,[i],i,i]", "model.layers.0.self_attn.rotary_emb.inv_freq", "F32", 4, 0, 1));
    gen_write(&g, 1);
    ck_assert_msg(model_open(&m, g.dir, &e) == OK, "%s", e.text);
    model_close(m);
    json_array_set_new(copy, 4, json_real(0.5));
    gen_write(&g, 1);
    must_fail(&g, "another head", "lm_head.weight", "tie_word_embeddings");
    gen_close(&g);
}
END_TEST

START_TEST(mtp_kept_aside)
{
    struct gen g;
    struct model *m;
    struct err e = {0};
    gen_open(&g, "ds-v3");
    gen_write(&g, 1);
    ck_assert_msg(model_open(&m, g.dir, &e) == OK, "%s", e.text);
    ck_assert_int_eq(model_info(m)->n_mtp, 1);
    int64_t with = model_info(m)->n_param;
    model_close(m);
    gen_close(&g);
    gen_open(&g, "ds-v3"); /* the layer may have been dropped from the files altogether */
    ck_assert_int_gt(gen_remove(&g, "model.layers.3."), 20);
    gen_write(&g, 1);
    ck_assert_msg(model_open(&m, g.dir, &e) == OK, "%s", e.text);
    ck_assert_int_eq(model_info(m)->n_mtp, 0);
    ck_assert_int_eq(model_info(m)->n_param, with);
    model_close(m);
    gen_close(&g);
}
END_TEST

/* A multimodal checkpoint: the text model nested under both orders of prefixes, other parts left
 * alone; its logits are those of the plain one. */
START_TEST(wrapped)
{
    struct gen g;
    struct mrun r;
    struct err e = {0};
    float plain[131], nested[131];
    struct mrow row = {.slot = 1, .tok = 5};
    struct mrun_conf c = {.rows_max = 4, .len_max = 64};
    gen_open(&g, "kimi-k2");
    gen_write(&g, 1);
    ck_assert_msg(mrun_open(&r, g.dir, &c, &e) == OK, "%s", e.text);
    ck_assert_int_eq(mrun_rows(&r, TGT_PREFILL, 1, &row, plain, &e), OK);
    mrun_close(&r);
    gen_close(&g);
    for (int form = 0; form < 2; form++) {
        size_t i;
        json_t *t;
        gen_open(&g, "kimi-k2");
        json_array_foreach(g.tensors, i, t)
        {
            const char *s = json_string_value(json_array_get(t, 0));
            bool model = !strncmp(s, "model.", 6);
            char *name = form && model ? mem_printf("model.language_model.%s", s + 6)
                                       : mem_printf("language_model.%s", s);
            json_array_append(t, json_array_get(t, 0)); /* values as before */
            json_array_set_new(t, 0, json_string(name));
            mem_free(name);
        }
        json_array_append_new(
            g.tensors, json_pack("[s,s,[i],i,i]", "vision_tower.patch.weight", "BF16", 3, 0, 1));
        g.config = json_pack("{s:[s],s:s,s:O}", "architectures", "KimiK25ForConditionalGeneration",
                             "model_type", "kimi_k25", "text_config", g.config);
        json_object_set_new(g.doc, "wrapper", g.config);
        gen_write(&g, form ? 2 : 1);
        ck_assert_msg(mrun_open(&r, g.dir, &c, &e) == OK, "%s", e.text);
        ck_assert_int_eq(mrun_rows(&r, TGT_PREFILL, 1, &row, nested, &e), OK);
        ck_assert(!memcmp(plain, nested, sizeof plain));
        mrun_close(&r);
        gen_close(&g);
    }
}
END_TEST

START_TEST(generation_defaults)
{
    static const struct {
        const char *text;
        float temperature, top_p, min_p, repetition;
        int top_k, n_eos;
    } v[] = {
        {NULL, 1, 1, 0, 1, 0, 1},
        {"{}", 1, 1, 0, 1, 0, 1},
        {"{\"do_sample\":true,\"temperature\":0.6,\"top_p\":0.95,\"top_k\":20,\"min_p\":0.01,"
         "\"repetition_penalty\":1.05,\"eos_token_id\":[2,7,9],\"bos_token_id\":3}",
         0.6f, 0.95f, 0.01f, 1.05f, 20, 3},
        {"{\"do_sample\":false,\"temperature\":0.6,\"eos_token_id\":8,\"num_beams\":1}", 0, 1, 0, 1,
         0, 2},
    };
    for (size_t i = 0; i < ARRAY_LEN(v); i++) {
        struct gen g;
        struct model *m;
        struct err e = {0};
        gen_open(&g, "llama2");
        gen_write(&g, 1);
        if (v[i].text)
            gen_put(&g, "generation_config.json", v[i].text, strlen(v[i].text));
        ck_assert_msg(model_open(&m, g.dir, &e) == OK, "%s", e.text);
        const struct model_info *in = model_info(m);
        ck_assert(in->temperature == v[i].temperature && in->top_p == v[i].top_p);
        ck_assert(in->min_p == v[i].min_p && in->repetition == v[i].repetition);
        ck_assert_int_eq(in->top_k, v[i].top_k);
        ck_assert_int_eq(in->n_eos, v[i].n_eos);
        ck_assert_int_eq(in->eos[0], 2);
        ck_assert_int_eq(in->bos, i == 2 ? 3 : 1);
        model_close(m);
        gen_close(&g);
    }
}
END_TEST

START_TEST(place_limits)
{
    struct gen g;
    struct model *m;
    struct dev *d;
    struct err e = {0};
    gen_open(&g, "llama-yarn"); /* 64 positions times 4 */
    set_path(g.config, "max_position_embeddings", "100");
    gen_write(&g, 1);
    ck_assert_msg(model_open(&m, g.dir, &e) == OK, "%s", e.text);
    ck_assert_int_eq(model_info(m)->pos_max, 256);
    ck_assert_int_eq(dev_cpu.open(&d, &(struct dev_conf){.threads = 1}, &e), OK);
    ck_assert_int_eq(model_place(m, &dev_cpu, d, 8, 257, &e), E_INVAL);
    ck_assert_ptr_nonnull(strstr(e.text, "257"));
    ck_assert_int_eq(model_place(m, &dev_cpu, d, 0, 64, &e), E_INVAL);
    ck_assert_uint_gt(model_device_bytes(m, 16, 256), model_device_bytes(m, 8, 256));
    ck_assert_int_eq(model_place(m, &dev_cpu, d, 8, 256, &e), OK);
    model_unplace(m);
    model_unplace(m);
    model_close(m);
    dev_cpu.close(d);
    gen_close(&g);
}
END_TEST

Suite *suite_model_refuse(void)
{
    Suite *s = suite_create("model_refuse");
    int n = 0;
    while (gen_names()[n])
        n++;
    TCase *a = tcase_create("accepted");
    one_thread(a);
    tcase_add_loop_test(a, unchanged_accepted, 0, n);
    tcase_add_loop_test(a, neutral_accepted, 0, (int)ARRAY_LEN(fine));
    tcase_add_test(a, tied_copy);
    tcase_add_test(a, mtp_kept_aside);
    tcase_add_test(a, wrapped);
    tcase_add_test(a, generation_defaults);
    tcase_add_test(a, place_limits);
    suite_add_tcase(s, a);
    TCase *t = tcase_create("refused");
    one_thread(t);
    tcase_add_loop_test(t, key_refused, 0, (int)ARRAY_LEN(keys));
    tcase_add_loop_test(t, tensor_refused, 0, (int)ARRAY_LEN(tensor_cases));
    tcase_add_loop_test(t, file_refused, 0, (int)ARRAY_LEN(file_cases));
    tcase_add_test(t, no_files);
    suite_add_tcase(s, t);
    return s;
}
