/* Weights on their way to the device, at start. One block of device memory holds all spans of a
 * load, in the order of their host addresses; it is cut into pieces, and helper threads each take
 * the next piece, fill a pinned buffer of their own with it (from mapped files: the page faults are
 * theirs, too) and send it off on a stream of their own. Two buffers a helper: one is filled while
 * the other travels. The device's owner waits, and reports progress. */
#include "kernels/cuda/common.cuh"

#include <stdlib.h>
#include <string.h>

extern "C" {
#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/base/thread.h"
}

static const size_t PIECE = (size_t)2 << 20;
static const size_t ALIGN = 256; /* of a span in the block */
enum { HELPERS_MAX = 16, BUFFERS = 2, REPORT_US = 100000 };

struct span {
    const char *host;
    size_t bytes, at; /* at: offset in the block */
    size_t index;     /* in the caller's list */
};

struct loading {
    const struct dev_load *l;
    int ordinal;
    struct span *span; /* [n] ascending by host address and by `at` */
    size_t n, total;   /* total: bytes of the block */
    char *block, *pinned;
    size_t next, sent; /* atomic: pieces given out; bytes sent off */
    pthread_mutex_t lock;
    pthread_cond_t ended;
    int running;       /* under lock, as is what follows */
    cudaError_t fault; /* the first */
};

struct helper {
    struct thread t;
    struct loading *g;
    char *buffer[BUFFERS];
};

/* ---- addresses ---- */

