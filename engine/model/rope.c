/* Rope parameters and tables; see the header. fp32 where the reference computes in fp32, so that
 * the angles at large positions agree. Start-up only. */
#include "engine/model/rope.h"

#include <math.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"

/* ms(s, m) of the header. */
static double mscale(double s, double m)
{
    return s <= 1 ? 1.0 : 0.1 * m * log(s) + 1.0;
}

static int num(const json_t *o, const char *key, double lo, double hi, double *out, struct err *e)
{
    double v;
    int r = js_get_num(o, key, &v, e);
    TRY(r);
    if (r && (v < lo || v > hi))
        return FAIL(e, E_INVAL, "'%s' must be between %g and %g, not %g", key, lo, hi, v);
    if (r)
        *out = v;
    return r;
}

static int need(const json_t *o, const char *key, double lo, double hi, double *out, struct err *e)
{
    int r = num(o, key, lo, hi, out, e);
    TRY(r);
    return r ? OK : FAIL(e, E_INVAL, "'%s' is missing", key);
}

static const struct {
    const char *name;
    enum rope_type type;
    const char *keys[9];
} kinds[] = {
    {"default", ROPE_DEFAULT, {NULL}},
    {"linear", ROPE_LINEAR, {"factor", NULL}},
    {"llama3",
     ROPE_LLAMA3,
     {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings", NULL}},
    {"yarn",
     ROPE_YARN,
     {"factor", "original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow",
      "mscale", "mscale_all_dim", "truncate", NULL}},
};

static bool listed(const char *key, const char *const *list)
{
    for (; *list; list++)
        if (!strcmp(key, *list))
            return true;
    return false;
}

/* Which type, and no key that it does not use. */
static int parse_type(struct rope *r, const json_t *o, struct err *e)
{
    static const char *const always[] = {"type", "rope_type", "rope_theta", "finetuned", NULL};
    const char *a = NULL, *b = NULL;
    TRY(js_get_str(o, "rope_type", &a, e));
    TRY(js_get_str(o, "type", &b, e));
    if (a && b && strcmp(a, b) != 0)
        return FAIL(e, E_INVAL, "'rope_type' is '%s' but 'type' is '%s'", a, b);
    const char *name = a ? a : b ? b : "default";
    size_t k = 0;
    while (k < ARRAY_LEN(kinds) && strcmp(name, kinds[k].name) != 0)
        k++;
    if (k == ARRAY_LEN(kinds))
        return FAIL(e, E_UNSUPPORTED,
                    "'rope_type' '%s' is not supported (default, linear, llama3, yarn are)", name);
    r->type = kinds[k].type;
    const char *key;
    json_t *val;
    json_object_foreach((json_t *)(size_t)o, key, val)
    {
        double one = 0;
        if (json_is_null(val) || listed(key, always) || listed(key, kinds[k].keys))
            continue;
        if (!strcmp(key, "partial_rotary_factor")) {
            TRY(num(o, key, 0, 1, &one, e));
            if (one == 1)
                continue;
            return FAIL(e, E_UNSUPPORTED, "'partial_rotary_factor' %g is not supported", one);
        }
        if (json_is_object(val))
            return FAIL(e, E_UNSUPPORTED, "parameters per layer type ('%s') are not supported",
                        key);
        return FAIL(e, E_UNSUPPORTED, "'%s' is not a parameter of rope type '%s'", key, name);
    }
    return OK;
}

static int parse_yarn(struct rope *r, const json_t *o, bool latent, int pos_max, struct err *e)
{
    double att = NAN;
    r->truncate = true;
    TRY(js_get_bool(o, "truncate", &r->truncate, e));
    TRY(num(o, "beta_fast", 1e-6, 1e6, &r->beta_fast, e));
    TRY(num(o, "beta_slow", 1e-6, 1e6, &r->beta_slow, e));
    TRY(num(o, "mscale", 0, 100, &r->mscale, e));
    TRY(num(o, "mscale_all_dim", 0, 100, &r->mscale_all, e));
    TRY(num(o, "attention_factor", 0, 1e3, &att, e));
    int f = num(o, "factor", 1, 1e6, &r->factor, e);
    TRY(f);
    if (!f)
        r->factor = pos_max / r->orig;
    if (!isnan(att))
        r->magnitude = att;
    else if (r->mscale != 0 && r->mscale_all != 0)
        r->magnitude = mscale(r->factor, r->mscale) / mscale(r->factor, r->mscale_all);
    else
        r->magnitude = mscale(r->factor, 1);
    /* One of the two alone: DeepSeek's code takes 1 and 0 for the absent one, others neither. */
    double m = js_get(o, "mscale") ? r->mscale : 1;
    double own = mscale(r->factor, m) / mscale(r->factor, r->mscale_all);
    if (latent && isnan(att) && fabs(own - r->magnitude) > 1e-9)
        return FAIL(e, E_UNSUPPORTED,
                    "'mscale' %g with 'mscale_all_dim' %g: implementations disagree on the "
                    "magnitude (%g or %g)",
                    m, r->mscale_all, own, r->magnitude);
    double reach = r->factor * r->orig;
    if (reach > r->pos_max && reach < 1e9)
        r->pos_max = (int)reach;
    return OK;
}

static int parse_scaling(struct rope *r, struct cfg *c, const json_t *o, bool latent, struct err *e)
{
    double top = 0;
    TRY(parse_type(r, o, e));
    if (r->type == ROPE_LLAMA3 || r->type == ROPE_YARN) {
        TRY(num(o, "original_max_position_embeddings", 1, 1e9, &r->orig, e));
        cfg_seen(c, "original_max_position_embeddings");
        if (num(c->o, "original_max_position_embeddings", 1, 1e9, &top, e) > 0 && top != r->orig)
            return FAIL(e, E_INVAL,
                        "'original_max_position_embeddings' is %g outside and %g inside", top,
                        r->orig);
    }
    switch (r->type) {
    case ROPE_DEFAULT:
        return OK;
    case ROPE_LINEAR:
        return need(o, "factor", 1, 1e6, &r->factor, e);
    case ROPE_LLAMA3:
        TRY(need(o, "factor", 1, 1e6, &r->factor, e));
        TRY(need(o, "low_freq_factor", 1e-6, 1e6, &r->low_freq, e));
        TRY(need(o, "high_freq_factor", 1e-6, 1e6, &r->high_freq, e));
        if (r->high_freq <= r->low_freq)
            return FAIL(e, E_INVAL, "'high_freq_factor' %g must be over 'low_freq_factor' %g",
                        r->high_freq, r->low_freq);
        return OK;
    case ROPE_YARN:
        return parse_yarn(r, o, latent, r->pos_max, e);
    }
    return OK;
}

int rope_parse(struct rope *r, struct cfg *c, bool latent, struct err *e)
{
    *r =
        (struct rope){.theta = 10000, .factor = 1, .beta_fast = 32, .beta_slow = 1, .magnitude = 1};
    json_t *old = NULL, *new = NULL;
    double inner = 0, partial;
    TRY(cfg_int(c, "max_position_embeddings", 1, 1 << 30, &r->pos_max, e));
    r->orig = r->pos_max;
    cfg_seen(c, "rope_scaling");
    cfg_seen(c, "rope_parameters");
    TRY(js_get_obj(c->o, "rope_scaling", &old, e));
    TRY(js_get_obj(c->o, "rope_parameters", &new, e));
    if (old && new && !json_equal(old, new))
        return FAIL(e, E_INVAL, "'rope_scaling' and 'rope_parameters' are both given and differ");
    const json_t *o = new ? new : old;
    TRY(cfg_num_or(c, "partial_rotary_factor", 0, 1, 1, &partial, e));
    if (partial != 1)
        return FAIL(e, E_UNSUPPORTED, "'partial_rotary_factor' %g is not supported", partial);
    TRY(cfg_num_or(c, "rope_theta", 1, 1e12, 10000, &r->theta, e));
    if (!o)
        return OK;
    int ret = num(o, "rope_theta", 1, 1e12, &inner, e);
    if (ret > 0 && cfg_has(c, "rope_theta") && inner != r->theta)
        ret = FAIL(e, E_INVAL, "'rope_theta' is %g outside and %g inside", r->theta, inner);
    if (ret > 0)
        r->theta = inner;
    if (ret >= 0)
        ret = parse_scaling(r, c, o, latent, e);
    if (ret < 0)
        err_prefix(e, "'%s'", new ? "rope_parameters" : "rope_scaling");
    return ret;
}

static void inv_llama3(const struct rope *r, int half, float *inv)
{
    float low = (float)(r->orig / r->low_freq), high = (float)(r->orig / r->high_freq);
    for (int i = 0; i < half; i++) {
        float wave = (float)(2 * M_PI) / inv[i];
        float scaled = inv[i] / (float)r->factor;
        float s =
            ((float)r->orig / wave - (float)r->low_freq) / (float)(r->high_freq - r->low_freq);
        if (wave > low)
            inv[i] = scaled;
        else if (wave >= high)
            inv[i] = (1 - s) * inv[i] / (float)r->factor + s * inv[i];
    }
}

/* Index at which a pair turns `rot` times within the original length. */
static double correction(const struct rope *r, int dim, double rot)
{
    return dim * log(r->orig / (rot * 2 * M_PI)) / (2 * log(r->theta));
}

static void inv_yarn(const struct rope *r, int dim, float *inv)
{
    double lo = correction(r, dim, r->beta_fast), hi = correction(r, dim, r->beta_slow);
    if (r->truncate) {
        lo = floor(lo);
        hi = ceil(hi);
    }
    lo = lo > 0 ? lo : 0;
    hi = hi < dim - 1 ? hi : dim - 1;
    if (lo == hi)
        hi += 0.001;
    for (int i = 0; i < dim / 2; i++) {
        float freq = powf((float)r->theta, (float)(2 * i) / (float)dim);
        float ramp = ((float)i - (float)lo) / (float)(hi - lo);
        ramp = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
        float keep = 1 - ramp;
        inv[i] = 1 / ((float)r->factor * freq) * (1 - keep) + 1 / freq * keep;
    }
}

void rope_inv_freq(const struct rope *r, int dim, float *inv)
{
    for (int i = 0; i < dim / 2; i++)
        inv[i] = 1 / powf((float)r->theta, (float)(2 * i) / (float)dim);
    switch (r->type) {
    case ROPE_DEFAULT:
        break;
    case ROPE_LINEAR:
        for (int i = 0; i < dim / 2; i++)
            inv[i] /= (float)r->factor;
        break;
    case ROPE_LLAMA3:
        inv_llama3(r, dim / 2, inv);
        break;
    case ROPE_YARN:
        inv_yarn(r, dim, inv);
        break;
    }
}

void rope_table(const struct rope *r, int dim, int len, float *cos, float *sin)
{
    int half = dim / 2;
    float *inv = MEM_ARRAY(float, half);
    rope_inv_freq(r, dim, inv);
    for (int p = 0; p < len; p++) {
        for (int i = 0; i < half; i++) {
            float a = (float)p * inv[i];
            cos[(size_t)p * (size_t)half + (size_t)i] = cosf(a) * (float)r->magnitude;
            sin[(size_t)p * (size_t)half + (size_t)i] = sinf(a) * (float)r->magnitude;
        }
    }
    mem_free(inv);
}

double rope_softmax_factor(const struct rope *r)
{
    if (r->type == ROPE_DEFAULT || r->mscale_all == 0)
        return 1;
    double m = mscale(r->factor, r->mscale_all);
    return m * m;
}
