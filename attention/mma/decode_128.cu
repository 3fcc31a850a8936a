/* Kernels of few lines for heads of 128. */
#include "attention/mma/decode.cuh"

template <int W, int S1, int S2, int S3, int S4, int BLOCKS>
static const struct mma_kernel *decode_128(int lines)
{
    static const struct mma_kernel k[] = {
        dec_entry<dec_conf<128, 1, W, S1, BLOCKS>>(), dec_entry<dec_conf<128, 2, W, S2, BLOCKS>>(),
        dec_entry<dec_conf<128, 3, W, S3, BLOCKS>>(), dec_entry<dec_conf<128, 4, W, S4, BLOCKS>>()};
    return lines <= 32 ? &k[(lines - 1) / 8] : NULL;
}

extern "C" const struct mma_kernel *mma_decode_128(int lines, bool alone)
{
    return alone ? decode_128<8, 6, 5, 5, 4, 1>(lines) : decode_128<4, 6, 5, 5, 4, 2>(lines);
}
