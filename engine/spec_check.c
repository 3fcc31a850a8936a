/* The drafter's self-check: greedy continuations of a built-in text before anybody is served. A
 * drafter that was made for another target, or whose taps are read from the wrong layers, changes
 * no output; it only makes everything slower, which nobody would see. Whoever opens the engine. */
#include "engine/spec_check.h"

#include <limits.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/thread.h"
#include "speculative/adapt.h"

/* Short continuations from many places of a text: one long one may fall into a loop, in which a
 * good drafter is never right or a bad one always. */
enum { PLACES = 32, WINDOW = 24, TOKENS = 9, AT_ONCE = 8, VERIFIES_MIN = 24 };
/* Tokens of a request while the time is taken: with S drafts at least three steps' worth. */
enum { TIMED_STEPS = 3, TIMED_PLAIN = 6 };
enum { SIZE_US = 200000, SURE_SIZES = 2, WINDOW_MIN = 4 };
static const int sizes[SPEC_SIZES] = {1, 8, 32, 64};
static const double check_floor = 0.15;

static const char check_text[] =
    "The library opens at nine in the morning and closes at six in the evening. Visitors may read "
    "the books in the hall, but they must return them to the desk before they leave. A list of "
    "the rules is printed on the wall near the door.\n\nWhen a request arrives, the server looks "
    "at the first line of the message and then reads the rest of the headers. If the file does "
    "not exist, an error is returned to the client, and the connection is closed. The following "
    "example shows how to open a file and write a line of text to it:\n\n"
    "    with open(name, 'w') as f:\n        f.write('hello\\n')\n\n"
    "In the beginning there was nothing but water, and the people of the village went down to the "
    "river every day. The word is used to describe a small animal that lives in the ground; it is "
    "also the name of a kind of tree. The sum of two and three is five. The function returns a "
    "list of all the values that are greater than zero, in the order in which they were added.";

/* Up to n requests of so many tokens, each at a place of its own; how many were made, none when the
 * vocabulary does not spell the text. Steps of fewer than `least` are not timed. */
static int requests(struct engine *g, struct gen_req **out, int n_place, int window, int tokens,
                    int depth, int least, struct err *e)
{
    const struct engine_info *i = engine_info(g);
    int32_t *ids = NULL;
    size_t n = 0;
    TRY(engine_encode(g, check_text, strlen(check_text), false, false, NULL, 0, 0, &ids, &n, e));
    int made = 0;
    bool fits = n >= 2 * WINDOW && i->max_model_len >= WINDOW + tokens;
    for (; fits && made < n_place; made++) {
        struct gen_req *r = gen_req_new();
        engine_default_params(g, &r->p);
        r->id = UINT64_MAX - (uint64_t)made;
        r->n_prompt = (size_t)window;
        r->prompt = mem_dup(ids + (n - WINDOW) * (size_t)made / (size_t)n_place,
                            (size_t)window * sizeof *ids);
        r->p.temperature = 0;
        r->p.has_seed = true;
        r->p.ignore_eos = true;
        r->p.max_tokens = tokens;
        r->p.spec_mode = SPEC_MODEL;
        r->p.spec_max = i->spec_rows - 1;
        r->p.spec_fixed = true;
        r->p.spec_depth = depth;
        r->p.spec_least = least;
        out[made] = r;
    }
    mem_free(ids);
    return made;
}

void spec_waiter_init(struct spec_waiter *w)
{
    mutex_init(&w->lock);
    cond_init(&w->more);
}

void spec_waiter_done(struct spec_waiter *w)
{
    cond_done(&w->more);
    mutex_done(&w->lock);
}

void spec_wake(void *waiter)
{
    struct spec_waiter *w = waiter;
    mutex_lock(&w->lock);
    w->woken = true;
    cond_signal(&w->more);
    mutex_unlock(&w->lock);
}

void spec_wait(struct spec_waiter *w)
{
    mutex_lock(&w->lock);
    while (!w->woken)
        cond_wait(&w->more, &w->lock);
    w->woken = false;
    mutex_unlock(&w->lock);
}

/* Waits for the final events of n requests and adds up their numbers; the check's events reach
 * nobody else. */
static int wait_done(struct engine *g, struct spec_waiter *w, int n, struct gen_stats *sum,
                     struct err *e)
{
    int ret = OK;
    while (n > 0) {
        spec_wait(w);
        for (struct gen_evt *v = engine_poll(g), *next; v; v = next) {
            next = v->next;
            if (v->kind == EVT_DONE) {
                n--;
                sum->n_verify += v->stats.n_verify;
                sum->n_accepted += v->stats.n_accepted;
                sum->n_drafted += v->stats.n_drafted;
                sum->n_first += v->stats.n_first;
                if (v->finish == FINISH_ERROR) {
                    *e = v->err;
                    ret = e->code;
                }
            }
            gen_evt_free(v);
        }
    }
    return ret;
}

