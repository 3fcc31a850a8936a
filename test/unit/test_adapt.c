/* Goal: the adaptive depth never costs much: over long runs its time stays within 3 % of the better
 * of no drafts and full depth, it finds the depth that is best, changes of cost or acceptance
 * included, and trials stay few. Method: the scheduler's use of it is simulated with costs and
 * acceptance that are given: results come a step late, a step verifies what the round before it
 * drafted, times are noisy, requests end and others begin, and of a request that ran without drafts
 * for a while the drafter knows little, so that it is seldom right. The same simulation with the
 * depth fixed gives what to compare with. */
#include <check.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/rng.h"
#include "engine/spec_check.h"
#include "speculative/adapt.h"
#include "test/sanitize.h"

enum { PART = SANITIZED ? 4 : 1 };
enum { S = 3, WORK = 60000, STEPS_SHORT = 20000 };

/* Microseconds of a step: base + per request, and per request for a verified draft and for one
 * that is made; a round costs `round` beside. */
struct cost {
    const char *name;
    double base, req, row, draft, round;
};
static const struct cost flat = {"flat", 1000, 0, 1, 1, 80};
static const struct cost linear = {"linear", 50, 500, 450, 100, 10};
static const struct cost by_size = {"by size", 1000, 20, 20, 5, 80};

struct world {
    struct cost c;
    double p; /* of each draft, given that those before it were right */
    int reqs;
};

enum { LIFE = 400, REQS = 64 };

/* A request: tokens until it ends, drafts that wait for its verify, and whether the drafter has not
 * followed it. */
struct one {
    int left, before;
    bool lost;
};

struct sim {
    struct adapt a;
    struct rng r;
    int fixed; /* -1: adaptive */
    bool busy; /* in most steps with drafts some request is near its end: they are not timed */
    double us, tokens;
    long steps, at[S + 1]; /* steps by depth of all */
    struct one one[REQS];
    int n; /* of them were in the last step */
    /* the step that has not come back */
    int depth, reqs, deep[REQS], taken[REQS];
    bool steady, flying, lost[REQS];
    double time;
};

static void sim_init(struct sim *s, uint64_t seed, int fixed)
{
    *s = (struct sim){.r = {seed}, .fixed = fixed};
    adapt_init(&s->a, S);
}

static double unit(struct rng *r)
{
    return (double)rng_below(r, 1 << 24) / (1 << 24);
}

static void result(struct sim *s)
{
    if (!s->flying)
        return;
    adapt_time(&s->a, s->reqs, s->depth, s->steady, s->time);
    for (int i = 0; i < s->reqs; i++)
        if (!s->lost[i])
            adapt_accept(&s->a, s->deep[i], s->taken[i]);
    s->flying = false;
}

/* Its verify and, if `round`, its drafts. */
static void one_step(struct sim *s, const struct world *w, int i, int use, int round)
{
    struct one *o = &s->one[i];
    int deep = use < o->before ? use : o->before, taken = 0;
    while (taken < deep && unit(&s->r) < (o->lost ? w->p * 0.3 : w->p))
        taken++;
    o->lost |= round == 0;
    s->deep[i] = deep;
    s->taken[i] = taken;
    s->lost[i] = o->lost;
    s->tokens += 1 + taken;
    o->left -= 1 + taken;
    o->before = round;
}

