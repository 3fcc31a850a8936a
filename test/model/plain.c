/* Reference arithmetic of drafters; see the header. */
#include "test/model/plain.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"

static int num(const json_t *c, const char *key)
{
    const json_t *v = json_object_get(c, key);
    CHECK(json_is_number(v));
    return (int)json_number_value(v);
}

static double real(const json_t *c, const char *key)
{
    const json_t *v = json_object_get(c, key);
    CHECK(json_is_number(v));
    return json_number_value(v);
}

static bool on(const json_t *c, const char *key)
{
    return json_is_true(json_object_get(c, key));
}

struct plain *plain_open(const char *dir, const json_t *conf, const char *target_dir,
                         const json_t *target_conf)
{
    struct plain *p = MEM_NEW(struct plain);
    struct err e = {0};
    p->conf = conf;
    p->target_conf = target_conf;
    CHECK(tensors_open(&p->t, dir, false, &e) == OK);
    CHECK(tensors_open(&p->target, target_dir, false, &e) == OK);
    return p;
}

void plain_close(struct plain *p)
{
    tensors_close(p->t);
    tensors_close(p->target);
    mem_free(p);
}

/* ---- pieces ---- */

static const struct tensor *get(const struct tensors *t, const char *prefix, const char *name)
{
    char full[200];
    snprintf(full, sizeof full, "%s%s", prefix, name);
    const struct tensor *x = tensors_find(t, full);
    CHECK(x != NULL);
    return x;
}

static double at(const struct tensor *x, int64_t i)
{
    return (double)dtype_load(x->p, x->dt, i);
}

/* out[n] = W x (+ bias) */
static void mul(const struct tensors *t, const char *prefix, const char *name, const double *x,
                int k, double *out, int n)
{
    char bias[200];
    const struct tensor *w = get(t, prefix, name);
    CHECK(w->rank == 2 && w->shape[0] == n && w->shape[1] == k);
    snprintf(bias, sizeof bias, "%s%.*s.bias", prefix, (int)(strlen(name) - strlen(".weight")),
             name);
    const struct tensor *b = tensors_find(t, bias);
    for (int i = 0; i < n; i++) {
        out[i] = b ? at(b, i) : 0;
        for (int j = 0; j < k; j++)
            out[i] += at(w, (int64_t)i * k + j) * x[j];
    }
}

static void rms(const struct tensors *t, const char *prefix, const char *name, const double *x,
                int n, double eps, double *out)
{
    const struct tensor *w = get(t, prefix, name);
    CHECK(w->rank == 1 && w->shape[0] == n);
    double s = 0;
    for (int i = 0; i < n; i++)
        s += x[i] * x[i];
    for (int i = 0; i < n; i++)
        out[i] = at(w, i) * x[i] / sqrt(s / n + eps);
}

static void rope(double *x, int dim, int pos, double theta, bool interleaved)
{
    for (int i = 0; i < dim / 2; i++) {
        double a = pos * pow(theta, -2.0 * i / dim);
        double *u = interleaved ? &x[2 * i] : &x[i], *v = interleaved ? u + 1 : &x[i + dim / 2];
        double c = *u * cos(a) - *v * sin(a), s = *v * cos(a) + *u * sin(a);
        *u = c;
        *v = s;
    }
}

/* x += gain * down(silu(gate y) * up y) */
static void gated(const struct tensors *t, const char *prefix, const double *y, int hidden,
                  int inter, double gain, double *x)
{
    double g[PLAIN_WIDE], u[PLAIN_WIDE], d[PLAIN_WIDE];
    CHECK(inter <= PLAIN_WIDE && hidden <= PLAIN_WIDE);
    mul(t, prefix, "gate_proj.weight", y, hidden, g, inter);
    mul(t, prefix, "up_proj.weight", y, hidden, u, inter);
    for (int i = 0; i < inter; i++)
        g[i] = g[i] / (1 + exp(-g[i])) * u[i];
    mul(t, prefix, "down_proj.weight", g, inter, d, hidden);
    for (int i = 0; i < hidden; i++)
        x[i] += gain * d[i];
}

