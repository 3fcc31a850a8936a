/* Methods of str. Offsets are in bytes inside and in characters outside; every piece cut from a
 * string keeps the marks of where it came from. */
#include <stdio.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/utf8.h"
#include "server/chat/runtime.h"

#define NOT_FOUND SIZE_MAX

/* First occurrence of q in p[from, to). By windows: a near hit then costs the window, not the rest
 * of the text, which a checked memmem would read on every call. */
static size_t find_in(const char *p, size_t from, size_t to, const char *q, size_t n)
{
    if (from > to || n > to - from)
        return NOT_FOUND;
    if (!n)
        return from;
    for (size_t step = 256; n <= to - from; step *= 2) {
        size_t len = step + n - 1 < to - from ? step + n - 1 : to - from;
        const char *hit = memmem(p + from, len, q, n);
        if (hit)
            return (size_t)(hit - p);
        from += len - n + 1;
    }
    return NOT_FOUND;
}

static size_t rfind_in(const char *p, size_t from, size_t to, const char *q, size_t n)
{
    if (from > to || n > to - from)
        return NOT_FOUND;
    for (size_t i = to - n + 1; i-- > from;)
        if (!memcmp(p + i, q, n))
            return i;
    return NOT_FOUND;
}

/* --- strip --- */

static bool in_set(const char *p, size_t n, const char *set, size_t n_set)
{
    if (n == 1 || !n_set)
        return memchr(set, *p, n_set) != NULL;
    return memmem(set, n_set, p, n) != NULL;
}

int rt_strip(struct jt_rt *rt, struct jt_str *s, struct jt_str *chars, bool left, bool right,
             struct jt_val *out)
{
    const char *p = jt_str_flat(rt, s);
    size_t from = 0, to = s->len;
    TRY(rt_step(rt, chars ? 0 : s->len));
    if (!chars) {
        if (left)
            from = jt_space_head(p, to);
        if (right && from < to)
            to -= jt_space_tail(p + from, to - from);
        *out = jt_strv(jt_str_sub(rt, s, from, to));
        return OK;
    }
    const char *set = jt_str_flat(rt, chars);
    while (left && from < to) {
        size_t n = jt_cp_offset(p + from, to - from, 1);
        TRY(rt_step(rt, chars->len));
        if (!in_set(p + from, n, set, chars->len))
            break;
        from += n;
    }
    while (right && from < to) {
        size_t i = to - 1;
        while (i > from && ((unsigned char)p[i] & 0xc0) == 0x80)
            i--;
        TRY(rt_step(rt, chars->len));
        if (!in_set(p + i, to - i, set, chars->len))
            break;
        to = i;
    }
    *out = jt_strv(jt_str_sub(rt, s, from, to));
    return OK;
}

static int strip(struct jt_rt *rt, const char *fn, struct jt_val self, const struct jt_args *a,
                 bool left, bool right, struct jt_val *out)
{
    struct jt_val v;
    struct jt_str *chars = NULL;
    TRY(rt_args(rt, fn, a, "chars", 0, &v));
    if (v.t != JT_NONE)
        TRY(rt_arg_str(rt, fn, v, &chars));
    return rt_strip(rt, self.s, chars, left, right, out);
}

static int m_strip(struct jt_rt *rt, struct jt_val self, const struct jt_args *a,
                   struct jt_val *out)
{
    return strip(rt, "strip", self, a, true, true, out);
}

static int m_lstrip(struct jt_rt *rt, struct jt_val self, const struct jt_args *a,
                    struct jt_val *out)
{
    return strip(rt, "lstrip", self, a, true, false, out);
}

static int m_rstrip(struct jt_rt *rt, struct jt_val self, const struct jt_args *a,
                    struct jt_val *out)
{
    return strip(rt, "rstrip", self, a, false, true, out);
}

/* --- split and join --- */

static int push_sub(struct jt_rt *rt, struct jt_list *l, struct jt_str *s, size_t from, size_t to)
{
    return jt_list_push(rt, l, jt_strv(jt_str_sub(rt, s, from, to)));
}

