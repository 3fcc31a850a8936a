/* Ids to bytes. What a token decodes to is fixed at load; the running decoder adds only what
 * depends on the beginning of the text (a stripped leading space). */
#include <string.h>

#include "engine/base/buf.h"
#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "engine/text/alphabet.h"
#include "engine/text/clean.h"
#include "engine/text/tok.h"

static int hex_digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* Byte of a <0xNN> token, -1: it is none. */
static int fallback_byte(const char *s, size_t n)
{
    if (n != 6 || memcmp(s, "<0x", 3) != 0 || s[5] != '>')
        return -1;
    int hi = hex_digit(s[3]), lo = hex_digit(s[4]);
    return hi < 0 || lo < 0 ? -1 : hi * 16 + lo;
}

static int chain_bytes(const struct tokenizer *t, struct str p, struct pat_run *run,
                       struct buf *out, struct err *e)
{
    TRY(norm_run(t->dec.rep, t->dec.n_rep, false, p.p, p.n, run, out, e));
    int b = t->dec.fallback ? fallback_byte(buf_cstr(out), out->len) : -1;
    if (b >= 0) {
        buf_reset(out);
        buf_char(out, (char)b);
    }
    return OK;
}

static void meta_bytes(const struct decoder *d, struct str p, bool drop, struct buf *out)
{
    for (size_t i = 0; i < p.n;) {
        if (p.n - i >= d->meta.n && !memcmp(p.p + i, d->meta.p, d->meta.n)) {
            if (!drop)
                buf_char(out, ' ');
            i += d->meta.n;
        } else {
            buf_char(out, p.p[i++]);
        }
    }
}

/* One token by its spelling p. */
static int fill_one(struct tokenizer *t, int32_t id, struct str p, bool added, struct pat_run *run,
                    struct buf *b, struct err *e)
{
    buf_reset(b);
    if (t->dec.kind == DEC_META)
        meta_bytes(&t->dec, p, false, b);
    else if (t->dec.kind == DEC_CHAIN)
        TRY(chain_bytes(t, p, run, b, e));
    else if (added || !alphabet_decode(p.p, p.n, b))
        buf_push(b, p.p, p.n);
    bool same = b->len == p.n && !memcmp(buf_cstr(b), p.p, p.n);
    t->bytes[id] = same ? p : strtab_add(&t->mem, buf_cstr(b), b->len);
    t->longest = b->len > t->longest ? b->len : t->longest;
    return OK;
}

int tok_fill_bytes(struct tokenizer *t, struct err *e)
{
    struct buf b;
    struct pat_run run = {0};
    buf_init(&b, 0);
    int ret = OK;
    for (int32_t id = 0; id < t->n_id; id++) {
        struct str p = t->piece[id];
        if (p.p)
            TRY_OUT(fill_one(t, id, p, strmap_get(&t->added_words, p.p, p.n) == id, &run, &b, e));
    }
    /* One that is matched behind the normalizer gives back what it took, the prefix included. */
    for (size_t i = 0; i < t->cooked.n; i++)
        TRY_OUT(fill_one(t, t->cooked.v[i].id, t->cooked.v[i].text, true, &run, &b, e));
out:
    pat_run_done(&run);
    buf_done(&b);
    return ret;
}

void detok_init(struct detok *d, const struct tokenizer *t, bool skip_special)
{
    *d = (struct detok){.t = t, .skip_special = skip_special};
}

void detok_push(struct detok *d, int32_t id, struct buf *out)
{
    const struct tokenizer *t = d->t;
    if (id < 0 || id >= t->n_id || !t->piece[id].p || (d->skip_special && t->special[id]))
        return;
    struct str s = t->bytes[id];
    bool first = !d->started;
    d->started = true;
    if (first && t->dec.kind == DEC_META && t->dec.meta_drop) {
        meta_bytes(&t->dec, t->piece[id], true, out);
        return;
    }
    if (first)
        d->strip = t->dec.strip_n;
    const struct str *c = &t->dec.strip;
    while (d->strip && s.n) {
        if (s.n < c->n || memcmp(s.p, c->p, c->n) != 0) {
            d->strip = 0;
            break;
        }
        s.p += c->n;
        s.n -= c->n;
        d->strip--;
    }
    buf_push(out, s.p, s.n);
}

void detok_all(const struct tokenizer *t, const int32_t *ids, size_t n, bool skip_special,
               struct buf *out)
{
    struct detok d;
    struct buf raw;
    buf_init(&raw, 0);
    detok_init(&d, t, skip_special);
    for (size_t i = 0; i < n; i++)
        detok_push(&d, ids[i], &raw);
    clean_utf8(&raw, true, out);
    buf_done(&raw);
}
