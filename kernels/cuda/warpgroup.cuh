/* Pieces of kernels for sm_90a: barriers in shared memory, products of a warpgroup (PTX ISA,
 * mbarrier and wgmma). Matrices lie in shared memory as columns of 64 bf16 values: rows of 128
 * bytes, 16-byte chunk c of row r at c ^ (r & 7), columns 1024-byte aligned. */
#ifndef SPECD_CUDA_WARPGROUP_CUH
#define SPECD_CUDA_WARPGROUP_CUH

#include <stdint.h>

/* This build has code with them for compute capability sm (ARCH=90a has). */
static inline bool wg_built(int sm)
{
    return SPECD_CUDA_WARPGROUP && sm == 90;
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || !defined(__CUDA_ARCH__)

/* ---- barriers ---- */

static __device__ __forceinline__ uint32_t bar_at(const uint64_t *bar)
{
    return (uint32_t)__cvta_generic_to_shared(bar);
}

static __device__ __forceinline__ void bar_init(uint64_t *bar, int count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar_at(bar)), "r"(count)
                 : "memory");
}

/* Arrives, with so many bytes to come from the copy engine before the barrier turns. */
static __device__ __forceinline__ void bar_expect(uint64_t *bar, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar_at(bar)),
                 "r"(bytes)
                 : "memory");
}

static __device__ __forceinline__ void bar_arrive(uint64_t *bar)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar_at(bar)) : "memory");
}

/* Arrives when the thread's cp.async copies so far are there. */
static __device__ __forceinline__ void bar_arrive_copies(uint64_t *bar)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(bar_at(bar))
                 : "memory");
}

static __device__ __forceinline__ void bar_wait(uint64_t *bar, int parity)
{
    asm volatile("{\n.reg .pred p;\n"
                 "again:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
                 "@!p bra again;\n}" ::"r"(bar_at(bar)),
                 "r"(parity)
                 : "memory");
}

/* `threads` threads of the block that name the same id (1 to 15). */
static __device__ __forceinline__ void bar_group(int id, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* ---- products ---- */

/* An operand whose k values lie in a row. */
static __device__ __forceinline__ uint64_t wg_rows(uint32_t at)
{
    return (uint64_t)((at & 0x3ffff) >> 4) | 1ull << 16 | 64ull << 32 | 1ull << 62;
}

/* An operand whose k values lie in a column (16 rows from `at`); `column`: bytes of 64 values. */
static __device__ __forceinline__ uint64_t wg_cols(uint32_t at, int column)
{
    return (uint64_t)((at & 0x3ffff) >> 4) | (uint64_t)(column >> 4) << 16 | 64ull << 32 |
           1ull << 62;
}

static __device__ __forceinline__ void wg_fence(void)
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

static __device__ __forceinline__ void wg_commit(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int N> static __device__ __forceinline__ void wg_wait(void)
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

/* What threads or cp.async wrote to shared memory becomes visible to products. */
static __device__ __forceinline__ void wg_written(void)
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

template <int N> static __device__ __forceinline__ void wg_regs_less(void)
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

template <int N> static __device__ __forceinline__ void wg_regs_more(void)
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

/* Registers of a product stay where they are across this point. */
template <int N> static __device__ __forceinline__ void wg_hold(float (&d)[N][4])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])::"memory");
}

#define WG_4(d, i) "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])
#define WG_8(d, i) WG_4(d, i), WG_4(d, i + 1)
#define WG_16(d, i) WG_8(d, i), WG_8(d, i + 2)
#define WG_32(d, i) WG_16(d, i), WG_16(d, i + 4)
#define WG_64(d, i) WG_32(d, i), WG_32(d, i + 8)
#define WG_24(d, i) WG_16(d, i), WG_8(d, i + 4)
#define WG_40(d, i) WG_32(d, i), WG_8(d, i + 8)
#define WG_48(d, i) WG_32(d, i), WG_16(d, i + 8)
#define WG_56(d, i) WG_48(d, i), WG_8(d, i + 12)
#define WG_N8 "%0,%1,%2,%3,%4,%5,%6,%7"
#define WG_N16 WG_N8 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define WG_N24 WG_N16 ",%16,%17,%18,%19,%20,%21,%22,%23"
#define WG_N32 WG_N24 ",%24,%25,%26,%27,%28,%29,%30,%31"
#define WG_N40 WG_N32 ",%32,%33,%34,%35,%36,%37,%38,%39"
#define WG_N48 WG_N40 ",%40,%41,%42,%43,%44,%45,%46,%47"
#define WG_N56 WG_N48 ",%48,%49,%50,%51,%52,%53,%54,%55"
#define WG_N64 WG_N56 ",%56,%57,%58,%59,%60,%61,%62,%63"
#define WG_MUL(N, LIST, A, B, ADD, ...)                                                            \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " ADD ", 0;\n"                                  \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" LIST "}, " A ", " B  \
                 ", p, 1, 1, 0, 0;\n}"                                                             \
                 : __VA_ARGS__                                                                     \
                 : "l"(a), "l"(b), "r"(add))

