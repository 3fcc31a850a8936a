/* The CPU device: memory, copies, recorded lists of calls, and the operation table. The owner
 * thread calls everything here; an operation runs on the pool (pool.c) and is finished when the
 * call returns, so there is nothing to wait for in sync(). */
#include "kernels/cpu/prod.h"

#include <string.h>
#include <sys/mman.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"

enum { MAP_FROM = 4 << 20 }; /* bytes from which memory is mapped: zero pages come on first touch */

struct rec_call {
    cpu_fn *fn;
    void *args;
};

struct dev_graph {
    struct rec_call *call;
    size_t n, cap;
};

int cpu_call(struct dev *d, cpu_fn *fn, const void *args, size_t bytes)
{
    if (!d->rec) {
        d->counts.launches++;
        return fn(d, args);
    }
    struct dev_graph *g = d->rec;
    MEM_GROW(g->call, g->cap, g->n + 1);
    g->call[g->n].fn = fn;
    g->call[g->n].args = mem_dup(args, bytes);
    g->n++;
    return OK;
}

void cpu_parallel(struct dev *d, int n, void (*fn)(void *ud, int i), void *ud)
{
    cpu_pool_run(d->pool, n, fn, ud);
}

void cpu_parallel_if(struct dev *d, int64_t work, int n, void (*fn)(void *ud, int i), void *ud)
{
    enum { WORTH = 8192 }; /* about 2 us of element work, what waking a spinning thread costs */
    if (work >= WORTH) {
        cpu_pool_run(d->pool, n, fn, ud);
        return;
    }
    for (int i = 0; i < n; i++)
        fn(ud, i);
}

int cpu_threads(const struct dev *d)
{
    return cpu_pool_threads(d->pool);
}

static int cpu_open(struct dev **out, const struct dev_conf *c, struct err *e)
{
    if (c->ordinal != 0)
        return FAIL(e, E_INVAL, "cpu device %d: there is only device 0", c->ordinal);
    if (c->threads < 1 || c->threads > CPU_THREADS_MAX)
        return FAIL(e, E_INVAL, "threads %d: must be 1 to %d", c->threads, CPU_THREADS_MAX);
    struct dev *d = MEM_NEW(struct dev);
    d->conf = *c;
    d->isa = cpu_isa_best();
    d->pool = cpu_pool_open(c->threads);
    for (int i = 0; i < c->threads; i++)
        d->panel[i] = mem_aligned(64, CPU_PANEL_FLOATS * sizeof(float));
    d->shared = mem_aligned(64, CPU_SHARED_FLOATS * sizeof(float));
    d->prods = MEM_ARRAY(struct cpu_prod, CPU_PRODS_MAX);
    d->units = MEM_ARRAY(struct cpu_unit, CPU_PRODS_MAX);
    d->ints = MEM_ARRAY(int32_t, CPU_INTS_MAX);
    *out = d;
    return OK;
}

static void cpu_close(struct dev *d)
{
    if (!d)
        return;
    CHECK(!d->rec);
    CHECK(d->n_alloc == 0);
    CHECK(d->n_graph == 0);
    cpu_pool_close(d->pool);
    for (int i = 0; i < d->conf.threads; i++)
        mem_free(d->panel[i]);
    mem_free(d->shared);
    mem_free(d->prods);
    mem_free(d->units);
    mem_free(d->ints);
    mem_free(d->alloc);
    mem_free(d);
}

static int cpu_alloc(struct dev *d, void **out, size_t bytes, enum dev_mem kind, struct err *e)
{
    (void)kind; /* both kinds are host memory here */
    CHECK(!d->frozen);
    d->counts.allocs++;
    struct cpu_alloc a = {.bytes = bytes, .mapped = bytes >= MAP_FROM};
    if (a.mapped) {
        a.p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (a.p == MAP_FAILED)
            return FAIL(e, E_NOMEM, "cpu device: no memory for %zu bytes", bytes);
        madvise(a.p, bytes, MADV_HUGEPAGE); /* a hint; may be off on this system */
    } else {
        a.p = mem_aligned(64, bytes ? bytes : 1);
        memset(a.p, 0, bytes);
    }
    MEM_GROW(d->alloc, d->cap_alloc, d->n_alloc + 1);
    d->alloc[d->n_alloc++] = a;
    *out = a.p;
    return OK;
}

