// How much a row's queries attend to each block, in fixed point: whole numbers add up to the same sum in
// whatever order the threads come.
#pragma once
#include "attention.h"

constexpr float MASS_UNITS = 4294967296.f;  // 2^32 to a query's whole attention

// Adds what the queries of a finished tile gave to the blocks [table_stride] of its row.
inline void add_mass(const Tile& tile, Sight seen, const KvShape& shape, const Partial& all, const StripWeights* kept,
                     int64_t* mass) {
    for (int number = 0; number < tile.num_spans(); ++number) {
        if (!tile.meets_span(seen, number)) continue;
        const StripWeights& span = kept[number];
        int64_t units[STRIPS] = {};
        for (int r = 0; r < tile.size(); ++r) {
            const float factor = std::exp2(span.maximum[r] - all.maximum[r]) / all.weight[r] * MASS_UNITS;
            for (int i = 0; i < STRIPS; ++i) units[i] += int64_t(span.weight[r][i] * factor + 0.5f);
        }
        for (int i = 0; i < STRIPS; ++i) {
            const int block = (number * SPAN + i * STRIP) / shape.block_size;
            if (units[i]) __atomic_fetch_add(mass + block, units[i], __ATOMIC_RELAXED);
        }
    }
}