static int split_space(struct jt_rt *rt, struct jt_str *s, int64_t max, struct jt_list *l)
{
    const char *p = jt_str_flat(rt, s);
    size_t i = jt_space_head(p, s->len);
    while (i < s->len) {
        if (max >= 0 && (int64_t)l->n >= max)
            return push_sub(rt, l, s, i, s->len);
        size_t from = i;
        while (i < s->len && !jt_space_head(p + i, jt_cp_offset(p + i, s->len - i, 1)))
            i += jt_cp_offset(p + i, s->len - i, 1);
        TRY(push_sub(rt, l, s, from, i));
        i += jt_space_head(p + i, s->len - i);
    }
    return OK;
}

static int m_split(struct jt_rt *rt, struct jt_val self, const struct jt_args *a,
                   struct jt_val *out)
{
    struct jt_val v[2];
    struct jt_str *s = self.s, *sep = NULL;
    struct jt_list *l = jt_list_new(rt, 0);
    int64_t max = -1;
    TRY(rt_args(rt, "split", a, "sep,maxsplit", 0, v));
    if (v[0].t != JT_NONE)
        TRY(rt_arg_str(rt, "split", v[0], &sep));
    TRY(rt_arg_int(rt, "split", v[1], &max));
    TRY(rt_step(rt, s->len));
    *out = JT_V(JT_LIST, l, l);
    if (!sep)
        return split_space(rt, s, max, l);
    if (!sep->len)
        return rt_fail(rt, E_INVAL, "split() by an empty string");
    const char *p = jt_str_flat(rt, s), *q = jt_str_flat(rt, sep);
    size_t from = 0, hit;
    while ((max < 0 || (int64_t)l->n < max) &&
           (hit = find_in(p, from, s->len, q, sep->len)) != NOT_FOUND) {
        TRY(push_sub(rt, l, s, from, hit));
        from = hit + sep->len;
    }
    return push_sub(rt, l, s, from, s->len);
}

static int m_rsplit(struct jt_rt *rt, struct jt_val self, const struct jt_args *a,
                    struct jt_val *out)
{
    struct jt_val v[2], rev = {0};
    struct jt_str *s = self.s, *sep = NULL;
    struct jt_list *l = jt_list_new(rt, 0);
    int64_t max = -1;
    TRY(rt_args(rt, "rsplit", a, "sep,maxsplit", 0, v));
    if (v[0].t != JT_NONE)
        TRY(rt_arg_str(rt, "rsplit", v[0], &sep));
    TRY(rt_arg_int(rt, "rsplit", v[1], &max));
    if (max < 0)
        return m_split(rt, self, a, out);
    if (!sep)
        return rt_fail(rt, E_UNSUPPORTED, "rsplit() by white space with a limit");
    if (!sep->len)
        return rt_fail(rt, E_INVAL, "rsplit() by an empty string");
    const char *p = jt_str_flat(rt, s), *q = jt_str_flat(rt, sep);
    size_t to = s->len, hit;
    while ((int64_t)l->n < max && (hit = rfind_in(p, 0, to, q, sep->len)) != NOT_FOUND) {
        TRY(rt_step(rt, to - hit));
        TRY(push_sub(rt, l, s, hit + sep->len, to));
        to = hit;
    }
    TRY(rt_step(rt, to));
    TRY(push_sub(rt, l, s, 0, to));
    *out = JT_V(JT_LIST, l, l);
    const struct jt_method *reverse = jt_method_find(*out, "reverse");
    struct jt_args none = {0};
    return reverse->fn(rt, *out, &none, &rev);
}

static int m_splitlines(struct jt_rt *rt, struct jt_val self, const struct jt_args *a,
                        struct jt_val *out)
{
    struct jt_val v;
    struct jt_str *s = self.s;
    const char *p = jt_str_flat(rt, s);
    struct jt_list *l = jt_list_new(rt, 0);
    TRY(rt_args(rt, "splitlines", a, "keepends", 0, &v));
    TRY(rt_step(rt, s->len));
    size_t from = 0;
    for (size_t i = 0; i < s->len;) {
        uint32_t c = 0;
        int n = utf8_decode(p + i, s->len - i, &c);
        size_t end = i;
        i += n > 0 ? (size_t)n : 1;
        bool eol = (c >= 10 && c <= 13) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 ||
                   c == 0x2029;
        if (!eol)
            continue;
        if (c == '\r' && i < s->len && p[i] == '\n')
            i++;
        TRY(push_sub(rt, l, s, from, jt_truth(v) ? i : end));
        from = i;
    }
    if (from < s->len)
        TRY(push_sub(rt, l, s, from, s->len));
    *out = JT_V(JT_LIST, l, l);
    return OK;
}

