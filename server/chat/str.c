/* Strings with origin marks. Concatenation is lazy: `a + b + c` in a loop costs a node each, and
 * the bytes are copied once, when somebody looks at them or the result is printed. */
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/limits.h"
#include "server/chat/runtime.h"

struct jt_str *jt_str_ref(struct jt_rt *rt, const char *p, size_t n, enum jt_origin o)
{
    struct jt_str *s = jt_arena_zero(&rt->arena, sizeof *s);
    s->p = p;
    s->len = n;
    s->origin = (uint8_t)o;
    return s;
}

struct jt_str *jt_str_dup(struct jt_rt *rt, const char *p, size_t n, enum jt_origin o)
{
    return jt_str_ref(rt, jt_arena_strndup(&rt->arena, p, n), n, o);
}

int jt_str_cat(struct jt_rt *rt, struct jt_str *a, struct jt_str *b, struct jt_str **out)
{
    if (!a->len || !b->len) {
        *out = a->len ? a : b;
        return OK;
    }
    if (a->len > LIM_CHAT_OUTPUT - b->len)
        return rt_fail(rt, E_RANGE, "string of more than %d bytes", LIM_CHAT_OUTPUT);
    struct jt_str *s = jt_str_ref(rt, NULL, a->len + b->len, JT_MIXED);
    if (a->origin == b->origin)
        s->origin = a->origin;
    s->a = a;
    s->b = b;
    *out = s;
    return OK;
}

static void mark(struct chat_text *sb, size_t from, size_t to)
{
    if (from >= to)
        return;
    if (sb->n_untrusted && sb->untrusted[sb->n_untrusted - 1].to == from) {
        sb->untrusted[sb->n_untrusted - 1].to = to;
        return;
    }
    MEM_GROW(sb->untrusted, sb->cap_untrusted, sb->n_untrusted + 1);
    sb->untrusted[sb->n_untrusted++] = (struct span){from, to};
}

void jt_sb_push(struct chat_text *sb, const char *p, size_t n, enum jt_origin o)
{
    size_t at = sb->text.len;
    if (buf_push(&sb->text, p, n) == OK && o == JT_REQUEST)
        mark(sb, at, at + n);
}

void jt_sb_lit(struct chat_text *sb, const char *text)
{
    jt_sb_push(sb, text, strlen(text), JT_TEMPLATE);
}

