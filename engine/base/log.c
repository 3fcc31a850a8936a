/* Log output. One write(2) a line, so lines of different threads do not mix. */
#include "engine/base/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/err.h"

static atomic_int g_level = LOG_INFO;
static atomic_bool g_journal;

static const char *const level_names[] = {"error", "warn", "info", "debug"};

void log_init(enum log_level level, bool journal)
{
    atomic_store(&g_level, (int)level);
    atomic_store(&g_journal, journal);
}

enum log_level log_get_level(void)
{
    return (enum log_level)atomic_load_explicit(&g_level, memory_order_relaxed);
}

int log_level_parse(const char *s, enum log_level *out)
{
    for (int i = 0; i < 4; i++) {
        if (!strcmp(s, level_names[i])) {
            *out = (enum log_level)i;
            return OK;
        }
    }
    return E_INVAL;
}

void log_line(enum log_level level, const char *sub, const char *fmt, ...)
{
    static const int priority[] = {3, 4, 6, 7}; /* syslog levels */
    char line[1600];
    int n;
    if (atomic_load_explicit(&g_journal, memory_order_relaxed)) {
        n = snprintf(line, sizeof line, "<%d>%s: ", priority[level], sub);
    } else {
        struct timespec ts;
        clock_gettime(CLOCK_REALTIME, &ts);
        struct tm tm;
        gmtime_r(&ts.tv_sec, &tm);
        char when[32];
        strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%S", &tm);
        n = snprintf(line, sizeof line, "%s.%03ldZ %-5s %s: ", when, ts.tv_nsec / 1000000,
                     level_names[level], sub);
    }
    va_list ap;
    va_start(ap, fmt);
    int m = vsnprintf(line + n, sizeof line - (size_t)n - 1, fmt, ap);
    va_end(ap);
    if (m < 0)
        m = 0;
    size_t len = (size_t)n + (size_t)m;
    if (len > sizeof line - 2)
        len = sizeof line - 2;
    for (size_t i = (size_t)n; i < len; i++) /* client bytes must not forge lines */
        if ((unsigned char)line[i] < 0x20 || line[i] == 0x7f)
            line[i] = ' ';
    line[len++] = '\n';
    ssize_t w = write(STDERR_FILENO, line, len);
    (void)w; /* nowhere to report it */
}
