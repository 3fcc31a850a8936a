/* A device whose operations can be timed one by one: the table of another device with a stamp of
 * that device's clock before each operation. Switched off it is the other device.
 *
 * What comes between two stamps belongs to the operation that the first was for, work outside the
 * table to the name given by `about` (attention). A stamp keeps kernels from overlapping, so the
 * times are those of operations alone, less what two stamps in a row are apart; their sum is not a
 * step's time. One such device a process. */
#ifndef SPECD_TIMED_H
#define SPECD_TIMED_H

#include "kernels/ops.h"

enum { TIMED_NAMES = 48 };

struct op_time {
    const char *name; /* of the operation; static */
    int64_t calls;
    double us;
};
struct op_times {
    int n;
    int64_t parts; /* between begin and end */
    struct op_time op[TIMED_NAMES];
};

/* The device `ops` that can be timed, to be opened in its place. */
const struct dev_ops *timed_device(const struct dev_ops *ops);
/* After the open: memory for stamps. E_NOMEM. */
int timed_open(struct dev *d, struct err *e);
void timed_close(struct dev *d);
/* A part of a step runs from begin to end, which waits for it and adds it to `sum`. */
int timed_begin(struct dev *d, struct err *e);
int timed_end(struct dev *d, struct op_times *sum, struct err *e);
void timed_clear(struct op_times *sum);
/* A copy of a sum, by any thread, the greatest time first. */
void timed_read(struct op_times *out, const struct op_times *sum);

#endif