static int cut(struct jt_rt *rt, struct jt_val self, const struct jt_args *a, bool last,
               struct jt_val *out)
{
    struct jt_val v;
    struct jt_str *sep = NULL, *s = self.s;
    struct jt_list *l = jt_list_new(rt, 3);
    TRY(rt_args(rt, "partition", a, "sep", 1, &v));
    TRY(rt_arg_str(rt, "partition", v, &sep));
    if (!sep->len)
        return rt_fail(rt, E_INVAL, "partition() by an empty string");
    TRY(rt_step(rt, s->len));
    const char *p = jt_str_flat(rt, s), *q = jt_str_flat(rt, sep);
    size_t hit = (last ? rfind_in : find_in)(p, 0, s->len, q, sep->len);
    size_t from = hit != NOT_FOUND ? hit : last ? 0 : s->len;
    size_t to = hit != NOT_FOUND ? hit + sep->len : from;
    TRY(push_sub(rt, l, s, 0, from));
    TRY(push_sub(rt, l, s, from, to));
    TRY(push_sub(rt, l, s, to, s->len));
    *out = JT_V(JT_TUPLE, l, l);
    return OK;
}

static int m_partition(struct jt_rt *rt, struct jt_val self, const struct jt_args *a,
                       struct jt_val *out)
{
    return cut(rt, self, a, false, out);
}

static int m_rpartition(struct jt_rt *rt, struct jt_val self, const struct jt_args *a,
                        struct jt_val *out)
{
    return cut(rt, self, a, true, out);
}

static int m_join(struct jt_rt *rt, struct jt_val self, const struct jt_args *a, struct jt_val *out)
{
    struct jt_val v;
    struct jt_list *l;
    TRY(rt_args(rt, "join", a, "iterable", 1, &v));
    TRY(jt_items(rt, v, &l));
    for (size_t i = 0; i < l->n; i++)
        if (l->v[i].t != JT_STR)
            return rt_fail(rt, E_INVAL, "join() of '%s'", jt_type_name(l->v[i]));
    return rt_join(rt, self.s, l, out);
}

int rt_join(struct jt_rt *rt, struct jt_str *sep, struct jt_list *l, struct jt_val *out)
{
    struct chat_text *sb = jt_sb_open(rt);
    for (size_t i = 0; i < l->n; i++) {
        if (i)
            TRY(jt_sb_str(rt, sb, sep));
        TRY(jt_put(rt, sb, l->v[i]));
    }
    return jt_sb_close(rt, sb, out);
}

/* --- replace and search --- */

int rt_replace(struct jt_rt *rt, struct jt_str *s, struct jt_str *old, struct jt_str *with,
               int64_t count, struct jt_val *out)
{
    const char *p = jt_str_flat(rt, s), *q = jt_str_flat(rt, old);
    size_t from = 0, hit;
    struct chat_text *sb = jt_sb_open(rt);
    TRY(rt_step(rt, s->len));
    while (count != 0 && (hit = find_in(p, from, s->len, q, old->len)) != NOT_FOUND) {
        jt_sb_sub(rt, sb, s, from, hit);
        TRY(jt_sb_str(rt, sb, with));
        from = hit + old->len;
        if (!old->len) { /* between all characters */
            size_t n = jt_cp_offset(p + from, s->len - from, 1);
            jt_sb_sub(rt, sb, s, from, from + n);
            from += n;
            if (!n)
                break;
        }
        count -= count > 0;
    }
    jt_sb_sub(rt, sb, s, from, s->len);
    return jt_sb_close(rt, sb, out);
}

