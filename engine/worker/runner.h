/* The device side of the worker without its thread: opens device, model, attention, memory and
 * graphs, and runs one step. Everything here is called by one thread (the worker's; a test's). */
#ifndef SPECD_RUNNER_H
#define SPECD_RUNNER_H

#include "engine/batch/batch.h"
#include "engine/graph/graph_pool.h"
#include "engine/kv/pool.h"
#include "engine/worker/worker.h"
#include "kernels/timed.h"
#include "speculative/spec.h"

enum {
    RING_DEPTH = STEPS_MAX + 1,
    NEEDS_MAX = N_ROLES * LIM_KV_GROUPS,
    KEYS_MAX = 384,
};

struct runner {
    struct worker_conf conf; /* numbers only: strings are not kept */
    const struct dev_ops *ops;
    struct dev *d;
    struct model *model;
    struct model *drafter; /* NULL: none */
    struct worker_info info;
    struct attn_use attn[N_ROLES][LIM_KV_GROUPS];  /* of the groups of the role's model */
    struct attn_need need[N_ROLES][LIM_KV_GROUPS]; /* of the roles in use, as chosen */
    struct graph_dims dims[N_ROLES];               /* the most a call of the role may bring */
    struct batch_conf sizes;
    struct batch b;
    struct kv_pool kv;
    int share;             /* group of the target whose pages the drafter uses */
    struct kv_pool drf_kv; /* the drafter's planes, over page tables of kv */
    float *taps;           /* [rows_max, n_tap * hidden], NULL without taps */
    int64_t *stamps;       /* pinned [RING_DEPTH][N_STAMPS] */
    float *draft_q;        /* [slots_max + 1][steps][vocab] with ratio rejection, else NULL */
    struct spec_env spec_env;
    const struct spec_algo *algo;
    struct spec *spec;
    struct graph_pool *graphs;
    int set_max;
    int64_t note_first_us, note_us; /* progress of the weights: begin, last line */
    bool eager;                     /* tests: run the bodies instead of replaying the graphs */
    bool apart; /* tests: verify and round in two launches even where one graph has both */
    bool
        time_ops; /* atomic: from the next step on operations are timed, without graphs (timed.h) */
    bool timing;  /* in this step */
    struct op_times op_times[N_STEP_PARTS]; /* read with timed_read */
    bool parts; /* benchmarks: besides, draft-extend eagerly and the loop as a graph of its own */
};

/* The first steps of opening, which take no device memory and read no weights; runner_close is due
 * also when they fail. begin: device, model. choose: page size, backends, sizes, bytes. */
int runner_begin(struct runner *r, const struct worker_conf *c, struct err *e);
int runner_choose(struct runner *r, const struct worker_conf *c, struct err *e);
int runner_probe(struct runner *r, struct err *e); /* after choose: the backends do what they say */
/* What every role in use needs of every group of its model, page not chosen; out[NEEDS_MAX],
 * returns how many. group[i] is the group of out[i]; may be NULL. */
int runner_needs(const struct runner *r, enum attn_kind form, struct attn_need *out, int *group);
/* Keys of the graphs that a start records, out[KEYS_MAX]; returns how many. Needs sizes only. */
int runner_keys(const struct runner *r, struct graph_key *out);
size_t runner_tap_bytes(const struct runner *r);
size_t runner_q_bytes(const struct runner *r); /* 0 without ratio rejection */
/* The recorded depth of a round that makes at least `want` drafts a path. */
int runner_depth(const struct spec_shape *s, int want);
/* The model that a role runs, NULL: the role is not in use. */
struct model *runner_model(const struct runner *r, enum role role);

/* All of it. */
int runner_open(struct runner *r, const struct worker_conf *c, struct err *e);
void runner_close(struct runner *r); /* also of a half-opened one */
/* Staging blocks with the capacities of the configuration. */
int runner_step_init(struct runner *r, struct step *s, struct err *e);
void runner_step_done(struct runner *r, struct step *s);
/* What the scheduler filled, into another rank's block. */
void runner_step_copy(struct step *to, const struct step *from);
/* Every rank must have been given the same step: what differs would leave a rank waiting in a
 * collective that the others do not enter. OK without a communicator; E_DEVICE names the rank. */
int runner_step_same(struct runner *r, const struct step *s, struct err *e);
/* Issues the step's work. Returns at once on a GPU, when the work is done on the CPU device; a
 * failure is in s->err as well. */
int runner_submit(struct runner *r, struct step *s);
/* 1: the step is done and its results are readable (or it failed); 0: it still runs. No waiting. */
int runner_poll(struct runner *r, struct step *s);
/* Both: for tests. */
int runner_step(struct runner *r, struct step *s);

#endif
