// A tile of a panel of blocks: of each group the whole-number products first, then scales and minima.
#pragma once
#include "tiles.h"

// Quads q and, where they share bytes, q + 1 of LANES outputs from `output` on.
template <class Blocks>
struct Quads {
    static constexpr int COUNT = Blocks::BITS == 8 ? 1 : 2;
    Packed of[COUNT];

    Quads(const uint8_t* group, int quad, int output) {
        of[0] = load_packed(group + Blocks::quad_at(quad, output));
        if constexpr (Blocks::BITS != 8) {
            of[1] = upper_nibbles(of[0]);
            of[0] = lower_nibbles(of[0]);
        }
        if constexpr (Blocks::BITS == 5) {
            for (int i = 0; i < 2; ++i) of[i] = with_sixteens(of[i], group + Blocks::fifth_at(quad + i, output));
        }
    }
};

template <class Blocks, int M>
void tile_blocks(const uint8_t* panel, const Rows& x, int row, Ahead ahead, float* out) {
    constexpr int SHARE = GROUP / Blocks::SCALES;  // inputs of one scale
    Floats sums[M][2];
    for (int m = 0; m < M; ++m) sums[m][0] = sums[m][1] = zero();
    const int groups = x.num_groups();
    for (int g = 0; g < groups; ++g, panel += Blocks::BYTES) {
        ahead.fetch();
        const int8_t* rows = x.bytes + int64_t(row) * x.width + g * GROUP;
        const int64_t at = int64_t(row) * groups + g;
        const auto* halves = reinterpret_cast<const half*>(panel);
        for (int part = 0; part < Blocks::SCALES; ++part, halves += PANEL) {
            Ints dots[M][2];
            for (int m = 0; m < M; ++m) {
                const int32_t* sum = x.sums + 2 * (at + m * groups);
                const int total = Blocks::SCALES == 2 ? sum[part] : sum[0] + sum[1];
                dots[m][0] = dots[m][1] = splat_int(-Blocks::ZERO * total);
            }
            constexpr int COUNT = Quads<Blocks>::COUNT;
            for (int k = part * SHARE; k < (part + 1) * SHARE; k += COUNT * QUAD) {
                const Quads<Blocks> w0(panel, k / QUAD, 0), w1(panel, k / QUAD, LANES);
#pragma GCC unroll 2
                for (int i = 0; i < COUNT; ++i) {
#pragma GCC unroll 8
                    for (int m = 0; m < M; ++m) {
                        const int8_t* four = rows + int64_t(m) * x.width + k + i * QUAD;
                        dots[m][0] = dot4(dots[m][0], w0.of[i], four);
                        dots[m][1] = dot4(dots[m][1], w1.of[i], four);
                    }
                }
            }
            const Floats d0 = load_half(halves), d1 = load_half(halves + LANES);
            for (int m = 0; m < M; ++m) {
                const Floats scale = splat(x.scales[at + m * groups]);
                sums[m][0] = fma(mul(to_floats(dots[m][0]), scale), d0, sums[m][0]);
                sums[m][1] = fma(mul(to_floats(dots[m][1]), scale), d1, sums[m][1]);
            }
        }
        if constexpr (Blocks::HAS_MINIMA) {
            const Floats m0 = load_half(halves), m1 = load_half(halves + LANES);
            for (int m = 0; m < M; ++m) {
                const Floats total = splat(x.totals[at + m * groups]);
                sums[m][0] = fma(total, m0, sums[m][0]);
                sums[m][1] = fma(total, m1, sums[m][1]);
            }
        }
    }
    for (int m = 0; m < M; ++m) store(out + m * PANEL, sums[m][0]), store(out + m * PANEL + LANES, sums[m][1]);
}
