/* Fuzz target: a config.json through every family and every drafter, with no tensors. Nothing can
 * open, so each call must end with a reason and give everything back; a generation_config.json goes
 * the same way. */
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/model/config.h"
#include "engine/model/family.h"

int fuzz_config(const uint8_t *data, size_t size);

/* Every drafter, for a target that the configuration fits. */
static void draft(const json_t *o)
{
    struct err e = {0};
    int64_t vocab = 131, hidden = 72;
    js_get_i64(o, "vocab_size", 1, 1 << 24, &vocab, &e);
    js_get_i64(o, "hidden_size", 1, 1 << 20, &hidden, &e);
    struct model_info target = {
        .arch = "target", .vocab = (int)vocab, .hidden = (int)hidden, .n_layer = 6};
    struct draft_target dt = {
        .info = &target, .embed = {.n = vocab, .k = hidden}, .head = {.n = vocab, .k = hidden}};
    for (int i = 0; drafters[i]; i++) {
        struct tensors *t = tensors_new(false);
        struct model_info info = {0};
        void *priv = NULL;
        e = (struct err){0};
        CHECK(drafters[i]->open_draft(&priv, &dt, o, t, &info, &e) < 0 && e.text[0]);
        tensors_close(t);
    }
}

int fuzz_config(const uint8_t *data, size_t size)
{
    struct err e = {0};
    json_t *o;
    if (js_parse(&o, (const char *)data, size, "input", &e) < 0)
        return 0;
    for (int i = 0; json_is_object(o) && families[i]; i++) {
        struct tensors *t = tensors_new(false);
        struct model_info info = {.arch = families[i]->archs[0]};
        void *priv = NULL;
        e = (struct err){0};
        CHECK(families[i]->open(&priv, o, t, &info, &e) < 0 && e.text[0]);
        tensors_close(t);
    }
    if (json_is_object(o))
        draft(o);
    struct model_info info = {.vocab = 1000};
    json_t *none = json_object();
    if (cfg_generation(none, o, &info, &e) == OK)
        CHECK(info.n_eos <= 16 && info.top_p > 0 && info.top_p <= 1 && info.temperature >= 0);
    json_decref(none);
    json_decref(o);
    return 0;
}
