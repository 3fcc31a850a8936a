/* tokenizer.json to ids and back. An opened tokenizer is immutable: every call here is a pure,
 * thread-safe function of it (PCRE2 match data and scratch are per call or per thread).
 *
 * Supported: BPE models, byte-level (GPT-2 alphabet) and SentencePiece style with byte fallback;
 * normalizers NFC, Sequence, Replace, Prepend; pre-tokenizers Sequence, Split (all behaviours,
 * Regex or String), ByteLevel, Digits, Metaspace; post-processors TemplateProcessing, ByteLevel,
 * Sequence; decoders ByteLevel, Sequence of Replace/ByteFallback/Fuse/Strip, Metaspace. Anything
 * else is refused by name (E_UNSUPPORTED). */
#ifndef SPECD_TEXT_TOKENIZER_H
#define SPECD_TEXT_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/err.h"
#include "engine/base/span.h"

struct tokenizer;

struct ids { /* growing list of token ids; zero-initialise; release with ids_done */
    int32_t *v;
    size_t n, cap;
};
void ids_push(struct ids *l, int32_t id);
void ids_done(struct ids *l);

enum {
    TOK_ADD_SPECIAL = 1, /* run the post-processor (BOS and the like) */
    TOK_PARSE_SPECIAL =
        2, /* recognise special added tokens in the text; without it they are text */
};

/* Reads DIR/tokenizer.json and, when there, DIR/tokenizer_config.json (bos/eos strings,
 * add_bos_token/add_eos_token when the post-processor has no template). */
int tok_open(struct tokenizer **out, const char *dir, struct err *e);
/* The same from texts in memory; config may be NULL. For tests and the fuzz target. */
int tok_parse(struct tokenizer **out, const char *json, size_t len, const char *config,
              size_t config_len, struct err *e);
void tok_close(struct tokenizer *t);

/* Appends the ids of n bytes of valid UTF-8 (E_FORMAT otherwise). `untrusted` (may be NULL) marks
 * spans in which special tokens are not recognised even with TOK_PARSE_SPECIAL; a special token
 * must lie wholly outside them. Added tokens that are not special are recognised everywhere.
 * Linear in n up to a logarithm. E_RANGE when more than max_ids would be appended (0: no limit). */
int tok_encode(const struct tokenizer *t, const char *s, size_t n, unsigned flags,
               const struct span *untrusted, size_t n_untrusted, size_t max_ids, struct ids *out,
               struct err *e);

int32_t tok_vocab_size(const struct tokenizer *t);            /* 1 + the largest id */
int32_t tok_id(const struct tokenizer *t, const char *token); /* exact token, -1: none */
int32_t tok_bos(const struct tokenizer *t);                   /* -1: none */
int32_t tok_eos(const struct tokenizer *t);                   /* of tokenizer_config, -1: none */
bool tok_is_special(const struct tokenizer *t, int32_t id);
size_t tok_longest(const struct tokenizer *t); /* bytes of the longest token, for pre-checks */
/* The bytes a token contributes inside a text (byte-level decoded, fallback tokens are their one
 * byte, added tokens their content); "" for ids without a token. Not always valid UTF-8. */
const char *tok_bytes(const struct tokenizer *t, int32_t id, size_t *len);
/* The token as spelled in the vocabulary file; NULL for ids without a token. */
const char *tok_piece(const struct tokenizer *t, int32_t id);

/* Running decoder: appends the bytes of the next token, with what the decoder does between tokens
 * (e.g. strip of the leading space of the whole text). Bytes, not yet valid UTF-8. */
struct buf;
struct detok {
    const struct tokenizer *t;
    bool skip_special;
    bool started;   /* something was decoded: a leading space is text from here on */
    unsigned strip; /* leading characters the decoder may still strip */
};
void detok_init(struct detok *d, const struct tokenizer *t, bool skip_special);
void detok_push(struct detok *d, int32_t id, struct buf *out);
/* Whole list to valid UTF-8 (invalid bytes become U+FFFD per maximal subpart). */
void detok_all(const struct tokenizer *t, const int32_t *ids, size_t n, bool skip_special,
               struct buf *out);

#endif
