/* Latent kernels for 576 / 512 over fp8 caches. */
#include "attention/mma/mla.cuh"

extern "C" const struct mma_kernel *mma_latent_fp8(enum mma_size size)
{
    static const struct mma_kernel none = {}, few = mla_entry<mla_conf<1, 64, true, false, true>>(),
                                   more = mla_entry<mla_conf<2, 64, false, false, true>>(),
                                   many = mla_entry<mla_conf<4, 32, false, false, true>>(),
                                   prefill = mla_entry<mla_conf<4, 32, false, true, true>>();
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
