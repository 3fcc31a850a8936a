/* Expressions: precedence as in Jinja2, from inline if down to literals. A filter or test binds
 * tighter than every binary operator; a sign binds tighter than a filter. Runs at load time. */
#include "server/chat/parse.h"

#include <string.h>

#include "engine/base/check.h"
#include "engine/limits.h"
#include "server/chat/runtime.h"

static int p_unary(struct parser *p, bool filters, struct jt_node **out);

typedef int (*rule_fn)(struct parser *p, struct jt_node **out);

static struct jt_node *node2(struct parser *p, enum jt_kind kind, int op, uint32_t pos,
                             struct jt_node *a, struct jt_node *b)
{
    struct jt_node *n = p_node(p, kind, pos);
    n->op = (uint8_t)op;
    n->a = a;
    n->b = b;
    return n;
}

static struct jt_node *constant(struct parser *p, uint32_t pos, struct jt_val v)
{
    struct jt_node *n = p_node(p, N_CONST, pos);
    n->value = v;
    return n;
}

static struct jt_val const_str(struct parser *p, const char *s, size_t len)
{
    struct jt_str *r = jt_arena_zero(&p->t->arena, sizeof *r);
    r->p = s;
    r->len = len;
    return jt_strv(r);
}

/* Items up to the closing bracket, which is consumed; `pairs` for a dict. */
static int p_items(struct parser *p, int close, bool pairs, struct jt_node *n)
{
    struct node_list l = {0};
    while (!p_is_op(p, close)) {
        if (l.n)
            TRY(p_need_op(p, ','));
        if (p_is_op(p, close))
            break;
        struct jt_node *x;
        TRY(p_expr(p, &x));
        p_push(p, &l, x);
        if (pairs) {
            TRY(p_need_op(p, ':'));
            TRY(p_expr(p, &x));
            p_push(p, &l, x);
        }
    }
    p->i++;
    p_give(n, &l);
    return OK;
}

/* Elements separated by commas; a single one without a comma is not a tuple. */
static int p_tuple_rule(struct parser *p, rule_fn rule, int close, struct jt_node **out)
{
    struct node_list l = {0};
    uint32_t pos = p_tok(p)->pos;
    bool comma = false;
    for (;;) {
        if (l.n && !comma)
            break;
        const struct jt_token *k = p_tok(p);
        if (k->t == T_BLOCK_END || k->t == T_VAR_END || (close && p_is_op(p, close)) ||
            p_is_name(p, "in") || p_is_op(p, '='))
            break;
        struct jt_node *x;
        TRY(rule(p, &x));
        p_push(p, &l, x);
        comma = p_skip_op(p, ',');
    }
    if (l.n == 1 && !comma) {
        *out = l.v[0];
        return OK;
    }
    if (!l.n && !close)
        return p_unexpected(p, "an expression");
    *out = p_node(p, N_TUPLE, pos);
    p_give(*out, &l);
    return OK;
}

int p_tuple(struct parser *p, bool with_if, struct jt_node **out)
{
    return p_tuple_rule(p, with_if ? p_expr : p_expr_no_if, 0, out);
}

static int p_name(struct parser *p, struct jt_node **out)
{
    const struct jt_token *k = p_tok(p);
    p->i++;
    if (p_tok_is(k, "true") || p_tok_is(k, "True")) {
        *out = constant(p, k->pos, jt_bool(true));
        return OK;
    }
    if (p_tok_is(k, "false") || p_tok_is(k, "False")) {
        *out = constant(p, k->pos, jt_bool(false));
        return OK;
    }
    if (p_tok_is(k, "none") || p_tok_is(k, "None")) {
        *out = constant(p, k->pos, jt_none());
        return OK;
    }
    struct jt_node *n = p_node(p, N_NAME, k->pos);
    TRY(jt_sym(p->t, k->p, k->len, k->pos, &n->sym, p->e));
    if (n->sym == p->t->sym_caller)
        p->uses |= USES_CALLER;
    if (n->sym == p->t->sym_varargs)
        p->uses |= USES_VARARGS;
    if (n->sym == p->t->sym_kwargs)
        p->uses |= USES_KWARGS;
    *out = n;
    return OK;
}

