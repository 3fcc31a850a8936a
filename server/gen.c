/* Life of a completion: parse, encode, submit, turn events into text for the client; loop thread,
 * except the two pool jobs. One HTTP request may be many engine requests (prompts times n); they
 * share one stream or one answer. Does not decide anything about text: stop strings and UTF-8 are
 * the engine's. */
#include "server/gen.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/metrics.h"
#include "engine/base/rng.h"
#include "server/gen_table.h"
#include "server/jsonw.h"
#include "server/prompt.h"
#include "server/routes.h"
#include "server/server.h"
#include "server/sse.h"

#define INLINE_BODY (8 * 1024)  /* bodies up to this are parsed on the loop: under 0.2 ms */
#define INLINE_TEXT 1024        /* prompts up to this are tokenised there */
#define HEAD_DELAY_US 1000000   /* a queued stream gets its head after this long */
#define ANSWER_MAX (256u << 20) /* bytes of an answer that is not streamed */

/* ---- events to output ---- */

static struct usage usage_of(const struct gen *g)
{
    struct usage u = {.spec = g->q.p.spec_mode != SPEC_OFF && g->q.p.spec_max > 0};
    for (size_t i = 0; i < g->q.n_prompt; i++)
        u.prompt += (int64_t)g->q.prompt[i].n_ids;
    for (size_t i = 0; i < g->n; i++) {
        u.completion += g->c[i].n_out;
        u.cached += g->c[i].n_cached;
        u.verifies += g->c[i].n_verify;
        u.drafted += g->c[i].n_draft;
        u.accepted += g->c[i].n_accepted;
    }
    return u;
}

static void put_prompt_ids(struct buf *out, const struct api_prompt *p)
{
    for (size_t i = 0; i < p->n_ids; i++) {
        if (i)
            buf_char(out, ',');
        jw_int(out, p->ids[i]);
    }
}

/* What is pending of a choice as one chunk; `text` comes on top of c->text (the echoed prompt). */
static void emit(struct choice *c, const char *text, size_t n_text)
{
    struct gen *g = c->g;
    struct buf prompt_ids = {0};
    struct usage u;
    struct chunk k = {.index = c->index, .text = text, .n_text = n_text};
    if (c->text.len) {
        buf_push(&c->text, text, n_text);
        k.text = c->text.p;
        k.n_text = c->text.len;
    }
    k.role = g->render.chat && !c->role_sent;
    k.lp = g->q.logprobs ? &c->lp : NULL;
    k.ending = c->done ? &c->ending : NULL;
    if (g->q.return_ids) {
        k.ids = buf_cstr(&c->ids);
        k.n_ids = c->ids.len;
        if (!c->role_sent) {
            put_prompt_ids(&prompt_ids, &g->q.prompt[c->prompt]);
            k.prompt_ids = buf_cstr(&prompt_ids);
            k.n_prompt_ids = prompt_ids.len;
        }
    }
    if (g->q.continuous_usage) {
        u = usage_of(g);
        u.spec = false; /* a sequence's counts come with its end */
        k.usage = &u;
    }
    chunk_put(sse_buf(g->r->sse), &g->render, &k);
    c->role_sent = true;
    c->pending = false;
    buf_reset(&c->text);
    buf_reset(&c->ids);
    buf_done(&prompt_ids);
}

static bool hidden_token(const struct gen *g, int32_t id)
{
    struct buf b = {0};
    engine_decode(g->srv->engine, &id, 1, g->q.p.skip_special, &b);
    bool none = !b.len;
    buf_done(&b);
    return none;
}

static void take_logprobs(struct choice *c, const struct gen_evt *e)
{
    struct gen *g = c->g;
    if (!g->q.logprobs)
        return;
    for (int i = 0; i < e->n_tok; i++) {
        const struct gen_tok *t = &e->tok[i];
        bool prompt = e->kind == EVT_PROMPT;
        if (!prompt && e->kind == EVT_DONE && i == e->n_tok - 1 && e->finish == FINISH_STOP &&
            e->stop_id == t->id && !g->q.p.include_stop)
            break; /* a stop token shows no text and gets no entry */
        lp_push(&c->lp, &g->render, t, prompt && i == 0, !g->render.chat && hidden_token(g, t->id));
    }
}

