/* Goal: a decode step with drafts is a replay that reads no host value and touches only what it
 * may. For next-token layer, EAGLE-3 head and draft model, chains and trees: replay equals eager
 * bit for bit with all scratch memory poisoned; any batch size, page size, chunk length, resumption
 * and mix of requests gives the same tokens and the same drafts; one launch equals two; finished,
 * stopped, stale and reused slots emit and write nothing; rounds stop at the context's end; a time
 * without rounds moves the drafter's first row and changes no output.
 * Method: spec_driver.h checks every step against a reference of each request alone, token by
 * token, and against the positions that may be written; here are the situations. */
#include <check.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "test/unit/spec_driver.h"
#include "test/sanitize.h"

#define DEMO "configs/models/demo"
static const struct drv_conf variants[] = {
    {.target = DEMO, .method = "mtp", .steps = 3},
    {.target = DEMO, .method = "mtp", .steps = 3, .topk = 3, .tokens = 12},
    {.target = "qwen3", .method = "eagle3", .draft = "head", .steps = 3},
    {.target = "qwen3", .method = "eagle3", .draft = "head", .steps = 3, .topk = 3, .tokens = 12},
    {.target = "llama3", .method = "draft-model", .draft = "self", .steps = 2},
    {.target = "llama3", .method = "draft-model", .draft = "self", .steps = 3, .topk = 3},
    {.target = "qwen3-window", .method = "draft-model", .draft = "self", .steps = 3},
    {.target = "qwen3-window", .method = "draft-model", .draft = "self", .steps = 3, .topk = 2},
};
enum { N_VARIANTS = sizeof variants / sizeof *variants, ALL = 0x7e, OUT = 24 };

static int prompt_len(int slot)
{
    return 5 + 9 * slot;
}

static void request(const struct drv *v, int slot, int32_t *prompt, int *n, struct slot_params *p)
{
    *n = prompt_len(slot);
    drv_prompt(v, slot, *n, prompt);
    *p = drv_params((uint64_t)slot, slot % 2 ? 0 : 0.9f, SPEC_MODEL);
    p->max_out = OUT;
}

static void put_with(struct drv *v, int slot, const struct drv_ref *ref, enum spec_mode mode,
                     int max_out, int chunk)
{
    int32_t prompt[DRV_LEN];
    struct slot_params p;
    int n;
    request(v, slot, prompt, &n, &p);
    p.spec_mode = mode;
    p.max_out = max_out;
    v->ref[slot] = ref ? &ref[slot] : NULL;
    drv_prefill(v, slot, prompt, n, p, chunk);
}

static void put(struct drv *v, int slot, const struct drv_ref *ref)
{
    put_with(v, slot, ref, SPEC_MODEL, OUT, v->c.chunk);
}

static const struct drv_conf families[] = {
    {.target = "ds-v3", .method = "mtp", .steps = 3},
    {.target = "qwen3", .method = "eagle3", .draft = "head", .steps = 3},
    {.target = "llama3", .method = "draft-model", .draft = "self", .steps = 3},
};
static const int widths[] = {1, 2, 4}, pages[] = {1, 16, 64}, chunks[] = {1, 7, 64, DRV_LEN};

static struct drv_conf sweep_conf(int i)
{
    struct drv_conf c = families[i / 3];
    c.topk = widths[i % 3];
    return c;
}

/* Under a sanitizer the trees are enough: a chain is one. */
static bool left_out(int i)
{
    return SANITIZED && i % 2 == 0;
}

/* Made once, before the tests fork. */
static struct drv_ref *refs[N_VARIANTS], *sweep_refs[9];

static void make_refs(void)
{
    for (int i = 0; i < N_VARIANTS; i++)
        if (!left_out(i))
            refs[i] = drv_reference(&variants[i], request);
    for (int i = 0; i < 9; i++) {
        struct drv_conf c = sweep_conf(i);
        if (left_out(i))
            continue;
        sweep_refs[i] = drv_reference(&c, request);
    }
}

