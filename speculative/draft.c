/* The round of a drafter with a network of its own: draft-extend over the tokens that were just
 * emitted, then the loop of draft steps, then the choice of nodes. One program serves next-token
 * layers, EAGLE heads and whole models, chains and trees; what differs is in struct model_info.
 *
 * Cache rows are indexed by the token they consumed, so the drafter's planes share the target's
 * page table. A level of a tree has topk rows a request; all levels lie behind the root's position
 * as scratch rows, told apart by an ancestor mask, and are overwritten by the next round.
 *
 * Features: `source` holds those of the target's rows of this pass, and behind them one saved
 * feature a slot, that of the last prompt token consumed, for the first row of the next chunk. */
#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "speculative/algos.h"

struct spec {
    struct spec_env env;
    struct model_info net;
    int rows_max;          /* rows of one pass of the drafter */
    struct row_arrays row; /* its rows */
    struct draft_tree tree;
    int32_t *src;                  /* [rows_max] */
    int32_t *tail;                 /* [B] */
    int32_t *keep_row, *keep_slot; /* [B] */
    float *source;                 /* [rows_max + S, feat] */
    float *taps;                   /* [B * extend rows, n_tap * hidden of the target] */
    float *feat;                   /* [B * extend rows, feat] made of the taps */
    float *keep;                   /* [B, feat] */
    float *hidden[2];              /* [rows_max, hidden of the drafter]: of even, of odd levels */
    float *hidden_tail;            /* [B, hidden of the drafter] */
};

