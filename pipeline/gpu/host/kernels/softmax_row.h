// One row of logits as weights exp((x - peak) / T), read in 16 lanes, never copied, never sorted.
#pragma once
#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <vector>
#include "isa.h"

struct Candidate {
    float logit;
    int id;
    bool operator<(const Candidate& other) const {  // comes first: higher, or of equals the lower id
        return logit != other.logit ? logit > other.logit : id < other.id;
    }
};

class SoftmaxRow {
   public:
    static constexpr int BLOCK = 256;

    SoftmaxRow(const float* logits, int vocab, float temperature)
        : x_(logits), vocab_(vocab), inverse_(std::min(1 / temperature, 1e38f)),
          maxima_((vocab + BLOCK - 1) / BLOCK * LANES) {
        Floats peak = splat(-INFINITY);
        for (int begin = 0; begin < vocab_; begin += BLOCK) {
            Floats highest[2] = {peak, peak};  // two chains: each has to wait for itself
            int chain = 0;
            each_vector(begin, std::min(begin + BLOCK, vocab_), [&](int, Floats x) {
                highest[chain] = max(highest[chain], x);
                chain ^= 1;
            });
            store(&maxima_[begin / BLOCK * LANES], max(highest[0], highest[1]));
        }
        for (size_t at = 0; at < maxima_.size(); at += LANES) peak = max(peak, load(&maxima_[at]));
        peak_ = max(peak);
    }

    int vocab() const { return vocab_; }
    float logit(int id) const { return x_[id]; }

    // The first token of the highest logit; of a row of NaN, token 0.
    int best() const {
        const Floats peak = splat(peak_);
        size_t block = 0;
        while (block + LANES < maxima_.size() && !at_least(load(&maxima_[block]), peak)) block += LANES;
        const float* from = x_ + block / LANES * BLOCK;
        return int(std::find(from, x_ + vocab_, peak_) - x_) % vocab_;
    }

    // visit(first token, 16 logits); past the end the lanes hold -inf.
    template <class Visit>
    void each_vector(int begin, int end, Visit visit) const {
        int at = begin;
        for (; at + LANES <= end; at += LANES) visit(at, load(x_ + at));
        if (at == end) return;
        float rest[LANES];
        std::fill(rest, rest + LANES, -INFINITY);
        std::copy(x_ + at, x_ + end, rest);
        visit(at, load(rest));
    }

    // visit(token) for each of the 16 from `at` on whose bit is set.
    template <class Visit>
    void each_token(int at, uint32_t bits, Visit visit) const {
        if (vocab_ - at < LANES) bits &= (1u << (vocab_ - at)) - 1;
        for (; bits; bits &= bits - 1) {
            const int id = at + std::countr_zero(bits);
            visit(Candidate{x_[id] == x_[id] ? x_[id] : -INFINITY, id});  // NaN has no place in an order
        }
    }

    // (peak - x) / T
    Floats depth(Floats x) const { return mul(sub(splat(peak_), x), splat(inverse_)); }

    // Exactly 0 below e^-86: a masked token (-inf) is never drawn.
    Floats weights(Floats x) const { return max(sub(exp(sub(zero(), depth(x))), splat(2e-38f)), zero()); }

    float weight(float logit) const {
        float lanes[LANES];
        store(lanes, weights(splat(logit)));
        return lanes[0];
    }

    // Of every BLOCK tokens.
    std::vector<float> block_weights() const {
        std::vector<float> sums;
        for (int begin = 0; begin < vocab_; begin += BLOCK) {
            Floats block = zero();
            const auto take = [&](int, Floats x) { block = add(block, weights(x)); };
            each_vector(begin, std::min(begin + BLOCK, vocab_), take);
            sums.push_back(sum(block));
        }
        return sums;
    }

    // The `count` best tokens, best first.
    std::vector<Candidate> best(int64_t count) const {
        const Floats lowest = splat(lowest_of_best(count));
        std::vector<Candidate> found;
        each_vector(0, vocab_, [&](int at, Floats x) {
            each_token(at, at_least(x, lowest), [&](Candidate token) { found.push_back(token); });
        });
        const auto end = found.begin() + std::min<int64_t>(count, found.size());
        std::nth_element(found.begin(), end, found.end());
        found.erase(end, found.end());
        std::sort(found.begin(), found.end());
        return found;
    }

   private:
    // A logit that the `count` best reach, and few others: the count-th of the maxima of disjoint sets of tokens.
    float lowest_of_best(int64_t count) const {
        std::vector<float> maxima = maxima_;
        if (2 * LANES * count < int64_t(maxima.size())) join(maxima);
        if (count >= int64_t(maxima.size())) return -INFINITY;
        std::nth_element(maxima.begin(), maxima.begin() + count - 1, maxima.end(), std::greater<float>());
        return maxima[count - 1];
    }

    // Maxima of 16 times as many tokens each.
    static void join(std::vector<float>& maxima) {
        size_t kept = 0;
        for (size_t begin = 0; begin < maxima.size(); begin += LANES * LANES, kept += LANES) {
            Floats highest = load(&maxima[begin]);
            for (size_t at = begin; at < std::min(begin + LANES * LANES, maxima.size()); at += LANES) {
                highest = max(highest, load(&maxima[at]));
            }
            store(&maxima[kept], highest);
        }
        maxima.resize(kept);
    }

    const float* x_;
    int vocab_;
    float inverse_;  // of the temperature
    float peak_;
    std::vector<float> maxima_;  // of every BLOCK tokens, lane by lane
};
