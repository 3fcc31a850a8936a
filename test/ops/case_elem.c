/* Contract cases of the element-wise and row-wise operations. */
#include "test/ops/util.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"

static const enum dtype g_types[] = {DT_F32, DT_BF16, DT_F16, DT_F8E4M3};

void case_embed(const struct t_devs *t, struct rng *r)
{
    static const int dims[] = {1, 17, 129, 576};
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 4; k++) {
            enum { V = 140, R = 11 };
            int h = dims[k];
            double *val, want[R * 576];
            struct weight w = t_weight(r, g_types[i], V, h, 1, &val);
            int32_t tok[R] = {0, V - 1, -1, V, 5, 5, 128, 127, -7, 1 << 30, 3};
            float *out = t_randf(r, (size_t)(R * h), 1);
            for (int j = 0; j < R; j++)
                for (int c = 0; c < h; c++)
                    want[j * h + c] = tok[j] >= 0 && tok[j] < V ? val[tok[j] * h + c] : 0;
            struct op_embed a = {out, tok, w, R, 0};
            struct t_out o = {out, (size_t)(R * h) * sizeof(float)};
            t_everywhere(t, "embed", t_call_embed, &a, &o, 1);
            /* fp8 times scale is rounded once to fp32 */
            t_close_to("embed", out, want, (size_t)(R * h),
                       g_types[i] == DT_F8E4M3 ? TOL_ELEM : TOL_EXACT);
            t_weight_free(&w);
            mem_free(val);
            mem_free(out);
        }
}

