/* Contract cases of sampling and scoring, and the suite "sample": order rules one by one, keyed
 * noise against the distribution it must have, determinism. The oracle sorts everything and adds in
 * double; the noise itself is the one from fmath.h, checked in test_fmath.c. */
#include "test/ops/util.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "kernels/cpu/fmath.h"

/* M rows, each its own request in slot 1 + row % n_slot. */
struct bed {
    int m, v, n_slot;
    struct op_sample a;
    float *logits;
    int32_t *ints;
};

static struct slot_params neutral(void)
{
    return (struct slot_params){.top_p = 1,
                                .repetition = 1,
                                .n_logprobs = -1,
                                .n_prompt = 4,
                                .max_out = 1 << 20,
                                .len_max = 1 << 20};
}

static struct bed bed_new(int m, int v, int n_slot)
{
    struct bed b = {.m = m, .v = v, .n_slot = n_slot};
    int s = n_slot + 1;
    b.logits = MEM_ARRAY(float, m *v);
    b.ints = MEM_ARRAY(int32_t, 5 * m + 2 * s);
    b.a = (struct op_sample){.logits = b.logits,
                             .ldl = v,
                             .m = m,
                             .vocab = v,
                             .out = MEM_ARRAY(struct sample_out, m),
                             .work = MEM_ARRAY(float, m * 4 * v)};
    b.a.rows = (struct row_arrays){.tok = b.ints,
                                   .slot = b.ints + m,
                                   .pos = b.ints + 2 * m,
                                   .req = b.ints + 3 * m,
                                   .parent = b.ints + 4 * m};
    b.a.s = (struct slot_arrays){.n_out = b.ints + 5 * m,
                                 .len = b.ints + 5 * m + s,
                                 .seen = MEM_ARRAY(uint32_t, s * ((v + 31) / 32)),
                                 .count = MEM_ARRAY(uint16_t, s * v),
                                 .params = MEM_ARRAY(struct slot_params, s),
                                 .n_slot = s,
                                 .len_max = 1 << 20,
                                 .vocab = v};
    for (int i = 1; i < s; i++) {
        b.a.s.params[i] = neutral();
        b.a.s.n_out[i] = 2;
    }
    for (int i = 0; i < m; i++) {
        b.a.rows.slot[i] = 1 + i % n_slot;
        b.a.rows.pos[i] = 5; /* the root of prompt 4 + output 2 */
        b.a.rows.req[i] = i;
    }
    return b;
}

static void bed_free(struct bed *b)
{
    mem_free(b->logits);
    mem_free(b->ints);
    mem_free(b->a.out);
    mem_free(b->a.work);
    mem_free(b->a.s.seen);
    mem_free(b->a.s.count);
    mem_free(b->a.s.params);
}

static void bed_seen(struct bed *b, int slot, int tok, int count)
{
    b->a.s.seen[slot * ((b->v + 31) / 32) + tok / 32] |= 1u << (tok & 31);
    b->a.s.count[slot * b->v + tok] = (uint16_t)count;
}

static void bed_run(const struct t_devs *t, struct bed *b)
{
    ck_assert_int_eq(dev_cpu.ops->sample(t->d[t->n - 1], &b->a), OK);
}

/* ---- oracle ---- */

struct ent {
    float v;
    int id;
};

static int by_rank(const void *pa, const void *pb)
{
    const struct ent *a = pa, *b = pb;
    return a->v > b->v ? -1 : a->v < b->v ? 1 : a->id - b->id;
}

