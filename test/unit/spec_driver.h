/* A runner with speculation, driven by hand as the scheduler would: slots, pages, chunks, decode
 * steps. For tests. Every step is checked:
 *   - what it wrote to the KV memory lies in pages of the requests that took part, at positions it
 *     may write (committed length to length + ahead); all else is unchanged, bit for bit;
 *   - with a reference, the tokens emitted are those of a run without speculation, and the drafts
 *     that wait are those that this drafter makes after the same tokens, however they came about.
 * Each slot owns pages of its own, in descending order, with a page between slots that nobody owns;
 * page-table entries are set as late as the scheduler would and are impossible before. */
#ifndef SPECD_TEST_SPEC_DRIVER_H
#define SPECD_TEST_SPEC_DRIVER_H

#include "engine/worker/runner.h"
#include "test/model/gen.h"

enum { DRV_REQS = 6, DRV_LEN = 128 };

struct drv_conf {
    const char *target;         /* folder in the tree, or the name of a generated model */
    const char *method, *draft; /* draft: "head", "self" (the target again), a folder, NULL */
    int steps, topk, tokens, ngram_min;
    int page, chunk; /* 0: 16; DRV_LEN */
    int len_max;     /* 0: DRV_LEN */
    int threads;
    bool unwatched; /* no checks of the KV memory: for long runs */
};

/* What a slot's request says without speculation, and its drafts after every length. */
struct drv_ref {
    int n_out;
    int32_t tok[DRV_LEN];
    int n_rows[DRV_LEN + 1]; /* by committed length; 0: not known */
    uint64_t hash[DRV_LEN + 1];
};

struct drv_block;
struct drv {
    struct drv_conf c;
    struct runner r;
    struct step s[2]; /* the second one for results that are read late */
    int at;           /* of s: the one being filled */
    int64_t no;
    int depth; /* of the rounds; steps at first */
    int gen[DRV_REQS + 1];
    int32_t prompt[DRV_REQS + 1][DRV_LEN * 4];
    int n_prompt[DRV_REQS + 1];
    struct slot_params p[DRV_REQS + 1];
    int32_t out[DRV_REQS + 1][DRV_LEN * 4];
    int n_out[DRV_REQS + 1];
    int paged[DRV_REQS + 1]; /* positions with a page */
    bool ended[DRV_REQS + 1];
    const struct drv_ref *ref[DRV_REQS + 1]; /* of the slot's request; NULL: none */
    int n_draft, n_accepted, n_verify, matched;
    /* positions of each slot that the step may write */
    int lo[DRV_REQS + 1], hi[DRV_REQS + 1];
    void *copy[2 * 2 * LIM_KV_GROUPS]; /* of the planes after the last step */
    struct drv_block *block;
    int n_block;
    struct gen model, head;
};

/* The generated checkpoints that a configuration names; the directories live until drv_free. */
void drv_open(struct drv *v, const struct drv_conf *c);
void drv_close(struct drv *v);

/* Default parameters: greedy or not by `temperature`, drafts by `mode`. */
struct slot_params drv_params(uint64_t seed, float temperature, enum spec_mode mode);
/* Random ids of the model. */
void drv_prompt(const struct drv *v, int seed, int n, int32_t *out);

/* A step is filled by any of these, then run. */
void drv_begin(struct drv *v);
void drv_stop(struct drv *v, int slot);
/* The request starts in the chunk of drv_chunk that follows; n_out of `p`: it is resumed. */
void drv_start(struct drv *v, int slot, const int32_t *prompt, int n, struct slot_params p);
void drv_chunk(struct drv *v, int slot, int pos, int n);
/* A decode of the slot with at most `cap` rows (0: all); `gen` other than the slot's: a stale one.
 */
void drv_decode(struct drv *v, int slot, int gen, int cap);
void drv_submit(struct drv *v); /* runs it; results are read by drv_results */
/* Reads the step filled last, or (late) the one before it. */
void drv_results(struct drv *v, bool late);
void drv_run(struct drv *v); /* both */

/* Whole requests: start with the prompt in chunks of `chunk`, one decode of the slots in `mask`. */
void drv_prefill(struct drv *v, int slot, const int32_t *prompt, int n, struct slot_params p,
                 int chunk);
void drv_decode_mask(struct drv *v, unsigned mask);

/* Scratch memory of batch, models and drafter becomes NaN and impossible numbers. drv_learn finds
 * it: what a few steps changed and is no state. Call it once, right after opening. */
void drv_learn(struct drv *v);
void drv_poison(struct drv *v);

/* The drafts that wait in a slot: tokens, parents, ancestors. */
uint64_t drv_drafts(const struct drv *v, int slot);

/* The KV memory of two drivers of one configuration, bit for bit. */
bool drv_same_kv(const struct drv *a, const struct drv *b);

/* References of slots 1 … DRV_REQS for their prompts and parameters. */
struct drv_ref *drv_reference(const struct drv_conf *c,
                              void (*request)(const struct drv *v, int slot, int32_t *prompt,
                                              int *n, struct slot_params *p));

#endif
