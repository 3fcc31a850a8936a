/* Threads with names, and the two locks we use. Every call CHECKs: a failing mutex is a bug. */
#ifndef SPECD_BASE_THREAD_H
#define SPECD_BASE_THREAD_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct thread {
    pthread_t id;
    void (*run)(void *ud);
    void *ud;
    char name[16]; /* shown by ps -T */
    bool started;
};

/* Signals are blocked in the new thread: the loop thread handles them. `t` stays with the caller
 * until thread_join. */
void thread_start(struct thread *t, const char *name, void (*run)(void *ud), void *ud);
void thread_join(struct thread *t); /* nothing when never started */

void mutex_init(pthread_mutex_t *m);
void mutex_done(pthread_mutex_t *m);
void mutex_lock(pthread_mutex_t *m);
void mutex_unlock(pthread_mutex_t *m);
void cond_init(pthread_cond_t *c); /* on the monotonic clock */
void cond_done(pthread_cond_t *c);
void cond_wait(pthread_cond_t *c, pthread_mutex_t *m);
bool cond_wait_us(pthread_cond_t *c, pthread_mutex_t *m, int64_t us); /* false: timed out */
void cond_signal(pthread_cond_t *c);
void cond_broadcast(pthread_cond_t *c);

#endif
