/* Values of a render: strings that know where each byte came from, lists, dicts, callables.
 *
 * Everything lives in the render's arena and dies with it; nothing is shared between renders
 * except constants of the parsed template, which are immutable. The semantics are Python's,
 * because templates show them: equality, truth, order, str() and repr(). */
#ifndef SPECD_CHAT_VALUE_H
#define SPECD_CHAT_VALUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/buf.h"
#include "engine/base/err.h"
#include "engine/base/js.h"
#include "engine/base/span.h"
#include "server/chat/arena.h"
#include "server/chat/chat.h"

struct jt_rt;
struct jt_node;
struct jt_scope;
struct jt_loop;

enum jt_origin { JT_TEMPLATE, JT_REQUEST, JT_MIXED };

/* A string. Flat (p set), or the lazy concatenation of two others (p NULL), made flat when
 * somebody looks at the bytes. `marks` are the request-origin spans of a flat mixed string. */
struct jt_str {
    size_t len;
    const char *p;
    union {
        struct {
            struct jt_str *a, *b;
        };
        struct {
            const struct span *marks;
            size_t n_marks;
        };
    };
    uint8_t origin; /* enum jt_origin */
};

enum jt_type {
    JT_UNSET, /* an argument that was not given; never visible to a template */
    JT_UNDEF,
    JT_NONE,
    JT_BOOL,
    JT_INT,
    JT_FLOAT,
    JT_STR,
    JT_LIST,
    JT_TUPLE,
    JT_DICT,
    JT_RANGE,
    JT_VIEW, /* keys(), values(), items(): a snapshot */
    JT_GEN,  /* what map, select and the like give: can be walked once */
    JT_NS,   /* namespace() */
    JT_LOOP,
    JT_FUNC,  /* builtin function or bound method */
    JT_MACRO, /* macro or caller */
    JT_CYCLER,
    JT_JOINER,
};

struct jt_val {
    enum jt_type t;
    union {
        const char *name; /* UNDEF: what was looked up, for messages; may be NULL */
        bool b;
        int64_t i;
        double f;
        struct jt_str *s;
        struct jt_list *l; /* LIST, TUPLE, VIEW, GEN, CYCLER, JOINER */
        struct jt_dict *d; /* DICT, NS */
        struct jt_range *r;
        struct jt_loop *loop;
        struct jt_func *fn;
        struct jt_macro *m;
    };
};

struct jt_list {
    struct jt_val *v;
    size_t n, cap;
    size_t at;        /* CYCLER: next item; JOINER: 1 once it was called */
    const char *what; /* VIEW: "dict_keys" ...; GEN: NULL when already walked */
};

struct jt_ent {
    struct jt_val k, v;
    uint64_t hash;
};

/* Insertion-ordered; the index exists from JT_DICT_SMALL entries on. */
struct jt_dict {
    struct jt_ent *e;
    size_t n, cap;
    uint32_t *index; /* open addressing, entry number + 1, 0 = free */
    size_t n_index;  /* a power of two */
};

struct jt_range {
    int64_t from, to, step;
    size_t n;
};

struct jt_kwarg {
    const char *name;
    struct jt_val v;
};

struct jt_args {
    const struct jt_val *v;
    size_t n;
    const struct jt_kwarg *kw;
    size_t n_kw;
};

typedef int (*jt_fn)(struct jt_rt *rt, struct jt_val self, const struct jt_args *a,
                     struct jt_val *out);

struct jt_func {
    const char *name;
    jt_fn fn; /* NULL: a method of Python that we know and do not have */
    struct jt_val self;
};

struct jt_macro {
    const struct jt_node *node;
    struct jt_scope *scope; /* where it was defined */
};

/* --- strings (str.c) --- */
struct jt_str *jt_str_ref(struct jt_rt *rt, const char *p, size_t n, enum jt_origin o);
struct jt_str *jt_str_dup(struct jt_rt *rt, const char *p, size_t n, enum jt_origin o);
int jt_str_cat(struct jt_rt *rt, struct jt_str *a, struct jt_str *b, struct jt_str **out);
const char *jt_str_flat(struct jt_rt *rt, struct jt_str *s); /* s->len bytes, no NUL promised */
struct jt_str *jt_str_sub(struct jt_rt *rt, struct jt_str *s, size_t from, size_t to);
bool jt_str_eq(struct jt_rt *rt, struct jt_str *a, struct jt_str *b);
bool jt_str_is(struct jt_rt *rt, struct jt_str *s, const char *text);
int jt_str_cmp(struct jt_rt *rt, struct jt_str *a, struct jt_str *b);
/* Byte offset of code point number `i` (0..count) of flat text. */
size_t jt_cp_offset(const char *p, size_t n, size_t i);

