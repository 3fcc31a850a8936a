/* The daemon: start order, the loop's own handles, signals, drain and stop. Owns struct server.
 * Loop thread, except load_run (loader thread) and on_engine_wake (engine threads). */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "engine/base/check.h"
#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/metrics.h"
#include "engine/engine.h"
#include "server/gen.h"
#include "server/http.h"
#include "server/notify.h"
#include "server/routes.h"
#include "server/server.h"

#define TICK_MS 250
#define CUT_US 3000000 /* after the cut-off, for last bytes and final events */

int server_unready(const struct server *s, struct api_err *e)
{
    switch (s->state) {
    case SRV_READY:
        return 0;
    case SRV_LOADING:
        api_fail(e, 503, "model_loading", NULL, "The model is loading");
        break;
    default:
        api_fail(e, 503, "shutting_down", NULL, "The server is shutting down");
        e->close = true;
        break;
    }
    e->retry_after = 5;
    return 1;
}

struct engine *server_engine(const struct server *s)
{
    return !s->loader.started && s->load_ret >= 0 ? s->engine : NULL;
}

/* ---- pool ---- */

struct pool_job {
    uv_work_t w;
    struct server *s;
    void (*fn)(void *ud);
    void (*done)(void *ud);
    void *ud;
};

static void pool_run(uv_work_t *w)
{
    struct pool_job *j = w->data;
    j->fn(j->ud);
}

static void pool_done(uv_work_t *w, int status)
{
    (void)status; /* never cancelled */
    struct pool_job *j = w->data;
    j->s->n_work--;
    j->done(j->ud);
    mem_free(j);
}

void server_work(struct server *s, void (*fn)(void *ud), void (*done)(void *ud), void *ud)
{
    struct pool_job *j = MEM_NEW(struct pool_job);
    *j = (struct pool_job){.s = s, .fn = fn, .done = done, .ud = ud};
    j->w.data = j;
    s->n_work++;
    CHECK(uv_queue_work(&s->loop, &j->w, pool_run, pool_done) == 0);
}

/* ---- loading ---- */

static void on_engine_wake(void *ud)
{
    struct server *s = ud;
    uv_async_send(&s->wake);
}

static int read_template(struct server *s, struct err *e)
{
    if (!engine_info(s->engine)->has_text)
        return FAIL(e, E_UNSUPPORTED, "%s has no tokenizer.json", s->conf->model);
    if (!s->conf->chat_template)
        return chat_template_load(&s->tmpl, s->conf->model, e);
    char *text;
    size_t n;
    TRY(file_read(&text, &n, s->conf->chat_template, 4 << 20, e));
    int r = chat_template_parse(&s->tmpl, text, n, e);
    mem_free(text);
    if (r < 0)
        return err_prefix(e, "%s", s->conf->chat_template);
    const struct engine_info *i = engine_info(s->engine);
    if (i->bos >= 0)
        chat_template_set_token(s->tmpl, "bos_token", engine_token_piece(s->engine, i->bos));
    if (i->n_eos)
        chat_template_set_token(s->tmpl, "eos_token", engine_token_piece(s->engine, i->eos[0]));
    return OK;
}

static void load_run(void *ud)
{
    struct server *s = ud;
    struct engine_conf ec;
    struct err e = {0};
    config_engine(s->conf, &ec);
    int r = engine_open(&s->engine, &ec, on_engine_wake, s, &e);
    if (r >= 0 && read_template(s, &e) < 0) {
        if (s->conf->chat_template) {
            r = e.code;
        } else { /* completions work without: chat says why it does not */
            LOG(LOG_WARN, "server", "no chat: %s", e.text);
            s->tmpl = NULL;
        }
    }
    mutex_lock(&s->load_lock);
    s->load_ret = r;
    s->load_err = e;
    s->loaded = true;
    mutex_unlock(&s->load_lock);
    uv_async_send(&s->wake);
}

