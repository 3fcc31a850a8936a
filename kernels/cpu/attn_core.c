/* Attention inner loops; see the header for the order of sums.
 *
 * A work item is a few consecutive rows of one request and a few query heads that share a KV head:
 * up to LINES lines (row, head). It runs in three passes over the keys that the lines see: all
 * scores into the thread's panel, softmax line by line, then values. Lines only share loads; each
 * keeps its own sums, so how lines are grouped does not show in the bits.
 *
 * All positions below are logical (see the header). Lines of an item share those where logical and
 * cache positions are the same for all of them; what lies behind row0 of a row whose ancestors have
 * gaps is taken row by row. */
#include "kernels/cpu/attn_core.h"

#include <math.h>
#include <string.h>

#include "engine/base/check.h"
#include "kernels/cpu/internal.h"

enum {
    LINES = 12,
    ROWS_AT_ONCE = 2048, /* tiles of this many rows are listed at once in dev.ints */
    KEYS = 64,           /* keys of a block: pointers on the stack, vectors in the first cache */
    TILE_INTS = 4,
    /* the panel: scores, padded keys of a block, queries, outputs */
    KEY_FLOATS = KEYS * 1024,
    LINE_FLOATS = 64 * 1024,
    SCORE_FLOATS = CPU_PANEL_FLOATS - KEY_FLOATS - 2 * LINE_FLOATS,
};

struct tile {
    int32_t r0, r1;   /* rows */
    int32_t from, to; /* logical positions that at least one of them sees */
};

struct job {
    struct dev *d;
    const struct cpu_attn *a;
    const struct tile *tile;
    int group, chunk, chunks; /* query heads per KV head, in an item, items per KV head */
};

/* What an item works on. */
struct item {
    const struct cpu_attn *a;
    const struct cpu_isa *isa;
    struct tile t;
    int g, h0, nh, lines; /* line = (row - r0) * nh + (head - h0) */
    int split;            /* [from, split) is shared by the rows, the rest is each row's own */
    int base;             /* position of score column 0: `from` rounded down to a lane */
    int64_t lds;          /* columns of a score line */
    float *s, *keys, *q, *out;
};

int cpu_attn_keys_max(void)
{
    return SCORE_FLOATS - 2 * CPU_LANES;
}

/* The step's rows that row r sees, as bits. */
static uint64_t tree_bits(const struct cpu_attn *a, int r)
{
    if (!a->ancestors || a->last[r] <= a->row0[r])
        return 0;
    int n = a->last[r] - a->row0[r];
    return n >= 64 ? a->ancestors[r] : a->ancestors[r] & ((1ull << n) - 1);
}

int cpu_attn_end(const struct cpu_attn *a, int r)
{
    if (!a->ancestors || a->first[r] >= a->last[r] || a->last[r] <= a->row0[r])
        return a->last[r];
    return a->row0[r] + __builtin_popcountll(tree_bits(a, r));
}

bool cpu_attn_sees(const struct cpu_attn *a, int r, int p)
{
    if (p < a->first[r] || p >= a->last[r])
        return false;
    if (!a->ancestors || p < a->row0[r])
        return true;
    int j = p - a->row0[r];
    uint64_t bits = tree_bits(a, r), below = j < 64 ? bits & ((1ull << j) - 1) : 0;
    return j < 64 && bits >> j & 1 && a->row0[r] + __builtin_popcountll(below) >= a->first[r];
}

/* Logical positions of row r up to here are cache positions. */
static int plain_end(const struct cpu_attn *a, int r)
{
    uint64_t bits = tree_bits(a, r);
    return bits & (bits + 1) ? a->row0[r] : cpu_attn_end(a, r);
}

static int64_t pool_row(const struct cpu_attn *a, int r, int p)
{
    if (!a->table)
        return p;
    const int32_t *t = a->table + (int64_t)a->slot[r] * a->pages_max;
    return (int64_t)t[p / a->page] * a->page + p % a->page;
}

/* Pointers to the vectors of positions [p0, p1) of row r, of which those before `plain` are cache
 * positions: KV head `vec` elements from the base + pool row * ld. */
static void point(const struct cpu_attn *a, int r, int plain, const void **out, const void *base,
                  int64_t vec, int64_t ld, int p0, int p1)
{
    int p = p0;
    int64_t size = (int64_t)dtype_size(a->dt);
    const char *at = (const char *)base + vec * size;
    ld *= size;
    plain = plain < p1 ? plain : p1;
    while (p < plain) {
        const char *v = at + pool_row(a, r, p) * ld;
        int run = a->table ? a->page - p % a->page : plain - p;
        for (; run > 0 && p < plain; run--, p++, v += ld)
            *out++ = v;
    }
    if (p == p1)
        return;
    uint64_t bits = tree_bits(a, r);
    for (int skip = p - a->row0[r]; skip > 0; skip--)
        bits &= bits - 1;
    for (; p < p1; p++, bits &= bits - 1)
        *out++ = at + pool_row(a, r, a->row0[r] + __builtin_ctzll(bits)) * ld;
}

