/* Cleaning of decoded bytes; pure functions. */
#include "engine/text/clean.h"

#include "engine/base/utf8.h"

void clean_utf8(struct buf *raw, bool end, struct buf *out)
{
    size_t i = 0, good = 0; /* [good, i) is valid and not yet copied */
    while (i < raw->len) {
        uint32_t cp;
        int k = utf8_decode(raw->p + i, raw->len - i, &cp);
        if (k > 0) {
            i += (size_t)k;
            continue;
        }
        if (k == 0 && !end)
            break;
        buf_push(out, raw->p + good, i - good);
        buf_str(out, "\xef\xbf\xbd");
        i = k < 0 ? i + (size_t)-k : raw->len;
        good = i;
    }
    if (i > good)
        buf_push(out, raw->p + good, i - good);
    buf_drop(raw, i);
}
