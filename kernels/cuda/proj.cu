/* Grouped products of the same rows (op_proj, op_qkv) and the gated MLP (op_mlp).
 *  - small weights (small.cu): one launch for all products of the rows; one for gate and up with
 *    SiLU and the product in its epilogue, one for down; the norm inside, nothing rounded;
 *  - 9 to 112 rows of fp8 (up to 64) or large weights on sm_90a: the norm writes bf16, then
 *    launches of wide.cu as below, SiLU in the first one's epilogue;
 *  - up to 16 rows: one weight-streaming launch for all products of the rows; one for gate and up
 *    with SiLU and the product in its epilogue, one for down. Up to 8 rows the norm is inside the
 *    launch, above it writes bf16 for it;
 *  - more rows of bf16 weights: the norm writes bf16 for cuBLASLt once; gate and up come out in
 *    bf16 (in the memory of g and u) and their product goes to down as it is;
 *  - anything else: the single operations. */
#include "kernels/cuda/product.cuh"

extern "C" {
#include "engine/base/check.h"
}

enum { NORM_THREADS = 256 }; /* fits beside two blocks of most products */

/* One block a row: out = bf16(w x / rms). k % 4 == 0, w bf16 and k at most V * NORM_THREADS * 4;
 * V 0: any. */
template <int V>
__global__ void __launch_bounds__(NORM_THREADS, V == 8 ? 3 : 6)
    norm_to_bf16_kernel(__nv_bfloat16 *out, const float *x, int64_t ldx, struct weight w, float eps,
                        bool pairs)
{
    int k = (int)w.k, j0 = threadIdx.x * 4;
    const float *row = x + blockIdx.x * ldx;
    out += (int64_t)blockIdx.x * k;
    float4 v[V ? V : 1];
    uint2 n[V ? V : 1];
    float s = 0;
    cuda_trigger();
    auto add = [&](const float4 &f) { s += f.x * f.x + f.y * f.y + f.z * f.z + f.w * f.w; };
    auto put = [&](int j, const float4 &f, float a, float b, float c, float d) {
        put_bf16(out, j, pairs, f.x * (s * a), f.y * (s * b), f.z * (s * c), f.w * (s * d));
    };
#pragma unroll
    for (int i = 0; i < V; i++) {
        int j = j0 + i * NORM_THREADS * 4;
        n[i] = j < k ? *(const uint2 *)((const __nv_bfloat16 *)w.p + j) : make_uint2(0, 0);
    }
    cuda_wait();
#pragma unroll
    for (int i = 0; i < V; i++) {
        int j = j0 + i * NORM_THREADS * 4;
        v[i] = j < k ? *(const float4 *)(row + j) : make_float4(0, 0, 0, 0);
    }
#pragma unroll
    for (int i = 0; i < V; i++)
        add(v[i]);
    if (V == 0)
        for (int j = j0; j < k; j += NORM_THREADS * 4)
            add(*(const float4 *)(row + j));
    s = rsqrtf(cuda_block_sum(s) / (float)k + eps);
#pragma unroll
    for (int i = 0; i < V; i++) {
        int j = j0 + i * NORM_THREADS * 4;
        if (j < k)
            put(j, v[i], __uint_as_float(n[i].x << 16), __uint_as_float(n[i].x & 0xffff0000u),
                __uint_as_float(n[i].y << 16), __uint_as_float(n[i].y & 0xffff0000u));
    }
    if (V == 0)
        for (int j = j0; j < k; j += NORM_THREADS * 4)
            put(j, *(const float4 *)(row + j), cuda_load(w.p, w.dt, j), cuda_load(w.p, w.dt, j + 1),
                cuda_load(w.p, w.dt, j + 2), cuda_load(w.p, w.dt, j + 3));
}

/* gate = silu(gate + gate_b) * (up + up_b), [rows, n] dense bf16, n % 8 == 0; grid (ceil(n / 2048),
 * rows) */
