/* Statements, names and the parser's helpers. One recursive descent over the token array at load
 * time; the tree goes to the template's arena. A tag we do not have is E_UNSUPPORTED. */
#include "server/chat/parse.h"

#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/limits.h"
#include "server/chat/runtime.h"

static int p_body(struct parser *p, const char *const *ends, struct jt_node **out);

/* --- helpers --- */

bool p_tok_is(const struct jt_token *k, const char *name)
{
    return k->t == T_NAME && k->len == strlen(name) && !memcmp(k->p, name, k->len);
}

bool p_is_op(const struct parser *p, int op)
{
    return p_tok(p)->t == T_OP && p_tok(p)->op == op;
}

bool p_is_name(const struct parser *p, const char *name)
{
    return p_tok_is(p_tok(p), name);
}

bool p_skip_op(struct parser *p, int op)
{
    bool hit = p_is_op(p, op);
    p->i += hit;
    return hit;
}

bool p_skip_name(struct parser *p, const char *name)
{
    bool hit = p_is_name(p, name);
    p->i += hit;
    return hit;
}

int p_unexpected(struct parser *p, const char *wanted)
{
    const struct jt_token *k = p_tok(p);
    static const char *const kinds[] = {
        [T_EOF] = "the end of the template",
        [T_TEXT] = "text",
        [T_VAR_BEGIN] = "'{{'",
        [T_VAR_END] = "'}}'",
        [T_BLOCK_BEGIN] = "'{%'",
        [T_BLOCK_END] = "'%}'",
        [T_STR] = "a string",
        [T_INT] = "a number",
        [T_FLOAT] = "a number",
        [T_OP] = "an operator",
    };
    if (k->t == T_NAME)
        return P_FAIL(p, E_FORMAT, k->pos, "expected %s, found '%.*s'", wanted,
                      (int)(k->len < 60 ? k->len : 60), k->p);
    if (k->t == T_OP && k->op >= 32)
        return P_FAIL(p, E_FORMAT, k->pos, "expected %s, found '%c'", wanted, k->op);
    return P_FAIL(p, E_FORMAT, k->pos, "expected %s, found %s", wanted, kinds[k->t]);
}

int p_need_op(struct parser *p, int op)
{
    char want[] = "'?'";
    want[1] = (char)op;
    return p_skip_op(p, op) ? OK : p_unexpected(p, want);
}

int p_enter(struct parser *p)
{
    if (++p->depth > LIM_CHAT_NESTING)
        return P_FAIL(p, E_RANGE, p_tok(p)->pos, "nested deeper than %d levels", LIM_CHAT_NESTING);
    return OK;
}

struct jt_node *p_node(struct parser *p, enum jt_kind kind, uint32_t pos)
{
    struct jt_node *n = jt_arena_zero(&p->t->arena, sizeof *n);
    n->kind = (uint8_t)kind;
    n->pos = pos;
    return n;
}

const char *p_text(struct parser *p, const struct jt_token *k)
{
    return jt_arena_strndup(&p->t->arena, k->p, k->len);
}

void p_push(struct parser *p, struct node_list *l, struct jt_node *n)
{
    if (l->n == l->cap) {
        uint32_t cap = l->cap ? l->cap * 2 : 4;
        struct jt_node **v = jt_arena_alloc(&p->t->arena, cap * sizeof *v);
        if (l->n)
            memcpy(v, l->v, l->n * sizeof *v);
        l->v = v;
        l->cap = cap;
    }
    l->v[l->n++] = n;
}

void p_give(struct jt_node *n, const struct node_list *l)
{
    n->list = l->v;
    n->n = l->n;
}

int jt_sym(struct chat_template *t, const char *name, size_t n, uint32_t pos, uint32_t *out,
           struct err *e)
{
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < n; i++)
        h = (h ^ (unsigned char)name[i]) * 16777619u;
    uint32_t *b = &t->bucket[h % JT_SYM_BUCKETS];
    for (uint32_t k = *b; k; k = t->syms[k - 1].next) {
        if (!strncmp(t->syms[k - 1].name, name, n) && !t->syms[k - 1].name[n]) {
            *out = k - 1;
            return OK;
        }
    }
    if (t->n_syms == LIM_CHAT_NAMES)
        return jt_syntax(t, e, E_RANGE, pos, "more than %d names", LIM_CHAT_NAMES);
    MEM_GROW(t->syms, t->cap_syms, t->n_syms + 1);
    struct jt_sym *s = &t->syms[t->n_syms];
    *s = (struct jt_sym){.name = jt_arena_strndup(&t->arena, name, n), .next = *b};
    s->builtin = jt_builtin_find(s->name);
    *b = ++t->n_syms;
    *out = *b - 1;
    return OK;
}

