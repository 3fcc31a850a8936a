/* Contract cases of what happens between a layer's products and its cache: an oracle in double. */
#include "test/ops/util.h"

#include <math.h>
#include <string.h>

#include "engine/base/mem.h"

enum { R = 37, POS = 60, SLOTS = 50 };

/* Slots of the rows: distinct, some rows without. */
static void place_rows(struct rng *r, int32_t *pos, int32_t *wslot)
{
    for (int i = 0; i < R; i++) {
        pos[i] = (int32_t)rng_below(r, POS);
        wslot[i] = i % 5 == 3 ? -1 - i : (int32_t)((i * 7 + 3) % SLOTS);
    }
}

static void norm_oracle(double *x, const double *w, int n, double eps)
{
    double s = 0;
    for (int i = 0; i < n; i++)
        s += x[i] * x[i];
    for (int i = 0; i < n; i++)
        x[i] *= w[i] / sqrt(s / n + eps);
}

static void turn_oracle(double *x, const float *cs, const float *sn, int pos, int n,
                        bool interleaved)
{
    for (int i = 0; i < n / 2; i++) {
        int p = interleaved ? 2 * i : i, q = interleaved ? 2 * i + 1 : i + n / 2;
        double c = (double)cs[pos * n / 2 + i], s = (double)sn[pos * n / 2 + i];
        double u = x[p], v = x[q];
        x[p] = u * c - v * s;
        x[q] = v * c + u * s;
    }
}

/* A cache of another type holds what the fp32 one does, converted; other slots keep 0x5a. */
static void same_cache(const char *what, const void *got, enum dtype dt, float scale,
                       const float *plain, const int32_t *wslot, int width)
{
    size_t bytes = (size_t)(SLOTS * width) * dtype_size(dt);
    float inv = dt == DT_F8E4M3 ? 1 / scale : 1;
    void *want = mem_alloc(bytes);
    memset(want, 0x5a, bytes);
    for (int r = 0; r < R; r++)
        for (int i = wslot[r] * width; wslot[r] >= 0 && i < (wslot[r] + 1) * width; i++)
            dtype_store(want, dt, i, plain[i] * inv);
    t_same_bits(what, want, got, bytes);
    mem_free(want);
}

static const enum dtype g_caches[] = {DT_BF16, DT_F8E4M3};

static double *doubles(const float *x, size_t n)
{
    double *d = mem_alloc(n * sizeof *d);
    for (size_t i = 0; i < n; i++)
        d[i] = (double)x[i];
    return d;
}

