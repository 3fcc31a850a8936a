/* Mixture of experts: routing (one warp a row) and the experts' products. The products read each
 * picked expert's weights once per pick, which is what decoding needs; many rows of one expert
 * share them through the L2 cache only. No shape depends on a host value. */
#include "kernels/cuda/common.cuh"

enum { EXPERTS_MAX = 1024 };

/* Largest (value, then lowest index) over the warp. */
static __device__ int warp_argmax(float v, int i)
{
    for (int o = 16; o > 0; o >>= 1) {
        float w = __shfl_xor_sync(0xffffffffu, v, o);
        int j = __shfl_xor_sync(0xffffffffu, i, o);
        if (w > v || (w == v && j < i)) {
            v = w;
            i = j;
        }
    }
    return i;
}

static __device__ int pick(const float *c, int n, int lane)
{
    float v = -INFINITY;
    int at = n;
    for (int i = lane; i < n; i += 32) {
        if (c[i] > v || at == n) {
            v = c[i];
            at = i;
        }
    }
    return warp_argmax(v, at);
}

/* Leaves only the experts of the best groups; the others count as -inf. */
static __device__ void limit_groups(const struct op_moe_route &a, float *c, int lane)
{
    __shared__ float score[64];
    int size = a.experts / a.n_group;
    for (int g = lane; g < a.n_group; g += 32) {
        float best = -INFINITY, second = -INFINITY;
        for (int i = g * size; i < (g + 1) * size; i++) {
            if (c[i] > best) {
                second = best;
                best = c[i];
            } else if (c[i] > second) {
                second = c[i];
            }
        }
        score[g] = a.group == MOE_GROUP_MAX ? best : best + second;
    }
    __syncwarp();
    uint64_t keep = 0;
    for (int k = 0; k < a.topk_group; k++) {
        int g = pick(score, a.n_group, lane);
        keep |= 1ull << g;
        __syncwarp();
        if (lane == 0)
            score[g] = -INFINITY;
        __syncwarp();
    }
    for (int i = lane; i < a.experts; i += 32)
        if (!(keep >> (i / size) & 1))
            c[i] = -INFINITY;
    __syncwarp();
}

__global__ void moe_route_kernel(struct op_moe_route a)
{
    __shared__ float s[EXPERTS_MAX], c[EXPERTS_MAX];
    int lane = threadIdx.x, r = blockIdx.x;
    const float *l = a.logits + (int64_t)r * a.experts;
    float max = -INFINITY, sum = 0;
    for (int i = lane; i < a.experts; i += 32)
        max = fmaxf(max, l[i]);
    max = cuda_warp_max(max);
    for (int i = lane; i < a.experts; i += 32) {
        s[i] = a.score == MOE_SIGMOID ? 1.0f / (1.0f + expf(-l[i])) : expf(l[i] - max);
        sum += s[i];
    }
    sum = cuda_warp_sum(sum);
    for (int i = lane; i < a.experts; i += 32) {
        if (a.score == MOE_SOFTMAX)
            s[i] /= sum;
        c[i] = s[i] + (a.bias ? a.bias[i] : 0.0f);
    }
    __syncwarp();
    if (a.group != MOE_GROUP_NONE && a.n_group > 1)
        limit_groups(a, c, lane);
    float total = 0;
    for (int k = 0; k < a.topk; k++) {
        int e = pick(c, a.experts, lane);
        total += s[e];
        if (lane == 0) {
            a.ids[(int64_t)r * a.topk + k] = e;
            a.weights[(int64_t)r * a.topk + k] = s[e];
        }
        __syncwarp();
        if (lane == 0)
            c[e] = -INFINITY;
        __syncwarp();
    }
    float f = a.normalize ? a.scale / (total + a.norm_eps) : a.scale;
    __syncwarp();
    for (int k = lane; k < a.topk; k += 32)
        a.weights[(int64_t)r * a.topk + k] *= f;
}

extern "C" int cuda_do_moe_route(struct dev *d, const struct op_moe_route *a)
{
    if (a->experts > EXPERTS_MAX || a->n_group > 64)
        return E_UNSUPPORTED;
    moe_route_kernel<<<a->rows, 32, 0, d->stream>>>(*a);
    return cuda_launched(d);
}

/* Dot product of a weight row with x by one warp; 16-byte loads where the type allows. */
static __device__ float dot_row(const struct weight &w, int64_t n, const float *x, int lane)
{
    float s = 0;
    if (w.dt == DT_BF16 && w.k % 8 == 0) {
        const uint4 *p = (const uint4 *)((const __nv_bfloat16 *)w.p + n * w.k);
        for (int64_t j = lane; j < w.k / 8; j += 32) {
            uint4 v = p[j];
            const __nv_bfloat162 *b = (const __nv_bfloat162 *)&v;
            const float *y = x + j * 8;
            for (int i = 0; i < 4; i++) {
                float2 f = __bfloat1622float2(b[i]);
                s += f.x * y[2 * i] + f.y * y[2 * i + 1];
            }
        }
    } else {
        for (int64_t j = lane; j < w.k; j += 32)
            s += x[j] * cuda_weight(w, n, j);
    }
    return cuda_warp_sum(s);
}

/* act[pick][i] = silu(gate x) * up x; grid (ceil(I / 8), R * topk) */
__global__ void moe_gate_up_kernel(struct op_moe_ffn a)
{
    int i = blockIdx.x * 8 + (threadIdx.x >> 5), lane = threadIdx.x & 31;
    int64_t p = blockIdx.y;
    int e = a.ids[p];
    if (i >= a.inter || e < 0 || e >= a.experts)
        return;
    const float *x = a.x + p / a.topk * a.hidden;
    float g = dot_row(a.gate[e], i, x, lane), u = dot_row(a.up[e], i, x, lane);
    if (lane == 0)
        a.work[p * a.inter + i] = g / (1.0f + __expf(-g)) * u;
}

/* out[r][h] += sum over picks of weight * down act; grid (ceil(H / 8), R) */
__global__ void moe_down_kernel(struct op_moe_ffn a)
{
    int h = blockIdx.x * 8 + (threadIdx.x >> 5), lane = threadIdx.x & 31;
    int64_t r = blockIdx.y;
    if (h >= a.hidden)
        return;
    float s = 0;
    for (int k = 0; k < a.topk; k++) {
        int64_t p = r * a.topk + k;
        int e = a.ids[p];
        if (e >= 0 && e < a.experts)
            s += a.weights[p] * dot_row(a.down[e], h, a.work + p * a.inter, lane);
    }
    if (lane == 0)
        a.out[r * a.hidden + h] += s;
}

extern "C" int cuda_do_moe_ffn(struct dev *d, const struct op_moe_ffn *a)
{
    int64_t rows_max = 65535 / a->topk; /* of a grid's second dimension */
    for (int64_t r0 = 0; r0 < a->rows; r0 += rows_max) {
        struct op_moe_ffn b = *a;
        b.rows = (int)(a->rows - r0 < rows_max ? a->rows - r0 : rows_max);
        b.out += r0 * a->hidden;
        b.x += r0 * a->hidden;
        b.ids += r0 * a->topk;
        b.weights += r0 * a->topk;
        dim3 gu((unsigned)cuda_div_up(a->inter, 8), (unsigned)(b.rows * a->topk));
        dim3 dn((unsigned)cuda_div_up(a->hidden, 8), (unsigned)b.rows);
        moe_gate_up_kernel<<<gu, 256, 0, d->stream>>>(b);
        moe_down_kernel<<<dn, 256, 0, d->stream>>>(b);
    }
    return cuda_launched(d);
}
