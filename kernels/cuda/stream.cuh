/* The weight-streaming product kernel for few rows (see stream.cu): out = x W^T for up to three
 * weights of the same input rows, bf16 or fp8 with
 * 128 x 128 block scales, bound by the weights' bytes.
 *
 * Weight rows are the m16 operand of mma.m16n8k16, activation rows its n8 operand. A warp takes
 * every WARPS-th chunk of SUB * 64 bytes of a weight row; inside 64 bytes K is permuted the same
 * way for both operands, so that a lane's share of a weight row is 16 consecutive bytes. Each lane
 * streams its own bytes through its own part of a ring in shared memory (cp.async), so the loop
 * needs no barrier; the ring is filled before the kernel waits for the one ahead of it. Activations
 * are split into bf16 parts hi + lo. A block goes over its tiles of 16 weight rows MT at a time;
 * after each pass the warps' sums are added in the order of the warps. */
#ifndef SPECD_CUDA_STREAM_CUH
#define SPECD_CUDA_STREAM_CUH

#include "kernels/cuda/async.cuh"
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/place.cuh"

enum { STREAM_PARTS = 3 };
enum stream_x { X_F32, X_NORM, X_BF16 }; /* rows: as they are, normalised on the way, bf16 */

struct stream_part { /* one weight [n, k] */
    const char *w;
    const void *scale; /* fp8: of 128 x 128 blocks */
    enum dtype scale_dt;
    float *out;
    const void *bias; /* NULL: none */
    enum dtype bias_dt;
    int n, tile0; /* its tiles are [tile0, tile0 + ceil(n / 16)) */
    int64_t ldo;
};

struct stream_args {
    struct stream_part part[STREAM_PARTS];
    int n_part, tiles, rows, k;
    const float *x;
    int64_t ldx;
    const __nv_bfloat16 *narrow; /* [rows, k] dense: taken in the place of x unless NULL */
    const __nv_bfloat16 *norm;   /* [k]: x is normalised (op_rmsnorm) on the way; NULL: as it is */
    float eps;
    bool accumulate;
    bool silu;        /* part 0 gate, part 1 up: part 0's out = silu(gate) * up; tiles alternate */
    bool silu_narrow; /* and that out is bf16 */
    /* The parts are q, k and v, which go to their places (op_qkv_place without norms). A tile of q
     * or k is 8 elements of a head and their partners half a head on. */
    bool placed;
    struct op_qkv_place place;
    uint32_t head_inv; /* 2^32 / place.hd rounded up */
};

static __device__ __forceinline__ void stream_tile(const struct stream_args &a, int t, int *part,
                                                   int *row0)
{
    int p = 0;
    if (a.silu) {
        *part = t & 1;
        *row0 = (t >> 1) * 16;
        return;
    }
    while (p + 1 < a.n_part && t >= a.part[p + 1].tile0)
        p++;
    *part = p;
    *row0 = (t - a.part[p].tile0) * 16;
}

/* Where element n of q, k or v is in its head; n < 2^20. */
static __device__ __forceinline__ int stream_in_head(const struct stream_args &a, int n)
{
    return n - (int)__umulhi((uint32_t)n, a.head_inv) * a.place.hd;
}

/* The tile's rows: row0 … row0 + 8 and row1 … row1 + 8. */
template <bool PLACE>
static __device__ __forceinline__ void stream_tile_rows(const struct stream_args &a, int t,
                                                        int *part, int *row0, int *row1)
{
    stream_tile(a, t, part, row0);
    *row1 = *row0 + 8;
    if (PLACE && *part < 2) {
        int in = stream_in_head(a, *row0);
        *row0 -= in / 2;
        *row1 = *row0 + a.place.hd / 2;
    }
}

/* What follows is rounded step by step, so that small.cu gets the same bits: no contraction. */

/* Element j of eight norm weights. */
static __device__ __forceinline__ float stream_norm(const uint32_t *n, int j)
{
    return __uint_as_float(j % 2 ? n[j / 2] & 0xffff0000u : n[j / 2] << 16);
}

/* The sum over the four lanes of a row. */
static __device__ __forceinline__ float stream_quad_sum(float s)
{
    s += __shfl_xor_sync(0xffffffffu, s, 1);
    return s + __shfl_xor_sync(0xffffffffu, s, 2);
}

/* The norm's factor from the sum of squares. */
static __device__ __forceinline__ float stream_scale(const struct stream_args &a, float squares)
{
    return a.norm ? rsqrtf(__fadd_rn(squares / (float)a.k, a.eps)) : 1;
}

