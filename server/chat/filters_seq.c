/* Filters of sequences and mappings. map, select, reject and their like give a generator: it can
 * be walked once and has no length, as in the original. */
#include <stdlib.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/limits.h"
#include "server/chat/runtime.h"

#define FILTER(name)                                                                               \
    static int f_##name(struct jt_rt *rt, struct jt_val in, const struct jt_args *a,               \
                        struct jt_val *out)

static struct jt_val generator(struct jt_list *l)
{
    l->what = "generator";
    return JT_V(JT_GEN, l, l);
}

/* A list of its own with the items of any iterable. */
static int copy_of(struct jt_rt *rt, struct jt_val in, struct jt_list **out)
{
    struct jt_list *l;
    TRY(jt_items(rt, in, &l));
    *out = jt_list_new(rt, l->n);
    for (size_t i = 0; i < l->n; i++)
        TRY(jt_list_push(rt, *out, l->v[i]));
    return OK;
}

/* Text without case, other values as they are. */
static int fold(struct jt_rt *rt, struct jt_val v, bool case_sensitive, struct jt_val *out)
{
    *out = v;
    return v.t == JT_STR && !case_sensitive ? jt_case(rt, v.s, JT_LOWER, out) : OK;
}

static int attr_or(struct jt_rt *rt, struct jt_val v, struct jt_val path, struct jt_val def,
                   struct jt_val *out)
{
    *out = v;
    if (path.t == JT_UNSET || path.t == JT_NONE)
        return OK;
    if (path.t != JT_STR) {
        TRY(rt_getitem(rt, v, path, out));
        if (out->t == JT_UNDEF && def.t != JT_UNSET)
            *out = def;
        return OK;
    }
    const char *p = jt_str_flat(rt, path.s);
    for (size_t i = 0; i <= path.s->len;) {
        size_t n = 0;
        bool digits = true;
        while (i + n < path.s->len && p[i + n] != '.') {
            digits = digits && p[i + n] >= '0' && p[i + n] <= '9';
            n++;
        }
        struct jt_val key = jt_strv(jt_str_sub(rt, path.s, i, i + n));
        if (digits && n && n < 10)
            key = jt_int(strtoll(jt_arena_strndup(&rt->arena, p + i, n), NULL, 10));
        TRY(rt_getitem(rt, *out, key, out));
        if (out->t == JT_UNDEF && def.t != JT_UNSET) /* at every part of the path */
            *out = def;
        i += n + 1;
    }
    return rt_step(rt, path.s->len);
}

int rt_attr_path(struct jt_rt *rt, struct jt_val v, struct jt_val path, struct jt_val *out)
{
    return attr_or(rt, v, path, (struct jt_val){0}, out);
}

/* --- sorting --- */

struct sort {
    struct jt_rt *rt;
    struct jt_val *k, *v, *tmp_k, *tmp_v;
    bool reverse;
};

/* Stable merge; a reversed order keeps equal items in their order, too. */
static int merge_sort(struct sort *s, size_t from, size_t to)
{
    size_t mid = from + (to - from) / 2, i = from, j = mid, n = from;
    if (to - from < 2)
        return OK;
    TRY(merge_sort(s, from, mid));
    TRY(merge_sort(s, mid, to));
    while (i < mid || j < to) {
        int c = 0;
        if (i == mid)
            c = 1;
        else if (j < to) {
            TRY(jt_order(s->rt, s->k[i], s->k[j], &c));
            c = s->reverse ? -c : c;
        }
        size_t take = j < to && c > 0 ? j++ : i++;
        s->tmp_k[n] = s->k[take];
        s->tmp_v[n++] = s->v[take];
        TRY(rt_step(s->rt, 0));
    }
    memcpy(s->k + from, s->tmp_k + from, (to - from) * sizeof *s->k);
    memcpy(s->v + from, s->tmp_v + from, (to - from) * sizeof *s->v);
    return OK;
}

int rt_sort(struct jt_rt *rt, struct jt_list *l, struct jt_val *keys, bool reverse)
{
    struct sort s = {.rt = rt, .k = keys, .v = l->v, .reverse = reverse};
    if (l->n < 2)
        return OK;
    s.tmp_k = jt_arena_alloc(&rt->arena, l->n * sizeof *s.tmp_k);
    s.tmp_v = jt_arena_alloc(&rt->arena, l->n * sizeof *s.tmp_v);
    return merge_sort(&s, 0, l->n);
}

