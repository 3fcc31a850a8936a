/* The facade: one object that holds tokenizer, worker and scheduler, the event list that the loop
 * polls, and the metrics of the engine.
 *
 * Threads: see engine.h. The mutex guards the event list and the last published statistics; it is
 * held for a few assignments. The scheduler thread calls on_events and on_stats. */
#include "engine/engine.h"

#include <string.h>

#include "engine/base/buf.h"
#include "engine/base/check.h"
#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/metrics.h"
#include "engine/base/rng.h"
#include "engine/base/thread.h"
#include "engine/model/model.h"
#include "engine/plan.h"
#include "engine/sched/sched.h"
#include "engine/spec_check.h"
#include "engine/text/tokenizer.h"
#include "engine/worker/worker.h"
#include "kernels/timed.h"

enum { DEF_QUEUE = 512, MAX_QUEUE = 1 << 20 };

struct engine {
    struct worker *worker;
    struct sched *sched;
    struct tokenizer *tok;
    struct engine_info info;
    char *model_dir;
    int64_t open_us; /* when opening began */
    bool fixed_seed;
    struct rng seeds; /* the submitter's */
    bool draining;    /* atomic */
    struct spec_waiter waiter;
    bool checking; /* atomic: the self-check runs, whose work is in no metric */

    pthread_mutex_t lock; /* guards what follows */
    engine_wake *wake;    /* NULL: nobody polls yet */
    void *ud;
    struct gen_evt *first, *last;
    int active; /* from submit until the final event is in the list */
    struct sched_stats stats;
};

/* ---- callbacks ---- */

static void on_events(void *ud, struct gen_evt *first, struct gen_evt *last, int n_done)
{
    struct engine *g = ud;
    mutex_lock(&g->lock);
    g->active -= n_done; /* with the list: who polled the final event does not count it any more */
    bool was_empty = !g->first;
    engine_wake *wake = g->wake;
    void *ud_wake = g->ud;
    if (was_empty)
        g->first = first;
    else
        g->last->next = first;
    g->last = last;
    mutex_unlock(&g->lock);
    if (was_empty && wake)
        wake(ud_wake);
}

static void count(enum metric m, int i, int j, int64_t now, int64_t before)
{
    if (now != before)
        metric_add2(m, i, j, (double)(now - before));
}

/* Verifies since the last time of the requests that draft by method i (label of the families). */
static void count_spec(int i, const struct spec_sums *t, const struct spec_sums *o)
{
    if (t->n_verify == o->n_verify)
        return;
    count(M_SPEC_VERIFY, i, 0, t->n_verify, o->n_verify);
    count(M_SPEC_ROWS, i, 0, t->rows, o->rows);
    count(M_SPEC_DRAFTED, i, 0, t->drafted, o->drafted);
    count(M_SPEC_ACCEPTED, i, 0, t->accepted, o->accepted);
    int64_t deep = 0, took = 0;
    for (int p = LIM_EMIT - 1; p >= 0; p--) {
        int64_t n = t->took[p] - o->took[p];
        metric_observe_n(M_SPEC_LENGTH, i, 0, p + 1, n);
        deep += t->deep[p] - o->deep[p];
        took += n;
        if (p && deep)
            metric_add2(M_SPEC_DRAFTED_AT, p - 1, i, (double)deep);
        if (p && took)
            metric_add2(M_SPEC_ACCEPTED_AT, p - 1, i, (double)took);
    }
}

static void on_stats(void *ud, const struct sched_stats *t)
{
    struct engine *g = ud;
    const struct sched_stats *o = &g->stats; /* written by this thread only */
    if (__atomic_load_n(&g->checking, __ATOMIC_ACQUIRE))
        o = t; /* no differences */
    metric_set(M_REQUESTS_RUNNING, t->running);
    metric_set(M_REQUESTS_WAITING, t->waiting);
    metric_set(M_QUEUE_TOKENS, (double)t->queue_tokens);
    metric_set(M_KV_USAGE, t->kv_usage);
    count(M_PROMPT_TOKENS, 0, 0, t->prompt_tokens, o->prompt_tokens);
    count(M_GENERATION_TOKENS, 0, 0, t->generated, o->generated);
    count(M_PREEMPTIONS, 0, 0, t->n_preempted, o->n_preempted);
    count(M_RECOMPUTED_TOKENS, 0, 0, t->recomputed_tokens, o->recomputed_tokens);
    count(M_STEPS, 0, 1, t->n_prefill, o->n_prefill);
    count(M_STEPS, 1, 0, t->n_decode, o->n_decode);
    count(M_NAN_LOGITS, 0, 0, t->n_nan, o->n_nan);
    count_spec(0, &t->spec[SPEC_NGRAM], &o->spec[SPEC_NGRAM]);
    count_spec(1, &t->spec[SPEC_MODEL], &o->spec[SPEC_MODEL]);
    if (t->n_result != o->n_result)
        metric_set(M_LAST_STEP_TIME, (double)clock_unix());
    mutex_lock(&g->lock);
    g->stats = *t;
    mutex_unlock(&g->lock);
    if (o == t && !t->in_flight)
        spec_wake(&g->waiter);
}

