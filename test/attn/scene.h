/* Scenes for the contract tests of attention: requests with rows and keys by position, a naive
 * oracle in double, and the same cache in shuffled pages. What no row sees is NaN, page-table
 * entries without a visible position name impossible pages. */
#ifndef SPECD_TEST_ATTN_SCENE_H
#define SPECD_TEST_ATTN_SCENE_H

#include <stdbool.h>
#include <stdint.h>

#include "attention/attn.h"
#include "engine/base/rng.h"

enum { REQS = 6, KEYS_MAX = 448, ROWS_MAX = 160 };

/* A set of requests, without pages. */
struct scene {
    enum attn_kind kind;
    enum attn_mask mask;
    int n_head, n_kv, qk, v, lora, rope, nope, rows;
    enum dtype kv_type;     /* DT_NONE: F32 */
    float k_scale, v_scale; /* of an fp8 cache */
    bool sinks_on;
    float soft_cap;
    int32_t slot[ROWS_MAX], first[ROWS_MAX], last[ROWS_MAX], row0[ROWS_MAX];
    uint64_t anc[ROWS_MAX];
    int k_width, v_width; /* of a pool row, floats; MLA: v_width 0 */
    float *keys, *vals;   /* [REQS][KEYS_MAX][width] by position, exact in kv_type */
    bool used[REQS][KEYS_MAX];
    float *q, *sinks;
    struct weight kv_b;
    double *kv_b_val;
};

struct shape {
    int n_head, n_kv, qk, v, lora, rope, nope;
};

/* Shapes of each kind: odd head dims, groups, several lane counts. */
extern const struct shape shapes_gqa[4], shapes_absorbed[2], shapes_full[2];

enum dtype scene_type(const struct scene *s);
/* Whether row r sees position p of its request's cache. */
bool scene_sees(const struct scene *s, int r, int p);
/* Sets `used` from the rows. */
void scene_mark(struct scene *s);
/* The rest of a scene whose kind, mask, shape and rows are filled. */
void scene_fill(struct scene *s, struct rng *r, const struct shape *h, bool extras);
void scene_free(struct scene *s);
void scene_oracle(const struct scene *s, float scale, double *out, double *lse);

/* The scene's cache in shuffled pages of one size. */
struct paged {
    int page, pages_max, n_page;
    int32_t *table; /* [REQS][pages_max] */
    void *k, *v;    /* of the scene's kv_type */
};

struct paged paged_make(const struct scene *s, struct rng *r, int page);
void paged_free(struct paged *g);

struct attn_need scene_need(const struct scene *s, enum role role, int page, int window);
struct attn_call scene_call(const struct scene *s, const struct paged *g, enum role role,
                            float scale, float *out, float *lse);
/* Opens, plans, runs (or records and replays) and closes. */
void scene_run(const struct attn_backend *b, struct dev *d, const struct scene *s,
               const struct paged *g, const struct attn_need *need, struct attn_call *c,
               bool replay);

#endif
