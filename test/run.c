/* Runs every suite of the tree. Goal: no silent success. A name that matches nothing, and a run
 * of zero tests, fail; a suite that holds no test fails too (Check would report 100%). */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"

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

int main(void)
{
    const char *only = getenv("CK_RUN_SUITE");
    if (only && !*only)
        unsetenv("CK_RUN_SUITE");
    int n = (int)(sizeof suites / sizeof suites[0]);
    int failed = 0, ran = 0;
    for (int i = 0; i < n; i++) { /* one runner a suite: an empty suite shows */
        int64_t t0 = clock_us();
        Suite *s = suites[i].make();
        SRunner *sr = srunner_create(s);
        srunner_run_all(sr, CK_ENV);
        int k = srunner_ntests_run(sr);
        ran += k;
        failed += srunner_ntests_failed(sr);
        srunner_free(sr);
        double seconds = (double)(clock_us() - t0) / 1e6;
        if (k && seconds > 2)
            printf("%s took %.1f s\n", suites[i].name, seconds);
        fflush(stdout);
        if (k == 0 && !only && !getenv("CK_RUN_CASE")) {
            fprintf(stderr, "%s ran no test\n", suites[i].name);
            failed++;
        }
    }
    if (ran == 0) {
        fprintf(stderr, "no test ran\n");
        return 1;
    }
    printf("%d passed, %d failed\n", ran - failed, failed);
    return failed ? 1 : 0;
}
