/* Mixture of experts: the choice of experts and their feed-forward products. Rows that chose the
 * same expert share one product; the sum over a row's picks runs in stored order afterwards. */
#include "kernels/cpu/prod.h"

#include <math.h>
#include <string.h>

#include "engine/base/check.h"
#include "kernels/cpu/fmath.h"

/* ---- route ---- */

struct route_job {
    struct dev *d;
    const struct op_moe_route *a;
};

/* Index of the largest of c[from, to), lowest index first; -1 when all are -inf or NaN. */
static int arg_best(const float *c, int from, int to)
{
    int best = -1;
    for (int i = from; i < to; i++)
        if (c[i] > (best < 0 ? -INFINITY : c[best]))
            best = i;
    return best;
}

static float group_score(const float *c, int from, int to, enum moe_group g)
{
    float m1 = -INFINITY, m2 = -INFINITY;
    for (int i = from; i < to; i++) {
        if (c[i] > m1) {
            m2 = m1;
            m1 = c[i];
        } else if (c[i] > m2) {
            m2 = c[i];
        }
    }
    return g == MOE_GROUP_TOP2_SUM ? m1 + m2 : m1;
}

/* Sets the choice values of groups that do not take part to -inf. */
static void mask_groups(const struct op_moe_route *a, float *c, float *score)
{
    int per = a->experts / a->n_group;
    for (int g = 0; g < a->n_group; g++)
        score[g] = group_score(c, g * per, (g + 1) * per, a->group);
    for (int n = 0; n < a->topk_group; n++) {
        int g = arg_best(score, 0, a->n_group);
        if (g < 0)
            break;
        score[g] = NAN; /* picked */
    }
    for (int g = 0; g < a->n_group; g++)
        if (score[g] == score[g])
            for (int i = g * per; i < (g + 1) * per; i++)
                c[i] = -INFINITY;
}

static void scores(const struct op_moe_route *a, const float *logits, float *s)
{
    int n = a->experts;
    switch (a->score) {
    case MOE_SOFTMAX: {
        float max = -INFINITY;
        for (int i = 0; i < n; i++)
            max = logits[i] > max ? logits[i] : max;
        double sum = 0;
        for (int i = 0; i < n; i++) {
            s[i] = fm_exp(logits[i] - max);
            sum += (double)s[i];
        }
        for (int i = 0; i < n; i++)
            s[i] = (float)((double)s[i] / sum);
        return;
    }
    case MOE_SIGMOID:
        for (int i = 0; i < n; i++)
            s[i] = 1.0f / (1.0f + fm_exp(-logits[i]));
        return;
    }
    CHECK(!"score is a value of enum moe_score");
}

static int first_free(const int32_t *ids, int n)
{
    for (int e = 0;; e++) {
        int t = 0;
        while (t < n && ids[t] != e)
            t++;
        if (t == n)
            return e;
    }
}

static void route_row(void *ud, int r)
{
    const struct route_job *j = ud;
    const struct op_moe_route *a = j->a;
    int n = a->experts;
    float *s = cpu_panel(j->d), *c = s + n, *g = c + n;
    int32_t *ids = a->ids + (int64_t)r * a->topk;
    float *w = a->weights + (int64_t)r * a->topk;
    scores(a, a->logits + (int64_t)r * n, s);
    for (int i = 0; i < n; i++)
        c[i] = a->bias ? s[i] + a->bias[i] : s[i];
    if (a->group != MOE_GROUP_NONE && a->n_group > 1)
        mask_groups(a, c, g);
    float sum = 0;
    for (int t = 0; t < a->topk; t++) {
        int e = arg_best(c, 0, n);
        if (e < 0) /* NaN logits, or too few experts left: any expert that was not picked */
            e = first_free(ids, t);
        c[e] = -INFINITY;
        ids[t] = e;
        w[t] = s[e];
        sum += s[e];
    }
    for (int t = 0; t < a->topk; t++)
        w[t] = (a->normalize ? w[t] / (sum + a->norm_eps) : w[t]) * a->scale;
}

int cpu_do_moe_route(struct dev *d, const struct op_moe_route *a)
{
    CHECK(a->topk >= 1 && a->topk <= a->experts && 3 * a->experts <= CPU_PANEL_FLOATS);
    CHECK(a->group == MOE_GROUP_NONE || (a->n_group >= 1 && a->experts % a->n_group == 0));
    struct op_rmsnorm n = {.out = a->y,
                           .x = a->x,
                           .w = a->norm,
                           .rows = a->rows,
                           .dim = (int)a->router.k,
                           .ldx = a->router.k,
                           .ldo = a->router.k,
                           .n_group = 1,
                           .eps = a->eps};
    struct op_matmul m = {.out = a->logits,
                          .x = a->norm.p ? a->y : a->x,
                          .w = a->router,
                          .rows = a->rows,
                          .ldx = a->router.k,
                          .ldo = a->experts};
    if (a->router.p && a->norm.p)
        cpu_do_rmsnorm(d, &n);
    if (a->router.p)
        cpu_do_matmul(d, &m);
    struct route_job j = {d, a};
    cpu_parallel_if(d, (int64_t)a->rows * a->experts * (a->topk + 8), a->rows, route_row, &j);
    return OK;
}

