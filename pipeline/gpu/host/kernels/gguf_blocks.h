// The blocks of a GGUF, as ggml lays them out (ggml-common.h, ggml-quants.c), read group by group.
#pragma once
#include "formats.h"
#include "half.h"

// 32 neighbouring weights: w[k] = scale[k / 16] (q[k] - zero) + minimum, zero and minimum as the format has them.
struct Group {
    uint8_t q[GROUP];
    half scales[2];
    half minimum;
};

enum GgufKind : int32_t { Q4_0 = 2, Q4_1 = 3, Q5_0 = 6, Q5_1 = 7, Q8_0 = 8, Q4_K = 12, Q5_K = 13, Q6_K = 14 };

constexpr int SUPER = 256;  // weights of a block of the K kinds

inline half half_at(const uint8_t* p) { return half(p[0] | p[1] << 8); }

// Nibbles of 16 bytes: the lower ones are the first 16 weights.
inline void split_nibbles(const uint8_t* from, uint8_t* q) {
    for (int i = 0; i < 16; ++i) q[i] = from[i] & 15, q[i + 16] = from[i] >> 4;
}

inline void read_q4(const uint8_t* row, int number, bool has_minimum, Group& group) {
    const uint8_t* block = row + number * (has_minimum ? 20 : 18);
    group.scales[0] = half_at(block);
    group.minimum = has_minimum ? half_at(block + 2) : half(0);
    split_nibbles(block + (has_minimum ? 4 : 2), group.q);
}

inline void read_q5(const uint8_t* row, int number, bool has_minimum, Group& group) {
    const uint8_t* block = row + number * (has_minimum ? 24 : 22);
    group.scales[0] = half_at(block);
    group.minimum = has_minimum ? half_at(block + 2) : half(0);
    const uint8_t* fifth = block + (has_minimum ? 4 : 2);
    split_nibbles(fifth + 4, group.q);
    for (int k = 0; k < GROUP; ++k) group.q[k] |= (fifth[k / 8] >> k % 8 & 1) << 4;
}

inline void read_q8_0(const uint8_t* row, int number, Group& group) {
    const uint8_t* block = row + number * 34;
    group.scales[0] = half_at(block);
    for (int k = 0; k < GROUP; ++k) group.q[k] = uint8_t(block[2 + k] + WEIGHT_ZERO);
}

// The product of a block's fp16 scale and a whole number, rounded to fp16: the one thing of the K kinds that
// is not kept exactly. The error is at most 2^-11 of it (bf16: 2^-8), since products are multiples of 2^-24.
inline half scaled(const uint8_t* scale, int factor) { return to_half(half_to_float(half_at(scale)) * float(factor)); }

// Scale and minimum of group i of 8: 6 bits each, packed into 12 bytes.
inline void read_k_scale(const uint8_t* block, int i, Group& group) {
    const uint8_t* s = block + 4;
    const int scale = i < 4 ? s[i] & 63 : (s[i + 4] & 15) | s[i - 4] >> 6 << 4;
    const int minimum = i < 4 ? s[i + 4] & 63 : s[i + 4] >> 4 | s[i] >> 6 << 4;
    group.scales[0] = scaled(block, scale);
    group.minimum = scaled(block + 2, -minimum);
}

inline void read_q4_k(const uint8_t* row, int number, Group& group) {
    const uint8_t* block = row + number / 8 * 144;
    const int i = number % 8;
    read_k_scale(block, i, group);
    const uint8_t* q = block + 16 + i / 2 * GROUP;
    for (int k = 0; k < GROUP; ++k) group.q[k] = i % 2 ? q[k] >> 4 : q[k] & 15;
}

inline void read_q5_k(const uint8_t* row, int number, Group& group) {
    const uint8_t* block = row + number / 8 * 176;
    const int i = number % 8;
    read_k_scale(block, i, group);
    const uint8_t *fifth = block + 16, *q = block + 48 + i / 2 * GROUP;
    for (int k = 0; k < GROUP; ++k) group.q[k] = (i % 2 ? q[k] >> 4 : q[k] & 15) | (fifth[k] >> i & 1) << 4;
}

inline void read_q6_k(const uint8_t* row, int number, Group& group) {
    const uint8_t* block = row + number / 8 * 210;
    const int i = number % 8, quarter = i % 4;  // of one half of the block
    const uint8_t *low = block + i / 4 * 64 + quarter % 2 * GROUP, *high = block + 128 + i / 4 * GROUP;
    for (int k = 0; k < GROUP; ++k) {
        group.q[k] = uint8_t((quarter < 2 ? low[k] & 15 : low[k] >> 4) | (high[k] >> 2 * quarter & 3) << 4);
    }
    for (int j = 0; j < 2; ++j) group.scales[j] = scaled(block + 208, int8_t(block[192 + i * 2 + j]));
}

inline Format format_of(GgufKind kind) {
    switch (kind) {
        case Q4_0: return Q4;
        case Q5_0: return Q5;
        case Q5_1: case Q5_K: return Q5_MIN;
        case Q8_0: return Q8;
        case Q6_K: return Q6;
        default: return Q4_MIN;
    }
}

inline void read_group(GgufKind kind, const uint8_t* row, int number, Group& group) {
    switch (kind) {
        case Q4_0: return read_q4(row, number, false, group);
        case Q4_1: return read_q4(row, number, true, group);
        case Q5_0: return read_q5(row, number, false, group);
        case Q5_1: return read_q5(row, number, true, group);
        case Q8_0: return read_q8_0(row, number, group);
        case Q4_K: return read_q4_k(row, number, group);
        case Q5_K: return read_q5_k(row, number, group);
        case Q6_K: return read_q6_k(row, number, group);
    }
}

inline int64_t row_bytes(GgufKind kind, int inputs) {
    switch (kind) {
        case Q4_0: return inputs / GROUP * 18;
        case Q4_1: return inputs / GROUP * 20;
        case Q5_0: return inputs / GROUP * 22;
        case Q5_1: return inputs / GROUP * 24;
        case Q8_0: return inputs / GROUP * 34;
        case Q4_K: return inputs / SUPER * 144;
        case Q5_K: return inputs / SUPER * 176;
        default: return inputs / SUPER * 210;
    }
}
