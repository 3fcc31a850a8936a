/* From settings to the worker's numbers, and the same as text for `specd plan`: nothing is loaded
 * or run. Whoever opens or plans; the device is opened to be asked, and closed again. */
#include "engine/plan.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/buf.h"
#include "engine/base/check.h"
#include "engine/base/log.h"
#include "engine/worker/runner.h"

enum { DEF_SEQS = 64, MAX_ROWS = 1 << 16 };
#define DEF_SHARE 0.9

/* ---- numbers ---- */

static int online_cores(void)
{
    cpu_set_t set;
    int n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    return n > 0 ? n : 1;
}

int plan_take(int value, int def, int lo, int hi, const char *what, int *out, struct err *e)
{
    value = value ? value : def;
    if (value < lo || value > hi)
        return FAIL(e, E_INVAL, "%s is %d; %d to %d", what, value, lo, hi);
    *out = value;
    return OK;
}

static int64_t group_bytes(const struct kv_group *kg)
{
    return (int64_t)kg->n_layer * (kg->k_width + kg->v_width) * (int64_t)dtype_size(kg->dt);
}

int64_t plan_kv_token_bytes(const struct model_info *mi)
{
    int64_t n = 0;
    for (int i = 0; i < mi->n_group; i++)
        n += group_bytes(&mi->group[i]);
    return n > 0 ? n : 1;
}

/* Context length; how much KV memory there is for it the worker finds out (kv/fit.h). */
static int plan_lengths(const struct engine_conf *c, const struct model_info *mi,
                        struct worker_conf *w, struct err *e)
{
    int len = c->max_model_len ? c->max_model_len : mi->pos_max;
    if (len < 2 || len > mi->pos_max)
        return FAIL(e, E_INVAL, "max_model_len is %d; the model allows 2 to %d", len, mi->pos_max);
    if (c->kv_cache_tokens >= 2 && c->kv_cache_tokens < len) {
        LOG(LOG_WARN, "engine", "the KV cache of %lld tokens limits the context of %d",
            (long long)c->kv_cache_tokens, len);
        len = (int)c->kv_cache_tokens;
    }
    w->len_max = len;
    w->len_asked = c->max_model_len > 0;
    w->kv_tokens = c->kv_cache_tokens;
    return OK;
}

static int plan_kv_type(enum dtype *out, const char *name, struct err *e)
{
    static const struct {
        const char *name;
        enum dtype dt;
    } types[] = {{"auto", DT_NONE},
                 {"f32", DT_F32},
                 {"bf16", DT_BF16},
                 {"fp8", DT_F8E4M3},
                 {"fp8_e4m3", DT_F8E4M3}};
    for (size_t i = 0; i < ARRAY_LEN(types); i++)
        if (!name || !strcmp(name, types[i].name)) {
            *out = types[i].dt;
            return OK;
        }
    return FAIL(e, E_INVAL, "kv_cache_dtype is %s; auto, f32, bf16, fp8 or fp8_e4m3", name);
}

static int plan_memory(struct worker_conf *w, const struct engine_conf *c, struct err *e)
{
    w->memory_share = c->gpu_memory_utilization > 0 ? c->gpu_memory_utilization : DEF_SHARE;
    if (w->memory_share > 1)
        return FAIL(e, E_INVAL, "gpu_memory_utilization is %g; above 0, at most 1",
                    c->gpu_memory_utilization);
    for (size_t i = 0; i < c->n_allow_eager; i++) {
        enum role role;
        TRY(graph_role_find(&role, c->allow_eager[i], e));
        w->eager |= 1u << role;
    }
    return OK;
}

/* What the algorithms themselves cannot see; they check the rest in their shape(). */
static int plan_spec(struct spec_conf *s, const struct engine_conf *c, struct err *e)
{
    const char *method = c->speculative ? c->speculative : "off";
    bool network = strcmp(method, "off") != 0 && strcmp(method, "ngram") != 0;
    if (c->draft_attention_backend && !network)
        return FAIL(e, E_INVAL,
                    "draft_attention_backend is %s, but speculative is %s and runs no drafter",
                    c->draft_attention_backend, method);
    *s = (struct spec_conf){.method = method,
                            .draft_dir = c->draft,
                            .steps = c->spec_steps,
                            .topk = c->spec_topk,
                            .tokens = c->spec_tokens,
                            .ngram_min = c->spec_ngram_min,
                            .ngram_max = c->spec_ngram_max,
                            .ratio = c->spec_ratio};
    return OK;
}

