/* The scheduler's shell: opening, the inbox that other threads fill, the turn, the thread.
 *
 * The lock guards the inbox and nothing else; it is held for a few assignments. The owner takes
 * the whole inbox at once and works without the lock. */
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/sched/sched_int.h"

/* ---- life ---- */

static int check_conf(const struct sched_conf *c, struct err *e)
{
    if (c->reqs_max < 1 || c->slots_max < c->reqs_max || c->slots_max >= LIM_SLOTS)
        return FAIL(e, E_INVAL, "%d sequences at once, %d slots (at most %d)", c->reqs_max,
                    c->slots_max, LIM_SLOTS - 1);
    if (c->rows_max < 1 || c->len_max < 2 || c->queue_max < 0 || c->vocab < 1)
        return FAIL(e, E_INVAL,
                    "prefill rows %d, context %d, queue %d, vocabulary %d: one is too small",
                    c->rows_max, c->len_max, c->queue_max, c->vocab);
    if (c->steps < 1 || c->steps > STEPS_MAX || c->rows < 1 || c->rows > LIM_ROWS_PER_REQ ||
        c->emit < 1 || c->emit > LIM_EMIT || c->emit > c->rows || c->ahead < c->rows)
        return FAIL(e, E_INVAL, "%d steps in flight, %d rows a request, %d tokens, %d ahead",
                    c->steps, c->rows, c->emit, c->ahead);
    return OK;
}

int sched_open(struct sched **out, const struct sched_conf *c, struct err *e)
{
    TRY(check_conf(c, e));
    struct kv *kv;
    TRY(kv_open(&kv, &c->kv, e));
    int most = kv_capacity(kv, c->steps * c->emit + c->ahead) - (c->ahead - 1);
    if (most < 2) {
        kv_close(kv);
        return FAIL(e, E_INVAL, "the KV cache holds %d tokens of one request", most);
    }
    struct sched *s = MEM_NEW(struct sched);
    s->c = *c;
    s->kv = kv;
    s->len_max = most < c->len_max ? most : c->len_max;
    s->slot = MEM_ARRAY(struct slot, c->slots_max + 1);
    s->free_slot = MEM_ARRAY(int, c->slots_max);
    s->stop_slot = MEM_ARRAY(int, c->slots_max);
    s->scratch = MEM_ARRAY(struct sreq *, c->slots_max);
    for (int i = 0; i < STEPS_MAX; i++) {
        s->flight[i].slot = MEM_ARRAY(int32_t, c->reqs_max);
        s->flight[i].gen = MEM_ARRAY(int32_t, c->reqs_max);
        s->flight[i].add = MEM_ARRAY(int, c->reqs_max);
        s->flight[i].chunk = MEM_ARRAY(struct prefill_chunk, c->reqs_max);
    }
    for (int i = c->slots_max; i >= 1; i--) /* slot 1 is the first to be taken */
        s->free_slot[s->n_free_slot++] = i;
    buf_init(&s->text, 0);
    adapt_init(&s->adapt, c->depth);
    s->spec = (struct adapt_step){c->depth, c->depth, true};
    mutex_init(&s->lock);
    cond_init(&s->more);
    *out = s;
    return OK;
}

static void free_live(struct sched *s)
{
    struct err e;
    FAIL(&e, E_CANCELED, "the scheduler was closed");
    while (s->running.n)
        req_finish(s, s->running.v[0], NULL, FINISH_CANCELED, &e);
    while (s->waiting.n)
        req_finish(s, s->waiting.v[0], NULL, FINISH_CANCELED, &e);
    for (int i = 0; i < s->in.n_cmd; i++)
        gen_req_free(s->in.cmd[i].req);
    for (struct gen_evt *v = s->evt_first, *next; v; v = next) {
        next = v->next;
        gen_evt_free(v);
    }
}

void sched_close(struct sched *s)
{
    if (!s)
        return;
    CHECK(!s->thread.started);
    free_live(s);
    for (int i = 0; i <= s->c.slots_max; i++)
        kv_seq_done(s->kv, &s->slot[i].kv);
    kv_close(s->kv);
    mem_free(s->slot);
    mem_free(s->free_slot);
    mem_free(s->stop_slot);
    mem_free(s->scratch);
    for (int i = 0; i < STEPS_MAX; i++) {
        mem_free(s->flight[i].slot);
        mem_free(s->flight[i].gen);
        mem_free(s->flight[i].add);
        mem_free(s->flight[i].chunk);
    }
    mem_free(s->running.v);
    mem_free(s->waiting.v);
    mem_free(s->in.cmd);
    mem_free(s->took.cmd);
    buf_done(&s->text);
    mutex_done(&s->lock);
    cond_done(&s->more);
    mem_free(s);
}

/* ---- the inbox: any thread ---- */

/* With the lock held. */
static void push_cmd(struct sched *s, struct cmd c)
{
    MEM_GROW(s->in.cmd, s->in.cap_cmd, s->in.n_cmd + 1);
    s->in.cmd[s->in.n_cmd++] = c;
}

