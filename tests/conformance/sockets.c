/* Sockets: of socket(2), send(2), recv(2), cmsg(3), accept(2), getsockopt(2) and their neighbours. */
#include "conformance.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

static int pair(int type, int which) {
    static int fd[2] = {-1, -1};
    if (fd[0] == -1)
        OK(socketpair(AF_UNIX, type, 0, fd));
    return fd[which];
}
#define A pair(SOCK_STREAM, 0)
#define B pair(SOCK_STREAM, 1)
#define DA pair(SOCK_DGRAM, 0)
#define DB pair(SOCK_DGRAM, 1)

/* A listening socket of this host, its address on an absent page. */
static int listener(struct sockaddr_in **at) {
    int fd = OK(socket(AF_INET, SOCK_STREAM, 0));
    struct sockaddr_in *a = astride(7);
    socklen_t *n = astride(2);
    memset(a, 0, sizeof *a);
    a->sin_family = AF_INET, a->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    away(a, sizeof *a);
    OK(bind(fd, (void *)a, sizeof *a));
    *n = sizeof *a;
    away(n, sizeof *n);
    OK(getsockname(fd, (void *)a, n));
    EXPECT_EQ(*n, sizeof *a);
    OK(listen(fd, 5));
    away(a, sizeof *a);
    *at = a;
    return fd;
}
/* A message whose header, vector and buffers are absent. */
static struct msghdr *message(char *first, size_t n, char *second, size_t m, size_t control) {
    struct msghdr *h = astride(24);
    struct iovec *v = astride(16);
    v[0].iov_base = first, v[0].iov_len = n, v[1].iov_base = second, v[1].iov_len = m;
    away(v, 2 * sizeof *v);
    memset(h, 0, sizeof *h);
    h->msg_iov = v, h->msg_iovlen = 2;
    if (control)
        h->msg_control = absent(2) + PAGE - 16, h->msg_controllen = control;
    away(h, sizeof *h);
    return h;
}

