/* Goal: every operation of the CUDA device computes what the CPU device computes. Method: random
 * inputs on both, the same operation, results compared: integers and noise-driven choices must be
 * equal, floats within a bound stated at the case (products round activations to bf16: relative
 * error 2^-9 a factor, averaged over K). Outputs start as NaN, so an element that was not written
 * shows. */
#include <stdio.h>
#include <stdlib.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "test/gpu/twin.h"

#define P(w) (w)->p[side]
#define BOTH(t, op, make)                                                                          \
    do {                                                                                           \
        for (int side = 0; side < 2; side++) {                                                     \
            struct op_##op a = make;                                                               \
            const struct dev_ops *o = side ? &dev_cuda : &dev_cpu;                                 \
            ck_assert_int_eq(o->ops->op(side ? (t)->gpu : (t)->cpu, &a), OK);                      \
        }                                                                                          \
    } while (0)
#define SET(...) __VA_ARGS__

START_TEST(elementwise)
{
    struct twins t;
    twins_open(&t);
    enum { R = 7, D = 1000, H = 6, HD = 64, W = 384 };
    int32_t tok[R] = {3, 0, -1, 99, 100, 5, 50};
    struct weight e = twin_weight(&t, DT_BF16, 100, D, 1);
    struct weight w = twin_weight(&t, DT_F32, 1, D, 1), wh = twin_weight(&t, DT_BF16, 1, HD, 1);
    struct twin *ids = twin_ints(&t, tok, R), *out = twin_nans(&t, R * D),
                *x = twin_rand(&t, R * D, 2);
    BOTH(&t, embed, SET({.out = P(out), .tok = P(ids), .e = e, .rows = R}));
    twin_same(&t, out, R * D * sizeof(float), "embed");
    BOTH(&t, rmsnorm,
         SET({.out = P(out),
              .x = P(x),
              .w = w,
              .rows = R,
              .dim = D,
              .ldx = D,
              .ldo = D,
              .n_group = 1,
              .eps = 1e-6f}));
    twin_near(&t, out, R * D, 1e-5f, 1e-5f, "rmsnorm");
    struct twin *q = twin_rand(&t, R * H * HD, 1), *qn = twin_nans(&t, R * H * HD);
    BOTH(&t, rmsnorm,
         SET({.out = P(qn),
              .x = P(q),
              .w = wh,
              .rows = R,
              .dim = HD,
              .ldx = H * HD,
              .ldo = H * HD,
              .n_group = H,
              .group_stride = HD,
              .group_stride_out = HD,
              .eps = 1e-5f}));
    twin_near(&t, qn, R * H * HD, 1e-5f, 1e-5f, "head norm");
    int32_t pos[R] = {0, 1, 2, 30, 63, 7, 9};
    struct twin *p = twin_ints(&t, pos, R), *cs = twin_rand(&t, 64 * HD / 2, 1),
                *sn = twin_rand(&t, 64 * HD / 2, 1);
    for (int i = 0; i < 2; i++) {
        BOTH(&t, rope,
             SET({.x = P(q),
                  .pos = P(p),
                  .cos = P(cs),
                  .sin = P(sn),
                  .rows = R,
                  .heads = H,
                  .dim = HD,
                  .pos_max = 64,
                  .ldx = H * HD,
                  .stride = HD,
                  .interleaved = i == 1}));
        twin_near(&t, q, R * H * HD, 1e-4f, 1e-5f, "rope");
    }
    int32_t ws[R] = {4, -1, 0, 9, 2, 8, -1};
    struct twin *cache = twin_nans(&t, 10 * W), *src = twin_rand(&t, R * W, 1),
                *wsl = twin_ints(&t, ws, R);
    BOTH(&t, kv_write,
         SET({.cache = P(cache),
              .dt = DT_F32,
              .x = P(src),
              .wslot = P(wsl),
              .rows = R,
              .width = W,
              .ldx = W}));
    twin_same(&t, cache, 10 * W * sizeof(float), "kv_write");
    struct twin *g = twin_rand(&t, R * D, 3), *u = twin_rand(&t, R * D, 1),
                *so = twin_nans(&t, R * D);
    BOTH(&t, silu_mul,
         SET({.out = P(so),
              .gate = P(g),
              .up = P(u),
              .rows = R,
              .dim = D,
              .ldg = D,
              .ldu = D,
              .ldo = D}));
    twin_near(&t, so, R * D, 1e-5f, 1e-5f, "silu_mul");
    BOTH(&t, add, SET({.x = P(g), .y = P(u), .rows = R, .dim = D}));
    twin_same(&t, g, R * D * sizeof(float), "add");
    int32_t idx[4] = {6, -1, 0, 3};
    struct twin *ix = twin_ints(&t, idx, 4), *go = twin_nans(&t, 4 * D);
    BOTH(&t, gather, SET({.out = P(go), .x = P(x), .idx = P(ix), .rows = 4, .dim = D}));
    twin_same(&t, go, 4 * D * sizeof(float), "gather");
    twins_close(&t);
}
END_TEST

