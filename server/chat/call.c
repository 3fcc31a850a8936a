/* Calls: arguments of builtins, global functions, and the methods of values that are not strings.
 */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "engine/base/check.h"
#include "engine/limits.h"
#include "server/chat/runtime.h"

/* --- arguments --- */

/* Which of the comma-separated names it is; -1 for none. */
static int name_index(const char *names, const char *name)
{
    size_t n = strlen(name);
    for (int i = 0; *names; i++) {
        size_t k = strcspn(names, ",");
        if (k == n && !memcmp(names, name, n))
            return i;
        names += k + (names[k] == ',');
    }
    return -1;
}

int rt_args(struct jt_rt *rt, const char *fn, const struct jt_args *a, const char *names,
            size_t need, struct jt_val *v)
{
    size_t n = *names ? 1 : 0;
    for (const char *s = names; *s; s++)
        n += *s == ',';
    if (a->n > n)
        return rt_fail(rt, E_INVAL, "'%s' takes at most %zu arguments, not %zu", fn, n, a->n);
    for (size_t i = 0; i < n; i++)
        v[i] = i < a->n ? a->v[i] : (struct jt_val){0};
    for (size_t i = 0; i < a->n_kw; i++) {
        int k = name_index(names, a->kw[i].name);
        if (k < 0)
            return rt_fail(rt, E_INVAL, "'%s' takes no argument '%s'", fn, a->kw[i].name);
        if (v[k].t != JT_UNSET)
            return rt_fail(rt, E_INVAL, "'%s' gets '%s' twice", fn, a->kw[i].name);
        v[k] = a->kw[i].v;
    }
    for (size_t i = 0; i < need; i++)
        if (v[i].t == JT_UNSET)
            return rt_fail(rt, E_INVAL, "'%s' wants at least %zu arguments", fn, need);
    return OK;
}

int rt_arg_int(struct jt_rt *rt, const char *fn, struct jt_val v, int64_t *out)
{
    if (v.t == JT_UNSET || jt_as_int(v, out))
        return OK;
    return rt_fail(rt, E_INVAL, "'%s' wants an integer, not '%s'", fn, jt_type_name(v));
}

int rt_arg_str(struct jt_rt *rt, const char *fn, struct jt_val v, struct jt_str **out)
{
    if (v.t == JT_UNSET)
        return OK;
    if (v.t != JT_STR)
        return rt_fail(rt, E_INVAL, "'%s' wants a string, not '%s'", fn, jt_type_name(v));
    *out = v.s;
    return OK;
}

/* --- global functions --- */

static int fn_namespace(struct jt_rt *rt, struct jt_val self, const struct jt_args *a,
                        struct jt_val *out)
{
    struct jt_dict *d = jt_dict_new(rt);
    (void)self;
    if (a->n > 1 || (a->n && a->v[0].t != JT_DICT))
        return rt_fail(rt, E_INVAL, "namespace() takes keyword arguments");
    for (size_t i = 0; a->n && i < a->v[0].d->n; i++)
        TRY(jt_dict_set(rt, d, a->v[0].d->e[i].k, a->v[0].d->e[i].v));
    for (size_t i = 0; i < a->n_kw; i++)
        TRY(jt_dict_set(rt, d, jt_text(rt, a->kw[i].name), a->kw[i].v));
    *out = JT_V(JT_NS, d, d);
    return OK;
}