/* Result n of a part from its sum and what was there before (or 0). */
static __device__ __forceinline__ float stream_value(const struct stream_part &p, int n, float s,
                                                     float scale, float before)
{
    s = __fadd_rn(__fmul_rn(s, scale), before);
    return p.bias ? __fadd_rn(s, cuda_load(p.bias, p.bias_dt, n)) : s;
}

static __device__ __forceinline__ float stream_gated(float gate, float up)
{
    return __fmul_rn(__fdiv_rn(gate, __fadd_rn(1, expf(-gate))), up);
}

/* Element n of row r of q, k or v goes to its place; `partner` is that half a head away. */
static __device__ __forceinline__ void stream_place(const struct stream_args &a,
                                                    const struct stream_part *w, int r, int n,
                                                    bool upper, const struct place_row &row,
                                                    float s, float partner, const vec<1> &c1,
                                                    const vec<1> &s1)
{
    vec<1> lo = {upper ? partner : s}, hi = {upper ? s : partner};
    if (w < a.part + 2 && row.at >= 0)
        place_turn<1>(lo, hi, c1, s1);
    if (w == a.part)
        w->out[r * w->ldo + n] = upper ? hi.v[0] : lo.v[0];
    else
        place_put<1>(a.place, w == a.part + 2, row.slot, n, upper ? hi : lo);
}

/* Bytes of shared memory: ring, partial sums, sums of squares, norm weights. */
template <int MT, int NT, int SUB, int D, int WARPS> constexpr size_t stream_smem(int norm_k)
{
    return (size_t)WARPS * D * SUB * MT * 1024 + (size_t)WARPS * NT * 8 * (MT * 16 + 4) * 4 +
           (size_t)WARPS * NT * 8 * 4 + (size_t)norm_k * 2;
}

