/* Request slots and row lists: the integer state machines of a step. All serial on the owner: a
 * step has at most a few hundred rows. Nothing here reads a value the host wrote after recording
 * except through the staging arrays its arguments name. */
#include "kernels/cpu/internal.h"

#include <math.h>
#include <string.h>

#include "engine/base/check.h"

static int seen_words(const struct slot_arrays *s)
{
    return (s->vocab + 31) / 32;
}

/* Records a token of slot `i` at `pos`; output tokens are counted. */
static void note_token(const struct slot_arrays *s, int i, int pos, int32_t tok, bool output)
{
    CHECK(pos >= 0 && pos < s->len_max);
    s->hist[(int64_t)i * s->len_max + pos] = tok;
    if (tok < 0 || tok >= s->vocab) /* an embedding row beyond the sampler's vocabulary */
        return;
    s->seen[(int64_t)i * seen_words(s) + tok / 32] |= 1u << (tok & 31);
    uint16_t *c = &s->count[(int64_t)i * s->vocab + tok];
    if (output && *c < UINT16_MAX)
        ++*c;
}

static void slot_begin(const struct slot_arrays *s, const struct slot_start *b, int drf_begin)
{
    int32_t i = b->slot;
    CHECK(i > 0 && i < s->n_slot);
    s->gen[i] = b->gen;
    s->live[i] = 1;
    s->len[i] = 0;
    s->root[i] = -1;
    s->n_rows[i] = 1;
    s->drf_first[i] = s->drf_next[i] = drf_begin;
    s->n_out[i] = b->params.n_out;
    memset(s->seen + (int64_t)i * seen_words(s), 0, (size_t)seen_words(s) * sizeof *s->seen);
    memset(s->count + (int64_t)i * s->vocab, 0, (size_t)s->vocab * sizeof *s->count);
    s->params[i] = b->params;
}

int cpu_do_slot_update(struct dev *d, const struct op_slot_update *a)
{
    (void)d;
    for (int i = 0; i < *a->n_stop; i++) { /* before the starts: a slot may change hands */
        CHECK(a->stop[i] >= 0 && a->stop[i] < a->s.n_slot);
        a->s.live[a->stop[i]] = 0;
    }
    for (int i = 0; i < *a->n_start; i++)
        slot_begin(&a->s, &a->start[i], a->drf_begin);
    for (int i = 0; i < *a->n_set; i++) {
        const struct page_set *p = &a->set[i];
        CHECK(p->group >= 0 && p->group < a->n_group);
        CHECK(p->slot >= 0 && p->slot < a->s.n_slot);
        CHECK(p->index >= 0 && p->index < a->pages_max[p->group]);
        a->table[p->group][(int64_t)p->slot * a->pages_max[p->group] + p->index] = p->page;
    }
    return OK;
}

/* Row `r` of the call: request i's j-th. */
static void build_row(const struct op_rows_build *a, int r, int i, int j)
{
    const struct slot_arrays *s = &a->s;
    const struct row_arrays *o = &a->out;
    int slot = a->req_slot[i];
    int64_t node = (int64_t)slot * LIM_ROWS_PER_REQ + j - 1;
    CHECK(j == 0 || (s->parent[node] >= 0 && s->parent[node] < j));
    o->tok[r] = j ? s->draft[node] : s->root[slot];
    o->slot[r] = slot;
    o->req[r] = i;
    o->at[r] = s->len[slot] + j;
    o->parent[r] = j ? r - j + s->parent[node] : -1;
    o->anc[r] = j ? s->anc[node] : 1;
    o->row0[r] = s->len[slot];
    o->pos[r] = s->len[slot] + __builtin_popcountll(o->anc[r]) - 1;
}

int cpu_do_rows_build(struct dev *d, const struct op_rows_build *a)
{
    (void)d;
    const struct slot_arrays *s = &a->s;
    int r = 0;
    cpu_stamp(&a->stamp);
    for (int i = 0; i < a->reqs; i++) {
        int32_t slot = a->req_slot[i];
        int n = 0;
        if (cpu_slot_ok(s, slot, a->req_gen[i])) {
            n = s->n_rows[slot];
            CHECK(n >= 1 && n <= LIM_ROWS_PER_REQ);
            if (a->req_cap && n > a->req_cap[i])
                n = a->req_cap[i];
            int room = s->len_max - s->len[slot];
            n = n < room ? n : room;
            CHECK(n >= 1);
        }
        CHECK(r + n <= a->rows);
        a->req_row0[i] = r;
        a->req_n[i] = n;
        for (int j = 0; j < n; j++, r++)
            build_row(a, r, i, j);
    }
    for (; r < a->rows; r++)
        cpu_row_pad(&a->out, r);
    return OK;
}

int cpu_do_rows_note(struct dev *d, const struct op_rows_note *a)
{
    (void)d;
    for (int r = 0; r < a->rows; r++) {
        int32_t slot = a->slot[r];
        if (slot <= 0 || a->tok[r] < 0)
            continue;
        CHECK(slot < a->s.n_slot);
        note_token(&a->s, slot, a->pos[r], a->tok[r], a->pos[r] >= a->s.params[slot].n_prompt);
    }
    return OK;
}