static void take_tokens(struct choice *c, const struct gen_evt *e)
{
    struct gen *g = c->g;
    if (e->kind == EVT_PROMPT) {
        take_logprobs(c, e);
        return;
    }
    int64_t now = g->srv->tick_now_us;
    if (e->n_tok && !c->n_out)
        metric_observe(M_TTFT, (double)(now - g->r->start_us) * 1e-6);
    for (int i = c->n_out ? 0 : 1; i < e->n_tok; i++)
        metric_observe(M_ITL, c->last_us ? (double)(now - c->last_us) * 1e-6 / e->n_tok : 0);
    if (e->n_tok)
        c->last_us = now;
    c->n_out += e->n_tok;
    take_logprobs(c, e);
    for (int i = 0; g->q.return_ids && i < e->n_tok; i++) {
        if (c->ids.len)
            buf_char(&c->ids, ',');
        jw_int(&c->ids, e->tok[i].id);
    }
    if (e->kind == EVT_DONE && g->q.stream) {
        emit(c, e->text, e->n_text);
        return;
    }
    buf_push(&c->text, e->text, e->n_text);
    c->pending = g->q.stream && (c->pending || e->n_text);
}

static void emit_pending(struct gen *g)
{
    for (size_t i = 0; i < g->n; i++)
        if (g->c[i].pending)
            emit(&g->c[i], "", 0);
}

/* Steps that came while the loop was busy with others are one chunk: who is behind sends less. */
void gen_flush(struct gen *g)
{
    emit_pending(g);
    sse_flush(g->r->sse);
}

/* ---- ends ---- */

static void cancel_live(struct gen *g)
{
    for (size_t i = 0; i < g->n; i++)
        if (g->c[i].live)
            engine_cancel(g->srv->engine, g->c[i].id);
}

/* Ends the request with an error, whatever its state; once. */
static void gen_fail(struct gen *g, const struct api_err *e, int outcome)
{
    if (g->finished)
        return;
    g->finished = true;
    g->r->outcome = outcome;
    cancel_live(g);
    if (g->q.stream && g->r->sse && sse_is_open(g->r->sse)) {
        emit_pending(g);
        struct buf *b = sse_buf(g->r->sse);
        buf_str(b, "data: ");
        api_err_json(b, e);
        buf_str(b, "\n\ndata: [DONE]\n\n");
        sse_end(g->r->sse);
    } else {
        http_reply_err(g->r, e);
    }
}

static void log_end(const struct gen *g)
{
    static const char *const words[] = {"none", "stop", "length", "canceled", "error"};
    struct usage u = usage_of(g);
    LOG(LOG_INFO, "api", "%s: %s%s, %lld + %lld tokens, %zu choice(s), seed %llu, %s, %.1f ms",
        g->r->rid, g->render.chat ? "chat" : "completion", g->q.stream ? " stream" : "",
        (long long)u.prompt, (long long)u.completion, g->n, (unsigned long long)g->c[0].seed,
        words[g->c[0].ending.finish], (double)(clock_us() - g->r->start_us) * 1e-3);
}

static void answer(struct gen *g)
{
    struct buf b;
    buf_init(&b, ANSWER_MAX);
    answer_open(&b, &g->render);
    for (size_t i = 0; i < g->n; i++) {
        struct choice *c = &g->c[i];
        struct buf ids = {0};
        struct chunk k = {.index = c->index,
                          .text = buf_cstr(&c->text),
                          .n_text = c->text.len,
                          .lp = g->q.logprobs ? &c->lp : NULL,
                          .ending = &c->ending};
        if (g->q.return_ids) {
            put_prompt_ids(&ids, &g->q.prompt[c->prompt]);
            k.ids = buf_cstr(&c->ids);
            k.n_ids = c->ids.len;
            k.prompt_ids = buf_cstr(&ids);
            k.n_prompt_ids = ids.len;
        }
        answer_choice(&b, &g->render, &k);
        buf_done(&ids);
    }
    struct usage u = usage_of(g);
    answer_close(&b, &u);
    if (b.full) {
        struct api_err e;
        buf_done(&b);
        api_fail(&e, 500, "internal_error", NULL, "The answer is larger than %u bytes", ANSWER_MAX);
        http_reply_err(g->r, &e);
        g->r->outcome = OUT_ERROR;
        return;
    }
    http_reply(g->r, 200, "application/json", &b);
}

static void gen_finish(struct gen *g)
{
    g->finished = true;
    g->r->outcome = g->c[0].ending.finish == FINISH_LENGTH ? OUT_LENGTH : OUT_STOP;
    log_end(g);
    if (!g->q.stream) {
        answer(g);
        return;
    }
    http_reply_stream(g->r); /* nothing to do when it is open */
    struct buf *b = sse_buf(g->r->sse);
    if (g->q.include_usage) {
        struct usage u = usage_of(g);
        chunk_usage(b, &g->render, &u);
    }
    buf_str(b, "data: [DONE]\n\n");
    sse_end(g->r->sse);
}

