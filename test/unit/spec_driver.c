/* Steps by hand; see the header. */
#include "test/unit/spec_driver.h"

#include <check.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/base/rng.h"
#include "kernels/cpu/internal.h"
#include "test/model/heads.h"

enum { POISON = 0x7fc0a5a5 /* a NaN, and no index of anything */ };

struct drv_block { /* scratch memory: words from … to */
    uint32_t *p;
    size_t n;
    uint64_t hash;
};

/* ---- opening ---- */

static const char *target_dir(struct drv *v)
{
    if (strchr(v->c.target, '/'))
        return v->c.target;
    gen_open(&v->model, v->c.target);
    gen_write(&v->model, 1);
    return v->model.dir;
}

static const char *draft_dir(struct drv *v, const char *target)
{
    if (!v->c.draft || strchr(v->c.draft, '/'))
        return v->c.draft;
    if (!strcmp(v->c.draft, "self"))
        return target;
    head_make(&v->head, &heads[0]);
    gen_write(&v->head, 1);
    return v->head.dir;
}

/* Pages of a slot's region, the unowned one included. */
static int region(const struct drv *v)
{
    return v->r.info.pages_max[0] + 1;
}

static size_t plane_floats(const struct kv_view *kv, const struct kv_group *g, int width)
{
    return (size_t)g->n_layer * (size_t)kv->n_page * (size_t)kv->page * (size_t)width;
}

struct plane {
    float *p;
    size_t n;
    int width, page, n_page;
};

static int planes(const struct drv *v, struct plane *out)
{
    const struct kv_pool *pool[2] = {&v->r.kv, &v->r.drf_kv};
    const struct model_info *info[2] = {&v->r.info.model, &v->r.info.draft};
    int n = 0;
    for (int k = 0; k < 2; k++)
        for (int g = 0; g < pool[k]->n_group; g++) {
            const struct kv_view *kv = &pool[k]->view[g];
            const struct kv_group *kg = &info[k]->group[g];
            CHECK(kv->dt == DT_F32);
            out[n++] = (struct plane){kv->k, plane_floats(kv, kg, kg->k_width), kg->k_width,
                                      kv->page, kv->n_page};
            if (kv->v)
                out[n++] = (struct plane){kv->v, plane_floats(kv, kg, kg->v_width), kg->v_width,
                                          kv->page, kv->n_page};
        }
    return n;
}

static void words_fill(void *p, size_t n)
{
    uint32_t *w = p;
    for (size_t i = 0; i < n; i++)
        w[i] = POISON;
}

static void kv_begin(struct drv *v)
{
    struct plane p[4 * LIM_KV_GROUPS];
    int n = planes(v, p);
    for (int i = 0; i < n; i++) {
        words_fill(p[i].p, p[i].n);
        v->copy[i] = MEM_ARRAY(float, p[i].n);
        memcpy(v->copy[i], p[i].p, p[i].n * sizeof(float));
    }
    for (int g = 0; g < v->r.kv.n_group; g++)
        words_fill(v->r.kv.table[g], (size_t)v->r.kv.n_slot * (size_t)v->r.kv.view[g].pages_max);
}

void drv_open(struct drv *v, const struct drv_conf *c)
{
    struct err e = {0};
    *v = (struct drv){.c = *c};
    v->c.page = c->page ? c->page : 16;
    v->c.len_max = c->len_max ? c->len_max : DRV_LEN;
    v->c.chunk = c->chunk ? c->chunk : v->c.len_max;
    const char *dir = target_dir(v);
    int most = (v->c.len_max + 64 + v->c.page) / v->c.page + 1;
    struct worker_conf w = {
        .model_dir = dir,
        .device = "cpu",
        .threads = c->threads ? c->threads : 1,
        .reqs_max = DRV_REQS,
        .slots_max = DRV_REQS,
        .prefill_rows_max = v->c.chunk,
        .len_max = v->c.len_max,
        .block_size = v->c.page,
        .kv_tokens = (int64_t)DRV_REQS * (most + 1) * v->c.page,
        .spec = {.method = c->method,
                 .draft_dir = draft_dir(v, dir),
                 .steps = c->steps,
                 .topk = c->topk,
                 .tokens = c->tokens,
                 .ngram_min = c->ngram_min},
    };
    ck_assert_msg(runner_open(&v->r, &w, &e) == OK, "%s", e.text);
    ck_assert_int_le(v->r.info.pages_max[0], most);
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(runner_step_init(&v->r, &v->s[i], &e), OK);
    v->r.ops->freeze(v->r.d);
    v->depth = v->r.info.spec.steps;
    kv_begin(v);
}

