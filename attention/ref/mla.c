/* "ref-mla": latent attention in the absorbed form. Keys are whole pool rows [latent | rotated
 * k_pe], values the latent part of the same row, one KV head for all query heads. */
#include "attention/ref/ref.h"

#include "kernels/cpu/cpu.h"

static int exec(struct dev *d, const void *args)
{
    const struct attn_call *c = &((const struct ref_args *)args)->c;
    struct cpu_attn k = ref_core_args(c);
    k.k = k.v = c->k;
    k.k_ld = k.v_ld = c->dims.qk;
    cpu_attn(d, &k, 0, c->rows);
    return OK;
}

static int run(struct attn *a, const struct attn_call *c, struct err *e)
{
    TRY(attn_call_check(&a->need, &a->max, &a->plan, c, e));
    if (c->kv_lora + c->rope != c->dims.qk || c->kv_lora != c->dims.v)
        return FAIL(e, E_INVAL, "ref-mla: latent %d and rope %d do not make head dims %d/%d",
                    c->kv_lora, c->rope, c->dims.qk, c->dims.v);
    struct ref_args x = {a, *c};
    return cpu_call(a->d, exec, &x, sizeof x);
}

static int extra(const struct attn_need *n, struct err *why)
{
    if (n->n_kv != 1)
        return FAIL(why, E_UNSUPPORTED, "latent attention has one kv head, %d needed", n->n_kv);
    if (n->dims.qk < n->dims.v)
        return FAIL(why, E_UNSUPPORTED, "head dims %d/%d: the key is shorter than its latent part",
                    n->dims.qk, n->dims.v);
    return OK;
}

const struct attn_backend ref_mla = {
    .name = "ref-mla",
    .device = "cpu",
    .caps = REF_CAPS(ATTN_MLA_ABSORBED, REF_KV),
    .extra = extra,
    .workspace = ref_workspace,
    .open = ref_open,
    .plan = ref_plan,
    .run = run,
    .close = ref_close,
};
