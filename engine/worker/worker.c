/* The worker's threads, one a rank: each takes the steps in order, runs them on its device, and the
 * last rank that is done with a step hands it back. Staging blocks belong to the scheduler between
 * get and put, to these threads between put and `done`, to the scheduler again until release. The
 * scheduler sees rank 0's blocks; put copies what it filled into the other ranks'.
 *
 * Steps come back in order: a rank counts itself off step n, and calls `done` when it is the last,
 * before it looks at step n + 1, which cannot be over without it. */
#include "engine/worker/worker.h"

#include <stdio.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/base/thread.h"
#include "engine/worker/runner.h"

enum { POLL_US = 20 }; /* between looks at the device: small beside a step, small beside a core */

enum owner { OWNER_FREE, OWNER_SCHED, OWNER_QUEUE, OWNER_DONE };

struct rank {
    struct worker *w;
    struct worker_conf conf;
    struct runner r;
    struct thread thread;
    struct step steps[STEPS_MAX];
    struct step *flight[STEPS_MAX]; /* submitted, oldest first; the thread's own */
    int n_flight;
    struct step *queue[STEPS_MAX]; /* guarded by the worker's lock */
    int n_queue;
    /* the open result, written by the thread before it counts itself in n_opened */
    int open_ret;
    struct err open_err;
};

struct worker {
    int world;
    struct rank *rank; /* [world] */
    struct comm *comm[LIM_RANKS];
    struct worker_info info;
    void (*done)(void *ud, struct step *s);
    void *ud;
    pthread_mutex_t lock; /* guards what follows, and the ranks' queues */
    pthread_cond_t more;
    enum owner owner[STEPS_MAX];
    int left[STEPS_MAX];  /* ranks that are not done with the step */
    int n_opened, n_idle; /* ranks; idle: never to touch another rank's memory again */
    bool stop;
};

int worker_slots(int reqs_max)
{
    int n = reqs_max + (reqs_max + 1) / 2;
    return n < LIM_SLOTS - 1 ? n : LIM_SLOTS - 1;
}

static int step_index(const struct rank *k, const struct step *s)
{
    ptrdiff_t i = s - k->steps;
    CHECK(i >= 0 && i < STEPS_MAX);
    return (int)i;
}

static int open_device(struct rank *k)
{
    struct err *e = &k->open_err;
    TRY(runner_open(&k->r, &k->conf, e));
    for (int i = 0; i < STEPS_MAX; i++) {
        int ret = runner_step_init(&k->r, &k->steps[i], e);
        if (ret < 0) {
            for (int j = 0; j <= i; j++)
                runner_step_done(&k->r, &k->steps[j]);
            runner_close(&k->r);
            return ret;
        }
    }
    k->r.ops->freeze(k->r.d);
    return OK;
}

static struct step *pop(struct step **list, int *n)
{
    struct step *s = list[0];
    for (int i = 1; i < *n; i++)
        list[i - 1] = list[i];
    --*n;
    return s;
}

/* The step goes back as rank 0's block; a failure of any rank is its failure, and the one that is
 * not a consequence of another's is named. */
static void hand_back(struct worker *w, int i)
{
    struct step *s = &w->rank[0].steps[i];
    for (int k = 1; k < w->world; k++) {
        const struct err *e = &w->rank[k].steps[i].err;
        if (!e->code || (s->err.code && (s->err.code != E_CANCELED || e->code == E_CANCELED)))
            continue;
        s->err = *e;
        err_prefix(&s->err, "rank %d", k);
    }
    w->done(w->ud, s);
}

/* Counts this rank off the steps that it is done with; false: none was. */
static bool finish_steps(struct rank *k)
{
    struct worker *w = k->w;
    bool any = false;
    while (k->n_flight && runner_poll(&k->r, k->flight[0])) {
        int i = step_index(k, pop(k->flight, &k->n_flight));
        mutex_lock(&w->lock);
        bool last = --w->left[i] == 0;
        if (last)
            w->owner[i] = OWNER_DONE;
        mutex_unlock(&w->lock);
        if (last)
            hand_back(w, i);
        any = true;
    }
    return any;
}

/* Called and left with the lock held. */
static void run_steps(struct rank *k)
{
    struct worker *w = k->w;
    for (;;) {
        while (!k->n_queue && !k->n_flight && !w->stop)
            cond_wait(&w->more, &w->lock);
        if (k->n_queue) {
            struct step *s = pop(k->queue, &k->n_queue);
            mutex_unlock(&w->lock);
            runner_submit(&k->r, s); /* a failure shows in the poll */
            k->flight[k->n_flight++] = s;
        } else if (k->n_flight) {
            mutex_unlock(&w->lock);
        } else {
            return;
        }
        bool done = finish_steps(k);
        mutex_lock(&w->lock);
        if (!done && !k->n_queue) /* a new step ends the nap */
            cond_wait_us(&w->more, &w->lock, POLL_US);
    }
}

static void run(void *ud)
{
    struct rank *k = ud;
    struct worker *w = k->w;
    int ret = open_device(k); /* on this thread: it owns the device from the first call on */
    mutex_lock(&w->lock);
    k->open_ret = ret;
    w->n_opened++;
    cond_broadcast(&w->more);
    if (ret == OK)
        run_steps(k);
    w->n_idle++;
    cond_broadcast(&w->more);
    while (w->n_idle < w->world) /* the others may still read our part of a sum */
        cond_wait(&w->more, &w->lock);
    mutex_unlock(&w->lock);
    if (ret < 0)
        return;
    for (int i = 0; i < STEPS_MAX; i++)
        runner_step_done(&k->r, &k->steps[i]);
    runner_close(&k->r);
}

