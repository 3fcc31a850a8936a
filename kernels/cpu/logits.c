/* See the header. Sums run in the lanes of exp_sum, so the bits do not depend on the instruction
 * set. */
#include "kernels/cpu/logits.h"

#include <math.h>
#include <string.h>

static double lane_sum(double *acc)
{
    for (int w = CPU_LANES / 2; w >= 1; w /= 2)
        for (int i = 0; i < w; i++)
            acc[i] += acc[i + w];
    return acc[0];
}

double cpu_exp_row(const struct cpu_isa *isa, float *e, const float *z, int n, float max)
{
    double acc[CPU_LANES];
    if (e != z)
        memcpy(e, z, (size_t)n * sizeof *e);
    for (int i = n; i < cpu_pad(n); i++)
        e[i] = -INFINITY;
    isa->exp_sum(e, cpu_pad(n), max, acc);
    return lane_sum(acc);
}

struct cpu_lse cpu_row_lse(const struct cpu_isa *isa, const float *l, int n, float *e)
{
    struct cpu_lse r = {isa->max(l, n, NULL), 0};
    isa->clean(e, l, n);
    r.log_sum = log(cpu_exp_row(isa, e, e, n, r.max));
    return r;
}

int cpu_top_k(const struct cpu_isa *isa, const float *l, int n, int k, float *val, int32_t *id)
{
    enum { BLOCK = 64 };
    int got = 0;
    k = k < n ? k : n;
    for (int b = 0; b < n && k > 0; b += BLOCK) {
        int m = n - b < BLOCK ? n - b : BLOCK;
        if (got == k && !(isa->max(l + b, m, NULL) > val[k - 1]))
            continue;
        for (int i = b; i < b + m; i++) {
            float v = l[i] == l[i] ? l[i] : -INFINITY;
            if (got == k && !(v > val[k - 1]))
                continue;
            int j = got < k ? got++ : k - 1;
            for (; j > 0 && v > val[j - 1]; j--) {
                val[j] = val[j - 1];
                id[j] = id[j - 1];
            }
            val[j] = v;
            id[j] = i;
        }
    }
    return got;
}
