/* Goal: where the time of a decode step goes on a GPU when no draft is right, and what its
 * structure gives: one launch or two, a round as one graph or draft-extend eagerly and the loop
 * as a graph, everything eagerly, one step in flight or two. Method: a runner with generated
 * weights (or a checkpoint), random KV of `--context` tokens a request put there without a prefill;
 * times are the device's own stamps inside the launches, medians of `--reps` steps. One JSON object
 * a line: ms from the start of a step to that of the next, its parts, and the pause from the end of
 * a step to the start of the next. `--mode NAME` runs that mode alone; a method without a drafting
 * model (ngram) has those without drafts only.
 *
 *   bench_spec_gpu --model configs/shapes/llama-3.1-8b.json --method eagle3 --steps 5
 *                  --draft configs/shapes/llama-3.1-8b-eagle3.json --batch 1,16,64 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/rng.h"
#include "engine/worker/runner.h"
#include "kernels/choose.h"

enum { WARM = 6, PROMPT = 8, REPS_MAX = 1000 };

struct bench {
    struct runner r;
    struct step s[2];
    int64_t no;
    int context, reps, reqs_max;
    bool spoil; /* a trained drafter's drafts are overwritten before every step: none is right */
    int32_t *wrong;
    struct rng rng;
};

static void must(int ret, const struct err *e)
{
    if (ret == OK)
        return;
    fprintf(stderr, "bench_spec_gpu: %s\n", e->text);
    exit(1);
}

static void put(struct bench *b, void *to, const void *from, size_t bytes)
{
    struct err e = {0};
    must(b->r.ops->copy_in(b->r.d, to, from, bytes, &e), &e);
}

static struct step *begin(struct bench *b, int at)
{
    struct step *s = &b->s[at];
    s->n_stop = s->n_start = s->n_set = s->n_req = s->n_chunk = s->n_row = 0;
    s->rows_max = s->n_draft = s->depth = 0;
    s->no = ++b->no;
    return s;
}

/* ---- state ---- */

static void random_plane(struct bench *b, char *p, size_t n, enum dtype dt)
{
    enum { PART = 8 << 20 };
    static char part[PART];
    uint16_t *h = (uint16_t *)(void *)part;
    float *f = (float *)(void *)part;
    size_t bytes = n * dtype_size(dt);
    for (int i = 0; i < PART / 2 && dt == DT_BF16; i++) /* of either sign, 0.25 to 1 */
        h[i] = (uint16_t)(0x3e80u + (rng_u64(&b->rng) & 0x80ffu));
    for (int i = 0; i < PART / 4 && dt == DT_F32; i++)
        f[i] = (float)rng_unit(&b->rng) - 0.5f;
    for (size_t o = 0; o < bytes; o += PART)
        put(b, p + o, part, bytes - o < PART ? bytes - o : PART);
}

static void random_kv(struct bench *b)
{
    const struct kv_pool *pool[2] = {&b->r.kv, &b->r.drf_kv};
    const struct model_info *info[2] = {&b->r.info.model, &b->r.info.draft};
    for (int k = 0; k < 2; k++)
        for (int g = 0; g < pool[k]->n_group; g++) {
            const struct kv_view *v = &pool[k]->view[g];
            const struct kv_group *kg = &info[k]->group[g];
            size_t rows = (size_t)kg->n_layer * (size_t)v->n_page * (size_t)v->page;
            random_plane(b, v->k, rows * (size_t)kg->k_width, v->dt);
            if (v->v)
                random_plane(b, v->v, rows * (size_t)kg->v_width, v->dt);
        }
    for (int g = 0; g < b->r.kv.n_group; g++) {
        int per = b->r.kv.view[g].pages_max;
        size_t n = (size_t)b->r.kv.n_slot * (size_t)per;
        int32_t *t = MEM_ARRAY(int32_t, n);
        for (size_t i = (size_t)per; i < n; i++)
            t[i] = (int32_t)i - per;
        put(b, b->r.kv.table[g], t, n * sizeof *t);
        struct err e = {0};
        must(b->r.ops->sync(b->r.d, &e), &e);
        mem_free(t);
    }
}

