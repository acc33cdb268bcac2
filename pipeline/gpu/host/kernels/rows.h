// The input of a linear: T rows as bf16, or as int8 with one scale for every GROUP of neighbours in a row
// (one scale a row would cost 3 % of perplexity, groups of 64 another 0.3 % over these).
#pragma once
#include <algorithm>
#include "formats.h"

struct Rows {
    bool is_int8;
    int width;       // of a row, a multiple of GROUP
    bf16* wide;      // [T][width]
    int8_t* bytes;   // [T][width]
    float* scales;   // [T][width / GROUP]
    float* totals;   // [T][width / GROUP]: a group's sum, for what has minima
    int32_t* sums;   // [T][width / LANES]: of bytes, for what has a zero

    int num_groups() const { return width / GROUP; }

    // From here on these are the rows of this linear.
    void serve(const Linear& linear) {
        is_int8 = linear.is_int8;
        width = linear.width;
    }

    // x: [width], zero where it is padded.
    void set(int row, const float* x) const {
        if (is_int8) set_int8(row, x);
        else set_bf16(row, x);
    }

   private:
    void set_bf16(int row, const float* x) const {
        bf16* to = wide + int64_t(row) * width;
        for (int k = 0; k < width; k += LANES) store_bf16(to + k, load(x + k));
    }

    void set_int8(int row, const float* x) const {
        if (num_groups() < 4) {
            for (int g = 0; g < num_groups(); ++g) set_group(row, g, x + g * GROUP);
            return;
        }
        for (int g = 0; g < num_groups(); g += 4) {
            const int first = std::min(g, num_groups() - 4);  // the last four may begin among those before them
            set_four(row, first, x + first * GROUP);
        }
    }

    // As set_group.
    void set_four(int row, int g, const float* x) const {
        Floats in[8], sizes[4];
        for (int i = 0; i < 8; ++i) in[i] = load(x + i * LANES);
        for (int i = 0; i < 4; ++i) sizes[i] = max(abs(in[2 * i]), abs(in[2 * i + 1]));
        const FourFloats largest = maxima(sizes), scale = largest / 127.f;
        const FourFloats inverse = largest > 1e-30f ? 127.f / largest : FourFloats{};
        for (int i = 0; i < 8; ++i) in[i] = mul(in[i], splat(inverse[i / 2]));
        const int64_t at = int64_t(row) * num_groups() + g;
        const FourInts sum = store_groups(bytes + at * GROUP, in, sums + 2 * at);
        const FourFloats total = scale * __builtin_convertvector(sum, FourFloats);
        std::memcpy(scales + at, &scale, sizeof scale);
        std::memcpy(totals + at, &total, sizeof total);
    }

    void set_group(int row, int g, const float* x) const {
        const Floats low = load(x), high = load(x + LANES);
        const float largest = max(max(abs(low), abs(high)));
        const Floats inverse = splat(largest > 1e-30f ? 127.f / largest : 0.f);  // finite
        const Floats q_low = round(mul(low, inverse)), q_high = round(mul(high, inverse));
        int8_t* to = bytes + int64_t(row) * width + g * GROUP;
        store_int8(to, q_low);
        store_int8(to + LANES, q_high);
        const int64_t at = int64_t(row) * num_groups() + g;
        const float sum_low = sum(q_low), sum_high = sum(q_high);
        scales[at] = largest / 127.f;
        totals[at] = scales[at] * (sum_low + sum_high);
        sums[2 * at] = int32_t(sum_low);
        sums[2 * at + 1] = int32_t(sum_high);
    }
};
