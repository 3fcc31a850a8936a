/* Fields of completions and chat requests. Tables name what is known; see the header for the rules.
 * Does not tokenise and does not know HTTP. */
#include "server/request.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "server/request_fields.h"

#define JSON_DEPTH 256

/* ---- getters: 1 stored, 0 absent or null, negative failed ---- */

int api_bad_type(struct api_err *e, const char *param, const char *want, const json_t *v)
{
    return api_fail(e, 400, NULL, param, "'%s' must be %s, not %s", param, want, js_type_name(v));
}

int api_get_bool(const json_t *o, const char *key, bool *out, struct api_err *e)
{
    json_t *v = js_get(o, key);
    if (!v)
        return 0;
    if (!json_is_boolean(v))
        return api_bad_type(e, key, "a boolean", v);
    *out = json_is_true(v);
    return 1;
}

int api_get_int(const json_t *o, const char *key, int64_t lo, int64_t hi, int64_t *out,
                struct api_err *e)
{
    json_t *v = js_get(o, key);
    if (!v)
        return 0;
    int64_t n;
    if (!js_is_int(v, &n))
        return api_bad_type(e, key, "an integer", v);
    if (n < lo || n > hi) {
        if (hi == INT64_MAX)
            return api_fail(e, 400, "invalid_value", key, "'%s' must be at least %lld, not %lld",
                            key, (long long)lo, (long long)n);
        return api_fail(e, 400, "invalid_value", key,
                        "'%s' must be between %lld and %lld, not %lld", key, (long long)lo,
                        (long long)hi, (long long)n);
    }
    *out = n;
    return 1;
}

/* lo is excluded when `open`. */
static int get_float(const json_t *o, const char *key, double lo, double hi, bool open, float *out,
                     struct api_err *e)
{
    json_t *v = js_get(o, key);
    if (!v)
        return 0;
    if (!json_is_number(v))
        return api_bad_type(e, key, "a number", v);
    double d = json_number_value(v);
    if (!isfinite(d) || d > hi || d < lo || (open && d <= lo))
        return api_fail(e, 400, "invalid_value", key, "'%s' must be in %c%g, %g], not %g", key,
                        open ? '(' : '[', lo, hi, d);
    *out = (float)d;
    return 1;
}

static int get_ids(const json_t *a, const char *name, int vocab, int32_t *out, struct api_err *e)
{
    size_t i;
    json_t *v;
    json_array_foreach(a, i, v)
    {
        char param[160];
        snprintf(param, sizeof param, "%s[%zu]", name, i);
        int64_t id;
        if (!js_is_int(v, &id))
            return api_bad_type(e, param, "a token id", v);
        if (id < 0 || id >= vocab)
            return api_fail(e, 400, "invalid_value", param,
                            "'%s': token id %lld is outside the vocabulary of %d", param,
                            (long long)id, vocab);
        out[i] = (int32_t)id;
    }
    return OK;
}

/* ---- tables of request_fields.h ---- */

static bool is_word(const json_t *v, const char *a, const char *b)
{
    const char *s = json_string_value(v);
    return s && (!strcmp(s, a) || !strcmp(s, b));
}

static bool is_neutral(const json_t *v, const struct field_rule *r)
{
    json_t *t;
    switch (r->rule) {
    case RULE_ABSENT:
        return false;
    case RULE_FALSE:
        return json_is_false(v);
    case RULE_TRUE:
        return json_is_true(v);
    case RULE_NUMBER:
        return json_is_number(v) && json_number_value(v) == r->number;
    case RULE_EMPTY_LIST:
        return json_is_array(v) && !json_array_size(v);
    case RULE_EMPTY_TEXT:
        return json_is_string(v) && !json_string_length(v);
    case RULE_NONE_OR_AUTO:
        return is_word(v, "none", "auto");
    case RULE_TYPE_TEXT:
        t = json_is_object(v) ? js_get(v, "type") : NULL;
        return t && is_word(t, "text", "text");
    case RULE_LIST_TEXT:
        return json_is_array(v) && json_array_size(v) == 1 &&
               is_word(json_array_get(v, 0), "text", "text");
    default:
        return true;
    }
}