/* Adds what dict() and update() take: a mapping or pairs, then keywords. */
static int dict_fill(struct jt_rt *rt, struct jt_dict *d, const struct jt_args *a, const char *fn)
{
    if (a->n > 1)
        return rt_fail(rt, E_INVAL, "'%s' takes at most one positional argument", fn);
    if (a->n && a->v[0].t == JT_DICT) {
        for (size_t i = 0; i < a->v[0].d->n; i++)
            TRY(jt_dict_set(rt, d, a->v[0].d->e[i].k, a->v[0].d->e[i].v));
    } else if (a->n) {
        struct jt_list *l, *kv;
        TRY(jt_items(rt, a->v[0], &l));
        for (size_t i = 0; i < l->n; i++) {
            TRY(jt_items(rt, l->v[i], &kv));
            if (kv->n != 2)
                return rt_fail(rt, E_INVAL, "'%s' wants pairs", fn);
            TRY(jt_dict_set(rt, d, kv->v[0], kv->v[1]));
        }
    }
    for (size_t i = 0; i < a->n_kw; i++)
        TRY(jt_dict_set(rt, d, jt_text(rt, a->kw[i].name), a->kw[i].v));
    return OK;
}

static int fn_dict(struct jt_rt *rt, struct jt_val self, const struct jt_args *a,
                   struct jt_val *out)
{
    struct jt_dict *d = jt_dict_new(rt);
    (void)self;
    TRY(dict_fill(rt, d, a, "dict"));
    *out = JT_V(JT_DICT, d, d);
    return OK;
}

static int fn_range(struct jt_rt *rt, struct jt_val self, const struct jt_args *a,
                    struct jt_val *out)
{
    int64_t from = 0, to = 0, step = 1;
    (void)self;
    if (a->n_kw || a->n < 1 || a->n > 3)
        return rt_fail(rt, E_INVAL, "range() takes one to three positional arguments");
    TRY(rt_arg_int(rt, "range", a->v[0], a->n == 1 ? &to : &from));
    if (a->n > 1)
        TRY(rt_arg_int(rt, "range", a->v[1], &to));
    if (a->n > 2)
        TRY(rt_arg_int(rt, "range", a->v[2], &step));
    if (step == 0)
        return rt_fail(rt, E_INVAL, "range() with step 0");
    __int128 span = (__int128)to - from, n = 0;
    if ((step > 0 && span > 0) || (step < 0 && span < 0))
        n = (span + step - (step > 0 ? 1 : -1)) / step;
    if (n > LIM_CHAT_RANGE)
        return rt_fail(rt, E_RANGE, "range of more than %d items", LIM_CHAT_RANGE);
    struct jt_range *r = jt_arena_alloc(&rt->arena, sizeof *r);
    *r = (struct jt_range){.from = from, .to = to, .step = step, .n = (size_t)n};
    *out = JT_V(JT_RANGE, r, r);
    return OK;
}

static int fn_raise(struct jt_rt *rt, struct jt_val self, const struct jt_args *a,
                    struct jt_val *out)
{
    struct jt_val v;
    struct jt_str *s;
    (void)self;
    (void)out;
    TRY(rt_args(rt, "raise_exception", a, "message", 1, &v));
    TRY(jt_str_of(rt, v, &s));
    char text[380];
    size_t n = s->len < sizeof text - 1 ? s->len : sizeof text - 1;
    memcpy(text, jt_str_flat(rt, s), n);
    while (n && n < s->len && ((unsigned char)text[n] & 0xc0) == 0x80)
        n--;
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)text[i] < 0x20)
            text[i] = ' ';
    text[n] = 0;
    return FAIL(rt->e, E_INVAL, "%s", text);
}

static int fn_strftime(struct jt_rt *rt, struct jt_val self, const struct jt_args *a,
                       struct jt_val *out)
{
    struct jt_val v;
    struct jt_str *fmt = NULL;
    char text[512], f[128];
    struct tm tm;
    time_t now = time(NULL);
    (void)self;
    TRY(rt_args(rt, "strftime_now", a, "format", 1, &v));
    TRY(rt_arg_str(rt, "strftime_now", v, &fmt));
    if (fmt->len >= sizeof f)
        return rt_fail(rt, E_RANGE, "time format of more than %zu bytes", sizeof f - 1);
    memcpy(f, jt_str_flat(rt, fmt), fmt->len);
    f[fmt->len] = 0;
    localtime_r(&now, &tm);
    text[0] = 0;
    size_t n = strftime(text, sizeof text, f, &tm);
    *out = jt_strv(jt_str_dup(rt, text, n, fmt->origin == JT_TEMPLATE ? JT_TEMPLATE : JT_REQUEST));
    return OK;
}