/* --- statements --- */

static int p_block_end(struct parser *p)
{
    if (p_tok(p)->t != T_BLOCK_END)
        return p_unexpected(p, "'%}'");
    p->i++;
    return OK;
}

/* "end" tag after a body: consumes NAME and '%}'. */
static int p_end(struct parser *p, const char *name)
{
    CHECK(p_is_name(p, name)); /* p_body stopped there */
    p->i++;
    return p_block_end(p);
}

static int p_if(struct parser *p, uint32_t pos, struct jt_node **out)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    struct node_list l = {0};
    struct jt_node *n = p_node(p, N_IF, pos), *cond, *body;
    do {
        p->i++;
        TRY(p_tuple(p, false, &cond));
        TRY(p_block_end(p));
        TRY(p_body(p, ends, &body));
        p_push(p, &l, cond);
        p_push(p, &l, body);
    } while (p_is_name(p, "elif"));
    if (p_skip_name(p, "else")) {
        TRY(p_block_end(p));
        TRY(p_body(p, &ends[2], &n->b));
    }
    p_give(n, &l);
    *out = n;
    return p_end(p, "endif");
}

static int p_for(struct parser *p, uint32_t pos, struct jt_node **out)
{
    static const char *const ends[] = {"else", "endfor", NULL};
    struct jt_node *n = p_node(p, N_FOR, pos), *body, *other = NULL;
    struct node_list l = {0};
    p->i++;
    TRY(p_target(p, false, &n->a));
    if (!p_skip_name(p, "in"))
        return p_unexpected(p, "'in'");
    TRY(p_tuple(p, false, &n->b));
    if (p_skip_name(p, "if"))
        TRY(p_expr(p, &n->c));
    if (p_is_name(p, "recursive"))
        return P_FAIL(p, E_UNSUPPORTED, p_tok(p)->pos, "recursive loop");
    TRY(p_block_end(p));
    p->loops++;
    TRY(p_body(p, ends, &body));
    p->loops--;
    if (p_skip_name(p, "else")) {
        TRY(p_block_end(p));
        TRY(p_body(p, &ends[1], &other));
    }
    p_push(p, &l, body);
    p_push(p, &l, other);
    p_give(n, &l);
    *out = n;
    return p_end(p, "endfor");
}

static int p_set(struct parser *p, uint32_t pos, struct jt_node **out)
{
    static const char *const ends[] = {"endset", NULL};
    struct jt_node *n = p_node(p, N_SET, pos);
    p->i++;
    TRY(p_target(p, true, &n->a));
    *out = n;
    if (p_skip_op(p, '=')) {
        TRY(p_tuple(p, true, &n->b));
        return p_block_end(p);
    }
    n->kind = N_SETBLOCK;
    TRY(p_filters(p, NULL, false, &n->b));
    TRY(p_block_end(p));
    TRY(p_body(p, ends, &n->c));
    return p_end(p, "endset");
}

/* (a, b=1): names to n->params, defaults to n->list. */
static int p_signature(struct parser *p, struct jt_node *n)
{
    struct node_list defaults = {0}, names = {0};
    TRY(p_need_op(p, '('));
    while (!p_is_op(p, ')')) {
        if (names.n)
            TRY(p_need_op(p, ','));
        struct jt_node *name, *def = NULL;
        const struct jt_token *k = p_tok(p);
        if (k->t != T_NAME)
            return p_unexpected(p, "the name of a parameter");
        name = p_node(p, N_NAME, k->pos);
        TRY(jt_sym(p->t, k->p, k->len, k->pos, &name->sym, p->e));
        p->i++;
        if (p_skip_op(p, '='))
            TRY(p_expr(p, &def));
        else if (defaults.n && defaults.v[defaults.n - 1])
            return P_FAIL(p, E_FORMAT, k->pos, "parameter without default after one with");
        p_push(p, &names, name);
        p_push(p, &defaults, def);
    }
    p->i++;
    p_give(n, &defaults);
    n->params = jt_arena_zero(&p->t->arena, (names.n + 1) * sizeof *n->params);
    for (uint32_t i = 0; i < names.n; i++)
        n->params[i] = names.v[i]->sym;
    return OK;
}

