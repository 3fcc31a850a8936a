/* Bytes to valid UTF-8: one U+FFFD per maximal subpart of what cannot become valid. */
#ifndef SPECD_TEXT_CLEAN_H
#define SPECD_TEXT_CLEAN_H

#include <stdbool.h>

#include "engine/base/buf.h"

/* Moves what is decided of `raw` to `out`; without `end` an incomplete tail (up to 3 bytes) stays
 * in `raw`, with it the tail becomes one U+FFFD. */
void clean_utf8(struct buf *raw, bool end, struct buf *out);

#endif
