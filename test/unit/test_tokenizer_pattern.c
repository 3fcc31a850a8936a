/* Goal: regular expressions mean what tokenizer files mean by them, with and without just-in-time
 * compilation, and no text makes a search run away. Method: hand-made cases whose answers follow
 * from the dialect's manual; hostile texts with a time limit. The agreement with the reference
 * library on whole tokenizers is in test_tokenizer_ref.c. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/text/pattern.h"
#include "engine/text/unicode.h"
#include "test/sanitize.h"

static struct pattern *open_re(const char *re, unsigned flags)
{
    struct pattern *p = NULL;
    struct err e = {0};
    int rc = pattern_regex(&p, re, strlen(re), flags, &e);
    ck_assert_msg(rc == OK, "%s: %s", re, e.text);
    return p;
}

/* All matches joined by '|'; negative: the error. */
static int matches(const struct pattern *p, const char *s, size_t n, bool fresh, struct buf *out)
{
    struct pat_run run = {.fresh = fresh};
    struct pat_iter it;
    struct err e = {0};
    size_t from, to;
    int rc, k = 0;
    pat_iter_init(&it, p, &run, s, n);
    while ((rc = pat_next(&it, &from, &to, &e)) > 0) {
        if (k++)
            buf_char(out, '|');
        buf_push(out, s + from, to - from);
    }
    pat_run_done(&run);
    return rc;
}

START_TEST(meaning)
{
    static const struct {
        const char *re, *text, *want;
    } cases[] = {
        {"\\s+", "a\xe1\xa0\x8e \xc2\xa0\xe3\x80\x80z", " \xc2\xa0\xe3\x80\x80"}, /* not U+180E */
        {"[^\\s]+", "a\xe1\xa0\x8e z", "a\xe1\xa0\x8e|z"},
        {"\\S\\s", "ab c\n", "b |c\n"},
        {"^.", "ab\ncd", "a|c"}, /* per line, without asking for it */
        {"[ab]$", "ab\nca", "b|a"},
        {"a{,2}b", "b ab aaab", "b|ab|aab"},
        {"a{1,2}?", "aaa", "a|a|a"},
        {"x{", "x{1", "x{"},
        {"[]a]+", "b]a]", "]a]"},
        {"\\h+", "xyz0Fg\t", "0F"}, /* hexadecimal digits, not blanks */
        {"\\v", "\n\x0b\x0c", "\x0b"},
        {"\\w+", "a_1\xc3\xa9\xcc\x81-b", "a_1\xc3\xa9\xcc\x81|b"},
        {"\\W", "a-b", "-"},
        {"\\d+", "1\xd9\xa3\xc2\xbd", "1\xd9\xa3"}, /* decimal digits of any script, not one half */
        {"\\p{Han}", "\xe6\xbc\xa2\xe3\x83\xbc", "\xe6\xbc\xa2"}, /* script, not its extensions */
        {"\\p{^L}", "a1", "1"},
        {"\\p{Letter}+", "ab1", "ab"},
        {"(?i:'s|'t)", "'S't'd", "'S|'t"},
        {"(a)(b)\\.", "ab.", "ab."},
        {"(?<=a)b(?!c)", "abc ab bb", "b"},
        {"x*", "axxb", "|xx|"},
        {"\\u0041\\x{e9}\\x2d", "A\xc3\xa9-", "A\xc3\xa9-"},
        {"\\-\\ \\\xc3\xa9", "- \xc3\xa9", "- \xc3\xa9"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        for (unsigned v = 0; v < 4; v++) {
            struct pattern *p = open_re(cases[i].re, v & 1 ? PAT_NO_JIT : 0);
            struct buf out = {0};
            ck_assert_int_eq(matches(p, cases[i].text, strlen(cases[i].text), v & 2, &out), 0);
            ck_assert_msg(!strcmp(buf_cstr(&out), cases[i].want), "%s on '%s': '%s', not '%s'",
                          cases[i].re, cases[i].text, buf_cstr(&out), cases[i].want);
            buf_done(&out);
            pattern_close(p);
        }
    }
}
END_TEST

START_TEST(refused)
{
    static const char *const cases[][2] = {
        {"[a&&b]", "&&"},
        {"[a[bc]]", "class inside"},
        {"[[:alpha:]]", "class inside"},
        {"[\\W]", "\\W"},
        {"\\bx", "\\b"},
        {"(a)\\1", "\\1"},
        {"\\X", "\\X"},
        {"\\K", "\\K"},
        {"\\G", "\\G"},
        {"(*UCP)a", "(*UC"},
        {"(?m)a", "(?m)"},
        {"(?<n>a)", "(?<n"},
        {"a(?i)b", "(?i)"},
        {"(?#c)", "(?#c"},
        {"a{2}?", "interval"},
        {"a{1,2}+", "interval"},
        {"\\p{Klingon}", "Klingon"},
        {"\\pL", "braces"},
        {"\\p{L", "not closed"},
        {"[abc", "not closed"},
        {"a\\", "backslash"},
        {"\\xe9", "0xe9"},
        {"\\x{d800}", "0xd800"},
        {"\\u12", "hexadecimal"},
        {"(a", "parenthesis"},
        {"*a", "quantifier"},
        {"\\p{Alpha}", "Alpha"},
        {"a{99999}", "too big"},
    };
    long live = mem_live();
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct pattern *p = NULL;
        struct err e = {0};
        int rc = pattern_regex(&p, cases[i][0], strlen(cases[i][0]), 0, &e);
        ck_assert_msg(rc == E_UNSUPPORTED, "%s was not refused", cases[i][0]);
        ck_assert_msg(strstr(e.text, cases[i][1]) != NULL, "'%s' does not name '%s'", e.text,
                      cases[i][1]);
        ck_assert_ptr_null(p);
    }
    ck_assert_int_eq(mem_live(), live);
}
END_TEST