/* The n vectors of `dim` elements as fp32, zeros up to `pad`: where they lie if they are that,
 * else copies in the item's block of keys. */
static void fetch(const struct item *it, const float **out, const void *const *in, int n, int dim,
                  int pad, float scale)
{
    if (it->a->dt == DT_F32 && pad == dim) {
        memcpy(out, in, (size_t)n * sizeof *out);
        return;
    }
    for (int j = 0; j < n; j++) {
        float *c = it->keys + (int64_t)j * pad;
        out[j] = c;
        if (it->a->dt == DT_F8E4M3)
            it->isa->cvt_f8(c, in[j], dim, scale);
        else if (it->a->dt == DT_BF16)
            it->isa->cvt_bf16(c, in[j], dim);
        else
            memcpy(c, in[j], (size_t)dim * sizeof *c);
        memset(c + dim, 0, (size_t)(pad - dim) * sizeof *c);
    }
}

static void load_queries(const struct item *it)
{
    const struct cpu_attn *a = it->a;
    int kp = cpu_pad(a->dk);
    for (int l = 0; l < it->lines; l++) {
        float *q = it->q + (int64_t)l * kp;
        int r = it->t.r0 + l / it->nh, h = it->h0 + l % it->nh;
        memcpy(q, a->q + r * a->ldq + (int64_t)h * a->dk, (size_t)a->dk * sizeof *q);
        memset(q + a->dk, 0, (size_t)(kp - a->dk) * sizeof *q);
    }
}

/* Scores of `n` lines from l at positions [from, to) of row r, cache positions before `plain`. */
static void scores(const struct item *it, int l, int n, int r, int plain, int from, int to)
{
    const struct cpu_attn *a = it->a;
    int kp = cpu_pad(a->dk);
    const void *in[KEYS];
    const float *k[KEYS];
    for (int p = from; p < to; p += KEYS) {
        int nk = to - p < KEYS ? to - p : KEYS;
        point(a, r, plain, in, a->k, it->g * a->k_head, a->k_ld, p, p + nk);
        fetch(it, k, in, nk, a->dk, kp, a->k_scale);
        it->isa->scores(it->s + l * it->lds + (p - it->base), it->lds, it->q + (int64_t)l * kp, n,
                        k, nk, kp);
    }
}

/* Where row r's own part begins. */
static int own_from(const struct item *it, int r)
{
    return it->a->first[r] > it->split ? it->a->first[r] : it->split;
}

static void all_scores(const struct item *it)
{
    scores(it, 0, it->lines, it->t.r0, it->split, it->t.from, it->split);
    for (int r = it->t.r0; r < it->t.r1 && it->split < it->t.to; r++)
        scores(it, (r - it->t.r0) * it->nh, it->nh, r, plain_end(it->a, r), own_from(it, r),
               cpu_attn_end(it->a, r));
}

/* Turns a line of scores into weights exp(s - top); returns 1 / their sum, 0 when it sees nothing.
 */
static float softmax(const struct item *it, int l)
{
    const struct cpu_attn *a = it->a;
    int r = it->t.r0 + l / it->nh, h = it->h0 + l % it->nh;
    int c0 = a->first[r] - it->base, c1 = cpu_attn_end(a, r) - it->base;
    float *s = it->s + l * it->lds, top = -INFINITY;
    double acc[CPU_LANES] = {0};
    if (c0 < c1) {
        int a0 = c0 / CPU_LANES * CPU_LANES, a1 = cpu_pad(c1);
        for (int c = a0; c < c0; c++)
            s[c] = -INFINITY;
        for (int c = c1; c < a1; c++)
            s[c] = -INFINITY;
        top = it->isa->scale_max(s + a0, a1 - a0, a->scale);
        if (a->soft_cap > 0) {
            top = -INFINITY;
            for (int c = c0; c < c1; c++) {
                s[c] = a->soft_cap * tanhf(s[c] / a->soft_cap);
                top = s[c] > top ? s[c] : top;
            }
        }
        if (a->sinks && a->sinks[h] > top)
            top = a->sinks[h];
        it->isa->exp_sum(s + a0, a1 - a0, top, acc);
    }
    for (int w = CPU_LANES / 2; w >= 1; w /= 2)
        for (int i = 0; i < w; i++)
            acc[i] += acc[i + w];
    bool any = acc[0] > 0 || acc[0] != acc[0];
    if (a->lse)
        a->lse[r * a->ld_lse + h] = any ? (float)((double)top + log(acc[0])) : -INFINITY;
    if (a->sinks)
        acc[0] += exp((double)a->sinks[h] - (double)top);
    return any ? (float)(1.0 / acc[0]) : 0.0f;
}

