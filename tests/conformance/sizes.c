/* Structures that calls read and write, with their last bytes on a page that is absent. */
#include "conformance.h"

#include <linux/fs.h>
#include <net/if.h>
#include <sys/epoll.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/vfs.h>
#include <termios.h>

CASE(a_message_whose_end_is_absent) {
    int queue = OK(msgget(IPC_PRIVATE, 0600));
    const size_t bytes = 64;
    for (int i = 0; i < 20; i++) {
        /* Type and all but eight bytes of the text on the first page. */
        char *from = astride(bytes), text[72];
        *(long *)from = 5;
        memcpy(text, from, sizeof text);
        away(from, 72);
        int sent = msgsnd(queue, from, bytes, 0), error = errno;
        char *to = absent(2) + PAGE - bytes;
        long got = sent == 0 ? msgrcv(queue, to, bytes, 0, 0) : -1;
        if (sent != 0 || got != (long)bytes)
            msgctl(queue, IPC_RMID, NULL);
        if (sent != 0)
            FAIL("message %d: msgsnd: %s", i, strerror(error));
        EXPECT_EQ(got, bytes);
        EXPECT(memcmp(to, text, sizeof text) == 0);
    }
    OK(msgctl(queue, IPC_RMID, NULL));
}

CASE(a_length_at_the_end_of_a_page) {
    int pair[2];
    OK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    char *p = pages(1);
    struct sockaddr_un *name = astride(1);
    for (int i = 0; i < 3; i++) {
        socklen_t *length = (socklen_t *)(p + PAGE - sizeof *length);
        *length = sizeof *name;
        away(length, sizeof *length);
        away(name, sizeof *name);
        OK(getsockname(pair[0], (struct sockaddr *)name, length));
        EXPECT_EQ(name->sun_family, AF_UNIX);
        int *type = astride(2);
        *length = sizeof *type;
        away(type, sizeof *type);
        away(length, sizeof *length);
        OK(getsockopt(pair[0], SOL_SOCKET, SO_TYPE, type, length));
        EXPECT_EQ(*type, SOCK_STREAM);
    }
}

CASE(select_of_two_thousand_descriptors) {
    struct rlimit limit;
    OK(getrlimit(RLIMIT_NOFILE, &limit));
    if (limit.rlim_max < 2100)
        SKIP("fewer than 2100 descriptors");
    limit.rlim_cur = 2100;
    OK(setrlimit(RLIMIT_NOFILE, &limit));
    int pipes[2];
    OK(pipe(pipes));
    OK(dup2(pipes[1], 2047));
    const size_t bytes = 2048 / 8;
    for (int i = 0; i < 3; i++) {
        /* The sets' first 128 bytes are on the first page. */
        char *sets[2];
        for (int k = 0; k < 2; k++) {
            sets[k] = absent(2) + PAGE - 128;
            memset(sets[k], 0, bytes);
        }
        sets[1][2047 / 8] = (char)(1 << (2047 % 8));
        away(sets[0], bytes);
        away(sets[1], bytes);
        struct timeval none = {0, 0};
        EXPECT_EQ(syscall(SYS_select, 2048, sets[0], sets[1], NULL, &none), 1);
        EXPECT(sets[1][2047 / 8] != 0);
    }
}

CASE(an_ioctl_whose_structure_goes_on_in_the_next_page) {
    int fd = OK(socket(AF_INET, SOCK_DGRAM, 0));
    struct ifreq *request = astride(sizeof request->ifr_name);
    memset(request, 0, sizeof *request);
    strcpy(request->ifr_name, "lo");
    away(request, sizeof *request);
    OK(ioctl(fd, SIOCGIFFLAGS, request));
    EXPECT(request->ifr_flags & IFF_LOOPBACK);
    int pty = OK(open("/dev/ptmx", O_RDWR | O_NOCTTY));
    struct termios *modes = astride(8);
    OK(syscall(SYS_ioctl, pty, TCGETS, modes));
}

CASE(an_ioctl_whose_structure_points_to_a_buffer) {
    int fd = OK(socket(AF_INET, SOCK_DGRAM, 0));
    struct ifconf here = {.ifc_len = 2 * PAGE, .ifc_buf = absent(2)};
    OK(ioctl(fd, SIOCGIFCONF, &here));
    struct ifconf *there = astride(sizeof there->ifc_len);
    there->ifc_len = 2 * PAGE;
    there->ifc_buf = absent(2);
    away(there, sizeof *there);
    OK(ioctl(fd, SIOCGIFCONF, there));
    EXPECT_EQ(there->ifc_len, here.ifc_len);
}