/* Adjacent string literals are one. */
static int p_string(struct parser *p, struct jt_node **out)
{
    const struct jt_token *k = p_tok(p);
    size_t first = p->i, total = 0;
    while (p_tok(p)->t == T_STR)
        total += p->v[p->i++].len;
    if (p->i == first + 1) {
        *out = constant(p, k->pos, const_str(p, k->p, k->len));
        return OK;
    }
    char *s = jt_arena_alloc(&p->t->arena, total + 1);
    size_t at = 0;
    for (size_t i = first; i < p->i; i++) {
        memcpy(s + at, p->v[i].p, p->v[i].len);
        at += p->v[i].len;
    }
    *out = constant(p, k->pos, const_str(p, s, total));
    return OK;
}

static int p_primary(struct parser *p, struct jt_node **out)
{
    const struct jt_token *k = p_tok(p);
    switch (k->t) {
    case T_NAME:
        return p_name(p, out);
    case T_STR:
        return p_string(p, out);
    case T_INT:
        p->i++;
        *out = constant(p, k->pos, jt_int(k->i));
        return OK;
    case T_FLOAT:
        p->i++;
        *out = constant(p, k->pos, jt_float(k->f));
        return OK;
    case T_OP:
        break;
    default:
        return p_unexpected(p, "an expression");
    }
    if (p_skip_op(p, '(')) {
        TRY(p_tuple_rule(p, p_expr, ')', out));
        return p_need_op(p, ')');
    }
    if (p_skip_op(p, '[')) {
        *out = p_node(p, N_LIST, k->pos);
        return p_items(p, ']', false, *out);
    }
    if (p_skip_op(p, '{')) {
        *out = p_node(p, N_DICT, k->pos);
        return p_items(p, '}', true, *out);
    }
    return p_unexpected(p, "an expression");
}

/* What stands in [ ]: an index or a slice. */
static int p_subscript(struct parser *p, struct jt_node *of, struct jt_node **out)
{
    uint32_t pos = p_tok(p)->pos;
    struct jt_node *part[3] = {0};
    int n = 0;
    bool slice = false;
    p->i++;
    while (!p_is_op(p, ']')) {
        if (p_is_op(p, ',')) {
            return P_FAIL(p, E_UNSUPPORTED, p_tok(p)->pos, "more than one index in [ ]");
        } else if (p_skip_op(p, ':')) {
            slice = true;
            if (++n > 2)
                return p_unexpected(p, "']'");
        } else if (part[n]) {
            return p_unexpected(p, "']'");
        } else {
            TRY(p_expr(p, &part[n]));
        }
    }
    p->i++;
    if (!slice) {
        if (!part[0])
            return P_FAIL(p, E_FORMAT, pos, "an index is missing in [ ]");
        *out = node2(p, N_ITEM, 0, pos, of, part[0]);
        return OK;
    }
    *out = node2(p, N_SLICE, 0, pos, of, NULL);
    struct node_list l = {0};
    for (int i = 0; i < 3; i++)
        p_push(p, &l, part[i]);
    p_give(*out, &l);
    return OK;
}

static int p_attribute(struct parser *p, struct jt_node *of, struct jt_node **out)
{
    p->i++;
    const struct jt_token *k = p_tok(p);
    if (k->t == T_INT) {
        *out = node2(p, N_ITEM, 0, k->pos, of, constant(p, k->pos, jt_int(k->i)));
    } else if (k->t == T_NAME) {
        *out = node2(p, N_ATTR, 0, k->pos, of, NULL);
        (*out)->name = p_text(p, k);
    } else {
        return p_unexpected(p, "a name after '.'");
    }
    p->i++;
    return OK;
}

