/* Shared pieces of the layer programs; see the header. Does not know any family. */
#include "engine/model/layer.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/model/shard.h"

/* ---- device memory ---- */

int placed_alloc(struct placed *pl, void **out, size_t bytes, struct err *e)
{
    *out = NULL;
    bytes = (bytes + 63) & ~(size_t)63;
    pl->bytes += bytes;
    if (!pl->ops || !bytes)
        return OK;
    TRY(pl->ops->alloc(pl->d, out, bytes, DEV_MEM_DEVICE, e));
    MEM_GROW(pl->p, pl->cap, pl->n + 1);
    pl->p[pl->n++] = *out;
    return OK;
}

int placed_floats(struct placed *pl, float **out, int64_t n, struct err *e)
{
    void *p;
    TRY(placed_alloc(pl, &p, mem_mul((size_t)n, sizeof(float)), e));
    *out = p;
    return OK;
}

int placed_copy(struct placed *pl, const void **out, const void *src, size_t bytes, struct err *e)
{
    void *p;
    TRY(placed_alloc(pl, &p, bytes, e));
    if (p)
        TRY(pl->ops->copy_in(pl->d, p, src, bytes, e));
    *out = p;
    return OK;
}

void placed_free(struct placed *pl)
{
    while (pl->n > 0)
        pl->ops->free(pl->d, pl->p[--pl->n]);
    mem_free(pl->p);
    *pl = (struct placed){0};
}

int rope_place(struct placed *pl, const struct rope *r, int dim, int len, struct rope_dev *out,
               struct err *e)
{
    size_t bytes = mem_mul((size_t)len * (size_t)(dim / 2), sizeof(float));
    float *cos = NULL, *sin = NULL;
    if (pl->ops) {
        cos = mem_alloc(bytes);
        sin = mem_alloc(bytes);
        rope_table(r, dim, len, cos, sin);
    }
    const void *pc, *ps;
    int ret;
    TRY_OUT(placed_copy(pl, &pc, cos, bytes, e));
    TRY_OUT(placed_copy(pl, &ps, sin, bytes, e));
    *out = (struct rope_dev){.cos = pc, .sin = ps, .dim = dim, .len = len};
out:
    mem_free(cos);
    mem_free(sin);
    return ret;
}

/* ---- tensors ---- */

int take(struct tensors *t, const char *prefix, const char *suffix, int64_t n, int64_t k,
         unsigned flags, struct weight *w, struct err *e)
{
    char name[NAME_MAX_LEN];
    int len = snprintf(name, sizeof name, "%s%s", prefix, suffix);
    CHECK(len > 0 && len < (int)sizeof name);
    int r = tensors_take(t, name, n, k, flags, w, e);
    return r < 0 ? r : OK;
}

static int one_scale(struct tensors *t, const char *name, float *out, struct err *e)
{
    const struct tensor *x = tensors_find(t, name);
    if (!x)
        return OK;
    if (x->rank > 1 || (x->rank == 1 && x->shape[0] != 1))
        return FAIL(e, E_UNSUPPORTED, "%s: tensor '%s' is not one scale for the layer's cache",
                    x->file, name);
    if (x->dt != DT_F32 && x->dt != DT_BF16 && x->dt != DT_F16)
        return FAIL(e, E_UNSUPPORTED, "%s: tensor '%s' is %s; scales must be F32, BF16 or F16",
                    x->file, name, x->type);
    float v = dtype_load(x->p, x->dt, 0);
    if (!(v > 0) || isinf(v) || isinf(1 / v))
        return FAIL(e, E_FORMAT, "%s: tensor '%s' is %g, no scale of a cache", x->file, name,
                    (double)v);
    if (*out != 0 && *out != v)
        return FAIL(e, E_FORMAT, "%s: tensor '%s' is %g, and %g by its other name", x->file, name,
                    (double)v, (double)*out);
    *out = v;
    tensors_ignore(t, name);
    return OK;
}

int kv_scale_take(struct tensors *t, const char *prefix, const char *part, const char *name,
                  float *out, struct err *e)
{
    char full[NAME_MAX_LEN];
    *out = 0;
    snprintf(full, sizeof full, "%s%s", prefix, name);
    TRY(one_scale(t, full, out, e));
    snprintf(full, sizeof full, "%s%s.%s", prefix, part, name);
    TRY(one_scale(t, full, out, e));
    *out = *out != 0 ? *out : 1;
    return OK;
}