static void make_env(struct server *s)
{
    const struct engine_info *i = engine_info(s->engine);
    s->env = (struct api_env){
        .names = s->names,
        .n_names = s->n_names,
        .vocab = i->vocab,
        .ctx = i->max_model_len,
        .max_seqs = i->max_num_seqs * 4,
        .max_n = (int)s->conf->max_n,
        .token_bytes_max = i->token_bytes_max,
        .kv_tokens = i->kv_tokens,
        .has_template = s->tmpl != NULL,
        .spec_name = i->spec_name,
        .spec_ngram = i->spec_ngram,
        .spec_model = i->spec_model,
    };
    engine_default_params(s->engine, &s->env.defaults);
    s->env.defaults.skip_special = true;
    uint64_t h = 1469598103934665603u; /* FNV-1a over what decides the text */
    const char *parts[] = {SPECD_VERSION, i->arch, i->device, s->names[0]};
    for (size_t k = 0; k < ARRAY_LEN(parts); k++)
        for (const char *p = parts[k] ? parts[k] : ""; *p; p++)
            h = (h ^ (unsigned char)*p) * 1099511628211u;
    snprintf(s->fingerprint, sizeof s->fingerprint, "b1-%010" PRIx64, h & 0xffffffffffu);
}

static void banner(const struct server *s)
{
    const struct engine_info *i = engine_info(s->engine);
    const struct gen_params *d = &s->env.defaults;
    LOG(LOG_INFO, "server",
        "specd %s: %s (%s, %.1f M parameters), device %s, context %d, %d sequences, %lld KV tokens "
        "in pages of %d, loaded in %.2f s",
        SPECD_VERSION, s->names[0], i->family ? i->family : "?", (double)i->n_param * 1e-6,
        i->device ? i->device : "?", i->max_model_len, i->max_num_seqs, (long long)i->kv_tokens,
        i->page, (double)(clock_us() - s->start_us) * 1e-6);
    LOG(LOG_INFO, "server",
        "sampling defaults: temperature %g, top_p %g, top_k %d, min_p %g, repetition penalty %g",
        (double)d->temperature, (double)d->top_p, d->top_k, (double)d->min_p,
        (double)d->repetition);
}

/* The loader is done: ready, or the end. */
static void after_load(struct server *s)
{
    thread_join(&s->loader);
    if (s->load_ret < 0) {
        LOG(LOG_ERROR, "server", "%s", s->load_err.text);
        notify_send("STATUS=failed: %.200s\nERRNO=5", s->load_err.text);
        s->failed = true;
        s->state = SRV_STOPPING;
        s->deadline_us = clock_us();
        return;
    }
    make_env(s);
    banner(s);
    metric_set(M_MODEL_LOAD, (double)(clock_us() - s->start_us) * 1e-6);
    if (s->state != SRV_LOADING) { /* a signal came first */
        engine_drain(s->engine);
        return;
    }
    s->state = SRV_READY;
    notify_send("READY=1\nSTATUS=serving %s on port %d", s->names[0], http_port(s->http));
    LOG(LOG_INFO, "server", "ready on port %d", http_port(s->http));
}

/* ---- drain ---- */

static void stop_if_idle(struct server *s);

static void cut_off(struct server *s, const char *why)
{
    struct api_err e;
    LOG(LOG_INFO, "server", "cutting off %zu requests: %s", gens_live(s->gens), why);
    s->state = SRV_STOPPING;
    s->deadline_us = clock_us() + CUT_US;
    api_fail(&e, 503, "shutting_down", NULL, "The request was cut off: the server stops");
    e.retry_after = 5;
    gens_abort_all(s, &e, OUT_ABORT_SHUTDOWN);
    if (server_engine(s))
        engine_cancel_all(s->engine);
}

