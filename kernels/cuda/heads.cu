/* Per-head products with blocks of one weight (the absorbed projections of latent attention).
 *  - up to 16 rows, bf16: a thread loads its part of the weights before the rows are there, keeps
 *    it and passes the rows by; bound by the latency of one read of the weight;
 *  - more rows, bf16: tensor-core tiles of 64 rows by 128 columns of a head. Up to 64 rows the
 *    activations are split into two bf16 parts (2^-17), above they are rounded to bf16;
 *  - anything else: a warp or a thread an output.
 * Sums are fp32. */
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/mma.cuh"

enum { FEW = 16, THREADS = 256, WARPS = 8, BM = 64, BN = 128, BK = 64 };

static __device__ __forceinline__ uint4 load16(const void *p)
{
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}

static __device__ __forceinline__ void unpack8(float *f, const uint4 &v)
{
    const uint32_t u[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        f[2 * i] = __uint_as_float(u[i] << 16);
        f[2 * i + 1] = __uint_as_float(u[i] & 0xffff0000u);
    }
}

/* ---- few rows ---- */

enum { N_LOADS = 4, N_LINES = 2, T_LOADS = 4, T_COLS = 64, T_ROWS = 4 };

/* out_h[i] = sum_j x_h[j] w[row][j], K <= 1024; grid (ceil(n_rows / 16), heads), two outputs a
 * warp. */
__global__ void __launch_bounds__(THREADS) heads_few_kernel(struct op_matmul_heads a)
{
    int h = blockIdx.y, warp = threadIdx.x >> 5, lane = threadIdx.x & 31, K = (int)a.w.k;
    int i0 = (blockIdx.x * WARPS + warp) * N_LINES;
    const __nv_bfloat16 *W = (const __nv_bfloat16 *)a.w.p +
                             (h * a.w_head_stride + a.w_row0 + i0) * (int64_t)K + lane * 8;
    uint4 w[N_LINES][N_LOADS] = {};
#pragma unroll
    for (int l = 0; l < N_LINES; l++)
#pragma unroll
        for (int j = 0; j < N_LOADS; j++)
            if (i0 + l < a.n_rows && j * 256 + lane * 8 < K)
                w[l][j] = load16(W + l * K + j * 256);
    cuda_trigger();
    cuda_wait();
#pragma unroll 2
    for (int r = 0; r < a.rows; r++) {
        const float *x = a.x + r * a.ldx + h * a.x_stride + lane * 8;
        float s[N_LINES] = {};
#pragma unroll
        for (int j = 0; j < N_LOADS; j++) {
            if (j * 256 + lane * 8 >= K)
                continue;
            float4 u = *(const float4 *)(x + j * 256), v = *(const float4 *)(x + j * 256 + 4);
#pragma unroll
            for (int l = 0; l < N_LINES; l++) {
                float f[8];
                unpack8(f, w[l][j]);
                s[l] += u.x * f[0] + u.y * f[1] + u.z * f[2] + u.w * f[3];
                s[l] += v.x * f[4] + v.y * f[5] + v.z * f[6] + v.w * f[7];
            }
        }
        for (int l = 0; l < N_LINES; l++) {
            float t = cuda_warp_sum(s[l]);
            if (lane == 0 && i0 + l < a.n_rows)
                a.out[r * a.ldo + h * a.out_stride + i0 + l] = t;
        }
    }
}

/* out_h[j] = sum_i x_h[i] w[row][j], n_rows <= 128; grid (K / 64, heads): a warp has 4 weight rows
 * by 64 columns at once. */