static void free_refs(void)
{
    for (int i = 0; i < N_VARIANTS; i++)
        mem_free(refs[i]);
    for (int i = 0; i < 9; i++)
        mem_free(sweep_refs[i]);
}

/* ---- replay and eager ---- */

/* Joins and leaves; numbers of requests go up and down. */
static void scenario(struct drv *v, const struct drv_ref *ref, bool poisoned)
{
    static const unsigned masks[] = {0x02, 0x06, 0x1e, 0x7e, 0x1e, 0x7c, 0x18, 0x08, 0x7e};
    drv_learn(v);
    for (int s = 1; s <= DRV_REQS; s++) {
        if (poisoned)
            drv_poison(v);
        put(v, s, ref);
    }
    for (size_t i = 0; i < ARRAY_LEN(masks); i++) {
        if (poisoned)
            drv_poison(v);
        drv_decode_mask(v, masks[i]);
    }
}

static void same_state(const struct drv *a, const struct drv *b)
{
    for (int s = 1; s <= DRV_REQS; s++) {
        ck_assert_int_eq(a->n_out[s], b->n_out[s]);
        ck_assert_int_gt(a->n_out[s], 3);
        ck_assert(!memcmp(a->out[s], b->out[s], sizeof *a->out[s] * (size_t)a->n_out[s]));
        ck_assert_int_eq(a->r.b.slots.n_rows[s], b->r.b.slots.n_rows[s]);
        ck_assert(drv_drafts(a, s) == drv_drafts(b, s));
        ck_assert_int_eq(a->r.b.slots.drf_first[s], b->r.b.slots.drf_first[s]);
        ck_assert_int_eq(a->r.b.slots.drf_next[s], b->r.b.slots.drf_next[s]);
    }
    ck_assert(a->n_draft == b->n_draft && a->n_accepted == b->n_accepted);
    ck_assert(drv_same_kv(a, b));
}

START_TEST(replay_equals_eager)
{
    if (left_out(_i))
        return;
    const struct drv_conf *c = &variants[_i];
    const struct drv_ref *ref = refs[_i];
    struct drv a, b;
    drv_open(&a, c);
    drv_open(&b, c);
    a.r.eager = true;
    scenario(&a, ref, false);
    scenario(&b, ref, true);
    same_state(&a, &b);
    ck_assert_int_gt(b.n_block, 30);
    ck_assert_int_ge((int)b.r.ops->counts(b.r.d)->replays, 9);
    ck_assert_int_gt(b.matched, 9);
    ck_assert_int_gt(b.n_draft, 9);
    drv_close(&a);
    drv_close(&b);
}
END_TEST

START_TEST(one_launch_equals_two)
{
    if (left_out(_i))
        return;
    struct drv v[2];
    for (int k = 0; k < 2; k++) {
        drv_open(&v[k], &variants[_i]);
        v[k].r.apart = k == 1;
        for (int s = 1; s <= DRV_REQS; s++)
            put(&v[k], s, NULL);
        int64_t before = v[k].r.ops->counts(v[k].r.d)->replays;
        for (int i = 0; i < 6; i++)
            drv_decode_mask(&v[k], ALL);
        ck_assert_int_eq((int)(v[k].r.ops->counts(v[k].r.d)->replays - before), k ? 12 : 6);
    }
    same_state(&v[0], &v[1]);
    drv_close(&v[0]);
    drv_close(&v[1]);
}
END_TEST

