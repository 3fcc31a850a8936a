/* Subcommands that run the engine without HTTP; each returns the exit code. */
#ifndef SPECD_SERVER_CLI_H
#define SPECD_SERVER_CLI_H

#include "server/config.h"

struct engine;
struct cli_engine;

int cli_generate(const struct config *c);
int cli_tokenize(const struct config *c);
int cli_bench(const struct config *c);
int cli_plan(const struct config *c);

/* An engine whose events are waited for. Prints the error and returns NULL on failure. */
struct cli_engine *cli_open(const struct config *c);
struct engine *cli_engine(const struct cli_engine *e);
void cli_wait(struct cli_engine *e); /* until the engine has events */
void cli_close(struct cli_engine *e);

#endif
