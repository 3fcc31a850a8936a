/* Goal: every wrong request gets the right status and names the right field; right ones pass with
 * the values they carry. Method: three tables. `wrong_values` crosses each field with values it
 * must refuse, for both endpoints where it exists; `wrong_bodies` holds structures; `good` bodies
 * must pass. All parsing is pure, so no server runs. */
#include <check.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "server/request.h"

static char name_a[] = "demo", name_b[] = "org/alias";
static char *names[] = {name_a, name_b};
static const struct api_env env = {
    .names = names,
    .n_names = 2,
    .vocab = 1000,
    .ctx = 128,
    .max_seqs = 16,
    .max_n = 8,
    .token_bytes_max = 16,
    .kv_tokens = 4096,
    .defaults = {.temperature = 0.7f, .top_p = 1, .repetition = 1},
    .has_template = true,
    .spec_name = "off",
};

/* field | values separated by two blanks; c: completions, h: chat */
static const struct {
    const char *kinds, *field, *values;
} wrong_values[] = {
    {"ch", "model", "1  true  []  {}"},
    {"ch", "stream", "1  0  \"true\"  []  {}"},
    {"ch", "temperature", "-0.1  2.1  \"1\"  true  []  {}  1e300"},
    {"ch", "top_p", "0  -0.5  1.01  \"1\"  false  []"},
    {"ch", "top_k", "-2  1.5  \"5\"  true  {}  9223372036854775807.5"},
    {"ch", "min_p", "-0.1  1.1  \"0\"  []"},
    {"ch", "presence_penalty", "-2.1  2.1  \"0\"  true"},
    {"ch", "frequency_penalty", "-2.1  2.1  \"0\"  []"},
    {"ch", "repetition_penalty", "0  -1  101  \"1\"  true"},
    {"ch", "seed", "1.5  \"1\"  true  []  {}"},
    {"ch", "n", "0  -1  9  1.5  \"1\"  true  []"},
    {"ch", "max_tokens", "0  -1  1.5  \"16\"  true  []  {}"},
    {"ch", "max_completion_tokens", "0  -1  0.5  \"16\"  false  []"},
    {"ch", "min_tokens", "-1  1.5  \"1\"  true  3000000000"},
    {"ch", "ignore_eos", "1  \"true\"  []"},
    {"ch", "skip_special_tokens", "0  \"no\"  {}"},
    {"ch", "include_stop_str_in_output", "1  \"x\""},
    {"ch", "no_stop_trim", "1  \"x\""},
    {"ch", "return_token_ids", "1  \"x\"  []"},
    {"ch", "return_tokens_as_token_ids", "1  []"},
    {"ch", "add_special_tokens", "1  \"x\""},
    {"ch", "stop", "1  true  {}  \"\""},
    {"ch", "stop_token_ids", "1  \"1\"  {}  true"},
    {"ch", "logit_bias", "1  \"x\"  []  true"},
    {"ch", "stream_options", "1  \"x\"  []  true  {}"}, /* {}: without stream */
    {"ch", "request_id", "1  \"\"  \"a b\"  []  \"\xc3\xa4\""},
    {"ch", "sse_ping_interval", "-2  1.5  \"x\"  86401"},
    {"ch", "user", "1  []  {}"},
    {"ch", "metadata", "1  \"x\"  []"},
    {"ch", "store", "1  \"x\""},
    {"ch", "service_tier", "1  []"},
    {"ch", "prompt_cache_key", "1  {}"},
    {"ch", "cache_salt", "1  []"},
    {"ch", "spaces_between_special_tokens", "1  \"x\""},
    {"c", "best_of", "2  0  \"1\"  -1  1.5"},
    {"c", "echo", "1  \"true\"  []"},
    {"h", "echo", "true  1  \"x\""},
    {"c", "logprobs", "-1  21  true  \"5\"  1.5  []"},
    {"h", "logprobs", "1  \"true\"  []  {}"},
    {"h", "top_logprobs", "-1  21  \"1\"  true  5"}, /* 5: without logprobs */
    {"c", "suffix", "\"x\"  1  true  []  {}"},
    {"c", "n_predict", "0  -2  \"1\""},
    {"c", "max_new_tokens", "0  1.5  \"1\""},
    {"h", "tools", "[1]  {}  {\"a\":1}  true  1"},
    {"h", "tool_choice", "\"required\"  {\"type\":\"function\"}  1"},
    {"h", "functions", "[{}]  1  {}  \"\""},
    {"h", "function_call", "{\"name\":\"f\"}  \"f\""},
    {"ch", "response_format",
     "{\"type\":\"json_object\"}  {\"type\":\"json_schema\"}  {}  \"text\""},
    {"ch", "structured_outputs", "{\"json\":{}}  true"},
    {"ch", "guided_json", "{}  \"{}\""},
    {"ch", "guided_regex", "\"a\""},
    {"ch", "guided_choice", "[\"a\"]"},
    {"ch", "grammar", "\"root ::= x\""},
    {"ch", "prompt_logprobs", "0  1  true"},
    {"ch", "allowed_token_ids", "[1]  []"},
    {"ch", "bad_words", "[\"x\"]  1"},
    {"ch", "truncate_prompt_tokens", "1  -1"},
    {"ch", "prediction", "{\"type\":\"content\",\"content\":\"x\"}"},
    {"ch", "use_beam_search", "true  1"},
    {"ch", "length_penalty", "0.5  \"1\""},
    {"ch", "priority", "1  -1  \"0\""},
    {"ch", "lora_path", "\"x\""},
    {"ch", "custom_logit_processor", "\"x\""},
    {"ch", "logits_processors", "[\"x\"]"},
    {"ch", "return_hidden_states", "true  1"},
    {"ch", "repetition_detection", "{}"},
    {"ch", "stream_interval", "2  \"1\""},
    {"ch", "timings_per_token", "true"},
    {"ch", "speculation", "\"off\"  1  true  []"},
    {"ch", "typical_p", "0.5"},
    {"ch", "mirostat", "1  2"},
    {"ch", "xtc_probability", "0.5"},
    {"ch", "dry_multiplier", "0.8"},
    {"ch", "thinking_token_budget", "5"},
    {"h", "modalities", "[\"audio\"]  [\"text\",\"audio\"]  \"text\"  []"},
    {"h", "audio", "{}"},
    {"h", "web_search_options", "{}"},
    {"h", "chat_template", "\"{{ x }}\""},
    {"h", "parallel_tool_calls", "1  \"x\""},
    {"h", "include_reasoning", "false  1"},
    {"h", "reasoning_effort", "\"huge\"  1  []"},
    {"h", "chat_template_kwargs", "1  \"x\"  []"},
    {"h", "documents", "1  {}"},
    {"h", "add_generation_prompt", "1  \"x\""},
    {"h", "continue_final_message", "1  true"},
};

