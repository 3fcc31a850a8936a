/* Goal: on the CPU device the logit row of a token depends on the weights and the tokens before it
 * alone. Method: every row of a prompt, bit by bit, against one run (one chunk, pages of 16, one
 * thread): by chunks {1, 7, 64, 512}, pages {1, 16, 64}, threads {1, 2}; as decode steps; as one of
 * several verify rows; among random rows of other sequences and padding, in random order; and
 * after its pages were given up and computed again; over caches of every type. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/base/rng.h"
#include "test/model/gen.h"
#include "test/model/runner.h"

enum { LEN = 90, OTHERS = 3, N_SLOT = 2 + OTHERS };

/* One of each family and kind of attention, routing, weight type and window; the trained models. */
static const char *const variants[] = {"llama3",       "llama-linear", "llama-tied", "qwen2-window",
                                       "qwen3",        "qwen3-window", "qwen3-fp8",  "qwen3-moe",
                                       "ds-v2-lite",   "ds-v2",        "ds-v3-fp8",  "ds-v3-half",
                                       "ds-v3-llama3", "demo",         "demo-qwen3"};

struct fix {
    struct gen g;
    enum dtype kv; /* of the cache; DT_NONE: the device's */
    int32_t tok[LEN];
    int vocab;
    float *want, *got; /* [LEN][vocab] */
};

static void open_run(struct mrun *r, const struct fix *x, struct mrun_conf c)
{
    struct err e = {0};
    c.rows_max = 512;
    c.len_max = LEN;
    c.n_slot = N_SLOT;
    c.kv_dtype = x->kv;
    ck_assert_msg(mrun_open(r, x->g.dir, &c, &e) == OK, "%s", e.text);
}

static void fix_open(struct fix *x, const char *name, enum attn_kind form, enum dtype kv)
{
    struct mrun r;
    struct err e = {0};
    *x = (struct fix){.kv = kv};
    gen_open(&x->g, name);
    if (x->g.config)
        gen_write(&x->g, 1);
    open_run(&r, x, (struct mrun_conf){.mla_form = form});
    x->vocab = r.info->vocab;
    struct rng rng = {7};
    for (int i = 0; i < LEN; i++)
        x->tok[i] = (int32_t)rng_below(&rng, (uint64_t)x->vocab);
    x->want = MEM_ARRAY(float, LEN * x->vocab);
    x->got = MEM_ARRAY(float, LEN * x->vocab);
    ck_assert_msg(mrun_prefill(&r, 1, x->tok, 0, LEN, 512, x->want, &e) == OK, "%s", e.text);
    mrun_close(&r);
}

static void fix_close(struct fix *x)
{
    mem_free(x->want);
    mem_free(x->got);
    gen_close(&x->g);
}

static void same(const struct fix *x, const char *name, const char *how, int a, int b)
{
    for (int p = 0; p < LEN; p++) {
        size_t at = (size_t)p * (size_t)x->vocab;
        ck_assert_msg(!memcmp(x->want + at, x->got + at, (size_t)x->vocab * sizeof(float)),
                      "%s: row of position %d differs: %s %d, %d", name, p, how, a, b);
    }
}

static void by_chunks(struct fix *x, const char *name, enum attn_kind form)
{
    static const int chunks[] = {1, 7, 64, 512}, pages[] = {1, 16, 64};
    struct err e = {0};
    for (size_t p = 0; p < ARRAY_LEN(pages); p++) {
        for (int threads = 1; threads <= 2; threads++) {
            struct mrun r;
            open_run(&r, x,
                     (struct mrun_conf){
                         .page = pages[p], .threads = threads, .mla_form = form, .seed = p});
            for (size_t c = 0; c < ARRAY_LEN(chunks); c++) {
                if (threads == 1 && chunks[c] == 1)
                    continue;
                int slot = 1 + (int)c;
                memset(x->got, 0xff, (size_t)LEN * (size_t)x->vocab * sizeof(float));
                ck_assert_msg(mrun_prefill(&r, slot, x->tok, 0, LEN, chunks[c], x->got, &e) == OK,
                              "%s", e.text);
                same(x, name, "chunk, page", chunks[c], pages[p]);
            }
            mrun_close(&r);
        }
    }
}

/* k rows at a time, all of one sequence; k = 1 is decode. */
static void as_verify_rows(struct fix *x, const char *name, int k)
{
    struct mrun r;
    struct err e = {0};
    struct mrow rows[16];
    open_run(&r, x, (struct mrun_conf){.threads = 2});
    for (int at = 0; at < LEN; at += k) {
        int n = LEN - at < k ? LEN - at : k;
        for (int i = 0; i < n; i++)
            rows[i] = (struct mrow){.slot = 1, .pos = at + i, .tok = x->tok[at + i]};
        ck_assert_msg(
            mrun_rows(&r, TGT_VERIFY, n, rows, x->got + (size_t)at * (size_t)x->vocab, &e) == OK,
            "%s", e.text);
    }
    same(x, name, "verify rows", k, 0);
    mrun_close(&r);
}

