/* The device decision; see the header. Pure. */
#include "kernels/choose.h"

#include <string.h>

int gpu_usable(const struct gpu_facts *f, struct err *e)
{
    if (!f->built)
        return FAIL(e, E_UNSUPPORTED, "cuda: not part of this build (make with nvcc, or CUDA=1)");
    if (!f->driver)
        return FAIL(e, E_UNSUPPORTED, "cuda: no NVIDIA driver is installed");
    if (f->driver / 1000 < f->toolkit / 1000)
        return FAIL(e, E_UNSUPPORTED,
                    "cuda: the driver is for CUDA %d.%d, this build needs one for %d.0 or newer",
                    f->driver / 1000, f->driver % 1000 / 10, f->toolkit / 1000);
    if (f->fault)
        return FAIL(e, E_UNSUPPORTED, "cuda: no usable GPU (%s)", f->fault);
    if (f->count < 1)
        return FAIL(e, E_UNSUPPORTED, "cuda: the driver finds no GPU");
    if (f->ordinal < 0 || f->ordinal >= f->count)
        return FAIL(e, E_INVAL, "cuda: GPU %d does not exist, there are %d", f->ordinal, f->count);
    if (f->sm < GPU_SM_MIN)
        return FAIL(e, E_UNSUPPORTED, "cuda: GPU %d is sm_%d, the kernels need sm_%d or newer",
                    f->ordinal, f->sm, GPU_SM_MIN);
    return OK;
}

int dev_decide(const char **name, const char *want, const struct gpu_facts *f, struct err *why,
               struct err *e)
{
    bool any = !want || !strcmp(want, "auto");
    *why = (struct err){0};
    *name = "cpu";
    if (!any && !strcmp(want, "cpu"))
        return OK;
    if (!any && strcmp(want, "cuda") != 0)
        return FAIL(e, E_UNSUPPORTED, "device '%s' does not exist: auto, cpu, cuda", want);
    if (any && !f->built)
        return OK;
    int r = gpu_usable(f, any ? why : e);
    if (r == OK)
        *name = "cuda";
    return any ? OK : r;
}