void drv_close(struct drv *v)
{
    for (int i = 0; i < 2; i++)
        runner_step_done(&v->r, &v->s[i]);
    runner_close(&v->r);
    for (size_t i = 0; i < ARRAY_LEN(v->copy); i++)
        mem_free(v->copy[i]);
    mem_free(v->block);
    if (v->model.dir[0])
        gen_close(&v->model);
    if (v->head.dir[0])
        gen_close(&v->head);
}

struct slot_params drv_params(uint64_t seed, float temperature, enum spec_mode mode)
{
    return (struct slot_params){
        .seed = seed,
        .temperature = temperature,
        .top_p = 1,
        .repetition = temperature > 0 ? 1.1f : 1,
        .max_out = 1 << 20,
        .n_logprobs = 1,
        .spec_mode = mode,
        .spec_max = LIM_ROWS_PER_REQ,
    };
}

void drv_prompt(const struct drv *v, int seed, int n, int32_t *out)
{
    struct rng r = {(uint64_t)seed};
    for (int i = 0; i < n; i++)
        out[i] = (int32_t)rng_below(&r, (uint64_t)v->r.info.model.vocab);
}

/* ---- scratch memory ---- */

static uint64_t hash_of(uint64_t h, const void *p, size_t n)
{
    const unsigned char *b = p;
    for (size_t i = 0; i < n; i++)
        h = (h ^ b[i]) * 1099511628211u;
    return h;
}

/* State, which a replay may read: slots, tables, caches. */
static bool is_state(const struct drv *v, const void *p)
{
    const struct slot_arrays *s = &v->r.b.slots;
    const void *const slots[] = {s->gen,    s->live, s->len,   s->root,      s->n_rows,
                                 s->draft,  s->anc,  s->seen,  s->drf_first, s->parent,
                                 s->params, s->hist, s->n_out, s->drf_next,  s->count};
    for (size_t i = 0; i < ARRAY_LEN(slots); i++)
        if (slots[i] == p)
            return true;
    for (int g = 0; g < v->r.kv.n_group; g++)
        if (v->r.kv.table[g] == p)
            return true;
    struct plane k[4 * LIM_KV_GROUPS];
    for (int i = 0, n = planes(v, k); i < n; i++)
        if (k[i].p == p)
            return true;
    return false;
}

/* Words of a block that are scratch: the drafter's features have one saved a slot at the end. */
static size_t scratch_words(const struct drv *v, const struct cpu_alloc *a)
{
    size_t feat = (size_t)v->r.info.draft.feat, saved = (size_t)v->r.b.slots.n_slot * feat;
    size_t rows = v->r.drafter ? (size_t)spec_drafter_rows(&v->r.spec_env) : 0;
    bool source = feat && a->bytes == (rows * feat + saved) * sizeof(float);
    return a->bytes / sizeof(uint32_t) - (source ? saved : 0);
}

void drv_learn(struct drv *v)
{
    const struct dev *d = v->r.d;
    int32_t prompt[20];
    v->block = MEM_ARRAY(struct drv_block, d->n_alloc);
    for (size_t i = 0; i < d->n_alloc; i++)
        if (!is_state(v, d->alloc[i].p) && d->alloc[i].bytes >= sizeof(uint32_t))
            v->block[v->n_block++] =
                (struct drv_block){d->alloc[i].p, scratch_words(v, &d->alloc[i]),
                                   hash_of(1, d->alloc[i].p, d->alloc[i].bytes)};
    drv_prompt(v, 99, 20, prompt);
    for (int s = 1; s <= DRV_REQS; s++)
        drv_prefill(v, s, prompt, 20, drv_params(5, 1, SPEC_MODEL), v->c.chunk);
    drv_decode_mask(v, 0x7e);
    drv_begin(v);
    for (int s = 1; s <= DRV_REQS; s++)
        drv_stop(v, s);
    drv_run(v);
    int n = 0;
    for (int i = 0; i < v->n_block; i++) /* what no step changes are tables of constants */
        if (hash_of(1, v->block[i].p, v->block[i].n * sizeof(uint32_t)) != v->block[i].hash)
            v->block[n++] = v->block[i];
    v->n_block = n;
    v->n_draft = v->n_accepted = v->n_verify = v->matched = 0;
}

