/* HTTP on the loop: libmicrohttpd's epoll descriptor in a uv_poll, one object a request. Loop
 * thread only. Handlers see struct hreq and the calls below, never the library. */
#ifndef SPECD_SERVER_HTTP_H
#define SPECD_SERVER_HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#include "engine/base/buf.h"
#include "engine/base/err.h"
#include "server/api_err.h"

struct server;
struct http;
struct route;
struct sse;
struct MHD_Connection;

enum http_method { HM_GET, HM_HEAD, HM_POST, HM_OPTIONS, HM_OTHER };

enum hreq_state {
    HR_BODY,   /* head seen, body coming in */
    HR_RUN,    /* the handler works on it; the connection is suspended */
    HR_READY,  /* the answer is stored and waits to be queued */
    HR_STREAM, /* an event stream is to be opened */
    HR_SENT,   /* the answer (or stream) is the library's */
    HR_DEAD,   /* the client left before an answer */
};

/* Lives until the library is done with it, the engine has delivered the final event of everything
 * it was given, and no handle or pool job refers to it: `refs` counts these. */
struct hreq {
    struct server *srv;
    struct http *http;
    struct MHD_Connection *conn; /* NULL once the library is done */
    struct hreq *next, *prev;    /* all live ones */
    enum hreq_state state;
    const struct route *route; /* NULL: unknown path */
    enum http_method method;
    int handler; /* index of the metrics' label */
    char *tail;  /* /v1/models/{id}: the id */
    char rid[132];
    struct buf body;
    int64_t start_us, progress_us; /* head seen; last byte of the body */
    struct api_err early; /* status != 0: to be answered once the body is read and dropped */
    int64_t n_dropped, drop_us;
    bool suspended, gone, http10, raw_sent, big;
    /* answer */
    int status;
    char *reply; /* mem_alloc'ed, owned */
    size_t n_reply;
    const char *ctype;
    int retry_after;
    bool close;
    const char *allow;
    /* its owner */
    void *ud;
    void (*on_gone)(struct hreq *r); /* the client left: once, before on_free */
    void (*on_tick)(struct hreq *r, int64_t now);
    void (*on_free)(struct hreq *r); /* frees ud */
    int outcome;                     /* enum outcome of routes.h, -1: by status */
    struct sse *sse;
    int fd, dup_fd; /* the connection's descriptor, and ours for the poll */
    uv_poll_t poll;
    bool watching;
    int refs;
};

int http_open(struct http **out, struct server *srv, struct err *e); /* binds and listens */
int http_port(const struct http *h);
void http_quiesce(struct http *h); /* stops accepting */
/* Every request must be gone or answered. Closes the handles; the loop has to run once more before
 * http_free. */
void http_close(struct http *h);
void http_free(struct http *h);
void http_tick(struct http *h, int64_t now);
size_t http_n_requests(const struct http *h);
size_t http_n_busy(const struct http *h); /* those whose body is in */
void http_each(struct http *h, void (*fn)(struct hreq *r, void *ud), void *ud);
void http_gone_all(struct http *h);
void http_drive(struct http *h);

/* Answers; takes the content of `body`. Works inside the handler and later. */
void http_reply(struct hreq *r, int status, const char *ctype, struct buf *body);
void http_reply_err(struct hreq *r, const struct api_err *e);
/* The answer is an event stream: r->sse is set. */
void http_reply_stream(struct hreq *r);
/* The client is gone (or treated as such): tells the owner and closes. Idempotent. */
void http_gone(struct hreq *r);
/* From now on notices a client that leaves; also readies dup_fd for direct writes. */
void http_watch(struct hreq *r);
void http_want_write(struct hreq *r, bool on);
void http_resume(struct hreq *r);
void hreq_ref(struct hreq *r);
void hreq_unref(struct hreq *r);

/* http_wire.c: what the library's parser lets through. Fills r->early. */
struct wire {
    int n_host, n_length, n_encoding;
    const char *encoding, *expect, *type, *content_encoding, *authorization, *api_key, *rid;
    int64_t length; /* -1: none */
};
void wire_read(struct wire *w, struct MHD_Connection *c);
/* True: the message's end is in doubt or nothing of it may be read: answer at once and close. */
bool wire_check(struct hreq *r, const struct wire *w, const char *version, bool bad_uri);
void wire_check_body(struct hreq *r, const struct wire *w, int64_t max_body);
bool wire_key_ok(const struct wire *w, char *const *keys, size_t n);
enum http_method wire_method(const char *m);
const char *wire_path(const char *url); /* without scheme and authority */

#endif
