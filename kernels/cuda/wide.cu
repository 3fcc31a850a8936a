/* Products of 9 to 112 rows: the shape of a launch (wide.cuh has the kernel). */
#include "kernels/cuda/wide.cuh"

extern "C" {
#include "engine/base/check.h"
}

typedef CUresult encode_tiled(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                              const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                              const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                              CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

/* The driver's function that makes tensor maps; NULL: none. */
static encode_tiled *map_encoder(void)
{
    static void *fn;
    cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    if (!fn && (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &fn, 12000,
                                                 cudaEnableDefault, &found) != cudaSuccess ||
                found != cudaDriverEntryPointSuccess))
        fn = NULL;
    return (encode_tiled *)fn;
}

/* Boxes of `box` rows by WIDE_ROW bytes of dense rows; what lies outside reads as 0. */
static bool map_rows(CUtensorMap *m, enum dtype dt, const void *p, int64_t rows, int64_t k, int box)
{
    cuuint64_t size = dt == DT_BF16 ? 2 : 1;
    cuuint64_t dims[2] = {(cuuint64_t)k, (cuuint64_t)rows}, stride[1] = {(cuuint64_t)k * size};
    cuuint32_t boxes[2] = {WIDE_ROW / (cuuint32_t)size, (cuuint32_t)box}, steps[2] = {1, 1};
    CUtensorMapDataType type =
        size == 2 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_UINT8;
    return map_encoder()(m, type, 2, (void *)p, dims, stride, boxes, steps,
                         CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                         CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                         CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

/* Where the kernel was the fastest on an H200, steps of whole models decided: fp8 always; bf16 if a
 * launch has so many elements of weights. Less does not fill the device with its ring: streaming
 * up to 16 rows and cuBLASLt above are as fast or faster. More, which is a head, is cuBLASLt's from
 * 65 rows on. */
enum { WIDE_ELEMENTS_MIN = 1 << 24, WIDE_ELEMENTS_MAX = 1 << 28, WIDE_HEAD_ROWS_MAX = 64 };

bool wide_fits(const struct dev *d, const struct weight *w, int n, int rows)
{
    bool fp8 = w->dt == DT_F8E4M3;
    int64_t elements = 0;
    if (!wg_built(d->sm) || !d->stream_rows || rows < WIDE_ROWS_MIN ||
        rows > (fp8 ? WIDE_FP8_ROWS_MAX : WIDE_ROWS_MAX))
        return false;
    for (int i = 0; i < n; i++) {
        if (w[i].dt != w->dt || (!fp8 && w[i].dt != DT_BF16) || w[i].k % (fp8 ? 64 : 8) ||
            w[i].k < 128 || w[i].n < 64 || ((uintptr_t)w[i].p & 15))
            return false;
        elements += w[i].n * w[i].k;
    }
    if (!fp8 && (elements < WIDE_ELEMENTS_MIN ||
                 (elements > WIDE_ELEMENTS_MAX && rows > WIDE_HEAD_ROWS_MAX)))
        return false;
    return map_encoder();
}

static void tiles_of(struct wide_args *a, int tile, int fill)
{
    int most = a->chunks / 2 < WIDE_CLUSTER_MAX ? a->chunks / 2 : WIDE_CLUSTER_MAX;
    a->tile = tile;
    a->parts = fill / ((a->units + tile - 1) / tile);
    a->parts = a->parts < most ? a->parts : most;
    a->parts = a->parts > 1 ? a->parts : 1;
}

/* Tile and parts, as measured on an H200. Blocks fill three quarters of the room of two a
 * multiprocessor: those of the next launch, which wait with their first weights asked for, take the
 * rest. Large tiles read x less often, small ones have fewer sums to add: these, where the parts
 * would be short. */
static void choose(const struct dev *d, struct wide_args *a, bool fp8)
{
    enum { CHUNKS_MIN = 16 };
    int fill = 2 * d->n_sm * 3 / 4;
    tiles_of(a, 4, fill);
    if (fp8 ? a->units <= fill / 2 : a->parts > 1 && a->chunks / a->parts < CHUNKS_MIN)
        tiles_of(a, 2, fill);
}

static void set_sizes(const struct dev *d, struct wide_args *a, const struct wide *p)
{
    bool fp8 = p->w[0].dt == DT_F8E4M3;
    a->chunks = (int)cuda_div_up(p->w[0].k, fp8 ? 128 : 64);
    for (int i = 0; i < p->n; i++) {
        a->w[i].unit0 = a->units;
        a->units += (int)cuda_div_up(p->w[i].n, WIDE_UNIT);
    }
    choose(d, a, fp8);
}

template <int N, bool FP8> static int launch(struct dev *d, struct wide_args *a)
{
    auto kernel = wide_kernel<N, FP8>;
    static size_t allowed = 0;
    int width = a->tile * WIDE_UNIT, stage = width * WIDE_ROW + N * (FP8 ? 256 : 128);
    int per_part = (a->chunks + a->parts - 1) / a->parts;
    int scales = FP8 ? a->tile * per_part * 4 : 0, tail = (int)sizeof(struct wide_tail) + scales;
    a->stages = (WIDE_SMEM - tail) / stage;
    a->stages = a->stages < WIDE_STAGES_MAX ? a->stages : WIDE_STAGES_MAX;
    a->stages = a->stages < per_part ? a->stages : per_part;
    CHECK(a->stages > 0);
    int ring = a->stages * stage, sums = N * (width + 4) * 4;
    a->ring = ring > sums ? ring : sums;
    size_t smem = (size_t)(a->ring + tail);
    if (smem > allowed) {
        if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem) !=
                cudaSuccess ||
            cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                 cudaSharedmemCarveoutMaxShared) != cudaSuccess)
            return E_DEVICE;
        allowed = smem;
    }
    int tiles = (a->units + a->tile - 1) / a->tile;
    return cuda_launch_cluster(d, kernel, dim3((unsigned)(tiles * a->parts)), WIDE_THREADS, smem,
                               (unsigned)a->parts, *a);
}

