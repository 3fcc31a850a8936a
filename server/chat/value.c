/* Lists, dicts, truth, equality and order with Python's rules. Used by one render at a time. */
#include <math.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "engine/limits.h"
#include "server/chat/runtime.h"

enum { DICT_SMALL = 8 };

struct jt_val jt_text(struct jt_rt *rt, const char *text)
{
    return jt_strv(jt_str_ref(rt, text, strlen(text), JT_TEMPLATE));
}

const char *jt_type_name(struct jt_val v)
{
    static const char *const names[] = {
        [JT_UNSET] = "nothing", [JT_UNDEF] = "Undefined", [JT_NONE] = "NoneType",
        [JT_BOOL] = "bool",     [JT_INT] = "int",         [JT_FLOAT] = "float",
        [JT_STR] = "str",       [JT_LIST] = "list",       [JT_TUPLE] = "tuple",
        [JT_DICT] = "dict",     [JT_RANGE] = "range",     [JT_VIEW] = "dict view",
        [JT_GEN] = "generator", [JT_NS] = "Namespace",    [JT_LOOP] = "LoopContext",
        [JT_FUNC] = "function", [JT_MACRO] = "Macro",     [JT_CYCLER] = "Cycler",
        [JT_JOINER] = "Joiner",
    };
    return names[v.t];
}

bool jt_truth(struct jt_val v)
{
    switch (v.t) {
    case JT_UNSET:
    case JT_UNDEF:
    case JT_NONE:
        return false;
    case JT_BOOL:
        return v.b;
    case JT_INT:
        return v.i != 0;
    case JT_FLOAT:
        return v.f != 0;
    case JT_STR:
        return v.s->len != 0;
    case JT_LIST:
    case JT_TUPLE:
    case JT_VIEW:
        return v.l->n != 0;
    case JT_DICT:
        return v.d->n != 0;
    case JT_RANGE:
        return v.r->n != 0;
    default:
        return true;
    }
}

bool jt_is_num(struct jt_val v)
{
    return v.t == JT_BOOL || v.t == JT_INT || v.t == JT_FLOAT;
}

double jt_num(struct jt_val v)
{
    return v.t == JT_BOOL ? v.b : v.t == JT_INT ? (double)v.i : v.f;
}

bool jt_as_int(struct jt_val v, int64_t *out)
{
    if (v.t != JT_BOOL && v.t != JT_INT)
        return false;
    *out = v.t == JT_BOOL ? v.b : v.i;
    return true;
}

static int num_cmp(struct jt_val a, struct jt_val b, bool *unordered)
{
    int64_t x, y;
    *unordered = false;
    if (jt_as_int(a, &x) && jt_as_int(b, &y))
        return x < y ? -1 : x > y;
    double f = jt_num(a), g = jt_num(b);
    if (isnan(f) || isnan(g)) {
        *unordered = true;
        return 1;
    }
    if (f == g && a.t != b.t && fabs(f) < 0x1p62) { /* an int beyond 2^53 beside a float */
        x = a.t == JT_FLOAT ? (int64_t)a.f : jt_as_int(a, &x) ? x : 0;
        y = b.t == JT_FLOAT ? (int64_t)b.f : jt_as_int(b, &y) ? y : 0;
        return x < y ? -1 : x > y;
    }
    return f < g ? -1 : f > g;
}

/* --- lists --- */

struct jt_list *jt_list_new(struct jt_rt *rt, size_t cap)
{
    struct jt_list *l = jt_arena_zero(&rt->arena, sizeof *l);
    if (cap) {
        l->v = jt_arena_alloc(&rt->arena, cap * sizeof *l->v);
        l->cap = cap;
    }
    return l;
}

int jt_list_push(struct jt_rt *rt, struct jt_list *l, struct jt_val v)
{
    if (l->n == l->cap) {
        if (l->n >= LIM_CHAT_ITEMS)
            return rt_fail(rt, E_RANGE, "list of more than %d items", LIM_CHAT_ITEMS);
        size_t cap = l->cap ? l->cap * 2 : 4;
        struct jt_val *n = jt_arena_alloc(&rt->arena, cap * sizeof *n);
        if (l->n)
            memcpy(n, l->v, l->n * sizeof *n);
        l->v = n;
        l->cap = cap;
    }
    l->v[l->n++] = v;
    return rt_step(rt, 0);
}