static int32_t random_token(struct bench *b)
{
    return (int32_t)rng_below(&b->rng, (uint64_t)b->r.info.model.vocab);
}

/* All slots start with a few tokens, which writes their parameters. */
static void start_all(struct bench *b)
{
    for (int slot = 1; slot <= b->reqs_max; slot++) {
        struct step *s = begin(b, 0);
        struct slot_params p = {.seed = (uint64_t)slot,
                                .top_p = 1,
                                .repetition = 1,
                                .n_prompt = PROMPT,
                                .max_out = 1 << 30,
                                .len_max = 1 << 30,
                                .n_logprobs = -1,
                                .spec_mode = SPEC_MODEL,
                                .spec_max = LIM_ROWS_PER_REQ};
        s->start[s->n_start++] = (struct slot_start){slot, 1, p};
        s->chunk[s->n_chunk++] =
            (struct prefill_chunk){slot, 1, 0, PROMPT, 0, true, -1, b->r.info.spec_model};
        for (int i = 0; i < PROMPT; i++)
            s->tok[i] = random_token(b);
        s->n_row = PROMPT;
        s->depth = b->r.info.spec.steps;
        must(runner_step(&b->r, s), &s->err);
    }
}

/* As if every slot had read `context` tokens. */
static void rewind_all(struct bench *b)
{
    size_t n = (size_t)b->reqs_max + 1;
    int32_t *len = MEM_ARRAY(int32_t, n), *root = MEM_ARRAY(int32_t, n);
    int32_t *next = MEM_ARRAY(int32_t, n), *one = MEM_ARRAY(int32_t, n);
    struct err e = {0};
    for (size_t i = 1; i < n; i++) {
        len[i] = b->context;
        next[i] = b->context + 1;
        root[i] = random_token(b);
        one[i] = 1;
    }
    put(b, b->r.b.slots.len, len, n * sizeof *len);
    put(b, b->r.b.slots.root, root, n * sizeof *root);
    put(b, b->r.b.slots.n_rows, one, n * sizeof *one);
    put(b, b->r.b.slots.drf_next, next, n * sizeof *next);
    must(b->r.ops->sync(b->r.d, &e), &e);
    mem_free(len);
    mem_free(root);
    mem_free(next);
    mem_free(one);
}

/* ---- timing ---- */

struct mode {
    const char *name;
    bool plain, apart, parts, eager, late;
};
static const struct mode modes[] = {
    {"no drafts", true, false, false, false, false},
    {"no drafts, overlap", true, false, false, false, true},
    {"no drafts, eager", true, false, false, true, false},
    {"one launch", false, false, false, false, false},
    {"one launch, overlap", false, false, false, false, true},
    {"two launches", false, true, false, false, false},
    {"two launches, overlap", false, true, false, false, true},
    {"extend eager, loop captured", false, true, true, false, false},
    {"all eager", false, false, false, true, false},
};
enum { N_MODES = sizeof modes / sizeof *modes, N_PARTS = N_STAMPS + 1 };

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double quantile(double *v, int n, double q)
{
    qsort(v, (size_t)n, sizeof *v, by_value);
    return n ? v[(int)(q * (double)(n - 1) + 0.5)] : 0;
}

static void submit(struct bench *b, const struct mode *m, int reqs, int at)
{
    struct step *s = begin(b, at);
    const struct spec_shape *shape = &b->r.info.spec;
    for (int i = 0; i < reqs; i++) {
        s->req_slot[i] = i + 1;
        s->req_gen[i] = 1;
        s->req_cap[i] = m->plain ? 1 : shape->rows;
        s->rows_max += s->req_cap[i];
    }
    s->n_req = reqs;
    s->n_draft = m->plain ? 0 : reqs;
    s->depth = m->plain ? 0 : shape->steps;
    if (b->spoil && !m->plain)
        put(b, b->r.b.slots.draft, b->wrong,
            (size_t)b->r.b.slots.n_slot * LIM_ROWS_PER_REQ * sizeof *b->wrong);
    must(runner_submit(&b->r, s), &s->err);
}

