/* Fuzz target: one safetensors file. What is accepted must lie inside the file, cover the data part
 * exactly, be found by its name, and be taken only once and only with its own shape. */
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/model/safetensors.h"

int fuzz_safetensors(const uint8_t *data, size_t size);

static void check_tensor(struct tensors *t, const struct tensor *x, const char *from, size_t size)
{
    struct weight w;
    struct err e = {0};
    CHECK((const char *)x->p >= from && (size_t)((const char *)x->p - from) + x->bytes <= size);
    CHECK(tensors_find(t, x->name) == x);
    if (strstr(x->name, "_scale_inv"))
        return; /* taken with its weight */
    if (x->rank == 2 && !x->taken) {
        int r = tensors_take(t, x->name, x->shape[0], x->shape[1], TAKE_FP8, &w, &e);
        CHECK(r == 1 || (r < 0 && e.text[0]));
        if (r == 1)
            CHECK(w.p == x->p && w.n == x->shape[0] && w.k == x->shape[1]);
    } else if (x->rank == 1 && !x->taken) {
        CHECK(tensors_take(t, x->name, 1, x->shape[0] + 1, TAKE_VECTOR, &w, &e) < 0);
    }
}

int fuzz_safetensors(const uint8_t *data, size_t size)
{
    struct err e = {0};
    const char *p = (const char *)data;
    struct tensors *t = tensors_new(size & 1);
    tensors_allow_fp8(t);
    if (tensors_add(t, p, size, "input", &e) == OK) {
        size_t sum = 0, head = 0;
        for (int i = 7; i >= 0; i--)
            head = head << 8 | data[i];
        for (size_t i = 0; i < tensors_count(t); i++) {
            sum += tensors_at(t, i)->bytes;
            check_tensor(t, tensors_at(t, i), p, size);
        }
        CHECK(sum == size - 8 - head);
        (void)tensors_all_taken(t, &e);
        if (tensors_count(t)) /* the same file again: every name is there already */
            CHECK(tensors_add(t, p, size, "again", &e) < 0);
    } else {
        CHECK(e.text[0] && e.code < 0);
    }
    tensors_close(t);
    return 0;
}
