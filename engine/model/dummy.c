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

enum { THREADS_MAX = 64, BLOCK = 1 << 20, DRAWS = 256 };
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

/* The values of the 256 draws that an fp8 element is made from; made once, by any thread. */
static uint8_t fp8_value[256];
static pthread_once_t fp8_once = PTHREAD_ONCE_INIT;

static float spread(float lo, float hi, uint32_t r, float steps)
{
    return lo + (hi - lo) * (((float)r + 0.5f) / steps);
}

static void make_fp8(void)
{
    for (uint32_t i = 0; i < 256; i++)
        fp8_value[i] = to_fp8(spread(-FP8_AMP, FP8_AMP, i, 256));
}

/* A draw makes 8 bytes of elements; a float takes one of its own. */
static size_t per_draw(enum dtype dt)
{
    return dt == DT_F32 ? 1 : 8 / dtype_size(dt);
}

/* At most 4 DRAWS elements. Draws first, then the arithmetic: both loops are plain enough for the
 * compiler to make vectors of. */
static void fill_bf16(struct rng *g, float lo, float hi, size_t n, uint16_t *out)
{
    uint64_t draw[DRAWS];
    uint16_t part[4 * DRAWS];
    const uint64_t s = g->s;
    size_t m = (n + 3) / 4;
    for (size_t k = 0; k < m; k++) {
        struct rng at = {.s = s + k * RNG_STEP};
        draw[k] = rng_u64(&at);
    }
    g->s = s + m * RNG_STEP;
    memcpy(part, draw, m * sizeof *draw); /* the low 16 bits of a draw first */
    for (size_t k = 0; k < n; k++)
        out[k] = to_bf16(spread(lo, hi, part[k], 65536));
}

/* Elements [i, i + n) of a block whose noise is s, i a multiple of per_draw: draw k is a function
 * of s and k alone (rng.h: the state advances by a constant), so that any part can be made. */
static void fill_part(const struct tensor *x, uint64_t s, size_t i, size_t n, char *p)
{
    struct rng g = {.s = s + i / per_draw(x->dt) * RNG_STEP};
    const float lo = x->lo, hi = x->hi;
    if (x->dt == DT_F32) {
        float *f = (float *)(void *)p;
        for (size_t k = 0; k < n; k++)
            f[k] = spread(lo, hi, (uint32_t)(rng_u64(&g) >> 48), 65536);
    } else if (x->dt == DT_F8E4M3) {
        for (size_t k = 0; k < n;)
            for (uint64_t r = rng_u64(&g), j = 0; j < 8 && k < n; j++, r >>= 8)
                p[k++] = (char)fp8_value[r & 255];
    } else {
        CHECK(x->dt == DT_BF16);
        for (size_t k = 0; k < n; k += 4 * DRAWS, p += 8 * DRAWS) {
            size_t m = n - k < 4 * DRAWS ? n - k : 4 * DRAWS;
            fill_bf16(&g, lo, hi, m, (uint16_t *)(void *)p);
        }
    }
}

void dummy_make(const struct tensor *x, size_t from, size_t n, void *dst)
{
    size_t size = dtype_size(x->dt), i = from / size, end = i + n / size;
    CHECK(from % 64 == 0 && n % size == 0);
    CHECK(pthread_once(&fp8_once, make_fp8) == 0);
    for (char *p = dst; i < end;) { /* noise is a function of name and block */
        size_t block = i & ~(size_t)(BLOCK - 1), stop = block + BLOCK < end ? block + BLOCK : end;
        uint64_t name = 0xcbf29ce484222325ull + block;
        for (const char *s = x->name; *s; s++)
            name = (name ^ (unsigned char)*s) * 0x100000001b3ull;
        fill_part(x, name, i - block, stop - i, p);
        p += (stop - i) * size;
        i = stop;
    }
}

struct work {
    const struct tensor *v;
    size_t n;
    bool small;
    size_t next; /* atomic: blocks given out */
};

static size_t elements(const struct work *w, const struct tensor *x)
{
    bool due = x->used && !x->made && (!w->small || x->rank == 1);
    return due ? x->bytes / dtype_size(x->dt) : 0;
}

/* Every thread walks the list and fills the blocks whose number it draws. */
static void run(void *ud)
{
    struct work *w = ud;
    size_t mine = __atomic_fetch_add(&w->next, 1, __ATOMIC_RELAXED), at = 0;
    for (size_t i = 0; i < w->n; i++) {
        const struct tensor *x = &w->v[i];
        size_t n = elements(w, x), blocks = (n + BLOCK - 1) / BLOCK, size = dtype_size(x->dt);
        for (; mine < at + blocks; mine = __atomic_fetch_add(&w->next, 1, __ATOMIC_RELAXED)) {
            size_t from = (mine - at) * BLOCK, count = n - from < BLOCK ? n - from : BLOCK;
            dummy_make(x, from * size, count * size, (char *)(size_t)x->p + from * size);
        }
        at += blocks;
    }
}

void dummy_fill(const struct tensor *v, size_t n, bool small, int threads)
{
    struct work w = {.v = v, .n = n, .small = small};
    struct thread t[THREADS_MAX] = {0};
    int more = threads > THREADS_MAX ? THREADS_MAX - 1 : threads - 1;
    for (int i = 0; i < more && !small; i++)
        thread_start(&t[i], "weights", run, &w);
    run(&w);
    for (int i = 0; i < more; i++)
        thread_join(&t[i]);
}
