/* JSON writing without a tree: appends to a buffer. Input strings are valid UTF-8. */
#ifndef SPECD_SERVER_JSONW_H
#define SPECD_SERVER_JSONW_H

#include <stddef.h>
#include <stdint.h>

#include "engine/base/buf.h"

void jw_str(struct buf *b, const char *s, size_t n);    /* quoted and escaped */
void jw_escape(struct buf *b, const char *s, size_t n); /* the same without the quotes */
void jw_int(struct buf *b, int64_t v);
/* Up to 9 significant digits; -infinity (and NaN) become -9999.0, never "-0". */
void jw_num(struct buf *b, double v);

#endif
