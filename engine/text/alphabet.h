/* The 256 characters that byte-level vocabularies spell bytes with: printable bytes stand for
 * themselves, the other 68 are U+0100 and up in order (Radford et al. 2019). */
#ifndef SPECD_TEXT_ALPHABET_H
#define SPECD_TEXT_ALPHABET_H

#include <stdbool.h>
#include <stddef.h>

#include "engine/base/buf.h"

/* Appends the bytes spelled by n bytes of UTF-8; false (nothing appended) when a character is not
 * of the alphabet. */
bool alphabet_decode(const char *s, size_t n, struct buf *out);

#endif
