/* From the products of a layer to its cache: norms of heads and latents, rotary embedding, cache
 * writes, in one launch each. A warp works on one head of one row (grid: rows x groups of heads),
 * every element of which is read and written once; bound by the launch at few rows and by
 * bandwidth (4 bytes read, 4, 2 or 1 written an element) at many. */
#include "kernels/cuda/place.cuh"

enum { WARPS = 4 };

/* Grid (R, ceil((n_head + 2 n_kv) / WARPS)). A lane holds V elements of the lower and of the upper
 * half of the head, IT times. */
template <int V, int IT>
__global__ void __launch_bounds__(WARPS * 32) qkv_kernel(struct op_qkv_place a)
{
    int r = blockIdx.x, head = blockIdx.y * WARPS + (threadIdx.x >> 5), lane = threadIdx.x & 31;
    int half = a.hd / 2;
    bool is_q = head < a.n_head, is_v = head >= a.n_head + a.n_kv;
    int h = is_q ? head : is_v ? head - a.n_head - a.n_kv : head - a.n_head;
    const struct weight &norm = is_q ? a.q_norm : a.k_norm;
    cuda_trigger();
    vec<V> wl[IT], wh[IT]; /* the norm's weights do not wait for the kernel ahead */
    if (norm.p && !is_v) {
#pragma unroll
        for (int t = 0; t < IT; t++) {
            int i = (t * 32 + lane) * V;
            if (i < half) {
                wl[t] = vec_load_any<V>(norm.p, norm.dt, i);
                wh[t] = vec_load_any<V>(norm.p, norm.dt, half + i);
            }
        }
    }
    cuda_wait();
    if (head >= a.n_head + 2 * a.n_kv)
        return;
    struct place_row row = place_row(a, r);
    if (!is_q && row.slot < 0)
        return;
    float *x = is_q   ? a.q + r * a.ldq + (int64_t)h * a.hd
               : is_v ? (float *)a.v + r * a.ldv + (int64_t)h * a.hd
                      : a.k + r * a.ldk + (int64_t)h * a.hd;
    bool turned = !is_v && row.at >= 0;
    vec<V> lo[IT], hi[IT], c[IT], s[IT];
    float sum = 0;
#pragma unroll
    for (int t = 0; t < IT; t++) {
        int i = (t * 32 + lane) * V;
        if (i >= half)
            continue;
        lo[t] = vec_load<V>(x + i);
        hi[t] = vec_load<V>(x + half + i);
        if (turned) {
            c[t] = vec_load<V>(a.cos + row.at + i);
            s[t] = vec_load<V>(a.sin + row.at + i);
        }
        sum = __fadd_rn(sum, __fadd_rn(vec_sumsq<V>(lo[t]), vec_sumsq<V>(hi[t])));
    }
    bool normed = norm.p && !is_v;
    if (normed)
        sum = cuda_warp_sum(sum);
#pragma unroll
    for (int t = 0; t < IT; t++) {
        int i = (t * 32 + lane) * V;
        if (i >= half)
            continue;
        if (normed)
            place_norm<V>(a, lo[t], hi[t], sum, wl[t], wh[t]);
        if (turned)
            place_turn<V>(lo[t], hi[t], c[t], s[t]);
        if (is_q) {
            vec_store<V>(x + i, lo[t]);
            vec_store<V>(x + half + i, hi[t]);
        } else {
            place_put<V>(a, is_v, row.slot, h * a.hd + i, lo[t]);
            place_put<V>(a, is_v, row.slot, h * a.hd + half + i, hi[t]);
        }
    }
}

extern "C" int cuda_do_qkv_place(struct dev *d, const struct op_qkv_place *op)
{
    struct op_qkv_place a = *op;
    a.q_norm = cuda_weight_dev(d, op->q_norm);
    a.k_norm = cuda_weight_dev(d, op->k_norm);
    if (a.hd > 1024 || a.hd % 2)
        return E_UNSUPPORTED;
    dim3 grid((unsigned)a.rows, (unsigned)cuda_div_up(a.n_head + 2 * a.n_kv, WARPS));
    bool even = a.hd % 4 == 0 && cuda_width(a.ldq | a.ldk | a.ldv) >= 2 && cuda_aligned(a.q) &&
                cuda_aligned(a.k) && cuda_aligned(a.v) && cuda_aligned(a.q_norm.p) &&
                cuda_aligned(a.k_norm.p) && cuda_aligned(a.k_cache) && cuda_aligned(a.v_cache);
    if (!even)
        return cuda_launch(d, qkv_kernel<1, 16>, grid, WARPS * 32, 0, a);
    if (a.hd == 128 && cuda_width(a.ldq | a.ldk | a.ldv) == 4 && a.q_norm.p) /* as wide.cuh adds */
        return cuda_launch(d, qkv_kernel<4, 1>, grid, WARPS * 32, 0, a);
    if (a.hd <= 128)
        return cuda_launch(d, qkv_kernel<2, 1>, grid, WARPS * 32, 0, a);
    if (a.hd <= 256)
        return cuda_launch(d, qkv_kernel<2, 2>, grid, WARPS * 32, 0, a);
    return cuda_launch(d, qkv_kernel<2, 8>, grid, WARPS * 32, 0, a);
}

