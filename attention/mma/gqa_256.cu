/* GQA kernels for heads of 192 with values of 128, and of 256. */
#include "attention/mma/gqa.cuh"

extern "C" const struct mma_kernel *mma_gqa_192(enum mma_size size)
{
    static const struct mma_kernel k[N_MMA_SIZES] = {
        gqa_entry<gqa_conf<192, 128, 1, 1, 4, 64, 2, true, false, 2>>(),
        gqa_entry<gqa_conf<192, 128, 1, 2, 2, 64, 2, true, false, 2>>(),
        gqa_entry<gqa_conf<192, 128, 1, 4, 1, 64, 2, false, false, 2>>(),
        gqa_entry<gqa_conf<192, 128, 1, 4, 1, 64, 2, false, true, 2>>(),
    };
    return &k[size];
}

extern "C" const struct mma_kernel *mma_gqa_256(enum mma_size size)
{
    static const struct mma_kernel k[N_MMA_SIZES] = {
        gqa_entry<gqa_conf<256, 256, 1, 1, 2, 32, 2, true, false, 2>>(),
        gqa_entry<gqa_conf<256, 256, 1, 2, 1, 32, 2, true, false, 2>>(),
        gqa_entry<gqa_conf<256, 256, 1, 4, 1, 32, 2, false, false, 2>>(),
        gqa_entry<gqa_conf<256, 256, 1, 4, 1, 32, 2, false, true, 2>>(),
    };
    return &k[size];
}
