/* Template text to tokens: delimiters, white space control (trim_blocks and lstrip_blocks are
 * always on, as chat templates expect), comments, raw blocks, literals. Runs once per template on
 * the thread that loads it. Bytes outside tags are handed over as they are. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "engine/limits.h"
#include "server/chat/ast.h"

struct lexer {
    struct chat_template *t;
    const char *s;
    size_t n, i;
    bool line_start; /* the last match ended a line (or nothing was read yet) */
    struct jt_tokens *out;
    char stack[LIM_CHAT_NESTING]; /* closing brackets that are due */
    size_t n_stack;
    struct err *e;
};

void jt_where(const struct chat_template *t, uint32_t pos, uint32_t *line, uint32_t *col)
{
    size_t from = 0;
    if (pos > t->n_src)
        pos = (uint32_t)t->n_src;
    *line = 1;
    for (size_t i = 0; i < pos; i++) {
        if (t->src[i] == '\n') {
            ++*line;
            from = i + 1;
        }
    }
    *col = (uint32_t)utf8_count(t->src + from, pos - from) + 1;
}

int jt_syntax(const struct chat_template *t, struct err *e, int code, uint32_t pos, const char *fmt,
              ...)
{
    char text[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    uint32_t line, col;
    jt_where(t, pos, &line, &col);
    return FAIL(e, code, "chat template, line %u, column %u: %s", line, col, text);
}

#define LEX_FAIL(x, code, at, ...) jt_syntax((x)->t, (x)->e, (code), (uint32_t)(at), __VA_ARGS__)

static struct jt_token *emit(struct lexer *x, enum jt_tok t, size_t pos)
{
    MEM_GROW(x->out->v, x->out->cap, x->out->n + 1);
    struct jt_token *k = &x->out->v[x->out->n++];
    *k = (struct jt_token){.t = (uint8_t)t, .pos = (uint32_t)pos};
    return k;
}

static void emit_text(struct lexer *x, size_t from, size_t to)
{
    if (from >= to)
        return;
    struct jt_token *k = emit(x, T_TEXT, from);
    k->p = x->s + from;
    k->len = (uint32_t)(to - from);
}

static bool at(const struct lexer *x, size_t i, const char *lit)
{
    size_t n = strlen(lit);
    return x->n - i >= n && !memcmp(x->s + i, lit, n);
}

static size_t skip_space(const struct lexer *x, size_t i)
{
    return i + jt_space_head(x->s + i, x->n - i);
}

/* The end of a tag at i ("%}", "-%}", "+%}"): where the text goes on, or 0 when it is not there.
 * `plus`: the tag knows the + sign; `trim`: one newline after it is eaten. */
static size_t tag_end(const struct lexer *x, size_t i, const char *close, bool plus, bool trim)
{
    if (i < x->n && x->s[i] == '-' && at(x, i + 1, close))
        return skip_space(x, i + 3);
    if (plus && i < x->n && x->s[i] == '+' && at(x, i + 1, close))
        return i + 3;
    if (!at(x, i, close))
        return 0;
    i += 2;
    return trim && i < x->n && x->s[i] == '\n' ? i + 1 : i;
}

static void moved(struct lexer *x, size_t to)
{
    CHECK(to > x->i);
    x->line_start = x->s[to - 1] == '\n';
    x->i = to;
}

/* The end of the text before a tag whose sign is `sign`. */
static size_t strip_text(const struct lexer *x, size_t from, size_t to, char sign, bool block)
{
    if (sign == '-')
        return to - jt_space_tail(x->s + from, to - from);
    if (sign == '+' || !block)
        return to;
    size_t line = to;
    while (line > from && x->s[line - 1] != '\n')
        line--;
    bool line_start = line > from || x->line_start;
    if (line_start && jt_space_head(x->s + line, to - line) == to - line)
        return line;
    return to;
}

/* "{% raw %}" at i: the offset after it, or 0. */
static size_t raw_begin(const struct lexer *x, size_t i, char *sign)
{
    i += 2;
    *sign = 0;
    if (i < x->n && (x->s[i] == '-' || x->s[i] == '+'))
        *sign = x->s[i++];
    i = skip_space(x, i);
    if (!at(x, i, "raw"))
        return 0;
    return tag_end(x, skip_space(x, i + 3), "%}", false, false);
}

static int lex_raw(struct lexer *x, size_t begin, size_t body)
{
    x->line_start = x->s[body - 1] == '\n';
    for (size_t i = body; i < x->n; i++) {
        if (!at(x, i, "{%"))
            continue;
        size_t j = i + 2;
        char sign = 0;
        if (j < x->n && (x->s[j] == '-' || x->s[j] == '+'))
            sign = x->s[j++];
        j = skip_space(x, j);
        if (!at(x, j, "endraw"))
            continue;
        size_t end = tag_end(x, skip_space(x, j + 6), "%}", true, true);
        if (!end)
            continue;
        emit_text(x, body, strip_text(x, body, i, sign, true));
        moved(x, end);
        return OK;
    }
    return LEX_FAIL(x, E_FORMAT, begin, "raw block without endraw");
}

static int lex_comment(struct lexer *x, size_t begin)
{
    for (size_t i = x->i; i < x->n; i++) {
        size_t end = tag_end(x, i, "#}", true, true);
        if (end) {
            moved(x, end);
            return OK;
        }
    }
    return LEX_FAIL(x, E_FORMAT, begin, "comment without end");
}

/* --- inside a tag --- */

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_name(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || is_digit(c) || c == '_';
}

/* Digits with single underscores between them; the offset behind. */
static size_t digits(const struct lexer *x, size_t i)
{
    while (i < x->n && (is_digit(x->s[i]) || (x->s[i] == '_' && is_digit(x->s[i - 1]) &&
                                              i + 1 < x->n && is_digit(x->s[i + 1]))))
        i++;
    return i;
}

static int lex_number(struct lexer *x)
{
    size_t from = x->i, i = digits(x, from);
    bool real = false;
    if (x->s[from] == '0' && from + 1 < x->n && strchr("xXbBoO", x->s[from + 1]))
        return LEX_FAIL(x, E_UNSUPPORTED, from, "only decimal numbers are supported");
    bool dotted = from > 0 && x->s[from - 1] == '.';
    if (!dotted && i + 1 < x->n && x->s[i] == '.' && is_digit(x->s[i + 1])) {
        real = true;
        i = digits(x, i + 1);
    }
    if (!dotted && i + 1 < x->n && (x->s[i] | 32) == 'e') {
        size_t j = i + 1;
        if (x->s[j] == '+' || x->s[j] == '-')
            j++;
        if (j < x->n && is_digit(x->s[j])) {
            real = true;
            i = digits(x, j);
        }
    }
    char num[64];
    size_t n = 0;
    for (size_t j = from; j < i; j++) {
        if (x->s[j] == '_')
            continue;
        if (n + 1 >= sizeof num)
            return LEX_FAIL(x, E_UNSUPPORTED, from, "number of more than 62 characters");
        num[n++] = x->s[j];
    }
    num[n] = 0;
    struct jt_token *k = emit(x, real ? T_FLOAT : T_INT, from);
    errno = 0;
    if (real)
        k->f = strtod(num, NULL);
    else
        k->i = strtoll(num, NULL, 10);
    if (!real && errno)
        return LEX_FAIL(x, E_UNSUPPORTED, from, "integer of more than 64 bits");
    if (!real && num[0] == '0' && strspn(num, "0") != n)
        return LEX_FAIL(x, E_FORMAT, from, "leading zero in a number");
    moved(x, i);
    return OK;
}

static int hex_escape(struct lexer *x, size_t i, size_t n, struct buf *b)
{
    uint32_t cp = 0;
    for (size_t k = 0; k < n; k++) {
        char c = i + k < x->n ? x->s[i + k] : 0;
        uint32_t d = is_digit(c)                          ? (uint32_t)(c - '0')
                     : (c | 32) >= 'a' && (c | 32) <= 'f' ? (uint32_t)((c | 32) - 'a' + 10)
                                                          : 16;
        if (d == 16)
            return LEX_FAIL(x, E_FORMAT, i, "bad hexadecimal escape in a string");
        cp = cp * 16 + d;
    }
    if (cp > 0x10ffff || (cp >= 0xd800 && cp < 0xe000))
        return LEX_FAIL(x, E_UNSUPPORTED, i, "escape of U+%04X in a string", cp);
    char u[4];
    buf_push(b, u, (size_t)utf8_encode(cp, u));
    return (int)n;
}

/* One escape; x->s[i] is the character behind the backslash. Returns bytes used from i on. */
static int escape(struct lexer *x, size_t i, struct buf *b)
{
    static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
    char c = x->s[i];
    const char *k = c ? strchr(from, c) : NULL;
    if (k) {
        buf_char(b, to[k - from]);
        return 1;
    }
    int n;
    switch (c) {
    case '\n':
        return 1;
    case 'x':
    case 'u':
    case 'U':
        n = hex_escape(x, i + 1, c == 'x' ? 2 : c == 'u' ? 4 : 8, b);
        return n < 0 ? n : n + 1;
    case 'N':
        return LEX_FAIL(x, E_UNSUPPORTED, i, "\\N escape in a string");
    }
    if (c >= '0' && c <= '7') {
        uint32_t cp = 0;
        for (n = 0; n < 3 && i + (size_t)n < x->n && x->s[i + (size_t)n] >= '0' &&
                    x->s[i + (size_t)n] <= '7';
             n++)
            cp = cp * 8 + (uint32_t)(x->s[i + (size_t)n] - '0');
        char u[4];
        buf_push(b, u, (size_t)utf8_encode(cp, u));
        return n;
    }
    buf_char(b, '\\');
    return 0;
}

static int lex_string(struct lexer *x)
{
    size_t from = x->i, i = from + 1;
    char q = x->s[from];
    while (i < x->n && x->s[i] != q)
        i += x->s[i] == '\\' ? 2 : 1;
    if (i >= x->n)
        return LEX_FAIL(x, E_FORMAT, from, "string without end");
    size_t end = i;
    const char *bs = memchr(x->s + from + 1, '\\', end - from - 1);
    struct jt_token *k = emit(x, T_STR, from);
    if (!bs) {
        k->p = x->s + from + 1;
        k->len = (uint32_t)(end - from - 1);
        moved(x, end + 1);
        return OK;
    }
    struct buf b;
    buf_init(&b, 0);
    int ret = OK;
    for (i = from + 1; i < end;) {
        if (x->s[i] != '\\') {
            buf_char(&b, x->s[i++]);
            continue;
        }
        ret = escape(x, i + 1, &b);
        if (ret < 0)
            break;
        i += 1 + (size_t)ret;
    }
    if (ret >= 0) {
        k->p = jt_arena_strndup(&x->t->arena, buf_cstr(&b), b.len);
        k->len = (uint32_t)b.len;
        moved(x, end + 1);
    }
    buf_done(&b);
    return ret < 0 ? ret : OK;
}

static int lex_operator(struct lexer *x)
{
    static const struct {
        char text[3];
        uint8_t op;
    } two[] = {{"//", OP_FLOORDIV}, {"**", OP_POW}, {"==", OP_EQ},
               {"!=", OP_NE},       {">=", OP_GE},  {"<=", OP_LE}};
    char c = x->s[x->i];
    for (size_t k = 0; k < ARRAY_LEN(two); k++) {
        if (at(x, x->i, two[k].text)) {
            emit(x, T_OP, x->i)->op = two[k].op;
            moved(x, x->i + 2);
            return OK;
        }
    }
    if (!c || !strchr("+-/*%~[](){}><=.:|,;", c))
        return LEX_FAIL(x, E_FORMAT, x->i, "unexpected character in a tag");
    if (c == '(' || c == '[' || c == '{') {
        if (x->n_stack == sizeof x->stack)
            return LEX_FAIL(x, E_RANGE, x->i, "more than %d nested brackets", LIM_CHAT_NESTING);
        x->stack[x->n_stack++] = c == '(' ? ')' : c == '[' ? ']' : '}';
    } else if (c == ')' || c == ']' || c == '}') {
        if (!x->n_stack || x->stack[--x->n_stack] != c)
            return LEX_FAIL(x, E_FORMAT, x->i, "unexpected '%c'", c);
    }
    emit(x, T_OP, x->i)->op = (uint8_t)c;
    moved(x, x->i + 1);
    return OK;
}

static int lex_tag(struct lexer *x, bool block, size_t begin)
{
    x->n_stack = 0;
    while (x->i < x->n) {
        size_t end = x->n_stack ? 0 : tag_end(x, x->i, block ? "%}" : "}}", block, block);
        if (end) {
            emit(x, block ? T_BLOCK_END : T_VAR_END, x->i);
            moved(x, end);
            return OK;
        }
        size_t ws = jt_space_head(x->s + x->i, x->n - x->i);
        char c = x->s[x->i];
        if (ws) {
            moved(x, x->i + ws);
        } else if (is_digit(c)) {
            TRY(lex_number(x));
        } else if (is_name(c)) {
            size_t from = x->i, i = from;
            while (i < x->n && is_name(x->s[i]))
                i++;
            struct jt_token *k = emit(x, T_NAME, from);
            k->p = x->s + from;
            k->len = (uint32_t)(i - from);
            moved(x, i);
        } else if (c == '"' || c == '\'') {
            TRY(lex_string(x));
        } else if ((unsigned char)c >= 0x80) {
            return LEX_FAIL(x, E_UNSUPPORTED, x->i, "name with characters outside ASCII");
        } else {
            TRY(lex_operator(x));
        }
    }
    return LEX_FAIL(x, E_FORMAT, begin, "tag without end");
}

static int lex_all(struct lexer *x)
{
    while (x->i < x->n) {
        size_t from = x->i, m = from;
        while (m < x->n && !(x->s[m] == '{' && m + 1 < x->n &&
                             (x->s[m + 1] == '{' || x->s[m + 1] == '%' || x->s[m + 1] == '#')))
            m++;
        if (m == x->n) {
            emit_text(x, from, m);
            break;
        }
        char kind = x->s[m + 1], sign = 0;
        size_t body = kind == '%' ? raw_begin(x, m, &sign) : 0;
        if (body) {
            emit_text(x, from, strip_text(x, from, m, sign, true));
            TRY(lex_raw(x, m, body));
            continue;
        }
        size_t i = m + 2;
        sign = i < x->n && (x->s[i] == '-' || x->s[i] == '+') ? x->s[i] : 0;
        emit_text(x, from, strip_text(x, from, m, sign, kind != '{'));
        moved(x, i + (sign != 0));
        if (kind == '#') {
            TRY(lex_comment(x, m));
            continue;
        }
        emit(x, kind == '%' ? T_BLOCK_BEGIN : T_VAR_BEGIN, m);
        TRY(lex_tag(x, kind == '%', m));
    }
    emit(x, T_EOF, x->n);
    return OK;
}

int jt_lex(struct chat_template *t, struct jt_tokens *out, struct err *e)
{
    struct lexer x = {.t = t, .s = t->src, .n = t->n_src, .line_start = true, .out = out, .e = e};
    return lex_all(&x);
}
