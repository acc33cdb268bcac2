// 16 lanes in two AVX2 registers; bf16 is widened to fp32, int8 products go through 16 bits.
#pragma once
#include <immintrin.h>

constexpr const char* ISA = "avx2";
constexpr int WEIGHT_ZERO = 0;

struct Floats { __m256 a, b; };
struct Ints { __m256i a, b; };
struct Packed { __m256i a, b; };  // 64 bytes of packed weights, keys or values

inline Floats zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline Floats splat(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline Floats load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, Floats x) {
    _mm256_storeu_ps(p, x.a);
    _mm256_storeu_ps(p + 8, x.b);
}
inline Floats add(Floats x, Floats y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
inline Floats sub(Floats x, Floats y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
inline Floats mul(Floats x, Floats y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
inline Floats div(Floats x, Floats y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
inline Floats max(Floats x, Floats y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
inline Floats min(Floats x, Floats y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
inline Floats fma(Floats x, Floats y, Floats z) {
    return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
inline Floats abs(Floats x) {
    const __m256 sign = _mm256_set1_ps(-0.f);
    return {_mm256_andnot_ps(sign, x.a), _mm256_andnot_ps(sign, x.b)};
}
inline Floats round(Floats x) { return {_mm256_round_ps(x.a, 8), _mm256_round_ps(x.b, 8)}; }

inline float sum(Floats x) {
    __m256 s = _mm256_add_ps(x.a, x.b);
    __m128 h = _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
    h = _mm_add_ps(h, _mm_movehl_ps(h, h));
    return _mm_cvtss_f32(_mm_add_ss(h, _mm_movehdup_ps(h)));
}

inline float max(Floats x) {
    __m256 s = _mm256_max_ps(x.a, x.b);
    __m128 h = _mm_max_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
    h = _mm_max_ps(h, _mm_movehl_ps(h, h));
    return _mm_cvtss_f32(_mm_max_ss(h, _mm_movehdup_ps(h)));
}

inline __m256 power_of_two(__m256 n) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
}
inline Floats scale_by_power(Floats x, Floats n) { return mul(x, {power_of_two(n.a), power_of_two(n.b)}); }

inline Floats floor(Floats x) { return {_mm256_floor_ps(x.a), _mm256_floor_ps(x.b)}; }

// From 0 to 1: x less the largest whole number that is no more.
inline Floats fraction(Floats x) { return sub(x, floor(x)); }

// x 2^floor(n), for 1 <= x <= 2 and n up to 127; what is too small is 0.
inline Floats scale_by_floor(Floats x, Floats n) { return scale_by_power(x, floor(max(n, splat(-127.f)))); }

// The first n lanes of x, the others of y.
inline Floats first(int n, Floats x, Floats y) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i low = _mm256_cmpgt_epi32(_mm256_set1_epi32(n), lane);
    const __m256i high = _mm256_cmpgt_epi32(_mm256_set1_epi32(n - 8), lane);
    return {_mm256_blendv_ps(y.a, x.a, _mm256_castsi256_ps(low)), _mm256_blendv_ps(y.b, x.b, _mm256_castsi256_ps(high))};
}

// Lane i of x where bit i is set, else of y.
inline Floats where(uint32_t bits, Floats x, Floats y) {
    const __m256i low = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128), high = _mm256_slli_epi32(low, 8);
    const __m256i all = _mm256_set1_epi32(int(bits));
    const __m256i a = _mm256_cmpeq_epi32(_mm256_and_si256(all, low), low);
    const __m256i b = _mm256_cmpeq_epi32(_mm256_and_si256(all, high), high);
    return {_mm256_blendv_ps(y.a, x.a, _mm256_castsi256_ps(a)), _mm256_blendv_ps(y.b, x.b, _mm256_castsi256_ps(b))};
}

// a, and in lanes whose bit is set a + b.
inline Floats add_where(uint32_t bits, Floats a, Floats b) {
    return add(a, where(bits, b, zero()));
}

// The lanes whose bits are set, moved to the front; then anything.
inline Floats chosen(uint32_t bits, Floats x) {
    if (bits == 0xffff) return x;
    float lanes[LANES];
    store(lanes, x);
    for (int kept = 0; bits; bits &= bits - 1) lanes[kept++] = lanes[__builtin_ctz(bits)];
    return load(lanes);
}

// Bit i is set where lane i of x is y's or more.
inline uint32_t at_least(Floats x, Floats y) {
    const int a = _mm256_movemask_ps(_mm256_cmp_ps(x.a, y.a, _CMP_GE_OQ));
    return uint32_t(a | _mm256_movemask_ps(_mm256_cmp_ps(x.b, y.b, _CMP_GE_OQ)) << 8);
}

// Whole numbers as int32.
inline void store_ints(int32_t* p, Floats x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_cvtps_epi32(x.a));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 8), _mm256_cvtps_epi32(x.b));
}

inline __m256 load_bf16_half(const bf16* p) {
    const __m128i words = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(words), 16));
}
inline Floats load_bf16(const bf16* p) { return {load_bf16_half(p), load_bf16_half(p + 8)}; }