/* Each call brings a few rows of the sequence, some of each neighbour and padding, shuffled. */
static void among_others(struct fix *x, const char *name, uint64_t seed)
{
    struct mrun r;
    struct err e = {0};
    struct rng rng = {seed};
    struct mrow rows[64];
    int len[N_SLOT] = {0};
    float *out = MEM_ARRAY(float, 64 * x->vocab);
    open_run(&r, x, (struct mrun_conf){.threads = 2, .page = 16, .seed = seed});
    while (len[1] < LEN) {
        int n = 0;
        for (int s = 1; s < N_SLOT; s++) {
            int k = 1 + (int)rng_below(&rng, s == 1 ? 6 : 9);
            for (int i = 0; i < k && len[s] < LEN; i++, len[s]++)
                rows[n++] = (struct mrow){
                    .slot = s,
                    .pos = len[s],
                    .tok = s == 1 ? x->tok[len[s]] : (int32_t)rng_below(&rng, (uint64_t)x->vocab)};
        }
        for (int k = (int)rng_below(&rng, 5); k > 0; k--)
            rows[n++] = (struct mrow){.tok = -1};
        for (int i = n - 1; i > 0; i--) {
            int j = (int)rng_below(&rng, (uint64_t)i + 1);
            struct mrow t = rows[i];
            rows[i] = rows[j];
            rows[j] = t;
        }
        enum role role = rng_below(&rng, 2) ? TGT_VERIFY : TGT_PREFILL;
        ck_assert_msg(mrun_rows(&r, role, n, rows, out, &e) == OK, "%s", e.text);
        for (int i = 0; i < n; i++)
            if (rows[i].slot == 1)
                memcpy(x->got + (size_t)rows[i].pos * (size_t)x->vocab,
                       out + (size_t)i * (size_t)x->vocab, (size_t)x->vocab * sizeof(float));
    }
    same(x, name, "among others, seed", (int)seed, 0);
    mrun_close(&r);
    mem_free(out);
}

/* Half the sequence, then all of it again in another slot: what preemption by recompute does. */
static void recomputed(struct fix *x, const char *name)
{
    struct mrun r;
    struct err e = {0};
    open_run(&r, x, (struct mrun_conf){.threads = 2, .page = 1});
    ck_assert_msg(mrun_prefill(&r, 2, x->tok, 0, LEN / 2, 13, NULL, &e) == OK, "%s", e.text);
    ck_assert_msg(mrun_prefill(&r, 3, x->tok, 0, LEN, 29, x->got, &e) == OK, "%s", e.text);
    same(x, name, "recomputed", 0, 0);
    mrun_close(&r);
}

static void all_ways(const char *name, enum dtype kv)
{
    struct fix x;
    fix_open(&x, name, ATTN_MLA_ABSORBED, kv);
    by_chunks(&x, name, ATTN_MLA_ABSORBED);
    as_verify_rows(&x, name, 1);
    as_verify_rows(&x, name, 5);
    as_verify_rows(&x, name, 16);
    among_others(&x, name, 1);
    among_others(&x, name, 2);
    recomputed(&x, name);
    fix_close(&x);
}

START_TEST(rows_depend_on_prefix_alone)
{
    if (SANITIZED && _i % (TSAN ? 6 : 3))
        return;
    all_ways(variants[_i], DT_NONE);
}
END_TEST

static const struct {
    const char *name;
    enum dtype kv;
} caches[] = {{"qwen3-window", DT_F8E4M3}, {"ds-v3-half", DT_F8E4M3}, {"demo-qwen3", DT_F8E4M3},
              {"demo", DT_F8E4M3},         {"llama3", DT_BF16},       {"ds-v3-llama3", DT_BF16}};

/* The same over caches of other types: what a row keeps is rounded alone. */
START_TEST(other_caches)
{
    if (!SANITIZED || _i < 2)
        all_ways(caches[_i].name, caches[_i].kv);
}
END_TEST

START_TEST(decompressed_rows)
{
    struct fix x;
    fix_open(&x, "ds-v3", ATTN_MLA_DECOMPRESSED, DT_NONE);
    by_chunks(&x, "ds-v3", ATTN_MLA_DECOMPRESSED);
    fix_close(&x);
}
END_TEST

/* The comparison itself must be able to fail: another prefix gives other bits. */
START_TEST(another_prefix_differs)
{
    struct fix x;
    struct mrun r;
    struct err e = {0};
    fix_open(&x, "qwen3", ATTN_MLA_ABSORBED, DT_NONE);
    open_run(&r, &x, (struct mrun_conf){0});
    x.tok[0] = (x.tok[0] + 1) % x.vocab;
    ck_assert_msg(mrun_prefill(&r, 1, x.tok, 0, LEN, 64, x.got, &e) == OK, "%s", e.text);
    size_t last = (size_t)(LEN - 1) * (size_t)x.vocab;
    ck_assert(memcmp(x.want + last, x.got + last, (size_t)x.vocab * sizeof(float)) != 0);
    mrun_close(&r);
    fix_close(&x);
}
END_TEST

Suite *suite_model_bits(void)
{
    Suite *s = suite_create("model_bits");
    TCase *t = tcase_create("rows");
    tcase_set_timeout(t, 240);
    tcase_add_loop_test(t, rows_depend_on_prefix_alone, 0, (int)ARRAY_LEN(variants));
    tcase_add_loop_test(t, other_caches, 0, (int)ARRAY_LEN(caches));
    tcase_add_test(t, decompressed_rows);
    tcase_add_test(t, another_prefix_differs);
    suite_add_tcase(s, t);
    return s;
}
