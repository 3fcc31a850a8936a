/* Element types of weights and activations, and the description of a weight matrix. C and C++. */
#ifndef SPECD_DTYPE_H
#define SPECD_DTYPE_H

#include <stddef.h>
#include <stdint.h>

enum dtype { DT_NONE, DT_F32, DT_BF16, DT_F16, DT_F8E4M3, DT_I32, DT_I64, DT_U8, DT_COUNT };

size_t dtype_size(enum dtype dt); /* bytes of one element */
const char *dtype_name(enum dtype dt);

/* A weight [n, k], row-major, read where it lies (a memory-mapped file on the CPU device). With
 * F8E4M3 the value of element (i, j) is fp8(w) * scale[i / 128][j / 128]; scale has
 * ceil(n / 128) rows of ceil(k / 128) elements. Vectors (norms, biases) have n = 1. */
struct weight {
    const void *p; /* NULL: absent */
    enum dtype dt;
    int64_t n, k;
    const void *scale; /* NULL unless F8E4M3 */
    enum dtype scale_dt;
};

static inline float dtype_bf16_to_f32(uint16_t h)
{
    union {
        uint32_t u;
        float f;
    } v;
    v.u = (uint32_t)h << 16;
    return v.f;
}

float dtype_f16_to_f32(uint16_t h);
float dtype_f8e4m3_to_f32(uint8_t v); /* "fn" kind: no infinities, 0x7f and 0xff are NaN */
uint16_t dtype_f32_to_bf16(float f);  /* to nearest even */
/* To nearest even; what is beyond 448, infinities too, becomes 448 of its sign; NaN is 0x7f. */
uint8_t dtype_f32_to_f8e4m3(float f);
/* Element i of an array of type dt (F32, BF16, F16, F8E4M3) as float. */
float dtype_load(const void *p, enum dtype dt, int64_t i);
/* And back: element i of an array of F32, BF16 or F8E4M3. */
void dtype_store(void *p, enum dtype dt, int64_t i, float v);

#endif
