/* A model: configuration, weights and the layer program of one family.
 *
 * Life: model_open reads and checks config.json, generation_config.json and the safetensors headers
 * (host only, nothing guessed: a key that changes the maths is honoured or refused by name; a
 * missing, misshapen or unexpected tensor is refused by name); the engine plans memory from
 * model_info; model_place puts tables, and on a GPU weights, on the device; model_forward issues
 * the operations of one pass. An opened model is immutable but for model_place; the worker owns it.
 */
#ifndef SPECD_MODEL_H
#define SPECD_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "attention/attn.h"
#include "engine/base/err.h"
#include "engine/comm/comm.h"
#include "kernels/device.h"
#include "kernels/ops.h"

struct model;

/* Layers that share kind, head dims, dtype and window: one pool, one page table, one page life. */
struct kv_group {
    enum attn_kind
        kind; /* ATTN_GQA, or ATTN_MLA_ABSORBED for a latent cache (either MLA form reads it) */
    int n_layer;
    int n_kv;             /* MLA: 1 */
    int qk_dim, v_dim;    /* GQA: head dims; MLA: kv_lora + rope, kv_lora */
    int k_width, v_width; /* elements of a pool row a layer; MLA: v_width 0 */
    int window;           /* 0: full attention; else keys (pos - window, pos] */
    enum dtype dt;        /* set by model_kv_dtype; fp32 until then */
};

struct model_info {
    const char *family; /* registry name: "llama", "qwen2", "qwen3", "qwen3_moe", "deepseek" */
    const char *arch;   /* architectures[0] of config.json */
    int vocab, hidden, n_layer, n_head;
    int pos_max; /* max_position_embeddings after rope scaling as the config states it */
    int n_group;
    struct kv_group group[LIM_KV_GROUPS];
    int n_eos; /* union of config.json and generation_config.json */
    int32_t eos[16];
    int32_t bos;     /* -1: none */
    int64_t n_param; /* elements of the tensors in use */
    size_t weight_bytes;
    size_t lookup_bytes; /* of these, the embedding where rows are only looked up (not tied) */
    size_t expert_bytes; /* of these, routed experts: a row uses topk of n_expert a layer */
    int n_expert, topk;  /* 0: no experts */
    size_t copy_bytes;   /* of this rank's column shards, copied by model_place; 0 when alone */
    int n_mtp;           /* next-token layers found and checked (model_open_mtp) */
    /* Drafters. A row that consumes the token of position i also takes a feature of the target's
     * row i - 1 when `feat` is not 0; its RoPE position is i - shift. */
    int feat;  /* width of the feature; 0: a language model, which needs none */
    int shift; /* 1 with a feature, else 0 */
    int n_tap; /* target layers whose input makes the feature; 0: the target's final rows do */
    int tap[LIM_TAPS]; /* 0 … n_layer of the target, ascending; n_layer: the last layer's output */
    int vocab_target;  /* ids the drafter consumes; `vocab` is what it predicts */
    /* sampling defaults of generation_config.json; neutral where it is silent */
    float temperature, top_p, min_p, repetition;
    int top_k;
};

struct model_conf {
    const char *path; /* a checkpoint's directory; dummy: also one with config.json alone, or such a
                         file */
    bool dummy;       /* weights are generated (dummy.h), not read */
    int n_layer;      /* dummy: the first so many layers; 0: all */
    int threads;      /* dummy: that make the values in model_place */
    /* This rank's communicator: the model is its part of the weights, and widths of KV groups and
     * heads of needs are the part's. NULL: the whole. Drafters are whole on every rank. */
    struct comm *comm;
    /* How far the copy of the weights to a device is; now and then, by who places the model. */
    void (*progress)(void *ud, size_t done, size_t total);
    void *ud;
};

int model_open(struct model **out, const char *dir, struct err *e);
int model_open_conf(struct model **out, const struct model_conf *c, struct err *e);
/* A drafter for `target`, which must outlive it (embedding, head and, for next-token layers, all
 * weights are the target's). E_UNSUPPORTED: the checkpoint has no next-token layer. */
