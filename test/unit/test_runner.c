/* Goal: a decode step is a replay that reads no host value. Shown on both demo models: replay
 * equals the eager run bit for bit with poisoned scratch memory, through buckets up and down; a
 * steady decode copies nothing out, waits for nothing and allocates nothing; finished, stale and
 * stopped slots that ride along late emit nothing and touch no KV but what their request owns.
 * Method: steps are filled by hand as the scheduler would, one runner a test. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/base/rng.h"
#include "engine/worker/runner.h"

enum { REQS = 6, LEN = 96, PAGE = 16, CHUNK = 32 };

static const char *const models[] = {"configs/models/demo", "configs/models/demo-qwen3"};

struct driver {
    struct runner r;
    struct step s;
    int64_t no;
    int gen[REQS + 1];
    int len[REQS + 1]; /* what the host knows as an upper bound */
    int out[REQS + 1][LEN];
    int n_out[REQS + 1];
};

static void drv_open(struct driver *v, const char *model, bool eager, int block)
{
    struct err e = {0};
    struct worker_conf c = {
        .model_dir = model,
        .device = "cpu",
        .threads = 2,
        .reqs_max = REQS,
        .slots_max = REQS,
        .prefill_rows_max = CHUNK,
        .len_max = LEN,
        .block_size = block,
        .kv_tokens = REQS * LEN,
    };
    *v = (struct driver){0};
    int ret = runner_open(&v->r, &c, &e);
    ck_assert_msg(ret == OK, "%s", e.text);
    ck_assert_int_eq(runner_step_init(&v->r, &v->s, &e), OK);
    v->r.ops->freeze(v->r.d);
    v->r.eager = eager;
}

static void drv_close(struct driver *v)
{
    runner_step_done(&v->r, &v->s);
    runner_close(&v->r);
}

static void step_clear(struct driver *v)
{
    v->s.n_stop = v->s.n_start = v->s.n_set = v->s.n_req = v->s.n_chunk = v->s.n_row = 0;
    v->s.rows_max = 0;
    v->s.no = ++v->no;
}

static void step_run(struct driver *v)
{
    ck_assert_msg(runner_step(&v->r, &v->s) == OK, "%s", v->s.err.text);
}

/* Slot k owns the pages of its own region, in descending order so that order cannot matter. */
static void set_pages(struct driver *v, int slot, int from, int to)
{
    int page = v->r.info.page, per = v->r.info.pages_max[0];
    for (int g = 0; g < v->r.kv.n_group; g++)
        for (int i = from / page; i * page < to; i++)
            v->s.set[v->s.n_set++] = (struct page_set){g, slot, i, slot * per - 1 - i};
}

/* Starts a slot and runs its prompt in chunks; the first token comes with the last one. */
static void start(struct driver *v, int slot, const int32_t *prompt, int n, struct slot_params p)
{
    p.n_prompt = n;
    p.len_max = LEN;
    for (int at = 0; at < n; at += CHUNK) {
        step_clear(v);
        int k = n - at < CHUNK ? n - at : CHUNK;
        if (!at) {
            v->s.start[v->s.n_start++] = (struct slot_start){slot, ++v->gen[slot], p};
            set_pages(v, slot, 0, n + 1);
        }
        v->s.n_chunk = 1;
        v->s.chunk[0] =
            (struct prefill_chunk){slot, v->gen[slot], 0, k, at, at + k == n, -1, false};
        v->s.n_row = k;
        memcpy(v->s.tok, prompt + at, (size_t)k * sizeof *prompt);
        step_run(v);
    }
    v->len[slot] = n;
    v->n_out[slot] = 0;
    ck_assert_int_eq(v->s.prefill_rec[0].n, 1);
    v->out[slot][v->n_out[slot]++] = v->s.prefill_rec[0].tok[0].token;
}

static struct slot_params params(uint64_t seed, float temperature)
{
    return (struct slot_params){
        .seed = seed,
        .temperature = temperature,
        .top_p = 1,
        .repetition = 1.1f,
        .presence = 0.1f,
        .max_out = LEN,
        .n_logprobs = 2,
    };
}