static int check_ignored(const json_t *v, const struct field_rule *r, struct api_err *e)
{
    if (r->rule == RULE_ANY_STRING && !json_is_string(v))
        return api_bad_type(e, r->name, "a string", v);
    if (r->rule == RULE_ANY_BOOL && !json_is_boolean(v))
        return api_bad_type(e, r->name, "a boolean", v);
    if (r->rule == RULE_ANY_OBJECT && !json_is_object(v))
        return api_bad_type(e, r->name, "an object", v);
    return OK;
}

static const struct field_rule *find_rule(const char *name, int kind)
{
    for (size_t i = 0; i < ARRAY_LEN(field_rules); i++)
        if ((field_rules[i].kinds & (1 << kind)) && !strcmp(field_rules[i].name, name))
            return &field_rules[i];
    return NULL;
}

/* Looks at every key once, so that the outcome does not depend on their order: the first failing
 * rule of the table wins. */
static int check_rules(struct api_req *q, struct api_err *e)
{
    const char *name;
    json_t *v;
    json_object_foreach(q->body, name, v)
    {
        if (!find_rule(name, (int)q->kind) && !q->n_unknown++)
            q->unknown = name;
    }
    for (size_t i = 0; i < ARRAY_LEN(field_rules); i++) {
        const struct field_rule *r = &field_rules[i];
        if (r->rule == RULE_KNOWN || !(r->kinds & (1 << q->kind)) ||
            !(v = js_get(q->body, r->name)))
            continue;
        TRY(check_ignored(v, r, e));
        if (!is_neutral(v, r))
            return api_fail(e, 400, "unsupported_parameter", r->name,
                            "'%s' is not supported by this server%s%s", r->name,
                            *r->note ? ": " : "", r->note);
    }
    return OK;
}

/* ---- groups of fields ---- */

static int parse_sampling(struct api_req *q, const struct api_env *env, struct api_err *e)
{
    const json_t *o = q->body;
    struct gen_params *p = &q->p;
    int64_t n;
    TRY(get_float(o, "temperature", 0, 2, false, &p->temperature, e));
    TRY(get_float(o, "top_p", 0, 1, true, &p->top_p, e));
    TRY(get_float(o, "min_p", 0, 1, false, &p->min_p, e));
    TRY(get_float(o, "presence_penalty", -2, 2, false, &p->presence, e));
    TRY(get_float(o, "frequency_penalty", -2, 2, false, &p->frequency, e));
    TRY(get_float(o, "repetition_penalty", 0, 100, true, &p->repetition, e));
    int r = api_get_int(o, "top_k", -1, INT64_MAX, &n, e);
    TRY(r);
    if (r)
        p->top_k = n <= 0 || n >= env->vocab ? 0 : (int)n;
    r = api_get_int(o, "seed", INT64_MIN, INT64_MAX, &n, e);
    TRY(r);
    if (r) {
        p->has_seed = true;
        p->seed = (uint64_t)n;
    }
    TRY(api_get_bool(o, "ignore_eos", &p->ignore_eos, e));
    TRY(api_get_bool(o, "skip_special_tokens", &p->skip_special, e));
    bool untrimmed = false;
    TRY(api_get_bool(o, "include_stop_str_in_output", &p->include_stop, e));
    TRY(api_get_bool(o, "no_stop_trim", &untrimmed, e));
    p->include_stop |= untrimmed;
    return OK;
}

static int parse_bias(struct api_req *q, const struct api_env *env, struct api_err *e)
{
    json_t *v = js_get(q->body, "logit_bias"), *x;
    if (!v)
        return OK;
    if (!json_is_object(v))
        return api_bad_type(e, "logit_bias", "an object", v);
    if (json_object_size(v) > LIM_BIAS)
        return api_fail(e, 400, "invalid_value", "logit_bias",
                        "'logit_bias' has %zu entries, at most %d are allowed", json_object_size(v),
                        LIM_BIAS);
    const char *key;
    json_object_foreach(v, key, x)
    {
        char param[160], *end;
        snprintf(param, sizeof param, "logit_bias.%s", key);
        long long id = strtoll(key, &end, 10);
        if (*key < '0' || *key > '9' || *end || id >= env->vocab)
            return api_fail(e, 400, "invalid_value", param,
                            "'%s': the key must be a token id in [0, %d)", param, env->vocab);
        if (!json_is_number(x))
            return api_bad_type(e, param, "a number", x);
        double d = json_number_value(x);
        if (!(d >= -100 && d <= 100))
            return api_fail(e, 400, "invalid_value", param, "'%s' must be in [-100, 100], not %g",
                            param, d);
        for (int i = 0; i < q->p.n_bias; i++)
            if (q->p.bias_id[i] == id)
                return api_fail(e, 400, "invalid_value", param, "'%s' is given twice", param);
        q->p.bias_id[q->p.n_bias] = (int32_t)id;
        q->p.bias[q->p.n_bias++] = (float)d;
    }
    return OK;
}

