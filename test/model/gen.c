/* Writes generated checkpoints into temporary folders; see the header. */
#include "test/model/gen.h"

#include <check.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/buf.h"
#include "engine/base/check.h"
#include "engine/base/file.h"
#include "engine/base/js.h"
#include "engine/base/mem.h"
#include "kernels/dtype.h"

static const char data_dir[] = "test/data/model";

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

const char *const *gen_names(void)
{
    static char *names[64];
    static int n;
    if (n)
        return (const char *const *)names;
    DIR *d = opendir(data_dir);
    CHECK(d != NULL); /* the tests run from the top of the tree */
    for (struct dirent *x = readdir(d); x; x = readdir(d)) {
        size_t len = strlen(x->d_name);
        if (len < 6 || strcmp(x->d_name + len - 5, ".json") != 0)
            continue;
        CHECK(n < 63);
        names[n++] = mem_strndup(x->d_name, len - 5);
    }
    closedir(d);
    qsort(names, (size_t)n, sizeof names[0], by_name);
    CHECK(n >= 20);
    return (const char *const *)names;
}

static uint64_t mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

static uint64_t hash_at(const char *name, int64_t i)
{
    uint64_t h = 0xcbf29ce484222325ull;
    for (; *name; name++)
        h = (h ^ (unsigned char)*name) * 0x100000001b3ull;
    return mix(h + (uint64_t)(i + 1) * 0x9e3779b97f4a7c15ull);
}

float gen_value(const char *name, int64_t i, float offset, float scale)
{
    float u = (float)(hash_at(name, i) >> 40) * 0x1p-23f - 1;
    return offset + scale * u;
}

static uint8_t fp8_code(const char *name, int64_t i)
{
    uint64_t z = hash_at(name, i);
    return (uint8_t)(((z >> 60) & 1) << 7 | (4 + ((z >> 40) & 7)) << 3 | ((z >> 44) & 7));
}

/* To nearest even; the values of these tests are normal numbers or zero in fp16. */
static uint16_t to_f16(float f)
{
    union {
        float f;
        uint32_t u;
    } v = {.f = f};
    uint32_t sign = v.u >> 16 & 0x8000, m = v.u & 0x7fffff;
    int exp = (int)(v.u >> 23 & 255) - 127 + 15;
    if (exp <= 0) { /* subnormal: shift the whole significand */
        if (exp < -10)
            return (uint16_t)sign;
        m |= 0x800000;
        int shift = 14 - exp;
        uint32_t q = m >> shift, rest = m & ((1u << shift) - 1), half = 1u << (shift - 1);
        q += rest > half || (rest == half && (q & 1));
        return (uint16_t)(sign | q);
    }
    uint32_t q = (uint32_t)exp << 10 | m >> 13, rest = m & 0x1fff;
    q += rest > 0x1000 || (rest == 0x1000 && (q & 1));
    return (uint16_t)(sign | q);
}

void gen_check_words(const char *dir, const char *want)
{
    struct file_map m;
    struct err e = {0};
    uint64_t sum = 0;
    char hex[20], *path = path_join(dir, "model.safetensors");
    ck_assert_msg(file_map_open(&m, path, &e) == OK, "%s", e.text);
    for (size_t i = 0; i < m.len; i += 8) {
        uint64_t w = 0;
        memcpy(&w, m.p + i, m.len - i < 8 ? m.len - i : 8);
        sum += w;
    }
    snprintf(hex, sizeof hex, "%016llx", (unsigned long long)sum);
    ck_assert_msg(!strcmp(hex, want),
                  "%s changed: run scripts/data/make_model_goldens.py and make_draft_goldens.py",
                  path);
    file_map_close(&m);
    mem_free(path);
}

void gen_open(struct gen *g, const char *name)
{
    struct err e = {0};
    char path[256];
    *g = (struct gen){0};
    snprintf(path, sizeof path, "%s/%s.json", data_dir, name);
    ck_assert_msg(js_load(&g->doc, path, &e) == OK, "%s", e.text);
    g->config = json_object_get(g->doc, "config");
    g->tensors = json_object_get(g->doc, "tensors");
    g->prompts = json_object_get(g->doc, "prompts");
    ck_assert(json_array_size(g->prompts) >= 3);
    const char *dir = json_string_value(json_object_get(g->doc, "dir"));
    if (dir) {
        snprintf(g->dir, sizeof g->dir, "%s", dir);
        gen_check_words(dir, json_string_value(json_object_get(g->doc, "words")));
    }
}

