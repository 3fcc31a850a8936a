/* Goal: a model divided over ranks is the model. Method: for the trained models and every generated
 * checkpoint, log-probabilities of all ids at every position of a teacher-forced text, in prefill
 * chunks and then step by step, against one rank's; the ranks' logits among each other bit by bit.
 * What cannot be divided is refused with both numbers. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/base/thread.h"
#include "test/model/gen.h"
#include "test/model/runner.h"

/* Sums are grouped differently, nothing else; one element of fp32 in some thousand operations. */
static const double limit = 2e-4;

enum { TEXT_MAX = SANITIZED ? 48 : 300, STEPS = SANITIZED ? 8 : 60, CHUNK = 48 };

struct side { /* one rank's run over the text */
    struct thread t;
    const char *dir;
    struct mrun_conf c;
    const int32_t *tok;
    int n, vocab;
    float *logits; /* [n][vocab] */
    size_t copy_bytes;
    int ret;
    struct err err;
};

static int text(struct side *s, struct mrun *r)
{
    int by = s->n > 2 * STEPS ? s->n - STEPS : s->n / 2;
    s->vocab = r->info->vocab;
    s->copy_bytes = r->info->copy_bytes;
    s->logits = MEM_ARRAY(float, (size_t)s->n *(size_t)s->vocab);
    TRY(mrun_prefill(r, 1, s->tok, 0, by, CHUNK, s->logits, &s->err));
    for (int p = by; p < s->n; p++) {
        struct mrow row = {.slot = 1, .pos = p, .tok = s->tok[p]};
        float *out = s->logits + (size_t)p * (size_t)s->vocab;
        TRY(mrun_rows(r, TGT_VERIFY, 1, &row, out, &s->err));
    }
    return OK;
}

static void body(void *ud)
{
    struct side *s = ud;
    struct mrun r;
    s->ret = mrun_open(&r, s->dir, &s->c, &s->err);
    if (s->ret == OK) {
        s->ret = text(s, &r);
        mrun_close(&r);
    }
    if (s->ret < 0)
        comm_poison(s->c.model.comm);
}

/* Runs the text on `world` ranks; out[world]. */
static void world_run(struct side *out, const char *dir, const struct gen *g, bool dummy, int world,
                      enum attn_kind form)
{
    struct comm *comm[LIM_RANKS] = {NULL};
    json_t *p = json_array_get(g->prompts, json_array_size(g->prompts) - 1);
    int n = (int)json_array_size(p) < TEXT_MAX ? (int)json_array_size(p) : TEXT_MAX;
    int32_t *tok = MEM_ARRAY(int32_t, n);
    for (int i = 0; i < n; i++)
        tok[i] = (int32_t)json_integer_value(json_array_get(p, (size_t)i));
    if (world > 1)
        ck_assert_int_eq(comm_shm_open(comm, world, NULL), OK);
    for (int i = 0; i < world; i++) {
        out[i] = (struct side){.dir = dir, .tok = tok, .n = n};
        out[i].c = (struct mrun_conf){.rows_max = CHUNK, .len_max = n, .n_slot = 2};
        out[i].c.mla_form = form;
        out[i].c.model.comm = comm[i];
        out[i].c.model.dummy = dummy;
        thread_start(&out[i].t, "rank", body, &out[i]);
    }
    for (int i = 0; i < world; i++)
        thread_join(&out[i].t);
    if (world > 1)
        comm_shm_close(comm);
    mem_free(tok);
}

static void world_done(struct side *s, int world)
{
    for (int i = 0; i < world; i++)
        mem_free(s[i].logits);
}

static double log_sum(const float *x, int n)
{
    double top = x[0], sum = 0;
    for (int i = 1; i < n; i++)
        top = x[i] > top ? x[i] : top;
    for (int i = 0; i < n; i++)
        sum += exp(x[i] - top);
    return top + log(sum);
}

