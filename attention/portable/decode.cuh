/* The portable attention kernel: any row sees keys [first, last) of its slot through the page
 * table; with a tree mask (ancestors not NULL) those from row0 on only where its bit is set. The
 * keys of a path are shared out to warps by cache position: what a row of a tree gives equals its
 * path decoded alone up to rounding, not bit for bit.
 *
 * grid (R, KV heads, chunks of HC query heads); 4 warps take keys in turn, lanes split the head
 * dims, every warp keeps its own running softmax and the block merges them. The scales of an fp8
 * cache come as parts of `scale` and as `v_scale` (1 for other types). Each KV element is read
 * once per row and chunk of query heads: right for decode and verify of few rows; prefill shares
 * keys between rows through the caches only. */
#ifndef SPECD_ATTN_PORTABLE_CUH
#define SPECD_ATTN_PORTABLE_CUH

#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

extern "C" {
#include "attention/attn.h"
}

#include "kernels/cuda/launch.cuh"

enum { PORTABLE_WARPS = 4 };

static __device__ __forceinline__ float portable_kv(const float *p)
{
    return *p;
}

static __device__ __forceinline__ float portable_kv(const __nv_bfloat16 *p)
{
    return __bfloat162float(*p);
}

static __device__ __forceinline__ float portable_kv(const __nv_fp8_e4m3 *p)
{
    return float(*p);
}

/* Whether ancestor bit i is set and at least `skip` (when positive) are set below it: those are
 * before the window. */
static __device__ __forceinline__ bool portable_sees(uint64_t bits, int i, int skip)
{
    return i < 64 && bits >> i & 1 && __popcll(bits & ((1ull << i) - 1)) >= skip;
}

/* QL, VL: ceil(dim / 32) of keys and values; HC: query heads of a block. */
template <typename KV, int QL, int VL, int HC>
__global__ void __launch_bounds__(PORTABLE_WARPS * 32) portable_kernel(struct attn_call c)
{
    __shared__ float s_max[PORTABLE_WARPS][HC], s_sum[PORTABLE_WARPS][HC];
    __shared__ float s_out[PORTABLE_WARPS][HC][VL * 32];
    cuda_wait();
    cuda_trigger();
    int r = blockIdx.x, kvh = blockIdx.y, warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    int group = c.n_head / c.n_kv, h0 = blockIdx.z * HC, heads = min(HC, group - h0);
    int head0 = kvh * group + h0, qk = c.dims.qk, dv = c.dims.v;
    bool latent = c.kind == ATTN_MLA_ABSORBED;
    int64_t kw = (int64_t)c.n_kv * qk, vw = latent ? kw : (int64_t)c.n_kv * dv;
    const KV *K = (const KV *)c.k + (latent ? 0 : kvh * qk);
    const KV *V = latent ? K : (const KV *)c.v + kvh * dv;
    const int32_t *table = c.table + (int64_t)c.slot[r] * c.pages_max;

    float q[HC][QL], o[HC][VL], mx[HC], sum[HC];
#pragma unroll
    for (int h = 0; h < HC; h++) {
        mx[h] = -INFINITY;
        sum[h] = 0;
        for (int i = 0; i < VL; i++)
            o[h][i] = 0;
        for (int i = 0; i < QL; i++) {
            int j = i * 32 + lane;
            q[h][i] = h < heads && j < qk ? c.q[r * c.ldq + (int64_t)(head0 + h) * qk + j] : 0.0f;
        }
    }
    int first = c.first[r], last = c.last[r], row0 = last;
    uint64_t bits = 0;
    if (c.ancestors && first < last && c.row0[r] < last) {
        row0 = c.row0[r];
        bits = c.ancestors[r];
    }
    for (int j = min(first, row0) + warp; j < last; j += PORTABLE_WARPS) {
        if (j < row0 ? j < first : !portable_sees(bits, j - row0, first - row0))
            continue; /* the whole warp */
        int64_t at = (int64_t)table[j / c.page] * c.page + j % c.page;
        float k[QL], v[VL];
#pragma unroll
        for (int i = 0; i < QL; i++)
            k[i] = i * 32 + lane < qk ? portable_kv(K + at * kw + i * 32 + lane) : 0.0f;
#pragma unroll
        for (int i = 0; i < VL; i++)
            v[i] = i * 32 + lane < dv ? portable_kv(V + at * vw + i * 32 + lane) : 0.0f;
#pragma unroll
        for (int h = 0; h < HC; h++) {
            float s = 0;
#pragma unroll
            for (int i = 0; i < QL; i++)
                s += q[h][i] * k[i];
            for (int b = 16; b > 0; b >>= 1)
                s += __shfl_xor_sync(0xffffffffu, s, b);
            s *= c.scale;
            if (c.soft_cap > 0)
                s = c.soft_cap * tanhf(s / c.soft_cap);
            float m = fmaxf(mx[h], s), f = __expf(mx[h] - m), p = __expf(s - m);
            mx[h] = m;
            sum[h] = sum[h] * f + p;
#pragma unroll
            for (int i = 0; i < VL; i++)
                o[h][i] = o[h][i] * f + p * v[i];
        }
    }
#pragma unroll
    for (int h = 0; h < HC; h++) {
        if (lane == 0) {
            s_max[warp][h] = mx[h];
            s_sum[warp][h] = sum[h];
        }
        for (int i = 0; i < VL; i++)
            s_out[warp][h][i * 32 + lane] = o[h][i];
    }
    __syncthreads();
    for (int h = warp; h < heads; h += PORTABLE_WARPS) {
        float m = -INFINITY, total = 0, f[PORTABLE_WARPS];
        for (int w = 0; w < PORTABLE_WARPS; w++)
            m = fmaxf(m, s_max[w][h]);
        if (c.sinks)
            m = fmaxf(m, c.sinks[head0 + h]);
        for (int w = 0; w < PORTABLE_WARPS; w++) {
            f[w] = s_sum[w][h] > 0 ? __expf(s_max[w][h] - m) : 0.0f;
            total += s_sum[w][h] * f[w];
        }
        if (c.lse && lane == 0) /* of the keys alone: a sink is no key */
            c.lse[(int64_t)r * c.n_head + head0 + h] = total > 0 ? m + logf(total) : -INFINITY;
        if (c.sinks)
            total += __expf(c.sinks[head0 + h] - m);
        float inv = total > 0 ? c.v_scale / total : 0.0f;
        int64_t at = r * c.ldo + (int64_t)(head0 + h) * dv;
        for (int i = lane; i < dv; i += 32) {
            float s = 0;
            for (int w = 0; w < PORTABLE_WARPS; w++)
                s += f[w] > 0 ? s_out[w][h][i] * f[w] : 0.0f;
            if (c.narrow)
                ((__nv_bfloat16 *)c.out)[at + i] = __float2bfloat16_rn(s * inv);
            else
                c.out[at + i] = s * inv;
        }
    }
}

#endif
