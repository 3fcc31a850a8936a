/* Stands in for the chat templates until they are linked: every call says
 * that it cannot. Weak symbols, so the real ones win. Temporary. */
#include "server/chat/chat.h"

#define WEAK __attribute__((weak))

WEAK int chat_template_parse(struct chat_template **out, const char *text, size_t len,
                             struct err *e)
{
    (void)out, (void)text, (void)len;
    return FAIL(e, E_UNSUPPORTED, "this build has no templates");
}
WEAK int chat_template_load(struct chat_template **out, const char *dir, struct err *e)
{
    (void)dir, (void)e;
    *out = NULL;
    return OK;
}
WEAK void chat_template_free(struct chat_template *t)
{
    (void)t;
}
WEAK void chat_template_set_token(struct chat_template *t, const char *name, const char *value)
{
    (void)t, (void)name, (void)value;
}
WEAK void chat_text_done(struct chat_text *c)
{
    buf_done(&c->text);
}
WEAK int chat_render(const struct chat_template *t, json_t *vars, struct chat_text *out,
                     struct err *e)
{
    (void)t, (void)vars, (void)out;
    return FAIL(e, E_UNSUPPORTED, "this build has no templates");
}
