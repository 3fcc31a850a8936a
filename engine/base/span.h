/* A half-open byte range of a text. Rendering a chat template yields the text and the spans of it
 * that came from the client ("untrusted"): special tokens are never recognised there. */
#ifndef SPECD_BASE_SPAN_H
#define SPECD_BASE_SPAN_H

#include <stddef.h>

struct span {
    size_t from, to; /* bytes, from < to; lists are ascending and do not overlap */
};

#endif
