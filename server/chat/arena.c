/* Chunked bump allocation; one thread at a time. The arena does not enforce a bound: a single
 * request is bounded by its caller (string and list limits), and the owner checks `used` between
 * requests (rt_step), so the overshoot is one request. */
#include "server/chat/arena.h"

#include <string.h>

#include "engine/base/mem.h"

struct jt_chunk {
    struct jt_chunk *next;
    size_t used, cap;
    _Alignas(16) char data[];
};

enum { CHUNK_MIN = 4096, CHUNK_MAX = 1 << 20 };

void *jt_arena_alloc(struct jt_arena *a, size_t bytes)
{
    size_t need = (bytes + 15) & ~(size_t)15;
    struct jt_chunk *c = a->head;
    if (!c || c->cap - c->used < need) {
        size_t cap = c ? c->cap * 2 : CHUNK_MIN;
        if (cap > CHUNK_MAX)
            cap = CHUNK_MAX;
        if (cap < need)
            cap = need;
        struct jt_chunk *n = mem_alloc(sizeof *n + cap);
        n->used = 0;
        n->cap = cap;
        n->next = c;
        a->head = c = n;
    }
    void *p = c->data + c->used;
    c->used += need;
    a->used += need;
    return p;
}

void *jt_arena_zero(struct jt_arena *a, size_t bytes)
{
    return memset(jt_arena_alloc(a, bytes), 0, bytes);
}

char *jt_arena_strndup(struct jt_arena *a, const char *p, size_t n)
{
    char *r = jt_arena_alloc(a, n + 1);
    memcpy(r, p, n);
    r[n] = 0;
    return r;
}

void jt_arena_done(struct jt_arena *a)
{
    while (a->head) {
        struct jt_chunk *next = a->head->next;
        mem_free(a->head);
        a->head = next;
    }
    a->used = 0;
}
