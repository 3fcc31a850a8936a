/* See scene.h. */
#include "test/attn/scene.h"

#include <math.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "test/ops/util.h"

const struct shape shapes_gqa[4] = {
    {9, 3, 64, 64, 0, 0, 0},
    {4, 4, 24, 40, 0, 0, 0},
    {14, 1, 80, 8, 0, 0, 0},
    {2, 1, 20, 17, 0, 0, 0},
};
const struct shape shapes_absorbed[2] = {{8, 1, 48, 32, 32, 16, 0}, {16, 1, 36, 28, 28, 8, 0}};
const struct shape shapes_full[2] = {{6, 1, 40, 24, 32, 16, 24}, {5, 1, 28, 20, 28, 8, 20}};

enum dtype scene_type(const struct scene *s)
{
    return s->kv_type ? s->kv_type : DT_F32;
}

/* Element i of a plane in the scene's type. */
static void put(const struct scene *s, void *plane, size_t i, float v, float scale)
{
    bool fp8 = scene_type(s) == DT_F8E4M3;
    dtype_store(plane, scene_type(s), (int64_t)i, fp8 ? v / scale : v);
}

/* What the cache keeps of random values. */
static void round_values(const struct scene *s, float *v, size_t n, float scale)
{
    bool fp8 = scene_type(s) == DT_F8E4M3;
    for (size_t i = 0; i < n; i++) {
        float one;
        put(s, &one, 0, v[i], scale);
        v[i] = dtype_load(&one, scene_type(s), 0) * (fp8 ? scale : 1);
    }
}

bool scene_sees(const struct scene *s, int r, int p)
{
    if (p < s->first[r] || p >= s->last[r])
        return false;
    int j = p - s->row0[r], before = 0;
    if (s->mask != MASK_TREE || j < 0)
        return true;
    if (j >= 64 || !(s->anc[r] >> j & 1))
        return false;
    for (int i = 0; i < j; i++)
        before += (int)(s->anc[r] >> i & 1);
    return s->row0[r] + before >= s->first[r]; /* `first` counts what the row sees */
}

void scene_mark(struct scene *s)
{
    memset(s->used, 0, sizeof s->used);
    for (int i = 0; i < s->rows; i++)
        for (int p = s->first[i]; p < s->last[i]; p++)
            s->used[s->slot[i]][p] |= scene_sees(s, i, p);
}

void scene_fill(struct scene *s, struct rng *r, const struct shape *h, bool extras)
{
    s->n_head = h->n_head;
    s->n_kv = h->n_kv;
    s->qk = h->qk;
    s->v = h->v;
    s->lora = h->lora;
    s->rope = h->rope;
    s->nope = h->nope;
    scene_mark(s);
    bool mla = s->kind != ATTN_GQA;
    s->k_width = mla ? s->lora + s->rope : s->n_kv * s->qk;
    s->v_width = mla ? 0 : s->n_kv * s->v;
    s->keys = t_randf(r, (size_t)REQS * KEYS_MAX * (size_t)s->k_width, 1);
    s->vals = t_randf(r, (size_t)REQS * KEYS_MAX * (size_t)s->v_width, 1);
    s->k_scale = 0.37f;
    s->v_scale = 0.0123f;
    round_values(s, s->keys, (size_t)REQS * KEYS_MAX * (size_t)s->k_width, s->k_scale);
    round_values(s, s->vals, (size_t)REQS * KEYS_MAX * (size_t)s->v_width, s->v_scale);
    s->q = t_randf(r, (size_t)s->rows * (size_t)s->n_head * (size_t)s->qk, 1);
    s->sinks = t_randf(r, (size_t)s->n_head, 1);
    s->sinks_on = extras;
    s->soft_cap = extras ? 3.0f : 0.0f;
    if (s->kind == ATTN_MLA_DECOMPRESSED)
        s->kv_b = t_weight(r, DT_BF16, s->n_head * (s->nope + s->v), s->lora, 1 / sqrt(s->lora),
                           &s->kv_b_val);
}

void scene_free(struct scene *s)
{
    mem_free(s->keys);
    mem_free(s->vals);
    mem_free(s->q);
    mem_free(s->sinks);
    t_weight_free(&s->kv_b);
    mem_free(s->kv_b_val);
}

