/* Steps of whole lists of tensors in one pass over memory: gradient and prior, kick, noise, drift, energies.
 *
 * The noise is what noise/ars.py and noise/gaussian.py define, bit for bit. Every operation on floating-point numbers
 * is one that IEEE 754 rounds correctly (+, ×, √, fused multiply-add, conversion), and the compiler must not contract
 * others: build with -ffp-contract=off and without -ffast-math. Then the bits do not depend on the processor, and loops
 * over LANES elements may be vectorised at will.
 *
 * Work is cut into units of UNIT elements of one tensor. Each unit has its own place for its sums, and these are added
 * in order, so that nothing depends on how many threads there are.
 */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__)
#define X86 1
#include <immintrin.h>
#endif

#define UNIT 4096
#define PASS 256  /* elements whose noise is held in the first cache while they are updated */
#define AHEAD 256 /* elements by which memory is asked for in advance */
#define FAR_AHEAD 8192 /* bytes, likewise, where nothing but reading is done */
#define LANES 16  /* sums are kept in this many lanes on every processor */
#define GROUP 32  /* elements whose noise is computed together: see gaussian.py */
#define PARALLEL_FROM 32768 /* elements; a parallel region costs as much as some thousand of them */
#define INLINE static inline __attribute__((always_inline))

enum { NO_NOISE, GAUSSIAN, THREE_POINT };
enum { FLOAT32, FLOAT64, BFLOAT16 }; /* of the parameters; BFLOAT16 has momenta in float32 */

/* All members are 64 bits wide: Python fills them as one array of integers. A null pointer: there is none. */
typedef struct {
    char *parameter, *gradient, *momentum, *scale, *previous_gradient, *gradient_variance;
    int64_t numel, offset, stream, first_unit;
    double memory; /* noise compensation: weight of this step in the mean; the bits of a float64, for Python */
} Row;

/* Likewise as one array of float64. */
typedef struct {
    double retain, impulse, deviation, drift, decay, sign;
    double variance, gradient_share; /* noise compensation */
} Factors;

typedef struct { double prior, kinetic, midpoint, clamped; } Sums;

typedef struct { uint32_t word[8][4]; } Keys;

typedef struct {
    const Row *rows;
    const Factors *factors;
    const Keys *keys;
    uint32_t step;
    int64_t noise, measured;
} Job;

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
#define AVX512 __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,avx2,fma,aes,vaes,prefer-vector-width=512")))

/* `blocks` is a multiple of 8 here and of 16 below. */
AVX2 INLINE void words_avx2(uint32_t *out, int blocks, const Keys *keys, uint64_t block, uint32_t step, uint32_t stream)
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

AVX512 INLINE void words_avx512(uint32_t *out, int blocks, const Keys *keys, uint64_t block, uint32_t step, uint32_t stream)
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

/* Elements `element` to `element + PASS` of a stream; `element` is a multiple of GROUP. BESIDE(g) is done with each group of
 * Gaussian noise. */
