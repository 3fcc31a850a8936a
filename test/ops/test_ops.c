/* Goal: every operation of OP_LIST keeps its contract on the CPU device. Method: walk the list;
 * each word has a case function (case_*.c) that compares with an oracle in double where there is
 * arithmetic, and runs the call on every instruction set, one and two threads, eagerly and
 * replayed, asking for equal bits. */
#include "test/ops/util.h"

#include <string.h>

#include "engine/base/check.h"

static const struct {
    const char *name;
    void (*run)(const struct t_devs *t, struct rng *r);
} g_cases[] = {
#define ENTRY(name) {#name, case_##name},
    OP_LIST(ENTRY)
#undef ENTRY
};

START_TEST(contract)
{
    struct t_devs t;
    struct rng r = {(uint64_t)_i + 77};
    t_open(&t);
    int64_t before = dev_cpu.counts(t.d[0])->launches + dev_cpu.counts(t.d[0])->replays;
    g_cases[_i].run(&t, &r);
    /* a case that ran nothing would pass silently */
    ck_assert_msg(dev_cpu.counts(t.d[0])->launches + dev_cpu.counts(t.d[0])->replays > before,
                  "case %s ran nothing", g_cases[_i].name);
    t_close(&t);
}
END_TEST

START_TEST(table_is_full)
{
    for (int i = 0; dev_list[i]; i++) {
        const char *p = (const char *)dev_list[i]->ops;
        for (size_t k = 0; k < offsetof(struct op_table, about) / sizeof(void (*)(void)); k++) {
            void (*f)(void);
            memcpy(&f, p + k * sizeof f, sizeof f);
            ck_assert_msg(f != NULL, "device %s lacks operation %zu", dev_list[i]->name, k);
        }
        ck_assert_ptr_eq(dev_find(dev_list[i]->name), dev_list[i]);
    }
    ck_assert_ptr_null(dev_find("no such device"));
}
END_TEST

Suite *suite_ops(void);
Suite *suite_ops(void)
{
    Suite *s = suite_create("ops");
    TCase *t = tcase_create("contract");
    tcase_set_timeout(t, 120);
    tcase_add_loop_test(t, contract, 0, ARRAY_LEN(g_cases));
    tcase_add_test(t, table_is_full);
    suite_add_tcase(s, t);
    return s;
}
