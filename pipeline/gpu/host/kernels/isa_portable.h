// 16 lanes in a vector type of GCC and Clang, which they lower to what the CPU has (NEON, SSE, scalars).
#pragma once
#include <cmath>

constexpr const char* ISA = "portable";
constexpr int WEIGHT_ZERO = 0;

typedef float FloatLanes __attribute__((vector_size(64)));
typedef int32_t IntLanes __attribute__((vector_size(64)));
typedef uint32_t WordLanes __attribute__((vector_size(64)));

struct Floats { FloatLanes v; };
struct Ints { IntLanes v; };
struct Packed { WordLanes v; };  // 64 bytes of packed weights, keys or values

inline Floats splat(float x) { return {FloatLanes{} + x}; }
inline Floats zero() { return {FloatLanes{}}; }
inline Floats load(const float* p) {
    Floats x;
    std::memcpy(&x.v, p, sizeof x.v);
    return x;
}
inline void store(float* p, Floats x) { std::memcpy(p, &x.v, sizeof x.v); }
inline Floats add(Floats a, Floats b) { return {a.v + b.v}; }
inline Floats sub(Floats a, Floats b) { return {a.v - b.v}; }
inline Floats mul(Floats a, Floats b) { return {a.v * b.v}; }
inline Floats div(Floats a, Floats b) { return {a.v / b.v}; }
inline Floats fma(Floats a, Floats b, Floats c) { return {a.v * b.v + c.v}; }
inline Floats max(Floats a, Floats b) { return {a.v > b.v ? a.v : b.v}; }
inline Floats min(Floats a, Floats b) { return {a.v < b.v ? a.v : b.v}; }
inline Floats abs(Floats a) { return {a.v < 0.f ? -a.v : a.v}; }

// To nearest, ties to even, for |a| < 2^22: adding 1.5 * 2^23 leaves no room for a fraction.
inline Floats round(Floats a) { return {(a.v + 12582912.f) - 12582912.f}; }

inline float sum(Floats a) {  // in halves, as the vector instruction sets do
    for (int width = LANES / 2; width; width /= 2) {
        for (int i = 0; i < width; ++i) a.v[i] += a.v[i + width];
    }
    return a.v[0];
}

inline float max(Floats a) {
    float most = a.v[0];
    for (int i = 1; i < LANES; ++i) most = a.v[i] > most ? a.v[i] : most;
    return most;
}

inline Floats scale_by_power(Floats a, Floats n) {
    const IntLanes bits = (__builtin_convertvector(n.v, IntLanes) + 127) << 23;
    return {a.v * (FloatLanes)bits};
}

inline Floats floor(Floats a) {
    const Floats n = round(a);
    return {n.v > a.v ? n.v - 1.f : n.v};
}

// From 0 to 1: a less the largest whole number that is no more.
inline Floats fraction(Floats a) { return sub(a, floor(a)); }

// a 2^floor(n), for 1 <= a <= 2 and n up to 127; what is too small is 0.
inline Floats scale_by_floor(Floats a, Floats n) { return scale_by_power(a, floor(max(n, splat(-127.f)))); }

// The first n lanes of a, the others of b.
inline Floats first(int n, Floats a, Floats b) {
    const IntLanes lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return {lane < n ? a.v : b.v};
}

