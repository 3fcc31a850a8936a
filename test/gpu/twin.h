/* Memory that exists twice: on the CPU device and on the CUDA device. A case fills the host side,
 * both devices run the same operation on their own side, and the results are compared. */
#ifndef SPECD_TEST_TWIN_H
#define SPECD_TEST_TWIN_H

#include <check.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "attention/attn.h"
#include "engine/base/rng.h"
#include "kernels/ops.h"

extern const struct dev_ops dev_cuda;

enum { SIDE_CPU, SIDE_GPU, TWINS_MAX = 1024 };

struct twin {
    void *p[2];
    size_t bytes;
};

struct twins {
    struct dev *cpu, *gpu;
    struct twin all[TWINS_MAX];
    int n;
    struct rng rng;
};

/* GPU_SMALL=1, for compute-sanitizer: every kernel runs, large sizes and repetitions do not. */
bool twin_small(void);
void twins_open(struct twins *t);
void twins_close(struct twins *t);
/* Frees the ones from `first` on. */
void twins_drop(struct twins *t, int first);
/* Zeroed on both sides. */
struct twin *twin_new(struct twins *t, size_t bytes);
struct twin *twin_rand(struct twins *t, size_t n, float scale); /* n floats */
struct twin *twin_nans(struct twins *t, size_t n);              /* n floats */
struct twin *twin_ints(struct twins *t, const int32_t *v, size_t n);
void twin_push(struct twins *t, struct twin *w); /* host side to the GPU */
/* Compares n floats: |gpu - cpu| <= abs + rel * |cpu|, NaN and infinity in the same places. Returns
 * the largest absolute difference. */
float twin_near(struct twins *t, const struct twin *w, size_t n, float abs, float rel,
                const char *what);
void twin_same(struct twins *t, const struct twin *w, size_t bytes, const char *what);
/* A random weight in host memory, mirrored. */
struct weight twin_weight(struct twins *t, enum dtype dt, int64_t n, int64_t k, float scale);

/* Products of a launch with so many elements of weights keep fp32's precision at any number of rows
 * (kernels/cuda/README.md). */
static inline bool twin_exact(enum dtype dt, int64_t elements, int64_t k)
{
    int64_t most = k <= 256 ? 2048 : k <= 1024 ? 256 : 0;
    return dt == DT_F32 || (dt == DT_BF16 && elements <= most * 1024);
}

/* The same operation on both sides: `make` initialises its arguments, P(w) is w on the side. */
#define P(w) (w)->p[side]
#define BOTH(t, op, make)                                                                          \
    do {                                                                                           \
        for (int side = 0; side < 2; side++) {                                                     \
            struct op_##op a = make;                                                               \
            const struct dev_ops *o = side ? &dev_cuda : &dev_cpu;                                 \
            ck_assert_int_eq(o->ops->op(side ? (t)->gpu : (t)->cpu, &a), OK);                      \
        }                                                                                          \
    } while (0)
#define SET(...) __VA_ARGS__

/* A case of its own for a test (`n` times), so that a run that dies can name it. */
#define TWIN_CASE(suite, test, n)                                                                  \
    do {                                                                                           \
        TCase *tc_ = tcase_create(#test);                                                          \
        tcase_add_loop_test(tc_, test, 0, (n));                                                    \
        suite_add_tcase((suite), tc_);                                                             \
    } while (0)

#endif
