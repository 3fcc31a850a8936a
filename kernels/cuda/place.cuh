/* What becomes of a head's elements between their product and the cache (op_qkv_place): for
 * place.cu, and for products that do it with their sums. Every step is rounded as written, so that
 * all have the same bits. */
#ifndef SPECD_CUDA_PLACE_CUH
#define SPECD_CUDA_PLACE_CUH

#include "kernels/cuda/vec.cuh"

struct place_row {
    int slot;   /* of the cache; negative: none */
    int64_t at; /* of the position's angles in the tables; negative: not rotated */
};

/* By kernels behind their wait: earlier ones of the step write positions and slots. */
static __device__ __forceinline__ struct place_row place_row(const struct op_qkv_place &a, int r)
{
    int64_t pos = a.pos[r];
    struct place_row row = {a.wslot[r], pos >= 0 && pos < a.pos_max ? pos * (a.hd / 2) : -1};
    return row;
}

/* Elements of the lower and the upper half of a head whose squares add up to `sum`. */
template <int V>
static __device__ __forceinline__ void place_norm(const struct op_qkv_place &a, vec<V> &lo,
                                                  vec<V> &hi, float sum, const vec<V> &wl,
                                                  const vec<V> &wh)
{
    float scale = rsqrtf(__fadd_rn(sum / (float)a.hd, a.eps));
#pragma unroll
    for (int i = 0; i < V; i++) {
        lo.v[i] = __fmul_rn(lo.v[i], __fmul_rn(scale, wl.v[i]));
        hi.v[i] = __fmul_rn(hi.v[i], __fmul_rn(scale, wh.v[i]));
    }
}

/* (lo, hi) is a pair of each of V frequencies. */
template <int V>
static __device__ __forceinline__ void place_turn(vec<V> &lo, vec<V> &hi, const vec<V> &c,
                                                  const vec<V> &s)
{
#pragma unroll
    for (int i = 0; i < V; i++) {
        float u = lo.v[i], v = hi.v[i];
        lo.v[i] = __fsub_rn(__fmul_rn(u, c.v[i]), __fmul_rn(v, s.v[i]));
        hi.v[i] = __fadd_rn(__fmul_rn(v, c.v[i]), __fmul_rn(u, s.v[i]));
    }
}

/* Elements i … i + V of the row's keys or values. */
template <int V>
static __device__ __forceinline__ void place_put(const struct op_qkv_place &a, bool is_v, int slot,
                                                 int i, const vec<V> &x)
{
    float inv = 1 / (is_v ? a.v_scale : a.k_scale); /* fp8 only */
    if (slot >= 0)
        vec_put<V>(is_v ? a.v_cache : a.k_cache, a.dt, (int64_t)slot * a.n_kv * a.hd + i, x, inv);
}

#endif
