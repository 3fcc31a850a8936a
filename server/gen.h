/* Completions and chat completions on the loop: one struct gen a request, one choice a sequence. */
#ifndef SPECD_SERVER_GEN_H
#define SPECD_SERVER_GEN_H

#include <stddef.h>

#include "server/api_err.h"

struct gen_evt;
struct gen_table;

/* Live choices by request id of the engine. */
struct gen_table *gens_new(void);
void gens_free(struct gen_table *t); /* drops what is left: the engine is closed */
void gens_event(struct gen_table *t, const struct gen_evt *e);
void gens_flush(struct gen_table *t); /* writes what the events of this wake-up produced */
size_t gens_live(const struct gen_table *t);
struct server;
/* Ends every unfinished request with this error (in the stream, where one is open). */
void gens_abort_all(struct server *s, const struct api_err *e, int outcome);

#endif
