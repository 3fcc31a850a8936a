/* Recording, look-up and replay of graphs by bucket. */
#include "engine/graph/graph_pool.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"

struct graph_pool {
    const struct dev_ops *ops;
    struct dev *d;
    graph_body *body;
    void *ud;
    int n;
    struct graph_key *keys; /* ascending by rows, then reqs */
    struct dev_graph **graphs;
};

static int by_size(const void *a, const void *b)
{
    const struct graph_key *x = a, *y = b;
    if (x->rows != y->rows)
        return x->rows < y->rows ? -1 : 1;
    return (x->reqs > y->reqs) - (x->reqs < y->reqs);
}

int graph_pool_open(struct graph_pool **out, const struct dev_ops *ops, struct dev *d,
                    const struct graph_key *keys, int n, graph_body *body, void *ud, struct err *e)
{
    struct graph_pool *p = MEM_NEW(struct graph_pool);
    *p = (struct graph_pool){.ops = ops, .d = d, .body = body, .ud = ud, .n = n};
    p->keys = mem_dup(keys, mem_mul((size_t)n, sizeof *keys));
    p->graphs = MEM_ARRAY(struct dev_graph *, n);
    qsort(p->keys, (size_t)n, sizeof *p->keys, by_size);
    int ret = OK;
    for (int i = n - 1; i >= 0; i--) { /* largest first: what fails for memory fails at once */
        TRY_OUT(ops->record_begin(d, e));
        int r = body(ud, &p->keys[i], e);
        struct dev_graph *g = NULL;
        int r2 = ops->record_end(d, &g, r < 0 ? NULL : e);
        p->graphs[i] = g;
        TRY_OUT(r);
        TRY_OUT(r2);
    }
    *out = p;
    return OK;
out:
    graph_pool_close(p);
    return ret;
}

void graph_pool_close(struct graph_pool *p)
{
    if (!p)
        return;
    for (int i = 0; i < p->n; i++)
        if (p->graphs[i])
            p->ops->graph_free(p->d, p->graphs[i]);
    mem_free(p->graphs);
    mem_free(p->keys);
    mem_free(p);
}

int graph_pool_count(const struct graph_pool *p)
{
    return p->n;
}

const struct graph_key *graph_pool_fit(const struct graph_pool *p, const struct graph_key *want)
{
    for (int i = 0; i < p->n; i++) {
        const struct graph_key *k = &p->keys[i];
        if (k->role == want->role && k->variant == want->variant && k->sampler == want->sampler &&
            k->reqs >= want->reqs && k->rows >= want->rows)
            return k;
    }
    return NULL;
}

int graph_pool_replay(struct graph_pool *p, const struct graph_key *k, struct err *e)
{
    ptrdiff_t i = k - p->keys;
    CHECK(i >= 0 && i < p->n);
    return p->ops->replay(p->d, p->graphs[i], e);
}

int graph_pool_eager(struct graph_pool *p, const struct graph_key *k, struct err *e)
{
    return p->body(p->ud, k, e);
}

int graph_buckets(int max, int *out, int cap)
{
    int n = 0;
    for (int v = 1; v < max; v = v < 16 ? v * 2 : (v & (v - 1)) == 0 ? v + v / 2 : v / 3 * 4) {
        CHECK(n < cap - 1);
        out[n++] = v;
    }
    out[n++] = max;
    return n;
}