#define H(messages) "h", "{\"messages\":" messages "}"
#define C(prompt) "c", "{\"prompt\":" prompt "}"
#define U "[{\"role\":\"user\",\"content\":\"x\"}]"
/* kind, body, param ("" none), status */
static const struct {
    const char *kind, *body, *param;
    int status;
} wrong_bodies[] = {
    {"c", "", "", 400},
    {"c", " ", "", 400},
    {"c", "nul", "", 400},
    {"c", "null", "", 400},
    {"c", "[]", "", 400},
    {"c", "\"x\"", "", 400},
    {"c", "7", "", 400},
    {"c", "{", "", 400},
    {"c", "{}}", "", 400},
    {"c", "{\"prompt\":\"x\",}", "", 400},
    {"c", "{\"prompt\":\"x\" \"n\":1}", "", 400},
    {"c", "{\"prompt\":\"x\",\"prompt\":\"y\"}", "", 400},
    {"c", "{'prompt':'x'}", "", 400},
    {"c", "{\"prompt\":\"\\u0000\"}", "", 400},
    {"c", "{\"prompt\":\"\\ud800\"}", "", 400},
    {"c", "{\"prompt\":\"\\udc00\\ud800\"}", "", 400},
    {"c", "{\"prompt\":\"\xff\"}", "", 400},
    {"c", "{\"prompt\":\"\xc3\"}", "", 400},
    {"c", "{\"prompt\":\"\xc0\x80\"}", "", 400},
    {"c", "{\"prompt\":\"\xed\xa0\x80\"}", "", 400},
    {"c", "{\"prompt\":\"\xf4\x90\x80\x80\"}", "", 400},
    {"c", "{\"prompt\":\"a\nb\"}", "", 400},
    {"c", "{\"prompt\":\"x\",\"seed\":18446744073709551615}", "", 400},
    {"c", "{\"prompt\":\"x\",\"temperature\":1e999}", "", 400},
    {"c", "{\"prompt\":\"x\",\"temperature\":NaN}", "", 400},
    {"c", "{\"prompt\":\"x\",\"temperature\":Infinity}", "", 400},
    {"c", "{\"prompt\":\"x\",\"n\":01}", "", 400},
    {"c", "\xef\xbb\xbf{", "", 400},
    {"c", "{}", "prompt", 400},
    {C("null"), "prompt", 400},
    {C("1"), "prompt", 400},
    {C("true"), "prompt", 400},
    {C("{}"), "prompt", 400},
    {C("\"\""), "prompt", 400},
    {C("[]"), "prompt", 400},
    {C("[[]]"), "prompt[0]", 400},
    {C("[\"\"]"), "prompt[0]", 400},
    {C("[\"a\",\"\"]"), "prompt[1]", 400},
    {C("[\"a\",1]"), "prompt[1]", 400},
    {C("[[1],2]"), "prompt[1]", 400},
    {C("[[1],\"a\"]"), "prompt[1]", 400},
    {C("[1,\"a\"]"), "prompt[1]", 400},
    {C("[1,[2]]"), "prompt[1]", 400},
    {C("[1,null]"), "prompt[1]", 400},
    {C("[1.5]"), "prompt[0]", 400},
    {C("[true]"), "prompt[0]", 400},
    {C("[{}]"), "prompt[0]", 400},
    {C("[-1]"), "prompt[0]", 400},
    {C("[1000]"), "prompt[0]", 400},
    {C("[0,4294967296]"), "prompt[1]", 400},
    {C("[[0],[1,1000]]"), "prompt[1][1]", 400},
    {C("[[[1]]]"), "prompt[0][0]", 400},
    {"c", "{\"prompt\":[1,2,3,4,5,6,7,8,9],\"n\":8,\"model\":\"other\"}", "model", 404},
    {"c", "{\"prompt\":\"x\",\"model\":\"DEMO\"}", "model", 404},
    {"c", "{\"prompt\":\"x\",\"model\":\"\"}", "model", 404},
    {"h", "{\"messages\":" U ",\"model\":\"gpt-4\"}", "model", 404},
    {"c", "{\"prompt\":[\"a\",\"b\",\"c\"],\"n\":8}", "n", 400},
    {"c",
     "{\"prompt\":[\"a\",\"b\",\"c\",\"d\",\"e\",\"f\",\"g\",\"h\",\"i\",\"j\",\"k\",\"l\",\"m\","
     "\"n\","
     "\"o\",\"p\",\"q\"]}",
     "prompt", 400},
    {"c", "{\"prompt\":\"x\",\"max_tokens\":4,\"min_tokens\":5}", "min_tokens", 400},
    {"h", "{\"messages\":" U ",\"max_completion_tokens\":4,\"min_tokens\":5}", "min_tokens", 400},
    {"c", "{\"prompt\":\"x\",\"n\":2,\"best_of\":3}", "best_of", 400},
    {"c", "{\"prompt\":\"x\",\"stop\":[\"a\",\"\"]}", "stop[1]", 400},
    {"c", "{\"prompt\":\"x\",\"stop\":[\"a\",1]}", "stop[1]", 400},
    {"c", "{\"prompt\":\"x\",\"stop\":[null]}", "stop[0]", 400},
    {"c", "{\"prompt\":\"x\",\"stop\":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]}", "stop", 400},
    {"c", "{\"prompt\":\"x\",\"stop_token_ids\":[1000]}", "stop_token_ids[0]", 400},
    {"c", "{\"prompt\":\"x\",\"stop_token_ids\":[1,-1]}", "stop_token_ids[1]", 400},
    {"c", "{\"prompt\":\"x\",\"stop_token_ids\":[\"1\"]}", "stop_token_ids[0]", 400},
    {"c",
     "{\"prompt\":\"x\",\"stop_token_ids\":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,"
     "21,22,23,24,25]}",
     "stop_token_ids", 400},
    {"c", "{\"prompt\":\"x\",\"logit_bias\":{\"1000\":1}}", "logit_bias.1000", 400},
    {"c", "{\"prompt\":\"x\",\"logit_bias\":{\"-1\":1}}", "logit_bias.-1", 400},
    {"c", "{\"prompt\":\"x\",\"logit_bias\":{\"a\":1}}", "logit_bias.a", 400},
    {"c", "{\"prompt\":\"x\",\"logit_bias\":{\"1.5\":1}}", "logit_bias.1.5", 400},
    {"c", "{\"prompt\":\"x\",\"logit_bias\":{\"\":1}}", "logit_bias.", 400},
    {"c", "{\"prompt\":\"x\",\"logit_bias\":{\"5\":101}}", "logit_bias.5", 400},
    {"c", "{\"prompt\":\"x\",\"logit_bias\":{\"5\":-101}}", "logit_bias.5", 400},
    {"c", "{\"prompt\":\"x\",\"logit_bias\":{\"5\":\"1\"}}", "logit_bias.5", 400},
    {"c", "{\"prompt\":\"x\",\"logit_bias\":{\"5\":null}}", "logit_bias.5", 400},
    {"c", "{\"prompt\":\"x\",\"logit_bias\":{\"5\":1,\"05\":1}}", "logit_bias.05", 400},
    {"c", "{\"prompt\":\"x\",\"stream\":false,\"stream_options\":{\"include_usage\":null}}",
     "stream_options", 400},
    {"c", "{\"prompt\":\"x\",\"stream\":true,\"stream_options\":{\"include_usage\":1}}",
     "stream_options.include_usage", 400},
    {"c",
     "{\"prompt\":\"x\",\"stream\":true,\"stream_options\":{\"continuous_usage_stats\":\"x\"}}",
     "stream_options.continuous_usage_stats", 400},
    {"h", "{}", "messages", 400},
    {"h", "{\"prompt\":\"x\"}", "messages", 400},
    {H("null"), "messages", 400},
    {H("[]"), "messages", 400},
    {H("{}"), "messages", 400},
    {H("\"x\""), "messages", 400},
    {H("[1]"), "messages[0]", 400},
    {H("[null]"), "messages[0]", 400},
    {H("[\"x\"]"), "messages[0]", 400},
    {H("[{}]"), "messages[0].role", 400},
    {H("[{\"role\":1,\"content\":\"x\"}]"), "messages[0].role", 400},
    {H("[{\"role\":\"\",\"content\":\"x\"}]"), "messages[0].role", 400},
    {H("[{\"role\":\"user\"}]"), "messages[0].content", 400},
    {H("[{\"role\":\"developer\"}]"), "messages[0].content", 400},
    {H("[{\"role\":\"user\",\"content\":null}]"), "messages[0].content", 400},
    {H("[{\"role\":\"user\",\"content\":1}]"), "messages[0].content", 400},
    {H("[{\"role\":\"user\",\"content\":{}}]"), "messages[0].content", 400},
    {H("[{\"role\":\"user\",\"content\":true}]"), "messages[0].content", 400},
    {H("[{\"role\":\"user\",\"content\":[1]}]"), "messages[0].content[0]", 400},
    {H("[{\"role\":\"user\",\"content\":[{}]}]"), "messages[0].content[0]", 400},
    {H("[{\"role\":\"user\",\"content\":[\"x\"]}]"), "messages[0].content[0]", 400},
    {H("[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]"), "messages[0].content[0].text",
     400},
    {H("[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":1}]}]"),
     "messages[0].content[0].text", 400},
    {H("[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"image_"
       "url\"}]}]"),
     "messages[0].content[1].type", 400},
    {H("[{\"role\":\"user\",\"content\":[{\"type\":\"input_audio\"}]}]"),
     "messages[0].content[0].type", 400},
    {H("[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"assistant\",\"tool_calls\":1}]"),
     "messages[1].tool_calls", 400},
    {H("[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"assistant\",\"tool_calls\":[1]}]"),
     "messages[1].tool_calls[0].function", 400},
    {H("[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{}}]}]"),
     "messages[0].tool_calls[0].function", 400},
    {"h", "{\"messages\":" U ",\"add_generation_prompt\":false,\"continue_final_message\":true}",
     "continue_final_message", 400},
    {"t", "{}", "prompt", 400},
    {"t", "{\"prompt\":1}", "prompt", 400},
    {"t", "{\"content\":[]}", "content", 400},
    {"t", "{\"messages\":[]}", "messages", 400},
    {"t", "{\"prompt\":\"x\",\"add_special_tokens\":1}", "add_special_tokens", 400},
    {"t", "{\"prompt\":\"x\",\"model\":\"y\"}", "model", 404},
    {"t", "{\"prompt\":\"x\",\"return_token_strs\":\"y\"}", "return_token_strs", 400},
    {"t", "[1]", "", 400},
    {"d", "{}", "tokens", 400},
    {"d", "{\"tokens\":\"x\"}", "tokens", 400},
    {"d", "{\"tokens\":[1000]}", "tokens[0]", 400},
    {"d", "{\"tokens\":[1,\"2\"]}", "tokens[1]", 400},
    {"d", "{\"tokens\":[-5]}", "tokens[0]", 400},
    {"d", "{\"tokens\":[1],\"skip_special_tokens\":1}", "skip_special_tokens", 400},
};

