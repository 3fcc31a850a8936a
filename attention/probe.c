/* The probe of a backend; see the header. The device's owner, before memory is frozen. */
#include "attention/probe.h"

#include <math.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/base/rng.h"

/* Three requests: one over a cached prefix that ends inside a page, one without a prefix, one long
 * enough to be split; and a padding row at the end. */
enum { SEQS = 3, SLOTS = SEQS + 1, LONG = 161, ROWS_MAX = SEQS * LIM_ROWS_PER_REQ + 1 };
static const int prefix[SEQS] = {37, 0, LONG};
static const int prefill_rows[SEQS] = {5, 9, 1};

/* Host values; a side (device) has its own copies. */
struct scene {
    const struct attn_need *need;
    int rows, qlen, pages_max, pool; /* pool: rows of a plane */
    int k_width, v_width;
    int32_t slot[ROWS_MAX], first[ROWS_MAX], last[ROWS_MAX], row0[ROWS_MAX];
    uint64_t anc[ROWS_MAX];
    int32_t *table;    /* [SLOTS][pages_max] */
    int32_t *by_token; /* [SLOTS][pages_max * page]: the same with pages of one token */
    float *q, *k, *v, *sinks;
    struct rng rng;
};

/* What an fp8 cache's elements are worth; a latent row has the first alone. */
#define K_SCALE 0.5f
#define V_SCALE 0.75f

/* Within 1 (fp8: 1.04), and exact in the type (F32: in bf16) and scale of the cache, so that every
 * device starts from the same numbers. */
static float value(struct rng *g, enum dtype dt, float scale)
{
    float v = (float)(2 * rng_unit(g) - 1);
    if (dt == DT_F8E4M3)
        return dtype_f8e4m3_to_f32(dtype_f32_to_f8e4m3(v / scale)) * scale;
    return dtype_bf16_to_f32(dtype_f32_to_bf16(v));
}

static float *values(struct rng *g, size_t n, enum dtype dt, float scale)
{
    float *v = MEM_ARRAY(float, n);
    for (size_t i = 0; i < n; i++)
        v[i] = value(g, dt, scale);
    return v;
}

static void add_rows(struct scene *s, int seq, int n)
{
    const struct attn_need *x = s->need;
    int row0 = prefix[seq], depth[LIM_ROWS_PER_REQ] = {0};
    for (int j = 0; j < n; j++) {
        int r = s->rows++, parent = j ? (int)rng_below(&s->rng, (uint64_t)j) : -1, at = row0 + j;
        s->slot[r] = seq + 1;
        s->row0[r] = row0;
        s->last[r] = x->mask == MASK_BLOCK ? row0 + n : row0 + j + 1;
        if (x->mask == MASK_TREE) {
            depth[j] = j ? depth[parent] + 1 : 0;
            s->anc[r] = (j ? s->anc[r - j + parent] : 0) | (uint64_t)1 << j;
            at = row0 + depth[j];
        }
        s->first[r] = x->window && at + 1 > x->window ? at + 1 - x->window : 0;
    }
    s->qlen = n > s->qlen ? n : s->qlen;
}

/* Pages in no order; the same pool rows as pages of one token. */
static void make_tables(struct scene *s)
{
    int page = s->need->page, n = SLOTS * s->pages_max;
    s->table = MEM_ARRAY(int32_t, n);
    s->by_token = MEM_ARRAY(int32_t, n * page);
    for (int i = 0; i < n; i++) {
        int j = (int)rng_below(&s->rng, (uint64_t)i + 1);
        s->table[i] = s->table[j];
        s->table[j] = i;
    }
    for (int i = 0; i < n * page; i++)
        s->by_token[i] = s->table[i / page] * page + i % page;
}

/* What no row may see is NaN: who reads it shows it. */
static void hide_unseen(struct scene *s)
{
    int most = s->pages_max * s->need->page;
    bool *seen = MEM_ARRAY(bool, s->pool);
    for (int r = 0; r < s->rows; r++)
        for (int p = 0; p < s->last[r]; p++) /* a window hides from the row, not from all */
            seen[s->by_token[s->slot[r] * most + p]] = true;
    for (int i = 0; i < s->pool; i++) {
        for (int j = 0; j < s->k_width && !seen[i]; j++)
            s->k[(size_t)i * (size_t)s->k_width + (size_t)j] = NAN;
        for (int j = 0; j < s->v_width && !seen[i]; j++)
            s->v[(size_t)i * (size_t)s->v_width + (size_t)j] = NAN;
    }
    mem_free(seen);
}

