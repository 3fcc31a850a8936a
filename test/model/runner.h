/* A model on the CPU device without engine or scheduler: rows in, logits out. For tests. Pages are
 * handed out in a shuffled order as sequences grow, the KV pool begins as NaN and page-table
 * entries that no page backs are impossible numbers, so reading too far shows. */
#ifndef SPECD_TEST_RUNNER_H
#define SPECD_TEST_RUNNER_H

#include "engine/kv/pool.h"
#include "engine/model/model.h"

struct mrun_conf {
    int threads, page;       /* 0: 1 thread, 16 */
    int rows_max, len_max;   /* of one call; of a sequence */
    int n_slot;              /* sequences, slot 0 included; 0: 4 */
    enum attn_kind mla_form; /* 0: absorbed */
    enum dtype kv_dtype;     /* DT_NONE: the device's */
    uint64_t seed;           /* of the page order */
    struct mrun *target;     /* this is its drafter: DIR is the drafter's, NULL: next-token layer */
    struct model_conf model; /* dummy, n_layer, threads; path is DIR */
    const int *tap;          /* what passes give in mio.taps */
    int n_tap;
};

struct mrow {
    int slot, pos; /* of the token consumed; a drafter's RoPE position is pos - shift */
    int32_t tok;   /* -1: padding */
    /* mio.tree: position of the cache entry, and of bit 0 of `anc` */
    int at, row0;
    uint64_t anc;
};

/* What a pass takes and gives beside the rows, on the host; NULL: not wanted. */
struct mio {
    const float *feat;  /* [n][feat], drafters */
    const int32_t *src; /* [n] row of feat that a row takes; NULL: its own */
    float *hidden;      /* [n][hidden]; of drafters, the recurrent feature */
    float *logits;      /* [n][vocab] */
    float *taps;        /* [n][n_tap * hidden] */
    bool tree;          /* the rows have `at`, `row0` and `anc` */
};

struct mrun {
    struct mrun_conf c;
    const struct dev_ops *ops;
    struct dev *d;
    struct model *m;
    const struct model_info *info;
    struct kv_pool kv;
    struct attn_use use[3][LIM_KV_GROUPS]; /* prefill, verify, verify of trees */
    struct row_arrays row;
    float *hidden, *logits, *taps, *feat;
    int32_t *src;
    int32_t *from;                 /* device [n_slot]: a drafter has no row before `shift` */
    int32_t *table[LIM_KV_GROUPS]; /* host copies [n_slot][pages_max] */
    int *order;                    /* pages not handed out yet, per group the same list */
    int n_order;
};

int mrun_open(struct mrun *r, const char *dir, const struct mrun_conf *c, struct err *e);
void mrun_close(struct mrun *r);
/* One pass; role is TGT_PREFILL or TGT_VERIFY (drafters run it as theirs). */
int mrun_pass(struct mrun *r, enum role role, int n, const struct mrow *rows, const struct mio *io,
              struct err *e);
/* The same with logits [n][vocab] (NULL: not wanted) and nothing else. */
int mrun_rows(struct mrun *r, enum role role, int n, const struct mrow *rows, float *logits,
              struct err *e);
/* A drafter's features [n][feat] of its target's taps [n][n_tap * hidden of the target]. */
int mrun_feature(struct mrun *r, int n, const float *taps, float *feat, struct err *e);
/* Tokens [from, to) of `tok` into a slot, in prefill chunks; logits row i is of position i. */
int mrun_prefill(struct mrun *r, int slot, const int32_t *tok, int from, int to, int chunk,
                 float *logits, struct err *e);

#endif
