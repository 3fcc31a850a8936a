/* The few character classes the tokenizer tests itself; everything else goes through patterns. */
#ifndef SPECD_TEXT_UNICODE_H
#define SPECD_TEXT_UNICODE_H

#include <stdbool.h>
#include <stdint.h>

bool uc_is_space(uint32_t cp); /* White_Space */
bool uc_is_word(uint32_t cp);  /* Alphabetic, marks, decimal digits, connectors, joiners (UTS 18) */

#endif
