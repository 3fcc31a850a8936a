/* Products of small weights: more than 8 rows at fp32's precision.
 *
 * The weights of a launch are small (small_fits) when they are bf16 with K up to 256 and 2 Mi
 * elements or fewer together, or K up to 1024 and 256 Ki elements or fewer. They lie in the
 * second-level cache, so reading them again for every block of rows costs little, and what counts
 * is the number of launches and that rows keep their bits: activations are never rounded to bf16,
 * norm, bias, SiLU and sum are in the launch, and any number of rows takes this kernel (up to 8
 * rows stream.cuh, where it takes the weight). A block goes through K alone, so its time grows with
 * K: with 0.3 to 0.6 Mi elements of K = 576, 16 rows were slower here than as bf16 in stream.cuh.
 *
 * The kernel has the streaming kernel's arguments and its bits: tensor-core tiles of 16 weight rows
 * by 8 rows, K permuted within 32 elements in the same way, activations split into bf16 parts
 * hi + lo, sums of chunks of 64 added in ascending order. So a row's result does not depend on the
 * number of rows. A block has 32 weight rows by 32 rows, 8 rows a warp; chunks of weights and of
 * fp32 rows come through a ring in shared memory (cp.async), the first weights before the kernel
 * waits for the one ahead; rows are split as they are read from it. */
#include "kernels/cuda/product.cuh"

extern "C" {
#include "engine/base/check.h"
}

/* CHUNK is a warp's share of K in the streaming kernel, which has 16 warps. DEPTH: chunks in the
 * ring, BYTES of each. */
enum { CHUNK = 64, K_MAX = 16 * CHUNK, DEPTH = 6, WARPS = 4, THREADS = WARPS * 32 };
enum {
    COLS = 32,
    ROWS = WARPS * 8,
    W_BYTES = COLS * CHUNK * 2,
    BYTES = W_BYTES + ROWS * CHUNK * 4
};

