/* Chat templates from a hostile file: parse, then render with fixed variables. What is accepted
 * must render to valid UTF-8 with ascending spans inside the text, and leave no memory behind. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "server/chat/chat.h"

int fuzz_template(const uint8_t *data, size_t size);

static const char vars_text[] =
    "{\"m\":[{\"role\":\"system\",\"content\":\" s\\u00e9 "
    "\"},{\"role\":\"user\",\"content\":\"hi\"},"
    "{\"role\":\"assistant\",\"content\":\"a<t>b\",\"tool_calls\":[{\"function\":{\"name\":\"f\","
    "\"arguments\":{\"k\":[1,2.5,null,true,\"v\"]}}}]}],"
    "\"messages\":[{\"role\":\"user\",\"content\":\"\\u4f60\\u597d <x>\"}],"
    "\"d\":{\"b\":1,\"A\":\"x\"},\"l\":[3,1,2],\"s\":\"Hello \\u00c9 World\",\"n\":7,\"f\":0.5,"
    "\"add_generation_prompt\":true}";

static void check_text(const struct chat_text *t)
{
    size_t at = 0;
    CHECK(utf8_valid(buf_cstr(&t->text), t->text.len));
    for (size_t i = 0; i < t->n_untrusted; i++) {
        CHECK(t->untrusted[i].from >= at && t->untrusted[i].from < t->untrusted[i].to);
        at = t->untrusted[i].to;
    }
    CHECK(at <= t->text.len);
}

int fuzz_template(const uint8_t *data, size_t size)
{
    struct chat_template *t = NULL;
    struct chat_text out = {0};
    struct err e = {0};
    long live = mem_live();
    json_t *vars = NULL;
    if (chat_template_parse(&t, (const char *)data, size, &e) == OK) {
        CHECK(js_parse(&vars, vars_text, sizeof vars_text - 1, "variables", NULL) == OK);
        chat_template_set_steps(t, 200000); /* more inputs a second */
        chat_template_set_token(t, "bos_token", "<s>");
        if (chat_render(t, vars, &out, &e) == OK)
            check_text(&out);
        else
            CHECK(e.text[0]);
    } else {
        CHECK(e.text[0]);
    }
    chat_text_done(&out);
    chat_template_free(t);
    json_decref(vars);
    CHECK(mem_live() == live);
    return 0;
}
