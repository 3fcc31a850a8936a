/* Opening a checkpoint directory and handing calls to its family; see model.h. */
#include "engine/model/model.h"

#include <string.h>

#include "engine/base/check.h"
#include "engine/base/file.h"
#include "engine/base/js.h"
#include "engine/base/mem.h"
#include "engine/model/config.h"
#include "engine/model/family.h"
#include "engine/model/safetensors.h"

struct model {
    const struct family *f;
    void *priv;
    struct tensors *t; /* the target's when its checkpoint holds the drafter */
    struct model_info info;
    struct model *target; /* a drafter's; else NULL */
    char *arch;
    int threads;
    void (*progress)(void *ud, size_t done, size_t total);
    void *ud;
    int rows_max; /* 0: not placed */
};

static bool in_list(const char *s, const char *const *list)
{
    for (; *list; list++)
        if (!strcmp(s, *list))
            return true;
    return false;
}

static const struct family *find(const struct family *const *list, const char *name,
                                 const char *type)
{
    for (; *list; list++)
        if (name ? in_list(name, (*list)->archs) : in_list(type, (*list)->model_types))
            return *list;
    return NULL;
}

/* The family by architectures[0], which model_type must not contradict; a text model inside a
 * multimodal wrapper may carry only its model_type. */
static int find_family(const struct family **out, const char **arch, const json_t *c, bool wrapped,
                       bool draft, struct err *e)
{
    json_t *list = NULL;
    const char *type = NULL, *name = NULL;
    TRY(js_get_arr(c, "architectures", &list, e));
    TRY(js_get_str(c, "model_type", &type, e));
    if (list)
        name = json_string_value(json_array_get(list, 0));
    if (!name && !(wrapped && type))
        return FAIL(e, E_INVAL, "'architectures' is missing or empty");
    *arch = name ? name : type;
    bool head = draft && js_get(c, "draft_vocab_size");
    const struct family *f = find(head ? drafters : families, name, type);
    if (!f) {
        f = find(drafters, name, type);
        if (f && !draft)
            return FAIL(e, E_UNSUPPORTED,
                        "'architectures': %s drafts for another model and is none by itself",
                        *arch);
    }
    if (!f)
        return FAIL(e, E_UNSUPPORTED, "'architectures': %s is not supported", *arch);
    if (type && !in_list(type, f->model_types))
        return FAIL(e, E_UNSUPPORTED, "'model_type' '%s' does not belong to architecture %s", type,
                    name);
    *out = f;
    return OK;
}

/* The configuration object that describes the text model, and its family. */
static int read_config(struct model *m, const json_t *top, const json_t **conf, struct err *e)
{
    json_t *text = NULL;
    const char *arch = NULL;
    if (!json_is_object(top))
        return FAIL(e, E_FORMAT, "the top level must be an object, not %s", js_type_name(top));
    TRY(js_get_obj(top, "text_config", &text, e));
    *conf = text ? text : top;
    TRY(find_family(&m->f, &arch, *conf, text != NULL, m->target != NULL, e));
    m->arch = mem_strdup(arch);
    m->info.arch = m->arch;
    m->info.family = m->f->name;
    return OK;
}

/* Leaves the first n of the layers in a configuration. */
static int cut_layers(json_t *c, int n, struct err *e)
{
    int64_t have = 0;
    json_t *types = json_object_get(c, "layer_types"),
           *only = json_object_get(c, "mlp_only_layers");
    TRY(js_get_i64(c, "num_hidden_layers", 1, 4096, &have, e));
    if (n > have)
        return FAIL(e, E_INVAL, "num_layers is %d, the model has %lld", n, (long long)have);
    json_object_set_new(c, "num_hidden_layers", json_integer(n));
    while (json_array_size(types) > (size_t)n)
        json_array_remove(types, json_array_size(types) - 1);
    for (size_t i = json_array_size(only); i-- > 0;)
        if (json_integer_value(json_array_get(only, i)) >= n)
            json_array_remove(only, i);
    return OK;
}

static int open_tensors(struct model *m, const struct model_conf *mc, const json_t *conf,
                        bool wrapped, struct err *e)
{
    struct comm *comm = m->target ? NULL : mc->comm;
    if (!mc->dummy) {
        TRY(tensors_open(&m->t, mc->path, wrapped, e));
        tensors_split(m->t, comm);
        return OK;
    }
    if (mc->n_layer)
        TRY(cut_layers((json_t *)(size_t)conf, mc->n_layer, e));
    int64_t n = 1;
    TRY(js_get_i64(conf, "num_hidden_layers", 1, 4096, &n, e));
    m->t = tensors_generate(wrapped, (int)n);
    tensors_split(m->t, comm);
    return OK;
}

