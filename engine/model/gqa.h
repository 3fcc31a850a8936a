/* Multi-head and grouped-query attention of a layer, half-split rotation over whole heads, scale
 * hd^-0.5: what dense models and EAGLE-3 heads share. The pool row of a group is [n_kv, hd] keys
 * and the same for values. Worker thread, but for the takers. */
#ifndef SPECD_MODEL_GQA_H
#define SPECD_MODEL_GQA_H

#include "engine/model/layer.h"

struct gqa_conf {
    int n_head, n_kv, hd;
    float eps; /* of the norms of q and k */
};
/* num_attention_heads, num_key_value_heads, head_dim; `need_`: without a default. */
int gqa_parse(struct gqa_conf *g, struct cfg *c, int hidden, bool need_kv_heads, bool need_head_dim,
              struct err *e);

struct gqa { /* biases and norms: p NULL when absent */
    struct weight q, k, v, o, qb, kb, vb, ob, q_norm, k_norm;
    float k_scale, v_scale; /* of an fp8 cache */
};
enum { GQA_QKV_BIAS = 1, GQA_O_BIAS = 2, GQA_QK_NORM = 4 };
/* `in`: width of what q, k and v read; `parts`: GQA_ bits. */
int gqa_take(struct tensors *t, const char *prefix, const struct gqa_conf *g, int in, int hidden,
             unsigned parts, struct gqa *out, struct err *e);

/* With ranks: checked before the takes; after them the model's heads become this rank's, which the
 * calls below mean. Head groups stay whole, so a rank's queries find their keys on the rank. */
int gqa_split_check(const struct gqa_conf *g, const struct tensors *t, struct err *e);
void gqa_split(struct gqa_conf *g, const struct tensors *t);

struct gqa_ws {
    struct rope_dev rope;
    float *q, *k, *v, *att;
};
int gqa_ws_place(struct placed *pl, const struct gqa_conf *g, const struct rope *rope, int rows_max,
                 int len_max, struct gqa_ws *out, struct err *e);

struct kv_group gqa_group(const struct gqa_conf *g, int n_layer, int window);
void gqa_need(const struct gqa_conf *g, enum role role, int window, int q_len_max,
              struct attn_need *out);

/* x[R, hidden] += o(attention of the rows `in`); writes the rows' keys and values to layer `index`
 * of `group` first. */
int run_gqa(const struct on *o, const struct gqa_conf *g, const struct gqa *l,
            const struct gqa_ws *ws, const struct rows_in *in, float *x, const struct fwd *f,
            int group, int index, struct err *e);

#endif
