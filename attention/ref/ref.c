/* What the CPU reference backends share: opening, planning, and the checks of a call. Masks: RANGE
 * and BLOCK are the same thing here, since a row's visible range is data and nothing assumes that
 * it ends at the row; TREE takes the row's ancestor bits for the keys of the step's own rows. */
#include "attention/ref/ref.h"

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
    if (n->role != max->role)
        return FAIL(e, E_INVAL, "attention: need is for role %s, dims for %s", role_name(n->role),
                    role_name(max->role));
    if (n->page < 1)
        return FAIL(e, E_INVAL, "attention: page size %d is not chosen", n->page);
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

int ref_call_check(const struct attn *a, const struct attn_call *c, struct err *e)
{
    const struct attn_need *n = &a->need;
    if (c->role != n->role)
        return FAIL(e, E_INVAL, "attention run: role %s, opened for %s", role_name(c->role),
                    role_name(n->role));
    if (c->mask != n->mask)
        return FAIL(e, E_INVAL, "attention run: mask %d, opened for %d", (int)c->mask,
                    (int)n->mask);
    if (c->kind != n->kind || c->kv_type != n->kv_type)
        return FAIL(e, E_INVAL, "attention run: kind %d type %s, opened for kind %d type %s",
                    (int)c->kind, dtype_name(c->kv_type), (int)n->kind, dtype_name(n->kv_type));
    if (c->n_head != n->n_head || c->n_kv != n->n_kv || c->dims.qk != n->dims.qk ||
        c->dims.v != n->dims.v)
        return FAIL(e, E_INVAL, "attention run: heads %d/%d dims %d/%d, opened for %d/%d %d/%d",
                    c->n_head, c->n_kv, c->dims.qk, c->dims.v, n->n_head, n->n_kv, n->dims.qk,
                    n->dims.v);
    if (c->rows < 0 || c->rows > a->plan.rows)
        return FAIL(e, E_INVAL, "attention run: %d rows, planned for %d", c->rows, a->plan.rows);
    if (c->page != n->page || c->pages_max > a->max.pages)
        return FAIL(e, E_INVAL, "attention run: pages %d x %d, opened for %d x %d", c->pages_max,
                    c->page, a->max.pages, n->page);
    if (c->cp_world > 1 || c->cp_rank != 0)
        return FAIL(e, E_INVAL, "attention run: context-parallel rank %d of %d, only 0 of 1",
                    c->cp_rank, c->cp_world);
    if (c->mask == MASK_TREE && (!c->ancestors || !c->row0))
        return FAIL(e, E_INVAL, "attention run: a tree mask needs ancestors and row0");
    return OK;
}

struct cpu_attn ref_core_args(const struct attn_call *c)
{
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