/* One step: planned before the last one's result is read. */
static void step(struct sim *s, const struct world *w)
{
    struct adapt_step x = {s->fixed, s->fixed, true};
    int n = w->reqs, drafts = 0;
    double us = w->c.base + n * w->c.req, draft = 0;
    if (s->fixed < 0)
        x = adapt_step(&s->a, n);
    result(s);
    s->steady = true;
    for (int i = 0; i < n; i++) {
        struct one *o = &s->one[i];
        if (i >= s->n || o->left <= 0) /* its prompt came with the step before */
            *o = (struct one){1 + (int)rng_below(&s->r, 2 * LIFE), x.round, x.round == 0};
        int round = x.all || !o->lost ? x.round : 0, use = round ? x.use : 0;
        s->steady &= use <= o->before;
        one_step(s, w, i, use, round);
        us += s->deep[i] * w->c.row;
        draft += round * w->c.draft;
        drafts += round > 0;
    }
    draft += drafts ? w->c.round : 0;
    s->us += us + draft;
    s->steps++;
    s->n = s->reqs = n;
    s->flying = true;
    s->depth = drafts ? x.use : 0;
    s->at[s->depth]++;
    s->steady &= (!s->depth || drafts == n) && !(s->busy && s->depth && rng_below(&s->r, 20));
    us += s->depth ? draft : 0; /* what is measured ends with the verify where no drafts are used */
    /* a tenth of noise, and the machine is busy elsewhere at times */
    s->time = us * (0.9 + 0.2 * unit(&s->r)) * (rng_below(&s->r, 200) ? 1 : 8);
}

/* Until `tokens` more came out. */
static void run(struct sim *s, const struct world *w, double tokens)
{
    for (double end = s->tokens + tokens; s->tokens < end;)
        step(s, w);
}

/* Tokens a microsecond of a depth in the long run. */
static double rate(const struct world *w, int depth)
{
    double e = 1, q = 1;
    for (int i = 0; i < depth; i++)
        e += q *= w->p;
    int n = w->reqs;
    return n * e /
           (w->c.base + n * w->c.req + n * depth * (w->c.row + w->c.draft) +
            (depth ? w->c.round : 0));
}

static int best_depth(const struct world *w, double *gain)
{
    static const int depths[] = {0, 1, S};
    int best = 0;
    double second = 0;
    for (int i = 1; i < 3; i++)
        if (rate(w, depths[i]) > rate(w, best))
            best = depths[i];
    for (int i = 0; i < 3; i++)
        if (depths[i] != best && rate(w, depths[i]) > second)
            second = rate(w, depths[i]);
    *gain = rate(w, best) / second;
    return best;
}

/* Adaptive against the better of the two fixed depths over the same work. */
static double against_fixed(const struct world *w, int phases, const char *what, uint64_t seed)
{
    struct sim s[3];
    for (int k = 0; k < 3; k++) {
        sim_init(&s[k], seed, k == 0 ? -1 : k == 1 ? 0 : S);
        for (int i = 0; i < phases; i++)
            run(&s[k], &w[i], (double)WORK * w[i].reqs);
    }
    double best = s[1].us < s[2].us ? s[1].us : s[2].us;
    long trials = s[0].a.n_trial;
    printf("adapt: %-24s time %.4f of the better fixed depth, %ld steps, %ld of trials\n", what,
           s[0].us / best, s[0].steps, trials);
    ck_assert_msg(s[0].us <= 1.03 * best, "%s, seed %llu: %.4f", what, (unsigned long long)seed,
                  s[0].us / best);
    ck_assert_msg(trials * 50 < s[0].steps, "%s: %ld of %ld steps are trials", what, trials,
                  s[0].steps);
    return s[0].us / best;
}

static const struct cost *const costs[] = {&flat, &linear, &by_size};
static const double accepts[] = {0, 0.3, 0.7, 0.95};
static const int sizes[] = {1, 6, 40};
enum { N_WORLDS = 3 * 4 * 3 };

static struct world world_of(int i)
{
    return (struct world){*costs[i / 12], accepts[i / 3 % 4], sizes[i % 3]};
}

START_TEST(steady_world)
{
    struct world w = world_of(_i);
    char what[64];
    if (_i % PART)
        return;
    double gain;
    int best = best_depth(&w, &gain);
    snprintf(what, sizeof what, "%s p=%.2f n=%d", w.c.name, w.p, w.reqs);
    against_fixed(&w, 1, what, 11 + (uint64_t)_i);
    struct sim s;
    sim_init(&s, 77 + (uint64_t)_i, -1);
    for (int i = 0; i < STEPS_SHORT; i++)
        step(&s, &w);
    long most = s.at[0] > s.at[1] ? s.at[0] : s.at[1];
    ck_assert_int_eq(s.at[2], 0); /* no such choice */
    most = most > s.at[S] ? most : s.at[S];
    if (gain > 1.1) /* else either will do */
        ck_assert_msg(s.at[best] == most && most * 10 > 9L * STEPS_SHORT,
                      "%s: depth %d is best, steps %ld, %ld, %ld", what, best, s.at[0], s.at[1],
                      s.at[S]);
}
END_TEST

