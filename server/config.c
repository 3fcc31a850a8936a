/* Flags, configuration file and help text from one table; start-up only, one thread. Does not know
 * what a setting is for. The only file that reads the environment. */
#include "server/config.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/check.h"
#include "engine/base/js.h"
#include "engine/base/mem.h"
#include "engine/engine.h"

enum type { TYPE_STR, TYPE_ENUM, TYPE_LIST, TYPE_INT, TYPE_NUM, TYPE_FLAG };

struct key {
    int cmds;
    enum type type;
    size_t at; /* offset in struct config */
    const char *name, *def, *choices, *help;
    int64_t idef, ilo, ihi;
    double lo, hi;
};

#define S CMD_SERVE
#define G CMD_GENERATE
#define T CMD_TOKENIZE
#define B CMD_BENCH
#define P CMD_PLAN
#define AT(f) .at = offsetof(struct config, f)
static const struct key keys[] = {
#define STR(c, f, n, d, h) {.cmds = c, .type = TYPE_STR, AT(f), .name = n, .def = d, .help = h},
#define ENUM(c, f, n, d, ch, h)                                                                    \
    {.cmds = c, .type = TYPE_ENUM, AT(f), .name = n, .def = d, .choices = ch, .help = h},
#define STRS(c, f, n, h) {.cmds = c, .type = TYPE_LIST, AT(f), .name = n, .help = h},
#define INT(c, f, n, d, l, u, h)                                                                   \
    {.cmds = c, .type = TYPE_INT, AT(f), .name = n, .help = h, .idef = d, .ilo = l, .ihi = u},
#define NUM(c, f, n, d, l, u, h)                                                                   \
    {.cmds = c, .type = TYPE_NUM, AT(f), .name = n, .def = d, .help = h, .lo = l, .hi = u},
#define FLAG(c, f, n, h) {.cmds = c, .type = TYPE_FLAG, AT(f), .name = n, .help = h},
#include "server/config_keys.def"
#undef STR
#undef ENUM
#undef STRS
#undef INT
#undef NUM
#undef FLAG
};
#undef S
#undef G
#undef T
#undef B
#undef P

static void *field(const struct config *c, const struct key *k)
{
    return (char *)(uintptr_t)c + k->at;
}

static void list_push(struct str_list *l, const char *s, size_t n)
{
    MEM_GROW(l->v, l->cap, l->n + 1);
    l->v[l->n++] = mem_strndup(s, n);
}

static void list_clear(struct str_list *l)
{
    for (size_t i = 0; i < l->n; i++)
        mem_free(l->v[i]);
    mem_free(l->v);
    *l = (struct str_list){0};
}

/* Names are equal when they differ in '-' and '_' only. */
static bool same_name(const char *key, const char *s, size_t n)
{
    if (strlen(key) != n)
        return false;
    for (size_t i = 0; i < n; i++)
        if (key[i] != (s[i] == '_' ? '-' : s[i]))
            return false;
    return true;
}

static const struct key *find(int cmd, const char *s, size_t n)
{
    for (size_t i = 0; i < ARRAY_LEN(keys); i++)
        if ((keys[i].cmds & cmd) && same_name(keys[i].name, s, n))
            return &keys[i];
    return NULL;
}

static void set_defaults(struct config *c)
{
    *c = (struct config){0};
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        const struct key *k = &keys[i];
        if (k->type == TYPE_STR || k->type == TYPE_ENUM)
            *(char **)field(c, k) = k->def ? mem_strdup(k->def) : NULL;
        else if (k->type == TYPE_INT)
            *(int64_t *)field(c, k) = k->idef;
        else if (k->type == TYPE_NUM)
            *(double *)field(c, k) = k->def ? strtod(k->def, NULL) : NAN;
    }
}

