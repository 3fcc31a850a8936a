/* Storage and printing of the metric families of metrics.def. Any thread updates, one prints; all
 * cells are relaxed atomics, so a scrape may see a histogram's sum one observation ahead of its
 * count, and nothing ever waits. */
#include "engine/base/metrics.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/buf.h"
#include "engine/base/check.h"

enum kind { KIND_COUNTER, KIND_GAUGE, KIND_HISTOGRAM };

typedef _Atomic uint64_t cell; /* bits of a double, or a count in a histogram's buckets */

struct family {
    enum kind kind;
    const char *name, *help;
    const char *label[2];
    const char *const *value[2];
    int n_value[2];
    const double *bucket; /* ascending upper bounds without +Inf */
    int n_bucket;
    cell *cells; /* series major; a histogram has n_bucket + 1 counts and a sum each */
};

/* label values, buckets, cells: one set of arrays a family */
#define PLAIN(id, name, help, l1, v1, l2, v2)                                                      \
    static const char *const id##_v1[] = v1;                                                       \
    static const char *const id##_v2[] = v2;                                                       \
    static cell id##_cells[ARRAY_LEN(id##_v1) * ARRAY_LEN(id##_v2)];
#define COUNTER PLAIN
#define GAUGE PLAIN
#define HISTOGRAM(id, name, help, l1, v1, l2, v2, b)                                               \
    static const char *const id##_v1[] = v1;                                                       \
    static const char *const id##_v2[] = v2;                                                       \
    static const double id##_b[] = b;                                                              \
    static cell id##_cells[ARRAY_LEN(id##_v1) * ARRAY_LEN(id##_v2) * (ARRAY_LEN(id##_b) + 2)];
#include "engine/base/metrics.def"
#undef COUNTER
#undef GAUGE
#undef HISTOGRAM

