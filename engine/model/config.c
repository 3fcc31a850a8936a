/* config.json and generation_config.json; see the header. Holds the lists of harmless keys and of
 * words that make an unknown key suspicious. */
#include "engine/model/config.h"

#include <ctype.h>
#include <math.h>
#include <string.h>

#include "engine/base/check.h"

void cfg_seen(struct cfg *c, const char *key)
{
    CHECK(c->n_seen < (int)ARRAY_LEN(c->seen));
    c->seen[c->n_seen++] = key;
}

int cfg_has(const struct cfg *c, const char *key)
{
    return js_get(c->o, key) != NULL;
}

static int missing(const char *key, struct err *e)
{
    return FAIL(e, E_INVAL, "'%s' is missing", key);
}

int cfg_int(struct cfg *c, const char *key, int64_t lo, int64_t hi, int *out, struct err *e)
{
    if (!cfg_has(c, key))
        return missing(key, e);
    return cfg_int_or(c, key, lo, hi, 0, out, e);
}

int cfg_int_or(struct cfg *c, const char *key, int64_t lo, int64_t hi, int def, int *out,
               struct err *e)
{
    int64_t v = def;
    cfg_seen(c, key);
    TRY(js_get_i64(c->o, key, lo, hi, &v, e));
    *out = (int)v;
    return OK;
}

int cfg_num(struct cfg *c, const char *key, double lo, double hi, double *out, struct err *e)
{
    if (!cfg_has(c, key))
        return missing(key, e);
    return cfg_num_or(c, key, lo, hi, 0, out, e);
}

int cfg_num_or(struct cfg *c, const char *key, double lo, double hi, double def, double *out,
               struct err *e)
{
    double v = def;
    cfg_seen(c, key);
    int r = js_get_num(c->o, key, &v, e);
    TRY(r);
    if (r && (v < lo || v > hi))
        return FAIL(e, E_INVAL, "'%s' must be between %g and %g, not %g", key, lo, hi, v);
    *out = v;
    return OK;
}

int cfg_bool_or(struct cfg *c, const char *key, bool def, bool *out, struct err *e)
{
    bool v = def;
    cfg_seen(c, key);
    TRY(js_get_bool(c->o, key, &v, e));
    *out = v;
    return OK;
}

int cfg_str_or(struct cfg *c, const char *key, const char *def, const char **out, struct err *e)
{
    const char *v = def;
    cfg_seen(c, key);
    TRY(js_get_str(c->o, key, &v, e));
    *out = v;
    return OK;
}

/* ---- keys every family shares ---- */

static bool one_of(const char *s, const char *const *list)
{
    for (; *list; list++)
        if (!strcmp(s, *list))
            return true;
    return false;
}

static int quantization(const json_t *q, struct tensors *t, struct err *e)
{
    static const char *const fine[] = {"modules_to_not_convert", "ignored_layers", "scale_fmt",
                                       NULL};
    const char *method = NULL, *fmt = "e4m3", *act = "dynamic";
    json_t *block = NULL;
    TRY(js_get_str(q, "quant_method", &method, e));
    if (!method || strcmp(method, "fp8") != 0)
        return FAIL(e, E_UNSUPPORTED,
                    "'quantization_config': quant_method '%s' is not supported (only fp8 is)",
                    method ? method : "");
    TRY(js_get_str(q, "fmt", &fmt, e));
    if (strcmp(fmt, "e4m3") != 0)
        return FAIL(e, E_UNSUPPORTED, "'quantization_config': fmt '%s' is not e4m3", fmt);
    TRY(js_get_str(q, "activation_scheme", &act, e));
    if (strcmp(act, "dynamic") != 0)
        return FAIL(e, E_UNSUPPORTED,
                    "'quantization_config': activation_scheme '%s' is not dynamic", act);
    TRY(js_get_arr(q, "weight_block_size", &block, e));
    if (!block || json_array_size(block) != 2 ||
        json_integer_value(json_array_get(block, 0)) != 128 ||
        json_integer_value(json_array_get(block, 1)) != 128)
        return FAIL(e, E_UNSUPPORTED,
                    "'quantization_config': weight_block_size must be [128, 128]");
    const char *key;
    json_t *val;
    json_object_foreach((json_t *)(size_t)q, key, val)
    {
        static const char *const read[] = {"quant_method", "fmt", "activation_scheme",
                                           "weight_block_size", NULL};
        if (!json_is_null(val) && !one_of(key, fine) && !one_of(key, read))
            return FAIL(e, E_UNSUPPORTED, "'quantization_config': '%s' is not supported", key);
    }
    tensors_allow_fp8(t);
    return OK;
}

