/* One error polarity for the whole project: 0 is success, negative is one of E_*.
 *
 * A fallible function returns int and takes `struct err *e` last when a person will read the
 * reason. Outputs are untouched on failure. `e` may be NULL. The text names the field, file or
 * tensor that is wrong; whoever is highest prints it once. */
#ifndef SPECD_BASE_ERR_H
#define SPECD_BASE_ERR_H

enum {
    OK = 0,
    E_NOMEM = -1,       /* a planned pool or bound is exhausted */
    E_INVAL = -2,       /* a value a person or a file gave is wrong */
    E_UNSUPPORTED = -3, /* right, but this build or model cannot do it */
    E_BUSY = -4,        /* a queue is full: try again later */
    E_IO = -5,          /* the operating system said no */
    E_FORMAT = -6,      /* a file or message is malformed */
    E_CANCELED = -7,    /* given up on request or at shutdown */
    E_DEVICE = -8,      /* the device failed */
    E_RANGE = -9,       /* too long: prompt over the context, text over a limit */
};

struct err {
    int code;         /* E_*; 0 when nothing was set */
    int line;         /* where it was raised */
    const char *file; /* static string */
    char text[400];   /* one sentence, no newline */
};

/* Fills `e` (when not NULL) and returns `code`. */
int err_set(struct err *e, int code, const char *file, int line, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
/* Puts "what: " before the text of an error that is already set; returns e->code. */
int err_prefix(struct err *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
const char *err_name(int code);

#define FAIL(e, code, ...) err_set((e), (code), __FILE__, __LINE__, __VA_ARGS__)
/* Leave the function when `expr` failed; for functions with nothing to release. */
#define TRY(expr)                                                                                  \
    do {                                                                                           \
        int try_r_ = (expr);                                                                       \
        if (try_r_ < 0)                                                                            \
            return try_r_;                                                                         \
    } while (0)
/* Set `ret` and go to `out` when `expr` failed; for functions that release at one label. */
#define TRY_OUT(expr)                                                                              \
    do {                                                                                           \
        ret = (expr);                                                                              \
        if (ret < 0)                                                                               \
            goto out;                                                                              \
    } while (0)

#endif
