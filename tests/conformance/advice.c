/* madvise, mincore, msync, mlock, mseal, brk and protection keys: of madvise(2), mlock(2) and their neighbours. */
#include "conformance.h"


#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#define MADV_GUARD_REMOVE 103
#endif
#ifndef SYS_mseal
#define SYS_mseal 462
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
#ifndef MADV_DONTNEED_LOCKED
#define MADV_DONTNEED_LOCKED 24
#endif

static sigjmp_buf back;
static void caught(int number) { siglongjmp(back, number); }
/* The signal that a read raises, or 0. */
static int signal_of(volatile char *p) {
    signal(SIGSEGV, caught);
    signal(SIGBUS, caught);
    int got = sigsetjmp(back, 1);
    if (got == 0)
        (void)*p;
    return got;
}
static int zeros(const char *p, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (p[i])
            return 0;
    return 1;
}
/* KiB of a field of /proc/self/status. */
static long status_kib(const char *field) {
    char line[256];
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof line, f))
        if (!strncmp(line, field, strlen(field))) {
            fclose(f);
            return atol(line + strlen(field) + 1);
        }
    FAIL("no %s in /proc/self/status", field);
}
static void may_lock(size_t bytes) {
    struct rlimit r;
    OK(getrlimit(RLIMIT_MEMLOCK, &r));
    if (geteuid() != 0 && r.rlim_cur < bytes)
        SKIP("RLIMIT_MEMLOCK is %lu bytes", (unsigned long)r.rlim_cur);
}