static const struct {
    const char *kind, *body;
} good[] = {
    {"c", "{\"prompt\":\"x\"}"},
    {"c", "\xef\xbb\xbf{\"prompt\":\"x\"}"},
    {"c", "{\"prompt\":\"\xf0\x9f\x98\x80\\ud83d\\ude00\"}"},
    {"c", "{\"prompt\":[0,999]}"},
    {"c", "{\"prompt\":[[0],[999]]}"},
    {"c", "{\"prompt\":[\"a\",\"b\"],\"n\":8}"},
    {"c", "{\"prompt\":\"x\",\"model\":\"org/alias\"}"},
    {"c", "{\"prompt\":\"x\",\"n\":2,\"best_of\":2}"},
    {"c", "{\"prompt\":\"x\",\"max_tokens\":0,\"echo\":true}"},
    {"c", "{\"prompt\":\"x\",\"max_tokens\":5.0,\"seed\":-1,\"top_k\":-1}"},
    {"c", "{\"prompt\":\"x\",\"suffix\":\"\",\"stop\":[],\"logit_bias\":{},\"stop_token_ids\":[]}"},
    {"c", "{\"prompt\":\"x\",\"temperature\":0,\"top_p\":0.0001,\"min_p\":1,\"top_k\":0}"},
    {"c", "{\"prompt\":\"x\",\"stream\":true,\"stream_options\":{}}"},
    {"c", "{\"prompt\":\"x\",\"whatever\":{\"deep\":[1]},\"response_format\":{\"type\":\"text\"}}"},
    {"c", "{\"prompt\":\"x\",\"speculation\":{\"mode\":\"off\"},\"priority\":0,\"use_beam_search\":"
          "false}"},
    {"h", "{\"messages\":" U "}"},
    {"h", "{\"messages\":" U ",\"tools\":[],\"tool_choice\":\"none\",\"functions\":[]}"},
    {"h", "{\"messages\":" U ",\"logprobs\":true,\"top_logprobs\":20,\"modalities\":[\"text\"]}"},
    {"h", "{\"messages\":" U ",\"logprobs\":false,\"top_logprobs\":0}"},
    {"h", "{\"messages\":" U ",\"reasoning_effort\":\"none\",\"chat_template_kwargs\":{\"a\":1}}"},
    {"h", "{\"messages\":[{\"role\":\"custom\",\"content\":\"\"}]}"},
    {"h", "{\"messages\":[{\"role\":\"user\",\"content\":[]}]}"},
    {"h", "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"assistant\","
          "\"content\":null,"
          "\"tool_calls\":[{\"id\":\"1\",\"type\":\"function\",\"function\":{\"name\":\"f\","
          "\"arguments\":"
          "\"{}\"}}]},{\"role\":\"tool\",\"tool_call_id\":\"1\",\"content\":\"y\"}]}"},
    {"h",
     "{\"messages\":[{\"role\":\"assistant\",\"content\":\"x\"}],\"add_generation_prompt\":false,"
     "\"continue_final_message\":true}"},
    {"t", "{\"prompt\":\"\"}"},
    {"t", "{\"messages\":" U "}"},
    {"t", "{\"content\":\"x\",\"with_pieces\":true}"},
    {"d", "{\"tokens\":[]}"},
    {"d", "{\"tokens\":[1,2]}"},
};

