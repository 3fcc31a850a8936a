/* Text to ids: added tokens cut the text, each part is normalized, cut again, pre-tokenized and
 * merged. The pre-tokenizer's steps run depth first, a piece at a time, so memory stays small
 * whatever the text. Everything that is written lives in a struct enc of the call. */
#include <string.h>

#include "engine/base/buf.h"
#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "engine/text/tok.h"
#include "engine/text/unicode.h"

struct enc {
    const struct tokenizer *t;
    struct ids *out;
    size_t limit; /* ids in `out` at most, SIZE_MAX: none */
    unsigned flags;
    const struct span *deny;
    size_t n_deny;
    struct bpe_scratch bpe;
    struct pat_run run[TOK_STEPS_MAX + 1]; /* one per step: they are active at the same time */
    struct buf step[TOK_STEPS_MAX];        /* text that a step rewrote */
    struct buf norm, part;
    struct err *e;
};

static int room(const struct enc *c)
{
    if (c->out->n > c->limit)
        return FAIL(c->e, E_RANGE, "the text has more than %zu tokens", c->limit);
    return OK;
}

static int run_step(struct enc *c, size_t k, const char *s, size_t n, bool at0);

/* Turns matches and the text between them into pieces; one piece is held back because the next
 * item may join it. */
struct splitter {
    struct enc *c;
    size_t k;
    const char *s;
    bool at0;
    const struct pre_step *st;
    size_t from, to; /* piece held back, when `have` */
    bool have, prev; /* prev: the last item was a match */
};

static int split_flush(struct splitter *sp)
{
    if (!sp->have)
        return OK;
    sp->have = false;
    return run_step(sp->c, sp->k + 1, sp->s + sp->from, sp->to - sp->from,
                    sp->at0 && sp->from == 0);
}

static int split_item(struct splitter *sp, size_t from, size_t to, bool match)
{
    match = match != sp->st->invert;
    bool prev = sp->prev, join = false;
    sp->prev = match;
    switch (sp->st->how) {
    case SPLIT_ISOLATED:
        break;
    case SPLIT_REMOVED:
        if (match)
            return OK;
        break;
    case SPLIT_PREVIOUS:
        join = match && !prev;
        break;
    case SPLIT_NEXT:
        join = !match && prev;
        break;
    case SPLIT_CONTIGUOUS:
        join = match == prev;
        break;
    }
    if (join && sp->have) {
        sp->to = to;
        return OK;
    }
    TRY(split_flush(sp));
    sp->from = from;
    sp->to = to;
    sp->have = true;
    return OK;
}

static int run_split(struct enc *c, size_t k, const char *s, size_t n, bool at0)
{
    struct splitter sp = {.c = c, .k = k, .s = s, .at0 = at0, .st = &c->t->pre[k]};
    struct pat_iter it;
    pat_iter_init(&it, sp.st->pat, &c->run[k], s, n);
    size_t done = 0, from, to;
    int rc;
    while ((rc = pat_next(&it, &from, &to, c->e))) {
        TRY(rc);
        if (from > done)
            TRY(split_item(&sp, done, from, false));
        TRY(split_item(&sp, from, to, true));
        done = to;
    }
    if (done < n)
        TRY(split_item(&sp, done, n, false));
    return split_flush(&sp);
}

static int run_meta(struct enc *c, size_t k, const char *s, size_t n, bool at0)
{
    const struct pre_step *st = &c->t->pre[k];
    struct buf *b = &c->step[k];
    buf_reset(b);
    bool begins = s[0] == ' ' || (n >= st->rep.n && !memcmp(s, st->rep.p, st->rep.n));
    if (!begins && (st->when == PREPEND_ALWAYS || (st->when == PREPEND_FIRST && at0)))
        buf_push(b, st->rep.p, st->rep.n);
    for (size_t i = 0; i < n;) {
        const char *sp = memchr(s + i, ' ', n - i);
        size_t to = sp ? (size_t)(sp - s) : n;
        buf_push(b, s + i, to - i);
        if (sp)
            buf_push(b, st->rep.p, st->rep.n);
        i = to + (sp != NULL);
    }
    return run_step(c, k + 1, b->p, b->len, at0);
}

static int run_space(struct enc *c, size_t k, const char *s, size_t n, bool at0)
{
    struct buf *b = &c->step[k];
    if (s[0] == ' ')
        return run_step(c, k + 1, s, n, at0);
    buf_reset(b);
    buf_char(b, ' ');
    buf_push(b, s, n);
    return run_step(c, k + 1, b->p, b->len, at0);
}

/* Step k of the pre-tokenizer, or the model behind the last one. at0: the piece begins where the
 * whole input begins. */
static int run_step(struct enc *c, size_t k, const char *s, size_t n, bool at0)
{
    if (!n)
        return OK;
    if (k == c->t->n_pre) {
        bpe_piece(&c->t->bpe, &c->bpe, s, n, c->out);
        return room(c);
    }
    switch (c->t->pre[k].kind) {
    case PRE_SPLIT:
        return run_split(c, k, s, n, at0);
    case PRE_META:
        return run_meta(c, k, s, n, at0);
    case PRE_SPACE:
        return run_space(c, k, s, n, at0);
    }
    return OK;
}

