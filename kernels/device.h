/* A device: memory, ordered work, recorded graphs, and the table of operations (ops.h).
 *
 * One thread owns an open device; calls from another are a bug. Work is ordered: an operation sees
 * what earlier calls wrote. Operations never allocate, never read a host value after they were
 * recorded and take only fixed addresses, so a recorded list of them can be replayed: a replay
 * repeats the recorded calls with the same arguments on whatever the memory holds by then.
 *
 * The CPU device runs an operation when it is called (or replayed) on its thread pool. */
#ifndef SPECD_DEVICE_H
#define SPECD_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/err.h"
#include "kernels/dtype.h"

struct dev;
struct dev_graph;
struct op_table;

struct dev_conf {
    int ordinal; /* which GPU; 0 on the CPU */
    int threads; /* CPU: at most this many threads run an operation, the owner included; >= 1 */
};

enum dev_mem {
    DEV_MEM_DEVICE, /* zeroed; only operations and copies touch it */
    DEV_MEM_PINNED, /* host-visible ring and staging memory, written by operations without a copy */
};

/* What a steady decode must not do; tests compare these before and after. */
struct dev_counts {
    int64_t host_reads;  /* copy_out calls */
    int64_t host_writes; /* copy_in calls */
    int64_t syncs;       /* sync calls */
    int64_t allocs;      /* alloc calls */
    int64_t launches;    /* operations run eagerly */
    int64_t replays;     /* graphs replayed */
};

/* What load() takes: spans of host memory that do not overlap. Spans that are there already are
 * left alone. */
struct dev_span {
    const void *host;
    size_t bytes;
};
struct dev_load {
    const struct dev_span *span;
    size_t n;
    int threads; /* helpers that read and copy; >= 1 */
    /* Writes bytes [from, from + n) of span i to dst; any thread, from a multiple of 64. So what
     * lies at `host` need not exist before. NULL: it is copied from there. */
    void (*make)(void *ud, size_t i, size_t from, size_t n, void *dst);
    /* Bytes on their way so far: 0 first, all of them once they are there; on the calling thread.
     * May be NULL. */
    void (*progress)(void *ud, size_t done, size_t total);
    void *ud;
};

struct dev_ops {
    const char *name;    /* "cpu", "cuda" */
    enum dtype kv_dtype; /* what KV pools hold unless asked otherwise */
    int (*open)(struct dev **out, const struct dev_conf *c, struct err *e);
    void (*close)(struct dev *d); /* all its memory and graphs must be gone */
    /* Fails with E_NOMEM; after freeze() a call is a broken invariant. 64-byte aligned. */
    int (*alloc)(struct dev *d, void **out, size_t bytes, enum dev_mem kind, struct err *e);
    void (*free)(struct dev *d, void *p);
    void (*freeze)(struct dev *d);
    int (*copy_in)(struct dev *d, void *dst, const void *src, size_t bytes, struct err *e);
    int (*copy_out)(struct dev *d, void *dst, const void *src, size_t bytes, struct err *e);
    int (*sync)(struct dev *d, struct err *e);         /* reports asynchronous faults */
    int (*record_begin)(struct dev *d, struct err *e); /* operations are kept, not run */
    int (*record_end)(struct dev *d, struct dev_graph **out, struct err *e);
    int (*replay)(struct dev *d, struct dev_graph *g, struct err *e);
    void (*graph_free)(struct dev *d, struct dev_graph *g);
    const struct dev_counts *(*counts)(const struct dev *d);
    int (*sm)(const struct dev *d); /* compute capability, 90 for 9.0; 0 on the CPU */
    /* Writes `value` to a word of pinned memory once all earlier work is done; the host polls the
     * word instead of waiting. query() tells, without waiting, whether the device has failed. */
    int (*mark)(struct dev *d, int64_t *word, int64_t value, struct err *e);
    int (*query)(struct dev *d, struct err *e);
    /* Weights. load() makes host memory (mapped files) readable by operations until the device
     * closes, mirror() one piece of it; both NULL where operations read host memory as it is.
     * resolve() gives the device address of a loaded one; descriptions of weights in operation
     * arguments keep host addresses, only those copied into device memory must be resolved. */
    int (*mirror)(struct dev *d, const void *host, size_t bytes, struct err *e);
    const void *(*resolve)(const struct dev *d, const void *host);
    const struct op_table *ops;
    int (*load)(struct dev *d, const struct dev_load *l, struct err *e);
    /* Bytes of the device's own memory; 0 and 0 where it has none. */
    void (*memory)(const struct dev *d, int64_t *free, int64_t *total);
};

extern const struct dev_ops dev_cpu;
/* All devices of this build, best first, NULL ends; and the one of a name (NULL: not built in). */
extern const struct dev_ops *const dev_list[];
const struct dev_ops *dev_find(const char *name);

#endif
