// What a layer does to single rows: norm and rotation.
#pragma once
#include <cmath>
#include "isa.h"
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
