/* Steps of whole lists of tensors in one pass over memory: gradient and prior, kick, noise, drift, energies; and α's own step.
 *
 * The noise is what noise/ars.py and noise/gaussian.py define, bit for bit. Every operation on floating-point numbers
 * is one that IEEE 754 rounds correctly (+, ×, √, fused multiply-add, conversion), and the compiler must not contract
 * others: build with -ffp-contract=off and without -ffast-math. Then the bits do not depend on the processor, and loops
 * over LANES elements may be vectorised at will.
 *
 * Work is cut into units of UNIT elements of one tensor. Each unit has its own place for its sums, and these are added
 * in order, so that nothing depends on how many threads there are. layout.h names what Python fills in.
 */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "layout.h"

#if defined(__x86_64__) && defined(__GNUC__)
#define X86 1
#include <cpuid.h>
#include <immintrin.h>
#endif

#define UNIT CTLD_UNIT
#define PASS 256  /* elements whose noise is held in the first cache while they are updated */
#define AHEAD 256 /* elements by which memory is asked for in advance */
#define PLACES 4  /* where gradients are read at a time, if that is all that is done */
#define LANES 16  /* sums are kept in this many lanes on every processor */
#define GROUP 32  /* elements whose noise is computed together: see gaussian.py */
#define EXTENT 64 /* parts of a pass have a multiple of these */
#define FAR_FROM 4194304    /* elements; fewer gradients are in a cache when they are looked at */
#define PARALLEL_FROM 32768 /* elements; a parallel region costs as much as some thousand of them */
#define INLINE static inline __attribute__((always_inline))
#ifdef __clang__
#define UNROLLED _Pragma("clang loop unroll(full)")
#else
#define UNROLLED _Pragma("GCC unroll 8")
#endif

#define NAMED(name) name,
enum { CTLD_NOISE(NAMED) };
enum { CTLD_TYPE(NAMED) };
enum { CTLD_METHOD(NAMED) };
enum { CTLD_READING(NAMED) };
enum { CTLD_STATUS(NAMED) };

#define POINTER(name) char *name;
#define INTEGER(name) int64_t name;
#define REAL(name) double name;
typedef struct { CTLD_ROW(POINTER, INTEGER, REAL) } Row;
typedef struct { CTLD_ACCOUNT(POINTER, INTEGER, REAL) } Account;
typedef struct { CTLD_GROUP(POINTER, INTEGER, REAL) } Group;
typedef struct { CTLD_SUMS(POINTER, INTEGER, REAL) } Sums;
typedef struct { CTLD_ALPHA(POINTER, INTEGER, REAL) } Alpha;
typedef struct { CTLD_JOB(POINTER, INTEGER, REAL) } Job;

typedef struct { uint32_t word[8][4]; } Keys;

/* `blocks` blocks of four words, under a key. */
typedef void Words(uint32_t *out, int blocks, const Keys *keys, uint64_t block, uint32_t step, uint32_t stream);

typedef struct {
    Words *words;
    Keys keys[2];
    uint32_t step;
    int noise;
} Source;

/* ---- ARS-7: seven rounds of AES, with sums of Weyl constants as round keys (Salmon et al., SC 2011) ---- */

static void expand(Keys *keys, const uint32_t seed[4], int rounds)
{
    uint64_t low = seed[0] | (uint64_t)seed[1] << 32, high = seed[2] | (uint64_t)seed[3] << 32;
    for (int r = 0; r <= rounds; r++, low += 0x9E3779B97F4A7C15u, high += 0xBB67AE8584CAA73Bu) {
        keys->word[r % 8][0] = (uint32_t)low, keys->word[r % 8][1] = (uint32_t)(low >> 32);
        keys->word[r % 8][2] = (uint32_t)high, keys->word[r % 8][3] = (uint32_t)(high >> 32);
    }
}

static uint8_t box[256];   /* the substitution box of AES */
static uint32_t mixed[256]; /* a column that holds one substituted byte, mixed */

__attribute__((constructor)) static void make_tables(void)
{
    uint8_t p = 1, q = 1; /* p runs over the field's units as powers of 3, q over their inverses */
    do {
        p = (uint8_t)(p ^ (p << 1) ^ (p & 0x80 ? 0x1B : 0));
        q ^= (uint8_t)(q << 1), q ^= (uint8_t)(q << 2), q ^= (uint8_t)(q << 4);
        if (q & 0x80)
            q ^= 0x09;
        box[p] = (uint8_t)(q ^ (q << 1 | q >> 7) ^ (q << 2 | q >> 6) ^ (q << 3 | q >> 5) ^ (q << 4 | q >> 4) ^ 0x63);
    } while (p != 1);
    box[0] = 0x63;
    for (int i = 0; i < 256; i++) {
        uint32_t s = box[i], twice = (s << 1 ^ (s & 0x80 ? 0x11B : 0)) & 0xFF;
        mixed[i] = twice | s << 8 | s << 16 | (s ^ twice) << 24;
    }
}

INLINE uint32_t turn(uint32_t x, int bits) { return x << bits | x >> (32 - bits); }

static void words_software(uint32_t *out, int blocks, const Keys *keys, uint64_t block, uint32_t step, uint32_t stream)
{
    for (int b = 0; b < blocks; b++, block++, out += 4) {
        uint32_t s[4] = {(uint32_t)block, (uint32_t)(block >> 32), step, stream}, t[4];
        for (int j = 0; j < 4; j++)
            s[j] ^= keys->word[0][j];
        for (int r = 1; r < 7; r++) {
            for (int j = 0; j < 4; j++)
                t[j] = mixed[s[j] & 0xFF] ^ turn(mixed[s[(j + 1) % 4] >> 8 & 0xFF], 8) ^
                       turn(mixed[s[(j + 2) % 4] >> 16 & 0xFF], 16) ^ turn(mixed[s[(j + 3) % 4] >> 24], 24) ^
                       keys->word[r][j];
            memcpy(s, t, sizeof s);
        }
        for (int j = 0; j < 4; j++)
            out[j] = (box[s[j] & 0xFF] | box[s[(j + 1) % 4] >> 8 & 0xFF] << 8 | box[s[(j + 2) % 4] >> 16 & 0xFF] << 16 |
                      (uint32_t)box[s[(j + 3) % 4] >> 24] << 24) ^
                     keys->word[7][j];
    }
}

#ifdef X86
#define AVX2 __attribute__((target("avx2,fma,aes")))
#define VAES __attribute__((target("avx2,fma,aes,vaes")))
#ifdef __clang__
#define AVX512 __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,avx2,fma,aes,vaes"), min_vector_width(512)))
#else
#define AVX512 __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,avx2,fma,aes,vaes,prefer-vector-width=512")))
#endif

/* `blocks` is a multiple of 8 here and below. */
AVX2 static void words_avx2(uint32_t *out, int blocks, const Keys *keys, uint64_t block, uint32_t step, uint32_t stream)
{
    const int64_t name = (int64_t)((uint64_t)stream << 32 | step);
    __m128i key[8];
    for (int r = 0; r < 8; r++)
        key[r] = _mm_loadu_si128((const __m128i *)keys->word[r]);
    for (int b = 0; b < blocks; b += 8) {
        __m128i x[8];
        for (int i = 0; i < 8; i++)
            x[i] = _mm_xor_si128(_mm_set_epi64x(name, (int64_t)(block + b + i)), key[0]);
        for (int r = 1; r < 7; r++)
            for (int i = 0; i < 8; i++)
                x[i] = _mm_aesenc_si128(x[i], key[r]);
        for (int i = 0; i < 8; i++)
            _mm_storeu_si128((__m128i *)(out + 4 * (b + i)), _mm_aesenclast_si128(x[i], key[7]));
    }
}

