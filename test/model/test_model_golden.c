/* Goal: every family and variant says what transformers says. Method: log-probabilities of
 * generated checkpoints (and of the trained demo models) against golden values, at every position
 * of three prompts, one longer than the original context of its rope scaling, several pages and
 * chunks long; by prefill and step by step; MLA in both forms. The mutation tests change one thing
 * in the checkpoint and must miss by a margin: they show that the values above can tell. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "test/model/gen.h"
#include "test/model/runner.h"

static const double limit = 2e-3, margin = 0.05;

static int32_t *prompt_of(const struct gen *g, size_t i, int *n)
{
    const json_t *p = json_array_get(g->prompts, i);
    *n = (int)json_array_size(p);
    int32_t *tok = MEM_ARRAY(int32_t, *n);
    for (int j = 0; j < *n; j++)
        tok[j] = (int32_t)json_integer_value(json_array_get(p, (size_t)j));
    return tok;
}

/* Largest difference of one logit row from its golden values. */
static double row_miss(const float *logits, int vocab, int pos, const struct golden *g)
{
    double top = logits[0], sum = 0, worst = 0;
    for (int i = 1; i < vocab; i++)
        top = logits[i] > top ? logits[i] : top;
    for (int i = 0; i < vocab; i++)
        sum += exp(logits[i] - top);
    double z = top + log(sum);
    for (int k = 0; k < GOLDEN_IDS + GOLDEN_COLS; k++) {
        bool best = k < GOLDEN_IDS;
        int id = best ? g->id[k] : (31 * pos + 17 * (k - GOLDEN_IDS)) % vocab;
        double d = fabs(logits[id] - z - (double)(best ? g->best[k] : g->col[k - GOLDEN_IDS]));
        if (!(d <= worst)) /* NaN counts as a miss */
            worst = isnan(d) ? INFINITY : d;
    }
    return worst;
}

/* Step by step after two tokens, of very long prompts the last hundred. */
enum how { BY_PREFILL, BY_STEPS };

static double dir_miss(const char *dir, const struct gen *g, const char *name, enum how how,
                       enum attn_kind form)
{
    struct mrun r;
    struct err e = {0};
    size_t n_gold, at = 0;
    struct golden *gold = golden_load(name, &n_gold);
    int len_max = 0, n;
    for (size_t i = 0; i < json_array_size(g->prompts); i++) {
        n = (int)json_array_size(json_array_get(g->prompts, i));
        len_max = n > len_max ? n : len_max;
    }
    struct mrun_conf c = {.rows_max = 64, .len_max = len_max, .mla_form = form, .threads = 2};
    ck_assert_msg(mrun_open(&r, dir, &c, &e) == OK, "%s: %s", name, e.text);
    int vocab = r.info->vocab;
    double worst = 0;
    for (size_t i = 0; i < json_array_size(g->prompts); i++) {
        int32_t *tok = prompt_of(g, i, &n);
        int slot = 1 + (int)i % 3;
        float *logits = MEM_ARRAY(float, (size_t)n *(size_t)vocab);
        int by = how == BY_PREFILL ? n : n > 250 ? n - 100 : 2;
        if (SANITIZED && how == BY_STEPS && n - by > 20)
            by = n - 20;
        ck_assert_msg(mrun_prefill(&r, slot, tok, 0, by, 37, logits, &e) == OK, "%s", e.text);
        for (int p = by; p < n; p++) {
            struct mrow row = {.slot = slot, .pos = p, .tok = tok[p]};
            ck_assert_msg(
                mrun_rows(&r, TGT_VERIFY, 1, &row, logits + (size_t)p * (size_t)vocab, &e) == OK,
                "%s", e.text);
        }
        for (int p = 0; p < n; p++) {
            double d = row_miss(logits + (size_t)p * (size_t)vocab, vocab, p, &gold[at++]);
            worst = d > worst ? d : worst;
        }
        mem_free(logits);
        mem_free(tok);
    }
    ck_assert_uint_eq(at, n_gold);
    mrun_close(&r);
    mem_free(gold);
    return worst;
}

