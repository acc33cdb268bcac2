// The fewest of the most probable tokens that have a given mass (Holtzman et al. 2020), and a draw among them in
// order of (logit falling, id rising). No vocabulary is sorted, and a long one is read once: a sample of its tokens
// tells in which ranges of logits the cut and the draw will be, one pass adds up what lies above each range and
// keeps what lies in it. What is kept is narrowed in the same way, and a histogram of the rest has the token. If a
// sample has told wrong - the masses show it - no range is left out.
#pragma once
#include <array>
#include <optional>
#include "histogram.h"

class Nucleus {
   public:
    // Memory to work in.
    struct Room {
        std::vector<float> sample, kept, part, narrow;
        std::vector<int> starts;
    };

    // Of the tokens with top_p < 1 of the mass.
    Nucleus(Logits row, float temperature, float top_p, Room& room)
        : row_(row), top_p_(top_p), weights_(temperature), room_(room), is_guessing_(row.count >= LONG) {}

    // noise in [0, 1) -> token id; none if no token weighs anything.
    std::optional<int> draw(double noise) {
        if (is_guessing_) {
            guess(noise);
            if (const std::optional<int> id = draw_within(noise)) return id;
        }
        is_guessing_ = false;
        ranges_.fill({});
        return draw_within(noise);
    }

   private:
    static constexpr int LONG = 4096;  // tokens: fewer are not worth a sample
    static constexpr double SIGMAS = 3;
    static constexpr int HIGHEST = 2;  // which range has nothing above it

    struct Range {
        float low = LOWEST, high = -NEVER;  // low <= x < high
        double above = 0;                   // mass of the tokens from high on
    };

    // All tokens of a range, by id; their mass, and that of all above them.
    struct Part {
        Logits tokens;
        double mass, above;
    };

    struct Place {
        float logit;
        int rank;    // among the tokens of this logit, by id
        double sum;  // of the weights down to this token
        bool is_before(const Place& other) const { return logit != other.logit ? logit > other.logit : rank < other.rank; }
    };

    // Where the cut is, where the draw is, and the highest: their weights may be so large that what a sample
    // says of the others means nothing.
    void guess(double noise) {
        const Logits sample = sampled(row_);
        const Floats highest = sample.highest_lanes();
        weights_.raise(max(highest));
        const Histogram all(sample, weights_);
        ranges_ = {about(all, top_p_), about(all, noise * top_p_), {std::max(-max(sub(zero(), highest)), LOWEST)}};
    }

    // Of n tokens about n^(2/3): what it takes to count more, it saves in what is kept.
    Logits sampled(Logits all) {
        const int step = LANES * int(std::cbrt(all.count) / 2);
        room_.sample.resize(all.count / step * LANES + LANES);
        int count = 0;
        for (int at = 0; at + LANES <= all.count; at += step, count += LANES) {
            store(&room_.sample[count], load(all.x + at));
        }
        return {room_.sample.data(), count};
    }

    // Where a share of the mass is reached, give or take what the sample may be wrong by.
    static Range about(const Histogram& sample, double share) {
        const double mass = share * sample.total();
        const double slack = SIGMAS * sample.error(share);
        Range range;
        if (mass > slack) range.high = sample.top_of(sample.reaching(mass - slack));
        if (mass + slack < sample.total()) range.low = sample.top_of(sample.reaching(mass + slack) + 1);
        return range;
    }

    std::optional<int> draw_within(double noise) {
        add_up();
        if (!(total_ > 0)) return std::nullopt;
        const std::optional<Place> cut = find(&Histogram::reaching, reached, top_p_ * total_);
        if (!cut) return std::nullopt;
        const std::optional<Place> found = find(&Histogram::passing, passed, noise * cut->sum);
        if (!found) return std::nullopt;
        return id_of(found->is_before(*cut) ? *found : *cut);
    }

    // One pass: the mass of all, that above the ranges, and the tokens in any of them.
    void add_up() {
        total_ = 0;
        for (Range& range : ranges_) range.above = 0;
        room_.kept.resize(row_.count + LANES);
        room_.starts.clear();
        kept_ = {room_.kept.data(), 0};
        for (int begin = 0; begin < row_.count; begin += Logits::BLOCK) {
            room_.starts.push_back(kept_.count);
            while (!add_block(begin, std::min(begin + Logits::BLOCK, row_.count))) {}
        }
    }

    // False if its weights are too large: the reference is another then.
    bool add_block(int begin, int end) {
        const Weights weights = weights_;  // copies: what is stored below is none of their memory
        const auto ranges = ranges_;
        Floats highest = splat(NEVER), all = zero(), above[HIGHEST] = {zero(), zero()};
        float* to = room_.kept.data() + kept_.count;
        row_.each_vector(begin, end, [&](int, Floats x) {
            highest = max(x, highest);
            const Floats weight = weights(x);
            all = add(all, weight);
            uint32_t inside = at_least(x, splat(ranges[HIGHEST].low));
            for (int i = 0; i < HIGHEST; ++i) {
                const uint32_t higher = at_least(x, splat(ranges[i].high));
                above[i] = add_where(higher, above[i], weight);
                inside |= at_least(x, splat(ranges[i].low)) & ~higher;
            }
            to = store_chosen(to, inside, x);
        });
        const double factor = weights_.raise(max(highest));
        total_ *= factor;
        for (Range& range : ranges_) range.above *= factor;
        if (factor != 1) return false;
        total_ += sum(all);
        for (int i = 0; i < HIGHEST; ++i) ranges_[i].above += sum(above[i]);
        kept_.count = int(to - kept_.x);
        return true;
    }

