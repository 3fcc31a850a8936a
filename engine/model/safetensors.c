/* Mapped safetensors files; see the header. Start-up thread only, read-only afterwards. Does not
 * convert anything: a weight points into the map, or to what dummy.c makes. */
#include "engine/model/safetensors.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/file.h"
#include "engine/base/js.h"
#include "engine/base/mem.h"
#include "engine/model/dummy.h"
#include "engine/model/shard.h"

static const struct {
    const char *name;
    size_t size;
    enum dtype dt;
} types[] = {
    {"BF16", 2, DT_BF16}, {"F32", 4, DT_F32},  {"F16", 2, DT_F16},   {"F8_E4M3", 1, DT_F8E4M3},
    {"I64", 8, DT_I64},   {"I32", 4, DT_I32},  {"U8", 1, DT_U8},     {"F64", 8, DT_NONE},
    {"I16", 2, DT_NONE},  {"I8", 1, DT_NONE},  {"BOOL", 1, DT_NONE}, {"F8_E5M2", 1, DT_NONE},
    {"U64", 8, DT_NONE},  {"U32", 4, DT_NONE}, {"U16", 2, DT_NONE},  {"F8_E8M0", 1, DT_NONE},
    {"C64", 8, DT_NONE},
};

struct tensors {
    struct tensor *v;
    size_t n, cap;
    uint32_t *slot; /* open addressing: index + 1 into v, 0 empty; n_slot is a power of two */
    size_t n_slot;
    struct file_map *map;
    char **file;
    size_t n_map, cap_map, n_file, cap_file;
    bool wrapped, fp8, aside;
    struct dummy *gen; /* generated set; NULL: files */
    struct comm *comm; /* NULL: alone */
    struct shards cut;
    int64_t n_param;
    size_t bytes;
};

static uint64_t hash_name(const char *s)
{
    uint64_t h = 0xcbf29ce484222325ull;
    for (; *s; s++)
        h = (h ^ (unsigned char)*s) * 0x100000001b3ull;
    return h ^ (h >> 29);
}

static size_t slot_of(const struct tensors *t, const char *name)
{
    size_t i = hash_name(name) & (t->n_slot - 1);
    while (t->slot[i] && strcmp(t->v[t->slot[i] - 1].name, name) != 0)
        i = (i + 1) & (t->n_slot - 1);
    return i;
}

static void index_grow(struct tensors *t)
{
    if (t->n_slot > 2 * (t->n + 1))
        return;
    mem_free(t->slot);
    t->n_slot = t->n_slot ? t->n_slot * 4 : 256;
    t->slot = MEM_ARRAY(uint32_t, t->n_slot);
    for (size_t i = 0; i < t->n; i++)
        t->slot[slot_of(t, t->v[i].name)] = (uint32_t)i + 1;
}

struct tensors *tensors_new(bool wrapped)
{
    struct tensors *t = MEM_NEW(struct tensors);
    t->wrapped = wrapped;
    index_grow(t);
    return t;
}

struct tensors *tensors_generate(bool wrapped, int n_layer)
{
    struct tensors *t = tensors_new(wrapped);
    t->gen = dummy_new(n_layer);
    return t;
}

void tensors_fill(struct tensors *t, int threads)
{
    if (t->gen)
        dummy_fill(t->v, t->n, false, threads);
    for (size_t i = 0; t->gen && i < t->n; i++)
        t->v[i].made |= t->v[i].used;
    shard_fill(&t->cut, t->v);
}

void tensors_fill_small(struct tensors *t)
{
    if (t->gen)
        dummy_fill(t->v, t->n, true, 1);
}

void tensors_make(const struct tensors *t, size_t i, size_t from, size_t n, void *dst)
{
    const struct tensor *x = &t->v[i];
    if (t->gen) {
        dummy_make(x, from, n, dst);
        return;
    }
    const char *p = (const char *)x->p + from;
    if (t->n_map)
        file_will_read(p, n);
    memcpy(dst, p, n);
}

void tensors_release(struct tensors *t)
{
    for (size_t i = 0; i < t->n_map; i++)
        file_map_release(&t->map[i]);
}

void tensors_close(struct tensors *t)
{
    if (!t)
        return;
    for (size_t i = 0; i < t->n; i++)
        mem_free(t->v[i].name);
    for (size_t i = 0; i < t->n_map; i++)
        file_map_close(&t->map[i]);
    for (size_t i = 0; i < t->n_file; i++)
        mem_free(t->file[i]);
    dummy_free(t->gen);
    shard_done(&t->cut);
    mem_free(t->v);
    mem_free(t->slot);
    mem_free(t->map);
    mem_free(t->file);
    mem_free(t);
}

