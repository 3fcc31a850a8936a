/* The tensors of a checkpoint: safetensors files mapped read-only, found by name, each taken once.
 *
 * File: u64 little-endian header length, a JSON object {name: {dtype, shape, data_offsets}}, then
 * the data; offsets count from the end of the header (format description of the safetensors
 * project). Checked before anything is used: the header length, the JSON, that shape times size
 * is the span, that the spans cover the data without overlap or hole, alignment, no name twice in
 * one file or in two. Every error names the file and the tensor. A family takes what it needs;
 * what nobody took is refused by name at the end, so nothing in a file is silently unused. */
#ifndef SPECD_MODEL_SAFETENSORS_H
#define SPECD_MODEL_SAFETENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/err.h"
#include "engine/comm/comm.h"
#include "kernels/dtype.h"

enum {
    ST_HEADER_MAX = 100 * 1000 * 1000, /* bytes of a header or index */
    ST_NAME_MAX = 256,                 /* bytes of a tensor name */
    ST_RANK_MAX = 8,
};

struct tensor {
    char *name;       /* without a wrapper's prefix */
    const char *file; /* base name, borrowed from the set */
    const char *type; /* the file's spelling, static */
    enum dtype dt;    /* DT_NONE: a type no weight can have */
    int rank;
    int64_t shape[ST_RANK_MAX];
    const void *p; /* inside the map */
    size_t bytes;
    bool taken, used; /* used: taken, and not set aside */
    float lo, hi;     /* generated sets: values lie between these */
    bool made;        /* generated sets: the values are there */
};

struct tensors;

/* Maps DIR/model.safetensors, or the files DIR/model.safetensors.index.json lists. `wrapped`: the
 * text model of a multimodal checkpoint; its prefixes are taken off and the other parts' tensors
 * are left alone. */
int tensors_open(struct tensors **out, const char *dir, bool wrapped, struct err *e);
void tensors_close(struct tensors *t);

/* An empty set, and one file's bytes added to it: tests and the fuzz target. `p` must outlive t. */
struct tensors *tensors_new(bool wrapped);
int tensors_add(struct tensors *t, const char *p, size_t len, const char *file, struct err *e);

/* A set without files: every tensor that is taken and not optional comes into being with the shape
 * asked for, bf16, or fp8 with scales where that is allowed and announced (dummy.h says how the
 * values are chosen). Addresses hold at once, values from tensors_fill on. */
struct tensors *tensors_generate(bool wrapped, int n_layer);
/* Before anything is taken: what TAKE_ROWS, TAKE_COLS and TAKE_RANK0 give is the part of this rank
 * (NULL: the whole). */
void tensors_split(struct tensors *t, struct comm *comm);
struct comm *tensors_comm(const struct tensors *t);
size_t tensors_copy_bytes(const struct tensors *t); /* of column parts in use */
/* Makes the values of what is in use and has none yet: generated tensors and column parts. */
void tensors_fill(struct tensors *t, int threads);
/* Instead, where weights are copied to a device: only vectors are made in host memory, and bytes
 * [from, from + n) of tensor i go to dst as they are asked for (any thread; from is a multiple of
 * 64). release(): the host does not need them soon; mapped pages are given back. */
void tensors_fill_small(struct tensors *t);
void tensors_make(const struct tensors *t, size_t i, size_t from, size_t n, void *dst);
void tensors_release(struct tensors *t);

bool tensors_generated(const struct tensors *t);
size_t tensors_count(const struct tensors *t);
const struct tensor *tensors_at(const struct tensors *t, size_t i);
const struct tensor *tensors_find(const struct tensors *t, const char *name); /* NULL: none */
/* Whether the set has, or would make, tensors whose names begin so. */
bool tensors_any(const struct tensors *t, const char *prefix);

enum {
    TAKE_VECTOR = 1,   /* rank 1 of k elements (n is 1) */
    TAKE_OPTIONAL = 2, /* may be absent */
    TAKE_FP8 = 4,      /* F8_E4M3 with NAME_scale_inv is fine when the set allows it */
    /* With ranks; n and k are the whole tensor's. */
    TAKE_ROWS = 8,   /* this rank's of the rows (elements of a vector), where they are mapped */
    TAKE_COLS = 16,  /* this rank's of the columns: a copy, filled by tensors_fill */
    TAKE_RANK0 = 32, /* rank 0 alone has it (what is added once to a sum over ranks) */
};

/* fp8 weights with 128 x 128 block scales are refused until the configuration announces them. */
void tensors_allow_fp8(struct tensors *t);
/* While on, what is taken is not counted as in use (next-token layers). */
void tensors_aside(struct tensors *t, bool on);
/* Puts what was set aside and has this prefix in use; its elements (scales left out) and bytes. */
void tensors_use(struct tensors *t, const char *prefix, int64_t *n_param, size_t *bytes);

/* Fills *w with the tensor [n, k]. 1: taken; 0: absent and optional (*w zeroed); negative: missing,
 * misshapen or of a type that cannot be computed with. */
int tensors_take(struct tensors *t, const char *name, int64_t n, int64_t k, unsigned flags,
                 struct weight *w, struct err *e);
/* A stack [count, n, k] as `count` weights; TAKE_COLS applies to each. */
int tensors_take_stack(struct tensors *t, const char *name, int64_t count, int64_t n, int64_t k,
                       unsigned flags, struct weight *w, struct err *e);
/* The data of a vector of n elements of a type by the file's spelling; *p NULL when it is absent.
 */
int tensors_take_raw(struct tensors *t, const char *name, const char *type, int64_t n,
                     const void **p, struct err *e);
/* Marks a tensor as dealt with; nothing happens when it is absent. */
void tensors_ignore(struct tensors *t, const char *name);
/* Fails with the names of the first tensors nobody took. `*.rotary_emb.inv_freq` is ignored: old
 * writers stored this function of the configuration. */
int tensors_all_taken(const struct tensors *t, struct err *e);

int64_t tensors_params(const struct tensors *t); /* elements taken and in use */
size_t tensors_bytes(const struct tensors *t);   /* their bytes, scales included */

#endif
