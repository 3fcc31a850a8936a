/* Goal: every attention backend keeps the contract of attention/attn.h for what it declares.
 * Method: cases are derived from the capability data of each registered CPU backend (kinds, roles,
 * masks, page sizes), against a naive oracle in double. The cache outside what rows may see is NaN,
 * the page table past the end names impossible pages, pages are shuffled. The same rows must give
 * the same bits with every page size, thread count and instruction set, alone or together. The
 * oracle starts from what the cache's type keeps; how much that is of the values is a case of its
 * own. */
#include "test/attn/scene.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "test/ops/util.h"
#include "test/sanitize.h"

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
                               enum attn_mask mask, enum dtype kv_type, int window, bool prefill,
                               bool extras)
{
    struct scene s = {.kind = kind, .mask = mask, .kv_type = kv_type};
    scene_rows(&s, r, window, prefill);
    scene_fill(&s, r, h, extras);
    return s;
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
    if (!TSAN) /* it costs more than what it checks */
        scene_oracle(s, scale, want, want_lse);
    for (int bit = 0; bit < 31; bit++) {
        if (!(b->caps.page_sizes >> bit & 1) || (TSAN && bit != 4))
            continue;
        struct paged g = paged_make(s, r, 1 << bit);
        struct attn_need need = scene_need(s, role, g.page, window);
        struct err e = {0};
        ck_assert_msg(attn_check(b, &need, &e) == OK, "%s: %s", b->name, e.text);
        struct attn_call c = scene_call(s, &g, role, scale, out, lse);
        for (int i = 0; i < t->n; i++) {
            bool scalar = strcmp(t->d[i]->isa->name, "scalar") == 0;
            /* slow, and its bits are those of the others */
            if (scalar && (g.page != 1 || (SANITIZED && s->mask != MASK_RANGE)))
                continue;
            for (int mode = 0; mode < 3; mode++) { /* whole, replay, row by row */
                if (mode == 2 && (scalar || g.page != 16))
                    continue;
                memset(out, 0xff, no * sizeof *out);
                memset(lse, 0xff, nl * sizeof *lse);
                struct scene one = *s;
                if (mode < 2)
                    scene_run(b, t->d[i], s, &g, &need, &c, mode == 1);
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
                    scene_run(b, t->d[i], &one, &g, &need, &x, false);
                }
                char what[200];
                snprintf(what, sizeof what,
                         "%s %s %s mask %d heads %d/%d dims %d/%d page %d %s mode %d", b->name,
                         dtype_name(s->kv_type), role_name(role), (int)s->mask, s->n_head, s->n_kv,
                         s->qk, s->v, g.page, t->name[i], mode);
                if (!ref && !TSAN) {
                    bool full = s->kind == ATTN_MLA_DECOMPRESSED;
                    t_close_to(what, out, want, no, full ? TOL_ATTN_FULL : TOL_ATTN);
                    t_close_to(what, lse, want_lse, nl, TOL_LSE);
                }
                if (!ref) {
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

static void check_backend(const struct attn_backend *b, enum attn_kind kind, enum dtype kv_type,
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
                if (SANITIZED && i > 0 && (TSAN || (i + role + mask) % 3))
                    continue; /* figures are checked in release; here, that it stays in bounds */
                if (role == TGT_PREFILL && mask != MASK_RANGE)
                    continue; /* up to 41 rows of one request: trees are checked in verify */
                int window = i == 1 ? 37 : 0;
                if (kv_type != DT_F32 && role != TGT_PREFILL && role != TGT_VERIFY)
                    continue; /* roles differ in nothing that a type could touch */
                bool extras = (i + role + mask) % 3 == 0;
                struct scene s = scene_make(&r, &shapes[i], kind, (enum attn_mask)mask, kv_type,
                                            window, role == TGT_PREFILL, extras);
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
    for (int dt = 0; dt < DT_COUNT; dt++) {
        enum dtype kv = (enum dtype)dt;
        if (!(b->caps.kv_types >> dt & 1))
            continue;
        if (b->caps.kinds & ATTN_GQA)
            check_backend(b, ATTN_GQA, kv, shapes_gqa, ARRAY_LEN(shapes_gqa));
        if (b->caps.kinds & ATTN_MLA_ABSORBED)
            check_backend(b, ATTN_MLA_ABSORBED, kv, shapes_absorbed, ARRAY_LEN(shapes_absorbed));
        if (b->caps.kinds & ATTN_MLA_DECOMPRESSED)
            check_backend(b, ATTN_MLA_DECOMPRESSED, kv, shapes_full, ARRAY_LEN(shapes_full));
    }
}
END_TEST

/* What an fp8 cache costs: attention over e4m3(k), e4m3(v) beside that over k and v, both in
 * double. An element is off by at most 2^-4 of itself (half a unit of 3 bits), by 0.026 in the mean
 * square: x in [1, 2) is off by u / sqrt(12), u = 1/8, and 1 / E(x^2) = 1 / 2.08 for values spread
 * by their logarithm. Values of both signs average as their errors do, so the outputs keep that
 * relative error; scores of unit keys and queries move by 0.026 at scale 1 / sqrt(qk), which
 * changes weights by as little. Bound: 0.05 of the outputs' norm, and 2^-4 of the largest value and
 * that again for the weights in any one element. */
START_TEST(fp8_keeps)
{
    static const struct shape *const shapes[] = {&shapes_gqa[0], &shapes_absorbed[0]};
    static const enum attn_kind kinds[] = {ATTN_GQA, ATTN_MLA_ABSORBED};
    struct rng r = {17}, same = {17};
    struct scene a = scene_make(&r, shapes[_i], kinds[_i], MASK_RANGE, DT_F32, 0, true, false);
    struct scene b =
        scene_make(&same, shapes[_i], kinds[_i], MASK_RANGE, DT_F8E4M3, 0, true, false);
    size_t no = (size_t)a.rows * (size_t)a.n_head * (size_t)a.v;
    size_t nl = (size_t)a.rows * (size_t)a.n_head;
    double *x = mem_alloc(no * sizeof *x), *y = mem_alloc(no * sizeof *y);
    double *lse = mem_alloc(nl * sizeof *lse), top = 0, sum = 0, diff = 0, worst = 0;
    scene_oracle(&a, 1 / sqrtf((float)a.qk), x, lse);
    scene_oracle(&b, 1 / sqrtf((float)a.qk), y, lse);
    const float *v = a.kind == ATTN_GQA ? a.vals : a.keys;
    for (int i = 0; i < REQS * KEYS_MAX * (a.kind == ATTN_GQA ? a.v_width : a.k_width); i++)
        top = fabs((double)v[i]) > top ? fabs((double)v[i]) : top;
    for (size_t i = 0; i < no; i++) {
        sum += x[i] * x[i];
        diff += (x[i] - y[i]) * (x[i] - y[i]);
        worst = fabs(x[i] - y[i]) > worst ? fabs(x[i] - y[i]) : worst;
    }
    printf("fp8: outputs off by %.4f of their norm, at most %.4f of values within %.2f\n",
           sqrt(diff / sum), worst, top);
    ck_assert_msg(sqrt(diff / sum) < 0.05, "%g", sqrt(diff / sum));
    ck_assert_msg(worst < top / 8, "%g of %g", worst, top);
    mem_free(x);
    mem_free(y);
    mem_free(lse);
    scene_free(&a);
    scene_free(&b);
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
    const struct shape *h = kind == ATTN_GQA            ? &shapes_gqa[0]
                            : kind == ATTN_MLA_ABSORBED ? &shapes_absorbed[0]
                                                        : &shapes_full[0];
    struct t_devs t;
    t_open(&t);
    for (int mask = MASK_RANGE; mask <= MASK_TREE; mask *= 2) {
        struct rng r = {31};
        enum role role = mask == MASK_RANGE ? TGT_PREFILL : TGT_VERIFY;
        enum dtype kv = kind == ATTN_GQA ? DT_F8E4M3 : DT_F32;
        struct scene s =
            scene_make(&r, h, kind, (enum attn_mask)mask, kv, 0, mask == MASK_RANGE, false);
        size_t row = (size_t)s.n_head * (size_t)s.v, no = (size_t)s.rows * row;
        float *clean = mem_alloc(no * sizeof *clean), *out = mem_alloc(no * sizeof *out);
        int compared = 0, touched = 0;
        for (int req = 1; req < REQS; req++)
            for (int back = 0; back < 6; back += 1 + SANITIZED) {
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
                    struct attn_need need = scene_need(&s, role, 16, 0);
                    struct attn_call c = scene_call(&s, &g, role, 0.2f, poison ? out : clean, NULL);
                    scene_run(b, t.d[t.n - 1], &s, &g, &need, &c, false);
                    paged_free(&g);
                }
                for (int i = 0; i < s.rows; i++) {
                    if (s.slot[i] == req && scene_sees(&s, i, p)) {
                        touched += out[(size_t)i * row] != out[(size_t)i * row];
                        continue;
                    }
                    compared += s.slot[i] == req;
                    t_same_bits("hidden value", clean + (size_t)i * row, out + (size_t)i * row,
                                row * sizeof *out);
                }
                scene_free(&s); /* without the poison again */
                r.s = 31;
                s = scene_make(&r, h, kind, (enum attn_mask)mask, kv, 0, mask == MASK_RANGE, false);
            }
        ck_assert_int_gt(compared, 20 / (1 + SANITIZED));
        ck_assert_int_gt(touched, 20 / (1 + SANITIZED));
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
    struct scene s = scene_make(&r, &shapes_gqa[0], ATTN_GQA, MASK_RANGE, DT_F32, 0, false, false);
    struct paged g = paged_make(&s, &r, 16);
    struct attn_need need = scene_need(&s, TGT_VERIFY, 16, 0);
    struct graph_dims dims = {REQS, REQS, s.rows, 8, g.pages_max, TGT_VERIFY};
    struct err e = {0};
    struct attn *a;
    const struct attn_backend *b = attn_backends[0];
    size_t no = (size_t)s.rows * (size_t)s.n_head * (size_t)s.v;
    float *out = mem_alloc(no * sizeof *out);
    ck_assert_int_eq(b->open(&a, t.d[0], &need, &dims, &e), OK);
    struct attn_call c = scene_call(&s, &g, TGT_VERIFY, 1, out, NULL), x;
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
    need.kv_type = DT_F8E4M3;
    ck_assert_int_eq(b->open(&a, t.d[0], &need, &dims, &e), OK);
    ck_assert_int_eq(b->plan(a, &dims, &e), OK);
    x = c;
    x.kv_type = DT_F8E4M3;
    x.v_scale = 0;
    ck_assert_int_eq(b->run(a, &x, &e), E_INVAL);
    ck_assert_ptr_nonnull(strstr(e.text, "scales"));
    b->close(a);
    mem_free(out);
    paged_free(&g);
    scene_free(&s);
    t_close(&t);
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
    tcase_add_loop_test(t, fp8_keeps, 0, 2);
    suite_add_tcase(s, t);
    t = tcase_create("refusals");
    tcase_add_test(t, refusals);
    suite_add_tcase(s, t);
    return s;
}
