/* GQA kernels over fp8 caches, heads of 64 and 128. Four stages are the bytes of two of bf16. */
#include "attention/mma/gqa.cuh"

template <int D> static const struct mma_kernel *sized(enum mma_size size)
{
    static const struct mma_kernel
        none = {},
        few = gqa_entry<gqa_conf<D, D, 1, 1, 4, 64, 4, true, false, 3, true>>(),
        more = gqa_entry<gqa_conf<D, D, 1, 2, 2, 64, 4, true, false, 2, true>>(),
        many = gqa_entry<gqa_conf<D, D, 1, 4, 1, 64, 4, false, false, 2, true>>(),
        prefill = gqa_entry<gqa_conf<D, D, 2, 4, 1, 64, 4, false, true, 2, true>>();
    switch (size) {
    case MMA_16:
        return &few;
    case MMA_32:
        return &more;
    case MMA_64:
        return &many;
    case MMA_PREFILL:
        return &prefill;
    case N_MMA_SIZES:
        break;
    }
    return &none;
}

extern "C" const struct mma_kernel *mma_gqa_64_fp8(enum mma_size size)
{
    return sized<64>(size);
}

extern "C" const struct mma_kernel *mma_gqa_128_fp8(enum mma_size size)
{
    return sized<128>(size);
}
