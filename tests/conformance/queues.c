/* System V and POSIX messages, semaphores and shared memory, asynchronous I/O, and a program's userfaultfd. */
#include "conformance.h"

#include <linux/aio_abi.h>
#include <linux/userfaultfd.h>
#include <mqueue.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/shm.h>

struct text {
    long type;
    char bytes[100];
};
static int queue(void) { return NEEDS(msgget(IPC_PRIVATE, 0600)); }
static void *filled_text(size_t before) {
    struct text *m = astride(before);
    m->type = 5;
    fill(m->bytes, 100);
    away(m, sizeof *m);
    return m;
}

CASE(message_of_system_v) {
    int id = queue();
    for (size_t before = 4; before < 108; before += 8) {
        struct text *got = astride(before);
        OK(msgsnd(id, filled_text(before), 100, 0));
        memset(got, 0, sizeof *got);
        away(got, sizeof *got);
        EXPECT_EQ(OK(msgrcv(id, got, 100, 0, 0)), 100);
        EXPECT(got->type == 5 && is_filled(got->bytes, 100));
    }
    OK(msgctl(id, IPC_RMID, NULL));
}
CASE(message_that_just_fits) {
    int id = queue();
    struct text *m = (void *)before_hole(108);
    m->type = 5;
    away(m, 108);
    OK(msgsnd(id, m, 100, 0));
    EXPECT_EQ(OK(msgrcv(id, (void *)before_hole(108), 100, 0, 0)), 100);
    msgctl(id, IPC_RMID, NULL);
}
CASE(message_that_ends_in_a_hole) {
    int id = queue();
    struct text *m = (void *)before_hole(107);
    m->type = 5;
    errno = 0;
    int sent = msgsnd(id, m, 100, 0), error = errno;
    msgctl(id, IPC_RMID, NULL);
    EXPECT_EQ(sent, -1);
    EXPECT_EQ(error, EFAULT);
}
CASE(message_of_no_type) {
    int id = queue();
    struct text *m = (void *)absent(1);
    m->type = 0;
    errno = 0;
    int sent = msgsnd(id, m, 100, 0), error = errno;
    msgctl(id, IPC_RMID, NULL);
    EXPECT_EQ(sent, -1);
    EXPECT_EQ(error, EINVAL);
}
CASE(message_queue_told) {
    int id = queue();
    struct msqid_ds *d = astride(60);
    int told = msgctl(id, IPC_STAT, d);
    msgctl(id, IPC_RMID, NULL);
    EXPECT_EQ(told, 0);
    EXPECT_EQ(d->msg_qnum, 0);
    EXPECT_ERROR(msgctl(id, IPC_STAT, d), EINVAL);
}
CASE(semaphores_of_system_v) {
    int id = NEEDS(semget(IPC_PRIVATE, 3, 0600));
    unsigned short *all = astride(3);
    all[0] = 1, all[1] = 2, all[2] = 3;
    away(all, 6);
    OK(semctl(id, 0, SETALL, all));
    struct sembuf *op = astride(8);
    op[0] = (struct sembuf){.sem_num = 1, .sem_op = -1}, op[1] = (struct sembuf){.sem_num = 2, .sem_op = 4};
    away(op, 12);
    OK(semop(id, op, 2));
    away(all, 6);
    OK(semctl(id, 0, GETALL, all));
    EXPECT(all[0] == 1 && all[1] == 1 && all[2] == 7);
    struct timespec *t = astride(8);
    t->tv_sec = 0, t->tv_nsec = 2000000;
    op[0] = (struct sembuf){.sem_num = 0, .sem_op = -5};
    away(t, sizeof *t);
    away(op, 6);
    EXPECT_ERROR(semtimedop(id, op, 1, t), EAGAIN);
    EXPECT_ERROR(semop(id, (void *)hole(), 1), EFAULT);
    struct semid_ds *d = astride(50);
    OK(semctl(id, 0, IPC_STAT, d));
    EXPECT_EQ(d->sem_nsems, 3);
    OK(semctl(id, 0, IPC_RMID));
}
CASE(shared_memory_of_system_v) {
    int id = NEEDS(shmget(IPC_PRIVATE, 4 * PAGE, 0600));
    char *p = OK((char *)shmat(id, NULL, 0));
    struct shmid_ds *d = astride(60);
    OK(shmctl(id, IPC_STAT, d));
    EXPECT_EQ(d->shm_nattch, 1);
    EXPECT_EQ(d->shm_segsz, 4 * PAGE);
    OK(shmctl(id, IPC_RMID, NULL));
    fill(p, 4 * PAGE);
    EXPECT_EXIT(CHILD({
                    EXPECT(is_filled(p, 4 * PAGE));
                    p[0] = 99;
                }),
                0);
    EXPECT_EQ(p[0], 99);
    OK(shmdt(p));
    EXPECT_ERROR(shmdt(p), EINVAL);
}
CASE(shared_memory_over_a_mapping) {
    int id = NEEDS(shmget(IPC_PRIVATE, PAGE, 0600));
    char *p = absent(3);
    void *got = shmat(id, p + PAGE, SHM_REMAP);
    shmctl(id, IPC_RMID, NULL);
    EXPECT(got == p + PAGE);
    EXPECT_EQ(p[PAGE], 0);
    EXPECT(is_filled(p, PAGE));
}
CASE(shared_memory_at_a_taken_place) {
    int id = NEEDS(shmget(IPC_PRIVATE, PAGE, 0600));
    errno = 0;
    void *got = shmat(id, absent(1), 0);
    int error = errno;
    shmctl(id, IPC_RMID, NULL);
    EXPECT(got == (void *)-1);
    EXPECT_EQ(error, EINVAL);
}
CASE(message_of_posix) {
    char *name = astride(4);
    snprintf(name, 64, "/canvas-conformance-%d", getpid());
    struct mq_attr *a = astride(16);
    memset(a, 0, sizeof *a);
    a->mq_maxmsg = 5, a->mq_msgsize = 200;
    away(a, sizeof *a);
    away(name, 64);
    mqd_t q = NEEDS(mq_open(name, O_CREAT | O_RDWR, 0600, a));
    mq_unlink(name);
    char *p = absent(1), *got = astride(70);
    unsigned *priority = astride(2);
    OK(mq_send(q, p, 150, 7));
    EXPECT_EQ(OK(mq_receive(q, got, 200, priority)), 150);
    EXPECT_EQ(*priority, 7);
    EXPECT(is_filled(got, 150));
    EXPECT_ERROR(mq_receive(q, got, 100, NULL), EMSGSIZE);
    EXPECT_ERROR(mq_send(q, hole(), 10, 0), EFAULT);
    struct timespec *t = astride(8);
    t->tv_sec = 1, t->tv_nsec = 0;
    away(t, sizeof *t);
    EXPECT_ERROR(mq_timedreceive(q, got, 200, NULL, t), ETIMEDOUT);
    away(a, sizeof *a);
    OK(mq_getattr(q, a));
    EXPECT_EQ(a->mq_msgsize, 200);
}
CASE(libaio_works_or_is_refused) {
    /* Programs fall back where the kernel has none. */
    aio_context_t *context = astride(4);
    *context = 0;
    away(context, 8);
    long set_up = RAW(SYS_io_setup, 4, context);
    if (set_up == -ENOSYS)
        return;
    EXPECT_EQ(set_up, 0);
    char *p = absent(2), *q = absent(2);
    int fd = OK(open("f", O_CREAT | O_RDWR, 0600));
    struct iocb *one = astride(30), **list = astride(4);
    memset(one, 0, sizeof *one);
    one->aio_fildes = fd, one->aio_lio_opcode = IOCB_CMD_PWRITE, one->aio_buf = (uintptr_t)p, one->aio_nbytes = 2 * PAGE;
    *list = one;
    away(one, sizeof *one);
    away(list, 8);
    away(p, 2 * PAGE);
    EXPECT_EQ(RAW(SYS_io_submit, *context, 1, list), 1);
    struct io_event *e = astride(16);
    EXPECT_EQ(RAW(SYS_io_getevents, *context, 1, 1, e, NULL), 1);
    EXPECT_EQ(e->res, 2 * PAGE);
    EXPECT_EQ(pread(fd, q, 2 * PAGE, 0), 2 * PAGE);
    EXPECT(is_filled(q, 2 * PAGE));
}
CASE(io_uring_works_or_is_refused) {
    long fd = RAW(SYS_io_uring_setup, 4, hole());
    EXPECT(fd == -EFAULT || fd == -ENOSYS || fd == -EPERM);
}
CASE(userfaultfd_of_ones_own) {
    int fd = syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
    if (fd == -1)
        SKIP("no userfaultfd here: %s", strerror(errno));
    struct uffdio_api *api = astride(12);
    memset(api, 0, sizeof *api);
    api->api = UFFD_API;
    away(api, sizeof *api);
    OK(ioctl(fd, UFFDIO_API, api));
    char *p = pages(4);
    struct uffdio_register *r = astride(16);
    memset(r, 0, sizeof *r);
    r->range.start = (uintptr_t)p, r->range.len = 4 * PAGE, r->mode = UFFDIO_REGISTER_MODE_MISSING;
    away(r, sizeof *r);
    OK(ioctl(fd, UFFDIO_REGISTER, r));
    struct uffdio_copy *c = astride(20);
    memset(c, 0, sizeof *c);
    c->dst = (uintptr_t)p, c->src = (uintptr_t)absent(1), c->len = PAGE;
    away(c, sizeof *c);
    OK(ioctl(fd, UFFDIO_COPY, c));
    EXPECT(is_filled(p, PAGE));
}
