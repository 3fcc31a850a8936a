/* Private to kernels/cpu (tests and benchmarks include it too): the open device, its scratch
 * memory, the thread pool and the instruction-set table.
 *
 * Scratch is taken at open so that operations never allocate: a panel for each thread (converted
 * weights) and one area that the owner fills before a parallel part and all threads read. */
#ifndef SPECD_CPU_INTERNAL_H
#define SPECD_CPU_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "engine/base/check.h"
#include "engine/base/clock.h"
#include "kernels/cpu/cpu.h"
#include "kernels/ops.h"

enum {
    CPU_LANES = 16, /* of the fixed order of sums */
    CPU_THREADS_MAX = 256,
    CPU_PANEL_FLOATS = 768 * 1024,       /* each thread, 3 MiB, touched as far as it is used */
    CPU_SHARED_FLOATS = 2 * 1024 * 1024, /* 8 MiB: packed rows of one pass */
    CPU_PRODS_MAX = 4096,                /* products of one call: heads, or twice the experts */
    CPU_INTS_MAX = 4 * CPU_PRODS_MAX,
    CPU_FEW_ROWS = 12, /* rows for which converting weights on the way beats a panel */
};

static inline int cpu_pad(int k)
{
    return (k + CPU_LANES - 1) / CPU_LANES * CPU_LANES;
}

/* Where products go: v = dot; with add, v = out + v; with bias, v = v + bias[c]. */
struct cpu_out {
    float *out;
    int64_t ldo;
    bool add;
    const float *bias; /* [cols] or NULL */
};

static inline void cpu_out_put(const struct cpu_out *o, int r, int c, float v)
{
    float *p = o->out + r * o->ldo + c;
    if (o->add)
        v = *p + v;
    if (o->bias)
        v = v + o->bias[c];
    *p = v;
}

/* One instruction set's forms of the inner loops. All forms give the same bits; what each computes
 * is defined by the scalar one (isa_scalar.c, vec.inc). */
struct cpu_isa {
    const char *name; /* "scalar", "avx2", "avx512" */
    bool (*usable)(void);
    float (*dot)(const float *x, const float *w, int k);
    /* Conversions of n elements; f8 multiplies by `scale`, rounded once. */
    void (*cvt_bf16)(float *dst, const uint16_t *src, int n);
    void (*cvt_f16)(float *dst, const uint16_t *src, int n);
    void (*cvt_f8)(float *dst, const uint8_t *src, int n, float scale);
    /* A row of k elements in this set's panel order, padded with zeros to cpu_pad(k) floats. */
    void (*pack)(float *dst, const float *src, int k);
    void (*pack_bf16)(float *dst, const uint16_t *src, int k);
    /* out[r * ldo + c] = dot of packed rows x[r] and w[c], both kp = cpu_pad(k) floats apart. */
    void (*panel)(const struct cpu_out *o, const float *x, int rows, const float *w, int cols,
                  int kp);
    /* One row: out[c] = dot(x, w[c]), rows of w k elements apart. */
    void (*gemv_bf16)(float *out, const float *x, const uint16_t *w, int cols, int k);
    /* The same as panel for a few rows (at most CPU_FEW_ROWS) and unpacked bf16 weights, k elements
     * apart; NULL: not faster in this set. */
    void (*few_bf16)(const struct cpu_out *o, const float *x, int rows, const uint16_t *w, int cols,
                     int k);
    /* Attention. s[r * lds + j] = dot of q[r] (kp floats apart) and k[j], both padded to kp. */
    void (*scores)(float *s, int64_t lds, const float *q, int rows, const float *const *k, int n,
                   int kp);
    /* out[r * dv + i] = chain over j of fma(p[r * ldp + j], v[j][i], out). */
    void (*pv)(float *out, const float *p, int64_t ldp, int rows, const float *const *v, int n,
               int dv);
    /* s *= scale, returns the largest that is not NaN; n is a multiple of CPU_LANES. */
    float (*scale_max)(float *s, int n, float scale);
    /* s = exp(s - top), added into acc by lane. */
    void (*exp_sum)(float *s, int n, float top, double *acc);
    /* Sampling (vec.inc). */
    float (*max)(const float *x, int n, int *nan);
    int (*find)(const float *x, int n, float v);
    void (*clean)(float *z, const float *x, int n);
    void (*div)(float *x, int n, float t);
    void (*noise)(float *v, const float *z, int n, uint64_t seed, int32_t pos, int32_t id);
    void (*silu_mul)(float *out, const float *gate, const float *up, int n);
    void (*rms_scale)(float *out, const float *x, const float *w, int n, float s);
    double (*sumsq)(const float *x, int n);
};