int p_call_args(struct parser *p, struct jt_node *call)
{
    struct node_list pos = {0}, kw = {0}, names = {0};
    TRY(p_need_op(p, '('));
    while (!p_is_op(p, ')')) {
        if (pos.n || kw.n)
            TRY(p_need_op(p, ','));
        if (p_is_op(p, ')'))
            break;
        const struct jt_token *k = p_tok(p);
        if (p_is_op(p, '*') || p_is_op(p, OP_POW))
            return P_FAIL(p, E_UNSUPPORTED, k->pos, "* and ** in arguments");
        struct jt_node *x;
        if (k->t == T_NAME && p->v[p->i + 1].t == T_OP && p->v[p->i + 1].op == '=') {
            p->i += 2;
            TRY(p_expr(p, &x));
            p_push(p, &kw, x);
            struct jt_node *name = p_node(p, N_NAME, k->pos);
            name->name = p_text(p, k);
            p_push(p, &names, name);
            continue;
        }
        if (kw.n)
            return P_FAIL(p, E_FORMAT, k->pos, "positional argument after a keyword argument");
        TRY(p_expr(p, &x));
        p_push(p, &pos, x);
    }
    p->i++;
    p_give(call, &pos);
    call->n_kw = kw.n;
    call->kw_v = kw.v;
    call->kw_name = jt_arena_zero(&p->t->arena, (kw.n + 1) * sizeof *call->kw_name);
    for (uint32_t i = 0; i < kw.n; i++)
        call->kw_name[i] = names.v[i]->name;
    return OK;
}

static int p_call(struct parser *p, struct jt_node *of, struct jt_node **out)
{
    *out = node2(p, N_CALL, 0, p_tok(p)->pos, of, NULL);
    return p_call_args(p, *out);
}

static int p_postfix(struct parser *p, struct jt_node **n)
{
    for (;;) {
        if (p_is_op(p, '.'))
            TRY(p_attribute(p, *n, n));
        else if (p_is_op(p, '['))
            TRY(p_subscript(p, *n, n));
        else if (p_is_op(p, '('))
            TRY(p_call(p, *n, n));
        else
            return OK;
    }
}

/* name(.name)* of a filter or test. */
static int p_dotted(struct parser *p, const char **out)
{
    if (p_tok(p)->t != T_NAME)
        return p_unexpected(p, "a name");
    *out = p_text(p, &p->v[p->i++]);
    if (p_is_op(p, '.'))
        return P_FAIL(p, E_UNSUPPORTED, p_tok(p)->pos, "dotted name of a filter or test");
    return OK;
}

/* Filters from here on; `first`: one stands here without '|'. */
int p_filters(struct parser *p, struct jt_node *in, bool first, struct jt_node **out)
{
    while (first || p_skip_op(p, '|')) {
        uint32_t pos = p_tok(p)->pos;
        const char *name = NULL;
        first = false;
        TRY(p_dotted(p, &name));
        const struct jt_filter *f = jt_filter_find(name);
        if (!f || !f->fn)
            return P_FAIL(p, E_UNSUPPORTED, pos, "filter '%s'", name);
        struct jt_node *n = node2(p, N_FILTER, 0, pos, in, NULL);
        n->filter = f;
        if (p_is_op(p, '('))
            TRY(p_call_args(p, n));
        in = n;
    }
    *out = in;
    return OK;
}

static bool starts_operand(const struct parser *p)
{
    const struct jt_token *k = p_tok(p);
    if (k->t == T_NAME)
        return !p_tok_is(k, "else") && !p_tok_is(k, "or") && !p_tok_is(k, "and");
    return k->t == T_STR || k->t == T_INT || k->t == T_FLOAT || p_is_op(p, '[') || p_is_op(p, '{');
}

