/* Speculation: the rows a drafter runs, the choice among its logits, the nodes that the next verify
 * gets, prompt lookup, and what tidies up after a tree. The contracts are in ops.h. */
#include <math.h>
#include <string.h>

#include "engine/base/check.h"
#include "kernels/cpu/fmath.h"
#include "kernels/cpu/logits.h"

struct job {
    struct dev *d;
    const void *a;
};

/* ---- caches after a tree ---- */

int cpu_do_kv_move(struct dev *d, const struct op_kv_move *a)
{
    (void)d;
    size_t bytes = (size_t)a->width * dtype_size(a->dt);
    for (int i = 0; i < a->reqs; i++) {
        const int32_t *row = a->acc.row + (int64_t)i * LIM_EMIT;
        const int32_t *table = a->table + (int64_t)a->req_slot[i] * a->pages_max;
        for (int j = 0; j < a->acc.n[i]; j++) {
            int from = a->acc.len[i] + row[j] - a->req_row0[i], to = a->acc.len[i] + j;
            if (from == to)
                continue;
            CHECK(from > to && from / a->page < a->pages_max);
            int64_t src = (int64_t)table[from / a->page] * a->page + from % a->page;
            int64_t dst = (int64_t)table[to / a->page] * a->page + to % a->page;
            for (int l = 0; l < a->n_layer; l++) {
                char *plane = (char *)a->cache + (size_t)(l * a->layer_rows) * bytes;
                memcpy(plane + (size_t)dst * bytes, plane + (size_t)src * bytes, bytes);
            }
        }
    }
    return OK;
}

/* ---- rows of the drafter ---- */

static bool drafts(const struct slot_arrays *s, int32_t slot, int32_t gen, enum spec_mode mode)
{
    return cpu_slot_ok(s, slot, gen) && s->params[slot].spec_mode == (int32_t)mode;
}

/* Positions [from, to) of the slot are filled; what lay before a gap is lost. */
static void filled(const struct slot_arrays *s, int slot, int from, int to)
{
    if (from > s->drf_next[slot])
        s->drf_first[slot] = from;
    s->drf_next[slot] = to;
}

int cpu_do_draft_begin(struct dev *d, const struct op_draft_begin *a)
{
    (void)d;
    const struct row_arrays *o = &a->out;
    cpu_stamp(&a->stamp);
    for (int r = 0; r < a->reqs * a->each; r++) {
        cpu_row_pad(o, r);
        a->src[r] = -1;
    }
    for (int i = 0; i < a->reqs; i++) {
        int slot = a->req_slot[i], n = a->acc.n[i];
        a->tail[i] = -1;
        if (n <= 0 || !drafts(&a->s, slot, a->req_gen[i], SPEC_MODEL))
            continue;
        int row0 = i * a->each, at = a->acc.len[i] + 1;
        CHECK(n <= a->each && at >= a->shift);
        for (int j = 0; j < n; j++) {
            int r = row0 + j;
            o->tok[r] = a->acc.tok[(int64_t)i * LIM_EMIT + j];
            o->slot[r] = slot;
            o->req[r] = i;
            o->at[r] = at + j;
            o->pos[r] = at + j - a->shift;
            o->parent[r] = j ? r - 1 : -1;
            o->anc[r] = ((uint64_t)2 << j) - 1;
            o->row0[r] = at;
            a->src[r] = a->acc.row[(int64_t)i * LIM_EMIT + j];
        }
        a->tail[i] = row0 + n - 1;
        filled(&a->s, slot, at, at + n);
    }
    return OK;
}

int cpu_do_draft_fill(struct dev *d, const struct op_draft_fill *a)
{
    (void)d;
    const struct row_arrays *o = &a->out;
    for (int r = 0; r < a->rows; r++) {
        cpu_row_pad(o, r);
        a->src[r] = -1;
    }
    for (int i = 0; i < a->reqs; i++) {
        int slot = a->req_slot[i], row0 = a->req_row0[i], n = a->req_n[i];
        a->keep_row[i] = a->keep_slot[i] = -1;
        if (n <= 0 || !drafts(&a->s, slot, a->req_gen[i], SPEC_MODEL))
            continue;
        CHECK(row0 + n <= a->rows);
        int first = a->in.at[row0] > a->shift ? a->in.at[row0] : a->shift;
        int end = a->in.at[row0] + n;
        for (int r = row0; r < row0 + n; r++) {
            int at = a->in.at[r];
            if (at < a->shift)
                continue;
            o->tok[r] = a->in.tok[r];
            o->slot[r] = slot;
            o->req[r] = i;
            o->at[r] = o->row0[r] = at;
            o->pos[r] = at - a->shift;
            o->parent[r] = r > row0 && at > first ? r - 1 : -1;
            o->anc[r] = 1;
            a->src[r] = r > row0 ? r - 1 : a->saved0 + slot;
        }
        a->keep_row[i] = row0 + n - 1;
        a->keep_slot[i] = slot;
        if (end > first)
            filled(&a->s, slot, first, end);
    }
    return OK;
}