static int set_str(struct config *c, const struct key *k, const char *v, struct err *e)
{
    if (k->type == TYPE_ENUM) {
        size_t n = strlen(v);
        const char *p = k->choices;
        while (*p) {
            size_t m = strcspn(p, "|");
            if (m == n && !memcmp(p, v, n))
                break;
            p += m + (p[m] == '|');
        }
        if (!*p)
            return FAIL(e, E_INVAL, "--%s must be one of %s, not '%s'", k->name, k->choices, v);
    }
    char **at = field(c, k);
    mem_free(*at);
    *at = mem_strdup(v);
    return OK;
}

static int set_int(struct config *c, const struct key *k, int64_t v, struct err *e)
{
    if (v < k->ilo || v > k->ihi)
        return FAIL(e, E_INVAL, "--%s must be between %lld and %lld, not %lld", k->name,
                    (long long)k->ilo, (long long)k->ihi, (long long)v);
    *(int64_t *)field(c, k) = v;
    return OK;
}

static int set_num(struct config *c, const struct key *k, double v, struct err *e)
{
    if (!(v >= k->lo && v <= k->hi))
        return FAIL(e, E_INVAL, "--%s must be between %g and %g, not %g", k->name, k->lo, k->hi, v);
    *(double *)field(c, k) = v;
    return OK;
}

/* A list flag may be repeated and may hold commas (except stop strings). */
static void add_list(struct config *c, const struct key *k, const char *v)
{
    struct str_list *l = field(c, k);
    if (!strcmp(k->name, "stop")) {
        list_push(l, v, strlen(v));
        return;
    }
    while (*v) {
        size_t n = strcspn(v, ",");
        if (n)
            list_push(l, v, n);
        v += n + (v[n] == ',');
    }
}

static int set_text(struct config *c, const struct key *k, const char *v, struct err *e)
{
    char *end;
    switch (k->type) {
    case TYPE_STR:
    case TYPE_ENUM:
        return set_str(c, k, v, e);
    case TYPE_LIST:
        add_list(c, k, v);
        return OK;
    case TYPE_INT: {
        long long n = strtoll(v, &end, 10);
        if (!*v || *end)
            return FAIL(e, E_INVAL, "--%s must be an integer, not '%s'", k->name, v);
        return set_int(c, k, n, e);
    }
    case TYPE_NUM: {
        double d = strtod(v, &end);
        if (!*v || *end)
            return FAIL(e, E_INVAL, "--%s must be a number, not '%s'", k->name, v);
        return set_num(c, k, d, e);
    }
    case TYPE_FLAG:
        break;
    }
    return OK;
}

/* ---- configuration file ---- */

static int set_json(struct config *c, const struct key *k, json_t *v, struct err *e)
{
    int64_t n;
    switch (k->type) {
    case TYPE_STR:
    case TYPE_ENUM:
        if (!json_is_string(v))
            break;
        return set_str(c, k, json_string_value(v), e);
    case TYPE_INT:
        if (!js_is_int(v, &n))
            break;
        return set_int(c, k, n, e);
    case TYPE_NUM:
        if (!json_is_number(v))
            break;
        return set_num(c, k, json_number_value(v), e);
    case TYPE_LIST: {
        struct str_list *l = field(c, k);
        if (l->n)
            return OK; /* the flag wins */
        if (json_is_string(v)) {
            add_list(c, k, json_string_value(v));
            return OK;
        }
        size_t i;
        json_t *x;
        if (!json_is_array(v))
            break;
        json_array_foreach(v, i, x)
        {
            if (!json_is_string(x))
                return FAIL(e, E_INVAL, "%s[%zu] must be a string", k->name, i);
            list_push(l, json_string_value(x), json_string_length(x));
        }
        return OK;
    }
    case TYPE_FLAG:
        if (!json_is_boolean(v))
            break;
        *(bool *)field(c, k) = json_is_true(v);
        return OK;
    }
    return FAIL(e, E_INVAL, "'%s' has the wrong type: %s", k->name, js_type_name(v));
}