CASE(dontneed_drops) {
    char *p = absent(4);
    OK(madvise(p + PAGE, 2 * PAGE, MADV_DONTNEED));
    EXPECT(zeros(p + PAGE, 2 * PAGE));
    EXPECT(is_filled(p, PAGE));
}
CASE(dontneed_at_an_odd_address) { EXPECT_ERROR(madvise(pages(1) + 1, PAGE, MADV_DONTNEED), EINVAL); }
CASE(dontneed_over_a_hole) {
    char *p = absent(3);
    OK(munmap(p + PAGE, PAGE));
    EXPECT_ERROR(madvise(p, 3 * PAGE, MADV_DONTNEED), ENOMEM);
    EXPECT(zeros(p, PAGE));
    EXPECT(zeros(p + 2 * PAGE, PAGE));
}
CASE(dontneed_of_locked_pages) {
    may_lock(2 * PAGE);
    char *p = absent(2);
    OK(mlock(p, 2 * PAGE));
    EXPECT_ERROR(madvise(p, 2 * PAGE, MADV_DONTNEED), EINVAL);
    EXPECT(is_filled(p, 2 * PAGE));
}
CASE(dontneed_locked_of_locked_pages) {
    may_lock(2 * PAGE);
    char *p = absent(2);
    OK(mlock(p, 2 * PAGE));
    OK(madvise(p, 2 * PAGE, MADV_DONTNEED_LOCKED));
    EXPECT(zeros(p, 2 * PAGE));
}
CASE(free_keeps_or_drops) {
    char *p = absent(1);
    OK(madvise(p, PAGE, MADV_FREE));
    EXPECT(zeros(p, PAGE) || is_filled(p, PAGE));
    fill(p, PAGE);
    away(p, PAGE);
    EXPECT(is_filled(p, PAGE));
}
CASE(free_of_locked_pages) {
    may_lock(PAGE);
    char *p = absent(1);
    OK(mlock(p, PAGE));
    EXPECT_ERROR(madvise(p, PAGE, MADV_FREE), EINVAL);
}
CASE(unknown_advice) { EXPECT_ERROR(madvise(pages(1), PAGE, 12345), EINVAL); }
CASE(advice_of_no_bytes) { OK(madvise(pages(1), 0, MADV_DONTNEED)); }
CASE(advice_past_the_end) { EXPECT_ERROR(madvise(pages(1), -PAGE, MADV_DONTNEED), EINVAL); }
CASE(harmless_advice) {
    char *p = absent(4);
    OK(madvise(p, 4 * PAGE, MADV_NORMAL));
    OK(madvise(p, 4 * PAGE, MADV_RANDOM));
    OK(madvise(p, 4 * PAGE, MADV_SEQUENTIAL));
    OK(madvise(p, 4 * PAGE, MADV_WILLNEED));
    OK(madvise(p, 4 * PAGE, MADV_COLD));
    OK(madvise(p, 4 * PAGE, MADV_PAGEOUT));
    OK(madvise(p, 4 * PAGE, MADV_DONTDUMP));
    OK(madvise(p, 4 * PAGE, MADV_DODUMP));
    EXPECT(is_filled(p, 4 * PAGE));
}
CASE(willneed_over_a_hole) { EXPECT_ERROR(madvise(hole(), 2 * PAGE, MADV_WILLNEED), ENOMEM); }
CASE(huge_page_advice) {
    char *p = absent(4);
    NEEDS(madvise(p, 4 * PAGE, MADV_NOHUGEPAGE));
    OK(madvise(p, 4 * PAGE, MADV_HUGEPAGE));
    EXPECT(is_filled(p, 4 * PAGE));
}
CASE(mergeable) {
    char *p = absent(2);
    if (madvise(p, 2 * PAGE, MADV_MERGEABLE) == -1 && errno == EINVAL)
        SKIP("this kernel has no KSM");
    OK(madvise(p, 2 * PAGE, MADV_UNMERGEABLE));
    EXPECT(is_filled(p, 2 * PAGE));
}
CASE(populate_write_is_resident) {
    char *p = pages(8);
    unsigned char there[8];
    NEEDS(madvise(p, 8 * PAGE, MADV_POPULATE_WRITE));
    OK(mincore(p, 8 * PAGE, there));
    for (int i = 0; i < 8; i++)
        EXPECT_EQ(there[i] & 1, 1);
}
CASE(populate_read_is_resident) {
    char *p = pages(8);
    unsigned char there[8];
    NEEDS(madvise(p, 8 * PAGE, MADV_POPULATE_READ));
    OK(mincore(p, 8 * PAGE, there));
    for (int i = 0; i < 8; i++)
        EXPECT_EQ(there[i] & 1, 1);
}
CASE(populate_write_of_read_only_pages) {
    char *p = pages(1);
    OK(mprotect(p, PAGE, PROT_READ));
    EXPECT_ERROR(madvise(p, PAGE, MADV_POPULATE_WRITE), EINVAL);
}
CASE(populate_over_a_hole) { EXPECT_ERROR(madvise(hole(), 2 * PAGE, MADV_POPULATE_READ), ENOMEM); }
CASE(dontfork_is_not_inherited) {
    char *p = absent(2);
    OK(madvise(p, PAGE, MADV_DONTFORK));
    EXPECT_EXIT(CHILD({
                    EXPECT_EQ(signal_of(p), SIGSEGV);
                    EXPECT_EQ(signal_of(p + PAGE), 0);
                }),
                0);
    OK(madvise(p, PAGE, MADV_DOFORK));
    EXPECT_EXIT(CHILD(EXPECT(is_filled(p, 2 * PAGE))), 0);
}
CASE(wipeonfork_is_zeros) {
    char *p = absent(2);
    OK(madvise(p, PAGE, MADV_WIPEONFORK));
    EXPECT_EXIT(CHILD(EXPECT(zeros(p, PAGE))), 0);
    EXPECT(is_filled(p, 2 * PAGE));
    OK(madvise(p, PAGE, MADV_KEEPONFORK));
    EXPECT_EXIT(CHILD(EXPECT(is_filled(p, PAGE))), 0);
}
CASE(wipeonfork_of_a_grandchild) {
    char *p = absent(1);
    OK(madvise(p, PAGE, MADV_WIPEONFORK));
    EXPECT_EXIT(CHILD({
                    p[0] = 9;
                    EXPECT_EXIT(CHILD(EXPECT(zeros(p, PAGE))), 0);
                }),
                0);
}
CASE(remove_of_private_memory) { EXPECT_ERROR(madvise(absent(1), PAGE, MADV_REMOVE), EINVAL); }
USER_CASE(hwpoison_needs_rights) {
    EXPECT(madvise(absent(1), PAGE, MADV_HWPOISON) == -1 && (errno == EPERM || errno == EINVAL));
}
CASE(guard_pages) {
    char *p = absent(3);
    if (madvise(p + PAGE, PAGE, MADV_GUARD_INSTALL) == -1 && errno == EINVAL)
        SKIP("this kernel has no guard pages");
    EXPECT_EQ(signal_of(p + PAGE), SIGSEGV);
    EXPECT(is_filled(p, PAGE));
    OK(madvise(p + PAGE, PAGE, MADV_GUARD_REMOVE));
    EXPECT(zeros(p + PAGE, PAGE));
}
CASE(collapse_is_refused_or_done) {
    char *p = absent(4);
    errno = 0;
    if (madvise(p, 4 * PAGE, MADV_COLLAPSE) == -1)
        EXPECT_EQ(errno == EINVAL || errno == ENOMEM || errno == EAGAIN, 1);
    EXPECT(is_filled(p, 4 * PAGE));
}
CASE(process_madvise_of_oneself) {
    char *p = absent(2);
    int fd = NEEDS((int)syscall(SYS_pidfd_open, getpid(), 0));
    struct iovec *v = astride(8);
    v->iov_base = p, v->iov_len = 2 * PAGE;
    away(v, sizeof *v);
    EXPECT_EQ(NEEDS(syscall(SYS_process_madvise, fd, v, 1, MADV_COLD, 0)), 2 * PAGE);
    EXPECT(is_filled(p, 2 * PAGE));
}
CASE(process_madvise_drops) {
    char *p = absent(3);
    int fd = NEEDS((int)syscall(SYS_pidfd_open, getpid(), 0));
    struct iovec v[] = {{p, PAGE}, {p + 2 * PAGE, PAGE}};
    long dropped = syscall(SYS_process_madvise, fd, v, 2, MADV_DONTNEED, 0);
    if (dropped == -1 && errno == EINVAL)
        SKIP("before Linux 6.13 the call takes hints only");
    EXPECT_EQ(OK(dropped), 2 * PAGE);
    EXPECT(p[0] == 0 && p[PAGE - 1] == 0 && p[2 * PAGE] == 0);
    memset(p, 0, PAGE);
    EXPECT_EQ((unsigned char)p[PAGE], 2);
}
CASE(process_madvise_unknown_flag) {
    int fd = NEEDS((int)syscall(SYS_pidfd_open, getpid(), 0));
    struct iovec v = {pages(1), PAGE};
    EXPECT_ERROR(syscall(SYS_process_madvise, fd, &v, 1, MADV_COLD, 1), EINVAL);
}
CASE(process_madvise_vector_in_a_hole) {
    int fd = NEEDS((int)syscall(SYS_pidfd_open, getpid(), 0));
    EXPECT_ERROR(syscall(SYS_process_madvise, fd, hole(), 1, MADV_COLD, 0), EFAULT);
}
CASE(process_madvise_closed) {
    struct iovec v = {pages(1), PAGE};
    EXPECT_ERROR(syscall(SYS_process_madvise, 900, &v, 1, MADV_COLD, 0), EBADF);
}

