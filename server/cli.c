/* generate, tokenize and plan: one engine at most, one thread that waits for its events. No loop,
 * no sockets. */
#include "server/cli.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/thread.h"
#include "engine/engine.h"
#include "server/chat/chat.h"

#define PROMPT_MAX (64 << 20)

struct cli_engine {
    struct engine *g;
    pthread_mutex_t lock;
    pthread_cond_t cond;
    bool woken; /* under lock */
};

static void on_wake(void *ud)
{
    struct cli_engine *e = ud;
    mutex_lock(&e->lock);
    e->woken = true;
    cond_signal(&e->cond);
    mutex_unlock(&e->lock);
}

struct cli_engine *cli_open(const struct config *c)
{
    struct err err = {0};
    struct engine_conf ec;
    enum log_level level = LOG_INFO;
    log_level_parse(c->log_level, &level);
    log_init(level == LOG_INFO ? LOG_WARN : level, false);
    struct cli_engine *e = MEM_NEW(struct cli_engine);
    mutex_init(&e->lock);
    cond_init(&e->cond);
    config_engine(c, &ec);
    if (engine_open(&e->g, &ec, on_wake, e, &err) < 0) {
        fprintf(stderr, "specd: %s\n", err.text);
        cli_close(e);
        return NULL;
    }
    return e;
}

struct engine *cli_engine(const struct cli_engine *e)
{
    return e->g;
}

void cli_wait(struct cli_engine *e)
{
    mutex_lock(&e->lock);
    while (!e->woken)
        cond_wait(&e->cond, &e->lock);
    e->woken = false;
    mutex_unlock(&e->lock);
}

void cli_close(struct cli_engine *e)
{
    if (!e)
        return;
    if (e->g)
        engine_close(e->g);
    cond_done(&e->cond);
    mutex_done(&e->lock);
    mem_free(e);
}

static int read_stdin(struct buf *b)
{
    char tmp[16384];
    ssize_t n;
    buf_init(b, PROMPT_MAX);
    while ((n = read(STDIN_FILENO, tmp, sizeof tmp)) > 0)
        if (buf_push(b, tmp, (size_t)n) < 0) {
            fprintf(stderr, "specd: standard input has more than %d bytes\n", PROMPT_MAX);
            return E_RANGE;
        }
    if (n < 0)
        fprintf(stderr, "specd: standard input cannot be read\n");
    return n < 0 ? E_IO : OK;
}

/* ---- generate ---- */

static int load_template(struct chat_template **out, const struct config *c, struct engine *g,
                         struct err *e)
{
    char *text;
    size_t n;
    if (!engine_info(g)->has_text)
        return FAIL(e, E_UNSUPPORTED, "--chat: %s has no tokenizer.json", c->model);
    if (!c->chat_template) {
        TRY(chat_template_load(out, c->model, e));
        return *out ? OK : FAIL(e, E_UNSUPPORTED, "%s has no chat template", c->model);
    }
    TRY(file_read(&text, &n, c->chat_template, 4 << 20, e));
    int r = chat_template_parse(out, text, n, e);
    mem_free(text);
    TRY(r);
    const struct engine_info *i = engine_info(g);
    if (i->bos >= 0)
        chat_template_set_token(*out, "bos_token", engine_token_piece(g, i->bos));
    return OK;
}

static int encode_chat(const struct config *c, struct engine *g, const struct buf *prompt,
                       struct gen_req *r, struct err *e)
{
    struct chat_template *t = NULL;
    struct chat_text text = {0};
    json_t *msgs = json_array(), *vars = NULL;
    int ret = load_template(&t, c, g, e);
    if (ret < 0)
        goto out;
    if (c->system)
        json_array_append_new(msgs, json_pack("{s:s,s:s}", "role", "system", "content", c->system));
    json_t *user = json_stringn(buf_cstr(prompt), prompt->len);
    if (!user) {
        ret = FAIL(e, E_INVAL, "the prompt is not valid UTF-8");
        goto out;
    }
    json_array_append_new(msgs, json_pack("{s:s,s:o}", "role", "user", "content", user));
    vars = json_pack("{s:O,s:b}", "messages", msgs, "add_generation_prompt", 1);
    TRY_OUT(chat_render(t, vars, &text, e));
    ret = engine_encode(g, buf_cstr(&text.text), text.text.len, false, true, text.untrusted,
                        text.n_untrusted, 0, &r->prompt, &r->n_prompt, e);
out:
    chat_text_done(&text);
    chat_template_free(t);
    json_decref(vars);
    json_decref(msgs);
    return ret;
}

static void set_params(const struct config *c, struct gen_req *r)
{
    struct gen_params *p = &r->p;
    p->n_logprobs = p->n_prompt_logprobs = -1;
    p->skip_special = true;
    p->max_tokens = (int)c->max_tokens;
    p->ignore_eos = c->ignore_eos;
    if (!isnan(c->temperature))
        p->temperature = (float)c->temperature;
    if (!isnan(c->top_p) && c->top_p > 0)
        p->top_p = (float)c->top_p;
    if (!isnan(c->min_p))
        p->min_p = (float)c->min_p;
    if (c->top_k != INT64_MIN)
        p->top_k = (int)c->top_k;
    p->has_seed = c->gen_seed != INT64_MIN;
    if (p->has_seed)
        p->seed = (uint64_t)c->gen_seed;
    if (c->stop.n)
        r->stop = MEM_ARRAY(char *, c->stop.n);
    for (; r->n_stop < c->stop.n; r->n_stop++)
        r->stop[r->n_stop] = mem_strdup(c->stop.v[r->n_stop]);
}

