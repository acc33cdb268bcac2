// The paged cache: block ids first, then heads, then strips of STRIP positions in the order of the dot
// products that read them:
//   keys   [block][head][strip][head_dim / 2][STRIP][2]      pairs of elements, a lane a position
//   values [block][head][strip][STRIP / 2][head_dim][2]      pairs of positions, a lane an element
// Behind the codes of a strip are its scales: [num_scales][STRIP] bf16. INT4 has two codes in a byte, of one
// token, so that no two threads write to one byte: of two pairs of a key's elements, and of SCALE_GROUP of a
// value's (or what is left of the head), the first half is in the lower halves of the bytes.
#pragma once
#include "isa.h"

constexpr int STRIP = LANES;
constexpr int MAX_HEAD_DIM = 256;

struct KvShape {
    int32_t num_kv_heads;
    int32_t head_dim;    // a multiple of LANES
    int32_t block_size;  // a multiple of STRIP
    Code code;

    int64_t code_bytes() const { return bytes_of(code, STRIP * head_dim); }  // of a strip
    int64_t strip_bytes() const { return code_bytes() + STRIP * num_scales(code, head_dim) * int64_t(sizeof(bf16)); }

    // In bytes from the start of the cache.
    int64_t strip(int64_t block, int head, int number) const {
        return ((block * num_kv_heads + head) * (block_size / STRIP) + number) * strip_bytes();
    }
};

inline const bf16* scales_of(const uint8_t* strip, const KvShape& shape) {
    return reinterpret_cast<const bf16*>(strip + shape.code_bytes());
}