void gen_new(struct gen *g, json_t *config)
{
    *g = (struct gen){.doc = json_pack("{s:o,s:[]}", "config", config, "tensors")};
    CHECK(g->doc);
    g->config = config;
    g->tensors = json_object_get(g->doc, "tensors");
}

void gen_add(struct gen *g, const char *name, const char *type, int rows, int cols, double offset,
             double scale)
{
    json_t *shape = rows ? json_pack("[i,i]", rows, cols) : json_pack("[i]", cols);
    CHECK(json_array_append_new(g->tensors,
                                json_pack("[s,s,o,f,f]", name, type, shape, offset, scale)) == 0);
}

void gen_add_list(struct gen *g, const char *name, const char *type, json_t *list)
{
    CHECK(json_array_append_new(g->tensors, json_pack("[s,s,[i],o]", name, type,
                                                      (int)json_array_size(list), list)) == 0);
}

void gen_close(struct gen *g)
{
    if (g->written) {
        DIR *d = opendir(g->dir);
        char path[600];
        for (struct dirent *x = d ? readdir(d) : NULL; x; x = readdir(d)) {
            snprintf(path, sizeof path, "%s/%s", g->dir, x->d_name);
            if (x->d_name[0] != '.')
                unlink(path);
        }
        if (d)
            closedir(d);
        rmdir(g->dir);
    }
    json_decref(g->doc);
    *g = (struct gen){0};
}

json_t *gen_tensor(struct gen *g, const char *name)
{
    size_t i;
    json_t *t;
    json_array_foreach(g->tensors, i, t)
    {
        if (!strcmp(json_string_value(json_array_get(t, 0)), name))
            return t;
    }
    ck_abort_msg("no tensor %s", name);
    return NULL;
}

void gen_set(struct gen *g, const char *name, double offset, double scale)
{
    json_t *t = gen_tensor(g, name);
    json_array_set_new(t, 3, json_real(offset));
    json_array_set_new(t, 4, json_real(scale));
}

int gen_remove(struct gen *g, const char *prefix)
{
    int n = 0;
    for (size_t i = json_array_size(g->tensors); i-- > 0;) {
        const char *s = json_string_value(json_array_get(json_array_get(g->tensors, i), 0));
        if (strncmp(s, prefix, strlen(prefix)) != 0)
            continue;
        json_array_remove(g->tensors, i);
        n++;
    }
    return n;
}

void gen_put(const struct gen *g, const char *file, const char *text, size_t len)
{
    char *path = path_join(g->dir, file);
    FILE *f = fopen(path, "wb");
    CHECK(f && fwrite(text, 1, len, f) == len);
    CHECK(fclose(f) == 0);
    mem_free(path);
}

/* Appends the tensor's bytes to `data` and its entry to `head`. A sixth element of the entry
 * names the values' source when the tensor was renamed. */
static void write_tensor(struct buf *head, struct buf *data, const json_t *t)
{
    const char *name = json_string_value(json_array_get(t, 0));
    const char *type = json_string_value(json_array_get(t, 1));
    const char *from = json_string_value(json_array_get(t, 5));
    const json_t *shape = json_array_get(t, 2), *list = json_array_get(t, 3);
    float offset = (float)json_number_value(json_array_get(t, 3));
    float scale = (float)json_number_value(json_array_get(t, 4));
    int64_t n = 1;
    size_t begin = data->len;
    char *dims = json_dumps(shape, JSON_COMPACT);
    for (size_t i = 0; i < json_array_size(shape); i++)
        n *= json_integer_value(json_array_get(shape, i));
    for (int64_t i = 0; json_is_array(list) && i < n; i++) {
        int64_t v = json_integer_value(json_array_get(list, (size_t)i));
        buf_push(data, &v, strcmp(type, "I64") ? 1 : sizeof v);
    }
    for (int64_t i = 0; !json_is_array(list) && i < n; i++) {
        float v = gen_value(from ? from : name, i, offset, scale);
        if (!strcmp(type, "F32")) {
            buf_push(data, &v, 4);
        } else if (!strcmp(type, "F8_E4M3")) {
            uint8_t c = fp8_code(from ? from : name, i);
            buf_push(data, &c, 1);
        } else {
            uint16_t h = !strcmp(type, "F16") ? to_f16(v) : dtype_f32_to_bf16(v);
            buf_push(data, &h, 2);
        }
    }
    buf_fmt(head, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%zu,%zu]}",
            head->len ? "," : "", name, type, dims, begin, data->len);
    free(dims); /* jansson's allocation */
}

