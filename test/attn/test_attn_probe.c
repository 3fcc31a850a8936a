/* Goal: the probe of a backend passes the references in every role and mask they serve, and catches
 * a backend that is wrong in one of the ways such code goes wrong: a key too few, a page table read
 * wrongly, a mask or window left out, NaN. Method: the CPU references as they are, and behind a
 * run() that spoils its call. */
#include <check.h>
#include <math.h>
#include <string.h>

#include "attention/probe.h"
#include "engine/base/check.h"
#include "engine/base/mem.h"

enum { ROWS = 256 };

static struct dev *open_cpu(void)
{
    struct dev_conf c = {.threads = 2};
    struct err e = {0};
    struct dev *d;
    ck_assert_msg(dev_cpu.open(&d, &c, &e) == OK, "%s", e.text);
    return d;
}

static const struct attn_need needs[] = {
    {.role = TGT_PREFILL,
     .kind = ATTN_GQA,
     .mask = MASK_RANGE,
     .kv_type = DT_F32,
     .page = 16,
     .n_head = 4,
     .n_kv = 2,
     .dims = {64, 64},
     .cp = 1},
    {.role = TGT_VERIFY,
     .kind = ATTN_GQA,
     .mask = MASK_RANGE,
     .kv_type = DT_F32,
     .page = 64,
     .n_head = 6,
     .n_kv = 2,
     .dims = {64, 64},
     .q_len_max = 1,
     .cp = 1},
    {.role = TGT_VERIFY,
     .kind = ATTN_GQA,
     .mask = MASK_TREE,
     .kv_type = DT_F32,
     .page = 16,
     .n_head = 4,
     .n_kv = 4,
     .dims = {80, 80},
     .q_len_max = 12,
     .cp = 1},
    {.role = TGT_PREFILL,
     .kind = ATTN_GQA,
     .mask = MASK_RANGE,
     .kv_type = DT_F32,
     .page = 16,
     .n_head = 4,
     .n_kv = 2,
     .dims = {64, 64},
     .window = 24,
     .cp = 1},
    {.role = TGT_VERIFY,
     .kind = ATTN_GQA,
     .mask = MASK_TREE,
     .kv_type = DT_F32,
     .page = 16,
     .n_head = 4,
     .n_kv = 4,
     .dims = {80, 80},
     .q_len_max = 8,
     .window = 30,
     .cp = 1,
     .sinks = true,
     .soft_cap = true},
    {.role = DRF_BLOCK,
     .kind = ATTN_GQA,
     .mask = MASK_BLOCK,
     .kv_type = DT_F32,
     .page = 16,
     .n_head = 4,
     .n_kv = 2,
     .dims = {64, 64},
     .q_len_max = 7,
     .cp = 1},
    {.role = TGT_VERIFY,
     .kind = ATTN_MLA_ABSORBED,
     .mask = MASK_TREE,
     .kv_type = DT_F32,
     .page = 16,
     .n_head = 4,
     .n_kv = 1,
     .dims = {80, 64},
     .q_len_max = 64,
     .cp = 1},
    {.role = DRF_PREFILL,
     .kind = ATTN_MLA_ABSORBED,
     .mask = MASK_RANGE,
     .kv_type = DT_F32,
     .page = 64,
     .n_head = 4,
     .n_kv = 1,
     .dims = {80, 64},
     .cp = 1},
    {.role = TGT_VERIFY,
     .kind = ATTN_GQA,
     .mask = MASK_TREE,
     .kv_type = DT_F8E4M3,
     .page = 16,
     .n_head = 4,
     .n_kv = 2,
     .dims = {64, 64},
     .q_len_max = 9,
     .window = 30,
     .cp = 1,
     .sinks = true},
    {.role = TGT_PREFILL,
     .kind = ATTN_MLA_ABSORBED,
     .mask = MASK_RANGE,
     .kv_type = DT_F8E4M3,
     .page = 16,
     .n_head = 4,
     .n_kv = 1,
     .dims = {80, 64},
     .cp = 1},
    {.role = TGT_PREFILL,
     .kind = ATTN_GQA,
     .mask = MASK_RANGE,
     .kv_type = DT_BF16,
     .page = 16,
     .n_head = 4,
     .n_kv = 2,
     .dims = {64, 64},
     .cp = 1},
};

