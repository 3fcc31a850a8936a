/* From the settings to an algorithm and its network. Start-up only. */
#include <string.h>

#include "speculative/algos.h"

static int open_dir(struct model **out, const struct spec_conf *c, const struct model_conf *mc,
                    struct model *target, struct err *e)
{
    struct model_conf d = *mc;
    d.path = c->draft_dir;
    d.n_layer = 0;
    int r = model_open_draft(out, &d, target, e);
    if (r < 0)
        err_prefix(e, c->draft_dir);
    return r;
}

static int choose_auto(const struct spec_algo **out, struct model **drafter,
                       const struct spec_conf *c, const struct model_conf *mc, struct model *target,
                       struct err *e)
{
    if (c->draft_dir) {
        TRY(open_dir(drafter, c, mc, target, e));
        *out = model_info(*drafter)->n_tap ? &spec_eagle3 : &spec_draft_model;
    } else if (model_info(target)->n_mtp) {
        TRY(model_open_mtp(drafter, target, e));
        *out = &spec_mtp;
    } else {
        *out = &spec_ngram;
    }
    return OK;
}

int spec_choose(const struct spec_algo **out, struct model **drafter, const struct spec_conf *c,
                const struct model_conf *mc, struct model *target, struct err *e)
{
    const char *name = c->method ? c->method : "off";
    *drafter = NULL;
    if (!strcmp(name, "auto"))
        return choose_auto(out, drafter, c, mc, target, e);
    const struct spec_algo *a = spec_find(name);
    if (!a)
        return FAIL(e, E_INVAL, "speculative is '%s', which is not an algorithm", name);
    *out = a;
    if (!a->drafter)
        return OK;
    if (a == &spec_mtp) {
        int r = model_open_mtp(drafter, target, e);
        if (r < 0)
            err_prefix(e, "speculative is mtp");
        return r;
    }
    if (!c->draft_dir)
        return FAIL(e, E_INVAL, "speculative is %s, which needs the directory of a drafter (draft)",
                    name);
    return open_dir(drafter, c, mc, target, e);
}
