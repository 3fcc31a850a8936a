/* Goal: the chat module's contract beyond the goldens: error positions, bounds, origin marks,
 * loading from a model directory, thread safety, no memory left.
 * Method: small templates with the expected text, error code and position, and for the marks a
 * property over all real templates: request text is written in Cyrillic, template text is not, so
 * exactly the Cyrillic characters must be marked, and no '<' or '|' may be. */
#include <check.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/limits.h"
#include "server/chat/chat.h"
#include "test/unit/chat_cases.h"
#include "test/sanitize.h"

/* --- helpers --- */

static struct err g_err;
static struct chat_text g_out;

/* Parses and renders; the text is in g_out, the error in g_err. */
static int run(const char *source, const char *vars)
{
    struct chat_template *t = NULL;
    json_t *v = NULL;
    memset(&g_err, 0, sizeof g_err);
    chat_text_done(&g_out);
    ck_assert_int_eq(js_parse(&v, vars, strlen(vars), "vars", &g_err), OK);
    int ret = chat_template_parse(&t, source, strlen(source), &g_err);
    if (ret == OK) {
        chat_template_set_token(t, "bos_token", "<s>");
        ret = chat_render(t, v, &g_out, &g_err);
    }
    chat_template_free(t);
    json_decref(v);
    return ret;
}

static void fails(const char *source, int code, const char *where)
{
    int ret = run(source, "{}");
    ck_assert_msg(ret == code, "%s: %s, not %s (%s)", source, err_name(ret), err_name(code),
                  g_err.text);
    ck_assert_msg(strstr(g_err.text, where) != NULL, "%s: '%s' has no '%s'", source, g_err.text,
                  where);
}

/* The text with the untrusted spans in [ ]. */
static char *marked(void)
{
    struct buf b;
    size_t at = 0;
    buf_init(&b, 0);
    for (size_t i = 0; i < g_out.n_untrusted; i++) {
        buf_push(&b, g_out.text.p + at, g_out.untrusted[i].from - at);
        buf_char(&b, '[');
        at = g_out.untrusted[i].to;
        buf_push(&b, g_out.text.p + g_out.untrusted[i].from, at - g_out.untrusted[i].from);
        buf_char(&b, ']');
    }
    buf_push(&b, buf_cstr(&g_out.text) + at, g_out.text.len - at);
    return buf_take(&b);
}

/* --- errors --- */