/* Runs n requests, `group` at a time. */
static int run(struct engine *g, struct spec_waiter *w, struct gen_req **r, int n, int group,
               struct gen_stats *sum, struct err *e)
{
    int ret = OK;
    for (int i = 0; i < n; i += group) {
        int m = n - i < group ? n - i : group;
        if (ret == OK)
            ret = engine_submit(g, r + i, (size_t)m, e);
        if (ret == OK)
            ret = wait_done(g, w, m, sum, e);
        else
            for (int k = i; k < i + m; k++)
                gen_req_free(r[k]);
    }
    return ret;
}

int spec_check(struct engine *g, struct spec_waiter *w, struct spec_checked *out, struct err *e)
{
    struct gen_req *r[PLACES];
    struct gen_stats s = {0};
    int seqs = engine_info(g)->max_num_seqs, group = seqs < AT_ONCE ? seqs : AT_ONCE;
    int n = requests(g, r, PLACES, WINDOW, TOKENS, engine_info(g)->spec_steps, INT_MAX, e);
    int ret = n < 0 ? n : run(g, w, r, n, group, &s, e);
    out->enough = s.n_drafted >= VERIFIES_MIN;
    out->first = s.n_drafted ? (double)s.n_first / s.n_drafted : 0;
    out->length = s.n_verify ? 1 + (double)s.n_accepted / s.n_verify : 1;
    out->good = !out->enough || out->first >= check_floor;
    return ret;
}

int spec_next_size(int n, const int *size, const double *us, int most)
{
    if (n >= SPEC_SIZES)
        return 0;
    int next = sizes[n] < most ? sizes[n] : most;
    if (n > 0 && next <= size[n - 1])
        return 0;
    if (n < SURE_SIZES)
        return next;
    double slope = (us[n - 1] - us[n - 2]) / (size[n - 1] - size[n - 2]);
    double guess = us[n - 1] + (slope > 0 ? slope * (next - size[n - 1]) : 0);
    return guess <= SIZE_US ? next : 0;
}

static int timed_tokens(int depth)
{
    return depth ? 2 + TIMED_STEPS * (depth + 1) : TIMED_PLAIN;
}

/* With drafts (`all`: at every depth that adapt knows) and without by turns, there and back: a
 * device that has just woken up gets faster on the way, which is not to look as if one of them
 * were. For the same reason the times of the check before do not count. */
static int time_size(struct engine *g, struct spec_waiter *w, int group, bool all, struct err *e)
{
    struct gen_req *r[LIM_SLOTS];
    struct gen_stats s = {0};
    const struct engine_info *i = engine_info(g);
    /* Prompts of one step together, so that all decode together. */
    int window = i->max_num_batched_tokens / group;
    window = window < WINDOW_MIN ? WINDOW_MIN : window < WINDOW ? window : WINDOW;
    int depth[ADAPT_DEPTHS], m = 0;
    for (int d = i->spec_steps; d > 0; d = all ? d / 2 : 0)
        depth[m++] = d;
    depth[m++] = 0;
    for (int k = 0; k < 2 * m; k++) {
        int d = depth[k < m ? k : 2 * m - 1 - k];
        int n = requests(g, r, group, window, timed_tokens(d), d, group, e);
        TRY(n < 0 ? n : run(g, w, r, n, group, &s, e));
    }
    return OK;
}

/* How many decode at once without one waiting for another's pages; at least one. */
static int most_at_once(const struct engine_info *i, int tokens)
{
    int64_t pages = 1 + (WINDOW + tokens + 2 * i->spec_rows) / i->page, n = i->kv_pages / pages;
    n = n < i->max_num_seqs ? n : i->max_num_seqs;
    return n > 1 ? (int)n : 1;
}

int spec_time(struct engine *g, struct spec_waiter *w, struct err *e)
{
    int size[SPEC_SIZES + 1], n = 0;
    double us[SPEC_SIZES];
    int most = most_at_once(engine_info(g), timed_tokens(engine_info(g)->spec_steps));
    while ((size[n] = spec_next_size(n, size, us, most)) > 0) {
        int64_t begin = clock_us();
        TRY(time_size(g, w, size[n], n >= SURE_SIZES, e));
        us[n] = (double)(clock_us() - begin);
        LOG(LOG_DEBUG, "engine", "steps of %d requests were timed in %.1f ms", size[n],
            us[n] * 1e-3);
        n++;
    }
    return OK;
}