static void run(struct bench *b, const struct mode *m, int reqs)
{
    static double part[N_PARTS][REPS_MAX];
    static int64_t at[REPS_MAX][N_STAMPS];
    int n = b->reps, total = WARM + n, accepted = 0, drafted = 0, verifies = 0;
    int last = m->plain ? STAMP_ACCEPT : STAMP_DRAFT;
    b->r.apart = m->apart;
    b->r.parts = m->parts;
    b->r.eager = m->eager;
    rewind_all(b);
    struct dev_counts was = *b->r.ops->counts(b->r.d);
    int64_t t0 = clock_us();
    for (int t = 0; t <= total; t++) {
        int k = m->late ? t - 1 : t; /* whose result is read now */
        if (t < total)
            submit(b, m, reqs, t % 2);
        if (k < 0 || k >= total)
            continue;
        struct step *s = &b->s[k % 2];
        while (!runner_poll(&b->r, s))
            ;
        must(s->err.code, &s->err);
        if (k == WARM)
            was = *b->r.ops->counts(b->r.d), t0 = clock_us();
        for (int i = 0; i < reqs && k >= WARM; i++) {
            verifies++;
            drafted += s->decode_rec[i].n_draft;
            accepted += s->decode_rec[i].n_accepted;
        }
        if (k >= WARM)
            memcpy(at[k - WARM], s->stamps, sizeof at[0]);
    }
    double wall = (double)(clock_us() - t0) * 1e-3 / (n - 1);
    const struct dev_counts *c = b->r.ops->counts(b->r.d);
    int n_after = n - 1 - m->late; /* steps submitted since */
    int64_t replays = c->replays - was.replays, eager = c->launches - was.launches;
    for (int i = 0; i < n; i++) {
        for (int p = 1; p <= last; p++)
            part[p][i] = (double)(at[i][p] - at[i][p - 1]) * 1e-6;
        if (i + 1 < n) {
            part[0][i] = (double)(at[i + 1][0] - at[i][0]) * 1e-6;
            part[N_STAMPS][i] = (double)(at[i + 1][0] - at[i][last]) * 1e-6;
        }
    }
    double ms[N_PARTS] = {0}, p99[N_PARTS] = {0};
    for (int p = 0; p < N_PARTS; p++)
        if (p <= last || p == N_STAMPS) {
            ms[p] = quantile(part[p], p && p < N_STAMPS ? n : n - 1, 0.5);
            p99[p] = quantile(part[p], p && p < N_STAMPS ? n : n - 1, 0.99);
        }
    printf("{\"batch\":%d,\"mode\":\"%s\",\"ms\":%.3f,\"p99_ms\":%.3f,\"verify\":%.3f,"
           "\"accept\":%.3f,\"extend\":%.3f,\"loop\":%.3f,\"pause\":%.4f,\"pause_p99\":%.4f,"
           "\"wall_ms\":%.3f,\"launches\":%.1f,\"eager_ops\":%.0f,\"rows\":%.2f,"
           "\"accepted\":%.3f}\n",
           reqs, m->name, ms[0], p99[0], ms[STAMP_VERIFY], ms[STAMP_ACCEPT], ms[STAMP_EXTEND],
           ms[STAMP_DRAFT], ms[N_STAMPS], p99[N_STAMPS], wall, (double)replays / n_after,
           (double)eager / n_after, 1 + (double)drafted / verifies, (double)accepted / verifies);
    fflush(stdout);
}

/* ---- the command ---- */

static const char *opt(int argc, char **argv, const char *name, const char *def)
{
    for (int i = 1; i + 1 < argc; i++)
        if (!strncmp(argv[i], "--", 2) && !strcmp(argv[i] + 2, name))
            return argv[i + 1];
    return def;
}

static int number(int argc, char **argv, const char *name, int def)
{
    const char *s = opt(argc, argv, name, NULL);
    return s ? (int)strtol(s, NULL, 10) : def;
}

