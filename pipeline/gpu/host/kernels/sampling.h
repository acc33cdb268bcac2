// Logits to token ids, as gpu/sampling.py says: greedy, temperature, top-k, top-p, seeded. A row is one task
// and looks at nothing but itself.
//
// A vocabulary is never sorted. Weights exp((x - max) / T) are summed in one pass; of a filtered row only the
// tokens near the maximum are collected, in a band that is widened until it holds all that the filter keeps.
#pragma once
#include <algorithm>
#include <vector>
#include "isa.h"
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
};

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
        : x_(rows.logits + row * rows.stride), vocab_(rows.vocab), temperature_(rows.temperature[row]),
          top_k_(rows.top_k[row]), top_p_(rows.top_p[row]) {
        peak_ = x_[0];
        for_vectors([&](int, Floats x) { peak_ = std::max(peak_, max(x)); });
    }

    int sample(double noise) {
        if (!(temperature_ > 0)) return int(std::find(x_, x_ + vocab_, peak_) - x_) % vocab_;
        const bool has_top_p = top_p_ < 1, has_top_k = top_k_ > 0;
        if (!has_top_p && !has_top_k) return draw_from_all(noise);
        sum_blocks();
        collect(has_top_k ? std::min<int64_t>(top_k_, vocab_) : 0, has_top_p ? top_p_ * total_ : 0);
        return draw_from_kept(noise, has_top_k, has_top_p);
    }

   private:
    static constexpr int BLOCK = 256;
    static constexpr float FIRST_BAND = 4;  // of (max - x) / T; from LAST_BAND on, everything
    static constexpr float LAST_BAND = 128;

    struct Candidate {
        float logit;
        int id;
        bool operator<(const Candidate& other) const {  // comes later: lower, or of equals the higher id
            return logit != other.logit ? logit < other.logit : id > other.id;
        }
    };

    // visit(start, 16 logits); past the end the lanes hold lowest values.
    template <class Visit>
    void for_vectors(Visit visit, int begin = 0, int end = -1) const {
        if (end < 0) end = vocab_;
        int at = begin;
        for (; at + LANES <= end; at += LANES) visit(at, load(x_ + at));
        if (at == end) return;
        float rest[LANES];
        std::fill(rest, rest + LANES, -3.4e38f);
        std::copy(x_ + at, x_ + end, rest);
        visit(at, load(rest));
    }

    // Exactly 0 below e^-86: a masked token (-inf) is never drawn.
    Floats weights(Floats x) const {
        const Floats w = exp(div(sub(x, splat(peak_)), splat(temperature_)));
        return max(sub(w, splat(2e-38f)), zero());
    }

    float weight(float logit) const {
        float lanes[LANES];
        store(lanes, weights(splat(logit)));
        return lanes[0];
    }

    void sum_blocks() {
        for (int begin = 0; begin < vocab_; begin += BLOCK) {
            Floats block = zero();
            const int end = std::min(begin + BLOCK, vocab_);
            for_vectors([&](int at, Floats x) { block = add(block, first(std::min(LANES, end - at), weights(x), zero())); }, begin, end);
            blocks_.push_back(sum(block));
            total_ += blocks_.back();
        }
    }

    int draw_from_all(double noise) {
        sum_blocks();
        double left = noise * total_;
        int block = 0;
        for (; block + 1 < int(blocks_.size()) && left >= blocks_[block]; ++block) left -= blocks_[block];
        const int end = std::min((block + 1) * BLOCK, vocab_);
        int chosen = block * BLOCK;  // if rounding leaves a rest, the block's most probable
        for (int i = block * BLOCK; i < end; ++i) {
            const float w = weight(x_[i]);
            if (left < w) return i;
            left -= w;
            if (x_[i] > x_[chosen]) chosen = i;
        }
        return chosen;
    }

    // All tokens of the narrowest band that has `count` of them and of which the weights sum to `mass`.
    void collect(int64_t count, double mass) {
        for (float band = FIRST_BAND;; band *= 2) {
            const float lowest = band < LAST_BAND ? peak_ - band * temperature_ : -3.4e38f;
            candidates_.clear();
            double held = 0;
            for_vectors([&](int at, Floats x) {
                if (max(x) < lowest) return;
                for (int i = at; i < std::min(at + LANES, vocab_); ++i) {
                    if (!(x_[i] < lowest)) candidates_.push_back({x_[i], i});
                }
            });
            if (band >= LAST_BAND) return;
            if (count) {
                if (int64_t(candidates_.size()) >= count) return;
                continue;
            }
            for (const Candidate& candidate : candidates_) held += weight(candidate.logit);
            if (held >= mass) return;
        }
    }

    int draw_from_kept(double noise, bool has_top_k, bool has_top_p) {
        std::make_heap(candidates_.begin(), candidates_.end());
        auto end = candidates_.end();
        std::vector<double> sums;  // of the weights of the best, best first; those lie at the vector's end
        double sum = 0;
        const auto keep_next = [&] {
            std::pop_heap(candidates_.begin(), end--);
            sums.push_back(sum += weight(end->logit));
        };
        if (has_top_k) {
            const int64_t limit = std::min<int64_t>(top_k_, candidates_.size());
            while (int64_t(sums.size()) < limit) keep_next();
            if (has_top_p) sums.resize(std::lower_bound(sums.begin(), sums.end() - 1, top_p_ * sum) - sums.begin() + 1);
        } else {
            do keep_next();
            while (sum < top_p_ * total_ && end != candidates_.begin());
        }
        const auto found = std::upper_bound(sums.begin(), sums.end() - 1, noise * sums.back());
        return (candidates_.end() - 1 - (found - sums.begin()))->id;
    }

    const float* x_;
    int vocab_;
    float temperature_;
    int64_t top_k_;
    float top_p_;
    float peak_;
    std::vector<float> blocks_;  // weight of every BLOCK tokens
    double total_ = 0;
    std::vector<Candidate> candidates_;
};

inline void sample_rows(const SamplingRows& rows, int64_t* token_ids, int num_threads) {
    Team::run(num_threads, [&](Team& team) {
        team.each(rows.num_rows, [&](int row) {
            token_ids[row] = RowSampler(rows, row).sample(uniform(rows.seed[row], rows.position[row]));
        });
    });
}
