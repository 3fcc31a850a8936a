/* Load generator for completions endpoints on this machine: N connections, epoll, one process or
 * several that share the connections and put their results together.
 *
 * Every stream is checked: status 200, well-formed chunks, one finish_reason, the number of tokens
 * asked for, [DONE]. The CPU time of the server and of its loop thread comes from /proc. Prints one
 * JSON line and exits 1 when a stream was incomplete. Modes: steady, disconnect (leaves after a few
 * events), slow (every second connection reads slowly), malformed (bad bodies). It speaks HTTP/1.1
 * itself, so that the client costs as little as possible beside the server. Bounded by --seconds.
 * README.md explains the figures. */
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <getopt.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/base/buf.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/rng.h"

enum mode { STEADY, DISCONNECT, SLOW, MALFORMED };
static const char *const mode_name[] = {"steady", "disconnect", "slow", "malformed"};

static struct {
    enum mode mode;
    int port, conns, requests, tokens, prompt, vocab, drop, slow_us, pid, procs;
    int first; /* number of this process's first request: prompts depend on it */
    uint64_t seed;
    double seconds;
    const char *text, *key, *loop;
    bool same;
} opt = {.conns = 8,
         .procs = 1,
         .tokens = 64,
         .prompt = 64,
         .vocab = 4000,
         .drop = 4,
         .slow_us = 20000,
         .seed = 1,
         .seconds = 120,
         .loop = "specd-loop"};

enum part {
    IDLE,
    CONNECTING,
    SENDING,
    HEAD,
    BODY_LEN,
    CHUNK_SIZE,
    CHUNK_DATA,
    CHUNK_CRLF,
    CHUNK_END
};

struct conn {
    int fd;
    enum part part;
    bool slow; /* reads a little at a time */
    int64_t next_read_us;
    struct buf out;        /* the request */
    struct buf head, line; /* the header or framing line, and the event line, being collected */
    size_t sent;
    int64_t left; /* bytes of the body or chunk still to come */
    int status;
    bool close_after; /* the server said Connection: close */
    /* the stream of the current request */
    int64_t t_sent, t_first, t_last, max_gap;
    int events, tokens, finishes;
    bool done, error;
    uint64_t hash;
};

struct series {
    double *v;
    size_t n, cap;
};

static struct {
    int started, ended, ok, incomplete, errors, dropped;
    int64_t tokens, events;
    struct series ttft, gap, gap_slow;
    int status[600];
    uint64_t hash;
    bool have_hash, hash_differs;
    int ep, open;
} st;