static int p_test(struct parser *p, struct jt_node *of, struct jt_node **out)
{
    uint32_t pos = p_tok(p)->pos;
    p->i++;
    bool negate = p_skip_name(p, "not");
    uint32_t name_pos = p_tok(p)->pos;
    const char *name = NULL;
    TRY(p_dotted(p, &name));
    const struct jt_test *t = jt_test_find(name);
    if (!t || !t->fn)
        return P_FAIL(p, E_UNSUPPORTED, name_pos, "test '%s'", name);
    struct jt_node *n = node2(p, N_TEST, negate, pos, of, NULL);
    n->test = t;
    if (p_is_op(p, '(')) {
        TRY(p_call_args(p, n));
    } else if (starts_operand(p)) {
        if (p_is_name(p, "is"))
            return P_FAIL(p, E_FORMAT, p_tok(p)->pos, "tests cannot be chained with 'is'");
        struct node_list l = {0};
        struct jt_node *x;
        TRY(p_enter(p));
        TRY(p_primary(p, &x));
        TRY(p_postfix(p, &x));
        p->depth--;
        p_push(p, &l, x);
        p_give(n, &l);
    }
    *out = n;
    return OK;
}

static int p_suffixes(struct parser *p, struct jt_node **n)
{
    for (;;) {
        if (p_is_op(p, '|'))
            TRY(p_filters(p, *n, false, n));
        else if (p_is_name(p, "is"))
            TRY(p_test(p, *n, n));
        else if (p_is_op(p, '('))
            TRY(p_call(p, *n, n));
        else
            return OK;
    }
}

static int p_unary(struct parser *p, bool filters, struct jt_node **out)
{
    uint32_t pos = p_tok(p)->pos;
    TRY(p_enter(p));
    int op = p_is_op(p, '-') ? '-' : p_is_op(p, '+') ? '+' : 0;
    if (op) {
        p->i++;
        struct jt_node *x;
        TRY(p_unary(p, false, &x));
        *out = node2(p, N_UNARY, op, pos, x, NULL);
    } else {
        TRY(p_primary(p, out));
    }
    TRY(p_postfix(p, out));
    if (filters)
        TRY(p_suffixes(p, out));
    p->depth--;
    return OK;
}

int p_primary_call(struct parser *p, struct jt_node **out)
{
    return p_unary(p, false, out);
}

static int p_operand(struct parser *p, struct jt_node **out)
{
    return p_unary(p, true, out);
}

/* left op right op ... with one of the operators of a level, left-associative. */
static int p_binary(struct parser *p, const uint8_t *ops, rule_fn next, struct jt_node **out)
{
    TRY(next(p, out));
    for (;;) {
        const struct jt_token *k = p_tok(p);
        if (k->t != T_OP || !strchr((const char *)ops, k->op))
            return OK;
        p->i++;
        struct jt_node *right;
        TRY(next(p, &right));
        *out = node2(p, N_BINARY, k->op, k->pos, *out, right);
    }
}

static int p_pow(struct parser *p, struct jt_node **out)
{
    return p_binary(p, (const uint8_t[]){OP_POW, 0}, p_operand, out);
}

static int p_mul(struct parser *p, struct jt_node **out)
{
    return p_binary(p, (const uint8_t[]){'*', '/', OP_FLOORDIV, '%', 0}, p_pow, out);
}

static int p_concat(struct parser *p, struct jt_node **out)
{
    uint32_t pos = p_tok(p)->pos;
    TRY(p_mul(p, out));
    if (!p_is_op(p, '~'))
        return OK;
    struct node_list l = {0};
    p_push(p, &l, *out);
    while (p_skip_op(p, '~')) {
        struct jt_node *x;
        TRY(p_mul(p, &x));
        p_push(p, &l, x);
    }
    *out = p_node(p, N_CONCAT, pos);
    p_give(*out, &l);
    return OK;
}

static int p_add(struct parser *p, struct jt_node **out)
{
    return p_binary(p, (const uint8_t[]){'+', '-', 0}, p_concat, out);
}

static int compare_op(struct parser *p)
{
    const struct jt_token *k = p_tok(p);
    if (k->t == T_OP && (k->op == '<' || k->op == '>' || k->op == OP_EQ || k->op == OP_NE ||
                         k->op == OP_GE || k->op == OP_LE)) {
        p->i++;
        return k->op;
    }
    if (p_skip_name(p, "in"))
        return OP_IN;
    if (p_is_name(p, "not") && p_tok_is(&p->v[p->i + 1], "in")) {
        p->i += 2;
        return OP_NOTIN;
    }
    return 0;
}

