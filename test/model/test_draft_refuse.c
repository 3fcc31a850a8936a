/* Goal: a drafter that does not fit its target, or whose files say what cannot be honoured, is
 * refused, and the reason names both sides, the key or the tensor. Method: single changes to a head
 * and a target that open, as in test_model_refuse.c; then what drafters say of themselves (sizes,
 * bytes) and the shapes of released ones with generated weights. */
#include <check.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/model/model.h"
#include "test/model/gen.h"
#include "test/model/heads.h"

static void set_key(json_t *o, const char *key, const char *json)
{
    if (!strncmp(key, "eagle_config.", 13)) {
        o = json_object_get(o, "eagle_config");
        key += 13;
    }
    CHECK(o);
    json_object_del(o, key);
    if (json)
        CHECK(json_object_set_new(o, key, json_loads(json, JSON_DECODE_ANY, NULL)) == 0);
}

struct fix {
    struct gen t, d;
    struct model *target;
};

static void fix_open(struct fix *x, const char *target, const struct head *h)
{
    struct err e = {0};
    *x = (struct fix){0};
    gen_open(&x->t, target);
    gen_write(&x->t, 1);
    ck_assert_msg(model_open(&x->target, x->t.dir, &e) == OK, "%s", e.text);
    if (h)
        head_make(&x->d, h);
}

static void fix_close(struct fix *x)
{
    model_close(x->target);
    gen_close(&x->t);
    if (x->d.doc)
        gen_close(&x->d);
}

static int open_draft(struct fix *x, struct model **m, struct err *e)
{
    if (!x->d.written)
        gen_write(&x->d, 1);
    return model_open_draft(m, &(struct model_conf){.path = x->d.dir}, x->target, e);
}

static void must_fail(struct fix *x, const char *what, const char *want, const char *want2)
{
    struct model *m = NULL;
    struct err e = {0};
    long live = mem_live();
    int ret = open_draft(x, &m, &e);
    ck_assert_msg(ret < 0, "%s: accepted", what);
    ck_assert_int_eq(ret, e.code);
    ck_assert_msg(strstr(e.text, want) && strstr(e.text, want2) && strstr(e.text, x->d.dir),
                  "%s: the error is: %s", what, e.text);
    ck_assert_int_eq(mem_live(), live);
}

/* ---- keys ---- */

static const struct {
    const char *key, *json, *want, *want2;
} keys[] = {
    {"architectures", "[\"LlamaForCausalLMEagle\"]", "LlamaForCausalLMEagle", "not supported"},
    {"model_type", "\"qwen3\"", "qwen3", "LlamaForCausalLMEagle3"},
    {"vocab_size", "130", "130", "131"},
    {"vocab_size", "140", "'vocab_size' is 140", "131"},
    {"vocab_size", "null", "vocab_size", "missing"},
    {"draft_vocab_size", "51", "lm_head.weight", "[51, 72]"},
    {"draft_vocab_size", "132", "draft_vocab_size", "132"},
    {"draft_vocab_size", "null", "lm_head.weight", "[131, 72]"},
    {"target_hidden_size", "64", "64", "hidden size of 72"},
    {"hidden_size", "71", "fc.weight", "[71, 216]"},
    {"num_hidden_layers", "2", "num_hidden_layers", "2"},
    {"intermediate_size", "91", "gate_proj.weight", "[91, 72]"},
    {"num_key_value_heads", "4", "num_key_value_heads", "multiple"},
    {"num_key_value_heads", "3", "k_proj.weight", "[48, 144]"},
    {"head_dim", "17", "head_dim", "even"},
    {"hidden_act", "\"gelu\"", "hidden_act", "gelu"},
    {"attention_bias", "true", "q_proj.bias", "missing"},
    {"mlp_bias", "true", "gate_proj.bias", "missing"},
    {"fc_norm", "true", "fc_norm.0.weight", "missing"},
    {"norm_before_fc", "true", "input_norm.weight", "missing"},
    {"use_aux_norm", "true", "use_aux_norm", "computation"},
    {"sliding_window", "64", "sliding_window", "not supported"},
    {"use_sliding_window", "true", "sliding_window", "not supported"},
    {"rope_interleaved", "true", "rope_interleaved", "not supported"},
    {"rope_scaling", "{\"rope_type\":\"dynamic\",\"factor\":2}", "rope", "dynamic"},
    {"max_position_embeddings", "null", "max_position_embeddings", "missing"},
    {"eagle_config.use_aux_hidden_state", "false", "use_aux_hidden_state", "false"},
    {"eagle_config.eh_proj_before_attn", "true", "eh_proj_before_attn", "computation"},
    {"eagle_config.eagle_aux_hidden_state_layer_ids", "[1,2,4]", "4", "3 layers"},
    {"eagle_config.eagle_aux_hidden_state_layer_ids", "[-1,2,3]", "-1", "3 layers"},
    {"eagle_config.eagle_aux_hidden_state_layer_ids", "[2,1,3]", "ascend", "2 before 1"},
    {"eagle_config.eagle_aux_hidden_state_layer_ids", "[1,1,3]", "ascend", "1 before 1"},
    {"eagle_config.eagle_aux_hidden_state_layer_ids", "[1,2]", "fc.weight", "[72, 144]"},
    {"eagle_config.eagle_aux_hidden_state_layer_ids", "[]", "0 entries", "1 to 8"},
    {"eagle_config.eagle_aux_hidden_state_layer_ids", "[1,2,\"x\"]", "layer_ids", "a string"},
    {"eagle_config.eagle_aux_hidden_state_layer_ids", "3", "layer_ids", "an array"},
    /* the default of 3 layers would be 2, 1, 0 */
    {"eagle_config.eagle_aux_hidden_state_layer_ids", NULL, "missing", "2 and 1"},
};

