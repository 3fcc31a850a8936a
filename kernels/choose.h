/* Which device a start uses: what was asked for against what is there, decided by one pure function
 * so that every refusal can be tested without a GPU. C and C++. */
#ifndef SPECD_KERNELS_CHOOSE_H
#define SPECD_KERNELS_CHOOSE_H

#include <stdbool.h>

#include "engine/base/err.h"

enum { GPU_SM_MIN = 80 }; /* oldest compute capability the kernels are written for */

struct gpu_facts {
    bool built;          /* CUDA is part of this build */
    int driver, toolkit; /* CUDA versions as 1000 major + 10 minor; driver 0: none installed */
    const char *fault;   /* what counting GPUs answered when it failed; NULL: fine. Static */
    int count, ordinal;  /* GPUs, and which of them is meant */
    int sm;              /* its compute capability, 90 for 9.0 */
};

/* OK when the GPU that is meant can be used, else E_UNSUPPORTED (E_INVAL: there is no such ordinal)
 * with the reason. A driver of an older major version than the toolkit cannot run the build. */
int gpu_usable(const struct gpu_facts *f, struct err *e);
/* The GPU that `want` means: N of "cuda:N", else 0. E_INVAL: what follows "cuda:" is no number. */
int dev_ordinal(int *ordinal, const char *want, struct err *e);
/* `want` is "auto" (or NULL), "cpu", "cuda" or "cuda:N"; *name becomes "cpu" or "cuda". Auto takes
 * a usable GPU, else the CPU, and then *why says why not (its code is OK without CUDA in the build:
 * nobody expects a GPU there). What was asked for by name is never replaced. */
int dev_decide(const char **name, const char *want, const struct gpu_facts *f, struct err *why,
               struct err *e);
/* Asks the machine. */
void dev_facts(struct gpu_facts *out, int ordinal);

#endif