/* Acceptance, cost or company changes on the way, there and back. */
START_TEST(changing_world)
{
    static const struct {
        const char *what;
        struct world w[3];
    } c[] = {
        {"drafts turn good", {{flat, 0, 1}, {flat, 0.95, 1}, {flat, 0, 1}}},
        {"drafts turn bad", {{linear, 0.95, 6}, {linear, 0, 6}, {linear, 0.95, 6}}},
        {"drafts get dear", {{flat, 0.7, 6}, {linear, 0.7, 6}, {flat, 0.7, 6}}},
        {"a crowd comes", {{by_size, 0.7, 1}, {by_size, 0.7, 40}, {by_size, 0.7, 1}}},
        {"a hopeless crowd", {{by_size, 0.7, 1}, {linear, 0.3, 40}, {by_size, 0.7, 1}}},
    };
    ck_assert_int_lt(_i, (int)ARRAY_LEN(c));
    if (_i % PART)
        return;
    against_fixed(c[_i].w, 3, c[_i].what, 5);
    struct sim s;
    sim_init(&s, 3, -1);
    for (int i = 0; i < 3; i++) { /* the second half of every phase runs at its best depth */
        double gain;
        int best = best_depth(&c[_i].w[i], &gain);
        run(&s, &c[_i].w[i], WORK / 2 * c[_i].w[i].reqs);
        long before = s.at[best], steps = s.steps;
        run(&s, &c[_i].w[i], WORK / 2 * c[_i].w[i].reqs);
        if (gain > 1.1)
            ck_assert_msg((s.at[best] - before) * 10 > (s.steps - steps) * 9,
                          "%s, phase %d: depth %d in %ld of %ld steps", c[_i].what, i, best,
                          s.at[best] - before, s.steps - steps);
    }
}
END_TEST

/* ---- the first steps of a server ---- */

/* What the self-check does: a few steps of one request and of several, with drafts and without, as
 * many sizes as take little time. */
static void check_priced(struct sim *s, double p, const struct cost *few, const struct cost *many)
{
    int size[SPEC_SIZES];
    double us[SPEC_SIZES];
    for (int n = 0; n < SPEC_SIZES && (size[n] = spec_next_size(n, size, us, 64)) > 0; n++) {
        struct world v = {size[n] == 64 ? *many : *few, p, size[n]};
        us[n] = -s->us;
        static const int depth[] = {S, 1, 0, 0, 1, S};
        for (int i = 0; i < 6; i++) {
            if (n < 2 && depth[i] == 1)
                continue; /* all depths only of the larger sizes */
            s->fixed = depth[i];
            s->n = 0; /* prompts of its own */
            for (int k = 0; k < 5; k++)
                step(s, &v);
        }
        us[n] += s->us;
    }
    s->fixed = -1;
    s->n = 0;
}

static void check_first(struct sim *s, const struct world *w)
{
    check_priced(s, w->p, &w->c, &w->c);
}

/* Time of the first `steps` steps' worth of tokens, relative to that of one depth all along. */
static double first_steps(const struct world *w, int steps, bool checked, int against, double *lost)
{
    double sum[2] = {0};
    for (int seed = 1; seed <= 20; seed++)
        for (int k = 0; k < 2; k++) {
            struct sim s;
            sim_init(&s, (uint64_t)seed, k ? against : -1);
            if (checked && !k)
                check_first(&s, w);
            double us = s.us;
            run(&s, w, (double)steps * w->reqs);
            sum[k] += s.us - us;
        }
    *lost = (sum[0] / sum[1] - 1) * steps;
    return sum[0] / sum[1];
}

