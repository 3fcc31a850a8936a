/* "portable" and "portable-mla": CUDA backends of plain code for every GPU from sm_80 on, GQA and
 * absorbed MLA over paged fp32, bf16 or fp8 caches. No workspace; of a plan only the dimensions are
 * kept, what a step needs is in the call, so they can be captured for any shape. */
#include "attention/portable/decode.cuh"
#include "kernels/cuda/launch.cuh"

extern "C" {
#include "engine/base/check.h"
#include "engine/base/mem.h"
}

struct attn {
    struct dev *d;
    struct attn_need need;
    struct graph_dims max;
    struct graph_dims plan; /* of the last plan(); rows 0 before the first */
};

static size_t portable_workspace(const struct attn_need *n, const struct graph_dims *max)
{
    (void)n;
    (void)max;
    return 0;
}

static int portable_open(struct attn **out, struct dev *d, const struct attn_need *n,
                         const struct graph_dims *max, struct err *e)
{
    TRY(attn_open_check(n, max, e));
    struct attn *a = MEM_NEW(struct attn);
    a->d = d;
    a->need = *n;
    a->max = *max;
    *out = a;
    return OK;
}

static int portable_plan(struct attn *a, const struct graph_dims *g, struct err *e)
{
    TRY(graph_dims_check(&a->max, g, "attention plan", e));
    a->plan = *g;
    return OK;
}

static void portable_close(struct attn *a)
{
    mem_free(a);
}

template <typename KV, int QL, int VL, int HC>
static int launch(const struct attn *a, const struct attn_call *c)
{
    int group = c->n_head / c->n_kv;
    dim3 grid((unsigned)c->rows, (unsigned)c->n_kv, (unsigned)((group + HC - 1) / HC));
    return cuda_launch(a->d, portable_kernel<KV, QL, VL, HC>, grid, PORTABLE_WARPS * 32, 0, *c);
}

/* Instantiations by head dims, rounded up to 32; the listed pairs are those of the capabilities. */
template <typename KV> static int dispatch(const struct attn *a, const struct attn_call *c)
{
    int ql = (c->dims.qk + 31) / 32, vl = (c->dims.v + 31) / 32;
    if (ql <= 2 && vl <= 2)
        return launch<KV, 2, 2, 8>(a, c);
    if (ql <= 3 && vl <= 3)
        return launch<KV, 3, 3, 8>(a, c);
    if (ql <= 4 && vl <= 4)
        return launch<KV, 4, 4, 8>(a, c);
    if (ql <= 6 && vl <= 6)
        return launch<KV, 6, 6, 4>(a, c);
    if (ql <= 8 && vl <= 8)
        return launch<KV, 8, 8, 4>(a, c);
    if (ql <= 18 && vl <= 16)
        return launch<KV, 18, 16, 2>(a, c);
    return E_UNSUPPORTED;
}

static int portable_run(struct attn *a, const struct attn_call *c, struct err *e)
{
    TRY(attn_call_check(&a->need, &a->max, &a->plan, c, e));
    struct attn_call x = *c;
    if (x.mask != MASK_TREE)
        x.ancestors = NULL; /* RANGE and BLOCK: the range is data */
    bool fp8 = x.kv_type == DT_F8E4M3;
    x.v_scale = !fp8 ? 1 : x.kind == ATTN_GQA ? x.v_scale : x.k_scale;
    x.scale *= fp8 ? x.k_scale : 1;
    int r = fp8                    ? dispatch<__nv_fp8_e4m3>(a, &x)
            : x.kv_type == DT_BF16 ? dispatch<__nv_bfloat16>(a, &x)
                                   : dispatch<float>(a, &x);
    return r < 0 ? FAIL(e, r, "portable attention: the kernel for head dims %d/%d does not start",
                        c->dims.qk, c->dims.v)
                 : OK;
}

static const struct attn_role_caps PREFILL = {MASK_RANGE, GRAPH_ANY, 0, false};
static const struct attn_role_caps ANY_MASK = {MASK_RANGE | MASK_TREE | MASK_BLOCK, GRAPH_ANY, 0,
                                               false};

static struct attn_caps caps(uint32_t kinds)
{
    struct attn_caps c = {};
    c.kinds = kinds;
    c.kv_types = 1u << DT_F32 | 1u << DT_BF16 | 1u << DT_F8E4M3;
    c.page_sizes = 1u << 4 | 1u << 5 | 1u << 6;
    c.sm_min = 80;
    c.cp_max = 1;
    c.lse_out = c.window = c.sinks = c.soft_cap = c.narrow = true;
    c.role[TGT_PREFILL] = c.role[DRF_PREFILL] = PREFILL;
    c.role[TGT_VERIFY] = c.role[DRF_EXTEND] = c.role[DRF_DECODE] = ANY_MASK;
    c.role[DRF_FROZEN] = c.role[DRF_BLOCK] = ANY_MASK;
    return c;
}

static int dims_fit(const struct attn_need *n, struct err *why)
{
    if (n->dims.qk > 576 || n->dims.v > 512)
        return FAIL(why, E_UNSUPPORTED, "head dims %d/%d are above 576/512", n->dims.qk, n->dims.v);
    return OK;
}

extern "C" const struct attn_backend attn_portable = {
    "portable",    "cuda",        caps(ATTN_GQA), dims_fit,       portable_workspace,
    portable_open, portable_plan, portable_run,   portable_close,
};
extern "C" const struct attn_backend attn_portable_mla = {
    "portable-mla",     "cuda",        caps(ATTN_MLA_ABSORBED), dims_fit,
    portable_workspace, portable_open, portable_plan,           portable_run,
    portable_close,
};