START_TEST(key_refused)
{
    struct fix x;
    char what[120];
    fix_open(&x, "qwen3", &heads[0]);
    set_key(x.d.config, keys[_i].key, keys[_i].json);
    snprintf(what, sizeof what, "%s: %s", keys[_i].key, keys[_i].json ? keys[_i].json : "(gone)");
    must_fail(&x, what, keys[_i].want, keys[_i].want2);
    fix_close(&x);
}
END_TEST

static const struct {
    const char *key, *json;
} fine[] = {
    {"architectures", "[\"Eagle3LlamaForCausalLM\"]"},
    {"architectures", "[\"LlamaForCausalLM\"]"}, /* told by draft_vocab_size */
    {"tie_word_embeddings", "true"},
    {"target_hidden_size", "null"},
    {"max_window_layers", "28"},
    {"eos_token_id", "130"}, /* beyond the draft vocabulary: the target's ids count */
    {"rope_scaling", "null"},
    {"eagle_aux_hidden_state_layer_ids", "[0,1,2]"},
};

START_TEST(key_accepted)
{
    struct fix x;
    struct model *m;
    struct err e = {0};
    fix_open(&x, "qwen3", &heads[0]);
    set_key(x.d.config, fine[_i].key, fine[_i].json);
    if (!strcmp(fine[_i].key, "eagle_aux_hidden_state_layer_ids"))
        json_object_del(x.d.config, "eagle_config");
    ck_assert_msg(open_draft(&x, &m, &e) == OK, "%s: %s", fine[_i].key, e.text);
    ck_assert_str_eq(model_info(m)->family, "eagle3");
    model_close(m);
    fix_close(&x);
}
END_TEST

/* ---- tensors ---- */

static void id_entry(struct gen *g, const char *name, int i, int v)
{
    json_array_set_new(json_array_get(gen_tensor(g, name), 3), (size_t)i, json_integer(v));
}
static void t_fc(struct gen *g)
{
    gen_remove(g, "fc.weight");
}
static void t_hidden_norm(struct gen *g)
{
    gen_remove(g, "midlayer.hidden_norm.weight");
}
static void t_two_layers(struct gen *g)
{
    gen_add(g, "layers.0.hidden_norm.weight", "BF16", 0, 72, 1, 0);
}
static void t_d2t(struct gen *g)
{
    gen_remove(g, "d2t");
}
static void t_d2t_beyond(struct gen *g)
{
    id_entry(g, "d2t", 7, 124);
}
static void t_d2t_below(struct gen *g)
{
    id_entry(g, "d2t", 7, -8);
}
static void t_d2t_twice(struct gen *g)
{
    id_entry(g, "d2t", 1, head_target_id(0) - 1);
}
static void t_d2t_type(struct gen *g)
{
    gen_remove(g, "d2t");
    gen_add(g, "d2t", "F32", 0, HEAD_VOCAB, 0, 1);
}
static void t_d2t_short(struct gen *g)
{
    json_array_remove(json_array_get(gen_tensor(g, "d2t"), 3), 0);
    json_array_set_new(gen_tensor(g, "d2t"), 2, json_pack("[i]", HEAD_VOCAB - 1));
}
static void t_t2d(struct gen *g)
{
    id_entry(g, "t2d", head_target_id(4), 0);
}
static void t_t2d_more(struct gen *g)
{
    id_entry(g, "t2d", 2, 1);
}
static void t_lm_head(struct gen *g)
{
    gen_remove(g, "lm_head.weight");
}
static void t_q_norm(struct gen *g)
{
    gen_add(g, "midlayer.self_attn.q_norm.weight", "BF16", 0, 16, 1, 0);
}
static void t_embed(struct gen *g)
{
    gen_add(g, "embed_tokens.weight", "BF16", 130, 72, 0, 1);
}
static void t_no_embed(struct gen *g)
{
    gen_remove(g, "embed_tokens.weight");
}

