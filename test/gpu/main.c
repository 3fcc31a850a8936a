/* The GPU suites. Without fork: CUDA must not be used in a child that was forked without exec
 * (CUDA programming guide). No GPU is a failure, and so is a run of no test. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>

Suite *suite_gpu_ops(void);
Suite *suite_gpu_slots(void);
Suite *suite_gpu_attn(void);
Suite *suite_gpu_model(void);

int main(void)
{
    SRunner *sr = srunner_create(suite_gpu_ops());
    srunner_add_suite(sr, suite_gpu_slots());
    srunner_add_suite(sr, suite_gpu_attn());
    srunner_add_suite(sr, suite_gpu_model());
    srunner_set_fork_status(sr, CK_NOFORK);
    srunner_run_all(sr, CK_NORMAL);
    int ran = srunner_ntests_run(sr), failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    printf("%d passed, %d failed\n", ran - failed, failed);
    return ran == 0 || failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