START_TEST(steady_decode_reads_nothing)
{
    if (left_out(_i))
        return;
    struct drv v;
    drv_open(&v, &variants[_i]);
    for (int s = 1; s <= 4; s++)
        put(&v, s, NULL);
    struct dev_counts before = *v.r.ops->counts(v.r.d);
    for (int i = 0; i < 12; i++)
        drv_decode_mask(&v, 0x1e);
    const struct dev_counts *c = v.r.ops->counts(v.r.d);
    ck_assert_int_eq((int)(c->host_reads - before.host_reads), 0);
    ck_assert_int_eq((int)(c->host_writes - before.host_writes), 12); /* one a step */
    ck_assert_int_eq((int)(c->syncs - before.syncs), 0);
    ck_assert_int_eq((int)(c->allocs - before.allocs), 0);
    ck_assert_int_eq((int)(c->replays - before.replays), 12);
    drv_close(&v);
}
END_TEST

/* Every part of a step has its time, and a part that it lacks has none; draft-extend has the rows
 * of an accepted path, whatever a tree verifies. */
START_TEST(parts_of_a_step)
{
    if (left_out(_i))
        return;
    for (int apart = 0; apart < 2; apart++) {
        struct drv v;
        drv_open(&v, &variants[_i]);
        v.r.apart = apart;
        for (int s = 1; s <= 3; s++)
            put(&v, s, NULL);
        drv_decode_mask(&v, 0x0e);
        drv_decode_mask(&v, 0x0e);
        const int64_t *t = v.s[v.at].stamps;
        for (int i = 1; i < N_STAMPS; i++)
            ck_assert_msg(t[i - 1] > 0 && t[i] >= t[i - 1], "part %d", i);
        v.depth = 0;
        drv_decode_mask(&v, 0x0e);
        t = v.s[v.at].stamps;
        ck_assert(t[STAMP_BEGIN] > 0 && t[STAMP_VERIFY] >= t[STAMP_BEGIN]);
        ck_assert(t[STAMP_ACCEPT] >= t[STAMP_VERIFY] && !t[STAMP_EXTEND] && !t[STAMP_DRAFT]);
        struct graph_key keys[KEYS_MAX];
        const struct spec_shape *shape = &v.r.info.spec;
        int n = runner_keys(&v.r, keys), found = 0, uniform = 0;
        for (int i = 0; i < n; i++)
            if (keys[i].role == TGT_VERIFY) { /* two requests with one row, and with all rows */
                uniform += keys[i].variant == 0 && keys[i].reqs == 2 &&
                           keys[i].rows == 2 * keys[i].qlen &&
                           (keys[i].qlen == 1 || keys[i].qlen == shape->rows);
            } else if (keys[i].role == DRF_EXTEND) {
                ck_assert_int_eq(keys[i].rows, keys[i].reqs * (shape->steps + 1));
                found++;
            }
        ck_assert_int_gt(found, 0);
        ck_assert_int_eq(uniform, 2);
        ck_assert(shape->topk == 1 || shape->rows > shape->steps + 1);
        ck_assert_int_eq(v.r.dims[DRF_EXTEND].rows, DRV_REQS * (shape->steps + 1));
        drv_close(&v);
    }
}
END_TEST

/* ---- batch size, pages, chunks ---- */

START_TEST(bucket_sweep)
{
    if (left_out(_i))
        return;
    struct drv_conf c = sweep_conf(_i);
    const struct drv_ref *ref = sweep_refs[_i];
    for (int p = 0; p < 3; p++) {
        struct drv v;
        if (SANITIZED && p != _i % 3)
            continue;
        c.page = pages[p];
        c.chunk = chunks[1 + p];
        drv_open(&v, &c);
        drv_learn(&v);
        for (int s = 1; s <= DRV_REQS; s++)
            put(&v, s, ref);
        for (int k = 1; k < 2 * DRV_REQS; k++) {
            int n = k <= DRV_REQS ? k : 2 * DRV_REQS - k;
            drv_poison(&v);
            drv_decode_mask(&v, ((1u << n) - 1) << (1 + (k % (DRV_REQS + 1 - n))));
        }
        ck_assert_int_gt(v.matched, 30);
        drv_close(&v);
    }
}
END_TEST

/* The prompt in chunks of any length, at any page size; then the request is taken off its slot
 * and resumed with what it had said. */
