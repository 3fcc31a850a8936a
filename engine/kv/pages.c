/* Page pools as stacks of free ids, and block tables. Scheduler thread only; nothing here touches
 * device memory. */
#include "engine/kv/pages.h"

#include <limits.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"

struct pool {
    int32_t *free; /* stack; the top is taken first, so recently used memory is warm */
    int n_free, n_page;
    int32_t *ref; /* [n_page] tables that hold the page */
};

struct kv {
    struct kv_conf c;
    struct pool pool[LIM_KV_GROUPS];
};

static int pages_of(const struct kv *k, int len)
{
    return (int)(((int64_t)len + k->c.page - 1) / k->c.page);
}

int kv_open(struct kv **out, const struct kv_conf *c, struct err *e)
{
    if (c->page < 1 || c->n_group < 1 || c->n_group > LIM_KV_GROUPS)
        return FAIL(e, E_INVAL, "KV: page of %d tokens, %d groups (1 to %d)", c->page, c->n_group,
                    LIM_KV_GROUPS);
    for (int g = 0; g < c->n_group; g++)
        if (c->group[g].n_page < 1 || c->group[g].pages_max < 1 || c->group[g].window < 0)
            return FAIL(e, E_INVAL, "KV group %d: %d pages, %d table entries, window %d", g,
                        c->group[g].n_page, c->group[g].pages_max, c->group[g].window);
    struct kv *k = MEM_NEW(struct kv);
    k->c = *c;
    for (int g = 0; g < c->n_group; g++) {
        struct pool *p = &k->pool[g];
        p->n_page = p->n_free = c->group[g].n_page;
        p->free = MEM_ARRAY(int32_t, p->n_page);
        p->ref = MEM_ARRAY(int32_t, p->n_page);
        for (int i = 0; i < p->n_page; i++)
            p->free[i] = p->n_page - 1 - i; /* id 0 is the first to be taken */
    }
    *out = k;
    return OK;
}

void kv_close(struct kv *k)
{
    if (!k)
        return;
    for (int g = 0; g < k->c.n_group; g++) {
        mem_free(k->pool[g].free);
        mem_free(k->pool[g].ref);
    }
    mem_free(k);
}

const struct kv_conf *kv_conf(const struct kv *k)
{
    return &k->c;
}

static int32_t take(struct pool *p)
{
    CHECK(p->n_free > 0);
    int32_t id = p->free[--p->n_free];
    CHECK(p->ref[id] == 0);
    p->ref[id] = 1;
    return id;
}

void kv_ref(struct kv *k, int g, int32_t page)
{
    struct pool *p = &k->pool[g];
    CHECK(page >= 0 && page < p->n_page && p->ref[page] > 0 && p->ref[page] < INT32_MAX);
    p->ref[page]++;
}

void kv_unref(struct kv *k, int g, int32_t page)
{
    struct pool *p = &k->pool[g];
    CHECK(page >= 0 && page < p->n_page && p->ref[page] > 0);
    if (--p->ref[page] == 0) {
        CHECK(p->n_free < p->n_page);
        p->free[p->n_free++] = page;
    }
}

int kv_grow(struct kv *k, struct kv_seq *s, int slot, int len, struct page_set *set, int room)
{
    int end = pages_of(k, len), n_set = 0;
    for (int g = 0; g < k->c.n_group; g++) {
        int more = end - s->t[g].end;
        if (more <= 0)
            continue;
        CHECK(end <= k->c.group[g].pages_max);
        n_set += more;
        if (more > k->pool[g].n_free || n_set > room)
            return E_NOMEM;
    }
    n_set = 0;
    for (int g = 0; g < k->c.n_group; g++) {
        struct kv_table *t = &s->t[g];
        MEM_GROW(t->page, t->cap, end);
        for (; t->end < end; t->end++) {
            int32_t id = t->page[t->end] = take(&k->pool[g]);
            set[n_set++] = (struct page_set){.group = g, .slot = slot, .index = t->end, .page = id};
        }
    }
    return n_set;
}

