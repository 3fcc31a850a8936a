/* Page allocator of the KV groups and the block tables of requests. Host bookkeeping only: the
 * memory belongs to the worker, which learns of a page through struct page_set entries.
 *
 * A group (layers of one kind, dims, dtype and window) has its own pool of pages 0 … n_page - 1 and
 * its own page life: a full-attention group keeps every page of a request, a window group gives
 * back the pages that lie wholly behind the window. Entry i of a table holds the page of positions
 * [i * page, (i + 1) * page). Pages carry reference counts so that tables may share one later
 * (prefix reuse); today every count is 0 or 1.
 *
 * Reservations are made on upper bounds: the scheduler plans step n + 1 before it knows how many
 * tokens step n committed, so it asks for committed + what steps in flight may add + the rows of
 * the new step. Owned by the scheduler thread; no locks. */
#ifndef SPECD_KV_PAGES_H
#define SPECD_KV_PAGES_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/err.h"
#include "engine/limits.h"
#include "kernels/ops.h"

struct kv_conf {
    int page; /* tokens a page, the same in every group */
    int n_group;
    struct {
        int n_page;    /* of the pool */
        int pages_max; /* entries of a table row on the device */
        int window;    /* 0: full attention; else a row sees keys (pos - window, pos] */
    } group[LIM_KV_GROUPS];
};

struct kv;

struct kv_table {
    int32_t *page; /* entries [first, end) hold pages; memory is kept for the next user */
    int cap, first, end;
};
/* One request's tables, zero-initialised. */
struct kv_seq {
    struct kv_table t[LIM_KV_GROUPS];
};

int kv_open(struct kv **out, const struct kv_conf *c, struct err *e);
void kv_close(struct kv *k);
const struct kv_conf *kv_conf(const struct kv *k);

/* Reserves pages so that positions [0, len) can be written, and appends one entry a new page to
 * set[0 … room). Returns the number of entries; E_NOMEM when pages or room do not suffice (then
 * nothing changed). */
int kv_grow(struct kv *k, struct kv_seq *s, int slot, int len, struct page_set *set, int room);
/* The largest len' <= len that kv_grow would grant now; what the tables already cover counts. */
int kv_reach(const struct kv *k, const struct kv_seq *s, int len, int room);
/* The next row to be planned sits at `pos` or later: window groups free what it cannot see. Returns
 * the number of pages freed. */
int kv_pass(struct kv *k, struct kv_seq *s, int pos);
/* Frees pages beyond the first `len` positions (an upper bound that turned out too high). */
int kv_shrink(struct kv *k, struct kv_seq *s, int len);
/* Frees everything; the tables keep their memory. */
void kv_release(struct kv *k, struct kv_seq *s);
void kv_seq_done(struct kv *k, struct kv_seq *s); /* and frees the memory */

/* Pages of group g that a request of len positions holds at once when at most `rows` positions are
 * written a step. */
int kv_need(const struct kv *k, int g, int len, int rows);
/* Positions that one request alone can be sure to get with at most `rows` a step. */
int kv_capacity(const struct kv *k, int rows);

int kv_free_pages(const struct kv *k, int g);
int kv_used_pages(const struct kv *k, int g);
int kv_held(const struct kv_seq *s, int g); /* pages of one request */

/* Another table names a page it did not take itself. */
void kv_ref(struct kv *k, int g, int32_t page);
void kv_unref(struct kv *k, int g, int32_t page);

/* Aborts when free pages and counted pages do not add up to the pool. Linear; for tests. */
void kv_check(const struct kv *k);

#endif
