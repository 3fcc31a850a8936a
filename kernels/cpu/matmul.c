/* Matrix products: dense, and per-head blocks of one weight (MLA absorption). */
#include "kernels/cpu/prod.h"

#include <string.h>

#include "engine/base/check.h"

int cpu_do_matmul(struct dev *d, const struct op_matmul *a)
{
    CHECK(!a->narrow);
    struct cpu_prod p = {.w = &a->w,
                         .n = (int)a->w.n,
                         .rows = a->rows,
                         .x = a->x,
                         .ldx = a->ldx,
                         .out = a->out,
                         .ldo = a->ldo,
                         .bias = &a->bias,
                         .accumulate = a->accumulate};
    cpu_prods(d, &p, 1);
    return OK;
}

/* ---- transposed blocks ---- */

enum {
    T_ROWS = 48,  /* rows of an item: enough to pay for the conversion of the head's block */
    T_LINES = 12, /* rows whose sums are in the first-level cache at once */
    T_WIDTH = 64, /* weight rows of a block, as fp32 in the panel */
};

struct job {
    struct dev *d;
    const struct op_matmul_heads *a;
    int chunks; /* of rows */
};

/* Adds x[r][i0, i0 + n) times the converted rows v to the sums, rows [r0, r1). */
static void heads_t_block(const struct job *j, int h, float *sums, const float *const *v, int r0,
                          int r1, int i0, int n)
{
    const struct op_matmul_heads *a = j->a;
    j->d->isa->pv(sums, a->x + r0 * a->ldx + h * a->x_stride + i0, a->ldx, r1 - r0, v, n,
                  (int)a->w.k);
}

/* One head and a chunk of rows: out[j] = chain of fused multiply-adds over i, ascending. The sums
 * of all rows live in the panel between blocks of weight rows. */
static void heads_t_item(void *ud, int item)
{
    const struct job *j = ud;
    const struct op_matmul_heads *a = j->a;
    int h = item / j->chunks, r0 = item % j->chunks * T_ROWS, k = (int)a->w.k;
    int r1 = a->rows - r0 < T_ROWS ? a->rows : r0 + T_ROWS;
    float *sums = cpu_panel(j->d), *w = sums + (int64_t)T_ROWS * k;
    const float *v[T_WIDTH];
    memset(sums, 0, (size_t)(r1 - r0) * (size_t)k * sizeof *sums);
    for (int i0 = 0; i0 < a->n_rows; i0 += T_WIDTH) {
        int n = a->n_rows - i0 < T_WIDTH ? a->n_rows - i0 : T_WIDTH;
        for (int i = 0; i < n; i++) {
            cpu_weight_row(j->d->isa, w + (int64_t)i * k, &a->w,
                           h * a->w_head_stride + a->w_row0 + i0 + i);
            v[i] = w + (int64_t)i * k;
        }
        for (int r = r0; r < r1; r += T_LINES)
            heads_t_block(j, h, sums + (int64_t)(r - r0) * k, v, r,
                          r1 - r < T_LINES ? r1 : r + T_LINES, i0, n);
    }
    for (int r = r0; r < r1; r++)
        memcpy(a->out + r * a->ldo + h * a->out_stride, sums + (int64_t)(r - r0) * k,
               (size_t)k * sizeof *sums);
}

int cpu_do_matmul_heads(struct dev *d, const struct op_matmul_heads *a)
{
    if (a->transposed) {
        CHECK((T_ROWS + T_WIDTH) * a->w.k <= CPU_PANEL_FLOATS);
        struct job j = {d, a, (a->rows + T_ROWS - 1) / T_ROWS};
        cpu_parallel_if(d, (int64_t)a->rows * a->heads * a->n_rows * a->w.k / 8,
                        a->heads * j.chunks, heads_t_item, &j);
        return OK;
    }
    CHECK(a->heads <= CPU_PRODS_MAX);
    for (int h = 0; h < a->heads; h++)
        d->prods[h] = (struct cpu_prod){.w = &a->w,
                                        .row0 = h * a->w_head_stride + a->w_row0,
                                        .n = a->n_rows,
                                        .rows = a->rows,
                                        .x = a->x + h * a->x_stride,
                                        .ldx = a->ldx,
                                        .out = a->out + h * a->out_stride,
                                        .ldo = a->ldo};
    cpu_prods(d, d->prods, a->heads);
    return OK;
}
