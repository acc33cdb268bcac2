// Logits read in 16 lanes, never sorted, and the weights exp((x - highest) / T) of their tokens.
#pragma once
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>
#include "isa.h"

constexpr float NEVER = -std::numeric_limits<float>::infinity();  // the logit of a token that must not be chosen
constexpr float LOWEST = std::numeric_limits<float>::lowest();    // that of any other

struct Candidate {
    float logit;
    int id;
    bool operator<(const Candidate& other) const {  // comes first: higher, or of equals the lower id
        return logit != other.logit ? logit > other.logit : id < other.id;
    }
};

// Those of a row, or of some of its tokens.
struct Logits {
    static constexpr int BLOCK = 1024;  // what is read twice is in the first-level cache then

    const float* x;
    int count;

    // visit(first, 16 logits) from `begin` to `end`; past the end the lanes hold NEVER.
    template <class Visit>
    void each_vector(int begin, int end, Visit visit) const {
        int at = begin;
        for (; at + LANES <= end; at += LANES) visit(at, load(x + at));
        if (at == end) return;
        float rest[LANES];
        std::fill(rest, rest + LANES, NEVER);
        std::copy(x + at, x + end, rest);
        visit(at, load(rest));
    }

    template <class Visit>
    void each_vector(Visit visit) const { each_vector(0, count, visit); }

    // visit(token) for each of the 16 from `at` on whose bit is set.
    template <class Visit>
    void each_token(int at, uint32_t bits, Visit visit) const {
        if (count - at < LANES) bits &= (1u << (count - at)) - 1;
        for (; bits; bits &= bits - 1) visit(Candidate{x[at + std::countr_zero(bits)], at + std::countr_zero(bits)});
    }

    // Lane by lane; NaN is not among them. NEVER if there is no other.
    Floats highest_lanes(int begin, int end) const {
        Floats even = splat(NEVER), odd = even;  // two chains: each has to wait for itself
        for (; begin + 2 * LANES <= end; begin += 2 * LANES) {
            even = max(load(x + begin), even);
            odd = max(load(x + begin + LANES), odd);
        }
        each_vector(begin, end, [&](int, Floats logits) { even = max(logits, even); });
        return max(even, odd);
    }

    Floats highest_lanes() const { return highest_lanes(0, count); }
};

// exp((x - reference) / T): exactly 0 for what is 104 T below the reference or more, for NEVER, and for NaN.
class Weights {
   public:
    explicit Weights(float temperature) : scale_(std::clamp(1 / temperature, 1e-30f, 1e38f) * LOG2_E) {}

    Floats operator()(Floats x) const { return exp2_to_zero(mul(sub(x, splat(reference_)), splat(scale_))); }

    float operator()(float x) const {
        float lanes[LANES];
        store(lanes, (*this)(splat(x)));
        return lanes[0];
    }

    // If a logit is so far above the reference that weights could not be added up, makes it the reference. Returns
    // by what weights until now are to be multiplied: 1 if it has not.
    double raise(float highest) {
        if (!(double(highest) - reference_ > MOST / scale_)) return 1;
        const double factor = std::exp2((double(reference_) - highest) * scale_);
        reference_ = highest;
        return factor;
    }

    // Tokens of this logit, or of a lower one, weigh next to nothing.
    float negligible() const { return reference_ - 128 / scale_; }

   private:
    static constexpr double MOST = 64;  // a weight of 2^64

    float scale_;
    float reference_ = NEVER;
};
