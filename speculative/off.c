/* No drafts: every verify has one row a request, and acceptance emits its sample. */
#include "speculative/algos.h"

static int shape(struct spec_shape *out, const struct spec_conf *c, const struct model_info *target,
                 const struct model_info *drafter, struct err *e)
{
    (void)target;
    (void)drafter;
    if (c->ratio)
        return FAIL(e, E_INVAL, "spec_accept is ratio, but speculation is off");
    if (c->draft_dir || c->steps || c->topk || c->tokens || c->ngram_min || c->ngram_max)
        return FAIL(e, E_INVAL, "%s says how to speculate, but speculation is off",
                    c->draft_dir ? "draft"
                    : c->steps   ? "spec_steps"
                    : c->topk    ? "spec_topk"
                    : c->tokens  ? "spec_tokens"
                                 : "spec_ngram_min or spec_ngram_max");
    *out = (struct spec_shape){.topk = 1, .rows = 1, .ahead = 1};
    return OK;
}

const struct spec_algo spec_off = {.name = "off", .shape = shape};
