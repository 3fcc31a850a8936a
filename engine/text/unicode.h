/* The few character classes the tokenizer tests itself; everything else goes through patterns. */
#ifndef SPECD_TEXT_UNICODE_H
#define SPECD_TEXT_UNICODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Characters assigned after Unicode 14, which is what the oldest supported PCRE2 knows; the
 * reference knows Unicode 16. */
struct uc_range {
    uint32_t from, to;
    char cat[3]; /* general category */
    bool han;
};
const struct uc_range *uc_new_ranges(size_t *n); /* ascending */
const struct uc_range *uc_new(uint32_t cp);      /* NULL: none of them */
bool uc_has_new(const char *s, size_t n);        /* s is valid UTF-8 */

bool uc_is_numeric(uint32_t cp); /* N */
bool uc_is_space(uint32_t cp);   /* White_Space */
bool uc_is_word(uint32_t cp); /* Alphabetic, marks, decimal digits, connectors, joiners (UTS 18) */

#endif