static void qkv_case(const struct t_devs *t, struct rng *r, int nh, int nkv, int hd, bool norm_on,
                     enum dtype norm_dt)
{
    int nq = nh * hd, nk = nkv * hd, ldq = nq + 4, ldk = nk + 2, ldv = nk + 8;
    int32_t pos[R], wslot[R];
    double *nv[2];
    struct weight norm[2];
    float *q = t_randf(r, (size_t)(R * ldq), 2), *k = t_randf(r, (size_t)(R * ldk), 2);
    float *v = t_randf(r, (size_t)(R * ldv), 2);
    float *cs = t_randf(r, (size_t)(POS * hd / 2), 1), *sn = t_randf(r, (size_t)(POS * hd / 2), 1);
    float *kc = t_randf(r, (size_t)(SLOTS * nk), 1), *vc = t_randf(r, (size_t)(SLOTS * nk), 1);
    float *q0 = mem_dup(q, sizeof *q * (size_t)(R * ldq));
    float *k0 = mem_dup(k, sizeof *k * (size_t)(R * ldk));
    double *wq = doubles(q, (size_t)(R * ldq)), *wk = doubles(kc, (size_t)(SLOTS * nk)),
           *wv = doubles(vc, (size_t)(SLOTS * nk));
    for (int i = 0; i < 2; i++)
        norm[i] = t_weight(r, norm_dt, 1, hd, 1, &nv[i]);
    place_rows(r, pos, wslot);
    for (int row = 0; row < R; row++) {
        for (int h = 0; h < nh; h++) {
            double *x = wq + row * ldq + h * hd;
            if (norm_on)
                norm_oracle(x, nv[0], hd, 1e-6);
            turn_oracle(x, cs, sn, pos[row], hd, false);
        }
        for (int i = 0; wslot[row] >= 0 && i < nk; i++) {
            wk[wslot[row] * nk + i] = (double)k[row * ldk + i];
            wv[wslot[row] * nk + i] = (double)v[row * ldv + i];
        }
        for (int h = 0; wslot[row] >= 0 && h < nkv; h++) {
            double *x = wk + wslot[row] * nk + h * hd;
            if (norm_on)
                norm_oracle(x, nv[1], hd, 1e-6);
            turn_oracle(x, cs, sn, pos[row], hd, false);
        }
    }
    struct op_qkv_place a = {.q = q,
                             .k = k,
                             .v = v,
                             .pos = pos,
                             .wslot = wslot,
                             .cos = cs,
                             .sin = sn,
                             .k_cache = kc,
                             .v_cache = vc,
                             .dt = DT_F32,
                             .rows = R,
                             .n_head = nh,
                             .n_kv = nkv,
                             .hd = hd,
                             .pos_max = POS,
                             .ldq = ldq,
                             .ldk = ldk,
                             .ldv = ldv,
                             .eps = 1e-6f,
                             .k_scale = 0.07f,
                             .v_scale = 0.002f};
    if (norm_on) {
        a.q_norm = norm[0];
        a.k_norm = norm[1];
    }
    /* k is an output too: it must start the same each time */
    struct t_out o[4] = {{q, sizeof(float) * (size_t)(R * ldq)},
                         {k, sizeof(float) * (size_t)(R * ldk)},
                         {kc, sizeof(float) * (size_t)(SLOTS * nk)},
                         {vc, sizeof(float) * (size_t)(SLOTS * nk)}};
    t_everywhere(t, "qkv_place", t_call_qkv_place, &a, o, 4);
    struct tol tol = TOL_ELEM;
    tol.abs = norm_dt == DT_F16 ? 2e-5 : 4e-6; /* differences of products cancel */
    t_close_to("qkv_place q", q, wq, (size_t)(R * ldq), tol);
    t_close_to("qkv_place k", kc, wk, (size_t)(SLOTS * nk), tol);
    t_close_to("qkv_place v", vc, wv, (size_t)(SLOTS * nk), TOL_EXACT);
    float *wantq = mem_dup(q, o[0].bytes);
    void *pk = mem_alloc(o[2].bytes), *pv = mem_alloc(o[3].bytes);
    for (size_t i = 0; i < ARRAY_LEN(g_caches); i++) {
        memcpy(q, q0, o[0].bytes);
        memcpy(k, k0, o[1].bytes);
        memset(pk, 0x5a, o[2].bytes);
        memset(pv, 0x5a, o[3].bytes);
        a.dt = g_caches[i];
        a.k_cache = o[2].p = pk;
        a.v_cache = o[3].p = pv;
        t_everywhere(t, "qkv_place", t_call_qkv_place, &a, o, 4);
        t_same_bits("qkv_place q", wantq, q, o[0].bytes);
        same_cache("qkv_place k", pk, a.dt, a.k_scale, kc, wslot, nk);
        same_cache("qkv_place v", pv, a.dt, a.v_scale, vc, wslot, nk);
    }
    mem_free(wantq);
    mem_free(pk);
    mem_free(pv);
    mem_free(q0);
    mem_free(k0);
    for (int i = 0; i < 2; i++) {
        t_weight_free(&norm[i]);
        mem_free(nv[i]);
    }
    mem_free(q);
    mem_free(k);
    mem_free(v);
    mem_free(cs);
    mem_free(sn);
    mem_free(kc);
    mem_free(vc);
    mem_free(wq);
    mem_free(wk);
    mem_free(wv);
}

void case_qkv_place(const struct t_devs *t, struct rng *r)
{
    qkv_case(t, r, 1, 1, 2, false, DT_F32);
    qkv_case(t, r, 4, 2, 64, false, DT_F32);
    qkv_case(t, r, 3, 1, 18, true, DT_F32);
    qkv_case(t, r, 6, 3, 80, true, DT_BF16);
}