__global__ void __launch_bounds__(256)
    silu_mul_bf16_kernel(__nv_bfloat16 *gate, const __nv_bfloat16 *up, int64_t n,
                         struct weight gate_b, struct weight up_b)
{
    int64_t j = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * 8, at = blockIdx.y * n + j;
    cuda_trigger();
    cuda_wait();
    if (j >= n)
        return;
    uint4 g4 = *(const uint4 *)(gate + at), u4 = *(const uint4 *)(up + at);
    uint32_t g[4] = {g4.x, g4.y, g4.z, g4.w}, u[4] = {u4.x, u4.y, u4.z, u4.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float v[2];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float a = __uint_as_float(h ? g[i] & 0xffff0000u : g[i] << 16);
            float b = __uint_as_float(h ? u[i] & 0xffff0000u : u[i] << 16);
            if (gate_b.p)
                a += cuda_load(gate_b.p, gate_b.dt, j + i * 2 + h);
            if (up_b.p)
                b += cuda_load(up_b.p, up_b.dt, j + i * 2 + h);
            v[h] = a / (1 + __expf(-a)) * b;
        }
        g[i] = pack_bf16(v[0], v[1]);
    }
    *(uint4 *)(gate + at) = make_uint4(g[0], g[1], g[2], g[3]);
}

/* The rows as bf16 in the scratch, normalised if there is a norm. */
static int rows_in(struct dev *d, __nv_bfloat16 *out, const float *x, int64_t ldx, int rows,
                   int64_t k, const struct weight *norm, float eps, bool pairs)
{
    if (!norm->p)
        return rows_to_bf16(d, out, x, ldx, rows, k, pairs);
    bool held = norm->dt == DT_BF16 && ((uintptr_t)norm->p & 7) == 0;
    auto kernel = held && k <= 4 * NORM_THREADS * 4   ? norm_to_bf16_kernel<4>
                  : held && k <= 8 * NORM_THREADS * 4 ? norm_to_bf16_kernel<8>
                                                      : norm_to_bf16_kernel<0>;
    return cuda_launch(d, kernel, dim3((unsigned)rows), NORM_THREADS, 0, out, x, ldx, *norm, eps,
                       pairs);
}

/* y = norm(x) by the operation itself; weights have device addresses, which it would resolve. */
static int rows_normed(struct dev *d, float *y, const float *x, int64_t ldx, int rows,
                       const struct weight *host_norm, float eps)
{
    struct op_rmsnorm n = {};
    n.out = y;
    n.x = x;
    n.w = *host_norm;
    n.rows = rows;
    n.dim = (int)host_norm->k;
    n.ldx = ldx;
    n.ldo = n.dim;
    n.n_group = 1;
    n.eps = eps;
    return cuda_do_rmsnorm(d, &n);
}

/* The rows that a launch of stream.cuh or small.cu takes, as bf16 if `narrow`. `norm` has a device
 * address, host_norm is the same one as the operation got it. */
static int stream_rows(struct dev *d, struct stream_args *s, bool narrow, const float *x,
                       int64_t ldx, int rows, int64_t k, const struct weight *norm,
                       const struct weight *host_norm, float eps, float *y)
{
    s->rows = rows;
    s->x = x;
    s->ldx = ldx;
    s->eps = eps;
    if (narrow) {
        s->narrow = (const __nv_bfloat16 *)d->scratch;
        return rows_in(d, (__nv_bfloat16 *)d->scratch, x, ldx, rows, k, norm, eps, false);
    }
    if (norm->p && (norm->dt != DT_BF16 || ((uintptr_t)norm->p & 15))) {
        s->x = y;
        s->ldx = k;
        return rows_normed(d, y, x, ldx, rows, host_norm, eps);
    }
    s->norm = (const __nv_bfloat16 *)norm->p;
    return OK;
}

/* Makes *g both products of the same rows when they are alike; results have `el` bytes. */
static bool pair(struct gemm *g, const struct weight *w0, const struct weight *w1, const void *out0,
                 const void *out1, int el)
{
    int64_t w = (const char *)w1->p - (const char *)w0->p,
            out = (const char *)out1 - (const char *)out0;
    if (w0->n != w1->n || w % 16 || out % 16 || w <= 0 || out <= 0)
        return false;
    g->batch = 2;
    g->w_step = w / 2;
    g->out_step = out / el;
    return true;
}

