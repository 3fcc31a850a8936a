/* See the header. */
#include "test/ops/world.h"

#include <string.h>

#include "engine/base/mem.h"

struct slot_arrays world_slots(struct world *w)
{
    return (struct slot_arrays){.gen = w->gen,
                                .live = w->live,
                                .len = w->len,
                                .root = w->root,
                                .n_rows = w->n_rows,
                                .draft = w->draft[0],
                                .parent = w->parent[0],
                                .anc = w->anc[0],
                                .drf_first = w->drf_first,
                                .drf_next = w->drf_next,
                                .n_out = w->n_out,
                                .hist = w->hist[0],
                                .seen = w->seen[0],
                                .count = w->count[0],
                                .params = w->params,
                                .n_slot = SLOTS,
                                .len_max = LEN,
                                .vocab = V};
}

struct row_arrays world_rows(struct world *w)
{
    return (struct row_arrays){.tok = w->tok,
                               .slot = w->slot,
                               .pos = w->pos,
                               .req = w->req,
                               .at = w->at,
                               .parent = w->row_parent,
                               .anc = w->row_anc,
                               .row0 = w->row0,
                               .first = {w->first},
                               .last = {w->last},
                               .wslot = {w->wslot}};
}

struct accept_out world_acc(struct world *w)
{
    return (struct accept_out){
        .n = w->acc_n, .row = w->acc_row[0], .tok = w->acc_tok[0], .len = w->acc_len};
}

bool world_seen(const struct world *w, int slot, int tok)
{
    return w->seen[slot][tok / 32] >> (tok & 31) & 1;
}

struct world *world_new(void)
{
    struct world *w = MEM_NEW(struct world);
    memset(w, 0x5a, sizeof *w);
    for (int s = 0; s < SLOTS; s++) {
        w->live[s] = 0;
        memset(w->seen[s], 0, sizeof w->seen[s]);
        memset(w->count[s], 0, sizeof w->count[s]);
    }
    return w;
}

void world_slot(struct world *w, int s, int gen, int n_prompt, int n_out)
{
    w->gen[s] = gen;
    w->live[s] = 1;
    w->len[s] = n_prompt + n_out - 1;
    w->root[s] = s + 10;
    w->n_rows[s] = 1;
    w->n_out[s] = n_out;
    w->params[s] = (struct slot_params){.n_prompt = n_prompt,
                                        .max_out = 1000,
                                        .len_max = LEN,
                                        .repetition = 1,
                                        .top_p = 1,
                                        .n_logprobs = -1};
    for (int j = 0; j + 1 < LIM_ROWS_PER_REQ; j++) {
        w->parent[s][j] = j;
        w->anc[s][j] = ((uint64_t)4 << j) - 1;
    }
}

void world_tree(struct world *w, struct rng *r, int s, int n, int vocab)
{
    w->n_rows[s] = n;
    for (int j = 1; j < n; j++) {
        int up = (int)rng_below(r, (uint64_t)j);
        w->draft[s][j - 1] = (int32_t)rng_below(r, (uint64_t)vocab);
        w->parent[s][j - 1] = up;
        w->anc[s][j - 1] = (up ? w->anc[s][up - 1] : 1) | (uint64_t)1 << j;
    }
}

int world_depth(const struct world *w, int s, int row)
{
    int n = 0;
    for (; row > 0; row = w->parent[s][row - 1])
        n++;
    return n;
}

void world_reqs(struct world *w, const int *slots, const int *gens, int n)
{
    for (int i = 0; i < REQS; i++) {
        w->req_slot[i] = i < n ? slots[i] : 0;
        w->req_gen[i] = i < n ? gens[i] : 0;
    }
}
