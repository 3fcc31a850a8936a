/* What sampling and drafting share about a row of logits: log-sum-exp and the best tokens. NaN
 * counts as -inf everywhere. */
#ifndef SPECD_CPU_LOGITS_H
#define SPECD_CPU_LOGITS_H

#include "kernels/cpu/internal.h"

/* Log softmax parts of a row: largest value and log of the sum. */
struct cpu_lse {
    float max;
    double log_sum;
};

/* e[i] = exp(z[i] - max), z without NaN; returns the sum. `e` has room for cpu_pad(n). */
double cpu_exp_row(const struct cpu_isa *isa, float *e, const float *z, int n, float max);
/* `e` is scratch for cpu_pad(n) floats. */
struct cpu_lse cpu_row_lse(const struct cpu_isa *isa, const float *l, int n, float *e);

static inline double cpu_log_prob(const struct cpu_lse *e, float l)
{
    return (double)l - (double)e->max - e->log_sum;
}

/* The min(k, n) best in descending order, ties by the lower id; returns how many. One pass, blocks
 * without a candidate are skipped. */
int cpu_top_k(const struct cpu_isa *isa, const float *l, int n, int k, float *val, int32_t *id);

#endif
