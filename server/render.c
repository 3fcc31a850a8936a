/* Writers of response JSON; pure. A chunk is the stream's constant head, an index, and what
 * changed: nothing per token is formatted twice. */
#include "server/render.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/utf8.h"
#include "server/jsonw.h"

#define LIT(b, s) buf_push((b), "" s, sizeof(s) - 1)

static void put_common(struct buf *out, const struct render *r, const char *object)
{
    LIT(out, "{\"id\":");
    jw_str(out, r->id, strlen(r->id));
    buf_fmt(out, ",\"object\":\"%s\",\"created\":%lld,\"model\":", object, (long long)r->created);
    jw_str(out, r->model, strlen(r->model));
    LIT(out, ",\"system_fingerprint\":");
    jw_str(out, r->fingerprint, strlen(r->fingerprint));
    if (r->chat)
        LIT(out, ",\"service_tier\":null");
}

void render_init(struct render *r, bool stream)
{
    buf_init(&r->head, 0);
    if (!stream)
        return;
    LIT(&r->head, "data: ");
    put_common(&r->head, r, r->chat ? "chat.completion.chunk" : "text_completion");
    LIT(&r->head, ",\"choices\":[{\"index\":");
}

void render_done(struct render *r)
{
    buf_done(&r->head);
}

/* ---- log probabilities ---- */

void token_put(struct buf *out, const struct render *r, int32_t id)
{
    static const char hex[] = "0123456789abcdef";
    if (r->tokens_as_ids) {
        buf_fmt(out, "\"token_id:%d\"", id);
        return;
    }
    size_t n;
    const char *s = r->token_bytes(r->engine, id, &n);
    if (utf8_valid(s, n)) {
        jw_str(out, s, n);
        return;
    }
    LIT(out, "\"bytes:");
    for (size_t i = 0; i < n; i++) {
        char x[5] = {'\\', '\\', 'x', hex[(unsigned char)s[i] >> 4], hex[s[i] & 15]};
        buf_push(out, x, 5);
    }
    buf_char(out, '"');
}

static void put_bytes(struct buf *out, const struct render *r, int32_t id)
{
    size_t n;
    const char *s = r->token_bytes(r->engine, id, &n);
    buf_char(out, '[');
    for (size_t i = 0; i < n; i++) {
        if (i)
            buf_char(out, ',');
        jw_int(out, (unsigned char)s[i]);
    }
    buf_char(out, ']');
}

static void put_chat_entry(struct buf *out, const struct render *r, int32_t id, float logprob)
{
    LIT(out, "{\"token\":");
    token_put(out, r, id);
    LIT(out, ",\"logprob\":");
    jw_num(out, (double)logprob);
    LIT(out, ",\"bytes\":");
    put_bytes(out, r, id);
}

static bool same_text(const struct render *r, int32_t a, int32_t b)
{
    size_t n, m;
    if (r->tokens_as_ids)
        return a == b;
    const char *s = r->token_bytes(r->engine, a, &n), *t = r->token_bytes(r->engine, b, &m);
    return n == m && !memcmp(s, t, n);
}

/* {"text":logprob,…} with the sampled token in it; a text that is there already goes by its id. */
static void put_top_map(struct buf *out, const struct render *r, const struct gen_tok *t)
{
    bool has = false;
    buf_char(out, '{');
    for (int i = 0; i < t->n_top; i++) {
        bool twice = false;
        for (int j = 0; j < i; j++)
            twice |= same_text(r, t->top_id[i], t->top_id[j]);
        if (i)
            buf_char(out, ',');
        if (twice)
            buf_fmt(out, "\"token_id:%d\"", t->top_id[i]);
        else
            token_put(out, r, t->top_id[i]);
        buf_char(out, ':');
        has |= t->top_id[i] == t->id;
        jw_num(out, (double)(t->top_id[i] == t->id ? t->logprob : t->top_logprob[i]));
    }
    if (!has) {
        bool twice = false;
        for (int j = 0; j < t->n_top; j++)
            twice |= same_text(r, t->id, t->top_id[j]);
        if (t->n_top)
            buf_char(out, ',');
        if (twice)
            buf_fmt(out, "\"token_id:%d\"", t->id);
        else
            token_put(out, r, t->id);
        buf_char(out, ':');
        jw_num(out, (double)t->logprob);
    }
    buf_char(out, '}');
}

