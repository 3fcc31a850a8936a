/* Goal: templates whose licence keeps them out of the repository render as the reference does.
 * Method: the cases of a file that scripts/data/make_chat_data.py --real wrote on this machine.
 * A program of its own, for `make test-real`: real_chat FILE. Zero cases fail. */
#include <stdio.h>

#include "test/unit/chat_cases.h"

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: real_chat CASES.json\n");
        return 2;
    }
    struct chat_cases r;
    chat_cases_run(&r, argv[1], "test/data/chat/templates");
    printf("chat templates: %d passed, %d failed\n", r.passed, r.failed);
    return r.failed || !r.passed;
}
