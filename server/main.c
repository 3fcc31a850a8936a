/* Entry point: picks the subcommand and reads its flags. Owns argv and the exit code: 0 done, 1 it
 * failed, 2 it was asked for something that does not exist. */
#include <stdio.h>
#include <string.h>

#include "engine/base/check.h"
#include "server/cli.h"
#include "server/config.h"
#include "server/server.h"

static const struct {
    const char *name;
    int cmd;
    int (*run)(const struct config *c);
    const char *help;
} commands[] = {
    {"serve", CMD_SERVE, serve_run, "answer HTTP requests until a signal"},
    {"generate", CMD_GENERATE, cli_generate, "one completion on standard output"},
    {"tokenize", CMD_TOKENIZE, cli_tokenize, "standard input as token ids"},
    {"bench", CMD_BENCH, cli_bench, "offline throughput, one JSON object a line"},
    {"plan", CMD_PLAN, cli_plan, "checks, backends, page size and memory of a start, without one"},
};

static int usage(FILE *f)
{
    fprintf(f, "specd %s\n\nusage: specd COMMAND [--flag value] …\n\n", SPECD_VERSION);
    for (size_t i = 0; i < ARRAY_LEN(commands); i++)
        fprintf(f, "  specd %-9s %s\n", commands[i].name, commands[i].help);
    fprintf(f, "  specd version   the version\n\nspecd COMMAND --help lists its flags.\n");
    return f == stdout ? 0 : 2;
}

static void print_help(int at)
{
    struct buf b = {0};
    config_help(&b, commands[at].cmd);
    printf("usage: specd %s --model DIR [--flag value] …\n\n%s\n\n%s", commands[at].name,
           commands[at].help, buf_cstr(&b));
    buf_done(&b);
}

static int print_markdown(void)
{
    struct buf b = {0};
    config_markdown(&b, CMD_SERVE);
    printf("%s", buf_cstr(&b));
    buf_done(&b);
    return 0;
}

static int run(int at, int argc, char **argv)
{
    struct config c;
    struct err e = {0};
    int code = 2;
    if (config_parse(&c, commands[at].cmd, argc, argv, &e) < 0) {
        fprintf(stderr, "specd %s: %s\nspecd %s --help lists the flags.\n", commands[at].name,
                e.text, commands[at].name);
    } else if (c.help) {
        print_help(at);
        code = 0;
    } else {
        code = commands[at].run(&c);
    }
    config_done(&c);
    return code;
}

int main(int argc, char **argv)
{
    const char *cmd = argc > 1 ? argv[1] : "";
    if (!strcmp(cmd, "version") || !strcmp(cmd, "--version")) {
        printf("specd %s\n", SPECD_VERSION);
        return 0;
    }
    if (!strcmp(cmd, "help") || !strcmp(cmd, "--help") || !strcmp(cmd, "-h"))
        return usage(stdout);
    if (!strcmp(cmd, "help-markdown"))
        return print_markdown();
    for (size_t i = 0; i < ARRAY_LEN(commands); i++)
        if (!strcmp(cmd, commands[i].name))
            return run((int)i, argc - 2, argv + 2);
    return usage(stderr);
}
