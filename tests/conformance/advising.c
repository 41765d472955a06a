/* madvise, mincore, msync, brk; reservations, and memory that the kernel manages in the middle of canvas's. */
#include "conformance.h"

#include <sys/sysinfo.h>

static int mapped_at(char *p) {
    unsigned char there;
    return mincore(p, PAGE, &there) == 0;
}

CASE(madvise_length_overflows) { EXPECT_ERROR(madvise(pages(1), -1UL, MADV_DONTNEED), EINVAL); }
CASE(madvise_of_a_hole) { EXPECT_ERROR(madvise(hole(), PAGE, MADV_DONTNEED), ENOMEM); }
CASE(madvise_populate_write_of_read_only_memory) {
    char *p = absent(2);
    OK(mprotect(p, 2 * PAGE, PROT_READ));
    EXPECT_ERROR(madvise(p, 2 * PAGE, MADV_POPULATE_WRITE), EINVAL);
    OK(madvise(p, 2 * PAGE, MADV_POPULATE_READ));
    EXPECT(is_filled(p, 2 * PAGE));
}
CASE(madvise_populate_of_inaccessible_memory) {
    char *p = pages(1);
    OK(mprotect(p, PAGE, PROT_NONE));
    EXPECT_ERROR(madvise(p, PAGE, MADV_POPULATE_READ), EINVAL);
}
/* Advice that the kernel was built without is unknown for managed memory too. */
static void as_of_a_file(int advice) {
    int fd = OK(open("f", O_CREAT | O_RDWR, 0600));
    OK(ftruncate(fd, PAGE));
    char *file = OK((char *)mmap(NULL, PAGE, RW, MAP_PRIVATE, fd, 0));
    int known = madvise(file, 0, advice) == 0;
    EXPECT_EQ(madvise(pages(1), PAGE, advice) == 0, known);
}
CASE(madvise_hugepage_as_built) { as_of_a_file(MADV_HUGEPAGE); }
CASE(madvise_nohugepage_as_built) { as_of_a_file(MADV_NOHUGEPAGE); }
CASE(madvise_mergeable_as_built) { as_of_a_file(MADV_MERGEABLE); }
CASE(madvise_dump_advice) {
    char *p = absent(2);
    OK(madvise(p, PAGE, MADV_DONTDUMP));
    OK(madvise(p, PAGE, MADV_DODUMP));
    EXPECT(is_filled(p, 2 * PAGE));
}
CASE(dontfork_of_a_file_in_memory) {
    char *p = absent(3);
    int fd = OK(open("/proc/self/exe", O_RDONLY));
    OK(mmap(p + PAGE, PAGE, PROT_READ, MAP_PRIVATE | MAP_FIXED, fd, 0));
    OK(madvise(p + PAGE, PAGE, MADV_DONTFORK));
    for (int i = 0; i < 2; i++) {
        pid_t pid = CHILD({
            EXPECT(!mapped_at(p + PAGE));
            EXPECT(is_filled(p, PAGE));
            EXPECT(OK((char *)mmap(p + PAGE, PAGE, RW, PRIVATE | MAP_FIXED_NOREPLACE, -1, 0)) == p + PAGE);
            EXPECT_EQ(p[PAGE], 0);
        });
        EXPECT_EXIT(pid, 0);
    }
    EXPECT(!memcmp(p + PAGE, "\177ELF", 4));
    OK(madvise(p + PAGE, PAGE, MADV_DOFORK));
    pid_t pid = CHILD({ EXPECT(!memcmp(p + PAGE, "\177ELF", 4)); });
    EXPECT_EXIT(pid, 0);
}

CASE(mincore_length_overflows) {
    unsigned char there[4];
    EXPECT_ERROR(mincore(pages(1), -PAGE, there), ENOMEM);
}
CASE(mincore_up_to_a_hole) {
    unsigned char there[3] = {9, 9, 9};
    char *p = pages(3);
    p[0] = 1;
    OK(munmap(p + PAGE, PAGE));
    EXPECT_ERROR(mincore(p, 3 * PAGE, there), ENOMEM);
}
CASE(mincore_of_a_file_in_memory) {
    unsigned char there[3];
    char *p = pages(3);
    int fd = OK(open("f", O_CREAT | O_RDWR, 0600));
    EXPECT_EQ(write(fd, "x", 1), 1);
    OK(mmap(p + PAGE, PAGE, RW, MAP_SHARED | MAP_FIXED, fd, 0));
    p[0] = p[PAGE] = 1;
    OK(mincore(p, 3 * PAGE, there));
    EXPECT_EQ(there[0] & 1, 1);
    EXPECT_EQ(there[1] & 1, 1);
    EXPECT_EQ(there[2] & 1, 0);
}

CASE(msync_over_a_hole) {
    char *p = pages(3);
    OK(munmap(p + PAGE, PAGE));
    EXPECT_ERROR(msync(p, 3 * PAGE, MS_ASYNC), ENOMEM);
}

CASE(msync_of_a_file_in_memory) {
    char *p = absent(3), seen;
    int fd = OK(open("f", O_CREAT | O_RDWR, 0600));
    OK(ftruncate(fd, PAGE));
    OK(mmap(p + PAGE, PAGE, RW, MAP_SHARED | MAP_FIXED, fd, 0));
    p[PAGE] = 7;
    OK(msync(p, 3 * PAGE, MS_SYNC));
    EXPECT_EQ(pread(fd, &seen, 1, 0), 1);
    EXPECT_EQ(seen, 7);
    EXPECT(is_filled(p, PAGE));
}

