/* The attention backends of this build, best first for each device. */
#include "attention/attn.h"
#include "attention/ref/ref.h"

const struct attn_backend *const attn_backends[] = {&ref_gqa, &ref_mla, &ref_mla_full, NULL};
