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
    int64_t ldo; /* 0: H */
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

/* out[r,n] = (accumulate ? out[r,n] : 0) + (sum_k x[r,k] w[n,k]) + bias[n]. With `narrow` x holds
 * bf16: only where the table's `narrow` says that such rows are taken. */
struct op_matmul {
    float *out;
    const float *x;
    struct weight w;    /* [N,K] */
    struct weight bias; /* [1,N]; p NULL: none */
    int rows;
    int64_t ldx, ldo;
    bool accumulate, narrow;
};

/* Up to three products of the same rows: y = norm.p ? rmsnorm(x, norm, eps) : x (see op_rmsnorm),
 * out[i][r,n] = (sum_k y[r,k] w[i][n,k]) + bias[i][n]. The outputs must not overlap x or each
 * other. */
struct op_proj {
    const float *x;     /* [R,K] */
    struct weight norm; /* [1,K]; p NULL: none */
    float *y;           /* [R,K] dense scratch, undefined afterwards; unused without a norm */
    int rows, n;        /* n: products, 1 to 3 */
    int64_t ldx;
    float eps;
    struct weight w[3];    /* [N_i,K] */
    struct weight bias[3]; /* [1,N_i]; p NULL: none */
    float *out[3];
    int64_t ldo[3];
};

/* Gated MLP: out[r,:] += down(silu(gate y) * up y) with a bias after each product, y as in op_proj.
 * x and out may be the same memory. */