static int read_file(struct config *c, int cmd, const char *path, const bool *given, struct err *e)
{
    json_t *root = NULL;
    TRY(js_load(&root, path, e));
    int ret = OK;
    if (!json_is_object(root)) {
        ret = FAIL(e, E_INVAL, "%s: the configuration must be a JSON object", path);
        goto out;
    }
    const char *name;
    json_t *v;
    json_object_foreach(root, name, v)
    {
        const struct key *k = find(cmd, name, strlen(name));
        if (!k || !strcmp(k->name, "config")) {
            ret = FAIL(e, E_INVAL, "%s: unknown key '%s'", path, name);
            goto out;
        }
        if (given[k - keys] || json_is_null(v))
            continue;
        ret = set_json(c, k, v, e);
        if (ret < 0) {
            err_prefix(e, "%s", path);
            goto out;
        }
    }
out:
    json_decref(root);
    return ret;
}

/* ---- flags ---- */

static int one_flag(struct config *c, int cmd, int argc, char **argv, int *i, bool *given,
                    struct err *e)
{
    const char *s = argv[*i] + 2;
    size_t n = strcspn(s, "=");
    const struct key *k = find(cmd, s, n);
    if (!k)
        return FAIL(e, E_INVAL, "unknown flag --%.*s", (int)n, s);
    given[k - keys] = true;
    if (k->type == TYPE_FLAG) {
        if (s[n])
            return FAIL(e, E_INVAL, "--%s takes no value", k->name);
        *(bool *)field(c, k) = true;
        return OK;
    }
    const char *v = s + n + 1;
    if (!s[n]) {
        if (*i + 1 >= argc)
            return FAIL(e, E_INVAL, "--%s needs a value", k->name);
        v = argv[++*i];
    }
    return set_text(c, k, v, e);
}

int config_parse(struct config *c, int cmd, int argc, char **argv, struct err *e)
{
    bool given[ARRAY_LEN(keys)] = {0};
    set_defaults(c);
    for (int i = 0; i < argc; i++) {
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")) {
            c->help = true;
            return OK;
        }
        if (!strncmp(argv[i], "--", 2)) {
            TRY(one_flag(c, cmd, argc, argv, &i, given, e));
        } else if (argv[i][0] != '-' && !given[0]) {
            given[0] = true; /* the model without its flag: the table's first row */
            TRY(set_str(c, &keys[0], argv[i], e));
        } else {
            return FAIL(e, E_INVAL, "unexpected argument '%s'", argv[i]);
        }
    }
    if (c->config)
        TRY(read_file(c, cmd, c->config, given, e));
    if (!c->model)
        return FAIL(e, E_INVAL, "--model is missing: the directory of the model");
    return OK;
}

void config_done(struct config *c)
{
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        if (keys[i].type == TYPE_STR || keys[i].type == TYPE_ENUM)
            mem_free(*(char **)field(c, &keys[i]));
        else if (keys[i].type == TYPE_LIST)
            list_clear(field(c, &keys[i]));
    }
    *c = (struct config){0};
}

/* ---- help ---- */

static void put_default(struct buf *out, const struct key *k)
{
    if (k->type == TYPE_INT && k->idef != INT64_MIN)
        buf_fmt(out, "%lld", (long long)k->idef);
    else if (k->def)
        buf_str(out, k->def);
    else
        buf_str(out, k->type == TYPE_FLAG ? "off" : "none");
}

static void put_range(struct buf *out, const struct key *k)
{
    if (k->type == TYPE_INT && k->ilo == INT64_MIN)
        buf_str(out, "any integer");
    else if (k->type == TYPE_INT && k->ihi == INT64_MAX)
        buf_fmt(out, "%lld or more", (long long)k->ilo);
    else if (k->type == TYPE_INT)
        buf_fmt(out, "%lld to %lld", (long long)k->ilo, (long long)k->ihi);
    else if (k->type == TYPE_NUM)
        buf_fmt(out, "%g to %g", k->lo, k->hi);
    else if (k->type == TYPE_ENUM)
        for (const char *p = k->choices; *p; p++)
            buf_str(out, *p == '|' ? ", " : (char[]){*p, 0});
    else
        buf_str(out, k->type == TYPE_LIST ? "repeat, or commas" : "");
}