/* Prints what comes until the final event; the exit code. */
static int print_events(struct cli_engine *ce)
{
    for (;;) {
        cli_wait(ce);
        for (struct gen_evt *e = engine_poll(ce->g), *next; e; e = next) {
            next = e->next;
            fwrite(e->text, 1, e->n_text, stdout);
            fflush(stdout);
            bool done = e->kind == EVT_DONE;
            int code = e->finish == FINISH_STOP || e->finish == FINISH_LENGTH ? 0 : 1;
            if (done && code)
                fprintf(stderr, "\nspecd: %s\n", e->err.text);
            double s = done ? (double)(e->stats.last_us - e->stats.first_us) * 1e-6 : 0;
            if (done && !code && isatty(STDERR_FILENO))
                fprintf(
                    stderr,
                    "\n[%d + %d tokens, first after %.2f s, then %.1f tokens/s, %d of %d drafts "
                    "accepted]\n",
                    e->stats.n_prompt, e->stats.n_output,
                    (double)(e->stats.first_us - e->stats.arrival_us) * 1e-6,
                    s > 0 ? (e->stats.n_output - 1) / s : 0, e->stats.n_accepted, e->stats.n_draft);
            gen_evt_free(e);
            if (!done)
                continue;
            while ((e = next)) {
                next = e->next;
                gen_evt_free(e);
            }
            printf("\n");
            return code;
        }
    }
}

static int clamp_tokens(const struct engine *g, struct gen_req *r, struct err *e)
{
    int64_t rest = engine_info(g)->max_model_len - (int64_t)r->n_prompt;
    if (rest < 1)
        return FAIL(e, E_RANGE, "the prompt has %zu tokens, the context %d", r->n_prompt,
                    engine_info(g)->max_model_len);
    if (r->p.max_tokens > rest)
        r->p.max_tokens = (int)rest;
    return OK;
}

int cli_generate(const struct config *c)
{
    struct err e = {0};
    struct buf prompt = {0};
    int code = 1;
    if (!c->prompt) {
        fprintf(stderr, "specd: --prompt is missing\n");
        return 2;
    }
    if (!strcmp(c->prompt, "-")) {
        if (read_stdin(&prompt) < 0)
            goto out;
    } else {
        buf_str(&prompt, c->prompt);
    }
    struct cli_engine *ce = cli_open(c);
    if (!ce)
        goto out;
    struct gen_req *r = gen_req_new();
    engine_default_params(ce->g, &r->p);
    r->id = 1;
    r->arrival_us = clock_us();
    set_params(c, r);
    int ret = c->chat ? encode_chat(c, ce->g, &prompt, r, &e)
                      : engine_encode(ce->g, buf_cstr(&prompt), prompt.len, true, true, NULL, 0, 0,
                                      &r->prompt, &r->n_prompt, &e);
    if (ret >= 0)
        ret = clamp_tokens(ce->g, r, &e);
    if (ret >= 0)
        ret = engine_submit(ce->g, &r, 1, &e);
    if (ret < 0) {
        fprintf(stderr, "specd: %s\n", e.text);
        gen_req_free(r);
    } else {
        code = print_events(ce);
    }
    cli_close(ce);
out:
    buf_done(&prompt);
    return code;
}

/* ---- tokenize ---- */

int cli_tokenize(const struct config *c)
{
    struct err e = {0};
    struct buf text;
    int code = 1;
    int32_t *ids = NULL;
    size_t n = 0;
    if (read_stdin(&text) < 0) {
        buf_done(&text);
        return 1;
    }
    static char off[] = "off";
    struct config small = *c; /* only the vocabulary is wanted: little KV memory, no drafter */
    small.max_num_seqs = 1;
    small.max_num_batched_tokens = 16;
    small.threads = 1;
    small.speculative = off;
    struct cli_engine *ce = cli_open(&small);
    if (!ce) {
        buf_done(&text);
        return 1;
    }
    if (engine_encode(ce->g, buf_cstr(&text), text.len, !c->no_special, !c->no_special, NULL, 0, 0,
                      &ids, &n, &e) < 0) {
        fprintf(stderr, "specd: %s\n", e.text);
    } else {
        for (size_t i = 0; i < n; i++)
            printf(i ? " %d" : "%d", ids[i]);
        printf("\n");
        code = 0;
    }
    mem_free(ids);
    cli_close(ce);
    buf_done(&text);
    return code;
}

/* ---- plan ---- */

int cli_plan(const struct config *c)
{
    struct err e = {0};
    struct buf out = {0};
    struct engine_conf ec;
    enum log_level level = LOG_INFO;
    log_level_parse(c->log_level, &level);
    log_init(level == LOG_INFO ? LOG_WARN : level, false);
    config_engine(c, &ec);
    int ret = engine_plan(&ec, &out, &e);
    fputs(buf_cstr(&out), stdout);
    fflush(stdout);
    if (ret < 0)
        fprintf(stderr, "specd: %s\n", e.text);
    buf_done(&out);
    return ret < 0 ? 1 : 0;
}
