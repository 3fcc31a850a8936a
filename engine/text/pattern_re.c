/* Rewrites a regular expression of the dialect tokenizer files are written in (Oniguruma with Ruby
 * syntax) into one that PCRE2 (UTF, UCP, MULTILINE) runs with the same meaning. It is an allow
 * list: a construct that is not known to agree is refused by name, so a file either tokenizes as
 * its author meant or does not load. Called while a tokenizer loads; pure. */
#include <ctype.h>
#include <string.h>

#include "engine/base/utf8.h"
#include "engine/text/pattern.h"
#include "engine/text/unicode.h"

#define SPACE "\\p{White_Space}" /* \s of PCRE2 also takes U+180E */

struct tr {
    const char *s;
    size_t n, at;
    bool fresh;
    struct buf *out;
    struct err *e;
};

#define REFUSE(t, ...) FAIL((t)->e, E_UNSUPPORTED, "regular expression: " __VA_ARGS__)

static int peek(const struct tr *t, size_t k)
{
    return t->at + k < t->n ? (unsigned char)t->s[t->at + k] : -1;
}

static bool starts(const struct tr *t, const char *lit)
{
    size_t n = strlen(lit);
    return t->n - t->at >= n && !memcmp(t->s + t->at, lit, n);
}

static int put(struct tr *t, const char *s, size_t take)
{
    t->at += take;
    return buf_str(t->out, s);
}

/* One character as it stands. */
static int copy(struct tr *t)
{
    uint32_t cp;
    int k = utf8_decode(t->s + t->at, t->n - t->at, &cp);
    if (k <= 0)
        return REFUSE(t, "not UTF-8 at byte %zu", t->at);
    TRY(buf_push(t->out, t->s + t->at, (size_t)k));
    t->at += (size_t)k;
    return OK;
}

static bool in_list(const char *const *list, const char *name)
{
    for (; *list; list++)
        if (!strcasecmp(*list, name))
            return true;
    return false;
}

/* The new characters of a category ("L", "Lu"), of Han, or all that count as alphabetic. */
static int new_ranges(struct tr *t, const char *what)
{
    size_t n;
    const struct uc_range *r = uc_new_ranges(&n);
    bool han = !strcasecmp(what, "Han"), alpha = !strcasecmp(what, "Alphabetic");
    if (strlen(what) > 2 && !han && !alpha)
        return OK;
    for (size_t i = 0; i < n; i++) {
        bool in = han     ? r[i].han
                  : alpha ? r[i].cat[0] == 'L' || !strcmp(r[i].cat, "Nl")
                          : !strncasecmp(r[i].cat, what, strlen(what));
        if (in)
            TRY(buf_fmt(t->out, "\\x{%x}-\\x{%x}", (unsigned)r[i].from, (unsigned)r[i].to));
    }
    return OK;
}

/* A property as a class of its own or inside one. A negated property inside a class cannot take
 * the new characters out again: they stay in, as unassigned ones would. */
static int emit(struct tr *t, bool negate, bool in_class, const char *pre, const char *name)
{
    if (!t->fresh || (in_class && negate))
        return buf_fmt(t->out, "\\%c{%s%s}", negate ? 'P' : 'p', pre, name);
    if (!in_class)
        TRY(buf_str(t->out, negate ? "[^" : "["));
    TRY(buf_fmt(t->out, "\\p{%s%s}", pre, name));
    TRY(new_ranges(t, name));
    return in_class ? OK : buf_str(t->out, "]");
}

static int word(struct tr *t, bool negate, bool in_class)
{
    static const char *const parts[] = {"Alphabetic", "M", "Nd", "Pc"};
    if (!in_class)
        TRY(buf_str(t->out, negate ? "[^" : "["));
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        TRY(emit(t, false, true, "", parts[i]));
    return in_class ? OK : buf_str(t->out, "]");
}

/* \p{…}: general categories mean the same; a script is spelled with sc: because the bare name also
 * takes script extensions in PCRE2. */
