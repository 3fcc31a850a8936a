/* The CUDA device: memory, ordered copies, captured graphs, and the operation table. The worker
 * thread owns an open device; everything is ordered on its one stream. */
#include "kernels/cuda/common.cuh"

#include <stdio.h>
#include <string.h>

extern "C" {
#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "kernels/choose.h"
}

struct dev_graph {
    cudaGraphExec_t exec;
};

/* What gpu_usable decides on; no context is made. */
extern "C" void cuda_facts(struct gpu_facts *out)
{
    int major = 0, minor = 0;
    out->built = true;
    out->toolkit = CUDART_VERSION;
    if (cudaDriverGetVersion(&out->driver) != cudaSuccess)
        out->driver = 0;
    cudaError_t r = cudaGetDeviceCount(&out->count);
    if (r != cudaSuccess) {
        out->count = 0;
        out->fault = cudaGetErrorString(r);
        cudaGetLastError(); /* it is an answer, not a fault of what follows */
        return;
    }
    if (out->ordinal < 0 || out->ordinal >= out->count)
        return;
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, out->ordinal);
    cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, out->ordinal);
    out->sm = major * 10 + minor;
}

static int cuda_open(struct dev **out, const struct dev_conf *c, struct err *e)
{
    struct gpu_facts f = {};
    f.ordinal = c->ordinal;
    cuda_facts(&f);
    int r = gpu_usable(&f, e);
    if (r < 0)
        return r;
    struct dev *d = MEM_NEW(struct dev);
    d->conf = *c;
    *out = d; /* closed by the caller's failure path through cuda_close */
    struct cudaDeviceProp prop;
    CU(e, cudaSetDevice(c->ordinal));
    CU(e, cudaGetDeviceProperties(&prop, c->ordinal));
    d->sm = prop.major * 10 + prop.minor;
    d->n_sm = prop.multiProcessorCount;
    d->stream_rows = prop.sharedMemPerBlockOptin >= CUDA_STREAM_SMEM ? CUDA_STREAM_ROWS : 0;
    CU(e, cudaStreamCreateWithFlags(&d->stream, cudaStreamNonBlocking));
    if (cublasLtCreate(&d->lt) != CUBLAS_STATUS_SUCCESS)
        return FAIL(e, E_DEVICE, "cuda: cuBLASLt does not start");
    CU(e, cudaStreamCreateWithFlags(&d->trial, cudaStreamNonBlocking));
    for (int i = 0; i < 2; i++)
        CU(e, cudaEventCreate(&d->trial_at[i]));
    CU(e, cudaMalloc(&d->lt_ws, CUDA_LT_BYTES));
    /* cuBLASLt reduces parts that initcheck has not seen written */
    CU(e, cudaMemsetAsync(d->lt_ws, 0, CUDA_LT_BYTES, d->stream));
    void *p;
    CU(e, cudaMalloc(&p, CUDA_SCRATCH_BYTES));
    d->scratch = (char *)p;
    CU(e, cudaMalloc(&p, CUDA_FLAGS * sizeof(int32_t)));
    d->flags = (int32_t *)p;
    CU(e, cudaMemsetAsync(p, 0, CUDA_FLAGS * sizeof(int32_t), d->stream));
    return OK;
}

static void cuda_close(struct dev *d)
{
    if (!d)
        return;
    CHECK(d->n_block == 0 && d->n_graph == 0);
    cuda_weights_free(d);
    for (int i = 0; i < 2; i++)
        if (d->trial_at[i])
            cudaEventDestroy(d->trial_at[i]);
    if (d->trial)
        cudaStreamDestroy(d->trial);
    if (d->scratch)
        cudaFree(d->scratch);
    if (d->flags)
        cudaFree(d->flags);
    if (d->lt_ws)
        cudaFree(d->lt_ws);
    if (d->lt)
        cublasLtDestroy(d->lt);
    if (d->stream)
        cudaStreamDestroy(d->stream);
    mem_free(d);
}

static int cuda_open_checked(struct dev **out, const struct dev_conf *c, struct err *e)
{
    struct dev *d = NULL;
    int r = cuda_open(&d, c, e);
    if (r < 0)
        cuda_close(d);
    else
        *out = d;
    return r;
}

static int cuda_alloc(struct dev *d, void **out, size_t bytes, enum dev_mem kind, struct err *e)
{
    CHECK(!d->frozen && !d->recording && d->n_block < CUDA_BLOCKS_MAX);
    d->counts.allocs++;
    void *p = NULL;
    bytes = bytes ? bytes : 1;
    bool pinned = kind == DEV_MEM_PINNED;
    cudaError_t r = pinned ? cudaMallocHost(&p, bytes) : cudaMalloc(&p, bytes);
    if (r != cudaSuccess) {
        cudaGetLastError(); /* out of memory is an answer, not a fault */
        return FAIL(e, E_NOMEM, "cuda: no memory for %zu bytes (%s)", bytes, cudaGetErrorString(r));
    }
    if (pinned)
        memset(p, 0, bytes);
    else
        CU(e, cudaMemsetAsync(p, 0, bytes, d->stream));
    d->block[d->n_block].p = p;
    d->block[d->n_block++].pinned = pinned;
    *out = p;
    return OK;
}

