/* The operations of a decode step, one argument struct each, filled by every device.
 *
 * Shape letters: R rows of the call (a capture-time number; padding rows included), H hidden width,
 * V vocabulary, S slots, B requests of the step. Arrays are row-major; `ld*` is the distance
 * between rows in elements. Activations are fp32 on the CPU device. Every pointer is device memory
 * unless a comment says host; nothing is borrowed past the life of the recorded graph.
 *
 * An operation returns OK or E_*; on the CPU device the sum order of every output element depends
 * on K (or on absolute key positions) alone, so a row's bits do not depend on R, on its place in
 * the call, on pages, threads or neighbours. C and C++. */
#ifndef SPECD_OPS_H
#define SPECD_OPS_H

#include "engine/limits.h"
#include "kernels/device.h"
#include "kernels/dtype.h"

/* out[r,:] = E[tok[r],:]. A token outside [0, E.n) gives zeros (padding rows). */
struct op_embed {
    float *out; /* [R,H] */
    const int32_t *tok;
    struct weight e; /* [V,H] */
    int rows;
};

/* out = w * x / sqrt(mean(x^2) + eps) over `dim` (Zhang and Sennrich 2019); mean in double. `x` and
 * `out` may be the same. Row r, group g (of n_group) starts at r*ldx + g*group_stride: per-head
 * norms pass n_group = heads. */
struct op_rmsnorm {
    float *out;
    const float *x;
    struct weight w; /* [1,dim] */
    int rows, dim;
    int64_t ldx, ldo;
    int n_group;          /* >= 1 */
    int64_t group_stride; /* in x, elements */
    int64_t group_stride_out;
    float eps;
};

/* out[r,n] = (accumulate ? out[r,n] : 0) + (sum_k x[r,k] w[n,k]) + bias[n]. */
struct op_matmul {
    float *out;
    const float *x;
    struct weight w;    /* [N,K] */
    struct weight bias; /* [1,N]; p NULL: none */
    int rows;
    int64_t ldx, ldo;
    bool accumulate;
};

/* Per-head products with blocks of one weight (MLA absorption). Head h uses the rows
 * [h*w_head_stride + w_row0, … + n_rows) of w, whose width is w.k.
 * transposed = false: out_h[i] = sum_j x_h[j] w[row0+i][j],   i < n_rows, j < w.k   (o = W_UV
 * o_lat) transposed = true:  out_h[j] = sum_i x_h[i] w[row0+i][j]                          (q_lat =
 * q W_UK) */
struct op_matmul_heads {
    float *out; /* row r, head h at r*ldo + h*out_stride */
    const float *x;
    struct weight w;
    int rows, heads;
    int64_t w_head_stride, w_row0;
    int n_rows;
    int64_t ldx, x_stride, ldo, out_stride;
    bool transposed;
};

/* Rotary embedding in place on `heads` vectors of each row: head h starts at r*ldx + h*stride and
 * its first `dim` elements rotate (Su et al. 2021). cos/sin are tables [pos_max, dim/2]; the pair
 * of i is (i, i + dim/2) or, interleaved, (2i, 2i+1). */
struct op_rope {
    float *x;
    const int32_t *pos; /* [R] */
    const float *cos, *sin;
    int rows, heads, dim, pos_max;
    int64_t ldx, stride;
    bool interleaved;
};

/* cache[wslot[r], 0..width) = x[r, 0..width); wslot < 0 writes nothing. */
struct op_kv_write {
    void *cache; /* [n_slot, width]: one layer of one pool */
    enum dtype dt;
    const float *x;
    const int32_t *wslot; /* [R] */
    int rows, width;
    int64_t ldx;
};

struct op_silu_mul { /* out[r,i] = silu(gate[r,i]) * up[r,i] */
    float *out;
    const float *gate, *up;
    int rows, dim;
    int64_t ldg, ldu, ldo;
};

struct op_add { /* x += y, [R,dim] dense */
    float *x;
    const float *y;
    int rows, dim;
};

struct op_gather { /* out[m,:] = idx[m] < 0 ? 0 : x[idx[m],:] */
    float *out;
    const float *x;
    const int32_t *idx; /* [rows] */
    int rows, dim;
};

enum moe_score { MOE_SOFTMAX = 1, MOE_SIGMOID };
enum moe_group { MOE_GROUP_NONE = 1, MOE_GROUP_MAX, MOE_GROUP_TOP2_SUM };

/* Expert choice (facts of the DeepSeek-V2/V3 and Qwen3-MoE model cards): s = score(logits); the
 * choice is by s + bias; with groups only the best topk_group groups (by max or by the sum of the
 * two largest of s + bias) take part, the others count as -inf; weights are s at the picks, divided
 * by (their sum + norm_eps) when `normalize`, then times `scale`. Ties go to the lowest index.
 * Picks are stored in descending order of choice. */
