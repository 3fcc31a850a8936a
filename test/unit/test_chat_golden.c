/* Goal: templates render as the reference (jinja2 in the environment of transformers) renders
 * them, byte for byte, and fail where it fails. Method: golden texts made offline by
 * scripts/data/make_chat_data.py for real templates, own small ones and a list of expressions. */
#include <check.h>

#include "test/unit/chat_cases.h"
#include "test/sanitize.h"

static void all_of(const char *file, int at_least)
{
    struct chat_cases r;
    chat_cases_run(&r, file, "test/data/chat/templates");
    ck_assert_int_eq(r.failed, 0);
    ck_assert_int_ge(r.passed, at_least);
}

START_TEST(real)
{
    all_of("test/data/chat/real.json", 800);
}
END_TEST

START_TEST(own)
{
    all_of("test/data/chat/own.json", 200);
}
END_TEST

START_TEST(expressions)
{
    all_of("test/data/chat/expr.json", 1200);
}
END_TEST

Suite *suite_chat_golden(void)
{
    Suite *s = suite_create("chat_golden");
    TCase *c = tcase_create("goldens");
    one_thread(c);
    tcase_add_test(c, real);
    tcase_add_test(c, own);
    tcase_add_test(c, expressions);
    suite_add_tcase(s, c);
    return s;
}
