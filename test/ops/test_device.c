/* Goal: the device contract of kernels/device.h on the CPU: memory, counters, recording, and the
 * thread pool under many small jobs. Method: direct calls; CHECK failures by signal. */
#include <check.h>
#include <math.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/base/rng.h"
#include "kernels/cpu/internal.h"
#include "test/sanitize.h"

static struct dev *open_dev(int threads)
{
    struct dev_conf c = {0, threads};
    struct err e = {0};
    struct dev *d;
    ck_assert_msg(dev_cpu.open(&d, &c, &e) == OK, "%s", e.text);
    return d;
}

START_TEST(open_refuses)
{
    struct err e = {0};
    struct dev *d = NULL;
    ck_assert_int_eq(dev_cpu.open(&d, &(struct dev_conf){1, 1}, &e), E_INVAL);
    ck_assert_int_eq(dev_cpu.open(&d, &(struct dev_conf){0, 0}, &e), E_INVAL);
    ck_assert_int_eq(dev_cpu.open(&d, &(struct dev_conf){0, 100000}, &e), E_INVAL);
    ck_assert_ptr_nonnull(strstr(e.text, "100000"));
    ck_assert_ptr_null(d);
}
END_TEST

START_TEST(memory)
{
    long live = mem_live();
    struct dev *d = open_dev(2);
    struct err e = {0};
    static const size_t sizes[] = {0, 1, 63, 4096, 5 << 20};
    void *p[5];
    for (int i = 0; i < 5; i++) {
        ck_assert_int_eq(dev_cpu.alloc(d, &p[i], sizes[i], (enum dev_mem)(i & 1), &e), OK);
        ck_assert_uint_eq((uintptr_t)p[i] % 64, 0);
        int set = 0;
        for (size_t k = 0; k < sizes[i]; k++)
            set |= ((char *)p[i])[k];
        ck_assert_int_eq(set, 0);
        memset(p[i], 1, sizes[i]);
    }
    void *none = NULL;
    ck_assert_int_eq(dev_cpu.alloc(d, &none, (size_t)1 << 60, DEV_MEM_DEVICE, &e), E_NOMEM);
    ck_assert_ptr_null(none);
    ck_assert_int_eq(dev_cpu.counts(d)->allocs, 6);
    char out[3] = {0};
    ck_assert_int_eq(dev_cpu.copy_in(d, p[3], "abc", 3, &e), OK);
    ck_assert_int_eq(dev_cpu.counts(d)->host_reads, 0);
    ck_assert_int_eq(dev_cpu.copy_out(d, out, p[3], 3, &e), OK);
    ck_assert_int_eq(memcmp(out, "abc", 3), 0);
    ck_assert_int_eq(dev_cpu.counts(d)->host_reads, 1);
    ck_assert_int_eq(dev_cpu.sync(d, &e), OK);
    ck_assert_int_eq(dev_cpu.counts(d)->syncs, 1);
    dev_cpu.free(d, NULL);
    for (int i = 4; i >= 0; i--)
        dev_cpu.free(d, p[i]);
    dev_cpu.close(d);
    dev_cpu.close(NULL);
    ck_assert_int_eq(mem_live(), live);
}
END_TEST

START_TEST(frozen)
{
    struct dev *d = open_dev(1);
    void *p;
    dev_cpu.freeze(d);
    dev_cpu.alloc(d, &p, 64, DEV_MEM_DEVICE, NULL); /* aborts */
}
END_TEST

START_TEST(close_with_memory)
{
    struct dev *d = open_dev(1);
    void *p;
    ck_assert_int_eq(dev_cpu.alloc(d, &p, 64, DEV_MEM_DEVICE, NULL), OK);
    dev_cpu.close(d); /* aborts */
}
END_TEST

