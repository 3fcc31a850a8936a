/* Generated weights: what stands in for a checkpoint's data when only the shape of a model matters.
 *
 * Every tensor is uniform between two bounds, seeded by its name: the same on every machine and for
 * any number of threads. The bounds keep a pre-norm decoder in the range of a trained one:
 *   products       deviation 1.2 / sqrt(fan in): inputs are normalised, so results are near 1;
 *   o, down        that over sqrt(2 layers): all residual contributions together add about 1;
 *   embedding      deviation 1, independent rows: a row is a direction of its own;
 *   norms 1, biases 0, the experts' selection bias 0.
 * Routing stays near balanced because router rows are products like the others: independent, of
 * equal length up to 1 / sqrt(hidden), and met by normalised rows that the embedding, independent
 * per token, dominates; so no expert is nearer to all rows than another. Addresses are reserved
 * at once and cost nothing until the values are made. (A tied head makes logits of deviation
 * sqrt(hidden).) */
#ifndef SPECD_MODEL_DUMMY_H
#define SPECD_MODEL_DUMMY_H

#include "engine/model/safetensors.h"

struct dummy;

/* Contributions to the residual of `n_layer` layers. */
struct dummy *dummy_new(int n_layer);
void dummy_free(struct dummy *d);
/* 64-byte aligned addresses without memory behind them yet; E_NOMEM when even those are refused. */
int dummy_reserve(struct dummy *d, void **out, size_t bytes, struct err *e);
/* Sets lo and hi of a tensor by name, type and rank; fan_in is its last size. A block scale of an
 * fp8 product takes the name and fan in of the product. */
void dummy_bounds(const struct dummy *d, struct tensor *x, const char *product, int64_t fan_in);
/* Makes the values of all tensors in use that have none yet; small: of vectors only. */
void dummy_fill(const struct tensor *v, size_t n, bool small, int threads);
/* Bytes [from, from + n) of the values of x to dst, whether or not they have been made; from is a
 * multiple of 64. Any thread. */
void dummy_make(const struct tensor *x, size_t from, size_t n, void *dst);

#endif
