// The paged cache: block ids first, then heads, then strips of STRIP positions in the order of the dot
// products that read them:
//   keys   [block][head][strip][head_dim / 2][STRIP][2]      pairs of elements, a lane a position
//   values [block][head][strip][STRIP / 2][head_dim][2]      pairs of positions, a lane an element
#pragma once
#include "isa.h"

constexpr int STRIP = LANES;

// What a stored element is; as CODES in library.py.
enum class Code : int32_t { BF16, INT8, FP8, INT4 };

struct KvShape {
    int32_t num_kv_heads;
    int32_t head_dim;    // a multiple of LANES
    int32_t block_size;  // a multiple of STRIP
    int32_t code;        // a Code

    int64_t strip(int64_t block, int head, int number) const {
        return ((block * num_kv_heads + head) * (block_size / STRIP) + number) * STRIP * head_dim;
    }
};
