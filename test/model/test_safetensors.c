/* Goal: a malformed safetensors file is refused with file and tensor named, a good one is read in
 * place. Method: headers by hand around a small data part, one fault each; then the index of a
 * sharded set, names of wrapped models, scales, stacks and the count of what is in use. */
#include <check.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/model/safetensors.h"

/* 8 bytes of length, the header, `data` bytes of 1, 2, 3, …; the length of it in *n. */
static char *file_of(const char *head, size_t data, size_t *n)
{
    size_t len = strlen(head);
    char *p = mem_calloc(1, 8 + len + data + 1);
    for (int i = 0; i < 8; i++)
        p[i] = (char)(len >> (8 * i));
    memcpy(p + 8, head, len);
    for (size_t i = 0; i < data; i++)
        p[8 + len + i] = (char)(i + 1);
    *n = 8 + len + data;
    return p;
}

#define T(type, shape, from, to)                                                                   \
    "{\"dtype\":\"" type "\",\"shape\":" shape ",\"data_offsets\":[" #from "," #to "]}"

static const struct {
    const char *head;
    size_t data;
    const char *want, *want2;
} bad[] = {
    {"", 0, "f.st", "JSON"},
    {"[1]", 0, "f.st", "an array"},
    {"{\"a\":", 0, "f.st", "JSON"},
    {"{\"a\":1}", 0, "'a'", "dtype, shape, data_offsets"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "'a'", "data_offsets"},
    {"{\"a\":" T("F33", "[1]", 0, 4) "}", 4, "'a'", "F33"},
    {"{\"a\":{\"dtype\":7,\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "'a'", "dtype"},
    {"{\"a\":" T("F32", "1", 0, 4) "}", 4, "'a'", "shape"},
    {"{\"a\":" T("F32", "[1,1,1,1,1,1,1,1,1]", 0, 4) "}", 4, "'a'", "shape"},
    {"{\"a\":" T("F32", "[-1]", 0, 4) "}", 4, "'a'", "shape"},
    {"{\"a\":" T("F32", "[1.0]", 0, 4) "}", 4, "'a'", "shape"},
    {"{\"a\":" T("F32", "[4611686018427387904,4]", 0, 4) "}", 4, "'a'", "too large"},
    {"{\"a\":" T("F32", "[2]", 0, 4) "}", 4, "'a'", "needs 8"},
    {"{\"a\":" T("F32", "[1]", 0, 8) "}", 8, "'a'", "needs 4"},
    {"{\"a\":" T("F32", "[1]", 4, 8) "}", 4, "'a'", "inside"},
    {"{\"a\":" T("F32", "[1]", 4, 0) "}", 4, "'a'", "inside"},
    {"{\"a\":" T("F32", "[1]", -4, 0) "}", 4, "'a'", "inside"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", 4, "'a'", "inside"},
    {"{\"a\":" T("F32", "[1]", 0, 4) ",\"b\":" T("F32", "[1]", 0, 4) "}", 4, "'b'", "overlaps"},
    {"{\"a\":" T("F32", "[2]", 0, 8) ",\"b\":" T("F32", "[1]", 4, 8) "}", 8, "'b'", "overlaps"},
    {"{\"a\":" T("F32", "[1]", 0, 4) ",\"b\":" T("F32", "[1]", 8, 12) "}", 12, "'b'", "no tensor"},
    {"{\"a\":" T("F32", "[1]", 0, 4) "}", 8, "f.st", "last 4"},
    {"{\"a\":" T("U8", "[1]", 0, 1) ",\"b\":" T("BF16", "[1]", 1, 3) "}", 3, "'b'", "aligned"},
    {"{\"a\":" T("F32", "[1]", 0, 4) ",\"a\":" T("F32", "[1]", 4, 8) "}", 8, "f.st", "duplicate"},
    {"{\"\":" T("F32", "[1]", 0, 4) "}", 4, "f.st", "0 bytes"},
};

START_TEST(malformed)
{
    size_t n;
    struct err e = {0};
    char *p = file_of(bad[_i].head, bad[_i].data, &n);
    struct tensors *t = tensors_new(false);
    int r = tensors_add(t, p, n, "f.st", &e);
    ck_assert_msg(r == E_FORMAT, "accepted: %s", bad[_i].head);
    ck_assert_msg(strstr(e.text, bad[_i].want) && strstr(e.text, bad[_i].want2) &&
                      strstr(e.text, "f.st"),
                  "the error is: %s", e.text);
    tensors_close(t);
    mem_free(p);
}
END_TEST

START_TEST(header_length)
{
    static const struct {
        unsigned char len[8];
        size_t size;
    } v[] = {
        {{2}, 7}, /* shorter than the length itself */
        {{3}, 10},
        {{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, 64},
        {{0, 0xe1, 0xf5, 5, 1}, 64},
    };
    for (size_t i = 0; i < ARRAY_LEN(v); i++) {
        struct err e = {0};
        char buf[64] = {0};
        memcpy(buf, v[i].len, 8);
        memcpy(buf + 8, "{}", 2);
        struct tensors *t = tensors_new(false);
        ck_assert_int_eq(tensors_add(t, buf, v[i].size, "f.st", &e), E_FORMAT);
        ck_assert_ptr_nonnull(strstr(e.text, "f.st"));
        tensors_close(t);
    }
}
END_TEST

START_TEST(read_in_place)
{
    static const char head[] =
        "{\"__metadata__\":{\"format\":\"pt\"},\"b\":" T("BF16", "[2,3]", 8, 20) ",\"a\":" T(
            "F32", "[2]", 0, 8) ",\"empty\":" T("F32", "[0,5]", 20, 20) "}   ";
    size_t n;
    struct err e = {0};
    struct weight w;
    char *p = file_of(head, 20, &n);
    const char *data = p + n - 20;
    struct tensors *t = tensors_new(false);
    ck_assert_msg(tensors_add(t, p, n, "f.st", &e) == OK, "%s", e.text);
    ck_assert_uint_eq(tensors_count(t), 3);
    ck_assert_int_eq(tensors_take(t, "a", 1, 2, TAKE_VECTOR, &w, &e), 1);
    ck_assert(w.p == data && w.dt == DT_F32 && w.n == 1 && w.k == 2 && !w.scale);
    ck_assert_int_eq(tensors_take(t, "b", 2, 3, 0, &w, &e), 1);
    ck_assert(w.p == data + 8 && w.dt == DT_BF16 && w.n == 2 && w.k == 3);
    ck_assert_int_eq(tensors_take(t, "c", 2, 3, TAKE_OPTIONAL, &w, &e), 0);
    ck_assert_ptr_null(w.p);
    ck_assert_int_eq(tensors_take(t, "c", 2, 3, 0, &w, &e), E_FORMAT);
    ck_assert_int_eq(tensors_params(t), 8);
    ck_assert_uint_eq(tensors_bytes(t), 20);
    ck_assert_int_eq(tensors_all_taken(t, &e), E_FORMAT);
    ck_assert_ptr_nonnull(strstr(e.text, "'empty'"));
    tensors_ignore(t, "empty");
    tensors_ignore(t, "not there");
    ck_assert_int_eq(tensors_all_taken(t, &e), OK);
    /* another file of the set must not repeat a name */
    ck_assert_int_eq(tensors_add(t, p, n, "g.st", &e), E_FORMAT);
    ck_assert(strstr(e.text, "g.st") && strstr(e.text, "f.st"));
    tensors_close(t);
    mem_free(p);
}
END_TEST

START_TEST(scales_and_stacks)
{
    static const char head[] =
        "{\"s\":" T("F32", "[2,1]", 0, 8) ",\"w_scale_inv\":" T("F32", "[1,1]", 8, 12) ",\"w\":" T(
            "F8_E4M3", "[2,3]", 12, 18) ",\"v\":" T("BF16", "[2,1,2]", 18, 26) "}";
    size_t n;
    struct err e = {0};
    struct weight w, two[2];
    char *p = file_of(head, 26, &n);
    struct tensors *t = tensors_new(false);
    ck_assert_msg(tensors_add(t, p, n, "f.st", &e) == OK, "%s", e.text);
    ck_assert_int_eq(tensors_take_stack(t, "v", 2, 1, 2, 0, two, &e), 1);
    ck_assert(two[0].n == 1 && two[0].k == 2 && two[1].p == (const char *)two[0].p + 4);
    ck_assert_int_eq(tensors_take(t, "w", 2, 3, TAKE_FP8, &w, &e), E_FORMAT);
    tensors_close(t);
    t = tensors_new(false);
    ck_assert_int_eq(tensors_add(t, p, n, "f.st", &e), OK);
    tensors_allow_fp8(t);
    ck_assert_int_eq(tensors_take(t, "w", 2, 3, TAKE_FP8, &w, &e), 1);
    ck_assert(w.dt == DT_F8E4M3 && w.scale && w.scale_dt == DT_F32);
    ck_assert_int_eq(tensors_params(t), 6); /* scales do not count */
    ck_assert_uint_eq(tensors_bytes(t), 10);
    tensors_close(t);
    mem_free(p);
}
END_TEST

START_TEST(wrapped_names)
{
    static const char head[] = "{\"language_model.lm_head.weight\":" T(
        "F32", "[1]", 0,
        4) ",\"model.language_model.norm.weight\":" T("F32", "[1]", 4,
                                                      8) ",\"model.visual.x\":" T("F32", "[1]", 8,
                                                                                  12) "}";
    size_t n;
    struct err e = {0};
    char *p = file_of(head, 12, &n);
    struct tensors *t = tensors_new(true);
    ck_assert_msg(tensors_add(t, p, n, "f.st", &e) == OK, "%s", e.text);
    ck_assert_ptr_nonnull(tensors_find(t, "lm_head.weight"));
    ck_assert_ptr_nonnull(tensors_find(t, "model.norm.weight"));
    tensors_ignore(t, "lm_head.weight");
    tensors_ignore(t, "model.norm.weight");
    ck_assert_int_eq(tensors_all_taken(t, &e), OK); /* the visual part is somebody else's */
    tensors_close(t);
    mem_free(p);
}
END_TEST

START_TEST(many_names)
{
    enum { N = 5000 };
    struct err e = {0};
    char *head = mem_calloc(1, N * 80), *at = head;
    for (int i = 0; i < N; i++)
        at +=
            snprintf(at, 80, "%s\"t.%d\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[%d,%d]}",
                     i ? "," : "{", i, i, i + 1);
    snprintf(at, 80, "}");
    size_t n;
    char *p = file_of(head, N, &n);
    struct tensors *t = tensors_new(false);
    ck_assert_msg(tensors_add(t, p, n, "f.st", &e) == OK, "%s", e.text);
    for (int i = 0; i < N; i++) {
        char name[32];
        snprintf(name, sizeof name, "t.%d", i);
        const struct tensor *x = tensors_find(t, name);
        ck_assert(x && x->p == p + n - N + i);
    }
    tensors_close(t);
    mem_free(p);
    mem_free(head);
}
END_TEST

Suite *suite_safetensors(void)
{
    Suite *s = suite_create("safetensors");
    TCase *t = tcase_create("file");
    tcase_add_loop_test(t, malformed, 0, (int)ARRAY_LEN(bad));
    tcase_add_test(t, header_length);
    tcase_add_test(t, read_in_place);
    tcase_add_test(t, scales_and_stacks);
    tcase_add_test(t, wrapped_names);
    tcase_add_test(t, many_names);
    suite_add_tcase(s, t);
    return s;
}
