// Weights [outputs, inputs] in the order in which linear.h reads them: panels of PANEL outputs, in which the
// bf16 pairs or int8 quadruples of neighbouring inputs lie together:
//   bf16 [panel][input / 2][output 0..31][2]     int8 [panel][input / 4][output 0..31][4]
// Outputs and inputs that pad the last panel or group are 0.
#pragma once
#include <cmath>
#include "isa.h"

constexpr int PANEL = 2 * LANES;

// Which output of the packed weight a row of a source weight becomes.
struct Placement {
    int first;            // of a weight that lies after others
    int is_interleaved;   // gate (first = 0) and up (first = LANES) alternate in runs of LANES

    int output(int row) const {
        return is_interleaved ? row / LANES * PANEL + first + row % LANES : first + row;
    }
};

inline int64_t packed_index(int output, int input, int width, int unit) {
    const int64_t panel = output / PANEL;
    return ((panel * (width / unit) + input / unit) * PANEL + output % PANEL) * unit + input % unit;
}

inline void pack_row_bf16(const float* x, int inputs, int width, int output, bf16* to) {
    for (int k = 0; k < inputs; ++k) to[packed_index(output, k, width, 2)] = to_bf16(x[k]);
}

// Per output: scale = max |w| / 127.
inline void pack_row_int8(const float* x, int inputs, int width, int output, uint8_t* to, float* scales) {
    float most = 0;
    for (int k = 0; k < inputs; ++k) most = std::fmax(most, std::fabs(x[k]));
    const float inverse = most > 0 ? 127.f / most : 0.f;
    scales[output] = most / 127.f;
    for (int k = 0; k < width; ++k) {
        const int q = k < inputs ? int(std::nearbyint(x[k] * inverse)) : 0;
        to[packed_index(output, k, width, 4)] = uint8_t(q + WEIGHT_ZERO);
    }
}

inline void unpack_row_bf16(const bf16* packed, int inputs, int width, int output, float* to) {
    for (int k = 0; k < inputs; ++k) to[k] = to_float(packed[packed_index(output, k, width, 2)]);
}
