/* Filters of one value: text, numbers, JSON. Those of sequences are in filters_seq.c. A filter
 * that takes text converts its value as str() does, undefined being empty, like the original. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/limits.h"
#include "server/chat/runtime.h"

#define FILTER(name)                                                                               \
    static int f_##name(struct jt_rt *rt, struct jt_val in, const struct jt_args *a,               \
                        struct jt_val *out)

FILTER(default)
{
    struct jt_val v[2];
    TRY(rt_args(rt, "default", a, "default_value,boolean", 0, v));
    *out = in;
    if (in.t == JT_UNDEF || (jt_truth(v[1]) && !jt_truth(in)))
        *out = v[0].t == JT_UNSET ? jt_text(rt, "") : v[0];
    return OK;
}

static int cased(struct jt_rt *rt, const char *fn, struct jt_val in, const struct jt_args *a,
                 enum jt_case how, struct jt_val *out)
{
    struct jt_str *s;
    TRY(rt_args(rt, fn, a, "", 0, NULL));
    TRY(jt_str_of(rt, in, &s));
    return jt_case(rt, s, how, out);
}

FILTER(upper)
{
    return cased(rt, "upper", in, a, JT_UPPER, out);
}

FILTER(lower)
{
    return cased(rt, "lower", in, a, JT_LOWER, out);
}

FILTER(capitalize)
{
    return cased(rt, "capitalize", in, a, JT_CAPITALIZE, out);
}

/* Words begin after white space and ( { [ < -, which is not what the method title() does. */
FILTER(title)
{
    struct jt_str *s;
    TRY(rt_args(rt, "title", a, "", 0, NULL));
    TRY(jt_str_of(rt, in, &s));
    const char *p = jt_str_flat(rt, s);
    struct chat_text *sb = jt_sb_open(rt);
    TRY(rt_step(rt, s->len));
    for (size_t i = 0; i < s->len;) {
        size_t from = i, n, first;
        while (i < s->len && ((n = jt_space_head(p + i, s->len - i)) || strchr("-({[<", p[i])))
            i += n ? n : 1;
        jt_sb_sub(rt, sb, s, from, i);
        if (i == s->len)
            break;
        from = i;
        first = jt_cp_offset(p + i, s->len - i, 1);
        while (i < s->len && !strchr("-({[<", p[i])) {
            n = jt_cp_offset(p + i, s->len - i, 1);
            if (jt_space_head(p + i, n))
                break;
            i += n;
        }
        struct jt_val head, tail;
        TRY(jt_case(rt, jt_str_sub(rt, s, from, from + first), JT_UPPER, &head));
        TRY(jt_case(rt, jt_str_sub(rt, s, from + first, i), JT_LOWER, &tail));
        TRY(jt_sb_str(rt, sb, head.s));
        TRY(jt_sb_str(rt, sb, tail.s));
    }
    return jt_sb_close(rt, sb, out);
}

FILTER(string)
{
    struct jt_str *s;
    TRY(rt_args(rt, "string", a, "", 0, NULL));
    TRY(jt_str_of(rt, in, &s));
    *out = jt_strv(s);
    return OK;
}

FILTER(safe)
{
    return f_string(rt, in, a, out);
}

FILTER(trim)
{
    struct jt_val v;
    struct jt_str *s, *chars = NULL;
    TRY(rt_args(rt, "trim", a, "chars", 0, &v));
    if (v.t != JT_NONE)
        TRY(rt_arg_str(rt, "trim", v, &chars));
    TRY(jt_str_of(rt, in, &s));
    return rt_strip(rt, s, chars, true, true, out);
}

FILTER(replace)
{
    struct jt_val v[3];
    struct jt_str *s, *old, *with;
    int64_t count = -1;
    TRY(rt_args(rt, "replace", a, "old,new,count", 2, v));
    TRY(jt_str_of(rt, in, &s));
    TRY(jt_str_of(rt, v[0], &old));
    TRY(jt_str_of(rt, v[1], &with));
    if (v[2].t != JT_NONE)
        TRY(rt_arg_int(rt, "replace", v[2], &count));
    return rt_replace(rt, s, old, with, count, out);
}

FILTER(format)
{
    struct jt_str *s;
    if (a->n && a->n_kw)
        return rt_fail(rt, E_INVAL, "'format' takes positional or keyword arguments, not both");
    if (a->n_kw)
        return rt_fail(rt, E_UNSUPPORTED, "'format' with keyword arguments");
    TRY(jt_str_of(rt, in, &s));
    return rt_format(rt, s, a->v, a->n, true, out);
}

