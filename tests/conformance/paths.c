/* Paths, and what the kernel writes about files: of stat(2), statx(2), getdents(2), readlink(2), getcwd(2), xattr(7),
 * inotify(7), fcntl(2) and their neighbours. */
#include "conformance.h"

#include <linux/stat.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/statfs.h>
#include <sys/sysinfo.h>
#include <sys/utsname.h>
#include <sys/xattr.h>
#include <utime.h>

/* `text` on an absent page, across its end where it fits. */
static char *path(const char *text) {
    char *p = astride(strlen(text) / 2 + 1);
    strcpy(p, text);
    away(p, strlen(text) + 1);
    return p;
}
/* `text` without an end, before a hole. */
static char *endless(const char *text) {
    char *p = before_hole(strlen(text));
    memcpy(p, text, strlen(text));
    return p;
}
static void make(const char *name) { OK(close(OK(open(name, O_CREAT | O_RDWR, 0600)))); }
static struct linux_dirent64_ {
    uint64_t ino, off;
    unsigned short length;
    unsigned char type;
    char name[];
} *unused;

CASE(open_with_its_path_away) {
    make("file");
    OK(open(path("file"), O_RDONLY));
}
CASE(open_path_in_a_hole) { EXPECT_ERROR(open(hole(), O_RDONLY), EFAULT); }
CASE(open_path_without_an_end) { EXPECT_ERROR(open(endless("file"), O_RDONLY), EFAULT); }
CASE(open_path_ends_at_a_hole) {
    make("file");
    char *p = before_hole(5);
    strcpy(p, "file");
    away(p, 5);
    OK(open(p, O_RDONLY));
}
CASE(open_path_too_long) {
    char *p = absent(2);
    memset(p, 'a', 5000);
    p[5000] = 0;
    EXPECT_ERROR(open(p, O_RDONLY), ENAMETOOLONG);
}
CASE(open_empty_path) { EXPECT_ERROR(open(path(""), O_RDONLY), ENOENT); }
CASE(open_exclusive) {
    make("file");
    EXPECT_ERROR(open(path("file"), O_CREAT | O_EXCL | O_RDWR, 0600), EEXIST);
}
CASE(open_at_the_descriptor_limit) {
    struct rlimit r = {3, 3};
    OK(setrlimit(RLIMIT_NOFILE, &r));
    EXPECT_ERROR(open(path("/dev/null"), O_RDONLY), EMFILE);
}
CASE(openat2_with_its_structure_away) {
    make("file");
    uint64_t *how = astride(8);
    how[0] = O_RDONLY, how[1] = 0, how[2] = 0;
    away(how, 24);
    NEEDS(syscall(SYS_openat2, AT_FDCWD, path("file"), how, 24));
}
CASE(openat2_structure_in_a_hole) { EXPECT_ERROR(syscall(SYS_openat2, AT_FDCWD, "file", hole(), 24), EFAULT); }
CASE(openat2_structure_with_a_future_field) {
    uint64_t *how = astride(16);
    how[0] = O_RDONLY, how[1] = 0, how[2] = 0, how[3] = 1;
    away(how, 32);
    EXPECT_ERROR(syscall(SYS_openat2, AT_FDCWD, path("."), how, 32), E2BIG);
}
CASE(stat_to_absent_pages) {
    make("file");
    struct stat *st = astride(60);
    OK(stat(path("file"), st));
    EXPECT_EQ(st->st_mode, S_IFREG | 0600);
    EXPECT_EQ(st->st_uid, geteuid());
}
CASE(lstat_of_a_link) {
    OK(symlink(path("nowhere"), path("link")));
    struct stat *st = astride(60);
    OK(lstat(path("link"), st));
    EXPECT(S_ISLNK(st->st_mode));
}
CASE(fstat_to_absent_pages) {
    struct stat *st = astride(60);
    OK(fstat(OK(open("/dev/null", O_RDONLY)), st));
    EXPECT(S_ISCHR(st->st_mode));
}
CASE(stat_to_a_hole) { EXPECT_ERROR(stat(".", (void *)hole()), EFAULT); }
CASE(stat_ends_in_a_hole) { EXPECT_ERROR(stat(".", (void *)before_hole(sizeof(struct stat) - 8)), EFAULT); }
CASE(stat_just_fits) { OK(stat(".", (void *)before_hole(sizeof(struct stat)))); }
CASE(stat_of_nothing) { EXPECT_ERROR(stat(path("none"), (void *)absent(1)), ENOENT); }
CASE(stat_below_a_file) {
    make("file");
    EXPECT_ERROR(stat(path("file/x"), (void *)absent(1)), ENOTDIR);
}
CASE(statx_to_absent_pages) {
    make("file");
    struct statx *st = astride(100);
    OK(statx(AT_FDCWD, path("file"), 0, STATX_BASIC_STATS, st));
    EXPECT_EQ(st->stx_mode, S_IFREG | 0600);
}
CASE(statx_to_a_hole) { EXPECT_ERROR(statx(AT_FDCWD, ".", 0, STATX_BASIC_STATS, (void *)hole()), EFAULT); }
CASE(statfs_to_absent_pages) {
    struct statfs *st = astride(60);
    OK(statfs(path("/proc"), st));
    EXPECT_EQ(st->f_type, 0x9fa0);
}
CASE(fstatfs_to_a_hole) { EXPECT_ERROR(fstatfs(OK(open("/", O_RDONLY)), (void *)hole()), EFAULT); }
CASE(access_with_its_path_away) { OK(access(path("/proc/self/maps"), R_OK)); }
USER_CASE(access_denied) { EXPECT_ERROR(access(path("/etc/shadow"), W_OK), EACCES); }
CASE(getdents_to_absent_pages) {
    for (int i = 0; i < 300; i++) {
        char name[32];
        snprintf(name, sizeof name, "file-number-%d", i);
        make(name);
    }
    int fd = OK(open(".", O_RDONLY)), count = 0;
    char *p = absent(2);
    for (long n; (n = OK(syscall(SYS_getdents64, fd, p + 100, 2 * PAGE - 100))) > 0;) {
        for (long at = 0; at < n; at += ((struct linux_dirent64_ *)(p + 100 + at))->length)
            count++;
        away(p, 2 * PAGE);
    }
    EXPECT_EQ(count, 302);
    (void)unused;
}
CASE(getdents_to_a_hole) { EXPECT_ERROR(syscall(SYS_getdents64, OK(open(".", O_RDONLY)), hole(), 1000), EFAULT); }
CASE(getdents_too_little_room) {
    EXPECT_ERROR(syscall(SYS_getdents64, OK(open(".", O_RDONLY)), absent(1), 10), EINVAL);
}
CASE(getdents_of_a_file) {
    make("file");
    EXPECT_ERROR(syscall(SYS_getdents64, OK(open("file", O_RDONLY)), absent(1), PAGE), ENOTDIR);
}
CASE(readlink_to_absent_pages) {
    OK(symlink("target", "link"));
    char *p = astride(3);
    EXPECT_EQ(readlink(path("link"), p, 100), 6);
    EXPECT(!memcmp(p, "target", 6));
}
CASE(readlink_truncates) {
    OK(symlink("target", "link"));
    EXPECT_EQ(readlink("link", before_hole(3), 3), 3);
}
CASE(readlink_to_a_hole) {
    OK(symlink("target", "link"));
    EXPECT_ERROR(readlink("link", hole(), 10), EFAULT);
}
CASE(readlink_of_no_link) { EXPECT_ERROR(readlink(".", absent(1), 10), EINVAL); }
CASE(getcwd_to_absent_pages) {
    char *p = astride(4);
    EXPECT(syscall(SYS_getcwd, p, 2000) > 1);
    EXPECT_EQ(p[0], '/');
}
CASE(getcwd_too_little_room) { EXPECT_ERROR(syscall(SYS_getcwd, absent(1), 2), ERANGE); }
CASE(getcwd_to_a_hole) { EXPECT_ERROR(syscall(SYS_getcwd, hole(), 4096), EFAULT); }
CASE(mkdir_rename_link_unlink_rmdir) {
    OK(mkdir(path("dir"), 0700));
    make("file");
    OK(link(path("file"), path("dir/link")));
    OK(rename(path("dir/link"), path("dir/other")));
    OK(unlink(path("dir/other")));
    OK(rmdir(path("dir")));
    OK(unlink(path("file")));
}
CASE(rename_both_paths_in_holes) { EXPECT_ERROR(rename(hole(), hole()), EFAULT); }
CASE(renameat2_exchange) {
    make("a");
    OK(mkdir("b", 0700));
    NEEDS(renameat2(AT_FDCWD, path("a"), AT_FDCWD, path("b"), RENAME_EXCHANGE));
    struct stat st;
    OK(stat("a", &st));
    EXPECT(S_ISDIR(st.st_mode));
}
CASE(chmod_and_chdir) {
    OK(mkdir("dir", 0700));
    OK(chmod(path("dir"), 0750));
    OK(chdir(path("dir")));
    EXPECT_ERROR(chdir(hole()), EFAULT);
}
USER_CASE(chown_denied) {
    make("file");
    EXPECT_ERROR(chown(path("file"), 0, 0), EPERM);
}
CASE(utimensat_with_its_times_away) {
    make("file");
    struct timespec *t = astride(16);
    t[0] = (struct timespec){1000, 5}, t[1] = (struct timespec){2000, 6};
    away(t, 32);
    OK(utimensat(AT_FDCWD, path("file"), t, 0));
    struct stat st;
    OK(stat("file", &st));
    EXPECT_EQ(st.st_atim.tv_sec, 1000);
    EXPECT_EQ(st.st_mtim.tv_sec, 2000);
}
CASE(utimensat_times_in_a_hole) {
    make("file");
    EXPECT_ERROR(utimensat(AT_FDCWD, "file", (void *)hole(), 0), EFAULT);
}
CASE(utime_with_its_times_away) {
    make("file");
    struct utimbuf *t = astride(8);
    t->actime = 7, t->modtime = 8;
    away(t, 16);
    OK(syscall(SYS_utime, path("file"), t));
    struct stat st;
    OK(stat("file", &st));
    EXPECT_EQ(st.st_mtim.tv_sec, 8);
}
CASE(xattr_set_and_got) {
    make("file");
    char *value = absent(1), *got = absent(1);
    NEEDS(setxattr(path("file"), path("user.name"), value, 1000, 0));
    memset(got, 0, PAGE);
    away(got, PAGE);
    EXPECT_EQ(getxattr(path("file"), path("user.name"), got, PAGE), 1000);
    EXPECT(is_filled(got, 1000));
    EXPECT_EQ(listxattr(path("file"), astride(5), 200), 10);
    EXPECT_ERROR(getxattr("file", "user.name", got, 10), ERANGE);
    EXPECT_ERROR(getxattr("file", "user.name", hole(), 4000), EFAULT);
    OK(removexattr(path("file"), path("user.name")));
    EXPECT_ERROR(getxattr("file", path("user.name"), got, 10), ENODATA);
}
CASE(xattr_value_in_a_hole) {
    make("file");
    NEEDS(setxattr("file", "user.name", "x", 1, 0));
    EXPECT_ERROR(setxattr("file", "user.name", hole(), 10, 0), EFAULT);
}
CASE(inotify_reads_to_absent_pages) {
    int fd = OK(inotify_init1(IN_NONBLOCK));
    OK(inotify_add_watch(fd, path("."), IN_CREATE));
    make("a-new-file");
    char *p = astride(10);
    EXPECT(read(fd, p, 1000) >= (long)sizeof(struct inotify_event) + 11);
    struct inotify_event e;
    memcpy(&e, p, sizeof e);
    EXPECT_EQ(e.mask, IN_CREATE);
    EXPECT(!strcmp(p + sizeof e, "a-new-file"));
}
CASE(inotify_to_a_hole) {
    int fd = OK(inotify_init1(IN_NONBLOCK));
    OK(inotify_add_watch(fd, ".", IN_CREATE));
    make("a");
    EXPECT_ERROR(read(fd, hole(), 1000), EFAULT);
}
CASE(inotify_path_in_a_hole) { EXPECT_ERROR(inotify_add_watch(OK(inotify_init()), hole(), IN_CREATE), EFAULT); }
CASE(fcntl_lock_away) {
    make("file");
    int fd = OK(open("file", O_RDWR));
    struct flock *l = astride(12);
    memset(l, 0, sizeof *l);
    l->l_type = F_WRLCK;
    away(l, sizeof *l);
    OK(fcntl(fd, F_SETLK, l));
    pid_t child = CHILD({
        struct flock *m = astride(12);
        memset(m, 0, sizeof *m);
        m->l_type = F_WRLCK;
        away(m, sizeof *m);
        OK(fcntl(fd, F_GETLK, m));
        EXPECT_EQ(m->l_pid, getppid());
        m->l_pid = 0;
        away(m, sizeof *m);
        EXPECT_ERROR(fcntl(fd, F_SETLK, m), EAGAIN);
    });
    EXPECT_EXIT(child, 0);
}
CASE(fcntl_ofd_lock_away) {
    make("file");
    int fd = OK(open("file", O_RDWR)), other = OK(open("file", O_RDWR));
    struct flock *l = astride(12);
    memset(l, 0, sizeof *l);
    l->l_type = F_WRLCK;
    away(l, sizeof *l);
    OK(fcntl(fd, F_OFD_SETLK, l));
    EXPECT_ERROR(fcntl(other, F_OFD_SETLK, l), EAGAIN);
}
CASE(fcntl_lock_in_a_hole) {
    make("file");
    EXPECT_ERROR(fcntl(OK(open("file", O_RDWR)), F_SETLK, hole()), EFAULT);
}
CASE(fcntl_owner_away) {
    int fd[2];
    OK(socketpair(AF_UNIX, SOCK_STREAM, 0, fd));
    struct f_owner_ex *o = astride(4);
    o->type = F_OWNER_PID, o->pid = getpid();
    away(o, sizeof *o);
    OK(fcntl(fd[0], F_SETOWN_EX, o));
    memset(o, 0, sizeof *o);
    away(o, sizeof *o);
    OK(fcntl(fd[0], F_GETOWN_EX, o));
    EXPECT_EQ(o->pid, getpid());
}
CASE(fcntl_dupfd_from_a_number) {
    EXPECT_EQ(OK(fcntl(0, F_DUPFD, 100)), 100);
    EXPECT_EQ(OK(fcntl(0, F_DUPFD_CLOEXEC, 100)), 101);
    EXPECT_EQ(fcntl(101, F_GETFD), FD_CLOEXEC);
}
CASE(fcntl_dupfd_past_the_limit) {
    struct rlimit r = {200, 200};
    OK(setrlimit(RLIMIT_NOFILE, &r));
    EXPECT_ERROR(fcntl(0, F_DUPFD, 200), EINVAL);
}
CASE(dup2_and_dup3) {
    EXPECT_EQ(dup2(0, 50), 50);
    EXPECT_EQ(dup2(50, 50), 50);
    EXPECT_ERROR(dup3(50, 50, 0), EINVAL);
    EXPECT_ERROR(dup2(0, -1), EBADF);
    EXPECT_ERROR(dup2(900, 51), EBADF);
}
CASE(close_range_closes) {
    OK(dup2(0, 50));
    OK(dup2(0, 60));
    NEEDS(close_range(50, 55, 0));
    EXPECT_ERROR(fcntl(50, F_GETFD), EBADF);
    EXPECT_EQ(fcntl(60, F_GETFD), 0);
    EXPECT_ERROR(close_range(60, 50, 0), EINVAL);
    EXPECT_ERROR(close_range(50, 60, 0x40), EINVAL);
}
CASE(close_range_marks) {
    OK(dup2(0, 50));
    NEEDS(close_range(3, ~0U, CLOSE_RANGE_CLOEXEC));
    EXPECT_EQ(fcntl(50, F_GETFD), FD_CLOEXEC);
}
CASE(close_all_and_go_on) {
    NEEDS(close_range(3, ~0U, 0));
    char *p = absent(16);
    EXPECT(is_filled(p, 16 * PAGE));
    EXPECT_EQ(OK(open("/dev/null", O_RDONLY)), 3);
}
CASE(close_one_by_one_and_go_on) {
    for (int fd = 3; fd < 2000; fd++)
        close(fd);
    char *p = absent(16);
    EXPECT(is_filled(p, 16 * PAGE));
}
CASE(lowest_descriptor_first) {
    absent(4);
    EXPECT_EQ(OK(open("/dev/null", O_RDONLY)), OK(open("/dev/null", O_RDONLY)) - 1);
}
CASE(as_many_files_as_the_limit_says) {
    struct rlimit r = {256, 256};
    OK(setrlimit(RLIMIT_NOFILE, &r));
    int last = -1;
    for (int fd; (fd = open("/dev/null", O_RDONLY)) != -1;)
        last = fd;
    EXPECT_EQ(errno, EMFILE);
    EXPECT_EQ(last, 255);
}
CASE(flock_excludes) {
    make("file");
    OK(flock(OK(open("file", O_RDWR)), LOCK_EX));
    EXPECT_ERROR(flock(OK(open("file", O_RDWR)), LOCK_EX | LOCK_NB), EWOULDBLOCK);
}
CASE(name_to_handle_away) {
    make("file");
    unsigned *handle = astride(4);
    int *mount = astride(2);
    handle[0] = 0;
    away(handle, 8);
    errno = 0;
    if (syscall(SYS_name_to_handle_at, AT_FDCWD, path("file"), handle, mount, 0) == -1 && errno == EOPNOTSUPP)
        SKIP("this file system has no handles");
    EXPECT_EQ(errno, EOVERFLOW);
    EXPECT(handle[0] > 0);
}
CASE(uname_and_sysinfo) {
    struct utsname *u = astride(200);
    OK(uname(u));
    EXPECT(!strcmp(u->sysname, "Linux"));
    struct sysinfo *s = astride(50);
    OK(sysinfo(s));
    EXPECT(s->totalram > 0);
    EXPECT_ERROR(syscall(SYS_uname, hole()), EFAULT);
    EXPECT_ERROR(syscall(SYS_sysinfo, hole()), EFAULT);
}
