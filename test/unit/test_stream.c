/* Goal: streamed text equals the text decoded at once, is valid UTF-8 at every moment, and ends
 * where the first complete stop string says, whatever the token borders are. Method: a small
 * byte-level tokenizer made here whose tokens are any bytes, random token sequences against a slow
 * model of the rules, and the cases of the interface by hand. */
#include <check.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/base/rng.h"
#include "engine/base/utf8.h"
#include "engine/text/stream.h"
#include "test/unit/tokenizer_data.h"
#include "test/sanitize.h"

#define EURO "\xe2\x82\xac"
#define FFFD "\xef\xbf\xbd"

enum { ROUNDS = SANITIZED ? 3000 : 30000 };

/* Every byte is a token (id = byte), then some longer ones and two special ones. */
enum { T_AB = 256, T_CD, T_STOP, T_EURO_A, T_E2, T_END, T_MASK, T_ALL };
static const char *const longer[] = {"ab",
                                     "cd",
                                     "xSTOPy",
                                     "\x82\xac"
                                     "a",
                                     "\xe2\x82",
                                     "<|end|>",
                                     "<m>"};

static struct tokenizer *byte_tokenizer(void)
{
    struct buf b = {0};
    buf_str(&b, "{\"pre_tokenizer\":{\"type\":\"ByteLevel\"},\"decoder\":{\"type\":\"ByteLevel\"},"
                "\"model\":{\"merges\":[],\"vocab\":{");
    for (int i = 0; i < T_END; i++) {
        const char one = (char)i, *s = i < 256 ? &one : longer[i - 256];
        size_t n = i < 256 ? 1 : strlen(s);
        struct buf name = {0};
        for (size_t k = 0; k < n; k++) {
            unsigned c = (unsigned char)s[k];
            bool plain = (c >= 33 && c <= 126) || (c >= 161 && c != 173);
            unsigned before = c < 33 ? c : c < 161 ? 33 + c - 127 : 67;
            char u[4];
            buf_push(&name, u, (size_t)utf8_encode(plain ? c : 256 + before, u));
        }
        buf_fmt(&b, "%s", i ? "," : "");
        for (size_t k = 0; k < name.len; k++) {
            if (!k)
                buf_char(&b, '"');
            if (name.p[k] == '"' || name.p[k] == '\\')
                buf_char(&b, '\\');
            buf_char(&b, name.p[k]);
        }
        buf_fmt(&b, "\":%d", i);
        buf_done(&name);
    }
    buf_fmt(&b,
            "}},\"added_tokens\":[{\"id\":%d,\"content\":\"<|end|>\",\"special\":true},"
            "{\"id\":%d,\"content\":\"<m>\",\"special\":true}]}",
            T_END, T_MASK);
    struct tokenizer *t = NULL;
    struct err e = {0};
    ck_assert_msg(tok_parse(&t, b.p, b.len, NULL, 0, &e) == OK, "%s", e.text);
    buf_done(&b);
    return t;
}

struct result {
    struct buf text;
    size_t used; /* tokens pushed, the one that ended it included */
    int stopped;
};

static struct result run(const struct tokenizer *t, const struct text_conf *conf, const int32_t *v,
                         size_t n)
{
    struct result r = {.stopped = -1};
    struct text_stream s;
    text_stream_init(&s, t, conf);
    while (r.used < n) {
        size_t from = r.text.len;
        int rc = text_stream_push(&s, v[r.used++], &r.text);
        ck_assert(utf8_valid(buf_cstr(&r.text) + from, r.text.len - from));
        ck_assert_int_eq(rc, s.stopped >= 0);
        ck_assert_int_eq(s.n_tok, (int64_t)r.used);
        if (rc)
            break;
    }
    r.stopped = s.stopped;
    size_t from = r.text.len;
    text_stream_flush(&s, &r.text);
    ck_assert(r.stopped < 0 || r.text.len == from); /* all was given when it stopped */
    ck_assert(utf8_valid(buf_cstr(&r.text), r.text.len));
    text_stream_done(&s);
    return r;
}