FILTER(sort)
{
    struct jt_val v[3];
    struct jt_list *l;
    TRY(rt_args(rt, "sort", a, "reverse,case_sensitive,attribute", 0, v));
    TRY(copy_of(rt, in, &l));
    if (v[2].t == JT_STR && memchr(jt_str_flat(rt, v[2].s), ',', v[2].s->len))
        return rt_fail(rt, E_UNSUPPORTED, "'sort' by more than one attribute");
    struct jt_val *keys = jt_arena_alloc(&rt->arena, (l->n + 1) * sizeof *keys);
    for (size_t i = 0; i < l->n; i++) {
        TRY(rt_attr_path(rt, l->v[i], v[2], &keys[i]));
        TRY(fold(rt, keys[i], jt_truth(v[1]), &keys[i]));
    }
    TRY(rt_sort(rt, l, keys, jt_truth(v[0])));
    *out = JT_V(JT_LIST, l, l);
    return OK;
}

static int pairs_of(struct jt_rt *rt, struct jt_dict *d, struct jt_list **out)
{
    *out = jt_list_new(rt, d->n);
    for (size_t i = 0; i < d->n; i++) {
        struct jt_list *kv = jt_list_new(rt, 2);
        TRY(jt_list_push(rt, kv, d->e[i].k));
        TRY(jt_list_push(rt, kv, d->e[i].v));
        TRY(jt_list_push(rt, *out, JT_V(JT_TUPLE, l, kv)));
    }
    return OK;
}

FILTER(dictsort)
{
    struct jt_val v[3];
    struct jt_list *l;
    TRY(rt_args(rt, "dictsort", a, "case_sensitive,by,reverse", 0, v));
    if (in.t != JT_DICT)
        return rt_fail(rt, E_INVAL, "'dictsort' of '%s'", jt_type_name(in));
    bool by_value = v[1].t == JT_STR && jt_str_is(rt, v[1].s, "value");
    if (v[1].t != JT_UNSET && !by_value && !(v[1].t == JT_STR && jt_str_is(rt, v[1].s, "key")))
        return rt_fail(rt, E_INVAL, "'dictsort': by is \"key\" or \"value\"");
    TRY(pairs_of(rt, in.d, &l));
    struct jt_val *keys = jt_arena_alloc(&rt->arena, (l->n + 1) * sizeof *keys);
    for (size_t i = 0; i < l->n; i++)
        TRY(fold(rt, l->v[i].l->v[by_value], jt_truth(v[0]), &keys[i]));
    TRY(rt_sort(rt, l, keys, jt_truth(v[2])));
    *out = JT_V(JT_LIST, l, l);
    return OK;
}

/* --- access --- */

FILTER(items)
{
    struct jt_list *l = jt_list_new(rt, 0);
    TRY(rt_args(rt, "items", a, "", 0, NULL));
    if (in.t == JT_DICT)
        TRY(pairs_of(rt, in.d, &l));
    else if (in.t != JT_UNDEF)
        return rt_fail(rt, E_INVAL, "'items' of '%s'", jt_type_name(in));
    *out = generator(l);
    return OK;
}

FILTER(length)
{
    size_t n;
    TRY(rt_args(rt, "length", a, "", 0, NULL));
    TRY(jt_len(rt, in, &n));
    *out = jt_int((int64_t)n);
    return OK;
}

FILTER(first)
{
    struct jt_list *l;
    TRY(rt_args(rt, "first", a, "", 0, NULL));
    if (in.t == JT_STR) /* one character, not all of them */
        in.s = jt_str_sub(rt, in.s, 0, jt_cp_offset(jt_str_flat(rt, in.s), in.s->len, 1));
    TRY(jt_items(rt, in, &l));
    *out = l->n ? l->v[0] : jt_undef("first item of nothing");
    return OK;
}

FILTER(last)
{
    struct jt_list *l;
    TRY(rt_args(rt, "last", a, "", 0, NULL));
    if (in.t == JT_GEN)
        return rt_fail(rt, E_INVAL, "'last' of a generator");
    TRY(jt_items(rt, in, &l));
    *out = l->n ? l->v[l->n - 1] : jt_undef("last item of nothing");
    return OK;
}

