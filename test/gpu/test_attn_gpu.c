/* Goal: the CUDA attention backends give what the CPU references give, with every mask they offer.
 * Method: the same call on both devices over caches in which everything that no row may see is NaN
 * (hidden rows of a tree too); values within 2e-5 (fp32 sums in another order). */
#include "engine/base/check.h"
#include "test/gpu/twin.h"

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
            check_case(&cases[i], &g_rows[_i], variant);
}
END_TEST

Suite *suite_gpu_attn(void);
Suite *suite_gpu_attn(void)
{
    Suite *s = suite_create("gpu_attn");
    TWIN_CASE(s, attention, (int)ARRAY_LEN(g_rows));
    return s;
}
