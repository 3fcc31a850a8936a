/* A tokenizer whose token i spells i in eight letters a and b: every stop string over that alphabet
 * is found across token borders at a handy rate. Shared by the scheduler tests. */
#ifndef SPECD_TEST_SCHED_TEXT_H
#define SPECD_TEST_SCHED_TEXT_H

#include <check.h>

#include "engine/base/buf.h"
#include "engine/text/tokenizer.h"

enum { SCHED_TEXT_LEN = 8 };

static inline void sched_text_token(int id, char out[SCHED_TEXT_LEN + 1])
{
    for (int i = 0; i < SCHED_TEXT_LEN; i++)
        out[i] = id >> i & 1 ? 'a' : 'b';
    out[SCHED_TEXT_LEN] = 0;
}

static inline void sched_text_json(struct buf *b)
{
    buf_str(b, "{\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"
               "\"use_regex\":false},\"decoder\":{\"type\":\"ByteLevel\"},"
               "\"model\":{\"type\":\"BPE\",\"merges\":[],\"vocab\":{");
    for (int id = 0; id < 256; id++) {
        char s[SCHED_TEXT_LEN + 1];
        sched_text_token(id, s);
        buf_fmt(b, "%s\"%s\":%d", id ? "," : "", s, id);
    }
    buf_str(b, "}}}");
}

static inline struct tokenizer *sched_text_open(void)
{
    struct buf b;
    buf_init(&b, 0);
    sched_text_json(&b);
    struct tokenizer *t = NULL;
    struct err e = {0};
    ck_assert_msg(tok_parse(&t, b.p, b.len, NULL, 0, &e) == OK, "%s", e.text);
    buf_done(&b);
    return t;
}

#endif