static void post(struct sched *s, struct cmd c)
{
    mutex_lock(&s->lock);
    push_cmd(s, c);
    cond_signal(&s->more);
    mutex_unlock(&s->lock);
}

static int admit(struct sched *s, struct gen_req **r, size_t n, struct err *e)
{
    if (sched_failed(s))
        return FAIL(e, E_DEVICE, "the device has failed");
    if (s->quit)
        return FAIL(e, E_CANCELED, "shutting down");
    int places = s->c.reqs_max + s->c.queue_max - sched_live(s);
    if ((int64_t)n > places)
        return FAIL(e, E_BUSY, "the queue is full: %zu requests, %d places", n,
                    places > 0 ? places : 0);
    for (size_t i = 0; i < n; i++)
        push_cmd(s, (struct cmd){.kind = CMD_SUBMIT, .id = r[i]->id, .req = r[i]});
    __atomic_add_fetch(&s->live, (int)n, __ATOMIC_RELAXED);
    if (__atomic_load_n(&s->mark_us, __ATOMIC_RELAXED) == 0)
        __atomic_store_n(&s->mark_us, s->c.clock_us(s->c.ud), __ATOMIC_RELAXED);
    cond_signal(&s->more);
    return OK;
}

int sched_submit(struct sched *s, struct gen_req **r, size_t n, struct err *e)
{
    for (size_t i = 0; i < n; i++)
        TRY(req_validate(s, r[i], e));
    for (size_t i = 0; i < n; i++)
        if (!r[i]->p.has_seed) {
            r[i]->p.seed = s->c.rand(s->c.ud);
            LOG(LOG_DEBUG, "sched", "request %llu: seed %llu", (unsigned long long)r[i]->id,
                (unsigned long long)r[i]->p.seed);
        }
    mutex_lock(&s->lock);
    int rc = admit(s, r, n, e);
    mutex_unlock(&s->lock);
    return rc;
}

void sched_cancel(struct sched *s, uint64_t id)
{
    post(s, (struct cmd){.kind = CMD_CANCEL, .id = id});
}

void sched_cancel_all(struct sched *s)
{
    post(s, (struct cmd){.kind = CMD_CANCEL_ALL});
}

void sched_pause(struct sched *s, uint64_t id, bool on)
{
    post(s, (struct cmd){.kind = on ? CMD_PAUSE : CMD_RESUME, .id = id});
}

void sched_step_done(void *ud, struct step *st)
{
    struct sched *s = ud;
    mutex_lock(&s->lock);
    CHECK(s->in.n_step < STEPS_MAX);
    s->in.step[s->in.n_step++] = st;
    cond_signal(&s->more);
    mutex_unlock(&s->lock);
}

int sched_live(const struct sched *s)
{
    return __atomic_load_n(&s->live, __ATOMIC_ACQUIRE);
}

bool sched_failed(const struct sched *s)
{
    return __atomic_load_n(&s->failed, __ATOMIC_ACQUIRE);
}

int sched_len_max(const struct sched *s)
{
    return s->len_max;
}

int64_t sched_silence_us(const struct sched *s)
{
    int64_t mark = __atomic_load_n(&s->mark_us, __ATOMIC_RELAXED);
    int64_t now = s->c.clock_us(s->c.ud);
    return mark && now > mark ? now - mark : 0;
}

/* ---- the turn: owner ---- */

static void cancel_all(struct sched *s)
{
    while (s->running.n)
        req_finish(s, s->running.v[s->running.n - 1], NULL, FINISH_CANCELED, NULL);
    while (s->waiting.n)
        req_finish(s, s->waiting.v[s->waiting.n - 1], NULL, FINISH_CANCELED, NULL);
}

static void run_cmd(struct sched *s, const struct cmd *c)
{
    struct sreq *r = c->kind == CMD_SUBMIT ? NULL : req_find(s, c->id);
    switch (c->kind) {
    case CMD_SUBMIT:
        req_add(s, c->req);
        if (s->failed) { /* it was under way when the device failed */
            struct err e;
            FAIL(&e, E_DEVICE, "the device has failed");
            req_finish(s, req_find(s, c->id), NULL, FINISH_ERROR, &e);
        }
        return;
    case CMD_CANCEL:
        if (r)
            req_finish(s, r, NULL, FINISH_CANCELED, NULL);
        return;
    case CMD_CANCEL_ALL:
        cancel_all(s);
        return;
    case CMD_PAUSE:
    case CMD_RESUME:
        if (r)
            req_pause(s, r, c->kind == CMD_PAUSE);
        return;
    }
    CHECK(!"command kind");
}

static bool take_inbox(struct sched *s)
{
    mutex_lock(&s->lock);
    struct inbox b = s->took;
    s->took = s->in;
    s->in = b;
    s->in.n_cmd = s->in.n_step = 0;
    mutex_unlock(&s->lock);
    return s->took.n_cmd || s->took.n_step;
}

