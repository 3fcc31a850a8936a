/* Goal: drafters compute what their descriptions say, and a drafter's row depends on its tokens and
 * features alone. Method: generated next-token layers and EAGLE-3 heads of every switch against
 * arithmetic in doubles (plain.c), over rows that take the target's features and recurrent ones;
 * mutations of the reference must miss. Row bits by chunks, pages, threads, roles and in place;
 * trees are their chains, bit by bit. Taps against models cut to so many layers. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/base/rng.h"
#include "test/model/heads.h"
#include "test/model/plain.h"
#include "test/model/runner.h"

enum { LEN = 40, CHAIN = 4, ALL = LEN + CHAIN };

#define MUST(expr) ck_assert_msg((expr) == OK, "%s", e.text)

/* A target, its drafter, and what the drafter's rows take: row i consumes tok[i] with feat[i - 1]
 * (the target's up to LEN - 1, recurrent ones after). */
struct pair {
    struct gen tg, dg; /* dg.doc NULL: a next-token layer */
    struct mrun t, d;
    int32_t tok[ALL];
    int taps;    /* floats of one row's taps */
    float *tap;  /* [LEN][taps] */
    float *feat; /* [ALL][feat] */
};

static void pair_target(struct pair *p, const char *name)
{
    gen_open(&p->tg, name);
}

/* Opens both, runs the target over LEN tokens and takes its features. */
static void pair_open(struct pair *p, struct mrun_conf c)
{
    static const int tap[] = {1, 2, 3};
    struct err e = {0};
    struct rng rng = {11};
    struct mrow rows[LEN];
    bool head = p->dg.doc != NULL;
    if (p->tg.config && !p->tg.written)
        gen_write(&p->tg, 1);
    c.rows_max = 64;
    c.len_max = 96;
    struct mrun_conf ct = c;
    if (head) {
        ct.tap = tap;
        ct.n_tap = 3;
    }
    MUST(mrun_open(&p->t, p->tg.dir, &ct, &e));
    c.target = &p->t;
    MUST(mrun_open(&p->d, head ? p->dg.dir : NULL, &c, &e));
    int h = p->t.info->hidden, f = p->d.info->feat;
    for (int i = 0; i < ALL; i++)
        p->tok[i] = (int32_t)rng_below(&rng, (uint64_t)p->t.info->vocab);
    for (int i = 0; i < LEN; i++)
        rows[i] = (struct mrow){.slot = 1, .pos = i, .tok = p->tok[i]};
    p->taps = head ? 3 * h : h;
    p->tap = MEM_ARRAY(float, LEN * p->taps);
    p->feat = MEM_ARRAY(float, ALL *f);
    struct mio io = {0};
    if (head)
        io.taps = p->tap;
    else
        io.hidden = p->tap;
    MUST(mrun_pass(&p->t, TGT_PREFILL, LEN, rows, &io, &e));
    if (head)
        MUST(mrun_feature(&p->d, LEN, p->tap, p->feat, &e));
    else
        memcpy(p->feat, p->tap, (size_t)(LEN * f) * sizeof *p->feat);
}

static void pair_close(struct pair *p)
{
    mrun_close(&p->d);
    mrun_close(&p->t);
    mem_free(p->tap);
    mem_free(p->feat);
    if (p->dg.doc)
        gen_close(&p->dg);
    gen_close(&p->tg);
}

/* Rows [1, LEN) in one pass, then CHAIN recurrent ones of one row each; out rows at index i. */
struct outs {
    float *hidden, *logits; /* hidden: the recurrent feature */
};

static struct outs outs_new(const struct pair *p)
{
    const struct model_info *in = p->d.info;
    ck_assert_int_eq(in->hidden, in->feat);
    return (struct outs){MEM_ARRAY(float, ALL * in->hidden), MEM_ARRAY(float, ALL * in->vocab)};
}

static void outs_free(struct outs *o)
{
    mem_free(o->hidden);
    mem_free(o->logits);
}