void case_rmsnorm(const struct t_devs *t, struct rng *r)
{
    static const struct {
        int rows, dim, groups, ldx, stride;
    } cases[] = {{1, 1, 1, 1, 0},     {5, 7, 1, 9, 0},        {33, 576, 1, 576, 0},
                 {3, 64, 9, 640, 64}, {40, 128, 4, 600, 130}, {2, 1025, 1, 1025, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (int k = 0; k < 3; k++) {
            int rows = cases[i].rows, dim = cases[i].dim, ng = cases[i].groups, ld = cases[i].ldx;
            double *val;
            struct weight w = t_weight(r, g_types[k], 1, dim, 1, &val);
            size_t n = (size_t)(rows * ld);
            float *x = t_randf(r, n, 3), *out = t_randf(r, n, 1);
            x[0] = 0;
            double *want = mem_alloc(n * sizeof *want);
            for (size_t j = 0; j < n; j++)
                want[j] = (double)out[j]; /* gaps between groups stay */
            for (int row = 0; row < rows; row++)
                for (int g = 0; g < ng; g++) {
                    int64_t at = (int64_t)row * ld + g * cases[i].stride;
                    double s = 0;
                    for (int c = 0; c < dim; c++)
                        s += (double)x[at + c] * (double)x[at + c];
                    for (int c = 0; c < dim; c++)
                        want[at + c] = val[c] * (double)x[at + c] / sqrt(s / dim + 1e-5);
                }
            struct op_rmsnorm a = {.out = out,
                                   .x = x,
                                   .w = w,
                                   .rows = rows,
                                   .dim = dim,
                                   .ldx = ld,
                                   .ldo = ld,
                                   .n_group = ng,
                                   .group_stride = cases[i].stride,
                                   .group_stride_out = cases[i].stride,
                                   .eps = 1e-5f};
            struct t_out o = {out, n * sizeof(float)};
            t_everywhere(t, "rmsnorm", t_call_rmsnorm, &a, &o, 1);
            t_close_to("rmsnorm", out, want, n, TOL_ELEM);
            float *apart = mem_dup(out, n * sizeof(float));
            a.out = x; /* in place: the gaps are x's */
            o.p = x;
            t_everywhere(t, "rmsnorm in place", t_call_rmsnorm, &a, &o, 1);
            t_same_bits("rmsnorm in place", apart, x, (size_t)dim * sizeof(float));
            t_weight_free(&w);
            mem_free(val);
            mem_free(x);
            mem_free(out);
            mem_free(apart);
            mem_free(want);
        }
}

void case_rope(const struct t_devs *t, struct rng *r)
{
    enum { POS = 50 };
    for (int form = 0; form < 2; form++)
        for (int i = 0; i < 3; i++) {
            static const struct {
                int rows, heads, dim, stride, ld;
            } cases[] = {{1, 1, 2, 2, 2}, {7, 3, 64, 80, 300}, {70, 2, 20, 24, 64}};
            int rows = cases[i].rows, half = cases[i].dim / 2, ld = cases[i].ld;
            float *cs = t_randf(r, (size_t)(POS * half), 1),
                  *sn = t_randf(r, (size_t)(POS * half), 1);
            size_t n = (size_t)(rows * ld);
            float *x = t_randf(r, n, 1);
            double *want = mem_alloc(n * sizeof *want);
            int32_t *pos = mem_alloc((size_t)rows * sizeof *pos);
            for (size_t j = 0; j < n; j++)
                want[j] = (double)x[j];
            for (int row = 0; row < rows; row++) {
                pos[row] = (int32_t)rng_below(r, POS);
                for (int h = 0; h < cases[i].heads; h++)
                    for (int c = 0; c < half; c++) {
                        int64_t at = (int64_t)row * ld + h * cases[i].stride;
                        int64_t p = at + (form ? 2 * c : c), q = at + (form ? 2 * c + 1 : c + half);
                        double co = (double)cs[pos[row] * half + c];
                        double si = (double)sn[pos[row] * half + c];
                        want[p] = (double)x[p] * co - (double)x[q] * si;
                        want[q] = (double)x[q] * co + (double)x[p] * si;
                    }
            }
            struct op_rope a = {
                x,        pos, cs, sn, rows, cases[i].heads, cases[i].dim, POS, ld, cases[i].stride,
                form == 1};
            struct t_out o = {x, n * sizeof(float)};
            t_everywhere(t, "rope", t_call_rope, &a, &o, 1);
            struct tol tol = TOL_ELEM;
            tol.abs = 1e-6; /* differences of products cancel */
            t_close_to("rope", x, want, n, tol);
            mem_free(cs);
            mem_free(sn);
            mem_free(x);
            mem_free(want);
            mem_free(pos);
        }
}

void case_kv_write(const struct t_devs *t, struct rng *r)
{
    enum { SLOTS = 40, W = 24, R = 9, LD = 30 };
    float *cache = t_randf(r, SLOTS * W, 1), *x = t_randf(r, R * LD, 1);
    float *want = mem_dup(cache, SLOTS * W * sizeof(float));
    int32_t wslot[R] = {3, -1, 39, 0, -1, 17, 18, -5, 2};
    for (int i = 0; i < R; i++)
        if (wslot[i] >= 0)
            memcpy(want + wslot[i] * W, x + i * LD, W * sizeof(float));
    x[4] = NAN;
    x[5] = -0.0f;
    x[LD * 2 + 3] = INFINITY; /* fp8: saturates */
    x[LD * 2 + 7] = -300;
    memcpy(want + 3 * W, x, W * sizeof(float));
    memcpy(want + 39 * W, x + LD * 2, W * sizeof(float));
    struct op_kv_write a = {cache, DT_F32, x, wslot, R, W, LD, 0.25f};
    struct t_out o = {cache, SLOTS * W * sizeof(float)};
    t_everywhere(t, "kv_write", t_call_kv_write, &a, &o, 1);
    t_same_bits("kv_write", want, cache, o.bytes);
    static const enum dtype types[] = {DT_BF16, DT_F8E4M3};
    for (int k = 0; k < 2; k++) {
        a.dt = types[k];
        o.bytes = SLOTS * W * dtype_size(a.dt);
        memset(cache, 0x5a, o.bytes);
        memset(want, 0x5a, o.bytes);
        for (int i = 0; i < R; i++)
            for (int j = 0; j < W && wslot[i] >= 0; j++)
                dtype_store(want, a.dt, wslot[i] * W + j, x[i * LD + j] * (k ? 4 : 1));
        t_everywhere(t, "kv_write", t_call_kv_write, &a, &o, 1);
        t_same_bits("kv_write", want, cache, o.bytes);
        ck_assert(dtype_load(cache, a.dt, 39 * W + 3) == (k ? 448 : INFINITY));
        ck_assert(dtype_load(cache, a.dt, 39 * W + 7) == (k ? -448 : -300));
        ck_assert_float_nan(dtype_load(cache, a.dt, 3 * W + 4));
    }
    mem_free(cache);
    mem_free(x);
    mem_free(want);
}

void case_silu_mul(const struct t_devs *t, struct rng *r)
{
    static const int dims[] = {1, 15, 16, 100, 1536};
    for (int i = 0; i < 5; i++) {
        enum { R = 9 };
        int d = dims[i], ld = d + 3;
        float *g = t_randf(r, (size_t)(R * ld), 5), *u = t_randf(r, (size_t)(R * ld), 1);
        float *out = t_randf(r, (size_t)(R * ld), 1);
        double *want = mem_alloc(sizeof *want * (size_t)(R * ld));
        static const float edge[] = {0, -0.0f, 100, -100, 88.7f, -88.7f, 1e30f, -1e30f};
        for (int k = 0; k < R && k < 8; k++)
            g[k * ld] = edge[k];
        for (int k = 0; k < R * ld; k++)
            want[k] = k % ld < d ? (double)g[k] / (1 + exp(-(double)g[k])) * (double)u[k]
                                 : (double)out[k];
        struct op_silu_mul a = {out, g, u, R, d, ld, ld, ld};
        struct t_out o = {out, sizeof(float) * (size_t)(R * ld)};
        t_everywhere(t, "silu_mul", t_call_silu_mul, &a, &o, 1);
        t_close_to("silu_mul", out, want, (size_t)(R * ld), TOL_ELEM);
        mem_free(g);
        mem_free(u);
        mem_free(out);
        mem_free(want);
    }
}

void case_add(const struct t_devs *t, struct rng *r)
{
    for (int d = 1; d < 70; d += 17) {
        enum { R = 130 };
        float *x = t_randf(r, (size_t)(R * d), 1), *y = t_randf(r, (size_t)(R * d), 1);
        float *want = mem_alloc(sizeof *want * (size_t)(R * d));
        for (int i = 0; i < R * d; i++)
            want[i] = x[i] + y[i];
        struct op_add a = {x, y, R, d};
        struct t_out o = {x, sizeof(float) * (size_t)(R * d)};
        t_everywhere(t, "add", t_call_add, &a, &o, 1);
        t_same_bits("add", want, x, o.bytes);
        mem_free(x);
        mem_free(y);
        mem_free(want);
    }
}

void case_gather(const struct t_devs *t, struct rng *r)
{
    enum { R = 7, D = 33 };
    float *x = t_randf(r, 5 * D, 1), *out = t_randf(r, R * D, 1), want[R * D] = {0};
    int32_t idx[R] = {4, 0, -1, 2, 2, -9, 1};
    for (int i = 0; i < R; i++)
        if (idx[i] >= 0)
            memcpy(want + i * D, x + idx[i] * D, D * sizeof(float));
    struct op_gather a = {.out = out, .x = x, .idx = idx, .rows = R, .dim = D};
    struct t_out o = {out, sizeof want};
    t_everywhere(t, "gather", t_call_gather, &a, &o, 1);
    t_same_bits("gather", want, out, sizeof want);
    /* the middle of rows, in order, into a wider output that keeps its edges */
    enum { N = 4, PART = 20, LDO = 50 };
    float *wide = t_randf(r, N * LDO, 1), *edge = mem_dup(wide, N * LDO * sizeof *wide);
    struct op_gather b = {
        .out = wide + 3, .x = x + 7, .rows = N, .dim = PART, .ldx = D, .ldo = LDO};
    struct t_out ob = {wide, N * LDO * sizeof *wide};
    t_everywhere(t, "gather, strided", t_call_gather, &b, &ob, 1);
    for (int i = 0; i < N; i++)
        memcpy(edge + i * LDO + 3, x + i * D + 7, PART * sizeof *x);
    t_same_bits("gather, strided", edge, wide, N * LDO * sizeof *wide);
    mem_free(wide);
    mem_free(edge);
    mem_free(x);
    mem_free(out);
}