int cfg_common(struct cfg *c, struct tensors *t, struct err *e)
{
    static const char *const act_ok[] = {"silu", "swish", NULL};
    static const char *const dt_ok[] = {"bfloat16", "float16", "float32", NULL};
    const char *act, *dt;
    TRY(cfg_str_or(c, "hidden_act", "silu", &act, e));
    if (!one_of(act, act_ok))
        return FAIL(e, E_UNSUPPORTED, "'hidden_act': '%s' is not supported (only silu is)", act);
    static const char *const keys[] = {"torch_dtype", "dtype"};
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        TRY(cfg_str_or(c, keys[i], "bfloat16", &dt, e));
        if (!one_of(dt, dt_ok))
            return FAIL(e, E_UNSUPPORTED, "'%s': '%s' is not supported", keys[i], dt);
    }
    json_t *q = NULL;
    cfg_seen(c, "quantization_config");
    TRY(js_get_obj(c->o, "quantization_config", &q, e));
    if (q)
        TRY(quantization(q, t, e));
    return OK;
}

/* Keys that training, saving or generation code wrote and inference does not compute with. */
/* clang-format off */
static const char *const harmless[] = {
    "_attn_implementation", "_attn_implementation_autoset", "_commit_hash", "_name_or_path",
    "add_cross_attention", "architectures", "attention_dropout", "attn_implementation",
    "auto_map", "aux_loss_alpha", "bad_words_ids", "begin_suppress_tokens", "bos_token_id",
    "chunk_size_feed_forward", "cross_attention_hidden_size", "decoder_start_token_id",
    "diversity_penalty", "do_sample", "early_stopping", "embd_pdrop",
    "encoder_no_repeat_ngram_size", "eos_token_id", "ep_size", "keys_to_ignore_at_inference",
    "use_flash_attn", "_flash_attn_2_enabled", "attention_probs_dropout_prob",
    "hidden_dropout_prob", "embedding_dropout", "classifier_dropout",
    "exponential_decay_length_penalty", "finetuning_task", "forced_bos_token_id",
    "forced_eos_token_id", "hidden_dropout", "id2label", "initializer_range", "is_decoder",
    "is_encoder_decoder", "is_llama_config", "label2id", "length_penalty", "max_length",
    "min_length", "model_type", "no_repeat_ngram_size", "num_beam_groups", "num_beams",
    "num_return_sequences", "output_attentions", "output_hidden_states", "output_router_logits",
    "output_scores", "pad_token_id", "prefix", "pretraining_tp", "problem_type", "pruned_heads",
    "remove_invalid_values", "repetition_penalty", "resid_pdrop", "return_dict",
    "return_dict_in_generate", "router_aux_loss_coef", "sep_token_id", "seq_aux",
    "suppress_tokens", "task_specific_params", "temperature", "tf_legacy_loss",
    "tokenizer_class", "top_k", "top_p", "torchscript", "transformers.js_config",
    "transformers_version", "typical_p", "unsloth_fixed", "unsloth_version", "use_bfloat16",
    "use_cache", NULL,
};
/* clang-format on */

/* Parts of words that an option of the computation is likely to carry in its name. */
/* clang-format off */
static const char *const hints[] = {
    "act", "alibi", "attention", "attn", "bias", "block", "chunk", "clamp", "clip", "conv",
    "cross", "depth", "dim", "embed", "expert", "factor", "ffn", "fuse", "gate", "group",
    "head", "hidden", "index", "inter", "key", "kv", "latent", "layer", "logit", "lora", "loop",
    "mamba", "mask", "memory", "mla", "mlp", "moe", "mult", "nextn", "nope", "norm", "per_",
    "pos", "qk", "quant", "query", "rank", "residual", "rope", "rotary", "route", "scal",
    "score", "share", "sink", "skip", "sliding", "soft", "sparse", "tanh", "temperature_",
    "topk", "value", "vision", "width", "window", NULL,
};
/* clang-format on */

/* null, false and an empty list or object switch nothing on. */
static bool is_off(const json_t *v)
{
    return json_is_null(v) || json_is_false(v) || (json_is_array(v) && !json_array_size(v)) ||
           (json_is_object(v) && !json_object_size(v));
}

int cfg_finish(const struct cfg *c, struct err *e)
{
    const char *key;
    json_t *val;
    json_object_foreach((json_t *)(size_t)c->o, key, val)
    {
        bool known = is_off(val) || one_of(key, harmless);
        for (int i = 0; !known && i < c->n_seen; i++)
            known = !strcmp(key, c->seen[i]);
        if (known)
            continue;
        char low[128];
        size_t n = 0;
        for (; key[n] && n < sizeof low - 1; n++)
            low[n] = (char)tolower((unsigned char)key[n]);
        low[n] = 0;
        for (const char *const *h = hints; *h; h++)
            if (strstr(low, *h))
                return FAIL(e, E_UNSUPPORTED,
                            "'%s' is not a key this family knows, and its name says that it "
                            "changes the computation",
                            key);
    }
    return OK;
}