static void run_rows(struct pair *p, enum role role, int slot, int from, int n, bool backwards,
                     struct outs *o)
{
    struct err e = {0};
    const struct model_info *in = p->d.info;
    struct mrow rows[LEN];
    for (int i = 0; i < n; i++)
        rows[i] = (struct mrow){.slot = slot, .pos = from + i, .tok = p->tok[from + i]};
    struct mio io = {.feat = p->feat + (size_t)(from - 1) * (size_t)in->feat,
                     .hidden = o->hidden + (size_t)from * (size_t)in->hidden,
                     .logits = o->logits + (size_t)from * (size_t)in->vocab};
    int32_t src[LEN];
    if (backwards) { /* the same features, in another order */
        float *turned = MEM_ARRAY(float, n * in->feat);
        for (int i = 0; i < n; i++) {
            src[i] = n - 1 - i;
            memcpy(turned + src[i] * in->feat, io.feat + i * in->feat,
                   (size_t)in->feat * sizeof *turned);
        }
        io.feat = turned;
        io.src = src;
    }
    MUST(mrun_pass(&p->d, role, n, rows, &io, &e));
    if (backwards)
        mem_free((float *)(size_t)io.feat);
}

static void run_all(struct pair *p, struct outs *o)
{
    size_t f = (size_t)p->d.info->feat;
    run_rows(p, TGT_PREFILL, 1, 1, LEN - 1, false, o);
    for (int i = LEN; i < ALL; i++) {
        memcpy(p->feat + (size_t)(i - 1) * f, o->hidden + (size_t)(i - 1) * f, f * sizeof(float));
        run_rows(p, TGT_VERIFY, 1, i, 1, false, o);
    }
}

/* Largest difference over the largest value. */
static double miss(const float *got, const double *want, int n)
{
    double d = 0, top = 0;
    for (int i = 0; i < n; i++) {
        double x = fabs((double)got[i] - want[i]);
        d = x <= d ? d : isnan(x) ? INFINITY : x;
        top = fmax(top, fabs(want[i]));
    }
    return d / top;
}

/* The rows of `o` against the reference, recurrent rows with the reference's own features; the
 * worst of features, of true rows and of recurrent rows. */
struct misses {
    double feat, rows, chain;
};

static struct misses compare(const struct pair *p, const struct outs *o, struct plain *ref)
{
    const struct model_info *in = p->d.info;
    struct misses m = {0};
    double taps[PLAIN_WIDE], feat[PLAIN_WIDE], hidden[PLAIN_WIDE], next[PLAIN_WIDE];
    double *logits = MEM_ARRAY(double, in->vocab);
    for (int i = 1; i < ALL; i++) {
        for (int j = 0; i < LEN + 1 && j < p->taps; j++)
            taps[j] = (double)p->tap[(i - 1) * p->taps + j];
        if (i <= LEN && p->dg.doc)
            plain_fuse(ref, taps, 3, feat);
        else
            memcpy(feat, i <= LEN ? taps : next, (size_t)in->feat * sizeof *feat);
        if (i >= LEN) /* the chain starts with the drafter's own feature */
            memcpy(feat, next, (size_t)in->feat * sizeof *feat);
        else
            m.feat = fmax(m.feat, miss(p->feat + (i - 1) * in->feat, feat, in->feat));
        (p->dg.doc ? plain_eagle3 : plain_mtp)(ref, p->tok[i], feat, hidden, next, logits);
        double d = miss(o->hidden + i * in->hidden, next, in->hidden);
        d = fmax(d, miss(o->logits + i * in->vocab, logits, in->vocab));
        if (i < LEN)
            m.rows = fmax(m.rows, d);
        else
            m.chain = fmax(m.chain, d);
    }
    mem_free(logits);
    return m;
}

static struct misses against(const struct pair *p, const struct outs *o, const json_t *conf,
                             bool alien_kv)
{
    struct plain *ref =
        plain_open(p->dg.doc ? p->dg.dir : p->tg.dir, conf, p->tg.dir, p->tg.config);
    ref->alien_kv = alien_kv;
    struct misses m = compare(p, o, ref);
    plain_close(ref);
    return m;
}

static const double limit = 2e-5, margin = 1e-2;

/* ---- the programs ---- */

