// The writing of keys and values into the cache, in the order of kv.h.
#pragma once
#include <algorithm>
#include "kv.h"

// One token's key, or value, in one head.
struct Coded {
    bf16 scales[MAX_HEAD_DIM / SCALE_GROUP];
    uint8_t codes[MAX_HEAD_DIM];  // INT4: in the lower half
};

inline uint8_t sign_and_size(int8_t code, int sign_bit) { return uint8_t(code < 0 ? -code | sign_bit : code); }

// x: [count], a multiple of LANES; -> scale.
inline bf16 encode_group(Code code, const float* x, int count, uint8_t* codes) {
    Floats most = zero();
    for (int d = 0; d < count; d += LANES) most = max(most, abs(load(x + d)));
    const bf16 scale = round_up(max(most) / largest_code(code));
    if (scale == 0) {
        std::fill_n(codes, count, uint8_t(0));
        return scale;
    }
    const Floats divisor = splat(to_float(scale));
    for (int d = 0; d < count; d += LANES, codes += LANES) {
        const Floats exact = div(load(x + d), divisor);
        float lanes[LANES];
        int8_t whole[LANES];
        if (code == Code::FP8) store(lanes, exact);
        else store_int8(whole, round(exact));
        for (int i = 0; i < LANES; ++i) {
            codes[i] = code == Code::FP8 ? to_e4m3(lanes[i]) : sign_and_size(whole[i], code == Code::INT8 ? 0x80 : 8);
        }
    }
    return scale;
}

inline void encode(const KvShape& shape, const float* x, Coded& to) {
    const int width = scale_width(shape.code, shape.head_dim);
    for (int d = 0, number = 0; d < shape.head_dim; d += width, ++number) {
        to.scales[number] = encode_group(shape.code, x + d, std::min(width, shape.head_dim - d), to.codes + d);
    }
}

// Codes [start, start + 2 * half) of a strip have number `number` of them set.
inline void set_half_byte(uint8_t* strip, int64_t start, int64_t half, int64_t number, uint8_t code) {
    const HalfByte at = half_byte(start, half, number);
    strip[at.byte] = uint8_t((strip[at.byte] & (0xf0 >> at.shift)) | code << at.shift);
}

inline void place_key(const KvShape& shape, const uint8_t* codes, int t, uint8_t* strip) {
    for (int d = 0; d < shape.head_dim; ++d) {
        if (shape.code != Code::INT4) strip[(d / 2 * STRIP + t) * 2 + d % 2] = codes[d];
        else set_half_byte(strip, d / 4 * 4 * STRIP, 2 * STRIP, (d % 4 / 2 * STRIP + t) * 2 + d % 2, codes[d]);
    }
}

inline void place_value(const KvShape& shape, const uint8_t* codes, int t, uint8_t* strip) {
    const int64_t row = t / 2 * shape.head_dim * 2;
    for (int d = 0; d < shape.head_dim; ++d) {
        if (shape.code != Code::INT4) {
            strip[row + d * 2 + t % 2] = codes[d];
        } else {
            const int group = d / SCALE_GROUP * SCALE_GROUP, half = std::min(SCALE_GROUP, shape.head_dim - group);
            set_half_byte(strip, row + group * 2, half, (d - group) * 2 + t % 2, codes[d]);
        }
    }
}

inline void place_scales(const KvShape& shape, const Coded& coded, int t, uint8_t* strip) {
    bf16* to = reinterpret_cast<bf16*>(strip + shape.code_bytes());
    for (int g = 0; g < num_scales(shape.code, shape.head_dim); ++g) to[g * STRIP + t] = coded.scales[g];
}

inline void write_coded(const KvShape& shape, const float* k, const float* v, int t, uint8_t* keys, uint8_t* values) {
    Coded coded;
    encode(shape, k, coded);
    place_key(shape, coded.codes, t, keys);
    place_scales(shape, coded, t, keys);
    encode(shape, v, coded);
    place_value(shape, coded.codes, t, values);
    place_scales(shape, coded, t, values);
}

inline void write_bf16(const KvShape& shape, const float* k, const float* v, int t, uint8_t* keys, uint8_t* values) {
    constexpr int PAIR = 2 * sizeof(bf16);
    alignas(64) bf16 key[MAX_HEAD_DIM], value[MAX_HEAD_DIM];
    for (int d = 0; d < shape.head_dim; d += LANES) {
        store_bf16(key + d, load(k + d));
        store_bf16(value + d, load(v + d));
    }
    for (int d = 0; d < shape.head_dim; d += 2) std::memcpy(keys + (d / 2 * STRIP + t) * PAIR, key + d, PAIR);
    bf16* to = reinterpret_cast<bf16*>(values) + t / 2 * shape.head_dim * 2 + t % 2;
    for (int d = 0; d < shape.head_dim; ++d) to[d * 2] = value[d];
}

// One token's keys and values [num_kv_heads][head_dim] into its slot.
inline void write_kv(const float* k, const float* v, const KvShape& shape, int64_t slot, uint8_t* keys,
                     uint8_t* values) {
    const auto write = shape.code == Code::BF16 ? write_bf16 : write_coded;
    for (int h = 0; h < shape.num_kv_heads; ++h, k += shape.head_dim, v += shape.head_dim) {
        const int64_t strip = shape.strip(slot / shape.block_size, h, int(slot % shape.block_size) / STRIP);
        write(shape, k, v, int(slot % STRIP), keys + strip, values + strip);
    }
}