/* `place`: q, k and v are to go to their places (op_qkv_place), NULL: no. *placed: they did. */
static int proj(struct dev *d, const struct op_proj *op, const struct op_qkv_place *place,
                bool *placed)
{
    struct op_proj a = *op;
    struct stream_args s = {};
    struct wide p = {};
    bool all = true, stream = a.rows <= d->stream_rows, lt = !stream;
    a.norm = cuda_weight_dev(d, op->norm);
    for (int i = 0; i < a.n; i++) {
        a.w[i] = cuda_weight_dev(d, op->w[i]);
        a.bias[i] = cuda_weight_dev(d, op->bias[i]);
        bool fits = stream_fits(&a.w[i], a.x, a.ldx);
        all = all && fits;
        stream = stream && fits && a.w[i].dt == a.w[0].dt;
        lt = lt && fits && a.w[i].dt == DT_BF16 && a.w[i].n % 4 == 0 && a.ldo[i] % 4 == 0 &&
             ((uintptr_t)a.out[i] & 15) == 0;
        stream_add(&s, &a.w[i], &a.bias[i], a.out[i], a.ldo[i]);
        p.w[i] = a.w[i];
        p.bias[i] = a.bias[i];
        p.out[i] = a.out[i];
        p.ldo[i] = a.ldo[i];
    }
    int64_t k = a.w[0].k, half = (int64_t)(CUDA_SCRATCH_BYTES / 2) / (k * 2);
    __nv_bfloat16 *xb = (__nv_bfloat16 *)d->scratch;
    if (all && wide_fits(d, a.w, a.n, a.rows)) {
        TRY(rows_in(d, xb, a.x, a.ldx, a.rows, k, &a.norm, a.eps, a.w[0].dt == DT_F8E4M3));
        p.x = xb;
        p.rows = a.rows;
        p.n = a.n;
        *placed = place && wide_places(d, &p, place);
        p.place = *placed ? place : NULL;
        return wide_run(d, &p);
    }
    bool small = small_fits(a.w, a.n, a.x, a.ldx), narrow = !small && a.rows > STREAM_SPLIT_MAX;
    if (small || stream) {
        TRY(stream_rows(d, &s, narrow, a.x, a.ldx, a.rows, k, &a.norm, &op->norm, a.eps, a.y));
        if (place && !place->q_norm.p && !place->k_norm.p && stream_places(&s, place, a.w[0].dt) &&
            (!small || small_streams(d, &s))) {
            s.placed = *placed = true;
            s.place = *place;
            s.head_inv = UINT32_MAX / (uint32_t)place->hd + 1;
        }
        return small ? small_run(d, &s) : stream_run(d, &s, a.w[0].dt);
    }
    for (int64_t r0 = 0; lt && r0 < a.rows; r0 += half) {
        int m = (int)cuda_min(a.rows - r0, half);
        TRY(rows_in(d, xb, a.x + r0 * a.ldx, a.ldx, m, k, &a.norm, a.eps, false));
        for (int i = 0, n; i < a.n; i += n) {
            struct gemm g = {};
            n = i + 1 < a.n && a.ldo[i] == a.ldo[i + 1] &&
                        pair(&g, &a.w[i], &a.w[i + 1], a.out[i], a.out[i + 1], 4)
                    ? 2
                    : 1;
            g.out = a.out[i] + r0 * a.ldo[i];
            g.ldo = a.ldo[i];
            g.x = xb;
            g.w = a.w[i].p;
            g.m = m;
            g.n = a.w[i].n;
            g.k = k;
            TRY(gemm_run(d, &g));
            for (int j = i; j < i + n; j++)
                TRY(add_bias(d, a.out[j] + r0 * a.ldo[j], g.ldo, m, &a.bias[j], 0, g.n));
        }
    }
    if (lt)
        return OK;
    if (a.norm.p)
        TRY(rows_normed(d, a.y, a.x, a.ldx, a.rows, &op->norm, a.eps));
    for (int i = 0; i < a.n; i++) {
        struct op_matmul m = {};
        m.out = a.out[i];
        m.x = a.norm.p ? a.y : a.x;
        m.w = a.w[i];
        m.bias = a.bias[i];
        m.rows = a.rows;
        m.ldx = a.norm.p ? k : a.ldx;
        m.ldo = a.ldo[i];
        TRY(product_run(d, &m));
    }
    return OK;
}

