/* Text of values: str() and repr() as Python prints them, and tojson as json.dumps does. The marks
 * of request strings survive; brackets, quotes and separators count as template text. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/utf8.h"
#include "server/chat/runtime.h"

/* The shortest digits that read back as the same number, laid out as Python does: plain between
 * 1e-4 and 1e16, else with an exponent of at least two digits. */
size_t jt_float_repr(char out[40], double f)
{
    if (isnan(f) || isinf(f))
        return (size_t)snprintf(out, 40, "%s", isnan(f) ? "nan" : f < 0 ? "-inf" : "inf");
    char sci[40], dig[24] = {0};
    for (int p = 0; p < 17; p++) {
        snprintf(sci, sizeof sci, "%.*e", p, f);
        if (strtod(sci, NULL) == f)
            break;
    }
    int ex = (int)strtol(strchr(sci, 'e') + 1, NULL, 10), n = 0;
    for (const char *s = sci; *s != 'e'; s++)
        if (*s >= '0' && *s <= '9')
            dig[n++] = *s;
    size_t k = 0;
    if (sci[0] == '-')
        out[k++] = '-';
    if (ex < -4 || ex >= 16) {
        out[k++] = dig[0];
        if (n > 1)
            out[k++] = '.';
        memcpy(out + k, dig + 1, (size_t)n - 1);
        k += (size_t)n - 1;
        return k + (size_t)snprintf(out + k, 40 - k, "e%c%02d", ex < 0 ? '-' : '+', abs(ex));
    }
    if (ex < 0) {
        out[k++] = '0';
        out[k++] = '.';
        for (int i = -1; i > ex; i--)
            out[k++] = '0';
        memcpy(out + k, dig, (size_t)n);
        k += (size_t)n;
    } else {
        for (int i = 0; i <= ex || i < n; i++) {
            if (i == ex + 1)
                out[k++] = '.';
            out[k++] = i < n ? dig[i] : '0';
        }
        if (n <= ex + 1) {
            out[k++] = '.';
            out[k++] = '0';
        }
    }
    out[k] = 0;
    return k;
}

static void put_num(struct chat_text *sb, struct jt_val v)
{
    char num[40];
    size_t n;
    if (v.t == JT_INT)
        n = (size_t)snprintf(num, sizeof num, "%lld", (long long)v.i);
    else
        n = jt_float_repr(num, v.f);
    jt_sb_push(sb, num, n, JT_TEMPLATE);
}

/* Writes what replaces a character and says so; false: the character stands for itself. */
typedef bool (*escape_fn)(struct chat_text *sb, uint32_t cp, enum jt_origin o, char quote);

static int put_escaped(struct jt_rt *rt, struct chat_text *sb, struct jt_str *s, escape_fn escape,
                       char quote)
{
    const char *p = jt_str_flat(rt, s);
    size_t from = 0, m = 0;
    TRY(rt_step(rt, s->len));
    for (size_t i = 0; i < s->len;) {
        uint32_t cp = (unsigned char)p[i];
        int n = cp < 0x80 ? 1 : utf8_decode(p + i, s->len - i, &cp);
        if (n < 1)
            n = 1;
        if (cp >= 0x20 && cp < 0x7f && cp != '\\' && cp != '"' && cp != '\'') {
            i++;
            continue;
        }
        enum jt_origin o = (enum jt_origin)s->origin;
        if (o == JT_MIXED) {
            while (m < s->n_marks && s->marks[m].to <= i)
                m++;
            o = m < s->n_marks && s->marks[m].from <= i ? JT_REQUEST : JT_TEMPLATE;
        }
        jt_sb_sub(rt, sb, s, from, i);
        from = i;
        i += (size_t)n;
        if (escape(sb, cp, o, quote))
            from = i;
    }
    jt_sb_sub(rt, sb, s, from, s->len);
    return OK;
}

static void put_hex(struct chat_text *sb, char kind, int width, uint32_t x, enum jt_origin o)
{
    char t[16];
    int n = snprintf(t, sizeof t, "\\%c%0*x", kind, width, x);
    jt_sb_push(sb, t, (size_t)n, o);
}

static bool py_escape(struct chat_text *sb, uint32_t cp, enum jt_origin o, char quote)
{
    char two[2] = {'\\', 0};
    if (cp == '\n' || cp == '\r' || cp == '\t')
        two[1] = cp == '\n' ? 'n' : cp == '\r' ? 'r' : 't';
    else if (cp == '\\' || cp == (uint32_t)(unsigned char)quote)
        two[1] = (char)cp;
    if (two[1]) {
        jt_sb_push(sb, two, 2, o);
        return true;
    }
    if (jt_is_printable(cp))
        return false;
    if (cp < 0x100)
        put_hex(sb, 'x', 2, cp, o);
    else if (cp < 0x10000)
        put_hex(sb, 'u', 4, cp, o);
    else
        put_hex(sb, 'U', 8, cp, o);
    return true;
}

