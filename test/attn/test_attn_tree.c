/* Goal: a row of a token tree gives the bits that its path gives when it is decoded alone, on every
 * CPU backend, and depends on nothing else in the cache.
 * Method: random trees of up to 64 rows (forests too) beside chains, single rows, padding and rows
 * that see a prefix only. Every row is compared with the oracle in double and with a call over a
 * cache in which its path lies contiguously, every second one with a call alone over a cache in
 * which everything that it does not see is NaN or has no page. */
#include "test/attn/scene.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "test/ops/util.h"
#include "test/sanitize.h"

struct tree {
    int n, depth[64];
    uint64_t anc[64];
};

/* n rows, every one below a random earlier one that has less than k children yet. Roots: the first
 * row; in a forest k of them. */
static struct tree tree_make(struct rng *r, int n, int k, bool forest)
{
    struct tree t = {.n = n};
    int kids[64] = {0};
    for (int j = 0; j < n; j++) {
        t.anc[j] = 1ull << j;
        if (j == 0 || (forest && j < k))
            continue;
        int up;
        do
            up = rng_below(r, 3) ? j - 1 - (int)rng_below(r, (uint64_t)(j < 6 ? j : 6))
                                 : (int)rng_below(r, (uint64_t)j);
        while (kids[up] >= k);
        kids[up]++;
        t.anc[j] |= t.anc[up];
        t.depth[j] = t.depth[up] + 1;
    }
    return t;
}

static void add_tree(struct scene *s, int slot, int len, const struct tree *t, int window)
{
    for (int j = 0; j < t->n; j++) {
        int i = s->rows++, end = len + t->depth[j] + 1;
        ck_assert_int_lt(i, ROWS_MAX);
        s->slot[i] = slot;
        s->row0[i] = len;
        s->last[i] = len + j + 1;
        s->first[i] = window && end > window ? end - window : 0;
        s->anc[i] = t->anc[j];
    }
}

static void pad_row(struct scene *s, int slot, int at, int row0)
{
    int i = s->rows++;
    s->slot[i] = slot;
    s->first[i] = s->last[i] = at;
    s->row0[i] = row0;
    s->anc[i] = 0xa5a5a5a5a5a5a5a5ull;
}

static struct scene tree_scene(struct rng *r, const struct shape *h, enum attn_kind kind, int k,
                               int window, bool extras)
{
    static const int lens[REQS] = {0, 0, 83, 16, 130, 377};
    struct scene s = {.kind = kind, .mask = MASK_TREE};
    pad_row(&s, 0, 0, 0);
    for (int q = 1; q < REQS; q++) {
        int n = q == 5 ? 64 : q == 4 ? 1 : 2 + (int)rng_below(r, 28);
        struct tree t = tree_make(r, n, q == 3 ? 1 : k, q == 2);
        add_tree(&s, q, lens[q], &t, window);
        if (q % 2)
            pad_row(&s, q, q == 3 ? 9 : 0, 4);
    }
    for (int q = 4; q < REQS; q++) { /* a prefix alone: ancestors do not count */
        int i = s.rows++;
        s.slot[i] = q;
        s.last[i] = lens[q] - 3;
        s.row0[i] = lens[q] - 3 + 7 * (q - 4);
        s.anc[i] = rng_u64(r);
    }
    /* bits of rows behind the row itself do not count either */
    for (int i = 0; i < s.rows; i += 3)
        if (s.last[i] > s.row0[i] && s.last[i] - s.row0[i] < 64)
            s.anc[i] |= rng_u64(r) << (s.last[i] - s.row0[i]);
    scene_fill(&s, r, h, extras);
    return s;
}

/* Row r of the scene alone. Contiguous: its path copied behind the prefix, as a chain. */
static struct scene alone(const struct scene *s, int r, bool contiguous)
{
    struct scene c = *s;
    size_t kw = (size_t)s->k_width, vw = (size_t)s->v_width, all = (size_t)REQS * KEYS_MAX;
    c.keys = mem_dup(s->keys, all * kw * sizeof *s->keys);
    c.vals = vw ? mem_dup(s->vals, all * vw * sizeof *s->vals) : NULL;
    c.rows = 1;
    c.q = s->q + (size_t)r * (size_t)(s->n_head * s->qk);
    c.slot[0] = s->slot[r];
    c.first[0] = s->first[r];
    c.last[0] = s->last[r];
    c.row0[0] = s->row0[r];
    c.anc[0] = s->anc[r];
    if (contiguous && s->last[r] > s->row0[r] && s->first[r] < s->last[r]) {
        size_t base = (size_t)s->slot[r] * KEYS_MAX;
        int d = s->row0[r];
        for (int p = s->row0[r]; p < s->last[r]; p++) {
            if (!(s->anc[r] >> (p - s->row0[r]) & 1))
                continue;
            memcpy(c.keys + (base + (size_t)d) * kw, s->keys + (base + (size_t)p) * kw,
                   kw * sizeof *c.keys);
            if (vw)
                memcpy(c.vals + (base + (size_t)d) * vw, s->vals + (base + (size_t)p) * vw,
                       vw * sizeof *c.vals);
            d++;
        }
        c.last[0] = d;
    }
    if (contiguous)
        c.mask = MASK_RANGE;
    scene_mark(&c);
    return c;
}

struct result {
    size_t row;       /* floats of a row of out */
    float *out, *lse; /* [rows][row], [rows][n_head] */
};

