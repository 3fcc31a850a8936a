/* What the tensor-core attention backends share between host and device code. Private to
 * attention/mma. C and C++. */
#ifndef SPECD_ATTN_MMA_ARGS_H
#define SPECD_ATTN_MMA_ARGS_H

#include "attention/attn.h"

/* Arguments of a launch. A tile is a run of at most `tile_rows` rows of one slot with `tile_heads`
 * query heads of one KV head; its keys are shared out to at most `splits` blocks. */
struct mma_args {
    struct attn_call c;
    int page_shift;
    int group;                 /* query heads of a KV head */
    int tile_rows, tile_heads; /* their product is at most the kernel's M */
    int head_tiles;            /* tiles that a KV head's query heads take */
    uint32_t row_inv;          /* 2^32 / tile_rows rounded up, of 2 rows or more */
    uint32_t head_inv;         /* 2^16 / tile_heads + 1 */
    int splits;                /* blocks of a tile */
    int fill;                  /* splits of a tile that fill the GPU, at most `splits` */
    bool merge_apart;          /* mma_merge follows; else a tile's last block merges its splits */
    float *part;               /* [splits][rows][n_head][dv] sums, relative to their maximum */
    float *part_ml;            /* [splits][rows][n_head][2] maximum (base 2), sum of weights */
    int32_t *count;            /* [rows][n_kv * head_tiles] blocks that have finished; 0 between */
    int32_t *active;           /* [rows] splits of a row's tile, for a merge of its own */
};

enum { SPLITS_LONG = 4 }; /* splits of long keys where tiles fill the GPU */

/* How a kernel cuts its work. */
enum mma_size { MMA_16, MMA_32, MMA_64, MMA_PREFILL, N_MMA_SIZES };

/* A kernel for one pair of head dims and one size. */
struct mma_kernel {
    int m, keys; /* rows x heads of a tile, keys of a step */
    int threads;
    unsigned smem;
    void (*fn)(struct mma_args);
};

/* By head dims, one file each pair or few. */
const struct mma_kernel *mma_gqa_64(enum mma_size size);
const struct mma_kernel *mma_gqa_80(enum mma_size size);
const struct mma_kernel *mma_gqa_96(enum mma_size size);
const struct mma_kernel *mma_gqa_128(enum mma_size size);
const struct mma_kernel *mma_gqa_192(enum mma_size size); /* values 128 */
const struct mma_kernel *mma_gqa_256(enum mma_size size);
/* Up to `lines` lines, shares of all work (decode.cuh), in small blocks or `alone` on an SM; NULL:
 * not built. */
const struct mma_kernel *mma_decode(int qk, int v, int lines, bool alone);
const struct mma_kernel *mma_decode_128(int lines, bool alone);
/* Prefill on sm_90a by head dims; NULL: not built. */
const struct mma_kernel *mma_wide(int qk, int v);
const struct mma_kernel *mma_latent(enum mma_size size); /* absorbed MLA, 576 / 512 */
/* The same over fp8 caches. */
const struct mma_kernel *mma_gqa_64_fp8(enum mma_size size);
const struct mma_kernel *mma_gqa_128_fp8(enum mma_size size);
const struct mma_kernel *mma_latent_fp8(enum mma_size size);
/* Merges the splits of all lines (row, head) in their order. */
int mma_merge(struct dev *d, const struct mma_args *a);

#endif
