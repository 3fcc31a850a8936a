/* Goal: the demo models, and one that GPU_MODEL names, answer on the GPU as on the CPU. Method:
 * both runners step through the same token sequences, teacher-forced with the CPU's own greedy
 * text, by prefill and by decode; where the GPU's best token differs the CPU's two best must be
 * closer than GAP. Replay equals the eager run bit for bit with poisoned memory; a steady decode
 * reads, waits for and allocates nothing. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/clock.h"
#include "engine/worker/runner.h"
#include "test/gpu/twin.h"

enum { REQS = 8, LEN = 320, CHUNK = 64, PROMPT = 24, STEPS = 280 };
/* CPU gap in log probability where the best token may differ, caches of one type on both. The demo
 * models' weights are small and keep fp32's precision (kernels/cuda/README.md), so a value seldom
 * is on the other side of the middle of two codes of a narrow cache. Seen on an H200, KV fp32, bf16
 * and fp8: 0, 1 and 1 of 2240 tokens differ at most, gaps up to 0.0035 and, fp8, 0.019. */
#define GAP 0.02f
#define LP_BOUND 0.1f /* of log probabilities of the same token */
/* Large weights: activations are rounded to bf16, and in fp8 caches more values get another code, a
 * step of up to 2^-3 of itself; one token in a hundred. */
#define GAP_LARGE 0.15f
#define GAP_FP8 0.6f
#define LP_FP8 1.1f
#define DIFFER_FP8(total) (2 + (total) / 100)
/* Where two experts are all but tied for the last place (7e-4 apart in what is chosen by, seen
 * here) a token may get the other one: so many in a thousand, within LP_TIED. */
#define TIED_MAX 1
#define LP_TIED 0.5f

static const char *const models[] = {"configs/models/demo", "configs/models/demo-qwen3"};

static const char *model_of(int i)
{
    return i < (int)ARRAY_LEN(models) ? models[i] : getenv("GPU_MODEL");
}

struct side {
    struct runner r;
    struct step s;
    int64_t no;
};

static void side_open(struct side *v, const char *model, const char *device, enum dtype kv)
{
    struct err e = {0};
    struct worker_conf c = {.model_dir = model,
                            .device = device,
                            .threads = 8,
                            .reqs_max = REQS,
                            .slots_max = REQS,
                            .prefill_rows_max = CHUNK * REQS,
                            .len_max = LEN,
                            .kv_tokens = REQS * LEN,
                            .kv_dtype = kv};
    *v = (struct side){0};
    ck_assert_msg(runner_open(&v->r, &c, &e) == OK, "%s", e.text);
    ck_assert_int_eq(runner_step_init(&v->r, &v->s, &e), OK);
    v->r.ops->freeze(v->r.d);
}

static void side_close(struct side *v)
{
    runner_step_done(&v->r, &v->s);
    runner_close(&v->r);
}

static void clear(struct side *v)
{
    v->s.n_stop = v->s.n_start = v->s.n_set = v->s.n_req = v->s.n_chunk = v->s.n_row = 0;
    v->s.rows_max = 0;
    v->s.no = ++v->no;
}

static void run(struct side *v)
{
    ck_assert_msg(runner_step(&v->r, &v->s) == OK, "%s", v->s.err.text);
}

static void prompt_fill(int32_t *p, int slot, int vocab)
{
    struct rng r = {(uint64_t)slot * 991};
    for (int i = 0; i < PROMPT; i++)
        p[i] = (int32_t)(300 + rng_below(&r, (uint64_t)(vocab - 300)));
}