/* Two blocks in a register. */
VAES static void words_vaes(uint32_t *out, int blocks, const Keys *keys, uint64_t block, uint32_t step, uint32_t stream)
{
    const int64_t name = (int64_t)((uint64_t)stream << 32 | step);
    const __m256i two = _mm256_set_epi64x(0, 2, 0, 2);
    __m256i key[8];
    for (int r = 0; r < 8; r++)
        key[r] = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)keys->word[r]));
    __m256i counter = _mm256_set_epi64x(name, (int64_t)(block + 1), name, (int64_t)block);
    for (int b = 0; b < blocks; b += 8) {
        __m256i x[4];
        for (int i = 0; i < 4; i++, counter = _mm256_add_epi64(counter, two))
            x[i] = _mm256_xor_si256(counter, key[0]);
        for (int r = 1; r < 7; r++)
            for (int i = 0; i < 4; i++)
                x[i] = _mm256_aesenc_epi128(x[i], key[r]);
        for (int i = 0; i < 4; i++)
            _mm256_storeu_si256((__m256i *)(out + 4 * b + 8 * i), _mm256_aesenclast_epi128(x[i], key[7]));
    }
}

AVX512 static void words_avx512(uint32_t *out, int blocks, const Keys *keys, uint64_t block, uint32_t step, uint32_t stream)
{
    const int64_t name = (int64_t)((uint64_t)stream << 32 | step);
    const __m512i lane = _mm512_set_epi64(0, 3, 0, 2, 0, 1, 0, 0), four = _mm512_set_epi64(0, 4, 0, 4, 0, 4, 0, 4);
    __m512i key[8];
    for (int r = 0; r < 8; r++)
        key[r] = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)keys->word[r]));
    __m512i counter = _mm512_mask_blend_epi64(0xAA, _mm512_set1_epi64((int64_t)block), _mm512_set1_epi64(name));
    counter = _mm512_add_epi64(counter, lane);
    for (int b = 0; b < blocks; b += 16) {
        __m512i x[4];
        for (int i = 0; i < 4; i++, counter = _mm512_add_epi64(counter, four))
            x[i] = _mm512_xor_si512(counter, key[0]);
        for (int r = 1; r < 7; r++)
            for (int i = 0; i < 4; i++)
                x[i] = _mm512_aesenc_epi128(x[i], key[r]);
        for (int i = 0; i < 4; i++)
            _mm512_storeu_si512(out + 4 * b + 16 * i, _mm512_aesenclast_epi128(x[i], key[7]));
    }
}
#endif

/* ---- from words to numbers: gaussian.py, line by line ---- */

INLINE int32_t bits_of(float x) { int32_t bits; memcpy(&bits, &x, 4); return bits; }
INLINE float float_of(int32_t bits) { float x; memcpy(&x, &bits, 4); return x; }

INLINE void box_muller(uint32_t radius_word, uint32_t angle_word, float *first, float *second)
{
    int32_t bits = bits_of((float)(int32_t)(radius_word >> 1 | 1)) - (0x3F3504F3 + (31 << 23));
    float x = float_of((bits & 0x7FFFFF) + 0x3F3504F3) - 1.0f;
    float q = 0.28584146f;
    q = fmaf(q, x, -0.44111873f);
    q = fmaf(q, x, 0.50806539f);
    q = fmaf(q, x, -0.66516047f);
    q = fmaf(q, x, 0.99980435f);
    q = fmaf(q, x, -2.00000912f);
    float radius = sqrtf(fmaf((float)(bits >> 23), -1.3862944f, x * q));
    float t = (float)(int32_t)angle_word * 0x1p-31f, y = t * t;
    float c = -2.25374617e-04f;
    c = fmaf(c, y, 1.12074192e-02f);
    c = fmaf(c, y, -2.18088819e-01f);
    c = fmaf(c, y, 7.07106758e-01f);
    float s = 0.00172225f;
    s = fmaf(s, y, -0.05708102f);
    s = fmaf(s, y, 0.55535953f) * t;
    *first = float_of(bits_of((c - s) * radius) ^ (int32_t)(angle_word << 31));
    *second = float_of(bits_of((c + s) * radius) ^ (int32_t)(angle_word << 30 & 0x80000000u));
}

INLINE float three_points(int32_t half) { return (float)((half >= 21845) - (half < -21845)) * 0x1.bb65f4p+0f; }

/* Elements `element` to `element + extent` of a stream; `element` is a multiple of GROUP and `extent` of EXTENT. BESIDE(g) is
 * done with each group of Gaussian noise. */
#define NUMBERS(words, z, BESIDE)                                                                                      \
    uint32_t w[PASS];                                                                                                  \
    if (noise == GAUSSIAN) {                                                                                           \
        words(w, extent / 4, keys, element / 4, step, stream);                                                         \
        for (int g = 0; g < extent; g += GROUP) {                                                                      \
            BESIDE(g)                                                                                                  \
            for (int i = 0; i < LANES; i++)                                                                            \
                box_muller(w[g + i], w[g + LANES + i], &z[g + i], &z[g + LANES + i]);                                  \
        }                                                                                                              \
    } else {                                                                                                           \
        words(w, extent / 8, keys, element / 8, step, stream);                                                         \
        for (int g = 0; g < extent; g += GROUP)                                                                        \
            for (int i = 0; i < LANES; i++) {                                                                          \
                z[g + i] = three_points((int16_t)w[g / 2 + i]);                                                        \
                z[g + LANES + i] = three_points((int32_t)w[g / 2 + i] >> 16);                                          \
            }                                                                                                          \
    }
#define NOTHING(g)

/* ---- the update of a pass ---- */

INLINE float widened(uint16_t x) { return float_of((int32_t)((uint32_t)x << 16)); }
INLINE uint16_t narrowed(float value)
{
    uint32_t bits = (uint32_t)bits_of(value);
    uint16_t x = (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16); /* to nearest, ties to even */
    return value != value ? 0x7FC0 : x;
}

/* Vectors as wide as a level's registers. Their + and × are the compiler's, a fused multiply-add is not. */
#define VECTORS(level, bytes)                                                                                          \
    typedef float level##_float __attribute__((vector_size(bytes)));                                                   \
    typedef double level##_double __attribute__((vector_size(bytes)));
VECTORS(portable, 16)
#define LANEWISE(real, fma)                                                                                            \
    INLINE portable_##real portable_fma_##real(portable_##real a, portable_##real b, portable_##real c)                \
    {                                                                                                                  \
        for (int l = 0; l < (int)(sizeof a / sizeof a[0]); l++)                                                        \
            c[l] = fma(a[l], b[l], c[l]);                                                                              \
        return c;                                                                                                      \
    }
LANEWISE(float, fmaf)
LANEWISE(double, fma)
#define ROOTWISE(real, root)                                                                                           \
    INLINE portable_##real portable_sqrt_##real(portable_##real a)                                                     \
    {                                                                                                                  \
        for (int l = 0; l < (int)(sizeof a / sizeof a[0]); l++)                                                        \
            a[l] = root(a[l]);                                                                                         \
        return a;                                                                                                      \
    }
ROOTWISE(float, sqrtf)
ROOTWISE(double, sqrt)
#ifdef X86
VECTORS(avx2, 32)
VECTORS(avx512, 64)
#define avx2_fma_float _mm256_fmadd_ps
#define avx2_fma_double _mm256_fmadd_pd
#define avx512_fma_float _mm512_fmadd_ps
#define avx512_fma_double _mm512_fmadd_pd
#define avx2_sqrt_float _mm256_sqrt_ps
#define avx2_sqrt_double _mm256_sqrt_pd
#define avx512_sqrt_float _mm512_sqrt_ps
#define avx512_sqrt_double _mm512_sqrt_pd
#endif