/* The rules without any holding: decode ever longer prefixes of the ids, with and without special
 * tokens, look for a stop string that ends in the last one, and cut. */
static struct result slow(const struct tokenizer *t, const struct text_conf *conf, const int32_t *v,
                          size_t n)
{
    struct result r = {.stopped = -1};
    struct buf all = {0}, shown = {0}, cut = {0};
    static bool hide[1 << 16];
    size_t end = 0;
    for (r.used = 0; r.used < n && r.stopped < 0; r.used++) {
        size_t len, from = all.len;
        const char *p = tok_bytes(t, v[r.used], &len);
        buf_push(&all, p, len);
        for (size_t i = from; i < all.len; i++)
            hide[i] = conf->skip_special && tok_is_special(t, v[r.used]);
        if ((int64_t)r.used + 1 < conf->min_tokens)
            continue;
        for (size_t e = from + 1; e <= all.len && r.stopped < 0; e++)
            for (size_t k = 0; k < conf->n_stop; k++) {
                size_t m = strlen(conf->stop[k]);
                bool hit = m <= e && !memcmp(all.p + e - m, conf->stop[k], m);
                if (hit && (r.stopped < 0 || m > strlen(conf->stop[r.stopped]))) {
                    r.stopped = (int)k;
                    end = e;
                }
            }
    }
    if (r.stopped < 0)
        end = all.len;
    else if (!conf->include_stop)
        end -= strlen(conf->stop[r.stopped]);
    for (size_t i = 0; i < end; i++)
        if (!hide[i])
            buf_char(&shown, all.p[i]);
    for (size_t i = 0; i < shown.len;) {
        uint32_t cp;
        int k = utf8_decode(shown.p + i, shown.len - i, &cp);
        if (k > 0)
            buf_push(&cut, shown.p + i, (size_t)k);
        else
            buf_str(&cut, FFFD);
        i += k > 0 ? (size_t)k : k < 0 ? (size_t)-k : shown.len - i;
    }
    r.text = cut;
    buf_done(&all);
    buf_done(&shown);
    return r;
}

static void compare(const struct tokenizer *t, const struct text_conf *conf, const int32_t *v,
                    size_t n)
{
    struct result a = run(t, conf, v, n), b = slow(t, conf, v, n);
    ck_assert_int_eq(a.stopped, b.stopped);
    ck_assert_uint_eq(a.used, b.used);
    ck_assert_msg(a.text.len == b.text.len &&
                      !memcmp(buf_cstr(&a.text), buf_cstr(&b.text), a.text.len),
                  "'%s' streamed, '%s' wanted", buf_cstr(&a.text), buf_cstr(&b.text));
    buf_done(&a.text);
    buf_done(&b.text);
}

static size_t random_tokens(struct rng *r, int32_t *v, size_t max)
{
    static const char mix[] = "aabbccdSTOPxy <>|endm\xe2\x82\xac\xf0\x9f\x98\x80\xc3\xa9\xff";
    size_t n = 1 + rng_below(r, max);
    for (size_t i = 0; i < n; i++) {
        uint64_t k = rng_below(r, 10);
        v[i] = k < 4   ? 'a' + (int32_t)rng_below(r, 3)
               : k < 7 ? (unsigned char)mix[rng_below(r, sizeof mix - 1)]
               : k < 9 ? 256 + (int32_t)rng_below(r, T_ALL - 256)
                       : (int32_t)rng_below(r, 256);
    }
    return n;
}

