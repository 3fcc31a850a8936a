/* Metrics: fixed families declared once in metrics.def, updated with relaxed atomics from any
 * thread, printed in Prometheus' text format (version 0.0.4) with every series from the start.
 *
 * A family has up to two labels whose values are fixed lists, so a series is an index pair and
 * there is no look-up at run time. */
#ifndef SPECD_BASE_METRICS_H
#define SPECD_BASE_METRICS_H

#include <stdint.h>

enum metric {
#define COUNTER(id, ...) M_##id,
#define GAUGE(id, ...) M_##id,
#define HISTOGRAM(id, ...) M_##id,
#include "engine/base/metrics.def"
#undef COUNTER
#undef GAUGE
#undef HISTOGRAM
    N_METRICS
};

/* i, j: index of the first and second label's value; 0 where the family has no such label. */
void metric_add2(enum metric m, int i, int j, double v); /* counters and gauges */
void metric_set2(enum metric m, int i, int j, double v);
void metric_observe_n(enum metric m, int i, int j, double v, int64_t n); /* histograms: n times v */
static inline void metric_add(enum metric m, double v)
{
    metric_add2(m, 0, 0, v);
}
static inline void metric_set(enum metric m, double v)
{
    metric_set2(m, 0, 0, v);
}
static inline void metric_observe2(enum metric m, int i, int j, double v)
{
    metric_observe_n(m, i, j, v, 1);
}
static inline void metric_observe(enum metric m, double v)
{
    metric_observe_n(m, 0, 0, v, 1);
}
double metric_read2(enum metric m, int i, int j); /* counters, gauges; histogram: the count */

struct buf;
/* Prints all families; `common` is put into every label set, e.g. `model_name="demo"`. */
void metrics_print(struct buf *out, const char *common);
/* Escapes a label value (backslash, quote, newline). */
void metrics_label(struct buf *out, const char *name, const char *value);

#endif
