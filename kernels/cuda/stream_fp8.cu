/* fp8 forms of the weight-streaming product (stream.cuh). */
#include "kernels/cuda/stream.cuh"

extern "C" {
#include "engine/base/check.h"
}

/* Measured on an H200: many warps with whole lines each and a shallow ring beat few warps with a
 * deep one, and two tiles at a time beat one or four. */
int stream_fp8(struct dev *d, const struct stream_args *a)
{
    if (a->placed)
        return a->narrow ? stream_launch<2, 2, 1, 3, 16, 1, X_BF16, true, true>(d, a)
               : a->norm ? stream_launch<2, 1, 1, 3, 16, 1, X_NORM, true, true>(d, a)
                         : stream_launch<2, 1, 1, 3, 16, 1, X_F32, true, true>(d, a);
    if (a->narrow)
        return stream_launch<2, 2, 1, 3, 16, 1, X_BF16, true>(d, a);
    CHECK(a->rows <= 8);
    return a->norm ? stream_launch<2, 1, 1, 3, 16, 1, X_NORM, true>(d, a)
                   : stream_launch<2, 1, 1, 3, 16, 1, X_F32, true>(d, a);
}
