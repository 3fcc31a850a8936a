/* Goal: what the reference corpus does not show: known ids, special tokens beside untrusted text,
 * limits, linear time on hostile texts, refusals by name, use from many threads. Method: the real
 * tokenizers of test/data/tokenizer and small files built here. */
#include <check.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/rng.h"
#include "engine/base/thread.h"
#include "test/unit/tokenizer_data.h"
#include "test/sanitize.h"

#if defined(__SANITIZE_ADDRESS__)
enum { LONG = 1 << 18, LONG_US = 3000000 }; /* it costs a factor of ten */
#else
enum { LONG = 1 << 20, LONG_US = 1000000 };
#endif

static struct ids encode(const struct tokenizer *t, const char *s, unsigned flags)
{
    struct ids ids = {0};
    struct err e = {0};
    ck_assert_msg(tok_encode(t, s, strlen(s), flags, NULL, 0, 0, &ids, &e) == OK, "%s", e.text);
    return ids;
}

static void same(const struct ids *a, const int32_t *v, size_t n, const char *what)
{
    ck_assert_msg(a->n == n, "%s: %zu ids wanted, %zu found", what, n, a->n);
    for (size_t i = 0; i < n; i++)
        ck_assert_msg(a->v[i] == v[i], "%s: id %zu is %d, not %d", what, i, a->v[i], v[i]);
}

/* From the model cards' tokenizers (facts that several projects keep as fixtures). */
START_TEST(known_ids)
{
    static const struct {
        const char *s;
        int32_t id[12];
    } cases[] = {
        {"Hello world", {9707, 1879}},
        {" Hello world", {21927, 1879}},
        {"   Hello", {256, 21927}},
        {"\n\n", {271}},
        {"\t\n", {1572}},
        {"\n =", {198, 284}},
        {"3333333", {18, 18, 18, 18, 18, 18, 18}},
        {"ied 4 \xc2\xbd months", {1122, 220, 19, 220, 26062, 3951}},
        {"\xc3\x84pfel", {86975, 15897, 301}},
        {"C\xe1\xbb\xad"
         "a Vi\xe1\xbb\x87t",
         {34, 90063, 128324}},
        {" this is \xf0\x9f\xa6\x99.cpp", {419, 374, 11162, 99, 247, 13, 10821}},
        {"w048 7tuijk dsdfhu", {86, 15, 19, 23, 220, 22, 83, 1963, 41808, 11472, 2940, 16739}},
    };
    struct tokenizer *t = data_tokenizer("qwen3");
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct ids ids = encode(t, cases[i].s, TOK_ADD_SPECIAL | TOK_PARSE_SPECIAL);
        size_t n = 0;
        while (n < 12 && cases[i].id[n])
            n++;
        same(&ids, cases[i].id, n, cases[i].s);
        ids_done(&ids);
    }
    tok_close(t);
}
END_TEST

START_TEST(lookups)
{
    struct tokenizer *t = data_tokenizer("deepseek_v3");
    size_t n;
    ck_assert_int_eq(tok_vocab_size(t), 128815);
    ck_assert_int_eq(tok_bos(t), 0);
    ck_assert_int_eq(tok_eos(t), 1);
    ck_assert_int_eq(tok_id(t, "<\xef\xbd\x9cUser\xef\xbd\x9c>"), 128803);
    ck_assert_int_eq(tok_id(t, "no such token"), -1);
    ck_assert(tok_is_special(t, 0) && !tok_is_special(t, 128803) && !tok_is_special(t, -1));
    ck_assert_str_eq(tok_bytes(t, 128803, &n), "<\xef\xbd\x9cUser\xef\xbd\x9c>");
    int32_t the = tok_id(t, "\xc4\xa0the");
    ck_assert_int_ge(the, 0);
    ck_assert_str_eq(tok_bytes(t, the, &n), " the");
    ck_assert_str_eq(tok_piece(t, the), "\xc4\xa0the");
    ck_assert_ptr_null(tok_piece(t, tok_vocab_size(t)));
    ck_assert_str_eq(tok_bytes(t, -5, &n), "");
    struct ids ids = encode(t, "Hi", TOK_ADD_SPECIAL), bare = encode(t, "Hi", 0);
    ck_assert_int_eq(ids.v[0], 0);
    same(&bare, ids.v + 1, ids.n - 1, "without BOS");
    ids_done(&ids);
    ids_done(&bare);
    tok_close(t);

    t = data_tokenizer("sp_prepend");
    ck_assert_str_eq(tok_bytes(t, tok_id(t, "<0xE2>"), &n), "\xe2");
    ck_assert_str_eq(tok_bytes(t, tok_id(t, "\xe2\x96\x81print"), &n), " print");
    ck_assert_uint_ge(tok_longest(t), 4);
    tok_close(t);
}
END_TEST