/* grid: blocks that share the tiles evenly; WARPS * 32 threads. */
template <int MT, int NT, int SUB, int D, int WARPS, int PER_SM, int X, bool FP8, bool PLACE>
__global__ void __launch_bounds__(WARPS * 32, PER_SM)
    stream_kernel(const __grid_constant__ struct stream_args a)
{
    /* CK elements of K in 64 bytes, XN of them a lane's */
    enum { COL = MT * 16 + 4, TOK = NT * 8, CK = FP8 ? 64 : 32, XN = CK / 4 };
    const bool NORM = X == X_NORM;
    /* elements of a pass's result by thread */
    enum { EACH = (MT * 16 * TOK + WARPS * 32 - 1) / (WARPS * 32) };
    extern __shared__ uint4 smem[];
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, q = lane & 3;
    uint4 *ring = smem + (size_t)warp * D * SUB * MT * 64 + lane;
    float *sums = (float *)(smem + (size_t)WARPS * D * SUB * MT * 64); /* [warp][token][column] */
    float *squares = sums + WARPS * TOK * COL;                         /* [warp][token] */
    __nv_bfloat16 *norm = (__nv_bfloat16 *)(squares + WARPS * TOK);    /* [k] */
    cuda_trigger();
    int unit = a.silu ? 2 : 1, units = a.tiles / unit;
    int each = units / (int)gridDim.x, more = units - each * (int)gridDim.x, b = (int)blockIdx.x;
    int t0 = (b * each + min(b, more)) * unit, t1 = t0 + (each + (b < more)) * unit;
    int passes = (t1 - t0 + MT - 1) / MT, chunks = (a.k + SUB * CK - 1) / (SUB * CK);
    int nc = warp < chunks ? (chunks - warp + WARPS - 1) / WARPS : 0;
    int64_t row_bytes = (int64_t)a.k * (FP8 ? 1 : 2);

    /* the side that asks for weights: `todo` chunks from chunk `ic` of pass `ip` on */
    const char *row[MT][2];
    int ip = 0, ic = 0, todo = passes * nc;
    auto set_rows = [&](int pass) {
#pragma unroll
        for (int m = 0; m < MT; m++) {
            int t = t0 + pass * MT + m, part, r0, r1;
            row[m][0] = row[m][1] = NULL;
            if (t >= t1)
                continue;
            stream_tile_rows<PLACE>(a, t, &part, &r0, &r1);
            const char *w = a.part[part].w + q * 16;
            row[m][0] = w + min(r0 + g, a.part[part].n - 1) * row_bytes;
            row[m][1] = w + min(r1 + g, a.part[part].n - 1) * row_bytes;
        }
    };
    uint32_t ring_at = (uint32_t)__cvta_generic_to_shared(ring);
    uint64_t once = l2_once();
    auto ask = [&](int slot) {
        if (todo > 0) {
            int kb = (warp + ic * WARPS) * SUB * 64;
            uint32_t dst = ring_at + slot * (SUB * MT * 1024);
#pragma unroll
            for (int s = 0; s < SUB; s++)
#pragma unroll
                for (int m = 0; m < MT; m++)
#pragma unroll
                    for (int h = 0; h < 2; h++) {
                        bool on = row[m][h] && (SUB == 1 || kb + s * 64 < row_bytes);
                        cp16_by(dst + ((s * MT + m) * 2 + h) * 512,
                                on ? row[m][h] + kb + s * 64 : a.part[0].w, on, once);
                    }
            todo--;
            if (++ic == nc) {
                ic = 0;
                set_rows(++ip);
            }
        }
        cp_commit();
    };
    set_rows(0);
    if (NORM) /* with the first chunk's group */
        for (int j = threadIdx.x * 8; j < a.k; j += WARPS * 32 * 8)
            cp16((uint32_t)__cvta_generic_to_shared(norm + j), a.norm + j, true);
#pragma unroll 1
    for (int i = 0; i < D; i++)
        ask(i);
    cuda_wait();
    struct place_row mine = {}; /* of the thread's row */
    if (PLACE && (int)threadIdx.x / (MT * 16) < a.rows)
        mine = place_row(a.place, threadIdx.x / (MT * 16));

    /* few rows come near in one go, or each chunk would wait for its own */
    bool near = (int64_t)a.rows * a.k <= WARPS * 32 * 32 && a.ldx == a.k && X != X_BF16;
    float touched = 0;
    if (near && (int)threadIdx.x * 32 < a.rows * a.k)
        touched = a.x[threadIdx.x * 32];
    float xr[SUB][NT][XN], square[NT] = {}, scale[SUB][MT];
    uint4 xn[SUB][NT][XN / 8];
    auto load_x = [&](int pass, int c) {
#pragma unroll
        for (int s = 0; s < SUB; s++) {
            int k = ((warp + c * WARPS) * SUB + s) * CK + q * XN;
            bool in = SUB == 1 || k < a.k;
#pragma unroll
            for (int u = 0; u < NT; u++)
#pragma unroll
                for (int i = 0; i < XN; i += 4) {
                    if (X == X_BF16) {
                        const __nv_bfloat16 *from = a.narrow + (u * 8 + g) * (int64_t)a.k + k + i;
                        if (i % 8 == 0)
                            xn[s][u][i / 8] = in && u * 8 + g < a.rows ? *(const uint4 *)from
                                                                       : make_uint4(0, 0, 0, 0);
                        continue;
                    }
                    float4 v = make_float4(0, 0, 0, 0);
                    if (in && u * 8 + g < a.rows)
                        v = *(const float4 *)(a.x + (u * 8 + g) * a.ldx + k + i);
                    float *to = xr[s][u] + i;
                    to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
                }
            if (FP8)
#pragma unroll
                for (int m = 0; m < MT; m++) {
                    int t = min(t0 + pass * MT + m, t1 - 1), part, r;
                    stream_tile(a, t, &part, &r);
                    int64_t at = (int64_t)(r / 128) * ((a.k + 127) / 128) + k / 128;
                    if (in)
                        scale[s][m] = cuda_load(a.part[part].scale, a.part[part].scale_dt, at);
                }
        }
    };
    if (passes * nc > 0)
        load_x(0, 0);
    if (near)
        sums[threadIdx.x] = touched; /* keeps the load */
    if (NORM) {
        cp_wait<D - 1>();
        __syncthreads();
    }
    /* What the thread's e-th result of a pass is: row r, column col of the pass, column n of a
     * part; NULL: nothing. */
    auto place = [&](int pass, int e, int *r, int *col, int *n) -> const struct stream_part *
    {
        int i = threadIdx.x + e * WARPS * 32, part, r1;
        *r = i / (MT * 16);
        *col = i % (MT * 16);
        int t = t0 + pass * MT + *col / 16;
        if (*r >= a.rows || *r >= TOK || t >= t1 || (a.silu && (*col & 16)))
            return NULL;
        stream_tile_rows<PLACE>(a, t, &part, n, &r1);
        *n = (*col & 8 ? r1 : *n) + *col % 8;
        return *n < a.part[part].n ? &a.part[part] : NULL;
    };
    int slot = 0;
#pragma unroll 1
    for (int p = 0; p < passes; p++) {
        float acc[MT][NT][4] = {}, before[EACH];
        vec<1> c1 = {}, s1 = {}; /* the angle of the thread's element */
        if (PLACE) {
            static_assert(!PLACE || EACH == 1, "a thread has one row");
            int r, col, n;
            const struct stream_part *w = place(p, 0, &r, &col, &n);
            if (w && w < a.part + 2 && mine.at >= 0) {
                n = stream_in_head(a, n);
                n -= n >= a.place.hd / 2 ? a.place.hd / 2 : 0;
                c1 = vec_load<1>(a.place.cos + mine.at + n);
                s1 = vec_load<1>(a.place.sin + mine.at + n);
            }
        }
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            int r, col, n;
            const struct stream_part *w = a.accumulate ? place(p, e, &r, &col, &n) : NULL;
            before[e] = w ? w->out[r * w->ldo + n] : 0;
        }
#pragma unroll 1
        for (int c = 0; c < nc; c++) {
            uint32_t hi[SUB][NT][XN / 2], lo[SUB][NT][XN / 2];
            float scaled[SUB][MT];
#pragma unroll
            for (int s = 0; s < SUB; s++)
#pragma unroll
                for (int u = 0; u < NT; u++) {
                    if (X == X_BF16) {
#pragma unroll
                        for (int i = 0; i < XN / 8; i++) {
                            uint32_t *to = hi[s][u] + i * 4;
                            to[0] = xn[s][u][i].x, to[1] = xn[s][u][i].y;
                            to[2] = xn[s][u][i].z, to[3] = xn[s][u][i].w;
#pragma unroll
                            for (int j = 0; FP8 && j < 4; j += 2) { /* the pairs of fp8 */
                                uint32_t e = __byte_perm(to[j], to[j + 1], 0x5410);
                                to[j + 1] = __byte_perm(to[j], to[j + 1], 0x7632);
                                to[j] = e;
                            }
                        }
                        continue;
                    }
                    float *v = xr[s][u];
                    int k = ((warp + c * WARPS) * SUB + s) * CK + q * XN;
                    if (NORM && (SUB == 1 || k < a.k))
#pragma unroll
                        for (int i = 0; i < XN; i += 8) {
                            uint4 n4 = *(const uint4 *)(norm + k + i);
                            const uint32_t n[4] = {n4.x, n4.y, n4.z, n4.w};
#pragma unroll
                            for (int j = 0; j < 8; j++) {
                                if (p == 0)
                                    square[u] = __fmaf_rn(v[i + j], v[i + j], square[u]);
                                v[i + j] = __fmul_rn(v[i + j], stream_norm(n, j));
                            }
                        }
#pragma unroll
                    for (int i = 0; i < XN / 2; i++) { /* fp8: pairs (0, 2), (1, 3) of each four */
                        int j = FP8 ? i / 2 * 4 + i % 2 : i * 2;
                        split_pair(&hi[s][u][i], &lo[s][u][i], v[j], v[j + (FP8 ? 2 : 1)]);
                    }
                }
            if (FP8)
#pragma unroll
                for (int i = 0; i < SUB * MT; i++)
                    scaled[i / MT][i % MT] = scale[i / MT][i % MT];
            bool same = c + 1 < nc; /* pass; else the next */
            if (same || p + 1 < passes)
                load_x(same ? p : p + 1, same ? c + 1 : 0);
            cp_wait<D - 1>();
            uint4 w[SUB][MT][2];
            const uint4 *from = ring + slot * (SUB * MT * 64);
#pragma unroll
            for (int i = 0; i < SUB * MT * 2; i++)
                w[i / (MT * 2)][i / 2 % MT][i % 2] = from[i * 32];
            ask(slot);
            slot = slot + 1 == D ? 0 : slot + 1;
#pragma unroll
            for (int s = 0; s < SUB; s++)
#pragma unroll
                for (int m = 0; m < MT; m++) {
                    const uint32_t v[4] = {w[s][m][0].x, w[s][m][0].y, w[s][m][0].z, w[s][m][0].w};
                    const uint32_t y[4] = {w[s][m][1].x, w[s][m][1].y, w[s][m][1].z, w[s][m][1].w};
                    if (FP8) {
                        float sum[NT][4] = {};
#pragma unroll
                        for (int i = 0; i < 4; i++) {
                            uint32_t f[4];
                            fp8_pairs(v[i], &f[0], &f[2]);
                            fp8_pairs(y[i], &f[1], &f[3]);
#pragma unroll
                            for (int u = 0; u < NT; u++) {
                                if (X != X_BF16)
                                    mma(sum[u], f, lo[s][u][2 * i], lo[s][u][2 * i + 1]);
                                mma(sum[u], f, hi[s][u][2 * i], hi[s][u][2 * i + 1]);
                            }
                        }
#pragma unroll
                        for (int u = 0; u < NT; u++)
#pragma unroll
                            for (int i = 0; i < 4; i++)
                                acc[m][u][i] += sum[u][i] * scaled[s][m];
                    } else {
#pragma unroll
                        for (int i = 0; i < 4; i += 2) {
                            uint32_t f[4] = {v[i], y[i], v[i + 1], y[i + 1]};
#pragma unroll
                            for (int u = 0; u < NT; u++) {
                                if (X != X_BF16)
                                    mma(acc[m][u], f, lo[s][u][i], lo[s][u][i + 1]);
                                mma(acc[m][u], f, hi[s][u][i], hi[s][u][i + 1]);
                            }
                        }
                    }
                }
        }
        __syncthreads(); /* the pass before has been read */
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int u = 0; u < NT; u++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    sums[(warp * TOK + u * 8 + q * 2 + (i & 1)) * COL + m * 16 + g + (i >> 1) * 8] =
                        acc[m][u][i];
        if (NORM && p == 0)
#pragma unroll
            for (int u = 0; u < NT; u++) {
                float s = stream_quad_sum(square[u]);
                if (q == 0)
                    squares[warp * TOK + u * 8 + g] = s;
            }
        __syncthreads();
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            int r, col, n;
            const struct stream_part *w = place(p, e, &r, &col, &n);
            if (!PLACE && !w)
                continue;
            float s = 0, up = 0, scale = 1;
            for (int j = 0; j < WARPS && w; j++)
                s += sums[(j * TOK + r) * COL + col];
            if (NORM) {
                float m = 0;
                for (int j = 0; j < WARPS && w; j++)
                    m += squares[j * TOK + r];
                scale = stream_scale(a, m);
            }
            if (!PLACE || w)
                s = stream_value(*w, n, s, scale, before[e]);
            if (PLACE) {
                float partner = __shfl_xor_sync(0xffffffffu, s, 8);
                if (w)
                    stream_place(a, w, r, n, col & 8, mine, s, partner, c1, s1);
                continue;
            }
            if (a.silu) {
                for (int j = 0; j < WARPS; j++)
                    up += sums[(j * TOK + r) * COL + col + 16];
                s = stream_gated(s, stream_value(a.part[1], n, up, scale, 0));
            }
            if (a.silu_narrow)
                ((__nv_bfloat16 *)w->out)[r * w->ldo + n] = __float2bfloat16_rn(s);
            else
                w->out[r * w->ldo + n] = s;
        }
    }
}