static struct result result_new(const struct scene *s)
{
    struct result x = {.row = (size_t)s->n_head * (size_t)s->v};
    x.out = mem_alloc((size_t)s->rows * x.row * sizeof *x.out);
    x.lse = mem_alloc((size_t)(s->rows * s->n_head) * sizeof *x.lse);
    memset(x.out, 0xff, (size_t)s->rows * x.row * sizeof *x.out);
    memset(x.lse, 0xff, (size_t)(s->rows * s->n_head) * sizeof *x.lse);
    return x;
}

static void result_free(struct result *x)
{
    mem_free(x->out);
    mem_free(x->lse);
}

static struct result run_scene(const struct attn_backend *b, struct dev *d, const struct scene *s,
                               enum role role, int page, int window, struct rng *r, bool replay)
{
    struct result x = result_new(s);
    struct paged g = paged_make(s, r, page);
    struct attn_need need = scene_need(s, role, page, window);
    struct attn_call c = scene_call(s, &g, role, 1 / sqrtf((float)s->qk), x.out, x.lse);
    scene_run(b, d, s, &g, &need, &c, replay);
    paged_free(&g);
    return x;
}

/* Row r of `whole` against the row in a call of its own. */
static void check_alone(const struct attn_backend *b, struct dev *d, const struct scene *s,
                        const struct result *whole, int r, bool contiguous, enum role role,
                        int page, int window, struct rng *rng)
{
    char what[160];
    struct scene one = alone(s, r, contiguous);
    struct result x = run_scene(b, d, &one, role, page, window, rng, false);
    snprintf(what, sizeof what, "%s row %d (ancestors %llx) page %d %s", b->name, r,
             (unsigned long long)s->anc[r], page, contiguous ? "as a chain" : "alone");
    t_same_bits(what, whole->out + (size_t)r * x.row, x.out, x.row * sizeof *x.out);
    t_same_bits(what, whole->lse + r * s->n_head, x.lse, (size_t)s->n_head * sizeof *x.lse);
    result_free(&x);
    mem_free(one.keys);
    mem_free(one.vals);
}

static void check_trees(const struct t_devs *t, const struct attn_backend *b, const struct scene *s,
                        enum role role, int window, struct rng *rng)
{
    static const int pages[] = {1, 16, 64};
    size_t nl = (size_t)(s->rows * s->n_head), no = nl * (size_t)s->v;
    double *want = mem_alloc(no * sizeof *want), *want_lse = mem_alloc(nl * sizeof *want_lse);
    if (!TSAN) /* it costs more than what it checks */
        scene_oracle(s, 1 / sqrtf((float)s->qk), want, want_lse);
    struct dev *d = t->d[t->n - 1];
    struct result ref = run_scene(b, d, s, role, 16, window, rng, false);
    if (!TSAN) {
        t_close_to(b->name, ref.out, want, no,
                   s->kind == ATTN_MLA_DECOMPRESSED ? TOL_ATTN_FULL : TOL_ATTN);
        t_close_to(b->name, ref.lse, want_lse, nl, TOL_LSE);
    }
    for (size_t p = 0; p < ARRAY_LEN(pages); p++)
        for (int i = 0; i < t->n; i++) {
            if (pages[p] != 16 && strcmp(t->d[i]->isa->name, "scalar") == 0)
                continue; /* slow, and its bits are those of the others */
            struct result x = run_scene(b, t->d[i], s, role, pages[p], window, rng, p == 0);
            t_same_bits(t->name[i], ref.out, x.out, no * sizeof *x.out);
            t_same_bits(t->name[i], ref.lse, x.lse, nl * sizeof *x.lse);
            result_free(&x);
        }
    for (int r = 0; r < s->rows; r += TSAN ? 16 : SANITIZED ? 3 : 1) {
        int page = pages[rng_below(rng, ARRAY_LEN(pages))];
        check_alone(b, d, s, &ref, r, true, role, page, window, rng);
        if (r % 2 == 0)
            check_alone(b, d, s, &ref, r, false, role, page, window, rng);
    }
    result_free(&ref);
    mem_free(want);
    mem_free(want_lse);
}

START_TEST(trees)
{
    static const enum role roles[] = {TGT_VERIFY, DRF_DECODE, DRF_EXTEND, DRF_FROZEN};
    const struct attn_backend *b = attn_backends[_i];
    const struct shape *h = b->caps.kinds & ATTN_GQA            ? shapes_gqa
                            : b->caps.kinds & ATTN_MLA_ABSORBED ? shapes_absorbed
                                                                : shapes_full;
    int n_shape = b->caps.kinds & ATTN_GQA ? (int)ARRAY_LEN(shapes_gqa) : 2;
    struct t_devs t;
    t_open(&t);
    struct rng r = {77};
    for (int k = 1; k <= 4; k++) {
        int window = k == 3 ? 71 : k == 4 ? 3 : 0; /* 3: cuts into the trees */
        struct scene s = tree_scene(&r, &h[(k + 3) % n_shape], (enum attn_kind)b->caps.kinds, k,
                                    window, k % 2 == 0);
        check_trees(&t, b, &s, roles[k - 1], window, &r);
        scene_free(&s);
    }
    t_close(&t);
}
END_TEST

Suite *suite_attn_tree(void);
Suite *suite_attn_tree(void)
{
    int n = 0;
    while (attn_backends[n] && strcmp(attn_backends[n]->device, "cpu") == 0)
        n++;
    Suite *s = suite_create("attn_tree");
    TCase *t = tcase_create("trees");
    tcase_set_timeout(t, 300);
    tcase_add_loop_test(t, trees, 0, n);
    suite_add_tcase(s, t);
    return s;
}
