/* Goal: flags, file and help come from one table and refuse what they do not know. Method: both
 * spellings of flags, files written to a temporary path, wrong twins of each. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/check.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/engine.h"
#include "server/config.h"

static int parse(struct config *c, struct err *e, int cmd, const char *a, const char *b,
                 const char *d)
{
    char *argv[] = {(char *)(uintptr_t) "--model", (char *)(uintptr_t) "m/", (char *)(uintptr_t)a,
                    (char *)(uintptr_t)b, (char *)(uintptr_t)d};
    int n = 2 + (a != NULL) + (a && b) + (a && b && d);
    return config_parse(c, cmd, n, argv, e);
}

START_TEST(defaults)
{
    struct config c;
    struct err e = {0};
    ck_assert_int_eq(parse(&c, &e, CMD_SERVE, NULL, NULL, NULL), OK);
    ck_assert_str_eq(c.model, "m/");
    ck_assert_str_eq(c.host, "127.0.0.1");
    ck_assert_int_eq(c.port, 8000);
    ck_assert_int_eq(c.max_num_seqs, 64);
    ck_assert_int_eq(c.max_queued_requests, 512);
    ck_assert_int_eq(c.max_body_size, 32 << 20);
    ck_assert_uint_eq(c.api_key.n, 0);
    struct engine_conf ec;
    config_engine(&c, &ec);
    ck_assert(!ec.overlap_off);
    ck_assert_int_eq(ec.max_num_batched_tokens, 0);
    ck_assert_double_eq(ec.gpu_memory_utilization, 0.9);
    ck_assert_str_eq(ec.kv_cache_dtype, "auto");
    ck_assert_uint_eq(ec.n_allow_eager, 0);
    config_done(&c);
    ck_assert_int_eq(parse(&c, &e, CMD_GENERATE, NULL, NULL, NULL), OK);
    ck_assert(isnan(c.temperature));
    config_done(&c);
}
END_TEST

/* The flags of speculation, as flags and as keys, reach the engine's settings. */
START_TEST(speculation)
{
    struct config c;
    struct err e = {0};
    struct engine_conf ec;
    ck_assert_int_eq(parse(&c, &e, CMD_SERVE, NULL, NULL, NULL), OK);
    config_engine(&c, &ec);
    ck_assert_str_eq(ec.speculative, "off");
    ck_assert_ptr_null(ec.draft);
    ck_assert_ptr_null(ec.draft_attention_backend);
    ck_assert(!ec.spec_steps && !ec.spec_topk && !ec.spec_tokens);
    ck_assert(!ec.spec_ngram_min && !ec.spec_ngram_max);
    config_done(&c);
    static const int cmds[] = {CMD_SERVE, CMD_GENERATE, CMD_BENCH, CMD_PLAN};
    for (size_t i = 0; i < ARRAY_LEN(cmds); i++) {
        char *argv[] = {(char *)(uintptr_t) "m",
                        (char *)(uintptr_t) "--speculative=eagle3",
                        (char *)(uintptr_t) "--draft=d/",
                        (char *)(uintptr_t) "--spec-steps=3",
                        (char *)(uintptr_t) "--spec_topk=4",
                        (char *)(uintptr_t) "--spec-tokens=12",
                        (char *)(uintptr_t) "--spec-ngram-min=2",
                        (char *)(uintptr_t) "--spec-ngram-max=5",
                        (char *)(uintptr_t) "--draft-attention-backend=x",
                        (char *)(uintptr_t) "--kv-cache-dtype=fp8"};
        ck_assert_msg(config_parse(&c, cmds[i], ARRAY_LEN(argv), argv, &e) == OK, "%s", e.text);
        config_engine(&c, &ec);
        ck_assert_str_eq(ec.speculative, "eagle3");
        ck_assert_str_eq(ec.draft, "d/");
        ck_assert_str_eq(ec.draft_attention_backend, "x");
        ck_assert_str_eq(ec.kv_cache_dtype, "fp8");
        ck_assert_int_eq(ec.spec_steps, 3);
        ck_assert_int_eq(ec.spec_topk, 4);
        ck_assert_int_eq(ec.spec_tokens, 12);
        ck_assert_int_eq(ec.spec_ngram_min, 2);
        ck_assert_int_eq(ec.spec_ngram_max, 5);
        config_done(&c);
    }
    ck_assert_int_eq(parse(&c, &e, CMD_TOKENIZE, "--speculative", "off", NULL), E_INVAL);
    config_done(&c);
}
END_TEST

