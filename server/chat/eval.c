/* Expressions. A tree walk on the render's thread; every node is a step, every level is counted,
 * and the position of the innermost node names the place of an error. */
#include <math.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/limits.h"
#include "server/chat/runtime.h"

/* --- attributes and items --- */

static struct jt_val bound(struct jt_rt *rt, struct jt_val self, const struct jt_method *m)
{
    struct jt_func *f = jt_arena_alloc(&rt->arena, sizeof *f);
    *f = (struct jt_func){.name = m->name, .fn = m->fn, .self = self};
    return JT_V(JT_FUNC, fn, f);
}

static int undefined_error(struct jt_rt *rt, struct jt_val v)
{
    return rt_fail(rt, E_INVAL, "'%s' is undefined", v.name ? v.name : "value");
}

static int loop_attr(struct jt_rt *rt, struct jt_loop *l, const char *name, struct jt_val *out)
{
    int64_t n = (int64_t)(l->l ? l->l->n : l->r->n), i = (int64_t)l->i;
    static const struct {
        const char *name;
        int what;
    } attrs[] = {{"index0", 0},   {"index", 1},    {"first", 2},     {"last", 3},
                 {"length", 4},   {"revindex", 5}, {"revindex0", 6}, {"previtem", 7},
                 {"nextitem", 8}, {"depth", 9},    {"depth0", 10}};
    int what = -1;
    for (size_t k = 0; k < ARRAY_LEN(attrs); k++)
        if (!strcmp(attrs[k].name, name))
            what = attrs[k].what;
    int64_t other = what == 7 ? i - 1 : i + 1;
    switch (what) {
    case 0:
    case 1:
        *out = jt_int(i + what);
        break;
    case 2:
        *out = jt_bool(i == 0);
        break;
    case 3:
        *out = jt_bool(i + 1 >= n);
        break;
    case 4:
        *out = jt_int(n);
        break;
    case 5:
    case 6:
        *out = jt_int(n - i - (what - 5));
        break;
    case 7:
    case 8:
        *out = jt_undef(name);
        if (other >= 0 && other < n)
            *out = l->l ? l->l->v[other] : jt_int(l->r->from + other * l->r->step);
        break;
    case 9:
    case 10:
        *out = jt_int(10 - what);
        break;
    default: {
        const struct jt_method *m = jt_method_find(JT_V(JT_LOOP, loop, l), name);
        *out = m ? bound(rt, JT_V(JT_LOOP, loop, l), m) : jt_undef(name);
    }
    }
    return OK;
}

int rt_getattr(struct jt_rt *rt, struct jt_val obj, const char *name, struct jt_val *out)
{
    struct jt_val *v;
    const struct jt_method *m;
    switch (obj.t) {
    case JT_UNDEF:
        return undefined_error(rt, obj);
    case JT_LOOP:
        return loop_attr(rt, obj.loop, name, out);
    case JT_NS:
        v = jt_dict_name(rt, obj.d, name);
        *out = v ? *v : jt_undef(name);
        return OK;
    default:
        m = jt_method_find(obj, name);
        if (m) {
            *out = bound(rt, obj, m);
            return OK;
        }
        v = obj.t == JT_DICT ? jt_dict_name(rt, obj.d, name) : NULL;
        *out = v ? *v : jt_undef(name);
        return OK;
    }
}

static int by_index(struct jt_rt *rt, struct jt_val obj, int64_t i, struct jt_val *out)
{
    size_t n;
    if (obj.t == JT_STR) {
        const char *p = jt_str_flat(rt, obj.s);
        TRY(jt_len(rt, obj, &n));
        if (i < 0)
            i += (int64_t)n;
        if (i < 0 || i >= (int64_t)n)
            return 0;
        size_t from = jt_cp_offset(p, obj.s->len, (size_t)i);
        size_t to = from + jt_cp_offset(p + from, obj.s->len - from, 1);
        *out = jt_strv(jt_str_sub(rt, obj.s, from, to));
        return 1;
    }
    if (obj.t != JT_LIST && obj.t != JT_TUPLE && obj.t != JT_RANGE)
        return 0;
    n = obj.t == JT_RANGE ? obj.r->n : obj.l->n;
    if (i < 0)
        i += (int64_t)n;
    if (i < 0 || i >= (int64_t)n)
        return 0;
    *out = obj.t == JT_RANGE ? jt_int(obj.r->from + i * obj.r->step) : obj.l->v[i];
    return 1;
}