int plan_worker(struct worker_conf *w, const struct engine_conf *c, struct err *e)
{
    TRY(plan_take(c->threads, online_cores(), 1, 1024, "threads", &w->threads, e));
    TRY(plan_take(c->max_num_seqs, DEF_SEQS, 1, LIM_SLOTS - 1, "max_num_seqs", &w->reqs_max, e));
    TRY(plan_take(c->max_num_batched_tokens, 0, 0, MAX_ROWS, "max_num_batched_tokens",
                  &w->prefill_rows_max, e));
    TRY(plan_memory(w, c, e));
    w->slots_max = worker_slots(w->reqs_max);
    w->model_dir = c->model;
    w->dummy = c->dummy;
    w->n_layer = c->num_layers;
    w->device = c->device ? c->device : "auto";
    w->block_size = c->block_size;
    w->attention_backend = c->attention_backend;
    w->draft_attention_backend = c->draft_attention_backend;
    TRY(plan_kv_type(&w->kv_dtype, c->kv_cache_dtype, e));
    w->spec_algo = c->spec_algo;
    w->time_ops = c->time_ops;
    TRY(plan_spec(&w->spec, c, e));
    TRY(plan_take(c->tensor_parallel_size, 1, 1, LIM_RANKS, "tensor_parallel_size", &w->world, e));
    struct comm *comm[LIM_RANKS] = {NULL}; /* for the numbers of a rank */
    if (w->world > 1)
        TRY(comm_shm_open(comm, w->world, e));
    struct model *m; /* headers only: its sizes are needed before the worker opens it */
    struct model_conf mc = {
        .path = c->model, .dummy = c->dummy, .n_layer = c->num_layers, .comm = comm[0]};
    int ret = model_open_conf(&m, &mc, e);
    if (ret == OK) {
        ret = plan_lengths(c, model_info(m), w, e);
        model_close(m);
    }
    if (comm[0])
        comm_shm_close(comm);
    return ret;
}

/* ---- text ---- */

static void put_bytes(struct buf *b, const char *what, int64_t n, const char *note)
{
    buf_fmt(b, "  %-26s %12.2f MiB  %s\n", what, (double)n / (1 << 20), note);
}

static void put_groups(struct buf *b, const char *what, const struct model_info *mi)
{
    for (int g = 0; g < mi->n_group; g++) {
        const struct kv_group *kg = &mi->group[g];
        buf_fmt(b, "%s %d %d layers, %s, rows of %d + %d %s", what, g, kg->n_layer,
                kg->kind == ATTN_GQA ? "gqa" : "mla", kg->k_width, kg->v_width, dtype_name(kg->dt));
        if (kg->window)
            buf_fmt(b, ", window %d", kg->window);
        buf_char(b, '\n');
    }
}

static void put_model(struct buf *b, const struct runner *r, const struct engine_conf *c)
{
    const struct model_info *mi = &r->info.model;
    buf_fmt(b, "model      %s\n", c->model);
    buf_fmt(b, "family     %s (%s)%s\n", mi->family, mi->arch,
            c->dummy ? ", generated weights" : "");
    buf_fmt(b, "layers     %d, hidden %d, heads %d, vocabulary %d, positions %d\n", mi->n_layer,
            mi->hidden, mi->n_head, mi->vocab, mi->pos_max);
    if (mi->n_mtp)
        buf_fmt(b, "next-token %d layer(s), %s\n", mi->n_mtp,
                r->drafter && !c->draft ? "the first one drafts" : "kept aside");
    buf_fmt(b, "parameters %lld (%.2f B), %lld bytes of weights\n", (long long)mi->n_param,
            (double)mi->n_param * 1e-9, (long long)mi->weight_bytes);
    buf_fmt(b, "device     %s\n", r->info.device);
    if (r->info.world > 1)
        buf_fmt(b, "ranks      %d; KV rows and memory are those of one, the total is of all\n",
                r->info.world);
    put_groups(b, "kv group", mi);
}

static void put_drafter(struct buf *b, const struct runner *r, const struct engine_conf *c)
{
    const struct model_info *d = &r->info.draft;
    buf_fmt(b, "drafter    %s (%s), %s\n", d->family, d->arch,
            c->draft ? c->draft : "the target's own layer");
    buf_fmt(b, "           layers %d, hidden %d, vocabulary %d, positions %d\n", d->n_layer,
            d->hidden, d->vocab, d->pos_max);
    buf_fmt(b, "           parameters %lld, %lld bytes of weights\n", (long long)d->n_param,
            (long long)d->weight_bytes);
    if (d->n_tap) {
        buf_str(b, "           reads what enters the target's layers");
        for (int i = 0; i < d->n_tap; i++)
            buf_fmt(b, " %d", d->tap[i]);
        buf_char(b, '\n');
    } else if (d->feat) {
        buf_str(b, "           reads the target's final rows\n");
    }
    put_groups(b, "drafter kv", d);
}

