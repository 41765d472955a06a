/* Memory on a host that does not overcommit: written memory is kept, freed memory can be used again, and too much
 * is refused with ENOMEM. "overcommit MIB": the amount to write. */
#include "common.h"

#define MIB (1ul << 20)

static void *map(size_t bytes) {
    return mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

/* Contents of word `i`: pages differ, and compress. */
static unsigned long word(size_t i, unsigned long salt) {
    return (i / 512 * 0x9e3779b97f4a7c15ul ^ salt) >> i % 8;
}

static void fill(unsigned long *at, size_t bytes, unsigned long salt) {
    for (size_t i = 0; i < bytes / 8; i++)
        at[i] = word(i, salt);
}

static void compare(const unsigned long *at, size_t bytes, unsigned long salt) {
    for (size_t i = 0; i < bytes / 8; i++)
        CHECK(at[i] == word(i, salt), "word %zu is wrong", i);
}

static unsigned long free_to_commit(void) {
    unsigned long limit = 0, committed = 0;
    char line[128];
    FILE *f = fopen("/proc/meminfo", "r");
    CHECK(f != NULL, "/proc/meminfo");
    while (fgets(line, sizeof line, f)) {
        sscanf(line, "CommitLimit: %lu", &limit);
        sscanf(line, "Committed_AS: %lu", &committed);
    }
    fclose(f);
    CHECK(limit > committed, "%lu KiB of %lu are committed", committed, limit);
    return (limit - committed) << 10;
}

int main(int argc, char **argv) {
    size_t bytes = atoi(argv[1]) * MIB;
    CHECK(argc == 2 && bytes > 0, "usage");
    unsigned long *held = map(bytes);
    CHECK(held != MAP_FAILED, "mmap");
    fill(held, bytes, 1);
    pid_t child = fork();
    CHECK(child >= 0, "fork");
    if (child == 0) {
        compare(held, bytes, 1);
        fill(held, bytes, 2);
        compare(held, bytes, 2);
        _exit(0);
    }
    compare(held, bytes, 1);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0, "the child ended with %d", status);

    /* Eight times a third of the available memory, one after the other. */
    size_t third = free_to_commit() / 3 / PAGE * PAGE;
    for (int i = 0; i < 8; i++) {
        char *some = map(third);
        CHECK(some != MAP_FAILED, "mapping %d of %zu bytes", i, third);
        some[third / 2] = 1;
        CHECK(munmap(some, third) == 0, "munmap");
    }

    /* At the limit a mapping is refused, and all granted memory can be used. */
    size_t step = 16 * MIB, given = 0;
    char *last[1024];
    while (given < 1024 && (last[given] = map(step)) != MAP_FAILED)
        last[given++][step - 1] = 7;
    CHECK(given < 1024 && errno == ENOMEM, "%zu times 16 MiB", given);
    CHECK(malloc(step) == NULL && errno == ENOMEM, "malloc");
    for (size_t i = 0; i < given; i++)
        CHECK(last[i][step - 1] == 7 && munmap(last[i], step) == 0, "mapping %zu", i);
    compare(held, bytes, 1);
    printf("right, %zu of 16 MiB\n", given);
    return 0;
}