/* quote 'a': ensure_ascii */
static bool json_escape(struct chat_text *sb, uint32_t cp, enum jt_origin o, char quote)
{
    static const char from[] = "\"\\\n\r\t\f\b", to[] = "\"\\nrtfb";
    const char *k = cp && cp < 0x80 ? strchr(from, (int)cp) : NULL;
    if (k) {
        char two[2] = {'\\', to[k - from]};
        jt_sb_push(sb, two, 2, o);
        return true;
    }
    if (cp >= 0x20 && (quote != 'a' || cp < 0x7f))
        return false;
    if (cp >= 0x10000) {
        put_hex(sb, 'u', 4, 0xd800 + ((cp - 0x10000) >> 10), o);
        cp = 0xdc00 + ((cp - 0x10000) & 0x3ff);
    }
    put_hex(sb, 'u', 4, cp, o);
    return true;
}

static int repr_list(struct jt_rt *rt, struct chat_text *sb, const struct jt_list *l, char open,
                     char close)
{
    jt_sb_push(sb, &open, 1, JT_TEMPLATE);
    for (size_t i = 0; i < l->n; i++) {
        if (i)
            jt_sb_lit(sb, ", ");
        TRY(jt_repr(rt, sb, l->v[i]));
    }
    if (open == '(' && l->n == 1)
        jt_sb_lit(sb, ",");
    jt_sb_push(sb, &close, 1, JT_TEMPLATE);
    return OK;
}

static int repr_dict(struct jt_rt *rt, struct chat_text *sb, const struct jt_dict *d)
{
    jt_sb_lit(sb, "{");
    for (size_t i = 0; i < d->n; i++) {
        if (i)
            jt_sb_lit(sb, ", ");
        TRY(jt_repr(rt, sb, d->e[i].k));
        jt_sb_lit(sb, ": ");
        TRY(jt_repr(rt, sb, d->e[i].v));
    }
    jt_sb_lit(sb, "}");
    return OK;
}

static int repr_str(struct jt_rt *rt, struct chat_text *sb, struct jt_str *s)
{
    const char *p = jt_str_flat(rt, s);
    const char *q = memchr(p, '\'', s->len) && !memchr(p, '"', s->len) ? "\"" : "'";
    jt_sb_lit(sb, q);
    TRY(put_escaped(rt, sb, s, py_escape, *q));
    jt_sb_lit(sb, q);
    return OK;
}

static int repr_range(struct chat_text *sb, const struct jt_range *r)
{
    char t[96];
    int n = r->step == 1
                ? snprintf(t, sizeof t, "range(%lld, %lld)", (long long)r->from, (long long)r->to)
                : snprintf(t, sizeof t, "range(%lld, %lld, %lld)", (long long)r->from,
                           (long long)r->to, (long long)r->step);
    jt_sb_push(sb, t, (size_t)n, JT_TEMPLATE);
    return OK;
}

int jt_repr(struct jt_rt *rt, struct chat_text *sb, struct jt_val v)
{
    int ret = OK;
    TRY(rt_enter(rt));
    TRY(rt_step(rt, 0));
    switch (v.t) {
    case JT_STR:
        ret = repr_str(rt, sb, v.s);
        break;
    case JT_UNDEF:
        jt_sb_lit(sb, "Undefined");
        break;
    case JT_NONE:
        jt_sb_lit(sb, "None");
        break;
    case JT_BOOL:
        jt_sb_lit(sb, v.b ? "True" : "False");
        break;
    case JT_INT:
    case JT_FLOAT:
        put_num(sb, v);
        break;
    case JT_LIST:
        ret = repr_list(rt, sb, v.l, '[', ']');
        break;
    case JT_TUPLE:
        ret = repr_list(rt, sb, v.l, '(', ')');
        break;
    case JT_VIEW:
        jt_sb_lit(sb, v.l->what);
        jt_sb_lit(sb, "(");
        ret = repr_list(rt, sb, v.l, '[', ']');
        jt_sb_lit(sb, ")");
        break;
    case JT_DICT:
        ret = repr_dict(rt, sb, v.d);
        break;
    case JT_RANGE:
        ret = repr_range(sb, v.r);
        break;
    case JT_NS:
        jt_sb_lit(sb, "<Namespace ");
        ret = repr_dict(rt, sb, v.d);
        jt_sb_lit(sb, ">");
        break;
    default:
        ret = rt_fail(rt, E_UNSUPPORTED, "text of a '%s'", jt_type_name(v));
    }
    rt->depth--;
    return ret;
}

int jt_put(struct jt_rt *rt, struct chat_text *sb, struct jt_val v)
{
    if (v.t == JT_STR)
        return jt_sb_str(rt, sb, v.s);
    if (v.t == JT_UNDEF)
        return OK;
    return jt_repr(rt, sb, v);
}

int jt_str_of(struct jt_rt *rt, struct jt_val v, struct jt_str **out)
{
    if (v.t == JT_STR) {
        *out = v.s;
        return OK;
    }
    struct jt_val r;
    struct chat_text *sb = jt_sb_open(rt);
    TRY(jt_put(rt, sb, v));
    TRY(jt_sb_close(rt, sb, &r));
    *out = r.s;
    return OK;
}

/* --- JSON --- */

