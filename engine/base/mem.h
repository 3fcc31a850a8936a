/* Host allocation. These calls never return NULL: exhaustion of host memory aborts with the size
 * asked for, since every client-driven size is bounded before it gets here (engine/limits.h).
 * Device memory goes through kernels/device.h, where running out is an ordinary error. */
#ifndef SPECD_BASE_MEM_H
#define SPECD_BASE_MEM_H

#include <stddef.h>

void *mem_alloc(size_t bytes);
void *mem_calloc(size_t n, size_t bytes); /* zeroed; n * bytes is checked */
void *mem_realloc(void *p, size_t n, size_t bytes);
void *mem_aligned(size_t align, size_t bytes); /* freed by mem_free */
void *mem_dup(const void *p, size_t bytes);
char *mem_strdup(const char *s);
char *mem_strndup(const char *s, size_t n);
char *mem_printf(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void mem_free(void *p); /* NULL is fine */

/* a * b, aborting on overflow. */
size_t mem_mul(size_t a, size_t b);

/* Counts live allocations of this module; tests compare it before and after. */
long mem_live(void);

#define MEM_NEW(type) ((type *)mem_calloc(1, sizeof(type)))
#define MEM_ARRAY(type, n) ((type *)mem_calloc((size_t)(n), sizeof(type)))
/* Grow `ptr` (capacity `cap` elements) so that it holds at least `need`. */
#define MEM_GROW(ptr, cap, need)                                                                   \
    do {                                                                                           \
        if ((size_t)(cap) < (size_t)(need)) {                                                      \
            size_t grow_n_ = (size_t)(cap)*2 + 16;                                                 \
            if (grow_n_ < (size_t)(need))                                                          \
                grow_n_ = (size_t)(need);                                                          \
            (ptr) = (__typeof__(ptr))mem_realloc((ptr), grow_n_, sizeof *(ptr));                   \
            (cap) = (__typeof__(cap))grow_n_;                                                      \
        }                                                                                          \
    } while (0)

#endif