static int add_stop(struct api_req *q, const char *param, const json_t *v, struct api_err *e)
{
    if (!json_is_string(v))
        return api_bad_type(e, param, "a string", v);
    size_t n = json_string_length(v);
    if (!n || n > LIM_STOP_BYTES)
        return api_fail(e, 400, "invalid_value", param, "'%s' must have 1 to %d bytes, not %zu",
                        param, LIM_STOP_BYTES, n);
    q->stop[q->n_stop++] = json_string_value(v);
    return OK;
}

static int parse_stops(struct api_req *q, const struct api_env *env, struct api_err *e)
{
    json_t *v = js_get(q->body, "stop"), *x;
    size_t i;
    if (v && json_is_array(v)) {
        if (json_array_size(v) > LIM_STOP_STRINGS)
            return api_fail(e, 400, "invalid_value", "stop",
                            "'stop' has %zu strings, at most %d are allowed", json_array_size(v),
                            LIM_STOP_STRINGS);
        json_array_foreach(v, i, x)
        {
            char param[32];
            snprintf(param, sizeof param, "stop[%zu]", i);
            TRY(add_stop(q, param, x, e));
        }
    } else if (v && !json_is_string(v)) {
        return api_bad_type(e, "stop", "a string or an array of strings", v);
    } else if (v) {
        TRY(add_stop(q, "stop", v, e));
    }
    if (!(v = js_get(q->body, "stop_token_ids")))
        return OK;
    if (!json_is_array(v))
        return api_bad_type(e, "stop_token_ids", "an array of token ids", v);
    if (json_array_size(v) > ARRAY_LEN(q->p.stop_ids))
        return api_fail(e, 400, "invalid_value", "stop_token_ids",
                        "'stop_token_ids' has %zu entries, at most %zu are allowed",
                        json_array_size(v), ARRAY_LEN(q->p.stop_ids));
    q->p.n_stop_ids = (int)json_array_size(v);
    return get_ids(v, "stop_token_ids", env->vocab, q->p.stop_ids, e);
}

static int parse_lengths(struct api_req *q, struct api_err *e)
{
    /* the last one that is present wins */
    static const char *const names[] = {"n_predict", "max_new_tokens", "max_tokens",
                                        "max_completion_tokens"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        if (q->kind == API_CHAT && i < 2)
            continue;
        bool zero_ok = q->kind == API_COMPLETIONS && q->echo;
        int r = api_get_int(q->body, names[i], zero_ok ? 0 : 1, INT64_MAX, &q->max_tokens, e);
        TRY(r);
        q->has_max |= r > 0;
    }
    int64_t n = 0;
    TRY(api_get_int(q->body, "min_tokens", 0, INT32_MAX, &n, e));
    q->p.min_tokens = (int)n;
    if (q->has_max && n > q->max_tokens)
        return api_fail(e, 400, "invalid_value", "min_tokens",
                        "'min_tokens' (%lld) must not exceed the token limit (%lld)", (long long)n,
                        (long long)q->max_tokens);
    return OK;
}

static int parse_logprobs(struct api_req *q, struct api_err *e)
{
    int64_t n = 0;
    q->p.n_logprobs = q->p.n_prompt_logprobs = -1;
    if (q->kind == API_COMPLETIONS) {
        int r = api_get_int(q->body, "logprobs", 0, LIM_LOGPROBS, &n, e);
        TRY(r);
        if (r) {
            q->logprobs = true;
            q->p.n_logprobs = (int)n;
            if (q->echo)
                q->p.n_prompt_logprobs = (int)n;
        }
        return OK;
    }
    TRY(api_get_bool(q->body, "logprobs", &q->logprobs, e));
    TRY(api_get_int(q->body, "top_logprobs", 0, LIM_LOGPROBS, &n, e));
    if (n > 0 && !q->logprobs)
        return api_fail(e, 400, "invalid_value", "top_logprobs",
                        "'top_logprobs' needs 'logprobs': true");
    if (q->logprobs)
        q->p.n_logprobs = (int)n;
    return OK;
}

