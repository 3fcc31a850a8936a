/* Products of 9 to 112 rows on sm_90a (wide.cu). Weights have device addresses, those of a launch
 * one type. */
#ifndef SPECD_CUDA_WIDE_H
#define SPECD_CUDA_WIDE_H

#include "kernels/ops.h"

enum { WIDE_PARTS = 3, WIDE_ROWS_MIN = 9, WIDE_ROWS_MAX = 112, WIDE_FP8_ROWS_MAX = 64 };

struct wide {      /* up to three weights of the same rows */
    const void *x; /* bf16 [rows, k] dense, 16-byte aligned; for fp8 in pairs (put_bf16) */
    int rows, n;
    struct weight w[WIDE_PARTS], bias[WIDE_PARTS];
    void *out[WIDE_PARTS];
    int64_t ldo[WIDE_PARTS];
    bool accumulate;
    bool silu;                        /* w[0] gate, w[1] up: out[0] = bf16(silu(gate) * up) */
    bool pairs;                       /* and in pairs */
    const struct op_qkv_place *place; /* w are q, k and v, which go to their places; NULL: to out */
};

/* The kernel takes n weights in one launch with so many rows, and is the fastest that does. */
bool wide_fits(const struct dev *d, const struct weight *w, int n, int rows);
/* Such a launch can place q, k and v. Norms of heads have device addresses. */
bool wide_places(const struct dev *d, const struct wide *p, const struct op_qkv_place *place);
int wide_run(struct dev *d, const struct wide *p);

#endif
