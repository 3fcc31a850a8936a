/* What tests leave out under a sanitizer. There code is checked, not figures: long loops take a
 * part of their cases. The thread sanitizer has nothing to see where there is one thread, and
 * leaves out the cases that say so. */
#ifndef SPECD_TEST_SANITIZE_H
#define SPECD_TEST_SANITIZE_H

#include <check.h>

#if defined(__SANITIZE_THREAD__)
enum { SANITIZED = 1, TSAN = 1 };
#elif defined(__SANITIZE_ADDRESS__)
enum { SANITIZED = 1, TSAN = 0 };
#else
enum { SANITIZED = 0, TSAN = 0 };
#endif

/* The tests of a case start no thread: the build with the thread sanitizer does not run it (unless
 * its suite is asked for by name), and in a build without sanitizers a test that starts one fails.
 * A case that says nothing runs everywhere. */
void one_thread(TCase *t);
/* How many have said so. */
int one_thread_cases(void);

#endif