/* The name inside a text model: multimodal checkpoints nest it under either order of prefixes. */
static const char *strip(const char *name, char out[ST_NAME_MAX + 8])
{
    static const char a[] = "model.language_model.", b[] = "language_model.";
    if (!strncmp(name, a, sizeof a - 1)) {
        snprintf(out, ST_NAME_MAX + 8, "model.%s", name + sizeof a - 1);
        return out;
    }
    return strncmp(name, b, sizeof b - 1) ? name : name + sizeof b - 1;
}

static bool other_part(const char *name)
{
    static const char *const parts[] = {
        "vision_tower.", "audio_tower.",  "embed_vision.",          "embed_audio.",
        "visual.",       "mm_projector.", "multi_modal_projector.", "vision_embedder."};
    if (!strncmp(name, "model.", 6))
        name += 6;
    for (size_t i = 0; i < ARRAY_LEN(parts); i++)
        if (!strncmp(name, parts[i], strlen(parts[i])))
            return true;
    return false;
}

/* Reads one header entry into *x and [*from, *to). */
static int entry(struct tensor *x, uint64_t *from, uint64_t *to, const char *name, const json_t *o,
                 uint64_t data_len, struct err *e)
{
    if (!*name || strlen(name) > ST_NAME_MAX)
        return FAIL(e, E_FORMAT, "a tensor name has %zu bytes; 1 to %d are allowed", strlen(name),
                    ST_NAME_MAX);
    if (!json_is_object(o) || json_object_size(o) != 3)
        return FAIL(e, E_FORMAT, "tensor '%s': the entry must be {dtype, shape, data_offsets}",
                    name);
    const char *type = json_string_value(json_object_get(o, "dtype"));
    const json_t *shape = json_object_get(o, "shape"), *off = json_object_get(o, "data_offsets");
    size_t ty = 0;
    while (type && ty < ARRAY_LEN(types) && strcmp(type, types[ty].name) != 0)
        ty++;
    if (!type || ty == ARRAY_LEN(types))
        return FAIL(e, E_FORMAT, "tensor '%s': unknown dtype %s", name, type ? type : "(none)");
    if (!json_is_array(shape) || json_array_size(shape) > ST_RANK_MAX)
        return FAIL(e, E_FORMAT, "tensor '%s': shape must be a list of at most %d sizes", name,
                    ST_RANK_MAX);
    x->rank = (int)json_array_size(shape);
    x->type = types[ty].name;
    x->dt = types[ty].dt;
    uint64_t bytes = types[ty].size;
    for (int i = 0; i < x->rank; i++) {
        const json_t *v = json_array_get(shape, (size_t)i);
        json_int_t k = json_is_integer(v) ? json_integer_value(v) : -1;
        if (k < 0)
            return FAIL(e, E_FORMAT, "tensor '%s': a size in shape is not a whole number", name);
        if (__builtin_mul_overflow(bytes, (uint64_t)k, &bytes))
            return FAIL(e, E_FORMAT, "tensor '%s': shape is too large", name);
        x->shape[i] = k;
    }
    json_int_t b = -1, d = -1;
    if (json_is_array(off) && json_array_size(off) == 2 &&
        json_is_integer(json_array_get(off, 0)) && json_is_integer(json_array_get(off, 1))) {
        b = json_integer_value(json_array_get(off, 0));
        d = json_integer_value(json_array_get(off, 1));
    }
    if (b < 0 || d < b || (uint64_t)d > data_len)
        return FAIL(e, E_FORMAT, "tensor '%s': data_offsets are not inside the file's %llu bytes",
                    name, (unsigned long long)data_len);
    if ((uint64_t)(d - b) != bytes)
        return FAIL(e, E_FORMAT, "tensor '%s': shape needs %llu bytes, data_offsets span %lld",
                    name, (unsigned long long)bytes, (long long)(d - b));
    if ((uint64_t)b % types[ty].size)
        return FAIL(e, E_FORMAT, "tensor '%s': data begins at %lld, not aligned to its %zu bytes",
                    name, (long long)b, types[ty].size);
    x->bytes = bytes;
    *from = (uint64_t)b;
    *to = (uint64_t)d;
    return OK;
}