CASE(mincore_of_touched_pages) {
    char *p = pages(4);
    unsigned char *there = (unsigned char *)absent(1);
    p[PAGE] = 1;
    OK(mincore(p, 4 * PAGE, there));
    EXPECT_EQ(there[0] & 1, 0);
    EXPECT_EQ(there[1] & 1, 1);
    EXPECT_EQ(there[2] & 1, 0);
}
CASE(mincore_at_an_odd_address) { EXPECT_ERROR(mincore(pages(1) + 1, PAGE, (void *)absent(1)), EINVAL); }
CASE(mincore_over_a_hole) { EXPECT_ERROR(mincore(hole(), PAGE, (void *)absent(1)), ENOMEM); }
CASE(mincore_vector_in_a_hole) { EXPECT_ERROR(mincore(pages(1), PAGE, (void *)hole()), EFAULT); }
CASE(mincore_of_no_bytes) { OK(mincore(pages(1), 0, (void *)absent(1))); }
CASE(msync_of_memory) { OK(msync(absent(2), 2 * PAGE, MS_SYNC)); }
CASE(msync_both_ways) { EXPECT_ERROR(msync(pages(1), PAGE, MS_SYNC | MS_ASYNC), EINVAL); }
CASE(msync_unknown_flag) { EXPECT_ERROR(msync(pages(1), PAGE, 8), EINVAL); }
CASE(msync_at_an_odd_address) { EXPECT_ERROR(msync(pages(1) + 1, PAGE, MS_SYNC), EINVAL); }
CASE(msync_of_nothing) { EXPECT_ERROR(msync(hole(), PAGE, MS_SYNC), ENOMEM); }
CASE(msync_invalidate_locked) {
    may_lock(PAGE);
    char *p = absent(1);
    OK(mlock(p, PAGE));
    EXPECT_ERROR(msync(p, PAGE, MS_INVALIDATE), EBUSY);
}