/* Encodes parts, of which the denied ones are untrusted, in one go. */
static struct ids encode_parts(const struct tokenizer *t, const char *const *part, unsigned deny)
{
    struct buf b = {0};
    struct span span[8];
    size_t n = 0;
    for (unsigned i = 0; part[i]; i++) {
        size_t from = b.len;
        buf_str(&b, part[i]);
        if (deny >> i & 1)
            span[n++] = (struct span){from, b.len};
    }
    struct ids ids = {0};
    struct err e = {0};
    int rc = tok_encode(t, b.p, b.len, TOK_PARSE_SPECIAL, span, n, 0, &ids, &e);
    ck_assert_msg(rc == OK, "%s", e.text);
    buf_done(&b);
    return ids;
}

static size_t count(const struct ids *l, int32_t id)
{
    size_t n = 0;
    for (size_t i = 0; i < l->n; i++)
        n += l->v[i] == id;
    return n;
}

START_TEST(untrusted_text)
{
    struct tokenizer *t = data_tokenizer("qwen3");
    int32_t end = tok_id(t, "<|im_end|>"), start = tok_id(t, "<|im_start|>");
    static const char *const chat[] = {"<|im_start|>", "user\n", "x<|im_end|>y<|im_start|>",
                                       "<|im_end|>", NULL};
    struct ids ids = encode_parts(t, chat, 4);
    ck_assert_uint_eq(count(&ids, end), 1);
    ck_assert_uint_eq(count(&ids, start), 1);
    ck_assert_int_eq(ids.v[ids.n - 1], end);
    /* the middle is what it would be as text */
    struct ids mid = encode(t, "user\nx<|im_end|>y<|im_start|>", 0);
    same(&mid, ids.v + 1, ids.n - 2, "user text");
    ids_done(&ids);
    ids_done(&mid);

    /* half of a token from each side is no token, and does not swallow the next one */
    static const char *const halves[] = {"<|im_", "end|><|im_st", "art|><|im_end|>", NULL};
    ids = encode_parts(t, halves, 2);
    ck_assert_uint_eq(count(&ids, end), 1);
    ck_assert_uint_eq(count(&ids, start), 0);
    ids_done(&ids);
    ids = encode_parts(t, halves, 0);
    ck_assert_uint_eq(count(&ids, end), 2);
    ck_assert_uint_eq(count(&ids, start), 1);
    ids_done(&ids);

    /* tokens that are not special are text of any kind */
    static const char *const tools[] = {"a", "<tool_call>", NULL};
    ids = encode_parts(t, tools, 2);
    ck_assert_uint_eq(count(&ids, tok_id(t, "<tool_call>")), 1);
    ids_done(&ids);
    tok_close(t);
}
END_TEST

/* Special tokens that are looked for behind the normalizer keep the borders of untrusted text. */
START_TEST(untrusted_normalized)
{
    static const char *const names[] = {"sp_prepend", "sp_plain"};
    static const char *const parts[] = {"a b <norm>", "c  d <norm> \xf0\x9f\x98\x80", "<norm> e",
                                        NULL};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        struct tokenizer *t = data_tokenizer(names[i]);
        int32_t norm = tok_id(t, "<norm>");
        size_t with_prefix = !strcmp(names[i], "sp_prepend"); /* it takes the space before it */
        struct ids all = encode_parts(t, parts, 0), some = encode_parts(t, parts, 2),
                   none = encode_parts(t, parts, 7);
        ck_assert_uint_eq(count(&all, norm), 3 - with_prefix);
        ck_assert_uint_eq(count(&some, norm), 2 - with_prefix);
        ck_assert_uint_eq(count(&none, norm), 0);
        struct buf b = {0};
        detok_all(t, some.v, some.n, false, &b);
        ck_assert_str_eq(b.p, "a b <norm>c  d <norm> \xf0\x9f\x98\x80<norm> e");
        buf_done(&b);
        ids_done(&all);
        ids_done(&some);
        ids_done(&none);
        tok_close(t);
    }
}
END_TEST