START_TEST(chunks_and_resumption)
{
    if (left_out(_i) || (SANITIZED && _i < 2))
        return;
    const struct drv_ref *ref = refs[_i];
    for (size_t k = 0; k < ARRAY_LEN(chunks); k++) {
        struct drv_conf c = variants[_i];
        struct drv v;
        c.page = pages[k % 3];
        drv_open(&v, &c);
        for (int s = 1; s <= DRV_REQS; s++) {
            put_with(&v, s, ref, SPEC_MODEL, OUT, s > 2 && chunks[k] == 1 ? 5 : chunks[k]);
            ck_assert_int_eq(v.matched, s); /* the drafts after the prompt */
        }
        for (int i = 0; i < 4; i++)
            drv_decode_mask(&v, ALL);
        drv_begin(&v);
        for (int s = 1; s <= DRV_REQS; s++)
            drv_stop(&v, s);
        drv_run(&v);
        for (int s = DRV_REQS; s >= 1; s--) {
            int32_t all[DRV_LEN];
            struct slot_params p = v.p[s];
            int n = p.n_prompt;
            memcpy(all, v.prompt[s], sizeof *all * (size_t)n);
            memcpy(all + n, v.out[s], sizeof *all * (size_t)v.n_out[s]);
            p.n_out = v.n_out[s];
            int before = v.matched, chunk = chunks[(k + 1) % 4];
            drv_prefill(&v, s, all, n + p.n_out, p, s > 2 && chunk == 1 ? 3 : chunk);
            ck_assert_int_eq(v.matched, before + 1);
        }
        for (int i = 0; i < 3; i++)
            drv_decode_mask(&v, ALL);
        drv_close(&v);
    }
}
END_TEST

/* ---- slots that end, stop, change hands ---- */

START_TEST(idle_replay)
{
    if (left_out(_i))
        return;
    struct drv v;
    drv_open(&v, &variants[_i]);
    put(&v, 1, NULL);
    put(&v, 2, NULL);
    uint64_t before = drv_drafts(&v, 1);
    drv_begin(&v);
    drv_stop(&v, 1);
    drv_stop(&v, 2);
    drv_decode(&v, 1, v.gen[1], 0);
    drv_decode(&v, 2, v.gen[2], 0); /* no live slot: verify and round run over padding alone */
    drv_run(&v);
    ck_assert(v.s[0].decode_rec[0].n == 0 && v.s[0].decode_rec[1].n == 0);
    ck_assert(v.s[0].decode_rec[0].n_draft == 0 && v.s[0].decode_rec[0].n_next == 0);
    ck_assert(drv_drafts(&v, 1) == before);
    drv_close(&v);
}
END_TEST

