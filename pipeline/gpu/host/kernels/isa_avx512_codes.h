// Codes to bf16, 64 or 32 at once, by tables: of whole bf16 for INT4, else of bytes for each of its halves
// (AVX-512 VBMI).
#pragma once

template <Code C>
struct alignas(64) HalvesOfBf16 {  // of the magnitudes of 8-bit codes
    uint8_t low[128], high[128];

    constexpr HalvesOfBf16() : low{}, high{} {
        for (int i = 0; i < 128; ++i) {
            const uint32_t bits = std::bit_cast<uint32_t>(magnitude(C, i));
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

struct alignas(64) WholeBf16 {  // of INT4, whatever the fifth bit of the index
    bf16 at[32];
    constexpr WholeBf16() : at{} {
        for (int i = 0; i < 32; ++i) {
            const float size = magnitude(Code::INT4, i & 7);
            at[i] = bf16(std::bit_cast<uint32_t>(i & 8 ? -size : size) >> 16);
        }
    }
};

inline constexpr WholeBf16 WHOLE;

inline __m512i aligned(const void* p) { return _mm512_load_si512(p); }

struct Two { Packed first, second; };

template <Code C>
__m512i look_up(const uint8_t* table, __m512i codes) {
    return _mm512_permutex2var_epi8(aligned(table), codes, aligned(table + 64));
}

// 64 codes of 8 bits to their halves of bf16.
template <Code C>
struct Halves {
    __m512i low, high;

    explicit Halves(__m512i codes) : low(look_up<C>(HALVES<C>.low, codes)) {
        const __m512i sizes = look_up<C>(HALVES<C>.high, codes);
        high = _mm512_ternarylogic_epi32(sizes, codes, _mm512_set1_epi8(-128), 0xf8);  // sizes | (codes & sign)
    }

    template <int FIRST>
    Packed joined() const { return {_mm512_permutex2var_epi8(low, aligned(SIDE_BY_SIDE<FIRST>.at), high)}; }
};

// The lower half of each word's lower byte.
inline Packed half_bytes(__m512i words) { return {_mm512_permutexvar_epi16(words, aligned(WHOLE.at))}; }

inline __m256i half_line(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }

// 64 codes as they lie in a strip.
template <Code C>
Two load_two(const uint8_t* p) {
    if constexpr (C == Code::BF16) {
        return {load_packed(p), load_packed(p + 64)};
    } else if constexpr (C == Code::INT4) {
        const __m512i words = _mm512_cvtepu8_epi16(half_line(p));
        return {half_bytes(words), half_bytes(_mm512_srli_epi16(words, 4))};
    } else {
        const Halves<C> halves(_mm512_loadu_si512(p));
        return {halves.template joined<0>(), halves.template joined<32>()};
    }
}

// 32 codes.
template <Code C>
Packed load_one(const uint8_t* p) {
    if constexpr (C == Code::BF16) {
        return load_packed(p);
    } else if constexpr (C == Code::INT4) {
        const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
        const __m256i low = _mm256_cvtepu8_epi16(bytes), high = _mm256_srli_epi16(low, 4);
        return half_bytes(_mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1));
    } else {
        return Halves<C>(_mm512_castsi256_si512(half_line(p))).template joined<0>();
    }
}