// Lane i of a where bit i is set, else of b.
inline Floats where(uint32_t bits, Floats a, Floats b) {
    const WordLanes lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return {((WordLanes{} + bits) >> lane & 1) != 0 ? a.v : b.v};
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

// Bit i is set where lane i of a is b's or more.
inline uint32_t at_least(Floats a, Floats b) {
    uint32_t bits = 0;
    for (int i = 0; i < LANES; ++i) bits |= uint32_t(a.v[i] >= b.v[i]) << i;
    return bits;
}

// Whole numbers as int32.
inline void store_ints(int32_t* p, Floats x) {
    for (int i = 0; i < LANES; ++i) p[i] = int32_t(x.v[i]);
}

// 16 numbers of 16 bits, each in a lane.
inline WordLanes load_halves(const void* p) {
    typedef uint16_t HalfLanes __attribute__((vector_size(32)));
    HalfLanes x;
    std::memcpy(&x, p, sizeof x);
    return __builtin_convertvector(x, WordLanes);
}

inline Floats load_bf16(const bf16* p) { return {(FloatLanes)(load_halves(p) << 16)}; }

inline void store_bf16(bf16* p, Floats x) {
    for (int i = 0; i < LANES; ++i) p[i] = to_bf16(x.v[i]);
}

// To the first (which = 0) or the second (1) of each of 16 pairs; the other may be another thread's.
inline void store_bf16_of_pairs(bf16* pairs, int which, Floats x) {
    for (int i = 0; i < LANES; ++i) pairs[2 * i + which] = to_bf16(x.v[i]);
}

// Whole numbers from -127 to 127 as int8.
inline void store_int8(int8_t* p, Floats x) {
    for (int i = 0; i < LANES; ++i) p[i] = int8_t(x.v[i]);
}

// Lane i: the largest lane of x[i].
inline FourFloats maxima(const Floats (&x)[4]) { return FourFloats{max(x[0]), max(x[1]), max(x[2]), max(x[3])}; }

// Four groups of numbers from -127 to 127 to nearest as int8, ties to even; sums [8]: of each LANES of what is
// stored; -> of each group.
inline FourInts store_groups(int8_t* p, const Floats (&x)[8], int32_t* sums) {
    for (int i = 0; i < 8; ++i) {
        const Floats whole = round(x[i]);
        store_int8(p + i * LANES, whole);
        sums[i] = int32_t(sum(whole));
    }
    return FourInts{sums[0] + sums[1], sums[2] + sums[3], sums[4] + sums[5], sums[6] + sums[7]};
}

inline Packed load_packed(const void* p) {
    Packed x;
    std::memcpy(&x.v, p, sizeof x.v);
    return x;
}

// lane[i] += w[2 i] x[0] + w[2 i + 1] x[1], bf16; the lower half of a word is the first.
inline Floats dot2(Floats sum, Packed w, const bf16* x) {
    sum.v += (FloatLanes)(w.v << 16) * to_float(x[0]);
    sum.v += (FloatLanes)(w.v & 0xffff0000u) * to_float(x[1]);
    return sum;
}

inline Ints splat_int(int32_t x) { return {IntLanes{} + x}; }
inline Floats to_floats(Ints a) { return {__builtin_convertvector(a.v, FloatLanes)}; }

// lane[i] += w[4 i] x[0] + ... + w[4 i + 3] x[3].
inline Ints dot4(Ints sum, Packed w, const int8_t* x) {
    const IntLanes words = (IntLanes)w.v;
    sum.v += ((words << 24) >> 24) * int32_t(x[0]);
    sum.v += ((words << 16) >> 24) * int32_t(x[1]);
    sum.v += ((words << 8) >> 24) * int32_t(x[2]);
    sum.v += (words >> 24) * int32_t(x[3]);
    return sum;
}

inline Packed lower_nibbles(Packed w) { return {w.v & 0x0f0f0f0fu}; }
inline Packed upper_nibbles(Packed w) { return {(w.v >> 4) & 0x0f0f0f0fu}; }

// 16 more in every byte of w, below 16, whose bit is set: 64 bits.
inline Packed with_sixteens(Packed w, const uint8_t* bits) {
    const WordLanes lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    uint32_t low, high;
    std::memcpy(&low, bits, 4);
    std::memcpy(&high, bits + 4, 4);
    const WordLanes four = ((lane < 8 ? WordLanes{} + low : WordLanes{} + high) >> (lane % 8 * 4)) & 15u;
    return {w.v | (four & 1u) << 4 | (four & 2u) << 11 | (four & 4u) << 18 | (four & 8u) << 25};
}

inline Floats load_half(const half* p) {  // finite; as half_to_float
    WordLanes bits;
    for (int i = 0; i < LANES; ++i) bits[i] = p[i];
    const FloatLanes magnitude = (FloatLanes)((bits & 0x7fffu) << 13) * 0x1p112f;
    return {(FloatLanes)((WordLanes)magnitude | (bits & 0x8000u) << 16)};
}