/* A server that has checked its drafter loses a few steps at most to no
 * drafts, be its life ever so short; one that has not loses a few steps at most, once. */
START_TEST(short_runs)
{
    static const int steps[] = {25, 50, 100, 200, 400};
    struct world w = world_of(_i);
    for (int k = 0; k < (int)ARRAY_LEN(steps); k++) {
        double lost, cold_lost, other;
        double r = first_steps(&w, steps[k], true, 0, &lost);
        double best = rate(&w, S) > rate(&w, 0) ? first_steps(&w, steps[k], true, S, &other) : r;
        double cold = first_steps(&w, steps[k], false, 0, &cold_lost);
        printf("adapt: %s p=%.2f n=%d: %d tokens in %.3f of the time without drafts, %.3f of the "
               "best; unchecked %.3f\n",
               w.c.name, w.p, w.reqs, steps[k], r, best, cold);
        ck_assert_msg(lost < 4 + 0.02 * steps[k], "%s p=%.2f n=%d: %d tokens lose %.2f steps",
                      w.c.name, w.p, w.reqs, steps[k], lost);
        ck_assert_msg(best < 1.5 && (steps[k] < 400 || best < 1.3), "%s p=%.2f n=%d: %.3f of best",
                      w.c.name, w.p, w.reqs, best);
        ck_assert_msg(cold_lost < 20 + 0.01 * steps[k], "%s p=%.2f n=%d: %.2f steps unchecked",
                      w.c.name, w.p, w.reqs, cold_lost);
    }
}
END_TEST

/* Drafts pay up to 32 requests and not at 64, where no line through fewer would show it: a start
 * that has timed 64 goes without them there at once, and only there. */
START_TEST(dear_at_64)
{
    static const int reqs[] = {1, 8, 32, 64};
    struct cost few = {"few", 500, 5, 3, 1, 200}, many = {"many", 555, 5, 4, 1.1, 300};
    for (int k = 0; k < 4; k++) {
        struct world w = {reqs[k] == 64 ? many : few, 0.6, reqs[k]};
        double gain, us = 0, off_us = 0;
        int best = best_depth(&w, &gain);
        long steps = 0, at_best = 0;
        ck_assert_int_eq(best, reqs[k] == 64 ? 0 : S);
        ck_assert(gain > 1.05);
        for (int seed = 1; seed <= 20; seed++) {
            struct sim s, off;
            sim_init(&s, (uint64_t)seed, -1);
            sim_init(&off, (uint64_t)seed, 0);
            check_priced(&s, w.p, &few, &many);
            memset(s.at, 0, sizeof s.at);
            s.busy = w.reqs > 8;
            us -= s.us;
            run(&s, &w, 300.0 * w.reqs);
            run(&off, &w, 300.0 * w.reqs);
            us += s.us;
            off_us += off.us;
            at_best += s.at[best];
            steps += s.at[0] + s.at[1] + s.at[S];
        }
        printf("adapt: %d requests: depth %d in %ld of %ld steps, %.3f of the time without\n",
               w.reqs, best, at_best, steps, us / off_us);
        ck_assert_msg(at_best * 10 > steps * 8, "%d requests: depth %d in %ld of %ld steps", w.reqs,
                      best, at_best, steps);
        ck_assert_msg(us < 1.02 * off_us, "%d requests: %.3f", w.reqs, us / off_us);
    }
}
END_TEST