#define ROW(id, k, name, help, l1, l2, b, nb)                                                      \
    {(k),                                                                                          \
     (name),                                                                                       \
     (help),                                                                                       \
     {(l1), (l2)},                                                                                 \
     {id##_v1, id##_v2},                                                                           \
     {(int)ARRAY_LEN(id##_v1), (int)ARRAY_LEN(id##_v2)},                                           \
     (b),                                                                                          \
     (nb),                                                                                         \
     id##_cells},
static struct family families[N_METRICS] = {
#define COUNTER(id, name, help, l1, v1, l2, v2) ROW(id, KIND_COUNTER, name, help, l1, l2, NULL, 0)
#define GAUGE(id, name, help, l1, v1, l2, v2) ROW(id, KIND_GAUGE, name, help, l1, l2, NULL, 0)
#define HISTOGRAM(id, name, help, l1, v1, l2, v2, b)                                               \
    ROW(id, KIND_HISTOGRAM, name, help, l1, l2, id##_b, (int)ARRAY_LEN(id##_b))
#include "engine/base/metrics.def"
};

static void cell_add(cell *c, double v)
{
    uint64_t old = atomic_load_explicit(c, memory_order_relaxed), new;
    do {
        double d;
        memcpy(&d, &old, sizeof d);
        d += v;
        memcpy(&new, &d, sizeof new);
    } while (!atomic_compare_exchange_weak_explicit(c, &old, new, memory_order_relaxed,
                                                    memory_order_relaxed));
}

static double cell_read(cell *c)
{
    uint64_t bits = atomic_load_explicit(c, memory_order_relaxed);
    double d;
    memcpy(&d, &bits, sizeof d);
    return d;
}

static cell *series(enum metric m, int i, int j)
{
    CHECK(m < N_METRICS);
    struct family *f = &families[m];
    CHECK(i >= 0 && i < f->n_value[0] && j >= 0 && j < f->n_value[1]);
    int stride = f->kind == KIND_HISTOGRAM ? f->n_bucket + 2 : 1;
    return f->cells + (i * f->n_value[1] + j) * stride;
}

void metric_add2(enum metric m, int i, int j, double v)
{
    cell_add(series(m, i, j), v);
}

void metric_set2(enum metric m, int i, int j, double v)
{
    uint64_t bits;
    memcpy(&bits, &v, sizeof bits);
    atomic_store_explicit(series(m, i, j), bits, memory_order_relaxed);
}

void metric_observe_n(enum metric m, int i, int j, double v, int64_t n)
{
    struct family *f = &families[m];
    cell *c = series(m, i, j);
    CHECK(f->kind == KIND_HISTOGRAM && n >= 0);
    if (!n)
        return;
    int b = 0;
    while (b < f->n_bucket && v > f->bucket[b])
        b++;
    atomic_fetch_add_explicit(c + b, (uint64_t)n, memory_order_relaxed);
    cell_add(c + f->n_bucket + 1, v * (double)n);
}

double metric_read2(enum metric m, int i, int j)
{
    struct family *f = &families[m];
    cell *c = series(m, i, j);
    if (f->kind != KIND_HISTOGRAM)
        return cell_read(c);
    uint64_t n = 0;
    for (int b = 0; b <= f->n_bucket; b++)
        n += atomic_load_explicit(c + b, memory_order_relaxed);
    return (double)n;
}

/* ---- printing ---- */

void metrics_label(struct buf *out, const char *name, const char *value)
{
    buf_fmt(out, "%s=\"", name);
    for (const char *p = value; *p; p++) {
        if (*p == '\n')
            buf_str(out, "\\n");
        else if (*p == '\\' || *p == '"')
            buf_fmt(out, "\\%c", *p);
        else
            buf_char(out, *p);
    }
    buf_char(out, '"');
}

static void put_number(struct buf *out, double v)
{
    if (isnan(v))
        buf_str(out, "NaN");
    else if (isinf(v))
        buf_str(out, v > 0 ? "+Inf" : "-Inf");
    else if (v == floor(v) && fabs(v) < 1e15)
        buf_fmt(out, "%.0f", v + 0.0);
    else
        buf_fmt(out, "%.12g", v);
}

static void put_labels(struct buf *out, const struct family *f, int i, int j, const char *common,
                       const char *le)
{
    const char *sep = "";
    int at[2] = {i, j};
    if (!(common && *common) && !*f->label[0] && !*f->label[1] && !le)
        return;
    buf_char(out, '{');
    if (common && *common) {
        buf_str(out, common);
        sep = ",";
    }
    for (int k = 0; k < 2; k++) {
        if (!*f->label[k])
            continue;
        buf_str(out, sep);
        metrics_label(out, f->label[k], f->value[k][at[k]]);
        sep = ",";
    }
    if (le)
        buf_fmt(out, "%sle=\"%s\"", sep, le);
    buf_char(out, '}');
}

static void put_histogram(struct buf *out, const struct family *f, int i, int j, cell *c,
                          const char *common)
{
    uint64_t sum = 0;
    for (int b = 0; b <= f->n_bucket; b++) {
        char le[32] = "+Inf";
        if (b < f->n_bucket)
            snprintf(le, sizeof le, "%g", f->bucket[b]);
        sum += atomic_load_explicit(c + b, memory_order_relaxed);
        buf_fmt(out, "%s_bucket", f->name);
        put_labels(out, f, i, j, common, le);
        buf_fmt(out, " %llu\n", (unsigned long long)sum);
    }
    buf_fmt(out, "%s_sum", f->name);
    put_labels(out, f, i, j, common, NULL);
    buf_char(out, ' ');
    put_number(out, cell_read(c + f->n_bucket + 1));
    buf_fmt(out, "\n%s_count", f->name);
    put_labels(out, f, i, j, common, NULL);
    buf_fmt(out, " %llu\n", (unsigned long long)sum);
}

void metrics_print(struct buf *out, const char *common)
{
    static const char *const kinds[] = {"counter", "gauge", "histogram"};
    for (int m = 0; m < N_METRICS; m++) {
        struct family *f = &families[m];
        buf_fmt(out, "# HELP %s %s\n# TYPE %s %s\n", f->name, f->help, f->name, kinds[f->kind]);
        for (int i = 0; i < f->n_value[0]; i++) {
            for (int j = 0; j < f->n_value[1]; j++) {
                cell *c = series((enum metric)m, i, j);
                if (f->kind == KIND_HISTOGRAM) {
                    put_histogram(out, f, i, j, c, common);
                    continue;
                }
                buf_str(out, f->name);
                put_labels(out, f, i, j, common, NULL);
                buf_char(out, ' ');
                put_number(out, cell_read(c));
                buf_char(out, '\n');
            }
        }
    }
}
