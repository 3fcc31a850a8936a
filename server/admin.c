/* Small endpoints: models, health, version, metrics. Loop thread; none of them waits for the
 * engine, they read atomics and what was fixed at start. */
#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/metrics.h"
#include "engine/engine.h"
#include "server/jsonw.h"
#include "server/routes.h"
#include "server/server.h"

static void put_model(struct buf *b, const struct server *s, const char *name)
{
    buf_str(b, "{\"id\":");
    jw_str(b, name, strlen(name));
    buf_fmt(b, ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"specd\",\"root\":",
            (long long)s->created);
    jw_str(b, s->names[0], strlen(s->names[0]));
    buf_fmt(b, ",\"parent\":null,\"max_model_len\":%d,\"permission\":[]}", s->env.ctx);
}

void admin_models(struct hreq *r)
{
    struct buf b;
    buf_init(&b, 0);
    buf_str(&b, "{\"object\":\"list\",\"data\":[");
    for (size_t i = 0; i < r->srv->n_names; i++) {
        if (i)
            buf_char(&b, ',');
        put_model(&b, r->srv, r->srv->names[i]);
    }
    buf_str(&b, "]}");
    http_reply(r, 200, "application/json", &b);
}

void admin_model(struct hreq *r)
{
    size_t len = strlen(r->tail);
    if (len && r->tail[len - 1] == '/')
        r->tail[len - 1] = 0;
    for (size_t i = 0; i < r->srv->n_names; i++) {
        if (strcmp(r->srv->names[i], r->tail))
            continue;
        struct buf b;
        buf_init(&b, 0);
        put_model(&b, r->srv, r->srv->names[i]);
        http_reply(r, 200, "application/json", &b);
        return;
    }
    struct api_err e;
    api_fail(&e, 404, "model_not_found", "model", "The model '%.200s' does not exist", r->tail);
    http_reply_err(r, &e);
}

static bool stalled(const struct server *s)
{
    struct engine *g = server_engine(s);
    return g && !engine_healthy(g, s->conf->stall_timeout * 1000000);
}

static void put_health(struct hreq *r, const struct api_err *e)
{
    struct buf b;
    if (e) {
        http_reply_err(r, e);
        return;
    }
    buf_init(&b, 0);
    buf_str(&b, "{\"status\":\"ok\"}");
    http_reply(r, 200, "application/json", &b);
}

static void stall_err(const struct server *s, struct api_err *e)
{
    api_fail(e, 503, "engine_unhealthy", NULL, "No step has finished for %lld seconds",
             (long long)s->conf->stall_timeout);
    e->retry_after = 30;
}

void admin_health(struct hreq *r)
{
    struct api_err e;
    if (server_unready(r->srv, &e)) {
        put_health(r, &e);
        return;
    }
    if (stalled(r->srv)) {
        stall_err(r->srv, &e);
        put_health(r, &e);
        return;
    }
    put_health(r, NULL);
}

void admin_live(struct hreq *r)
{
    struct api_err e;
    if (stalled(r->srv))
        stall_err(r->srv, &e);
    put_health(r, stalled(r->srv) ? &e : NULL);
}

void admin_version(struct hreq *r)
{
    struct buf b;
    buf_init(&b, 0);
    buf_str(&b, "{\"version\":\"" SPECD_VERSION "\"}");
    http_reply(r, 200, "application/json", &b);
}

/* ---- metrics ---- */

static void set_process(const struct server *s)
{
    struct rlimit lim;
    long pages = 0;
    FILE *f = fopen("/proc/self/statm", "re");
    if (f) {
        if (fscanf(f, "%*d %ld", &pages) != 1)
            pages = 0;
        fclose(f);
    }
    int n = 0;
    DIR *d = opendir("/proc/self/fd");
    while (d && readdir(d))
        n++;
    if (d)
        closedir(d);
    metric_set(M_PROCESS_CPU, (double)clock_process_cpu_us() * 1e-6);
    metric_set(M_LOOP_CPU, (double)clock_thread_cpu_us() * 1e-6);
    metric_set(M_PROCESS_RSS, (double)pages * (double)sysconf(_SC_PAGESIZE));
    metric_set(M_PROCESS_FDS, n - 3); /* ".", ".." and the folder itself */
    if (!getrlimit(RLIMIT_NOFILE, &lim))
        metric_set(M_PROCESS_MAX_FDS, (double)lim.rlim_cur);
    metric_set(M_PROCESS_START, (double)s->start_unix);
    metric_set(M_READY, s->state == SRV_READY);
    metric_set(M_DRAINING, s->state >= SRV_DRAINING);
}

static void info_open(struct buf *b, const struct server *s, const char *name, const char *help)
{
    buf_fmt(b, "# HELP %s %s\n# TYPE %s gauge\n%s{%s", name, help, name, name, s->labels);
}

static void info_label(struct buf *b, const char *name, const char *value)
{
    buf_char(b, ',');
    metrics_label(b, name, value);
}

static void info_int(struct buf *b, const char *name, int64_t v)
{
    buf_fmt(b, ",%s=\"%lld\"", name, (long long)v);
}

static void put_infos(struct buf *b, const struct server *s)
{
    info_open(b, s, "specd_build_info", "Version of the program.");
    info_label(b, "version", SPECD_VERSION);
    info_label(b, "cuda", "no");
    buf_str(b, "} 1\n");
    if (!server_engine(s))
        return;
    const struct engine_info *i = engine_info(s->engine);
    info_open(b, s, "specd_config_info", "What runs.");
    info_label(b, "family", i->family);
    info_label(b, "device", i->device);
    info_int(b, "max_model_len", i->max_model_len);
    info_int(b, "max_num_seqs", i->max_num_seqs);
    info_label(b, "spec_method", i->spec_name);
    buf_str(b, "} 1\n");
    info_open(b, s, "specd_cache_config_info", "KV memory.");
    info_int(b, "block_size", i->page);
    info_int(b, "num_gpu_blocks", i->kv_pages);
    buf_str(b, "} 1\n");
}

void admin_metrics(struct hreq *r)
{
    struct buf b;
    buf_init(&b, 0);
    set_process(r->srv);
    metrics_print(&b, r->srv->labels);
    put_infos(&b, r->srv);
    http_reply(r, 200, "text/plain; version=0.0.4; charset=utf-8", &b);
}
