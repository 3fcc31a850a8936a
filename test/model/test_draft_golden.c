/* Goal: the trained drafters say what their reference says. Method: test/data/draft (its README has
 * the layout): the target's states of a text, the drafter's rows for them and two recurrent steps,
 * log-probabilities at stored ids. The drafter runs once with its reference's features and once
 * with those of our target, whose states are compared too. A feature of the wrong row must miss. */
#include <check.h>
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/file.h"
#include "engine/base/js.h"
#include "engine/base/mem.h"
#include "engine/model/safetensors.h"
#include "test/model/gen.h"
#include "test/model/runner.h"

enum { T = 48, TOP = 4, COLS = 8, STEPS = 2, NAMES = 8 };
static const char data_dir[] = "test/data/draft";
/* Of log-probabilities; of states, over the largest value. */
static const double limit = 2e-3, limit_state = 1e-4, margin = 0.05;

static char names[NAMES][64];

static int find_names(void)
{
    int n = 0;
    DIR *d = opendir(data_dir);
    CHECK(d != NULL);
    for (struct dirent *x = readdir(d); x; x = readdir(d)) {
        size_t len = strlen(x->d_name);
        if (len < 6 || strcmp(x->d_name + len - 5, ".json") != 0)
            continue;
        CHECK(n < NAMES && len < sizeof names[0]);
        snprintf(names[n++], sizeof names[0], "%.*s", (int)len - 5, x->d_name);
    }
    closedir(d);
    CHECK(n >= 1);
    return n;
}

struct data {
    json_t *doc;
    struct file_map map;
    struct tensors *t;
};

static void data_open(struct data *x, const char *name)
{
    struct err e = {0};
    char path[160];
    snprintf(path, sizeof path, "%s/%s.json", data_dir, name);
    ck_assert_msg(js_load(&x->doc, path, &e) == OK, "%s", e.text);
    snprintf(path, sizeof path, "%s/%s.safetensors", data_dir, name);
    ck_assert_msg(file_map_open(&x->map, path, &e) == OK, "%s", e.text);
    x->t = tensors_new(false);
    ck_assert_msg(tensors_add(x->t, x->map.p, x->map.len, name, &e) == OK, "%s", e.text);
}

static void data_close(struct data *x)
{
    tensors_close(x->t);
    file_map_close(&x->map);
    json_decref(x->doc);
}

/* A golden array of rows x cols; its row width in *cols when that is 0. */
static const void *array(const struct data *x, const char *name, int64_t rows, int64_t *cols)
{
    const struct tensor *t = tensors_find(x->t, name);
    ck_assert_msg(t != NULL, "no array '%s'", name);
    ck_assert_int_eq(t->shape[0], rows);
    int64_t wide = t->rank > 1 ? t->shape[1] : 1;
    if (*cols)
        ck_assert_int_eq(wide, *cols);
    *cols = wide;
    return t->p;
}

static const float *floats(const struct data *x, const char *name, int64_t rows, int64_t cols)
{
    return array(x, name, rows, &cols);
}

static const int32_t *ints(const struct data *x, const char *name, int64_t rows, int64_t cols)
{
    return array(x, name, rows, &cols);
}

static const char *text(const struct data *x, const char *key)
{
    const char *s = json_string_value(json_object_get(x->doc, key));
    CHECK(s != NULL);
    return s;
}

static double worse(double a, double b)
{
    return b <= a ? a : isnan(b) ? INFINITY : b;
}

/* Largest difference over the largest value of b. */
static double far(const float *a, const float *b, int64_t n)
{
    double d = 0, top = 0;
    for (int64_t i = 0; i < n; i++) {
        d = worse(d, fabs((double)a[i] - (double)b[i]));
        top = fmax(top, fabs((double)b[i]));
    }
    return d / top;
}

static double log_sum(const float *l, int n)
{
    double top = l[0], sum = 0;
    for (int i = 1; i < n; i++)
        top = l[i] > top ? l[i] : top;
    for (int i = 0; i < n; i++)
        sum += exp(l[i] - top);
    return top + log(sum);
}

/* Draft id of a target id. */
static int draft_id(const struct mrun *d, int32_t id)
{
    const int32_t *map = model_d2t(d->m);
    for (int i = 0; map && i < d->info->vocab; i++)
        if (map[i] == id)
            return i;
    ck_assert_msg(!map, "no draft id means %d", id);
    return id;
}

struct misses {
    double rows, lp, chain;
};

