/* The library's daemon on the loop and the life of a request's connection; loop thread only. Knows
 * no API: it checks heads, collects bodies, calls handlers and queues what they answer. The rules
 * about suspending and driving are in README.md. */
#include "server/http.h"

#include <errno.h>
#include <fcntl.h>
#include <microhttpd.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engine/base/check.h"
#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/metrics.h"
#include "engine/base/rng.h"
#include "server/routes.h"
#include "server/server.h"
#include "server/sse.h"

#define BODY_SMALL (1 << 20)   /* a refused body up to this keeps the connection alive */
#define DROP_EXTRA (16 << 20)  /* refused bodies are read this far over the limit … */
#define DROP_US 5000000        /* … and this long */
#define POOL_BYTES (64 * 1024) /* of a connection: bounds heads */
#define SPARE_CONNECTIONS 16   /* above max-connections, for probes */

/* Accepted sockets that have not sent a head yet: the library's own timeout is the long one. */
struct conn {
    struct conn *next, *prev;
    int fd;
    int64_t since_us;
    bool fresh; /* in the list */
};

struct http {
    struct server *srv;
    struct MHD_Daemon *mhd;
    uv_poll_t poll;
    uv_timer_t timer;
    uv_prepare_t prepare;
    bool in_mhd, again, need_drive, closing;
    int listen_fd, port, n_handles;
    struct hreq *first;
    struct conn *fresh;
    size_t n_requests;
};

static char bad_uri_mark; /* its address stands for a URI with %00 */

/* ---- driving the library ---- */

static void on_timer(uv_timer_t *t)
{
    http_drive(t->data);
}

/* MHD_run must not be entered from its own callbacks, and has to follow every resume. */
void http_drive(struct http *h)
{
    if (h->in_mhd) {
        h->again = true;
        return;
    }
    if (!h->mhd)
        return;
    h->in_mhd = true;
    do {
        h->again = false;
        h->need_drive = false;
        MHD_run(h->mhd);
    } while (h->again);
    h->in_mhd = false;
    MHD_UNSIGNED_LONG_LONG ms;
    if (h->closing)
        return;
    if (MHD_get_timeout(h->mhd, &ms) == MHD_YES)
        uv_timer_start(&h->timer, on_timer, ms, 0);
    else
        uv_timer_stop(&h->timer);
}

static void on_epoll(uv_poll_t *p, int status, int events)
{
    (void)status;
    (void)events;
    http_drive(p->data);
}

/* Runs before the loop sleeps: no resume of this turn is forgotten. */
static void on_prepare(uv_prepare_t *p)
{
    struct http *h = p->data;
    if (h->need_drive)
        http_drive(h);
}

void http_resume(struct hreq *r)
{
    if (!r->suspended || !r->conn)
        return;
    r->suspended = false;
    r->http->need_drive = true;
    if (r->http->in_mhd)
        r->http->again = true;
    MHD_resume_connection(r->conn);
}

/* ---- requests ---- */

void hreq_ref(struct hreq *r)
{
    r->refs++;
}

void hreq_unref(struct hreq *r)
{
    CHECK(r->refs > 0);
    if (--r->refs)
        return;
    if (r->on_free)
        r->on_free(r);
    if (r->prev)
        r->prev->next = r->next;
    else
        r->http->first = r->next;
    if (r->next)
        r->next->prev = r->prev;
    r->http->n_requests--;
    sse_free(r->sse);
    buf_done(&r->body);
    mem_free(r->reply);
    mem_free(r->tail);
    mem_free(r);
}

static struct hreq *hreq_new(struct http *h, struct MHD_Connection *c)
{
    struct hreq *r = MEM_NEW(struct hreq);
    r->srv = h->srv;
    r->http = h;
    r->conn = c;
    r->refs = 1; /* the library's, dropped in on_completed */
    r->outcome = -1;
    r->handler = HL_OTHER;
    r->dup_fd = -1;
    r->start_us = r->progress_us = clock_us();
    r->fd = MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
    r->next = h->first;
    if (h->first)
        h->first->prev = r;
    h->first = r;
    h->n_requests++;
    return r;
}

void http_gone(struct hreq *r)
{
    if (r->gone)
        return;
    r->gone = true;
    if (r->outcome < 0)
        r->outcome = OUT_ABORT_CLIENT;
    if (r->on_gone)
        r->on_gone(r);
    if (r->state != HR_SENT)
        r->state = HR_DEAD;
    http_resume(r);
}

