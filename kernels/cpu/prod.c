/* Product driver: splits lists of products into blocks of columns for the pool. */
#include "kernels/cpu/prod.h"

#include "engine/base/check.h"

struct job {
    struct dev *d;
    const struct cpu_prod *p;
    int n;
};

static void prod_item(void *ud, int i)
{
    const struct job *j = ud;
    const struct cpu_prod *p = j->p;
    while (i >= p->n) {
        i -= p->n;
        p++;
    }
    const struct cpu_isa *isa = j->d->isa;
    float *w = cpu_panel(j->d);
    int k = (int)p->w->k;
    cpu_weight_row(isa, w, p->w, p->row0 + i);
    float bias = p->bias && p->bias->p ? dtype_load(p->bias->p, p->bias->dt, i) : 0.0f;
    for (int r = 0; r < p->rows; r++) {
        const float *x = p->x + (p->idx ? p->idx[r] : r) * p->ldx;
        float *o = p->out + r * p->ldo + i;
        *o = (p->accumulate ? *o : 0.0f) + isa->dot(x, w, k) + bias;
    }
}

void cpu_prods(struct dev *d, const struct cpu_prod *p, int n)
{
    struct job j = {d, p, n};
    int cols = 0;
    for (int i = 0; i < n; i++) {
        CHECK(p[i].w->k <= CPU_PANEL_FLOATS);
        cols += p[i].n;
    }
    cpu_parallel(d, cols, prod_item, &j);
}
