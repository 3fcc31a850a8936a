/* "ref-gqa": multi-head and grouped-query attention over a paged cache of fp32, bf16 or fp8, any
 * head dims, any page size, every role. */
#include "attention/ref/ref.h"

#include "kernels/cpu/cpu.h"

static int exec(struct dev *d, const void *args)
{
    const struct attn_call *c = &((const struct ref_args *)args)->c;
    struct cpu_attn k = ref_core_args(c);
    k.k = c->k;
    k.v = c->v;
    k.k_ld = (int64_t)c->n_kv * c->dims.qk;
    k.v_ld = (int64_t)c->n_kv * c->dims.v;
    k.k_head = c->dims.qk;
    k.v_head = c->dims.v;
    cpu_attn(d, &k, 0, c->rows);
    return OK;
}

static int run(struct attn *a, const struct attn_call *c, struct err *e)
{
    TRY(attn_call_check(&a->need, &a->max, &a->plan, c, e));
    struct ref_args x = {a, *c};
    return cpu_call(a->d, exec, &x, sizeof x);
}

const struct attn_backend ref_gqa = {
    .name = "ref-gqa",
    .device = "cpu",
    .caps = REF_CAPS(ATTN_GQA, REF_KV),
    .workspace = ref_workspace,
    .open = ref_open,
    .plan = ref_plan,
    .run = run,
    .close = ref_close,
};