struct piece { /* for the overlap check */
    uint64_t from, to;
    const char *name;
};

static int piece_cmp(const void *a, const void *b)
{
    const struct piece *x = a, *y = b;
    if (x->from != y->from)
        return x->from < y->from ? -1 : 1;
    return x->to < y->to ? -1 : x->to > y->to;
}

static int check_cover(struct piece *v, size_t n, uint64_t data_len, struct err *e)
{
    uint64_t at = 0;
    if (n)
        qsort(v, n, sizeof *v, piece_cmp);
    for (size_t i = 0; i < n; i++) {
        if (v[i].from < at)
            return FAIL(e, E_FORMAT, "tensor '%s' overlaps '%s'", v[i].name, v[i - 1].name);
        if (v[i].from > at)
            return FAIL(e, E_FORMAT, "the %llu bytes before tensor '%s' belong to no tensor",
                        (unsigned long long)(v[i].from - at), v[i].name);
        at = v[i].to;
    }
    if (at != data_len)
        return FAIL(e, E_FORMAT, "the last %llu bytes belong to no tensor",
                    (unsigned long long)(data_len - at));
    return OK;
}

static int add_entries(struct tensors *t, const json_t *head, const char *data, uint64_t data_len,
                       const char *file, struct err *e)
{
    int ret = OK;
    size_t n = 0;
    struct piece *piece = MEM_ARRAY(struct piece, json_object_size(head) + 1);
    const char *key;
    json_t *val;
    json_object_foreach((json_t *)(size_t)head, key, val)
    {
        if (!strcmp(key, "__metadata__"))
            continue;
        struct tensor x = {.file = file};
        uint64_t from = 0, to = 0;
        char buf[ST_NAME_MAX + 8];
        TRY_OUT(entry(&x, &from, &to, key, val, data_len, e));
        piece[n++] = (struct piece){from, to, key};
        const char *name = t->wrapped ? strip(key, buf) : key;
        size_t s = slot_of(t, name);
        if (t->slot[s]) {
            ret = FAIL(e, E_FORMAT, "tensor '%s' is also in %s", name, t->v[t->slot[s] - 1].file);
            goto out;
        }
        x.name = mem_strdup(name);
        x.p = data + from;
        x.taken = t->wrapped && other_part(key);
        MEM_GROW(t->v, t->cap, t->n + 1);
        t->v[t->n++] = x;
        t->slot[s] = (uint32_t)t->n;
        index_grow(t);
    }
    ret = check_cover(piece, n, data_len, e);
out:
    mem_free(piece);
    return ret;
}

int tensors_add(struct tensors *t, const char *p, size_t len, const char *file, struct err *e)
{
    if (len < 8)
        return FAIL(e, E_FORMAT, "%s: %zu bytes are too few for a safetensors file", file, len);
    uint64_t n = 0;
    for (int i = 0; i < 8; i++)
        n |= (uint64_t)(unsigned char)p[i] << (8 * i);
    if (n > ST_HEADER_MAX || n > len - 8)
        return FAIL(e, E_FORMAT, "%s: header length %llu is over the file's %zu bytes or over %d",
                    file, (unsigned long long)n, len, (int)ST_HEADER_MAX);
    json_t *head = NULL;
    TRY(js_parse(&head, p + 8, (size_t)n, file, e));
    MEM_GROW(t->file, t->cap_file, t->n_file + 1);
    char *own = t->file[t->n_file++] = mem_strdup(file);
    int ret = json_is_object(head)
                  ? add_entries(t, head, p + 8 + n, len - 8 - n, own, e)
                  : FAIL(e, E_FORMAT, "the header must be an object, not %s", js_type_name(head));
    if (ret < 0)
        err_prefix(e, "%s", file);
    json_decref(head);
    return ret;
}

static int map_file(struct tensors *t, const char *dir, const char *name, struct err *e)
{
    struct file_map m;
    char *path = path_join(dir, name);
    int ret = file_map_open(&m, path, e);
    mem_free(path);
    if (ret < 0)
        return ret;
    MEM_GROW(t->map, t->cap_map, t->n_map + 1);
    t->map[t->n_map++] = m;
    return tensors_add(t, m.p, m.len, name, e);
}