START_TEST(spellings)
{
    static const char *const forms[][2] = {{"--max-num-seqs", "7"},
                                           {"--max_num_seqs", "7"},
                                           {"--max-num-seqs=7", NULL},
                                           {"--max_num-seqs=7", NULL}};
    for (size_t i = 0; i < ARRAY_LEN(forms); i++) {
        struct config c;
        struct err e = {0};
        ck_assert_int_eq(parse(&c, &e, CMD_SERVE, forms[i][0], forms[i][1], NULL), OK);
        ck_assert_int_eq(c.max_num_seqs, 7);
        config_done(&c);
    }
    struct config c;
    struct err e = {0};
    char *argv[] = {(char *)(uintptr_t) "dir", (char *)(uintptr_t) "--api-key=a,b",
                    (char *)(uintptr_t) "--api-key", (char *)(uintptr_t) "c"};
    ck_assert_int_eq(config_parse(&c, CMD_SERVE, 4, argv, &e), OK);
    ck_assert_str_eq(c.model, "dir");
    ck_assert_uint_eq(c.api_key.n, 3);
    ck_assert_str_eq(c.api_key.v[2], "c");
    config_done(&c);
}
END_TEST

START_TEST(refusals)
{
    static const char *const bad[][3] = {
        {"--nonsense", "1", "nonsense"},
        {"--port", "65536", "port"},
        {"--port", "-1", "port"},
        {"--port", "80x", "port"},
        {"--port", "", "port"},
        {"--port", NULL, "port"},
        {"--overlap", "maybe", "on|off"},
        {"--gpu-memory-utilization", "1.1", "gpu-memory-utilization"},
        {"--gpu-memory-utilization", "0", "gpu-memory-utilization"},
        {"--max-num-seqs=0", NULL, "max-num-seqs"},
        {"--max-num-seqs=", NULL, "max-num-seqs"},
        {"--log-level", "loud", "log-level"},
        {"-x", NULL, "-x"},
        {"--drain-timeout", "1.5", "drain-timeout"},
        {"--prompt", "x", "prompt"},
        {"extra", NULL, "extra"},
        {"--max-model-len", "99999999999999999999", "max-model-len"},
        {"--drafter", "d", "drafter"},
        {"--speculative", "eagle", "off|auto|mtp|eagle3|draft-model|ngram"},
        {"--speculative", "frozen-kv", "speculative"},
        {"--speculative", "on", "speculative"},
        {"--spec-steps", "16", "spec-steps"},
        {"--spec-topk", "17", "spec-topk"},
        {"--spec-tokens", "65", "spec-tokens"},
        {"--spec-tokens", "-1", "spec-tokens"},
        {"--spec-ngram-min", "33", "spec-ngram-min"},
        {"--spec-ngram-max", "1.5", "spec-ngram-max"},
        {"--port 80", NULL, "port"},
    };
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct config c;
        struct err e = {0};
        ck_assert_msg(parse(&c, &e, CMD_SERVE, bad[i][0], bad[i][1], NULL) == E_INVAL, "%s",
                      bad[i][0]);
        ck_assert_msg(strstr(e.text, bad[i][2]) != NULL, "%s: %s", bad[i][0], e.text);
        config_done(&c);
    }
    struct config c;
    struct err e = {0};
    ck_assert_int_eq(config_parse(&c, CMD_SERVE, 0, NULL, &e), E_INVAL);
    ck_assert_ptr_nonnull(strstr(e.text, "--model"));
    config_done(&c);
    ck_assert_int_eq(parse(&c, &e, CMD_GENERATE, "--temperature", "2.5", NULL), E_INVAL);
    config_done(&c);
    ck_assert_int_eq(parse(&c, &e, CMD_GENERATE, "--chat=yes", NULL, NULL), E_INVAL);
    config_done(&c);
}
END_TEST

static int from_file(struct config *c, struct err *e, const char *text, const char *flag,
                     const char *value)
{
    char path[64];
    snprintf(path, sizeof path, "/tmp/specd-test-%d.json", (int)getpid());
    FILE *f = fopen(path, "w");
    ck_assert_ptr_nonnull(f);
    fputs(text, f);
    fclose(f);
    char *argv[] = {(char *)(uintptr_t) "--config", path, (char *)(uintptr_t)flag,
                    (char *)(uintptr_t)value};
    int r = config_parse(c, CMD_SERVE, flag ? 4 : 2, argv, e);
    unlink(path);
    return r;
}

