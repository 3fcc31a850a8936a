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
    n.kv_type = DT_F16;
    n.cp = 4;
    n.page = 32;
    n.n_head = 10;
    ck_assert_int_eq(attn_check(attn_backends[0], &n, &e), E_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(e.text, "f16"));
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

/* ---- roles of drafters that read the target's KV (DRF_FROZEN) or draft a block at once
 * (DRF_BLOCK)
 * ---- */

enum { B = 6, K = 3, N = 8, GAMMA = 7, PAGES = 10 };

static const struct {
    enum attn_kind kind;
    const char *cpu, *cuda; /* the backend that serves the kind; NULL: none does */
    int n_head, n_kv;
    struct attn_dims dims;
} g_kinds[] = {{ATTN_GQA, "ref-gqa", "mma", 9, 3, {64, 64}},
               {ATTN_MLA_ABSORBED, "ref-mla", "mma-mla", 16, 1, {576, 512}},
               {ATTN_MLA_DECOMPRESSED, "ref-mla-full", NULL, 16, 1, {192, 128}}};

/* Needs of the step of such a drafter: the target's prefill and verify, then the drafter's role. */
static void drafter_needs(struct attn_need n[3], size_t kind, enum role role, bool cuda)
{
    for (int i = 0; i < 3; i++) {
        n[i] = plain_need();
        n[i].kind = g_kinds[kind].kind;
        n[i].n_head = g_kinds[kind].n_head;
        n[i].n_kv = g_kinds[kind].n_kv;
        n[i].dims = g_kinds[kind].dims;
        n[i].sm = cuda ? 90 : 0;
        n[i].kv_type = cuda ? DT_BF16 : DT_F32;
    }
    n[0].role = TGT_PREFILL;
    n[0].q_len_max = 0;
    n[1].q_len_max = N;
    n[1].mask = role == DRF_BLOCK ? MASK_RANGE : MASK_TREE;
    n[2].role = role;
    n[2].mask = role == DRF_BLOCK ? MASK_BLOCK : MASK_RANGE;
    n[2].q_len_max = role == DRF_BLOCK ? GAMMA : 1;
}

static void refused(const struct attn_backend *b, const struct attn_need *n, const char *why)
{
    struct err e = {0};
    ck_assert_int_eq(attn_check(b, n, &e), E_UNSUPPORTED);
    ck_assert_msg(strstr(e.text, why) != NULL, "'%s' lacks '%s'", e.text, why);
    ck_assert_msg(strchr(e.text, ';') == NULL, "'%s' should be one reason", e.text);
}

/* On every device of the build, by the data alone: which backend serves a role, and the page size
 * that a frozen drafter shares with its target. */
START_TEST(drafter_roles)
{
    static const enum role roles[] = {DRF_FROZEN, DRF_BLOCK};
    for (size_t k = 0; k < ARRAY_LEN(g_kinds); k++)
        for (size_t i = 0; i < ARRAY_LEN(roles); i++)
            for (int cuda = 0; cuda <= HAVE_CUDA; cuda++) {
                const char *device = cuda ? "cuda" : "cpu";
                const char *name = cuda ? g_kinds[k].cuda : g_kinds[k].cpu;
                struct attn_need n[3], odd;
                drafter_needs(n, k, roles[i], cuda);
                const struct attn_backend *b = NULL;
                struct err e = {0};
                int page = 0;
                if (!name) {
                    ck_assert_int_eq(attn_select(&b, device, &n[2], NULL, &e), E_UNSUPPORTED);
                    ck_assert_ptr_nonnull(strstr(e.text, "portable-mla: does not do mla decomp"));
                    ck_assert_ptr_nonnull(strstr(e.text, role_name(roles[i])));
                    ck_assert_int_eq(attn_page_size(&page, device, n, 3, 0, &e), E_UNSUPPORTED);
                    continue;
                }
                for (int j = 0; j < 3; j++) {
                    ck_assert_msg(attn_select(&b, device, &n[j], NULL, &e) == OK, "%s", e.text);
                    ck_assert_str_eq(b->name, name);
                }
                ck_assert_msg(attn_page_size(&page, device, n, 3, 0, &e) == OK, "%s", e.text);
                ck_assert_int_eq(page, 16);
                int only = cuda ? 32 : 1, other = cuda ? 1 : 32; /* of one device */
                ck_assert_int_eq(attn_page_size(&page, device, n, 3, only, &e), OK);
                ck_assert_int_eq(page, only);
                ck_assert_int_eq(attn_page_size(&page, device, n, 3, other, &e), E_UNSUPPORTED);
                ck_assert_ptr_nonnull(strstr(e.text, cuda ? "16, 32, 64" : "1, 16, 64"));
                odd = n[2];
                odd.page = other;
                refused(b, &odd, cuda ? "pages of 1 tokens" : "pages of 32 tokens");
                odd = n[2];
                odd.kv_type = DT_F16;
                refused(b, &odd, "f16");
                odd = n[2];
                odd.mask = (enum attn_mask)(MASK_RANGE | MASK_BLOCK);
                refused(b, &odd, "not one mask");
                if (cuda) { /* the prefill roles of the CUDA backends are causal only */
                    odd = n[0];
                    odd.mask = n[2].mask == MASK_BLOCK ? MASK_BLOCK : MASK_TREE;
                    refused(b, &odd, "masks are not offered in role tgt_prefill");
                    odd = n[2];
                    odd.sm = 75;
                    refused(b, &odd, "compute capability 80");
                }
                /* a role that nobody serves fails the whole list, by name */
                n[2].cp = 2;
                ck_assert_int_eq(attn_page_size(&page, device, n, 3, 0, &e), E_UNSUPPORTED);
                ck_assert_ptr_nonnull(strstr(e.text, role_name(roles[i])));
                ck_assert_int_eq(page, only);
            }
}
END_TEST

