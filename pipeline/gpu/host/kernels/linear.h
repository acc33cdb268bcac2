// y = x W^T + b over packed weights (pack.h). A tile is up to TILE_ROWS rows by one panel, in registers. The
// inputs of an output are added in one order whatever the tile's height, so that a row's bits do not depend
// on its neighbours.
#pragma once
#include "pack.h"
#include "rows.h"
#include "team.h"

struct Linear {
    const void* weight;   // bf16 or int8, as the model says
    const float* scales;  // [outputs], int8 only
    const float* bias;    // [outputs] or null
    int32_t width;        // inputs, padded to a multiple of GROUP
    int32_t outputs;      // padded to a multiple of PANEL
};

constexpr int TILE_ROWS = 6;
constexpr int TASK_ROWS = 96;  // a task is one panel by so many rows: they stay in the second-level cache

template <int M>
struct Sums { Floats of[M][2]; };

template <int M>
Sums<M> tile_bf16(const Linear& linear, const Rows& x, int row, int panel) {
    Sums<M> sums;
    for (int m = 0; m < M; ++m) sums.of[m][0] = sums.of[m][1] = zero();
    const bf16* w = static_cast<const bf16*>(linear.weight) + int64_t(panel) * PANEL * linear.width;
    const bf16* rows = x.wide + int64_t(row) * x.width;
    for (int k = 0; k < x.width; k += 2, w += 2 * PANEL) {
        const Packed w0 = load_packed(w), w1 = load_packed(w + PANEL);
#pragma GCC unroll 6
        for (int m = 0; m < M; ++m) {
            sums.of[m][0] = dot2(sums.of[m][0], w0, rows + int64_t(m) * x.width + k);
            sums.of[m][1] = dot2(sums.of[m][1], w1, rows + int64_t(m) * x.width + k);
        }
    }
    return sums;
}

template <int M>
Sums<M> tile_int8(const Linear& linear, const Rows& x, int row, int panel) {
    Sums<M> sums;
    for (int m = 0; m < M; ++m) sums.of[m][0] = sums.of[m][1] = zero();
    const auto* w = static_cast<const uint8_t*>(linear.weight) + int64_t(panel) * PANEL * linear.width;
    const int groups = x.num_groups();
    for (int g = 0; g < groups; ++g) {
        const int8_t* rows = x.bytes + int64_t(row) * x.width + g * GROUP;
        const int64_t at = int64_t(row) * groups + g;
        Ints dots[M][2];
        for (int m = 0; m < M; ++m) dots[m][0] = dots[m][1] = splat_int(x.offsets[at + m * groups]);
        for (int k = 0; k < GROUP; k += 4, w += 4 * PANEL) {
            const Packed w0 = load_packed(w), w1 = load_packed(w + 2 * PANEL);
#pragma GCC unroll 6
            for (int m = 0; m < M; ++m) {
                dots[m][0] = dot4(dots[m][0], w0, rows + int64_t(m) * x.width + k);
                dots[m][1] = dot4(dots[m][1], w1, rows + int64_t(m) * x.width + k);
            }
        }
        for (int m = 0; m < M; ++m) {
            const Floats scale = splat(x.scales[at + m * groups]);
            sums.of[m][0] = fma(to_floats(dots[m][0]), scale, sums.of[m][0]);
            sums.of[m][1] = fma(to_floats(dots[m][1]), scale, sums.of[m][1]);
        }
    }
    const float* scales = linear.scales + panel * PANEL;
    for (int m = 0; m < M; ++m) {
        sums.of[m][0] = mul(sums.of[m][0], load(scales));
        sums.of[m][1] = mul(sums.of[m][1], load(scales + LANES));
    }
    return sums;
}

template <int M, class Finish>
void run_tile(const Linear& linear, const Rows& x, int row, int panel, Finish finish) {
    const Sums<M> sums = x.is_int8 ? tile_int8<M>(linear, x, row, panel) : tile_bf16<M>(linear, x, row, panel);
    const float* bias = linear.bias ? linear.bias + panel * PANEL : nullptr;
    for (int m = 0; m < M; ++m) {
        Floats low = sums.of[m][0], high = sums.of[m][1];
        if (bias) low = add(low, load(bias)), high = add(high, load(bias + LANES));
        finish(row + m, panel, low, high);
    }
}

template <class Finish>
void run_rows(const Linear& linear, const Rows& x, int row, int count, int panel, Finish finish) {
    switch (count) {
        case 1: return run_tile<1>(linear, x, row, panel, finish);
        case 2: return run_tile<2>(linear, x, row, panel, finish);
        case 3: return run_tile<3>(linear, x, row, panel, finish);
        case 4: return run_tile<4>(linear, x, row, panel, finish);
        case 5: return run_tile<5>(linear, x, row, panel, finish);
        default: return run_tile<6>(linear, x, row, panel, finish);
    }
}

// finish(row, panel, low, high) gets the panel's outputs 0..15 and 16..31 of a row.
template <class Finish>
void run_linear(Team& team, const Linear& linear, const Rows& x, int num_rows, Finish finish) {
    const int blocks = (num_rows + TASK_ROWS - 1) / TASK_ROWS, panels = linear.outputs / PANEL;
    team.each(panels * blocks, [&](int task) {
        const int panel = task / blocks, begin = task % blocks * TASK_ROWS;
        const int end = begin + TASK_ROWS < num_rows ? begin + TASK_ROWS : num_rows;
        for (int row = begin; row < end; row += TILE_ROWS) {
            run_rows(linear, x, row, end - row < TILE_ROWS ? end - row : TILE_ROWS, panel, finish);
        }
    });
}

// What becomes of the outputs.

struct Store {  // out = y
    float* out;
    int64_t stride;
    void operator()(int row, int panel, Floats low, Floats high) const {
        float* to = out + row * stride + panel * PANEL;
        store(to, low);
        store(to + LANES, high);
    }
};

struct Accumulate {  // out += y
    float* out;
    int64_t stride;
    void operator()(int row, int panel, Floats low, Floats high) const {
        float* to = out + row * stride + panel * PANEL;
        store(to, add(load(to), low));
        store(to + LANES, add(load(to + LANES), high));
    }
};

struct SwiGlu {  // out = silu(gate) * up, of interleaved outputs (Shazeer 2020)
    float* out;
    int64_t stride;
    void operator()(int row, int panel, Floats gate, Floats up) const {
        const Floats negated = sub(zero(), gate);
        const Floats silu = div(gate, add(splat(1.f), exp(negated)));
        store(out + row * stride + panel * LANES, mul(silu, up));
    }
};