/* The bits of the two operations, whose own cases have the oracle. */
void case_qkv(const struct t_devs *t, struct rng *r)
{
    enum { NH = 6, NKV = 2, HD = 10, K = 37, NQ = NH * HD, NK = NKV * HD };
    static const enum dtype types[] = {DT_F32, DT_BF16};
    for (size_t i = 0; i < ARRAY_LEN(types); i++) {
        int32_t pos[R], wslot[R];
        double *val;
        float *x = t_randf(r, R * K, 1), *y = t_randf(r, R * K, 1), *q = t_randf(r, R * NQ, 1);
        float *k = t_randf(r, R * NK, 1), *v = t_randf(r, R * NK, 1);
        float *cs = t_randf(r, POS * HD / 2, 1), *sn = t_randf(r, POS * HD / 2, 1);
        float *kc = t_randf(r, SLOTS * NK, 1), *vc = t_randf(r, SLOTS * NK, 1);
        struct op_qkv a = {.proj = {.x = x,
                                    .y = y,
                                    .rows = R,
                                    .n = 3,
                                    .ldx = K,
                                    .eps = 1e-5f,
                                    .out = {q, k, v},
                                    .ldo = {NQ, NK, NK}},
                           .place = {.q = q,
                                     .k = k,
                                     .v = v,
                                     .pos = pos,
                                     .wslot = wslot,
                                     .cos = cs,
                                     .sin = sn,
                                     .k_cache = kc,
                                     .v_cache = vc,
                                     .dt = DT_F32,
                                     .rows = R,
                                     .n_head = NH,
                                     .n_kv = NKV,
                                     .hd = HD,
                                     .pos_max = POS,
                                     .ldq = NQ,
                                     .ldk = NK,
                                     .ldv = NK,
                                     .eps = 1e-6f}};
        struct weight *w[] = {&a.proj.w[0],    &a.proj.w[1],    &a.proj.w[2],   &a.proj.norm,
                              &a.proj.bias[0], &a.place.q_norm, &a.place.k_norm};
        static const int rows[] = {NQ, NK, NK, 1, 1, 1, 1}, width[] = {K, K, K, K, NQ, HD, HD};
        for (size_t j = 0; j < ARRAY_LEN(w); j++) {
            *w[j] = t_weight(r, types[i], rows[j], width[j], 1, &val);
            mem_free(val);
        }
        place_rows(r, pos, wslot);
        struct t_out o[3] = {{q, sizeof(float) * R * NQ},
                             {kc, sizeof(float) * SLOTS * NK},
                             {vc, sizeof(float) * SLOTS * NK}};
        void *want[3];
        for (int j = 0; j < 3; j++)
            want[j] = mem_dup(o[j].p, o[j].bytes);
        t_everywhere(t, "qkv", t_call_qkv, &a, o, 3);
        for (int j = 0; j < 3; j++) { /* the sequence starts from the same memory */
            void *got = mem_dup(o[j].p, o[j].bytes);
            memcpy(o[j].p, want[j], o[j].bytes);
            mem_free(want[j]);
            want[j] = got;
        }
        ck_assert_int_eq(dev_cpu.ops->proj(t->d[0], &a.proj), OK);
        ck_assert_int_eq(dev_cpu.ops->qkv_place(t->d[0], &a.place), OK);
        for (int j = 0; j < 3; j++) {
            t_same_bits("qkv, as a sequence", o[j].p, want[j], o[j].bytes);
            mem_free(want[j]);
        }
        for (size_t j = 0; j < ARRAY_LEN(w); j++)
            t_weight_free(w[j]);
        float *all[] = {x, y, q, k, v, cs, sn, kc, vc};
        for (size_t j = 0; j < ARRAY_LEN(all); j++)
            mem_free(all[j]);
    }
}