/* A body that runs as a function of its own: no break out of it. Restores the parser's state. */
static int p_function(struct parser *p, const char *end, struct jt_node *n, struct jt_node **body)
{
    const char *const ends[] = {end, NULL};
    int loops = p->loops;
    uint8_t uses = p->uses;
    p->loops = 0;
    p->uses = 0;
    TRY(p_block_end(p));
    TRY(p_body(p, ends, body));
    n->uses = p->uses;
    p->loops = loops;
    p->uses = uses;
    return p_end(p, end);
}

static int p_macro(struct parser *p, uint32_t pos, struct jt_node **out)
{
    struct jt_node *n = p_node(p, N_MACRO, pos);
    p->i++;
    const struct jt_token *k = p_tok(p);
    if (k->t != T_NAME)
        return p_unexpected(p, "the name of the macro");
    TRY(jt_sym(p->t, k->p, k->len, k->pos, &n->sym, p->e));
    p->i++;
    TRY(p_signature(p, n));
    *out = n;
    return p_function(p, "endmacro", n, &n->c);
}

static int p_callblock(struct parser *p, uint32_t pos, struct jt_node **out)
{
    struct jt_node *n = p_node(p, N_CALLBLOCK, pos);
    n->b = p_node(p, N_MACRO, pos);
    n->b->sym = p->t->sym_caller;
    p->i++;
    if (p_is_op(p, '('))
        TRY(p_signature(p, n->b));
    TRY(p_primary_call(p, &n->a));
    if (n->a->kind != N_CALL)
        return P_FAIL(p, E_FORMAT, n->a->pos, "'call' wants a call");
    *out = n;
    return p_function(p, "endcall", n->b, &n->b->c);
}

static int p_with(struct parser *p, uint32_t pos, struct jt_node **out)
{
    static const char *const ends[] = {"endwith", NULL};
    struct jt_node *n = p_node(p, N_WITH, pos), *x;
    struct node_list l = {0};
    p->i++;
    while (p_tok(p)->t != T_BLOCK_END) {
        if (l.n)
            TRY(p_need_op(p, ','));
        TRY(p_target(p, false, &x));
        p_push(p, &l, x);
        TRY(p_need_op(p, '='));
        TRY(p_expr(p, &x));
        p_push(p, &l, x);
    }
    p_give(n, &l);
    TRY(p_block_end(p));
    TRY(p_body(p, ends, &n->c));
    *out = n;
    return p_end(p, "endwith");
}

static int p_filterblock(struct parser *p, uint32_t pos, struct jt_node **out)
{
    static const char *const ends[] = {"endfilter", NULL};
    struct jt_node *n = p_node(p, N_FILTERBLOCK, pos);
    p->i++;
    TRY(p_filters(p, NULL, true, &n->b));
    TRY(p_block_end(p));
    TRY(p_body(p, ends, &n->c));
    *out = n;
    return p_end(p, "endfilter");
}

static int p_generation(struct parser *p, uint32_t pos, struct jt_node **out)
{
    struct jt_node *n = p_node(p, N_GENERATION, pos);
    uint8_t uses = p->uses;
    p->i++;
    TRY(p_function(p, "endgeneration", n, &n->c));
    p->uses = uses | n->uses; /* not a macro: it sees the macro's arguments */
    *out = n;
    return OK;
}

static int p_jump(struct parser *p, uint32_t pos, struct jt_node **out)
{
    bool brk = p_is_name(p, "break");
    if (!p->loops)
        return P_FAIL(p, E_FORMAT, pos, "'%s' outside a loop", brk ? "break" : "continue");
    p->i++;
    *out = p_node(p, brk ? N_BREAK : N_CONTINUE, pos);
    return p_block_end(p);
}

