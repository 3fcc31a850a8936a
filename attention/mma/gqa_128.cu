/* GQA kernels for heads of 128. */
#include "attention/mma/gqa.cuh"

extern "C" const struct mma_kernel *mma_gqa_128(enum mma_size size)
{
    static const struct mma_kernel k[N_MMA_SIZES] = {
        gqa_entry<gqa_conf<128, 128, 1, 1, 4, 64, 2, true, false, 3>>(),
        gqa_entry<gqa_conf<128, 128, 1, 2, 2, 64, 2, true, false, 2>>(),
        gqa_entry<gqa_conf<128, 128, 1, 4, 1, 64, 2, false, false, 2>>(),
        gqa_entry<gqa_conf<128, 128, 2, 4, 1, 64, 2, false, true, 2>>(),
    };
    return &k[size];
}
