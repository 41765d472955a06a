/* Writes that are made to be taken for no writes.
 *
 * usage: crafted private|shared MIB
 *
 * A pager that tells changed pages from unchanged ones by a hash of their bytes loses a write when two
 * contents have one hash. Here both contents are made for that: for XXH3, whose secret is public, as it is used
 * without a seed. Of each 8 bytes at offset 64k, XXH3 multiplies the halves, after XOR with 8 bytes of the
 * secret, and adds the product to one sum and the 8 bytes to another; 1 KiB goes into the sums like this.
 *
 *   even pages: the low halves of two words are those of the secret. Both products are zero, and what is
 *               added to one high half and taken from the other changes nothing.
 *   odd pages:  a balance of somebody else changes by a known amount. Four words of the page's other owner
 *               change beside it, so that both sums stay what they were.
 *
 * All pages are written, read twice in order (each goes out and comes back, unchanged), changed, and read
 * again: every page must be the changed one. With `shared` the pages are shared with a child, which makes the
 * changes that are meant to hide those of its parent.
 */
#include "common.h"

/* Words of the secret besides the first word of each stripe (XXH3_kSecret, at 8k). */
static const uint64_t secret[] = {
    0xbe4ba423396cfeb8ULL, 0x1cad21f72c81017cULL, 0xdb979083e96dd4deULL, 0x1f67b3b7a4a44072ULL,
    0x78e5c0cc4ee679cbULL, 0x2172ffcc7dd05a82ULL, 0x8e2443f7744608b8ULL,
};
#define STRIPE (64 / 8)
#define LOW(w) ((uint32_t)(w))
#define HIGH(w) ((uint32_t)((w) >> 32))
#define JOIN(high, low) ((uint64_t)(high) << 32 | (uint32_t)(low))

enum { BALANCE = 0, FORGED = STRIPE, PAIR = 5 * STRIPE };
/* The words that an odd page's other owner writes. */
#define FORGED_WORDS 4
/* Pages that are changed together. */
#define BATCH 16

struct content {
    uint64_t balance, forged[FORGED_WORDS], pair[2];
};

static uint64_t product(unsigned stripe, uint64_t word) {
    uint64_t keyed = word ^ secret[stripe];
    return (uint64_t)LOW(keyed) * HIGH(keyed);
}

/* Contents of page `p` before and after. */
static void contents(size_t p, struct content *before, struct content *after) {
    uint64_t amount = mix64(p) % 1000000;
    *before = *after = (struct content){.balance = amount};
    uint32_t moved = (uint32_t)mix64(p + 1) | 1;
    before->pair[0] = JOIN(mix64(p + 2), secret[5]);
    before->pair[1] = JOIN(mix64(p + 3), secret[6]);
    after->pair[0] = JOIN(HIGH(before->pair[0]) + moved, secret[5]);
    after->pair[1] = JOIN(HIGH(before->pair[1]) - moved, secret[6]);
    if (p % 2 == 0) {
        memcpy(after->forged, before->forged, sizeof after->forged);
        return;
    }
    memcpy(after->pair, before->pair, sizeof after->pair);
    after->balance = amount + 1 + mix64(p + 4) % 1000000;
    /* Subtracted from the sum of products, as two words of 2^31 * high and one of 1 * low. */
    uint64_t products = product(0, before->balance) - product(0, after->balance);
    uint32_t x[3] = {1, 1u << 31, 1u << 31}, y[3] = {LOW(products), HIGH(products), HIGH(products)};
    uint64_t sum = before->balance - after->balance;
    for (unsigned i = 0; i < 3; i++) {
        before->forged[i] = secret[i + 1];
        after->forged[i] = secret[i + 1] ^ JOIN(y[i], x[i]);
        sum -= after->forged[i] - before->forged[i];
    }
    /* Both products are zero: of the high half before, of the low half after. */
    before->forged[3] = JOIN(HIGH(secret[4]), LOW(secret[4]) - LOW(sum));
    after->forged[3] = before->forged[3] + sum;
}

