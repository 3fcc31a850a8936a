/* Goal: the CUDA attention backends give what the CPU references give, with every mask they offer.
 * Method: the same call on both devices over caches in which everything that no row may see is NaN
 * (hidden rows of a tree too). fp32 caches: fixed cases, values within 2e-5 (fp32 sums in another
 * order). bf16 and fp8 caches: cases from the capabilities of each backend, ragged requests up to
 * thousands of keys, both devices over the same rounded values (the reference in fp32), eager and
 * replayed to equal bits.
 *
 * Tolerances over these caches (e4m3 elements are exact in bf16, their scales are applied in fp32),
 * keys and values of unit variance. Few lines (rows x heads of a
 * tile): queries and weights are in two bf16 parts, what is left are 2^-17 of a score and fp32
 * sums: relative norm 1e-4. Many lines and prefill round both once, 2^-9 each: 4e-3, one value up
 * to four standard deviations of both roundings over |v| <= 4.5; a log-sum-exp over one key has the
 * score's own error, 2^-9 / sqrt 3 in the mean. */
#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "test/gpu/twin.h"

#include <stdio.h>

enum { R = 14, SLOTS = 4, KEYS = 256 };

/* The rows of a call; `rows` of them. */
struct rows {
    enum attn_mask mask;
    enum role role;
    int rows;
    int32_t slot[R], first[R], last[R], row0[R];
    uint64_t anc[R];
};

static const struct rows g_rows[] = {
    {.mask = MASK_RANGE,
     .role = TGT_VERIFY,
     .rows = 9,
     .slot = {1, 2, 3, 0, 3, 2, 1, 1, 3},
     .first = {0, 0, 5, 0, 100, 0, 0, 33, 0},
     .last = {1, 17, 6, 0, 201, 200, 64, 90, 33}},
    /* a tree with gaps, padding, a chain with a window, row 63 with a window that ends inside the
     * tree, a prefix alone; bits of rows behind the row do not count */
    {.mask = MASK_TREE,
     .role = TGT_VERIFY,
     .rows = 14,
     .slot = {1, 1, 1, 1, 1, 1, 1, 1, 0, 2, 2, 2, 3, 3},
     .first = {0, 0, 0, 0, 0, 0, 0, 0, 7, 100, 101, 102, 66, 0},
     .last = {31, 32, 33, 34, 35, 36, 37, 38, 7, 201, 202, 203, 128, 50},
     .row0 = {30, 30, 30, 30, 30, 30, 30, 30, 2, 200, 200, 200, 64, 60},
     .anc = {0x1, 0x3, 0x5, 0xb, 0x15, 0x23, 0x55, ~0xffull | 0x8b, ~0ull, 0x1, 0x3, 0x7,
             1ull << 63 | 1ull << 40 | 0x21, ~0ull}},
    /* draft loop: this step's rows over scratch rows of the steps before, one sequence a request */
    {.mask = MASK_TREE,
     .role = DRF_DECODE,
     .rows = 6,
     .slot = {1, 1, 1, 3, 3, 3},
     .last = {26, 27, 28, 8, 9, 10},
     .row0 = {20, 20, 20, 3, 3, 3},
     .anc = {0x21, 0x49, 0x91, 0x11, 0x2a, 0x44}},
    /* two blocks of unequal size: every row sees the whole block */
    {.mask = MASK_BLOCK,
     .role = DRF_BLOCK,
     .rows = 7,
     .slot = {1, 1, 1, 1, 2, 2, 0},
     .first = {0, 0, 0, 0, 100, 100, 0},
     .last = {34, 34, 34, 34, 202, 202, 0}},
};

static bool sees(const struct rows *w, int r, int p)
{
    int j = p - w->row0[r], before = 0;
    if (p < w->first[r] || p >= w->last[r])
        return false;
    if (w->mask != MASK_TREE || j < 0)
        return true;
    if (j >= 64 || !(w->anc[r] >> j & 1))
        return false;
    for (int i = 0; i < j; i++)
        before += (int)(w->anc[r] >> i & 1);
    return w->row0[r] + before >= w->first[r];
}

struct shape {
    enum attn_kind kind;
    int heads, kv, qk, v, page;
};

