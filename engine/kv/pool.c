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
        v->dt = g[i].dt;
        size_t entries = mem_mul((size_t)n_slot, (size_t)v->pages_max);
        void *mem = NULL;
        TRY_OUT(ops->alloc(d, &mem, mem_mul(entries, sizeof(int32_t)), DEV_MEM_DEVICE, e));
        p->table[i] = mem;
        v->table = mem;
        mem = NULL;
        TRY_OUT(ops->alloc(d, &mem, plane_bytes(&g[i], n_page[i], page, g[i].k_width),
                           DEV_MEM_DEVICE, e));
        v->k = mem;
        if (g[i].v_width) {
            mem = NULL;
            TRY_OUT(ops->alloc(d, &mem, plane_bytes(&g[i], n_page[i], page, g[i].v_width),
                               DEV_MEM_DEVICE, e));
            v->v = mem;
        }
    }
    return OK;
out:
    kv_pool_close(p, ops, d);
    return ret;
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
