/* A library that behaves like an allocator such as jemalloc: its constructor, which runs before the program's own
 * code, maps 16 MiB and fills them with noise; its destructor checks every byte and prints "right". Loaded into a
 * program with LD_PRELOAD. */
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>

enum { WORDS = (16 << 20) / 8 };

static uint64_t *memory;

static uint64_t noise(uint64_t i)
{
	uint64_t x = i * 0x9e3779b97f4a7c15u + 1;
	x ^= x << 13, x ^= x >> 7, x ^= x << 17;
	return x;
}

__attribute__((constructor)) static void begin(void)
{
	memory = mmap(NULL, WORDS * 8, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	for (uint64_t i = 0; memory != MAP_FAILED && i < WORDS; i++)
		memory[i] = noise(i);
}

__attribute__((destructor)) static void end(void)
{
	uint64_t wrong = 0;
	for (uint64_t i = 0; memory != MAP_FAILED && i < WORDS; i++)
		wrong += memory[i] != noise(i);
	if (memory == MAP_FAILED || wrong)
		printf("%llu words of the library are wrong\n", (unsigned long long)wrong);
	else
		printf("right\n");
	fflush(stdout);
}