START_TEST(limits)
{
    struct tokenizer *t = data_tokenizer("demo");
    struct ids full = encode(t, "one two three four five", TOK_PARSE_SPECIAL), ids = {0};
    struct err e = {0};
    const char *s = "one two three four five";
    ids_push(&ids, 7);
    ck_assert_int_eq(tok_encode(t, s, strlen(s), 2, NULL, 0, full.n, &ids, &e), OK);
    ck_assert_uint_eq(ids.n, full.n + 1);
    ids.n = 1;
    ck_assert_int_eq(tok_encode(t, s, strlen(s), 2, NULL, 0, full.n - 1, &ids, &e), E_RANGE);
    ck_assert_uint_eq(ids.n, 1);
    ck_assert_int_eq(tok_encode(t, "a\xc3", 2, 2, NULL, 0, 0, &ids, &e), E_FORMAT);
    ck_assert_int_eq(tok_encode(t, "\xed\xa0\x80", 3, 2, NULL, 0, 0, &ids, &e), E_FORMAT);
    ck_assert_int_eq(tok_encode(t, "", 0, 2, NULL, 0, 0, &ids, &e), OK);
    ck_assert_uint_eq(ids.n, 1);
    /* NUL is a character like any other */
    ck_assert_int_eq(tok_encode(t, "a\0b", 3, 2, NULL, 0, 0, &ids, &e), OK);
    struct buf b = {0};
    detok_all(t, ids.v + 1, ids.n - 1, false, &b);
    ck_assert(b.len == 3 && !memcmp(b.p, "a\0b", 3));
    buf_done(&b);
    ids_done(&ids);
    ids_done(&full);
    tok_close(t);
}
END_TEST

/* One megabyte of a unit, encoded and decoded again; thread CPU time, since the machine is shared.
 */
static void megabyte(const struct tokenizer *t, const char *name, const char *unit)
{
    size_t n = strlen(unit), len = LONG / n * n;
    char *s = mem_alloc(len + 1);
    for (size_t i = 0; i < len; i += n)
        memcpy(s + i, unit, n);
    struct ids ids = {0};
    struct err e = {0};
    int64_t from = clock_thread_cpu_us();
    ck_assert_msg(tok_encode(t, s, len, TOK_PARSE_SPECIAL, NULL, 0, 0, &ids, &e) == OK, "%s",
                  e.text);
    int64_t us = clock_thread_cpu_us() - from;
    ck_assert_msg(us < LONG_US, "%s: 1 MB of '%s' took %lld us", name, unit, (long long)us);
    struct buf b = {0};
    detok_all(t, ids.v, ids.n, false, &b);
    /* combining marks may come back in canonical order */
    bool equal = b.len == len && !memcmp(b.p, s, len);
    ck_assert_msg(equal || (unsigned char)unit[0] == 0xcc, "%s: '%s' does not come back", name,
                  unit);
    buf_done(&b);
    ids_done(&ids);
    mem_free(s);
}

START_TEST(linear_time)
{
    static const char *const names[] = {"qwen3", "deepseek_v3", "sp_plain", "demo"};
    static const char *const units[] = {
        "a",
        " ",
        "\n",
        "0",
        "-",
        "<",
        "ab",
        "a ",
        " \n",
        "aA1 ",
        "\xc3\xa9",
        "\xe6\xbc\xa2",
        "\xf0\x9f\x98\x80",
        "<|im_start",
        "<|im_start|>",
        "'s",
        "\xcc\x81\xcc\xa3", /* U+0301 U+0323: out of canonical order */
        "\xcc\x81",
        "x\t\t\t\t",
        "    x"};
    struct tokenizer *t = data_tokenizer(names[_i]);
    for (size_t i = 0; i < ARRAY_LEN(units); i++)
        megabyte(t, names[_i], units[i]);
    tok_close(t);
}
END_TEST

/* ---- small files made here ---- */

#define VOCAB "\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,\" \":3,\"c\":4},\"merges\":[\"a b\"]"
#define CHAIN "\"decoder\":{\"type\":\"Fuse\"}"