/* What a less able backend would declare: each limit of such a role is refused with its reason. */
START_TEST(drafter_role_limits)
{
    struct attn_backend b = {.name = "narrow", .device = "cpu"};
    b.caps = (struct attn_caps){
        .kinds = ATTN_GQA, .kv_types = 1u << DT_F32, .page_sizes = 1u << 4, .cp_max = 1};
    struct attn_need n[3];
    struct err e = {0};
    drafter_needs(n, 0, DRF_BLOCK, false);
    refused(&b, &n[2], "does not offer role drf_block");
    struct attn_role_caps *c = &b.caps.role[DRF_BLOCK];
    *c = (struct attn_role_caps){.masks = MASK_RANGE, .graph = GRAPH_ANY};
    refused(&b, &n[2], "block masks are not offered in role drf_block");
    *c = (struct attn_role_caps){.masks = MASK_BLOCK, .graph = GRAPH_ANY, .uniform = true};
    refused(&b, &n[2], "role drf_block needs the same number of rows"); /* budgets are ragged */
    *c = (struct attn_role_caps){.masks = MASK_BLOCK, .graph = GRAPH_UNIFORM};
    refused(&b, &n[2], "drf_block can be captured for uniform rows, any rows is needed");
    *c = (struct attn_role_caps){.masks = MASK_BLOCK, .graph = GRAPH_ANY, .q_len_max = GAMMA - 1};
    refused(&b, &n[2], "at most 6 rows a request, 7 needed");
    c->q_len_max = GAMMA;
    ck_assert_msg(attn_check(&b, &n[2], &e) == OK, "%s", e.text);
    drafter_needs(n, 0, DRF_FROZEN, false);
    refused(&b, &n[2], "does not offer role drf_frozen"); /* one role says nothing about another */
    b.caps.role[DRF_FROZEN] = (struct attn_role_caps){
        .masks = MASK_RANGE, .graph = GRAPH_ONE_TOKEN, .q_len_max = 1, .uniform = true};
    refused(&b, &n[2], "drf_frozen can be captured for one token a request");
    n[2].graph = GRAPH_ONE_TOKEN; /* a sequence has one row, whatever K is */
    ck_assert_msg(attn_check(&b, &n[2], &e) == OK, "%s", e.text);
    n[2].q_len_max = K;
    ck_assert_int_eq(attn_check(&b, &n[2], &e), E_UNSUPPORTED);
}
END_TEST

static void too_small(const struct graph_dims *have, const struct graph_dims *want, const char *why)
{
    struct err e = {0};
    ck_assert_int_eq(graph_dims_check(have, want, "buffer", &e), E_INVAL);
    ck_assert_msg(strstr(e.text, why) != NULL, "'%s' lacks '%s'", e.text, why);
}

/* A frozen drafter has reqs * K sequences of one row; a block drafter has two counts of rows, B * N
 * of its verify and B * gamma of its pass, and rows that inject context. A buffer sized by one of
 * the others is refused by the member that is too small. */
START_TEST(drafter_dims)
{
    struct err e = {0};
    struct graph_dims frozen = {B, B * K, B * K, 1, PAGES, DRF_FROZEN}, w = frozen;
    ck_assert_int_eq(graph_dims_check(&frozen, &w, "buffer", &e), OK);
    struct graph_dims by_reqs = {B, B, B * K, 1, PAGES, DRF_FROZEN};
    too_small(&by_reqs, &frozen, "seqs 18, made for at most 6");
    by_reqs.seqs = B * K;
    by_reqs.rows = B;
    too_small(&by_reqs, &frozen, "rows 18, made for at most 6");
    w.seqs++;
    too_small(&frozen, &w, "seqs 19, made for at most 18");
    w = (struct graph_dims){B + 1, B * K, B * K,
                            1,     PAGES, DRF_FROZEN}; /* fewer branches, more reqs */
    too_small(&frozen, &w, "reqs 7, made for at most 6");
    w = frozen;
    w.qlen = K; /* K rows of one sequence are another layout, not the same number of rows */
    too_small(&frozen, &w, "qlen 3, made for at most 1");
    w = frozen;
    w.role = DRF_DECODE;
    too_small(&frozen, &w, "role drf_decode, made for drf_frozen");

    struct graph_dims block = {B, B, B * GAMMA, GAMMA, PAGES, DRF_BLOCK};
    struct graph_dims verify = {B, B, B * N, N, PAGES, TGT_VERIFY};
    struct graph_dims ragged = {B, B, GAMMA + 2 * (B - 1), GAMMA, PAGES, DRF_BLOCK};
    struct graph_dims inject = {B, B, B * N, N, PAGES, DRF_BLOCK}; /* up to N accepted a request */
    ck_assert_int_eq(graph_dims_check(&block, &ragged, "buffer", &e), OK);
    too_small(&block, &verify, "role tgt_verify, made for drf_block");
    too_small(&block, &inject, "rows 48, made for at most 42");
    w = inject;
    w.rows = B * GAMMA;
    too_small(&block, &w, "qlen 8, made for at most 7");
    ck_assert_int_eq(graph_dims_check(&inject, &block, "buffer", &e), OK);
    ragged.rows = B * GAMMA + 1;
    too_small(&block, &ragged, "rows 43, made for at most 42");
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
    t = tcase_create("drafters");
    tcase_add_test(t, drafter_roles);
    tcase_add_test(t, drafter_role_limits);
    tcase_add_test(t, drafter_dims);
    suite_add_tcase(s, t);
    return s;
}
