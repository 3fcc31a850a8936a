/* Goal: every attention backend keeps the contract of attention/attn.h for what it declares.
 * Method: cases are derived from the capability data of each registered CPU backend (kinds, roles,
 * masks, page sizes), against a naive oracle in double. The cache outside what rows may see is NaN,
 * the page table past the end names impossible pages, pages are shuffled. The same rows must give
 * the same bits with every page size, thread count and instruction set, alone or together. */
#include "test/ops/util.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "attention/attn.h"
#include "engine/base/check.h"
#include "engine/base/mem.h"

enum { REQS = 6, KEYS_MAX = 448, ROWS_MAX = 160 };

/* A set of requests, without pages. */
struct scene {
    enum attn_kind kind;
    enum attn_mask mask;
    int n_head, n_kv, qk, v, lora, rope, nope, rows;
    bool sinks_on;
    float soft_cap;
    int32_t slot[ROWS_MAX], first[ROWS_MAX], last[ROWS_MAX], row0[ROWS_MAX];
    uint64_t anc[ROWS_MAX];
    int k_width, v_width; /* of a pool row, floats; MLA: v_width 0 */
    float *keys, *vals;   /* [REQS][KEYS_MAX][width] by position */
    bool used[REQS][KEYS_MAX];
    float *q, *sinks;
    struct weight kv_b;
    double *kv_b_val;
};

static bool sees(const struct scene *s, int r, int p)
{
    if (p < s->first[r] || p >= s->last[r])
        return false;
    if (s->mask != MASK_TREE || p < s->row0[r])
        return true;
    int j = p - s->row0[r];
    return j < 64 && (s->anc[r] >> j & 1);
}

struct shape {
    int n_head, n_kv, qk, v, lora, rope, nope;
};

/* Rows: for each request `lens` positions of which the last few are this call's rows. */
static void scene_rows(struct scene *s, struct rng *r, int window, bool prefill)
{
    static const int lens[REQS] = {0, 1, 67, 16, 130, 433};
    for (int q = 0; q < REQS; q++) {
        int n = q == 0 ? 2 : prefill ? (lens[q] < 41 ? lens[q] : 41) : 1 + q;
        n = q > 0 && n > lens[q] ? lens[q] : n;
        for (int j = 0; j < n; j++) {
            int i = s->rows++;
            s->slot[i] = q;
            if (q == 0)
                continue; /* padding rows see nothing */
            int row0 = lens[q] - n;
            s->row0[i] = row0;
            s->last[i] = s->mask == MASK_RANGE ? row0 + j + 1 : lens[q];
            s->first[i] = window && s->last[i] > window ? s->last[i] - window : 0;
            s->anc[i] = 1ull << j; /* itself and a random set of the rows before */
            if (j > 0)
                s->anc[i] |= rng_u64(r) & ((1ull << j) - 1);
        }
    }
}

static struct scene scene_make(struct rng *r, const struct shape *h, enum attn_kind kind,
                               enum attn_mask mask, int window, bool prefill, bool extras)
{
    struct scene s = {.kind = kind,
                      .mask = mask,
                      .n_head = h->n_head,
                      .n_kv = h->n_kv,
                      .qk = h->qk,
                      .v = h->v,
                      .lora = h->lora,
                      .rope = h->rope,
                      .nope = h->nope};
    scene_rows(&s, r, window, prefill);
    for (int i = 0; i < s.rows; i++)
        for (int p = s.first[i]; p < s.last[i]; p++)
            s.used[s.slot[i]][p] |= sees(&s, i, p);
    bool mla = kind != ATTN_GQA;
    s.k_width = mla ? s.lora + s.rope : s.n_kv * s.qk;
    s.v_width = mla ? 0 : s.n_kv * s.v;
    s.keys = t_randf(r, (size_t)REQS * KEYS_MAX * (size_t)s.k_width, 1);
    s.vals = t_randf(r, (size_t)REQS * KEYS_MAX * (size_t)s.v_width, 1);
    s.q = t_randf(r, (size_t)s.rows * (size_t)s.n_head * (size_t)s.qk, 1);
    s.sinks = t_randf(r, (size_t)s.n_head, 1);
    s.sinks_on = extras;
    s.soft_cap = extras ? 3.0f : 0.0f;
    if (kind == ATTN_MLA_DECOMPRESSED)
        s.kv_b =
            t_weight(r, DT_BF16, s.n_head * (s.nope + s.v), s.lora, 1 / sqrt(s.lora), &s.kv_b_val);
    return s;
}