START_TEST(recording)
{
    struct dev *d = open_dev(2);
    struct err e = {0};
    struct dev_graph *g = NULL;
    float x[4] = {1, 2, 3, 4}, y[4] = {1, 1, 1, 1};
    ck_assert_int_eq(dev_cpu.record_end(d, &g, &e), E_INVAL);
    ck_assert_int_eq(dev_cpu.record_begin(d, &e), OK);
    ck_assert_int_eq(dev_cpu.record_begin(d, &e), E_INVAL);
    {
        struct op_add a = {x, y, 1, 4};
        ck_assert_int_eq(dev_cpu.ops->add(d, &a), OK);
        a.y = x; /* the recorded copy keeps the old one */
        ck_assert_int_eq(dev_cpu.ops->add(d, &a), OK);
        memset(&a, 0xff, sizeof a);
    }
    ck_assert_float_eq(x[0], 1); /* kept, not run */
    ck_assert_int_eq(dev_cpu.record_end(d, &g, &e), OK);
    ck_assert_int_eq(dev_cpu.counts(d)->launches, 0);
    for (int i = 1; i <= 3; i++) {
        ck_assert_int_eq(dev_cpu.replay(d, g, &e), OK);
        ck_assert_int_eq(dev_cpu.counts(d)->replays, i);
    }
    /* x -> (x + y) * 2 three times, on whatever lies there */
    ck_assert_float_eq(x[0], 22);
    y[0] = 5;
    ck_assert_int_eq(dev_cpu.replay(d, g, &e), OK);
    ck_assert_float_eq(x[0], 54);
    ck_assert_int_eq(dev_cpu.counts(d)->launches, 0);
    ck_assert_int_eq(dev_cpu.counts(d)->allocs, 0);
    ck_assert_int_eq(dev_cpu.counts(d)->host_reads, 0);
    dev_cpu.graph_free(d, NULL);
    dev_cpu.graph_free(d, g);
    dev_cpu.close(d);
}
END_TEST

struct tally {
    int n;
    _Atomic int hits[3000];
};

static void tally_hit(void *ud, int i)
{
    struct tally *t = ud;
    CHECK(i >= 0 && i < t->n);
    atomic_fetch_add(&t->hits[i], 1);
}

/* Each index exactly once, whatever the number of threads (more than cores too). */
START_TEST(pool)
{
    static const int threads[] = {1, 2, 3, 8};
    for (int k = 0; k < 4; k++) {
        struct dev *d = open_dev(threads[k]);
        ck_assert_int_eq(cpu_threads(d), threads[k]);
        struct tally *t = MEM_NEW(struct tally);
        for (int round = 0; round < 300; round++) {
            t->n = round % 7 == 0 ? round * 10 : round % 23;
            cpu_parallel(d, t->n, tally_hit, t);
            int wrong = 0;
            for (int i = 0; i < t->n; i++)
                wrong += atomic_exchange(&t->hits[i], 0) != 1;
            ck_assert_int_eq(wrong, 0);
        }
        mem_free(t);
        dev_cpu.close(d);
    }
}
END_TEST

START_TEST(dtypes)
{
    ck_assert_uint_eq(dtype_size(DT_BF16), 2);
    ck_assert_uint_eq(dtype_size(DT_F8E4M3), 1);
    ck_assert_uint_eq(dtype_size((enum dtype)99), 0);
    for (int i = 0; i < DT_COUNT; i++)
        ck_assert_ptr_nonnull(dtype_name((enum dtype)i));
    /* all bf16 values survive; halves and ties round to even */
    for (uint32_t h = 0; h < 65536; h++) {
        float f = dtype_bf16_to_f32((uint16_t)h);
        if (f == f && dtype_f32_to_bf16(f) == h)
            continue;
        if (f == f)
            ck_assert_uint_eq(dtype_f32_to_bf16(f), h);
        else
            ck_assert(dtype_bf16_to_f32(dtype_f32_to_bf16(f)) !=
                      dtype_bf16_to_f32(dtype_f32_to_bf16(f)));
    }
    ck_assert_uint_eq(dtype_f32_to_bf16(1.0f + 0x1p-8f), 0x3f80); /* tie to even */
    ck_assert_uint_eq(dtype_f32_to_bf16(1.0f + 3 * 0x1p-8f), 0x3f82);
    ck_assert_uint_eq(dtype_f32_to_bf16(1.0f + 0x1.1p-8f), 0x3f81);
    ck_assert_float_eq(dtype_f16_to_f32(0x3c00), 1);
    ck_assert_float_eq(dtype_f16_to_f32(0x0001), 0x1p-24f);
    ck_assert_float_eq(dtype_f16_to_f32(0x83ff), -0x1.ff8p-15f);
    ck_assert_float_eq(dtype_f16_to_f32(0x7bff), 65504);
    ck_assert_float_infinite(dtype_f16_to_f32(0xfc00));
    ck_assert_float_nan(dtype_f16_to_f32(0x7e00));
    ck_assert_float_eq(dtype_f8e4m3_to_f32(0x7e), 448);
    ck_assert_float_eq(dtype_f8e4m3_to_f32(0x01), 0x1p-9f);
    ck_assert_float_eq(dtype_f8e4m3_to_f32(0x88), -0x1p-6f);
    ck_assert_float_nan(dtype_f8e4m3_to_f32(0xff));
    ck_assert_float_nan(dtype_load("\0\0\0\0", DT_I32, 0));
}
END_TEST

/* fp32 to e4m3 against the nearest of all codes, ties to the even one: on every bf16 value, on
 * every value halfway between two codes and the floats beside it, and on random bits. */
