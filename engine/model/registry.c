/* The families this build serves; a new one is a line here and a file beside it. */
#include "engine/model/family.h"

const struct family *const families[] = {
    &family_llama, &family_qwen2, &family_qwen3, &family_qwen3_moe, &family_deepseek, NULL,
};
const struct family *const drafters[] = {&family_eagle3, NULL};
