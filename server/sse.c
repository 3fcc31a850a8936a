/* One event stream a request; see the header. Does not know what an event says. */
#include "server/sse.h"

#include <errno.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "engine/base/check.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/metrics.h"
#include "server/http.h"

enum mode {
    SSE_WAIT,   /* no head yet */
    SSE_LIB,    /* the library is writing: it asks sse_reader for more */
    SSE_DIRECT, /* suspended between two chunks: we write */
};

struct sse {
    struct hreq *r;
    enum mode mode;
    struct buf ev;  /* events without chunk frame */
    struct buf out; /* framed bytes that the socket did not take */
    size_t limit, counted;
    void (*on_pause)(struct hreq *r, bool on);
    bool ended, paused, want_write;
    int64_t data_us, progress_us, paused_us;
};

struct sse *sse_new(struct hreq *r, size_t limit, void (*on_pause)(struct hreq *r, bool on))
{
    struct sse *s = MEM_NEW(struct sse);
    s->r = r;
    s->limit = limit;
    s->on_pause = on_pause;
    s->data_us = s->progress_us = clock_us();
    metric_add(M_HTTP_STREAMS, 1);
    return s;
}

static void count(struct sse *s, size_t now)
{
    if (now != s->counted)
        metric_add(M_STREAM_BUFFERED, (double)now - (double)s->counted);
    s->counted = now;
}

static void set_paused(struct sse *s, bool on)
{
    if (s->paused == on)
        return;
    s->paused = on;
    int64_t now = clock_us();
    if (on)
        s->paused_us = now;
    else
        metric_add(M_STREAM_PAUSED, (double)(now - s->paused_us) * 1e-6);
    s->on_pause(s->r, on);
}

void sse_free(struct sse *s)
{
    if (!s)
        return;
    count(s, 0);
    if (s->paused)
        metric_add(M_STREAM_PAUSED, (double)(clock_us() - s->paused_us) * 1e-6);
    metric_add(M_HTTP_STREAMS, -1);
    buf_done(&s->ev);
    buf_done(&s->out);
    mem_free(s);
}

struct buf *sse_buf(struct sse *s)
{
    return &s->ev;
}

bool sse_is_open(const struct sse *s)
{
    return s->mode != SSE_WAIT;
}

static void check_level(struct sse *s)
{
    size_t n = s->ev.len + s->out.len;
    count(s, n);
    if (n > s->limit)
        set_paused(s, true);
    else if (n <= s->limit / 4)
        set_paused(s, false);
}