START_TEST(equals_reference)
{
    const char *name = gen_names()[_i];
    struct gen g;
    if (TSAN && _i % 6)
        return; /* the same threads in all of them */
    gen_open(&g, name);
    if (g.config)
        gen_write(&g, 1);
    double a = dir_miss(g.dir, &g, name, BY_PREFILL, ATTN_MLA_ABSORBED);
    double b = dir_miss(g.dir, &g, name, BY_STEPS, ATTN_MLA_ABSORBED);
    double c = dir_miss(g.dir, &g, name, BY_PREFILL, ATTN_MLA_DECOMPRESSED);
    printf("  %-16s prefill %.1e, steps %.1e, decompressed %.1e\n", name, a, b, c);
    ck_assert_msg(a <= limit && b <= limit && c <= limit, "%s: misses by %g, %g, %g", name, a, b,
                  c);
    gen_close(&g);
}
END_TEST

START_TEST(shards_equal_one_file)
{
    struct gen g;
    gen_open(&g, "qwen3-moe");
    gen_write(&g, 3);
    double d = dir_miss(g.dir, &g, "qwen3-moe", BY_PREFILL, ATTN_MLA_ABSORBED);
    ck_assert_msg(d <= limit, "misses by %g", d);
    gen_close(&g);
}
END_TEST

/* ---- mutations ---- */

static void set_key(struct gen *g, const char *key, const char *json)
{
    json_t *v = json_loads(json, JSON_DECODE_ANY, NULL);
    CHECK(v && json_object_set_new(g->config, key, v) == 0);
}

static void set_rope(struct gen *g, const char *key, double v)
{
    json_t *o = json_object_get(g->config, "rope_scaling");
    CHECK(json_is_object(o) && json_object_set_new(o, key, json_real(v)) == 0);
}

/* Scales to `scale` (offset 0) or, with scale < 0, to all ones every tensor that ends so. */
static void set_all(struct gen *g, const char *suffix, double offset, double scale)
{
    size_t i;
    json_t *t;
    int n = 0;
    json_array_foreach(g->tensors, i, t)
    {
        const char *s = json_string_value(json_array_get(t, 0));
        size_t len = strlen(s), k = strlen(suffix);
        if (len < k || strcmp(s + len - k, suffix) != 0)
            continue;
        json_array_set_new(t, 3, json_real(offset));
        json_array_set_new(t, 4, json_real(scale));
        n++;
    }
    ck_assert_msg(n > 0, "no tensor ends with %s", suffix);
}

static void rope_layout(struct gen *g)
{
    set_key(g, "rope_interleave", "false");
}
static void rope_theta(struct gen *g)
{
    set_key(g, "rope_theta", "20000");
}
static void rope_factor(struct gen *g)
{
    set_rope(g, "factor", 2);
}
static void rope_gone(struct gen *g)
{
    set_key(g, "rope_scaling", "null");
}
static void rope_llama3_high(struct gen *g)
{
    set_rope(g, "high_freq_factor", 2);
}
static void mscale_half(struct gen *g)
{
    set_rope(g, "mscale", 0.5);
    set_rope(g, "mscale_all_dim", 0.5);
}
static void mscale_cos(struct gen *g)
{
    set_rope(g, "mscale", 2);
}
static void routing_bias(struct gen *g)
{
    set_all(g, "e_score_correction_bias", 0, 0);
}
static void group_mask(struct gen *g)
{
    set_key(g, "topk_group", "4");
}
static void one_group(struct gen *g)
{
    set_key(g, "n_group", "1");
    set_key(g, "topk_group", "1");
}
static void group_greedy(struct gen *g)
{
    set_key(g, "topk_method", "\"greedy\"");
}
static void shared_expert(struct gen *g)
{
    set_all(g, "shared_experts.down_proj.weight", 0, 0);
}
static void routed_scale(struct gen *g)
{
    set_key(g, "routed_scaling_factor", "1.0");
}
static void renormalise(struct gen *g)
{
    bool now = json_is_true(json_object_get(g->config, "norm_topk_prob"));
    set_key(g, "norm_topk_prob", now ? "false" : "true");
}
static void q_norm(struct gen *g)
{
    set_all(g, "q_norm.weight", 1, 0);
}
static void k_norm(struct gen *g)
{
    set_all(g, "k_norm.weight", 1, 0);
}
static void q_bias(struct gen *g)
{
    set_all(g, "q_proj.bias", 0, 0);
}
static void v_bias(struct gen *g)
{
    set_all(g, "v_proj.bias", 0, 0);
}
static void o_bias(struct gen *g)
{
    set_all(g, "o_proj.bias", 0, 0);
}
static void mlp_bias(struct gen *g)
{
    set_all(g, "down_proj.bias", 0, 0);
}
static void latent_norm(struct gen *g)
{
    set_all(g, "kv_a_layernorm.weight", 1, 0);
}
static void window_wider(struct gen *g)
{
    set_key(g, "sliding_window", "25");
}
static void window_layers(struct gen *g)
{
    set_key(g, "max_window_layers", "2");
}
static void att_factor(struct gen *g)
{
    json_object_del(json_object_get(g->config, "rope_parameters"), "attention_factor");
}
static void top_experts(struct gen *g)
{
    set_key(g, "num_experts_per_tok", "2");
}
static void fp8_scale(struct gen *g)
{
    gen_set(g, "model.layers.0.self_attn.o_proj.weight_scale_inv", 0.01, 0);
}

