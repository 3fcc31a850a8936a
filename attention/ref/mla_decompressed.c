/* "ref-mla-full": latent attention in the decompressed form. For each request of a call, and a few
 * heads at a time, keys [k_nope | k_pe] and values are expanded from the latent pool rows into the
 * workspace, then ordinary attention runs over them. Equal to "ref-mla" within rounding. fp32
 * caches only: products read the latent rows where they lie. */
#include "attention/ref/ref.h"

#include <string.h>

#include "engine/base/check.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/prod.h"

enum { HEADS_AT_ONCE = 4 };

/* Workspace: keys [HEADS][keys][qk], values [HEADS][keys][v], pool row of a position [keys]. */
static size_t workspace(const struct attn_need *n, const struct graph_dims *max)
{
    size_t keys = (size_t)max->pages * (size_t)n->page;
    size_t width = (size_t)n->dims.qk + (size_t)n->dims.v;
    return keys * (width * HEADS_AT_ONCE * sizeof(float) + sizeof(int32_t));
}

struct expand {
    const struct attn_call *c;
    float *keys;
    const int32_t *pool;
    int from, n, heads;
    int64_t keys_max;
};

/* Copies the rotated part of position from + i behind the expanded part of each head's key. */
static void copy_rope(void *ud, int i)
{
    const struct expand *x = ud;
    const struct attn_call *c = x->c;
    int p = x->from + i;
    const float *src = (const float *)c->k + (int64_t)x->pool[p] * (c->kv_lora + c->rope);
    for (int h = 0; h < x->heads; h++)
        memcpy(x->keys + (h * x->keys_max + p) * c->dims.qk + c->nope, src + c->kv_lora,
               (size_t)c->rope * sizeof(float));
}

static void expand_heads(struct dev *d, const struct expand *x, float *values, int h0)
{
    const struct attn_call *c = x->c;
    struct cpu_prod p[2 * HEADS_AT_ONCE];
    for (int h = 0; h < x->heads; h++) {
        struct cpu_prod *k = &p[2 * h], *v = k + 1;
        *k = (struct cpu_prod){.w = &c->kv_b,
                               .row0 = (int64_t)(h0 + h) * (c->nope + c->dims.v),
                               .n = c->nope,
                               .rows = x->n,
                               .x = c->k,
                               .idx = x->pool + x->from,
                               .ldx = c->kv_lora + c->rope,
                               .out = x->keys + (h * x->keys_max + x->from) * c->dims.qk,
                               .ldo = c->dims.qk};
        *v = *k;
        v->row0 += c->nope;
        v->n = c->dims.v;
        v->out = values + (h * x->keys_max + x->from) * c->dims.v;
        v->ldo = c->dims.v;
    }
    cpu_prods(d, p, 2 * x->heads);
    cpu_parallel(d, x->n, copy_rope, (void *)x);
}

/* Pool rows of the positions [from, to) that rows [r0, r1) may see; false: they see none. A
 * position that is in between and seen by no row (of a tree) takes the pool row of another: its own
 * must not be read. */
static bool pool_rows(const struct cpu_attn *k, int32_t *pool, int r0, int r1, int from, int to)
{
    const int32_t *t = k->table + (int64_t)k->slot[r0] * k->pages_max;
    int32_t any = -1;
    for (int p = from; p < to; p++) {
        int r = r0;
        while (k->ancestors && r < r1 && !cpu_attn_sees(k, r, p))
            r++;
        pool[p] = r < r1 ? t[p / k->page] * k->page + p % k->page : -1;
        any = pool[p] >= 0 ? pool[p] : any;
    }
    for (int p = from; p < to && any >= 0; p++)
        pool[p] = pool[p] >= 0 ? pool[p] : any;
    return any >= 0;
}