static int json_str(struct jt_rt *rt, struct chat_text *sb, struct jt_str *s, bool ascii)
{
    jt_sb_lit(sb, "\"");
    TRY(put_escaped(rt, sb, s, json_escape, ascii ? 'a' : 0));
    jt_sb_lit(sb, "\"");
    return OK;
}

static int newline(struct jt_rt *rt, struct chat_text *sb, const struct jt_json_opts *o, int level)
{
    if (!o->indented)
        return OK;
    jt_sb_lit(sb, "\n");
    for (int i = 0; i < level; i++)
        TRY(jt_sb_str(rt, sb, o->indent));
    return OK;
}

static int json_scalar(struct jt_rt *rt, struct chat_text *sb, struct jt_val v)
{
    switch (v.t) {
    case JT_NONE:
        jt_sb_lit(sb, "null");
        return OK;
    case JT_BOOL:
        jt_sb_lit(sb, v.b ? "true" : "false");
        return OK;
    case JT_FLOAT:
        if (isnan(v.f) || isinf(v.f)) {
            jt_sb_lit(sb, isnan(v.f) ? "NaN" : v.f < 0 ? "-Infinity" : "Infinity");
            return OK;
        }
        put_num(sb, v);
        return OK;
    case JT_INT:
        put_num(sb, v);
        return OK;
    default:
        return rt_fail(rt, E_INVAL, "'%s' cannot be written as JSON", jt_type_name(v));
    }
}

static int json_key(struct jt_rt *rt, struct chat_text *sb, struct jt_val k, bool ascii)
{
    if (k.t == JT_STR)
        return json_str(rt, sb, k.s, ascii);
    if (k.t == JT_TUPLE)
        return rt_fail(rt, E_INVAL, "a key that is a tuple cannot be written as JSON");
    jt_sb_lit(sb, "\"");
    TRY(json_scalar(rt, sb, k));
    jt_sb_lit(sb, "\"");
    return OK;
}

/* The entries by key, when sort_keys is asked for. */
static int sorted(struct jt_rt *rt, struct jt_dict *d, struct jt_dict **out)
{
    struct jt_list *pairs = jt_list_new(rt, d->n);
    struct jt_val *keys = jt_arena_alloc(&rt->arena, (d->n + 1) * sizeof *keys);
    for (size_t i = 0; i < d->n; i++) {
        struct jt_list *kv = jt_list_new(rt, 2);
        keys[i] = d->e[i].k;
        TRY(jt_list_push(rt, kv, d->e[i].k));
        TRY(jt_list_push(rt, kv, d->e[i].v));
        TRY(jt_list_push(rt, pairs, JT_V(JT_TUPLE, l, kv)));
    }
    TRY(rt_sort(rt, pairs, keys, false));
    *out = jt_dict_new(rt);
    for (size_t i = 0; i < pairs->n; i++)
        TRY(jt_dict_set(rt, *out, pairs->v[i].l->v[0], pairs->v[i].l->v[1]));
    return OK;
}

static int json_dict(struct jt_rt *rt, struct chat_text *sb, struct jt_dict *d,
                     const struct jt_json_opts *o, int level)
{
    if (o->sort)
        TRY(sorted(rt, d, &d));
    jt_sb_lit(sb, "{");
    for (size_t i = 0; i < d->n; i++) {
        if (i)
            TRY(jt_sb_str(rt, sb, o->item_sep));
        TRY(newline(rt, sb, o, level + 1));
        TRY(json_key(rt, sb, d->e[i].k, o->ascii));
        TRY(jt_sb_str(rt, sb, o->key_sep));
        TRY(jt_tojson(rt, sb, d->e[i].v, o, level + 1));
    }
    if (d->n)
        TRY(newline(rt, sb, o, level));
    jt_sb_lit(sb, "}");
    return OK;
}

static int json_list(struct jt_rt *rt, struct chat_text *sb, const struct jt_list *l,
                     const struct jt_json_opts *o, int level)
{
    jt_sb_lit(sb, "[");
    for (size_t i = 0; i < l->n; i++) {
        if (i)
            TRY(jt_sb_str(rt, sb, o->item_sep));
        TRY(newline(rt, sb, o, level + 1));
        TRY(jt_tojson(rt, sb, l->v[i], o, level + 1));
    }
    if (l->n)
        TRY(newline(rt, sb, o, level));
    jt_sb_lit(sb, "]");
    return OK;
}

int jt_tojson(struct jt_rt *rt, struct chat_text *sb, struct jt_val v, const struct jt_json_opts *o,
              int level)
{
    int ret;
    TRY(rt_enter(rt));
    TRY(rt_step(rt, 0));
    switch (v.t) {
    case JT_STR:
        ret = json_str(rt, sb, v.s, o->ascii);
        break;
    case JT_DICT:
        ret = json_dict(rt, sb, v.d, o, level);
        break;
    case JT_LIST:
    case JT_TUPLE:
        ret = json_list(rt, sb, v.l, o, level);
        break;
    default:
        ret = json_scalar(rt, sb, v);
    }
    rt->depth--;
    return ret;
}
