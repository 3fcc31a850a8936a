/* The scheduler: request states, pages, slots and the plan of every step.
 *
 * One thread owns a scheduler (sched_start makes it; tests drive sched_turn themselves). Others
 * talk to it by sched_submit, sched_cancel, sched_pause and sched_step_done, which only queue and
 * signal. It reaches the device through struct worker_ops, time and randomness through functions
 * of its configuration, the outside through `events`, so that a test replaces all of them.
 *
 * States of a request:
 *
 *            submit            chunk planned          last chunk planned
 *   (queue) -------> WAITING ----------------> PREFILL ------------------> READY
 *                       ^                         |                          |
 *                       +--- preempted (pages or slots ran out; by age) -----+
 *   any state: cancel, error or end -> one final event, slot and pages are free at once.
 *
 * Up to two steps are in flight: step n + 1 is planned before the result of n. So the host knows
 * a request's length only within bounds, reserves pages for the upper one, and a request that
 * ended in step n may have (empty or late) rows in n + 1: a slot's generation counter tells them
 * apart from those of the slot's next user, and they are dropped. The worker runs steps in order,
 * so what is freed here may be given out again in the very next plan. */
#ifndef SPECD_SCHED_H
#define SPECD_SCHED_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/kv/pages.h"
#include "engine/sched/gen.h"
#include "engine/worker/worker.h"

struct sched;
struct tokenizer;

/* Of the verifies of requests (a request's part of a decode step) whose records were believed. */
struct spec_sums {
    int64_t n_verify, rows, drafted, accepted;
    int64_t deep[LIM_EMIT]; /* verifies by the depth of their deepest draft, 0: there was none */
    int64_t took[LIM_EMIT]; /* verifies by how many drafts they accepted */
};

/* Counters and levels; the counters only grow. */
struct sched_stats {
    /* now */
    int running, waiting, paused; /* with a slot; without; either, and paused */
    int64_t queue_tokens;         /* prompt tokens of the waiting */
    double kv_usage;              /* fullest group, 0 … 1 */
    int64_t pages_used;           /* over all groups */
    int slots_used, in_flight;
    /* so far */
    int64_t n_step, n_decode, n_prefill; /* steps; those with a decode, with a prefill pass */
    int64_t n_result;                    /* steps that came back */
    int64_t n_submitted, n_finished;
    int64_t prompt_tokens, recomputed_tokens; /* prefill rows: first time, again */
    int64_t generated;                        /* tokens in events */
    struct spec_sums spec[SPEC_MODEL + 1];    /* by where a request's drafts come from */
    int64_t n_preempted, n_nan;
    int64_t n_stale;              /* records whose request had left its slot */
    int64_t n_late;               /* of those, records that carried tokens */
    int64_t n_trimmed;            /* tokens dropped behind a stop string */
    int64_t n_stalled;            /* decode turns skipped for want of pages */
    int64_t n_overshoot;          /* pages held for rows that an end made needless */
    int64_t n_reused;             /* slots started again in the step after their user left */
    double part_us[N_STAMPS - 1]; /* device time of decodes between their stamps */
};

struct sched_conf {
    const struct worker_ops *ops;
    void *worker;
    struct kv_conf kv;
    int reqs_max;  /* requests of a decode step, and unpaused requests with a slot */
    int slots_max; /* slots 1 … slots_max */
    int rows_max;  /* prefill rows a step */
    int len_max;   /* tokens of one request, prompt and output; lowered to what KV holds */
    int queue_max; /* live requests beyond reqs_max */
    int steps;     /* in flight: 1 … STEPS_MAX */
    /* speculation; 1, 1, 1, 0, false, false without: */
    int rows;           /* most rows of a request in a decode step: root and drafts */
    int emit;           /* most tokens a decode step adds: drafts on a path, and one */
    int ahead;          /* positions past the committed length that a step may write */
    int depth;          /* of the model drafter's rounds; 0: there is none */
    bool ratio;         /* chains of the drafter are accepted by ratio rejection */
    bool adapt;         /* the depth follows measured times and acceptance */
    int ngram;          /* drafts of a request that asks for prompt lookup; 0: none may */
    bool prefill_first; /* no decode in a step that has prefill */
    int vocab;
    int n_eos;
    int32_t eos[16];
    const struct tokenizer *tok; /* NULL: events without text, stop strings are refused */
    int64_t (*clock_us)(void *ud);
    uint64_t (*rand)(void *ud); /* seeds of requests without one; called by the submitter */
    /* A list of events, oldest first, now the receiver's; n_done of them are final. */
    void (*events)(void *ud, struct gen_evt *first, struct gen_evt *last, int n_done);
    void (*stats)(void *ud, const struct sched_stats *st); /* before events, after turns; or NULL */
    void *ud;
};

int sched_open(struct sched **out, const struct sched_conf *c, struct err *e);
void sched_start(struct sched *s); /* starts the thread */
/* Ends every request, waits for the steps in flight, joins the thread. */
void sched_stop(struct sched *s);
void sched_close(struct sched *s); /* stopped, or never started and idle */

/* OK: everything in r[0 … n) is taken. E_INVAL, E_RANGE: one of them can never run. E_BUSY: fewer
 * than n places. E_DEVICE: the device failed. Any thread. */
int sched_submit(struct sched *s, struct gen_req **r, size_t n, struct err *e);
void sched_cancel(struct sched *s, uint64_t id);
void sched_cancel_all(struct sched *s);
void sched_pause(struct sched *s, uint64_t id, bool on);
/* A step came back (worker thread): queue and signal. */
void sched_step_done(void *s, struct step *st);

/* One turn: takes what was queued, processes steps that came back, plans as many as may be in
 * flight. False: there was nothing to do. Owner only. */
bool sched_turn(struct sched *s);

int sched_live(const struct sched *s); /* from submit to just before the final event; any thread */
int sched_len_max(const struct sched *s);
bool sched_failed(const struct sched *s); /* the device failed; any thread */
/* Microseconds since a step finished, or work began to be pending; 0 when none is. Any thread. */
int64_t sched_silence_us(const struct sched *s);
const struct sched_stats *sched_stats(const struct sched *s); /* owner, or while it rests */
void sched_check(const struct sched *s); /* aborts when books do not balance; owner, for tests */

#endif
