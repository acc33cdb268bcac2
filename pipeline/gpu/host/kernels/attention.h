// Causal attention over the paged cache, read in place through the block tables. Decode rows, whole prompts
// and chunks of prompts are one case: a query sees so much of its context (Sight).
//
// The context is cut into spans of SPAN positions at fixed offsets. A (query, span) pair gives a partial that
// depends on nothing else, and a query's partials are merged in span order: so its bits are the same in any
// chunk and any batch, and the spans of a long context may be divided among threads. What a query does not see
// has weight 0, which adds nothing to any sum, so it does not matter whether it was computed for another's sake.
#pragma once
#include <cmath>
#include "attention_span.h"

// Adds the partial of a span to that of the spans before it.
inline void merge(Partial& all, const Partial& next, int size, int head_dim) {
    for (int r = 0; r < size; ++r) {
        if (next.weight[r] == 0) continue;
        const float maximum = std::max(all.maximum[r], next.maximum[r]);
        const float a = std::exp2(all.maximum[r] - maximum), b = std::exp2(next.maximum[r] - maximum);
        all.maximum[r] = maximum;
        all.weight[r] = all.weight[r] * a + next.weight[r] * b;
        float* to = all.out + r * head_dim;
        const float* from = next.out + r * head_dim;
        for (int d = 0; d < head_dim; d += LANES) {
            store(to + d, fma(load(from + d), splat(b), mul(load(to + d), splat(a))));
        }
    }
}

// Spans begin..end of a tile, merged in order. kept: of all spans of the tile, or null.
inline void attend(const Tile& tile, Sight seen, const Heads& heads, int begin, int end, const Operands& x,
                   Partial& partial, StripWeights* kept) {
    const int head_dim = heads.kv.head_dim;
    bf16 queries[TILE_QUERIES * MAX_HEAD_DIM];
    for (int r = 0; r < tile.size(); ++r) {
        const int64_t at = (int64_t(tile.token_of(r)) * heads.num_heads + tile.head_of(r)) * head_dim;
        std::copy_n(x.q + at, head_dim, queries + r * head_dim);
    }
    const AttendSpan attend_one = attend_span_by(heads.kv.code, tile.size());
    Partial next;
    bool is_first = true;
    for (int number = begin; number < end; ++number) {
        if (!tile.meets_span(seen, number)) continue;
        StripWeights* of_span = kept ? kept + number : nullptr;
        attend_one(tile, seen, heads, number, queries, x, is_first ? partial : next, of_span);
        if (!is_first) merge(partial, next, tile.size(), head_dim);
        is_first = false;
    }
    if (is_first) partial.clear(tile.size(), head_dim);
}

inline void finish(const Partial& partial, const Tile& tile, const Heads& heads, const Operands& x) {
    const int head_dim = heads.kv.head_dim;
    for (int r = 0; r < tile.size(); ++r) {
        const Floats inverse = splat(1.f / partial.weight[r]);
        float* to = x.out + tile.token_of(r) * x.stride + tile.head_of(r) * head_dim;
        for (int d = 0; d < head_dim; d += LANES) store(to + d, mul(load(partial.out + r * head_dim + d), inverse));
    }
}
