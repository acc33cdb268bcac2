// y = x W^T + b over packed weights.
#pragma once
#include <algorithm>
#include <array>
#include <utility>
#include "team.h"
#include "tile_blocks.h"

constexpr int TASK_ROWS = 96;  // a task is one panel by so many rows: they stay in the second-level cache

using TileFunction = void (*)(const uint8_t* panel, const Rows& x, int row, Ahead ahead, float* out);
using Heights = std::integer_sequence<int, TILE_ROWS, 4, 2, 1>;  // of tiles: few, for each is compiled for each format
constexpr int HEIGHTS[] = {TILE_ROWS, 4, 2, 1};
using TilesByHeight = std::array<TileFunction, Heights::size()>;

template <Format F, int... H>
constexpr TilesByHeight tiles_of(std::integer_sequence<int, H...>) {
    if constexpr (F == BF16) return {tile_bf16<H>...};
    else if constexpr (F == INT8) return {tile_int8<H>...};
    else return {tile_blocks<typename BlocksOf<F>::Type, H>...};
}

template <int... FORMATS>
constexpr std::array<TilesByHeight, NUM_FORMATS> all_tiles(std::integer_sequence<int, FORMATS...>) {
    return {tiles_of<Format(FORMATS)>(Heights())...};
}

constexpr auto TILES = all_tiles(std::make_integer_sequence<int, NUM_FORMATS>());

constexpr int FEW_ROWS = 3;  // so few wait for memory alone, and the CPU foresees their reading better by itself

// What tiles [row, row + height) of num_rows fetch of the panel that lies after this one.
inline Ahead ahead_of(const Panel& panel, const Rows& x, int row, int height, int num_rows) {
    if (num_rows <= FEW_ROWS) return {panel.weight, 0};
    const int64_t bytes = panel_bytes(panel.format, x.width);
    return {panel.weight + bytes + bytes * row / num_rows, bytes * height / num_rows / x.num_groups()};
}

// Of the rows [row, end) of num_rows as many as the highest tile takes; returns how many.
template <class Finish>
int run_tile(const Linear& linear, const Rows& x, int row, int end, int num_rows, int panel, Finish finish) {
    int level = 0;
    while (HEIGHTS[level] > end - row) ++level;
    alignas(64) float out[TILE_ROWS * PANEL];
    const Panel& weights = linear.panels[panel];
    const Ahead ahead = ahead_of(weights, x, row, HEIGHTS[level], num_rows);
    if constexpr (requires { finish.fetch(row, panel); }) {
        for (int m = 0; m < HEIGHTS[level]; ++m) finish.fetch(row + m, panel);
    }
    TILES[weights.format][level](weights.weight, x, row, ahead, out);
    const float* bias = linear.bias ? linear.bias + panel * PANEL : nullptr;
    for (int m = 0; m < HEIGHTS[level]; ++m) {
        Floats low = load(out + m * PANEL), high = load(out + m * PANEL + LANES);
        if (bias) low = add(low, load(bias)), high = add(high, load(bias + LANES));
        finish(row + m, panel, low, high);
    }
    return HEIGHTS[level];
}

// finish(row, panel, low, high) gets the panel's outputs 0..15 and 16..31 of a row.
template <class Finish>
void run_linear(Team& team, const Linear& linear, const Rows& x, int num_rows, Finish finish) {
    const int blocks = (num_rows + TASK_ROWS - 1) / TASK_ROWS, panels = linear.outputs / PANEL;
    team.each(panels * blocks, [&](int task) {
        const int panel = task / blocks, begin = task % blocks * TASK_ROWS;
        const int end = std::min(begin + TASK_ROWS, num_rows);
        for (int row = begin; row < end;) row += run_tile(linear, x, row, end, num_rows, panel, finish);
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

struct Accumulate {  // out += y; what it adds to is fetched while the tile is multiplied
    float* out;
    int64_t stride;
    void operator()(int row, int panel, Floats low, Floats high) const {
        float* to = out + row * stride + panel * PANEL;
        store(to, add(load(to), low));
        store(to + LANES, add(load(to + LANES), high));
    }
    void fetch(int row, int panel) const {
        const float* to = out + row * stride + panel * PANEL;
        __builtin_prefetch(to, 1);
        __builtin_prefetch(to + LANES, 1);
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