static int parse_choices(struct api_req *q, const struct api_env *env, struct api_err *e)
{
    int64_t n = 1, best = 0;
    TRY(api_get_int(q->body, "n", 1, env->max_n, &n, e));
    q->n = (int)n;
    if (q->kind == API_COMPLETIONS) {
        int r = api_get_int(q->body, "best_of", 0, INT64_MAX, &best, e);
        TRY(r);
        if (r && best != n)
            return api_fail(e, 400, "unsupported_parameter", "best_of",
                            "'best_of' (%lld) must equal 'n' (%lld): ranking is not supported",
                            (long long)best, (long long)n);
    }
    return OK;
}

static int parse_stream(struct api_req *q, struct api_err *e)
{
    TRY(api_get_bool(q->body, "stream", &q->stream, e));
    json_t *o = js_get(q->body, "stream_options"), *v;
    if (o && !json_is_object(o))
        return api_bad_type(e, "stream_options", "an object", o);
    if (o && !q->stream)
        return api_fail(e, 400, "invalid_value", "stream_options",
                        "'stream_options' is only allowed with 'stream': true");
    static const char *const names[] = {"include_usage", "continuous_usage_stats",
                                        "include_obfuscation"};
    bool ignored;
    bool *const at[] = {&q->include_usage, &q->continuous_usage, &ignored};
    for (size_t i = 0; o && i < ARRAY_LEN(names); i++) {
        if (!(v = js_get(o, names[i])))
            continue;
        char param[64];
        snprintf(param, sizeof param, "stream_options.%s", names[i]);
        if (!json_is_boolean(v))
            return api_bad_type(e, param, "a boolean", v);
        *at[i] = json_is_true(v);
    }
    q->continuous_usage &= q->include_usage;
    int r = api_get_int(q->body, "sse_ping_interval", -1, 86400, &q->ping_s, e);
    TRY(r);
    return OK;
}

static int parse_mode(struct api_req *q, const json_t *v, const struct api_env *env,
                      struct api_err *e)
{
    if (!json_is_string(v))
        return api_bad_type(e, "speculation.mode", "a string", v);
    const char *s = json_string_value(v);
    if (!strcmp(s, "auto"))
        q->p.spec_mode = env->defaults.spec_mode;
    else if (!strcmp(s, "off"))
        q->p.spec_mode = SPEC_OFF;
    else if (env->spec_ngram && !strcmp(s, "ngram"))
        q->p.spec_mode = SPEC_NGRAM;
    else if (env->spec_model && !strcmp(s, env->spec_name))
        q->p.spec_mode = SPEC_MODEL;
    else
        return api_fail(e, 400, "invalid_value", "speculation.mode",
                        "'speculation.mode' is '%.100s', but this server runs '%s': 'off', "
                        "'auto'%s%s%s%s are accepted",
                        s, env->spec_name, env->spec_ngram ? ", 'ngram'" : "",
                        env->spec_model ? ", '" : "", env->spec_model ? env->spec_name : "",
                        env->spec_model ? "'" : "");
    return OK;
}

/* Drafts of this request; they change its speed, never its text. */
static int parse_speculation(struct api_req *q, const struct api_env *env, struct api_err *e)
{
    json_t *o = js_get(q->body, "speculation"), *v;
    const char *key;
    int64_t max;
    if (!o)
        return OK;
    if (!json_is_object(o))
        return api_bad_type(e, "speculation", "an object", o);
    json_object_foreach(o, key, v)
    {
        char param[160];
        if (!strcmp(key, "mode") || !strcmp(key, "max"))
            continue;
        snprintf(param, sizeof param, "speculation.%.100s", key);
        return api_fail(e, 400, "unsupported_parameter", param,
                        "'%s' is not known: 'mode' and 'max' are", param);
    }
    if ((v = js_get(o, "mode")))
        TRY(parse_mode(q, v, env, e));
    if (!(v = js_get(o, "max")))
        return OK;
    if (!js_is_int(v, &max))
        return api_bad_type(e, "speculation.max", "an integer", v);
    if (max < 0 || max > LIM_ROWS_PER_REQ - 1)
        return api_fail(e, 400, "invalid_value", "speculation.max",
                        "'speculation.max' must be between 0 and %d, not %lld",
                        LIM_ROWS_PER_REQ - 1, (long long)max);
    if (max < q->p.spec_max) /* never more than the server drafts */
        q->p.spec_max = (int)max;
    return OK;
}

