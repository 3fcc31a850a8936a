/* Declarations of the algorithms, for registry.c, and what their shapes share. */
#ifndef SPECD_SPEC_ALGOS_H
#define SPECD_SPEC_ALGOS_H

#include "engine/batch/pieces.h"
#include "speculative/spec.h"

enum { SPEC_NGRAM_MAX = 32 }; /* longest suffix that is looked up */

extern const struct spec_algo spec_off, spec_ngram, spec_mtp, spec_eagle3, spec_draft_model;

/* Shapes of chains and trees from the settings; `tokens` 0: derived. Errors name both sides. */
int spec_chain_steps(int *out, const struct spec_conf *c, int def, struct err *e); /* S, or N - 1 */
int spec_chain_shape(struct spec_shape *out, int steps, int tokens, struct err *e);
int spec_tree_shape(struct spec_shape *out, int steps, int topk, int tokens, struct err *e);
/* For tests, of an opened drafter with a network: the candidates of its last round, and its scratch
 * memory (no state in it) as pieces. */
const struct draft_tree *spec_draft_tree(const struct spec *s);
enum { SPEC_SCRATCH_MAX = 40 };
int spec_draft_scratch(struct spec *s, struct piece *out);
/* Adds prompt lookup's lengths. */
int spec_ngram_shape(struct spec_shape *out, const struct spec_conf *c, struct err *e);

#endif