struct op_moe_route {
    int32_t *ids;        /* [R,topk] */
    float *weights;      /* [R,topk] */
    const float *logits; /* [R,E] */
    const float *bias;   /* [E] fp32 or NULL */
    int rows, experts, topk, n_group, topk_group;
    enum moe_score score;
    enum moe_group group;
    bool normalize;
    float norm_eps, scale;
};

/* out[r,:] += sum over picks in stored order of weights * down(silu(gate x) * up x). The weights
 * are device arrays of `experts` descriptions, fixed for the life of the graph. */
struct op_moe_ffn {
    float *out;     /* [R,H], accumulated into */
    const float *x; /* [R,H] */
    const int32_t *ids;
    const float *weights;
    const struct weight *gate, *up, *down; /* [E] each */
    float *work;                           /* at least moe_ffn_work(rows, topk, inter, H) floats */
    int rows, hidden, inter, experts, topk;
};
static inline size_t moe_ffn_work(size_t rows, size_t topk, size_t inter, size_t hidden)
{
    return rows * topk * (2 * inter + hidden) + rows * hidden;
}

/* ---- slots and rows ---- */

/* Sampling and finish parameters of a request, written once when its slot starts. Plain data. */
struct slot_params {
    uint64_t seed;
    float temperature; /* < 1e-5: greedy */
    float top_p, min_p;
    float repetition, presence, frequency; /* neutral: 1, 0, 0 */
    int32_t top_k;                         /* <= 0: off */
    int32_t n_prompt;                      /* tokens before the first output token */
    int32_t n_out;      /* output tokens that already exist (resumed after preemption) */
    int32_t min_out;    /* stop ids are masked and do not finish before this many output tokens */
    int32_t max_out;    /* finish with FIN_LENGTH at this many */
    int32_t len_max;    /* finish with FIN_LENGTH when prompt + output reaches it (context) */
    int32_t n_logprobs; /* -1: none asked; 0..LIM_LOGPROBS alternatives */
    int32_t n_stop, n_bias;
    int32_t stop[LIM_STOP_IDS];
    int32_t bias_id[LIM_BIAS];
    float bias[LIM_BIAS];
};

enum fin { FIN_NONE, FIN_STOP, FIN_LENGTH }; /* device-side reasons */

/* Device-resident request state, one element a slot; slot 0 is padding and never live. */
struct slot_arrays {
    int32_t *gen;  /* [S] generation, compared with the step's */
    int32_t *live; /* [S] 1: takes part in steps; the device clears it when the request finishes */
    int32_t *len;  /* [S] committed length c: tokens whose KV is final */
    int32_t *root; /* [S] token at position c: sampled, no KV yet */
    int32_t *n_rows; /* [S] rows of the next verify: 1 + drafts */
    int32_t *draft;  /* [S][LIM_ROWS_PER_REQ] row tokens after the root, written by a drafter */
    int32_t *n_out;  /* [S] output tokens so far */
    int32_t *hist;   /* [S][len_max] prompt and output tokens by position (root included) */
    uint32_t *seen;  /* [S][(V+31)/32] tokens of prompt or output */
    uint16_t *count; /* [S][V] output counts, saturating */
    struct slot_params *params; /* [S] */
    int32_t n_slot, len_max, vocab;
};

/* One row list. The three position facts of a row are independent: RoPE position, visible key range
 * per KV group, write slot per KV group; nothing derives one from another later. */
struct row_arrays {
    int32_t *tok;                  /* [R] token, -1: padding */
    int32_t *slot;                 /* [R] 0: padding */
    int32_t *pos;                  /* [R] RoPE position */
    int32_t *req;                  /* [R] index of the request in the step, -1: padding */
    int32_t *first[LIM_KV_GROUPS]; /* [R] first visible key position */
    int32_t *last[LIM_KV_GROUPS];  /* [R] one past the last; first == last: sees nothing */
    int32_t *wslot[LIM_KV_GROUPS]; /* [R] pool row to write, -1: none */
};

struct slot_start { /* one starting request, host-written, part of the step's staging */
    int32_t slot, gen;
    struct slot_params params;
};

struct page_set { /* page-table update: table of `group`, [slot][index] = page */
    int32_t group, slot, index, page;
};

/* Applies the host's updates at the start of a step: stops slots, starts slots (clears counts,
 * len = 0, live), sets page-table entries, in this order: a slot may be stopped and given away in
 * one step. Reads the staging block only. */
struct op_slot_update {
    struct slot_arrays s;
    const struct slot_start *start;
    const int32_t *n_start; /* [1] */
    const int32_t *stop;    /* slots to clear */
    const int32_t *n_stop;  /* [1] */
    const struct page_set *set;
    const int32_t *n_set;          /* [1] */
    int32_t *table[LIM_KV_GROUPS]; /* [S][pages_max] */
    int32_t pages_max[LIM_KV_GROUPS];
    int n_group;
};

/* Verify rows of B requests: request i contributes n_rows[slot] rows (root, then drafts) when its
 * slot is live and its gen matches, else none. Writes req_row0, req_n and all R rows (the rest
 * padding). Row j of a request sits at position len + j. R must hold the sum; what does not fit is
 * a CHECK failure on the CPU. */