static int parse(struct tokenizer **t, const char *json, struct err *e)
{
    *e = (struct err){0};
    *t = NULL;
    return tok_parse(t, json, strlen(json), NULL, 0, e);
}

START_TEST(refusals)
{
    static const struct {
        const char *json, *word; /* the error names the word */
        int code;
    } cases[] = {
        {"[]", "an object", E_FORMAT},
        {"{", "JSON", E_FORMAT},
        {"{}", "'model' is missing", E_FORMAT},
        {"{\"model\":{\"type\":\"WordPiece\"}}", "WordPiece", E_UNSUPPORTED},
        {"{\"model\":{\"type\":\"Unigram\"}}", "Unigram", E_UNSUPPORTED},
        {"{\"model\":{\"type\":\"BPE\"}}", "model.vocab", E_FORMAT},
        {"{\"model\":{\"vocab\":{}}}", "model.merges", E_FORMAT},
        {"{\"model\":{\"dropout\":0.1," VOCAB "}," CHAIN "}", "dropout", E_UNSUPPORTED},
        {"{\"model\":{\"end_of_word_suffix\":\"</w>\"," VOCAB "}," CHAIN "}", "end_of_word_suffix",
         E_UNSUPPORTED},
        {"{\"model\":{\"vocab\":{\"a\":-1},\"merges\":[]}," CHAIN "}", "'a'", E_FORMAT},
        {"{\"model\":{\"vocab\":{\"a\":99999999},\"merges\":[]}," CHAIN "}", "'a'", E_FORMAT},
        {"{\"model\":{\"vocab\":{\"a\":1,\"a\":2},\"merges\":[]}," CHAIN "}", "twice", E_FORMAT},
        {"{\"model\":{\"vocab\":{\"a\":1.5},\"merges\":[]}," CHAIN "}", "integer", E_FORMAT},
        {"{\"model\":{\"vocab\":{\"a\":1 \"b\":2},\"merges\":[]}," CHAIN "}", "comma", E_FORMAT},
        {"{\"model\":{\"vocab\":{\"\\ud800\":1},\"merges\":[]}," CHAIN "}", "surrogate", E_FORMAT},
        {"{\"model\":{\"vocab\":{\"a\xff\":1},\"merges\":[]}," CHAIN "}", "UTF-8", E_FORMAT},
        {"{\"model\":{\"vocab\":{\"a\":1},\"merges\":[],\"vocab\":{}}," CHAIN "}", "JSON",
         E_FORMAT},
        {"{\"model\":{\"vocab\":[],\"merges\":[]}," CHAIN "}", "'vocab'", E_INVAL},
        {"{\"model\":{\"vocab\":{\"a\":1},\"merges\":[]}," CHAIN "} x", "JSON", E_FORMAT},
        {"{\"model\":{\"vocab\":{\"a\":1},\"merges\":[", "JSON", E_FORMAT},
        {"{\"model\":{\"vocab\":{\"a\":1,\"b\":1},\"merges\":[]}," CHAIN "}", "share id 1",
         E_FORMAT},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"a z\"]}," CHAIN "}", "merges[0]", E_FORMAT},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[[\"a\"]]}," CHAIN "}", "merges[0]", E_FORMAT},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[3]}," CHAIN "}", "merges[0]", E_FORMAT},
        {"{\"model\":{\"unk_token\":\"?\"," VOCAB "}," CHAIN "}", "unk_token '?'", E_FORMAT},
        {"{\"model\":{" VOCAB "}}", "decoder", E_UNSUPPORTED},
        {"{\"model\":{" VOCAB "},\"decoder\":{\"type\":\"WordPiece\"}}", "WordPiece",
         E_UNSUPPORTED},
        {"{\"model\":{" VOCAB "},\"decoder\":{\"type\":\"ByteLevel\"}}", "counterpart",
         E_UNSUPPORTED},
        {"{\"model\":{" VOCAB "},\"decoder\":{\"type\":\"Strip\",\"content\":\" \",\"start\":1}}",
         "Strip", E_UNSUPPORTED},
        {"{\"model\":{" VOCAB "},\"normalizer\":{\"type\":\"NFKC\"}," CHAIN "}", "NFKC",
         E_UNSUPPORTED},
        {"{\"model\":{" VOCAB "},\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":"
         "\"Lowercase\"}]}," CHAIN "}",
         "Lowercase", E_UNSUPPORTED},
        {"{\"model\":{" VOCAB "},\"normalizer\":{\"type\":\"Replace\",\"content\":\"\",\"pattern\":"
         "{\"Regex\":\"[a&&b]\"}}," CHAIN "}",
         "&&", E_UNSUPPORTED},
        {"{\"model\":{" VOCAB "},\"pre_tokenizer\":{\"type\":\"Whitespace\"}," CHAIN "}",
         "Whitespace", E_UNSUPPORTED},
        {"{\"model\":{" VOCAB "},\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"String\":"
         "\"x\"},\"behavior\":\"Sideways\"}," CHAIN "}",
         "Sideways", E_FORMAT},
        {"{\"model\":{" VOCAB "},\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{"
         "\"type\":\"ByteLevel\"},{\"type\":\"Digits\"}]}," CHAIN "}",
         "behind ByteLevel", E_UNSUPPORTED},
        {"{\"model\":{" VOCAB "},\"post_processor\":{\"type\":\"RobertaProcessing\"}," CHAIN "}",
         "RobertaProcessing", E_UNSUPPORTED},
        {"{\"model\":{" VOCAB "},\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{"
         "\"SpecialToken\":{\"id\":\"<s>\"}},{\"Sequence\":{\"id\":\"A\"}}]}," CHAIN "}",
         "<s>", E_FORMAT},
        {"{\"model\":{" VOCAB "},\"added_tokens\":[{\"content\":\"x\",\"id\":0}]," CHAIN "}",
         "added token 'x'", E_FORMAT},
        {"{\"model\":{" VOCAB "},\"added_tokens\":[{\"content\":\"b\",\"id\":9}]," CHAIN "}",
         "added token 'b'", E_FORMAT},
        {"{\"model\":{" VOCAB "},\"added_tokens\":[{\"id\":9}]," CHAIN "}", "added_tokens[0]",
         E_FORMAT},
    };
    long live = mem_live();
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct tokenizer *t;
        struct err e;
        int rc = parse(&t, cases[i].json, &e);
        ck_assert_msg(rc == cases[i].code, "%s: %d, %s", cases[i].json, rc, e.text);
        ck_assert_msg(strstr(e.text, cases[i].word) != NULL, "'%s' does not name '%s'", e.text,
                      cases[i].word);
        ck_assert_ptr_null(t);
    }
    ck_assert_int_eq(mem_live(), live);
    struct tokenizer *t;
    struct err e;
    ck_assert_msg(parse(&t, "{\"model\":{" VOCAB "}," CHAIN "}", &e) == OK, "%s", e.text);
    tok_close(t);
    ck_assert_int_eq(mem_live(), live);
    ck_assert_int_eq(tok_open(&t, "test/data/no_such_folder", &e), E_IO);
}
END_TEST

