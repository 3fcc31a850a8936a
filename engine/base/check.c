/* The one place that aborts. */
#include "engine/base/check.h"

#include <execinfo.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

void check_fail(const char *cond, const char *file, int line, const char *func)
{
    fprintf(stderr, "specd: CHECK failed: %s (%s:%d, %s)\n", cond, file, line, func);
    void *frames[48];
    int n = backtrace(frames, 48);
    backtrace_symbols_fd(frames, n, STDERR_FILENO);
    abort();
}