/* ---- noticing clients that leave ---- */

static void on_poll_closed(uv_handle_t *p)
{
    struct hreq *r = p->data;
    close(r->dup_fd);
    r->dup_fd = -1;
    hreq_unref(r);
}

static void on_poll(uv_poll_t *p, int status, int events)
{
    struct hreq *r = p->data;
    if (status < 0) {
        http_gone(r);
        return;
    }
    if (events & UV_DISCONNECT) {
        char b;
        ssize_t n = recv(r->dup_fd, &b, 1, MSG_PEEK | MSG_DONTWAIT);
        /* > 0: pipelined bytes of a peer that has shut its side, which counts as gone too */
        if (n >= 0 || (errno != EAGAIN && errno != EINTR)) {
            http_gone(r);
            return;
        }
    }
    if ((events & UV_WRITABLE) && r->sse)
        sse_writable(r->sse);
}

/* A duplicate: libuv wants one poll per descriptor number and the library's epoll has the other. */
void http_watch(struct hreq *r)
{
    if (r->watching || !r->conn)
        return;
    r->dup_fd = fcntl(r->fd, F_DUPFD_CLOEXEC, 0);
    if (r->dup_fd < 0 || uv_poll_init(&r->srv->loop, &r->poll, r->dup_fd) < 0) {
        LOG(LOG_WARN, "http", "%s: no descriptor left to watch the client", r->rid);
        if (r->dup_fd >= 0)
            close(r->dup_fd);
        r->dup_fd = -1;
        return;
    }
    r->poll.data = r;
    r->watching = true;
    hreq_ref(r);
    http_want_write(r, false);
}

void http_want_write(struct hreq *r, bool on)
{
    if (r->watching)
        uv_poll_start(&r->poll, UV_DISCONNECT | (on ? UV_WRITABLE : 0), on_poll);
}

/* ---- answers ---- */

void http_reply(struct hreq *r, int status, const char *ctype, struct buf *body)
{
    if (r->state == HR_DEAD || r->state == HR_SENT || r->state == HR_READY) {
        buf_done(body);
        return;
    }
    r->status = status;
    r->ctype = ctype;
    r->n_reply = body->len;
    r->reply = buf_take(body);
    r->state = HR_READY;
    http_resume(r);
}

void http_reply_err(struct hreq *r, const struct api_err *e)
{
    struct buf b;
    buf_init(&b, 0);
    api_err_json(&b, e);
    r->retry_after = e->retry_after;
    r->allow = e->allow;
    r->close |= e->close;
    LOG(LOG_DEBUG, "http", "%s: %d %s", r->rid, e->status, e->text);
    http_reply(r, e->status, "application/json", &b);
}

void http_reply_stream(struct hreq *r)
{
    CHECK(r->sse);
    if (r->state != HR_RUN && r->state != HR_BODY)
        return;
    r->state = HR_STREAM;
    r->status = 200;
    http_resume(r);
}

static void add_headers(struct hreq *r, struct MHD_Response *m)
{
    char num[32];
    MHD_add_response_header(m, "X-Request-Id", r->rid);
    if (r->ctype)
        MHD_add_response_header(m, "Content-Type", r->ctype);
    if (r->retry_after) {
        snprintf(num, sizeof num, "%d", r->retry_after);
        MHD_add_response_header(m, "Retry-After", num);
        snprintf(num, sizeof num, "%d000", r->retry_after);
        MHD_add_response_header(m, "retry-after-ms", num);
    }
    if (r->status == 401)
        MHD_add_response_header(m, "WWW-Authenticate", "Bearer");
    if (r->allow)
        MHD_add_response_header(m, "Allow", r->allow);
    if (r->close || r->srv->state >= SRV_DRAINING)
        MHD_add_response_header(m, "Connection", "close");
}

static enum MHD_Result queue_reply(struct hreq *r)
{
    struct MHD_Response *m =
        MHD_create_response_from_buffer_with_free_callback(r->n_reply, r->reply, mem_free);
    CHECK(m);
    r->reply = NULL; /* the response's */
    add_headers(r, m);
    r->state = HR_SENT;
    enum MHD_Result ok = MHD_queue_response(r->conn, (unsigned)r->status, m);
    MHD_destroy_response(m);
    return ok;
}