START_TEST(positions)
{
    static const struct {
        const char *source;
        int code;
        const char *where;
    } cases[] = {
        {"{% nope %}", E_UNSUPPORTED, "line 1, column 4: statement 'nope'"},
        {"a\n  {% include 'x' %}", E_UNSUPPORTED, "line 2, column 6: statement 'include'"},
        {"a\r\nb\rc{% import 'x' as y %}", E_UNSUPPORTED, "line 3, column 5"},
        {"{{ 1 |\n wordcount }}", E_UNSUPPORTED, "line 2, column 2: filter 'wordcount'"},
        {"{{ 1 is escaped }}", E_UNSUPPORTED, "line 1, column 9: test 'escaped'"},
        {"é {{ x | nope }}", E_UNSUPPORTED, "line 1, column 10"},
        {"{% for x in y recursive %}{% endfor %}", E_UNSUPPORTED, "column 15: recursive loop"},
        {"{{ f(*x) }}", E_UNSUPPORTED, "column 6"},
        {"{{ x[1, 2] }}", E_UNSUPPORTED, "column 7"},
        {"{{ 0x10 }}", E_UNSUPPORTED, "column 4"},
        {"{{ 99999999999999999999 }}", E_UNSUPPORTED, "column 4"},
        {"{{ 'a'.zfill(3) }}", E_UNSUPPORTED, "column 8: method 'zfill' of 'str'"},
        {"{{ é }}", E_UNSUPPORTED, "column 4"},
        {"{{ 1", E_FORMAT, "line 1, column 1: tag without end"},
        {"\n{# x", E_FORMAT, "line 2, column 1: comment without end"},
        {"{% raw %} x", E_FORMAT, "raw block without endraw"},
        {"{{ 'x }}", E_FORMAT, "column 4: string without end"},
        {"{{ (1] }}", E_FORMAT, "column 6: unexpected ']'"},
        {"{{ 1 ! 2 }}", E_FORMAT, "column 6: unexpected character"},
        {"{{ }}", E_FORMAT, "column 4: expected an expression"},
        {"{{ 1 2 }}", E_FORMAT, "column 6: expected '}}', found a number"},
        {"{% if 1 %}x", E_FORMAT, "'elif' is missing"},
        {"{% endif %}", E_FORMAT, "column 4: unexpected 'endif'"},
        {"{% for in x %}{% endfor %}", E_FORMAT, "column 8"},
        {"{% break %}", E_FORMAT, "'break' outside a loop"},
        {"{% for x in y %}{% macro f() %}{% continue %}{% endmacro %}{% endfor %}", E_FORMAT,
         "'continue' outside a loop"},
        {"{% set 1 = 2 %}", E_FORMAT, "column 8"},
        {"{{ x.y.z }}", E_INVAL, "column 6: 'x' is undefined"},
        {"{{\n\n  1 + 'a' }}", E_INVAL, "line 3, column 5: operator + does not take 'int' and"},
        {"{{ 'a' < 1 }}", E_INVAL, "'str' and 'int' cannot be ordered"},
        {"{{ 1 // 0 }}", E_INVAL, "division by zero"},
        {"{{ f() }}", E_INVAL, "'f' is undefined"},
        {"{% for x in 5 %}{% endfor %}", E_INVAL, "column 13: 'int' cannot be iterated"},
        {"{{ 9223372036854775807 + 1 }}", E_RANGE, "more than 64 bits"},
        {"{{ [1].pop(5) }}", E_INVAL, "pop() beyond a list of 1 items"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        fails(cases[i].source, cases[i].code, cases[i].where);
}
END_TEST

START_TEST(raised)
{
    ck_assert_int_eq(run("a{{ raise_exception('roles ' ~ 1 ~ '\nbad') }}", "{}"), E_INVAL);
    ck_assert_str_eq(g_err.text, "roles 1 bad");
    ck_assert_ptr_null(g_out.text.p);
    char *big = mem_printf("{{ raise_exception('é' * 300 ~ 'x') }}");
    ck_assert_int_eq(run(big, "{}"), E_INVAL);
    ck_assert_uint_lt(strlen(g_err.text), 400);
    mem_free(big);
}
END_TEST

START_TEST(not_utf8)
{
    struct chat_template *t = NULL;
    struct err e = {0};
    ck_assert_int_eq(chat_template_parse(&t, "a\xff", 2, &e), E_FORMAT);
    ck_assert_ptr_null(t);
}
END_TEST

/* --- bounds --- */

/* A render that must fail with E_RANGE, soon. */
static void bounded(const char *source, const char *vars)
{
    int64_t from = clock_thread_cpu_us();
    int ret = run(source, vars);
    int64_t took = clock_thread_cpu_us() - from;
    ck_assert_msg(ret == E_RANGE, "%.100s: %s (%s)", source, err_name(ret), g_err.text);
    ck_assert_msg(took < 30 * 1000 * 1000, "%.100s took %lld us", source, (long long)took);
    ck_assert_msg(strstr(g_err.text, "line ") != NULL, "%s", g_err.text);
}

START_TEST(bounds)
{
    static const char *const sources[] = {
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% macro a(x) %}{{ b(x + 1) }}{% endmacro %}{% macro b(x) %}{{ a(x) }}{% endmacro %}"
        "{{ a(0) }}",
        "{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}",
        "{% set x = namespace(s='ab') %}{% for i in range(99) %}{% set x.s = x.s + x.s %}"
        "{% endfor %}{{ x.s }}",
        "{% set x = namespace(s='ab') %}{% for i in range(99) %}{% set x.s = x.s ~ x.s %}"
        "{% endfor %}",
        "{% set x = namespace(l=[1]) %}{% for i in range(99) %}{% set x.l = x.l + x.l %}"
        "{% endfor %}",
        "{{ 'a' * 1000000000 }}",
        "{{ [1] * 1000000000 }}",
        "{{ range(100001) }}",
        "{{ 'a' | indent(100000000) }}",
        "{{ '%9999d' % 1 }}",
        "{% for i in range(99999) %}{{ 'x' * 1000 }}{% endfor %}",
        "{% set l = [] %}{% for i in range(9) %}{% set _ = l.append(l) %}{% endfor %}{{ l }}",
        "{% set l = [] %}{% set _ = l.append(l) %}{{ l | tojson }}",
        "{% set l = [] %}{% set _ = l.append(l) %}{% set k = [] %}{% set _ = k.append(k) %}"
        "{{ l == k }}",
        "{% set s = 'ab' * 4000000 %}{% for i in range(99999) %}{{ s.replace('b', 'cd')|length }}"
        "{% endfor %}",
        "{% set s = 'ab' * 4000000 %}{% for i in range(99999) %}{% if s[i] %}{% endif %}"
        "{% endfor %}",
        "{% set l = ['x' * 1000] * 100000 %}{{ l | join('y') }}",
        "{% set l = [1, 2] %}{% for x in l %}{% set _ = l.append(x) %}{% endfor %}",
        "{% set n = namespace(v=[]) %}{% for i in range(99999) %}{% set n.v = [n.v] %}{% endfor %}"
        "{{ n.v }}",
    };
    for (size_t i = 0; i < sizeof sources / sizeof sources[0]; i++)
        bounded(sources[i], "{}");
}
END_TEST

/* `n` times a, then mid, then `n` times b. */
static char *nested(const char *a, const char *mid, const char *b, int n)
{
    struct buf s;
    buf_init(&s, 0);
    for (int i = 0; i < n; i++)
        buf_str(&s, a);
    buf_str(&s, mid);
    for (int i = 0; i < n; i++)
        buf_str(&s, b);
    return buf_take(&s);
}

START_TEST(parse_bounds)
{
    static const char *const parts[][3] = {
        {"(", "1", ")"},           {"[", "1", "]"},  {"{'a':", "1", "}"},       {"-", "1", ""},
        {"not ", "1", ""},         {"f(", "1", ")"}, {"1 if ", "1", " else 2"}, {"x[", "1", "]"},
        {"1 if 1 else ", "1", ""},
    };
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        for (int n = 300; n <= 30000; n *= 10) {
            char *inner = nested(parts[i][0], parts[i][1], parts[i][2], n);
            char *s = mem_printf("{{ %s }}", inner);
            int ret = run(s, "{}");
            ck_assert_msg(ret == E_RANGE || ret == E_FORMAT || ret == E_UNSUPPORTED, "%s x %d: %s",
                          parts[i][0], n, err_name(ret));
            mem_free(s);
            mem_free(inner);
        }
    }
    char *s = nested("{% if 1 %}", "x", "{% endif %}", 5000);
    ck_assert_int_eq(run(s, "{}"), E_RANGE);
    mem_free(s);
    s = nested("{{ x }}", "", "", LIM_CHAT_SOURCE / 7 + 1);
    ck_assert_int_eq(run(s, "{}"), E_RANGE);
    mem_free(s);
    s = nested(" + 1", "", "", 100000); /* deep to the left: refused when evaluated */
    char *sum = mem_printf("{{ 1%s }}", s);
    ck_assert_int_eq(run(sum, "{}"), E_RANGE);
    mem_free(sum);
    mem_free(s);
    struct buf names;
    buf_init(&names, 0);
    for (int i = 0; i < LIM_CHAT_NAMES + 1; i++)
        buf_fmt(&names, "{{ v%d }}", i);
    ck_assert_int_eq(run(buf_cstr(&names), "{}"), E_RANGE);
    buf_done(&names);
}
END_TEST