static int chars_of(struct jt_rt *rt, struct jt_str *s, struct jt_list *l)
{
    const char *p = jt_str_flat(rt, s);
    for (size_t i = 0; i < s->len;) {
        size_t n = jt_cp_offset(p + i, s->len - i, 1);
        TRY(jt_list_push(rt, l, jt_strv(jt_str_sub(rt, s, i, i + n))));
        i += n;
    }
    return OK;
}

int jt_items(struct jt_rt *rt, struct jt_val v, struct jt_list **out)
{
    struct jt_list *l = NULL;
    switch (v.t) {
    case JT_LIST:
    case JT_TUPLE:
    case JT_VIEW:
        *out = v.l;
        return OK;
    case JT_GEN: /* walked once: the second walk finds nothing */
        l = jt_list_new(rt, 0);
        *out = v.l->what ? v.l : l;
        if (v.l->what) {
            *l = *v.l;
            l->what = NULL;
            *out = l;
            v.l->what = NULL;
        }
        return OK;
    case JT_UNDEF:
        *out = jt_list_new(rt, 0);
        return OK;
    case JT_STR:
        l = jt_list_new(rt, 0);
        TRY(chars_of(rt, v.s, l));
        break;
    case JT_DICT:
        l = jt_list_new(rt, v.d->n);
        for (size_t i = 0; i < v.d->n; i++)
            TRY(jt_list_push(rt, l, v.d->e[i].k));
        break;
    case JT_RANGE:
        l = jt_list_new(rt, v.r->n);
        for (size_t i = 0; i < v.r->n; i++)
            TRY(jt_list_push(rt, l, jt_int(v.r->from + (int64_t)i * v.r->step)));
        break;
    default:
        return rt_fail(rt, E_INVAL, "'%s' cannot be iterated", jt_type_name(v));
    }
    *out = l;
    return OK;
}

int jt_len(struct jt_rt *rt, struct jt_val v, size_t *out)
{
    switch (v.t) {
    case JT_UNDEF:
        *out = 0;
        return OK;
    case JT_STR:
        TRY(rt_step(rt, v.s->len * 4)); /* counting characters is slower than copying */
        *out = utf8_count(jt_str_flat(rt, v.s), v.s->len);
        return OK;
    case JT_LIST:
    case JT_TUPLE:
    case JT_VIEW:
        *out = v.l->n;
        return OK;
    case JT_DICT:
        *out = v.d->n;
        return OK;
    case JT_RANGE:
        *out = v.r->n;
        return OK;
    case JT_LOOP:
        *out = v.loop->l ? v.loop->l->n : v.loop->r->n;
        return OK;
    default:
        return rt_fail(rt, E_INVAL, "'%s' has no length", jt_type_name(v));
    }
}

/* --- comparison --- */

static int list_eq(struct jt_rt *rt, const struct jt_list *a, const struct jt_list *b, bool *out)
{
    *out = a->n == b->n;
    for (size_t i = 0; *out && i < a->n; i++)
        TRY(jt_eq(rt, a->v[i], b->v[i], out));
    return OK;
}

static int dict_eq(struct jt_rt *rt, struct jt_dict *a, struct jt_dict *b, bool *out)
{
    *out = a->n == b->n;
    for (size_t i = 0; *out && i < a->n; i++) {
        struct jt_val *v;
        TRY(jt_dict_get(rt, b, a->e[i].k, &v));
        *out = v != NULL;
        if (v)
            TRY(jt_eq(rt, a->e[i].v, *v, out));
    }
    return OK;
}

