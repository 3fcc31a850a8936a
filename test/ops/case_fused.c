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

/* Rows of a table by index, normalised, in double; an index outside gives zeros. */
static void normed_rows(double *out, int ldo, const double *x, int rows, const int32_t *idx,
                        const double *w, int h)
{
    for (int r = 0; r < R_MAX; r++) {
        double s = 0;
        bool in = idx[r] >= 0 && idx[r] < rows;
        for (int c = 0; in && c < h; c++)
            s += x[idx[r] * h + c] * x[idx[r] * h + c];
        for (int c = 0; c < h; c++)
            out[r * ldo + c] = in ? x[idx[r] * h + c] * (w ? w[c] / sqrt(s / h + 1e-5) : 1) : 0;
    }
}

static void pair_case(const struct t_devs *t, struct rng *r, enum dtype dt, int h, int form)
{
    enum { V = 30, SLOTS = 5, PAGES = 4, PAGE = 4 };
    bool x_on = form & 1, x_normed = form & 2, src_on = form & 4, place_on = form & 8;
    double *ev, *nv[2], *fv = MEM_ARRAY(double, R_MAX *h);
    struct weight e = t_weight(r, dt, V, h, 1, &ev), norm[2];
    for (int i = 0; i < 2; i++)
        norm[i] = t_weight(r, i ? DT_F32 : DT_BF16, 1, h, 1, &nv[i]);
    int32_t tok[R_MAX], src[R_MAX], own[R_MAX], pos[R_MAX], table[SLOTS * PAGES];
    int32_t placed[3 * R_MAX], want_placed[3 * R_MAX];
    float *feat = t_randf(r, (size_t)(R_MAX * h), 2);
    for (int i = 0; i < R_MAX * h; i++)
        fv[i] = (double)feat[i];
    for (int i = 0; i < R_MAX; i++) {
        tok[i] = i % 7 == 3 ? -1 : (int32_t)rng_below(r, V + 2);
        src[i] = i % 5 == 2 ? -1 : (int32_t)rng_below(r, R_MAX);
        own[i] = i;
        pos[i] = (int32_t)rng_below(r, SLOTS); /* slots and positions */
    }
    for (int i = 0; i < SLOTS * PAGES; i++)
        table[i] = (int32_t)rng_below(r, 100);
    size_t n = (size_t)(R_MAX * h), bytes = n * sizeof(float);
    float *pair = t_randf(r, 2 * n, 1), *x = t_randf(r, n, 1);
    double *want = MEM_ARRAY(double, 2 * R_MAX * h), *want_x = MEM_ARRAY(double, R_MAX *h);
    normed_rows(want, 2 * h, ev, V, tok, nv[0], h);
    normed_rows(want + h, 2 * h, fv, R_MAX, src_on ? src : own, nv[1], h);
    normed_rows(want_x, h, fv, R_MAX, src_on ? src : own, x_normed ? nv[1] : NULL, h);
    struct op_draft_pair a = {.pair = pair,
                              .x = x_on ? x : NULL,
                              .tok = tok,
                              .feat = feat,
                              .src = src_on ? src : NULL,
                              .e = e,
                              .tok_norm = norm[0],
                              .feat_norm = norm[1],
                              .eps = 1e-5f,
                              .x_normed = x_normed};
    struct op_rows_place place = {.slot = pos,
                                  .pos = pos,
                                  .tok = tok,
                                  .at = pos,
                                  .first = placed,
                                  .last = placed + R_MAX,
                                  .wslot = placed + 2 * R_MAX,
                                  .table = table,
                                  .pages_max = PAGES,
                                  .page = PAGE,
                                  .window = 3};
    struct t_out o[3] = {{pair, 2 * bytes}, {x, bytes}, {placed, sizeof placed}};
    float *all = NULL, *all_x = NULL;
    memset(placed, 0x5a, sizeof placed);
    static const int counts[] = {R_MAX, 1, 7};
    for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
        a.rows = counts[c];
        a.place = place;
        a.place.rows = place_on ? a.rows : 0;
        t_everywhere(t, "draft_pair", t_call_draft_pair, &a, o, 3);
        if (c == 0) {
            t_close_to("draft_pair", pair, want, 2 * n, TOL_ELEM);
            if (x_on)
                t_close_to("draft_pair x", x, want_x, n, TOL_ELEM);
            all = mem_dup(pair, 2 * bytes);
            all_x = mem_dup(x, bytes);
        }
        t_same_bits("draft_pair, fewer rows", all, pair, 2 * bytes);
        t_same_bits("draft_pair x, fewer rows", all_x, x, bytes);
    }
    memcpy(want_placed, placed, sizeof placed);
    /* the sequence it stands for */
    float *y = t_randf(r, n, 1), *rows = t_randf(r, n, 1);
    struct op_embed em = {.out = y, .tok = tok, .e = e, .rows = R_MAX};
    struct op_gather g = {
        .out = rows, .x = feat, .idx = src_on ? src : NULL, .rows = R_MAX, .dim = h};
    struct op_rmsnorm nt = norm_call(pair, y, h, &norm[0], a.eps, R_MAX);
    struct op_rmsnorm nf = norm_call(pair + h, rows, h, &norm[1], a.eps, R_MAX);
    struct op_rmsnorm nx = norm_call(x, rows, h, &norm[1], a.eps, R_MAX);
    nt.ldo = nf.ldo = 2 * h;
    memset(pair, 0, 2 * bytes);
    memset(placed, 0x5a, sizeof placed);
    ck_assert_int_eq(dev_cpu.ops->embed(t->d[0], &em), OK);
    ck_assert_int_eq(dev_cpu.ops->gather(t->d[0], &g), OK);
    ck_assert_int_eq(dev_cpu.ops->rmsnorm(t->d[0], &nt), OK);
    ck_assert_int_eq(dev_cpu.ops->rmsnorm(t->d[0], &nf), OK);
    if (x_normed)
        ck_assert_int_eq(dev_cpu.ops->rmsnorm(t->d[0], &nx), OK);
    place.rows = place_on ? R_MAX : 0;
    ck_assert_int_eq(dev_cpu.ops->rows_place(t->d[0], &place), OK);
    t_same_bits("draft_pair, as a sequence", all, pair, 2 * bytes);
    t_same_bits("draft_pair's places, as a sequence", want_placed, placed, sizeof placed);
    if (x_on)
        t_same_bits("draft_pair x, as a sequence", all_x, x_normed ? x : rows, bytes);
    t_weight_free(&e);
    for (int i = 0; i < 2; i++) {
        t_weight_free(&norm[i]);
        mem_free(nv[i]);
    }
    mem_free(ev);
    mem_free(fv);
    mem_free(feat);
    mem_free(pair);
    mem_free(x);
    mem_free(want);
    mem_free(want_x);
    mem_free(all);
    mem_free(all_x);
    mem_free(y);
    mem_free(rows);
}

void case_draft_pair(const struct t_devs *t, struct rng *r)
{
    static const int dims[] = {1, 17, 96};
    for (size_t i = 0; i < sizeof g_types / sizeof g_types[0]; i++)
        for (int form = 0; form < 16; form++)
            pair_case(t, r, g_types[i], dims[form % 3], form);
}
