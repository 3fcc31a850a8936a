/* Strings of a tokenizer: block allocation and open-addressing lookup. See the header for who may
 * call what when; nothing here knows about tokens. */
#include "engine/text/str.h"

#include <string.h>

#include "engine/base/mem.h"

enum { BLOCK_BYTES = 1 << 16 };

struct strtab_block {
    struct strtab_block *next;
    size_t used, cap;
    char data[];
};

struct strmap_slot {
    const char *p; /* NULL: free */
    uint32_t n;
    uint32_t hash;
    int32_t id;
};

struct str strtab_add(struct strtab *t, const char *p, size_t n)
{
    struct strtab_block *b = t->head;
    if (!b || b->cap - b->used < n + 1) {
        size_t cap = n + 1 > BLOCK_BYTES ? n + 1 : BLOCK_BYTES;
        b = mem_alloc(sizeof *b + cap);
        *b = (struct strtab_block){.next = t->head, .cap = cap};
        t->head = b;
    }
    char *q = b->data + b->used;
    if (n)
        memcpy(q, p, n);
    q[n] = 0;
    b->used += n + 1;
    return (struct str){q, n};
}

void strtab_done(struct strtab *t)
{
    while (t->head) {
        struct strtab_block *b = t->head;
        t->head = b->next;
        mem_free(b);
    }
}

/* Multiply-and-fold over 8-byte words; tables are built from a file, so no secret seed. */
static uint32_t hash_bytes(const char *p, size_t n)
{
    uint64_t h = 0x9e3779b97f4a7c15ull ^ n;
    while (n >= 8) {
        uint64_t w;
        memcpy(&w, p, 8);
        h = (h ^ w) * 0xff51afd7ed558ccdull;
        h ^= h >> 32;
        p += 8;
        n -= 8;
    }
    uint64_t w = 0;
    if (n)
        memcpy(&w, p, n);
    h = (h ^ w) * 0xc4ceb9fe1a85ec53ull;
    h ^= h >> 29;
    h *= 0xff51afd7ed558ccdull;
    return (uint32_t)(h >> 32);
}

void strmap_init(struct strmap *m, size_t expected)
{
    size_t cap = 16;
    while (cap * 2 < expected * 3)
        cap *= 2;
    *m = (struct strmap){.slot = MEM_ARRAY(struct strmap_slot, cap), .mask = cap - 1};
}

static struct strmap_slot *probe(const struct strmap *m, const char *p, size_t n, uint32_t h)
{
    for (size_t i = h & m->mask;; i = (i + 1) & m->mask) {
        struct strmap_slot *s = &m->slot[i];
        if (!s->p || (s->hash == h && s->n == n && !memcmp(s->p, p, n)))
            return s;
    }
}

static void grow(struct strmap *m)
{
    struct strmap old = *m;
    strmap_init(m, (old.mask + 1) * 2);
    for (size_t i = 0; i <= old.mask; i++) {
        const struct strmap_slot *s = &old.slot[i];
        if (s->p)
            *probe(m, s->p, s->n, s->hash) = *s;
    }
    m->n = old.n;
    mem_free(old.slot);
}

bool strmap_put(struct strmap *m, struct str s, int32_t id)
{
    if (!m->slot)
        strmap_init(m, 16);
    if ((m->n + 1) * 4 > (m->mask + 1) * 3)
        grow(m);
    uint32_t h = hash_bytes(s.p, s.n);
    struct strmap_slot *slot = probe(m, s.p, s.n, h);
    if (slot->p)
        return false;
    *slot = (struct strmap_slot){.p = s.p, .n = (uint32_t)s.n, .hash = h, .id = id};
    m->n++;
    return true;
}

int32_t strmap_get(const struct strmap *m, const char *p, size_t n)
{
    if (!m->slot)
        return -1;
    const struct strmap_slot *s = probe(m, p, n, hash_bytes(p, n));
    return s->p ? s->id : -1;
}

void strmap_done(struct strmap *m)
{
    mem_free(m->slot);
    *m = (struct strmap){0};
}
