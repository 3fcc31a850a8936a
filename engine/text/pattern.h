/* Patterns of a tokenizer.json: a regular expression of the reference engine's dialect, a literal
 * string, or "any numeric character". Immutable once open; what a search needs to write lives in a
 * struct pat_run that belongs to one call.
 *
 * Regular expressions run on PCRE2. Its dialect differs from the one tokenizer files are written
 * for, so a pattern is rewritten construct by construct and whatever would not mean the same is
 * refused by name (README.md has the list). */
#ifndef SPECD_TEXT_PATTERN_H
#define SPECD_TEXT_PATTERN_H

#include <stdbool.h>
#include <stddef.h>

#include "engine/base/buf.h"
#include "engine/base/err.h"

struct pattern;
enum { PAT_NO_JIT = 1 }; /* flags: interpret, as on a host that forbids executable memory */

int pattern_regex(struct pattern **out, const char *re, size_t n, unsigned flags, struct err *e);
int pattern_literal(struct pattern **out, const char *s, size_t n, struct err *e);
void pattern_numeric(struct pattern **out);
void pattern_close(struct pattern *p);

/* Only the rewriting; appends to out. fresh: properties also name the characters that PCRE2 does
 * not know yet (unicode.h). */
int pattern_translate(const char *re, size_t n, bool fresh, struct buf *out, struct err *e);

struct pat_run { /* zero-initialise; one thread */
    void *match, *ctx, *stack;
    bool fresh; /* the text holds such characters: search with the slower form */
};
void pat_run_done(struct pat_run *r);

/* Walks the non-overlapping matches of one text from left to right. */
struct pat_iter {
    const struct pattern *p;
    struct pat_run *run;
    const char *s; /* valid UTF-8, n bytes */
    size_t n, at, last;
    bool any; /* a match was given: an empty one right behind it is skipped */
};
void pat_iter_init(struct pat_iter *i, const struct pattern *p, struct pat_run *run, const char *s,
                   size_t n);
/* 1: a match at [*from, *to); 0: no more; negative: the engine gave up (E_RANGE). */
int pat_next(struct pat_iter *i, size_t *from, size_t *to, struct err *e);

#endif
