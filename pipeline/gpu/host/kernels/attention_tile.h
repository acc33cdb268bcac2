// Which queries are computed together, and what they see of their context.
#pragma once
#include <algorithm>
#include "kv.h"

constexpr int SPAN = 256;  // positions, at fixed offsets
constexpr int STRIPS = SPAN / STRIP;
constexpr int TILE_QUERIES = 8;  // (token, head) pairs that share the keys of one head

struct Heads {
    KvShape kv;
    int32_t num_heads;
    float scale;     // of the scores
    float soft_cap;  // scores become soft_cap * tanh(score / soft_cap); 0: as they are
};

struct Batch {  // see StepInputs in api.py
    int32_t num_rows;
    int32_t table_stride;
    const int32_t* query_start;
    const int32_t* context_lens;
    const int32_t* block_tables;
    const int32_t* sinks;    // [num_rows], as
    const int32_t* windows;  // both are; or null
    int64_t* mass;           // [num_rows][table_stride], or null
};

// The first `n` of some lanes, as bits.
constexpr uint32_t first_bits(int n) { return (1u << std::clamp(n, 0, LANES)) - 1; }

constexpr uint32_t ALL_LANES = first_bits(LANES);

// A query sees `limit` entries of its context: of these the first `sinks` and the last `window`.
struct Sight {
    static constexpr int ALL = 1 << 30;

    int sinks = 0;
    int window = ALL;

    // In a layer with a window of its own: no sinks, and no more than the row sees.
    Sight within(int layer_window) const { return layer_window ? Sight{0, std::min(window, layer_window)} : *this; }

    // What a query sees of the strip at `begin`, a bit a position.
    uint32_t lanes(int limit, int begin) const {
        if (begin + LANES <= limit && begin >= limit - window) return ALL_LANES;
        return first_bits(limit - begin) & (first_bits(sinks - begin) | ~first_bits(limit - window - begin));
    }

    // Whether all of some queries see all of the strip at `begin`.
    bool has_all(int first_limit, int last_limit, int begin) const {
        return begin + LANES <= first_limit && (begin + LANES <= sinks || begin >= last_limit - window);
    }

    // Whether one of some queries sees anything from begin on and before end.
    bool meets(int first_limit, int last_limit, int begin, int end) const {
        return begin < last_limit && (begin < sinks || end > first_limit - window);
    }

    int num_seen(int limit) const { return int(std::min<int64_t>(limit, int64_t(sinks) + window)); }
};

// `num_tokens` tokens from `token` on by `num_heads` query heads from `head` on, all of one key head.
struct Tile {
    const int32_t* blocks;
    int row, token, num_tokens, head, num_heads, kv_head;
    int limit;  // of the first token; each later one sees one position more
    Sight sight;

    int size() const { return num_tokens * num_heads; }
    int token_of(int query) const { return token + query / num_heads; }
    int head_of(int query) const { return head + query % num_heads; }
    int limit_of(int query) const { return limit + query / num_heads; }
    int last_limit() const { return limit + num_tokens - 1; }
    int num_spans() const { return (last_limit() + SPAN - 1) / SPAN; }
    bool sees_all(Sight seen, int begin) const { return seen.has_all(limit, last_limit(), begin); }
    bool meets(Sight seen, int begin, int end) const { return seen.meets(limit, last_limit(), begin, end); }
    bool meets_span(Sight seen, int number) const { return meets(seen, number * SPAN, (number + 1) * SPAN); }
};
