/* Times what surrounds the layers of a decode step on the GPU: sampling, one level of drafting,
 * acceptance and row lists, by replays of a graph that holds the operation many times. Prints µs an
 * operation and, for logit rows, GB/s of logits read once. Says so and ends well without CUDA.
 * Usage: bench_sample_gpu [filter] */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/rng.h"
#include "kernels/ops.h"

enum { ROWS = 1024, VOCAB = 151936, SLOTS = 1025, LEN = 4096, PAGES = LEN / 64, TOPK = 4 };

struct rig {
    const struct dev_ops *o;
    struct dev *d;
    struct slot_arrays s;
    struct row_arrays rows, next;
    struct accept_out acc;
    struct draft_tree tree;
    int32_t *req_slot, *req_gen, *req_cap, *req_row0, *req_n, *table, *tail, *src;
    float *logits, *work;
    struct sample_out *sample;
    struct ring_rec *ring;
    int64_t *step;
    struct slot_params *host; /* [SLOTS] */
    const char *filter;
};

static void must(int r, const struct err *e)
{
    if (r == OK)
        return;
    fprintf(stderr, "bench_sample_gpu: %s\n", e->text);
    exit(1);
}

static void *get(struct rig *g, size_t bytes)
{
    void *p;
    struct err e = {0};
    must(g->o->alloc(g->d, &p, bytes, DEV_MEM_DEVICE, &e), &e);
    return p;
}

static void put(struct rig *g, void *dst, const void *src, size_t bytes)
{
    struct err e = {0};
    must(g->o->copy_in(g->d, dst, src, bytes, &e), &e);
    must(g->o->sync(g->d, &e), &e);
}

static void rows_alloc(struct rig *g, struct row_arrays *r)
{
    int32_t **p[] = {&r->tok,    &r->slot, &r->pos,      &r->req,     &r->at,
                     &r->parent, &r->row0, &r->first[0], &r->last[0], &r->wslot[0]};
    for (size_t i = 0; i < ARRAY_LEN(p); i++)
        *p[i] = get(g, ROWS * sizeof(int32_t));
    r->anc = get(g, ROWS * sizeof(uint64_t));
}

static void fill(struct rig *g, int32_t *p, int n, int32_t first, int32_t stride)
{
    int32_t *h = MEM_ARRAY(int32_t, n);
    for (int i = 0; i < n; i++)
        h[i] = first + stride * i;
    put(g, p, h, (size_t)n * sizeof *h);
    mem_free(h);
}

