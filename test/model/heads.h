/* Generated EAGLE-3 heads for the generated target "qwen3" (hidden 72, 3 layers, 131 ids), one for
 * every switch. */
#ifndef SPECD_TEST_HEADS_H
#define SPECD_TEST_HEADS_H

#include "test/model/gen.h"

enum { HEAD_VOCAB = 50 };

struct head {
    const char *name;
    int hidden;
    bool norm_residual, norm_output, fc_norm, norm_fc, bias;
    bool full_vocab; /* no d2t, the target's head */
    bool own_embed, layers_0;
};
extern const struct head heads[];
extern const int n_heads;

/* Target id of a draft id. */
int head_target_id(int id);
/* Configuration and tensors; taps 1, 2, 3. A test may edit them and writes them. */
void head_make(struct gen *g, const struct head *h);

#endif
