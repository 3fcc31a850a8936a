/* Offline throughput: every combination of prompt length, output length and concurrency through
 * engine.h, one JSON object a line. Prompts are seeded random ids, so nothing repeats; ends are by
 * length only. The machine and the model are in every line, so that lines can be compared. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/rng.h"
#include "engine/engine.h"
#include "server/cli.h"

struct result {
    double wall_s, prefill_s, decode_s; /* prefill: until the last first token */
    double ttft_mean_s;
    int64_t n_prompt, n_output, cpu_us;
    int64_t n_verify, n_draft, n_accepted;
};

static int submit_all(struct engine *g, int64_t prompt_len, int64_t output_len, int64_t n,
                      struct rng *rng, struct err *e)
{
    static uint64_t id;
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

static int run_one(struct cli_engine *ce, int64_t prompt_len, int64_t output_len, int64_t n,
                   struct rng *rng, struct result *out, struct err *e)
{
    struct engine *g = cli_engine(ce);
    int64_t cpu = clock_process_cpu_us(), start = clock_us(), first = 0, last = 0, left = n;
    *out = (struct result){0};
    int ret = submit_all(g, prompt_len, output_len, n, rng, e);
    if (ret < 0)
        return ret;
    while (left) {
        cli_wait(ce);
        for (struct gen_evt *v = engine_poll(g), *next; v; v = next) {
            next = v->next;
            if (v->kind == EVT_DONE) {
                left--;
                if (v->finish == FINISH_ERROR)
                    ret = FAIL(e, E_DEVICE, "%s", v->err.text);
                first = v->stats.first_us > first ? v->stats.first_us : first;
                last = v->stats.last_us > last ? v->stats.last_us : last;
                out->ttft_mean_s += (double)(v->stats.first_us - start) * 1e-6 / (double)n;
                out->n_prompt += v->stats.n_prompt;
                out->n_output += v->stats.n_output;
                out->n_verify += v->stats.n_verify;
                out->n_draft += v->stats.n_draft;
                out->n_accepted += v->stats.n_accepted;
            }
            gen_evt_free(v);
        }
    }
    out->wall_s = (double)(last - start) * 1e-6;
    out->prefill_s = (double)(first - start) * 1e-6;
    out->decode_s = (double)(last - first) * 1e-6;
    out->cpu_us = clock_process_cpu_us() - cpu;
    return ret;
}

static void print_result(const struct engine_info *i, int64_t prompt_len, int64_t output_len,
                         int64_t n, const struct result *r)
{
    /* while prompts still run, tokens come too: the rate counts those after the last first token */
    double decode = r->decode_s > 0 ? (double)n * (double)(output_len - 1) / r->decode_s : 0;
    double length = r->n_verify ? 1 + (double)r->n_accepted / (double)r->n_verify : 0;
    printf("{\"model\":\"%s\",\"device\":\"%s\",\"speculative\":\"%s\",\"prompt_len\":%lld,"
           "\"output_len\":%lld,"
           "\"concurrency\":%lld,\"prefill_tok_s\":%.1f,\"decode_tok_s\":%.1f,\"total_tok_s\":%.1f,"
           "\"ttft_mean_s\":%.4f,\"wall_s\":%.3f,\"cpu_us_per_output_tok\":%.1f,"
           "\"verifies\":%lld,\"drafted\":%lld,\"accepted\":%lld,\"mean_accepted_length\":%.3f}\n",
           i->model_dir, i->device, i->spec_name, (long long)prompt_len, (long long)output_len,
           (long long)n, r->prefill_s > 0 ? (double)r->n_prompt / r->prefill_s : 0, decode,
           r->wall_s > 0 ? (double)r->n_output / r->wall_s : 0, r->ttft_mean_s, r->wall_s,
           r->n_output ? (double)r->cpu_us / (double)r->n_output : 0, (long long)r->n_verify,
           (long long)r->n_draft, (long long)r->n_accepted, length);
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

static int run_plan(const struct config *c, struct cli_engine *ce, const struct plan *p)
{
    struct rng rng = {.s = c->seed ? (uint64_t)c->seed : 1};
    struct err e = {0};
    struct result best = {0}, r;
    size_t total = p->n_prompt * p->n_output * p->n_conc;
    for (size_t i = 0; i < total; i++) {
        int64_t conc = p->conc[i % p->n_conc];
        int64_t out = p->output[i / p->n_conc % p->n_output];
        int64_t in = p->prompt[i / p->n_conc / p->n_output];
        for (int64_t k = 0; k < c->repeat; k++) {
            if (run_one(ce, in, out, conc, &rng, &r, &e) < 0) {
                fprintf(stderr, "specd: %s\n", e.text);
                return 1;
            }
            if (!k || r.wall_s < best.wall_s)
                best = r;
        }
        print_result(engine_info(cli_engine(ce)), in, out, conc, &best);
    }
    return 0;
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
    big.max_queued_requests = 1 << 20;
    struct cli_engine *ce = cli_open(&big);
    code = ce ? run_plan(c, ce, &p) : 1;
    cli_close(ce);
out:
    mem_free(p.prompt);
    mem_free(p.output);
    mem_free(p.conc);
    return code;
}
