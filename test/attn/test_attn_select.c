/* Goal: the choice of attention backends, page sizes and dimensions refuses with reasons that name
 * both sides, for target and drafter roles.
 * Method: needs against the backends of this build and against capability data made for the case;
 * nothing is run. */
#include <check.h>
#include <string.h>

#include "attention/attn.h"
#include "engine/base/check.h"

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

Suite *suite_attn_select(void);
Suite *suite_attn_select(void)
{
    Suite *s = suite_create("attn_select");
    TCase *t = tcase_create("select");
    tcase_add_test(t, selection);
    tcase_add_test(t, capability_misses);
    tcase_add_test(t, page_sizes);
    tcase_add_test(t, dims);
    suite_add_tcase(s, t);
    return s;
}
