/* Goal: response JSON is valid, has the shapes clients expect, and spells tokens without loss.
 * Method: a vocabulary of hand-made byte strings; what is written is parsed back with jansson or
 * compared byte by byte where framing matters. */
#include <check.h>
#include <math.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/js.h"
#include "server/jsonw.h"
#include "server/render.h"

static const char *const vocab[] = {"a", "\xc3\xa4", "\xe2\x82", "\xac", "\"\n", "a", "<eos>"};

static const char *bytes_of(const struct engine *g, int32_t id, size_t *n)
{
    (void)g;
    *n = strlen(vocab[id]);
    return vocab[id];
}

static struct render make(bool chat, bool stream)
{
    struct render r = {.chat = chat,
                       .token_bytes = bytes_of,
                       .id = "id-1",
                       .model = "m\"x",
                       .fingerprint = "b1-0",
                       .created = 5};
    render_init(&r, stream);
    return r;
}

static json_t *parse(const char *s, size_t n)
{
    json_t *v = NULL;
    struct err e = {0};
    ck_assert_msg(js_parse(&v, s, n, "output", &e) == OK, "%s: %.*s", e.text, (int)n, s);
    return v;
}

/* The i-th event of a stream, framed as it must be. */
static json_t *event(const struct buf *b, int i)
{
    const char *p = buf_cstr(b);
    for (;;) {
        ck_assert_msg(!strncmp(p, "data: ", 6), "%s", p);
        const char *end = strstr(p, "\n\n");
        ck_assert_ptr_nonnull(end);
        ck_assert_ptr_null(memchr(p, '\n', (size_t)(end - p)));
        if (!i--)
            return parse(p + 6, (size_t)(end - p - 6));
        p = end + 2;
    }
}

static int n_events(const struct buf *b)
{
    int n = 0;
    for (const char *p = buf_cstr(b); (p = strstr(p, "\n\n")); p += 2)
        n++;
    return n;
}

static const char *text_at(json_t *chunk, bool chat)
{
    json_t *c = json_array_get(json_object_get(chunk, "choices"), 0);
    return json_string_value(chat ? json_object_get(json_object_get(c, "delta"), "content")
                                  : json_object_get(c, "text"));
}

START_TEST(writer)
{
    struct buf b = {0};
    char all[128];
    for (int i = 0; i < 128; i++)
        all[i] = (char)(i ? i : 'z');
    jw_str(&b, all, sizeof all);
    json_t *v = parse(b.p, b.len);
    ck_assert_uint_eq(json_string_length(v), 128);
    ck_assert_int_eq(memcmp(json_string_value(v), all, 128), 0);
    json_decref(v);
    for (const char *p = b.p; *p; p++)
        ck_assert_int_ge((unsigned char)*p, 0x20);
    buf_reset(&b);
    jw_str(&b, "\xe2\x80\xa8\xf0\x9f\x98\x80", 7);
    ck_assert_str_eq(b.p, "\"\xe2\x80\xa8\xf0\x9f\x98\x80\"");
    static const struct {
        double v;
        const char *s;
    } nums[] = {{0, "0.0"},       {-0.0, "0.0"},           {-INFINITY, "-9999.0"},
                {NAN, "-9999.0"}, {-1.5, "-1.5"},          {-12, "-12.0"},
                {1e-10, "1e-10"}, {-0.1f, "-0.100000001"}, {INFINITY, "9999.0"}};
    for (size_t i = 0; i < ARRAY_LEN(nums); i++) {
        buf_reset(&b);
        jw_num(&b, nums[i].v);
        ck_assert_str_eq(b.p, nums[i].s);
    }
    static const int64_t ints[] = {0, 7, -1, INT64_MAX, INT64_MIN};
    for (size_t i = 0; i < ARRAY_LEN(ints); i++) {
        buf_reset(&b);
        jw_int(&b, ints[i]);
        v = parse(b.p, b.len);
        ck_assert_int_eq(json_integer_value(v), ints[i]);
        json_decref(v);
    }
    buf_done(&b);
}
END_TEST

