/* Runs every suite of the tree. Goal: no silent success. A name that matches nothing, and a run
 * of zero tests, fail; a suite that holds no test fails too (Check would report 100%). TEST_JOBS=N
 * spreads the suites over N processes; what a suite prints stays together. The build with the
 * thread sanitizer leaves out cases that run on one thread (sanitize.h). */
#include <check.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "test/sanitize.h"

#define SUITE(name) Suite *name(void);
#include "suites.inc"
#undef SUITE

static const struct {
    const char *name;
    Suite *(*make)(void);
} suites[] = {
#define SUITE(name) {#name, name},
#include "suites.inc"
#undef SUITE
};

static const int n_suites = (int)(sizeof suites / sizeof suites[0]);

/* Long ones come first, so that no worker is left with one when the others are done. */
static const char *const long_ones[] = {"suite_spec_exact",  "suite_attn",      "suite_ops",
                                        "suite_spec_runner", "suite_attn_tree", "suite_tokenizer"};

static int place_of(int i)
{
    for (int k = 0; k < (int)(sizeof long_ones / sizeof long_ones[0]); k++)
        if (!strcmp(suites[i].name, long_ones[k]))
            return k;
    return n_suites + i;
}

static int by_place(const void *a, const void *b)
{
    return place_of(*(const int *)a) - place_of(*(const int *)b);
}

static struct shared { /* between the workers */
    atomic_int next, ran, failed;
} * all;

static void copy_out(int from, int out)
{
    char part[65536];
    off_t at = 0;
    for (ssize_t n; (n = pread(from, part, sizeof part, at)) > 0; at += n)
        if (write(out, part, (size_t)n) != n)
            return;
}

/* Of this process and of the tests it forked. */
static double cpu_seconds(void)
{
    double sum = 0;
    for (int k = 0; k < 2; k++) {
        struct rusage u;
        getrusage(k ? RUSAGE_CHILDREN : RUSAGE_SELF, &u);
        sum += (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
               (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
    }
    return sum;
}

static void run_suite(int i)
{
    int64_t t0 = clock_us();
    double cpu0 = cpu_seconds();
    int said = one_thread_cases();
    SRunner *sr = srunner_create(suites[i].make());
    bool may_be_empty = TSAN && one_thread_cases() > said;
    srunner_run_all(sr, CK_ENV);
    int k = srunner_ntests_run(sr);
    atomic_fetch_add(&all->ran, k);
    atomic_fetch_add(&all->failed, srunner_ntests_failed(sr));
    srunner_free(sr);
    double seconds = (double)(clock_us() - t0) / 1e6;
    double cpu = cpu_seconds() - cpu0;
    if (k && (seconds > 2 || cpu > 2))
        printf("%s took %.1f s (%.1f s of CPU)\n", suites[i].name, seconds, cpu);
    if (k == 0 && !may_be_empty && !getenv("CK_RUN_SUITE") && !getenv("CK_RUN_CASE")) {
        printf("%s ran no test\n", suites[i].name);
        atomic_fetch_add(&all->failed, 1);
    }
    fflush(stdout);
}

/* Takes the next suite until none is left. Its output goes to the file `keep` and is copied to
 * `out` when the suite is over; `lock` keeps the copies of several workers apart. */
static void worker(int keep, int out, int lock)
{
    dup2(keep, 1);
    dup2(keep, 2);
    int order[sizeof suites / sizeof suites[0]];
    for (int i = 0; i < n_suites; i++)
        order[i] = i;
    qsort(order, (size_t)n_suites, sizeof *order, by_place);
    for (int i; (i = atomic_fetch_add(&all->next, 1)) < n_suites;) {
        run_suite(order[i]);
        if (lockf(lock, F_LOCK, 0))
            perror("lockf");
        copy_out(keep, out);
        if (lockf(lock, F_ULOCK, 0) || ftruncate(keep, 0) || lseek(keep, 0, SEEK_SET))
            perror("output file");
    }
    _exit(0);
}

/* Returns whether a worker died. */
static bool parallel(int jobs)
{
    enum { MAX_JOBS = 64 };
    int keep[MAX_JOBS], lock = fileno(tmpfile());
    bool died = false;
    fflush(stdout);
    for (int j = 0; j < jobs && j < MAX_JOBS; j++) {
        keep[j] = fileno(tmpfile());
        if (fork() == 0)
            worker(keep[j], dup(1), lock);
    }
    for (int status; wait(&status) > 0;)
        died |= status != 0;
    for (int j = 0; j < jobs && j < MAX_JOBS; j++)
        copy_out(keep[j], 1); /* what a worker left that died */
    return died;
}

int main(void)
{
    const char *only = getenv("CK_RUN_SUITE"), *jobs = getenv("TEST_JOBS");
    if (only && !*only)
        unsetenv("CK_RUN_SUITE");
    if (TSAN && !(only && *only))
        setenv("CK_EXCLUDE_TAGS", "one-thread", 0);
    all = mmap(NULL, sizeof *all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED)
        return 1;
    int n = jobs ? (int)strtol(jobs, NULL, 10) : 1;
    if (n > 1) {
        if (parallel(n)) {
            printf("a worker died\n");
            atomic_fetch_add(&all->failed, 1);
        }
    } else {
        for (int i = 0; i < n_suites; i++) /* one runner a suite: an empty suite shows */
            run_suite(i);
    }
    int ran = atomic_load(&all->ran), failed = atomic_load(&all->failed);
    if (ran == 0) {
        fprintf(stderr, "no test ran\n");
        return 1;
    }
    printf("%d passed, %d failed\n", ran - failed, failed);
    return failed ? 1 : 0;
}
