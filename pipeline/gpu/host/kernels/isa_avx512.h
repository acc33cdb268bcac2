// 16 lanes in one AVX-512 register; vdpbf16ps and vpdpbusd (Zen 4, Ice Lake server with BF16, and later).
#pragma once
#include <immintrin.h>

constexpr const char* ISA = "avx512";
constexpr int WEIGHT_ZERO = 128;  // vpdpbusd takes unsigned weights: they are stored with this added

struct Floats { __m512 v; };
struct Ints { __m512i v; };
struct Packed { __m512i v; };  // 64 bytes of packed weights, keys or values

inline Floats zero() { return {_mm512_setzero_ps()}; }
inline Floats splat(float x) { return {_mm512_set1_ps(x)}; }
inline Floats load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void store(float* p, Floats x) { _mm512_storeu_ps(p, x.v); }
inline Floats add(Floats a, Floats b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Floats sub(Floats a, Floats b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline Floats mul(Floats a, Floats b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Floats div(Floats a, Floats b) { return {_mm512_div_ps(a.v, b.v)}; }
inline Floats fma(Floats a, Floats b, Floats c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline Floats max(Floats a, Floats b) { return {_mm512_max_ps(a.v, b.v)}; }
inline Floats min(Floats a, Floats b) { return {_mm512_min_ps(a.v, b.v)}; }
inline Floats abs(Floats a) { return {_mm512_abs_ps(a.v)}; }
inline Floats round(Floats a) { return {_mm512_roundscale_ps(a.v, 8)}; }
inline float sum(Floats a) { return _mm512_reduce_add_ps(a.v); }
inline float max(Floats a) { return _mm512_reduce_max_ps(a.v); }

// a 2^n, for 0.5 <= a < 2 and n from -126 to 127. (vscalefps takes as long as two multiplications.)
inline Floats scale_by_power(Floats a, Floats n) {
    const __m512i exponents = _mm512_slli_epi32(_mm512_cvtps_epi32(n.v), 23);
    return {_mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(a.v), exponents))};
}

// From 0 to 1: a less the largest whole number that is no more.
inline Floats fraction(Floats a) { return {_mm512_reduce_ps(a.v, 9)}; }

// a 2^floor(n), for 1 <= a <= 2 and n up to 127; what is too small is 0.
inline Floats scale_by_floor(Floats a, Floats n) { return {_mm512_scalef_ps(a.v, n.v)}; }

// The first n lanes of a, the others of b.
inline Floats first(int n, Floats a, Floats b) {
    return {_mm512_mask_mov_ps(b.v, __mmask16((1u << n) - 1), a.v)};
}

// Lane i of a where bit i is set, else of b.
inline Floats where(uint32_t bits, Floats a, Floats b) { return {_mm512_mask_mov_ps(b.v, __mmask16(bits), a.v)}; }

// a, and in lanes whose bit is set a + b.
inline Floats add_where(uint32_t bits, Floats a, Floats b) {
    return {_mm512_mask_add_ps(a.v, __mmask16(bits), a.v, b.v)};
}

// The lanes whose bits are set, moved to the front; then anything.
inline Floats chosen(uint32_t bits, Floats a) { return {_mm512_maskz_compress_ps(__mmask16(bits), a.v)}; }

// Bit i is set where lane i of a is b's or more.
inline uint32_t at_least(Floats a, Floats b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GE_OQ); }

// Whole numbers as int32.
inline void store_ints(int32_t* p, Floats x) { _mm512_storeu_si512(p, _mm512_cvtps_epi32(x.v)); }

inline Floats load_bf16(const bf16* p) {
    const __m512i words = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(words, 16))};
}

inline void store_bf16(bf16* p, Floats x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), (__m256i)_mm512_cvtneps_pbh(x.v));
}

// To the first (which = 0) or the second (1) of each of 16 pairs; the other may be another thread's.
inline void store_bf16_of_pairs(bf16* pairs, int which, Floats x) {
    const __m512i words = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(x.v));
    if (which == 0) _mm512_mask_storeu_epi16(pairs, 0x55555555, words);
    else _mm512_mask_storeu_epi16(pairs, 0xaaaaaaaa, _mm512_slli_epi32(words, 16));
}

