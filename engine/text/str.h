/* Borrowed byte strings, the table that owns them, and a hash map from string to id. Built by one
 * thread while a tokenizer loads, read by any number afterwards. */
#ifndef SPECD_TEXT_STR_H
#define SPECD_TEXT_STR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct str {
    const char *p; /* NUL terminated when it lives in a strtab */
    size_t n;
};

struct strtab_block;
struct strtab { /* zero-initialise */
    struct strtab_block *head;
};
struct str strtab_add(struct strtab *t, const char *p, size_t n); /* lives until strtab_done */
void strtab_done(struct strtab *t);

struct strmap_slot;
struct strmap { /* zero-initialise */
    struct strmap_slot *slot;
    size_t mask, n;
};
void strmap_init(struct strmap *m, size_t expected);
/* false: the string is there already (the map keeps the old id). `s` must outlive the map. */
bool strmap_put(struct strmap *m, struct str s, int32_t id);
int32_t strmap_get(const struct strmap *m, const char *p, size_t n); /* -1: none */
void strmap_done(struct strmap *m);

#endif
