/* Prompt lookup alone: what the text said after the same words before. The lookup is
 * op_draft_ngram, which every server with speculation runs for the requests that ask for it; here
 * are only its numbers. */
#include "speculative/algos.h"

enum { DEF_MIN = 2, DEF_MAX = 5, DEF_STEPS = 7 };

int spec_ngram_shape(struct spec_shape *out, const struct spec_conf *c, struct err *e)
{
    int lo = c->ngram_min ? c->ngram_min : DEF_MIN;
    int hi = c->ngram_max ? c->ngram_max : lo > DEF_MAX ? lo : DEF_MAX;
    if (lo < 1 || hi > SPEC_NGRAM_MAX || lo > hi)
        return FAIL(e, E_INVAL, "spec_ngram_min is %d and spec_ngram_max %d; 1 <= min <= max <= %d",
                    lo, hi, SPEC_NGRAM_MAX);
    out->ngram_min = lo;
    out->ngram_max = hi;
    return OK;
}

static int shape(struct spec_shape *out, const struct spec_conf *c, const struct model_info *target,
                 const struct model_info *drafter, struct err *e)
{
    (void)target;
    (void)drafter;
    if (c->topk > 1)
        return FAIL(e, E_INVAL, "spec_topk is %d, but prompt lookup drafts chains (spec_topk 1)",
                    c->topk);
    if (c->ratio)
        return FAIL(e, E_INVAL,
                    "spec_accept is ratio, but prompt lookup has no distribution to compare with");
    if (c->draft_dir)
        return FAIL(e, E_INVAL, "draft names a drafter, but prompt lookup has no network");
    int steps;
    TRY(spec_chain_steps(&steps, c, DEF_STEPS, e));
    TRY(spec_chain_shape(out, steps, c->tokens, e));
    return spec_ngram_shape(out, c, e);
}

const struct spec_algo spec_ngram = {.name = "ngram", .shape = shape};
