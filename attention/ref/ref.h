/* Shared parts of the CPU reference backends. Owner thread of the device; the loops over rows and
 * heads are in kernels/cpu/attn_core.h. */
#ifndef SPECD_ATTN_REF_H
#define SPECD_ATTN_REF_H

#include "attention/attn.h"
#include "kernels/cpu/attn_core.h"

extern const struct attn_backend ref_gqa, ref_mla, ref_mla_full;

struct attn {
    struct dev *d;
    struct attn_need need;
    struct graph_dims max;
    struct graph_dims plan; /* of the last plan(); rows 0 before the first */
    void *work;             /* device memory, `workspace` bytes */
    int keys_max;           /* positions a page-table row can name */
};

/* A recorded run. */
struct ref_args {
    struct attn *a;
    struct attn_call c;
};

size_t ref_workspace(const struct attn_need *n, const struct graph_dims *max);
int ref_open(struct attn **out, struct dev *d, const struct attn_need *n,
             const struct graph_dims *max, struct err *e);
int ref_plan(struct attn *a, const struct graph_dims *g, struct err *e);
void ref_close(struct attn *a);

/* The part of the core's arguments that all backends take from a call. */
struct cpu_attn ref_core_args(const struct attn_call *c);

#define REF_ROLE                                                                                   \
    {                                                                                              \
        .masks = MASK_RANGE | MASK_TREE | MASK_BLOCK, .graph = GRAPH_ANY                           \
    }
#define REF_KV (1u << DT_F32 | 1u << DT_BF16 | 1u << DT_F8E4M3)
#define REF_CAPS(kind, kv)                                                                         \
    {                                                                                              \
        .kinds = (kind), .kv_types = (kv), .page_sizes = 1u | 1u << 4 | 1u << 6, .cp_max = 1,      \
        .lse_out = true, .window = true, .sinks = true, .soft_cap = true, .role = {                \
            [TGT_PREFILL] = REF_ROLE,                                                              \
            [TGT_VERIFY] = REF_ROLE,                                                               \
            [DRF_PREFILL] = REF_ROLE,                                                              \
            [DRF_EXTEND] = REF_ROLE,                                                               \
            [DRF_DECODE] = REF_ROLE,                                                               \
            [DRF_FROZEN] = REF_ROLE,                                                               \
            [DRF_BLOCK] = REF_ROLE,                                                                \
        }                                                                                          \
    }

#endif
