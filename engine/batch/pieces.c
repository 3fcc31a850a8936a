/* See the header. */
#include "engine/batch/pieces.h"

#include "engine/base/mem.h"

int pieces_rows(struct row_arrays *r, size_t rows, int n_group, struct piece *out)
{
    int n = 0;
    out[n++] = PIECE(r->tok, rows, DEV_MEM_DEVICE);
    out[n++] = PIECE(r->slot, rows, DEV_MEM_DEVICE);
    out[n++] = PIECE(r->pos, rows, DEV_MEM_DEVICE);
    out[n++] = PIECE(r->req, rows, DEV_MEM_DEVICE);
    out[n++] = PIECE(r->at, rows, DEV_MEM_DEVICE);
    out[n++] = PIECE(r->parent, rows, DEV_MEM_DEVICE);
    out[n++] = PIECE(r->anc, rows, DEV_MEM_DEVICE);
    out[n++] = PIECE(r->row0, rows, DEV_MEM_DEVICE);
    for (int g = 0; g < n_group; g++) {
        out[n++] = PIECE(r->first[g], rows, DEV_MEM_DEVICE);
        out[n++] = PIECE(r->last[g], rows, DEV_MEM_DEVICE);
        out[n++] = PIECE(r->wslot[g], rows, DEV_MEM_DEVICE);
    }
    return n;
}

size_t pieces_bytes(const struct piece *p, int n)
{
    size_t sum = 0;
    for (int i = 0; i < n; i++)
        sum += mem_mul(p[i].n, p[i].size);
    return sum;
}

int pieces_alloc(const struct piece *p, int n, const struct dev_ops *ops, struct dev *d,
                 struct err *e)
{
    for (int i = 0; i < n; i++) {
        int r = p[i].n ? ops->alloc(d, p[i].p, mem_mul(p[i].n, p[i].size), p[i].kind, e) : OK;
        if (r < 0) {
            pieces_free(p, n, ops, d);
            return r;
        }
    }
    return OK;
}

void pieces_free(const struct piece *p, int n, const struct dev_ops *ops, struct dev *d)
{
    for (int i = 0; i < n; i++) {
        if (*p[i].p)
            ops->free(d, *p[i].p);
        *p[i].p = NULL;
    }
}
