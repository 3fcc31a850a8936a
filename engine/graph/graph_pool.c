/* Recording, look-up and replay of graphs by bucket. */
#include "engine/graph/graph_pool.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"

struct graph_pool {
    const struct dev_ops *ops;
    struct dev *d;
    graph_body *body;
    void *ud;
    int n;
    struct graph_key *keys;    /* ascending by rows, then reqs */
    struct dev_graph **graphs; /* NULL: its role runs eager */
    struct graph_report report[N_ROLES];
};

/* ---- names ---- */

const char *graph_role_name(enum role role)
{
    switch (role) {
    case TGT_VERIFY:
        return "verify";
    case DRF_EXTEND:
        return "extend";
    case DRF_DECODE: /* by itself in a benchmark only, else inside the graphs of extend */
        return "loop";
    case TGT_PREFILL: /* not recorded */
    case DRF_PREFILL:
    case DRF_FROZEN:
    case DRF_BLOCK:
    case N_ROLES:
        break;
    }
    return NULL;
}

int graph_role_find(enum role *out, const char *name, struct err *e)
{
    for (int i = 0; i < N_ROLES; i++) {
        const char *s = graph_role_name((enum role)i);
        if (!s || strcmp(s, name) != 0)
            continue;
        *out = (enum role)i;
        return OK;
    }
    return FAIL(e, E_INVAL, "allow_eager: '%s' is no role with recorded graphs: verify, extend",
                name);
}

/* ---- recording ---- */

static int by_size(const void *a, const void *b)
{
    const struct graph_key *x = a, *y = b;
    if (x->rows != y->rows)
        return x->rows < y->rows ? -1 : 1;
    if (x->reqs != y->reqs)
        return x->reqs < y->reqs ? -1 : 1;
    return (x->qlen > y->qlen) - (x->qlen < y->qlen);
}

static int record(struct graph_pool *p, int i, struct err *e)
{
    struct dev_graph *g = NULL;
    TRY(p->ops->record_begin(p->d, e));
    int r = p->body(p->ud, &p->keys[i], e);
    int r2 = p->ops->record_end(p->d, &g, r < 0 ? NULL : e);
    if (r < 0 && r2 == OK) {
        p->ops->graph_free(p->d, g);
        g = NULL;
    }
    p->graphs[i] = g;
    return r < 0 ? r : r2;
}

static void lose_role(struct graph_pool *p, enum role role, const struct err *why)
{
    struct graph_report *t = &p->report[role];
    for (int i = 0; i < p->n; i++) {
        if (p->keys[i].role != role || !p->graphs[i])
            continue;
        p->ops->graph_free(p->d, p->graphs[i]);
        p->graphs[i] = NULL;
    }
    t->n = 0;
    t->eager = true;
    t->why = *why;
}

static int record_all(struct graph_pool *p, unsigned eager, struct err *e)
{
    int64_t before, total, after;
    p->ops->memory(p->d, &before, &total);
    for (int i = p->n - 1; i >= 0; i--) { /* largest first: what fails for memory fails at once */
        const struct graph_key *k = &p->keys[i];
        struct graph_report *t = &p->report[k->role];
        struct err why = {0};
        if (t->eager)
            continue;
        int64_t t0 = clock_us();
        int r = record(p, i, &why);
        if (r < 0) {
            err_prefix(&why, "recording %s of %d requests, %d rows, depth %d",
                       graph_role_name(k->role), k->reqs, k->rows, k->variant);
            if (!(eager >> k->role & 1))
                return FAIL(e, r, "%s (--allow-eager %s runs this role without graphs)", why.text,
                            graph_role_name(k->role));
            lose_role(p, k->role, &why);
        }
        p->ops->memory(p->d, &after, &total);
        t->seconds += (double)(clock_us() - t0) * 1e-6;
        t->bytes += before - after;
        t->n += r == OK;
        before = after;
    }
    return OK;
}

int graph_pool_open(struct graph_pool **out, const struct dev_ops *ops, struct dev *d,
                    const struct graph_key *keys, int n, unsigned eager, graph_body *body, void *ud,
                    struct err *e)
{
    struct graph_pool *p = MEM_NEW(struct graph_pool);
    *p = (struct graph_pool){.ops = ops, .d = d, .body = body, .ud = ud, .n = n};
    p->keys = mem_dup(keys, mem_mul((size_t)n, sizeof *keys));
    p->graphs = MEM_ARRAY(struct dev_graph *, n);
    qsort(p->keys, (size_t)n, sizeof *p->keys, by_size);
    int ret = record_all(p, eager, e);
    if (ret == OK)
        *out = p;
    else
        graph_pool_close(p);
    return ret;
}

const struct graph_report *graph_pool_report(const struct graph_pool *p, enum role role)
{
    return &p->report[role];
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
            k->reqs >= want->reqs && k->rows >= want->rows && k->qlen >= want->qlen)
            return k;
    }
    return NULL;
}

int graph_pool_replay(struct graph_pool *p, const struct graph_key *k, struct err *e)
{
    ptrdiff_t i = k - p->keys;
    CHECK(i >= 0 && i < p->n);
    if (!p->graphs[i])
        return p->body(p->ud, k, e);
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
