/* The table of routes; immutable. */
#include "server/routes.h"

#include <string.h>

#include "engine/base/check.h"

static const struct route routes[] = {
    /* path, post, key, ready, label, handler */
    {"/v1/completions", true, true, true, HL_COMPLETIONS, gen_completions},
    {"/v1/chat/completions", true, true, true, HL_CHAT, gen_chat},
    {"/chat/completions", true, true, true, HL_CHAT, gen_chat},
    {"/v1/models", false, true, true, HL_MODELS, admin_models},
    {"/models", false, true, true, HL_MODELS, admin_models},
    {"/v1/models/", false, true, true, HL_MODEL, admin_model},
    {"/tokenize", true, true, true, HL_TOKENIZE, text_tokenize},
    {"/v1/tokenize", true, true, true, HL_TOKENIZE, text_tokenize},
    {"/detokenize", true, true, true, HL_DETOKENIZE, text_detokenize},
    {"/v1/detokenize", true, true, true, HL_DETOKENIZE, text_detokenize},
    {"/health", false, false, false, HL_HEALTH, admin_health},
    {"/v1/health", false, false, false, HL_HEALTH, admin_health},
    {"/healthz", false, false, false, HL_HEALTH, admin_health},
    {"/ping", false, false, false, HL_HEALTH, admin_health},
    {"/health/ready", false, false, false, HL_HEALTH, admin_health},
    {"/health/live", false, false, false, HL_LIVE, admin_live},
    {"/version", false, false, false, HL_VERSION, admin_version},
    {"/metrics", false, false, false, HL_METRICS, admin_metrics},
};

const struct route *route_find(const char *path, const char **tail)
{
    size_t n = strlen(path);
    if (n > 1 && path[n - 1] == '/')
        n--;
    for (size_t i = 0; i < ARRAY_LEN(routes); i++) {
        const struct route *r = &routes[i];
        size_t m = strlen(r->path);
        if (r->path[m - 1] == '/' ? n > m && !memcmp(path, r->path, m)
                                  : n == m && !memcmp(path, r->path, m)) {
            *tail = r->path[m - 1] == '/' ? path + m : NULL;
            return r;
        }
    }
    return NULL;
}

const char *route_allow(const struct route *r)
{
    return r->post ? "POST, OPTIONS" : "GET, HEAD, OPTIONS";
}

int route_code_label(int status)
{
    static const int codes[] = {200, 204, 400, 401, 404, 405, 408, 413,
                                415, 429, 499, 500, 501, 503, 504};
    for (size_t i = 0; i < ARRAY_LEN(codes); i++)
        if (codes[i] == status)
            return (int)i;
    return 11; /* 500 */
}