/* Added tokens: longest of those that begin leftmost, white space and word borders. */
START_TEST(added_tokens)
{
    static const char json[] =
        "{\"model\":{" VOCAB "}," CHAIN ",\"added_tokens\":["
        "{\"id\":10,\"content\":\"<x>\",\"normalized\":false},"
        "{\"id\":11,\"content\":\"<x><x>\",\"normalized\":false},"
        "{\"id\":12,\"content\":\"<l>\",\"normalized\":false,\"lstrip\":true},"
        "{\"id\":13,\"content\":\"<r>\",\"normalized\":false,\"rstrip\":true},"
        "{\"id\":14,\"content\":\"bc\",\"normalized\":false,\"single_word\":true},"
        "{\"id\":15,\"content\":\"\",\"normalized\":false}]}";
    static const struct {
        const char *s;
        int32_t id[6];
        size_t n;
    } cases[] = {
        {"a<x><x><x>b", {0, 11, 10, 1}, 4},
        {"a  <l> b", {0, 12, 3, 1}, 4},
        {"a <r>  b", {0, 3, 13, 1}, 4},
        {"<r>  <l>", {13, 12}, 2},
        {"abc", {2, 4}, 2},
        {"a bc", {0, 3, 14}, 3},
        {"bc bc", {14, 3, 14}, 3},
        {"bc\xcc\x81", {1, 4}, 2}, /* a mark belongs to the word */
        {"<x", {0}, 0},            /* nothing in the vocabulary */
    };
    struct tokenizer *t;
    struct err e;
    ck_assert_msg(parse(&t, json, &e) == OK, "%s", e.text);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct ids ids = encode(t, cases[i].s, 0);
        same(&ids, cases[i].id, cases[i].n, cases[i].s);
        ids_done(&ids);
    }
    tok_close(t);
}
END_TEST

