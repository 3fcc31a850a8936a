/* Choosing a backend: what a need asks against what a backend declares, page sizes, dimensions.
 * Pure functions over constant data. Every miss is one sentence that names both sides. */
#include "attention/attn.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const char *const g_roles[N_ROLES] = {
    [TGT_PREFILL] = "tgt_prefill", [TGT_VERIFY] = "tgt_verify", [DRF_PREFILL] = "drf_prefill",
    [DRF_EXTEND] = "drf_extend",   [DRF_DECODE] = "drf_decode", [DRF_FROZEN] = "drf_frozen",
    [DRF_BLOCK] = "drf_block",
};

const char *role_name(enum role r)
{
    return (unsigned)r < N_ROLES ? g_roles[r] : "?";
}

int graph_dims_check(const struct graph_dims *have, const struct graph_dims *want, const char *what,
                     struct err *e)
{
    if (have->role != want->role)
        return FAIL(e, E_INVAL, "%s: role %s, made for %s", what, role_name(want->role),
                    role_name(have->role));
    const struct {
        const char *name;
        int have, want;
    } m[] = {{"reqs", have->reqs, want->reqs},
             {"seqs", have->seqs, want->seqs},
             {"rows", have->rows, want->rows},
             {"qlen", have->qlen, want->qlen},
             {"pages", have->pages, want->pages}};
    for (size_t i = 0; i < sizeof m / sizeof m[0]; i++) {
        if (m[i].want < 0)
            return FAIL(e, E_INVAL, "%s: %s %d is negative", what, m[i].name, m[i].want);
        if (m[i].want > m[i].have)
            return FAIL(e, E_INVAL, "%s: %s %d, made for at most %d", what, m[i].name, m[i].want,
                        m[i].have);
    }
    return OK;
}

/* ---- reasons ---- */

struct reasons {
    char text[sizeof((struct err *)0)->text];
    int n;
};

__attribute__((format(printf, 2, 3))) static void miss(struct reasons *r, const char *fmt, ...)
{
    size_t at = strlen(r->text);
    if (r->n++ > 0)
        at += (size_t)snprintf(r->text + at, sizeof r->text - at, "; ");
    if (at >= sizeof r->text)
        return;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(r->text + at, sizeof r->text - at, fmt, ap);
    va_end(ap);
}

const char *attn_kind_name(enum attn_kind k)
{
    switch (k) {
    case ATTN_GQA:
        return "gqa";
    case ATTN_MLA_ABSORBED:
        return "mla absorbed";
    case ATTN_MLA_DECOMPRESSED:
        return "mla decompressed";
    }
    return "no kind";
}

static const char *mask_name(enum attn_mask m)
{
    switch (m) {
    case MASK_RANGE:
        return "range";
    case MASK_TREE:
        return "tree";
    case MASK_BLOCK:
        return "block";
    }
    return "no";
}

static const char *graph_name(enum attn_graph g)
{
    switch (g) {
    case GRAPH_NEVER:
        return "never";
    case GRAPH_ONE_TOKEN:
        return "one token a request";
    case GRAPH_UNIFORM:
        return "uniform rows";
    case GRAPH_ANY:
        return "any rows";
    }
    return "?";
}

static bool dims_ok(const struct attn_caps *c, struct attn_dims d)
{
    if (c->dims[0].qk == 0)
        return true;
    for (size_t i = 0; i < sizeof c->dims / sizeof c->dims[0] && c->dims[i].qk; i++)
        if (c->dims[i].qk == d.qk && c->dims[i].v == d.v)
            return true;
    return false;
}

static bool page_ok(const struct attn_caps *c, int page)
{
    if (page <= 0 || (page & (page - 1)))
        return false;
    return c->page_sizes >> __builtin_ctz((unsigned)page) & 1;
}

static void check_role(const struct attn_caps *c, const struct attn_need *n, struct reasons *r)
{
    const struct attn_role_caps *k = &c->role[n->role];
    const char *role = role_name(n->role);
    if (k->masks == 0) {
        miss(r, "does not offer role %s", role);
        return;
    }
    if (n->mask == 0 || (n->mask & (n->mask - 1)))
        miss(r, "mask %d is not one mask kind", (int)n->mask);
    else if (!(k->masks & n->mask))
        miss(r, "%s masks are not offered in role %s", mask_name(n->mask), role);
    if (n->graph > k->graph)
        miss(r, "role %s can be captured for %s, %s is needed", role,
             graph_name((enum attn_graph)k->graph), graph_name(n->graph));
    if (k->q_len_max > 0 && (n->q_len_max == 0 || n->q_len_max > k->q_len_max))
        miss(r, "role %s takes at most %d rows a request, %d needed%s", role, k->q_len_max,
             n->q_len_max, n->q_len_max ? "" : " (0: any)");
    if (k->uniform && n->q_len_max != 1)
        miss(r, "role %s needs the same number of rows from every request", role);
}

static void check_heads(const struct attn_caps *c, const struct attn_need *n, struct reasons *r)
{
    if (n->n_head < 1 || n->n_kv < 1 || n->n_head % n->n_kv)
        miss(r, "%d query heads do not divide over %d kv heads", n->n_head, n->n_kv);
    else if (c->gqa_max > 0 && n->n_head / n->n_kv > c->gqa_max)
        miss(r, "at most %d query heads per kv head, %d needed", c->gqa_max, n->n_head / n->n_kv);
    if (n->dims.qk < 1 || n->dims.v < 1)
        miss(r, "head dims %d/%d are not positive", n->dims.qk, n->dims.v);
    else if (!dims_ok(c, n->dims))
        miss(r, "head dims %d/%d are not built", n->dims.qk, n->dims.v);
}

