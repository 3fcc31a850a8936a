/* How deep to draft: the depth with the most expected tokens a microsecond, by measured step times
 * and measured acceptance. Depth 0 is no drafting at all, so that speculation is never a loss for
 * long.
 *
 * The model: a step of n requests at depth k yields n (1 + sum over i <= k of reach[i]) tokens,
 * where reach[i] is the share of verified paths whose first i drafts were accepted; it takes
 * us[n][k]. Both are running means. Every now and then a few steps run at another depth, so that
 * a figure that was not used for long is not believed for ever; what such a trial finds weighs
 * more than what was known. The wait between trials is so long that what they lose, by the figures
 * known when they begin, stays a small share of the time; where nothing can be measured it
 * doubles. The choice changes only when the other side is better by a margin. State of the
 * scheduler thread; no clock and no randomness of its own. */
#ifndef SPECD_SPEC_ADAPT_H
#define SPECD_SPEC_ADAPT_H

#include <stdbool.h>

#include "engine/limits.h"

enum { ADAPT_DEPTHS = 8, ADAPT_SIZES = 12 };

struct adapt {
    int n;                                /* choices */
    int depth[ADAPT_DEPTHS];              /* ascending; depth[0] = 0 */
    double reach[LIM_EMIT];               /* [i]: of paths at least i deep; reach[0] = 1 */
    double seen[LIM_EMIT];                /* verifies behind it; its memory is bounded */
    double us[ADAPT_SIZES][ADAPT_DEPTHS]; /* a step's time by log2 of requests */
    int count[ADAPT_SIZES][ADAPT_DEPTHS]; /* measurements behind it, bounded; 0: not known */
    int in_vain[ADAPT_SIZES];             /* trials that left something unknown, saturating */
    int reqs;                             /* of the step planned last */
    int now;                              /* choice in force */
    int trial, trial_left;                /* choice tried, steps left of the trial */
    int wait;                             /* steps until a trial may begin */
    int next;                             /* the choice tried last */
    bool hurry;                           /* the wait is short, for something unknown */
    long n_trial;                         /* steps of trials so far */
};

/* Depths 0, 1, … steps / 2, steps as rounds are recorded (runner_depth). */
void adapt_init(struct adapt *a, int steps);
/* Depth for the next step, of `reqs` requests that may draft. Once a step. */
int adapt_depth(struct adapt *a, int reqs);
/* A step came back: it was planned at `depth`, the step before it too when `steady`. */
void adapt_time(struct adapt *a, int reqs, int depth, bool steady, double us);
/* What the choice at index i (of n) is believed to yield; false: nothing is known. */
bool adapt_guess(const struct adapt *a, int reqs, int i, double *tokens, double *us);
/* One verify: `deep` drafts were on its longest path, `accepted` of a path were right. */
void adapt_accept(struct adapt *a, int deep, int accepted);

#endif
