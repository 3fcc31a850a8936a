/* Scheduling choices, apart from the machinery that carries them out: who goes next, who yields,
 * how many prefill rows fit beside decodes. Everything is by age, so that whatever is oldest and
 * not paused can always make progress, and nothing starves. Reads state, changes none but
 * that of the adaptive depth. */
#include <stdio.h>

#include "engine/base/log.h"
#include "engine/sched/sched_int.h"

enum {
    SHARE = 4,     /* beside decodes, a step's prefill takes at most 1 / SHARE of the rows … */
    SHARE_MIN = 16 /* … or so many, if that is more */
};

/* Decodes come first; what prefill adds to their step is the wait between two of their tokens. A
 * quarter of the rows keeps that bounded while prefill stays near its best rate per row. */
int policy_prefill_rows(const struct sched *s, int n_decode)
{
    int all = s->c.rows_max;
    if (n_decode == 0)
        return all;
    int some = all / SHARE > SHARE_MIN ? all / SHARE : SHARE_MIN;
    return some < all ? some : all;
}

/* Rows are planned for drafts that are there. The drafter's were made at the depth of the request's
 * last round, of which no more are used than the depth now in force. Prompt lookup finds something
 * or not; what it found after the last step that came back is the best guess for the next. */
int policy_rows(const struct sched *s, const struct sreq *r)
{
    int drafts = 0, deep = r->round < s->spec.use ? r->round : s->spec.use;
    switch (r->g->p.spec_mode) {
    case SPEC_OFF:
        break;
    case SPEC_NGRAM:
        drafts = r->found > 1 ? s->c.ngram : 0;
        break;
    case SPEC_MODEL: /* of a tree, a level has at most topk^2 nodes; all rows are as good a bound */
        drafts = deep == 0 ? 0 : s->c.rows == s->c.emit ? deep : s->c.rows - 1;
        break;
    }
    return 1 + (drafts < r->g->p.spec_max ? drafts : r->g->p.spec_max);
}

/* Why the depth changed. */
static void say_depth(const struct adapt *a, int reqs)
{
    double tokens, us;
    char text[256];
    size_t n = 0;
    for (int i = 0; i < a->n && n < sizeof text; i++)
        if (adapt_guess(a, reqs, i, &tokens, &us))
            n += (size_t)snprintf(text + n, sizeof text - n, "%s%d: %.2f tokens in %.0f us",
                                  n ? ", " : "", a->depth[i], tokens, us);
    LOG(LOG_DEBUG, "sched", "%d requests draft %d deep from now on (%s)", reqs, a->depth[a->now],
        n ? text : "nothing is known");
}

/* Rounds and drafts of the step being planned, whose requests are among the n of `r`. */
struct adapt_step policy_spec(struct sched *s, struct sreq *const *r, int n)
{
    struct adapt_step fixed = {s->c.depth, s->c.depth, true};
    int may = 0;
    if (!s->c.depth || !s->c.adapt)
        return fixed;
    for (int i = 0; i < n; i++) {
        const struct gen_params *p = &r[i]->g->p;
        if (p->spec_fixed) {
            fixed.round = fixed.use = p->spec_depth;
            return fixed;
        }
        may += p->spec_mode == SPEC_MODEL;
    }
    may = may < s->c.reqs_max ? may : s->c.reqs_max;
    int was = s->adapt.now;
    struct adapt_step x = adapt_step(&s->adapt, may);
    if (s->adapt.now != was)
        say_depth(&s->adapt, may);
    return x;
}

/* Ended by length in a step that is in flight, if not by something else: no rows needed. */
bool policy_over(const struct sreq *r)
{
    return r->n_tok + r->sure >= r->limit;
}

/* Who loses its pages to `needy`: the youngest of the paused (their clients are slow anyway), then
 * the youngest that is younger than `needy`. NULL: nobody may be taken from. */
struct sreq *policy_victim(const struct sched *s, const struct sreq *needy)
{
    struct sreq *young = NULL;
    for (int i = s->running.n - 1; i >= 0; i--) {
        struct sreq *r = s->running.v[i];
        if (r == needy || r->chunk_step == s->step_no + 1)
            continue; /* rows of the step being planned are not taken back */
        if (r->paused)
            return r;
        if (!young && (!needy || r->age > needy->age))
            young = r;
    }
    return needy ? young : NULL;
}

/* The oldest that waits and is not paused. */
struct sreq *policy_next(const struct sched *s)
{
    for (int i = 0; i < s->waiting.n; i++)
        if (!s->waiting.v[i]->paused)
            return s->waiting.v[i];
    return NULL;
}

/* Room in the KV for all of its prefill, beyond what those before it still need for theirs and a
 * page for each that decodes: starting on less would end in preemption. Alone it always fits. */
bool policy_may_start(const struct sched *s, const struct sreq *r)
{
    const struct kv_conf *k = &s->c.kv;
    int others = 0;
    for (int g = 0; g < k->n_group; g++) {
        int64_t want = kv_need(s->kv, g, r->n_tok, s->c.rows_max);
        others = 0;
        for (int i = 0; i < s->running.n; i++) {
            const struct sreq *o = s->running.v[i];
            if (o->paused)
                continue;
            others++;
            want++;
            if (o->state == RQ_PREFILL) {
                int all = kv_need(s->kv, g, o->fill_to, s->c.rows_max);
                int held = kv_held(&s->slot[o->slot].kv, g);
                want += all > held ? all - held : 0;
            }
        }
        if (others && want > kv_free_pages(s->kv, g))
            return false;
    }
    return true;
}
