/* Allocation of KV pools and page tables; see the header. */
#include "engine/kv/pool.h"

#include "engine/base/mem.h"

static size_t plane_bytes(const struct kv_group *g, int n_page, int page, int width)
{
    size_t rows = mem_mul((size_t)n_page, (size_t)page);
    return mem_mul(mem_mul((size_t)g->n_layer, rows), mem_mul((size_t)width, dtype_size(g->dt)));
}

size_t kv_pool_bytes(const struct kv_group *g, int n_group, const int *n_page, int page)
{
    size_t sum = 0;
    for (int i = 0; i < n_group; i++)
        sum += plane_bytes(&g[i], n_page[i], page, g[i].k_width + g[i].v_width);
    return sum;
}

static int open_planes(struct kv_view *v, const struct kv_group *g, const struct dev_ops *ops,
                       struct dev *d, struct err *e)
{
    void *mem = NULL;
    v->dt = g->dt;
    TRY(ops->alloc(d, &mem, plane_bytes(g, v->n_page, v->page, g->k_width), DEV_MEM_DEVICE, e));
    v->k = mem;
    if (!g->v_width)
        return OK;
    TRY(ops->alloc(d, &mem, plane_bytes(g, v->n_page, v->page, g->v_width), DEV_MEM_DEVICE, e));
    v->v = mem;
    return OK;
}

int kv_pool_open(struct kv_pool *p, const struct kv_group *g, int n_group, const int *n_page,
                 int page, int len_max, int n_slot, const struct dev_ops *ops, struct dev *d,
                 struct err *e)
{
    *p = (struct kv_pool){.n_group = n_group, .n_slot = n_slot};
    int ret = OK;
    for (int i = 0; i < n_group; i++) {
        struct kv_view *v = &p->view[i];
        v->page = page;
        v->n_page = n_page[i];
        v->pages_max = kv_pages(len_max, page);
        size_t entries = mem_mul((size_t)n_slot, (size_t)v->pages_max);
        void *mem = NULL;
        TRY_OUT(ops->alloc(d, &mem, mem_mul(entries, sizeof(int32_t)), DEV_MEM_DEVICE, e));
        p->table[i] = mem;
        v->table = mem;
        TRY_OUT(open_planes(v, &g[i], ops, d, e));
    }
    return OK;
out:
    kv_pool_close(p, ops, d);
    return ret;
}

int kv_pool_open_shared(struct kv_pool *p, const struct kv_group *g, int n_group,
                        const struct kv_view *share, const struct dev_ops *ops, struct dev *d,
                        struct err *e)
{
    *p = (struct kv_pool){.n_group = n_group};
    for (int i = 0; i < n_group; i++) {
        p->view[i] = (struct kv_view){.page = share->page,
                                      .n_page = share->n_page,
                                      .pages_max = share->pages_max,
                                      .table = share->table};
        int r = open_planes(&p->view[i], &g[i], ops, d, e);
        if (r < 0) {
            kv_pool_close(p, ops, d);
            return r;
        }
    }
    return OK;
}

void kv_pool_close(struct kv_pool *p, const struct dev_ops *ops, struct dev *d)
{
    for (int i = 0; i < p->n_group; i++) {
        if (p->table[i])
            ops->free(d, p->table[i]);
        if (p->view[i].k)
            ops->free(d, p->view[i].k);
        if (p->view[i].v)
            ops->free(d, p->view[i].v);
    }
    *p = (struct kv_pool){0};
}