/* Head `h` of q over all rows so far; its keys at k[row] + koff, values at v[row] + voff. */
static void attend(const struct plain *p, const double *q, int qk, int koff, int dv, int voff,
                   double scale, double *out)
{
    double s[PLAIN_ROWS], top = -INFINITY, sum = 0;
    for (int r = 0; r < p->n; r++) {
        s[r] = 0;
        for (int i = 0; i < qk; i++)
            s[r] += q[i] * p->k[r][koff + i] * scale;
        top = s[r] > top ? s[r] : top;
    }
    memset(out, 0, (size_t)dv * sizeof *out);
    for (int r = 0; r < p->n; r++)
        sum += s[r] = exp(s[r] - top);
    for (int r = 0; r < p->n; r++)
        for (int i = 0; i < dv; i++)
            out[i] += s[r] / sum * p->v[r][voff + i];
}

static void embed(const struct tensors *t, const char *name, int tok, int h, double *out)
{
    const struct tensor *x = get(t, "", name);
    for (int i = 0; i < h; i++)
        out[i] = at(x, (int64_t)tok * h + i);
}

/* ---- the next-token layer ---- */

static void mla(struct plain *p, const char *prefix, const double *y, double *x)
{
    const json_t *c = p->conf;
    int h = num(c, "hidden_size"), nh = num(c, "num_attention_heads"), ql = num(c, "q_lora_rank");
    int kl = num(c, "kv_lora_rank"), nope = num(c, "qk_nope_head_dim");
    int rd = num(c, "qk_rope_head_dim"), dv = num(c, "v_head_dim"), qk = nope + rd;
    double theta = real(c, "rope_theta"), a[PLAIN_WIDE], q[PLAIN_WIDE], kv[PLAIN_WIDE];
    double up[2 * PLAIN_WIDE], o[PLAIN_WIDE], sum[PLAIN_WIDE];
    int pos = p->n, row = p->n++;
    CHECK(row < PLAIN_ROWS && nh * qk <= PLAIN_WIDE && nh * (nope + dv) <= 2 * PLAIN_WIDE);
    mul(p->t, prefix, "q_a_proj.weight", y, h, a, ql);
    rms(p->t, prefix, "q_a_layernorm.weight", a, ql, 1e-6, a);
    mul(p->t, prefix, "q_b_proj.weight", a, ql, q, nh * qk);
    mul(p->t, prefix, "kv_a_proj_with_mqa.weight", y, h, kv, kl + rd);
    rms(p->t, prefix, "kv_a_layernorm.weight", kv, kl, 1e-6, kv);
    rope(kv + kl, rd, pos + p->alien_kv, theta, true);
    mul(p->t, prefix, "kv_b_proj.weight", kv, kl, up, nh * (nope + dv));
    for (int i = 0; i < nh; i++) {
        rope(q + i * qk + nope, rd, pos, theta, true);
        memcpy(&p->k[row][i * qk], up + i * (nope + dv), (size_t)nope * sizeof *up);
        memcpy(&p->k[row][i * qk + nope], kv + kl, (size_t)rd * sizeof *kv);
        memcpy(&p->v[row][i * dv], up + i * (nope + dv) + nope, (size_t)dv * sizeof *up);
        attend(p, q + i * qk, qk, i * qk, dv, i * dv, 1 / sqrt(qk), o + i * dv);
    }
    mul(p->t, prefix, "o_proj.weight", o, nh * dv, sum, h);
    for (int i = 0; i < h; i++)
        x[i] += sum[i];
}

