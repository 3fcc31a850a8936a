/* The drafters' arithmetic in doubles, written from their descriptions over a checkpoint's tensors:
 * what their programs are compared with. Of engine/model it uses the reading of files alone. One
 * row at a time, keys and values kept unabsorbed. */
#ifndef SPECD_TEST_PLAIN_H
#define SPECD_TEST_PLAIN_H

#include <jansson.h>

#include "engine/model/safetensors.h"

enum { PLAIN_ROWS = 128, PLAIN_WIDE = 512 };

struct plain {
    const json_t *conf, *target_conf; /* the drafter's (next-token layer: both the same) */
    struct tensors *t, *target;
    bool alien_kv; /* mutation: rope of the keys one position off */
    int n;         /* rows so far; row j is at rope position j */
    double k[PLAIN_ROWS][PLAIN_WIDE], v[PLAIN_ROWS][PLAIN_WIDE];
};

/* The two checkpoints' folders; the same for a next-token layer. */
struct plain *plain_open(const char *dir, const json_t *conf, const char *target_dir,
                         const json_t *target_conf);
void plain_close(struct plain *p);

/* Appends the row of `tok` with the feature `feat`. Out: the row for the head, the next feature,
 * the logits. */
void plain_mtp(struct plain *p, int tok, const double *feat, double *hidden, double *next,
               double *logits);
void plain_eagle3(struct plain *p, int tok, const double *feat, double *hidden, double *next,
                  double *logits);
/* The head's feature of `n_tap` states. */
void plain_fuse(struct plain *p, const double *taps, int n_tap, double *feat);

#endif