static int fn_cycler(struct jt_rt *rt, struct jt_val self, const struct jt_args *a,
                     struct jt_val *out)
{
    struct jt_list *l = jt_list_new(rt, a->n);
    (void)self;
    if (!a->n || a->n_kw)
        return rt_fail(rt, E_INVAL, "cycler() wants at least one item");
    for (size_t i = 0; i < a->n; i++)
        TRY(jt_list_push(rt, l, a->v[i]));
    *out = JT_V(JT_CYCLER, l, l);
    return OK;
}

/* A joiner's value is a small list: its separator, and `at` once it was called. */
static int fn_joiner(struct jt_rt *rt, struct jt_val self, const struct jt_args *a,
                     struct jt_val *out)
{
    struct jt_val v;
    struct jt_list *l = jt_list_new(rt, 1);
    (void)self;
    TRY(rt_args(rt, "joiner", a, "sep", 0, &v));
    TRY(jt_list_push(rt, l, v.t == JT_UNSET ? jt_text(rt, ", ") : v));
    *out = JT_V(JT_JOINER, l, l);
    return OK;
}

const struct jt_builtin *jt_builtin_find(const char *name)
{
    static const struct jt_builtin table[] = {
        {"namespace", fn_namespace},   {"range", fn_range}, {"raise_exception", fn_raise},
        {"strftime_now", fn_strftime}, {"dict", fn_dict},   {"cycler", fn_cycler},
        {"joiner", fn_joiner},         {"lipsum", NULL},
    };
    for (size_t i = 0; i < ARRAY_LEN(table); i++)
        if (!strcmp(table[i].name, name))
            return &table[i];
    return NULL;
}

int rt_call(struct jt_rt *rt, struct jt_val f, const struct jt_args *a, struct jt_val *out)
{
    switch (f.t) {
    case JT_MACRO:
        return rt_exec_macro(rt, f.m, a, out);
    case JT_FUNC:
        if (!f.fn->fn)
            return rt_fail(rt, E_UNSUPPORTED, "'%s'", f.fn->name);
        return f.fn->fn(rt, f.fn->self, a, out);
    case JT_JOINER:
        *out = f.l->at ? f.l->v[0] : jt_text(rt, "");
        f.l->at = 1;
        return OK;
    case JT_UNDEF:
        return rt_fail(rt, E_INVAL, "'%s' is undefined", f.name ? f.name : "value");
    case JT_LOOP:
        return rt_fail(rt, E_UNSUPPORTED, "recursive loop");
    default:
        return rt_fail(rt, E_INVAL, "'%s' cannot be called", jt_type_name(f));
    }
}

/* --- methods of dict --- */

static int m_get(struct jt_rt *rt, struct jt_val self, const struct jt_args *a, struct jt_val *out)
{
    struct jt_val v[2], *hit;
    TRY(rt_args(rt, "get", a, "key,default", 1, v));
    TRY(jt_dict_get(rt, self.d, v[0], &hit));
    *out = hit ? *hit : v[1].t == JT_UNSET ? jt_none() : v[1];
    return OK;
}

static int view(struct jt_rt *rt, struct jt_val self, const struct jt_args *a, const char *name,
                struct jt_val *out)
{
    struct jt_list *l = jt_list_new(rt, self.d->n);
    TRY(rt_args(rt, name + 5, a, "", 0, NULL));
    for (size_t i = 0; i < self.d->n; i++) {
        struct jt_val v = name[5] == 'k' ? self.d->e[i].k : self.d->e[i].v;
        if (name[5] == 'i') {
            struct jt_list *kv = jt_list_new(rt, 2);
            TRY(jt_list_push(rt, kv, self.d->e[i].k));
            TRY(jt_list_push(rt, kv, self.d->e[i].v));
            v = JT_V(JT_TUPLE, l, kv);
        }
        TRY(jt_list_push(rt, l, v));
    }
    l->what = name;
    *out = JT_V(JT_VIEW, l, l);
    return OK;
}

