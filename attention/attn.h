/* Attention backends: capability data, plan and run.
 *
 * A backend says what it can do as data; attn_check compares that with a need (one for every role
 * of target and drafter) and gives every reason why not. plan() does the host work of a step, run()
 * is launches only, once a layer, and can be recorded. run() never writes KV. C and C++. */
#ifndef SPECD_ATTN_H
#define SPECD_ATTN_H

#include "engine/limits.h"
#include "kernels/device.h"
#include "kernels/dtype.h"

/* What a forward pass is for. Switch without default: a new role must fail to compile. */
enum role {
    TGT_PREFILL,
    TGT_VERIFY, /* plain decode is verify with one row a request */
    DRF_PREFILL,
    DRF_EXTEND,
    DRF_DECODE,
    DRF_FROZEN,
    DRF_BLOCK,
    N_ROLES
};
const char *role_name(enum role r);

enum attn_kind { ATTN_GQA = 1, ATTN_MLA_ABSORBED = 2, ATTN_MLA_DECOMPRESSED = 4 };
const char *attn_kind_name(enum attn_kind k);
enum attn_mask { MASK_RANGE = 1, MASK_TREE = 2, MASK_BLOCK = 4 }; /* 0 is invalid */
enum attn_graph { GRAPH_NEVER, GRAPH_ONE_TOKEN, GRAPH_UNIFORM, GRAPH_ANY };

/* Sizes of a call or a buffer; every buffer and metadata fill is checked against one of these. */
struct graph_dims {
    int reqs, seqs, rows, qlen, pages; /* pages: entries of a page-table row */
    enum role role;
};
/* OK when `want` fits in `have` (same role, no member larger); the reason names the member. */
int graph_dims_check(const struct graph_dims *have, const struct graph_dims *want, const char *what,
                     struct err *e);

struct attn_dims {
    int16_t qk, v; /* head dims; 0, 0 in a capability list: any */
};

struct attn_role_caps {
    uint8_t masks;     /* bits of enum attn_mask; 0: role not offered */
    uint8_t graph;     /* enum attn_graph */
    int16_t q_len_max; /* rows a request; 0: no limit */
    bool uniform;      /* every request must bring the same number of rows */
};

struct attn_caps {
    uint32_t kinds;           /* bits of enum attn_kind */
    uint32_t kv_types;        /* bit per enum dtype */
    uint32_t page_sizes;      /* bit i: pages of 1 << i tokens */
    struct attn_dims dims[8]; /* zero ends; first entry zero: any dims */
    int16_t gqa_max;          /* query heads per KV head, 0: any */
    int16_t sm_min, sm_max;   /* CUDA; 0: any */
    int16_t cp_max;           /* context-parallel ranks, 1: none */
    bool lse_out, window, sinks, soft_cap;
    bool narrow; /* a call may ask for bf16 */
    struct attn_role_caps role[N_ROLES];
};

struct attn_need {
    enum role role;
    enum attn_kind kind;
    enum attn_mask mask;
    enum attn_graph graph;
    enum dtype kv_type;
    int page;              /* 0: not chosen yet */
    int n_head, n_kv;      /* MLA: n_kv = 1 */
    struct attn_dims dims; /* GQA: head dims. MLA absorbed: kv_lora + rope, kv_lora; decompressed:
                              nope + rope, v */
    int q_len_max;         /* rows a request, 0: prefill (any) */
    int window;            /* 0: full */
    int cp;                /* context-parallel ranks, >= 1 */
    int sm;                /* 0 on the CPU */
    bool lse_out, sinks, soft_cap;
};

/* What a row sees: positions [first, last) of the page-table row `slot`; nothing when first >= last
 * (padding), and then nothing else of the row is looked at.
 *
 * RANGE, BLOCK: these are positions of the cache. BLOCK says that a range may go on behind the row
 * itself (a block whose rows see each other); the range is data in both.
 *
 * TREE: cache positions before row0, then the rows of the set bits. They count as positions row0,
 * row0 + 1, … in ascending order, so that a path looks as if it had been written alone; `first` is
 * such a position (a window's edge: the row's sequence position + 1 - window), `last` is a cache
 * position: row0 + the row's own index + 1. Bits of rows at or behind `last` are ignored; last <=
 * row0 makes it a RANGE row. The CPU backends keep the order of sums too: a row of a tree has the
 * bits that its path gives when it is decoded alone.
 *
 * Per layer call. GQA: q [R, n_head, qk], k/v pools [n, n_kv, dim]. MLA: q is [R, n_head, kv_lora +
 * rope] (q_lat then rotated q_pe), the pool row is [latent | rotated k_pe], out [R, n_head,
 * kv_lora]. MLA decompressed: q is [R, n_head, nope + rope]; keys and values of a pool row are
 * expanded with `kv_b`; out is [R, n_head, v]. */