extern "C" int cuda_do_proj(struct dev *d, const struct op_proj *op)
{
    bool placed = false;
    return proj(d, op, NULL, &placed);
}

/* In one launch where wide.cu takes the products, or the streaming kernel and heads have no norm.
 */
extern "C" int cuda_do_qkv(struct dev *d, const struct op_qkv *op)
{
    struct op_qkv_place place = op->place;
    bool placed = false;
    CHECK(op->proj.n == 3);
    place.q_norm = cuda_weight_dev(d, op->place.q_norm);
    place.k_norm = cuda_weight_dev(d, op->place.k_norm);
    TRY(proj(d, &op->proj, &place, &placed));
    return placed ? OK : cuda_do_qkv_place(d, &op->place);
}

/* ---- gated MLP ---- */

static int mlp_stream(struct dev *d, const struct op_mlp *a, const struct weight *host_norm,
                      bool small)
{
    struct stream_args s = {}, t = {};
    bool narrow = !small && a->rows > STREAM_SPLIT_MAX;
    TRY(stream_rows(d, &s, narrow, a->x, a->ldx, a->rows, a->gate.k, &a->norm, host_norm, a->eps,
                    a->y));
    s.silu = true;
    s.silu_narrow = narrow;
    stream_add(&s, &a->gate, &a->gate_b, a->g, a->gate.n);
    stream_add(&s, &a->up, &a->up_b, a->g, a->gate.n);
    TRY(small ? small_run(d, &s) : stream_run(d, &s, a->gate.dt));
    t.rows = a->rows;
    t.x = a->g;
    t.ldx = a->gate.n;
    t.narrow = narrow ? (const __nv_bfloat16 *)a->g : NULL;
    t.accumulate = true;
    stream_add(&t, &a->down, &a->down_b, a->out, a->ldo);
    return small ? small_run(d, &t) : stream_run(d, &t, a->down.dt);
}

static int mlp_wide(struct dev *d, const struct op_mlp *a)
{
    struct wide p = {}, q = {};
    TRY(rows_in(d, (__nv_bfloat16 *)d->scratch, a->x, a->ldx, a->rows, a->gate.k, &a->norm, a->eps,
                a->gate.dt == DT_F8E4M3));
    p.x = d->scratch;
    p.rows = q.rows = a->rows;
    p.n = 2;
    p.w[0] = a->gate;
    p.w[1] = a->up;
    p.bias[0] = a->gate_b;
    p.bias[1] = a->up_b;
    p.out[0] = a->g;
    p.ldo[0] = a->gate.n;
    p.silu = true;
    p.pairs = a->down.dt == DT_F8E4M3;
    TRY(wide_run(d, &p));
    q.x = a->g;
    q.n = 1;
    q.w[0] = a->down;
    q.bias[0] = a->down_b;
    q.out[0] = a->out;
    q.ldo[0] = a->ldo;
    q.accumulate = true;
    return wide_run(d, &q);
}

