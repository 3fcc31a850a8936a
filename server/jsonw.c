/* The JSON writer of the hot path; pure. Runs of plain bytes are copied whole: one table look-up a
 * byte, one reservation a string. */
#include "server/jsonw.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* 0: copy; 'u': \u00XX; else the letter after the backslash. */
static const char escape[256] = {
    [0x00 ... 0x07] = 'u', ['\b'] = 'b', ['\t'] = 't', ['\n'] = 'n',          [0x0b] = 'u',
    ['\f'] = 'f',          ['\r'] = 'r', ['"'] = '"',  [0x0e ... 0x1f] = 'u', ['\\'] = '\\',
};

void jw_escape(struct buf *b, const char *s, size_t n)
{
    static const char hex[] = "0123456789abcdef";
    if (buf_reserve(b, n) < 0)
        return;
    size_t from = 0;
    for (size_t i = 0; i < n; i++) {
        char x = escape[(unsigned char)s[i]];
        if (!x)
            continue;
        buf_push(b, s + from, i - from);
        from = i + 1;
        char out[6] = {'\\', x, '0', '0', hex[(unsigned char)s[i] >> 4], hex[s[i] & 15]};
        buf_push(b, out, x == 'u' ? 6 : 2);
    }
    buf_push(b, s + from, n - from);
}

void jw_str(struct buf *b, const char *s, size_t n)
{
    buf_char(b, '"');
    jw_escape(b, s, n);
    buf_char(b, '"');
}

void jw_int(struct buf *b, int64_t v)
{
    char tmp[24];
    int at = sizeof tmp;
    uint64_t u = v < 0 ? 0 - (uint64_t)v : (uint64_t)v;
    do {
        tmp[--at] = (char)('0' + u % 10);
        u /= 10;
    } while (u);
    if (v < 0)
        tmp[--at] = '-';
    buf_push(b, tmp + at, sizeof tmp - (size_t)at);
}

void jw_num(struct buf *b, double v)
{
    if (isnan(v) || v < -1e30)
        v = -9999;
    if (v > 1e30)
        v = 9999;
    v += 0.0; /* -0 + 0 is +0 */
    char tmp[40];
    int n = snprintf(tmp, sizeof tmp, "%.9g", v);
    buf_push(b, tmp, (size_t)n);
    if (!strpbrk(tmp, ".e"))
        buf_str(b, ".0");
}
