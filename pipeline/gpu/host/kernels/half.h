// IEEE half precision, in which a GGUF's blocks keep their scales; for packing and for CPUs without an
// instruction for it.
#pragma once
#include <cmath>
#include "isa.h"

inline float half_to_float(half x) {  // finite
    const uint32_t bits = uint32_t(x & 0x7fff) << 13;
    float value;
    std::memcpy(&value, &bits, 4);
    value *= 0x1p112f;  // the exponents' biases differ by 112; so a subnormal half comes out right, too
    return x & 0x8000 ? -value : value;
}

// To nearest, ties to even; |x| < 65,520.
inline half to_half(float x) {
    const float magnitude = x < 0 ? -x : x;
    // adding the anchor rounds to the last bit of a half of this size, at least 2^-24
    uint32_t bits, exponent;
    std::memcpy(&bits, &magnitude, 4);
    exponent = bits >> 23 < 113 ? 113 : bits >> 23;
    const uint32_t anchor_bits = (exponent + 13) << 23;
    float anchor;
    std::memcpy(&anchor, &anchor_bits, 4);
    const float scaled = ((magnitude + anchor) - anchor) * 0x1p-112f;
    std::memcpy(&bits, &scaled, 4);
    return half(bits >> 13 | (std::signbit(x) ? 0x8000 : 0));
}