static int mlp_lt(struct dev *d, const struct op_mlp *a)
{
    int64_t k = a->gate.k, n = a->gate.n, half = (int64_t)(CUDA_SCRATCH_BYTES / 2) / (k * 2);
    __nv_bfloat16 *xb = (__nv_bfloat16 *)d->scratch;
    for (int64_t r0 = 0; r0 < a->rows; r0 += half) {
        int m = (int)cuda_min(a->rows - r0, half);
        TRY(rows_in(d, xb, a->x + r0 * a->ldx, a->ldx, m, k, &a->norm, a->eps, false));
        struct gemm g = {};
        g.x = xb;
        g.m = m;
        g.n = g.ldo = n;
        g.k = k;
        g.narrow = true;
        bool both = pair(&g, &a->gate, &a->up, a->g, a->u, 2);
        for (int i = 0; i < (both ? 1 : 2); i++) {
            g.out = i ? a->u : a->g;
            g.w = i ? a->up.p : a->gate.p;
            TRY(gemm_run(d, &g));
        }
        dim3 grid((unsigned)cuda_div_up(n, 2048), (unsigned)m);
        TRY(cuda_launch(d, silu_mul_bf16_kernel, grid, 256, 0, (__nv_bfloat16 *)a->g,
                        (const __nv_bfloat16 *)a->u, n, a->gate_b, a->up_b));
        struct gemm t = {};
        t.out = a->out + r0 * a->ldo;
        t.ldo = a->ldo;
        t.x = a->g;
        t.w = a->down.p;
        t.m = m;
        t.n = a->down.n;
        t.k = n;
        t.accumulate = true;
        TRY(gemm_run(d, &t));
        TRY(add_bias(d, (float *)t.out, t.ldo, m, &a->down_b, 0, t.n));
    }
    return OK;
}

static int mlp_parts(struct dev *d, const struct op_mlp *a, const struct weight *host_norm)
{
    struct op_matmul m = {};
    if (a->norm.p)
        TRY(rows_normed(d, a->y, a->x, a->ldx, a->rows, host_norm, a->eps));
    m.x = a->norm.p ? a->y : a->x;
    m.rows = a->rows;
    m.ldx = a->norm.p ? a->gate.k : a->ldx;
    m.ldo = a->gate.n;
    m.out = a->g;
    m.w = a->gate;
    m.bias = a->gate_b;
    TRY(product_run(d, &m));
    m.out = a->u;
    m.w = a->up;
    m.bias = a->up_b;
    TRY(product_run(d, &m));
    struct op_silu_mul s = {};
    s.out = a->g;
    s.gate = a->g;
    s.up = a->u;
    s.rows = a->rows;
    s.dim = (int)a->gate.n;
    s.ldg = s.ldu = s.ldo = s.dim;
    TRY(cuda_do_silu_mul(d, &s));
    m.out = a->out;
    m.x = a->g;
    m.w = a->down;
    m.bias = a->down_b;
    m.ldx = a->gate.n;
    m.ldo = a->ldo;
    m.accumulate = true;
    return product_run(d, &m);
}

extern "C" int cuda_do_mlp(struct dev *d, const struct op_mlp *op)
{
    struct op_mlp a = *op;
    a.norm = cuda_weight_dev(d, op->norm);
    a.gate = cuda_weight_dev(d, op->gate);
    a.up = cuda_weight_dev(d, op->up);
    a.down = cuda_weight_dev(d, op->down);
    a.gate_b = cuda_weight_dev(d, op->gate_b);
    a.up_b = cuda_weight_dev(d, op->up_b);
    a.down_b = cuda_weight_dev(d, op->down_b);
    bool fits = stream_fits(&a.gate, a.x, a.ldx) && stream_fits(&a.up, a.x, a.ldx) &&
                stream_fits(&a.down, a.g, a.gate.n) && a.gate.dt == a.up.dt;
    const struct weight gate_up[2] = {a.gate, a.up};
    if (fits && a.gate.n % 8 == 0 && wide_fits(d, gate_up, 2, a.rows) &&
        wide_fits(d, &a.down, 1, a.rows))
        return mlp_wide(d, &a);
    bool small = small_fits(gate_up, 2, a.x, a.ldx) && small_fits(&a.down, 1, a.g, a.gate.n);
    if (small || (fits && a.rows <= d->stream_rows))
        return mlp_stream(d, &a, &op->norm, small);
    bool lt = fits && a.gate.dt == DT_BF16 && a.down.dt == DT_BF16 && a.gate.n % 8 == 0 &&
              a.down.n % 4 == 0 && a.ldo % 4 == 0 &&
              (((uintptr_t)a.g | (uintptr_t)a.u | (uintptr_t)a.out) & 15) == 0;
    return lt ? mlp_lt(d, &a) : mlp_parts(d, &a, &op->norm);
}
