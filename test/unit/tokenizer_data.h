/* Reading of test/data/tokenizer for the suites tokenizer, tokenizer_ref and stream: xz files,
 * varints, and the tokenizers by name. Failing to read is a failing test. */
#ifndef SPECD_TEST_UNIT_TOKENIZER_DATA_H
#define SPECD_TEST_UNIT_TOKENIZER_DATA_H

#include <stddef.h>
#include <stdint.h>

#include "engine/base/buf.h"
#include "engine/text/tokenizer.h"

/* The whole content of test/data/tokenizer/NAME.xz; mem_free. */
char *data_xz(const char *name, size_t *len);

struct cursor {
    const char *p;
    size_t len, at;
};
uint32_t cur_varint(struct cursor *c);
const char *cur_bytes(struct cursor *c, size_t n); /* borrowed */

/* Names: qwen3 deepseek_v3 (xz), sp_prepend sp_meta sp_plain, demo (configs/models/demo). */
extern const char *const data_names[];
struct tokenizer *data_tokenizer(const char *name);

#endif