void lp_done(struct lp_acc *a)
{
    buf_done(&a->token);
    buf_done(&a->value);
    buf_done(&a->top);
    buf_done(&a->offset);
}

static void push_chat(struct lp_acc *a, const struct render *r, const struct gen_tok *t)
{
    put_chat_entry(&a->token, r, t->id, t->logprob);
    LIT(&a->token, ",\"top_logprobs\":[");
    for (int i = 0; i < t->n_top; i++) {
        if (i)
            buf_char(&a->token, ',');
        put_chat_entry(&a->token, r, t->top_id[i], t->top_logprob[i]);
        buf_char(&a->token, '}');
    }
    LIT(&a->token, "]}");
}

void lp_push(struct lp_acc *a, const struct render *r, const struct gen_tok *t,
             bool first_of_prompt, bool hidden)
{
    if (a->token.len)
        buf_char(&a->token, ',');
    if (r->chat) {
        push_chat(a, r, t);
        return;
    }
    if (a->value.len) {
        buf_char(&a->value, ',');
        buf_char(&a->top, ',');
        buf_char(&a->offset, ',');
    }
    token_put(&a->token, r, t->id);
    jw_int(&a->offset, a->n_chars);
    if (first_of_prompt) {
        LIT(&a->value, "null");
        LIT(&a->top, "null");
    } else {
        jw_num(&a->value, (double)t->logprob);
        put_top_map(&a->top, r, t);
    }
    if (hidden)
        return;
    size_t n;
    const char *s = r->token_bytes(r->engine, t->id, &n);
    for (size_t i = 0; i < n; i++) { /* a character counts where it begins */
        unsigned char c = (unsigned char)s[i];
        bool inside = (c & 0xc0) == 0x80 && a->n_tail > 0;
        a->n_chars += !inside; /* a stray byte becomes a U+FFFD of its own */
        if (inside)
            a->n_tail--;
        else
            a->n_tail = c >= 0xf0 ? 3 : c >= 0xe0 ? 2 : c >= 0xc0 ? 1 : 0;
    }
}

void lp_put(struct buf *out, struct lp_acc *a, bool chat)
{
    if (!a->token.len) {
        LIT(out, "null");
        return;
    }
    if (chat) {
        LIT(out, "{\"content\":[");
        buf_push(out, a->token.p, a->token.len);
        LIT(out, "],\"refusal\":null}");
    } else {
        LIT(out, "{\"tokens\":[");
        buf_push(out, a->token.p, a->token.len);
        LIT(out, "],\"token_logprobs\":[");
        buf_push(out, a->value.p, a->value.len);
        LIT(out, "],\"top_logprobs\":[");
        buf_push(out, a->top.p, a->top.len);
        LIT(out, "],\"text_offset\":[");
        buf_push(out, a->offset.p, a->offset.len);
        LIT(out, "]}");
    }
    buf_reset(&a->token);
    buf_reset(&a->value);
    buf_reset(&a->top);
    buf_reset(&a->offset);
}

/* ---- usage and endings ---- */

static void put_speculation(struct buf *out, const struct usage *u)
{
    LIT(out, ",\"speculation\":{\"verifies\":");
    jw_int(out, u->verifies);
    LIT(out, ",\"drafted\":");
    jw_int(out, u->drafted);
    LIT(out, ",\"accepted\":");
    jw_int(out, u->accepted);
    LIT(out, ",\"mean_accepted_length\":");
    if (u->verifies)
        jw_num(out, 1 + (double)u->accepted / (double)u->verifies);
    else
        LIT(out, "null");
    buf_char(out, '}');
}

void usage_put(struct buf *out, const struct usage *u)
{
    LIT(out, "{\"prompt_tokens\":");
    jw_int(out, u->prompt);
    LIT(out, ",\"completion_tokens\":");
    jw_int(out, u->completion);
    LIT(out, ",\"total_tokens\":");
    jw_int(out, u->prompt + u->completion);
    LIT(out, ",\"prompt_tokens_details\":{\"cached_tokens\":");
    jw_int(out, u->cached);
    LIT(out, "},\"completion_tokens_details\":{\"reasoning_tokens\":0}");
    if (u->spec)
        put_speculation(out, u);
    buf_char(out, '}');
}

void ending_put(struct buf *out, const struct ending *e)
{
    if (!e) {
        LIT(out, ",\"finish_reason\":null");
        return;
    }
    buf_fmt(out, ",\"finish_reason\":\"%s\",\"stop_reason\":",
            e->finish == FINISH_LENGTH ? "length" : "stop");
    if (e->stop_string)
        jw_str(out, e->stop_string, strlen(e->stop_string));
    else if (e->stop_id >= 0)
        jw_int(out, e->stop_id);
    else
        LIT(out, "null");
}