int jt_eq(struct jt_rt *rt, struct jt_val a, struct jt_val b, bool *out)
{
    bool nan;
    int ret = OK;
    if (jt_is_num(a) && jt_is_num(b)) {
        *out = num_cmp(a, b, &nan) == 0;
        return OK;
    }
    *out = false;
    if (a.t != b.t)
        return OK;
    TRY(rt_enter(rt));
    switch (a.t) {
    case JT_UNSET:
    case JT_UNDEF:
    case JT_NONE:
        *out = true;
        break;
    case JT_STR:
        *out = jt_str_eq(rt, a.s, b.s);
        break;
    case JT_LIST:
    case JT_TUPLE:
        ret = list_eq(rt, a.l, b.l, out);
        break;
    case JT_DICT:
        ret = dict_eq(rt, a.d, b.d, out);
        break;
    case JT_RANGE:
        *out = a.r->n == b.r->n &&
               (!a.r->n || (a.r->from == b.r->from && (a.r->n == 1 || a.r->step == b.r->step)));
        break;
    default: /* identity; every member is a pointer */
        *out = a.l == b.l;
    }
    rt->depth--;
    return ret;
}

int jt_order(struct jt_rt *rt, struct jt_val a, struct jt_val b, int *out)
{
    bool nan;
    if (jt_is_num(a) && jt_is_num(b)) {
        *out = num_cmp(a, b, &nan);
        return nan ? 1 : OK; /* 1: every order comparison is false */
    }
    if (a.t == JT_STR && b.t == JT_STR) {
        *out = jt_str_cmp(rt, a.s, b.s);
        return rt_step(rt, 0);
    }
    if ((a.t == JT_LIST || a.t == JT_TUPLE) && a.t == b.t) {
        size_t n = a.l->n < b.l->n ? a.l->n : b.l->n;
        int ret = OK;
        TRY(rt_enter(rt));
        for (size_t i = 0; i < n; i++) {
            bool same;
            TRY(jt_eq(rt, a.l->v[i], b.l->v[i], &same));
            if (same)
                continue;
            ret = jt_order(rt, a.l->v[i], b.l->v[i], out);
            rt->depth--;
            return ret;
        }
        rt->depth--;
        *out = a.l->n < b.l->n ? -1 : a.l->n > b.l->n;
        return OK;
    }
    if (a.t == JT_UNDEF || b.t == JT_UNDEF)
        return rt_fail(rt, E_INVAL, "'%s' is undefined",
                       a.t == JT_UNDEF && a.name   ? a.name
                       : b.t == JT_UNDEF && b.name ? b.name
                                                   : "value");
    return rt_fail(rt, E_INVAL, "'%s' and '%s' cannot be ordered", jt_type_name(a),
                   jt_type_name(b));
}

int jt_contains(struct jt_rt *rt, struct jt_val box, struct jt_val x, bool *out)
{
    struct jt_val *hit;
    *out = false;
    if (box.t == JT_STR) {
        if (x.t != JT_STR)
            return rt_fail(rt, E_INVAL, "'in <string>' wants a string, not '%s'", jt_type_name(x));
        TRY(rt_step(rt, box.s->len));
        const char *p = jt_str_flat(rt, box.s), *q = jt_str_flat(rt, x.s);
        *out = !x.s->len || memmem(p, box.s->len, q, x.s->len) != NULL;
        return OK;
    }
    if (box.t == JT_DICT) {
        TRY(jt_dict_get(rt, box.d, x, &hit));
        *out = hit != NULL;
        return OK;
    }
    if (box.t == JT_RANGE) {
        int64_t i;
        if (x.t == JT_FLOAT && x.f == floor(x.f) && fabs(x.f) < 0x1p53)
            x = jt_int((int64_t)x.f);
        if (!jt_as_int(x, &i) || !box.r->n)
            return OK;
        int64_t last = box.r->from + (int64_t)(box.r->n - 1) * box.r->step;
        *out = box.r->step > 0 ? i >= box.r->from && i <= last : i <= box.r->from && i >= last;
        *out = *out && (i - box.r->from) % box.r->step == 0;
        return OK;
    }
    struct jt_list *l;
    TRY(jt_items(rt, box, &l));
    for (size_t i = 0; !*out && i < l->n; i++) {
        TRY(rt_step(rt, 0));
        TRY(jt_eq(rt, l->v[i], x, out));
    }
    return OK;
}

/* --- dicts --- */

