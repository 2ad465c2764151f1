/* The generator's words as raw bytes on standard output, without end, for programs that test generators (dieharder.py).
 *
 *     words run|steps|biased seed
 *
 * "run" is the order of a training run: at each step a page of each of six streams. "steps" holds the element and counts
 * steps: what one element gets in the course of a run, for one element after the other. "biased" is "run" with the lowest
 * bit of one word in sixteen set: a test that does not see it is no test.
 */

#include "../src/ctld/stepping/kernels.c"

#include <stdio.h>

#define BLOCKS 1024

int main(int count, char **argument)
{
    if (count != 3)
        return 2;
    const int by_steps = !strcmp(argument[1], "steps"), biased = !strcmp(argument[1], "biased");
    const uint64_t seed = strtoull(argument[2], NULL, 10);
    static uint32_t page[4 * BLOCKS];
    Keys keys;
    expand(&keys, (const uint32_t[4]){(uint32_t)seed, (uint32_t)(seed >> 32), 0, 0}, 7);
    for (uint32_t outer = 0;; outer++)
        for (uint32_t stream = 2; stream < 8; stream++) {
            if (by_steps)
                for (uint32_t step = 0; step < BLOCKS; step++)
                    words_software(page + 4 * step, 1, &keys, outer, step, stream);
            else
                words_software(page, BLOCKS, &keys, 0, outer, stream);
            for (int i = 0; biased && i < 4 * BLOCKS; i += 16)
                page[i] |= 1;
            if (fwrite(page, sizeof page, 1, stdout) != 1)
                return 0; /* no one reads any more */
        }
}