/* A long honest conversation is no attack. */
START_TEST(long_chat)
{
    struct chat_template *t = NULL;
    struct chat_text out = {0};
    struct err e = {0};
    char *text = NULL;
    size_t len;
    json_t *m = json_array(),
           *vars = json_pack("{s:o, s:b}", "messages", m, "add_generation_prompt", 1);
    char *body = nested("слово ", "", "", 500);
    for (int i = 0; i < 1000; i++)
        json_array_append_new(
            m, json_pack("{s:s, s:s}", "role", i % 2 ? "assistant" : "user", "content", body));
    static const char *const names[] = {"qwen3", "gemma4", "deepseek-v3.1", "smollm3"};
    for (int i = 0; i < 4; i++) {
        char *path = mem_printf("test/data/chat/templates/%s.jinja", names[i]);
        ck_assert_int_eq(file_read(&text, &len, path, 1 << 20, &e), OK);
        ck_assert_int_eq(chat_template_parse(&t, text, len, &e), OK);
        int64_t from = clock_thread_cpu_us();
        ck_assert_msg(chat_render(t, vars, &out, &e) == OK, "%s: %s", names[i], e.text);
        ck_assert_uint_gt(out.text.len, 5500000);
        ck_assert_int_lt(clock_thread_cpu_us() - from, 20 * 1000 * 1000);
        chat_text_done(&out);
        chat_template_free(t);
        mem_free(text);
        mem_free(path);
    }
    mem_free(body);
    json_decref(vars);
}
END_TEST

