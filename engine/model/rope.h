/* Rotary position embedding of a configuration (Su et al. 2021) with the scalings in use: linear
 * (Chen et al. 2023), llama3 (Llama 3.1 model card), yarn (Peng et al. 2023).
 *
 * Accepted spellings: rope_theta beside rope_scaling {type or rope_type, …}, and rope_parameters
 * {rope_theta, rope_type, …}. A key that the named type does not use is refused. */
#ifndef SPECD_MODEL_ROPE_H
#define SPECD_MODEL_ROPE_H

#include "engine/model/config.h"

enum rope_type { ROPE_DEFAULT, ROPE_LINEAR, ROPE_LLAMA3, ROPE_YARN };

struct rope {
    enum rope_type type;
    double theta, factor;
    double orig;                /* original_max_position_embeddings */
    double low_freq, high_freq; /* llama3 */
    double beta_fast, beta_slow;
    double mscale, mscale_all; /* 0: absent */
    double magnitude;          /* of cos and sin */
    bool truncate;
    int pos_max; /* max_position_embeddings, or factor * original when yarn makes that more */
};

/* `latent`: DeepSeek's attention, whose softmax scale also carries mscale_all_dim. */
int rope_parse(struct rope *r, struct cfg *c, bool latent, struct err *e);
/* inv[dim / 2]: angle of pair i at position p is p * inv[i], all in fp32. */
void rope_inv_freq(const struct rope *r, int dim, float *inv);
/* cos, sin [len, dim / 2], times the magnitude. */
void rope_table(const struct rope *r, int dim, int len, float *cos, float *sin);
/* Factor of DeepSeek's softmax scale: ms(factor, mscale_all_dim) squared, ms(s, m) = 0.1 m ln s + 1
 * for s > 1 (DeepSeek-V2, appendix on YaRN). */
double rope_softmax_factor(const struct rope *r);

#endif
