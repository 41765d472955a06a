/* mseal, guards, protection keys, a program's own userfaultfd. */
#include "conformance.h"

#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <sys/ioctl.h>

#define GUARD_INSTALL 102
#define GUARD_REMOVE 103

static long seal(void *p, size_t bytes, unsigned long flags) { return syscall(462, p, bytes, flags); }

CASE(mseal_wrong_arguments) {
    NEEDS(seal(pages(1), 0, 0));
    EXPECT_ERROR(seal(pages(1), PAGE, 1), EINVAL);
    EXPECT_ERROR(seal(pages(1) + 1, PAGE, 0), EINVAL);
    EXPECT_ERROR(seal(pages(1), -1UL, 0), EINVAL);
    EXPECT_ERROR(seal(hole(), PAGE, 0), ENOMEM);
}
CASE(mseal_keeps_place_and_protection) {
    char *p = absent(4);
    NEEDS(seal(p, 2 * PAGE, 0));
    EXPECT_ERROR(munmap(p, PAGE), EPERM);
    EXPECT_ERROR(munmap(p + PAGE, 2 * PAGE), EPERM);
    EXPECT_ERROR(mprotect(p, PAGE, PROT_READ), EPERM);
    EXPECT_ERROR(mremap(p, PAGE, 2 * PAGE, MREMAP_MAYMOVE), EPERM);
    EXPECT_ERROR(mremap(p, 2 * PAGE, PAGE, 0), EPERM);
    EXPECT_ERROR(mremap(p + 2 * PAGE, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, p), EPERM);
    EXPECT_ERROR(mmap(p, PAGE, RW, PRIVATE | MAP_FIXED, -1, 0), EPERM);
    EXPECT(is_filled(p, 4 * PAGE));
    p[0] = 1;
    OK(munmap(p + 2 * PAGE, 2 * PAGE));
}
CASE(mseal_of_writable_memory_may_be_emptied) {
    char *p = absent(2);
    NEEDS(seal(p, 2 * PAGE, 0));
    OK(madvise(p, PAGE, MADV_DONTNEED));
    EXPECT_EQ(p[0], 0);
}
CASE(mseal_of_read_only_memory_may_not_be_emptied) {
    char *p = absent(2);
    OK(mprotect(p, 2 * PAGE, PROT_READ));
    NEEDS(seal(p, 2 * PAGE, 0));
    EXPECT_ERROR(madvise(p, PAGE, MADV_DONTNEED), EPERM);
    EXPECT_ERROR(madvise(p, PAGE, MADV_FREE), EPERM);
    EXPECT_ERROR(madvise(p, PAGE, MADV_DONTFORK), EPERM);
    EXPECT(is_filled(p, 2 * PAGE));
}

CASE(guard_ends_a_touch) {
    char *p = absent(4);
    NEEDS(madvise(p + PAGE, PAGE, GUARD_INSTALL));
    EXPECT(touch(p + PAGE, 0));
    EXPECT(touch(p + PAGE, 1));
    EXPECT(is_filled(p, PAGE));
    OK(madvise(p + PAGE, PAGE, GUARD_REMOVE));
    EXPECT_EQ(touch(p + PAGE, 1), 0);
    EXPECT_EQ(p[PAGE + 1], 0);
}
CASE(guard_outlives_mprotect_and_dontneed) {
    char *p = absent(4);
    NEEDS(madvise(p + PAGE, PAGE, GUARD_INSTALL));
    OK(mprotect(p, 4 * PAGE, PROT_READ));
    OK(mprotect(p, 4 * PAGE, RW));
    OK(madvise(p, 4 * PAGE, MADV_DONTNEED));
    EXPECT(touch(p + PAGE, 0));
    EXPECT_EQ(touch(p + 2 * PAGE, 1), 0);
}
CASE(guard_goes_with_munmap) {
    char *p = absent(4);
    NEEDS(madvise(p + PAGE, PAGE, GUARD_INSTALL));
    OK(munmap(p + PAGE, PAGE));
    EXPECT(OK((char *)mmap(p + PAGE, PAGE, RW, PRIVATE | MAP_FIXED, -1, 0)) == p + PAGE);
    EXPECT_EQ(touch(p + PAGE, 1), 0);
}
CASE(guard_moves_with_mremap) {
    char *p = absent(4), *q = pages(4);
    NEEDS(madvise(p + PAGE, PAGE, GUARD_INSTALL));
    EXPECT(OK((char *)mremap(p, 4 * PAGE, 4 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, q)) == q);
    EXPECT(touch(q + PAGE, 0));
    EXPECT(is_filled(q, PAGE));
    EXPECT_EQ((unsigned char)q[2 * PAGE + 1], (unsigned char)((2 * PAGE + 1) * 31 + 2 + 1));
}
CASE(guard_is_inherited) {
    char *p = absent(2);
    NEEDS(madvise(p, PAGE, GUARD_INSTALL));
    pid_t pid = CHILD({
        EXPECT(touch(p, 0));
        EXPECT_EQ(touch(p + PAGE, 1), 0);
    });
    EXPECT_EXIT(pid, 0);
}
CASE(guard_in_locked_memory) {
    char *p = pages(2);
    OK(mlock(p, PAGE));
    EXPECT_ERROR(madvise(p, PAGE, GUARD_INSTALL), EINVAL);
}
CASE(guard_stops_a_populate) {
    char *p = absent(2);
    NEEDS(madvise(p + PAGE, PAGE, GUARD_INSTALL));
    EXPECT_ERROR(madvise(p, 2 * PAGE, MADV_POPULATE_WRITE), EFAULT);
}
CASE(guard_is_no_buffer) {
    char *p = absent(2);
    NEEDS(madvise(p, PAGE, GUARD_INSTALL));
    int fd = OK(open("/dev/zero", O_RDONLY));
    EXPECT_ERROR(read(fd, p, 1), EFAULT);
}

