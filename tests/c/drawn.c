/* Memory at random addresses that the program chooses, as runtimes and allocators do: reserved there, opened by
 * mprotect or by a mapping over a part of it, or mapped there at once. Fills and checks all of it.
 *
 * usage: drawn
 *
 * Prints "drawn right".
 */
#include "common.h"

enum { PIECE_PAGES = 1024, WAYS = 3 };
#define PIECE ((size_t)PIECE_PAGES * PAGE)
#define FLAGS (MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE)

static const uintptr_t HINTS[] = {
    2UL << 40, 0x0a1cade40000, 0x1a1cade40000, 30UL << 40, 0x4d5e12340000, 0x57ff00000000, 0x6fff12340000,
};
enum { HINTS_COUNT = sizeof HINTS / sizeof *HINTS };

static char *opened(uintptr_t hint, int way) {
    const int rw = PROT_READ | PROT_WRITE;
    char *p = mmap((void *)hint, 4 * PIECE, way == 2 ? rw : PROT_NONE, FLAGS, -1, 0);
    CHECK(p != MAP_FAILED, "mmap at %lx: %s", hint, strerror(errno));
    char *piece = p + PIECE;
    CHECK(munmap(p, PIECE) == 0, "munmap: %s", strerror(errno));
    if (way == 0)
        CHECK(mprotect(piece, PIECE, rw) == 0, "mprotect: %s", strerror(errno));
    if (way == 1)
        CHECK(mmap(piece, PIECE, rw, FLAGS | MAP_FIXED, -1, 0) == piece, "mmap: %s", strerror(errno));
    return piece;
}

int main(void) {
    char *pieces[HINTS_COUNT * WAYS];
    for (int i = 0; i < HINTS_COUNT * WAYS; i++) {
        pieces[i] = opened(HINTS[i / WAYS] + ((uintptr_t)(i % WAYS) << 32), i % WAYS);
        for (size_t page = 0; page < PIECE_PAGES; page++)
            pattern_fill((uint64_t *)(pieces[i] + page * PAGE), i * PIECE_PAGES + page + 1);
    }
    for (int i = 0; i < HINTS_COUNT * WAYS; i++)
        for (size_t page = 0; page < PIECE_PAGES; page++) {
            int at = pattern_check((uint64_t *)(pieces[i] + page * PAGE), i * PIECE_PAGES + page + 1);
            CHECK(at < 0, "page %zu of piece %d is wrong at word %d", page, i, at);
        }
    puts("drawn right");
    return 0;
}