START_TEST(completion_chunks)
{
    struct render r = make(false, true);
    struct buf b = {0};
    struct ending e = {.finish = FINISH_STOP, .stop_id = -1, .stop_string = "\"s\""};
    chunk_put(&b, &r, &(struct chunk){.index = 3, .text = "x\n", .n_text = 2});
    chunk_put(&b, &r, &(struct chunk){.index = 3, .text = "y", .n_text = 1, .ending = &e});
    ck_assert_int_eq(n_events(&b), 2);
    json_t *v = event(&b, 0), *c = json_array_get(json_object_get(v, "choices"), 0);
    ck_assert_str_eq(json_string_value(json_object_get(v, "object")), "text_completion");
    ck_assert_str_eq(json_string_value(json_object_get(v, "model")), "m\"x");
    ck_assert_int_eq(json_integer_value(json_object_get(c, "index")), 3);
    ck_assert_str_eq(text_at(v, false), "x\n");
    ck_assert(json_is_null(json_object_get(c, "finish_reason")));
    ck_assert(json_is_null(json_object_get(c, "logprobs")));
    ck_assert_ptr_null(json_object_get(v, "usage"));
    json_decref(v);
    v = event(&b, 1); /* the last text and the end in one chunk */
    c = json_array_get(json_object_get(v, "choices"), 0);
    ck_assert_str_eq(text_at(v, false), "y");
    ck_assert_str_eq(json_string_value(json_object_get(c, "finish_reason")), "stop");
    ck_assert_str_eq(json_string_value(json_object_get(c, "stop_reason")), "\"s\"");
    json_decref(v);
    buf_reset(&b);
    chunk_usage(&b, &r, &(struct usage){.prompt = 4, .completion = 5});
    v = event(&b, 0);
    ck_assert_uint_eq(json_array_size(json_object_get(v, "choices")), 0);
    ck_assert_int_eq(
        json_integer_value(json_object_get(json_object_get(v, "usage"), "total_tokens")), 9);
    json_decref(v);
    buf_done(&b);
    render_done(&r);
}
END_TEST

START_TEST(chat_chunks)
{
    struct render r = make(true, true);
    r.usage_null = true;
    struct buf b = {0};
    struct ending e = {.finish = FINISH_LENGTH, .stop_id = -1};
    chunk_put(&b, &r, &(struct chunk){.text = "x", .n_text = 1, .role = true});
    chunk_put(&b, &r, &(struct chunk){.text = "y", .n_text = 1, .ending = &e});
    ck_assert_int_eq(n_events(&b), 4); /* role, x, y, end */
    json_t *v = event(&b, 0), *d;
    d = json_object_get(json_array_get(json_object_get(v, "choices"), 0), "delta");
    ck_assert_str_eq(json_string_value(json_object_get(d, "role")), "assistant");
    ck_assert_str_eq(json_string_value(json_object_get(d, "content")), "");
    ck_assert(json_is_null(json_object_get(v, "usage")));
    json_decref(v);
    for (int i = 1; i < 3; i++) {
        v = event(&b, i);
        d = json_object_get(json_array_get(json_object_get(v, "choices"), 0), "delta");
        ck_assert_str_eq(text_at(v, true), i == 1 ? "x" : "y");
        ck_assert_ptr_null(json_object_get(d, "role"));
        json_decref(v);
    }
    v = event(&b, 3);
    json_t *c = json_array_get(json_object_get(v, "choices"), 0);
    ck_assert_uint_eq(json_object_size(json_object_get(c, "delta")), 0);
    ck_assert_str_eq(json_string_value(json_object_get(c, "finish_reason")), "length");
    json_decref(v);
    /* with running usage the last text carries the end */
    struct usage u = {.prompt = 1, .completion = 2};
    buf_reset(&b);
    chunk_put(&b, &r, &(struct chunk){.text = "y", .n_text = 1, .ending = &e, .usage = &u});
    ck_assert_int_eq(n_events(&b), 1);
    v = event(&b, 0);
    c = json_array_get(json_object_get(v, "choices"), 0);
    ck_assert_str_eq(text_at(v, true), "y");
    ck_assert_str_eq(json_string_value(json_object_get(c, "finish_reason")), "length");
    ck_assert(json_is_object(json_object_get(v, "usage")));
    json_decref(v);
    /* an empty generation: role and end */
    buf_reset(&b);
    chunk_put(&b, &r, &(struct chunk){.text = "", .role = true, .ending = &e});
    ck_assert_int_eq(n_events(&b), 2);
    buf_done(&b);
    render_done(&r);
}
END_TEST

