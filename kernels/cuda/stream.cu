/* Weight-streaming products: the arguments, and the bf16 forms (stream.cuh has the kernel,
 * stream_fp8.cu the fp8 forms). */
#include "kernels/cuda/stream.cuh"

extern "C" {
#include "engine/base/check.h"
}

void stream_add(struct stream_args *a, const struct weight *w, const struct weight *bias,
                float *out, int64_t ldo)
{
    struct stream_part *p = &a->part[a->n_part++];
    p->w = (const char *)w->p;
    p->scale = w->scale;
    p->scale_dt = w->scale_dt;
    p->out = out;
    p->bias = bias->p;
    p->bias_dt = bias->dt;
    p->n = (int)w->n;
    p->tile0 = a->tiles;
    p->ldo = ldo;
    a->tiles += (int)cuda_div_up(w->n, 16);
    a->k = (int)w->k;
}

bool stream_fits(const struct weight *w, const float *x, int64_t ldx)
{
    int64_t chunk = w->dt == DT_F8E4M3 ? 64 : 32;
    return (w->dt == DT_BF16 || w->dt == DT_F8E4M3) && w->k % chunk == 0 && ldx % 4 == 0 &&
           (((uintptr_t)x | (uintptr_t)w->p) & 15) == 0;
}

/* fp8: a head lies in one block of scales. */
bool stream_places(const struct stream_args *a, const struct op_qkv_place *p, enum dtype dt)
{
    return a->n_part == 3 && p->hd % 16 == 0 && a->tiles < 1 << 16 &&
           (dt == DT_BF16 || 128 % p->hd == 0);
}

int stream_run(struct dev *d, const struct stream_args *a, enum dtype dt)
{
    return dt == DT_F8E4M3 ? stream_fp8(d, a) : stream_bf16(d, a);
}

/* Measured on an H200: many warps with whole lines each and a shallow ring beat few warps with a
 * deep one, and two tiles at a time beat one or four. */
int stream_bf16(struct dev *d, const struct stream_args *a)
{
    if (a->placed)
        return a->narrow ? stream_launch<2, 2, 2, 2, 16, 1, X_BF16, false, true>(d, a)
               : a->norm ? stream_launch<2, 1, 2, 2, 16, 1, X_NORM, false, true>(d, a)
                         : stream_launch<2, 1, 2, 2, 16, 1, X_F32, false, true>(d, a);
    if (a->narrow)
        return stream_launch<2, 2, 2, 2, 16, 1, X_BF16, false>(d, a);
    CHECK(a->rows <= 8);
    if (!a->norm && !a->silu && a->tiles <= d->n_sm) /* a tile a block: a deeper ring */
        return stream_launch<1, 1, 2, 4, 16, 1, X_F32, false>(d, a);
    if (a->norm && !a->silu && a->k <= 2048 && a->tiles > 2 * d->n_sm && a->tiles <= 3 * d->n_sm)
        return stream_launch<3, 1, 2, 2, 16, 1, X_NORM, false>(d, a); /* one pass */
    return a->norm ? stream_launch<2, 1, 2, 2, 16, 1, X_NORM, false>(d, a)
                   : stream_launch<2, 1, 2, 2, 16, 1, X_F32, false>(d, a);
}