static const char *kind_word(const struct key *k)
{
    static const char *const words[] = {"TEXT", "WORD", "LIST", "N", "X", ""};
    return words[k->type];
}

void config_help(struct buf *out, int cmd)
{
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        const struct key *k = &keys[i];
        if (!(k->cmds & cmd))
            continue;
        char flag[64];
        snprintf(flag, sizeof flag, "--%s %s", k->name, kind_word(k));
        buf_fmt(out, "  %-30s %s", flag, k->help);
        if (k->type != TYPE_FLAG) {
            buf_str(out, " [");
            put_default(out, k);
            struct buf r;
            buf_init(&r, 0);
            put_range(&r, k);
            if (r.len)
                buf_fmt(out, "; %s", buf_cstr(&r));
            buf_done(&r);
            buf_char(out, ']');
        }
        buf_char(out, '\n');
    }
}

void config_markdown(struct buf *out, int cmd)
{
    buf_str(out, "| flag, key | default | range | meaning |\n| --- | --- | --- | --- |\n");
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        const struct key *k = &keys[i];
        if (!(k->cmds & cmd))
            continue;
        buf_fmt(out, "| `--%s` | ", k->name);
        put_default(out, k);
        buf_str(out, " | ");
        put_range(out, k);
        buf_fmt(out, " | %s |\n", k->help);
    }
}

void config_env(struct config_env *out)
{
    *out = (struct config_env){.notify_socket = getenv("NOTIFY_SOCKET")};
    const char *us = getenv("WATCHDOG_USEC"), *pid = getenv("WATCHDOG_PID");
    if (us && (!pid || strtol(pid, NULL, 10) == (long)getpid()))
        out->watchdog_us = strtoll(us, NULL, 10);
    const char *j = getenv("JOURNAL_STREAM"); /* device:inode of standard error */
    unsigned long long dev, ino;
    struct stat st;
    if (j && sscanf(j, "%llu:%llu", &dev, &ino) == 2 && fstat(STDERR_FILENO, &st) == 0)
        out->journal = st.st_dev == dev && st.st_ino == ino;
}

void config_engine(const struct config *c, struct engine_conf *out)
{
    *out = (struct engine_conf){
        .model = c->model,
        .dummy = !strcmp(c->load_format, "dummy"),
        .num_layers = (int)c->num_layers,
        .tensor_parallel_size = (int)c->tensor_parallel_size,
        .device = c->device,
        .threads = (int)c->threads,
        .max_model_len = (int)c->max_model_len,
        .max_num_seqs = (int)c->max_num_seqs,
        .max_num_batched_tokens = (int)c->max_num_batched_tokens,
        .block_size = (int)c->block_size,
        .kv_cache_tokens = c->kv_cache_tokens,
        .kv_cache_dtype = c->kv_cache_dtype,
        .gpu_memory_utilization = c->gpu_memory_utilization,
        .allow_eager = (const char *const *)c->allow_eager.v,
        .n_allow_eager = c->allow_eager.n,
        .max_queued_requests = (int)c->max_queued_requests,
        .attention_backend = c->attention_backend,
        .speculative = c->speculative,
        .draft = c->draft,
        .spec_steps = (int)c->spec_steps,
        .spec_topk = (int)c->spec_topk,
        .spec_tokens = (int)c->spec_tokens,
        .spec_ngram_min = (int)c->spec_ngram_min,
        .spec_ngram_max = (int)c->spec_ngram_max,
        .draft_attention_backend = c->draft_attention_backend,
        .overlap_off = !strcmp(c->overlap, "off"),
        .spec_ratio = !strcmp(c->spec_accept, "ratio"),
        .spec_check_off = !strcmp(c->spec_check, "off"),
        .time_ops = c->op_times && !strcmp(c->op_times, "on"),
        .seed = (uint64_t)c->seed,
        .prefill_first = c->prefill_first,
    };
}
