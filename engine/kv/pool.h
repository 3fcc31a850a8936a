/* KV memory: one pool of pages and one page table a group, on the device. Which page belongs to
 * whom is the scheduler's business (pages.h); here are only addresses. The worker owns it. */
#ifndef SPECD_KV_POOL_H
#define SPECD_KV_POOL_H

#include "engine/base/err.h"
#include "engine/model/model.h"

struct kv_pool {
    int n_group, n_slot;
    struct kv_view view[LIM_KV_GROUPS];
    int32_t *table[LIM_KV_GROUPS]; /* [n_slot][pages_max], what the views' tables point to; NULL:
                                      another pool's */
};

/* Pages needed for `tokens` tokens. */
static inline int kv_pages(int64_t tokens, int page)
{
    return (int)((tokens + page - 1) / page);
}

size_t kv_pool_bytes(const struct kv_group *g, int n_group, const int *n_page, int page);
int kv_pool_open(struct kv_pool *p, const struct kv_group *g, int n_group, const int *n_page,
                 int page, int len_max, int n_slot, const struct dev_ops *ops, struct dev *d,
                 struct err *e);
/* Planes for other layers over the pages of `share`, whose tables they use: page ids and their life
 * are those of that group. */
int kv_pool_open_shared(struct kv_pool *p, const struct kv_group *g, int n_group,
                        const struct kv_view *share, const struct dev_ops *ops, struct dev *d,
                        struct err *e);
void kv_pool_close(struct kv_pool *p, const struct dev_ops *ops, struct dev *d);

#endif
