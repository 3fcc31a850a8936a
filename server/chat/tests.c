/* Tests: what may stand after `is`, with Jinja2's answers (a string and a mapping are sequences,
 * a bool is a number but not an integer). Pure. */
#include <string.h>

#include "engine/base/check.h"
#include "server/chat/runtime.h"

#define TEST(name)                                                                                 \
    static int t_##name(struct jt_rt *rt, struct jt_val v, const struct jt_args *a, bool *out)

static int no_args(struct jt_rt *rt, const struct jt_args *a)
{
    if (a->n || a->n_kw)
        return rt_fail(rt, E_INVAL, "this test takes no argument");
    return OK;
}

/* A test that looks at one type or one expression. */
#define SIMPLE(name, expr)                                                                         \
    static int t_##name(struct jt_rt *rt, struct jt_val v, const struct jt_args *a, bool *out)     \
    {                                                                                              \
        TRY(no_args(rt, a));                                                                       \
        *out = (expr);                                                                             \
        return OK;                                                                                 \
    }

SIMPLE(defined, v.t != JT_UNDEF)
SIMPLE(undefined, v.t == JT_UNDEF)
SIMPLE(none, v.t == JT_NONE)
SIMPLE(boolean, v.t == JT_BOOL)
SIMPLE(true, v.t == JT_BOOL && v.b)
SIMPLE(false, v.t == JT_BOOL && !v.b)
SIMPLE(integer, v.t == JT_INT)
SIMPLE(float, v.t == JT_FLOAT)
SIMPLE(number, jt_is_num(v))
SIMPLE(string, v.t == JT_STR)
SIMPLE(mapping, v.t == JT_DICT)
SIMPLE(sequence, v.t == JT_STR || v.t == JT_LIST || v.t == JT_TUPLE || v.t == JT_DICT ||
                     v.t == JT_RANGE || v.t == JT_UNDEF)
SIMPLE(iterable, v.t == JT_STR || v.t == JT_LIST || v.t == JT_TUPLE || v.t == JT_DICT ||
                     v.t == JT_RANGE || v.t == JT_UNDEF || v.t == JT_VIEW || v.t == JT_GEN ||
                     v.t == JT_LOOP)
SIMPLE(callable,
       v.t == JT_FUNC || v.t == JT_MACRO || v.t == JT_UNDEF || v.t == JT_JOINER || v.t == JT_LOOP)

static int remainder_of(struct jt_rt *rt, struct jt_val v, int64_t by, bool *zero)
{
    struct jt_val r;
    TRY(rt_binary(rt, '%', v, jt_int(by), &r));
    return jt_eq(rt, r, jt_int(0), zero);
}

TEST(odd)
{
    struct jt_val r;
    TRY(no_args(rt, a));
    TRY(rt_binary(rt, '%', v, jt_int(2), &r));
    return jt_eq(rt, r, jt_int(1), out);
}

TEST(even)
{
    TRY(no_args(rt, a));
    return remainder_of(rt, v, 2, out);
}

TEST(divisibleby)
{
    struct jt_val x;
    int64_t by = 1;
    TRY(rt_args(rt, "divisibleby", a, "num", 1, &x));
    TRY(rt_arg_int(rt, "divisibleby", x, &by));
    return remainder_of(rt, v, by, out);
}

static int one(struct jt_rt *rt, const char *name, const struct jt_args *a, struct jt_val *x)
{
    return rt_args(rt, name, a, "other", 1, x);
}

TEST(eq)
{
    struct jt_val x;
    TRY(one(rt, "eq", a, &x));
    return jt_eq(rt, v, x, out);
}

TEST(ne)
{
    TRY(t_eq(rt, v, a, out));
    *out = !*out;
    return OK;
}

static int order(struct jt_rt *rt, struct jt_val v, const struct jt_args *a, int *c)
{
    struct jt_val x;
    TRY(one(rt, "comparison", a, &x));
    return jt_order(rt, v, x, c);
}