struct op_rows_build {
    struct slot_arrays s;
    struct row_arrays out;
    const int32_t *req_slot, *req_gen; /* [B], slot 0: padding */
    int32_t *req_row0, *req_n;         /* [B] */
    int reqs, rows;
};

/* Prefill rows: rows arrays tok/slot/pos/req were copied in; records them in hist/seen/count. */
struct op_rows_note {
    struct slot_arrays s;
    const int32_t *tok, *slot, *pos; /* [R] */
    int rows;
};

/* Visible range and write slot of every row for one KV group: last = pos + 1,
 * first = window > 0 ? max(0, last - window) : 0, wslot = table[slot][pos / page] * page + pos %
 * page. Padding rows get first = last = 0 and wslot = -1. */
struct op_rows_place {
    const int32_t *slot, *pos, *tok; /* [R] */
    int32_t *first, *last, *wslot;   /* [R] */
    const int32_t *table;            /* [S][pages_max] */
    int rows, pages_max, page, window;
};

/* ---- sampling ---- */

/* Row result. `logprob` is of the raw logits (log softmax before any processing). */
struct sample_out {
    int32_t token; /* -1: padding row */
    float logprob; /* NaN unless asked for */
    int32_t n_top;
    int32_t top_id[LIM_LOGPROBS];
    float top_logprob[LIM_LOGPROBS];
    int32_t bad; /* 1: a logit was NaN */
};

/* Samples row m of `logits` for the slot of row idx[m] (idx NULL: row m itself). The next token's
 * absolute position is pos[row] + 1. Order of processing (design): repetition penalty over prompt
 * and output, presence and frequency over output, bias, stop ids masked before min_out,
 * temperature, top-k, top-p (the crossing token is kept), min-p; then the argmax of
 * logit / temperature + Gumbel noise over the kept set, noise = -log(-log u) with u from
 * Philox4x32-10 (Salmon et al. 2011) keyed by the seed, counter (position, token id), through a
 * logarithm of fixed fp32 operations. Ties go to the lowest id. */
struct op_sample {
    struct slot_arrays s;
    struct row_arrays rows;
    const float *logits; /* [M,V], not modified */
    int64_t ldl;
    const int32_t *idx;     /* [M] row of each logit row, -1: none; NULL: identity */
    struct sample_out *out; /* [M] */
    float *work;            /* [M, 4 * V] */
    int m, vocab;
};

/* Log probabilities of given tokens (echo): out[m].logprob of tok[m] and the n_top[m] best. */
struct op_score {
    const float *logits; /* [M,V] */
    int64_t ldl;
    const int32_t *tok, *n_top; /* [M] host order; tok -1: skip */
    struct sample_out *out;     /* [M] */
    int m, vocab;
};

/* One record a request and step, in pinned memory. */
struct ring_rec {
    int32_t slot, gen;
    int64_t step;
    int32_t n;   /* tokens emitted, 0: the slot was dead or stale */
    int32_t fin; /* enum fin, of the last token */
    int32_t n_draft, n_accepted;
    struct sample_out tok[LIM_ROWS_PER_REQ];
};

/* Acceptance (design: sampler match): request i has rows row0..row0+n; sample m = row. Draft j is
 * accepted while it equals the sample of the row before it; the tokens emitted are the samples of
 * the accepted rows and of the first mismatch. Finish rules act per emitted token in order: a stop
 * id (not before min_out) beats length at the same token; nothing is emitted past the end. Advances
 * len, root, n_out, hist, seen, count, clears live at the end, sets n_rows = 1, writes the record.
 * Prefill (prefill = true): request i's chunk of req_n rows is committed; when last_sample[i] >= 0
 * its sample becomes the root and is emitted by the same rules. */
struct op_accept {
    struct slot_arrays s;
    struct row_arrays rows;
    const struct sample_out *sample;                      /* [M] */
    const int32_t *req_slot, *req_gen, *req_row0, *req_n; /* [B] */
    const int32_t *last_sample;                           /* [B] prefill only */
    struct ring_rec *ring;       /* [B], this step's part is chosen by *step % ring_depth */
    const int64_t *step;         /* [1] device step counter, written by the staging copy */
    int ring_depth, ring_stride; /* records of a step start at (step % depth) * stride */
    int reqs;
    bool prefill;
};

/* clang-format off */
#define OP_LIST(X)                                                                                 \
    X(embed)                                                                                       \
    X(rmsnorm) X(matmul) X(matmul_heads) X(rope) X(kv_write) X(silu_mul) X(add) X(gather)          \
        X(moe_route) X(moe_ffn) X(slot_update) X(rows_build) X(rows_note) X(rows_place) X(sample)  \
            X(score) X(accept)
/* clang-format on */

#define OP_FIELD(name) int (*name)(struct dev * d, const struct op_##name *a);
struct op_table {
    OP_LIST(OP_FIELD)
};
#undef OP_FIELD

#endif