/* Where the device's time of a decode step went, by the clock stamps inside its launch. */
static void count_parts(const struct step *s)
{
    for (int i = STAMP_BEGIN + 1; i < N_STAMPS; i++)
        if (s->stamps[i] && s->stamps[i - 1])
            metric_add2(M_SPEC_SECONDS, i - 1, 0, (double)(s->stamps[i] - s->stamps[i - 1]) * 1e-9);
}

static int step_rows(const struct step *s)
{
    int n = s->n_row;
    for (int i = 0; i < s->n_req; i++)
        n += 1 + s->decode_rec[i].n_draft;
    return n;
}

/* On the worker thread. */
static void on_step(void *ud, struct step *s)
{
    struct engine *g = ud;
    int kind = !s->n_req ? 0 : !s->n_chunk ? 1 : 2;
    if (!s->err.code && !__atomic_load_n(&g->checking, __ATOMIC_ACQUIRE)) {
        metric_observe2(M_STEP_SECONDS, kind, 0, (double)s->device_us * 1e-6);
        metric_observe(M_STEP_TOKENS, step_rows(s));
        count_parts(s);
    }
    sched_step_done(g->sched, s);
}

static int64_t now_us(void *ud)
{
    (void)ud;
    return clock_us();
}

static uint64_t next_seed(void *ud)
{
    struct engine *g = ud;
    return g->fixed_seed ? rng_u64(&g->seeds) : rng_os_u64();
}

/* ---- opening ---- */

static int open_sched(struct engine *g, const struct engine_conf *c, const struct worker_conf *w,
                      struct err *e)
{
    const struct worker_info *wi = worker_info(g->worker); /* numbers left open are chosen there */
    struct sched_conf s = {
        .ops = &worker_real,
        .worker = g->worker,
        .kv = {.page = wi->page, .n_group = wi->model.n_group},
        .reqs_max = w->reqs_max,
        .slots_max = w->slots_max,
        .rows_max = wi->prefill_rows_max,
        .len_max = wi->len_max,
        .steps = c->overlap_off ? 1 : STEPS_MAX,
        .rows = wi->spec.rows,
        .emit = wi->spec.steps + 1,
        .ahead = wi->spec.ahead,
        .depth = wi->spec_model ? wi->spec.steps : 0,
        .adapt = wi->spec_adapt,
        .ratio = wi->spec.ratio,
        .ngram = spec_ngram_drafts(&wi->spec),
        .prefill_first = c->prefill_first,
        .vocab = wi->model.vocab,
        .n_eos = wi->model.n_eos,
        .tok = g->tok,
        .clock_us = now_us,
        .rand = next_seed,
        .events = on_events,
        .stats = on_stats,
        .ud = g,
    };
    memcpy(s.eos, wi->model.eos, sizeof s.eos);
    for (int i = 0; i < wi->model.n_group; i++) {
        s.kv.group[i].n_page = wi->n_page[i];
        s.kv.group[i].pages_max = wi->pages_max[i];
        s.kv.group[i].window = wi->model.group[i].window;
    }
    TRY(plan_take(c->max_queued_requests, DEF_QUEUE, 1, MAX_QUEUE, "max_queued_requests",
                  &s.queue_max, e));
    return sched_open(&g->sched, &s, e);
}

