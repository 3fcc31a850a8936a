/* Communication of the ranks of tensor parallelism: the points where layer programs meet.
 *
 * Every rank has its own device, weights' part, KV memory and worker thread, and runs the same
 * program on the same step: all ranks issue the same collectives in the same order with the
 * same sizes, and nothing that decides how many there are is computed by a rank for itself. A world
 * of one rank has no communicator: NULL is a valid `struct comm *` everywhere, and does nothing.
 *
 * sum, gather, clear and bcast are work of the rank's device, issued by the thread that owns it:
 * recorded when the device records, repeated by a replay. After sum, gather and bcast all ranks
 * hold the same bits, which depend on the parts alone, never on timing. A collective returns when
 * this rank's memory is done with.
 *
 * A rank that cannot go on calls comm_poison. From then on every collective of every rank, the ones
 * that wait included, returns E_CANCELED: nobody hangs, and the world cannot be used any more.
 *
 * Kinds: comm_shm.c, threads of one process over CPU devices. Between GPUs: none yet, so a CUDA
 * device refuses a world of more than one. */
#ifndef SPECD_COMM_H
#define SPECD_COMM_H

#include <stdint.h>

#include "engine/limits.h"
#include "kernels/device.h"

struct comm;

struct comm_ops {
    const char *name; /* "shm" */
    /* x[n] = sum over ranks of x[n], in the order of ranks. */
    int (*sum)(struct comm *c, struct dev *d, float *x, int64_t n);
    /* Each rank has filled the columns [from, from + n) of x[rows, ld]; the ranges differ and are
     * all columns together. Fills in the others'. */
    int (*gather)(struct comm *c, struct dev *d, float *x, int rows, int64_t ld, int64_t from,
                  int64_t n);
    /* x[n] = 0, this rank alone. */
    int (*clear)(struct comm *c, struct dev *d, float *x, int64_t n);
    /* p becomes what rank 0 has there. */
    int (*bcast)(struct comm *c, struct dev *d, void *p, size_t bytes);
    /* Host side, not recordable: E_DEVICE where `word` is not rank 0's. */
    int (*same)(struct comm *c, uint64_t word);
    void (*poison)(struct comm *c); /* any thread */
};

struct comm {
    const struct comm_ops *ops;
    int rank, world;
};

/* `world` ranks (2 … LIM_RANKS) of this process: out[i] is rank i's. Each is used by one thread. */
int comm_shm_open(struct comm **out, int world, struct err *e);
void comm_shm_close(struct comm *const *ranks); /* all of them; nobody may be inside a call */

static inline int comm_world(const struct comm *c)
{
    return c ? c->world : 1;
}

static inline int comm_rank(const struct comm *c)
{
    return c ? c->rank : 0;
}

static inline int comm_sum(struct comm *c, struct dev *d, float *x, int64_t n)
{
    return c ? c->ops->sum(c, d, x, n) : OK;
}

static inline int comm_gather(struct comm *c, struct dev *d, float *x, int rows, int64_t ld,
                              int64_t from, int64_t n)
{
    return c ? c->ops->gather(c, d, x, rows, ld, from, n) : OK;
}

static inline int comm_bcast(struct comm *c, struct dev *d, void *p, size_t bytes)
{
    return c ? c->ops->bcast(c, d, p, bytes) : OK;
}

static inline void comm_poison(struct comm *c)
{
    if (c)
        c->ops->poison(c);
}

#endif