static enum MHD_Result queue_stream(struct hreq *r)
{
    struct MHD_Response *m =
        MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 16 * 1024, sse_reader, r, NULL);
    CHECK(m);
    r->ctype = "text/event-stream; charset=utf-8";
    add_headers(r, m);
    MHD_add_response_header(m, "Cache-Control", "no-cache");
    MHD_add_response_header(m, "X-Accel-Buffering", "no");
    r->state = HR_SENT;
    sse_queued(r->sse);
    enum MHD_Result ok = MHD_queue_response(r->conn, 200, m);
    MHD_destroy_response(m);
    return ok;
}

/* ---- the access handler: head, body pieces, whole request, resumed ---- */

static void choose_rid(struct hreq *r, const char *given)
{
    if (given && api_rid_ok(given)) {
        snprintf(r->rid, sizeof r->rid, "%s", given);
        return;
    }
    memcpy(r->rid, "req-", 4);
    rng_os_alnum(r->rid + 4, 24);
}

/* Route, method, key, body headers: in this order, the first that fails is the answer. */
static void check_head(struct hreq *r, const struct wire *w, const char *url)
{
    const struct config *c = r->srv->conf;
    const char *tail = NULL;
    r->route = route_find(wire_path(url), &tail);
    if (!r->route) {
        api_fail(&r->early, 404, NULL, NULL, "There is nothing at this path: '%.200s'", url);
        return;
    }
    r->handler = (int)r->route->label;
    if (tail)
        r->tail = mem_strdup(tail);
    bool fits = r->route->post ? r->method == HM_POST : r->method <= HM_HEAD;
    if (!fits && r->method != HM_OPTIONS) {
        api_fail(&r->early, 405, "method_not_allowed", NULL, "This path takes %s",
                 r->route->post ? "POST" : "GET");
        r->early.allow = route_allow(r->route);
    } else if (r->method != HM_OPTIONS && r->route->key && c->api_key.n &&
               !wire_key_ok(w, c->api_key.v, c->api_key.n)) {
        api_fail(&r->early, 401, "invalid_api_key", NULL, "%s",
                 w->authorization || w->api_key
                     ? "The API key is not valid"
                     : "An API key is needed: 'Authorization: Bearer …'");
    } else if (r->route->post) {
        wire_check_body(r, w, c->max_body_size);
    }
}

