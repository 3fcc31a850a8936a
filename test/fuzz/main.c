/* Entry point of libFuzzer for one target: `make fuzz F=NAME` builds it with
 * -DFUZZ_TARGET=fuzz_NAME. Owns nothing; the targets are functions in fuzz_NAME.c and are replayed
 * by `make test` too. */
#include <stddef.h>
#include <stdint.h>

int FUZZ_TARGET(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    return FUZZ_TARGET(data, size);
}