static int hash_of(struct jt_rt *rt, struct jt_val k, uint64_t *out)
{
    uint64_t h = 1469598103934665603ull ^ (uintptr_t)rt * 0x9e3779b97f4a7c15ull;
    int64_t i;
    switch (k.t) {
    case JT_STR: {
        const char *p = jt_str_flat(rt, k.s);
        TRY(rt_step(rt, k.s->len));
        for (size_t j = 0; j < k.s->len; j++)
            h = (h ^ (unsigned char)p[j]) * 1099511628211ull;
        break;
    }
    case JT_TUPLE:
        for (size_t j = 0; j < k.l->n; j++) {
            uint64_t x;
            TRY(rt_enter(rt));
            TRY(hash_of(rt, k.l->v[j], &x));
            rt->depth--;
            h = (h ^ x) * 1099511628211ull;
        }
        break;
    case JT_BOOL:
    case JT_INT:
    case JT_FLOAT: /* 1, 1.0 and True are one key */
        if (k.t == JT_FLOAT) {
            i = k.f == floor(k.f) && fabs(k.f) < 0x1p62 ? (int64_t)k.f : 0;
            if ((double)i != k.f)
                memcpy(&i, &k.f, sizeof i);
        } else {
            jt_as_int(k, &i);
        }
        h ^= (uint64_t)i * 0x9e3779b97f4a7c15ull;
        break;
    case JT_LIST:
    case JT_DICT:
        return rt_fail(rt, E_INVAL, "'%s' cannot be a key", jt_type_name(k));
    case JT_UNDEF:
    case JT_NONE:
        break;
    default:
        h ^= (uintptr_t)k.l;
    }
    *out = h ^ h >> 29;
    return OK;
}

static void index_put(struct jt_dict *d, size_t i)
{
    size_t at = d->e[i].hash & (d->n_index - 1);
    while (d->index[at])
        at = (at + 1) & (d->n_index - 1);
    d->index[at] = (uint32_t)i + 1;
}

static void index_build(struct jt_rt *rt, struct jt_dict *d)
{
    if (d->n < DICT_SMALL) {
        d->n_index = 0;
        return;
    }
    size_t want = d->n_index ? d->n_index : 32;
    while (want < d->n * 2)
        want *= 2;
    if (want != d->n_index) {
        d->index = jt_arena_alloc(&rt->arena, want * sizeof *d->index);
        d->n_index = want;
    }
    memset(d->index, 0, want * sizeof *d->index);
    for (size_t i = 0; i < d->n; i++)
        index_put(d, i);
}

struct jt_dict *jt_dict_new(struct jt_rt *rt)
{
    return jt_arena_zero(&rt->arena, sizeof(struct jt_dict));
}

/* Entry number, or d->n when absent. */
static int find(struct jt_rt *rt, struct jt_dict *d, struct jt_val k, uint64_t *hash, size_t *out)
{
    bool same;
    TRY(hash_of(rt, k, hash));
    *out = d->n;
    if (!d->n_index) {
        for (size_t i = 0; i < d->n; i++) {
            if (d->e[i].hash != *hash)
                continue;
            TRY(jt_eq(rt, d->e[i].k, k, &same));
            if (same) {
                *out = i;
                return OK;
            }
        }
        return OK;
    }
    for (size_t at = *hash & (d->n_index - 1); d->index[at]; at = (at + 1) & (d->n_index - 1)) {
        size_t i = d->index[at] - 1;
        TRY(rt_step(rt, 0));
        if (d->e[i].hash != *hash)
            continue;
        TRY(jt_eq(rt, d->e[i].k, k, &same));
        if (same) {
            *out = i;
            return OK;
        }
    }
    return OK;
}

int jt_dict_get(struct jt_rt *rt, struct jt_dict *d, struct jt_val k, struct jt_val **out)
{
    uint64_t h;
    size_t i;
    TRY(find(rt, d, k, &h, &i));
    *out = i < d->n ? &d->e[i].v : NULL;
    return OK;
}