/* --- origin --- */

START_TEST(origin)
{
    static const char vars[] =
        "{\"u\": \"ab\\\"c d\", \"l\": [\"x\", \"y\"], \"d\": {\"k\": \"v\"},"
        " \"n\": 12, \"sp\": \"  mid  \", \"e\": \"\"}";
    static const char *const cases[][2] = {
        {"{{ u }}", "[ab\"c d]"},
        {"<a>{{ u }}<b>", "<a>[ab\"c d]<b>"},
        {"{{ '<' + u + '>' }}", "<[ab\"c d]>"},
        {"{{ '<' ~ u ~ n ~ '>' }}", "<[ab\"c d]12>"},
        {"{{ bos_token }}{{ u }}", "<s>[ab\"c d]"},
        {"{{ ('<<' + u)[1:4] }}", "<[ab]"},
        {"{{ ('<<' + u)[::-1] }}", "[d c\"ba]<<"},
        {"{{ ('<' + u)[0] }}{{ ('<' + u)[1] }}", "<[a]"},
        {"{{ u | upper }}{{ ('é' + u) | upper }}", "[AB\"C D]É[AB\"C D]"},
        {"{{ sp | trim }}|{{ (' ' + sp + ' ') | trim }}", "[mid]|[mid]"},
        {"{{ ('-' + u + '-').strip('-') }}", "[ab\"c d]"},
        {"{{ u.replace('b', '<b>') }}", "[a]<b>[\"c d]"},
        {"{{ 'a-b'.replace('-', u) }}", "a[ab\"c d]b"},
        {"{{ l | join('-') }}", "[x]-[y]"},
        {"{{ ['p', 'q'] | join(u) }}", "p[ab\"c d]q"},
        {"{{ u | tojson }}", "\"[ab\\\"c d]\""},
        {"{{ {'k': u} | tojson }}", "{\"k\": \"[ab\\\"c d]\"}"},
        {"{{ d | tojson }}", "{\"[k]\": \"[v]\"}"},
        {"{{ d | tojson(indent=1) }}", "{\n \"[k]\": \"[v]\"\n}"},
        {"{{ l }}{{ d }}", "['[x]', '[y]']{'[k]': '[v]'}"},
        {"{% for k, v in d | items %}{{ k }}={{ v }}{% endfor %}", "[k]=[v]"},
        {"{{ ('<' + u).split('b') | join('|') }}", "<[a]|[\"c d]"},
        {"{{ u.split('b')[1] }}", "[\"c d]"},
        {"{% set x %}<{{ u }}>{% endset %}{{ x }}{{ x | length }}", "<[ab\"c d]>8"},
        {"{% macro f(x) %}({{ x }}){% endmacro %}{{ f(u) ~ f('t') }}", "([ab\"c d])(t)"},
        {"{% filter upper %}<{{ u }}>{% endfilter %}", "<[AB\"C D]>"},
        {"{{ u | title }}|{{ u.capitalize() }}", "[Ab\"c D]|[Ab\"c d]"},
        {"{{ '%s<%s' % (u, 'x') }}", "[ab\"c d]<x"},
        {"{{ '{}<{}'.format('x', u) }}", "x<[ab\"c d]"},
        {"{{ u.format() }}", "[ab\"c d]"},
        {"{{ ('a\n' + u) | indent(2) }}", "a\n  [ab\"c d]"},
        {"{{ '[1, \"t\"]' | from_json | last }}", "t"},
        {"{{ ('[\"t\", \"' ~ l[0] ~ '\"]') | from_json | join }}", "[tx]"},
        {"{{ u * 2 }}{{ ('<' + l[0]) * 2 }}", "[ab\"c dab\"c d]<[x]<[x]"},
        {"{{ u if n else 't' }}{{ e or 't' }}{{ nope | default(u) }}", "[ab\"c d]t[ab\"c d]"},
        {"{% for c in '<' + l[0] %}{{ c }}.{% endfor %}", "<.[x]."},
        {"{{ ['<', u] | map('upper') | join }}", "<[AB\"C D]"},
        {"{{ [u, 'z'] | sort | last }}{{ [u] | first }}", "z[ab\"c d]"},
        {"{{ ('<' + u + '>').partition('b') | join('_') }}", "<[a]_[b]_[\"c d]>"},
        {"{{ n }}{{ n | string }}", "1212"},
        {"{% set ns = namespace(s='') %}{% for x in l %}{% set ns.s = ns.s + x + ',' %}{% endfor %}"
         "{{ ns.s }}",
         "[x],[y],"},
        {"{{ 'ß' | upper }}{{ u | lower }}", "SS[ab\"c d]"},
        {"{{ u | replace('a', 'A') | replace('A', '<') }}", "<[b\"c d]"},
        {"{{ u.removeprefix('a').removesuffix('d') }}", "[b\"c ]"},
        {"{{ u.splitlines() | first }}", "[ab\"c d]"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ck_assert_msg(run(cases[i][0], vars) == OK, "%s: %s", cases[i][0], g_err.text);
        char *got = marked();
        ck_assert_msg(!strcmp(got, cases[i][1]), "%s: %s, not %s", cases[i][0], got, cases[i][1]);
        mem_free(got);
    }
}
END_TEST

static bool is_marked(const struct chat_text *t, size_t at)
{
    for (size_t i = 0; i < t->n_untrusted; i++)
        if (t->untrusted[i].from <= at && at < t->untrusted[i].to)
            return true;
    return false;
}

/* Replaces the letters of every message and tool text; roles and types stay. */
static void cyrillic(json_t *v)
{
    const char *key;
    json_t *x;
    size_t i;
    json_array_foreach(v, i, x) cyrillic(x);
    json_object_foreach(v, key, x)
    {
        static const char *const keep[] = {"role", "type", "id", "tool_call_id"};
        bool kept = false;
        for (size_t k = 0; k < 4; k++)
            kept |= !strcmp(key, keep[k]);
        if (json_is_string(x) && !kept)
            json_string_set(x, "жук и ёж\n");
        else if (!kept)
            cyrillic(x);
    }
}

static int check_marks(const char *name, const struct chat_text *t)
{
    int n = 0;
    for (size_t i = 0; i < t->text.len; i++) {
        unsigned char c = (unsigned char)t->text.p[i];
        bool mark = is_marked(t, i);
        if (c == 0xd0 || c == 0xd1) { /* the lead bytes of Cyrillic */
            ck_assert_msg(mark, "%s: request text at %zu counts as template", name, i);
            n++;
        }
        if (c == '<' || c == '|')
            ck_assert_msg(!mark, "%s: template text at %zu counts as request's", name, i);
    }
    return n;
}

START_TEST(origin_real)
{
    json_t *doc = NULL, *c;
    struct err e = {0};
    size_t i;
    int letters = 0;
    ck_assert_int_eq(js_load(&doc, "test/data/chat/real.json", &e), OK);
    json_array_foreach(json_object_get(doc, "cases"), i, c)
    {
        const char *name = json_string_value(json_object_get(c, "name"));
        char *path = mem_printf("test/data/chat/templates/%s.jinja",
                                json_string_value(json_object_get(c, "template")));
        struct chat_template *t = NULL;
        struct chat_text out = {0};
        char *text = NULL;
        size_t len;
        json_t *vars = chat_case_vars(doc, c), *own = json_deep_copy(vars);
        cyrillic(json_object_get(own, "messages"));
        cyrillic(json_object_get(own, "tools"));
        ck_assert_int_eq(file_read(&text, &len, path, 1 << 20, &e), OK);
        ck_assert_int_eq(chat_template_parse(&t, text, len, &e), OK);
        if (chat_render(t, own, &out, &e) == OK)
            letters += check_marks(name, &out);
        chat_text_done(&out);
        chat_template_free(t);
        mem_free(text);
        mem_free(path);
        json_decref(vars);
        json_decref(own);
    }
    json_decref(doc);
    ck_assert_int_gt(letters, 20000);
}
END_TEST

/* --- loading --- */

static void put_file(const char *dir, const char *name, const char *text)
{
    char *path = path_join(dir, name);
    FILE *f = fopen(path, "w");
    ck_assert_ptr_nonnull(f);
    fputs(text, f);
    fclose(f);
    mem_free(path);
}

static void drop_file(const char *dir, const char *name)
{
    char *path = path_join(dir, name);
    unlink(path);
    mem_free(path);
}

static void load_is(const char *dir, const char *want)
{
    struct chat_template *t = NULL;
    struct chat_text out = {0};
    struct err e = {0};
    json_t *vars = json_pack("{s:s}", "x", "X");
    ck_assert_msg(chat_template_load(&t, dir, &e) == OK, "%s", e.text);
    if (!want) {
        ck_assert_ptr_null(t);
    } else {
        ck_assert_int_eq(chat_render(t, vars, &out, &e), OK);
        ck_assert_str_eq(buf_cstr(&out.text), want);
    }
    chat_text_done(&out);
    chat_template_free(t);
    json_decref(vars);
}

START_TEST(loading)
{
    char dir[] = "/tmp/specd-chat-XXXXXX";
    struct chat_template *t = NULL;
    struct err e = {0};
    ck_assert_ptr_nonnull(mkdtemp(dir));
    load_is(dir, NULL);
    put_file(dir, "tokenizer_config.json", "{\"bos_token\": \"<B>\"}");
    load_is(dir, NULL);
    put_file(dir, "tokenizer_config.json",
             "{\"bos_token\": {\"content\": \"<B>\", \"lstrip\": false}, \"eos_token\": \"<E>\","
             "\"pad_token\": null, \"chat_template\":"
             " \"{{ bos_token }}{{ x }}{{ eos_token }}{{ pad_token is defined }}\"}");
    load_is(dir, "<B>X<E>False");
    put_file(dir, "chat_template.jinja", "{{ bos_token }}file");
    load_is(dir, "<B>file");
    put_file(dir, "chat_template.jinja", "a\n{% nope %}");
    ck_assert_int_eq(chat_template_load(&t, dir, &e), E_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(e.text, "chat_template.jinja"));
    ck_assert_ptr_nonnull(strstr(e.text, "line 2, column 4"));
    drop_file(dir, "chat_template.jinja");
    put_file(dir, "tokenizer_config.json",
             "{\"chat_template\": [{\"name\": \"tool_use\", \"template\": \"T\"},"
             " {\"name\": \"default\", \"template\": \"D{{ x }}\"}]}");
    load_is(dir, "DX");
    static const char *const bad[] = {
        "{\"chat_template\": [{\"name\": \"a\", \"template\": \"T\"}]}", "{\"chat_template\": 5}",
        "{", "{\"chat_template\": \"x\", \"bos_token\": 5}"};
    for (int i = 0; i < 4; i++) {
        put_file(dir, "tokenizer_config.json", bad[i]);
        ck_assert_int_eq(chat_template_load(&t, dir, &e), E_FORMAT);
        ck_assert_ptr_nonnull(strstr(e.text, "tokenizer_config.json"));
    }
    ck_assert_ptr_null(t);
    drop_file(dir, "tokenizer_config.json");
    rmdir(dir);
}
END_TEST

/* --- the rest --- */

START_TEST(vars_of_request)
{
    ck_assert_int_eq(
        run("{{ tools is none }}{{ documents is none }}{{ add_generation_prompt }}", "{}"), OK);
    ck_assert_str_eq(g_out.text.p, "TrueTrueFalse");
    ck_assert_int_eq(run("{{ x }}{{ range(2) | list }}", "{\"range\": 5, \"x\": 1.0}"), E_INVAL);
    struct chat_template *t = NULL;
    json_t *list = json_array();
    ck_assert_int_eq(chat_template_parse(&t, "x", 1, NULL), OK);
    ck_assert_int_eq(chat_render(t, list, &g_out, NULL), E_INVAL);
    chat_template_free(t);
    json_decref(list);
}
END_TEST

START_TEST(vars_unchanged)
{
    static const char text[] = "{\"l\": [1, 2], \"d\": {\"a\": {\"b\": 1}}}";
    json_t *v = NULL, *before;
    struct chat_template *t = NULL;
    struct chat_text out = {0};
    static const char src[] = "{% set _ = l.append(3) %}{% set _ = l.pop(0) %}"
                              "{% set _ = d.a.update(c=1) %}{{ l }}{{ d }}";
    ck_assert_int_eq(js_parse(&v, text, strlen(text), "v", NULL), OK);
    before = json_deep_copy(v);
    ck_assert_int_eq(chat_template_parse(&t, src, strlen(src), NULL), OK);
    for (int i = 0; i < 2; i++) { /* the second render sees nothing of the first */
        ck_assert_int_eq(chat_render(t, v, &out, NULL), OK);
        ck_assert_str_eq(out.text.p, "[2, 3]{'a': {'b': 1, 'c': 1}}");
    }
    ck_assert(json_equal(v, before));
    chat_text_done(&out);
    chat_template_free(t);
    json_decref(v);
    json_decref(before);
}
END_TEST

START_TEST(time_now)
{
    char want[64], later[64];
    time_t now = time(NULL);
    struct tm tm;
    localtime_r(&now, &tm);
    strftime(want, sizeof want, "%d %b %Y", &tm);
    ck_assert_int_eq(run("{{ strftime_now('%d %b %Y') }}", "{}"), OK);
    now = time(NULL);
    localtime_r(&now, &tm);
    strftime(later, sizeof later, "%d %b %Y", &tm);
    ck_assert(!strcmp(g_out.text.p, want) || !strcmp(g_out.text.p, later));
    fails("{{ strftime_now('%d' * 100) }}", E_RANGE, "time format");
}
END_TEST

START_TEST(nothing_left)
{
    long live = mem_live();
    run("{% for x in l %}{{ x | tojson(indent=2) }}{{ x.y | upper }}{% endfor %}",
        "{\"l\": [{\"y\": \"é\"}, {\"y\": \"b\"}]}");
    run("{% set x %}{% for i in range(9) %}{{ i }}{{ nope.x }}{% endfor %}{% endset %}", "{}");
    run("{% if %}", "{}");
    run("{{ ['a', 'b'] | join('c' ~ 1/0) }}", "{}");
    chat_text_done(&g_out);
    ck_assert_int_eq(mem_live(), live);
}
END_TEST

struct job {
    const struct chat_template *t;
    const char *want;
    bool good;
};

static void *render_many(void *ud)
{
    struct job *j = ud;
    json_t *v = NULL;
    static const char text[] = "{\"m\": [{\"r\": \"a\"}, {\"r\": \"b\"}]}";
    j->good = js_parse(&v, text, strlen(text), "v", NULL) == OK;
    for (int i = 0; j->good && i < 200; i++) {
        struct chat_text out = {0};
        j->good = chat_render(j->t, v, &out, NULL) == OK && !strcmp(out.text.p, j->want);
        chat_text_done(&out);
    }
    json_decref(v);
    return NULL;
}

START_TEST(many_threads)
{
    static const char src[] = "{% macro f(x) %}<{{ x | upper }}>{% endmacro %}"
                              "{% for x in m %}{{ f(x.r) + 'ä' * 2 }}{% endfor %}";
    struct chat_template *t = NULL;
    struct job jobs[4];
    pthread_t id[4];
    ck_assert_int_eq(chat_template_parse(&t, src, strlen(src), NULL), OK);
    for (int i = 0; i < 4; i++) {
        jobs[i] = (struct job){.t = t, .want = "<A>ää<B>ää"};
        ck_assert_int_eq(pthread_create(&id[i], NULL, render_many, &jobs[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(id[i], NULL);
        ck_assert(jobs[i].good);
    }
    chat_template_free(t);
}
END_TEST

static void done(void)
{
    chat_text_done(&g_out);
}

static TCase *group(Suite *s, const char *name)
{
    TCase *c = tcase_create(name);
    tcase_add_checked_fixture(c, NULL, done);
    one_thread(c);
    suite_add_tcase(s, c);
    return c;
}

Suite *suite_chat(void)
{
    Suite *s = suite_create("chat");
    TCase *c = group(s, "errors");
    tcase_add_test(c, positions);
    tcase_add_test(c, raised);
    tcase_add_test(c, not_utf8);
    c = group(s, "bounds");
    tcase_set_timeout(c, 120);
    tcase_add_test(c, bounds);
    tcase_add_test(c, parse_bounds);
    tcase_add_test(c, long_chat);
    c = group(s, "origin");
    tcase_add_test(c, origin);
    tcase_add_test(c, origin_real);
    c = group(s, "load");
    tcase_add_test(c, loading);
    c = group(s, "render");
    tcase_add_test(c, vars_of_request);
    tcase_add_test(c, vars_unchanged);
    tcase_add_test(c, time_now);
    tcase_add_test(c, nothing_left);
    c = tcase_create("threads");
    tcase_add_test(c, many_threads);
    suite_add_tcase(s, c);
    return s;
}
