/* What CPU code outside kernels/cpu needs to be an operation of the CPU device: running or
 * recording a call, and the thread pool. Only the device's owner thread calls these. */
#ifndef SPECD_CPU_H
#define SPECD_CPU_H

#include <stddef.h>

#include "kernels/device.h"

/* A call: `args` (bytes long) is copied when recorded. */
typedef int cpu_fn(struct dev *d, const void *args);
int cpu_call(struct dev *d, cpu_fn *fn, const void *args, size_t bytes);

/* Runs fn(ud, i) for i in [0, n) on the device's threads; returns when all are done. The split is
 * by blocks of consecutive i and must not influence results. */
void cpu_parallel(struct dev *d, int n, void (*fn)(void *ud, int i), void *ud);
int cpu_threads(const struct dev *d);

/* Dot product with the project's fixed order of sums: 16 lanes of fused multiply-adds over k, then
 * lanes are added pairwise (i, i+8), (i, i+4), (i, i+2), (i, i+1). Scalar, AVX2 and AVX-512 forms
 * give the same bits. `w` is fp32. */
float cpu_dot(const float *x, const float *w, int k);

#endif