/* Each file of the index once, and both lists of names must agree. */
static int map_index(struct tensors *t, const char *dir, const json_t *index, struct err *e)
{
    json_t *wm = NULL;
    if (!json_is_object(index) || js_get_obj(index, "weight_map", &wm, e) <= 0)
        return FAIL(e, E_FORMAT, "'weight_map' is missing or not an object");
    const char *key;
    json_t *val;
    json_object_foreach(wm, key, val)
    {
        const char *file = json_string_value(val);
        if (!file || !*file || strchr(file, '/') || strlen(file) > 200)
            return FAIL(e, E_FORMAT, "'weight_map': the entry of '%s' is not a file name", key);
        bool have = false;
        for (size_t i = 0; i < t->n_file; i++)
            have |= !strcmp(t->file[i], file);
        if (!have)
            TRY(map_file(t, dir, file, e));
    }
    if (t->wrapped) /* the names differ by prefix; the families' own check finds what is missing */
        return OK;
    json_object_foreach(wm, key, val)
    {
        const struct tensor *x = tensors_find(t, key);
        if (!x || strcmp(x->file, json_string_value(val)) != 0)
            return FAIL(e, E_FORMAT, "tensor '%s' is not in %s", key, json_string_value(val));
    }
    for (size_t i = 0; i < t->n; i++)
        if (!json_object_get(wm, t->v[i].name))
            return FAIL(e, E_FORMAT, "tensor '%s' of %s is not listed", t->v[i].name, t->v[i].file);
    return OK;
}

int tensors_open(struct tensors **out, const char *dir, bool wrapped, struct err *e)
{
    struct tensors *t = tensors_new(wrapped);
    char *one = path_join(dir, "model.safetensors");
    char *idx = path_join(dir, "model.safetensors.index.json");
    json_t *index = NULL;
    int ret = OK;
    if (file_exists(one)) {
        TRY_OUT(map_file(t, dir, "model.safetensors", e));
    } else if (file_exists(idx)) {
        TRY_OUT(js_load(&index, idx, e));
        ret = map_index(t, dir, index, e);
        if (ret < 0) {
            err_prefix(e, "model.safetensors.index.json");
            goto out;
        }
    } else {
        ret =
            FAIL(e, E_IO, "%s has neither model.safetensors nor model.safetensors.index.json", dir);
        goto out;
    }
    *out = t;
    t = NULL;
out:
    json_decref(index);
    mem_free(one);
    mem_free(idx);
    tensors_close(t);
    return ret;
}

bool tensors_generated(const struct tensors *t)
{
    return t->gen != NULL;
}

size_t tensors_count(const struct tensors *t)
{
    return t->n;
}

const struct tensor *tensors_at(const struct tensors *t, size_t i)
{
    return &t->v[i];
}

const struct tensor *tensors_find(const struct tensors *t, const char *name)
{
    size_t s = slot_of(t, name);
    return t->slot[s] ? &t->v[t->slot[s] - 1] : NULL;
}

bool tensors_any(const struct tensors *t, const char *prefix)
{
    for (size_t i = 0; i < t->n; i++)
        if (!strncmp(t->v[i].name, prefix, strlen(prefix)))
            return true;
    return t->gen != NULL;
}

void tensors_split(struct tensors *t, struct comm *comm)
{
    CHECK(!t->bytes);
    t->comm = comm;
}

struct comm *tensors_comm(const struct tensors *t)
{
    return t->comm;
}

size_t tensors_copy_bytes(const struct tensors *t)
{
    return shard_bytes(&t->cut, t->v);
}

void tensors_allow_fp8(struct tensors *t)
{
    t->fp8 = true;
}

void tensors_aside(struct tensors *t, bool on)
{
    t->aside = on;
}

void tensors_use(struct tensors *t, const char *prefix, int64_t *n_param, size_t *bytes)
{
    static const char scale[] = "_scale_inv";
    *n_param = 0;
    *bytes = 0;
    for (size_t i = 0; i < t->n; i++) {
        struct tensor *x = &t->v[i];
        if (!x->taken || strncmp(x->name, prefix, strlen(prefix)) != 0)
            continue;
        size_t len = strlen(x->name), end = sizeof scale - 1;
        x->used = true;
        *bytes += x->bytes;
        if (len < end || strcmp(x->name + len - end, scale) != 0)
            *n_param += (int64_t)(x->bytes / dtype_size(x->dt));
    }
}

enum { MAKE_F32 = 1 << 8 }; /* beside the TAKE_ flags: the type of a generated tensor */

