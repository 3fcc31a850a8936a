/* cuBLASLt products and the choice of their algorithms.
 *
 * The library's heuristic gives several candidates for a shape. While graphs are recorded at
 * start-up, when nothing runs, they are timed once on a stream of their own, cold, and the fastest
 * is kept for (n, k, bucket of m); later shapes take the plan of the nearest bucket, or the
 * heuristic's first. Nothing is allocated: a trial's operands are the scratch (whatever it holds)
 * and the weight itself, its result goes to the scratch. */
#include "kernels/cuda/gemm.cuh"

extern "C" {
#include "engine/base/check.h"
}

enum { TRIALS = 12, REPEATS = 3 };
static const int64_t TIMED_MIN = (int64_t)1 << 20; /* weights of fewer elements are not timed */

struct shape {
    cublasLtMatmulDesc_t op;
    cublasLtMatrixLayout_t a, b, c;
};

static bool batched(cublasLtMatrixLayout_t m, int batch, int64_t step)
{
    return cublasLtMatrixLayoutSetAttribute(m, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch,
                                            sizeof batch) == CUBLAS_STATUS_SUCCESS &&
           cublasLtMatrixLayoutSetAttribute(m, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &step,
                                            sizeof step) == CUBLAS_STATUS_SUCCESS;
}

static bool shape_open(struct shape *s, const struct gemm *g, int m)
{
    *s = {};
    cublasOperation_t t = CUBLAS_OP_T, no = CUBLAS_OP_N;
    return cublasLtMatmulDescCreate(&s->op, CUBLAS_COMPUTE_32F, CUDA_R_32F) ==
               CUBLAS_STATUS_SUCCESS &&
           cublasLtMatmulDescSetAttribute(s->op, CUBLASLT_MATMUL_DESC_TRANSA, &t, sizeof t) ==
               CUBLAS_STATUS_SUCCESS &&
           cublasLtMatmulDescSetAttribute(s->op, CUBLASLT_MATMUL_DESC_TRANSB, &no, sizeof no) ==
               CUBLAS_STATUS_SUCCESS &&
           cublasLtMatrixLayoutCreate(&s->a, CUDA_R_16BF, (uint64_t)g->k, (uint64_t)g->n, g->k) ==
               CUBLAS_STATUS_SUCCESS &&
           cublasLtMatrixLayoutCreate(&s->b, CUDA_R_16BF, (uint64_t)g->k, (uint64_t)m, g->k) ==
               CUBLAS_STATUS_SUCCESS &&
           cublasLtMatrixLayoutCreate(&s->c, g->narrow ? CUDA_R_16BF : CUDA_R_32F, (uint64_t)g->n,
                                      (uint64_t)m, g->ldo) == CUBLAS_STATUS_SUCCESS &&
           (g->batch < 2 || (batched(s->a, g->batch, g->w_step) && batched(s->b, g->batch, 0) &&
                             batched(s->c, g->batch, g->out_step)));
}

static void shape_close(struct shape *s)
{
    if (s->a)
        cublasLtMatrixLayoutDestroy(s->a);
    if (s->b)
        cublasLtMatrixLayoutDestroy(s->b);
    if (s->c)
        cublasLtMatrixLayoutDestroy(s->c);
    if (s->op)
        cublasLtMatmulDescDestroy(s->op);
}

/* Parts of K are added in fp32, never in the results' own type. */
static int candidates(struct dev *d, const struct shape *s, bool narrow,
                      cublasLtMatmulHeuristicResult_t *h, int cap)
{
    cublasLtMatmulPreference_t pref;
    if (cublasLtMatmulPreferenceCreate(&pref) != CUBLAS_STATUS_SUCCESS)
        return 0;
    size_t ws = CUDA_LT_BYTES;
    uint32_t sums = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    if (!narrow)
        sums |= CUBLASLT_REDUCTION_SCHEME_INPLACE;
    int n = 0;
    cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &ws,
                                         sizeof ws);
    cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &sums,
                                         sizeof sums);
    cublasStatus_t st =
        cublasLtMatmulAlgoGetHeuristic(d->lt, s->op, s->a, s->b, s->c, s->c, pref, cap, h, &n);
    cublasLtMatmulPreferenceDestroy(pref);
    return st == CUBLAS_STATUS_SUCCESS ? n : 0;
}

static int run_algo(struct dev *d, const struct shape *s, const struct gemm *g, void *out,
                    const cublasLtMatmulAlgo_t *algo, cudaStream_t stream)
{
    float one = 1, beta = g->accumulate ? 1 : 0;
    return cublasLtMatmul(d->lt, s->op, &one, g->w, s->a, g->x, s->b, &beta, out, s->c, out, s->c,
                          algo, d->lt_ws, CUDA_LT_BYTES, stream) == CUBLAS_STATUS_SUCCESS
               ? OK
               : E_DEVICE;
}

/* Rows are planned by bucket: exact where decoding lives, coarse above. */
static int bucket(int m)
{
    static const int at[] = {24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048, 4096};
    for (int b : at)
        if (m <= b)
            return b;
    return 8192;
}

/* The index of the fastest candidate. Between runs the second-level cache is overwritten, so that
 * weights come from memory as they do in a step. */