static int parse_at(struct api_req *q, const struct api_env *at, const char *kind, const char *body,
                    struct api_err *e)
{
    size_t n = strlen(body);
    char *copy = mem_dup(body, n); /* no NUL behind it: a reader past the end shows */
    int r = *kind == 'd' ? api_parse_detokenize(q, copy, n, at, e)
                         : api_parse(q,
                                     *kind == 'c'   ? API_COMPLETIONS
                                     : *kind == 'h' ? API_CHAT
                                                    : API_TOKENIZE,
                                     copy, n, at, e);
    mem_free(copy);
    return r;
}

static int parse(struct api_req *q, const char *kind, const char *body, struct api_err *e)
{
    return parse_at(q, &env, kind, body, e);
}

static void refuse(const char *kind, const char *body, int status, const char *param)
{
    struct api_req q;
    struct api_err e;
    ck_assert_msg(parse(&q, kind, body, &e) < 0, "accepted: %s", body);
    ck_assert_msg(e.status == status, "%s: status %d, wanted %d", body, e.status, status);
    ck_assert_msg(!strcmp(e.param, param), "%s: param '%s', wanted '%s'", body, e.param, param);
    ck_assert_msg(e.text[0] && !strchr(e.text, '\n'), "%s: '%s'", body, e.text);
    struct buf b = {0};
    json_t *v = NULL;
    api_err_json(&b, &e); /* the error itself is valid JSON with the four keys */
    ck_assert_int_eq(js_parse(&v, b.p, b.len, "error", NULL), OK);
    json_t *o = json_object_get(v, "error");
    ck_assert(json_is_string(json_object_get(o, "message")));
    ck_assert(json_is_string(json_object_get(o, "type")));
    ck_assert_ptr_nonnull(json_object_get(o, "param"));
    ck_assert_ptr_nonnull(json_object_get(o, "code"));
    json_decref(v);
    buf_done(&b);
    api_req_done(&q);
}

