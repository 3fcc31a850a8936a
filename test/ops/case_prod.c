/* Contract cases of products and experts. Beside the common checks: a row's bits are the same alone
 * and among any number of others. */
#include "test/ops/util.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"

static const enum dtype g_types[] = {DT_F32, DT_BF16, DT_F16, DT_F8E4M3};

/* ---- matmul ---- */

enum { MM_ROWS = 40 };

static void matmul_case(const struct t_devs *t, struct rng *r, enum dtype dt, int n, int k,
                        bool add, bool bias_on)
{
    double *wv, *bv;
    struct weight w = t_weight(r, dt, n, k, 1 / sqrt(k), &wv);
    struct weight bias = t_weight(r, DT_BF16, 1, n, 1, &bv);
    int ldx = k + 5, ldo = n + 3;
    float *x = t_randf(r, (size_t)(MM_ROWS * ldx), 1);
    size_t no = (size_t)(MM_ROWS * ldo);
    float *start = t_randf(r, no, 1), *out = mem_alloc(no * sizeof *out), *all = NULL;
    double *want = mem_alloc(no * sizeof *want);
    double norm = 0;
    for (int i = 0; i < n * k; i++)
        norm += wv[i] * wv[i];
    norm = norm > 0 ? sqrt(norm / n) : 1; /* size of a sum: the types' random weights differ */
    for (int i = 0; i < MM_ROWS; i++)
        for (int c = 0; c < ldo; c++) {
            double s = (double)start[i * ldo + c];
            if (c < n) {
                s = add ? s : 0;
                for (int l = 0; l < k; l++)
                    s += (double)x[i * ldx + l] * wv[c * k + l];
                s += bias_on ? bv[c] : 0;
            }
            want[i * ldo + c] = s;
        }
    static const int rows[] = {MM_ROWS, 1, 2, 3, 4, 7, 13, 39};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        memcpy(out, start, no * sizeof *out);
        struct op_matmul a = {
            .out = out, .x = x, .w = w, .rows = rows[i], .ldx = ldx, .ldo = ldo, .accumulate = add};
        if (bias_on)
            a.bias = bias;
        struct t_out o = {out, no * sizeof *out};
        char what[96];
        snprintf(what, sizeof what, "matmul %s N%d K%d rows %d", dtype_name(dt), n, k, rows[i]);
        t_everywhere(t, what, t_call_matmul, &a, &o, 1);
        if (!all) {
            struct tol tol = TOL_PROD;
            tol.abs *= norm > 1 ? norm : 1;
            t_close_to(what, out, want, no, tol);
            all = mem_dup(out, no * sizeof *out);
        }
        for (int row = 0; row < rows[i]; row++)
            t_same_bits(what, all + row * ldo, out + row * ldo, (size_t)ldo * sizeof(float));
        if (rows[i] < MM_ROWS) /* rows from the middle, as the first of a call */
            for (int row = 5; row + rows[i] <= MM_ROWS && row < 7; row++) {
                memcpy(out, start, no * sizeof *out);
                struct op_matmul b = a;
                b.x = x + row * ldx;
                b.out = out + row * ldo;
                ck_assert_int_eq(dev_cpu.ops->matmul(t->d[t->n - 1], &b), OK);
                t_same_bits(what, all + row * ldo, out + row * ldo,
                            (size_t)(rows[i] * ldo) * sizeof(float));
            }
    }
    t_weight_free(&w);
    t_weight_free(&bias);
    mem_free(wv);
    mem_free(bv);
    mem_free(x);
    mem_free(start);
    mem_free(out);
    mem_free(all);
    mem_free(want);
}

void case_matmul(const struct t_devs *t, struct rng *r)
{
    static const int ks[] = {1, 15, 16, 17, 130, 576}, ns[] = {1, 3, 5, 64, 67, 130};
    int turn = 0;
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 6; k++)
            for (int n = 0; n < 6; n++, turn++)
                if (k < 5 || n == 4 || i == 1) /* the largest only for bf16 */
                    matmul_case(t, r, g_types[i], ns[n], ks[k], turn & 1, turn & 2);
}