static void on_signal(uv_signal_t *h, int signum)
{
    struct server *s = h->data;
    s->n_signals++;
    LOG(LOG_INFO, "server", "signal %d: %s", signum,
        s->n_signals > 1 ? "stopping now" : "draining");
    if (s->state == SRV_LOADING || s->state == SRV_READY) {
        s->state = SRV_DRAINING;
        s->deadline_us = clock_us() + s->conf->drain_timeout * 1000000;
        notify_send("STOPPING=1\nSTATUS=draining %zu sequences", gens_live(s->gens));
        if (server_engine(s))
            engine_drain(s->engine);
    } else if (s->state == SRV_DRAINING) {
        cut_off(s, "second signal");
    } else {
        s->deadline_us = clock_us();
    }
    stop_if_idle(s);
}

/* Ends the loop once nothing is under way, or once time is up. */
static void stop_if_idle(struct server *s)
{
    if (s->state < SRV_DRAINING)
        return;
    int64_t now = clock_us();
    bool idle = !gens_live(s->gens) && !s->n_work && !http_n_busy(s->http);
    if (s->state == SRV_DRAINING && !idle && now >= s->deadline_us)
        cut_off(s, "the drain timeout is over");
    if (idle || (s->state == SRV_STOPPING && now >= s->deadline_us))
        uv_stop(&s->loop);
}

/* ---- the loop's handles ---- */

static void on_wake(uv_async_t *a)
{
    struct server *s = a->data;
    s->tick_now_us = clock_us();
    if (s->loader.started) {
        mutex_lock(&s->load_lock);
        bool done = s->loaded;
        mutex_unlock(&s->load_lock);
        if (!done)
            return;
        after_load(s);
    }
    if (!server_engine(s)) {
        stop_if_idle(s);
        return;
    }
    /* Once: what comes meanwhile wakes the loop again, after sockets had their turn. */
    for (struct gen_evt *e = engine_poll(s->engine), *next; e; e = next) {
        next = e->next;
        gens_event(s->gens, e);
        gen_evt_free(e);
    }
    gens_flush(s->gens);
    stop_if_idle(s);
}

static void feed_manager(struct server *s, int64_t now)
{
    if (s->state == SRV_LOADING && now - s->ping_us > 5000000) {
        s->ping_us = now;
        notify_send("STATUS=loading %s\nEXTEND_TIMEOUT_USEC=60000000", s->names[0]);
    }
    if (!s->watchdog_us || now - s->watchdog_at_us < s->watchdog_us / 2)
        return;
    s->watchdog_at_us = now;
    if (!server_engine(s) || engine_healthy(s->engine, s->conf->stall_timeout * 1000000))
        notify_send("WATCHDOG=1");
}

static void on_tick(uv_timer_t *t)
{
    struct server *s = t->data;
    int64_t now = clock_us();
    s->tick_now_us = now;
    if (s->tick_due_us)
        metric_observe(M_LOOP_LAG,
                       now > s->tick_due_us ? (double)(now - s->tick_due_us) * 1e-6 : 0);
    s->tick_due_us = now + TICK_MS * 1000;
    http_tick(s->http, now);
    feed_manager(s, now);
    stop_if_idle(s);
}

/* ---- start and stop ---- */

static void raise_file_limit(void)
{
    struct rlimit lim;
    if (getrlimit(RLIMIT_NOFILE, &lim) || lim.rlim_cur == lim.rlim_max)
        return;
    lim.rlim_cur = lim.rlim_max;
    setrlimit(RLIMIT_NOFILE, &lim);
}

static void make_names(struct server *s)
{
    const struct str_list *l = &s->conf->served_name;
    s->n_names = l->n ? l->n : 1;
    s->names = MEM_ARRAY(char *, s->n_names);
    for (size_t i = 0; i < l->n; i++)
        s->names[i] = mem_strdup(l->v[i]);
    if (!l->n) {
        size_t n;
        const char *base = path_base(s->conf->model, &n);
        s->names[0] = mem_strndup(base, n);
    }
    struct buf b = {0};
    metrics_label(&b, "model_name", s->names[0]);
    s->labels = buf_take(&b);
}