static int parse_model(struct api_req *q, const struct api_env *env, struct api_err *e)
{
    json_t *v = js_get(q->body, "model");
    q->model = env->names[0];
    if (!v)
        return OK;
    if (!json_is_string(v))
        return api_bad_type(e, "model", "a string", v);
    for (size_t i = 0; i < env->n_names; i++)
        if (!strcmp(env->names[i], json_string_value(v))) {
            q->model = env->names[i];
            return OK;
        }
    return api_fail(e, 404, "model_not_found", "model", "The model '%.200s' does not exist",
                    json_string_value(v));
}

/* ---- prompts ---- */

static int add_prompt(struct api_req *q, const json_t *v, const char *param,
                      const struct api_env *env, struct api_err *e)
{
    struct api_prompt *p = &q->prompt[q->n_prompt++];
    if (json_is_string(v)) {
        p->text = json_string_value(v);
        p->n_text = json_string_length(v);
        if (!p->n_text)
            return api_fail(e, 400, "invalid_value", param, "'%s' must not be empty", param);
        return OK;
    }
    p->n_ids = json_array_size(v);
    if (!p->n_ids)
        return api_fail(e, 400, "invalid_value", param, "'%s' must not be empty", param);
    p->ids = MEM_ARRAY(int32_t, p->n_ids);
    return get_ids(v, param, env->vocab, p->ids, e);
}

static int parse_prompts(struct api_req *q, const struct api_env *env, struct api_err *e)
{
    static const char want[] =
        "a string, an array of strings, an array of token ids or an array of arrays of token ids";
    json_t *v = js_get(q->body, "prompt");
    if (!v)
        return api_fail(e, 400, NULL, "prompt", "'prompt' is missing");
    if (!json_is_string(v) && !json_is_array(v))
        return api_bad_type(e, "prompt", want, v);
    json_t *first = json_array_get(v, 0);
    bool list = first && (json_is_string(first) || json_is_array(first));
    size_t n = list ? json_array_size(v) : 1;
    if (n > LIM_PROMPTS)
        return api_fail(e, 400, "invalid_value", "prompt", "'prompt' has %zu prompts, at most %d",
                        n, LIM_PROMPTS);
    q->prompt = MEM_ARRAY(struct api_prompt, n);
    if (!list)
        return add_prompt(q, v, "prompt", env, e);
    for (size_t i = 0; i < n; i++) {
        char param[48];
        snprintf(param, sizeof param, "prompt[%zu]", i);
        json_t *x = json_array_get(v, i);
        if (json_typeof(x) != json_typeof(first))
            return api_bad_type(e, param, "of the same type as the first prompt", x);
        TRY(add_prompt(q, x, param, env, e));
    }
    return OK;
}

/* ---- whole bodies ---- */

/* jansson goes 2,048 levels deep; code that walks trees wants less. */
static int check_depth(const char *s, size_t n, struct api_err *e)
{
    int depth = 0;
    bool in_string = false;
    for (size_t i = 0; i < n; i++) {
        if (in_string) {
            if (s[i] == '\\')
                i++;
            else if (s[i] == '"')
                in_string = false;
        } else if (s[i] == '"') {
            in_string = true;
        } else if (s[i] == '[' || s[i] == '{') {
            if (++depth > JSON_DEPTH)
                return api_fail(e, 400, "invalid_json", NULL,
                                "The request body is nested deeper than %d levels", JSON_DEPTH);
        } else if (s[i] == ']' || s[i] == '}') {
            depth--;
        }
    }
    return OK;
}