CASE(pkey_guards_memory) {
    int key = NEEDS(pkey_alloc(0, 0));
    char *p = absent(4);
    OK(pkey_mprotect(p, 2 * PAGE, RW, key));
    EXPECT(is_filled(p, 4 * PAGE));
    OK(pkey_set(key, PKEY_DISABLE_ACCESS));
    EXPECT_EQ(touch(p, 0), SEGV_PKUERR);
    EXPECT_EQ(touch(p + 2 * PAGE, 0), 0);
    OK(pkey_set(key, PKEY_DISABLE_WRITE));
    EXPECT_EQ(touch(p, 1), SEGV_PKUERR);
    EXPECT(is_filled(p, 4 * PAGE));
    OK(pkey_set(key, 0));
    OK(munmap(p, 2 * PAGE));
    EXPECT(OK((char *)mmap(p, PAGE, RW, PRIVATE | MAP_FIXED, -1, 0)) == p);
    EXPECT_EQ(touch(p, 1), 0);
}

struct serving {
    int fd;
    char *from;
};
static void *serve(void *arg) {
    struct serving *s = arg;
    struct pollfd p = {s->fd, POLLIN, 0};
    struct uffd_msg m;
    OK(poll(&p, 1, -1));
    EXPECT_EQ(read(s->fd, &m, sizeof m), (long)sizeof m);
    EXPECT_EQ(m.event, UFFD_EVENT_PAGEFAULT);
    struct uffdio_copy c = {.dst = m.arg.pagefault.address & -PAGE, .src = (unsigned long)s->from, .len = PAGE};
    OK(ioctl(s->fd, UFFDIO_COPY, &c));
    return NULL;
}
CASE(userfaultfd_of_the_program) {
    int fd = NEEDS(syscall(SYS_userfaultfd, O_CLOEXEC | 1 /* UFFD_USER_MODE_ONLY */));
    struct uffdio_api api = {.api = UFFD_API};
    OK(ioctl(fd, UFFDIO_API, &api));
    char *p = absent(4), *from = absent(1);
    OK(madvise(p + PAGE, PAGE, MADV_DONTNEED));
    struct uffdio_register r = {.range = {(unsigned long)p, 4 * PAGE}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    OK(ioctl(fd, UFFDIO_REGISTER, &r));
    struct serving s = {fd, from};
    pthread_t thread;
    EXPECT_EQ(pthread_create(&thread, NULL, serve, &s), 0);
    EXPECT_EQ((unsigned char)p[PAGE + 5], (unsigned char)(5 * 31 + 1));
    EXPECT_EQ(pthread_join(thread, NULL), 0);
    EXPECT(is_filled(p, PAGE));
    struct uffdio_range range = {(unsigned long)p, 4 * PAGE};
    OK(ioctl(fd, UFFDIO_UNREGISTER, &range));
    OK(munmap(p, 4 * PAGE));
    EXPECT(OK((char *)mmap(p, 4 * PAGE, RW, PRIVATE | MAP_FIXED, -1, 0)) == p);
    EXPECT_EQ(p[0], 0);
}