int split_check(const struct tensors *t, const char *key, int n, struct err *e)
{
    int world = comm_world(tensors_comm(t));
    if (n % world)
        return FAIL(e, E_UNSUPPORTED,
                    "'%s' %d cannot be divided over the %d ranks of tensor_parallel_size", key, n,
                    world);
    return OK;
}

int head_take(struct tensors *t, bool tied, int vocab, int hidden, const struct weight *embed,
              struct weight *head, struct err *e)
{
    if (!tied) {
        TRY(tensors_take(t, "lm_head.weight", vocab, hidden, 0, head, e));
        return OK;
    }
    /* A tied checkpoint may still carry the copy; a different one would be a guess. */
    *head = *embed;
    const struct tensor *x = tensors_find(t, "lm_head.weight");
    if (!x)
        return OK;
    if (x->dt != embed->dt || x->bytes != (size_t)(embed->n * embed->k) * dtype_size(embed->dt) ||
        memcmp(x->p, embed->p, x->bytes) != 0)
        return FAIL(e, E_FORMAT,
                    "%s: 'tie_word_embeddings' is true but tensor 'lm_head.weight' differs from "
                    "the embedding",
                    x->file);
    tensors_ignore(t, "lm_head.weight");
    return OK;
}

int mlp_take(struct tensors *t, const char *prefix, int hidden, int inter, bool bias,
             struct mlp *out, struct err *e)
{
    unsigned rows = TAKE_FP8 | TAKE_ROWS, part = TAKE_VECTOR | TAKE_ROWS;
    *out = (struct mlp){.inter = inter / comm_world(tensors_comm(t))};
    TRY(take(t, prefix, "gate_proj.weight", inter, hidden, rows, &out->gate, e));
    TRY(take(t, prefix, "up_proj.weight", inter, hidden, rows, &out->up, e));
    TRY(take(t, prefix, "down_proj.weight", hidden, inter, TAKE_FP8 | TAKE_COLS, &out->down, e));
    if (bias) {
        TRY(take(t, prefix, "gate_proj.bias", 1, inter, part, &out->gate_b, e));
        TRY(take(t, prefix, "up_proj.bias", 1, inter, part, &out->up_b, e));
        TRY(take(t, prefix, "down_proj.bias", 1, hidden, TAKE_VECTOR | TAKE_RANK0, &out->down_b,
                 e));
    }
    return OK;
}

/* Newer writers stack the experts: gate_up_proj [E, 2 inter, H] (gate rows first), down_proj. */
static int take_fused(struct tensors *t, const char *prefix, int hidden, const struct moe_conf *c,
                      struct moe *m, struct err *e)
{
    char name[NAME_MAX_LEN];
    snprintf(name, sizeof name, "%sexperts.gate_up_proj", prefix);
    int r = tensors_take_stack(t, name, c->experts, 2 * (int64_t)c->inter, hidden, TAKE_OPTIONAL,
                               m->gate, e);
    if (r <= 0)
        return r;
    for (int i = 0; i < c->experts; i++) {
        m->gate[i].n = c->inter;
        m->up[i] = m->gate[i];
        m->up[i].p = (const char *)m->gate[i].p +
                     (size_t)c->inter * (size_t)hidden * dtype_size(m->gate[i].dt);
        if (tensors_comm(t)) {
            TRY(shard_rows(&m->gate[i], tensors_comm(t), name, e));
            TRY(shard_rows(&m->up[i], tensors_comm(t), name, e));
        }
    }
    snprintf(name, sizeof name, "%sexperts.down_proj", prefix);
    return tensors_take_stack(t, name, c->experts, hidden, c->inter, TAKE_COLS, m->down, e);
}

