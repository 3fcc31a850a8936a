/* Goal: the calls of drafters that read the target's KV (DRF_FROZEN: reqs * K sequences of one row,
 * no KV of their own) and of block drafters (DRF_BLOCK: ragged blocks that are not causal) are
 * served by every CPU backend, and a call for another role, mask or size is refused by name.
 * Method: the same rows through the target's role, alone, and with a later key of the block
 * changed; the cache is compared before and after. Values are checked in test_attn.c. */
#include "test/attn/scene.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "test/ops/util.h"

enum { K = 3, BLOCK_ROWS = 15 };

static const struct shape *shape_of(const struct attn_backend *b)
{
    return b->caps.kinds & ATTN_GQA            ? &shapes_gqa[0]
           : b->caps.kinds & ATTN_MLA_ABSORBED ? &shapes_absorbed[0]
                                               : &shapes_full[0];
}

static float *floats(const struct scene *s)
{
    size_t n = (size_t)s->rows * (size_t)(s->n_head * s->v);
    float *out = mem_alloc(n * sizeof *out);
    memset(out, 0xff, n * sizeof *out);
    return out;
}

/* Every sequence has a page-table row of its own that names the pages of its request. */
START_TEST(frozen)
{
    static const int lens[] = {67, 1, 130};
    const struct attn_backend *b = attn_backends[_i];
    struct t_devs t;
    t_open(&t);
    struct dev *d = t.d[t.n - 1];
    struct rng r = {19};
    enum { N_REQ = ARRAY_LEN(lens), SEQS = N_REQ * K };
    struct scene s = {.kind = (enum attn_kind)b->caps.kinds, .mask = MASK_RANGE};
    for (int i = 0; i < SEQS; i++) {
        s.slot[i] = 1 + i / K;
        s.last[i] = lens[i / K];
    }
    s.rows = SEQS;
    scene_fill(&s, &r, shape_of(b), false);
    struct paged g = paged_make(&s, &r, 16);
    size_t row = (size_t)(s.n_head * s.v), no = SEQS * row;
    float *want = floats(&s), *got = floats(&s);
    struct attn_need need = scene_need(&s, TGT_VERIFY, 16, 0);
    struct attn_call c = scene_call(&s, &g, TGT_VERIFY, 0.2f, want, NULL);
    scene_run(b, d, &s, &g, &need, &c, false);

    int32_t seq[SEQS], *table = mem_alloc((size_t)(SEQS * g.pages_max) * sizeof *table);
    for (int i = 0; i < SEQS; i++) {
        seq[i] = i;
        memcpy(table + i * g.pages_max, g.table + s.slot[i] * g.pages_max,
               (size_t)g.pages_max * sizeof *table);
    }
    size_t kn = (size_t)(g.n_page * g.page * s.k_width),
           vn = (size_t)(g.n_page * g.page * s.v_width);
    float *k0 = mem_dup(g.k, kn * sizeof *k0), *v0 = vn ? mem_dup(g.v, vn * sizeof *v0) : NULL;
    need.role = c.role = DRF_FROZEN;
    need.q_len_max = 1;
    c.out = got;
    c.slot = seq;
    c.table = table;
    struct err e = {0};
    struct attn *a;
    struct graph_dims dims = {N_REQ, SEQS, SEQS, 1, g.pages_max, DRF_FROZEN}, by_reqs = dims;
    by_reqs.seqs = N_REQ;
    ck_assert_int_eq(b->open(&a, d, &need, &by_reqs, &e), OK);
    ck_assert_int_eq(b->plan(a, &dims, &e), E_INVAL);
    ck_assert_ptr_nonnull(strstr(e.text, "seqs 9, made for at most 3"));
    ck_assert_int_eq(b->run(a, &c, &e), E_INVAL); /* nothing was planned */
    b->close(a);
    ck_assert_int_eq(b->open(&a, d, &need, &dims, &e), OK);
    struct graph_dims fewer = dims; /* a smaller bucket: the call must not be larger */
    fewer.rows = fewer.seqs = SEQS - K;
    ck_assert_int_eq(b->plan(a, &fewer, &e), OK);
    ck_assert_int_eq(b->run(a, &c, &e), E_INVAL);
    ck_assert_ptr_nonnull(strstr(e.text, "9 rows, planned for 6"));
    ck_assert_int_eq(b->plan(a, &dims, &e), OK);
    ck_assert_msg(b->run(a, &c, &e) == OK, "%s", e.text);
    b->close(a);
    t_same_bits("frozen sequences against the target's rows", want, got, no * sizeof *got);
    t_same_bits("keys after the run", k0, g.k, kn * sizeof *k0);
    if (v0)
        t_same_bits("values after the run", v0, g.v, vn * sizeof *v0);
    ck_assert(memcmp(got, got + row, row * sizeof *got) != 0); /* the queries differ */
    mem_free(table);
    mem_free(k0);
    mem_free(v0);
    mem_free(want);
    mem_free(got);
    paged_free(&g);
    scene_free(&s);
    t_close(&t);
}
END_TEST

/* Blocks of 4, 1, 7 and 2 rows behind prefixes, and a padding row. */
static struct scene block_scene(const struct attn_backend *b, struct rng *r)
{
    static const int len[] = {30, 0, 121, 16}, n[] = {4, 1, 7, 2};
    struct scene s = {.kind = (enum attn_kind)b->caps.kinds, .mask = MASK_BLOCK};
    for (size_t q = 0; q < ARRAY_LEN(len); q++)
        for (int j = 0; j < n[q]; j++, s.rows++) {
            s.slot[s.rows] = 1 + (int)q;
            s.row0[s.rows] = len[q];
            s.last[s.rows] = len[q] + n[q];
        }
    s.rows++;
    ck_assert_int_eq(s.rows, BLOCK_ROWS);
    scene_fill(&s, r, shape_of(b), false);
    return s;
}

