// Whether gradients still stand out of the noise that quantizing them adds.
#pragma once

#include "../tensor/metrics.hpp"

namespace microscale {

// arXiv 2505.19115: training with a quantized backward pass stops paying once the norm of the gradient falls below
// sqrt(3) times that of the quantization noise; from then on its authors run the backward pass in BF16
// (linear::set_bf16_backward). Both arguments are norms of one and the same vector, or both are per element. NaN says
// no.
inline bool is_below_noise(double gradient_norm, double noise_norm) noexcept {
  return gradient_norm < __builtin_sqrt(3.0) * noise_norm;
}

// The same from what was measured of a gradient, of one layer or added up over many (linear_metrics::output_gradient):
// signal and noise are the two squared norms.
inline bool is_below_noise(const quantization_metrics& gradient) noexcept {
  return is_below_noise(__builtin_sqrt(gradient.signal), __builtin_sqrt(gradient.noise));
}

}  // namespace microscale
