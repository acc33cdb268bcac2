// The weights of some logits over how far these lie below their highest: where, best first, a mass is reached.
#pragma once
#include "softmax_row.h"

class Histogram {
   public:
    Histogram(Logits logits, const Weights& weights) {
        highest_ = max(logits.highest_lanes());
        const Floats floor = splat(weights.negligible()), none = splat(highest_);
        Floats lowest = none;
        logits.each_vector([&](int, Floats x) { lowest = min(where(at_least(x, floor), x, none), lowest); });
        const float depth = highest_ + max(sub(zero(), lowest));
        per_logit_ = LAST / std::max(depth, 1e-30f);
        first_weight_ = weights(highest_);
        fall_ = weights(highest_ - 1 / per_logit_) / first_weight_;
        fill(logits, weights);
        double sum = 0;
        for (int bin = 0; bin < BINS; ++bin) ends_[bin] = sum += sums_[0][bin] + sums_[1][bin];
    }

    double total() const { return ends_[LAST]; }

    // If the logits are a sample: one standard deviation of what they tell of where a share of the mass ends.
    double error(double share) const {
        const int end = reaching(share * total());
        double above = 0, weight = first_weight_;
        for (int bin = 0; bin <= end; ++bin, weight *= fall_) above += (ends_[bin] - before(bin)) * weight;
        const double below = std::max(squares_ - above, 0.0);
        return std::sqrt((1 - share) * (1 - share) * above + share * share * below);
    }

    double before(int bin) const { return bin ? ends_[bin - 1] : 0; }

    // The first bin at whose end the sum is there; if rounding leaves a rest, the last that weighs something.
    int reaching(double mass) const {
        return int(std::lower_bound(ends_, ends_ + LAST, std::min(mass, total())) - ends_);
    }
    int passing(double mass) const {
        return std::min(int(std::upper_bound(ends_, ends_ + LAST, mass) - ends_), reaching(total()));
    }

    // Whole numbers.
    Floats bin_of(Floats x) const {
        return round(min(mul(sub(splat(highest_), x), splat(per_logit_)), splat(LAST)));
    }

    // A logit about where a bin begins.
    float top_of(int bin) const { return highest_ - (bin - 0.5f) / per_logit_; }

   private:
    static constexpr int BINS = 1024, LAST = BINS - 1;

    // Bins and weights are written down for a block, since it takes long to read in another size what has just
    // been written. Two sums a bin, since an addition to the place of the last one would have to wait for it.
    void fill(Logits logits, const Weights& weights) {
        constexpr int BLOCK = 256;
        alignas(64) int32_t bins[BLOCK];
        alignas(64) float weight[BLOCK];
        Floats squares = zero();
        for (int begin = 0; begin < logits.count; begin += BLOCK) {
            const int end = std::min(begin + BLOCK, logits.count);
            logits.each_vector(begin, end, [&](int at, Floats x) {
                const Floats w = weights(x);
                squares = fma(w, w, squares);
                store_ints(bins + (at - begin), bin_of(x));
                store(weight + (at - begin), w);
            });
            const int count = (end - begin + LANES - 1) / LANES * LANES;
            for (int i = 0; i < count; i += 2) {
                sums_[0][uint32_t(bins[i])] += weight[i];
                sums_[1][uint32_t(bins[i + 1])] += weight[i + 1];
            }
        }
        squares_ = sum(squares);
    }

    float highest_, per_logit_;
    double squares_;              // of the weights
    double first_weight_, fall_;  // about that of a bin's tokens, and how it falls from bin to bin
    double sums_[2][BINS] = {};
    double ends_[BINS];  // sums through each bin
};