static void fill_info(struct engine *g, const struct worker_conf *w)
{
    const struct worker_info *wi = worker_info(g->worker);
    const struct model_info *mi = &wi->model;
    struct engine_info *o = &g->info;
    *o = (struct engine_info){
        .model_dir = g->model_dir,
        .family = mi->family,
        .arch = mi->arch,
        .device = wi->device,
        .vocab = mi->vocab,
        .max_model_len = sched_len_max(g->sched),
        .max_num_seqs = w->reqs_max,
        .max_num_batched_tokens = wi->prefill_rows_max,
        .page = wi->page,
        .n_group = mi->n_group,
        .n_param = mi->n_param,
        .weight_bytes = (int64_t)(mi->weight_bytes + wi->draft.weight_bytes),
        .kv_bytes = wi->kv_bytes,
        .lookup_bytes = (int64_t)mi->lookup_bytes,
        .expert_bytes = (int64_t)mi->expert_bytes,
        .n_expert = mi->n_expert,
        .topk = mi->topk,
        .kv_token_bytes = plan_kv_token_bytes(mi),
        .kv_dtype = dtype_name(mi->group[0].dt),
        .workspace_bytes = wi->workspace_bytes + wi->copy_bytes,
        .world = wi->world,
        .n_graph = wi->n_graph,
        .graph_bytes = wi->graph_bytes,
        .ready_s = (double)(clock_us() - g->open_us) * 1e-6,
        .open_s = wi->open_s,
        .load_s = wi->load_s,
        .record_s = wi->record_s,
        .bos = mi->bos,
        .n_eos = mi->n_eos,
        .has_text = g->tok != NULL,
        .token_bytes_max = g->tok ? tok_longest(g->tok) : 0,
        .spec_name = wi->spec_name,
        .spec_rows = wi->spec.rows,
        .spec_steps = wi->spec.steps,
        .spec_topk = wi->spec.topk,
        .spec_ngram = wi->spec.ngram_max > 0,
        .spec_model = wi->spec_model,
        .defaults = {.temperature = mi->temperature,
                     .top_p = mi->top_p,
                     .min_p = mi->min_p,
                     .top_k = mi->top_k,
                     .repetition = mi->repetition,
                     .max_tokens = sched_len_max(g->sched),
                     .n_logprobs = -1,
                     .n_prompt_logprobs = -1,
                     .skip_special = true,
                     .spec_mode = wi->spec_model           ? SPEC_MODEL
                                  : wi->spec.ngram_max > 0 ? SPEC_NGRAM
                                                           : SPEC_OFF,
                     .spec_max = wi->spec.rows - 1},
    };
    for (int i = 0; i < mi->n_group; i++)
        o->kv_pages = wi->n_page[i] > o->kv_pages ? wi->n_page[i] : o->kv_pages;
    o->kv_tokens = o->kv_pages * wi->page;
    memcpy(o->eos, mi->eos, sizeof o->eos);
    LOG(LOG_INFO, "engine",
        "%s (%s), %.1f M parameters, on %s: context %d, %d sequences, KV %lld tokens of %s in "
        "pages of %d (%.1f MiB), %d graphs",
        mi->arch, mi->family, (double)mi->n_param * 1e-6, wi->device, o->max_model_len, w->reqs_max,
        (long long)o->kv_tokens, o->kv_dtype, wi->page, (double)wi->kv_bytes / (1 << 20),
        wi->n_graph);
    LOG(LOG_INFO, "engine",
        "ready in %.2f s: open %.2f, weights %.2f (%.2f GB), graphs %.2f (%.1f MiB)", o->ready_s,
        wi->open_s, wi->load_s, (double)o->weight_bytes * 1e-9, wi->record_s,
        (double)wi->graph_bytes / (1 << 20));
    metric_set2(M_START_SECONDS, 0, 0, wi->open_s);
    metric_set2(M_START_SECONDS, 1, 0, wi->load_s);
    metric_set2(M_START_SECONDS, 2, 0, wi->record_s);
    if (wi->world > 1)
        LOG(LOG_INFO, "engine",
            "%d ranks share every layer; %.1f MiB of weights are copied to them", wi->world,
            (double)wi->copy_bytes / (1 << 20));
    if (wi->spec.rows > 1)
        LOG(LOG_INFO, "engine", "speculation %s: %d drafts on a path, top-k %d, %d rows a verify%s",
            wi->spec_name, wi->spec.steps, wi->spec.topk, wi->spec.rows,
            wi->spec_model && wi->spec.ngram_max ? "; ngram for requests that ask for it" : "");
}

/* Generated weights may come without a vocabulary: token ids in, token ids out. */
static int open_tokenizer(struct engine *g, const struct engine_conf *c, struct err *e)
{
    char *path = path_join(c->model, "tokenizer.json");
    bool none = c->dummy && !file_exists(path);
    mem_free(path);
    return none ? OK : tok_open(&g->tok, c->model, e);
}

/* The vocabulary is read while the worker opens: a large one takes as long as the weights. */
struct tok_opening {
    struct thread thread;
    struct engine *g;
    const struct engine_conf *c;
    int ret;
    struct err e;
};

static void run_open_tokenizer(void *ud)
{
    struct tok_opening *t = ud;
    t->ret = open_tokenizer(t->g, t->c, &t->e);
}