/* Key and value vectors of (request, position, head) as the mathematics has them. */
static void vectors(const struct scene *s, int q, int p, int h, double *k, double *v)
{
    const float *kr = s->keys + ((int64_t)q * KEYS_MAX + p) * s->k_width;
    if (s->kind == ATTN_GQA) {
        const float *vr = s->vals + ((int64_t)q * KEYS_MAX + p) * s->v_width;
        int g = h / (s->n_head / s->n_kv);
        for (int i = 0; i < s->qk; i++)
            k[i] = (double)kr[g * s->qk + i];
        for (int i = 0; i < s->v; i++)
            v[i] = (double)vr[g * s->v + i];
        return;
    }
    if (s->kind == ATTN_MLA_ABSORBED) {
        for (int i = 0; i < s->qk; i++)
            k[i] = (double)kr[i];
        for (int i = 0; i < s->v; i++)
            v[i] = (double)kr[i];
        return;
    }
    for (int i = 0; i < s->nope + s->v; i++) {
        const double *w = s->kv_b_val + ((int64_t)h * (s->nope + s->v) + i) * s->lora;
        double x = 0;
        for (int l = 0; l < s->lora; l++)
            x += w[l] * (double)kr[l];
        if (i < s->nope)
            k[i] = x;
        else
            v[i - s->nope] = x;
    }
    for (int i = 0; i < s->rope; i++)
        k[s->nope + i] = (double)kr[s->lora + i];
}

void scene_oracle(const struct scene *s, float scale, double *out, double *lse)
{
    double *k = mem_alloc(sizeof *k * (size_t)s->qk), *v = mem_alloc(sizeof *v * (size_t)s->v);
    for (int r = 0; r < s->rows; r++)
        for (int h = 0; h < s->n_head; h++) {
            double *o = out + ((int64_t)r * s->n_head + h) * s->v, sum = 0, sc[KEYS_MAX],
                   top = -INFINITY;
            memset(o, 0, sizeof *o * (size_t)s->v);
            const float *q = s->q + ((int64_t)r * s->n_head + h) * s->qk;
            for (int p = s->first[r]; p < s->last[r]; p++) {
                if (!scene_sees(s, r, p))
                    continue;
                vectors(s, s->slot[r], p, h, k, v);
                double x = 0;
                for (int i = 0; i < s->qk; i++)
                    x += (double)q[i] * k[i];
                x *= (double)scale;
                if (s->soft_cap > 0)
                    x = (double)s->soft_cap * tanh(x / (double)s->soft_cap);
                sc[p] = x;
                top = x > top ? x : top;
            }
            for (int p = s->first[r]; p < s->last[r]; p++) {
                if (!scene_sees(s, r, p))
                    continue;
                vectors(s, s->slot[r], p, h, k, v);
                double w = exp(sc[p] - top);
                sum += w;
                for (int i = 0; i < s->v; i++)
                    o[i] += w * v[i];
            }
            lse[r * s->n_head + h] = sum > 0 ? top + log(sum) : -INFINITY;
            double all = sum + (s->sinks_on ? exp((double)s->sinks[h] - top) : 0);
            for (int i = 0; i < s->v; i++)
                o[i] = sum > 0 ? o[i] / all : 0;
        }
    mem_free(k);
    mem_free(v);
}

static bool page_used(const struct scene *s, int q, int i, int page)
{
    for (int p = i * page; p < (i + 1) * page && p < KEYS_MAX; p++)
        if (s->used[q][p])
            return true;
    return false;
}

