// The tokens of the highest logits. Of each set of tokens - every 16th of a block - the highest is known, so that
// few blocks are read a second time.
#pragma once
#include <functional>
#include "softmax_row.h"

class BestTokens {
   public:
    // `maxima` is memory to work in.
    BestTokens(Logits row, std::vector<float>& maxima) : row_(row), maxima_(maxima) {
        maxima_.resize((row.count + BLOCK - 1) / BLOCK * LANES);
        for (int block = 0; block * BLOCK < row.count; ++block) {
            store(&maxima_[block * LANES], row.highest_lanes(block * BLOCK, end_of(block)));
        }
    }

    // The first token of the highest logit; of a row of NaN, token 0.
    int best() const {
        Floats lanes = splat(NEVER);
        for (size_t at = 0; at < maxima_.size(); at += LANES) lanes = max(lanes, load(&maxima_[at]));
        const float highest = max(lanes);
        int block = 0;
        while (end_of(block) < row_.count && !at_least(maxima_of(block), splat(highest))) ++block;
        return int(std::find(row_.x + block * BLOCK, row_.x + row_.count, highest) - row_.x) % row_.count;
    }

    // The `count` best, best first; fewer if fewer may be chosen.
    std::vector<Candidate> best(int64_t count) const {
        const Floats lowest = splat(lowest_of_best(count));
        std::vector<Candidate> found;
        for (int block = 0; block * BLOCK < row_.count; ++block) {
            if (!at_least(maxima_of(block), lowest)) continue;
            row_.each_vector(block * BLOCK, end_of(block), [&](int at, Floats x) {
                row_.each_token(at, at_least(x, lowest), [&](Candidate token) { found.push_back(token); });
            });
        }
        const auto end = found.begin() + std::min<int64_t>(count, found.size());
        std::nth_element(found.begin(), end, found.end());
        found.erase(end, found.end());
        std::sort(found.begin(), found.end());
        return found;
    }

   private:
    static constexpr int BLOCK = 256;

    int end_of(int block) const { return std::min((block + 1) * BLOCK, row_.count); }
    Floats maxima_of(int block) const { return load(&maxima_[block * LANES]); }

    // A logit that the `count` best reach, and few others: the count-th of the maxima of disjoint sets of tokens.
    float lowest_of_best(int64_t count) const {
        std::vector<float> maxima = maxima_;
        if (2 * LANES * count < int64_t(maxima.size())) join(maxima);
        if (count >= int64_t(maxima.size())) return LOWEST;
        std::nth_element(maxima.begin(), maxima.begin() + count - 1, maxima.end(), std::greater<float>());
        return std::max(maxima[count - 1], LOWEST);
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

    Logits row_;
    std::vector<float>& maxima_;
};
