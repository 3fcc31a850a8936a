/* "mma" and "mma-mla": CUDA backends on tensor cores for bf16 and fp8 caches, GQA and
 * absorbed MLA. A backend's workspace (partial sums of splits, counters) is taken at open; what a
 * launch needs of lengths it reads on the device, so a captured launch serves any lengths. */
#include "attention/mma/frag.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/warpgroup.cuh"

extern "C" {
#include "attention/mma/args.h"
#include "engine/base/check.h"
#include "engine/base/mem.h"
}

enum {
    SPLITS_MAX = 64,
    SHORT_ROWS = 512, /* prefill of so many rows may be split */
    N_DECODE = 4,     /* kernels of few lines, 8 lines apart */
};

struct attn {
    struct dev *d;
    struct attn_need need;
    struct graph_dims max;
    struct graph_dims plan; /* of the last plan(); rows 0 before the first */
    const struct mma_kernel *kernel[N_MMA_SIZES];
    int resident[N_MMA_SIZES];                    /* blocks that the GPU holds at once */
    const struct mma_kernel *decode[2][N_DECODE]; /* of small blocks, of one an SM */
    int decode_resident[2][N_DECODE], sms;
    void *ws;
    struct mma_args base; /* workspace addresses and what plan() chose */
    const struct mma_kernel *k;
    dim3 grid; /* for plan.rows rows; tiles are cut to a call's rows */
};

static bool prefill_role(enum role r)
{
    return r == TGT_PREFILL || r == DRF_PREFILL;
}

static const struct mma_kernel *kernel_of(const struct attn_need *n, enum mma_size size)
{
    bool fp8 = n->kv_type == DT_F8E4M3;
    if (n->kind == ATTN_MLA_ABSORBED) {
        bool fit = n->dims.qk == 576 && n->dims.v == 512;
        return !fit ? NULL : fp8 ? mma_latent_fp8(size) : mma_latent(size);
    }
    if (fp8)
        return n->dims.qk != n->dims.v ? NULL
               : n->dims.qk == 64      ? mma_gqa_64_fp8(size)
               : n->dims.qk == 128     ? mma_gqa_128_fp8(size)
                                       : NULL;
    if (size == MMA_PREFILL && wg_built(n->sm) && mma_wide(n->dims.qk, n->dims.v))
        return mma_wide(n->dims.qk, n->dims.v);
    if (n->dims.qk == 192 && n->dims.v == 128)
        return mma_gqa_192(size);
    if (n->dims.qk != n->dims.v)
        return NULL;
    switch (n->dims.qk) {
    case 64:
        return mma_gqa_64(size);
    case 80:
        return mma_gqa_80(size);
    case 96:
        return mma_gqa_96(size);
    case 128:
        return mma_gqa_128(size);
    case 256:
        return mma_gqa_256(size);
    default:
        return NULL;
    }
}

/* ---- workspace ---- */

struct layout {
    size_t lines; /* (split, row, head) that partial sums are kept for */
    size_t ml, count, active, bytes;
};

static size_t up256(size_t n)
{
    return (n + 255) & ~(size_t)255;
}

/* Few rows get up to SPLITS_MAX splits, many at least two. */
static struct layout layout_of(const struct attn_need *n, const struct graph_dims *max)
{
    size_t rows = (size_t)max->rows, heads = (size_t)n->n_head;
    if (prefill_role(n->role) && rows > SHORT_ROWS)
        rows = SHORT_ROWS;
    size_t lines = rows * heads;
    size_t least = 2 * lines, most = SPLITS_MAX * lines, some = 32768;
    struct layout l = {};
    l.lines = most < some ? most : least > some ? least : some;
    l.ml = up256(l.lines * (size_t)n->dims.v * sizeof(float));
    l.count = l.ml + up256(l.lines * 2 * sizeof(float));
    l.active = l.count + up256(lines * sizeof(int32_t));
    l.bytes = l.active + up256(rows * sizeof(int32_t));
    return l;
}

static size_t mma_workspace(const struct attn_need *n, const struct graph_dims *max)
{
    return layout_of(n, max).bytes;
}

/* ---- open ---- */