static void cpu_free(struct dev *d, void *p)
{
    if (!p)
        return;
    for (size_t i = 0; i < d->n_alloc; i++) {
        struct cpu_alloc a = d->alloc[i];
        if (a.p != p)
            continue;
        if (a.mapped)
            CHECK(munmap(a.p, a.bytes) == 0);
        else
            mem_free(a.p);
        d->alloc[i] = d->alloc[--d->n_alloc];
        return;
    }
    CHECK(!"freed memory is of this device");
}

static void cpu_freeze(struct dev *d)
{
    d->frozen = true;
}

static int cpu_copy_in(struct dev *d, void *dst, const void *src, size_t bytes, struct err *e)
{
    (void)e;
    CHECK(!d->rec); /* a recorded copy would read a host value that is gone */
    d->counts.host_writes++;
    if (bytes)
        memcpy(dst, src, bytes);
    return OK;
}

static int cpu_copy_out(struct dev *d, void *dst, const void *src, size_t bytes, struct err *e)
{
    (void)e;
    CHECK(!d->rec);
    d->counts.host_reads++;
    if (bytes)
        memcpy(dst, src, bytes);
    return OK;
}

static int cpu_sync(struct dev *d, struct err *e)
{
    (void)e;
    d->counts.syncs++;
    return OK;
}

static int cpu_record_begin(struct dev *d, struct err *e)
{
    if (d->rec)
        return FAIL(e, E_INVAL, "cpu device: a recording is already open");
    d->rec = MEM_NEW(struct dev_graph);
    d->n_graph++;
    return OK;
}

static int cpu_record_end(struct dev *d, struct dev_graph **out, struct err *e)
{
    if (!d->rec)
        return FAIL(e, E_INVAL, "cpu device: no recording is open");
    *out = d->rec;
    d->rec = NULL;
    return OK;
}

static int cpu_replay(struct dev *d, struct dev_graph *g, struct err *e)
{
    CHECK(!d->rec);
    d->counts.replays++;
    for (size_t i = 0; i < g->n; i++) {
        int r = g->call[i].fn(d, g->call[i].args);
        if (r < 0)
            return FAIL(e, r, "cpu device: call %zu of a replay failed: %s", i, err_name(r));
    }
    return OK;
}

static void cpu_graph_free(struct dev *d, struct dev_graph *g)
{
    if (!g)
        return;
    for (size_t i = 0; i < g->n; i++)
        mem_free(g->call[i].args);
    mem_free(g->call);
    mem_free(g);
    d->n_graph--;
}

static const struct dev_counts *cpu_counts(const struct dev *d)
{
    return &d->counts;
}

#define WRAP(name)                                                                                 \
    static int fn_##name(struct dev *d, const void *args)                                          \
    {                                                                                              \
        return cpu_do_##name(d, args);                                                             \
    }                                                                                              \
    static int call_##name(struct dev *d, const struct op_##name *a)                               \
    {                                                                                              \
        return cpu_call(d, fn_##name, a, sizeof *a);                                               \
    }
OP_LIST(WRAP)
#undef WRAP

static int cpu_sm(const struct dev *d)
{
    (void)d;
    return 0;
}

static int cpu_mark(struct dev *d, int64_t *word, int64_t value, struct err *e)
{
    (void)d;
    (void)e;
    __atomic_store_n(word, value, __ATOMIC_RELEASE); /* all earlier work is done */
    return OK;
}

static int cpu_query(struct dev *d, struct err *e)
{
    (void)d;
    (void)e;
    return OK;
}

static const void *cpu_resolve(const struct dev *d, const void *host)
{
    (void)d;
    return host;
}

static void cpu_memory(const struct dev *d, int64_t *free_bytes, int64_t *total)
{
    (void)d;
    *free_bytes = *total = 0;
}

#define ENTRY(name) .name = call_##name,
static const struct op_table g_ops = {OP_LIST(ENTRY) NULL, NULL};
#undef ENTRY

const struct dev_ops dev_cpu = {
    .name = "cpu",
    .kv_dtype = DT_F32,
    .open = cpu_open,
    .close = cpu_close,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .freeze = cpu_freeze,
    .copy_in = cpu_copy_in,
    .copy_out = cpu_copy_out,
    .sync = cpu_sync,
    .record_begin = cpu_record_begin,
    .record_end = cpu_record_end,
    .replay = cpu_replay,
    .graph_free = cpu_graph_free,
    .counts = cpu_counts,
    .sm = cpu_sm,
    .mark = cpu_mark,
    .query = cpu_query,
    .resolve = cpu_resolve,
    .ops = &g_ops,
    .memory = cpu_memory,
};