void drv_poison(struct drv *v)
{
    for (int i = 0; i < v->n_block; i++)
        words_fill(v->block[i].p, v->block[i].n);
}

uint64_t drv_drafts(const struct drv *v, int slot)
{
    const struct slot_arrays *s = &v->r.b.slots;
    size_t n = (size_t)s->n_rows[slot] - 1, at = (size_t)slot * LIM_ROWS_PER_REQ;
    CHECK(n < LIM_ROWS_PER_REQ);
    uint64_t h = hash_of(1, s->draft + at, n * sizeof *s->draft);
    h = hash_of(h, s->parent + at, n * sizeof *s->parent);
    return hash_of(h, s->anc + at, n * sizeof *s->anc);
}

bool drv_same_kv(const struct drv *a, const struct drv *b)
{
    struct plane p[4 * LIM_KV_GROUPS], q[4 * LIM_KV_GROUPS];
    int n = planes(a, p), same = planes(b, q) == n;
    for (int i = 0; i < n && same; i++)
        same = p[i].n == q[i].n && !memcmp(p[i].p, q[i].p, p[i].n * sizeof(float));
    return same;
}

/* ---- filling a step ---- */

void drv_begin(struct drv *v)
{
    struct step *s = &v->s[v->at];
    s->n_stop = s->n_start = s->n_set = s->n_req = s->n_chunk = s->n_row = s->n_draft = 0;
    s->rows_max = 0;
    s->lookup = false;
    s->no = ++v->no;
    s->depth = v->depth;
    memset(v->lo, 0, sizeof v->lo);
    memset(v->hi, 0, sizeof v->hi);
}

/* Positions below `to` get pages; what the step may write is [lo, to). */
static void reach(struct drv *v, int slot, int lo, int to)
{
    struct step *s = &v->s[v->at];
    int page = v->r.info.page, most = v->r.info.pages_max[0] * page;
    to = to < most ? to : most;
    for (int g = 0; g < v->r.kv.n_group; g++)
        for (int i = (v->paged[slot] + page - 1) / page; i * page < to; i++)
            s->set[s->n_set++] =
                (struct page_set){g, slot, i, slot * region(v) - 2 - i}; /* one free behind */
    v->paged[slot] = v->paged[slot] > to ? v->paged[slot] : to;
    v->lo[slot] = lo;
    v->hi[slot] = to;
}

void drv_stop(struct drv *v, int slot)
{
    struct step *s = &v->s[v->at];
    s->stop[s->n_stop++] = slot;
    v->ended[slot] = true;
}

void drv_start(struct drv *v, int slot, const int32_t *prompt, int n, struct slot_params p)
{
    struct step *s = &v->s[v->at];
    CHECK(n > 0 && n < v->c.len_max);
    memcpy(v->prompt[slot], prompt, (size_t)n * sizeof *prompt);
    v->n_prompt[slot] = n;
    p.n_prompt = n - p.n_out;
    p.len_max = v->c.len_max;
    v->p[slot] = p;
    v->n_out[slot] = p.n_out;
    memcpy(v->out[slot], prompt + p.n_prompt, (size_t)p.n_out * sizeof *prompt);
    v->ended[slot] = false;
    v->paged[slot] = 0;
    s->start[s->n_start++] = (struct slot_start){slot, ++v->gen[slot], p};
}

static bool drafts(const struct drv *v, int slot)
{
    return v->s[v->at].depth > 0 && v->p[slot].spec_mode == SPEC_MODEL;
}

void drv_chunk(struct drv *v, int slot, int pos, int n)
{
    struct step *s = &v->s[v->at];
    bool last = pos + n == v->n_prompt[slot];
    int ahead = drafts(v, slot) && last ? v->r.info.spec.ahead : 0;
    reach(v, slot, pos, pos + n + ahead);
    s->chunk[s->n_chunk++] = (struct prefill_chunk){.slot = slot,
                                                    .gen = v->gen[slot],
                                                    .row0 = s->n_row,
                                                    .n = n,
                                                    .pos0 = pos,
                                                    .last = last,
                                                    .n_score = -1,
                                                    .draft = drafts(v, slot)};
    memcpy(s->tok + s->n_row, v->prompt[slot] + pos, (size_t)n * sizeof *s->tok);
    for (int i = 0; i < n; i++)
        s->score_tok[s->n_row + i] = -1;
    s->n_row += n;
}

