/* Speculation: where drafts come from, and the acceptance every decode step passes through.
 *
 * One verify step of a request runs its root and 0 … N-1 drafted rows; acceptance (op_accept) keeps
 * the drafts that equal the target's own samples and emits them with the first sample that differs.
 * So an algorithm can only change how many tokens a step yields, never which. An algorithm is one
 * file and one line in registry.c; `off` proposes nothing, and the same step serves it.
 *
 * Order within a step: verify forward, sample, spec_accept, propose. All of it is recordable. */
#ifndef SPECD_SPEC_H
#define SPECD_SPEC_H

#include "engine/base/err.h"
#include "kernels/device.h"
#include "kernels/ops.h"

struct spec; /* an opened algorithm: its weights, KV and per-slot state */

struct spec_env {
    const struct dev_ops *ops;
    struct dev *d;
    struct slot_arrays slots;
    int reqs_max; /* requests of one step */
};

/* What a step hands to acceptance and to the drafter; device pointers, fixed per recorded graph. */
struct spec_step {
    struct row_arrays rows;
    const struct sample_out *sample;                      /* one a row (verify) or a chunk */
    const int32_t *req_slot, *req_gen, *req_row0, *req_n; /* [reqs] */
    const int32_t *last_sample;                           /* [reqs] prefill only */
    struct ring_rec *ring;
    const int64_t *step; /* [1] */
    int ring_depth, ring_stride, reqs;
    bool prefill;
};

struct spec_algo {
    const char *name;
    int (*rows_per_req)(const struct spec_env *env); /* N: root and drafts, 1 … LIM_ROWS_PER_REQ */
    int (*open)(struct spec **out, const struct spec_env *env, struct err *e); /* optional */
    /* Writes slots.draft and slots.n_rows for the next verify; NULL: n_rows stays 1. */
    int (*propose)(struct spec *s, const struct spec_step *st, struct err *e);
    void (*close)(struct spec *s); /* optional */
};

extern const struct spec_algo *const spec_algos[]; /* NULL ends */
const struct spec_algo *spec_find(const char *name);

/* Issues the acceptance operation; shared by all algorithms. */
int spec_accept(const struct spec_env *env, const struct spec_step *st, struct err *e);

#endif
