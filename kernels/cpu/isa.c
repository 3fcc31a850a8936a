/* Which instruction sets this build has and this machine can run. Pure functions. */
#include "kernels/cpu/internal.h"

#include <string.h>

#include "engine/base/check.h"

const struct cpu_isa *const cpu_isa_list[] = {&cpu_isa_avx512, &cpu_isa_avx2, &cpu_isa_scalar,
                                              NULL};

const struct cpu_isa *cpu_isa_best(void)
{
    for (int i = 0; cpu_isa_list[i]; i++)
        if (cpu_isa_list[i]->usable && cpu_isa_list[i]->usable())
            return cpu_isa_list[i];
    CHECK(!"the scalar form is always usable");
    return NULL;
}

float cpu_dot(const float *x, const float *w, int k)
{
    /* __builtin_cpu_supports reads a table filled before main */
    return cpu_isa_best()->dot(x, w, k);
}

void cpu_weight_vec(const struct cpu_isa *isa, float *dst, const struct weight *w, int64_t from,
                    int n)
{
    switch (w->dt) {
    case DT_F32:
        memcpy(dst, (const float *)w->p + from, (size_t)n * sizeof(float));
        return;
    case DT_BF16:
        isa->cvt_bf16(dst, (const uint16_t *)w->p + from, n);
        return;
    case DT_F16:
        isa->cvt_f16(dst, (const uint16_t *)w->p + from, n);
        return;
    case DT_F8E4M3: /* blocks of 128 elements share a scale */
        for (int i = 0; i < n;) {
            int64_t row = (from + i) / w->k, col = (from + i) % w->k;
            int run = (int)(128 - col % 128);
            run = run < n - i ? run : n - i;
            run = run < (int)(w->k - col) ? run : (int)(w->k - col);
            float s =
                dtype_load(w->scale, w->scale_dt, row / 128 * ((w->k + 127) / 128) + col / 128);
            isa->cvt_f8(dst + i, (const uint8_t *)w->p + from + i, run, s);
            i += run;
        }
        return;
    case DT_NONE:
    case DT_I32:
    case DT_I64:
    case DT_U8:
    case DT_COUNT:
        break;
    }
    CHECK(!"weight type is a number of f32, bf16, f16 or f8e4m3");
}

void cpu_weight_row(const struct cpu_isa *isa, float *dst, const struct weight *w, int64_t i)
{
    cpu_weight_vec(isa, dst, w, i * w->k, (int)w->k);
}
