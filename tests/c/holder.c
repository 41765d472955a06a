/* holder MIB EXPECTED [shared]: holds MIB of memory whose bytes are also written to the file EXPECTED, page by
 * page from a small buffer. Prints "ADDR BYTES", and then, until its input ends, one thread walks over all of it
 * while others sleep. At the end it checks all bytes itself and prints "right". */
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096 };

static volatile int over;
static unsigned char *base;
static size_t pages;

/* Pages of all kinds that are stored differently: zeros, one value, text, noise. */
static void fill(unsigned char *to, uint64_t page)
{
	uint64_t x = page * 0x9e3779b97f4a7c15u + 1;
	switch (page % 5) {
	case 0:
		memset(to, 0, PAGE);
		break;
	case 1:
		memset(to, (int)(page & 0x7f) | 1, PAGE);
		break;
	case 2:
		for (size_t i = 0; i < PAGE; i++)
			to[i] = "the quick brown fox "[(i + page) % 20];
		break;
	default:
		for (size_t i = 0; i < PAGE; i += 8) {
			x ^= x << 13, x ^= x >> 7, x ^= x << 17;
			memcpy(to + i, &x, 8);
		}
		break;
	}
}

static void *walk(void *unused)
{
	volatile unsigned sum = 0;
	while (!over)
		for (size_t p = 0; p < pages && !over; p++)
			sum += base[p * PAGE + p % PAGE];
	return unused;
}

static void *rest(void *unused)
{
	while (!over)
		usleep(10000);
	return unused;
}

int main(int argc, char **argv)
{
	if (argc < 3)
		return 2;
	pages = (size_t)atol(argv[1]) << 8;
	int kind = argc > 3 && !strcmp(argv[3], "shared") ? MAP_SHARED : MAP_PRIVATE;
	base = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, kind | MAP_ANONYMOUS, -1, 0);
	if (base == MAP_FAILED)
		return perror("mmap"), 1;
	unsigned char page[PAGE];
	FILE *expected = fopen(argv[2], "w");
	if (!expected)
		return perror(argv[2]), 1;
	for (size_t p = 0; p < pages; p++) {
		fill(base + p * PAGE, p);
		fill(page, p);
		if (fwrite(page, PAGE, 1, expected) != 1)
			return perror("fwrite"), 1;
	}
	fclose(expected);
	/* Read-only memory is dumped as well. */
	if (kind == MAP_PRIVATE && mprotect(base, PAGE * 64, PROT_READ))
		return perror("mprotect"), 1;
	pthread_t threads[3];
	for (int i = 0; i < 3; i++)
		if (pthread_create(&threads[i], NULL, i ? rest : walk, NULL))
			return 1;
	printf("%p %zu\n", (void *)base, pages * PAGE);
	fflush(stdout);
	char c;
	while (read(0, &c, 1) > 0)
		;
	over = 1;
	for (int i = 0; i < 3; i++)
		pthread_join(threads[i], NULL);
	for (size_t p = 0; p < pages; p++) {
		fill(page, p);
		if (memcmp(page, base + p * PAGE, PAGE))
			return printf("page %zu is wrong\n", p), 1;
	}
	puts("right");
	return 0;
}
