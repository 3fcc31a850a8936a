/* Product driver: packs rows, splits products into blocks of columns for the pool, converts each
 * block of weights once into the thread's panel.
 *
 * The panel is a few hundred KiB that stay in the second-level cache while every row passes by;
 * it is not a copy of the weights. One row skips packing and, in bf16 and fp32, the panel; a few
 * rows (drafts under verification, the experts of a small batch) skip the panel in bf16. */
#include "kernels/cpu/prod.h"

#include "engine/base/check.h"

enum {
    PANEL_COLS_MAX = 64,
    PANEL_USE = 48 * 1024, /* floats of a panel in use: 192 KiB of 512 KiB second-level cache */
    ROW_COLS = 64,         /* columns of an item that has one row */
};

struct job {
    struct dev *d;
    const struct cpu_unit *u;
    int n;
    int cols; /* of an item; the last of a unit may have fewer */
};

static const float *unit_row(const struct cpu_unit *u, int r)
{
    const struct cpu_prod *p = u->p;
    r += u->row;
    return p->x + (p->idx ? p->idx[r] : r) * p->ldx;
}

/* One row of a unit, counted over all units that pack. */
static void pack_item(void *ud, int i)
{
    const struct job *j = ud;
    const struct cpu_unit *u = j->u;
    for (;; u++) {
        if (!u->packed || u->shared)
            continue;
        if (i < u->rows)
            break;
        i -= u->rows;
    }
    int k = (int)u->p->w->k;
    j->d->isa->pack(u->packed + (int64_t)i * cpu_pad(k), unit_row(u, i), k);
}

/* Weight rows [c0, c0 + n) of the product in panel order. */
static void pack_weights(const struct cpu_isa *isa, float *panel, const struct cpu_prod *p, int c0,
                         int n)
{
    int k = (int)p->w->k, kp = cpu_pad(k);
    float *row = panel + (int64_t)n * kp;
    for (int c = 0; c < n; c++) {
        int64_t i = p->row0 + c0 + c;
        float *dst = panel + (int64_t)c * kp;
        if (p->w->dt == DT_BF16) {
            isa->pack_bf16(dst, (const uint16_t *)p->w->p + i * k, k);
        } else if (p->w->dt == DT_F32) {
            isa->pack(dst, (const float *)p->w->p + i * k, k);
        } else {
            cpu_weight_row(isa, row, p->w, i);
            isa->pack(dst, row, k);
        }
    }
}

static void one_row(struct dev *d, const struct cpu_unit *u, const struct cpu_out *o, int c0, int n)
{
    const struct cpu_isa *isa = d->isa;
    const struct cpu_prod *p = u->p;
    const float *x = unit_row(u, 0);
    int k = (int)p->w->k;
    float v[PANEL_COLS_MAX];
    if (p->w->dt == DT_BF16) {
        isa->gemv_bf16(v, x, (const uint16_t *)p->w->p + (p->row0 + c0) * k, n, k);
    } else {
        float *w = cpu_panel(d);
        for (int c = 0; c < n; c++) {
            int64_t i = p->row0 + c0 + c;
            const float *wi = (const float *)p->w->p + i * k;
            if (p->w->dt != DT_F32) {
                cpu_weight_row(isa, w, p->w, i);
                wi = w;
            }
            v[c] = isa->dot(x, wi, k);
        }
    }
    for (int c = 0; c < n; c++)
        cpu_out_put(o, 0, c, v[c]);
}