START_TEST(products)
{
    static const struct {
        enum dtype dt;
        int rows, n, k;
    } cases[] = {
        {DT_BF16, 1, 96, 64},     {DT_BF16, 1, 4096, 1024},  {DT_BF16, 5, 1000, 512},
        {DT_BF16, 16, 777, 256},  {DT_BF16, 17, 640, 96},    {DT_BF16, 33, 130, 320},
        {DT_BF16, 64, 4096, 512}, {DT_BF16, 65, 512, 256},   {DT_BF16, 300, 1536, 576},
        {DT_BF16, 3, 50, 40},     {DT_F32, 4, 64, 100},      {DT_F8E4M3, 1, 576, 256},
        {DT_F8E4M3, 9, 300, 384}, {DT_F8E4M3, 40, 256, 128}, {DT_F8E4M3, 100, 320, 256},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct twins t;
        twins_open(&t);
        int r = cases[i].rows, n = cases[i].n, k = cases[i].k;
        float scale = 1.0f / sqrtf((float)k);
        struct weight w = twin_weight(&t, cases[i].dt, n, k, scale);
        struct weight b = twin_weight(&t, DT_BF16, 1, n, 1), none = {0};
        struct twin *x = twin_rand(&t, (size_t)r * (size_t)k, 1);
        struct twin *out = twin_nans(&t, (size_t)r * (size_t)n);
        for (int acc = 0; acc < 2; acc++) {
            BOTH(&t, matmul,
                 SET({.out = P(out),
                      .x = P(x),
                      .w = w,
                      .bias = acc ? none : b,
                      .rows = r,
                      .ldx = k,
                      .ldo = n,
                      .accumulate = acc == 1}));
            float worst = twin_near(&t, out, (size_t)r * (size_t)n, 0.03f, 0.02f, "matmul");
            if (acc)
                printf("matmul %s %d x %d x %d: largest difference %.2g\n", dtype_name(cases[i].dt),
                       r, n, k, (double)worst);
        }
        twins_close(&t);
    }
}
END_TEST

START_TEST(head_products)
{
    struct twins t;
    twins_open(&t);
    enum { R = 11, H = 4, NOPE = 32, V = 24, LORA = 64, B = NOPE + V };
    struct weight w = twin_weight(&t, DT_BF16, H * B, LORA, 0.1f);
    struct twin *q = twin_rand(&t, R * H * NOPE, 1), *lat = twin_nans(&t, R * H * LORA);
    BOTH(&t, matmul_heads,
         SET({.out = P(lat),
              .x = P(q),
              .w = w,
              .rows = R,
              .heads = H,
              .w_head_stride = B,
              .w_row0 = 0,
              .n_rows = NOPE,
              .ldx = H * NOPE,
              .x_stride = NOPE,
              .ldo = H * LORA,
              .out_stride = LORA,
              .transposed = true}));
    twin_near(&t, lat, R * H * LORA, 1e-4f, 1e-4f, "matmul_heads transposed");
    struct twin *out = twin_nans(&t, R * H * V);
    BOTH(&t, matmul_heads,
         SET({.out = P(out),
              .x = P(lat),
              .w = w,
              .rows = R,
              .heads = H,
              .w_head_stride = B,
              .w_row0 = NOPE,
              .n_rows = V,
              .ldx = H * LORA,
              .x_stride = LORA,
              .ldo = H * V,
              .out_stride = V}));
    twin_near(&t, out, R * H * V, 1e-4f, 1e-4f, "matmul_heads");
    twins_close(&t);
}
END_TEST

