// The one place that knows instruction sets. Kernels are written over 16 fp32 lanes; an ISA header says what
// a lane operation is on this CPU. -DSTAGELINE_AVX2 or -DSTAGELINE_PORTABLE forces the narrower ones (tests).
#pragma once
#include <cstdint>
#include <cstring>
#include "codes.h"

using half = uint16_t;  // IEEE half precision

constexpr int LANES = 16;
constexpr int GROUP = 32;  // inputs that share one scale in an int8 row; rows are padded to multiples of it

// Numbers of four groups.
typedef float FourFloats __attribute__((vector_size(16)));
typedef int32_t FourInts __attribute__((vector_size(16)));

inline float to_float(bf16 x) {
    uint32_t bits = uint32_t(x) << 16;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

inline bf16 to_bf16(float x) {  // to nearest, ties to even; NaN stays NaN
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    if ((bits & 0x7fffffff) > 0x7f800000) return bf16((bits >> 16) | 0x40);
    return bf16((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

#if !defined(STAGELINE_AVX2) && !defined(STAGELINE_PORTABLE) && defined(__AVX512BF16__) && \
    defined(__AVX512VNNI__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__) && defined(__AVX512VBMI__)
#include "isa_avx512.h"
#include "isa_avx512_codes.h"
#elif !defined(STAGELINE_PORTABLE) && defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include "isa_avx2.h"
#include "isa_avx2_codes.h"
#else
#include "isa_portable.h"
#include "isa_portable_codes.h"
#endif

// 2^z = 2^n p(d) with n = round(z), |d| <= 1/2: within 3e-7 of it. Below -126 it is at most 2^-126.
inline Floats exp2(Floats z) {
    z = max(min(z, splat(127.f)), splat(-126.f));
    const Floats n = round(z);
    const Floats d = sub(z, n);
    Floats p = splat(1.3276471e-3f);
    for (float c : {9.6755413e-3f, 5.5507131e-2f, 2.4022120e-1f, 6.9314694e-1f, 1.f}) {
        p = fma(p, d, splat(c));
    }
    return scale_by_power(p, n);
}

// 2^z for z < 127, within 2e-7 of it; of NaN, and from -150 down, 0.
inline Floats exp2_to_zero(Floats z) {
    z = max(z, splat(-160.f));
    const Floats d = fraction(z);
    Floats p = splat(1.8775766e-3f);
    for (float c : {8.9893402e-3f, 5.5826318e-2f, 2.4015362e-1f, 6.9315307e-1f, 0.99999993f}) {
        p = fma(p, d, splat(c));
    }
    return scale_by_floor(p, z);
}

// 2^z for z <= 0, within 3e-6 of it: far less than it loses as a bf16. 0 from -150 down.
inline Floats exp2_of_negative(Floats z) {
    const Floats d = fraction(z);
    Floats p = splat(1.3426808e-2f);
    for (float c : {5.2242275e-2f, 2.4128030e-1f, 6.9304484e-1f, 1.f}) p = fma(p, d, splat(c));
    return scale_by_floor(p, z);
}

constexpr float LOG2_E = 1.44269504f;

// Its relative error is 3e-7 for |x| <= 1, and grows as that of x / ln 2 does.
inline Floats exp(Floats x) { return exp2(mul(x, splat(LOG2_E))); }