/* Values after temperature, sorted, and how many are kept. */
static int oracle_kept(const struct bed *b, int m, struct ent *e)
{
    const struct slot_arrays *s = &b->a.s;
    int slot = b->a.rows.slot[m], v = b->v;
    const struct slot_params *p = &s->params[slot];
    const float *l = b->logits + (int64_t)m * v;
    for (int i = 0; i < v; i++) {
        float z = l[i];
        bool seen = s->seen[slot * ((v + 31) / 32) + i / 32] >> (i & 31) & 1;
        int count = s->count[slot * v + i];
        if (seen)
            z = z > 0 ? z / p->repetition : z * p->repetition;
        if (count)
            z = z - p->presence - (float)count * p->frequency;
        for (int k = 0; k < p->n_bias; k++)
            if (p->bias_id[k] == i)
                z += p->bias[k];
        for (int k = 0; k < p->n_stop; k++)
            if (p->stop[k] == i && b->a.rows.pos[m] + 1 - p->n_prompt < p->min_out)
                z = -INFINITY;
        e[i] = (struct ent){p->temperature < 1e-5f ? z : z / p->temperature, i};
    }
    qsort(e, (size_t)v, sizeof *e, by_rank);
    if (p->temperature < 1e-5f)
        return 1;
    int n = p->top_k > 0 && p->top_k < v ? p->top_k : v;
    double sum = 0, run = 0;
    for (int i = 0; i < n; i++)
        sum += exp((double)e[i].v - (double)e[0].v);
    int keep = 0;
    while (keep < n) {
        run += exp((double)e[keep++].v - (double)e[0].v);
        if (p->top_p < 1 && run >= (double)p->top_p * sum)
            break;
    }
    while (keep > 1 && exp((double)e[keep - 1].v - (double)e[0].v) < (double)p->min_p)
        keep--;
    return keep;
}

static int oracle_token(const struct bed *b, int m, struct ent *e)
{
    int n = oracle_kept(b, m, e), best = -1;
    const struct slot_params *p = &b->a.s.params[b->a.rows.slot[m]];
    if (p->temperature < 1e-5f)
        return e[0].id;
    float top = 0;
    for (int i = 0; i < n; i++) {
        float v = e[i].v + fm_noise(p->seed, b->a.rows.pos[m] + 1, e[i].id);
        if (best < 0 || v > top || (v == top && e[i].id < best)) {
            best = e[i].id;
            top = v;
        }
    }
    return best;
}

static struct slot_params random_params(struct rng *r, int v)
{
    struct slot_params p = neutral();
    p.seed = rng_u64(r);
    p.temperature = rng_below(r, 5) ? 0.3f + (float)rng_unit(r) * 1.5f : 0;
    if (rng_below(r, 2))
        p.top_k = 1 + (int)rng_below(r, (uint64_t)v + 3);
    if (rng_below(r, 2))
        p.top_p = 0.05f + 0.94f * (float)rng_unit(r);
    if (rng_below(r, 3) == 0)
        p.min_p = 0.3f * (float)rng_unit(r);
    if (rng_below(r, 2)) {
        p.repetition = 0.8f + (float)rng_unit(r);
        p.presence = (float)rng_unit(r) * 2 - 0.5f;
        p.frequency = (float)rng_unit(r);
    }
    p.n_bias = (int32_t)rng_below(r, 3);
    p.n_stop = (int32_t)rng_below(r, 3);
    for (int i = 0; i < 2; i++) {
        p.bias_id[i] = i * 3 + 1;
        p.bias[i] = (float)rng_normal(r) * 4;
        p.stop[i] = (int32_t)rng_below(r, (uint64_t)v);
    }
    p.min_out = (int32_t)rng_below(r, 5);
    return p;
}

void case_sample(const struct t_devs *t, struct rng *r)
{
    static const int vs[] = {2, 17, 64, 300, 4999};
    for (int k = 0; k < 5; k++)
        for (int grid = 0; grid < 2; grid++) {
            int v = vs[k];
            enum { M = 60 };
            struct bed b = bed_new(M, v, M);
            struct ent *e = MEM_ARRAY(struct ent, v);
            for (int m = 0; m < M; m++) {
                struct slot_params *p = &b.a.s.params[1 + m];
                *p = random_params(r, v);
                b.a.rows.pos[m] = (int)rng_below(r, 1000);
                p->n_prompt = b.a.rows.pos[m] + 1 - (int)rng_below(r, 6);
                b.a.s.n_out[1 + m] = b.a.rows.pos[m] + 1 - p->n_prompt;
                p->n_logprobs = (int32_t)rng_below(r, LIM_LOGPROBS + 2) - 1;
                for (int i = 0; i < v / 2; i++)
                    bed_seen(&b, 1 + m, (int)rng_below(r, (uint64_t)v), (int)rng_below(r, 3));
            }
            for (int i = 0; i < M * v; i++) {
                float x = (float)rng_normal(r) * 3;
                b.logits[i] = grid ? roundf(x) : x; /* a grid has many ties */
            }
            struct t_out o = {b.a.out, sizeof(struct sample_out) * M};
            t_everywhere(t, "sample", t_call_sample, &b.a, &o, 1);
            for (int m = 0; m < M; m++)
                ck_assert_msg(b.a.out[m].token == oracle_token(&b, m, e),
                              "V %d grid %d row %d: %d, want %d", v, grid, m, b.a.out[m].token,
                              oracle_token(&b, m, e));
            mem_free(e);
            bed_free(&b);
        }
}

