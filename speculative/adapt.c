/* The choice of depth; see the header. */
#include "speculative/adapt.h"

#include "engine/base/check.h"

enum {
    TRIAL = 6,          /* steps of a trial */
    SOON = 24,          /* steps until something unknown is tried … */
    PERIOD = 400,       /* … and between trials of what is known, at least */
    PERIOD_MAX = 25600, /* and at most */
    COUNT_MIN = 3,      /* measurements before a time is believed */
    COUNT_MAX = 32,     /* a time's memory, in measurements */
    COUNT_OLD = 4,      /* what is left of it when a trial begins */
    SEEN_MAX = 100,     /* an acceptance's memory, in verifies, … */
    SEEN_STEPS = 32,    /* … or steps, if that is more */
    SEEN_OLD = 8,       /* what is left of it when a trial begins */
    SEEN_STEPS_OLD = 2,
};
static const double margin = 1.01; /* another depth must be better by this factor */
static const double share = 0.008; /* of the time that trials may lose */

static int size_of(int reqs)
{
    int s = 0;
    while (s < ADAPT_SIZES - 1 && 1 << s < reqs)
        s++;
    return s;
}

void adapt_init(struct adapt *a, int steps)
{
    CHECK(steps >= 0 && steps < LIM_EMIT);
    *a = (struct adapt){.trial = -1, .wait = SOON};
    for (int d = steps; d >= 1; d /= 2)
        a->n++;
    int i = a->n++;
    for (int d = steps; d >= 1; d /= 2)
        a->depth[i--] = d;
    CHECK(a->n <= ADAPT_DEPTHS);
    for (int k = 0; k < LIM_EMIT; k++)
        a->reach[k] = 1;
    a->now = a->n - 1;
}

static double expected(const struct adapt *a, int choice)
{
    double e = 1;
    for (int i = 1; i <= a->depth[choice]; i++)
        e += a->reach[i];
    return e;
}

/* The best known choice for this many requests; the one in force unless another wins clearly. */
static int best_of(const struct adapt *a, int size)
{
    int best = a->now;
    const double *us = a->us[size];
    if (a->count[size][best] < COUNT_MIN)
        return best;
    double rate = expected(a, best) / us[best] * margin;
    for (int i = 0; i < a->n; i++)
        if (i != a->now && a->count[size][i] >= COUNT_MIN && expected(a, i) / us[i] > rate) {
            best = i;
            rate = expected(a, i) / us[i];
        }
    return best;
}

static bool all_known(const struct adapt *a, int size)
{
    for (int i = 0; i < a->n; i++)
        if (a->count[size][i] < COUNT_MIN)
            return false;
    return true;
}

/* No drafts are best at the nearest smaller size that is known: at more requests a step's time
 * grows with its rows all the more, so there is no hurry to try. */
static bool hopeless(const struct adapt *a, int size)
{
    while (--size >= 0)
        if (all_known(a, size)) {
            for (int i = 1; i < a->n; i++)
                if (expected(a, i) / a->us[size][i] > 1 / a->us[size][0])
                    return false;
            return true;
        }
    return false;
}

/* A choice whose time is not known yet at this size, else the next in turn. */
static int trial_of(const struct adapt *a, int size)
{
    int c = a->next;
    for (int i = 0; i < a->n; i++) {
        c = (c + 1) % a->n;
        if (c != a->now && a->count[size][c] < COUNT_MIN)
            return c;
    }
    c = (a->next + 1) % a->n;
    return c != a->now ? c : (c + 1) % a->n;
}

static int bounded(double steps, int least)
{
    return steps < least ? least : steps < PERIOD_MAX ? (int)steps : PERIOD_MAX;
}

/* Steps until the trial after one of choice c: what it loses against the choice in force (and one
 * step more on the way back to drafts) is `share` of the time until then. */
static int wait_after(const struct adapt *a, int size, int c)
{
    if (!all_known(a, size)) /* again soon, but not for ever: it may be that nothing is steady */
        return bounded((double)SOON * (1 << a->in_vain[size]), SOON);
    double step = a->us[size][a->now], token = step / expected(a, a->now);
    double lost = TRIAL * (a->us[size][c] - expected(a, c) * token);
    lost += a->depth[a->now] > a->depth[c] ? step - token : 0;
    return bounded(lost / (share * step), PERIOD);
}

/* Verifies of a memory of so many, or of so many steps of the present size. */
static double verifies(const struct adapt *a, int n, int steps)
{
    return n > steps * a->reqs ? n : steps * a->reqs;
}

/* What was measured long ago counts for less than what the trial will find. */
static void doubt(struct adapt *a, int size, int c)
{
    double old = verifies(a, SEEN_OLD, SEEN_STEPS_OLD);
    if (a->count[size][c] > COUNT_OLD)
        a->count[size][c] = COUNT_OLD;
    for (int i = a->depth[a->now] + 1; i <= a->depth[c]; i++)
        a->seen[i] = a->seen[i] < old ? a->seen[i] : old;
}

int adapt_depth(struct adapt *a, int reqs)
{
    if (a->n == 1 || reqs < 1)
        return a->depth[a->now];
    int size = size_of(reqs);
    a->reqs = reqs;
    if (a->trial_left > 0) {
        a->trial_left--;
        a->n_trial++;
        return a->depth[a->trial];
    }
    a->now = best_of(a, size);
    if (!all_known(a, size)) {
        bool no = hopeless(a, size);
        int soon = no ? PERIOD : bounded((double)SOON * (1 << a->in_vain[size]), SOON);
        if (no && a->count[size][a->now] < COUNT_MIN)
            a->now = 0;
        a->wait = a->wait < soon ? a->wait : soon;
    }
    if (--a->wait > 0)
        return a->depth[a->now];
    a->trial = a->next = trial_of(a, size);
    a->wait = wait_after(a, size, a->trial);
    a->in_vain[size] += !all_known(a, size) && a->in_vain[size] < 10;
    doubt(a, size, a->trial);
    a->trial_left = TRIAL - 1;
    a->n_trial++;
    return a->depth[a->trial];
}

static int choice_of(const struct adapt *a, int depth)
{
    for (int i = 0; i < a->n; i++)
        if (a->depth[i] == depth)
            return i;
    return -1;
}

void adapt_time(struct adapt *a, int reqs, int depth, bool steady, double us)
{
    int i = choice_of(a, depth), size = size_of(reqs);
    if (i < 0 || reqs < 1 || !steady || !(us > 0))
        return;
    int *n = &a->count[size][i];
    double *mean = &a->us[size][i];
    *n += *n < COUNT_MAX;
    /* An outlier (the machine was busy elsewhere) counts as twice the mean at most. */
    us = *n > COUNT_MIN && us > 2 * *mean ? 2 * *mean : us;
    *mean += (us - *mean) / *n;
}

void adapt_accept(struct adapt *a, int deep, int accepted)
{
    double most = verifies(a, SEEN_MAX, SEEN_STEPS);
    for (int i = 1; i <= deep && i < LIM_EMIT; i++) {
        a->seen[i] = a->seen[i] + 1 < most ? a->seen[i] + 1 : most;
        a->reach[i] += ((accepted >= i) - a->reach[i]) / a->seen[i];
    }
}
