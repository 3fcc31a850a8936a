/* Element types: sizes, names and scalar conversions. No state, any thread. The conversions here
 * are exact and define what the vector forms of a device must give. */
#include "kernels/dtype.h"

#include <math.h>
#include <string.h>

#include "engine/base/check.h"

static const struct {
    size_t size;
    const char *name;
} g_dtypes[DT_COUNT] = {
    [DT_NONE] = {0, "none"}, [DT_F32] = {4, "f32"},       [DT_BF16] = {2, "bf16"},
    [DT_F16] = {2, "f16"},   [DT_F8E4M3] = {1, "f8e4m3"}, [DT_I32] = {4, "i32"},
    [DT_I64] = {8, "i64"},   [DT_U8] = {1, "u8"},
};

size_t dtype_size(enum dtype dt)
{
    return (unsigned)dt < DT_COUNT ? g_dtypes[dt].size : 0;
}

const char *dtype_name(enum dtype dt)
{
    return (unsigned)dt < DT_COUNT ? g_dtypes[dt].name : "?";
}

float dtype_f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t exp = (h >> 10) & 31, man = h & 1023;
    if (exp == 0) { /* zero or subnormal: man * 2^-24 */
        float f = (float)man * 0x1p-24f;
        return sign ? -f : f;
    }
    uint32_t u = exp == 31 ? sign | 0x7f800000u | man << 13 : sign | (exp + 112) << 23 | man << 13;
    float f;
    memcpy(&f, &u, 4);
    return f;
}

float dtype_f8e4m3_to_f32(uint8_t v)
{
    if ((v & 0x7f) == 0x7f)
        return NAN;
    int exp = (v >> 3) & 15, man = v & 7;
    float f = exp ? ldexpf((float)(8 + man), exp - 10) : (float)man * 0x1p-9f;
    return v & 0x80 ? -f : f;
}

uint16_t dtype_f32_to_bf16(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(u >> 16 | 0x40); /* NaN stays NaN */
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1)) >> 16);
}

uint8_t dtype_f32_to_f8e4m3(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    uint8_t sign = (uint8_t)(u >> 24 & 0x80);
    u &= 0x7fffffffu;
    if (u > 0x7f800000u)
        return 0x7f;
    if (u >= 0x43e00000u) /* 448 */
        return sign | 0x7e;
    if (u >= 0x3c800000u) /* 2^-6, the smallest normal; the carry may reach the exponent */
        return sign | (uint8_t)(((u + 0x7ffffu + (u >> 20 & 1)) >> 20) - (120u << 3));
    float units = fabsf(f) + 0x1p14f; /* 2^-9 is the last bit of the sum */
    memcpy(&u, &units, 4);
    return sign | (uint8_t)(u & 0xf);
}

float dtype_load(const void *p, enum dtype dt, int64_t i)
{
    switch (dt) {
    case DT_F32:
        return ((const float *)p)[i];
    case DT_BF16:
        return dtype_bf16_to_f32(((const uint16_t *)p)[i]);
    case DT_F16:
        return dtype_f16_to_f32(((const uint16_t *)p)[i]);
    case DT_F8E4M3:
        return dtype_f8e4m3_to_f32(((const uint8_t *)p)[i]);
    case DT_NONE:
    case DT_I32:
    case DT_I64:
    case DT_U8:
    case DT_COUNT:
        break;
    }
    return NAN;
}

void dtype_store(void *p, enum dtype dt, int64_t i, float v)
{
    switch (dt) {
    case DT_F32:
        ((float *)p)[i] = v;
        return;
    case DT_BF16:
        ((uint16_t *)p)[i] = dtype_f32_to_bf16(v);
        return;
    case DT_F8E4M3:
        ((uint8_t *)p)[i] = dtype_f32_to_f8e4m3(v);
        return;
    case DT_NONE:
    case DT_F16:
    case DT_I32:
    case DT_I64:
    case DT_U8:
    case DT_COUNT:
        break;
    }
    CHECK(!"an element to store is f32, bf16 or f8e4m3");
}
