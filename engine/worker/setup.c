/* What opening a runner decides before any memory is taken: device, model, page size, attention
 * backends, sizes. `specd plan` stops here, so its numbers are those of a start. Worker thread, or
 * whoever plans. */
#include <stdio.h>
#include <string.h>

#include "attention/probe.h"
#include "engine/base/check.h"
#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/kv/fit.h"
#include "engine/worker/runner.h"
#include "kernels/choose.h"

/* Prefill tokens of one step when none are asked for. A GPU needs many rows to be busy with. */
enum { DEF_ROWS_HOST = 512, DEF_ROWS_GPU = 2048 };
/* Device memory set aside for recorded steps: of each graph, and of what is loaded with the first
 * use of a kernel. */
#define GRAPH_BYTES ((int64_t)2 << 20)
#define KERNEL_BYTES ((int64_t)256 << 20)

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
        return spec_extend_rows(s);
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
    struct dev_conf dc = {.threads = c->threads};
    struct gpu_facts f;
    struct err why;
    const char *name;
    TRY(dev_ordinal(&dc.ordinal, c->device, e));
    dev_facts(&f, dc.ordinal);
    TRY(dev_decide(&name, c->device, &f, &why, e));
    if (why.code != OK)
        LOG(LOG_INFO, "worker", "the CPU device is used: %s", why.text);
    r->ops = dev_find(name);
    CHECK(r->ops);
    if (c->time_ops)
        r->ops = timed_device(r->ops);
    TRY(r->ops->open(&r->d, &dc, e));
    return c->time_ops ? timed_open(r->d, e) : OK;
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
                                    .prefill_rows_max = r->conf.prefill_rows_max,
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

/* Lines on the way of the weights to the device: one a second, and one at the end. */
static void note_weights(void *ud, size_t done, size_t total)
{
    struct runner *r = ud;
    int64_t now = clock_us();
    if (!done || (done < total && now - r->note_us < 1000000)) {
        r->note_first_us = done ? r->note_first_us : now;
        r->note_us = done ? r->note_us : now;
        return;
    }
    r->note_us = now;
    LOG(LOG_INFO, "worker", "weights: %.0f%% of %.2f GB on the device, %.1f GB/s",
        100 * (double)done / (double)total, (double)total * 1e-9,
        (double)done * 1e-3 / (double)(now - r->note_first_us + 1));
}

