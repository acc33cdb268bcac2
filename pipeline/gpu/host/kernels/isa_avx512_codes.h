// Codes to bf16, 64 or 32 at once: each half of the bf16 is looked up in a table of bytes (AVX-512 VBMI).
#pragma once

template <Code C>
struct alignas(64) HalvesOfBf16 {  // of every code; of 8 bits, of those without a sign
    uint8_t low[128], high[128];

    constexpr HalvesOfBf16() : low{}, high{} {
        for (int i = 0; i < 128; ++i) {
            const float value = C != Code::INT4 ? magnitude(C, i) : i & 8 ? -magnitude(C, i & 7) : magnitude(C, i & 7);
            const uint32_t bits = std::bit_cast<uint32_t>(value);
            low[i] = uint8_t(bits >> 16);
            high[i] = uint8_t(bits >> 24);
        }
    }
};

template <Code C>
inline constexpr HalvesOfBf16<C> HALVES;

// Bytes i and 64 + i side by side, for i from FIRST on.
template <int FIRST>
struct alignas(64) SideBySide {
    uint8_t at[64];
    constexpr SideBySide() : at{} {
        for (int i = 0; i < 64; ++i) at[i] = uint8_t(FIRST + i / 2 + i % 2 * 64);
    }
};

template <int FIRST>
inline constexpr SideBySide<FIRST> SIDE_BY_SIDE;

inline __m512i aligned(const void* p) { return _mm512_load_si512(p); }

struct Two { Packed first, second; };

inline Packed side_by_side(__m512i low, __m512i high, const void* order) {
    return {_mm512_permutex2var_epi8(low, aligned(order), high)};
}

// One half of the bf16 of 64 codes in a byte each, by the lower 7 bits of those of 8, by the lower 4 of INT4.
template <Code C>
__m512i look_up(const uint8_t* table, __m512i codes) {
    if constexpr (C == Code::INT4) {
        const __m128i sixteen = _mm_load_si128(reinterpret_cast<const __m128i*>(table));
        return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(sixteen), codes);
    } else {
        return _mm512_permutex2var_epi8(aligned(table), codes, aligned(table + 64));
    }
}

template <Code C>
__m512i low_halves(__m512i codes) { return look_up<C>(HALVES<C>.low, codes); }

template <Code C>
__m512i high_halves(__m512i codes) {
    const __m512i high = look_up<C>(HALVES<C>.high, codes);
    if constexpr (C == Code::INT4) return high;
    return _mm512_ternarylogic_epi32(high, codes, _mm512_set1_epi8(-128), 0xf8);  // high | (codes & sign)
}

// INT4: the lower halves of the bytes, then the upper ones.
inline __m512i spread(__m256i bytes) {
    const __m512i both = _mm512_inserti64x4(_mm512_castsi256_si512(bytes), _mm256_srli_epi16(bytes, 4), 1);
    return _mm512_and_si512(both, _mm512_set1_epi8(15));
}

inline __m512i spread(__m128i bytes) {
    const __m256i both = _mm256_inserti128_si256(_mm256_castsi128_si256(bytes), _mm_srli_epi16(bytes, 4), 1);
    return _mm512_castsi256_si512(_mm256_and_si256(both, _mm256_set1_epi8(15)));
}

// 64 codes as they lie in a strip.
template <Code C>
Two load_two(const uint8_t* p) {
    if constexpr (C == Code::BF16) {
        return {load_packed(p), load_packed(p + 64)};
    } else {
        __m512i codes;
        if constexpr (C == Code::INT4) codes = spread(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
        else codes = _mm512_loadu_si512(p);
        const __m512i low = low_halves<C>(codes), high = high_halves<C>(codes);
        return {side_by_side(low, high, SIDE_BY_SIDE<0>.at), side_by_side(low, high, SIDE_BY_SIDE<32>.at)};
    }
}

// 32 codes.
template <Code C>
Packed load_one(const uint8_t* p) {
    if constexpr (C == Code::BF16) {
        return load_packed(p);
    } else {
        __m512i codes;
        if constexpr (C == Code::INT4) codes = spread(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
        else codes = _mm512_castsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
        return side_by_side(low_halves<C>(codes), high_halves<C>(codes), SIDE_BY_SIDE<0>.at);
    }
}
