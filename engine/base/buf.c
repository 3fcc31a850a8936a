/* Growing byte buffers; owned by one thread at a time. */
#include "engine/base/buf.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/err.h"
#include "engine/base/mem.h"

void buf_init(struct buf *b, size_t max)
{
    *b = (struct buf){.max = max};
}

void buf_done(struct buf *b)
{
    mem_free(b->p);
    *b = (struct buf){.max = b->max};
}

void buf_reset(struct buf *b)
{
    b->len = 0;
    b->full = false;
    if (b->p)
        b->p[0] = 0;
}

int buf_reserve(struct buf *b, size_t more)
{
    if (b->max && (more > b->max || b->len > b->max - more)) {
        b->full = true;
        return E_RANGE;
    }
    MEM_GROW(b->p, b->cap, b->len + more + 1);
    return OK;
}

int buf_push(struct buf *b, const void *p, size_t n)
{
    TRY(buf_reserve(b, n));
    if (n)
        memcpy(b->p + b->len, p, n);
    b->len += n;
    b->p[b->len] = 0;
    return OK;
}

int buf_str(struct buf *b, const char *s)
{
    return buf_push(b, s, strlen(s));
}

int buf_char(struct buf *b, char c)
{
    return buf_push(b, &c, 1);
}

int buf_fmt(struct buf *b, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n < 0)
        return E_INVAL;
    TRY(buf_reserve(b, (size_t)n));
    va_start(ap, fmt);
    vsnprintf(b->p + b->len, (size_t)n + 1, fmt, ap);
    va_end(ap);
    b->len += (size_t)n;
    return OK;
}

void buf_drop(struct buf *b, size_t n)
{
    if (n > b->len)
        n = b->len;
    if (!n)
        return;
    memmove(b->p, b->p + n, b->len - n);
    b->len -= n;
    b->p[b->len] = 0;
}

char *buf_take(struct buf *b)
{
    char *p = b->p ? b->p : mem_strdup("");
    *b = (struct buf){.max = b->max};
    return p;
}

const char *buf_cstr(const struct buf *b)
{
    return b->p ? b->p : "";
}
