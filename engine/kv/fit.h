/* How many tokens of KV memory a start takes, and what to say when they do not fit. Pure: numbers
 * in, a number or a sentence out, so that every refusal can be tested without a GPU. */
#ifndef SPECD_KV_FIT_H
#define SPECD_KV_FIT_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/err.h"

enum { KV_ROOM_HOST_GIB = 4 }; /* what a start takes of the host's memory unasked, all ranks */

struct kv_ask {
    int64_t free;   /* bytes the device has free; 0: the host's memory, which is not counted */
    double share;   /* of them that a start may use, 0 … 1 */
    int64_t fixed;  /* bytes of everything but KV */
    int64_t token;  /* bytes of KV a token, the drafter's included; > 0 */
    int64_t asked;  /* tokens asked for (kv_cache_tokens); 0: all that fit, at most reqs * len */
    int reqs;       /* sequences at once (max_num_seqs) */
    int len;        /* tokens of a sequence */
    bool len_asked; /* len was set (max_model_len), so it is not lowered on a device of its own */
    int page;       /* tokens a page */
    int world;      /* ranks that share the host's memory; 0, 1: one */
};

/* *tokens > 0 and, where they are fewer than a sequence's, *len lowered to them. E_NOMEM says what
 * is needed, what there is and which settings fit; E_INVAL: tokens that cannot be addressed. */
int kv_fit(int64_t *tokens, int *len, const struct kv_ask *a, struct err *e);
/* Bytes for everything: free * share. INT64_MAX where the memory is not counted. */
int64_t kv_budget(const struct kv_ask *a);

#endif