static const char *shape_text(char *buf, size_t cap, const int64_t *s, int rank)
{
    size_t n = (size_t)snprintf(buf, cap, "[");
    for (int i = 0; i < rank && n < cap; i++)
        n += (size_t)snprintf(buf + n, cap - n, "%s%lld", i ? ", " : "", (long long)s[i]);
    if (n < cap)
        snprintf(buf + n, cap - n, "]");
    return buf;
}

/* A generated set makes the tensor of this name, unless it has it or it may be absent. */
static int make(struct tensors *t, const char *name, const int64_t *shape, int rank, unsigned flags,
                struct err *e)
{
    if (!t->gen || t->slot[slot_of(t, name)] || (flags & TAKE_OPTIONAL))
        return OK;
    struct tensor x = {.file = "(generated)", .rank = rank};
    bool fp8 = t->fp8 && (flags & TAKE_FP8) && !strstr(name, ".eh_proj."); /* bf16 as released */
    x.dt = fp8 ? DT_F8E4M3 : flags & MAKE_F32 ? DT_F32 : DT_BF16;
    x.type = fp8 ? "F8_E4M3" : flags & MAKE_F32 ? "F32" : "BF16";
    x.bytes = dtype_size(x.dt);
    for (int i = 0; i < rank; i++) {
        x.shape[i] = shape[i];
        x.bytes = mem_mul(x.bytes, (size_t)shape[i]);
    }
    void *p;
    TRY(dummy_reserve(t->gen, &p, x.bytes, e));
    x.p = p;
    x.name = mem_strdup(name);
    dummy_bounds(t->gen, &x, NULL, shape[rank - 1]);
    MEM_GROW(t->v, t->cap, t->n + 1);
    t->v[t->n++] = x;
    t->slot[slot_of(t, name)] = (uint32_t)t->n;
    index_grow(t);
    return OK;
}

static struct tensor *take(struct tensors *t, const char *name, const int64_t *shape, int rank,
                           unsigned flags, struct err *e, int *ret)
{
    *ret = make(t, name, shape, rank, flags, e);
    if (*ret < 0)
        return NULL;
    size_t s = slot_of(t, name);
    char a[120], b[120];
    *ret = 0;
    if (!t->slot[s]) {
        if (!(flags & TAKE_OPTIONAL))
            *ret = FAIL(e, E_FORMAT, "tensor '%s' is missing", name);
        return NULL;
    }
    struct tensor *x = &t->v[t->slot[s] - 1];
    CHECK(!x->taken);
    bool same = x->rank == rank;
    for (int i = 0; same && i < rank; i++)
        same = x->shape[i] == shape[i];
    if (!same) {
        *ret = FAIL(e, E_FORMAT, "%s: tensor '%s' has shape %s, the configuration means %s",
                    x->file, name, shape_text(a, sizeof a, x->shape, x->rank),
                    shape_text(b, sizeof b, shape, rank));
        return NULL;
    }
    x->taken = true;
    x->used = !t->aside;
    if (x->used) {
        int64_t n = 1;
        for (int i = 0; i < rank; i++)
            n *= shape[i];
        t->n_param += n;
        t->bytes += x->bytes;
    }
    *ret = 1;
    return x;
}

static int take_scale(struct tensors *t, const struct tensor *x, struct weight *w, struct err *e)
{
    char name[ST_NAME_MAX + 16];
    snprintf(name, sizeof name, "%s_scale_inv", x->name);
    int64_t shape[2] = {(w->n + 127) / 128, (w->k + 127) / 128};
    int64_t before = t->n_param;
    int ret;
    char product[ST_NAME_MAX + 1];
    snprintf(product, sizeof product, "%s", x->name); /* x may move */
    struct tensor *s = take(t, name, shape, 2, MAKE_F32, e, &ret);
    if (!s)
        return ret;
    if (t->gen)
        dummy_bounds(t->gen, s, product, w->k);
    t->n_param = before; /* scales are not parameters */
    if (s->dt != DT_F32 && s->dt != DT_BF16)
        return FAIL(e, E_UNSUPPORTED, "%s: tensor '%s' is %s; scales must be F32 or BF16", s->file,
                    name, s->type);
    w->scale = s->p;
    w->scale_dt = s->dt;
    return OK;
}

/* This rank's part of a weight of tensor number `at`. */
static int take_part(struct tensors *t, struct weight *w, unsigned flags, size_t at, struct err *e)
{
    if (!t->comm)
        return OK;
    if ((flags & TAKE_RANK0) && t->comm->rank)
        *w = (struct weight){0};
    if (flags & TAKE_ROWS)
        return shard_rows(w, t->comm, t->v[at].name, e);
    return flags & TAKE_COLS ? shard_cols(&t->cut, w, t->comm, at, t->v[at].name, e) : OK;
}

