/* Runs golden cases of chat templates (files made by scripts/data/make_chat_data.py). */
#ifndef SPECD_TEST_CHAT_CASES_H
#define SPECD_TEST_CHAT_CASES_H

#include "engine/base/js.h"

struct chat_cases {
    int passed, failed;
};

/* Renders every case of `file` and compares with its text, or expects an error where the
 * reference had one. `templates` is the folder of the named templates (an absolute name is taken
 * as it is). Differences go to stderr, the first few in full. */
void chat_cases_run(struct chat_cases *r, const char *file, const char *templates);
/* The variables of a case, with names of conversations and tools resolved; new reference. */
json_t *chat_case_vars(json_t *doc, json_t *c);

#endif