CASE(mlock_is_resident) {
    may_lock(4 * PAGE);
    char *p = absent(4);
    unsigned char there[4];
    OK(mlock(p, 4 * PAGE));
    madvise(p, 4 * PAGE, MADV_PAGEOUT);
    OK(mincore(p, 4 * PAGE, there));
    for (int i = 0; i < 4; i++)
        EXPECT_EQ(there[i] & 1, 1);
    OK(munlock(p, 4 * PAGE));
    away(p, 4 * PAGE);
    EXPECT(is_filled(p, 4 * PAGE));
}
CASE(munlock_of_pages_that_were_about_to_leave) {
    may_lock(4 * PAGE);
    char *p = pages(4);
    for (int round = 0; round < 100; round++) {
        fill(p, 4 * PAGE);
        madvise(p, 4 * PAGE, MADV_PAGEOUT);
        OK(mlock(p, 4 * PAGE));
        OK(munlock(p, 4 * PAGE));
        away(p, 4 * PAGE);
        EXPECT(is_filled(p, 4 * PAGE));
    }
}
CASE(mlock_over_a_hole) { EXPECT_ERROR(mlock(hole(), PAGE), ENOMEM); }
CASE(munlock_over_a_hole) { EXPECT_ERROR(munlock(hole(), PAGE), ENOMEM); }
ROOT_CASE(mlock_overflow) { EXPECT_ERROR(mlock(pages(1), -PAGE), EINVAL); }
CASE(mlock_of_inaccessible_pages) {
    may_lock(PAGE);
    char *p = pages(1);
    OK(mprotect(p, PAGE, PROT_NONE));
    EXPECT_ERROR(mlock(p, PAGE), ENOMEM);
}
CASE(mlock2_unknown_flag) { EXPECT_ERROR(mlock2(pages(1), PAGE, 2), EINVAL); }
CASE(mlock_shows_in_status) {
    may_lock(16 * PAGE);
    long before = status_kib("VmLck:");
    OK(mlock(absent(16), 16 * PAGE));
    EXPECT_EQ(status_kib("VmLck:") - before, 64);
}
CASE(mlock_onfault_shows_in_status) {
    may_lock(16 * PAGE);
    long before = status_kib("VmLck:");
    OK(mlock2(pages(16), 16 * PAGE, MLOCK_ONFAULT));
    EXPECT_EQ(status_kib("VmLck:") - before, 64);
}
CASE(munlock_shows_in_status) {
    may_lock(16 * PAGE);
    long before = status_kib("VmLck:");
    char *p = absent(16);
    OK(mlock(p, 16 * PAGE));
    OK(munlock(p, 8 * PAGE));
    EXPECT_EQ(status_kib("VmLck:") - before, 32);
}
CASE(mlock_is_not_inherited) {
    may_lock(4 * PAGE);
    char *p = absent(4);
    OK(mlock(p, 4 * PAGE));
    EXPECT_EXIT(CHILD({
                    EXPECT_EQ(status_kib("VmLck:"), 0);
                    EXPECT(is_filled(p, 4 * PAGE));
                }),
                0);
}
CASE(mlockall_unknown_flag) { EXPECT_ERROR(mlockall(64), EINVAL); }
CASE(mlockall_of_nothing) { EXPECT_ERROR(mlockall(0), EINVAL); }
CASE(mlockall_onfault_alone) { EXPECT_ERROR(mlockall(MCL_ONFAULT), EINVAL); }
CASE(munlockall_is_right) { OK(munlockall()); }
USER_CASE(mlock_past_the_limit) {
    struct rlimit r = {8 * PAGE, 8 * PAGE};
    OK(setrlimit(RLIMIT_MEMLOCK, &r));
    EXPECT_ERROR(mlock(absent(16), 16 * PAGE), ENOMEM);
    OK(mlock(absent(4), 4 * PAGE));
}
USER_CASE(mlock_sum_past_the_limit) {
    struct rlimit r = {8 * PAGE, 8 * PAGE};
    OK(setrlimit(RLIMIT_MEMLOCK, &r));
    OK(mlock(absent(6), 6 * PAGE));
    EXPECT_ERROR(mlock(absent(6), 6 * PAGE), ENOMEM);
}
USER_CASE(mlock_with_a_limit_of_zero) {
    struct rlimit r = {0, 0};
    OK(setrlimit(RLIMIT_MEMLOCK, &r));
    EXPECT_ERROR(mlock(absent(1), PAGE), EPERM);
}
USER_CASE(map_locked_with_a_limit_of_zero) {
    struct rlimit r = {0, 0};
    OK(setrlimit(RLIMIT_MEMLOCK, &r));
    EXPECT_ERROR(mmap(NULL, PAGE, RW, PRIVATE | MAP_LOCKED, -1, 0), EPERM);
}
CASE(map_locked_shows_in_status) {
    may_lock(16 * PAGE);
    long before = status_kib("VmLck:");
    OK(mmap(NULL, 16 * PAGE, RW, PRIVATE | MAP_LOCKED, -1, 0));
    EXPECT_EQ(status_kib("VmLck:") - before, 64);
}
CASE(mlock_ten_mib) {
    may_lock(10 << 20);
    OK(mlock(pages(2560), 10 << 20));
}