static int m_items(struct jt_rt *rt, struct jt_val self, const struct jt_args *a,
                   struct jt_val *out)
{
    return view(rt, self, a, "dict_items", out);
}

static int m_keys(struct jt_rt *rt, struct jt_val self, const struct jt_args *a, struct jt_val *out)
{
    return view(rt, self, a, "dict_keys", out);
}

static int m_values(struct jt_rt *rt, struct jt_val self, const struct jt_args *a,
                    struct jt_val *out)
{
    return view(rt, self, a, "dict_values", out);
}

static int m_update(struct jt_rt *rt, struct jt_val self, const struct jt_args *a,
                    struct jt_val *out)
{
    *out = jt_none();
    if (a->n && a->v[0].t == JT_DICT && a->v[0].d == self.d)
        return OK;
    return dict_fill(rt, self.d, a, "update");
}

static int m_dict_pop(struct jt_rt *rt, struct jt_val self, const struct jt_args *a,
                      struct jt_val *out)
{
    struct jt_val v[2], *hit;
    TRY(rt_args(rt, "pop", a, "key,default", 1, v));
    TRY(jt_dict_get(rt, self.d, v[0], &hit));
    if (!hit && v[1].t == JT_UNSET)
        return rt_fail(rt, E_INVAL, "pop() of a key that is not there");
    *out = hit ? *hit : v[1];
    int r = jt_dict_del(rt, self.d, v[0]);
    return r < 0 ? r : OK;
}

static int m_setdefault(struct jt_rt *rt, struct jt_val self, const struct jt_args *a,
                        struct jt_val *out)
{
    struct jt_val v[2], *hit;
    TRY(rt_args(rt, "setdefault", a, "key,default", 1, v));
    TRY(jt_dict_get(rt, self.d, v[0], &hit));
    *out = hit ? *hit : v[1].t == JT_UNSET ? jt_none() : v[1];
    return hit ? OK : jt_dict_set(rt, self.d, v[0], *out);
}

static int m_dict_copy(struct jt_rt *rt, struct jt_val self, const struct jt_args *a,
                       struct jt_val *out)
{
    struct jt_args one = {.v = &self, .n = 1};
    TRY(rt_args(rt, "copy", a, "", 0, NULL));
    return fn_dict(rt, self, &one, out);
}

/* --- methods of list --- */

static int m_append(struct jt_rt *rt, struct jt_val self, const struct jt_args *a,
                    struct jt_val *out)
{
    struct jt_val v;
    TRY(rt_args(rt, "append", a, "object", 1, &v));
    *out = jt_none();
    return jt_list_push(rt, self.l, v);
}

static int m_extend(struct jt_rt *rt, struct jt_val self, const struct jt_args *a,
                    struct jt_val *out)
{
    struct jt_val v;
    struct jt_list *l;
    TRY(rt_args(rt, "extend", a, "iterable", 1, &v));
    TRY(jt_items(rt, v, &l));
    for (size_t i = 0, n = l->n; i < n; i++)
        TRY(jt_list_push(rt, self.l, l->v[i]));
    *out = jt_none();
    return OK;
}

static int m_insert(struct jt_rt *rt, struct jt_val self, const struct jt_args *a,
                    struct jt_val *out)
{
    struct jt_val v[2];
    int64_t i = 0, n = (int64_t)self.l->n;
    TRY(rt_args(rt, "insert", a, "index,object", 2, v));
    TRY(rt_arg_int(rt, "insert", v[0], &i));
    i = i < -n ? 0 : i < 0 ? i + n : i > n ? n : i;
    TRY(jt_list_push(rt, self.l, v[1]));
    memmove(self.l->v + i + 1, self.l->v + i, (size_t)(n - i) * sizeof *self.l->v);
    self.l->v[i] = v[1];
    *out = jt_none();
    return rt_step(rt, (size_t)(n - i) * sizeof *self.l->v);
}

