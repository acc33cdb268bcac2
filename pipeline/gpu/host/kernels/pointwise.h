// What a layer does to single rows: embedding, norm, rotation, and the writing of keys and values.
#pragma once
#include <cmath>
#include "isa.h"
#include "kv.h"
#include "rows.h"

// x / sqrt(mean(x^2) + eps) * weight (Zhang & Sennrich 2019); x and weight are padded with 0 to width.
inline void rms_norm(const float* x, const float* weight, int size, int width, float eps, float* y) {
    Floats squares = zero();
    for (int k = 0; k < width; k += LANES) squares = fma(load(x + k), load(x + k), squares);
    const Floats scale = splat(1.f / std::sqrt(sum(squares) / float(size) + eps));
    for (int k = 0; k < width; k += LANES) store(y + k, mul(mul(load(x + k), scale), load(weight + k)));
}

// Rotates heads [num][head_dim] in place (Su et al. 2021), element i paired with i + head_dim / 2 as in Llama.
inline void rope(float* __restrict x, int num, int head_dim, const float* __restrict cos, const float* __restrict sin) {
    const int half = head_dim / 2;
    for (int h = 0; h < num; ++h, x += head_dim) {
        for (int i = 0; i < half; ++i) {
            const float a = x[i], b = x[i + half];
            x[i] = a * cos[i] - b * sin[i];
            x[i + half] = b * cos[i] + a * sin[i];
        }
    }
}

// One token's keys and values [num_kv_heads][head_dim] into its slot.
inline void write_kv(const float* k, const float* v, const KvShape& shape, int64_t slot, bf16* keys, bf16* values) {
    for (int h = 0; h < shape.num_kv_heads; ++h, k += shape.head_dim, v += shape.head_dim) {
        const int64_t base = shape.strip(slot / shape.block_size, h, int(slot % shape.block_size) / STRIP);
        const int t = int(slot % STRIP);
        for (int d = 0; d < shape.head_dim; ++d) {
            keys[base + (d / 2 * STRIP + t) * 2 + d % 2] = to_bf16(k[d]);
            values[base + (t / 2 * shape.head_dim + d) * 2 + t % 2] = to_bf16(v[d]);
        }
    }
}