/* Histograms of one sequence, aborted ones too. */
static void observe_end(const struct choice *c, const struct gen_evt *e)
{
    const struct gen_stats *s = &e->stats;
    metric_observe(M_REQ_PROMPT, s->n_prompt);
    metric_observe(M_REQ_GENERATION, s->n_output);
    if (!s->start_us)
        return;
    metric_observe(M_QUEUE_TIME, (double)(s->start_us - s->arrival_us) * 1e-6);
    if (!s->first_us)
        return;
    metric_observe(M_PREFILL_TIME, (double)(s->first_us - s->start_us) * 1e-6);
    metric_observe(M_DECODE_TIME, (double)(s->last_us - s->first_us) * 1e-6);
    if (s->n_output > 1)
        metric_observe(M_TPOT, (double)(s->last_us - s->first_us) * 1e-6 / (s->n_output - 1));
    metric_observe(M_E2E, (double)(c->g->srv->tick_now_us - c->g->r->start_us) * 1e-6);
}

static void end_error(struct choice *c, const struct gen_evt *e)
{
    struct api_err err;
    if (e->finish == FINISH_ERROR) {
        LOG(LOG_ERROR, "api", "%s: %s", c->g->r->rid, e->err.text);
        api_fail(&err, 500, "internal_error", NULL, "The engine failed: %s", e->err.text);
        gen_fail(c->g, &err, OUT_ERROR);
    } else {
        api_fail(&err, 503, "shutting_down", NULL, "The request was cut off: the server stops");
        err.retry_after = 5;
        gen_fail(c->g, &err, OUT_ABORT_SHUTDOWN);
    }
}

/* The one final event of a sequence. */
static void take_done(struct choice *c, const struct gen_evt *e)
{
    struct gen *g = c->g;
    observe_end(c, e);
    c->done = true;
    c->ending = (struct ending){.finish = e->finish, .stop_id = -1};
    if (e->finish == FINISH_STOP && e->stop_string >= 0 && (size_t)e->stop_string < g->q.n_stop)
        c->ending.stop_string = g->q.stop[e->stop_string];
    else if (e->finish == FINISH_STOP && !e->stop_is_eos)
        c->ending.stop_id = e->stop_id;
    c->n_cached = e->stats.n_cached;
    c->n_verify = e->stats.n_verify;
    c->n_draft = e->stats.n_draft;
    c->n_accepted = e->stats.n_accepted;
    c->seed = e->stats.seed;
    g->n_done++;
    if (g->finished)
        return;
    if (e->finish == FINISH_ERROR || e->finish == FINISH_CANCELED) {
        end_error(c, e);
        return;
    }
    take_tokens(c, e);
    if (g->n_done == g->n)
        gen_finish(g);
}

void gens_event(struct gen_table *t, const struct gen_evt *e)
{
    struct choice *c = gens_find(t, e->id);
    if (!c)
        return;
    struct gen *g = c->g;
    if (e->kind == EVT_STARTED) {
        c->started = true;
        if (g->q.stream && !g->finished)
            http_reply_stream(g->r);
    } else if (e->kind == EVT_DONE) {
        take_done(c, e);
        gens_remove(t, c);
    } else if (!g->finished) {
        take_tokens(c, e);
    }
    if (g->q.stream && !g->finished)
        gens_mark(t, g);
    if (e->kind == EVT_DONE)
        hreq_unref(g->r); /* may free g */
}

/* ---- submission ---- */

static struct gen_req *make_req(const struct gen *g, const struct choice *c, int i)
{
    const struct api_req *q = &g->q;
    struct gen_req *r = gen_req_new();
    r->id = c->id;
    r->n_prompt = q->prompt[c->prompt].n_ids;
    r->prompt = mem_dup(q->prompt[c->prompt].ids, r->n_prompt * sizeof *r->prompt);
    r->p = q->p;
    r->p.seed += (uint64_t)(q->p.has_seed ? i : 0);
    r->arrival_us = g->r->start_us;
    if (q->n_stop) {
        r->stop = MEM_ARRAY(char *, q->n_stop);
        for (; r->n_stop < q->n_stop; r->n_stop++)
            r->stop[r->n_stop] = mem_strdup(q->stop[r->n_stop]);
    }
    return r;
}

static void echo_text(struct gen *g, struct choice *c)
{
    const struct api_prompt *p = &g->q.prompt[c->prompt];
    if (p->text)
        buf_push(&c->text, p->text, p->n_text);
    else
        engine_decode(g->srv->engine, p->ids, p->n_ids, g->q.p.skip_special, &c->text);
}

