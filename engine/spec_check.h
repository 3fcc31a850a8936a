/* The drafter's self-check at start. */
#ifndef SPECD_ENGINE_SPEC_CHECK_H
#define SPECD_ENGINE_SPEC_CHECK_H

#include "engine/engine.h"

struct spec_checked {
    bool enough;   /* drafts were verified often enough to judge */
    bool good;     /* not below the floor (15 %) */
    double first;  /* share of verifies whose first draft was right */
    double length; /* mean tokens a verify */
};
/* Runs one request and waits for it; nobody else may poll meanwhile. */
int spec_check(struct engine *g, struct spec_checked *out, struct err *e);

#endif
