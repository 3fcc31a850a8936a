/* Log lines on stderr, one event a line. Layers below the engine facade return errors and do not
 * log above debug; engine, scheduler, worker and server log. Under journald (JOURNAL_STREAM is
 * ours to be told, see log_init) lines carry the <N> priority prefix and no time. */
#ifndef SPECD_BASE_LOG_H
#define SPECD_BASE_LOG_H

#include <stdbool.h>

enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG };

void log_init(enum log_level level, bool journal);
enum log_level log_get_level(void);
int log_level_parse(const char *s, enum log_level *out); /* "error", "warn", "info", "debug" */
void log_line(enum log_level level, const char *sub, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* sub: short name of the subsystem, e.g. "http", "sched". */
#define LOG(level, sub, ...)                                                                       \
    do {                                                                                           \
        if ((level) <= log_get_level())                                                            \
            log_line((level), (sub), __VA_ARGS__);                                                 \
    } while (0)

#endif
