// The tensor core's instructions and what feeds them: E2M1 codes to BF16, fragments, barriers, bulk copies.
#pragma once

#include <cstdint>

#include "../number/config.hpp"
#include "../number/fp32.hpp"
#include "../tensor/accumulate.hpp"
#include "../tensor/view.hpp"
#include "number.cuh"

namespace microscale::detail::device {

// Whether a format's codes are those of E2M1, so that runs can be taken eight codes at a time.
template <class F>
inline constexpr bool is_e2m1 = false;
template <class F>
requires requires { F::exponent_bits; }
inline constexpr bool is_e2m1<F> =
    F::exponent_bits == 2 && F::mantissa_bits == 1 && F::bias == 1 && F::has_sign && F::largest_code == 7;

// Whether element times block scale is exact in BF16 (but for products of 2^128 and above), and runs of 16 share a
// scale.
template <class S>
inline constexpr bool decodes_by_sixteen =
    is_e2m1<typename S::element>&& S::scale::bits <= 8 && S::scale::mantissa_bits <= 5 &&
    S::scale::step_exponent >= -127 &&
    span_bits<typename S::scale>() - 1 + S::scale::step_exponent <= 128 && S::block::columns % 16 == 0;

// Selects bytes of {low, high}; bit 3 of a selecting nibble repeats the sign of the byte instead.
__device__ inline std::uint32_t select_bytes(std::uint32_t low, std::uint32_t high, std::uint32_t nibbles) {
  std::uint32_t r;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(low), "r"(high), "r"(nibbles));
  return r;
}

// The first n <= 8 codes of four bits at p, zeros beyond.
__device__ inline std::uint32_t load_eight(const std::uint8_t* p, int n, bool aligned) {
  if (aligned && n == 8) return *reinterpret_cast<const std::uint32_t*>(p);
  std::uint32_t codes = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (2 * i < n) codes |= std::uint32_t{p[i]} << (8 * i);
  }
  return n < 8 ? codes & ((1u << (4 * larger(n, 0))) - 1u) : codes;
}

// Two BF16 products in one register, each rounded to nearest even, subnormals kept, -0 where the product is one.
__device__ inline std::uint32_t multiply_bf16x2(std::uint32_t a, std::uint32_t b) {
  std::uint32_t r;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(0x80008000u));
  return r;
}
MICROSCALE_HD constexpr std::uint32_t twice(std::uint16_t half) noexcept { return half * 0x10001u; }

// What spread_e2m1 multiplies by. Kernels get it as an argument: multiplications by constants would become shifts and
// additions on a slower pipe.
struct e2m1_places {
  std::uint32_t even = (1u << 12) + (1u << 6);
  std::uint32_t odd = (1u << 8) + (1u << 2);
};

// Eight E2M1 codes (element i in bits 4i ... 4i + 3) as pairs (i, i + 4) of BF16 numbers value * 2^-126. The exponent
// and mantissa bits of E2M1 are those of a BF16 number with so much smaller a bias, subnormals included. A
// multiplication moves them and the sign to their places, where nothing else arrives.
__device__ inline void spread_e2m1(std::uint32_t codes, const e2m1_places& places, std::uint32_t (&pairs)[4]) {
  constexpr std::uint32_t kept = 0x81C081C0u;
  const std::uint32_t upper = codes >> 8;
  pairs[0] = (codes & 0x000F000Fu) * places.even & kept;
  pairs[1] = (codes & 0x00F000F0u) * places.odd & kept;
  pairs[2] = (upper & 0x000F000Fu) * places.even & kept;
  pairs[3] = (upper & 0x00F000F0u) * places.odd & kept;
}

// Eight E2M1 codes times a scale (the same BF16 number twice), as BF16 in order: element i in half i % 2 of word i / 2.
__device__ inline uint4 decode_eight(std::uint32_t codes, std::uint32_t scale, const e2m1_places& places) {
  std::uint32_t pairs[4];
  spread_e2m1(codes, places, pairs);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    pairs[i] = multiply_bf16x2(multiply_bf16x2(pairs[i], twice(0x7E80)), scale);  // by 2^126 first
  }
  return make_uint4(select_bytes(pairs[0], pairs[1], 0x5410), select_bytes(pairs[2], pairs[3], 0x5410),
                    select_bytes(pairs[0], pairs[1], 0x7632), select_bytes(pairs[2], pairs[3], 0x7632));
}

