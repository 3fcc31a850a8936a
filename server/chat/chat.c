/* The module's entry points: parse, load from a model directory, render. A template is immutable
 * after loading, so chat_render runs on any number of threads at once; each render has its own
 * arena and leaves nothing behind. */
#include "server/chat/chat.h"

#include <string.h>

#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "engine/limits.h"
#include "server/chat/runtime.h"

/* --- parsing --- */

/* Newlines become \n, and one at the very end is dropped, as Jinja2 does by default. */
static void take_source(struct chat_template *t, const char *text, size_t len)
{
    char *s = jt_arena_alloc(&t->arena, len + 1);
    size_t n = 0;
    for (size_t i = 0; i < len; i++) {
        if (text[i] == '\r' && i + 1 < len && text[i + 1] == '\n')
            continue;
        s[n++] = text[i] == '\r' ? '\n' : text[i];
    }
    if (n && s[n - 1] == '\n')
        n--;
    s[n] = 0;
    t->src = s;
    t->n_src = n;
}

int chat_template_parse(struct chat_template **out, const char *text, size_t len, struct err *e)
{
    if (len > LIM_CHAT_SOURCE)
        return FAIL(e, E_RANGE, "chat template of %zu bytes, the limit is %d", len,
                    LIM_CHAT_SOURCE);
    if (!utf8_valid(text, len))
        return FAIL(e, E_FORMAT, "chat template is not UTF-8");
    struct chat_template *t = MEM_NEW(struct chat_template);
    t->max_steps = LIM_CHAT_STEPS;
    take_source(t, text, len);
    int ret = jt_parse(t, e);
    if (ret < 0) {
        chat_template_free(t);
        return ret;
    }
    *out = t;
    return OK;
}

void chat_template_free(struct chat_template *t)
{
    if (!t)
        return;
    jt_arena_done(&t->arena);
    mem_free(t->syms);
    mem_free(t->vars);
    mem_free(t);
}

void chat_template_set_token(struct chat_template *t, const char *name, const char *value)
{
    struct jt_token_var v = {jt_arena_strndup(&t->arena, name, strlen(name)),
                             jt_arena_strndup(&t->arena, value, strlen(value))};
    for (size_t i = 0; i < t->n_vars; i++) {
        if (!strcmp(t->vars[i].name, name)) {
            t->vars[i] = v;
            return;
        }
    }
    MEM_GROW(t->vars, t->cap_vars, t->n_vars + 1);
    t->vars[t->n_vars++] = v;
}

void chat_template_set_steps(struct chat_template *t, unsigned steps)
{
    t->max_steps = steps < LIM_CHAT_STEPS ? steps : LIM_CHAT_STEPS;
}

/* --- loading --- */

/* The text of tokenizer_config.json's chat_template: NULL when there is none. */
static int config_template(const json_t *cfg, const char *path, const char **out, size_t *len,
                           struct err *e)
{
    json_t *v = js_get(cfg, "chat_template"), *x, *name;
    size_t i;
    *out = NULL;
    if (!v)
        return OK;
    if (json_is_array(v)) {
        json_t *list = v;
        v = NULL;
        json_array_foreach(list, i, x)
        {
            name = json_object_get(x, "name");
            if (json_is_string(name) && !strcmp(json_string_value(name), "default"))
                v = json_object_get(x, "template");
        }
        if (!v)
            return FAIL(e, E_FORMAT, "%s: chat_template is a list without \"default\"", path);
    }
    if (!json_is_string(v))
        return FAIL(e, E_FORMAT, "%s: chat_template is %s, not a string", path, js_type_name(v));
    *out = json_string_value(v);
    *len = json_string_length(v);
    return OK;
}

static int config_tokens(struct chat_template *t, const json_t *cfg, const char *path,
                         struct err *e)
{
    static const char *const names[] = {"bos_token", "eos_token", "pad_token", "unk_token"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        json_t *v = js_get(cfg, names[i]);
        if (json_is_object(v))
            v = json_object_get(v, "content");
        else if (!v)
            continue;
        if (!json_is_string(v))
            return FAIL(e, E_FORMAT, "%s: %s is neither a string nor an added token", path,
                        names[i]);
        chat_template_set_token(t, names[i], json_string_value(v));
    }
    return OK;
}

