/* Tolerances of the operation and attention contract tests against double arithmetic. An element
 * passes when its absolute or its relative error holds, and the tensor when its normalised mean
 * square error does. NaN and infinity must sit in the same places. Loosening a row needs a comment
 * that explains the arithmetic. */
#ifndef SPECD_TEST_TOL_H
#define SPECD_TEST_TOL_H

struct tol {
    double abs, rel, nmse;
};

/* fp32 eps is 6e-8. Sums of n rounded terms of size s drift by about s * eps * sqrt(n) / 4 with 16
 * lanes, so 1e-5 holds for unit inputs up to n = 10,000. */
static const struct tol TOL_EXACT = {0, 0, 0};
static const struct tol TOL_ELEM = {1e-7, 4e-7, 1e-13}; /* a few roundings: norms, rope, silu */
static const struct tol TOL_PROD = {2e-5, 1e-5, 1e-11}; /* dot products of unit numbers */
static const struct tol TOL_FFN = {5e-5, 3e-5, 1e-11};  /* three products after each other */
static const struct tol TOL_ATTN = {1e-5, 1e-5, 1e-11}; /* weights sum to 1 */
/* the expansion adds a product of its own before the scores */
static const struct tol TOL_ATTN_FULL = {3e-5, 3e-5, 1e-10};
static const struct tol TOL_LSE = {1e-5, 1e-6, 1e-11}; /* design: 1e-5 absolute for fp32 inputs */
static const struct tol TOL_LOGPROB = {2e-6, 1e-6, 1e-12};

#endif