START_TEST(random_against_rules)
{
    static const char *const pool[] = {"a",      "ab",      "aab",  "abab",   "aaaa",      "STOP",
                                       "TOP",    "STOPyc",  "d",    "cdcd",   "abcabcabd", EURO,
                                       "b" EURO, "<|end|>", "d|>a", "<m><m>", "end",       "ac"};
    struct tokenizer *t = byte_tokenizer();
    struct rng r = {11};
    for (int round = 0; round < ROUNDS; round++) {
        const char *stop[4];
        struct text_conf conf = {.stop = stop, .n_stop = rng_below(&r, 5)};
        for (size_t i = 0; i < conf.n_stop; i++)
            stop[i] = pool[rng_below(&r, ARRAY_LEN(pool))];
        conf.include_stop = rng_below(&r, 2);
        conf.skip_special = rng_below(&r, 2);
        conf.min_tokens = rng_below(&r, 3) ? 0 : (int64_t)rng_below(&r, 12);
        int32_t v[40];
        compare(t, &conf, v, random_tokens(&r, v, 40));
    }
    tok_close(t);
}
END_TEST

/* Without stop strings, with real vocabularies: any ids at all. */
START_TEST(random_real)
{
    const char *name = data_names[_i];
    struct tokenizer *t = data_tokenizer(name);
    struct rng r = {12};
    for (int round = 0; round < ROUNDS / 15; round++) {
        int32_t v[30];
        size_t n = 1 + rng_below(&r, 30);
        for (size_t i = 0; i < n; i++)
            v[i] = (int32_t)rng_below(&r, (uint64_t)tok_vocab_size(t) + 2) - 1;
        for (int skip = 0; skip < 2; skip++) {
            struct text_conf conf = {.skip_special = skip};
            struct result a = run(t, &conf, v, n);
            struct buf b = {0};
            detok_all(t, v, n, skip, &b);
            ck_assert_str_eq(buf_cstr(&a.text), buf_cstr(&b));
            ck_assert_uint_eq(a.text.len, b.len);
            buf_done(&a.text);
            buf_done(&b);
        }
    }
    tok_close(t);
}
END_TEST

/* Text as tokens of its single bytes. */
static struct result run_bytes(const struct tokenizer *t, const struct text_conf *conf,
                               const char *text)
{
    int32_t v[200];
    size_t n = 0;
    for (; text[n]; n++)
        v[n] = (unsigned char)text[n];
    return run(t, conf, v, n);
}

/* The stop string ends, begins and lies inside every token border of a text. */
START_TEST(stop_at_each_border)
{
    struct tokenizer *t = byte_tokenizer();
    static const char text[] = "ab" EURO "cd<|x|>xSTOPyab";
    for (size_t from = 0; from + 1 < sizeof text; from++) {
        for (size_t to = from + 1; to < sizeof text; to++) {
            char *stop = mem_strndup(text + from, to - from);
            const char *const list[] = {stop};
            if (utf8_valid(stop, to - from)) {
                struct text_conf conf = {.stop = list, .n_stop = 1};
                const char *hit = strstr(text, stop);
                for (int keep = 0; keep < 2; keep++) {
                    conf.include_stop = keep;
                    struct result r = run_bytes(t, &conf, text);
                    ck_assert_int_eq(r.stopped, 0);
                    size_t end = (size_t)(hit - text) + strlen(stop);
                    ck_assert_uint_eq(r.used, end);
                    ck_assert_uint_eq(r.text.len, keep ? end : (size_t)(hit - text));
                    buf_done(&r.text);
                    /* the same text in other tokens */
                    static const int32_t v[] = {T_AB, T_E2, 0xac, T_CD,   '<', '|',
                                                'x',  '|',  '>',  T_STOP, T_AB};
                    compare(t, &conf, v, ARRAY_LEN(v));
                }
            }
            mem_free(stop);
        }
    }
    tok_close(t);
}
END_TEST

static void expect(const struct tokenizer *t, struct text_conf conf, const int32_t *v, size_t n,
                   const char *text, size_t used, int stopped)
{
    struct result r = run(t, &conf, v, n);
    ck_assert_str_eq(buf_cstr(&r.text), text);
    ck_assert_uint_eq(r.used, used);
    ck_assert_int_eq(r.stopped, stopped);
    buf_done(&r.text);
}
#define IDS(...) (const int32_t[]){__VA_ARGS__}, sizeof((const int32_t[]){__VA_ARGS__}) / 4