static void make_choices(struct gen *g)
{
    g->n = g->q.n_prompt * (size_t)g->q.n;
    g->c = MEM_ARRAY(struct choice, g->n);
    for (size_t i = 0; i < g->n; i++) {
        struct choice *c = &g->c[i];
        c->g = g;
        c->index = (int)i;
        c->prompt = i / (size_t)g->q.n;
        buf_init(&c->text, ANSWER_MAX);
        gens_add(g->srv->gens, c);
        if (g->q.echo)
            echo_text(g, c);
    }
}

static void submit_failed(struct gen *g, int code, const struct err *why)
{
    struct api_err e;
    bool chat = g->q.kind == API_CHAT;
    if (code == E_BUSY) {
        api_fail(&e, 429, "queue_full", NULL, "The queue is full: %s", why->text);
        e.retry_after = 1;
    } else if (code == E_CANCELED) {
        api_fail(&e, 503, "shutting_down", NULL, "The server is shutting down");
        e.retry_after = 5;
    } else {
        api_fail(&e, code == E_INVAL || code == E_RANGE || code == E_UNSUPPORTED ? 400 : 500,
                 code == E_RANGE ? "context_length_exceeded" : NULL, chat ? "messages" : "prompt",
                 "%s", why->text);
    }
    http_reply_err(g->r, &e);
    g->finished = true;
}

static void gen_submit(struct gen *g)
{
    struct server *s = g->srv;
    struct api_err e;
    if (server_unready(s, &e) || api_fit(&g->q, &s->env, &e) < 0) {
        http_reply_err(g->r, &e);
        g->finished = true;
        return;
    }
    if (g->q.rid)
        snprintf(g->r->rid, sizeof g->r->rid, "%s", g->q.rid);
    g->render.model = g->q.model;
    g->render.usage_null = g->q.include_usage && !g->q.continuous_usage;
    g->render.tokens_as_ids = g->q.tokens_as_ids;
    render_init(&g->render, g->q.stream);
    make_choices(g);
    struct gen_req **list = MEM_ARRAY(struct gen_req *, g->n);
    for (size_t i = 0; i < g->n; i++)
        list[i] = make_req(g, &g->c[i], (int)(i % (size_t)g->q.n));
    struct err why = {0};
    int r = engine_submit(s->engine, list, g->n, &why);
    for (size_t i = 0; i < g->n; i++) {
        if (r < 0) {
            gen_req_free(list[i]);
            gens_remove(s->gens, &g->c[i]);
        } else {
            hreq_ref(g->r); /* until its final event */
        }
    }
    mem_free(list);
    if (r < 0) {
        submit_failed(g, r, &why);
        return;
    }
    g->submit_us = clock_us();
    metric_observe(M_REQ_N, g->q.n);
    metric_observe(M_REQ_MAX_TOKENS, g->q.p.max_tokens);
    http_watch(g->r);
    if (g->q.stream)
        g->r->sse = sse_new(g->r, (size_t)s->conf->stream_buffer, gen_pause);
}

/* ---- parsing and encoding, here or on the pool ---- */

static void job_parse(void *ud)
{
    struct gen *g = ud;
    g->failed =
        api_parse(&g->q, g->q.kind, g->r->body.p, g->r->body.len, &g->srv->env, &g->err) < 0;
}

static void job_encode(void *ud)
{
    struct gen *g = ud;
    g->failed = api_encode(&g->q, g->srv->engine, g->srv->tmpl, &g->srv->env, &g->err) < 0;
}

static void job_both(void *ud)
{
    struct gen *g = ud;
    job_parse(g);
    if (!g->failed)
        job_encode(g);
}

static void job_done(void *ud)
{
    struct gen *g = ud;
    struct hreq *r = g->r;
    if (r->gone) {
        g->finished = true;
    } else if (g->failed) {
        g->finished = true;
        http_reply_err(r, &g->err);
    } else {
        if (g->q.n_unknown)
            metric_add(M_UNKNOWN_FIELDS, g->q.n_unknown);
        gen_submit(g);
    }
    hreq_unref(r);
}

static void on_pool(struct gen *g, void (*fn)(void *))
{
    hreq_ref(g->r);
    server_work(g->srv, fn, job_done, g);
}

static size_t text_bytes(const struct api_req *q)
{
    size_t n = 0;
    for (size_t i = 0; i < q->n_prompt; i++)
        n += q->prompt[i].n_text;
    return n;
}