/* Blocks of the kernel that an SM holds at once, 0 when not even one fits. */
static int blocks_of(const struct mma_kernel *k)
{
    int blocks = 0;
    if (cudaFuncSetAttribute(k->fn, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)k->smem) ==
            cudaSuccess &&
        cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, k->fn, k->threads, k->smem) ==
            cudaSuccess)
        return blocks;
    cudaGetLastError(); /* it is an answer */
    return 0;
}

static int open_kernels(struct attn *a, struct err *e)
{
    const struct attn_need *n = &a->need;
    int dev = 0, room = 0;
    if (cudaGetDevice(&dev) != cudaSuccess ||
        cudaDeviceGetAttribute(&a->sms, cudaDevAttrMultiProcessorCount, dev) != cudaSuccess ||
        cudaDeviceGetAttribute(&room, cudaDevAttrMaxSharedMemoryPerBlockOptin, dev) != cudaSuccess)
        return FAIL(e, E_DEVICE, "mma attention: the device does not answer");
    for (int i = 0; i < (prefill_role(n->role) ? N_MMA_SIZES : MMA_PREFILL); i++) {
        const struct mma_kernel *k = kernel_of(n, (enum mma_size)i);
        CHECK(k);
        int blocks = blocks_of(k);
        if (blocks == 0 && (i == MMA_16 || i == MMA_PREFILL))
            return FAIL(e, E_UNSUPPORTED,
                        "mma attention: head dims %d/%d need %u bytes of shared memory a block, "
                        "this device has %d",
                        n->dims.qk, n->dims.v, k->smem, room);
        a->kernel[i] = blocks ? k : NULL;
        a->resident[i] = blocks * a->sms;
    }
    bool few = n->kind == ATTN_GQA && n->kv_type == DT_BF16 && !prefill_role(n->role);
    for (int i = 0; few && i < 2 * N_DECODE; i++) {
        bool alone = i >= N_DECODE;
        int at = i % N_DECODE;
        const struct mma_kernel *k = mma_decode(n->dims.qk, n->dims.v, 8 * (at + 1), alone);
        int fill = a->decode_resident[alone][at] = k ? blocks_of(k) * a->sms : 0;
        a->decode[alone][at] = fill ? k : NULL;
    }
    return OK;
}

static void mma_close(struct attn *a)
{
    if (a && a->ws)
        dev_find("cuda")->free(a->d, a->ws);
    mem_free(a);
}

static int mma_open_in(struct attn *a, struct err *e)
{
    struct layout l = layout_of(&a->need, &a->max);
    TRY(open_kernels(a, e));
    int page = a->need.page;
    while (page > 1) {
        page >>= 1;
        a->base.page_shift++;
    }
    TRY(dev_find("cuda")->alloc(a->d, &a->ws, l.bytes, DEV_MEM_DEVICE, e));
    char *p = (char *)a->ws;
    a->base.part = (float *)p;
    a->base.part_ml = (float *)(p + l.ml);
    a->base.count = (int32_t *)(p + l.count);
    a->base.active = (int32_t *)(p + l.active);
    return OK;
}

static int mma_open(struct attn **out, struct dev *d, const struct attn_need *n,
                    const struct graph_dims *max, struct err *e)
{
    TRY(attn_open_check(n, max, e));
    int sm = dev_find("cuda")->sm(d);
    if (n->sm != sm)
        return FAIL(e, E_INVAL,
                    "mma attention: planned for compute capability %d, this device has %d", n->sm,
                    sm);
    struct attn *a = MEM_NEW(struct attn);
    a->d = d;
    a->need = *n;
    a->max = *max;
    int r = mma_open_in(a, e);
    if (r < 0)
        mma_close(a);
    else
        *out = a;
    return r;
}

/* ---- plan ---- */

static int div_up(int a, int b)
{
    return (a + b - 1) / b;
}

