/* Tokenizer files and texts. An input that begins with '{' is a tokenizer.json: when it loads, a
 * fixed text and the end of the file itself are encoded with it. Any other input is a text for a
 * tokenizer of test/data, its first byte choosing flags and untrusted spans. Checked: ids are of
 * the vocabulary, texts come back as valid UTF-8, a stream says the same as decoding at once. */
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "engine/text/stream.h"
#include "engine/text/tokenizer.h"

int fuzz_tokenizer(const uint8_t *data, size_t size);

static void stream(const struct tokenizer *t, const struct ids *ids, bool skip)
{
    static const char *const stop[] = {"ab", "\xe2\x82\xac"};
    struct buf all = {0}, got = {0};
    struct text_stream s;
    detok_all(t, ids->v, ids->n, skip, &all);
    CHECK(utf8_valid(buf_cstr(&all), all.len));
    text_stream_init(&s, t, &(struct text_conf){.skip_special = skip});
    for (size_t i = 0; i < ids->n; i++)
        CHECK(text_stream_push(&s, ids->v[i], &got) == 0 && utf8_valid(buf_cstr(&got), got.len));
    text_stream_flush(&s, &got);
    CHECK(got.len == all.len && !memcmp(buf_cstr(&got), buf_cstr(&all), all.len));
    text_stream_done(&s);
    buf_reset(&got);
    text_stream_init(&s, t, &(struct text_conf){.stop = stop, .n_stop = 2, .skip_special = skip});
    for (size_t i = 0; i < ids->n; i++)
        if (text_stream_push(&s, ids->v[i], &got))
            break;
    text_stream_flush(&s, &got);
    CHECK(utf8_valid(buf_cstr(&got), got.len));
    CHECK(!got.len || s.stopped >= 0 || got.len == all.len);
    text_stream_done(&s);
    buf_done(&all);
    buf_done(&got);
}

static void encode(const struct tokenizer *t, const char *s, size_t n, unsigned flags,
                   const struct span *span, size_t n_span)
{
    struct ids ids = {0};
    struct err e = {0};
    if (tok_encode(t, s, n, flags, span, n_span, 1 << 20, &ids, &e) == OK) {
        for (size_t i = 0; i < ids.n; i++)
            CHECK(ids.v[i] >= 0 && ids.v[i] < tok_vocab_size(t) && tok_piece(t, ids.v[i]));
        stream(t, &ids, flags & 8);
    } else {
        CHECK(ids.n == 0 && e.text[0]);
    }
    ids_done(&ids);
}

static void file(const char *s, size_t n)
{
    static const char text[] = "a b  the <s>3 ab\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\n'll";
    struct tokenizer *t = NULL;
    struct err e = {0};
    if (tok_parse(&t, s, n, NULL, 0, &e) < 0) {
        CHECK(!t && e.text[0]);
        return;
    }
    encode(t, text, sizeof text - 1, TOK_ADD_SPECIAL | TOK_PARSE_SPECIAL, NULL, 0);
    encode(t, text, sizeof text - 1, 0, NULL, 0);
    size_t k = n < 200 ? n : 200;
    encode(t, s + n - k, k, TOK_PARSE_SPECIAL, NULL, 0);
    tok_close(t);
}

static struct tokenizer *known(int which)
{
    static struct tokenizer *t[3];
    static const char *const path[] = {"test/data/tokenizer/sp_prepend.json",
                                       "test/data/tokenizer/sp_meta.json",
                                       "configs/models/demo/tokenizer.json"};
    if (!t[which]) {
        char *json = NULL;
        size_t len = 0;
        CHECK(file_read(&json, &len, path[which], 64u << 20, NULL) == OK);
        CHECK(tok_parse(&t[which], json, len, NULL, 0, NULL) == OK);
        mem_free(json);
    }
    return t[which];
}

int fuzz_tokenizer(const uint8_t *data, size_t size)
{
    if (!size)
        return 0;
    if (data[0] == '{') {
        file((const char *)data, size);
        return 0;
    }
    /* Two spans at borders of characters, or none. */
    const char *s = (const char *)data + 1;
    size_t n = size - 1, at[4];
    struct span span[2];
    size_t n_span = 0;
    for (size_t i = 0; i < 4; i++) {
        at[i] = n * (i + 1) / 5;
        while (at[i] < n && ((unsigned char)s[at[i]] & 0xc0) == 0x80)
            at[i]++;
    }
    for (size_t i = 0; i < 4 && data[0] & 0x20; i += 2)
        if (at[i] < at[i + 1] && (!n_span || span[n_span - 1].to <= at[i]))
            span[n_span++] = (struct span){at[i], at[i + 1]};
    encode(known(data[0] % 3), s, n, data[0] & 11, span, n_span);
    return 0;
}