void case_score(const struct t_devs *t, struct rng *r)
{
    enum { M = 9, V = 777 };
    float *l = t_randf(r, M * V, 4);
    l[V + 5] = NAN;
    l[2 * V] = l[2 * V + 1] = l[2 * V + 400] = 50; /* ties */
    int32_t tok[M] = {0, 5, V - 1, -1, 7, 8, 9, 10, 11}, top[M] = {0, 5, 20, 3, 1, 20, 99, 2, 0};
    struct sample_out out[M];
    memset(out, 0, sizeof out);
    struct op_score a = {l, V, tok, top, out, M, V};
    struct t_out o = {out, sizeof out};
    t_everywhere(t, "score", t_call_score, &a, &o, 1);
    for (int m = 0; m < M; m++) {
        if (tok[m] < 0) {
            ck_assert(out[m].token == -1 && isnan(out[m].logprob) && out[m].n_top == 0);
            continue;
        }
        struct ent e[V];
        double sum = 0, max = -INFINITY;
        for (int i = 0; i < V; i++) {
            e[i] = (struct ent){isnan(l[m * V + i]) ? -INFINITY : l[m * V + i], i};
            max = (double)e[i].v > max ? (double)e[i].v : max;
        }
        for (int i = 0; i < V; i++)
            sum += exp((double)e[i].v - max);
        double want = (double)e[tok[m]].v - max - log(sum);
        t_close_to("score", &out[m].logprob, &want, 1, TOL_LOGPROB);
        ck_assert_int_eq(out[m].bad, m == 1);
        qsort(e, V, sizeof *e, by_rank);
        ck_assert_int_eq(out[m].n_top, top[m] < LIM_LOGPROBS ? top[m] : LIM_LOGPROBS);
        for (int i = 0; i < out[m].n_top; i++) {
            ck_assert_int_eq(out[m].top_id[i], e[i].id);
            want = (double)e[i].v - max - log(sum);
            t_close_to("score, alternatives", &out[m].top_logprob[i], &want, 1, TOL_LOGPROB);
        }
    }
    mem_free(l);
}

/* ---- the suite ---- */

static struct t_devs g_devs;

static void setup(void)
{
    t_open(&g_devs);
}

static void teardown(void)
{
    t_close(&g_devs);
}

/* Greedy token of one row of `v` logits under parameters. */
static int greedy(struct bed *b)
{
    bed_run(&g_devs, b);
    return b->a.out[0].token;
}

START_TEST(order_of_penalties)
{
    struct bed b = bed_new(1, 6, 1);
    struct slot_params *p = &b.a.s.params[1];
    const float l[6] = {2.0f, 1.9f, -0.5f, 1.0f, 0, 0};
    memcpy(b.logits, l, sizeof l);
    ck_assert_int_eq(greedy(&b), 0);
    bed_seen(&b, 1, 0, 0); /* in the prompt only */
    p->presence = p->frequency = 5;
    ck_assert_int_eq(greedy(&b), 0); /* presence and frequency look at the output alone */
    p->repetition = 2;
    ck_assert_int_eq(greedy(&b), 1); /* 2 / 2 < 1.9: repetition looks at the prompt too */
    p->repetition = 1;
    bed_seen(&b, 1, 0, 1);
    p->presence = 0.2f;
    p->frequency = 0;
    ck_assert_int_eq(greedy(&b), 1);
    p->presence = 0;
    p->frequency = 0.06f;
    ck_assert_int_eq(greedy(&b), 0);
    bed_seen(&b, 1, 0, 2); /* twice: 0.12 */
    ck_assert_int_eq(greedy(&b), 1);
    /* repetition first, then presence: (2/2) - 0.5 = 0.5, not (2 - 0.5) / 2 = 0.75 */
    bed_seen(&b, 1, 0, 1);
    p->frequency = 0;
    p->repetition = 2;
    p->presence = 0.5f;
    const float m[6] = {2.0f, 0.6f, -9, -9, -9, -9};
    memcpy(b.logits, m, sizeof m);
    ck_assert_int_eq(greedy(&b), 1);
    /* a negative logit is multiplied */
    const float n[6] = {-1.0f, -1.5f, -9, -9, -9, -9};
    memcpy(b.logits, n, sizeof n);
    p->presence = 0;
    ck_assert_int_eq(greedy(&b), 1);
    bed_free(&b);
}
END_TEST