int runner_begin(struct runner *r, const struct worker_conf *c, struct err *e)
{
    *r = (struct runner){.conf = *c};
    r->conf.model_dir = r->conf.device = r->conf.attention_backend = NULL;
    TRY(open_device(r, c, e));
    if (!r->conf.prefill_rows_max)
        r->conf.prefill_rows_max = r->ops->load ? DEF_ROWS_GPU : DEF_ROWS_HOST;
    struct model_conf mc = {.path = c->model_dir,
                            .dummy = c->dummy,
                            .n_layer = c->n_layer,
                            .threads = c->threads,
                            .comm = c->comm,
                            .progress = note_weights,
                            .ud = r};
    if (c->comm && strcmp(r->ops->name, dev_cpu.name) != 0)
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

/* Every chosen backend is tried against the CPU reference before weights are loaded. */
int runner_probe(struct runner *r, struct err *e)
{
    struct dev_conf dc = {.threads = r->conf.threads < 8 ? r->conf.threads : 8};
    struct dev *cpu;
    float worst, most = -1;
    int ret = OK;
    int64_t t0 = clock_us();
    if (!strcmp(r->ops->name, dev_cpu.name))
        return OK; /* it is the reference */
    TRY(dev_cpu.open(&cpu, &dc, e));
    for (int role = 0; role < N_ROLES && ret == OK; role++)
        for (int g = 0; g < LIM_KV_GROUPS && ret == OK; g++) {
            if (!r->attn[role][g].b)
                continue;
            ret = attn_probe(r->ops, r->d, r->attn[role][g].b, &r->need[role][g], cpu, &worst, e);
            most = worst > most ? worst : most;
        }
    dev_cpu.close(cpu);
    if (ret == OK)
        LOG(LOG_INFO, "worker", "attention agrees with the reference within %.1e (%.3f s)",
            (double)most, (double)(clock_us() - t0) * 1e-6);
    return ret;
}

static void attention_dims(struct runner *r)
{
    const struct worker_conf *c = &r->conf;
    r->info.attention_bytes = 0;
    for (int i = 0; i < N_ROLES; i++) {
        enum role role = (enum role)i;
        const struct model *m = runner_model(r, role);
        if (!m)
            continue;
        int each = role_rows(r, role);
        r->dims[role] = (struct graph_dims){
            .reqs = c->reqs_max,
            .seqs = c->reqs_max,
            .rows = each ? c->reqs_max * each : c->prefill_rows_max,
            .qlen = each ? each : c->prefill_rows_max,
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

/* The drafter's share of workspace. */
static void drafter_sizes(struct runner *r)
{
    r->info.draft_bytes = r->algo->bytes ? (int64_t)r->algo->bytes(&r->spec_env) : 0;
    if (!r->drafter)
        return;
    int rows = spec_drafter_rows(&r->spec_env);
    r->info.draft_bytes += (int64_t)(runner_tap_bytes(r) + runner_q_bytes(r) +
                                     model_device_bytes(r->drafter, rows, r->conf.len_max));
}

/* Everything but KV, from the numbers in r->conf; no memory is taken. */
static void choose_sizes(struct runner *r)
{
    const struct worker_conf *c = &r->conf;
    const struct model_info *mi = &r->info.model;
    const struct spec_shape *shape = &r->spec_env.shape;
    struct graph_key keys[KEYS_MAX];
    int verify_rows = c->reqs_max * shape->rows, loop_rows = c->reqs_max * shape->topk;
    r->spec_env.reqs_max = c->reqs_max;
    r->spec_env.prefill_rows_max = c->prefill_rows_max;
    r->spec_env.slots.n_slot = c->slots_max + 1; /* the arrays come with the batch */
    r->info.table_bytes = 0;
    for (int g = 0; g < mi->n_group; g++) {
        r->info.pages_max[g] = kv_pages((int64_t)c->len_max + shape->ahead - 1, r->info.page);
        r->info.table_bytes +=
            (int64_t)(c->slots_max + 1) * r->info.pages_max[g] * (int64_t)sizeof(int32_t);
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
    attention_dims(r);
    drafter_sizes(r);
    r->info.workspace_bytes =
        r->info.batch_bytes + r->info.model_bytes + r->info.attention_bytes + r->info.draft_bytes;
    r->info.n_graph = runner_keys(r, keys);
    r->info.graph_reserve = r->info.free_bytes ? KERNEL_BYTES + r->info.n_graph * GRAPH_BYTES : 0;
}

static int64_t token_bytes(const struct model_info *mi)
{
    int one[LIM_KV_GROUPS];
    for (int g = 0; g < LIM_KV_GROUPS; g++)
        one[g] = 1;
    return (int64_t)kv_pool_bytes(mi->group, mi->n_group, one, 1);
}

/* What KV has to share memory with, at the sizes chosen. */
static struct kv_ask kv_ask(const struct runner *r)
{
    const struct worker_info *i = &r->info;
    int64_t token = token_bytes(&i->model) + (r->drafter ? token_bytes(&i->draft) : 0);
    return (struct kv_ask){
        .free = i->free_bytes,
        .share = r->conf.memory_share > 0 ? r->conf.memory_share : 1,
        .fixed = (int64_t)(i->model.weight_bytes + i->draft.weight_bytes) + i->copy_bytes +
                 i->workspace_bytes + i->table_bytes + i->graph_reserve,
        .token = token > 0 ? token : 1,
        .asked = r->conf.kv_tokens,
        .reqs = r->conf.reqs_max,
        .len = r->conf.len_max,
        .len_asked = r->conf.len_asked,
        .page = i->page,
        .world = i->world,
    };
}

static void set_seqs(struct worker_conf *c, int reqs)
{
    c->reqs_max = reqs;
    c->slots_max = worker_slots(reqs);
}

/* The memory is too small for this many sequences: says how many it is large enough for. */
static void hint_seqs(const struct runner *r, struct err *e)
{
    struct runner t = *r; /* sizes are computed from its numbers; nothing of it is opened */
    for (int n = r->conf.reqs_max / 2; n >= 1; n /= 2) {
        int64_t tokens;
        int len;
        t.spec_env.attn = t.attn;
        set_seqs(&t.conf, n);
        choose_sizes(&t);
        struct kv_ask a = kv_ask(&t);
        if (kv_fit(&tokens, &len, &a, NULL) < 0 || tokens < (a.len < 1024 ? a.len : 1024))
            continue; /* what would be left is of no use */
        size_t at = strlen(e->text);
        snprintf(e->text + at, sizeof e->text - at,
                 "; max_num_seqs %d fits, with %lld tokens of KV", n, (long long)tokens);
        return;
    }
    size_t at = strlen(e->text);
    snprintf(e->text + at, sizeof e->text - at, "; weights alone are %.2f GiB",
             (double)(r->info.model.weight_bytes + r->info.draft.weight_bytes) / (1 << 30));
}

/* How much KV, and with it the context. */
static int choose_kv(struct runner *r, struct err *e)
{
    struct worker_conf *c = &r->conf;
    struct model_info *mi = &r->info.model;
    int page = r->info.page, len = c->len_max, n_page[LIM_KV_GROUPS];
    int64_t tokens = 0, total;
    r->ops->memory(r->d, &r->info.free_bytes, &total);
    choose_sizes(r);
    struct kv_ask a = kv_ask(r);
    int ret = kv_fit(&tokens, &len, &a, e);
    r->info.budget_bytes = a.free ? kv_budget(&a) : 0;
    if (ret == E_NOMEM && e && kv_budget(&a) - a.fixed < a.token * page)
        hint_seqs(r, e);
    if (ret < 0)
        return ret;
    if (len < c->len_max) {
        LOG(LOG_WARN, "engine", "the KV cache of %lld tokens limits the context of %d",
            (long long)tokens, c->len_max);
        c->len_max = len;
        choose_sizes(r);
    }
    int64_t pages = (tokens + page - 1) / page;
    if (pages < 1 || pages > INT32_MAX / page)
        return FAIL(e, E_INVAL, "a KV cache of %lld tokens cannot be addressed", (long long)tokens);
    c->kv_tokens = r->info.kv_tokens = tokens;
    r->info.len_max = c->len_max;
    r->info.prefill_rows_max = c->prefill_rows_max;
    for (int g = 0; g < mi->n_group; g++)
        r->info.n_page[g] = (int)pages;
    r->info.kv_bytes = (int64_t)kv_pool_bytes(mi->group, mi->n_group, r->info.n_page, page);
    r->info.draft_kv_bytes = 0;
    for (int g = 0; g < r->info.draft.n_group; g++)
        n_page[g] = r->info.n_page[r->share];
    if (r->drafter)
        r->info.draft_kv_bytes =
            (int64_t)kv_pool_bytes(r->info.draft.group, r->info.draft.n_group, n_page, page);
    r->info.kv_bytes += r->info.draft_kv_bytes;
    return OK;
}

int runner_choose(struct runner *r, const struct worker_conf *c, struct err *e)
{
    TRY(choose_attention(r, c, e));
    return choose_kv(r, e);
}
