/* Added tokens as a trie over bytes. From each position one walk down the trie, no longer than the
 * longest token of the set; most positions are dismissed by their first byte. */
#include "engine/text/added.h"

#include <string.h>
#include <utf8proc.h>

#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "engine/text/unicode.h"

struct added_node {
    int32_t child, sibling; /* 0: none; node 0 is not used */
    int32_t tok;            /* index of the token that ends here, -1 */
    unsigned char byte;
};

static int32_t node_new(struct added_set *s, unsigned char byte)
{
    if (!s->n_node)
        s->n_node = 1;
    MEM_GROW(s->node, s->cap_node, s->n_node + 1);
    s->node[s->n_node] = (struct added_node){.tok = -1, .byte = byte};
    return (int32_t)s->n_node++;
}

void added_put(struct added_set *s, const struct added *a)
{
    if (!a->text.n)
        return;
    MEM_GROW(s->v, s->cap, s->n + 1);
    s->v[s->n] = *a;
    s->n_special += a->special;
    const unsigned char *p = (const unsigned char *)a->text.p;
    int32_t at = s->root[p[0]];
    if (!at)
        at = s->root[p[0]] = node_new(s, p[0]);
    for (size_t i = 1; i < a->text.n; i++) {
        int32_t c = s->node[at].child;
        while (c && s->node[c].byte != p[i])
            c = s->node[c].sibling;
        if (!c) {
            c = node_new(s, p[i]);
            s->node[c].sibling = s->node[at].child;
            s->node[at].child = c;
        }
        at = c;
    }
    if (s->node[at].tok < 0)
        s->node[at].tok = (int32_t)s->n;
    s->n++;
}

void added_done(struct added_set *s)
{
    mem_free(s->v);
    mem_free(s->node);
    *s = (struct added_set){0};
}

enum verdict { TAKE, SKIP_WHOLE, TRY_SHORTER };

/* A special token that is text here is stepped over as a whole, as the reference does; one that
 * only touches a denied span is no token at all, so that denied text cannot hide the next one. */
static enum verdict judge(const struct added_where *w, const struct added *a, size_t from,
                          size_t to)
{
    if (!a->special)
        return TAKE;
    if (!w->special)
        return SKIP_WHOLE;
    from += w->base;
    to += w->base;
    size_t lo = 0, hi = w->n_deny; /* first span that ends behind `from` */
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (w->deny[mid].to <= from)
            lo = mid + 1;
        else
            hi = mid;
    }
    if (lo == w->n_deny || w->deny[lo].from >= to)
        return TAKE;
    return w->deny[lo].from <= from && to <= w->deny[lo].to ? SKIP_WHOLE : TRY_SHORTER;
}

/* Longest token at `at` that may be considered; NULL: none. */
static const struct added *match_at(const struct added_set *s, const struct added_where *w,
                                    const char *text, size_t n, size_t at, enum verdict *v)
{
    const struct added *best = NULL;
    const unsigned char *p = (const unsigned char *)text;
    int32_t c = s->root[p[at]];
    for (size_t i = at + 1; c; i++) {
        const struct added_node *d = &s->node[c];
        if (d->tok >= 0) {
            enum verdict x = judge(w, &s->v[d->tok], at, i);
            if (x != TRY_SHORTER) {
                best = &s->v[d->tok];
                *v = x;
            }
        }
        if (i == n)
            break;
        c = d->child;
        while (c && s->node[c].byte != p[i])
            c = s->node[c].sibling;
    }
    return best;
}

static size_t char_before(const char *s, size_t at, uint32_t *cp)
{
    size_t i = at;
    do
        i--;
    while (i && ((unsigned char)s[i] & 0xc0) == 0x80);
    utf8_decode(s + i, at - i, cp);
    return i;
}

static bool alone(const char *s, size_t n, size_t from, size_t to)
{
    uint32_t cp;
    if (from) {
        char_before(s, from, &cp);
        if (uc_is_word(cp))
            return false;
    }
    if (to < n) {
        utf8_decode(s + to, n - to, &cp);
        if (uc_is_word(cp))
            return false;
    }
    return true;
}

static void strip(const char *s, size_t n, size_t floor, struct added_match *m)
{
    uint32_t cp;
    if (m->tok->lstrip) {
        while (m->from > floor) {
            size_t i = char_before(s, m->from, &cp);
            if (i < floor || !uc_is_space(cp))
                break;
            m->from = i;
        }
    }
    if (m->tok->rstrip) {
        while (m->to < n) {
            int k = utf8_decode(s + m->to, n - m->to, &cp);
            if (!uc_is_space(cp))
                break;
            m->to += (size_t)k;
        }
    }
}

bool added_find(const struct added_set *s, const struct added_where *w, const char *text, size_t n,
                size_t at, size_t floor, struct added_match *m)
{
    if (!s->n)
        return false;
    while (at < n) {
        if (!s->root[(unsigned char)text[at]]) {
            at++;
            continue;
        }
        enum verdict v = TAKE;
        const struct added *a = match_at(s, w, text, n, at, &v);
        if (!a) {
            at++;
            continue;
        }
        size_t to = at + a->text.n;
        if (v == TAKE && !(a->single_word && !alone(text, n, at, to))) {
            *m = (struct added_match){.from = at, .to = to, .next = to, .tok = a};
            strip(text, n, floor, m);
            return true;
        }
        at = to;
    }
    return false;
}