struct op_mlp {
    float *out;         /* [R,H] */
    const float *x;     /* [R,K] */
    struct weight norm; /* [1,K]; p NULL: none */
    float *y;           /* [R,K] dense scratch, undefined afterwards; unused without a norm */
    struct weight gate, up, down;       /* [I,K], [I,K], [H,I] */
    struct weight gate_b, up_b, down_b; /* p NULL: none */
    float *g, *u;                       /* [R,I] dense scratch, undefined afterwards */
    int rows;
    int64_t ldx, ldo;
    float eps;
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

/* Caches are F32, BF16 (to nearest even) or F8E4M3. The last keeps e4m3(x * (1 / scale)), the
 * factor rounded to fp32 once, as dtype_f32_to_f8e4m3 converts: to nearest even, saturating, NaN
 * stays NaN. Who reads multiplies by the scale. Scales are > 0, and not looked at for other types.
 */

/* cache[wslot[r], 0..width) = x[r, 0..width); wslot < 0 writes nothing. */
struct op_kv_write {
    void *cache; /* [n_slot, width]: one layer of one pool */
    enum dtype dt;
    const float *x;
    const int32_t *wslot; /* [R] */
    int rows, width;
    int64_t ldx;
    float scale;
};

/* Queries, keys and values of grouped-query attention after their products: RMSNorm of every head
 * of q and k (as op_rmsnorm over hd; p NULL: none), half-split rotation of all of q and k (as
 * op_rope), then k_cache[wslot[r]] = k[r], v_cache[wslot[r]] = v[r] where wslot[r] >= 0. q is
 * changed in place; k is undefined afterwards. */
struct op_qkv_place {
    float *q, *k;                 /* [R, n_head * hd], [R, n_kv * hd] */
    const float *v;               /* [R, n_kv * hd] */
    struct weight q_norm, k_norm; /* [1,hd] */
    const int32_t *pos, *wslot;   /* [R] */
    const float *cos, *sin;       /* [pos_max, hd / 2] */
    void *k_cache, *v_cache;      /* [n_slot, n_kv * hd]: one layer of one pool */
    enum dtype dt;
    int rows, n_head, n_kv, hd, pos_max;
    int64_t ldq, ldk, ldv;
    float eps, k_scale, v_scale;
};

/* op_proj of q, k and v (n = 3: out are q, k and v of `place`), then op_qkv_place: k and v are
 * undefined afterwards. */
struct op_qkv {
    struct op_proj proj;
    struct op_qkv_place place;
};

/* Queries and the latent row of MLA after their products. kv[r] = [latent | k_pe]: where wslot[r]
 * >= 0, cache[wslot[r]] = [rmsnorm(latent) | rotated k_pe]; kv is undefined afterwards. The first
 * `rope` elements of head h at q + r*ldq + h*q_stride are rotated into q_out + r*ldo +
 * h*out_stride, which is either the same place or does not overlap q. */
struct op_mla_place {
    float *kv;          /* [R, lora + rope] */
    struct weight norm; /* [1,lora] */
    const float *q;
    float *q_out;
    const int32_t *pos, *wslot; /* [R] */
    const float *cos, *sin;     /* [pos_max, rope / 2] */
    void *cache;                /* [n_slot, lora + rope] */
    enum dtype dt;
    int rows, heads, lora, rope, pos_max;
    int64_t ldkv, ldq, q_stride, ldo, out_stride;
    float eps, scale;
    bool interleaved;
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
    const int32_t *idx; /* [rows]; NULL: idx[m] = m */
    int rows, dim;
    int64_t ldx, ldo; /* 0: dim */
};

enum moe_score { MOE_SOFTMAX = 1, MOE_SIGMOID };
enum moe_group { MOE_GROUP_NONE = 1, MOE_GROUP_MAX, MOE_GROUP_TOP2_SUM };

/* Expert choice (facts of the DeepSeek-V2/V3 and Qwen3-MoE model cards): s = score(logits); the
 * choice is by s + bias; with groups only the best topk_group groups (by max or by the sum of the
 * two largest of s + bias) take part, the others count as -inf; weights are s at the picks, divided
 * by (their sum + norm_eps) when `normalize`, then times `scale`. Ties go to the lowest index.
 * Picks are stored in descending order of choice. With a router the logits are those of its product
 * with x or, with a norm, with y = norm(x), which stays for the experts; they are written first. */
struct op_moe_route {
    int32_t *ids;         /* [R,topk] */
    float *weights;       /* [R,topk] */
    float *logits;        /* [R,E] */
    struct weight router; /* [E,H]; p NULL: the logits are there */
    const float *x;       /* [R,H] */
    struct weight norm;   /* [1,H]; p NULL: none */
    float *y;             /* [R,H], written with a norm */
    const float *bias;    /* [E] fp32 or NULL */
    int rows, experts, topk, n_group, topk_group;
    enum moe_score score;
    enum moe_group group;
    bool normalize;
    float norm_eps, scale, eps; /* eps: the norm's */
};

/* out[r,:] += sum over picks in stored order of weights * down(silu(gate x) * up x), then the same
 * of the shared MLP, which every row takes with weight 1. An id outside [0, experts) is no pick.
 * The experts' weights are device arrays of `experts` descriptions, fixed for the life of the
 * graph. */
struct op_moe_ffn {
    float *out;     /* [R,H], accumulated into */
    const float *x; /* [R,H] */
    const int32_t *ids;
    const float *weights;
    const struct weight *gate, *up, *down; /* [E] each */
    enum dtype
        dt; /* of all of these weights, 16-byte aligned on the device; DT_NONE: they differ */
    struct weight sh_gate, sh_up, sh_down; /* [I',H], [I',H], [H,I']; p NULL: no shared MLP */
    float *work; /* at least moe_ffn_work(rows, topk, inter, I', H) floats */
    int rows, hidden, inter, experts, topk;
};
/* A shared MLP may be worked on as so many experts of the others' width (or 1 of its own). */
static inline int moe_slices(int inter, int shared)
{
    return shared == 0 ? 0 : inter % 128 == 0 && shared % inter == 0 ? shared / inter : 1;
}
static inline size_t moe_ffn_work(size_t rows, size_t topk, size_t inter, size_t shared,
                                  size_t hidden)
{
    size_t slices = (size_t)moe_slices((int)inter, (int)shared);
    return rows * (topk * (2 * inter + hidden) + (1 + slices) * hidden + 2 * shared) +
           4 * rows * topk + 8192; /* lists of picks */
}
/* In the work area: [R, 2 I'] for the products of the shared MLP. */
static inline float *moe_ffn_shared(const struct op_moe_ffn *a)
{
    return a->work + (size_t)a->rows * (size_t)(a->topk * (2 * a->inter + a->hidden) + a->hidden);
}

/* ---- slots and rows ---- */

/* out[(*step % depth) * stride + index] = the device's clock in nanoseconds, for the times of the
 * parts of one launch; pinned memory. An operation of its own, or a field of others, which note
 * when all work before them was done and so cost no launch; there out NULL is none. */
struct op_stamp {
    int64_t *out;
    const int64_t *step;
    int depth, stride, index;
};

/* Where a request's drafts come from. */
enum spec_mode { SPEC_OFF, SPEC_NGRAM, SPEC_MODEL };

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
    int32_t spec_mode;  /* enum spec_mode */
    int32_t spec_max;   /* most drafted rows of a verify */
    int32_t spec_ratio; /* 1: drafted chains are accepted by ratio (op_reject), not by match */
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
    /* The next verify's rows: the root is row 0, row j + 1 is node j, written by a drafter. Parents
     * come before their children. Depth of a row: bits of its `anc` less one. */
    int32_t *n_rows; /* [S] 1 + nodes */
    int32_t *draft;  /* [S][LIM_ROWS_PER_REQ] token of node j */
    int32_t *parent; /* [S][LIM_ROWS_PER_REQ] parent row of node j, 0 … j */
    uint64_t *anc;   /* [S][LIM_ROWS_PER_REQ] bit i: node j's row is, or descends from, row i */
    /* The model drafter's cache rows of a slot: positions [drf_first, drf_next) are filled. A row
     * belongs to the position of the token it consumed. */
    int32_t *drf_first, *drf_next; /* [S] */
    int32_t *n_out;                /* [S] output tokens so far */
    int32_t *hist;   /* [S][len_max] prompt and output tokens by position (root included) */
    uint32_t *seen;  /* [S][(V+31)/32] tokens of prompt or output */
    uint16_t *count; /* [S][V] output counts, saturating */
    struct slot_params *params; /* [S] */
    int32_t n_slot, len_max, vocab;
};

