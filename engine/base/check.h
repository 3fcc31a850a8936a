/* Invariants. CHECK is always on: a broken one is a bug, so the process says where and aborts.
 * DCHECK is for hot loops and exists only without NDEBUG. Wrong input is an error, not a CHECK. */
#ifndef SPECD_BASE_CHECK_H
#define SPECD_BASE_CHECK_H

void check_fail(const char *cond, const char *file, int line, const char *func)
    __attribute__((noreturn));

#define CHECK(cond)                                                                                \
    do {                                                                                           \
        if (__builtin_expect(!(cond), 0))                                                          \
            check_fail(#cond, __FILE__, __LINE__, __func__);                                       \
    } while (0)

#ifdef NDEBUG
#define DCHECK(cond) ((void)0)
#else
#define DCHECK(cond) CHECK(cond)
#endif

#define ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))

#endif
