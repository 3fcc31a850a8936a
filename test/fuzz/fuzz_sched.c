/* Fuzz target: operation sequences on the page allocator and on the scheduler, against simple
 * models. The first byte chooses which; each further operation takes a few bytes. The page model
 * knows who owns which page; the scheduler runs on the fake device, which checks every KV read, and
 * each request's tokens must be those of the reference. Violations abort. No tokenizer: text has
 * targets of its own. */
#include "engine/kv/pages.h"
#include "engine/sched/sched_int.h"
#include "test/unit/sched_fake.h"

int fuzz_sched(const uint8_t *data, size_t size);

struct input {
    const uint8_t *p;
    size_t n;
};

static int byte(struct input *in, int below)
{
    if (!in->n)
        return 0;
    in->n--;
    return *in->p++ % below;
}

/* ---- pages ---- */

enum { SEQS = 6, PAGES = 24, SETS = 256 };

static void check_owners(struct kv *k, const struct kv_seq *s, int n_group)
{
    kv_check(k);
    for (int g = 0; g < n_group; g++) {
        int owner[PAGES] = {0}, n = 0;
        for (int i = 0; i < SEQS; i++)
            for (int j = s[i].t[g].first; j < s[i].t[g].end; j++, n++) {
                int32_t p = s[i].t[g].page[j];
                CHECK(p >= 0 && p < PAGES && !owner[p]);
                owner[p] = 1;
            }
        CHECK(n == kv_used_pages(k, g));
    }
}

static void fuzz_pages(struct input *in)
{
    struct kv_conf c = {.page = 1 + byte(in, 8), .n_group = 1 + byte(in, 3)};
    for (int g = 0; g < c.n_group; g++) {
        c.group[g].n_page = 1 + byte(in, PAGES);
        c.group[g].pages_max = 64;
        c.group[g].window = byte(in, 3) ? byte(in, 40) : 0;
    }
    struct kv *k;
    CHECK(kv_open(&k, &c, NULL) == OK);
    struct kv_seq s[SEQS] = {0};
    int len[SEQS] = {0};
    struct page_set set[SETS];
    while (in->n) {
        int op = byte(in, 5), i = byte(in, SEQS), v = byte(in, 64), room = byte(in, SETS);
        if (op == 0) {
            kv_release(k, &s[i]);
            len[i] = 0;
        } else if (op == 1) {
            kv_pass(k, &s[i], v < len[i] ? v : len[i]);
        } else {
            int want = len[i] + v < 64 * c.page ? len[i] + v : 64 * c.page;
            int reach = kv_reach(k, &s[i], want, room);
            int n = kv_grow(k, &s[i], i + 1, want, set, room);
            CHECK((n >= 0) == (reach >= want) && n <= room);
            for (int j = 0; j < n; j++) {
                const struct kv_table *t = &s[i].t[set[j].group];
                CHECK(set[j].slot == i + 1 && t->page[set[j].index] == set[j].page);
            }
            len[i] = n >= 0 && want > len[i] ? want : len[i];
        }
        check_owners(k, s, c.n_group);
    }
    for (int i = 0; i < SEQS; i++)
        kv_seq_done(k, &s[i]);
    for (int g = 0; g < c.n_group; g++)
        CHECK(kv_used_pages(k, g) == 0);
    kv_close(k);
}

/* ---- scheduler ---- */

enum { REQS = 40, OUT_MAX = 48 };

struct want {
    int32_t tok[OUT_MAX];
    int n, fin, n_got, n_done;
    bool canceled;
};

struct world {
    struct fake f; /* first: the scheduler's ud */
    struct want w[REQS];
    int n;
};

static void on_events(void *ud, struct gen_evt *first, struct gen_evt *last, int n_done)
{
    struct world *m = ud;
    (void)last;
    for (struct gen_evt *e = first, *next; e; e = next) {
        next = e->next;
        CHECK(e->id >= 1 && e->id <= (uint64_t)m->n);
        struct want *w = &m->w[e->id - 1];
        CHECK(w->n_done == 0);
        for (int i = 0; i < e->n_tok && e->kind != EVT_PROMPT; i++, w->n_got++)
            CHECK(w->n_got < w->n && e->tok[i].id == w->tok[w->n_got]);
        if (e->kind == EVT_DONE) {
            w->n_done++;
            n_done--;
            CHECK(e->finish != FINISH_CANCELED || w->canceled);
            CHECK(e->finish == FINISH_CANCELED || w->n_got == w->n);
            CHECK((e->finish == FINISH_ERROR) <= (w->fin < 0));
        }
        gen_evt_free(e);
    }
    CHECK(n_done == 0);
}

