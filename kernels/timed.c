/* Operations timed one by one; see the header. */
#include "kernels/timed.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/thread.h"

enum { MARKS = 1 << 14, WARM = 8 };

static pthread_mutex_t g_lock = PTHREAD_MUTEX_INITIALIZER; /* of sums */

static struct {
    const struct dev_ops *inner;
    struct dev_ops outer;
    struct op_table table;
    int64_t *at;             /* [MARKS] pinned: times in ns */
    int64_t *step;           /* the step that a stamp asks for: 0 */
    const char *what[MARKS]; /* that begins there; NULL: nothing */
    int n;
    bool on;
} T;

static int mark(struct dev *d, const char *what)
{
    if (!T.on || T.n == MARKS)
        return OK;
    struct op_stamp s = {.out = T.at, .step = T.step, .depth = 1, .stride = MARKS, .index = T.n};
    T.what[T.n++] = what;
    return T.inner->ops->stamp(d, &s);
}

#define TIMED(name)                                                                                \
    static int timed_##name(struct dev *d, const struct op_##name *a)                              \
    {                                                                                              \
        int r = mark(d, #name);                                                                    \
        return r < 0 ? r : T.inner->ops->name(d, a);                                               \
    }
OP_LIST(TIMED)
#undef TIMED

const struct dev_ops *timed_device(const struct dev_ops *ops)
{
    T.inner = ops;
    T.outer = *ops;
    T.outer.ops = &T.table;
#define ENTRY(name) T.table.name = timed_##name;
    OP_LIST(ENTRY)
#undef ENTRY
    T.table.about = mark;
    T.table.narrow = ops->ops->narrow;
    return &T.outer;
}

int timed_open(struct dev *d, struct err *e)
{
    void *at = NULL, *step = NULL;
    TRY(T.inner->alloc(d, &at, MARKS * sizeof *T.at, DEV_MEM_PINNED, e));
    T.at = at;
    TRY(T.inner->alloc(d, &step, sizeof *T.step, DEV_MEM_DEVICE, e));
    T.step = step;
    return OK;
}

void timed_close(struct dev *d)
{
    if (T.at)
        T.inner->free(d, T.at);
    if (T.step)
        T.inner->free(d, T.step);
    T.at = T.step = NULL;
    T.on = false;
}

int timed_begin(struct dev *d, struct err *e)
{
    T.on = true;
    T.n = 0;
    for (int i = 0; i < WARM; i++)
        if (mark(d, NULL) < 0)
            return FAIL(e, E_DEVICE, "a stamp of the device's clock failed");
    return OK;
}

static void add(struct op_times *sum, const char *name, double us)
{
    int i = 0;
    while (i < sum->n && strcmp(sum->op[i].name, name) != 0)
        i++;
    if (i == TIMED_NAMES)
        return;
    if (i == sum->n)
        sum->op[sum->n++] = (struct op_time){.name = name};
    sum->op[i].calls++;
    sum->op[i].us += us;
}

int timed_end(struct dev *d, struct op_times *sum, struct err *e)
{
    int r = mark(d, NULL);
    T.on = false;
    if (r < 0)
        return FAIL(e, E_DEVICE, "a stamp of the device's clock failed");
    TRY(T.inner->sync(d, e));
    if (T.n == MARKS)
        return FAIL(e, E_RANGE, "more than %d operations in a part of a step", MARKS);
    int64_t alone = T.at[1] - T.at[0];
    for (int i = 2; i < WARM; i++)
        alone = T.at[i] - T.at[i - 1] < alone ? T.at[i] - T.at[i - 1] : alone;
    mutex_lock(&g_lock);
    for (int i = 0; i + 1 < T.n; i++) {
        int64_t ns = T.at[i + 1] - T.at[i] - alone;
        if (T.what[i])
            add(sum, T.what[i], ns > 0 ? (double)ns * 1e-3 : 0);
    }
    sum->parts++;
    mutex_unlock(&g_lock);
    return OK;
}

static int by_time(const void *a, const void *b)
{
    double x = ((const struct op_time *)a)->us, y = ((const struct op_time *)b)->us;
    return (x < y) - (x > y);
}

void timed_clear(struct op_times *sum)
{
    mutex_lock(&g_lock);
    *sum = (struct op_times){0};
    mutex_unlock(&g_lock);
}

void timed_read(struct op_times *out, const struct op_times *sum)
{
    mutex_lock(&g_lock);
    *out = *sum;
    mutex_unlock(&g_lock);
    qsort(out->op, (size_t)out->n, sizeof *out->op, by_time);
}