START_TEST(block)
{
    const struct attn_backend *b = attn_backends[_i];
    struct t_devs t;
    t_open(&t);
    struct dev *d = t.d[t.n - 1];
    struct rng r = {23};
    struct scene s = block_scene(b, &r);
    size_t row = (size_t)(s.n_head * s.v);
    float *want = floats(&s), *got = floats(&s);
    struct attn_need need = scene_need(&s, DRF_BLOCK, 16, 0);
    need.q_len_max = 7;
    struct paged g = paged_make(&s, &r, 16);
    struct attn_call c = scene_call(&s, &g, DRF_BLOCK, 0.2f, want, NULL);
    scene_run(b, d, &s, &g, &need, &c, true);
    for (int i = 0, n; i < s.rows; i += n) { /* each block alone: others' budgets do not matter */
        for (n = 1; i + n < s.rows && s.slot[i + n] == s.slot[i]; n++)
            ;
        struct attn_call x = c;
        x.rows = n;
        x.q += i * c.ldq;
        x.out = got + (size_t)i * row;
        x.slot += i;
        x.first += i;
        x.last += i;
        scene_run(b, d, &s, &g, &need, &x, false);
    }
    t_same_bits("blocks alone", want, got, (size_t)s.rows * row * sizeof *got);
    paged_free(&g);
    /* the first row of the block of 7 sees the last one */
    size_t at = (size_t)(3 * KEYS_MAX + s.last[5] - 1);
    for (int i = 0; i < s.k_width; i++)
        s.keys[at * (size_t)s.k_width + (size_t)i] += 1;
    g = paged_make(&s, &r, 64);
    need.page = 64;
    c = scene_call(&s, &g, DRF_BLOCK, 0.2f, got, NULL);
    scene_run(b, d, &s, &g, &need, &c, false);
    for (int i = 0; i < s.rows; i++) {
        bool same = memcmp(want + (size_t)i * row, got + (size_t)i * row, row * sizeof *got) == 0;
        ck_assert_msg(same == (s.slot[i] != 3), "row %d of slot %d", i, (int)s.slot[i]);
    }
    paged_free(&g);
    mem_free(want);
    mem_free(got);
    scene_free(&s);
    t_close(&t);
}
END_TEST

/* An open backend takes calls of its own role and mask, of all roles and masks. */
START_TEST(role_and_mask)
{
    const struct attn_backend *b = attn_backends[_i];
    struct t_devs t;
    t_open(&t);
    struct rng r = {29};
    struct scene s = block_scene(b, &r);
    struct paged g = paged_make(&s, &r, 16);
    float *out = floats(&s);
    for (int role = 0; role < N_ROLES; role++)
        for (int mask = MASK_RANGE; mask <= MASK_BLOCK; mask *= 2) {
            struct attn_need need = scene_need(&s, (enum role)role, 16, 0);
            need.mask = (enum attn_mask)mask;
            struct graph_dims dims = {REQS, REQS, s.rows, 7, g.pages_max, (enum role)role}, w;
            struct err e = {0};
            struct attn *a;
            ck_assert_int_eq(b->open(&a, t.d[0], &need, &dims, &e), OK);
            ck_assert_int_eq(b->plan(a, &dims, &e), OK);
            for (int r2 = 0; r2 < N_ROLES; r2++) {
                w = dims;
                w.role = (enum role)r2;
                ck_assert_int_eq(b->plan(a, &w, &e), r2 == role ? OK : E_INVAL);
                for (int m2 = MASK_RANGE; m2 <= MASK_BLOCK; m2 *= 2) {
                    struct attn_call c = scene_call(&s, &g, (enum role)r2, 1, out, NULL);
                    c.mask = (enum attn_mask)m2;
                    c.rows = 0; /* the check, not the work */
                    bool ok = r2 == role && m2 == mask;
                    ck_assert_int_eq(b->run(a, &c, &e), ok ? OK : E_INVAL);
                    if (r2 != role) {
                        ck_assert_ptr_nonnull(strstr(e.text, role_name((enum role)r2)));
                        ck_assert_ptr_nonnull(strstr(e.text, role_name((enum role)role)));
                    } else if (m2 != mask) {
                        ck_assert_ptr_nonnull(strstr(e.text, "mask"));
                    }
                }
            }
            if (mask == MASK_TREE) {
                struct attn_call c = scene_call(&s, &g, (enum role)role, 1, out, NULL);
                c.mask = MASK_TREE;
                c.row0 = NULL;
                ck_assert_int_eq(b->run(a, &c, &e), E_INVAL);
                ck_assert_ptr_nonnull(strstr(e.text, "row0"));
            }
            b->close(a);
            w = dims; /* need and dims of different roles do not open */
            w.role = (enum role)((role + 1) % N_ROLES);
            ck_assert_int_eq(b->open(&a, t.d[0], &need, &w, &e), E_INVAL);
        }
    mem_free(out);
    paged_free(&g);
    scene_free(&s);
    t_close(&t);
}
END_TEST

Suite *suite_attn_roles(void);
Suite *suite_attn_roles(void)
{
    int n = 0;
    while (attn_backends[n] && strcmp(attn_backends[n]->device, "cpu") == 0)
        n++;
    Suite *s = suite_create("attn_roles");
    TCase *t = tcase_create("drafters");
    tcase_add_loop_test(t, frozen, 0, n);
    tcase_add_loop_test(t, block, 0, n);
    tcase_add_loop_test(t, role_and_mask, 0, n);
    suite_add_tcase(s, t);
    return s;
}
