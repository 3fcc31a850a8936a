/* Speculation: where drafts come from, and the acceptance every decode step passes through.
 *
 * One verify step of a request runs its root and 0 … N-1 drafted rows (a chain or a tree);
 * acceptance (op_accept) keeps the path that equals the target's own samples and emits it with the
 * first sample that differs. So an algorithm can only change how many tokens a step yields, never
 * which. An algorithm is one file and one line in registry.c.
 *
 * Order within a step: verify forward, sample, accept (and kv_move after a tree), prompt lookup for
 * the requests that use it, propose. All of it is recordable. A prefill pass is followed by the
 * algorithm's prefill, eagerly. Called by the worker thread. */
#ifndef SPECD_SPEC_H
#define SPECD_SPEC_H

#include "attention/attn.h"
#include "engine/base/err.h"
#include "engine/model/model.h"
#include "kernels/device.h"
#include "kernels/ops.h"

struct spec; /* an opened algorithm: its buffers and state */

/* What was asked for; 0 where the algorithm's default is wanted. */
struct spec_conf {
    const char *method;       /* "auto", "off" or an algorithm's name; NULL: off */
    const char *draft_dir;    /* a drafter in a directory of its own; NULL: none */
    int steps, topk, tokens;  /* S, K, N (the root included) */
    int ngram_min, ngram_max; /* lengths of the suffix that prompt lookup matches */
    bool ratio;               /* ratio rejection instead of sampler match */
};

/* What was chosen. */
struct spec_shape {
    int steps; /* S: drafts on the longest path, 0 … LIM_EMIT - 1 */
    int topk;  /* K: branches of a step; 1: chains */
    int rows;  /* N: verify rows of a request, root included, 1 … LIM_ROWS_PER_REQ */
    int ahead; /* positions past the committed length c that a step may write: verify c … c+N-1,
                  a draft round c+1 … c+1 + scratch rows, after up to S+1 accepted tokens */
    int ngram_min, ngram_max;   /* prompt lookup for requests that ask for it; 0: not offered */
    int ngram_more, ngram_each; /* its chains beside the first, and the drafts of each */
    bool ratio;                 /* chains are accepted by op_reject's rule */
};

struct spec_env {
    const struct dev_ops *ops;
    struct dev *d;
    struct slot_arrays slots;
    struct spec_shape shape;
    int reqs_max;         /* requests of one step */
    int prefill_rows_max; /* rows of one prefill pass */
    int hidden;           /* of the target */
    /* the drafter's network; NULL: none */
    struct model *drafter;
    struct attn_use (*attn)[LIM_KV_GROUPS]; /* [N_ROLES] chosen for its groups */
    const struct kv_view *kv;               /* [n_group] its own planes over the target's table */
    float *logits;      /* [reqs_max * topk, vocab] scratch, free once a pass was accepted */
    float *sample_work; /* [as many, 4 * vocab] */
    float *q;           /* [n_slot][steps][vocab] the drafts' distributions; NULL: not kept */
};

/* Parts of a round. All of it is one graph; benchmarks also run them apart. */
enum spec_part { SPEC_ROUND, SPEC_ROUND_EXTEND, SPEC_ROUND_LOOP };

/* What a pass hands to acceptance and to the drafter; device pointers, fixed per recorded graph. */
struct spec_step {
    struct row_arrays rows;
    const struct sample_out *sample;                      /* one a row (verify) or a chunk */
    const int32_t *req_slot, *req_gen, *req_row0, *req_n; /* [reqs] */
    const int32_t *last_sample;                           /* [reqs] prefill only */
    struct ring_rec *ring;
    const int64_t *step; /* [1] */
    struct accept_out acc;
    const float *hidden; /* [n_row, hidden] the target's final rows */
    const float *taps;   /* [n_row, n_tap * hidden]; NULL without taps */
    int64_t *stamps;     /* pinned [ring_depth][N_STAMPS] */
    int ring_depth, ring_stride, reqs, n_row;
    bool prefill;
    enum spec_part part;
    int qlen; /* most rows of a request */
};

/* Device times inside a decode step: when it began, and when each of its parts was done, as the
 * first operation of the next part (or spec_note, the last of all) notes it. */
enum stamp { STAMP_BEGIN, STAMP_VERIFY, STAMP_ACCEPT, STAMP_EXTEND, STAMP_DRAFT, N_STAMPS };

struct spec_algo {
    const char *name;
    bool drafter; /* has a network, so that a model must be opened for it */
    /* Fills `out` or says which argument is wrong and what it contradicts. */
    int (*shape)(struct spec_shape *out, const struct spec_conf *c, const struct model_info *target,
                 const struct model_info *drafter, struct err *e);
    /* optional, all of them: */
    size_t (*bytes)(const struct spec_env *env); /* device bytes open() will take */
    int (*open)(struct spec **out, const struct spec_env *env, struct err *e);
    /* After a prefill pass: the drafter's own prefill, and for the requests whose prompt is
     * complete the first drafts, `depth` deep. Not recorded. */
    int (*prefill)(struct spec *s, const struct spec_step *st, int depth, struct err *e);
    /* Host work before propose is run or replayed: the attention plans. */
    int (*plan)(struct spec *s, int reqs, int depth, struct err *e);
    /* Writes the nodes of the slots whose mode is SPEC_MODEL, `depth` drafts deep (1 … steps). */
    int (*propose)(struct spec *s, const struct spec_step *st, int depth, struct err *e);
    void (*close)(struct spec *s);
};

extern const struct spec_algo *const spec_algos[]; /* NULL ends */
const struct spec_algo *spec_find(const char *name);

/* Opens the drafter that the settings ask for and finds the algorithm: `auto` is what the directory
 * of a drafter holds, else the target's next-token layer, else prompt lookup. *drafter is NULL
 * when none is needed. A refusal names both sides. */
int spec_choose(const struct spec_algo **out, struct model **drafter, const struct spec_conf *c,
                const struct model_conf *draft_conf, struct model *target, struct err *e);
/* Drafts of a request by prompt lookup, 0: not offered. */
int spec_ngram_drafts(const struct spec_shape *s);
/* Most rows of a request in draft-extend. */
int spec_extend_rows(const struct spec_shape *s);
/* Rows of the drafter's largest pass, for model_place. */
int spec_drafter_rows(const struct spec_env *env);

/* Issues the acceptance operation; shared by all algorithms. */
int spec_accept(const struct spec_env *env, const struct spec_step *st, struct err *e);

#endif
