/* Drafter `deepseek_mtp`: the next-token layer of a DeepSeek-V3 checkpoint (multi-token prediction,
 * DeepSeek-V3 report) as a model of one layer with a cache of its own.
 *
 * x = eh_proj([enorm(E[t_i]) ; hnorm(h_(i-1))]), then a decoder layer as in the model, at RoPE
 * position i - 1; logits = head(shared_head.norm(x)). h is the target's row after its final norm; a
 * recurrent step takes the drafter's own row after shared_head.norm. Weights are the target's: its
 * tensors, and its embedding and head where the checkpoint left out the copies. Of several trained
 * layers the first one is used for every step. */
#include <stdio.h>

#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/model/deepseek.h"

static int mtp_open(void **priv, const struct draft_target *target, const json_t *config,
                    struct tensors *t, struct model_info *info, struct err *e)
{
    const struct deepseek *base = target->priv;
    (void)config;
    if (!base->n_mtp)
        return FAIL(e, E_UNSUPPORTED, "the checkpoint of %s has no next-token (MTP) layer",
                    target->info->arch);
    if (base->n_mtp > 1)
        LOG(LOG_DEBUG, "model", "the first of %d next-token layers drafts every step", base->n_mtp);
    const struct ds_mtp *x = &base->mtp[0];
    struct deepseek *m = MEM_NEW(struct deepseek);
    *m = *base;
    m->ws = (struct ds_ws){0};
    m->mtp = NULL;
    m->n_mtp = 0;
    m->n_layer = 1;
    m->layer = (struct ds_layer *)(size_t)&x->layer; /* read only, the target's */
    m->norm = x->norm;
    m->embed = x->embed.p ? x->embed : target->embed;
    m->head = x->head.p ? x->head : target->head;
    m->draft = x;
    char prefix[64];
    snprintf(prefix, sizeof prefix, "model.layers.%d.", base->n_layer);
    tensors_use(t, prefix, &info->n_param, &info->weight_bytes);
    info->vocab = info->vocab_target = m->vocab;
    info->hidden = info->feat = m->hidden;
    info->shift = 1;
    info->n_layer = 1;
    info->n_mtp = base->n_mtp;
    info->n_head = m->n_head;
    info->pos_max = m->rope.pos_max;
    info->n_group = 1;
    info->group[0] = ds_group(m);
    *priv = m;
    return OK;
}

static void mtp_close(void *priv)
{
    mem_free(priv);
}

static int mtp_forward(void *priv, const struct fwd *f, struct err *e)
{
    struct deepseek *m = priv;
    struct ds_ws *ws = &m->ws;
    struct on o = ds_on(m, f->rows);
    int h = m->hidden;
    const struct pair_in pair = {.embed = &m->embed,
                                 .tok_norm = &m->draft->enorm,
                                 .feat_norm = &m->draft->hnorm,
                                 .eps = m->eps};
    TRY(run_pair(&o, f, &pair, ws->pair, NULL));
    TRY(run_matmul(&o, ws->x, ws->pair, &m->draft->eh_proj, NULL, false));
    TRY(ds_run_layer(m, &o, 0, f, e));
    return run_norm(&o, f->hidden, ws->x, &m->norm, h, m->eps);
}

const struct family family_deepseek_mtp = {
    .name = "deepseek_mtp",
    .open_draft = mtp_open,
    .close = mtp_close,
    .device_bytes = ds_bytes,
    .place = ds_place,
    .unplace = ds_unplace,
    .attn_need = ds_need,
    .forward = mtp_forward,
    .logits = ds_logits,
};