// Whole numbers from -127 to 127 as int8.
inline void store_int8(int8_t* p, Floats x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(x.v)));
}

// Lane i: the largest lane of x[i].
inline FourFloats maxima(const Floats (&x)[4]) {
    const __m512 a = _mm512_max_ps(_mm512_unpacklo_ps(x[0].v, x[1].v), _mm512_unpackhi_ps(x[0].v, x[1].v));
    const __m512 b = _mm512_max_ps(_mm512_unpacklo_ps(x[2].v, x[3].v), _mm512_unpackhi_ps(x[2].v, x[3].v));
    const __m512 all = _mm512_max_ps(_mm512_shuffle_ps(a, b, 0x44), _mm512_shuffle_ps(a, b, 0xee));
    const __m256 half = _mm256_max_ps(_mm512_castps512_ps256(all), _mm512_extractf32x8_ps(all, 1));
    return _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
}

// Two groups, as store_groups has them; -> sums of each LANES.
inline __m128i store_two_groups(int8_t* p, const Floats* x) {
    const __m512i a = _mm512_packs_epi32(_mm512_cvtps_epi32(x[0].v), _mm512_cvtps_epi32(x[1].v));
    const __m512i b = _mm512_packs_epi32(_mm512_cvtps_epi32(x[2].v), _mm512_cvtps_epi32(x[3].v));
    const __m512i codes = _mm512_packs_epi16(a, b);  // four of x[0], of x[1], x[2], x[3], the next four of each ...
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    _mm512_storeu_si512(p, _mm512_permutexvar_epi32(order, codes));
    const __m512i sums = _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(1), codes);
    const __m256i half = _mm256_add_epi32(_mm512_castsi512_si256(sums), _mm512_extracti64x4_epi64(sums, 1));
    return _mm_add_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
}

// Four groups of numbers from -127 to 127 to nearest as int8, ties to even; sums [8]: of each LANES of what is
// stored; -> of each group.
inline FourInts store_groups(int8_t* p, const Floats (&x)[8], int32_t* sums) {
    const __m128i first = store_two_groups(p, x), second = store_two_groups(p + 2 * GROUP, x + 4);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(sums), first);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(sums + 4), second);
    return (FourInts)_mm_hadd_epi32(first, second);
}

inline Packed load_packed(const void* p) { return {_mm512_loadu_si512(p)}; }

inline int32_t four_bytes(const void* p) {
    int32_t x;
    std::memcpy(&x, p, 4);
    return x;
}

// lane[i] += w[2 i] x[0] + w[2 i + 1] x[1], bf16.
inline Floats dot2(Floats sum, Packed w, const bf16* x) {
    return {_mm512_dpbf16_ps(sum.v, (__m512bh)w.v, (__m512bh)_mm512_set1_epi32(four_bytes(x)))};
}

inline Ints splat_int(int32_t x) { return {_mm512_set1_epi32(x)}; }
inline Floats to_floats(Ints a) { return {_mm512_cvtepi32_ps(a.v)}; }

// lane[i] += w[4 i] x[0] + ... + w[4 i + 3] x[3]; bytes of w from 0 to 255, signed ones with WEIGHT_ZERO added.
inline Ints dot4(Ints sum, Packed w, const int8_t* x) {
    return {_mm512_dpbusd_epi32(sum.v, w.v, _mm512_set1_epi32(four_bytes(x)))};
}

inline Packed lower_nibbles(Packed w) { return {_mm512_and_si512(w.v, _mm512_set1_epi8(15))}; }
inline Packed upper_nibbles(Packed w) {
    return {_mm512_and_si512(_mm512_srli_epi16(w.v, 4), _mm512_set1_epi8(15))};
}

// 16 more in every byte of w whose bit is set: 64 bits.
inline Packed with_sixteens(Packed w, const uint8_t* bits) {
    uint64_t mask;
    std::memcpy(&mask, bits, 8);
    return {_mm512_mask_add_epi8(w.v, mask, w.v, _mm512_set1_epi8(16))};
}

inline Floats load_half(const half* p) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
