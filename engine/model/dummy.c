/* Reserving and filling generated weights; see the header. Start-up only: the thread that places
 * the model, and helpers of its own that end before it goes on. */
#include "engine/model/dummy.h"

#include <errno.h>
#include <math.h>
#include <string.h>
#include <sys/mman.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/base/rng.h"
#include "engine/base/thread.h"

enum { THREADS_MAX = 64, BLOCK = 1 << 20 };
#define CHUNK ((size_t)256 << 20)
/* fp8 elements are spread over half their range, so that they are dense on both sides of zero. */
#define FP8_AMP 224.0f

struct chunk {
    char *p;
    size_t bytes, used;
};

struct dummy {
    struct chunk *v;
    size_t n, cap;
    int n_layer;
};

struct dummy *dummy_new(int n_layer)
{
    struct dummy *d = MEM_NEW(struct dummy);
    d->n_layer = n_layer > 0 ? n_layer : 1;
    return d;
}

void dummy_free(struct dummy *d)
{
    if (!d)
        return;
    for (size_t i = 0; i < d->n; i++)
        munmap(d->v[i].p, d->v[i].bytes);
    mem_free(d->v);
    mem_free(d);
}

int dummy_reserve(struct dummy *d, void **out, size_t bytes, struct err *e)
{
    bytes = (bytes + 63) & ~(size_t)63;
    struct chunk *c = d->n ? &d->v[d->n - 1] : NULL;
    if (!c || c->bytes - c->used < bytes) { /* chunks: a mapping a tensor would be too many */
        size_t want = bytes > CHUNK ? bytes : CHUNK;
        void *p = mmap(NULL, want, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p == MAP_FAILED)
            return FAIL(e, E_NOMEM, "%zu bytes of generated weights cannot be reserved: %s", want,
                        strerror(errno));
        MEM_GROW(d->v, d->cap, d->n + 1);
        c = &d->v[d->n++];
        *c = (struct chunk){.p = p, .bytes = want};
    }
    *out = c->p + c->used;
    c->used += bytes;
    return OK;
}

/* ---- bounds ---- */

static bool ends(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n >= m && !strcmp(s + n - m, end);
}

static float product_amp(const struct dummy *d, const char *name, int64_t fan_in)
{
    double dev = 1.2 / sqrt((double)fan_in);
    if (ends(name, "o_proj.weight") || ends(name, "down_proj.weight"))
        dev /= sqrt(2.0 * d->n_layer);
    if (ends(name, "embed_tokens.weight"))
        dev = 1;
    return (float)(dev * sqrt(3.0)); /* deviation of a uniform value: amplitude / sqrt(3) */
}

void dummy_bounds(const struct dummy *d, struct tensor *x, const char *product, int64_t fan_in)
{
    if (product)
        x->lo = x->hi = product_amp(d, product, fan_in) / FP8_AMP;
    else if (x->rank == 1)
        x->lo = x->hi = ends(x->name, "bias") ? 0 : 1;
    else
        x->lo = -(x->hi = x->dt == DT_F8E4M3 ? FP8_AMP : product_amp(d, x->name, fan_in));
}

/* ---- values ---- */

static uint16_t to_bf16(float v)
{
    uint32_t u;
    memcpy(&u, &v, sizeof u);
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1)) >> 16);
}

static uint8_t to_fp8(float v)
{
    float a = fabsf(v);
    int exp;
    float frac = frexpf(a, &exp); /* a = frac 2^exp, frac in [0.5, 1) */
    if (exp - 1 < -6)             /* steps of 2^-9 below the smallest normal */
        return (uint8_t)((v < 0) << 7 | (int)lrintf(a * 512));
    int m = (int)lrintf(frac * 16) + ((exp - 1 + 7) << 3) - 8; /* a carry moves the exponent */
    return (uint8_t)((v < 0) << 7 | m);
}

struct work {
    const struct tensor *v;
    size_t n;
    size_t next; /* atomic: blocks given out */
    uint8_t fp8[256];
};

static float spread(const struct tensor *x, uint32_t r, float steps)
{
    return x->lo + (x->hi - x->lo) * (((float)r + 0.5f) / steps);
}

/* Elements [from, to) of x; the noise is a function of name and block. */
static void fill_block(const struct work *w, const struct tensor *x, size_t from, size_t to)
{
    struct rng g = {.s = 0xcbf29ce484222325ull + from};
    for (const char *s = x->name; *s; s++)
        g.s = (g.s ^ (unsigned char)*s) * 0x100000001b3ull;
    char *p = (char *)(size_t)x->p;
    if (x->dt == DT_F32) {
        for (size_t i = from; i < to; i++)
            ((float *)p)[i] = spread(x, (uint32_t)(rng_u64(&g) >> 48), 65536);
    } else if (x->dt == DT_F8E4M3) {
        for (size_t i = from; i < to;)
            for (uint64_t r = rng_u64(&g), k = 0; k < 8 && i < to; k++, r >>= 8)
                p[i++] = (char)w->fp8[r & 255];
    } else {
        CHECK(x->dt == DT_BF16);
        for (size_t i = from; i < to;)
            for (uint64_t r = rng_u64(&g), k = 0; k < 4 && i < to; k++, r >>= 16)
                ((uint16_t *)p)[i++] = to_bf16(spread(x, (uint32_t)(r & 65535), 65536));
    }
}

static size_t elements(const struct tensor *x)
{
    return x->used && !x->made ? x->bytes / dtype_size(x->dt) : 0;
}

/* Every thread walks the list and fills the blocks whose number it draws. */
static void run(void *ud)
{
    struct work *w = ud;
    size_t mine = __atomic_fetch_add(&w->next, 1, __ATOMIC_RELAXED), at = 0;
    for (size_t i = 0; i < w->n; i++) {
        size_t n = elements(&w->v[i]), blocks = (n + BLOCK - 1) / BLOCK;
        for (; mine < at + blocks; mine = __atomic_fetch_add(&w->next, 1, __ATOMIC_RELAXED)) {
            size_t from = (mine - at) * BLOCK;
            fill_block(w, &w->v[i], from, n - from < BLOCK ? n : from + BLOCK);
        }
        at += blocks;
    }
}

void dummy_fill(const struct tensor *v, size_t n, int threads)
{
    struct work w = {.v = v, .n = n};
    struct thread t[THREADS_MAX] = {0};
    const struct tensor byte = {.lo = -FP8_AMP, .hi = FP8_AMP};
    for (uint32_t i = 0; i < 256; i++)
        w.fp8[i] = to_fp8(spread(&byte, i, 256));
    int more = threads > THREADS_MAX ? THREADS_MAX - 1 : threads - 1;
    for (int i = 0; i < more; i++)
        thread_start(&t[i], "weights", run, &w);
    run(&w);
    for (int i = 0; i < more; i++)
        thread_join(&t[i]);
}
