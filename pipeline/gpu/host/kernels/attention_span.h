// Attention of one tile within one span of its context.
//
// Codes are exact in bf16 (codes.h), so products are of codes; a key's scale multiplies its part of the score,
// and a value's scale its probability.
#pragma once
#include "attention_tile.h"

// The queries, a layer's cache, and where the result goes.
struct Operands {
    const bf16* q;  // [T][num_heads][head_dim]
    const uint8_t* keys;
    const uint8_t* values;
    float* out;  // [T][stride]
    int64_t stride;
};

// In place of a score that is not seen, and of the largest of none: finite, so that differences are too.
constexpr float HIDDEN = -1e36f, LEAST = -1e30f;

// Attention of a tile within some spans: sum of 2^(score - maximum) V, not yet divided by its weight.
struct Partial {
    alignas(64) float maximum[LANES] = {};  // of the scores, as powers of two; a lane a query
    float weight[LANES] = {};  // 0: the query sees none of them
    alignas(64) float out[TILE_QUERIES * MAX_HEAD_DIM];  // [query][head_dim]

    void clear(int size, int head_dim) {
        std::fill_n(maximum, size, LEAST);
        std::fill_n(weight, size, 0.f);
        std::fill_n(out, size * head_dim, 0.f);
    }
};

// How much of a span's weight each of its strips has.
struct StripWeights {
    float maximum[TILE_QUERIES];
    float weight[TILE_QUERIES][STRIPS];
};

// One span of one tile: the strips of it that are seen, and the work area.
struct Span {
    const KvShape& shape;
    int num_strips = 0;
    uint32_t hidden = 0;  // bit i: some query does not see all of strip i
    int end;  // no query sees positions from here on
    int begins[STRIPS];      // positions
    int64_t strips[STRIPS];  // in the cache
    alignas(64) float scores[TILE_QUERIES][SPAN];  // of quantised caches then 2^(score - maximum)
    alignas(64) bf16 probs[TILE_QUERIES][SPAN];

    Span(const Tile& tile, Sight seen, const KvShape& kv, int number) : shape(kv) {
        end = std::min(tile.last_limit(), (number + 1) * SPAN);
        int block = number * SPAN / kv.block_size, offset = number * SPAN % kv.block_size;
        for (int at = number * SPAN; at < end; at += STRIP, offset += STRIP) {
            if (offset == kv.block_size) ++block, offset = 0;
            if (!tile.meets(seen, at, at + STRIP)) continue;
            hidden |= uint32_t(!tile.sees_all(seen, at)) << num_strips;
            begins[num_strips] = at;
            strips[num_strips++] = kv.strip(tile.blocks[block], tile.kv_head, offset / STRIP);
        }
    }
};

// Into the second-level cache. Strips lie scattered, too short for the CPU to foresee: without this, attention
// of 64 rows takes 1.6 times as long.
template <int BYTES>
void fetch(const uint8_t* p) {
    __builtin_prefetch(p, 0, 2);
    if constexpr (BYTES > 64) __builtin_prefetch(p + 64, 0, 2);
}

constexpr int STRIPS_AHEAD = 3;