static void rig_open(struct rig *g)
{
    struct slot_arrays *s = &g->s;
    int32_t **per_slot[] = {&s->gen,    &s->live,      &s->len,      &s->root,
                            &s->n_rows, &s->drf_first, &s->drf_next, &s->n_out};
    for (size_t i = 0; i < ARRAY_LEN(per_slot); i++)
        *per_slot[i] = get(g, SLOTS * sizeof(int32_t));
    s->draft = get(g, SLOTS * LIM_ROWS_PER_REQ * sizeof(int32_t));
    s->parent = get(g, SLOTS * LIM_ROWS_PER_REQ * sizeof(int32_t));
    s->anc = get(g, SLOTS * LIM_ROWS_PER_REQ * sizeof(uint64_t));
    s->hist = get(g, (size_t)SLOTS * LEN * sizeof(int32_t));
    s->seen = get(g, (size_t)SLOTS * (VOCAB / 32 + 1) * sizeof(uint32_t));
    s->count = get(g, (size_t)SLOTS * VOCAB * sizeof(uint16_t));
    s->params = get(g, SLOTS * sizeof(struct slot_params));
    s->n_slot = SLOTS;
    s->len_max = LEN;
    s->vocab = VOCAB;
    rows_alloc(g, &g->rows);
    rows_alloc(g, &g->next);
    int32_t **per_req[] = {&g->req_slot, &g->req_gen, &g->req_cap, &g->req_row0, &g->req_n,
                           &g->tail,     &g->src,     &g->acc.n,   &g->acc.len};
    for (size_t i = 0; i < ARRAY_LEN(per_req); i++)
        *per_req[i] = get(g, ROWS * sizeof(int32_t));
    g->acc.row = get(g, ROWS * LIM_EMIT * sizeof(int32_t));
    g->acc.tok = get(g, ROWS * LIM_EMIT * sizeof(int32_t));
    int32_t **per_node[] = {&g->tree.tok, &g->tree.parent, (int32_t **)&g->tree.score};
    for (size_t i = 0; i < ARRAY_LEN(per_node); i++)
        *per_node[i] = get(g, (size_t)ROWS * LIM_DRAFT_NODES * sizeof(int32_t));
    g->tree.beam = get(g, ROWS * LIM_SPEC_TOPK * sizeof(int32_t));
    g->tree.beam_anc = get(g, ROWS * LIM_SPEC_TOPK * sizeof(uint64_t));
    g->table = get(g, (size_t)SLOTS * PAGES * sizeof(int32_t));
    g->sample = get(g, ROWS * sizeof *g->sample);
    g->ring = get(g, ROWS * sizeof *g->ring);
    g->step = get(g, sizeof *g->step);
    g->logits = get(g, (size_t)ROWS * VOCAB * sizeof(float));
    g->work = get(g, (size_t)ROWS * VOCAB * 4 * sizeof(float));
    enum { BLOCK = 1 << 21 };
    float *f = MEM_ARRAY(float, BLOCK);
    struct rng r = {7};
    for (int i = 0; i < BLOCK; i++)
        f[i] = 3 * (float)rng_normal(&r);
    size_t all = (size_t)ROWS * VOCAB;
    for (size_t at = 0; at < all; at += BLOCK - 999) /* another phase in each copy */
        put(g, g->logits + at, f, (all - at < BLOCK ? all - at : BLOCK) * sizeof *f);
    mem_free(f);
    g->host = MEM_ARRAY(struct slot_params, SLOTS);
}