static struct hreq *begin(struct http *h, struct MHD_Connection *c, const char *url,
                          const char *method, const char *version, bool bad_uri, bool *now)
{
    struct hreq *r = hreq_new(h, c);
    const union MHD_ConnectionInfo *ci =
        MHD_get_connection_info(c, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    struct conn *k = ci ? ci->socket_context : NULL;
    if (k && k->fresh) {
        k->fresh = false;
        if (k->prev)
            k->prev->next = k->next;
        else
            h->fresh = k->next;
        if (k->next)
            k->next->prev = k->prev;
    }
    struct wire w;
    wire_read(&w, c);
    choose_rid(r, w.rid);
    r->method = wire_method(method);
    r->http10 = !strcmp(version, "HTTP/1.0");
    *now = wire_check(r, &w, version, bad_uri);
    if (!*now)
        check_head(r, &w, url);
    r->big = w.length > BODY_SMALL;
    /* a client that asks first has not sent the body; after our answer it will not */
    if (r->early.status && w.expect && !strcasecmp(w.expect, "100-continue")) {
        r->early.close = true;
        *now = true;
    }
    return r;
}

/* The body cannot be read to its end, so the library cannot answer: do it by hand. */
static void raw_reject(struct hreq *r, int shut)
{
    struct buf body, head;
    buf_init(&body, 0);
    buf_init(&head, 0);
    api_err_json(&body, &r->early);
    buf_fmt(&head,
            "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nX-Request-Id: %s\r\n"
            "Connection: close\r\nContent-Length: %zu\r\n\r\n%s",
            r->early.status, MHD_get_reason_phrase_for((unsigned)r->early.status), r->rid, body.len,
            buf_cstr(&body));
    ssize_t n = send(r->fd, head.p, head.len, MSG_DONTWAIT | MSG_NOSIGNAL);
    (void)n; /* it is being refused: a client that does not read has lost its reason */
    shutdown(r->fd, shut);
    r->raw_sent = true;
    r->status = r->early.status;
    r->drop_us = clock_us();
    buf_done(&body);
    buf_done(&head);
}

/* False: give the connection up. */
static bool take_body(struct hreq *r, const char *data, size_t n)
{
    int64_t max = r->srv->conf->max_body_size;
    r->progress_us = clock_us();
    if (!r->early.status && !(r->route && r->route->post))
        api_fail(&r->early, 400, NULL, NULL, "A request of this kind has no body");
    if (!r->early.status && (int64_t)(r->body.len + n) > max) {
        api_fail(&r->early, 413, "request_too_large", NULL,
                 "The request body has more than %lld bytes", (long long)max);
        buf_done(&r->body);
    }
    if (!r->early.status) {
        buf_push(&r->body, data, n);
        return true;
    }
    if (!r->n_dropped)
        r->drop_us = r->progress_us;
    r->n_dropped += (int64_t)n;
    r->big |= r->n_dropped > BODY_SMALL;
    bool over = r->n_dropped > max + DROP_EXTRA || r->progress_us - r->drop_us > DROP_US;
    if (!over)
        return true;
    if (r->raw_sent)
        return r->progress_us - r->drop_us <= DROP_US; /* lingers so that the answer is read */
    raw_reject(r, SHUT_WR);
    return true;
}

static void options_reply(struct hreq *r)
{
    struct buf b;
    buf_init(&b, 0);
    r->allow = route_allow(r->route);
    http_reply(r, 204, NULL, &b);
}

static void run_handler(struct hreq *r)
{
    struct api_err e;
    r->state = HR_RUN;
    if (r->early.status) {
        r->early.close |= r->big;
        http_reply_err(r, &r->early);
    } else if (r->method == HM_OPTIONS) {
        options_reply(r);
    } else if (r->route->ready && server_unready(r->srv, &e)) {
        http_reply_err(r, &e);
    } else {
        r->route->fn(r);
    }
}

static enum MHD_Result on_access(void *cls, struct MHD_Connection *c, const char *url,
                                 const char *method, const char *version, const char *data,
                                 size_t *n, void **slot)
{
    struct http *h = cls;
    struct hreq *r = *slot;
    if (!r || *slot == &bad_uri_mark) {
        bool now;
        *slot = r = begin(h, c, url, method, version, r != NULL, &now);
        if (!now)
            return MHD_YES;
        run_handler(r);
        return queue_reply(r);
    }
    if (*n) {
        bool go_on = take_body(r, data, *n);
        *n = 0;
        return go_on ? MHD_YES : MHD_NO;
    }
    if (r->raw_sent)
        return MHD_NO;
    if (r->state == HR_BODY)
        run_handler(r);
    switch (r->state) {
    case HR_READY:
        return queue_reply(r);
    case HR_STREAM:
        return queue_stream(r);
    case HR_RUN:
        if (!r->suspended) {
            r->suspended = true;
            MHD_suspend_connection(c);
        }
        return MHD_YES;
    default:
        return MHD_NO;
    }
}

static void on_completed(void *cls, struct MHD_Connection *c, void **slot,
                         enum MHD_RequestTerminationCode why)
{
    (void)cls;
    (void)c;
    struct hreq *r = *slot;
    *slot = NULL;
    if (!r || (void *)r == &bad_uri_mark)
        return;
    if (why != MHD_REQUEST_TERMINATED_COMPLETED_OK)
        http_gone(r);
    r->conn = NULL;
    r->suspended = false;
    bool left = r->gone && (r->state == HR_DEAD || !r->status);
    int status = left ? 499 : r->status;
    double s = (double)(clock_us() - r->start_us) * 1e-6;
    metric_add2(M_HTTP_REQUESTS, r->handler, route_code_label(status), 1);
    metric_observe2(M_HTTP_SECONDS, r->handler, 0, s);
    if (r->handler <= HL_CHAT) {
        int out = r->outcome;
        if (out < 0 || (out == OUT_ABORT_CLIENT && status >= 400 && status != 499))
            out = status == 429   ? OUT_OVERLOAD
                  : status == 503 ? OUT_UNREADY
                  : status >= 500 ? OUT_ERROR
                                  : OUT_INVALID;
        metric_add2(M_REQUESTS, r->handler, out, 1);
    }
    LOG(LOG_DEBUG, "http", "%s: %s -> %d, %.1f ms", r->rid, r->route ? r->route->path : "?", status,
        s * 1e3);
    if (r->watching) {
        r->watching = false;
        uv_poll_stop(&r->poll);
        uv_close((uv_handle_t *)&r->poll, on_poll_closed);
    }
    hreq_unref(r);
}

/* ---- connections ---- */

static void on_connection(void *cls, struct MHD_Connection *c, void **ctx,
                          enum MHD_ConnectionNotificationCode code)
{
    struct http *h = cls;
    if (code == MHD_CONNECTION_NOTIFY_CLOSED) {
        struct conn *k = *ctx;
        if (!k)
            return;
        if (k->fresh) {
            if (k->prev)
                k->prev->next = k->next;
            else
                h->fresh = k->next;
            if (k->next)
                k->next->prev = k->prev;
        }
        mem_free(k);
        *ctx = NULL;
        metric_add(M_HTTP_CONNECTIONS, -1);
        return;
    }
    struct conn *k = MEM_NEW(struct conn);
    k->fd = MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
    k->since_us = clock_us();
    k->fresh = true;
    k->next = h->fresh;
    if (h->fresh)
        h->fresh->prev = k;
    h->fresh = k;
    *ctx = k;
    metric_add(M_HTTP_CONNECTIONS, 1);
    static const int opts[][3] = {{SOL_SOCKET, SO_KEEPALIVE, 1},
                                  {IPPROTO_TCP, TCP_KEEPIDLE, 60},
                                  {IPPROTO_TCP, TCP_KEEPINTVL, 10},
                                  {IPPROTO_TCP, TCP_KEEPCNT, 6},
                                  {IPPROTO_TCP, TCP_USER_TIMEOUT, 60000}};
    for (size_t i = 0; i < ARRAY_LEN(opts); i++)
        setsockopt(k->fd, opts[i][0], opts[i][1], &opts[i][2], sizeof(int));
}

static void *on_uri(void *cls, const char *uri, struct MHD_Connection *c)
{
    (void)cls;
    (void)c;
    return strstr(uri, "%00") ? &bad_uri_mark : NULL;
}

static void on_log(void *cls, const char *fmt, va_list ap)
{
    (void)cls;
    char text[400];
    vsnprintf(text, sizeof text, fmt, ap);
    text[strcspn(text, "\n")] = 0;
    LOG(LOG_DEBUG, "mhd", "%s", text);
}

/* Data and the end in one go: the library reads the data and misses the end. Our own shutdown makes
 * a new event of it. */
static void check_end(struct hreq *r)
{
    char b;
    if (recv(r->fd, &b, 1, MSG_PEEK | MSG_DONTWAIT) == 0)
        shutdown(r->fd, SHUT_RDWR);
}

void http_tick(struct http *h, int64_t now)
{
    int64_t head_us = h->srv->conf->header_timeout * 1000000;
    int64_t body_us = h->srv->conf->body_timeout * 1000000;
    for (struct conn *k = h->fresh; k; k = k->next)
        if (now - k->since_us > head_us)
            shutdown(k->fd, SHUT_RDWR); /* the library sees the end and closes */
    struct hreq *next;
    for (struct hreq *r = h->first; r; r = next) {
        next = r->next;
        if (r->state == HR_BODY && r->conn && !r->raw_sent && now - r->progress_us > body_us) {
            api_fail(&r->early, 408, "request_timeout", NULL,
                     "No part of the request body came for %lld seconds",
                     (long long)h->srv->conf->body_timeout);
            raw_reject(r, SHUT_RDWR);
        } else if (r->state == HR_BODY && r->conn && now - r->progress_us > 500000) {
            check_end(r);
        } else if (r->on_tick) {
            r->on_tick(r, now);
        }
    }
}

/* ---- start and stop ---- */

/* A request needs two descriptors: its connection and the duplicate that is watched. */
static unsigned connection_limit(const struct config *c)
{
    struct rlimit lim;
    int64_t n = c->max_connections;
    if (!getrlimit(RLIMIT_NOFILE, &lim) && lim.rlim_cur != RLIM_INFINITY &&
        n > ((int64_t)lim.rlim_cur - 64) / 2) {
        n = ((int64_t)lim.rlim_cur - 64) / 2;
        LOG(LOG_WARN, "http", "%lld descriptors allow %lld connections, not %lld",
            (long long)lim.rlim_cur, (long long)n, (long long)c->max_connections);
    }
    return (unsigned)(n < 1 ? 1 : n) + SPARE_CONNECTIONS;
}

static int bind_one(const struct addrinfo *a, int *out)
{
    int on = 1, fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, a->ai_addr, a->ai_addrlen) < 0 || listen(fd, 1024) < 0) {
        int saved = errno;
        close(fd);
        errno = saved;
        return -1;
    }
    *out = fd;
    return 0;
}