/* Rows and heads of a tile, and tiles for the rows. Returns the tiles that a full step has. */
static int plan_tiles(struct attn *a, const struct graph_dims *g)
{
    struct mma_args *b = &a->base;
    int m = a->k->m, group = a->need.n_head / a->need.n_kv, rows = g->rows > 0 ? g->rows : 1;
    b->group = group;
    b->head_tiles = div_up(group, m);
    b->tile_heads = div_up(group, b->head_tiles);
    b->tile_rows = b->head_tiles > 1 ? 1 : m / group;
    bool prefill = a->k == a->kernel[MMA_PREFILL];
    if (!prefill && g->qlen < b->tile_rows)
        b->tile_rows = g->qlen > 1 ? g->qlen : 1;
    b->row_inv = UINT32_MAX / (uint32_t)b->tile_rows + 1;
    b->head_inv = 65536 / (uint32_t)b->tile_heads + 1;
    if (prefill)
        return div_up(rows, b->tile_rows);
    int tiles = g->reqs + rows / b->tile_rows;
    return b->tile_rows == 1 || tiles > rows ? rows : tiles;
}

/* Splits: as many as fill the GPU; very long keys are cut in any case, since requests differ. */
static void plan_splits(struct attn *a, const struct graph_dims *g, int tiles, int resident)
{
    struct mma_args *b = &a->base;
    size_t lines = layout_of(&a->need, &a->max).lines;
    size_t room = lines / ((size_t)(g->rows > 0 ? g->rows : 1) * (size_t)a->need.n_head);
    int likely = g->reqs > 0 && g->qlen <= b->tile_rows && g->reqs < tiles ? g->reqs : tiles;
    int blocks = likely * a->need.n_kv * b->head_tiles;
    int most = room < SPLITS_MAX ? (int)room : SPLITS_MAX,
        fill = resident / (blocks > 0 ? blocks : 1);
    b->fill = fill < 1 ? 1 : fill < most ? fill : most;
    b->splits = b->fill > SPLITS_LONG ? b->fill : SPLITS_LONG < most ? SPLITS_LONG : most;
    b->merge_apart = b->splits > 1 && (b->fill > 1 || a->need.kind != ATTN_GQA);
}

/* Few lines: equal shares or whole tiles for as many blocks as fit, large ones where an SM has at
 * most a tile. False for few tiles: there splits are faster (measured: README). */
static bool plan_shares(struct attn *a, const struct graph_dims *g, int lines)
{
    int i = (lines - 1) / 8, tiles = (g->reqs > 0 ? g->reqs : g->rows) * a->need.n_kv;
    bool alone = tiles <= a->sms;
    if (2 * tiles <= a->sms || i >= N_DECODE || !a->decode[alone][i])
        return false;
    a->k = a->decode[alone][i];
    plan_tiles(a, g);
    /* a worker may leave sums of two tiles to others */
    int most = (int)(layout_of(&a->need, &a->max).lines / (2 * (size_t)a->k->m)),
        fill = a->decode_resident[alone][i];
    a->grid = dim3((unsigned)(fill < most ? fill : most), 1, 1);
    return true;
}

static int mma_plan(struct attn *a, const struct graph_dims *g, struct err *e)
{
    TRY(graph_dims_check(&a->max, g, "attention plan", e));
    int group = a->need.n_head / a->need.n_kv, lines = group * (g->qlen > 1 ? g->qlen : 1);
    int size = lines <= 16 ? MMA_16 : lines <= 32 ? MMA_32 : MMA_64;
    if (prefill_role(
            g->role)) { /* large tiles when they fill the GPU, else smaller ones in splits */
        int tiles = div_up(g->rows * group, a->kernel[MMA_PREFILL]->m) * a->need.n_kv;
        if (g->rows > SHORT_ROWS || tiles >= a->resident[MMA_PREFILL] || !a->kernel[MMA_64])
            size = MMA_PREFILL;
    }
    while (!a->kernel[size]) /* too large for this GPU's shared memory */
        size--;
    a->plan = *g;
    a->base.splits = 1;
    a->base.fill = 1;
    a->base.merge_apart = false;
    if (plan_shares(a, g, lines))
        return OK;
    a->k = a->kernel[size];
    int tiles = plan_tiles(a, g);
    if (size != MMA_PREFILL)
        plan_splits(a, g, tiles, a->resident[size]);
    a->grid = dim3((unsigned)(a->need.n_kv * a->base.head_tiles), (unsigned)tiles,
                   (unsigned)a->base.splits);
    return OK;
}

/* ---- run ---- */

static bool aligned(const void *p)
{
    return ((uintptr_t)p & 15) == 0;
}

