// How weights lie in memory. A linear is panels of PANEL outputs, each one stretch of memory, in the order in
// which it is read; panels of one linear may be of several formats, as the tensors of a GGUF are.
//   BF16       [input / 2][output 0..31][2]
//   INT8       fp32 scale [output], then [input / 4][output][4]: w = scale q
//   the others, for every GROUP inputs one after another (Blocks): fp16 scale [SCALES][output], fp16 minimum
//              [output] if there is one, and the quants: w = scale (q - ZERO), or scale q + minimum
#pragma once
#include "isa.h"

constexpr int PANEL = 2 * LANES;
constexpr int QUAD = 4;  // inputs whose quants lie together, as dot4 takes them

enum Format : int32_t { BF16, INT8, Q8, Q6, Q5, Q5_MIN, Q4, Q4_MIN, NUM_FORMATS };

struct Panel {
    uint8_t* weight;
    Format format;
    int32_t unused;
};

struct Linear {
    const Panel* panels;
    const float* bias;  // [outputs] or null
    int32_t width;      // inputs, padded to a multiple of GROUP
    int32_t outputs;    // padded to a multiple of PANEL
    int32_t is_int8;    // its inputs are; false where its panels are BF16
};

// One group of a quantised panel. STORED bits a quant: 8, or 4 with the fifth in a plane of its own.
template <int BITS_, int SCALES_, bool HAS_MINIMA_, int ZERO_>
struct Blocks {
    static constexpr int BITS = BITS_, SCALES = SCALES_, ZERO = ZERO_;
    static constexpr bool HAS_MINIMA = HAS_MINIMA_;
    static constexpr int MINIMA_AT = SCALES * PANEL * 2;
    static constexpr int FIFTH_AT = MINIMA_AT + HAS_MINIMA * PANEL * 2;
    static constexpr int QUANTS_AT = FIFTH_AT + (BITS == 5) * GROUP * PANEL / 8;
    static constexpr int BYTES = QUANTS_AT + GROUP * PANEL / (BITS == 8 ? 1 : 2);

    // Quads 2 i and 2 i + 1 of an output share the bytes of quad i: the first in the lower halves.
    static constexpr int quad_at(int quad, int output) {
        return QUANTS_AT + ((BITS == 8 ? quad : quad / 2) * PANEL + output) * QUAD;
    }
    static constexpr int fifth_at(int quad, int output) { return FIFTH_AT + (quad * PANEL + output) / 2; }
};

template <Format> struct BlocksOf;
template <> struct BlocksOf<Q8> { using Type = Blocks<8, 1, false, WEIGHT_ZERO>; };
template <> struct BlocksOf<Q6> { using Type = Blocks<8, 2, false, 32>; };
template <> struct BlocksOf<Q5> { using Type = Blocks<5, 1, false, 16>; };
template <> struct BlocksOf<Q5_MIN> { using Type = Blocks<5, 1, true, 0>; };
template <> struct BlocksOf<Q4> { using Type = Blocks<4, 1, false, 8>; };
template <> struct BlocksOf<Q4_MIN> { using Type = Blocks<4, 1, true, 0>; };

// Calls body with the Blocks of a format that has them.
template <class Body>
void with_blocks(Format format, Body body) {
    switch (format) {
        case Q8: return body(BlocksOf<Q8>::Type{});
        case Q6: return body(BlocksOf<Q6>::Type{});
        case Q5: return body(BlocksOf<Q5>::Type{});
        case Q5_MIN: return body(BlocksOf<Q5_MIN>::Type{});
        case Q4: return body(BlocksOf<Q4>::Type{});
        default: return body(BlocksOf<Q4_MIN>::Type{});
    }
}

inline int64_t panel_bytes(Format format, int width) {
    if (format == BF16) return int64_t(2) * PANEL * width;
    if (format == INT8) return int64_t(PANEL) * (width + 4);
    int64_t bytes = 0;
    with_blocks(format, [&](auto blocks) { bytes = int64_t(blocks.BYTES) * (width / GROUP); });
    return bytes;
}