static void scene_free(struct scene *s)
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

static void oracle(const struct scene *s, float scale, double *out, double *lse)
{
    double *k = mem_alloc(sizeof *k * (size_t)s->qk), *v = mem_alloc(sizeof *v * (size_t)s->v);
    for (int r = 0; r < s->rows; r++)
        for (int h = 0; h < s->n_head; h++) {
            double *o = out + ((int64_t)r * s->n_head + h) * s->v, sum = 0, sc[KEYS_MAX],
                   top = -INFINITY;
            memset(o, 0, sizeof *o * (size_t)s->v);
            const float *q = s->q + ((int64_t)r * s->n_head + h) * s->qk;
            for (int p = s->first[r]; p < s->last[r]; p++) {
                if (!sees(s, r, p))
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
                if (!sees(s, r, p))
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

/* The scene's cache in shuffled pages of one size. */
struct paged {
    int page, pages_max, n_page;
    int32_t *table; /* [REQS][pages_max] */
    float *k, *v;
};

static struct paged paged_make(const struct scene *s, struct rng *r, int page)
{
    struct paged g = {.page = page, .pages_max = (KEYS_MAX + page - 1) / page + 2};
    g.n_page = REQS * g.pages_max;
    size_t kn = (size_t)g.n_page * (size_t)page * (size_t)s->k_width;
    size_t vn = (size_t)g.n_page * (size_t)page * (size_t)s->v_width;
    g.k = mem_alloc(kn * sizeof *g.k + 4);
    g.v = mem_alloc(vn * sizeof *g.v + 4);
    for (size_t i = 0; i < kn; i++)
        g.k[i] = NAN;
    for (size_t i = 0; i < vn; i++)
        g.v[i] = NAN;
    g.table = mem_alloc((size_t)g.n_page * sizeof *g.table);
    int32_t *perm = mem_alloc((size_t)g.n_page * sizeof *perm);
    for (int i = 0; i < g.n_page; i++) {
        int j = (int)rng_below(r, (uint64_t)i + 1);
        perm[i] = perm[j];
        perm[j] = i;
    }
    for (int q = 0; q < REQS; q++)
        for (int i = 0; i < g.pages_max; i++) {
            bool any = false;
            for (int p = i * page; p < (i + 1) * page && p < KEYS_MAX; p++)
                any |= s->used[q][p];
            int32_t *e = &g.table[q * g.pages_max + i];
            *e = any ? perm[q * g.pages_max + i] : 0x3fffffff; /* impossible */
            for (int p = i * page; any && p < (i + 1) * page && p < KEYS_MAX; p++) {
                if (!s->used[q][p])
                    continue;
                size_t row = (size_t)*e * (size_t)page + (size_t)(p % page);
                size_t at = (size_t)q * KEYS_MAX + (size_t)p;
                memcpy(g.k + row * (size_t)s->k_width, s->keys + at * (size_t)s->k_width,
                       (size_t)s->k_width * sizeof(float));
                memcpy(g.v + row * (size_t)s->v_width, s->vals + at * (size_t)s->v_width,
                       (size_t)s->v_width * sizeof(float));
            }
        }
    mem_free(perm);
    return g;
}

static void paged_free(struct paged *g)
{
    mem_free(g->table);
    mem_free(g->k);
    mem_free(g->v);
}

static struct attn_need need_of(const struct scene *s, enum role role, int page, int window)
{
    return (struct attn_need){.role = role,
                              .kind = s->kind,
                              .mask = s->mask,
                              .graph = GRAPH_ANY,
                              .kv_type = DT_F32,
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

static struct attn_call call_of(const struct scene *s, const struct paged *g, enum role role,
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
                          .kv_type = DT_F32,
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

struct run_args {
    struct attn *a;
    const struct attn_call *c;
};

static void one_run(const struct attn_backend *b, struct dev *d, const struct scene *s,
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

/* One scene through every page size and device, whole, replayed and row by row. */
static void check_scene(const struct t_devs *t, const struct attn_backend *b, struct scene *s,
                        enum role role, int window, struct rng *r)
{
    float scale = 1 / sqrtf((float)s->qk);
    size_t no = (size_t)s->rows * (size_t)s->n_head * (size_t)s->v;
    size_t nl = (size_t)s->rows * (size_t)s->n_head;
    double *want = mem_alloc(no * sizeof *want), *want_lse = mem_alloc(nl * sizeof *want_lse);
    float *out = mem_alloc(no * sizeof *out), *lse = mem_alloc(nl * sizeof *lse);
    float *ref = NULL, *ref_lse = NULL;
    oracle(s, scale, want, want_lse);
    for (int bit = 0; bit < 31; bit++) {
        if (!(b->caps.page_sizes >> bit & 1))
            continue;
        struct paged g = paged_make(s, r, 1 << bit);
        struct attn_need need = need_of(s, role, g.page, window);
        struct err e = {0};
        ck_assert_msg(attn_check(b, &need, &e) == OK, "%s: %s", b->name, e.text);
        struct attn_call c = call_of(s, &g, role, scale, out, lse);
        for (int i = 0; i < t->n; i++) {
            bool scalar = strcmp(t->d[i]->isa->name, "scalar") == 0;
            if (scalar && g.page != 1)
                continue;                          /* slow, and its bits are those of the others */
            for (int mode = 0; mode < 3; mode++) { /* whole, replay, row by row */
                if (mode == 2 && (scalar || g.page != 16))
                    continue;
                memset(out, 0xff, no * sizeof *out);
                memset(lse, 0xff, nl * sizeof *lse);
                struct scene one = *s;
                if (mode < 2)
                    one_run(b, t->d[i], s, &g, &need, &c, mode == 1);
                for (int k = 0; mode == 2 && k < s->rows; k++) {
                    struct attn_call x = c;
                    x.rows = 1;
                    x.q += k * c.ldq;
                    x.out += k * c.ldo;
                    x.lse += k * s->n_head;
                    x.slot += k;
                    x.first += k;
                    x.last += k;
                    x.ancestors += k;
                    x.row0 += k;
                    one_run(b, t->d[i], &one, &g, &need, &x, false);
                }
                char what[200];
                snprintf(what, sizeof what,
                         "%s %s mask %d heads %d/%d dims %d/%d page %d %s mode %d", b->name,
                         role_name(role), (int)s->mask, s->n_head, s->n_kv, s->qk, s->v, g.page,
                         t->name[i], mode);
                if (!ref) {
                    bool full = s->kind == ATTN_MLA_DECOMPRESSED;
                    t_close_to(what, out, want, no, full ? TOL_ATTN_FULL : TOL_ATTN);
                    t_close_to(what, lse, want_lse, nl, TOL_LSE);
                    ref = mem_dup(out, no * sizeof *out);
                    ref_lse = mem_dup(lse, nl * sizeof *lse);
                }
                t_same_bits(what, ref, out, no * sizeof *out);
                t_same_bits(what, ref_lse, lse, nl * sizeof *lse);
            }
        }
        paged_free(&g);
    }
    mem_free(want);
    mem_free(want_lse);
    mem_free(out);
    mem_free(lse);
    mem_free(ref);
    mem_free(ref_lse);
}

static const struct shape g_gqa[] = {
    {9, 3, 64, 64, 0, 0, 0},
    {4, 4, 24, 40, 0, 0, 0},
    {14, 1, 80, 8, 0, 0, 0},
    {2, 1, 20, 17, 0, 0, 0},
};
static const struct shape g_absorbed[] = {{8, 1, 48, 32, 32, 16, 0}, {16, 1, 36, 28, 28, 8, 0}};
static const struct shape g_full[] = {{6, 1, 40, 24, 32, 16, 24}, {5, 1, 28, 20, 28, 8, 20}};

static void check_backend(const struct attn_backend *b, enum attn_kind kind,
                          const struct shape *shapes, int n)
{
    struct t_devs t;
    t_open(&t);
    struct rng r = {11};
    for (int i = 0; i < n; i++)
        for (int role = 0; role < N_ROLES; role++)
            for (int mask = MASK_RANGE; mask <= MASK_BLOCK; mask *= 2) {
                if (!(b->caps.role[role].masks & mask))
                    continue;
                /* every role and mask once with the first shape, all shapes for two roles */
                if (i > 0 && role != TGT_PREFILL && role != TGT_VERIFY)
                    continue;
                if (role == TGT_PREFILL && mask != MASK_RANGE)
                    continue; /* up to 41 rows of one request: trees are checked in verify */
                int window = i == 1 ? 37 : 0;
                bool extras = (i + role + mask) % 3 == 0;
                struct scene s = scene_make(&r, &shapes[i], kind, (enum attn_mask)mask, window,
                                            role == TGT_PREFILL, extras);
                check_scene(&t, b, &s, (enum role)role, window, &r);
                scene_free(&s);
            }
    t_close(&t);
}

START_TEST(contract)
{
    const struct attn_backend *b = attn_backends[_i];
    ck_assert_str_eq(b->device, "cpu");
    ck_assert_uint_ne(b->caps.kinds, 0);
    /* a kind that has no shapes here has no test case yet: that fails */
    ck_assert_uint_eq(
        b->caps.kinds & ~(uint32_t)(ATTN_GQA | ATTN_MLA_ABSORBED | ATTN_MLA_DECOMPRESSED), 0);
    if (b->caps.kinds & ATTN_GQA)
        check_backend(b, ATTN_GQA, g_gqa, ARRAY_LEN(g_gqa));
    if (b->caps.kinds & ATTN_MLA_ABSORBED)
        check_backend(b, ATTN_MLA_ABSORBED, g_absorbed, ARRAY_LEN(g_absorbed));
    if (b->caps.kinds & ATTN_MLA_DECOMPRESSED)
        check_backend(b, ATTN_MLA_DECOMPRESSED, g_full, ARRAY_LEN(g_full));
}
END_TEST

/* What only other rows see stays out of a row's sums: with NaN at one position, the rows that do
 * not see it keep their bits (a weight of zero would not be enough). */
START_TEST(hidden_values)
{
    const struct attn_backend *b = attn_backends[_i];
    enum attn_kind kind = b->caps.kinds & ATTN_GQA            ? ATTN_GQA
                          : b->caps.kinds & ATTN_MLA_ABSORBED ? ATTN_MLA_ABSORBED
                                                              : ATTN_MLA_DECOMPRESSED;
    const struct shape *h = kind == ATTN_GQA            ? &g_gqa[0]
                            : kind == ATTN_MLA_ABSORBED ? &g_absorbed[0]
                                                        : &g_full[0];
    struct t_devs t;
    t_open(&t);
    for (int mask = MASK_RANGE; mask <= MASK_TREE; mask *= 2) {
        struct rng r = {31};
        enum role role = mask == MASK_RANGE ? TGT_PREFILL : TGT_VERIFY;
        struct scene s =
            scene_make(&r, h, kind, (enum attn_mask)mask, 0, mask == MASK_RANGE, false);
        size_t row = (size_t)s.n_head * (size_t)s.v, no = (size_t)s.rows * row;
        float *clean = mem_alloc(no * sizeof *clean), *out = mem_alloc(no * sizeof *out);
        int compared = 0, touched = 0;
        for (int req = 1; req < REQS; req++)
            for (int back = 0; back < 6; back++) {
                int last = 0;
                for (int i = 0; i < s.rows; i++)
                    last = s.slot[i] == req ? s.last[i] : last;
                int p = last - 1 - back * (mask == MASK_RANGE ? 7 : 1);
                if (p < 0)
                    continue;
                for (int poison = 0; poison < 2; poison++) {
                    float *k = s.keys + ((int64_t)req * KEYS_MAX + p) * s.k_width;
                    float *v = s.vals + ((int64_t)req * KEYS_MAX + p) * s.v_width;
                    for (int i = 0; i < s.k_width && poison; i++)
                        k[i] = NAN;
                    for (int i = 0; i < s.v_width && poison; i++)
                        v[i] = NAN;
                    struct rng same = {5};
                    struct paged g = paged_make(&s, &same, 16);
                    struct attn_need need = need_of(&s, role, 16, 0);
                    struct attn_call c = call_of(&s, &g, role, 0.2f, poison ? out : clean, NULL);
                    one_run(b, t.d[t.n - 1], &s, &g, &need, &c, false);
                    paged_free(&g);
                }
                for (int i = 0; i < s.rows; i++) {
                    if (s.slot[i] == req && sees(&s, i, p)) {
                        touched += out[(size_t)i * row] != out[(size_t)i * row];
                        continue;
                    }
                    compared += s.slot[i] == req;
                    t_same_bits("hidden value", clean + (size_t)i * row, out + (size_t)i * row,
                                row * sizeof *out);
                }
                scene_free(&s); /* without the poison again */
                r.s = 31;
                s = scene_make(&r, h, kind, (enum attn_mask)mask, 0, mask == MASK_RANGE, false);
            }
        ck_assert_int_gt(compared, 20);
        ck_assert_int_gt(touched, 20);
        mem_free(clean);
        mem_free(out);
        scene_free(&s);
    }
    t_close(&t);
}
END_TEST

/* A call that does not match what was opened and planned is refused, and says what. */
START_TEST(refusals)
{
    struct t_devs t;
    t_open(&t);
    struct rng r = {3};
    struct scene s = scene_make(&r, &g_gqa[0], ATTN_GQA, MASK_RANGE, 0, false, false);
    struct paged g = paged_make(&s, &r, 16);
    struct attn_need need = need_of(&s, TGT_VERIFY, 16, 0);
    struct graph_dims dims = {REQS, REQS, s.rows, 8, g.pages_max, TGT_VERIFY};
    struct err e = {0};
    struct attn *a;
    const struct attn_backend *b = attn_backends[0];
    size_t no = (size_t)s.rows * (size_t)s.n_head * (size_t)s.v;
    float *out = mem_alloc(no * sizeof *out);
    ck_assert_int_eq(b->open(&a, t.d[0], &need, &dims, &e), OK);
    struct attn_call c = call_of(&s, &g, TGT_VERIFY, 1, out, NULL), x;
    ck_assert_int_eq(b->run(a, &c, &e), E_INVAL); /* no plan yet */
    struct graph_dims more = dims;
    more.rows++;
    ck_assert_int_eq(b->plan(a, &more, &e), E_INVAL);
    ck_assert_ptr_nonnull(strstr(e.text, "rows"));
    more = dims;
    more.role = TGT_PREFILL;
    ck_assert_int_eq(b->plan(a, &more, &e), E_INVAL);
    ck_assert_ptr_nonnull(strstr(e.text, "tgt_prefill"));
    ck_assert_int_eq(b->plan(a, &dims, &e), OK);
    ck_assert_int_eq(b->run(a, &c, &e), OK);
#define WRONG(field, value)                                                                        \
    do {                                                                                           \
        x = c;                                                                                     \
        x.field = (value);                                                                         \
        ck_assert_int_eq(b->run(a, &x, &e), E_INVAL);                                              \
    } while (0)
    WRONG(role, DRF_BLOCK);
    WRONG(mask, (enum attn_mask)0);
    WRONG(mask, MASK_TREE);
    WRONG(kind, ATTN_MLA_ABSORBED);
    WRONG(rows, s.rows + 1);
    WRONG(n_head, 3);
    WRONG(page, 64);
    WRONG(kv_type, DT_BF16);
    WRONG(cp_world, 2);
    WRONG(cp_rank, 1);
#undef WRONG
    b->close(a);
    mem_free(out);
    paged_free(&g);
    scene_free(&s);
    t_close(&t);
}
END_TEST

static struct attn_need plain_need(void)
{
    return (struct attn_need){.role = TGT_VERIFY,
                              .kind = ATTN_GQA,
                              .mask = MASK_RANGE,
                              .graph = GRAPH_ANY,
                              .kv_type = DT_F32,
                              .n_head = 9,
                              .n_kv = 3,
                              .dims = {64, 64},
                              .q_len_max = 1,
                              .cp = 1};
}

START_TEST(selection)
{
    struct attn_need n = plain_need();
    struct err e = {0};
    const struct attn_backend *b = NULL;
    ck_assert_int_eq(attn_select(&b, "cpu", &n, NULL, &e), OK);
    ck_assert_str_eq(b->name, "ref-gqa");
    n.kind = ATTN_MLA_ABSORBED;
    n.n_kv = 1;
    n.dims = (struct attn_dims){576, 512};
    ck_assert_int_eq(attn_select(&b, "cpu", &n, NULL, &e), OK);
    ck_assert_str_eq(b->name, "ref-mla");
    ck_assert_int_eq(attn_select(&b, "cpu", &n, "ref-mla-full", &e), E_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(e.text, "ref-mla-full: does not do mla absorbed attention"));
    ck_assert_int_eq(attn_select(&b, "cpu", &n, "flash", &e), E_INVAL);
    ck_assert_ptr_nonnull(strstr(e.text, "flash"));
    n = plain_need(); /* each miss is named, and all of them */
    n.kv_type = DT_BF16;
    n.cp = 4;
    n.page = 32;
    n.n_head = 10;
    ck_assert_int_eq(attn_check(attn_backends[0], &n, &e), E_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(e.text, "bf16"));
    ck_assert_ptr_nonnull(strstr(e.text, "4 context-parallel"));
    ck_assert_ptr_nonnull(strstr(e.text, "32 tokens"));
    ck_assert_ptr_nonnull(strstr(e.text, "10 query heads"));
    n = plain_need();
    n.mask = (enum attn_mask)0;
    ck_assert_int_eq(attn_check(attn_backends[0], &n, &e), E_UNSUPPORTED);
    n.mask = MASK_RANGE;
    n.role = N_ROLES;
    ck_assert_int_eq(attn_check(attn_backends[0], &n, &e), E_INVAL);
}
END_TEST

/* Capability data that no real backend has: every refusal of attn_check is reached. */
START_TEST(capability_misses)
{
    struct attn_backend b = {.name = "narrow", .device = "cpu"};
    b.caps = (struct attn_caps){.kinds = ATTN_GQA,
                                .kv_types = 1u << DT_F32,
                                .page_sizes = 1u << 4,
                                .dims = {{64, 64}, {128, 128}},
                                .gqa_max = 2,
                                .sm_min = 90,
                                .sm_max = 100,
                                .cp_max = 1};
    b.caps.role[TGT_VERIFY] = (struct attn_role_caps){
        .masks = MASK_RANGE, .graph = GRAPH_ONE_TOKEN, .q_len_max = 4, .uniform = true};
    struct attn_need n = plain_need();
    n.n_head = 6;
    n.sm = 90;
    n.graph = GRAPH_ONE_TOKEN;
    struct err e = {0};
    ck_assert_msg(attn_check(&b, &n, &e) == OK, "%s", e.text);
#define MISS(field, value, why)                                                                    \
    do {                                                                                           \
        struct attn_need x = n;                                                                    \
        x.field = (value);                                                                         \
        ck_assert_int_eq(attn_check(&b, &x, &e), E_UNSUPPORTED);                                   \
        ck_assert_msg(strstr(e.text, why) != NULL, "'%s' lacks '%s'", e.text, why);                \
        ck_assert_msg(strchr(e.text, ';') == NULL, "'%s' should be one reason", e.text);           \
    } while (0)
    MISS(role, TGT_PREFILL, "tgt_prefill");
    MISS(mask, MASK_TREE, "tree");
    MISS(graph, GRAPH_ANY, "any rows");
    MISS(n_head, 9, "3 needed");
    MISS(dims.qk, 96, "96/64");
    MISS(page, 64, "64");
    MISS(sm, 80, "80");
    MISS(sm, 120, "120");
    MISS(cp, 2, "2 context-parallel");
    MISS(lse_out, true, "log-sum-exp");
    MISS(window, 128, "128");
    MISS(sinks, true, "sinks");
    MISS(soft_cap, true, "soft cap");
    MISS(kind, ATTN_MLA_ABSORBED, "mla absorbed");
    MISS(kv_type, DT_BF16, "bf16");
    MISS(q_len_max, 2, "same number of rows");
#undef MISS
    b.caps.role[TGT_VERIFY].uniform = false;
    n.q_len_max = 5;
    ck_assert_int_eq(attn_check(&b, &n, &e), E_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(e.text, "at most 4 rows"));
    n.q_len_max = 0;
    ck_assert_int_eq(attn_check(&b, &n, &e), E_UNSUPPORTED);
}
END_TEST

START_TEST(page_sizes)
{
    struct attn_need n[2] = {plain_need(), plain_need()};
    n[1].role = TGT_PREFILL;
    n[1].q_len_max = 0;
    struct err e = {0};
    int page = 0;
    ck_assert_int_eq(attn_page_size(&page, "cpu", n, 2, 0, &e), OK);
    ck_assert_int_eq(page, 16);
    static const int ok[] = {1, 16, 64};
    for (size_t i = 0; i < ARRAY_LEN(ok); i++) {
        ck_assert_int_eq(attn_page_size(&page, "cpu", n, 2, ok[i], &e), OK);
        ck_assert_int_eq(page, ok[i]);
    }
    static const int bad[] = {2, 32, 3, 48, 128, 1 << 30};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        ck_assert_int_eq(attn_page_size(&page, "cpu", n, 2, bad[i], &e), E_UNSUPPORTED);
    ck_assert_int_eq(page, 64); /* untouched on failure */
    n[1].kv_type = DT_F16;
    ck_assert_int_eq(attn_page_size(&page, "cpu", n, 2, 0, &e), E_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(e.text, "f16"));
}
END_TEST

START_TEST(dims)
{
    struct graph_dims have = {4, 4, 16, 8, 10, TGT_VERIFY}, w = have;
    struct err e = {0};
    ck_assert_int_eq(graph_dims_check(&have, &w, "x", &e), OK);
    int *m[] = {&w.reqs, &w.seqs, &w.rows, &w.qlen, &w.pages};
    const char *name[] = {"reqs", "seqs", "rows", "qlen", "pages"};
    for (int i = 0; i < 5; i++) {
        w = have;
        ++*m[i];
        ck_assert_int_eq(graph_dims_check(&have, &w, "step", &e), E_INVAL);
        ck_assert_ptr_nonnull(strstr(e.text, name[i]));
        *m[i] = -1;
        ck_assert_int_eq(graph_dims_check(&have, &w, "step", &e), E_INVAL);
    }
    for (int r = 0; r < N_ROLES; r++) {
        ck_assert_ptr_nonnull(role_name((enum role)r));
        w = have;
        w.role = (enum role)r;
        ck_assert_int_eq(graph_dims_check(&have, &w, "step", &e), r == TGT_VERIFY ? OK : E_INVAL);
    }
}
END_TEST

Suite *suite_attn(void);
Suite *suite_attn(void)
{
    int n = 0;
    while (attn_backends[n] && strcmp(attn_backends[n]->device, "cpu") == 0)
        n++;
    Suite *s = suite_create("attn");
    TCase *t = tcase_create("contract");
    tcase_set_timeout(t, 300);
    tcase_add_loop_test(t, contract, 0, n);
    tcase_add_loop_test(t, hidden_values, 0, n);
    suite_add_tcase(s, t);
    t = tcase_create("select");
    tcase_add_test(t, refusals);
    tcase_add_test(t, selection);
    tcase_add_test(t, capability_misses);
    tcase_add_test(t, page_sizes);
    tcase_add_test(t, dims);
    suite_add_tcase(s, t);
    return s;
}
