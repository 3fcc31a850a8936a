/* The choice of depth; see the header. */
#include "speculative/adapt.h"

#include "engine/base/check.h"

enum {
    TRIAL = 6,          /* steps of a trial */
    FIRST = 5,          /* steps of a start without any knowledge until the first trial, … */
    SOON = 16,          /* … until something that may be worth it is tried … */
    PERIOD = 400,       /* … and between trials of what is known, at least */
    PERIOD_MAX = 25600, /* and at most */
    COUNT_MIN = 3,      /* measurements before a time is believed */
    COUNT_MAX = 32,     /* a time's memory, in measurements */
    COUNT_OLD = 4,      /* what is left of it when a trial begins */
    SEEN_MAX = 100,     /* an acceptance's memory, in verifies, … */
    SEEN_STEPS = 32,    /* … or steps, if that is more */
    SEEN_OLD = 8,       /* what is left of it when a trial begins */
    SEEN_STEPS_OLD = 2,
    PROBE = 12, /* verifies of probes */
};
static const double margin = 1.01; /* another depth must be better by this factor */
static const double share = 0.008; /* of the time that trials may lose */
static const double hope = 0.9;    /* of the best rate: less by an estimate is not worth a trial */

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
    *a = (struct adapt){.trial = -1, .wait = PERIOD};
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

static bool known(const struct adapt *a, int size, int choice)
{
    return a->count[size][choice] >= COUNT_MIN;
}

/* An estimate, but not less than a smaller depth takes, nor more than a greater one. */
static double within(const struct adapt *a, int size, int choice, double t)
{
    for (int i = choice + 1; i < a->n; i++)
        if (known(a, size, i) && a->us[size][i] < t)
            t = a->us[size][i];
    for (int i = 0; i < choice; i++)
        if (known(a, size, i) && a->us[size][i] > t)
            t = a->us[size][i];
    return t > 0 ? t : 0;
}

/* By a line through the nearest two depths that are known at this size; 0: there are no two. */
static double by_line(const struct adapt *a, int size, int choice)
{
    const double *us = a->us[size];
    int p[2], n = 0;
    for (int d = 1; d < a->n && n < 2; d++)
        for (int side = -1; side <= 1 && n < 2; side += 2) {
            int i = choice + side * d;
            if (i >= 0 && i < a->n && known(a, size, i))
                p[n++] = i;
        }
    if (n < 2)
        return 0;
    double slope = (us[p[1]] - us[p[0]]) / (a->depth[p[1]] - a->depth[p[0]]);
    return within(a, size, choice, us[p[0]] + slope * (a->depth[choice] - a->depth[p[0]]));
}

static double at_size(const struct adapt *a, int size, int choice)
{
    return known(a, size, choice) ? a->us[size][choice] : by_line(a, size, choice);
}

/* The nearest two other sizes at which both choices are known or on a line; how many there are. */
static int near_sizes(const struct adapt *a, int size, int x, int y, int out[2])
{
    int n = 0;
    for (int d = 1; d < ADAPT_SIZES; d++)
        for (int side = -1; side <= 1; side += 2) {
            int s = size + side * d;
            bool there = s >= 0 && s < ADAPT_SIZES && at_size(a, s, x) > 0 && at_size(a, s, y) > 0;
            if (there && n < 2)
                out[n++] = s;
        }
    return n;
}

/* By a line in the number of requests through sizes s[0 … n). */
static double by_sizes(const struct adapt *a, int size, int choice, const int *s, int n)
{
    double t = at_size(a, s[0], choice);
    if (n > 1)
        t += (at_size(a, s[1], choice) - t) * ((1 << size) - (1 << s[0])) /
             ((1 << s[1]) - (1 << s[0]));
    return t > 0 ? t : 0;
}

/* A step's time: measured, else an estimate from other depths, else from other sizes, from which
 * the difference to a depth that is known here is taken, or the ratio. 0: nothing is known. */
static double time_of(const struct adapt *a, int size, int choice)
{
    double t = at_size(a, size, choice);
    int here = 0, s[2];
    if (t > 0)
        return t;
    while (here < a->n && !known(a, size, here))
        here++;
    bool has = here < a->n;
    int n = near_sizes(a, size, choice, has ? here : 0, s);
    if (!n)
        return 0;
    t = by_sizes(a, size, choice, s, n);
    if (!has)
        return t;
    double base = by_sizes(a, size, here, s, n), now = a->us[size][here];
    t = n > 1 ? now + t - base : 0;
    if (t <= 0)
        t = at_size(a, s[0], choice) / at_size(a, s[0], here) * now;
    return within(a, size, choice, t);
}

/* Expected tokens a microsecond and request; 0: not known. */
static double rate_of(const struct adapt *a, int size, int choice)
{
    double t = time_of(a, size, choice);
    return t > 0 ? expected(a, choice) / t : 0;
}