static int open_parts(struct engine *g, const struct engine_conf *c, struct worker_conf *w,
                      struct err *e)
{
    struct tok_opening t = {.g = g, .c = c};
    thread_start(&t.thread, "vocabulary", run_open_tokenizer, &t);
    int ret = worker_open(&g->worker, w, on_step, g, e);
    thread_join(&t.thread);
    if (t.ret < 0 && e)
        *e = t.e;
    return t.ret < 0 ? t.ret : ret;
}

static void set_wake(struct engine *g, engine_wake *wake, void *ud)
{
    mutex_lock(&g->lock);
    g->wake = wake;
    g->ud = ud;
    mutex_unlock(&g->lock);
}

/* After the check's last event a step may still be in flight, planned before that event was known.
 */
static void wait_idle(struct engine *g)
{
    for (bool idle = false; !idle;) {
        mutex_lock(&g->lock);
        idle = !g->stats.in_flight;
        mutex_unlock(&g->lock);
        if (!idle)
            spec_wait(&g->waiter);
    }
}

/* A drafter below the floor is refused when it was asked for, and left alone when it was found. */
static int check_drafter(struct engine *g, const struct engine_conf *c, struct err *e)
{
    struct spec_checked k;
    const struct worker_info *wi = worker_info(g->worker);
    if (!wi->draft.family || c->spec_check_off)
        return OK;
    if (c->dummy || !g->tok) {
        LOG(LOG_INFO, "engine", "the drafter is not checked: %s",
            c->dummy ? "its weights are generated" : "there is no tokenizer");
        return OK;
    }
    set_wake(g, spec_wake, &g->waiter);
    __atomic_store_n(&g->checking, true, __ATOMIC_RELEASE);
    int ret = spec_check(g, &g->waiter, &k, e);
    if (ret == OK && wi->spec_adapt && k.good)
        ret = spec_time(g, &g->waiter, e);
    wait_idle(g);
    __atomic_store_n(&g->checking, false, __ATOMIC_RELEASE);
    set_wake(g, NULL, NULL);
    if (ret < 0)
        return ret;
    LOG(k.good ? LOG_INFO : LOG_WARN, "engine",
        "the drafter %s was right at its first draft %.0f%% of the time, %.2f tokens a verify%s",
        wi->draft.arch, 100 * k.first, k.length, k.enough ? "" : "; too few verifies to judge it");
    if (k.good)
        return OK;
    if (!wi->spec_adapt)
        return FAIL(e, E_INVAL,
                    "the drafter %s does not fit %s: its first draft was right %.0f%% of the time "
                    "(spec_check off serves it all the same)",
                    wi->draft.arch, wi->model.arch, 100 * k.first);
    LOG(LOG_WARN, "engine", "drafts are not used");
    g->info.spec_model = false;
    g->info.spec_name = g->info.spec_ngram ? "ngram" : "off"; /* what requests are told runs */
    g->info.defaults.spec_mode = g->info.spec_ngram ? SPEC_NGRAM : SPEC_OFF;
    return OK;
}

int engine_open(struct engine **out, const struct engine_conf *c, engine_wake *wake, void *ud,
                struct err *e)
{
    if (!c->model)
        return FAIL(e, E_INVAL, "no model directory");
    struct worker_conf w = {0};
    struct engine *g = MEM_NEW(struct engine);
    g->open_us = clock_us();
    mutex_init(&g->lock);
    spec_waiter_init(&g->waiter);
    g->model_dir = mem_strdup(c->model);
    g->fixed_seed = c->seed != 0;
    g->seeds.s = c->seed;
    int ret = OK;
    TRY_OUT(plan_worker(&w, c, e));
    TRY_OUT(open_parts(g, c, &w, e));
    TRY_OUT(open_sched(g, c, &w, e));
    fill_info(g, &w);
    sched_start(g->sched);
    TRY_OUT(check_drafter(g, c, e));
    set_wake(g, wake, ud); /* from here on somebody polls */
    *out = g;
    return OK;
out:
    engine_close(g);
    return ret;
}

void engine_close(struct engine *g)
{
    if (!g)
        return;
    if (g->info.model_dir) /* it was ready, so the scheduler runs */
        sched_stop(g->sched);
    worker_close(g->worker);
    sched_close(g->sched);
    tok_close(g->tok);
    for (struct gen_evt *v = g->first, *next; v; v = next) {
        next = v->next;
        gen_evt_free(v);
    }
    mutex_done(&g->lock);
    spec_waiter_done(&g->waiter);
    mem_free(g->model_dir);
    mem_free(g);
}

/* ---- requests ---- */

void engine_default_params(const struct engine *g, struct gen_params *p)
{
    *p = g->info.defaults;
}