/* Starts all slots with their prompts in one pass; tokens of the first sample in out. */
static void start_all(struct side *v, float temperature, int32_t *out)
{
    int page = v->r.info.page, per = v->r.info.pages_max[0];
    clear(v);
    for (int s = 1; s <= REQS; s++) {
        struct slot_params p = {.seed = (uint64_t)s,
                                .temperature = temperature,
                                .top_p = 1,
                                .repetition = 1,
                                .n_prompt = PROMPT,
                                .max_out = LEN,
                                .len_max = LEN,
                                .n_logprobs = 2};
        v->s.start[v->s.n_start++] = (struct slot_start){s, 1, p};
        for (int i = 0; i * page < LEN; i++)
            v->s.set[v->s.n_set++] = (struct page_set){0, s, i, (s - 1) * per + i};
        v->s.chunk[v->s.n_chunk++] =
            (struct prefill_chunk){s, 1, v->s.n_row, PROMPT, 0, true, -1, false};
        prompt_fill(v->s.tok + v->s.n_row, s, v->r.info.model.vocab);
        v->s.n_row += PROMPT;
    }
    run(v);
    for (int i = 0; i < REQS; i++)
        out[i] = v->s.prefill_rec[i].tok[0].token;
}

static void decode_all(struct side *v)
{
    clear(v);
    for (int i = 0; i < REQS; i++) {
        v->s.req_slot[i] = i + 1;
        v->s.req_gen[i] = v->s.req_cap[i] = 1;
    }
    v->s.n_req = v->s.rows_max = REQS;
    run(v);
}

START_TEST(teacher_forced)
{
    static const enum dtype types[] = {DT_F32, DT_BF16, DT_F8E4M3};
    enum dtype kv = types[_i % 3];
    bool demo = _i / 3 < (int)ARRAY_LEN(models), fp8 = kv == DT_F8E4M3 && !demo;
    struct side c, g;
    side_open(&c, model_of(_i / 3), "cpu", kv);
    side_open(&g, model_of(_i / 3), "cuda", kv);
    int32_t root[REQS], mine[REQS];
    struct err e = {0};
    start_all(&c, 0, root);
    start_all(&g, 0, mine);
    int differ = 0, total = 0, tied = 0;
    float worst = 0, gap = 0;
    for (int t = 0; t < (twin_small() ? 8 : STEPS); t++) {
        int32_t all[REQS + 1] = {0};
        memcpy(all + 1, root, sizeof root);
        ck_assert_int_eq(g.r.ops->copy_in(g.r.d, g.r.b.slots.root, all, sizeof all, &e), OK);
        decode_all(&c);
        decode_all(&g);
        for (int i = 0; i < REQS; i++) {
            const struct sample_out *a = &c.s.decode_rec[i].tok[0], *b = &g.s.decode_rec[i].tok[0];
            ck_assert_int_eq(c.s.decode_rec[i].n, 1);
            ck_assert_int_eq(g.s.decode_rec[i].n, 1);
            root[i] = a->token;
            total++;
            if (a->token == b->token) {
                float d = fabsf(a->logprob - b->logprob);
                worst = d > worst ? d : worst;
                tied += d > LP_BOUND;
            } else {
                float lead = a->top_logprob[0] - a->top_logprob[1];
                differ++;
                gap = lead > gap ? lead : gap;
            }
        }
    }
    printf(
        "%s, KV %s: %d tokens, %d differ (largest CPU gap %.4f), log-probabilities within %.4f\n",
        model_of(_i / 3), dtype_name(kv), total, differ, (double)gap, (double)worst);
    ck_assert_int_ge(total, twin_small() ? 1 : 2000);
    ck_assert(gap <= (demo ? GAP : fp8 ? GAP_FP8 : GAP_LARGE));
    if (fp8)
        ck_assert(worst <= LP_FP8 && differ <= DIFFER_FP8(total));
    else
        ck_assert(worst <= LP_TIED && tied * 1000 <= total * TIED_MAX);
    side_close(&c);
    side_close(&g);
}
END_TEST