static const struct {
    int head;
    void (*edit)(struct gen *g);
    const char *want, *want2;
} tensor_cases[] = {
    {0, t_fc, "fc.weight", "missing"},
    {0, t_hidden_norm, "midlayer.hidden_norm.weight", "missing"},
    {0, t_two_layers, "layers.0.hidden_norm.weight", "not part"},
    {0, t_d2t, "d2t", "131"},
    {0, t_d2t_beyond, "entry 7", "131"},
    {0, t_d2t_below, "entry 7", "131"},
    {0, t_d2t_twice, "two entries", "id 3"},
    {0, t_d2t_type, "F32", "I64"},
    {0, t_d2t_short, "[49]", "[50]"},
    {0, t_t2d, "t2d", "id 11"},
    {0, t_t2d_more, "t2d", "id 2"},
    {0, t_lm_head, "lm_head.weight' [50, 72]", "target's is [131, 72]"},
    {0, t_q_norm, "q_norm.weight", "not part"},
    {0, t_embed, "embed_tokens.weight", "[131, 72]"},
    {5, t_no_embed, "embed_tokens.weight' [131, 56]", "target's is [131, 72]"},
};

START_TEST(tensor_refused)
{
    struct fix x;
    fix_open(&x, "qwen3", &heads[tensor_cases[_i].head]);
    tensor_cases[_i].edit(&x.d);
    must_fail(&x, tensor_cases[_i].want, tensor_cases[_i].want, tensor_cases[_i].want2);
    fix_close(&x);
}
END_TEST

/* ---- pairs ---- */

START_TEST(wrong_pairs)
{
    struct fix x;
    struct model *m;
    struct err e = {0};
    fix_open(&x, "qwen3", &heads[0]);
    gen_write(&x.d, 1);
    /* a head is no model */
    ck_assert_int_eq(model_open(&m, x.d.dir, &e), E_UNSUPPORTED);
    ck_assert_msg(strstr(e.text, "LlamaForCausalLMEagle3") && strstr(e.text, "drafts"), "%s",
                  e.text);
    ck_assert_int_eq(model_open_mtp(&m, x.target, &e), E_UNSUPPORTED);
    ck_assert_msg(strstr(e.text, "qwen3") && strstr(e.text, "next-token"), "%s", e.text);
    /* a language model of another vocabulary */
    struct model_conf other = {.path = "configs/models/demo-qwen3"};
    ck_assert_int_eq(model_open_draft(&m, &other, x.target, &e), E_INVAL);
    ck_assert_msg(strstr(e.text, "4096") && strstr(e.text, "131") && strstr(e.text, other.path),
                  "%s", e.text);
    fix_close(&x);
    /* DeepSeek files that left the layer out */
    gen_open(&x.t, "ds-v3");
    gen_remove(&x.t, "model.layers.3.");
    gen_write(&x.t, 1);
    ck_assert_msg(model_open(&x.target, x.t.dir, &e) == OK, "%s", e.text);
    ck_assert_int_eq(model_open_mtp(&m, x.target, &e), E_UNSUPPORTED);
    ck_assert_msg(strstr(e.text, "DeepseekV3ForCausalLM"), "%s", e.text);
    model_close(x.target);
    gen_close(&x.t);
}
END_TEST

/* Positions end where the drafter's own do; sizes are planned as they are allocated. */
START_TEST(place_limits)
{
    struct fix x;
    struct model *m;
    struct dev *d;
    struct err e = {0};
    fix_open(&x, "qwen3", &heads[0]); /* 256 positions and 128 */
    ck_assert_msg(open_draft(&x, &m, &e) == OK, "%s", e.text);
    ck_assert_int_eq(model_info(m)->pos_max, 128);
    ck_assert_int_eq(dev_cpu.open(&d, &(struct dev_conf){.threads = 1}, &e), OK);
    ck_assert_int_eq(model_place(m, &dev_cpu, d, 8, 129, &e), E_INVAL);
    ck_assert_msg(strstr(e.text, "129") && strstr(e.text, "128") && strstr(e.text, "drafter"), "%s",
                  e.text);
    ck_assert_int_eq(model_place(m, &dev_cpu, d, 8, 128, &e), OK);
    model_unplace(m);
    ck_assert_int_eq(model_place(m, &dev_cpu, d, 16, 64, &e), OK);
    model_unplace(m);
    ck_assert_uint_gt(model_device_bytes(m, 16, 128), model_device_bytes(m, 8, 128));
    model_close(m);
    dev_cpu.close(d);
    fix_close(&x);
}
END_TEST

/* ---- what drafters say of themselves ---- */

