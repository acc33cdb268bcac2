// What the cache stores for a number: bf16 itself, or a code that is exact in bf16, to be multiplied by a scale.
//   INT8  sign and magnitude, -127..127; one scale for each token and head
//   FP8   e4m3 of "OCP 8-bit Floating Point Specification": no infinity, 448 at most; one scale likewise
//   INT4  sign and magnitude, -7..7; a scale for every SCALE_GROUP elements
// INT8 and FP8 have the sign in the upper bit of a byte, INT4 in the upper bit of half a byte.
#pragma once
#include <bit>
#include <cstdint>

using bf16 = uint16_t;  // the upper half of an fp32

enum class Code : int32_t { BF16, INT8, FP8, INT4 };  // as CODES in library.py

constexpr int SCALE_GROUP = 32;

constexpr int64_t bytes_of(Code code, int64_t count) {
    return code == Code::BF16 ? 2 * count : code == Code::INT4 ? count / 2 : count;
}

// Elements of a head that share a scale.
constexpr int scale_width(Code code, int head_dim) { return code == Code::INT4 ? SCALE_GROUP : head_dim; }

constexpr int num_scales(Code code, int head_dim) {
    const int width = scale_width(code, head_dim);
    return code == Code::BF16 ? 0 : (head_dim + width - 1) / width;
}

constexpr float largest_code(Code code) {
    return code == Code::INT8 ? 127.f : code == Code::FP8 ? 448.f : 7.f;
}

// The smallest bf16 that is no less than x >= 0.
constexpr bf16 round_up(float x) { return bf16((std::bit_cast<uint32_t>(x) + 0xffff) >> 16); }

// To nearest, ties to even; what is above 464, or NaN, is NaN.
constexpr uint8_t to_e4m3(float x) {
    constexpr uint32_t SMALLEST_NORMAL = 121u << 23, LARGEST = 0x43efffff, ROUND = 141u << 23;  // 2^-6, < 480, 2^14
    const uint32_t bits = std::bit_cast<uint32_t>(x), sign = bits >> 31 << 7, size = bits & 0x7fffffff;
    const float sum = std::bit_cast<float>(size) + std::bit_cast<float>(ROUND);  // its last place is 2^-9
    const uint32_t normal = (size - (120u << 23) + 0x7ffff + (size >> 20 & 1)) >> 20;
    const uint32_t code = size < SMALLEST_NORMAL ? std::bit_cast<uint32_t>(sum) - ROUND : normal;
    return uint8_t(sign | (size > LARGEST ? 0x7f : code));
}

// The value of a code without its sign.
constexpr float magnitude(Code code, int bits) {
    if (code != Code::FP8) return float(bits);
    if (bits == 0x7f) return std::bit_cast<float>(0x7fc00000);
    const int exponent = bits >> 3, fraction = bits & 7;
    return exponent ? float(8 + fraction) * std::bit_cast<float>((exponent - 10 + 127) << 23) : float(fraction) / 512;
}