START_TEST(bias_and_mask)
{
    struct bed b = bed_new(1, 6, 1);
    struct slot_params *p = &b.a.s.params[1];
    const float l[6] = {2.0f, 1.9f, -0.5f, 1.0f, 0, 0};
    memcpy(b.logits, l, sizeof l);
    p->n_bias = 3;
    p->bias_id[0] = 4;
    p->bias[0] = 1.5f;
    p->bias_id[1] = 4; /* the same id twice adds up */
    p->bias[1] = 1;
    p->bias_id[2] = 1000; /* outside: ignored */
    p->bias[2] = 100;
    ck_assert_int_eq(greedy(&b), 4);
    /* bias is added after the penalties: 2.5 - 0 wins although 4 was seen */
    bed_seen(&b, 1, 4, 3);
    p->repetition = 10;
    ck_assert_int_eq(greedy(&b), 4);
    /* the mask wins over the bias, until min_out outputs exist (n_out is 2) */
    p->bias[0] = 100;
    p->n_stop = 1;
    p->stop[0] = 4;
    p->min_out = 3;
    ck_assert_int_eq(greedy(&b), 0);
    p->min_out = 2;
    ck_assert_int_eq(greedy(&b), 4);
    bed_free(&b);
}
END_TEST

/* Rows of one verify: row j sees the drafts before it in penalties and in min_out. */
START_TEST(drafts_count)
{
    struct bed b = bed_new(4, 8, 1);
    struct slot_params *p = &b.a.s.params[1];
    for (int j = 0; j < 4; j++) {
        b.a.rows.pos[j] = 5 + j;          /* prompt 4, outputs 2: the root is at 5 */
        b.a.rows.tok[j] = j == 0 ? 6 : j; /* drafts 1, 2, 3 */
        b.a.rows.parent[j] = j - 1;
        for (int i = 0; i < 8; i++)
            b.logits[j * 8 + i] = (float)(8 - (i == 7 ? 20 : i)); /* 0 best, then 1, 2, 3, … */
    }
    b.a.rows.tok[1] = 0; /* draft 0, then 1, then 2 */
    b.a.rows.tok[2] = 1;
    b.a.rows.tok[3] = 2;
    p->presence = 100;
    bed_run(&g_devs, &b);
    for (int j = 0; j < 4; j++)
        ck_assert_int_eq(b.a.out[j].token, j); /* each draft is penalised in the rows after it */
    b.a.rows.tok[2] = 0;                       /* twice the same draft: frequency counts it twice */
    p->presence = 0;
    p->frequency = 0.4f;
    bed_run(&g_devs, &b);
    ck_assert_int_eq(b.a.out[1].token, 0); /* 8 - 0.4 > 7 */
    ck_assert_int_eq(b.a.out[2].token, 0); /* 8 - 0.8 > 7 */
    p->frequency = 0.6f;
    bed_run(&g_devs, &b);
    ck_assert_int_eq(b.a.out[1].token, 0); /* 8 - 0.6 > 7 */
    ck_assert_int_eq(b.a.out[2].token, 1); /* 8 - 1.2 < 7 */
    p->frequency = 0;
    p->n_stop = 1; /* outputs before the rows: 2, 3, 4, 5 */
    p->stop[0] = 0;
    p->min_out = 4;
    bed_run(&g_devs, &b);
    ck_assert_int_eq(b.a.out[0].token, 1);
    ck_assert_int_eq(b.a.out[1].token, 1);
    ck_assert_int_eq(b.a.out[2].token, 0);
    ck_assert_int_eq(b.a.out[3].token, 0);
    /* the same rows as a prefill (all tokens known): no drafts, all counted by rows_note */
    p->min_out = 0;
    p->presence = 100;
    b.a.s.n_out[1] = 5;
    bed_run(&g_devs, &b);
    for (int j = 0; j < 4; j++)
        ck_assert_int_eq(b.a.out[j].token, 0);
    bed_free(&b);
}
END_TEST

