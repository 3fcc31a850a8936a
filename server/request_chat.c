/* Messages of chat requests: checked, put into the one form that templates expect, and collected
 * into the variables of the template. Does not render. */
#include <stdio.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "server/request.h"

/* Text parts become one string, joined by newlines: templates written for strings would print a
 * list's spelling. */
static int join_parts(json_t *msg, const json_t *parts, size_t at, struct api_err *e)
{
    struct buf text;
    buf_init(&text, 0);
    int ret = OK;
    size_t i;
    json_t *p;
    json_array_foreach(parts, i, p)
    {
        char param[160];
        snprintf(param, sizeof param, "messages[%zu].content[%zu]", at, i);
        json_t *type = json_is_object(p) ? js_get(p, "type") : NULL;
        const char *kind = json_string_value(type);
        if (!kind) {
            ret = api_fail(e, 400, NULL, param, "'%s' must be an object with a 'type'", param);
            goto out;
        }
        const char *key = !strcmp(kind, "refusal") ? "refusal" : "text";
        if (strcmp(kind, "text") && strcmp(kind, "refusal") && strcmp(kind, "input_text") &&
            strcmp(kind, "output_text")) {
            snprintf(param, sizeof param, "messages[%zu].content[%zu].type", at, i);
            ret = api_fail(e, 400, "unsupported_parameter", param,
                           "'%s': unsupported content part '%.64s', this model reads text only",
                           param, kind);
            goto out;
        }
        json_t *t = js_get(p, key);
        if (!json_is_string(t)) {
            snprintf(param, sizeof param, "messages[%zu].content[%zu].%s", at, i, key);
            ret = api_bad_type(e, param, "a string", t);
            goto out;
        }
        if (i)
            buf_char(&text, '\n');
        buf_push(&text, json_string_value(t), json_string_length(t));
    }
    json_object_set_new(msg, "content", json_stringn(buf_cstr(&text), text.len));
out:
    buf_done(&text);
    return ret;
}

/* Arguments arrive as a JSON string; templates want the object. What does not parse stays text. */
static int fix_tool_calls(json_t *calls, size_t at, struct api_err *e)
{
    size_t i;
    json_t *c;
    json_array_foreach(calls, i, c)
    {
        json_t *f = json_is_object(c) ? js_get(c, "function") : NULL;
        if (!json_is_object(f) || !json_is_string(js_get(f, "name"))) {
            char param[160];
            snprintf(param, sizeof param, "messages[%zu].tool_calls[%zu].function", at, i);
            return api_fail(e, 400, NULL, param, "'%s' must be an object with a 'name'", param);
        }
        json_t *a = js_get(f, "arguments");
        if (!json_is_string(a))
            continue;
        json_t *parsed = NULL;
        if (js_parse(&parsed, json_string_value(a), json_string_length(a), "arguments", NULL) < 0)
            continue;
        if (json_is_object(parsed))
            json_object_set(f, "arguments", parsed);
        json_decref(parsed);
    }
    return OK;
}

static int check_message(json_t *m, size_t at, struct api_err *e)
{
    char param[160];
    snprintf(param, sizeof param, "messages[%zu]", at);
    if (!json_is_object(m))
        return api_bad_type(e, param, "an object", m);
    json_t *role = js_get(m, "role");
    snprintf(param, sizeof param, "messages[%zu].role", at);
    if (!role)
        return api_fail(e, 400, NULL, param, "'%s' is missing", param);
    if (!json_is_string(role))
        return api_bad_type(e, param, "a string", role);
    if (!json_string_length(role))
        return api_fail(e, 400, "invalid_value", param, "'%s' must not be empty", param);
    json_t *calls = js_get(m, "tool_calls");
    if (calls && !json_is_array(calls)) {
        snprintf(param, sizeof param, "messages[%zu].tool_calls", at);
        return api_bad_type(e, param, "an array", calls);
    }
    if (calls)
        TRY(fix_tool_calls(calls, at, e));
    static const char *const same[][2] = {{"reasoning_content", "reasoning"},
                                          {"reasoning", "reasoning_content"}};
    for (size_t i = 0; i < ARRAY_LEN(same); i++) {
        json_t *r = js_get(m, same[i][0]);
        if (r && json_is_string(r) && !js_get(m, same[i][1]))
            json_object_set(m, same[i][1], r);
    }
    json_t *c = js_get(m, "content");
    snprintf(param, sizeof param, "messages[%zu].content", at);
    if (!c && !calls && strcmp(json_string_value(role), "assistant"))
        return api_fail(e, 400, NULL, param, "'%s' is missing", param);
    if (!strcmp(json_string_value(role), "developer")) /* frees `role` */
        json_object_set_new(m, "role", json_string("system"));
    if (!c) {
        json_object_set_new(m, "content", json_string(""));
        return OK;
    }
    if (json_is_array(c))
        return join_parts(m, c, at, e);
    return json_is_string(c) ? OK : api_bad_type(e, param, "a string or an array of parts", c);
}