static struct draft_target target_of(const struct model *m)
{
    struct draft_target t = {.info = &m->info, .priv = m->priv};
    m->f->shared(m->priv, &t.embed, &t.head);
    return t;
}

/* What a step need not read. */
static void count_unread(struct model_info *o, const struct tensors *t)
{
    size_t embed = 0;
    bool head = false;
    for (size_t i = 0; i < tensors_count(t); i++) {
        const struct tensor *x = tensors_at(t, i);
        if (!x->used)
            continue;
        if (strstr(x->name, ".experts."))
            o->expert_bytes += x->bytes;
        else if (!strcmp(x->name, "model.embed_tokens.weight"))
            embed = x->bytes;
        head |= !strcmp(x->name, "lm_head.weight");
    }
    o->lookup_bytes = head ? embed : 0;
}

static int read_all(struct model *m, const struct model_conf *mc, struct err *e)
{
    json_t *top = NULL, *gen = NULL;
    const json_t *conf = NULL;
    char *path = path_join(mc->path, "config.json");
    char *gpath = path_join(mc->path, "generation_config.json");
    const char *file = mc->dummy && !file_exists(path) ? mc->path : path;
    int ret;
    TRY_OUT(js_load(&top, file, e));
    ret = read_config(m, top, &conf, e);
    if (ret < 0) {
        err_prefix(e, "config.json");
        goto out;
    }
    TRY_OUT(open_tensors(m, mc, conf, conf != top, e));
    if (m->f->open_draft) {
        struct draft_target target = target_of(m->target);
        TRY_OUT(m->f->open_draft(&m->priv, &target, conf, m->t, &m->info, e));
    } else {
        TRY_OUT(m->f->open(&m->priv, conf, m->t, &m->info, e));
        m->info.vocab_target = m->info.vocab;
    }
    TRY_OUT(tensors_all_taken(m->t, e));
    m->info.n_param = tensors_params(m->t);
    m->info.weight_bytes = tensors_bytes(m->t);
    m->info.copy_bytes = tensors_copy_bytes(m->t);
    count_unread(&m->info, m->t);
    if (m->f->open_draft) /* ids and sampling are the target's */
        goto out;
    if (file_exists(gpath))
        TRY_OUT(js_load(&gen, gpath, e));
    ret = cfg_generation(conf, gen, &m->info, e);
out:
    json_decref(top);
    json_decref(gen);
    mem_free(path);
    mem_free(gpath);
    return ret;
}

static int open_conf(struct model **out, const struct model_conf *c, struct model *target,
                     struct err *e)
{
    if (c->n_layer && !c->dummy)
        return FAIL(e, E_INVAL, "num_layers cuts generated weights only (load_format dummy)");
    struct model *m = MEM_NEW(struct model);
    m->threads = c->threads;
    m->progress = c->progress;
    m->ud = c->ud;
    m->target = target;
    int ret = read_all(m, c, e);
    if (ret < 0) {
        model_close(m);
        return ret;
    }
    *out = m;
    return OK;
}

int model_open_conf(struct model **out, const struct model_conf *c, struct err *e)
{
    return open_conf(out, c, NULL, e);
}

int model_open(struct model **out, const char *dir, struct err *e)
{
    return model_open_conf(out, &(struct model_conf){.path = dir}, e);
}

int model_open_mtp(struct model **out, struct model *target, struct err *e)
{
    const struct draft_target t = target_of(target);
    const struct family *f = target->f->mtp;
    if (!f)
        return FAIL(e, E_UNSUPPORTED, "%s models have no next-token (MTP) layers", target->f->name);
    struct model *m = MEM_NEW(struct model);
    *m = (struct model){.f = f,
                        .target = target,
                        .t = target->t,
                        .threads = target->threads,
                        .progress = target->progress,
                        .ud = target->ud};
    m->arch = mem_strdup(target->arch);
    m->info.arch = m->arch;
    m->info.family = f->name;
    int ret = f->open_draft(&m->priv, &t, NULL, m->t, &m->info, e);
    m->info.copy_bytes = tensors_copy_bytes(m->t) - target->info.copy_bytes;
    if (ret < 0) {
        model_close(m);
        return ret;
    }
    *out = m;
    return OK;
}

int model_open_draft(struct model **out, const struct model_conf *c, struct model *target,
                     struct err *e)
{
    struct model *m = NULL;
    int ret = open_conf(&m, c, target, e);
    if (ret == OK && m->info.vocab_target != target->info.vocab) {
        ret = FAIL(e, E_INVAL, "%s has a vocabulary of %d ids, its target %s one of %d", m->arch,
                   m->info.vocab_target, target->arch, target->info.vocab);
        model_close(m);
    }
    if (ret < 0) {
        err_prefix(e, "drafter %s", c->path);
        return ret;
    }
    *out = m;
    return OK;
}