__global__ void __launch_bounds__(THREADS) heads_few_t_kernel(struct op_matmul_heads a)
{
    __shared__ float part[T_ROWS][WARPS][T_COLS];
    int h = blockIdx.y, warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    int i0 = warp * 4 + (lane >> 3), c = (lane & 7) * 8;
    const __nv_bfloat16 *W = (const __nv_bfloat16 *)a.w.p +
                             (h * a.w_head_stride + a.w_row0) * a.w.k + blockIdx.x * T_COLS + c;
    uint4 w[T_LOADS] = {};
#pragma unroll
    for (int j = 0; j < T_LOADS; j++)
        if (i0 + j * 32 < a.n_rows)
            w[j] = load16(W + (i0 + j * 32) * a.w.k);
    cuda_trigger();
    cuda_wait();
    for (int r0 = 0; r0 < a.rows; r0 += T_ROWS) {
        int n = min((int)T_ROWS, a.rows - r0);
        __syncthreads();
        for (int r = 0; r < n; r++) {
            const float *x = a.x + (r0 + r) * a.ldx + h * a.x_stride;
            float s[8] = {};
#pragma unroll
            for (int j = 0; j < T_LOADS; j++) {
                float f[8], v = i0 + j * 32 < a.n_rows ? x[i0 + j * 32] : 0.0f;
                unpack8(f, w[j]);
                for (int i = 0; i < 8; i++)
                    s[i] += v * f[i];
            }
            for (int i = 0; i < 8; i++) {
                s[i] += __shfl_xor_sync(0xffffffffu, s[i], 8);
                s[i] += __shfl_xor_sync(0xffffffffu, s[i], 16);
            }
            if (lane < 8)
                for (int i = 0; i < 8; i += 4)
                    *(float4 *)&part[r][warp][c + i] =
                        make_float4(s[i], s[i + 1], s[i + 2], s[i + 3]);
        }
        __syncthreads();
        int r = threadIdx.x / T_COLS, j = threadIdx.x % T_COLS;
        if (r >= n)
            continue;
        float s = 0;
        for (int i = 0; i < WARPS; i++)
            s += part[r][i][j];
        a.out[(r0 + r) * a.ldo + h * a.out_stride + blockIdx.x * T_COLS + j] = s;
    }
}

/* ---- many rows ---- */

static __device__ __forceinline__ void copy16(void *to, const void *from)
{
    asm volatile(
        "cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((uint32_t)__cvta_generic_to_shared(to)),
        "l"(from));
}

template <bool T> static __device__ __forceinline__ void ldmatrix(uint32_t *r, const void *p)
{
    uint32_t at = (uint32_t)__cvta_generic_to_shared(p);
    if (T)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(at));
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(at));
}

/* Rows by columns of one head: grid (N / 128, ceil(R / 64), heads), eight warps of 32 by 32. N and
 * K are n_rows and w.k, or the other way round (T): then the weight's tile lies k by n and is
 * transposed on its way to the registers. Two stages of 64 k; 16-byte parts of a row are swizzled
 * by the row. SPLIT: activations in two parts. */