/* ---- choice ---- */

/* The request's drafts are drawn with noise of their own, and their distribution is kept. */
static bool by_ratio(const struct op_draft_pick *a, int slot)
{
    const struct slot_params *p = &a->s.params[slot];
    return a->q && p->spec_ratio && p->temperature >= 1e-5f;
}

/* The distribution that values v draw from, by target id; e is scratch for cpu_pad(vocab). */
static void keep_q(const struct cpu_isa *isa, const struct op_draft_pick *a, int slot,
                   const float *v, float *e)
{
    float *q = a->q + ((int64_t)slot * a->q_steps + a->level) * a->s.vocab;
    double sum = cpu_exp_row(isa, e, v, a->vocab, isa->max(v, a->vocab, NULL));
    memset(q, 0, (size_t)a->s.vocab * sizeof *q);
    for (int i = 0; i < a->vocab; i++) {
        int id = a->d2t ? a->d2t[i] : i;
        if (id < a->s.vocab)
            q[id] = (float)((double)e[i] / sum);
    }
}

/* The values of a logit row: what tokens are ranked by. `v` has room for two rows, padded. */
static void row_values(const struct cpu_isa *isa, const struct op_draft_pick *a, int slot, int pos,
                       const float *l, float *v)
{
    enum { BLOCK = 64 };
    const struct slot_params *p = &a->s.params[slot];
    isa->clean(v, l, a->vocab);
    if (p->temperature < 1e-5f)
        return;
    isa->div(v, a->vocab, p->temperature);
    bool own = by_ratio(a, slot);
    if (own)
        keep_q(isa, a, slot, v, v + a->vocab);
    if (own || a->d2t) {
        for (int i = 0; i < a->vocab; i++)
            v[i] += fm_gumbel(
                fm_random(p->seed, pos, a->d2t ? a->d2t[i] : i, own ? FM_DRAFT : FM_TARGET));
        return;
    }
    float z[BLOCK];
    for (int b = 0; b < a->vocab; b += BLOCK) {
        int m = a->vocab - b < BLOCK ? a->vocab - b : BLOCK;
        memcpy(z, v + b, (size_t)m * sizeof *z);
        isa->noise(v + b, z, m, p->seed, pos, b);
    }
}

/* Node indices of request i begin at i * LIM_DRAFT_NODES. */
static int64_t tree_at(int i)
{
    return (int64_t)i * LIM_DRAFT_NODES;
}

/* The children of one logit row, or as many absent ones. */
static void pick_row(void *ud, int m)
{
    const struct job *job = ud;
    const struct op_draft_pick *a = job->a;
    int k = a->topk, i = a->level ? m / k : m, b = a->level ? m % k : 0;
    if (a->tail[i] < 0)
        return;
    int slot = a->req_slot[i], pos = a->s.len[slot] + 1 + a->level;
    int node = draft_level(k, a->level) + b * k, got = 0;
    int parent = a->level ? a->t.beam[(int64_t)i * LIM_SPEC_TOPK + b] : -1;
    double base = parent >= 0 ? (double)a->t.score[tree_at(i) + parent] : 0;
    float val[LIM_SPEC_TOPK];
    int32_t id[LIM_SPEC_TOPK];
    struct cpu_lse lse = {0};
    if (a->level == 0 || (parent >= 0 && pos - 1 < a->s.len_max)) {
        int need = 2 * a->vocab + CPU_LANES;
        float *v =
            need <= CPU_PANEL_FLOATS ? cpu_panel(job->d) : a->work + m * 4 * (int64_t)a->vocab;
        float *e = v + a->vocab;
        row_values(job->d->isa, a, slot, pos, a->logits + m * a->ldl, v);
        got = cpu_top_k(job->d->isa, v, a->vocab, k, val, id);
        lse = cpu_row_lse(job->d->isa, v, a->vocab, e);
    }
    for (int c = 0; c < k; c++) {
        int64_t at = tree_at(i) + node + c;
        float score = c < got ? (float)(base + cpu_log_prob(&lse, val[c])) : NAN;
        bool real = fabsf(score) < INFINITY;
        a->t.tok[at] = !real ? -1 : a->d2t ? a->d2t[id[c]] : id[c];
        a->t.parent[at] = parent;
        a->t.score[at] = real ? score : -INFINITY;
    }
}