int chat_template_load(struct chat_template **out, const char *model_dir, struct err *e)
{
    char *file = path_join(model_dir, "chat_template.jinja");
    char *cfg_path = path_join(model_dir, "tokenizer_config.json"), *text = NULL;
    const char *src = NULL, *from = file;
    size_t len = 0;
    json_t *cfg = NULL;
    struct chat_template *t = NULL;
    int ret = OK;
    if (file_exists(cfg_path))
        TRY_OUT(js_load(&cfg, cfg_path, e));
    if (file_exists(file)) {
        TRY_OUT(file_read(&text, &len, file, LIM_CHAT_SOURCE, e));
        src = text;
    } else if (cfg) {
        from = cfg_path;
        TRY_OUT(config_template(cfg, cfg_path, &src, &len, e));
    }
    if (src) {
        ret = chat_template_parse(&t, src, len, e);
        if (ret < 0) {
            err_prefix(e, "%s", from);
            goto out;
        }
        if (cfg)
            TRY_OUT(config_tokens(t, cfg, cfg_path, e));
    }
    *out = t;
    t = NULL;
out:
    chat_template_free(t);
    json_decref(cfg);
    mem_free(text);
    mem_free(cfg_path);
    mem_free(file);
    return ret;
}

/* --- rendering --- */

void chat_text_done(struct chat_text *c)
{
    buf_done(&c->text);
    mem_free(c->untrusted);
    c->untrusted = NULL;
    c->n_untrusted = c->cap_untrusted = 0;
}

static bool find_sym(const struct chat_template *t, const char *name, uint32_t *out)
{
    for (uint32_t i = 0; i < t->n_syms; i++) {
        if (!strcmp(t->syms[i].name, name)) {
            *out = i;
            return true;
        }
    }
    return false;
}

/* The variables the template can see. tools and documents are None and add_generation_prompt is
 * false when the request has none, as transformers passes them. */
static int bind_vars(struct jt_rt *rt, json_t *vars, struct jt_scope *sc)
{
    static const char *const unset[] = {"tools", "documents"};
    const struct chat_template *t = rt->t;
    const char *key;
    json_t *x;
    uint32_t sym;
    struct jt_val v;
    for (size_t i = 0; i < sizeof unset / sizeof unset[0]; i++)
        if (find_sym(t, unset[i], &sym))
            TRY(rt_bind(rt, sc, sym, jt_none()));
    if (find_sym(t, "add_generation_prompt", &sym))
        TRY(rt_bind(rt, sc, sym, jt_bool(false)));
    for (size_t i = 0; i < t->n_vars; i++)
        if (find_sym(t, t->vars[i].name, &sym))
            TRY(rt_bind(rt, sc, sym, jt_text(rt, t->vars[i].value)));
    json_object_foreach(vars, key, x)
    {
        if (!find_sym(t, key, &sym))
            continue;
        TRY(jt_from_json(rt, x, JT_REQUEST, &v));
        TRY(rt_bind(rt, sc, sym, v));
    }
    return OK;
}

static void rt_done(struct jt_rt *rt)
{
    for (size_t i = 0; i < rt->n_sinks; i++) {
        chat_text_done(rt->sinks[i]);
        mem_free(rt->sinks[i]);
    }
    mem_free(rt->sinks);
    mem_free(rt->walk);
    jt_arena_done(&rt->arena);
}

int chat_render(const struct chat_template *t, json_t *vars, struct chat_text *out, struct err *e)
{
    if (!json_is_object(vars))
        return FAIL(e, E_INVAL, "template variables must be an object, not %s", js_type_name(vars));
    struct jt_rt rt = {.t = t, .e = e};
    struct jt_scope *sc = jt_arena_zero(&rt.arena, sizeof *sc);
    rt.out = jt_sb_open(&rt);
    int ret = bind_vars(&rt, vars, sc);
    if (ret == OK)
        ret = rt_exec(&rt, t->root, sc);
    if (ret >= 0)
        ret = rt_step(&rt, 0);
    if (ret == OK) {
        chat_text_done(out);
        *out = *rt.out;
        *rt.out = (struct chat_text){0};
    }
    rt_done(&rt);
    return ret;
}
