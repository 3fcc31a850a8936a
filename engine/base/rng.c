/* Randomness from the operating system; any thread. */
#include "engine/base/rng.h"

#include <sys/random.h>

#include "engine/base/check.h"

uint64_t rng_os_u64(void)
{
    uint64_t v = 0;
    CHECK(getrandom(&v, sizeof v, 0) == (ssize_t)sizeof v);
    return v;
}

void rng_os_alnum(char *out, size_t n)
{
    static const char set[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    struct rng r = {rng_os_u64()};
    for (size_t i = 0; i < n; i++)
        out[i] = set[rng_below(&r, 62)];
    out[n] = 0;
}
