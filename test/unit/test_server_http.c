/* Goal: request heads that the HTTP library would let through, routing, keys, limits and refusals
 * behave as README.md says; connections survive what they can survive. Method: the real daemon
 * object on a loop in this thread, without an engine; a client socket beside it sends raw bytes
 * and the loop turns until the answer is complete. */
#include <arpa/inet.h>
#include <check.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engine/base/check.h"
#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "server/gen.h"
#include "server/http.h"
#include "server/server.h"

static struct server srv;
static struct config conf;
static char name[] = "org/demo";
static char *names[] = {name};
static char labels[] = "model_name=\"demo\"";

static void start(const char *flag, const char *value)
{
    struct err e = {0};
    char *argv[] = {(char *)(uintptr_t) "m", (char *)(uintptr_t) "--port=0",
                    (char *)(uintptr_t)flag, (char *)(uintptr_t)value};
    log_init(LOG_WARN, false);
    ck_assert_int_eq(config_parse(&conf, CMD_SERVE, flag ? 4 : 2, argv, &e), OK);
    srv = (struct server){.conf = &conf, .state = SRV_READY, .names = names, .n_names = 1};
    srv.labels = labels;
    srv.env = (struct api_env){.names = names, .n_names = 1, .vocab = 100, .ctx = 64};
    srv.gens = gens_new();
    ck_assert_int_eq(uv_loop_init(&srv.loop), 0);
    ck_assert_msg(http_open(&srv.http, &srv, &e) == OK, "%s", e.text);
}

static void stop(void)
{
    http_gone_all(srv.http);
    http_close(srv.http);
    uv_run(&srv.loop, UV_RUN_DEFAULT);
    ck_assert_int_eq(uv_loop_close(&srv.loop), 0);
    http_free(srv.http);
    gens_free(srv.gens);
    config_done(&conf);
}

static int dial(void)
{
    struct sockaddr_in sa = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)http_port(srv.http)),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    ck_assert_int_eq(connect(fd, (struct sockaddr *)&sa, sizeof sa), 0);
    return fd;
}

static void turn(void)
{
    uv_run(&srv.loop, UV_RUN_NOWAIT);
    poll(NULL, 0, 1);
}

/* Bytes of one answer: its head and as much body as Content-Length says. */
struct answer {
    char text[131072]; /* the metrics page is the longest */
    size_t len;
    int status;
    bool closed; /* the server closed after it */
};

static bool complete(const struct answer *a)
{
    const char *end = strstr(a->text, "\r\n\r\n");
    if (!end)
        return false;
    const char *l = strcasestr(a->text, "\r\nContent-Length:");
    size_t body = l && l < end ? (size_t)strtoul(l + 17, NULL, 10) : 0;
    return a->len >= (size_t)(end + 4 - a->text) + body;
}

static void receive(int fd, struct answer *a)
{
    *a = (struct answer){0};
    int64_t until = clock_us() + 8000000;
    while (!complete(a) && !a->closed && clock_us() < until) {
        turn();
        ssize_t n = recv(fd, a->text + a->len, sizeof a->text - 1 - a->len, MSG_DONTWAIT);
        if (n > 0)
            a->len += (size_t)n;
        a->text[a->len] = 0;
        a->closed = n == 0 || (n < 0 && errno != EAGAIN);
    }
    sscanf(a->text, "HTTP/1.1 %d", &a->status);
    for (int i = 0; i < 5 && !a->closed; i++) {
        char b;
        turn();
        ssize_t n = recv(fd, &b, 1, MSG_DONTWAIT | MSG_PEEK);
        a->closed = n == 0 || (n < 0 && errno != EAGAIN);
    }
}

