/* Golden cases of chat templates: reading, rendering, comparing. No test of its own. */
#include "test/unit/chat_cases.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "server/chat/chat.h"

json_t *chat_case_vars(json_t *doc, json_t *c)
{
    json_t *v = json_object_get(c, "vars"), *tools = json_object_get(doc, "tools");
    if (!v)
        v = json_object_get(doc, "vars");
    v = v ? json_deep_copy(v) : json_object();
    json_t *name = json_object_get(v, "messages");
    if (json_is_string(name)) {
        json_t *all = json_object_get(doc, "conversations");
        json_object_set(v, "messages", json_object_get(all, json_string_value(name)));
    }
    if (json_is_string(json_object_get(v, "tools")))
        json_object_set(v, "tools", tools);
    return v;
}

static void set_tokens(struct chat_template *t, json_t *c)
{
    const char *name;
    json_t *value;
    json_object_foreach(json_object_get(c, "tokens"), name, value)
        chat_template_set_token(t, name, json_string_value(value));
}

static int parse_case(struct chat_template **t, json_t *c, const char *templates, struct err *e)
{
    const char *source = json_string_value(json_object_get(c, "source"));
    if (source)
        return chat_template_parse(t, source, strlen(source), e);
    const char *name = json_string_value(json_object_get(c, "template"));
    CHECK(name);
    char *path = *name == '/' ? mem_strdup(name) : mem_printf("%s/%s.jinja", templates, name);
    char *text = NULL;
    size_t len = 0;
    int ret = file_read(&text, &len, path, 1 << 20, e);
    CHECK(ret == OK);
    ret = chat_template_parse(t, text, len, e);
    mem_free(text);
    mem_free(path);
    return ret;
}

static bool run_case(json_t *doc, json_t *c, const char *templates, bool tell)
{
    struct err e = {0};
    struct chat_template *t = NULL;
    struct chat_text out = {0};
    json_t *want = json_object_get(c, "text"), *vars = chat_case_vars(doc, c);
    int ret = parse_case(&t, c, templates, &e);
    if (ret == OK) {
        set_tokens(t, c);
        ret = chat_render(t, vars, &out, &e);
    }
    bool refused = json_is_true(json_object_get(c, "refused"));
    bool unsupported = ret == E_UNSUPPORTED || ret == E_RANGE;
    bool good = want && !refused
                    ? ret == OK && out.text.len == json_string_length(want) &&
                          !memcmp(buf_cstr(&out.text), json_string_value(want), out.text.len)
                : refused ? unsupported
                          : ret < 0;
    if (!good && tell) {
        const char *src = json_string_value(json_object_get(c, "source"));
        fprintf(stderr, "%s: %.300s\n", json_string_value(json_object_get(c, "name")),
                src ? src : "");
        fprintf(stderr, "  want %s\n  got  %s %s\n",
                want ? json_string_value(want) : json_string_value(json_object_get(c, "error")),
                err_name(ret), ret < 0 ? e.text : buf_cstr(&out.text));
    }
    chat_text_done(&out);
    chat_template_free(t);
    json_decref(vars);
    return good;
}

void chat_cases_run(struct chat_cases *r, const char *file, const char *templates)
{
    json_t *doc = NULL, *c;
    struct err e = {0};
    size_t i;
    *r = (struct chat_cases){0};
    int ret = js_load(&doc, file, &e);
    if (ret < 0) {
        fprintf(stderr, "%s\n", e.text);
        r->failed = 1;
        return;
    }
    json_array_foreach(json_object_get(doc, "cases"), i, c)
    {
        if (run_case(doc, c, templates, r->failed < 20))
            r->passed++;
        else
            r->failed++;
    }
    json_decref(doc);
}
