/* mlock, mlock2, munlock, mlockall, MAP_LOCKED: of mlock(2) and its neighbours. */
#include "conformance.h"

/* A field of /proc/self/status, in KiB. */
static long status_kib(const char *field) {
    FILE *f = OK(fopen("/proc/self/status", "r"));
    char line[256];
    long found = -1;
    while (found < 0 && fgets(line, sizeof line, f))
        if (!strncmp(line, field, strlen(field)) && line[strlen(field)] == ':')
            found = atol(line + strlen(field) + 1);
    fclose(f);
    return found;
}
#define LOCKED_KIB() status_kib("VmLck")

static int resident(char *p, size_t count) {
    unsigned char there[4096];
    OK(mincore(p, count * PAGE, there));
    int n = 0;
    for (size_t i = 0; i < count; i++)
        n += there[i] & 1;
    return n;
}
static void limit_to(size_t bytes) {
    struct rlimit r = {bytes, bytes};
    OK(setrlimit(RLIMIT_MEMLOCK, &r));
}

ROOT_CASE(mlock_of_ten_mib) {
    char *p = pages(2560);
    fill(p, 2560 * PAGE);
    OK(mlock(p, 2560 * PAGE));
    EXPECT_EQ(resident(p, 2560), 2560);
    EXPECT(LOCKED_KIB() >= 10240);
    EXPECT(is_filled(p, 2560 * PAGE));
    OK(munlock(p, 2560 * PAGE));
    EXPECT_EQ(LOCKED_KIB(), 0);
}
CASE(mlock_is_seen_and_counted) {
    char *p = absent(16);
    OK(mlock(p, 16 * PAGE));
    EXPECT_EQ(LOCKED_KIB(), 64);
    OK(mlock(p + PAGE, PAGE));
    EXPECT_EQ(LOCKED_KIB(), 64);
    OK(munlock(p, 4 * PAGE));
    EXPECT_EQ(LOCKED_KIB(), 48);
    OK(munmap(p, 16 * PAGE));
    EXPECT_EQ(LOCKED_KIB(), 0);
}
CASE(mlock_of_an_odd_range) {
    char *p = pages(4);
    OK(mlock(p + PAGE - 1, 2));
    EXPECT_EQ(LOCKED_KIB(), 8);
}
CASE(mlock_up_to_a_hole) {
    char *p = pages(3);
    OK(munmap(p + PAGE, PAGE));
    EXPECT_ERROR(mlock(p, 3 * PAGE), ENOMEM);
    EXPECT_EQ(LOCKED_KIB(), 4);
}
CASE(mlock_of_a_file_in_memory) {
    char *p = absent(3);
    int fd = OK(open("/proc/self/exe", O_RDONLY));
    OK(mmap(p + PAGE, PAGE, PROT_READ, MAP_PRIVATE | MAP_FIXED, fd, 0));
    OK(mlock(p, 3 * PAGE));
    EXPECT_EQ(LOCKED_KIB(), 12);
    OK(munlock(p, 3 * PAGE));
}
USER_CASE(mlock_past_the_limit) {
    limit_to(16 * PAGE);
    char *p = pages(64);
    EXPECT_ERROR(mlock(p, 17 * PAGE), ENOMEM);
    OK(mlock(p, 10 * PAGE));
    EXPECT_ERROR(mlock(p + 20 * PAGE, 7 * PAGE), ENOMEM);
    OK(mlock(p + 20 * PAGE, 6 * PAGE));
    EXPECT_EQ(LOCKED_KIB(), 64);
}
USER_CASE(mlockall_with_a_limit_of_none) {
    limit_to(0);
    EXPECT_ERROR(mlockall(MCL_FUTURE), EPERM);
}
USER_CASE(map_locked_past_the_limit) {
    limit_to(4 * PAGE);
    EXPECT_ERROR(mmap(NULL, 8 * PAGE, RW, PRIVATE | MAP_LOCKED, -1, 0), EAGAIN);
    OK(mmap(NULL, 4 * PAGE, RW, PRIVATE | MAP_LOCKED, -1, 0));
}
USER_CASE(mremap_of_locked_memory_past_the_limit) {
    limit_to(4 * PAGE);
    char *p = pages(4);
    OK(mlock(p, 4 * PAGE));
    EXPECT_ERROR(mremap(p, 4 * PAGE, 8 * PAGE, MREMAP_MAYMOVE), EAGAIN);
}
CASE(mlock2_on_fault_fills_nothing) {
    char *p = pages(16);
    OK(mlock2(p, 16 * PAGE, MLOCK_ONFAULT));
    EXPECT_EQ(LOCKED_KIB(), 64);
    EXPECT_EQ(resident(p, 16), 0);
    p[3 * PAGE] = 1;
    EXPECT_EQ(resident(p, 16), 1);
}
CASE(mlock2_on_fault_keeps_what_is_touched) {
    char *p = pages(16);
    OK(mlock2(p, 16 * PAGE, MLOCK_ONFAULT));
    fill(p, 16 * PAGE);
    for (int i = 0; i < 20; i++) {
        OK(munmap(pages(256), 256 * PAGE));
        char *q = pages(512);
        fill(q, 512 * PAGE);
    }
    EXPECT_EQ(resident(p, 16), 16);
    EXPECT(is_filled(p, 16 * PAGE));
}
CASE(locked_memory_is_not_dropped) {
    char *p = absent(4);
    OK(mlock(p, 4 * PAGE));
    EXPECT_ERROR(madvise(p, 4 * PAGE, MADV_DONTNEED), EINVAL);
    EXPECT_ERROR(madvise(p, 4 * PAGE, MADV_FREE), EINVAL);
    EXPECT_ERROR(madvise(p, 4 * PAGE, MADV_PAGEOUT), EINVAL);
    EXPECT_ERROR(madvise(p, 4 * PAGE, MADV_COLD), EINVAL);
    EXPECT(is_filled(p, 4 * PAGE));
    EXPECT_EQ(resident(p, 4), 4);
}
CASE(dontneed_locked_drops_locked_memory) {
    char *p = absent(4);
    OK(mlock(p, 4 * PAGE));
    NEEDS(madvise(p, 4 * PAGE, 24));
    EXPECT_EQ(p[PAGE], 0);
    EXPECT_EQ(LOCKED_KIB(), 16);
}
CASE(locked_memory_is_moved) {
    char *p = absent(4), *q = pages(8);
    OK(mlock(p, 4 * PAGE));
    EXPECT(OK((char *)mremap(p, 4 * PAGE, 4 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, q)) == q);
    EXPECT_EQ(LOCKED_KIB(), 16);
    EXPECT(is_filled(q, 4 * PAGE));
}
CASE(locks_are_not_inherited) {
    char *p = absent(4);
    OK(mlock(p, 4 * PAGE));
    pid_t pid = CHILD({
        EXPECT_EQ(LOCKED_KIB(), 0);
        OK(madvise(p, 4 * PAGE, MADV_PAGEOUT));
        OK(madvise(p, 4 * PAGE, MADV_DONTNEED));
        EXPECT_EQ(p[0], 0);
    });
    EXPECT_EXIT(pid, 0);
    EXPECT(is_filled(p, 4 * PAGE));
}
CASE(mlockall_wrong_flags) {
    EXPECT_ERROR(mlockall(0), EINVAL);
    EXPECT_ERROR(mlockall(8), EINVAL);
    EXPECT_ERROR(mlockall(MCL_ONFAULT), EINVAL);
}
ROOT_CASE(mlockall_current) {
    char *p = absent(16);
    OK(mlockall(MCL_CURRENT));
    EXPECT(LOCKED_KIB() >= 64);
    EXPECT_EQ(resident(p, 16), 16);
    EXPECT_ERROR(madvise(p, PAGE, MADV_DONTNEED), EINVAL);
    OK(munlockall());
    EXPECT_EQ(LOCKED_KIB(), 0);
    OK(madvise(p, PAGE, MADV_DONTNEED));
}
/* Later mappings, anonymous and of a file, are locked, and `there` of 16 pages are resident at once. */
static void locks_what_is_mapped_later(int flags, int there) {
    OK(mlockall(flags));
    long before = LOCKED_KIB();
    char *p = OK((char *)mmap(NULL, 16 * PAGE, RW, PRIVATE, -1, 0));
    EXPECT_EQ(LOCKED_KIB() - before, 64);
    EXPECT_EQ(resident(p, 16), there);
    int fd = OK(open("/proc/self/exe", O_RDONLY));
    OK(mmap(NULL, 4 * PAGE, PROT_READ, MAP_PRIVATE, fd, 0));
    EXPECT_EQ(LOCKED_KIB() - before, 80);
}
ROOT_CASE(mlockall_future) {
    locks_what_is_mapped_later(MCL_FUTURE, 16);
    OK(munlockall());
    EXPECT_EQ(LOCKED_KIB(), 0);
    pages(16);
    EXPECT_EQ(LOCKED_KIB(), 0);
}
ROOT_CASE(mlockall_future_on_fault) {
    locks_what_is_mapped_later(MCL_FUTURE | MCL_ONFAULT, 0);
}
USER_CASE(mlockall_future_past_the_limit) {
    limit_to(8 * PAGE);
    OK(mlockall(MCL_FUTURE));
    EXPECT_ERROR(mmap(NULL, 64 * PAGE, RW, PRIVATE, -1, 0), EAGAIN);
}
/* More than the suite's local limit: all of it is locked, or the call is refused and nothing is lost. */
ROOT_CASE(mlockall_of_more_than_is_local) {
    char *p = pages(8192);
    fill(p, 8192 * PAGE);
    int why = mlockall(MCL_CURRENT | MCL_FUTURE) == 0 ? 0 : errno;
    EXPECT(why == 0 || why == ENOMEM);
    EXPECT(is_filled(p, 8192 * PAGE));
    char *q = mmap(NULL, 8192 * PAGE, RW, PRIVATE, -1, 0);
    why = errno;
    EXPECT(q != MAP_FAILED || why == EAGAIN);
    if (q != MAP_FAILED) {
        fill(q, 8192 * PAGE);
        EXPECT(is_filled(q, 8192 * PAGE));
    }
    EXPECT(is_filled(p, 8192 * PAGE));
    OK(munlockall());
    EXPECT_EQ(LOCKED_KIB(), 0);
    EXPECT(is_filled(p, 8192 * PAGE));
}
ROOT_CASE(mlockall_future_locks_the_break) {
    OK(mlockall(MCL_FUTURE));
    long before = LOCKED_KIB();
    char *p = sbrk(64 * PAGE);
    EXPECT(p != (void *)-1);
    EXPECT_EQ(LOCKED_KIB() - before, 256);
    OK(brk(p));
    EXPECT_EQ(LOCKED_KIB(), before);
}
CASE(map_locked) {
    char *p = OK((char *)mmap(NULL, 4 * PAGE, RW, PRIVATE | MAP_LOCKED, -1, 0));
    EXPECT_EQ(LOCKED_KIB(), 16);
    EXPECT_EQ(resident(p, 4), 4);
}