void drv_decode(struct drv *v, int slot, int gen, int cap)
{
    struct step *s = &v->s[v->at];
    const struct slot_arrays *a = &v->r.b.slots;
    int i = s->n_req++, rows = v->r.info.spec.rows, len = a->len[slot];
    cap = !cap || cap > rows ? rows : cap;
    if (v->p[slot].spec_mode == SPEC_OFF)
        cap = 1;
    s->lookup |= v->p[slot].spec_mode == SPEC_NGRAM;
    if (drafts(v, slot)) {
        int j = s->n_draft++;
        s->req_slot[i] = s->req_slot[j];
        s->req_gen[i] = s->req_gen[j];
        s->req_cap[i] = s->req_cap[j];
        i = j;
    }
    s->req_slot[i] = slot;
    s->req_gen[i] = gen;
    s->req_cap[i] = cap;
    s->rows_max += cap;
    bool takes_part = a->live[slot] && a->gen[slot] == gen && gen == v->gen[slot];
    for (int k = 0; k < s->n_stop; k++)
        takes_part &= s->stop[k] != slot;
    if (takes_part)
        reach(v, slot, len, len + (drafts(v, slot) ? v->r.info.spec.ahead : cap));
}

/* ---- running it ---- */

/* Slot that owns a page, and the page's index; 0: nobody. */
static int owner(const struct drv *v, int page, int *index)
{
    int slot = page / region(v) + 1, i = slot * region(v) - 2 - page;
    if (slot > DRV_REQS || i < 0)
        return 0;
    *index = i;
    return slot;
}

static void check_write(struct drv *v, const struct plane *p, int k, size_t row)
{
    int at = (int)(row % ((size_t)p->n_page * (size_t)p->page)), i = 0;
    int slot = owner(v, at / p->page, &i), pos = i * p->page + at % p->page;
    ck_assert_msg(slot > 0 && pos >= v->lo[slot] && pos < v->hi[slot],
                  "step %d, plane %d: position %d of slot %d was written; allowed %d … %d",
                  (int)v->no, k, pos, slot, slot ? v->lo[slot] : 0, slot ? v->hi[slot] : 0);
    size_t w = (size_t)p->width;
    memcpy((float *)v->copy[k] + row * w, p->p + row * w, w * sizeof(float));
}

static void check_writes(struct drv *v)
{
    struct plane p[4 * LIM_KV_GROUPS];
    for (int k = 0, n = planes(v, p); k < n; k++) {
        size_t w = (size_t)p[k].width, rows = p[k].n / w, page = (size_t)p[k].page;
        float *old = v->copy[k];
        for (size_t r = 0; r < rows; r++) {
            if (r % page == 0 && !memcmp(old + r * w, p[k].p + r * w, page * w * sizeof(float)))
                r += page - 1;
            else if (memcmp(old + r * w, p[k].p + r * w, w * sizeof(float)))
                check_write(v, &p[k], k, r);
        }
    }
}

/* The drafts of slots that took part with a round of the full depth. */
static void check_drafts(struct drv *v)
{
    const struct step *s = &v->s[v->at];
    const struct slot_arrays *a = &v->r.b.slots;
    for (int slot = 1; slot <= DRV_REQS; slot++) {
        const struct drv_ref *ref = v->ref[slot];
        if (!ref || v->hi[slot] == v->lo[slot] || !a->live[slot] || a->root[slot] < 0 ||
            !drafts(v, slot) || s->depth != v->r.info.spec.steps)
            continue;
        int len = a->len[slot];
        if (len < v->p[slot].n_prompt || !ref->n_rows[len])
            continue;
        ck_assert_msg(a->n_rows[slot] == ref->n_rows[len] && drv_drafts(v, slot) == ref->hash[len],
                      "step %d, slot %d: other drafts than before after %d tokens (%d rows, %d)",
                      (int)v->no, slot, len, a->n_rows[slot], ref->n_rows[len]);
        v->matched++;
    }
}

void drv_submit(struct drv *v)
{
    struct step *s = &v->s[v->at];
    CHECK(s->n_set <= s->set_max);
    ck_assert_msg(runner_step(&v->r, s) == OK, "%s", s->err.text);
    if (!v->c.unwatched)
        check_writes(v);
    check_drafts(v);
}

