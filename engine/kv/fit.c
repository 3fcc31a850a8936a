/* The KV capacity of a start; see the header. Any thread. */
#include "engine/kv/fit.h"

#include <stdio.h>

static double gib(int64_t bytes)
{
    return (double)bytes / (1 << 30);
}

int64_t kv_budget(const struct kv_ask *a)
{
    return a->free ? (int64_t)((double)a->free * a->share) : INT64_MAX;
}

/* "L tokens x K sequences" of so many tokens: as many sequences as were wanted, or the length. */
static const char *fitting(char *buf, size_t cap, const struct kv_ask *a, int64_t tokens)
{
    int64_t seqs = tokens / a->len;
    if (seqs >= 1)
        snprintf(buf, cap, "max_model_len %d x max_num_seqs %lld", a->len,
                 (long long)(seqs < a->reqs ? seqs : a->reqs));
    else
        snprintf(buf, cap, "max_model_len %lld for one sequence", (long long)tokens);
    return buf;
}

static int too_little(const struct kv_ask *a, int64_t fit, struct err *e)
{
    char text[96];
    int64_t left = kv_budget(a) - a->fixed;
    if (fit < a->page)
        return FAIL(e, E_NOMEM,
                    "too little device memory: %.2f GiB without any KV, and %.2f GiB of the %.2f "
                    "GiB that are free may be used (gpu_memory_utilization %.3g)",
                    gib(a->fixed), gib(kv_budget(a)), gib(a->free), a->share);
    if (a->asked)
        return FAIL(e, E_NOMEM,
                    "kv_cache_tokens %lld needs %.2f GiB, %.2f GiB of device memory are left for "
                    "KV: kv_cache_tokens %lld fits (%s)",
                    (long long)a->asked, gib(a->asked * a->token), gib(left), (long long)fit,
                    fitting(text, sizeof text, a, fit));
    return FAIL(e, E_NOMEM,
                "max_model_len %d needs %.2f GiB of KV for one sequence, %.2f GiB of device memory "
                "are left for KV: max_model_len %lld fits",
                a->len, gib(a->len * a->token), gib(left), (long long)fit);
}

/* Most whole pages of tokens that the memory holds. */
static int64_t room(const struct kv_ask *a)
{
    int64_t bytes = a->free ? kv_budget(a) - a->fixed
                            : ((int64_t)KV_ROOM_HOST_GIB << 30) / (a->world > 1 ? a->world : 1);
    return bytes > 0 ? bytes / a->token / a->page * a->page : 0;
}

int kv_fit(int64_t *tokens, int *len, const struct kv_ask *a, struct err *e)
{
    int64_t all = (int64_t)a->reqs * a->len, fit = room(a), n = a->asked;
    if (n < 0 || n == 1 || n > INT32_MAX)
        return FAIL(e, E_INVAL, "kv_cache_tokens is %lld; at least 2, at most %d", (long long)n,
                    INT32_MAX);
    if (n && a->free && (n + a->page - 1) / a->page * a->page > fit)
        return too_little(a, fit, e);
    if (!n) {
        n = all < fit ? all : fit;
        n = n < INT32_MAX - a->page ? n : (INT32_MAX - a->page) / a->page * a->page;
        if (n < 2 || (a->free && (fit < a->page || (a->len_asked && n < a->len))))
            return too_little(a, fit, e);
    }
    *tokens = n;
    *len = n < a->len ? (int)n : a->len;
    return OK;
}
