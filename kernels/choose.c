/* The device decision; see the header. Pure. */
#include "kernels/choose.h"

#include <stdlib.h>
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

int dev_ordinal(int *ordinal, const char *want, struct err *e)
{
    char *end = NULL;
    *ordinal = 0;
    if (!want || strncmp(want, "cuda:", 5) != 0)
        return OK;
    const char *n = want + 5;
    long v = *n >= '0' && *n <= '9' ? strtol(n, &end, 10) : -1;
    if (v < 0 || v > 1023 || *end)
        return FAIL(e, E_INVAL, "device '%s': cuda:N needs the number of a GPU", want);
    *ordinal = (int)v;
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
    if (!any && strcmp(want, "cuda") != 0 && strncmp(want, "cuda:", 5) != 0)
        return FAIL(e, E_UNSUPPORTED, "device '%s' does not exist: auto, cpu, cuda, cuda:N", want);
    if (any && !f->built)
        return OK;
    int r = gpu_usable(f, any ? why : e);
    if (r == OK)
        *name = "cuda";
    return any ? OK : r;
}
