/* Merging. Short pieces (almost all) scan an array of pair ranks; long ones use a heap over a
 * linked list, so that a megabyte without a split costs n log n. Both give the same ids: a heap
 * entry that outlived its pair is recognised because the joined token would differ. */
#include "engine/text/bpe.h"

#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/base/utf8.h"

enum { SMALL = 40 };
#define NO_RANK UINT32_MAX

struct pair_slot {
    uint64_t key; /* left << 32 | right, plus one; 0: free */
    uint32_t rank;
};

static uint64_t pair_key(int32_t left, int32_t right)
{
    return ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) + 1;
}

static size_t pair_hash(uint64_t k)
{
    k *= 0x9e3779b97f4a7c15ull;
    return (size_t)(k ^ k >> 32);
}

static struct pair_slot *pair_probe(const struct bpe *b, uint64_t key)
{
    for (size_t i = pair_hash(key) & b->pair_mask;; i = (i + 1) & b->pair_mask) {
        struct pair_slot *s = &b->pair[i];
        if (!s->key || s->key == key)
            return s;
    }
}

void bpe_merge_add(struct bpe *b, int32_t left, int32_t right, int32_t joined)
{
    MEM_GROW(b->merged, b->cap_merge, b->n_merge + 1);
    MEM_GROW(b->pair_of, b->cap_pair, b->n_merge + 1);
    b->merged[b->n_merge] = joined;
    b->pair_of[b->n_merge++] = pair_key(left, right);
}

void bpe_index(struct bpe *b)
{
    size_t cap = 16;
    while (cap * 2 < b->n_merge * 3)
        cap *= 2;
    b->pair = MEM_ARRAY(struct pair_slot, cap);
    b->pair_mask = cap - 1;
    for (size_t i = 0; i < b->n_merge; i++)
        *pair_probe(b, b->pair_of[i]) = (struct pair_slot){b->pair_of[i], (uint32_t)i};
    mem_free(b->pair_of);
    b->pair_of = NULL;
}

void bpe_done(struct bpe *b)
{
    strmap_done(&b->bytes);
    mem_free(b->pair);
    mem_free(b->merged);
    mem_free(b->pair_of);
    mem_free(b->whole);
    *b = (struct bpe){0};
}

void bpe_scratch_done(struct bpe_scratch *s)
{
    mem_free(s->id);
    mem_free(s->prev);
    mem_free(s->next);
    mem_free(s->heap);
    *s = (struct bpe_scratch){0};
}

static uint32_t rank_of(const struct bpe *b, int32_t left, int32_t right)
{
    const struct pair_slot *s = pair_probe(b, pair_key(left, right));
    return s->key ? s->rank : NO_RANK;
}

static void scratch_grow(struct bpe_scratch *sc, size_t n)
{
    if (sc->cap >= n)
        return;
    size_t cap = n + n / 2 + 64;
    sc->id = mem_realloc(sc->id, cap, sizeof *sc->id);
    sc->prev = mem_realloc(sc->prev, cap, sizeof *sc->prev);
    sc->next = mem_realloc(sc->next, cap, sizeof *sc->next);
    sc->cap = cap;
}

/* Start symbols of SentencePiece style models: one a character, else its bytes, else unknown. The
 * order of a pending unknown and byte tokens follows the reference. */
static size_t char_symbols(const struct bpe *b, struct bpe_scratch *sc, const char *s, size_t n)
{
    size_t m = 0;
    bool unk = false;
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        int k = utf8_decode(s + i, n - i, &cp);
        CHECK(k > 0);
        int32_t id = strmap_get(b->by_text, s + i, (size_t)k);
        bool bytes = id < 0 && b->byte_fallback;
        for (int j = 0; j < k && bytes; j++)
            bytes = b->byte_id[(unsigned char)s[i + (size_t)j]] >= 0;
        if (id >= 0) {
            if (unk)
                sc->id[m++] = b->unk;
            unk = false;
            sc->id[m++] = id;
        } else if (bytes) {
            for (int j = 0; j < k; j++)
                sc->id[m++] = b->byte_id[(unsigned char)s[i + (size_t)j]];
        } else if (b->unk >= 0) {
            if (unk && !b->fuse_unk)
                sc->id[m++] = b->unk;
            unk = true;
        }
        i += (size_t)k;
    }
    if (unk)
        sc->id[m++] = b->unk;
    return m;
}

static size_t byte_symbols(const struct bpe *b, struct bpe_scratch *sc, const char *s, size_t n)
{
    size_t m = 0;
    bool unk = false;
    for (size_t i = 0; i < n; i++) {
        int32_t id = b->byte_id[(unsigned char)s[i]];
        if (id < 0) {
            if (b->unk < 0)
                continue;
            if (unk && b->fuse_unk)
                continue;
            id = b->unk;
            unk = true;
        } else {
            unk = false;
        }
        sc->id[m++] = id;
    }
    return m;
}

