// Which random stream a draw of a training run comes from.
#pragma once

#include <cstdint>

#include "../number/random.hpp"

namespace microscale {

// The operands of a linear layer Y = X W^T, and the three GEMMs of a training step that they enter.
enum class operand_role : std::uint8_t { activation, weight, output_gradient };  // X, W, dY
enum class gemm_role : std::uint8_t { fprop, dgrad, wgrad };                     // Y = X W^T; dX = dY W; dW = dY^T X

// What the bits are for: rounding elements, rounding block scales, or drawing the signs of a transform.
enum class draw_purpose : std::uint8_t { elements, scales, signs };

// Where a training run stands. Steps count from 1; the micro-batches of one step count from 0 and do not advance it.
struct training_step {
  std::int64_t step = 1;
  std::int32_t micro_batch = 0;
  std::uint64_t seed = 0;
};

// The stream of one operand in one GEMM of one layer, from the low bits up: purpose 2, GEMM 2, operand 2, micro-batch
// 10, layer 16, step 32. So Dgrad and Wgrad, two layers, and two micro-batches draw independently, and a resumed run
// draws what the uninterrupted one would have. Numbers beyond a field's range wrap around.
MICROSCALE_HD constexpr std::uint64_t random_stream(const training_step& at, std::uint32_t layer, operand_role operand,
                                                    gemm_role gemm,
                                                    draw_purpose purpose = draw_purpose::elements) noexcept {
  std::uint64_t stream = static_cast<std::uint32_t>(at.step);
  stream = stream << 16 | (layer & 0xFFFFu);
  stream = stream << 10 | (static_cast<std::uint32_t>(at.micro_batch) & 0x3FFu);
  stream = stream << 2 | static_cast<std::uint64_t>(operand);
  stream = stream << 2 | static_cast<std::uint64_t>(gemm);
  return stream << 2 | static_cast<std::uint64_t>(purpose);
}

// What the step and the micro-batch add to a stream: random_stream(at, ...) is random_stream({0}, ...) +
// stream_offset(at), whatever follows. For draws that go on where the host does not take part (with_stream_offset,
// cuda/quantize_call.cuh, and draw_signs_into, cuda/hadamard.cuh).
MICROSCALE_HD constexpr std::uint64_t stream_offset(const training_step& at) noexcept {
  return random_stream(at, 0, operand_role{}, gemm_role{}, draw_purpose{});
}

}  // namespace microscale
