/* The product kernel: out[r, n] = dot(x[r], w[row0 + n]) for lists of independent products. One
 * kernel serves every role and every number of rows, so a row's bits depend on its x and w alone.
 */
#ifndef SPECD_CPU_PROD_H
#define SPECD_CPU_PROD_H

#include "kernels/cpu/internal.h"

struct cpu_prod {
    const struct weight *w;
    int64_t row0; /* first weight row */
    int n;        /* weight rows, columns of out */
    int rows;
    const float *x; /* row r at idx ? idx[r] * ldx : r * ldx */
    const int32_t *idx;
    int64_t ldx;
    float *out;
    int64_t ldo;
    const struct weight *bias; /* NULL: none; element n of it belongs to column n */
    bool accumulate;
};

/* Rows of one product that are worked on in one pass. */
struct cpu_unit {
    const struct cpu_prod *p;
    int row, rows;
    float *packed; /* NULL: one row, read where it is */
    bool shared;   /* packed by the unit before */
};

/* Runs n products; their outputs must not overlap each other or any input. */
void cpu_prods(struct dev *d, const struct cpu_prod *p, int n);

#endif