#define LOAD_WHOLE(lanes, from) memcpy(&(lanes), from, sizeof(lanes))
#define STORE_WHOLE(to, lanes) memcpy(to, &(lanes), sizeof(lanes))
#define LOAD_BFLOAT(lanes, from)                                                                                       \
    do {                                                                                                               \
        uint16_t half[sizeof(lanes) / 4];                                                                              \
        float whole[sizeof(lanes) / 4];                                                                                \
        memcpy(half, from, sizeof half);                                                                               \
        for (int l = 0; l < (int)(sizeof(lanes) / 4); l++)                                                             \
            whole[l] = widened(half[l]);                                                                               \
        memcpy(&(lanes), whole, sizeof whole);                                                                         \
    } while (0)
#define STORE_BFLOAT(to, lanes)                                                                                        \
    do {                                                                                                               \
        uint16_t half[sizeof(lanes) / 4];                                                                              \
        float whole[sizeof(lanes) / 4];                                                                                \
        memcpy(whole, &(lanes), sizeof whole);                                                                         \
        for (int l = 0; l < (int)(sizeof(lanes) / 4); l++)                                                             \
            half[l] = narrowed(whole[l]);                                                                              \
        memcpy(to, half, sizeof half);                                                                                 \
    } while (0)
#define AS_STORED(lanes)
#define AS_BFLOAT(lanes)                                                                                               \
    do {                                                                                                               \
        uint16_t stored[sizeof(lanes) / 4];                                                                            \
        STORE_BFLOAT(stored, lanes);                                                                                   \
        LOAD_BFLOAT(lanes, stored);                                                                                    \
    } while (0)


/* Where a pass finds its elements. */
typedef struct { char *parameter, *gradient, *momentum, *scale, *previous, *variance, *square, *thermostat; } Columns;

enum { PRIOR, KINETIC, MIDPOINT, CLAMPED, REFRESHED, SUMS };

/* exp(x) to about one unit of the last place, by operations that are rounded alike everywhere: x = n ln 2 + r, and a polynomial
 * for e^r. Beyond ±bound, where a result would leave the range of normal numbers, it is that of the bound. Integers are
 * unsigned, whose product may overflow. */
#define EXPONENTIAL(TARGET, level, real, Integer, magic, shift, bound, high, low, degree, ...)                         \
    TARGET INLINE level##_##real level##_exp_##real(level##_##real x)                                                  \
    {                                                                                                                  \
        typedef level##_##real Vector;                                                                                 \
        typedef Integer Integers __attribute__((vector_size(sizeof(Vector))));                                         \
        static const real coefficients[degree + 1] = {__VA_ARGS__};                                                    \
        const Vector none = {0}, most = none + (real)(bound);                                                          \
        Integers over = (Integers)(x > most), under = (Integers)(x < -most), one = {0};                                \
        x = (Vector)(((Integers)x & ~(over | under)) | ((Integers)most & over) | ((Integers)(-most) & under));         \
        Vector shifted = level##_fma_##real(x, none + (real)1.4426950408889634, none + (real)(magic));                 \
        Vector n = shifted - (real)(magic);                                                                            \
        Vector r = level##_fma_##real(-n, none + (real)(high), x);                                                     \
        r = level##_fma_##real(-n, none + (real)(low), r);                                                             \
        Vector power = none + coefficients[0];                                                                         \
        for (int k = 1; k <= degree; k++)                                                                              \
            power = level##_fma_##real(power, r, none + coefficients[k]);                                              \
        one += 1;                                                                                                      \
        return (Vector)((Integers)power + (Integers)shifted * (one << shift));                                         \
    }
#define EXPONENTIALS(TARGET, level)                                                                                    \
    EXPONENTIAL(TARGET, level, float, uint32_t, 12582912.0, 23, 87.0, 0x1.62e4p-1, 0x1.7f7d1cp-20, 7, 1.0f / 5040,      \
                1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1, 1)                                               \
    EXPONENTIAL(TARGET, level, double, uint64_t, 6755399441055744.0, 52, 708.0, 0x1.62e42fefa38p-1,                     \
                0x1.ef35793c7673p-45, 13, 1.0 / 6227020800, 1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800,            \
                1.0 / 362880, 1.0 / 40320, 1.0 / 5040, 1.0 / 720, 1.0 / 120, 1.0 / 24, 1.0 / 6, 0.5, 1, 1)

/* One pass of a plan. The order of operations, each rounded once, is that of foreach.py on a processor with fused multiply-adds,
 * where torch uses them. `noisy`, `again` (0: there is one sweep, 1: two, 2: two, the second with noise), `measured`, `options`
 * and `ahead` (whether to ask for the memory of the next pass) are constants where this is inlined. z and y are the noise of the
 * first and of the second sweep. */
