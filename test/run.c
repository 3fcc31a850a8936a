/* Runs every suite of the tree. Goal: no silent success. A name that matches nothing, and a run
 * of zero tests, fail; a suite that holds no test fails too (Check would report 100%). */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SUITE(name) Suite *name(void);
#include "suites.inc"
#undef SUITE

static Suite *(*const suites[])(void) = {
#define SUITE(name) name,
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
        Suite *s = suites[i]();
        SRunner *sr = srunner_create(s);
        srunner_run_all(sr, CK_ENV);
        int k = srunner_ntests_run(sr);
        ran += k;
        failed += srunner_ntests_failed(sr);
        srunner_free(sr);
        if (k == 0 && !only && !getenv("CK_RUN_CASE")) {
            fprintf(stderr, "a suite ran no test (number %d)\n", i);
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