static void cuda_free(struct dev *d, void *p)
{
    for (int i = 0; p && i < d->n_block; i++) {
        if (d->block[i].p != p)
            continue;
        if (d->block[i].pinned)
            cudaFreeHost(p);
        else
            cudaFree(p);
        d->block[i] = d->block[--d->n_block];
        return;
    }
    CHECK(!p);
}

static void cuda_freeze(struct dev *d)
{
    d->frozen = true;
}

static int cuda_copy_in(struct dev *d, void *dst, const void *src, size_t bytes, struct err *e)
{
    CHECK(!d->recording);
    d->counts.host_writes++;
    CU(e, cudaMemcpyAsync(dst, src, bytes, cudaMemcpyHostToDevice, d->stream));
    return OK;
}

static int cuda_copy_out(struct dev *d, void *dst, const void *src, size_t bytes, struct err *e)
{
    CHECK(!d->recording);
    d->counts.host_reads++;
    CU(e, cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToHost, d->stream));
    CU(e, cudaStreamSynchronize(d->stream));
    return OK;
}

static int cuda_sync(struct dev *d, struct err *e)
{
    d->counts.syncs++;
    CU(e, cudaStreamSynchronize(d->stream));
    return OK;
}

static int cuda_record_begin(struct dev *d, struct err *e)
{
    CHECK(!d->recording);
    CU(e, cudaStreamSynchronize(d->stream)); /* trials (gemm.cu) use what earlier work uses */
    CU(e, cudaStreamBeginCapture(d->stream, cudaStreamCaptureModeThreadLocal));
    d->recording = true;
    return OK;
}

static int cuda_record_end(struct dev *d, struct dev_graph **out, struct err *e)
{
    cudaGraph_t g = NULL;
    d->recording = false;
    cudaError_t end = cudaStreamEndCapture(d->stream, &g);
    cudaGetLastError(); /* a capture that was broken off is an answer, not a fault of what follows
                         */
    if (end != cudaSuccess || !g)
        return FAIL(e, E_DEVICE, "cuda: the recording was broken off: %s", cudaGetErrorString(end));
    struct dev_graph *r = MEM_NEW(struct dev_graph);
    cudaError_t st = cudaGraphInstantiate(&r->exec, g, 0);
    cudaGraphDestroy(g);
    if (st != cudaSuccess) {
        mem_free(r);
        return FAIL(e, E_DEVICE, "cuda: a captured graph cannot be instantiated: %s",
                    cudaGetErrorString(st));
    }
    d->n_graph++;
    *out = r;
    return OK;
}

static int cuda_replay(struct dev *d, struct dev_graph *g, struct err *e)
{
    d->counts.replays++;
    CU(e, cudaGraphLaunch(g->exec, d->stream));
    return OK;
}

static void cuda_graph_free(struct dev *d, struct dev_graph *g)
{
    if (!g)
        return;
    cudaGraphExecDestroy(g->exec);
    mem_free(g);
    d->n_graph--;
}

static const struct dev_counts *cuda_counts(const struct dev *d)
{
    return &d->counts;
}

__global__ void mark_kernel(volatile int64_t *word, int64_t value)
{
    __threadfence_system(); /* what earlier kernels wrote to pinned memory comes first */
    *word = value;
}

static int cuda_mark(struct dev *d, int64_t *word, int64_t value, struct err *e)
{
    mark_kernel<<<1, 1, 0, d->stream>>>(word, value);
    CU(e, cudaPeekAtLastError());
    return OK;
}

static int cuda_query(struct dev *d, struct err *e)
{
    cudaError_t r = cudaStreamQuery(d->stream);
    if (r != cudaSuccess && r != cudaErrorNotReady)
        return FAIL(e, E_DEVICE, "cuda: the device failed: %s", cudaGetErrorString(r));
    return OK;
}

static int cuda_sm(const struct dev *d)
{
    return d->sm;
}

static void cuda_memory(const struct dev *d, int64_t *free_bytes, int64_t *total)
{
    size_t f = 0, t = 0;
    (void)d;
    if (cudaMemGetInfo(&f, &t) != cudaSuccess)
        cudaGetLastError(); /* 0: then nothing fits, which is said */
    *free_bytes = (int64_t)f;
    *total = (int64_t)t;
}

#define CUDA_OP(name) cuda_do_##name,
static const struct op_table cuda_ops = {OP_LIST(CUDA_OP) NULL, cuda_narrow};
#undef CUDA_OP

extern "C" const struct dev_ops dev_cuda = {
    "cuda",        DT_BF16,           cuda_open_checked, cuda_close,
    cuda_alloc,    cuda_free,         cuda_freeze,       cuda_copy_in,
    cuda_copy_out, cuda_sync,         cuda_record_begin, cuda_record_end,
    cuda_replay,   cuda_graph_free,   cuda_counts,       cuda_sm,
    cuda_mark,     cuda_query,        cuda_mirror_one,   cuda_resolve,
    &cuda_ops,     cuda_load_weights, cuda_memory,
};

extern "C" void *cuda_dev_stream(struct dev *d)
{
    return d->stream;
}

extern "C" void cuda_dev_count_launch(struct dev *d)
{
    d->counts.launches += !d->recording;
}

extern "C" bool cuda_dev_early(const struct dev *d)
{
    return SPECD_CUDA_ARCH >= 90 && d->sm == SPECD_CUDA_ARCH;
}
