/* Declarations of the algorithms, for registry.c. */
#ifndef SPECD_SPEC_ALGOS_H
#define SPECD_SPEC_ALGOS_H

#include "speculative/spec.h"

extern const struct spec_algo spec_off;

#endif
