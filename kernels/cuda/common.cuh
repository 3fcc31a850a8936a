/* Private to the CUDA device: the open device, error macros, element loads and block sums.
 *
 * Activations are fp32 in memory, as on the CPU device. C in spirit: templates for element types
 * only. */
#ifndef SPECD_CUDA_COMMON_CUH
#define SPECD_CUDA_COMMON_CUH

#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

extern "C" {
#include "kernels/device.h"
#include "kernels/ops.h"
#include "kernels/cuda/stream.h"
}

#include "kernels/cuda/launch.cuh"

struct cuda_block {
    void *p;
    bool pinned;
};

struct cuda_plan { /* one cuBLASLt product shape (gemm.cu) */
    int64_t n, k;
    int m; /* bucket */
    bool accumulate, narrow;
    int batch;
    cublasLtMatmulAlgo_t algo;
};

struct cuda_mirror { /* host memory copied to the device */
    const char *host;
    char *dev;
    size_t bytes;
};

enum { CUDA_BLOCKS_MAX = 4096, CUDA_PLANS_MAX = 1024, CUDA_FLAGS = 1024 };

struct dev {
    struct dev_conf conf;
    struct dev_counts counts;
    bool frozen, recording;
    int sm, n_sm; /* compute capability as 10 * major + minor; multiprocessors */
    /* Products stream their weights up to so many rows: CUDA_STREAM_ROWS, or 0 where a block cannot
     * have the shared memory for it. */
    int stream_rows;
    cudaStream_t stream;
    cublasLtHandle_t lt;
    void *lt_ws;    /* cuBLASLt workspace */
    int32_t *flags; /* [CUDA_FLAGS] counters of blocks that are done, all 0 between operations */
    char *scratch;  /* bf16 copies of activations and dequantised weights of one product */
    struct cuda_block block[CUDA_BLOCKS_MAX];
    int n_block, n_graph;
    struct cuda_plan plan[CUDA_PLANS_MAX];
    int n_plan;
    cudaStream_t trial; /* where candidates for plans are timed */
    cudaEvent_t trial_at[2];
    struct cuda_mirror *mirror; /* ascending by host address */
    int n_mirror, cap_mirror;
    char **weights; /* the blocks that mirrors lie in */
    int n_weights, cap_weights;
};

enum { CUDA_STREAM_ROWS = 16 };
#ifndef CUDA_STREAM_SMEM /* NVFLAGS=-DCUDA_STREAM_SMEM=1000000 builds what other GPUs run */
#define CUDA_STREAM_SMEM ((size_t)223 << 10)
#endif
static const size_t CUDA_LT_BYTES = (size_t)32 << 20;
static const size_t CUDA_SCRATCH_BYTES = (size_t)512 << 20; /* half for each operand */

#define CU(e, call)                                                                                \
    do {                                                                                           \
        cudaError_t cu_r_ = (call);                                                                \
        if (cu_r_ != cudaSuccess)                                                                  \
            return FAIL(e, cu_r_ == cudaErrorMemoryAllocation ? E_NOMEM : E_DEVICE,                \
                        "cuda: %s: %s", #call, cudaGetErrorString(cu_r_));                         \
    } while (0)

/* After a launch: the launch's own error; faults of the kernel show at the next wait. */
static inline int cuda_launched(struct dev *d)
{
    d->counts.launches += !d->recording;
    return cudaPeekAtLastError() == cudaSuccess ? OK : E_DEVICE;
}

static inline int64_t cuda_div_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* load.cu */
int cuda_load_weights(struct dev *d, const struct dev_load *l, struct err *e);
int cuda_mirror_one(struct dev *d, const void *host, size_t bytes, struct err *e);
const void *cuda_resolve(const struct dev *d, const void *host);
void cuda_weights_free(struct dev *d);
/* The weight with device addresses. */
struct weight cuda_weight_dev(const struct dev *d, struct weight w);

/* Element i of an array of type dt (bf16, f16, f32, fp8) as float. */
static __device__ __forceinline__ float cuda_load(const void *p, enum dtype dt, int64_t i)
{
    switch (dt) {
    case DT_F32:
        return ((const float *)p)[i];
    case DT_BF16:
        return __bfloat162float(((const __nv_bfloat16 *)p)[i]);
    case DT_F16:
        return __half2float(((const __half *)p)[i]);
    case DT_F8E4M3:
        return float(((const __nv_fp8_e4m3 *)p)[i]);
    default:
        return 0;
    }
}

/* Element (i, j) of a weight, block scales applied. */
static __device__ __forceinline__ float cuda_weight(const struct weight &w, int64_t i, int64_t j)
{
    float v = cuda_load(w.p, w.dt, i * w.k + j);
    if (w.dt == DT_F8E4M3)
        v *= cuda_load(w.scale, w.scale_dt, i / 128 * ((w.k + 127) / 128) + j / 128);
    return v;
}

static __device__ __forceinline__ float cuda_warp_sum(float v)
{
    for (int o = 16; o > 0; o >>= 1)
        v += __shfl_xor_sync(0xffffffffu, v, o);
    return v;
}

static __device__ __forceinline__ float cuda_warp_max(float v)
{
    for (int o = 16; o > 0; o >>= 1)
        v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, o));
    return v;
}

/* Sum over a block of at most 1024 threads; every thread gets it. */
static __device__ __forceinline__ float cuda_block_sum(float v)
{
    __shared__ float part[32];
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, n = (blockDim.x + 31) >> 5;
    v = cuda_warp_sum(v);
    __syncthreads(); /* an earlier use of part[] is over */
    if (lane == 0)
        part[warp] = v;
    __syncthreads();
    return cuda_warp_sum(lane < n ? part[lane] : 0.0f);
}

/* The slot is live and of this generation. */
static __device__ __forceinline__ bool cuda_slot_ok(const struct slot_arrays &s, int32_t slot,
                                                    int32_t gen)
{
    return slot > 0 && slot < s.n_slot && s.live[slot] && s.gen[slot] == gen;
}

static __device__ __forceinline__ void cuda_row_pad(const struct row_arrays &o, int r)
{
    o.tok[r] = o.req[r] = o.parent[r] = -1;
    o.slot[r] = o.pos[r] = o.at[r] = o.row0[r] = 0;
    o.anc[r] = 0;
}

static __device__ __forceinline__ void cuda_row_place(const struct op_rows_place &a, int r)
{
    int first = 0, last = 0, wslot = -1;
    if (a.slot[r] > 0 && a.tok[r] >= 0 && a.at[r] / a.page < a.pages_max) {
        int at = a.at[r], from = a.from ? a.from[a.slot[r]] : 0;
        last = at + 1;
        first = max(from, a.window > 0 ? a.pos[r] + 1 - a.window : 0);
        wslot = a.table[(int64_t)a.slot[r] * a.pages_max + at / a.page] * a.page + at % a.page;
    }
    a.first[r] = first;
    a.last[r] = last;
    a.wslot[r] = wslot;
}

/* By one thread of the grid, behind its cuda_wait: the time at which all before it is done. */
static __device__ __forceinline__ void cuda_stamp(const struct op_stamp &a)
{
    int64_t now;
    if (!a.out || blockIdx.x || threadIdx.x)
        return;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    a.out[*a.step % a.depth * a.stride + a.index] = now;
}

#define CUDA_DO(name) extern "C" int cuda_do_##name(struct dev *d, const struct op_##name *a);
OP_LIST(CUDA_DO)
#undef CUDA_DO
extern "C" bool cuda_narrow(struct dev *d, const struct op_matmul *a);

#endif
