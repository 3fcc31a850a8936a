/* Fuzz target: a config.json through every family, with no tensors. Nothing can open, so each call
 * must end with a reason and give everything back; a generation_config.json goes the same way. */
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/model/config.h"
#include "engine/model/family.h"

int fuzz_config(const uint8_t *data, size_t size);

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
    struct model_info info = {.vocab = 1000};
    json_t *none = json_object();
    if (cfg_generation(none, o, &info, &e) == OK)
        CHECK(info.n_eos <= 16 && info.top_p > 0 && info.top_p <= 1 && info.temperature >= 0);
    json_decref(none);
    json_decref(o);
    return 0;
}
