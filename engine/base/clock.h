/* Time. Monotonic for durations, wall clock only for `created` fields and log lines. */
#ifndef SPECD_BASE_CLOCK_H
#define SPECD_BASE_CLOCK_H

#include <stdint.h>

int64_t clock_ns(void);   /* monotonic, nanoseconds */
int64_t clock_us(void);   /* monotonic, microseconds */
int64_t clock_unix(void); /* seconds since the epoch */
int64_t clock_thread_cpu_us(void);
int64_t clock_process_cpu_us(void);

#endif
