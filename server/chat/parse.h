/* What the two halves of the parser share. */
#ifndef SPECD_CHAT_PARSE_H
#define SPECD_CHAT_PARSE_H

#include "server/chat/ast.h"

struct parser {
    struct chat_template *t;
    const struct jt_token *v; /* ends with T_EOF */
    size_t i, n;
    int depth;    /* nested rules, against LIM_CHAT_NESTING */
    int loops;    /* loops around the statement, within the current function body */
    uint8_t uses; /* USES_* seen since the innermost macro began */
    struct err *e;
};

struct node_list {
    struct jt_node **v;
    uint32_t n, cap;
};

#define P_FAIL(p, code, pos, ...) jt_syntax((p)->t, (p)->e, (code), (pos), __VA_ARGS__)

static inline const struct jt_token *p_tok(const struct parser *p)
{
    return &p->v[p->i];
}

bool p_is_op(const struct parser *p, int op);
bool p_is_name(const struct parser *p, const char *name);
bool p_tok_is(const struct jt_token *k, const char *name);
bool p_skip_op(struct parser *p, int op); /* true and one on when it is there */
bool p_skip_name(struct parser *p, const char *name);
int p_need_op(struct parser *p, int op);
int p_unexpected(struct parser *p, const char *wanted);
int p_enter(struct parser *p);
struct jt_node *p_node(struct parser *p, enum jt_kind kind, uint32_t pos);
const char *p_text(struct parser *p, const struct jt_token *k); /* NUL-terminated copy */
void p_push(struct parser *p, struct node_list *l, struct jt_node *n);
void p_give(struct jt_node *n, const struct node_list *l);

int p_expr(struct parser *p, struct jt_node **out);                /* with inline if */
int p_expr_no_if(struct parser *p, struct jt_node **out);          /* up to `or` */
int p_tuple(struct parser *p, bool with_if, struct jt_node **out); /* a, b, c without brackets */
int p_primary_call(struct parser *p, struct jt_node **out); /* name with attributes and call */
int p_filters(struct parser *p, struct jt_node *in, bool first, struct jt_node **out);
int p_call_args(struct parser *p, struct jt_node *call);
int p_target(struct parser *p, bool namespaces, struct jt_node **out); /* a  |  a, b  |  ns.a */

#endif