static int m_list_pop(struct jt_rt *rt, struct jt_val self, const struct jt_args *a,
                      struct jt_val *out)
{
    struct jt_val v;
    int64_t i = -1, n = (int64_t)self.l->n;
    TRY(rt_args(rt, "pop", a, "index", 0, &v));
    TRY(rt_arg_int(rt, "pop", v, &i));
    if (i < 0)
        i += n;
    if (i < 0 || i >= n)
        return rt_fail(rt, E_INVAL, "pop() beyond a list of %lld items", (long long)n);
    *out = self.l->v[i];
    memmove(self.l->v + i, self.l->v + i + 1, (size_t)(n - i - 1) * sizeof *self.l->v);
    self.l->n--;
    return rt_step(rt, (size_t)(n - i) * sizeof *self.l->v);
}

/* Where x is in the list; n when it is not. */
static int list_find(struct jt_rt *rt, const struct jt_list *l, struct jt_val x, size_t *out)
{
    bool same = false;
    for (*out = 0; *out < l->n; ++*out) {
        TRY(rt_step(rt, 0));
        TRY(jt_eq(rt, l->v[*out], x, &same));
        if (same)
            break;
    }
    return OK;
}

static int m_index(struct jt_rt *rt, struct jt_val self, const struct jt_args *a,
                   struct jt_val *out)
{
    struct jt_val v;
    size_t i;
    TRY(rt_args(rt, "index", a, "value", 1, &v));
    TRY(list_find(rt, self.l, v, &i));
    if (i == self.l->n)
        return rt_fail(rt, E_INVAL, "index() of a value that is not there");
    *out = jt_int((int64_t)i);
    return OK;
}

static int m_remove(struct jt_rt *rt, struct jt_val self, const struct jt_args *a,
                    struct jt_val *out)
{
    struct jt_val v, i;
    TRY(m_index(rt, self, a, &i));
    struct jt_args at = {.v = &i, .n = 1};
    TRY(m_list_pop(rt, self, &at, &v));
    *out = jt_none();
    return OK;
}

static int m_list_count(struct jt_rt *rt, struct jt_val self, const struct jt_args *a,
                        struct jt_val *out)
{
    struct jt_val v;
    int64_t n = 0;
    TRY(rt_args(rt, "count", a, "value", 1, &v));
    for (size_t i = 0; i < self.l->n; i++) {
        bool same;
        TRY(rt_step(rt, 0));
        TRY(jt_eq(rt, self.l->v[i], v, &same));
        n += same;
    }
    *out = jt_int(n);
    return OK;
}

static int m_reverse(struct jt_rt *rt, struct jt_val self, const struct jt_args *a,
                     struct jt_val *out)
{
    struct jt_list *l = self.l;
    TRY(rt_args(rt, "reverse", a, "", 0, NULL));
    for (size_t i = 0; i + i + 1 < l->n; i++) {
        struct jt_val t = l->v[i];
        l->v[i] = l->v[l->n - 1 - i];
        l->v[l->n - 1 - i] = t;
    }
    *out = jt_none();
    return rt_step(rt, l->n * sizeof *l->v);
}

static int m_clear(struct jt_rt *rt, struct jt_val self, const struct jt_args *a,
                   struct jt_val *out)
{
    TRY(rt_args(rt, "clear", a, "", 0, NULL));
    if (self.t == JT_LIST)
        self.l->n = 0;
    else
        *self.d = (struct jt_dict){0};
    *out = jt_none();
    return OK;
}

static int m_list_copy(struct jt_rt *rt, struct jt_val self, const struct jt_args *a,
                       struct jt_val *out)
{
    TRY(rt_args(rt, "copy", a, "", 0, NULL));
    struct jt_val all[3] = {{0}, {0}, {0}};
    return rt_slice(rt, self, all, out);
}

