/* Goal: what fuzzing once found stays fixed, and every fuzz target still builds and runs.
 * Method: each file of test/fuzz/corpus/NAME and test/fuzz/regress/NAME goes once through the
 * target fuzz_NAME, under the sanitizers where they are on. Targets come from a generated list of
 * the files test/fuzz/fuzz_*.c; those that must exist are named here, so that none can get lost.
 * Paths are relative to the root of the repository. */
#include <check.h>
#include <dirent.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"

#define FUZZ(name) int name(const uint8_t *data, size_t size);
#include "fuzz.inc"
#undef FUZZ

struct target {
    const char *name; /* fuzz_NAME */
    int (*run)(const uint8_t *data, size_t size);
};
static const struct target targets[] = {
#define FUZZ(name) {#name, name},
#include "fuzz.inc"
#undef FUZZ
    {NULL, NULL},
};
static const int n_targets = (int)(sizeof targets / sizeof targets[0]) - 1;

static const char *const required[] = {"fuzz_config", "fuzz_json",     "fuzz_safetensors",
                                       "fuzz_sched",  "fuzz_template", "fuzz_tokenizer",
                                       NULL};

/* The whole file. */
static uint8_t *read_all(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    ck_assert_msg(f != NULL, "cannot open %s", path);
    uint8_t *p = NULL;
    size_t cap = 0;
    *n = 0;
    for (;;) {
        MEM_GROW(p, cap, *n + 65536);
        size_t k = fread(p + *n, 1, 65536, f);
        *n += k;
        if (k < 65536)
            break;
    }
    fclose(f);
    return p;
}

static int replay_dir(const struct target *t, const char *kind)
{
    char dir[256], path[600];
    snprintf(dir, sizeof dir, "test/fuzz/%s/%s", kind, t->name + strlen("fuzz_"));
    struct dirent **list = NULL;
    int n = scandir(dir, &list, NULL, alphasort), ran = 0;
    for (int i = 0; i < n; i++) {
        if (list[i]->d_name[0] != '.') {
            snprintf(path, sizeof path, "%s/%s", dir, list[i]->d_name);
            if (getenv("V")) /* V=1 make test T=fuzz_replay names the file before a crash */
                fprintf(stderr, "%s\n", path);
            size_t len;
            uint8_t *all = read_all(path, &len);
            /* an exact copy: one byte too far is then outside the allocation */
            uint8_t *data = mem_dup(all, len ? len : 1);
            mem_free(all);
            ck_assert_msg(t->run(data, len) == 0, "%s refused %s", t->name, path);
            mem_free(data);
            ran++;
        }
        free(list[i]);
    }
    free(list);
    return ran;
}

START_TEST(replay)
{
    const struct target *t = &targets[_i];
    int n = replay_dir(t, "corpus");
    ck_assert_msg(n > 0, "%s has no inputs in test/fuzz/corpus", t->name);
    replay_dir(t, "regress");
}
END_TEST

START_TEST(all_there)
{
    for (int i = 0; required[i]; i++) {
        bool found = false;
        for (int k = 0; k < n_targets; k++)
            found |= !strcmp(required[i], targets[k].name);
        ck_assert_msg(found, "no file test/fuzz/%s.c", required[i]);
    }
}
END_TEST

Suite *suite_fuzz_replay(void)
{
    Suite *s = suite_create("fuzz_replay");
    TCase *c = tcase_create("targets");
    tcase_set_timeout(c, 120);
    tcase_add_test(c, all_there);
    tcase_add_loop_test(c, replay, 0, n_targets);
    suite_add_tcase(s, c);
    return s;
}