#define UPDATES(TARGET, level, kind, real, width, LOAD, STORE, AS)                                                     \
    TARGET INLINE void level##_pass_##kind(const Columns *at, double weight, const float *z, const float *y,           \
                                           const Group *f, const int extent, const int noisy, const int again,         \
                                           const int measured, const int options, const int ahead, double *sums)       \
    {                                                                                                                  \
        typedef level##_##real Vector;                                                                                 \
        enum { SIZE = sizeof(Vector) / sizeof(real), PARTS = LANES / SIZE };                                           \
        typedef float Floats __attribute__((vector_size(SIZE * sizeof(float))));                                       \
        char *const parameter = at->parameter, *const momentum = at->momentum;                                         \
        const char *const gradient = at->gradient, *const scale = at->scale;                                           \
        char *const previous = at->previous, *const variance = at->variance;                                           \
        const Vector none = {0}, retain = none + (real)f->retain, impulse = none + (real)f->impulse;                   \
        const Vector deviation = none + (real)f->deviation, drift = none + (real)f->stride;                            \
        const Vector again_retain = none + (real)f->again_retain, again_drift = none + (real)f->again_stride;          \
        const Vector again_deviation = none + (real)f->again_deviation, decay = none + (real)f->decay;                 \
        Vector prior[PARTS], kinetic[PARTS], other[PARTS];                                                             \
        for (int k = 0; k < PARTS; k++)                                                                                \
            prior[k] = kinetic[k] = other[k] = none;                                                                   \
        for (int row = 0; row < extent; row += LANES) {                                                                \
            if (ahead) {                                                                                               \
                __builtin_prefetch(parameter + (AHEAD + row) * width, 1);                                              \
                __builtin_prefetch(gradient + (AHEAD + row) * width, 0);                                               \
                __builtin_prefetch(momentum + (AHEAD + row) * sizeof(real), 1);                                        \
            }                                                                                                          \
            UNROLLED for (int k = 0; k < PARTS; k++)                                                                   \
            {                                                                                                          \
                const int i = row + k * SIZE;                                                                          \
                Vector theta, raw, old = none, move, root = none, spread = deviation, mass = none + (real)1;           \
                Floats epsilon;                                                                                        \
                LOAD(theta, parameter + i * width);                                                                    \
                LOAD(raw, gradient + i * width);                                                                       \
                if (momentum)                                                                                          \
                    memcpy(&old, momentum + i * sizeof(real), sizeof old);                                             \
                move = options ? raw * (real)f->sign : raw;                                                            \
                if (f->decay != 0) /* 0·∞ would be NaN */                                                              \
                    move = level##_fma_##real(decay, theta, move);                                                     \
                if (options && scale) {                                                                                \
                    Vector s;                                                                                          \
                    memcpy(&s, scale + i * sizeof(real), sizeof s);                                                    \
                    move *= s;                                                                                         \
                    root = level##_sqrt_##real(s);                                                                     \
                    spread *= root;                                                                                    \
                    if (measured) { /* 1/s; none where s is 0, beyond the tensor's end */                              \
                        const __typeof__(s > none) there = s > none;                                                   \
                        mass = (Vector)((__typeof__(s > none))((none + (real)1) / s) & there);                         \
                    }                                                                                                  \
                }                                                                                                      \
                if (options && previous) {                                                                             \
                    Vector before, known, fresh, change;                                                               \
                    memcpy(&before, previous + i * sizeof(real), sizeof before);                                       \
                    memcpy(&known, variance + i * sizeof(real), sizeof known);                                         \
                    fresh = (raw - before) * (raw - before) * (real)0.5;                                               \
                    change = fresh - known;                                                                            \
                    if (weight >= 0.5)                                                                                 \
                        known = level##_fma_##real(none + (real)(weight - 1), change, fresh);                          \
                    else if (weight > 0)                                                                               \
                        known = level##_fma_##real(none + (real)weight, change, known);                                \
                    memcpy(previous + i * sizeof(real), &raw, sizeof raw);                                             \
                    memcpy(variance + i * sizeof(real), &known, sizeof known);                                         \
                    for (int l = 0; l < SIZE; l++) {                                                                   \
                        real left = (real)f->variance - (real)f->share * known[l];                                     \
                        sums[CLAMPED * LANES] += left < 0;                                                             \
                        spread[l] = left < 0 ? (real)0 : left;                                                         \
                    }                                                                                                  \
                    spread = level##_sqrt_##real(spread);                                                              \
                }                                                                                                      \
                if (options && f->impulse == 0) /* 0·NaN would be NaN */                                               \
                    move = retain * old;                                                                               \
                else                                                                                                   \
                    move = level##_fma_##real(impulse, move, retain * old);                                            \
                if (noisy) {                                                                                           \
                    memcpy(&epsilon, z + i, sizeof epsilon);                                                           \
                    move = level##_fma_##real(spread, __builtin_convertvector(epsilon, Vector), move);                 \
                }                                                                                                      \
                Vector next = level##_fma_##real(drift, move, theta);                                                  \
                if (measured) {                                                                                        \
                    prior[k] = level##_fma_##real(theta, theta, prior[k]);                                             \
                    kinetic[k] = level##_fma_##real(options && scale ? mass * move : move, move, kinetic[k]);          \
                }                                                                                                      \
                if (again) {                                                                                           \
                    AS(next);                                                                                          \
                    move *= again_retain;                                                                              \
                    if (again == 2) {                                                                                  \
                        memcpy(&epsilon, y + i, sizeof epsilon);                                                       \
                        move = level##_fma_##real(options && scale ? again_deviation * root : again_deviation,         \
                                                  __builtin_convertvector(epsilon, Vector), move);                     \
                    }                                                                                                  \
                    next = level##_fma_##real(again_drift, move, next);                                                \
                    if (measured)                                                                                      \
                        other[k] = level##_fma_##real(options && scale ? mass * move : move, move, other[k]);          \
                } else if (measured) {                                                                                 \
                    Vector middle = old + move;                                                                        \
                    other[k] = level##_fma_##real(options && scale ? mass * middle : middle, middle, other[k]);        \
                }                                                                                                      \
                if (momentum)                                                                                          \
                    memcpy(momentum + i * sizeof(real), &move, sizeof move);                                           \
                STORE(parameter + i * width, next);                                                                    \
            }                                                                                                          \
        }                                                                                                              \
        if (measured) {                                                                                                \
            real lanes[3 * LANES];                                                                                     \
            memcpy(lanes, prior, sizeof prior);                                                                        \
            memcpy(lanes + LANES, kinetic, sizeof kinetic);                                                            \
            memcpy(lanes + 2 * LANES, other, sizeof other);                                                            \
            for (int l = 0; l < 2 * LANES; l++)                                                                        \
                sums[l] += lanes[l];                                                                                   \
            for (int l = 0; l < LANES; l++)                                                                            \
                sums[(again ? REFRESHED : MIDPOINT) * LANES + l] += lanes[2 * LANES + l];                              \
        }                                                                                                              \
    }

/* V ← σV + (1 − σ)∇², rounded as torch does: by mul_ and addcmul_ for pSGLD, by lerp_ for Santa. */
#define ADAPTIVE(TARGET, level, kind, real, width, LOAD, STORE)                                                        \
    TARGET INLINE void level##_psgld_##kind(const Columns *at, const float *z, const Group *f, const int extent,       \
                                            const int noisy)                                                           \
    {                                                                                                                  \
        typedef level##_##real Vector;                                                                                 \
        enum { SIZE = sizeof(Vector) / sizeof(real) };                                                                 \
        typedef float Floats __attribute__((vector_size(SIZE * sizeof(float))));                                       \
        const Vector none = {0}, one = none + (real)1, impulse = none + (real)f->impulse, decay = none + (real)f->decay;\
        for (int i = 0; i < extent; i += SIZE) {                                                                       \
            Vector theta, total, square;                                                                               \
            LOAD(theta, at->parameter + i * width);                                                                    \
            LOAD(total, at->gradient + i * width);                                                                     \
            memcpy(&square, at->square + i * sizeof(real), sizeof square);                                             \
            total *= (real)f->sign;                                                                                    \
            if (f->decay != 0)                                                                                         \
                total = level##_fma_##real(decay, theta, total);                                                       \
            if (f->adapt) {                                                                                            \
                square *= (real)f->smoothing;                                                                          \
                square = level##_fma_##real(total * (real)(1.0 - f->smoothing), total, square);                        \
                memcpy(at->square + i * sizeof(real), &square, sizeof square);                                         \
            }                                                                                                          \
            Vector s = one / (level##_sqrt_##real(square) + (real)f->epsilon);                                         \
            Vector move = impulse * (total * s);                                                                       \
            if (noisy) {                                                                                               \
                Floats epsilon;                                                                                        \
                memcpy(&epsilon, z + i, sizeof epsilon);                                                               \
                move = level##_fma_##real(level##_sqrt_##real(s) * (real)f->deviation,                                 \
                                          __builtin_convertvector(epsilon, Vector), move);                             \
            }                                                                                                          \
            theta += move;                                                                                             \
            STORE(at->parameter + i * width, theta);                                                                   \
        }                                                                                                              \
    }                                                                                                                  \
    TARGET INLINE void level##_santa_##kind(const Columns *at, const float *z, const Group *f, const int extent,       \
                                            const int exploring, const int symmetric, const int64_t first_step)        \
    {                                                                                                                  \
        typedef level##_##real Vector;                                                                                 \
        enum { SIZE = sizeof(Vector) / sizeof(real) };                                                                 \
        typedef float Floats __attribute__((vector_size(SIZE * sizeof(float))));                                       \
        const Vector none = {0}, one = none + (real)1, decay = none + (real)f->decay;                                  \
        const real fresh = (real)(1.0 - f->smoothing), half = (real)0.5;                                               \
        for (int i = 0; i < extent; i += SIZE) {                                                                       \
            Vector theta, total, square, u, xi, noise_scale;                                                           \
            LOAD(theta, at->parameter + i * width);                                                                    \
            LOAD(total, at->gradient + i * width);                                                                     \
            memcpy(&square, at->square + i * sizeof(real), sizeof square);                                             \
            memcpy(&u, at->momentum + i * sizeof(real), sizeof u);                                                     \
            memcpy(&xi, at->thermostat + i * sizeof(real), sizeof xi);                                                 \
            total *= (real)f->sign;                                                                                    \
            if (f->decay != 0)                                                                                         \
                total = level##_fma_##real(decay, theta, total);                                                       \
            noise_scale = square;                                                                                      \
            if (f->adapt) {                                                                                            \
                const Vector new = total * total, change = new - square;                                               \
                square = fresh < half ? level##_fma_##real(none + fresh, change, square)                               \
                                      : level##_fma_##real(none + (fresh - 1), change, new);                           \
                memcpy(at->square + i * sizeof(real), &square, sizeof square);                                         \
            }                                                                                                          \
            const Vector scale = one / level##_sqrt_##real(level##_sqrt_##real(square) + (real)f->epsilon);            \
            Vector impulse = total * scale * (real)f->impulse;                                                         \
            if (exploring) {                                                                                           \
                Floats epsilon;                                                                                        \
                memcpy(&epsilon, z + i, sizeof epsilon);                                                               \
                noise_scale = first_step                                                                               \
                                  ? scale                                                                              \
                                  : one / level##_sqrt_##real(level##_sqrt_##real(noise_scale) + (real)f->epsilon);    \
                impulse = level##_fma_##real(level##_sqrt_##real(noise_scale * (real)f->variance),                     \
                                             __builtin_convertvector(epsilon, Vector), impulse);                       \
            }                                                                                                          \
            if (symmetric) {                                                                                           \
                const real target = (real)(0.5 * f->target);                                                           \
                if (exploring)                                                                                         \
                    xi = level##_fma_##real(none + half, u * u, xi) - target;                                          \
                const Vector friction = level##_exp_##real(xi * -half);                                                \
                u = (u * friction + impulse) * friction;                                                               \
                if (exploring)                                                                                         \
                    xi = level##_fma_##real(none + half, u * u, xi) - target;                                          \
            } else {                                                                                                   \
                if (exploring)                                                                                         \
                    xi = xi + u * u - (real)f->target;                                                                 \
                u = u * (one - xi) + impulse;                                                                          \
            }                                                                                                          \
            memcpy(at->momentum + i * sizeof(real), &u, sizeof u);                                                     \
            if (exploring)                                                                                             \
                memcpy(at->thermostat + i * sizeof(real), &xi, sizeof xi);                                             \
            theta = level##_fma_##real(scale, u, theta);                                                               \
            STORE(at->parameter + i * width, theta);                                                                   \
        }                                                                                                              \
    }

