/* Kernels of few lines by head dim; those of heads of 128 have a file of their own. */
#include "attention/mma/decode.cuh"

static const struct mma_kernel *decode_256(int lines)
{
    static const struct mma_kernel k8 = dec_entry<dec_conf<256, 1, 4, 3, 2>>(),
                                   k16 = dec_entry<dec_conf<256, 2, 4, 3, 2>>();
    return lines <= 8 ? &k8 : lines <= 16 ? &k16 : NULL;
}

extern "C" const struct mma_kernel *mma_decode(int qk, int v, int lines, bool alone)
{
    if (qk != v)
        return NULL;
    switch (qk) {
    case 128:
        return mma_decode_128(lines, alone);
    case 256:
        return alone ? NULL : decode_256(lines);
    default:
        return NULL;
    }
}
