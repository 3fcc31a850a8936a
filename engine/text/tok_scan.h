/* The two big values of a tokenizer.json, model.vocab and model.merges, read straight from the
 * text: a tree of half a million nodes for them would cost most of the time to start a server.
 * Everything else of the file goes through js.h. Runs once while a tokenizer loads. */
#ifndef SPECD_TEXT_TOK_SCAN_H
#define SPECD_TEXT_TOK_SCAN_H

#include <stdint.h>

#include "engine/base/buf.h"
#include "engine/base/err.h"
#include "engine/text/str.h"

struct scan { /* a stretch of JSON text; p NULL: absent */
    const char *p;
    size_t n, at;
};

/* Finds the object model.vocab and the array model.merges and appends the text without their
 * content to `rest`. What is not found, or not of that type, stays in `rest` as it is. */
void scan_split(const char *text, size_t len, struct scan *vocab, struct scan *merges,
                struct buf *rest);

/* Next entry of the object: 1 and the pair, 0 at the end, negative: malformed (the text says
 * where). The name is in `name` until the next call. */
int scan_vocab(struct scan *s, struct buf *name, int64_t *id, struct err *e);
/* Next entry of the array, in either notation, the same way. */
int scan_merge(struct scan *s, struct buf *left, struct buf *right, struct err *e);

#endif
