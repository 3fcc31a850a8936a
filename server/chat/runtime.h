/* State of one render, scopes, and the tables of filters, tests, functions and methods.
 * A render belongs to one thread from start to end; a template is shared and immutable. */
#ifndef SPECD_CHAT_RUNTIME_H
#define SPECD_CHAT_RUNTIME_H

#include "server/chat/ast.h"
#include "server/chat/value.h"

struct jt_bind {
    uint32_t sym;
    struct jt_val v;
};

struct jt_scope {
    struct jt_scope *up;
    struct jt_bind *b;
    uint32_t n, cap;
    bool captured; /* a macro holds it: a loop must not reuse it for the next item */
};

struct jt_loop {
    struct jt_list *l;        /* live: a list that grows while walked is walked further */
    const struct jt_range *r; /* instead of l */
    size_t i;                 /* item being rendered */
    struct jt_val changed;    /* arguments of the last loop.changed() */
};

struct jt_rt {
    const struct chat_template *t;
    struct jt_arena arena;
    uint64_t steps;
    int depth;
    uint32_t pos; /* source offset for errors */
    struct err *e;
    struct chat_text *out;    /* where statements print */
    struct chat_text **sinks; /* strings under construction, innermost last */
    size_t n_sinks, cap_sinks, open_sinks;
    struct jt_val block;  /* what the filters of a block are applied to */
    struct jt_str **walk; /* scratch of the flattening walk */
    size_t cap_walk;
};

/* Charges `bytes / 32 + 1` steps and checks every bound of the render. */
int rt_step(struct jt_rt *rt, size_t bytes);
int rt_enter(struct jt_rt *rt); /* one level deeper; rt->depth-- on the way out */
/* Sets the error with "line L, column C: " in front; returns code. */
int rt_fail(struct jt_rt *rt, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

int rt_bind(struct jt_rt *rt, struct jt_scope *sc, uint32_t sym, struct jt_val v);
struct jt_val rt_lookup(struct jt_rt *rt, struct jt_scope *sc, uint32_t sym);

int rt_eval(struct jt_rt *rt, const struct jt_node *n, struct jt_scope *sc, struct jt_val *out);
enum { FLOW_BREAK = 1, FLOW_CONTINUE = 2 }; /* what rt_exec gives besides OK and errors */
int rt_exec(struct jt_rt *rt, const struct jt_node *n, struct jt_scope *sc);
int rt_call(struct jt_rt *rt, struct jt_val f, const struct jt_args *a, struct jt_val *out);
int rt_binary(struct jt_rt *rt, int op, struct jt_val a, struct jt_val b, struct jt_val *out);
int rt_format(struct jt_rt *rt, struct jt_str *fmt, const struct jt_val *v, size_t n, bool tuple,
              struct jt_val *out); /* the % operator of str */
int rt_getattr(struct jt_rt *rt, struct jt_val obj, const char *name, struct jt_val *out);
int rt_getitem(struct jt_rt *rt, struct jt_val obj, struct jt_val key, struct jt_val *out);
int rt_slice(struct jt_rt *rt, struct jt_val obj, const struct jt_val lim[3], struct jt_val *out);
int rt_exec_macro(struct jt_rt *rt, const struct jt_macro *m, const struct jt_args *a,
                  struct jt_val *out);

/* Fills v[] with the arguments in the order of `names` ("a,b,c"); what was not given is JT_UNSET.
 * Fewer than `need`, too many, or a keyword that is not in the list is an error. */
int rt_args(struct jt_rt *rt, const char *fn, const struct jt_args *a, const char *names,
            size_t need, struct jt_val *v);
/* Typed views of one argument; unset leaves *out alone. */
int rt_arg_int(struct jt_rt *rt, const char *fn, struct jt_val v, int64_t *out);
int rt_arg_str(struct jt_rt *rt, const char *fn, struct jt_val v, struct jt_str **out);

struct jt_filter {
    const char *name;
    jt_fn fn; /* self is the filtered value; NULL: exists in Jinja, not here */
};
const struct jt_filter *jt_filter_find(const char *name);
const struct jt_filter *jt_seq_filter_find(const char *name); /* the half in filters_seq.c */

struct jt_test {
    const char *name;
    int (*fn)(struct jt_rt *rt, struct jt_val v, const struct jt_args *a, bool *out);
};
const struct jt_test *jt_test_find(const char *name);

struct jt_builtin {
    const char *name;
    jt_fn fn;
};
const struct jt_builtin *jt_builtin_find(const char *name);

/* The method of a value's type; NULL when the type has none of that name. */
struct jt_method {
    const char *name;
    jt_fn fn; /* NULL: a method of Python that we do not have */
};
const struct jt_method *jt_method_find(struct jt_val self, const char *name);
const struct jt_method *jt_str_method_find(const char *name);

/* item.a.b or item[0]: the `attribute` argument of map, sort and the like. */
int rt_attr_path(struct jt_rt *rt, struct jt_val v, struct jt_val path, struct jt_val *out);
/* sorted(): stable; keys[i] belongs to l->v[i] and moves with it. */
int rt_sort(struct jt_rt *rt, struct jt_list *l, struct jt_val *keys, bool reverse);
int rt_replace(struct jt_rt *rt, struct jt_str *s, struct jt_str *old, struct jt_str *with,
               int64_t count, struct jt_val *out);
int rt_strip(struct jt_rt *rt, struct jt_str *s, struct jt_str *chars, bool left, bool right,
             struct jt_val *out);
int rt_join(struct jt_rt *rt, struct jt_str *sep, struct jt_list *l, struct jt_val *out);

#endif
