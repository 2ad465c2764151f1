/* Gaussian noise as philox.py and gaussian.py define it, bit for bit: Philox 4x32-10, then Box-Muller by power series.
 *
 * Every operation on floating-point numbers is one that IEEE 754 rounds correctly (+, ×, ÷, √, conversion), in the order of
 * gaussian.py, and must not be contracted into fused ones: compile with -ffp-contract=off and without -ffast-math. Then the
 * bits do not depend on the processor, and the compiler may vectorise as it likes. Loops run over BLOCKS counters at a time,
 * one word of each in an array, so that it can.
 */

#include <math.h>
#include <stdint.h>
#include <string.h>

#define BLOCKS 128

/* Which of several versions runs is chosen by the processor's features. Older compilers know fewer of them. */
#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GNUC__) && !defined(__clang__)
#if __GNUC__ >= 12
#define DISPATCH __attribute__((target_clones("default", "avx2", "arch=x86-64-v4")))
#else
#define DISPATCH __attribute__((target_clones("default", "avx2", "avx512f")))
#endif
#else
#define DISPATCH
#endif

/* Rows: the four words of each counter. */
#define PHILOX(words, seed)                                                                                            \
    do {                                                                                                               \
        uint32_t k0 = (uint32_t)(seed), k1 = (uint32_t)((seed) >> 32);                                                 \
        for (int round = 0; round < 10; round++, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u)                                 \
            for (int i = 0; i < BLOCKS; i++) {                                                                         \
                uint64_t p0 = (uint64_t)words[0][i] * 0xD2511F53u, p1 = (uint64_t)words[2][i] * 0xCD9E8D57u;           \
                uint32_t c1 = words[1][i], c3 = words[3][i];                                                           \
                words[0][i] = (uint32_t)(p1 >> 32) ^ c1 ^ k0;                                                          \
                words[1][i] = (uint32_t)p1;                                                                            \
                words[2][i] = (uint32_t)(p0 >> 32) ^ c3 ^ k1;                                                          \
                words[3][i] = (uint32_t)p0;                                                                            \
            }                                                                                                          \
    } while (0)

#define SERIES(total, x, coefficients)                                                                                 \
    do {                                                                                                               \
        total = coefficients[sizeof(coefficients) / sizeof(coefficients[0]) - 1];                                      \
        for (int k = (int)(sizeof(coefficients) / sizeof(coefficients[0])) - 2; k >= 0; k--)                           \
            total = total * x + coefficients[k];                                                                       \
    } while (0)

static const float ARTANH32[] = {1.0, 1.0 / 3, 1.0 / 5, 1.0 / 7, 1.0 / 9};
static const double ARTANH64[] = {1.0,      1.0 / 3,  1.0 / 5,  1.0 / 7,  1.0 / 9, 1.0 / 11,
                                  1.0 / 13, 1.0 / 15, 1.0 / 17, 1.0 / 19, 1.0 / 21};
#define COSINE 1.0, -1.0 / 2, 1.0 / 24, -1.0 / 720, 1.0 / 40320, -1.0 / 3628800
#define SINE 1.0, -1.0 / 6, 1.0 / 120, -1.0 / 5040, 1.0 / 362880, -1.0 / 39916800
static const float COSINE32[] = {COSINE}, SINE32[] = {SINE};
static const double COSINE64[] = {COSINE, 1.0 / 479001600, -1.0 / 87178291200, 1.0 / 20922789888000};
static const double SINE64[] = {SINE, 1.0 / 6227020800, -1.0 / 1307674368000, 1.0 / 355687428096000};

