/* Requests: validation, look-up, slots, preemption, pausing and the one final event of each. */
#include <math.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/sched/sched_int.h"

/* ---- validation ---- */

static int check_prompt(const struct sched *s, const struct gen_req *g, struct err *e)
{
    if (g->n_prompt < 1)
        return FAIL(e, E_INVAL, "the prompt holds no token");
    size_t most = (size_t)s->len_max - (g->p.max_tokens > 0);
    if (g->n_prompt > most)
        return FAIL(e, E_RANGE,
                    "the prompt has %zu tokens; the context of %d%s leaves room for %zu%s",
                    g->n_prompt, s->len_max, s->len_max < s->c.len_max ? " (KV cache)" : "", most,
                    g->p.max_tokens > 0 ? " and one of output" : "");
    for (size_t i = 0; i < g->n_prompt; i++)
        if (g->prompt[i] < 0 || g->prompt[i] >= s->c.vocab)
            return FAIL(e, E_INVAL, "prompt token %zu is %d; ids are 0 to %d", i, g->prompt[i],
                        s->c.vocab - 1);
    return OK;
}

static int check_ranges(const struct gen_params *p, struct err *e)
{
    if (!(p->temperature >= 0 && p->temperature <= 1e4f))
        return FAIL(e, E_INVAL, "temperature %g; at least 0", (double)p->temperature);
    if (!(p->top_p > 0 && p->top_p <= 1))
        return FAIL(e, E_INVAL, "top_p %g; above 0, at most 1", (double)p->top_p);
    if (!(p->min_p >= 0 && p->min_p <= 1))
        return FAIL(e, E_INVAL, "min_p %g; 0 to 1", (double)p->min_p);
    if (!(p->repetition > 0 && p->repetition <= 1e4f))
        return FAIL(e, E_INVAL, "repetition_penalty %g; above 0", (double)p->repetition);
    if (!isfinite(p->presence) || !isfinite(p->frequency))
        return FAIL(e, E_INVAL, "presence_penalty or frequency_penalty is not finite");
    if (p->max_tokens < 0 || p->min_tokens < 0)
        return FAIL(e, E_INVAL, "max_tokens %d, min_tokens %d; at least 0", p->max_tokens,
                    p->min_tokens);
    if (p->max_tokens == 0 && p->n_prompt_logprobs < 0)
        return FAIL(e, E_INVAL, "max_tokens 0 without log probabilities of the prompt");
    if (p->n_logprobs < -1 || p->n_logprobs > LIM_LOGPROBS || p->n_prompt_logprobs < -1 ||
        p->n_prompt_logprobs > LIM_LOGPROBS)
        return FAIL(e, E_INVAL, "logprobs %d, prompt logprobs %d; at most %d", p->n_logprobs,
                    p->n_prompt_logprobs, LIM_LOGPROBS);
    return OK;
}

static bool has_id(const int32_t *v, int n, int32_t id)
{
    for (int i = 0; i < n; i++)
        if (v[i] == id)
            return true;
    return false;
}

/* Stop ids and, unless ignored, the model's end tokens, each once. */
static int stop_list(const struct sched *s, const struct gen_params *p, int32_t out[LIM_STOP_IDS])
{
    int n = 0;
    for (int i = 0; i < p->n_stop_ids; i++)
        if (!has_id(out, n, p->stop_ids[i]))
            out[n++] = p->stop_ids[i];
    for (int i = 0; i < s->c.n_eos && !p->ignore_eos; i++)
        if (!has_id(out, n, s->c.eos[i])) {
            if (n == LIM_STOP_IDS)
                return -1;
            out[n++] = s->c.eos[i];
        }
    return n;
}

static int check_lists(const struct sched *s, const struct gen_req *g, struct err *e)
{
    const struct gen_params *p = &g->p;
    int32_t stop[LIM_STOP_IDS];
    if (p->n_stop_ids < 0 || p->n_stop_ids > (int)ARRAY_LEN(p->stop_ids))
        return FAIL(e, E_INVAL, "%d stop token ids; at most %d", p->n_stop_ids,
                    (int)ARRAY_LEN(p->stop_ids));
    for (int i = 0; i < p->n_stop_ids; i++)
        if (p->stop_ids[i] < 0 || p->stop_ids[i] >= s->c.vocab)
            return FAIL(e, E_INVAL, "stop token id %d; ids are 0 to %d", p->stop_ids[i],
                        s->c.vocab - 1);
    if (stop_list(s, p, stop) < 0)
        return FAIL(e, E_INVAL, "%d stop token ids and %d end tokens of the model; at most %d",
                    p->n_stop_ids, s->c.n_eos, LIM_STOP_IDS);
    if (p->n_bias < 0 || p->n_bias > LIM_BIAS)
        return FAIL(e, E_INVAL, "%d logit_bias entries; at most %d", p->n_bias, LIM_BIAS);
    for (int i = 0; i < p->n_bias; i++)
        if (p->bias_id[i] < 0 || p->bias_id[i] >= s->c.vocab || !isfinite(p->bias[i]))
            return FAIL(e, E_INVAL, "logit_bias of token %d is %g; ids are 0 to %d", p->bias_id[i],
                        (double)p->bias[i], s->c.vocab - 1);
    if (g->n_stop > LIM_STOP_STRINGS)
        return FAIL(e, E_INVAL, "%zu stop strings; at most %d", g->n_stop, LIM_STOP_STRINGS);
    if (g->n_stop && !s->c.tok)
        return FAIL(e, E_UNSUPPORTED, "stop strings without a tokenizer");
    for (size_t i = 0; i < g->n_stop; i++) {
        size_t n = strlen(g->stop[i]);
        if (n < 1 || n > LIM_STOP_BYTES)
            return FAIL(e, E_INVAL, "stop string %zu has %zu bytes; 1 to %d", i, n, LIM_STOP_BYTES);
    }
    return OK;
}