static void take(struct drv *v, const struct ring_rec *rec)
{
    int slot = rec->slot;
    const struct drv_ref *ref = v->ref[slot];
    if (rec->n == 0)
        return;
    ck_assert_msg(rec->gen == v->gen[slot], "a stale record has tokens");
    for (int j = 0; j < rec->n; j++) {
        int k = v->n_out[slot]++;
        CHECK(k < (int)ARRAY_LEN(v->out[slot]));
        v->out[slot][k] = rec->tok[j].token;
        if (ref && v->p[slot].n_prompt + k < DRV_LEN)
            ck_assert_msg(k < ref->n_out && rec->tok[j].token == ref->tok[k],
                          "slot %d: output token %d is %d, not %d", slot, k, rec->tok[j].token,
                          ref->tok[k]);
    }
    v->ended[slot] |= rec->fin != FIN_NONE;
}

void drv_results(struct drv *v, bool late)
{
    const struct step *s = &v->s[late ? !v->at : v->at];
    for (int i = 0; i < s->n_req; i++) {
        const struct ring_rec *rec = &s->decode_rec[i];
        ck_assert_int_eq(rec->slot, s->req_slot[i]);
        ck_assert_int_eq((int)rec->step, (int)s->no);
        ck_assert(rec->n_accepted <= rec->n_deep && rec->n_deep <= rec->n_draft);
        v->n_draft += rec->n_draft;
        v->n_accepted += rec->n_accepted;
        v->n_verify += rec->n > 0;
        take(v, rec);
    }
    for (int i = 0; i < s->n_chunk; i++)
        if (s->chunk[i].last)
            take(v, &s->prefill_rec[i]);
}

void drv_run(struct drv *v)
{
    drv_submit(v);
    drv_results(v, false);
}

void drv_prefill(struct drv *v, int slot, const int32_t *prompt, int n, struct slot_params p,
                 int chunk)
{
    for (int at = 0; at < n; at += chunk) {
        drv_begin(v);
        if (!at)
            drv_start(v, slot, prompt, n, p);
        drv_chunk(v, slot, at, n - at < chunk ? n - at : chunk);
        drv_run(v);
    }
}

void drv_decode_mask(struct drv *v, unsigned mask)
{
    drv_begin(v);
    for (int s = 1; s <= DRV_REQS; s++)
        if (mask >> s & 1)
            drv_decode(v, s, v->gen[s], 0);
    drv_run(v);
}

/* ---- references ---- */

/* One request alone, one row a step: token by token without speculation, drafts at every length. */
static void reference_of(struct drv *v, int slot, bool drafted, struct drv_ref *out,
                         void (*request)(const struct drv *v, int slot, int32_t *prompt, int *n,
                                         struct slot_params *p))
{
    const struct slot_arrays *a = &v->r.b.slots;
    int32_t prompt[DRV_LEN * 4];
    struct slot_params p;
    int n = 0;
    request(v, slot, prompt, &n, &p);
    p.spec_mode = drafted ? SPEC_MODEL : SPEC_OFF;
    drv_prefill(v, slot, prompt, n, p, v->c.chunk);
    for (;;) {
        if (drafted && a->live[slot]) {
            out->n_rows[a->len[slot]] = a->n_rows[slot];
            out->hash[a->len[slot]] = drv_drafts(v, slot);
        }
        if (v->ended[slot])
            break;
        drv_begin(v);
        drv_decode(v, slot, v->gen[slot], 1);
        drv_run(v);
    }
    if (drafted) {
        ck_assert_int_eq(v->n_out[slot], out->n_out);
        ck_assert(!memcmp(out->tok, v->out[slot], sizeof *out->tok * (size_t)out->n_out));
        return;
    }
    out->n_out = v->n_out[slot];
    memcpy(out->tok, v->out[slot], sizeof *out->tok * (size_t)out->n_out);
}

struct drv_ref *drv_reference(const struct drv_conf *c,
                              void (*request)(const struct drv *v, int slot, int32_t *prompt,
                                              int *n, struct slot_params *p))
{
    struct drv_ref *ref = MEM_ARRAY(struct drv_ref, DRV_REQS + 1);
    for (int pass = 0; pass < 2; pass++) {
        struct drv v;
        struct drv_conf one = *c;
        one.page = 16;
        one.chunk = DRV_LEN;
        if (!pass) {
            one.method = NULL;
            one.draft = NULL;
            one.steps = one.topk = one.tokens = one.ngram_min = 0;
        }
        drv_open(&v, &one);
        v.r.eager = true;
        for (int s = 1; s <= DRV_REQS; s++)
            reference_of(&v, s, pass == 1, &ref[s], request);
        drv_close(&v);
    }
    return ref;
}