/* The threads are divided over the ranks. */
static void start_rank(struct worker *w, int i, const struct worker_conf *c)
{
    struct rank *k = &w->rank[i];
    char name[32] = "specd-worker";
    k->w = w;
    k->conf = *c; /* the strings are the caller's until worker_open returns */
    k->conf.comm = w->comm[i];
    k->conf.time_ops = c->time_ops && i == 0;
    k->conf.threads = c->threads / w->world > 1 ? c->threads / w->world : 1;
    if (i)
        snprintf(name, sizeof name, "specd-rank-%d", i);
    thread_start(&k->thread, name, run, k);
}

/* The bytes of all ranks together; every rank has as many. */
static void sum_info(struct worker *w)
{
    struct worker_info *o = &w->info;
    *o = w->rank[0].r.info;
    int64_t *each[] = {&o->copy_bytes,  &o->kv_bytes,        &o->batch_bytes,
                       &o->model_bytes, &o->attention_bytes, &o->workspace_bytes,
                       &o->draft_bytes, &o->draft_kv_bytes,  &o->table_bytes};
    for (size_t i = 0; i < ARRAY_LEN(each); i++)
        *each[i] *= w->world;
}

int worker_open(struct worker **out, const struct worker_conf *c,
                void (*done)(void *ud, struct step *s), void *ud, struct err *e)
{
    struct worker *w = MEM_NEW(struct worker);
    int ret = OK;
    w->done = done;
    w->ud = ud;
    w->world = c->world > 1 ? c->world : 1;
    mutex_init(&w->lock);
    cond_init(&w->more);
    if (w->world > 1)
        TRY_OUT(comm_shm_open(w->comm, w->world, e));
    w->rank = MEM_ARRAY(struct rank, w->world);
    for (int i = 0; i < w->world; i++)
        start_rank(w, i, c);
    mutex_lock(&w->lock);
    while (w->n_opened < w->world)
        cond_wait(&w->more, &w->lock);
    mutex_unlock(&w->lock);
    for (int i = 0; i < w->world && ret == OK; i++) {
        ret = w->rank[i].open_ret;
        if (ret < 0 && e)
            *e = w->rank[i].open_err;
    }
    TRY_OUT(ret);
    sum_info(w);
    *out = w;
    return OK;
out:
    worker_close(w);
    return ret;
}

void worker_close(struct worker *w)
{
    if (!w)
        return;
    mutex_lock(&w->lock);
    w->stop = true;
    cond_broadcast(&w->more);
    mutex_unlock(&w->lock);
    for (int i = 0; w->rank && i < w->world; i++)
        thread_join(&w->rank[i].thread);
    if (w->comm[0])
        comm_shm_close(w->comm);
    cond_done(&w->more);
    mutex_done(&w->lock);
    mem_free(w->rank);
    mem_free(w);
}

const struct worker_info *worker_info(const struct worker *w)
{
    return &w->info;
}

const struct dev_counts *worker_counts(const struct worker *w)
{
    return w->rank[0].r.ops->counts(w->rank[0].r.d);
}

void worker_time_ops(struct worker *w, bool on)
{
    for (int p = 0; on && p < N_STEP_PARTS; p++)
        timed_clear(&w->rank[0].r.op_times[p]);
    __atomic_store_n(&w->rank[0].r.time_ops, on, __ATOMIC_RELAXED);
}

void worker_op_times(const struct worker *w, enum step_part p, struct op_times *out)
{
    timed_read(out, &w->rank[0].r.op_times[p]);
}

struct step *worker_step_get(struct worker *w)
{
    struct step *s = NULL;
    mutex_lock(&w->lock);
    for (int i = 0; i < STEPS_MAX && !s; i++) {
        if (w->owner[i] == OWNER_FREE) {
            w->owner[i] = OWNER_SCHED;
            s = &w->rank[0].steps[i];
        }
    }
    mutex_unlock(&w->lock);
    if (s)
        s->n_stop = s->n_start = s->n_set = s->n_req = s->n_chunk = s->n_row = s->rows_max =
            s->n_draft = s->depth = 0;
    return s;
}

void worker_step_put(struct worker *w, struct step *s)
{
    int i = step_index(&w->rank[0], s);
    for (int k = 1; k < w->world; k++)
        runner_step_copy(&w->rank[k].steps[i], s);
    mutex_lock(&w->lock);
    CHECK(w->owner[i] == OWNER_SCHED);
    w->owner[i] = OWNER_QUEUE;
    w->left[i] = w->world;
    for (int k = 0; k < w->world; k++) {
        struct rank *x = &w->rank[k];
        CHECK(x->n_queue < STEPS_MAX);
        x->queue[x->n_queue++] = &x->steps[i];
    }
    cond_broadcast(&w->more);
    mutex_unlock(&w->lock);
}

void worker_step_release(struct worker *w, struct step *s)
{
    mutex_lock(&w->lock);
    int i = step_index(&w->rank[0], s);
    CHECK(w->owner[i] == OWNER_DONE || w->owner[i] == OWNER_SCHED);
    w->owner[i] = OWNER_FREE;
    mutex_unlock(&w->lock);
}

static struct step *get(void *w)
{
    return worker_step_get(w);
}

static void put(void *w, struct step *s)
{
    worker_step_put(w, s);
}

static void release(void *w, struct step *s)
{
    worker_step_release(w, s);
}

const struct worker_ops worker_real = {.get = get, .put = put, .release = release};