static int listen_on(struct http *h, const struct config *c, struct err *e)
{
    char port[16];
    snprintf(port, sizeof port, "%d", (int)c->port);
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *list = NULL;
    int r = getaddrinfo(c->host, port, &hints, &list);
    if (r)
        return FAIL(e, E_INVAL, "--host %s: %s", c->host, gai_strerror(r));
    r = -1;
    for (struct addrinfo *a = list; a && r < 0; a = a->ai_next)
        r = bind_one(a, &h->listen_fd);
    freeaddrinfo(list);
    if (r < 0)
        return FAIL(e, E_IO, "cannot listen on %s port %s: %s", c->host, port, strerror(errno));
    struct sockaddr_storage sa;
    socklen_t len = sizeof sa;
    getsockname(h->listen_fd, (struct sockaddr *)&sa, &len);
    h->port = ntohs(sa.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&sa)->sin6_port
                                             : ((struct sockaddr_in *)&sa)->sin_port);
    return OK;
}

int http_open(struct http **out, struct server *srv, struct err *e)
{
    const struct config *c = srv->conf;
    struct http *h = MEM_NEW(struct http);
    h->srv = srv;
    int r = listen_on(h, c, e);
    if (r < 0) {
        mem_free(h);
        return r;
    }
    h->mhd = MHD_start_daemon(
        MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG, 0, NULL, NULL, on_access, h,
        MHD_OPTION_EXTERNAL_LOGGER, on_log, NULL, MHD_OPTION_LISTEN_SOCKET, h->listen_fd,
        MHD_OPTION_CONNECTION_LIMIT, connection_limit(c), MHD_OPTION_CONNECTION_TIMEOUT,
        (unsigned)c->keep_alive, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)POOL_BYTES,
        MHD_OPTION_NOTIFY_COMPLETED, on_completed, NULL, MHD_OPTION_NOTIFY_CONNECTION,
        on_connection, h, MHD_OPTION_URI_LOG_CALLBACK, on_uri, NULL, MHD_OPTION_END);
    if (!h->mhd) {
        close(h->listen_fd);
        mem_free(h);
        return FAIL(e, E_IO, "the HTTP library did not start");
    }
    int fd = MHD_get_daemon_info(h->mhd, MHD_DAEMON_INFO_EPOLL_FD)->epoll_fd;
    CHECK(uv_poll_init(&srv->loop, &h->poll, fd) == 0);
    uv_timer_init(&srv->loop, &h->timer);
    uv_prepare_init(&srv->loop, &h->prepare);
    h->poll.data = h->timer.data = h->prepare.data = h;
    uv_poll_start(&h->poll, UV_READABLE, on_epoll);
    uv_prepare_start(&h->prepare, on_prepare);
    *out = h;
    return OK;
}

