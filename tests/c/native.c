/* Memory that canvas does not page: 4 MiB of .data and 5 MiB of .bss that are filled and then stay cold, while the
 * program works on memory that canvas pages.
 *
 * usage: native MIB END
 *
 * Prints "ready", reads MIB of memory at random until the file END exists, and then checks every byte, in a child
 * and by itself. The last MiB of the .bss is locked, if the program may lock it, and must stay resident.
 */
#include "common.h"

enum { DATA_PAGES = 1024, BSS_PAGES = 1024, LOCKED_PAGES = 256 };

static uint64_t data[DATA_PAGES * WORDS] __attribute__((aligned(4096))) = {1};
static uint64_t bss[BSS_PAGES * WORDS] __attribute__((aligned(4096)));
static uint64_t locked[LOCKED_PAGES * WORDS] __attribute__((aligned(4096)));

static void each(void (*f)(uint64_t *page, uint64_t tag)) {
    for (size_t i = 0; i < DATA_PAGES; i++)
        f(data + i * WORDS, i + 1);
    for (size_t i = 0; i < BSS_PAGES; i++)
        f(bss + i * WORDS, i + 5001);
    for (size_t i = 0; i < LOCKED_PAGES; i++)
        f(locked + i * WORDS, i + 9001);
}

static void fill(uint64_t *page, uint64_t tag) {
    pattern_fill(page, tag);
}

static void look(uint64_t *page, uint64_t tag) {
    int at = pattern_check(page, tag);
    CHECK(at < 0, "page %lu of native memory is wrong at word %d", (unsigned long)tag, at);
}

int main(int argc, char **argv) {
    CHECK(argc == 3, "usage: native MIB END");
    size_t pages = strtoul(argv[1], NULL, 10) * 256;
    each(fill);
    int is_locked = mlock(locked, sizeof locked) == 0;
    uint64_t *p = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(p != MAP_FAILED, "mmap: %s", strerror(errno));
    for (size_t i = 0; i < pages; i++)
        pattern_fill(p + i * WORDS, i + 20001);
    printf("ready %s\n", is_locked ? "locked" : "not locked");
    fflush(stdout);
    struct stat st;
    uint64_t x = 1;
    while (stat(argv[2], &st) != 0)
        for (int i = 0; i < 2000; i++) {
            x = mix64(x);
            size_t page = x % pages;
            unsigned word = (unsigned)(x >> 40) % WORDS;
            CHECK(p[page * WORDS + word] == pattern_word(page + 20001, word), "page %zu", page);
        }
    if (is_locked) {
        unsigned char there[LOCKED_PAGES];
        CHECK(mincore(locked, sizeof locked, there) == 0, "mincore: %s", strerror(errno));
        for (int i = 0; i < LOCKED_PAGES; i++)
            CHECK(there[i] & 1, "locked page %d is not there", i);
    }
    pid_t child = fork();
    CHECK(child >= 0, "fork: %s", strerror(errno));
    if (child == 0) {
        each(look);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0, "the child: %x", (unsigned)status);
    each(look);
    for (size_t i = 0; i < pages; i++)
        CHECK(pattern_check(p + i * WORDS, i + 20001) < 0, "page %zu", i);
    puts("native right");
    return 0;
}