static struct gen_tok tok(int32_t id, float lp, int n, const int32_t *ids, const float *lps)
{
    return (struct gen_tok){.id = id, .logprob = lp, .n_top = n, .top_id = ids, .top_logprob = lps};
}

START_TEST(completion_logprobs)
{
    struct render r = make(false, false);
    struct lp_acc a = {0};
    struct buf b = {0};
    static const int32_t ids[] = {0, 5};
    static const float lps[] = {-0.1f, -0.2f};
    struct gen_tok t[] = {tok(0, NAN, 0, NULL, NULL), tok(1, -0.5f, 0, NULL, NULL),
                          tok(2, -1, 0, NULL, NULL),  tok(3, -INFINITY, 2, ids, lps),
                          tok(5, -0.2f, 2, ids, lps), tok(6, -3, 0, NULL, NULL)};
    for (int i = 0; i < 6; i++)
        lp_push(&a, &r, &t[i], i == 0, i == 5);
    lp_push(&a, &r, &t[1], false, false);
    lp_put(&b, &a, false);
    json_t *v = parse(b.p, b.len);
    json_t *tokens = json_object_get(v, "tokens"), *off = json_object_get(v, "text_offset");
    json_t *vals = json_object_get(v, "token_logprobs"), *top = json_object_get(v, "top_logprobs");
    static const char *const want[] = {"a", "\xc3\xa4", "bytes:\\xe2\\x82", "bytes:\\xac",
                                       "a", "<eos>",    "\xc3\xa4"};
    /* characters: a, ä, then one that two tokens share; <eos> shows no text */
    static const int want_off[] = {0, 1, 2, 3, 3, 4, 4};
    ck_assert_uint_eq(json_array_size(tokens), 7);
    for (size_t i = 0; i < 7; i++) {
        ck_assert_str_eq(json_string_value(json_array_get(tokens, i)), want[i]);
        ck_assert_int_eq(json_integer_value(json_array_get(off, i)), want_off[i]);
    }
    ck_assert(json_is_null(json_array_get(vals, 0)));
    ck_assert(json_is_null(json_array_get(top, 0)));
    ck_assert_double_eq(json_real_value(json_array_get(vals, 3)), -9999);
    json_t *m = json_array_get(top, 3); /* two ids with one text, and the sampled one beside them */
    ck_assert_uint_eq(json_object_size(m), 3);
    ck_assert_ptr_nonnull(json_object_get(m, "token_id:5"));
    m = json_array_get(top, 4); /* the sampled one is in the list: not a third time */
    ck_assert_uint_eq(json_object_size(m), 2);
    json_decref(v);
    buf_reset(&b);
    lp_put(&b, &a, false); /* it was emptied */
    ck_assert_str_eq(b.p, "null");
    lp_done(&a);
    buf_done(&b);
    render_done(&r);
}
END_TEST

START_TEST(chat_logprobs)
{
    struct render r = make(true, false);
    struct lp_acc a = {0};
    struct buf b = {0};
    static const int32_t ids[] = {4, 2};
    static const float lps[] = {-0.25f, -2};
    struct gen_tok t = tok(4, -0.25f, 2, ids, lps);
    lp_push(&a, &r, &t, false, false);
    lp_push(&a, &r, &t, false, false);
    lp_put(&b, &a, true);
    json_t *v = parse(b.p, b.len), *c = json_object_get(v, "content");
    ck_assert_uint_eq(json_array_size(c), 2);
    json_t *x = json_array_get(c, 1), *top = json_object_get(x, "top_logprobs");
    ck_assert_str_eq(json_string_value(json_object_get(x, "token")), "\"\n");
    ck_assert_int_eq(json_integer_value(json_array_get(json_object_get(x, "bytes"), 1)), 10);
    ck_assert_uint_eq(json_array_size(top), 2);
    x = json_array_get(top, 1);
    ck_assert_str_eq(json_string_value(json_object_get(x, "token")), "bytes:\\xe2\\x82");
    ck_assert_int_eq(json_integer_value(json_array_get(json_object_get(x, "bytes"), 0)), 0xe2);
    json_decref(v);
    buf_reset(&b);
    r.tokens_as_ids = true;
    lp_push(&a, &r, &t, false, false);
    lp_put(&b, &a, true);
    ck_assert_ptr_nonnull(strstr(b.p, "\"token\":\"token_id:4\""));
    lp_done(&a);
    buf_done(&b);
    render_done(&r);
}
END_TEST

