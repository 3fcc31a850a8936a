/* What the families' layer programs share: device memory planned in one place, the gated MLP and
 * the mixture of experts. Shape letters as in kernels/ops.h. Worker thread, but for the takers. */
#ifndef SPECD_MODEL_LAYER_H
#define SPECD_MODEL_LAYER_H

#include "engine/model/config.h"
#include "engine/model/rope.h"
#include "engine/model/safetensors.h"

enum { NAME_MAX_LEN = 160 };

/* Device allocations of one placed model. With ops NULL nothing is allocated and the bytes are
 * only counted, so that the plan and the placement cannot disagree. */
struct placed {
    const struct dev_ops *ops;
    struct dev *d;
    void **p;
    int n, cap;
    size_t bytes;
};
/* *out is NULL when only counting. */
int placed_alloc(struct placed *pl, void **out, size_t bytes, struct err *e);
int placed_floats(struct placed *pl, float **out, int64_t n, struct err *e);
int placed_copy(struct placed *pl, const void **out, const void *src, size_t bytes, struct err *e);
void placed_free(struct placed *pl);

/* Takes the tensor PREFIX + SUFFIX; see tensors_take, but OK whether an optional one is there or
 * not: w->p says. */
int take(struct tensors *t, const char *prefix, const char *suffix, int64_t n, int64_t k,
         unsigned flags, struct weight *w, struct err *e);

/* What an element of this layer's fp8 caches is worth: PREFIX + NAME, or PREFIX + PART + "." + NAME
 * (k_scale of k_proj), a tensor of one element; 1 where there is none. */
int kv_scale_take(struct tensors *t, const char *prefix, const char *part, const char *name,
                  float *out, struct err *e);

/* Whether `n`, by its key in the configuration, can be divided over the ranks. */
int split_check(const struct tensors *t, const char *key, int n, struct err *e);

/* cos/sin of positions [0, len). */
struct rope_dev {
    const float *cos, *sin;
    int dim, len;
};
int rope_place(struct placed *pl, const struct rope *r, int dim, int len, struct rope_dev *out,
               struct err *e);

/* Gated MLP: down(silu(gate x) * up x). inter 0: absent. */
struct mlp {
    int inter; /* this rank's */
    struct weight gate, up, down, gate_b, up_b, down_b;
};
int mlp_take(struct tensors *t, const char *prefix, int hidden, int inter, bool bias,
             struct mlp *out, struct err *e);

struct moe_conf {
    int experts, topk, inter, shared_inter; /* shared_inter 0: no shared expert */
    int n_group, topk_group;
    enum moe_score score;
    enum moe_group group;
    bool normalize, bias; /* bias: e_score_correction_bias is there */
    float norm_eps, scale;
};

struct moe {
    struct weight router, bias;
    struct weight *gate, *up, *down; /* [experts], host */
    struct mlp shared;
};
int moe_take(struct tensors *t, const char *prefix, int hidden, const struct moe_conf *c,
             struct moe *out, struct err *e);
void moe_done(struct moe *m);

struct moe_dev { /* the same on the device */
    const float *bias;
    const struct weight *gate, *up, *down;
    enum dtype dt; /* op_moe_ffn's */
};
int moe_place(struct placed *pl, const struct moe *m, const struct moe_conf *c, struct moe_dev *out,
              struct err *e);

/* Scratch of MLP and MoE for rows_max rows. */
struct mlp_ws {
    float *gate, *up;               /* [R, widest inter] */
    float *router, *weights, *work; /* MoE */
    int32_t *ids;
};
int mlp_ws_place(struct placed *pl, int rows_max, int hidden, int inter_max,
                 const struct moe_conf *c, struct mlp_ws *out, struct err *e);

/* Where operations go. */
struct on {
    const struct op_table *op;
    struct dev *d;
    int rows;
    struct comm *comm; /* NULL: alone */
};
/* out[R, w.n] (ld = w.n) (+)= x[R, w.k] w^T + bias, dense rows. */
int run_matmul(const struct on *o, float *out, const float *x, const struct weight *w,
               const struct weight *bias, bool accumulate);
int run_norm(const struct on *o, float *out, const float *x, const struct weight *w, int dim,
             float eps);
/* The same with `ldo` and `ldx` between the rows. */
int run_norm_ld(const struct on *o, float *out, int64_t ldo, const float *x, int64_t ldx,
                const struct weight *w, int dim, float eps);
/* With ranks, around what adds products of divided weights to x[R, hidden]: rank 0 keeps x, the
 * others start from 0, and each adds its part; then x is the sum, on every rank. */
int run_part(const struct on *o, float *x, int hidden);
int run_join(const struct on *o, float *x, int hidden);
/* logits[R, V] of the whole head; each rank computes a range of the vocabulary. */
int run_head(const struct on *o, float *logits, const float *hidden, const struct weight *head);
/* The rows that products read: x [R, ld = the products' K], or, with a norm, its normalised rows,
 * for which y is scratch of the same size. */
struct rows_in {
    const float *x;
    const struct weight *norm; /* NULL: none */
    float eps;
    float *y;
};
struct proj_out { /* out[R, w.n] = rows w^T + bias */
    float *out;
    const struct weight *w, *bias; /* bias NULL: none */
};
/* `n` (at most 3) products of the same rows: as an operation, and run. */
struct op_proj proj_op(const struct on *o, const struct rows_in *in, const struct proj_out *p,
                       int n);
int run_proj(const struct on *o, const struct rows_in *in, const struct proj_out *p, int n);
/* Attention by the backend of `u`. */
int run_attention(const struct on *o, const struct attn_use *u, const struct attn_call *c,
                  struct err *e);
/* The same, then x[R, w.n] += out w^T + bias, of dense rows: bf16 in memory where the product
 * rounds them in any case. With ranks, x as around run_part and run_join. */
int run_attention_o(const struct on *o, const struct attn_use *u, struct attn_call *c, float *x,
                    const struct weight *w, const struct weight *bias, struct err *e);
/* A drafter's input: pair[R, 2 hidden] of its tokens and features by their norms; x[R, hidden]
 * (NULL: not wanted) gets the features, or their norm. */
struct pair_in {
    const struct weight *embed, *tok_norm, *feat_norm;
    float eps;
    bool x_normed;
};
int run_pair(const struct on *o, const struct fwd *f, const struct pair_in *in, float *pair,
             float *x);
/* The taps of a pass that want the residual stream before `layer` (the number of layers: after the
 * last one). */
int run_tap(const struct on *o, const struct fwd *f, int layer, const float *x, int hidden);
/* x[R, hidden] += mlp(in); in->x may be x */
int run_mlp(const struct on *o, const struct mlp *m, const struct mlp_ws *ws, int hidden,
            const struct rows_in *in, float *x);
/* x[R, hidden] += experts(in) + shared(in); in->x may be x when there is a norm */
int run_moe(const struct on *o, const struct moe *m, const struct moe_dev *dev,
            const struct moe_conf *c, const struct mlp_ws *ws, int hidden, const struct rows_in *in,
            float *x);

/* Layer kinds: embedding, head and the check of a copied head that a tied configuration carries. */
int head_take(struct tensors *t, bool tied, int vocab, int hidden, const struct weight *embed,
              struct weight *head, struct err *e);

#endif
