// Codes to bf16, 64 or 32 at once, by arithmetic: both codes of a pair in one 32-bit lane.
#pragma once

struct Two { Packed first, second; };

// Magnitudes, whole numbers of 7 bits, to what they mean.
template <Code C>
WordLanes magnitudes(WordLanes bits) {
    if constexpr (C != Code::FP8) return (WordLanes)__builtin_convertvector(bits, FloatLanes);
    return (WordLanes)((FloatLanes)(bits << 20) * 0x1p120f);  // exponents biased by 7, not 127
}

// Lanes of two bytes, a code each (the lower is the first), to lanes of two bf16.
template <Code C>
Packed widen(WordLanes pairs) {
    const WordLanes first = magnitudes<C>(pairs & 127), second = magnitudes<C>(pairs >> 8 & 127);
    return {first >> 16 | second | (pairs & 0x80) << 8 | (pairs & 0x8000) << 16};
}

// INT4: halves of bytes, at the bottom, to bytes with the sign on top.
inline WordLanes sign_on_top(WordLanes codes) { return (codes & 0x707) | (codes & 0x808) << 4; }

// 32 codes.
template <Code C>
Packed load_one(const uint8_t* p) {
    if constexpr (C == Code::BF16) {
        return load_packed(p);
    } else if constexpr (C == Code::INT4) {
        uint8_t codes[32];
        for (int i = 0; i < 16; ++i) codes[i] = p[i] & 15, codes[16 + i] = p[i] >> 4;
        return widen<C>(sign_on_top(load_halves(codes)));
    } else {
        return widen<C>(load_halves(p));
    }
}

// 64 codes as they lie in a strip.
template <Code C>
Two load_two(const uint8_t* p) {
    if constexpr (C == Code::INT4) {
        const WordLanes bytes = load_halves(p);
        return {widen<C>(sign_on_top(bytes)), widen<C>(sign_on_top(bytes >> 4))};
    } else {
        return {load_one<C>(p), load_one<C>(p + bytes_of(C, 32))};
    }
}