/* Rows of a tree: penalties follow the row's own path, not the rows beside it. */
START_TEST(tree_drafts_count)
{
    /* root; 0 and 1 below it; 1 below the 0, 0 below the 1; then 2 below the last */
    static const int parent[] = {-1, 0, 0, 1, 2, 4}, tok[] = {6, 0, 1, 1, 0, 2};
    static const int depth[] = {0, 1, 1, 2, 2, 3}, want[] = {0, 1, 0, 2, 2, 3};
    struct bed b = bed_new(6, 8, 1);
    for (int j = 0; j < 6; j++) {
        b.a.rows.pos[j] = 5 + depth[j];
        b.a.rows.tok[j] = tok[j];
        b.a.rows.parent[j] = parent[j];
        for (int i = 0; i < 8; i++)
            b.logits[j * 8 + i] = (float)(8 - i);
    }
    b.a.s.params[1].presence = 100;
    bed_run(&g_devs, &b);
    for (int j = 0; j < 6; j++)
        ck_assert_int_eq(b.a.out[j].token, want[j]);
    bed_free(&b);
}
END_TEST

/* Random trees: each row samples as a row of its own whose path was emitted before. */
START_TEST(tree_rows_alone)
{
    enum { N = 64, V = 40 };
    struct rng r = {31};
    for (int round = 0; round < 20; round++) {
        struct bed b = bed_new(N, V, 1), one = bed_new(1, V, 1);
        struct slot_params *p = &b.a.s.params[1];
        *p = random_params(&r, V);
        p->repetition = 1.3f;
        p->frequency = 0.4f;
        p->n_prompt = 3;
        p->min_out = 6;
        b.a.s.n_out[1] = 3;
        for (int i = 0; i < N * V; i++)
            b.logits[i] = (float)rng_normal(&r) * 2;
        for (int i = 0; i < 10; i++)
            bed_seen(&b, 1, (int)rng_below(&r, V), (int)rng_below(&r, 3));
        for (int j = 0; j < N; j++) {
            b.a.rows.parent[j] = j ? (int)rng_below(&r, (uint64_t)j) : -1;
            b.a.rows.pos[j] = j ? b.a.rows.pos[b.a.rows.parent[j]] + 1 : 5;
            b.a.rows.tok[j] = (int)rng_below(&r, V);
        }
        bed_run(&g_devs, &b);
        for (int j = 0; j < N; j++) {
            memcpy(one.logits, b.logits + j * V, V * sizeof(float));
            memcpy(one.a.s.seen, b.a.s.seen, 2 * ((V + 31) / 32) * sizeof(uint32_t));
            memcpy(one.a.s.count, b.a.s.count, 2 * V * sizeof(uint16_t));
            one.a.s.params[1] = *p;
            one.a.rows.pos[0] = b.a.rows.pos[j];
            one.a.s.n_out[1] = b.a.rows.pos[j] + 1 - p->n_prompt;
            for (int x = j; x > 0; x = b.a.rows.parent[x]) {
                int tok = b.a.rows.tok[x];
                bed_seen(&one, 1, tok, one.a.s.count[V + tok] + 1);
            }
            ck_assert_int_eq(greedy(&one), b.a.out[j].token);
        }
        bed_free(&b);
        bed_free(&one);
    }
}
END_TEST