START_TEST(answers)
{
    for (int chat = 0; chat < 2; chat++) {
        struct render r = make(chat, false);
        struct buf b = {0};
        struct ending e[2] = {{.finish = FINISH_STOP, .stop_id = 7},
                              {.finish = FINISH_LENGTH, .stop_id = -1}};
        answer_open(&b, &r);
        for (int i = 0; i < 2; i++)
            answer_choice(&b, &r,
                          &(struct chunk){.index = i, .text = "t\"", .n_text = 2, .ending = &e[i]});
        answer_close(&b, &(struct usage){.prompt = 3, .completion = 4, .cached = 2});
        json_t *v = parse(b.p, b.len), *cs = json_object_get(v, "choices");
        ck_assert_uint_eq(json_array_size(cs), 2);
        json_t *c = json_array_get(cs, 0), *m = json_object_get(c, "message");
        ck_assert_str_eq(
            json_string_value(chat ? json_object_get(m, "content") : json_object_get(c, "text")),
            "t\"");
        ck_assert_int_eq(json_integer_value(json_object_get(c, "stop_reason")), 7);
        if (chat)
            ck_assert(json_is_null(json_object_get(m, "refusal")));
        json_t *u = json_object_get(v, "usage");
        ck_assert_int_eq(json_integer_value(json_object_get(u, "total_tokens")), 7);
        ck_assert_int_eq(json_integer_value(json_object_get(
                             json_object_get(u, "prompt_tokens_details"), "cached_tokens")),
                         2);
        json_decref(v);
        buf_done(&b);
        render_done(&r);
    }
}
END_TEST

/* The counts of speculation stand in usage when drafts were possible, and nowhere else. */
START_TEST(speculation)
{
    struct usage u = {.prompt = 3, .completion = 9, .verifies = 4, .drafted = 12, .accepted = 5};
    for (int i = 0; i < 3; i++) {
        struct buf b = {0};
        u.spec = i > 0;
        if (i == 2)
            u.verifies = u.drafted = u.accepted = 0; /* it ended with its first token */
        usage_put(&b, &u);
        json_t *v = parse(b.p, b.len), *s = json_object_get(v, "speculation");
        ck_assert_int_eq(json_integer_value(json_object_get(v, "total_tokens")), 12);
        ck_assert_int_eq(s != NULL, i > 0);
        if (i > 0) {
            json_t *mean = json_object_get(s, "mean_accepted_length");
            ck_assert_uint_eq(json_object_size(s), 4);
            ck_assert_int_eq(json_integer_value(json_object_get(s, "verifies")), i == 1 ? 4 : 0);
            ck_assert_int_eq(json_integer_value(json_object_get(s, "drafted")), i == 1 ? 12 : 0);
            ck_assert_int_eq(json_integer_value(json_object_get(s, "accepted")), i == 1 ? 5 : 0);
            ck_assert(i == 1 ? json_real_value(mean) == 2.25 : json_is_null(mean));
        }
        json_decref(v);
        buf_done(&b);
    }
}
END_TEST

Suite *suite_server_render(void)
{
    Suite *s = suite_create("server_render");
    TCase *t = tcase_create("render");
    tcase_add_test(t, writer);
    tcase_add_test(t, completion_chunks);
    tcase_add_test(t, chat_chunks);
    tcase_add_test(t, completion_logprobs);
    tcase_add_test(t, chat_logprobs);
    tcase_add_test(t, answers);
    tcase_add_test(t, speculation);
    suite_add_tcase(s, t);
    return s;
}
