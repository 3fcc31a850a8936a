/* Inside of the tokenizer: the immutable tables that tokenizer.c and tok_load.c fill and that
 * encode.c and detok.c read. Only files of engine/text include this header. */
#ifndef SPECD_TEXT_TOK_H
#define SPECD_TEXT_TOK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/js.h"
#include "engine/text/added.h"
#include "engine/text/bpe.h"
#include "engine/text/pattern.h"
#include "engine/text/str.h"
#include "engine/text/tok_scan.h"
#include "engine/text/tokenizer.h"

enum { TOK_ID_MAX = 1 << 22, TOK_STEPS_MAX = 32, TOK_TEXT_MAX = 1 << 30 };

enum norm_kind { NORM_NFC, NORM_REPLACE, NORM_PREPEND };
struct norm_step {
    enum norm_kind kind;
    struct pattern *pat; /* REPLACE */
    struct str text;     /* REPLACE: content, PREPEND: prefix */
};

enum split_how { SPLIT_ISOLATED, SPLIT_REMOVED, SPLIT_PREVIOUS, SPLIT_NEXT, SPLIT_CONTIGUOUS };
enum prepend_when { PREPEND_NEVER, PREPEND_FIRST, PREPEND_ALWAYS };
enum pre_kind { PRE_SPLIT, PRE_META, PRE_SPACE };
struct pre_step {
    enum pre_kind kind;
    struct pattern *pat; /* SPLIT */
    enum split_how how;
    bool invert;
    struct str rep;         /* META: what a space turns into, one character */
    enum prepend_when when; /* META */
};

enum dec_kind { DEC_BYTES, DEC_CHAIN, DEC_META };
struct decoder {
    enum dec_kind kind;
    int stage;             /* CHAIN: how far loading is in its fixed order, -1 before the first */
    bool fallback;         /* CHAIN: <0xNN> tokens are bytes */
    struct str meta;       /* META: replacement character */
    bool meta_drop;        /* META: the first token loses its replacement characters */
    struct str strip;      /* CHAIN: character stripped from the start of the text */
    unsigned strip_n;      /* CHAIN: at most so many of them */
    struct norm_step *rep; /* CHAIN: replacements per token, in order */
    size_t n_rep;
};

struct tokenizer {
    struct strtab mem;         /* owns every string below */
    int32_t n_id;              /* 1 + largest id */
    struct str *piece;         /* [n_id] as spelled; p NULL: no token */
    struct str *bytes;         /* [n_id] what it decodes to */
    uint8_t *special;          /* [n_id] */
    struct strmap words;       /* piece -> id, tokens of the model only */
    struct strmap added_words; /* content -> id, added tokens */
    size_t longest;

    struct norm_step *norm;
    size_t n_norm;
    struct pre_step *pre;
    size_t n_pre;
    bool byte_level;
    struct bpe bpe;

    struct added_set raw, cooked; /* added tokens matched before and after normalization */
    struct ids head, tail;        /* what the post-processor puts around a text */
    bool has_template;
    struct decoder dec;
    int32_t bos, eos;
};

/* tok_load.c: the sections of tokenizer.json, each filling its part of t. */
int tok_load_added(struct tokenizer *t, const json_t *root, struct err *e);
int tok_load_model(struct tokenizer *t, const json_t *root, struct scan *vocab, struct scan *merges,
                   struct err *e);
/* tok_steps.c */
int tok_load_norm(struct tokenizer *t, const json_t *root, struct err *e);
int tok_load_pre(struct tokenizer *t, const json_t *root, struct err *e);
int tok_load_post(struct tokenizer *t, const json_t *root, struct err *e);
int tok_load_decoder(struct tokenizer *t, const json_t *root, struct err *e);
void tok_free_steps(struct tokenizer *t);

/* detok.c: fills bytes[] of every token once the decoder is known. */
int tok_fill_bytes(struct tokenizer *t, struct err *e);

/* norm.c: runs every normalizer step over s; the result replaces out. prepend: false for a part
 * that is not the beginning of its segment. */
struct buf;
int norm_run(const struct norm_step *v, size_t n_step, bool prepend, const char *s, size_t n,
             struct pat_run *run, struct buf *out, struct err *e);

#endif
