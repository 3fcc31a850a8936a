/* placeholder */
#include "engine/model/family.h"
const struct family family_deepseek = {.name = "deepseek",
                                       .archs = (const char *const[]){NULL},
                                       .model_types = (const char *const[]){NULL}};