/* A string under construction; nested, released in reverse order, or all by the end of the
 * render. The result type of chat_render has just the right members. */
struct chat_text *jt_sb_open(struct jt_rt *rt);
int jt_sb_close(struct jt_rt *rt, struct chat_text *sb, struct jt_val *out);
void jt_sb_push(struct chat_text *sb, const char *p, size_t n, enum jt_origin o);
void jt_sb_lit(struct chat_text *sb, const char *text); /* template origin */
int jt_sb_str(struct jt_rt *rt, struct chat_text *sb, struct jt_str *s);
void jt_sb_sub(struct jt_rt *rt, struct chat_text *sb, struct jt_str *s, size_t from, size_t to);

/* --- values (value.c) --- */
#define JT_V(type, member, x) ((struct jt_val){.t = (type), .member = (x)})
#define jt_none() ((struct jt_val){.t = JT_NONE})
#define jt_undef(what) JT_V(JT_UNDEF, name, (what))
#define jt_bool(x) JT_V(JT_BOOL, b, (x))
#define jt_int(x) JT_V(JT_INT, i, (x))
#define jt_float(x) JT_V(JT_FLOAT, f, (x))
#define jt_strv(x) JT_V(JT_STR, s, (x))
struct jt_val jt_text(struct jt_rt *rt, const char *text); /* template origin, borrowed */

const char *jt_type_name(struct jt_val v); /* Python's name, for messages */
bool jt_truth(struct jt_val v);
int jt_eq(struct jt_rt *rt, struct jt_val a, struct jt_val b, bool *out);
int jt_order(struct jt_rt *rt, struct jt_val a, struct jt_val b, int *out); /* <0, 0, >0 */
int jt_contains(struct jt_rt *rt, struct jt_val box, struct jt_val x, bool *out);
int jt_len(struct jt_rt *rt, struct jt_val v, size_t *out);
bool jt_is_num(struct jt_val v); /* bool, int, float */
double jt_num(struct jt_val v);
bool jt_as_int(struct jt_val v, int64_t *out); /* bool or int */

struct jt_list *jt_list_new(struct jt_rt *rt, size_t cap);
int jt_list_push(struct jt_rt *rt, struct jt_list *l, struct jt_val v);
/* A walk over any iterable as a list: the list itself for list and tuple, else a new one. */
int jt_items(struct jt_rt *rt, struct jt_val v, struct jt_list **out);

struct jt_dict *jt_dict_new(struct jt_rt *rt);
int jt_dict_get(struct jt_rt *rt, struct jt_dict *d, struct jt_val k, struct jt_val **out);
int jt_dict_set(struct jt_rt *rt, struct jt_dict *d, struct jt_val k, struct jt_val v);
int jt_dict_del(struct jt_rt *rt, struct jt_dict *d, struct jt_val k); /* 1 when it was there */
struct jt_val *jt_dict_name(struct jt_rt *rt, struct jt_dict *d, const char *name);

/* Borrows the strings of the tree. jt_own copies them, so that the tree may go. */
int jt_own(struct jt_rt *rt, struct jt_val *v);
int jt_from_json(struct jt_rt *rt, json_t *j, enum jt_origin o, struct jt_val *out);

/* --- text of values (repr.c) --- */
int jt_str_of(struct jt_rt *rt, struct jt_val v, struct jt_str **out); /* str(v) */
int jt_put(struct jt_rt *rt, struct chat_text *sb, struct jt_val v);   /* str(v) */
int jt_repr(struct jt_rt *rt, struct chat_text *sb, struct jt_val v);
size_t jt_float_repr(char out[40], double f);
struct jt_json_opts {
    bool ascii, sort, indented;
    struct jt_str *indent, *item_sep, *key_sep;
};
int jt_tojson(struct jt_rt *rt, struct chat_text *sb, struct jt_val v, const struct jt_json_opts *o,
              int level);

/* --- Unicode (case.c) --- */
enum jt_case { JT_UPPER, JT_LOWER, JT_TITLE, JT_CAPITALIZE };
bool jt_is_space(uint32_t cp);
size_t jt_space_head(const char *p, size_t n); /* bytes of leading white space */
size_t jt_space_tail(const char *p, size_t n);
int jt_case(struct jt_rt *rt, struct jt_str *s, enum jt_case how, struct jt_val *out);
bool jt_is_printable(uint32_t cp);
bool jt_is_cased(uint32_t cp);

#endif