int tensors_take(struct tensors *t, const char *name, int64_t n, int64_t k, unsigned flags,
                 struct weight *w, struct err *e)
{
    *w = (struct weight){0};
    bool vec = flags & TAKE_VECTOR;
    int64_t shape[2] = {vec ? k : n, k};
    int ret;
    const struct tensor *x = take(t, name, shape, vec ? 1 : 2, flags, e, &ret);
    if (!x)
        return ret;
    bool fp8 = x->dt == DT_F8E4M3 && (flags & TAKE_FP8);
    if (fp8 && !t->fp8)
        return FAIL(e, E_FORMAT,
                    "%s: tensor '%s' is %s but the configuration has no quantization_config",
                    x->file, name, x->type);
    if (x->dt != DT_F32 && x->dt != DT_BF16 && x->dt != DT_F16 && !fp8)
        return FAIL(e, E_UNSUPPORTED, "%s: tensor '%s' is %s, which is not supported there",
                    x->file, name, x->type);
    size_t at = (size_t)(x - t->v);
    *w = (struct weight){.p = x->p, .dt = x->dt, .n = vec ? 1 : n, .k = k};
    if (fp8)
        TRY(take_scale(t, x, w, e));
    TRY(take_part(t, w, flags, at, e));
    return 1;
}

int tensors_take_stack(struct tensors *t, const char *name, int64_t count, int64_t n, int64_t k,
                       unsigned flags, struct weight *w, struct err *e)
{
    int64_t shape[3] = {count, n, k};
    int ret;
    const struct tensor *x = take(t, name, shape, 3, flags & TAKE_OPTIONAL, e, &ret);
    if (!x)
        return ret;
    if (x->dt != DT_F32 && x->dt != DT_BF16 && x->dt != DT_F16)
        return FAIL(e, E_UNSUPPORTED, "%s: tensor '%s' is %s, which is not supported there",
                    x->file, name, x->type);
    size_t step = (size_t)(n * k) * dtype_size(x->dt);
    for (int64_t i = 0; i < count; i++)
        w[i] = (struct weight){
            .p = (const char *)x->p + (size_t)i * step, .dt = x->dt, .n = n, .k = k};
    size_t at = (size_t)(x - t->v);
    for (int64_t i = 0; i < count; i++)
        TRY(take_part(t, &w[i], flags, at, e));
    return 1;
}

int tensors_take_raw(struct tensors *t, const char *name, const char *type, int64_t n,
                     const void **p, struct err *e)
{
    int ret;
    int64_t before = t->n_param;
    *p = NULL;
    struct tensor *x = take(t, name, &n, 1, TAKE_OPTIONAL, e, &ret);
    if (!x)
        return ret;
    t->n_param = before; /* tables are not parameters */
    t->bytes -= x->bytes;
    x->used = false; /* nor read by operations */
    if (strcmp(x->type, type) != 0)
        return FAIL(e, E_FORMAT, "%s: tensor '%s' is %s, not %s", x->file, name, x->type, type);
    *p = x->p;
    return OK;
}

void tensors_ignore(struct tensors *t, const char *name)
{
    size_t s = slot_of(t, name);
    if (t->slot[s])
        t->v[t->slot[s] - 1].taken = true;
}

int tensors_all_taken(const struct tensors *t, struct err *e)
{
    static const char inv[] = "rotary_emb.inv_freq";
    const struct tensor *first = NULL;
    size_t n = 0;
    for (size_t i = 0; i < t->n; i++) {
        const struct tensor *x = &t->v[i];
        size_t len = strlen(x->name);
        if (x->taken || (len >= sizeof inv - 1 && !strcmp(x->name + len - (sizeof inv - 1), inv)))
            continue;
        if (!first)
            first = x;
        n++;
    }
    if (!first)
        return OK;
    if (n == 1)
        return FAIL(e, E_FORMAT, "%s: tensor '%s' is not part of this model", first->file,
                    first->name);
    return FAIL(e, E_FORMAT, "%s: tensor '%s' and %zu more are not part of this model", first->file,
                first->name, n - 1);
}

int64_t tensors_params(const struct tensors *t)
{
    return t->n_param;
}

size_t tensors_bytes(const struct tensors *t)
{
    return t->bytes;
}
