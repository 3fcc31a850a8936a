/* Attention inner loops of the CPU device, for the backends in attention/ref. */
#ifndef SPECD_CPU_ATTN_CORE_H
#define SPECD_CPU_ATTN_CORE_H

#include <stdint.h>

#include "kernels/device.h"

struct cpu_attn {
    int n_head, n_kv, dk, dv;
    const float *q; /* row r, head h at r * ldq + h * dk */
    int64_t ldq;
    float *out; /* r * ldo + h * dv */
    int64_t ldo;
    float *lse; /* r * ld_lse + h, natural logarithm over the keys (sinks left out); or NULL */
    int64_t ld_lse;
    /* vectors of KV head g of pool row p: p * ld + g * head */
    const float *k, *v;
    int64_t k_ld, v_ld, k_head, v_head;
    const int32_t *slot, *first, *last; /* [R] */
    const int32_t *table;               /* [S][pages_max]; NULL: a position is its pool row */
    int pages_max, page;
    float scale, soft_cap;     /* soft_cap 0: none */
    const float *sinks;        /* [n_head] or NULL */
    const uint64_t *ancestors; /* [R], tree masks only, else NULL */
    const int32_t *row0;       /* [R] */
};

/* Rows [r0, r1). Row r sees positions [first, last); with ancestors, a position row0 + j only if
 * bit j is set (j < 64). Scores are cpu_dot * scale (then the cap); values are added in ascending
 * key position by fused multiply-adds, the softmax sum in 16 double lanes of the position: bits
 * depend on the visible keys alone. A row that sees nothing gives 0 and -inf. */
void cpu_attn(struct dev *d, const struct cpu_attn *a, int r0, int r1);

/* The largest `last` that a row may have (scores of a row live in thread scratch). */
int cpu_attn_keys_max(void);

#endif
