/* Ranks that are threads of one process, over CPU devices: a collective posts where its memory is,
 * meets the others, works on all ranks' memory directly and meets them again. No buffer of its own.
 *
 * Each rank sums one slice of the elements, over ranks in ascending order, and writes the result to
 * everybody: an element is computed once, so all ranks get the same bits. The lock guards arrivals
 * and sleep; posts are ordered by the meetings. */
#include "engine/comm/comm.h"

#include <stdatomic.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/base/thread.h"
#include "kernels/cpu/cpu.h"

enum { SPIN = 2000, SUM_BLOCK = 512 }; /* looks before sleep, tens of us; floats on the stack */

struct post { /* what a rank brings to the collective under way */
    void *p;
    int64_t from, n;
    uint64_t word;
};

struct shm {
    struct comm c; /* first: handed out as this */
    struct group *g;
};

struct group {
    int world;
    _Atomic uint64_t turn; /* meetings that took place */
    atomic_bool failed;
    pthread_mutex_t lock; /* guards `here` and sleeping */
    pthread_cond_t more;
    int here; /* ranks that wait for this meeting */
    struct post post[LIM_RANKS];
    struct shm rank[LIM_RANKS];
};

/* ---- meetings ---- */

static inline void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Returns when all ranks have called it as often as this one, or with E_CANCELED. */
static int meet(struct group *g)
{
    uint64_t turn = atomic_load(&g->turn); /* cannot move on without us */
    mutex_lock(&g->lock);
    bool last = !atomic_load(&g->failed) && ++g->here == g->world;
    if (last) {
        g->here = 0;
        atomic_store(&g->turn, turn + 1);
        cond_broadcast(&g->more);
    }
    mutex_unlock(&g->lock);
    for (int i = 0; i < SPIN && atomic_load(&g->turn) == turn && !atomic_load(&g->failed); i++)
        relax();
    if (atomic_load(&g->turn) == turn) {
        mutex_lock(&g->lock);
        while (atomic_load(&g->turn) == turn && !atomic_load(&g->failed))
            cond_wait(&g->more, &g->lock);
        mutex_unlock(&g->lock);
    }
    return atomic_load(&g->turn) == turn ? E_CANCELED : OK;
}

static void shm_poison(struct comm *c)
{
    struct group *g = ((struct shm *)c)->g;
    mutex_lock(&g->lock);
    atomic_store(&g->failed, true);
    cond_broadcast(&g->more);
    mutex_unlock(&g->lock);
}

/* ---- collectives: what runs when the device comes to the call ---- */

struct call {
    struct shm *s;
    void *p;
    int64_t n; /* sum, clear: floats; bcast: bytes; gather: columns */
    int64_t ld, from;
    int rows;
};

static int begin(const struct call *a)
{
    struct group *g = a->s->g;
    g->post[a->s->c.rank] = (struct post){.p = a->p, .from = a->from, .n = a->n};
    return meet(g);
}

static int run_sum(struct dev *d, const void *args)
{
    const struct call *a = args;
    struct group *g = a->s->g;
    int rank = a->s->c.rank;
    (void)d;
    TRY(begin(a));
    int64_t to = a->n * (rank + 1) / g->world;
    for (int64_t at = a->n * rank / g->world; at < to; at += SUM_BLOCK) {
        int64_t n = to - at < SUM_BLOCK ? to - at : SUM_BLOCK;
        float sum[SUM_BLOCK];
        memcpy(sum, (const float *)g->post[0].p + at, (size_t)n * sizeof *sum);
        for (int k = 1; k < g->world; k++) {
            const float *x = (const float *)g->post[k].p + at;
            CHECK(g->post[k].n == a->n);
            for (int64_t i = 0; i < n; i++)
                sum[i] += x[i];
        }
        for (int k = 0; k < g->world; k++)
            memcpy((float *)g->post[k].p + at, sum, (size_t)n * sizeof *sum);
    }
    return meet(g);
}

static int run_gather(struct dev *d, const void *args)
{
    const struct call *a = args;
    struct group *g = a->s->g;
    (void)d;
    TRY(begin(a));
    for (int k = 0; k < g->world; k++) {
        const struct post *o = &g->post[k];
        for (int r = 0; r < a->rows && k != a->s->c.rank; r++)
            memcpy((float *)a->p + r * a->ld + o->from, (const float *)o->p + r * a->ld + o->from,
                   (size_t)o->n * sizeof(float));
    }
    return meet(g);
}

static int run_bcast(struct dev *d, const void *args)
{
    const struct call *a = args;
    struct group *g = a->s->g;
    (void)d;
    TRY(begin(a));
    if (a->s->c.rank) {
        CHECK(g->post[0].n == a->n);
        memcpy(a->p, g->post[0].p, (size_t)a->n);
    }
    return meet(g);
}

static int run_clear(struct dev *d, const void *args)
{
    const struct call *a = args;
    (void)d;
    memset(a->p, 0, (size_t)a->n * sizeof(float));
    return OK;
}

/* ---- the table ---- */

static int shm_sum(struct comm *c, struct dev *d, float *x, int64_t n)
{
    struct call a = {.s = (struct shm *)c, .p = x, .n = n};
    return cpu_call(d, run_sum, &a, sizeof a);
}

static int shm_gather(struct comm *c, struct dev *d, float *x, int rows, int64_t ld, int64_t from,
                      int64_t n)
{
    struct call a = {.s = (struct shm *)c, .p = x, .n = n, .ld = ld, .from = from, .rows = rows};
    return cpu_call(d, run_gather, &a, sizeof a);
}

static int shm_clear(struct comm *c, struct dev *d, float *x, int64_t n)
{
    struct call a = {.s = (struct shm *)c, .p = x, .n = n};
    return cpu_call(d, run_clear, &a, sizeof a);
}

static int shm_bcast(struct comm *c, struct dev *d, void *p, size_t bytes)
{
    struct call a = {.s = (struct shm *)c, .p = p, .n = (int64_t)bytes};
    return cpu_call(d, run_bcast, &a, sizeof a);
}

static int shm_same(struct comm *c, uint64_t word)
{
    struct group *g = ((struct shm *)c)->g;
    g->post[c->rank] = (struct post){.word = word};
    TRY(meet(g));
    bool same = g->post[0].word == word;
    TRY(meet(g));
    return same ? OK : E_DEVICE;
}

static const struct comm_ops shm_ops = {
    .name = "shm",
    .sum = shm_sum,
    .gather = shm_gather,
    .clear = shm_clear,
    .bcast = shm_bcast,
    .same = shm_same,
    .poison = shm_poison,
};

int comm_shm_open(struct comm **out, int world, struct err *e)
{
    if (world < 2 || world > LIM_RANKS)
        return FAIL(e, E_INVAL, "a world of %d ranks: 2 to %d", world, LIM_RANKS);
    struct group *g = MEM_NEW(struct group);
    g->world = world;
    mutex_init(&g->lock);
    cond_init(&g->more);
    for (int i = 0; i < world; i++) {
        g->rank[i] = (struct shm){{&shm_ops, i, world}, g};
        out[i] = &g->rank[i].c;
    }
    return OK;
}

void comm_shm_close(struct comm *const *ranks)
{
    struct group *g = ((struct shm *)ranks[0])->g;
    cond_done(&g->more);
    mutex_done(&g->lock);
    mem_free(g);
}