/* Calls `text` for what lies between the tokens of a set and emits the tokens themselves. */
typedef int text_fn(struct enc *c, const char *s, size_t n, size_t base);

static int cut(struct enc *c, const struct added_set *set, const struct added_where *w,
               const char *s, size_t n, text_fn *text, size_t base)
{
    size_t done = 0, at = 0;
    struct added_match m;
    while (added_find(set, w, s, n, at, done, &m)) {
        if (m.from > done)
            TRY(text(c, s + done, m.from - done, base + done));
        ids_push(c->out, m.tok->id);
        TRY(room(c));
        done = m.to;
        at = m.next;
    }
    return done < n ? text(c, s + done, n - done, base + done) : OK;
}

static int cooked_text(struct enc *c, const char *s, size_t n, size_t base)
{
    return run_step(c, 0, s, n, base == 0);
}

/* Normalizes one segment part by part at the borders of denied spans and keeps where these went.
 * Only a special token that is looked for after normalization needs this. */
static int normalize_marked(struct enc *c, const char *s, size_t n, size_t base, struct span *moved,
                            size_t *n_moved)
{
    const struct tokenizer *t = c->t;
    size_t at = 0;
    buf_reset(&c->norm);
    *n_moved = 0;
    for (size_t i = 0; i <= c->n_deny; i++) {
        for (int denied = 0; denied < 2; denied++) {
            size_t end = i == c->n_deny ? base + n : denied ? c->deny[i].to : c->deny[i].from;
            size_t to = end < base ? 0 : end - base < n ? end - base : n;
            if (to <= at)
                continue;
            size_t from = c->norm.len;
            TRY(norm_run(t->norm, t->n_norm, at == 0, s + at, to - at, &c->run[TOK_STEPS_MAX],
                         &c->part, c->e));
            buf_push(&c->norm, c->part.p, c->part.len);
            if (denied && i < c->n_deny)
                moved[(*n_moved)++] = (struct span){from, c->norm.len};
            at = to;
        }
    }
    return OK;
}

static int raw_text(struct enc *c, const char *s, size_t n, size_t base)
{
    const struct tokenizer *t = c->t;
    struct added_where w = {.special = c->flags & TOK_PARSE_SPECIAL,
                            .deny = c->deny,
                            .n_deny = c->n_deny,
                            .base = base};
    if (!t->n_norm)
        return cut(c, &t->cooked, &w, s, n, cooked_text, base);
    struct span *moved = NULL;
    int ret;
    /* Positions behind the normalizer only matter for being 0 or not. */
    size_t at = base ? 1 : 0;
    if (c->n_deny && w.special && t->cooked.n_special) {
        moved = MEM_ARRAY(struct span, c->n_deny);
        TRY_OUT(normalize_marked(c, s, n, base, moved, &w.n_deny));
        w.deny = moved;
        w.base = 0;
    } else {
        TRY_OUT(norm_run(t->norm, t->n_norm, true, s, n, &c->run[TOK_STEPS_MAX], &c->norm, c->e));
        w.n_deny = 0;
    }
    ret = cut(c, &t->cooked, &w, buf_cstr(&c->norm), c->norm.len, cooked_text, at);
out:
    mem_free(moved);
    return ret;
}

static int encode(struct enc *c, const char *s, size_t n)
{
    const struct tokenizer *t = c->t;
    struct added_where w = {
        .special = c->flags & TOK_PARSE_SPECIAL, .deny = c->deny, .n_deny = c->n_deny};
    bool around = c->flags & TOK_ADD_SPECIAL;
    for (size_t i = 0; around && i < t->head.n; i++)
        ids_push(c->out, t->head.v[i]);
    TRY(room(c));
    TRY(cut(c, &t->raw, &w, s, n, raw_text, 0));
    for (size_t i = 0; around && i < t->tail.n; i++)
        ids_push(c->out, t->tail.v[i]);
    return room(c);
}

int tok_encode(const struct tokenizer *t, const char *s, size_t n, unsigned flags,
               const struct span *untrusted, size_t n_untrusted, size_t max_ids, struct ids *out,
               struct err *e)
{
    if (n >= TOK_TEXT_MAX)
        return FAIL(e, E_RANGE, "a text of %zu bytes is too long", n);
    if (!utf8_valid(s, n))
        return FAIL(e, E_FORMAT, "the text is not valid UTF-8");
    size_t keep = out->n;
    struct enc c = {.t = t,
                    .out = out,
                    .limit = max_ids ? keep + max_ids : SIZE_MAX,
                    .flags = flags,
                    .deny = untrusted,
                    .n_deny = untrusted ? n_untrusted : 0,
                    .e = e};
    bool fresh = uc_has_new(s, n);
    for (size_t i = 0; i < ARRAY_LEN(c.run); i++)
        c.run[i].fresh = fresh;
    int ret = encode(&c, s, n);
    if (ret < 0)
        out->n = keep;
    bpe_scratch_done(&c.bpe);
    for (size_t i = 0; i < ARRAY_LEN(c.run); i++)
        pat_run_done(&c.run[i]);
    for (size_t i = 0; i < ARRAY_LEN(c.step); i++)
        buf_done(&c.step[i]);
    buf_done(&c.norm);
    buf_done(&c.part);
    return ret;
}