START_TEST(stop_rules)
{
    struct tokenizer *t = byte_tokenizer();
    static const char *const end[] = {"<|end|>"}, *const stop[] = {"STOP"}, *const a[] = {"a"};
    static const char *const nested[] = {"abc", "b"}, *const tied[] = {"b", "ab"};
    struct text_conf c = {.stop = end, .n_stop = 1, .skip_special = true};
    /* a stop string that is the text of a hidden special token */
    expect(t, c, IDS('a', T_END, 'b'), "a", 2, 0);
    c.include_stop = true;
    expect(t, c, IDS('a', T_END, 'b'), "a", 2, 0);
    c.skip_special = false;
    expect(t, c, IDS('a', T_END, 'b'), "a<|end|>", 2, 0);
    /* it begins inside the special token and ends in text */
    static const char *const across[] = {"d|>x"};
    c = (struct text_conf){.stop = across, .n_stop = 1, .skip_special = true};
    expect(t, c, IDS('a', T_END, 'x', 'b'), "a", 3, 0);
    expect(t, c, IDS('a', T_END, 'y', 'b'), "ayb", 4, -1);
    /* several: what is complete first, the longest at the same place */
    c = (struct text_conf){.stop = nested, .n_stop = 2};
    expect(t, c, IDS('x', T_AB, 'c'), "xa", 2, 1);
    c.stop = tied;
    expect(t, c, IDS('x', T_AB, 'c'), "x", 2, 1);
    /* min_tokens: a match before does not count, one that is complete at it does */
    c = (struct text_conf){.stop = a, .n_stop = 1, .min_tokens = 3};
    expect(t, c, IDS('a', 'a', 'b', 'a', 'b'), "aab", 4, 0);
    expect(t, c, IDS('a', 'b', 'a', 'b'), "ab", 3, 0);
    c.stop = stop;
    expect(t, c, IDS('S', 'T', 'O', 'P', 'x'), "", 4, 0);
    expect(t, c, IDS(T_STOP, 'x', T_STOP), "xSTOPyxx", 3, 0);
    /* a hold that ends without its stop string is text */
    c = (struct text_conf){.stop = stop, .n_stop = 1};
    expect(t, c, IDS('x', 'S', 'T', 'O'), "xSTO", 4, -1);
    expect(t, c, IDS('S', 'T', 'S', 'T', 'O', 'P'), "ST", 6, 0);
    tok_close(t);
}
END_TEST

START_TEST(utf8_hold)
{
    struct tokenizer *t = byte_tokenizer();
    struct text_conf c = {0};
    expect(t, c, IDS(T_E2, T_EURO_A), "\xe2\x82\x82" FFFD "a", 2, -1);
    expect(t, c, IDS(0xe2, T_EURO_A), EURO "a", 2, -1);
    expect(t, c, IDS('a', T_E2), "a" FFFD, 2, -1);
    expect(t, c, IDS(0xf0, 0x9f, 0x98, 'a'), FFFD "a", 4, -1);
    expect(t, c, IDS(0xed, 0xa0, 0x80), FFFD FFFD FFFD, 3, -1);
    /* pieces: nothing of a sequence goes out before its last byte */
    struct text_stream s;
    struct buf out = {0};
    text_stream_init(&s, t, &c);
    static const int32_t v[] = {0xf0, 0x9f, 0x98};
    for (size_t i = 0; i < 3; i++) {
        text_stream_push(&s, v[i], &out);
        ck_assert_uint_eq(out.len, 0);
    }
    text_stream_push(&s, 0x80, &out);
    ck_assert_str_eq(out.p, "\xf0\x9f\x98\x80");
    text_stream_done(&s);
    buf_done(&out);
    /* a hidden token in the middle of a character does not break it */
    c.skip_special = true;
    expect(t, c, IDS(T_E2, T_END, 0xac), EURO, 3, -1);
    /* a stop string cuts behind an incomplete sequence */
    static const char *const stop[] = {"a"};
    c = (struct text_conf){.stop = stop, .n_stop = 1};
    expect(t, c, IDS('b', T_E2, 'a'), "b" FFFD, 3, 0);
    tok_close(t);
}
END_TEST