static const struct {
    const char *variant, *what;
    void (*edit)(struct gen *g);
} mutations[] = {
    {"ds-v3", "rope layout", rope_layout},
    {"ds-v3", "mscale_all_dim", mscale_half},
    {"ds-v3", "mscale of cos and sin", mscale_cos},
    {"ds-v3", "routing bias", routing_bias},
    {"ds-v3", "group mask", group_mask},
    {"ds-v3", "no groups", one_group},
    {"ds-v3", "shared expert", shared_expert},
    {"ds-v3", "routed scaling", routed_scale},
    {"ds-v3", "renormalisation", renormalise},
    {"ds-v3", "latent norm", latent_norm},
    {"ds-v3", "rope factor", rope_factor},
    {"ds-v3", "rope theta", rope_theta},
    {"ds-v2", "group mask", group_greedy},
    {"ds-v2", "rope scaling", rope_gone},
    {"ds-v2-lite", "mscale", mscale_half},
    {"ds-v2-lite", "shared expert", shared_expert},
    {"kimi-k2", "routing bias", routing_bias},
    {"ds-v3-fp8", "block scale", fp8_scale},
    {"qwen3", "q norm", q_norm},
    {"qwen3", "k norm", k_norm},
    {"qwen3-moe", "renormalisation", renormalise},
    {"qwen3-moe", "experts a token", top_experts},
    {"qwen2", "q bias", q_bias},
    {"qwen2", "v bias", v_bias},
    {"qwen2-window", "window", window_wider},
    {"qwen2-window", "windowed layers", window_layers},
    {"qwen2-yarn", "attention factor", att_factor},
    {"llama3", "rope scaling", rope_gone},
    {"llama3", "rope bands", rope_llama3_high},
    {"llama-yarn", "rope factor", rope_factor},
    {"llama-yarn", "o bias", o_bias},
    {"llama-yarn", "mlp bias", mlp_bias},
};

START_TEST(mutation_shows)
{
    struct gen g;
    if (SANITIZED && _i % 4)
        return; /* the same code as in equals_reference */
    gen_open(&g, mutations[_i].variant);
    mutations[_i].edit(&g);
    gen_write(&g, 1);
    double d = dir_miss(g.dir, &g, mutations[_i].variant, BY_PREFILL, ATTN_MLA_ABSORBED);
    printf("  %-12s %-22s misses by %.2f\n", mutations[_i].variant, mutations[_i].what, d);
    ck_assert_msg(d > margin && isfinite(d), "%s: %s changed, yet it misses by %g only",
                  mutations[_i].variant, mutations[_i].what, d);
    gen_close(&g);
}
END_TEST

Suite *suite_model_golden(void)
{
    Suite *s = suite_create("model_golden");
    TCase *t = tcase_create("reference");
    int n = 0;
    while (gen_names()[n])
        n++;
    tcase_set_timeout(t, 120);
    tcase_add_loop_test(t, equals_reference, 0, n);
    tcase_add_test(t, shards_equal_one_file);
    suite_add_tcase(s, t);
    TCase *m = tcase_create("mutation");
    tcase_set_timeout(m, 120);
    tcase_add_loop_test(m, mutation_shows, 0, (int)ARRAY_LEN(mutations));
    suite_add_tcase(s, m);
    return s;
}
