/* Goal: collectives give every rank the same, right bits under any timing, eagerly and in replays,
 * and a rank that gives up ends the others' waits. Method: a thread a rank, each with a CPU device;
 * sums over numbers of many sizes, so that another order shows; ranks dawdle at random. */
#include <check.h>
#include <math.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/base/rng.h"
#include "engine/base/thread.h"
#include "engine/comm/comm.h"
#include "test/model/gen.h"

enum { N = 1037, ROWS = 5, LD = 41, BYTES = 77, ROUNDS = SANITIZED ? 60 : 400 };

struct side {
    struct thread t;
    struct comm *comm;
    int rounds;    /* that were right */
    int quit_at;   /* poisons before this round; -1: never */
    int ret[3];    /* of calls after the world broke */
    uint64_t word; /* test of `same` */
};

static float value(int round, int rank, int i)
{
    struct rng r = {(uint64_t)round * 7919 + (uint64_t)rank * 104729 + (uint64_t)i};
    double m = (double)rng_below(&r, 1u << 20) / (1 << 20) - 0.5;
    return (float)ldexp(m, (int)rng_below(&r, 30));
}

static void dawdle(struct rng *r)
{
    for (volatile uint64_t i = rng_below(r, 4) ? 0 : rng_below(r, 40000); i; i--)
        continue;
}

struct memory { /* of a rank, one buffer a collective */
    float x[N], grid[ROWS * LD], gone[N];
    unsigned char bytes[BYTES];
};

static void put(struct memory *m, int round, int rank, int world)
{
    int from = LD * rank / world, to = LD * (rank + 1) / world;
    for (int i = 0; i < N; i++) {
        m->x[i] = value(round, rank, i);
        m->gone[i] = 1;
    }
    for (int i = 0; i < ROWS * LD; i++)
        m->grid[i] = i % LD >= from && i % LD < to ? value(round, 0, i) : NAN;
    for (int i = 0; i < BYTES; i++)
        m->bytes[i] = (unsigned char)(rank ? 0xee : round + i);
}

static bool right(const struct memory *m, int round, int world)
{
    bool ok = true;
    for (int i = 0; i < N; i++) {
        float sum = value(round, 0, i);
        for (int k = 1; k < world; k++)
            sum += value(round, k, i);
        ok &= m->x[i] == sum && m->gone[i] == 0;
    }
    for (int i = 0; i < ROWS * LD; i++)
        ok &= m->grid[i] == value(round, 0, i);
    for (int i = 0; i < BYTES; i++)
        ok &= m->bytes[i] == (unsigned char)(round + i);
    return ok;
}

static int collect(struct comm *c, struct dev *d, struct memory *m)
{
    int from = LD * c->rank / c->world, to = LD * (c->rank + 1) / c->world;
    TRY(comm_sum(c, d, m->x, N));
    TRY(c->ops->clear(c, d, m->gone, N));
    TRY(comm_gather(c, d, m->grid, ROWS, LD, from, to - from));
    return comm_bcast(c, d, m->bytes, sizeof m->bytes);
}

static void body(void *ud)
{
    struct side *s = ud;
    struct comm *c = s->comm;
    struct dev *d;
    struct dev_graph *g;
    struct memory *m = MEM_NEW(struct memory);
    struct rng r = {(uint64_t)c->rank + 5};
    CHECK(dev_cpu.open(&d, &(struct dev_conf){.threads = 1}, NULL) == OK);
    CHECK(dev_cpu.record_begin(d, NULL) == OK && collect(c, d, m) == OK);
    CHECK(dev_cpu.record_end(d, &g, NULL) == OK);
    for (int i = 0; i < ROUNDS; i++) {
        if (i == s->quit_at) {
            comm_poison(c);
            break;
        }
        put(m, i, c->rank, c->world);
        dawdle(&r);
        if ((i % 3 ? dev_cpu.replay(d, g, NULL) : collect(c, d, m)) < 0)
            break;
        s->rounds += right(m, i, c->world);
    }
    if (s->rounds < ROUNDS) {
        s->ret[0] = comm_sum(c, d, m->x, N);
        s->ret[1] = comm_bcast(c, d, m->bytes, BYTES);
        s->ret[2] = c->ops->same(c, 1);
    }
    dev_cpu.graph_free(d, g);
    dev_cpu.close(d);
    mem_free(m);
}

static void run(struct side *s, int world, void (*fn)(void *))
{
    struct comm *c[LIM_RANKS];
    ck_assert_int_eq(comm_shm_open(c, world, NULL), OK);
    for (int i = 0; i < world; i++) {
        s[i].comm = c[i];
        ck_assert(c[i]->rank == i && c[i]->world == world);
        thread_start(&s[i].t, "rank", fn, &s[i]);
    }
    for (int i = 0; i < world; i++)
        thread_join(&s[i].t);
    comm_shm_close(c);
}

static const int worlds[] = {2, 3, 5};

START_TEST(same_right_bits)
{
    struct side s[LIM_RANKS] = {0};
    for (int i = 0; i < worlds[_i]; i++)
        s[i].quit_at = -1;
    run(s, worlds[_i], body);
    for (int i = 0; i < worlds[_i]; i++)
        ck_assert_int_eq(s[i].rounds, ROUNDS);
}
END_TEST

START_TEST(a_failed_rank_ends_all)
{
    for (int who = 0; who < 3; who++) {
        struct side s[LIM_RANKS] = {0};
        for (int i = 0; i < 3; i++)
            s[i].quit_at = i == who ? 7 : -1;
        run(s, 3, body);
        for (int i = 0; i < 3; i++) {
            ck_assert_int_eq(s[i].rounds, 7);
            for (int k = 0; k < 3; k++)
                ck_assert_int_eq(s[i].ret[k], E_CANCELED);
        }
    }
}
END_TEST

static void tell(void *ud)
{
    struct side *s = ud;
    s->ret[0] = s->comm->ops->same(s->comm, 5);
    s->ret[1] = s->comm->ops->same(s->comm, s->word);
}

START_TEST(a_different_word_shows)
{
    struct side s[LIM_RANKS] = {{.word = 1}, {.word = 2}, {.word = 1}};
    run(s, 3, tell);
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(s[i].ret[0], OK);
        ck_assert_int_eq(s[i].ret[1], i == 1 ? E_DEVICE : OK);
    }
}
END_TEST

START_TEST(worlds_that_are_none)
{
    struct comm *c[LIM_RANKS];
    struct err e = {0};
    ck_assert_int_eq(comm_shm_open(c, 1, &e), E_INVAL);
    ck_assert_int_eq(comm_shm_open(c, LIM_RANKS + 1, &e), E_INVAL);
    float x = 3;
    ck_assert(comm_world(NULL) == 1 && comm_rank(NULL) == 0);
    ck_assert(comm_sum(NULL, NULL, &x, 1) == OK && comm_bcast(NULL, NULL, &x, 4) == OK && x == 3);
    comm_poison(NULL);
}
END_TEST

Suite *suite_comm(void)
{
    Suite *s = suite_create("comm");
    TCase *c = tcase_create("comm");
    tcase_set_timeout(c, 60);
    tcase_add_loop_test(c, same_right_bits, 0, 3);
    tcase_add_test(c, a_failed_rank_ends_all);
    tcase_add_test(c, a_different_word_shows);
    tcase_add_test(c, worlds_that_are_none);
    suite_add_tcase(s, c);
    return s;
}