static void send_all(int fd, const char *s, size_t n)
{
    while (n) {
        ssize_t k = send(fd, s, n, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (k < 0 && errno != EAGAIN)
            return; /* refused half-way: the answer says why */
        if (k > 0) {
            s += k;
            n -= (size_t)k;
        } else {
            turn();
        }
    }
}

static void ask(const char *request, struct answer *a)
{
    int fd = dial();
    send_all(fd, request, strlen(request));
    receive(fd, a);
    close(fd);
    turn();
}

#define GET(path) "GET " path " HTTP/1.1\r\nHost: x\r\n"
#define POST(path, type, n)                                                                        \
    "POST " path " HTTP/1.1\r\nHost: x\r\nContent-Type: " type "\r\nContent-Length: " n "\r\n\r\n"

static const struct {
    const char *request;
    int status;
    bool closed;
    const char *has; /* in the answer, NULL */
} heads[] = {
    {GET("/health") "\r\n", 200, false, "{\"status\":\"ok\"}"},
    {GET("/healthz/") "\r\n", 200, false, NULL},
    {GET("/v1/models") "\r\n", 200, false, "\"id\":\"org/demo\""},
    {GET("/v1/models/org/demo") "\r\n", 200, false, "\"id\":\"org/demo\""},
    {GET("/v1/models/org%2Fdemo") "\r\n", 200, false, "\"id\":\"org/demo\""},
    {GET("/v1/models/other") "\r\n", 404, false, "model_not_found"},
    {GET("/v1/v1/models") "\r\n", 404, false, "not_found_error"},
    {GET("/") "\r\n", 404, false, NULL},
    {GET("/nope?x=1") "\r\n", 404, false, NULL},
    {GET("http://other/version") "\r\n", 200, false, "version"},
    {GET("/a%00b") "\r\n", 400, true, "%00"},
    {"HEAD /health HTTP/1.1\r\nHost: x\r\n\r\n", 200, false, NULL},
    {"DELETE /health HTTP/1.1\r\nHost: x\r\n\r\n", 405, false, "Allow: GET, HEAD"},
    {"get /health HTTP/1.1\r\nHost: x\r\n\r\n", 405, false, NULL},
    {GET("/v1/completions") "\r\n", 405, false, "Allow: POST"},
    {"OPTIONS /v1/completions HTTP/1.1\r\nHost: x\r\n\r\n", 204, false, "Allow: POST"},
    {"GET /health HTTP/1.0\r\n\r\n", 200, true, NULL},
    {"GET /health HTTP/1.1\r\n\r\n", 400, true, "Host"},
    {"GET /health HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400, true, "Host"},
    {GET("/health") "Connection: close\r\n\r\n", 200, true, NULL},
    {GET("/health") "X-Request-Id: my-id.1\r\n\r\n", 200, false, "X-Request-Id: my-id.1\r\n"},
    {GET("/health") "X-Request-Id: bad id\r\n\r\n", 200, false, "X-Request-Id: req-"},
    {POST("/tokenize", "application/json", "2") "{}", 400, false, "\"param\":\"prompt\""},
    {POST("/tokenize", "APPLICATION/JSON; charset=UTF-8", "2") "{}", 400, false, "prompt"},
    {POST("/tokenize", "application/vnd.x+json", "2") "{}", 400, false, "prompt"},
    {POST("/tokenize", "application/json; charset=latin1", "2") "{}", 415, false, NULL},
    {POST("/tokenize", "application/x-www-form-urlencoded", "2") "{}", 415, false,
     "-H 'Content-Type: application/json'"},
    {POST("/tokenize", "text/plain", "2") "{}", 415, false, "unsupported_media_type"},
    {"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}", 400, false, "prompt"},
    {"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}",
     415, false, "gzip"},
    {"POST /tokenize HTTP/1.1\r\nHost: x\r\n\r\n", 400, false, "empty"},
    {"POST /tokenize HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
     400, false, "prompt"},
    {"POST /tokenize HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n", 501, true, "gzip"},
    {"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\n{}", 400,
     true, NULL},
    {"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nTransfer-Encoding: "
     "chunked\r\n\r\n{}",
     400, true, NULL},
    {POST("/tokenize", "application/json", "99999999") "", 0, false, NULL}, /* waits for it */
    {"POST /tokenize HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: "
     "99999999\r\n\r\n",
     413, true, "request_too_large"},
    {"GET /health HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc", 400, false, "no body"},
    {GET("/metrics") "\r\n", 200, false, "text/plain; version=0.0.4; charset=utf-8"},
};

START_TEST(request_heads)
{
    start(NULL, NULL);
    for (size_t i = 0; i < ARRAY_LEN(heads); i++) {
        struct answer a;
        if (!heads[i].status)
            continue;
        ask(heads[i].request, &a);
        /* libmicrohttpd 1.0 refuses some broken heads itself, in HTML; 0.9 leaves them to us */
        if (heads[i].closed && heads[i].status >= 400 && a.closed && strstr(a.text, "<html>")) {
            ck_assert_msg(a.status == 400, "%s: %d\n%s", heads[i].request, a.status, a.text);
            continue;
        }
        ck_assert_msg(a.status == heads[i].status, "%s: %d\n%s", heads[i].request, a.status,
                      a.text);
        ck_assert_msg(a.closed == heads[i].closed, "%s: closed %d", heads[i].request, a.closed);
        ck_assert_msg(!heads[i].has || strstr(a.text, heads[i].has), "%s: no '%s' in\n%s",
                      heads[i].request, heads[i].has, a.text);
        ck_assert_msg(strcasestr(a.text, "X-Request-Id: ") != NULL, "%s", a.text);
    }
    stop();
}
END_TEST

START_TEST(keys)
{
    start("--api-key", "k1,secret2");
    static const struct {
        const char *path, *header;
        int status;
    } cases[] = {
        {"/health", "", 200},
        {"/version", "", 200},
        {"/metrics", "", 200},
        {"/v1/models", "", 401},
        {"/v1/models", "Authorization: Bearer k1\r\n", 200},
        {"/v1/models", "authorization: bEARER secret2\r\n", 200},
        {"/v1/models", "X-Api-Key: secret2\r\n", 200},
        {"/v1/models", "Authorization: Bearer k\r\n", 401},
        {"/v1/models", "Authorization: Bearer k11\r\n", 401},
        {"/v1/models", "Authorization: Bearer \r\n", 401},
        {"/v1/models", "Authorization: Basic k1\r\n", 401},
        {"/v1/models", "Authorization: k1\r\n", 401},
        {"/v1/models/org/demo", "X-Api-Key: nope\r\n", 401},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        char req[256];
        struct answer a;
        snprintf(req, sizeof req, "GET %s HTTP/1.1\r\nHost: x\r\n%s\r\n", cases[i].path,
                 cases[i].header);
        ask(req, &a);
        ck_assert_msg(a.status == cases[i].status, "%s: %d", req, a.status);
        if (a.status == 401) {
            ck_assert_ptr_nonnull(strstr(a.text, "WWW-Authenticate: Bearer"));
            ck_assert_ptr_nonnull(strstr(a.text, "authentication_error"));
        }
    }
    stop();
}
END_TEST

START_TEST(states)
{
    start(NULL, NULL);
    static const struct {
        enum srv_state state;
        const char *path, *has;
        int status;
    } cases[] = {
        {SRV_LOADING, "/health", "model_loading", 503},
        {SRV_LOADING, "/v1/models", "Retry-After: 5", 503},
        {SRV_LOADING, "/health/live", "ok", 200},
        {SRV_LOADING, "/metrics", "specd_ready{model_name=\"demo\"} 0", 200},
        {SRV_DRAINING, "/health", "shutting_down", 503},
        {SRV_DRAINING, "/v1/models", "Connection: close", 503},
        {SRV_DRAINING, "/version", "version", 200},
        {SRV_READY, "/health", "ok", 200},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        char req[256];
        struct answer a;
        srv.state = cases[i].state;
        snprintf(req, sizeof req, "GET %s HTTP/1.1\r\nHost: x\r\n\r\n", cases[i].path);
        ask(req, &a);
        ck_assert_msg(a.status == cases[i].status, "%s: %d", req, a.status);
        if (!strcmp(cases[i].path, "/metrics"))
            continue; /* longer than the buffer of this test */
        ck_assert_msg(strstr(a.text, cases[i].has) != NULL, "%s:\n%s", req, a.text);
    }
    stop();
}
END_TEST

/* Several requests on one connection, errors between them; pipelined ones too. */
START_TEST(keep_alive)
{
    start(NULL, NULL);
    int fd = dial();
    static const char *const reqs[] = {
        GET("/health") "\r\n", GET("/nope") "\r\n", POST("/tokenize", "text/plain", "5") "hello",
        POST("/tokenize", "application/json", "1") "{", GET("/version") "\r\n"};
    static const int want[] = {200, 404, 415, 400, 200};
    struct answer a;
    for (size_t i = 0; i < ARRAY_LEN(reqs); i++) {
        send_all(fd, reqs[i], strlen(reqs[i]));
        receive(fd, &a);
        ck_assert_int_eq(a.status, want[i]);
        ck_assert(!a.closed);
    }
    close(fd);
    fd = dial();
    const char *two = GET("/health") "\r\n" GET("/version") "Connection: close\r\n\r\n";
    send_all(fd, two, strlen(two));
    char all[4096] = "";
    size_t n = 0;
    for (int i = 0; i < 2000 && n < sizeof all - 1; i++) {
        turn();
        ssize_t k = recv(fd, all + n, sizeof all - 1 - n, MSG_DONTWAIT);
        if (!k)
            break;
        n += k > 0 ? (size_t)k : 0;
    }
    ck_assert_ptr_nonnull(strstr(all, "\"ok\""));
    ck_assert_ptr_nonnull(strstr(all, "\"version\""));
    close(fd);
    stop();
}
END_TEST

/* A body over the limit: small ones keep the connection, big ones get their answer and lose it. */
START_TEST(large_bodies)
{
    start("--max-body-size", "2048");
    static const size_t sizes[] = {2048, 3000, 900000, 3000000};
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        for (int chunked = 0; chunked < 2; chunked++) {
            int fd = dial();
            char head[200];
            size_t n = sizes[i];
            char *body = mem_alloc(n);
            memset(body, ' ', n);
            snprintf(head, sizeof head,
                     chunked ? "POST /tokenize HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: "
                               "chunked\r\n\r\n%zx\r\n"
                             : "POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n\r\n",
                     n);
            send_all(fd, head, strlen(head));
            send_all(fd, body, n);
            if (chunked)
                send_all(fd, "\r\n0\r\n\r\n", 7);
            struct answer a;
            receive(fd, &a);
            ck_assert_msg(a.status == (n <= 2048 ? 400 : 413), "%zu bytes: %d", n, a.status);
            ck_assert_msg(a.closed == (n > 1 << 20), "%zu bytes: closed %d", n, a.closed);
            mem_free(body);
            close(fd);
            turn();
        }
    }
    stop();
}
END_TEST

START_TEST(timeouts)
{
    start("--header-timeout", "1");
    conf.body_timeout = 1;
    int silent = dial(), half = dial(), body = dial();
    send_all(half, "GET /health HT", 14);
    const char *b = POST("/tokenize", "application/json", "10") "{";
    send_all(body, b, strlen(b));
    for (int i = 0; i < 50; i++)
        turn();
    http_tick(srv.http, clock_us() + 3000000);
    struct answer a;
    receive(body, &a);
    ck_assert_msg(a.status == 408, "%s", a.text);
    ck_assert(a.closed);
    receive(silent, &a);
    ck_assert(a.closed && !a.len);
    receive(half, &a);
    ck_assert(a.closed);
    close(silent);
    close(half);
    close(body);
    for (int i = 0; i < 20; i++)
        turn();
    ck_assert_uint_eq(http_n_requests(srv.http), 0);
    stop();
}
END_TEST

/* Clients that vanish at every point leave nothing behind. */
START_TEST(vanishing)
{
    long live = mem_live();
    start(NULL, NULL);
    const char *whole = POST("/tokenize", "application/json", "20") "{\"prompt\":1234567}  ";
    size_t n = strlen(whole);
    for (size_t cut = 0; cut <= n; cut++) {
        int fd = dial();
        send_all(fd, whole, cut);
        turn();
        if (cut % 2) {
            struct linger hard = {1, 0};
            setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
        }
        close(fd);
        turn();
    }
    http_tick(srv.http, clock_us() + 1000000); /* data and end in one packet show here */
    for (int i = 0; i < 500 && http_n_requests(srv.http); i++)
        turn();
    ck_assert_uint_eq(http_n_requests(srv.http), 0);
    stop();
    ck_assert_int_eq(mem_live(), live);
}
END_TEST

Suite *suite_server_http(void)
{
    Suite *s = suite_create("server_http");
    TCase *t = tcase_create("http");
    tcase_set_timeout(t, 60);
    tcase_add_test(t, request_heads);
    tcase_add_test(t, keys);
    tcase_add_test(t, states);
    tcase_add_test(t, keep_alive);
    tcase_add_test(t, large_bodies);
    tcase_add_test(t, timeouts);
    tcase_add_test(t, vanishing);
    suite_add_tcase(s, t);
    return s;
}