static void submit(struct world *m, struct input *in)
{
    struct gen_req *g = gen_req_new();
    int n = 1 + byte(in, 60), flags = byte(in, 256);
    struct want *w = &m->w[m->n];
    g->id = (uint64_t)++m->n;
    g->n_prompt = (size_t)n;
    g->prompt = MEM_ARRAY(int32_t, n);
    for (int i = 0; i < n; i++)
        g->prompt[i] = (i * 7 + m->n) % FAKE_VOCAB;
    g->p.spec_mode = (enum spec_mode)byte(in, 3);
    g->p.spec_max = byte(in, 4);
    g->p.seed = (uint64_t)byte(in, 256);
    g->p.has_seed = true;
    g->p.max_tokens = 1 + byte(in, OUT_MAX);
    g->p.ignore_eos = flags & 1;
    g->p.n_prompt_logprobs = flags & 2 ? 0 : -1;
    g->p.n_bias = flags % 16 == 4;
    g->p.bias_id[0] = 7;
    if (n < sched_len_max(m->f.s)) {
        struct slot_params p;
        struct sreq r = {.g = g, .n_prompt = n, .n_tok = n};
        req_slot_params(m->f.s, &r, &p);
        w->n = fake_reference(g->prompt, n, &p, w->tok, &w->fin);
    }
    int ret = sched_submit(m->f.s, &g, 1, NULL);
    CHECK(ret == OK || ret == E_BUSY || (ret == E_RANGE && n >= sched_len_max(m->f.s)));
    if (ret != OK) {
        gen_req_free(g);
        w->n_done = 1;
    }
}

static void operate(struct world *m, struct input *in)
{
    int op = byte(in, 8), id = m->n ? 1 + byte(in, m->n) : 0;
    if (op == 0 && m->n < REQS) {
        submit(m, in);
    } else if (op == 1 && id) {
        m->w[id - 1].canceled = true;
        sched_cancel(m->f.s, (uint64_t)id);
    } else if ((op == 2 || op == 3) && id) {
        sched_pause(m->f.s, (uint64_t)id, op == 2);
    } else if (op >= 6) {
        fake_run_one(&m->f);
    } else {
        sched_turn(m->f.s);
        sched_check(m->f.s);
    }
}

static void fuzz_steps(struct input *in)
{
    struct world *m = MEM_NEW(struct world);
    struct sched_conf c = {.reqs_max = 1 + byte(in, 5),
                           .rows_max = 1 + byte(in, 20),
                           .len_max = 64,
                           .queue_max = byte(in, 12),
                           .steps = 1 + byte(in, 2),
                           .rows = 1 + byte(in, 3),
                           .vocab = FAKE_VOCAB,
                           .n_eos = 1,
                           .events = on_events};
    c.emit = c.rows;
    c.ahead = 2 * c.rows - 1;
    c.depth = c.rows > 1;
    c.ngram = true;
    c.slots_max = c.reqs_max + byte(in, 3);
    c.kv.page = 1 + byte(in, 8);
    c.kv.n_group = 1 + byte(in, 2);
    for (int g = 0; g < c.kv.n_group; g++) {
        c.kv.group[g].pages_max = (c.len_max + c.ahead + c.kv.page - 2) / c.kv.page;
        c.kv.group[g].n_page = 8 + byte(in, 60);
        c.kv.group[g].window = g ? 1 + byte(in, 30) : 0;
    }
    CHECK(fake_open(&m->f, &c, 1, NULL) == OK);
    while (in->n)
        operate(m, in);
    for (int id = 1; id <= m->n; id++)
        sched_pause(m->f.s, (uint64_t)id, false);
    for (int i = 0; sched_live(m->f.s); i++) {
        CHECK(i < 20000);
        fake_run_one(&m->f);
        sched_turn(m->f.s);
    }
    while (fake_run_one(&m->f) || sched_turn(m->f.s))
        continue;
    for (int i = 0; i < m->n; i++)
        CHECK(m->w[i].n_done == 1);
    sched_check(m->f.s);
    CHECK(sched_stats(m->f.s)->pages_used == 0 && sched_stats(m->f.s)->slots_used == 0);
    fake_close(&m->f);
    mem_free(m);
}

int fuzz_sched(const uint8_t *data, size_t size)
{
    struct input in = {data, size < 2000 ? size : 2000};
    if (byte(&in, 2))
        fuzz_steps(&in);
    else
        fuzz_pages(&in);
    return 0;
}
