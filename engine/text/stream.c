/* Ids of one choice to text that may be sent. Two holds follow each other: bytes that may turn out
 * to be part of a stop string, then an incomplete UTF-8 sequence. Stop strings are matched by one
 * automaton each (Knuth, Morris and Pratt 1977), so a byte costs the same whatever is held, and
 * the longest partial match of any of them is exactly what has to wait. */
#include "engine/text/stream.h"

#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/text/clean.h"

struct text_stop {
    const char *s;
    size_t n;
    size_t at;    /* bytes matched so far, < n */
    size_t *fail; /* [n + 1] longest proper prefix that is a suffix of the first i bytes */
};

static void stop_init(struct text_stop *p, const char *s)
{
    size_t n = strlen(s);
    CHECK(n > 0);
    *p = (struct text_stop){.s = s, .n = n, .fail = MEM_ARRAY(size_t, n + 1)};
    size_t k = 0;
    for (size_t i = 1; i < n; i++) {
        while (k && s[i] != s[k])
            k = p->fail[k];
        k += s[i] == s[k];
        p->fail[i + 1] = k;
    }
}

/* true: the string is complete with byte c. */
static bool stop_step(struct text_stop *p, char c)
{
    while (p->at && p->s[p->at] != c)
        p->at = p->fail[p->at];
    p->at += p->s[p->at] == c;
    if (p->at < p->n)
        return false;
    p->at = p->fail[p->n];
    return true;
}

void text_stream_init(struct text_stream *s, const struct tokenizer *t,
                      const struct text_conf *conf)
{
    *s = (struct text_stream){.conf = *conf, .tok = t, .stopped = -1};
    detok_init(&s->detok, t, false);
    s->detok.started = conf->continues;
    buf_init(&s->held, 0);
    buf_init(&s->hidden, 0);
    buf_init(&s->raw, 0);
    s->stop = MEM_ARRAY(struct text_stop, conf->n_stop + 1);
    for (size_t i = 0; i < conf->n_stop; i++)
        stop_init(&s->stop[i], conf->stop[i]);
}

void text_stream_done(struct text_stream *s)
{
    for (size_t i = 0; s->stop && i < s->conf.n_stop; i++)
        mem_free(s->stop[i].fail);
    mem_free(s->stop);
    s->stop = NULL;
    buf_done(&s->held);
    buf_done(&s->hidden);
    buf_done(&s->raw);
}

/* Passes the first n held bytes on; hidden ones vanish here. */
static void release(struct text_stream *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        size_t j = i + 1;
        while (j < n && s->hidden.p[j] == s->hidden.p[i])
            j++;
        if (!s->hidden.p[i])
            buf_push(&s->raw, s->held.p + i, j - i);
        i = j;
    }
    buf_drop(&s->held, n);
    buf_drop(&s->hidden, n);
}

/* Steps all automata over held[from..]. The first stop string to be complete wins, the longest of
 * those that end at the same byte; -1: none. *end: bytes of held up to and with it. */
static int match(struct text_stream *s, size_t from, size_t *end)
{
    bool early = s->n_tok < s->conf.min_tokens;
    for (size_t i = from; i < s->held.len; i++) {
        int best = -1;
        for (size_t k = 0; k < s->conf.n_stop; k++)
            if (stop_step(&s->stop[k], s->held.p[i]) && !early &&
                (best < 0 || s->stop[k].n > s->stop[best].n))
                best = (int)k;
        if (best >= 0) {
            *end = i + 1;
            return best;
        }
    }
    return -1;
}

int text_stream_push(struct text_stream *s, int32_t id, struct buf *out)
{
    CHECK(s->stopped < 0);
    size_t from = s->held.len, end = 0;
    bool hide = s->conf.skip_special && tok_is_special(s->tok, id);
    bool started = s->detok.started;
    s->n_tok++;
    detok_push(&s->detok, id, &s->held);
    if (hide) /* what is not shown does not begin the text either */
        s->detok.started = started;
    size_t added = s->held.len - from;
    if (added) {
        buf_reserve(&s->hidden, added);
        memset(s->hidden.p + from, hide, added);
        s->hidden.len += added;
    }
    s->stopped = match(s, from, &end);
    if (s->stopped >= 0) {
        /* A stop string that an earlier token began is still held from its first byte. */
        size_t n = s->stop[s->stopped].n;
        CHECK(end >= n);
        release(s, s->conf.include_stop ? end : end - n);
        clean_utf8(&s->raw, true, out);
        return 1;
    }
    size_t hold = 0;
    for (size_t k = 0; k < s->conf.n_stop; k++)
        hold = s->stop[k].at > hold ? s->stop[k].at : hold;
    release(s, s->held.len - hold);
    clean_utf8(&s->raw, false, out);
    return 0;
}

void text_stream_flush(struct text_stream *s, struct buf *out)
{
    if (s->stopped < 0)
        release(s, s->held.len);
    clean_utf8(&s->raw, true, out);
}
