/* Tiny checkpoints made at test time from test/data/model/NAME.json: configuration, and tensors
 * whose values follow from their names (the twin of scripts/data/make_model_goldens.py). A test may
 * edit the configuration or the tensor list before the folder is written. */
#ifndef SPECD_TEST_GEN_H
#define SPECD_TEST_GEN_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "test/sanitize.h"

enum { GOLDEN_IDS = 4, GOLDEN_COLS = 8, GOLDEN_BYTES = GOLDEN_IDS * 6 + GOLDEN_COLS * 4 };

struct gen {
    json_t *doc;     /* the file */
    json_t *config;  /* borrowed; NULL for a model that lies in the tree */
    json_t *tensors; /* borrowed; [[name, dtype, shape, offset or list, scale], …] */
    json_t *prompts; /* borrowed; lists of ids */
    char dir[256];   /* the written folder, or the one in the tree */
    bool written;
};

/* Names of all files, NULL ends. Aborts the test when the data is not there. */
const char *const *gen_names(void);
void gen_open(struct gen *g, const char *name);
/* A checkpoint that has no file: takes over `config`; tensors are added. */
void gen_new(struct gen *g, json_t *config);
/* rows 0: a vector of cols. */
void gen_add(struct gen *g, const char *name, const char *type, int rows, int cols, double offset,
             double scale);
/* A vector of given integers, type I64 or BOOL; takes over the list. */
void gen_add_list(struct gen *g, const char *name, const char *type, json_t *list);
void gen_close(struct gen *g); /* removes the folder */

json_t *gen_tensor(struct gen *g, const char *name); /* its entry; fails the test when absent */
void gen_set(struct gen *g, const char *name, double offset, double scale);
int gen_remove(struct gen *g, const char *prefix); /* how many names began with it */

/* Writes config.json and the tensors in `shards` files (1: model.safetensors) to a new folder. */
void gen_write(struct gen *g, int shards);
/* Puts a text file into the written folder. */
void gen_put(const struct gen *g, const char *file, const char *text, size_t len);

/* Fails the test unless the words of DIR/model.safetensors add up to `hex`: golden values of a
 * trained model belong to one set of weights. */
void gen_check_words(const char *dir, const char *hex);

/* Value of element i of a tensor, before rounding to its type. */
float gen_value(const char *name, int64_t i, float offset, float scale);

struct golden { /* one position */
    uint16_t id[GOLDEN_IDS];
    float best[GOLDEN_IDS], col[GOLDEN_COLS];
};
/* NAME.bin as an array (mem_free); *n positions. */
struct golden *golden_load(const char *name, size_t *n);

#endif
