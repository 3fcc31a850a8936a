/* Seeded pseudo-random numbers for tests, ids and policies (splitmix64, Steele, Lea and Flood
 * 2014). Sampling noise is not drawn here: it is keyed (engine/sample, kernels/ops.h). */
#ifndef SPECD_BASE_RNG_H
#define SPECD_BASE_RNG_H

#include <stddef.h>
#include <stdint.h>

struct rng {
    uint64_t s;
};

/* A draw adds this to the state: n draws can be skipped at once. */
#define RNG_STEP 0x9e3779b97f4a7c15ull

static inline uint64_t rng_u64(struct rng *r)
{
    uint64_t z = (r->s += RNG_STEP);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

/* Uniform in [0, n), n > 0. */
static inline uint64_t rng_below(struct rng *r, uint64_t n)
{
    return rng_u64(r) % n;
}

/* Uniform in [0, 1). */
static inline double rng_unit(struct rng *r)
{
    return (double)(rng_u64(r) >> 11) * 0x1p-53;
}

/* Standard normal (sum of 12 uniforms, enough for test weights). */
static inline double rng_normal(struct rng *r)
{
    double s = -6;
    for (int i = 0; i < 12; i++)
        s += rng_unit(r);
    return s;
}

/* From the kernel's generator: request seeds and ids. */
uint64_t rng_os_u64(void);
void rng_os_alnum(char *out, size_t n); /* n characters of [0-9A-Za-z] and a NUL */

#endif