/* A column at an element, copied to `scratch` if the pass would reach beyond the tensor's end. */
INLINE char *column(char *base, int64_t at, int width, int64_t count, int extent, char *scratch)
{
    if (!base || count == PASS)
        return base ? base + at * width : NULL;
    memset(scratch, 0, (size_t)extent * 8);
    memcpy(scratch, base + at * width, (size_t)(count * width));
    return scratch;
}
INLINE void put_back(char *base, int64_t at, int width, int64_t count, const char *scratch)
{
    if (base && count != PASS)
        memcpy(base + at * width, scratch, (size_t)(count * width));
}

/* Memory of a group of the pass that comes next. A core can have only so many requests under way, and waits if there are more: so
 * they are made where it computes, between groups of Gaussian noise; without those, in the update, row by row. */
#define FETCH(g)                                                                                                       \
    for (int i = g; i < g + GROUP; i += 16) {                                                                          \
        __builtin_prefetch(row->parameter + (at + AHEAD + i) * BYTES, 1);                                              \
        __builtin_prefetch(row->gradient + (at + AHEAD + i) * BYTES, 0);                                               \
        __builtin_prefetch(row->momentum + (at + AHEAD + i) * MOMENTUM_BYTES, 1);                                      \
    }

/* The noise of a pass, for a sweep. */
#define DRAW(z, second, BESIDE)                                                                                        \
    {                                                                                                                  \
        const Keys *keys = &source->keys[second];                                                                      \
        uint64_t element = (uint64_t)(row->offset + at), shift = element % GROUP;                                      \
        element -= shift;                                                                                              \
        { NUMBERS(source->words, z, BESIDE) }                                                                          \
        if (shift) { /* a shard that does not begin with a group */                                                    \
            float head[PASS];                                                                                          \
            memcpy(head, z + shift, (extent - shift) * sizeof *z);                                                     \
            element += (uint64_t)extent;                                                                               \
            { NUMBERS(source->words, z, NOTHING) }                                                                     \
            memcpy(head + extent - shift, z, shift * sizeof *z);                                                       \
            memcpy(z, head, (size_t)extent * sizeof *z);                                                               \
        }                                                                                                              \
        if (count < extent)                                                                                            \
            memset(z + count, 0, (size_t)(extent - count) * sizeof *z);                                                \
    }
#define BODY(level, kind, width, wide, which, first_noisy, second_sweep, measured, options)                            \
    {                                                                                                                  \
        enum { BYTES = width, MOMENTUM_BYTES = wide };                                                                 \
        double sums[SUMS * LANES] = {0};                                                                               \
        float z[PASS], y[PASS];                                                                                        \
        char scratch[6][PASS * 8];                                                                                     \
        const uint32_t step = source->step, stream = (uint32_t)row->stream;                                            \
        const int noise = (int)(which), noisy = first_noisy, again = second_sweep;                                     \
        const int64_t last = first + UNIT < row->numel ? first + UNIT : row->numel;                                    \
        for (int64_t at = first; at < last; at += PASS) {                                                              \
            const int64_t count = last - at < PASS ? last - at : PASS;                                                 \
            const int extent = count < PASS ? (int)(count + EXTENT - 1) / EXTENT * EXTENT : PASS;                      \
            if (noisy)                                                                                                 \
                DRAW(z, f->second_noise, FETCH)                                                                        \
            if (again == 2 && noisy)                                                                                   \
                DRAW(y, f->again_second_noise, NOTHING)                                                                \
            else if (again == 2)                                                                                       \
                DRAW(y, f->again_second_noise, FETCH)                                                                  \
            const Columns here = {                                                                                     \
                .parameter = column(row->parameter, at, width, count, extent, scratch[0]),                             \
                .gradient = column(row->gradient, at, width, count, extent, scratch[1]),                               \
                .momentum = column(row->momentum, at, wide, count, extent, scratch[2]),                                \
                .scale = options && f->scaled ? column(row->scale, at, wide, count, extent, scratch[3]) : NULL,        \
                .previous = options && f->compensated                                                                  \
                                ? column(row->previous_gradient, at, wide, count, extent, scratch[4])                  \
                                : NULL,                                                                                \
                .variance = options && f->compensated                                                                  \
                                ? column(row->gradient_variance, at, wide, count, extent, scratch[5])                  \
                                : NULL,                                                                                \
            };                                                                                                         \
            level##_pass_##kind(&here, row->memory, z, y, f, extent, noisy, again, measured, options,                  \
                                noise != GAUSSIAN, sums);                                                              \
            put_back(row->parameter, at, width, count, here.parameter);                                                \
            put_back(row->momentum, at, wide, count, here.momentum);                                                   \
            if (here.previous) {                                                                                       \
                put_back(row->previous_gradient, at, wide, count, here.previous);                                      \
                put_back(row->gradient_variance, at, wide, count, here.variance);                                      \
            }                                                                                                          \
        }                                                                                                              \
        for (int sum = 0; sum < SUMS; sum++)                                                                           \
            for (int l = 0; l < LANES; l++)                                                                            \
                out[sum] += sums[sum * LANES + l];                                                                     \
    }