/* The best choice for this many requests; the one in force unless another wins clearly. */
static int best_of(const struct adapt *a, int size)
{
    int best = a->now;
    double rate = rate_of(a, size, best) * margin;
    if (rate <= 0)
        return best;
    for (int i = 0; i < a->n; i++)
        if (i != a->now && rate_of(a, size, i) > rate) {
            best = i;
            rate = rate_of(a, size, i);
        }
    return best;
}

/* Not measured at this size, and for all that is known it may be worth it. */
static bool promising(const struct adapt *a, int size, int choice)
{
    if (known(a, size, choice))
        return false;
    double rate = rate_of(a, size, choice);
    return rate <= 0 || rate > hope * rate_of(a, size, a->now);
}

static bool settled(const struct adapt *a, int size)
{
    for (int i = a->now == 0; i < a->n; i++) /* no drafts in force get known by themselves */
        if (promising(a, size, i))
            return false;
    return true;
}

/* No drafts if they are not known, a choice that promises something, else the next in turn. */
static int trial_of(const struct adapt *a, int size)
{
    if (a->now && !known(a, size, 0))
        return 0;
    int c = a->next;
    for (int i = 0; i < a->n; i++) {
        c = (c + 1) % a->n;
        if (c != a->now && promising(a, size, c))
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
 * step more on the way back to drafts) is `share` of the time until then. With depth 0 in force
 * drafts are right half as often in a trial, say, and probes come on top. */
static int wait_after(const struct adapt *a, int size, int c)
{
    if (!settled(a, size)) /* again soon, but not for ever: it may be that nothing is steady */
        return bounded((double)SOON * (1 << a->in_vain[size]), SOON);
    double step = time_of(a, size, a->now), token = step / expected(a, a->now);
    double e = expected(a, c), us = time_of(a, size, c), lost = TRIAL * (us - e * token);
    if (!a->now)
        lost += TRIAL * (e - 1) / 2 * token + PROBE * (us - e * token) / a->reqs;
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
    if (a->count[size][c] > COUNT_OLD)
        a->count[size][c] = COUNT_OLD;
    for (int i = a->depth[a->now] + 1; i <= a->depth[c]; i++)
        a->doubted[i] = true;
}

/* What is promising is tried soon; what is not, not because something else was. */
static void hurry(struct adapt *a, int size)
{
    bool calm = settled(a, size);
    if (calm && a->hurry)
        a->wait = wait_after(a, size, trial_of(a, size));
    if (!calm) {
        int soon = a->n_trial ? bounded((double)SOON * (1 << a->in_vain[size]), SOON) : FIRST;
        a->wait = a->wait < soon ? a->wait : soon;
    }
    a->hurry = !calm;
}

static struct adapt_step in_force(const struct adapt *a)
{
    int d = a->depth[a->now ? a->now : a->probe];
    return (struct adapt_step){.round = d, .use = d};
}

static struct adapt_step in_trial(struct adapt *a)
{
    int d = a->depth[a->trial];
    a->n_trial++;
    return (struct adapt_step){.round = d ? d : a->depth[1], .use = d, .all = !a->now};
}

struct adapt_step adapt_step(struct adapt *a, int reqs)
{
    if (a->n == 1 || reqs < 1)
        return in_force(a);
    int size = size_of(reqs);
    a->reqs = reqs;
    if (a->trial_left > 0) {
        a->trial_left--;
        return in_trial(a);
    }
    a->now = best_of(a, size);
    a->probe = a->now ? 0 : a->probe;
    hurry(a, size);
    if (--a->wait > 0)
        return in_force(a);
    a->trial = a->next = trial_of(a, size);
    a->wait = wait_after(a, size, a->trial);
    a->in_vain[size] += !settled(a, size) && a->in_vain[size] < 10;
    doubt(a, size, a->trial);
    if (!a->now) {
        a->probe = a->trial;
        a->probe_left = PROBE;
    }
    a->trial_left = TRIAL - 1;
    return in_trial(a);
}

bool adapt_guess(const struct adapt *a, int reqs, int i, double *tokens, double *us)
{
    *tokens = expected(a, i);
    *us = time_of(a, size_of(reqs), i);
    return *us > 0;
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
    /* An outlier (the machine was busy elsewhere) counts as twice the mean at most; one among the
     * first is forgotten when the next shows it. */
    if (*n > 1 && us > 2 * *mean)
        us = 2 * *mean;
    if (*n <= COUNT_MIN && us < *mean / 2)
        *n = 1;
    *mean += (us - *mean) / *n;
}

void adapt_accept(struct adapt *a, int deep, int accepted)
{
    double most = verifies(a, SEEN_MAX, SEEN_STEPS), old = verifies(a, SEEN_OLD, SEEN_STEPS_OLD);
    for (int i = 1; i <= deep && i < LIM_EMIT; i++) {
        a->seen[i] = a->doubted[i] && a->seen[i] > old ? old : a->seen[i];
        a->doubted[i] = false;
        a->seen[i] = a->seen[i] + 1 < most ? a->seen[i] + 1 : most;
        a->reach[i] += ((accepted >= i) - a->reach[i]) / a->seen[i];
    }
    if (deep > 0 && a->probe && --a->probe_left == 0)
        a->probe = 0;
}