void sse_queued(struct sse *s)
{
    s->mode = SSE_LIB;
    http_watch(s->r);
    if (!s->r->watching)
        return;
    int on = 1, unsent = 128 * 1024; /* so that a slow reader shows here and not in the kernel */
    setsockopt(s->r->dup_fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(s->r->dup_fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &unsent, sizeof unsent);
}

void sse_direct(struct sse *s)
{
    s->mode = SSE_DIRECT;
}

/* The library's content reader. Suspending in here is what lets it return 0 without spinning, and
 * the moment at which no byte of the library's is on its way. */
ssize_t sse_reader(void *cls, uint64_t pos, char *buf, size_t max)
{
    (void)pos;
    struct hreq *r = cls;
    struct sse *s = r->sse;
    if (r->gone)
        return MHD_CONTENT_READER_END_WITH_ERROR;
    CHECK(!s->out.len);
    if (s->ev.len) {
        size_t n = s->ev.len < max ? s->ev.len : max;
        memcpy(buf, s->ev.p, n);
        buf_drop(&s->ev, n);
        s->data_us = s->progress_us = clock_us();
        check_level(s);
        return (ssize_t)n;
    }
    if (s->ended)
        return MHD_CONTENT_READER_END_OF_STREAM;
    if (r->watching) /* without a descriptor of ours the library keeps writing */
        sse_direct(s);
    r->suspended = true;
    MHD_suspend_connection(r->conn);
    return 0;
}

static void want_write(struct sse *s, bool on)
{
    if (s->want_write == on)
        return;
    s->want_write = on;
    http_want_write(s->r, on);
}

static size_t chunk_head(char out[20], size_t n)
{
    static const char hex[] = "0123456789abcdef";
    char tmp[16];
    size_t k = 0, len = 0;
    do {
        tmp[k++] = hex[n & 15];
        n >>= 4;
    } while (n);
    while (k)
        out[len++] = tmp[--k];
    out[len++] = '\r';
    out[len++] = '\n';
    return len;
}

/* Sends what is there; false: the connection is dead. */
static bool send_all(struct sse *s)
{
    char head[20];
    size_t n_head = s->r->http10 || !s->ev.len ? 0 : chunk_head(head, s->ev.len);
    struct iovec v[3] = {{s->out.p, s->out.len}, {head, n_head}, {s->ev.p, s->ev.len}};
    struct iovec w[4] = {v[0], v[1], v[2], {(void *)(uintptr_t) "\r\n", n_head ? 2 : 0}};
    size_t total = w[0].iov_len + w[1].iov_len + w[2].iov_len + w[3].iov_len;
    if (!total)
        return true;
    struct msghdr m = {.msg_iov = w, .msg_iovlen = 4};
    ssize_t n = sendmsg(s->r->dup_fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0) {
        if (errno != EAGAIN && errno != EINTR && errno != ENOBUFS)
            return false;
        n = 0;
    }
    if (n > 0)
        s->data_us = s->progress_us = clock_us();
    size_t done = (size_t)n < s->out.len ? (size_t)n : s->out.len;
    size_t skip = (size_t)n - done;
    buf_drop(&s->out, done);
    for (int i = 1; i < 4; i++) { /* keep the rest, framed */
        size_t k = skip < w[i].iov_len ? skip : w[i].iov_len;
        if (w[i].iov_len > k)
            buf_push(&s->out, (char *)w[i].iov_base + k, w[i].iov_len - k);
        skip -= k;
    }
    buf_reset(&s->ev);
    return true;
}

static void frame_into_out(struct sse *s)
{
    char head[20];
    if (!s->ev.len)
        return;
    if (!s->r->http10)
        buf_push(&s->out, head, chunk_head(head, s->ev.len));
    buf_push(&s->out, s->ev.p, s->ev.len);
    if (!s->r->http10)
        buf_str(&s->out, "\r\n");
    buf_reset(&s->ev);
}

void sse_flush(struct sse *s)
{
    struct hreq *r = s->r;
    if (r->gone)
        return;
    if (s->mode == SSE_DIRECT) {
        if (s->want_write) {
            frame_into_out(s); /* the poll says when */
        } else if (!send_all(s)) {
            http_gone(r);
            return;
        }
        if (s->out.len && !s->want_write)
            s->progress_us = clock_us();
        want_write(s, s->out.len > 0);
        if (s->ended && !s->out.len)
            http_resume(r);
    } else if (s->mode == SSE_LIB) {
        http_resume(r); /* suspended only when there is no descriptor of ours */
    }
    check_level(s);
}

void sse_writable(struct sse *s)
{
    if (s->mode != SSE_DIRECT || s->r->gone)
        return;
    s->want_write = false;
    if (!send_all(s)) {
        http_gone(s->r);
        return;
    }
    s->want_write = true; /* as the poll believes */
    want_write(s, s->out.len > 0);
    check_level(s);
    if (s->ended && !s->out.len)
        http_resume(s->r);
}

void sse_end(struct sse *s)
{
    s->ended = true;
    sse_flush(s);
}

bool sse_tick(struct sse *s, int64_t now, int64_t ping_us, int64_t stuck_us)
{
    if ((s->out.len || s->paused) && now - s->progress_us > stuck_us)
        return true;
    if (ping_us > 0 && s->mode == SSE_DIRECT && !s->ended && !s->out.len &&
        now - s->data_us >= ping_us) {
        buf_str(&s->ev, ":\n\n");
        sse_flush(s);
    }
    return false;
}