static void add(struct series *s, double v)
{
    MEM_GROW(s->v, s->cap, s->n + 1);
    s->v[s->n++] = v;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The value below which a share q lies; 0 without values. */
static double quantile(struct series *s, double q)
{
    if (!s->n)
        return 0;
    qsort(s->v, s->n, sizeof *s->v, by_value);
    size_t i = (size_t)(q * (double)s->n);
    return s->v[i < s->n ? i : s->n - 1];
}

/* ---- CPU time of the server ---- */

struct cpu {
    double all, loop; /* microseconds since its start */
};

static double thread_cpu_us(const char *dir)
{
    char path[400], text[128];
    snprintf(path, sizeof path, "%s/schedstat", dir); /* nanoseconds on a CPU, first field */
    FILE *f = fopen(path, "r");
    if (!f)
        return 0;
    double us = fgets(text, sizeof text, f) ? strtod(text, NULL) / 1e3 : 0;
    fclose(f);
    return us;
}

static struct cpu server_cpu(void)
{
    struct cpu c = {0, 0};
    double main_us = 0;
    bool named = false;
    char dir[300], name[64];
    snprintf(dir, sizeof dir, "/proc/%d/task", opt.pid);
    DIR *d = opt.pid ? opendir(dir) : NULL;
    for (struct dirent *e; d && (e = readdir(d));) {
        if (e->d_name[0] == '.')
            continue;
        snprintf(dir, sizeof dir, "/proc/%d/task/%.20s", opt.pid, e->d_name);
        double us = thread_cpu_us(dir);
        c.all += us;
        if (strtol(e->d_name, NULL, 10) == opt.pid)
            main_us = us;
        strncat(dir, "/comm", sizeof dir - strlen(dir) - 1);
        FILE *f = fopen(dir, "r");
        if (f && fgets(name, sizeof name, f)) {
            name[strcspn(name, "\n")] = 0;
            if (!strcmp(name, opt.loop)) {
                c.loop = us;
                named = true;
            }
        }
        if (f)
            fclose(f);
    }
    if (d)
        closedir(d);
    if (!named)
        c.loop = main_us; /* the main thread runs the loop when none bears the name */
    return c;
}

/* ---- requests ---- */

static const char *const bad_bodies[] = {
    "",
    "{",
    "[]",
    "null",
    "{\"prompt\":}",
    "{\"prompt\":\"\\ud800\"}",
    "{\"prompt\":\"a\xff\"}",
    "{\"prompt\":[]}",
    "{\"prompt\":[-1]}",
    "{\"prompt\":[99999999]}",
    "{\"prompt\":\"a\",\"n\":0}",
    "{\"prompt\":\"a\",\"max_tokens\":-1}",
    "{\"prompt\":\"a\",\"temperature\":\"hot\"}",
    "{\"prompt\":\"a\",\"top_p\":0}",
    "{\"prompt\":\"a\",\"stop\":[\"\"]}",
    "{\"prompt\":\"a\",\"logit_bias\":{\"x\":1}}",
    "{\"prompt\":\"a\",\"prompt\":\"b\"}",
    "{\"prompt\":\"a\",\"seed\":1e400}",
};

static void build_body(struct buf *b, int index)
{
    if (opt.mode == MALFORMED) {
        buf_str(b, bad_bodies[(size_t)index % (sizeof bad_bodies / sizeof bad_bodies[0])]);
        return;
    }
    buf_str(b, "{\"prompt\":");
    if (opt.text) {
        buf_char(b, '"');
        for (const char *s = opt.text; *s; s++) {
            if (*s == '"' || *s == '\\')
                buf_char(b, '\\');
            buf_char(b, *s);
        }
        buf_char(b, '"');
    } else {
        struct rng r = {opt.seed + (opt.same ? 0 : (uint64_t)index * 7919)};
        for (int i = 0; i < opt.prompt; i++)
            buf_fmt(b, "%c%d", i ? ',' : '[', 100 + (int)rng_below(&r, (uint64_t)opt.vocab - 100));
        buf_char(b, ']');
    }
    buf_fmt(b,
            ",\"max_tokens\":%d,\"temperature\":0,\"ignore_eos\":true,\"stream\":true,"
            "\"stream_options\":{\"include_usage\":true}}",
            opt.tokens);
}

static void build_request(struct conn *c, int index)
{
    struct buf body;
    buf_init(&body, 0);
    build_body(&body, index);
    buf_reset(&c->out);
    buf_fmt(&c->out,
            "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            "Content-Length: %zu\r\n",
            body.len);
    if (opt.key)
        buf_fmt(&c->out, "Authorization: Bearer %s\r\n", opt.key);
    buf_str(&c->out, "\r\n");
    if (body.len)
        buf_push(&c->out, body.p, body.len);
    buf_done(&body);
}

static void watch(struct conn *c, uint32_t events, int op)
{
    struct epoll_event ev = {.events = events, .data.ptr = c};
    epoll_ctl(st.ep, op, c->fd, &ev);
}

static void shut(struct conn *c, bool reset)
{
    if (c->fd < 0)
        return;
    struct linger l = {1, 0}; /* RST instead of FIN */
    if (reset)
        setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &l, sizeof l);
    close(c->fd);
    c->fd = -1;
    c->part = IDLE;
    st.open--;
}

