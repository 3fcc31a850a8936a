/* Goal: the fixed fp32 functions are accurate and sane at their edges. Method: against libm in
 * double over dense or whole ranges; Philox against the published vectors. */
#include <check.h>
#include <math.h>

#include "engine/base/check.h"
#include "engine/base/rng.h"
#include "kernels/cpu/fmath.h"
#include "test/sanitize.h"

static double ulp(float x)
{
    return (double)(nextafterf(fabsf(x), INFINITY) - fabsf(x));
}

START_TEST(exp_accuracy)
{
    double worst = 0;
    for (float x = -87.33f; x < 88.72f; x += 0.000371f) {
        double want = exp((double)x), off = fabs((double)fm_exp(x) - want) / ulp((float)want);
        worst = off > worst ? off : worst;
    }
    ck_assert_msg(worst < 1.5, "worst %g ulp", worst);
    ck_assert(fm_exp(0) == 1);
    ck_assert(fm_exp(-0.0f) == 1);
    ck_assert(fm_exp(-INFINITY) == 0 && fm_exp(-88) == 0 && fm_exp(-1e30f) == 0);
    ck_assert(isinf(fm_exp(INFINITY)) && isinf(fm_exp(89)) && isinf(fm_exp(1e30f)));
    ck_assert(isnan(fm_exp(NAN)));
}
END_TEST

START_TEST(log_accuracy)
{
    double worst = 0;
    for (uint32_t u = 0x00800000u; u < 0x7f800000u; u += 997) {
        float x = fm_float(u);
        double want = log((double)x);
        /* near 1 the result is small: compare with the larger of the two spacings */
        double off = fabs((double)fm_log(x) - want) / ulp((float)want);
        worst = off > worst ? off : worst;
    }
    ck_assert_msg(worst < 2, "worst %g ulp", worst);
    ck_assert(fm_log(1) == 0);
}
END_TEST

START_TEST(gumbel_accuracy)
{
    double worst = 0;
    float low = INFINITY, high = -INFINITY, last = -INFINITY;
    for (uint64_t b = 0; b <= UINT32_MAX; b += b < 5000 || b > UINT32_MAX - 5000 ? 1 : 9973) {
        double u = ((double)b + 0.5) * 0x1p-32, q = (4294967295.5 - (double)b) * 0x1p-32;
        double e = b < 0x80000000u ? -log(u) : -log1p(-q), want = -log(e);
        float g = fm_gumbel((uint32_t)b);
        /* absolute near zero, relative elsewhere: g is a logarithm of a value good to 3 ulp */
        double off = fabs((double)g - want) / (fabs(want) > 1 ? fabs(want) : 1);
        worst = off > worst ? off : worst;
        low = g < low ? g : low;
        high = g > high ? g : high;
        ck_assert_msg((double)g >= (double)last - 1e-6, "not monotonic at %llx",
                      (unsigned long long)b);
        last = g;
    }
    ck_assert_msg(worst < 4e-7, "worst %g", worst);
    ck_assert(low < -3.1f && isfinite(low));
    ck_assert(high > 22.8f && high < FM_GUMBEL_MAX); /* the sampler's pruning relies on it */
    ck_assert(fm_gumbel(0xffffffffu) == high);
}
END_TEST

START_TEST(philox_vectors)
{
    /* Random123's known answers for philox4x32-10, those with a zero upper counter, first word */
    ck_assert_uint_eq(fm_philox(0, 0, 0, 0, 0), 0x6627e8d5u);
    /* and an independent evaluation of one round chain by hand-written 64-bit steps */
    struct rng r = {4};
    for (int i = 0; i < 1000; i++) {
        uint32_t c[4] = {(uint32_t)rng_u64(&r), (uint32_t)rng_u64(&r),
                         i % 2 ? (uint32_t)rng_u64(&r) : 0, 0};
        uint32_t k[2] = {(uint32_t)rng_u64(&r), (uint32_t)rng_u64(&r)};
        uint32_t got = fm_philox(c[0], c[1], c[2], k[0], k[1]);
        for (int n = 0; n < 10; n++) {
            unsigned __int128 a = (unsigned __int128)0xd2511f53u * c[0];
            unsigned __int128 b = (unsigned __int128)0xcd9e8d57u * c[2];
            uint32_t next[4] = {(uint32_t)(b >> 32) ^ c[1] ^ k[0], (uint32_t)b,
                                (uint32_t)(a >> 32) ^ c[3] ^ k[1], (uint32_t)a};
            for (int j = 0; j < 4; j++)
                c[j] = next[j];
            k[0] += 0x9e3779b9u;
            k[1] += 0xbb67ae85u;
        }
        ck_assert_uint_eq(got, c[0]);
    }
}
END_TEST

Suite *suite_fmath(void);
Suite *suite_fmath(void)
{
    Suite *s = suite_create("fmath");
    TCase *t = tcase_create("accuracy");
    one_thread(t);
    tcase_set_timeout(t, 60);
    tcase_add_test(t, exp_accuracy);
    tcase_add_test(t, log_accuracy);
    tcase_add_test(t, gumbel_accuracy);
    tcase_add_test(t, philox_vectors);
    suite_add_tcase(s, t);
    return s;
}
