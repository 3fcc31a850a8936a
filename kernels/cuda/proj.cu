/* Several products of the same rows as one operation. */
#include "kernels/cuda/common.cuh"

/* The rows that products read: x itself, or its normalised rows in y. */
static int normed(struct dev *d, const float **x, int64_t *ldx, const struct weight *norm,
                  float eps, float *y, int rows)
{
    if (!norm->p)
        return OK;
    struct op_rmsnorm a = {};
    a.out = y;
    a.x = *x;
    a.w = *norm;
    a.rows = rows;
    a.dim = (int)norm->k;
    a.ldx = *ldx;
    a.ldo = norm->k;
    a.n_group = 1;
    a.eps = eps;
    *x = y;
    *ldx = norm->k;
    return cuda_do_rmsnorm(d, &a);
}

extern "C" int cuda_do_proj(struct dev *d, const struct op_proj *a)
{
    struct op_matmul m = {};
    m.x = a->x;
    m.ldx = a->ldx;
    m.rows = a->rows;
    TRY(normed(d, &m.x, &m.ldx, &a->norm, a->eps, a->y, a->rows));
    for (int i = 0; i < a->n; i++) {
        m.w = a->w[i];
        m.bias = a->bias[i];
        m.out = a->out[i];
        m.ldo = a->ldo[i];
        TRY(cuda_do_matmul(d, &m));
    }
    return OK;
}

extern "C" int cuda_do_mlp(struct dev *d, const struct op_mlp *a)
{
    int64_t inter = a->gate.n;
    struct op_matmul m = {};
    m.x = a->x;
    m.ldx = a->ldx;
    m.rows = a->rows;
    TRY(normed(d, &m.x, &m.ldx, &a->norm, a->eps, a->y, a->rows));
    m.ldo = inter;
    m.w = a->gate;
    m.bias = a->gate_b;
    m.out = a->g;
    TRY(cuda_do_matmul(d, &m));
    m.w = a->up;
    m.bias = a->up_b;
    m.out = a->u;
    TRY(cuda_do_matmul(d, &m));
    struct op_silu_mul s = {a->g, a->g, a->u, a->rows, (int)inter, inter, inter, inter};
    TRY(cuda_do_silu_mul(d, &s));
    m.x = a->g;
    m.ldx = inter;
    m.w = a->down;
    m.bias = a->down_b;
    m.out = a->out;
    m.ldo = a->ldo;
    m.accumulate = true;
    return cuda_do_matmul(d, &m);
}