static void write_shard(const struct gen *g, int shard, int shards, struct buf *map)
{
    struct buf head, data, all;
    char file[64] = "model.safetensors";
    size_t i;
    json_t *t;
    buf_init(&head, 0);
    buf_init(&data, 0);
    buf_init(&all, 0);
    if (shards > 1)
        snprintf(file, sizeof file, "model-%05d-of-%05d.safetensors", shard + 1, shards);
    /* Wider types first: every tensor stays aligned to its element. */
    static const char *const order[] = {"I64", "F32", "BF16", "F16", "F8_E4M3", "BOOL"};
    for (size_t k = 0; k < ARRAY_LEN(order); k++) {
        json_array_foreach(g->tensors, i, t)
        {
            if ((int)(i % (size_t)shards) != shard ||
                strcmp(json_string_value(json_array_get(t, 1)), order[k]) != 0)
                continue;
            write_tensor(&head, &data, t);
            buf_fmt(map, "%s\"%s\":\"%s\"", map->len ? "," : "",
                    json_string_value(json_array_get(t, 0)), file);
        }
    }
    size_t len = head.len + 2, pad = -len & 7;
    uint64_t n = len + pad;
    buf_push(&all, &n, 8);
    buf_fmt(&all, "{%s}%*s", buf_cstr(&head), (int)pad, "");
    buf_push(&all, data.p, data.len);
    gen_put(g, file, all.p, all.len);
    buf_done(&head);
    buf_done(&data);
    buf_done(&all);
}

void gen_write(struct gen *g, int shards)
{
    struct buf map;
    const char *tmp = getenv("TMPDIR");
    snprintf(g->dir, sizeof g->dir, "%s/specd-model-XXXXXX", tmp ? tmp : "/tmp");
    CHECK(mkdtemp(g->dir) != NULL);
    g->written = true;
    buf_init(&map, 0);
    for (int s = 0; s < shards; s++)
        write_shard(g, s, shards, &map);
    if (shards > 1) {
        char *text = mem_printf("{\"metadata\":{},\"weight_map\":{%s}}", buf_cstr(&map));
        gen_put(g, "model.safetensors.index.json", text, strlen(text));
        mem_free(text);
    }
    buf_done(&map);
    char *text = json_dumps(g->config, JSON_INDENT(1));
    gen_put(g, "config.json", text, strlen(text));
    free(text); /* jansson's allocation */
}

struct golden *golden_load(const char *name, size_t *n)
{
    struct file_map m;
    struct err e = {0};
    char path[256];
    snprintf(path, sizeof path, "%s/%s.bin", data_dir, name);
    ck_assert_msg(file_map_open(&m, path, &e) == OK, "%s", e.text);
    ck_assert_uint_eq(m.len % GOLDEN_BYTES, 0);
    *n = m.len / GOLDEN_BYTES;
    struct golden *v = MEM_ARRAY(struct golden, *n);
    for (size_t i = 0; i < *n; i++) {
        const char *p = m.p + i * GOLDEN_BYTES;
        memcpy(v[i].id, p, sizeof v[i].id);
        memcpy(v[i].best, p + sizeof v[i].id, sizeof v[i].best);
        memcpy(v[i].col, p + sizeof v[i].id + sizeof v[i].best, sizeof v[i].col);
    }
    file_map_close(&m);
    return v;
}
