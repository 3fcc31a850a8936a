/* The model behind the `deepseek` family and its drafter, the next-token layer: what reading,
 * program and drafter share. Private to deepseek*.c. */
#ifndef SPECD_MODEL_DEEPSEEK_H
#define SPECD_MODEL_DEEPSEEK_H

#include "engine/model/family.h"
#include "engine/model/layer.h"

struct ds_layer {
    struct weight in_norm, post_norm;
    struct weight q; /* q_lora 0: from x; else q_b, from the normalised q_a */
    struct weight q_a, q_a_b, q_a_norm;
    struct weight kv_a, kv_a_b, kv_a_norm, kv_b, o, o_b;
    float kv_scale; /* of an fp8 cache: one for latent and rotated part */
    bool sparse;
    struct mlp mlp;
    struct moe moe;
};

struct ds_mtp { /* a next-token layer, kept aside until a drafter is opened */
    struct ds_layer layer;
    struct weight enorm, hnorm, eh_proj, norm;
    struct weight embed, head; /* p NULL: the target's */
};

struct ds_ws {
    struct placed mem;
    struct rope_dev rope;
    float *x, *y, *q_a, *q_y; /* q_a [R, q_lora], q_y the same normalised */
    float *q;                 /* [R, nH, nope + rope] */
    float *kv, *q_lat, *o_lat, *att;
    float *pair; /* drafter: [R, 2 hidden] */
    struct mlp_ws mlp;
    struct moe_dev *moe; /* [n_layer] */
    int rows_max;
};

struct deepseek {
    int hidden, n_layer, n_head, inter, vocab, dense_layers;
    int q_lora, kv_lora, nope, rope_dim, v_dim;
    float eps, scale;
    bool v3, attn_bias, interleaved;
    struct rope rope;
    struct moe_conf moe;
    struct weight embed, norm, head;
    struct ds_layer *layer;
    struct ds_mtp *mtp;
    int n_mtp;
    const struct ds_mtp *draft; /* this is a drafter: the one layer and the norm are of this */
    struct ds_ws ws;
    struct comm *comm; /* NULL: alone */
};

/* deepseek_run.c; `priv` is a struct deepseek, the drafter's too. */
size_t ds_bytes(const void *priv, int rows_max, int len_max);
int ds_place(void *priv, const struct dev_ops *ops, struct dev *d, int rows_max, int len_max,
             struct err *e);
void ds_unplace(void *priv);
void ds_need(const void *priv, int group, enum role role, enum attn_kind mla_form, int q_len_max,
             struct attn_need *out);
int ds_forward(void *priv, const struct fwd *f, struct err *e);
int ds_logits(void *priv, const float *hidden, int rows, float *logits, struct err *e);
struct kv_group ds_group(const struct deepseek *m);
struct on ds_on(const struct deepseek *m, int rows);
/* Layer i on ws.x. */
int ds_run_layer(struct deepseek *m, const struct on *o, int i, const struct fwd *f, struct err *e);

#endif