/* Sigmoid scores; a bias that only selects; groups by the sum of their two best. */
static void experts(struct plain *p, const char *prefix, const double *y, double *x)
{
    const json_t *c = p->conf;
    int h = num(c, "hidden_size"), n = num(c, "n_routed_experts"), ng = num(c, "n_group");
    int per = n / ng, inter = num(c, "moe_intermediate_size"), pick[64];
    double s[64], b[64], sum = 0;
    bool out[64] = {0};
    char at_expert[160];
    const struct tensor *bias = get(p->t, prefix, "gate.e_score_correction_bias");
    CHECK(n <= 64);
    mul(p->t, prefix, "gate.weight", y, h, s, n);
    for (int i = 0; i < n; i++) {
        s[i] = 1 / (1 + exp(-s[i]));
        b[i] = s[i] + at(bias, i);
    }
    for (int drop = ng - num(c, "topk_group"); drop > 0; drop--) {
        int worst = -1;
        double low = INFINITY;
        for (int g = 0; g < ng; g++) {
            double one = -INFINITY, two = -INFINITY;
            for (int i = g * per; i < (g + 1) * per; i++) {
                if (b[i] > one) {
                    two = one;
                    one = b[i];
                } else if (b[i] > two) {
                    two = b[i];
                }
            }
            if (!out[g * per] && one + two < low) {
                low = one + two;
                worst = g;
            }
        }
        for (int i = worst * per; i < (worst + 1) * per; i++)
            out[i] = true;
    }
    int k = num(c, "num_experts_per_tok");
    for (int j = 0; j < k; j++) {
        pick[j] = -1;
        for (int i = 0; i < n; i++)
            if (!out[i] && (pick[j] < 0 || b[i] > b[pick[j]]))
                pick[j] = i;
        out[pick[j]] = true;
        sum += s[pick[j]];
    }
    for (int j = 0; j < k; j++) {
        snprintf(at_expert, sizeof at_expert, "%sexperts.%d.", prefix, pick[j]);
        gated(p->t, at_expert, y, h, inter, s[pick[j]] / sum * real(c, "routed_scaling_factor"), x);
    }
    snprintf(at_expert, sizeof at_expert, "%sshared_experts.", prefix);
    gated(p->t, at_expert, y, h, inter * num(c, "n_shared_experts"), 1, x);
}

void plain_mtp(struct plain *p, int tok, const double *feat, double *hidden, double *next,
               double *logits)
{
    const json_t *c = p->conf;
    int h = num(c, "hidden_size"), vocab = num(c, "vocab_size");
    double eps = real(c, "rms_norm_eps"), e[PLAIN_WIDE], pair[PLAIN_WIDE], x[PLAIN_WIDE];
    double y[PLAIN_WIDE];
    char l[64], at_part[96];
    snprintf(l, sizeof l, "model.layers.%d.", num(c, "num_hidden_layers"));
    snprintf(at_part, sizeof at_part, "%sembed_tokens.weight", l);
    bool own = tensors_find(p->t, at_part) != NULL;
    embed(p->t, own ? at_part : "model.embed_tokens.weight", tok, h, e);
    rms(p->t, l, "enorm.weight", e, h, eps, pair);
    rms(p->t, l, "hnorm.weight", feat, h, eps, pair + h);
    mul(p->t, l, "eh_proj.weight", pair, 2 * h, x, h);
    rms(p->t, l, "input_layernorm.weight", x, h, eps, y);
    snprintf(at_part, sizeof at_part, "%sself_attn.", l);
    mla(p, at_part, y, x);
    rms(p->t, l, "post_attention_layernorm.weight", x, h, eps, y);
    snprintf(at_part, sizeof at_part, "%smlp.", l);
    experts(p, at_part, y, x);
    rms(p->t, l, "shared_head.norm.weight", x, h, eps, hidden);
    memcpy(next, hidden, (size_t)h * sizeof *next);
    snprintf(at_part, sizeof at_part, "%sshared_head.head.weight", l);
    own = tensors_find(p->t, at_part) != NULL;
    mul(p->t, "", own ? at_part : "lm_head.weight", hidden, h, logits, vocab);
}