/* obj[key]: the item, else (for a string key) the attribute, else undefined. */
int rt_getitem(struct jt_rt *rt, struct jt_val obj, struct jt_val key, struct jt_val *out)
{
    struct jt_val *v = NULL;
    int64_t i;
    if (obj.t == JT_UNDEF)
        return undefined_error(rt, obj);
    if (obj.t == JT_DICT && key.t != JT_LIST && key.t != JT_DICT) {
        TRY(jt_dict_get(rt, obj.d, key, &v));
        if (v) {
            *out = *v;
            return OK;
        }
    } else if (jt_as_int(key, &i)) {
        int hit = by_index(rt, obj, i, out);
        if (hit)
            return hit < 0 ? hit : OK;
    }
    *out = jt_undef("item");
    if (key.t != JT_STR)
        return OK;
    size_t n = key.s->len < 200 ? key.s->len : 200;
    const char *name = jt_arena_strndup(&rt->arena, jt_str_flat(rt, key.s), n);
    if (obj.t == JT_DICT) {
        const struct jt_method *m = jt_method_find(obj, name);
        *out = m ? bound(rt, obj, m) : jt_undef(name);
        return OK;
    }
    return rt_getattr(rt, obj, name, out);
}

static int slice_bound(struct jt_rt *rt, struct jt_val v, int64_t n, int64_t step, int64_t unset,
                       int64_t *out)
{
    *out = unset;
    if (v.t == JT_UNSET || v.t == JT_NONE)
        return OK;
    if (v.t == JT_UNDEF)
        return undefined_error(rt, v);
    if (!jt_as_int(v, out))
        return rt_fail(rt, E_INVAL, "slice bounds are integers, not '%s'", jt_type_name(v));
    if (*out < 0)
        *out = *out + n < 0 ? (step < 0 ? -1 : 0) : *out + n;
    else if (*out >= n)
        *out = step < 0 ? n - 1 : n;
    return OK;
}

static int slice_str(struct jt_rt *rt, struct jt_str *s, int64_t from, int64_t to, int64_t step,
                     struct jt_val *out)
{
    const char *p = jt_str_flat(rt, s);
    if (step == 1) {
        size_t a = jt_cp_offset(p, s->len, (size_t)from);
        size_t b = to > from ? a + jt_cp_offset(p + a, s->len - a, (size_t)(to - from)) : a;
        *out = jt_strv(jt_str_sub(rt, s, a, b));
        return OK;
    }
    struct jt_list *chars;
    TRY(jt_items(rt, jt_strv(s), &chars));
    struct chat_text *sb = jt_sb_open(rt);
    for (int64_t i = from; step > 0 ? i < to : i > to; i += step)
        TRY(jt_sb_str(rt, sb, chars->v[i].s));
    return jt_sb_close(rt, sb, out);
}

static int overflow(struct jt_rt *rt)
{
    return rt_fail(rt, E_RANGE, "integer of more than 64 bits");
}

int rt_slice(struct jt_rt *rt, struct jt_val obj, const struct jt_val lim[3], struct jt_val *out)
{
    int64_t from, to, step = 1;
    size_t len;
    if (obj.t == JT_UNDEF)
        return undefined_error(rt, obj);
    if (obj.t != JT_STR && obj.t != JT_LIST && obj.t != JT_TUPLE && obj.t != JT_RANGE)
        return rt_fail(rt, E_INVAL, "'%s' cannot be sliced", jt_type_name(obj));
    if (lim[2].t != JT_UNSET && lim[2].t != JT_NONE && !jt_as_int(lim[2], &step))
        return rt_fail(rt, E_INVAL, "slice bounds are integers, not '%s'", jt_type_name(lim[2]));
    if (step == 0)
        return rt_fail(rt, E_INVAL, "slice step cannot be zero");
    TRY(jt_len(rt, obj, &len));
    int64_t n = (int64_t)len;
    if (step > n)
        step = n + 1;
    if (step < -n)
        step = -n - 1;
    TRY(slice_bound(rt, lim[0], n, step, step < 0 ? n - 1 : 0, &from));
    TRY(slice_bound(rt, lim[1], n, step, step < 0 ? -1 : n, &to));
    if (obj.t == JT_STR)
        return slice_str(rt, obj.s, from, to, step, out);
    if (obj.t == JT_RANGE) {
        struct jt_range *r = jt_arena_alloc(&rt->arena, sizeof *r);
        int64_t span = step > 0 ? to - from : from - to, by = step > 0 ? step : -step;
        r->n = span > 0 ? (size_t)((span + by - 1) / by) : 0;
        if (__builtin_mul_overflow(obj.r->step, step, &r->step) ||
            __builtin_mul_overflow(obj.r->step, from, &r->from) ||
            __builtin_add_overflow(obj.r->from, r->from, &r->from) ||
            __builtin_mul_overflow(obj.r->step, to, &r->to) ||
            __builtin_add_overflow(obj.r->from, r->to, &r->to))
            return overflow(rt);
        *out = JT_V(JT_RANGE, r, r);
        return OK;
    }
    struct jt_list *l = jt_list_new(rt, step == 1 && to > from ? (size_t)(to - from) : 0);
    for (int64_t i = from; step > 0 ? i < to : i > to; i += step)
        TRY(jt_list_push(rt, l, obj.l->v[i]));
    *out = JT_V(obj.t == JT_TUPLE ? JT_TUPLE : JT_LIST, l, l);
    return OK;
}