/* Up to 8 requests always, more only when they take little; never more than may decode at once. */
START_TEST(sizes_timed)
{
    static const struct {
        int most;
        double us[SPEC_SIZES]; /* what each size takes */
        int want[SPEC_SIZES];
    } c[] = {
        {64, {10e3, 20e3, 50e3, 90e3}, {1, 8, 32, 64}},
        {512, {10e3, 20e3, 50e3, 90e3}, {1, 8, 32, 64}},
        {48, {10e3, 20e3, 50e3, 90e3}, {1, 8, 32, 48}},
        {32, {10e3, 20e3, 50e3, 90e3}, {1, 8, 32}},
        {5, {10e3, 20e3}, {1, 5}},
        {1, {10e3}, {1}},
        {64, {30e3, 150e3}, {1, 8}},                     /* 32 by a line: 561 ms */
        {64, {20e3, 60e3, 200e3}, {1, 8, 32}},           /* 197 ms, then 387 ms */
        {64, {9e6, 9e6}, {1, 8}},                        /* a large model */
        {64, {240e3, 90e3, 80e3, 80e3}, {1, 8, 32, 64}}, /* it was waking up */
    };
    for (int k = 0; k < (int)ARRAY_LEN(c); k++) {
        int size[SPEC_SIZES + 1], n = 0;
        double sum = 0;
        for (; (size[n] = spec_next_size(n, size, c[k].us, c[k].most)) > 0; n++) {
            ck_assert_msg(size[n] == c[k].want[n], "%d: %d, not %d", k, size[n], c[k].want[n]);
            sum += n < 2 ? 0 : c[k].us[n];
        }
        ck_assert_msg(n == SPEC_SIZES || !c[k].want[n], "%d: %d sizes", k, n);
        ck_assert(sum <= 500e3);
    }
}
END_TEST

/* Requests come and go: the number of them is another one every step. */
START_TEST(company_changes)
{
    struct sim s;
    struct rng r = {9};
    sim_init(&s, 1, -1);
    for (int i = 0; i < STEPS_SHORT; i++) {
        struct world w = {linear, 0.3, 1 + (int)rng_below(&r, 40)};
        step(&s, &w);
    }
    ck_assert_int_gt(s.at[0] * 10, 9L * STEPS_SHORT);
    ck_assert_int_lt(s.a.n_trial * 20, STEPS_SHORT);
}
END_TEST

/* Where no step is ever steady nothing is learnt, and nothing is tried over and over. */
START_TEST(nothing_steady)
{
    struct adapt a;
    adapt_init(&a, S);
    for (int i = 0; i < STEPS_SHORT; i++) {
        int depth = adapt_step(&a, 4).use;
        adapt_time(&a, 4, depth, false, 100);
        adapt_accept(&a, depth, 0);
    }
    ck_assert_int_lt(a.n_trial * 100, STEPS_SHORT);
}
END_TEST

START_TEST(choices)
{
    static const int want[][6] = {{0}, {0, 1}, {0, 1, 2}, {0, 1, 3}, {0, 1, 2, 4}, {0, 1, 2, 5}};
    for (int k = 0; k < 6; k++) {
        struct adapt a;
        adapt_init(&a, k);
        for (int i = 0; i < a.n; i++)
            ck_assert_int_eq(a.depth[i], want[k][i]);
        ck_assert_int_eq(a.depth[a.n - 1], k);
        ck_assert_int_eq(adapt_step(&a, 1).use, k); /* at first all of it */
        ck_assert_int_eq(adapt_step(&a, 0).round, k);
    }
    struct adapt a;
    adapt_init(&a, LIM_EMIT - 1);
    ck_assert_int_eq(a.n, 5); /* 0, 1, 3, 7, 15 */
    adapt_init(&a, 0);
    for (int i = 0; i < 2000; i++)
        ck_assert_int_eq(adapt_step(&a, 1).round, 0);
}
END_TEST

Suite *suite_adapt(void)
{
    Suite *s = suite_create("adapt");
    TCase *t = tcase_create("adapt");
    tcase_set_timeout(t, 120);
    tcase_add_test(t, choices);
    tcase_add_loop_test(t, steady_world, 0, N_WORLDS);
    tcase_add_loop_test(t, changing_world, 0, 5);
    tcase_add_loop_test(t, short_runs, 0, N_WORLDS);
    tcase_add_test(t, dear_at_64);
    tcase_add_test(t, sizes_timed);
    tcase_add_test(t, company_changes);
    tcase_add_test(t, nothing_steady);
    suite_add_tcase(s, t);
    return s;
}
