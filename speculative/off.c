/* No drafts: every verify has one row a request, and acceptance emits its sample. */
#include "speculative/algos.h"

static int rows_per_req(const struct spec_env *env)
{
    (void)env;
    return 1;
}

const struct spec_algo spec_off = {.name = "off", .rows_per_req = rows_per_req};