/* Inserts node `x` into best[0 … n), ordered by score, ties by the lower node; at most `max` stay.
 * Nodes come in ascending order. */
static int keep_best(const float *score, int32_t *best, int n, int max, int x)
{
    if (max <= 0 || (n == max && !(score[x] > score[best[n - 1]])))
        return n;
    int j = n < max ? n++ : n - 1;
    for (; j > 0 && score[x] > score[best[j - 1]]; j--)
        best[j] = best[j - 1];
    best[j] = x;
    return n;
}

/* Beams of the level just scored, and their rows in the next pass. */
static void next_beams(const struct op_draft_pick *a, int i)
{
    int k = a->topk, slot = a->req_slot[i], n_best = 0;
    int first = draft_level(k, a->level), end = draft_level(k, a->level + 1);
    int at0 = a->s.len[slot] + 1, bit0 = a->level * k;
    const struct row_arrays *o = &a->out;
    int32_t *beam = a->t.beam + (int64_t)i * LIM_SPEC_TOPK, best[LIM_SPEC_TOPK];
    uint64_t *anc = a->t.beam_anc + (int64_t)i * LIM_SPEC_TOPK, was[LIM_SPEC_TOPK];
    memcpy(was, anc, sizeof was);
    for (int x = first; x < end; x++)
        if (a->t.tok[tree_at(i) + x] >= 0)
            n_best = keep_best(a->t.score + tree_at(i), best, n_best, k, x);
    for (int b = 0; b < k; b++) {
        int r = i * k + b;
        beam[b] = b < n_best ? best[b] : -1;
        anc[b] = 0;
        if (beam[b] < 0)
            continue;
        int up = a->level ? (beam[b] - first) / k : 0; /* the beam it comes from */
        anc[b] = (a->level ? was[up] : 0) | (uint64_t)1 << (bit0 + b);
        if (at0 + a->level >= a->s.len_max)
            continue;
        o->tok[r] = a->t.tok[tree_at(i) + beam[b]];
        o->slot[r] = slot;
        o->req[r] = i;
        o->at[r] = at0 + bit0 + b;
        o->pos[r] = at0 + a->level - a->shift;
        o->anc[r] = anc[b];
        o->row0[r] = at0;
        a->src[r] = a->level ? i * k + up : a->tail[i];
    }
}

int cpu_do_draft_pick(struct dev *d, const struct op_draft_pick *a)
{
    int k = a->topk, rows = a->level ? a->reqs * k : a->reqs;
    CHECK(!a->q || (k == 1 && a->level < a->q_steps));
    CHECK(k >= 1 && k <= LIM_SPEC_TOPK && draft_level(k, a->level + 1) <= LIM_DRAFT_NODES);
    struct job j = {d, a};
    cpu_stamp(&a->stamp);
    cpu_parallel_if(d, (int64_t)rows * a->vocab * 2, rows, pick_row, &j);
    if (a->last)
        return OK;
    CHECK((a->level + 1) * k <= 64);
    for (int r = 0; r < a->reqs * k; r++) {
        cpu_row_pad(&a->out, r);
        a->src[r] = -1;
    }
    for (int i = 0; i < a->reqs; i++)
        if (a->tail[i] >= 0)
            next_beams(a, i);
    return OK;
}

/* ---- the nodes of the next verify ---- */

static void build_req(const struct op_draft_build *a, int i)
{
    int slot = a->req_slot[i], n = draft_level(a->topk, a->levels), max = a->rows - 1, n_best = 0;
    int64_t to = (int64_t)slot * LIM_ROWS_PER_REQ;
    int32_t best[LIM_ROWS_PER_REQ], row_of[LIM_DRAFT_NODES];
    max = max < a->s.params[slot].spec_max ? max : a->s.params[slot].spec_max;
    for (int x = 0; x < n; x++) {
        row_of[x] = -1;
        if (a->t.tok[tree_at(i) + x] >= 0)
            n_best = keep_best(a->t.score + tree_at(i), best, n_best, max, x);
    }
    for (int j = 0; j < n_best; j++)
        row_of[best[j]] = 0; /* chosen */
    int rows = 1;
    for (int x = 0; x < n; x++) {
        if (row_of[x] < 0)
            continue;
        int parent = a->t.parent[tree_at(i) + x];
        int up = parent >= 0 && parent < x && row_of[parent] > 0 ? row_of[parent] : 0;
        a->s.draft[to + rows - 1] = a->t.tok[tree_at(i) + x];
        a->s.parent[to + rows - 1] = up;
        a->s.anc[to + rows - 1] = (up ? a->s.anc[to + up - 1] : 1) | (uint64_t)1 << rows;
        row_of[x] = rows++;
    }
    a->s.n_rows[slot] = rows;
}