static char *sealed(void) {
    char *p = absent(3);
    NEEDS(syscall(SYS_mseal, p + PAGE, PAGE, 0));
    return p;
}
CASE(mseal_refuses_munmap) {
    char *p = sealed();
    EXPECT_ERROR(munmap(p, 3 * PAGE), EPERM);
    EXPECT(is_filled(p, 3 * PAGE));
}
CASE(mseal_refuses_mprotect) {
    char *p = sealed();
    EXPECT_ERROR(mprotect(p + PAGE, PAGE, PROT_READ), EPERM);
    p[PAGE] = 1;
}
CASE(mseal_refuses_mremap) {
    char *p = sealed();
    EXPECT_ERROR(mremap(p + PAGE, PAGE, 2 * PAGE, MREMAP_MAYMOVE), EPERM);
}
CASE(mseal_refuses_a_mapping_over_it) {
    char *p = sealed();
    EXPECT_ERROR(mmap(p + PAGE, PAGE, RW, PRIVATE | MAP_FIXED, -1, 0), EPERM);
}
CASE(mseal_allows_other_pages) {
    char *p = sealed();
    OK(mprotect(p, PAGE, PROT_READ));
    OK(munmap(p + 2 * PAGE, PAGE));
}
CASE(mseal_refuses_dontneed_of_read_only) {
    char *p = absent(1);
    OK(mprotect(p, PAGE, PROT_READ));
    NEEDS(syscall(SYS_mseal, p, PAGE, 0));
    EXPECT_ERROR(madvise(p, PAGE, MADV_DONTNEED), EPERM);
    EXPECT(is_filled(p, PAGE));
}
CASE(mseal_is_inherited) {
    char *p = sealed();
    EXPECT_EXIT(CHILD(EXPECT_ERROR(munmap(p + PAGE, PAGE), EPERM)), 0);
}
CASE(mseal_over_a_hole) {
    sealed();
    EXPECT_ERROR(syscall(SYS_mseal, hole(), PAGE, 0), ENOMEM);
}
CASE(mseal_unknown_flag) {
    char *p = sealed();
    EXPECT_ERROR(syscall(SYS_mseal, p, PAGE, 1), EINVAL);
}
CASE(mseal_at_an_odd_address) {
    char *p = sealed();
    EXPECT_ERROR(syscall(SYS_mseal, p + 1, PAGE, 0), EINVAL);
}

