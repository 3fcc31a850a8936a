/* Character classes by Unicode property; pure functions. */
#include "engine/text/unicode.h"

#include <string.h>
#include <utf8proc.h>

#include "engine/base/check.h"
#include "engine/base/utf8.h"

static const struct uc_range ranges[] = {
#define NEW(from, to, cat, han) {from, to, cat, han},
#include "engine/text/unicode_new.inc"
#undef NEW
};

const struct uc_range *uc_new_ranges(size_t *n)
{
    *n = ARRAY_LEN(ranges);
    return ranges;
}

const struct uc_range *uc_new(uint32_t cp)
{
    size_t lo = 0, hi = ARRAY_LEN(ranges); /* first range that ends at or behind cp */
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (ranges[mid].to < cp)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < ARRAY_LEN(ranges) && ranges[lo].from <= cp ? &ranges[lo] : NULL;
}

bool uc_has_new(const char *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        if ((unsigned char)s[i] < 0xe0) { /* below U+0800: none */
            i++;
            continue;
        }
        uint32_t cp = 0;
        i += (size_t)utf8_decode(s + i, n - i, &cp);
        if (cp >= 0x3200 && cp < 0xa700) /* most of CJK */
            continue;
        if (uc_new(cp))
            return true;
    }
    return false;
}

bool uc_is_numeric(uint32_t cp)
{
    const struct uc_range *r = uc_new(cp);
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
    return (r && r->cat[0] == 'N') || c == UTF8PROC_CATEGORY_ND || c == UTF8PROC_CATEGORY_NL ||
           c == UTF8PROC_CATEGORY_NO;
}

bool uc_is_space(uint32_t cp)
{
    return (cp >= 9 && cp <= 13) || cp == 0x20 || cp == 0x85 || cp == 0xa0 || cp == 0x1680 ||
           (cp >= 0x2000 && cp <= 0x200a) || cp == 0x2028 || cp == 0x2029 || cp == 0x202f ||
           cp == 0x205f || cp == 0x3000;
}

bool uc_is_word(uint32_t cp)
{
    const struct uc_range *r = uc_new(cp);
    if (r)
        return strchr("LMN", r->cat[0]) && strcmp(r->cat, "No") != 0;
    switch (utf8proc_category((utf8proc_int32_t)cp)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
        return true;
    default:
        /* Alphabetic symbols: circled and squared letters. */
        return cp == 0x200c || cp == 0x200d || (cp >= 0x24b6 && cp <= 0x24e9) ||
               (cp >= 0x1f130 && cp <= 0x1f149) || (cp >= 0x1f150 && cp <= 0x1f169) ||
               (cp >= 0x1f170 && cp <= 0x1f189);
    }
}