struct attn_call {
    enum role role;
    enum attn_kind kind;
    enum attn_mask mask; /* no default: 0 is an error */
    int rows, n_head, n_kv;
    struct attn_dims dims;
    const float *q;
    int64_t ldq;
    float *out; /* head h of row r at r*ldo + h*dims.v */
    int64_t ldo;
    bool narrow;       /* only where caps.narrow: `out` takes bf16, rounded to nearest even */
    float *lse;        /* [R, n_head] natural logarithm, -inf for rows that see nothing; or NULL */
    const void *k, *v; /* one layer of a pool; MLA: v NULL */
    enum dtype kv_type;
    /* F8E4M3: a key is worth its elements * k_scale, a value * v_scale; > 0, and not looked at for
     * other types. MLA: k_scale is the whole row's. */
    float k_scale, v_scale;
    const int32_t *slot, *first, *last; /* [R]; slot chooses the page-table row */
    const int32_t *table;               /* [S][pages_max] */
    int pages_max, page;
    float scale, soft_cap;
    const float *sinks; /* [n_head] or NULL */
    /* MASK_TREE, [R]. Row j of a request's step lies at cache position row0 + j; bit j of
     * ancestors: this row sees it (its own bit included; a parent has a smaller j). */
    const uint64_t *ancestors;
    const int32_t *row0;
    /* MLA */
    int kv_lora, rope, nope;
    struct weight kv_b; /* decompressed form */
    /* context parallelism: keys this rank holds; 0, 1 without */
    int cp_rank, cp_world;
    const int32_t *global_last; /* [R] or NULL */
};

struct attn; /* an opened backend for one need: workspace, plan state */

struct attn_backend {
    const char *name;   /* "ref-gqa", "ref-mla", … */
    const char *device; /* name of the device it runs on */
    struct attn_caps caps;
    int (*extra)(const struct attn_need *n, struct err *why); /* optional: odd combinations */
    size_t (*workspace)(const struct attn_need *n, const struct graph_dims *max); /* device bytes */
    int (*open)(struct attn **out, struct dev *d, const struct attn_need *n,
                const struct graph_dims *max, struct err *e);
    /* Once a step and dims, host; checks dims against those of open (E_INVAL names the member). */
    int (*plan)(struct attn *a, const struct graph_dims *g, struct err *e);
    int (*run)(struct attn *a, const struct attn_call *c, struct err *e);
    void (*close)(struct attn *a);
};

extern const struct attn_backend *const attn_backends[]; /* best first, NULL ends */

/* For open(): need and largest dimensions are of one role, and a page size is chosen. */
int attn_open_check(const struct attn_need *n, const struct graph_dims *max, struct err *e);
/* For run(): a call against need, largest and planned dimensions; E_INVAL names what differs. */
int attn_call_check(const struct attn_need *n, const struct graph_dims *max,
                    const struct graph_dims *plan, const struct attn_call *c, struct err *e);
/* All reasons in one text, separated by "; ". */
int attn_check(const struct attn_backend *b, const struct attn_need *n, struct err *why);
/* First backend of the device that passes, or the one called `force` (not NULL); a failure lists
 * every candidate with its reasons. */
int attn_select(const struct attn_backend **out, const char *device, const struct attn_need *n,
                const char *force, struct err *e);
/* Bit i: some backend of the device serves the need with pages of 1 << i tokens. */
uint32_t attn_pages(const char *device, const struct attn_need *n);
/* The smallest page size that every need (all roles that share one page table) can be served with;
 * `want` > 0 asks for that one. The CPU device declares {1, 16, 64} and prefers 16. */
int attn_page_size(int *page, const char *device, const struct attn_need *needs, int n, int want,
                   struct err *e);

#endif