#define NUMBERS(words, BESIDE)                                                                                         \
    uint32_t w[PASS];                                                                                                  \
    if (noise == GAUSSIAN) {                                                                                           \
        words(w, PASS / 4, keys, element / 4, step, stream);                                                           \
        for (int g = 0; g < PASS; g += GROUP) {                                                                        \
            BESIDE(g)                                                                                                  \
            for (int i = 0; i < LANES; i++)                                                                            \
                box_muller(w[g + i], w[g + LANES + i], &z[g + i], &z[g + LANES + i]);                                  \
        }                                                                                                              \
    } else {                                                                                                           \
        words(w, PASS / 8, keys, element / 8, step, stream);                                                           \
        for (int g = 0; g < PASS; g += GROUP)                                                                          \
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
#ifdef X86
VECTORS(avx2, 32)
VECTORS(avx512, 64)
#define avx2_fma_float _mm256_fmadd_ps
#define avx2_fma_double _mm256_fmadd_pd
#define avx512_fma_float _mm512_fmadd_ps
#define avx512_fma_double _mm512_fmadd_pd
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

/* One pass. The order of operations, each rounded once, is that of dynamics.py on a processor with fused multiply-adds,
 * where torch uses them. `noisy`, `measured`, `options` and `ahead` (whether to ask for the memory of
 * the next pass) are constants where this is inlined. */
#define UPDATES(TARGET, level, kind, real, root, width, LOAD, STORE)                                                   \
    TARGET INLINE void level##_pass_##kind(char *parameter, const char *gradient, char *momentum, const char *scale,   \
                                           char *previous, char *variance, double weight, const float *z,              \
                                           const Factors *f, const int noisy, const int measured, const int options,   \
                                           const int ahead, double *sums)                                              \
    {                                                                                                                  \
        typedef level##_##real Vector;                                                                                 \
        enum { SIZE = sizeof(Vector) / sizeof(real), PARTS = LANES / SIZE };                                           \
        typedef float Floats __attribute__((vector_size(SIZE * sizeof(float))));                                       \
        const Vector none = {0}, retain = none + (real)f->retain, impulse = none + (real)f->impulse;                   \
        const Vector deviation = none + (real)f->deviation, drift = none + (real)f->drift;                             \
        const Vector decay = none + (real)f->decay;                                                                    \
        Vector prior[PARTS], kinetic[PARTS], midpoint[PARTS];                                                          \
        for (int k = 0; k < PARTS; k++)                                                                                \
            prior[k] = kinetic[k] = midpoint[k] = none;                                                                \
        for (int row = 0; row < PASS; row += LANES) {                                                                  \
            if (ahead) {                                                                                               \
                __builtin_prefetch(parameter + (AHEAD + row) * width, 1);                                              \
                __builtin_prefetch(gradient + (AHEAD + row) * width, 0);                                               \
                __builtin_prefetch(momentum + (AHEAD + row) * sizeof(real), 1);                                        \
            }                                                                                                          \
            _Pragma("GCC unroll 8") for (int k = 0; k < PARTS; k++)                                                    \
            {                                                                                                          \
                const int i = row + k * SIZE;                                                                          \
                Vector theta, raw, old = none, move, spread = deviation, mass = none + 1;                              \
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
                    for (int l = 0; l < SIZE; l++)                                                                     \
                        spread[l] *= root(s[l]);                                                                       \
                    if (measured) { /* 1/s; none where s is 0, beyond the tensor's end */                              \
                        const __typeof__(s > none) there = s > none;                                                   \
                        mass = (Vector)((__typeof__(s > none))((none + 1) / s) & there);                               \
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
                        real left = (real)f->variance - (real)f->gradient_share * known[l];                            \
                        sums[3 * LANES] += left < 0;                                                                   \
                        spread[l] = root(left < 0 ? (real)0 : left);                                                   \
                    }                                                                                                  \
                }                                                                                                      \
                move = level##_fma_##real(impulse, move, retain * old);                                                \
                if (noisy) {                                                                                           \
                    Floats epsilon;                                                                                    \
                    memcpy(&epsilon, z + i, sizeof epsilon);                                                           \
                    move = level##_fma_##real(spread, __builtin_convertvector(epsilon, Vector), move);                 \
                }                                                                                                      \
                if (momentum)                                                                                          \
                    memcpy(momentum + i * sizeof(real), &move, sizeof move);                                           \
                Vector next = level##_fma_##real(drift, move, theta);                                                  \
                STORE(parameter + i * width, next);                                                                    \
                if (measured) {                                                                                        \
                    prior[k] = level##_fma_##real(theta, theta, prior[k]);                                             \
                    Vector middle = old + move;                                                                        \
                    if (options && scale) {                                                                            \
                        kinetic[k] = level##_fma_##real(mass * move, move, kinetic[k]);                                \
                        midpoint[k] = level##_fma_##real(mass * middle, middle, midpoint[k]);                          \
                    } else {                                                                                           \
                        kinetic[k] = level##_fma_##real(move, move, kinetic[k]);                                       \
                        midpoint[k] = level##_fma_##real(middle, middle, midpoint[k]);                                 \
                    }                                                                                                  \
                }                                                                                                      \
            }                                                                                                          \
        }                                                                                                              \
        if (measured) {                                                                                                \
            real lanes[3 * LANES];                                                                                     \
            memcpy(lanes, prior, sizeof prior);                                                                        \
            memcpy(lanes + LANES, kinetic, sizeof kinetic);                                                            \
            memcpy(lanes + 2 * LANES, midpoint, sizeof midpoint);                                                      \
            for (int l = 0; l < 3 * LANES; l++)                                                                        \
                sums[l] += lanes[l];                                                                                   \
        }                                                                                                              \
    }