START_TEST(file)
{
    struct config c;
    struct err e = {0};
    const char *good = "{\"model\":\"d\",\"port\":9,\"max_num_seqs\":5,\"api-key\":[\"a,b\",\"c\"],"
                       "\"served-model-name\":\"x,y\",\"overlap\":\"off\",\"host\":null}";
    ck_assert_int_eq(from_file(&c, &e, good, "--port", "10"), OK);
    ck_assert_int_eq(c.port, 10); /* the flag wins */
    ck_assert_int_eq(c.max_num_seqs, 5);
    ck_assert_uint_eq(c.api_key.n, 2);
    ck_assert_uint_eq(c.served_name.n, 2);
    ck_assert_str_eq(c.overlap, "off");
    ck_assert_str_eq(c.host, "127.0.0.1");
    config_done(&c);
    static const char *const bad[][2] = {
        {"{\"model\":\"d\",\"prot\":9}", "prot"},
        {"{\"model\":7}", "model"},
        {"{\"model\":\"d\",\"port\":\"9\"}", "port"},
        {"{\"model\":\"d\",\"port\":70000}", "port"},
        {"[]", "object"},
        {"{\"model\":\"d\",", "JSON"},
        {"{\"config\":\"x\"}", "config"},
        {"{\"port\":1}", "--model"},
        {"{\"model\":\"d\",\"api-key\":[1]}", "api-key"},
        {"{\"model\":\"d\",\"overlap\":\"x\"}", "overlap"},
        {"{\"model\":\"d\",\"port\":1,\"port\":2}", "JSON"},
    };
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        ck_assert_msg(from_file(&c, &e, bad[i][0], NULL, NULL) < 0, "%s", bad[i][0]);
        ck_assert_msg(strstr(e.text, bad[i][1]) != NULL, "%s: %s", bad[i][0], e.text);
        config_done(&c);
    }
    char *argv[] = {(char *)(uintptr_t) "--config", (char *)(uintptr_t) "/nonexistent.json"};
    ck_assert_int_lt(config_parse(&c, CMD_SERVE, 2, argv, &e), 0);
    config_done(&c);
}
END_TEST

/* The shipped examples must stay loadable. */
START_TEST(shipped)
{
    struct config c;
    struct err e = {0};
    char *argv[] = {(char *)(uintptr_t) "--config",
                    (char *)(uintptr_t) "configs/server-example.json"};
    ck_assert_msg(config_parse(&c, CMD_SERVE, 2, argv, &e) == OK, "%s", e.text);
    ck_assert_ptr_nonnull(c.model);
    config_done(&c);
}
END_TEST

START_TEST(help)
{
    struct buf b = {0}, m = {0};
    config_help(&b, CMD_SERVE);
    config_markdown(&m, CMD_SERVE);
    static const char *const names[] = {"model",           "port",           "api-key",
                                        "max-num-seqs",    "drain-timeout",  "overlap",
                                        "kv-cache-tokens", "kv-cache-dtype", "sse-ping-interval"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        char want[64];
        snprintf(want, sizeof want, "--%s ", names[i]);
        ck_assert_msg(strstr(buf_cstr(&b), want) != NULL, "%s", want);
        snprintf(want, sizeof want, "| `--%s` |", names[i]);
        ck_assert_msg(strstr(buf_cstr(&m), want) != NULL, "%s", want);
    }
    ck_assert_ptr_null(strstr(buf_cstr(&b), "--prompt "));
    buf_done(&b);
    buf_done(&m);
    struct config c;
    struct err e = {0};
    ck_assert_int_eq(parse(&c, &e, CMD_SERVE, "--help", NULL, NULL), OK);
    ck_assert(c.help);
    config_done(&c);
}
END_TEST

/* The README's table is what the program prints. */
START_TEST(readme)
{
    struct buf m = {0};
    char *text;
    size_t n;
    struct err e = {0};
    ck_assert_msg(file_read(&text, &n, "README.md", 1 << 20, &e) == OK, "%s", e.text);
    config_markdown(&m, CMD_SERVE);
    ck_assert_msg(strstr(text, buf_cstr(&m)) != NULL,
                  "README.md: put the output of `specd help-markdown` between the flags marks");
    mem_free(text);
    buf_done(&m);
}
END_TEST

Suite *suite_config(void)
{
    Suite *s = suite_create("config");
    TCase *t = tcase_create("config");
    tcase_add_test(t, defaults);
    tcase_add_test(t, speculation);
    tcase_add_test(t, spellings);
    tcase_add_test(t, refusals);
    tcase_add_test(t, file);
    tcase_add_test(t, shipped);
    tcase_add_test(t, help);
    tcase_add_test(t, readme);
    suite_add_tcase(s, t);
    return s;
}