static void scene_make(struct scene *s, const struct attn_need *x, bool uniform)
{
    bool mla = x->kind != ATTN_GQA;
    *s = (struct scene){.need = x, .rng = {.s = 26}};
    s->k_width = mla ? x->dims.qk : x->n_kv * x->dims.qk;
    s->v_width = mla ? 0 : x->n_kv * x->dims.v;
    for (int i = 0; i < SEQS; i++) {
        int n = x->q_len_max ? x->q_len_max : prefill_rows[i];
        n = x->q_len_max > 1 && !uniform ? n - i % n : n;
        add_rows(s, i, n);
    }
    s->rows++; /* padding: slot 0, sees nothing */
    s->pages_max = (LONG + LIM_ROWS_PER_REQ + x->page - 1) / x->page;
    s->pool = SLOTS * s->pages_max * x->page;
    make_tables(s);
    s->q = values(&s->rng, (size_t)(s->rows * x->n_head * x->dims.qk), DT_BF16, 1);
    s->k = values(&s->rng, (size_t)(s->pool * s->k_width), x->kv_type, K_SCALE);
    s->v = values(&s->rng, (size_t)(s->pool * s->v_width), x->kv_type, V_SCALE);
    s->sinks = values(&s->rng, (size_t)x->n_head, DT_BF16, 1);
    hide_unseen(s);
}

static void scene_done(struct scene *s)
{
    mem_free(s->table);
    mem_free(s->by_token);
    mem_free(s->q);
    mem_free(s->k);
    mem_free(s->v);
    mem_free(s->sinks);
}

/* ---- one side ---- */

struct side {
    const struct dev_ops *ops;
    struct dev *d;
    void *p[16];
    int n;
};

static int push(struct side *x, const void *host, size_t bytes, void *out, struct err *e)
{
    void *p = NULL;
    TRY(x->ops->alloc(x->d, &p, bytes, DEV_MEM_DEVICE, e));
    CHECK(x->n < (int)ARRAY_LEN(x->p));
    x->p[x->n++] = p;
    memcpy(out, &p, sizeof p);
    return bytes ? x->ops->copy_in(x->d, p, host, bytes, e) : OK;
}

/* A plane of the cache in the type it is kept in. The copy is done when this returns, since
 * `packed` is not pinned. */
static int push_plane(struct side *x, const float *v, size_t n, enum dtype dt, float scale,
                      void *out, struct err *e)
{
    if (dt == DT_F32)
        return push(x, v, n * sizeof *v, out, e);
    size_t bytes = n * dtype_size(dt);
    uint8_t *packed = MEM_ARRAY(uint8_t, bytes);
    for (size_t i = 0; i < n; i++)
        dtype_store(packed, dt, (int64_t)i, dt == DT_F8E4M3 ? v[i] / scale : v[i]);
    int r = push(x, packed, bytes, out, e);
    if (r == OK)
        r = x->ops->sync(x->d, e);
    mem_free(packed);
    return r;
}

static int make_call(struct side *x, const struct scene *s, const struct attn_need *n,
                     struct attn_call *c, struct err *e)
{
    size_t rows = (size_t)s->rows, heads = (size_t)n->n_head;
    bool ones = n->page == 1, mla = n->kind != ATTN_GQA;
    size_t entries = (size_t)(SLOTS * s->pages_max) * (size_t)(ones ? s->need->page : 1);
    size_t out = rows * heads * (size_t)n->dims.v;
    float *nan = MEM_ARRAY(float, out);
    for (size_t i = 0; i < out; i++)
        nan[i] = NAN;
    *c = (struct attn_call){.role = n->role,
                            .kind = n->kind,
                            .mask = n->mask,
                            .rows = s->rows,
                            .n_head = n->n_head,
                            .n_kv = n->n_kv,
                            .dims = n->dims,
                            .ldq = (int64_t)n->n_head * n->dims.qk,
                            .ldo = (int64_t)n->n_head * n->dims.v,
                            .kv_type = n->kv_type,
                            .k_scale = K_SCALE,
                            .v_scale = V_SCALE,
                            .pages_max = s->pages_max * (ones ? s->need->page : 1),
                            .page = n->page,
                            .scale = 12 / sqrtf((float)n->dims.qk), /* few keys weigh much */
                            .soft_cap = n->soft_cap ? 20 : 0,
                            .cp_world = 1,
                            .kv_lora = mla ? n->dims.v : 0,
                            .rope = mla ? n->dims.qk - n->dims.v : 0};
    int ret = OK;
    TRY_OUT(push(x, nan, out * sizeof *nan, &c->out, e));
    TRY_OUT(push(x, s->q, rows * heads * (size_t)n->dims.qk * sizeof *s->q, &c->q, e));
    TRY_OUT(push_plane(x, s->k, (size_t)(s->pool * s->k_width), n->kv_type, K_SCALE, &c->k, e));
    if (s->v_width)
        TRY_OUT(push_plane(x, s->v, (size_t)(s->pool * s->v_width), n->kv_type, V_SCALE, &c->v, e));
    TRY_OUT(push(x, s->slot, rows * sizeof *s->slot, &c->slot, e));
    TRY_OUT(push(x, s->first, rows * sizeof *s->first, &c->first, e));
    TRY_OUT(push(x, s->last, rows * sizeof *s->last, &c->last, e));
    TRY_OUT(push(x, ones ? s->by_token : s->table, entries * sizeof *s->table, &c->table, e));
    TRY_OUT(push(x, s->anc, rows * sizeof *s->anc, &c->ancestors, e));
    TRY_OUT(push(x, s->row0, rows * sizeof *s->row0, &c->row0, e));
    if (n->sinks)
        TRY_OUT(push(x, s->sinks, heads * sizeof *s->sinks, &c->sinks, e));
    ret = x->ops->sync(x->d, e);
out:
    mem_free(nan);
    return ret;
}

