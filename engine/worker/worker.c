/* The worker thread: takes steps in order, runs them, hands them back. Staging blocks belong to the
 * scheduler between get and put, to this thread between put and `done`, to the scheduler again
 * until release. */
#include "engine/worker/worker.h"

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/base/thread.h"
#include "engine/worker/runner.h"

enum { POLL_US = 20 }; /* between looks at the device: small beside a step, small beside a core */

enum owner { OWNER_FREE, OWNER_SCHED, OWNER_QUEUE, OWNER_DONE };

struct worker {
    struct runner r;
    void (*done)(void *ud, struct step *s);
    void *ud;
    struct thread thread;
    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t more;
    struct step steps[STEPS_MAX];
    enum owner owner[STEPS_MAX];
    struct step *queue[STEPS_MAX];
    int n_queue;
    struct step *flight[STEPS_MAX]; /* submitted, oldest first; the thread's own */
    int n_flight;
    bool stop;
    /* the open result, written by the thread before `opened` */
    struct worker_conf conf;
    bool opened;
    int open_ret;
    struct err open_err;
};

static int step_index(const struct worker *w, const struct step *s)
{
    ptrdiff_t i = s - w->steps;
    CHECK(i >= 0 && i < STEPS_MAX);
    return (int)i;
}

static int open_device(struct worker *w)
{
    struct err *e = &w->open_err;
    TRY(runner_open(&w->r, &w->conf, e));
    for (int i = 0; i < STEPS_MAX; i++) {
        int ret = runner_step_init(&w->r, &w->steps[i], e);
        if (ret < 0) {
            for (int j = 0; j <= i; j++)
                runner_step_done(&w->r, &w->steps[j]);
            runner_close(&w->r);
            return ret;
        }
    }
    w->r.ops->freeze(w->r.d);
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

/* Hands back the steps that are done; false: none was. */
static bool finish_steps(struct worker *w)
{
    bool any = false;
    while (w->n_flight && runner_poll(&w->r, w->flight[0])) {
        struct step *s = pop(w->flight, &w->n_flight);
        mutex_lock(&w->lock);
        w->owner[step_index(w, s)] = OWNER_DONE;
        mutex_unlock(&w->lock);
        w->done(w->ud, s);
        any = true;
    }
    return any;
}

static void run(void *ud)
{
    struct worker *w = ud;
    int ret = open_device(w); /* on this thread: it owns the device from the first call on */
    mutex_lock(&w->lock);
    w->open_ret = ret;
    w->opened = true;
    cond_broadcast(&w->more);
    if (ret < 0) {
        mutex_unlock(&w->lock);
        return;
    }
    for (;;) {
        while (!w->n_queue && !w->n_flight && !w->stop)
            cond_wait(&w->more, &w->lock);
        if (w->n_queue) {
            struct step *s = pop(w->queue, &w->n_queue);
            mutex_unlock(&w->lock);
            runner_submit(&w->r, s); /* a failure shows in the poll */
            w->flight[w->n_flight++] = s;
        } else if (w->n_flight) {
            mutex_unlock(&w->lock);
        } else {
            break;
        }
        bool done = finish_steps(w);
        mutex_lock(&w->lock);
        if (!done && !w->n_queue) /* a new step ends the nap */
            cond_wait_us(&w->more, &w->lock, POLL_US);
    }
    mutex_unlock(&w->lock);
    for (int i = 0; i < STEPS_MAX; i++)
        runner_step_done(&w->r, &w->steps[i]);
    runner_close(&w->r);
}

int worker_open(struct worker **out, const struct worker_conf *c,
                void (*done)(void *ud, struct step *s), void *ud, struct err *e)
{
    struct worker *w = MEM_NEW(struct worker);
    w->done = done;
    w->ud = ud;
    w->conf = *c; /* the strings are the caller's until this returns */
    mutex_init(&w->lock);
    cond_init(&w->more);
    thread_start(&w->thread, "specd-worker", run, w);
    mutex_lock(&w->lock);
    while (!w->opened)
        cond_wait(&w->more, &w->lock);
    int ret = w->open_ret;
    mutex_unlock(&w->lock);
    if (ret < 0) {
        if (e)
            *e = w->open_err;
        worker_close(w);
        return ret;
    }
    *out = w;
    return OK;
}

void worker_close(struct worker *w)
{
    if (!w)
        return;
    mutex_lock(&w->lock);
    w->stop = true;
    cond_broadcast(&w->more);
    mutex_unlock(&w->lock);
    thread_join(&w->thread);
    cond_done(&w->more);
    mutex_done(&w->lock);
    mem_free(w);
}

const struct worker_info *worker_info(const struct worker *w)
{
    return &w->r.info;
}

const struct dev_counts *worker_counts(const struct worker *w)
{
    return w->r.ops->counts(w->r.d);
}

struct step *worker_step_get(struct worker *w)
{
    struct step *s = NULL;
    mutex_lock(&w->lock);
    for (int i = 0; i < STEPS_MAX && !s; i++) {
        if (w->owner[i] == OWNER_FREE) {
            w->owner[i] = OWNER_SCHED;
            s = &w->steps[i];
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
    mutex_lock(&w->lock);
    int i = step_index(w, s);
    CHECK(w->owner[i] == OWNER_SCHED && w->n_queue < STEPS_MAX);
    w->owner[i] = OWNER_QUEUE;
    w->queue[w->n_queue++] = s;
    cond_broadcast(&w->more);
    mutex_unlock(&w->lock);
}

void worker_step_release(struct worker *w, struct step *s)
{
    mutex_lock(&w->lock);
    int i = step_index(w, s);
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