static void gen_start(struct hreq *r, enum api_kind kind)
{
    struct server *s = r->srv;
    struct gen *g = MEM_NEW(struct gen);
    g->r = r;
    g->srv = s;
    g->q.kind = kind;
    r->ud = g;
    r->on_gone = gen_gone;
    r->on_tick = gen_tick;
    r->on_free = gen_free;
    memcpy(g->id, kind == API_CHAT ? "chatcmpl-" : "cmpl-", kind == API_CHAT ? 9 : 5);
    rng_os_alnum(g->id + strlen(g->id), 24);
    g->render = (struct render){.chat = kind == API_CHAT,
                                .token_bytes = engine_token_bytes,
                                .engine = s->engine,
                                .id = g->id,
                                .fingerprint = s->fingerprint,
                                .created = clock_unix()};
    if (r->body.len > INLINE_BODY) {
        on_pool(g, job_both);
        return;
    }
    job_parse(g);
    if (g->failed) {
        g->finished = true;
        http_reply_err(r, &g->err);
        return;
    }
    if (kind == API_CHAT || text_bytes(&g->q) > INLINE_TEXT) {
        on_pool(g, job_encode);
        return;
    }
    job_encode(g);
    hreq_ref(r);
    job_done(g);
}

void gen_completions(struct hreq *r)
{
    gen_start(r, API_COMPLETIONS);
}

void gen_chat(struct hreq *r)
{
    gen_start(r, API_CHAT);
}

/* ---- callbacks of the request ---- */

void gen_pause(struct hreq *r, bool on)
{
    struct gen *g = r->ud;
    for (size_t i = 0; i < g->n; i++)
        if (g->c[i].live)
            engine_pause(g->srv->engine, g->c[i].id, on);
}

void gen_gone(struct hreq *r)
{
    struct gen *g = r->ud;
    if (g->finished && g->n_done == g->n)
        return;
    if (r->outcome == OUT_ABORT_CLIENT) {
        bool started = false, decoding = false;
        for (size_t i = 0; i < g->n; i++) {
            started |= g->c[i].started;
            decoding |= g->c[i].n_out > 0;
        }
        metric_add2(M_DISCONNECTS, decoding ? 2 : started ? 1 : 0, 0, 1);
        LOG(LOG_INFO, "api", "%s: the client left", r->rid);
    }
    g->finished = true;
    cancel_live(g);
}

void gen_tick(struct hreq *r, int64_t now)
{
    struct gen *g = r->ud;
    const struct config *c = g->srv->conf;
    if (r->gone || !g->submit_us)
        return;
    if (r->sse && sse_is_open(r->sse)) {
        int64_t ping = g->q.ping_s == -2 ? c->ping_interval : g->q.ping_s;
        if (sse_tick(r->sse, now, ping * 1000000, c->slow_client_timeout * 1000000)) {
            LOG(LOG_INFO, "api", "%s: the client does not read, given up", r->rid);
            r->outcome = OUT_ABORT_TIMEOUT;
            http_gone(r);
            return;
        }
    }
    if (g->finished)
        return;
    bool waiting = true;
    for (size_t i = 0; i < g->n; i++)
        waiting &= !g->c[i].started;
    if (waiting && c->queue_timeout && now - g->submit_us > c->queue_timeout * 1000000) {
        struct api_err e;
        api_fail(&e, 504, "queue_timeout", NULL, "The request waited longer than %lld seconds",
                 (long long)c->queue_timeout);
        gen_fail(g, &e, OUT_ABORT_TIMEOUT);
    } else if (r->sse && !sse_is_open(r->sse) && now - g->submit_us > HEAD_DELAY_US) {
        http_reply_stream(r);
    }
}

void gen_free(struct hreq *r)
{
    struct gen *g = r->ud;
    gens_unmark(g->srv->gens, g);
    for (size_t i = 0; i < g->n; i++) {
        buf_done(&g->c[i].text);
        buf_done(&g->c[i].ids);
        lp_done(&g->c[i].lp);
    }
    mem_free(g->c);
    render_done(&g->render);
    api_req_done(&g->q);
    mem_free(g);
}

struct abort {
    const struct api_err *err;
    int outcome;
};

static void abort_one(struct hreq *r, void *ud)
{
    const struct abort *a = ud;
    if (r->on_free == gen_free && ((struct gen *)r->ud)->submit_us)
        gen_fail(r->ud, a->err, a->outcome);
}

void gens_abort_all(struct server *s, const struct api_err *e, int outcome)
{
    struct abort a = {e, outcome};
    http_each(s->http, abort_one, &a);
}
