/* A family of models: one file, one line in registry.c. */
#ifndef SPECD_MODEL_FAMILY_H
#define SPECD_MODEL_FAMILY_H

#include "engine/base/js.h"
#include "engine/model/model.h"

struct tensors; /* safetensors.h: named, typed, mapped tensors that remember what was taken */

struct draft_target { /* what a drafter sees of its model */
    const struct model_info *info;
    const void *priv; /* the family's own */
    struct weight embed, head;
};

struct family {
    const char *name;
    const char *const *archs; /* accepted architectures[0], NULL ends */
    const char *const *model_types;
    /* Reads every key that matters, refuses what it cannot honour, takes every tensor it needs,
     * fills info; `priv` is the family's own struct, freed by close. */
    int (*open)(void **priv, const json_t *config, struct tensors *t, struct model_info *info,
                struct err *e);
    void (*close)(void *priv);
    size_t (*device_bytes)(const void *priv, int rows_max, int len_max);
    int (*place)(void *priv, const struct dev_ops *ops, struct dev *d, int rows_max, int len_max,
                 struct err *e);
    void (*unplace)(void *priv);
    void (*attn_need)(const void *priv, int group, enum role role, enum attn_kind mla_form,
                      int q_len_max, struct attn_need *out);
    int (*forward)(void *priv, const struct fwd *f, struct err *e);
    int (*logits)(void *priv, const float *hidden, int rows, float *logits, struct err *e);
    /* optional, of targets: what drafters borrow; the drafter inside the checkpoint */
    void (*shared)(const void *priv, struct weight *embed, struct weight *head);
    const struct family *mtp;
    /* optional, of drafters: in place of open (`config` NULL and `t` the target's when the weights
     * are in the target's checkpoint); see model_feature and model_d2t */
    int (*open_draft)(void **priv, const struct draft_target *target, const json_t *config,
                      struct tensors *t, struct model_info *info, struct err *e);
    int (*feature)(void *priv, const float *taps, int rows, float *feat, struct err *e);
    const int32_t *(*d2t)(const void *priv);
};

extern const struct family family_llama, family_qwen2, family_qwen3, family_qwen3_moe,
    family_deepseek;
/* Drafters, opened through a target. */
extern const struct family family_deepseek_mtp, family_eagle3;
extern const struct family *const families[]; /* NULL ends */
extern const struct family *const drafters[]; /* those with a directory; NULL ends */

#endif