CASE(a_name_of_a_thread_over_two_pages) {
    char *name = astride(4);
    strcpy(name, "over two pages");
    away(name, 16);
    OK(prctl(PR_SET_NAME, name));
    char *back = astride(4);
    OK(prctl(PR_GET_NAME, back));
    EXPECT(strcmp(back, "over two pages") == 0);
}

CASE(all_semaphores_of_a_set) {
    const unsigned count = 64;
    int set = OK(semget(IPC_PRIVATE, count, 0600));
    unsigned short *values = astride(8);
    for (unsigned i = 0; i < count; i++)
        values[i] = i + 1;
    away(values, count * sizeof *values);
    int r = semctl(set, 0, SETALL, values), error = errno;
    unsigned short *back = astride(8);
    int got = semctl(set, 0, GETALL, back);
    struct semid_ds *about = astride(8);
    int asked = semctl(set, 0, IPC_STAT, about);
    semctl(set, 0, IPC_RMID);
    errno = error;
    EXPECT_EQ(r, 0);
    EXPECT_EQ(got, 0);
    EXPECT_EQ(asked, 0);
    EXPECT_EQ(about->sem_nsems, count);
    for (unsigned i = 0; i < count; i++)
        EXPECT_EQ(back[i], i + 1);
}

CASE(a_filter_of_a_socket) {
    int fd = OK(socket(AF_INET, SOCK_DGRAM, 0));
    struct { unsigned short code; unsigned char jt, jf; unsigned k; } *code = astride(8);
    memset(code, 0, 2 * sizeof *code);
    code[0].code = code[1].code = 0x06;
    away(code, 2 * sizeof *code);
    struct { unsigned short length; void *code; } program = {2, code};
    OK(setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program));
}

CASE(own_memory_by_process_vm_readv) {
    char *from = absent(8), *to = absent(8);
    struct iovec local = {to, 8 * PAGE}, remote = {from, 8 * PAGE};
    EXPECT_EQ(process_vm_readv(getpid(), &local, 1, &remote, 1, 0), 8 * PAGE);
    EXPECT(is_filled(to, 8 * PAGE));
    memset(to, 7, 8 * PAGE);
    away(to, 8 * PAGE);
    away(from, 8 * PAGE);
    EXPECT_EQ(process_vm_writev(getpid(), &local, 1, &remote, 1, 0), 8 * PAGE);
    for (size_t i = 0; i < 8 * PAGE; i++)
        EXPECT_EQ(from[i], 7);
}

CASE(own_memory_by_its_file) {
    int fd = OK(open("/proc/self/mem", O_RDWR));
    char *from = absent(4), *to = absent(4);
    EXPECT_EQ(pread(fd, to, 4 * PAGE, (off_t)from), 4 * PAGE);
    EXPECT(is_filled(to, 4 * PAGE));
    away(from, 4 * PAGE);
    EXPECT_EQ(pwrite(fd, "there", 5, (off_t)from + 100), 5);
    EXPECT(memcmp(from + 100, "there", 5) == 0);
    fill(from, 4 * PAGE);
    away(from, 4 * PAGE);
    OK(lseek(fd, (off_t)from, SEEK_SET));
    memset(to, 0, 4 * PAGE);
    EXPECT_EQ(read(fd, to, 4 * PAGE), 4 * PAGE);
    EXPECT(is_filled(to, 4 * PAGE));
}

CASE(asynchronous_input_and_output_is_refused_or_right) {
    /* By libc and by a raw system call: a library that makes the call itself falls back as well. */
    char params[120] = {0};
    unsigned long context = 0;
    long by_libc = syscall(SYS_io_setup, 4, &context);
    by_libc = by_libc == -1 ? -errno : by_libc;
    context = 0;
    EXPECT_EQ(RAW(SYS_io_setup, 4, &context), by_libc);
    long ring = syscall(SYS_io_uring_setup, 4, params);
    ring = ring == -1 ? -errno : 0;
    memset(params, 0, sizeof params);
    long raw = RAW(SYS_io_uring_setup, 4, params);
    EXPECT_EQ(raw < 0 ? raw : 0, ring);
}