// The bits of a float that BF16 holds exactly.
__device__ inline std::uint16_t exact_bf16(float x) { return static_cast<std::uint16_t>(fp32::bits(x) >> 16); }
// A block scale twice, as decode_eight wants it.
template <class S>
__device__ std::uint32_t scale_pair(typename S::scale::storage code) {
  return twice(exact_bf16(S::scale::is_finite(code) ? decode_code<typename S::scale>(code) : fp32::quiet_nan()));
}

// ---------------------------------------------------------------------------------------------------------------
// Fragments and products. See "Matrix fragments for mma.m16n8k16" in the PTX manual.

__device__ inline std::uint32_t shared_address(const void* p) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
}

// Four 8x8 matrices of BF16; lane l gives the address of row l % 8 of matrix l / 8.
__device__ inline void load_matrices(std::uint32_t address, std::uint32_t* r) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

// d = a b + c, 16 x 8 x 16, products exact, the sum in at least single precision.
__device__ inline void multiply_tile(float (&d)[4], const std::uint32_t* a, const std::uint32_t* b, const float* c) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%10, %11, %12, %13};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
}

// fl(a + b) toward zero; an overflow gives the largest finite number.
__device__ inline float add_rz(float a, float b) {
  float r;
  asm("add.rz.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}

// ---------------------------------------------------------------------------------------------------------------
// Copies into shared memory that a thread waits for itself: those committed together, all but the last few.

template <int Bytes>
__device__ void copy_async(void* to, const void* from) {
  if constexpr (Bytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(shared_address(to)), "l"(from), "n"(Bytes)
                 : "memory");
  }
}
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int Pending>
__device__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}

// ---------------------------------------------------------------------------------------------------------------
// Barriers in shared memory, and copies that report to them.

__device__ inline void barrier_init(std::uint32_t barrier, unsigned arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ inline void barrier_arrive(std::uint32_t barrier) {
  asm volatile("{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [%0]; }" ::"r"(barrier) : "memory");
}
// Waits until the phase of that parity is over.
__device__ inline void barrier_wait(std::uint32_t barrier, unsigned parity) {
  unsigned done = 0;
  while (done == 0) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(done)
                 : "r"(barrier), "r"(parity)
                 : "memory");
#else
    asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(done)
                 : "r"(barrier), "r"(parity)
                 : "memory");
#endif
  }
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// A matrix of 64 BF16 numbers a row, its rows of 128 bytes swizzled (16-byte piece i of row r at i ^ r % 8), as wgmma
// is told of it: address and distance of eight rows in units of 16 bytes, and the swizzle.
__device__ inline std::uint64_t matrix_descriptor(std::uint32_t address) {
  return std::uint64_t{(address & 0x3FFFFu) >> 4} | std::uint64_t{1} << 16 | std::uint64_t{1024 >> 4} << 32 |
         std::uint64_t{1} << 62;
}
// d = a b^T (+ d if `add`), 64 x 128 x 16, of four warps together; warp w has rows 16 w ... 16 w + 15, as 16 tiles of
// mma.m16n8's layout.
__device__ inline void multiply_warpgroup(float (&d)[64], std::uint64_t a, std::uint64_t b, int add) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %66, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, "
      "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "
      "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, "
      "%59, %60, %61, %62, %63"
      "}, %64, %65, p, 1, 1, 0, 0; }"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
        "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),
        "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),
        "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]),
        "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]),
        "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]),
        "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]),
        "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
      : "l"(a), "l"(b), "r"(add));
}
__device__ inline void warpgroup_arrive() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void warpgroup_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int Pending>
__device__ void warpgroup_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}
// Keeps a use of the accumulators behind the wait.
__device__ inline void hold(float (&d)[64]) {
#pragma unroll
  for (int i = 0; i < 64; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
// Barrier `id` of the 256 threads of two warpgroups: one waits, the other gives way.
__device__ inline void wait_turn(int id) { asm volatile("bar.sync %0, 256;" ::"r"(id) : "memory"); }
__device__ inline void give_turn(int id) { asm volatile("bar.arrive %0, 256;" ::"r"(id) : "memory"); }

#endif

}  // namespace microscale::detail::device
