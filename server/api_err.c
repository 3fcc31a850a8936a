/* Error objects to JSON; pure. Which error is right is decided where it is found. */
#include "server/api_err.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/err.h"
#include "engine/base/utf8.h"
#include "server/jsonw.h"

int api_fail(struct api_err *e, int status, const char *code, const char *param, const char *fmt,
             ...)
{
    *e = (struct api_err){.status = status, .code = code, .n_prompt = -1};
    snprintf(e->param, sizeof e->param, "%s", param ? param : "");
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(e->text, sizeof e->text, fmt, ap);
    va_end(ap);
    return E_INVAL;
}

const char *api_err_type(int status)
{
    switch (status) {
    case 401:
        return "authentication_error";
    case 403:
        return "permission_error";
    case 404:
        return "not_found_error";
    case 408:
    case 504:
        return "timeout_error";
    case 409:
        return "conflict_error";
    case 429:
        return "rate_limit_error";
    case 500:
        return "server_error";
    case 501:
        return "not_supported_error";
    case 503:
        return "unavailable_error";
    }
    return "invalid_request_error";
}

/* Cut texts may end inside a character: drop the incomplete tail, replace what is wrong. */
static void put_clean(struct buf *out, const char *s)
{
    struct buf t;
    buf_init(&t, 0);
    for (size_t i = 0, n = strlen(s); i < n;) {
        uint32_t cp;
        int k = utf8_decode(s + i, n - i, &cp);
        if (k > 0)
            buf_push(&t, s + i, (size_t)k);
        else if (k == 0)
            break;
        else
            buf_str(&t, "\xef\xbf\xbd");
        i += (size_t)(k > 0 ? k : -k);
    }
    jw_str(out, buf_cstr(&t), t.len);
    buf_done(&t);
}

void api_err_json(struct buf *out, const struct api_err *e)
{
    buf_str(out, "{\"error\":{\"message\":");
    put_clean(out, e->text);
    buf_fmt(out, ",\"type\":\"%s\",\"param\":", api_err_type(e->status));
    if (*e->param)
        put_clean(out, e->param);
    else
        buf_str(out, "null");
    if (e->code)
        buf_fmt(out, ",\"code\":\"%s\"", e->code);
    else
        buf_str(out, ",\"code\":null");
    if (e->n_ctx > 0)
        buf_fmt(out, ",\"n_prompt_tokens\":%lld,\"n_ctx\":%lld", (long long)e->n_prompt,
                (long long)e->n_ctx);
    buf_str(out, "}}");
}