static void f8_check(float f)
{
    uint8_t got = dtype_f32_to_f8e4m3(f);
    if (f != f) {
        ck_assert_uint_eq(got, 0x7f);
        return;
    }
    double best = INFINITY, x = fabs((double)f) > 448 ? 448 : fabs((double)f);
    int want = -1;
    for (int c = 0; c < 0x7f; c++) {
        double d = fabs((double)dtype_f8e4m3_to_f32((uint8_t)c) - x);
        if (d < best || (d == best && c % 2 == 0)) {
            best = d;
            want = c;
        }
    }
    ck_assert_msg(got == (want | (signbit(f) ? 0x80 : 0)), "%a: %#x, not %#x", (double)f, got,
                  want);
}

START_TEST(to_f8)
{
    struct rng r = {5};
    for (uint32_t h = 0; h < 65536; h += 1 + 6 * SANITIZED)
        f8_check(dtype_bf16_to_f32((uint16_t)h));
    for (int c = 0; c < 0x7e; c++) {
        float a = dtype_f8e4m3_to_f32((uint8_t)c), b = dtype_f8e4m3_to_f32((uint8_t)(c + 1));
        float mid = (a + b) / 2;
        float all[] = {a, b, mid, nextafterf(mid, 0), nextafterf(mid, 1000)};
        for (size_t i = 0; i < ARRAY_LEN(all); i++) {
            f8_check(all[i]);
            f8_check(-all[i]);
        }
        ck_assert_uint_eq(dtype_f32_to_f8e4m3(a), c);
    }
    for (int i = 0; i < 50000; i++) {
        uint32_t u = (uint32_t)rng_u64(&r);
        if (i % 2) /* around the range */
            u = (u & 0x807fffffu) | (110 + (u >> 23 & 31)) << 23;
        float f;
        memcpy(&f, &u, 4);
        f8_check(f);
    }
    ck_assert_uint_eq(dtype_f32_to_f8e4m3(INFINITY), 0x7e);
    ck_assert_uint_eq(dtype_f32_to_f8e4m3(-INFINITY), 0xfe);
    ck_assert_uint_eq(dtype_f32_to_f8e4m3(-0.0f), 0x80);
    uint8_t one = 0;
    dtype_store(&one, DT_F8E4M3, 0, -1.0f);
    ck_assert_float_eq(dtype_load(&one, DT_F8E4M3, 0), -1);
}
END_TEST

/* Vector conversions equal the scalar definitions, for every bit pattern. */
START_TEST(conversions)
{
    uint16_t *h = mem_alloc(65536 * sizeof *h);
    float *got = mem_alloc(65536 * sizeof *got);
    uint8_t b[256];
    for (int i = 0; i < 65536; i++)
        h[i] = (uint16_t)i;
    for (int i = 0; i < 256; i++)
        b[i] = (uint8_t)i;
    for (int k = 0; cpu_isa_list[k]; k++) {
        const struct cpu_isa *isa = cpu_isa_list[k];
        if (!isa->usable || !isa->usable())
            continue;
        for (int n = 65529; n < 65536; n += 3) { /* with tails */
            int wrong = 0;
            isa->cvt_f16(got, h, n);
            for (int i = 0; i < n; i++) {
                float want = dtype_f16_to_f32(h[i]);
                wrong += want != want ? got[i] == got[i] : memcmp(&want, &got[i], 4) != 0;
            }
            isa->cvt_bf16(got, h, n);
            for (int i = 0; i < n; i++) {
                float want = dtype_bf16_to_f32(h[i]);
                wrong += memcmp(&want, &got[i], 4) != 0;
            }
            ck_assert_int_eq(wrong, 0);
        }
        isa->cvt_f8(got, b, 256, 0.37f);
        for (int i = 0; i < 256; i++) {
            float want = dtype_f8e4m3_to_f32(b[i]) * 0.37f;
            ck_assert(want != want ? got[i] != got[i] : memcmp(&want, &got[i], 4) == 0);
        }
    }
    mem_free(h);
    mem_free(got);
}
END_TEST

Suite *suite_device(void);
Suite *suite_device(void)
{
    Suite *s = suite_create("device");
    TCase *t = tcase_create("device");
    tcase_set_timeout(t, 60);
    tcase_add_test(t, open_refuses);
    tcase_add_test(t, memory);
    tcase_add_test_raise_signal(t, frozen, SIGABRT);
    tcase_add_test_raise_signal(t, close_with_memory, SIGABRT);
    tcase_add_test(t, recording);
    tcase_add_test(t, pool);
    tcase_add_test(t, dtypes);
    tcase_add_test(t, to_f8);
    tcase_add_test(t, conversions);
    suite_add_tcase(s, t);
    return s;
}