inline __m256i to_bf16(__m256 x) {  // of 8 numbers, each in 32 bits
    const __m256i bits = _mm256_castps_si256(x), words = _mm256_srli_epi32(bits, 16);
    const __m256i half = _mm256_add_epi32(_mm256_and_si256(words, _mm256_set1_epi32(1)), _mm256_set1_epi32(0x7fff));
    const __m256i nearest = _mm256_srli_epi32(_mm256_add_epi32(bits, half), 16);
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    return _mm256_blendv_epi8(nearest, _mm256_or_si256(words, _mm256_set1_epi32(0x40)), is_nan);
}

inline void store_bf16(bf16* p, Floats x) {
    const __m256i words = _mm256_packus_epi32(to_bf16(x.a), to_bf16(x.b));  // halves of a and b by turns
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(words, 0xd8));
}

// To the first (which = 0) or the second (1) of each of 16 pairs; the other may be another thread's.
inline void store_bf16_of_pairs(bf16* pairs, int which, Floats x) {
    bf16 lanes[LANES];
    store_bf16(lanes, x);
    for (int i = 0; i < LANES; ++i) pairs[2 * i + which] = lanes[i];
}

// Whole numbers from -127 to 127 as int8.
inline void store_int8(int8_t* p, Floats x) {
    float lanes[LANES];
    store(lanes, x);
    for (int i = 0; i < LANES; ++i) p[i] = int8_t(lanes[i]);
}

// Lane i: the largest lane of x[i].
inline FourFloats maxima(const Floats (&x)[4]) {
    __m256 y[4];
    for (int i = 0; i < 4; ++i) y[i] = _mm256_max_ps(x[i].a, x[i].b);
    const __m256 a = _mm256_max_ps(_mm256_unpacklo_ps(y[0], y[1]), _mm256_unpackhi_ps(y[0], y[1]));
    const __m256 b = _mm256_max_ps(_mm256_unpacklo_ps(y[2], y[3]), _mm256_unpackhi_ps(y[2], y[3]));
    const __m256 all = _mm256_max_ps(_mm256_shuffle_ps(a, b, 0x44), _mm256_shuffle_ps(a, b, 0xee));
    return _mm_max_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1));
}

// A group, as store_groups has them; -> parts of the sums of each LANES, by turns.
inline __m128i store_group(int8_t* p, const Floats* x) {
    const __m256i a = _mm256_packs_epi32(_mm256_cvtps_epi32(x[0].a), _mm256_cvtps_epi32(x[0].b));
    const __m256i b = _mm256_packs_epi32(_mm256_cvtps_epi32(x[1].a), _mm256_cvtps_epi32(x[1].b));
    const __m256i codes = _mm256_packs_epi16(a, b);  // four of x[0].a, .b, x[1].a, .b, the next four of each
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permutevar8x32_epi32(codes, order));
    const __m256i sums = _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), codes), _mm256_set1_epi16(1));
    return _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
}