static size_t merge_small(const struct bpe *b, int32_t *id, size_t m)
{
    uint32_t rank[SMALL];
    for (size_t i = 0; i + 1 < m; i++)
        rank[i] = rank_of(b, id[i], id[i + 1]);
    while (m > 1) {
        size_t at = 0;
        uint32_t best = NO_RANK;
        for (size_t i = 0; i + 1 < m; i++) {
            if (rank[i] < best) {
                best = rank[i];
                at = i;
            }
        }
        if (best == NO_RANK)
            break;
        id[at] = b->merged[best];
        m--;
        memmove(id + at + 1, id + at + 2, (m - at - 1) * sizeof *id);
        if (at + 1 < m) {
            memmove(rank + at + 1, rank + at + 2, (m - at - 2) * sizeof *rank);
            rank[at] = rank_of(b, id[at], id[at + 1]);
        }
        if (at)
            rank[at - 1] = rank_of(b, id[at - 1], id[at]);
    }
    return m;
}

static void heap_push(struct bpe_scratch *sc, uint64_t key)
{
    MEM_GROW(sc->heap, sc->heap_cap, sc->heap_n + 1);
    size_t i = sc->heap_n++;
    while (i && sc->heap[(i - 1) / 2] > key) {
        sc->heap[i] = sc->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    sc->heap[i] = key;
}

static uint64_t heap_pop(struct bpe_scratch *sc)
{
    uint64_t *h = sc->heap, top = h[0], key = h[--sc->heap_n];
    size_t n = sc->heap_n, i = 0;
    for (;;) {
        size_t c = 2 * i + 1;
        if (c >= n)
            break;
        if (c + 1 < n && h[c + 1] < h[c])
            c++;
        if (h[c] >= key)
            break;
        h[i] = h[c];
        i = c;
    }
    h[i] = key;
    return top;
}

static void heap_pair(const struct bpe *b, struct bpe_scratch *sc, int32_t left, int32_t right)
{
    uint32_t r = rank_of(b, sc->id[left], sc->id[right]);
    if (r != NO_RANK)
        heap_push(sc, (uint64_t)r << 32 | (uint32_t)left);
}

static size_t merge_heap(const struct bpe *b, struct bpe_scratch *sc, size_t m)
{
    sc->heap_n = 0;
    for (size_t i = 0; i < m; i++) {
        sc->prev[i] = (int32_t)i - 1;
        sc->next[i] = i + 1 < m ? (int32_t)i + 1 : -1;
        if (i + 1 < m)
            heap_pair(b, sc, (int32_t)i, (int32_t)i + 1);
    }
    while (sc->heap_n) {
        uint64_t top = heap_pop(sc);
        int32_t at = (int32_t)(uint32_t)top, joined = b->merged[top >> 32];
        int32_t right = sc->id[at] < 0 ? -1 : sc->next[at];
        if (right < 0)
            continue;
        uint32_t now = rank_of(b, sc->id[at], sc->id[right]);
        if (now == NO_RANK || b->merged[now] != joined)
            continue;
        sc->id[at] = joined;
        sc->id[right] = -1;
        int32_t next = sc->next[right];
        sc->next[at] = next;
        if (next >= 0)
            sc->prev[next] = at;
        if (sc->prev[at] >= 0)
            heap_pair(b, sc, sc->prev[at], at);
        if (next >= 0)
            heap_pair(b, sc, at, next);
    }
    size_t k = 0;
    for (int32_t i = 0; i >= 0; i = sc->next[i])
        sc->id[k++] = sc->id[i];
    return k;
}

void bpe_piece(const struct bpe *b, struct bpe_scratch *sc, const char *s, size_t n,
               struct ids *out)
{
    int32_t id = n <= b->longest ? strmap_get(b->by_text, s, n) : -1;
    if (id >= 0) {
        uint8_t w = __atomic_load_n(&b->whole[id], __ATOMIC_RELAXED);
        if (b->ignore_merges || w == 1) {
            ids_push(out, id);
            return;
        }
    }
    scratch_grow(sc, n);
    size_t m = b->byte_level ? byte_symbols(b, sc, s, n) : char_symbols(b, sc, s, n);
    if (m > 1)
        m = m <= SMALL ? merge_small(b, sc->id, m) : merge_heap(b, sc, m);
    if (id >= 0)
        __atomic_store_n(&b->whole[id], m == 1 && sc->id[0] == id ? 1 : 2, __ATOMIC_RELAXED);
    for (size_t i = 0; i < m; i++)
        ids_push(out, sc->id[i]);
}