static int property(struct tr *t, bool negate, bool in_class)
{
    static const char *const cats[] = {"L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn", "Mc", "Me",
                                       "N",  "Nd", "Nl", "No", "P",  "Pc", "Pd", "Ps", "Pe", "Pi",
                                       "Pf", "Po", "S",  "Sm", "Sc", "Sk", "So", "Z",  "Zs", "Zl",
                                       "Zp", "C",  "Cc", "Cf", "Co", "Cn", NULL};
    static const char *const scripts[] = {
        "Han",    "Hiragana",  "Katakana",   "Hangul",   "Latin",    "Greek",   "Cyrillic",
        "Arabic", "Hebrew",    "Thai",       "Lao",      "Khmer",    "Myanmar", "Tamil",
        "Telugu", "Bengali",   "Armenian",   "Georgian", "Ethiopic", "Tibetan", "Bopomofo",
        "Common", "Inherited", "Devanagari", NULL};
    static const struct {
        const char *name, *cat;
    } longs[] = {{"Letter", "L"},      {"Mark", "M"},   {"Number", "N"},
                 {"Punctuation", "P"}, {"Symbol", "S"}, {"Separator", "Z"}};
    t->at += 2;
    char name[40];
    size_t k = 0;
    if (peek(t, 0) != '{')
        return REFUSE(t, "\\p without braces");
    t->at++;
    if (peek(t, 0) == '^') {
        negate = !negate;
        t->at++;
    }
    while (isalnum(peek(t, 0)) || peek(t, 0) == '_') {
        if (k + 1 == sizeof name)
            return REFUSE(t, "property name too long");
        name[k++] = t->s[t->at++];
    }
    name[k] = 0;
    if (peek(t, 0) != '}')
        return REFUSE(t, "property '%s' is not closed", name);
    t->at++;
    const char *as = name, *pre = "";
    bool ok =
        in_list(cats, name) || !strcasecmp(name, "White_Space") || !strcasecmp(name, "Alphabetic");
    for (size_t i = 0; i < sizeof longs / sizeof longs[0] && !ok; i++) {
        ok = !strcasecmp(name, longs[i].name);
        if (ok)
            as = longs[i].cat;
    }
    if (!ok && in_list(scripts, name)) {
        ok = true;
        pre = "sc:";
    }
    if (!ok)
        return REFUSE(t, "property \\p{%s} is not supported", name);
    return emit(t, negate, in_class, pre, as);
}

/* \xHH, \x{H…}, \uHHHH */
static int hex_escape(struct tr *t)
{
    bool u = peek(t, 1) == 'u', brace = !u && peek(t, 2) == '{';
    size_t want = u ? 4 : brace ? 8 : 2, k = 0;
    t->at += brace ? 3 : 2;
    uint32_t cp = 0;
    while (k < want && isxdigit(peek(t, 0))) {
        int c = tolower(peek(t, 0));
        cp = cp << 4 | (uint32_t)(c <= '9' ? c - '0' : c - 'a' + 10);
        t->at++;
        k++;
    }
    if (!k || (u && k != 4) || (brace && peek(t, 0) != '}'))
        return REFUSE(t, "malformed hexadecimal escape");
    t->at += brace;
    if (cp > 0x10ffff || (cp >= 0xd800 && cp < 0xe000) || (!u && !brace && cp > 0x7f))
        return REFUSE(t, "escape of %#x is not a character", (unsigned)cp);
    return buf_fmt(t->out, "\\x{%x}", (unsigned)cp);
}

static int escape(struct tr *t, bool in_class)
{
    int c = peek(t, 1);
    switch (c) {
    case -1:
        return REFUSE(t, "ends in a backslash");
    case 's':
        return put(t, SPACE, 2);
    case 'S':
        return put(t, "\\P{White_Space}", 2);
    case 'd':
    case 'D':
        t->at += 2;
        return emit(t, c == 'D', in_class, "", "Nd");
    case 'w':
        t->at += 2;
        return word(t, false, in_class);
    case 'h':
        return put(t, in_class ? "0-9a-fA-F" : "[0-9a-fA-F]", 2);
    case 'W':
        if (in_class)
            return REFUSE(t, "\\W in a class is not supported");
        t->at += 2;
        return word(t, true, false);
    case 'v':
        return put(t, "\\x0b", 2);
    case 'r':
    case 'n':
    case 't':
    case 'f':
    case 'a':
    case 'e':
        TRY(buf_push(t->out, t->s + t->at, 2));
        t->at += 2;
        return OK;
    case 'p':
    case 'P':
        return property(t, c == 'P', in_class);
    case 'x':
    case 'u':
        return hex_escape(t);
    case 'A':
    case 'z':
        if (!in_class)
            return put(t, c == 'A' ? "\\A" : "\\z", 2);
        break;
    default:
        break;
    }
    if (isalnum(c))
        return REFUSE(t, "escape \\%c is not supported", c);
    if (c < 0x80)
        TRY(buf_char(t->out, '\\'));
    t->at++;
    return copy(t);
}