static double miss(const struct side *a, const struct side *b)
{
    double worst = 0;
    for (int p = 0; p < a->n; p++) {
        const float *x = a->logits + (size_t)p * (size_t)a->vocab;
        const float *y = b->logits + (size_t)p * (size_t)a->vocab;
        double zx = log_sum(x, a->vocab), zy = log_sum(y, a->vocab);
        for (int i = 0; i < a->vocab; i++) {
            double d = fabs((x[i] - zx) - (y[i] - zy));
            if (!(d <= worst)) /* NaN counts as a miss */
                worst = isnan(d) ? INFINITY : d;
        }
    }
    return worst;
}

static void compare(const char *name, const char *dir, const struct gen *g, bool dummy, int world,
                    enum attn_kind form)
{
    struct side one, many[LIM_RANKS];
    world_run(&one, dir, g, dummy, 1, form);
    ck_assert_msg(one.ret == OK && one.copy_bytes == 0, "%s: %s", name, one.err.text);
    world_run(many, dir, g, dummy, world, form);
    for (int i = 0; i < world; i++) {
        ck_assert_msg(many[i].ret == OK, "%s, rank %d of %d: %s", name, i, world, many[i].err.text);
        ck_assert_uint_gt(many[i].copy_bytes, 0);
        ck_assert_msg(!memcmp(many[i].logits, many[0].logits,
                              (size_t)one.n * (size_t)one.vocab * sizeof(float)),
                      "%s: rank %d of %d has other logits than rank 0", name, i, world);
    }
    double d = miss(&one, &many[0]);
    printf("  %-16s %d ranks, %3d tokens%s: %.1e\n", name, world, one.n,
           form == ATTN_MLA_DECOMPRESSED ? ", decompressed" : "", d);
    ck_assert_msg(d <= limit, "%s: %d ranks miss by %g", name, world, d);
    ck_assert_msg(d > 0, "%s: the very bits of one rank: was anything divided?", name);
    world_done(&one, 1);
    world_done(many, world);
}

/* What two ranks cannot divide; all other checkpoints of gen_names() must come out equal. */
static const struct {
    const char *name, *word[2];
} refused[] = {
    {"llama-tied", {"'num_attention_heads' 9", "2 ranks"}},
    {"qwen3-fp8", {"fp8 scale block", "over 2 ranks"}},
    {"ds-v3-fp8", {"fp8 scale block", "over 2 ranks"}},
};

static void refuse(const char *name, const struct gen *g, int world, const char *const word[2])
{
    struct side s[LIM_RANKS];
    world_run(s, g->dir, g, false, world, ATTN_MLA_ABSORBED);
    for (int i = 0; i < world; i++) {
        ck_assert_int_eq(s[i].ret, E_UNSUPPORTED);
        for (int k = 0; k < 2; k++)
            ck_assert_msg(strstr(s[i].err.text, word[k]) != NULL, "%s: %s", name, s[i].err.text);
    }
    world_done(s, world);
}

START_TEST(two_ranks_are_one)
{
    const char *name = gen_names()[_i];
    struct gen g;
    gen_open(&g, name);
    if (g.config)
        gen_write(&g, 1);
    for (size_t i = 0; i < ARRAY_LEN(refused); i++)
        if (!strcmp(refused[i].name, name)) {
            refuse(name, &g, 2, refused[i].word);
            gen_close(&g);
            return;
        }
    compare(name, g.dir, &g, false, 2, ATTN_MLA_ABSORBED);
    if (!strncmp(name, "ds-v", 4))
        compare(name, g.dir, &g, false, 2, ATTN_MLA_DECOMPRESSED);
    gen_close(&g);
}
END_TEST

START_TEST(four_ranks_are_one)
{
    static const char *const names[] = {"demo", "ds-v3"};
    struct gen g;
    gen_open(&g, names[_i]);
    if (g.config)
        gen_write(&g, 1);
    compare(names[_i], g.dir, &g, false, 4, ATTN_MLA_ABSORBED);
    gen_close(&g);
}
END_TEST