static int run_side(struct side *x, const struct attn_backend *b, const struct attn_need *n,
                    const struct scene *s, float *out, struct err *e)
{
    struct attn_call c;
    struct attn *a = NULL;
    int ret = OK;
    TRY_OUT(make_call(x, s, n, &c, e));
    struct graph_dims g = {.reqs = SEQS + 1,
                           .seqs = SEQS + 1,
                           .rows = s->rows,
                           .qlen = s->qlen,
                           .pages = c.pages_max,
                           .role = n->role};
    TRY_OUT(b->open(&a, x->d, n, &g, e));
    TRY_OUT(b->plan(a, &g, e));
    TRY_OUT(b->run(a, &c, e));
    ret = x->ops->copy_out(x->d, out, c.out,
                           (size_t)(s->rows * n->n_head * n->dims.v) * sizeof *out, e);
out:
    if (a)
        b->close(a);
    for (int i = 0; i < x->n; i++)
        x->ops->free(x->d, x->p[i]);
    return ret;
}

static int compare(const struct scene *s, const struct attn_backend *b, const float *got,
                   const float *want, float *worst, struct err *e)
{
    const struct attn_need *n = s->need;
    int each = n->n_head * n->dims.v, at = 0;
    *worst = 0;
    for (int i = 0; i < s->rows * each; i++) {
        float diff = fabsf(got[i] - want[i]);
        if (diff <= *worst)
            continue;
        *worst = diff; /* a NaN stays and ends the search */
        at = i;
        if (isnan(diff))
            break;
    }
    if (*worst <= ATTN_PROBE_TOL)
        return OK;
    return FAIL(e, E_DEVICE,
                "attention backend %s is wrong on this device in role %s: row %d, head %d, element "
                "%d is %g, the reference says %g (%d heads over %d, dims %d/%d, pages of %d)",
                b->name, role_name(n->role), at / each, at % each / n->dims.v, at % n->dims.v,
                (double)got[at], (double)want[at], n->n_head, n->n_kv, n->dims.qk, n->dims.v,
                n->page);
}

int attn_probe(const struct dev_ops *ops, struct dev *d, const struct attn_backend *b,
               const struct attn_need *need, struct dev *cpu, float *worst, struct err *e)
{
    struct attn_need plain = *need;
    const struct attn_backend *ref;
    struct side mine = {.ops = ops, .d = d}, theirs = {.ops = &dev_cpu, .d = cpu};
    struct scene s;
    float max = -1;
    int ret = OK;
    if (worst)
        *worst = max;
    if (need->kind == ATTN_MLA_DECOMPRESSED)
        return OK;
    plain.kv_type = DT_F32;
    plain.page = 1;
    plain.sm = 0;
    TRY(attn_select(&ref, "cpu", &plain, NULL, e));
    scene_make(&s, need, b->caps.role[need->role].uniform);
    size_t n = (size_t)(s.rows * need->n_head * need->dims.v);
    float *got = MEM_ARRAY(float, n), *want = MEM_ARRAY(float, n);
    TRY_OUT(run_side(&theirs, ref, &plain, &s, want, e));
    TRY_OUT(run_side(&mine, b, need, &s, got, e));
    TRY_OUT(compare(&s, b, got, want, &max, e));
out:
    if (worst)
        *worst = max;
    mem_free(got);
    mem_free(want);
    scene_done(&s);
    return ret;
}
