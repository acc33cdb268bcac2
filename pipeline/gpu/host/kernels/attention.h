// Causal attention over the paged cache, read in place through the block tables. Decode rows, whole prompts
// and chunks of prompts are one case: a query sees the first `limit` positions of its sequence.
//
// The context is cut into spans of SPAN positions at fixed offsets. A (query, span) pair gives a partial that
// depends on nothing else, and a query's partials are merged in span order: so its bits are the same in any
// chunk and any batch, and the spans of a long context may be divided among threads.
#pragma once
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>
#include "kv.h"
#include "team.h"

constexpr int SPAN = 256;
constexpr int STRIPS = SPAN / STRIP;
constexpr int TILE_QUERIES = 8;  // (token, head) pairs that share the keys of one head
constexpr int MAX_HEAD_DIM = 256;

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

// `num_tokens` tokens from `token` on by `num_heads` query heads from `head` on, all of one key head.
struct Tile {
    const int32_t* blocks;
    int token, num_tokens, head, num_heads, kv_head;
    int limit;  // of the first token; each later one sees one position more

    int size() const { return num_tokens * num_heads; }
    int token_of(int query) const { return token + query / num_heads; }
    int head_of(int query) const { return head + query % num_heads; }
    int limit_of(int query) const { return limit + query / num_heads; }
    int num_spans() const { return (limit_of(size() - 1) + SPAN - 1) / SPAN; }
};

// Attention of a tile within some spans: sum of exp(score - maximum) V, not yet divided by its weight.
struct Partial {
    float maximum[TILE_QUERIES];
    float weight[TILE_QUERIES];
    float out[TILE_QUERIES * MAX_HEAD_DIM];  // [query][head_dim]
};

// One span of one tile: the positions of its strips, and the work area.
struct Span {
    int begin, num_strips, head_dim;
    int64_t strips[STRIPS];
    float scores[TILE_QUERIES][SPAN];
    bf16 probs[TILE_QUERIES][SPAN];

    Span(const Tile& tile, const KvShape& kv, int number) : begin(number * SPAN), head_dim(kv.head_dim) {
        const int end = std::min(tile.limit_of(tile.size() - 1), begin + SPAN);
        num_strips = (end - begin + STRIP - 1) / STRIP;
        for (int i = 0; i < num_strips; ++i) {
            const int position = begin + i * STRIP;
            const int block = tile.blocks[position / kv.block_size];
            strips[i] = kv.strip(block, tile.kv_head, position % kv.block_size / STRIP);
        }
    }
};

// Into the second-level cache. Strips lie scattered, too short for the CPU to foresee: without this, attention
// of 64 rows takes 1.6 times as long.
inline void fetch(const bf16* two_lines) {
    __builtin_prefetch(two_lines, 0, 2);
    __builtin_prefetch(two_lines + 2 * LANES, 0, 2);
}

constexpr int STRIPS_AHEAD = 3;

template <int R>
void score(Span& span, const bf16* q, const bf16* keys, const bf16* values) {  // q [R][head_dim]
    for (int i = 0; i < span.num_strips; ++i) {
        const bf16* k = keys + span.strips[i];
        const bf16* later = keys + span.strips[std::min(i + STRIPS_AHEAD, span.num_strips - 1)];
        const bf16* v = values + span.strips[i];
        Floats even[R], odd[R];
        for (int r = 0; r < R; ++r) even[r] = odd[r] = zero();
        for (int d = 0; d < span.head_dim; d += 4, k += 4 * STRIP, later += 4 * STRIP, v += 4 * STRIP) {
            fetch(later);
            fetch(v);
            const Packed k0 = load_packed(k), k1 = load_packed(k + 2 * STRIP);
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) {
                even[r] = dot2(even[r], k0, q + r * span.head_dim + d);
                odd[r] = dot2(odd[r], k1, q + r * span.head_dim + d + 2);
            }
        }
        for (int r = 0; r < R; ++r) store(span.scores[r] + i * STRIP, add(even[r], odd[r]));
    }
}