/* A random pool whose row `pool` holds a position that some row sees, else NaN. */
static struct twin *pool_make(struct twins *t, const struct rows *w, int page, size_t width)
{
    struct twin *k = twin_rand(t, (size_t)SLOTS * KEYS * width, 1);
    int pages_max = KEYS / page;
    for (int s = 0; s < SLOTS; s++)
        for (int p = 0; p < KEYS; p++) {
            bool used = false;
            for (int r = 0; r < w->rows; r++)
                used |= w->slot[r] == s && sees(w, r, p);
            size_t at =
                (size_t)(SLOTS * pages_max - 1 - (s * pages_max + p / page)) * (size_t)page +
                (size_t)(p % page);
            for (size_t i = 0; i < width && !used; i++)
                ((float *)k->p[SIDE_CPU])[at * width + i] = NAN;
        }
    twin_push(t, k);
    return k;
}

static void check_case(const struct shape *c, const struct rows *w, int variant)
{
    struct twins t;
    twins_open(&t);
    struct err e = {0};
    int qk = c->qk, v = c->v, h = c->heads, pages_max = KEYS / c->page, n = w->rows;
    bool mla = c->kind != ATTN_GQA;
    struct twin *q = twin_rand(&t, (size_t)(n * h * qk), 1);
    struct twin *k = pool_make(&t, w, c->page, (size_t)(c->kv * qk));
    struct twin *vv = pool_make(&t, w, c->page, (size_t)(c->kv * v));
    struct twin *out = twin_nans(&t, (size_t)(n * h * v)), *lse = twin_nans(&t, (size_t)(n * h));
    struct twin *sinks = twin_rand(&t, (size_t)h, 1);
    int32_t table[SLOTS * KEYS];
    for (int j = 0; j < SLOTS * pages_max; j++)
        table[j] = SLOTS * pages_max - 1 - j;
    struct twin *tb = twin_ints(&t, table, (size_t)(SLOTS * pages_max));
    struct twin *f = twin_ints(&t, w->first, R), *l = twin_ints(&t, w->last, R);
    struct twin *s = twin_ints(&t, w->slot, R), *r0 = twin_ints(&t, w->row0, R);
    struct twin *anc = twin_new(&t, sizeof w->anc);
    memcpy(anc->p[SIDE_CPU], w->anc, sizeof w->anc);
    twin_push(&t, anc);
    struct attn_need need = {.role = w->role,
                             .kind = c->kind,
                             .mask = w->mask,
                             .graph = GRAPH_ANY,
                             .kv_type = DT_F32,
                             .page = c->page,
                             .n_head = h,
                             .n_kv = c->kv,
                             .dims = {(int16_t)qk, (int16_t)v},
                             .q_len_max = n,
                             .cp = 1,
                             .lse_out = true,
                             .sinks = variant == 1,
                             .soft_cap = variant == 2};
    struct graph_dims dims = {SLOTS, n, n, n, pages_max, w->role};
    for (int side = 0; side < 2; side++) {
        const struct attn_backend *b = NULL;
        struct attn *a = NULL;
        need.sm = side ? dev_cuda.sm(t.gpu) : 0;
        ck_assert_msg(attn_select(&b, side ? "cuda" : "cpu", &need, NULL, &e) == OK, "%s", e.text);
        ck_assert_int_eq(b->open(&a, side ? t.gpu : t.cpu, &need, &dims, &e), OK);
        ck_assert_int_eq(b->plan(a, &dims, &e), OK);
        struct attn_call x = {
            .role = w->role,
            .kind = c->kind,
            .mask = w->mask,
            .rows = n,
            .n_head = h,
            .n_kv = c->kv,
            .dims = need.dims,
            .q = P(q),
            .ldq = h * qk,
            .out = P(out),
            .ldo = h * v,
            .lse = P(lse),
            .k = P(k),
            .v = mla ? NULL : P(vv),
            .kv_type = DT_F32,
            .slot = P(s),
            .first = P(f),
            .last = P(l),
            .table = P(tb),
            .pages_max = pages_max,
            .page = c->page,
            .scale = 1 / sqrtf((float)qk),
            .soft_cap = variant == 2 ? 5 : 0,
            .sinks = variant == 1 ? P(sinks) : NULL,
            .ancestors = P(anc),
            .row0 = P(r0),
            .kv_lora = mla ? v : 0,
            .rope = mla ? qk - v : 0,
            .cp_world = 1,
        };
        ck_assert_msg(b->run(a, &x, &e) == OK, "%s", e.text);
        x.role = TGT_PREFILL;
        ck_assert_int_eq(b->run(a, &x, &e), E_INVAL);
        x.role = w->role;
        x.mask = w->mask == MASK_TREE ? MASK_RANGE : MASK_TREE;
        ck_assert_int_eq(b->run(a, &x, &e), E_INVAL);
        b->close(a);
    }
    for (int i = 0; i < n * h * v; i++) /* nothing of the poison on either side */
        ck_assert(!isnan(((float *)out->p[SIDE_CPU])[i]));
    twin_near(&t, out, (size_t)(n * h * v), 2e-5f, 2e-5f, "attention");
    twin_near(&t, lse, (size_t)(n * h), 2e-5f, 2e-6f, "attention lse");
    twins_close(&t);
}

