/* Goal: pages are neither lost nor given twice, and each group keeps its own page life.
 * Method: hand-made cases, then random operations against a plain model of who owns what. */
#include <check.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/rng.h"
#include "engine/kv/pages.h"
#include "test/sanitize.h"

enum { SET_MAX = 512 };

static struct kv *open_two(int page, int n0, int n1, int window)
{
    struct kv_conf c = {.page = page, .n_group = 2};
    c.group[0].n_page = n0;
    c.group[1].n_page = n1;
    c.group[0].pages_max = c.group[1].pages_max = 256;
    c.group[1].window = window;
    struct kv *k = NULL;
    ck_assert_int_eq(kv_open(&k, &c, NULL), OK);
    return k;
}

START_TEST(grow_and_release)
{
    struct kv *k = open_two(16, 10, 10, 0);
    struct kv_seq s = {0};
    struct page_set set[SET_MAX];
    ck_assert_int_eq(kv_grow(k, &s, 3, 1, set, SET_MAX), 2);
    for (int g = 0; g < 2; g++)
        ck_assert(set[g].group == g && set[g].slot == 3 && set[g].index == 0);
    ck_assert_int_eq(kv_grow(k, &s, 3, 16, set, SET_MAX), 0); /* the page has room */
    ck_assert_int_eq(kv_grow(k, &s, 3, 17, set, SET_MAX), 2);
    ck_assert_int_eq(set[0].index, 1);
    ck_assert_int_eq(kv_grow(k, &s, 3, 160, set, SET_MAX), 16);
    ck_assert_int_eq(kv_free_pages(k, 0), 0);
    ck_assert_int_eq(kv_grow(k, &s, 3, 161, set, SET_MAX), E_NOMEM); /* and nothing changed */
    ck_assert_int_eq(kv_held(&s, 0), 10);
    kv_check(k);
    ck_assert_int_eq(kv_shrink(k, &s, 33), 14);
    ck_assert_int_eq(kv_held(&s, 1), 3);
    kv_release(k, &s);
    ck_assert_int_eq(kv_used_pages(k, 0) + kv_used_pages(k, 1), 0);
    kv_check(k);
    kv_seq_done(k, &s);
    kv_close(k);
}
END_TEST

START_TEST(room_of_the_entry_list)
{
    struct kv *k = open_two(4, 50, 50, 0);
    struct kv_seq s = {0};
    struct page_set set[8];
    ck_assert_int_eq(kv_grow(k, &s, 1, 20, set, 8), E_NOMEM); /* 10 entries */
    ck_assert_int_eq(kv_reach(k, &s, 20, 8), 16);
    ck_assert_int_eq(kv_reach(k, &s, 20, 7), 12);
    ck_assert_int_eq(kv_reach(k, &s, 20, 0), 0);
    ck_assert_int_eq(kv_grow(k, &s, 1, 16, set, 8), 8);
    ck_assert_int_eq(kv_reach(k, &s, 1000, 1000), 200); /* the pool */
    ck_assert_int_eq(kv_reach(k, &s, 13, 0), 13);
    kv_seq_done(k, &s);
    kv_close(k);
}
END_TEST

START_TEST(window_gives_back)
{
    struct kv *k = open_two(4, 100, 6, 9);
    struct kv_seq s = {0};
    struct page_set set[SET_MAX];
    for (int pos = 0; pos < 300; pos++) { /* one row a step: pages behind the window suffice */
        kv_pass(k, &s, pos);
        ck_assert_int_ge(kv_grow(k, &s, 1, pos + 1, set, SET_MAX), 0);
        ck_assert_int_eq(kv_held(&s, 0), pos / 4 + 1);
        ck_assert_int_le(kv_held(&s, 1), kv_need(k, 1, 300, 1));
        int oldest = pos + 1 > 9 ? pos + 1 - 9 : 0; /* everything visible is held */
        ck_assert_int_le(s.t[1].first * 4, oldest);
        ck_assert_int_gt(s.t[1].first * 4 + 4, oldest);
        kv_check(k);
    }
    ck_assert_int_eq(kv_need(k, 0, 300, 1), 75);
    ck_assert_int_eq(kv_need(k, 1, 300, 1), 3);
    ck_assert_int_eq(kv_capacity(k, 1), 400);
    ck_assert_int_eq(kv_capacity(k, 17), 24); /* 25 positions may touch 8 pages: not to be had */
    kv_seq_done(k, &s);
    kv_close(k);
}
END_TEST

