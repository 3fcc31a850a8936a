/* Allocation of the step's device arrays from one table, so that sizes, the memory plan and the
 * release cannot disagree. Worker thread. */
#include "engine/batch/batch.h"

#include "engine/base/check.h"
#include "engine/base/mem.h"

struct piece {
    void **p;
    size_t n, size;
    enum dev_mem kind;
};

enum { PIECES_MAX = 80 };

static int pieces(struct batch *b, const struct batch_conf *c, struct piece *out)
{
    size_t S = (size_t)c->slots_max + 1, B = (size_t)c->reqs_max, R = (size_t)c->rows_max;
    size_t M = (size_t)c->logits_max, V = (size_t)c->vocab, H = (size_t)c->hidden;
    size_t ring = (size_t)c->ring_depth * B;
    int n = 0;
#define ADD(ptr, count)                                                                            \
    out[n++] = (struct piece)                                                                      \
    {                                                                                              \
        (void **)&(ptr), (count), sizeof *(ptr), DEV_MEM_DEVICE                                    \
    }
#define ADD_PINNED(ptr, count)                                                                     \
    out[n++] = (struct piece)                                                                      \
    {                                                                                              \
        (void **)&(ptr), (count), sizeof *(ptr), DEV_MEM_PINNED                                    \
    }
    struct slot_arrays *s = &b->slots;
    ADD(s->gen, S);
    ADD(s->live, S);
    ADD(s->len, S);
    ADD(s->root, S);
    ADD(s->n_rows, S);
    ADD(s->draft, S * LIM_ROWS_PER_REQ);
    ADD(s->parent, S * LIM_ROWS_PER_REQ);
    ADD(s->anc, S * LIM_ROWS_PER_REQ);
    ADD(s->drf_first, S);
    ADD(s->drf_next, S);
    ADD(s->n_out, S);
    ADD(s->hist, S * (size_t)c->len_max);
    ADD(s->seen, S * ((V + 31) / 32));
    ADD(s->count, S * V);
    ADD(s->params, S);
    struct row_arrays *r = &b->rows;
    ADD(r->tok, R);
    ADD(r->slot, R);
    ADD(r->pos, R);
    ADD(r->req, R);
    ADD(r->at, R);
    ADD(r->parent, R);
    ADD(r->anc, R);
    ADD(r->row0, R);
    for (int g = 0; g < c->n_group; g++) {
        ADD(r->first[g], R);
        ADD(r->last[g], R);
        ADD(r->wslot[g], R);
    }
    ADD(b->req_slot, B);
    ADD(b->req_gen, B);
    ADD(b->req_cap, B);
    ADD(b->req_row0, B);
    ADD(b->req_n, B);
    ADD(b->acc.n, B);
    ADD(b->acc.row, B * LIM_EMIT);
    ADD(b->acc.tok, B * LIM_EMIT);
    ADD(b->acc.len, B);
    ADD(b->last_sample, B);
    ADD(b->gather, M);
    ADD(b->hidden, R * H);
    ADD(b->hidden_out, M * H);
    ADD(b->logits, M * V);
    ADD(b->sample_work, M * 4 * V);
    ADD(b->sample, M);
    ADD(b->step, 1);
    ADD(b->start, (size_t)c->slots_max);
    ADD(b->stop, (size_t)c->slots_max);
    ADD(b->set, (size_t)c->set_max);
    ADD(b->n_start, 1);
    ADD(b->n_stop, 1);
    ADD(b->n_set, 1);
    ADD(b->score_tok, M);
    ADD(b->score_top, M);
    ADD_PINNED(b->ring_decode, ring);
    ADD_PINNED(b->ring_prefill, ring);
    ADD_PINNED(b->score, M);
#undef ADD
#undef ADD_PINNED
    CHECK(n <= PIECES_MAX);
    return n;
}

size_t batch_bytes(const struct batch_conf *c)
{
    struct batch b = {0};
    struct piece p[PIECES_MAX];
    int n = pieces(&b, c, p);
    size_t sum = 0;
    for (int i = 0; i < n; i++)
        sum += mem_mul(p[i].n, p[i].size);
    return sum;
}

int batch_open(struct batch *b, const struct batch_conf *c, const struct dev_ops *ops,
               struct dev *d, struct err *e)
{
    *b = (struct batch){.c = *c};
    CHECK(c->n_group <= LIM_KV_GROUPS && c->slots_max < LIM_SLOTS);
    b->slots.n_slot = c->slots_max + 1;
    b->slots.len_max = c->len_max;
    b->slots.vocab = c->vocab;
    struct piece p[PIECES_MAX];
    int n = pieces(b, c, p);
    for (int i = 0; i < n; i++) {
        int r = ops->alloc(d, p[i].p, mem_mul(p[i].n, p[i].size), p[i].kind, e);
        if (r < 0) {
            batch_close(b, ops, d);
            return r;
        }
    }
    return OK;
}

void batch_close(struct batch *b, const struct dev_ops *ops, struct dev *d)
{
    struct piece p[PIECES_MAX];
    int n = pieces(b, &b->c, p);
    for (int i = 0; i < n; i++) {
        if (*p[i].p)
            ops->free(d, *p[i].p);
        *p[i].p = NULL;
    }
}
