/* Text pipeline of one choice: token ids in, text that may be sent out. Runs on the scheduler
 * thread; one struct per request, no locks.
 *
 * It keeps back an incomplete UTF-8 tail and the longest suffix that could still become a stop
 * string, cuts at the earliest stop string (by token position, over all tokens of an accepted run)
 * and never emits invalid UTF-8: bytes that cannot become valid turn into U+FFFD, one per maximal
 * subpart. Streamed pieces concatenate to what a single call at the end would give. */
#ifndef SPECD_TEXT_STREAM_H
#define SPECD_TEXT_STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/buf.h"
#include "engine/text/tokenizer.h"

struct text_conf {
    const char *const *stop; /* n_stop non-empty strings, borrowed for the stream's life */
    size_t n_stop;
    bool include_stop;  /* keep the stop string in the text */
    bool skip_special;  /* special tokens give no text (a stop string in one still matches) */
    bool continues;     /* the text goes on after a prompt: a leading space is kept */
    int64_t min_tokens; /* stop strings do not end the text before this many tokens */
};

struct text_stop;
struct text_stream {
    struct text_conf conf;
    const struct tokenizer *tok;
    struct detok detok;     /* of the text with special tokens spelled out */
    struct text_stop *stop; /* [n_stop] matching state, owned */
    struct buf held;        /* decoded bytes that may become part of a stop string */
    struct buf hidden;      /* one byte for each of held: 1 = of a special token that is skipped */
    struct buf raw;         /* visible bytes past the stop hold, not yet cleaned */
    int64_t n_tok;          /* tokens pushed */
    int stopped;            /* index of the stop string that ended it, -1 */
};

void text_stream_init(struct text_stream *s, const struct tokenizer *t,
                      const struct text_conf *conf);
void text_stream_done(struct text_stream *s);
/* Consumes one token; appends to `out` what may be sent now. Returns 1 when a stop string ended
 * the text with this token (the token counts, later ones must not be pushed), else 0. */
int text_stream_push(struct text_stream *s, int32_t id, struct buf *out);
/* The end came from elsewhere (EOS, length): releases every hold into `out`; an incomplete UTF-8
 * tail becomes one U+FFFD. A final token without text (EOS) is simply not pushed. */
void text_stream_flush(struct text_stream *s, struct buf *out);

#endif
