/* grower MIB SEED: takes incompressible memory, 256 KiB at a time, until it has MIB or is refused more; prints
 * "grown BYTES", waits for the end of its input, then checks every byte and prints "right". */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { CHUNK = 256 << 10, WORDS = CHUNK / 8 };

static uint64_t next(uint64_t x)
{
	return x ^= x << 13, x ^= x >> 7, x ^= x << 17;
}

int main(int argc, char **argv)
{
	if (argc != 3)
		return 2;
	size_t most = (size_t)atol(argv[1]) * 4, n = 0;
	uint64_t seed = (uint64_t)atol(argv[2]) * 0x9e3779b97f4a7c15u + 1, x = seed;
	uint64_t **chunks = calloc(most, sizeof *chunks);
	if (!chunks)
		return perror("calloc"), 1;
	for (; n < most; n++) {
		uint64_t *c = mmap(NULL, CHUNK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (c == MAP_FAILED)
			break;
		for (size_t i = 0; i < WORDS; i++)
			c[i] = x = next(x);
		chunks[n] = c;
	}
	printf("grown %zu\n", n * CHUNK);
	fflush(stdout);
	char byte;
	while (read(0, &byte, 1) > 0)
		;
	x = seed;
	for (size_t k = 0; k < n; k++)
		for (size_t i = 0; i < WORDS; i++)
			if (chunks[k][i] != (x = next(x)))
				return printf("chunk %zu is wrong\n", k), 1;
	puts("right");
	return 0;
}
