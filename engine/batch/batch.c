/* The step's device arrays. Worker thread. */
#include "engine/batch/batch.h"

#include "engine/base/check.h"
#include "engine/batch/pieces.h"

enum { PIECES_MAX = 80 };

static int pieces(struct batch *b, const struct batch_conf *c, struct piece *out)
{
    size_t S = (size_t)c->slots_max + 1, B = (size_t)c->reqs_max, R = (size_t)c->rows_max;
    size_t M = (size_t)c->logits_max, V = (size_t)c->vocab, H = (size_t)c->hidden;
    size_t ring = (size_t)c->ring_depth * B;
    int n = 0;
#define ADD(ptr, count) out[n++] = PIECE(ptr, count, DEV_MEM_DEVICE)
#define ADD_PINNED(ptr, count) out[n++] = PIECE(ptr, count, DEV_MEM_PINNED)
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
    n += pieces_rows(&b->rows, R, c->n_group, out + n);
    ADD(b->req_slot, B);
    ADD(b->req_gen, B);
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
    struct batch_in in;
    ADD(b->in_mem, batch_in(&in, c, NULL));
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

size_t batch_in(struct batch_in *out, const struct batch_conf *c, void *mem)
{
    enum { ALIGN = 16 };
    size_t B = (size_t)c->reqs_max, slots = (size_t)c->slots_max, at = 0;
#define PLACE(field, count)                                                                        \
    out->field = mem ? (void *)((char *)mem + at) : NULL;                                          \
    at = (at + (count) * sizeof *out->field + ALIGN - 1) / ALIGN * ALIGN
    PLACE(step, 1);
    PLACE(n_start, 1);
    PLACE(n_stop, 1);
    PLACE(n_set, 1);
    PLACE(req_slot, B);
    PLACE(req_gen, B);
    PLACE(req_cap, B);
    PLACE(stop, slots);
    PLACE(set, (size_t)c->set_max);
    PLACE(start, slots);
#undef PLACE
    return at;
}

size_t batch_bytes(const struct batch_conf *c)
{
    struct batch b = {0};
    struct piece p[PIECES_MAX];
    int n = pieces(&b, c, p);
    return pieces_bytes(p, n);
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
    TRY(pieces_alloc(p, pieces(b, c, p), ops, d, e));
    batch_in(&b->in, c, b->in_mem);
    return OK;
}

void batch_close(struct batch *b, const struct dev_ops *ops, struct dev *d)
{
    struct piece p[PIECES_MAX];
    pieces_free(p, pieces(b, &b->c, p), ops, d);
}
