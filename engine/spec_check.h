/* The drafter's self-check at start. */
#ifndef SPECD_ENGINE_SPEC_CHECK_H
#define SPECD_ENGINE_SPEC_CHECK_H

#include <pthread.h>

#include "engine/engine.h"

struct spec_checked {
    bool enough;   /* drafts were verified often enough to judge */
    bool good;     /* not below the floor (15 %) */
    double first;  /* share of verifies whose first draft was right */
    double length; /* mean tokens a verify */
};
/* Where the check waits for its events: the engine's wake function while it runs. */
struct spec_waiter {
    pthread_mutex_t lock; /* guards `woken` */
    pthread_cond_t more;
    bool woken;
};
/* The engine's as long as it lives: a wake-up may still be under way when the check is over. */
void spec_waiter_init(struct spec_waiter *w);
void spec_waiter_done(struct spec_waiter *w);
void spec_wake(void *waiter);
void spec_wait(struct spec_waiter *w); /* until woken; it may have been before */
/* Runs a few requests and waits for them; nobody else may poll meanwhile. */
int spec_check(struct engine *g, struct spec_waiter *w, struct spec_checked *out, struct err *e);
/* A few steps of one request and of several, with drafts and without: what the adaptive depth
 * starts from. As above. */
int spec_time(struct engine *g, struct spec_waiter *w, struct err *e);

enum { SPEC_SIZES = 4 };
/* How many requests to time after n sizes (size[], ascending) that took us[]; 0: enough. At most
 * `most`; beyond 8 none that would take more than a fifth of a second, by what those before took.
 */
int spec_next_size(int n, const int *size, const double *us, int most);

#endif