static int64_t elements(const struct gen *g, const char *prefix)
{
    size_t i, j;
    json_t *t, *dim;
    int64_t sum = 0;
    json_array_foreach(g->tensors, i, t)
    {
        const char *name = json_string_value(json_array_get(t, 0));
        int64_t n = 1;
        json_array_foreach(json_array_get(t, 2), j, dim) n *= json_integer_value(dim);
        if (!strncmp(name, prefix, strlen(prefix)) && !strstr(name, "_scale_inv") &&
            !json_is_array(json_array_get(t, 3)))
            sum += n;
    }
    return sum;
}

START_TEST(counts)
{
    struct fix x;
    struct model *m;
    struct err e = {0};
    fix_open(&x, "qwen3", &heads[0]);
    ck_assert_msg(open_draft(&x, &m, &e) == OK, "%s", e.text);
    ck_assert_int_eq(model_info(m)->n_param, elements(&x.d, ""));
    ck_assert_uint_eq(model_info(m)->weight_bytes, (size_t)elements(&x.d, "") * 2);
    model_close(m);
    fix_close(&x);
    static const char *const ds[] = {"ds-v3", "ds-v3-fp8"};
    for (int i = 0; i < 2; i++) {
        fix_open(&x, ds[i], NULL);
        int64_t before = model_info(x.target)->n_param;
        char prefix[40];
        snprintf(prefix, sizeof prefix, "model.layers.%d.", model_info(x.target)->n_layer);
        int64_t n = elements(&x.t, prefix);
        for (int again = 0; again < 2; again++) { /* opened, closed and opened anew */
            ck_assert_msg(model_open_mtp(&m, x.target, &e) == OK, "%s", e.text);
            ck_assert_int_eq(model_info(m)->n_param, n);
            double bytes = (double)model_info(m)->weight_bytes / (double)n;
            ck_assert_msg(i ? bytes > 1 && bytes < 1.6 : bytes > 2 && bytes < 2.01, "%g", bytes);
            model_close(m);
        }
        ck_assert_int_eq(model_info(x.target)->n_param, before);
        fix_close(&x);
    }
}
END_TEST

/* Generated weights: the counts of released drafters (the cards' figures), and values that exist.
 */
START_TEST(shapes)
{
    struct model *t, *m;
    struct err e = {0};
    struct model_conf c = {.path = "configs/shapes/llama-3.1-8b.json", .dummy = true};
    ck_assert_msg(model_open_conf(&t, &c, &e) == OK, "%s", e.text);
    c.path = "configs/shapes/llama-3.1-8b-eagle3.json";
    ck_assert_msg(model_open_draft(&m, &c, t, &e) == OK, "%s", e.text);
    const struct model_info *in = model_info(m);
    ck_assert_int_eq(in->n_param, 424689664);
    ck_assert_uint_eq(in->weight_bytes, 424689664u * 2);
    ck_assert_int_eq(in->vocab, 32000);
    ck_assert_int_eq(in->vocab_target, 128256);
    ck_assert(in->n_tap == 3 && in->tap[0] == 2 && in->tap[1] == 16 && in->tap[2] == 29);
    ck_assert_int_eq(in->group[0].k_width, 1024);
    model_close(m);
    model_close(t);
    c.path = "configs/shapes/deepseek-v3.json";
    ck_assert_msg(model_open_conf(&t, &c, &e) == OK, "%s", e.text);
    ck_assert_msg(model_open_mtp(&m, t, &e) == OK, "%s", e.text);
    in = model_info(m);
    ck_assert_int_eq(in->n_param, 11610068224);
    ck_assert_int_eq(in->feat, 7168);
    ck_assert_int_eq(in->pos_max, model_info(t)->pos_max);
    ck_assert_int_eq(in->group[0].n_layer, 1);
    ck_assert_int_eq(in->group[0].k_width, 576);
    model_close(m);
    model_close(t);
    c.path = "configs/shapes/kimi-k2.json";
    ck_assert_msg(model_open_conf(&t, &c, &e) == OK, "%s", e.text);
    ck_assert_int_eq(model_open_mtp(&m, t, &e), E_UNSUPPORTED);
    model_close(t);
}
END_TEST

Suite *suite_draft_refuse(void)
{
    Suite *s = suite_create("draft_refuse");
    TCase *t = tcase_create("refused");
    one_thread(t);
    tcase_add_loop_test(t, key_refused, 0, (int)ARRAY_LEN(keys));
    tcase_add_loop_test(t, tensor_refused, 0, (int)ARRAY_LEN(tensor_cases));
    tcase_add_test(t, wrong_pairs);
    tcase_add_test(t, place_limits);
    suite_add_tcase(s, t);
    TCase *a = tcase_create("accepted");
    one_thread(a);
    tcase_add_loop_test(a, key_accepted, 0, (int)ARRAY_LEN(fine));
    tcase_add_test(a, counts);
    tcase_add_test(a, shapes);
    suite_add_tcase(s, a);
    return s;
}
