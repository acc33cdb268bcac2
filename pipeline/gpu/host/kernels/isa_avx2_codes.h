// Codes to bf16, 64 or 32 at once, by arithmetic: both codes of a pair in one 32-bit lane.
#pragma once

struct Two { Packed first, second; };

// Magnitudes, whole numbers of 7 bits, to what they mean.
template <Code C>
__m256i magnitudes(__m256i bits) {
    if constexpr (C != Code::FP8) return _mm256_castps_si256(_mm256_cvtepi32_ps(bits));
    const __m256 small = _mm256_castsi256_ps(_mm256_slli_epi32(bits, 20));  // exponents biased by 7, not 127
    return _mm256_castps_si256(_mm256_mul_ps(small, _mm256_set1_ps(0x1p120f)));
}

// Lanes of two bytes, a code each, to lanes of two bf16.
template <Code C>
__m256i widen(__m256i pairs) {
    const __m256i seven = _mm256_set1_epi32(127);
    const __m256i first = magnitudes<C>(_mm256_and_si256(pairs, seven));
    const __m256i second = magnitudes<C>(_mm256_and_si256(_mm256_srli_epi32(pairs, 8), seven));
    const __m256i size = _mm256_or_si256(_mm256_srli_epi32(first, 16), second);  // their lower halves are 0
    const __m256i sign0 = _mm256_slli_epi32(_mm256_and_si256(pairs, _mm256_set1_epi32(0x80)), 8);
    const __m256i sign1 = _mm256_slli_epi32(_mm256_and_si256(pairs, _mm256_set1_epi32(0x8000)), 16);
    return _mm256_or_si256(size, _mm256_or_si256(sign0, sign1));
}

// 16 bytes to 8 lanes of two.
inline __m256i pairs_of(__m128i bytes) { return _mm256_cvtepu16_epi32(bytes); }

// INT4: halves of bytes, at the bottom, to bytes with the sign on top.
inline __m128i sign_on_top(__m128i codes) {
    const __m128i size = _mm_and_si128(codes, _mm_set1_epi8(7)), sign = _mm_and_si128(codes, _mm_set1_epi8(8));
    return _mm_or_si128(size, _mm_slli_epi16(sign, 4));
}

inline __m128i sixteen(const uint8_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }

// 32 codes.
template <Code C>
Packed load_one(const uint8_t* p) {
    if constexpr (C == Code::BF16) {
        return load_packed(p);
    } else if constexpr (C == Code::INT4) {
        const __m128i low = sign_on_top(sixteen(p)), high = sign_on_top(_mm_srli_epi16(sixteen(p), 4));
        return {widen<C>(pairs_of(low)), widen<C>(pairs_of(high))};
    } else {
        return {widen<C>(pairs_of(sixteen(p))), widen<C>(pairs_of(sixteen(p + 16)))};
    }
}

// 64 codes as they lie in a strip.
template <Code C>
Two load_two(const uint8_t* p) {
    if constexpr (C == Code::INT4) {
        const __m128i a = sixteen(p), b = sixteen(p + 16);
        const auto wide = [](__m128i codes) { return widen<C>(pairs_of(sign_on_top(codes))); };
        return {{wide(a), wide(b)}, {wide(_mm_srli_epi16(a, 4)), wide(_mm_srli_epi16(b, 4))}};
    } else {
        return {load_one<C>(p), load_one<C>(p + bytes_of(C, 32))};
    }
}