#define ADAPTIVE_BODY(width, wide, noisy, CALL)                                                                        \
    {                                                                                                                  \
        enum { BYTES = width, MOMENTUM_BYTES = wide };                                                                 \
        float z[PASS];                                                                                                 \
        char scratch[5][PASS * 8];                                                                                     \
        const uint32_t step = source->step, stream = (uint32_t)row->stream;                                            \
        const int noise = source->noise;                                                                               \
        const int64_t last = first + UNIT < row->numel ? first + UNIT : row->numel;                                    \
        (void)out;                                                                                                     \
        for (int64_t at = first; at < last; at += PASS) {                                                              \
            const int64_t count = last - at < PASS ? last - at : PASS;                                                 \
            const int extent = count < PASS ? (int)(count + EXTENT - 1) / EXTENT * EXTENT : PASS;                      \
            if (noisy)                                                                                                 \
                DRAW(z, 0, FETCH)                                                                                      \
            const Columns here = {                                                                                     \
                .parameter = column(row->parameter, at, width, count, extent, scratch[0]),                             \
                .gradient = column(row->gradient, at, width, count, extent, scratch[1]),                               \
                .momentum = column(row->momentum, at, wide, count, extent, scratch[2]),                                \
                .square = column(row->square_average, at, wide, count, extent, scratch[3]),                            \
                .thermostat = column(row->thermostat, at, wide, count, extent, scratch[4]),                            \
            };                                                                                                         \
            CALL;                                                                                                      \
            put_back(row->parameter, at, width, count, here.parameter);                                                \
            put_back(row->momentum, at, wide, count, here.momentum);                                                   \
            put_back(row->square_average, at, wide, count, here.square);                                               \
            put_back(row->thermostat, at, wide, count, here.thermostat);                                               \
        }                                                                                                              \
    }