START_TEST(ends_and_stale_rows)
{
    if (left_out(_i))
        return;
    const struct drv_ref *ref = refs[_i];
    struct drv v;
    drv_open(&v, &variants[_i]);
    drv_learn(&v);
    for (int s = 1; s <= DRV_REQS; s++) /* ends after 1 … 6 tokens, at any place of a block */
        put_with(&v, s, ref, SPEC_MODEL, s, 7);
    ck_assert(v.ended[1] && !v.ended[2]);
    for (int i = 0; i < 7; i++) { /* who has ended rides along */
        drv_poison(&v);
        drv_decode_mask(&v, ALL);
    }
    for (int s = 1; s <= DRV_REQS; s++)
        ck_assert(v.ended[s] && v.n_out[s] == s);
    /* a stale generation of a live slot is nobody's, in a verify and in its round */
    put(&v, 3, ref);
    put(&v, 4, ref);
    int len = v.r.b.slots.len[3], was = v.n_out[3];
    uint64_t waiting = drv_drafts(&v, 3);
    drv_begin(&v);
    drv_decode(&v, 3, v.gen[3] - 1, 0);
    drv_decode(&v, 4, v.gen[4], 0);
    drv_run(&v);
    ck_assert(v.n_out[3] == was && v.r.b.slots.len[3] == len && drv_drafts(&v, 3) == waiting);
    /* a slot changes hands within one step, in which its old user still has rows */
    int32_t prompt[DRV_LEN];
    struct slot_params p;
    int n;
    request(&v, 5, prompt, &n, &p);
    drv_begin(&v);
    int old = v.gen[3];
    drv_stop(&v, 3);
    drv_start(&v, 3, prompt, n, p);
    v.ref[3] = &ref[5];
    drv_decode(&v, 3, old, 0);
    drv_decode(&v, 4, v.gen[4], 0);
    drv_chunk(&v, 3, 0, 9);
    drv_run(&v);
    ck_assert_int_eq(v.n_out[3], 0);
    drv_begin(&v);
    drv_chunk(&v, 3, 9, n - 9);
    drv_decode(&v, 4, v.gen[4], 0);
    drv_run(&v);
    int before = v.matched;
    for (int i = 0; i < 3; i++)
        drv_decode_mask(&v, 0x18);
    ck_assert_int_ge(v.matched, before + 4);
    ck_assert_int_gt(v.n_out[3], 3);
    drv_close(&v);
}
END_TEST

/* Step n + 1 is planned and run before the result of step n is read. */
START_TEST(late_results)
{
    if (left_out(_i))
        return;
    const struct drv_ref *ref = refs[_i];
    struct drv v;
    drv_open(&v, &variants[_i]);
    for (int s = 1; s <= DRV_REQS; s++)
        put_with(&v, s, ref, SPEC_MODEL, 5 + 3 * s, DRV_LEN);
    bool first = true, reused = false;
    for (int i = 0; i < 40; i++, first = false) {
        drv_begin(&v);
        int n = 0;
        for (int s = 1; s <= DRV_REQS; s++)
            if (!v.ended[s]) { /* as far as is known */
                drv_decode(&v, s, v.gen[s], 0);
                n++;
            }
        if (v.ended[1] && !reused) { /* its slot serves another one while a late row is unread */
            int32_t prompt[DRV_LEN];
            struct slot_params p;
            int len;
            request(&v, 2, prompt, &len, &p);
            p.max_out = 7;
            drv_start(&v, 1, prompt, len, p);
            v.ref[1] = &ref[2];
            drv_chunk(&v, 1, 0, len);
            v.ended[1] = reused = true; /* it decodes from the step after its prompt's result on */
        } else if (!n) {
            break;
        }
        drv_submit(&v);
        if (!first)
            drv_results(&v, true);
        if (reused && v.n_out[1] == 0)
            v.ended[1] = true;
        else if (reused && v.n_out[1] == 1)
            v.ended[1] = false;
        v.at = !v.at;
    }
    drv_results(&v, true);
    ck_assert(reused && v.n_out[1] == 7);
    for (int s = 2; s <= DRV_REQS; s++)
        ck_assert_int_eq(v.n_out[s], 5 + 3 * s);
    drv_close(&v);
}
END_TEST

/* ---- the end of the context ---- */

static int limit_tail; /* tokens that the context leaves to the request of a slot, by slot */

static void request_at_limit(const struct drv *v, int slot, int32_t *prompt, int *n,
                             struct slot_params *p)
{
    *n = v->c.len_max - limit_tail - slot;
    drv_prompt(v, 40 + slot, *n, prompt);
    *p = drv_params((uint64_t)slot, slot % 2 ? 0 : 0.9f, SPEC_MODEL);
}