FILTER(indent)
{
    struct jt_val v[3], lines, spaces;
    struct jt_str *s;
    TRY(rt_args(rt, "indent", a, "width,first,blank", 0, v));
    if (in.t != JT_STR)
        return rt_fail(rt, E_INVAL, "'indent' of '%s'", jt_type_name(in));
    if (v[0].t == JT_UNSET)
        v[0] = jt_int(4);
    spaces = v[0];
    if (v[0].t != JT_STR)
        TRY(rt_binary(rt, '*', jt_text(rt, " "), v[0], &spaces));
    TRY(jt_str_cat(rt, in.s, jt_text(rt, "\n").s, &s));
    struct jt_args none = {0};
    TRY(jt_str_method_find("splitlines")->fn(rt, jt_strv(s), &none, &lines));
    struct chat_text *sb = jt_sb_open(rt);
    for (size_t i = 0; i < lines.l->n; i++) {
        struct jt_str *line = lines.l->v[i].s;
        if (i)
            jt_sb_lit(sb, "\n");
        if (i ? line->len || jt_truth(v[2]) : jt_truth(v[1]))
            TRY(jt_sb_str(rt, sb, spaces.s));
        TRY(jt_sb_str(rt, sb, line));
    }
    return jt_sb_close(rt, sb, out);
}

/* --- JSON --- */

FILTER(tojson)
{
    struct jt_val v[4], sep;
    struct jt_json_opts o = {0};
    TRY(rt_args(rt, "tojson", a, "ensure_ascii,indent,separators,sort_keys", 0, v));
    o.ascii = jt_truth(v[0]);
    o.sort = jt_truth(v[3]);
    o.indented = v[1].t != JT_UNSET && v[1].t != JT_NONE;
    o.item_sep = jt_text(rt, o.indented ? "," : ", ").s;
    o.key_sep = jt_text(rt, ": ").s;
    if (v[1].t == JT_STR) {
        o.indent = v[1].s;
    } else if (o.indented) {
        TRY(rt_binary(rt, '*', jt_text(rt, " "), v[1], &sep));
        o.indent = sep.s;
    }
    if (v[2].t != JT_UNSET && v[2].t != JT_NONE) {
        struct jt_list *l;
        TRY(jt_items(rt, v[2], &l));
        if (l->n != 2 || l->v[0].t != JT_STR || l->v[1].t != JT_STR)
            return rt_fail(rt, E_INVAL, "'tojson': separators are two strings");
        o.item_sep = l->v[0].s;
        o.key_sep = l->v[1].s;
    }
    struct chat_text *sb = jt_sb_open(rt);
    TRY(jt_tojson(rt, sb, in, &o, 0));
    return jt_sb_close(rt, sb, out);
}

/* The strings of parsed text are the request's as soon as one byte of the text was. */
FILTER(from_json)
{
    json_t *j = NULL;
    struct jt_val v;
    TRY(rt_args(rt, "from_json", a, "", 0, NULL));
    if (in.t != JT_STR)
        return rt_fail(rt, E_INVAL, "'from_json' of '%s'", jt_type_name(in));
    const char *p = jt_str_flat(rt, in.s);
    TRY(rt_step(rt, in.s->len * 4));
    struct err e = {0};
    if (js_parse(&j, p, in.s->len, "text", &e) < 0)
        return rt_fail(rt, E_INVAL, "from_json: %s", e.text);
    /* its strings are copied: the tree goes at once */
    int ret = jt_from_json(rt, j, in.s->origin == JT_TEMPLATE ? JT_TEMPLATE : JT_REQUEST, &v);
    if (ret == OK)
        ret = jt_own(rt, &v);
    json_decref(j);
    if (ret == OK)
        *out = v;
    return ret;
}

/* --- numbers --- */

/* Python's int("..."): sign, digits of the base, white space around. */
static bool parse_int(struct jt_rt *rt, struct jt_str *s, int base, int64_t *out)
{
    char t[80], *end;
    const char *p = jt_str_flat(rt, s);
    size_t from = jt_space_head(p, s->len), n = s->len - from;
    n -= jt_space_tail(p + from, n);
    if (!n || n >= sizeof t)
        return false;
    memcpy(t, p + from, n);
    t[n] = 0;
    size_t k = t[0] == '-' || t[0] == '+';
    if (t[k] == ' ' || t[k] == '-' || t[k] == '+' || strlen(t) != n || t[k] == 0)
        return false;
    if (t[k] == '0' && (t[k + 1] | 32) == 'o' && base == 8)
        memmove(t + k, t + k + 2, n - k - 1);
    if (t[k] == '0' && (t[k + 1] | 32) == 'b' && base == 2)
        memmove(t + k, t + k + 2, n - k - 1);
    long long x = strtoll(t, &end, base);
    *out = x;
    return !*end && x != INT64_MAX && x != INT64_MIN;
}

/* Python's float("..."). */
static bool parse_float(struct jt_rt *rt, struct jt_str *s, double *out)
{
    char t[80], *end;
    const char *p = jt_str_flat(rt, s);
    size_t from = jt_space_head(p, s->len), n = s->len - from;
    n -= jt_space_tail(p + from, n);
    if (!n || n >= sizeof t)
        return false;
    memcpy(t, p + from, n);
    t[n] = 0;
    if (strlen(t) != n || strpbrk(t, "xX(pP"))
        return false;
    *out = strtod(t, &end);
    return !*end;
}