static int m_replace(struct jt_rt *rt, struct jt_val self, const struct jt_args *a,
                     struct jt_val *out)
{
    struct jt_val v[3];
    struct jt_str *old = NULL, *with = NULL;
    int64_t count = -1;
    TRY(rt_args(rt, "replace", a, "old,new,count", 2, v));
    TRY(rt_arg_str(rt, "replace", v[0], &old));
    TRY(rt_arg_str(rt, "replace", v[1], &with));
    TRY(rt_arg_int(rt, "replace", v[2], &count));
    return rt_replace(rt, self.s, old, with, count, out);
}

/* The window [start, end) of a search, in bytes; characters before it in *skip. */
static int window(struct jt_rt *rt, struct jt_str *s, const struct jt_val *v, size_t *from,
                  size_t *to, int64_t *skip)
{
    size_t len;
    TRY(jt_len(rt, jt_strv(s), &len));
    int64_t n = (int64_t)len, a = 0, b = n;
    if (v[1].t != JT_NONE)
        TRY(rt_arg_int(rt, "find", v[1], &a));
    if (v[2].t != JT_NONE)
        TRY(rt_arg_int(rt, "find", v[2], &b));
    a = a < -n ? 0 : a < 0 ? a + n : a;
    b = b < -n ? 0 : b < 0 ? b + n : b > n ? n : b;
    const char *p = jt_str_flat(rt, s);
    *skip = a;
    *from = a > n ? s->len + 1 : jt_cp_offset(p, s->len, (size_t)a);
    *to = jt_cp_offset(p, s->len, (size_t)b);
    return OK;
}

static int search(struct jt_rt *rt, const char *fn, struct jt_val self, const struct jt_args *a,
                  bool last, bool must, struct jt_val *out)
{
    struct jt_val v[3];
    struct jt_str *sub = NULL;
    size_t from, to;
    int64_t skip;
    TRY(rt_args(rt, fn, a, "sub,start,end", 1, v));
    TRY(rt_arg_str(rt, fn, v[0], &sub));
    TRY(window(rt, self.s, v, &from, &to, &skip));
    const char *p = jt_str_flat(rt, self.s), *q = jt_str_flat(rt, sub);
    size_t hit = (last ? rfind_in : find_in)(p, from, to, q, sub->len);
    if (hit == NOT_FOUND && must)
        return rt_fail(rt, E_INVAL, "%s() of a text that is not there", fn);
    *out = jt_int(hit == NOT_FOUND ? -1 : skip + (int64_t)utf8_count(p + from, hit - from));
    return rt_step(rt, last ? self.s->len * 8 : self.s->len);
}

static int m_find(struct jt_rt *rt, struct jt_val self, const struct jt_args *a, struct jt_val *out)
{
    return search(rt, "find", self, a, false, false, out);
}

static int m_rfind(struct jt_rt *rt, struct jt_val self, const struct jt_args *a,
                   struct jt_val *out)
{
    return search(rt, "rfind", self, a, true, false, out);
}

static int m_index(struct jt_rt *rt, struct jt_val self, const struct jt_args *a,
                   struct jt_val *out)
{
    return search(rt, "index", self, a, false, true, out);
}

static int m_rindex(struct jt_rt *rt, struct jt_val self, const struct jt_args *a,
                    struct jt_val *out)
{
    return search(rt, "rindex", self, a, true, true, out);
}

static int m_count(struct jt_rt *rt, struct jt_val self, const struct jt_args *a,
                   struct jt_val *out)
{
    struct jt_val v[3];
    struct jt_str *sub = NULL;
    size_t from, to, hit;
    int64_t skip, n = 0;
    TRY(rt_args(rt, "count", a, "sub,start,end", 1, v));
    TRY(rt_arg_str(rt, "count", v[0], &sub));
    TRY(window(rt, self.s, v, &from, &to, &skip));
    const char *p = jt_str_flat(rt, self.s), *q = jt_str_flat(rt, sub);
    if (!sub->len) {
        *out = jt_int(from <= to ? (int64_t)utf8_count(p + from, to - from) + 1 : 0);
        return OK;
    }
    for (; (hit = find_in(p, from, to, q, sub->len)) != NOT_FOUND; n++)
        from = hit + sub->len;
    *out = jt_int(n);
    return rt_step(rt, self.s->len);
}