static int n_refused;

static void cross(const char *kinds, const char *field, const char *values)
{
    for (const char *k = kinds; *k; k++) {
        for (const char *v = values; *v;) {
            const char *end = strstr(v, "  ");
            size_t n = end ? (size_t)(end - v) : strlen(v);
            char body[512];
            snprintf(body, sizeof body, "{%s,\"%s\":%.*s}",
                     *k == 'c' ? "\"prompt\":\"x\"" : "\"messages\":" U, field, (int)n, v);
            refuse(k, body, 400, field);
            n_refused++;
            v += n + (end ? 2 : 0);
        }
    }
}

START_TEST(malformed)
{
    long live = mem_live();
    n_refused = 0;
    for (size_t i = 0; i < ARRAY_LEN(wrong_values); i++)
        cross(wrong_values[i].kinds, wrong_values[i].field, wrong_values[i].values);
    for (size_t i = 0; i < ARRAY_LEN(wrong_bodies); i++)
        refuse(wrong_bodies[i].kind, wrong_bodies[i].body, wrong_bodies[i].status,
               wrong_bodies[i].param);
    n_refused += (int)ARRAY_LEN(wrong_bodies);
    ck_assert_msg(n_refused >= 300, "only %d malformed bodies", n_refused);
    ck_assert_int_eq(mem_live(), live);
}
END_TEST