/* --- operators --- */

static int int_op(struct jt_rt *rt, int op, int64_t a, int64_t b, struct jt_val *out)
{
    int64_t r = 0;
    if ((op == '%' || op == OP_FLOORDIV || op == '/') && b == 0)
        return rt_fail(rt, E_INVAL, "division by zero");
    switch (op) {
    case '+':
        if (__builtin_add_overflow(a, b, &r))
            return overflow(rt);
        break;
    case '-':
        if (__builtin_sub_overflow(a, b, &r))
            return overflow(rt);
        break;
    case '*':
        if (__builtin_mul_overflow(a, b, &r))
            return overflow(rt);
        break;
    case '/':
        *out = jt_float((double)a / (double)b);
        return OK;
    case OP_FLOORDIV:
        if (b == -1) {
            if (__builtin_sub_overflow((int64_t)0, a, &r))
                return overflow(rt);
            break;
        }
        r = a / b - (a % b != 0 && (a < 0) != (b < 0));
        break;
    case '%':
        r = b == -1 ? 0 : a % b;
        if (r && (r < 0) != (b < 0))
            r += b;
        break;
    case OP_POW:
        if (b < 0) {
            if (a == 0)
                return rt_fail(rt, E_INVAL, "zero to a negative power");
            *out = jt_float(pow((double)a, (double)b));
            return OK;
        }
        for (r = 1; b; b >>= 1) {
            if ((b & 1) && __builtin_mul_overflow(r, a, &r))
                return overflow(rt);
            if (b > 1 && __builtin_mul_overflow(a, a, &a))
                return overflow(rt);
        }
        break;
    }
    *out = jt_int(r);
    return OK;
}

static double floor_div(double a, double b)
{
    double m = fmod(a, b), d = (a - m) / b;
    if (m != 0 && (m < 0) != (b < 0))
        d -= 1;
    if (d == 0)
        return copysign(0, a / b);
    double f = floor(d);
    return d - f > 0.5 ? f + 1 : f;
}

static int float_op(struct jt_rt *rt, int op, double a, double b, struct jt_val *out)
{
    double r = 0;
    if ((op == '%' || op == OP_FLOORDIV || op == '/') && b == 0)
        return rt_fail(rt, E_INVAL, "division by zero");
    switch (op) {
    case '+':
        r = a + b;
        break;
    case '-':
        r = a - b;
        break;
    case '*':
        r = a * b;
        break;
    case '/':
        r = a / b;
        break;
    case OP_FLOORDIV:
        r = floor_div(a, b);
        break;
    case '%':
        r = fmod(a, b);
        if (r != 0 && (r < 0) != (b < 0))
            r += b;
        else if (r == 0)
            r = copysign(0, b);
        break;
    case OP_POW:
        if (a < 0 && b != floor(b))
            return rt_fail(rt, E_UNSUPPORTED, "a root of a negative number");
        r = pow(a, b);
        break;
    }
    *out = jt_float(r);
    return OK;
}