static bool has_affix(struct jt_rt *rt, struct jt_str *s, struct jt_str *x, bool end)
{
    if (x->len > s->len)
        return false;
    const char *p = jt_str_flat(rt, s) + (end ? s->len - x->len : 0);
    return !memcmp(p, jt_str_flat(rt, x), x->len);
}

static int affix(struct jt_rt *rt, const char *fn, struct jt_val self, const struct jt_args *a,
                 bool end, struct jt_val *out)
{
    struct jt_val v[3];
    bool yes = false;
    TRY(rt_args(rt, fn, a, "prefix,start,end", 1, v));
    if (v[1].t != JT_UNSET || v[2].t != JT_UNSET)
        return rt_fail(rt, E_UNSUPPORTED, "%s() with a start or end", fn);
    if (v[0].t == JT_TUPLE) {
        for (size_t i = 0; !yes && i < v[0].l->n; i++) {
            struct jt_str *x = NULL;
            TRY(rt_arg_str(rt, fn, v[0].l->v[i], &x));
            yes = has_affix(rt, self.s, x, end);
        }
    } else {
        struct jt_str *x = NULL;
        TRY(rt_arg_str(rt, fn, v[0], &x));
        yes = has_affix(rt, self.s, x, end);
    }
    *out = jt_bool(yes);
    return rt_step(rt, 0);
}

static int m_startswith(struct jt_rt *rt, struct jt_val self, const struct jt_args *a,
                        struct jt_val *out)
{
    return affix(rt, "startswith", self, a, false, out);
}

static int m_endswith(struct jt_rt *rt, struct jt_val self, const struct jt_args *a,
                      struct jt_val *out)
{
    return affix(rt, "endswith", self, a, true, out);
}

static int m_removeprefix(struct jt_rt *rt, struct jt_val self, const struct jt_args *a,
                          struct jt_val *out)
{
    struct jt_val v;
    struct jt_str *x = NULL, *s = self.s;
    TRY(rt_args(rt, "removeprefix", a, "prefix", 1, &v));
    TRY(rt_arg_str(rt, "removeprefix", v, &x));
    *out = has_affix(rt, s, x, false) ? jt_strv(jt_str_sub(rt, s, x->len, s->len)) : self;
    return OK;
}

static int m_removesuffix(struct jt_rt *rt, struct jt_val self, const struct jt_args *a,
                          struct jt_val *out)
{
    struct jt_val v;
    struct jt_str *x = NULL, *s = self.s;
    TRY(rt_args(rt, "removesuffix", a, "suffix", 1, &v));
    TRY(rt_arg_str(rt, "removesuffix", v, &x));
    *out = has_affix(rt, s, x, true) ? jt_strv(jt_str_sub(rt, s, 0, s->len - x->len)) : self;
    return OK;
}

/* --- case --- */

static int m_upper(struct jt_rt *rt, struct jt_val self, const struct jt_args *a,
                   struct jt_val *out)
{
    TRY(rt_args(rt, "upper", a, "", 0, NULL));
    return jt_case(rt, self.s, JT_UPPER, out);
}

static int m_lower(struct jt_rt *rt, struct jt_val self, const struct jt_args *a,
                   struct jt_val *out)
{
    TRY(rt_args(rt, "lower", a, "", 0, NULL));
    return jt_case(rt, self.s, JT_LOWER, out);
}

static int m_title(struct jt_rt *rt, struct jt_val self, const struct jt_args *a,
                   struct jt_val *out)
{
    TRY(rt_args(rt, "title", a, "", 0, NULL));
    return jt_case(rt, self.s, JT_TITLE, out);
}

static int m_capitalize(struct jt_rt *rt, struct jt_val self, const struct jt_args *a,
                        struct jt_val *out)
{
    TRY(rt_args(rt, "capitalize", a, "", 0, NULL));
    return jt_case(rt, self.s, JT_CAPITALIZE, out);
}