int moe_take(struct tensors *t, const char *prefix, int hidden, const struct moe_conf *c,
             struct moe *out, struct err *e)
{
    char at[NAME_MAX_LEN];
    *out = (struct moe){0};
    out->gate = MEM_ARRAY(struct weight, c->experts);
    out->up = MEM_ARRAY(struct weight, c->experts);
    out->down = MEM_ARRAY(struct weight, c->experts);
    TRY(take(t, prefix, "gate.weight", c->experts, hidden, 0, &out->router, e));
    if (c->bias)
        TRY(take(t, prefix, "gate.e_score_correction_bias", 1, c->experts, TAKE_VECTOR, &out->bias,
                 e));
    if (c->shared_inter) {
        snprintf(at, sizeof at, "%sshared_experts.", prefix);
        TRY(mlp_take(t, at, hidden, c->shared_inter, false, &out->shared, e));
    }
    int r = take_fused(t, prefix, hidden, c, out, e);
    if (r != 0)
        return r < 0 ? r : OK;
    for (int i = 0; i < c->experts; i++) {
        struct mlp one;
        snprintf(at, sizeof at, "%sexperts.%d.", prefix, i);
        TRY(mlp_take(t, at, hidden, c->inter, false, &one, e));
        out->gate[i] = one.gate;
        out->up[i] = one.up;
        out->down[i] = one.down;
    }
    return OK;
}

void moe_done(struct moe *m)
{
    mem_free(m->gate);
    mem_free(m->up);
    mem_free(m->down);
}

/* Descriptions that operations find in device memory carry device addresses. */
static int place_weights(struct placed *pl, const struct weight *w, int n,
                         const struct weight **out, struct err *e)
{
    struct weight *v = MEM_ARRAY(struct weight, n);
    for (int i = 0; i < n; i++) {
        v[i] = w[i];
        if (pl->ops) {
            v[i].p = pl->ops->resolve(pl->d, w[i].p);
            v[i].scale = w[i].scale ? pl->ops->resolve(pl->d, w[i].scale) : NULL;
        }
    }
    const void *p = NULL;
    int r = placed_copy(pl, &p, v, mem_mul((size_t)n, sizeof *v), e);
    mem_free(v);
    *out = p;
    return r;
}

/* What all experts' weights are, when they are alike and aligned on the device. */
static enum dtype alike(const struct placed *pl, const struct moe *m, int experts)
{
    enum dtype dt = m->gate[0].dt;
    for (int i = 0; i < experts; i++) {
        const struct weight *w[3] = {&m->gate[i], &m->up[i], &m->down[i]};
        for (int k = 0; k < 3; k++)
            if (w[k]->dt != dt || ((uintptr_t)pl->ops->resolve(pl->d, w[k]->p) & 15))
                return DT_NONE;
    }
    return dt;
}

int moe_place(struct placed *pl, const struct moe *m, const struct moe_conf *c, struct moe_dev *out,
              struct err *e)
{
    const struct weight *g, *u, *d;
    const void *b = NULL;
    TRY(place_weights(pl, m->gate, c->experts, &g, e));
    TRY(place_weights(pl, m->up, c->experts, &u, e));
    TRY(place_weights(pl, m->down, c->experts, &d, e));
    if (m->bias.p) {
        float *f = MEM_ARRAY(float, c->experts);
        for (int i = 0; i < c->experts; i++)
            f[i] = dtype_load(m->bias.p, m->bias.dt, i);
        int r = placed_copy(pl, &b, f, (size_t)c->experts * sizeof(float), e);
        mem_free(f);
        TRY(r);
    }
    *out = (struct moe_dev){.bias = b, .gate = g, .up = u, .down = d};
    if (pl->ops)
        out->dt = alike(pl, m, c->experts);
    return OK;
}

int mlp_ws_place(struct placed *pl, int rows_max, int hidden, int inter_max,
                 const struct moe_conf *c, struct mlp_ws *out, struct err *e)
{
    int64_t rows = rows_max;
    *out = (struct mlp_ws){0};
    TRY(placed_floats(pl, &out->gate, rows * inter_max, e));
    TRY(placed_floats(pl, &out->up, rows * inter_max, e));
    if (!c)
        return OK;
    TRY(placed_floats(pl, &out->router, rows * c->experts, e));
    TRY(placed_floats(pl, &out->weights, rows * c->topk, e));
    TRY(placed_floats(pl, &out->work,
                      (int64_t)moe_ffn_work((size_t)rows, (size_t)c->topk, (size_t)c->inter,
                                            (size_t)c->shared_inter, (size_t)hidden),
                      e));
    void *ids;
    TRY(placed_alloc(pl, &ids, mem_mul((size_t)(rows * c->topk), sizeof(int32_t)), e));
    out->ids = ids;
    return OK;
}