/* Column k of a row at an element, copied to `scratch` if the pass would reach beyond the tensor's end. */
INLINE char *column(char *base, int64_t at, int width, int64_t count, char *scratch)
{
    if (!base || count == PASS)
        return base ? base + at * width : NULL;
    memset(scratch, 0, (size_t)PASS * 8);
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

#define BODY(level, kind, width, wide, words, which, measured, options)                                                \
    {                                                                                                                  \
        enum { BYTES = width, MOMENTUM_BYTES = wide };                                                                 \
        double sums[4 * LANES] = {0};                                                                                  \
        float z[PASS];                                                                                                 \
        char scratch[6][PASS * 8];                                                                                     \
        const Keys *keys = job->keys;                                                                                  \
        const uint32_t step = job->step, stream = (uint32_t)row->stream;                                               \
        const int noise = (int)(which), noisy = noise != NO_NOISE;                                                     \
        const int64_t last = first + UNIT < row->numel ? first + UNIT : row->numel;                                    \
        for (int64_t at = first; at < last; at += PASS) {                                                              \
            const int64_t count = last - at < PASS ? last - at : PASS;                                                 \
            if (noisy) {                                                                                               \
                uint64_t element = (uint64_t)(row->offset + at), shift = element % GROUP;                              \
                element -= shift;                                                                                      \
                { NUMBERS(words, FETCH) }                                                                              \
                if (shift) { /* a shard that does not begin with a group */                                            \
                    float head[PASS];                                                                                  \
                    memcpy(head, z + shift, (PASS - shift) * sizeof *z);                                               \
                    element += PASS;                                                                                   \
                    { NUMBERS(words, NOTHING) }                                                                        \
                    memcpy(head + PASS - shift, z, shift * sizeof *z);                                                 \
                    memcpy(z, head, sizeof z);                                                                         \
                }                                                                                                      \
                if (count < PASS)                                                                                      \
                    memset(z + count, 0, (size_t)(PASS - count) * sizeof *z);                                          \
            }                                                                                                          \
            char *parameter = column(row->parameter, at, width, count, scratch[0]);                                    \
            char *gradient = column(row->gradient, at, width, count, scratch[1]);                                      \
            char *momentum = column(row->momentum, at, wide, count, scratch[2]);                                       \
            char *scale = options ? column(row->scale, at, wide, count, scratch[3]) : NULL;                            \
            char *previous = options ? column(row->previous_gradient, at, wide, count, scratch[4]) : NULL;             \
            char *variance = options ? column(row->gradient_variance, at, wide, count, scratch[5]) : NULL;             \
            level##_pass_##kind(parameter, gradient, momentum, scale, previous, variance, row->memory, z, job->factors, noisy, measured, \
                        options, noise != GAUSSIAN, sums);                                                             \
            put_back(row->parameter, at, width, count, parameter);                                                     \
            put_back(row->momentum, at, wide, count, momentum);                                                        \
            put_back(row->previous_gradient, at, wide, options ? count : PASS, previous);                              \
            put_back(row->gradient_variance, at, wide, options ? count : PASS, variance);                              \
        }                                                                                                              \
        for (int l = 0; l < LANES; l++) {                                                                              \
            out->prior += sums[l];                                                                                     \
            out->kinetic += sums[LANES + l];                                                                           \
            out->midpoint += sums[2 * LANES + l];                                                                      \
            out->clamped += sums[3 * LANES + l];                                                                       \
        }                                                                                                              \
    }

/* Momentum without noise is SGD; without options it is what nearly everyone runs: these have code of their own. */
#define UNIT_OF(name, TARGET, level, kind, width, wide, words)                                                         \
    TARGET static void name##_gaussian(const Job *job, const Row *row, int64_t first, Sums *out)                       \
        BODY(level, kind, width, wide, words, GAUSSIAN, 1, 0)                                                          \
    TARGET static void name##_three_point(const Job *job, const Row *row, int64_t first, Sums *out)                    \
        BODY(level, kind, width, wide, words, THREE_POINT, 1, 0)                                                       \
    TARGET static void name##_plain(const Job *job, const Row *row, int64_t first, Sums *out)                          \
        BODY(level, kind, width, wide, words, NO_NOISE, 0, 0)                                                          \
    TARGET static void name##_any(const Job *job, const Row *row, int64_t first, Sums *out)                            \
        BODY(level, kind, width, wide, words, job->noise, job->measured, 1)                                            \
    static void name(const Job *job, const Row *row, int64_t first, Sums *out)                                         \
    {                                                                                                                  \
        if (row->scale || row->previous_gradient || job->factors->sign != 1 || !row->momentum)                         \
            name##_any(job, row, first, out);                                                                          \
        else if (job->noise == GAUSSIAN)                                                                               \
            name##_gaussian(job, row, first, out);                                                                     \
        else if (job->noise == THREE_POINT)                                                                            \
            name##_three_point(job, row, first, out);                                                                  \
        else if (!job->measured)                                                                                       \
            name##_plain(job, row, first, out);                                                                        \
        else                                                                                                           \
            name##_any(job, row, first, out);                                                                          \
    }

