/* Template and tokenizer calls of a request; runs on the loop for short prompts and on libuv's pool
 * for the others. */
#include "server/prompt.h"

#include <string.h>

#include "engine/base/mem.h"

static int encode_text(struct api_req *q, struct api_prompt *p, const struct engine *g,
                       const char *s, size_t n, const struct span *untrusted, size_t n_untrusted,
                       const struct api_env *env, struct api_err *e)
{
    bool chat = q->vars != NULL;
    if (q->kind != API_TOKENIZE && env->token_bytes_max &&
        n / env->token_bytes_max > (size_t)env->ctx) /* not worth the time: it cannot fit */
        return api_fail_context(e, chat, (int64_t)(n / env->token_bytes_max), 1, env->ctx);
    struct err err;
    int r = engine_encode(g, s, n, q->add_special, q->parse_special, untrusted, n_untrusted, 0,
                          &p->ids, &p->n_ids, &err);
    if (r < 0)
        return api_fail(e, r == E_RANGE || r == E_INVAL || r == E_UNSUPPORTED ? 400 : 500, NULL,
                        chat ? "messages" : "prompt", "The prompt cannot be tokenised: %s",
                        err.text);
    return OK;
}

/* The text up to the end of the last message's content: what follows belongs to the template. */
static int cut_final(const struct api_req *q, struct chat_text *t, struct api_err *e)
{
    json_t *msgs = json_object_get(q->vars, "messages");
    json_t *c = json_object_get(json_array_get(msgs, json_array_size(msgs) - 1), "content");
    const char *s = json_string_value(c), *hit = NULL;
    size_t n = json_string_length(c);
    while (n && (s[n - 1] == ' ' || s[n - 1] == '\n')) /* templates trim */
        n--;
    while (n && (*s == ' ' || *s == '\n')) {
        s++;
        n--;
    }
    for (const char *p = buf_cstr(&t->text);
         n && (p = memmem(p, t->text.len - (size_t)(p - t->text.p), s, n)); p++)
        hit = p;
    if (!hit)
        return api_fail(e, 400, "invalid_value", "continue_final_message",
                        "'continue_final_message': the template does not print the last message");
    size_t len = (size_t)(hit - t->text.p) + n;
    while (t->n_untrusted && t->untrusted[t->n_untrusted - 1].from >= len)
        t->n_untrusted--;
    if (t->n_untrusted && t->untrusted[t->n_untrusted - 1].to > len)
        t->untrusted[t->n_untrusted - 1].to = len;
    t->text.len = len;
    t->text.p[len] = 0;
    return OK;
}

static int encode_chat(struct api_req *q, const struct engine *g, const struct chat_template *t,
                       const struct api_env *env, struct api_err *e)
{
    struct chat_text out = {0};
    struct err err;
    int ret = chat_render(t, q->vars, &out, &err);
    if (ret < 0) {
        ret = api_fail(e, ret == E_NOMEM ? 500 : 400, NULL, "messages",
                       "The chat template failed: %s", err.text);
        goto out;
    }
    if (q->continue_final)
        TRY_OUT(cut_final(q, &out, e));
    ret = encode_text(q, &q->prompt[0], g, buf_cstr(&out.text), out.text.len, out.untrusted,
                      out.n_untrusted, env, e);
out:
    chat_text_done(&out);
    return ret;
}

int api_encode(struct api_req *q, const struct engine *g, const struct chat_template *t,
               const struct api_env *env, struct api_err *e)
{
    if (q->vars)
        return encode_chat(q, g, t, env, e);
    for (size_t i = 0; i < q->n_prompt; i++) {
        struct api_prompt *p = &q->prompt[i];
        if (p->text)
            TRY(encode_text(q, p, g, p->text, p->n_text, NULL, 0, env, e));
    }
    return OK;
}
