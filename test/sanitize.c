/* See the header. run.c leaves out what has the tag; a function of the C library's name and type
 * stands before it and sees every thread that a test starts. */
#include "test/sanitize.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>

static int n_case;
static bool alone; /* the running test may start no thread */

static void stay_alone(void)
{
    alone = true;
}

static void as_before(void) /* without fork the next test runs in this process */
{
    alone = false;
}

void one_thread(TCase *t)
{
    n_case++;
    tcase_set_tags(t, "one-thread");
    tcase_add_checked_fixture(t, stay_alone, as_before);
}

int one_thread_cases(void)
{
    return n_case;
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* which have their own there  \
                                                                     */
typedef int create_fn(pthread_t *t, const pthread_attr_t *a, void *(*run)(void *), void *ud);

int pthread_create(pthread_t *t, const pthread_attr_t *a, void *(*run)(void *), void *ud)
{
    create_fn *next;
    void *p = dlsym(RTLD_NEXT, "pthread_create");
    ck_assert_msg(!alone, "%s says that it runs on one thread, and starts another", tcase_name());
    memcpy(&next, &p, sizeof next);
    return next(t, a, run, ud);
}
#endif
