/* The one error object of the API: a status, a machine code, the field and a sentence. */
#ifndef SPECD_SERVER_API_ERR_H
#define SPECD_SERVER_API_ERR_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/buf.h"

struct api_err {
    int status;        /* HTTP status, 0: none */
    const char *code;  /* static string or NULL */
    char param[160];   /* dotted path of the field, "" none */
    char text[700];    /* one sentence */
    int retry_after;   /* seconds, 0: no header */
    int64_t n_prompt;  /* with context_length_exceeded: tokens of the prompt, else -1 */
    int64_t n_ctx;     /* and the context */
    const char *allow; /* 405: the Allow header */
    bool close;        /* the connection cannot be used again */
};

/* Fills `e` and returns E_INVAL. */
int api_fail(struct api_err *e, int status, const char *code, const char *param, const char *fmt,
             ...) __attribute__((format(printf, 5, 6)));
/* Appends {"error":{…}}. */
void api_err_json(struct buf *out, const struct api_err *e);
const char *api_err_type(int status);

#endif
