/* The GPU suites, each in a process of its own (this program again, with the suite's name), so that
 * one that dies takes no other with it; within one, tests run without fork, as CUDA must not be
 * used in a child that was forked without exec (CUDA programming guide). No GPU is a failure, and
 * so is a suite that did not run to its end or ran no test. CK_RUN_SUITE and CK_RUN_CASE choose. */
#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define SUITES(X)                                                                                  \
    X(gpu_load)                                                                                    \
    X(gpu_ops)                                                                                     \
    X(gpu_fused)                                                                                   \
    X(gpu_small) X(gpu_wide) X(gpu_moe) X(gpu_slots) X(gpu_attn) X(gpu_model) X(gpu_spec)

#define DECLARE(name) Suite *suite_##name(void);
SUITES(DECLARE)
#define ENTRY(name) {#name, suite_##name},
static const struct {
    const char *name;
    Suite *(*make)(void);
} suites[] = {SUITES(ENTRY)};

enum { N = sizeof suites / sizeof suites[0] };

static const char *running;

static void died(int sig)
{
    char line[160];
    int n =
        snprintf(line, sizeof line, "%s, case %s: died by signal %d\n", running, tcase_name(), sig);
    if (write(STDOUT_FILENO, line, (size_t)n) != n)
        _exit(EXIT_FAILURE);
    signal(sig, SIG_DFL);
    raise(sig);
}

static int run_suite(int i)
{
    static const int fatal[] = {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL};
    running = suites[i].name;
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (size_t k = 0; k < sizeof fatal / sizeof fatal[0]; k++)
        signal(fatal[k], died);
    SRunner *sr = srunner_create(suites[i].make());
    srunner_set_fork_status(sr, CK_NOFORK);
    srunner_run_all(sr, CK_NORMAL);
    int ran = srunner_ntests_run(sr), failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return ran == 0 || failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

/* The suite in a new process; whether all of it passed. */
static int passed(const char *self, int i)
{
    int status = -1;
    pid_t p = fork();
    if (p == 0) {
        execl("/proc/self/exe", self, suites[i].name, (char *)NULL);
        _exit(127);
    }
    if (p < 0 || waitpid(p, &status, 0) != p)
        perror(suites[i].name);
    if (status)
        printf("%s FAILED (%s %d)\n", suites[i].name, WIFSIGNALED(status) ? "signal" : "exit",
               WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    fflush(stdout);
    return status == 0;
}

int main(int argc, char **argv)
{
    const char *only = getenv("CK_RUN_SUITE");
    int ran = 0, good = 0;
    for (int i = 0; i < N; i++) {
        if (argc > 1 && !strcmp(argv[1], suites[i].name))
            return run_suite(i);
        if (argc > 1 || (only && *only && strcmp(only, suites[i].name)))
            continue;
        ran++;
        good += passed(argv[0], i);
    }
    printf("%d of %d suites passed\n", good, ran);
    return ran == 0 || good < ran ? EXIT_FAILURE : EXIT_SUCCESS;
}