START_TEST(experts)
{
    static const struct {
        enum moe_score score;
        enum moe_group group;
        int n_group, topk_group;
        bool bias, normalize;
    } cases[] = {
        {MOE_SOFTMAX, MOE_GROUP_NONE, 1, 1, false, false},
        {MOE_SOFTMAX, MOE_GROUP_NONE, 1, 1, false, true},
        {MOE_SOFTMAX, MOE_GROUP_MAX, 4, 2, false, false},
        {MOE_SIGMOID, MOE_GROUP_TOP2_SUM, 4, 2, true, true},
    };
    enum { R = 13, E = 16, K = 4, H = 128, I = 96 };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct twins t;
        twins_open(&t);
        struct twin *l = twin_rand(&t, R * E, 2), *b = twin_rand(&t, E, 0.2f);
        struct twin *ids = twin_new(&t, R * K * sizeof(int32_t)), *wt = twin_nans(&t, R * K);
        BOTH(&t, moe_route,
             SET({.ids = P(ids),
                  .weights = P(wt),
                  .logits = P(l),
                  .bias = cases[i].bias ? P(b) : NULL,
                  .rows = R,
                  .experts = E,
                  .topk = K,
                  .n_group = cases[i].n_group,
                  .topk_group = cases[i].topk_group,
                  .score = cases[i].score,
                  .group = cases[i].group,
                  .normalize = cases[i].normalize,
                  .norm_eps = 1e-20f,
                  .scale = 2.5f}));
        twin_same(&t, ids, R * K * sizeof(int32_t), "moe_route ids");
        twin_near(&t, wt, R * K, 1e-6f, 1e-5f, "moe_route weights");
        struct twin *desc[3];
        for (int m = 0; m < 3; m++) {
            desc[m] = twin_new(&t, E * sizeof(struct weight));
            struct weight *h = desc[m]->p[0], dev[E];
            struct err err = {0};
            for (int e = 0; e < E; e++) {
                h[e] = twin_weight(&t, DT_BF16, m == 2 ? H : I, m == 2 ? I : H, 0.1f);
                dev[e] = h[e];
                dev[e].p = dev_cuda.resolve(t.gpu, h[e].p);
            }
            ck_assert_int_eq(dev_cuda.copy_in(t.gpu, desc[m]->p[1], dev, sizeof dev, &err), OK);
            ck_assert_int_eq(dev_cuda.sync(t.gpu, &err), OK);
        }
        struct twin *x = twin_rand(&t, R * H, 1), *out = twin_rand(&t, R * H, 1);
        struct twin *work = twin_nans(&t, moe_ffn_work(R, K, I, H));
        BOTH(&t, moe_ffn,
             SET({.out = P(out),
                  .x = P(x),
                  .ids = P(ids),
                  .weights = P(wt),
                  .gate = P(desc[0]),
                  .up = P(desc[1]),
                  .down = P(desc[2]),
                  .work = P(work),
                  .rows = R,
                  .hidden = H,
                  .inter = I,
                  .experts = E,
                  .topk = K}));
        twin_near(&t, out, R * H, 1e-4f, 1e-4f, "moe_ffn");
        twins_close(&t);
    }
}
END_TEST

/* ---- slots, sampling, acceptance: one small world on both sides ---- */

enum { S = 9, LEN = 64, V = 5000, ROWS = 24, REQS = 10 };

struct world {
    struct twins t;
    struct twin *gen, *live, *len, *root, *n_rows, *draft, *n_out, *hist, *seen, *count, *params;
    struct twin *tok, *slot, *pos, *req, *first, *last, *wslot, *table;
    struct twin *req_slot, *req_gen, *req_row0, *req_n;
};

static struct slot_arrays slots_of(const struct world *w, int side)
{
    return (struct slot_arrays){
        .gen = P(w->gen),
        .live = P(w->live),
        .len = P(w->len),
        .root = P(w->root),
        .n_rows = P(w->n_rows),
        .draft = P(w->draft),
        .n_out = P(w->n_out),
        .hist = P(w->hist),
        .seen = P(w->seen),
        .count = P(w->count),
        .params = P(w->params),
        .n_slot = S,
        .len_max = LEN,
        .vocab = V,
    };
}