START_TEST(head_equals_plain)
{
    static const char *const flips[] = {"norm_before_residual", "norm_output", NULL};
    struct pair p = {0};
    pair_target(&p, "qwen3");
    head_make(&p.dg, &heads[_i]);
    gen_write(&p.dg, 1);
    pair_open(&p, (struct mrun_conf){0});
    const struct model_info *in = p.d.info;
    ck_assert_str_eq(in->family, "eagle3");
    ck_assert_int_eq(in->feat, heads[_i].hidden);
    ck_assert_int_eq(in->shift, 1);
    ck_assert_int_eq(in->n_tap, 3);
    ck_assert_int_eq(in->tap[2], 3);
    ck_assert_int_eq(in->vocab_target, 131);
    ck_assert_int_eq(in->vocab, heads[_i].full_vocab ? 131 : HEAD_VOCAB);
    const int32_t *ids = model_d2t(p.d.m); /* the CPU's device memory is the host's */
    ck_assert((ids == NULL) == heads[_i].full_vocab);
    for (int i = 0; ids && i < in->vocab; i++)
        ck_assert_int_eq(ids[i], head_target_id(i));
    struct outs o = outs_new(&p);
    run_all(&p, &o);
    struct misses m = against(&p, &o, p.dg.config, false);
    printf("  %-22s features %.1e, rows %.1e, recurrent %.1e\n", heads[_i].name, m.feat, m.rows,
           m.chain);
    ck_assert_msg(m.feat < limit && m.rows < limit && m.chain < limit, "%s", heads[_i].name);
    m = against(&p, &o, p.dg.config, true);
    ck_assert_msg(m.rows > margin, "keys one position off pass: %g", m.rows);
    for (const char *const *k = flips; *k; k++) {
        json_t *conf = json_deep_copy(p.dg.config);
        json_object_set_new(conf, *k, json_boolean(!json_is_true(json_object_get(conf, *k))));
        m = against(&p, &o, conf, false);
        ck_assert_msg(m.chain > margin, "%s the other way passes: %g", *k, m.chain);
        json_decref(conf);
    }
    outs_free(&o);
    pair_close(&p);
}
END_TEST

/* Copies of embedding and head inside the layer, and none; both forms of attention. */
START_TEST(mtp_equals_plain)
{
    static const char *const copies[] = {"model.layers.3.embed_tokens.weight",
                                         "model.layers.3.shared_head.head.weight"};
    struct pair p = {0};
    pair_target(&p, "ds-v3");
    json_object_set_new(p.tg.config, "rope_scaling", json_null());
    for (int i = 0; i < 2; i++) {
        gen_remove(&p.tg, copies[i]);
        if (_i)
            gen_add(&p.tg, copies[i], "BF16", 131, 72, 0, 1);
    }
    pair_open(&p, (struct mrun_conf){.mla_form = _i ? ATTN_MLA_DECOMPRESSED : ATTN_MLA_ABSORBED});
    const struct model_info *in = p.d.info;
    ck_assert_str_eq(in->family, "deepseek_mtp");
    ck_assert_int_eq(in->feat, 72);
    ck_assert_int_eq(in->shift, 1);
    ck_assert_int_eq(in->n_tap, 0);
    ck_assert_int_eq(in->n_layer, 1);
    ck_assert_int_eq(in->vocab, 131);
    ck_assert_int_eq(in->vocab_target, 131);
    struct outs o = outs_new(&p);
    run_all(&p, &o);
    struct misses m = against(&p, &o, p.tg.config, false);
    printf("  next-token layer       features %.1e, rows %.1e, recurrent %.1e\n", m.feat, m.rows,
           m.chain);
    ck_assert(m.feat == 0 && m.rows < limit && m.chain < limit);
    m = against(&p, &o, p.tg.config, true);
    ck_assert_msg(m.rows > margin, "keys one position off pass: %g", m.rows);
    outs_free(&o);
    pair_close(&p);
}
END_TEST

/* ---- bits ---- */

static void same_rows(const struct pair *p, const struct outs *a, const struct outs *b,
                      const char *how, int x, int y)
{
    const struct model_info *in = p->d.info;
    for (int i = 1; i < LEN; i++)
        ck_assert_msg(!memcmp(a->hidden + i * in->hidden, b->hidden + i * in->hidden,
                              (size_t)in->hidden * sizeof(float)) &&
                          !memcmp(a->logits + i * in->vocab, b->logits + i * in->vocab,
                                  (size_t)in->vocab * sizeof(float)),
                      "row of position %d differs: %s %d, %d", i, how, x, y);
}

