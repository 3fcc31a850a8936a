/* Goal: how much KV memory a start takes, every row of it without a device: what was asked for is
 * honoured or refused with what is needed and what fits; what was not asked for is what fits, never
 * more than every sequence at full length. */
#include <check.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/kv/fit.h"

#define GIB ((int64_t)1 << 30)
#define KIB128 ((int64_t)128 << 10) /* a token of an 8 B model in bf16 */

/* clang-format off */
static const struct row {
    const char *what;
    struct kv_ask a;
    int ret;
    int64_t tokens;
    int len;
    const char *word[3];
} rows[] = {
    /* the host's memory: 4 GiB unless asked */
    {"host, all fits",      {.token = 1024, .reqs = 4, .len = 256, .page = 16}, OK, 1024, 256, {0}},
    {"host, 4 GiB",         {.token = 2 * KIB128, .reqs = 64, .len = 131072, .page = 16}, OK, 16384, 16384, {0}},
    {"host, drafter too",   {.token = 2 * KIB128 + 8192, .reqs = 64, .len = 131072, .page = 16}, OK, 15872, 15872, {0}},
    {"host, two ranks",     {.token = KIB128, .reqs = 64, .len = 131072, .page = 16, .world = 2}, OK, 16384, 16384, {0}},
    {"host, length asked",  {.token = 2 * KIB128, .reqs = 64, .len = 131072, .len_asked = true, .page = 16}, OK, 16384, 16384, {0}},
    {"host, more asked",    {.token = 2 * KIB128, .asked = 1000000, .reqs = 64, .len = 131072, .page = 16}, OK, 1000000, 131072, {0}},
    {"asked, less than one", {.token = 1, .asked = 100, .reqs = 4, .len = 256, .page = 16}, OK, 100, 100, {0}},
    {"one token",           {.token = 1, .asked = 1, .reqs = 4, .len = 256, .page = 16}, E_INVAL, 0, 0, {"at least 2"}},
    {"too many to number",  {.token = 1, .asked = 1ll << 31, .reqs = 4, .len = 256, .page = 16}, E_INVAL, 0, 0, {"at most"}},
    /* a device of 140 GiB, 0.9 of it, 18 GiB of weights and workspaces: 108 GiB */
    {"gpu, what fits",      {.free = 140 * GIB, .share = 0.9, .fixed = 18 * GIB, .token = KIB128, .reqs = 64, .len = 131072, .page = 16}, OK, 884736, 131072, {0}},
    {"gpu, all fits",       {.free = 140 * GIB, .share = 0.9, .fixed = 18 * GIB, .token = KIB128, .reqs = 64, .len = 4096, .page = 16}, OK, 262144, 4096, {0}},
    {"gpu, as asked",       {.free = 140 * GIB, .share = 0.9, .fixed = 18 * GIB, .token = KIB128, .asked = 884736, .reqs = 64, .len = 4096, .page = 16}, OK, 884736, 4096, {0}},
    {"gpu, asked too much", {.free = 140 * GIB, .share = 0.9, .fixed = 18 * GIB, .token = KIB128, .asked = 884737, .reqs = 64, .len = 4096, .page = 16}, E_NOMEM, 0, 0,
                            {"kv_cache_tokens 884737 needs 108.00 GiB, 108.00 GiB", "kv_cache_tokens 884736 fits", "max_model_len 4096 x max_num_seqs 64"}},
    {"gpu, few sequences",  {.free = 140 * GIB, .share = 0.9, .fixed = 18 * GIB, .token = KIB128, .asked = 2000000, .reqs = 64, .len = 131072, .page = 16}, E_NOMEM, 0, 0,
                            {"kv_cache_tokens 884736 fits", "max_model_len 131072 x max_num_seqs 6"}},
    {"gpu, not one",        {.free = 24 * GIB, .share = 1, .fixed = 16 * GIB, .token = KIB128, .asked = 100000, .reqs = 64, .len = 131072, .page = 16}, E_NOMEM, 0, 0,
                            {"kv_cache_tokens 65536 fits", "max_model_len 65536 for one sequence"}},
    {"gpu, length lowered", {.free = 24 * GIB, .share = 1, .fixed = 16 * GIB, .token = KIB128, .reqs = 64, .len = 131072, .page = 16}, OK, 65536, 65536, {0}},
    {"gpu, length asked",   {.free = 24 * GIB, .share = 1, .fixed = 16 * GIB, .token = KIB128, .reqs = 64, .len = 131072, .len_asked = true, .page = 16}, E_NOMEM, 0, 0,
                            {"max_model_len 131072 needs 16.00 GiB", "8.00 GiB", "max_model_len 65536 fits"}},
    {"gpu, weights alone",  {.free = 16 * GIB, .share = 0.9, .fixed = 18 * GIB, .token = KIB128, .reqs = 64, .len = 4096, .page = 16}, E_NOMEM, 0, 0,
                            {"18.00 GiB without any KV", "14.40 GiB of the 16.00 GiB", "gpu_memory_utilization 0.9)"}},
    {"gpu, asked as well",  {.free = 16 * GIB, .share = 0.9, .fixed = 18 * GIB, .token = KIB128, .asked = 64, .reqs = 64, .len = 4096, .page = 16}, E_NOMEM, 0, 0,
                            {"18.00 GiB without any KV"}},
    {"gpu, not a page",     {.free = 18 * GIB + 1000000, .share = 1, .fixed = 18 * GIB, .token = KIB128, .reqs = 1, .len = 4096, .page = 16}, E_NOMEM, 0, 0,
                            {"too little device memory"}},
    {"gpu, tiny model",     {.free = 140 * GIB, .share = 1, .fixed = 1, .token = 2, .reqs = 1024, .len = 16777216, .page = 64}, OK, (INT32_MAX - 64) / 64 * 64, 16777216, {0}},
};
/* clang-format on */

START_TEST(table)
{
    const struct row *r = &rows[_i];
    struct err e = {0};
    int64_t tokens = -1;
    int len = -1;
    int ret = kv_fit(&tokens, &len, &r->a, &e);
    ck_assert_msg(ret == r->ret, "%s: %d, %s", r->what, ret, e.text);
    for (size_t i = 0; i < ARRAY_LEN(r->word) && r->word[i]; i++)
        ck_assert_msg(strstr(e.text, r->word[i]) != NULL, "%s: '%s' is not in: %s", r->what,
                      r->word[i], e.text);
    if (ret < 0)
        return;
    ck_assert_msg(tokens == r->tokens && len == r->len, "%s: %lld tokens, length %d", r->what,
                  (long long)tokens, len);
    int64_t pages = (tokens + r->a.page - 1) / r->a.page * r->a.page;
    ck_assert(!r->a.free || r->a.fixed + pages * r->a.token <= kv_budget(&r->a));
}
END_TEST

Suite *suite_kv_fit(void)
{
    Suite *s = suite_create("kv_fit");
    TCase *t = tcase_create("kv_fit");
    tcase_add_loop_test(t, table, 0, (int)ARRAY_LEN(rows));
    suite_add_tcase(s, t);
    return s;
}