static int list(const char *s, int *out, int cap)
{
    int n = 0;
    for (char *end; *s && n < cap; s = *end ? end + 1 : end)
        out[n++] = (int)strtol(s, &end, 10);
    return n;
}

static bool usable(const char *device)
{
    struct gpu_facts f;
    struct err why = {0}, e = {0};
    const char *name;
    dev_facts(&f, 0);
    if (dev_decide(&name, device, &f, &why, &e) == OK)
        return true;
    printf("nothing was measured: %s\n", e.text);
    return false;
}

static void open_bench(struct bench *b, int argc, char **argv)
{
    struct err e = {0};
    const char *model = opt(argc, argv, "model", "configs/models/demo");
    bool dummy = strstr(model, ".json") != NULL;
    b->spoil = !dummy;
    int len = b->context + (WARM + b->reps) * 2 + 64;
    struct worker_conf c = {.model_dir = model,
                            .device = opt(argc, argv, "device", "cuda"),
                            .dummy = dummy,
                            .n_layer = number(argc, argv, "num-layers", 0),
                            .threads = number(argc, argv, "threads", 16),
                            .reqs_max = b->reqs_max,
                            .slots_max = b->reqs_max,
                            .prefill_rows_max = 256,
                            .len_max = len,
                            .kv_tokens = (int64_t)b->reqs_max * (len + 256),
                            .spec = {.method = opt(argc, argv, "method", "mtp"),
                                     .draft_dir = opt(argc, argv, "draft", NULL),
                                     .steps = number(argc, argv, "steps", 5),
                                     .topk = number(argc, argv, "topk", 1),
                                     .tokens = number(argc, argv, "tokens", 0)},
                            .parts = true};
    int64_t t0 = clock_us();
    must(runner_open(&b->r, &c, &e), &e);
    for (int i = 0; i < 2; i++)
        must(runner_step_init(&b->r, &b->s[i], &e), &e);
    b->r.ops->freeze(b->r.d);
    random_kv(b);
    b->wrong = MEM_ARRAY(int32_t, (size_t)b->r.b.slots.n_slot * LIM_ROWS_PER_REQ);
    for (int i = 0; i < b->r.b.slots.n_slot * LIM_ROWS_PER_REQ; i++)
        b->wrong[i] = i * 7919 % b->r.info.model.vocab;
    start_all(b);
    const struct spec_shape *s = &b->r.info.spec;
    printf(
        "{\"model\":\"%s\",\"method\":\"%s\",\"steps\":%d,\"topk\":%d,\"rows\":%d,\"context\":%d,"
        "\"reps\":%d,\"graphs\":%d,\"open_s\":%.1f,\"record_s\":%.2f}\n",
        model, b->r.info.spec_name, s->steps, s->topk, s->rows, b->context, b->reps,
        b->r.info.n_graph, (double)(clock_us() - t0) * 1e-6, b->r.info.record_s);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    struct bench b = {.rng = {7}};
    int batch[16], n = list(opt(argc, argv, "batch", "1,16,64"), batch, 16);
    if (!usable(opt(argc, argv, "device", "cuda")))
        return 0;
    b.context = number(argc, argv, "context", 1024);
    b.reps = number(argc, argv, "reps", 60);
    b.reps = b.reps < 3 ? 3 : b.reps > REPS_MAX ? REPS_MAX : b.reps;
    for (int i = 0; i < n; i++)
        b.reqs_max = batch[i] > b.reqs_max ? batch[i] : b.reqs_max;
    open_bench(&b, argc, argv);
    const char *only = opt(argc, argv, "mode", NULL);
    for (int i = 0; i < n; i++)
        for (int m = 0; m < N_MODES; m++)
            if ((modes[m].plain || b.r.info.spec_model) && (!only || !strcmp(only, modes[m].name)))
                run(&b, &modes[m], batch[i]);
    for (int i = 0; i < 2; i++)
        runner_step_done(&b.r, &b.s[i]);
    runner_close(&b.r);
    mem_free(b.wrong);
    return 0;
}
