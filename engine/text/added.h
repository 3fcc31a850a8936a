/* Added tokens: texts that become one id before anything else looks at the input. A set finds the
 * leftmost, then longest, token in a text. Immutable once built; searches are pure. */
#ifndef SPECD_TEXT_ADDED_H
#define SPECD_TEXT_ADDED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/span.h"
#include "engine/text/str.h"

struct added {
    struct str text; /* normalized already when the set is the normalized one */
    int32_t id;
    bool special, single_word, lstrip, rstrip, normalized;
};

struct added_node;
struct added_set { /* zero-initialise */
    struct added *v;
    size_t n, cap;
    size_t n_special;
    struct added_node *node;
    size_t n_node, cap_node;
    int32_t root[256]; /* node of a first byte, 0: none */
};

void added_put(struct added_set *s, const struct added *a); /* an empty text is ignored */
void added_done(struct added_set *s);

/* Where special tokens count: nowhere without `special`, else outside the given spans (ascending;
 * positions are those of the text searched plus `base`). */
struct added_where {
    bool special;
    const struct span *deny;
    size_t n_deny;
    size_t base;
};

struct added_match {
    size_t from, to; /* with the white space that lstrip and rstrip take */
    size_t next;     /* where the search goes on */
    const struct added *tok;
};
/* Next token that starts at or after `at`; `floor` is where text not yet consumed begins (lstrip
 * does not reach before it). false: none. */
bool added_find(const struct added_set *s, const struct added_where *w, const char *text, size_t n,
                size_t at, size_t floor, struct added_match *m);

#endif