int cpu_do_draft_build(struct dev *d, const struct op_draft_build *a)
{
    (void)d;
    CHECK(a->rows >= 1 && a->rows <= LIM_ROWS_PER_REQ);
    CHECK(draft_level(a->topk, a->levels) <= LIM_DRAFT_NODES);
    for (int i = 0; i < a->reqs; i++)
        if (a->tail[i] >= 0)
            build_req(a, i);
    return OK;
}

/* ---- prompt lookup ---- */

/* Tokens that end at `e` and equal those that end at `last`, counted to at most n_max. */
static int match_len(const int32_t *h, int e, int last, int n_max)
{
    int n = 0;
    while (n < n_max && n <= e && h[e - n] == h[last - n])
        n++;
    return n;
}

static bool is_one_of(const int32_t *v, int n, int32_t x)
{
    for (int i = 0; i < n; i++)
        if (v[i] == x)
            return true;
    return false;
}

/* Where the best match goes on with none of the taken tokens; -1: there is none. */
static int best_match(const struct op_draft_ngram *a, const int32_t *h, int last,
                      const int32_t *taken, int n_taken)
{
    int best = a->n_min - 1, from = -1;
    for (int e = last - 1; e >= 0 && best < a->n_max; e--) {
        if (h[e] != h[last])
            continue;
        int n = match_len(h, e, last, a->n_max);
        if (n > best && !is_one_of(taken, n_taken, h[e + 1])) {
            best = n;
            from = e + 1;
        }
    }
    return from;
}

static void ngram_req(void *ud, int i)
{
    const struct job *j = ud;
    const struct op_draft_ngram *a = j->a;
    const struct slot_arrays *s = &a->s;
    int slot = a->req_slot[i];
    if (!drafts(s, slot, a->req_gen[i], SPEC_NGRAM))
        return;
    const int32_t *h = s->hist + (int64_t)slot * s->len_max;
    int last = s->len[slot], left = s->params[slot].spec_max, rows = 1;
    int32_t taken[LIM_SPEC_TOPK];
    CHECK(last < s->len_max);
    for (int c = 0; c <= a->more; c++) {
        int from = best_match(a, h, last, taken, c), most = c ? a->each : a->steps;
        int n = most < left ? most : left;
        if (from < 0 || n <= 0)
            break;
        taken[c] = h[from];
        int64_t at = (int64_t)slot * LIM_ROWS_PER_REQ + rows - 1; /* of the chain's first node */
        for (int k = 0; k < n; k++) {
            s->draft[at + k] = from + k <= last ? h[from + k] : s->draft[at + from + k - last - 1];
            s->parent[at + k] = k ? rows + k - 1 : 0;
            s->anc[at + k] = ((((uint64_t)2 << k) - 1) << rows) | 1;
        }
        rows += n;
        left -= n;
    }
    s->n_rows[slot] = rows;
}

int cpu_do_draft_ngram(struct dev *d, const struct op_draft_ngram *a)
{
    CHECK(a->n_min >= 1 && a->steps >= 0 && a->more >= 0 && a->more < LIM_SPEC_TOPK);
    CHECK(draft_ngram_nodes(a) < LIM_ROWS_PER_REQ);
    struct job j = {d, a};
    cpu_parallel_if(d, (int64_t)a->reqs * (a->more + 1) * 4096, a->reqs, ngram_req, &j);
    return OK;
}

/* ---- notes for the host ---- */

int cpu_do_spec_note(struct dev *d, const struct op_spec_note *a)
{
    (void)d;
    struct ring_rec *ring = a->ring + *a->step % a->ring_depth * a->ring_stride;
    cpu_stamp(&a->stamp);
    for (int i = 0; i < a->reqs; i++)
        ring[i].n_next =
            cpu_slot_ok(&a->s, a->req_slot[i], a->req_gen[i]) ? a->s.n_rows[a->req_slot[i]] : 0;
    return OK;
}

int cpu_do_stamp(struct dev *d, const struct op_stamp *a)
{
    (void)d;
    cpu_stamp(a);
    return OK;
}