static int repeat(struct jt_rt *rt, struct jt_val v, int64_t times, struct jt_val *out)
{
    if (times < 0)
        times = 0;
    if (v.t == JT_STR) {
        if (v.s->len && times > LIM_CHAT_OUTPUT / (int64_t)v.s->len)
            return rt_fail(rt, E_RANGE, "string of more than %d bytes", LIM_CHAT_OUTPUT);
        struct chat_text *sb = jt_sb_open(rt);
        for (int64_t i = 0; v.s->len && i < times; i++)
            TRY(jt_sb_str(rt, sb, v.s));
        return jt_sb_close(rt, sb, out);
    }
    struct jt_list *l = jt_list_new(rt, 0);
    size_t n = v.l->n;
    for (int64_t i = 0; n && i < times; i++)
        for (size_t k = 0; k < n; k++)
            TRY(jt_list_push(rt, l, v.l->v[k]));
    *out = JT_V(v.t, l, l);
    return OK;
}

static int add_lists(struct jt_rt *rt, struct jt_val a, struct jt_val b, struct jt_val *out)
{
    struct jt_list *l = jt_list_new(rt, a.l->n + b.l->n);
    for (size_t i = 0; i < a.l->n; i++)
        TRY(jt_list_push(rt, l, a.l->v[i]));
    for (size_t i = 0; i < b.l->n; i++)
        TRY(jt_list_push(rt, l, b.l->v[i]));
    *out = JT_V(a.t, l, l);
    return OK;
}

int rt_binary(struct jt_rt *rt, int op, struct jt_val a, struct jt_val b, struct jt_val *out)
{
    int64_t x, y;
    bool seq_a = a.t == JT_STR || a.t == JT_LIST || a.t == JT_TUPLE;
    bool seq_b = b.t == JT_STR || b.t == JT_LIST || b.t == JT_TUPLE;
    if (a.t == JT_STR && op == '%')
        return rt_format(rt, a.s, b.t == JT_TUPLE ? b.l->v : &b, b.t == JT_TUPLE ? b.l->n : 1,
                         b.t == JT_TUPLE, out);
    if (a.t == JT_UNDEF)
        return undefined_error(rt, a);
    if (b.t == JT_UNDEF)
        return undefined_error(rt, b);
    if (a.t == JT_STR && b.t == JT_STR && op == '+') {
        struct jt_str *s;
        TRY(jt_str_cat(rt, a.s, b.s, &s));
        *out = jt_strv(s);
        return OK;
    }
    if (jt_as_int(a, &x) && jt_as_int(b, &y))
        return int_op(rt, op, x, y, out);
    if (jt_is_num(a) && jt_is_num(b))
        return float_op(rt, op, jt_num(a), jt_num(b), out);
    if (seq_a && a.t == b.t && op == '+')
        return add_lists(rt, a, b, out);
    if (op == '*' && seq_a && jt_as_int(b, &y))
        return repeat(rt, a, y, out);
    if (op == '*' && seq_b && jt_as_int(a, &x))
        return repeat(rt, b, x, out);
    static const char *const names[] = {[OP_FLOORDIV] = "//", [OP_POW] = "**"};
    char one[2] = {(char)op, 0};
    return rt_fail(rt, E_INVAL, "operator %s does not take '%s' and '%s'",
                   op < 32 ? names[op] : one, jt_type_name(a), jt_type_name(b));
}

static int unary(struct jt_rt *rt, int op, struct jt_val a, struct jt_val *out)
{
    int64_t x;
    if (jt_as_int(a, &x))
        return int_op(rt, op, 0, x, out);
    if (a.t == JT_FLOAT) {
        *out = jt_float(op == '-' ? -a.f : a.f);
        return OK;
    }
    if (a.t == JT_UNDEF)
        return undefined_error(rt, a);
    return rt_fail(rt, E_INVAL, "a sign before '%s'", jt_type_name(a));
}

static int compare(struct jt_rt *rt, int op, struct jt_val a, struct jt_val b, bool *out)
{
    int c = 0, r;
    switch (op) {
    case OP_EQ:
    case OP_NE:
        TRY(jt_eq(rt, a, b, out));
        *out = *out == (op == OP_EQ);
        return OK;
    case OP_IN:
    case OP_NOTIN:
        TRY(jt_contains(rt, b, a, out));
        *out = *out == (op == OP_IN);
        return OK;
    }
    r = jt_order(rt, a, b, &c);
    if (r < 0)
        return r;
    *out = r == OK && (op == '<' ? c < 0 : op == '>' ? c > 0 : op == OP_LE ? c <= 0 : c >= 0);
    return OK;
}

/* --- nodes --- */