CASE(mprotect_length_overflows) { EXPECT_ERROR(mprotect(pages(1), -PAGE, RW), ENOMEM); }
CASE(mprotect_refused_leaves_memory_as_it_is) {
    char *p = absent(4);
    EXPECT_ERROR(mprotect(p, 4 * PAGE, 0x40), EINVAL);
    away(p, 4 * PAGE);
    EXPECT(is_filled(p, 4 * PAGE));
}
CASE(mprotect_of_a_large_reservation) {
    char *p = OK((char *)mmap(NULL, 1UL << 42, PROT_NONE, PRIVATE | MAP_NORESERVE, -1, 0));
    OK(mprotect(p, 1UL << 42, RW));
    p[1UL << 41] = 1;
    EXPECT_EQ(p[(1UL << 41) + PAGE], 0);
}
CASE(mprotect_of_more_than_there_is) {
    FILE *f = fopen("/proc/sys/vm/overcommit_memory", "r");
    int mode = 1;
    if (!f || fscanf(f, "%d", &mode) != 1 || mode == 1)
        SKIP("vm.overcommit_memory is 1");
    char *p = OK((char *)mmap(NULL, 1UL << 42, PROT_NONE, PRIVATE, -1, 0));
    EXPECT_ERROR(mprotect(p, 1UL << 42, RW), ENOMEM);
}
CASE(malloc_of_more_than_there_is) {
    FILE *f = fopen("/proc/sys/vm/overcommit_memory", "r");
    int mode = 1;
    if (!f || fscanf(f, "%d", &mode) != 1 || mode == 1)
        SKIP("vm.overcommit_memory is 1");
    volatile size_t bytes = 1UL << 42;
    EXPECT(malloc(bytes) == NULL);
    EXPECT_EQ(errno, ENOMEM);
}
CASE(malloc_of_half_of_what_there_is) {
    struct sysinfo info;
    OK(sysinfo(&info));
    volatile size_t bytes = info.totalram * info.mem_unit / 2;
    char *p = malloc(bytes);
    EXPECT(p != NULL);
    p[bytes - 1] = 1;
}
CASE(reservation_of_nine_tib_is_used) {
    char *p = OK((char *)mmap(NULL, 9UL << 40, PROT_NONE, PRIVATE | MAP_NORESERVE, -1, 0));
    OK(mprotect(p + (5UL << 40), 4 * PAGE, RW));
    p[5UL << 40] = 7;
    EXPECT(OK((char *)mmap(p + (1UL << 40), PAGE, RW, PRIVATE | MAP_FIXED, -1, 0)) == p + (1UL << 40));
    p[1UL << 40] = 8;
    pid_t pid = CHILD({
        EXPECT_EQ(p[5UL << 40], 7);
        EXPECT_EQ(p[1UL << 40], 8);
    });
    EXPECT_EXIT(pid, 0);
    OK(munmap(p, 9UL << 40));
}
/* A program that needs a certain address unmaps memory placed elsewhere and asks again, as ZGC does. */
CASE(reservation_that_must_lie_at_its_hint) {
    size_t bytes = 1UL << 30;
    for (char *at = (char *)(4UL << 40); at < (char *)(16UL << 40); at += bytes) {
        char *p = OK((char *)mmap(at, bytes, PROT_NONE, PRIVATE | MAP_NORESERVE, -1, 0));
        if (p == at) {
            int fd = OK(open("f", O_CREAT | O_RDWR, 0600));
            OK(ftruncate(fd, PAGE));
            EXPECT(OK((char *)mmap(at, PAGE, RW, MAP_SHARED | MAP_FIXED, fd, 0)) == at);
            *at = 1;
            return;
        }
        OK(munmap(p, bytes));
    }
    FAIL("no hint was honoured");
}
CASE(reservation_with_a_drawn_hint_is_opened) {
    char *p = OK((char *)mmap((void *)0x1a1cade40000, 128 * PAGE, PROT_NONE, PRIVATE | MAP_NORESERVE, -1, 0));
    OK(munmap(p, PAGE));
    OK(mprotect(p + PAGE, 64 * PAGE, RW));
    fill(p + PAGE, 64 * PAGE);
    away(p + PAGE, 64 * PAGE);
    EXPECT(is_filled(p + PAGE, 64 * PAGE));
}

CASE(mremap_to_more_than_all_addresses) {
    EXPECT_ERROR(mremap(pages(1), PAGE, 1UL << 48, MREMAP_MAYMOVE), EINVAL);
}
CASE(mremap_dontunmap_of_another_size) {
    EXPECT_ERROR(mremap(pages(2), PAGE, 2 * PAGE, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL), EINVAL);
}
CASE(mremap_of_no_bytes_of_private_memory) {
    EXPECT_ERROR(mremap(pages(1), 0, PAGE, MREMAP_MAYMOVE), EINVAL);
}
CASE(mremap_to_a_far_away_place) {
    char *p = absent(4), *to = (char *)(3UL << 40);
    EXPECT(OK((char *)mremap(p, 4 * PAGE, 4 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to)) == to);
    EXPECT(is_filled(to, 4 * PAGE));
    EXPECT(!mapped_at(p));
    pid_t pid = CHILD({ EXPECT(is_filled(to, 4 * PAGE)); });
    EXPECT_EXIT(pid, 0);
    OK(munmap(to, 4 * PAGE));
}
CASE(brk_past_the_limit_stays) {
    char *now = sbrk(0);
    struct rlimit r = {1 << 20, RLIM_INFINITY};
    OK(setrlimit(RLIMIT_DATA, &r));
    EXPECT_ERROR((long)sbrk(64 << 20), ENOMEM);
    EXPECT(sbrk(0) == now);
}
