/* Goal: an event stream arrives whole, in order and in valid chunks whatever the reader does; a
 * slow reader pauses its request and only a stuck one is given up. Method: the stream writes to one
 * end of a socket pair with small buffers, the test reads the other end in odd portions. */
#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/rng.h"
#include "server/http.h"
#include "server/sse.h"

static int n_pause, n_resume;

static void on_pause(struct hreq *r, bool on)
{
    (void)r;
    n_pause += on;
    n_resume += !on;
}

struct pair {
    struct hreq r;
    struct sse *s;
    int peer;
};

static void open_pair(struct pair *p, size_t limit, bool http10)
{
    int fd[2], small = 4096;
    *p = (struct pair){0};
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, fd), 0);
    setsockopt(fd[0], SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
    p->r.dup_fd = fd[0];
    p->r.http10 = http10;
    p->r.outcome = -1;
    p->r.state = HR_SENT;
    p->peer = fd[1];
    p->s = p->r.sse = sse_new(&p->r, limit, on_pause);
    sse_direct(p->s);
    n_pause = n_resume = 0;
}

static void close_pair(struct pair *p)
{
    sse_free(p->s);
    close(p->r.dup_fd);
    close(p->peer);
}

/* Removes the chunk frames; the stream must end at a frame's end. */
static void unchunk(struct buf *b)
{
    struct buf out = {0};
    for (size_t at = 0; at < b->len;) {
        char *end;
        size_t n = strtoul(b->p + at, &end, 16);
        ck_assert_msg(n > 0 && !memcmp(end, "\r\n", 2), "bad chunk head at %zu", at);
        at = (size_t)(end + 2 - b->p);
        ck_assert_uint_le(at + n + 2, b->len);
        buf_push(&out, b->p + at, n);
        at += n;
        ck_assert_int_eq(memcmp(b->p + at, "\r\n", 2), 0);
        at += 2;
    }
    buf_done(b);
    *b = out;
}

static size_t take(struct pair *p, struct buf *got, size_t max)
{
    char tmp[65536];
    ssize_t n = recv(p->peer, tmp, max < sizeof tmp ? max : sizeof tmp, MSG_DONTWAIT);
    if (n <= 0)
        return 0;
    buf_push(got, tmp, (size_t)n);
    return (size_t)n;
}

START_TEST(whole)
{
    for (int http10 = 0; http10 < 2; http10++) {
        struct pair p;
        struct buf sent = {0}, got = {0};
        struct rng rng = {.s = 7};
        open_pair(&p, 1 << 20, http10);
        for (int i = 0; i < 3000; i++) {
            char ev[64];
            int n = snprintf(ev, sizeof ev, "data: %d\n\n", i);
            buf_push(sse_buf(p.s), ev, (size_t)n);
            buf_push(&sent, ev, (size_t)n);
            if (rng_below(&rng, 3))
                sse_flush(p.s);
            if (!rng_below(&rng, 5))
                take(&p, &got, rng_below(&rng, 300) + 1);
            if (!rng_below(&rng, 7))
                sse_writable(p.s); /* as the poll would */
        }
        sse_end(p.s);
        do
            sse_writable(p.s);
        while (take(&p, &got, 1000));
        if (!http10)
            unchunk(&got);
        ck_assert_uint_eq(got.len, sent.len);
        ck_assert_int_eq(memcmp(got.p, sent.p, sent.len), 0);
        ck_assert_int_eq(n_pause, 0);
        buf_done(&sent);
        buf_done(&got);
        close_pair(&p);
    }
}
END_TEST

START_TEST(slow_reader)
{
    struct pair p;
    struct buf got = {0};
    char block[1000];
    memset(block, 'x', sizeof block);
    open_pair(&p, 20000, false);
    for (int i = 0; i < 200 && !n_pause; i++) {
        buf_push(sse_buf(p.s), block, sizeof block);
        sse_flush(p.s);
    }
    ck_assert_int_eq(n_pause, 1);
    int64_t now = clock_us();
    ck_assert(!sse_tick(p.s, now, 0, 1000000));
    ck_assert(sse_tick(p.s, now + 1500000, 0, 1000000)); /* took nothing */
    while (!n_resume && take(&p, &got, 4000))
        sse_writable(p.s);
    ck_assert_int_eq(n_resume, 1);
    ck_assert(!sse_tick(p.s, clock_us() + 500000, 0, 1000000)); /* reads again */
    buf_done(&got);
    close_pair(&p);
}
END_TEST

START_TEST(ping)
{
    struct pair p;
    struct buf got = {0};
    open_pair(&p, 20000, false);
    int64_t now = clock_us();
    ck_assert(!sse_tick(p.s, now + 900000, 1000000, 60000000));
    ck_assert_uint_eq(take(&p, &got, 100), 0);
    ck_assert(!sse_tick(p.s, now + 1100000, 1000000, 60000000));
    take(&p, &got, 100);
    unchunk(&got);
    ck_assert_str_eq(buf_cstr(&got), ":\n\n");
    ck_assert(!sse_tick(p.s, now + 9000000, 0, 60000000)); /* 0: never */
    ck_assert_uint_eq(take(&p, &got, 100), 0);
    buf_done(&got);
    close_pair(&p);
}
END_TEST

START_TEST(peer_gone)
{
    struct pair p;
    open_pair(&p, 20000, false);
    close(p.peer);
    buf_str(sse_buf(p.s), "data: x\n\n");
    sse_flush(p.s);
    ck_assert(p.r.gone);
    buf_str(sse_buf(p.s), "data: y\n\n");
    sse_flush(p.s); /* nothing happens */
    p.peer = dup(0);
    close_pair(&p);
}
END_TEST

Suite *suite_server_sse(void)
{
    Suite *s = suite_create("server_sse");
    TCase *t = tcase_create("sse");
    tcase_add_test(t, whole);
    tcase_add_test(t, slow_reader);
    tcase_add_test(t, ping);
    tcase_add_test(t, peer_gone);
    suite_add_tcase(s, t);
    return s;
}
