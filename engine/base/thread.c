/* Thin pthread wrappers; see the header. */
#include "engine/base/thread.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <time.h>

#include "engine/base/check.h"

static void *entry(void *p)
{
    struct thread *t = p;
    pthread_setname_np(pthread_self(), t->name);
    t->run(t->ud);
    return NULL;
}

void thread_start(struct thread *t, const char *name, void (*run)(void *ud), void *ud)
{
    t->run = run;
    t->ud = ud;
    snprintf(t->name, sizeof t->name, "%s", name);
    sigset_t all, old;
    sigfillset(&all);
    CHECK(pthread_sigmask(SIG_SETMASK, &all, &old) == 0);
    CHECK(pthread_create(&t->id, NULL, entry, t) == 0);
    CHECK(pthread_sigmask(SIG_SETMASK, &old, NULL) == 0);
    t->started = true;
}

void thread_join(struct thread *t)
{
    if (!t->started)
        return;
    CHECK(pthread_join(t->id, NULL) == 0);
    t->started = false;
}

void mutex_init(pthread_mutex_t *m)
{
    CHECK(pthread_mutex_init(m, NULL) == 0);
}

void mutex_done(pthread_mutex_t *m)
{
    CHECK(pthread_mutex_destroy(m) == 0);
}

void mutex_lock(pthread_mutex_t *m)
{
    CHECK(pthread_mutex_lock(m) == 0);
}

void mutex_unlock(pthread_mutex_t *m)
{
    CHECK(pthread_mutex_unlock(m) == 0);
}

void cond_init(pthread_cond_t *c)
{
    pthread_condattr_t a;
    CHECK(pthread_condattr_init(&a) == 0);
    CHECK(pthread_condattr_setclock(&a, CLOCK_MONOTONIC) == 0);
    CHECK(pthread_cond_init(c, &a) == 0);
    pthread_condattr_destroy(&a);
}

void cond_done(pthread_cond_t *c)
{
    CHECK(pthread_cond_destroy(c) == 0);
}

void cond_wait(pthread_cond_t *c, pthread_mutex_t *m)
{
    CHECK(pthread_cond_wait(c, m) == 0);
}

bool cond_wait_us(pthread_cond_t *c, pthread_mutex_t *m, int64_t us)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    int64_t ns = ts.tv_nsec + us % 1000000 * 1000;
    ts.tv_sec += us / 1000000 + ns / 1000000000;
    ts.tv_nsec = ns % 1000000000;
    int r = pthread_cond_timedwait(c, m, &ts);
    CHECK(r == 0 || r == ETIMEDOUT);
    return r == 0;
}

void cond_signal(pthread_cond_t *c)
{
    CHECK(pthread_cond_signal(c) == 0);
}

void cond_broadcast(pthread_cond_t *c)
{
    CHECK(pthread_cond_broadcast(c) == 0);
}
