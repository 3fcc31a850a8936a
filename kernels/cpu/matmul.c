/* Matrix products: dense, and per-head blocks of one weight (MLA absorption). */
#include "kernels/cpu/prod.h"

#include <math.h>
#include <string.h>

#include "engine/base/check.h"

int cpu_do_matmul(struct dev *d, const struct op_matmul *a)
{
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

struct job {
    struct dev *d;
    const struct op_matmul_heads *a;
};

/* One head of the transposed form: out[j] = chain of fused multiply-adds over i, ascending. */
static void heads_t_item(void *ud, int h)
{
    const struct job *job = ud;
    const struct op_matmul_heads *a = job->a;
    int k = (int)a->w.k;
    float *w = cpu_panel(job->d);
    for (int r = 0; r < a->rows; r++)
        memset(a->out + r * a->ldo + h * a->out_stride, 0, (size_t)k * sizeof(float));
    for (int i = 0; i < a->n_rows; i++) {
        cpu_weight_row(job->d->isa, w, &a->w, h * a->w_head_stride + a->w_row0 + i);
        for (int r = 0; r < a->rows; r++) {
            float x = a->x[r * a->ldx + h * a->x_stride + i];
            float *o = a->out + r * a->ldo + h * a->out_stride;
            for (int c = 0; c < k; c++)
                o[c] = fmaf(x, w[c], o[c]);
        }
    }
}

int cpu_do_matmul_heads(struct dev *d, const struct op_matmul_heads *a)
{
    CHECK(a->w.k <= CPU_PANEL_FLOATS);
    if (a->transposed) {
        struct job j = {d, a};
        cpu_parallel(d, a->heads, heads_t_item, &j);
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
