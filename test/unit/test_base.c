/* Goal: the small things everything stands on: buffers with bounds, UTF-8 by the standard's table,
 * JSON getters that coerce nothing. Method: hand-made cases, each with a wrong twin. */
#include <check.h>
#include <string.h>

#include "engine/base/buf.h"
#include "engine/base/js.h"
#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "test/sanitize.h"

START_TEST(buffer_bounds)
{
    struct buf b;
    buf_init(&b, 8);
    ck_assert_int_eq(buf_str(&b, "12345678"), OK);
    ck_assert_int_eq(buf_char(&b, '9'), E_RANGE);
    ck_assert(b.full);
    ck_assert_str_eq(buf_cstr(&b), "12345678");
    buf_drop(&b, 6);
    ck_assert_str_eq(buf_cstr(&b), "78");
    buf_done(&b);
}
END_TEST

START_TEST(utf8_table)
{
    static const struct {
        const char *s;
        int n, want;
    } cases[] = {
        {"a", 1, 1},
        {"\xc3\xa4", 2, 2},
        {"\xe2\x82\xac", 3, 3},
        {"\xf0\x9f\x98\x80", 4, 4},
        {"\xc3", 1, 0},
        {"\xf0\x9f", 2, 0},
        {"\xc0\x80", 2, -1},
        {"\xed\xa0\x80", 3, -1},
        {"\xf4\x90", 2, -1},
        {"\xe2\x82"
         "A",
         3, -2},
        {"\x80", 1, -1},
        {"\xf0\x9f\x98"
         "A",
         4, -3},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint32_t cp;
        ck_assert_int_eq(utf8_decode(cases[i].s, (size_t)cases[i].n, &cp), cases[i].want);
    }
    for (uint32_t cp = 0; cp <= 0x10ffff; cp++) {
        if (cp >= 0xd800 && cp <= 0xdfff)
            continue;
        char out[4];
        uint32_t back;
        int k = utf8_encode(cp, out);
        ck_assert_int_eq(utf8_decode(out, (size_t)k, &back), k);
        ck_assert_uint_eq(back, cp);
    }
}
END_TEST

START_TEST(json_getters)
{
    struct err e = {0};
    json_t *o = NULL;
    const char text[] = "{\"a\":5.0,\"b\":null,\"c\":\"7\",\"d\":true,\"f\":2.5}";
    ck_assert_int_eq(js_parse(&o, text, strlen(text), "test", &e), OK);
    int64_t v = 0;
    ck_assert_int_eq(js_get_i64(o, "a", 0, 9, &v, &e), 1);
    ck_assert_int_eq(v, 5);
    ck_assert_int_eq(js_get_i64(o, "b", 0, 9, &v, &e), 0);
    ck_assert_int_eq(js_get_i64(o, "c", 0, 9, &v, &e), E_INVAL);
    ck_assert_ptr_nonnull(strstr(e.text, "'c'"));
    ck_assert_int_eq(js_get_i64(o, "a", 6, 9, &v, &e), E_INVAL);
    ck_assert_int_eq(js_get_i64(o, "f", 0, 9, &v, &e), E_INVAL);
    bool d = false;
    ck_assert_int_eq(js_get_bool(o, "d", &d, &e), 1);
    ck_assert(d);
    json_decref(o);
    ck_assert_int_eq(js_parse(&o, "{\"a\":1,\"a\":2}", 13, "test", &e), E_FORMAT);
    ck_assert_int_eq(js_parse(&o, "[1]x", 4, "test", &e), E_FORMAT);
}
END_TEST

START_TEST(json_quote)
{
    struct buf b;
    buf_init(&b, 0);
    js_quote(&b, "a\"\\\n\x01\xc3\xa4", 7);
    ck_assert_str_eq(buf_cstr(&b), "\"a\\\"\\\\\\n\\u0001\xc3\xa4\"");
    buf_done(&b);
}
END_TEST

Suite *suite_base(void)
{
    Suite *s = suite_create("base");
    TCase *t = tcase_create("base");
    one_thread(t);
    tcase_add_test(t, buffer_bounds);
    tcase_add_test(t, utf8_table);
    tcase_add_test(t, json_getters);
    tcase_add_test(t, json_quote);
    suite_add_tcase(s, t);
    return s;
}
