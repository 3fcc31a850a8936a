/* See twin.h. */
#include "test/gpu/twin.h"

#include <stdlib.h>

#include "engine/base/mem.h"

#define MUST(call) ck_assert_msg((call) == OK, "%s: %s", #call, e.text)

bool twin_small(void)
{
    return getenv("GPU_SMALL") != NULL;
}

void twins_open(struct twins *t)
{
    struct err e = {0};
    struct dev_conf c = {.threads = 4};
    *t = (struct twins){.rng = {42}};
    MUST(dev_cpu.open(&t->cpu, &c, &e));
    MUST(dev_cuda.open(&t->gpu, &c, &e));
}

void twins_drop(struct twins *t, int first)
{
    while (t->n > first) {
        t->n--;
        dev_cpu.free(t->cpu, t->all[t->n].p[SIDE_CPU]);
        dev_cuda.free(t->gpu, t->all[t->n].p[SIDE_GPU]);
    }
}

void twins_close(struct twins *t)
{
    twins_drop(t, 0);
    dev_cpu.close(t->cpu);
    dev_cuda.close(t->gpu);
}

struct twin *twin_new(struct twins *t, size_t bytes)
{
    struct err e = {0};
    ck_assert_int_lt(t->n, TWINS_MAX);
    struct twin *w = &t->all[t->n++];
    w->bytes = bytes;
    MUST(dev_cpu.alloc(t->cpu, &w->p[SIDE_CPU], bytes, DEV_MEM_DEVICE, &e));
    MUST(dev_cuda.alloc(t->gpu, &w->p[SIDE_GPU], bytes, DEV_MEM_DEVICE, &e));
    return w;
}

void twin_push(struct twins *t, struct twin *w)
{
    struct err e = {0};
    MUST(dev_cuda.copy_in(t->gpu, w->p[SIDE_GPU], w->p[SIDE_CPU], w->bytes, &e));
    MUST(dev_cuda.sync(t->gpu, &e));
}

struct twin *twin_rand(struct twins *t, size_t n, float scale)
{
    struct twin *w = twin_new(t, n * sizeof(float));
    float *f = w->p[SIDE_CPU];
    for (size_t i = 0; i < n; i++)
        f[i] = scale * (float)rng_normal(&t->rng);
    twin_push(t, w);
    return w;
}

struct twin *twin_nans(struct twins *t, size_t n)
{
    struct twin *w = twin_new(t, n * sizeof(float));
    for (size_t i = 0; i < n; i++)
        ((float *)w->p[0])[i] = NAN;
    twin_push(t, w);
    return w;
}

struct twin *twin_ints(struct twins *t, const int32_t *v, size_t n)
{
    struct twin *w = twin_new(t, n * sizeof *v);
    memcpy(w->p[0], v, n * sizeof *v);
    twin_push(t, w);
    return w;
}

float twin_near(struct twins *t, const struct twin *w, size_t n, float abs, float rel,
                const char *what)
{
    struct err e = {0};
    float *g = mem_alloc(n * sizeof *g);
    const float *c = w->p[SIDE_CPU];
    MUST(dev_cuda.copy_out(t->gpu, g, w->p[SIDE_GPU], n * sizeof *g, &e));
    float worst = 0;
    size_t bad = n; /* asserted once: an assertion writes to a file */
    for (size_t i = 0; i < n && bad == n; i++) {
        if (isnan(c[i]) || isinf(c[i])) {
            bad = (isnan(c[i]) && isnan(g[i])) || c[i] == g[i] ? bad : i;
            continue;
        }
        float d = fabsf(g[i] - c[i]);
        bad = d <= abs + rel * fabsf(c[i]) ? bad : i;
        worst = d > worst ? d : worst;
    }
    ck_assert_msg(bad == n, "%s [%zu]: %g, want %g", what, bad, (double)g[bad < n ? bad : 0],
                  (double)c[bad < n ? bad : 0]);
    mem_free(g);
    return worst;
}

void twin_same(struct twins *t, const struct twin *w, size_t bytes, const char *what)
{
    struct err e = {0};
    unsigned char *g = mem_alloc(bytes), *c = w->p[SIDE_CPU];
    MUST(dev_cuda.copy_out(t->gpu, g, w->p[SIDE_GPU], bytes, &e));
    size_t i = 0;
    while (i < bytes && g[i] == c[i])
        i++;
    ck_assert_msg(i == bytes, "%s: byte %zu differs", what, i);
    mem_free(g);
}

/* A prime: a large weight repeats itself, nowhere at the same place of a row or a tile. */
enum { PERIOD = 1000003 };

struct weight twin_weight(struct twins *t, enum dtype dt, int64_t n, int64_t k, float scale)
{
    struct err e = {0};
    size_t count = (size_t)(n * k), size = dtype_size(dt), drawn = count;
    struct weight w = {.dt = dt, .n = n, .k = k};
    char *p = twin_new(t, count * size)->p[SIDE_CPU]; /* its host side lives as long */
    if (drawn > PERIOD)
        drawn = PERIOD;
    for (size_t i = 0; i < drawn; i++) {
        float f = scale * (float)rng_normal(&t->rng);
        if (dt == DT_F32)
            ((float *)(void *)p)[i] = f;
        else if (dt == DT_BF16)
            ((uint16_t *)(void *)p)[i] = dtype_f32_to_bf16(f);
        else
            ((uint8_t *)p)[i] = (uint8_t)(rng_below(&t->rng, 2) << 7 | rng_below(&t->rng, 0x70));
    }
    for (size_t i = drawn; i < count; i++)
        memcpy(p + i * size, p + (i - PERIOD) * size, size);
    w.p = p;
    MUST(dev_cuda.mirror(t->gpu, p, count * size, &e));
    if (dt == DT_F8E4M3) {
        size_t blocks = (size_t)((n + 127) / 128 * ((k + 127) / 128));
        float *s = twin_new(t, blocks * sizeof *s)->p[SIDE_CPU];
        for (size_t i = 0; i < blocks; i++)
            s[i] = scale * (0.005f + 0.01f * (float)rng_unit(&t->rng));
        w.scale = s;
        w.scale_dt = DT_F32;
        MUST(dev_cuda.mirror(t->gpu, s, blocks * sizeof *s, &e));
    }
    return w;
}
