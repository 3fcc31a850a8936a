/* The forward batch: device arrays of one step's rows and requests, and the slot state.
 *
 * All of it is allocated once and never moves, so recorded graphs can name it. The worker owns it.
 *
 * Shape letters used here and in the step code: S slots (slot 0 is padding), B requests of a step,
 * R rows of a pass, V vocabulary, H hidden width. */
#ifndef SPECD_BATCH_H
#define SPECD_BATCH_H

#include "engine/base/err.h"
#include "kernels/device.h"
#include "kernels/ops.h"

struct batch_conf {
    int slots_max;  /* S - 1 */
    int reqs_max;   /* B */
    int rows_max;   /* R: the larger of prefill rows and verify rows */
    int logits_max; /* rows whose logits one pass may need */
    int set_max;    /* page-table entries a step may set */
    int len_max, vocab, hidden, n_group;
    int ring_depth; /* steps whose records stay readable */
};

/* What the host says about a step, in one block of the same layout on both sides, so that one copy
 * of its beginning brings it over. The starts, which are large and rare, are a copy of their own.
 */
struct batch_in {
    int64_t *step;                         /* [1] number of the step that runs */
    int32_t *n_start, *n_stop, *n_set;     /* [1] */
    int32_t *req_slot, *req_gen, *req_cap; /* [B] of the decode */
    int32_t *stop;                         /* [slots_max] */
    struct page_set *set;                  /* [set_max] */
    struct slot_start *start;              /* [slots_max] */
};

struct batch {
    struct batch_conf c;
    struct slot_arrays slots;
    struct row_arrays rows;
    int32_t *req_slot, *req_gen, *req_row0, *req_n; /* [B] of the prefill pass; row0, n: of any */
    struct accept_out acc;                          /* of the pass just accepted */
    int32_t *last_sample;                           /* [B] prefill: index into sample, -1 */
    int32_t *gather;                                /* [logits_max] rows to gather, -1 */
    float *hidden;                                  /* [R,H] */
    float *hidden_out;                              /* [logits_max,H] gathered */
    float *logits;                                  /* [logits_max,V] */
    float *sample_work;                             /* [logits_max,4V] */
    struct sample_out *sample;                      /* [logits_max] */
    char *in_mem;
    struct batch_in in; /* copied in at the start of a step */
    /* prompt scoring */
    int32_t *score_tok, *score_top; /* [logits_max] */
    /* pinned: written by operations, read by the host after the step */
    struct ring_rec *ring_decode, *ring_prefill; /* [ring_depth][B] */
    struct sample_out *score;                    /* [logits_max] */
};

/* Lays `out` over a block at mem; returns its bytes. */
size_t batch_in(struct batch_in *out, const struct batch_conf *c, void *mem);
/* Device bytes of a batch. */
size_t batch_bytes(const struct batch_conf *c);
int batch_open(struct batch *b, const struct batch_conf *c, const struct dev_ops *ops,
               struct dev *d, struct err *e);
void batch_close(struct batch *b, const struct dev_ops *ops, struct dev *d);

#endif