FILTER(list)
{
    struct jt_list *l;
    TRY(rt_args(rt, "list", a, "", 0, NULL));
    TRY(copy_of(rt, in, &l));
    *out = JT_V(JT_LIST, l, l);
    return OK;
}

FILTER(reverse)
{
    struct jt_val all[3] = {{0}, {0}, jt_int(-1)};
    struct jt_list *l;
    TRY(rt_args(rt, "reverse", a, "", 0, NULL));
    if (in.t == JT_STR)
        return rt_slice(rt, in, all, out);
    TRY(copy_of(rt, in, &l));
    TRY(rt_slice(rt, JT_V(JT_LIST, l, l), all, out));
    *out = generator(out->l);
    return OK;
}

FILTER(join)
{
    struct jt_val v[2];
    struct jt_list *l, *parts;
    struct jt_str *sep;
    TRY(rt_args(rt, "join", a, "d,attribute", 0, v));
    TRY(jt_str_of(rt, v[0].t == JT_UNSET ? jt_text(rt, "") : v[0], &sep));
    TRY(jt_items(rt, in, &l));
    if (v[1].t == JT_UNSET || v[1].t == JT_NONE)
        return rt_join(rt, sep, l, out);
    parts = jt_list_new(rt, l->n);
    for (size_t i = 0; i < l->n; i++) {
        struct jt_val x;
        TRY(rt_attr_path(rt, l->v[i], v[1], &x));
        TRY(jt_list_push(rt, parts, x));
    }
    return rt_join(rt, sep, parts, out);
}

FILTER(unique)
{
    struct jt_val v[2], k, *hit;
    struct jt_list *l, *r = jt_list_new(rt, 0);
    struct jt_dict *seen = jt_dict_new(rt);
    TRY(rt_args(rt, "unique", a, "case_sensitive,attribute", 0, v));
    TRY(jt_items(rt, in, &l));
    for (size_t i = 0; i < l->n; i++) {
        TRY(rt_attr_path(rt, l->v[i], v[1], &k));
        TRY(fold(rt, k, jt_truth(v[0]), &k));
        TRY(jt_dict_get(rt, seen, k, &hit));
        if (hit)
            continue;
        TRY(jt_dict_set(rt, seen, k, jt_none()));
        TRY(jt_list_push(rt, r, l->v[i]));
    }
    *out = generator(r);
    return OK;
}

FILTER(sum)
{
    struct jt_val v[2], x;
    struct jt_list *l;
    TRY(rt_args(rt, "sum", a, "attribute,start", 0, v));
    TRY(jt_items(rt, in, &l));
    *out = v[1].t == JT_UNSET ? jt_int(0) : v[1];
    for (size_t i = 0; i < l->n; i++) {
        TRY(rt_attr_path(rt, l->v[i], v[0], &x));
        TRY(rt_binary(rt, '+', *out, x, out));
    }
    return OK;
}

static int extreme(struct jt_rt *rt, struct jt_val in, const struct jt_args *a, int sign,
                   struct jt_val *out)
{
    struct jt_val v[2], best, k;
    struct jt_list *l;
    int c;
    TRY(rt_args(rt, "min/max", a, "case_sensitive,attribute", 0, v));
    TRY(jt_items(rt, in, &l));
    *out = l->n ? l->v[0] : jt_undef("extreme of nothing");
    for (size_t i = 0; i < l->n; i++) {
        TRY(rt_attr_path(rt, l->v[i], v[1], &k));
        TRY(fold(rt, k, jt_truth(v[0]), &k));
        if (i) {
            TRY(jt_order(rt, k, best, &c));
            if (c * sign <= 0)
                continue;
        }
        best = k;
        *out = l->v[i];
    }
    return OK;
}

FILTER(min)
{
    return extreme(rt, in, a, -1, out);
}

FILTER(max)
{
    return extreme(rt, in, a, 1, out);
}

/* --- map and select --- */

static int map_attribute(struct jt_rt *rt, struct jt_list *l, const struct jt_args *a,
                         struct jt_list *r)
{
    struct jt_val v[2], x;
    TRY(rt_args(rt, "map", a, "attribute,default", 1, v));
    if (v[1].t == JT_NONE)
        v[1] = (struct jt_val){0};
    for (size_t i = 0; i < l->n; i++) {
        TRY(attr_or(rt, l->v[i], v[0], v[1], &x));
        TRY(jt_list_push(rt, r, x));
    }
    return OK;
}

