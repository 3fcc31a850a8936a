/* Request bodies of completions, chat completions and tokenize: JSON text to checked values. Pure
 * functions of the text and of an immutable description of the server, callable on any thread and
 * fuzzed. Nothing is coerced; null is absent; unknown fields are counted and ignored; a field that
 * we know and do not support is an error unless it has its neutral value. */
#ifndef SPECD_SERVER_REQUEST_H
#define SPECD_SERVER_REQUEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/js.h"
#include "engine/engine.h"
#include "server/api_err.h"

/* What a request is checked against. */
struct api_env {
    char *const *names; /* served model names, the first is the default */
    size_t n_names;
    int vocab, ctx; /* ids are in [0, vocab); prompt + completion <= ctx */
    int max_seqs;   /* sequences of one request */
    int max_n;
    size_t token_bytes_max; /* longest token in bytes: texts beyond it times ctx cannot fit */
    int64_t kv_tokens;      /* capacity of the KV memory */
    struct gen_params defaults;
    bool has_template;
    const char *spec_name;       /* what drafts here */
    bool spec_ngram, spec_model; /* a request may ask for lookup; for spec_name's network */
};

enum api_kind { API_COMPLETIONS, API_CHAT, API_TOKENIZE };

struct api_prompt {
    const char *text; /* borrowed from the body; NULL when ids were given */
    size_t n_text;
    int32_t *ids; /* owned; filled by api_encode when text was given */
    size_t n_ids;
};

struct api_req {
    enum api_kind kind;
    json_t *body; /* owned; texts below are borrowed from it */
    const char *model;
    bool stream, include_usage, continuous_usage;
    int n;
    struct gen_params p; /* max_tokens is final only after api_fit */
    bool has_max;        /* the client named a limit */
    int64_t max_tokens;
    const char *stop[LIM_STOP_STRINGS];
    size_t n_stop;
    struct api_prompt *prompt; /* completions and tokenize by text: 1 or more; chat: 1, from vars */
    size_t n_prompt;
    bool echo, logprobs, return_ids, tokens_as_ids;
    bool add_special, parse_special;
    int64_t ping_s; /* -2: the server's, -1: off */
    json_t *vars;   /* chat: variables of the template; owned */
    bool continue_final;
    const char *rid; /* the client's own id, NULL */
    int n_unknown;
    const char *unknown; /* the first one */
    /* tokenize */
    bool with_strs, llama; /* token_strs wanted; the dialect with "content" */
    bool with_pieces;
};

/* E_INVAL with `e` filled. *q is initialised in any case: api_req_done is due. */
int api_parse(struct api_req *q, enum api_kind kind, const char *text, size_t len,
              const struct api_env *env, struct api_err *e);
/* Body of /detokenize: ids into q->prompt[0]. */
int api_parse_detokenize(struct api_req *q, const char *text, size_t len, const struct api_env *env,
                         struct api_err *e);
void api_req_done(struct api_req *q);
/* All prompts have ids: checks them against the context and sets p.max_tokens. */
int api_fit(struct api_req *q, const struct api_env *env, struct api_err *e);
bool api_rid_ok(const char *s); /* [A-Za-z0-9._:-]{1,128} */
/* The error of a prompt that is too long; n_max 0: no completion length was named. */
int api_fail_context(struct api_err *e, bool chat, int64_t n_prompt, int64_t n_max, int64_t ctx);

/* request_chat.c: messages and template variables. */
int api_parse_messages(struct api_req *q, const struct api_env *env, struct api_err *e);
/* shared helpers of the parsing files */
int api_get_bool(const json_t *o, const char *key, bool *out, struct api_err *e);
int api_get_int(const json_t *o, const char *key, int64_t lo, int64_t hi, int64_t *out,
                struct api_err *e);
int api_bad_type(struct api_err *e, const char *param, const char *want, const json_t *v);

#endif
