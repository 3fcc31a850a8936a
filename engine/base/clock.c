/* Clock reads; any thread. */
#include "engine/base/clock.h"

#include <time.h>

static int64_t read_ns(clockid_t id)
{
    struct timespec ts;
    clock_gettime(id, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

static int64_t read_us(clockid_t id)
{
    return read_ns(id) / 1000;
}

int64_t clock_ns(void)
{
    return read_ns(CLOCK_MONOTONIC);
}

int64_t clock_us(void)
{
    return read_us(CLOCK_MONOTONIC);
}

int64_t clock_unix(void)
{
    return read_us(CLOCK_REALTIME) / 1000000;
}

int64_t clock_thread_cpu_us(void)
{
    return read_us(CLOCK_THREAD_CPUTIME_ID);
}

int64_t clock_process_cpu_us(void)
{
    return read_us(CLOCK_PROCESS_CPUTIME_ID);
}