/* ---- operations ---- */

int run_matmul(const struct on *o, float *out, const float *x, const struct weight *w,
               const struct weight *bias, bool accumulate)
{
    struct op_matmul a = {.out = out,
                          .x = x,
                          .w = *w,
                          .rows = o->rows,
                          .ldx = w->k,
                          .ldo = w->n,
                          .accumulate = accumulate};
    if (bias)
        a.bias = *bias;
    return o->op->matmul(o->d, &a);
}

int run_part(const struct on *o, float *x, int hidden)
{
    struct comm *c = o->comm;
    return comm_rank(c) ? c->ops->clear(c, o->d, x, (int64_t)o->rows * hidden) : OK;
}

int run_join(const struct on *o, float *x, int hidden)
{
    return comm_sum(o->comm, o->d, x, (int64_t)o->rows * hidden);
}

int run_head(const struct on *o, float *logits, const float *hidden, const struct weight *head)
{
    int64_t v = head->n, from = v * comm_rank(o->comm) / comm_world(o->comm);
    struct op_matmul a = {
        .out = logits + from, .x = hidden, .w = *head, .rows = o->rows, .ldx = head->k, .ldo = v};
    a.w.n = v * (comm_rank(o->comm) + 1) / comm_world(o->comm) - from;
    a.w.p = (const char *)head->p + (size_t)(from * head->k) * dtype_size(head->dt);
    TRY(o->op->matmul(o->d, &a));
    return comm_gather(o->comm, o->d, logits, o->rows, v, from, a.w.n);
}

int run_norm_ld(const struct on *o, float *out, int64_t ldo, const float *x, int64_t ldx,
                const struct weight *w, int dim, float eps)
{
    return o->op->rmsnorm(o->d, &(struct op_rmsnorm){.out = out,
                                                     .x = x,
                                                     .w = *w,
                                                     .rows = o->rows,
                                                     .dim = dim,
                                                     .ldx = ldx,
                                                     .ldo = ldo,
                                                     .n_group = 1,
                                                     .eps = eps});
}

int run_norm(const struct on *o, float *out, const float *x, const struct weight *w, int dim,
             float eps)
{
    return run_norm_ld(o, out, dim, x, dim, w, dim, eps);
}

int run_attention(const struct on *o, const struct attn_use *u, const struct attn_call *c,
                  struct err *e)
{
    if (o->op->about)
        TRY(o->op->about(o->d, "attention"));
    return u->b->run(u->a, c, e);
}

int run_attention_o(const struct on *o, const struct attn_use *u, struct attn_call *c, float *x,
                    const struct weight *w, const struct weight *bias, struct err *e)
{
    struct op_matmul a = {.out = x,
                          .x = c->out,
                          .w = *w,
                          .bias = *bias,
                          .rows = o->rows,
                          .ldx = w->k,
                          .ldo = w->n,
                          .accumulate = true};
    c->narrow = a.narrow = u->b->caps.narrow && o->op->narrow && o->op->narrow(o->d, &a);
    TRY(run_attention(o, u, c, e));
    TRY(run_part(o, x, (int)w->n));
    TRY(o->op->matmul(o->d, &a));
    return run_join(o, x, (int)w->n);
}

int run_pair(const struct on *o, const struct fwd *f, const struct pair_in *in, float *pair,
             float *x)
{
    struct op_draft_pair a = {.pair = pair,
                              .x = x,
                              .tok = f->row->tok,
                              .feat = f->feat,
                              .src = f->src,
                              .e = *in->embed,
                              .tok_norm = *in->tok_norm,
                              .feat_norm = *in->feat_norm,
                              .rows = o->rows,
                              .eps = in->eps,
                              .x_normed = in->x_normed};
    CHECK(f->feat);
    if (f->place)
        a.place = *f->place;
    return o->op->draft_pair(o->d, &a);
}