// Four groups of numbers from -127 to 127 to nearest as int8, ties to even; sums [8]: of each LANES of what is
// stored; -> of each group.
inline FourInts store_groups(int8_t* p, const Floats (&x)[8], int32_t* sums) {
    __m128i parts[4];
    for (int i = 0; i < 4; ++i) parts[i] = store_group(p + i * GROUP, x + 2 * i);
    const __m128i first = _mm_hadd_epi32(parts[0], parts[1]), second = _mm_hadd_epi32(parts[2], parts[3]);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(sums), first);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(sums + 4), second);
    return (FourInts)_mm_hadd_epi32(first, second);
}

inline Packed load_packed(const void* p) {
    const auto* q = static_cast<const __m256i*>(p);
    return {_mm256_loadu_si256(q), _mm256_loadu_si256(q + 1)};
}

inline __m256 even_bf16(__m256i w) { return _mm256_castsi256_ps(_mm256_slli_epi32(w, 16)); }
inline __m256 odd_bf16(__m256i w) {
    return _mm256_castsi256_ps(_mm256_and_si256(w, _mm256_set1_epi32(int(0xffff0000u))));
}

// lane[i] += w[2 i] x[0] + w[2 i + 1] x[1], bf16.
inline Floats dot2(Floats sum, Packed w, const bf16* x) {
    const __m256 x0 = _mm256_set1_ps(to_float(x[0])), x1 = _mm256_set1_ps(to_float(x[1]));
    sum = {_mm256_fmadd_ps(even_bf16(w.a), x0, sum.a), _mm256_fmadd_ps(even_bf16(w.b), x0, sum.b)};
    return {_mm256_fmadd_ps(odd_bf16(w.a), x1, sum.a), _mm256_fmadd_ps(odd_bf16(w.b), x1, sum.b)};
}

inline Ints splat_int(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
inline Floats to_floats(Ints x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }

// |x| <= 127 and |w| <= 128, so that the sum of two products fits 16 bits: vpmaddubsw saturates.
inline __m256i dot4_half(__m256i w, __m256i x) {
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w));
    return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}

inline int32_t four_bytes(const void* p) {
    int32_t x;
    std::memcpy(&x, p, 4);
    return x;
}

// lane[i] += w[4 i] x[0] + ... + w[4 i + 3] x[3]; bytes of w from -128 to 127.
inline Ints dot4(Ints sum, Packed w, const int8_t* x) {
    const __m256i wide = _mm256_set1_epi32(four_bytes(x));
    return {_mm256_add_epi32(sum.a, dot4_half(w.a, wide)), _mm256_add_epi32(sum.b, dot4_half(w.b, wide))};
}

inline Packed lower_nibbles(Packed w) {
    const __m256i mask = _mm256_set1_epi8(15);
    return {_mm256_and_si256(w.a, mask), _mm256_and_si256(w.b, mask)};
}
inline Packed upper_nibbles(Packed w) {
    return lower_nibbles({_mm256_srli_epi16(w.a, 4), _mm256_srli_epi16(w.b, 4)});
}

// 16 in every byte whose bit is set.
inline __m256i sixteens(const uint8_t* bits) {
    const __m256i bytes = _mm256_shuffle_epi8(
        _mm256_set1_epi32(four_bytes(bits)),
        _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3));
    const __m256i bit = _mm256_set1_epi64x(int64_t(0x8040201008040201));
    return _mm256_and_si256(_mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit), bit), _mm256_set1_epi8(16));
}

// 16 more in every byte of w, below 16, whose bit is set: 64 bits.
inline Packed with_sixteens(Packed w, const uint8_t* bits) {
    return {_mm256_or_si256(w.a, sixteens(bits)), _mm256_or_si256(w.b, sixteens(bits + 4))};
}

inline Floats load_half(const half* p) {
    const auto* q = reinterpret_cast<const __m128i*>(p);
    return {_mm256_cvtph_ps(_mm_loadu_si128(q)), _mm256_cvtph_ps(_mm_loadu_si128(q + 1))};
}