/* All slots live at length 100 with these parameters, a request and a row each. */
static void reset(struct rig *g, struct slot_params p)
{
    p.n_prompt = 50;
    p.max_out = 1 << 30;
    p.len_max = 1 << 30;
    p.spec_mode = SPEC_MODEL;
    p.spec_max = 15;
    for (int i = 0; i < SLOTS; i++) {
        p.seed = (uint64_t)i * 77;
        g->host[i] = p;
    }
    put(g, g->s.params, g->host, SLOTS * sizeof *g->host);
    fill(g, g->s.live, SLOTS, 1, 0);
    fill(g, g->s.gen, SLOTS, 1, 0);
    fill(g, g->s.len, SLOTS, 100, 0);
    fill(g, g->s.n_out, SLOTS, 51, 0);
    fill(g, g->s.n_rows, SLOTS, 1, 0);
    fill(g, g->rows.slot, ROWS, 1, 1);
    fill(g, g->rows.tok, ROWS, 5, 3);
    fill(g, g->rows.pos, ROWS, 100, 0);
    fill(g, g->rows.at, ROWS, 100, 0);
    fill(g, g->rows.parent, ROWS, -1, 0);
    fill(g, g->req_slot, ROWS, 1, 1);
    fill(g, g->req_gen, ROWS, 1, 0);
    fill(g, g->req_cap, ROWS, 1, 0);
    fill(g, g->req_row0, ROWS, 0, 1);
    fill(g, g->req_n, ROWS, 1, 0);
    fill(g, g->tail, ROWS, 0, 1);
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Median µs of one call among OPS in a graph. */
static double time_us(struct rig *g, int (*call)(struct rig *g, const void *a), const void *a)
{
    enum { OPS = 16, TRIES = 7 };
    struct err e = {0};
    struct dev_graph *graph;
    double us[TRIES];
    must(g->o->record_begin(g->d, &e), &e);
    for (int i = 0; i < OPS; i++)
        must(call(g, a), &e);
    must(g->o->record_end(g->d, &graph, &e), &e);
    int replays = 8;
    for (int t = -1; t < TRIES; t++) {
        int64_t t0 = clock_ns();
        for (int i = 0; i < replays; i++)
            must(g->o->replay(g->d, graph, &e), &e);
        must(g->o->sync(g->d, &e), &e);
        double took = (double)(clock_ns() - t0) / 1e3;
        if (t < 0)
            replays = took > 20000 ? 1 : took > 4000 ? 2 : 8;
        else
            us[t] = took / replays / OPS;
    }
    g->o->graph_free(g->d, graph);
    qsort(us, TRIES, sizeof *us, by_size);
    return us[TRIES / 2];
}

#define CALL(op)                                                                                   \
    static int call_##op(struct rig *g, const void *a)                                             \
    {                                                                                              \
        return g->o->ops->op(g->d, a);                                                             \
    }
CALL(sample)
CALL(draft_pick)
CALL(rows_build)
CALL(rows_place)
CALL(rows_note)
CALL(accept)
CALL(draft_begin)

static bool wanted(const struct rig *g, const char *name)
{
    return !g->filter || strstr(name, g->filter);
}

static const int g_rows[] = {1, 8, 64, 256, 1024}, g_vocab[] = {32000, 128256, 151936};

static void sampling(struct rig *g)
{
    static const struct {
        const char *name;
        struct slot_params p;
    } modes[] = {
        {"greedy", {.top_p = 1, .repetition = 1, .n_logprobs = -1}},
        {"temperature", {.temperature = 0.8f, .top_p = 1, .repetition = 1, .n_logprobs = -1}},
        {"top-p", {.temperature = 0.8f, .top_p = 0.9f, .repetition = 1, .n_logprobs = -1}},
        {"top-k",
         {.temperature = 0.8f, .top_p = 1, .top_k = 50, .repetition = 1, .n_logprobs = -1}},
        {"all",
         {.temperature = 0.8f,
          .top_p = 0.9f,
          .top_k = 200,
          .min_p = 0.01f,
          .repetition = 1.1f,
          .presence = 0.1f,
          .n_logprobs = -1}},
        {"logprobs 5", {.top_p = 1, .repetition = 1, .n_logprobs = 5}},
    };
    printf("%-12s %7s", "us (GB/s)", "vocab");
    for (size_t r = 0; r < ARRAY_LEN(g_rows); r++)
        printf(" %8d rows   ", g_rows[r]);
    printf("\n");
    for (size_t i = 0; i < ARRAY_LEN(modes); i++) {
        if (!wanted(g, modes[i].name))
            continue;
        reset(g, modes[i].p);
        for (size_t v = 0; v < ARRAY_LEN(g_vocab); v++) {
            printf("%-12s %7d", modes[i].name, g_vocab[v]);
            for (size_t r = 0; r < ARRAY_LEN(g_rows); r++) {
                struct op_sample a = {.s = g->s,
                                      .rows = g->rows,
                                      .logits = g->logits,
                                      .ldl = g_vocab[v],
                                      .out = g->sample,
                                      .work = g->work,
                                      .m = g_rows[r],
                                      .vocab = g_vocab[v]};
                double us = time_us(g, call_sample, &a);
                printf(" %8.1f (%5.0f)", us, 4e-3 * g_rows[r] * g_vocab[v] / us);
            }
            printf("\n");
        }
    }
}

static void drafting(struct rig *g)
{
    static const int reqs[] = {1, 64};
    for (int hot = 0; hot < 2; hot++) {
        reset(g, (struct slot_params){.temperature = hot ? 0.8f : 0, .top_p = 1, .repetition = 1});
        for (size_t v = 0; v < ARRAY_LEN(g_vocab); v++)
            for (int k = 1; k <= TOPK; k += TOPK - 1)
                for (size_t r = 0; r < ARRAY_LEN(reqs); r++) {
                    struct op_draft_pick a = {.s = g->s,
                                              .t = g->tree,
                                              .out = g->next,
                                              .src = g->src,
                                              .req_slot = g->req_slot,
                                              .tail = g->tail,
                                              .logits = g->logits,
                                              .ldl = g_vocab[v],
                                              .work = g->work,
                                              .reqs = reqs[r],
                                              .topk = k,
                                              .vocab = g_vocab[v],
                                              .shift = 1};
                    double first = time_us(g, call_draft_pick, &a);
                    a.level = 1;
                    double us = time_us(g, call_draft_pick, &a);
                    printf("draft_pick %s, %d requests, %d best of %d: level 0 %.1f, level 1 %.1f "
                           "us\n",
                           hot ? "coupled" : "greedy", reqs[r], k, g_vocab[v], first, us);
                }
    }
}

static void listing(struct rig *g)
{
    for (size_t r = 0; r < ARRAY_LEN(g_rows); r++) {
        int n = g_rows[r];
        reset(g, (struct slot_params){.top_p = 1, .repetition = 1, .n_logprobs = -1});
        struct op_rows_build b = {.s = g->s,
                                  .out = g->rows,
                                  .req_slot = g->req_slot,
                                  .req_gen = g->req_gen,
                                  .req_cap = g->req_cap,
                                  .req_row0 = g->req_row0,
                                  .req_n = g->req_n,
                                  .reqs = n,
                                  .rows = n};
        struct op_rows_place p = {.slot = g->rows.slot,
                                  .pos = g->rows.pos,
                                  .tok = g->rows.tok,
                                  .at = g->rows.at,
                                  .first = g->rows.first[0],
                                  .last = g->rows.last[0],
                                  .wslot = g->rows.wslot[0],
                                  .table = g->table,
                                  .rows = n,
                                  .pages_max = PAGES,
                                  .page = 64};
        struct op_rows_note o = {g->s, g->rows.tok, g->rows.slot, g->rows.pos, n};
        struct op_accept a = {.s = g->s,
                              .rows = g->rows,
                              .sample = g->sample,
                              .req_slot = g->req_slot,
                              .req_gen = g->req_gen,
                              .req_row0 = g->req_row0,
                              .req_n = g->req_n,
                              .ring = g->ring,
                              .step = g->step,
                              .ring_depth = 1,
                              .ring_stride = ROWS,
                              .out = g->acc,
                              .reqs = n};
        struct op_draft_begin d = {.s = g->s,
                                   .out = g->next,
                                   .req_slot = g->req_slot,
                                   .req_gen = g->req_gen,
                                   .acc = g->acc,
                                   .src = g->src,
                                   .tail = g->tail,
                                   .reqs = n,
                                   .each = 1,
                                   .shift = 1};
        double build = time_us(g, call_rows_build, &b), place = time_us(g, call_rows_place, &p);
        double note = time_us(g, call_rows_note, &o), acc = time_us(g, call_accept, &a);
        printf("%4d requests: rows_build %.2f, rows_place %.2f, rows_note %.2f, accept %.2f, "
               "draft_begin %.2f us\n",
               n, build, place, note, acc, time_us(g, call_draft_begin, &d));
    }
}

int main(int argc, char **argv)
{
    struct rig g = {.o = dev_find("cuda"), .filter = argc > 1 ? argv[1] : NULL};
    struct dev_conf c = {.threads = 1};
    struct err e = {0};
    if (!g.o || g.o->open(&g.d, &c, &e) != OK) {
        printf("no CUDA device: %s\n", g.o ? e.text : "not in this build");
        return 0;
    }
    rig_open(&g);
    if (wanted(&g, "lists"))
        listing(&g);
    if (wanted(&g, "draft_pick"))
        drafting(&g);
    sampling(&g);
    mem_free(g.host);
    return 0; /* the process takes the device's memory with it */
}
