/* Byte-level alphabet, computed rather than tabled; pure functions. */
#include "engine/text/alphabet.h"

#include <stdint.h>

#include "engine/base/utf8.h"

static bool plain(uint32_t b)
{
    return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || (b >= 174 && b <= 255);
}

static int byte_of(uint32_t cp)
{
    if (cp < 256)
        return plain(cp) ? (int)cp : -1;
    cp -= 256;
    if (cp < 33)
        return (int)cp; /* 0 to 32 */
    cp -= 33;
    if (cp < 34)
        return (int)cp + 127; /* 127 to 160 */
    return cp == 34 ? 173 : -1;
}

bool alphabet_decode(const char *s, size_t n, struct buf *out)
{
    size_t keep = out->len;
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        int k = utf8_decode(s + i, n - i, &cp), b = k > 0 ? byte_of(cp) : -1;
        if (b < 0) {
            out->len = keep;
            return false;
        }
        buf_char(out, (char)b);
        i += (size_t)k;
    }
    return true;
}