#define BOX_MULLER(name, real, integer, MANTISSA, ROOT_HALF, ARTANH, COS, SIN, root)                                   \
    static inline void name(uint32_t radius_word, uint32_t angle_word, real *first, real *second)                      \
    {                                                                                                                  \
        real uniform = ((real)radius_word + (real)0.5) * (real)0x1p-32, mantissa;                                      \
        integer bits;                                                                                                  \
        memcpy(&bits, &uniform, sizeof bits);                                                                          \
        bits -= ROOT_HALF;                                                                                             \
        integer exponent = bits >> MANTISSA;                                                                           \
        bits = (bits & (((integer)1 << MANTISSA) - 1)) + ROOT_HALF;                                                    \
        memcpy(&mantissa, &bits, sizeof mantissa);                                                                     \
        real ratio = (mantissa - 1) / (mantissa + 1), square = ratio * ratio, total;                                   \
        SERIES(total, square, ARTANH);                                                                                 \
        real logarithm = (real)exponent * (real)0.693147180559945309417 + total * ratio * 2;                           \
        real radius = root(logarithm * -2);                                                                            \
        uint32_t quarter = (uint32_t)(((uint64_t)angle_word + (1u << 29)) >> 30);                                      \
        int32_t rest = (int32_t)(angle_word - (quarter << 30));                                                        \
        real angle = ((real)rest + (real)0.5) * (real)(3.14159265358979323846 / 2147483648.0);                         \
        real angle_square = angle * angle, cosine, sine;                                                               \
        SERIES(cosine, angle_square, COS);                                                                             \
        SERIES(sine, angle_square, SIN);                                                                               \
        sine = sine * angle;                                                                                           \
        real a = quarter & 1 ? sine : cosine, b = quarter & 1 ? cosine : sine;                                         \
        a = (quarter + 1) & 2 ? -a : a;                                                                                \
        b = quarter & 2 ? -b : b;                                                                                      \
        *first = a * radius;                                                                                           \
        *second = b * radius;                                                                                          \
    }

BOX_MULLER(box_muller32, float, int32_t, 23, 0x3F3504F3, ARTANH32, COSINE32, SINE32, sqrtf)
BOX_MULLER(box_muller64, double, int64_t, 52, 0x3FE6A09E667F3BCD, ARTANH64, COSINE64, SINE64, sqrt)

/* Elements offset to offset + numel of a stream at a step. */
#define NORMAL(name, real, box_muller)                                                                                 \
    DISPATCH void name(uint64_t seed, uint32_t step, uint32_t stream, uint64_t offset, uint64_t numel, real *out)      \
    {                                                                                                                  \
        uint32_t words[4][BLOCKS];                                                                                     \
        real pairs[4][BLOCKS], numbers[4 * BLOCKS];                                                                    \
        for (uint64_t block = offset / 4; block * 4 < offset + numel; block += BLOCKS) {                               \
            for (int i = 0; i < BLOCKS; i++) {                                                                         \
                words[0][i] = (uint32_t)(block + i);                                                                   \
                words[1][i] = (uint32_t)((block + i) >> 32);                                                           \
                words[2][i] = step;                                                                                    \
                words[3][i] = stream;                                                                                  \
            }                                                                                                          \
            PHILOX(words, seed);                                                                                       \
            for (int i = 0; i < BLOCKS; i++)                                                                           \
                box_muller(words[0][i], words[1][i], &pairs[0][i], &pairs[1][i]);                                      \
            for (int i = 0; i < BLOCKS; i++)                                                                           \
                box_muller(words[2][i], words[3][i], &pairs[2][i], &pairs[3][i]);                                      \
            for (int i = 0; i < BLOCKS; i++)                                                                           \
                for (int k = 0; k < 4; k++)                                                                            \
                    numbers[4 * i + k] = pairs[k][i];                                                                  \
            uint64_t first = block * 4 < offset ? offset - block * 4 : 0;                                              \
            uint64_t last = offset + numel - block * 4;                                                                \
            if (last > 4 * BLOCKS)                                                                                     \
                last = 4 * BLOCKS;                                                                                     \
            memcpy(out + (block * 4 + first - offset), numbers + first, (last - first) * sizeof(real));                \
        }                                                                                                              \
    }

NORMAL(ctld_normal_float32, float, box_muller32)
NORMAL(ctld_normal_float64, double, box_muller64)
