/* The only wrapper of jansson: parsing with our rules and typed getters that name what is wrong.
 *
 * Rules: duplicate keys, NUL in strings, lone surrogates and non-UTF-8 are errors; an explicit
 * null counts as absent; a whole real (5.0) is accepted where an integer is wanted; nothing is
 * coerced from strings. A tree belongs to one thread at a time. */
#ifndef SPECD_BASE_JS_H
#define SPECD_BASE_JS_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/err.h"

/* Parses one JSON text; `what` names it in the error ("request body", a file name). A UTF-8 byte
 * order mark is skipped. Any top-level value is accepted. Caller owns *out (json_decref). */
int js_parse(json_t **out, const char *text, size_t len, const char *what, struct err *e);
int js_load(json_t **out, const char *path, struct err *e);

/* Getters: 1 = present and stored, 0 = absent or null (output untouched), negative = wrong type
 * or range, with the key named in `e`. Strings are borrowed from the tree. */
int js_get_str(const json_t *o, const char *key, const char **out, struct err *e);
int js_get_bool(const json_t *o, const char *key, bool *out, struct err *e);
int js_get_i64(const json_t *o, const char *key, int64_t lo, int64_t hi, int64_t *out,
               struct err *e);
int js_get_num(const json_t *o, const char *key, double *out, struct err *e); /* finite */
int js_get_obj(const json_t *o, const char *key, json_t **out, struct err *e);
int js_get_arr(const json_t *o, const char *key, json_t **out, struct err *e);
/* The value of a key, NULL when absent or null. */
json_t *js_get(const json_t *o, const char *key);
/* 1/0 whether v is an integer (or a whole real within 2^53); stores it. */
bool js_is_int(const json_t *v, int64_t *out);
const char *js_type_name(const json_t *v);

struct buf;
/* Appends the JSON string literal of n UTF-8 bytes, quotes included. */
void js_quote(struct buf *b, const char *s, size_t n);

#endif
