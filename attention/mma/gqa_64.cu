/* GQA kernels for heads of 64, 80 and 96. */
#include "attention/mma/gqa.cuh"

extern "C" const struct mma_kernel *mma_gqa_64(enum mma_size size)
{
    static const struct mma_kernel k[N_MMA_SIZES] = {
        gqa_entry<gqa_conf<64, 64, 1, 1, 4, 64, 2, true, false, 3>>(),
        gqa_entry<gqa_conf<64, 64, 1, 2, 2, 64, 2, true, false, 2>>(),
        gqa_entry<gqa_conf<64, 64, 1, 4, 1, 64, 2, false, false, 2>>(),
        gqa_entry<gqa_conf<64, 64, 2, 4, 1, 64, 2, false, true, 2>>(),
    };
    return &k[size];
}

extern "C" const struct mma_kernel *mma_gqa_80(enum mma_size size)
{
    static const struct mma_kernel k[N_MMA_SIZES] = {
        gqa_entry<gqa_conf<80, 80, 1, 1, 4, 64, 2, true, false, 3>>(),
        gqa_entry<gqa_conf<80, 80, 1, 2, 2, 64, 2, true, false, 2>>(),
        gqa_entry<gqa_conf<80, 80, 1, 4, 1, 64, 2, false, false, 2>>(),
        gqa_entry<gqa_conf<80, 80, 2, 4, 1, 64, 2, false, true, 2>>(),
    };
    return &k[size];
}

extern "C" const struct mma_kernel *mma_gqa_96(enum mma_size size)
{
    static const struct mma_kernel k[N_MMA_SIZES] = {
        gqa_entry<gqa_conf<96, 96, 1, 1, 4, 64, 2, true, false, 3>>(),
        gqa_entry<gqa_conf<96, 96, 1, 2, 2, 64, 2, true, false, 2>>(),
        gqa_entry<gqa_conf<96, 96, 1, 4, 1, 64, 2, false, false, 2>>(),
        gqa_entry<gqa_conf<96, 96, 2, 4, 1, 64, 2, false, true, 2>>(),
    };
    return &k[size];
}