/* ---- MLA ---- */

/* Pair i of `half`: where its two elements stand. */
static __device__ __forceinline__ int pair_lo(bool interleaved, int i)
{
    return interleaved ? 2 * i : i;
}

static __device__ __forceinline__ int pair_hi(bool interleaved, int i, int half)
{
    return interleaved ? 2 * i + 1 : i + half;
}

/* The latent and the shared key part of row r, by a whole block. */
template <int V> static __device__ void latent_row(const struct op_mla_place &a, int64_t r)
{
    int64_t slot = a.wslot[r], to = slot * (a.lora + a.rope);
    int half = a.rope / 2;
    if (slot < 0)
        return;
    const float *x = a.kv + r * a.ldkv;
    float sum = 0, inv = 1 / a.scale; /* fp8 only */
#pragma unroll 1
    for (int i = threadIdx.x * V; i < a.lora; i += WARPS * 32 * V)
        sum += vec_sumsq<V>(vec_load<V>(x + i));
    float scale = rsqrtf(cuda_block_sum(sum) / (float)a.lora + a.eps);
#pragma unroll 1
    for (int i = threadIdx.x * V; i < a.lora; i += WARPS * 32 * V) {
        vec<V> v = vec_load<V>(x + i), w = vec_load_any<V>(a.norm.p, a.norm.dt, i);
#pragma unroll
        for (int k = 0; k < V; k++)
            v.v[k] *= scale * w.v[k];
        vec_put<V>(a.cache, a.dt, to + i, v, inv);
    }
    int64_t pos = a.pos[r];
    bool turned = pos >= 0 && pos < a.pos_max;
#pragma unroll 1
    for (int i = threadIdx.x; i < half; i += WARPS * 32) {
        int lo = a.lora + pair_lo(a.interleaved, i), hi = a.lora + pair_hi(a.interleaved, i, half);
        vec<1> u = vec_load<1>(x + lo), v = vec_load<1>(x + hi);
        if (turned)
            place_turn<1>(u, v, vec_load<1>(a.cos + pos * half + i),
                          vec_load<1>(a.sin + pos * half + i));
        vec_put<1>(a.cache, a.dt, to + lo, u, inv);
        vec_put<1>(a.cache, a.dt, to + hi, v, inv);
    }
}

/* Grid (R, 1 + ceil(heads / WARPS)): the first block of a row does the latent row, a warp of the
 * others one head. */
template <int V> __global__ void __launch_bounds__(WARPS * 32) mla_kernel(struct op_mla_place a)
{
    int64_t r = blockIdx.x;
    int half = a.rope / 2, lane = threadIdx.x & 31;
    cuda_trigger();
    cuda_wait();
    if (blockIdx.y == 0) {
        latent_row<V>(a, r);
        return;
    }
    int h = (blockIdx.y - 1) * WARPS + (threadIdx.x >> 5);
    if (h >= a.heads)
        return;
    const float *x = a.q + r * a.ldq + h * a.q_stride;
    float *out = a.q_out + r * a.ldo + h * a.out_stride;
    int64_t pos = a.pos[r];
    bool turned = pos >= 0 && pos < a.pos_max;
#pragma unroll 1
    for (int i = lane; i < half; i += 32) { /* a lane reads and writes the same two elements */
        int lo = pair_lo(a.interleaved, i), hi = pair_hi(a.interleaved, i, half);
        vec<1> u = vec_load<1>(x + lo), v = vec_load<1>(x + hi);
        if (turned)
            place_turn<1>(u, v, vec_load<1>(a.cos + pos * half + i),
                          vec_load<1>(a.sin + pos * half + i));
        out[lo] = u.v[0];
        out[hi] = v.v[0];
    }
}

extern "C" int cuda_do_mla_place(struct dev *d, const struct op_mla_place *op)
{
    struct op_mla_place a = *op;
    a.norm = cuda_weight_dev(d, op->norm);
    dim3 grid((unsigned)a.rows, (unsigned)(1 + cuda_div_up(a.heads, WARPS)));
    bool wide = cuda_width(a.lora | a.rope | a.ldkv) == 4 && cuda_aligned(a.kv) &&
                cuda_aligned(a.norm.p) && cuda_aligned(a.cache);
    return wide ? cuda_launch(d, mla_kernel<4>, grid, WARPS * 32, 0, a)
                : cuda_launch(d, mla_kernel<1>, grid, WARPS * 32, 0, a);
}