/* Adds the values of positions [p0, p1) of a block that starts at b to `n` lines from l. */
static void add_values(const struct item *it, int l, int n, const float *const *v, int b, int p0,
                       int p1)
{
    if (p0 < p1)
        it->isa->pv(it->out + (int64_t)l * it->a->dv, it->s + l * it->lds + (p0 - it->base),
                    it->lds, n, v + (p0 - b), p1 - p0, it->a->dv);
}

static int clamp(int v, int lo, int hi)
{
    return v < lo ? lo : v > hi ? hi : v;
}

/* Values of the positions that the rows share. */
static void shared_values(const struct item *it)
{
    const struct cpu_attn *a = it->a;
    const void *in[KEYS];
    const float *v[KEYS];
    for (int b = it->t.from; b < it->split; b += KEYS) {
        int e = it->split - b < KEYS ? it->split : b + KEYS;
        point(a, it->t.r0, it->split, in, a->v, it->g * a->v_head, a->v_ld, b, e);
        fetch(it, v, in, e - b, a->dv, a->dv, a->v_scale);
        for (int l0 = 0; l0 < it->lines; l0 += 3) {
            int n = it->lines - l0 < 3 ? it->lines - l0 : 3;
            int c0 = b, c1 = e; /* positions that all of the lines see */
            for (int l = l0; l < l0 + n; l++) {
                int r = it->t.r0 + l / it->nh;
                c0 = clamp(a->first[r], c0, e);
                c1 = clamp(cpu_attn_end(a, r), b, c1);
            }
            if (c1 <= c0)
                c0 = c1 = e;
            for (int l = l0; l < l0 + n && c0 > b; l++) {
                int r = it->t.r0 + l / it->nh;
                add_values(it, l, 1, v, b, clamp(a->first[r], b, e),
                           clamp(cpu_attn_end(a, r), b, c0));
            }
            add_values(it, l0, n, v, b, c0, c1);
            for (int l = l0; l < l0 + n && c1 < e; l++)
                add_values(it, l, 1, v, b, c1,
                           clamp(cpu_attn_end(a, it->t.r0 + l / it->nh), c1, e));
        }
    }
}

/* Values of row r's own positions. */
static void own_values(const struct item *it, int r)
{
    const struct cpu_attn *a = it->a;
    const void *in[KEYS];
    const float *v[KEYS];
    for (int b = own_from(it, r), end = cpu_attn_end(a, r); b < end; b += KEYS) {
        int e = end - b < KEYS ? end : b + KEYS;
        point(a, r, plain_end(a, r), in, a->v, it->g * a->v_head, a->v_ld, b, e);
        fetch(it, v, in, e - b, a->dv, a->dv, a->v_scale);
        for (int l = 0; l < it->nh; l += 3)
            add_values(it, (r - it->t.r0) * it->nh + l, it->nh - l < 3 ? it->nh - l : 3, v, b, b,
                       e);
    }
}

static void all_values(const struct item *it)
{
    memset(it->out, 0, (size_t)it->lines * (size_t)it->a->dv * sizeof *it->out);
    shared_values(it);
    for (int r = it->t.r0; r < it->t.r1 && it->split < it->t.to; r++)
        own_values(it, r);
}

/* Where positions stop being shared: at the first row0 of a row with gaps. */
static int split_of(const struct cpu_attn *a, const struct tile *t)
{
    int split = t->to;
    for (int r = t->r0; r < t->r1; r++) {
        int end = plain_end(a, r);
        if (end < cpu_attn_end(a, r) && end < split)
            split = end > t->from ? end : t->from;
    }
    return split;
}