static int mma_run(struct attn *a, const struct attn_call *c, struct err *e)
{
    TRY(attn_call_check(&a->need, &a->max, &a->plan, c, e));
    if (!aligned(c->q) || !aligned(c->out) || !aligned(c->k) || !aligned(c->v) || c->ldq % 4 ||
        c->ldo % 4)
        return FAIL(e, E_INVAL,
                    "mma attention: query, output and cache rows must be 16-byte aligned");
    if (!(c->scale > 0))
        return FAIL(e, E_INVAL, "mma attention: scale %g is not positive", (double)c->scale);
    if (c->rows == 0)
        return OK;
    struct mma_args x = a->base;
    bool fp8 = c->kv_type == DT_F8E4M3;
    x.c = *c;
    x.c.scale *= fp8 ? c->k_scale : 1;
    x.c.v_scale = !fp8 ? 1 : c->kind == ATTN_GQA ? c->v_scale : c->k_scale;
    if (c->mask != MASK_TREE)
        x.c.ancestors = NULL; /* RANGE and BLOCK: the range is data */
    dim3 grid = a->grid;
    unsigned need =
        (unsigned)(a->k == a->kernel[MMA_PREFILL] ? div_up(c->rows, x.tile_rows) : c->rows);
    grid.y = grid.y < need ? grid.y : need;
    int r = cuda_launch(a->d, a->k->fn, grid, (unsigned)a->k->threads, a->k->smem, x);
    if (r == OK && x.merge_apart)
        r = mma_merge(a->d, &x);
    return r < 0 ? FAIL(e, r, "mma attention: the kernel for head dims %d/%d does not start",
                        c->dims.qk, c->dims.v)
                 : OK;
}

/* ---- capabilities ---- */

static int dims_built(const struct attn_need *n, struct err *why)
{
    const struct mma_kernel *k = kernel_of(n, prefill_role(n->role) ? MMA_PREFILL : MMA_16);
    if (n->kv_type == DT_F8E4M3 && !k)
        return FAIL(why, E_UNSUPPORTED, "head dims %d/%d are not built for fp8 caches", n->dims.qk,
                    n->dims.v);
    bool small = n->sm == 86 || n->sm == 89 || n->sm >= 120;
    if (k && small && k->smem > 95 * 1024)
        return FAIL(why, E_UNSUPPORTED,
                    "head dims %d/%d need more shared memory than compute capability %d has",
                    n->dims.qk, n->dims.v, n->sm);
    return OK;
}

static struct attn_caps caps(uint32_t kinds)
{
    static const struct attn_role_caps prefill = {MASK_RANGE, GRAPH_ANY, 0, false};
    static const struct attn_role_caps any = {MASK_RANGE | MASK_TREE | MASK_BLOCK, GRAPH_ANY, 0,
                                              false};
    static const struct attn_dims gqa[] = {{64, 64},   {80, 80},   {96, 96},
                                           {128, 128}, {192, 128}, {256, 256}};
    struct attn_caps c = {};
    c.kinds = kinds;
    c.kv_types = 1u << DT_BF16 | 1u << DT_F8E4M3;
    c.page_sizes = 1u << 4 | 1u << 5 | 1u << 6;
    if (kinds == ATTN_GQA)
        for (size_t i = 0; i < sizeof gqa / sizeof gqa[0]; i++)
            c.dims[i] = gqa[i];
    else
        c.dims[0] = {576, 512};
    c.sm_min = 80;
    c.cp_max = 1;
    c.lse_out = c.window = c.sinks = c.soft_cap = c.narrow = true;
    c.role[TGT_PREFILL] = c.role[DRF_PREFILL] = prefill;
    c.role[TGT_VERIFY] = c.role[DRF_EXTEND] = c.role[DRF_DECODE] = any;
    c.role[DRF_FROZEN] = c.role[DRF_BLOCK] = any;
    return c;
}

extern "C" const struct attn_backend attn_mma = {
    "mma",    "cuda",   caps(ATTN_GQA), dims_built, mma_workspace,
    mma_open, mma_plan, mma_run,        mma_close,
};
extern "C" const struct attn_backend attn_mma_mla = {
    "mma-mla", "cuda",    caps(ATTN_MLA_ABSORBED), dims_built, mma_workspace, mma_open, mma_plan,
    mma_run,   mma_close,
};
