/* Goal: the graph pool records every bucket once, finds the smallest that fits, and a replay does
 * exactly what the eager body does on whatever memory holds by then; a lost graph is an error that
 * names what is lost, or the role runs eager where that is allowed. Method: bodies of two real
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
        keys[i] = (struct graph_key){.role = TGT_VERIFY, .reqs = b[i], .rows = b[i], .qlen = 2};
    keys[n++] = (struct graph_key){.role = TGT_VERIFY, .reqs = 4, .rows = 4, .qlen = 1};
    keys[n++] = (struct graph_key){.role = TGT_VERIFY, .reqs = 2, .rows = 4, .qlen = 2};
    struct graph_pool *pool;
    ck_assert_int_eq(graph_pool_open(&pool, &dev_cpu, f.d, keys, n, 0, body, &f, &e), OK);
    ck_assert_int_eq(f.recorded, n);
    ck_assert_int_eq(graph_pool_count(pool), n);
    dev_cpu.freeze(f.d);
    for (int i = 0; i < ROWS * DIM; i++)
        ck_assert(f.x[i] == 0); /* recording ran nothing */
    struct graph_key want = {.role = TGT_VERIFY, .reqs = 3, .rows = 3};
    const struct graph_key *k = graph_pool_fit(pool, &want);
    ck_assert_ptr_nonnull(k);
    ck_assert(k->rows == 4 && k->reqs == 4 && k->qlen == 1);
    want.qlen = 2;
    k = graph_pool_fit(pool, &want);
    ck_assert(k->rows == 4 && k->reqs == 4 && k->qlen == 2);
    want.reqs = 2; /* fewer requests of as many rows */
    k = graph_pool_fit(pool, &want);
    ck_assert(k->rows == 4 && k->reqs == 2);
    want.qlen = 3;
    ck_assert_ptr_null(graph_pool_fit(pool, &want));
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

/* ---- lost graphs: a device whose recordings of some rows fail at their end ---- */

static int bad_rows; /* recordings of so many rows fail */
static int last_rows;

static int failing_end(struct dev *d, struct dev_graph **out, struct err *e)
{
    struct dev_graph *g = NULL;
    int r = dev_cpu.record_end(d, &g, e);
    if (r < 0 || last_rows != bad_rows) {
        *out = g;
        return r;
    }
    dev_cpu.graph_free(d, g);
    return FAIL(e, E_DEVICE, "no recording today");
}

static int counting_body(void *ud, const struct graph_key *k, struct err *e)
{
    last_rows = k->rows;
    return body(ud, k, e);
}

static int body_fails(void *ud, const struct graph_key *k, struct err *e)
{
    return k->rows == bad_rows ? FAIL(e, E_DEVICE, "the body gave up") : body(ud, k, e);
}

enum { LOST_END, LOST_BODY, N_LOST };

START_TEST(lost)
{
    struct fixture f = {0};
    struct err e = {0};
    struct dev_conf c = {.threads = 1};
    struct dev_ops ops = dev_cpu;
    graph_body *b = _i == LOST_BODY ? body_fails : counting_body;
    if (_i == LOST_END)
        ops.record_end = failing_end;
    ck_assert_int_eq(dev_cpu.open(&f.d, &c, &e), OK);
    void *p;
    ck_assert_int_eq(dev_cpu.alloc(f.d, &p, 16 * DIM * sizeof(float), DEV_MEM_DEVICE, &e), OK);
    f.x = p;
    ck_assert_int_eq(dev_cpu.alloc(f.d, &p, 16 * DIM * sizeof(float), DEV_MEM_DEVICE, &e), OK);
    f.y = p;
    static const struct graph_key keys[] = {
        {.role = TGT_VERIFY, .reqs = 1, .rows = 1},
        {.role = TGT_VERIFY, .reqs = 4, .rows = 4},
        {.role = DRF_EXTEND, .variant = 2, .reqs = 2, .rows = 6},
        {.role = DRF_EXTEND, .variant = 2, .reqs = 4, .rows = 12}};
    struct graph_pool *pool = NULL;
    bad_rows = 6;
    static const unsigned not_it[] = {0, 1u << TGT_VERIFY};
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(graph_pool_open(&pool, &ops, f.d, keys, 4, not_it[i], b, &f, &e),
                         E_DEVICE);
        ck_assert_ptr_null(pool);
        static const char *const words[] = {"extend", "2 requests", "6 rows", "depth 2",
                                            "--allow-eager extend"};
        for (size_t k = 0; k < sizeof words / sizeof *words; k++)
            ck_assert_msg(strstr(e.text, words[k]) != NULL, "%s", e.text);
        ck_assert_msg(strstr(e.text, _i == LOST_BODY ? "gave up" : "no recording") != NULL, "%s",
                      e.text);
    }
    /* allowed: the whole role runs eager, the other one keeps its graphs */
    ck_assert_int_eq(graph_pool_open(&pool, &ops, f.d, keys, 4, 1u << DRF_EXTEND, b, &f, &e), OK);
    dev_cpu.freeze(f.d);
    ck_assert(graph_pool_report(pool, DRF_EXTEND)->eager);
    ck_assert_int_eq(graph_pool_report(pool, DRF_EXTEND)->n, 0);
    ck_assert_msg(strstr(graph_pool_report(pool, DRF_EXTEND)->why.text, "6 rows") != NULL, "why");
    ck_assert(!graph_pool_report(pool, TGT_VERIFY)->eager);
    ck_assert_int_eq(graph_pool_report(pool, TGT_VERIFY)->n, 2);
    for (int i = 0; i < 4; i++) {
        const struct graph_key *k = graph_pool_fit(pool, &keys[i]);
        ck_assert_ptr_nonnull(k);
        for (int j = 0; j < 16 * DIM; j++) {
            f.x[j] = 1;
            f.y[j] = (float)j;
        }
        bad_rows = -1;
        int runs = f.recorded;
        ck_assert_int_eq(graph_pool_replay(pool, k, &e), OK);
        ck_assert_int_eq(f.recorded - runs, k->role == DRF_EXTEND);
        for (int j = 0; j < 16 * DIM; j++)
            ck_assert(f.x[j] == 1 + (j < k->rows * DIM ? f.y[j] : 0));
    }
    graph_pool_close(pool);
    dev_cpu.free(f.d, f.x);
    dev_cpu.free(f.d, f.y);
    dev_cpu.close(f.d);
}
END_TEST

START_TEST(role_names)
{
    struct err e = {0};
    enum role r;
    ck_assert_int_eq(graph_role_find(&r, "verify", &e), OK);
    ck_assert_int_eq(r, TGT_VERIFY);
    ck_assert_int_eq(graph_role_find(&r, "extend", &e), OK);
    ck_assert_int_eq(r, DRF_EXTEND);
    ck_assert_int_eq(graph_role_find(&r, "prefill", &e), E_INVAL);
    ck_assert_msg(strstr(e.text, "prefill") && strstr(e.text, "verify"), "%s", e.text);
}
END_TEST

Suite *suite_graph_pool(void)
{
    Suite *s = suite_create("graph_pool");
    TCase *t = tcase_create("graph_pool");
    tcase_add_test(t, buckets);
    tcase_add_test(t, replay_is_eager);
    tcase_add_loop_test(t, lost, 0, N_LOST);
    tcase_add_test(t, role_names);
    suite_add_tcase(s, t);
    return s;
}