/* One decode step of the slots in `mask`; records are checked for order and kept. */
static void decode(struct driver *v, unsigned mask)
{
    step_clear(v);
    int slots[REQS], n = 0;
    for (int s = 1; s <= REQS; s++) {
        if (!(mask >> s & 1))
            continue;
        slots[n] = s;
        v->s.req_slot[n] = s;
        v->s.req_cap[n] = 1;
        v->s.req_gen[n++] = v->gen[s];
        v->len[s]++; /* upper bound: one more token than known */
        set_pages(v, s, v->len[s] - 1, v->len[s]);
    }
    v->s.n_req = v->s.rows_max = n;
    step_run(v);
    for (int i = 0; i < n; i++) {
        const struct ring_rec *rec = &v->s.decode_rec[i];
        ck_assert_int_eq(rec->slot, slots[i]);
        ck_assert_int_eq((int)rec->step, (int)v->no);
        for (int j = 0; j < rec->n; j++)
            v->out[slots[i]][v->n_out[slots[i]]++] = rec->tok[j].token;
    }
}

static void prompt_fill(int32_t *p, int n, int seed, int vocab)
{
    struct rng r = {(uint64_t)seed};
    for (int i = 0; i < n; i++)
        p[i] = (int32_t)rng_below(&r, (uint64_t)vocab);
}

/* Everything a replay must rewrite before it reads it. */
static void poison(struct driver *v)
{
    struct batch *b = &v->r.b;
    int n = b->c.rows_max;
    for (int i = 0; i < n; i++) {
        b->rows.tok[i] = b->rows.slot[i] = b->rows.pos[i] = b->rows.req[i] = 0x3fffffff;
        for (int g = 0; g < b->c.n_group; g++)
            b->rows.first[g][i] = b->rows.last[g][i] = b->rows.wslot[g][i] = 0x3fffffff;
    }
    for (int64_t i = 0; i < (int64_t)n * b->c.hidden; i++)
        b->hidden[i] = NAN;
    for (int64_t i = 0; i < (int64_t)b->c.logits_max * b->c.vocab; i++)
        b->logits[i] = NAN;
    memset(b->sample, 0x55, (size_t)b->c.logits_max * sizeof *b->sample);
    memset(b->req_row0, 0x55, (size_t)b->c.reqs_max * sizeof *b->req_row0);
    memset(b->req_n, 0x55, (size_t)b->c.reqs_max * sizeof *b->req_n);
    memset(b->ring_decode, 0x55,
           (size_t)b->c.ring_depth * (size_t)b->c.reqs_max * sizeof *b->ring_decode);
}

static void poison_kv(struct driver *v)
{
    const struct model_info *mi = &v->r.info.model;
    for (int g = 0; g < mi->n_group; g++) {
        const struct kv_view *kv = &v->r.kv.view[g];
        int64_t rows = (int64_t)mi->group[g].n_layer * kv->n_page * kv->page;
        float *k = kv->k, *val = kv->v;
        for (int64_t i = 0; i < rows * mi->group[g].k_width; i++)
            k[i] = NAN;
        for (int64_t i = 0; val && i < rows * mi->group[g].v_width; i++)
            val[i] = NAN;
        int64_t entries = (int64_t)v->r.kv.n_slot * kv->pages_max;
        for (int64_t i = 0; i < entries; i++)
            v->r.kv.table[g][i] = 0x3fffffff; /* an impossible page */
    }
}

/* A run with joins and leaves; buckets go 1, 2, 4, 6, 4, 2, 1. */
static void scenario(struct driver *v, bool poisoned)
{
    static const unsigned masks[] = {0x02, 0x06, 0x1e, 0x7e, 0x1e, 0x7c, 0x18, 0x08, 0x7e};
    int32_t prompt[LEN];
    if (poisoned)
        poison_kv(v);
    for (int s = 1; s <= REQS; s++) {
        prompt_fill(prompt, 5 + 9 * s, s, v->r.info.model.vocab);
        start(v, s, prompt, 5 + 9 * s, params((uint64_t)s, s % 2 ? 0 : 0.9f));
    }
    for (size_t i = 0; i < ARRAY_LEN(masks); i++) {
        for (int k = 0; k < 2; k++) {
            if (poisoned)
                poison(v);
            decode(v, masks[i]);
        }
    }
}

START_TEST(replay_equals_eager)
{
    struct driver a, b;
    drv_open(&a, models[_i], true, 0);
    drv_open(&b, models[_i], false, 0);
    scenario(&a, false);
    scenario(&b, true);
    for (int s = 1; s <= REQS; s++) {
        ck_assert_int_eq(a.n_out[s], b.n_out[s]);
        ck_assert_int_gt(a.n_out[s], 5);
        ck_assert(!memcmp(a.out[s], b.out[s], (size_t)a.n_out[s] * sizeof(int)));
    }
    const struct dev_counts *c = b.r.ops->counts(b.r.d);
    ck_assert_int_ge((int)c->replays, 18);
    drv_close(&a);
    drv_close(&b);
}
END_TEST

