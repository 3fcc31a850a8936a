/* /tokenize and /detokenize: parsed on the loop or the pool like completions, answered at once. The
 * key of the body ("prompt", "messages" or "content") chooses the dialect of the answer. */
#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "engine/engine.h"
#include "server/jsonw.h"
#include "server/prompt.h"
#include "server/routes.h"
#include "server/server.h"

#define INLINE_BYTES 1024

struct text_job {
    struct hreq *r;
    struct api_req q;
    struct api_err err;
    bool failed, reverse;
    struct buf out;
};

static void put_piece(struct buf *b, const char *s, size_t n)
{
    if (utf8_valid(s, n)) {
        jw_str(b, s, n);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        buf_char(b, i ? ',' : '[');
        jw_int(b, (unsigned char)s[i]);
    }
    buf_char(b, ']');
}

static void put_tokens(struct buf *b, const struct engine *g, const struct api_req *q)
{
    const struct api_prompt *p = &q->prompt[0];
    buf_str(b, "\"tokens\":[");
    for (size_t i = 0; i < p->n_ids; i++) {
        if (i)
            buf_char(b, ',');
        if (!q->llama || !q->with_pieces) {
            jw_int(b, p->ids[i]);
            continue;
        }
        size_t n;
        const char *s = engine_token_bytes(g, p->ids[i], &n);
        buf_fmt(b, "{\"id\":%d,\"piece\":", p->ids[i]);
        put_piece(b, s, n);
        buf_char(b, '}');
    }
    buf_char(b, ']');
}

static void tokenize_answer(struct text_job *j)
{
    const struct engine *g = j->r->srv->engine;
    const struct api_prompt *p = &j->q.prompt[0];
    struct buf *b = &j->out;
    buf_char(b, '{');
    if (!j->q.llama)
        buf_fmt(b, "\"count\":%zu,\"max_model_len\":%d,", p->n_ids, j->r->srv->env.ctx);
    put_tokens(b, g, &j->q);
    if (!j->q.llama && j->q.with_strs) {
        buf_str(b, ",\"token_strs\":[");
        for (size_t i = 0; i < p->n_ids; i++) {
            const char *s = engine_token_piece(g, p->ids[i]);
            if (i)
                buf_char(b, ',');
            jw_str(b, s, strlen(s));
        }
        buf_char(b, ']');
    } else if (!j->q.llama) {
        buf_str(b, ",\"token_strs\":null");
    }
    buf_char(b, '}');
}

/* Bytes that are no UTF-8 become U+FFFD, one per maximal part. */
static void detokenize_answer(struct text_job *j)
{
    struct buf raw = {0}, text = {0};
    engine_decode(j->r->srv->engine, j->q.prompt[0].ids, j->q.prompt[0].n_ids, j->q.p.skip_special,
                  &raw);
    for (size_t i = 0; i < raw.len;) {
        uint32_t cp;
        int k = utf8_decode(raw.p + i, raw.len - i, &cp);
        if (k > 0)
            buf_push(&text, raw.p + i, (size_t)k);
        else
            buf_str(&text, "\xef\xbf\xbd");
        i += k > 0 ? (size_t)k : k < 0 ? (size_t)-k : raw.len - i;
    }
    buf_str(&j->out, "{\"prompt\":");
    jw_str(&j->out, buf_cstr(&text), text.len);
    buf_char(&j->out, '}');
    buf_done(&raw);
    buf_done(&text);
}

static void job_run(void *ud)
{
    struct text_job *j = ud;
    const struct server *s = j->r->srv;
    struct buf *body = &j->r->body;
    j->failed = true;
    if (j->reverse) {
        if (api_parse_detokenize(&j->q, body->p, body->len, &s->env, &j->err) < 0)
            return;
        if (!engine_info(s->engine)->has_text) {
            api_fail(&j->err, 400, NULL, "tokens", "This model has no tokenizer");
            return;
        }
        detokenize_answer(j);
    } else {
        if (api_parse(&j->q, API_TOKENIZE, body->p, body->len, &s->env, &j->err) < 0 ||
            api_encode(&j->q, s->engine, s->tmpl, &s->env, &j->err) < 0)
            return;
        tokenize_answer(j);
    }
    j->failed = false;
}

static void job_done(void *ud)
{
    struct text_job *j = ud;
    struct hreq *r = j->r;
    if (j->failed && !r->gone)
        http_reply_err(r, &j->err);
    else if (!r->gone)
        http_reply(r, 200, "application/json", &j->out);
    api_req_done(&j->q);
    buf_done(&j->out);
    mem_free(j);
    hreq_unref(r);
}

static void start(struct hreq *r, bool reverse)
{
    struct text_job *j = MEM_NEW(struct text_job);
    j->r = r;
    j->reverse = reverse;
    hreq_ref(r);
    if (r->body.len > INLINE_BYTES) {
        server_work(r->srv, job_run, job_done, j);
        return;
    }
    job_run(j);
    job_done(j);
}

void text_tokenize(struct hreq *r)
{
    start(r, false);
}

void text_detokenize(struct hreq *r)
{
    start(r, true);
}