START_TEST(shared_pages)
{
    struct kv *k = open_two(4, 4, 4, 0);
    struct kv_seq s = {0};
    struct page_set set[SET_MAX];
    ck_assert_int_eq(kv_grow(k, &s, 1, 8, set, SET_MAX), 4);
    int32_t page = s.t[0].page[0];
    kv_ref(k, 0, page);
    kv_release(k, &s);
    ck_assert_int_eq(kv_used_pages(k, 0), 1); /* somebody else still reads it */
    kv_check(k);
    kv_unref(k, 0, page);
    ck_assert_int_eq(kv_used_pages(k, 0), 0);
    kv_seq_done(k, &s);
    kv_close(k);
}
END_TEST

START_TEST(refused)
{
    struct kv *k = NULL;
    struct err e = {0};
    struct kv_conf c = {.page = 16, .n_group = 1, .group = {{.n_page = 0, .pages_max = 1}}};
    ck_assert_int_eq(kv_open(&k, &c, &e), E_INVAL);
    ck_assert(strstr(e.text, "group 0") && k == NULL);
    c.n_group = LIM_KV_GROUPS + 1;
    ck_assert_int_eq(kv_open(&k, &c, NULL), E_INVAL);
}
END_TEST

enum { SEQS = 12, MODEL_PAGES = 40 };

/* Every entry of every table names a page that no other table names. */
static void check_owners(struct kv *k, const struct kv_seq *s)
{
    for (int g = 0; g < 2; g++) {
        int owner[MODEL_PAGES] = {0}, n = 0;
        for (int i = 0; i < SEQS; i++)
            for (int j = s[i].t[g].first; j < s[i].t[g].end; j++, n++) {
                int32_t p = s[i].t[g].page[j];
                ck_assert(p >= 0 && p < MODEL_PAGES && owner[p] == 0);
                owner[p] = i + 1;
            }
        ck_assert_int_eq(n, kv_used_pages(k, g));
    }
}

START_TEST(random_operations)
{
    struct rng r = {(uint64_t)_i};
    struct kv *k = open_two(1 << (2 * (_i % 3)), MODEL_PAGES, MODEL_PAGES, 1 + _i % 20);
    struct kv_seq s[SEQS] = {0};
    int len[SEQS] = {0}, no = 0;
    struct page_set set[SET_MAX];
    for (int step = 0; step < 3000; step++) {
        int i = (int)rng_below(&r, SEQS), want = len[i] + (int)rng_below(&r, 30);
        int room = (int)rng_below(&r, 20), reach, n;
        switch (rng_below(&r, 8)) {
        case 0:
            kv_release(k, &s[i]);
            len[i] = 0;
            break;
        case 1:
            if (len[i]) {
                len[i] -= (int)rng_below(&r, (uint64_t)len[i]);
                kv_shrink(k, &s[i], len[i]);
            }
            break;
        case 2:
            kv_pass(k, &s[i], len[i]);
            break;
        default:
            want = want > 200 ? 200 : want;
            reach = kv_reach(k, &s[i], want, room);
            n = kv_grow(k, &s[i], i + 1, want, set, room);
            ck_assert_int_eq(n >= 0, reach >= want); /* reach says what grow will do */
            if (n < 0 && reach > len[i]) {
                n = kv_grow(k, &s[i], i + 1, reach, set, room);
                ck_assert_int_ge(n, 0);
                want = reach;
            }
            no += n < 0;
            if (n >= 0)
                len[i] = want > len[i] ? want : len[i];
        }
        kv_check(k);
        check_owners(k, s);
    }
    ck_assert_int_gt(no, 0);
    for (int i = 0; i < SEQS; i++)
        kv_seq_done(k, &s[i]);
    ck_assert_int_eq(kv_used_pages(k, 0) + kv_used_pages(k, 1), 0);
    kv_close(k);
}
END_TEST

Suite *suite_kv(void);
Suite *suite_kv(void)
{
    Suite *s = suite_create("kv");
    TCase *c = tcase_create("pages");
    one_thread(c);
    tcase_add_test(c, grow_and_release);
    tcase_add_test(c, room_of_the_entry_list);
    tcase_add_test(c, window_gives_back);
    tcase_add_test(c, shared_pages);
    tcase_add_test(c, refused);
    tcase_add_loop_test(c, random_operations, 0, 9);
    suite_add_tcase(s, c);
    return s;
}
