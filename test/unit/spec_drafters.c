/* Drafting by rule; see the header. */
#include "test/unit/spec_drafters.h"

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/base/rng.h"
#include "kernels/cpu/cpu.h"
#include "speculative/algos.h"

struct truth test_truth;

struct spec {
    struct spec_env env;
    enum drafter kind;
};

struct args {
    struct slot_arrays s;
    struct spec_shape shape;
    enum drafter kind;
    int reqs, depth;
    const int32_t *slot, *gen;
};

/* Output token `i` of a slot's request, any token where it is not known. */
static int32_t true_token(const struct args *a, int slot, int i)
{
    uint64_t seed = a->s.params[slot].seed;
    CHECK(seed < (uint64_t)test_truth.n_seed);
    int32_t t = i < test_truth.len ? test_truth.tok[seed * (uint64_t)test_truth.len + i] : -1;
    return t >= 0 ? t : 3;
}

static int32_t token_at(const struct args *a, int slot, int depth, bool last, struct rng *r)
{
    int out = a->s.n_out[slot] + depth - 1;
    switch (a->kind) {
    case DRAFT_ORACLE:
    case DRAFT_RAGGED:
        return true_token(a, slot, out);
    case DRAFT_LASTBAD:
        return last ? (true_token(a, slot, out) + 1) % a->s.vocab : true_token(a, slot, out);
    case DRAFT_RANDOM:
        return (int32_t)rng_below(r, (uint64_t)a->s.vocab);
    case DRAFT_SAME:
        return 7;
    case DRAFT_EMPTY:
    case N_DRAFTERS:
        break;
    }
    CHECK(!"drafter");
    return -1;
}

/* Node j of the slot becomes a child of row `parent`; the row it has. */
static int add_node(const struct args *a, int slot, int parent, int32_t tok)
{
    int64_t base = (int64_t)slot * LIM_ROWS_PER_REQ;
    int row = a->s.n_rows[slot]++, j = row - 1;
    a->s.draft[base + j] = tok;
    a->s.parent[base + j] = parent;
    a->s.anc[base + j] = (parent ? a->s.anc[base + parent - 1] : 1) | UINT64_C(1) << row;
    return row;
}

/* At every depth the path's token among topk - 1 others, on a random side of it. */
static void propose_slot(const struct args *a, int slot)
{
    struct rng r = {(uint64_t)a->s.len[slot] * 31 + (uint64_t)slot};
    int most = a->shape.rows - 1 < a->s.params[slot].spec_max ? a->shape.rows - 1
                                                              : a->s.params[slot].spec_max;
    int depth = a->kind == DRAFT_RAGGED ? (int)rng_below(&r, (uint64_t)a->depth + 1) : a->depth;
    int path = 0, side = 0;
    a->s.n_rows[slot] = 1;
    if (a->kind == DRAFT_EMPTY)
        return;
    for (int d = 1; d <= depth; d++) {
        int before = path, beside = side;
        int32_t tok = token_at(a, slot, d, d == depth, &r);
        int at = (int)rng_below(&r, (uint64_t)a->shape.topk);
        for (int b = 0; b < a->shape.topk && a->s.n_rows[slot] - 1 < most; b++) {
            int32_t other = (tok + 1 + b) % a->s.vocab;
            if (b == at)
                path = add_node(a, slot, before, tok);
            else if (beside && b % 2) /* wrong paths grow too, with right tokens on them */
                side = add_node(a, slot, beside, tok);
            else
                side = add_node(a, slot, before, other);
        }
        if (path == before)
            return; /* no room for the path itself */
    }
}

static int run(struct dev *d, const void *args)
{
    (void)d;
    const struct args *a = args;
    for (int i = 0; i < a->reqs; i++) {
        int slot = a->slot[i];
        if (slot > 0 && a->s.live[slot] && a->s.gen[slot] == a->gen[i] && a->s.len[slot] > 0 &&
            a->s.root[slot] >= 0 && a->s.params[slot].spec_mode == SPEC_MODEL)
            propose_slot(a, slot);
    }
    return OK;
}

static int propose(struct spec *s, const struct spec_step *st, int depth, struct err *e)
{
    (void)e;
    struct args a = {.s = s->env.slots,
                     .shape = s->env.shape,
                     .kind = s->kind,
                     .reqs = st->reqs,
                     .depth = depth,
                     .slot = st->req_slot,
                     .gen = st->req_gen};
    return cpu_call(s->env.d, run, &a, sizeof a);
}

static int shape(struct spec_shape *out, const struct spec_conf *c, const struct model_info *target,
                 const struct model_info *drafter, struct err *e)
{
    (void)target;
    (void)drafter;
    return spec_tree_shape(out, c->steps ? c->steps : 3, c->topk ? c->topk : 1, c->tokens, e);
}

static void close_it(struct spec *s)
{
    mem_free(s);
}

#define DRAFTER(k, label)                                                                          \
    static int open_##k(struct spec **out, const struct spec_env *env, struct err *e)              \
    {                                                                                              \
        (void)e;                                                                                   \
        *out = MEM_NEW(struct spec);                                                               \
        **out = (struct spec){*env, k};                                                            \
        return OK;                                                                                 \
    }
#define DRAFTERS(X)                                                                                \
    X(DRAFT_ORACLE, "oracle")                                                                      \
    X(DRAFT_RANDOM, "random")                                                                      \
    X(DRAFT_LASTBAD, "last-bad")                                                                   \
    X(DRAFT_SAME, "same") X(DRAFT_EMPTY, "empty") X(DRAFT_RAGGED, "ragged")
DRAFTERS(DRAFTER)

#define ROW(k, label)                                                                              \
    [k] = {.name = label,                                                                          \
           .shape = shape,                                                                         \
           .open = open_##k,                                                                       \
           .prefill = propose,                                                                     \
           .propose = propose,                                                                     \
           .close = close_it},
const struct spec_algo test_drafters[N_DRAFTERS] = {DRAFTERS(ROW)};