static const char *const bit_pairs[] = {"ds-v3", "ds-v3-fp8", "demo", "head"};

static void bits_open(struct pair *p, int i, struct mrun_conf c)
{
    *p = (struct pair){0};
    bool head = !strcmp(bit_pairs[i], "head");
    pair_target(p, head ? "qwen3" : bit_pairs[i]);
    if (head) {
        head_make(&p->dg, &heads[0]);
        gen_write(&p->dg, 1);
    }
    pair_open(p, c);
}

START_TEST(rows_depend_on_prefix_alone)
{
    static const int chunks[] = {1, 7, 39}, pages[] = {1, 16};
    struct pair p;
    bits_open(&p, _i, (struct mrun_conf){.threads = 1});
    struct outs want = outs_new(&p), got = outs_new(&p);
    run_rows(&p, TGT_PREFILL, 1, 1, LEN - 1, false, &want);
    pair_close(&p);
    for (size_t g = 0; g < ARRAY_LEN(pages); g++) {
        bits_open(&p, _i,
                  (struct mrun_conf){.threads = 2, .page = pages[g], .n_slot = 10, .seed = g});
        for (int c = 0; c < 6; c++) { /* prefill and verify roles, features in order and not */
            int chunk = chunks[c / 2];
            enum role role = c % 2 ? TGT_VERIFY : TGT_PREFILL;
            memset(got.hidden, 0xff, (size_t)(ALL * p.d.info->hidden) * sizeof(float));
            for (int at = 1; at < LEN; at += chunk)
                run_rows(&p, role, 1 + c, at, LEN - at < chunk ? LEN - at : chunk, c % 4 > 1, &got);
            same_rows(&p, &want, &got, "chunk, page", chunk, pages[g]);
        }
        if (g == 0) { /* another first feature gives other bits in the last row */
            p.feat[0] += 1;
            run_rows(&p, TGT_PREFILL, 8, 1, LEN - 1, false, &got);
            int last = (LEN - 1) * p.d.info->vocab;
            ck_assert(memcmp(want.logits + last, got.logits + last,
                             (size_t)p.d.info->vocab * sizeof(float)));
        }
        pair_close(&p);
    }
    outs_free(&want);
    outs_free(&got);
}
END_TEST

/* ---- trees ---- */

static double far(const float *a, const float *b, int n)
{
    double d = 0, top = 0;
    for (int i = 0; i < n; i++) {
        double x = fabs((double)a[i] - (double)b[i]);
        d = x <= d ? d : isnan(x) ? INFINITY : x;
        top = fmax(top, fabs((double)b[i]));
    }
    return d / top;
}

/* Verify rows root, a, b, a's child, b's child: their logits are those of the two chains. */
START_TEST(verify_tree)
{
    static const char *const names[] = {"qwen3", "qwen3-window", "ds-v3"};
    static const int depth[] = {0, 1, 1, 2, 2};
    static const uint64_t anc[] = {1, 3, 5, 11, 21};
    static const int path[2][3] = {{0, 1, 3}, {0, 2, 4}};
    struct gen g;
    struct mrun r;
    struct err e = {0};
    struct rng rng = {3};
    int32_t tok[LEN + 5];
    struct mrow rows[5];
    gen_open(&g, names[_i]);
    gen_write(&g, 1);
    MUST(mrun_open(&r, g.dir, &(struct mrun_conf){.rows_max = 64, .len_max = 96, .page = 1}, &e));
    int v = r.info->vocab;
    float *tree = MEM_ARRAY(float, 5 * v), *chain = MEM_ARRAY(float, 3 * v);
    for (int i = 0; i < LEN + 5; i++)
        tok[i] = (int32_t)rng_below(&rng, (uint64_t)v);
    for (int s = 1; s <= 3; s++)
        MUST(mrun_prefill(&r, s, tok, 0, LEN, 64, NULL, &e));
    for (int i = 0; i < 5; i++)
        rows[i] = (struct mrow){.slot = 1,
                                .pos = LEN + depth[i],
                                .tok = tok[LEN + i],
                                .at = LEN + i,
                                .row0 = LEN,
                                .anc = anc[i]};
    MUST(mrun_pass(&r, TGT_VERIFY, 5, rows, &(struct mio){.logits = tree, .tree = true}, &e));
    for (int c = 0; c < 2; c++) {
        for (int i = 0; i < 3; i++)
            rows[i] = (struct mrow){.slot = 2 + c, .pos = LEN + i, .tok = tok[LEN + path[c][i]]};
        MUST(mrun_rows(&r, TGT_VERIFY, 3, rows, chain, &e));
        for (int i = 0; i < 3; i++) {
            ck_assert_msg(!memcmp(tree + path[c][i] * v, chain + i * v, (size_t)v * sizeof *chain),
                          "%s: node %d differs by %g", names[_i], path[c][i],
                          far(tree + path[c][i] * v, chain + i * v, v));
        }
    }
    ck_assert(far(tree + 3 * v, tree + 4 * v, v) > margin);
    mem_free(tree);
    mem_free(chain);
    mrun_close(&r);
    gen_close(&g);
}
END_TEST

