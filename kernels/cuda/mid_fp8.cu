/* fp8 products of 17 to 64 rows: the activations are the m16 operand, split into two bf16 parts,
 * the weights are expanded to bf16 in registers; bound by the weight's bytes and the expansion. */
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/product.cuh"

static __device__ __forceinline__ uint4 load_stream(const void *p)
{
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}

/* Eight consecutive activations of a row; rows past the end are zero. */
static __device__ __forceinline__ void load_x8(uint32_t *hi, uint32_t *lo, const float *x, bool on)
{
    float4 u = make_float4(0, 0, 0, 0), v = u;
    if (on) {
        u = *(const float4 *)x;
        v = *(const float4 *)(x + 4);
    }
    split_pair(&hi[0], &lo[0], u.x, u.y);
    split_pair(&hi[1], &lo[1], u.z, u.w);
    split_pair(&hi[2], &lo[2], v.x, v.y);
    split_pair(&hi[3], &lo[3], v.z, v.w);
}

/* Four fp8 values to two bf16 pairs; every e4m3 value is a bf16 value. */
static __device__ __forceinline__ void expand_fp8(uint32_t w, uint32_t *out)
{
    float f[4];
    for (int i = 0; i < 4; i++) {
        __nv_fp8_e4m3 v;
        v.__x = (__nv_fp8_storage_t)(w >> (8 * i));
        f[i] = float(v);
    }
    out[0] = pack_bf16(f[0], f[1]);
    out[1] = pack_bf16(f[2], f[3]);
}

enum { WARPS = 8 };

/* Adds the warps' partial tiles and writes rows x columns of the block. */
template <int MT, int NT>
static __device__ void finish_tile(const struct op_matmul &a, float (&acc)[MT][NT][4], float *part)
{
    enum { COLS = NT * 8, TILE = MT * 16 * COLS };
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, q = lane & 3;
    for (int t = 0; t < MT; t++)
        for (int u = 0; u < NT; u++)
            for (int i = 0; i < 4; i++)
                part[warp * TILE + (t * 16 + g + (i >> 1) * 8) * COLS + u * 8 + q * 2 + (i & 1)] =
                    acc[t][u][i];
    __syncthreads();
    for (int i = threadIdx.x; i < TILE; i += WARPS * 32) {
        int r = i / COLS;
        int64_t n = (int64_t)blockIdx.x * COLS + i % COLS;
        if (r >= a.rows || n >= a.w.n)
            continue;
        float s = 0;
        for (int w = 0; w < WARPS; w++)
            s += part[w * TILE + i];
        float *out = a.out + r * a.ldo + n;
        if (a.accumulate)
            s = *out + s;
        if (a.bias.p)
            s += cuda_load(a.bias.p, a.bias.dt, n);
        *out = s;
    }
}

/* grid: ceil(N / (8 NT)); 8 warps share the block's columns and split K in chunks of 64, scaled
 * when they are added. The order of k within a chunk is permuted the same way for both operands, so
 * that a lane's share of a weight row is 16 consecutive bytes. */
template <int MT, int NT>
__global__ void __launch_bounds__(WARPS * 32) mid_fp8_kernel(struct op_matmul a)
{
    extern __shared__ float part[];
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, q = lane & 3;
    int64_t K = a.w.k, n0 = (int64_t)blockIdx.x * (NT * 8), k_blocks = (K + 127) / 128;
    const uint8_t *W = (const uint8_t *)a.w.p;
    float acc[MT][NT][4] = {};
    cuda_trigger();
    cuda_wait();
    for (int64_t k = warp * 64 + q * 16; k < K; k += WARPS * 64) {
        uint4 b[NT];
        float scale[NT];
#pragma unroll
        for (int u = 0; u < NT; u++) {
            int64_t n = n0 + u * 8 + g;
            b[u] = n < a.w.n ? load_stream(W + n * K + k) : make_uint4(0, 0, 0, 0);
            int64_t row = min(n0 + u * 8, a.w.n - 1) / 128; /* 8 columns never cross a block */
            scale[u] = cuda_load(a.w.scale, a.w.scale_dt, row * k_blocks + k / 128);
        }
#pragma unroll
        for (int t = 0; t < MT; t++) {
            int r = t * 16 + g;
            uint32_t x[2][8], y[2][8]; /* rows g and g + 8, high and low parts */
            const float *xr = a.x + r * a.ldx + k, *yr = xr + 8 * a.ldx;
            load_x8(x[0], x[1], xr, r < a.rows);
            load_x8(x[0] + 4, x[1] + 4, xr + 8, r < a.rows);
            load_x8(y[0], y[1], yr, r + 8 < a.rows);
            load_x8(y[0] + 4, y[1] + 4, yr + 8, r + 8 < a.rows);
#pragma unroll
            for (int u = 0; u < NT; u++) {
                uint32_t w[8];
                expand_fp8(b[u].x, w);
                expand_fp8(b[u].y, w + 2);
                expand_fp8(b[u].z, w + 4);
                expand_fp8(b[u].w, w + 6);
                float c[4] = {};
#pragma unroll
                for (int p = 1; p >= 0; p--) {
#pragma unroll
                    for (int i = 0; i < 8; i += 2) {
                        uint32_t av[4] = {x[p][i], y[p][i], x[p][i + 1], y[p][i + 1]};
                        mma(c, av, w[i], w[i + 1]);
                    }
                }
                for (int i = 0; i < 4; i++)
                    acc[t][u][i] += c[i] * scale[u];
            }
        }
    }
    finish_tile<MT, NT>(a, acc, part);
}

template <int MT, int NT> static int launch(struct dev *d, const struct op_matmul *a)
{
    size_t smem = (size_t)WARPS * MT * 16 * NT * 8 * sizeof(float);
    if (smem > 48 * 1024)
        cudaFuncSetAttribute(mid_fp8_kernel<MT, NT>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             (int)smem);
    dim3 grid((unsigned)cuda_div_up(a->w.n, NT * 8));
    return cuda_launch(d, mid_fp8_kernel<MT, NT>, grid, WARPS * 32, smem, *a);
}

/* Fewer columns a block when the grid would not fill the device twice. */
template <int MT> static int launch_rows(struct dev *d, const struct op_matmul *a)
{
    int64_t fill = 2 * (int64_t)d->n_sm;
    if (cuda_div_up(a->w.n, 32) >= fill)
        return launch<MT, 4>(d, a);
    if (cuda_div_up(a->w.n, 16) >= fill)
        return launch<MT, 2>(d, a);
    return launch<MT, 1>(d, a);
}

int mid_fp8_run(struct dev *d, const struct op_matmul *a)
{
    return a->rows <= 32 ? launch_rows<2>(d, a) : launch_rows<4>(d, a);
}