static int eval_compare(struct jt_rt *rt, const struct jt_node *n, struct jt_scope *sc,
                        struct jt_val *out)
{
    struct jt_val a, b;
    bool yes = true;
    TRY(rt_eval(rt, n->list[0], sc, &a));
    for (uint32_t i = 1; yes && i < n->n; i++) {
        TRY(rt_eval(rt, n->list[i], sc, &b));
        rt->pos = n->pos;
        TRY(compare(rt, n->ops[i - 1], a, b, &yes));
        a = b;
    }
    *out = jt_bool(yes);
    return OK;
}

static int eval_list(struct jt_rt *rt, const struct jt_node *n, struct jt_scope *sc,
                     struct jt_val *out)
{
    struct jt_list *l = jt_list_new(rt, n->n);
    for (uint32_t i = 0; i < n->n; i++) {
        struct jt_val v;
        TRY(rt_eval(rt, n->list[i], sc, &v));
        TRY(jt_list_push(rt, l, v));
    }
    *out = JT_V(n->kind == N_LIST ? JT_LIST : JT_TUPLE, l, l);
    return OK;
}

static int eval_dict(struct jt_rt *rt, const struct jt_node *n, struct jt_scope *sc,
                     struct jt_val *out)
{
    struct jt_dict *d = jt_dict_new(rt);
    for (uint32_t i = 0; i < n->n; i += 2) {
        struct jt_val k, v;
        TRY(rt_eval(rt, n->list[i], sc, &k));
        TRY(rt_eval(rt, n->list[i + 1], sc, &v));
        rt->pos = n->list[i]->pos;
        TRY(jt_dict_set(rt, d, k, v));
    }
    *out = JT_V(JT_DICT, d, d);
    return OK;
}

static int eval_concat(struct jt_rt *rt, const struct jt_node *n, struct jt_scope *sc,
                       struct jt_val *out)
{
    struct jt_str *all = NULL;
    for (uint32_t i = 0; i < n->n; i++) {
        struct jt_val v;
        struct jt_str *s;
        TRY(rt_eval(rt, n->list[i], sc, &v));
        rt->pos = n->list[i]->pos;
        TRY(jt_str_of(rt, v, &s));
        if (all)
            TRY(jt_str_cat(rt, all, s, &all));
        else
            all = s;
    }
    *out = jt_strv(all);
    return OK;
}

static int eval_args(struct jt_rt *rt, const struct jt_node *n, struct jt_scope *sc,
                     struct jt_args *a)
{
    struct jt_val *v = NULL;
    struct jt_kwarg *kw = NULL;
    if (n->n)
        v = jt_arena_alloc(&rt->arena, n->n * sizeof *v);
    if (n->n_kw)
        kw = jt_arena_alloc(&rt->arena, n->n_kw * sizeof *kw);
    for (uint32_t i = 0; i < n->n; i++)
        TRY(rt_eval(rt, n->list[i], sc, &v[i]));
    for (uint32_t i = 0; i < n->n_kw; i++) {
        kw[i].name = n->kw_name[i];
        TRY(rt_eval(rt, n->kw_v[i], sc, &kw[i].v));
    }
    *a = (struct jt_args){.v = v, .n = n->n, .kw = kw, .n_kw = n->n_kw};
    return OK;
}

static int call_method(struct jt_rt *rt, const struct jt_method *m, struct jt_val self,
                       const struct jt_args *a, struct jt_val *out)
{
    if (!m->fn)
        return rt_fail(rt, E_UNSUPPORTED, "method '%s' of '%s'", m->name, jt_type_name(self));
    return m->fn(rt, self, a, out);
}

static int eval_call(struct jt_rt *rt, const struct jt_node *n, struct jt_scope *sc,
                     struct jt_val *out)
{
    struct jt_val self, f;
    struct jt_args a;
    const struct jt_node *callee = n->a;
    if (callee->kind == N_ATTR) { /* the usual x.f(): no bound method is made */
        TRY(rt_eval(rt, callee->a, sc, &self));
        const struct jt_method *m =
            self.t == JT_UNDEF || self.t == JT_NS ? NULL : jt_method_find(self, callee->name);
        if (m) {
            TRY(eval_args(rt, n, sc, &a));
            rt->pos = callee->pos;
            return call_method(rt, m, self, &a, out);
        }
        rt->pos = callee->pos;
        TRY(rt_getattr(rt, self, callee->name, &f));
    } else {
        TRY(rt_eval(rt, callee, sc, &f));
    }
    TRY(eval_args(rt, n, sc, &a));
    rt->pos = callee->pos;
    return rt_call(rt, f, &a, out);
}