START_TEST(near_the_limit)
{
    if (left_out(_i) || (SANITIZED && _i < 2))
        return;
    struct drv_conf c = variants[_i];
    c.len_max = 70;
    for (limit_tail = 0; limit_tail <= 12; limit_tail += DRV_REQS) { /* 1 … N + 1 and more */
        struct drv_ref *ref = drv_reference(&c, request_at_limit);
        struct drv v;
        c.page = limit_tail ? 64 : 1;
        drv_open(&v, &c);
        drv_learn(&v);
        for (int s = 1; s <= DRV_REQS; s++) {
            int32_t prompt[DRV_LEN];
            struct slot_params p;
            int n;
            request_at_limit(&v, s, prompt, &n, &p);
            v.ref[s] = &ref[s];
            drv_prefill(&v, s, prompt, n, p, 33);
        }
        for (int i = 0; i < limit_tail + DRV_REQS + 1; i++) {
            drv_poison(&v);
            drv_decode_mask(&v, ALL);
        }
        for (int s = 1; s <= DRV_REQS; s++)
            ck_assert(v.ended[s] && v.n_out[s] == limit_tail + s && ref[s].n_out == v.n_out[s]);
        drv_close(&v);
        mem_free(ref);
    }
}
END_TEST

/* ---- company ---- */

/* In one step: rows with a round, rows that are never drafted, looked-up rows, stale rows, chunks
 * of prompts, last ones among them. */
START_TEST(mixed_batch)
{
    if (left_out(_i))
        return;
    const struct drv_ref *ref = refs[_i];
    struct drv_conf c = variants[_i];
    struct drv v;
    c.ngram_min = 1;
    drv_open(&v, &c);
    drv_learn(&v);
    put(&v, 1, ref);
    put_with(&v, 2, ref, SPEC_OFF, OUT, 64);
    put_with(&v, 3, ref, SPEC_NGRAM, OUT, 64);
    put(&v, 6, ref);
    int32_t prompt[DRV_LEN];
    struct slot_params p;
    int looked_up = 0;
    for (int round = 0; round < 2; round++) {
        for (int at = 0, n = 1; at < n; at += 7) {
            drv_poison(&v);
            drv_begin(&v);
            request(&v, 4 + round, prompt, &n, &p);
            if (!at) {
                v.ref[4 + round] = &ref[4 + round];
                drv_start(&v, 4 + round, prompt, n, p);
            }
            drv_decode(&v, 2, v.gen[2], 0); /* those with a round come to the front */
            drv_decode(&v, 1, v.gen[1], 0);
            drv_decode(&v, 3, v.gen[3], 0);
            if (at % 2)
                drv_decode(&v, 6, v.gen[6], 0);
            if (round)
                drv_decode(&v, 4, v.gen[4] - (at == 7), 0);
            drv_chunk(&v, 4 + round, at, n - at < 7 ? n - at : 7);
            drv_run(&v);
            for (int i = 0; i < v.s[0].n_req; i++)
                looked_up += v.s[0].req_slot[i] == 3 && v.s[0].decode_rec[i].n_draft > 0;
            for (int i = 0; i < v.s[0].n_req; i++)
                if (v.s[0].req_slot[i] == 2)
                    ck_assert_int_eq(v.s[0].decode_rec[i].n_draft, 0);
        }
    }
    for (int i = 0; i < 3; i++)
        drv_decode_mask(&v, ALL);
    ck_assert_int_gt(looked_up, 0);
    for (int s = 1; s <= DRV_REQS; s++)
        ck_assert_int_ge(v.n_out[s], 4);
    drv_close(&v);
}
END_TEST

/* Rounds pause for some steps: nothing is drafted, the drafter's rows begin behind the hole when
 * they resume, and the output is what it was. One request meets its hole in the prompt. */
