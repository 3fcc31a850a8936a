/* The worker: the one thread that owns the device, the weights, the KV memory and the graphs. With
 * tensor parallelism it is a group of such threads, one a rank; every rank gets a copy of the same
 * step, and rank 0's results are the step's.
 *
 * The scheduler hands it steps; every step is a staging block whose ownership travels with it. Two
 * blocks exist, so the scheduler fills one while the device runs the other. Commands are executed
 * strictly in order: a page or slot that the scheduler frees after submitting step n may be given
 * out again in step n + 1. Results come back as the step's ring records, in order. */
#ifndef SPECD_WORKER_H
#define SPECD_WORKER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "attention/attn.h"
#include "engine/base/err.h"
#include "engine/model/model.h"
#include "kernels/ops.h"
#include "speculative/spec.h"

enum { STEPS_MAX = 2 };

struct worker_conf {
    const char *model_dir, *device; /* "auto", or a device name that may end in :N */
    bool dummy;                     /* generated weights (struct model_conf) */
    int n_layer;                    /* of them; 0: all */
    int threads;                    /* of all ranks together */
    int world;                      /* ranks; 0, 1: one */
    struct comm *comm;              /* of the rank that is opened; worker_open makes them */
    int reqs_max;                   /* requests of one decode step; slots are 1..slots_max */
    int slots_max;
    int prefill_rows_max; /* rows of one prefill pass; 0: the device's own */
    int len_max;          /* tokens of one request, prompt and output; lowered to kv_tokens */
    bool len_asked;       /* len_max was set, so a device that cannot hold it is an error */
    int block_size;       /* 0: derived */
    int64_t kv_tokens;    /* capacity of every group in tokens; 0: what fits (kv/fit.h) */
    double memory_share;  /* of the device's free memory that a start uses; 0: all of it */
    unsigned eager;       /* bit per role that may run without graphs */
    const char *attention_backend;
    enum attn_kind mla_form; /* 0: absorbed */
    enum dtype kv_dtype;     /* DT_NONE: the device's */
    const char *draft_attention_backend;
    struct spec_conf spec;
    const struct spec_algo *spec_algo; /* tests: this algorithm, whatever spec.method says */
    bool time_ops;                     /* benchmarks: worker_time_ops can be called */
    bool parts; /* benchmarks: the loop of a round is recorded alone, too (runner.h) */
};

/* A chunk of a prompt: rows [row0, row0 + n) of the step's prefill arrays, positions pos0 … */
struct prefill_chunk {
    int32_t slot, gen;
    int32_t row0, n, pos0;
    bool last;       /* sample after the last row */
    int32_t n_score; /* >= 0: log probabilities of the tokens after each row (prompt echo) with so
                        many alternatives; -1: none */
    bool draft;      /* the model drafter takes it too */
};

/* The parts of a step that run one after the other. */
enum step_part { PART_DECODE, PART_PREFILL, N_STEP_PARTS };

/* What the scheduler fills. Arrays have the capacities of worker_conf. */
struct step {
    int64_t no; /* 1, 2, 3 … */
    /* applied first, in this order: stops, starts, page-table entries */
    int n_stop, n_start, n_set;
    int32_t *stop;            /* [slots_max] */
    struct slot_start *start; /* [slots_max] */
    struct page_set *set;     /* [set_max] */
    int set_max;
    /* decode: one verify of these slots (replayed graph) */
    int n_req;
    int32_t *req_slot, *req_gen; /* [reqs_max] */
    int32_t *req_cap;            /* [reqs_max] most rows of each, 1 … N */
    int rows_max;                /* their sum */
    int n_draft;                 /* the first so many requests may have SPEC_MODEL ones among them,
                                    for which new drafts are made after the verify */
    int depth;                   /* of the drafts made, 1 … S; 0: none are made */
    bool lookup;                 /* some may have SPEC_NGRAM */
    /* prefill: one eager pass over chunks */
    int n_chunk, n_row;
    struct prefill_chunk *chunk; /* [reqs_max] */
    int32_t *tok;                /* [prefill_rows_max] token of each row */
    int32_t *score_tok;          /* [prefill_rows_max] token whose log probability is wanted, -1 */
    /* results, valid once the step came back */
    int32_t *host; /* pinned staging of prefill rows and requests; the runner's */
    void *in;      /* pinned: the lists above that a decode reads, as the device has them */
    int64_t *head; /* pinned: the step's number once it is done */
    const struct ring_rec *decode_rec;  /* [n_req] */
    const struct ring_rec *prefill_rec; /* [n_chunk] n = 1 where last */
    struct sample_out *score;           /* [prefill_rows_max] of rows with score_tok >= 0 */
    const int64_t *stamps; /* [N_STAMPS] device clock, ns; 0: the step has no such part */
    int64_t submit_us, device_us;
    struct err err; /* code != 0: the device failed; results are void */
};