#define CALL(s, op, args)                                                                          \
    do {                                                                                           \
        int run_r_ = (s)->env.ops->ops->op((s)->env.d, (args));                                    \
        if (run_r_ < 0)                                                                            \
            return FAIL(e, run_r_, "operation " #op " failed on device %s", (s)->env.ops->name);   \
    } while (0)
#define RUN(s, op, ...)                                                                            \
    do {                                                                                           \
        const struct op_##op run_a_ = {__VA_ARGS__};                                               \
        CALL(s, op, &run_a_);                                                                      \
    } while (0)

/* ---- memory ---- */

static size_t tap_width(const struct spec *s)
{
    return (size_t)s->net.n_tap * (size_t)s->env.hidden;
}

static int pieces(struct spec *s, struct piece *out)
{
    const struct spec_env *v = &s->env;
    size_t R = (size_t)s->rows_max, B = (size_t)v->reqs_max, F = (size_t)s->net.feat;
    size_t H = (size_t)s->net.hidden, S = (size_t)v->slots.n_slot;
    size_t path = (size_t)spec_extend_rows(&v->shape), tap = tap_width(s);
    int n = 0;
#define ADD(ptr, count) out[n++] = PIECE(ptr, count, DEV_MEM_DEVICE)
    n += pieces_rows(&s->row, R, s->net.n_group, out + n);
    ADD(s->tree.tok, B * LIM_DRAFT_NODES);
    ADD(s->tree.parent, B * LIM_DRAFT_NODES);
    ADD(s->tree.score, B * LIM_DRAFT_NODES);
    ADD(s->tree.beam, B * LIM_SPEC_TOPK);
    ADD(s->tree.beam_anc, B * LIM_SPEC_TOPK);
    ADD(s->src, R);
    ADD(s->tail, B);
    ADD(s->keep_row, B);
    ADD(s->keep_slot, B);
    ADD(s->hidden[0], R * H);
    ADD(s->hidden[1], B * (size_t)v->shape.topk * H);
    ADD(s->hidden_tail, B * H);
    ADD(s->source, (R + S) * F); /* without features: none of these */
    ADD(s->taps, B * path * tap);
    ADD(s->feat, tap ? B * path * F : 0);
    ADD(s->keep, B * F);
#undef ADD
    CHECK(n <= SPEC_SCRATCH_MAX);
    return n;
}

static void begin(struct spec *s, const struct spec_env *env)
{
    *s = (struct spec){.env = *env, .net = *model_info(env->drafter)};
    s->rows_max = spec_drafter_rows(env);
}

/* An accepted path has no more rows than a verify, and no more than its root and all steps. */
int spec_extend_rows(const struct spec_shape *s)
{
    return s->rows < s->steps + 1 ? s->rows : s->steps + 1;
}

int spec_drafter_rows(const struct spec_env *env)
{
    int extend = env->reqs_max * spec_extend_rows(&env->shape);
    int loop = env->reqs_max * env->shape.topk;
    int n = extend > loop ? extend : loop;
    return n > env->prefill_rows_max ? n : env->prefill_rows_max;
}

static size_t draft_bytes(const struct spec_env *env)
{
    struct spec s;
    struct piece p[SPEC_SCRATCH_MAX];
    begin(&s, env);
    return pieces_bytes(p, pieces(&s, p));
}

static void draft_close(struct spec *s)
{
    struct piece p[SPEC_SCRATCH_MAX];
    pieces_free(p, pieces(s, p), s->env.ops, s->env.d);
    mem_free(s);
}

static int draft_open(struct spec **out, const struct spec_env *env, struct err *e)
{
    struct spec *s = MEM_NEW(struct spec);
    struct piece p[SPEC_SCRATCH_MAX];
    begin(s, env);
    int r = pieces_alloc(p, pieces(s, p), env->ops, env->d, e);
    if (r < 0) {
        mem_free(s);
        return r;
    }
    *out = s;
    return OK;
}

const struct draft_tree *spec_draft_tree(const struct spec *s)
{
    return &s->tree;
}

int spec_draft_scratch(struct spec *s, struct piece *out)
{
    int n = pieces(s, out);
    for (int i = 0; i < n; i++)
        if (*out[i].p == s->source) /* the saved features behind it are state */
            out[i].n = (size_t)s->rows_max * (size_t)s->net.feat;
    return n;
}

/* ---- passes ---- */

static int plan_role(struct spec *s, enum role role, int reqs, int rows, int qlen, struct err *e)
{
    for (int g = 0; g < s->net.n_group; g++) {
        const struct attn_use *u = &s->env.attn[role][g];
        struct graph_dims dims = {.reqs = reqs,
                                  .seqs = reqs,
                                  .rows = rows,
                                  .qlen = qlen,
                                  .pages = s->env.kv[g].pages_max,
                                  .role = role};
        TRY(u->b->plan(u->a, &dims, e));
    }
    return OK;
}

static int plan_round(struct spec *s, int reqs, int each, int depth, struct err *e)
{
    TRY(plan_role(s, DRF_EXTEND, reqs, reqs * each, each, e));
    if (depth > 1)
        TRY(plan_role(s, DRF_DECODE, reqs, reqs * s->env.shape.topk, s->env.shape.topk, e));
    return OK;
}

static int draft_plan(struct spec *s, int reqs, int depth, struct err *e)
{
    return plan_round(s, reqs, spec_extend_rows(&s->env.shape), depth, e);
}

static struct op_rows_place place_of(const struct spec *s, int g, int rows)
{
    const struct kv_view *kv = &s->env.kv[g];
    return (struct op_rows_place){.slot = s->row.slot,
                                  .pos = s->row.pos,
                                  .tok = s->row.tok,
                                  .at = s->row.at,
                                  .from = s->env.slots.drf_first,
                                  .first = s->row.first[g],
                                  .last = s->row.last[g],
                                  .wslot = s->row.wslot[g],
                                  .table = kv->table,
                                  .rows = rows,
                                  .pages_max = kv->pages_max,
                                  .page = kv->page,
                                  .window = s->net.group[g].window};
}

/* One pass of the drafter over s->row; the rows take the features feat[src]. */
static int pass(struct spec *s, enum role role, int rows, const float *feat, const int32_t *src,
                float *hidden, struct err *e)
{
    struct op_rows_place place[LIM_KV_GROUPS];
    for (int g = 0; g < s->net.n_group; g++) {
        place[g] = place_of(s, g, rows);
        if (!s->net.feat) /* with a feature the forward pass does it */
            CALL(s, rows_place, &place[g]);
    }
    struct fwd f = {.role = role,
                    .mask = role == DRF_DECODE && s->env.shape.topk > 1 ? MASK_TREE : MASK_RANGE,
                    .rows = rows,
                    .row = &s->row,
                    .kv = s->env.kv,
                    .attn = s->env.attn[role],
                    .hidden = hidden,
                    .feat = feat,
                    .src = src,
                    .place = s->net.feat ? place : NULL};
    return model_forward(s->env.drafter, &f, e);
}

/* The target's features of all rows of a prefill. */
static int features_of_all(struct spec *s, const struct spec_step *st, struct err *e)
{
    if (!s->net.feat)
        return OK;
    if (s->net.n_tap)
        return model_feature(s->env.drafter, st->taps, st->n_row, s->source, e);
    RUN(s, gather, .out = s->source, .x = st->hidden, .rows = st->n_row, .dim = s->net.feat);
    return OK;
}

/* The target's features of the rows that were accepted, from its taps. */
static int features_of_path(struct spec *s, const struct spec_step *st, int rows, struct err *e)
{
    RUN(s, gather, .out = s->taps, .x = st->taps, .idx = s->src, .rows = rows,
        .dim = (int)tap_width(s));
    return model_feature(s->env.drafter, s->taps, rows, s->feat, e);
}

static struct op_stamp stamp(const struct spec_step *st, enum stamp which)
{
    if (st->prefill)
        return (struct op_stamp){0};
    return (struct op_stamp){st->stamps, st->step, st->ring_depth, N_STAMPS, which};
}

static int pick(struct spec *s, const struct spec_step *st, const float *hidden, int level,
                bool last, struct err *e)
{
    int k = s->env.shape.topk, rows = level ? st->reqs * k : st->reqs;
    TRY(model_logits(s->env.drafter, hidden, rows, s->env.logits, e));
    RUN(s, draft_pick, .s = s->env.slots, .t = s->tree, .out = s->row, .src = s->src,
        .req_slot = st->req_slot, .tail = s->tail, .logits = s->env.logits, .ldl = s->net.vocab,
        .d2t = model_d2t(s->env.drafter), .work = s->env.sample_work, .reqs = st->reqs, .topk = k,
        .level = level, .vocab = s->net.vocab, .shift = s->net.shift, .last = last, .q = s->env.q,
        .q_steps = s->env.shape.steps,
        .stamp = level ? (struct op_stamp){0} : stamp(st, STAMP_EXTEND));
    return OK;
}

/* Draft-extend over `each` rows a request: those of its accepted path, or the root of a prefill. */
static int extend(struct spec *s, const struct spec_step *st, int each, struct err *e)
{
    int rows = st->reqs * each;
    RUN(s, draft_begin, .s = s->env.slots, .out = s->row, .req_slot = st->req_slot,
        .req_gen = st->req_gen, .acc = st->acc, .src = s->src, .tail = s->tail, .reqs = st->reqs,
        .each = each, .shift = s->net.shift, .stamp = stamp(st, STAMP_ACCEPT));
    const float *feat = st->prefill ? s->source : st->hidden;
    const int32_t *src = s->src;
    if (s->net.n_tap && !st->prefill) {
        TRY(features_of_path(s, st, rows, e));
        feat = s->feat;
        src = NULL;
    }
    TRY(pass(s, DRF_EXTEND, rows, feat, src, s->hidden[0], e));
    RUN(s, gather, .out = s->hidden_tail, .x = s->hidden[0], .idx = s->tail, .rows = st->reqs,
        .dim = s->net.hidden);
    return OK;
}

/* The first candidates, depth - 1 passes of the drafter, the nodes of the next verify. */
static int loop(struct spec *s, const struct spec_step *st, int depth, struct err *e)
{
    int k = s->env.shape.topk;
    TRY(pick(s, st, s->hidden_tail, 0, depth == 1, e));
    for (int level = 1; level < depth; level++) {
        float *hidden = s->hidden[level & 1];
        TRY(pass(s, DRF_DECODE, st->reqs * k, s->hidden[!(level & 1)], s->src, hidden, e));
        TRY(pick(s, st, hidden, level, level == depth - 1, e));
    }
    RUN(s, draft_build, .s = s->env.slots, .t = s->tree, .req_slot = st->req_slot, .tail = s->tail,
        .reqs = st->reqs, .topk = k, .levels = depth, .rows = s->env.shape.rows);
    return OK;
}

static int draft_propose(struct spec *s, const struct spec_step *st, int depth, struct err *e)
{
    if (st->part != SPEC_ROUND_LOOP)
        TRY(extend(s, st, spec_extend_rows(&s->env.shape), e));
    return st->part == SPEC_ROUND_EXTEND ? OK : loop(s, st, depth, e);
}

/* The chunks' rows, then one round for the requests whose prompt is complete: to draft-extend the
 * sampled root is one more emitted token. */
static int draft_prefill(struct spec *s, const struct spec_step *st, int depth, struct err *e)
{
    int feat = s->net.feat;
    TRY(features_of_all(s, st, e));
    RUN(s, draft_fill, .s = s->env.slots, .in = st->rows, .out = s->row, .req_slot = st->req_slot,
        .req_gen = st->req_gen, .req_row0 = st->req_row0, .req_n = st->req_n, .src = s->src,
        .keep_row = s->keep_row, .keep_slot = s->keep_slot, .reqs = st->reqs, .rows = st->n_row,
        .shift = s->net.shift, .saved0 = s->rows_max);
    TRY(plan_role(s, DRF_PREFILL, st->reqs, st->n_row, st->qlen, e));
    TRY(pass(s, DRF_PREFILL, st->n_row, s->source, s->src, s->hidden[0], e));
    if (feat) {
        RUN(s, gather, .out = s->keep, .x = s->source, .idx = s->keep_row, .rows = st->reqs,
            .dim = feat);
        RUN(s, kv_write, .cache = s->source + (size_t)s->rows_max * (size_t)feat, .dt = DT_F32,
            .x = s->keep, .wslot = s->keep_slot, .rows = st->reqs, .width = feat, .ldx = feat);
    }
    if (depth < 1)
        return OK;
    TRY(plan_round(s, st->reqs, 1, depth, e));
    TRY(extend(s, st, 1, e));
    return loop(s, st, depth, e);
}

/* ---- the algorithms ---- */

enum { DEF_STEPS = 3 };

static int shape(struct spec_shape *out, const struct spec_conf *c, struct err *e)
{
    int topk = c->topk ? c->topk : 1, steps = c->steps ? c->steps : DEF_STEPS;
    if (topk == 1)
        TRY(spec_chain_steps(&steps, c, DEF_STEPS, e));
    TRY(spec_tree_shape(out, steps, topk, c->tokens, e));
    if (c->ratio && topk > 1)
        return FAIL(e, E_INVAL, "spec_accept is ratio, which is for chains, but spec_topk is %d",
                    topk);
    out->ratio = c->ratio;
    return spec_ngram_shape(out, c, e);
}

static int shape_mtp(struct spec_shape *out, const struct spec_conf *c,
                     const struct model_info *target, const struct model_info *drafter,
                     struct err *e)
{
    (void)drafter;
    if (c->draft_dir)
        return FAIL(e, E_INVAL, "draft is %s, but mtp drafts with %s's own next-token layer",
                    c->draft_dir, target->arch);
    return shape(out, c, e);
}

static int shape_eagle3(struct spec_shape *out, const struct spec_conf *c,
                        const struct model_info *target, const struct model_info *drafter,
                        struct err *e)
{
    (void)target;
    if (!drafter->n_tap)
        return FAIL(e, E_INVAL, "draft is %s, a %s, but eagle3 needs an EAGLE-3 head", c->draft_dir,
                    drafter->arch);
    return shape(out, c, e);
}

static int shape_draft_model(struct spec_shape *out, const struct spec_conf *c,
                             const struct model_info *target, const struct model_info *drafter,
                             struct err *e)
{
    (void)target;
    if (drafter->feat)
        return FAIL(e, E_INVAL, "draft is %s, a %s, but draft-model needs a language model",
                    c->draft_dir, drafter->arch);
    return shape(out, c, e);
}

#define DRAFT_ALGO(id, label, shaper)                                                              \
    const struct spec_algo id = {.name = label,                                                    \
                                 .drafter = true,                                                  \
                                 .shape = shaper,                                                  \
                                 .bytes = draft_bytes,                                             \
                                 .open = draft_open,                                               \
                                 .prefill = draft_prefill,                                         \
                                 .plan = draft_plan,                                               \
                                 .propose = draft_propose,                                         \
                                 .close = draft_close}

DRAFT_ALGO(spec_mtp, "mtp", shape_mtp);
DRAFT_ALGO(spec_eagle3, "eagle3", shape_eagle3);
DRAFT_ALGO(spec_draft_model, "draft-model", shape_draft_model);