static void poison(struct side *v)
{
    struct batch *b = &v->r.b;
    struct err e = {0};
    static char junk[1 << 16];
    memset(junk, 0x7f, sizeof junk); /* NaN as float, impossible as a number of anything */
    void *const p[] = {b->rows.tok, b->rows.slot, b->rows.pos, b->rows.req, b->hidden,
                       b->logits,   b->sample,    b->req_row0, b->req_n};
    const size_t n[] = {(size_t)b->c.rows_max * 4,
                        (size_t)b->c.rows_max * 4,
                        (size_t)b->c.rows_max * 4,
                        (size_t)b->c.rows_max * 4,
                        (size_t)b->c.rows_max * (size_t)b->c.hidden * 4,
                        (size_t)b->c.logits_max * (size_t)b->c.vocab * 4,
                        (size_t)b->c.logits_max * sizeof *b->sample,
                        (size_t)b->c.reqs_max * 4,
                        (size_t)b->c.reqs_max * 4};
    for (size_t i = 0; i < ARRAY_LEN(p); i++)
        for (size_t o = 0; o < n[i]; o += sizeof junk)
            ck_assert_int_eq(v->r.ops->copy_in(v->r.d, (char *)p[i] + o, junk,
                                               n[i] - o < sizeof junk ? n[i] - o : sizeof junk, &e),
                             OK);
}

START_TEST(replay_equals_eager)
{
    struct side a, b;
    side_open(&a, models[_i], "cuda", DT_NONE);
    side_open(&b, models[_i], "cuda", DT_NONE);
    a.r.eager = true;
    int32_t x[REQS], y[REQS];
    start_all(&a, 0.8f, x);
    start_all(&b, 0.8f, y);
    ck_assert(!memcmp(x, y, sizeof x));
    static const int reqs[] = {1, 2, 5, 8, 3, 8, 1, 4};
    for (size_t t = 0; t < (twin_small() ? 1 : 3) * ARRAY_LEN(reqs); t++) {
        struct side *v[2] = {&a, &b};
        int n = reqs[t % ARRAY_LEN(reqs)];
        for (int k = 0; k < 2; k++) {
            poison(v[k]);
            clear(v[k]);
            for (int i = 0; i < n; i++) {
                v[k]->s.req_slot[i] = 1 + (i + (int)t) % REQS;
                v[k]->s.req_gen[i] = v[k]->s.req_cap[i] = 1;
            }
            v[k]->s.n_req = v[k]->s.rows_max = n;
            run(v[k]);
        }
        for (int i = 0; i < n; i++) {
            const struct sample_out *p = &a.s.decode_rec[i].tok[0], *q = &b.s.decode_rec[i].tok[0];
            ck_assert_int_eq(p->token, q->token);
            ck_assert(!memcmp(&p->logprob, &q->logprob, sizeof p->logprob));
        }
    }
    side_close(&a);
    side_close(&b);
}
END_TEST

START_TEST(steady_decode)
{
    struct side g;
    side_open(&g, models[_i], "cuda", DT_NONE);
    int32_t x[REQS];
    start_all(&g, 1, x);
    for (int i = 0; i < 20; i++)
        decode_all(&g);
    struct dev_counts before = *g.r.ops->counts(g.r.d);
    int64_t t0 = clock_us();
    for (int i = 0; i < (twin_small() ? 10 : 200); i++)
        decode_all(&g);
    double us = (double)(clock_us() - t0) / 200;
    const struct dev_counts *c = g.r.ops->counts(g.r.d);
    ck_assert_int_eq((int)(c->host_reads - before.host_reads), 0);
    ck_assert_int_eq((int)(c->syncs - before.syncs), 0);
    ck_assert_int_eq((int)(c->allocs - before.allocs), 0);
    printf("%s: %.1f us a decode step of %d requests\n", models[_i], us, REQS);
    side_close(&g);
}
END_TEST

Suite *suite_gpu_model(void);
Suite *suite_gpu_model(void)
{
    Suite *s = suite_create("gpu_model");
    int n = (int)ARRAY_LEN(models);
    TWIN_CASE(s, teacher_forced, 3 * (n + (getenv("GPU_MODEL") != NULL)));
    TWIN_CASE(s, replay_equals_eager, n);
    TWIN_CASE(s, steady_decode, n);
    return s;
}