static int eval_filter(struct jt_rt *rt, const struct jt_node *n, struct jt_scope *sc,
                       struct jt_val *out)
{
    struct jt_val in;
    struct jt_args a;
    in = rt->block; /* the text of a filter or set block */
    if (n->a)
        TRY(rt_eval(rt, n->a, sc, &in));
    TRY(eval_args(rt, n, sc, &a));
    rt->pos = n->pos;
    return n->filter->fn(rt, in, &a, out);
}

static int eval_test(struct jt_rt *rt, const struct jt_node *n, struct jt_scope *sc,
                     struct jt_val *out)
{
    struct jt_val in;
    struct jt_args a;
    bool yes;
    TRY(rt_eval(rt, n->a, sc, &in));
    TRY(eval_args(rt, n, sc, &a));
    rt->pos = n->pos;
    TRY(n->test->fn(rt, in, &a, &yes));
    *out = jt_bool(yes != (bool)n->op);
    return OK;
}

static int eval_logic(struct jt_rt *rt, const struct jt_node *n, struct jt_scope *sc,
                      struct jt_val *out)
{
    for (uint32_t i = 0; i < n->n; i++) {
        TRY(rt_eval(rt, n->list[i], sc, out));
        if (jt_truth(*out) != (n->kind == N_AND))
            break;
    }
    return OK;
}

static int eval_slice(struct jt_rt *rt, const struct jt_node *n, struct jt_scope *sc,
                      struct jt_val *out)
{
    struct jt_val obj, lim[3] = {{0}, {0}, {0}};
    TRY(rt_eval(rt, n->a, sc, &obj));
    for (int i = 0; i < 3; i++)
        if (n->list[i])
            TRY(rt_eval(rt, n->list[i], sc, &lim[i]));
    rt->pos = n->pos;
    return rt_slice(rt, obj, lim, out);
}

static int eval_node(struct jt_rt *rt, const struct jt_node *n, struct jt_scope *sc,
                     struct jt_val *out)
{
    struct jt_val a, b;
    switch (n->kind) {
    case N_CONST:
        *out = n->value;
        return OK;
    case N_NAME:
        *out = rt_lookup(rt, sc, n->sym);
        return OK;
    case N_LIST:
    case N_TUPLE:
        return eval_list(rt, n, sc, out);
    case N_DICT:
        return eval_dict(rt, n, sc, out);
    case N_ATTR:
        TRY(rt_eval(rt, n->a, sc, &a));
        rt->pos = n->pos;
        return rt_getattr(rt, a, n->name, out);
    case N_ITEM:
        TRY(rt_eval(rt, n->a, sc, &a));
        TRY(rt_eval(rt, n->b, sc, &b));
        rt->pos = n->pos;
        return rt_getitem(rt, a, b, out);
    case N_SLICE:
        return eval_slice(rt, n, sc, out);
    case N_CALL:
        return eval_call(rt, n, sc, out);
    case N_FILTER:
        return eval_filter(rt, n, sc, out);
    case N_TEST:
        return eval_test(rt, n, sc, out);
    case N_UNARY:
        TRY(rt_eval(rt, n->a, sc, &a));
        rt->pos = n->pos;
        return unary(rt, n->op, a, out);
    case N_BINARY:
        TRY(rt_eval(rt, n->a, sc, &a));
        TRY(rt_eval(rt, n->b, sc, &b));
        rt->pos = n->pos;
        return rt_binary(rt, n->op, a, b, out);
    case N_AND:
    case N_OR:
        return eval_logic(rt, n, sc, out);
    case N_NOT:
        TRY(rt_eval(rt, n->a, sc, &a));
        *out = jt_bool(!jt_truth(a));
        return OK;
    case N_COMPARE:
        return eval_compare(rt, n, sc, out);
    case N_CONCAT:
        return eval_concat(rt, n, sc, out);
    case N_COND:
        TRY(rt_eval(rt, n->a, sc, &a));
        if (jt_truth(a))
            return rt_eval(rt, n->b, sc, out);
        *out = jt_undef("value of an inline if without else");
        return n->c ? rt_eval(rt, n->c, sc, out) : OK;
    }
    CHECK(false); /* a statement where an expression belongs */
    return E_INVAL;
}

int rt_eval(struct jt_rt *rt, const struct jt_node *n, struct jt_scope *sc, struct jt_val *out)
{
    rt->pos = n->pos;
    TRY(rt_step(rt, 0));
    TRY(rt_enter(rt));
    int ret = eval_node(rt, n, sc, out);
    rt->depth--;
    return ret;
}