/* d (+)= a b^T of 64 rows, N columns and 16 k; both operands wg_rows. */
template <int N>
static __device__ __forceinline__ void wg_mul(float (&d)[N / 8][4], uint64_t a, uint64_t b, int add)
{
    static_assert(N % 16 == 0 && N <= 128, "width");
    if constexpr (N == 16)
        WG_MUL(16, WG_N8, "%8", "%9", "%10", WG_8(d, 0));
    else if constexpr (N == 32)
        WG_MUL(32, WG_N16, "%16", "%17", "%18", WG_16(d, 0));
    else if constexpr (N == 48)
        WG_MUL(48, WG_N24, "%24", "%25", "%26", WG_24(d, 0));
    else if constexpr (N == 64)
        WG_MUL(64, WG_N32, "%32", "%33", "%34", WG_32(d, 0));
    else if constexpr (N == 80)
        WG_MUL(80, WG_N40, "%40", "%41", "%42", WG_40(d, 0));
    else if constexpr (N == 96)
        WG_MUL(96, WG_N48, "%48", "%49", "%50", WG_48(d, 0));
    else if constexpr (N == 112)
        WG_MUL(112, WG_N56, "%56", "%57", "%58", WG_56(d, 0));
    else
        WG_MUL(128, WG_N64, "%64", "%65", "%66", WG_64(d, 0));
}

#define WG_MUL_REGS(N, LIST, A, B, ADD, ...)                                                       \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " ADD ", 0;\n"                                  \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" LIST "}, {" A        \
                 "}, " B ", p, 1, 1, 0;\n}"                                                        \
                 : __VA_ARGS__                                                                     \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add))

/* The same with a in registers (as mma.m16n8k16 has it). */
template <int N>
static __device__ __forceinline__ void wg_mul_regs(float (&d)[N / 8][4], const uint32_t (&a)[4],
                                                   uint64_t b, int add)
{
    static_assert(N == 16 || N == 32 || N == 64, "width");
    if constexpr (N == 16)
        WG_MUL_REGS(16, WG_N8, "%8,%9,%10,%11", "%12", "%13", WG_8(d, 0));
    else if constexpr (N == 32)
        WG_MUL_REGS(32, WG_N16, "%16,%17,%18,%19", "%20", "%21", WG_16(d, 0));
    else
        WG_MUL_REGS(64, WG_N32, "%32,%33,%34,%35", "%36", "%37", WG_32(d, 0));
}

/* d += a b: a in registers (as mma.m16n8k16 has it), b wg_cols. */
template <int N>
static __device__ __forceinline__ void wg_mul_cols(float (&d)[N / 8][4], const uint32_t (&a)[4],
                                                   uint64_t b)
{
    static_assert(N == 64 || N == 128, "width");
    if constexpr (N == 64)
        asm volatile("{\n.reg .pred p;\nsetp.eq.u32 p, 1, 1;\n"
                     "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" WG_N32
                     "}, {%32,%33,%34,%35}, %36, p, 1, 1, 1;\n}"
                     : WG_32(d, 0)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
    else
        asm volatile("{\n.reg .pred p;\nsetp.eq.u32 p, 1, 1;\n"
                     "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" WG_N64
                     "}, {%64,%65,%66,%67}, %68, p, 1, 1, 1;\n}"
                     : WG_64(d, 0)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

#endif
#endif