static int parse_body(struct api_req *q, const char *text, size_t len, struct api_err *e)
{
    if (!len)
        return api_fail(e, 400, "invalid_json", NULL, "The request body is empty");
    TRY(check_depth(text, len, e));
    struct err je;
    if (js_parse(&q->body, text, len, "The request body", &je) < 0)
        return api_fail(e, 400, "invalid_json", NULL, "%s", je.text);
    if (!json_is_object(q->body))
        return api_fail(e, 400, "invalid_json", NULL, "The request body must be an object, not %s",
                        js_type_name(q->body));
    return OK;
}

/* Sequences of the request, and memory of prompt log probabilities. */
static int check_size(const struct api_req *q, const struct api_env *env, struct api_err *e)
{
    int64_t n = (int64_t)q->n_prompt * q->n;
    if (n > env->max_seqs)
        return api_fail(e, 400, "invalid_value", q->n > 1 ? "n" : "prompt",
                        "The request asks for %lld sequences (%zu prompts times %d choices), at "
                        "most %d are allowed",
                        (long long)n, q->n_prompt, q->n, env->max_seqs);
    return OK;
}

static int parse_tokenize(struct api_req *q, const struct api_env *env, struct api_err *e)
{
    const char *key = js_get(q->body, "messages")  ? "messages"
                      : js_get(q->body, "content") ? "content"
                                                   : "prompt";
    q->llama = !strcmp(key, "content");
    TRY(check_rules(q, e));
    TRY(parse_model(q, env, e));
    if (!strcmp(key, "messages")) {
        TRY(api_parse_messages(q, env, e));
    } else {
        json_t *v = js_get(q->body, key);
        if (!v)
            return api_fail(e, 400, NULL, "prompt", "'prompt' or 'messages' is missing");
        if (!json_is_string(v))
            return api_bad_type(e, key, "a string", v);
        q->prompt = MEM_ARRAY(struct api_prompt, 1);
        q->n_prompt = 1;
        q->prompt[0].text = json_string_value(v);
        q->prompt[0].n_text = json_string_length(v);
        q->add_special = !q->llama;
    }
    TRY(api_get_bool(q->body, "add_special_tokens", &q->add_special, e));
    TRY(api_get_bool(q->body, "add_special", &q->add_special, e));
    TRY(api_get_bool(q->body, "parse_special", &q->parse_special, e));
    TRY(api_get_bool(q->body, "with_pieces", &q->with_pieces, e));
    TRY(api_get_bool(q->body, "return_token_strs", &q->with_strs, e));
    return OK;
}

int api_parse(struct api_req *q, enum api_kind kind, const char *text, size_t len,
              const struct api_env *env, struct api_err *e)
{
    *q = (struct api_req){.kind = kind, .p = env->defaults, .ping_s = -2, .n = 1};
    q->parse_special = true;
    q->add_special = kind == API_COMPLETIONS;
    *e = (struct api_err){.n_prompt = -1};
    TRY(parse_body(q, text, len, e));
    if (kind == API_TOKENIZE)
        return parse_tokenize(q, env, e);
    json_t *rid = js_get(q->body, "request_id");
    if (!rid)
        rid = js_get(q->body, "rid");
    if (rid && (!json_is_string(rid) || !api_rid_ok(json_string_value(rid))))
        return api_fail(e, 400, "invalid_value", "request_id",
                        "'request_id' must have 1 to 128 characters of A-Z a-z 0-9 . _ : -");
    q->rid = rid ? json_string_value(rid) : NULL;
    TRY(parse_model(q, env, e));
    TRY(check_rules(q, e));
    if (kind == API_COMPLETIONS)
        TRY(api_get_bool(q->body, "echo", &q->echo, e));
    TRY(parse_stream(q, e));
    TRY(parse_choices(q, env, e));
    TRY(parse_sampling(q, env, e));
    TRY(parse_lengths(q, e));
    TRY(parse_logprobs(q, e));
    TRY(parse_bias(q, env, e));
    TRY(parse_stops(q, env, e));
    TRY(parse_speculation(q, env, e));
    TRY(api_get_bool(q->body, "return_token_ids", &q->return_ids, e));
    TRY(api_get_bool(q->body, "return_tokens_as_token_ids", &q->tokens_as_ids, e));
    TRY(api_get_bool(q->body, "add_special_tokens", &q->add_special, e));
    TRY(kind == API_CHAT ? api_parse_messages(q, env, e) : parse_prompts(q, env, e));
    return check_size(q, env, e);
}