struct paged paged_make(const struct scene *s, struct rng *r, int page)
{
    struct paged g = {.page = page, .pages_max = (KEYS_MAX + page - 1) / page + 2};
    for (int q = 0; q < REQS; q++)
        for (int i = 0; i < g.pages_max; i++)
            g.n_page += page_used(s, q, i, page);
    int next = 0, used = g.n_page;
    g.n_page += 5; /* of NaN alone */
    size_t kn = (size_t)g.n_page * (size_t)page * (size_t)s->k_width;
    size_t vn = (size_t)g.n_page * (size_t)page * (size_t)s->v_width;
    g.k = mem_alloc(kn * sizeof(float) + 4);
    g.v = mem_alloc(vn * sizeof(float) + 4);
    for (size_t i = 0; i < kn; i++)
        put(s, g.k, i, NAN, 1);
    for (size_t i = 0; i < vn; i++)
        put(s, g.v, i, NAN, 1);
    g.table = mem_alloc((size_t)(REQS * g.pages_max) * sizeof *g.table);
    int32_t *perm = mem_alloc((size_t)g.n_page * sizeof *perm);
    for (int i = 0; i < g.n_page; i++) {
        int j = (int)rng_below(r, (uint64_t)i + 1);
        perm[i] = perm[j];
        perm[j] = i;
    }
    for (int q = 0; q < REQS; q++)
        for (int i = 0; i < g.pages_max; i++) {
            bool any = page_used(s, q, i, page);
            int32_t *e = &g.table[q * g.pages_max + i];
            *e = any ? perm[next++] : 0x3fffffff; /* impossible */
            for (int p = i * page; any && p < (i + 1) * page && p < KEYS_MAX; p++) {
                if (!s->used[q][p])
                    continue;
                size_t row = (size_t)*e * (size_t)page + (size_t)(p % page);
                size_t at = (size_t)q * KEYS_MAX + (size_t)p;
                size_t kw = (size_t)s->k_width, vw = (size_t)s->v_width;
                for (size_t j = 0; j < kw; j++)
                    put(s, g.k, row * kw + j, s->keys[at * kw + j], s->k_scale);
                for (size_t j = 0; j < vw; j++)
                    put(s, g.v, row * vw + j, s->vals[at * vw + j], s->v_scale);
            }
        }
    ck_assert_int_eq(next, used);
    mem_free(perm);
    return g;
}

void paged_free(struct paged *g)
{
    mem_free(g->table);
    mem_free(g->k);
    mem_free(g->v);
}

struct attn_need scene_need(const struct scene *s, enum role role, int page, int window)
{
    return (struct attn_need){.role = role,
                              .kind = s->kind,
                              .mask = s->mask,
                              .graph = GRAPH_ANY,
                              .kv_type = scene_type(s),
                              .page = page,
                              .n_head = s->n_head,
                              .n_kv = s->n_kv,
                              .dims = {(int16_t)s->qk, (int16_t)s->v},
                              .window = window,
                              .cp = 1,
                              .lse_out = true,
                              .sinks = s->sinks_on,
                              .soft_cap = s->soft_cap > 0};
}

struct attn_call scene_call(const struct scene *s, const struct paged *g, enum role role,
                            float scale, float *out, float *lse)
{
    struct attn_call c = {.role = role,
                          .kind = s->kind,
                          .mask = s->mask,
                          .rows = s->rows,
                          .n_head = s->n_head,
                          .n_kv = s->n_kv,
                          .dims = {(int16_t)s->qk, (int16_t)s->v},
                          .q = s->q,
                          .ldq = (int64_t)s->n_head * s->qk,
                          .out = out,
                          .ldo = (int64_t)s->n_head * s->v,
                          .lse = lse,
                          .k = g->k,
                          .v = s->kind == ATTN_GQA ? g->v : NULL,
                          .kv_type = scene_type(s),
                          .k_scale = s->k_scale,
                          .v_scale = s->v_scale,
                          .slot = s->slot,
                          .first = s->first,
                          .last = s->last,
                          .table = g->table,
                          .pages_max = g->pages_max,
                          .page = g->page,
                          .scale = scale,
                          .soft_cap = s->soft_cap,
                          .sinks = s->sinks_on ? s->sinks : NULL,
                          .ancestors = s->anc,
                          .row0 = s->row0,
                          .kv_lora = s->lora,
                          .rope = s->rope,
                          .nope = s->nope,
                          .kv_b = s->kv_b};
    return c;
}

void scene_run(const struct attn_backend *b, struct dev *d, const struct scene *s,
               const struct paged *g, const struct attn_need *need, struct attn_call *c,
               bool replay)
{
    struct err e = {0};
    struct graph_dims dims = {REQS, REQS, s->rows, s->rows, g->pages_max, need->role};
    struct attn *a;
    ck_assert_msg(b->open(&a, d, need, &dims, &e) == OK, "%s", e.text);
    ck_assert_msg(b->plan(a, &dims, &e) == OK, "%s", e.text);
    if (replay) {
        struct dev_graph *gr;
        ck_assert_int_eq(dev_cpu.record_begin(d, &e), OK);
        ck_assert_msg(b->run(a, c, &e) == OK, "%s", e.text);
        ck_assert_int_eq(dev_cpu.record_end(d, &gr, &e), OK);
        ck_assert_int_eq(dev_cpu.replay(d, gr, &e), OK);
        dev_cpu.graph_free(d, gr);
    } else {
        ck_assert_msg(b->run(a, c, &e) == OK, "%s", e.text);
    }
    b->close(a);
}
