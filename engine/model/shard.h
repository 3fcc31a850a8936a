/* This rank's part of a weight. Rows are a range of those in the map and cost nothing. Columns
 * would need a distance between rows in every product of every device, so they are copied, packed:
 * one copy of the o and down projections, divided over the ranks. Start-up only. */
#ifndef SPECD_MODEL_SHARD_H
#define SPECD_MODEL_SHARD_H

#include "engine/comm/comm.h"
#include "engine/model/safetensors.h"

struct dummy;

struct shard { /* one copy: `rows` pieces of `bytes`, `stride` apart in the source */
    const char *src;
    char *dst;
    size_t rows, bytes, stride;
    size_t tensor; /* number of the tensor it is of */
    bool made;
};

struct shards {
    struct dummy *mem; /* addresses at once, memory when they are written */
    struct shard *v;
    size_t n, cap;
};

/* Narrow *w. A size that ranks, or ranks and 128-blocks of fp8 scales, do not divide is refused by
 * the tensor's name. Rows of a vector are its elements. */
int shard_rows(struct weight *w, const struct comm *c, const char *name, struct err *e);
int shard_cols(struct shards *s, struct weight *w, const struct comm *c, size_t tensor,
               const char *name, struct err *e);
/* Makes the copies of the tensors in use, which have their values. */
void shard_fill(struct shards *s, const struct tensor *tensors);
size_t shard_bytes(const struct shards *s, const struct tensor *tensors); /* of those */
void shard_done(struct shards *s);

#endif
