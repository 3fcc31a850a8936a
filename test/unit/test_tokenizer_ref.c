/* Goal: ids and texts equal those of the reference library. Method: a corpus of more than
 * 2,800 hostile strings and 400 random id sequences a tokenizer, with what the library gave for
 * them when scripts/data/make_tokenizer_data.py ran; each is encoded with special tokens
 * recognised and as text, decoded at once, and decoded token by token through a text stream. Then
 * two tokenizers with their steps changed in every way we support, on a part of the corpus. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/js.h"
#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "engine/text/stream.h"
#include "test/unit/tokenizer_data.h"
#include "test/sanitize.h"

enum { EACH = SANITIZED ? 4 : 1 }; /* streams: a part */

struct files {
    char *corpus, *ids, *text;
    struct cursor c, i, t;
    uint32_t n;
};

static struct cursor open_cursor(char **own, const char *name, const char *suffix)
{
    char *file = mem_printf("%s%s", name, suffix);
    struct cursor c = {0};
    *own = data_xz(file, &c.len);
    c.p = *own;
    mem_free(file);
    return c;
}

static void same_ids(struct cursor *want, const struct ids *got, const char *s, size_t n)
{
    uint32_t k = cur_varint(want);
    bool same = k == got->n;
    size_t bad = 0;
    for (uint32_t i = 0; i < k; i++) {
        uint32_t id = cur_varint(want);
        if (same && (uint32_t)got->v[i] != id) {
            same = false;
            bad = i;
        }
    }
    ck_assert_msg(same, "'%.*s': %u ids wanted, %zu found, first difference at %zu", (int)n, s, k,
                  got->n, bad);
}

static void same_text(const struct buf *got, const char *want, size_t n, const char *what)
{
    ck_assert_msg(got->len == n && !memcmp(buf_cstr(got), want, n), "%s: '%.*s' wanted, '%s'", what,
                  (int)n, want, buf_cstr(got));
}

/* A stream without stop strings gives the same text in pieces, each of them valid. */
static void check_stream(const struct tokenizer *t, const int32_t *v, size_t n, bool skip)
{
    struct buf all = {0}, got = {0};
    struct text_stream s;
    detok_all(t, v, n, skip, &all);
    ck_assert(utf8_valid(buf_cstr(&all), all.len));
    text_stream_init(&s, t, &(struct text_conf){.skip_special = skip});
    for (size_t i = 0; i < n; i++) {
        size_t from = got.len;
        ck_assert_int_eq(text_stream_push(&s, v[i], &got), 0);
        ck_assert(utf8_valid(buf_cstr(&got) + from, got.len - from));
    }
    text_stream_flush(&s, &got);
    same_text(&got, buf_cstr(&all), all.len, "stream");
    text_stream_done(&s);
    buf_done(&all);
    buf_done(&got);
}

static void check_decode(struct cursor *want, const struct tokenizer *t, const struct ids *ids,
                         const char *s, size_t n)
{
    struct buf got = {0};
    detok_all(t, ids->v, ids->n, false, &got);
    bool same = *cur_bytes(want, 1) == 0;
    size_t k = same ? n : cur_varint(want);
    same_text(&got, same ? s : cur_bytes(want, k), k, "decode");
    if (n % EACH == 0)
        check_stream(t, ids->v, ids->n, false);
    buf_done(&got);
}

START_TEST(corpus)
{
    const char *name = data_names[_i];
    struct tokenizer *t = data_tokenizer(name);
    struct files f;
    f.c = open_cursor(&f.corpus, "corpus", ".bin");
    f.i = open_cursor(&f.ids, name, ".ids");
    f.t = open_cursor(&f.text, name, ".text");
    f.n = cur_varint(&f.c);
    ck_assert_uint_ge(f.n, 2000);
    size_t start = f.c.at;
    for (int as_text = 0; as_text < 2; as_text++) {
        unsigned flags = TOK_ADD_SPECIAL | (as_text ? 0 : TOK_PARSE_SPECIAL);
        f.c.at = start;
        for (uint32_t i = 0; i < f.n; i++) {
            struct ids ids = {0};
            struct err e = {0};
            size_t n = cur_varint(&f.c);
            const char *s = cur_bytes(&f.c, n);
            ck_assert_msg(tok_encode(t, s, n, flags, NULL, 0, 0, &ids, &e) == OK, "%s", e.text);
            same_ids(&f.i, &ids, s, n);
            if (!as_text)
                check_decode(&f.t, t, &ids, s, n);
            ids_done(&ids);
        }
    }
    ck_assert_uint_eq(f.i.at, f.i.len);
    ck_assert_uint_eq(f.t.at, f.t.len);
    mem_free(f.corpus);
    mem_free(f.ids);
    mem_free(f.text);
    tok_close(t);
}
END_TEST