static void init_handles(struct server *s)
{
    CHECK(uv_loop_init(&s->loop) == 0);
    CHECK(uv_async_init(&s->loop, &s->wake, on_wake) == 0);
    CHECK(uv_timer_init(&s->loop, &s->tick) == 0);
    CHECK(uv_signal_init(&s->loop, &s->sigterm) == 0);
    CHECK(uv_signal_init(&s->loop, &s->sigint) == 0);
    s->wake.data = s->tick.data = s->sigterm.data = s->sigint.data = s;
    uv_timer_start(&s->tick, on_tick, TICK_MS, TICK_MS);
    uv_signal_start(&s->sigterm, on_signal, SIGTERM);
    uv_signal_start(&s->sigint, on_signal, SIGINT);
}

static void close_handles(struct server *s)
{
    uv_close((uv_handle_t *)&s->wake, NULL);
    uv_close((uv_handle_t *)&s->tick, NULL);
    uv_close((uv_handle_t *)&s->sigterm, NULL);
    uv_close((uv_handle_t *)&s->sigint, NULL);
    uv_run(&s->loop, UV_RUN_DEFAULT);
    CHECK(uv_loop_close(&s->loop) == 0);
}

/* Order: clients, then the HTTP library, then pool jobs (they use the vocabulary), then the engine
 * (it wakes the loop), then the loop. */
static void stop_all(struct server *s)
{
    http_quiesce(s->http);
    http_gone_all(s->http);
    http_close(s->http);
    while (s->n_work)
        uv_run(&s->loop, UV_RUN_ONCE);
    if (server_engine(s))
        engine_close(s->engine);
    gens_free(s->gens);
    close_handles(s);
    http_free(s->http);
    chat_template_free(s->tmpl);
    for (size_t i = 0; i < s->n_names; i++)
        mem_free(s->names[i]);
    mem_free(s->names);
    mem_free(s->labels);
    mutex_done(&s->load_lock);
}

static void warn_open(const struct config *c)
{
    if (!c->api_key.n && strncmp(c->host, "127.", 4) && strcmp(c->host, "localhost") &&
        strcmp(c->host, "::1"))
        LOG(LOG_WARN, "server",
            "listening on %s without --api-key: anyone who reaches it may use it", c->host);
}

int serve_run(const struct config *c)
{
    struct config_env env;
    enum log_level level = LOG_INFO;
    struct err e = {0};
    config_env(&env);
    log_level_parse(c->log_level, &level);
    log_init(level, env.journal);
    notify_init(env.notify_socket);
    signal(SIGPIPE, SIG_IGN);
    json_object_seed(0);
    raise_file_limit();
    struct server *s = MEM_NEW(struct server);
    s->conf = c;
    s->start_us = clock_us();
    s->start_unix = s->created = clock_unix();
    s->watchdog_us = env.watchdog_us;
    mutex_init(&s->load_lock);
    make_names(s);
    s->gens = gens_new();
    init_handles(s);
    if (http_open(&s->http, s, &e) < 0) {
        LOG(LOG_ERROR, "server", "%s", e.text);
        close_handles(s);
        mem_free(s);
        return 1;
    }
    warn_open(c);
    LOG(LOG_INFO, "server", "listening on http://%s:%d, loading %s", c->host, http_port(s->http),
        c->model);
    thread_start(&s->loader, "loader", load_run, s);
    uv_run(&s->loop, UV_RUN_DEFAULT);
    if (s->loader.started) { /* a signal during the load: there is no one to wait for */
        LOG(LOG_INFO, "server", "stopped while loading");
        return 0;
    }
    stop_all(s);
    int code = s->failed ? 1 : 0;
    mem_free(s);
    LOG(LOG_INFO, "server", "stopped");
    return code;
}
