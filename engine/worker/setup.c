/* What opening a runner decides before any memory is taken: device, model, page size, attention
 * backends, sizes. `specd plan` stops here, so its numbers are those of a start. Worker thread, or
 * whoever plans. */
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/log.h"
#include "engine/worker/runner.h"
#include "kernels/choose.h"

struct model *runner_model(const struct runner *r, enum role role)
{
    switch (role) {
    case TGT_PREFILL:
    case TGT_VERIFY:
        return r->model;
    case DRF_PREFILL:
    case DRF_EXTEND:
        return r->drafter;
    case DRF_DECODE:
        return r->spec_env.shape.steps > 1 ? r->drafter : NULL;
    case DRF_FROZEN: /* no algorithm runs these yet */
    case DRF_BLOCK:
    case N_ROLES:
        break;
    }
    return NULL;
}

/* Rows of a request in one call of the role; 0: any. */
static int role_rows(const struct runner *r, enum role role)
{
    const struct spec_shape *s = &r->spec_env.shape;
    switch (role) {
    case TGT_VERIFY:
        return s->rows;
    case DRF_EXTEND:
        return s->steps + 1;
    case DRF_DECODE:
        return s->topk;
    case TGT_PREFILL:
    case DRF_PREFILL:
    case DRF_FROZEN:
    case DRF_BLOCK:
    case N_ROLES:
        break;
    }
    return 0;
}

static int open_device(struct runner *r, const struct worker_conf *c, struct err *e)
{
    struct dev_conf dc = {.ordinal = 0, .threads = c->threads};
    struct gpu_facts f;
    struct err why;
    const char *name;
    dev_facts(&f, dc.ordinal);
    TRY(dev_decide(&name, c->device, &f, &why, e));
    if (why.code != OK)
        LOG(LOG_INFO, "worker", "the CPU device is used: %s", why.text);
    r->ops = dev_find(name);
    CHECK(r->ops);
    return r->ops->open(&r->d, &dc, e);
}

/* The group of the target that keeps every page of a request, for the drafter's planes. */
static int share_group(struct runner *r, struct err *e)
{
    for (int g = 0; g < r->info.model.n_group; g++)
        if (!r->info.model.group[g].window) {
            r->share = g;
            return OK;
        }
    return FAIL(e, E_UNSUPPORTED,
                "the drafter's KV needs pages of a full-attention layer of the target, and %s has "
                "windows only",
                r->info.model.arch);
}

static int open_drafter(struct runner *r, const struct worker_conf *c, const struct model_conf *mc,
                        enum dtype kv_type, struct err *e)
{
    r->algo = c->spec_algo;
    if (!r->algo)
        TRY(spec_choose(&r->algo, &r->drafter, &c->spec, mc, r->model, e));
    if (r->drafter) {
        model_kv_dtype(r->drafter, kv_type);
        r->info.draft = *model_info(r->drafter);
        if (c->len_max > r->info.draft.pos_max)
            return FAIL(e, E_INVAL,
                        "a context of %d tokens (max_model_len) is over the %d positions of the "
                        "drafter %s",
                        c->len_max, r->info.draft.pos_max, r->info.draft.arch);
        TRY(share_group(r, e));
    }
    r->spec_env = (struct spec_env){.ops = r->ops,
                                    .d = r->d,
                                    .reqs_max = c->reqs_max,
                                    .prefill_rows_max = c->prefill_rows_max,
                                    .hidden = r->info.model.hidden,
                                    .drafter = r->drafter,
                                    .attn = r->attn};
    r->spec_env.slots.n_slot = c->slots_max + 1; /* the arrays come with the batch */
    TRY(r->algo->shape(&r->spec_env.shape, &c->spec, &r->info.model,
                       r->drafter ? &r->info.draft : NULL, e));
    r->info.copy_bytes = (int64_t)(r->info.model.copy_bytes + r->info.draft.copy_bytes);
    r->info.spec_name = r->algo->name;
    r->info.spec = r->spec_env.shape;
    r->info.spec_model = r->algo->propose != NULL;
    r->info.spec_adapt = !c->spec_algo && c->spec.method && !strcmp(c->spec.method, "auto");
    return OK;
}