/* ---- chunks ---- */

static void chunk_open(struct buf *out, const struct render *r, int index)
{
    buf_push(out, r->head.p, r->head.len);
    jw_int(out, index);
}

static void put_ids(struct buf *out, const struct chunk *c)
{
    if (!c->ids)
        return;
    LIT(out, ",\"token_ids\":[");
    buf_push(out, c->ids, c->n_ids);
    buf_char(out, ']');
    if (!c->prompt_ids)
        return;
    LIT(out, ",\"prompt_token_ids\":[");
    buf_push(out, c->prompt_ids, c->n_prompt_ids);
    buf_char(out, ']');
}

static void chunk_close(struct buf *out, const struct render *r, const struct chunk *c,
                        const struct ending *e)
{
    LIT(out, ",\"logprobs\":");
    if (c->lp)
        lp_put(out, c->lp, r->chat);
    else
        LIT(out, "null");
    ending_put(out, e);
    put_ids(out, c);
    LIT(out, "}]");
    if (c->usage) {
        LIT(out, ",\"usage\":");
        usage_put(out, c->usage);
    } else if (r->usage_null) {
        LIT(out, ",\"usage\":null");
    }
    LIT(out, "}\n\n");
}

static void chat_chunk(struct buf *out, const struct render *r, const struct chunk *c)
{
    struct chunk bare = {.usage = c->usage};
    if (c->role) {
        chunk_open(out, r, c->index);
        LIT(out, ",\"delta\":{\"role\":\"assistant\",\"content\":\"\"}");
        chunk_close(out, r, &bare, NULL);
    }
    bool merged = c->ending && c->usage; /* every chunk's usage must grow: no empty last one */
    bool left = c->lp && c->lp->token.len;
    if (c->n_text) {
        chunk_open(out, r, c->index);
        LIT(out, ",\"delta\":{\"content\":\"");
        jw_escape(out, c->text, c->n_text);
        LIT(out, "\"}");
        chunk_close(out, r, c, merged ? c->ending : NULL);
        if (merged)
            return;
        left = false;
        bare = (struct chunk){.usage = c->usage};
    }
    if (!c->ending)
        return;
    chunk_open(out, r, c->index);
    LIT(out, ",\"delta\":{}");
    chunk_close(out, r, left || !c->n_text ? c : &bare, c->ending);
}

void chunk_put(struct buf *out, const struct render *r, const struct chunk *c)
{
    if (r->chat) {
        chat_chunk(out, r, c);
        return;
    }
    chunk_open(out, r, c->index);
    LIT(out, ",\"text\":\"");
    jw_escape(out, c->text, c->n_text);
    buf_char(out, '"');
    chunk_close(out, r, c, c->ending);
}

void chunk_usage(struct buf *out, const struct render *r, const struct usage *u)
{
    buf_push(out, r->head.p, r->head.len - (sizeof("{\"index\":") - 1));
    LIT(out, "],\"usage\":");
    usage_put(out, u);
    LIT(out, "}\n\n");
}

/* ---- whole answers ---- */

void answer_open(struct buf *out, const struct render *r)
{
    put_common(out, r, r->chat ? "chat.completion" : "text_completion");
    LIT(out, ",\"choices\":[");
}

void answer_choice(struct buf *out, const struct render *r, const struct chunk *c)
{
    if (c->index)
        buf_char(out, ',');
    LIT(out, "{\"index\":");
    jw_int(out, c->index);
    if (r->chat)
        LIT(out, ",\"message\":{\"role\":\"assistant\",\"content\":\"");
    else
        LIT(out, ",\"text\":\"");
    jw_escape(out, c->text, c->n_text);
    if (r->chat)
        LIT(out, "\",\"refusal\":null}");
    else
        buf_char(out, '"');
    LIT(out, ",\"logprobs\":");
    if (c->lp)
        lp_put(out, c->lp, r->chat);
    else
        LIT(out, "null");
    ending_put(out, c->ending);
    put_ids(out, c);
    buf_char(out, '}');
}

void answer_close(struct buf *out, const struct usage *u)
{
    LIT(out, "],\"usage\":");
    usage_put(out, u);
    buf_char(out, '}');
}
