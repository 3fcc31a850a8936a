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

struct word {
    struct str s;
    int32_t id;
};
struct words {
    struct word *v;
    size_t n, cap;
};

static int read_vocab(struct tokenizer *t, struct scan *vocab, struct words *w, struct err *e)
{
    struct buf name = {0};
    int64_t id = 0;
    int rc;
    while ((rc = scan_vocab(vocab, &name, &id, e)) > 0) {
        if (id < 0 || id >= TOK_ID_MAX) {
            rc = FAIL(e, E_FORMAT, "the id of '%.60s' must be 0 to %d, not %lld", buf_cstr(&name),
                      TOK_ID_MAX - 1, (long long)id);
            break;
        }
        MEM_GROW(w->v, w->cap, w->n + 1);
        w->v[w->n++] = (struct word){strtab_add(&t->mem, buf_cstr(&name), name.len), (int32_t)id};
    }
    buf_done(&name);
    return rc < 0 ? err_prefix(e, "model.vocab") : OK;
}

/* Sizes the tables by the largest id of vocabulary and added tokens. */
static int make_tables(struct tokenizer *t, const struct words *w, const json_t *added,
                       struct err *e)
{
    int32_t max = -1;
    json_t *v;
    size_t i;
    for (i = 0; i < w->n; i++)
        max = w->v[i].id > max ? w->v[i].id : max;
    json_array_foreach(added, i, v)
    {
        struct added a;
        if (parse_added(v, &a, e) < 0)
            return err_prefix(e, "added_tokens[%zu]", i);
        max = a.id > max ? a.id : max;
    }
    size_t tokens = w->n + json_array_size(added);
    if (max > (int64_t)(2 * tokens) + 100000)
        return FAIL(e, E_FORMAT, "%zu tokens have ids up to %d", tokens, max);
    t->n_id = max + 1;
    t->piece = MEM_ARRAY(struct str, t->n_id + 1);
    t->bytes = MEM_ARRAY(struct str, t->n_id + 1);
    t->special = MEM_ARRAY(uint8_t, t->n_id + 1);
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

static int load_vocab(struct tokenizer *t, struct scan *vocab, const json_t *added, struct err *e)
{
    struct words w = {0};
    int ret;
    TRY_OUT(read_vocab(t, vocab, &w, e));
    TRY_OUT(make_tables(t, &w, added, e));
    strmap_init(&t->words, w.n);
    for (size_t i = 0; i < w.n; i++) {
        struct str *at = &t->piece[w.v[i].id], s = w.v[i].s;
        if (at->p) {
            ret = FAIL(e, E_FORMAT, "model.vocab: '%.60s' and '%.60s' share id %d", s.p, at->p,
                       w.v[i].id);
            goto out;
        }
        *at = s;
        if (!strmap_put(&t->words, s, w.v[i].id)) {
            ret = FAIL(e, E_FORMAT, "model.vocab: '%.60s' is there twice", s.p);
            goto out;
        }
    }
out:
    mem_free(w.v);
    return ret;
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

static int one_merge(struct tokenizer *t, size_t i, const struct buf *l, const struct buf *r,
                     struct buf *join, struct err *e)
{
    buf_reset(join);
    buf_push(join, buf_cstr(l), l->len);
    buf_push(join, buf_cstr(r), r->len);
    int32_t a = strmap_get(&t->words, buf_cstr(l), l->len);
    int32_t b = strmap_get(&t->words, buf_cstr(r), r->len);
    int32_t c = strmap_get(&t->words, join->p, join->len);
    if (a < 0 || b < 0 || c < 0)
        return FAIL(e, E_FORMAT, "model.merges[%zu]: '%.60s' is not in the vocabulary", i,
                    buf_cstr(a < 0   ? l
                             : b < 0 ? r
                                     : join));
    if (i > INT32_MAX)
        return FAIL(e, E_FORMAT, "model.merges has too many entries");
    bpe_merge_add(&t->bpe, a, b, c);
    return OK;
}

static int load_merges(struct tokenizer *t, struct scan *merges, struct err *e)
{
    struct buf l = {0}, r = {0}, join = {0};
    int rc;
    size_t i = 0;
    while ((rc = scan_merge(merges, &l, &r, e)) > 0) {
        rc = one_merge(t, i++, &l, &r, &join, e);
        if (rc < 0)
            goto out;
    }
    if (rc < 0)
        err_prefix(e, "model.merges[%zu]", i);
    else
        bpe_index(&t->bpe);
out:
    buf_done(&l);
    buf_done(&r);
    buf_done(&join);
    return rc;
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

int tok_load_model(struct tokenizer *t, const json_t *root, struct scan *vocab, struct scan *merges,
                   struct err *e)
{
    json_t *model = NULL, *added = NULL, *v;
    TRY(js_get_obj(root, "model", &model, e));
    if (!model)
        return FAIL(e, E_FORMAT, "'model' is missing");
    TRY(refuse_options(model, e));
    TRY(js_get_obj(model, "vocab", &v, e));
    TRY(js_get_arr(model, "merges", &v, e));
    if (!vocab->p || !merges->p)
        return FAIL(e, E_FORMAT, "model.%s is missing", vocab->p ? "merges" : "vocab");
    TRY(js_get_arr(root, "added_tokens", &added, e));
    TRY(load_vocab(t, vocab, added, e));
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