/* Rows 1 … T-1 of a slot with features [T][feat], then the chain. */
static struct misses run(struct mrun *d, const struct data *x, int slot, const float *feat)
{
    struct err e = {0};
    struct misses m = {0};
    int f = d->info->feat, v = d->info->vocab;
    const int32_t *tok = ints(x, "tokens", T, 1), *id = ints(x, "top_id", T - 1, TOP);
    const int32_t *chain = ints(x, "chain_token", STEPS, 1);
    const float *out = floats(x, "out", T - 1, f), *chain_out = floats(x, "chain_out", STEPS, f);
    const float *top = floats(x, "top_lp", T - 1, TOP), *col = floats(x, "col_lp", T - 1, COLS);
    const float *whole = floats(x, "chain_lp", STEPS + 1, v);
    float *next = MEM_ARRAY(float, T *f), *logits = MEM_ARRAY(float, T *v);
    struct mrow rows[T];
    for (int i = 1; i < T; i++)
        rows[i] = (struct mrow){.slot = slot, .pos = i, .tok = tok[i]};
    struct mio io = {.feat = feat, .hidden = next, .logits = logits};
    ck_assert_msg(mrun_pass(d, TGT_PREFILL, T - 1, rows + 1, &io, &e) == OK, "%s", e.text);
    m.rows = far(next, out, (int64_t)(T - 1) * f);
    for (int r = 0; r < T - 1; r++) {
        const float *l = logits + r * v;
        double z = log_sum(l, v);
        for (int k = 0; k < TOP; k++)
            m.lp =
                worse(m.lp, fabs(l[draft_id(d, id[r * TOP + k])] - z - (double)top[r * TOP + k]));
        for (int k = 0; k < COLS; k++)
            m.lp = worse(m.lp, fabs(l[(31 * r + 17 * k) % v] - z - (double)col[r * COLS + k]));
    }
    memmove(next, next + (T - 2) * f, (size_t)f * sizeof *next);
    memmove(logits, logits + (T - 2) * v, (size_t)v * sizeof *logits);
    for (int s = 0; s <= STEPS; s++) {
        double z = log_sum(logits, v);
        for (int i = 0; i < v; i++)
            m.lp = worse(m.lp, fabs(logits[i] - z - (double)whole[s * v + i]));
        if (s == STEPS)
            break;
        struct mrow row = {.slot = slot, .pos = T + s, .tok = chain[s]};
        io = (struct mio){.feat = next, .hidden = next, .logits = logits};
        ck_assert_msg(mrun_pass(d, TGT_VERIFY, 1, &row, &io, &e) == OK, "%s", e.text);
        m.chain = worse(m.chain, far(next, chain_out + s * f, f));
    }
    mem_free(next);
    mem_free(logits);
    return m;
}

/* Our target's states of the text, in the layout of `feature`. */
static void states(struct mrun *t, const struct data *x, float *out)
{
    struct err e = {0};
    const int32_t *tok = ints(x, "tokens", T, 1);
    struct mrow rows[T];
    struct mio io = {0};
    for (int i = 0; i < T; i++)
        rows[i] = (struct mrow){.slot = 1, .pos = i, .tok = tok[i]};
    if (t->c.n_tap)
        io.taps = out;
    else
        io.hidden = out;
    ck_assert_msg(mrun_pass(t, TGT_PREFILL, T, rows, &io, &e) == OK, "%s", e.text);
}

START_TEST(equals_reference)
{
    const char *name = names[_i];
    struct data x;
    struct mrun t, d;
    struct err e = {0};
    data_open(&x, name);
    const char *target = text(&x, "target"), *draft = text(&x, "draft");
    gen_check_words(target, text(&x, "target_words"));
    gen_check_words(draft, text(&x, "draft_words"));
    bool head = strcmp(target, draft) != 0;
    struct mrun_conf c = {.rows_max = 64, .len_max = 64, .threads = 2};
    /* The taps are known once the drafter is open, which needs the target. */
    ck_assert_msg(mrun_open(&t, target, &c, &e) == OK, "%s", e.text);
    c.target = &t;
    ck_assert_msg(mrun_open(&d, head ? draft : NULL, &c, &e) == OK, "%s", e.text);
    int tap[LIM_TAPS], n_tap = d.info->n_tap;
    memcpy(tap, d.info->tap, sizeof tap);
    int64_t wide = (int64_t)t.info->hidden * (n_tap ? n_tap : 1);
    const float *want = floats(&x, "feature", T, wide);
    float *own = MEM_ARRAY(float, T *wide), *feat = MEM_ARRAY(float, T *d.info->feat);
    struct mrun tapped;
    c = (struct mrun_conf){.rows_max = 64, .len_max = 64, .tap = tap, .n_tap = n_tap};
    ck_assert_msg(mrun_open(&tapped, target, &c, &e) == OK, "%s", e.text);
    states(&tapped, &x, own);
    mrun_close(&tapped);
    double state = far(own, want, T * wide);
    struct misses m[3];
    for (int i = 0; i < 3; i++) { /* the reference's states, ours, the reference's a row late */
        const float *from = i == 1 ? own : i == 2 ? want + wide : want;
        int n = i == 2 ? T - 1 : T;
        if (head)
            ck_assert_msg(mrun_feature(&d, n, from, feat, &e) == OK, "%s", e.text);
        else
            memcpy(feat, from, (size_t)(n * wide) * sizeof *feat);
        m[i] = run(&d, &x, 1 + i, feat);
        printf("  %-8s states %.1e, rows %.1e, recurrent %.1e, log-probabilities %.1e%s\n", name,
               state, m[i].rows, m[i].chain, m[i].lp, i == 2 ? " (wrong rows)" : "");
    }
    ck_assert_msg(state < limit_state, "%s: states miss by %g", name, state);
    for (int i = 0; i < 2; i++)
        ck_assert_msg(m[i].rows < limit_state && m[i].chain < limit_state && m[i].lp < limit,
                      "%s: misses", name);
    ck_assert_msg(m[2].lp > margin && m[2].rows > margin, "%s: wrong rows pass", name);
    mem_free(own);
    mem_free(feat);
    mrun_close(&d);
    mrun_close(&t);
    data_close(&x);
}
END_TEST

Suite *suite_draft_golden(void)
{
    Suite *s = suite_create("draft_golden");
    TCase *t = tcase_create("drafters");
    tcase_add_loop_test(t, equals_reference, 0, find_names());
    suite_add_tcase(s, t);
    return s;
}
