/* The pool of recorded graphs: one a key, recorded at start, largest first; a replay allocates
 * nothing and changes no pointer.
 *
 * A decode-like role never runs eager: a request for sizes beyond every bucket is a broken
 * invariant of the planner, and losing a graph is an error unless the role was allowed to. Then it
 * runs without graphs altogether. The worker thread owns a pool. */
#ifndef SPECD_GRAPH_POOL_H
#define SPECD_GRAPH_POOL_H

#include "attention/attn.h"
#include "engine/base/err.h"
#include "kernels/device.h"

struct graph_key {
    enum role role;
    int variant; /* algorithm and depth; 0: no drafts */
    int reqs;    /* requests bucket */
    int rows;    /* rows bucket, all requests together */
    int qlen;    /* most rows of a request; 0 where it is of no account */
    int sampler; /* sampler variant; 0: the general one */
};

/* Issues the operations of one key; called between record_begin and record_end, and directly by
 * graph_pool_eager. */
typedef int graph_body(void *ud, const struct graph_key *k, struct err *e);

/* What recording a role took. */
struct graph_report {
    int n; /* graphs */
    double seconds;
    int64_t bytes; /* of device memory; 0 where the device has none of its own */
    bool eager;    /* a graph was lost, so the role runs without; `why` says which and how */
    struct err why;
};

struct graph_pool;

/* `eager`: bit per role that may run without graphs (--allow-eager); a graph of another role that
 * cannot be recorded is an error that names the role, the bucket and the flag. */
int graph_pool_open(struct graph_pool **out, const struct dev_ops *ops, struct dev *d,
                    const struct graph_key *keys, int n, unsigned eager, graph_body *body, void *ud,
                    struct err *e);
const struct graph_report *graph_pool_report(const struct graph_pool *p, enum role role);
/* The name that --allow-eager has for a role with graphs, NULL: it has none; and back (E_INVAL). */
const char *graph_role_name(enum role role);
int graph_role_find(enum role *out, const char *name, struct err *e);
void graph_pool_close(struct graph_pool *p);
int graph_pool_count(const struct graph_pool *p);
/* The smallest bucket that holds (reqs, rows, qlen) of the role and variants; NULL: none. */
const struct graph_key *graph_pool_fit(const struct graph_pool *p, const struct graph_key *want);
/* `k` must come from graph_pool_fit. Runs the body where the role has lost its graphs. */
int graph_pool_replay(struct graph_pool *p, const struct graph_key *k, struct err *e);
/* Runs the body without a graph: the same operations on the same addresses, for tests. */
int graph_pool_eager(struct graph_pool *p, const struct graph_key *k, struct err *e);

/* Buckets 1, 2, 4, 8, 16, 24, 32, 48, 64, 96 … up to and including max; returns how many. */
int graph_buckets(int max, int *out, int cap);

#endif
