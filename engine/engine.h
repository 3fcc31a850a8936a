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
#include "engine/sched/gen.h" /* gen_params, gen_req, gen_evt */

struct engine;
struct buf;
struct spec_algo;

/* Settings; zero or NULL means the default beside it. Strings are copied. */
struct engine_conf {
    const char *model;          /* directory, required; dummy: also a config.json of any name */
    bool dummy;                 /* generated weights; text needs a tokenizer.json all the same */
    int num_layers;             /* dummy: the first so many layers; 0: all */
    const char *device;         /* "auto", "cpu", "cuda", "cuda:N" (default auto) */
    int threads;                /* 0: online cores; divided over the ranks */
    int tensor_parallel_size;   /* ranks that share every layer, 1 */
    int max_model_len;          /* 0: the model's */
    int max_num_seqs;           /* decoding at once, 64 */
    int max_num_batched_tokens; /* prefill rows a step; 0: 512 on the CPU, 2,048 on a GPU */
    int block_size;             /* tokens a page; 0: derived */
    /* Capacity in tokens; 0: max_num_seqs * max_model_len, on the CPU device within 4 GiB, on a GPU
     * within what is left of its memory. */
    int64_t kv_cache_tokens;
    const char *kv_cache_dtype;     /* auto, f32, bf16, fp8 (fp8_e4m3); auto: the device's */
    double gpu_memory_utilization;  /* share of a GPU's free memory that is used, 0.9 */
    const char *const *allow_eager; /* [n_allow_eager] roles that may run without graphs */
    size_t n_allow_eager;
    int max_queued_requests;             /* waiting, 512 */
    const char *attention_backend;       /* NULL: chosen */
    const char *speculative;             /* NULL: off; auto, or an algorithm's name */
    const char *draft;                   /* directory of a drafter; NULL: none */
    int spec_steps, spec_topk;           /* S, K; 0: the algorithm's */
    int spec_tokens;                     /* N: rows of a request in one verify, root included; 0 */
    int spec_ngram_min, spec_ngram_max;  /* suffix lengths of prompt lookup; 0: its own */
    const char *draft_attention_backend; /* NULL: chosen */
    bool spec_ratio;                     /* ratio rejection instead of sampler match */
    bool spec_check_off;                 /* no self-check of the drafter at start */
    bool overlap_off;                    /* one step in flight instead of two */
    bool time_ops;                       /* engine_time_ops can be called */
    bool prefill_first;                  /* no decode while a prompt can be worked on: offline */
    uint64_t seed;                       /* base of seeds for requests without one; 0: random */
    const struct spec_algo *spec_algo;   /* tests: this algorithm, whatever the settings say */
};

/* Neutral values over the model's generation_config defaults. */
void engine_default_params(const struct engine *g, struct gen_params *p);

typedef void engine_wake(void *ud);

/* Blocks until ready (weights mapped, memory planned, buckets recorded) or fails. */
int engine_open(struct engine **out, const struct engine_conf *c, engine_wake *wake, void *ud,
                struct err *e);
/* What opening would do, as text: model, attention matrix, page size, memory. Loads no weights and
 * runs nothing. On a refusal `out` holds what was found before it. */
int engine_plan(const struct engine_conf *c, struct buf *out, struct err *e);
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
int engine_active(const struct engine *g); /* from submit until the final event can be polled */
/* False: work is pending and no step has finished for stall_us. */
bool engine_healthy(const struct engine *g, int64_t stall_us);

struct engine_info {
    const char *model_dir, *family, *arch, *device;
    int vocab, max_model_len, max_num_seqs, page, n_group;
    int max_num_batched_tokens;                      /* prefill rows of a step */
    int64_t kv_tokens, kv_pages;                     /* of the largest group */
    int64_t n_param;                                 /* of the model */
    int64_t weight_bytes, kv_bytes, workspace_bytes; /* with the drafter's */
    int64_t lookup_bytes, expert_bytes; /* model_info; what a step does not read all of */
    int n_expert, topk;
    int64_t kv_token_bytes; /* of the model */
    const char *kv_dtype;   /* what the KV memory holds */
    int n_graph;
    int64_t graph_bytes; /* of a GPU's memory */
    /* Of engine_open: all of it; device, model and checks; weights and memory; graphs. */
    double ready_s, open_s, load_s, record_s;
    int32_t bos;
    int n_eos;
    int32_t eos[16];
    bool has_text;                        /* there is a vocabulary */
    size_t token_bytes_max;               /* longest token, for pre-checks of text length */
    int world;                            /* ranks; the bytes above are of all together */
    const char *spec_name;                /* the algorithm in use; "off" */
    int spec_rows, spec_steps, spec_topk; /* N, S, K; 1, 0, 1 without one */
    bool spec_ngram, spec_model;          /* a request may draft by lookup; by the drafter */
    struct gen_params defaults;
};
const struct engine_info *engine_info(const struct engine *g);

/* What is held right now, for tests: all zero once every request has ended. */
struct engine_usage {
    int active, slots;
    int64_t pages;                         /* over all groups */
    int64_t n_step, n_decode, n_preempted; /* steps, those that decode; preemptions */
    int64_t n_rows;                        /* verified, of all decode steps */
    double part_us[4]; /* device time of decode: verify, accept, extend, draft */
};
void engine_usage(const struct engine *g, struct engine_usage *out);
/* With engine_conf.time_ops: from the next step on every operation is timed alone
 * (kernels/timed.h), which makes steps slower, or no longer. And what the mean decode or prefill
 * part of those steps consisted of, the greatest time first; returns how many there are. Both while
 * no request runs. */
struct engine_op {
    const char *name;
    double calls, us;
};
enum { ENGINE_OPS = 48 };
void engine_time_ops(struct engine *g, bool on);
int engine_ops(const struct engine *g, bool prefill, struct engine_op out[ENGINE_OPS]);

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