/* ---- generation_config.json ---- */

static int add_eos(struct model_info *info, const json_t *v, struct err *e)
{
    int64_t id;
    if (!js_is_int(v, &id) || id < 0 || id >= info->vocab)
        return FAIL(e, E_INVAL, "'eos_token_id': %s is not an id of the vocabulary of %d",
                    js_is_int(v, &id) ? "one" : js_type_name(v), info->vocab);
    for (int i = 0; i < info->n_eos; i++)
        if (info->eos[i] == id)
            return OK;
    if (info->n_eos == (int)ARRAY_LEN(info->eos))
        return FAIL(e, E_UNSUPPORTED, "'eos_token_id' has more than %zu ids", ARRAY_LEN(info->eos));
    info->eos[info->n_eos++] = (int32_t)id;
    return OK;
}

static int special_ids(const json_t *o, struct model_info *info, struct err *e)
{
    const json_t *eos = js_get(o, "eos_token_id"), *bos = js_get(o, "bos_token_id");
    if (json_is_array(eos)) {
        for (size_t i = 0; i < json_array_size(eos); i++)
            TRY(add_eos(info, json_array_get(eos, i), e));
    } else if (eos) {
        TRY(add_eos(info, eos, e));
    }
    int64_t id;
    if (bos && (!js_is_int(bos, &id) || id < 0 || id >= info->vocab))
        return FAIL(e, E_INVAL, "'bos_token_id' is not an id of the vocabulary of %d", info->vocab);
    if (bos)
        info->bos = (int32_t)id;
    return OK;
}

/* Generation options we do not have: their neutral value passes, another one is refused. */
static const struct {
    const char *key;
    double neutral;
} not_ours[] = {
    {"num_beams", 1},
    {"num_beam_groups", 1},
    {"no_repeat_ngram_size", 0},
    {"encoder_no_repeat_ngram_size", 0},
    {"encoder_repetition_penalty", 1},
    {"diversity_penalty", 0},
    {"typical_p", 1},
    {"epsilon_cutoff", 0},
    {"eta_cutoff", 0},
    {"guidance_scale", 1},
    {"penalty_alpha", 0},
    {"suppress_tokens", NAN},
    {"begin_suppress_tokens", NAN},
    {"forced_bos_token_id", NAN},
    {"forced_eos_token_id", NAN},
    {"bad_words_ids", NAN},
    {"force_words_ids", NAN},
    {"sequence_bias", NAN},
    {"exponential_decay_length_penalty", NAN},
    {"watermarking_config", NAN},
    {"dola_layers", NAN},
};

static int sampling(const json_t *gen, struct model_info *info, struct err *e)
{
    bool sample = true;
    double t = 1, top_p = 1, min_p = 0, rep = 1;
    int k;
    struct cfg c = {.o = gen};
    for (size_t i = 0; i < ARRAY_LEN(not_ours); i++) {
        const json_t *v = js_get(gen, not_ours[i].key);
        if (v && !is_off(v) && !(json_is_number(v) && json_number_value(v) == not_ours[i].neutral))
            return FAIL(e, E_UNSUPPORTED, "'%s' is not supported", not_ours[i].key);
    }
    TRY(cfg_bool_or(&c, "do_sample", true, &sample, e));
    TRY(cfg_num_or(&c, "temperature", 0, 100, 1, &t, e));
    TRY(cfg_num_or(&c, "top_p", 1e-9, 1, 1, &top_p, e));
    TRY(cfg_num_or(&c, "min_p", 0, 1, 0, &min_p, e));
    TRY(cfg_num_or(&c, "repetition_penalty", 1e-3, 1e3, 1, &rep, e));
    TRY(cfg_int_or(&c, "top_k", 0, INT32_MAX, 0, &k, e));
    info->temperature = sample ? (float)t : 0;
    info->top_p = (float)top_p;
    info->min_p = (float)min_p;
    info->repetition = (float)rep;
    info->top_k = k;
    return OK;
}

int cfg_generation(const json_t *config, const json_t *gen, struct model_info *info, struct err *e)
{
    info->bos = -1;
    info->temperature = info->top_p = info->repetition = 1;
    int r = special_ids(config, info, e);
    if (r < 0) {
        err_prefix(e, "config.json");
        return r;
    }
    if (!gen)
        return OK;
    r = json_is_object(gen) ? special_ids(gen, info, e) : FAIL(e, E_FORMAT, "not an object");
    if (r == OK)
        r = sampling(gen, info, e);
    if (r < 0)
        err_prefix(e, "generation_config.json");
    return r;
}