/* Slots for so many requests of a step: paused requests keep a slot without a place in the steps,
 * so there are more slots. */
int worker_slots(int reqs_max);

struct op_times;
struct worker;

struct worker_info {
    struct model_info model;
    int page;
    int n_page[LIM_KV_GROUPS];    /* pages of a group's pool; page ids 0 … n_page - 1 */
    int pages_max[LIM_KV_GROUPS]; /* entries of a page-table row */
    int64_t kv_bytes;
    int64_t batch_bytes, model_bytes, attention_bytes, workspace_bytes; /* the last is the sum */
    const char *spec_name;                                              /* the algorithm in use */
    struct spec_shape spec;
    bool spec_model;                     /* requests may have SPEC_MODEL */
    bool spec_adapt;                     /* the method was left to us, and so is its depth */
    int64_t draft_bytes, draft_kv_bytes; /* the drafter's parts of workspace_bytes and kv_bytes */
    struct model_info draft;             /* of the drafter; family NULL: none */
    int64_t copy_bytes; /* of weights that a rank's model copies (its column shards) */
    int world; /* ranks; bytes of KV, copies and workspace are one rank's in a runner's numbers, all
                  ranks' in a worker's */
    int len_max, prefill_rows_max; /* as opened */
    int64_t kv_tokens;
    /* A device's own memory, 0 without: free when it was asked, what a start may use of it, and
     * what is set aside for recorded steps. */
    int64_t free_bytes, budget_bytes, graph_reserve;
    int64_t table_bytes;             /* page tables */
    int n_graph;                     /* to be recorded; once open: recorded */
    int64_t graph_bytes;             /* that they took of the device's own memory */
    double open_s, load_s, record_s; /* device, model and checks; weights and memory; graphs */
    const char *device;
};

/* Opens device and model, checks every role's attention need, plans memory, records the graphs of
 * all buckets and starts the thread. `done` is called on the worker thread after each step; it must
 * only queue and signal. */
int worker_open(struct worker **out, const struct worker_conf *c,
                void (*done)(void *ud, struct step *s), void *ud, struct err *e);
void worker_close(struct worker *w); /* finishes queued steps first */
const struct worker_info *worker_info(const struct worker *w);
/* A free staging block, NULL when both are in flight. Scheduler thread only. */
struct step *worker_step_get(struct worker *w);
/* Hands the step over; it comes back through `done`. */
void worker_step_put(struct worker *w, struct step *s);
/* The scheduler has read the results of a step that came back: the block is free again. */
void worker_step_release(struct worker *w, struct step *s);
/* With worker_conf.time_ops: operations of rank 0's steps from the next on are timed one by one, or
 * no longer; and the sums of a part since. While no request runs. */
void worker_time_ops(struct worker *w, bool on);
void worker_op_times(const struct worker *w, enum step_part p, struct op_times *out);
/* Device counters, for tests. Racy reads while steps run. */
const struct dev_counts *worker_counts(const struct worker *w);

/* The same as a table, so that the scheduler can be driven by a fake in tests. */
struct worker_ops {
    struct step *(*get)(void *w);
    void (*put)(void *w, struct step *s);
    void (*release)(void *w, struct step *s);
};
extern const struct worker_ops worker_real;

#endif