static int add_reasoning(struct api_req *q, struct api_err *e)
{
    static const char *const words[] = {"none", "minimal", "low", "medium", "high", "xhigh", "max"};
    json_t *v = js_get(q->body, "reasoning_effort");
    if (!v)
        return OK;
    if (!json_is_string(v))
        return api_bad_type(e, "reasoning_effort", "a string", v);
    for (size_t i = 0; i < ARRAY_LEN(words); i++) {
        if (strcmp(words[i], json_string_value(v)))
            continue;
        json_object_set(q->vars, "reasoning_effort", v);
        if (i == 0)
            json_object_set_new(q->vars, "enable_thinking", json_false());
        return OK;
    }
    return api_fail(e, 400, "invalid_value", "reasoning_effort",
                    "'reasoning_effort' must be none, minimal, low, medium, high, xhigh or max");
}

/* The variables; what the client passes to the template cannot replace the messages. */
static int make_vars(struct api_req *q, json_t *messages, struct api_err *e)
{
    bool add = true;
    TRY(api_get_bool(q->body, "add_generation_prompt", &add, e));
    TRY(api_get_bool(q->body, "continue_final_message", &q->continue_final, e));
    json_t *last = json_array_get(messages, json_array_size(messages) - 1);
    if (q->continue_final && add)
        return api_fail(e, 400, "invalid_value", "continue_final_message",
                        "'continue_final_message' needs 'add_generation_prompt': false");
    if (q->continue_final && strcmp(json_string_value(json_object_get(last, "role")), "assistant"))
        return api_fail(e, 400, "invalid_value", "continue_final_message",
                        "'continue_final_message' needs an assistant message at the end");
    q->vars = json_object();
    json_t *kw = js_get(q->body, "chat_template_kwargs"), *docs = js_get(q->body, "documents");
    if (kw && !json_is_object(kw))
        return api_bad_type(e, "chat_template_kwargs", "an object", kw);
    if (docs && !json_is_array(docs))
        return api_bad_type(e, "documents", "an array", docs);
    if (docs)
        json_object_set(q->vars, "documents", docs);
    TRY(add_reasoning(q, e));
    if (kw)
        json_object_update(q->vars, kw);
    json_object_set(q->vars, "messages", messages);
    json_object_set_new(q->vars, "add_generation_prompt", json_boolean(add));
    return OK;
}

int api_parse_messages(struct api_req *q, const struct api_env *env, struct api_err *e)
{
    json_t *v = js_get(q->body, "messages"), *m;
    if (!v)
        return api_fail(e, 400, NULL, "messages", "'messages' is missing");
    if (!json_is_array(v))
        return api_bad_type(e, "messages", "an array", v);
    size_t n = json_array_size(v), i;
    if (n < 1 || n > LIM_MESSAGES)
        return api_fail(e, 400, "invalid_value", "messages",
                        "'messages' must have 1 to %d entries, not %zu", LIM_MESSAGES, n);
    json_array_foreach(v, i, m) TRY(check_message(m, i, e));
    TRY(make_vars(q, v, e));
    if (!env->has_template)
        return api_fail(e, 400, NULL, "messages",
                        "This model has no chat template: use /v1/completions, or start the server "
                        "with --chat-template");
    q->prompt = MEM_ARRAY(struct api_prompt, 1);
    q->n_prompt = 1;
    return OK;
}
