/* Random words by three counter-based generators, as fast as each can be written with AVX-512: what the choice rests on.
 *
 * Each function fills the first cache over and over: nothing but the generator is timed. Philox keeps a word in the low half of
 * each 64-bit lane, where the multiplier wants it, and ARS has one AES round for four blocks in one instruction. */

#include <immintrin.h>
#include <stdint.h>

#define TARGET __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,vaes,prefer-vector-width=512")))
#define WORDS 1024

static uint32_t buffer[WORDS] __attribute__((aligned(64)));

TARGET static inline __attribute__((always_inline)) void philox(int rounds, int64_t repeats)
{
    const __m512i m0 = _mm512_set1_epi64(0xD2511F53), m1 = _mm512_set1_epi64(0xCD9E8D57);
    const __m512i lanes = _mm512_set_epi64(14, 12, 10, 8, 6, 4, 2, 0);
    for (int64_t repeat = 0; repeat < repeats; repeat++)
        for (int64_t block = 0; block < WORDS / 4; block += 16) {
            __m512i c[2][4];
            uint32_t k0 = 2017, k1 = 1;
            for (int h = 0; h < 2; h++) {
                c[h][0] = _mm512_add_epi64(lanes, _mm512_set1_epi64(block + h + (repeat << 20)));
                c[h][1] = _mm512_srli_epi64(c[h][0], 32);
                c[h][2] = _mm512_set1_epi64(12), c[h][3] = _mm512_set1_epi64(4);
            }
#pragma GCC unroll 10
            for (int r = 0; r < rounds; r++, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u)
                for (int h = 0; h < 2; h++) {
                    __m512i p = _mm512_mul_epu32(c[h][0], m0), q = _mm512_mul_epu32(c[h][2], m1);
                    c[h][0] = _mm512_ternarylogic_epi64(_mm512_srli_epi64(q, 32), c[h][1], _mm512_set1_epi64(k0), 0x96);
                    c[h][2] = _mm512_ternarylogic_epi64(_mm512_srli_epi64(p, 32), c[h][3], _mm512_set1_epi64(k1), 0x96);
                    c[h][1] = q, c[h][3] = p;
                }
            for (int k = 0; k < 4; k++)
                _mm512_store_si512(buffer + 4 * block + 16 * k,
                                   _mm512_mask_blend_epi32(0xAAAA, c[0][k], _mm512_slli_epi64(c[1][k], 32)));
            __asm__ volatile("" ::: "memory");
        }
}

TARGET void philox_7(int64_t repeats) { philox(7, repeats); }
TARGET void philox_10(int64_t repeats) { philox(10, repeats); }

TARGET void ars_7(int64_t repeats)
{
    __m512i key[8];
    for (int r = 0; r < 8; r++)
        key[r] = _mm512_set1_epi64(2017 + r * 0x9E3779B97F4A7C15);
    const __m512i lanes = _mm512_set_epi64(0, 3, 0, 2, 0, 1, 0, 0);
    for (int64_t repeat = 0; repeat < repeats; repeat++)
        for (int64_t block = 0; block < WORDS / 4; block += 16) {
            __m512i x[4];
            for (int i = 0; i < 4; i++) {
                __m512i counter = _mm512_mask_blend_epi64(0xAA, _mm512_set1_epi64(block + 4 * i + (repeat << 20)), key[7]);
                x[i] = _mm512_xor_si512(_mm512_add_epi64(counter, lanes), key[0]);
            }
#pragma GCC unroll 8
            for (int r = 1; r < 7; r++)
                for (int i = 0; i < 4; i++)
                    x[i] = _mm512_aesenc_epi128(x[i], key[r]);
            for (int i = 0; i < 4; i++)
                _mm512_store_si512(buffer + 4 * block + 16 * i, _mm512_aesenclast_epi128(x[i], key[7]));
            __asm__ volatile("" ::: "memory");
        }
}

int64_t supported(void)
{
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("vaes");
}