int run_tap(const struct on *o, const struct fwd *f, int layer, const float *x, int hidden)
{
    for (int k = 0; k < f->n_tap; k++) {
        if (f->tap[k] != layer)
            continue;
        struct op_gather a = {.out = f->taps + (int64_t)k * hidden,
                              .x = x,
                              .rows = o->rows,
                              .dim = hidden,
                              .ldo = (int64_t)f->n_tap * hidden};
        TRY(o->op->gather(o->d, &a));
    }
    return OK;
}

struct op_proj proj_op(const struct on *o, const struct rows_in *in, const struct proj_out *p,
                       int n)
{
    struct op_proj a = {
        .x = in->x, .y = in->y, .rows = o->rows, .n = n, .ldx = p[0].w->k, .eps = in->eps};
    if (in->norm)
        a.norm = *in->norm;
    for (int i = 0; i < n; i++) {
        a.w[i] = *p[i].w;
        if (p[i].bias)
            a.bias[i] = *p[i].bias;
        a.out[i] = p[i].out;
        a.ldo[i] = p[i].w->n;
    }
    return a;
}

int run_proj(const struct on *o, const struct rows_in *in, const struct proj_out *p, int n)
{
    struct op_proj a = proj_op(o, in, p, n);
    return o->op->proj(o->d, &a);
}

static int add_mlp(const struct on *o, const struct mlp *m, const struct mlp_ws *ws,
                   const struct rows_in *in, float *x)
{
    struct op_mlp a = {.out = x,
                       .x = in->x,
                       .y = in->y,
                       .gate = m->gate,
                       .up = m->up,
                       .down = m->down,
                       .gate_b = m->gate_b,
                       .up_b = m->up_b,
                       .down_b = m->down_b,
                       .g = ws->gate,
                       .u = ws->up,
                       .rows = o->rows,
                       .ldx = m->gate.k,
                       .ldo = m->down.n,
                       .eps = in->eps};
    if (in->norm)
        a.norm = *in->norm;
    return o->op->mlp(o->d, &a);
}

int run_mlp(const struct on *o, const struct mlp *m, const struct mlp_ws *ws, int hidden,
            const struct rows_in *in, float *x)
{
    struct rows_in rows = *in;
    if (o->comm && in->norm) { /* a rank may have to clear x before it adds to it */
        TRY(run_norm(o, in->y, in->x, in->norm, hidden, in->eps));
        rows = (struct rows_in){.x = in->y};
    }
    TRY(run_part(o, x, hidden));
    TRY(add_mlp(o, m, ws, &rows, x));
    return run_join(o, x, hidden);
}

int run_moe(const struct on *o, const struct moe *m, const struct moe_dev *dev,
            const struct moe_conf *c, const struct mlp_ws *ws, int hidden, const struct rows_in *in,
            float *x)
{
    const float *y = in->norm ? in->y : in->x;
    TRY(o->op->moe_route(o->d,
                         &(struct op_moe_route){.ids = ws->ids,
                                                .weights = ws->weights,
                                                .logits = ws->router,
                                                .router = m->router,
                                                .x = in->x,
                                                .norm = in->norm ? *in->norm : (struct weight){0},
                                                .y = in->y,
                                                .eps = in->eps,
                                                .bias = dev->bias,
                                                .rows = o->rows,
                                                .experts = c->experts,
                                                .topk = c->topk,
                                                .n_group = c->n_group,
                                                .topk_group = c->topk_group,
                                                .score = c->score,
                                                .group = c->group,
                                                .normalize = c->normalize,
                                                .norm_eps = c->norm_eps,
                                                .scale = c->scale}));
    TRY(run_part(o, x, hidden));
    TRY(o->op->moe_ffn(o->d, &(struct op_moe_ffn){.out = x,
                                                  .x = y,
                                                  .ids = ws->ids,
                                                  .weights = ws->weights,
                                                  .gate = dev->gate,
                                                  .up = dev->up,
                                                  .down = dev->down,
                                                  .dt = dev->dt,
                                                  .sh_gate = m->shared.gate,
                                                  .sh_up = m->shared.up,
                                                  .sh_down = m->shared.down,
                                                  .work = ws->work,
                                                  .rows = o->rows,
                                                  .hidden = hidden,
                                                  .inter = c->inter,
                                                  .experts = c->experts,
                                                  .topk = c->topk}));
    return run_join(o, x, hidden);
}
