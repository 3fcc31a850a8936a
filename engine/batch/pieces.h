/* Device arrays of an object as one list, so that sizes, the memory plan and the release cannot
 * disagree. Whoever lists them owns them; worker thread. */
#ifndef SPECD_PIECES_H
#define SPECD_PIECES_H

#include "engine/base/err.h"
#include "kernels/device.h"
#include "kernels/ops.h"

struct piece {
    void **p;
    size_t n, size; /* elements, bytes of one */
    enum dev_mem kind;
};
/* The piece of array `ptr` of `count` elements. */
#define PIECE(ptr, count, mem) ((struct piece){(void **)&(ptr), (count), sizeof *(ptr), (mem)})

/* The arrays of `rows` rows with `n_group` KV groups, appended to out; returns how many. */
int pieces_rows(struct row_arrays *r, size_t rows, int n_group, struct piece *out);
size_t pieces_bytes(const struct piece *p, int n);
/* On failure all that was taken is given back. Arrays of no elements stay NULL. */
int pieces_alloc(const struct piece *p, int n, const struct dev_ops *ops, struct dev *d,
                 struct err *e);
void pieces_free(const struct piece *p, int n, const struct dev_ops *ops, struct dev *d);

#endif