START_TEST(broken_logits)
{
    struct bed b = bed_new(1, 100, 1);
    for (int temp = 0; temp < 2; temp++) {
        struct slot_params *p = &b.a.s.params[1];
        p->temperature = (float)temp * 0.7f;
        p->n_logprobs = 5;
        for (int i = 0; i < 100; i++)
            b.logits[i] = NAN;
        int tok = greedy(&b);
        ck_assert(tok >= 0 && tok < 100 && b.a.out[0].bad == 1);
        b.logits[63] = -50;
        ck_assert_int_eq(greedy(&b), 63); /* the only number */
        ck_assert_int_eq(b.a.out[0].bad, 1);
        ck_assert(fabsf(b.a.out[0].logprob) < 1e-6f && b.a.out[0].top_id[0] == 63);
        for (int i = 0; i < 100; i++)
            b.logits[i] = -INFINITY;
        tok = greedy(&b);
        ck_assert(tok >= 0 && tok < 100 && b.a.out[0].bad == 0);
        b.logits[80] = b.logits[81] = INFINITY;
        ck_assert_int_eq(greedy(&b), 80);
        p->top_k = 1;
        p->top_p = 0.5f;
        p->min_p = 0.5f;
        b.logits[3] = NAN;
        ck_assert_int_eq(greedy(&b), 80);
        p->top_k = 0;
        p->top_p = 1;
        p->min_p = 0;
    }
    bed_free(&b);
}
END_TEST

START_TEST(padding_and_index)
{
    struct bed b = bed_new(5, 10, 5);
    for (int i = 0; i < 50; i++)
        b.logits[i] = (float)(i % 10 == i / 10 ? 3 : 0);
    b.a.rows.slot[1] = 0;
    b.a.rows.tok[2] = -1;
    bed_run(&g_devs, &b);
    static const int plain[] = {0, -1, -1, 3, 4};
    for (int i = 0; i < 5; i++)
        ck_assert_int_eq(b.a.out[i].token, plain[i]);
    ck_assert(isnan(b.a.out[1].logprob) && b.a.out[1].n_top == 0 && isnan(b.a.out[0].logprob));
    int32_t idx[5] = {4, -1, 3, 1, 0}; /* logit row m belongs to row idx[m] */
    b.a.idx = idx;
    b.a.s.params[5].n_bias = 1; /* row 4, slot 5 */
    b.a.s.params[5].bias_id[0] = 9;
    b.a.s.params[5].bias[0] = 50;
    bed_run(&g_devs, &b);
    static const int moved[] = {9, -1, 2, -1, 4};
    for (int i = 0; i < 5; i++)
        ck_assert_int_eq(b.a.out[i].token, moved[i]);
    bed_free(&b);
}
END_TEST

/* Log probabilities are of the raw logits, whatever was done to them for sampling. */
START_TEST(raw_logprobs)
{
    struct bed b = bed_new(1, 50, 1);
    struct rng r = {8};
    double sum = 0;
    for (int i = 0; i < 50; i++) {
        b.logits[i] = (float)rng_normal(&r);
        sum += exp((double)b.logits[i]);
    }
    struct slot_params *p = &b.a.s.params[1];
    p->n_logprobs = 3;
    p->temperature = 0.2f;
    p->top_k = 1;
    p->n_bias = 1;
    p->bias_id[0] = 17;
    p->bias[0] = 90;
    ck_assert_int_eq(greedy(&b), 17);
    double want = (double)b.logits[17] - log(sum);
    t_close_to("logprob", &b.a.out[0].logprob, &want, 1, TOL_LOGPROB);
    ck_assert_int_eq(b.a.out[0].n_top, 3);
    for (int k = 0; k < 3; k++) {
        int better = 0;
        for (int i = 0; i < 50; i++)
            better += b.logits[i] > b.logits[b.a.out[0].top_id[k]];
        ck_assert_int_eq(better, k);
    }
    p->n_logprobs = 0;
    greedy(&b);
    ck_assert(b.a.out[0].n_top == 0 && !isnan(b.a.out[0].logprob));
    bed_free(&b);
}
END_TEST

/* The tokens that ever come out over many positions. */
static uint64_t support(const float *l, int v, struct slot_params sp)
{
    enum { M = 4000 };
    struct bed b = bed_new(M, v, 1);
    uint64_t got = 0;
    b.a.s.params[1] = sp;
    b.a.s.n_out[1] = 1 << 19;
    for (int m = 0; m < M; m++) {
        memcpy(b.logits + m * v, l, (size_t)v * sizeof *l);
        b.a.rows.pos[m] = 10 + m;
    }
    bed_run(&g_devs, &b);
    for (int m = 0; m < M; m++)
        got |= 1ull << b.a.out[m].token;
    bed_free(&b);
    return got;
}