// Scores of one query to probabilities, up to their common weight; what it may not see becomes 0.
inline void soften(Span& span, int query, int limit, float scale, Partial& partial) {
    const Floats lowest = splat(-std::numeric_limits<float>::infinity());
    float* scores = span.scores[query];
    Floats most = lowest;
    for (int i = 0; i < span.num_strips; ++i) {
        const int visible = std::clamp(limit - span.begin - i * STRIP, 0, STRIP);
        const Floats x = first(visible, mul(load(scores + i * STRIP), splat(scale)), lowest);
        store(scores + i * STRIP, x);
        most = max(most, x);
    }
    partial.maximum[query] = max(most);
    const Floats maximum = splat(partial.maximum[query]);
    Floats weight = zero();
    for (int i = 0; i < span.num_strips; ++i) {
        const int visible = std::clamp(limit - span.begin - i * STRIP, 0, STRIP);
        const Floats p = first(visible, exp(sub(load(scores + i * STRIP), maximum)), zero());
        weight = add(weight, p);
        store_bf16(span.probs[query] + i * STRIP, p);
    }
    partial.weight[query] = sum(weight);
}

template <int R, int C>
void mix_columns(const Span& span, const bf16* values, int column, float* out) {  // C * LANES columns
    Floats sums[R][C];
    for (int r = 0; r < R; ++r) for (int c = 0; c < C; ++c) sums[r][c] = zero();
    for (int i = 0; i < span.num_strips; ++i) {
        const bf16* v = values + span.strips[i] + column * 2;
        for (int t = 0; t < STRIP; t += 2, v += 2 * span.head_dim) {
            Packed pair[C];
            for (int c = 0; c < C; ++c) pair[c] = load_packed(v + c * 2 * LANES);
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
                for (int c = 0; c < C; ++c) sums[r][c] = dot2(sums[r][c], pair[c], span.probs[r] + i * STRIP + t);
            }
        }
    }
    for (int r = 0; r < R; ++r) {
        for (int c = 0; c < C; ++c) store(out + r * span.head_dim + column + c * LANES, sums[r][c]);
    }
}

template <int R>
void mix(const Span& span, const bf16* values, float* out) {
    constexpr int WIDE = R <= 6 ? 4 : 2;  // accumulators that fit the registers
    int column = 0;
    for (; column + WIDE * LANES <= span.head_dim; column += WIDE * LANES) mix_columns<R, WIDE>(span, values, column, out);
    for (; column < span.head_dim; column += LANES) mix_columns<R, 1>(span, values, column, out);
}

template <int R>
void attend_span(const Tile& tile, const Heads& heads, int number, const bf16* q, const bf16* keys,
                 const bf16* values, Partial& partial) {
    Span span(tile, heads.kv, number);
    score<R>(span, q, keys, values);
    for (int r = 0; r < R; ++r) soften(span, r, tile.limit_of(r), heads.scale, partial);
    mix<R>(span, values, partial.out);
}

// Adds the partial of span `number` to that of the spans before it.
inline void merge(Partial& all, const Partial& next, const Tile& tile, int number, int head_dim) {
    for (int r = 0; r < tile.size(); ++r) {
        if (tile.limit_of(r) <= number * SPAN) continue;
        const float maximum = std::max(all.maximum[r], next.maximum[r]);
        const float a = std::exp(all.maximum[r] - maximum), b = std::exp(next.maximum[r] - maximum);
        all.maximum[r] = maximum;
        all.weight[r] = all.weight[r] * a + next.weight[r] * b;
        float* to = all.out + r * head_dim;
        const float* from = next.out + r * head_dim;
        for (int d = 0; d < head_dim; d += LANES) store(to + d, fma(load(from + d), splat(b), mul(load(to + d), splat(a))));
    }
}

// Spans begin..end of a tile, merged in order.
inline void attend(const Tile& tile, const Heads& heads, int begin, int end, const bf16* q, const bf16* keys,
                   const bf16* values, Partial& partial) {
    static constexpr decltype(&attend_span<1>) BY_SIZE[TILE_QUERIES] = {
        attend_span<1>, attend_span<2>, attend_span<3>, attend_span<4>,
        attend_span<5>, attend_span<6>, attend_span<7>, attend_span<8>};
    const int head_dim = heads.kv.head_dim;
    bf16 queries[TILE_QUERIES * MAX_HEAD_DIM];
    for (int r = 0; r < tile.size(); ++r) {
        const int64_t at = (int64_t(tile.token_of(r)) * heads.num_heads + tile.head_of(r)) * head_dim;
        std::copy_n(q + at, head_dim, queries + r * head_dim);
    }
    const auto attend_one = BY_SIZE[tile.size() - 1];
    attend_one(tile, heads, begin, queries, keys, values, partial);
    Partial next;
    for (int number = begin + 1; number < end; ++number) {
        attend_one(tile, heads, number, queries, keys, values, next);
        merge(partial, next, tile, number, head_dim);
    }
}

