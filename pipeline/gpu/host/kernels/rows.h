// The input of a linear: T rows as bf16, or as int8 with one scale for every GROUP of neighbours in a row
// (one scale a row would cost 3 % of perplexity, groups of 64 another 0.3 % over these).
#pragma once
#include "isa.h"

struct Rows {
    bool is_int8;
    int width;         // of a row, a multiple of GROUP
    bf16* wide;        // [T][width]
    int8_t* bytes;     // [T][width]
    float* scales;     // [T][width / GROUP]
    int32_t* offsets;  // [T][width / GROUP]: what the stored weights' WEIGHT_ZERO adds to a dot product, negated

    int num_groups() const { return width / GROUP; }

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
        for (int g = 0; g < num_groups(); ++g) set_group(row, g, x + g * GROUP);
    }

    void set_group(int row, int g, const float* x) const {
        Floats most = zero();
        for (int k = 0; k < GROUP; k += LANES) most = max(most, abs(load(x + k)));
        const float largest = max(most);
        const Floats inverse = splat(largest > 1e-30f ? 127.f / largest : 0.f);  // finite
        int8_t* to = bytes + int64_t(row) * width + g * GROUP;
        Floats total = zero();
        for (int k = 0; k < GROUP; k += LANES) {
            const Floats q = round(mul(load(x + k), inverse));
            store_int8(to + k, q);
            total = add(total, q);
        }
        const int64_t at = int64_t(row) * num_groups() + g;
        scales[at] = largest / 127.f;
        offsets[at] = -WEIGHT_ZERO * int32_t(sum(total));
    }
};
