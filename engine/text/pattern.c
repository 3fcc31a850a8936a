/* Searching: PCRE2 with its just-in-time compiler where the host allows it, memchr for literals, a
 * category test for numeric characters. Rewriting of the dialect is in pattern_re.c.
 *
 * Texts come from clients, so every search is bounded: the match limit grows with the text and
 * running into it is an error of that text, not of the process. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "engine/text/pattern.h"

#include <pcre2.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "engine/text/unicode.h"

enum { MATCH_LIMIT_MIN = 2000000, HEAP_LIMIT_KIB = 256 * 1024, JIT_STACK_MAX = 8 << 20 };

enum pattern_kind { KIND_REGEX, KIND_LITERAL, KIND_NUMERIC };

struct regex {
    pcre2_code *code;
    bool jit;
};

struct pattern {
    enum pattern_kind kind;
    struct regex plain, fresh; /* fresh: for texts with characters newer than PCRE2's tables */
    char *lit;
    size_t n;
};

static int compile(struct regex *r, const char *re, size_t n, bool fresh, bool jit, struct err *e)
{
    struct buf b;
    buf_init(&b, 0);
    int ret, code;
    PCRE2_SIZE off;
    pcre2_compile_context *cc = pcre2_compile_context_create(NULL);
    CHECK(cc);
    TRY_OUT(pattern_translate(re, n, fresh, &b, e));
    pcre2_set_newline(cc, PCRE2_NEWLINE_LF);
    /* In the dialect we read, ^ and $ always work per line. */
    uint32_t opt = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
    r->code = pcre2_compile((PCRE2_SPTR)buf_cstr(&b), b.len, opt, &code, &off, cc);
    if (!r->code) {
        char why[160];
        pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof why);
        ret = FAIL(e, E_UNSUPPORTED, "regular expression '%.*s': %s (at byte %zu of its rewriting)",
                   (int)(n < 120 ? n : 120), re, why, (size_t)off);
        goto out;
    }
    r->jit = jit && pcre2_jit_compile(r->code, PCRE2_JIT_COMPLETE) == 0;
out:
    pcre2_compile_context_free(cc);
    buf_done(&b);
    return ret;
}

int pattern_regex(struct pattern **out, const char *re, size_t n, unsigned flags, struct err *e)
{
    struct pattern *p = MEM_NEW(struct pattern);
    p->kind = KIND_REGEX;
    int ret;
    TRY_OUT(compile(&p->plain, re, n, false, !(flags & PAT_NO_JIT), e));
    TRY_OUT(compile(&p->fresh, re, n, true, !(flags & PAT_NO_JIT), e));
    *out = p;
    return OK;
out:
    pattern_close(p);
    return ret;
}

int pattern_literal(struct pattern **out, const char *s, size_t n, struct err *e)
{
    if (!n)
        return FAIL(e, E_UNSUPPORTED, "an empty string as a pattern");
    struct pattern *p = MEM_NEW(struct pattern);
    p->kind = KIND_LITERAL;
    p->lit = mem_strndup(s, n);
    p->n = n;
    *out = p;
    return OK;
}

void pattern_numeric(struct pattern **out)
{
    struct pattern *p = MEM_NEW(struct pattern);
    p->kind = KIND_NUMERIC;
    *out = p;
}

void pattern_close(struct pattern *p)
{
    if (!p)
        return;
    pcre2_code_free(p->plain.code);
    pcre2_code_free(p->fresh.code);
    mem_free(p->lit);
    mem_free(p);
}

void pat_run_done(struct pat_run *r)
{
    pcre2_match_data_free(r->match);
    pcre2_match_context_free(r->ctx);
    pcre2_jit_stack_free(r->stack);
    *r = (struct pat_run){0};
}