START_TEST(references)
{
    long live = mem_live();
    struct dev *d = open_cpu(), *ref = open_cpu();
    struct err e = {0};
    const struct attn_backend *b;
    float worst = -1;
    ck_assert_msg(attn_select(&b, "cpu", &needs[_i], NULL, &e) == OK, "%s", e.text);
    ck_assert_msg(attn_probe(&dev_cpu, d, b, &needs[_i], ref, &worst, &e) == OK, "%s", e.text);
    ck_assert_msg(worst >= 0 && worst < 1e-5f, "%g", (double)worst);
    dev_cpu.close(d);
    dev_cpu.close(ref);
    ck_assert_int_eq(mem_live(), live);
}
END_TEST

/* ---- spoiled runs ---- */

enum spoil {
    FEW_KEYS,
    WRONG_PAGE,
    NO_TREE,
    NO_WINDOW,
    NO_SINKS,
    NO_K_SCALE,
    NO_V_SCALE,
    A_NAN,
    N_SPOILS
};

static enum spoil spoil;
static const struct attn_backend *honest;

static int spoiled_run(struct attn *a, const struct attn_call *c, struct err *e)
{
    struct attn_call x = *c;
    int32_t last[ROWS], first[ROWS] = {0}, *table = NULL;
    ck_assert_int_le(c->rows, ROWS);
    for (int r = 0; r < c->rows; r++)
        last[r] = c->last[r] - (c->last[r] > 1);
    if (spoil == FEW_KEYS)
        x.last = last;
    if (spoil == NO_WINDOW)
        x.first = first;
    if (spoil == NO_SINKS)
        x.sinks = NULL;
    if (spoil == NO_K_SCALE)
        x.k_scale = 1;
    if (spoil == NO_V_SCALE)
        x.v_scale = 1;
    if (spoil == NO_TREE) { /* every earlier row is seen */
        uint64_t *anc = MEM_ARRAY(uint64_t, c->rows);
        for (int r = 0; r < c->rows; r++)
            anc[r] = ~0ull;
        x.ancestors = anc;
    }
    if (spoil == WRONG_PAGE) {
        table = mem_dup(c->table, 4 * (size_t)c->pages_max * sizeof *table);
        int32_t *row = table + 3 * c->pages_max; /* the request with 161 cached tokens */
        row[161 / c->page - 1] = row[161 / c->page - 2];
        x.table = table;
    }
    int r = honest->run(a, &x, e);
    if (spoil == A_NAN)
        c->out[7] = NAN;
    if (x.ancestors != c->ancestors)
        mem_free((void *)(size_t)x.ancestors);
    mem_free(table);
    return r;
}

static const struct {
    enum spoil how;
    size_t need;
} bad[] = {{FEW_KEYS, 0},   {FEW_KEYS, 1},   {FEW_KEYS, 5},   {WRONG_PAGE, 1},
           {WRONG_PAGE, 3}, {NO_TREE, 2},    {NO_TREE, 6},    {NO_WINDOW, 3},
           {NO_SINKS, 4},   {A_NAN, 0},      {A_NAN, 7},      {FEW_KEYS, 7},
           {WRONG_PAGE, 7}, {NO_K_SCALE, 8}, {NO_V_SCALE, 8}, {NO_K_SCALE, 9}};

START_TEST(caught)
{
    struct dev *d = open_cpu(), *ref = open_cpu();
    struct err e = {0};
    float worst = -1;
    const struct attn_need *n = &needs[bad[_i].need];
    ck_assert_msg(attn_select(&honest, "cpu", n, NULL, &e) == OK, "%s", e.text);
    struct attn_backend b = *honest;
    b.name = "spoiled";
    b.run = spoiled_run;
    spoil = bad[_i].how;
    ck_assert_int_eq(attn_probe(&dev_cpu, d, &b, n, ref, &worst, &e), E_DEVICE);
    ck_assert(!(worst <= ATTN_PROBE_TOL));
    ck_assert_msg(strstr(e.text, "spoiled") && strstr(e.text, role_name(n->role)) &&
                      strstr(e.text, "the reference says"),
                  "%s", e.text);
    dev_cpu.close(d);
    dev_cpu.close(ref);
}
END_TEST

Suite *suite_attn_probe(void)
{
    Suite *s = suite_create("attn_probe");
    TCase *t = tcase_create("attn_probe");
    tcase_add_loop_test(t, references, 0, (int)ARRAY_LEN(needs));
    tcase_add_loop_test(t, caught, 0, (int)ARRAY_LEN(bad));
    suite_add_tcase(s, t);
    return s;
}