static int m_isspace(struct jt_rt *rt, struct jt_val self, const struct jt_args *a,
                     struct jt_val *out)
{
    TRY(rt_args(rt, "isspace", a, "", 0, NULL));
    const char *p = jt_str_flat(rt, self.s);
    *out = jt_bool(self.s->len && jt_space_head(p, self.s->len) == self.s->len);
    return rt_step(rt, self.s->len);
}

/* --- format --- */

/* The argument of a {} field: by number, by name, or the next one. */
static int field(struct jt_rt *rt, const struct jt_args *a, const char *p, size_t n, size_t *next,
                 struct jt_val *out)
{
    size_t i = 0, k = 0;
    if (memchr(p, ':', n) || memchr(p, '!', n) || memchr(p, '.', n) || memchr(p, '[', n))
        return rt_fail(rt, E_UNSUPPORTED, "format() field '{%.*s}'", (int)(n < 40 ? n : 40), p);
    while (k < n && k < 6 && p[k] >= '0' && p[k] <= '9')
        i = i * 10 + (size_t)(p[k++] - '0');
    if (k == n) {
        i = n ? i : (*next)++;
        if (i >= a->n)
            return rt_fail(rt, E_INVAL, "format() has no argument number %zu", i);
        *out = a->v[i];
        return OK;
    }
    for (i = 0; i < a->n_kw; i++) {
        if (strlen(a->kw[i].name) == n && !memcmp(a->kw[i].name, p, n)) {
            *out = a->kw[i].v;
            return OK;
        }
    }
    return rt_fail(rt, E_INVAL, "format() has no argument '%.*s'", (int)(n < 40 ? n : 40), p);
}

static int m_format(struct jt_rt *rt, struct jt_val self, const struct jt_args *a,
                    struct jt_val *out)
{
    struct jt_str *s = self.s;
    const char *p = jt_str_flat(rt, s);
    struct chat_text *sb = jt_sb_open(rt);
    size_t next = 0, from = 0;
    for (size_t i = 0; i < s->len;) {
        if (p[i] != '{' && p[i] != '}') {
            i++;
            continue;
        }
        jt_sb_sub(rt, sb, s, from, i);
        if (i + 1 < s->len && p[i + 1] == p[i]) { /* {{ and }} */
            jt_sb_sub(rt, sb, s, i, i + 1);
            i = from = i + 2;
            continue;
        }
        const char *end = p[i] == '{' ? memchr(p + i, '}', s->len - i) : NULL;
        if (!end)
            return rt_fail(rt, E_INVAL, "a single brace in format()");
        struct jt_val v;
        TRY(field(rt, a, p + i + 1, (size_t)(end - p) - i - 1, &next, &v));
        TRY(jt_put(rt, sb, v));
        i = from = (size_t)(end - p) + 1;
    }
    jt_sb_sub(rt, sb, s, from, s->len);
    return jt_sb_close(rt, sb, out);
}

static int percent(struct jt_rt *rt, struct chat_text *sb, const char *spec, struct jt_val v)
{
    char conv = spec[strlen(spec) - 1], text[400], fmt[24];
    int64_t i = 0;
    int n = -1;
    if (conv == 's' && !spec[2])
        return jt_put(rt, sb, v);
    if (conv == 'r' && !spec[2])
        return jt_repr(rt, sb, v);
    if ((conv == 'd' || conv == 'i') && jt_is_num(v)) {
        if (v.t == JT_FLOAT && !(v.f > -9e18 && v.f < 9e18))
            return rt_fail(rt, E_INVAL, "%%d of a number beyond 64 bits");
        i = v.t == JT_FLOAT ? (int64_t)v.f : 0;
        jt_as_int(v, &i);
        snprintf(fmt, sizeof fmt, "%.*slld", (int)strlen(spec) - 1, spec);
        n = snprintf(text, sizeof text, fmt, (long long)i);
    } else if (conv == 'f' && jt_is_num(v)) {
        n = snprintf(text, sizeof text, spec, jt_num(v));
    } else if (strchr("sr", conv)) {
        return rt_fail(rt, E_UNSUPPORTED, "%% format '%s'", spec);
    } else {
        return rt_fail(rt, E_INVAL, "%% format '%s' of '%s'", spec, jt_type_name(v));
    }
    if (n < 0 || n >= (int)sizeof text)
        return rt_fail(rt, E_RANGE, "%% format '%s' is too wide", spec);
    jt_sb_push(sb, text, (size_t)n, JT_TEMPLATE);
    return OK;
}