static struct row_arrays rows_of(const struct world *w, int side)
{
    return (struct row_arrays){
        .tok = P(w->tok),
        .slot = P(w->slot),
        .pos = P(w->pos),
        .req = P(w->req),
        .first = {P(w->first)},
        .last = {P(w->last)},
        .wslot = {P(w->wslot)},
    };
}

static void world_open(struct world *w)
{
    struct twins *t = &w->t;
    twins_open(t);
    struct twin **per_slot[] = {&w->gen, &w->live, &w->len, &w->root, &w->n_rows, &w->n_out};
    for (size_t i = 0; i < ARRAY_LEN(per_slot); i++)
        *per_slot[i] = twin_new(t, S * sizeof(int32_t));
    w->draft = twin_new(t, S * LIM_ROWS_PER_REQ * sizeof(int32_t));
    w->hist = twin_new(t, S * LEN * sizeof(int32_t));
    w->seen = twin_new(t, S * ((V + 31) / 32) * sizeof(uint32_t));
    w->count = twin_new(t, S * V * sizeof(uint16_t));
    w->params = twin_new(t, S * sizeof(struct slot_params));
    struct twin **per_row[] = {&w->tok, &w->slot, &w->pos, &w->req, &w->first, &w->last, &w->wslot};
    for (size_t i = 0; i < ARRAY_LEN(per_row); i++)
        *per_row[i] = twin_new(t, ROWS * sizeof(int32_t));
    w->table = twin_new(t, S * 4 * sizeof(int32_t));
    struct twin **per_req[] = {&w->req_slot, &w->req_gen, &w->req_row0, &w->req_n};
    for (size_t i = 0; i < ARRAY_LEN(per_req); i++)
        *per_req[i] = twin_new(t, REQS * sizeof(int32_t));
}

static void world_same(struct world *w, const char *at)
{
    struct twin *all[] = {w->gen,  w->live,  w->len,   w->root,     w->n_rows, w->n_out, w->hist,
                          w->seen, w->count, w->tok,   w->slot,     w->pos,    w->req,   w->first,
                          w->last, w->wslot, w->table, w->req_row0, w->req_n};
    char name[64];
    for (size_t i = 0; i < ARRAY_LEN(all); i++) {
        snprintf(name, sizeof name, "%s, array %zu", at, i);
        twin_same(&w->t, all[i], all[i]->bytes, name);
    }
}

/* Starts slots 1 … 8 with differing parameters and 12-token prompts, and gives them pages. */
static void world_start(struct world *w)
{
    struct twins *t = &w->t;
    struct twin *start = twin_new(t, S * sizeof(struct slot_start));
    struct twin *stop = twin_new(t, S * sizeof(int32_t)),
                *set = twin_new(t, 64 * sizeof(struct page_set));
    int32_t counts[3] = {S - 1, 1, (S - 1) * 4};
    struct twin *n = twin_ints(t, counts, 3);
    struct slot_start *b = start->p[0];
    for (int i = 0; i < S - 1; i++) {
        struct slot_params p = {
            .seed = 77 + (uint64_t)i * 0x123456789ull,
            .temperature = i % 4 == 0 ? 0 : 0.5f + 0.2f * (float)i,
            .top_p = i == 2 || i == 5 ? 0.7f : 1,
            .min_p = i == 3 || i == 5 ? 0.02f : 0,
            .repetition = i == 4 ? 1.3f : 1,
            .presence = i == 6 ? 0.5f : 0,
            .frequency = i == 6 ? 0.3f : 0,
            .top_k = i == 1 || i == 5 ? 40 : 0,
            .n_prompt = 12,
            .min_out = i == 7 ? 5 : 0,
            .max_out = 6,
            .len_max = LEN,
            .n_logprobs = i % 2 ? 5 : -1,
            .n_stop = 2,
            .stop = {7, 11},
            .n_bias = i == 0 ? 2 : 0,
            .bias_id = {5, 4000},
            .bias = {3, 9},
        };
        b[i] = (struct slot_start){i + 1, 100 + i, p};
        for (int j = 0; j < 4; j++)
            ((struct page_set *)set->p[0])[i * 4 + j] =
                (struct page_set){0, i + 1, j, 3 + i * 4 + j};
    }
    ((int32_t *)stop->p[0])[0] = 3;
    twin_push(t, start);
    twin_push(t, stop);
    twin_push(t, set);
    BOTH(t, slot_update,
         SET({.s = slots_of(w, side),
              .start = P(start),
              .n_start = P(n),
              .stop = P(stop),
              .n_stop = (int32_t *)P(n) + 1,
              .set = P(set),
              .n_set = (int32_t *)P(n) + 2,
              .table = {P(w->table)},
              .pages_max = {4},
              .n_group = 1}));
    world_same(w, "slot_update");
}