#define LEVEL_OF(level, TARGET, words)                                                                                 \
    UPDATES(TARGET, level, float32, float, sqrtf, 4, LOAD_WHOLE, STORE_WHOLE)                                          \
    UPDATES(TARGET, level, float64, double, sqrt, 8, LOAD_WHOLE, STORE_WHOLE)                                          \
    UPDATES(TARGET, level, bfloat16, float, sqrtf, 2, LOAD_BFLOAT, STORE_BFLOAT)                                       \
    UNIT_OF(level##_float32, TARGET, level, float32, 4, 4, words)                                                      \
    UNIT_OF(level##_float64, TARGET, level, float64, 8, 8, words)                                                      \
    UNIT_OF(level##_bfloat16, TARGET, level, bfloat16, 2, 4, words)                                                    \
    TARGET static void level##_numbers(int noise, const Keys *keys, uint32_t step, uint32_t stream, uint64_t element,  \
                                       float *z)                                                                       \
    {                                                                                                                  \
        NUMBERS(words, NOTHING)                                                                                        \
    }

#define PORTABLE
LEVEL_OF(portable, PORTABLE, words_software)
#ifdef X86
LEVEL_OF(avx2, AVX2, words_avx2)
LEVEL_OF(avx512, AVX512, words_avx512)
#endif

typedef void Unit(const Job *, const Row *, int64_t, Sums *);
typedef void Numbers(int, const Keys *, uint32_t, uint32_t, uint64_t, float *);
static Unit *const UNITS[][3] = {
    {portable_float32, portable_float64, portable_bfloat16},
#ifdef X86
    {avx2_float32, avx2_float64, avx2_bfloat16},
    {avx512_float32, avx512_float64, avx512_bfloat16},
#endif
};
static Numbers *const NUMBER_MAKERS[] = {
    portable_numbers,
#ifdef X86
    avx2_numbers,
    avx512_numbers,
#endif
};

/* ---- what Python calls ---- */

/* Raised whenever what follows takes or gives something else, so that an old library is not called in its place. */
int64_t ctld_version(void) { return 3; }

/* The best level that this processor has: 0 portable, 1 AVX2, 2 AVX-512. */
int64_t ctld_best_level(void)
{
#ifdef X86
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !__builtin_cpu_supports("aes"))
        return 0;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("vaes"))
        return 2;
    return 1;
#else
    return 0;
#endif
}