static size_t span_of(const char *p, size_t i, size_t to, const char *set, size_t n)
{
    size_t k = i;
    while (k < to && memchr(set, p[k], n))
        k++;
    return k - i;
}

int rt_format(struct jt_rt *rt, struct jt_str *s, const struct jt_val *v, size_t n, bool tuple,
              struct jt_val *out)
{
    const char *p = jt_str_flat(rt, s);
    size_t from = 0, used = 0;
    struct chat_text *sb = jt_sb_open(rt);
    for (size_t i = 0; i < s->len;) {
        if (p[i] != '%') {
            i++;
            continue;
        }
        jt_sb_sub(rt, sb, s, from, i);
        size_t k = i + 1;
        k += span_of(p, k, s->len, "-+ 0", 4);
        k += span_of(p, k, s->len, "0123456789", 10);
        if (k < s->len && p[k] == '.')
            k += 1 + span_of(p, k + 1, s->len, "0123456789", 10);
        if (k < s->len && p[k] == '%' && k == i + 1) {
            jt_sb_lit(sb, "%");
        } else {
            char spec[12] = {0};
            size_t width = (k < s->len ? k + 1 : s->len) - i;
            memcpy(spec, p + i, width < sizeof spec - 1 ? width : sizeof spec - 1);
            if (k >= s->len || width >= sizeof spec || !memchr("sridf", p[k], 5))
                return rt_fail(rt, E_UNSUPPORTED, "%% format '%s'", spec);
            if (used >= n)
                return rt_fail(rt, E_INVAL, "more %% formats than values");
            TRY(percent(rt, sb, spec, v[used++]));
        }
        i = from = k + 1;
    }
    jt_sb_sub(rt, sb, s, from, s->len);
    if (used < n && (tuple || v[0].t != JT_DICT))
        return rt_fail(rt, E_INVAL, "more values than %% formats");
    return jt_sb_close(rt, sb, out);
}

const struct jt_method *jt_str_method_find(const char *name)
{
    /* clang-format off */
    static const struct jt_method table[] = {
        {"split", m_split}, {"strip", m_strip}, {"lstrip", m_lstrip}, {"rstrip", m_rstrip},
        {"startswith", m_startswith}, {"endswith", m_endswith}, {"replace", m_replace},
        {"upper", m_upper}, {"lower", m_lower}, {"title", m_title}, {"capitalize", m_capitalize},
        {"join", m_join}, {"format", m_format}, {"find", m_find}, {"rfind", m_rfind},
        {"index", m_index}, {"rindex", m_rindex}, {"count", m_count}, {"rsplit", m_rsplit},
        {"splitlines", m_splitlines}, {"partition", m_partition}, {"rpartition", m_rpartition},
        {"removeprefix", m_removeprefix}, {"removesuffix", m_removesuffix},
        {"isspace", m_isspace},
        {"casefold", NULL}, {"center", NULL}, {"encode", NULL}, {"expandtabs", NULL},
        {"format_map", NULL}, {"isalnum", NULL}, {"isalpha", NULL}, {"isascii", NULL},
        {"isdecimal", NULL}, {"isdigit", NULL}, {"isidentifier", NULL}, {"islower", NULL},
        {"isnumeric", NULL}, {"isprintable", NULL}, {"istitle", NULL}, {"isupper", NULL},
        {"ljust", NULL}, {"maketrans", NULL}, {"rjust", NULL}, {"swapcase", NULL},
        {"translate", NULL}, {"zfill", NULL},
    };
    /* clang-format on */
    for (size_t i = 0; i < ARRAY_LEN(table); i++)
        if (!strcmp(table[i].name, name))
            return &table[i];
    return NULL;
}
