/* Vocabulary, merges and added tokens of a tokenizer.json. Runs once while a tokenizer loads. */
#include <stdio.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "engine/text/alphabet.h"
#include "engine/text/tok.h"

static int parse_added(const json_t *v, struct added *a, struct err *e)
{
    const char *text = NULL;
    int64_t id = -1;
    if (!json_is_object(v))
        return FAIL(e, E_FORMAT, "an entry must be an object");
    int got = js_get_str(v, "content", &text, e);
    TRY(got);
    int got_id = js_get_i64(v, "id", 0, TOK_ID_MAX - 1, &id, e);
    TRY(got_id);
    if (!got || !got_id)
        return FAIL(e, E_FORMAT, "an entry lacks 'id' or 'content'");
    *a = (struct added){.text = {text, strlen(text)}, .id = (int32_t)id};
    TRY(js_get_bool(v, "special", &a->special, e));
    TRY(js_get_bool(v, "single_word", &a->single_word, e));
    TRY(js_get_bool(v, "lstrip", &a->lstrip, e));
    TRY(js_get_bool(v, "rstrip", &a->rstrip, e));
    a->normalized = !a->special;
    TRY(js_get_bool(v, "normalized", &a->normalized, e));
    return OK;
}

static int max_id(const json_t *vocab, const json_t *added, int64_t *max, struct err *e)
{
    const char *key;
    json_t *v;
    size_t i;
    *max = -1;
    json_object_foreach((json_t *)vocab, key, v)
    {
        int64_t id;
        if (!js_is_int(v, &id) || id < 0 || id >= TOK_ID_MAX)
            return FAIL(e, E_FORMAT, "model.vocab: the id of '%.60s' must be 0 to %d", key,
                        TOK_ID_MAX - 1);
        *max = id > *max ? id : *max;
    }
    json_array_foreach(added, i, v)
    {
        struct added a;
        if (parse_added(v, &a, e) < 0)
            return err_prefix(e, "added_tokens[%zu]", i);
        *max = a.id > *max ? a.id : *max;
    }
    size_t tokens = json_object_size(vocab) + json_array_size(added);
    if (*max > (int64_t)(2 * tokens) + 100000)
        return FAIL(e, E_FORMAT, "%zu tokens have ids up to %lld", tokens, (long long)*max);
    return OK;
}

/* One normalized token as the normalizer leaves it: that is what it is looked for in. */
static int cook(struct tokenizer *t, struct added *a, struct err *e)
{
    struct buf b;
    struct pat_run run = {0};
    buf_init(&b, 0);
    int ret = norm_run(t->norm, t->n_norm, true, a->text.p, a->text.n, &run, &b, e);
    if (ret == OK)
        a->text = strtab_add(&t->mem, buf_cstr(&b), b.len);
    pat_run_done(&run);
    buf_done(&b);
    return ret;
}

int tok_load_added(struct tokenizer *t, const json_t *root, struct err *e)
{
    json_t *list = NULL, *v;
    size_t i;
    TRY(js_get_arr(root, "added_tokens", &list, e));
    json_array_foreach(list, i, v)
    {
        struct added a;
        TRY(parse_added(v, &a, e));
        struct str known = t->piece[a.id];
        if (known.p && (known.n != a.text.n || memcmp(known.p, a.text.p, known.n)))
            return FAIL(e, E_FORMAT, "added token '%.60s' has id %d, which is '%.60s'", a.text.p,
                        a.id, known.p);
        int32_t id = strmap_get(&t->words, a.text.p, a.text.n);
        if (id >= 0 && id != a.id)
            return FAIL(e, E_FORMAT, "added token '%.60s' has id %d, in the vocabulary %d",
                        a.text.p, a.id, id);
        if (!known.p)
            t->piece[a.id] = strtab_add(&t->mem, a.text.p, a.text.n);
        a.text = t->piece[a.id];
        strmap_put(&t->added_words, a.text, a.id);
        t->special[a.id] |= a.special;
        if (a.normalized)
            TRY(cook(t, &a, e));
        added_put(a.normalized ? &t->cooked : &t->raw, &a);
    }
    return OK;
}

static int load_vocab(struct tokenizer *t, json_t *vocab, struct err *e)
{
    const char *key;
    json_t *v;
    json_object_foreach(vocab, key, v)
    {
        int64_t id = -1;
        js_is_int(v, &id);
        if (t->piece[id].p)
            return FAIL(e, E_FORMAT, "model.vocab: '%.60s' and '%.60s' share id %lld", key,
                        t->piece[id].p, (long long)id);
        struct str s = strtab_add(&t->mem, key, strlen(key));
        t->piece[id] = s;
        strmap_put(&t->words, s, (int32_t)id);
    }
    return OK;
}

/* What a piece of text is compared with: bytes when the pre-tokenizer is byte-level. */
static int load_lookup(struct tokenizer *t, struct err *e)
{
    struct bpe *b = &t->bpe;
    b->n_id = t->n_id;
    b->whole = MEM_ARRAY(uint8_t, t->n_id);
    for (int i = 0; i < 256; i++)
        b->byte_id[i] = -1;
    b->by_text = b->byte_level ? &b->bytes : &t->words;
    if (b->byte_level)
        strmap_init(&b->bytes, t->words.n);
    for (int i = 0; i < 256 && !b->byte_level; i++) {
        char name[8];
        snprintf(name, sizeof name, "<0x%02X>", (unsigned)i);
        b->byte_id[i] = strmap_get(&t->words, name, 6);
    }
    struct buf raw;
    buf_init(&raw, 0);
    for (int32_t id = 0; id < t->n_id; id++) {
        struct str p = t->piece[id];
        if (!p.p || !p.n)
            continue;
        buf_reset(&raw);
        if (!b->byte_level) {
            b->longest = p.n > b->longest ? p.n : b->longest;
        } else if (alphabet_decode(p.p, p.n, &raw)) {
            struct str s = strtab_add(&t->mem, raw.p, raw.len);
            strmap_put(&b->bytes, s, id);
            b->longest = s.n > b->longest ? s.n : b->longest;
            if (s.n == 1)
                b->byte_id[(unsigned char)s.p[0]] = id;
        }
    }
    buf_done(&raw);
    if (b->byte_fallback && b->byte_level)
        return FAIL(e, E_UNSUPPORTED, "model.byte_fallback with a ByteLevel pre-tokenizer");
    return OK;
}