int jt_dict_set(struct jt_rt *rt, struct jt_dict *d, struct jt_val k, struct jt_val v)
{
    uint64_t h;
    size_t i;
    TRY(find(rt, d, k, &h, &i));
    if (i < d->n) {
        d->e[i].v = v;
        return OK;
    }
    if (d->n == d->cap) {
        if (d->n >= LIM_CHAT_ITEMS)
            return rt_fail(rt, E_RANGE, "dict of more than %d items", LIM_CHAT_ITEMS);
        size_t cap = d->cap ? d->cap * 2 : 4;
        struct jt_ent *n = jt_arena_alloc(&rt->arena, cap * sizeof *n);
        if (d->n)
            memcpy(n, d->e, d->n * sizeof *n);
        d->e = n;
        d->cap = cap;
    }
    d->e[d->n++] = (struct jt_ent){k, v, h};
    if (d->n_index && d->n * 2 <= d->n_index)
        index_put(d, d->n - 1);
    else
        index_build(rt, d);
    return rt_step(rt, 0);
}

int jt_dict_del(struct jt_rt *rt, struct jt_dict *d, struct jt_val k)
{
    uint64_t h;
    size_t i;
    TRY(find(rt, d, k, &h, &i));
    if (i == d->n)
        return 0;
    memmove(d->e + i, d->e + i + 1, (d->n - i - 1) * sizeof *d->e);
    d->n--;
    index_build(rt, d);
    TRY(rt_step(rt, d->n * sizeof *d->e));
    return 1;
}

struct jt_val *jt_dict_name(struct jt_rt *rt, struct jt_dict *d, const char *name)
{
    for (size_t i = 0; i < d->n && !d->n_index; i++)
        if (d->e[i].k.t == JT_STR && jt_str_is(rt, d->e[i].k.s, name))
            return &d->e[i].v;
    struct jt_val *v = NULL;
    if (d->n_index && jt_dict_get(rt, d, jt_text(rt, name), &v) < 0)
        return NULL;
    return v;
}

int jt_from_json(struct jt_rt *rt, json_t *j, enum jt_origin o, struct jt_val *out)
{
    struct jt_val v;
    TRY(rt_enter(rt));
    TRY(rt_step(rt, 0));
    switch (json_typeof(j)) {
    case JSON_OBJECT: {
        const char *key;
        json_t *x;
        *out = JT_V(JT_DICT, d, jt_dict_new(rt));
        json_object_foreach(j, key, x)
        {
            TRY(jt_from_json(rt, x, o, &v));
            TRY(jt_dict_set(rt, out->d, jt_strv(jt_str_ref(rt, key, strlen(key), o)), v));
        }
        break;
    }
    case JSON_ARRAY: {
        size_t n = json_array_size(j);
        *out = JT_V(JT_LIST, l, jt_list_new(rt, n < LIM_CHAT_ITEMS ? n : 0));
        for (size_t i = 0; i < n; i++) {
            TRY(jt_from_json(rt, json_array_get(j, i), o, &v));
            TRY(jt_list_push(rt, out->l, v));
        }
        break;
    }
    case JSON_STRING:
        *out = jt_strv(jt_str_ref(rt, json_string_value(j), json_string_length(j), o));
        break;
    case JSON_INTEGER:
        *out = jt_int(json_integer_value(j));
        break;
    case JSON_REAL:
        *out = jt_float(json_real_value(j));
        break;
    case JSON_TRUE:
    case JSON_FALSE:
        *out = jt_bool(json_is_true(j));
        break;
    case JSON_NULL:
        *out = jt_none();
        break;
    }
    rt->depth--;
    return OK;
}

int jt_own(struct jt_rt *rt, struct jt_val *v)
{
    TRY(rt_enter(rt));
    if (v->t == JT_STR) {
        TRY(rt_step(rt, v->s->len));
        v->s->p = jt_arena_strndup(&rt->arena, v->s->p, v->s->len);
    } else if (v->t == JT_LIST) {
        for (size_t i = 0; i < v->l->n; i++)
            TRY(jt_own(rt, &v->l->v[i]));
    } else if (v->t == JT_DICT) {
        for (size_t i = 0; i < v->d->n; i++) {
            TRY(jt_own(rt, &v->d->e[i].k));
            TRY(jt_own(rt, &v->d->e[i].v));
        }
    }
    rt->depth--;
    return OK;
}
