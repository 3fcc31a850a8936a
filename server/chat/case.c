/* Character classes and case mapping as Python's str has them: simple mappings from utf8proc, the
 * multi-character ones of Unicode's SpecialCasing.txt from a table. Pure functions. */
#include <string.h>
#include <utf8proc.h>

#include "engine/base/check.h"
#include "engine/base/utf8.h"
#include "server/chat/runtime.h"

#include "server/chat/case_table.h"

bool jt_is_space(uint32_t c)
{
    return (c >= 9 && c <= 13) || (c >= 28 && c <= 32) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f ||
           c == 0x205f || c == 0x3000;
}

size_t jt_space_head(const char *p, size_t n)
{
    size_t i = 0;
    while (i < n) {
        uint32_t cp;
        int k = utf8_decode(p + i, n - i, &cp);
        if (k < 1 || !jt_is_space(cp))
            break;
        i += (size_t)k;
    }
    return i;
}

size_t jt_space_tail(const char *p, size_t n)
{
    size_t end = n;
    while (end) {
        size_t i = end - 1;
        while (i && ((unsigned char)p[i] & 0xc0) == 0x80)
            i--;
        uint32_t cp;
        if (utf8_decode(p + i, end - i, &cp) != (int)(end - i) || !jt_is_space(cp))
            break;
        end = i;
    }
    return n - end;
}

bool jt_is_printable(uint32_t cp)
{
    switch (utf8proc_category((utf8proc_int32_t)cp)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
        return false;
    case UTF8PROC_CATEGORY_ZS:
        return cp == ' ';
    default:
        return true;
    }
}

bool jt_is_cased(uint32_t cp)
{
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
    return c == UTF8PROC_CATEGORY_LU || c == UTF8PROC_CATEGORY_LL || c == UTF8PROC_CATEGORY_LT;
}

static const struct special *special(uint32_t cp)
{
    size_t lo = 0, hi = ARRAY_LEN(specials);
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (specials[mid].cp < cp)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < ARRAY_LEN(specials) && specials[lo].cp == cp ? &specials[lo] : NULL;
}

/* What a character becomes: up to three. */
static int map_char(uint32_t cp, enum jt_case how, uint32_t out[3])
{
    utf8proc_int32_t c = (utf8proc_int32_t)cp;
    const struct special *s = cp >= 0x80 ? special(cp) : NULL;
    if (how == JT_LOWER) {
        out[0] = (uint32_t)utf8proc_tolower(c);
        out[1] = 0x307;
        if (cp == 0x130)
            out[0] = 'i';
        return cp == 0x130 ? 2 : 1;
    }
    if (s) {
        const uint16_t *m = how == JT_UPPER ? s->upper : s->title;
        int n = 0;
        for (; n < 3 && m[n]; n++)
            out[n] = m[n];
        return n;
    }
    out[0] = (uint32_t)(how == JT_UPPER ? utf8proc_toupper(c) : utf8proc_totitle(c));
    return 1;
}

/* A sigma is final (Unicode 3.13) when a cased letter stands before it and none behind it,
 * marks and the like between them not counting. */
static bool passes(uint32_t cp)
{
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
    return c == UTF8PROC_CATEGORY_MN || c == UTF8PROC_CATEGORY_ME || c == UTF8PROC_CATEGORY_CF ||
           c == UTF8PROC_CATEGORY_LM || c == UTF8PROC_CATEGORY_SK || cp == '\'' || cp == '.' ||
           cp == ':' || cp == 0xb7 || cp == 0x2019 || cp == 0x2027 || cp == 0x2018 ||
           cp == 0x2024 || cp == 0x387 || cp == 0x55f || cp == 0x5f4;
}

static bool final_sigma(const char *p, size_t n, size_t at)
{
    uint32_t cp = 0;
    size_t i = at;
    bool before = false;
    while (i) {
        size_t end = i--;
        while (i && ((unsigned char)p[i] & 0xc0) == 0x80)
            i--;
        if (utf8_decode(p + i, end - i, &cp) < 1)
            break;
        if (!passes(cp)) {
            before = jt_is_cased(cp);
            break;
        }
    }
    for (i = at + 2; before && i < n;) {
        int k = utf8_decode(p + i, n - i, &cp);
        if (k < 1)
            break;
        if (!passes(cp))
            return !jt_is_cased(cp);
        i += (size_t)k;
    }
    return before;
}

/* Text in ASCII keeps its length, so the marks stay where they are. */
static void case_ascii(struct jt_rt *rt, struct jt_str *s, enum jt_case how, struct jt_val *out)
{
    struct jt_str *r = jt_arena_alloc(&rt->arena, sizeof *r);
    char *q = jt_arena_strndup(&rt->arena, s->p, s->len);
    bool in_word = false;
    for (size_t i = 0; i < s->len; i++) {
        bool up =
            how == JT_UPPER || (how == JT_CAPITALIZE && i == 0) || (how == JT_TITLE && !in_word);
        bool letter = (q[i] | 32) >= 'a' && (q[i] | 32) <= 'z';
        if (letter)
            q[i] = (char)(up ? q[i] & ~32 : q[i] | 32);
        in_word = letter;
    }
    *r = *s;
    r->p = q;
    *out = jt_strv(r);
}

int jt_case(struct jt_rt *rt, struct jt_str *s, enum jt_case how, struct jt_val *out)
{
    const char *p = jt_str_flat(rt, s);
    bool ascii = true, in_word = false;
    size_t m = 0;
    TRY(rt_step(rt, s->len * 4));
    for (size_t i = 0; ascii && i < s->len; i++)
        ascii = (unsigned char)p[i] < 0x80;
    if (ascii) {
        case_ascii(rt, s, how, out);
        return OK;
    }
    struct chat_text *sb = jt_sb_open(rt);
    for (size_t i = 0; i < s->len;) {
        uint32_t cp = 0, to[3];
        int n = utf8_decode(p + i, s->len - i, &cp);
        CHECK(n > 0); /* strings of a render are valid UTF-8 */
        enum jt_case one = how == JT_CAPITALIZE ? (i ? JT_LOWER : JT_TITLE)
                           : how == JT_TITLE    ? (in_word ? JT_LOWER : JT_TITLE)
                                                : how;
        int k = map_char(cp, one, to);
        if (cp == 0x3a3 && one == JT_LOWER) {
            to[0] = final_sigma(p, s->len, i) ? 0x3c2 : 0x3c3;
            TRY(rt_step(rt, 0));
        }
        enum jt_origin o = (enum jt_origin)s->origin;
        if (o == JT_MIXED) {
            while (m < s->n_marks && s->marks[m].to <= i)
                m++;
            o = m < s->n_marks && s->marks[m].from <= i ? JT_REQUEST : JT_TEMPLATE;
        }
        for (int j = 0; j < k; j++) {
            char u[4];
            jt_sb_push(sb, u, (size_t)utf8_encode(to[j], u), o);
        }
        in_word = jt_is_cased(cp);
        i += (size_t)n;
    }
    return jt_sb_close(rt, sb, out);
}