static void set_int(struct gen *g, const char *key, int v)
{
    CHECK(json_object_set_new(g->config, key, json_integer(v)) == 0);
}

static void add_bias(struct gen *g, int layer, const char *product, int n)
{
    char name[96];
    snprintf(name, sizeof name, "model.layers.%d.%s.bias", layer, product);
    gen_add(g, name, "F32", 0, n, 0, 0.5);
}

/* A bias of a divided output is divided, one of a sum over ranks is added once. */
START_TEST(biases_are_added_once)
{
    struct gen g;
    gen_open(&g, _i ? "ds-v3" : "llama2");
    int layers = (int)json_integer_value(json_object_get(g.config, "num_hidden_layers"));
    int mtp = (int)json_integer_value(json_object_get(g.config, "num_nextn_predict_layers"));
    json_object_set_new(g.config, "attention_bias", json_true());
    for (int i = 0; i < layers + mtp; i++) {
        add_bias(&g, i, "self_attn.o_proj", 72);
        if (_i) {
            json_t *lora = json_object_get(g.config, "q_lora_rank");
            int kv = (int)json_integer_value(json_object_get(g.config, "kv_lora_rank")) +
                     (int)json_integer_value(json_object_get(g.config, "qk_rope_head_dim"));
            add_bias(&g, i, "self_attn.q_a_proj", (int)json_integer_value(lora));
            add_bias(&g, i, "self_attn.kv_a_proj_with_mqa", kv);
            continue;
        }
        add_bias(&g, i, "self_attn.q_proj", 72);
        add_bias(&g, i, "self_attn.k_proj", 72);
        add_bias(&g, i, "self_attn.v_proj", 72);
        add_bias(&g, i, "mlp.gate_proj", 100);
        add_bias(&g, i, "mlp.up_proj", 100);
        add_bias(&g, i, "mlp.down_proj", 72);
    }
    if (!_i)
        json_object_set_new(g.config, "mlp_bias", json_true());
    gen_write(&g, 1);
    compare(_i ? "ds-v3 biased" : "llama2 biased", g.dir, &g, false, 2, ATTN_MLA_ABSORBED);
    gen_close(&g);
}
END_TEST

/* Gives the product `suffix` and its scales other sizes, in all layers. */
static void resize(struct gen *g, const char *suffix, int n, int k)
{
    size_t i;
    json_t *t;
    int found = 0;
    json_array_foreach(g->tensors, i, t)
    {
        const char *name = json_string_value(json_array_get(t, 0));
        const char *at = strstr(name, suffix);
        int block = at && !strcmp(at + strlen(suffix), ".weight_scale_inv") ? 128 : 1;
        if (!at || (block == 1 && strcmp(at + strlen(suffix), ".weight") != 0))
            continue;
        json_array_set_new(t, 2,
                           json_pack("[ii]", (n + block - 1) / block, (k + block - 1) / block));
        found++;
    }
    CHECK(found > 0);
}