START_TEST(accepted)
{
    long live = mem_live();
    for (size_t i = 0; i < ARRAY_LEN(good); i++) {
        struct api_req q;
        struct api_err e;
        ck_assert_msg(parse(&q, good[i].kind, good[i].body, &e) == OK, "%s: %s", good[i].body,
                      e.text);
        api_req_done(&q);
    }
    ck_assert_int_eq(mem_live(), live);
}
END_TEST

/* Explicit null is absent, for every field of the malformed table. */
START_TEST(null_is_absent)
{
    for (size_t i = 0; i < ARRAY_LEN(wrong_values); i++) {
        for (const char *k = wrong_values[i].kinds; *k; k++) {
            struct api_req q;
            struct api_err e;
            char body[256];
            snprintf(body, sizeof body, "{%s,\"%s\":null}",
                     *k == 'c' ? "\"prompt\":\"x\"" : "\"messages\":" U, wrong_values[i].field);
            ck_assert_msg(parse(&q, k, body, &e) == OK, "%s: %s", body, e.text);
            ck_assert_int_eq(q.n_unknown, 0);
            api_req_done(&q);
        }
    }
}
END_TEST

START_TEST(values)
{
    struct api_req q;
    struct api_err e;
    ck_assert_int_eq(
        parse(&q, "c",
              "{\"prompt\":[\"a\",\"bc\"],\"n\":3,\"seed\":-2,\"temperature\":0.5,\"top_k\":40,"
              "\"stop\":[\"x\",\"yy\"],\"stop_token_ids\":[7],\"logit_bias\":{\"12\":-100},"
              "\"max_tokens\":7,\"min_tokens\":2,\"logprobs\":4,\"echo\":true,\"foo\":1,\"bar\":2}",
              &e),
        OK);
    ck_assert_str_eq(q.model, "demo");
    ck_assert_uint_eq(q.n_prompt, 2);
    ck_assert_str_eq(q.prompt[1].text, "bc");
    ck_assert_int_eq(q.n, 3);
    ck_assert(q.p.has_seed && q.p.seed == (uint64_t)-2);
    ck_assert_int_eq(q.p.top_k, 40);
    ck_assert_float_eq(q.p.temperature, 0.5f);
    ck_assert_uint_eq(q.n_stop, 2);
    ck_assert_int_eq(q.p.stop_ids[0], 7);
    ck_assert_int_eq(q.p.bias_id[0], 12);
    ck_assert_float_eq(q.p.bias[0], -100);
    ck_assert_int_eq(q.p.n_logprobs, 4);
    ck_assert_int_eq(q.p.n_prompt_logprobs, 4);
    ck_assert_int_eq(q.n_unknown, 2);
    ck_assert(q.add_special && q.parse_special);
    api_req_done(&q);
    ck_assert_int_eq(
        parse(&q, "h",
              "{\"messages\":[{\"role\":\"developer\",\"content\":[{\"type\":\"text\","
              "\"text\":\"a\"},{\"type\":\"text\",\"text\":\"b\"}]}],\"max_tokens\":3,"
              "\"max_completion_tokens\":9,\"chat_template_kwargs\":{\"messages\":[]}}",
              &e),
        OK);
    ck_assert_int_eq(q.max_tokens, 9);
    ck_assert_float_eq(q.p.temperature, 0.7f); /* the model's default */
    json_t *m = json_array_get(json_object_get(q.vars, "messages"), 0);
    ck_assert_ptr_nonnull(m); /* the client's own "messages" did not win */
    ck_assert_str_eq(json_string_value(json_object_get(m, "content")), "a\nb");
    ck_assert_str_eq(json_string_value(json_object_get(m, "role")), "system");
    ck_assert(!q.add_special);
    api_req_done(&q);
}
END_TEST

/* What a server of each kind does with a request's wish. Server: its method, whether lookup and a
 * network are there, its default mode and drafts; wish; then mode and drafts, or param and what the
 * message names beside it. */
