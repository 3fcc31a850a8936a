/* Prefill kernels for GPUs with warpgroup products. */
#include "attention/mma/wide.cuh"

extern "C" const struct mma_kernel *mma_wide(int qk, int v)
{
    static const struct mma_kernel k64 = wide_entry<wide_conf<64, 64, 128>>();
    static const struct mma_kernel k128 = wide_entry<wide_conf<128, 128, 128>>();
    static const struct mma_kernel k192 = wide_entry<wide_conf<192, 128, 128>>();
    if (v == 64)
        return qk == 64 ? &k64 : NULL;
    return v != 128 ? NULL : qk == 128 ? &k128 : qk == 192 ? &k192 : NULL;
}