/* ---- EAGLE-3 ---- */

void plain_fuse(struct plain *p, const double *taps, int n_tap, double *feat)
{
    const json_t *c = p->conf;
    int h = num(c, "hidden_size"), ht = num(p->target_conf, "hidden_size");
    double eps = real(c, "rms_norm_eps"), y[PLAIN_WIDE];
    CHECK(n_tap * ht <= PLAIN_WIDE);
    memcpy(y, taps, (size_t)(n_tap * ht) * sizeof *y);
    for (int k = 0; on(c, "fc_norm") && k < n_tap; k++) {
        char name[32];
        snprintf(name, sizeof name, "fc_norm.%d.weight", k);
        rms(p->t, "", name, y + k * ht, ht, eps, y + k * ht);
    }
    if (on(c, "norm_before_fc"))
        rms(p->t, "", "input_norm.weight", y, n_tap * ht, eps, y);
    mul(p->t, "", "fc.weight", y, n_tap * ht, feat, h);
}

void plain_eagle3(struct plain *p, int tok, const double *feat, double *hidden, double *next,
                  double *logits)
{
    const json_t *c = p->conf;
    const char *l = tensors_any(p->t, "midlayer.") ? "midlayer." : "layers.0.";
    int h = num(c, "hidden_size"), nh = num(c, "num_attention_heads");
    int nkv = num(c, "num_key_value_heads"), hd = num(c, "head_dim"), row = p->n++;
    double eps = real(c, "rms_norm_eps"), theta = real(c, "rope_theta"), e[PLAIN_WIDE];
    double pair[PLAIN_WIDE], x[PLAIN_WIDE], y[PLAIN_WIDE], q[PLAIN_WIDE], o[PLAIN_WIDE];
    char part[64];
    CHECK(row < PLAIN_ROWS);
    bool own = tensors_find(p->t, "embed_tokens.weight") != NULL;
    embed(own ? p->t : p->target, own ? "embed_tokens.weight" : "model.embed_tokens.weight", tok, h,
          e);
    rms(p->t, l, "input_layernorm.weight", e, h, eps, pair);
    rms(p->t, l, "hidden_norm.weight", feat, h, eps, pair + h);
    memcpy(x, on(c, "norm_before_residual") ? pair + h : feat, (size_t)h * sizeof *x);
    snprintf(part, sizeof part, "%sself_attn.", l);
    mul(p->t, part, "q_proj.weight", pair, 2 * h, q, nh * hd);
    mul(p->t, part, "k_proj.weight", pair, 2 * h, p->k[row], nkv * hd);
    mul(p->t, part, "v_proj.weight", pair, 2 * h, p->v[row], nkv * hd);
    for (int i = 0; i < nkv; i++)
        rope(&p->k[row][i * hd], hd, row + p->alien_kv, theta, false);
    for (int i = 0; i < nh; i++) {
        int kv = i / (nh / nkv) * hd;
        rope(q + i * hd, hd, row, theta, false);
        attend(p, q + i * hd, hd, kv, hd, kv, 1 / sqrt(hd), o + i * hd);
    }
    mul(p->t, part, "o_proj.weight", o, nh * hd, y, h);
    for (int i = 0; i < h; i++)
        x[i] += y[i];
    rms(p->t, l, "post_attention_layernorm.weight", x, h, eps, y);
    snprintf(part, sizeof part, "%smlp.", l);
    gated(p->t, part, y, h, num(c, "intermediate_size"), 1, x);
    rms(p->t, "", "norm.weight", x, h, eps, hidden);
    memcpy(next, on(c, "norm_output") ? hidden : x, (size_t)h * sizeof *next);
    own = tensors_find(p->t, "lm_head.weight") != NULL;
    json_t *dv = json_object_get(c, "draft_vocab_size");
    mul(own ? p->t : p->target, "", "lm_head.weight", hidden, h, logits,
        num(c, dv ? "draft_vocab_size" : "vocab_size"));
}
