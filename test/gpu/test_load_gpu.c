/* Goal: what is loaded at start reaches the device byte for byte, whatever the sizes, the order and
 * the number of helpers; too much is refused and leaves the device as it was; a graph that cannot
 * be recorded is named, or its role runs eager with the same results where that is allowed. Method:
 * spans of odd sizes around the size of a piece, copied back through resolved addresses; a body
 * that waits for the device, which no recording can hold. */
#include <check.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/base/rng.h"
#include "engine/graph/graph_pool.h"
#include "kernels/ops.h"

extern const struct dev_ops dev_cuda;

static struct dev *open_gpu(void)
{
    struct dev_conf c = {.threads = 4};
    struct err e = {0};
    struct dev *d;
    ck_assert_msg(dev_cuda.open(&d, &c, &e) == OK, "%s", e.text);
    return d;
}

/* A function of span and place. */
static unsigned char byte_of(size_t i, size_t at)
{
    return (unsigned char)((at * 2654435761u >> 7) + 31 * i + at);
}

static void make(void *ud, size_t i, size_t from, size_t n, void *dst)
{
    (void)ud; /* on a helper's thread: no assertions */
    for (size_t k = 0; k < n && from % 64 == 0; k++)
        ((unsigned char *)dst)[k] = byte_of(i, from + k);
}

static size_t last_done, last_total;

static void progress(void *ud, size_t done, size_t total)
{
    (void)ud;
    ck_assert_uint_ge(done, last_done);
    ck_assert_uint_le(done, total);
    last_done = done;
    last_total = total;
}

static const size_t sizes[] = {3 << 20, 1, 5000001, 64, 2 << 20, (2 << 20) + 1, 777, 9 << 20};

enum { N_SPAN = 8 };

START_TEST(loads)
{
    static const int threads[] = {1, 3, 40};
    struct dev *d = open_gpu();
    struct err e = {0};
    struct dev_span s[N_SPAN];
    unsigned char *host[N_SPAN], *back = mem_alloc(16 << 20);
    int64_t before, after, total;
    for (int i = N_SPAN - 1; i >= 0; i--) { /* host addresses in another order than the list */
        host[i] = mem_alloc(sizes[i]);
        for (size_t k = 0; k < sizes[i]; k++)
            host[i][k] = byte_of(100 + (size_t)i, k);
        s[i] = (struct dev_span){host[i], sizes[i]};
    }
    dev_cuda.memory(d, &before, &total);
    ck_assert(before > 0 && before <= total);
    struct dev_load l = {.span = s, .n = 3, .threads = threads[_i], .progress = progress};
    last_done = last_total = 0;
    ck_assert_msg(dev_cuda.load(d, &l, &e) == OK, "%s", e.text);
    ck_assert_uint_eq(last_done, last_total);
    ck_assert_uint_ge(last_total, sizes[0] + sizes[1] + sizes[2]);
    dev_cuda.memory(d, &after, &total);
    ck_assert_int_lt(after, before);
    l.n = N_SPAN; /* those that are there stay what they are; the others are made */
    l.make = make;
    last_done = 0;
    ck_assert_msg(dev_cuda.load(d, &l, &e) == OK, "%s", e.text);
    for (size_t i = 0; i < N_SPAN; i++) {
        const char *p = dev_cuda.resolve(d, host[i]);
        ck_assert_ptr_eq(dev_cuda.resolve(d, host[i] + sizes[i] - 1), p + sizes[i] - 1);
        ck_assert_uint_eq((uintptr_t)p % 256, 0);
        ck_assert_int_eq(dev_cuda.copy_out(d, back, p, sizes[i], &e), OK);
        size_t bad = 0;
        for (size_t k = 0; k < sizes[i]; k++)
            bad += back[k] != byte_of(i < 3 ? 100 + i : i, k);
        ck_assert_msg(bad == 0, "span %zu: %zu bytes are wrong", i, bad);
    }
    last_done = 0;
    ck_assert_msg(dev_cuda.load(d, &l, &e) == OK, "%s", e.text); /* nothing is left to do */
    dev_cuda.close(d);
    for (int i = 0; i < N_SPAN; i++)
        mem_free(host[i]);
    mem_free(back);
}
END_TEST