void pat_iter_init(struct pat_iter *i, const struct pattern *p, struct pat_run *run, const char *s,
                   size_t n)
{
    *i = (struct pat_iter){.p = p, .run = run, .s = s, .n = n};
    if (p->kind != KIND_REGEX)
        return;
    if (!run->match) {
        run->match = pcre2_match_data_create(1, NULL);
        run->ctx = pcre2_match_context_create(NULL);
        CHECK(run->match && run->ctx);
        pcre2_set_heap_limit(run->ctx, HEAP_LIMIT_KIB);
    }
    uint64_t limit = MATCH_LIMIT_MIN + 32 * (uint64_t)n;
    pcre2_set_match_limit(run->ctx, limit > UINT32_MAX ? UINT32_MAX : (uint32_t)limit);
}

/* The compiled code starts with 32 KiB of the thread's own stack; only a text that needs more pays
 * for a separate one. */
static int regex_exec(const struct pat_iter *i)
{
    struct pat_run *r = i->run;
    const struct regex *p = r->fresh ? &i->p->fresh : &i->p->plain;
    PCRE2_SPTR s = (PCRE2_SPTR)i->s;
    if (!p->jit)
        return pcre2_match(p->code, s, i->n, i->at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, r->match,
                           r->ctx);
    int rc = pcre2_jit_match(p->code, s, i->n, i->at, 0, r->match, r->ctx);
    if (rc != PCRE2_ERROR_JIT_STACKLIMIT || r->stack)
        return rc;
    r->stack = pcre2_jit_stack_create(64 << 10, JIT_STACK_MAX, NULL);
    if (!r->stack)
        return rc;
    pcre2_jit_stack_assign(r->ctx, NULL, r->stack);
    return pcre2_jit_match(p->code, s, i->n, i->at, 0, r->match, r->ctx);
}

static int regex_next(struct pat_iter *i, size_t *from, size_t *to, struct err *e)
{
    int rc = regex_exec(i);
    if (rc == PCRE2_ERROR_NOMATCH)
        return 0;
    if (rc < 0) {
        char why[160];
        pcre2_get_error_message(rc, (PCRE2_UCHAR *)why, sizeof why);
        return FAIL(e, E_RANGE, "the text is too hard for the tokenizer's pattern: %s", why);
    }
    const PCRE2_SIZE *ov = pcre2_get_ovector_pointer(i->run->match);
    *from = ov[0];
    *to = ov[1];
    return 1;
}

static int literal_next(const struct pat_iter *i, size_t *from, size_t *to)
{
    const struct pattern *p = i->p;
    for (size_t at = i->at; at + p->n <= i->n; at++) {
        const char *q = memchr(i->s + at, p->lit[0], i->n - at - p->n + 1);
        if (!q)
            return 0;
        at = (size_t)(q - i->s);
        if (!memcmp(q, p->lit, p->n)) {
            *from = at;
            *to = at + p->n;
            return 1;
        }
    }
    return 0;
}

static int numeric_next(const struct pat_iter *i, size_t *from, size_t *to)
{
    for (size_t at = i->at; at < i->n;) {
        uint32_t cp = 0;
        int k = utf8_decode(i->s + at, i->n - at, &cp);
        CHECK(k > 0);
        if (uc_is_numeric(cp)) {
            *from = at;
            *to = at + (size_t)k;
            return 1;
        }
        at += (size_t)k;
    }
    return 0;
}

int pat_next(struct pat_iter *i, size_t *from, size_t *to, struct err *e)
{
    while (i->at <= i->n) {
        int rc = i->p->kind == KIND_REGEX     ? regex_next(i, from, to, e)
                 : i->p->kind == KIND_LITERAL ? literal_next(i, from, to)
                                              : numeric_next(i, from, to);
        if (rc <= 0)
            return rc;
        /* A lookbehind or \K could not move a start backwards: neither is let through. */
        CHECK(*from >= i->at && *to >= *from && *to <= i->n);
        if (*to > *from || !i->any || *to != i->last) {
            i->at = i->last = *to;
            i->any = true;
            return 1;
        }
        /* Nothing right behind the last match: look one character further. */
        uint32_t cp;
        i->at += i->at < i->n ? (size_t)utf8_decode(i->s + i->at, i->n - i->at, &cp) : 1;
    }
    return 0;
}
