/* The drafter's self-check: one greedy completion of a built-in text before anybody is served. A
 * drafter that was made for another target, or whose taps are read from the wrong layers, changes
 * no output; it only makes everything slower, which nobody would see. Whoever opens the engine. */
#include "engine/spec_check.h"

#include <string.h>

#include "engine/base/thread.h"

enum { CHECK_TOKENS = 256, PROMPT_MIN = 16, VERIFIES_MIN = 16 };
static const uint64_t check_id = UINT64_MAX;
static const double check_floor = 0.15;

static const char check_text[] =
    "The library opens at nine in the morning and closes at six in the evening. Visitors may read "
    "the books in the hall, but they must return them to the desk before they leave. A list of "
    "the rules is printed on the wall:\n\n1. Please be quiet.\n2. Please do not eat or drink "
    "in the hall.\n3.";

static struct gen_req *request(struct engine *g, struct err *e)
{
    const struct engine_info *i = engine_info(g);
    struct gen_req *r = gen_req_new();
    engine_default_params(g, &r->p);
    r->id = check_id;
    size_t room = (size_t)i->max_model_len;
    if (engine_encode(g, check_text, strlen(check_text), true, false, NULL, 0, 0, &r->prompt,
                      &r->n_prompt, e) < 0) {
        gen_req_free(r);
        return NULL;
    }
    r->n_prompt = r->n_prompt < room / 2 ? r->n_prompt : room / 2;
    r->p.temperature = 0;
    r->p.has_seed = true;
    r->p.ignore_eos = true;
    r->p.max_tokens = (int)(room - r->n_prompt < CHECK_TOKENS ? room - r->n_prompt : CHECK_TOKENS);
    r->p.spec_mode = SPEC_MODEL;
    r->p.spec_max = i->spec_rows - 1;
    return r;
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

static void wait_events(struct spec_waiter *w)
{
    mutex_lock(&w->lock);
    while (!w->woken)
        cond_wait(&w->more, &w->lock);
    w->woken = false;
    mutex_unlock(&w->lock);
}

/* The final event's numbers; the check's events reach nobody else. */
static int wait_done(struct engine *g, struct spec_waiter *w, struct gen_stats *out, struct err *e)
{
    for (;;) {
        wait_events(w);
        for (struct gen_evt *v = engine_poll(g), *next; v; v = next) {
            next = v->next;
            bool done = v->kind == EVT_DONE, failed = v->finish == FINISH_ERROR;
            *out = v->stats;
            if (done && failed)
                *e = v->err;
            gen_evt_free(v);
            if (done)
                return failed ? e->code : OK;
        }
    }
}

int spec_check(struct engine *g, struct spec_waiter *w, struct spec_checked *out, struct err *e)
{
    *out = (struct spec_checked){.enough = false};
    struct gen_req *r = request(g, e);
    if (!r)
        return e->code;
    if (r->n_prompt < PROMPT_MIN) { /* a vocabulary that does not spell the text */
        out->good = true;
        gen_req_free(r);
        return OK;
    }
    int ret = engine_submit(g, &r, 1, e);
    if (ret < 0) {
        gen_req_free(r);
        return ret;
    }
    struct gen_stats s;
    TRY(wait_done(g, w, &s, e));
    out->enough = s.n_drafted >= VERIFIES_MIN;
    out->first = s.n_drafted ? (double)s.n_first / s.n_drafted : 0;
    out->length = s.n_verify ? 1 + (double)s.n_accepted / s.n_verify : 1;
    out->good = !out->enough || out->first >= check_floor;
    return OK;
}
