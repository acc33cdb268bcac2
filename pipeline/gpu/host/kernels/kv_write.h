// The writing of keys and values into the cache, in the order of kv.h.
#pragma once
#include <algorithm>
#include "kv.h"

// One token's key, or value, in one head.
struct Coded {
    bf16 scales[MAX_HEAD_DIM / SCALE_GROUP];
    uint8_t codes[MAX_HEAD_DIM];  // INT4: in the lower half
};

// x: a whole number, unless C is FP8.
template <Code C>
uint8_t code_of(float x) {
    if constexpr (C == Code::FP8) return to_e4m3(x);
    constexpr int SIGN = C == Code::INT8 ? 0x80 : 8;
    const int whole = int(x);
    return uint8_t(whole < 0 ? -whole | SIGN : whole);
}

// x: [count], a multiple of LANES; -> scale.
template <Code C>
bf16 encode_group(const float* x, int count, uint8_t* codes) {
    Floats most = zero();
    for (int d = 0; d < count; d += LANES) most = max(most, abs(load(x + d)));
    const bf16 scale = round_up(max(most) / largest_code(C));
    if (scale == 0) {
        std::fill_n(codes, count, uint8_t(0));
        return scale;
    }
    const Floats divisor = splat(to_float(scale));
    float scaled[MAX_HEAD_DIM];
    for (int d = 0; d < count; d += LANES) {
        const Floats exact = div(load(x + d), divisor);
        store(scaled + d, C == Code::FP8 ? exact : round(exact));
    }
    for (int d = 0; d < count; ++d) codes[d] = code_of<C>(scaled[d]);
    return scale;
}

template <Code C>
void encode(int head_dim, const float* x, Coded& to) {
    const int width = scale_width(C, head_dim);
    for (int d = 0, number = 0; d < head_dim; d += width, ++number) {
        to.scales[number] = encode_group<C>(x + d, std::min(width, head_dim - d), to.codes + d);
    }
}

template <Code C>
void place_key(int head_dim, const uint8_t* codes, int t, uint8_t* strip) {
    uint8_t* to = strip + 2 * t;
    if constexpr (C != Code::INT4) {
        for (int d = 0; d < head_dim; d += 2, to += 2 * STRIP) std::memcpy(to, codes + d, 2);
    } else {
        for (int d = 0; d < head_dim; d += 4, to += 2 * STRIP) {
            for (int i = 0; i < 2; ++i) to[i] = uint8_t(codes[d + i] | codes[d + 2 + i] << 4);
        }
    }
}

template <Code C>
void place_value(int head_dim, const uint8_t* codes, int t, uint8_t* strip) {
    uint8_t* to = strip + bytes_of(C, t / 2 * 2 * head_dim) + t % 2;
    if constexpr (C != Code::INT4) {
        for (int d = 0; d < head_dim; ++d) to[d * 2] = codes[d];
    } else {
        for (int group = 0; group < head_dim; group += SCALE_GROUP, to += SCALE_GROUP) {
            const int half = std::min(SCALE_GROUP, head_dim - group) / 2;
            for (int i = 0; i < half; ++i) to[i * 2] = uint8_t(codes[group + i] | codes[group + half + i] << 4);
        }
    }
}

inline void place_scales(const KvShape& shape, const Coded& coded, int t, uint8_t* strip) {
    bf16* to = reinterpret_cast<bf16*>(strip + shape.code_bytes());
    for (int g = 0; g < num_scales(shape.code, shape.head_dim); ++g) to[g * STRIP + t] = coded.scales[g];
}

template <Code C>
void write_coded(const KvShape& shape, const float* k, const float* v, int t, uint8_t* keys, uint8_t* values) {
    Coded coded;
    encode<C>(shape.head_dim, k, coded);
    place_key<C>(shape.head_dim, coded.codes, t, keys);
    place_scales(shape, coded, t, keys);
    encode<C>(shape.head_dim, v, coded);
    place_value<C>(shape.head_dim, coded.codes, t, values);
    place_scales(shape, coded, t, values);
}

inline void write_bf16(const KvShape& shape, const float* k, const float* v, int t, uint8_t* keys, uint8_t* values) {
    constexpr int PAIR = 2 * sizeof(bf16);
    bf16 key[MAX_HEAD_DIM];
    for (int d = 0; d < shape.head_dim; d += LANES) store_bf16(key + d, load(k + d));
    for (int d = 0; d < shape.head_dim; d += 2) std::memcpy(keys + (d / 2 * STRIP + t) * PAIR, key + d, PAIR);
    bf16* pairs = reinterpret_cast<bf16*>(values) + t / 2 * 2 * shape.head_dim;
    for (int d = 0; d < shape.head_dim; d += LANES) store_bf16_of_pairs(pairs + 2 * d, t % 2, load(v + d));
}

using WriteHead = void (*)(const KvShape&, const float* k, const float* v, int t, uint8_t* keys, uint8_t* values);

inline WriteHead writer_of(Code code) {
    switch (code) {
        case Code::INT8: return write_coded<Code::INT8>;
        case Code::FP8: return write_coded<Code::FP8>;
        case Code::INT4: return write_coded<Code::INT4>;
        default: return write_bf16;
    }
}

// One token's keys and values [num_kv_heads][head_dim] into its slot.
inline void write_kv(const float* k, const float* v, const KvShape& shape, int64_t slot, uint8_t* keys,
                     uint8_t* values) {
    const WriteHead write = writer_of(shape.code);
    for (int h = 0; h < shape.num_kv_heads; ++h, k += shape.head_dim, v += shape.head_dim) {
        const int64_t strip = shape.strip(slot / shape.block_size, h, int(slot % shape.block_size) / STRIP);
        write(shape, k, v, int(slot % STRIP), keys + strip, values + strip);
    }
}