template <bool FP8> static int launch_rows(struct dev *d, struct wide_args *a, int n)
{
    switch (n) {
    case 16:
        return launch<16, FP8>(d, a);
    case 32:
        return launch<32, FP8>(d, a);
    case 64:
        return launch<64, FP8>(d, a);
    }
    if constexpr (!FP8)
        switch (n) {
        case 48:
            return launch<48, FP8>(d, a);
        case 80:
            return launch<80, FP8>(d, a);
        case 96:
            return launch<96, FP8>(d, a);
        case 112:
            return launch<112, FP8>(d, a);
        }
    return E_DEVICE;
}

/* A head with a norm is a tile: sixteen lanes have what a row has of it. */
bool wide_places(const struct dev *d, const struct wide *p, const struct op_qkv_place *place)
{
    const struct op_qkv_place &o = *place;
    if (o.hd % (2 * WIDE_UNIT) || o.ldq % 4 || !cuda_aligned(o.q) || !cuda_aligned(o.cos) ||
        !cuda_aligned(o.sin) || !cuda_aligned(o.k_cache) || !cuda_aligned(o.v_cache))
        return false;
    if (!o.q_norm.p && !o.k_norm.p)
        return true;
    struct wide_args a = {};
    set_sizes(d, &a, p);
    return o.q_norm.p && o.k_norm.p && cuda_aligned(o.q_norm.p) && cuda_aligned(o.k_norm.p) &&
           o.hd == 128 && o.ldk % 4 == 0 && o.ldv % 4 == 0 && o.hd == a.tile * WIDE_UNIT;
}

int wide_run(struct dev *d, const struct wide *p)
{
    struct wide_args a = {};
    bool fp8 = p->w[0].dt == DT_F8E4M3;
    int n = (int)cuda_div_up(p->rows, 16) * 16;
    if (fp8)
        n = n <= 32 ? n : 64;
    int64_t k = p->w[0].k;
    a.rows = p->rows;
    a.n_w = p->n;
    set_sizes(d, &a, p);
    a.accumulate = p->accumulate;
    a.silu = p->silu;
    a.pairs = p->pairs;
    a.placed = p->place != NULL;
    if (a.placed)
        a.place = *p->place;
    bool ok = true;
    for (int i = 0; i < p->n; i++) {
        struct wide_weight *w = &a.w[i];
        ok = ok && map_rows(&w->map, p->w[i].dt, p->w[i].p, p->w[i].n, k, WIDE_UNIT);
        w->scale = p->w[i].scale;
        w->scale_dt = p->w[i].scale_dt;
        w->out = p->out[i];
        w->ldo = p->ldo[i];
        w->bias = p->bias[i].p;
        w->bias_dt = p->bias[i].dt;
        w->n = (int)p->w[i].n;
        w->vec = w->n % 4 == 0 && w->ldo % 4 == 0 && ((uintptr_t)w->out & 15) == 0;
    }
    if (!ok || !map_rows(&a.x, DT_BF16, p->x, p->rows, k, n))
        return E_DEVICE;
    return fp8 ? launch_rows<true>(d, &a, n) : launch_rows<false>(d, &a, n);
}