int api_parse_detokenize(struct api_req *q, const char *text, size_t len, const struct api_env *env,
                         struct api_err *e)
{
    *q = (struct api_req){.kind = API_TOKENIZE, .n = 1, .ping_s = -2};
    *e = (struct api_err){.n_prompt = -1};
    TRY(parse_body(q, text, len, e));
    TRY(parse_model(q, env, e));
    json_t *v = js_get(q->body, "tokens");
    if (!v)
        return api_fail(e, 400, NULL, "tokens", "'tokens' is missing");
    if (!json_is_array(v))
        return api_bad_type(e, "tokens", "an array of token ids", v);
    q->prompt = MEM_ARRAY(struct api_prompt, 1);
    q->n_prompt = 1;
    q->prompt[0].n_ids = json_array_size(v);
    q->prompt[0].ids = MEM_ARRAY(int32_t, q->prompt[0].n_ids);
    TRY(get_ids(v, "tokens", env->vocab, q->prompt[0].ids, e));
    return api_get_bool(q->body, "skip_special_tokens", &q->p.skip_special, e) < 0 ? E_INVAL : OK;
}

void api_req_done(struct api_req *q)
{
    for (size_t i = 0; i < q->n_prompt; i++)
        mem_free(q->prompt[i].ids);
    mem_free(q->prompt);
    json_decref(q->vars);
    json_decref(q->body);
    *q = (struct api_req){0};
}

bool api_rid_ok(const char *s)
{
    size_t n = strspn(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._:-");
    return n >= 1 && n <= 128 && !s[n];
}

int api_fail_context(struct api_err *e, bool chat, int64_t n_prompt, int64_t n_max, int64_t ctx)
{
    if (n_max > INT32_MAX)
        n_max = INT32_MAX;
    api_fail(e, 400, "context_length_exceeded", chat ? "messages" : "prompt",
             "This model's maximum context length is %lld tokens, but the request needs %lld (%lld "
             "in the %s, %lld for the completion): it exceeds the available context size.",
             (long long)ctx, (long long)(n_prompt + n_max), (long long)n_prompt,
             chat ? "messages" : "prompt", (long long)n_max);
    e->n_prompt = n_prompt;
    e->n_ctx = ctx;
    return E_INVAL;
}

int api_fit(struct api_req *q, const struct api_env *env, struct api_err *e)
{
    int64_t longest = 0;
    for (size_t i = 0; i < q->n_prompt; i++)
        if ((int64_t)q->prompt[i].n_ids > longest)
            longest = (int64_t)q->prompt[i].n_ids;
    bool chat = q->kind == API_CHAT;
    int64_t want = q->has_max ? q->max_tokens : 1;
    if (!longest)
        return api_fail(e, 400, "invalid_value", chat ? "messages" : "prompt",
                        "The prompt has no tokens");
    if (longest + want > env->ctx)
        return api_fail_context(e, chat, longest, want, env->ctx);
    if (longest + 1 > env->kv_tokens)
        return api_fail_context(e, chat, longest, 1, env->kv_tokens);
    if (q->logprobs && q->echo &&
        longest * (q->p.n_logprobs + 1) * (int64_t)q->n_prompt * q->n > 4000000)
        return api_fail(e, 400, "invalid_value", "logprobs",
                        "'echo' with 'logprobs' asks for too many log probabilities at once");
    int64_t rest = env->ctx - longest;
    if (!q->has_max) {
        q->max_tokens = chat || rest < 16 ? rest : 16;
        if (q->p.min_tokens > q->max_tokens)
            return api_fail(e, 400, "invalid_value", "min_tokens",
                            "'min_tokens' (%d) must not exceed the token limit (%lld)",
                            q->p.min_tokens, (long long)q->max_tokens);
    }
    q->p.max_tokens = (int)q->max_tokens;
    if (!q->max_tokens && q->p.n_prompt_logprobs < 0)
        q->p.n_prompt_logprobs = 0; /* the engine runs a prompt without completion only for them */
    return OK;
}
