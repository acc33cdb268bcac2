// Logits to token ids, as gpu/sampling.py says: greedy, temperature, top-k, top-p, seeded. A row is one task
// and looks at nothing but itself.
#pragma once
#include <numeric>
#include "best_tokens.h"
#include "nucleus.h"
#include "team.h"

struct SamplingRows {
    const float* logits;  // [R][stride]
    int64_t stride;
    int32_t vocab;
    int32_t num_rows;
    const float* temperature;  // [R]; 0 is greedy
    const int64_t* top_k;      // [R]; 0 is off
    const float* top_p;        // [R]; 1 is off
    const int64_t* seed;       // [R]
    const int64_t* position;   // [R]
    const int32_t* mask;       // [R][ceil(vocab / 32)]: token 32 w + i may be chosen where bit i of w is 1; or null
};

inline void mask_32(uint32_t word, const float* logits, float* out, int count) {
    if (word == 0) {
        std::fill_n(out, count, NEVER);
    } else if (word == ~uint32_t(0)) {
        std::copy_n(logits, count, out);
    } else {
        for (int i = 0; i < count; ++i) out[i] = (word >> i) & 1 ? logits[i] : NEVER;
    }
}

// What a thread keeps from row to row, so that none has to ask for memory; it stays in the thread's cache.
struct SamplingRoom {
    std::vector<float> masked, maxima, blocks;
    Nucleus::Room nucleus;
};

// The row's logits, NEVER where the mask has 0.
inline Logits masked(const SamplingRows& rows, int row, std::vector<float>& kept) {
    const float* logits = rows.logits + row * rows.stride;
    if (!rows.mask) return {logits, rows.vocab};
    kept.resize(rows.vocab);
    const int32_t* words = rows.mask + int64_t(row) * ((rows.vocab + 31) / 32);
    for (int begin = 0; begin < rows.vocab; begin += 32) {
        mask_32(words[begin / 32], logits + begin, &kept[begin], std::min(32, rows.vocab - begin));
    }
    return {kept.data(), rows.vocab};
}

// The number in [0, 1) of noise.py: two rounds of SplitMix64 (Steele, Lea & Flood 2014).
inline uint64_t mix(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

inline double uniform(int64_t seed, int64_t position) {
    constexpr uint64_t GAMMA = 0x9E3779B97F4A7C15u;
    const uint64_t bits = mix(mix(uint64_t(seed) + GAMMA) + (uint64_t(position) + 1) * GAMMA);
    return double(bits >> 11) * 0x1p-53;
}

class RowSampler {
   public:
    RowSampler(const SamplingRows& rows, int row, SamplingRoom& room)
        : temperature_(rows.temperature[row]), top_k_(rows.top_k[row]), top_p_(rows.top_p[row]), room_(room),
          row_(masked(rows, row, room.masked)) {}

    int sample(double noise) const {
        if (!(temperature_ > 0)) return best();
        if (top_k_ > 0) return draw_from_best(noise);
        return top_p_ < 1 ? draw_from_nucleus(noise) : draw_from_all(noise);
    }

   private:
    int best() const { return BestTokens(row_, room_.maxima).best(); }

    int draw_from_nucleus(double noise) const {
        const std::optional<int> id = Nucleus(row_, temperature_, top_p_, room_.nucleus).draw(noise);
        return id ? *id : best();
    }

    int draw_from_all(double noise) const {
        Weights weights(temperature_);
        const std::vector<float>& blocks = block_weights(weights);
        double left = noise * std::accumulate(blocks.begin(), blocks.end(), 0.0);
        int block = 0;
        for (; block + 1 < int(blocks.size()) && left >= blocks[block]; ++block) left -= blocks[block];
        int chosen = block * Logits::BLOCK;  // if rounding leaves a rest, the block's most probable
        for (int i = chosen; i < end_of(block); ++i) {
            const float weight = weights(row_.x[i]);
            if (left < weight) return i;
            left -= weight;
            if (row_.x[i] > row_.x[chosen]) chosen = i;
        }
        return chosen;
    }

    // The mass of every block; `weights` is those of the whole row then.
    const std::vector<float>& block_weights(Weights& weights) const {
        std::vector<float>& blocks = room_.blocks;
        blocks.clear();
        for (int block = 0; block * Logits::BLOCK < row_.count; ++block) {
            const int begin = block * Logits::BLOCK, end = end_of(block);
            const double factor = weights.raise(max(row_.highest_lanes(begin, end)));
            if (factor != 1) for (float& mass : blocks) mass = float(mass * factor);
            Floats mass = zero();
            row_.each_vector(begin, end, [&](int, Floats x) { mass = add(mass, weights(x)); });
            blocks.push_back(sum(mass));
        }
        return blocks;
    }

    int end_of(int block) const { return std::min((block + 1) * Logits::BLOCK, row_.count); }

    // Among the top_k best, of which the fewest with mass top_p are kept.
    int draw_from_best(double noise) const {
        const BestTokens tokens(row_, room_.maxima);
        const std::vector<Candidate> best = tokens.best(std::min<int64_t>(top_k_, row_.count));
        if (best.empty()) return tokens.best();
        Weights weight(temperature_);
        weight.raise(best[0].logit);
        std::vector<double> sums;  // of the weights down to each
        for (const Candidate& token : best) sums.push_back((sums.empty() ? 0 : sums.back()) + weight(token.logit));
        if (top_p_ < 1) {
            const auto cut = std::lower_bound(sums.begin(), sums.end() - 1, top_p_ * sums.back());
            sums.erase(cut + 1, sums.end());
        }
        return best[std::upper_bound(sums.begin(), sums.end() - 1, noise * sums.back()) - sums.begin()].id;
    }

    float temperature_;
    int64_t top_k_;
    float top_p_;
    SamplingRoom& room_;
    Logits row_;
};

inline void sample_rows(const SamplingRows& rows, int64_t* token_ids, int num_threads) {
    Team::run(num_threads, [&](Team& team) {
        thread_local SamplingRoom room;
        team.each(rows.num_rows, [&](int row) {
            token_ids[row] = RowSampler(rows, row, room).sample(uniform(rows.seed[row], rows.position[row]));
        });
    });
}