static int merge_part(const json_t *v, struct str *l, struct str *r)
{
    if (json_is_array(v) && json_array_size(v) == 2) {
        const json_t *a = json_array_get(v, 0), *b = json_array_get(v, 1);
        if (!json_is_string(a) || !json_is_string(b))
            return E_FORMAT;
        *l = (struct str){json_string_value(a), json_string_length(a)};
        *r = (struct str){json_string_value(b), json_string_length(b)};
        return OK;
    }
    if (!json_is_string(v))
        return E_FORMAT;
    const char *s = json_string_value(v), *sp = strchr(s, ' ');
    if (!sp || strchr(sp + 1, ' '))
        return E_FORMAT;
    *l = (struct str){s, (size_t)(sp - s)};
    *r = (struct str){sp + 1, strlen(sp + 1)};
    return OK;
}

static int load_merges(struct tokenizer *t, const json_t *merges, struct err *e)
{
    size_t n = json_array_size(merges), i;
    json_t *v;
    struct buf join;
    buf_init(&join, 0);
    int ret = OK;
    bpe_pairs_init(&t->bpe, n);
    json_array_foreach(merges, i, v)
    {
        struct str l, r;
        if (merge_part(v, &l, &r) < 0) {
            ret = FAIL(e, E_FORMAT, "model.merges[%zu] must be \"a b\" or [\"a\", \"b\"]", i);
            break;
        }
        buf_reset(&join);
        buf_push(&join, l.p, l.n);
        buf_push(&join, r.p, r.n);
        int32_t a = strmap_get(&t->words, l.p, l.n), b = strmap_get(&t->words, r.p, r.n);
        int32_t c = strmap_get(&t->words, join.p, join.len);
        if (a < 0 || b < 0 || c < 0) {
            ret = FAIL(e, E_FORMAT, "model.merges[%zu]: '%.60s' is not in the vocabulary", i,
                       a < 0   ? l.p
                       : b < 0 ? r.p
                               : join.p);
            break;
        }
        t->bpe.merged[i] = c;
        bpe_pair_put(&t->bpe, a, b, (uint32_t)i);
    }
    buf_done(&join);
    return ret;
}

static int refuse_options(const json_t *model, struct err *e)
{
    static const char *const affix[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    const char *s;
    for (size_t i = 0; i < ARRAY_LEN(affix); i++) {
        s = "";
        TRY(js_get_str(model, affix[i], &s, e));
        if (*s)
            return FAIL(e, E_UNSUPPORTED, "model.%s '%.40s' is not supported", affix[i], s);
    }
    double drop = 0;
    TRY(js_get_num(model, "dropout", &drop, e));
    if (drop != 0)
        return FAIL(e, E_UNSUPPORTED, "model.dropout %g is not supported", drop);
    s = "BPE";
    TRY(js_get_str(model, "type", &s, e));
    if (strcmp(s, "BPE") != 0)
        return FAIL(e, E_UNSUPPORTED, "model.type '%.40s' is not supported, only BPE", s);
    return OK;
}

int tok_load_model(struct tokenizer *t, const json_t *root, struct err *e)
{
    json_t *model = NULL, *vocab = NULL, *merges = NULL, *added = NULL;
    TRY(js_get_obj(root, "model", &model, e));
    if (!model)
        return FAIL(e, E_FORMAT, "'model' is missing");
    TRY(refuse_options(model, e));
    TRY(js_get_obj(model, "vocab", &vocab, e));
    TRY(js_get_arr(model, "merges", &merges, e));
    if (!vocab || !merges)
        return FAIL(e, E_FORMAT, "model.%s is missing", vocab ? "merges" : "vocab");
    TRY(js_get_arr(root, "added_tokens", &added, e));
    int64_t max;
    TRY(max_id(vocab, added, &max, e));
    t->n_id = (int32_t)max + 1;
    t->piece = MEM_ARRAY(struct str, t->n_id + 1);
    t->bytes = MEM_ARRAY(struct str, t->n_id + 1);
    t->special = MEM_ARRAY(uint8_t, t->n_id + 1);
    strmap_init(&t->words, json_object_size(vocab));
    TRY(load_vocab(t, vocab, e));
    struct bpe *b = &t->bpe;
    b->byte_level = t->byte_level;
    TRY(js_get_bool(model, "byte_fallback", &b->byte_fallback, e));
    TRY(js_get_bool(model, "fuse_unk", &b->fuse_unk, e));
    TRY(js_get_bool(model, "ignore_merges", &b->ignore_merges, e));
    TRY(load_lookup(t, e));
    const char *unk = NULL;
    TRY(js_get_str(model, "unk_token", &unk, e));
    b->unk = unk ? strmap_get(&t->words, unk, strlen(unk)) : -1;
    bool needs = !b->byte_level;
    for (int i = 0; i < 256; i++)
        needs = needs || b->byte_id[i] < 0;
    if (unk && b->unk < 0 && needs)
        return FAIL(e, E_FORMAT, "model.unk_token '%.60s' is not in the vocabulary", unk);
    return load_merges(t, merges, e);
}
