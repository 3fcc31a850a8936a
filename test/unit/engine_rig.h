/* What tests of the whole engine share: waiting for its events, and a generated model with a
 * vocabulary. Everything is static on purpose. */
#ifndef SPECD_TEST_ENGINE_RIG_H
#define SPECD_TEST_ENGINE_RIG_H

#include <check.h>

#include "engine/base/buf.h"
#include "engine/base/thread.h"
#include "test/model/gen.h"
#include "test/unit/sched_text.h"

struct waker {
    pthread_mutex_t lock; /* guards `woken` */
    pthread_cond_t more;
    bool woken;
};

static inline void waker_init(struct waker *w)
{
    mutex_init(&w->lock);
    cond_init(&w->more);
    w->woken = false;
}

static inline void waker_done(struct waker *w)
{
    mutex_done(&w->lock);
    cond_done(&w->more);
}

/* The engine's wake function; its argument is the waker. */
static inline void waker_wake(void *ud)
{
    struct waker *w = ud;
    mutex_lock(&w->lock);
    w->woken = true;
    cond_signal(&w->more);
    mutex_unlock(&w->lock);
}

static inline void waker_wait(struct waker *w)
{
    mutex_lock(&w->lock);
    if (!w->woken)
        ck_assert(cond_wait_us(&w->more, &w->lock, 60000000) || w->woken);
    w->woken = false;
    mutex_unlock(&w->lock);
}

/* A generated checkpoint with the vocabulary of sched_text.h; one of the tree as it is. */
static inline void rig_model(struct gen *g, const char *name)
{
    gen_open(g, name);
    if (!g->config)
        return;
    gen_write(g, 1);
    struct buf b;
    buf_init(&b, 0);
    sched_text_json(&b);
    gen_put(g, "tokenizer.json", b.p, b.len);
    buf_done(&b);
}

#endif