/* Two beams, two levels, scratch rows behind the committed ones; each takes its parent's feature.
 */
START_TEST(draft_tree)
{
    struct pair p;
    struct err e = {0};
    struct mrow rows[2];
    bits_open(&p, _i, (struct mrun_conf){.page = 1, .n_slot = 5});
    const struct model_info *in = p.d.info;
    int f = in->feat, v = in->vocab;
    struct outs o = outs_new(&p);
    float *feat = MEM_ARRAY(float, 2 * f), *next = MEM_ARRAY(float, 2 * f);
    float *tree = MEM_ARRAY(float, 2 * v), *chain = MEM_ARRAY(float, v);
    for (int s = 1; s <= 3; s++)
        run_rows(&p, TGT_PREFILL, s, 1, LEN - 1, false, &o);
    for (int b = 0; b < 2; b++)
        memcpy(feat + b * f, o.hidden + (LEN - 1) * f, (size_t)f * sizeof *feat);
    for (int level = 0; level < 2; level++) {
        for (int b = 0; b < 2; b++)
            rows[b] = (struct mrow){.slot = 1,
                                    .pos = LEN + level,
                                    .tok = p.tok[LEN + 2 * level + b],
                                    .at = LEN + 2 * level + b,
                                    .row0 = LEN,
                                    .anc = (level ? 5u : 1u) << b};
        struct mio io = {.feat = feat, .hidden = next, .logits = tree, .tree = true};
        MUST(mrun_pass(&p.d, TGT_VERIFY, 2, rows, &io, &e));
        for (int b = 0; b < 2; b++) {
            struct mrow row = {
                .slot = 2 + b, .pos = LEN + level, .tok = p.tok[LEN + 2 * level + b]};
            MUST(mrun_pass(&p.d, TGT_VERIFY, 1, &row,
                           &(struct mio){.feat = feat + b * f, .logits = chain}, &e));
            ck_assert_msg(!memcmp(tree + b * v, chain, (size_t)v * sizeof *chain),
                          "%s: level %d, beam %d differs by %g", bit_pairs[_i], level, b,
                          far(tree + b * v, chain, v));
        }
        memcpy(feat, next, (size_t)(2 * f) * sizeof *feat);
    }
    ck_assert(far(tree, tree + v, v) > margin);
    mem_free(feat);
    mem_free(next);
    mem_free(tree);
    mem_free(chain);
    outs_free(&o);
    pair_close(&p);
}
END_TEST

/* ---- taps ---- */

/* Tap k of the whole model is the last tap of the model cut to k layers, bit by bit; tap 0 is the
 * embedding; the final norm of the last tap is `hidden`. */