int runner_begin(struct runner *r, const struct worker_conf *c, struct err *e)
{
    *r = (struct runner){.conf = *c};
    r->conf.model_dir = r->conf.device = r->conf.attention_backend = NULL;
    TRY(open_device(r, c, e));
    struct model_conf mc = {.path = c->model_dir,
                            .dummy = c->dummy,
                            .n_layer = c->n_layer,
                            .threads = c->threads,
                            .comm = c->comm};
    if (c->comm && r->ops != &dev_cpu)
        return FAIL(e, E_UNSUPPORTED,
                    "tensor_parallel_size is %d, but device %s has no communicator: it runs one "
                    "rank",
                    c->comm->world, r->ops->name);
    TRY(model_open_conf(&r->model, &mc, e));
    enum dtype kv_type = c->kv_dtype ? c->kv_dtype : r->ops->kv_dtype;
    model_kv_dtype(r->model, kv_type);
    r->info.model = *model_info(r->model);
    r->info.device = r->ops->name;
    r->info.world = comm_world(c->comm);
    return open_drafter(r, c, &mc, kv_type, e);
}

/* A tree of the target's verify, or of the drafter's loop. */
static bool role_has_tree(const struct runner *r, enum role role)
{
    return r->spec_env.shape.topk > 1 && (role == TGT_VERIFY || role == DRF_DECODE);
}

int runner_needs(const struct runner *r, enum attn_kind form, struct attn_need *out, int *group)
{
    int n = 0;
    for (int i = 0; i < N_ROLES; i++) {
        enum role role = (enum role)i;
        const struct model *m = runner_model(r, role);
        for (int g = 0; m && g < model_info(m)->n_group; g++) {
            model_attn_need(m, g, role, form, role_rows(r, role), &out[n]);
            out[n].sm = r->ops->sm(r->d);
            if (role_has_tree(r, role))
                out[n].mask = MASK_TREE;
            if (group)
                group[n] = g;
            n++;
        }
    }
    return n;
}

/* Chooses page size and backends for all roles in one form of MLA. */
static int choose_form(struct runner *r, const struct worker_conf *c, enum attn_kind form,
                       struct err *e)
{
    struct attn_need need[NEEDS_MAX] = {0};
    int group[NEEDS_MAX];
    int n = runner_needs(r, form, need, group);
    TRY(attn_page_size(&r->info.page, r->ops->name, need, n, c->block_size, e));
    for (int k = 0; k < n; k++) {
        enum role role = need[k].role;
        struct attn_use *u = &r->attn[role][group[k]];
        bool target = role == TGT_PREFILL || role == TGT_VERIFY;
        need[k].page = r->info.page;
        TRY(attn_select(&u->b, r->ops->name, &need[k],
                        target ? c->attention_backend : c->draft_attention_backend, e));
        u->kind = need[k].kind;
        r->need[role][group[k]] = need[k];
    }
    return OK;
}

/* The form of MLA is the configured one, or, when a backend is forced by name, the one it runs. */
static int choose_attention(struct runner *r, const struct worker_conf *c, struct err *e)
{
    enum attn_kind form = c->mla_form ? c->mla_form : ATTN_MLA_ABSORBED;
    int ret = choose_form(r, c, form, e);
    if (ret < 0 && c->attention_backend && form == ATTN_MLA_ABSORBED) {
        struct err other = {0};
        if (choose_form(r, c, ATTN_MLA_DECOMPRESSED, &other) == OK)
            ret = OK;
    }
    return ret;
}

static void attention_dims(struct runner *r, const struct worker_conf *c)
{
    r->info.attention_bytes = 0;
    for (int i = 0; i < N_ROLES; i++) {
        enum role role = (enum role)i;
        const struct model *m = runner_model(r, role);
        if (!m)
            continue;
        int each = role == DRF_EXTEND ? r->spec_env.shape.rows : role_rows(r, role);
        r->dims[role] = (struct graph_dims){
            .reqs = c->reqs_max,
            .seqs = c->reqs_max,
            .rows = each ? c->reqs_max * each : c->prefill_rows_max,
            .qlen = each ? role_rows(r, role) : c->prefill_rows_max,
            .pages = r->info.pages_max[0],
            .role = role,
        };
        for (int g = 0; g < model_info(m)->n_group; g++)
            r->info.attention_bytes +=
                (int64_t)r->attn[role][g].b->workspace(&r->need[role][g], &r->dims[role]);
    }
}