/* Grid (blocks of COLS weight rows, blocks of ROWS rows). */
__global__ void __launch_bounds__(THREADS, 2)
    small_kernel(const __grid_constant__ struct stream_args a)
{
    enum { W_EACH = COLS * 8 / THREADS, X_EACH = ROWS * 16 / THREADS };
    extern __shared__ uint4 smem[];
    int tid = threadIdx.x, warp = tid >> 5, lane = tid & 31, g = lane >> 2, q = lane & 3;
    int chunks = (a.k + CHUNK - 1) / CHUNK, t0 = blockIdx.x * 2, r0 = blockIdx.y * ROWS;
    char *ring = (char *)smem;
    uint32_t ring_at = (uint32_t)__cvta_generic_to_shared(ring);
    uint32_t norm_at = ring_at + min(chunks, DEPTH) * BYTES;
    const char *norm = ring + min(chunks, DEPTH) * BYTES;
    cuda_trigger();

    /* what the thread copies: 16 bytes of weight rows wr, wr + THREADS / 8, ... and of rows xr,
     * xr + THREADS / 16, ... of each chunk, places swizzled by the row's parity */
    int wp = tid % 8, wr = tid / 8, xp = tid % 16, xr = tid / 16;
    const char *w[W_EACH];
#pragma unroll
    for (int j = 0; j < W_EACH; j++) {
        int r = wr + j * (THREADS / 8), t = t0 + r / 16, part, n;
        w[j] = NULL;
        if (t >= a.tiles)
            continue;
        stream_tile(a, t, &part, &n);
        w[j] = a.part[part].w + min(n + r % 16, a.part[part].n - 1) * ((int64_t)a.k * 2) + wp * 16;
    }
    const float *x = a.x + (int64_t)(r0 + xr) * a.ldx + xp * 4;
    uint32_t w_to = wr * 128 + ((wp ^ (wr & 1) << 2) << 4);
    uint32_t x_to = W_BYTES + xr * 256 + ((xp ^ (xr & 1)) << 4);
    auto load_w = [&](int slot, int c) {
#pragma unroll
        for (int j = 0; j < W_EACH; j++) {
            bool on = w[j] && c * CHUNK + wp * 8 < a.k;
            cp16(ring_at + slot * BYTES + w_to + j * (THREADS / 8) * 128,
                 on ? w[j] + c * (CHUNK * 2) : a.part[0].w, on);
        }
    };
    auto load_x = [&](int slot, int c) {
#pragma unroll
        for (int j = 0; j < X_EACH; j++) {
            int r = j * (THREADS / 16);
            bool on = r0 + xr + r < a.rows && c * CHUNK + xp * 4 < a.k;
            cp16(ring_at + slot * BYTES + x_to + r * 256, on ? x + r * a.ldx + c * CHUNK : a.x, on);
        }
    };

#pragma unroll
    for (int i = 0; i < DEPTH - 1; i++)
        if (i < chunks)
            load_w(i, i);
    if (a.norm)
        for (int j = tid * 8; j < chunks * CHUNK; j += THREADS * 8)
            cp16(norm_at + j * 2, j < a.k ? a.norm + j : a.norm, j < a.k);
    cuda_wait();
#pragma unroll
    for (int i = 0; i < DEPTH - 1; i++) {
        if (i < chunks)
            load_x(i, i);
        cp_commit();
    }

    float sum[2][4] = {}, squares = 0;
    int slot = 0, to = DEPTH - 1;
    for (int c = 0; c < chunks; c++) {
        cp_wait<DEPTH - 2>();
        __syncthreads(); /* all see the chunk, and have read the one before */
        if (c + DEPTH - 1 < chunks) {
            load_w(to, c + DEPTH - 1);
            load_x(to, c + DEPTH - 1);
        }
        cp_commit();
        to = to + 1 == DEPTH ? 0 : to + 1;
        const char *at = ring + slot * BYTES, *row = at + W_BYTES + (warp * 8 + g) * 256;
        slot = slot + 1 == DEPTH ? 0 : slot + 1;
        float acc[2][4] = {}, square = 0;
#pragma unroll
        for (int s = 0; s < 2; s++) {
            uint4 w4[2][2], n4 = make_uint4(0, 0, 0, 0);
            float v[8];
            uint32_t hi[4], lo[4];
#pragma unroll
            for (int m = 0; m < 4; m++)
                w4[m / 2][m % 2] =
                    *(const uint4 *)(at + (m * 8 + g) * 128 + (((s * 4 + q) ^ (g & 1) << 2) << 4));
#pragma unroll
            for (int j = 0; j < 2; j++)
                *(float4 *)(v + j * 4) =
                    *(const float4 *)(row + (((s * 8 + q * 2 + j) ^ (g & 1)) << 4));
            if (a.norm) {
                n4 = *(const uint4 *)(norm + (c * CHUNK + s * 32 + q * 8) * 2);
                const uint32_t n[4] = {n4.x, n4.y, n4.z, n4.w};
#pragma unroll
                for (int j = 0; j < 8; j++) {
                    square = __fmaf_rn(v[j], v[j], square);
                    v[j] = __fmul_rn(v[j], stream_norm(n, j));
                }
            }
#pragma unroll
            for (int j = 0; j < 4; j++)
                split_pair(&hi[j], &lo[j], v[2 * j], v[2 * j + 1]);
#pragma unroll
            for (int m = 0; m < 2; m++) {
                const uint4 &e = w4[m][0], &f = w4[m][1];
                const uint32_t a0[4] = {e.x, f.x, e.y, f.y}, a1[4] = {e.z, f.z, e.w, f.w};
                mma(acc[m], a0, lo[0], lo[1]);
                mma(acc[m], a0, hi[0], hi[1]);
                mma(acc[m], a1, lo[2], lo[3]);
                mma(acc[m], a1, hi[2], hi[3]);
            }
        }
#pragma unroll
        for (int j = 0; j < 8; j++)
            sum[j / 4][j % 4] += acc[j / 4][j % 4];
        squares += stream_quad_sum(square);
    }

    const struct stream_part *part[2];
    int n[2];
#pragma unroll
    for (int m = 0; m < 2; m++) {
        int p = 0;
        n[m] = 0;
        if (t0 + m < a.tiles)
            stream_tile(a, t0 + m, &p, &n[m]);
        part[m] = t0 + m < a.tiles ? &a.part[p] : NULL;
    }
#pragma unroll
    for (int e = 0; e < 2; e++) {
        float scale = __shfl_sync(0xffffffffu, squares, (q * 2 + e) * 4);
        scale = stream_scale(a, scale);
        int r = r0 + warp * 8 + q * 2 + e;
        if (r >= a.rows)
            continue;
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
            for (int m = 0; m < 2; m++) {
                int j = n[m] + g + h * 8, i = e + h * 2;
                if (!part[m] || j >= part[m]->n || (a.silu && m))
                    continue;
                float *out = part[m]->out + r * part[m]->ldo + j;
                float s = stream_value(*part[m], j, sum[m][i], scale, a.accumulate ? *out : 0);
                if (a.silu)
                    s = stream_gated(s, stream_value(a.part[1], j, sum[1][i], scale, 0));
                *out = s;
            }
    }
}

bool small_fits(const struct weight *w, int n, const float *x, int64_t ldx)
{
    int64_t elements = 0, k = w[0].k;
    for (int i = 0; i < n; i++) {
        if (w[i].dt != DT_BF16 || ((uintptr_t)w[i].p & 15))
            return false;
        elements += w[i].n * k;
    }
    return k % 8 == 0 && k <= K_MAX && elements <= (k <= 256 ? 2048 : 256) * 1024 && ldx % 4 == 0 &&
           ((uintptr_t)x & 15) == 0;
}

bool small_streams(const struct dev *d, const struct stream_args *a)
{
    return a->rows <= STREAM_SPLIT_MAX && d->stream_rows && a->k % 32 == 0;
}

int small_run(struct dev *d, const struct stream_args *a)
{
    if (small_streams(d, a))
        return stream_run(d, a, DT_BF16);
    int chunks = (a->k + CHUNK - 1) / CHUNK;
    size_t smem = (size_t)(chunks < DEPTH ? chunks : DEPTH) * BYTES;
    if (a->norm)
        smem += (size_t)chunks * CHUNK * 2;
    static size_t allowed = 48 * 1024;
    if (smem > allowed) {
        if (cudaFuncSetAttribute(small_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 (int)smem) != cudaSuccess)
            return E_DEVICE;
        allowed = smem;
    }
    dim3 grid((unsigned)cuda_div_up(a->tiles, 2), (unsigned)cuda_div_up(a->rows, ROWS));
    CHECK(grid.y <= 65535);
    return cuda_launch(d, small_kernel, grid, THREADS, smem, *a);
}