static int p_statement(struct parser *p, struct jt_node **out)
{
    static const struct {
        const char *name;
        int (*fn)(struct parser *p, uint32_t pos, struct jt_node **out);
    } tags[] = {
        {"if", p_if},
        {"for", p_for},
        {"set", p_set},
        {"macro", p_macro},
        {"call", p_callblock},
        {"with", p_with},
        {"break", p_jump},
        {"continue", p_jump},
        {"filter", p_filterblock},
        {"generation", p_generation},
    };
    const struct jt_token *k = p_tok(p);
    if (k->t != T_NAME)
        return p_unexpected(p, "the name of a statement");
    for (size_t i = 0; i < ARRAY_LEN(tags); i++)
        if (p_tok_is(k, tags[i].name))
            return tags[i].fn(p, k->pos, out);
    static const char *const strays[] = {"elif",      "else",          "endif",   "endfor",
                                         "endset",    "endmacro",      "endcall", "endwith",
                                         "endfilter", "endgeneration", "endraw"};
    for (size_t i = 0; i < ARRAY_LEN(strays); i++)
        if (p_tok_is(k, strays[i]))
            return P_FAIL(p, E_FORMAT, k->pos, "unexpected '%s'", strays[i]);
    return P_FAIL(p, E_UNSUPPORTED, k->pos, "statement '%.*s'", (int)(k->len < 60 ? k->len : 60),
                  k->p);
}

static bool is_end(const struct parser *p, const char *const *ends)
{
    for (; *ends; ends++)
        if (p_is_name(p, *ends))
            return true;
    return false;
}

/* Statements up to one of `ends` (the tag's name is the current token then), or to the end of the
 * template when ends is empty. */
static int p_body(struct parser *p, const char *const *ends, struct jt_node **out)
{
    uint32_t pos = p_tok(p)->pos;
    struct node_list l = {0};
    TRY(p_enter(p));
    for (;;) {
        const struct jt_token *k = p_tok(p);
        struct jt_node *n;
        if (k->t == T_EOF) {
            if (*ends)
                return P_FAIL(p, E_FORMAT, k->pos, "the template ends where '%s' is missing",
                              ends[0]);
            break;
        }
        p->i++;
        if (k->t == T_TEXT) {
            n = p_node(p, N_TEXT, k->pos);
            struct jt_str *s = jt_arena_zero(&p->t->arena, sizeof *s);
            s->p = k->p;
            s->len = k->len;
            n->value = jt_strv(s);
        } else if (k->t == T_VAR_BEGIN) {
            n = p_node(p, N_PRINT, k->pos);
            TRY(p_tuple(p, true, &n->a));
            if (p_tok(p)->t != T_VAR_END)
                return p_unexpected(p, "'}}'");
            p->i++;
        } else {
            CHECK(k->t == T_BLOCK_BEGIN);
            if (is_end(p, ends))
                break;
            TRY(p_statement(p, &n));
        }
        p_push(p, &l, n);
    }
    p->depth--;
    *out = p_node(p, N_BLOCK, pos);
    p_give(*out, &l);
    return OK;
}

int jt_parse(struct chat_template *t, struct err *e)
{
    static const char *const no_end[] = {NULL};
    static const struct {
        const char *name;
        size_t at;
    } known[] = {{"loop", offsetof(struct chat_template, sym_loop)},
                 {"caller", offsetof(struct chat_template, sym_caller)},
                 {"varargs", offsetof(struct chat_template, sym_varargs)},
                 {"kwargs", offsetof(struct chat_template, sym_kwargs)}};
    struct jt_tokens tokens = {0};
    int ret;
    for (size_t i = 0; i < ARRAY_LEN(known); i++)
        TRY_OUT(jt_sym(t, known[i].name, strlen(known[i].name), 0,
                       (uint32_t *)((char *)t + known[i].at), e));
    TRY_OUT(jt_lex(t, &tokens, e));
    struct parser p = {.t = t, .v = tokens.v, .n = tokens.n, .e = e};
    TRY_OUT(p_body(&p, no_end, &t->root));
    ret = OK;
out:
    mem_free(tokens.v);
    return ret;
}
