/* Asynchronous copies from global to shared memory (cp.async, sm_80 on), a thread's own: groups are
 * committed and waited for by the thread that issued them. */
#ifndef SPECD_CUDA_ASYNC_CUH
#define SPECD_CUDA_ASYNC_CUH

#include <stdint.h>

/* 16 bytes to shared address dst; nothing is read and zeros are written unless `on`. */
static __device__ __forceinline__ void cp16(uint32_t dst, const void *src, bool on)
{
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(dst), "l"(src),
                 "r"(on ? 16 : 0)
                 : "memory");
}

/* For what is read once, as large weights are: it leaves the second-level cache first, so that
 * rows, caches and code stay. */
static __device__ __forceinline__ uint64_t l2_once(void)
{
    uint64_t p;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(p));
    return p;
}

/* The same with a policy. */
static __device__ __forceinline__ void cp16_by(uint32_t dst, const void *src, bool on,
                                               uint64_t policy)
{
    asm volatile(
        "cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2, %3;" ::"r"(dst),
        "l"(src), "r"(on ? 16 : 0), "l"(policy)
        : "memory");
}

static __device__ __forceinline__ void cp_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* All but the last N groups are there. */
template <int N> static __device__ __forceinline__ void cp_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

#endif