template <bool T, bool SPLIT>
__global__ void __launch_bounds__(THREADS) heads_many_kernel(struct op_matmul_heads a)
{
    enum { A_BYTES = BM * BK * 2, PARTS = SPLIT ? 2 : 1, BYTES = PARTS * A_BYTES + BN * BK * 2 };
    extern __shared__ __align__(128) char smem[];
    int tid = threadIdx.x, warp = tid >> 5, lane = tid & 31, h = blockIdx.z;
    int n0 = blockIdx.x * BN, r0 = blockIdx.y * BM, K = T ? a.n_rows : (int)a.w.k;
    const __nv_bfloat16 *W =
        (const __nv_bfloat16 *)a.w.p + (h * a.w_head_stride + a.w_row0) * a.w.k;
    const float *x = a.x + h * a.x_stride;
    auto load_w = [&](int k0, char *s) {
#pragma unroll
        for (int i = 0; i < BN * BK / 8 / THREADS; i++) {
            int v = tid + i * THREADS;
            int row = T ? v >> 4 : v >> 3, part = T ? v & 15 : v & 7;
            const __nv_bfloat16 *from =
                T ? W + (k0 + row) * a.w.k + n0 + part * 8 : W + (n0 + row) * a.w.k + k0 + part * 8;
            copy16(s + row * (T ? 256 : 128) + ((part ^ (row & 7)) << 4), from);
        }
        asm volatile("cp.async.commit_group;");
    };
    float4 v[BM * BK / 4 / THREADS];
    auto load_x = [&](int k0) {
#pragma unroll
        for (int i = 0; i < BM * BK / 4 / THREADS; i++) {
            int at = tid + i * THREADS, row = r0 + (at >> 4);
            v[i] = row < a.rows ? *(const float4 *)(x + row * a.ldx + k0 + (at & 15) * 4)
                                : make_float4(0, 0, 0, 0);
        }
    };
    load_w(0, smem + PARTS * A_BYTES);
    cuda_trigger();
    cuda_wait();
    load_x(0);
    int wm = warp >> 2, wn = warp & 3;
    float acc[2][4][4] = {};
    for (int k0 = 0, s = 0; k0 < K; k0 += BK, s ^= 1) {
        char *A = smem + s * BYTES, *B = A + PARTS * A_BYTES;
#pragma unroll
        for (int i = 0; i < BM * BK / 4 / THREADS; i++) {
            int at = tid + i * THREADS, row = at >> 4, part = (at & 15) >> 1;
            char *to = A + row * 128 + ((part ^ (row & 7)) << 4) + (at & 1) * 8;
            uint2 hi, lo;
            split_pair(&hi.x, &lo.x, v[i].x, v[i].y);
            split_pair(&hi.y, &lo.y, v[i].z, v[i].w);
            *(uint2 *)to = hi;
            if (SPLIT)
                *(uint2 *)(to + A_BYTES) = lo;
        }
        asm volatile("cp.async.wait_group 0;");
        __syncthreads();
        if (k0 + BK < K) {
            load_w(k0 + BK, smem + (s ^ 1) * BYTES + PARTS * A_BYTES);
            load_x(k0 + BK);
        }
#pragma unroll
        for (int kk = 0; kk < BK / 16; kk++) {
            uint32_t fb[2][4];
#pragma unroll
            for (int j = 0; j < 2; j++) {
                int n = wn * 32 + j * 16;
                int row = T ? kk * 16 + (lane & 15) : n + (lane & 7) + (lane >> 4 << 3);
                int part = T ? (n >> 3) + (lane >> 4) : kk * 2 + (lane >> 3 & 1);
                ldmatrix<T>(fb[j], B + row * (T ? 256 : 128) + ((part ^ (row & 7)) << 4));
            }
#pragma unroll
            for (int p = PARTS - 1; p >= 0; p--)
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    uint32_t fa[4];
                    int row = wm * 32 + i * 16 + (lane & 15), part = kk * 2 + (lane >> 4);
                    ldmatrix<false>(fa, A + p * A_BYTES + row * 128 + ((part ^ (row & 7)) << 4));
#pragma unroll
                    for (int j = 0; j < 4; j++)
                        mma(acc[i][j], fa, fb[j >> 1][(j & 1) * 2], fb[j >> 1][(j & 1) * 2 + 1]);
                }
        }
    }
    int g = lane >> 2, q = lane & 3;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int row = r0 + wm * 32 + i * 8 + g;
        if (row >= a.rows)
            continue;
        float *out = a.out + row * a.ldo + h * a.out_stride + n0 + wn * 32 + q * 2;
#pragma unroll
        for (int j = 0; j < 4; j++)
            *(float2 *)(out + j * 8) =
                make_float2(acc[i >> 1][j][(i & 1) * 2], acc[i >> 1][j][(i & 1) * 2 + 1]);
    }
}

template <bool T, bool SPLIT> static int launch_many(struct dev *d, const struct op_matmul_heads *a)
{
    size_t smem = 2 * ((SPLIT ? 2 : 1) * BM + BN) * BK * 2;
    int64_t n = T ? a->w.k : a->n_rows;
    static bool ready;
    if (!ready)
        cudaFuncSetAttribute(heads_many_kernel<T, SPLIT>,
                             cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem);
    ready = true;
    return cuda_launch(
        d, heads_many_kernel<T, SPLIT>,
        dim3((unsigned)(n / BN), (unsigned)cuda_div_up(a->rows, BM), (unsigned)a->heads), THREADS,
        smem, *a);
}

/* ---- any shape and type ---- */

enum { HEAD_ROWS = 8 };

