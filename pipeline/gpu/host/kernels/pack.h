// Weights [outputs, inputs] into panels (formats.h), and a row of them back: rows of fp32, and rows of a GGUF's
// blocks. What pads a panel or a group is 0: the memory is zeroed before.
#pragma once
#include <cmath>
#include "gguf_blocks.h"

// Which output of the packed weight a row of a source weight becomes.
struct Placement {
    int first;            // of a weight that lies after others
    int is_interleaved;   // gate (first = 0) and up (first = LANES) alternate in runs of LANES

    int output(int row) const {
        return is_interleaved ? row / LANES * PANEL + first + row % LANES : first + row;
    }
};

inline int pair_at(int input, int output) { return input / 2 * PANEL * 2 + output * 2 + input % 2; }
inline int byte_at(int input, int output) { return input / QUAD * PANEL * QUAD + output * QUAD + input % QUAD; }

// The panel's `output` from here on is 0..31.

inline void pack_bf16(const float* x, int inputs, int output, uint8_t* panel) {
    auto* to = reinterpret_cast<bf16*>(panel);
    for (int k = 0; k < inputs; ++k) to[pair_at(k, output)] = to_bf16(x[k]);
}

// Per output: scale = max |w| / 127.
inline void pack_int8(const float* x, int inputs, int width, int output, uint8_t* panel) {
    float most = 0;
    for (int k = 0; k < inputs; ++k) most = std::fmax(most, std::fabs(x[k]));
    const float inverse = most > 0 ? 127.f / most : 0.f;
    reinterpret_cast<float*>(panel)[output] = most / 127.f;
    uint8_t* to = panel + PANEL * sizeof(float);
    for (int k = 0; k < width; ++k) {
        const int q = k < inputs ? int(std::nearbyint(x[k] * inverse)) : 0;
        to[byte_at(k, output)] = uint8_t(q + WEIGHT_ZERO);
    }
}

template <class Blocks>
void pack_group(const Group& group, int output, uint8_t* to) {
    auto* scales = reinterpret_cast<half*>(to);
    for (int j = 0; j < Blocks::SCALES; ++j) scales[j * PANEL + output] = group.scales[j];
    if (Blocks::HAS_MINIMA) scales[Blocks::SCALES * PANEL + output] = group.minimum;
    for (int k = 0; k < GROUP; ++k) {
        const int quad = k / QUAD, byte = k % QUAD;
        uint8_t& at = to[Blocks::quad_at(quad, output) + byte];
        at = Blocks::BITS == 8 ? group.q[k] : uint8_t(at | (group.q[k] & 15) << (quad % 2 ? 4 : 0));
        if (Blocks::BITS == 5) to[Blocks::fifth_at(quad, output)] |= group.q[k] >> 4 << (output % 2 * QUAD + byte);
    }
}

inline void pack_blocks(GgufKind kind, const uint8_t* row, int inputs, int output, uint8_t* panel) {
    with_blocks(format_of(kind), [&](auto blocks) {
        for (int g = 0; g < inputs / GROUP; ++g) {
            Group group;
            read_group(kind, row, g, group);
            pack_group<decltype(blocks)>(group, output, panel + int64_t(g) * blocks.BYTES);
        }
    });
}

template <class Blocks>
int quant(const uint8_t* group, int output, int k) {
    const int quad = k / QUAD, byte = group[Blocks::quad_at(quad, output) + k % QUAD];
    if (Blocks::BITS == 8) return Blocks::ZERO == 0 ? int8_t(byte) : byte;
    const int fifth = Blocks::BITS == 5 ? group[Blocks::fifth_at(quad, output)] >> (output % 2 * QUAD + k % QUAD) & 1 : 0;
    return (quad % 2 ? byte >> 4 : byte & 15) | fifth << 4;
}

template <class Blocks>
void unpack_group(const uint8_t* group, int output, float* to) {
    const auto* scales = reinterpret_cast<const half*>(group);
    const float minimum = Blocks::HAS_MINIMA ? half_to_float(scales[Blocks::SCALES * PANEL + output]) : 0.f;
    for (int k = 0; k < GROUP; ++k) {
        const float scale = half_to_float(scales[k * Blocks::SCALES / GROUP * PANEL + output]);
        to[k] = scale * float(quant<Blocks>(group, output, k) - Blocks::ZERO) + minimum;
    }
}

// The weights of one output, [width] fp32.
inline void unpack_row(const Linear& linear, int row, float* to) {
    const Panel& panel = linear.panels[row / PANEL];
    const int output = row % PANEL, width = linear.width;
    if (panel.format == BF16) {
        const auto* from = reinterpret_cast<const bf16*>(panel.weight);
        for (int k = 0; k < width; ++k) to[k] = to_float(from[pair_at(k, output)]);
    } else if (panel.format == INT8) {
        const float scale = reinterpret_cast<const float*>(panel.weight)[output];
        const uint8_t* from = panel.weight + PANEL * sizeof(float);
        for (int k = 0; k < width; ++k) to[k] = scale * float(int8_t(uint8_t(from[byte_at(k, output)] - WEIGHT_ZERO)));
    } else {
        with_blocks(panel.format, [&](auto blocks) {
            for (int g = 0; g < width / GROUP; ++g) {
                unpack_group<decltype(blocks)>(panel.weight + int64_t(g) * blocks.BYTES, output, to + g * GROUP);
            }
        });
    }
}