static void check_all(const struct attn_backend *b, const struct attn_need *n, struct reasons *r)
{
    const struct attn_caps *c = &b->caps;
    if (!(c->kinds & n->kind))
        miss(r, "does not do %s attention", attn_kind_name(n->kind));
    check_role(c, n, r);
    check_heads(c, n, r);
    if ((unsigned)n->kv_type >= DT_COUNT || !(c->kv_types >> n->kv_type & 1))
        miss(r, "kv cache of type %s is not offered", dtype_name(n->kv_type));
    if (n->page != 0 && !page_ok(c, n->page))
        miss(r, "pages of %d tokens are not offered", n->page);
    if (n->cp < 1 || n->cp > (c->cp_max > 0 ? c->cp_max : 1))
        miss(r, "%d context-parallel ranks, at most %d offered", n->cp,
             c->cp_max > 0 ? c->cp_max : 1);
    if (c->sm_min > 0 && n->sm < c->sm_min)
        miss(r, "needs compute capability %d, this device has %d", c->sm_min, n->sm);
    if (c->sm_max > 0 && n->sm > c->sm_max)
        miss(r, "runs up to compute capability %d, this device has %d", c->sm_max, n->sm);
    if (n->lse_out && !c->lse_out)
        miss(r, "does not return the log-sum-exp");
    if (n->window > 0 && !c->window)
        miss(r, "has no sliding window (%d needed)", n->window);
    if (n->sinks && !c->sinks)
        miss(r, "has no attention sinks");
    if (n->soft_cap && !c->soft_cap)
        miss(r, "has no soft cap of scores");
}

int attn_check(const struct attn_backend *b, const struct attn_need *n, struct err *why)
{
    if ((unsigned)n->role >= N_ROLES)
        return FAIL(why, E_INVAL, "role %d does not exist", (int)n->role);
    struct reasons r = {{0}, 0};
    check_all(b, n, &r);
    struct err x = {0};
    if (b->extra && b->extra(n, &x) < 0)
        miss(&r, "%s", x.text);
    return r.n ? FAIL(why, E_UNSUPPORTED, "%s", r.text) : OK;
}

int attn_select(const struct attn_backend **out, const char *device, const struct attn_need *n,
                const char *force, struct err *e)
{
    struct reasons all = {{0}, 0};
    for (int i = 0; attn_backends[i]; i++) {
        const struct attn_backend *b = attn_backends[i];
        if (strcmp(b->device, device) != 0 || (force && strcmp(b->name, force) != 0))
            continue;
        struct err why = {0};
        if (attn_check(b, n, &why) == OK) {
            *out = b;
            return OK;
        }
        miss(&all, "%s: %s", b->name, why.text);
    }
    if (all.n == 0 && force)
        return FAIL(e, E_INVAL, "attention backend '%s' does not exist on device %s", force,
                    device);
    return FAIL(e, E_UNSUPPORTED, "no attention backend of device %s for role %s (%s): %s", device,
                role_name(n->role), attn_kind_name(n->kind), all.n ? all.text : "none is built in");
}

uint32_t attn_pages(const char *device, const struct attn_need *n)
{
    uint32_t bits = 0;
    for (int p = 0; p < 31; p++) {
        struct attn_need q = *n;
        q.page = 1 << p;
        for (int i = 0; attn_backends[i]; i++)
            if (strcmp(attn_backends[i]->device, device) == 0 &&
                attn_check(attn_backends[i], &q, NULL) == OK)
                bits |= 1u << p;
    }
    return bits;
}

static void list_pages(uint32_t bits, char *out, size_t n)
{
    size_t at = 0;
    out[0] = 0;
    for (int p = 0; p < 31 && at < n; p++)
        if (bits >> p & 1)
            at += (size_t)snprintf(out + at, n - at, "%s%d", at ? ", " : "", 1 << p);
}

int attn_page_size(int *page, const char *device, const struct attn_need *needs, int n, int want,
                   struct err *e)
{
    uint32_t common = ~0u >> 1;
    for (int i = 0; i < n; i++) {
        uint32_t bits = attn_pages(device, &needs[i]);
        char a[96], b[96];
        if (bits == 0) {
            const struct attn_backend *none;
            struct attn_need q = needs[i];
            q.page = 0;
            int r = attn_select(&none, device, &q, NULL, e);
            return r < 0 ? r
                         : FAIL(e, E_UNSUPPORTED, "role %s: no page size is offered",
                                role_name(q.role));
        }
        if ((common & bits) == 0) {
            list_pages(common, a, sizeof a);
            list_pages(bits, b, sizeof b);
            return FAIL(e, E_UNSUPPORTED,
                        "role %s takes pages of %s tokens, role %s before it takes %s: no common "
                        "page size",
                        role_name(needs[i].role), b, role_name(needs[i - 1].role), a);
        }
        common &= bits;
    }
    char have[96];
    list_pages(common, have, sizeof have);
    if (want > 0) {
        if ((want & (want - 1)) || !(common >> __builtin_ctz((unsigned)want) & 1))
            return FAIL(e, E_UNSUPPORTED, "pages of %d tokens: the roles take %s", want, have);
        *page = want;
        return OK;
    }
    /* The smallest, except that one-token pages cost a table entry a token: on the CPU, whose
     * backends take any size, 16 is preferred. */
    bool prefer16 = strcmp(device, "cpu") == 0 && (common >> 4 & 1);
    *page = prefer16 ? 16 : 1 << __builtin_ctz(common);
    return OK;
}
