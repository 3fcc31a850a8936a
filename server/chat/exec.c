/* Statements, scopes, macros and the bounds of a render.
 *
 * A scope is a short list of (name, value); for, macro, call, with, block set and filter make a
 * new one, if does not, and a name that is not found goes to the scope around it, so a macro sees
 * its surroundings as they are when it is called. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/limits.h"
#include "server/chat/runtime.h"

/* --- bounds and errors --- */

int rt_fail(struct jt_rt *rt, int code, const char *fmt, ...)
{
    char text[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return jt_syntax(rt->t, rt->e, code, rt->pos, "%s", text);
}

int rt_step(struct jt_rt *rt, size_t bytes)
{
    rt->steps += 1 + bytes / 32;
    if (rt->steps > rt->t->max_steps)
        return rt_fail(rt, E_RANGE, "the template takes more than %u steps", rt->t->max_steps);
    if (rt->arena.used > LIM_CHAT_MEMORY)
        return rt_fail(rt, E_RANGE, "the template takes more than %d bytes of memory",
                       LIM_CHAT_MEMORY);
    if (rt->open_sinks && rt->sinks[rt->open_sinks - 1]->text.full)
        return rt_fail(rt, E_RANGE, "text of more than %d bytes", LIM_CHAT_OUTPUT);
    return OK;
}

int rt_enter(struct jt_rt *rt)
{
    if (++rt->depth > LIM_CHAT_DEPTH)
        return rt_fail(rt, E_RANGE, "nested deeper than %d levels", LIM_CHAT_DEPTH);
    return OK;
}

/* --- scopes --- */

static struct jt_scope *scope_new(struct jt_rt *rt, struct jt_scope *up)
{
    struct jt_scope *s = jt_arena_zero(&rt->arena, sizeof *s);
    s->up = up;
    return s;
}

int rt_bind(struct jt_rt *rt, struct jt_scope *sc, uint32_t sym, struct jt_val v)
{
    for (uint32_t i = 0; i < sc->n; i++) {
        if (sc->b[i].sym == sym) {
            sc->b[i].v = v;
            return OK;
        }
    }
    if (sc->n == sc->cap) {
        uint32_t cap = sc->cap ? sc->cap * 2 : 8;
        struct jt_bind *b = jt_arena_alloc(&rt->arena, cap * sizeof *b);
        if (sc->n)
            memcpy(b, sc->b, sc->n * sizeof *b);
        sc->b = b;
        sc->cap = cap;
    }
    sc->b[sc->n++] = (struct jt_bind){sym, v};
    return rt_step(rt, sc->n);
}

struct jt_val rt_lookup(struct jt_rt *rt, struct jt_scope *sc, uint32_t sym)
{
    for (; sc; sc = sc->up) {
        rt->steps += sc->n / 8;
        for (uint32_t i = 0; i < sc->n; i++)
            if (sc->b[i].sym == sym)
                return sc->b[i].v;
    }
    const struct jt_sym *s = &rt->t->syms[sym];
    if (!s->builtin)
        return jt_undef(s->name);
    struct jt_func *f = jt_arena_alloc(&rt->arena, sizeof *f);
    *f = (struct jt_func){.name = s->name, .fn = s->builtin->fn};
    return JT_V(JT_FUNC, fn, f);
}

static int assign(struct jt_rt *rt, const struct jt_node *target, struct jt_scope *sc,
                  struct jt_val v)
{
    rt->pos = target->pos;
    if (target->kind == N_NAME)
        return rt_bind(rt, sc, target->sym, v);
    if (target->kind == N_NSREF) {
        struct jt_val ns = rt_lookup(rt, sc, target->sym);
        if (ns.t != JT_NS)
            return rt_fail(rt, E_INVAL, "'%s' is not a namespace", rt->t->syms[target->sym].name);
        return jt_dict_set(rt, ns.d, jt_text(rt, target->name), v);
    }
    struct jt_list *l;
    TRY(jt_items(rt, v, &l));
    if (l->n != target->n)
        return rt_fail(rt, E_INVAL, "%zu values for %u names", l->n, target->n);
    for (uint32_t i = 0; i < target->n; i++)
        TRY(assign(rt, target->list[i], sc, l->v[i]));
    return OK;
}

/* --- text of a body --- */

static int captured(struct jt_rt *rt, const struct jt_node *body, struct jt_scope *sc,
                    struct jt_val *out)
{
    struct chat_text *outer = rt->out;
    rt->out = jt_sb_open(rt);
    int flow = rt_exec(rt, body, sc);
    if (flow < 0)
        return flow;
    CHECK(flow == OK); /* the parser lets no break leave a function body */
    TRY(jt_sb_close(rt, rt->out, out));
    rt->out = outer;
    return OK;
}

/* --- macros --- */

static int too_many(struct jt_rt *rt, const struct jt_node *n, const struct jt_args *a)
{
    return rt_fail(rt, E_INVAL, "macro '%s' takes %u arguments, not %zu", rt->t->syms[n->sym].name,
                   n->n, a->n);
}

static int bind_keywords(struct jt_rt *rt, const struct jt_node *n, const struct jt_args *a,
                         struct jt_val *v, struct jt_scope *sc)
{
    struct jt_dict *rest = jt_dict_new(rt);
    for (size_t k = 0; k < a->n_kw; k++) {
        uint32_t i = 0;
        while (i < n->n && strcmp(rt->t->syms[n->params[i]].name, a->kw[k].name))
            i++;
        if (i < n->n && v[i].t != JT_UNSET)
            return rt_fail(rt, E_INVAL, "argument '%s' given twice", a->kw[k].name);
        if (i < n->n)
            v[i] = a->kw[k].v;
        else if ((n->uses & USES_CALLER) && !strcmp(a->kw[k].name, "caller"))
            TRY(rt_bind(rt, sc, rt->t->sym_caller, a->kw[k].v));
        else if (n->uses & USES_KWARGS)
            TRY(jt_dict_set(rt, rest, jt_text(rt, a->kw[k].name), a->kw[k].v));
        else
            return rt_fail(rt, E_INVAL, "macro '%s' takes no argument '%s'",
                           rt->t->syms[n->sym].name, a->kw[k].name);
    }
    if (n->uses & USES_KWARGS)
        TRY(rt_bind(rt, sc, rt->t->sym_kwargs, JT_V(JT_DICT, d, rest)));
    return OK;
}

int rt_exec_macro(struct jt_rt *rt, const struct jt_macro *m, const struct jt_args *a,
                  struct jt_val *out)
{
    const struct jt_node *n = m->node;
    struct jt_scope *sc = scope_new(rt, m->scope);
    struct jt_val *v = jt_arena_zero(&rt->arena, (n->n + 1) * sizeof *v);
    struct jt_list *rest = jt_list_new(rt, 0);
    uint32_t pos = rt->pos;
    TRY(rt_enter(rt));
    for (size_t i = 0; i < a->n; i++) {
        if (i < n->n)
            v[i] = a->v[i];
        else if (n->uses & USES_VARARGS)
            TRY(jt_list_push(rt, rest, a->v[i]));
        else
            return too_many(rt, n, a);
    }
    if (n->uses & USES_CALLER)
        TRY(rt_bind(rt, sc, rt->t->sym_caller, jt_undef("caller")));
    TRY(bind_keywords(rt, n, a, v, sc));
    if (n->uses & USES_VARARGS)
        TRY(rt_bind(rt, sc, rt->t->sym_varargs, JT_V(JT_TUPLE, l, rest)));
    for (uint32_t i = 0; i < n->n; i++) {
        if (v[i].t == JT_UNSET) {
            v[i] = jt_undef(rt->t->syms[n->params[i]].name);
            if (n->list[i])
                TRY(rt_eval(rt, n->list[i], sc, &v[i]));
        }
        TRY(rt_bind(rt, sc, n->params[i], v[i]));
    }
    TRY(captured(rt, n->c, sc, out));
    rt->pos = pos;
    rt->depth--;
    return OK;
}

static struct jt_val macro_value(struct jt_rt *rt, const struct jt_node *n, struct jt_scope *sc)
{
    struct jt_macro *m = jt_arena_alloc(&rt->arena, sizeof *m);
    *m = (struct jt_macro){.node = n, .scope = sc};
    for (struct jt_scope *s = sc; s && !s->captured; s = s->up)
        s->captured = true;
    return JT_V(JT_MACRO, m, m);
}

static int exec_callblock(struct jt_rt *rt, const struct jt_node *n, struct jt_scope *sc)
{
    const struct jt_node *call = n->a;
    struct jt_val f, r, *v = jt_arena_alloc(&rt->arena, (call->n + 1) * sizeof *v);
    struct jt_kwarg *kw = jt_arena_alloc(&rt->arena, (call->n_kw + 1) * sizeof *kw);
    TRY(rt_eval(rt, call->a, sc, &f));
    for (uint32_t i = 0; i < call->n; i++)
        TRY(rt_eval(rt, call->list[i], sc, &v[i]));
    for (uint32_t i = 0; i < call->n_kw; i++) {
        kw[i].name = call->kw_name[i];
        TRY(rt_eval(rt, call->kw_v[i], sc, &kw[i].v));
    }
    kw[call->n_kw] = (struct jt_kwarg){"caller", macro_value(rt, n->b, sc)};
    struct jt_args a = {.v = v, .n = call->n, .kw = kw, .n_kw = call->n_kw + 1};
    rt->pos = call->pos;
    TRY(rt_call(rt, f, &a, &r));
    return jt_put(rt, rt->out, r);
}

/* --- loops --- */

static struct jt_val loop_item(const struct jt_loop *l, size_t i)
{
    return l->l ? l->l->v[i] : jt_int(l->r->from + (int64_t)i * l->r->step);
}

/* The items that pass `for ... if`. */
static int filtered(struct jt_rt *rt, const struct jt_node *n, struct jt_scope *sc,
                    struct jt_loop *loop)
{
    struct jt_list *l = jt_list_new(rt, 0);
    struct jt_scope *inner = scope_new(rt, sc);
    for (size_t i = 0; i < (loop->l ? loop->l->n : loop->r->n); i++) {
        struct jt_val v = loop_item(loop, i), yes;
        TRY(assign(rt, n->a, inner, v));
        TRY(rt_eval(rt, n->c, inner, &yes));
        if (jt_truth(yes))
            TRY(jt_list_push(rt, l, v));
    }
    loop->l = l;
    return OK;
}

static int exec_for(struct jt_rt *rt, const struct jt_node *n, struct jt_scope *sc)
{
    struct jt_val iter;
    struct jt_loop *loop = jt_arena_zero(&rt->arena, sizeof *loop);
    struct jt_scope *inner = scope_new(rt, sc);
    bool ended = false;
    TRY(rt_eval(rt, n->b, sc, &iter));
    rt->pos = n->b->pos;
    if (iter.t == JT_RANGE)
        loop->r = iter.r;
    else
        TRY(jt_items(rt, iter, &loop->l));
    if (n->c)
        TRY(filtered(rt, n, sc, loop));
    for (; loop->i < (loop->l ? loop->l->n : loop->r->n); loop->i++) {
        if (inner->captured)
            inner = scope_new(rt, sc);
        inner->n = 0;
        TRY(rt_step(rt, 0));
        TRY(rt_bind(rt, inner, rt->t->sym_loop, JT_V(JT_LOOP, loop, loop)));
        TRY(assign(rt, n->a, inner, loop_item(loop, loop->i)));
        int flow = rt_exec(rt, n->list[0], inner);
        if (flow < 0)
            return flow;
        if (flow == FLOW_BREAK)
            break;
        ended |= flow == OK;
    }
    if (!ended && n->list[1]) /* also when break or continue cut every item short, as in Jinja2 */
        return rt_exec(rt, n->list[1], scope_new(rt, sc));
    return OK;
}

/* --- the rest --- */

static int exec_setblock(struct jt_rt *rt, const struct jt_node *n, struct jt_scope *sc)
{
    struct jt_val v;
    TRY(captured(rt, n->c, scope_new(rt, sc), &v));
    if (n->b) {
        rt->block = v;
        TRY(rt_eval(rt, n->b, sc, &v));
    }
    return assign(rt, n->a, sc, v);
}

static int exec_with(struct jt_rt *rt, const struct jt_node *n, struct jt_scope *sc)
{
    struct jt_scope *inner = scope_new(rt, sc);
    for (uint32_t i = 0; i < n->n; i += 2) {
        struct jt_val v;
        TRY(rt_eval(rt, n->list[i + 1], sc, &v));
        TRY(assign(rt, n->list[i], inner, v));
    }
    return rt_exec(rt, n->c, inner);
}

static int exec_if(struct jt_rt *rt, const struct jt_node *n, struct jt_scope *sc)
{
    for (uint32_t i = 0; i < n->n; i += 2) {
        struct jt_val v;
        TRY(rt_eval(rt, n->list[i], sc, &v));
        if (jt_truth(v))
            return rt_exec(rt, n->list[i + 1], sc);
    }
    return n->b ? rt_exec(rt, n->b, sc) : OK;
}

static int exec_print(struct jt_rt *rt, const struct jt_node *n, struct jt_scope *sc)
{
    struct jt_val v;
    TRY(rt_eval(rt, n->a, sc, &v));
    rt->pos = n->a->pos;
    return jt_put(rt, rt->out, v);
}

static int exec_block(struct jt_rt *rt, const struct jt_node *n, struct jt_scope *sc)
{
    int flow = OK;
    for (uint32_t i = 0; flow == OK && i < n->n; i++)
        flow = rt_exec(rt, n->list[i], sc);
    return flow;
}

static int exec_node(struct jt_rt *rt, const struct jt_node *n, struct jt_scope *sc)
{
    struct jt_val v;
    switch (n->kind) {
    case N_TEXT:
        return jt_sb_str(rt, rt->out, n->value.s);
    case N_PRINT:
        return exec_print(rt, n, sc);
    case N_BLOCK:
        return exec_block(rt, n, sc);
    case N_IF:
        return exec_if(rt, n, sc);
    case N_FOR:
        return exec_for(rt, n, sc);
    case N_SET:
        TRY(rt_eval(rt, n->b, sc, &v));
        return assign(rt, n->a, sc, v);
    case N_SETBLOCK:
        return exec_setblock(rt, n, sc);
    case N_MACRO:
        return rt_bind(rt, sc, n->sym, macro_value(rt, n, sc));
    case N_CALLBLOCK:
        return exec_callblock(rt, n, sc);
    case N_FILTERBLOCK:
        TRY(captured(rt, n->c, scope_new(rt, sc), &v));
        rt->block = v;
        TRY(rt_eval(rt, n->b, sc, &v));
        return jt_put(rt, rt->out, v);
    case N_WITH:
        return exec_with(rt, n, sc);
    case N_GENERATION:
        return rt_exec(rt, n->c, scope_new(rt, sc));
    case N_BREAK:
        return FLOW_BREAK;
    case N_CONTINUE:
        return FLOW_CONTINUE;
    }
    CHECK(false); /* an expression where a statement belongs */
    return E_INVAL;
}

int rt_exec(struct jt_rt *rt, const struct jt_node *n, struct jt_scope *sc)
{
    rt->pos = n->pos;
    TRY(rt_step(rt, 0));
    TRY(rt_enter(rt));
    int flow = exec_node(rt, n, sc);
    rt->depth--;
    return flow;
}