START_TEST(attention)
{
    static const struct shape cases[] = {
        {ATTN_GQA, 8, 2, 64, 64, 16},
        {ATTN_GQA, 4, 4, 80, 80, 16},
        {ATTN_GQA, 16, 2, 96, 96, 16},
        {ATTN_GQA, 32, 8, 128, 128, 16},
        {ATTN_GQA, 4, 2, 192, 128, 16},
        {ATTN_GQA, 8, 1, 256, 256, 64},
        {ATTN_GQA, 2, 1, 512, 512, 16},
        {ATTN_MLA_ABSORBED, 8, 1, 80, 64, 16},
        {ATTN_MLA_ABSORBED, 16, 1, 576, 512, 16},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        for (int variant = 0; variant < 3; variant++)
            if (!twin_small() || variant == (int)i % 3)
                check_case(&cases[i], &g_rows[_i], variant);
}
END_TEST

/* ---- bf16 and fp8 caches, cases from capabilities ---- */

enum { REQ = 6, CROWD = 16, ROWS = 460, POS = 4224, CPU_PAGE = 16, NOWHERE = 1 << 28 };

struct ragged {
    enum attn_mask mask;
    enum role role;
    int reqs, rows, qlen; /* of the plan: requests, rows in all, of one */
    int32_t slot[ROWS], first[ROWS], last[ROWS], row0[ROWS];
    uint64_t anc[ROWS];
    int len[CROWD + 1]; /* positions of a slot's cache that exist */
};

static bool sees_ragged(const struct ragged *w, int r, int p)
{
    int j = p - w->row0[r], before = 0;
    if (p < w->first[r] && (w->mask != MASK_TREE || j < 0))
        return false;
    if (p >= w->last[r])
        return false;
    if (w->mask != MASK_TREE || j < 0)
        return true;
    if (j >= 64 || !(w->anc[r] >> j & 1))
        return false;
    for (int i = 0; i < j; i++)
        before += (int)(w->anc[r] >> i & 1);
    return w->row0[r] + before >= w->first[r];
}

/* Requests over caches of few and of many keys, up to `qlen` rows each, padding between and behind.
 */
static void ragged_make(struct ragged *w, struct rng *g, enum role role, enum attn_mask mask,
                        int qlen, int window)
{
    static const int keys[REQ] = {0, 15, 16, 17, 500, 4000};
    int turn = (int)rng_below(g, REQ);
    *w = (struct ragged){.mask = mask, .role = role, .reqs = REQ + 1, .qlen = qlen};
    for (int i = 0; i < REQ; i++) {
        int s = 1 + (i + turn) % REQ, base = keys[s - 1] % (twin_small() ? 900 : POS);
        int n = i == 0 ? qlen : 1 + (int)rng_below(g, (uint64_t)qlen);
        if (qlen > 16)
            n = s == 5 ? qlen : s == 6 ? 20 : n / 4 + 1;
        for (int j = 0; j < n; j++, w->rows++) {
            int r = w->rows, up = j ? (int)rng_below(g, (uint64_t)j) : 0, depth = j;
            w->slot[r] = s;
            w->row0[r] = base;
            w->anc[r] = 1ull << (j & 63);
            if (mask == MASK_TREE) {
                w->anc[r] |= j ? w->anc[r - j + up] : 0;
                depth = __builtin_popcountll(w->anc[r]) - 1;
            }
            w->last[r] = mask == MASK_BLOCK ? base + n : base + j + 1;
            w->first[r] = window && base + depth + 1 > window ? base + depth + 1 - window : 0;
            w->len[s] = base + n;
        }
        if (i == 2 && qlen <= 16) { /* padding whose numbers mean nothing */
            w->first[w->rows] = w->last[w->rows] = 7;
            w->slot[w->rows++] = 0;
        }
    }
    w->rows += 2;
    ck_assert_int_le(w->rows, ROWS);
}

/* `reqs` requests of `qlen` rows over about `keys` keys, one of them over `longest`. */
static void crowd_make(struct ragged *w, struct rng *g, int reqs, int qlen, int keys, int longest)
{
    *w = (struct ragged){.mask = MASK_RANGE, .role = TGT_VERIFY, .reqs = reqs, .qlen = qlen};
    for (int i = 0; i < reqs; i++) {
        int base = (i == reqs / 2 ? longest : keys) - (int)rng_below(g, 80);
        w->len[i + 1] = base + qlen;
        for (int j = 0; j < qlen; j++) {
            int r = w->rows++;
            w->slot[r] = i + 1;
            w->row0[r] = base;
            w->last[r] = base + j + 1;
        }
    }
}

/* The same cache twice: fp32 pages of 16 in order, the other type's pages of another size shuffled.
 */
struct pools {
    float *cpu;
    int32_t *cpu_table, *gpu_table; /* [CROWD + 1][pages] */
    void *gpu;
};

/* fp8: elements are worth `scale`. `like`: pages where that cache has them. */
static struct pools pools_make(struct twins *t, const struct ragged *w, int page, int width,
                               enum dtype dt, float scale, const struct pools *like)
{
    struct pools o;
    struct err e = {0};
    int n = CROWD + 1, cp = POS / CPU_PAGE, gp = POS / page, used = 0;
    for (int s = 1; s < n; s++)
        used += (w->len[s] + page - 1) / page;
    o.cpu_table = mem_alloc((size_t)(n * cp) * sizeof *o.cpu_table);
    o.gpu_table = mem_alloc((size_t)(n * gp) * sizeof *o.gpu_table);
    int32_t *order = mem_alloc((size_t)used * sizeof *order);
    for (int i = 0; i < used; i++)
        order[i] = i;
    for (int i = used - 1; i > 0; i--) {
        int j = (int)rng_below(&t->rng, (uint64_t)i + 1), x = order[i];
        order[i] = order[j];
        order[j] = x;
    }
    size_t total = 0;
    for (int s = 0; s < n; s++)
        total += (size_t)(w->len[s] + CPU_PAGE - 1) / CPU_PAGE * CPU_PAGE;
    o.cpu = mem_alloc(total * (size_t)width * sizeof *o.cpu);
    size_t gpu_n = (size_t)used * (size_t)page * (size_t)width;
    size_t bytes = gpu_n * dtype_size(dt);
    void *packed = mem_alloc(bytes);
    memset(packed, 0xff, bytes); /* NaN */
    scale = dt == DT_F8E4M3 ? scale : 1;
    int at = 0, next = 0;
    for (int s = 0; s < n; s++) {
        for (int i = 0; i < cp; i++)
            o.cpu_table[s * cp + i] = i * CPU_PAGE < w->len[s] ? at++ : NOWHERE;
        for (int i = 0; i < gp; i++)
            o.gpu_table[s * gp + i] = like                   ? like->gpu_table[s * gp + i]
                                      : i * page < w->len[s] ? order[next++]
                                                             : NOWHERE;
        for (int p = 0; p < w->len[s]; p++) {
            bool used_here = false;
            for (int r = 0; r < w->rows && !used_here; r++)
                used_here = w->slot[r] == s && sees_ragged(w, r, p);
            float *c = o.cpu + ((size_t)o.cpu_table[s * cp + p / CPU_PAGE] * CPU_PAGE +
                                (size_t)(p % CPU_PAGE)) *
                                   (size_t)width;
            int64_t to = ((int64_t)o.gpu_table[s * gp + p / page] * page + p % page) * width;
            for (int i = 0; i < width; i++) {
                float x = (float)(rng_unit(&t->rng) - 0.5) * 3.4641f;
                if (used_here)
                    dtype_store(packed, dt, to + i, x / scale);
                c[i] = used_here ? dtype_load(packed, dt, to + i) * scale : NAN;
            }
        }
    }
    ck_assert_int_eq(dev_cuda.alloc(t->gpu, &o.gpu, bytes + 16, DEV_MEM_DEVICE, &e), OK);
    ck_assert_int_eq(dev_cuda.copy_in(t->gpu, o.gpu, packed, bytes, &e), OK);
    ck_assert_int_eq(dev_cuda.sync(t->gpu, &e), OK);
    mem_free(packed);
    mem_free(order);
    return o;
}

static void pools_free(struct twins *t, struct pools *o)
{
    dev_cuda.free(t->gpu, o->gpu);
    mem_free(o->cpu);
    mem_free(o->cpu_table);
    mem_free(o->gpu_table);
}

/* Relative norm of the difference; one value within `abs`, infinities and zeros in their places. */
static double norm_near(const float *g, const float *c, size_t n, float abs, const char *what)
{
    double d2 = 0, c2 = 0;
    size_t bad = n;
    for (size_t i = 0; i < n; i++) {
        bool exact = isinf(c[i]) || c[i] == 0;
        float d = fabsf(g[i] - c[i]);
        if (exact ? g[i] != c[i] : !(d <= abs))
            bad = i;
        if (exact)
            continue;
        d2 += (double)d * (double)d;
        c2 += (double)c[i] * (double)c[i];
    }
    ck_assert_msg(bad == n, "%s [%zu]: %g, want %g", what, bad, (double)g[bad % n],
                  (double)c[bad % n]);
    return c2 > 0 ? sqrt(d2 / c2) : 0;
}

#define K_SCALE 0.37f /* of fp8 caches */
#define V_SCALE 0.011f
struct cache_case {
    const struct attn_backend *b;
    enum dtype kv_type;
    int heads, kv, page, variant; /* variant 1: sinks, 2: soft cap */
    struct attn_dims dims;
    bool crowds; /* planned for more requests than there are, too */
};

static struct attn_call call_of(const struct cache_case *k, const struct ragged *w)
{
    bool mla = k->b->caps.kinds == ATTN_MLA_ABSORBED;
    return (struct attn_call){.role = w->role,
                              .kind = mla ? ATTN_MLA_ABSORBED : ATTN_GQA,
                              .mask = w->mask,
                              .rows = w->rows,
                              .n_head = k->heads,
                              .n_kv = k->kv,
                              .dims = k->dims,
                              .ldq = k->heads * k->dims.qk,
                              .ldo = k->heads * k->dims.v,
                              .scale = 1 / sqrtf((float)k->dims.qk),
                              .soft_cap = k->variant == 2 ? 3 : 0,
                              .kv_lora = mla ? k->dims.v : 0,
                              .rope = mla ? k->dims.qk - k->dims.v : 0,
                              .k_scale = K_SCALE,
                              .v_scale = V_SCALE,
                              .cp_world = 1};
}

/* The call again with bf16 output: `want` rounded, the same log-sum-exp. */
static void check_narrow(const struct attn_backend *b, struct attn *a, struct dev *gpu,
                         struct attn_call x, const float *want, size_t no, size_t nl,
                         const char *name)
{
    struct err e = {0};
    uint16_t *got = mem_alloc((no + nl) * sizeof(float));
    memset(got, 0xff, (no + nl) * sizeof(float));
    float *lse = (float *)(void *)got + no;
    x.narrow = true;
    ck_assert_int_eq(dev_cuda.copy_in(gpu, x.out, got, no * sizeof(float), &e), OK);
    ck_assert_int_eq(dev_cuda.copy_in(gpu, x.lse, lse, nl * sizeof(float), &e), OK);
    ck_assert_msg(b->run(a, &x, &e) == OK, "%s: %s", name, e.text);
    ck_assert_int_eq(dev_cuda.copy_out(gpu, got, x.out, no * sizeof(float), &e), OK);
    ck_assert_int_eq(dev_cuda.copy_out(gpu, lse, x.lse, nl * sizeof(float), &e), OK);
    size_t bad = 0, behind = 0;
    for (size_t i = 0; i < no; i++) {
        bad += got[i] != dtype_f32_to_bf16(want[i]);
        behind += got[no + i] != 0xffff;
    }
    ck_assert_msg(bad == 0, "%s: bf16 output differs in %zu values", name, bad);
    ck_assert_msg(behind == 0, "%s: %zu values behind the bf16 output", name, behind);
    ck_assert_msg(memcmp(lse, want + no, nl * sizeof(float)) == 0, "%s: bf16, lse differs", name);
    mem_free(got);
}

static void check_cache(const struct cache_case *k, const struct ragged *w, struct twins *t)
{
    struct err e = {0};
    bool mla = k->b->caps.kinds == ATTN_MLA_ABSORBED;
    size_t no = (size_t)(w->rows * k->heads * k->dims.v), nl = (size_t)(w->rows * k->heads);
    struct pools pk = pools_make(t, w, k->page, k->kv * k->dims.qk, k->kv_type, K_SCALE, NULL);
    struct pools pv = {0};
    if (!mla)
        pv = pools_make(t, w, k->page, k->kv * k->dims.v, k->kv_type, V_SCALE, &pk);
    int first_twin = t->n;
    struct twin *q = twin_rand(t, (size_t)(w->rows * k->heads * k->dims.qk), 1);
    struct twin *out = twin_nans(t, no), *lse = twin_nans(t, nl),
                *sinks = twin_rand(t, (size_t)k->heads, 1);
    struct twin *s = twin_ints(t, w->slot, ROWS), *f = twin_ints(t, w->first, ROWS);
    struct twin *l = twin_ints(t, w->last, ROWS), *r0 = twin_ints(t, w->row0, ROWS);
    struct twin *anc = twin_new(t, sizeof w->anc);
    struct twin *kt = twin_ints(t, pk.gpu_table, (size_t)((CROWD + 1) * (POS / k->page)));
    memcpy(anc->p[SIDE_CPU], w->anc, sizeof w->anc);
    twin_push(t, anc);
    struct attn_need need = {.role = w->role,
                             .kind = mla ? ATTN_MLA_ABSORBED : ATTN_GQA,
                             .mask = w->mask,
                             .graph = GRAPH_ANY,
                             .kv_type = DT_F32,
                             .page = CPU_PAGE,
                             .n_head = k->heads,
                             .n_kv = k->kv,
                             .dims = k->dims,
                             .q_len_max = w->qlen,
                             .cp = 1,
                             .lse_out = true,
                             .sinks = k->variant == 1,
                             .soft_cap = k->variant == 2};
    struct graph_dims dims = {w->reqs, CROWD + 1, w->rows, w->qlen, POS / CPU_PAGE, w->role};
    struct attn_call x = call_of(k, w);
    const struct attn_backend *ref = NULL;
    struct attn *a = NULL;
    int side = SIDE_CPU;
#define SIDE_CALL()                                                                                \
    (x.q = P(q), x.out = P(out), x.lse = P(lse), x.slot = P(s), x.first = P(f), x.last = P(l),     \
     x.row0 = P(r0), x.ancestors = P(anc), x.sinks = k->variant == 1 ? P(sinks) : NULL)
    SIDE_CALL();
    x.kv_type = DT_F32;
    x.k = pk.cpu;
    x.v = mla ? NULL : pv.cpu;
    x.table = pk.cpu_table;
    x.page = CPU_PAGE;
    x.pages_max = POS / CPU_PAGE;
    ck_assert_msg(attn_select(&ref, "cpu", &need, NULL, &e) == OK, "%s", e.text);
    ck_assert_int_eq(ref->open(&a, t->cpu, &need, &dims, &e), OK);
    ck_assert_int_eq(ref->plan(a, &dims, &e), OK);
    ck_assert_msg(ref->run(a, &x, &e) == OK, "%s", e.text);
    ref->close(a);

    side = SIDE_GPU;
    SIDE_CALL();
    need.kv_type = x.kv_type = k->kv_type;
    need.page = x.page = k->page;
    need.sm = dev_cuda.sm(t->gpu);
    dims.pages = x.pages_max = POS / k->page;
    /* their own number, about a tile an SM, several: kernels differ */
    struct graph_dims plans[] = {dims, dims, dims};
    int n_plans = k->crowds ? ARRAY_LEN(plans) : 1;
    for (int i = 1; i < n_plans; i++) {
        plans[i].reqs = plans[i].seqs = (i == 1 ? 128 : 512) / k->kv;
        plans[i].rows = plans[i].reqs * w->qlen;
    }
    x.k = pk.gpu;
    x.v = mla ? NULL : pv.gpu;
    x.table = P(kt);
    char name[160];
    int named =
        snprintf(name, sizeof name, "%s %s %d/%d heads %d/%d %s mask %d page %d qlen %d variant %d",
                 k->b->name, dtype_name(k->kv_type), k->dims.qk, k->dims.v, k->heads, k->kv,
                 role_name(w->role), (int)w->mask, k->page, w->qlen, k->variant);
    ck_assert_msg(attn_check(k->b, &need, &e) == OK, "%s: %s", name, e.text);
    ck_assert_msg(k->b->open(&a, t->gpu, &need, &plans[n_plans - 1], &e) == OK, "%s: %s", name,
                  e.text);
    float *go = mem_alloc((no + nl) * 2 * sizeof *go), *gl = go + no, *again = gl + nl;
    for (int n = 0; n < n_plans; n++) {
        snprintf(name + named, sizeof name - (size_t)named, " plan of %d", plans[n].reqs);
        ck_assert_int_eq(dev_cuda.copy_in(t->gpu, P(l), w->last, sizeof w->last, &e), OK);
        memset(again, 0xff, (no + nl) * sizeof *again);
        ck_assert_int_eq(dev_cuda.copy_in(t->gpu, P(out), again, no * 4, &e), OK);
        ck_assert_int_eq(dev_cuda.copy_in(t->gpu, P(lse), again, nl * 4, &e), OK);
        ck_assert_int_eq(k->b->plan(a, &plans[n], &e), OK);
        ck_assert_msg(k->b->run(a, &x, &e) == OK, "%s: %s", name, e.text);
        ck_assert_msg(dev_cuda.copy_out(t->gpu, go, P(out), no * 4, &e) == OK, "%s: %s", name,
                      e.text);
        ck_assert_int_eq(dev_cuda.copy_out(t->gpu, gl, P(lse), nl * 4, &e), OK);
        bool split = w->qlen <= 16 && k->heads / k->kv * w->qlen <= (mla ? 16 : 32);
        double d = norm_near(go, out->p[SIDE_CPU], no, split ? 2e-3f : 3e-2f, name);
        ck_assert_msg(d <= (split ? 1e-4 : 4e-3), "%s: relative norm %g", name, d);
        norm_near(gl, lse->p[SIDE_CPU], nl, split ? 1e-4f : 1e-2f, name);
        if (k->b->caps.narrow)
            check_narrow(k->b, a, t->gpu, x, go, no, nl, name);

        /* replayed twice: the same bits; with no row left: nothing */
        struct dev_graph *g = NULL;
        ck_assert_int_eq(dev_cuda.record_begin(t->gpu, &e), OK);
        ck_assert_int_eq(k->b->run(a, &x, &e), OK);
        ck_assert_int_eq(dev_cuda.record_end(t->gpu, &g, &e), OK);
        for (int i = 0; i < 3; i++) {
            static const int32_t none[ROWS];
            memset(again, 0xff, (no + nl) * sizeof *again);
            ck_assert_int_eq(dev_cuda.copy_in(t->gpu, P(out), again, no * 4, &e), OK);
            ck_assert_int_eq(dev_cuda.copy_in(t->gpu, P(lse), again, nl * 4, &e), OK);
            if (i == 2)
                ck_assert_int_eq(dev_cuda.copy_in(t->gpu, P(l), none, sizeof none, &e), OK);
            ck_assert_int_eq(dev_cuda.replay(t->gpu, g, &e), OK);
            ck_assert_int_eq(dev_cuda.copy_out(t->gpu, again, P(out), no * 4, &e), OK);
            ck_assert_int_eq(dev_cuda.copy_out(t->gpu, again + no, P(lse), nl * 4, &e), OK);
            if (i < 2)
                ck_assert_msg(memcmp(again, go, (no + nl) * 4) == 0, "%s: a replay differs", name);
            size_t bad = 0;
            for (size_t j = 0; i == 2 && j < no + nl; j++)
                bad += !(j < no ? again[j] == 0 : again[j] == -INFINITY);
            ck_assert_msg(bad == 0, "%s: an idle replay leaves %zu values", name, bad);
        }
        dev_cuda.graph_free(t->gpu, g);
    }
    k->b->close(a);
    mem_free(go);
    for (; t->n > first_twin; t->n--) {
        dev_cpu.free(t->cpu, t->all[t->n - 1].p[SIDE_CPU]);
        dev_cuda.free(t->gpu, t->all[t->n - 1].p[SIDE_GPU]);
    }
    pools_free(t, &pk);
    if (!mla)
        pools_free(t, &pv);
}

static bool cuda_has(int i, enum dtype dt)
{
    return strcmp(attn_backends[i]->device, "cuda") == 0 &&
           attn_backends[i]->caps.kv_types >> dt & 1;
}

static int cuda_backends(enum dtype dt)
{
    int n = 0;
    for (int i = 0; attn_backends[i]; i++)
        n += cuda_has(i, dt);
    return n;
}

/* Whether a backend has these head dims for the type: bf16 must have all, fp8 some. */
static bool built_for(const struct attn_backend *b, enum dtype kv_type, struct attn_dims dims,
                      struct dev *gpu)
{
    bool mla = b->caps.kinds == ATTN_MLA_ABSORBED;
    struct attn_need n = {.role = TGT_VERIFY,
                          .kind = mla ? ATTN_MLA_ABSORBED : ATTN_GQA,
                          .mask = MASK_RANGE,
                          .graph = GRAPH_ANY,
                          .kv_type = kv_type,
                          .page = 16,
                          .n_head = 8,
                          .n_kv = mla ? 1 : 2,
                          .dims = dims,
                          .q_len_max = 1,
                          .cp = 1,
                          .sm = dev_cuda.sm(gpu)};
    struct err e = {0};
    int r = attn_check(b, &n, &e);
    ck_assert_msg(r == OK || (kv_type == DT_F8E4M3 && strstr(e.text, "not built for fp8 caches") &&
                              dims.qk != 128 && dims.qk != 576),
                  "%s: %s", b->name, e.text);
    return r == OK;
}

/* Every role and mask that a backend offers, over its dims; heads, pages and extras take turns. */
static void check_caches(enum dtype kv_type, int index)
{
    static const struct attn_dims some[] = {{64, 64}, {128, 128}, {576, 512}};
    static const int gqa_heads[][2] = {{8, 2}, {4, 4}, {14, 2}, {16, 1}, {32, 8}};
    static const int mla_heads[] = {16, 8, 40};
    int n = 0, turn = 0, small = twin_small();
    while (!cuda_has(n, kv_type) || index-- > 0)
        n++;
    const struct attn_backend *b = attn_backends[n];
    bool mla = b->caps.kinds == ATTN_MLA_ABSORBED, any = b->caps.dims[0].qk == 0;
    struct twins t;
    struct ragged *w = mem_alloc(sizeof *w);
    twins_open(&t);
    for (int d = 0; d < 8 && (any ? d < 3 : b->caps.dims[d].qk > 0); d++) {
        struct attn_dims dims = any ? some[d] : b->caps.dims[d];
        if ((dims.qk == 576) != mla || !built_for(b, kv_type, dims, t.gpu))
            continue;
        for (int role = 0; role < N_ROLES; role++)
            for (int mask = MASK_RANGE; mask <= MASK_BLOCK; mask *= 2) {
                if (!(b->caps.role[role].masks & mask))
                    continue;
                bool prefill = role == TGT_PREFILL || role == DRF_PREFILL;
                bool full = role == TGT_VERIFY || role == TGT_PREFILL;
                if (!full && !prefill && mask != 1 << (role + d) % 3)
                    continue; /* masks of the other roles take turns */
                int cases = !full || small ? 1 + small : prefill || mla ? 4 : 6;
                for (int i = small; i < cases; i++, turn++) {
                    static const int qlens[] = {1, 4, 16, 7, 6, 1};
                    int h = i < 4 ? turn % 4 : 4; /* the last two: much work of 24 and 4 lines */
                    struct cache_case k = {.b = b, .page = 16 << turn % 3, .variant = turn % 4 % 3};
                    k.dims = dims;
                    k.kv_type = kv_type;
                    k.heads = mla ? mla_heads[turn % 3] : gqa_heads[h][0];
                    k.kv = mla ? 1 : gqa_heads[h][1];
                    k.crowds = !prefill && !mla && k.heads / k.kv * qlens[i] <= 32;
                    ragged_make(w, &t.rng, (enum role)role, (enum attn_mask)mask,
                                !prefill ? qlens[i]
                                : small  ? 40
                                         : 150,
                                i % 2 ? 33 : 0);
                    check_cache(&k, w, &t);
                }
            }
        /* plans of whole tiles, of equal shares and of splits, each over what it is for */
        static const int crowds[][5] = {
            {8, 16, 1, 1024, 1024}, {8, 16, 1, 100, 4000}, {8, 16, 6, 1024, 1024},
            {8, 4, 1, 1024, 1500},  {4, 1, 1, 1024, 1024},
        };
        for (size_t i = 0; dims.qk == 128 && !small && i < ARRAY_LEN(crowds); i++) {
            const int *c = crowds[i];
            struct cache_case k = {.b = b, .page = 16, .heads = 32, .kv = c[0]};
            k.dims = dims;
            k.kv_type = kv_type;
            crowd_make(w, &t.rng, c[1], c[2], c[3], c[4]);
            check_cache(&k, w, &t);
        }
    }
    mem_free(w);
    twins_close(&t);
}

START_TEST(bf16_caches)
{
    check_caches(DT_BF16, _i);
}
END_TEST

START_TEST(fp8_caches)
{
    check_caches(DT_F8E4M3, _i);
}
END_TEST

Suite *suite_gpu_attn(void);
Suite *suite_gpu_attn(void)
{
    Suite *s = suite_create("gpu_attn");
    TWIN_CASE(s, attention, (int)ARRAY_LEN(g_rows));
    TWIN_CASE(s, bf16_caches, cuda_backends(DT_BF16));
    TWIN_CASE(s, fp8_caches, cuda_backends(DT_F8E4M3));
    return s;
}
