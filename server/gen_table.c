/* Engine request ids to choices: the low bits of an id are its place in the table, the high ones a
 * counter, so that a late event of a place's earlier owner finds nobody. Loop thread only. */
#include "server/gen_table.h"

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "server/gen.h"

#define PLACE_BITS 24

struct gen_table {
    struct choice **place;
    uint32_t *free_list;
    size_t cap, n_free, n_live;
    uint64_t counter;
    struct gen *dirty;
};

struct gen_table *gens_new(void)
{
    return MEM_NEW(struct gen_table);
}

void gens_free(struct gen_table *t)
{
    if (!t)
        return;
    for (size_t i = 0; i < t->cap; i++) {
        struct choice *c = t->place[i];
        if (c) {
            gens_remove(t, c);
            hreq_unref(c->g->r);
        }
    }
    mem_free(t->place);
    mem_free(t->free_list);
    mem_free(t);
}

size_t gens_live(const struct gen_table *t)
{
    return t->n_live;
}

static void grow(struct gen_table *t)
{
    size_t cap = t->cap ? t->cap * 2 : 256;
    CHECK(cap <= (1u << PLACE_BITS));
    t->place = mem_realloc(t->place, cap, sizeof *t->place);
    t->free_list = mem_realloc(t->free_list, cap, sizeof *t->free_list);
    for (size_t i = cap; i-- > t->cap;) {
        t->place[i] = NULL;
        t->free_list[t->n_free++] = (uint32_t)i;
    }
    t->cap = cap;
}

void gens_add(struct gen_table *t, struct choice *c)
{
    if (!t->n_free)
        grow(t);
    uint32_t at = t->free_list[--t->n_free];
    t->place[at] = c;
    t->n_live++;
    c->id = ++t->counter << PLACE_BITS | at;
    c->live = true;
}

void gens_remove(struct gen_table *t, struct choice *c)
{
    size_t at = c->id & ((1u << PLACE_BITS) - 1);
    CHECK(t->place[at] == c);
    t->place[at] = NULL;
    t->free_list[t->n_free++] = (uint32_t)at;
    t->n_live--;
    c->live = false;
}

struct choice *gens_find(const struct gen_table *t, uint64_t id)
{
    size_t at = id & ((1u << PLACE_BITS) - 1);
    struct choice *c = at < t->cap ? t->place[at] : NULL;
    return c && c->id == id ? c : NULL;
}

void gens_mark(struct gen_table *t, struct gen *g)
{
    if (g->dirty)
        return;
    g->dirty = true;
    g->dirty_next = t->dirty;
    t->dirty = g;
}

void gens_unmark(struct gen_table *t, struct gen *g)
{
    if (!g->dirty)
        return;
    struct gen **p = &t->dirty;
    while (*p != g)
        p = &(*p)->dirty_next;
    *p = g->dirty_next;
    g->dirty = false;
}

void gens_flush(struct gen_table *t)
{
    while (t->dirty) {
        struct gen *g = t->dirty;
        t->dirty = g->dirty_next;
        g->dirty = false;
        if (!g->finished)
            gen_flush(g);
    }
}
