/* Blocks of a cluster (sm_90 on; elsewhere nothing of this may run): each other's shared memory and
 * the cluster's barrier, whose two halves every thread takes in turn. */
#ifndef SPECD_CUDA_TEAM_CUH
#define SPECD_CUDA_TEAM_CUH

#include <stdint.h>

/* Address of what *p, shared, is in block `rank`. */
static __device__ __forceinline__ uint32_t team_at(const void *p, int rank)
{
    uint32_t at = (uint32_t)__cvta_generic_to_shared(p);
#if __CUDA_ARCH__ >= 900
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(at), "r"(rank));
#endif
    return at;
}

static __device__ __forceinline__ void team_put(float *p, int rank, float v)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(team_at(p, rank)), "f"(v) : "memory");
#endif
}

static __device__ __forceinline__ float team_get(const float *p, int rank)
{
    float v = 0;
#if __CUDA_ARCH__ >= 900
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(team_at(p, rank)) : "memory");
#endif
    return v;
}

/* An arrival that promises nothing but that the block runs. */
static __device__ __forceinline__ void team_here(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
#endif
}

/* What was written before an arrival is there behind everyone's wait. */
static __device__ __forceinline__ void team_arrive(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.release;" ::: "memory");
#endif
}

static __device__ __forceinline__ void team_wait(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#endif
}

#endif
