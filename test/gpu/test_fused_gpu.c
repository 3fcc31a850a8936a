/* Goal: the CUDA device's operations that stand for a sequence compute what the CPU device
 * computes. Method: as in test_ops_gpu.c; widths and offsets that allow vector loads and that do
 * not; bf16 caches against fp32 ones within a rounding. Products that place their results give the
 * bits of the two operations. */
#include <stdio.h>
#include <stdlib.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "test/gpu/twin.h"

enum { POS = 64, SLOTS = 400 };

START_TEST(proj)
{
    struct twins t;
    twins_open(&t);
    static const struct {
        enum dtype dt;
        int rows, k, n[3];
    } cases[] = {
        {DT_BF16, 1, 576, {576, 192, 192}},   {DT_BF16, 1, 2048, {2048, 512, 512}},
        {DT_BF16, 4, 512, {512, 256, 0}},     {DT_BF16, 16, 256, {777, 0, 0}},
        {DT_BF16, 33, 320, {130, 64, 64}},    {DT_BF16, 64, 512, {1536, 576, 0}},
        {DT_BF16, 100, 256, {512, 128, 128}}, {DT_BF16, 3, 40, {50, 30, 20}},
        {DT_F8E4M3, 5, 384, {300, 128, 128}}, {DT_F8E4M3, 90, 256, {320, 64, 0}},
        {DT_F32, 4, 100, {64, 32, 16}},       {DT_BF16, 7, 384, {4096, 512, 177}},
        {DT_BF16, 1, 2048, {4096, 512, 512}}, {DT_BF16, 17, 192, {256, 64, 64}},
        {DT_BF16, 500, 192, {96, 80, 0}},     {DT_BF16, 128, 1024, {2048, 512, 512}},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        for (int form = 0; form < 4; form++) {
            bool norm_on = form & 1, bias_on = form & 2;
            if (cases[i].k > 1000 && form < 3)
                continue; /* one form of the large ones */
            int64_t sum = cases[i].n[0] + cases[i].n[1] + cases[i].n[2];
            bool exact =
                cases[i].rows <= 8 || twin_exact(cases[i].dt, sum * cases[i].k, cases[i].k);
            float tol = exact ? 5e-4f : 0.03f;
            int r = cases[i].rows, k = cases[i].k, n = 0;
            struct weight w[3] = {{0}}, b[3] = {{0}}, norm = {0};
            struct twin *x = twin_rand(&t, (size_t)r * (size_t)k, 1);
            struct twin *y = twin_nans(&t, (size_t)r * (size_t)k), *out[3] = {0};
            if (norm_on)
                norm = twin_weight(&t, DT_BF16, 1, k, 1);
            for (; n < 3 && cases[i].n[n]; n++) {
                w[n] = twin_weight(&t, cases[i].dt, cases[i].n[n], k, 1.0f / sqrtf((float)k));
                if (bias_on)
                    b[n] = twin_weight(&t, DT_BF16, 1, cases[i].n[n], 1);
                out[n] = twin_nans(&t, (size_t)r * (size_t)cases[i].n[n]);
            }
            BOTH(&t, proj,
                 SET({.x = P(x),
                      .norm = norm,
                      .y = P(y),
                      .rows = r,
                      .n = n,
                      .ldx = k,
                      .eps = 1e-5f,
                      .w = {w[0], w[1], w[2]},
                      .bias = {b[0], b[1], b[2]},
                      .out = {P(out[0]), n > 1 ? P(out[1]) : NULL, n > 2 ? P(out[2]) : NULL},
                      .ldo = {cases[i].n[0], cases[i].n[1], cases[i].n[2]}}));
            for (int p = 0; p < n; p++) {
                char what[64];
                snprintf(what, sizeof what, "proj case %zu form %d product %d", i, form, p);
                twin_near(&t, out[p], (size_t)r * (size_t)cases[i].n[p], tol, tol, what);
            }
        }
    twins_close(&t);
}
END_TEST

START_TEST(mlp)
{
    struct twins t;
    twins_open(&t);
    static const struct {
        enum dtype dt;
        int rows, h, inter;
    } cases[] = {{DT_BF16, 1, 576, 1536}, {DT_BF16, 1, 2048, 5632},  {DT_BF16, 7, 512, 1408},
                 {DT_BF16, 40, 256, 704}, {DT_BF16, 64, 512, 1024},  {DT_BF16, 130, 256, 512},
                 {DT_BF16, 3, 40, 50},    {DT_F8E4M3, 5, 256, 384},  {DT_F32, 4, 100, 60},
                 {DT_BF16, 9, 192, 400},  {DT_BF16, 17, 192, 896},   {DT_BF16, 65, 192, 48},
                 {DT_BF16, 500, 192, 48}, {DT_BF16, 128, 576, 1536}, {DT_BF16, 70, 1024, 2816}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        for (int form = 0; form < 4; form++) {
            bool norm_on = form & 1, bias_on = form & 2;
            if (cases[i].h > 1000 && form < 3)
                continue; /* one form of the large ones */
            int r = cases[i].rows, h = cases[i].h, n = cases[i].inter;
            float s = 1.0f / sqrtf((float)h), z = 1.0f / sqrtf((float)n);
            struct weight none = {0}, norm = twin_weight(&t, DT_BF16, 1, h, 1);
            struct weight gate = twin_weight(&t, cases[i].dt, n, h, s),
                          up = twin_weight(&t, cases[i].dt, n, h, s),
                          down = twin_weight(&t, cases[i].dt, h, n, z);
            struct weight gb = twin_weight(&t, DT_BF16, 1, n, 1),
                          db = twin_weight(&t, DT_BF16, 1, h, 1);
            size_t nh = (size_t)r * (size_t)h, ni = (size_t)r * (size_t)n;
            struct twin *x = twin_rand(&t, nh, 1), *y = twin_nans(&t, nh), *g = twin_nans(&t, ni),
                        *u = twin_nans(&t, ni), *out = norm_on ? x : twin_rand(&t, nh, 1);
            BOTH(&t, mlp,
                 SET({.out = P(out),
                      .x = P(x),
                      .norm = norm_on ? norm : none,
                      .y = P(y),
                      .gate = gate,
                      .up = up,
                      .down = down,
                      .gate_b = bias_on ? gb : none,
                      .up_b = bias_on ? gb : none,
                      .down_b = bias_on ? db : none,
                      .g = P(g),
                      .u = P(u),
                      .rows = r,
                      .ldx = h,
                      .ldo = h,
                      .eps = 1e-5f}));
            char what[64];
            snprintf(what, sizeof what, "mlp case %zu form %d", i, form);
            bool exact = twin_exact(cases[i].dt, (int64_t)2 * n * h, h) &&
                         twin_exact(cases[i].dt, (int64_t)n * h, n);
            float tol = r <= 8 || exact ? 1e-3f : 0.06f;
            twin_near(&t, out, nh, tol, tol, what);
        }
    twins_close(&t);
}
END_TEST

#define K_SCALE 0.007f /* of fp8 caches: what is above 3.1 saturates */
#define V_SCALE 0.02f
static const enum dtype caches[] = {DT_F32, DT_BF16, DT_F8E4M3};

/* The GPU's cache, whose element is `dt`, against the CPU's fp32 one. abs 0: it is what the CPU's
 * converts to; else within half a unit of the type and `abs`. */
static void near_cache(struct twins *t, const struct twin *w, enum dtype dt, float scale, size_t n,
                       float abs, const char *what)
{
    struct err e = {0};
    if (dt == DT_F32) {
        twin_near(t, w, n, abs, 1e-5f, what);
        return;
    }
    bool fp8 = dt == DT_F8E4M3;
    size_t size = dtype_size(dt);
    uint8_t *g = mem_alloc(n * size), ones[2] = {0xff, 0xff}, exact[4];
    const float *c = w->p[SIDE_CPU];
    ck_assert_int_eq(dev_cuda.copy_out(t->gpu, g, w->p[SIDE_GPU], n * size, &e), OK);
    for (size_t i = 0; i < n; i++) {
        float v = dtype_load(g, dt, (int64_t)i) * (fp8 ? scale : 1), want = c[i],
              most = 448 * scale;
        if (fp8 && fabsf(want) > most)
            want = want > 0 ? most : -most;
        float half = fp8 ? fabsf(want) / 16 + scale * 0x1p-10f : fabsf(want) / 256;
        dtype_store(exact, dt, 0, c[i] * (fp8 ? 1 / scale : 1));
        bool ok = isnan(c[i]) ? !memcmp(g + i * size, ones, size) /* nobody wrote there */
                  : abs > 0   ? fabsf(v - want) <= abs + half
                              : !memcmp(g + i * size, exact, size);
        if (!ok)
            ck_abort_msg("%s [%zu]: %g, want %g", what, i, (double)v, (double)c[i]);
    }
    mem_free(g);
}

/* NaN on both sides: the CPU's in fp32, the GPU's all ones, a NaN of either type. */
static struct twin *poisoned(struct twins *t, size_t n)
{
    struct err e = {0};
    struct twin *w = twin_nans(t, n);
    void *ones = mem_alloc(n * sizeof(float));
    memset(ones, 0xff, n * sizeof(float));
    ck_assert_int_eq(dev_cuda.copy_in(t->gpu, w->p[SIDE_GPU], ones, n * sizeof(float), &e), OK);
    ck_assert_int_eq(dev_cuda.sync(t->gpu, &e), OK);
    mem_free(ones);
    return w;
}

static void rows_of(struct twins *t, int rows, struct twin **pos, struct twin **wslot)
{
    int32_t p[SLOTS], w[SLOTS];
    ck_assert_int_le(rows, SLOTS);
    for (int i = 0; i < rows; i++) {
        p[i] = (int32_t)rng_below(&t->rng, POS);
        w[i] = i % 5 == 3 ? -1 - i : (int32_t)((i * 7 + 3) % SLOTS);
    }
    *pos = twin_ints(t, p, (size_t)rows);
    *wslot = twin_ints(t, w, (size_t)rows);
}

START_TEST(qkv_place)
{
    struct twins t;
    twins_open(&t);
    static const struct {
        int rows, nh, nkv, hd, pad; /* pad: added to the rows' distances */
    } cases[] = {{1, 32, 8, 128, 0}, {7, 4, 2, 64, 0},  {33, 6, 3, 80, 4}, {5, 3, 1, 18, 0},
                 {4, 3, 1, 20, 1},   {3, 2, 1, 256, 0}, {2, 2, 2, 512, 2}, {2, 1, 1, 1024, 0},
                 {300, 9, 3, 64, 0}, {6, 5, 5, 96, 0},  {3, 2, 1, 2, 0}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        for (int form = 0; form < 6; form++) {
            enum dtype dt = caches[form % 3];
            int r = cases[i].rows, hd = cases[i].hd, nh = cases[i].nh, nkv = cases[i].nkv;
            int nk = nkv * hd, ldq = nh * hd + cases[i].pad, ldk = nk + cases[i].pad;
            struct weight qn = {0}, kn = {0};
            struct twin *q = twin_rand(&t, (size_t)(r * ldq), 1),
                        *k = twin_rand(&t, (size_t)(r * ldk), 1),
                        *v = twin_rand(&t, (size_t)(r * ldk), 1), *pos, *wslot;
            struct twin *cs = twin_rand(&t, (size_t)(POS * hd / 2), 1),
                        *sn = twin_rand(&t, (size_t)(POS * hd / 2), 1),
                        *kc = poisoned(&t, (size_t)(SLOTS * nk)),
                        *vc = poisoned(&t, (size_t)(SLOTS * nk));
            rows_of(&t, r, &pos, &wslot);
            if (form >= 3) {
                qn = twin_weight(&t, DT_BF16, 1, hd, 1);
                kn = twin_weight(&t, DT_F32, 1, hd, 1);
            }
            BOTH(&t, qkv_place,
                 SET({.q = P(q),
                      .k = P(k),
                      .v = P(v),
                      .q_norm = qn,
                      .k_norm = kn,
                      .pos = P(pos),
                      .wslot = P(wslot),
                      .cos = P(cs),
                      .sin = P(sn),
                      .k_cache = P(kc),
                      .v_cache = P(vc),
                      .dt = side ? dt : DT_F32,
                      .rows = r,
                      .n_head = nh,
                      .n_kv = nkv,
                      .hd = hd,
                      .pos_max = POS,
                      .ldq = ldq,
                      .ldk = ldk,
                      .ldv = ldk,
                      .eps = 1e-6f,
                      .k_scale = K_SCALE,
                      .v_scale = V_SCALE}));
            char what[64];
            snprintf(what, sizeof what, "qkv_place case %zu form %d q", i, form);
            twin_near(&t, q, (size_t)(r * ldq), 1e-5f, 1e-5f, what);
            what[strlen(what) - 1] = 'k';
            near_cache(&t, kc, dt, K_SCALE, (size_t)(SLOTS * nk), 1e-5f, what);
            what[strlen(what) - 1] = 'v';
            near_cache(&t, vc, dt, V_SCALE, (size_t)(SLOTS * nk), 0, what);
        }
    twins_close(&t);
}
END_TEST

/* Products and caches of one way to compute q, k and v, from memory that starts the same. The three
 * products lie in one piece, at the same distances every time: cuBLASLt takes two as a batch where
 * their addresses allow it, which gives other bits. */
struct qkv_memory {
    struct twin *rows, *kc, *vc;
    size_t k, v; /* where they begin in `rows` */
};

static struct qkv_memory qkv_memory(struct twins *t, int rows, int nq, int nk)
{
    size_t q = ((size_t)(rows * nq) + 63) / 64 * 64, k = ((size_t)(rows * nk) + 63) / 64 * 64;
    return (struct qkv_memory){.rows = twin_nans(t, q + 2 * k),
                               .kc = poisoned(t, (size_t)(SLOTS * nk)),
                               .vc = poisoned(t, (size_t)(SLOTS * nk)),
                               .k = q,
                               .v = q + k};
}

static void same_on_gpu(struct twins *t, const struct twin *a, const struct twin *b, size_t bytes,
                        const char *what)
{
    struct err e = {0};
    uint8_t *x = mem_alloc(bytes), *y = mem_alloc(bytes);
    size_t i = 0;
    ck_assert_int_eq(dev_cuda.copy_out(t->gpu, x, a->p[SIDE_GPU], bytes, &e), OK);
    ck_assert_int_eq(dev_cuda.copy_out(t->gpu, y, b->p[SIDE_GPU], bytes, &e), OK);
    while (i < bytes && x[i] == y[i])
        i++;
    ck_assert_msg(i == bytes, "%s: other bits at byte %zu of %zu", what, i, bytes);
    mem_free(x);
    mem_free(y);
}

static const struct {
    int nh, nkv, hd, k;
    enum dtype dt;
    bool normed; /* heads */
} qkv_cases[] = {{32, 8, 128, 4096, DT_BF16, false},  {64, 8, 64, 4096, DT_BF16, false},
                 {9, 3, 64, 576, DT_BF16, false},     {4, 2, 64, 256, DT_BF16, false},
                 {4, 1, 256, 2048, DT_BF16, false},   {5, 5, 80, 1024, DT_BF16, false},
                 {4, 2, 128, 1024, DT_BF16, true},    {32, 8, 128, 4096, DT_BF16, true},
                 {20, 4, 128, 512, DT_F8E4M3, true},  {6, 2, 64, 512, DT_F8E4M3, false},
                 {8, 1, 128, 4096, DT_F8E4M3, false}, {2, 2, 256, 512, DT_F8E4M3, false},
                 {3, 1, 18, 100, DT_BF16, false},     {4, 2, 32, 64, DT_F32, false}};

START_TEST(qkv)
{
    struct twins t;
    twins_open(&t);
    static const int counts[] = {1, 3, 8, 9, 16, 17, 40, 64, 100, 112, 113};
    int hd = qkv_cases[_i].hd, nq = qkv_cases[_i].nh * hd, nk = qkv_cases[_i].nkv * hd,
        k = qkv_cases[_i].k;
    const int n[3] = {nq, nk, nk};
    struct weight w[3], bias[3], head[2] = {{0}}, norm = twin_weight(&t, DT_BF16, 1, k, 1);
    for (int i = 0; i < 3; i++) {
        w[i] = twin_weight(&t, qkv_cases[_i].dt, n[i], k, 1.0f / sqrtf((float)k));
        bias[i] = twin_weight(&t, DT_BF16, 1, n[i], 1);
    }
    for (int i = 0; i < 2 && qkv_cases[_i].normed; i++)
        head[i] = twin_weight(&t, DT_BF16, 1, hd, 1);
    int keep = t.n;
    for (size_t i = 0; i < ARRAY_LEN(counts); i++) {
        int r = counts[i];
        enum dtype dt = caches[(i + (size_t)_i) % 3];
        bool norm_on = i % 4 != 2, bias_on = i % 2;
        struct twin *x = twin_rand(&t, (size_t)r * (size_t)k, 1), *pos, *wslot,
                    *y = twin_nans(&t, (size_t)r * (size_t)k),
                    *cs = twin_rand(&t, (size_t)(POS * hd / 2), 1),
                    *sn = twin_rand(&t, (size_t)(POS * hd / 2), 1);
        rows_of(&t, r, &pos, &wslot);
        struct qkv_memory m[2];
        for (int way = 0; way < 2; way++) {
            enum { side = SIDE_GPU };
            m[way] = qkv_memory(&t, r, nq, nk);
            float *q = P(m[way].rows);
            struct op_qkv a = {.proj = {.x = P(x),
                                        .y = P(y),
                                        .rows = r,
                                        .n = 3,
                                        .ldx = k,
                                        .eps = 1e-5f,
                                        .w = {w[0], w[1], w[2]},
                                        .out = {q, q + m[way].k, q + m[way].v},
                                        .ldo = {nq, nk, nk}},
                               .place = {.q = q,
                                         .k = q + m[way].k,
                                         .v = q + m[way].v,
                                         .q_norm = head[0],
                                         .k_norm = head[1],
                                         .pos = P(pos),
                                         .wslot = P(wslot),
                                         .cos = P(cs),
                                         .sin = P(sn),
                                         .k_cache = P(m[way].kc),
                                         .v_cache = P(m[way].vc),
                                         .dt = dt,
                                         .rows = r,
                                         .n_head = qkv_cases[_i].nh,
                                         .n_kv = qkv_cases[_i].nkv,
                                         .hd = hd,
                                         .pos_max = POS - 5, /* some rows are not rotated */
                                         .ldq = nq,
                                         .ldk = nk,
                                         .ldv = nk,
                                         .eps = 1e-6f,
                                         .k_scale = K_SCALE,
                                         .v_scale = V_SCALE}};
            if (norm_on)
                a.proj.norm = norm;
            for (int j = 0; j < 3 && bias_on; j++)
                a.proj.bias[j] = bias[j];
            if (way) {
                ck_assert_int_eq(dev_cuda.ops->qkv(t.gpu, &a), OK);
            } else {
                ck_assert_int_eq(dev_cuda.ops->proj(t.gpu, &a.proj), OK);
                ck_assert_int_eq(dev_cuda.ops->qkv_place(t.gpu, &a.place), OK);
            }
        }
        char what[64];
        snprintf(what, sizeof what, "qkv case %d, %d rows, q", _i, r);
        same_on_gpu(&t, m[0].rows, m[1].rows, (size_t)(r * nq) * sizeof(float), what);
        size_t bytes = (size_t)(SLOTS * nk) * dtype_size(dt);
        what[strlen(what) - 1] = 'k';
        same_on_gpu(&t, m[0].kc, m[1].kc, bytes, what);
        what[strlen(what) - 1] = 'v';
        same_on_gpu(&t, m[0].vc, m[1].vc, bytes, what);
        twins_drop(&t, keep);
    }
    twins_close(&t);
}
END_TEST

START_TEST(mla_place)
{
    struct twins t;
    twins_open(&t);
    static const struct {
        int rows, heads, nope, lora, rope;
    } cases[] = {{1, 16, 128, 512, 64},
                 {5, 128, 128, 512, 64},
                 {3, 4, 32, 48, 16},
                 {40, 3, 6, 10, 2},
                 {200, 16, 128, 512, 64}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        for (int form = 0; form < 12; form++) {
            enum dtype dt = caches[form % 3];
            bool apart = form / 3 % 2;
            int r = cases[i].rows, heads = cases[i].heads, nope = cases[i].nope;
            int lora = cases[i].lora, rope = cases[i].rope, width = lora + rope, qk = nope + rope;
            int stride = apart ? width : qk, at = apart ? lora : nope, ldo = heads * stride;
            struct weight norm = twin_weight(&t, DT_BF16, 1, lora, 1);
            struct twin *q = twin_rand(&t, (size_t)(r * heads * qk), 1),
                        *kv = twin_rand(&t, (size_t)(r * width), 1), *pos, *wslot;
            struct twin *out = apart ? twin_nans(&t, (size_t)(r * ldo)) : q;
            struct twin *cs = twin_rand(&t, (size_t)(POS * rope / 2), 1),
                        *sn = twin_rand(&t, (size_t)(POS * rope / 2), 1),
                        *cache = poisoned(&t, (size_t)(SLOTS * width));
            rows_of(&t, r, &pos, &wslot);
            BOTH(&t, mla_place,
                 SET({.kv = P(kv),
                      .norm = norm,
                      .q = (float *)P(q) + nope,
                      .q_out = (float *)P(out) + at,
                      .pos = P(pos),
                      .wslot = P(wslot),
                      .cos = P(cs),
                      .sin = P(sn),
                      .cache = P(cache),
                      .dt = side ? dt : DT_F32,
                      .rows = r,
                      .heads = heads,
                      .lora = lora,
                      .rope = rope,
                      .pos_max = POS,
                      .ldkv = width,
                      .ldq = heads * qk,
                      .q_stride = qk,
                      .ldo = ldo,
                      .out_stride = stride,
                      .eps = 1e-6f,
                      .scale = K_SCALE,
                      .interleaved = form >= 6}));
            char what[64];
            snprintf(what, sizeof what, "mla_place case %zu form %d", i, form);
            twin_near(&t, out, (size_t)(r * ldo), 1e-5f, 1e-5f, what);
            near_cache(&t, cache, dt, K_SCALE, (size_t)(SLOTS * width), 1e-5f, what);
        }
    twins_close(&t);
}
END_TEST

/* Against the CPU device, and the bits of the operations it stands for. */
START_TEST(draft_pair)
{
    struct twins t;
    twins_open(&t);
    static const struct {
        enum dtype dt;
        int rows, h;
    } cases[] = {{DT_BF16, 16, 4096}, {DT_BF16, 1, 7168},  {DT_BF16, 300, 576},
                 {DT_BF16, 9, 33},    {DT_F8E4M3, 5, 256}, {DT_F32, 7, 102},
                 {DT_BF16, 3, 9000},  {DT_BF16, 5, 1},     {DT_BF16, 40, 2049}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        enum { V = 70, AT = 60, PAGES = 16, PAGE = 4 };
        int r = cases[i].rows, h = cases[i].h;
        struct weight e = twin_weight(&t, cases[i].dt, V, h, 1),
                      tn = twin_weight(&t, DT_BF16, 1, h, 1),
                      fn = twin_weight(&t, i % 2 ? DT_F32 : DT_BF16, 1, h, 1);
        int keep = t.n;
        for (int form = 0; form < 16; form++) {
            bool x_on = form & 1, x_normed = form & 2, src_on = form & 4;
            int placed = form & 8 ? r : 0;
            size_t n = (size_t)r * (size_t)h, bytes = n * sizeof(float);
            int32_t v[4][SLOTS], table[5 * PAGES];
            ck_assert_int_le(r, SLOTS);
            for (int j = 0; j < r; j++) {
                v[0][j] = j % 7 == 3 ? -1 : (int32_t)rng_below(&t.rng, V + 1);
                v[1][j] = j % 5 == 2 ? -1 : (int32_t)rng_below(&t.rng, (uint64_t)r);
                v[2][j] = (int32_t)rng_below(&t.rng, 5);
                v[3][j] = (int32_t)rng_below(&t.rng, AT);
            }
            for (int j = 0; j < 5 * PAGES; j++)
                table[j] = (int32_t)rng_below(&t.rng, 100);
            struct twin *tok = twin_ints(&t, v[0], (size_t)r),
                        *src = twin_ints(&t, v[1], (size_t)r),
                        *slot = twin_ints(&t, v[2], (size_t)r),
                        *at = twin_ints(&t, v[3], (size_t)r),
                        *pages = twin_ints(&t, table, ARRAY_LEN(table)),
                        *out = twin_new(&t, (size_t)(3 * r) * sizeof(int32_t)),
                        *feat = twin_rand(&t, n, 2), *pair = twin_nans(&t, 2 * n),
                        *x = twin_nans(&t, n), *pair1 = twin_nans(&t, 2 * n),
                        *x1 = twin_nans(&t, n);
            BOTH(&t, draft_pair,
                 SET({.pair = P(pair),
                      .x = x_on ? P(x) : NULL,
                      .tok = P(tok),
                      .feat = P(feat),
                      .src = src_on ? P(src) : NULL,
                      .e = e,
                      .tok_norm = tn,
                      .feat_norm = fn,
                      .rows = r,
                      .eps = 1e-6f,
                      .x_normed = x_normed,
                      .place = {.slot = P(slot),
                                .pos = P(at),
                                .tok = P(tok),
                                .at = P(at),
                                .first = P(out),
                                .last = (int32_t *)P(out) + r,
                                .wslot = (int32_t *)P(out) + 2 * r,
                                .table = P(pages),
                                .rows = placed,
                                .pages_max = PAGES,
                                .page = PAGE,
                                .window = 7}}));
            char what[64];
            snprintf(what, sizeof what, "draft_pair case %zu form %d", i, form);
            twin_near(&t, pair, 2 * n, 1e-5f, 1e-5f, what);
            twin_near(&t, x, n, 1e-5f, 1e-5f, what);
            twin_same(&t, out, (size_t)(3 * r) * sizeof(int32_t), what);
            enum { side = SIDE_GPU };
            float *p1 = P(pair1);
            const struct op_table *op = dev_cuda.ops;
            struct op_embed em = {p1, P(tok), e, r, 2 * h};
            struct op_gather g = {.out = P(x1), .x = P(feat), .rows = r, .dim = h};
            struct op_rmsnorm nt = {.out = p1,
                                    .x = p1,
                                    .w = tn,
                                    .rows = r,
                                    .dim = h,
                                    .ldx = 2 * h,
                                    .ldo = 2 * h,
                                    .n_group = 1,
                                    .eps = 1e-6f},
                              nf = nt;
            g.idx = src_on ? P(src) : NULL;
            nf.out = p1 + h;
            nf.x = P(x1);
            nf.w = fn;
            nf.ldx = h;
            ck_assert_int_eq(op->embed(t.gpu, &em), OK);
            ck_assert_int_eq(op->gather(t.gpu, &g), OK);
            ck_assert_int_eq(op->rmsnorm(t.gpu, &nt), OK);
            ck_assert_int_eq(op->rmsnorm(t.gpu, &nf), OK);
            nf.out = P(x1);
            nf.ldo = h;
            if (x_normed)
                ck_assert_int_eq(op->rmsnorm(t.gpu, &nf), OK);
            same_on_gpu(&t, pair, pair1, 2 * bytes, what);
            if (x_on)
                same_on_gpu(&t, x, x1, bytes, what);
            twins_drop(&t, keep);
        }
    }
    twins_close(&t);
}
END_TEST

/* Widths that vectors of four do not fit, beside those of test_ops_gpu.c. */
START_TEST(odd_widths)
{
    struct twins t;
    twins_open(&t);
    static const int dims[] = {1, 2, 6, 33, 100, 2049, 4096, 7168};
    for (size_t i = 0; i < ARRAY_LEN(dims); i++) {
        enum { R = 5 };
        int d = dims[i], ld = d + (int)(i % 3);
        int32_t tok[R] = {3, 0, -1, 40, 39}, idx[R] = {4, -1, 0, 2, 2};
        struct weight e = twin_weight(&t, DT_BF16, 40, d, 1), w = twin_weight(&t, DT_BF16, 1, d, 1);
        struct twin *ids = twin_ints(&t, tok, R), *ix = twin_ints(&t, idx, R);
        struct twin *x = twin_rand(&t, (size_t)(R * ld), 2), *y = twin_rand(&t, (size_t)(R * d), 2);
        struct twin *out = twin_nans(&t, (size_t)(R * ld)), *em = twin_nans(&t, (size_t)(R * d));
        BOTH(&t, embed, SET({.out = P(em), .tok = P(ids), .e = e, .rows = R}));
        twin_same(&t, em, (size_t)(R * d) * sizeof(float), "embed");
        BOTH(&t, rmsnorm,
             SET({.out = P(out),
                  .x = P(x),
                  .w = w,
                  .rows = R,
                  .dim = d,
                  .ldx = ld,
                  .ldo = ld,
                  .n_group = 1,
                  .eps = 1e-6f}));
        twin_near(&t, out, (size_t)(R * ld), 1e-5f, 1e-5f, "rmsnorm");
        BOTH(&t, silu_mul,
             SET({.out = P(out),
                  .gate = P(x),
                  .up = P(x),
                  .rows = R,
                  .dim = d,
                  .ldg = ld,
                  .ldu = ld,
                  .ldo = ld}));
        twin_near(&t, out, (size_t)(R * ld), 1e-5f, 1e-5f, "silu_mul");
        BOTH(&t, gather,
             SET({.out = P(out),
                  .x = P(x),
                  .idx = P(ix),
                  .rows = R,
                  .dim = d,
                  .ldx = ld,
                  .ldo = ld}));
        twin_near(&t, out, (size_t)(R * ld), 0, 1e-6f, "gather");
        BOTH(&t, add, SET({.x = P(em), .y = P(y), .rows = R, .dim = d}));
        twin_same(&t, em, (size_t)(R * d) * sizeof(float), "add");
    }
    twins_close(&t);
}
END_TEST

Suite *suite_gpu_fused(void);
Suite *suite_gpu_fused(void)
{
    Suite *s = suite_create("gpu_fused");
    TCase *t = tcase_create("fused");
    tcase_set_timeout(t, 300);
    tcase_add_test(t, proj);
    tcase_add_test(t, mlp);
    tcase_add_test(t, qkv_place);
    tcase_add_loop_test(t, qkv, 0, ARRAY_LEN(qkv_cases));
    tcase_add_test(t, mla_place);
    tcase_add_test(t, draft_pair);
    tcase_add_test(t, odd_widths);
    suite_add_tcase(s, t);
    return s;
}
