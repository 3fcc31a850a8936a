/* Feeds request bodies of all endpoints to the parser. Checks that a refusal has a status and a
 * text that prints as JSON, and that what is accepted keeps the bounds that the engine relies on.
 */
#include <stdint.h>

#include "engine/base/check.h"
#include "server/request.h"

int fuzz_json(const uint8_t *data, size_t size);

static void check_accepted(const struct api_req *q, const struct api_env *env)
{
    const struct gen_params *p = &q->p;
    CHECK(p->temperature >= 0 && p->temperature <= 2 && p->top_p > 0 && p->top_p <= 1);
    CHECK(p->n_bias <= LIM_BIAS && p->n_stop_ids <= LIM_STOP_IDS - 8);
    CHECK(p->n_logprobs >= -1 && p->n_logprobs <= LIM_LOGPROBS);
    CHECK(q->n_stop <= LIM_STOP_STRINGS && q->n >= 1 && q->n <= env->max_n);
    for (int i = 0; i < p->n_bias; i++)
        CHECK(p->bias_id[i] >= 0 && p->bias_id[i] < env->vocab);
    for (int i = 0; i < p->n_stop_ids; i++)
        CHECK(p->stop_ids[i] >= 0 && p->stop_ids[i] < env->vocab);
    for (size_t i = 0; i < q->n_prompt; i++)
        for (size_t k = 0; k < q->prompt[i].n_ids; k++)
            CHECK(q->prompt[i].ids[k] >= 0 && q->prompt[i].ids[k] < env->vocab);
    CHECK(q->p.spec_max >= 0 && q->p.spec_max <= env->defaults.spec_max);
    CHECK((int64_t)q->n_prompt * q->n <= env->max_seqs || q->kind == API_TOKENIZE);
}

/* The first byte picks the endpoint, the rest is the body. */
int fuzz_json(const uint8_t *data, size_t size)
{
    static char name[] = "demo";
    static char *names[] = {name};
    static const struct api_env env = {
        .names = names,
        .n_names = 1,
        .vocab = 1000,
        .ctx = 128,
        .max_seqs = 64,
        .max_n = 16,
        .token_bytes_max = 16,
        .kv_tokens = 4096,
        .defaults =
            {.temperature = 1, .top_p = 1, .repetition = 1, .spec_mode = SPEC_MODEL, .spec_max = 7},
        .has_template = true,
        .spec_name = "mtp",
        .spec_ngram = true,
        .spec_model = true,
    };
    if (!size)
        return 0;
    struct api_req q;
    struct api_err e;
    const char *body = (const char *)data + 1;
    int r = data[0] % 4 == 3
                ? api_parse_detokenize(&q, body, size - 1, &env, &e)
                : api_parse(&q, (enum api_kind)(data[0] % 4), body, size - 1, &env, &e);
    if (r < 0) {
        struct buf b = {0};
        json_t *v = NULL;
        CHECK(e.status >= 400 && e.status < 500 && e.text[0]);
        api_err_json(&b, &e);
        CHECK(js_parse(&v, b.p, b.len, "error", NULL) == OK);
        json_decref(v);
        buf_done(&b);
    } else if (data[0] % 4 != 3) {
        check_accepted(&q, &env);
    }
    api_req_done(&q);
    return 0;
}
