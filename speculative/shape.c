/* Checks of S, K and N against each other and the bounds; pure functions. */
#include "speculative/algos.h"

static int check_steps(int steps, struct err *e)
{
    if (steps < 1 || steps > LIM_EMIT - 1)
        return FAIL(e, E_INVAL, "spec_steps is %d; 1 to %d", steps, LIM_EMIT - 1);
    return OK;
}

int spec_chain_steps(int *out, const struct spec_conf *c, int def, struct err *e)
{
    *out = c->steps ? c->steps : c->tokens ? c->tokens - 1 : def;
    if (!c->steps && c->tokens && (*out < 1 || *out > LIM_EMIT - 1))
        return FAIL(e, E_INVAL, "spec_tokens is %d, but a chain has 2 to %d rows (root included)",
                    c->tokens, LIM_EMIT);
    return OK;
}

int spec_chain_shape(struct spec_shape *out, int steps, int tokens, struct err *e)
{
    TRY(check_steps(steps, e));
    if (tokens && tokens != steps + 1)
        return FAIL(e, E_INVAL,
                    "spec_tokens is %d, but a chain of spec_steps %d has %d rows (root included)",
                    tokens, steps, steps + 1);
    *out = (struct spec_shape){.steps = steps, .topk = 1, .rows = steps + 1};
    /* After steps + 1 accepted tokens the drafter reads the root and writes steps - 1 rows more. */
    out->ahead = 2 * steps + 1;
    return OK;
}

int spec_tree_shape(struct spec_shape *out, int steps, int topk, int tokens, struct err *e)
{
    if (topk == 1)
        return spec_chain_shape(out, steps, tokens, e);
    TRY(check_steps(steps, e));
    if (topk < 1 || topk > LIM_SPEC_TOPK)
        return FAIL(e, E_INVAL, "spec_topk is %d; 1 to %d", topk, LIM_SPEC_TOPK);
    int nodes = topk + (steps - 1) * topk * topk;
    if (steps * topk > 64 || nodes > LIM_DRAFT_NODES)
        return FAIL(e, E_INVAL, "spec_steps %d times spec_topk %d is over the 64 rows of a tree",
                    steps, topk);
    int most = nodes + 1 < LIM_ROWS_PER_REQ ? nodes + 1 : LIM_ROWS_PER_REQ;
    int rows = tokens ? tokens : steps * topk + 1 < most ? steps * topk + 1 : most;
    if (rows < 2 || rows > most)
        return FAIL(e, E_INVAL,
                    "spec_tokens is %d, but a tree of spec_steps %d and spec_topk %d has 2 to %d "
                    "rows (root included)",
                    rows, steps, topk, most);
    int scratch = steps + 2 + (steps - 1) * topk;
    *out = (struct spec_shape){
        .steps = steps, .topk = topk, .rows = rows, .ahead = rows > scratch ? rows : scratch};
    return OK;
}
