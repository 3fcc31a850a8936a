/* From a checked request to token ids: chat template and tokenizer. Pure on the request it is
 * handed, so it runs on the pool. */
#ifndef SPECD_SERVER_PROMPT_H
#define SPECD_SERVER_PROMPT_H

#include "server/chat/chat.h"
#include "server/request.h"

/* Fills prompt[].ids of every text prompt. E_INVAL with `e`: a template that refused, a text that
 * cannot fit the context. `t` may be NULL when q has no vars. */
int api_encode(struct api_req *q, const struct engine *g, const struct chat_template *t,
               const struct api_env *env, struct api_err *e);

#endif
