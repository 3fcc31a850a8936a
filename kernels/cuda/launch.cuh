/* Launches that may start before the kernel ahead of them ends (programmatic dependent launch, CUDA
 * programming guide). A kernel started by cuda_launch
 *  - calls cuda_wait() in every thread before it touches anything an earlier kernel wrote or reads
 *    (weights may be loaded before), and before it ends;
 *  - calls cuda_trigger() as early as it likes: the next kernel's blocks may then become resident
 *    beside it, but their cuda_wait() still waits for all of this one.
 * Since every kernel waits for the one ahead, what is complete is complete in order. Device code of
 * other GPUs than the one built for (compiled by the driver from PTX) has no such instructions:
 * cuda_dev_early() is false there and launches are ordinary. */
#ifndef SPECD_CUDA_LAUNCH_CUH
#define SPECD_CUDA_LAUNCH_CUH

#include <cuda_runtime.h>

extern "C" {
#include "kernels/cuda/stream.h"
}

static __device__ __forceinline__ void cuda_wait(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

static __device__ __forceinline__ void cuda_trigger(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* On the device's stream; E_DEVICE when the launch itself fails. Clusters of `cluster` blocks need
 * cuda_dev_early(). */
template <typename... P, typename... A>
static int cuda_launch_cluster(struct dev *d, void (*kernel)(P...), dim3 grid, unsigned threads,
                               size_t smem, unsigned cluster, const A &...args)
{
    cudaLaunchAttribute attr[2] = {};
    cudaLaunchConfig_t c = {};
    c.gridDim = grid;
    c.blockDim = dim3(threads);
    c.dynamicSmemBytes = smem;
    c.stream = (cudaStream_t)cuda_dev_stream(d);
    c.attrs = attr;
    if (cuda_dev_early(d)) {
        attr[c.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attr[c.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
    }
    if (cluster > 1) {
        attr[c.numAttrs].id = cudaLaunchAttributeClusterDimension;
        attr[c.numAttrs].val.clusterDim.x = cluster;
        attr[c.numAttrs].val.clusterDim.y = attr[c.numAttrs].val.clusterDim.z = 1;
        c.numAttrs++;
    }
    cuda_dev_count_launch(d);
    return cudaLaunchKernelEx(&c, kernel, P(args)...) == cudaSuccess ? OK : E_DEVICE;
}

template <typename... P, typename... A>
static int cuda_launch(struct dev *d, void (*kernel)(P...), dim3 grid, unsigned threads,
                       size_t smem, const A &...args)
{
    return cuda_launch_cluster(d, kernel, grid, threads, smem, 1, args...);
}

#endif