static void publish(struct sched *s)
{
    struct sched_stats *t = &s->st;
    t->running = s->running.n;
    t->waiting = s->waiting.n;
    t->paused = s->n_paused;
    t->slots_used = s->c.slots_max - s->n_free_slot;
    t->in_flight = s->in_flight;
    t->pages_used = 0;
    t->kv_usage = 0;
    for (int g = 0; g < s->c.kv.n_group; g++) {
        int used = kv_used_pages(s->kv, g);
        double u = (double)used / s->c.kv.group[g].n_page;
        t->pages_used += used;
        t->kv_usage = u > t->kv_usage ? u : t->kv_usage;
    }
    if (s->c.stats)
        s->c.stats(s->c.ud, t);
}

static void send_events(struct sched *s)
{
    if (!s->evt_first)
        return;
    publish(s); /* before: who has the last final event sees nothing in use */
    struct gen_evt *first = s->evt_first, *last = s->evt_last;
    int done = s->evt_done;
    s->evt_first = s->evt_last = NULL;
    s->evt_done = 0;
    __atomic_sub_fetch(&s->live, done, __ATOMIC_RELEASE); /* who has its final event may submit */
    s->c.events(s->c.ud, first, last, done);
}

/* Silence is counted from the last result, or from when there was something to wait for. */
static void keep_mark(struct sched *s, bool result)
{
    bool pending = s->in_flight || s->running.n + s->waiting.n > s->n_paused;
    int64_t now = pending ? s->c.clock_us(s->c.ud) : 0;
    mutex_lock(&s->lock);
    int64_t mark = __atomic_load_n(&s->mark_us, __ATOMIC_RELAXED);
    if (pending ? result || mark == 0 : s->in.n_cmd == 0)
        __atomic_store_n(&s->mark_us, now, __ATOMIC_RELAXED);
    mutex_unlock(&s->lock);
}

bool sched_turn(struct sched *s)
{
    bool did = take_inbox(s);
    for (int i = 0; i < s->took.n_cmd; i++)
        run_cmd(s, &s->took.cmd[i]);
    for (int i = 0; i < s->took.n_step; i++) {
        step_result(s, s->took.step[i]);
        send_events(s); /* as early as possible */
    }
    while (s->in_flight < s->c.steps && plan_step(s))
        did = true;
    /* Somebody could run, nothing does and nothing will wake us: a bug, not a wait. */
    CHECK(s->in_flight || s->running.n + s->waiting.n == s->n_paused);
    send_events(s);
    publish(s);
    keep_mark(s, s->took.n_step > 0);
    return did;
}

const struct sched_stats *sched_stats(const struct sched *s)
{
    return &s->st;
}

/* ---- the thread ---- */

static void run(void *ud)
{
    struct sched *s = ud;
    for (bool over = false; !over;) {
        mutex_lock(&s->lock);
        while (!s->in.n_cmd && !s->in.n_step && !(s->quit && !s->in_flight))
            cond_wait(&s->more, &s->lock);
        bool quit = s->quit;
        mutex_unlock(&s->lock);
        sched_turn(s);
        over = quit && s->in_flight == 0;
    }
}

void sched_start(struct sched *s)
{
    thread_start(&s->thread, "specd-sched", run, s);
}

void sched_stop(struct sched *s)
{
    mutex_lock(&s->lock);
    s->quit = true;
    push_cmd(s, (struct cmd){.kind = CMD_CANCEL_ALL});
    cond_signal(&s->more);
    mutex_unlock(&s->lock);
    thread_join(&s->thread);
}

/* ---- books ---- */

void sched_check(const struct sched *s)
{
    kv_check(s->kv);
    int used = 0, held[LIM_KV_GROUPS] = {0}, paused = 0;
    for (int i = 1; i <= s->c.slots_max; i++) {
        const struct slot *sl = &s->slot[i];
        used += sl->r != NULL;
        CHECK(!sl->r || sl->r->slot == i);
        for (int g = 0; g < s->c.kv.n_group; g++) {
            CHECK(sl->r || kv_held(&sl->kv, g) == 0);
            held[g] += kv_held(&sl->kv, g);
        }
    }
    for (int g = 0; g < s->c.kv.n_group; g++)
        CHECK(held[g] == kv_used_pages(s->kv, g));
    CHECK(used == s->running.n && used + s->n_free_slot == s->c.slots_max);
    const struct req_list *l[] = {&s->running, &s->waiting};
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < l[k]->n; i++) {
            const struct sreq *r = l[k]->v[i];
            CHECK(i == 0 || l[k]->v[i - 1]->age < r->age);
            CHECK((r->slot != 0) == (k == 0) && (r->state == RQ_WAITING) == (k == 1));
            paused += r->paused;
        }
    CHECK(paused == s->n_paused);
}