static int fastest(struct dev *d, const struct shape *s, const struct gemm *g,
                   const cublasLtMatmulHeuristicResult_t *h, int n)
{
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    cudaThreadExchangeStreamCaptureMode(&mode);
    char *trash = d->scratch, *out = d->scratch + CUDA_SCRATCH_BYTES / 2;
    int best = 0;
    float best_ms = INFINITY;
    for (int i = 0; i < n; i++) {
        float ms_min = INFINITY;
        for (int j = 0; j < REPEATS; j++) {
            float ms = INFINITY;
            bool cold = cudaMemsetAsync(trash, 0x3c, (size_t)96 << 20, d->trial) == cudaSuccess;
            cudaEventRecord(d->trial_at[0], d->trial);
            if (!cold || run_algo(d, s, g, out, &h[i].algo, d->trial) != OK)
                break;
            cudaEventRecord(d->trial_at[1], d->trial);
            if (cudaEventSynchronize(d->trial_at[1]) != cudaSuccess ||
                cudaEventElapsedTime(&ms, d->trial_at[0], d->trial_at[1]) != cudaSuccess)
                break;
            if (j && ms < ms_min) /* the first run may load code */
                ms_min = ms;
            if (ms > 2 * best_ms)
                break;
        }
        if (ms_min < best_ms) {
            best_ms = ms_min;
            best = i;
        }
    }
    cudaGetLastError(); /* a candidate that does not run is no fault of what follows */
    cudaThreadExchangeStreamCaptureMode(&mode);
    return best;
}

static const struct cuda_plan *find(const struct dev *d, const struct gemm *g, int b, bool near)
{
    const struct cuda_plan *best = NULL;
    for (int i = 0; i < d->n_plan; i++) {
        const struct cuda_plan *p = &d->plan[i];
        if (p->n != g->n || p->k != g->k || p->accumulate != g->accumulate ||
            p->narrow != g->narrow || p->batch != g->batch)
            continue;
        if (p->m == b)
            return p;
        if (near && (!best || labs((long)p->m - b) < labs((long)best->m - b)))
            best = p;
    }
    return best;
}

static const struct cuda_plan *keep(struct dev *d, const struct gemm *g, int b,
                                    const cublasLtMatmulAlgo_t *algo)
{
    struct cuda_plan *p = &d->plan[d->n_plan < CUDA_PLANS_MAX ? d->n_plan++ : CUDA_PLANS_MAX - 1];
    *p = {};
    p->m = b;
    p->n = g->n;
    p->k = g->k;
    p->accumulate = g->accumulate;
    p->narrow = g->narrow;
    p->batch = g->batch;
    p->algo = *algo;
    return p;
}

/* Chooses for bucket b; the trial has at most as many rows as the scratch holds. */
static const struct cuda_plan *choose(struct dev *d, const struct gemm *g, int b)
{
    cublasLtMatmulHeuristicResult_t h[TRIALS];
    struct gemm t = *g;
    int64_t half = (int64_t)(CUDA_SCRATCH_BYTES / 2), m = b;
    int64_t row = g->ldo * 4 * (g->batch > 1 ? g->batch : 1);
    m = m * row > half ? half / row : m;
    m = m * g->k * 2 > half ? half / (g->k * 2) : m;
    t.out_step = m * g->ldo;
    struct shape s;
    const struct cuda_plan *p = NULL;
    t.x = d->scratch;
    t.m = (int)m;
    if (m > 0 && shape_open(&s, &t, t.m)) {
        bool timed = d->recording && !d->frozen && g->n * g->k >= TIMED_MIN;
        int n = candidates(d, &s, g->narrow, h, timed ? TRIALS : 1);
        if (n > 0)
            p = keep(d, g, b, &h[n > 1 ? fastest(d, &s, &t, h, n) : 0].algo);
        shape_close(&s);
    }
    return p;
}

static const struct cuda_plan *plan(struct dev *d, const struct gemm *g)
{
    static const int coarse[] = {512, 2048,
                                 8192}; /* prefill is not recorded: no trial comes later */
    int b = bucket(g->m);
    const struct cuda_plan *p = find(d, g, b, d->frozen);
    if (p)
        return p;
    if (d->recording && !d->frozen && g->n * g->k >= TIMED_MIN && !find(d, g, b, true))
        for (int c : coarse)
            if (c != b)
                choose(d, g, c);
    return choose(d, g, b);
}

int gemm_run(struct dev *d, const struct gemm *g)
{
    struct shape s;
    int r = E_DEVICE;
    if (shape_open(&s, g, g->m)) {
        const struct cuda_plan *p = plan(d, g);
        cublasLtMatmulHeuristicResult_t check, h;
        /* a plan of other rows may not do for these */
        if (p &&
            cublasLtMatmulAlgoCheck(d->lt, s.op, s.a, s.b, s.c, s.c, &p->algo, &check) ==
                CUBLAS_STATUS_SUCCESS &&
            check.workspaceSize <= CUDA_LT_BYTES)
            r = run_algo(d, &s, g, g->out, &p->algo, d->stream);
        else if (candidates(d, &s, g->narrow, &h, 1) == 1)
            r = run_algo(d, &s, g, g->out, &h.algo, d->stream);
    }
    shape_close(&s);
    return r;
}