/* ---- feed forward ---- */

struct ffn_job {
    struct dev *d;
    const struct op_moe_ffn *a;
    float *g, *u, *y; /* [picks] sorted by expert: gate and up [inter], down [hidden] */
    int32_t *row;     /* [picks] row of x of a sorted pick */
    int32_t *at;      /* [rows * topk] sorted place of a pick, -1: no expert */
};

/* Counting sort of the picks by expert; returns the number of picks. Leaves the first sorted pick
 * of expert e in start[e], start[experts] being the end. */
static int sort_picks(const struct ffn_job *j, int32_t *start)
{
    const struct op_moe_ffn *a = j->a;
    int picks = a->rows * a->topk;
    memset(start, 0, (size_t)(a->experts + 2) * sizeof *start);
    for (int i = 0; i < picks; i++)
        if (a->ids[i] >= 0 && a->ids[i] < a->experts)
            start[a->ids[i] + 2]++;
    for (int e = 0; e < a->experts; e++)
        start[e + 2] += start[e + 1];
    for (int i = 0; i < picks; i++) {
        j->at[i] = -1;
        if (a->ids[i] < 0 || a->ids[i] >= a->experts)
            continue;
        int p = start[a->ids[i] + 1]++;
        j->at[i] = p;
        j->row[p] = i / a->topk;
    }
    return start[a->experts];
}

static void silu_pick(void *ud, int p)
{
    const struct ffn_job *j = ud;
    int64_t o = (int64_t)p * j->a->inter;
    j->d->isa->silu_mul(j->g + o, j->g + o, j->u + o, j->a->inter);
}

static void combine_row(void *ud, int r)
{
    const struct ffn_job *j = ud;
    const struct op_moe_ffn *a = j->a;
    int h = a->hidden;
    float *sum = cpu_panel(j->d), *out = a->out + (int64_t)r * h;
    memset(sum, 0, (size_t)h * sizeof *sum);
    for (int t = 0; t < a->topk; t++) {
        int p = j->at[r * a->topk + t];
        if (p < 0)
            continue;
        const float *y = j->y + (int64_t)p * h;
        float w = a->weights[r * a->topk + t];
        for (int i = 0; i < h; i++)
            sum[i] += w * y[i];
    }
    for (int i = 0; i < h; i++)
        out[i] += sum[i];
}

/* out += the picked experts */
static void add_picks(struct dev *d, const struct op_moe_ffn *a)
{
    size_t picks = (size_t)a->rows * (size_t)a->topk;
    CHECK(2 * a->experts <= CPU_PRODS_MAX && a->hidden >= 2 * a->topk);
    struct ffn_job j = {d, a, a->work, NULL, NULL, NULL, NULL};
    j.u = j.g + picks * (size_t)a->inter;
    j.y = j.u + picks * (size_t)a->inter;
    j.row = (int32_t *)(j.y + picks * (size_t)a->hidden);
    j.at = j.row + picks;
    int32_t *start = d->ints;
    int n = sort_picks(&j, start);
    if (n == 0)
        return;
    int m = 0;
    for (int e = 0; e < a->experts; e++) {
        int64_t p0 = start[e];
        int rows = start[e + 1] - start[e];
        if (rows == 0)
            continue;
        struct cpu_prod p = {.w = &a->gate[e],
                             .n = a->inter,
                             .rows = rows,
                             .x = a->x,
                             .idx = j.row + p0,
                             .ldx = a->hidden,
                             .out = j.g + p0 * a->inter,
                             .ldo = a->inter};
        d->prods[m++] = p;
        p.w = &a->up[e];
        p.out = j.u + p0 * a->inter;
        d->prods[m++] = p;
    }
    cpu_prods(d, d->prods, m);
    cpu_parallel_if(d, (int64_t)n * a->inter * 2, n, silu_pick, &j);
    m = 0;
    for (int e = 0; e < a->experts; e++) {
        int64_t p0 = start[e];
        int rows = start[e + 1] - start[e];
        if (rows == 0)
            continue;
        d->prods[m++] = (struct cpu_prod){.w = &a->down[e],
                                          .n = a->hidden,
                                          .rows = rows,
                                          .x = j.g + p0 * a->inter,
                                          .ldx = a->inter,
                                          .out = j.y + p0 * a->hidden,
                                          .ldo = a->hidden};
    }
    cpu_prods(d, d->prods, m);
    cpu_parallel_if(d, (int64_t)n * a->hidden, a->rows, combine_row, &j);
}

int cpu_do_moe_ffn(struct dev *d, const struct op_moe_ffn *a)
{
    float *g = moe_ffn_shared(a);
    struct op_mlp m = {.out = a->out,
                       .x = a->x,
                       .gate = a->sh_gate,
                       .up = a->sh_up,
                       .down = a->sh_down,
                       .g = g,
                       .u = g + a->rows * a->sh_gate.n,
                       .rows = a->rows,
                       .ldx = a->hidden,
                       .ldo = a->hidden};
    add_picks(d, a);
    return a->sh_gate.p ? cpu_do_mlp(d, &m) : OK;
}