START_TEST(taps_are_layer_inputs)
{
    static const char *const names[] = {"qwen3", "llama3", "qwen2-window", "qwen3-moe", "ds-v2"};
    struct gen g;
    struct mrun r;
    struct err e = {0};
    struct mrow rows[LEN];
    float *whole = NULL, *hidden = NULL, *cut = NULL;
    int n = 0, h = 0;
    for (int k = -1; k < 0 || k <= n; k++) { /* -1: the whole model */
        gen_open(&g, names[_i]);
        if (k < 0)
            n = (int)json_integer_value(json_object_get(g.config, "num_hidden_layers"));
        if (k == 0 || k == n) {
            gen_close(&g);
            continue;
        }
        for (int i = k; k > 0 && i < n; i++) {
            char p[40];
            snprintf(p, sizeof p, "model.layers.%d.", i);
            ck_assert_int_gt(gen_remove(&g, p), 0);
        }
        json_object_set_new(g.config, "num_hidden_layers", json_integer(k > 0 ? k : n));
        json_t *types = json_object_get(g.config, "layer_types");
        while (k > 0 && (int)json_array_size(types) > k)
            json_array_remove(types, (size_t)k);
        gen_write(&g, 1);
        int tap[] = {0, 1, 2, 3};
        ck_assert_int_eq(n, 3);
        struct mrun_conf c = {
            .rows_max = 64, .len_max = 96, .tap = k > 0 ? &k : tap, .n_tap = k > 0 ? 1 : n + 1};
        MUST(mrun_open(&r, g.dir, &c, &e));
        struct rng rng = {5};
        for (int i = 0; i < LEN; i++)
            rows[i] = (struct mrow){
                .slot = 1, .pos = i, .tok = (int32_t)rng_below(&rng, (uint64_t)r.info->vocab)};
        if (k < 0) {
            h = r.info->hidden;
            whole = MEM_ARRAY(float, LEN *(n + 1) * h);
            hidden = MEM_ARRAY(float, LEN *h);
            cut = MEM_ARRAY(float, LEN *h);
            struct mio io = {.taps = whole, .hidden = hidden};
            MUST(mrun_pass(&r, TGT_PREFILL, LEN, rows, &io, &e));
            json_t *ent = gen_tensor(&g, "model.embed_tokens.weight"),
                   *norm = gen_tensor(&g, "model.norm.weight");
            float scale = (float)json_number_value(json_array_get(ent, 4));
            double eps = json_number_value(json_object_get(g.config, "rms_norm_eps"));
            for (int i = 0; i < LEN; i++) {
                const float *row = whole + i * (n + 1) * h, *x = row + n * h;
                double q = 0, want[PLAIN_WIDE];
                for (int j = 0; j < h; j++) {
                    float v = gen_value("model.embed_tokens.weight", (int64_t)rows[i].tok * h + j,
                                        0, scale);
                    ck_assert(row[j] == dtype_bf16_to_f32(dtype_f32_to_bf16(v)));
                    q += (double)x[j] * (double)x[j];
                }
                for (int j = 0; j < h; j++) {
                    float w = gen_value("model.norm.weight", j,
                                        (float)json_number_value(json_array_get(norm, 3)),
                                        (float)json_number_value(json_array_get(norm, 4)));
                    want[j] = (double)dtype_bf16_to_f32(dtype_f32_to_bf16(w)) * (double)x[j] /
                              sqrt(q / h + eps);
                }
                ck_assert(miss(hidden + i * h, want, h) < 1e-6);
            }
        } else {
            MUST(mrun_pass(&r, TGT_PREFILL, LEN, rows, &(struct mio){.taps = cut}, &e));
            for (int i = 0; i < LEN; i++)
                ck_assert_msg(
                    !memcmp(cut + i * h, whole + (i * (n + 1) + k) * h, (size_t)h * sizeof *cut),
                    "%s: tap %d, row %d", names[_i], k, i);
        }
        mrun_close(&r);
        gen_close(&g);
    }
    mem_free(whole);
    mem_free(hidden);
    mem_free(cut);
}
END_TEST

/* ---- a language model drafts ---- */

