/* What the CPU reference backends share: opening, planning, and what the core needs of a call.
 * Masks: RANGE and BLOCK are the same thing here, since a row's visible range is data and nothing
 * assumes that it ends at the row; TREE takes the row's ancestor bits for the step's own rows. */
#include "attention/ref/ref.h"

#include "engine/base/check.h"
#include "engine/base/mem.h"

size_t ref_workspace(const struct attn_need *n, const struct graph_dims *max)
{
    (void)n;
    (void)max;
    return 0; /* scores live in the device's thread scratch */
}

int ref_open(struct attn **out, struct dev *d, const struct attn_need *n,
             const struct graph_dims *max, struct err *e)
{
    TRY(attn_open_check(n, max, e));
    int64_t keys = (int64_t)max->pages * n->page;
    if (keys > cpu_attn_keys_max())
        return FAIL(e, E_UNSUPPORTED, "attention: %d pages of %d tokens, at most %d tokens",
                    max->pages, n->page, cpu_attn_keys_max());
    struct attn *a = MEM_NEW(struct attn);
    a->d = d;
    a->need = *n;
    a->max = *max;
    a->keys_max = (int)keys;
    *out = a;
    return OK;
}

int ref_plan(struct attn *a, const struct graph_dims *g, struct err *e)
{
    TRY(graph_dims_check(&a->max, g, "attention plan", e));
    a->plan = *g;
    return OK;
}

void ref_close(struct attn *a)
{
    if (!a)
        return;
    dev_cpu.free(a->d, a->work);
    mem_free(a);
}

struct cpu_attn ref_core_args(const struct attn_call *c)
{
    CHECK(!c->narrow);
    return (struct cpu_attn){.n_head = c->n_head,
                             .n_kv = c->n_kv,
                             .dk = c->dims.qk,
                             .dv = c->dims.v,
                             .q = c->q,
                             .ldq = c->ldq,
                             .out = c->out,
                             .ldo = c->ldo,
                             .lse = c->lse,
                             .ld_lse = c->n_head,
                             .dt = c->kv_type,
                             .k_scale = c->k_scale,
                             .v_scale = c->kind == ATTN_GQA ? c->v_scale : c->k_scale,
                             .slot = c->slot,
                             .first = c->first,
                             .last = c->last,
                             .table = c->table,
                             .pages_max = c->pages_max,
                             .page = c->page,
                             .scale = c->scale,
                             .soft_cap = c->soft_cap,
                             .sinks = c->sinks,
                             .ancestors = c->mask == MASK_TREE ? c->ancestors : NULL,
                             .row0 = c->row0};
}