/* What may be said early is said early: only what could be a stop string waits. */
START_TEST(hold_is_short)
{
    struct tokenizer *t = byte_tokenizer();
    static const char *const stop[] = {"STOP", "\n\nUser:"};
    static const char text[] = "see STO STS\n\nUse\nx";
    static const size_t sent[] = {1, 2, 3, 4, 4, 4, 4, 8, 8, 8, 10, 11, 11, 11, 11, 11, 16, 18};
    struct text_stream s;
    struct buf out = {0};
    text_stream_init(&s, t, &(struct text_conf){.stop = stop, .n_stop = 2});
    for (size_t i = 0; text[i]; i++) {
        ck_assert_int_eq(text_stream_push(&s, (unsigned char)text[i], &out), 0);
        ck_assert_msg(out.len == sent[i], "after %zu: %zu sent, not %zu", i, out.len, sent[i]);
    }
    text_stream_flush(&s, &out);
    ck_assert_str_eq(out.p, text);
    text_stream_done(&s);
    buf_done(&out);
    tok_close(t);
}
END_TEST

/* The decoder's strip of a leading space: of a text that begins, not of one that continues. */
START_TEST(leading_space)
{
    static const char *const names[] = {"sp_prepend", "sp_meta"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        struct tokenizer *t = data_tokenizer(names[i]);
        int32_t v[] = {tok_id(t, "\xe2\x96\x81"
                                 "a"),
                       tok_id(t, "\xe2\x96\x81"
                                 "b"),
                       1};
        expect(t, (struct text_conf){0}, v, 2, "a b", 2, -1);
        expect(t, (struct text_conf){.continues = true}, v, 2, " a b", 2, -1);
        int32_t hidden[] = {1, v[0]};
        ck_assert(tok_is_special(t, 1));
        expect(t, (struct text_conf){.skip_special = true}, hidden, 2, "a", 2, -1);
        expect(t, (struct text_conf){0}, hidden, 2, "<s> a", 2, -1);
        tok_close(t);
    }
}
END_TEST

/* A stop string made to be slow for naive searching. */
START_TEST(long_stop)
{
    struct tokenizer *t = byte_tokenizer();
    char stop[2001];
    memset(stop, 'a', 2000);
    stop[1999] = 'b';
    stop[2000] = 0;
    const char *const list[] = {stop};
    struct text_stream s;
    struct buf out = {0};
    text_stream_init(&s, t, &(struct text_conf){.stop = list, .n_stop = 1});
    for (int i = 0; i < 100000; i++)
        ck_assert_int_eq(text_stream_push(&s, 'a', &out), 0);
    ck_assert_uint_eq(out.len, 100000 - 1999);
    ck_assert_int_eq(text_stream_push(&s, 'b', &out), 1);
    ck_assert_uint_eq(out.len, 100000 - 1999);
    text_stream_done(&s);
    buf_done(&out);
    tok_close(t);
}
END_TEST

Suite *suite_stream(void);
Suite *suite_stream(void)
{
    Suite *s = suite_create("stream");
    TCase *c = tcase_create("rules"), *r = tcase_create("random");
    tcase_set_timeout(c, 60);
    tcase_set_timeout(r, 120);
    one_thread(c);
    one_thread(r);
    tcase_add_test(c, stop_at_each_border);
    tcase_add_test(c, stop_rules);
    tcase_add_test(c, utf8_hold);
    tcase_add_test(c, hold_is_short);
    tcase_add_test(c, leading_space);
    tcase_add_test(c, long_stop);
    tcase_add_test(r, random_against_rules);
    tcase_add_loop_test(r, random_real, 0, 6);
    suite_add_tcase(s, c);
    suite_add_tcase(s, r);
    return s;
}
