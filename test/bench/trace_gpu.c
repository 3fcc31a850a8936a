/* Kernel times of a whole process: a library that the CUDA driver loads into any program when
 * CUDA_INJECTION64_PATH names it. CUPTI hands over one record per kernel, also of kernels inside
 * graphs; at exit the report goes to stderr. A step is what runs between two marks (the kernel that
 * ends a step). Only the most common sequence of kernels is reported, which leaves out prefill and
 * other batch sizes. With TRACE_SERIAL=1 CUPTI lets no two kernels overlap, so that the sum of
 * their times is that of isolated kernels. test/bench/README.md explains the report and its
 * settings. */
#include <cupti.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BUFFER_BYTES ((size_t)4 << 20)
#define ROWS_MAX 4096 /* kernels that differ in name, grid or block */
#define NAME_MAX_CHARS 72

/* One kernel with one launch shape. */
struct row {
    const char *raw; /* CUPTI's pointer: equal for equal kernels */
    char name[NAME_MAX_CHARS + 1];
    int grid[3], block, smem, regs;
    bool mark;
    uint64_t sum_ns;
    int64_t count;
    float *us, *gap_us; /* of the steps reported */
};

struct rec {
    uint64_t start, end;
    uint32_t row;
};

struct step { /* records [first, first + n), the last is the mark */
    size_t first, n;
    uint64_t hash;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct row rows[ROWS_MAX];
static uint32_t n_row;
static struct rec *recs;
static size_t n_rec, cap_rec, n_dropped;

/* Implemented by libstdc++. */
char *__cxa_demangle(const char *name, char *out, size_t *n, int *status);

static const char *setting(const char *name, const char *def)
{
    const char *v = getenv(name);
    return v && *v ? v : def;
}

static long number(const char *name, long def)
{
    return strtol(setting(name, "-1"), NULL, 10) < 0 ? def : strtol(getenv(name), NULL, 10);
}

/* Without "void", arguments and namespaces of CUTLASS and the like; what is too long is cut. */
static void name_short(char out[NAME_MAX_CHARS + 1], const char *raw)
{
    int status = 0, depth = 0;
    char *full = __cxa_demangle(raw, NULL, NULL, &status);
    const char *p = full ? full : raw;
    size_t n = 0;
    if (!strncmp(p, "void ", 5))
        p += 5;
    for (; *p && n < NAME_MAX_CHARS; p++) {
        static const char *const drop[] = {"(anonymous namespace)::", "(int)", "(bool)",
                                           "(unsigned int)"};
        bool dropped = false;
        for (size_t i = 0; i < sizeof drop / sizeof *drop && !dropped; i++)
            if (!strncmp(p, drop[i], strlen(drop[i]))) {
                p += strlen(drop[i]) - 1;
                dropped = true;
            }
        if (dropped)
            continue;
        depth += *p == '<' ? 1 : *p == '>' ? -1 : 0;
        if (*p == '(' && depth == 0)
            break;
        out[n++] = *p;
    }
    out[n] = 0;
    free(full); /* libstdc++'s */
}

static uint32_t row_of(const char *raw, const int grid[3], int block, int smem, int regs)
{
    for (uint32_t i = 0; i < n_row; i++)
        if (rows[i].raw == raw && rows[i].block == block &&
            !memcmp(rows[i].grid, grid, 3 * sizeof(int)))
            return i;
    if (n_row == ROWS_MAX)
        return UINT32_MAX;
    struct row *r = &rows[n_row];
    r->raw = raw;
    memcpy(r->grid, grid, 3 * sizeof(int));
    r->block = block;
    r->smem = smem;
    r->regs = regs;
    name_short(r->name, raw);
    r->mark = strstr(r->name, setting("TRACE_MARK", "mark_kernel"));
    return n_row++;
}

static void add(uint64_t start, uint64_t end, uint32_t row)
{
    if (row == UINT32_MAX) {
        n_dropped++;
        return;
    }
    if (n_rec == cap_rec) {
        cap_rec = cap_rec ? 2 * cap_rec : 1 << 20;
        recs = realloc(recs, cap_rec * sizeof *recs);
        if (!recs)
            abort();
    }
    recs[n_rec++] = (struct rec){start, end, row};
}

static void take(const CUpti_Activity *a)
{
    static const int none[3] = {0};
    if (a->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL || a->kind == CUPTI_ACTIVITY_KIND_KERNEL) {
        const CUpti_ActivityKernel10 *k = (const CUpti_ActivityKernel10 *)a;
        int grid[3] = {k->gridX, k->gridY, k->gridZ};
        add(k->start, k->end,
            row_of(k->name, grid, k->blockX * k->blockY * k->blockZ,
                   k->staticSharedMemory + k->dynamicSharedMemory, k->registersPerThread));
    } else if (a->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
        const CUpti_ActivityMemcpy6 *m = (const CUpti_ActivityMemcpy6 *)a;
        bool in = m->copyKind == CUPTI_ACTIVITY_MEMCPY_KIND_HTOD;
        bool out = m->copyKind == CUPTI_ACTIVITY_MEMCPY_KIND_DTOH;
        add(m->start, m->end,
            row_of(in    ? "[copy to device]"
                   : out ? "[copy to host]"
                         : "[copy]",
                   none, 0, 0, 0));
    } else if (a->kind == CUPTI_ACTIVITY_KIND_MEMSET) {
        const CUpti_ActivityMemset4 *m = (const CUpti_ActivityMemset4 *)a;
        add(m->start, m->end, row_of("[memset]", none, 0, 0, 0));
    }
}

static void CUPTIAPI buffer_new(uint8_t **buf, size_t *size, size_t *max_records)
{
    *buf = aligned_alloc(8, BUFFER_BYTES);
    *size = *buf ? BUFFER_BYTES : 0;
    *max_records = 0;
}

static void CUPTIAPI buffer_full(CUcontext ctx, uint32_t stream, uint8_t *buf, size_t size,
                                 size_t used)
{
    CUpti_Activity *a = NULL;
    size_t lost = 0;
    (void)size;
    pthread_mutex_lock(&lock);
    while (cuptiActivityGetNextRecord(buf, used, &a) == CUPTI_SUCCESS)
        take(a);
    if (cuptiActivityGetNumDroppedRecords(ctx, stream, &lost) == CUPTI_SUCCESS)
        n_dropped += lost;
    pthread_mutex_unlock(&lock);
    free(buf);
}

/* ---- the report ---- */

static int by_start(const void *a, const void *b)
{
    uint64_t x = ((const struct rec *)a)->start, y = ((const struct rec *)b)->start;
    return x < y ? -1 : x > y;
}

static int by_float(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y;
}

static int by_sum(const void *a, const void *b)
{
    uint64_t x = (*(struct row *const *)a)->sum_ns, y = (*(struct row *const *)b)->sum_ns;
    return x > y ? -1 : x < y;
}

/* The q-th part of n values, which are sorted by it. */
static double quantile(float *v, size_t n, double q)
{
    if (!n)
        return 0;
    qsort(v, n, sizeof *v, by_float);
    return v[(size_t)(q * (double)(n - 1) + 0.5)];
}

static void *array(size_t n, size_t size)
{
    void *p = calloc(n ? n : 1, size);
    if (!p)
        abort();
    return p;
}

static float us_between(uint64_t from, uint64_t to) /* negative when they overlap */
{
    return (float)((double)(int64_t)(to - from) * 1e-3);
}

/* Steps between marks without the first and last few; what is before the first mark is no step. */
static struct step *steps_find(size_t *n)
{
    size_t cap = 0, last = SIZE_MAX;
    for (size_t i = 0; i < n_rec; i++)
        cap += rows[recs[i].row].mark;
    struct step *s = array(cap, sizeof *s);
    *n = 0;
    for (size_t i = 0; i < n_rec; i++) {
        if (!rows[recs[i].row].mark)
            continue;
        if (last != SIZE_MAX)
            s[(*n)++] =
                (struct step){.first = last + 1, .n = i - last, .hash = 1469598103934665603u};
        last = i;
    }
    size_t skip = (size_t)number("TRACE_SKIP", 4), skip_last = (size_t)number("TRACE_SKIP_LAST", 2);
    if (skip + skip_last < *n) {
        memmove(s, s + skip, (*n - skip - skip_last) * sizeof *s);
        *n -= skip + skip_last;
    }
    for (size_t i = 0; i < *n; i++)
        for (size_t k = 0; k < s[i].n; k++)
            s[i].hash = (s[i].hash ^ (recs[s[i].first + k].row + 1)) * 1099511628211u;
    return s;
}

/* Keeps the steps of the most common sequence of kernels; the number of different ones. */
static size_t steps_common(struct step *s, size_t *n)
{
    size_t kinds = 0, best = 0, best_n = 0, m = 0;
    for (size_t i = 0; i < *n; i++) {
        size_t same = 0;
        bool first = true;
        for (size_t k = 0; k < *n; k++) {
            same += s[k].hash == s[i].hash;
            first = first && (k >= i || s[k].hash != s[i].hash);
        }
        kinds += first;
        if (same > best_n) {
            best = i;
            best_n = same;
        }
    }
    uint64_t hash = *n ? s[best].hash : 0;
    for (size_t i = 0; i < *n; i++)
        if (s[i].hash == hash)
            s[m++] = s[i];
    *n = m;
    return kinds;
}

/* The kernels of a step in order: median time and median gap before it. */
static void print_order(const struct step *s, size_t n)
{
    char *end = NULL;
    const char *v = setting("TRACE_ORDER", "");
    size_t from = strtoul(v, &end, 10), to = *end == ':' ? strtoul(end + 1, NULL, 10) : 0;
    float *us = array(n, sizeof *us), *gap = array(n, sizeof *gap);
    for (size_t k = from; k < to && k < s[0].n; k++) {
        for (size_t i = 0; i < n; i++) {
            const struct rec *r = &recs[s[i].first + k];
            us[i] = us_between(r->start, r->end);
            gap[i] = us_between(r[-1].end, r->start);
        }
        const struct row *r = &rows[recs[s[0].first + k].row];
        fprintf(stderr, "trace: %4zu gap %6.2f us %8.2f us  %s <%d,%d,%d x %d>\n", k,
                quantile(gap, n, 0.5), quantile(us, n, 0.5), r->name, r->grid[0], r->grid[1],
                r->grid[2], r->block);
    }
    free(us);
    free(gap);
}

static void print_rows(double total_ns, size_t n_step)
{
    struct row **order = array(n_row, sizeof *order);
    for (uint32_t i = 0; i < n_row; i++)
        order[i] = &rows[i];
    qsort(order, n_row, sizeof *order, by_sum);
    long top = number("TRACE_TOP", 30);
    fprintf(stderr, "trace: %8s %6s %7s %8s %8s %8s  %s\n", "us/step", "share", "n/step", "median",
            "p99", "gap med", "kernel <grid x block> regs smem");
    for (uint32_t i = 0; i < n_row && i < top && order[i]->count; i++) {
        struct row *r = order[i];
        size_t n = (size_t)r->count;
        fprintf(stderr, "trace: %8.1f %5.1f%% %7.1f %8.2f %8.2f %8.2f  %s <%d,%d,%d x %d> %d %d\n",
                (double)r->sum_ns * 1e-3 / (double)n_step, 100 * (double)r->sum_ns / total_ns,
                (double)n / (double)n_step, quantile(r->us, n, 0.5), quantile(r->us, n, 0.99),
                quantile(r->gap_us, n, 0.5), r->name, r->grid[0], r->grid[1], r->grid[2], r->block,
                r->regs, r->smem);
    }
    free(order);
}

/* Sums of the steps into rows; gaps and lengths into arrays. */
static void report_steps(const struct step *s, size_t n)
{
    size_t n_gap = 0, n_early = 0, n_in = n * s[0].n;
    float *gap = array(n_in, sizeof *gap), *between = array(n, sizeof *between);
    float *len = array(n, sizeof *len), *busy = array(n, sizeof *busy);
    double total = 0;
    for (size_t i = 0; i < n_in; i++)
        rows[recs[s[i / s[0].n].first + i % s[0].n].row].count++;
    for (uint32_t i = 0; i < n_row; i++) {
        rows[i].us = array((size_t)rows[i].count, sizeof(float));
        rows[i].gap_us = array((size_t)rows[i].count, sizeof(float));
        rows[i].count = 0;
    }
    for (size_t i = 0; i < n; i++) {
        uint64_t until = recs[s[i].first - 1].end;
        len[i] = us_between(until, recs[s[i].first + s[i].n - 1].end);
        for (size_t k = 0; k < s[i].n; k++) {
            const struct rec *r = &recs[s[i].first + k];
            struct row *w = &rows[r->row];
            float g = us_between(r[-1].end, r->start);
            n_early += k && g < 0;
            if (k)
                gap[n_gap++] = g;
            else
                between[i] = g;
            w->gap_us[w->count] = g;
            w->us[w->count++] = us_between(r->start, r->end);
            w->sum_ns += r->end - r->start;
            total += (double)(r->end - r->start);
            if (r->end > until)
                busy[i] += us_between(r->start > until ? r->start : until, r->end);
            until = r->end > until ? r->end : until;
        }
    }
    double in_median = quantile(gap, n_gap, 0.5), in_p99 = quantile(gap, n_gap, 0.99), in_sum = 0;
    for (size_t i = 0; i < n_gap; i++)
        in_sum += gap[i] > 0 ? gap[i] : 0;
    double med = quantile(len, n, 0.5);
    fprintf(stderr,
            "trace: step (mark to mark) median %.1f us, p99 %.1f us, %zu kernels; some kernel runs "
            "%.1f us, kernels' sum %.1f us\n",
            med, quantile(len, n, 0.99), s[0].n, quantile(busy, n, 0.5), total * 1e-3 / (double)n);
    fprintf(stderr,
            "trace: gap between kernels inside a step: median %.2f us, p99 %.2f us, %.0f%% start "
            "early, idle %.1f us a step; from mark to the next step: median %.2f us, p99 %.2f us\n",
            in_median, in_p99, n_gap ? 100 * (double)n_early / (double)n_gap : 0,
            in_sum / (double)n, quantile(between, n, 0.5), quantile(between, n, 0.99));
    print_rows(total, n);
    print_order(s, n);
    free(gap);
    free(between);
    free(len);
    free(busy);
}

static void report(void)
{
    size_t n = 0, all;
    cuptiActivityFlushAll(1);
    pthread_mutex_lock(&lock);
    qsort(recs, n_rec, sizeof *recs, by_start);
    struct step *s = steps_find(&n);
    all = n;
    size_t kinds = steps_common(s, &n);
    fprintf(stderr,
            "trace: %zu records (%zu lost), %zu steps of %zu kinds, the most common %zu times\n",
            n_rec, n_dropped, all, kinds, n);
    if (n)
        report_steps(s, n);
    free(s);
    pthread_mutex_unlock(&lock);
}

/* Called by the driver once, in cuInit. */
int InitializeInjection(void);
int InitializeInjection(void)
{
    CUpti_ActivityKind kinds[] = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY,
                                  CUPTI_ACTIVITY_KIND_MEMSET};
    if (number("TRACE_SERIAL", 0))
        kinds[0] = CUPTI_ACTIVITY_KIND_KERNEL;
    CUptiResult r = cuptiActivityRegisterCallbacks(buffer_new, buffer_full);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds && r == CUPTI_SUCCESS; i++)
        r = cuptiActivityEnable(kinds[i]);
    if (r != CUPTI_SUCCESS) {
        const char *text = "";
        cuptiGetResultString(r, &text);
        fprintf(stderr, "trace: no records: %s\n", text);
        return 0;
    }
    atexit(report);
    return 1;
}