/* --- loop and cycler --- */

static int m_cycle(struct jt_rt *rt, struct jt_val self, const struct jt_args *a,
                   struct jt_val *out)
{
    if (!a->n || a->n_kw)
        return rt_fail(rt, E_INVAL, "loop.cycle() wants at least one item");
    *out = a->v[self.loop->i % a->n];
    return OK;
}

static int m_changed(struct jt_rt *rt, struct jt_val self, const struct jt_args *a,
                     struct jt_val *out)
{
    struct jt_list *now = jt_list_new(rt, a->n);
    bool same = false;
    for (size_t i = 0; i < a->n; i++)
        TRY(jt_list_push(rt, now, a->v[i]));
    struct jt_val v = JT_V(JT_TUPLE, l, now);
    if (self.loop->changed.t != JT_UNSET)
        TRY(jt_eq(rt, self.loop->changed, v, &same));
    self.loop->changed = v;
    *out = jt_bool(!same);
    return OK;
}

static int m_next(struct jt_rt *rt, struct jt_val self, const struct jt_args *a, struct jt_val *out)
{
    TRY(rt_args(rt, "next", a, "", 0, NULL));
    *out = self.l->v[self.l->at];
    self.l->at = (self.l->at + 1) % self.l->n;
    return OK;
}

static int m_reset(struct jt_rt *rt, struct jt_val self, const struct jt_args *a,
                   struct jt_val *out)
{
    TRY(rt_args(rt, "reset", a, "", 0, NULL));
    self.l->at = 0;
    *out = jt_none();
    return OK;
}

/* clang-format off */
static const struct jt_method dict_methods[] = {
    {"get", m_get}, {"items", m_items}, {"keys", m_keys}, {"values", m_values},
    {"update", m_update}, {"pop", m_dict_pop}, {"setdefault", m_setdefault},
    {"copy", m_dict_copy}, {"clear", m_clear}, {"fromkeys", NULL}, {"popitem", NULL}, {NULL, NULL},
};
static const struct jt_method list_methods[] = {
    {"append", m_append}, {"pop", m_list_pop}, {"extend", m_extend}, {"insert", m_insert},
    {"index", m_index}, {"remove", m_remove}, {"count", m_list_count}, {"reverse", m_reverse},
    {"clear", m_clear}, {"copy", m_list_copy}, {"sort", NULL}, {NULL, NULL},
};
static const struct jt_method tuple_methods[] = {
    {"index", m_index}, {"count", m_list_count}, {NULL, NULL},
};
static const struct jt_method loop_methods[] = {
    {"cycle", m_cycle}, {"changed", m_changed}, {NULL, NULL},
};
static const struct jt_method cycler_methods[] = {
    {"next", m_next}, {"reset", m_reset}, {"current", NULL}, {NULL, NULL},
};
/* Attributes that Python has and a template could reach: refused when used. */
static const struct jt_method number_methods[] = {
    {"real", NULL}, {"imag", NULL}, {"numerator", NULL}, {"denominator", NULL},
    {"bit_length", NULL}, {"conjugate", NULL}, {"is_integer", NULL}, {"hex", NULL}, {NULL, NULL},
};
/* clang-format on */

const struct jt_method *jt_method_find(struct jt_val self, const char *name)
{
    const struct jt_method *m;
    switch (self.t) {
    case JT_STR:
        return jt_str_method_find(name);
    case JT_DICT:
        m = dict_methods;
        break;
    case JT_LIST:
        m = list_methods;
        break;
    case JT_TUPLE:
        m = tuple_methods;
        break;
    case JT_LOOP:
        m = loop_methods;
        break;
    case JT_CYCLER:
        m = cycler_methods;
        break;
    case JT_BOOL:
    case JT_INT:
    case JT_FLOAT:
        m = number_methods;
        break;
    default:
        return NULL;
    }
    for (; m->name; m++)
        if (!strcmp(m->name, name))
            return m;
    return NULL;
}
