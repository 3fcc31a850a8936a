/* Attention inner loops; see the header for the order of sums. Work items are (row, head); scores
 * live in the thread's panel. */
#include "kernels/cpu/attn_core.h"

#include <math.h>
#include <string.h>

#include "engine/base/check.h"
#include "kernels/cpu/fmath.h"
#include "kernels/cpu/internal.h"

struct job {
    struct dev *d;
    const struct cpu_attn *a;
    int r0;
};

int cpu_attn_keys_max(void)
{
    return CPU_PANEL_FLOATS;
}

static bool sees(const struct cpu_attn *a, int r, int p)
{
    if (!a->ancestors || p < a->row0[r])
        return true;
    int j = p - a->row0[r];
    return j < 64 && a->ancestors[r] >> j & 1;
}

static int64_t pool_row(const struct cpu_attn *a, int r, int p)
{
    if (!a->table)
        return p;
    const int32_t *t = a->table + (int64_t)a->slot[r] * a->pages_max;
    return (int64_t)t[p / a->page] * a->page + p % a->page;
}

static void attn_item(void *ud, int i)
{
    const struct job *j = ud;
    const struct cpu_attn *a = j->a;
    int r = j->r0 + i / a->n_head, h = i % a->n_head, g = h / (a->n_head / a->n_kv);
    int first = a->first[r], last = a->last[r];
    const float *q = a->q + r * a->ldq + (int64_t)h * a->dk;
    float *out = a->out + r * a->ldo + (int64_t)h * a->dv, *s = cpu_panel(j->d);
    CHECK(last - first <= CPU_PANEL_FLOATS);
    memset(out, 0, (size_t)a->dv * sizeof *out);
    float max = -INFINITY;
    for (int p = first; p < last; p++) {
        if (!sees(a, r, p))
            continue;
        const float *k = a->k + pool_row(a, r, p) * a->k_ld + g * a->k_head;
        float v = j->d->isa->dot(q, k, a->dk) * a->scale;
        if (a->soft_cap > 0)
            v = a->soft_cap * tanhf(v / a->soft_cap);
        s[p - first] = v;
        max = v > max ? v : max;
    }
    float top = a->sinks && a->sinks[h] > max ? a->sinks[h] : max;
    double acc[16] = {0};
    for (int p = first; p < last; p++) {
        if (!sees(a, r, p))
            continue;
        float w = fm_exp(s[p - first] - top);
        acc[p & 15] += (double)w;
        const float *v = a->v + pool_row(a, r, p) * a->v_ld + g * a->v_head;
        for (int k = 0; k < a->dv; k++)
            out[k] = fmaf(w, v[k], out[k]);
    }
    for (int w = 8; w >= 1; w /= 2)
        for (int k = 0; k < w; k++)
            acc[k] += acc[k + w];
    bool any = acc[0] > 0;
    if (a->lse)
        a->lse[r * a->ld_lse + h] = any ? (float)((double)top + log(acc[0])) : -INFINITY;
    double sum = acc[0] + (a->sinks ? (double)fm_exp(a->sinks[h] - top) : 0);
    float inv = any ? (float)(1.0 / sum) : 0.0f;
    for (int k = 0; k < a->dv; k++)
        out[k] *= inv;
}

void cpu_attn(struct dev *d, const struct cpu_attn *a, int r0, int r1)
{
    struct job j = {d, a, r0};
    cpu_parallel(d, (r1 - r0) * a->n_head, attn_item, &j);
}
