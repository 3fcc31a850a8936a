/* Shared by the contract tests of operations and attention: devices in every form (instruction set
 * x threads), random data, comparison with an oracle, and "the same bits however it is run". */
#ifndef SPECD_TEST_OPS_UTIL_H
#define SPECD_TEST_OPS_UTIL_H

#include <check.h>
#include <stdbool.h>
#include <stddef.h>

#include "engine/base/rng.h"
#include "kernels/cpu/internal.h"
#include "kernels/ops.h"
#include "test/ops/tol.h"

enum { T_DEVS = 6 }; /* at most: three instruction sets, one and two threads */

/* Opened devices: [0] is scalar on one thread. */
struct t_devs {
    int n;
    struct dev *d[T_DEVS];
    char name[T_DEVS][32];
};
void t_open(struct t_devs *t);
void t_close(struct t_devs *t);

/* Memory a call writes. */
struct t_out {
    void *p;
    size_t bytes;
};

/* Runs `call` with the outputs starting as they are now, on every device, eagerly and by replaying
 * a recording (made while other values lay in the outputs): all must give the same bits. The
 * outputs hold the result. */
typedef int t_call(struct dev *d, const void *args);
void t_everywhere(const struct t_devs *t, const char *what, t_call *call, const void *args,
                  const struct t_out *out, int n);

/* One caller and one contract case for each operation: a new word in OP_LIST does not link until
 * both exist (the callers come with the list). */
#define T_CALL(name) int t_call_##name(struct dev *d, const void *args);
OP_LIST(T_CALL)
#undef T_CALL
#define T_CASE(name) void case_##name(const struct t_devs *t, struct rng *r);
OP_LIST(T_CASE)
#undef T_CASE

float *t_randf(struct rng *r, size_t n, double scale);
/* A random weight of the type; `val` [n*k] receives its exact values. Freed by t_weight_free. */
struct weight t_weight(struct rng *r, enum dtype dt, int n, int k, double scale, double **val);
void t_weight_free(struct weight *w);
/* CHECKs got against want element by element and as a whole. */
void t_close_to(const char *what, const float *got, const double *want, size_t n, struct tol tol);
void t_same_bits(const char *what, const void *a, const void *b, size_t bytes);

#endif
