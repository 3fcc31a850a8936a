/* Latent kernels for 576 / 512. */
#include "attention/mma/mla.cuh"

extern "C" const struct mma_kernel *mma_latent(enum mma_size size)
{
    static const struct mma_kernel k[N_MMA_SIZES] = {
        mla_entry<mla_conf<1, 64, true, false>>(),
        mla_entry<mla_conf<2, 64, false, false>>(),
        mla_entry<mla_conf<4, 32, false, false>>(),
        mla_entry<mla_conf<4, 32, false, true>>(),
    };
    return &k[size];
}