void case_matmul_heads(const struct t_devs *t, struct rng *r)
{
    static const struct {
        int rows, heads, n_rows, k, row0, stride;
    } cases[] = {{1, 1, 1, 1, 0, 1},
                 {1, 4, 24, 32, 0, 44},
                 {7, 4, 20, 32, 24, 44},
                 {40, 3, 128, 96, 0, 256},
                 {2, 5, 17, 19, 3, 20}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (int dt = 0; dt < 4; dt++)
            for (int tr = 0; tr < 2; tr++) {
                int rows = cases[i].rows, heads = cases[i].heads, nr = cases[i].n_rows;
                int k = cases[i].k, wn = heads * cases[i].stride + cases[i].row0;
                double *wv;
                struct weight w = t_weight(r, g_types[dt], wn, k, 0.2, &wv);
                int in = tr ? nr : k, out_n = tr ? k : nr, xs = in + 1, os = out_n + 2;
                size_t no = (size_t)(rows * heads * os);
                float *x = t_randf(r, (size_t)(rows * heads * xs), 1), *out = t_randf(r, no, 1);
                double *want = mem_alloc(no * sizeof *want);
                for (size_t j = 0; j < no; j++)
                    want[j] = (double)out[j];
                for (int row = 0; row < rows; row++)
                    for (int h = 0; h < heads; h++)
                        for (int c = 0; c < out_n; c++) {
                            double s = 0;
                            const float *xr = x + (row * heads + h) * xs;
                            int64_t w0 = (int64_t)h * cases[i].stride + cases[i].row0;
                            for (int l = 0; l < in; l++)
                                s += (double)xr[l] *
                                     (tr ? wv[(w0 + l) * k + c] : wv[(w0 + c) * k + l]);
                            want[(row * heads + h) * os + c] = s;
                        }
                struct op_matmul_heads a = {.out = out,
                                            .x = x,
                                            .w = w,
                                            .rows = rows,
                                            .heads = heads,
                                            .w_head_stride = cases[i].stride,
                                            .w_row0 = cases[i].row0,
                                            .n_rows = nr,
                                            .ldx = heads * xs,
                                            .x_stride = xs,
                                            .ldo = heads * os,
                                            .out_stride = os,
                                            .transposed = tr == 1};
                struct t_out o = {out, no * sizeof *out};
                t_everywhere(t, "matmul_heads", t_call_matmul_heads, &a, &o, 1);
                struct tol tol = TOL_PROD;
                tol.abs = g_types[dt] == DT_F16 ? 2e-4 : tol.abs; /* random bits: weights up to 2 */
                t_close_to(tr ? "matmul_heads, transposed" : "matmul_heads", out, want, no, tol);
                float *all = mem_dup(out, no * sizeof *out);
                for (int row = 0; row < rows; row += 3) { /* alone */
                    struct op_matmul_heads b = a;
                    b.rows = 1;
                    b.x += row * a.ldx;
                    b.out += row * a.ldo;
                    ck_assert_int_eq(dev_cpu.ops->matmul_heads(t->d[t->n - 1], &b), OK);
                }
                t_same_bits("matmul_heads, row alone", all, out, no * sizeof *out);
                t_weight_free(&w);
                mem_free(wv);
                mem_free(x);
                mem_free(out);
                mem_free(all);
                mem_free(want);
            }
}

/* ---- experts ---- */

/* Naive choice in double, written from the model cards: sort everything. */
static void route_oracle(const struct op_moe_route *a, const float *logits, int32_t *ids,
                         double *weights)
{
    double s[512], c[512], g[64];
    bool out[512] = {0};
    int n = a->experts, per = a->group == MOE_GROUP_NONE ? n : n / a->n_group;
    double sum = 0, max = -INFINITY;
    for (int i = 0; i < n; i++)
        max = (double)logits[i] > max ? (double)logits[i] : max;
    for (int i = 0; i < n; i++)
        sum += exp((double)logits[i] - max);
    for (int i = 0; i < n; i++) {
        s[i] = a->score == MOE_SOFTMAX ? exp((double)logits[i] - max) / sum
                                       : 1 / (1 + exp(-(double)logits[i]));
        c[i] = s[i] + (a->bias ? (double)a->bias[i] : 0);
    }
    if (a->group != MOE_GROUP_NONE) {
        for (int k = 0; k < a->n_group; k++) {
            double m1 = -INFINITY, m2 = -INFINITY;
            for (int i = k * per; i < (k + 1) * per; i++) {
                double v = c[i];
                m2 = v > m1 ? m1 : v > m2 ? v : m2;
                m1 = v > m1 ? v : m1;
            }
            g[k] = a->group == MOE_GROUP_MAX ? m1 : m1 + m2;
        }
        for (int k = 0; k < a->n_group; k++) {
            int better = 0;
            for (int o = 0; o < a->n_group; o++)
                better += g[o] > g[k] || (g[o] == g[k] && o < k);
            for (int i = k * per; i < (k + 1) * per; i++)
                out[i] = better >= a->topk_group;
        }
    }
    sum = 0;
    for (int t = 0; t < a->topk; t++) {
        int e = -1;
        for (int i = 0; i < n; i++)
            if (!out[i] && (e < 0 || c[i] > c[e]))
                e = i;
        out[e] = true;
        ids[t] = e;
        weights[t] = s[e];
        sum += s[e];
    }
    for (int t = 0; t < a->topk; t++)
        weights[t] *= (double)a->scale / (a->normalize ? sum + (double)a->norm_eps : 1);
}

void case_moe_route(const struct t_devs *t, struct rng *r)
{
    static const struct {
        int experts, topk, n_group, topk_group;
    } sizes[] = {{8, 2, 1, 1}, {64, 6, 8, 3}, {256, 8, 8, 4}, {16, 16, 4, 4}, {384, 8, 1, 1}};
    enum { R = 33 };
    struct tol tol = TOL_ELEM;
    tol.rel = 8e-7; /* two exponentials of 2 ulp: the pick's and those in the sum */
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        for (int score = MOE_SOFTMAX; score <= MOE_SIGMOID; score++)
            for (int group = MOE_GROUP_NONE; group <= MOE_GROUP_TOP2_SUM; group++)
                for (int v = 0; v < 4; v++) {
                    int n = sizes[i].experts, k = sizes[i].topk;
                    float *logits = t_randf(r, (size_t)(R * n), 2),
                          *bias = t_randf(r, (size_t)n, 0.3);
                    for (int e = 0; e < n && v == 3; e++)
                        logits[e] = 1; /* all equal: ties go to the lowest index */
                    int32_t *ids = MEM_ARRAY(int32_t, R * k), want[32];
                    float *w = MEM_ARRAY(float, R *k);
                    double wantw[32];
                    struct op_moe_route a = {.ids = ids,
                                             .weights = w,
                                             .logits = logits,
                                             .bias = v & 1 && v < 3 ? bias : NULL,
                                             .rows = R,
                                             .experts = n,
                                             .topk = k,
                                             .n_group = sizes[i].n_group,
                                             .topk_group = sizes[i].topk_group,
                                             .score = (enum moe_score)score,
                                             .group = (enum moe_group)group,
                                             .normalize = v >= 2,
                                             .norm_eps = v >= 2 ? 1e-20f : 0,
                                             .scale = 2.5f};
                    struct t_out o[2] = {{ids, sizeof(int32_t) * (size_t)(R * k)},
                                         {w, sizeof(float) * (size_t)(R * k)}};
                    t_everywhere(t, "moe_route", t_call_moe_route, &a, o, 2);
                    for (int row = 0; row < R; row++) {
                        route_oracle(&a, logits + row * n, want, wantw);
                        for (int e = 0; e < k; e++)
                            ck_assert_msg(ids[row * k + e] == want[e],
                                          "moe_route E%d score %d group %d form %d row %d pick %d: "
                                          "%d, want %d",
                                          n, score, group, v, row, e, ids[row * k + e], want[e]);
                        t_close_to("moe_route weights", w + row * k, wantw, (size_t)k, tol);
                    }
                    mem_free(logits);
                    mem_free(bias);
                    mem_free(ids);
                    mem_free(w);
                }
}

/* want += weight * down(silu(gate x) * up x); w is gate, up, down */
static void add_mlp_row(double *want, const float *x, double *const *w, int hidden, int inter,
                        double weight)
{
    for (int i = 0; i < inter; i++) {
        double g = 0, u = 0;
        for (int h = 0; h < hidden; h++) {
            g += (double)x[h] * w[0][i * hidden + h];
            u += (double)x[h] * w[1][i * hidden + h];
        }
        for (int h = 0; h < hidden; h++)
            want[h] += weight * g / (1 + exp(-g)) * u * w[2][h * inter + i];
    }
}

/* With a router: the choice of the product's logits, which are written too. */
static void moe_router(const struct t_devs *t, struct rng *r)
{
    enum { R = 19, E = 24, K = 4, H = 80 };
    double *v;
    struct weight w = t_weight(r, DT_BF16, E, H, 0.3, &v);
    float *x = t_randf(r, R * H, 1), *logits = MEM_ARRAY(float, R *E), *pw = MEM_ARRAY(float, R *K);
    struct weight norm = {.p = t_randf(r, H, 1), .dt = DT_F32, .n = 1, .k = H};
    float *y = MEM_ARRAY(float, R *H), *y2 = MEM_ARRAY(float, R *H);
    float *logits2 = MEM_ARRAY(float, R *E), *pw2 = MEM_ARRAY(float, R *K);
    int32_t ids[R * K], ids2[R * K];
    struct op_moe_route a = {.ids = ids,
                             .weights = pw,
                             .logits = logits,
                             .router = w,
                             .x = x,
                             .norm = norm,
                             .y = y,
                             .eps = 1e-5f,
                             .rows = R,
                             .experts = E,
                             .topk = K,
                             .n_group = 1,
                             .topk_group = 1,
                             .score = MOE_SOFTMAX,
                             .group = MOE_GROUP_NONE,
                             .scale = 1};
    struct op_moe_route b = a;
    struct op_rmsnorm n = {.out = y2,
                           .x = x,
                           .w = norm,
                           .rows = R,
                           .dim = H,
                           .ldx = H,
                           .ldo = H,
                           .n_group = 1,
                           .eps = 1e-5f};
    struct op_matmul m = {.out = logits2, .x = y2, .w = w, .rows = R, .ldx = H, .ldo = E};
    struct t_out o[4] = {{ids, sizeof ids},
                         {pw, R * K * sizeof *pw},
                         {logits, R * E * sizeof *logits},
                         {y, R * H * sizeof *y}};
    t_everywhere(t, "moe_route with a router", t_call_moe_route, &a, o, 4);
    b.ids = ids2;
    b.weights = pw2;
    b.logits = logits2;
    b.router.p = NULL;
    ck_assert_int_eq(dev_cpu.ops->rmsnorm(t->d[0], &n), OK);
    ck_assert_int_eq(dev_cpu.ops->matmul(t->d[0], &m), OK);
    ck_assert_int_eq(dev_cpu.ops->moe_route(t->d[0], &b), OK);
    t_same_bits("router logits", logits, logits2, R * E * sizeof *logits);
    t_same_bits("router rows", y, y2, R * H * sizeof *y);
    t_same_bits("router ids", ids, ids2, sizeof ids);
    t_same_bits("router weights", pw, pw2, R * K * sizeof *pw);
    t_weight_free(&w);
    mem_free(v);
    mem_free(x);
    mem_free(logits);
    mem_free(logits2);
    mem_free(y);
    mem_free(y2);
    mem_free((void *)(uintptr_t)norm.p);
    mem_free(pw);
    mem_free(pw2);
}

void case_moe_ffn(const struct t_devs *t, struct rng *r)
{
    enum { R = 21, E = 5, K = 3, H = 48, I = 40, S = 56 };
    moe_router(t, r);
    for (int dt = 0; dt < 4; dt++) {
        if (g_types[dt] == DT_F16)
            continue; /* random half bits make sums too large to compare */
        struct weight w[3][E];
        double *v[3][E];
        for (int e = 0; e < E; e++)
            for (int m = 0; m < 3; m++)
                w[m][e] = t_weight(r, g_types[dt], m < 2 ? I : H, m < 2 ? H : I, 0.15, &v[m][e]);
        struct weight sw[3];
        double *sv[3];
        for (int m = 0; m < 3; m++)
            sw[m] = t_weight(r, g_types[dt], m < 2 ? S : H, m < 2 ? H : S, 0.15, &sv[m]);
        float *x = t_randf(r, R * H, 1), *out = t_randf(r, R * H, 1), *pw = t_randf(r, R * K, 0.5);
        int32_t ids[R * K];
        for (int i = 0; i < R * K; i++)
            ids[i] = (int32_t)((i / K * 2 + i % K) % (E - 1)) +
                     (i % K == 0 && i % 4 == 0); /* E-1 rare */
        ids[4] = -1;                             /* no expert */
        double want[R * H];
        for (int row = 0; row < R; row++)
            for (int h = 0; h < H; h++)
                want[row * H + h] = (double)out[row * H + h];
        for (int p = 0; p < R * K; p++) {
            double *const e[3] = {v[0][ids[p] < 0 ? 0 : ids[p]], v[1][ids[p] < 0 ? 0 : ids[p]],
                                  v[2][ids[p] < 0 ? 0 : ids[p]]};
            if (ids[p] >= 0)
                add_mlp_row(want + p / K * H, x + p / K * H, e, H, I, (double)pw[p]);
            if (p % K == 0)
                add_mlp_row(want + p / K * H, x + p / K * H, sv, H, S, 1);
        }
        float *work = MEM_ARRAY(float, moe_ffn_work(R, K, I, S, H));
        float *start = mem_dup(out, R * H * sizeof(float));
        struct op_moe_ffn a = {.out = out,
                               .x = x,
                               .ids = ids,
                               .weights = pw,
                               .gate = w[0],
                               .up = w[1],
                               .down = w[2],
                               .sh_gate = sw[0],
                               .sh_up = sw[1],
                               .sh_down = sw[2],
                               .work = work,
                               .rows = R,
                               .hidden = H,
                               .inter = I,
                               .experts = E,
                               .topk = K};
        struct t_out o = {out, R * H * sizeof(float)};
        t_everywhere(t, "moe_ffn", t_call_moe_ffn, &a, &o, 1);
        t_close_to("moe_ffn", out, want, R * H, TOL_FFN);
        for (int row = 0; row < R; row++) { /* a row alone */
            struct op_moe_ffn b = a;
            float one[H];
            memcpy(one, start + row * H, sizeof one);
            b.out = one;
            b.x += row * H;
            b.ids += row * K;
            b.weights += row * K;
            b.rows = 1;
            ck_assert_int_eq(dev_cpu.ops->moe_ffn(t->d[t->n - 1], &b), OK);
            t_same_bits("moe_ffn, row alone", out + row * H, one, sizeof one);
        }
        for (int m = 0; m < 3; m++) {
            for (int e = 0; e < E; e++) {
                t_weight_free(&w[m][e]);
                mem_free(v[m][e]);
            }
            t_weight_free(&sw[m]);
            mem_free(sv[m]);
        }
        mem_free(x);
        mem_free(out);
        mem_free(pw);
        mem_free(work);
        mem_free(start);
    }
}
