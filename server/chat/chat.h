/* Chat templates: messages to prompt text through our subset of Jinja2.
 *
 * A template is parsed once and immutable afterwards; rendering is a pure, thread-safe function
 * bounded in output bytes, steps, memory and recursion (limits.h). Every byte of the result knows
 * whether it came from the template (or from constants in it) or from the request: the spans of
 * request bytes are returned so that special tokens are recognised in template text only. */
#ifndef SPECD_CHAT_CHAT_H
#define SPECD_CHAT_CHAT_H

#include <stddef.h>

#include "engine/base/buf.h"
#include "engine/base/js.h"
#include "engine/base/span.h"

struct chat_template;

/* Parses a template. An unsupported construct is E_UNSUPPORTED, bad syntax E_FORMAT, both with
 * "line L, column C" in the text. */
int chat_template_parse(struct chat_template **out, const char *text, size_t len, struct err *e);
/* Finds the template of a model directory: chat_template.jinja, else tokenizer_config.json's
 * chat_template (a string, or a list of {name, template}: "default" is taken). *out is NULL with OK
 * when the model has none. The config's bos_token, eos_token, pad_token and unk_token become the
 * variables of the same name. */
int chat_template_load(struct chat_template **out, const char *model_dir, struct err *e);
void chat_template_free(struct chat_template *t);
/* Sets a string variable that counts as template text (bos_token and the like). */
void chat_template_set_token(struct chat_template *t, const char *name, const char *value);
/* Lowers the bound on steps of each render (default and maximum LIM_CHAT_STEPS). */
void chat_template_set_steps(struct chat_template *t, unsigned steps);

struct chat_text {
    struct buf text;        /* the prompt */
    struct span *untrusted; /* spans that came from `vars` */
    size_t n_untrusted, cap_untrusted;
};
void chat_text_done(struct chat_text *c);

/* Renders with the variables of the JSON object `vars` (messages, tools, add_generation_prompt,
 * and those of chat_template_kwargs, merged by the caller). raise_exception in the template is
 * E_INVAL with its message; exceeding a bound is E_RANGE; a run-time type error is E_INVAL with
 * line and column. `vars` is not modified. */
int chat_render(const struct chat_template *t, json_t *vars, struct chat_text *out, struct err *e);

#endif