static void put_speculation(struct buf *b, const struct runner *r, const struct engine_conf *c)
{
    const struct spec_shape *s = &r->info.spec;
    bool asked_auto = c->speculative && !strcmp(c->speculative, "auto");
    buf_fmt(b, "\nspeculation %s%s\n", r->info.spec_name, asked_auto ? " (chosen by auto)" : "");
    if (s->rows < 2)
        return;
    buf_fmt(b, "shape      S %d drafts on a path, K %d, N %d rows of a request in a verify\n",
            s->steps, s->topk, s->rows);
    buf_fmt(b, "           a step writes up to %d positions past the committed length\n", s->ahead);
    if (r->drafter)
        put_drafter(b, r, c);
    if (s->ngram_max)
        buf_fmt(b, "lookup     suffixes of %d to %d tokens, for %s requests\n", s->ngram_min,
                s->ngram_max, r->info.spec_model ? "the \"ngram\"" : "all");
    if (s->ngram_more)
        buf_fmt(b, "           chains of %d drafts for the best match, %d for each of %d others\n",
                s->steps, s->ngram_each, s->ngram_more);
}

/* Every role and group in use against every backend of the device, at the page size `page` (0: not
 * chosen). Forms of MLA are listed apart: a start uses one of them. */
static void put_matrix(struct buf *b, const struct runner *r, enum attn_kind form, int page)
{
    struct attn_need need[NEEDS_MAX];
    int group[NEEDS_MAX];
    int n = runner_needs(r, form, need, group);
    for (int k = 0; k < n; k++)
        for (int i = 0; attn_backends[i]; i++) {
            const struct attn_backend *a = attn_backends[i];
            if (strcmp(a->device, r->ops->name) != 0)
                continue;
            const struct attn_use *u = &r->attn[need[k].role][group[k]];
            struct err why = {0};
            need[k].page = page;
            bool ok = attn_check(a, &need[k], &why) == OK;
            bool used = page && u->b == a && u->kind == need[k].kind;
            buf_fmt(b, "  %-11s %d  %-16s  %-13s %s%s\n", role_name(need[k].role), group[k],
                    attn_kind_name(need[k].kind), a->name, ok ? "ok" : why.text,
                    used ? ", chosen" : "");
        }
}

static void put_pages(struct buf *b, const struct runner *r, enum attn_kind form)
{
    struct attn_need need[NEEDS_MAX];
    int group[NEEDS_MAX];
    int n = runner_needs(r, form, need, group);
    uint32_t common = ~0u;
    for (int k = 0; k <= n; k++) {
        uint32_t bits = k < n ? attn_pages(r->ops->name, &need[k]) : common;
        common &= bits;
        if (k < n)
            buf_fmt(b, "  %-11s %d  ", role_name(need[k].role), group[k]);
        else
            buf_fmt(b, "  all            ");
        for (int p = 0; p < 31; p++)
            if (bits >> p & 1)
                buf_fmt(b, "%d ", 1 << p);
        buf_str(b, bits ? "\n" : "none\n");
    }
}

static void put_attention(struct buf *b, const struct runner *r)
{
    bool mla = r->info.model.group[0].kind != ATTN_GQA;
    enum attn_kind form = ATTN_MLA_ABSORBED;
    if (mla && r->attn[TGT_VERIFY][0].b)
        form = r->attn[TGT_VERIFY][0].kind;
    int page = r->info.page;
    buf_fmt(b, "\nattention: role, kv group, form, backend of %s\n", r->ops->name);
    put_matrix(b, r, ATTN_MLA_ABSORBED, page);
    if (mla)
        put_matrix(b, r, ATTN_MLA_DECOMPRESSED, page);
    buf_fmt(b, "\npage sizes that some backend serves\n");
    put_pages(b, r, form);
    if (page)
        buf_fmt(b, "  chosen         %d (%s)\n", page,
                r->conf.block_size ? "as asked"
                : page == 16       ? "preferred on the CPU device, else the smallest"
                                   : "the smallest");
}

static void put_device_memory(struct buf *b, const struct worker_info *i, int64_t total,
                              double share)
{
    char note[96];
    if (!i->free_bytes)
        return;
    put_bytes(b, "device memory, free", i->free_bytes, "with the device open");
    snprintf(note, sizeof note, "gpu_memory_utilization %.3g of it", share);
    put_bytes(b, "for this start", i->budget_bytes, note);
    put_bytes(b, "left over", i->budget_bytes - total, "");
}