static int class(struct tr *t)
{
    TRY(put(t, "[", 1));
    if (peek(t, 0) == '^')
        TRY(put(t, "^", 1));
    if (peek(t, 0) == ']')
        TRY(put(t, "\\]", 1));
    while (peek(t, 0) != ']') {
        int c = peek(t, 0);
        if (c < 0)
            return REFUSE(t, "a class is not closed");
        if (c == '[')
            return REFUSE(t, "a class inside a class is not supported");
        if (c == '&' && peek(t, 1) == '&')
            return REFUSE(t, "class intersection && is not supported");
        TRY(c == '\\' ? escape(t, true) : copy(t));
    }
    return put(t, "]", 1);
}

static int group(struct tr *t)
{
    static const char *const ok[] = {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:"};
    for (size_t i = 0; i < sizeof ok / sizeof ok[0]; i++)
        if (starts(t, ok[i]))
            return put(t, ok[i], strlen(ok[i]));
    /* Elsewhere an option without a group of its own splits alternatives differently. */
    if (starts(t, "(?i)") && t->at == 0)
        return put(t, "(?i)", 4);
    if (peek(t, 1) == '?' || peek(t, 1) == '*')
        return REFUSE(t, "group '%.4s' is not supported", t->s + t->at);
    return put(t, "(?:", 1); /* nothing can refer back to it */
}

/* {n} {n,} {,m} {n,m}; anything else is a literal brace. */
static int interval(struct tr *t)
{
    size_t i = t->at + 1, lo = i, comma = 0, hi = 0;
    while (i < t->n && isdigit((unsigned char)t->s[i]))
        i++;
    size_t lo_n = i - lo;
    if (i < t->n && t->s[i] == ',') {
        comma = 1;
        hi = ++i;
        while (i < t->n && isdigit((unsigned char)t->s[i]))
            i++;
    }
    size_t hi_n = comma ? i - hi : 0;
    if (i >= t->n || t->s[i] != '}' || (!lo_n && !hi_n))
        return put(t, "\\{", 1);
    TRY(buf_char(t->out, '{'));
    TRY(lo_n ? buf_push(t->out, t->s + lo, lo_n) : buf_char(t->out, '0'));
    if (comma)
        TRY(buf_char(t->out, ','));
    if (hi_n)
        TRY(buf_push(t->out, t->s + hi, hi_n));
    t->at = i + 1;
    if (peek(t, 0) == '+' || (peek(t, 0) == '?' && !comma))
        return REFUSE(t, "'%c' behind an interval means something else here", peek(t, 0));
    return buf_char(t->out, '}');
}

int pattern_translate(const char *re, size_t n, bool fresh, struct buf *out, struct err *e)
{
    struct tr t = {.s = re, .n = n, .fresh = fresh, .out = out, .e = e};
    /* Trailing space: a failed try from the first space of a run fails from every later one too,
     * and saying so keeps a long run inside a line from costing its square. */
    if (n == 4 && !memcmp(re, "\\s+$", 4))
        TRY(buf_str(out, "(?<!" SPACE ")"));
    while (t.at < n) {
        switch (re[t.at]) {
        case '\\':
            TRY(escape(&t, false));
            break;
        case '[':
            TRY(class(&t));
            break;
        case '(':
            TRY(group(&t));
            break;
        case '{':
            TRY(interval(&t));
            break;
        case 0:
            return REFUSE(&t, "NUL byte");
        default:
            TRY(copy(&t));
        }
    }
    return OK;
}