static void add_active(struct engine *g, int n)
{
    mutex_lock(&g->lock);
    g->active += n;
    mutex_unlock(&g->lock);
}

int engine_submit(struct engine *g, struct gen_req **r, size_t n, struct err *e)
{
    if (__atomic_load_n(&g->draining, __ATOMIC_RELAXED))
        return FAIL(e, E_CANCELED, "the server is shutting down");
    add_active(g, (int)n); /* before: the final event may be out when sched_submit returns */
    int ret = sched_submit(g->sched, r, n, e);
    if (ret < 0)
        add_active(g, -(int)n);
    return ret;
}

void engine_cancel(struct engine *g, uint64_t id)
{
    sched_cancel(g->sched, id);
}

void engine_cancel_all(struct engine *g)
{
    sched_cancel_all(g->sched);
}

void engine_pause(struct engine *g, uint64_t id, bool on)
{
    sched_pause(g->sched, id, on);
}

struct gen_evt *engine_poll(struct engine *g)
{
    mutex_lock(&g->lock);
    struct gen_evt *v = g->first;
    g->first = g->last = NULL;
    mutex_unlock(&g->lock);
    return v;
}

void engine_drain(struct engine *g)
{
    __atomic_store_n(&g->draining, true, __ATOMIC_RELAXED);
}

int engine_active(const struct engine *g)
{
    struct engine *m = (struct engine *)g; /* the lock is not part of what a caller sees */
    mutex_lock(&m->lock);
    int n = m->active;
    mutex_unlock(&m->lock);
    return n;
}

bool engine_healthy(const struct engine *g, int64_t stall_us)
{
    return !sched_failed(g->sched) && sched_silence_us(g->sched) <= stall_us;
}

const struct engine_info *engine_info(const struct engine *g)
{
    return &g->info;
}

void engine_usage(const struct engine *g, struct engine_usage *out)
{
    struct engine *m = (struct engine *)g;
    mutex_lock(&m->lock);
    *out = (struct engine_usage){.slots = g->stats.slots_used,
                                 .pages = g->stats.pages_used,
                                 .active = g->active,
                                 .n_step = g->stats.n_step,
                                 .n_decode = g->stats.n_decode,
                                 .n_preempted = g->stats.n_preempted};
    for (int i = 0; i <= SPEC_MODEL; i++)
        out->n_rows += g->stats.spec[i].rows;
    for (int i = 0; i < N_STAMPS - 1; i++)
        out->part_us[i] = g->stats.part_us[i];
    mutex_unlock(&m->lock);
}

void engine_time_ops(struct engine *g, bool on)
{
    worker_time_ops(g->worker, on);
}

int engine_ops(const struct engine *g, bool prefill, struct engine_op out[ENGINE_OPS])
{
    struct op_times t;
    _Static_assert((int)ENGINE_OPS >= (int)TIMED_NAMES, "an entry for each");
    worker_op_times(g->worker, prefill ? PART_PREFILL : PART_DECODE, &t);
    for (int i = 0; i < t.n; i++)
        out[i] = (struct engine_op){t.op[i].name, (double)t.op[i].calls / (double)t.parts,
                                    t.op[i].us / (double)t.parts};
    return t.n;
}

/* ---- text ---- */

int engine_encode(const struct engine *g, const char *s, size_t n, bool add_special,
                  bool parse_special, const struct span *untrusted, size_t n_untrusted,
                  size_t max_ids, int32_t **ids, size_t *n_ids, struct err *e)
{
    if (!g->tok)
        return FAIL(e, E_UNSUPPORTED, "%s has no tokenizer.json: prompts must be token ids",
                    g->model_dir);
    struct ids list = {0};
    unsigned flags =
        (add_special ? TOK_ADD_SPECIAL : 0u) | (parse_special ? TOK_PARSE_SPECIAL : 0u);
    int ret = tok_encode(g->tok, s, n, flags, untrusted, n_untrusted, max_ids, &list, e);
    if (ret < 0) {
        ids_done(&list);
        return ret;
    }
    *ids = list.v ? list.v : mem_alloc(sizeof **ids);
    *n_ids = list.n;
    return OK;
}

void engine_decode(const struct engine *g, const int32_t *ids, size_t n, bool skip_special,
                   struct buf *out)
{
    if (g->tok)
        detok_all(g->tok, ids, n, skip_special, out);
}

const char *engine_token_bytes(const struct engine *g, int32_t id, size_t *n)
{
    *n = 0;
    return g->tok ? tok_bytes(g->tok, id, n) : "";
}

const char *engine_token_piece(const struct engine *g, int32_t id)
{
    return g->tok ? tok_piece(g->tok, id) : NULL;
}