size_t runner_tap_bytes(const struct runner *r)
{
    size_t width = (size_t)r->info.draft.n_tap * (size_t)r->info.model.hidden;
    return (size_t)r->sizes.rows_max * width * sizeof *r->taps;
}

size_t runner_q_bytes(const struct runner *r)
{
    const struct spec_shape *s = &r->spec_env.shape;
    size_t slots = (size_t)r->conf.slots_max + 1, vocab = (size_t)r->info.model.vocab;
    return s->ratio ? slots * (size_t)s->steps * vocab * sizeof *r->draft_q : 0;
}

/* The drafter's share of weights, workspace and KV. */
static void drafter_sizes(struct runner *r, const struct worker_conf *c)
{
    const struct model_info *di = &r->info.draft;
    int n_page[LIM_KV_GROUPS];
    r->info.draft_bytes = r->algo->bytes ? (int64_t)r->algo->bytes(&r->spec_env) : 0;
    if (!r->drafter)
        return;
    for (int g = 0; g < di->n_group; g++)
        n_page[g] = r->info.n_page[r->share];
    r->info.draft_bytes +=
        (int64_t)(runner_tap_bytes(r) + runner_q_bytes(r) +
                  model_device_bytes(r->drafter, spec_drafter_rows(&r->spec_env), c->len_max));
    r->info.draft_kv_bytes = (int64_t)kv_pool_bytes(di->group, di->n_group, n_page, r->info.page);
}

static int choose_sizes(struct runner *r, const struct worker_conf *c, struct err *e)
{
    struct model_info *mi = &r->info.model;
    int page = r->info.page;
    const struct spec_shape *shape = &r->spec_env.shape;
    int verify_rows = c->reqs_max * shape->rows, loop_rows = c->reqs_max * shape->topk;
    for (int g = 0; g < mi->n_group; g++) {
        int64_t pages = (c->kv_tokens + page - 1) / page;
        if (pages < 1 || pages > INT32_MAX / page)
            return FAIL(e, E_INVAL, "a KV cache of %lld tokens cannot be addressed",
                        (long long)c->kv_tokens);
        r->info.n_page[g] = (int)pages;
        r->info.pages_max[g] = kv_pages((int64_t)c->len_max + shape->ahead - 1, page);
    }
    r->set_max =
        mi->n_group * (c->prefill_rows_max + c->reqs_max * (shape->ahead + shape->steps + 4));
    r->sizes = (struct batch_conf){
        .slots_max = c->slots_max,
        .reqs_max = c->reqs_max,
        .rows_max = verify_rows > c->prefill_rows_max ? verify_rows : c->prefill_rows_max,
        .logits_max = verify_rows > loop_rows ? verify_rows : loop_rows,
        .set_max = r->set_max,
        .len_max = c->len_max,
        .vocab = mi->vocab,
        .hidden = mi->hidden,
        .n_group = mi->n_group,
        .ring_depth = RING_DEPTH,
    };
    r->info.batch_bytes = (int64_t)batch_bytes(&r->sizes);
    r->info.model_bytes = (int64_t)model_device_bytes(r->model, r->sizes.rows_max, c->len_max);
    attention_dims(r, c);
    drafter_sizes(r, c);
    r->info.workspace_bytes =
        r->info.batch_bytes + r->info.model_bytes + r->info.attention_bytes + r->info.draft_bytes;
    r->info.kv_bytes = (int64_t)kv_pool_bytes(mi->group, mi->n_group, r->info.n_page, page) +
                       r->info.draft_kv_bytes;
    return OK;
}

int runner_choose(struct runner *r, const struct worker_conf *c, struct err *e)
{
    TRY(choose_attention(r, c, e));
    return choose_sizes(r, c, e);
}