/* Index of the first mirror whose host address is above p. */
static int mirror_above(const struct dev *d, const char *p)
{
    int lo = 0, hi = d->n_mirror;
    while (lo < hi) {
        int mid = (lo + hi) / 2;
        if (d->mirror[mid].host <= p)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

const void *cuda_resolve(const struct dev *d, const void *host)
{
    const char *p = (const char *)host;
    int i = mirror_above(d, p) - 1;
    CHECK(i >= 0 && p < d->mirror[i].host + d->mirror[i].bytes);
    return d->mirror[i].dev + (p - d->mirror[i].host);
}

struct weight cuda_weight_dev(const struct dev *d, struct weight w)
{
    if (w.p)
        w.p = cuda_resolve(d, w.p);
    if (w.scale)
        w.scale = cuda_resolve(d, w.scale);
    return w;
}

static bool is_there(const struct dev *d, const struct dev_span *s)
{
    int i = mirror_above(d, (const char *)s->host) - 1;
    return i >= 0 && d->mirror[i].host == s->host && d->mirror[i].bytes >= s->bytes;
}

static int by_host(const void *a, const void *b)
{
    const char *x = *(const char *const *)a, *y = *(const char *const *)b; /* both begin with it */
    return (x > y) - (x < y);
}

static void add_mirrors(struct dev *d, const struct loading *g)
{
    MEM_GROW(d->mirror, d->cap_mirror, (size_t)d->n_mirror + g->n);
    for (size_t i = 0; i < g->n; i++) {
        struct cuda_mirror *m = &d->mirror[d->n_mirror++];
        m->host = g->span[i].host;
        m->dev = g->block + g->span[i].at;
        m->bytes = g->span[i].bytes;
    }
    qsort(d->mirror, (size_t)d->n_mirror, sizeof *d->mirror, by_host);
    MEM_GROW(d->weights, d->cap_weights, d->n_weights + 1);
    d->weights[d->n_weights++] = g->block;
}

void cuda_weights_free(struct dev *d)
{
    for (int i = 0; i < d->n_weights; i++)
        cudaFree(d->weights[i]);
    mem_free(d->weights);
    mem_free(d->mirror);
}

/* ---- helpers ---- */

/* Bytes [from, to) of the block into `out`; what lies between spans stays what it was. */
static void fill(const struct loading *g, size_t from, size_t to, char *out)
{
    size_t lo = 0, hi = g->n;
    while (lo < hi) { /* the first span that ends behind `from` */
        size_t mid = (lo + hi) / 2;
        if (g->span[mid].at + g->span[mid].bytes <= from)
            lo = mid + 1;
        else
            hi = mid;
    }
    for (; lo < g->n && g->span[lo].at < to; lo++) {
        const struct span *s = &g->span[lo];
        size_t a = s->at > from ? s->at : from;
        size_t b = s->at + s->bytes < to ? s->at + s->bytes : to;
        if (g->l->make)
            g->l->make(g->l->ud, s->index, a - s->at, b - a, out + (a - from));
        else
            memcpy(out + (a - from), s->host + (a - s->at), b - a);
    }
}

static cudaError_t carry(struct helper *h, cudaStream_t stream, cudaEvent_t *gone)
{
    struct loading *g = h->g;
    cudaError_t r = cudaSuccess;
    for (size_t k = 0; r == cudaSuccess; k = (k + 1) % BUFFERS) {
        size_t from = __atomic_fetch_add(&g->next, 1, __ATOMIC_RELAXED) * PIECE;
        if (from >= g->total)
            break;
        size_t to = g->total - from < PIECE ? g->total : from + PIECE;
        r = cudaEventSynchronize(gone[k]);
        if (r != cudaSuccess)
            break;
        fill(g, from, to, h->buffer[k]);
        r = cudaMemcpyAsync(g->block + from, h->buffer[k], to - from, cudaMemcpyHostToDevice,
                            stream);
        if (r == cudaSuccess)
            r = cudaEventRecord(gone[k], stream);
        __atomic_fetch_add(&g->sent, to - from, __ATOMIC_RELAXED);
    }
    cudaError_t all = cudaStreamSynchronize(stream);
    return r == cudaSuccess ? all : r;
}

static void help(void *ud)
{
    struct helper *h = (struct helper *)ud;
    struct loading *g = h->g;
    cudaStream_t stream = NULL;
    cudaEvent_t gone[BUFFERS] = {};
    cudaError_t r = cudaSetDevice(g->ordinal);
    if (r == cudaSuccess)
        r = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    for (int i = 0; i < BUFFERS && r == cudaSuccess; i++)
        r = cudaEventCreateWithFlags(&gone[i], cudaEventDisableTiming);
    if (r == cudaSuccess)
        r = carry(h, stream, gone);
    for (int i = 0; i < BUFFERS; i++)
        if (gone[i])
            cudaEventDestroy(gone[i]);
    if (stream)
        cudaStreamDestroy(stream);
    mutex_lock(&g->lock);
    if (g->fault == cudaSuccess)
        g->fault = r;
    g->running--;
    cond_signal(&g->ended);
    mutex_unlock(&g->lock);
}

static void run_helpers(struct loading *g, struct helper *h, int n)
{
    mutex_init(&g->lock);
    cond_init(&g->ended);
    g->running = n;
    for (int i = 0; i < n; i++) {
        h[i].g = g;
        for (int k = 0; k < BUFFERS; k++)
            h[i].buffer[k] = g->pinned + ((size_t)i * BUFFERS + (size_t)k) * PIECE;
        thread_start(&h[i].t, "weights", help, &h[i]);
    }
    mutex_lock(&g->lock);
    while (g->running) {
        cond_wait_us(&g->ended, &g->lock, REPORT_US);
        size_t sent = __atomic_load_n(&g->sent, __ATOMIC_RELAXED);
        if (!g->l->progress || !sent || sent == g->total)
            continue;
        mutex_unlock(&g->lock);
        g->l->progress(g->l->ud, sent, g->total);
        mutex_lock(&g->lock);
    }
    mutex_unlock(&g->lock);
    for (int i = 0; i < n; i++)
        thread_join(&h[i].t);
    cond_done(&g->ended);
    mutex_done(&g->lock);
}

/* ---- loading ---- */

/* The spans that are not there yet, in order, each with its place. */
static void lay_out(const struct dev *d, struct loading *g, const struct dev_load *l)
{
    g->span = MEM_ARRAY(struct span, l->n + 1);
    for (size_t i = 0; i < l->n; i++) {
        struct span s = {(const char *)l->span[i].host, l->span[i].bytes, 0, i};
        if (s.bytes && !is_there(d, &l->span[i]))
            g->span[g->n++] = s;
    }
    qsort(g->span, g->n, sizeof *g->span, by_host);
    for (size_t i = 0; i < g->n; i++) {
        CHECK(i == 0 || g->span[i - 1].host + g->span[i - 1].bytes <= g->span[i].host);
        g->span[i].at = g->total;
        g->total += (g->span[i].bytes + ALIGN - 1) & ~(ALIGN - 1);
    }
}

static int load(struct dev *d, struct loading *g, struct err *e)
{
    size_t pieces = (g->total + PIECE - 1) / PIECE;
    int n = g->l->threads < HELPERS_MAX ? g->l->threads : HELPERS_MAX;
    n = pieces < (size_t)n ? (int)pieces : n;
    void *p = NULL;
    cudaError_t r = cudaMalloc(&p, g->total);
    if (r != cudaSuccess) {
        cudaGetLastError(); /* out of memory is an answer, not a fault */
        return FAIL(e, E_NOMEM, "cuda: no memory for %zu bytes of weights (%s)", g->total,
                    cudaGetErrorString(r));
    }
    g->block = (char *)p;
    CU(e, cudaMallocHost(&p, (size_t)n * BUFFERS * PIECE));
    g->pinned = (char *)p;
    struct helper *h = MEM_ARRAY(struct helper, n);
    if (g->l->progress)
        g->l->progress(g->l->ud, 0, g->total);
    run_helpers(g, h, n);
    mem_free(h);
    CU(e, g->fault);
    if (g->l->progress)
        g->l->progress(g->l->ud, g->total, g->total);
    return OK;
}

int cuda_load_weights(struct dev *d, const struct dev_load *l, struct err *e)
{
    CHECK(!d->frozen && !d->recording && l->threads >= 1);
    struct loading g = {};
    g.l = l;
    g.ordinal = d->conf.ordinal;
    lay_out(d, &g, l);
    int ret = g.n ? load(d, &g, e) : OK;
    if (g.pinned)
        cudaFreeHost(g.pinned);
    if (ret == OK && g.n)
        add_mirrors(d, &g);
    else if (g.block)
        cudaFree(g.block);
    mem_free(g.span);
    return ret;
}

int cuda_mirror_one(struct dev *d, const void *host, size_t bytes, struct err *e)
{
    struct dev_span s = {host, bytes};
    struct dev_load l = {};
    l.span = &s;
    l.n = 1;
    l.threads = 1;
    return cuda_load_weights(d, &l, e);
}