CASE(brk_grows_and_shrinks) {
    char *p = OK((char *)sbrk(0));
    OK(sbrk(4 * PAGE));
    fill(p, 4 * PAGE);
    away(p, 3 * PAGE);
    EXPECT(is_filled(p, 4 * PAGE));
    OK(sbrk(-(long)(2 * PAGE)));
    OK(sbrk(2 * PAGE));
    EXPECT(zeros(p + 3 * PAGE, PAGE));
}
CASE(brk_raw) {
    char *now = (char *)RAW(SYS_brk, 0);
    EXPECT(now == sbrk(0));
    EXPECT((char *)RAW(SYS_brk, now + PAGE) == now + PAGE);
}
CASE(brk_raw_from_where_it_is) {
    char *now = sbrk(0);
    EXPECT((char *)RAW(SYS_brk, now + 16 * PAGE) == now + 16 * PAGE);
    fill(now, 16 * PAGE);
    away(now + PAGE, 14 * PAGE);
    EXPECT(is_filled(now, 16 * PAGE));
}
CASE(brk_past_rlimit_data) {
    struct rlimit r = {1 << 20, RLIM_INFINITY};
    OK(setrlimit(RLIMIT_DATA, &r));
    EXPECT_ERROR(sbrk(64 << 20), ENOMEM);
}
CASE(brk_below_its_beginning) {
    char *now = (char *)syscall(SYS_brk, 0);
    EXPECT((char *)syscall(SYS_brk, PAGE) == now);
}

static int key_of(void) {
    int key = pkey_alloc(0, 0);
    if (key == -1 && (errno == ENOSYS || errno == ENOSPC || errno == EINVAL))
        SKIP("this processor has no protection keys");
    return OK(key);
}
CASE(pkey_mprotect_protects) {
    int key = key_of();
    char *p = absent(1);
    OK(pkey_mprotect(p, PAGE, RW, key));
    EXPECT(is_filled(p, PAGE));
    OK(pkey_set(key, PKEY_DISABLE_ACCESS));
    EXPECT_EQ(signal_of(p), SIGSEGV);
    OK(pkey_set(key, 0));
    EXPECT(is_filled(p, PAGE));
}
CASE(pkey_mprotect_of_a_free_key) { EXPECT_ERROR(pkey_mprotect(pages(1), PAGE, RW, 15), EINVAL); }
CASE(pkey_mprotect_without_a_key) {
    char *p = absent(1);
    NEEDS((int)syscall(SYS_pkey_mprotect, p, PAGE, PROT_READ, -1));
    EXPECT(is_filled(p, PAGE));
}
CASE(pkey_alloc_unknown_flag) { EXPECT_ERROR(pkey_alloc(1, 0), EINVAL); }
CASE(pkey_free_of_a_free_key) { EXPECT_ERROR(pkey_free(14), EINVAL); }
