/* Checks of request heads that libmicrohttpd 0.9.75 does not make: message framing that two parsers
 * could read differently, host, content types, keys. Pure on the header list. */
#include <ctype.h>
#include <microhttpd.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "server/http.h"

static enum MHD_Result one_header(void *cls, enum MHD_ValueKind kind, const char *key,
                                  const char *value)
{
    (void)kind;
    struct wire *w = cls;
    if (!value)
        value = "";
    if (!strcasecmp(key, "Host")) {
        w->n_host++;
    } else if (!strcasecmp(key, "Content-Length")) {
        w->n_length++;
        w->length = strtoll(value, NULL, 10);
    } else if (!strcasecmp(key, "Transfer-Encoding")) {
        w->n_encoding++;
        w->encoding = value;
    } else if (!strcasecmp(key, "Expect")) {
        w->expect = value;
    } else if (!strcasecmp(key, "Content-Type")) {
        w->type = value;
    } else if (!strcasecmp(key, "Content-Encoding")) {
        w->content_encoding = value;
    } else if (!strcasecmp(key, "Authorization")) {
        w->authorization = value;
    } else if (!strcasecmp(key, "X-Api-Key")) {
        w->api_key = value;
    } else if (!strcasecmp(key, "X-Request-Id")) {
        w->rid = value;
    }
    return MHD_YES;
}

void wire_read(struct wire *w, struct MHD_Connection *c)
{
    *w = (struct wire){.length = -1};
    MHD_get_connection_values(c, MHD_HEADER_KIND, one_header, w);
}

bool wire_check(struct hreq *r, const struct wire *w, const char *version, bool bad_uri)
{
    if (w->n_length > 1 || w->n_encoding > 1 || (w->n_length && w->n_encoding)) {
        api_fail(&r->early, 400, NULL, NULL,
                 "The request has more than one Content-Length or Transfer-Encoding");
    } else if (w->n_encoding && strcasecmp(w->encoding, "chunked")) {
        api_fail(&r->early, 501, NULL, NULL, "Transfer-Encoding '%.40s' is not supported",
                 w->encoding);
    } else if (w->n_host > 1 || (!w->n_host && !strcmp(version, "HTTP/1.1"))) {
        api_fail(&r->early, 400, NULL, NULL, "The request must have one Host header, it has %d",
                 w->n_host);
    } else if (bad_uri) {
        api_fail(&r->early, 400, NULL, NULL, "The path must not contain %%00");
    } else {
        return false;
    }
    r->early.close = true;
    return true;
}

/* application/json and application/anything+json with any parameters, charset utf-8 if named. */
static bool is_json(const char *t)
{
    size_t n = strcspn(t, "; \t");
    if (!((n == 16 && !strncasecmp(t, "application/json", 16)) ||
          (n > 5 && !strncasecmp(t + n - 5, "+json", 5))))
        return false;
    const char *c = strcasestr(t + n, "charset");
    if (!c)
        return true;
    c += strlen("charset");
    c += strspn(c, " \t=\"");
    return !strncasecmp(c, "utf-8", 5) || !strncasecmp(c, "utf8", 4);
}

void wire_check_body(struct hreq *r, const struct wire *w, int64_t max_body)
{
    if (w->content_encoding && *w->content_encoding && strcasecmp(w->content_encoding, "identity"))
        api_fail(&r->early, 415, "unsupported_media_type", NULL,
                 "Content-Encoding '%.40s' is not supported", w->content_encoding);
    else if (w->type && *w->type && !is_json(w->type))
        api_fail(&r->early, 415, "unsupported_media_type", NULL,
                 "Content-Type '%.60s' is not supported: add -H 'Content-Type: application/json' "
                 "(UTF-8)",
                 w->type);
    else if (w->length > max_body)
        api_fail(&r->early, 413, "request_too_large", NULL,
                 "The request body has %lld bytes, at most %lld are allowed", (long long)w->length,
                 (long long)max_body);
}

/* Time depends on the lengths only. */
static bool same(const char *key, const char *given)
{
    size_t n = strlen(key), m = strlen(given);
    volatile unsigned char diff = n != m;
    for (size_t i = 0; i < m; i++)
        diff |= (unsigned char)(given[i] ^ key[n ? i % n : 0]);
    return !diff;
}

bool wire_key_ok(const struct wire *w, char *const *keys, size_t n)
{
    const char *given = w->api_key;
    if (w->authorization && !strncasecmp(w->authorization, "Bearer ", 7)) {
        given = w->authorization + 7;
        given += strspn(given, " ");
    }
    if (!given)
        return false;
    bool ok = false;
    for (size_t i = 0; i < n; i++) /* all of them, found or not */
        ok |= same(keys[i], given);
    return ok;
}

enum http_method wire_method(const char *m)
{
    static const char *const names[] = {"GET", "HEAD", "POST", "OPTIONS"};
    for (int i = 0; i < 4; i++)
        if (!strcmp(m, names[i]))
            return (enum http_method)i;
    return HM_OTHER;
}

const char *wire_path(const char *url)
{
    if (strncasecmp(url, "http://", 7) && strncasecmp(url, "https://", 8))
        return url;
    const char *p = strchr(strchr(url, ':') + 3, '/');
    return p ? p : "/";
}
