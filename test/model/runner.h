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
    uint64_t seed;           /* of the page order */
};

struct mrow {
    int slot, pos;
    int32_t tok; /* -1: padding */
};

struct mrun {
    struct mrun_conf c;
    const struct dev_ops *ops;
    struct dev *d;
    struct model *m;
    const struct model_info *info;
    struct kv_pool kv;
    struct attn_use use[2][LIM_KV_GROUPS]; /* prefill, verify */
    struct row_arrays row;
    float *hidden, *logits;
    int32_t *table[LIM_KV_GROUPS]; /* host copies [n_slot][pages_max] */
    int *order;                    /* pages not handed out yet, per group the same list */
    int n_order;
};

int mrun_open(struct mrun *r, const char *dir, const struct mrun_conf *c, struct err *e);
void mrun_close(struct mrun *r);
/* One pass; role is TGT_PREFILL or TGT_VERIFY. `logits` [n][vocab], host; NULL: not wanted. */
int mrun_rows(struct mrun *r, enum role role, int n, const struct mrow *rows, float *logits,
              struct err *e);
/* Tokens [from, to) of `tok` into a slot, in prefill chunks; logits row i is of position i. */
int mrun_prefill(struct mrun *r, int slot, const int32_t *tok, int from, int to, int chunk,
                 float *logits, struct err *e);

#endif