START_TEST(random_ids)
{
    const char *name = data_names[_i];
    struct tokenizer *t = data_tokenizer(name);
    char *own;
    struct cursor c = open_cursor(&own, name, ".rand");
    uint32_t n = cur_varint(&c);
    ck_assert_uint_ge(n, 400);
    for (uint32_t i = 0; i < n; i++) {
        struct ids ids = {0};
        uint32_t k = cur_varint(&c);
        for (uint32_t j = 0; j < k; j++)
            ids_push(&ids, (int32_t)cur_varint(&c));
        for (int skip = 0; skip < 2; skip++) {
            struct buf got = {0};
            size_t len = cur_varint(&c);
            const char *want = cur_bytes(&c, len);
            detok_all(t, ids.v, ids.n, skip, &got);
            same_text(&got, want, len, skip ? "without special tokens" : "with special tokens");
            if (i % EACH == 0)
                check_stream(t, ids.v, ids.n, skip);
            buf_done(&got);
        }
        ids_done(&ids);
    }
    ck_assert_uint_eq(c.at, c.len);
    mem_free(own);
    tok_close(t);
}
END_TEST

/* The tokenizer with some sections of its file, or some keys of its model, replaced. */
static struct tokenizer *patched(const char *base, json_t *patch)
{
    char *path = strcmp(base, "demo") ? mem_printf("test/data/tokenizer/%s.json", base)
                                      : mem_strdup("configs/models/demo/tokenizer.json");
    json_t *root = NULL, *v;
    struct err e = {0};
    struct tokenizer *t = NULL;
    const char *key;
    ck_assert_msg(js_load(&root, path, &e) == OK, "%s", e.text);
    json_object_foreach(patch, key, v)
    {
        if (!strcmp(key, "model"))
            json_object_update(json_object_get(root, "model"), v);
        else
            json_object_set(root, key, v);
    }
    char *text = json_dumps(root, 0);
    ck_assert_msg(tok_parse(&t, text, strlen(text), NULL, 0, &e) == OK, "%s", e.text);
    free(text); /* of jansson */
    json_decref(root);
    mem_free(path);
    return t;
}

START_TEST(variants)
{
    json_t *list = NULL, *v;
    struct err e = {0};
    size_t i;
    char *own_ids, *own_corpus;
    ck_assert_msg(js_load(&list, "test/data/tokenizer/variants.json", &e) == OK, "%s", e.text);
    ck_assert_uint_ge(json_array_size(list), 70);
    struct cursor want = open_cursor(&own_ids, "variants", ".ids");
    struct cursor c = open_cursor(&own_corpus, "corpus", ".bin");
    json_array_foreach(list, i, v)
    {
        const char *base = json_string_value(json_object_get(v, "base"));
        struct tokenizer *t = patched(base, json_object_get(v, "patch"));
        c.at = 0;
        uint32_t n = cur_varint(&c);
        for (uint32_t k = 0; k < n; k++) {
            struct ids ids = {0};
            size_t len = cur_varint(&c);
            const char *s = cur_bytes(&c, len);
            if (k % 8)
                continue;
            int rc = tok_encode(t, s, len, TOK_PARSE_SPECIAL, NULL, 0, 0, &ids, &e);
            ck_assert_msg(rc == OK, "variant %zu: %s", i, e.text);
            same_ids(&want, &ids, s, len);
            ids_done(&ids);
        }
        tok_close(t);
    }
    ck_assert_uint_eq(want.at, want.len);
    json_decref(list);
    mem_free(own_ids);
    mem_free(own_corpus);
}
END_TEST

Suite *suite_tokenizer_ref(void);
Suite *suite_tokenizer_ref(void)
{
    Suite *s = suite_create("tokenizer_ref");
    TCase *all = tcase_create("corpus"), *some = tcase_create("random_ids");
    tcase_set_timeout(all, 120);
    tcase_set_timeout(some, 120);
    one_thread(all);
    one_thread(some);
    tcase_add_loop_test(all, corpus, 0, 6);
    tcase_add_loop_test(some, random_ids, 0, 6);
    TCase *var = tcase_create("variants");
    tcase_set_timeout(var, 120);
    one_thread(var);
    tcase_add_test(var, variants);
    suite_add_tcase(s, var);
    suite_add_tcase(s, all);
    suite_add_tcase(s, some);
    return s;
}