START_TEST(language_model)
{
    struct gen t, d;
    struct mrun rt, rd, alone;
    struct err e = {0};
    struct mrun_conf c = {.rows_max = 64, .len_max = 96};
    int32_t tok[LEN];
    gen_open(&t, "qwen3");
    gen_open(&d, "llama3");
    gen_write(&t, 1);
    gen_write(&d, 1);
    MUST(mrun_open(&rt, t.dir, &c, &e));
    MUST(mrun_open(&alone, d.dir, &c, &e));
    c.target = &rt;
    MUST(mrun_open(&rd, d.dir, &c, &e));
    ck_assert_int_eq(rd.info->feat, 0);
    ck_assert_int_eq(rd.info->shift, 0);
    ck_assert_int_eq(rd.info->n_tap, 0);
    ck_assert_ptr_null(model_d2t(rd.m));
    int v = rd.info->vocab;
    float *a = MEM_ARRAY(float, LEN *v), *b = MEM_ARRAY(float, LEN *v);
    for (int i = 0; i < LEN; i++)
        tok[i] = (i * 17 + 5) % v;
    MUST(mrun_prefill(&alone, 1, tok, 0, LEN, 64, a, &e));
    MUST(mrun_prefill(&rd, 1, tok, 0, LEN, 64, b, &e));
    ck_assert_mem_eq(a, b, (size_t)(LEN * v) * sizeof *a);
    mem_free(a);
    mem_free(b);
    mrun_close(&rd);
    mrun_close(&alone);
    mrun_close(&rt);
    gen_close(&t);
    gen_close(&d);
}
END_TEST

/* Generated weights: a target that is placed before its next-token layer is opened, and a head from
 * a configuration alone. Values are there, and rows differ. */
START_TEST(generated_weights)
{
    struct mrun t, d;
    struct gen g;
    struct err e = {0};
    struct mrow rows[2];
    head_make(&g, &heads[0]);
    json_object_set_new(g.config, "vocab_size", json_integer(4096));
    json_object_set_new(g.config, "hidden_size", json_integer(192));
    json_object_del(g.config, "target_hidden_size");
    gen_write(&g, 1);
    struct mrun_conf c = {
        .rows_max = 8, .len_max = 64, .model = {.dummy = true, .n_layer = _i ? 4 : 2}};
    MUST(mrun_open(&t, _i ? "configs/models/demo-qwen3" : "configs/models/demo/config.json", &c,
                   &e));
    c.target = &t;
    c.model.n_layer = 0;
    MUST(mrun_open(&d, _i ? g.dir : NULL, &c, &e));
    int f = d.info->feat, v = d.info->vocab;
    ck_assert_int_eq(v, _i ? HEAD_VOCAB : 4096);
    for (int i = 0; _i && i < v; i++)
        ck_assert_int_eq(model_d2t(d.m)[i], i);
    float *feat = MEM_ARRAY(float, 2 * f), *logits = MEM_ARRAY(float, 2 * v);
    for (int i = 0; i < 2 * f; i++)
        feat[i] = (float)((i * 37) % 19 - 9);
    for (int i = 0; i < 2; i++)
        rows[i] = (struct mrow){.slot = 1, .pos = 1 + i, .tok = 40 + i};
    MUST(mrun_pass(&d, TGT_PREFILL, 2, rows, &(struct mio){.feat = feat, .logits = logits}, &e));
    double q = 0;
    for (int i = 0; i < 2 * v; i++)
        q += (double)logits[i] * (double)logits[i];
    ck_assert_msg(isfinite(q) && q > 1, "%g", q);
    ck_assert(far(logits, logits + v, v) > margin);
    mem_free(feat);
    mem_free(logits);
    mrun_close(&d);
    mrun_close(&t);
    gen_close(&g);
}
END_TEST

Suite *suite_model_draft(void)
{
    Suite *s = suite_create("model_draft");
    TCase *t = tcase_create("drafters");
    one_thread(t);
    tcase_add_loop_test(t, head_equals_plain, 0, n_heads);
    tcase_add_loop_test(t, mtp_equals_plain, 0, 2);
    tcase_add_loop_test(t, verify_tree, 0, 3);
    tcase_add_loop_test(t, draft_tree, 0, (int)ARRAY_LEN(bit_pairs));
    tcase_add_loop_test(t, taps_are_layer_inputs, 0, 5);
    tcase_add_test(t, language_model);
    tcase_add_loop_test(t, generated_weights, 0, 2);
    suite_add_tcase(s, t);
    t = tcase_create("bits"); /* on devices of one thread and of more */
    tcase_add_loop_test(t, rows_depend_on_prefix_alone, 0, (int)ARRAY_LEN(bit_pairs));
    suite_add_tcase(s, t);
    return s;
}