START_TEST(too_much)
{
    struct dev *d = open_gpu();
    struct err e = {0};
    static char here[64];
    struct dev_span s = {here, (size_t)1 << 45};
    struct dev_load l = {.span = &s, .n = 1, .threads = 2, .make = make};
    ck_assert_int_eq(dev_cuda.load(d, &l, &e), E_NOMEM);
    ck_assert_msg(strstr(e.text, "35184372088832") != NULL, "%s", e.text);
    s.bytes = sizeof here;
    ck_assert_msg(dev_cuda.load(d, &l, &e) == OK, "%s", e.text);
    dev_cuda.close(d);
}
END_TEST

/* ---- graphs ---- */

enum { DIM = 8, ROWS = 16, BAD_ROWS = 6 };

struct fixture {
    struct dev *d;
    float *x, *y;
};

static int body(void *ud, const struct graph_key *k, struct err *e)
{
    struct fixture *f = ud;
    struct op_add a = {.x = f->x, .y = f->y, .rows = k->rows, .dim = DIM};
    TRY(dev_cuda.ops->add(f->d, &a));
    return k->rows == BAD_ROWS ? dev_cuda.sync(f->d, e) : OK;
}

START_TEST(lost)
{
    static const struct graph_key keys[] = {
        {.role = TGT_VERIFY, .reqs = 1, .rows = 1},
        {.role = TGT_VERIFY, .reqs = 4, .rows = 4},
        {.role = DRF_EXTEND, .variant = 2, .reqs = 2, .rows = BAD_ROWS},
        {.role = DRF_EXTEND, .variant = 2, .reqs = 4, .rows = 12}};
    struct fixture f = {.d = open_gpu()};
    struct err e = {0};
    struct graph_pool *p = NULL;
    float x[ROWS * DIM], y[ROWS * DIM];
    void *mem;
    ck_assert_int_eq(dev_cuda.alloc(f.d, &mem, sizeof x, DEV_MEM_DEVICE, &e), OK);
    f.x = mem;
    ck_assert_int_eq(dev_cuda.alloc(f.d, &mem, sizeof y, DEV_MEM_DEVICE, &e), OK);
    f.y = mem;
    ck_assert_int_lt(graph_pool_open(&p, &dev_cuda, f.d, keys, 4, 0, body, &f, &e), 0);
    ck_assert_msg(strstr(e.text, "--allow-eager extend") && strstr(e.text, "6 rows"), "%s", e.text);
    ck_assert_msg(graph_pool_open(&p, &dev_cuda, f.d, keys, 4, 1u << DRF_EXTEND, body, &f, &e) ==
                      OK,
                  "%s", e.text);
    ck_assert(graph_pool_report(p, DRF_EXTEND)->eager);
    ck_assert_int_eq(graph_pool_report(p, TGT_VERIFY)->n, 2);
    for (int i = 0; i < 4; i++) {
        for (int j = 0; j < ROWS * DIM; j++) {
            x[j] = 1;
            y[j] = (float)j;
        }
        ck_assert_int_eq(dev_cuda.copy_in(f.d, f.x, x, sizeof x, &e), OK);
        ck_assert_int_eq(dev_cuda.copy_in(f.d, f.y, y, sizeof y, &e), OK);
        const struct graph_key *k = graph_pool_fit(p, &keys[i]);
        ck_assert_ptr_nonnull(k);
        ck_assert_msg(graph_pool_replay(p, k, &e) == OK, "%s", e.text);
        ck_assert_msg(dev_cuda.copy_out(f.d, x, f.x, sizeof x, &e) == OK, "%s", e.text);
        int bad = 0;
        for (int j = 0; j < ROWS * DIM; j++)
            bad += x[j] != 1 + (j < k->rows * DIM ? y[j] : 0);
        ck_assert_int_eq(bad, 0);
    }
    graph_pool_close(p);
    dev_cuda.free(f.d, f.x);
    dev_cuda.free(f.d, f.y);
    dev_cuda.close(f.d);
}
END_TEST

Suite *suite_gpu_load(void);
Suite *suite_gpu_load(void)
{
    Suite *s = suite_create("gpu_load");
    TCase *t = tcase_create("load");
    tcase_add_loop_test(t, loads, 0, 3);
    tcase_add_test(t, too_much);
    suite_add_tcase(s, t);
    t = tcase_create("graphs");
    tcase_add_test(t, lost);
    suite_add_tcase(s, t);
    return s;
}
