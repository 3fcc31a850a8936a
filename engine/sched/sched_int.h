/* Inside the scheduler: the request, the slot and the shared state. Scheduler thread only, but for
 * what the comment of struct sched's inbox says. */
#ifndef SPECD_SCHED_INT_H
#define SPECD_SCHED_INT_H

#include <pthread.h>

#include "engine/base/buf.h"
#include "engine/base/thread.h"
#include "engine/sched/sched.h"
#include "engine/text/stream.h"
#include "speculative/adapt.h"

enum req_state { RQ_WAITING, RQ_PREFILL, RQ_READY };

struct sreq {
    struct sreq *hash_next;
    struct gen_req *g; /* its prompt has moved to tok */
    uint64_t age;      /* order of submission; smaller is older */
    enum req_state state;
    bool paused;
    bool told;      /* EVT_STARTED is out */
    bool dev_ended; /* the device ended it, so it need not be told */
    int slot;       /* 0: none */

    int32_t *tok; /* [n_tok] prompt and processed outputs by position */
    int n_prompt, n_tok, cap_tok;
    int limit;   /* n_tok at which it ends by length */
    int fill;    /* prefill: positions already planned */
    int fill_to; /* prefill: positions to plan before it decodes */
    int seen;    /* positions that were prefilled once: beyond are new, below is recomputation */
    int pending; /* tokens that steps in flight may still add, at most … */
    int sure;    /* … and at least, unless it ends */
    int round;   /* depth of the last round of drafts planned for it; 0: none since it started */
    bool lost;   /* the model drafter has not followed it from its first token on */
    int found;   /* rows that were waiting when its last result came, for prompt lookup */
    int64_t chunk_step; /* the step that its last chunk is in */

    struct gen_evt *score; /* EVT_PROMPT in the making; NULL when not asked for or sent */
    int scored;            /* prompt tokens of it that are final */

    bool has_text;
    struct text_stream text;
    struct gen_stats stats;
};

struct slot {
    struct sreq *r; /* NULL: free */
    int32_t gen;    /* of the current or last user */
    bool stop;      /* the device must be told that its user left */
    int64_t left;   /* number of the step in whose plan it became free */
    struct kv_seq kv;
};

/* What a step in flight was planned for: the block itself is the worker's, which may pad or reuse
 * its lists. */
struct flight {
    struct step *st;
    int n_req, n_chunk;
    int n_may, depth;    /* requests that may use the drafter, and its depth here */
    bool steady;         /* all are such requests, with all rows of that depth */
    int32_t *slot, *gen; /* [reqs_max] */
    int *add;            /* [reqs_max] most tokens the verify may add */
    struct prefill_chunk *chunk;
};

struct req_list { /* ordered by age */
    struct sreq **v;
    int n, cap;
};

enum cmd_kind { CMD_SUBMIT, CMD_CANCEL, CMD_CANCEL_ALL, CMD_PAUSE, CMD_RESUME };
struct cmd {
    enum cmd_kind kind;
    uint64_t id;
    struct gen_req *req;
};
struct inbox {
    struct cmd *cmd;
    int n_cmd, cap_cmd;
    struct step *step[STEPS_MAX];
    int n_step;
};

enum { HASH_SIZE = 1024 };

struct sched {
    struct sched_conf c;
    int len_max;
    struct kv *kv;
    struct slot *slot; /* [slots_max + 1] */
    int *free_slot;    /* stack */
    int n_free_slot;
    int *stop_slot; /* slots with `stop` set */
    int n_stop_slot;

    struct sreq *hash[HASH_SIZE];
    struct req_list running, waiting;
    uint64_t next_age;
    int n_paused;
    struct adapt adapt;
    struct adapt_step spec; /* of the step being planned */
    int64_t step_no;
    int in_flight;
    struct flight flight[STEPS_MAX];
    struct step *spare; /* taken from the worker, not handed over yet */
    bool failed;        /* atomic: read by any thread */

    struct gen_evt *evt_first, *evt_last; /* of this turn, not handed out yet */
    int evt_done;
    struct buf text;
    struct sreq **scratch; /* [slots_max] candidates while the lists change */
    struct sched_stats st;

    /* Any thread, under `lock`. Two boxes: the owner takes one, the others fill the other. */
    pthread_mutex_t lock;
    pthread_cond_t more;
    struct inbox in, took;
    bool quit;
    struct thread thread;
    /* atomics */
    int live;
    int64_t mark_us; /* a step finished or work became pending; 0: nothing pending */
};

/* requests (req.c) */
struct sreq *req_find(struct sched *s, uint64_t id);
void req_add(struct sched *s, struct gen_req *g);
void req_list_add(struct req_list *l, struct sreq *r);
void req_list_del(struct req_list *l, struct sreq *r);
/* The one final event, with the tokens of `e` when it is not NULL (which becomes that event). */
void req_finish(struct sched *s, struct sreq *r, struct gen_evt *e, enum finish why,
                const struct err *err);
void req_unslot(struct sched *s, struct sreq *r, bool tell_device);
void req_preempt(struct sched *s, struct sreq *r);
void req_pause(struct sched *s, struct sreq *r, bool on);
void evt_push(struct sched *s, struct gen_evt *e);
int req_validate(const struct sched *s, const struct gen_req *g, struct err *e);
void req_slot_params(const struct sched *s, const struct sreq *r, struct slot_params *p);

/* choices (policy.c): no state of their own, nothing is changed here */
int policy_rows(const struct sched *s, const struct sreq *r); /* of its next verify, at most */
struct adapt_step policy_spec(struct sched *s, struct sreq *const *r, int n);
int policy_prefill_rows(const struct sched *s, int n_decode);
struct sreq *policy_victim(const struct sched *s, const struct sreq *needy);
struct sreq *policy_next(const struct sched *s);
bool policy_may_start(const struct sched *s, const struct sreq *r);
bool policy_over(const struct sreq *r);

/* plan.c */
bool plan_step(struct sched *s);
/* result.c */
void step_result(struct sched *s, struct step *st);

#endif