void model_close(struct model *m)
{
    if (!m)
        return;
    CHECK(!m->rows_max);
    if (m->priv)
        m->f->close(m->priv);
    if (!m->target || m->t != m->target->t)
        tensors_close(m->t);
    mem_free(m->arch);
    mem_free(m);
}

const struct model_info *model_info(const struct model *m)
{
    return &m->info;
}

void model_kv_dtype(struct model *m, enum dtype dt)
{
    for (int g = 0; g < m->info.n_group; g++)
        m->info.group[g].dt = dt;
}

void model_attn_need(const struct model *m, int group, enum role role, enum attn_kind mla_form,
                     int q_len_max, struct attn_need *out)
{
    CHECK(group >= 0 && group < m->info.n_group);
    m->f->attn_need(m->priv, group, role, mla_form, q_len_max, out);
    out->kv_type = m->info.group[group].dt;
}

size_t model_device_bytes(const struct model *m, int rows_max, int len_max)
{
    return m->f->device_bytes(m->priv, rows_max, len_max);
}

struct loading {
    struct model *m;
    struct dev_span *span;
    size_t *tensor; /* of each span */
    size_t n;
};

static void make_bytes(void *ud, size_t i, size_t from, size_t n, void *dst)
{
    const struct loading *g = ud;
    tensors_make(g->m->t, g->tensor[i], from, n, dst);
}

static void note_progress(void *ud, size_t done, size_t total)
{
    const struct loading *g = ud;
    if (g->m->progress)
        g->m->progress(g->m->ud, done, total);
}

/* All weights in use to the device's memory; generated ones never exist in the host's. */
static int load(struct model *m, const struct dev_ops *ops, struct dev *d, struct err *e)
{
    size_t all = tensors_count(m->t);
    struct loading g = {.m = m};
    g.span = MEM_ARRAY(struct dev_span, all + 1);
    g.tensor = MEM_ARRAY(size_t, all + 1);
    for (size_t i = 0; i < all; i++) {
        const struct tensor *t = tensors_at(m->t, i);
        if (!t->used)
            continue;
        g.span[g.n] = (struct dev_span){t->p, t->bytes};
        g.tensor[g.n++] = i;
    }
    tensors_fill_small(m->t);
    struct dev_load l = {.span = g.span,
                         .n = g.n,
                         .threads = m->threads > 1 ? m->threads : 1,
                         .make = make_bytes,
                         .progress = note_progress,
                         .ud = &g};
    int ret = ops->load(d, &l, e);
    tensors_release(m->t);
    mem_free(g.span);
    mem_free(g.tensor);
    return ret;
}

int model_place(struct model *m, const struct dev_ops *ops, struct dev *d, int rows_max,
                int len_max, struct err *e)
{
    CHECK(!m->rows_max);
    if (rows_max < 1)
        return FAIL(e, E_INVAL, "a pass must have at least one row, not %d", rows_max);
    if (len_max < 1 || len_max > m->info.pos_max)
        return FAIL(e, E_INVAL, "length %d is not within the %d positions of the %s %s", len_max,
                    m->info.pos_max, m->target ? "drafter" : "model", m->arch);
    if (ops->load)
        TRY(load(m, ops, d, e));
    else
        tensors_fill(m->t, m->threads);
    TRY(m->f->place(m->priv, ops, d, rows_max, len_max, e));
    m->rows_max = rows_max;
    return OK;
}

void model_unplace(struct model *m)
{
    if (m->rows_max)
        m->f->unplace(m->priv);
    m->rows_max = 0;
}

int model_forward(struct model *m, const struct fwd *f, struct err *e)
{
    CHECK(f->rows > 0 && f->rows <= m->rows_max);
    return m->f->forward(m->priv, f, e);
}

int model_logits(struct model *m, const float *hidden, int rows, float *logits, struct err *e)
{
    CHECK(rows > 0 && m->rows_max);
    return m->f->logits(m->priv, hidden, rows, logits, e);
}

int model_feature(struct model *m, const float *taps, int rows, float *feat, struct err *e)
{
    CHECK(m->f->feature && rows > 0 && rows <= m->rows_max);
    return m->f->feature(m->priv, taps, rows, feat, e);
}

const int32_t *model_d2t(const struct model *m)
{
    return m->f->d2t ? m->f->d2t(m->priv) : NULL;
}
