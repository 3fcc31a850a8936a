/* Row ranges and column copies of weights; see the header. Does not know which weights are divided:
 * the families' takers say so. */
#include "engine/model/shard.h"

#include <string.h>

#include "engine/base/mem.h"
#include "engine/model/dummy.h"

enum { BLOCK = 128 }; /* of fp8 scales, both ways */

/* The part of `n` rows or columns, and that it is whole blocks. */
static int part(int64_t *out, int64_t n, const struct weight *w, const struct comm *c,
                const char *what, const char *name, struct err *e)
{
    if (n % c->world)
        return FAIL(e, E_UNSUPPORTED, "tensor '%s': %lld %s cannot be divided over %d ranks", name,
                    (long long)n, what, c->world);
    *out = n / c->world;
    if (w->scale && *out % BLOCK)
        return FAIL(e, E_UNSUPPORTED,
                    "tensor '%s': %lld %s over %d ranks are %lld each, which is not a multiple of "
                    "the %d of an fp8 scale block",
                    name, (long long)n, what, c->world, (long long)*out, BLOCK);
    return OK;
}

int shard_rows(struct weight *w, const struct comm *c, const char *name, struct err *e)
{
    bool vec = w->n == 1;
    int64_t n = 0;
    if (!w->p)
        return OK;
    TRY(part(&n, vec ? w->k : w->n, w, c, vec ? "elements" : "rows", name, e));
    int64_t at = n * c->rank;
    w->p = (const char *)w->p + (size_t)(vec ? at : at * w->k) * dtype_size(w->dt);
    if (w->scale)
        w->scale = (const char *)w->scale +
                   (size_t)(at / BLOCK * ((w->k + BLOCK - 1) / BLOCK)) * dtype_size(w->scale_dt);
    *(vec ? &w->k : &w->n) = n;
    return OK;
}

/* Columns [at, at + n) of rows of `k` elements. */
static int add(struct shards *s, const void **p, enum dtype dt, int64_t rows, int64_t k, int64_t at,
               int64_t n, size_t tensor, struct err *e)
{
    size_t size = dtype_size(dt);
    struct shard x = {.src = (const char *)*p + (size_t)at * size,
                      .rows = (size_t)rows,
                      .bytes = (size_t)n * size,
                      .stride = (size_t)k * size,
                      .tensor = tensor};
    void *dst;
    if (!s->mem)
        s->mem = dummy_new(1);
    TRY(dummy_reserve(s->mem, &dst, mem_mul(x.rows, x.bytes), e));
    x.dst = dst;
    MEM_GROW(s->v, s->cap, s->n + 1);
    s->v[s->n++] = x;
    *p = dst;
    return OK;
}

int shard_cols(struct shards *s, struct weight *w, const struct comm *c, size_t tensor,
               const char *name, struct err *e)
{
    int64_t n = 0;
    TRY(part(&n, w->k, w, c, "columns", name, e));
    TRY(add(s, &w->p, w->dt, w->n, w->k, n * c->rank, n, tensor, e));
    if (w->scale)
        TRY(add(s, &w->scale, w->scale_dt, (w->n + BLOCK - 1) / BLOCK, (w->k + BLOCK - 1) / BLOCK,
                n / BLOCK * c->rank, n / BLOCK, tensor, e));
    w->k = n;
    return OK;
}

void shard_fill(struct shards *s, const struct tensor *tensors)
{
    for (size_t i = 0; i < s->n; i++) {
        struct shard *x = &s->v[i];
        if (x->made || !tensors[x->tensor].used)
            continue;
        for (size_t r = 0; r < x->rows; r++)
            memcpy(x->dst + r * x->bytes, x->src + r * x->stride, x->bytes);
        x->made = true;
    }
}

size_t shard_bytes(const struct shards *s, const struct tensor *tensors)
{
    size_t n = 0;
    for (size_t i = 0; i < s->n; i++)
        if (tensors[s->v[i].tensor].used)
            n += s->v[i].rows * s->v[i].bytes;
    return n;
}

void shard_done(struct shards *s)
{
    dummy_free(s->mem);
    mem_free(s->v);
    *s = (struct shards){0};
}