/* Rows [r0, r1) of one request, which see positions in [from, to). */
static void request(struct attn *a, const struct attn_call *c, int r0, int r1, int from, int to)
{
    struct dev *d = a->d;
    float *keys = a->work;
    float *values = keys + (int64_t)HEADS_AT_ONCE * a->keys_max * c->dims.qk;
    int32_t *pool = (int32_t *)(values + (int64_t)HEADS_AT_ONCE * a->keys_max * c->dims.v);
    CHECK(to <= a->keys_max);
    struct cpu_attn all = ref_core_args(c);
    bool any = pool_rows(&all, pool, r0, r1, from, to);
    for (int h0 = 0; h0 < c->n_head; h0 += HEADS_AT_ONCE) {
        int heads = c->n_head - h0 < HEADS_AT_ONCE ? c->n_head - h0 : HEADS_AT_ONCE;
        struct expand x = {c, keys, pool, from, to - from, heads, a->keys_max};
        if (any)
            expand_heads(d, &x, values, h0);
        struct cpu_attn k = all;
        k.n_head = k.n_kv = heads;
        k.q += (int64_t)h0 * c->dims.qk;
        k.out += (int64_t)h0 * c->dims.v;
        k.lse = c->lse ? c->lse + h0 : NULL;
        k.sinks = c->sinks ? c->sinks + h0 : NULL;
        k.k = keys;
        k.v = values;
        k.k_ld = c->dims.qk;
        k.v_ld = c->dims.v;
        k.k_head = a->keys_max * k.k_ld;
        k.v_head = a->keys_max * k.v_ld;
        k.table = NULL;
        cpu_attn(d, &k, r0, r1);
    }
}

static int exec(struct dev *d, const void *args)
{
    (void)d; /* the device of x->a */
    const struct ref_args *x = args;
    const struct attn_call *c = &x->c;
    for (int r0 = 0, r1; r0 < c->rows; r0 = r1) {
        /* rows join while their ranges overlap: a position in a hole may have no page */
        int from = c->first[r0], to = c->last[r0];
        for (r1 = r0 + 1; r1 < c->rows && c->slot[r1] == c->slot[r0]; r1++) {
            if (c->first[r1] > to || c->last[r1] < from)
                break;
            from = c->first[r1] < from ? c->first[r1] : from;
            to = c->last[r1] > to ? c->last[r1] : to;
        }
        request(x->a, c, r0, r1, from, to);
    }
    return OK;
}

static int run(struct attn *a, const struct attn_call *c, struct err *e)
{
    TRY(attn_call_check(&a->need, &a->max, &a->plan, c, e));
    if (c->nope + c->rope != c->dims.qk || c->kv_b.k != c->kv_lora ||
        c->kv_b.n != (int64_t)c->n_head * (c->nope + c->dims.v))
        return FAIL(
            e, E_INVAL,
            "ref-mla-full: nope %d, rope %d, kv_b [%lld, %lld] do not fit %d heads of %d/%d",
            c->nope, c->rope, (long long)c->kv_b.n, (long long)c->kv_b.k, c->n_head, c->dims.qk,
            c->dims.v);
    struct ref_args x = {a, *c};
    return cpu_call(a->d, exec, &x, sizeof x);
}

static int open_full(struct attn **out, struct dev *d, const struct attn_need *n,
                     const struct graph_dims *max, struct err *e)
{
    struct attn *a;
    TRY(ref_open(&a, d, n, max, e));
    int r = dev_cpu.alloc(d, &a->work, workspace(n, max), DEV_MEM_DEVICE, e);
    if (r < 0) {
        ref_close(a);
        return r;
    }
    *out = a;
    return OK;
}

static int extra(const struct attn_need *n, struct err *why)
{
    if (n->n_kv != 1)
        return FAIL(why, E_UNSUPPORTED, "latent attention has one kv head, %d needed", n->n_kv);
    return OK;
}

const struct attn_backend ref_mla_full = {
    .name = "ref-mla-full",
    .device = "cpu",
    .caps = REF_CAPS(ATTN_MLA_DECOMPRESSED, 1u << DT_F32),
    .extra = extra,
    .workspace = workspace,
    .open = open_full,
    .plan = ref_plan,
    .run = run,
    .close = ref_close,
};