/* One row list. The three position facts of a row are independent: RoPE position, visible key range
 * per KV group, write slot per KV group; nothing derives one from another later. */
struct row_arrays {
    int32_t *tok;    /* [R] token, -1: padding */
    int32_t *slot;   /* [R] 0: padding */
    int32_t *pos;    /* [R] RoPE position */
    int32_t *req;    /* [R] index of the request in the step, -1: padding */
    int32_t *at;     /* [R] position of its cache entry; a chain's is pos */
    int32_t *parent; /* [R] row (of the call) of the token before it, -1: none here */
    uint64_t *anc;   /* [R] tree masks: see struct attn_call; a chain's row j: 2^(j+1) - 1 */
    int32_t *row0;   /* [R] tree masks: position of the cache entry of bit 0 */
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
 * len = 0, live, no drafts, drf_first = drf_next = drf_begin), sets page-table entries, in this
 * order: a slot may be stopped and given away in one step. Reads the staging block only. */
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
    int drf_begin; /* first position the model drafter has a row for */
};

/* Verify rows of B requests: request i contributes min(n_rows[slot], req_cap[i]) rows (root, then
 * nodes) when its slot is live and its gen matches, else none; rows whose cache entry would be
 * beyond position len_max - 1 are left out. Writes req_row0, req_n and all R rows (the
 * rest padding). Row j of a request has its cache entry at len + j and the RoPE position len +
 * depth. R must hold the sum; what does not fit is a CHECK failure on the CPU. */
struct op_rows_build {
    struct slot_arrays s;
    struct row_arrays out;
    const int32_t *req_slot, *req_gen; /* [B], slot 0: padding */
    const int32_t *req_cap;            /* [B] >= 1; NULL: no cap */
    int32_t *req_row0, *req_n;         /* [B] */
    int reqs, rows;
    struct op_stamp stamp;
};

/* Prefill rows: rows arrays tok/slot/pos/req were copied in; records them in hist/seen/count. */
struct op_rows_note {
    struct slot_arrays s;
    const int32_t *tok, *slot, *pos; /* [R] */
    int rows;
};

/* Visible range and write slot of every row for one KV group: last = at + 1, first =
 * max(from[slot], window > 0 ? pos + 1 - window : 0), wslot = table[slot][at / page] * page + at %
 * page. Padding rows get first = last = 0 and wslot = -1. */
