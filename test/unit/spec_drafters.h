/* Drafters that are not there to be good: each proposes chains or trees by a rule, through a
 * recorded operation of the CPU device. Whatever they propose, the output must be that of no
 * drafts at all. A request is known by its seed. */
#ifndef SPECD_TEST_SPEC_DRAFTERS_H
#define SPECD_TEST_SPEC_DRAFTERS_H

#include "speculative/spec.h"

enum drafter {
    DRAFT_ORACLE,  /* the true continuation */
    DRAFT_RANDOM,  /* any tokens */
    DRAFT_LASTBAD, /* true but for the last token of every path */
    DRAFT_SAME,    /* one token over and over */
    DRAFT_EMPTY,   /* nothing */
    DRAFT_RAGGED,  /* true, of changing length, nothing at times */
    N_DRAFTERS
};
extern const struct spec_algo test_drafters[N_DRAFTERS];

/* What the oracle knows: outputs by seed, [n_seed][len]; -1 after the end. Set before opening. */
struct truth {
    const int32_t *tok;
    int n_seed, len;
};
extern struct truth test_truth;

#endif
