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
    float a[LANES], b[LANES];
    const Floats before = load(all.maximum), after = load(next.maximum), maximum = max(before, after);
    store(a, exp2(sub(before, maximum)));
    store(b, exp2(sub(after, maximum)));
    store(all.maximum, maximum);
    store(all.weight, fma(load(next.weight), load(b), mul(load(all.weight), load(a))));
    for (int r = 0; r < size; ++r) {
        float* to = all.out + r * head_dim;
        const float* from = next.out + r * head_dim;
        for (int d = 0; d < head_dim; d += LANES) {
            store(to + d, fma(load(from + d), splat(b[r]), mul(load(to + d), splat(a[r]))));
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
        for (int d = 0; d < head_dim; d += LANES) {
            std::memcpy(queries + r * MAX_HEAD_DIM + d, x.q + at + d, LANES * sizeof(bf16));
        }
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