static void put_memory(struct buf *b, const struct runner *r)
{
    const struct worker_info *i = &r->info;
    const struct worker_conf *c = &r->conf;
    int64_t weights = (int64_t)(i->model.weight_bytes + i->draft.weight_bytes);
    bool host = !r->ops->load;
    char note[96];
    buf_fmt(b, "\nmemory\n");
    const char *from = c->dummy ? "generated at start"
                       : host   ? "mapped files, read where they are"
                                : "copied to the device";
    put_bytes(b, "weights", (int64_t)i->model.weight_bytes, from);
    if (i->copy_bytes)
        put_bytes(b, "weight copies", i->copy_bytes,
                  "this rank's columns of o and down projections");
    if (r->drafter)
        put_bytes(b, "drafter weights", (int64_t)i->draft.weight_bytes, from);
    snprintf(note, sizeof note, "passes of up to %d rows, positions to %d", r->sizes.rows_max,
             c->len_max);
    put_bytes(b, "model workspace", i->model_bytes, note);
    put_bytes(b, "attention workspace", i->attention_bytes, "");
    snprintf(note, sizeof note, "%d slots, logits of %d rows", c->slots_max, r->sizes.logits_max);
    put_bytes(b, "slots, batch, logits", i->batch_bytes, note);
    if (i->draft_bytes)
        put_bytes(b, "drafter workspace", i->draft_bytes, "its passes, candidates and features");
    for (int g = 0; g < i->model.n_group; g++) {
        const struct kv_group *kg = &i->model.group[g];
        char what[32];
        snprintf(what, sizeof what, "kv group %d", g);
        snprintf(note, sizeof note, "%lld bytes a token, %d pages of %d",
                 (long long)group_bytes(kg), i->n_page[g], i->page);
        put_bytes(b, what, (int64_t)kv_pool_bytes(kg, 1, &i->n_page[g], i->page), note);
    }
    if (r->drafter) {
        snprintf(note, sizeof note, "%lld bytes a token, in the pages of kv group %d",
                 (long long)plan_kv_token_bytes(&i->draft), r->share);
        put_bytes(b, "drafter kv", i->draft_kv_bytes, note);
    }
    snprintf(note, sizeof note, "%d slots", c->slots_max);
    put_bytes(b, "page tables", i->table_bytes, note);
    if (i->graph_reserve) {
        snprintf(note, sizeof note, "set aside, with the kernels; %d graphs", i->n_graph);
        put_bytes(b, "recorded steps", i->graph_reserve, note);
    }
    int64_t rank =
        i->copy_bytes + i->workspace_bytes + i->kv_bytes + i->table_bytes + i->graph_reserve;
    bool each = c->dummy && host && i->world > 1; /* generated by every rank for itself */
    int64_t total = weights * (each ? i->world : 1) + rank * i->world;
    put_bytes(b, "total", total,
              host ? "without the program, recorded steps and request state" : "of the device");
    put_device_memory(b, i, total, c->memory_share);
}

/* What the KV memory holds: sequences at fractions of the context, and the whole set of slots. */
static void put_capacity(struct buf *b, const struct runner *r)
{
    const struct worker_info *i = &r->info;
    int page = i->page, pages = i->n_page[0], seqs = r->conf.reqs_max;
    for (int g = 1; g < i->model.n_group; g++)
        pages = i->n_page[g] < pages ? i->n_page[g] : pages;
    buf_fmt(b, "\ncontext x concurrency in %lld tokens of KV (at most %d decode at once)\n",
            (long long)pages * page, seqs);
    for (int part = 1; part <= 64 && r->conf.len_max / part >= 2; part *= 4) {
        int len = r->conf.len_max / part, n = pages / kv_pages(len, page);
        buf_fmt(b, "  %8d tokens x %d sequences\n", len, n < seqs ? n : seqs);
    }
    int64_t each = (int64_t)(pages / seqs) * page;
    if (each < r->conf.len_max)
        buf_fmt(b, "  %8lld tokens x %d sequences\n", (long long)each, seqs);
}

int engine_plan(const struct engine_conf *c, struct buf *out, struct err *e)
{
    if (!c->model)
        return FAIL(e, E_INVAL, "no model directory");
    struct worker_conf w = {0};
    struct comm *comm[LIM_RANKS] = {NULL};
    struct runner r = {0};
    int ret;
    TRY(plan_worker(&w, c, e));
    if (w.world > 1)
        TRY(comm_shm_open(comm, w.world, e));
    w.comm = comm[0];
    ret = runner_begin(&r, &w, e);
    if (ret == OK) {
        put_model(out, &r, c);
        put_speculation(out, &r, c);
        ret = runner_choose(&r, &w, e);
        put_attention(out, &r);
    }
    if (ret == OK) {
        put_memory(out, &r);
        put_capacity(out, &r);
    }
    runner_close(&r);
    if (comm[0])
        comm_shm_close(comm);
    return ret;
}
