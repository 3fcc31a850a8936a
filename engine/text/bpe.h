/* Byte-pair encoding of one piece: start symbols from the vocabulary, then always the pair with
 * the lowest rank, leftmost on ties (Sennrich, Haddow and Birch 2016). The model is immutable
 * after loading; scratch memory belongs to one call. */
#ifndef SPECD_TEXT_BPE_H
#define SPECD_TEXT_BPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/text/str.h"
#include "engine/text/tokenizer.h"

struct pair_slot;
struct bpe {
    struct strmap *by_text; /* what a piece is looked up in: bytes (byte-level) or spelling */
    struct strmap bytes;    /* byte-level: bytes -> id */
    struct pair_slot *pair; /* (left, right) -> rank */
    size_t pair_mask;
    int32_t *merged; /* [rank] id of the joined token */
    size_t n_merge, cap_merge;
    uint64_t *pair_of; /* [rank] while loading */
    size_t cap_pair;
    bool byte_level;
    bool byte_fallback, fuse_unk, ignore_merges;
    int32_t unk;          /* -1: characters without a token vanish, as in the reference */
    int32_t byte_id[256]; /* byte-level: token of one byte; else the <0xNN> token; -1 none */
    size_t longest;       /* bytes of the longest key of by_text */
    /* [n_id] whether a piece that spells a token whole is encoded as just that token: 0 not known
     * yet, 1 yes, 2 no. A cache of a pure function, read and written with relaxed atomics. */
    uint8_t *whole;
    int32_t n_id;
};

/* Merges in order of their rank, then the index over them; a pair that comes twice has the later
 * rank. */
void bpe_merge_add(struct bpe *b, int32_t left, int32_t right, int32_t joined);
void bpe_index(struct bpe *b);
void bpe_done(struct bpe *b);

struct bpe_scratch { /* zero-initialise */
    int32_t *id, *prev, *next;
    uint64_t *heap; /* rank << 32 | position */
    size_t cap, heap_cap, heap_n;
};
void bpe_scratch_done(struct bpe_scratch *s);

/* Appends the ids of a piece (n > 0 bytes of valid UTF-8). */
void bpe_piece(const struct bpe *b, struct bpe_scratch *sc, const char *s, size_t n,
               struct ids *out);

#endif