static char *repeat(const char *unit, size_t bytes, const char *tail, size_t *len)
{
    struct buf b = {0};
    while (b.len < bytes)
        buf_str(&b, unit);
    buf_str(&b, tail);
    *len = b.len;
    return buf_take(&b);
}

/* Long runs that a pattern needs to look at again and again. */
START_TEST(hostile_texts)
{
    static const struct {
        const char *re, *unit, *tail;
        int want; /* 1: an answer; 0: an answer or a refusal, but soon */
    } cases[] = {
        {"\\s+$", " ", "x", 1},
        {"\\s+$", " \n", "x", 1},
        {"\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+", " ", "x", 1},
        {"[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}", "a", "1", 1},
        {"(a|aa)+$", "a", "b", 0},
        {"(?:a|b)*[cd]", "ab", "", 0},
        {"(?:(?:a+)+)+[cd]", "a", "", 0},
        {"(?:[ab]|a[bc])*$", "ab", "d", 0},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        for (unsigned v = 0; v < 2; v++) {
            struct pattern *p = open_re(cases[i].re, v ? PAT_NO_JIT : 0);
            size_t n;
            /* searches that fail from each place anew cost the square: shorter there */
            char *s =
                repeat(cases[i].unit, cases[i].want && !v ? 1 << 20 : 1 << 12, cases[i].tail, &n);
            struct buf out = {0};
            int64_t from = clock_thread_cpu_us();
            int rc = matches(p, s, n, false, &out);
            int64_t us = clock_thread_cpu_us() - from;
            ck_assert_msg(rc == OK || (!cases[i].want && rc == E_RANGE), "%s: %d", cases[i].re, rc);
            ck_assert_msg(us < 8000000, "%s took %lld us", cases[i].re, (long long)us);
            buf_done(&out);
            mem_free(s);
            pattern_close(p);
        }
    }
}
END_TEST

/* A search that gives up says so; the same pattern goes on working afterwards. */
START_TEST(gives_up)
{
    for (unsigned v = 0; v < 2; v++) {
        struct pattern *p = open_re("(?:a+)+(?:a+)+(?:a+)+[cd]", v ? PAT_NO_JIT : 0);
        size_t n;
        char *s = repeat("a", 3000, "", &n);
        struct buf out = {0};
        ck_assert_int_eq(matches(p, s, n, false, &out), E_RANGE);
        buf_reset(&out);
        ck_assert_int_eq(matches(p, "aaac", 4, false, &out), 0);
        ck_assert_str_eq(buf_cstr(&out), "aaac");
        buf_done(&out);
        mem_free(s);
        pattern_close(p);
    }
}
END_TEST

/* U+1FAE8 is an emoji of Unicode 15, U+31350 an ideograph of it, U+10D40 a digit of 16. */
START_TEST(new_characters)
{
    static const char text[] = "a\xf0\x9f\xab\xa8\xf0\xb1\x8d\x90\xf0\x90\xb5\x80";
    static const struct {
        const char *re, *want;
    } cases[] = {
        {"\\p{S}", "\xf0\x9f\xab\xa8"},
        {"\\p{So}+", "\xf0\x9f\xab\xa8"},
        {"\\p{Han}", "\xf0\xb1\x8d\x90"},
        {"\\p{L}", "a|\xf0\xb1\x8d\x90"},
        {"\\P{L}+", "\xf0\x9f\xab\xa8|\xf0\x90\xb5\x80"},
        {"[^\\p{L}\\p{S}]", "\xf0\x90\xb5\x80"},
        {"\\d", "\xf0\x90\xb5\x80"},
        {"\\w+", "a|\xf0\xb1\x8d\x90\xf0\x90\xb5\x80"},
        {"\\W", "\xf0\x9f\xab\xa8"},
    };
    ck_assert(uc_has_new(text, sizeof text - 1));
    ck_assert(!uc_has_new("a\xf0\x9f\x98\x80\xe6\xbc\xa2", 8));
    ck_assert(uc_is_numeric(0x10d40) && uc_is_numeric('1') && !uc_is_numeric(0x1fae8));
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        for (unsigned v = 0; v < 2; v++) {
            struct pattern *p = open_re(cases[i].re, v ? PAT_NO_JIT : 0);
            struct buf out = {0};
            ck_assert_int_eq(matches(p, text, sizeof text - 1, true, &out), 0);
            ck_assert_msg(!strcmp(buf_cstr(&out), cases[i].want), "%s: '%s'", cases[i].re,
                          buf_cstr(&out));
            buf_done(&out);
            pattern_close(p);
        }
    }
}
END_TEST

Suite *suite_tokenizer_pattern(void);
Suite *suite_tokenizer_pattern(void)
{
    Suite *s = suite_create("tokenizer_pattern");
    TCase *c = tcase_create("all");
    one_thread(c);
    tcase_set_timeout(c, 120);
    tcase_add_test(c, meaning);
    tcase_add_test(c, refused);
    tcase_add_test(c, hostile_texts);
    tcase_add_test(c, gives_up);
    tcase_add_test(c, new_characters);
    suite_add_tcase(s, c);
    return s;
}