int http_port(const struct http *h)
{
    return h->port;
}

size_t http_n_requests(const struct http *h)
{
    return h->n_requests;
}

size_t http_n_busy(const struct http *h)
{
    size_t n = 0;
    for (const struct hreq *r = h->first; r; r = r->next)
        n += r->state != HR_BODY;
    return n;
}

void http_each(struct http *h, void (*fn)(struct hreq *r, void *ud), void *ud)
{
    struct hreq *next;
    for (struct hreq *r = h->first; r; r = next) {
        next = r->next;
        fn(r, ud);
    }
}

static void gone_one(struct hreq *r, void *ud)
{
    (void)ud;
    http_gone(r);
}

void http_gone_all(struct http *h)
{
    http_each(h, gone_one, NULL);
    http_drive(h);
}

void http_quiesce(struct http *h)
{
    if (h->listen_fd < 0)
        return;
    MHD_quiesce_daemon(h->mhd);
    close(h->listen_fd);
    h->listen_fd = -1;
}

void http_close(struct http *h)
{
    http_quiesce(h);
    http_drive(h);
    h->closing = true;
    uv_poll_stop(&h->poll);
    uv_close((uv_handle_t *)&h->poll, NULL);
    uv_close((uv_handle_t *)&h->timer, NULL);
    uv_close((uv_handle_t *)&h->prepare, NULL);
    struct MHD_Daemon *d = h->mhd;
    MHD_stop_daemon(d);
    h->mhd = NULL;
}

void http_free(struct http *h)
{
    if (h)
        CHECK(!h->first);
    mem_free(h);
}