START_TEST(slots_and_sampling)
{
    struct world w = {0};
    world_open(&w);
    struct twins *t = &w.t;
    world_start(&w);
    /* two prompt rows a slot, then a sample each */
    int32_t slot[ROWS] = {0}, pos[ROWS] = {0}, tok[ROWS], req[ROWS], rs[REQS] = {0}, rg[REQS] = {0};
    int32_t row0[REQS] = {0}, cnt[REQS] = {0}, last[REQS], idx[S - 1];
    for (int i = 0; i < ROWS; i++)
        tok[i] = req[i] = -1;
    for (int i = 0; i < S - 1; i++) {
        for (int j = 0; j < 2; j++) {
            slot[i * 2 + j] = i + 1;
            pos[i * 2 + j] = 10 + j;
            tok[i * 2 + j] = 20 + i * 3 + j;
            req[i * 2 + j] = i;
        }
        rs[i] = i + 1;
        rg[i] = 100 + i - (i == 4); /* slot 5: stale */
        row0[i] = i * 2;
        cnt[i] = 2;
        last[i] = i;
        idx[i] = i * 2 + 1;
    }
    last[8] = last[9] = -1;
    for (int s = 0; s < S; s++)
        ((int32_t *)w.len->p[0])[s] = s ? 10 : 0;
    twin_push(t, w.len);
    const int32_t *from[] = {tok, slot, pos, req};
    struct twin *to[] = {w.tok, w.slot, w.pos, w.req};
    for (int i = 0; i < 4; i++) {
        memcpy(to[i]->p[0], from[i], sizeof tok);
        twin_push(t, to[i]);
    }
    const int32_t *from_req[] = {rs, rg, row0, cnt};
    struct twin *to_req[] = {w.req_slot, w.req_gen, w.req_row0, w.req_n};
    for (int i = 0; i < 4; i++) {
        memcpy(to_req[i]->p[0], from_req[i], sizeof rs);
        twin_push(t, to_req[i]);
    }
    struct twin *lastw = twin_ints(t, last, REQS), *ix = twin_ints(t, idx, S - 1);
    BOTH(t, rows_note,
         SET({.s = slots_of(&w, side),
              .tok = P(w.tok),
              .slot = P(w.slot),
              .pos = P(w.pos),
              .rows = ROWS}));
    BOTH(t, rows_place,
         SET({.slot = P(w.slot),
              .pos = P(w.pos),
              .tok = P(w.tok),
              .first = P(w.first),
              .last = P(w.last),
              .wslot = P(w.wslot),
              .table = P(w.table),
              .rows = ROWS,
              .pages_max = 4,
              .page = 16,
              .window = 8}));
    world_same(&w, "rows_note, rows_place");
    struct twin *logits = twin_rand(t, (size_t)ROWS * V, 3);
    struct twin *work = twin_nans(t, (size_t)ROWS * 4 * V);
    struct twin *smp = twin_new(t, ROWS * sizeof(struct sample_out));
    struct twin *ring = twin_new(t, 3 * REQS * sizeof(struct ring_rec));
    int64_t no = 4;
    struct twin *step = twin_new(t, sizeof no);
    memcpy(step->p[0], &no, sizeof no);
    twin_push(t, step);
    int checked = 0;
    for (int round = 0; round < 8; round++) {
        bool prefill = round == 0;
        int m = prefill ? S - 1 : ROWS;
        if (!prefill) {
            /* drafts: what will be sampled is unknown, so some match by construction below */
            for (int s = 1; s < S; s++)
                ((int32_t *)w.n_rows->p[0])[s] = 1 + (s + round) % 3;
            twin_push(t, w.n_rows);
            BOTH(t, rows_build,
                 SET({.s = slots_of(&w, side),
                      .out = rows_of(&w, side),
                      .req_slot = P(w.req_slot),
                      .req_gen = P(w.req_gen),
                      .req_row0 = P(w.req_row0),
                      .req_n = P(w.req_n),
                      .reqs = REQS,
                      .rows = ROWS}));
            world_same(&w, "rows_build");
        }
        BOTH(t, sample,
             SET({.s = slots_of(&w, side),
                  .rows = rows_of(&w, side),
                  .logits = P(logits),
                  .ldl = V,
                  .idx = prefill ? P(ix) : NULL,
                  .out = P(smp),
                  .work = P(work),
                  .m = m,
                  .vocab = V}));
        struct sample_out *g = mem_alloc(smp->bytes), *c = smp->p[0];
        struct err e = {0};
        ck_assert_int_eq(dev_cuda.copy_out(t->gpu, g, smp->p[1], smp->bytes, &e), OK);
        for (int i = 0; i < m; i++) {
            ck_assert_msg(g[i].token == c[i].token, "round %d row %d: token %d, want %d", round, i,
                          g[i].token, c[i].token);
            ck_assert_int_eq(g[i].n_top, c[i].n_top);
            ck_assert_int_eq(g[i].bad, c[i].bad);
            ck_assert(isnan(c[i].logprob) ? isnan(g[i].logprob)
                                          : fabsf(g[i].logprob - c[i].logprob) < 2e-6f);
            for (int k = 0; k < c[i].n_top; k++) {
                ck_assert_int_eq(g[i].top_id[k], c[i].top_id[k]);
                ck_assert(fabsf(g[i].top_logprob[k] - c[i].top_logprob[k]) < 2e-6f);
            }
            checked += c[i].token >= 0;
        }
        mem_free(g);
        BOTH(t, accept,
             SET({.s = slots_of(&w, side),
                  .rows = rows_of(&w, side),
                  .sample = P(smp),
                  .req_slot = P(w.req_slot),
                  .req_gen = P(w.req_gen),
                  .req_row0 = P(w.req_row0),
                  .req_n = P(w.req_n),
                  .last_sample = P(lastw),
                  .ring = P(ring),
                  .step = P(step),
                  .ring_depth = 3,
                  .ring_stride = REQS,
                  .reqs = REQS,
                  .prefill = prefill}));
        world_same(&w, "accept");
        /* the next drafts are this round's samples: right at the same logits for greedy slots */
        for (int s = 1; s < S; s++)
            for (int j = 0; j < 3; j++)
                ((int32_t *)w.draft->p[0])[s * LIM_ROWS_PER_REQ + j] = c[(s + j) % m].token;
        twin_push(t, w.draft);
    }
    ck_assert_int_gt(checked, 40);
    struct twin *ntop = twin_ints(t, (int32_t[]){3, 0, 20}, 3),
                *st = twin_ints(t, (int32_t[]){9, -1, 4999}, 3);
    BOTH(t, score,
         SET({.logits = P(logits),
              .ldl = V,
              .tok = P(st),
              .n_top = P(ntop),
              .out = P(smp),
              .m = 3,
              .vocab = V}));
    struct sample_out g[3], *c = smp->p[0];
    struct err e = {0};
    ck_assert_int_eq(dev_cuda.copy_out(t->gpu, g, smp->p[1], sizeof g, &e), OK);
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(g[i].token, c[i].token);
        ck_assert_int_eq(g[i].n_top, c[i].n_top);
        ck_assert(isnan(c[i].logprob) || fabsf(g[i].logprob - c[i].logprob) < 2e-6f);
    }
    twins_close(t);
}
END_TEST

Suite *suite_gpu_ops(void);
Suite *suite_gpu_ops(void)
{
    Suite *s = suite_create("gpu_ops");
    TCase *t = tcase_create("ops");
    tcase_add_test(t, elementwise);
    tcase_add_test(t, products);
    tcase_add_test(t, head_products);
    tcase_add_test(t, experts);
    tcase_add_test(t, slots_and_sampling);
    suite_add_tcase(s, t);
    return s;
}
