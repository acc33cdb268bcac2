// The fewest of the most probable tokens that have a given mass (Holtzman et al. 2020), and a draw among them in
// order of (logit falling, id rising). No vocabulary is sorted: a histogram of the weights over (peak - x) / T says
// in which bin a mass is reached, and only the tokens of that bin are put in order.
#pragma once
#include <array>
#include "softmax_row.h"

class Nucleus {
   public:
    // Of the tokens with top_p < 1 of the mass.
    Nucleus(const SoftmaxRow& row, float top_p) : row_(row) {
        // All tokens that are deeper than this have together less than what is cut: they share the last bin.
        const double deepest = std::log(row.vocab() / (1 - double(top_p)));
        per_depth_ = float((LAST - 1) / std::max(deepest, 1.0));
        fill();
        add_up(top_p * total_);
    }

    // noise in [0, 1) -> token id
    int draw(double noise) {
        const int cut_bin = int(ends_.size()) - 1;
        collect({cut_bin, bin_past(noise * wanted_)});  // the second is nearly always the one
        const Place cut = find(cut_bin, reached, wanted_);
        const double target = noise * cut.sum;
        const Place found = find(bin_past(target), passed, target);
        return found.is_before(cut) ? found.id : cut.id;
    }

   private:
    static constexpr int BINS = 4096, LAST = BINS - 1;

    struct Place {
        int bin, rank, id;
        double sum;  // of the weights down to this token
        bool is_before(const Place& other) const { return bin != other.bin ? bin < other.bin : rank < other.rank; }
    };

    struct Bin {
        int index = -1;
        std::vector<Candidate> tokens;  // best first
    };

    static bool reached(double sum, double wanted) { return sum >= wanted; }
    static bool passed(double sum, double wanted) { return sum > wanted; }
    using IsThere = bool (*)(double sum, double wanted);

    Floats bin_of(Floats x) const { return round(min(mul(row_.depth(x), splat(per_depth_)), splat(LAST))); }

    // Two sums a bin, since an addition to the place of the last one would have to wait for it. What lies in the
    // last bin is known by the total alone: its own sums are incomplete.
    void fill() {
        constexpr int BLOCK = SoftmaxRow::BLOCK;
        alignas(64) int32_t bins[BLOCK + LANES];
        alignas(64) float weights[BLOCK + LANES];
        for (int begin = 0; begin < row_.vocab(); begin += BLOCK) {
            int count = 0;
            Floats all = zero();
            row_.each_vector(begin, std::min(begin + BLOCK, row_.vocab()), [&](int, Floats x) {
                const Floats bin = bin_of(x), weight = row_.weights(x);
                all = add(all, weight);
                const uint32_t inside = ~at_least(bin, splat(LAST)) & 0xffff;
                store_ints(bins + count, chosen(inside, bin));
                store(weights + count, chosen(inside, weight));
                count += std::popcount(inside);
            });
            total_ += sum(all);
            bins[count] = LAST, weights[count] = 0;
            for (int i = 0; i < count; i += 2) {
                sums_[0][uint32_t(bins[i])] += weights[i];
                sums_[1][uint32_t(bins[i + 1])] += weights[i + 1];
            }
        }
    }

    // Sums from the best token through each bin, up to the first bin that reaches what is wanted.
    void add_up(double wanted) {
        wanted_ = wanted;
        ends_.reserve(BINS);
        double sum = 0;
        for (int bin = 0; bin < LAST; ++bin) {
            ends_.push_back(sum += double(sums_[0][bin]) + sums_[1][bin]);
            if (sum >= wanted) return;
        }
        ends_.push_back(total_);
    }

    // The first bin at whose end the sum has passed `target`; the last one if none has.
    int bin_past(double target) const {
        return int(std::upper_bound(ends_.begin(), ends_.end() - 1, target) - ends_.begin());
    }

    // The first token of this bin at which it is; if rounding leaves a rest, the last that weighs something.
    Place find(int bin, IsThere is_there, double wanted) {
        const std::vector<Candidate>& tokens = tokens_of(bin);
        double sum = bin ? ends_[bin - 1] : 0;
        int last = 0;
        for (int rank = 0; rank < int(tokens.size()); ++rank) {
            const double weight = row_.weight(tokens[rank].logit);
            if (is_there(sum += weight, wanted)) return {bin, rank, tokens[rank].id, sum};
            if (weight > 0) last = rank;
        }
        return {bin, last, tokens.empty() ? row_.best() : tokens[last].id, sum};
    }

    const std::vector<Candidate>& tokens_of(int bin) {
        if (collected_[0].index != bin && collected_[1].index != bin) collect({bin, bin});
        return collected_[collected_[0].index == bin ? 0 : 1].tokens;
    }

    void collect(std::array<int, 2> wanted) {
        for (int i : {0, 1}) collected_[i] = {wanted[i], {}};
        const Floats first = splat(wanted[0]), second = splat(wanted[1]), half = splat(0.5f);
        row_.each_vector(0, row_.vocab(), [&](int at, Floats x) {
            const Floats bin = bin_of(x);
            const uint32_t hits = at_least(half, min(abs(sub(bin, first)), abs(sub(bin, second))));
            if (hits) row_.each_token(at, hits, [&](Candidate token) { keep(token); });
        });
        for (Bin& bin : collected_) std::sort(bin.tokens.begin(), bin.tokens.end());
    }

    void keep(Candidate token) {
        alignas(64) float bins[LANES];
        store(bins, bin_of(splat(token.logit)));
        for (Bin& bin : collected_) {
            if (bin.index == int(bins[0])) bin.tokens.push_back(token);
        }
    }

    const SoftmaxRow& row_;
    float sums_[2][BINS] = {};
    std::vector<double> ends_;
    double total_ = 0, wanted_ = 0;
    float per_depth_;
    std::array<Bin, 2> collected_;
};