CASE(send_and_recv) {
    char *p = absent(3), *q = absent(3);
    EXPECT_EQ(send(A, p, 3 * PAGE, 0), 3 * PAGE);
    memset(q, 0, 3 * PAGE);
    away(q, 3 * PAGE);
    EXPECT_EQ(recv(B, q, 3 * PAGE, MSG_WAITALL), 3 * PAGE);
    EXPECT(is_filled(q, 3 * PAGE));
}
CASE(send_from_a_hole) { EXPECT_ERROR(send(A, hole(), 1, 0), EFAULT); }
CASE(recv_to_a_hole) {
    EXPECT_EQ(send(A, "x", 1, 0), 1);
    EXPECT_ERROR(recv(B, hole(), 1, 0), EFAULT);
}
CASE(recv_nothing) { EXPECT_ERROR(recv(A, absent(1), 1, MSG_DONTWAIT), EAGAIN); }
CASE(recv_after_the_end) {
    close(A);
    EXPECT_EQ(OK(recv(B, absent(1), 1, 0)), 0);
}
CASE(send_after_the_end) {
    close(B);
    EXPECT_ERROR(send(A, absent(1), 1, MSG_NOSIGNAL), EPIPE);
}
CASE(send_after_the_end_signals) {
    close(B);
    int fd = A;
    EXPECT_SIGNAL(CHILD(send(fd, absent(1), 1, 0)), SIGPIPE);
}
CASE(send_a_datagram_too_long) {
    char *p = absent(256);
    EXPECT_ERROR(send(DA, p, 256 * PAGE, 0), EMSGSIZE);
}
CASE(recv_truncates_a_datagram) {
    EXPECT_EQ(send(DA, absent(1), 100, 0), 100);
    EXPECT_EQ(recv(DB, absent(1), 10, MSG_TRUNC), 100);
}
CASE(recv_peeks) {
    EXPECT_EQ(send(DA, absent(1), 100, 0), 100);
    EXPECT_EQ(recv(DB, absent(1), 100, MSG_PEEK), 100);
    EXPECT_EQ(recv(DB, absent(1), 100, 0), 100);
}
CASE(send_on_no_socket) { EXPECT_ERROR(send(OK(open("/dev/null", O_RDWR)), absent(1), 1, 0), ENOTSOCK); }
CASE(read_and_write_of_a_socket) {
    EXPECT_EQ(write(A, absent(2), 2 * PAGE), 2 * PAGE);
    char *q = absent(2);
    memset(q, 0, 2 * PAGE);
    away(q, 2 * PAGE);
    EXPECT_EQ(read(B, q, PAGE + 5), PAGE + 5);
    EXPECT(is_filled(q, PAGE + 5));
}
CASE(write_of_two_mib_to_a_slow_reader) {
    int a = A, b = B;
    pid_t child = CHILD({
        close(a);
        char *got = pages(512);
        size_t n = 0;
        for (ssize_t r; (r = read(b, got + n, 50000)) > 0;)
            n += r;
        EXPECT_EQ(n, 512 * PAGE);
        EXPECT(is_filled(got, n));
    });
    close(b);
    char *p = pages(512);
    fill(p, 512 * PAGE);
    away(p, 64 * PAGE);
    EXPECT_EQ(write(a, p, 512 * PAGE), 512 * PAGE);
    close(a);
    EXPECT_EXIT(child, 0);
}
CASE(sendto_and_recvfrom_with_addresses) {
    int one = OK(socket(AF_INET, SOCK_DGRAM, 0)), two = OK(socket(AF_INET, SOCK_DGRAM, 0));
    struct sockaddr_in *a = astride(7), *from = astride(7);
    socklen_t *n = astride(2);
    memset(a, 0, sizeof *a);
    a->sin_family = AF_INET, a->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    OK(bind(one, (void *)a, sizeof *a));
    *n = sizeof *a;
    OK(getsockname(one, (void *)a, n));
    away(a, sizeof *a);
    char *p = absent(1);
    EXPECT_EQ(sendto(two, p, 100, 0, (void *)a, sizeof *a), 100);
    away(n, sizeof *n);
    EXPECT_EQ(recvfrom(one, p, PAGE, 0, (void *)from, n), 100);
    EXPECT_EQ(from->sin_addr.s_addr, htonl(INADDR_LOOPBACK));
    EXPECT_EQ(*n, sizeof *from);
    EXPECT_ERROR(sendto(two, p, 100, 0, (void *)hole(), sizeof *a), EFAULT);
}
CASE(recvfrom_length_in_a_hole) {
    EXPECT_EQ(send(DA, "x", 1, 0), 1);
    EXPECT_ERROR(recvfrom(DB, absent(1), 1, 0, (void *)absent(1), (void *)hole()), EFAULT);
}
CASE(accept_tells_the_address) {
    struct sockaddr_in *at, *from = astride(7);
    int fd = listener(&at), client = OK(socket(AF_INET, SOCK_STREAM, 0));
    OK(connect(client, (void *)at, sizeof *at));
    socklen_t *n = astride(2);
    *n = sizeof *from;
    away(n, sizeof *n);
    int got = OK(accept(fd, (void *)from, n));
    EXPECT_EQ(from->sin_family, AF_INET);
    EXPECT_EQ(*n, sizeof *from);
    away(from, sizeof *from);
    OK(getpeername(got, (void *)from, n));
    struct sockaddr_in mine;
    socklen_t size = sizeof mine;
    OK(getsockname(client, (void *)&mine, &size));
    EXPECT_EQ(mine.sin_port, from->sin_port);
}
CASE(accept_length_at_the_end_of_its_page) {
    struct sockaddr_in *at;
    int fd = listener(&at);
    OK(connect(OK(socket(AF_INET, SOCK_STREAM, 0)), (void *)at, sizeof *at));
    socklen_t *n = (socklen_t *)before_hole(sizeof *n);
    *n = 16;
    away(n, sizeof *n);
    OK(accept4(fd, (void *)absent(1), n, SOCK_CLOEXEC));
    EXPECT_EQ(*n, 16);
}
CASE(accept_address_in_a_hole) {
    struct sockaddr_in *at;
    int fd = listener(&at);
    OK(connect(OK(socket(AF_INET, SOCK_STREAM, 0)), (void *)at, sizeof *at));
    socklen_t n = 16;
    EXPECT_ERROR(accept(fd, (void *)hole(), &n), EFAULT);
}
CASE(accept_nobody) {
    struct sockaddr_in *at;
    int fd = listener(&at);
    OK(fcntl(fd, F_SETFL, O_NONBLOCK));
    EXPECT_ERROR(accept(fd, (void *)absent(1), astride(2)), EAGAIN);
}
CASE(accept_without_listening) { EXPECT_ERROR(accept(OK(socket(AF_INET, SOCK_STREAM, 0)), NULL, NULL), EINVAL); }
CASE(accept_truncates_the_address) {
    struct sockaddr_in *at;
    int fd = listener(&at);
    OK(connect(OK(socket(AF_INET, SOCK_STREAM, 0)), (void *)at, sizeof *at));
    socklen_t *n = astride(2);
    *n = 4;
    away(n, sizeof *n);
    OK(accept(fd, (void *)before_hole(4), n));
    EXPECT_EQ(*n, 16);
}
CASE(connect_to_nobody) {
    struct sockaddr_in *at;
    int fd = listener(&at);
    close(fd);
    EXPECT_ERROR(connect(OK(socket(AF_INET, SOCK_STREAM, 0)), (void *)at, sizeof *at), ECONNREFUSED);
}
CASE(connect_address_in_a_hole) {
    EXPECT_ERROR(connect(OK(socket(AF_INET, SOCK_STREAM, 0)), (void *)hole(), 16), EFAULT);
}
CASE(bind_twice) {
    struct sockaddr_in *at;
    listener(&at);
    EXPECT_ERROR(bind(OK(socket(AF_INET, SOCK_STREAM, 0)), (void *)at, sizeof *at), EADDRINUSE);
}
CASE(bind_a_path_away) {
    struct sockaddr_un *a = astride(50);
    memset(a, 0, sizeof *a);
    a->sun_family = AF_UNIX;
    strcpy(a->sun_path, "a-socket");
    away(a, sizeof *a);
    int fd = OK(socket(AF_UNIX, SOCK_STREAM, 0));
    OK(bind(fd, (void *)a, sizeof *a));
    OK(listen(fd, 1));
    OK(connect(OK(socket(AF_UNIX, SOCK_STREAM, 0)), (void *)a, sizeof *a));
}
CASE(sendmsg_and_recvmsg) {
    char *p = absent(3), *q = absent(3);
    EXPECT_EQ(sendmsg(A, message(p, 5000, p + 5000, 3 * PAGE - 5000, 0), 0), 3 * PAGE);
    memset(q, 0, 3 * PAGE);
    away(q, 3 * PAGE);
    EXPECT_EQ(recvmsg(B, message(q, 100, q + 100, 3 * PAGE - 100, 0), MSG_WAITALL), 3 * PAGE);
    EXPECT(is_filled(q, 3 * PAGE));
}
CASE(sendmsg_header_in_a_hole) { EXPECT_ERROR(sendmsg(A, (void *)hole(), 0), EFAULT); }
CASE(sendmsg_vector_in_a_hole) {
    struct msghdr *h = message(NULL, 0, NULL, 0, 0);
    h->msg_iov = (void *)hole();
    EXPECT_ERROR(sendmsg(A, h, 0), EFAULT);
}
CASE(recvmsg_header_in_a_hole) { EXPECT_ERROR(recvmsg(A, (void *)hole(), MSG_DONTWAIT), EFAULT); }
CASE(sendmsg_too_many_buffers) {
    struct msghdr *h = message(NULL, 0, NULL, 0, 0);
    h->msg_iov = (void *)absent(5), h->msg_iovlen = 1025;
    EXPECT_ERROR(sendmsg(A, h, 0), EMSGSIZE);
}
CASE(descriptors_travel) {
    struct msghdr *h = message(absent(1), 1, NULL, 0, CMSG_SPACE(sizeof(int)));
    struct cmsghdr *c = CMSG_FIRSTHDR(h);
    memset(c, 0, CMSG_SPACE(sizeof(int)));
    c->cmsg_level = SOL_SOCKET, c->cmsg_type = SCM_RIGHTS, c->cmsg_len = CMSG_LEN(sizeof(int));
    int null = OK(open("/dev/null", O_RDWR));
    memcpy(CMSG_DATA(c), &null, sizeof null);
    away(c, CMSG_SPACE(sizeof(int)));
    EXPECT_EQ(sendmsg(A, h, 0), 1);
    struct msghdr *g = message(absent(1), 1, NULL, 0, 64);
    EXPECT_EQ(recvmsg(B, g, 0), 1);
    c = CMSG_FIRSTHDR(g);
    EXPECT_EQ(c->cmsg_type, SCM_RIGHTS);
    int got;
    memcpy(&got, CMSG_DATA(c), sizeof got);
    EXPECT(got > null && fcntl(got, F_GETFD) == 0);
}
CASE(control_in_a_hole) {
    struct msghdr *h = message(absent(1), 1, NULL, 0, 0);
    h->msg_control = hole(), h->msg_controllen = 64;
    EXPECT_ERROR(sendmsg(A, h, 0), EFAULT);
}
CASE(control_truncated) {
    struct msghdr *h = message(absent(1), 1, NULL, 0, CMSG_SPACE(sizeof(int)));
    struct cmsghdr *c = CMSG_FIRSTHDR(h);
    memset(c, 0, CMSG_SPACE(sizeof(int)));
    c->cmsg_level = SOL_SOCKET, c->cmsg_type = SCM_RIGHTS, c->cmsg_len = CMSG_LEN(sizeof(int));
    EXPECT_EQ(sendmsg(A, h, 0), 1);
    struct msghdr *g = message(absent(1), 1, NULL, 0, 0);
    EXPECT_EQ(recvmsg(B, g, 0), 1);
    EXPECT_EQ(g->msg_flags & MSG_CTRUNC, MSG_CTRUNC);
}
CASE(credentials_arrive) {
    int *on = astride(2);
    *on = 1;
    away(on, sizeof *on);
    OK(setsockopt(B, SOL_SOCKET, SO_PASSCRED, on, sizeof *on));
    EXPECT_EQ(send(A, "x", 1, 0), 1);
    struct msghdr *g = message(absent(1), 1, NULL, 0, 64);
    EXPECT_EQ(recvmsg(B, g, 0), 1);
    struct cmsghdr *c = CMSG_FIRSTHDR(g);
    EXPECT_EQ(c->cmsg_type, SCM_CREDENTIALS);
    struct ucred u;
    memcpy(&u, CMSG_DATA(c), sizeof u);
    EXPECT_EQ(u.pid, getpid());
}
CASE(sendmmsg_and_recvmmsg) {
    struct mmsghdr *m = astride(70);
    char *p = absent(4);
    for (int i = 0; i < 2; i++)
        m[i].msg_hdr = *message(p + i * PAGE, 100, p, 50, 0);
    away(m, 2 * sizeof *m);
    EXPECT_EQ(sendmmsg(DA, m, 2, 0), 2);
    EXPECT_EQ(m[1].msg_len, 150);
    away(m, 2 * sizeof *m);
    struct timespec *t = astride(8);
    t->tv_sec = 10, t->tv_nsec = 0;
    away(t, sizeof *t);
    EXPECT_EQ(recvmmsg(DB, m, 2, 0, t), 2);
    EXPECT_EQ(m[0].msg_len, 150);
    EXPECT_EQ(m[1].msg_len, 150);
}
CASE(sendmmsg_second_in_a_hole) {
    struct mmsghdr *m = (struct mmsghdr *)before_hole(sizeof *m);
    m->msg_hdr = *message(absent(1), 100, NULL, 0, 0);
    EXPECT_EQ(sendmmsg(DA, m, 2, 0), 1);
}
CASE(recvmmsg_time_in_a_hole) { EXPECT_ERROR(recvmmsg(DA, (void *)absent(1), 1, 0, (void *)hole()), EFAULT); }
CASE(options_away) {
    int fd = OK(socket(AF_INET, SOCK_STREAM, 0)), *value = astride(2);
    socklen_t *n = astride(2);
    *value = 70000;
    away(value, sizeof *value);
    OK(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, value, sizeof *value));
    *n = sizeof *value;
    away(n, sizeof *n);
    OK(getsockopt(fd, SOL_SOCKET, SO_RCVBUF, value, n));
    EXPECT_EQ(*value, 140000);
    EXPECT_EQ(*n, 4);
    struct tcp_info *info = astride(60);
    *n = sizeof *info;
    away(n, sizeof *n);
    OK(getsockopt(fd, IPPROTO_TCP, TCP_INFO, info, n));
    EXPECT(*n > 100);
}
CASE(option_at_the_end_of_its_page) {
    socklen_t *n = (socklen_t *)before_hole(4);
    int *value = (int *)before_hole(4);
    *n = 4;
    away(n, 4);
    OK(getsockopt(A, SOL_SOCKET, SO_TYPE, value, n));
    EXPECT_EQ(*value, SOCK_STREAM);
}
CASE(option_in_a_hole) {
    EXPECT_ERROR(setsockopt(A, SOL_SOCKET, SO_RCVBUF, hole(), 4), EFAULT);
    socklen_t n = 4;
    EXPECT_ERROR(getsockopt(A, SOL_SOCKET, SO_RCVBUF, hole(), &n), EFAULT);
    EXPECT_ERROR(getsockopt(A, SOL_SOCKET, SO_RCVBUF, absent(1), (void *)hole()), EFAULT);
}
CASE(option_unknown) { EXPECT_ERROR(setsockopt(A, SOL_SOCKET, 9999, absent(1), 4), ENOPROTOOPT); }
CASE(filter_program_away) {
    /* struct sock_fprog: a count, and a pointer to the instructions. */
    struct {
        unsigned short count;
        void *code;
    } *program = astride(8);
    uint64_t *code = astride(4);
    *code = 0x0000000600000000UL >> 0 | 6; /* ret 0 */
    program->count = 1, program->code = code;
    away(code, 8);
    away(program, 16);
    OK(setsockopt(DB, SOL_SOCKET, SO_ATTACH_FILTER, program, 16));
}
CASE(socketpair_away) {
    int *fd = astride(4);
    OK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, fd));
    EXPECT_EQ(send(fd[0], absent(1), 10, 0), 10);
    EXPECT_EQ(recv(fd[1], absent(1), 100, 0), 10);
}
CASE(socketpair_in_a_hole) { EXPECT_ERROR(socketpair(AF_UNIX, SOCK_STREAM, 0, (void *)hole()), EFAULT); }
CASE(socket_of_no_family) { EXPECT_ERROR(socket(99, SOCK_STREAM, 0), EAFNOSUPPORT); }
CASE(interfaces_by_ioctl) {
    /* SIOCGIFCONF: a structure that points to a buffer. */
    struct ifconf *c = astride(8);
    c->ifc_len = 10 * sizeof(struct ifreq), c->ifc_buf = absent(2) + PAGE - 100;
    away(c, sizeof *c);
    OK(ioctl(OK(socket(AF_INET, SOCK_DGRAM, 0)), SIOCGIFCONF, c));
    EXPECT(c->ifc_len >= 0);
}
CASE(ioctl_bytes_to_read) {
    EXPECT_EQ(send(A, absent(1), 77, 0), 77);
    int *n = astride(2);
    OK(ioctl(B, FIONREAD, n));
    EXPECT_EQ(*n, 77);
    EXPECT_ERROR(ioctl(B, FIONREAD, hole()), EFAULT);
}
CASE(ioctl_of_a_file_that_has_none) {
    EXPECT_ERROR(ioctl(OK(open("/dev/null", O_RDONLY)), TIOCGWINSZ, absent(1)), ENOTTY);
}
CASE(netlink_answers) {
    int fd = OK(socket(AF_NETLINK, SOCK_RAW, 0));
    struct {
        uint32_t length;
        uint16_t type, flags;
        uint32_t sequence, pid;
        char family[16];
    } *ask = astride(16);
    memset(ask, 0, sizeof *ask);
    ask->length = sizeof *ask, ask->type = 18 /* RTM_GETLINK */, ask->flags = 0x301;
    away(ask, sizeof *ask);
    EXPECT_EQ(send(fd, ask, sizeof *ask, 0), sizeof *ask);
    EXPECT(recv(fd, absent(8), 8 * PAGE, 0) > 100);
}
