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

int spec_ngram_drafts(const struct spec_shape *s)
{
    return s->ngram_max ? s->steps + s->ngram_more * s->ngram_each : 0;
}

/* K chains on the root: the best match's of S drafts, the others' of half as many, or of what N
 * leaves them. */
static int shape_tree(struct spec_shape *out, const struct spec_conf *c, struct err *e)
{
    int steps = c->steps ? c->steps : DEF_STEPS, more = c->topk - 1;
    if (steps < 1 || steps > LIM_EMIT - 1 || c->topk < 1 || c->topk > LIM_SPEC_TOPK)
        return FAIL(e, E_INVAL,
                    "spec_steps is %d and spec_topk %d; prompt lookup has 1 to %d and 1 to %d",
                    steps, c->topk, LIM_EMIT - 1, LIM_SPEC_TOPK);
    int least = 1 + steps + more, most = 1 + steps * c->topk;
    most = most < LIM_ROWS_PER_REQ ? most : LIM_ROWS_PER_REQ;
    int rows = 1 + steps + more * ((steps + 1) / 2);
    rows = c->tokens ? c->tokens : rows < most ? rows : most;
    if (rows < least || rows > most)
        return FAIL(
            e, E_INVAL,
            "spec_tokens is %d, but prompt lookup of spec_steps %d in spec_topk %d chains has "
            "%d to %d rows (root included)",
            rows, steps, c->topk, least, most);
    int each = (rows - 1 - steps) / more;
    *out = (struct spec_shape){.steps = steps,
                               .topk = c->topk,
                               .rows = 1 + steps + more * each,
                               .ngram_more = more,
                               .ngram_each = each};
    out->ahead = out->rows;
    return OK;
}

static int shape(struct spec_shape *out, const struct spec_conf *c, const struct model_info *target,
                 const struct model_info *drafter, struct err *e)
{
    (void)target;
    (void)drafter;
    if (c->ratio)
        return FAIL(e, E_INVAL,
                    "spec_accept is ratio, but prompt lookup has no distribution to compare with");
    if (c->draft_dir)
        return FAIL(e, E_INVAL, "draft names a drafter, but prompt lookup has no network");
    struct spec_shape s = {0};
    int steps;
    if (c->topk && c->topk != 1) {
        TRY(shape_tree(&s, c, e));
    } else {
        TRY(spec_chain_steps(&steps, c, DEF_STEPS, e));
        TRY(spec_chain_shape(&s, steps, c->tokens, e));
    }
    TRY(spec_ngram_shape(&s, c, e));
    *out = s;
    return OK;
}

const struct spec_algo spec_ngram = {.name = "ngram", .shape = shape};