/* The first mark of a flat mixed string that ends behind `from`. */
static size_t first_mark(const struct jt_str *s, size_t from)
{
    size_t lo = 0, hi = s->n_marks;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (s->marks[mid].to <= from)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

static void push_flat(struct chat_text *sb, const struct jt_str *s, size_t from, size_t to)
{
    size_t at = sb->text.len;
    if (from >= to || buf_push(&sb->text, s->p + from, to - from) < 0)
        return;
    if (s->origin == JT_REQUEST)
        mark(sb, at, at + to - from);
    if (s->origin != JT_MIXED)
        return;
    for (size_t i = first_mark(s, from); i < s->n_marks && s->marks[i].from < to; i++) {
        size_t a = s->marks[i].from < from ? from : s->marks[i].from;
        size_t b = s->marks[i].to > to ? to : s->marks[i].to;
        mark(sb, at + a - from, at + b - from);
    }
}

int jt_sb_str(struct jt_rt *rt, struct chat_text *sb, struct jt_str *s)
{
    TRY(rt_step(rt, s->len));
    if (s->p) {
        push_flat(sb, s, 0, s->len);
        return OK;
    }
    size_t n = 0;
    MEM_GROW(rt->walk, rt->cap_walk, 1);
    rt->walk[n++] = s;
    while (n && !sb->text.full) {
        struct jt_str *x = rt->walk[--n];
        if (x->p) {
            push_flat(sb, x, 0, x->len);
            continue;
        }
        MEM_GROW(rt->walk, rt->cap_walk, n + 2);
        rt->walk[n++] = x->b;
        rt->walk[n++] = x->a;
    }
    return OK;
}

/* Moves what was built into the arena. */
static void settle(struct jt_rt *rt, struct chat_text *sb, struct jt_str *s)
{
    size_t n = sb->n_untrusted;
    s->len = sb->text.len;
    s->p = jt_arena_strndup(&rt->arena, buf_cstr(&sb->text), s->len);
    s->marks = NULL;
    s->n_marks = 0;
    s->origin = JT_TEMPLATE;
    if (n == 1 && sb->untrusted[0].from == 0 && sb->untrusted[0].to == s->len) {
        s->origin = JT_REQUEST;
    } else if (n) {
        struct span *m = jt_arena_alloc(&rt->arena, n * sizeof *m);
        memcpy(m, sb->untrusted, n * sizeof *m);
        s->marks = m;
        s->n_marks = n;
        s->origin = JT_MIXED;
    }
}

struct chat_text *jt_sb_open(struct jt_rt *rt)
{
    if (rt->open_sinks == rt->n_sinks) {
        MEM_GROW(rt->sinks, rt->cap_sinks, rt->n_sinks + 1);
        struct chat_text *n = MEM_NEW(struct chat_text);
        buf_init(&n->text, LIM_CHAT_OUTPUT);
        rt->sinks[rt->n_sinks++] = n;
    }
    struct chat_text *sb = rt->sinks[rt->open_sinks++];
    buf_reset(&sb->text);
    sb->n_untrusted = 0;
    return sb;
}

int jt_sb_close(struct jt_rt *rt, struct chat_text *sb, struct jt_val *out)
{
    CHECK(rt->open_sinks && rt->sinks[rt->open_sinks - 1] == sb);
    TRY(rt_step(rt, sb->text.len));
    struct jt_str *s = jt_str_ref(rt, "", 0, JT_TEMPLATE);
    settle(rt, sb, s);
    if (sb->text.cap > 65536) { /* the arena has its copy: do not hold two */
        buf_done(&sb->text);
        sb->text.max = LIM_CHAT_OUTPUT;
    }
    rt->open_sinks--;
    *out = jt_strv(s);
    return OK;
}

const char *jt_str_flat(struct jt_rt *rt, struct jt_str *s)
{
    if (s->p)
        return s->p;
    struct chat_text *sb = jt_sb_open(rt);
    rt->steps += s->len / 32;
    size_t n = 0;
    MEM_GROW(rt->walk, rt->cap_walk, 1);
    rt->walk[n++] = s;
    while (n) {
        struct jt_str *x = rt->walk[--n];
        if (x->p) {
            push_flat(sb, x, 0, x->len);
            continue;
        }
        MEM_GROW(rt->walk, rt->cap_walk, n + 2);
        rt->walk[n++] = x->b;
        rt->walk[n++] = x->a;
    }
    CHECK(sb->text.len == s->len);
    settle(rt, sb, s);
    rt->open_sinks--;
    return s->p;
}

struct jt_str *jt_str_sub(struct jt_rt *rt, struct jt_str *s, size_t from, size_t to)
{
    if (from >= to)
        return jt_str_ref(rt, "", 0, JT_TEMPLATE);
    if (from == 0 && to == s->len)
        return s;
    const char *p = jt_str_flat(rt, s);
    struct jt_str *r = jt_str_ref(rt, p + from, to - from, s->origin);
    if (s->origin != JT_MIXED)
        return r;
    size_t i = first_mark(s, from), k = i;
    while (k < s->n_marks && s->marks[k].from < to)
        k++;
    if (i == k) {
        r->origin = JT_TEMPLATE;
        return r;
    }
    struct span *m = jt_arena_alloc(&rt->arena, (k - i) * sizeof *m);
    for (size_t j = i; j < k; j++) {
        m[j - i].from = s->marks[j].from < from ? 0 : s->marks[j].from - from;
        m[j - i].to = (s->marks[j].to > to ? to : s->marks[j].to) - from;
    }
    if (k - i == 1 && m[0].from == 0 && m[0].to == r->len) {
        r->origin = JT_REQUEST;
        return r;
    }
    r->marks = m;
    r->n_marks = k - i;
    return r;
}

void jt_sb_sub(struct jt_rt *rt, struct chat_text *sb, struct jt_str *s, size_t from, size_t to)
{
    jt_str_flat(rt, s);
    push_flat(sb, s, from, to);
}

bool jt_str_eq(struct jt_rt *rt, struct jt_str *a, struct jt_str *b)
{
    if (a == b)
        return true;
    if (a->len != b->len)
        return false;
    rt->steps += a->len / 32;
    return !memcmp(jt_str_flat(rt, a), jt_str_flat(rt, b), a->len);
}

bool jt_str_is(struct jt_rt *rt, struct jt_str *s, const char *text)
{
    size_t n = strlen(text);
    return s->len == n && !memcmp(jt_str_flat(rt, s), text, n);
}

int jt_str_cmp(struct jt_rt *rt, struct jt_str *a, struct jt_str *b)
{
    size_t n = a->len < b->len ? a->len : b->len;
    rt->steps += n / 32;
    int c = n ? memcmp(jt_str_flat(rt, a), jt_str_flat(rt, b), n) : 0;
    return c ? c : a->len < b->len ? -1 : a->len > b->len;
}

size_t jt_cp_offset(const char *p, size_t n, size_t i)
{
    size_t at = 0;
    while (at < n && i) {
        at++;
        while (at < n && ((unsigned char)p[at] & 0xc0) == 0x80)
            at++;
        i--;
    }
    return at;
}
