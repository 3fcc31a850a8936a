/* What opening a runner decides before any memory is taken: device, model, page size, attention
 * backends, sizes. `specd plan` stops here, so its numbers are those of a start. Worker thread, or
 * whoever plans. */
#include "engine/base/check.h"
#include "engine/base/log.h"
#include "engine/worker/runner.h"
#include "kernels/choose.h"

static const enum role roles_in_use[] = {TGT_PREFILL, TGT_VERIFY};

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

int runner_begin(struct runner *r, const struct worker_conf *c, struct err *e)
{
    *r = (struct runner){.conf = *c};
    r->conf.model_dir = r->conf.device = r->conf.attention_backend = NULL;
    TRY(open_device(r, c, e));
    struct model_conf mc = {
        .path = c->model_dir, .dummy = c->dummy, .n_layer = c->n_layer, .threads = c->threads};
    TRY(model_open_conf(&r->model, &mc, e));
    model_kv_dtype(r->model, c->kv_dtype ? c->kv_dtype : r->ops->kv_dtype);
    r->info.model = *model_info(r->model);
    r->info.device = r->ops->name;
    r->spec_env = (struct spec_env){.ops = r->ops, .d = r->d, .reqs_max = c->reqs_max};
    r->algo = spec_find("off");
    r->rows_per_req = r->algo->rows_per_req(&r->spec_env);
    CHECK(r->rows_per_req >= 1 && r->rows_per_req <= LIM_ROWS_PER_REQ);
    return OK;
}

int runner_needs(const struct runner *r, enum attn_kind form, struct attn_need *out)
{
    int n = 0;
    for (int g = 0; g < r->info.model.n_group; g++)
        for (size_t i = 0; i < ARRAY_LEN(roles_in_use); i++) {
            enum role role = roles_in_use[i];
            model_attn_need(r->model, g, role, form, role == TGT_VERIFY ? r->rows_per_req : 0,
                            &out[n]);
            out[n++].sm = r->ops->sm(r->d);
        }
    return n;
}

/* Chooses page size and backends for all roles in one form of MLA. */
static int choose_form(struct runner *r, const struct worker_conf *c, enum attn_kind form,
                       struct err *e)
{
    struct attn_need need[NEEDS_MAX] = {0};
    int n = runner_needs(r, form, need);
    TRY(attn_page_size(&r->info.page, r->ops->name, need, n, c->block_size, e));
    for (int k = 0; k < n; k++) {
        int g = k / (int)ARRAY_LEN(roles_in_use);
        struct attn_use *u = &r->attn[need[k].role][g];
        need[k].page = r->info.page;
        TRY(attn_select(&u->b, r->ops->name, &need[k], c->attention_backend, e));
        u->kind = need[k].kind;
        r->need[need[k].role][g] = need[k];
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
    for (size_t i = 0; i < ARRAY_LEN(roles_in_use); i++) {
        enum role role = roles_in_use[i];
        bool verify = role == TGT_VERIFY;
        r->dims[role] = (struct graph_dims){
            .reqs = c->reqs_max,
            .seqs = c->reqs_max,
            .rows = verify ? c->reqs_max * r->rows_per_req : c->prefill_rows_max,
            .qlen = verify ? r->rows_per_req : c->prefill_rows_max,
            .pages = kv_pages(c->len_max, r->info.page),
            .role = role,
        };
        for (int g = 0; g < r->info.model.n_group; g++)
            r->info.attention_bytes +=
                (int64_t)r->attn[role][g].b->workspace(&r->need[role][g], &r->dims[role]);
    }
}

static int choose_sizes(struct runner *r, const struct worker_conf *c, struct err *e)
{
    struct model_info *mi = &r->info.model;
    int page = r->info.page;
    int verify_rows = c->reqs_max * r->rows_per_req;
    for (int g = 0; g < mi->n_group; g++) {
        int64_t pages = (c->kv_tokens + page - 1) / page;
        if (pages < 1 || pages > INT32_MAX / page)
            return FAIL(e, E_INVAL, "a KV cache of %lld tokens cannot be addressed",
                        (long long)c->kv_tokens);
        r->info.n_page[g] = (int)pages;
        r->info.pages_max[g] = kv_pages(c->len_max, page);
    }
    r->set_max = mi->n_group * (c->prefill_rows_max + c->reqs_max * (LIM_ROWS_PER_REQ + 4));
    r->sizes = (struct batch_conf){
        .slots_max = c->slots_max,
        .reqs_max = c->reqs_max,
        .rows_max = verify_rows > c->prefill_rows_max ? verify_rows : c->prefill_rows_max,
        .logits_max = verify_rows,
        .set_max = r->set_max,
        .len_max = c->len_max,
        .vocab = mi->vocab,
        .hidden = mi->hidden,
        .n_group = mi->n_group,
        .ring_depth = RING_DEPTH,
    };
    r->info.batch_bytes = (int64_t)batch_bytes(&r->sizes);
    r->info.model_bytes = (int64_t)model_device_bytes(r->model, r->sizes.rows_max, c->len_max);
    r->info.workspace_bytes = r->info.batch_bytes + r->info.model_bytes + r->info.attention_bytes;
    r->info.kv_bytes = (int64_t)kv_pool_bytes(mi->group, mi->n_group, r->info.n_page, page);
    return OK;
}

int runner_choose(struct runner *r, const struct worker_conf *c, struct err *e)
{
    TRY(choose_attention(r, c, e));
    attention_dims(r, c);
    return choose_sizes(r, c, e);
}
