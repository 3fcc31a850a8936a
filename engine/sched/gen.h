/* Requests and events: what travels between the server, the facade and the scheduler.
 *
 * A gen_req belongs to the server until engine_submit takes it, then to the scheduler, which frees
 * it at its final event. A gen_evt belongs to whoever holds it: the scheduler makes it, the server
 * frees it. Plain data, no thread of its own. */
#ifndef SPECD_SCHED_GEN_H
#define SPECD_SCHED_GEN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/err.h"
#include "engine/limits.h"
#include "kernels/ops.h"

enum finish { FINISH_NONE, FINISH_STOP, FINISH_LENGTH, FINISH_CANCELED, FINISH_ERROR };

struct gen_params {
    float temperature, top_p, min_p; /* < 1e-5: greedy; (0,1]; [0,1] */
    int top_k;                       /* <= 0: off */
    float repetition, presence, frequency;
    uint64_t seed;
    bool has_seed;  /* without one a random seed is drawn and logged */
    int max_tokens; /* >= 0; 0 only with prompt log probabilities */
    int min_tokens;
    bool ignore_eos;
    int n_logprobs;        /* -1: none; 0..LIM_LOGPROBS alternatives beside the sampled token */
    int n_prompt_logprobs; /* -1: none; else for every prompt token after the first */
    int n_stop_ids;
    int32_t stop_ids[LIM_STOP_IDS - 8]; /* the model's EOS ids are added unless ignore_eos */
    int n_bias;
    int32_t bias_id[LIM_BIAS];
    float bias[LIM_BIAS];
    bool skip_special; /* special tokens give no text */
    bool include_stop; /* a matched stop string stays in the text */
    enum spec_mode
        spec_mode;   /* where drafts come from; what the server has not is refused before */
    int spec_max;    /* most drafted rows of a verify; >= 0 */
    bool spec_fixed; /* rounds of a step with it are spec_depth deep, whatever has been learnt */
    int spec_depth;  /* as rounds are recorded (runner_depth), or 0 */
    int spec_least;  /* with spec_fixed: a step of fewer requests teaches nothing by its time */
};
struct gen_req {
    uint64_t id;     /* unique among live requests, not 0 */
    int32_t *prompt; /* mem_alloc'ed; the engine takes it */
    size_t n_prompt; /* >= 1 */
    struct gen_params p;
    char **stop; /* mem_alloc'ed list of mem_alloc'ed strings, taken too */
    size_t n_stop;
    int64_t arrival_us; /* clock_us when the request came in */
};
struct gen_req *gen_req_new(void);
void gen_req_free(struct gen_req *r); /* with what it owns; NULL is fine */

struct gen_tok {
    int32_t id;
    float logprob; /* NaN when not asked for, and for the first prompt token */
    int n_top;
    const int32_t *top_id; /* n_top, best first; borrowed from the event */
    const float *top_logprob;
};

struct gen_stats { /* in the final event */
    int n_prompt, n_output, n_cached;
    int64_t arrival_us, start_us, first_us, last_us; /* queued until start; first and last token */
    int n_preempted;
    int n_verify, n_draft, n_accepted; /* verify steps; drafted rows in them; accepted of these */
    int n_drafted, n_first;            /* verifies with drafts; whose first draft was right */
    uint64_t seed;                     /* the one used */
};

enum gen_evt_kind {
    EVT_STARTED, /* left the queue: prefill begins (once, also after preemption not again) */
    EVT_PROMPT,  /* prompt log probabilities; tok[] has n_prompt entries */
    EVT_TOKENS,  /* one step's tokens of one request and the text they release (may be empty) */
    EVT_DONE,    /* the one final event; may carry tokens and text too */
};

struct gen_evt {
    struct gen_evt *next;
    uint64_t id;
    enum gen_evt_kind kind;
    char *text; /* valid UTF-8, n_text bytes and a NUL; never NULL */
    size_t n_text;
    int n_tok;
    struct gen_tok *tok; /* with logprobs only when asked for */
    enum finish finish;  /* EVT_DONE */
    int stop_string;     /* EVT_DONE with FINISH_STOP: index of the stop string, -1 */
    int32_t stop_id;     /* EVT_DONE with FINISH_STOP: the stop token id, -1; an EOS counts */
    bool stop_is_eos;
    struct err err;         /* FINISH_ERROR */
    struct gen_stats stats; /* EVT_DONE */
};
void gen_evt_free(struct gen_evt *e);
/* One block: an event with room for n_tok tokens of n_top alternatives each and n_text bytes. */
struct gen_evt *gen_evt_new(uint64_t id, enum gen_evt_kind kind, int n_tok, int n_top,
                            size_t n_text);

#endif