template <Code C, int R>
void score(Span& span, const bf16* q, const uint8_t* keys, const uint8_t* values) {  // q [R][MAX_HEAD_DIM]
    constexpr int STEP = int(bytes_of(C, 4 * STRIP));
    const int head_dim = span.shape.head_dim, width = scale_width(C, head_dim);
    for (int i = 0; i < span.num_strips; ++i) {
        const uint8_t* k = keys + span.strips[i];
        const uint8_t* later = keys + span.strips[std::min(i + STRIPS_AHEAD, span.num_strips - 1)];
        const uint8_t* v = values + span.strips[i];
        const bf16* scales = scales_of(k, span.shape);
        Floats total[R];
        for (int r = 0; r < R; ++r) total[r] = zero();
        for (int begin = 0; begin < head_dim; begin += width, scales += STRIP) {
            Floats even[R], odd[R];
            for (int r = 0; r < R; ++r) even[r] = odd[r] = zero();
            const int end = std::min(begin + width, head_dim);
            for (int d = begin; d < end; d += 4, k += STEP, later += STEP, v += STEP) {
                fetch<STEP>(later);
                fetch<STEP>(v);
                const Two pairs = load_two<C>(k);
#pragma GCC unroll 8
                for (int r = 0; r < R; ++r) {
                    even[r] = dot2(even[r], pairs.first, q + r * MAX_HEAD_DIM + d);
                    odd[r] = dot2(odd[r], pairs.second, q + r * MAX_HEAD_DIM + d + 2);
                }
            }
            for (int r = 0; r < R; ++r) {
                const Floats sum = add(even[r], odd[r]);
                total[r] = C == Code::BF16 ? sum : fma(sum, load_bf16(scales), total[r]);
            }
        }
        for (int r = 0; r < R; ++r) store(span.scores[r] + i * STRIP, total[r]);
    }
}

// x -> most * tanh(scale * x / most), of the scores of one query.
inline void cap_scores(Span& span, int query, float scale, float most) {
    for (int i = 0; i < span.num_strips; ++i) {
        float* scores = span.scores[query] + i * STRIP;
        const Floats e = exp(mul(load(scores), splat(2.f * scale / most)));
        store(scores, mul(splat(most), sub(splat(1.f), div(splat(2.f), add(e, splat(1.f))))));
    }
}

// Scores of what a query does not see become HIDDEN.
inline void hide(Span& span, const Tile& tile, Sight seen) {
    for (uint32_t left = span.hidden; left; left &= left - 1) {
        const int i = std::countr_zero(left);
        for (int r = 0; r < tile.size(); ++r) {
            float* scores = span.scores[r] + i * STRIP;
            store(scores, where(seen.lanes(tile.limit_of(r), span.begins[i]), load(scores), splat(HIDDEN)));
        }
    }
}

inline float largest(const Span& span, int query) {
    Floats most = splat(LEAST);
    for (int i = 0; i < span.num_strips; ++i) most = max(most, load(span.scores[query] + i * STRIP));
    return max(most);
}

// Scores to probabilities, up to a query's common weight. `scale` is that of scores to powers of two.
template <Code C>
void soften(Span& span, float scale, int query, Partial& partial, StripWeights* kept) {
    float* scores = span.scores[query];
    const Floats factor = splat(scale), negative = splat(-partial.maximum[query]);
    Floats weight = zero();
    for (int i = 0; i < span.num_strips; ++i) {
        const Floats p = exp2_of_negative(fma(load(scores + i * STRIP), factor, negative));
        weight = add(weight, p);
        if constexpr (C == Code::BF16) store_bf16(span.probs[query] + i * STRIP, p);
        else store(scores + i * STRIP, p);
        if (kept) kept->weight[query][span.begins[i] % SPAN / STRIP] = sum(p);
    }
    partial.weight[query] = sum(weight);
    if (kept) kept->maximum[query] = partial.maximum[query];
}

// Probabilities of a quantised cache, times the scales of values of group `number`.
template <int R>
void weigh(Span& span, const uint8_t* values, int number) {
    for (int i = 0; i < span.num_strips; ++i) {
        const Floats scales = load_bf16(scales_of(values + span.strips[i], span.shape) + number * STRIP);
        for (int r = 0; r < R; ++r) {
            store_bf16(span.probs[r] + i * STRIP, mul(load(span.scores[r] + i * STRIP), scales));
        }
    }
}

template <Code C, int COUNT>
void load_columns(const uint8_t* v, Packed* columns) {
    if constexpr (COUNT == 1) {
        columns[0] = load_one<C>(v);
    } else {
        for (int c = 0; c < COUNT; c += 2) {
            const Two two = load_two<C>(v + bytes_of(C, c * 2 * LANES));
            columns[c] = two.first;
            columns[c + 1] = two.second;
        }
    }
}

