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
 * scheduler thread; no clock and no randomness of its own.
 *
 * A drafter knows little of a request that ran without it for a while, and is seldom right there.
 * So acceptance is judged by requests that it has followed from their first token on, and only
 * those draft. A trial of depth 0 keeps it following. While depth 0 is in force trials show times
 * alone; for acceptance each also asks for probes: requests that begin from then on draft, until
 * enough of their verifies have come. */
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
    bool doubted[LIM_EMIT];               /* it is to count less when the next verify comes */
    double us[ADAPT_SIZES][ADAPT_DEPTHS]; /* a step's time by log2 of requests */
    int count[ADAPT_SIZES][ADAPT_DEPTHS]; /* measurements behind it, bounded; 0: not known */
    int in_vain[ADAPT_SIZES];             /* trials that left something unknown, saturating */
    int reqs;                             /* of the step planned last */
    int now;                              /* choice in force */
    int trial, trial_left;                /* choice tried, steps left of the trial */
    int wait;                             /* steps until a trial may begin */
    int probe, probe_left;                /* choice of the probes, verifies still wanted of them */
    int next;                             /* the choice tried last */
    bool hurry;                           /* the wait is short, for something unknown */
    long n_trial;                         /* steps of trials so far */
};

/* Depths 0, 1, … steps / 2, steps as rounds are recorded (runner_depth). */
void adapt_init(struct adapt *a, int steps);
/* What the next step is to do. */
struct adapt_step {
    int round; /* depth of the rounds that it makes; 0: none */
    int use;   /* depth down to which it verifies drafts, by which its time counts */
    bool all;  /* rounds for all requests, not only those that the drafter has followed */
};
/* For a step of `reqs` requests that may draft. Once a step. */
struct adapt_step adapt_step(struct adapt *a, int reqs);
/* A step came back: it used drafts to `depth`, all that there can be when `steady`. */
void adapt_time(struct adapt *a, int reqs, int depth, bool steady, double us);
/* What the choice at index i (of n) is believed to yield; false: nothing is known. */
bool adapt_guess(const struct adapt *a, int reqs, int i, double *tokens, double *us);
/* One verify of a request that the drafter has followed: `deep` drafts were on its longest path,
 * `accepted` of a path were right. */
void adapt_accept(struct adapt *a, int deep, int accepted);

#endif