static void mla_case(const struct t_devs *t, struct rng *r, int heads, int nope, int lora, int rope,
                     bool apart, bool interleaved)
{
    int qk = nope + rope, width = lora + rope, ldkv = width + 3;
    int ldq = heads * qk, stride = apart ? lora + rope : qk, ldo = heads * stride;
    int32_t pos[R], wslot[R];
    double *nv;
    struct weight norm = t_weight(r, DT_BF16, 1, lora, 1, &nv);
    float *kv = t_randf(r, (size_t)(R * ldkv), 2), *q = t_randf(r, (size_t)(R * ldq), 2);
    float *far = t_randf(r, (size_t)(R * ldo), 1), *out = apart ? far : q;
    int at = apart ? lora : nope;
    float *cs = t_randf(r, (size_t)(POS * rope / 2), 1),
          *sn = t_randf(r, (size_t)(POS * rope / 2), 1),
          *cache = t_randf(r, (size_t)(SLOTS * width), 1);
    float *kv0 = mem_dup(kv, sizeof *kv * (size_t)(R * ldkv));
    float *q0 = mem_dup(q, sizeof *q * (size_t)(R * ldq));
    double *wo = doubles(out, (size_t)(R * ldo)), *wc = doubles(cache, (size_t)(SLOTS * width));
    place_rows(r, pos, wslot);
    for (int row = 0; row < R; row++) {
        for (int h = 0; h < heads; h++) {
            double *x = wo + row * ldo + h * stride + at;
            for (int i = 0; i < rope; i++)
                x[i] = (double)q[row * ldq + h * qk + nope + i];
            turn_oracle(x, cs, sn, pos[row], rope, interleaved);
        }
        if (wslot[row] < 0)
            continue;
        double *x = wc + wslot[row] * width;
        for (int i = 0; i < width; i++)
            x[i] = (double)kv[row * ldkv + i];
        norm_oracle(x, nv, lora, 1e-6);
        turn_oracle(x + lora, cs, sn, pos[row], rope, interleaved);
    }
    struct op_mla_place a = {.kv = kv,
                             .norm = norm,
                             .q = q + nope,
                             .q_out = out + at,
                             .pos = pos,
                             .wslot = wslot,
                             .cos = cs,
                             .sin = sn,
                             .cache = cache,
                             .dt = DT_F32,
                             .rows = R,
                             .heads = heads,
                             .lora = lora,
                             .rope = rope,
                             .pos_max = POS,
                             .ldkv = ldkv,
                             .ldq = ldq,
                             .q_stride = qk,
                             .ldo = ldo,
                             .out_stride = stride,
                             .eps = 1e-6f,
                             .scale = 0.11f,
                             .interleaved = interleaved};
    struct t_out o[3] = {{out, sizeof(float) * (size_t)(R * ldo)},
                         {kv, sizeof(float) * (size_t)(R * ldkv)},
                         {cache, sizeof(float) * (size_t)(SLOTS * width)}};
    t_everywhere(t, "mla_place", t_call_mla_place, &a, o, 3);
    struct tol tol = TOL_ELEM;
    tol.abs = 4e-6; /* differences of products cancel */
    t_close_to("mla_place q", out, wo, (size_t)(R * ldo), tol);
    t_close_to("mla_place cache", cache, wc, (size_t)(SLOTS * width), tol);
    float *want = mem_dup(out, o[0].bytes);
    void *packed = mem_alloc(o[2].bytes);
    for (size_t i = 0; i < ARRAY_LEN(g_caches); i++) {
        memcpy(q, q0, sizeof *q * (size_t)(R * ldq));
        memcpy(kv, kv0, o[1].bytes);
        memset(packed, 0x5a, o[2].bytes);
        a.dt = g_caches[i];
        a.cache = o[2].p = packed;
        t_everywhere(t, "mla_place", t_call_mla_place, &a, o, 3);
        t_same_bits("mla_place q", want, out, o[0].bytes);
        same_cache("mla_place cache", packed, a.dt, a.scale, cache, wslot, width);
    }
    mem_free(want);
    mem_free(packed);
    mem_free(kv0);
    mem_free(q0);
    t_weight_free(&norm);
    mem_free(nv);
    mem_free(kv);
    mem_free(q);
    mem_free(far);
    mem_free(cs);
    mem_free(sn);
    mem_free(cache);
    mem_free(wo);
    mem_free(wc);
}

void case_mla_place(const struct t_devs *t, struct rng *r)
{
    for (int form = 0; form < 4; form++) {
        mla_case(t, r, 1, 3, 5, 2, form & 1, form & 2);
        mla_case(t, r, 5, 16, 48, 20, form & 1, form & 2);
    }
}
