/* The device state of a few slots and one step, in one block, so that bits are compared as a whole:
 * shared by the cases of slot, row and draft operations. */
#ifndef SPECD_TEST_OPS_WORLD_H
#define SPECD_TEST_OPS_WORLD_H

#include "test/ops/util.h"

enum { SLOTS = 7, V = 70, LEN = 48, REQS = 8, ROWS = 64, PAGES = 12, DEPTH = 4 };

struct world {
    int32_t gen[SLOTS], live[SLOTS], len[SLOTS], root[SLOTS], n_rows[SLOTS], n_out[SLOTS];
    int32_t drf_first[SLOTS], drf_next[SLOTS];
    int32_t draft[SLOTS][LIM_ROWS_PER_REQ], parent[SLOTS][LIM_ROWS_PER_REQ], hist[SLOTS][LEN];
    uint64_t anc[SLOTS][LIM_ROWS_PER_REQ];
    uint32_t seen[SLOTS][(V + 31) / 32];
    uint16_t count[SLOTS][V];
    struct slot_params params[SLOTS];
    int32_t tok[ROWS], slot[ROWS], pos[ROWS], req[ROWS], at[ROWS], row_parent[ROWS], row0[ROWS];
    uint64_t row_anc[ROWS];
    int32_t first[ROWS], last[ROWS], wslot[ROWS];
    int32_t req_slot[REQS], req_gen[REQS], req_row0[REQS], req_n[REQS], last_sample[REQS];
    int32_t req_cap[REQS];
    int32_t acc_n[REQS], acc_len[REQS], acc_row[REQS][LIM_EMIT], acc_tok[REQS][LIM_EMIT];
    int32_t table[2][SLOTS * PAGES];
    struct sample_out sample[ROWS];
    struct ring_rec ring[DEPTH * REQS];
    int64_t step;
};

struct slot_arrays world_slots(struct world *w);
struct row_arrays world_rows(struct world *w);
struct accept_out world_acc(struct world *w);
bool world_seen(const struct world *w, int slot, int tok);
/* Nothing lives, and everything else holds a pattern: nothing may rely on zeroed memory. */
struct world *world_new(void);
/* A live slot in mid-decode, with the links of a chain for whatever is drafted. */
void world_slot(struct world *w, int s, int gen, int n_prompt, int n_out);
/* Random nodes: n - 1 of them, each below any row before it; tokens in [0, vocab). */
void world_tree(struct world *w, struct rng *r, int s, int n, int vocab);
void world_reqs(struct world *w, const int *slots, const int *gens, int n);
int world_depth(const struct world *w, int s, int row); /* by the parents */

#endif
