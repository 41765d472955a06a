/* Reading and writing files, pipes and directories with buffers, vectors and offsets on absent pages: of read(2),
 * write(2), pread(2), readv(2), sendfile(2), splice(2), copy_file_range(2) and their neighbours. */
#include "conformance.h"

#include <sys/sendfile.h>

#define BYTES (3 * PAGE)

/* A file of BYTES bytes that depend on their position, at its beginning. */
static int file(void) {
    static char bytes[BYTES];
    fill(bytes, BYTES);
    int fd = OK(open("file", O_CREAT | O_RDWR | O_TRUNC, 0600));
    EXPECT_EQ(write(fd, bytes, BYTES), BYTES);
    OK(lseek(fd, 0, SEEK_SET));
    return fd;
}
static int empty(void) { return OK(open("empty", O_CREAT | O_RDWR | O_TRUNC, 0600)); }
/* Whether the file's bytes are those of `file`. */
static int is_file(int fd, size_t bytes) {
    static char got[BYTES];
    return pread(fd, got, sizeof got, 0) == (ssize_t)bytes && is_filled(got, bytes);
}
static struct iovec *two(void *first, size_t n, void *second, size_t m) {
    struct iovec *v = astride(sizeof *v);
    v[0].iov_base = first, v[0].iov_len = n;
    v[1].iov_base = second, v[1].iov_len = m;
    away(v, 2 * sizeof *v);
    return v;
}