int model_open_mtp(struct model **out, struct model *target, struct err *e);
/* The drafter in a directory of its own: an EAGLE-3 head (by architectures[0]) or a language model
 * of any served family. Widths, vocabularies and taps that do not fit the target are refused with
 * both sides named. */
int model_open_draft(struct model **out, const struct model_conf *c, struct model *target,
                     struct err *e);
void model_close(struct model *m);
const struct model_info *model_info(const struct model *m);
/* What the pools hold: the device's own type (dev_ops.kv_dtype) or another that its attention
 * takes; before needs are built. */
void model_kv_dtype(struct model *m, enum dtype dt);

/* What each role needs of attention, one per KV group, page 0 (not chosen). MLA groups offer two
 * forms: `kind` chooses which need is built (ATTN_MLA_ABSORBED or ATTN_MLA_DECOMPRESSED; ignored by
 * GQA groups). q_len_max is 1 + drafts for verify roles, 0 for prefill. */
void model_attn_need(const struct model *m, int group, enum role role, enum attn_kind mla_form,
                     int q_len_max, struct attn_need *out);

/* Device bytes of tables and of the workspace for passes of at most `rows_max` rows. */
size_t model_device_bytes(const struct model *m, int rows_max, int len_max);
/* Allocates them. Positions up to len_max are served. */
int model_place(struct model *m, const struct dev_ops *ops, struct dev *d, int rows_max,
                int len_max, struct err *e);
void model_unplace(struct model *m);

struct attn_use { /* the backend chosen for one group in one role */
    const struct attn_backend *b;
    struct attn *a;
    enum attn_kind kind; /* the form it runs */
};

/* One group's pool as device addresses. Pool row of (page, offset) is page * page_size + offset. */
struct kv_view {
    int page, n_page, pages_max;
    enum dtype dt;
    const int32_t *table; /* [S][pages_max] */
    void *k;              /* [n_layer][n_page * page][k_width] */
    void *v;              /* [n_layer][n_page * page][v_width], NULL for MLA */
};

/* One layer of a plane (view.k or view.v) of `width` elements a row. */
static inline void *kv_layer(const struct kv_view *v, void *plane, int layer, int width)
{
    size_t rows = (size_t)layer * (size_t)v->n_page * (size_t)v->page;
    return (char *)plane + rows * (size_t)width * dtype_size(v->dt);
}

struct fwd {
    enum role role;
    enum attn_mask mask;
    int rows; /* of this call, padding included; <= rows_max of model_place */
    const struct row_arrays *row;
    const struct kv_view *kv;    /* [n_group] */
    const struct attn_use *attn; /* [n_group] */
    float *hidden;               /* out [rows, hidden]: after the final norm, but see below */
    /* Out, for a drafter: the residual stream before layer tap[k], at taps[r, k * hidden …]. */
    const int *tap; /* [n_tap] ascending */
    int n_tap;
    float *taps; /* [rows, n_tap * hidden] */
    /* Drafters with a feature: row r takes feat[src[r]] (src NULL: feat[r]; negative: zeros), and
     * the feature that a recurrent step takes is `hidden`, which must not overlap feat. */
    const float *feat; /* [any, feat] */
    const int32_t *src;
    /* For these drafters, which have one KV group, to do first; NULL: the rows are placed. */
    const struct op_rows_place *place;
};

/* Issues the operations from embedding to what the head reads; recordable. Row bits depend on the
 * weights and the row's token prefix alone (CPU device). */
int model_forward(struct model *m, const struct fwd *f, struct err *e);
/* logits[rows, vocab] = head(hidden), rows that model_forward gave; recordable. */
int model_logits(struct model *m, const float *hidden, int rows, float *logits, struct err *e);
/* Drafters with taps: feat[rows, feat] from taps[rows, n_tap * hidden of the target]; recordable.
 */
int model_feature(struct model *m, const float *taps, int rows, float *feat, struct err *e);
/* Drafters with a smaller vocabulary: target id of every predicted id, device memory, once placed;
 * NULL: ids are the target's. */
const int32_t *model_d2t(const struct model *m);

#endif