// out [T][stride] fp32.
inline void finish(const Partial& partial, const Tile& tile, const Heads& heads, float* out, int64_t stride) {
    const int head_dim = heads.kv.head_dim;
    for (int r = 0; r < tile.size(); ++r) {
        const Floats inverse = splat(1.f / partial.weight[r]);
        float* to = out + tile.token_of(r) * stride + tile.head_of(r) * head_dim;
        for (int d = 0; d < head_dim; d += LANES) store(to + d, mul(load(partial.out + r * head_dim + d), inverse));
    }
}

// The tasks of one step, the same for all its layers.
class AttentionPlan {
   public:
    AttentionPlan(const Batch& batch, const Heads& heads, int num_threads) : heads_(heads) {
        for (int row = 0; row < batch.num_rows; ++row) add_row(batch, row);
        std::sort(tiles_.begin(), tiles_.end(), [](const Tile& a, const Tile& b) { return a.limit > b.limit; });
        const bool is_split = int(tiles_.size()) < 4 * num_threads;
        for (int i = 0; i < int(tiles_.size()); ++i) {
            const int spans = tiles_[i].num_spans(), step = is_split ? 1 : spans;
            if (step < spans) split_.push_back({i, 0, spans, num_partials_});
            for (int at = 0; at < spans; at += step) {
                tasks_.push_back({i, at, at + step, step < spans ? num_partials_++ : -1});
            }
        }
        partials_.resize(num_partials_);
    }

    // q [T][num_heads][head_dim] -> out [T][stride]. A layer with a window sees so many of the latest entries.
    void run(Team& team, const bf16* q, const void* k, const void* v, float* out, int64_t stride, int /*window*/ = 0) {
        const bf16* keys = static_cast<const bf16*>(k);
        const bf16* values = static_cast<const bf16*>(v);
        // threads take contiguous shares, so neighbours in size go to different threads
        const int count = int(tasks_.size()), threads = team.size(), share = (count + threads - 1) / threads;
        team.each(share * threads, [&](int i) {
            const int at = i % share * threads + i / share;
            if (at < count) run_task(tasks_[at], q, keys, values, out, stride);
        });
        if (split_.empty()) return;
        team.each(int(split_.size()), [&](int i) { run_merge(split_[i], out, stride); });
    }

   private:
    struct Task { int tile, begin, end, partial; };

    void add_row(const Batch& batch, int row) {
        const int group = heads_.num_heads / heads_.kv.num_kv_heads;
        const int start = batch.query_start[row], end = batch.query_start[row + 1];
        const int width = std::min(group, TILE_QUERIES), height = TILE_QUERIES / width;
        for (int head = 0; head < heads_.num_heads;) {
            const int kv_head = head / group, count = std::min(width, (kv_head + 1) * group - head);
            for (int token = start; token < end; token += height) {
                tiles_.push_back({batch.block_tables + int64_t(row) * batch.table_stride, token,
                                  std::min(height, end - token), head, count, kv_head,
                                  batch.context_lens[row] - (end - token) + 1});
            }
            head += count;
        }
    }

    void run_task(const Task& task, const bf16* q, const bf16* keys, const bf16* values, float* out, int64_t stride) {
        const Tile& tile = tiles_[task.tile];
        if (task.partial >= 0) {
            attend(tile, heads_, task.begin, task.end, q, keys, values, partials_[task.partial]);
            return;
        }
        Partial partial;
        attend(tile, heads_, task.begin, task.end, q, keys, values, partial);
        finish(partial, tile, heads_, out, stride);
    }

    void run_merge(const Task& task, float* out, int64_t stride) {
        Partial& all = partials_[task.partial];
        for (int number = 1; number < task.end; ++number) {
            merge(all, partials_[task.partial + number], tiles_[task.tile], number, heads_.kv.head_dim);
        }
        finish(all, tiles_[task.tile], heads_, out, stride);
    }

    Heads heads_;
    std::vector<Tile> tiles_;
    std::vector<Task> tasks_, split_;
    std::vector<Partial> partials_;
    int num_partials_ = 0;
};
