/* Contract cases of operations that stand for a sequence of others: an oracle in double, the bits
 * of the sequence on the CPU device, and the same bits for a row alone. */
#include "test/ops/util.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"

static const enum dtype g_types[] = {DT_F32, DT_BF16, DT_F8E4M3};

enum { R_MAX = 40 };

/* Rows [R_MAX, k] of x, ldx apart, normalised in double when w is given. */
static double *rows_oracle(const float *x, int ldx, int k, const double *w, double eps)
{
    double *y = mem_alloc(sizeof *y * (size_t)(R_MAX * k));
    for (int r = 0; r < R_MAX; r++) {
        double s = 0;
        for (int c = 0; c < k; c++)
            s += (double)x[r * ldx + c] * (double)x[r * ldx + c];
        for (int c = 0; c < k; c++)
            y[r * k + c] = (double)x[r * ldx + c] * (w ? w[c] / sqrt(s / k + eps) : 1.0);
    }
    return y;
}

/* out[R_MAX, n] = y w^T + b; out holds what is added to. */
static void product_oracle(double *out, const double *y, const double *w, const double *b, int n,
                           int k)
{
    for (int r = 0; r < R_MAX; r++)
        for (int c = 0; c < n; c++) {
            double s = b ? b[c] : 0;
            for (int j = 0; j < k; j++)
                s += y[r * k + j] * w[c * k + j];
            out[r * n + c] += s;
        }
}

static struct op_rmsnorm norm_call(float *y, const float *x, int64_t ldx, const struct weight *w,
                                   float eps, int rows)
{
    return (struct op_rmsnorm){.out = y,
                               .x = x,
                               .w = *w,
                               .rows = rows,
                               .dim = (int)w->k,
                               .ldx = ldx,
                               .ldo = w->k,
                               .n_group = 1,
                               .eps = eps};
}

static struct op_matmul product_call(float *out, int64_t ldo, const float *x, int64_t ldx,
                                     const struct weight *w, const struct weight *b, int rows)
{
    return (struct op_matmul){
        .out = out, .x = x, .w = *w, .bias = *b, .rows = rows, .ldx = ldx, .ldo = ldo};
}

static void proj_case(const struct t_devs *t, struct rng *r, enum dtype dt, int n, int k,
                      bool norm_on, bool bias_on)
{
    static const int widths[3] = {67, 33, 5};
    double *wv[3], *bv[3], *nv;
    struct weight norm = t_weight(r, DT_BF16, 1, k, 1, &nv);
    int ldx = k + 4;
    float *x = t_randf(r, (size_t)(R_MAX * ldx), 1), *y = t_randf(r, (size_t)(R_MAX * k), 1);
    struct op_proj a = {.x = x, .y = y, .n = n, .ldx = ldx, .eps = 1e-5f};
    float *seq = NULL, *all[3] = {0};
    struct t_out o[3];
    if (norm_on)
        a.norm = norm;
    double *rows = rows_oracle(x, ldx, k, norm_on ? nv : NULL, 1e-5);
    for (int i = 0; i < n; i++) {
        a.w[i] = t_weight(r, dt, widths[i], k, 1 / sqrt(k), &wv[i]);
        struct weight b = t_weight(r, DT_F32, 1, widths[i], 1, &bv[i]);
        if (bias_on)
            a.bias[i] = b;
        else
            t_weight_free(&b);
        a.ldo[i] = widths[i];
        o[i].bytes = sizeof(float) * (size_t)(R_MAX * widths[i]);
        a.out[i] = t_randf(r, o[i].bytes / sizeof(float), 1);
        o[i].p = a.out[i];
    }
    static const int counts[] = {R_MAX, 1, 2, 7, 13};
    for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
        a.rows = counts[c];
        t_everywhere(t, "proj", t_call_proj, &a, o, n);
        for (int i = 0; i < n; i++) {
            size_t used = sizeof(float) * (size_t)(a.rows * widths[i]);
            if (c > 0) {
                t_same_bits("proj, fewer rows", all[i], a.out[i], used);
                continue;
            }
            double *want = MEM_ARRAY(double, R_MAX *widths[i]);
            product_oracle(want, rows, wv[i], bias_on ? bv[i] : NULL, widths[i], k);
            struct tol tol = TOL_PROD;
            tol.abs = 4e-5; /* the norm's roundings, and weights of fp8 up to several units */
            t_close_to("proj", a.out[i], want, (size_t)(R_MAX * widths[i]), tol);
            all[i] = mem_dup(a.out[i], o[i].bytes);
            /* the sequence it stands for */
            seq = MEM_ARRAY(float, R_MAX *widths[i]);
            struct op_rmsnorm na = norm_call(y, x, ldx, &norm, a.eps, R_MAX);
            struct op_matmul m = product_call(seq, widths[i], norm_on ? y : x, norm_on ? k : ldx,
                                              &a.w[i], &a.bias[i], R_MAX);
            if (norm_on)
                ck_assert_int_eq(dev_cpu.ops->rmsnorm(t->d[0], &na), OK);
            ck_assert_int_eq(dev_cpu.ops->matmul(t->d[0], &m), OK);
            t_same_bits("proj, as a sequence", seq, all[i], used);
            mem_free(seq);
            mem_free(want);
        }
    }
    for (int i = 0; i < n; i++) {
        t_weight_free(&a.w[i]);
        if (bias_on)
            t_weight_free(&a.bias[i]);
        mem_free(wv[i]);
        mem_free(bv[i]);
        mem_free(a.out[i]);
        mem_free(all[i]);
    }
    t_weight_free(&norm);
    mem_free(nv);
    mem_free(x);
    mem_free(y);
    mem_free(rows);
}

