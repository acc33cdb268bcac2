// What a layer does to single rows, beside linears and attention. Widths are multiples of LANES.
#pragma once
#include <cmath>
#include "isa.h"
#include "rows.h"

// x / sqrt(mean(x^2) + eps) * weight (Zhang & Sennrich 2019); x and weight are padded with 0 to width.
// y may be x.
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

inline void scale(float* x, int width, float factor) {
    for (int k = 0; k < width; k += LANES) store(x + k, mul(load(x + k), splat(factor)));
}

inline void add_to(float* sum, const float* x, int width) {
    for (int k = 0; k < width; k += LANES) store(sum + k, add(load(sum + k), load(x + k)));
}

// limit * tanh(x / limit), with tanh(z) = 1 - 2 / (1 + exp(2 z)).
inline void cap(float* x, int width, float limit) {
    for (int k = 0; k < width; k += LANES) {
        const Floats grown = exp(mul(load(x + k), splat(2.f / limit)));
        const Floats tanh = sub(splat(1.f), div(splat(2.f), add(splat(1.f), grown)));
        store(x + k, mul(tanh, splat(limit)));
    }
}

// What becomes of a linear's outputs (linear.h): out = gelu(gate) * up, interleaved (Shazeer 2020), by the tanh
// formula of Hendrycks & Gimpel 2016: gelu(x) = x / 2 (1 + tanh(z)) = x / (1 + exp(-2 z)), where
// z = sqrt(2 / pi) (x + 0.044715 x^3).
struct GeGlu {
    float* out;
    int64_t stride;
    void operator()(int row, int panel, Floats gate, Floats up) const {
        const Floats cubic = fma(mul(mul(gate, gate), gate), splat(0.044715f), gate);
        const Floats gelu = div(gate, add(splat(1.f), exp(mul(cubic, splat(-1.5957691216f)))));
        store(out + row * stride + panel * LANES, mul(gelu, up));
    }
};
