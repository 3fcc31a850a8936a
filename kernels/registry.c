/* The devices of this build. The only place that knows whether CUDA was built in. */
#include <string.h>

#include "kernels/choose.h"
#include "kernels/device.h"

#if HAVE_CUDA
extern const struct dev_ops dev_cuda;
void cuda_facts(struct gpu_facts *out); /* of out->ordinal */
const struct dev_ops *const dev_list[] = {&dev_cuda, &dev_cpu, NULL};
#else
const struct dev_ops *const dev_list[] = {&dev_cpu, NULL};
#endif

void dev_facts(struct gpu_facts *out, int ordinal)
{
    *out = (struct gpu_facts){.ordinal = ordinal};
#if HAVE_CUDA
    cuda_facts(out);
#endif
}

const struct dev_ops *dev_find(const char *name)
{
    for (int i = 0; dev_list[i]; i++)
        if (strcmp(dev_list[i]->name, name) == 0)
            return dev_list[i];
    return NULL;
}
