/* Operations that stand for a sequence of others, so that a device can do them in fewer passes.
 * Here they are that sequence: a result has its bits. */
#include "kernels/cpu/prod.h"

#include "engine/base/check.h"

/* The rows that products read: x itself, or its normalised rows in y. */
static const float *normed(struct dev *d, const float *x, int64_t *ldx, const struct weight *norm,
                           float eps, float *y, int rows)
{
    if (!norm->p)
        return x;
    struct op_rmsnorm a = {.out = y,
                           .x = x,
                           .w = *norm,
                           .rows = rows,
                           .dim = (int)norm->k,
                           .ldx = *ldx,
                           .ldo = norm->k,
                           .n_group = 1,
                           .eps = eps};
    cpu_do_rmsnorm(d, &a);
    *ldx = norm->k;
    return y;
}

int cpu_do_proj(struct dev *d, const struct op_proj *a)
{
    CHECK(a->n >= 1 && a->n <= 3);
    struct cpu_prod p[3];
    int64_t ldx = a->ldx;
    const float *y = normed(d, a->x, &ldx, &a->norm, a->eps, a->y, a->rows);
    for (int i = 0; i < a->n; i++)
        p[i] = (struct cpu_prod){.w = &a->w[i],
                                 .n = (int)a->w[i].n,
                                 .rows = a->rows,
                                 .x = y,
                                 .ldx = ldx,
                                 .out = a->out[i],
                                 .ldo = a->ldo[i],
                                 .bias = &a->bias[i]};
    cpu_prods(d, p, a->n);
    return OK;
}

int cpu_do_mlp(struct dev *d, const struct op_mlp *a)
{
    int inter = (int)a->gate.n;
    int64_t ldx = a->ldx;
    const float *y = normed(d, a->x, &ldx, &a->norm, a->eps, a->y, a->rows);
    struct cpu_prod in = {.w = &a->gate,
                          .n = inter,
                          .rows = a->rows,
                          .x = y,
                          .ldx = ldx,
                          .out = a->g,
                          .ldo = inter,
                          .bias = &a->gate_b};
    struct cpu_prod p[2] = {in, in};
    p[1].w = &a->up;
    p[1].out = a->u;
    p[1].bias = &a->up_b;
    cpu_prods(d, p, 2);
    struct op_silu_mul m = {a->g, a->g, a->u, a->rows, inter, inter, inter, inter};
    cpu_do_silu_mul(d, &m);
    struct cpu_prod down = {.w = &a->down,
                            .n = (int)a->down.n,
                            .rows = a->rows,
                            .x = a->g,
                            .ldx = inter,
                            .out = a->out,
                            .ldo = a->ldo,
                            .bias = &a->down_b,
                            .accumulate = true};
    cpu_prods(d, &down, 1);
    return OK;
}