int req_validate(const struct sched *s, const struct gen_req *g, struct err *e)
{
    if (g->id == 0)
        return FAIL(e, E_INVAL, "request id 0");
    TRY(check_ranges(&g->p, e));
    TRY(check_prompt(s, g, e));
    return check_lists(s, g, e);
}

/* ---- look-up and lists ---- */

static struct sreq **hash_at(struct sched *s, uint64_t id)
{
    struct sreq **p = &s->hash[(id * 0x9e3779b97f4a7c15ull) >> 54];
    while (*p && (*p)->g->id != id)
        p = &(*p)->hash_next;
    return p;
}

struct sreq *req_find(struct sched *s, uint64_t id)
{
    return *hash_at(s, id);
}

static int list_at(const struct req_list *l, uint64_t age) /* first index not older than age */
{
    int lo = 0, hi = l->n;
    while (lo < hi) {
        int mid = (lo + hi) / 2;
        if (l->v[mid]->age < age)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

void req_list_add(struct req_list *l, struct sreq *r)
{
    MEM_GROW(l->v, l->cap, l->n + 1);
    int at = list_at(l, r->age);
    memmove(l->v + at + 1, l->v + at, sizeof *l->v * (size_t)(l->n - at));
    l->v[at] = r;
    l->n++;
}

void req_list_del(struct req_list *l, struct sreq *r)
{
    int at = list_at(l, r->age);
    CHECK(at < l->n && l->v[at] == r);
    l->n--;
    memmove(l->v + at, l->v + at + 1, sizeof *l->v * (size_t)(l->n - at));
}

/* ---- life ---- */

void evt_push(struct sched *s, struct gen_evt *e)
{
    e->next = NULL;
    if (s->evt_last)
        s->evt_last->next = e;
    else
        s->evt_first = e;
    s->evt_last = e;
    s->st.generated += e->kind == EVT_PROMPT ? 0 : e->n_tok;
}

/* No mode without drafts, no drafts without a mode, and never more than fit a verify. */
static void settle_spec(const struct sched *s, struct gen_params *p)
{
    int most = s->c.rows - 1;
    bool has = p->spec_mode == SPEC_NGRAM ? s->c.ngram > 0 : s->c.depth > 0;
    if (!has)
        p->spec_mode = SPEC_OFF;
    p->spec_max = p->spec_max < most ? p->spec_max : most;
    if (p->spec_mode == SPEC_OFF || p->spec_max < 1) {
        p->spec_mode = SPEC_OFF;
        p->spec_max = 0;
    }
}

void req_add(struct sched *s, struct gen_req *g)
{
    settle_spec(s, &g->p);
    struct sreq *r = MEM_NEW(struct sreq);
    r->g = g;
    r->age = s->next_age++;
    r->tok = g->prompt;
    r->n_prompt = r->n_tok = r->cap_tok = (int)g->n_prompt;
    g->prompt = NULL;
    int64_t most = (int64_t)r->n_prompt + g->p.max_tokens;
    r->limit = most < s->len_max ? (int)most : s->len_max;
    r->stats =
        (struct gen_stats){.n_prompt = r->n_prompt, .arrival_us = g->arrival_us, .seed = g->p.seed};
    if (s->c.tok) {
        struct text_conf c = {.stop = (const char *const *)g->stop,
                              .n_stop = g->n_stop,
                              .include_stop = g->p.include_stop,
                              .skip_special = g->p.skip_special,
                              .continues = true,
                              .min_tokens = g->p.min_tokens};
        text_stream_init(&r->text, s->c.tok, &c);
        r->has_text = true;
    }
    if (g->p.n_prompt_logprobs >= 0) {
        r->score = gen_evt_new(g->id, EVT_PROMPT, r->n_prompt, g->p.n_prompt_logprobs, 0);
        r->score->tok[0].id = r->tok[0];
    }
    CHECK(!req_find(s, g->id));
    struct sreq **h = hash_at(s, g->id);
    *h = r;
    req_list_add(&s->waiting, r);
    s->st.queue_tokens += r->n_prompt;
    s->st.n_submitted++;
}

static void req_free(struct sched *s, struct sreq *r)
{
    struct sreq **h = hash_at(s, r->g->id);
    CHECK(*h == r);
    *h = r->hash_next;
    if (r->has_text)
        text_stream_done(&r->text);
    gen_evt_free(r->score);
    gen_req_free(r->g);
    mem_free(r->tok);
    mem_free(r);
}

void req_unslot(struct sched *s, struct sreq *r, bool tell_device)
{
    struct slot *sl = &s->slot[r->slot];
    CHECK(sl->r == r);
    sl->r = NULL;
    sl->left = s->step_no;
    kv_release(s->kv, &sl->kv);
    if (tell_device && !sl->stop) {
        sl->stop = true;
        s->stop_slot[s->n_stop_slot++] = r->slot;
    }
    s->free_slot[s->n_free_slot++] = r->slot;
    r->slot = 0;
    r->pending = 0;
    req_list_del(&s->running, r);
}

void req_preempt(struct sched *s, struct sreq *r)
{
    int done = r->state == RQ_READY ? r->n_tok - 1 : r->fill;
    r->seen = done > r->seen ? done : r->seen;
    req_unslot(s, r, true);
    r->state = RQ_WAITING;
    req_list_add(&s->waiting, r); /* by age: before everything that never started */
    s->st.queue_tokens += r->n_prompt;
    r->stats.n_preempted++;
    s->st.n_preempted++;
    LOG(LOG_DEBUG, "sched", "request %llu preempted with %d tokens", (unsigned long long)r->g->id,
        r->n_tok);
}

void req_pause(struct sched *s, struct sreq *r, bool on)
{
    if (r->paused == on)
        return;
    r->paused = on;
    s->n_paused += on ? 1 : -1;
}

/* Pages that were reserved for rows which turned out needless, the request having ended first. */
static int overshoot(const struct sched *s, const struct sreq *r)
{
    int n = 0, last = (r->n_tok - 1 + s->c.kv.page - 1) / s->c.kv.page;
    for (int g = 0; g < s->c.kv.n_group; g++) {
        int end = s->slot[r->slot].kv.t[g].end;
        n += end > last ? end - last : 0;
    }
    return n;
}

void req_finish(struct sched *s, struct sreq *r, struct gen_evt *e, enum finish why,
                const struct err *err)
{
    if (!e) {
        buf_reset(&s->text);
        if (r->has_text && r->n_tok > r->n_prompt)
            text_stream_flush(&r->text, &s->text);
        e = gen_evt_new(r->g->id, EVT_DONE, 0, 0, s->text.len);
        if (s->text.len)
            memcpy(e->text, s->text.p, s->text.len);
    }
    e->kind = EVT_DONE;
    e->finish = why;
    if (err)
        e->err = *err;
    r->stats.n_output = r->n_tok - r->n_prompt;
    e->stats = r->stats;
    evt_push(s, e);
    s->evt_done++;
    s->st.n_finished++;
    req_pause(s, r, false);
    if (r->slot) {
        if (r->pending)
            s->st.n_overshoot += overshoot(s, r);
        req_unslot(s, r, !r->dev_ended);
    } else {
        req_list_del(&s->waiting, r);
        s->st.queue_tokens -= r->n_prompt;
    }
    req_free(s, r);
}

void req_slot_params(const struct sched *s, const struct sreq *r, struct slot_params *p)
{
    const struct gen_params *q = &r->g->p;
    *p = (struct slot_params){
        .seed = q->seed,
        .temperature = q->temperature,
        .top_p = q->top_p,
        .min_p = q->min_p,
        .repetition = q->repetition,
        .presence = q->presence,
        .frequency = q->frequency,
        .top_k = q->top_k,
        .n_prompt = r->n_prompt,
        .n_out = r->n_tok - r->n_prompt,
        .min_out = q->min_tokens,
        .max_out = q->max_tokens,
        .len_max = s->len_max,
        .n_logprobs = q->n_logprobs,
        .spec_mode = q->spec_mode,
        .spec_max = q->spec_max,
        .spec_ratio = s->c.ratio && q->spec_mode == SPEC_MODEL,
        .n_bias = q->n_bias,
    };
    p->n_stop = stop_list(s, q, p->stop);
    memcpy(p->bias_id, q->bias_id, sizeof *q->bias_id * (size_t)q->n_bias);
    memcpy(p->bias, q->bias, sizeof *q->bias * (size_t)q->n_bias);
}
