/* Normalizer steps. NFC runs only over text that may need it: a quick scan passes what is composed
 * already. The decomposition and the canonical ordering are done here and only the composition by
 * utf8proc, because its ordering costs the square of a long run of marks. Pure functions. */
#include <string.h>
#include <utf8proc.h>

#include "engine/base/buf.h"
#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "engine/text/tok.h"

/* Whether cp can be changed by NFC or change the character before it. May say yes too often. */
static bool nfc_maybe(uint32_t cp)
{
    if (cp < 0x300)
        return false;
    if ((cp >= 0x4e00 && cp <= 0x9fff) || (cp >= 0xac00 && cp <= 0xd7a3) ||
        (cp >= 0x3041 && cp <= 0x3096) || (cp >= 0x30a0 && cp <= 0x30ff))
        return false;
    if (cp >= 0x1100 && cp <= 0x11ff) /* jamo */
        return true;
    const utf8proc_property_t *p = utf8proc_get_property((utf8proc_int32_t)cp);
    return p->combining_class || p->category == UTF8PROC_CATEGORY_MN ||
           p->category == UTF8PROC_CATEGORY_MC || p->category == UTF8PROC_CATEGORY_ME ||
           (p->decomp_type == 0 && p->decomp_seqindex != UINT16_MAX);
}

static bool nfc_quick(const char *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        if ((unsigned char)s[i] < 0xcc) { /* below U+0300 */
            i++;
            continue;
        }
        uint32_t cp;
        int k = utf8_decode(s + i, n - i, &cp);
        CHECK(k > 0);
        if (nfc_maybe(cp))
            return false;
        i += (size_t)k;
    }
    return true;
}

struct points {
    int32_t *v;
    size_t n, cap;
};

static unsigned ccc(int32_t cp)
{
    return (unsigned)utf8proc_get_property(cp)->combining_class;
}

/* Stable ordering of one run of marks by combining class: a counting sort, so linear. */
static void order_run(int32_t *v, size_t n, struct points *tmp)
{
    bool sorted = true;
    for (size_t i = 1; i < n && sorted; i++)
        sorted = ccc(v[i - 1]) <= ccc(v[i]);
    if (sorted)
        return;
    size_t from[257] = {0};
    for (size_t i = 0; i < n; i++)
        from[ccc(v[i]) + 1]++;
    for (size_t i = 1; i < 257; i++)
        from[i] += from[i - 1];
    MEM_GROW(tmp->v, tmp->cap, n);
    for (size_t i = 0; i < n; i++)
        tmp->v[from[ccc(v[i])]++] = v[i];
    memcpy(v, tmp->v, n * sizeof *v);
}

static void order_marks(struct points *d)
{
    struct points tmp = {0};
    for (size_t i = 0; i < d->n;) {
        if (!ccc(d->v[i])) {
            i++;
            continue;
        }
        size_t j = i + 1;
        while (j < d->n && ccc(d->v[j]))
            j++;
        order_run(d->v + i, j - i, &tmp);
        i = j;
    }
    mem_free(tmp.v);
}

static void nfc(const char *s, size_t n, struct buf *out)
{
    struct points d = {0};
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        int k = utf8_decode(s + i, n - i, &cp);
        CHECK(k > 0);
        i += (size_t)k;
        MEM_GROW(d.v, d.cap, d.n + 32);
        utf8proc_ssize_t m = utf8proc_decompose_char((utf8proc_int32_t)cp, d.v + d.n, 32,
                                                     UTF8PROC_DECOMPOSE | UTF8PROC_STABLE, NULL);
        CHECK(m >= 0 && m <= 32);
        d.n += (size_t)m;
    }
    order_marks(&d);
    utf8proc_ssize_t m =
        utf8proc_normalize_utf32(d.v, (utf8proc_ssize_t)d.n, UTF8PROC_COMPOSE | UTF8PROC_STABLE);
    CHECK(m >= 0);
    buf_reserve(out, n);
    for (utf8proc_ssize_t i = 0; i < m; i++) {
        char u[4];
        buf_push(out, u, (size_t)utf8_encode((uint32_t)d.v[i], u));
    }
    mem_free(d.v);
}

/* limit: bytes of the result at most; a chain of replacements could otherwise grow a text without
 * bound. */
static int replace(const struct norm_step *st, const char *s, size_t n, size_t limit,
                   struct pat_run *run, struct buf *out, struct err *e)
{
    struct pat_iter it;
    pat_iter_init(&it, st->pat, run, s, n);
    size_t done = 0, from, to;
    int rc;
    while (n && (rc = pat_next(&it, &from, &to, e))) {
        TRY(rc);
        buf_push(out, s + done, from - done);
        buf_push(out, st->text.p, st->text.n);
        done = to;
        if (out->len > limit)
            return FAIL(e, E_RANGE, "the normalizer makes a text of %zu bytes too long", n);
    }
    buf_push(out, s + done, n - done);
    return OK;
}

int norm_run(const struct norm_step *v, size_t n_step, bool prepend, const char *s, size_t n,
             struct pat_run *run, struct buf *out, struct err *e)
{
    struct buf tmp;
    buf_init(&tmp, 0);
    int ret = OK;
    size_t limit = 32 * n + 4096;
    buf_reset(out);
    buf_push(out, s, n);
    for (size_t i = 0; i < n_step; i++) {
        const struct norm_step *st = &v[i];
        buf_reset(&tmp);
        if (st->kind == NORM_NFC) {
            if (nfc_quick(buf_cstr(out), out->len))
                continue;
            nfc(out->p, out->len, &tmp);
        } else if (st->kind == NORM_PREPEND) {
            if (!prepend || !out->len)
                continue;
            buf_push(&tmp, st->text.p, st->text.n);
            buf_push(&tmp, out->p, out->len);
        } else {
            TRY_OUT(replace(st, buf_cstr(out), out->len, limit, run, &tmp, e));
        }
        struct buf x = *out;
        *out = tmp;
        tmp = x;
    }
out:
    buf_done(&tmp);
    return ret;
}
