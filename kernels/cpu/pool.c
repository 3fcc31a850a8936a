/* The thread pool of one CPU device. The owner posts one job at a time and works on it too; the
 * other threads spin for a short while between jobs (a decode step is a train of small jobs), then
 * sleep. Blocks of work are taken from one word (blocks << 32 | next), so a thread that wakes late
 * finds nothing to do and is never waited for: the owner waits for finished blocks, not for
 * threads. That keeps an oversubscribed machine moving. */
#include "kernels/cpu/internal.h"

#include <sched.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/base/thread.h"

enum { SPIN_IDLE = 1500, SPIN_WAIT = 3000, BLOCKS_PER_THREAD = 4 };

struct pool_thread {
    struct thread t;
    struct cpu_pool *pool;
    int tid;
};

struct cpu_pool {
    _Atomic uint64_t word; /* blocks << 32 | next block; a taken block keeps the job alive */
    _Atomic uint32_t done; /* blocks finished */
    _Atomic int sleepers;  /* threads in cond_wait on `work` */
    _Atomic int waiting;   /* the owner is in cond_wait on `idle` */
    _Atomic int quit;
    /* the job; valid while a block of it is unfinished */
    void (*fn)(void *ud, int i);
    void *ud;
    int n, block;
    /* guards only sleeping */
    pthread_mutex_t lock;
    pthread_cond_t work, idle;
    int threads; /* owner included */
    struct pool_thread *th;
};

static _Thread_local int t_tid;

int cpu_tid(void)
{
    return t_tid;
}

static inline void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static bool has_work(struct cpu_pool *p)
{
    uint64_t w = atomic_load(&p->word);
    return (uint32_t)w < (uint32_t)(w >> 32);
}

/* Takes and runs blocks until none is left; returns how many it ran. */
static void run_blocks(struct cpu_pool *p)
{
    for (;;) {
        uint64_t w = atomic_load(&p->word);
        uint32_t i = (uint32_t)w;
        if (i >= (uint32_t)(w >> 32))
            return;
        if (!atomic_compare_exchange_weak(&p->word, &w, w + 1))
            continue;
        uint32_t blocks = (uint32_t)(w >> 32);
        int from = (int)i * p->block;
        int to = from + p->block < p->n ? from + p->block : p->n;
        for (int k = from; k < to; k++)
            p->fn(p->ud, k);
        if (atomic_fetch_add(&p->done, 1) + 1 == blocks && atomic_load(&p->waiting)) {
            mutex_lock(&p->lock);
            cond_signal(&p->idle);
            mutex_unlock(&p->lock);
        }
    }
}

static void thread_main(void *ud)
{
    struct pool_thread *t = ud;
    struct cpu_pool *p = t->pool;
    t_tid = t->tid;
    while (!atomic_load(&p->quit)) {
        run_blocks(p);
        int spin = 0;
        while (spin < SPIN_IDLE && !has_work(p) && !atomic_load(&p->quit)) {
            relax();
            spin++;
        }
        if (spin < SPIN_IDLE)
            continue;
        mutex_lock(&p->lock);
        atomic_fetch_add(&p->sleepers, 1);
        while (!has_work(p) && !atomic_load(&p->quit))
            cond_wait(&p->work, &p->lock);
        atomic_fetch_sub(&p->sleepers, 1);
        mutex_unlock(&p->lock);
    }
}

static void wake(struct cpu_pool *p)
{
    if (atomic_load(&p->sleepers) == 0)
        return;
    mutex_lock(&p->lock);
    cond_broadcast(&p->work);
    mutex_unlock(&p->lock);
}

void cpu_pool_run(struct cpu_pool *p, int n, void (*fn)(void *ud, int i), void *ud)
{
    if (n <= 0)
        return;
    if (p->threads == 1 || n == 1) {
        for (int i = 0; i < n; i++)
            fn(ud, i);
        return;
    }
    int parts = p->threads * BLOCKS_PER_THREAD;
    p->fn = fn;
    p->ud = ud;
    p->n = n;
    p->block = (n + parts - 1) / parts;
    uint32_t blocks = (uint32_t)((n + p->block - 1) / p->block);
    atomic_store(&p->done, 0);
    atomic_store(&p->word, (uint64_t)blocks << 32);
    wake(p);
    run_blocks(p);
    for (int i = 0; i < SPIN_WAIT; i++) {
        if (atomic_load(&p->done) == blocks)
            return;
        relax();
    }
    mutex_lock(&p->lock);
    atomic_store(&p->waiting, 1);
    while (atomic_load(&p->done) != blocks)
        cond_wait(&p->idle, &p->lock);
    atomic_store(&p->waiting, 0);
    mutex_unlock(&p->lock);
}

struct cpu_pool *cpu_pool_open(int threads)
{
    CHECK(threads >= 1 && threads <= CPU_THREADS_MAX);
    struct cpu_pool *p = MEM_NEW(struct cpu_pool);
    p->threads = threads;
    mutex_init(&p->lock);
    cond_init(&p->work);
    cond_init(&p->idle);
    p->th = MEM_ARRAY(struct pool_thread, threads);
    for (int i = 1; i < threads; i++) {
        p->th[i].pool = p;
        p->th[i].tid = i;
        thread_start(&p->th[i].t, "specd-cpu", thread_main, &p->th[i]);
    }
    return p;
}

void cpu_pool_close(struct cpu_pool *p)
{
    if (!p)
        return;
    mutex_lock(&p->lock);
    atomic_store(&p->quit, 1);
    cond_broadcast(&p->work);
    mutex_unlock(&p->lock);
    for (int i = 1; i < p->threads; i++)
        thread_join(&p->th[i].t);
    cond_done(&p->work);
    cond_done(&p->idle);
    mutex_done(&p->lock);
    mem_free(p->th);
    mem_free(p);
}

int cpu_pool_threads(const struct cpu_pool *p)
{
    return p->threads;
}
