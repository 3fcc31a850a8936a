/* UTF-8 by RFC 3629: shortest form, no surrogates, at most U+10FFFF. */
#ifndef SPECD_BASE_UTF8_H
#define SPECD_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Decodes one code point at s (n > 0 bytes left). Returns its length 1..4 and stores it; 0 when
 * the bytes are a prefix of a valid sequence that ends too early (incomplete); -k (k = 1..3) when
 * they are invalid, k being the length of the maximal subpart to replace by one U+FFFD. */
int utf8_decode(const char *s, size_t n, uint32_t *cp);
int utf8_encode(uint32_t cp, char out[4]); /* length; cp must be valid */
bool utf8_valid(const char *s, size_t n);
size_t utf8_count(const char *s, size_t n); /* code points of valid text */

#endif