template <Code C, int R, int COLUMNS>
void mix_columns(const Span& span, const uint8_t* values, int column, float* out) {  // COLUMNS * LANES of them
    const int head_dim = span.shape.head_dim;
    Floats sums[R][COLUMNS];
    for (int r = 0; r < R; ++r) for (int c = 0; c < COLUMNS; ++c) sums[r][c] = zero();
    const auto add_strip = [&](int i, int count) {
        const uint8_t* v = values + span.strips[i] + bytes_of(C, column * 2);
        for (int t = 0; t < count; t += 2, v += bytes_of(C, 2 * head_dim)) {
            Packed pairs[COLUMNS];
            load_columns<C, COLUMNS>(v, pairs);
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
                for (int c = 0; c < COLUMNS; ++c) {
                    sums[r][c] = dot2(sums[r][c], pairs[c], span.probs[r] + i * STRIP + t);
                }
            }
        }
    };
    for (int i = 0; i + 1 < span.num_strips; ++i) add_strip(i, STRIP);
    const int last = span.num_strips - 1;
    add_strip(last, std::min(STRIP, span.end - span.begins[last]));
    for (int r = 0; r < R; ++r) {
        for (int c = 0; c < COLUMNS; ++c) store(out + r * head_dim + column + c * LANES, sums[r][c]);
    }
}

template <Code C, int R>
void mix(Span& span, const uint8_t* values, float* out) {
    // accumulators that fit the registers, and no more than share a scale
    constexpr int WIDE = C == Code::INT4 || R > (C == Code::BF16 ? 6 : 4) ? 2 : 4;
    const int head_dim = span.shape.head_dim, width = scale_width(C, head_dim);
    for (int begin = 0; begin < head_dim; begin += width) {
        const int end = std::min(begin + width, head_dim);
        if constexpr (C != Code::BF16) weigh<R>(span, values, begin / width);
        int column = begin;
        for (; column + WIDE * LANES <= end; column += WIDE * LANES) mix_columns<C, R, WIDE>(span, values, column, out);
        for (; column < end; column += LANES) mix_columns<C, R, 1>(span, values, column, out);
    }
}

template <Code C, int R>
void attend_span(const Tile& tile, Sight seen, const Heads& heads, int number, const bf16* q, const Operands& x,
                 Partial& partial, StripWeights* kept) {
    Span span(tile, seen, heads.kv, number);
    if (kept) std::fill_n(kept->weight[0], TILE_QUERIES * STRIPS, 0.f);
    score<C, R>(span, q, x.keys, x.values);
    const float scale = LOG2_E * (heads.soft_cap ? 1.f : heads.scale);
    if (heads.soft_cap) for (int r = 0; r < R; ++r) cap_scores(span, r, heads.scale, heads.soft_cap);
    hide(span, tile, seen);
    for (int r = 0; r < R; ++r) partial.maximum[r] = scale * largest(span, r);
    for (int r = 0; r < R; ++r) soften<C>(span, scale, r, partial, kept);
    mix<C, R>(span, x.values, partial.out);
}

using AttendSpan = decltype(&attend_span<Code::BF16, 1>);

template <Code C>
AttendSpan attend_span_by(int size) {
    static constexpr AttendSpan BY_SIZE[TILE_QUERIES] = {
        attend_span<C, 1>, attend_span<C, 2>, attend_span<C, 3>, attend_span<C, 4>,
        attend_span<C, 5>, attend_span<C, 6>, attend_span<C, 7>, attend_span<C, 8>};
    return BY_SIZE[size - 1];
}

inline AttendSpan attend_span_by(Code code, int size) {
    switch (code) {
        case Code::INT8: return attend_span_by<Code::INT8>(size);
        case Code::FP8: return attend_span_by<Code::FP8>(size);
        case Code::INT4: return attend_span_by<Code::INT4>(size);
        default: return attend_span_by<Code::BF16>(size);
    }
}