static void write_forged(volatile uint64_t *page, const struct content *c) {
    for (unsigned i = 0; i < FORGED_WORDS; i++)
        page[FORGED + i * STRIPE] = c->forged[i];
}

static void write_own(volatile uint64_t *page, const struct content *c) {
    page[BALANCE] = c->balance;
    page[PAIR] = c->pair[0];
    page[PAIR + STRIPE] = c->pair[1];
}

static void change_forged(volatile uint64_t *pages, size_t from, size_t count) {
    struct content before, after;
    for (size_t p = from; p < count && p < from + BATCH; p++) {
        contents(p, &before, &after);
        write_forged(pages + p * WORDS, &after);
    }
}

static int holds(const volatile uint64_t *page, const struct content *c) {
    int same = page[BALANCE] == c->balance && page[PAIR] == c->pair[0] && page[PAIR + STRIPE] == c->pair[1];
    for (unsigned i = 0; i < FORGED_WORDS; i++)
        same &= page[FORGED + i * STRIPE] == c->forged[i];
    return same;
}

int main(int argc, char **argv) {
    CHECK(argc == 3, "usage: crafted private|shared MIB");
    int is_shared = strcmp(argv[1], "shared") == 0;
    size_t count = strtoul(argv[2], NULL, 10) << 8;
    volatile uint64_t *pages = mmap(NULL, count * PAGE, PROT_READ | PROT_WRITE,
                                    (is_shared ? MAP_SHARED : MAP_PRIVATE) | MAP_ANONYMOUS, -1, 0);
    CHECK(pages != MAP_FAILED, "mmap: %s", strerror(errno));
    int go[2], done[2];
    CHECK(pipe(go) == 0 && pipe(done) == 0, "pipe: %s", strerror(errno));
    struct content before, after;
    pid_t child = is_shared ? fork() : 0;
    CHECK(child >= 0, "fork: %s", strerror(errno));
    if (is_shared && child == 0) {
        close(go[1]);
        for (size_t from; read(go[0], &from, sizeof from) == sizeof from;) {
            change_forged(pages, from, count);
            CHECK(write(done[1], "d", 1) == 1, "write: %s", strerror(errno));
        }
        _exit(0);
    }
    for (size_t p = 0; p < count; p++) {
        contents(p, &before, &after);
        pattern_fill(pages + p * WORDS, p << 3);
        write_own(pages + p * WORDS, &before);
        write_forged(pages + p * WORDS, &before);
    }
    for (int pass = 0; pass < 2; pass++)
        for (size_t p = 0; p < count; p++) {
            contents(p, &before, &after);
            CHECK(holds(pages + p * WORDS, &before), "page %zu is wrong before it was changed", p);
        }
    /* A few pages at a time, since none may be evicted between the two changes. */
    for (size_t from = 0; from < count; from += BATCH) {
        for (size_t p = from; p < count && p < from + BATCH; p++) {
            contents(p, &before, &after);
            write_own(pages + p * WORDS, &after);
        }
        char one;
        if (!is_shared)
            change_forged(pages, from, count);
        else
            CHECK(write(go[1], &from, sizeof from) == sizeof from && read(done[0], &one, 1) == 1,
                  "the child does not answer: %s", strerror(errno));
    }
    size_t lost[2] = {0, 0};
    for (size_t p = 0; p < count; p++) {
        contents(p, &before, &after);
        if (!holds(pages + p * WORDS, &after))
            lost[p % 2]++;
    }
    if (is_shared) {
        int status;
        close(go[1]);
        CHECK(waitpid(child, &status, 0) == child && status == 0, "the child ended with %d", status);
    }
    printf("crafted: %zu pages, lost writes of one's own %zu, beside a neighbour %zu\n", count, lost[0], lost[1]);
    return lost[0] + lost[1] > 0;
}