/* What nearly everyone runs has code of its own: SGD, Gaussian noise without options, and BAOAB and UBU with it. */
#define NOISY_FIRST (source->noise != NO_NOISE && (f->deviation != 0 || f->compensated))
#define NOISY_AGAIN (source->noise != NO_NOISE && f->again_deviation != 0)
#define ARGUMENTS const Source *source, const Group *f, const Row *row, int64_t first, double *out
#define UNIT_OF(name, TARGET, level, kind, width, wide)                                                                \
    TARGET static void name##_gaussian(ARGUMENTS) BODY(level, kind, width, wide, GAUSSIAN, 1, 0, 1, 0)                 \
    TARGET static void name##_three_point(ARGUMENTS) BODY(level, kind, width, wide, THREE_POINT, 1, 0, 1, 0)           \
    TARGET static void name##_plain(ARGUMENTS) BODY(level, kind, width, wide, NO_NOISE, 0, 0, 0, 0)                    \
    TARGET static void name##_baoab(ARGUMENTS) BODY(level, kind, width, wide, GAUSSIAN, 0, 2, 1, 0)                    \
    TARGET static void name##_ubu(ARGUMENTS) BODY(level, kind, width, wide, GAUSSIAN, 1, 2, 1, 0)                      \
    TARGET static void name##_any(ARGUMENTS)                                                                           \
        BODY(level, kind, width, wide, source->noise, NOISY_FIRST, f->sweeps == 2 ? 1 + NOISY_AGAIN : 0,               \
             (int)f->measure, 1)                                                                                       \
    TARGET static void name##_psgld(ARGUMENTS)                                                                         \
        ADAPTIVE_BODY(width, wide, NOISY_FIRST, level##_psgld_##kind(&here, z, f, extent, NOISY_FIRST))                \
    TARGET static void name##_santa_euler(ARGUMENTS)                                                                   \
        ADAPTIVE_BODY(width, wide, f->exploring,                                                                       \
                      level##_santa_##kind(&here, z, f, extent, (int)f->exploring, 0, row->first_step))                \
    TARGET static void name##_santa_symmetric(ARGUMENTS)                                                               \
        ADAPTIVE_BODY(width, wide, f->exploring,                                                                       \
                      level##_santa_##kind(&here, z, f, extent, (int)f->exploring, 1, row->first_step))                \
    static void name(ARGUMENTS)                                                                                        \
    {                                                                                                                  \
        if (f->method == PSGLD)                                                                                        \
            name##_psgld(source, f, row, first, out);                                                                  \
        else if (f->method == SANTA_EULER)                                                                             \
            name##_santa_euler(source, f, row, first, out);                                                            \
        else if (f->method == SANTA_SYMMETRIC)                                                                         \
            name##_santa_symmetric(source, f, row, first, out);                                                        \
        else if (f->scaled || f->compensated || f->sign != 1 || !row->momentum || f->impulse == 0)                     \
            name##_any(source, f, row, first, out);                                                                    \
        else if (f->sweeps == 2 && NOISY_AGAIN && source->noise == GAUSSIAN)                                           \
            (NOISY_FIRST ? name##_ubu : name##_baoab)(source, f, row, first, out);                                     \
        else if (f->sweeps == 1 && NOISY_FIRST)                                                                        \
            (source->noise == GAUSSIAN ? name##_gaussian : name##_three_point)(source, f, row, first, out);            \
        else if (f->sweeps == 1 && !f->measure)                                                                        \
            name##_plain(source, f, row, first, out);                                                                  \
        else                                                                                                           \
            name##_any(source, f, row, first, out);                                                                    \
    }

/* ---- are gradients fit for a step: finite, and so small that sums of squares are finite, too ---- */

/* The largest magnitude, as bits: one operation an element less than to compare each with the limit. */
#define UNFIT_ONE(i)                                                                                                   \
    {                                                                                                                  \
        memcpy(&bits, x + (i) * (int64_t)sizeof bits, sizeof bits);                                                    \
        bits &= most;                                                                                                  \
        largest = bits > largest ? bits : largest;                                                                     \
    }
#define UNFIT_ONES(Bits, all, limit)                                                                                   \
    {                                                                                                                  \
        const Bits most = all;                                                                                         \
        Bits bits, largest = 0;                                                                                        \
        for (; first + PASS <= last; first += PASS)                                                                    \
            for (int i = 0; i < PASS; i++)                                                                             \
                UNFIT_ONE(first + i)                                                                                   \
        for (; first < last; first++)                                                                                  \
            UNFIT_ONE(first)                                                                                           \
        return largest >= (Bits)(limit);                                                                               \
    }

#define LIMIT32 (127 + CTLD_LARGEST_FLOAT32)
#define LIMIT64 (1023 + CTLD_LARGEST_FLOAT64)
#define UNFIT(TARGET, level)                                                                                           \
    TARGET static int64_t level##_unfit(const char *x, int64_t type, int64_t first, int64_t last)                      \
    {                                                                                                                  \
        if (type == FLOAT64)                                                                                           \
            UNFIT_ONES(int64_t, INT64_MAX, (int64_t)LIMIT64 << 52)                                                     \
        if (type == FLOAT32)                                                                                           \
            UNFIT_ONES(int32_t, INT32_MAX, LIMIT32 << 23)                                                              \
        UNFIT_ONES(int16_t, INT16_MAX, LIMIT32 << 7)                                                                   \
    }

/* Σx² in as many lanes on every processor. */
#define SQUARES_OF(Real, WIDEN)                                                                                        \
    {                                                                                                                  \
        const Real *const values = (const Real *)x;                                                                    \
        for (; first + LANES <= last; first += LANES)                                                                  \
            for (int l = 0; l < LANES; l++) {                                                                          \
                const double value = WIDEN(values[first + l]);                                                         \
                lanes[l] += value * value;                                                                             \
            }                                                                                                          \
        for (int l = 0; first < last; first++, l++) {                                                                  \
            const double value = WIDEN(values[first]);                                                                 \
            lanes[l] += value * value;                                                                                 \
        }                                                                                                              \
    }
#define SQUARES(TARGET, level)                                                                                         \
    TARGET static double level##_squares(const char *x, int64_t type, int64_t first, int64_t last)                     \
    {                                                                                                                  \
        double lanes[LANES] = {0}, sum = 0.0;                                                                          \
        if (type == FLOAT64)                                                                                           \
            SQUARES_OF(double, (double))                                                                               \
        else if (type == FLOAT32)                                                                                      \
            SQUARES_OF(float, (double))                                                                                \
        else                                                                                                           \
            SQUARES_OF(uint16_t, (double)widened)                                                                      \
        for (int l = 0; l < LANES; l++)                                                                                \
            sum += lanes[l];                                                                                           \
        return sum;                                                                                                    \
    }

#define LEVEL_OF(level, TARGET)                                                                                        \
    EXPONENTIALS(TARGET, level)                                                                                        \
    UPDATES(TARGET, level, float32, float, 4, LOAD_WHOLE, STORE_WHOLE, AS_STORED)                                      \
    UPDATES(TARGET, level, float64, double, 8, LOAD_WHOLE, STORE_WHOLE, AS_STORED)                                     \
    UPDATES(TARGET, level, bfloat16, float, 2, LOAD_BFLOAT, STORE_BFLOAT, AS_BFLOAT)                                   \
    ADAPTIVE(TARGET, level, float32, float, 4, LOAD_WHOLE, STORE_WHOLE)                                                \
    ADAPTIVE(TARGET, level, float64, double, 8, LOAD_WHOLE, STORE_WHOLE)                                               \
    ADAPTIVE(TARGET, level, bfloat16, float, 2, LOAD_BFLOAT, STORE_BFLOAT)                                             \
    UNIT_OF(level##_float32, TARGET, level, float32, 4, 4)                                                             \
    UNIT_OF(level##_float64, TARGET, level, float64, 8, 8)                                                             \
    UNIT_OF(level##_bfloat16, TARGET, level, bfloat16, 2, 4)                                                           \
    UNFIT(TARGET, level)                                                                                               \
    SQUARES(TARGET, level)                                                                                             \
    TARGET static void level##_numbers(const Source *source, uint32_t stream, uint64_t element, float *z)              \
    {                                                                                                                  \
        const Keys *keys = &source->keys[0];                                                                           \
        const uint32_t step = source->step;                                                                            \
        const int noise = source->noise, extent = PASS;                                                                \
        NUMBERS(source->words, z, NOTHING)                                                                             \
    }

#define PORTABLE
LEVEL_OF(portable, PORTABLE)
#ifdef X86
LEVEL_OF(avx2, AVX2)
LEVEL_OF(avx512, AVX512)
#endif

/* What a processor can do; where it can do the same but has other instructions for the words, a level shares the rest. */
typedef struct {
    Words *words;
    void (*units[3])(ARGUMENTS);
    int64_t (*unfit)(const char *, int64_t, int64_t, int64_t);
    double (*squares)(const char *, int64_t, int64_t, int64_t);
    void (*numbers)(const Source *, uint32_t, uint64_t, float *);
} Level;
#define LEVEL(words, level)                                                                                            \
    {words, {level##_float32, level##_float64, level##_bfloat16}, level##_unfit, level##_squares, level##_numbers}
static const Level LEVELS[] = {
    LEVEL(words_software, portable),
#ifdef X86
    LEVEL(words_avx2, avx2),
    LEVEL(words_vaes, avx2),
    LEVEL(words_avx512, avx512),
#endif
};

/* ---- what Python calls ---- */

int64_t ctld_version(void) { return CTLD_VERSION; }

/* The best level that this processor has: 0 portable, 1 AVX2, 2 AVX2 with VAES, 3 AVX-512. */
int64_t ctld_best_level(void)
{
#ifdef X86
    unsigned int a, b, c = 0, d;
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !__builtin_cpu_supports("aes"))
        return 0;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(c >> 9 & 1)) /* VAES, which not every compiler has a name for */
        return 1;
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
                   __builtin_cpu_supports("avx512vl")
               ? 3
               : 2;
#else
    return 0;
#endif
}

static void prepare(Source *source, int64_t level, int64_t noise, uint64_t seed, uint64_t second_seed, int64_t step)
{
    source->words = LEVELS[level].words, source->noise = (int)noise, source->step = (uint32_t)step;
    expand(&source->keys[0], (const uint32_t[4]){(uint32_t)seed, (uint32_t)(seed >> 32), 0, 0}, 7);
    expand(&source->keys[1], (const uint32_t[4]){(uint32_t)second_seed, (uint32_t)(second_seed >> 32), 0, 0}, 7);
}

/* Elements offset to offset + numel of a stream at a step. */
void ctld_numbers(int64_t level, int64_t noise, uint64_t seed, int64_t step, int64_t stream, uint64_t offset,
                  uint64_t numel, float *out)
{
    Source source;
    prepare(&source, level, noise, seed, seed, step);
    float z[PASS];
    for (uint64_t element = offset - offset % GROUP; element < offset + numel; element += PASS) {
        LEVELS[level].numbers(&source, (uint32_t)stream, element, z);
        uint64_t first = element < offset ? offset - element : 0, last = offset + numel - element;
        last = last > PASS ? PASS : last;
        memcpy(out + (element + first - offset), z + first, (last - first) * sizeof *z);
    }
}

/* Nodes first to last of a bias: one more hill at `centre`, of this height, exp(−scale·distance²). */
void ctld_add_hill(double *values, const double *nodes, int64_t first, int64_t last, double centre, double height, double scale)
{
    for (int64_t i = first; i <= last; i++)
        values[i] += height * exp(-scale * ((nodes[i] - centre) * (nodes[i] - centre)));
}

/* V_b of bias.py: one more hill at α, then the force there. */
static double bias_force(const Alpha *a)
{
    if (fabs(a->alpha) > a->bias_edge)
        return 0.0;
    double *values = (double *)a->values;
    const double spacing = 2.0 * a->bias_edge / (double)a->num_bins, place = a->alpha + a->bias_edge;
    const double reach = CTLD_REACH * a->width;
    const double first = ceil((place - reach) / spacing), last = floor((place + reach) / spacing);
    ctld_add_hill(values, (const double *)a->nodes, first > 0 ? (int64_t)first : 0,
                  last < (double)a->num_bins ? (int64_t)last : a->num_bins, a->alpha, a->height, a->hill_scale);
    int64_t bin = (int64_t)(place / spacing);
    bin = bin < a->num_bins ? bin : a->num_bins - 1;
    return (values[bin] - values[bin + 1]) / spacing;
}

/* Tempering.advance of tempering.py, operation by operation. */
static void advance_alpha(Alpha *a)
{
    const volatile double two = 2.0; /* Python squares by pow, whose last bit is its own; a compiler would multiply */
    a->alpha += a->step_size * a->momentum / a->mass;
    double z = (fabs(a->alpha) - a->plateau) / (a->edge - a->plateau);
    z = z < 0.0 ? 0.0 : z;
    z = z > 1.0 ? 1.0 : z;
    double slope = -6.0 * a->depth * z * (1.0 - z) / (a->edge - a->plateau);
    slope = a->alpha >= 0 ? slope : -slope;
    double acceleration = 0.0;
    if (a->has_well && fabs(a->alpha) > a->well_edge)
        acceleration += -copysign(a->well_strength, a->alpha);
    if (a->values)
        acceleration += bias_force(a);
    a->force = -slope * a->hamiltonian + a->mass * acceleration;
    double variance = 2.0 * a->step_size * a->friction * a->mass;
    if (a->hamiltonian_variance != 0)
        variance -= pow(a->step_size * slope, two) * a->hamiltonian_variance;
    a->clamped = variance < 0;
    a->momentum = (1.0 - a->step_size * a->friction) * a->momentum + a->step_size * a->force +
                  sqrt(variance > 0.0 ? variance : 0.0) * a->normal;
}

/* H̃ = (Ũ + rᵀr/2)/T from the sums of the groups that are measured. */
static void find_energies(Alpha *a, const Group *groups, const Sums *sums, int64_t count)
{
    double prior = 0.0, kinetic = 0.0;
    for (int64_t g = 0; g < count; g++)
        if (groups[g].measure) {
            prior += 0.5 * groups[g].decay * sums[g].prior;
            kinetic += 0.5 * (groups[g].reading == MEAN   ? groups[g].times * sums[g].kinetic
                              : groups[g].reading == LAST ? sums[g].refreshed / groups[g].over
                                                          : sums[g].kinetic);
        }
    a->potential = a->num_data * (a->loss + prior);
    a->hamiltonian = (a->potential + a->num_data * kinetic) / a->temperature;
}

/* Whether gradients of units from first to last are not fit. From memory a core may read one stretch at half the speed of four that
 * lie far apart: so it reads in PLACES places by turns, unless there are so few elements that a cache holds them. */
static int64_t unfit_units(const Job *job, int64_t first, int64_t last)
{
    const Level *const level = &LEVELS[job->level];
    const Row *const rows = (const Row *)job->rows;
    const Account *const accounts = (const Account *)job->accounts;
    const int64_t count = job->row_count, most = job->elements >= FAR_FROM ? PLACES : 1;
    const int64_t stretch = (last - first + most - 1) / most;
    int64_t odd = 0, row[PLACES] = {0}, begin[PLACES], end[PLACES];
    for (int64_t unit = first; unit < first + stretch; unit++) {
        int places = 0;
        for (int64_t here = unit; places < most && here < last; here += stretch, places++) {
            int64_t *const t = &row[places];
            while (*t + 1 < count && rows[*t + 1].first_unit <= here)
                ++*t;
            begin[places] = (here - rows[*t].first_unit) * UNIT;
            end[places] = begin[places] + UNIT < rows[*t].numel ? begin[places] + UNIT : rows[*t].numel;
        }
        for (int at = 0; at < UNIT; at += PASS)
            for (int p = 0; p < places; p++)
                if (begin[p] + at < end[p])
                    odd |= level->unfit(rows[row[p]].gradient, accounts[rows[row[p]].account].type, begin[p] + at,
                                        begin[p] + at + PASS < end[p] ? begin[p] + at + PASS : end[p]);
    }
    return odd;
}

/* One step of all groups. Sums of groups that rest are left as Python has filled them in. */
int64_t ctld_run(Job *job)
{
    const Level *const level = &LEVELS[job->level];
    const Row *const rows = (const Row *)job->rows;
    const Account *const accounts = (const Account *)job->accounts;
    const Group *const groups = (const Group *)job->groups;
    Sums *const units = (Sums *)job->unit_sums, *const totals = (Sums *)job->group_sums;
    Alpha *const alpha = (Alpha *)job->alpha;
    const int64_t count = job->row_count;
    Source source;
    prepare(&source, job->level, job->noise, (uint64_t)job->seed, (uint64_t)job->second_seed, job->step);
    int64_t odd = 0;
#pragma omp parallel num_threads((int)job->threads) if (job->threads > 1 && job->elements >= PARALLEL_FROM)
    {
        int64_t t = 0;
        if (job->check) { /* each thread looks at what it will work on, which is in its cache then */
#pragma omp for schedule(static) reduction(| : odd)
            for (int64_t part = 0; part < job->threads; part++)
                odd |= unfit_units(job, job->units * part / job->threads, job->units * (part + 1) / job->threads);
        }
        if (!odd) {
#pragma omp for schedule(static)
            for (int64_t unit = 0; unit < job->units; unit++) {
                while (t + 1 < count && rows[t + 1].first_unit <= unit)
                    t++;
                const Account *const account = &accounts[rows[t].account];
                const Group *const group = &groups[account->group];
                units[unit] = (Sums){0};
                if (group->method != RESTS)
                    level->units[account->type](&source, group, &rows[t], (unit - rows[t].first_unit) * UNIT,
                                                (double *)&units[unit]);
            }
        }
    }
    if (odd)
        return UNFIT_GRADIENTS;
    for (int64_t g = 0; g < job->group_count; g++)
        if (groups[g].method != RESTS)
            totals[g] = (Sums){0};
    for (int64_t t = 0; t < count;) {
        const int64_t account = rows[t].account, first = rows[t].first_unit;
        while (t < count && rows[t].account == account)
            t++;
        const Account *const of = &accounts[account];
        if (groups[of->group].method == RESTS)
            continue;
        double sums[SUMS] = {0}, *const total = (double *)&totals[of->group];
        for (int64_t unit = first; unit < (t < count ? rows[t].first_unit : job->units); unit++)
            for (int sum = 0; sum < SUMS; sum++)
                sums[sum] += ((const double *)&units[unit])[sum];
        for (int sum = 0; sum < SUMS; sum++)
            total[sum] += of->weight * sums[sum];
    }
    if (alpha) {
        find_energies(alpha, groups, totals, job->group_count);
        if (!isfinite(alpha->hamiltonian))
            return HAMILTONIAN_NOT_FINITE;
        advance_alpha(alpha);
    }
    return DONE;
}

/* Whether all gradients are fit for a step. */
int64_t ctld_fit(const Job *job)
{
    int64_t odd = 0;
#pragma omp parallel for schedule(static) reduction(| : odd) num_threads((int)job->threads)                            \
    if (job->threads > 1 && job->elements >= 4 * PARALLEL_FROM)
    for (int64_t part = 0; part < job->threads; part++)
        odd |= unfit_units(job, job->units * part / job->threads, job->units * (part + 1) / job->threads);
    return !odd;
}

/* Σθ² of each group, as the `prior` of its sums: for a tempering that has to know the potential before the step. Returns whether
 * the gradients are fit for one, if they are to be looked at. */
int64_t ctld_square_norms(Job *job)
{
    if (job->check && !ctld_fit(job))
        return 0;
    const Level *const level = &LEVELS[job->level];
    const Row *const rows = (const Row *)job->rows;
    const Account *const accounts = (const Account *)job->accounts;
    Sums *const units = (Sums *)job->unit_sums, *const totals = (Sums *)job->group_sums;
    const int64_t count = job->row_count;
#pragma omp parallel num_threads((int)job->threads) if (job->threads > 1 && job->elements >= PARALLEL_FROM)
    {
        int64_t t = 0;
#pragma omp for schedule(static)
        for (int64_t unit = 0; unit < job->units; unit++) {
            while (t + 1 < count && rows[t + 1].first_unit <= unit)
                t++;
            const int64_t first = (unit - rows[t].first_unit) * UNIT, left = rows[t].numel - first;
            units[unit].prior = level->squares(rows[t].parameter, accounts[rows[t].account].type, first,
                                               first + (left < UNIT ? left : UNIT));
        }
    }
    for (int64_t g = 0; g < job->group_count; g++)
        totals[g].prior = 0.0;
    for (int64_t t = 0; t < count;) {
        const int64_t account = rows[t].account, first = rows[t].first_unit;
        while (t < count && rows[t].account == account)
            t++;
        double sum = 0.0;
        for (int64_t unit = first; unit < (t < count ? rows[t].first_unit : job->units); unit++)
            sum += units[unit].prior;
        totals[accounts[account].group].prior += accounts[account].weight * sum;
    }
    return 1;
}
