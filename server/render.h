/* Response shapes of completions and chat: JSON objects, stream chunks, log probabilities, usage.
 * Pure writers into buffers; no tree is built. */
#ifndef SPECD_SERVER_RENDER_H
#define SPECD_SERVER_RENDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/buf.h"
#include "engine/engine.h"

/* What all chunks and the answer of one request share. */
struct render {
    bool chat, usage_null; /* chunks carry "usage":null (include_usage was asked) */
    bool tokens_as_ids;
    /* spelling of tokens: engine_token_bytes and its engine */
    const char *(*token_bytes)(const struct engine *g, int32_t id, size_t *n);
    const struct engine *engine;
    struct buf head; /* of a chunk, up to and with "index": */
    const char *id, *model, *fingerprint;
    int64_t created;
};
void render_init(struct render *r, bool stream); /* writes the head from the other fields */
void render_done(struct render *r);

/* Log probabilities not yet written, as JSON fragments separated by commas. */
struct lp_acc {
    struct buf token, value, top, offset; /* chat uses `token` only: one object a token */
    int64_t n_chars;                      /* code points so far: the next text_offset */
    int n_tail;                           /* bytes that the last of them still lacks */
};
void lp_done(struct lp_acc *a);
/* `hidden`: the token gives no text (it does not move text_offset). */
void lp_push(struct lp_acc *a, const struct render *r, const struct gen_tok *t,
             bool first_of_prompt, bool hidden);
/* Writes the logprobs object and empties `a`; "null" when it holds nothing. */
void lp_put(struct buf *out, struct lp_acc *a, bool chat);

struct usage {
    int64_t prompt, completion, cached;
    bool spec; /* drafts were possible; the counts are those of the ended sequences */
    int64_t verifies, drafted, accepted;
};
void usage_put(struct buf *out, const struct usage *u); /* the object */

/* How a choice ended. */
struct ending {
    enum finish finish;
    const char *stop_string; /* the one that matched, NULL */
    int32_t stop_id;         /* a stop token that is not EOS, -1 */
};
void ending_put(struct buf *out, const struct ending *e); /* ,"finish_reason":…,"stop_reason":… */

struct chunk {
    int index;
    const char *text;
    size_t n_text;
    bool role;         /* chat: first delta of the choice */
    struct lp_acc *lp; /* NULL: logprobs were not asked for */
    const char *ids;   /* comma separated token ids, NULL */
    size_t n_ids;
    const char *prompt_ids; /* the same of the prompt, NULL */
    size_t n_prompt_ids;
    const struct ending *ending; /* NULL: not the last one */
    const struct usage *usage;   /* running usage (continuous_usage_stats), NULL */
};
/* One event "data: {…}\n\n". Chat with role and text at once writes two events. */
void chunk_put(struct buf *out, const struct render *r, const struct chunk *c);
void chunk_usage(struct buf *out, const struct render *r, const struct usage *u);

/* The whole answer: open, choices, close. */
void answer_open(struct buf *out, const struct render *r);
void answer_choice(struct buf *out, const struct render *r, const struct chunk *c);
void answer_close(struct buf *out, const struct usage *u);

/* A token's text as it stands in JSON (quotes included): bytes that are no UTF-8 of their own are
 * spelled "bytes:\xe2\x82". */
void token_put(struct buf *out, const struct render *r, int32_t id);

#endif
