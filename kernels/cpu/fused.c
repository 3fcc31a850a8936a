/* Operations that stand for a sequence of others, so that a device can do them in fewer passes.
 * Here they are that sequence: a result has its bits. */
#include "kernels/cpu/prod.h"

#include <string.h>

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

/* One of q and k: norm of the heads, then the rotation. */
static void turn_heads(struct dev *d, const struct op_qkv_place *a, float *x, int64_t ldx,
                       int heads, const struct weight *norm)
{
    struct op_rmsnorm n = {.out = x,
                           .x = x,
                           .w = *norm,
                           .rows = a->rows,
                           .dim = a->hd,
                           .ldx = ldx,
                           .ldo = ldx,
                           .n_group = heads,
                           .group_stride = a->hd,
                           .group_stride_out = a->hd,
                           .eps = a->eps};
    struct op_rope r = {.x = x,
                        .pos = a->pos,
                        .cos = a->cos,
                        .sin = a->sin,
                        .rows = a->rows,
                        .heads = heads,
                        .dim = a->hd,
                        .pos_max = a->pos_max,
                        .ldx = ldx,
                        .stride = a->hd};
    if (norm->p)
        cpu_do_rmsnorm(d, &n);
    cpu_do_rope(d, &r);
}

int cpu_do_qkv_place(struct dev *d, const struct op_qkv_place *a)
{
    struct op_kv_write w = {.cache = a->k_cache,
                            .dt = a->dt,
                            .x = a->k,
                            .wslot = a->wslot,
                            .rows = a->rows,
                            .width = a->n_kv * a->hd,
                            .ldx = a->ldk,
                            .scale = a->k_scale};
    turn_heads(d, a, a->q, a->ldq, a->n_head, &a->q_norm);
    turn_heads(d, a, a->k, a->ldk, a->n_kv, &a->k_norm);
    cpu_do_kv_write(d, &w);
    w.cache = a->v_cache;
    w.x = a->v;
    w.ldx = a->ldv;
    w.scale = a->v_scale;
    return cpu_do_kv_write(d, &w);
}

int cpu_do_qkv(struct dev *d, const struct op_qkv *a)
{
    CHECK(a->proj.n == 3);
    TRY(cpu_do_proj(d, &a->proj));
    return cpu_do_qkv_place(d, &a->place);
}

int cpu_do_mla_place(struct dev *d, const struct op_mla_place *a)
{
    struct op_rmsnorm n = {.out = a->kv,
                           .x = a->kv,
                           .w = a->norm,
                           .rows = a->rows,
                           .dim = a->lora,
                           .ldx = a->ldkv,
                           .ldo = a->ldkv,
                           .n_group = 1,
                           .eps = a->eps};
    struct op_rope r = {.x = a->kv + a->lora,
                        .pos = a->pos,
                        .cos = a->cos,
                        .sin = a->sin,
                        .rows = a->rows,
                        .heads = 1,
                        .dim = a->rope,
                        .pos_max = a->pos_max,
                        .ldx = a->ldkv,
                        .stride = a->rope,
                        .interleaved = a->interleaved};
    struct op_kv_write w = {.cache = a->cache,
                            .dt = a->dt,
                            .x = a->kv,
                            .wslot = a->wslot,
                            .rows = a->rows,
                            .width = a->lora + a->rope,
                            .ldx = a->ldkv,
                            .scale = a->scale};
    cpu_do_rmsnorm(d, &n);
    cpu_do_rope(d, &r);
    cpu_do_kv_write(d, &w);
    for (int i = 0; a->q_out != a->q && i < a->rows; i++)
        for (int h = 0; h < a->heads; h++)
            memcpy(a->q_out + i * a->ldo + h * a->out_stride, a->q + i * a->ldq + h * a->q_stride,
                   (size_t)a->rope * sizeof(float));
    r.x = a->q_out;
    r.heads = a->heads;
    r.ldx = a->ldo;
    r.stride = a->out_stride;
    return cpu_do_rope(d, &r);
}

int cpu_do_draft_pair(struct dev *d, const struct op_draft_pair *a)
{
    int h = (int)a->e.k;
    struct op_embed e = {a->pair, a->tok, a->e, a->rows, 2 * h};
    struct op_gather g = {
        .out = a->pair + h, .x = a->feat, .idx = a->src, .rows = a->rows, .dim = h, .ldo = 2 * h};
    struct op_rmsnorm n = {.out = a->pair,
                           .x = a->pair,
                           .w = a->tok_norm,
                           .rows = a->rows,
                           .dim = h,
                           .ldx = 2 * h,
                           .ldo = 2 * h,
                           .n_group = 1,
                           .eps = a->eps};
    struct op_gather x = {.out = a->x, .x = a->pair + h, .rows = a->rows, .dim = h, .ldx = 2 * h};
    cpu_do_embed(d, &e);
    cpu_do_rmsnorm(d, &n);
    cpu_do_gather(d, &g);
    if (a->x && !a->x_normed)
        cpu_do_gather(d, &x);
    n.out = a->pair + h;
    n.x = a->pair + h;
    n.w = a->feat_norm;
    cpu_do_rmsnorm(d, &n);
    if (a->x && a->x_normed)
        cpu_do_gather(d, &x);
    return cpu_do_rows_place(d, &a->place);
}
