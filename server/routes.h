/* One row a route, and the label lists that metrics.def repeats in the same order. */
#ifndef SPECD_SERVER_ROUTES_H
#define SPECD_SERVER_ROUTES_H

#include "server/http.h"

/* Order of the "handler" labels; the first two are also those of "endpoint". */
enum handler_label {
    HL_COMPLETIONS,
    HL_CHAT,
    HL_MODELS,
    HL_MODEL,
    HL_HEALTH,
    HL_LIVE,
    HL_VERSION,
    HL_METRICS,
    HL_TOKENIZE,
    HL_DETOKENIZE,
    HL_OTHER,
};

enum outcome {
    OUT_STOP,
    OUT_LENGTH,
    OUT_ABORT_CLIENT,
    OUT_ABORT_TIMEOUT,
    OUT_ABORT_SHUTDOWN,
    OUT_ERROR,
    OUT_INVALID,
    OUT_OVERLOAD,
    OUT_UNREADY,
};

struct route {
    const char *path; /* ends in '/': a prefix, the rest is hreq.tail */
    bool post;        /* POST; else GET and HEAD */
    bool key;         /* needs an API key when keys are configured */
    bool ready;       /* needs the model: 503 while loading or draining */
    enum handler_label label;
    void (*fn)(struct hreq *r);
};

/* The row of a path (one trailing slash is tolerated), NULL: unknown. *tail is set for prefixes. */
const struct route *route_find(const char *path, const char **tail);
const char *route_allow(const struct route *r);
int route_code_label(int status); /* index of the "code" label */

/* handlers */
void gen_completions(struct hreq *r);
void gen_chat(struct hreq *r);
void admin_models(struct hreq *r);
void admin_model(struct hreq *r);
void admin_health(struct hreq *r);
void admin_live(struct hreq *r);
void admin_version(struct hreq *r);
void admin_metrics(struct hreq *r);
void text_tokenize(struct hreq *r);
void text_detokenize(struct hreq *r);

#endif