/* Sizes whose halves are whole scale blocks, from files and generated. */
START_TEST(fp8_blocks_are_divided)
{
    static const char *const names[] = {"qwen3-fp8", "ds-v3-fp8"};
    bool ds = _i % 2, dummy = _i / 2;
    struct gen g;
    gen_open(&g, names[ds]);
    set_int(&g, "intermediate_size", 512);
    int h = ds ? 160 : 192;
    resize(&g, ".mlp.gate_proj", 512, h);
    resize(&g, ".mlp.up_proj", 512, h);
    resize(&g, ".mlp.down_proj", h, 512);
    if (ds) {
        set_int(&g, "moe_intermediate_size", 256);
        set_int(&g, "num_attention_heads", 8);
        set_int(&g, "num_key_value_heads", 8);
        set_int(&g, "qk_nope_head_dim", 96);
        set_int(&g, "qk_rope_head_dim", 32);
        set_int(&g, "v_head_dim", 96);
        resize(&g, "q_b_proj", 8 * 128, 128);
        resize(&g, "kv_a_proj_with_mqa", 136 + 32, h);
        resize(&g, "kv_b_proj", 8 * 192, 136);
        resize(&g, "o_proj", h, 8 * 96);
        for (int i = -1; i < 8; i++) { /* the shared expert first */
            char p[32];
            snprintf(p, sizeof p, "mlp.experts.%d.", i);
            const char *at = i < 0 ? "mlp.shared_experts." : p;
            char name[64];
            snprintf(name, sizeof name, "%sgate_proj", at);
            resize(&g, name, 256, h);
            snprintf(name, sizeof name, "%sup_proj", at);
            resize(&g, name, 256, h);
            snprintf(name, sizeof name, "%sdown_proj", at);
            resize(&g, name, h, 256);
        }
    } else {
        set_int(&g, "num_attention_heads", 4);
        set_int(&g, "head_dim", 128);
        resize(&g, "q_proj", 4 * 128, h);
        resize(&g, "k_proj", 2 * 128, h);
        resize(&g, "v_proj", 2 * 128, h);
        resize(&g, "o_proj", h, 4 * 128);
        for (int i = 0; i < 2; i++) {
            char name[64];
            for (int k = 0; k < 2; k++) {
                snprintf(name, sizeof name, "model.layers.%d.self_attn.%c_norm.weight", i, "qk"[k]);
                json_array_set_new(gen_tensor(&g, name), 2, json_pack("[i]", 128));
            }
        }
    }
    gen_write(&g, 1);
    char what[32];
    snprintf(what, sizeof what, "%s%s", names[ds], dummy ? " made" : "");
    compare(what, g.dir, &g, dummy, 2, ATTN_MLA_ABSORBED);
    gen_close(&g);
}
END_TEST

/* Three ranks: each key that cannot be divided is named, before any tensor is. */
static const struct {
    const char *name, *key;
    int value, world;
    const char *word[2];
} undivided[] = {
    {"qwen3", NULL, 0, 4, {"'num_attention_heads' 6", "4 ranks"}},
    {"qwen3", NULL, 0, 3, {"'num_key_value_heads' 2", "3 ranks"}},
    {"llama2", NULL, 0, 3, {"'intermediate_size' 100", "3 ranks"}},
    {"qwen3-moe", "moe_intermediate_size", 37, 2, {"'moe_intermediate_size' 37", "2 ranks"}},
    {"ds-v3", NULL, 0, 3, {"'num_attention_heads' 4", "3 ranks"}},
    {"ds-v3", "moe_intermediate_size", 27, 2, {"'moe_intermediate_size' 27", "2 ranks"}},
    {"ds-v3", "intermediate_size", 111, 2, {"'intermediate_size' 111", "2 ranks"}},
};

START_TEST(undivided_sizes)
{
    struct gen g;
    gen_open(&g, undivided[_i].name);
    if (undivided[_i].key)
        set_int(&g, undivided[_i].key, undivided[_i].value);
    gen_write(&g, 1);
    refuse(undivided[_i].name, &g, undivided[_i].world, undivided[_i].word);
    gen_close(&g);
}
END_TEST

Suite *suite_tp(void)
{
    int n = 0;
    while (gen_names()[n])
        n++;
    Suite *s = suite_create("tp");
    TCase *c = tcase_create("model");
    tcase_set_timeout(c, 60);
    tcase_add_loop_test(c, two_ranks_are_one, 0, n);
    tcase_add_loop_test(c, four_ranks_are_one, 0, 2);
    tcase_add_loop_test(c, biases_are_added_once, 0, 2);
    tcase_add_loop_test(c, fp8_blocks_are_divided, 0, 4);
    tcase_add_loop_test(c, undivided_sizes, 0, (int)ARRAY_LEN(undivided));
    suite_add_tcase(s, c);
    return s;
}
