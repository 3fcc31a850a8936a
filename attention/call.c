/* The checks that every backend makes when it is opened and before it launches. */
#include "attention/attn.h"

int attn_open_check(const struct attn_need *n, const struct graph_dims *max, struct err *e)
{
    if (n->role != max->role)
        return FAIL(e, E_INVAL, "attention: need is for role %s, dims for %s", role_name(n->role),
                    role_name(max->role));
    if (n->page < 1)
        return FAIL(e, E_INVAL, "attention: page size %d is not chosen", n->page);
    return OK;
}

int attn_call_check(const struct attn_need *n, const struct graph_dims *max,
                    const struct graph_dims *plan, const struct attn_call *c, struct err *e)
{
    if (c->role != n->role)
        return FAIL(e, E_INVAL, "attention run: role %s, opened for %s", role_name(c->role),
                    role_name(n->role));
    if (c->mask != n->mask)
        return FAIL(e, E_INVAL, "attention run: mask %d, opened for %d", (int)c->mask,
                    (int)n->mask);
    if (c->kind != n->kind || c->kv_type != n->kv_type)
        return FAIL(e, E_INVAL, "attention run: kind %d type %s, opened for kind %d type %s",
                    (int)c->kind, dtype_name(c->kv_type), (int)n->kind, dtype_name(n->kv_type));
    bool fp8 = c->kv_type == DT_F8E4M3, mla = c->kind != ATTN_GQA;
    if (fp8 && (!(c->k_scale > 0) || (!mla && !(c->v_scale > 0))))
        return FAIL(e, E_INVAL, "attention run: scales %g and %g of an fp8 cache are not positive",
                    (double)c->k_scale, (double)c->v_scale);
    if (c->n_head != n->n_head || c->n_kv != n->n_kv || c->dims.qk != n->dims.qk ||
        c->dims.v != n->dims.v)
        return FAIL(e, E_INVAL, "attention run: heads %d/%d dims %d/%d, opened for %d/%d %d/%d",
                    c->n_head, c->n_kv, c->dims.qk, c->dims.v, n->n_head, n->n_kv, n->dims.qk,
                    n->dims.v);
    if (c->rows < 0 || c->rows > plan->rows)
        return FAIL(e, E_INVAL, "attention run: %d rows, planned for %d", c->rows, plan->rows);
    if (c->page != n->page || c->pages_max > max->pages)
        return FAIL(e, E_INVAL, "attention run: pages %d x %d, opened for %d x %d", c->pages_max,
                    c->page, max->pages, n->page);
    if (c->cp_world > 1 || c->cp_rank != 0)
        return FAIL(e, E_INVAL, "attention run: context-parallel rank %d of %d, only 0 of 1",
                    c->cp_rank, c->cp_world);
    if (c->mask == MASK_TREE && (!c->ancestors || !c->row0))
        return FAIL(e, E_INVAL, "attention run: a tree mask needs ancestors and row0");
    return OK;
}