int cpu_do_rows_place(struct dev *d, const struct op_rows_place *a)
{
    (void)d;
    for (int r = 0; r < a->rows; r++) {
        if (a->slot[r] <= 0 || a->tok[r] < 0) {
            a->first[r] = a->last[r] = 0;
            a->wslot[r] = -1;
            continue;
        }
        int at = a->at[r], from = a->from ? a->from[a->slot[r]] : 0;
        int first = a->window > 0 ? a->pos[r] + 1 - a->window : 0;
        CHECK(at >= 0 && at / a->page < a->pages_max);
        int32_t page = a->table[(int64_t)a->slot[r] * a->pages_max + at / a->page];
        CHECK(page >= 0);
        a->last[r] = at + 1;
        a->first[r] = first > from ? first : from;
        a->wslot[r] = page * a->page + at % a->page;
    }
    return OK;
}

/* ---- acceptance ---- */

static bool is_stop(const struct slot_params *p, int32_t tok)
{
    for (int i = 0; i < p->n_stop; i++)
        if (p->stop[i] == tok)
            return true;
    return false;
}

/* Emits one sampled token at position `pos` of the slot and says whether it ends the request. */
static enum fin emit(const struct slot_arrays *s, int slot, int pos, const struct sample_out *t,
                     struct ring_rec *rec)
{
    const struct slot_params *p = &s->params[slot];
    CHECK(t->token >= 0 && rec->n < LIM_EMIT);
    rec->tok[rec->n++] = *t;
    int before = s->n_out[slot]++;
    note_token(s, slot, pos, t->token, true);
    if (before >= p->min_out && is_stop(p, t->token))
        return FIN_STOP;
    if (before + 1 >= p->max_out || p->n_prompt + before + 1 >= p->len_max)
        return FIN_LENGTH;
    return FIN_NONE;
}

/* The first child of row r among the request's rows (up to `end`) that holds the token; -1. */
static int child_of(const struct row_arrays *rows, int r, int end, int32_t tok)
{
    for (int c = r + 1; c < end; c++)
        if (rows->parent[c] == r && rows->tok[c] == tok)
            return c;
    return -1;
}

/* Emits the sample of row r and notes it for the work after this; position len is row0's. */
static enum fin emit_row(const struct op_accept *a, int i, int r, const struct sample_out *t,
                         struct ring_rec *rec)
{
    int64_t k = (int64_t)i * LIM_EMIT + rec->n;
    a->out.row[k] = r;
    a->out.tok[k] = t->token;
    return emit(&a->s, a->req_slot[i], a->out.len[i] + 1 + rec->n, t, rec);
}

static void accept_verify(const struct op_accept *a, int i, struct ring_rec *rec)
{
    const struct slot_arrays *s = &a->s;
    int slot = a->req_slot[i], row0 = a->req_row0[i], end = row0 + a->req_n[i];
    enum fin fin = FIN_NONE;
    a->out.len[i] = s->len[slot];
    for (int r = row0; r >= 0 && fin == FIN_NONE && rec->n < LIM_EMIT;) {
        fin = emit_row(a, i, r, &a->sample[r], rec);
        r = child_of(&a->rows, r, end, a->sample[r].token);
    }
    rec->fin = fin;
    rec->n_draft = end - row0 - 1;
    rec->n_accepted = rec->n - 1;
    for (int r = row0; r < end; r++) {
        int depth = __builtin_popcountll(a->rows.anc[r]) - 1;
        rec->n_deep = depth > rec->n_deep ? depth : rec->n_deep;
    }
    s->len[slot] += rec->n;
    s->root[slot] = rec->tok[rec->n - 1].token;
}

static void accept_prefill(const struct op_accept *a, int i, struct ring_rec *rec)
{
    const struct slot_arrays *s = &a->s;
    int slot = a->req_slot[i];
    s->len[slot] += a->req_n[i];
    a->out.len[i] = s->len[slot] - 1;
    if (a->last_sample[i] < 0)
        return;
    const struct sample_out *t = &a->sample[a->last_sample[i]];
    rec->fin = emit_row(a, i, a->req_row0[i] + a->req_n[i] - 1, t, rec);
    s->root[slot] = t->token;
}

int cpu_do_accept(struct dev *d, const struct op_accept *a)
{
    (void)d;
    const struct slot_arrays *s = &a->s;
    CHECK(*a->step >= 0 && a->reqs <= a->ring_stride);
    struct ring_rec *ring = a->ring + *a->step % a->ring_depth * a->ring_stride;
    cpu_stamp(&a->stamp);
    for (int i = 0; i < a->reqs; i++) {
        struct ring_rec *rec = &ring[i];
        int slot = a->req_slot[i];
        rec->slot = slot;
        rec->gen = a->req_gen[i];
        rec->step = *a->step;
        rec->n = rec->fin = rec->n_draft = rec->n_accepted = rec->n_deep = rec->n_next = 0;
        a->out.n[i] = a->out.len[i] = 0;
        if (!cpu_slot_ok(s, slot, a->req_gen[i]) || a->req_n[i] <= 0)
            continue;
        if (a->prefill)
            accept_prefill(a, i, rec);
        else
            accept_verify(a, i, rec);
        a->out.n[i] = rec->n;
        s->n_rows[slot] = 1;
        if (rec->fin != FIN_NONE)
            s->live[slot] = 0;
    }
    return OK;
}
