/* Kernels of few lines for heads of 128. */
#include "attention/mma/decode.cuh"

extern "C" const struct mma_kernel *mma_decode_128(int lines)
{
    static const struct mma_kernel k8 = dec_entry<dec_conf<128, 128, 1, 6, 2>>(),
                                   k16 = dec_entry<dec_conf<128, 128, 2, 5, 2>>(),
                                   k24 = dec_entry<dec_conf<128, 128, 3, 5, 2>>(),
                                   k32 = dec_entry<dec_conf<128, 128, 4, 5, 2>>();
    return lines <= 8 ? &k8 : lines <= 16 ? &k16 : lines <= 24 ? &k24 : lines <= 32 ? &k32 : NULL;
}