START_TEST(kept_sets)
{
    struct slot_params p = neutral();
    p.temperature = 1;
    float l[6], q[6] = {0.1f, 0.3f, 0.2f, 0.2f, 0.15f, 0.05f};
    for (int i = 0; i < 6; i++)
        l[i] = logf(q[i]);
    ck_assert_uint_eq(support(l, 6, p), 0x3f);
    p.top_k = 2; /* 1, then the tie of 2 and 3 goes to 2 */
    l[3] = l[2];
    ck_assert_uint_eq(support(l, 6, p), 1u << 1 | 1u << 2);
    p.top_k = 1;
    ck_assert_uint_eq(support(l, 6, p), 1u << 1);
    p.top_k = 100;
    ck_assert_uint_eq(support(l, 6, p), 0x3f);
    p.top_k = 0;
    p.top_p = 0.29f;
    ck_assert_uint_eq(support(l, 6, p), 1u << 1);
    p.top_p = 0.31f; /* the crossing token is kept */
    ck_assert_uint_eq(support(l, 6, p), 1u << 1 | 1u << 2);
    p.top_p = 0.72f;
    ck_assert_uint_eq(support(l, 6, p), 0x1e);
    p.top_p = 0.96f;
    ck_assert_uint_eq(support(l, 6, p), 0x3f);
    /* top-p is taken of what top-k left: of {.3, .2, .2} half is .35, so two are enough */
    p.top_k = 3;
    p.top_p = 0.5f;
    ck_assert_uint_eq(support(l, 6, p), 1u << 1 | 1u << 2);
    p.top_k = 0; /* of everything it is .5: .3 + .2 crosses only just below .5 */
    p.top_p = 0.51f;
    ck_assert_uint_eq(support(l, 6, p), 0xe);
    p.top_p = 1;
    p.min_p = 0.5f; /* at least .15 */
    l[4] = logf(0.151f);
    ck_assert_uint_eq(support(l, 6, p), 0x1e);
    p.min_p = 0.51f;
    ck_assert_uint_eq(support(l, 6, p), 0xe);
    p.min_p = 1;
    ck_assert_uint_eq(support(l, 6, p), 1u << 1);
    /* temperature comes before min-p: at 2 the ratios become square roots */
    p.min_p = 0.51f;
    p.temperature = 2;
    ck_assert_uint_eq(support(l, 6, p), 0x1f);
}
END_TEST

/* Frequencies over positions against the softmax of the kept set. */
static void chi2(struct slot_params sp, int v, struct rng *r, bool over_seeds)
{
    enum { M = 2000, CALLS = 60 };
    struct bed b = bed_new(M, v, over_seeds ? M : 1);
    struct ent *e = MEM_ARRAY(struct ent, v);
    long *got = MEM_ARRAY(long, v);
    float *l = t_randf(r, (size_t)v, 1.5);
    for (int m = 0; m < M; m++)
        memcpy(b.logits + m * v, l, (size_t)v * sizeof *l);
    for (int c = 0; c < CALLS; c++) {
        for (int m = 0; m < M; m++) {
            struct slot_params *p = &b.a.s.params[b.a.rows.slot[m]];
            *p = sp;
            p->seed = over_seeds ? rng_u64(r) : 12345;
            b.a.s.n_out[b.a.rows.slot[m]] = 1 << 19;
            b.a.rows.pos[m] = over_seeds ? 100 : 10 + c * M + m;
        }
        bed_run(&g_devs, &b);
        for (int m = 0; m < M; m++)
            got[b.a.out[m].token]++;
    }
    int n = oracle_kept(&b, 0, e);
    double sum = 0, x = 0, total = (double)M * CALLS;
    long seen = 0;
    for (int i = 0; i < n; i++)
        sum += exp((double)e[i].v);
    for (int i = 0; i < n; i++) {
        double want = total * exp((double)e[i].v) / sum, d = (double)got[e[i].id] - want;
        x += d * d / want;
        seen += got[e[i].id];
    }
    ck_assert_int_eq(seen, (long)total); /* nothing outside the kept set */
    double df = n - 1;
    ck_assert_msg(x < df + 5 * sqrt(2 * df) + 10, "chi2 %g with %g degrees of freedom", x, df);
    mem_free(e);
    mem_free(got);
    mem_free(l);
    bed_free(&b);
}

