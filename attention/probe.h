/* A chosen backend, tried before it is believed: one launch on a small random case of its role,
 * heads, dims, mask and page size, against the CPU reference on the same values. */
#ifndef SPECD_ATTN_PROBE_H
#define SPECD_ATTN_PROBE_H

#include "attention/attn.h"

/* Largest difference of an output (values lie within 1) that is rounding: bf16 probabilities are
 * off by 2^-9 of a value, sums of them by less. */
#define ATTN_PROBE_TOL 2e-2f

/* OK, or E_DEVICE with the numbers that differ. `need` has a page size. *worst (may be NULL): the
 * largest difference. What no reference can be had for (a cache that is neither bf16 nor fp32, the
 * decompressed form, whose weights are not there yet) is OK without a launch, *worst negative. */
int attn_probe(const struct dev_ops *ops, struct dev *d, const struct attn_backend *b,
               const struct attn_need *need, struct dev *cpu, float *worst, struct err *e);

#endif