/* out_h[i] = sum_j x_h[j] w[row][j]; grid (ceil(R / 8), heads), a warp an output. */
__global__ void heads_kernel(struct op_matmul_heads a)
{
    int h = blockIdx.y, r0 = blockIdx.x * HEAD_ROWS, lane = threadIdx.x & 31;
    int rows = min((int)HEAD_ROWS, a.rows - r0);
    int64_t row0 = h * a.w_head_stride + a.w_row0;
    const float *x = a.x + r0 * a.ldx + h * a.x_stride;
    cuda_trigger();
    cuda_wait();
    for (int i = threadIdx.x >> 5; i < a.n_rows; i += blockDim.x >> 5) {
        float s[HEAD_ROWS] = {};
        for (int64_t j = lane; j < a.w.k; j += 32) {
            float w = cuda_weight(a.w, row0 + i, j);
            for (int r = 0; r < rows; r++)
                s[r] += w * x[r * a.ldx + j];
        }
        for (int r = 0; r < rows; r++) {
            float v = cuda_warp_sum(s[r]);
            if (lane == 0)
                a.out[(r0 + r) * a.ldo + h * a.out_stride + i] = v;
        }
    }
}

/* out_h[j] = sum_i x_h[i] w[row][j]; grid (ceil(R / 8), heads), a thread an output. */
__global__ void heads_t_kernel(struct op_matmul_heads a)
{
    int h = blockIdx.y, r0 = blockIdx.x * HEAD_ROWS;
    int rows = min((int)HEAD_ROWS, a.rows - r0);
    int64_t row0 = h * a.w_head_stride + a.w_row0;
    const float *x = a.x + r0 * a.ldx + h * a.x_stride;
    cuda_trigger();
    cuda_wait();
    for (int64_t j = threadIdx.x; j < a.w.k; j += blockDim.x) {
        float s[HEAD_ROWS] = {};
        for (int i = 0; i < a.n_rows; i++) {
            float w = cuda_weight(a.w, row0 + i, j);
            for (int r = 0; r < rows; r++)
                s[r] += w * x[r * a.ldx + i];
        }
        for (int r = 0; r < rows; r++)
            a.out[(r0 + r) * a.ldo + h * a.out_stride + j] = s[r];
    }
}

extern "C" int cuda_do_matmul_heads(struct dev *d, const struct op_matmul_heads *op)
{
    struct op_matmul_heads b = *op, *a = &b;
    b.w = cuda_weight_dev(d, op->w);
    int64_t k = a->w.k;
    bool t = a->transposed;
    bool fast = a->w.dt == DT_BF16 && k % 8 == 0 && a->ldx % 4 == 0 && a->x_stride % 4 == 0 &&
                (((uintptr_t)a->x | (uintptr_t)a->w.p) & 15) == 0;
    unsigned heads = (unsigned)a->heads;
    if (fast && a->rows <= FEW && t && a->n_rows <= T_LOADS * 32 && k % T_COLS == 0)
        return cuda_launch(d, heads_few_t_kernel, dim3((unsigned)(k / T_COLS), heads), THREADS, 0,
                           *a);
    if (fast && a->rows <= FEW && !t && k <= N_LOADS * 256)
        return cuda_launch(d, heads_few_kernel,
                           dim3((unsigned)cuda_div_up(a->n_rows, WARPS * N_LINES), heads), THREADS,
                           0, *a);
    if (fast && (t ? k : a->n_rows) % BN == 0 && (t ? a->n_rows : k) % BK == 0 && a->ldo % 2 == 0 &&
        a->out_stride % 2 == 0 && ((uintptr_t)a->out & 7) == 0) {
        if (a->rows <= 64)
            return t ? launch_many<true, true>(d, a) : launch_many<false, true>(d, a);
        return t ? launch_many<true, false>(d, a) : launch_many<false, false>(d, a);
    }
    dim3 grid((unsigned)cuda_div_up(a->rows, HEAD_ROWS), heads);
    return cuda_launch(d, t ? heads_t_kernel : heads_kernel, grid, 256, 0, *a);
}