static int p_compare(struct parser *p, struct jt_node **out)
{
    uint32_t pos = p_tok(p)->pos;
    TRY(p_add(p, out));
    struct node_list l = {0};
    struct buf ops;
    buf_init(&ops, 0);
    p_push(p, &l, *out);
    int op, ret = OK;
    while ((op = compare_op(p)) != 0) {
        struct jt_node *x;
        TRY_OUT(p_add(p, &x));
        p_push(p, &l, x);
        buf_char(&ops, (char)op);
    }
    if (l.n > 1) {
        *out = p_node(p, N_COMPARE, pos);
        p_give(*out, &l);
        (*out)->ops = (uint8_t *)jt_arena_strndup(&p->t->arena, ops.p, ops.len);
    }
out:
    buf_done(&ops);
    return ret;
}

static int p_not(struct parser *p, struct jt_node **out)
{
    uint32_t pos = p_tok(p)->pos;
    if (!p_skip_name(p, "not"))
        return p_compare(p, out);
    struct jt_node *x;
    TRY(p_enter(p));
    TRY(p_not(p, &x));
    p->depth--;
    *out = node2(p, N_NOT, 0, pos, x, NULL);
    return OK;
}

static int p_logic(struct parser *p, enum jt_kind kind, const char *word, rule_fn next,
                   struct jt_node **out)
{
    uint32_t pos = p_tok(p)->pos;
    TRY(next(p, out));
    if (!p_is_name(p, word))
        return OK;
    struct node_list l = {0};
    p_push(p, &l, *out);
    while (p_skip_name(p, word)) {
        struct jt_node *x;
        TRY(next(p, &x));
        p_push(p, &l, x);
    }
    *out = p_node(p, kind, pos);
    p_give(*out, &l);
    return OK;
}

static int p_and(struct parser *p, struct jt_node **out)
{
    return p_logic(p, N_AND, "and", p_not, out);
}

int p_expr_no_if(struct parser *p, struct jt_node **out)
{
    return p_logic(p, N_OR, "or", p_and, out);
}

int p_expr(struct parser *p, struct jt_node **out)
{
    TRY(p_enter(p));
    TRY(p_expr_no_if(p, out));
    while (p_is_name(p, "if")) {
        uint32_t pos = p_tok(p)->pos;
        p->i++;
        struct jt_node *cond, *other = NULL;
        TRY(p_expr_no_if(p, &cond));
        if (p_skip_name(p, "else"))
            TRY(p_expr(p, &other));
        struct jt_node *n = node2(p, N_COND, 0, pos, cond, *out);
        n->c = other;
        *out = n;
    }
    p->depth--;
    return OK;
}

static int p_target_name(struct parser *p, struct jt_node **out)
{
    const struct jt_token *k = p_tok(p);
    if (p_skip_op(p, '(')) { /* for k, (a, b) in ... */
        TRY(p_enter(p));
        TRY(p_tuple_rule(p, p_target_name, ')', out));
        p->depth--;
        return p_need_op(p, ')');
    }
    if (k->t != T_NAME)
        return p_unexpected(p, "a name to assign to");
    TRY(p_name(p, out));
    if ((*out)->kind != N_NAME)
        return P_FAIL(p, E_FORMAT, k->pos, "cannot assign to a constant");
    return OK;
}

int p_target(struct parser *p, bool namespaces, struct jt_node **out)
{
    const struct jt_token *k = p_tok(p);
    if (namespaces && k->t == T_NAME && p->v[p->i + 1].t == T_OP && p->v[p->i + 1].op == '.') {
        *out = p_node(p, N_NSREF, k->pos);
        TRY(jt_sym(p->t, k->p, k->len, k->pos, &(*out)->sym, p->e));
        p->i += 2;
        if (p_tok(p)->t != T_NAME)
            return p_unexpected(p, "a name after '.'");
        (*out)->name = p_text(p, p_tok(p));
        p->i++;
        return OK;
    }
    return p_tuple_rule(p, p_target_name, 0, out);
}
