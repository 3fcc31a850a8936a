/* A growing byte buffer with an upper bound. The bytes are always followed by a NUL that is not
 * counted, so `p` can be handed to C string functions when the content has no NUL of its own. */
#ifndef SPECD_BASE_BUF_H
#define SPECD_BASE_BUF_H

#include <stdbool.h>
#include <stddef.h>

struct buf {
    char *p;    /* NULL until the first push */
    size_t len; /* bytes in use */
    size_t cap;
    size_t max; /* 0: only bounded by the caller's own limits */
    bool full;  /* a push was refused because of max; sticky until buf_reset */
};

void buf_init(struct buf *b, size_t max);
void buf_done(struct buf *b);
void buf_reset(struct buf *b);                        /* keeps the memory */
int buf_reserve(struct buf *b, size_t more);          /* room for `more` bytes; E_RANGE over max */
int buf_push(struct buf *b, const void *p, size_t n); /* E_RANGE over max, nothing pushed */
int buf_str(struct buf *b, const char *s);
int buf_char(struct buf *b, char c);
int buf_fmt(struct buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void buf_drop(struct buf *b, size_t n); /* forget the first n bytes */
char *buf_take(struct buf *b);          /* hands the string over (mem_free); buffer is empty */
const char *buf_cstr(const struct buf *b);

#endif
