/* Attention inner loops of the CPU device, for the backends in attention/ref. */
#ifndef SPECD_CPU_ATTN_CORE_H
#define SPECD_CPU_ATTN_CORE_H

#include <stdbool.h>
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
    /* vectors of KV head g of pool row p: p * ld + g * head, in elements of the type F32, BF16 or
     * F8E4M3; the last are worth element * scale, rounded to fp32 */
    const void *k, *v;
    enum dtype dt;
    float k_scale, v_scale;
    int64_t k_ld, v_ld, k_head, v_head;
    const int32_t *slot, *first, *last; /* [R] */
    const int32_t *table;               /* [S][pages_max]; NULL: a position is its pool row */
    int pages_max, page;
    float scale, soft_cap;     /* soft_cap 0: none */
    const float *sinks;        /* [n_head] or NULL */
    const uint64_t *ancestors; /* [R], tree masks only, else NULL */
    const int32_t *row0;       /* [R], with ancestors */
};

/* Rows [r0, r1). Row r sees the logical positions [first, end).
 *
 * Without ancestors a logical position is a position of the cache and end = last. With them, cache
 * positions before row0 are logical positions, then the d-th set bit of `ancestors` (bit j: cache
 * position row0 + j < last, j < 64; ascending) is logical position row0 + d: a path of a tree looks
 * as if it had been written without the rows beside it. A row that brings last <= row0 sees [first,
 * last) of the cache.
 *
 * Scores are cpu_dot * scale (then the cap); values are added in ascending logical position by
 * fused multiply-adds, the softmax sum in 16 double lanes of the logical position: bits depend on
 * the visible keys alone. A row that sees nothing gives 0 and -inf. What only other rows see is
 * never part of a row's sums; what no row sees is never read. */
void cpu_attn(struct dev *d, const struct cpu_attn *a, int r0, int r1);

/* The logical end of row r; `last` when it sees nothing. */
int cpu_attn_end(const struct cpu_attn *a, int r);
/* Whether row r sees position p of the cache. */
bool cpu_attn_sees(const struct cpu_attn *a, int r, int p);

/* The largest `last` that a row may have (scores of a row live in thread scratch). */
int cpu_attn_keys_max(void);

#endif