int kv_reach(const struct kv *k, const struct kv_seq *s, int len, int room)
{
    int end = pages_of(k, len);
    for (int g = 0; g < k->c.n_group; g++) { /* what the pools can give */
        int most = s->t[g].end + k->pool[g].n_free;
        end = most < end ? most : end;
    }
    for (;; end--) { /* what the entry list can hold: at most a few rounds past the first guess */
        int64_t n_set = 0;
        for (int g = 0; g < k->c.n_group; g++)
            n_set += end > s->t[g].end ? end - s->t[g].end : 0;
        if (n_set <= room)
            break;
        int64_t over = (n_set - room) / k->c.n_group;
        end -= over > 1 ? (int)over - 1 : 0;
    }
    int64_t got = (int64_t)end * k->c.page;
    return got < len ? (int)got : len;
}

static int drop_front(struct kv *k, struct kv_seq *s, int g, int first)
{
    struct kv_table *t = &s->t[g];
    int n = 0;
    if (first > t->end)
        first = t->end;
    for (; t->first < first; t->first++, n++) {
        kv_unref(k, g, t->page[t->first]);
        t->page[t->first] = -1;
    }
    return n;
}

int kv_pass(struct kv *k, struct kv_seq *s, int pos)
{
    int n = 0;
    for (int g = 0; g < k->c.n_group; g++) {
        int w = k->c.group[g].window;
        if (w > 0 && pos + 1 > w) /* the oldest key that a row at pos sees is pos + 1 - w */
            n += drop_front(k, s, g, (pos + 1 - w) / k->c.page);
    }
    return n;
}

int kv_shrink(struct kv *k, struct kv_seq *s, int len)
{
    int end = pages_of(k, len), n = 0;
    for (int g = 0; g < k->c.n_group; g++) {
        struct kv_table *t = &s->t[g];
        for (; t->end > end && t->end > t->first; n++) {
            kv_unref(k, g, t->page[--t->end]);
            t->page[t->end] = -1;
        }
    }
    return n;
}

void kv_release(struct kv *k, struct kv_seq *s)
{
    for (int g = 0; g < k->c.n_group; g++) {
        drop_front(k, s, g, s->t[g].end);
        s->t[g].first = s->t[g].end = 0;
    }
}

void kv_seq_done(struct kv *k, struct kv_seq *s)
{
    kv_release(k, s);
    for (int g = 0; g < k->c.n_group; g++)
        mem_free(s->t[g].page);
    memset(s, 0, sizeof *s);
}

int kv_need(const struct kv *k, int g, int len, int rows)
{
    int all = pages_of(k, len), w = k->c.group[g].window;
    if (w == 0)
        return all;
    /* The rows of a step and the window before the first of them: n positions anywhere touch at
     * most ceil((n - 1) / page) + 1 pages. */
    int64_t n = (int64_t)w - 1 + rows;
    int64_t some = (n - 1 + k->c.page - 1) / k->c.page + 1;
    return some < all ? (int)some : all;
}

int kv_capacity(const struct kv *k, int rows)
{
    int64_t cap = INT_MAX;
    for (int g = 0; g < k->c.n_group; g++) {
        int64_t n = k->c.group[g].pages_max;
        if (kv_need(k, g, INT_MAX, rows) > k->c.group[g].n_page && k->c.group[g].n_page < n)
            n = k->c.group[g].n_page;
        n *= k->c.page;
        cap = n < cap ? n : cap;
    }
    return (int)cap;
}

int kv_free_pages(const struct kv *k, int g)
{
    return k->pool[g].n_free;
}

int kv_used_pages(const struct kv *k, int g)
{
    return k->pool[g].n_page - k->pool[g].n_free;
}

int kv_held(const struct kv_seq *s, int g)
{
    return s->t[g].end - s->t[g].first;
}

void kv_check(const struct kv *k)
{
    for (int g = 0; g < k->c.n_group; g++) {
        const struct pool *p = &k->pool[g];
        int used = 0;
        for (int i = 0; i < p->n_page; i++) {
            CHECK(p->ref[i] >= 0);
            used += p->ref[i] > 0;
        }
        for (int i = 0; i < p->n_free; i++)
            CHECK(p->free[i] >= 0 && p->free[i] < p->n_page && p->ref[p->free[i]] == 0);
        CHECK(used + p->n_free == p->n_page);
    }
}
