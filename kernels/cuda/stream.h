/* What CUDA code outside kernels/cuda needs of an open device. C and C++; no CUDA headers. */
#ifndef SPECD_CUDA_STREAM_H
#define SPECD_CUDA_STREAM_H

#include "kernels/device.h"

void *cuda_dev_stream(struct dev *d); /* cudaStream_t */
void cuda_dev_count_launch(struct dev *d);
bool cuda_dev_early(const struct dev *d); /* see kernels/cuda/launch.cuh */

#endif
