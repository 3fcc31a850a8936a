/* Reading config.json so that no key is overlooked: every key a family reads is remembered, and
 * what is left over is either known to be harmless, or refused because its name says that it
 * changes the maths. Start-up only. */
#ifndef SPECD_MODEL_CONFIG_H
#define SPECD_MODEL_CONFIG_H

#include "engine/base/js.h"
#include "engine/model/model.h"
#include "engine/model/safetensors.h"

struct cfg {
    const json_t *o; /* borrowed */
    const char *seen[96];
    int n_seen;
};

/* An absent or null key fails in the plain forms and gives `def` in the _or forms. A getter marks
 * the key as dealt with. Errors name the key. */
int cfg_int(struct cfg *c, const char *key, int64_t lo, int64_t hi, int *out, struct err *e);
int cfg_int_or(struct cfg *c, const char *key, int64_t lo, int64_t hi, int def, int *out,
               struct err *e);
int cfg_num(struct cfg *c, const char *key, double lo, double hi, double *out, struct err *e);
int cfg_num_or(struct cfg *c, const char *key, double lo, double hi, double def, double *out,
               struct err *e);
int cfg_bool_or(struct cfg *c, const char *key, bool def, bool *out, struct err *e);
int cfg_str_or(struct cfg *c, const char *key, const char *def, const char **out, struct err *e);
int cfg_has(const struct cfg *c, const char *key); /* present and not null */
void cfg_seen(struct cfg *c, const char *key);     /* harmless or dealt with elsewhere */

/* hidden_act, dtype names, quantization_config: the same for every family. */
int cfg_common(struct cfg *c, struct tensors *t, struct err *e);
/* Refuses what was not read and could matter. */
int cfg_finish(const struct cfg *c, struct err *e);

/* generation_config.json and the token ids of config.json into `info`. `gen` may be NULL. */
int cfg_generation(const json_t *config, const json_t *gen, struct model_info *info, struct err *e);

#endif