/* Elements offset to offset + numel of a stream at a step. */
void ctld_numbers(int64_t level, int64_t noise, uint64_t seed, int64_t step, int64_t stream, uint64_t offset,
                  uint64_t numel, float *out)
{
    Keys keys;
    expand(&keys, (const uint32_t[4]){(uint32_t)seed, (uint32_t)(seed >> 32), 0, 0}, 7);
    float z[PASS];
    for (uint64_t element = offset - offset % GROUP; element < offset + numel; element += PASS) {
        NUMBER_MAKERS[level]((int)noise, &keys, (uint32_t)step, (uint32_t)stream, element, z);
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

/* Whether all gradients are finite: an element is not if its exponent is all ones. */
#define ODD_ONE(i)                                                                                                     \
    {                                                                                                                  \
        memcpy(&bits, x + (i) * (int64_t)sizeof bits, sizeof bits);                                                    \
        odd |= (bits & exponent) == exponent;                                                                          \
    }
#define ODD_ONES(Bits, ones)                                                                                           \
    {                                                                                                                  \
        const Bits exponent = ones;                                                                                    \
        Bits bits, odd = 0;                                                                                            \
        for (; first + PASS <= last; first += PASS) {                                                                  \
            for (int k = 0; k < PASS * (int)sizeof bits; k += 64) /* the processor does not look that far ahead */     \
                __builtin_prefetch(x + first * (int64_t)sizeof bits + k + FAR_AHEAD, 0);                               \
            for (int i = 0; i < PASS; i++)                                                                             \
                ODD_ONE(first + i)                                                                                     \
        }                                                                                                              \
        for (; first < last; first++)                                                                                  \
            ODD_ONE(first)                                                                                             \
        return (int64_t)odd;                                                                                           \
    }
#ifdef X86
__attribute__((target_clones("default", "avx2", "avx512f")))
#endif
static int64_t odd_ones(const char *x, int64_t type, int64_t first, int64_t last)
{
    if (type == FLOAT64)
        ODD_ONES(uint64_t, 0x7FF0000000000000u)
    if (type == FLOAT32)
        ODD_ONES(uint32_t, 0x7F800000u)
    ODD_ONES(uint16_t, 0x7F80)
}

int64_t ctld_all_finite(int64_t type, int64_t threads, const Row *rows, int64_t count)
{
    int64_t odd = 0, elements = 0;
    for (int64_t t = 0; t < count; t++)
        elements += rows[t].numel;
#pragma omp parallel for schedule(static) reduction(| : odd) num_threads((int)threads)                                 \
    if (threads > 1 && elements >= 4 * PARALLEL_FROM)
    for (int64_t chunk = 0; chunk < (elements + UNIT - 1) / UNIT; chunk++) {
        int64_t first = chunk * UNIT, last = first + UNIT;
        for (int64_t t = 0; t < count && last > 0; first -= rows[t].numel, last -= rows[t].numel, t++)
            if (first < rows[t].numel)
                odd |= odd_ones(rows[t].gradient, type, first > 0 ? first : 0, last < rows[t].numel ? last : rows[t].numel);
    }
    return !odd;
}

/* One step of `count` tensors, all of one type. Returns 0; or, with nothing changed, 1 if there is no memory for the sums and
 * 2 if there was to be a `check` of the gradients and it failed. */
int64_t ctld_step(int64_t level, int64_t type, int64_t threads, Row *rows, int64_t count, const Factors *factors,
                  int64_t noise, int64_t measured, int64_t check, uint64_t seed, int64_t step, Sums *total)
{
    Keys keys;
    expand(&keys, (const uint32_t[4]){(uint32_t)seed, (uint32_t)(seed >> 32), 0, 0}, 7);
    const Job job = {rows, factors, &keys, (uint32_t)step, noise, measured};
    int64_t units = 0, elements = 0;
    for (int64_t t = 0; t < count; t++) {
        rows[t].first_unit = units;
        units += (rows[t].numel + UNIT - 1) / UNIT;
        elements += rows[t].numel;
    }
    *total = (Sums){0, 0, 0, 0};
    Sums few[64], *sums = units <= 64 ? memset(few, 0, sizeof few) : calloc((size_t)units, sizeof *sums);
    if (!sums)
        return 1;
    Unit *const run = UNITS[level][type];
    int64_t odd = 0;
#pragma omp parallel num_threads((int)threads) if (threads > 1 && elements >= PARALLEL_FROM)
    {
        int64_t t = 0;
        if (check) { /* each thread looks at what it will work on, which is in its cache then */
#pragma omp for schedule(static) reduction(| : odd)
            for (int64_t unit = 0; unit < units; unit++) {
                while (t + 1 < count && rows[t + 1].first_unit <= unit)
                    t++;
                const int64_t first = (unit - rows[t].first_unit) * UNIT;
                odd |= odd_ones(rows[t].gradient, type, first, first + UNIT < rows[t].numel ? first + UNIT : rows[t].numel);
            }
            t = 0;
        }
        if (!odd) {
#pragma omp for schedule(static)
            for (int64_t unit = 0; unit < units; unit++) {
                while (t + 1 < count && rows[t + 1].first_unit <= unit)
                    t++;
                run(&job, &rows[t], (unit - rows[t].first_unit) * UNIT, &sums[unit]);
            }
        }
    }
    for (int64_t unit = 0; unit < units; unit++) {
        total->prior += sums[unit].prior, total->kinetic += sums[unit].kinetic;
        total->midpoint += sums[unit].midpoint, total->clamped += sums[unit].clamped;
    }
    if (sums != few)
        free(sums);
    return odd ? 2 : 0;
}