extern const struct cpu_isa cpu_isa_scalar, cpu_isa_avx2, cpu_isa_avx512;
extern const struct cpu_isa *const cpu_isa_list[]; /* best first, NULL ends; not all are usable */
const struct cpu_isa *cpu_isa_best(void);

struct cpu_pool;
struct cpu_prod; /* prod.h */
struct cpu_unit;

struct cpu_alloc {
    void *p;
    size_t bytes;
    bool mapped;
};

struct dev {
    struct dev_conf conf;
    struct dev_counts counts;
    bool frozen;
    const struct cpu_isa *isa;
    struct cpu_pool *pool;
    struct dev_graph *rec; /* being recorded, or NULL */
    struct cpu_alloc *alloc;
    size_t n_alloc, cap_alloc;
    int n_graph;                   /* recorded and not freed */
    float *panel[CPU_THREADS_MAX]; /* [CPU_PANEL_FLOATS] each */
    float *shared;                 /* [CPU_SHARED_FLOATS] */
    struct cpu_prod *prods;        /* [CPU_PRODS_MAX], filled by the owner */
    struct cpu_unit *units;        /* [CPU_PRODS_MAX], prod.c */
    int32_t *ints;                 /* [CPU_INTS_MAX], filled by the owner */
};

/* 0 in the owner, 1… in the threads of the pool. */
int cpu_tid(void);
static inline float *cpu_panel(struct dev *d)
{
    return d->panel[cpu_tid()];
}

struct cpu_pool *cpu_pool_open(int threads);
void cpu_pool_close(struct cpu_pool *p);
void cpu_pool_run(struct cpu_pool *p, int n, void (*fn)(void *ud, int i), void *ud);
int cpu_pool_threads(const struct cpu_pool *p);

/* cpu_parallel when the work (in rough element operations) is worth a second thread. */
void cpu_parallel_if(struct dev *d, int64_t work, int n, void (*fn)(void *ud, int i), void *ud);

/* Row `i` of a weight as fp32: k elements. */
void cpu_weight_row(const struct cpu_isa *isa, float *dst, const struct weight *w, int64_t i);
/* Elements of a vector weight (n = 1). */
void cpu_weight_vec(const struct cpu_isa *isa, float *dst, const struct weight *w, int64_t from,
                    int n);

/* The slot is live and of this generation. */
static inline bool cpu_slot_ok(const struct slot_arrays *s, int32_t slot, int32_t gen)
{
    CHECK(slot >= 0 && slot < s->n_slot);
    return slot != 0 && s->live[slot] && s->gen[slot] == gen;
}

static inline void cpu_row_pad(const struct row_arrays *o, int r)
{
    o->tok[r] = o->req[r] = o->parent[r] = -1;
    o->slot[r] = o->pos[r] = o->at[r] = o->row0[r] = 0;
    o->anc[r] = 0;
}

static inline void cpu_stamp(const struct op_stamp *a)
{
    if (!a->out)
        return;
    CHECK(*a->step >= 0 && a->index < a->stride);
    a->out[*a->step % a->depth * a->stride + a->index] = clock_ns();
}

#define CPU_DO(name) int cpu_do_##name(struct dev *d, const struct op_##name *a);
OP_LIST(CPU_DO)
#undef CPU_DO

#endif