void case_proj(const struct t_devs *t, struct rng *r)
{
    int turn = 0;
    for (size_t i = 0; i < sizeof g_types / sizeof g_types[0]; i++)
        for (int n = 1; n <= 3; n++)
            for (int k = 17; k < 300; k += 111, turn++)
                proj_case(t, r, g_types[i], n, k, turn & 1, turn & 2);
}

static void mlp_case(const struct t_devs *t, struct rng *r, enum dtype dt, bool norm_on,
                     bool bias_on, bool in_place)
{
    enum { H = 96, I = 70, LD = H + 4 };
    double *v[3], *bv[3], *nv;
    const int n[3] = {I, I, H}, k[3] = {H, H, I};
    struct weight w[3], b[3], none = {0}, norm = t_weight(r, DT_F32, 1, H, 1, &nv);
    for (int i = 0; i < 3; i++) {
        w[i] = t_weight(r, dt, n[i], k[i], 1 / sqrt(k[i]), &v[i]);
        b[i] = t_weight(r, DT_BF16, 1, n[i], 1, &bv[i]);
    }
    size_t bytes = sizeof(float) * R_MAX * LD;
    float *x = t_randf(r, R_MAX * LD, 1), *y = t_randf(r, R_MAX * H, 1);
    float *out = in_place ? x : t_randf(r, R_MAX * LD, 1), *start = mem_dup(out, bytes);
    float *g = t_randf(r, R_MAX * I, 1), *u = t_randf(r, R_MAX * I, 1), *all = NULL;
    double *rows = rows_oracle(x, LD, H, norm_on ? nv : NULL, 1e-6);
    double *act[2], *want = MEM_ARRAY(double, R_MAX *H);
    for (int i = 0; i < 2; i++) {
        act[i] = MEM_ARRAY(double, R_MAX *I);
        product_oracle(act[i], rows, v[i], bias_on ? bv[i] : NULL, I, H);
    }
    for (int i = 0; i < R_MAX * I; i++)
        act[0][i] *= act[1][i] / (1 + exp(-act[0][i]));
    product_oracle(want, act[0], v[2], bias_on ? bv[2] : NULL, H, I);
    double *full = mem_alloc(sizeof *full * R_MAX * LD); /* with the gaps between rows */
    for (int i = 0; i < R_MAX * LD; i++)
        full[i] = (double)start[i] + (i % LD < H ? want[i / LD * H + i % LD] : 0);
    struct op_mlp a = {.out = out,
                       .x = x,
                       .norm = norm_on ? norm : none,
                       .y = y,
                       .gate = w[0],
                       .up = w[1],
                       .down = w[2],
                       .gate_b = bias_on ? b[0] : none,
                       .up_b = bias_on ? b[1] : none,
                       .down_b = bias_on ? b[2] : none,
                       .g = g,
                       .u = u,
                       .ldx = LD,
                       .ldo = LD,
                       .eps = 1e-6f};
    static const int counts[] = {R_MAX, 1, 2, 7, 13};
    for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
        struct t_out o = {out, bytes};
        memcpy(out, start, bytes);
        a.rows = counts[c];
        t_everywhere(t, "mlp", t_call_mlp, &a, &o, 1);
        if (c == 0) {
            struct tol tol = TOL_FFN;
            tol.abs = dt == DT_F8E4M3 ? 1e-3 : 1e-4; /* random fp8 weights make sums of tens */
            t_close_to("mlp", out, full, R_MAX * LD, tol);
            all = mem_dup(out, bytes);
        }
        t_same_bits("mlp, fewer rows", all, out, sizeof(float) * (size_t)(counts[c] * LD));
    }
    /* the sequence it stands for */
    memcpy(out, start, bytes);
    struct op_rmsnorm na = norm_call(y, x, LD, &norm, a.eps, R_MAX);
    if (norm_on)
        ck_assert_int_eq(dev_cpu.ops->rmsnorm(t->d[0], &na), OK);
    struct op_matmul m[3];
    for (int i = 0; i < 3; i++)
        m[i] = product_call(i == 0   ? g
                            : i == 1 ? u
                                     : out,
                            i < 2 ? I : LD,
                            i == 2    ? g
                            : norm_on ? y
                                      : x,
                            i == 2    ? I
                            : norm_on ? H
                                      : LD,
                            &w[i], bias_on ? &b[i] : &none, R_MAX);
    m[2].accumulate = true;
    struct op_silu_mul s = {g, g, u, R_MAX, I, I, I, I};
    ck_assert_int_eq(dev_cpu.ops->matmul(t->d[0], &m[0]), OK);
    ck_assert_int_eq(dev_cpu.ops->matmul(t->d[0], &m[1]), OK);
    ck_assert_int_eq(dev_cpu.ops->silu_mul(t->d[0], &s), OK);
    ck_assert_int_eq(dev_cpu.ops->matmul(t->d[0], &m[2]), OK);
    t_same_bits("mlp, as a sequence", all, out, bytes);
    for (int i = 0; i < 3; i++) {
        t_weight_free(&w[i]);
        t_weight_free(&b[i]);
        mem_free(v[i]);
        mem_free(bv[i]);
    }
    t_weight_free(&norm);
    mem_free(nv);
    if (!in_place)
        mem_free(out);
    mem_free(x);
    mem_free(y);
    mem_free(g);
    mem_free(u);
    mem_free(start);
    mem_free(all);
    mem_free(rows);
    mem_free(act[0]);
    mem_free(act[1]);
    mem_free(want);
    mem_free(full);
}

void case_mlp(const struct t_devs *t, struct rng *r)
{
    for (size_t i = 0; i < sizeof g_types / sizeof g_types[0]; i++)
        for (int form = 0; form < 8; form++)
            mlp_case(t, r, g_types[i], form & 1, form & 2, form & 4);
}