struct op_rows_place {
    const int32_t *slot, *pos, *tok, *at; /* [R] */
    const int32_t *from;                  /* [S] first position that holds anything; NULL: 0 */
    int32_t *first, *last, *wslot;        /* [R] */
    const int32_t *table;                 /* [S][pages_max] */
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

/* Ratio rejection (Leviathan et al. 2023) for chains, between op_sample and op_accept: changes the
 * samples of a verify so that acceptance by token equality accepts a draft x of the distribution q
 * with probability min(1, p(x) / q(x)) and every emitted token has the target's distribution p. For
 * a live request with a matching gen, SPEC_MODEL, spec_ratio and a temperature, from its root on:
 * p is the row's distribution after all of op_sample's processing, x the next row's token, q the
 * slot's row that it was drawn from; when u q(x) < p(x), u a uniform number, the row's sample
 * becomes x and the next row follows; otherwise it becomes a draw from max(p - q, 0) / Z, and the
 * rows after it do not matter. The last row, a q(x) that is no probability, a p that is none (NaN,
 * infinite logits) and a Z of nothing leave the sample that op_sample drew from p. u and the draw's
 * noise are streams of their own (kernels/cpu/fmath.h). Unlike a match, the text then depends on
 * how long the chains were. A changed sample's logprob follows it. */
struct op_reject {
    struct slot_arrays s;
    struct row_arrays rows;
    const float *logits; /* [rows, vocab] */
    int64_t ldl;
    const float *q;                                       /* [S][q_steps][s.vocab] */
    const int32_t *req_slot, *req_gen, *req_row0, *req_n; /* [B] */
    struct sample_out *sample;                            /* [rows] */
    float *work;                                          /* [rows, 4 * vocab] */
    int reqs, vocab, q_steps;
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
    int32_t n;                   /* tokens emitted, 0: the slot was dead or stale */
    int32_t fin;                 /* enum fin, of the last token */
    int32_t n_draft, n_accepted; /* drafted rows verified; drafts among the tokens emitted */
    int32_t n_deep;              /* depth of the deepest drafted row */
    int32_t n_next;              /* rows that wait for the next verify: 0, then op_spec_note's */
    struct sample_out tok[LIM_EMIT];
};

/* What a pass emitted, for the work that follows it in the step. */
struct accept_out {
    int32_t *n;   /* [B] tokens emitted */
    int32_t *row; /* [B][LIM_EMIT] row (of the call) that sampled each: the accepted path */
    int32_t *tok; /* [B][LIM_EMIT] */
    int32_t *len; /* [B] position of the first of these rows: token j sits at len + 1 + j */
};

/* Acceptance (design: sampler match): request i has rows row0..row0+n; sample m = row. From the
 * root on, the first child (a row whose parent is the current one) whose token equals the current
 * row's sample is accepted and becomes the current row; the tokens emitted are the samples of the
 * rows of that path. Finish rules act per emitted token in order: a stop id (not before min_out)
 * beats length at the same token; nothing is emitted past the end, nor more than LIM_EMIT. Advances
 * len, root, n_out, hist, seen, count, clears live at the end, sets n_rows = 1, writes the record.
 * Prefill (prefill = true): request i's chunk of req_n rows is committed; when last_sample[i] >= 0
 * its sample becomes the root and is emitted by the same rules; its row is the chunk's last. */
struct op_accept {
    struct slot_arrays s;
    struct row_arrays rows;
    const struct sample_out *sample;                      /* [M] */
    const int32_t *req_slot, *req_gen, *req_row0, *req_n; /* [B] */
    const int32_t *last_sample;                           /* [B] prefill only */
    struct ring_rec *ring;       /* [B], this step's part is chosen by *step % ring_depth */
    const int64_t *step;         /* [1] device step counter, written by the staging copy */
    int ring_depth, ring_stride; /* records of a step start at (step % depth) * stride */
    struct accept_out out;
    int reqs;
    bool prefill;
    struct op_stamp stamp;
};

/* ---- speculation ---- */

/* After a tree's acceptance: the cache entries of the accepted path move to consecutive positions,
 * so that the cache is what plain decoding would have written. For token j of request i, in order:
 * entry of position len + (row[j] - req_row0) goes to len + j. One plane of one group. */
struct op_kv_move {
    void *cache; /* [n_layer][layer_rows, width] */
    enum dtype dt;
    int width, n_layer;
    int64_t layer_rows;
    const int32_t *table; /* [S][pages_max] */
    int pages_max, page;
    const int32_t *req_slot, *req_row0; /* [B] */
    struct accept_out acc;
    int reqs;
};

/* Rows of draft-extend: the model drafter consumes every emitted token together with the target's
 * feature of the row that sampled it. For a live request i with a matching gen and SPEC_MODEL,
 * token j gives row i * each + j: tok, at = len + 1 + j, pos = at - shift, src = row[j] (the
 * feature's row in the pass just done). All other rows are padding with src = -1. tail[i] is the
 * row of the last token, -1 for requests without. No request emits more than `each`. A gap between
 * drf_next and the first of these positions moves drf_first past it; drf_next becomes the position
 * after the last. */
struct op_draft_begin {
    struct slot_arrays s;
    struct row_arrays out;             /* [reqs * each] */
    const int32_t *req_slot, *req_gen; /* [B] */
    struct accept_out acc;
    int32_t *src;  /* [reqs * each] */
    int32_t *tail; /* [B] */
    int reqs, each, shift;
    struct op_stamp stamp;
};

/* Rows of the drafter's prefill, in the target's layout: request i's chunk of req_n rows from
 * req_row0 on. The row of the token at position p = in.at has at = p, pos = p - shift and takes the
 * feature of position p - 1: src = the row before it, or, for the chunk's first row, saved0 + slot
 * (where the slot's last feature was kept). Token p < shift is never consumed: padding, src = -1.
 * Requests that are stale or not SPEC_MODEL are padding. keep_row[i] is the row of the chunk's last
 * token, whose feature goes to keep_slot[i], or -1 both. drf_first and drf_next as above. */
struct op_draft_fill {
    struct slot_arrays s;
    struct row_arrays in, out;                            /* [R] */
    const int32_t *req_slot, *req_gen, *req_row0, *req_n; /* [B] */
    int32_t *src;                                         /* [R] */
    int32_t *keep_row, *keep_slot;                        /* [B] */
    int reqs, rows, shift, saved0;
};

/* What a drafter's rows read, in one pass: pair[r] = [rmsnorm(E[tok[r]]) | rmsnorm(feat[src[r]])],
 * and x[r] = feat[src[r]], or its norm. Tokens and indices that name no row give zeros, as in
 * op_embed and op_gather; norms are op_rmsnorm's. `place` is done too. */
struct op_draft_pair {
    float *pair;                          /* [R, 2 H] */
    float *x;                             /* [R,H]; NULL: not wanted */
    const int32_t *tok;                   /* [R] */
    const float *feat;                    /* [any, H], not overlapped by the outputs */
    const int32_t *src;                   /* [R]; NULL: src[r] = r */
    struct weight e, tok_norm, feat_norm; /* [V,H], [1,H], [1,H] */
    int rows;
    float eps;
    bool x_normed;
    struct op_rows_place place; /* rows: 0 or R */
};

/* Candidates of one draft round, by request of the step. Level l holds nodes [topk + (l - 1)
 * topk^2, …) (level 0: [0, topk)); a node's parent is -1 (the root) or a node of the level before.
 */
struct draft_tree {
    int32_t *tok, *parent; /* [B][LIM_DRAFT_NODES] target-vocabulary ids; tok -1: no node */
    float *score;          /* [B][LIM_DRAFT_NODES] sum of log probabilities from the root */
    int32_t *beam;         /* [B][LIM_SPEC_TOPK] node of each beam, -1: none */
    uint64_t *beam_anc;    /* [B][LIM_SPEC_TOPK] scratch rows that a beam descends from */
};
#ifdef __CUDACC__
#define OPS_INLINE static __host__ __device__ inline
#else
#define OPS_INLINE static inline
#endif
OPS_INLINE int draft_level(int topk, int level) /* first node of a level */
{
    return level == 0 ? 0 : topk + (level - 1) * topk * topk;
}

/* One level of drafting. Logit row i (level 0) or i * topk + b (beam b) gives its topk best tokens
 * as children: value = logit, or, for a request with a temperature, logit / temperature plus the
 * noise with which the target will sample that position (coupled drafting; a token's noise is that
 * of its target id); score = parent's + value - log sum exp(values). Ties go to the lowest id. A
 * child whose score is not finite is no node: NaN and -inf logits, and beams without a row. The
 * topk best of the level by score become the beams (level 0: all of them; ties to the lower node).
 * Unless it is the last level (it has no beams), writes the rows of the next pass, [B * topk]: row
 * i * topk + b consumes beam b: at = len + 1 + level * topk + b, pos = len + 1 + level - shift,
 * row0 = len + 1, anc = the scratch rows of its path with its own bit level * topk + b, src = the
 * row of the pass just done whose feature it takes (level 0: tail[i]). Requests with tail[i] < 0,
 * and rows whose token would be at len_max or beyond, give padding. */
struct op_draft_pick {
    struct slot_arrays s;
    struct draft_tree t;
    struct row_arrays out; /* [B * topk] of the next pass */
    int32_t *src;          /* [B * topk] */
    const int32_t *req_slot;
    const int32_t *tail; /* [B] */
    const float *logits; /* [B or B * topk, vocab] */
    int64_t ldl;
    const int32_t *d2t; /* [vocab] target id of a draft id; NULL: the same */
    float *work;        /* [rows of logits, 4 * vocab] */
    float *q;           /* [S][q_steps][s.vocab] or NULL */
    int reqs, topk, level, vocab, shift, q_steps;
    bool last;
    struct op_stamp stamp;
};

/* The round's result: the `rows` - 1 (and at most spec_max) best nodes by score over all levels,
 * ties to the lower node, in node order, become the slot's nodes (draft, parent, anc, n_rows). A
 * node whose parent was not chosen, or is not a node (a NaN), hangs on the root. Requests with
 * tail[i] < 0 are left alone. */
struct op_draft_build {
    struct slot_arrays s;
    struct draft_tree t;
    const int32_t *req_slot, *tail; /* [B] */
    int reqs, topk, levels, rows;
};

/* Prompt lookup: for a live request i with a matching gen and SPEC_NGRAM, the longest suffix of
 * hist[0 … len] (root included) of n_max … n_min tokens that occurred before, at its latest earlier
 * occurrence; the tokens after it, `steps` and at most spec_max, become a chain of nodes. Past the
 * root they go on with the chain itself, so that a repetition is continued. Up to `more` chains of
 * `each` tokens follow beside it on the root, by the same rule, of matches that go on with another
 * token than those of the chains before; together they are spec_max nodes at most. */
struct op_draft_ngram {
    struct slot_arrays s;
    const int32_t *req_slot, *req_gen; /* [B] */
    int reqs, n_min, n_max, steps, more, each;
};
/* Nodes of a request at most. */
OPS_INLINE int draft_ngram_nodes(const struct op_draft_ngram *a)
{
    return a->steps + a->more * a->each;
}

/* Writes n_next of the step's records: n_rows of the live slots, 0 of the others. */
struct op_spec_note {
    struct slot_arrays s;
    const int32_t *req_slot, *req_gen;
    struct ring_rec *ring;
    const int64_t *step;
    int ring_depth, ring_stride, reqs;
    struct op_stamp stamp;
};

/* clang-format off */
#define OP_LIST(X)                                                                                 \
    X(embed)                                                                                       \
    X(rmsnorm) X(matmul) X(proj) X(mlp) X(matmul_heads) X(rope) X(kv_write) X(qkv_place) X(qkv) X(mla_place) X(silu_mul) X(add) X(gather)          \
        X(moe_route) X(moe_ffn) X(slot_update) X(rows_build) X(rows_note) X(rows_place) X(sample)  \
            X(score) X(accept) X(reject) X(kv_move) X(draft_begin) X(draft_fill) X(draft_pair) X(draft_pick)               \
                X(draft_build) X(draft_ngram) X(spec_note) X(stamp)
/* clang-format on */

#define OP_FIELD(name) int (*name)(struct dev * d, const struct op_##name *a);
struct op_table {
    OP_LIST(OP_FIELD)
    /* Says what follows that is no operation of the table (attention); NULL: nobody asks. */
    int (*about)(struct dev *d, const char *what);
    /* Whether the product rounds its rows to bf16 (to nearest even) before anything else, so that
     * they may be bf16 in memory and nothing changes; NULL: never. */
    bool (*narrow)(struct dev *d, const struct op_matmul *a);
};
#undef OP_FIELD

#endif
