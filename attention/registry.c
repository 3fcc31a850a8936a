/* The attention backends of this build, best first for each device. */
#include "attention/attn.h"
#include "attention/ref/ref.h"

#if HAVE_CUDA
extern const struct attn_backend attn_mma, attn_mma_mla, attn_portable, attn_portable_mla;
#endif

const struct attn_backend *const attn_backends[] = {
    &ref_gqa,  &ref_mla,      &ref_mla_full,
#if HAVE_CUDA
    &attn_mma, &attn_mma_mla, &attn_portable, &attn_portable_mla,
#endif
    NULL,
};