/* add_bos_token counts only where the file has no template; both spellings of a token work. */
START_TEST(config_bos)
{
    static const char plain[] = "{\"model\":{" VOCAB "}," CHAIN "}";
    static const char templated[] =
        "{\"model\":{" VOCAB "}," CHAIN ",\"post_processor\":{\"type\":\"Sequence\",\"processors\":"
        "[{\"type\":\"ByteLevel\"},{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{"
        "\"id\":\"c\"}},{\"Sequence\":{\"id\":\"A\"}},{\"SpecialToken\":{\"id\":\"b\"}}],"
        "\"special_tokens\":{\"c\":{\"ids\":[4]},\"b\":{\"ids\":[1,1]}}}]}}";
    static const char conf[] = "{\"bos_token\":\"a\",\"eos_token\":{\"content\":\"b\"},"
                               "\"add_bos_token\":true,\"add_eos_token\":true}";
    static const int32_t one[] = {0, 4, 1}, two[] = {4, 4, 1, 1};
    struct tokenizer *t;
    struct err e = {0};
    int rc = tok_parse(&t, plain, sizeof plain - 1, conf, sizeof conf - 1, &e);
    ck_assert_msg(rc == OK, "%s", e.text);
    ck_assert(tok_bos(t) == 0 && tok_eos(t) == 1);
    struct ids ids = encode(t, "c", TOK_ADD_SPECIAL);
    same(&ids, one, 3, "config");
    ids_done(&ids);
    tok_close(t);
    rc = tok_parse(&t, templated, sizeof templated - 1, conf, sizeof conf - 1, &e);
    ck_assert_msg(rc == OK, "%s", e.text);
    ids = encode(t, "c", TOK_ADD_SPECIAL);
    same(&ids, two, 4, "template");
    ids_done(&ids);
    ids = encode(t, "c", 0);
    same(&ids, two, 1, "none");
    ids_done(&ids);
    tok_close(t);
    rc = tok_parse(&t, plain, sizeof plain - 1, "{\"add_bos_token\":true}", 22, &e);
    ck_assert_int_eq(rc, E_FORMAT);
}
END_TEST

struct job {
    struct thread th;
    const struct tokenizer *t;
    const char *text;
    size_t n;
    struct ids ids;
};

static void work(void *ud)
{
    struct job *j = ud;
    for (int i = 0; i < 3; i++) {
        j->ids.n = 0;
        CHECK(tok_encode(j->t, j->text, j->n, TOK_PARSE_SPECIAL, NULL, 0, 0, &j->ids, NULL) == OK);
    }
}

START_TEST(threads)
{
    struct tokenizer *t = data_tokenizer("qwen3");
    struct job job[4] = {0};
    size_t len;
    char *corpus = data_xz("corpus.bin", &len), *text = mem_alloc(len + 1);
    struct cursor c = {corpus, len, 0};
    size_t n = 0;
    for (uint32_t i = cur_varint(&c); i; i--) {
        size_t k = cur_varint(&c);
        memcpy(text + n, cur_bytes(&c, k), k);
        n += k;
    }
    for (int i = 0; i < 4; i++) {
        job[i].t = t;
        job[i].text = text;
        job[i].n = n;
        thread_start(&job[i].th, "encode", work, &job[i]);
    }
    for (int i = 0; i < 4; i++)
        thread_join(&job[i].th);
    for (int i = 0; i < 4; i++) {
        same(&job[i].ids, job[0].ids.v, job[0].ids.n, "threads");
        ck_assert_uint_gt(job[i].ids.n, 10000);
    }
    for (int i = 0; i < 4; i++)
        ids_done(&job[i].ids);
    mem_free(corpus);
    mem_free(text);
    tok_close(t);
}
END_TEST

