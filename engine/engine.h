/* The engine as the server sees it: requests of token ids in, events of text and tokens out.
 *
 * Threads: engine_open/close by the thread that owns it; engine_submit and engine_cancel from any
 * one thread at a time (the loop); engine_poll by the loop only. The engine runs a scheduler thread
 * and a worker thread. It calls `wake` (from its threads) when the event list turns non-empty; wake
 * must only signal. Text calls (engine_encode …) are pure and thread-safe once the engine is ready.
 */
#ifndef SPECD_ENGINE_H
#define SPECD_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/err.h"
#include "engine/base/span.h"
#include "engine/limits.h"

struct engine;
struct buf;

/* Settings; zero or NULL means the default beside it. Strings are copied. */
struct engine_conf {
    const char *model;          /* directory, required */
    const char *device;         /* "auto", "cpu" (default auto) */
    int threads;                /* 0: online cores */
    int max_model_len;          /* 0: the model's */
    int max_num_seqs;           /* decoding at once, 64 */
    int max_num_batched_tokens; /* prefill rows a step, 512 */
    int block_size;             /* tokens a page; 0: derived */
    int64_t kv_cache_tokens; /* capacity in tokens; 0: max_num_seqs * max_model_len within 4 GiB */
    int max_queued_requests; /* waiting, 512 */
    const char *attention_backend; /* NULL: chosen */
    bool overlap_off;              /* one step in flight instead of two */
    uint64_t seed;                 /* base of seeds for requests without one; 0: random */
};

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
};
/* Neutral values over the model's generation_config defaults. */
void engine_default_params(const struct engine *g, struct gen_params *p);

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
    uint64_t seed; /* the one used */
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

typedef void engine_wake(void *ud);

/* Blocks until ready (weights mapped, memory planned, buckets recorded) or fails. */
int engine_open(struct engine **out, const struct engine_conf *c, engine_wake *wake, void *ud,
                struct err *e);
/* Cancels what is left, joins the threads, frees everything. Undelivered events are dropped. */
void engine_close(struct engine *g);

/* Takes *r on OK. E_INVAL / E_RANGE: cannot ever run (empty, id outside the vocabulary, longer than
 * the context or the KV cache; nothing is taken). E_BUSY: the queue is full (or less room than
 * `n`: a list is admitted as a whole). E_CANCELED: draining. */
int engine_submit(struct engine *g, struct gen_req **r, size_t n, struct err *e);
/* Idempotent, any state; a final event (FINISH_CANCELED) still arrives unless it already did. */
void engine_cancel(struct engine *g, uint64_t id);
/* A paused request takes no part in steps (its client reads slowly); its KV may be taken away. */
void engine_pause(struct engine *g, uint64_t id, bool on);
/* All events so far, oldest first, as a list the caller frees one by one; NULL: none. */
struct gen_evt *engine_poll(struct engine *g);
/* No new submissions; returns at once. Idle when engine_active() is 0. */
void engine_drain(struct engine *g);
void engine_cancel_all(struct engine *g);
int engine_active(const struct engine *g); /* requests between submit and their final event */
/* False: work is pending and no step has finished for stall_us. */
bool engine_healthy(const struct engine *g, int64_t stall_us);

struct engine_info {
    const char *model_dir, *family, *arch, *device;
    int vocab, max_model_len, max_num_seqs, page, n_group;
    int64_t kv_tokens, kv_pages; /* of the largest group */
    int64_t n_param, weight_bytes, kv_bytes, workspace_bytes;
    int n_graph;
    double load_s, record_s;
    int32_t bos;
    int n_eos;
    int32_t eos[16];
    size_t token_bytes_max; /* longest token, for pre-checks of text length */
    struct gen_params defaults;
};
const struct engine_info *engine_info(const struct engine *g);

/* ---- text: pure calls on the immutable vocabulary ---- */

/* add_special: BOS and the like. parse_special: special tokens in the text are recognised, except
 * in `untrusted` spans. Output ids are mem_alloc'ed. E_RANGE beyond max_ids (0: no limit). */
int engine_encode(const struct engine *g, const char *s, size_t n, bool add_special,
                  bool parse_special, const struct span *untrusted, size_t n_untrusted,
                  size_t max_ids, int32_t **ids, size_t *n_ids, struct err *e);
void engine_decode(const struct engine *g, const int32_t *ids, size_t n, bool skip_special,
                   struct buf *out);
const char *engine_token_bytes(const struct engine *g, int32_t id, size_t *n);
const char *engine_token_piece(const struct engine *g, int32_t id); /* vocabulary spelling */

#endif
