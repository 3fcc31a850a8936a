/* Acceptance: hands a step's samples to op_accept. The rule itself (sampler match, finish rules) is
 * the operation's, so that it is one and the same on every device and for every algorithm. */
#include "speculative/spec.h"

int spec_accept(const struct spec_env *env, const struct spec_step *st, struct err *e)
{
    struct op_accept a = {
        .s = env->slots,
        .rows = st->rows,
        .sample = st->sample,
        .req_slot = st->req_slot,
        .req_gen = st->req_gen,
        .req_row0 = st->req_row0,
        .req_n = st->req_n,
        .last_sample = st->last_sample,
        .ring = st->ring,
        .step = st->step,
        .ring_depth = st->ring_depth,
        .ring_stride = st->ring_stride,
        .out = st->acc,
        .reqs = st->reqs,
        .prefill = st->prefill,
    };
    if (!st->prefill && env->shape.rows > 1)
        a.stamp = (struct op_stamp){st->stamps, st->step, st->ring_depth, N_STAMPS, STAMP_VERIFY};
    if (env->ops->ops->accept(env->d, &a) < 0)
        return FAIL(e, E_DEVICE, "the acceptance step failed");
    return OK;
}
