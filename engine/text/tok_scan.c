/* A JSON reader for two shapes only: an object of strings to integers and an array of pairs. It
 * accepts exactly what the standard allows for them; finding them skips over the rest without
 * judging it. Pure functions. */
#include "engine/text/tok_scan.h"

#include <string.h>

#include "engine/base/utf8.h"

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static void space(struct scan *s)
{
    while (s->at < s->n && is_space(s->p[s->at]))
        s->at++;
}

/* Where a number or a name ends. */
static bool is_border(char c)
{
    return is_space(c) || c == ',' || c == ':' || c == ']' || c == '}' || c == '"' || !c;
}

/* The next character behind white space, 0 at the end. */
static char peek(struct scan *s)
{
    space(s);
    return s->at < s->n ? s->p[s->at] : 0;
}

static bool take(struct scan *s, char c)
{
    if (peek(s) != c)
        return false;
    s->at++;
    return true;
}

static int bad(const struct scan *s, const char *what, struct err *e)
{
    return FAIL(e, E_FORMAT, "malformed JSON: %s at byte %zu of the value", what, s->at);
}

static int hex4(struct scan *s, uint32_t *out)
{
    uint32_t v = 0;
    if (s->n - s->at < 4)
        return -1;
    for (int i = 0; i < 4; i++) {
        char c = s->p[s->at++];
        int d = c >= '0' && c <= '9'   ? c - '0'
                : c >= 'a' && c <= 'f' ? c - 'a' + 10
                : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                       : -1;
        if (d < 0)
            return -1;
        v = v << 4 | (uint32_t)d;
    }
    *out = v;
    return 0;
}

/* Behind the backslash. */
static int escape(struct scan *s, struct buf *out, struct err *e)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    char c = s->at < s->n ? s->p[s->at++] : 0;
    const char *k = c ? strchr(from, c) : NULL;
    if (k)
        return buf_char(out, to[k - from]);
    uint32_t cp, low;
    if (c != 'u' || hex4(s, &cp) < 0)
        return bad(s, "an escape", e);
    if (cp >= 0xd800 && cp < 0xdc00) {
        if (s->n - s->at < 6 || s->p[s->at] != '\\' || s->p[s->at + 1] != 'u')
            return bad(s, "half a surrogate pair", e);
        s->at += 2;
        if (hex4(s, &low) < 0 || low < 0xdc00 || low > 0xdfff)
            return bad(s, "half a surrogate pair", e);
        cp = 0x10000 + ((cp - 0xd800) << 10) + (low - 0xdc00);
    }
    if (!cp || (cp >= 0xdc00 && cp < 0xe000))
        return bad(s, "an escape of no character", e);
    char u[4];
    return buf_push(out, u, (size_t)utf8_encode(cp, u));
}

static int string(struct scan *s, struct buf *out, struct err *e)
{
    buf_reset(out);
    if (!take(s, '"'))
        return bad(s, "no string", e);
    for (;;) {
        size_t from = s->at;
        while (s->at < s->n && (unsigned char)s->p[s->at] >= 0x20 && s->p[s->at] != '"' &&
               s->p[s->at] != '\\')
            s->at++;
        if (!utf8_valid(s->p + from, s->at - from))
            return bad(s, "a string that is not UTF-8", e);
        buf_push(out, s->p + from, s->at - from);
        char c = s->at < s->n ? s->p[s->at] : 0;
        if (c != '"' && c != '\\')
            return bad(s, "a string without end", e);
        s->at++;
        if (c == '"')
            return OK;
        TRY(escape(s, out, e));
    }
}

static void skip_string(struct scan *s)
{
    for (s->at++; s->at < s->n && s->p[s->at] != '"'; s->at++)
        s->at += s->p[s->at] == '\\' && s->at + 1 < s->n;
    s->at += s->at < s->n;
}

/* Past one value of any kind; wherever that leads when it is malformed. */
static void skip_value(struct scan *s)
{
    size_t depth = 0;
    do {
        char c = peek(s);
        if (!c)
            return;
        if (c == '"') {
            skip_string(s);
        } else if (c == '{' || c == '[') {
            depth++;
            s->at++;
        } else if (c == '}' || c == ']') {
            if (!depth)
                return;
            depth--;
            s->at++;
        } else if (c == ',' || c == ':') {
            if (!depth)
                return;
            s->at++;
        } else {
            do
                s->at++;
            while (s->at < s->n && !is_border(s->p[s->at]));
        }
    } while (depth);
}

