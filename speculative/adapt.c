/* The choice of depth; see the header. */
#include "speculative/adapt.h"

#include "engine/base/check.h"

enum {
    TRIAL = 6,      /* steps of a trial */
    PERIOD = 400,   /* steps between trials */
    COUNT_MIN = 3,  /* measurements before a time is believed */
    COUNT_MAX = 32, /* a mean's memory, in measurements */
};
static const double margin = 1.02;        /* another depth must be better by this factor */
static const double accept_weight = 0.02; /* of one verify in reach */

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
    *a = (struct adapt){.trial = -1};
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

/* A choice whose time is not known yet at this size, else the next in turn, but not deeper than
 * what is known to be hopeless: with all drafts wrong a deeper round cannot win. */
static int trial_of(struct adapt *a, int size)
{
    for (int i = 0; i < a->n; i++)
        if (i != a->now && a->count[size][i] < COUNT_MIN)
            return i;
    a->next = (a->next + 1) % a->n;
    if (a->next == a->now)
        a->next = (a->next + 1) % a->n;
    return a->next;
}

int adapt_depth(struct adapt *a, int reqs)
{
    if (a->n == 1 || reqs < 1)
        return a->depth[a->now];
    int size = size_of(reqs);
    if (a->trial_left > 0) {
        a->trial_left--;
        return a->depth[a->trial];
    }
    a->now = best_of(a, size);
    bool unknown = false;
    for (int i = 0; i < a->n; i++)
        unknown |= a->count[size][i] < COUNT_MIN;
    if (++a->since < (unknown ? 4 * TRIAL : PERIOD))
        return a->depth[a->now];
    a->since = 0;
    a->trial = trial_of(a, size);
    a->trial_left = TRIAL - 1;
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
    for (int i = 1; i <= deep && i < LIM_EMIT; i++) {
        double hit = accepted >= i, w = a->known[i] ? accept_weight : 0.5;
        a->reach[i] += (hit - a->reach[i]) * w;
        a->known[i] = true;
    }
}
