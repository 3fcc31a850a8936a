/* Offline throughput: every combination of prompt length, output length and concurrency through
 * engine.h, one JSON object a line. Prompts are seeded random ids, so nothing repeats; ends are by
 * length only. All prompts run before the first decode, so that a prefill rate holds no decode and
 * every decode step has all requests. The machine and the model are in every line, so that lines
 * can be compared. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/rng.h"
#include "engine/engine.h"
#include "server/cli.h"

enum { CUDA_GB_S = 4660, WARM_PROMPT = 16, WARM_OUTPUT = 8, SPARE_TOKENS = 128, TIMED_OUTPUT = 9 };

struct result {
    double wall_s, prefill_s, decode_s; /* prefill: until the last first token */
    double ttft_mean_s, ttft_max_s;
    double step_ms, step_p99_ms; /* time between two results of one request, all decoding */
    int64_t n_prompt, n_output, cpu_us;
    int64_t n_verify, n_draft, n_accepted;
    int64_t n_step, n_row; /* decode steps, rows in them */
    double part_us[4];
};

/* When the results of one request came. */
struct times {
    int64_t *us;
    size_t n, cap;
};

/* Ids count up from *first. */
static int submit_all(struct engine *g, int64_t prompt_len, int64_t output_len, int64_t n,
                      struct rng *rng, uint64_t *first, struct err *e)
{
    static uint64_t id;
    *first = id + 1;
    struct gen_req **list = MEM_ARRAY(struct gen_req *, n);
    int vocab = engine_info(g)->vocab, ret = OK;
    for (int64_t i = 0; i < n; i++) {
        struct gen_req *r = list[i] = gen_req_new();
        engine_default_params(g, &r->p);
        r->id = ++id;
        r->n_prompt = (size_t)prompt_len;
        r->prompt = MEM_ARRAY(int32_t, prompt_len);
        for (int64_t k = 0; k < prompt_len; k++)
            r->prompt[k] = (int32_t)rng_below(rng, (uint64_t)vocab);
        r->p.max_tokens = (int)output_len;
        r->p.ignore_eos = true;
        r->p.temperature = 0;
        r->p.n_logprobs = r->p.n_prompt_logprobs = -1;
        r->arrival_us = clock_us();
    }
    ret = engine_submit(g, list, (size_t)n, e);
    for (int64_t i = 0; ret < 0 && i < n; i++)
        gen_req_free(list[i]);
    mem_free(list);
    return ret;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Median and 99th percentile of the intervals between results from `from` on. */
static void step_times(const struct times *t, int64_t from, struct result *out)
{
    double *ms = MEM_ARRAY(double, t->n + 1);
    size_t n = 0;
    for (size_t i = 1; i < t->n; i++)
        if (t->us[i - 1] >= from)
            ms[n++] = (double)(t->us[i] - t->us[i - 1]) * 1e-3;
    qsort(ms, n, sizeof *ms, by_value);
    if (n) {
        out->step_ms = ms[n / 2];
        out->step_p99_ms = ms[(size_t)(0.99 * (double)(n - 1) + 0.5)];
    }
    mem_free(ms);
}

static void add_request(struct result *out, const struct gen_stats *s, int64_t start, int64_t n)
{
    double ttft = (double)(s->first_us - start) * 1e-6;
    out->ttft_mean_s += ttft / (double)n;
    out->ttft_max_s = ttft > out->ttft_max_s ? ttft : out->ttft_max_s;
    out->n_prompt += s->n_prompt;
    out->n_output += s->n_output;
    out->n_verify += s->n_verify;
    out->n_draft += s->n_draft;
    out->n_accepted += s->n_accepted;
}

static int run_one(struct cli_engine *ce, int64_t prompt_len, int64_t output_len, int64_t n,
                   struct rng *rng, struct result *out, struct err *e)
{
    struct engine *g = cli_engine(ce);
    struct engine_usage u0, u1;
    struct times seen = {0};
    uint64_t watched;
    engine_usage(g, &u0);
    int64_t cpu = clock_process_cpu_us(), start = clock_us(), first = 0, last = 0, left = n;
    *out = (struct result){0};
    int ret = submit_all(g, prompt_len, output_len, n, rng, &watched, e);
    if (ret < 0)
        return ret;
    while (left) {
        cli_wait(ce);
        int64_t now = clock_us();
        for (struct gen_evt *v = engine_poll(g), *next; v; v = next) {
            next = v->next;
            if (v->id == watched && v->n_tok) {
                MEM_GROW(seen.us, seen.cap, seen.n + 1);
                seen.us[seen.n++] = now;
            }
            if (v->kind == EVT_DONE) {
                left--;
                if (v->finish == FINISH_ERROR)
                    ret = FAIL(e, E_DEVICE, "%s", v->err.text);
                first = v->stats.first_us > first ? v->stats.first_us : first;
                last = v->stats.last_us > last ? v->stats.last_us : last;
                add_request(out, &v->stats, start, n);
            }
            gen_evt_free(v);
        }
    }
    engine_usage(g, &u1);
    out->wall_s = (double)(last - start) * 1e-6;
    out->prefill_s = (double)(first - start) * 1e-6;
    out->decode_s = (double)(last - first) * 1e-6;
    out->cpu_us = clock_process_cpu_us() - cpu;
    out->n_step = u1.n_decode - u0.n_decode;
    out->n_row = u1.n_rows - u0.n_rows;
    for (int i = 0; i < 4; i++)
        out->part_us[i] = u1.part_us[i] - u0.part_us[i];
    step_times(&seen, first, out);
    mem_free(seen.us);
    return ret;
}

/* Bytes that a decode step of n requests has to read: the weights in use (of the experts those that
 * n rows meet when all are equally likely) and the KV of `len` tokens of each. */
static double floor_bytes(const struct engine_info *i, int64_t n, double len)
{
    double dense = (double)(i->weight_bytes - i->lookup_bytes - i->expert_bytes), share = 0;
    if (i->n_expert)
        share = 1 - pow(1 - (double)i->topk / i->n_expert, (double)n);
    return dense + share * (double)i->expert_bytes + (double)n * len * (double)i->kv_token_bytes;
}

static void print_speculation(const struct result *r)
{
    static const char *const part[] = {"verify", "accept", "extend", "draft"};
    double length = r->n_verify ? 1 + (double)r->n_accepted / (double)r->n_verify : 0;
    printf(",\"verifies\":%lld,\"drafted\":%lld,\"accepted\":%lld,\"mean_accepted_length\":%.3f,"
           "\"rows_per_step\":%.2f,\"part_ms\":{",
           (long long)r->n_verify, (long long)r->n_draft, (long long)r->n_accepted, length,
           r->n_step ? (double)r->n_row / (double)r->n_step : 0);
    for (int i = 0; i < 4; i++)
        printf("%s\"%s\":%.3f", i ? "," : "", part[i],
               r->n_step ? r->part_us[i] * 1e-3 / (double)r->n_step : 0);
    printf("}");
}

/* The operations of the mean step, those that take longest first: how many, microseconds, share. */
static void print_ops(const struct engine *g, bool prefill)
{
    struct engine_op op[ENGINE_OPS];
    int n = engine_ops(g, prefill, op);
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += op[i].us;
    printf(",\"%s_ops\":[", prefill ? "prefill" : "decode");
    for (int i = 0; i < n; i++)
        printf("%s{\"op\":\"%s\",\"calls\":%.4g,\"us\":%.2f,\"share\":%.3f}", i ? "," : "",
               op[i].name, op[i].calls, op[i].us, sum > 0 ? op[i].us / sum : 0);
    printf("]");
}

static void print_result(struct engine *g, const struct config *c, int64_t prompt_len,
                         int64_t output_len, int64_t n, const struct result *r)
{
    const struct engine_info *i = engine_info(g);
    double decode = r->decode_s > 0 ? (double)(r->n_output - n) / r->decode_s : 0;
    printf("{\"model\":\"%s\",\"device\":\"%s\",\"kv_cache_dtype\":\"%s\",\"speculative\":\"%s\","
           "\"prompt_len\":%lld,"
           "\"output_len\":%lld,\"concurrency\":%lld,\"ttft_mean_s\":%.5f,\"ttft_max_s\":%.5f,"
           "\"prefill_tok_s\":%.1f,\"step_ms\":%.4f,\"step_p99_ms\":%.4f,\"steps\":%lld",
           i->model_dir, i->device, i->kv_dtype, i->spec_name, (long long)prompt_len,
           (long long)output_len, (long long)n, r->ttft_mean_s, r->ttft_max_s,
           r->prefill_s > 0 ? (double)r->n_prompt / r->prefill_s : 0, r->step_ms, r->step_p99_ms,
           (long long)r->n_step);
    int64_t bandwidth = c->bandwidth ? c->bandwidth : strcmp(i->device, "cpu") != 0 ? CUDA_GB_S : 0;
    if (bandwidth) {
        double len = (double)prompt_len + (double)output_len / 2;
        double ms = floor_bytes(i, n, len) / ((double)bandwidth * 1e6);
        printf(",\"floor_ms\":%.4f,\"floor_share\":%.3f", ms, r->step_ms > 0 ? ms / r->step_ms : 0);
    }
    printf(",\"decode_tok_s\":%.1f,\"total_tok_s\":%.1f,\"wall_s\":%.3f,"
           "\"cpu_us_per_output_tok\":%.1f",
           decode, r->wall_s > 0 ? (double)r->n_output / r->wall_s : 0, r->wall_s,
           r->n_output ? (double)r->cpu_us / (double)r->n_output : 0);
    if (i->spec_rows > 1)
        print_speculation(r);
    if (!strcmp(c->op_times, "on")) {
        print_ops(g, false);
        print_ops(g, true);
    }
    printf(",\"ready_s\":%.2f,\"weights_s\":%.2f,\"graphs_s\":%.2f}\n", i->ready_s, i->load_s,
           i->record_s);
    fflush(stdout);
}

/* Numbers of a list flag, or the defaults. */
static int numbers(const struct str_list *l, const char *name, const int64_t *def, size_t n_def,
                   int64_t **out, size_t *n)
{
    *n = l->n ? l->n : n_def;
    *out = MEM_ARRAY(int64_t, *n);
    for (size_t i = 0; i < *n; i++) {
        char *end = NULL;
        (*out)[i] = l->n ? strtoll(l->v[i], &end, 10) : def[i];
        if ((*out)[i] < 1 || (*out)[i] > 1 << 24 || (end && *end)) {
            fprintf(stderr, "specd: --%s: '%s' is not a number of 1 or more\n", name, l->v[i]);
            return E_INVAL;
        }
    }
    return OK;
}

struct plan {
    int64_t *prompt, *output, *conc;
    size_t n_prompt, n_output, n_conc;
};

/* The same once more, but shorter, with every operation timed alone. */
static int time_ops(struct cli_engine *ce, int64_t prompt_len, int64_t output_len, int64_t n,
                    struct rng *rng, struct err *e)
{
    struct result r;
    engine_time_ops(cli_engine(ce), true);
    int ret = run_one(ce, prompt_len, output_len < TIMED_OUTPUT ? output_len : TIMED_OUTPUT, n, rng,
                      &r, e);
    engine_time_ops(cli_engine(ce), false);
    return ret;
}

static int run_plan(const struct config *c, struct cli_engine *ce, const struct plan *p)
{
    struct rng rng = {.s = c->seed ? (uint64_t)c->seed : 1};
    struct err e = {0};
    struct result best = {0}, r;
    size_t total = p->n_prompt * p->n_output * p->n_conc;
    int64_t warm = 0; /* prompt length that has run */
    for (size_t i = 0; i < total; i++) {
        int64_t conc = p->conc[i % p->n_conc];
        int64_t out = p->output[i / p->n_conc % p->n_output];
        int64_t in = p->prompt[i / p->n_conc / p->n_output];
        int ret = OK; /* warm: one prompt as long, and decodes of as many */
        if (in != warm)
            ret = run_one(ce, in, 1, 1, &rng, &r, &e);
        warm = in;
        if (ret == OK)
            ret = run_one(ce, in < WARM_PROMPT ? in : WARM_PROMPT, WARM_OUTPUT, conc, &rng, &r, &e);
        for (int64_t k = 0; k < c->repeat && ret == OK; k++) {
            ret = run_one(ce, in, out, conc, &rng, &r, &e);
            if (!k || r.wall_s < best.wall_s)
                best = r;
        }
        if (ret == OK && !strcmp(c->op_times, "on"))
            ret = time_ops(ce, in, out, conc, &rng, &e);
        if (ret < 0) {
            fprintf(stderr, "specd: %s\n", e.text);
            return 1;
        }
        print_result(cli_engine(ce), c, in, out, conc, &best);
    }
    return 0;
}

static int64_t largest(const int64_t *v, size_t n)
{
    int64_t max = 0;
    for (size_t i = 0; i < n; i++)
        max = v[i] > max ? v[i] : max;
    return max;
}

/* Room for the largest combination, where the flags leave it open. */
static void make_room(struct config *c, const struct plan *p)
{
    int64_t conc = largest(p->conc, p->n_conc);
    int64_t len = largest(p->prompt, p->n_prompt) + largest(p->output, p->n_output);
    c->prefill_first = true;
    c->max_queued_requests = 1 << 20;
    c->max_num_seqs = c->max_num_seqs > conc ? c->max_num_seqs : conc;
    if (!c->kv_cache_tokens)
        c->kv_cache_tokens = conc * (len + SPARE_TOKENS);
    if (c->kv_cache_tokens < c->max_model_len)
        c->kv_cache_tokens = c->max_model_len;
    if (!c->max_model_len)
        c->max_model_len = len + 1;
}

int cli_bench(const struct config *c)
{
    static const int64_t def_prompt[] = {128, 512}, def_output[] = {64}, def_conc[] = {1, 8, 32};
    struct plan p = {0};
    int code = 2;
    struct config big = *c;
    if (numbers(&c->prompt_len, "prompt-len", def_prompt, 2, &p.prompt, &p.n_prompt) < 0 ||
        numbers(&c->output_len, "output-len", def_output, 1, &p.output, &p.n_output) < 0 ||
        numbers(&c->concurrency, "concurrency", def_conc, 3, &p.conc, &p.n_conc) < 0)
        goto out;
    make_room(&big, &p);
    struct cli_engine *ce = cli_open(&big);
    code = ce ? run_plan(c, ce, &p) : 1;
    cli_close(ce);
out:
    mem_free(p.prompt);
    mem_free(p.output);
    mem_free(p.conc);
    return code;
}