START_TEST(rounds_pause)
{
    if (left_out(_i))
        return;
    struct drv_ref ref[DRV_REQS + 1];
    memcpy(ref, refs[_i], sizeof ref);
    struct drv v;
    drv_open(&v, &variants[_i]);
    drv_learn(&v);
    for (int s = 1; s <= DRV_REQS; s++)
        put(&v, s, ref);
    for (int i = 0; i < 2; i++)
        drv_decode_mask(&v, ALL);
    const struct slot_arrays *a = &v.r.b.slots;
    int S = v.r.info.spec.steps, shift = v.r.info.draft.shift, next[DRV_REQS + 1];
    for (int s = 1; s <= DRV_REQS; s++) {
        ck_assert_int_eq(a->drf_first[s], shift);
        ck_assert_int_eq(a->drf_next[s], a->len[s] + 1);
        next[s] = a->drf_next[s];
        for (int k = 0; k <= DRV_LEN; k++)
            ref[s].n_rows[k] = 0; /* drafts are other ones from now on */
    }
    v.depth = 0;
    for (int i = 0; i < 3; i++) {
        drv_poison(&v);
        int before = v.n_draft;
        drv_decode_mask(&v, ALL);
        if (i) /* what waited was used up in the first of these steps */
            ck_assert_int_eq(v.n_draft, before);
        for (int s = 1; s <= DRV_REQS; s++)
            ck_assert(a->n_rows[s] == 1 && a->drf_next[s] == next[s]);
    }
    v.depth = S;
    int len[DRV_REQS + 1];
    memcpy(len, a->len, sizeof len);
    drv_poison(&v);
    drv_decode_mask(&v, ALL);
    for (int s = 1; s <= DRV_REQS; s++) {
        ck_assert_int_eq(a->drf_first[s], len[s] + 1);
        ck_assert_int_eq(a->drf_next[s], a->len[s] + 1);
        ck_assert_int_gt(a->n_rows[s], 1);
    }
    for (int i = 0; i < 3; i++) {
        drv_poison(&v);
        drv_decode_mask(&v, ALL);
    }
    for (int s = 1; s <= DRV_REQS; s++)
        ck_assert_int_eq(a->drf_first[s], len[s] + 1);
    /* half a prompt without rounds */
    int32_t prompt[DRV_LEN];
    struct slot_params p;
    int n;
    request(&v, 4, prompt, &n, &p);
    drv_begin(&v);
    drv_stop(&v, 4);
    drv_start(&v, 4, prompt, n, p);
    v.s[0].depth = v.depth = 0;
    drv_chunk(&v, 4, 0, 20);
    drv_run(&v);
    v.depth = S;
    drv_begin(&v);
    drv_chunk(&v, 4, 20, n - 20);
    drv_run(&v);
    ck_assert_int_eq(a->drf_first[4], 20);
    for (int i = 0; i < 3; i++)
        drv_decode_mask(&v, 0x18);
    ck_assert_int_gt(v.n_out[4], 3);
    drv_close(&v);
}
END_TEST

Suite *suite_spec_runner(void)
{
    Suite *s = suite_create("spec_runner");
    TCase *t = tcase_create("spec runner");
    one_thread(t);
    tcase_set_timeout(t, 300);
    tcase_add_unchecked_fixture(t, make_refs, free_refs);
    tcase_add_loop_test(t, replay_equals_eager, 0, N_VARIANTS);
    tcase_add_loop_test(t, one_launch_equals_two, 0, N_VARIANTS);
    tcase_add_loop_test(t, steady_decode_reads_nothing, 0, N_VARIANTS);
    tcase_add_loop_test(t, bucket_sweep, 0, 9);
    tcase_add_loop_test(t, chunks_and_resumption, 0, N_VARIANTS);
    tcase_add_loop_test(t, idle_replay, 0, N_VARIANTS);
    tcase_add_loop_test(t, parts_of_a_step, 0, N_VARIANTS);
    tcase_add_loop_test(t, ends_and_stale_rows, 0, N_VARIANTS);
    tcase_add_loop_test(t, late_results, 0, N_VARIANTS);
    tcase_add_loop_test(t, near_the_limit, 0, N_VARIANTS);
    tcase_add_loop_test(t, mixed_batch, 0, N_VARIANTS);
    tcase_add_loop_test(t, rounds_pause, 0, N_VARIANTS);
    suite_add_tcase(s, t);
    return s;
}
