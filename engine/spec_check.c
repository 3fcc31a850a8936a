/* The drafter's self-check: greedy continuations of a built-in text before anybody is served. A
 * drafter that was made for another target, or whose taps are read from the wrong layers, changes
 * no output; it only makes everything slower, which nobody would see. Whoever opens the engine. */
#include "engine/spec_check.h"

#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/thread.h"

/* Short continuations from many places of a text: one long one may fall into a loop, in which a
 * good drafter is never right or a bad one always. */
enum { PLACES = 32, WINDOW = 24, TOKENS = 9, AT_ONCE = 8, VERIFIES_MIN = 24 };
/* Tokens of a request while the time is taken: with drafts a step makes several. */
enum { TIMED = 14, TIMED_PLAIN = 6 };
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
 * vocabulary does not spell the text. */
static int requests(struct engine *g, struct gen_req **out, int n_place, int tokens, int depth,
                    bool timed, struct err *e)
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
        r->n_prompt = WINDOW;
        r->prompt =
            mem_dup(ids + (n - WINDOW) * (size_t)made / (size_t)n_place, WINDOW * sizeof *ids);
        r->p.temperature = 0;
        r->p.has_seed = true;
        r->p.ignore_eos = true;
        r->p.max_tokens = tokens;
        r->p.spec_mode = SPEC_MODEL;
        r->p.spec_max = i->spec_rows - 1;
        r->p.spec_fixed = true;
        r->p.spec_depth = depth;
        r->p.spec_untimed = !timed;
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
    int n = requests(g, r, PLACES, TOKENS, engine_info(g)->spec_steps, false, e);
    int ret = n < 0 ? n : run(g, w, r, n, group, &s, e);
    out->enough = s.n_drafted >= VERIFIES_MIN;
    out->first = s.n_drafted ? (double)s.n_first / s.n_drafted : 0;
    out->length = s.n_verify ? 1 + (double)s.n_accepted / s.n_verify : 1;
    out->good = !out->enough || out->first >= check_floor;
    return ret;
}

/* With drafts and without by turns, there and back: a device that has just woken up gets faster on
 * the way, which is not to look as if one of them were. For the same reason the times of the check
 * before do not count. */
int spec_time(struct engine *g, struct spec_waiter *w, struct err *e)
{
    struct gen_req *r[AT_ONCE];
    struct gen_stats s = {0};
    int seqs = engine_info(g)->max_num_seqs, most = seqs < AT_ONCE ? seqs : AT_ONCE;
    for (int k = 0; k < 8; k++) { /* many, then one */
        int group = k < 4 ? most : 1;
        int depth = k % 4 == 0 || k % 4 == 3 ? engine_info(g)->spec_steps : 0;
        if (k < 4 && most == 1)
            continue;
        int n = requests(g, r, group, depth ? TIMED : TIMED_PLAIN, depth, true, e);
        TRY(n < 0 ? n : run(g, w, r, n, group, &s, e));
    }
    return OK;
}
