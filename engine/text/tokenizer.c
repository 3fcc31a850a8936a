/* Opening, closing and looking up. Loading runs on whoever opens; an open tokenizer is only read.
 * Encoding is in encode.c, decoding in detok.c. */
#include "engine/text/tokenizer.h"

#include <string.h>

#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/text/tok.h"

void ids_push(struct ids *l, int32_t id)
{
    MEM_GROW(l->v, l->cap, l->n + 1);
    l->v[l->n++] = id;
}

void ids_done(struct ids *l)
{
    mem_free(l->v);
    *l = (struct ids){0};
}

void tok_close(struct tokenizer *t)
{
    if (!t)
        return;
    tok_free_steps(t);
    added_done(&t->raw);
    added_done(&t->cooked);
    bpe_done(&t->bpe);
    strmap_done(&t->words);
    strmap_done(&t->added_words);
    strtab_done(&t->mem);
    mem_free(t->piece);
    mem_free(t->bytes);
    mem_free(t->special);
    mem_free(t);
}

/* A token of tokenizer_config.json: a string or an object with 'content'. */
static int config_token(const struct tokenizer *t, const json_t *o, const char *key, int32_t *out,
                        struct err *e)
{
    const json_t *v = js_get(o, key);
    if (json_is_object(v))
        v = js_get(v, "content");
    if (!v)
        return OK;
    if (!json_is_string(v))
        return FAIL(e, E_FORMAT, "'%s' must be a string or an object with 'content'", key);
    *out = tok_id(t, json_string_value(v));
    return OK;
}

/* BOS and EOS; where the file has no template of its own, the two add_ switches make one. */
static int load_config(struct tokenizer *t, const json_t *o, struct err *e)
{
    bool add_bos = false, add_eos = false;
    if (!json_is_object(o))
        return FAIL(e, E_FORMAT, "must be an object, not %s", js_type_name(o));
    TRY(config_token(t, o, "bos_token", &t->bos, e));
    TRY(config_token(t, o, "eos_token", &t->eos, e));
    TRY(js_get_bool(o, "add_bos_token", &add_bos, e));
    TRY(js_get_bool(o, "add_eos_token", &add_eos, e));
    if (t->has_template)
        return OK;
    if ((add_bos && t->bos < 0) || (add_eos && t->eos < 0))
        return FAIL(e, E_FORMAT, "add_%s_token without a known %s_token", add_bos ? "bos" : "eos",
                    add_bos ? "bos" : "eos");
    if (add_bos)
        ids_push(&t->head, t->bos);
    if (add_eos)
        ids_push(&t->tail, t->eos);
    return OK;
}

static int load_all(struct tokenizer *t, const json_t *root, struct scan *vocab,
                    struct scan *merges, const json_t *config, struct err *e)
{
    if (!json_is_object(root))
        return FAIL(e, E_FORMAT, "must be an object, not %s", js_type_name(root));
    TRY(tok_load_norm(t, root, e));
    TRY(tok_load_pre(t, root, e));
    TRY(tok_load_model(t, root, vocab, merges, e));
    TRY(tok_load_added(t, root, e));
    TRY(tok_load_post(t, root, e));
    TRY(tok_load_decoder(t, root, e));
    TRY(tok_fill_bytes(t, e));
    if (config && load_config(t, config, e) < 0)
        return err_prefix(e, "tokenizer_config.json");
    return OK;
}

/* `what` names the file in errors. */
static int build(struct tokenizer **out, const char *text, size_t len, const char *what,
                 const json_t *config, struct err *e)
{
    struct tokenizer *t = MEM_NEW(struct tokenizer);
    struct scan vocab, merges;
    struct buf rest = {0};
    json_t *root = NULL;
    int ret;
    t->bos = t->eos = -1;
    t->bpe.unk = -1;
    scan_split(text, len, &vocab, &merges, &rest);
    TRY_OUT(js_parse(&root, buf_cstr(&rest), rest.len, what, e));
    ret = load_all(t, root, &vocab, &merges, config, e);
    if (ret < 0) {
        err_prefix(e, "%s", what);
        goto out;
    }
    *out = t;
    t = NULL;
out:
    tok_close(t);
    json_decref(root);
    buf_done(&rest);
    return ret;
}

int tok_parse(struct tokenizer **out, const char *json, size_t len, const char *config,
              size_t config_len, struct err *e)
{
    json_t *conf = NULL;
    int ret;
    if (config)
        TRY_OUT(js_parse(&conf, config, config_len, "tokenizer_config.json", e));
    TRY_OUT(build(out, json, len, "tokenizer.json", conf, e));
out:
    json_decref(conf);
    return ret;
}

int tok_open(struct tokenizer **out, const char *dir, struct err *e)
{
    char *path = path_join(dir, "tokenizer.json");
    char *conf_path = path_join(dir, "tokenizer_config.json");
    struct file_map m = {0};
    json_t *conf = NULL;
    int ret;
    TRY_OUT(file_map_open(&m, path, e));
    if (file_exists(conf_path))
        TRY_OUT(js_load(&conf, conf_path, e));
    TRY_OUT(build(out, m.p, m.len, path, conf, e));
out:
    json_decref(conf);
    file_map_close(&m);
    mem_free(path);
    mem_free(conf_path);
    return ret;
}

int32_t tok_vocab_size(const struct tokenizer *t)
{
    return t->n_id;
}

int32_t tok_id(const struct tokenizer *t, const char *token)
{
    size_t n = strlen(token);
    int32_t id = strmap_get(&t->added_words, token, n);
    return id >= 0 ? id : strmap_get(&t->words, token, n);
}

int32_t tok_bos(const struct tokenizer *t)
{
    return t->bos;
}

int32_t tok_eos(const struct tokenizer *t)
{
    return t->eos;
}

bool tok_is_special(const struct tokenizer *t, int32_t id)
{
    return id >= 0 && id < t->n_id && t->special[id];
}

size_t tok_longest(const struct tokenizer *t)
{
    return t->longest;
}

const char *tok_bytes(const struct tokenizer *t, int32_t id, size_t *len)
{
    bool known = id >= 0 && id < t->n_id && t->piece[id].p;
    *len = known ? t->bytes[id].n : 0;
    return known ? t->bytes[id].p : "";
}

const char *tok_piece(const struct tokenizer *t, int32_t id)
{
    return id >= 0 && id < t->n_id ? t->piece[id].p : NULL;
}
