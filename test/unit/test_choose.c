/* Goal: the device decision, every row of it, without a GPU: auto takes a usable GPU and else the
 * CPU with the reason, a name is honoured or refused with a reason that names both sides. */
#include <check.h>
#include <string.h>

#include "engine/base/check.h"
#include "kernels/choose.h"
#include "kernels/device.h"

/* clang-format off */
static const struct row {
    const char *what;
    struct gpu_facts f;
    int ret;                 /* of --device cuda */
    const char *word, *word2; /* in its reason, and in that of auto */
} rows[] = {
    {"cpu build",        {.built = false}, E_UNSUPPORTED, "not part of this build", NULL},
    {"cpu build, gpu",   {.driver = 13000, .toolkit = 0, .count = 1, .sm = 90}, E_UNSUPPORTED, "not part of this build", NULL},
    {"no driver",        {.built = true, .toolkit = 13000, .fault = "x"}, E_UNSUPPORTED, "no NVIDIA driver", NULL},
    {"older driver",     {.built = true, .driver = 12080, .toolkit = 13000, .fault = "x"}, E_UNSUPPORTED, "12.8", "13.0"},
    {"older, no fault",  {.built = true, .driver = 11080, .toolkit = 12040, .count = 1, .sm = 90}, E_UNSUPPORTED, "11.8", "12.0"},
    {"fault",            {.built = true, .driver = 13000, .toolkit = 13000, .fault = "out of order"}, E_UNSUPPORTED, "out of order", NULL},
    {"no gpu",           {.built = true, .driver = 13000, .toolkit = 13000}, E_UNSUPPORTED, "finds no GPU", NULL},
    {"no such gpu",      {.built = true, .driver = 13000, .toolkit = 13000, .count = 2, .ordinal = 2, .sm = 0}, E_INVAL, "GPU 2", "there are 2"},
    {"negative gpu",     {.built = true, .driver = 13000, .toolkit = 13000, .count = 2, .ordinal = -1}, E_INVAL, "GPU -1", NULL},
    {"sm too old",       {.built = true, .driver = 13000, .toolkit = 13000, .count = 1, .sm = 75}, E_UNSUPPORTED, "sm_75", "sm_80"},
    {"oldest sm",        {.built = true, .driver = 13000, .toolkit = 13000, .count = 1, .sm = 80}, OK, NULL, NULL},
    {"usable",           {.built = true, .driver = 13000, .toolkit = 13000, .count = 1, .sm = 90}, OK, NULL, NULL},
    {"same major",       {.built = true, .driver = 12040, .toolkit = 12080, .count = 1, .sm = 90}, OK, NULL, NULL},
    {"newer driver",     {.built = true, .driver = 13010, .toolkit = 12080, .count = 8, .ordinal = 7, .sm = 120}, OK, NULL, NULL},
};
/* clang-format on */

static void expect_words(const struct row *r, const struct err *e)
{
    ck_assert_msg(strstr(e->text, r->word) != NULL, "%s: %s", r->what, e->text);
    ck_assert_msg(!r->word2 || strstr(e->text, r->word2), "%s: %s", r->what, e->text);
}

START_TEST(table)
{
    const struct row *r = &rows[_i];
    const char *name = NULL;
    struct err e = {0}, why = {0};
    ck_assert_int_eq(dev_decide(&name, "cuda", &r->f, &why, &e), r->ret);
    if (r->ret == OK)
        ck_assert_str_eq(name, "cuda");
    else
        expect_words(r, &e);
    static const char *const any[] = {"auto", NULL};
    for (size_t i = 0; i < ARRAY_LEN(any); i++) {
        ck_assert_int_eq(dev_decide(&name, any[i], &r->f, &why, &e), OK);
        ck_assert_str_eq(name, r->ret == OK ? "cuda" : "cpu");
        ck_assert_int_eq(why.code, r->f.built ? r->ret : OK);
        if (why.code != OK)
            expect_words(r, &why);
    }
    ck_assert_int_eq(dev_decide(&name, "cpu", &r->f, &why, &e), OK);
    ck_assert_str_eq(name, "cpu");
    ck_assert_int_eq(why.code, OK);
    ck_assert_int_eq(dev_decide(&name, "tpu", &r->f, &why, &e), E_UNSUPPORTED);
    ck_assert_msg(strstr(e.text, "tpu") != NULL, "%s", e.text);
}
END_TEST

START_TEST(ordinals)
{
    static const struct {
        const char *want;
        int ret, n;
    } list[] = {{NULL, OK, 0},           {"auto", OK, 0},         {"cpu", OK, 0},
                {"cuda", OK, 0},         {"cuda:0", OK, 0},       {"cuda:3", OK, 3},
                {"cuda:", E_INVAL, 0},   {"cuda:x", E_INVAL, 0},  {"cuda:-1", E_INVAL, 0},
                {"cuda:1x", E_INVAL, 0}, {"cuda: 1", E_INVAL, 0}, {"cuda:99999", E_INVAL, 0}};
    for (size_t i = 0; i < ARRAY_LEN(list); i++) {
        struct err e = {0};
        int n = -1;
        ck_assert_int_eq(dev_ordinal(&n, list[i].want, &e), list[i].ret);
        if (list[i].ret == OK)
            ck_assert_int_eq(n, list[i].n);
        else
            ck_assert_msg(strstr(e.text, list[i].want) != NULL, "%s", e.text);
    }
    /* the number reaches the decision through the facts that were asked for it */
    struct gpu_facts f = {
        .built = true, .driver = 13000, .toolkit = 13000, .count = 2, .ordinal = 1, .sm = 90};
    struct err e = {0}, why = {0};
    const char *name;
    ck_assert_int_eq(dev_decide(&name, "cuda:1", &f, &why, &e), OK);
    ck_assert_str_eq(name, "cuda");
    f.ordinal = 2;
    ck_assert_int_eq(dev_decide(&name, "cuda:2", &f, &why, &e), E_INVAL);
    ck_assert_msg(strstr(e.text, "GPU 2") != NULL, "%s", e.text);
}
END_TEST

/* What the decision names is part of the build it was made for. */
START_TEST(this_machine)
{
    struct gpu_facts f;
    struct err e = {0}, why;
    const char *name;
    dev_facts(&f, 0);
    ck_assert_int_eq(f.built, HAVE_CUDA);
    ck_assert_int_eq(dev_decide(&name, "auto", &f, &why, &e), OK);
    ck_assert_ptr_nonnull(dev_find(name));
}
END_TEST

Suite *suite_choose(void);
Suite *suite_choose(void)
{
    Suite *s = suite_create("choose");
    TCase *t = tcase_create("choose");
    tcase_add_loop_test(t, table, 0, (int)ARRAY_LEN(rows));
    tcase_add_test(t, ordinals);
    tcase_add_test(t, this_machine);
    suite_add_tcase(s, t);
    return s;
}
