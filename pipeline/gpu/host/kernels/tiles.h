// The products of up to TILE_ROWS rows with one panel, accumulated in registers. The inputs of an output are
// added in one order whatever the tile's height, so that a row's bits do not depend on its neighbours.
#pragma once
#include "rows.h"

constexpr int TILE_ROWS = 6;

// A part of the next panel, brought into the second-level cache while this one is multiplied.
struct Ahead {
    const uint8_t* at;
    int64_t step;  // bytes for each GROUP of inputs

    void fetch() {
        for (int64_t line = 0; line < step; line += 64) __builtin_prefetch(at + line, 0, 2);
        at += step;
    }
};

// out [M][PANEL]
template <int M>
void tile_bf16(const uint8_t* panel, const Rows& x, int row, Ahead ahead, float* out) {
    Floats sums[M][2];
    for (int m = 0; m < M; ++m) sums[m][0] = sums[m][1] = zero();
    const auto* w = reinterpret_cast<const bf16*>(panel);
    const bf16* rows = x.wide + int64_t(row) * x.width;
    for (int k = 0; k < x.width; k += 2, w += 2 * PANEL) {
        if (k % GROUP == 0) ahead.fetch();
        const Packed w0 = load_packed(w), w1 = load_packed(w + PANEL);
#pragma GCC unroll 8
        for (int m = 0; m < M; ++m) {
            sums[m][0] = dot2(sums[m][0], w0, rows + int64_t(m) * x.width + k);
            sums[m][1] = dot2(sums[m][1], w1, rows + int64_t(m) * x.width + k);
        }
    }
    for (int m = 0; m < M; ++m) store(out + m * PANEL, sums[m][0]), store(out + m * PANEL + LANES, sums[m][1]);
}

template <int M>
void tile_int8(const uint8_t* panel, const Rows& x, int row, Ahead ahead, float* out) {
    Floats sums[M][2];
    for (int m = 0; m < M; ++m) sums[m][0] = sums[m][1] = zero();
    const uint8_t* w = panel + PANEL * sizeof(float);
    const int groups = x.num_groups();
    for (int g = 0; g < groups; ++g) {
        ahead.fetch();
        const int8_t* rows = x.bytes + int64_t(row) * x.width + g * GROUP;
        const int64_t at = int64_t(row) * groups + g;
        Ints dots[M][2];
        for (int m = 0; m < M; ++m) {
            const int32_t* sum = x.sums + 2 * (at + m * groups);
            dots[m][0] = dots[m][1] = splat_int(-WEIGHT_ZERO * (sum[0] + sum[1]));
        }
        for (int k = 0; k < GROUP; k += QUAD, w += QUAD * PANEL) {
            const Packed w0 = load_packed(w), w1 = load_packed(w + 2 * PANEL);
#pragma GCC unroll 8
            for (int m = 0; m < M; ++m) {
                dots[m][0] = dot4(dots[m][0], w0, rows + int64_t(m) * x.width + k);
                dots[m][1] = dot4(dots[m][1], w1, rows + int64_t(m) * x.width + k);
            }
        }
        for (int m = 0; m < M; ++m) {
            const Floats scale = splat(x.scales[at + m * groups]);
            sums[m][0] = fma(to_floats(dots[m][0]), scale, sums[m][0]);
            sums[m][1] = fma(to_floats(dots[m][1]), scale, sums[m][1]);
        }
    }
    const auto* scales = reinterpret_cast<const float*>(panel);
    for (int m = 0; m < M; ++m) {
        store(out + m * PANEL, mul(sums[m][0], load(scales)));
        store(out + m * PANEL + LANES, mul(sums[m][1], load(scales + LANES)));
    }
}