static const struct {
    const char *method;
    bool ngram, model;
    enum spec_mode def;
    int def_max;
    const char *wish;
    enum spec_mode mode;
    int max;
    const char *param, *asked;
} wishes[] = {
#define OFF "off", false, false, SPEC_OFF, 0
#define NGRAM "ngram", true, false, SPEC_NGRAM, 7
#define MTP "mtp", true, true, SPEC_MODEL, 3
#define FINE(server, wish, mode, max)                                                              \
    {                                                                                              \
        server, wish, mode, max, NULL, NULL                                                        \
    }
#define WRONG(server, wish, param, asked)                                                          \
    {                                                                                              \
        server, wish, SPEC_OFF, 0, param, asked                                                    \
    }
    FINE(OFF, "null", SPEC_OFF, 0),
    FINE(OFF, "{}", SPEC_OFF, 0),
    FINE(OFF, "{\"mode\":\"off\"}", SPEC_OFF, 0),
    FINE(OFF, "{\"mode\":\"auto\",\"max\":5}", SPEC_OFF, 0),
    WRONG(OFF, "{\"mode\":\"ngram\"}", "speculation.mode", "ngram"),
    WRONG(OFF, "{\"mode\":\"mtp\"}", "speculation.mode", "mtp"),
    FINE(NGRAM, "null", SPEC_NGRAM, 7),
    FINE(NGRAM, "{\"mode\":\"ngram\",\"max\":null}", SPEC_NGRAM, 7),
    FINE(NGRAM, "{\"mode\":\"auto\",\"max\":2}", SPEC_NGRAM, 2),
    FINE(NGRAM, "{\"mode\":\"off\"}", SPEC_OFF, 7),
    WRONG(NGRAM, "{\"mode\":\"draft-model\"}", "speculation.mode", "draft-model"),
    FINE(MTP, "{\"mode\":null}", SPEC_MODEL, 3),
    FINE(MTP, "{\"mode\":\"mtp\"}", SPEC_MODEL, 3),
    FINE(MTP, "{\"mode\":\"ngram\"}", SPEC_NGRAM, 3),
    FINE(MTP, "{\"mode\":\"off\",\"max\":1}", SPEC_OFF, 1),
    FINE(MTP, "{\"max\":0}", SPEC_MODEL, 0),
    FINE(MTP, "{\"max\":2.0}", SPEC_MODEL, 2),
    FINE(MTP, "{\"max\":63}", SPEC_MODEL, 3), /* a bound, not a demand */
    WRONG(MTP, "{\"mode\":\"eagle3\"}", "speculation.mode", "eagle3"),
    WRONG(MTP, "{\"mode\":\"MTP\"}", "speculation.mode", "MTP"),
    WRONG(MTP, "{\"mode\":\"\"}", "speculation.mode", "''"),
    WRONG(MTP, "{\"mode\":true}", "speculation.mode", "boolean"),
    WRONG(MTP, "{\"mode\":[\"mtp\"]}", "speculation.mode", "array"),
    WRONG(MTP, "{\"max\":-1}", "speculation.max", "-1"),
    WRONG(MTP, "{\"max\":64}", "speculation.max", "64"),
    WRONG(MTP, "{\"max\":1.5}", "speculation.max", "integer"),
    WRONG(MTP, "{\"max\":\"3\"}", "speculation.max", "string"),
    WRONG(MTP, "{\"mode\":\"mtp\",\"steps\":3}", "speculation.steps", "steps"),
    WRONG(MTP, "{\"num_steps\":null}", "speculation.num_steps", "num_steps"),
#undef OFF
#undef NGRAM
#undef MTP
#undef FINE
#undef WRONG
};

START_TEST(speculation)
{
    for (size_t i = 0; i < 2 * ARRAY_LEN(wishes); i++) {
        size_t k = i / 2;
        struct api_env at = env;
        at.spec_name = wishes[k].method;
        at.spec_ngram = wishes[k].ngram;
        at.spec_model = wishes[k].model;
        at.defaults.spec_mode = wishes[k].def;
        at.defaults.spec_max = wishes[k].def_max;
        char body[256];
        snprintf(body, sizeof body, "{%s,\"speculation\":%s}",
                 i & 1 ? "\"prompt\":\"x\"" : "\"messages\":" U, wishes[k].wish);
        struct api_req q;
        struct api_err e;
        int r = parse_at(&q, &at, i & 1 ? "c" : "h", body, &e);
        if (wishes[k].param) {
            ck_assert_msg(r < 0 && e.status == 400, "accepted: %s", body);
            ck_assert_msg(!strcmp(e.param, wishes[k].param), "%s: param %s", body, e.param);
            ck_assert_msg(strstr(e.text, wishes[k].asked) != NULL, "%s: %s", body, e.text);
            if (strstr(e.text, "this server"))
                ck_assert_msg(strstr(e.text, wishes[k].method) != NULL, "%s: %s", body, e.text);
        } else {
            ck_assert_msg(r == OK, "%s: %s", body, e.text);
            ck_assert_msg((int)q.p.spec_mode == (int)wishes[k].mode, "%s: mode %d", body,
                          (int)q.p.spec_mode);
            ck_assert_msg(q.p.spec_max == wishes[k].max, "%s: max %d", body, q.p.spec_max);
            ck_assert_int_eq(q.n_unknown, 0);
        }
        api_req_done(&q);
    }
}
END_TEST