FILTER(int)
{
    struct jt_val v[2];
    int64_t i = 0, base = 10;
    double f = NAN;
    TRY(rt_args(rt, "int", a, "default,base", 0, v));
    TRY(rt_arg_int(rt, "int", v[1], &base));
    if (base != 0 && (base < 2 || base > 36))
        return rt_fail(rt, E_INVAL, "'int': base %lld", (long long)base);
    *out = v[0].t == JT_UNSET ? jt_int(0) : v[0];
    if (jt_as_int(in, &i) || (in.t == JT_STR && parse_int(rt, in.s, (int)base, &i))) {
        *out = jt_int(i);
        return OK;
    }
    if (in.t == JT_FLOAT)
        f = in.f;
    else if (in.t != JT_STR || !parse_float(rt, in.s, &f))
        return in.t == JT_UNDEF
                   ? rt_fail(rt, E_INVAL, "'%s' is undefined", in.name ? in.name : "value")
                   : OK;
    if (isnan(f) || isinf(f))
        return OK;
    if (!(f > -9.2e18 && f < 9.2e18))
        return rt_fail(rt, E_RANGE, "integer of more than 64 bits");
    *out = jt_int((int64_t)f);
    return OK;
}

FILTER(float)
{
    struct jt_val v;
    double f;
    TRY(rt_args(rt, "float", a, "default", 0, &v));
    *out = v.t == JT_UNSET ? jt_float(0) : v;
    if (jt_is_num(in))
        *out = jt_float(jt_num(in));
    else if (in.t == JT_STR && parse_float(rt, in.s, &f))
        *out = jt_float(f);
    else if (in.t == JT_UNDEF)
        return rt_fail(rt, E_INVAL, "'%s' is undefined", in.name ? in.name : "value");
    return OK;
}

FILTER(abs)
{
    TRY(rt_args(rt, "abs", a, "", 0, NULL));
    int64_t i;
    if (jt_as_int(in, &i) && i != INT64_MIN)
        *out = jt_int(i < 0 ? -i : i);
    else if (in.t == JT_FLOAT)
        *out = jt_float(fabs(in.f));
    else
        return rt_fail(rt, E_INVAL, "'abs' of '%s'", jt_type_name(in));
    return OK;
}

/* round() of Python: the decimal value of the double, half to even, which is what printf does. */
static double round_to(double f, int digits)
{
    char t[400];
    if (isnan(f) || isinf(f) || digits > 300)
        return f;
    if (digits >= 0) {
        snprintf(t, sizeof t, "%.*f", digits, f);
        return strtod(t, NULL);
    }
    double p = pow(10, -digits);
    return nearbyint(f / p) * p;
}

FILTER(round)
{
    struct jt_val v[2];
    struct jt_str *method = jt_text(rt, "common").s;
    int64_t digits = 0, i;
    TRY(rt_args(rt, "round", a, "precision,method", 0, v));
    TRY(rt_arg_int(rt, "round", v[0], &digits));
    TRY(rt_arg_str(rt, "round", v[1], &method));
    if (!jt_is_num(in))
        return rt_fail(rt, E_INVAL, "'round' of '%s'", jt_type_name(in));
    if (digits < -300 || digits > 300)
        return rt_fail(rt, E_RANGE, "'round' to %lld digits", (long long)digits);
    bool ceiling = jt_str_is(rt, method, "ceil");
    if (ceiling || jt_str_is(rt, method, "floor")) {
        double p = pow(10, (double)digits), f = jt_num(in) * p;
        *out = jt_float((ceiling ? ceil(f) : floor(f)) / p);
        return OK;
    }
    if (!jt_str_is(rt, method, "common"))
        return rt_fail(rt, E_INVAL, "'round': method is common, ceil or floor");
    if (jt_as_int(in, &i) && digits >= 0)
        *out = jt_int(i);
    else if (in.t != JT_FLOAT)
        return rt_fail(rt, E_UNSUPPORTED, "'round' of an integer to tens");
    else
        *out = jt_float(round_to(in.f, (int)digits));
    return OK;
}

const struct jt_filter *jt_filter_find(const char *name)
{
    /* clang-format off */
    static const struct jt_filter table[] = {
        {"default", f_default}, {"d", f_default}, {"upper", f_upper}, {"lower", f_lower},
        {"capitalize", f_capitalize}, {"title", f_title}, {"string", f_string}, {"safe", f_safe},
        {"trim", f_trim}, {"replace", f_replace}, {"format", f_format}, {"indent", f_indent},
        {"tojson", f_tojson}, {"from_json", f_from_json}, {"int", f_int}, {"float", f_float},
        {"abs", f_abs}, {"round", f_round},
    };
    /* clang-format on */
    for (size_t i = 0; i < ARRAY_LEN(table); i++)
        if (!strcmp(table[i].name, name))
            return &table[i];
    return jt_seq_filter_find(name);
}
