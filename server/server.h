/* The daemon's state, shared by the files of this folder; loop thread only, except where a field
 * says otherwise. */
#ifndef SPECD_SERVER_SERVER_H
#define SPECD_SERVER_SERVER_H

#include <uv.h>

#include "engine/base/thread.h"
#include "server/chat/chat.h"
#include "server/config.h"
#include "server/request.h"

enum srv_state {
    SRV_LOADING,
    SRV_READY,
    SRV_DRAINING, /* no new work; what runs may end */
    SRV_STOPPING, /* what still ran was cut off; last bytes leave */
};

struct gen_table;

struct server {
    const struct config *conf;
    uv_loop_t loop;
    enum srv_state state;
    struct http *http;
    struct engine *engine; /* set by the loader thread; read through server_engine */
    struct chat_template *tmpl;
    struct api_env env; /* immutable once SRV_READY; pool jobs read it */
    struct gen_table *gens;
    char **names; /* served model names */
    size_t n_names;
    char fingerprint[24];
    char *labels; /* common metric labels */
    int64_t start_us, start_unix, created;
    size_t n_work; /* pool jobs in flight */

    uv_async_t wake; /* sent by engine threads and the loader */
    uv_timer_t tick;
    uv_signal_t sigterm, sigint;
    struct thread loader;
    bool loaded; /* under load_lock: the loader is done */
    int load_ret;
    struct err load_err;
    pthread_mutex_t load_lock;
    int64_t tick_now_us; /* clock at the begin of this wake-up */
    int64_t tick_due_us, deadline_us, ping_us, watchdog_us, watchdog_at_us;
    int n_signals;
    bool failed;
};

/* The engine once it is loaded, else NULL. */
struct engine *server_engine(const struct server *s);

int serve_run(const struct config *c); /* exit code */

/* 0: inference requests are taken; else `e` is the 503 to send. */
int server_unready(const struct server *s, struct api_err *e);

/* Runs fn(ud) on the pool and done(ud) on the loop after it. */
void server_work(struct server *s, void (*fn)(void *ud), void (*done)(void *ud), void *ud);

#endif