/* Walks the members of an object, s behind its brace: 1 with s in front of a value. */
static int member(struct scan *s, struct buf *key, bool *first)
{
    if (peek(s) == '}' || (!*first && !take(s, ',')))
        return 0;
    *first = false;
    return string(s, key, NULL) == OK && take(s, ':');
}

static void find_model(struct scan *s, struct scan *vocab, struct scan *merges, struct buf *key)
{
    bool first = true;
    while (member(s, key, &first)) {
        char c = peek(s);
        size_t from = s->at;
        skip_value(s);
        struct scan v = {s->p + from, s->at - from, 0};
        if (c == '{' && !strcmp(buf_cstr(key), "vocab") && !vocab->p && v.n >= 2)
            *vocab = v;
        else if (c == '[' && !strcmp(buf_cstr(key), "merges") && !merges->p && v.n >= 2)
            *merges = v;
    }
    take(s, '}');
}

/* Copies text up to the content of a value that was found, and steps over that. */
static void cut(struct buf *rest, const char **from, const struct scan *v)
{
    buf_push(rest, *from, (size_t)(v->p + 1 - *from));
    *from = v->p + v->n - 1;
}

void scan_split(const char *text, size_t len, struct scan *vocab, struct scan *merges,
                struct buf *rest)
{
    struct scan s = {text, len, 0};
    struct buf key = {0};
    bool first = true;
    *vocab = *merges = (struct scan){0};
    if (len >= 3 && !memcmp(text, "\xef\xbb\xbf", 3))
        s.at = 3;
    if (take(&s, '{')) {
        while (member(&s, &key, &first)) {
            if (!strcmp(buf_cstr(&key), "model") && take(&s, '{'))
                find_model(&s, vocab, merges, &key);
            else
                skip_value(&s);
        }
    }
    buf_done(&key);
    const char *from = text;
    const struct scan *a = vocab, *b = merges;
    if (a->p && b->p && b->p < a->p) {
        a = merges;
        b = vocab;
    }
    if (a->p)
        cut(rest, &from, a);
    if (b->p)
        cut(rest, &from, b);
    buf_push(rest, from, (size_t)(text + len - from));
}

/* Opens on the first call; 1 in front of an entry, 0 at the end. */
static int entry(struct scan *s, char open, char close, struct err *e)
{
    bool first = !s->at;
    if (first && !take(s, open))
        return bad(s, "no value", e);
    if (take(s, close)) {
        if (s->at != s->n)
            return bad(s, "something behind the end", e);
        return 0;
    }
    if (!first && !take(s, ','))
        return bad(s, "no comma", e);
    return 1;
}

int scan_vocab(struct scan *s, struct buf *name, int64_t *id, struct err *e)
{
    int more = entry(s, '{', '}', e);
    if (more <= 0)
        return more;
    TRY(string(s, name, e));
    if (!take(s, ':'))
        return bad(s, "no colon", e);
    bool minus = take(s, '-');
    char c = peek(s);
    if (c < '0' || c > '9')
        return bad(s, "an id that is no integer", e);
    int64_t v = 0;
    while (s->at < s->n && s->p[s->at] >= '0' && s->p[s->at] <= '9') {
        v = v < INT32_MAX ? v * 10 + (s->p[s->at] - '0') : v;
        s->at++;
    }
    c = s->at < s->n ? s->p[s->at] : 0;
    if (c == '.' || c == 'e' || c == 'E')
        return bad(s, "an id that is no integer", e);
    *id = minus ? -v : v;
    return 1;
}

int scan_merge(struct scan *s, struct buf *left, struct buf *right, struct err *e)
{
    int more = entry(s, '[', ']', e);
    if (more <= 0)
        return more;
    if (take(s, '[')) {
        TRY(string(s, left, e));
        if (!take(s, ','))
            return bad(s, "a pair of one", e);
        TRY(string(s, right, e));
        return take(s, ']') ? 1 : bad(s, "more than a pair", e);
    }
    TRY(string(s, left, e));
    const char *sp = strchr(buf_cstr(left), ' ');
    if (!sp || strchr(sp + 1, ' '))
        return bad(s, "a merge without exactly one space", e);
    buf_reset(right);
    buf_str(right, sp + 1);
    left->len = (size_t)(sp - left->p);
    left->p[left->len] = 0;
    return 1;
}
