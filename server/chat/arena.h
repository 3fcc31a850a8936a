/* Memory that is released all at once: one arena per parsed template, one per render. */
#ifndef SPECD_CHAT_ARENA_H
#define SPECD_CHAT_ARENA_H

#include <stddef.h>

struct jt_chunk;

struct jt_arena {
    struct jt_chunk *head;
    size_t used; /* bytes handed out; the owner compares it with its bound */
};

void *jt_arena_alloc(struct jt_arena *a, size_t bytes); /* 16-byte aligned, not zeroed */
void *jt_arena_zero(struct jt_arena *a, size_t bytes);
char *jt_arena_strndup(struct jt_arena *a, const char *p, size_t n);
void jt_arena_done(struct jt_arena *a);

#endif
