/* The parsed template: tokens, syntax tree, names. Owned by the template's arena; immutable once
 * chat_template_parse has returned, so any number of threads may render from it. */
#ifndef SPECD_CHAT_AST_H
#define SPECD_CHAT_AST_H

#include "server/chat/value.h"

enum jt_tok {
    T_EOF,
    T_TEXT,
    T_VAR_BEGIN,
    T_VAR_END,
    T_BLOCK_BEGIN,
    T_BLOCK_END,
    T_NAME,
    T_STR,
    T_INT,
    T_FLOAT,
    T_OP
};

/* Operators of one character are that character. */
enum { OP_FLOORDIV = 1, OP_POW, OP_EQ, OP_NE, OP_GE, OP_LE, OP_IN, OP_NOTIN };

struct jt_token {
    uint8_t t;    /* enum jt_tok */
    uint8_t op;   /* T_OP */
    uint32_t pos; /* byte offset in the source */
    uint32_t len; /* of p */
    union {
        const char *p; /* T_TEXT, T_NAME, T_STR (unescaped) */
        int64_t i;
        double f;
    };
};

struct jt_tokens {
    struct jt_token *v;
    size_t n, cap;
};

enum jt_kind {
    /* expressions */
    N_CONST,  /* value */
    N_NAME,   /* sym */
    N_LIST,   /* list */
    N_TUPLE,  /* list */
    N_DICT,   /* list: key, value, key, value ... */
    N_ATTR,   /* a . name */
    N_ITEM,   /* a [ b ] */
    N_SLICE,  /* a [ list[0] : list[1] : list[2] ], entries may be NULL */
    N_CALL,   /* a ( list, kw ) */
    N_FILTER, /* a | filter(list, kw); a NULL: the text of a block */
    N_TEST,   /* a is test(list, kw); op 1: is not */
    N_UNARY,  /* op '-' or '+', a */
    N_BINARY, /* a op b */
    N_AND,
    N_OR,      /* list */
    N_NOT,     /* a */
    N_COMPARE, /* list: operands; ops: operators between them */
    N_CONCAT,  /* list */
    N_COND,    /* b if a else c (c may be NULL) */
    /* statements */
    N_TEXT,        /* value */
    N_PRINT,       /* a */
    N_BLOCK,       /* list */
    N_IF,          /* list: condition, body, condition, body ...; b: else */
    N_FOR,         /* target a, iterable b, filter c, list[0] body, list[1] else or NULL */
    N_SET,         /* target a = b */
    N_SETBLOCK,    /* target a, b: filter chain or NULL, c: body */
    N_NSREF,       /* target: sym . name */
    N_MACRO,       /* sym; params, list: defaults (NULL: none) and last the body */
    N_CALLBLOCK,   /* a: the call; b: N_MACRO of the caller */
    N_FILTERBLOCK, /* b: filter chain; c: body */
    N_WITH,        /* list: target, value, ...; c: body */
    N_GENERATION,  /* c: body */
    N_BREAK,
    N_CONTINUE,
};

struct jt_node {
    uint8_t kind;
    uint8_t op;
    uint8_t uses; /* N_MACRO: USES_* */
    uint32_t pos;
    uint32_t sym;
    uint32_t n; /* of list */
    uint32_t n_kw;
    struct jt_node *a, *b, *c;
    struct jt_node **list;
    union {
        struct jt_node **kw_v; /* values of the keyword arguments */
        uint8_t *ops;
        uint32_t *params;
    };
    union {
        const char **kw_name;
        const char *name;
    };
    union {
        struct jt_val value;
        const struct jt_filter *filter;
        const struct jt_test *test;
    };
};
enum { USES_CALLER = 1, USES_VARARGS = 2, USES_KWARGS = 4 };

struct jt_sym {
    const char *name;
    uint32_t next; /* in the hash chain, + 1 */
    const struct jt_builtin *builtin;
};

enum { JT_SYM_BUCKETS = 512 };

struct jt_token_var {
    const char *name, *value;
};

struct chat_template {
    struct jt_arena arena;
    const char *src; /* with newlines normalised */
    size_t n_src;
    struct jt_node *root;
    struct jt_sym *syms;
    uint32_t n_syms, cap_syms;
    uint32_t bucket[JT_SYM_BUCKETS];
    uint32_t sym_loop, sym_caller, sym_varargs, sym_kwargs;
    unsigned max_steps;        /* of one render */
    struct jt_token_var *vars; /* bos_token and the like */
    size_t n_vars, cap_vars;
};

int jt_lex(struct chat_template *t, struct jt_tokens *out, struct err *e);
int jt_parse(struct chat_template *t, struct err *e);
int jt_sym(struct chat_template *t, const char *name, size_t n, uint32_t pos, uint32_t *out,
           struct err *e);
/* "line L, column C" of a byte offset; columns count characters from 1. */
void jt_where(const struct chat_template *t, uint32_t pos, uint32_t *line, uint32_t *col);
int jt_syntax(const struct chat_template *t, struct err *e, int code, uint32_t pos, const char *fmt,
              ...) __attribute__((format(printf, 5, 6)));

#endif