static void prod_item(void *ud, int i)
{
    const struct job *j = ud;
    const struct cpu_unit *u = j->u;
    for (;; u++) {
        int items = (u->p->n + j->cols - 1) / j->cols;
        if (i < items)
            break;
        i -= items;
    }
    const struct cpu_prod *p = u->p;
    int c0 = i * j->cols, n = p->n - c0 < j->cols ? p->n - c0 : j->cols;
    float bias[PANEL_COLS_MAX];
    struct cpu_out o = {p->out + u->row * p->ldo + c0, p->ldo, p->accumulate, NULL};
    if (p->bias && p->bias->p) {
        for (int c = 0; c < n; c++)
            bias[c] = dtype_load(p->bias->p, p->bias->dt, c0 + c);
        o.bias = bias;
    }
    if (!u->packed) {
        one_row(j->d, u, &o, c0, n);
        return;
    }
    if (u->rows <= CPU_FEW_ROWS && p->w->dt == DT_BF16 && j->d->isa->few_bf16) {
        int k = (int)p->w->k;
        j->d->isa->few_bf16(&o, u->packed, u->rows,
                            (const uint16_t *)p->w->p + (p->row0 + c0) * (int64_t)k, n, k);
        return;
    }
    float *panel = cpu_panel(j->d);
    pack_weights(j->d->isa, panel, p, c0, n);
    j->d->isa->panel(&o, u->packed, u->rows, panel, n, cpu_pad((int)p->w->k));
}

/* Columns of an item: as many as the cache holds, fewer when threads would be left without work;
 * a multiple of four. */
static int item_cols(const struct dev *d, int kp_max, int cols, bool packed)
{
    int n = ROW_COLS;
    if (packed) {
        n = PANEL_USE / kp_max / 4 * 4;
        n = n > PANEL_COLS_MAX ? PANEL_COLS_MAX : n < 4 ? 4 : n;
    }
    int fair = cols / (4 * d->conf.threads) / 4 * 4;
    fair = fair < 8 ? 8 : fair;
    return n < fair ? n : fair;
}

static void run_units(struct dev *d, const struct cpu_unit *u, int n)
{
    struct job j = {d, u, n, 0};
    int items = 0, rows = 0, kp_max = CPU_LANES, cols = 0;
    int64_t work = 0;
    bool packed = false;
    for (int i = 0; i < n; i++) {
        int kp = cpu_pad((int)u[i].p->w->k);
        kp_max = kp > kp_max ? kp : kp_max;
        cols += u[i].p->n;
        packed |= u[i].packed != NULL;
        rows += u[i].packed && !u[i].shared ? u[i].rows : 0;
        work += (int64_t)u[i].rows * u[i].p->n * kp / 8;
    }
    j.cols = item_cols(d, kp_max, cols, packed);
    for (int i = 0; i < n; i++)
        items += (u[i].p->n + j.cols - 1) / j.cols;
    cpu_parallel_if(d, (int64_t)rows * kp_max / 4, rows, pack_item, &j);
    cpu_parallel_if(d, work, items, prod_item, &j);
}

static bool same_rows(const struct cpu_prod *a, const struct cpu_prod *b)
{
    return a->x == b->x && a->idx == b->idx && a->ldx == b->ldx && a->rows == b->rows &&
           a->w->k == b->w->k;
}

void cpu_prods(struct dev *d, const struct cpu_prod *p, int n)
{
    int64_t used = 0;
    int m = 0;
    for (int i = 0; i < n; i++) {
        int kp = cpu_pad((int)p[i].w->k);
        CHECK(p[i].w->k >= 1 && 5 * (int64_t)kp <= CPU_PANEL_FLOATS);
        for (int row = 0; row < p[i].rows;) {
            bool shared = row == 0 && m > 0 && d->units[m - 1].p == &p[i - 1] &&
                          d->units[m - 1].rows == p[i].rows && p[i].rows > 1 &&
                          same_rows(&p[i - 1], &p[i]);
            int room = (int)((CPU_SHARED_FLOATS - used) / kp), left = p[i].rows - row;
            if (m == CPU_PRODS_MAX || (!shared && left > 1 && room < left && used > 0)) {
                run_units(d, d->units, m);
                used = 0;
                m = 0;
                continue;
            }
            struct cpu_unit u = {&p[i], row, left, d->shared + used, shared};
            if (left == 1)
                u.packed = NULL;
            else if (shared)
                u.packed = d->units[m - 1].packed;
            else
                u.rows = left < room ? left : room;
            if (u.packed && !shared)
                used += (int64_t)u.rows * kp;
            d->units[m++] = u;
            row += u.rows;
        }
    }
    if (m > 0)
        run_units(d, d->units, m);
}