FILTER(map)
{
    struct jt_list *l, *r = jt_list_new(rt, 0);
    struct jt_str *name = NULL;
    TRY(jt_items(rt, in, &l));
    *out = generator(r);
    if (!a->n)
        return map_attribute(rt, l, a, r);
    TRY(rt_arg_str(rt, "map", a->v[0], &name));
    const char *fname = jt_arena_strndup(&rt->arena, jt_str_flat(rt, name), name->len);
    const struct jt_filter *f = jt_filter_find(fname);
    if (!f || !f->fn)
        return rt_fail(rt, E_UNSUPPORTED, "filter '%.60s'", fname);
    struct jt_args rest = {.v = a->v + 1, .n = a->n - 1, .kw = a->kw, .n_kw = a->n_kw};
    TRY(rt_enter(rt));
    for (size_t i = 0; i < l->n; i++) {
        struct jt_val x;
        TRY(f->fn(rt, l->v[i], &rest, &x));
        TRY(jt_list_push(rt, r, x));
    }
    rt->depth--;
    return OK;
}

/* The items for which (the attribute of) the item passes the test, or is true without a test. */
static int choose(struct jt_rt *rt, struct jt_val in, const struct jt_args *a, bool keep, bool attr,
                  struct jt_val *out)
{
    struct jt_list *l, *r = jt_list_new(rt, 0);
    struct jt_str *name = NULL;
    const struct jt_test *t = NULL;
    size_t at = attr;
    if (attr && !a->n)
        return rt_fail(rt, E_INVAL, "the name of an attribute is missing");
    if (a->n > at) {
        TRY(rt_arg_str(rt, "select", a->v[at], &name));
        const char *tname = jt_arena_strndup(&rt->arena, jt_str_flat(rt, name), name->len);
        t = jt_test_find(tname);
        if (!t || !t->fn)
            return rt_fail(rt, E_UNSUPPORTED, "test '%.60s'", tname);
        at++;
    }
    struct jt_args rest = {
        .v = a->n ? a->v + at : NULL, .n = a->n - at, .kw = a->kw, .n_kw = a->n_kw};
    TRY(jt_items(rt, in, &l));
    for (size_t i = 0; i < l->n; i++) {
        struct jt_val x = l->v[i];
        if (attr)
            TRY(rt_attr_path(rt, x, a->v[0], &x));
        bool yes = jt_truth(x);
        if (t)
            TRY(t->fn(rt, x, &rest, &yes));
        if (yes == keep)
            TRY(jt_list_push(rt, r, l->v[i]));
    }
    *out = generator(r);
    return OK;
}

FILTER(select)
{
    return choose(rt, in, a, true, false, out);
}

FILTER(reject)
{
    return choose(rt, in, a, false, false, out);
}

FILTER(selectattr)
{
    return choose(rt, in, a, true, true, out);
}

FILTER(rejectattr)
{
    return choose(rt, in, a, false, true, out);
}

const struct jt_filter *jt_seq_filter_find(const char *name)
{
    /* clang-format off */
    static const struct jt_filter table[] = {
        {"items", f_items}, {"length", f_length}, {"count", f_length}, {"first", f_first},
        {"last", f_last}, {"list", f_list}, {"reverse", f_reverse}, {"join", f_join},
        {"unique", f_unique}, {"sum", f_sum}, {"min", f_min}, {"max", f_max}, {"map", f_map},
        {"select", f_select}, {"reject", f_reject}, {"selectattr", f_selectattr},
        {"rejectattr", f_rejectattr}, {"sort", f_sort}, {"dictsort", f_dictsort},
        {"attr", NULL}, {"batch", NULL}, {"center", NULL}, {"escape", NULL}, {"e", NULL},
        {"filesizeformat", NULL}, {"forceescape", NULL}, {"groupby", NULL}, {"pprint", NULL},
        {"random", NULL}, {"slice", NULL}, {"striptags", NULL}, {"truncate", NULL},
        {"urlencode", NULL}, {"urlize", NULL}, {"wordcount", NULL}, {"wordwrap", NULL},
        {"xmlattr", NULL},
    };
    /* clang-format on */
    for (size_t i = 0; i < ARRAY_LEN(table); i++)
        if (!strcmp(table[i].name, name))
            return &table[i];
    return NULL;
}
