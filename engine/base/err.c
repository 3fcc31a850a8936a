/* Error values: formatting only; any thread, no state. */
#include "engine/base/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int err_set(struct err *e, int code, const char *file, int line, const char *fmt, ...)
{
    if (!e)
        return code;
    e->code = code;
    e->file = file;
    e->line = line;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(e->text, sizeof e->text, fmt, ap);
    va_end(ap);
    return code;
}

int err_prefix(struct err *e, const char *fmt, ...)
{
    if (!e)
        return E_INVAL;
    char head[sizeof e->text];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(head, sizeof head, fmt, ap);
    va_end(ap);
    if (n < 0 || (size_t)n >= sizeof head)
        return e->code;
    size_t left = sizeof head - (size_t)n;
    snprintf(head + n, left, ": %.*s", (int)(left > 3 ? left - 3 : 0), e->text);
    memcpy(e->text, head, sizeof head);
    return e->code;
}

const char *err_name(int code)
{
    switch (code) {
    case OK:
        return "ok";
    case E_NOMEM:
        return "out of memory";
    case E_INVAL:
        return "invalid";
    case E_UNSUPPORTED:
        return "unsupported";
    case E_BUSY:
        return "busy";
    case E_IO:
        return "i/o error";
    case E_FORMAT:
        return "malformed";
    case E_CANCELED:
        return "canceled";
    case E_DEVICE:
        return "device error";
    case E_RANGE:
        return "too long";
    }
    return "unknown error";
}
