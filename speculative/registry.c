/* The list of algorithms; a new one is a line here. */
#include <string.h>

#include "speculative/algos.h"

const struct spec_algo *const spec_algos[] = {
    &spec_off, &spec_mtp, &spec_eagle3, &spec_draft_model, &spec_ngram, NULL,
};

const struct spec_algo *spec_find(const char *name)
{
    for (int i = 0; spec_algos[i]; i++)
        if (!strcmp(spec_algos[i]->name, name))
            return spec_algos[i];
    return NULL;
}