static void run_item(void *ud, int i)
{
    const struct job *j = ud;
    const struct cpu_attn *a = j->a;
    int chunk = i % j->chunks;
    i /= j->chunks;
    struct item it = {.a = a, .isa = j->d->isa, .t = j->tile[i / a->n_kv], .g = i % a->n_kv};
    it.h0 = it.g * j->group + chunk * j->chunk;
    it.nh = j->group - chunk * j->chunk < j->chunk ? j->group - chunk * j->chunk : j->chunk;
    it.lines = (it.t.r1 - it.t.r0) * it.nh;
    it.split = split_of(a, &it.t);
    it.base = it.t.from / CPU_LANES * CPU_LANES;
    it.lds = cpu_pad(it.t.to - it.base) + CPU_LANES;
    it.s = cpu_panel(j->d);
    it.keys = it.s + SCORE_FLOATS;
    it.q = it.keys + KEY_FLOATS;
    it.out = it.q + LINE_FLOATS;
    CHECK(it.lines * it.lds <= SCORE_FLOATS);
    load_queries(&it);
    all_scores(&it);
    float inv[LINES];
    for (int l = 0; l < it.lines; l++)
        inv[l] = softmax(&it, l);
    all_values(&it);
    for (int l = 0; l < it.lines; l++) {
        int r = it.t.r0 + l / it.nh, h = it.h0 + l % it.nh;
        float *out = a->out + r * a->ldo + (int64_t)h * a->dv;
        const float *o = it.out + (int64_t)l * a->dv;
        for (int k = 0; k < a->dv; k++)
            out[k] = o[k] * inv[l];
    }
}

/* Rows of a tile: as many as make LINES lines and fit the score area. */
static int tile_rows(int chunk, int keys)
{
    int64_t lds = cpu_pad(keys + CPU_LANES) + CPU_LANES;
    int n = LINES / chunk;
    int fit = (int)(SCORE_FLOATS / lds / chunk);
    n = n < fit ? n : fit;
    return n < 1 ? 1 : n;
}

/* Lists the tiles of rows [r0, r1): consecutive rows of one slot whose ranges overlap (a position
 * in a hole between ranges may have no page). */
static int list_tiles(const struct cpu_attn *a, int r0, int r1, int chunk, struct tile *t)
{
    int n = 0;
    for (int r = r0; r < r1;) {
        int from = a->first[r], to = cpu_attn_end(a, r), e = r + 1;
        to = to > from ? to : from;
        for (; e < r1 && a->slot[e] == a->slot[r] && e - r < tile_rows(chunk, to - from); e++) {
            int end = cpu_attn_end(a, e);
            int f = a->first[e] < from ? a->first[e] : from, l = end > to ? end : to;
            if (a->first[e] > to || end < from || a->first[e] >= end ||
                e + 1 - r > tile_rows(chunk, l - f))
                break;
            from = f;
            to = l;
        }
        t[n++] = (struct tile){r, e, from, to};
        r = e;
    }
    return n;
}

void cpu_attn(struct dev *d, const struct cpu_attn *a, int r0, int r1)
{
    CHECK(cpu_pad(a->dk) <= KEY_FLOATS / KEYS && a->n_head % a->n_kv == 0);
    CHECK(a->dt == DT_F32 || a->dv <= KEY_FLOATS / KEYS);
    CHECK(LINES * (int64_t)cpu_pad(a->dk) <= LINE_FLOATS && LINES * (int64_t)a->dv <= LINE_FLOATS);
    CHECK(TILE_INTS * ROWS_AT_ONCE <= CPU_INTS_MAX && sizeof(struct tile) == TILE_INTS * 4);
    struct tile *tiles = (struct tile *)d->ints;
    for (; r0 < r1; r0 += ROWS_AT_ONCE) {
        int e = r1 - r0 < ROWS_AT_ONCE ? r1 : r0 + ROWS_AT_ONCE;
        struct job j = {d, a, tiles, a->n_head / a->n_kv, 0, 0};
        j.chunk = j.group < LINES ? j.group : LINES;
        int keys = 0;
        for (int r = r0; r < e; r++)
            keys = a->last[r] - a->first[r] > keys ? a->last[r] - a->first[r] : keys;
        CHECK(keys <= cpu_attn_keys_max());
        while (j.chunk > 1 &&
               j.chunk * (int64_t)(cpu_pad(keys + CPU_LANES) + CPU_LANES) > SCORE_FLOATS)
            j.chunk--;
        int n = list_tiles(a, r0, e, j.chunk, tiles);
        /* few tiles (decoding alone): split the heads of a group so that every thread has work */
        while (j.chunk > 1 &&
               n * a->n_kv * ((j.group + j.chunk - 1) / j.chunk) < 2 * d->conf.threads)
            j.chunk = (j.chunk + 1) / 2;
        j.chunks = (j.group + j.chunk - 1) / j.chunk;
        int64_t work = (int64_t)(e - r0) * a->n_head * ((int64_t)keys + 1) * (a->dk + a->dv) / 8;
        cpu_parallel_if(d, work, n * a->n_kv * j.chunks, run_item, &j);
    }
}
