// Logits to token ids, as gpu/sampling.py says: greedy, temperature, top-k, top-p, seeded. A row is one task
// and looks at nothing but itself.
#pragma once
#include <algorithm>
#include <limits>
#include <numeric>
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
    constexpr float OUT = -std::numeric_limits<float>::infinity();
    if (word == 0) {
        std::fill_n(out, count, OUT);
    } else if (word == ~uint32_t(0)) {
        std::copy_n(logits, count, out);
    } else {
        for (int i = 0; i < count; ++i) out[i] = (word >> i) & 1 ? logits[i] : OUT;
    }
}

// The row's logits, -inf where the mask has 0: in memory of the thread's own, which stays in its cache.
inline const float* masked(const SamplingRows& rows, int row) {
    const float* logits = rows.logits + row * rows.stride;
    if (!rows.mask) return logits;
    thread_local std::vector<float> kept;
    kept.resize(rows.vocab);
    const int32_t* words = rows.mask + int64_t(row) * ((rows.vocab + 31) / 32);
    float* out = kept.data();
    int begin = 0;
    for (; begin + 32 <= rows.vocab; begin += 32) mask_32(words[begin / 32], logits + begin, out + begin, 32);
    if (begin < rows.vocab) mask_32(words[begin / 32], logits + begin, out + begin, rows.vocab - begin);
    return out;
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
    RowSampler(const SamplingRows& rows, int row)
        : temperature_(rows.temperature[row]), top_k_(rows.top_k[row]), top_p_(rows.top_p[row]),
          row_(masked(rows, row), rows.vocab, temperature_) {}

    int sample(double noise) const {
        if (!(temperature_ > 0)) return row_.best();
        if (top_k_ > 0) return draw_from_best(noise);
        return top_p_ < 1 ? Nucleus(row_, top_p_).draw(noise) : draw_from_all(noise);
    }

   private:
    int draw_from_all(double noise) const {
        const std::vector<float> blocks = row_.block_weights();
        double left = noise * std::accumulate(blocks.begin(), blocks.end(), 0.0);
        int block = 0;
        for (; block + 1 < int(blocks.size()) && left >= blocks[block]; ++block) left -= blocks[block];
        const int begin = block * SoftmaxRow::BLOCK, end = std::min(begin + SoftmaxRow::BLOCK, row_.vocab());
        int chosen = begin;  // if rounding leaves a rest, the block's most probable
        for (int i = begin; i < end; ++i) {
            const float w = row_.weight(row_.logit(i));
            if (left < w) return i;
            left -= w;
            if (row_.logit(i) > row_.logit(chosen)) chosen = i;
        }
        return chosen;
    }

    // Among the top_k best, of which the fewest with mass top_p are kept.
    int draw_from_best(double noise) const {
        const std::vector<Candidate> best = row_.best(std::min<int64_t>(top_k_, row_.vocab()));
        if (best.empty()) return row_.best();
        std::vector<double> sums;  // of the weights down to each
        for (const Candidate& token : best) sums.push_back((sums.empty() ? 0 : sums.back()) + row_.weight(token.logit));
        if (top_p_ < 1) {
            const auto cut = std::lower_bound(sums.begin(), sums.end() - 1, top_p_ * sums.back());
            sums.erase(cut + 1, sums.end());
        }
        return best[std::upper_bound(sums.begin(), sums.end() - 1, noise * sums.back()) - sums.begin()].id;
    }

    float temperature_;
    int64_t top_k_;
    float top_p_;
    SoftmaxRow row_;
};

inline void sample_rows(const SamplingRows& rows, int64_t* token_ids, int num_threads) {
    Team::run(num_threads, [&](Team& team) {
        team.each(rows.num_rows, [&](int row) {
            token_ids[row] = RowSampler(rows, row).sample(uniform(rows.seed[row], rows.position[row]));
        });
    });
}
