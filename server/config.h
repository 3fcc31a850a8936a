/* Settings of all subcommands, from one table (config_keys.def): flags, the JSON file, --help and
 * the README's table cannot disagree. Read once at start, immutable afterwards. */
#ifndef SPECD_SERVER_CONFIG_H
#define SPECD_SERVER_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/buf.h"
#include "engine/base/err.h"

enum { CMD_SERVE = 1, CMD_GENERATE = 2, CMD_TOKENIZE = 4, CMD_BENCH = 8, CMD_PLAN = 16 };

struct str_list {
    char **v;
    size_t n, cap;
};

struct config {
#define STR(cmds, field, ...) char *field;
#define ENUM(cmds, field, ...) char *field;
#define STRS(cmds, field, ...) struct str_list field;
#define INT(cmds, field, ...) int64_t field;
#define NUM(cmds, field, ...) double field; /* NaN: not given, where the default is NULL */
#define FLAG(cmds, field, ...) bool field;
#include "server/config_keys.def"
#undef STR
#undef ENUM
#undef STRS
#undef INT
#undef NUM
#undef FLAG
    bool prefill_first; /* no setting: bench wants it */
    bool help;          /* --help was given; nothing else is checked then */
};

/* Reads flags (argv[0] is the first one) and, for serve, the file of --config. E_INVAL with a
 * sentence that names the flag or key; config_done is due in any case. */
int config_parse(struct config *c, int cmd, int argc, char **argv, struct err *e);
void config_done(struct config *c);
void config_help(struct buf *out, int cmd);     /* one line a flag */
void config_markdown(struct buf *out, int cmd); /* the README's table */

/* The environment that the service manager sets; specd reads no other variable. */
struct config_env {
    const char *notify_socket; /* NULL: none */
    int64_t watchdog_us;       /* 0: no watchdog wanted from us */
    bool journal;              /* standard error is journald */
};
void config_env(struct config_env *out);

struct engine_conf;
/* Borrows strings from `c`. */
void config_engine(const struct config *c, struct engine_conf *out);

#endif
