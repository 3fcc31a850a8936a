/* Test data of the tokenizer suites; see the header. */
#include "test/unit/tokenizer_data.h"

#include <check.h>
#include <lzma.h>
#include <string.h>

#include "engine/base/file.h"
#include "engine/base/mem.h"

#define DIR "test/data/tokenizer/"

const char *const data_names[] = {"qwen3",    "deepseek_v3", "sp_prepend", "sp_meta",
                                  "sp_plain", "demo",        NULL};

char *data_xz(const char *name, size_t *len)
{
    struct file_map m = {0};
    struct err e = {0};
    char *path = mem_printf(DIR "%s.xz", name);
    ck_assert_msg(file_map_open(&m, path, &e) == OK, "%s", e.text);
    mem_free(path);
    size_t cap = 1 << 16, in = 0, out = 0;
    char *p = mem_alloc(cap + 1);
    for (;;) {
        uint64_t mem = 256u << 20;
        in = out = 0;
        lzma_ret rc = lzma_stream_buffer_decode(&mem, 0, NULL, (const uint8_t *)m.p, &in, m.len,
                                                (uint8_t *)p, &out, cap);
        if (rc == LZMA_OK)
            break;
        ck_assert_msg(rc == LZMA_BUF_ERROR && cap < 64u << 20, "%s.xz: lzma error %d", name, rc);
        cap *= 8;
        p = mem_realloc(p, cap + 1, 1);
    }
    file_map_close(&m);
    p[out] = 0;
    *len = out;
    return p;
}

uint32_t cur_varint(struct cursor *c)
{
    uint32_t v = 0;
    for (int shift = 0;; shift += 7) {
        ck_assert(c->at < c->len && shift < 32);
        unsigned char b = (unsigned char)c->p[c->at++];
        v |= (uint32_t)(b & 0x7f) << shift;
        if (b < 0x80)
            return v;
    }
}

const char *cur_bytes(struct cursor *c, size_t n)
{
    ck_assert(n <= c->len - c->at);
    c->at += n;
    return c->p + c->at - n;
}

struct tokenizer *data_tokenizer(const char *name)
{
    /* What its tokenizer_config.json says; the file has no template of its own. */
    static const char deepseek[] = "{\"add_bos_token\": true, \"add_eos_token\": false,"
                                   " \"bos_token\": {\"content\": \"<\xef\xbd\x9c"
                                   "begin\xe2\x96\x81of\xe2\x96\x81sentence\xef\xbd\x9c>\"},"
                                   " \"eos_token\": {\"content\": \"<\xef\xbd\x9c"
                                   "end\xe2\x96\x81of\xe2\x96\x81sentence\xef\xbd\x9c>\"}}";
    struct tokenizer *t = NULL;
    struct err e = {0};
    char *text = NULL, *file = NULL;
    size_t len = 0;
    const char *conf = !strcmp(name, "deepseek_v3") ? deepseek : NULL;
    if (!strcmp(name, "qwen3") || conf) {
        file = mem_printf("%s.json", name);
        text = data_xz(file, &len);
    } else {
        file = strcmp(name, "demo") ? mem_printf(DIR "%s.json", name)
                                    : mem_strdup("configs/models/demo/tokenizer.json");
        ck_assert_msg(file_read(&text, &len, file, 64u << 20, &e) == OK, "%s", e.text);
    }
    int rc = tok_parse(&t, text, len, conf, conf ? strlen(conf) : 0, &e);
    ck_assert_msg(rc == OK, "%s: %s", name, e.text);
    mem_free(text);
    mem_free(file);
    return t;
}