START_TEST(distribution)
{
    struct rng r = {21};
    struct slot_params p = neutral();
    p.temperature = 1;
    chi2(p, 30, &r, false);
    chi2(p, 30, &r, true);
    p.temperature = 0.7f;
    chi2(p, 70, &r, false);
    p.top_k = 8;
    chi2(p, 70, &r, false);
    p.top_k = 0;
    p.top_p = 0.8f;
    chi2(p, 70, &r, false);
    chi2(p, 70, &r, true);
    p.top_p = 1;
    p.min_p = 0.1f;
    chi2(p, 70, &r, false);
    p.top_k = 20;
    p.top_p = 0.9f;
    chi2(p, 70, &r, false);
}
END_TEST

/* A token depends on logits, seed and position alone. */
START_TEST(keyed)
{
    enum { M = 64, V = 1000 };
    struct bed b = bed_new(M, V, M), one = bed_new(1, V, 1);
    struct rng r = {5};
    int differ_pos = 0, differ_seed = 0;
    for (int m = 0; m < M; m++) {
        struct slot_params *p = &b.a.s.params[1 + m];
        p->temperature = 1;
        p->seed = rng_u64(&r);
        b.a.rows.pos[m] = (int)rng_below(&r, 5000) + 10;
        p->n_prompt = b.a.rows.pos[m] - 1;
        b.a.s.n_out[1 + m] = 2;
    }
    for (int i = 0; i < M * V; i++)
        b.logits[i] = (float)rng_normal(&r);
    bed_run(&g_devs, &b);
    for (int m = 0; m < M; m++) {
        memcpy(one.logits, b.logits + m * V, V * sizeof(float));
        one.a.s.params[1] = b.a.s.params[1 + m];
        one.a.rows.pos[0] = b.a.rows.pos[m];
        ck_assert_int_eq(greedy(&one), b.a.out[m].token); /* other row, slot and neighbours */
        one.a.rows.pos[0]++;
        one.a.s.params[1].n_prompt++;
        differ_pos += greedy(&one) != b.a.out[m].token;
        one.a.rows.pos[0]--;
        one.a.s.params[1].n_prompt--;
        one.a.s.params[1].seed ^= 1ull << 40; /* the upper half of the seed matters */
        differ_seed += greedy(&one) != b.a.out[m].token;
    }
    ck_assert_int_gt(differ_pos, M / 2);
    ck_assert_int_gt(differ_seed, M / 2);
    bed_free(&b);
    bed_free(&one);
}
END_TEST

/* Logits far apart: most of the vocabulary is skipped by the noise bound; the result is that of the
 * full scan. */
START_TEST(pruning)
{
    enum { M = 40, V = 20000 };
    struct bed b = bed_new(M, V, 1);
    struct ent *e = MEM_ARRAY(struct ent, V);
    struct rng r = {9};
    b.a.s.params[1].temperature = 0.5f;
    b.a.s.n_out[1] = 1 << 19;
    for (int m = 0; m < M; m++) {
        b.a.rows.pos[m] = 10 + m;
        for (int i = 0; i < V; i++)
            b.logits[m * V + i] = (float)rng_normal(&r) * (float)(1 + m % 8);
    }
    bed_run(&g_devs, &b);
    for (int m = 0; m < M; m++)
        ck_assert_int_eq(b.a.out[m].token, oracle_token(&b, m, e));
    mem_free(e);
    bed_free(&b);
}
END_TEST

Suite *suite_sample(void);
Suite *suite_sample(void)
{
    Suite *s = suite_create("sample");
    TCase *t = tcase_create("rules");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_set_timeout(t, 60);
    tcase_add_test(t, order_of_penalties);
    tcase_add_test(t, bias_and_mask);
    tcase_add_test(t, drafts_count);
    tcase_add_test(t, tree_drafts_count);
    tcase_add_test(t, tree_rows_alone);
    tcase_add_test(t, broken_logits);
    tcase_add_test(t, padding_and_index);
    tcase_add_test(t, raw_logprobs);
    tcase_add_test(t, kept_sets);
    suite_add_tcase(s, t);
    t = tcase_create("noise");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_set_timeout(t, 120);
    tcase_add_test(t, distribution);
    tcase_add_test(t, keyed);
    tcase_add_test(t, pruning);
    suite_add_tcase(s, t);
    return s;
}
