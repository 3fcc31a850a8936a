/* The sections of a tokenizer.json that describe processing: normalizer, pre-tokenizer,
 * post-processor and decoder. Each is flattened into a list of steps; a kind or an option that is
 * not implemented is refused by name. Runs once while a tokenizer loads. */
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "engine/text/tok.h"

enum { NEST_MAX = 8 };

/* The pattern byte-level pre-tokenizers use when they bring their own (Radford et al. 2019). */
static const char gpt2_split[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

static int type_of(const json_t *o, const char **type, struct err *e)
{
    if (!json_is_object(o))
        return FAIL(e, E_FORMAT, "must be an object, not %s", js_type_name(o));
    int got = js_get_str(o, "type", type, e);
    TRY(got);
    return got ? OK : FAIL(e, E_FORMAT, "'type' is missing");
}

static int get_str(struct tokenizer *t, const json_t *o, const char *key, struct str *out,
                   struct err *e)
{
    const char *s = NULL;
    int got = js_get_str(o, key, &s, e);
    TRY(got);
    if (!got)
        return FAIL(e, E_FORMAT, "'%s' is missing", key);
    *out = strtab_add(&t->mem, s, strlen(s));
    return OK;
}

static int get_pattern(const json_t *o, struct pattern **out, struct err *e)
{
    json_t *p = NULL;
    const char *s;
    TRY(js_get_obj(o, "pattern", &p, e));
    int got = js_get_str(p, "Regex", &s, e);
    TRY(got);
    if (got)
        return pattern_regex(out, s, strlen(s), 0, e);
    got = js_get_str(p, "String", &s, e);
    TRY(got);
    if (got)
        return pattern_literal(out, s, strlen(s), e);
    return FAIL(e, E_FORMAT, "'pattern' must hold 'Regex' or 'String'");
}

typedef int walk_fn(struct tokenizer *t, const json_t *o, const char *type, struct err *e);

/* Calls fn for o, or for each entry of a Sequence whose list is called `list`. */
static int walk(struct tokenizer *t, const json_t *o, const char *list, int depth, walk_fn *fn,
                struct err *e)
{
    const char *type = NULL;
    TRY(type_of(o, &type, e));
    if (strcmp(type, "Sequence") != 0)
        return fn(t, o, type, e);
    if (depth == NEST_MAX)
        return FAIL(e, E_FORMAT, "sequences nest deeper than %d", NEST_MAX);
    json_t *v = NULL, *x;
    size_t i;
    TRY(js_get_arr(o, list, &v, e));
    if (!v)
        return FAIL(e, E_FORMAT, "Sequence without '%s'", list);
    json_array_foreach(v, i, x)
    {
        TRY(walk(t, x, list, depth + 1, fn, e));
    }
    return OK;
}

static int section(struct tokenizer *t, const json_t *root, const char *key, const char *list,
                   walk_fn *fn, struct err *e)
{
    const json_t *o = js_get(root, key);
    if (!o)
        return OK;
    int ret = walk(t, o, list, 0, fn, e);
    return ret < 0 ? err_prefix(e, "%s", key) : ret;
}

static int add_norm(struct norm_step **v, size_t *n, const struct norm_step *s, struct err *e)
{
    if (*n == TOK_STEPS_MAX)
        return FAIL(e, E_FORMAT, "more than %d steps", TOK_STEPS_MAX);
    if (!*v)
        *v = MEM_ARRAY(struct norm_step, TOK_STEPS_MAX);
    (*v)[(*n)++] = *s;
    return OK;
}

static int replace_step(struct tokenizer *t, const json_t *o, struct norm_step **v, size_t *n,
                        struct err *e)
{
    struct norm_step s = {.kind = NORM_REPLACE};
    TRY(get_str(t, o, "content", &s.text, e));
    TRY(get_pattern(o, &s.pat, e));
    int ret = add_norm(v, n, &s, e);
    if (ret < 0)
        pattern_close(s.pat);
    return ret;
}

static int norm_one(struct tokenizer *t, const json_t *o, const char *type, struct err *e)
{
    struct norm_step s = {.kind = NORM_NFC};
    if (!strcmp(type, "NFC"))
        return add_norm(&t->norm, &t->n_norm, &s, e);
    if (!strcmp(type, "Replace"))
        return replace_step(t, o, &t->norm, &t->n_norm, e);
    if (!strcmp(type, "Prepend")) {
        s.kind = NORM_PREPEND;
        TRY(get_str(t, o, "prepend", &s.text, e));
        return add_norm(&t->norm, &t->n_norm, &s, e);
    }
    return FAIL(e, E_UNSUPPORTED, "type '%.40s' is not supported", type);
}

int tok_load_norm(struct tokenizer *t, const json_t *root, struct err *e)
{
    return section(t, root, "normalizer", "normalizers", norm_one, e);
}

static int add_pre(struct tokenizer *t, const struct pre_step *s, struct err *e)
{
    if (t->n_pre == TOK_STEPS_MAX) {
        pattern_close(s->pat);
        return FAIL(e, E_FORMAT, "more than %d steps", TOK_STEPS_MAX);
    }
    if (!t->pre)
        t->pre = MEM_ARRAY(struct pre_step, TOK_STEPS_MAX);
    t->pre[t->n_pre++] = *s;
    return OK;
}

static int pre_split(struct tokenizer *t, const json_t *o, struct err *e)
{
    static const char *const names[] = {"Isolated", "Removed", "MergedWithPrevious",
                                        "MergedWithNext", "Contiguous"};
    struct pre_step s = {.kind = PRE_SPLIT};
    const char *how = NULL;
    TRY(js_get_str(o, "behavior", &how, e));
    TRY(js_get_bool(o, "invert", &s.invert, e));
    size_t i = 0;
    while (i < ARRAY_LEN(names) && (!how || strcmp(how, names[i]) != 0))
        i++;
    if (i == ARRAY_LEN(names))
        return FAIL(e, E_FORMAT, "Split: behavior '%.40s' is not known", how ? how : "(none)");
    s.how = (enum split_how)i;
    TRY(get_pattern(o, &s.pat, e));
    return add_pre(t, &s, e);
}

static int pre_bytes(struct tokenizer *t, const json_t *o, struct err *e)
{
    bool space = true, regex = true;
    TRY(js_get_bool(o, "add_prefix_space", &space, e));
    TRY(js_get_bool(o, "use_regex", &regex, e));
    if (space)
        TRY(add_pre(t, &(struct pre_step){.kind = PRE_SPACE}, e));
    if (regex) {
        struct pre_step s = {.kind = PRE_SPLIT, .how = SPLIT_ISOLATED};
        TRY(pattern_regex(&s.pat, gpt2_split, sizeof gpt2_split - 1, 0, e));
        TRY(add_pre(t, &s, e));
    }
    t->byte_level = true;
    return OK;
}

static int pre_digits(struct tokenizer *t, const json_t *o, struct err *e)
{
    bool each = false;
    TRY(js_get_bool(o, "individual_digits", &each, e));
    struct pre_step s = {.kind = PRE_SPLIT, .how = each ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS};
    pattern_numeric(&s.pat);
    return add_pre(t, &s, e);
}

/* replacement, when to prepend it; shared by the pre-tokenizer and the decoder. */
static int meta_options(struct tokenizer *t, const json_t *o, struct str *rep,
                        enum prepend_when *when, struct err *e)
{
    static const char *const names[] = {"never", "first", "always"};
    const char *s = NULL;
    bool old = true;
    TRY(get_str(t, o, "replacement", rep, e));
    if (utf8_count(rep->p, rep->n) != 1)
        return FAIL(e, E_FORMAT, "Metaspace: replacement must be one character");
    *when = PREPEND_ALWAYS;
    if (js_get_str(o, "prepend_scheme", &s, e) == 1) {
        size_t i = 0;
        while (i < ARRAY_LEN(names) && strcmp(s, names[i]) != 0)
            i++;
        if (i == ARRAY_LEN(names))
            return FAIL(e, E_FORMAT, "Metaspace: prepend_scheme '%.40s' is not known", s);
        *when = (enum prepend_when)i;
    }
    TRY(js_get_bool(o, "add_prefix_space", &old, e)); /* older files */
    if (!old)
        *when = PREPEND_NEVER;
    return OK;
}

static int pre_meta(struct tokenizer *t, const json_t *o, struct err *e)
{
    struct pre_step s = {.kind = PRE_META};
    bool split = true;
    TRY(meta_options(t, o, &s.rep, &s.when, e));
    TRY(js_get_bool(o, "split", &split, e));
    TRY(add_pre(t, &s, e));
    if (!split)
        return OK;
    struct pre_step cut = {.kind = PRE_SPLIT, .how = SPLIT_NEXT};
    TRY(pattern_literal(&cut.pat, s.rep.p, s.rep.n, e));
    return add_pre(t, &cut, e);
}

static int pre_one(struct tokenizer *t, const json_t *o, const char *type, struct err *e)
{
    if (t->byte_level)
        return FAIL(e, E_UNSUPPORTED, "'%.40s' behind ByteLevel is not supported", type);
    if (!strcmp(type, "Split"))
        return pre_split(t, o, e);
    if (!strcmp(type, "ByteLevel"))
        return pre_bytes(t, o, e);
    if (!strcmp(type, "Digits"))
        return pre_digits(t, o, e);
    if (!strcmp(type, "Metaspace"))
        return pre_meta(t, o, e);
    return FAIL(e, E_UNSUPPORTED, "type '%.40s' is not supported", type);
}

int tok_load_pre(struct tokenizer *t, const json_t *root, struct err *e)
{
    return section(t, root, "pre_tokenizer", "pretokenizers", pre_one, e);
}

/* ids of a special token of a template, in order, put in front of or behind the text */
static int template_ids(const struct tokenizer *t, const json_t *specials, const char *name,
                        struct ids *out, struct err *e)
{
    const json_t *ids = json_object_get(json_object_get(specials, name), "ids");
    if (!json_is_array(ids))
        return FAIL(e, E_FORMAT, "special token '%.60s' has no ids", name);
    size_t i;
    json_t *v;
    json_array_foreach(ids, i, v)
    {
        int64_t id;
        if (!js_is_int(v, &id) || id < 0 || id >= t->n_id)
            return FAIL(e, E_FORMAT, "special token '%.60s' has an id outside the vocabulary",
                        name);
        ids_push(out, (int32_t)id);
    }
    return OK;
}

/* A later template goes around what earlier ones put. */
static int post_template(struct tokenizer *t, const json_t *o, struct err *e)
{
    const json_t *single = js_get(o, "single"), *specials = js_get(o, "special_tokens");
    struct ids head = {0}, tail = {0};
    bool seen = false;
    int ret = OK;
    size_t i;
    json_t *v;
    if (!json_is_array(single))
        return FAIL(e, E_FORMAT, "TemplateProcessing: 'single' must be an array");
    json_array_foreach(single, i, v)
    {
        const char *name =
            json_string_value(json_object_get(json_object_get(v, "SpecialToken"), "id"));
        if (name) {
            TRY_OUT(template_ids(t, specials, name, seen ? &tail : &head, e));
        } else if (json_object_get(v, "Sequence") && !seen) {
            seen = true;
        } else {
            ret = FAIL(e, E_UNSUPPORTED, "TemplateProcessing: single[%zu] is not supported", i);
            goto out;
        }
    }
    if (!seen) {
        ret = FAIL(e, E_UNSUPPORTED, "TemplateProcessing: 'single' holds no sequence");
        goto out;
    }
    for (i = 0; i < t->head.n; i++)
        ids_push(&head, t->head.v[i]);
    ids_done(&t->head);
    t->head = head;
    head = (struct ids){0};
    for (i = 0; i < tail.n; i++)
        ids_push(&t->tail, tail.v[i]);
    t->has_template = true;
out:
    ids_done(&head);
    ids_done(&tail);
    return ret;
}

static int post_one(struct tokenizer *t, const json_t *o, const char *type, struct err *e)
{
    if (!strcmp(type, "TemplateProcessing"))
        return post_template(t, o, e);
    if (!strcmp(type, "ByteLevel")) /* moves offsets only */
        return OK;
    return FAIL(e, E_UNSUPPORTED, "type '%.40s' is not supported", type);
}

int tok_load_post(struct tokenizer *t, const json_t *root, struct err *e)
{
    return section(t, root, "post_processor", "processors", post_one, e);
}

static int dec_strip(struct tokenizer *t, const json_t *o, struct err *e)
{
    int64_t start = 0, stop = 0;
    TRY(get_str(t, o, "content", &t->dec.strip, e));
    TRY(js_get_i64(o, "start", 0, 1 << 20, &start, e));
    TRY(js_get_i64(o, "stop", 0, 1 << 20, &stop, e));
    if (stop)
        return FAIL(e, E_UNSUPPORTED, "Strip at the end of a text cannot be streamed");
    if (utf8_count(t->dec.strip.p, t->dec.strip.n) != 1)
        return FAIL(e, E_FORMAT, "Strip: content must be one character");
    t->dec.strip_n = (unsigned)start;
    return OK;
}

/* In the order Replace…, ByteFallback, Fuse, Strip; `stage` is how far we are. */
static int dec_one(struct tokenizer *t, const json_t *o, const char *type, struct err *e)
{
    static const char *const order[] = {"Replace", "ByteFallback", "Fuse", "Strip"};
    struct decoder *d = &t->dec;
    int stage = d->stage, now = 0;
    bool alone = stage < 0;
    if (d->kind != DEC_CHAIN)
        return FAIL(e, E_UNSUPPORTED, "'%.40s' in a sequence with another is not supported", type);
    if (!strcmp(type, "ByteLevel") && alone) {
        d->kind = DEC_BYTES;
        return OK;
    }
    if (!strcmp(type, "Metaspace") && alone) {
        enum prepend_when when;
        d->kind = DEC_META;
        TRY(meta_options(t, o, &d->meta, &when, e));
        d->meta_drop = when != PREPEND_NEVER;
        return OK;
    }
    while (now < 4 && strcmp(type, order[now]) != 0)
        now++;
    if (now == 4 || now < stage || (now == 3 && stage != 2))
        return FAIL(e, E_UNSUPPORTED, "type '%.40s' is not supported here", type);
    d->stage = now;
    if (now == 0)
        return replace_step(t, o, &d->rep, &d->n_rep, e);
    if (now == 1)
        d->fallback = true;
    return now == 3 ? dec_strip(t, o, e) : OK;
}

int tok_load_decoder(struct tokenizer *t, const json_t *root, struct err *e)
{
    t->dec = (struct decoder){.kind = DEC_CHAIN, .stage = -1};
    if (!js_get(root, "decoder"))
        return FAIL(e, E_UNSUPPORTED, "'decoder' is missing");
    TRY(section(t, root, "decoder", "decoders", dec_one, e));
    if (t->byte_level != (t->dec.kind == DEC_BYTES))
        return FAIL(e, E_UNSUPPORTED, "a ByteLevel %s without its counterpart",
                    t->byte_level ? "pre_tokenizer" : "decoder");
    return OK;
}

void tok_free_steps(struct tokenizer *t)
{
    for (size_t i = 0; i < t->n_norm; i++)
        pattern_close(t->norm[i].pat);
    for (size_t i = 0; i < t->n_pre; i++)
        pattern_close(t->pre[i].pat);
    for (size_t i = 0; i < t->dec.n_rep; i++)
        pattern_close(t->dec.rep[i].pat);
    mem_free(t->norm);
    mem_free(t->pre);
    mem_free(t->dec.rep);
    ids_done(&t->head);
    ids_done(&t->tail);
}
