/* Goal: the graph pool records every bucket once, finds the smallest that fits, and a replay does
 * exactly what the eager body does on whatever memory holds by then. Method: bodies of two real
 * operations on the CPU device; inputs are changed between replays. */
#include <check.h>
#include <string.h>

#include "engine/graph/graph_pool.h"
#include "kernels/ops.h"

enum { ROWS = 64, DIM = 8 };

struct fixture {
    struct dev *d;
    float *x, *y;
    int recorded;
};

static int body(void *ud, const struct graph_key *k, struct err *e)
{
    struct fixture *f = ud;
    (void)e;
    f->recorded++;
    struct op_add a = {.x = f->x, .y = f->y, .rows = k->rows, .dim = DIM};
    return dev_cpu.ops->add(f->d, &a);
}

START_TEST(buckets)
{
    int b[32];
    int n = graph_buckets(64, b, 32);
    static const int want[] = {1, 2, 4, 8, 16, 24, 32, 48, 64};
    ck_assert_int_eq(n, 9);
    ck_assert(!memcmp(b, want, sizeof want));
    n = graph_buckets(5, b, 32);
    ck_assert_int_eq(n, 4);
    ck_assert_int_eq(b[3], 5);
    ck_assert_int_eq(graph_buckets(1, b, 32), 1);
}
END_TEST

START_TEST(replay_is_eager)
{
    struct fixture f = {0};
    struct err e = {0};
    struct dev_conf c = {.threads = 1};
    ck_assert_int_eq(dev_cpu.open(&f.d, &c, &e), OK);
    void *p;
    ck_assert_int_eq(dev_cpu.alloc(f.d, &p, ROWS * DIM * sizeof(float), DEV_MEM_DEVICE, &e), OK);
    f.x = p;
    ck_assert_int_eq(dev_cpu.alloc(f.d, &p, ROWS * DIM * sizeof(float), DEV_MEM_DEVICE, &e), OK);
    f.y = p;
    struct graph_key keys[16];
    int b[16], n = graph_buckets(ROWS, b, 16);
    for (int i = 0; i < n; i++)
        keys[i] = (struct graph_key){.role = TGT_VERIFY, .reqs = b[i], .rows = b[i]};
    struct graph_pool *pool;
    ck_assert_int_eq(graph_pool_open(&pool, &dev_cpu, f.d, keys, n, body, &f, &e), OK);
    ck_assert_int_eq(f.recorded, n);
    ck_assert_int_eq(graph_pool_count(pool), n);
    dev_cpu.freeze(f.d);
    for (int i = 0; i < ROWS * DIM; i++)
        ck_assert(f.x[i] == 0); /* recording ran nothing */
    struct graph_key want = {.role = TGT_VERIFY, .reqs = 3, .rows = 3};
    const struct graph_key *k = graph_pool_fit(pool, &want);
    ck_assert_ptr_nonnull(k);
    ck_assert_int_eq(k->rows, 4);
    want.role = TGT_PREFILL;
    ck_assert_ptr_null(graph_pool_fit(pool, &want));
    want = (struct graph_key){.role = TGT_VERIFY, .reqs = ROWS + 1, .rows = ROWS + 1};
    ck_assert_ptr_null(graph_pool_fit(pool, &want));
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < ROWS * DIM; i++)
            f.y[i] = (float)(i + round);
        float before[ROWS * DIM];
        memcpy(before, f.x, sizeof before);
        if (round == 1)
            ck_assert_int_eq(graph_pool_eager(pool, k, &e), OK);
        else
            ck_assert_int_eq(graph_pool_replay(pool, k, &e), OK);
        for (int i = 0; i < ROWS * DIM; i++)
            ck_assert(f.x[i] == before[i] + (i < 4 * DIM ? f.y[i] : 0));
    }
    graph_pool_close(pool);
    dev_cpu.free(f.d, f.x);
    dev_cpu.free(f.d, f.y);
    dev_cpu.close(f.d);
}
END_TEST

Suite *suite_graph_pool(void)
{
    Suite *s = suite_create("graph_pool");
    TCase *t = tcase_create("graph_pool");
    tcase_add_test(t, buckets);
    tcase_add_test(t, replay_is_eager);
    suite_add_tcase(s, t);
    return s;
}