START_TEST(steady_decode_reads_nothing)
{
    struct driver v;
    drv_open(&v, models[_i], false, 0);
    int32_t prompt[LEN];
    for (int s = 1; s <= 4; s++) {
        prompt_fill(prompt, 20, s, v.r.info.model.vocab);
        start(&v, s, prompt, 20, params((uint64_t)s, 1));
    }
    struct dev_counts before = *v.r.ops->counts(v.r.d);
    for (int i = 0; i < 30; i++)
        decode(&v, 0x1e);
    const struct dev_counts *c = v.r.ops->counts(v.r.d);
    ck_assert_int_eq((int)(c->host_reads - before.host_reads), 0);
    ck_assert_int_eq((int)(c->host_writes - before.host_writes), 30); /* one a step */
    ck_assert_int_eq((int)(c->syncs - before.syncs), 0);
    ck_assert_int_eq((int)(c->allocs - before.allocs), 0);
    ck_assert_int_eq((int)(c->replays - before.replays), 30);
    drv_close(&v);
}
END_TEST

START_TEST(late_rows_emit_nothing)
{
    struct driver v;
    drv_open(&v, models[_i], false, PAGE);
    int32_t prompt[LEN];
    prompt_fill(prompt, 15, 1, v.r.info.model.vocab);
    struct slot_params p = params(1, 0);
    p.max_out = 3;
    start(&v, 1, prompt, 15, p);
    start(&v, 2, prompt, 15, params(2, 0));
    for (int i = 0; i < 2; i++)
        decode(&v, 0x06);
    ck_assert_int_eq(v.n_out[1], 3);
    ck_assert_int_eq(v.s.decode_rec[0].fin, FIN_LENGTH);
    /* the host does not know yet: the finished slot rides along, past its last page */
    float *kv = v.r.kv.view[0].k;
    int width = v.r.info.model.group[0].k_width, page = v.r.info.page;
    int64_t row = (int64_t)(v.r.info.pages_max[0] - 1 - 1) * page; /* slot 1, second page */
    float keep = kv[(row + 2) * width]; /* position 18: beyond 15 prompt + 3 - 1 committed */
    for (int i = 0; i < 2; i++) {
        decode(&v, 0x06);
        ck_assert_int_eq(v.s.decode_rec[0].n, 0);
        ck_assert_int_eq(v.s.decode_rec[1].n, 1);
    }
    ck_assert_int_eq(v.n_out[1], 3);
    ck_assert(!memcmp(&keep, &kv[(row + 2) * width], sizeof keep));
    /* a stale generation of a live slot is nobody's */
    v.gen[2]--;
    decode(&v, 0x04);
    ck_assert_int_eq(v.s.decode_rec[0].n, 0);
    v.gen[2]++;
    v.len[2]--;
    decode(&v, 0x04);
    ck_assert_int_eq(v.s.decode_rec[0].n, 1);
    /* stopped by the host, then the slot serves another request */
    int32_t other[LEN];
    prompt_fill(other, 8, 9, v.r.info.model.vocab);
    start(&v, 2, other, 8, params(7, 0));
    decode(&v, 0x04);
    int first[2] = {v.out[2][0], v.out[2][1]};
    start(&v, 3, other, 8, params(7, 0));
    decode(&v, 0x08);
    ck_assert_int_eq(v.out[3][0], first[0]);
    ck_assert_int_eq(v.out[3][1], first[1]);
    drv_close(&v);
}
END_TEST

START_TEST(idle_replay)
{
    struct driver v;
    drv_open(&v, models[_i], false, 0);
    int32_t prompt[LEN];
    prompt_fill(prompt, 12, 3, v.r.info.model.vocab);
    start(&v, 1, prompt, 12, params(3, 0));
    step_clear(&v);
    v.s.stop[v.s.n_stop++] = 1;
    v.s.req_slot[0] = 1;
    v.s.req_gen[0] = v.gen[1];
    v.s.n_req = v.s.rows_max = 1; /* no live slot: the graph runs over padding alone */
    step_run(&v);
    ck_assert_int_eq(v.s.decode_rec[0].n, 0);
    drv_close(&v);
}
END_TEST

Suite *suite_runner(void)
{
    Suite *s = suite_create("runner");
    TCase *t = tcase_create("runner");
    int n = (int)ARRAY_LEN(models);
    tcase_set_timeout(t, 120);
    tcase_add_loop_test(t, replay_equals_eager, 0, n);
    tcase_add_loop_test(t, steady_decode_reads_nothing, 0, n);
    tcase_add_loop_test(t, late_rows_emit_nothing, 0, n);
    tcase_add_loop_test(t, idle_replay, 0, n);
    suite_add_tcase(s, t);
    return s;
}
