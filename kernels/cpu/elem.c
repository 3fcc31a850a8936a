/* Element-wise and row-wise operations: embedding, norms, rotary embedding, cache writes, gated
 * activation, add, gather. Rows are independent, so any split over threads gives the same bits. */
#include "kernels/cpu/internal.h"

#include <math.h>
#include <string.h>

#include "engine/base/check.h"

struct job {
    struct dev *d;
    const void *a;
};

static void embed_row(void *ud, int r)
{
    const struct job *j = ud;
    const struct op_embed *a = j->a;
    int64_t k = a->e.k;
    float *out = a->out + r * (a->ldo ? a->ldo : k);
    int32_t t = a->tok[r];
    if (t < 0 || t >= a->e.n)
        memset(out, 0, (size_t)k * sizeof(float));
    else
        cpu_weight_row(j->d->isa, out, &a->e, t);
}

int cpu_do_embed(struct dev *d, const struct op_embed *a)
{
    struct job j = {d, a};
    cpu_parallel_if(d, a->rows * a->e.k / 4, a->rows, embed_row, &j);
    return OK;
}

static void rmsnorm_row(void *ud, int r)
{
    const struct job *j = ud;
    const struct op_rmsnorm *a = j->a;
    const struct cpu_isa *isa = j->d->isa;
    const float *w = a->w.p;
    if (a->w.dt != DT_F32) {
        float *t = cpu_panel(j->d);
        cpu_weight_vec(isa, t, &a->w, 0, a->dim);
        w = t;
    }
    for (int g = 0; g < a->n_group; g++) {
        const float *x = a->x + r * a->ldx + g * a->group_stride;
        float *out = a->out + r * a->ldo + g * a->group_stride_out;
        double mean = isa->sumsq(x, a->dim) / a->dim;
        isa->rms_scale(out, x, w, a->dim, (float)(1.0 / sqrt(mean + (double)a->eps)));
    }
}

int cpu_do_rmsnorm(struct dev *d, const struct op_rmsnorm *a)
{
    CHECK(a->dim <= CPU_PANEL_FLOATS && a->n_group >= 1);
    struct job j = {d, a};
    cpu_parallel_if(d, (int64_t)a->rows * a->dim * a->n_group, a->rows, rmsnorm_row, &j);
    return OK;
}

static void rope_row(void *ud, int r)
{
    const struct job *j = ud;
    const struct op_rope *a = j->a;
    int half = a->dim / 2;
    int32_t pos = a->pos[r];
    CHECK(pos >= 0 && pos < a->pos_max);
    const float *c = a->cos + (int64_t)pos * half, *s = a->sin + (int64_t)pos * half;
    for (int h = 0; h < a->heads; h++) {
        float *x = a->x + r * a->ldx + h * a->stride;
        float *y = a->interleaved ? x + 1 : x + half;
        int step = a->interleaved ? 2 : 1;
        for (int i = 0; i < half; i++) {
            float p = x[i * step], q = y[i * step];
            x[i * step] = p * c[i] - q * s[i];
            y[i * step] = q * c[i] + p * s[i];
        }
    }
}

int cpu_do_rope(struct dev *d, const struct op_rope *a)
{
    struct job j = {d, a};
    cpu_parallel_if(d, (int64_t)a->rows * a->heads * a->dim, a->rows, rope_row, &j);
    return OK;
}

static void kv_write_row(void *ud, int r)
{
    const struct job *j = ud;
    const struct op_kv_write *a = j->a;
    const float *x = a->x + r * a->ldx;
    int64_t to = (int64_t)a->wslot[r] * a->width;
    if (a->wslot[r] < 0)
        return;
    if (a->dt == DT_F32) {
        memcpy((float *)a->cache + to, x, (size_t)a->width * sizeof(float));
        return;
    }
    float inv = a->dt == DT_F8E4M3 ? 1 / a->scale : 1;
    for (int i = 0; i < a->width; i++)
        dtype_store(a->cache, a->dt, to + i, x[i] * inv);
}

int cpu_do_kv_write(struct dev *d, const struct op_kv_write *a)
{
    CHECK(a->dt != DT_F8E4M3 || a->scale > 0);
    struct job j = {d, a};
    for (int r = 0; r < a->rows; r++) /* copies only, and two rows must not race for one slot */
        kv_write_row(&j, r);
    return OK;
}

static void silu_mul_row(void *ud, int r)
{
    const struct job *j = ud;
    const struct op_silu_mul *a = j->a;
    j->d->isa->silu_mul(a->out + r * a->ldo, a->gate + r * a->ldg, a->up + r * a->ldu, a->dim);
}

int cpu_do_silu_mul(struct dev *d, const struct op_silu_mul *a)
{
    struct job j = {d, a};
    cpu_parallel_if(d, (int64_t)a->rows * a->dim * 2, a->rows, silu_mul_row, &j);
    return OK;
}

static void add_row(void *ud, int r)
{
    const struct job *j = ud;
    const struct op_add *a = j->a;
    float *x = a->x + (int64_t)r * a->dim;
    const float *y = a->y + (int64_t)r * a->dim;
    for (int i = 0; i < a->dim; i++)
        x[i] += y[i];
}

int cpu_do_add(struct dev *d, const struct op_add *a)
{
    struct job j = {d, a};
    cpu_parallel_if(d, (int64_t)a->rows * a->dim / 4, a->rows, add_row, &j);
    return OK;
}

static void gather_row(void *ud, int r)
{
    const struct job *j = ud;
    const struct op_gather *a = j->a;
    size_t bytes = (size_t)a->dim * sizeof(float);
    int from = a->idx ? a->idx[r] : r;
    float *out = a->out + r * (a->ldo ? a->ldo : a->dim);
    if (from < 0)
        memset(out, 0, bytes);
    else
        memcpy(out, a->x + from * (a->ldx ? a->ldx : a->dim), bytes);
}

int cpu_do_gather(struct dev *d, const struct op_gather *a)
{
    struct job j = {d, a};
    cpu_parallel_if(d, (int64_t)a->rows * a->dim / 4, a->rows, gather_row, &j);
    return OK;
}