static int fit(struct api_req *q, const char *body, size_t n_ids, struct api_err *e)
{
    ck_assert_msg(parse(q, strstr(body, "messages") ? "h" : "c", body, e) == OK, "%s", e->text);
    for (size_t i = 0; i < q->n_prompt; i++) {
        mem_free(q->prompt[i].ids);
        q->prompt[i].n_ids = n_ids;
        q->prompt[i].ids = MEM_ARRAY(int32_t, n_ids);
    }
    return api_fit(q, &env, e);
}

START_TEST(context)
{
    struct api_req q;
    struct api_err e;
    ck_assert_int_eq(fit(&q, "{\"prompt\":\"x\"}", 100, &e), OK);
    ck_assert_int_eq(q.p.max_tokens, 16);
    api_req_done(&q);
    ck_assert_int_eq(fit(&q, "{\"prompt\":\"x\"}", 120, &e), OK);
    ck_assert_int_eq(q.p.max_tokens, 8); /* clamped to the rest */
    api_req_done(&q);
    ck_assert_int_eq(fit(&q, "{\"messages\":" U "}", 100, &e), OK);
    ck_assert_int_eq(q.p.max_tokens, 28);
    api_req_done(&q);
    ck_assert_int_eq(fit(&q, "{\"prompt\":\"x\",\"max_tokens\":28}", 100, &e), OK);
    api_req_done(&q);
    ck_assert_int_lt(fit(&q, "{\"prompt\":\"x\",\"max_tokens\":29}", 100, &e), 0);
    ck_assert_int_eq(e.status, 400);
    ck_assert_str_eq(e.code, "context_length_exceeded");
    ck_assert_ptr_nonnull(strstr(e.text, "maximum context length is 128 tokens"));
    ck_assert_ptr_nonnull(strstr(e.text, "needs 129 (100 in the prompt, 29 for the completion)"));
    ck_assert_ptr_nonnull(strstr(e.text, "exceeds the available context size"));
    ck_assert_int_eq(e.n_prompt, 100);
    ck_assert_int_eq(e.n_ctx, 128);
    api_req_done(&q);
    ck_assert_int_lt(fit(&q, "{\"messages\":" U "}", 128, &e), 0);
    ck_assert_str_eq(e.param, "messages");
    api_req_done(&q);
    ck_assert_int_lt(fit(&q, "{\"prompt\":\"x\",\"max_tokens\":9000000000000000000}", 100, &e), 0);
    api_req_done(&q);
    ck_assert_int_lt(fit(&q, "{\"prompt\":\"x\",\"min_tokens\":20}", 100, &e), 0);
    ck_assert_str_eq(e.param, "min_tokens");
    api_req_done(&q);
}
END_TEST

START_TEST(depth)
{
    char body[1200];
    for (int levels = 250; levels <= 300; levels += 50) {
        size_t n = (size_t)snprintf(body, sizeof body, "{\"prompt\":\"x\",\"x\":");
        memset(body + n, '[', (size_t)levels);
        memset(body + n + levels, ']', (size_t)levels);
        snprintf(body + n + 2 * levels, sizeof body - n - 2 * (size_t)levels, "}");
        struct api_req q;
        struct api_err e;
        ck_assert_int_eq(parse(&q, "c", body, &e) == OK, levels < 255);
        api_req_done(&q);
    }
    struct api_req q; /* brackets in strings do not count */
    struct api_err e;
    size_t n = (size_t)snprintf(body, sizeof body, "{\"prompt\":\"\\\"");
    memset(body + n, '[', 400);
    snprintf(body + n + 400, sizeof body - n - 400, "\"}");
    ck_assert_int_eq(parse(&q, "c", body, &e), OK);
    api_req_done(&q);
}
END_TEST

Suite *suite_server_request(void)
{
    Suite *s = suite_create("server_request");
    TCase *t = tcase_create("request");
    tcase_set_timeout(t, 60);
    tcase_add_test(t, malformed);
    tcase_add_test(t, accepted);
    tcase_add_test(t, null_is_absent);
    tcase_add_test(t, values);
    tcase_add_test(t, speculation);
    tcase_add_test(t, context);
    tcase_add_test(t, depth);
    suite_add_tcase(s, t);
    return s;
}