CASE(read_to_absent_pages) {
    char *p = absent(3);
    memset(p, 0, BYTES);
    away(p, BYTES);
    EXPECT_EQ(read(file(), p, BYTES), BYTES);
    EXPECT(is_filled(p, BYTES));
}
CASE(read_to_untouched_pages) {
    char *p = pages(3);
    EXPECT_EQ(read(file(), p, BYTES), BYTES);
    EXPECT(is_filled(p, BYTES));
}
CASE(read_up_to_a_hole_is_partial) {
    char *p = before_hole(PAGE + 100);
    EXPECT_EQ(read(file(), p, 3 * PAGE), PAGE + 100);
    EXPECT(is_filled(p, PAGE + 100));
}
CASE(read_to_a_hole) { EXPECT_ERROR(read(file(), hole(), 1), EFAULT); }
CASE(read_to_read_only_pages) {
    char *p = absent(1);
    OK(mprotect(p, PAGE, PROT_READ));
    EXPECT_ERROR(read(file(), p, 1), EFAULT);
    EXPECT(is_filled(p, PAGE));
}
CASE(read_to_inaccessible_pages) {
    char *p = absent(1);
    OK(mprotect(p, PAGE, PROT_NONE));
    EXPECT_ERROR(read(file(), p, 1), EFAULT);
}
CASE(read_to_kernel_addresses) { EXPECT_ERROR(read(file(), (void *)-4096L, 1), EFAULT); }
CASE(read_of_no_bytes_to_a_hole) { EXPECT_EQ(OK(read(file(), hole(), 0)), 0); }
CASE(read_of_more_than_the_file) { EXPECT_EQ(OK(read(file(), pages(8), 8 * PAGE)), BYTES); }
CASE(read_closed) { EXPECT_ERROR(read(900, absent(1), 1), EBADF); }
CASE(read_from_a_directory) { EXPECT_ERROR(read(OK(open(".", O_RDONLY)), absent(1), 1), EISDIR); }
CASE(read_write_only) { EXPECT_ERROR(read(OK(open("x", O_CREAT | O_WRONLY, 0600)), absent(1), 1), EBADF); }
CASE(read_nothing_in_a_pipe) {
    int fd[2];
    OK(pipe2(fd, O_NONBLOCK));
    EXPECT_ERROR(read(fd[0], absent(1), 1), EAGAIN);
}
CASE(read_twice_two_gib_in_one_call) {
    /* More than MAX_RW_COUNT: the file's bytes, and no error. */
    EXPECT_EQ(OK(read(file(), OK(mmap(NULL, 3UL << 30, RW, PRIVATE | MAP_NORESERVE, -1, 0)), 3UL << 30)), BYTES);
}
CASE(read_raw_to_absent_pages) {
    char *p = absent(3);
    memset(p, 0, BYTES);
    away(p, BYTES);
    EXPECT_EQ(RAW(SYS_read, file(), p, BYTES), BYTES);
    EXPECT(is_filled(p, BYTES));
}
CASE(read_raw_up_to_a_hole_is_partial) {
    char *p = before_hole(PAGE + 100);
    EXPECT_EQ(RAW(SYS_read, file(), p, 3 * PAGE), PAGE + 100);
}
CASE(write_from_absent_pages) {
    int fd = empty();
    EXPECT_EQ(write(fd, absent(3), BYTES), BYTES);
    EXPECT(is_file(fd, BYTES));
}
CASE(write_from_untouched_pages) {
    int fd = empty();
    EXPECT_EQ(write(fd, pages(1), PAGE), PAGE);
    char *p = absent(1);
    EXPECT_EQ(pread(fd, p, PAGE, 0), PAGE);
    for (size_t i = 0; i < PAGE; i++)
        EXPECT_EQ(p[i], 0);
}
CASE(write_up_to_a_hole_is_partial) {
    int fd = empty();
    EXPECT_EQ(write(fd, before_hole(2 * PAGE), 3 * PAGE), 2 * PAGE);
    EXPECT(is_file(fd, 2 * PAGE));
}
CASE(write_from_a_hole) { EXPECT_ERROR(write(empty(), hole(), 1), EFAULT); }
CASE(write_to_dev_null_from_a_hole) { EXPECT_EQ(OK(write(OK(open("/dev/null", O_WRONLY)), hole(), 5)), 5); }
CASE(write_past_the_file_limit) {
    struct rlimit r = {PAGE, PAGE};
    OK(setrlimit(RLIMIT_FSIZE, &r));
    signal(SIGXFSZ, SIG_IGN);
    int fd = empty();
    EXPECT_EQ(write(fd, absent(2), 2 * PAGE), PAGE);
    EXPECT_ERROR(write(fd, absent(1), 1), EFBIG);
}
CASE(write_signal_at_the_file_limit) {
    struct rlimit r = {PAGE, PAGE};
    OK(setrlimit(RLIMIT_FSIZE, &r));
    pid_t child = CHILD({
        int fd = empty();
        char *p = absent(2);
        write(fd, p, PAGE);
        write(fd, p, PAGE);
    });
    EXPECT_SIGNAL(child, SIGXFSZ);
}
CASE(write_to_a_broken_pipe) {
    int fd[2];
    OK(pipe(fd));
    close(fd[0]);
    signal(SIGPIPE, SIG_IGN);
    EXPECT_ERROR(write(fd[1], absent(1), 1), EPIPE);
}
CASE(write_to_a_broken_pipe_signals) {
    int fd[2];
    OK(pipe(fd));
    close(fd[0]);
    EXPECT_SIGNAL(CHILD(write(fd[1], absent(1), 1)), SIGPIPE);
}
CASE(write_to_a_full_pipe) {
    int fd[2];
    OK(pipe2(fd, O_NONBLOCK));
    char *p = absent(16);
    while (write(fd[1], p, 16 * PAGE) > 0)
        ;
    EXPECT_ERROR(write(fd[1], p, PAGE), EAGAIN);
}
CASE(write_to_a_pipe_is_whole) {
    /* A megabyte for a reader that takes it in pieces. */
    int fd[2];
    OK(pipe(fd));
    pid_t child = CHILD({
        close(fd[1]);
        static char got[1 << 20];
        size_t n = 0;
        for (ssize_t r; (r = read(fd[0], got + n, 7000)) > 0;)
            n += r;
        EXPECT_EQ(n, 200 * PAGE);
        EXPECT(is_filled(got, n));
    });
    close(fd[0]);
    EXPECT_EQ(write(fd[1], absent(200), 200 * PAGE), 200 * PAGE);
    close(fd[1]);
    EXPECT_EXIT(child, 0);
}
CASE(pread_to_absent_pages) {
    char *p = absent(2);
    EXPECT_EQ(pread(file(), p + 10, PAGE, 10), PAGE);
    EXPECT(is_filled(p, PAGE));
}
CASE(pread_of_a_negative_offset) { EXPECT_ERROR(pread(file(), absent(1), 1, -1), EINVAL); }
CASE(pread_of_a_pipe) {
    int fd[2];
    OK(pipe(fd));
    EXPECT_ERROR(pread(fd[0], absent(1), 1, 0), ESPIPE);
}
CASE(pread_past_the_end) { EXPECT_EQ(OK(pread(file(), absent(1), 1, 1 << 20)), 0); }
CASE(pwrite_from_absent_pages) {
    int fd = file();
    char *p = absent(2);
    EXPECT_EQ(pwrite(fd, p, 2 * PAGE, 0), 2 * PAGE);
    EXPECT(is_file(fd, BYTES));
    EXPECT_EQ(lseek(fd, 0, SEEK_CUR), 0);
}
CASE(pwrite_partial) {
    int fd = empty();
    EXPECT_EQ(pwrite(fd, before_hole(PAGE), 2 * PAGE, 0), PAGE);
}
CASE(readv_to_absent_pages) {
    char *p = absent(3);
    memset(p, 0, BYTES);
    away(p, BYTES);
    EXPECT_EQ(readv(file(), two(p, 5000, p + 5000, BYTES - 5000), 2), BYTES);
    EXPECT(is_filled(p, BYTES));
}
CASE(readv_second_buffer_is_a_hole) { EXPECT_EQ(readv(file(), two(absent(1), 100, hole(), 100), 2), 100); }
CASE(readv_first_buffer_is_a_hole) { EXPECT_ERROR(readv(file(), two(hole(), 100, absent(1), 100), 2), EFAULT); }
CASE(readv_vector_in_a_hole) { EXPECT_ERROR(readv(file(), (void *)hole(), 1), EFAULT); }
CASE(readv_vector_ends_in_a_hole) {
    struct iovec *v = (struct iovec *)before_hole(sizeof *v);
    v->iov_base = absent(1), v->iov_len = 1;
    EXPECT_ERROR(readv(file(), v, 2), EFAULT);
}
CASE(readv_of_too_many) {
    struct iovec *v = (struct iovec *)absent(5);
    EXPECT_ERROR(readv(file(), v, 1025), EINVAL);
}
CASE(readv_of_a_negative_count) { EXPECT_ERROR(syscall(SYS_readv, file(), absent(1), -1), EINVAL); }
CASE(readv_of_none) { EXPECT_EQ(OK(readv(file(), NULL, 0)), 0); }
CASE(readv_of_a_negative_length) {
    EXPECT_ERROR(readv(file(), two(absent(1), 1, absent(1), -1), 2), EINVAL);
}
CASE(readv_of_1024) {
    struct iovec *v = (struct iovec *)pages(4);
    char *p = absent(3);
    memset(p, 0, BYTES);
    for (int i = 0; i < 1024; i++)
        v[i].iov_base = p + i * 12, v[i].iov_len = 12;
    away(v, 4 * PAGE);
    away(p, BYTES);
    EXPECT_EQ(readv(file(), v, 1024), BYTES);
    EXPECT(is_filled(p, BYTES));
}
CASE(writev_from_absent_pages) {
    int fd = empty();
    char *p = absent(3);
    EXPECT_EQ(writev(fd, two(p, 5000, p + 5000, BYTES - 5000), 2), BYTES);
    EXPECT(is_file(fd, BYTES));
}
CASE(writev_second_buffer_is_a_hole) {
    int fd = empty();
    EXPECT_EQ(writev(fd, two(absent(1), PAGE, hole(), 100), 2), PAGE);
    EXPECT(is_file(fd, PAGE));
}
CASE(writev_raw_from_absent_pages) {
    int fd = empty();
    char *p = absent(3);
    EXPECT_EQ(RAW(SYS_writev, fd, two(p, 5000, p + 5000, BYTES - 5000), 2), BYTES);
    EXPECT(is_file(fd, BYTES));
}
CASE(preadv_pwritev) {
    int fd = empty();
    char *p = absent(3), *q = absent(3);
    EXPECT_EQ(pwritev(fd, two(p, 100, p + 100, BYTES - 100), 2, 0), BYTES);
    memset(q, 0, BYTES);
    away(q, BYTES);
    EXPECT_EQ(preadv(fd, two(q, 5000, q + 5000, BYTES - 5000), 2, 0), BYTES);
    EXPECT(is_filled(q, BYTES));
}
CASE(preadv2_at_the_current_place) {
    int fd = file();
    char *p = absent(2);
    EXPECT_EQ(preadv2(fd, two(p, PAGE, p + PAGE, 10), 2, -1, 0), PAGE + 10);
    EXPECT_EQ(lseek(fd, 0, SEEK_CUR), PAGE + 10);
}
CASE(preadv2_unknown_flag) {
    EXPECT_ERROR(preadv2(file(), two(absent(1), 1, absent(1), 1), 2, 0, 0x40000000), EOPNOTSUPP);
}
CASE(pwritev2_appends) {
    int fd = file();
    char *p = absent(1);
    EXPECT_EQ(pwritev2(fd, two(p, 1, p, 1), 2, 0, RWF_APPEND), 2);
    EXPECT_EQ(lseek(fd, 0, SEEK_END), BYTES + 2);
}
CASE(lseek_of_a_pipe) {
    int fd[2];
    OK(pipe(fd));
    EXPECT_ERROR(lseek(fd[0], 0, SEEK_CUR), ESPIPE);
}
CASE(sendfile_with_its_offset_away) {
    off_t *offset = astride(4);
    *offset = PAGE;
    away(offset, 8);
    int out = empty();
    EXPECT_EQ(sendfile(out, file(), offset, 100), 100);
    EXPECT_EQ(*offset, PAGE + 100);
}
CASE(sendfile_offset_in_a_hole) { EXPECT_ERROR(sendfile(empty(), file(), (void *)hole(), 1), EFAULT); }
CASE(sendfile_negative_offset) {
    off_t *offset = astride(4);
    *offset = -1;
    EXPECT_ERROR(sendfile(empty(), file(), offset, 1), EINVAL);
}
CASE(copy_file_range_with_its_offsets_away) {
    off_t *in = astride(4), *out = astride(4);
    *in = 10, *out = 20;
    away(in, 8);
    away(out, 8);
    EXPECT_EQ(NEEDS(copy_file_range(file(), in, empty(), out, 100, 0)), 100);
    EXPECT_EQ(*in, 110);
    EXPECT_EQ(*out, 120);
}
CASE(copy_file_range_unknown_flag) { EXPECT_ERROR(copy_file_range(file(), NULL, empty(), NULL, 1, 4), EINVAL); }
CASE(copy_file_range_offset_in_a_hole) {
    EXPECT_ERROR(copy_file_range(file(), (void *)hole(), empty(), NULL, 1, 0), EFAULT);
}
CASE(splice_with_its_offset_away) {
    int fd[2];
    OK(pipe(fd));
    off_t *offset = astride(4);
    *offset = 5;
    away(offset, 8);
    EXPECT_EQ(splice(file(), offset, fd[1], NULL, 100, 0), 100);
    EXPECT_EQ(*offset, 105);
}
CASE(splice_of_two_files) { EXPECT_ERROR(splice(file(), NULL, empty(), NULL, 1, 0), EINVAL); }
CASE(splice_offset_of_a_pipe) {
    int fd[2];
    OK(pipe(fd));
    off_t *offset = astride(4);
    *offset = 0;
    EXPECT_ERROR(splice(file(), NULL, fd[1], offset, 1, 0), ESPIPE);
}
CASE(vmsplice_from_absent_pages) {
    int fd[2];
    OK(pipe(fd));
    char *p = absent(2), *q = absent(2);
    EXPECT_EQ(vmsplice(fd[1], two(p, PAGE, p + PAGE, 100), 2, 0), PAGE + 100);
    EXPECT_EQ(read(fd[0], q, 2 * PAGE), PAGE + 100);
    EXPECT(is_filled(q, PAGE + 100));
}
CASE(vmsplice_from_a_hole) {
    int fd[2];
    OK(pipe(fd));
    EXPECT_ERROR(vmsplice(fd[1], two(hole(), 1, hole(), 1), 2, 0), EFAULT);
}
CASE(vmsplice_to_absent_pages) {
    int fd[2];
    OK(pipe(fd));
    char *p = absent(1);
    EXPECT_EQ(write(fd[1], p, 100), 100);
    memset(p, 0, PAGE);
    away(p, PAGE);
    EXPECT_EQ(vmsplice(fd[0], two(p, 50, p + 50, 50), 2, 0), 100);
    EXPECT(is_filled(p, 100));
}
CASE(o_direct_from_and_to_absent_pages) {
    int fd = open("direct", O_CREAT | O_RDWR | O_DIRECT, 0600);
    if (fd == -1 && errno == EINVAL)
        SKIP("this file system has no O_DIRECT");
    char *p = absent(4), *q = absent(4);
    EXPECT_EQ(pwrite(fd, p, 4 * PAGE, 0), 4 * PAGE);
    memset(q, 0, 4 * PAGE);
    away(q, 4 * PAGE);
    EXPECT_EQ(pread(fd, q, 4 * PAGE, 0), 4 * PAGE);
    EXPECT(is_filled(q, 4 * PAGE));
}
CASE(pipe_with_its_numbers_away) {
    int *fd = astride(4);
    OK(pipe(fd));
    EXPECT_EQ(write(fd[1], "x", 1), 1);
}
CASE(pipe_with_its_numbers_in_a_hole) {
    EXPECT_ERROR(pipe((int *)hole()), EFAULT);
    EXPECT_EQ(OK(open("/dev/null", O_RDONLY)), OK(open("/dev/null", O_RDONLY)) - 1);
}
CASE(getrandom_to_absent_pages) {
    char *p = absent(3);
    memset(p, 0, BYTES);
    away(p, BYTES);
    EXPECT_EQ(syscall(SYS_getrandom, p, BYTES, 0), BYTES);
    size_t zeros = 0;
    for (size_t i = 0; i < BYTES; i++)
        zeros += p[i] == 0;
    EXPECT(zeros < BYTES / 100);
}
CASE(getrandom_to_a_hole) { EXPECT_ERROR(syscall(SYS_getrandom, hole(), 16, 0), EFAULT); }
CASE(memfd_mapped_and_written) {
    char *name = absent(1);
    strcpy(name + 100, "name");
    away(name, PAGE);
    int fd = OK(memfd_create(name + 100, MFD_ALLOW_SEALING | MFD_CLOEXEC));
    EXPECT_EQ(write(fd, absent(2), 2 * PAGE), 2 * PAGE);
    char *p = OK((char *)mmap(NULL, 2 * PAGE, PROT_READ, MAP_SHARED, fd, 0));
    EXPECT(is_filled(p, 2 * PAGE));
    OK(fcntl(fd, F_ADD_SEALS, F_SEAL_GROW));
    EXPECT_ERROR(write(fd, absent(1), 1), EPERM);
}
CASE(memfd_name_in_a_hole) { EXPECT_ERROR(memfd_create(hole(), 0), EFAULT); }
CASE(truncate_with_its_path_away) {
    int fd = file();
    char *path = absent(1);
    strcpy(path, "file");
    away(path, PAGE);
    OK(truncate(path, 5));
    EXPECT_EQ(lseek(fd, 0, SEEK_END), 5);
}
CASE(read_past_a_truncated_mapping_is_a_bus_error) {
    int fd = file();
    char *p = OK((char *)mmap(NULL, BYTES, PROT_READ, MAP_SHARED, fd, 0));
    OK(ftruncate(fd, 0));
    EXPECT_SIGNAL(CHILD(_exit(p[0])), SIGBUS);
}
CASE(write_from_a_truncated_mapping) {
    int fd = file();
    char *p = OK((char *)mmap(NULL, BYTES, PROT_READ, MAP_SHARED, fd, 0));
    OK(ftruncate(fd, 0));
    EXPECT_ERROR(write(empty(), p, 1), EFAULT);
}