#define ORDER(name, expr)                                                                          \
    TEST(name)                                                                                     \
    {                                                                                              \
        int c = 0, r = order(rt, v, a, &c);                                                        \
        *out = r == OK && (expr);                                                                  \
        return r < 0 ? r : OK;                                                                     \
    }
ORDER(lt, c < 0)
ORDER(le, c <= 0)
ORDER(gt, c > 0)
ORDER(ge, c >= 0)

TEST(in)
{
    struct jt_val x;
    TRY(one(rt, "in", a, &x));
    return jt_contains(rt, x, v, out);
}

TEST(sameas)
{
    struct jt_val x;
    TRY(one(rt, "sameas", a, &x));
    *out = v.t == x.t;
    if (v.t == JT_BOOL)
        *out = *out && v.b == x.b;
    else if (v.t != JT_NONE)
        return rt_fail(rt, E_UNSUPPORTED, "test 'sameas' of '%s'", jt_type_name(v));
    return OK;
}

static int same_case(struct jt_rt *rt, struct jt_val v, enum jt_case how, bool *out)
{
    struct jt_str *s;
    struct jt_val r;
    TRY(jt_str_of(rt, v, &s));
    TRY(jt_case(rt, s, how, &r));
    *out = jt_str_eq(rt, s, r.s);
    const char *p = jt_str_flat(rt, s);
    bool cased = false;
    for (size_t i = 0; !cased && i < s->len; i++)
        cased = (unsigned char)p[i] >= 0x80 || ((p[i] | 32) >= 'a' && (p[i] | 32) <= 'z');
    *out = *out && cased;
    return OK;
}

TEST(lower)
{
    TRY(no_args(rt, a));
    return same_case(rt, v, JT_LOWER, out);
}

TEST(upper)
{
    TRY(no_args(rt, a));
    return same_case(rt, v, JT_UPPER, out);
}

TEST(filter)
{
    TRY(no_args(rt, a));
    const struct jt_filter *f = NULL;
    if (v.t == JT_STR)
        f = jt_filter_find(jt_arena_strndup(&rt->arena, jt_str_flat(rt, v.s), v.s->len));
    *out = f && f->fn;
    return OK;
}

TEST(test)
{
    TRY(no_args(rt, a));
    const struct jt_test *t = NULL;
    if (v.t == JT_STR)
        t = jt_test_find(jt_arena_strndup(&rt->arena, jt_str_flat(rt, v.s), v.s->len));
    *out = t && t->fn;
    return OK;
}

const struct jt_test *jt_test_find(const char *name)
{
    /* clang-format off */
    static const struct jt_test table[] = {
        {"defined", t_defined}, {"undefined", t_undefined}, {"none", t_none},
        {"boolean", t_boolean}, {"true", t_true}, {"false", t_false}, {"integer", t_integer},
        {"float", t_float}, {"number", t_number}, {"string", t_string}, {"mapping", t_mapping},
        {"sequence", t_sequence}, {"iterable", t_iterable}, {"callable", t_callable},
        {"odd", t_odd}, {"even", t_even}, {"divisibleby", t_divisibleby},
        {"eq", t_eq}, {"equalto", t_eq}, {"==", t_eq}, {"ne", t_ne}, {"!=", t_ne},
        {"lt", t_lt}, {"lessthan", t_lt}, {"<", t_lt}, {"le", t_le}, {"<=", t_le},
        {"gt", t_gt}, {"greaterthan", t_gt}, {">", t_gt}, {"ge", t_ge}, {">=", t_ge},
        {"in", t_in}, {"sameas", t_sameas}, {"lower", t_lower}, {"upper", t_upper},
        {"filter", t_filter}, {"test", t_test}, {"escaped", NULL},
    };
    /* clang-format on */
    for (size_t i = 0; i < ARRAY_LEN(table); i++)
        if (!strcmp(table[i].name, name))
            return &table[i];
    return NULL;
}