/* Merging by definition: try the whole list of merges in order, leftmost first, again and again. */
static size_t slow_merge(char (*sym)[64], size_t n, const char (*merge)[2][32], size_t n_merge)
{
    for (;;) {
        size_t best = n_merge, at = 0;
        for (size_t i = 0; i + 1 < n; i++)
            for (size_t m = 0; m < best; m++)
                if (!strcmp(sym[i], merge[m][0]) && !strcmp(sym[i + 1], merge[m][1])) {
                    best = m;
                    at = i;
                }
        if (best == n_merge)
            return n;
        size_t k = strlen(sym[at]);
        memcpy(sym[at] + k, sym[at + 1], strlen(sym[at + 1]) + 1);
        memmove(sym + at + 1, sym + at + 2, (n - at - 2) * sizeof *sym);
        n--;
    }
}

/* Random little models over two letters, where ties and overlaps are the rule. */
START_TEST(merge_order)
{
    struct rng r = {77};
    for (int round = 0; round < 60; round++) {
        static char merge[24][2][32], vocab[30][32];
        size_t n_vocab = 2, n_merge = 0;
        snprintf(vocab[0], 32, "a");
        snprintf(vocab[1], 32, "b");
        struct buf json = {0}, list = {0};
        buf_str(&json, "{\"model\":{\"vocab\":{\"a\":0,\"b\":1");
        while (n_merge < 12) {
            const char *x = vocab[rng_below(&r, n_vocab)], *y = vocab[rng_below(&r, n_vocab)];
            char both[64];
            snprintf(both, sizeof both, "%s%s", x, y);
            bool known = strlen(both) > 12;
            for (size_t i = 0; i < n_vocab; i++)
                known = known || !strcmp(vocab[i], both);
            if (known)
                continue;
            snprintf(merge[n_merge][0], 32, "%s", x);
            snprintf(merge[n_merge][1], 32, "%s", y);
            snprintf(vocab[n_vocab], 32, "%.31s", both);
            buf_fmt(&json, ",\"%s\":%zu", both, n_vocab++);
            buf_fmt(&list, "%s\"%s %s\"", n_merge ? "," : "", merge[n_merge][0], merge[n_merge][1]);
            n_merge++;
        }
        buf_fmt(&json, "},\"merges\":[%s]}," CHAIN "}", list.p);
        struct tokenizer *t;
        struct err e;
        ck_assert_msg(parse(&t, json.p, &e) == OK, "%s", e.text);
        for (int k = 0; k < 40; k++) {
            static char sym[201][64];
            char text[201];
            size_t n = 1 + rng_below(&r, k % 2 ? 200 : 30);
            for (size_t i = 0; i < n; i++) {
                text[i] = rng_below(&r, 2) ? 'a' : 'b';
                snprintf(sym[i], 64, "%c", text[i]);
            }
            text[n] = 0;
            struct ids ids = encode(t, text, 0);
            size_t m = slow_merge(sym, n, merge, n_merge);
            ck_assert_msg(m == ids.n, "%s: %zu tokens wanted, %zu", text, m, ids.n);
            for (size_t i = 0; i < m; i++)
                ck_assert_str_eq(tok_piece(t, ids.v[i]), sym[i]);
            ids_done(&ids);
        }
        tok_close(t);
        buf_done(&json);
        buf_done(&list);
    }
}
END_TEST

Suite *suite_tokenizer(void);
Suite *suite_tokenizer(void)
{
    Suite *s = suite_create("tokenizer");
    TCase *c = tcase_create("small"), *time = tcase_create("linear_time");
    TCase *many = tcase_create("threads");
    one_thread(c);
    one_thread(time);
    tcase_set_timeout(c, 60);
    tcase_set_timeout(many, 60);
    tcase_set_timeout(time, 300);
    tcase_add_test(c, known_ids);
    tcase_add_test(c, lookups);
    tcase_add_test(c, untrusted_text);
    tcase_add_test(c, untrusted_normalized);
    tcase_add_test(c, limits);
    tcase_add_test(c, refusals);
    tcase_add_test(c, added_tokens);
    tcase_add_test(c, config_bos);
    tcase_add_test(many, threads);
    tcase_add_test(c, merge_order);
    tcase_add_loop_test(time, linear_time, 0, 4);
    suite_add_tcase(s, c);
    suite_add_tcase(s, many);
    suite_add_tcase(s, time);
    return s;
}