    static float* store_chosen(float* to, uint32_t bits, Floats x) {
        bits &= (1u << LANES) - 1;
        store(to, chosen(bits, x));
        return to + std::popcount(bits);
    }

    static bool reached(double sum, double wanted) { return sum >= wanted; }
    static bool passed(double sum, double wanted) { return sum > wanted; }

    // The token, in order, at which the sum is there; none if no range has it.
    std::optional<Place> find(int (Histogram::*bin_at)(double) const, bool (*is_there)(double, double), double wanted) {
        const Part part = part_with(wanted);
        if (is_guessing_ && (part.above > wanted || part.above + part.mass < wanted)) return std::nullopt;
        const Histogram histogram(part.tokens, weights_);
        const int bin = (histogram.*bin_at)(wanted - part.above);
        Place place{NEVER, 0, part.above + histogram.before(bin)}, last = place;
        for (const Candidate& token : tokens_of(part.tokens, histogram, bin)) {
            const double weight = weights_(token.logit);
            place = {token.logit, token.logit == place.logit ? place.rank + 1 : 0, place.sum + weight};
            if (is_there(place.sum, wanted)) return place;
            if (weight > 0) last = place;
        }
        return last;  // rounding has left a rest
    }

    // That of the narrowest range in which the mass is reached, made narrower.
    Part part_with(double wanted) {
        for (int i = 0; i < HIGHEST; ++i) {
            if (0 < ranges_[i].above && ranges_[i].above < wanted) return narrowed(taken(i), wanted);
        }
        Part part = taken(HIGHEST);  // not to be sampled either
        for (int i = HIGHEST - 1; i >= 0 && part.mass < wanted; --i) {
            if (ranges_[i].above == 0) part = taken(i);
            if (part.mass >= wanted) return narrowed(part, wanted);
        }
        return part;
    }

    Part taken(int range) {
        Part part = take(kept_, ranges_[range], room_.part);
        part.above = ranges_[range].above;
        return part;
    }

    Part narrowed(const Part& part, double wanted) {
        if (!is_guessing_ || part.tokens.count < LONG) return part;
        const Histogram sample(sampled(part.tokens), weights_);
        Part rest = take(part.tokens, about(sample, (wanted - part.above) / part.mass), room_.narrow);
        rest.above += part.above;
        return rest;
    }

    // The part of them in the range; above it is what of them is.
    Part take(Logits from, Range range, std::vector<float>& room) const {
        room.resize(from.count + LANES);
        Part part{{room.data(), 0}, 0, 0};
        float* to = room.data();
        for (int begin = 0; begin < from.count; begin += Logits::BLOCK) {
            Floats mass = zero(), above = zero();
            from.each_vector(begin, std::min(begin + Logits::BLOCK, from.count), [&](int, Floats x) {
                const uint32_t higher = at_least(x, splat(range.high)), inside = at_least(x, splat(range.low)) & ~higher;
                const Floats weight = weights_(x);
                above = add_where(higher, above, weight);
                mass = add_where(inside, mass, weight);
                to = store_chosen(to, inside, x);
            });
            part.mass += sum(mass), part.above += sum(above);
        }
        part.tokens.count = int(to - room.data());
        return part;
    }

    // Of a bin, best first.
    static std::vector<Candidate> tokens_of(Logits logits, const Histogram& histogram, int bin) {
        std::vector<Candidate> tokens;
        const Floats wanted = splat(float(bin));
        logits.each_vector([&](int at, Floats x) {
            const Floats bins = histogram.bin_of(x);
            const uint32_t hits = at_least(bins, wanted) & at_least(wanted, bins);
            if (hits) logits.each_token(at, hits, [&](Candidate token) { tokens.push_back(token); });
        });
        std::sort(tokens.begin(), tokens.end());
        return tokens;
    }

    int id_of(const Place& place) const {
        const int at = nth(kept_, place.logit, 0, place.rank);
        const int block = int(std::upper_bound(room_.starts.begin(), room_.starts.end(), at) - room_.starts.begin()) - 1;
        const int before = int(std::count(kept_.x + room_.starts[block], kept_.x + at, place.logit));
        return nth(row_, place.logit, block * Logits::BLOCK, before);
    }

    // The n-th token, from 0, of this logit from `begin` on.
    static int nth(Logits logits, float logit, int begin, int n) {
        int found = -1;
        const Floats wanted = splat(logit);
        for (int at = begin; found < 0 && at < logits.count; at += LANES) {
            logits.each_vector(at, std::min(at + LANES, logits.count), [&](int, Floats x) {
                logits.each_token(at, at_least(x, wanted) & at_least(wanted, x), [&](Candidate token) {
                    if (n-- == 0) found = token.id;
                });
            });
        }
        return found;
    }

    Logits row_;
    double top_p_;
    Weights weights_;
    Room& room_;
    bool is_guessing_;
    std::array<Range, HIGHEST + 1> ranges_;  // of the cut, the draw, and the highest
    double total_ = 0;
    Logits kept_{};  // the tokens in any range, by id; how many there were before every block: room_.starts
};