template <int MT, int NT, int SUB, int D, int WARPS, int PER_SM, int X, bool FP8,
          bool PLACE = false>
static int stream_launch(struct dev *d, const struct stream_args *a)
{
    auto kernel = stream_kernel<MT, NT, SUB, D, WARPS, PER_SM, X, FP8, PLACE>;
    size_t smem = stream_smem<MT, NT, SUB, D, WARPS>(X == X_NORM ? a->k : 0);
    static size_t allowed = 48 * 1024;
    if (smem > allowed) {
        if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem) !=
            cudaSuccess)
            return E_DEVICE;
        allowed = smem;
    }
    int units = a->silu ? a->tiles / 2 : a->tiles, fill = d->n_sm * PER_SM;
    dim3 grid((unsigned)(units < fill ? units : fill));
    return cuda_launch(d, kernel, grid, WARPS * 32, smem, *a);
}

/* Adds the product with a weight; every part has the same k. w and bias have device addresses. */
void stream_add(struct stream_args *a, const struct weight *w, const struct weight *bias,
                float *out, int64_t ldo);
/* The kernel takes such a weight and such rows. */
bool stream_fits(const struct weight *w, const float *x, int64_t ldx);
/* q, k and v of `a` can be placed by the launch that computes them. */
bool stream_places(const struct stream_args *a, const struct op_qkv_place *p, enum dtype dt);
/* At most 16 rows, more than 8 as bf16 (`narrow`). */
int stream_run(struct dev *d, const struct stream_args *a, enum dtype dt);
int stream_bf16(struct dev *d, const struct stream_args *a);
int stream_fp8(struct dev *d, const struct stream_args *a);

#endif
