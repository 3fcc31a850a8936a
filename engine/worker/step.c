/* A step's staging blocks, and what ranks do with the same step: copy it, compare it. */
#include <string.h>

#include "engine/base/check.h"
#include "engine/worker/runner.h"

struct block {
    void **p;
    size_t bytes;
};

static int blocks(struct runner *r, struct step *s, struct block *out)
{
    size_t reqs = (size_t)r->conf.reqs_max;
    size_t rows = (size_t)r->conf.prefill_rows_max;
    size_t staging = 3 * (size_t)r->b.c.rows_max + 6 * reqs; /* of prefill */
    struct batch_in in;
    struct block all[] = {
        {(void **)&s->host, staging * sizeof *s->host},
        {(void **)&s->head, sizeof *s->head},
        {&s->in, batch_in(&in, &r->b.c, NULL)},
        {(void **)&s->chunk, reqs * sizeof *s->chunk},
        {(void **)&s->tok, rows * sizeof *s->tok},
        {(void **)&s->score_tok, rows * sizeof *s->score_tok},
        {(void **)&s->score, rows * sizeof *s->score},
    };
    memcpy(out, all, sizeof all);
    return (int)ARRAY_LEN(all);
}

int runner_step_init(struct runner *r, struct step *s, struct err *e)
{
    *s = (struct step){.set_max = r->set_max};
    struct block b[16];
    int n = blocks(r, s, b);
    for (int i = 0; i < n; i++)
        TRY(r->ops->alloc(r->d, b[i].p, b[i].bytes, DEV_MEM_PINNED, e));
    struct batch_in in;
    batch_in(&in, &r->b.c, s->in);
    s->req_slot = in.req_slot;
    s->req_gen = in.req_gen;
    s->req_cap = in.req_cap;
    s->stop = in.stop;
    s->set = in.set;
    s->start = in.start;
    return OK;
}

void runner_step_done(struct runner *r, struct step *s)
{
    struct block b[16];
    int n = blocks(r, s, b);
    for (int i = 0; i < n; i++) {
        if (*b[i].p)
            r->ops->free(r->d, *b[i].p);
        *b[i].p = NULL;
    }
}

/* The parts of a step that the scheduler fills, and how many elements of each count. */
#define STEP_LISTS(X)                                                                              \
    X(stop, n_stop)                                                                                \
    X(start, n_start)                                                                              \
    X(set, n_set)                                                                                  \
    X(req_slot, n_req)                                                                             \
    X(req_gen, n_req) X(req_cap, n_req) X(chunk, n_chunk) X(tok, n_row) X(score_tok, n_row)

void runner_step_copy(struct step *to, const struct step *from)
{
    to->no = from->no;
    to->n_stop = from->n_stop;
    to->n_start = from->n_start;
    to->n_set = from->n_set;
    to->n_req = from->n_req;
    to->rows_max = from->rows_max;
    to->n_draft = from->n_draft;
    to->depth = from->depth;
    to->lookup = from->lookup;
    to->n_chunk = from->n_chunk;
    to->n_row = from->n_row;
#define COPY(list, n) memcpy(to->list, from->list, (size_t)from->n * sizeof *to->list);
    STEP_LISTS(COPY)
#undef COPY
}

static uint64_t hash(uint64_t h, const void *p, size_t bytes)
{
    const unsigned char *s = p;
    for (; bytes >= sizeof h; bytes -= sizeof h, s += sizeof h) {
        uint64_t w;
        memcpy(&w, s, sizeof w);
        h = (h ^ w) * 0x9e3779b97f4a7c15ull;
        h ^= h >> 32;
    }
    while (bytes--)
        h = (h ^ *s++) * 0x100000001b3ull;
    return h;
}

int runner_step_same(struct runner *r, const struct step *s, struct err *e)
{
    struct comm *c = r->conf.comm;
    if (!c)
        return OK;
    int64_t sizes[] = {s->no,      s->n_stop, s->n_start, s->n_set,   s->n_req, s->rows_max,
                       s->n_draft, s->depth,  s->lookup,  s->n_chunk, s->n_row};
    uint64_t h = hash(0xcbf29ce484222325ull, sizes, sizeof sizes);
#define HASH(list, n) h = hash(h, s->list, (size_t)s->n * sizeof *s->list);
    STEP_LISTS(HASH)
#undef HASH
    int ret = c->ops->same(c, h);
    if (ret == E_DEVICE)
        return FAIL(e, ret, "rank %d was given another step %lld than rank 0", c->rank,
                    (long long)s->no);
    return ret < 0 ? FAIL(e, ret, "another rank failed") : OK;
}