static bool dial(struct conn *c)
{
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (c->fd < 0)
        return false;
    int one = 1, small = 4096;
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (c->slow)
        setsockopt(c->fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_port = htons((uint16_t)opt.port),
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    st.open++;
    if (connect(c->fd, (struct sockaddr *)&a, sizeof a) && errno != EINPROGRESS) {
        shut(c, false);
        return false;
    }
    watch(c, EPOLLOUT, EPOLL_CTL_ADD);
    return true;
}

/* The next request on this connection, or nothing when all have been started. */
static void start(struct conn *c)
{
    if (st.started >= opt.requests) {
        shut(c, false);
        return;
    }
    build_request(c, opt.first + st.started++);
    c->sent = 0;
    c->status = c->events = c->tokens = c->finishes = 0;
    c->t_first = c->t_last = c->max_gap = 0;
    c->done = c->error = c->close_after = false;
    c->hash = 1469598103934665603ull;
    buf_reset(&c->line);
    buf_reset(&c->head);
    if (c->fd >= 0) {
        c->part = SENDING;
        watch(c, EPOLLOUT, EPOLL_CTL_MOD);
    } else {
        c->part = CONNECTING;
        if (!dial(c)) {
            st.ended++;
            st.errors++;
        }
    }
}

/* ---- one answer ---- */

static void finish(struct conn *c, bool clean)
{
    st.ended++;
    if (c->status >= 0 && c->status < 600)
        st.status[c->status]++;
    if (opt.mode == MALFORMED) {
        bool good = clean && c->status >= 400 && c->status < 500;
        st.ok += good;
        st.incomplete += !good;
    } else if (clean && c->status == 200 && c->done && !c->error && c->finishes == 1 &&
               c->tokens == opt.tokens) {
        st.ok++;
        st.tokens += c->tokens;
        add(&st.ttft, (double)(c->t_first - c->t_sent) / 1e3);
        add(c->slow ? &st.gap_slow : &st.gap, (double)c->max_gap / 1e3);
        st.hash_differs |= st.have_hash && st.hash != c->hash;
        st.hash = c->hash;
        st.have_hash = true;
    } else {
        st.incomplete++;
    }
    bool keep = clean && !c->close_after;
    if (!keep)
        shut(c, false);
    start(c);
}

static void leave(struct conn *c)
{
    st.ended++;
    st.dropped++;
    shut(c, st.dropped & 1);
    start(c);
}

static void on_event(struct conn *c, const char *s)
{
    int64_t now = clock_us();
    if (!strncmp(s, "[DONE]", 6)) {
        c->done = true;
        return;
    }
    if (!strncmp(s, "{\"error\"", 8))
        c->error = true;
    if (!c->events)
        c->t_first = now;
    else if (now - c->t_last > c->max_gap)
        c->max_gap = now - c->t_last;
    c->t_last = now;
    c->events++;
    st.events++;
    if (strstr(s, "\"finish_reason\":\""))
        c->finishes++;
    const char *u = strstr(s, "\"completion_tokens\":");
    if (u)
        c->tokens = (int)strtol(u + 20, NULL, 10);
    const char *t = opt.same ? strstr(s, "\"text\":\"") : NULL;
    for (t = t ? t + 8 : NULL; t && *t && *t != '"'; t++) {
        c->hash = (c->hash ^ (uint8_t)*t) * 1099511628211ull;
        if (*t == '\\' && t[1])
            c->hash = (c->hash ^ (uint8_t) * ++t) * 1099511628211ull;
    }
}

/* Body bytes, already without chunk framing. */
static void on_body(struct conn *c, const char *p, size_t n)
{
    while (n) {
        const char *nl = memchr(p, '\n', n);
        size_t k = nl ? (size_t)(nl - p) : n;
        buf_push(&c->line, p, k);
        if (!nl)
            return;
        if (c->line.len > 6 && !memcmp(c->line.p, "data: ", 6))
            on_event(c, c->line.p + 6);
        buf_reset(&c->line);
        p += k + 1;
        n -= k + 1;
    }
}

static void on_header(struct conn *c)
{
    const char *h = buf_cstr(&c->head);
    if (!strncmp(h, "HTTP/1.1 ", 9))
        c->status = (int)strtol(h + 9, NULL, 10);
    else if (!strncasecmp(h, "content-length:", 15))
        c->left = strtoll(h + 15, NULL, 10);
    else if (!strncasecmp(h, "transfer-encoding:", 18))
        c->left = -1;
    else if (!strncasecmp(h, "connection:", 11) && strcasestr(h, "close"))
        c->close_after = true;
}

/* One line of head or chunk framing is complete in c->head. Returns true when the answer ended. */
static bool on_line(struct conn *c)
{
    if (c->head.len && c->head.p[c->head.len - 1] == '\r')
        c->head.p[--c->head.len] = 0;
    bool ended = false;
    if (c->part == HEAD && c->head.len) {
        on_header(c);
    } else if (c->part == HEAD) {
        c->part = c->left < 0 ? CHUNK_SIZE : BODY_LEN;
        ended = c->part == BODY_LEN && c->left == 0;
    } else if (c->part == CHUNK_SIZE) {
        c->left = strtoll(buf_cstr(&c->head), NULL, 16);
        c->part = c->left ? CHUNK_DATA : CHUNK_END;
    } else { /* CHUNK_END: the empty line after the last chunk */
        ended = c->head.len == 0;
    }
    buf_reset(&c->head);
    return ended;
}

/* Consumes what came in; the parser keeps its state in c. Returns false when the answer ended (or
 * was left) and c went on to its next request. */
static bool feed(struct conn *c, const char *p, size_t n)
{
    while (n) {
        if (c->part == BODY_LEN || c->part == CHUNK_DATA || c->part == CHUNK_CRLF) {
            size_t k = (int64_t)n < c->left ? n : (size_t)c->left;
            if (c->part != CHUNK_CRLF)
                on_body(c, p, k);
            p += k;
            n -= k;
            c->left -= (int64_t)k;
            if (opt.mode == DISCONNECT && c->events >= opt.drop) {
                leave(c);
                return false;
            }
            if (c->left)
                continue;
            if (c->part == BODY_LEN) {
                finish(c, true);
                return false;
            }
            c->left = 2;
            c->part = c->part == CHUNK_DATA ? CHUNK_CRLF : CHUNK_SIZE;
            continue;
        }
        const char *nl = memchr(p, '\n', n);
        size_t k = nl ? (size_t)(nl - p) : n;
        buf_push(&c->head, p, k);
        p += nl ? k + 1 : k;
        n -= nl ? k + 1 : k;
        if (nl && on_line(c)) {
            finish(c, true);
            return false;
        }
    }
    return true;
}

static void on_writable(struct conn *c)
{
    int e = 0;
    socklen_t len = sizeof e;
    if (c->part == CONNECTING && (getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &e, &len) || e)) {
        st.errors++;
        finish(c, false);
        return;
    }
    c->part = SENDING;
    while (c->sent < c->out.len) {
        ssize_t k = send(c->fd, c->out.p + c->sent, c->out.len - c->sent, MSG_NOSIGNAL);
        if (k < 0 && errno == EAGAIN)
            return;
        if (k <= 0) {
            st.errors++;
            finish(c, false);
            return;
        }
        c->sent += (size_t)k;
    }
    c->t_sent = clock_us();
    c->left = 0;
    c->part = HEAD;
    watch(c, c->slow ? 0 : EPOLLIN, EPOLL_CTL_MOD);
    c->next_read_us = c->t_sent;
    if (opt.mode == DISCONNECT && opt.drop == 0)
        leave(c); /* in the queue or in prefill */
}

