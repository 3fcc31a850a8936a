/* The only caller of malloc and free; any thread. */
#include "engine/base/mem.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static atomic_long g_live;

static void *or_die(void *p, size_t bytes)
{
    if (!p) {
        fprintf(stderr, "specd: out of memory (%zu bytes)\n", bytes);
        abort();
    }
    atomic_fetch_add_explicit(&g_live, 1, memory_order_relaxed);
    return p;
}

size_t mem_mul(size_t a, size_t b)
{
    size_t r;
    if (__builtin_mul_overflow(a, b, &r)) {
        fprintf(stderr, "specd: allocation size overflows (%zu x %zu)\n", a, b);
        abort();
    }
    return r;
}

void *mem_alloc(size_t bytes)
{
    return or_die(malloc(bytes ? bytes : 1), bytes);
}

void *mem_calloc(size_t n, size_t bytes)
{
    size_t total = mem_mul(n, bytes);
    return or_die(calloc(1, total ? total : 1), total);
}

void *mem_realloc(void *p, size_t n, size_t bytes)
{
    size_t total = mem_mul(n, bytes);
    if (p)
        atomic_fetch_sub_explicit(&g_live, 1, memory_order_relaxed);
    return or_die(realloc(p, total ? total : 1), total);
}

void *mem_aligned(size_t align, size_t bytes)
{
    if (bytes > SIZE_MAX - align)
        mem_mul(SIZE_MAX, 2);
    size_t total = (bytes + align - 1) / align * align;
    return or_die(aligned_alloc(align, total ? total : align), total);
}

void *mem_dup(const void *p, size_t bytes)
{
    void *r = mem_alloc(bytes);
    if (bytes)
        memcpy(r, p, bytes);
    return r;
}

char *mem_strndup(const char *s, size_t n)
{
    char *r = mem_alloc(n + 1);
    memcpy(r, s, n);
    r[n] = 0;
    return r;
}

char *mem_strdup(const char *s)
{
    return mem_strndup(s, strlen(s));
}

char *mem_printf(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n < 0)
        return mem_strdup("");
    char *r = mem_alloc((size_t)n + 1);
    va_start(ap, fmt);
    vsnprintf(r, (size_t)n + 1, fmt, ap);
    va_end(ap);
    return r;
}

void mem_free(void *p)
{
    if (!p)
        return;
    atomic_fetch_sub_explicit(&g_live, 1, memory_order_relaxed);
    free(p);
}

long mem_live(void)
{
    return atomic_load_explicit(&g_live, memory_order_relaxed);
}
