/* Names of request fields and what happens to them. KNOWN ones are read by request.c; of the
 * others some are accepted and ignored (their type is still checked), and the rest must have the
 * neutral value of their rule, because ignoring anything else would change what the client gets. */
#ifndef SPECD_SERVER_REQUEST_FIELDS_H
#define SPECD_SERVER_REQUEST_FIELDS_H

enum rule {
    RULE_KNOWN,
    RULE_ANY_STRING, /* accepted and ignored */
    RULE_ANY_BOOL,
    RULE_ANY_OBJECT,
    RULE_ANY,
    RULE_ABSENT, /* the neutral values */
    RULE_FALSE,
    RULE_TRUE,
    RULE_NUMBER,
    RULE_EMPTY_LIST,
    RULE_EMPTY_TEXT,
    RULE_NONE_OR_AUTO,
    RULE_TYPE_TEXT,
    RULE_LIST_TEXT,
};

struct field_rule {
    const char *name;
    int kinds; /* bit per api_kind */
    enum rule rule;
    double number;    /* RULE_NUMBER */
    const char *note; /* why, in a few words */
};

#define C 1 /* completions */
#define H 2 /* chat */
#define T 4 /* tokenize */
#define K(name, kinds)                                                                             \
    {                                                                                              \
        name, kinds, RULE_KNOWN, 0, ""                                                             \
    }
#define I(name, kinds, type)                                                                       \
    {                                                                                              \
        name, kinds, RULE_ANY_##type, 0, ""                                                        \
    }
#define U(name, kinds, rule, note)                                                                 \
    {                                                                                              \
        name, kinds, RULE_##rule, 0, note                                                          \
    }
#define UN(name, kinds, number)                                                                    \
    {                                                                                              \
        name, kinds, RULE_NUMBER, number, ""                                                       \
    }
/* clang-format off */
static const struct field_rule field_rules[] = {
    K("model", C|H|T), K("prompt", C|T), K("messages", H|T), K("content", T), K("stream", C|H),
    K("stream_options", C|H), K("n", C|H), K("best_of", C), K("echo", C), K("logprobs", C|H),
    K("top_logprobs", H), K("temperature", C|H), K("top_p", C|H), K("top_k", C|H), K("min_p", C|H),
    K("presence_penalty", C|H), K("frequency_penalty", C|H), K("repetition_penalty", C|H),
    K("seed", C|H), K("stop", C|H), K("stop_token_ids", C|H), K("include_stop_str_in_output", C|H),
    K("no_stop_trim", C|H), K("ignore_eos", C|H), K("min_tokens", C|H), K("max_tokens", C|H),
    K("max_completion_tokens", C|H), K("n_predict", C), K("max_new_tokens", C),
    K("logit_bias", C|H), K("skip_special_tokens", C|H), K("add_special_tokens", C|H|T),
    K("return_token_ids", C|H), K("return_tokens_as_token_ids", C|H), K("request_id", C|H),
    K("rid", C|H), K("sse_ping_interval", C|H), K("chat_template_kwargs", H|T),
    K("add_generation_prompt", H|T), K("continue_final_message", H|T), K("reasoning_effort", H|T),
    K("documents", H|T), K("add_special", T), K("parse_special", T), K("with_pieces", T),
    K("return_token_strs", T), K("speculation", C|H),

    I("user", C|H, STRING), I("metadata", C|H, OBJECT), I("store", C|H, BOOL),
    I("service_tier", C|H, STRING), I("prompt_cache_key", C|H, STRING),
    I("safety_identifier", C|H, STRING), I("verbosity", C|H, STRING),
    I("parallel_tool_calls", H, BOOL), I("spaces_between_special_tokens", C|H, BOOL),
    I("prompt_cache_retention", C|H, STRING), I("cache_salt", C|H, STRING),

    U("tools", H|T, EMPTY_LIST, "tool calls"), U("tool_choice", H, NONE_OR_AUTO, "tool calls"),
    U("functions", H, EMPTY_LIST, "tool calls"), U("function_call", H, NONE_OR_AUTO, "tool calls"),
    U("response_format", C|H, TYPE_TEXT, "only {\"type\":\"text\"} is"),
    U("structured_outputs", C|H, ABSENT, ""), U("guided_json", C|H, ABSENT, ""),
    U("guided_regex", C|H, ABSENT, ""), U("guided_choice", C|H, ABSENT, ""),
    U("guided_grammar", C|H, ABSENT, ""), U("grammar", C|H, EMPTY_TEXT, ""),
    U("json_schema", C|H, ABSENT, ""), U("regex", C|H, ABSENT, ""), U("ebnf", C|H, ABSENT, ""),
    U("suffix", C, EMPTY_TEXT, "the model has no fill-in-the-middle tokens"),
    U("echo", H, FALSE, "for chat"), U("prompt_logprobs", C|H, ABSENT, "use 'echo' with 'logprobs'"),
    U("allowed_token_ids", C|H, ABSENT, ""), U("bad_words", C|H, EMPTY_LIST, ""),
    U("truncate_prompt_tokens", C|H, ABSENT, ""), U("prediction", C|H, ABSENT, ""),
    U("thinking_token_budget", C|H, ABSENT, ""), UN("reasoning_budget_tokens", C|H, -1),
    U("include_reasoning", H, TRUE, ""), U("separate_reasoning", H, TRUE, ""),
    U("stream_reasoning", H, TRUE, ""),
    U("use_beam_search", C|H, FALSE, ""), UN("length_penalty", C|H, 1), UN("priority", C|H, 0),
    U("custom_logit_processor", C|H, ABSENT, ""), U("logits_processors", C|H, EMPTY_LIST, ""),
    U("lora_path", C|H, ABSENT, ""), U("session_params", C|H, ABSENT, ""),
    U("return_hidden_states", C|H, FALSE, ""), U("repetition_detection", C|H, ABSENT, ""),
    UN("stream_interval", C|H, 1), U("timings_per_token", C|H, FALSE, ""),
    U("return_progress", C|H, FALSE, ""), U("t_max_predict_ms", C|H, ABSENT, ""),
    U("request_timeout", C|H, ABSENT, ""),
    U("modalities", H, LIST_TEXT, "only [\"text\"] is"), U("audio", H, ABSENT, ""),
    U("web_search_options", H, ABSENT, ""), U("mm_processor_kwargs", C|H, ABSENT, ""),
    U("chat_template", H|T, ABSENT, "templates come from the server's side only"),
    UN("typical_p", C|H, 1), UN("mirostat", C|H, 0), UN("xtc_probability", C|H, 0),
    UN("dry_multiplier", C|H, 0), UN("dynatemp_range", C|H, 0), UN("top_n_sigma", C|H, -1),
    U("allowed_tools", H, ABSENT, ""), U("kv_transfer_params", C|H, ABSENT, ""),
};
/* clang-format on */
#undef C
#undef H
#undef T
#undef K
#undef I
#undef U
#undef UN

#endif
