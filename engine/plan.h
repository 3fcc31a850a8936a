/* Inside the engine: from settings to the numbers of the worker. */
#ifndef SPECD_ENGINE_PLAN_H
#define SPECD_ENGINE_PLAN_H

#include "engine/engine.h"
#include "engine/worker/worker.h"

/* Fills *w; reads the configuration and the headers of the model, no weights. Borrows strings. */
int plan_worker(struct worker_conf *w, const struct engine_conf *c, struct err *e);
/* A setting or its default, within bounds. */
int plan_take(int value, int def, int lo, int hi, const char *what, int *out, struct err *e);
/* Bytes of KV memory that one token takes in all groups. */
int64_t plan_kv_token_bytes(const struct model_info *mi);

#endif
