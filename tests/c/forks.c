/* forks MIB CHILDREN PERCENT FREED: takes MIB of incompressible memory and forks CHILDREN, each of which rewrites
 * PERCENT of it; then frees FREED percent, prints "ready" and sleeps until its input ends. */
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static void noise(unsigned char *p, size_t n, uint64_t x)
{
	for (size_t i = 0; i < n; i += 8) {
		x ^= x << 13, x ^= x >> 7, x ^= x << 17;
		memcpy(p + i, &x, 8);
	}
}

int main(int argc, char **argv)
{
	if (argc != 5)
		return 2;
	size_t n = (size_t)atol(argv[1]) << 20;
	int children = atoi(argv[2]), up[2];
	size_t part = n / 100 * atol(argv[3]) & ~4095ul, freed = n / 100 * atol(argv[4]) & ~4095ul;
	unsigned char *b = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (b == MAP_FAILED || pipe(up))
		return perror("mmap or pipe"), 1;
	noise(b, n, 1);
	pid_t pids[16];
	for (int i = 0; i < children && i < 16; i++) {
		pids[i] = fork();
		if (pids[i] < 0)
			return perror("fork"), 1;
		if (pids[i] == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			noise(b, part, i + 7);
			if (write(up[1], "x", 1) != 1)
				return 1;
			for (;;)
				pause();
		}
	}
	char c;
	for (int i = 0; i < children; i++)
		if (read(up[0], &c, 1) != 1)
			return 1;
	if (freed && munmap(b + n - freed, freed))
		return perror("munmap"), 1;
	puts("ready");
	fflush(stdout);
	while (read(0, &c, 1) > 0)
		;
	for (int i = 0; i < children && i < 16; i++) {
		kill(pids[i], SIGKILL);
		waitpid(pids[i], NULL, 0);
	}
	return 0;
}