static void on_readable(struct conn *c)
{
    static char in[65536];
    ssize_t k = recv(c->fd, in, c->slow ? 256 : sizeof in, 0);
    if (k < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (k <= 0)
        finish(c, false);
    else
        feed(c, in, (size_t)k);
}

static void run(struct conn *conns)
{
    int64_t end = clock_us() + (int64_t)(opt.seconds * 1e6);
    struct epoll_event ev[256];
    for (int i = 0; i < opt.conns; i++)
        start(&conns[i]);
    while (st.ended < opt.requests && st.open > 0 && clock_us() < end) {
        int n = epoll_wait(st.ep, ev, 256, opt.mode == SLOW ? 1 : 100);
        for (int i = 0; i < n; i++) {
            struct conn *c = ev[i].data.ptr;
            if (c->fd < 0)
                continue;
            if (c->part == CONNECTING || c->part == SENDING)
                on_writable(c);
            else
                on_readable(c);
        }
        int64_t now = clock_us();
        for (int i = 0; opt.mode == SLOW && i < opt.conns; i++) {
            struct conn *c = &conns[i];
            if (c->slow && c->fd >= 0 && c->part >= HEAD && now >= c->next_read_us) {
                c->next_read_us = now + opt.slow_us;
                on_readable(c);
            }
        }
    }
}

static void print(double seconds, struct cpu used)
{
    double tok = st.tokens ? (double)st.tokens : 1;
    printf("{\"mode\":\"%s\",\"conns\":%d,\"requests\":%d,\"ok\":%d,\"incomplete\":%d,"
           "\"dropped\":%d,\"errors\":%d,\"unfinished\":%d,\"tokens\":%lld,\"seconds\":%.3f,"
           "\"tok_s\":%.1f,\"events_per_token\":%.3f",
           mode_name[opt.mode], opt.conns, opt.requests, st.ok, st.incomplete, st.dropped,
           st.errors, opt.requests - st.ended, (long long)st.tokens, seconds,
           (double)st.tokens / seconds, (double)st.events / tok);
    printf(",\"ttft_ms\":{\"p50\":%.2f,\"p99\":%.2f},\"max_gap_ms\":{\"p50\":%.2f,\"p99\":%.2f}",
           quantile(&st.ttft, .5), quantile(&st.ttft, .99), quantile(&st.gap, .5),
           quantile(&st.gap, .99));
    if (opt.mode == SLOW)
        printf(",\"slow_max_gap_ms\":{\"p50\":%.2f,\"p99\":%.2f}", quantile(&st.gap_slow, .5),
               quantile(&st.gap_slow, .99));
    if (opt.pid && st.tokens)
        printf(",\"cpu_us_per_token\":%.2f,\"loop_us_per_token\":%.2f", used.all / tok,
               used.loop / tok);
    if (opt.same)
        printf(",\"same_text\":%s", st.hash_differs ? "false" : "true");
    printf(",\"status\":{");
    const char *sep = "";
    for (int i = 0; i < 600; i++) {
        if (!st.status[i])
            continue;
        printf("%s\"%d\":%d", sep, i, st.status[i]);
        sep = ",";
    }
    printf("}}\n");
}

static void usage(void)
{
    fputs("usage: bench_load --port N [options]\n"
          "  --mode steady|disconnect|slow|malformed   (steady)\n"
          "  --conns N      connections at once (8)    --requests N  in all (as many)\n"
          "  --tokens N     of each answer (64)        --prompt N    random ids of each (64)\n"
          "  --vocab N      bound of those ids (4000)  --text STR    prompt text instead of ids\n"
          "  --same         one prompt for all: the texts must be equal\n"
          "  --drop N       events before leaving in mode disconnect; 0: at once (4)\n"
          "  --slow-ms N    pause between reads of 256 bytes in mode slow (20)\n"
          "  --pid N        the server, for CPU time   --loop NAME   its loop thread (specd-loop)\n"
          "  --key KEY      bearer key                 --seed N      of the prompts (1)\n"
          "  --seconds S    the end of it in any case (120)\n"
          "  --procs N      processes of this generator, which share the connections (1)\n",
          stderr);
    exit(2);
}

static void options(int argc, char **argv)
{
    static const struct option list[] = {
        {"mode", 1, 0, 'm'},    {"conns", 1, 0, 'c'},  {"requests", 1, 0, 'r'},
        {"tokens", 1, 0, 't'},  {"prompt", 1, 0, 'n'}, {"vocab", 1, 0, 'v'},
        {"text", 1, 0, 'x'},    {"same", 0, 0, 'e'},   {"drop", 1, 0, 'd'},
        {"slow-ms", 1, 0, 'w'}, {"pid", 1, 0, 'p'},    {"loop", 1, 0, 'l'},
        {"key", 1, 0, 'k'},     {"seed", 1, 0, 's'},   {"seconds", 1, 0, 'T'},
        {"port", 1, 0, 'P'},    {"procs", 1, 0, 'j'},  {0, 0, 0, 0},
    };
    int *const number[128] = {
        ['c'] = &opt.conns,   ['r'] = &opt.requests, ['t'] = &opt.tokens, ['n'] = &opt.prompt,
        ['v'] = &opt.vocab,   ['d'] = &opt.drop,     ['p'] = &opt.pid,    ['P'] = &opt.port,
        ['w'] = &opt.slow_us, ['j'] = &opt.procs};
    for (int o; (o = getopt_long(argc, argv, "", list, NULL)) != -1;) {
        if (o == '?')
            usage();
        if (number[o])
            *number[o] = (int)strtol(optarg, NULL, 10);
        if (o == 'w')
            opt.slow_us *= 1000;
        if (o == 'm') {
            int m = 3;
            while (m >= 0 && strcmp(mode_name[m], optarg))
                m--;
            if (m < 0)
                usage();
            opt.mode = (enum mode)m;
        }
        if (o == 's')
            opt.seed = strtoull(optarg, NULL, 10);
        if (o == 'T')
            opt.seconds = strtod(optarg, NULL);
        if (o == 'x')
            opt.text = optarg;
        if (o == 'k')
            opt.key = optarg;
        if (o == 'l')
            opt.loop = optarg;
        if (o == 'e')
            opt.same = true;
    }
    if (opt.port <= 0 || opt.conns <= 0 || opt.vocab <= 100 || opt.tokens <= 0 || opt.procs < 1)
        usage();
    opt.procs = opt.procs < opt.conns ? opt.procs : opt.conns;
    if (opt.requests < opt.conns)
        opt.requests = opt.conns;
}

/* ---- several processes ---- */

/* A process's results in memory that all see: counts, then its series one after the other. */
struct results {
    int ended, ok, incomplete, errors, dropped;
    int64_t tokens, events;
    int status[600];
    uint64_t hash;
    bool have_hash, hash_differs;
    size_t n_ttft, n_gap, n_slow;
    double value[]; /* [3 * requests]: at most one of each a request */
};

static size_t results_bytes(void)
{
    return sizeof(struct results) + 3 * (size_t)opt.requests * sizeof(double);
}

static double *put_series(double *at, const struct series *s)
{
    if (s->n)
        memcpy(at, s->v, s->n * sizeof *at);
    return at + s->n;
}

static const double *take_series(struct series *s, const double *at, size_t n)
{
    for (size_t i = 0; i < n; i++)
        add(s, at[i]);
    return at + n;
}

static void results_put(struct results *r)
{
    r->ended = st.ended;
    r->ok = st.ok;
    r->incomplete = st.incomplete;
    r->errors = st.errors;
    r->dropped = st.dropped;
    r->tokens = st.tokens;
    r->events = st.events;
    memcpy(r->status, st.status, sizeof r->status);
    r->hash = st.hash;
    r->have_hash = st.have_hash;
    r->hash_differs = st.hash_differs;
    r->n_ttft = st.ttft.n;
    r->n_gap = st.gap.n;
    r->n_slow = st.gap_slow.n;
    put_series(put_series(put_series(r->value, &st.ttft), &st.gap), &st.gap_slow);
}

static void results_add(const struct results *r)
{
    st.ended += r->ended;
    st.ok += r->ok;
    st.incomplete += r->incomplete;
    st.errors += r->errors;
    st.dropped += r->dropped;
    st.tokens += r->tokens;
    st.events += r->events;
    for (int i = 0; i < 600; i++)
        st.status[i] += r->status[i];
    st.hash_differs |= r->hash_differs;
    st.hash_differs |= st.have_hash && r->have_hash && st.hash != r->hash;
    st.hash = r->have_hash ? r->hash : st.hash;
    st.have_hash |= r->have_hash;
    take_series(&st.gap_slow,
                take_series(&st.gap, take_series(&st.ttft, r->value, r->n_ttft), r->n_gap),
                r->n_slow);
}

/* Opens the connections and runs this process's requests. */
static void run_all(void)
{
    struct conn *conns = MEM_ARRAY(struct conn, opt.conns);
    st.ep = epoll_create1(EPOLL_CLOEXEC);
    for (int i = 0; i < opt.conns; i++) {
        conns[i].fd = -1;
        conns[i].slow = opt.mode == SLOW && (i & 1);
        buf_init(&conns[i].out, 0);
        buf_init(&conns[i].head, 65536);
        buf_init(&conns[i].line, 1 << 20);
    }
    run(conns);
    for (int i = 0; i < opt.conns; i++) {
        shut(&conns[i], false);
        buf_done(&conns[i].out);
        buf_done(&conns[i].head);
        buf_done(&conns[i].line);
    }
    mem_free(conns);
    close(st.ep);
}

/* Process `i` takes its part of connections and requests. */
static void run_part(int i, struct results *r)
{
    int n = opt.procs, conns = opt.conns, requests = opt.requests;
    opt.conns = conns / n + (i < conns % n);
    opt.requests = requests / n + (i < requests % n);
    opt.first = i * (requests / n) + (i < requests % n ? i : requests % n);
    run_all();
    results_put(r);
}

/* False: a process died. */
static bool run_processes(void)
{
    size_t bytes = (results_bytes() + 4095) / 4096 * 4096;
    char *all = mmap(NULL, bytes * (size_t)opt.procs, PROT_READ | PROT_WRITE,
                     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED)
        return false;
    bool good = true;
    for (int i = 0; i < opt.procs; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            run_part(i, (struct results *)(all + bytes * (size_t)i));
            _exit(0);
        }
        good &= pid > 0;
    }
    for (int status; wait(&status) > 0;)
        good &= status == 0;
    for (int i = 0; i < opt.procs; i++)
        results_add((struct results *)(all + bytes * (size_t)i));
    munmap(all, bytes * (size_t)opt.procs);
    return good;
}

int main(int argc, char **argv)
{
    bool good = true;
    options(argc, argv);
    struct cpu before = server_cpu();
    int64_t t0 = clock_us();
    if (opt.procs > 1)
        good = run_processes();
    else
        run_all();
    double seconds = (double)(clock_us() - t0) / 1e6;
    struct cpu used = server_cpu();
    used.all -= before.all;
    used.loop -= before.loop;
    print(seconds, used);
    mem_free(st.ttft.v);
    mem_free(st.gap.v);
    mem_free(st.gap_slow.v);
    return !good || st.incomplete || st.errors || st.ended < opt.requests || st.hash_differs;
}
